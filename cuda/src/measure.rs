//! What a GPU can do at most, measured now: the yardsticks of benchmarks.

use crate::device::Device;
use kvas_backend::DeviceError;
use std::sync::Arc;

/// A kernel that does nothing but products of matrices: blocks of a multiprocessor, shared memory of one, operations of one a
/// turn.
struct Peak {
    name: &'static str,
    blocks: usize,
    shared: usize,
    flops: usize,
}

impl Device {
    /// Seconds the GPU takes for what `work` asks it to do, from its first to its last instruction.
    ///
    /// # Errors
    /// Those of `work`, and the driver's.
    pub fn time(&self, work: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        let start = self.event()?;
        work()?;
        let end = self.event()?;
        self.seconds(&start, &end)
    }

    /// Bytes per second of a copy within device memory, those read and those written both counted: the best of a few.
    ///
    /// # Errors
    /// There is no room for it, or the driver's.
    pub fn copy_bandwidth(self: &Arc<Self>) -> Result<f64, DeviceError> {
        // Many times any cache, unless something else has the memory.
        let bytes = ((self.memory()?.0 / 4) as usize).clamp(1 << 20, 2 << 30) & !0xff;
        let (from, to) = (self.take("a copy", bytes)?, self.take("a copy", bytes)?);
        self.fill(from.at(), 1, bytes)?;
        let copy = || self.copy(from.at(), to.at(), bytes);
        Ok(2.0 * bytes as f64 / self.fastest(&copy)?)
    }

    /// Floating point operations per second of the matrix instructions that the kernels use, on bf16 with sums in f32.
    ///
    /// # Errors
    /// The driver's, or those of compiling kernels.
    pub fn matrix_peak(self: &Arc<Self>) -> Result<f64, DeviceError> {
        // As in `kernels/peak.cu`.
        const THREADS: usize = 256;
        const TURNS: usize = 4096;
        let of_warps = Peak { name: "peak_mma_bf16", blocks: 2, shared: 0, flops: THREADS / 32 * 8 * 2 * 16 * 8 * 16 };
        let of_groups = Peak {
            name: "peak_warpgroups_bf16",
            blocks: 1,
            shared: 320 * 128,
            flops: THREADS / 128 * 2 * 64 * 256 * 64,
        };
        let peak = if self.capability() == (9, 0) { of_groups } else { of_warps };
        let blocks = peak.blocks * self.multiprocessors();
        let out = self.take("a measurement", 4 * blocks * THREADS)?;
        let run = || {
            let kernel = self.kernel("peak", peak.name)?.grid(blocks, 1, 1).block(THREADS).shared(peak.shared);
            kernel.arg(out.at()).arg(TURNS as u32).launch()
        };
        Ok((blocks * TURNS * peak.flops) as f64 / self.fastest(&run)?)
    }

    /// Seconds of the fastest of a few runs, after one that is not counted.
    fn fastest(&self, run: &dyn Fn() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        run()?;
        let mut least = f64::INFINITY;
        for _ in 0..8 {
            let start = self.event()?;
            run()?;
            let end = self.event()?;
            least = least.min(self.seconds(&start, &end)?);
        }
        Ok(least)
    }
}
