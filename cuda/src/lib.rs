//! The CUDA backend: one GPU, one stream, kernels compiled by NVRTC for the GPU that is there. Builds, links and starts
//! on machines without CUDA.
//!
//! # Map
//!
//! | where | what |
//! |---|---|
//! | `device.rs` | a GPU: context, stream, memory, copies, errors of the driver. Unsafe calls of the driver are here |
//! | `launch.rs` | kernels by name, with a grid, a block and typed arguments: the one place that launches |
//! | `nvrtc.rs`, `compile.rs`, `image.rs` | sources to machine code: the compiler, the cache on disk, the image that a build can embed |
//! | `recorder.rs` | what a step launches as a graph, if it comes again |
//! | `step.rs` | a step on the device: tokens, spans with what their rings do, page tables |
//! | `measure.rs` | what the GPU can do at most: copies, matrix instructions |
//! | `plan.rs` | how much memory a program takes |
//! | `upload.rs`, `weights.rs` | weights to the device |
//! | `eviction.rs`, `compressive_memory.rs` | what layers remember that may evict tokens, or segments |
//! | `pages.rs`, `slots.rs` | what layers remember: the arena of pages, checkpoints, replay rings, windows |
//! | `machine.rs` | a prepared program: activations, weights, memory of layers, scratch |
//! | `ops/` | one file per group of ops: which kernels, which grid, how much scratch |
//! | `kernels/*.cu` | kernels, one file per group; `kernels/common` what they share, `kernels/quant` formats of weights |
//!
//! # A new kernel
//!
//! Write `kernels/NAME.cu` with entry points `KERNEL op_algorithm_type(...)`, put `NAME` into `UNITS` of `compile.rs`
//! (headers into `HEADERS`), name the file in `units` of its op so that it is loaded at `prepare`, and launch it with
//! `self.kernel("NAME", "op_algorithm_type")?.grid(..).block(..).arg(..).launch()`. What it needs besides its inputs
//! and outputs is scratch, which all ops share and which is counted in `scratch_bytes` of its file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod compile;
mod compressive_memory;
mod device;
mod eviction;
mod image;
mod launch;
mod machine;
mod measure;
mod nvrtc;
mod ops;
mod pages;
mod plan;
mod recorder;
mod shape;
mod slots;
mod step;
mod upload;
mod weights;

pub use compile::{ARCHITECTURES, build_image, check_kernels, compiler_version};
pub use device::{Device, has_device, has_driver};
pub use image::embedded_architectures;
pub use ops::wide::WIDTHS;
pub use weights::weight_bytes;

use kvas_backend::{
    Act, Backend, DeviceError, Eviction, Limits, Page, Position, Preference, Program, Slot, StateType, Step, Store,
    TopK, TopKFound, WeightSource, op,
};
use kvas_gguf::Quant;
use machine::Machine;
use plan::Plan;
use std::{ops::Range, sync::Arc};

/// Runs programs on a GPU.
#[derive(Debug)]
pub struct Cuda {
    device: Arc<Device>,
    is_eager: bool,
    width: Option<usize>,
    machine: Option<Machine>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Machine({} ops)", self.program.ops.len())
    }
}

impl Cuda {
    /// A backend on a GPU with nothing on it.
    pub fn new(device: Arc<Device>) -> Self {
        Self { device, is_eager: false, width: None, machine: None }
    }

    /// The same, but every kernel is launched on its own and no graphs are made: slower, the same results.
    pub fn eager(self) -> Self {
        Self { is_eager: true, ..self }
    }

    /// The same, but products that can go through clusters of so many entries (`kernels/quant/wide.cuh`) do, whichever kernel is
    /// the fastest: to compare kernels, and to measure what each of them takes. The results are the same.
    pub fn with_width(self, width: Option<usize>) -> Self {
        Self { width, ..self }
    }

    /// The GPU; after `prepare` with the stream that the program runs in.
    pub fn device(&self) -> &Arc<Device> {
        self.machine.as_ref().map_or(&self.device, |machine| &machine.device)
    }

