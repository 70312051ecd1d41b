//! Products, norms, experts, and ops that move rows.

use super::{Build, Case, Values, case, tolerance};
use crate::{
    Op, Replay,
    op::{self, Activation, ExpertGroups, GateOrder, Output, RouterScoring},
};
use kvas_gguf::Quant;

/// Formats that kernels multiply in different ways.
const PATHS: [Quant; 6] = [Quant::F32, Quant::F16, Quant::Q8_0, Quant::Q4K, Quant::Q6K, Quant::Q5_0];

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    all.extend(Quant::ALL.iter().filter(|quant| quant.can_quantize()).flat_map(|quant| linear(*quant)));
    all.extend(PATHS.map(columns));
    all.extend(PATHS.into_iter().flat_map(heads));
    all.extend([Quant::F32, Quant::Q8_0, Quant::Q4K, Quant::F16].map(|quant| experts(quant, true)));
    all.extend(PATHS.map(|quant| experts(quant, false)));
    all.extend(routes());
    let embedded = [(Quant::F32, 1.0), (Quant::Bf16, 1.0), (Quant::Q4_0, 12.0), (Quant::Q6K, 1.0), (Quant::F16, 0.3)];
    all.extend(embedded.map(|(quant, scale)| embed_and_gather(quant, scale)));
    all.extend([(64, 1), (33, 3), (7, 1), (128, 2)].map(|(group, groups)| norms(group, groups)));
    all
}

/// Plain, biased and accumulating, gated by row; a short odd output count and one beyond any tile.
fn linear(quant: Quant) -> Vec<Case> {
    let block = quant.block_len().max(32);
    let mut shapes = vec![(7, 3 * block), (70, block), (129, 2 * block)];
    // More than are computed in one piece for a single row.
    shapes.extend((PATHS.contains(&quant) && block == 32).then_some((3079, block)));
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
    shapes.into_iter().map(one).collect()
}

/// Activated and scaled products that fill some columns of a wider activation, which is multiplied before and after.
fn columns(quant: Quant) -> Case {
    let inputs = quant.block_len().max(32);
    let (width, outputs) = (2 * inputs, inputs / 2 + 3);
    let mut b = Build::default();
    let (x, wide, row_gate) = (b.act("x", inputs), b.act("wide", width), b.act("row_gate", 1));
    let (before, after) = (b.act("before", 7), b.act("after", 7));
    let weights = ["w0", "w1"].map(|name| b.matrix(name, [outputs, inputs]));
    let (whole, bias) = (b.matrix("whole", [7, width]), Some(b.small("bias", [1, outputs])));
    b.linear(wide, whole, before, Output::Write);
    let linear = |at: usize| op::Linear { column: 5 + at * outputs, ..op::Linear::new(x, weights[at], wide) };
    b.op(Op::Linear(op::Linear { activation: Some(Activation::ReluSquared), scale: 0.5, ..linear(0) }));
    let (row_gate, output) = (Some(row_gate), Output::Accumulate);
    let (activation, scale) = (Some(Activation::Silu), -1.5);
    b.op(Op::Linear(op::Linear { bias, activation, row_gate, scale, output, ..linear(1) }));
    b.linear(wide, whole, after, Output::Write);
    let mut case = case(format!("columns {quant}"), b.finish(after), quant, Replay::OFF);
    case.inputs = vec![(x, Values::Normal), (wide, Values::Normal)];
    case.inputs.extend(row_gate.map(|gate| (gate, Values::Normal)));
    case.outputs = vec![before, wide, after];
    case.bound = tolerance::linear(quant);
    case
}

/// Products per head, with and without columns left over, before and after which the rows are multiplied as a whole.
fn heads(quant: Quant) -> Vec<Case> {
    let block = quant.block_len().max(32);
    let one = |(heads, inputs, outputs, left_over): (usize, usize, usize, usize)| {
        let columns = heads * (inputs + left_over);
        let mut b = Build::default();
        let (x, out) = (b.act("x", columns), b.act("out", heads * (outputs + left_over)));
        let (before, after) = (b.act("before", 7), b.act("after", 7));
        let (weight, whole) = (b.matrix("weight", [heads * outputs, inputs]), b.matrix("whole", [7, columns]));
        b.linear(x, whole, before, Output::Write);
        b.op(Op::HeadLinear(op::HeadLinear { x, weight, heads, out }));
        b.linear(x, whole, after, Output::Write);
        let name = format!("heads {quant} {heads} of {outputs}x{inputs} and {left_over}");
        let mut case = case(name, b.finish(out), quant, Replay::OFF);
        case.inputs = vec![(x, Values::Outliers)];
        case.outputs = vec![before, out, after];
        case.bound = tolerance::linear(quant);
        case
    };
    [(3, 2 * block, 7, 5), (2, block, 70, block), (5, block, 64, 0)].map(one).to_vec()
}

