//! The CPU backend: kernels for the instruction set of this machine, on a pool of threads. Results depend neither on
//! the number of threads nor on which other sequences share a step.

#![cfg_attr(fuzzing, allow(dead_code, unused_imports, reason = "there is no kernel for a matrix unit then"))]
#![allow(clippy::needless_range_loop, reason = "kernels index several arrays of registers by one number")]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arena;
mod compressive_memory;
mod eviction;
mod fetching;
mod groups;
mod limits;
mod machine;
mod ops;
mod packed;
mod pages;
mod plan;
mod pool;
mod quantised;
mod simd;
mod slots;
mod states;
mod tiled;
mod weights;

pub use limits::{Arithmetic, available_memory, compute_peak, read_bandwidth, resident_memory};
pub use plan::packs;
pub use simd::Isa;

use kvas_backend::{
    Act, Backend, CHUNK, DeviceError, Eviction, Limits, Page, Position, Preference, Program, Slot, Step, Store,
    WeightSource, op,
};
use kvas_gguf::Quant;
use machine::Machine;
use plan::{Means, Plan};
use pool::Pool;
use simd::Proof;
use std::{ops::Range, sync::Arc};

/// Runs programs on this machine's processor.
pub struct Cpu {
    threads: usize,
    /// What to compute with, or why that is not to be had; said at `prepare`.
    isa: Result<Isa, String>,
    repacks: bool,
    machine: Option<Machine>,
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cpu({} threads, {:?})", self.threads, self.isa)
    }
}

fn failed(what: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: "cpu".into(), what: what.into() }
}

impl Cpu {
    /// A backend of `threads` threads (the caller is one; 0 counts as 1) with the widest instruction set this
    /// processor has, or the one named by the environment variable `KVAS_CPU`: `scalar`, `neon`, `dotprod`, `i8mm`, `avx2`,
    /// `avxvnni`, `avx512` or `amx`. Another value is a [`DeviceError::Failed`] at `prepare`.
    pub fn new(threads: usize) -> Self {
        let isa = match std::env::var("KVAS_CPU") {
            Ok(name) => named(&name),
            Err(std::env::VarError::NotPresent) => Ok(Isa::best()),
            Err(error) => Err(format!("KVAS_CPU: {error}")),
        };
        Self { threads: threads.max(1), isa, repacks: true, machine: None }
    }

    /// As [`Cpu::new`] with the instruction set `isa`; a processor without it is a [`DeviceError::Failed`] at
    /// `prepare`.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        Self { threads: threads.max(1), isa: Ok(isa), repacks: true, machine: None }
    }

    /// The same, but weights stay as they are stored, and are packed each time they are used: slower and in less memory.
    /// The same results to the bit for block formats, up to the order of sums for floats of 16 bits.
    pub fn without_repacking(self) -> Self {
        Self { repacks: false, ..self }
    }

    /// The instruction set, if `prepare` will accept it.
    pub fn isa(&self) -> Option<Isa> {
        self.isa.as_ref().ok().copied().filter(|isa| isa.available())
    }

    /// The matrix unit, if it is to be used.
    fn tiles(&self) -> Option<simd::tiles::Tiles> {
        self.isa.as_ref().ok().copied().and_then(Proof::of).and_then(Proof::tiles)
    }

    fn machine(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("prepare comes before anything else")
    }
}

fn named(name: &str) -> Result<Isa, String> {
    let known = || Isa::ALL.map(Isa::name).join(", ");
    Isa::from_name(name).ok_or_else(|| format!("KVAS_CPU={name}: expected one of {}", known()))
}

impl Backend for Cpu {
    fn prepare(
        &mut self,
        program: Arc<Program>,
        weights: &mut dyn WeightSource,
        limits: Limits,
    ) -> Result<(), DeviceError> {
        self.machine = None;
        let isa = self.isa.clone().map_err(failed)?;
        let proof = Proof::of(isa).ok_or_else(|| failed(format!("this processor has no {}", isa.name())))?;
        let pool = Pool::new(self.threads).map_err(|error| failed(format!("cannot start threads: {error}")))?;
        self.machine = Some(Machine::new((proof, self.repacks), pool, program, weights, limits)?);
        Ok(())
    }

    fn scratch_bytes(&self, program: &Program, quants: &[Quant], limits: &Limits) -> u64 {
        let means = Means { threads: self.threads, tiles: self.tiles(), repacks: self.repacks };
        Plan::new(program, quants, limits, means).scratch_bytes
    }