    fn machine(&mut self) -> &mut Machine {
        let machine = self.products();
        // What is asked for may write activations or the scratch.
        (machine.staged, machine.grouped) = (None, None);
        machine
    }

    /// For products, which know what they write.
    fn products(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("prepare comes before anything else")
    }
}

impl Backend for Cuda {
    fn prepare(
        &mut self,
        program: Arc<Program>,
        weights: &mut dyn WeightSource,
        limits: Limits,
    ) -> Result<(), DeviceError> {
        self.machine = None;
        let device = self.device.with_own_stream()?;
        let mut machine = Machine::new((&device, self.is_eager), program, weights, limits)?;
        machine.width = self.width;
        self.machine = Some(machine);
        Ok(())
    }

    fn ring_type(&self) -> StateType {
        slots::RING_TYPE
    }

    fn runs_behind(&self) -> bool {
        true
    }

    fn scratch_bytes(&self, program: &Program, _quants: &[Quant], limits: &Limits) -> u64 {
        Plan::new(program, limits, &self.device).scratch
    }

    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.machine().begin(step)
    }

    fn run(&mut self, program: &Program, step: &Step) -> Result<(), DeviceError> {
        self.begin(step)?;
        if self.machine().run_known()? {
            return Ok(());
        }
        self.machine().begin_ops()?;
        let run = program.ops.iter().enumerate().try_for_each(|(at, op)| {
            self.products().running = Some(at);
            self.execute(op)
        });
        self.products().running = None;
        if run.is_err() {
            self.machine().device.abandon_step();
            return run;
        }
        self.machine().end_ops()
    }

    fn commit(&mut self, accepted: &[(Slot, u32)]) -> Result<(), DeviceError> {
        self.machine().commit(accepted)
    }

    fn rewindable(&self, slot: Slot) -> u32 {
        self.machine.as_ref().map_or(0, |machine| machine.cursors.rewindable(slot))
    }

    fn until_fold(&self, slot: Slot) -> usize {
        self.machine.as_ref().map_or(1, |machine| machine.cursors.until_fold(slot))
    }

    fn rewind(&mut self, slot: Slot, rows: u32) -> Result<(), DeviceError> {
        self.machine().cursors.rewind(slot, rows);
        Ok(())
    }

    fn position(&self, slot: Slot) -> Option<Position> {
        self.machine.as_ref().map(|machine| machine.cursors.position(slot))
    }

    fn commit_band(&mut self, slots: &[(Slot, u32)]) -> Result<(), DeviceError> {
        slots.iter().for_each(|(slot, rows)| self.machine().cursors.commit(*slot, *rows));
        Ok(())
    }

    fn restore_position(&mut self, slot: Slot, position: Position) -> Result<(), DeviceError> {
        self.machine().cursors.restore_position(slot, position);
        Ok(())
    }

    fn carry(&mut self, values: usize) -> Result<(), DeviceError> {
        self.machine().carry(values)
    }

    fn put(&mut self, act: Act, to: Range<usize>) -> Result<(), DeviceError> {
        self.machine().put(act, to)
    }

    fn fetch(&mut self, act: Act, from: Range<usize>) -> Result<(), DeviceError> {
        self.machine().fetch(act, from)
    }

    fn copy_slots(&mut self, pairs: &[(Slot, Slot)]) -> Result<(), DeviceError> {
        pairs.iter().try_for_each(|(from, to)| self.machine().copy_slot(*from, *to))
    }

    fn clear_slots(&mut self, slots: &[Slot]) -> Result<(), DeviceError> {
        slots.iter().try_for_each(|slot| self.machine().clear_slot(*slot))
    }

    fn copy_pages(&mut self, pairs: &[(Page, Page)]) -> Result<(), DeviceError> {
        pairs.iter().try_for_each(|(from, to)| self.machine().copy_page(*from, *to))
    }

    fn save_slot(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.machine().save_slot(slot, position, out)
    }

    fn load_slot(&mut self, slot: Slot, position: u32, values: &[f32]) -> Result<(), DeviceError> {
        self.machine().load_slot(slot, position, values)
    }

    fn weigh(&mut self, eviction: &Eviction<'_>, values: bool) -> Result<Vec<Preference>, DeviceError> {
        self.machine().weigh(eviction, values)
    }

    fn evict(&mut self, eviction: &Eviction<'_>) -> Result<(), DeviceError> {
        self.machine().evict(eviction)
    }

    fn save_evicted(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.machine().save_evicted((slot, position), out)
    }

    fn load_evicted(&mut self, slot: Slot, tokens: u32, values: &[f32]) -> Result<(), DeviceError> {
        self.machine().load_evicted(slot, tokens, values)
    }

    fn save_page(&mut self, store: Store, page: Page, rows: usize, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.machine().save_page(store, page, rows, out)
    }

    fn load_page(&mut self, store: Store, page: Page, values: &[f32]) -> Result<(), DeviceError> {
        self.machine().load_page(store, page, values)
    }

    fn read(&mut self, act: Act, first: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        self.machine().read(act, first, out)
    }

    fn max_top_k(&self) -> usize {
        ops::top_k::MOST
    }

    fn top_k(&mut self, logits: Act, wanted: &TopK, found: &mut TopKFound) -> Result<(), DeviceError> {
        self.machine().top_k(logits, wanted, found)
    }

    fn write(&mut self, act: Act, values: &[f32]) -> Result<(), DeviceError> {
        self.machine().write(act, values)
    }

    fn embed(&mut self, op: &op::Embed) -> Result<(), DeviceError> {
        self.machine().embed(op)
    }

    fn gather_rows(&mut self, op: &op::GatherRows) -> Result<(), DeviceError> {
        self.machine().gather_rows(op)
    }

    fn norm(&mut self, op: &op::Norm) -> Result<(), DeviceError> {
        self.machine().norm(op)
    }

    fn linear(&mut self, op: &op::Linear) -> Result<(), DeviceError> {
        self.products().linear(op)
    }

    fn gated_linear(&mut self, op: &op::GatedLinear) -> Result<(), DeviceError> {
        self.products().gated_linear(op)
    }

    fn head_linear(&mut self, op: &op::HeadLinear) -> Result<(), DeviceError> {
        self.products().head_linear(op)
    }

    fn rope_store(&mut self, op: &op::RopeStore) -> Result<(), DeviceError> {
        self.machine().rope_store(op)
    }

    fn attention(&mut self, op: &op::Attention) -> Result<(), DeviceError> {
        self.machine().attention(op)
    }

    fn read_memory(&mut self, op: &op::ReadMemory) -> Result<(), DeviceError> {
        self.machine().read_memory(op)
    }

    fn causal_conv(&mut self, op: &op::CausalConv) -> Result<(), DeviceError> {
        self.machine().causal_conv(op)
    }

    fn short_conv(&mut self, op: &op::ShortConv) -> Result<(), DeviceError> {
        self.machine().short_conv(op)
    }

    fn gated_delta(&mut self, op: &op::GatedDelta) -> Result<(), DeviceError> {
        self.machine().gated_delta(op)
    }

    fn mamba2(&mut self, op: &op::Mamba2) -> Result<(), DeviceError> {
        self.machine().mamba2(op)
    }

    fn mamba1(&mut self, op: &op::Mamba1) -> Result<(), DeviceError> {
        self.machine().mamba1(op)
    }

    fn gated_norm(&mut self, op: &op::GatedNorm) -> Result<(), DeviceError> {
        self.machine().gated_norm(op)
    }

    fn route(&mut self, op: &op::Route) -> Result<(), DeviceError> {
        self.machine().route(op)
    }

    fn expert_gated_linear(&mut self, op: &op::ExpertGatedLinear) -> Result<(), DeviceError> {
        self.products().expert_gated_linear(op)
    }

    fn expert_linear(&mut self, op: &op::ExpertLinear) -> Result<(), DeviceError> {
        self.products().expert_linear(op)
    }
}
