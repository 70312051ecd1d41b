//! Products, norms, experts, and ops that move rows.

use super::{Build, Case, Values, case, tolerance};
use crate::{
    Op, Replay,
    op::{self, Activation, GateOrder, Output, Scoring},
};
use kvas_gguf::Quant;

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    all.extend(Quant::ALL.iter().filter(|quant| quant.can_quantize()).flat_map(|quant| linear(*quant)));
    all.extend([Quant::F32, Quant::Q8_0, Quant::Q4K, Quant::F16].map(experts));
    all.extend([Quant::F32, Quant::Bf16, Quant::Q4_0, Quant::Q6K].map(embed_and_gather));
    all.extend([(64, 1), (33, 3), (7, 1), (128, 2)].map(|(group, groups)| norms(group, groups)));
    all
}

/// Plain, biased and accumulating, gated by row; a short odd output count and one beyond any tile.
fn linear(quant: Quant) -> Vec<Case> {
    let block = quant.block_len().max(32);
    let shapes = [(7, 3 * block), (70, block), (129, 2 * block)];
    let one = |(outputs, inputs): (usize, usize)| {
        let mut b = Build::default();
        let x = b.act("x", inputs);
        let (plain, biased, gated) = (b.act("plain", outputs), b.act("biased", outputs), b.act("gated", outputs));
        let (row_gate, swiglu) = (b.act("row_gate", 1), b.act("swiglu", outputs));
        let weights = ["w0", "w1", "w2", "gate", "up"].map(|name| b.matrix(name, [outputs, inputs]));
        let bias = Some(b.small("bias", [1, outputs]));
        b.linear(x, weights[0], plain, Output::Write);
        b.linear(x, weights[1], biased, Output::Write);
        let (weight, output) = (weights[2], Output::Accumulate);
        b.op(Op::Linear(op::Linear { bias, output, ..op::Linear::new(x, weight, biased) }));
        let row_gate = Some(row_gate);
        b.op(Op::Linear(op::Linear { bias, row_gate, ..op::Linear::new(x, weights[1], gated) }));
        let (gate, up, activation) = (weights[3], weights[4], Activation::Silu);
        b.op(Op::GatedLinear(op::GatedLinear { x, gate, up, activation, out: swiglu }));
        let name = format!("linear {quant} {outputs}x{inputs}");
        let mut case = case(name, b.finish(plain), quant, Replay::OFF);
        case.inputs = vec![(x, Values::Outliers)];
        case.inputs.extend(row_gate.map(|gate| (gate, Values::Normal)));
        case.outputs = vec![plain, biased, gated, swiglu];
        case.bound = tolerance::linear(quant);
        case
    };
    shapes.map(one).to_vec()
}

fn experts(quant: Quant) -> Case {
    let (width, hidden, experts_total, active) = (256, 256, 6, 3);
    let mut b = Build::default();
    let (x, logits) = (b.act("x", width), b.act("logits", experts_total));
    let (experts, weights) = (b.act("experts", active), b.act("weights", active));
    let (inner, out) = (b.act("inner", active * hidden), b.act("out", width));
    let gate = b.matrix("gate", [experts_total * hidden, width]);
    let up = b.matrix("up", [experts_total * hidden, width]);
    let weight = b.matrix("down", [experts_total * width, hidden]);
    let (scoring, normalise, scale) = (Scoring::Softmax, true, 1.5);
    b.op(Op::Route(op::Route { logits, bias: None, scoring, groups: None, normalise, scale, experts, weights }));
    let activation = Activation::Silu;
    b.op(Op::ExpertGatedLinear(op::ExpertGatedLinear { x, experts, gate: Some(gate), up, activation, out: inner }));
    let output = Output::Write;
    b.op(Op::ExpertLinear(op::ExpertLinear { x: inner, experts, weights, weight, out, output }));
    let mut case = case(format!("experts {quant}"), b.finish(out), quant, Replay::OFF);
    case.inputs = vec![(x, Values::Normal), (logits, Values::Normal)];
    case.outputs = vec![experts, weights, inner, out];
    case.bound = tolerance::linear(quant);
    case
}

fn embed_and_gather(quant: Quant) -> Case {
    let mut b = Build::default();
    let (x, out) = (b.act("x", 256), b.output_act("out", 256));
    let table = b.matrix("table", [50, 256]);
    b.op(Op::Embed(op::Embed { table, scale: 1.0, out: x }));
    b.op(Op::GatherRows(op::GatherRows { x, out }));
    let mut case = case(format!("embed {quant}"), b.finish(out), quant, Replay::OFF);
    case.outputs = vec![x, out];
    case.bound = 0.0;
    case
}

fn norms(group: usize, groups: usize) -> Case {
    let columns = group * groups;
    let mut b = Build::default();
    let (x, out, gated, gate) =
        (b.act("x", columns), b.act("out", columns), b.act("gated", columns), b.act("gate", columns));
    let weight = b.small("norm", [1, group]);
    b.op(Op::Norm(op::Norm { x, weight, eps: 1e-6, out }));
    let activation = Activation::Silu;
    b.op(Op::GatedNorm(op::GatedNorm {
        x: gated,
        gate,
        weight: Some(weight),
        eps: 1e-5,
        order: GateOrder::AfterNorm,
        activation,
    }));
    let mut case = case(format!("norm {groups}x{group}"), b.finish(out), Quant::F32, Replay::OFF);
    case.inputs = vec![(x, Values::Outliers), (gated, Values::Normal), (gate, Values::Uniform(-20.0, 20.0))];
    case.outputs = vec![out, gated];
    case
}
