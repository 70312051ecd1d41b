//! One file per group of ops: what each of them launches, and the scratch it wants.

pub(crate) mod attention;
pub(crate) mod beside;
pub(crate) mod clustered;
pub(crate) mod conv;
pub(crate) mod cutting;
pub(crate) mod evict;
pub(crate) mod experts;
pub(crate) mod fusion;
pub(crate) mod kernel;
mod latent;
pub(crate) mod narrow;
pub(crate) mod norm;
mod normed;
pub(crate) mod product;
pub(crate) mod read_memory;
pub(crate) mod recurrence;
pub(crate) mod ring;
pub(crate) mod rope_store;
pub(crate) mod route;
pub(crate) mod rows;
pub(crate) mod scan;
pub(crate) mod segments;
pub(crate) mod slake;
pub(crate) mod top_k;
pub(crate) mod wide;

use crate::device::Device;
use kvas_backend::{Limits, Op, Program, Weight, op::Activation};
use kvas_gguf::Quant;

/// The files of kernels an op may launch from: loaded at `prepare`. `quant` is the format a weight has on the device.
pub(crate) fn units(
    program: &Program,
    op: &Op,
    quant: impl Fn(Weight) -> Quant,
    limits: &Limits,
    device: &Device,
) -> Vec<&'static str> {
    match op {
        Op::Embed(_) | Op::GatherRows(_) => vec!["rows"],
        Op::Norm(_) | Op::GatedNorm(_) => vec!["norm"],
        Op::Linear(op) => product::units(&[quant(op.weight)]),
        Op::GatedLinear(op) => product::units(&[quant(op.gate), quant(op.up)]),
        Op::HeadLinear(op) => product::units(&[quant(op.weight)]),
        Op::ExpertGatedLinear(op) => {
            let weights: Vec<Quant> = op.gate.into_iter().chain([op.up]).map(quant).collect();
            experts::units(&weights)
        }
        Op::ExpertLinear(op) => experts::units(&[quant(op.weight)]),
        Op::Route(_) => vec!["route"],
        Op::RopeStore(_) => vec!["pages"],
        Op::Attention(op) => attention::units(program.pages(op.store), limits, device),
        Op::ReadMemory(_) => read_memory::UNITS.to_vec(),
        Op::CausalConv(_) | Op::ShortConv(_) => conv::units(),
        Op::GatedDelta(op) => recurrence::units(program, op.store, false, limits),
        Op::Mamba2(op) => recurrence::units(program, op.store, true, limits),
        Op::Mamba1(op) => recurrence::units(program, op.store, false, limits),
    }
}

/// Bytes of the scratch that all ops share: what the one that wants most wants.
pub(crate) fn scratch_bytes(program: &Program, limits: &Limits, device: &Device) -> u64 {
    let of_ops = program.ops.iter().map(|op| of_op(program, op, limits, device)).max().unwrap_or(0);
    of_ops.max(top_k::scratch_bytes(limits) as u64)
}

fn of_op(program: &Program, op: &Op, limits: &Limits, device: &Device) -> u64 {
    match op {
        Op::Embed(_) | Op::GatherRows(_) | Op::Norm(_) | Op::GatedNorm(_) | Op::Route(_) => 0,
        Op::Linear(_) | Op::GatedLinear(_) | Op::HeadLinear(_) => product::scratch_bytes(program, op, limits, device),
        Op::ExpertGatedLinear(_) | Op::ExpertLinear(_) => experts::scratch_bytes(program, op, limits, device),
        Op::RopeStore(_) | Op::ReadMemory(_) | Op::Mamba1(_) => 0,
        Op::GatedDelta(op) => recurrence::scratch_bytes(program, op.store, limits),
        Op::Mamba2(op) => recurrence::scratch_bytes(program, op.store, limits),
        Op::Attention(op) => attention::scratch_bytes(program, op, limits, device),
        Op::CausalConv(_) | Op::ShortConv(_) => conv::scratch_bytes(program, limits),
    }
}

/// `Activation` of `kernels/common/types.cuh`.
pub(crate) fn activation(activation: Option<Activation>) -> u32 {
    match activation {
        None => 0,
        Some(Activation::Silu) => 1,
        Some(Activation::Sigmoid) => 2,
        Some(Activation::ReluSquared) => 3,
    }
}

/// What kernels are given for yes and no.
pub(crate) fn flag(is_true: bool) -> u32 {
    u32::from(is_true)
}