fn experts(quant: Quant, gated: bool) -> Case {
    let (width, hidden, experts_total, active) = (256, 256, 6, 3);
    let mut b = Build::default();
    let (x, logits) = (b.act("x", width), b.act("logits", experts_total));
    let (experts, weights) = (b.act("experts", active), b.act("weights", active));
    let (inner, out) = (b.act("inner", active * hidden), b.act("out", width));
    let gate = gated.then(|| b.matrix("gate", [experts_total * hidden, width]));
    let up = b.matrix("up", [experts_total * hidden, width]);
    let weight = b.matrix("down", [experts_total * width, hidden]);
    let (scoring, normalise, scale) = (RouterScoring::Softmax, true, 1.5);
    b.op(Op::Route(op::Route { logits, bias: None, scoring, groups: None, normalise, scale, experts, weights }));
    let activation = if gated { Activation::Silu } else { Activation::ReluSquared };
    b.op(Op::ExpertGatedLinear(op::ExpertGatedLinear { x, experts, gate, up, activation, out: inner }));
    let output = Output::Write;
    b.op(Op::ExpertLinear(op::ExpertLinear { x: inner, experts, weights, weight, out, output }));
    let mut case =
        case(format!("experts {quant}{}", if gated { "" } else { " ungated" }), b.finish(out), quant, Replay::OFF);
    case.inputs = vec![(x, Values::Normal), (logits, Values::Normal)];
    case.outputs = vec![experts, weights, inner, out];
    case.bound = tolerance::linear(quant);
    case
}

/// Biases, groups and ties: logits of few values make many scores equal.
fn routes() -> Vec<Case> {
    let grouped = |groups: usize, active: usize| Some(ExpertGroups { groups, active });
    let choices = [(12, 4, None), (12, 4, grouped(4, 2)), (64, 8, grouped(8, 4)), (9, 3, grouped(1, 1))];
    let mut all = Vec::new();
    for (experts, active, groups) in choices {
        for (scoring, normalise) in [(RouterScoring::Softmax, false), (RouterScoring::Sigmoid, true)] {
            for (biased, values) in [(false, Values::Few), (true, Values::Few), (true, Values::Normal)] {
                all.push(route((experts, active, groups), (scoring, normalise), (biased, values)));
            }
        }
    }
    all
}

fn route(
    (total, active, groups): (usize, usize, Option<ExpertGroups>),
    (scoring, normalise): (RouterScoring, bool),
    (biased, values): (bool, Values),
) -> Case {
    let mut b = Build::default();
    let (logits, experts, weights) = (b.act("logits", total), b.act("experts", active), b.act("weights", active));
    let bias = biased.then(|| b.small("bias", [1, total]));
    b.op(Op::Route(op::Route { logits, bias, scoring, groups, normalise, scale: 2.5, experts, weights }));
    let name = format!("route {active} of {total} {groups:?} {scoring:?} biased {biased} {values:?}");
    let mut case = case(name, b.finish(weights), Quant::F32, Replay::OFF);
    case.inputs = vec![(logits, values)];
    case.outputs = vec![experts, weights];
    case
}

fn embed_and_gather(quant: Quant, scale: f32) -> Case {
    let mut b = Build::default();
    let (x, out) = (b.act("x", 256), b.output_act("out", 256));
    let table = b.matrix("table", [50, 256]);
    b.op(Op::Embed(op::Embed { table, scale, out: x }));
    b.op(Op::GatherRows(op::GatherRows { x, out }));
    let mut case = case(format!("embed {quant}"), b.finish(out), quant, Replay::OFF);
    case.outputs = vec![x, out];
    case.bound = 0.0;
    case
}

/// A plain norm and gated ones.
fn norms(group: usize, groups: usize) -> Case {
    let columns = group * groups;
    let mut b = Build::default();
    let (x, out, gate) = (b.act("x", columns), b.act("out", columns), b.act("gate", columns));
    let weight = b.small("norm", [1, group]);
    b.op(Op::Norm(op::Norm { x, weight, eps: 1e-6, out }));
    let own = Some(b.small("norms", [groups, group]));
    let variants = [
        (Some(weight), GateOrder::AfterNorm, Activation::Silu),
        (Some(weight), GateOrder::BeforeNorm, Activation::Sigmoid),
        (own, GateOrder::AfterNorm, Activation::Sigmoid),
        (own, GateOrder::BeforeNorm, Activation::Silu),
        (None, GateOrder::AfterNorm, Activation::Sigmoid),
    ];
    let gated = variants.map(|(weight, order, activation)| {
        let x = b.act("gated", columns);
        b.op(Op::GatedNorm(op::GatedNorm { x, gate, weight, eps: 1e-5, order, activation }));
        x
    });
    let mut case = case(format!("norm {groups}x{group}"), b.finish(out), Quant::F32, Replay::OFF);
    case.inputs = vec![(x, Values::Outliers), (gate, Values::Uniform(-20.0, 20.0))];
    case.inputs.extend(gated.map(|x| (x, Values::Normal)));
    case.outputs = vec![out];
    case.outputs.extend(gated);
    case
}
