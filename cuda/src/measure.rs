//! Times on the device, and the bandwidth they are compared with.

use crate::device::Device;
use kvas_backend::DeviceError;
use std::sync::Arc;

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

    /// Bytes per second of a copy of `bytes` within device memory, reading and writing counted, the median of some.
    ///
    /// # Errors
    /// There is no room for two such buffers, and the driver's.
    pub fn copy_bandwidth(self: &Arc<Self>, bytes: usize) -> Result<f64, DeviceError> {
        const TIMES: usize = 11;
        let (from, to) = (self.take("a buffer to copy", bytes)?, self.take("a buffer to copy", bytes)?);
        self.fill(from.at(), 0x5a, bytes)?;
        let mut copy = || self.copy(from.at(), to.at(), bytes);
        copy()?;
        let mut seconds = (0..TIMES).map(|_| self.time(&mut copy)).collect::<Result<Vec<f64>, _>>()?;
        seconds.sort_by(f64::total_cmp);
        Ok(2.0 * bytes as f64 / seconds[TIMES / 2])
    }
}