    fn grain(&self) -> usize {
        self.machine.as_ref().map_or(CHUNK, Machine::grain)
    }

    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.machine().begin(step);
        Ok(())
    }

    fn commit(&mut self, accepted: &[(Slot, u32)]) -> Result<(), DeviceError> {
        self.machine().commit(accepted);
        Ok(())
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
        self.machine().carried = vec![0.0; values];
        Ok(())
    }

    fn put(&mut self, act: Act, to: Range<usize>) -> Result<(), DeviceError> {
        let Machine { acts, carried, .. } = self.machine();
        carried[to.clone()].copy_from_slice(&acts[act.0 as usize][..to.len()]);
        Ok(())
    }

    fn fetch(&mut self, act: Act, from: Range<usize>) -> Result<(), DeviceError> {
        let Machine { acts, carried, .. } = self.machine();
        acts[act.0 as usize][..from.len()].copy_from_slice(&carried[from]);
        self.machine().forget(act);
        Ok(())
    }

    fn copy_slots(&mut self, pairs: &[(Slot, Slot)]) -> Result<(), DeviceError> {
        pairs.iter().for_each(|(from, to)| self.machine().copy_slot(*from, *to));
        Ok(())
    }

    fn clear_slots(&mut self, slots: &[Slot]) -> Result<(), DeviceError> {
        slots.iter().for_each(|slot| self.machine().clear_slot(*slot));
        Ok(())
    }

    fn weigh(&mut self, eviction: &Eviction<'_>, values: bool) -> Result<Vec<Preference>, DeviceError> {
        Ok(self.machine().weigh(eviction, values))
    }

    fn evict(&mut self, eviction: &Eviction<'_>) -> Result<(), DeviceError> {
        self.machine().evict(eviction);
        Ok(())
    }

    fn copy_pages(&mut self, pairs: &[(Page, Page)]) -> Result<(), DeviceError> {
        pairs.iter().for_each(|(from, to)| self.machine().pages.copy(*from, *to));
        Ok(())
    }

    fn save_slot(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.machine().save_slot(slot, position, out);
        Ok(())
    }

    fn load_slot(&mut self, slot: Slot, position: u32, values: &[f32]) -> Result<(), DeviceError> {
        self.machine().load_slot(slot, position, values);
        Ok(())
    }

    fn save_evicted(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.machine().memory.iter().for_each(|memory| memory.save_evicted((slot, position), out));
        Ok(())
    }

    fn load_evicted(&mut self, slot: Slot, tokens: u32, mut values: &[f32]) -> Result<(), DeviceError> {
        let memory = self.machine().memory.iter_mut();
        memory.for_each(|memory| memory.load_evicted((slot, tokens), &mut values));
        Ok(())
    }

    fn save_page(&mut self, store: Store, page: Page, rows: usize, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        let machine = self.machine();
        machine.pages.save(machine.program.pages(store), page, rows, out);
        Ok(())
    }

    fn load_page(&mut self, store: Store, page: Page, values: &[f32]) -> Result<(), DeviceError> {
        let machine = self.machine();
        machine.pages.load(machine.program.pages(store), page, values);
        Ok(())
    }

    fn read(&mut self, act: Act, first: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        let machine = self.machine();
        let first = first * machine.columns(act);
        out.copy_from_slice(&machine.acts[act.0 as usize][first..][..out.len()]);
        Ok(())
    }

    fn write(&mut self, act: Act, values: &[f32]) -> Result<(), DeviceError> {
        let machine = self.machine();
        machine.acts[act.0 as usize][..values.len()].copy_from_slice(values);
        machine.forget(act);
        Ok(())
    }

    fn embed(&mut self, op: &op::Embed) -> Result<(), DeviceError> {
        self.machine().embed(op);
        Ok(())
    }

    fn gather_rows(&mut self, op: &op::GatherRows) -> Result<(), DeviceError> {
        self.machine().gather_rows(op);
        Ok(())
    }

    fn norm(&mut self, op: &op::Norm) -> Result<(), DeviceError> {
        self.machine().norm(op);
        Ok(())
    }

    fn linear(&mut self, op: &op::Linear) -> Result<(), DeviceError> {
        self.machine().linear(op);
        Ok(())
    }

    fn gated_linear(&mut self, op: &op::GatedLinear) -> Result<(), DeviceError> {
        self.machine().gated_linear(op);
        Ok(())
    }

    fn head_linear(&mut self, op: &op::HeadLinear) -> Result<(), DeviceError> {
        self.machine().head_linear(op);
        Ok(())
    }

    fn rope_store(&mut self, op: &op::RopeStore) -> Result<(), DeviceError> {
        self.machine().rope_store(op);
        Ok(())
    }

    fn attention(&mut self, op: &op::Attention) -> Result<(), DeviceError> {
        self.machine().attention(op);
        Ok(())
    }

    fn read_memory(&mut self, op: &op::ReadMemory) -> Result<(), DeviceError> {
        self.machine().read_memory(op);
        Ok(())
    }

    fn causal_conv(&mut self, op: &op::CausalConv) -> Result<(), DeviceError> {
        self.machine().causal_conv(op);
        Ok(())
    }

    fn gated_delta(&mut self, op: &op::GatedDelta) -> Result<(), DeviceError> {
        self.machine().gated_delta(op);
        Ok(())
    }

    fn short_conv(&mut self, op: &op::ShortConv) -> Result<(), DeviceError> {
        self.machine().short_conv(op);
        Ok(())
    }

    fn mamba2(&mut self, op: &op::Mamba2) -> Result<(), DeviceError> {
        self.machine().mamba2(op);
        Ok(())
    }

    fn mamba1(&mut self, op: &op::Mamba1) -> Result<(), DeviceError> {
        self.machine().mamba1(op);
        Ok(())
    }

    fn gated_norm(&mut self, op: &op::GatedNorm) -> Result<(), DeviceError> {
        self.machine().gated_norm(op);
        Ok(())
    }

    fn route(&mut self, op: &op::Route) -> Result<(), DeviceError> {
        self.machine().route(op);
        Ok(())
    }

    fn expert_gated_linear(&mut self, op: &op::ExpertGatedLinear) -> Result<(), DeviceError> {
        self.machine().expert_gated_linear(op);
        Ok(())
    }

    fn expert_linear(&mut self, op: &op::ExpertLinear) -> Result<(), DeviceError> {
        self.machine().expert_linear(op);
        Ok(())
    }
}
