//! What a step must move and compute at least: the yardstick of `kvas bench`.

use kvas_backend::{KvType, Op, Program, StoreDecl, Weight};
use kvas_gguf::GgufFile;

/// Lower bounds of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Weight bytes a step of one token reads; a step of more tokens reads them once too, save for experts.
    pub weights_bytes: u64,
    /// Multiply-adds with weights, per token.
    pub multiply_adds: u64,
    /// Bytes of keys and values a token of context adds to what attention reads.
    pub kv_bytes: u64,
    /// State bytes of one sequence: read once a step.
    pub state_bytes: u64,
}

/// Counts a program over the formats of its file, with pages of `kv_type`.
pub fn traffic(program: &Program, file: &GgufFile, kv_type: KvType) -> Traffic {
    let mut total = Traffic::default();
    let mut add = |weight: Weight, part: (usize, usize)| {
        let decl = program.weight(weight);
        let [rows, columns] = decl.shape;
        let quant = file.tensor(&decl.parts[0].tensor).map_or(kvas_gguf::Quant::F32, |info| info.quant);
        let bytes = rows * quant.row_bytes(columns).unwrap_or(0);
        total.weights_bytes += (bytes * part.0 / part.1) as u64;
        total.multiply_adds += (rows * columns * part.0 / part.1) as u64;
    };
    for op in &program.ops {
        let experts = |act, weight: Weight, rows_each: usize| {
            (program.act(act).columns, program.weight(weight).shape[0] / rows_each)
        };
        match op {
            Op::Linear(op) => add(op.weight, (1, 1)),
            Op::HeadLinear(op) => add(op.weight, (1, 1)),
            Op::GatedLinear(op) => [op.gate, op.up].into_iter().for_each(|weight| add(weight, (1, 1))),
            Op::ExpertGatedLinear(op) => {
                let hidden = program.act(op.out).columns / program.act(op.experts).columns;
                let part = experts(op.experts, op.up, hidden);
                op.gate.into_iter().chain([op.up]).for_each(|weight| add(weight, part));
            }
            Op::ExpertLinear(op) => {
                let outputs = program.act(op.out).columns;
                add(op.weight, experts(op.experts, op.weight, outputs));
            }
            Op::Embed(_)
            | Op::GatherRows(_)
            | Op::Norm(_)
            | Op::RopeStore(_)
            | Op::Attention(_)
            | Op::CausalConv(_)
            | Op::ShortConv(_)
            | Op::GatedDelta(_)
            | Op::Mamba2(_)
            | Op::Mamba1(_)
            | Op::GatedNorm(_)
            | Op::Route(_) => {}
        }
    }
    for store in &program.stores {
        match store {
            StoreDecl::Pages(pages) => total.kv_bytes += pages.row_bytes(kv_type) as u64,
            StoreDecl::State(state) => total.state_bytes += 4 * state.state_elements() as u64,
            StoreDecl::Conv(conv) => total.state_bytes += 4 * (conv.channels * (conv.taps - 1)) as u64,
        }
    }
    total
}
