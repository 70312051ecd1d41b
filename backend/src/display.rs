//! A program as text, one line per op: what `kvas plan` prints and snapshot tests compare.

use crate::{
    Act, Op, Program, Weight,
    op::{self, Activation, GateOrder, Output},
};
use std::fmt::{self, Display, Formatter};

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.ops.iter().try_for_each(|op| {
            self.fmt_op(op, f)?;
            f.write_str("\n")
        })
    }
}

impl Display for Activation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Activation::Silu => "silu",
            Activation::Sigmoid => "sigmoid",
            Activation::ReluSquared => "relu2",
        })
    }
}

fn scaled(f: &mut Formatter<'_>, scale: f32) -> fmt::Result {
    if scale == 1.0 { Ok(()) } else { write!(f, " * {scale}") }
}

const fn arrow(output: Output) -> &'static str {
    match output {
        Output::Write => "->",
        Output::Accumulate => "+>",
    }
}

impl Program {
    fn a(&self, act: Act) -> String {
        format!("{}:{}", self.act(act).name, self.act(act).columns)
    }

    fn w(&self, weight: Weight) -> &str {
        &self.weight(weight).name
    }

    fn fmt_op(&self, op: &Op, f: &mut Formatter<'_>) -> fmt::Result {
        let (act, weight) = (|act: &Act| self.a(*act), |weight: &Weight| self.w(*weight));
        match op {
            Op::Embed(o) => {
                write!(f, "embed        {}", weight(&o.table))?;
                scaled(f, o.scale)?;
                write!(f, " -> {}", act(&o.out))
            }
            Op::GatherRows(o) => write!(f, "gather_rows  {} -> {}", act(&o.x), act(&o.out)),
            Op::Norm(o) => write!(f, "norm         {} {} -> {}", act(&o.x), weight(&o.weight), act(&o.out)),
            Op::Linear(o) => self.fmt_linear(o, f),
            Op::GatedLinear(o) => {
                write!(f, "gated_linear {} {} {} -> {}", act(&o.x), weight(&o.gate), weight(&o.up), act(&o.out))
            }
            Op::HeadLinear(o) => {
                write!(f, "head_linear  {} {} x{} -> {}", act(&o.x), weight(&o.weight), o.heads, act(&o.out))
            }
            Op::RopeStore(o) => {
                write!(f, "rope_store   {} {} {}", act(&o.q), act(&o.k), act(&o.v))?;
                match &o.rope {
                    Some(rope) => write!(f, " rope {} of {} base {}", rope.dims, o.key_dim, rope.base),
                    None => f.write_str(" no rope"),
                }
            }
            Op::Attention(o) => {
                write!(f, "attention    {}", act(&o.q))?;
                o.gate.iter().try_for_each(|gate| write!(f, " * sigmoid({})", act(gate)))?;
                write!(f, " -> {}", act(&o.out))
            }
            Op::ReadMemory(o) => {
                let [first, second] = [o.fc1, o.fc2].map(|[matrix, _]| self.w(matrix).to_string());
                write!(f, "read_memory  {} {first} {second} {} +> {}", act(&o.q), weight(&o.share), act(&o.out))
            }
            Op::GatedNorm(o) => self.fmt_gated_norm(o, f),
            Op::CausalConv(o) => {
                let weights: Vec<Weight> = [o.weight].into_iter().chain(o.bias).collect();
                f.write_str(&self.line("causal_conv", &[o.x], &weights, None))
            }
            Op::ShortConv(o) => f.write_str(&self.line("short_conv", &[o.bcx], &[o.weight], Some(o.out))),
            Op::GatedDelta(o) => {
                f.write_str(&self.line("gated_delta", &[o.qkv, o.alpha, o.beta], &[o.a, o.dt], Some(o.out)))
            }
            Op::Mamba2(o) => f.write_str(&self.line("mamba2", &[o.xbc, o.dt], &[o.dt_bias, o.a, o.d], Some(o.out))),
            Op::Mamba1(o) => f.write_str(&self.line("mamba1", &[o.x, o.dt, o.b, o.c], &[o.d], Some(o.out))),
            Op::Route(o) => self.fmt_route(o, f),
            Op::ExpertGatedLinear(o) => self.fmt_expert_gated_linear(o, f),
            Op::ExpertLinear(o) => {
                write!(f, "expert_linear {} {} {}", act(&o.x), act(&o.experts), weight(&o.weight))?;
                write!(f, " {} {}", arrow(o.output), act(&o.out))
            }
        }
    }

    fn fmt_linear(&self, o: &op::Linear, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "linear       {} {}", self.a(o.x), self.w(o.weight))?;
        o.bias.iter().try_for_each(|bias| write!(f, " + {}", self.w(*bias)))?;
        o.activation.iter().try_for_each(|activation| write!(f, " {activation}"))?;
        o.row_gate.iter().try_for_each(|gate| write!(f, " * sigmoid({})", self.a(*gate)))?;
        scaled(f, o.scale)?;
        write!(f, " {} {}", arrow(o.output), self.a(o.out))?;
        let [outputs, _] = self.weight(o.weight).shape;
        match self.act(o.out).columns == outputs {
            true => Ok(()),
            false => write!(f, "[{}..{}]", o.column, o.column + outputs),
        }
    }

    fn fmt_gated_norm(&self, o: &op::GatedNorm, f: &mut Formatter<'_>) -> fmt::Result {
        let (x, gate) = (self.a(o.x), format!("{}({})", o.activation, self.a(o.gate)));
        match (o.weight, o.order) {
            (None, _) => write!(f, "gated_norm   {x} * {gate}"),
            (Some(norm), GateOrder::AfterNorm) => write!(f, "gated_norm   {x} {} * {gate}", self.w(norm)),
            (Some(norm), GateOrder::BeforeNorm) => write!(f, "gated_norm   {x} * {gate} {}", self.w(norm)),
        }
    }

    /// An op with a state or a window: name, inputs, weights, output.
    fn line(&self, name: &str, inputs: &[Act], weights: &[Weight], out: Option<Act>) -> String {
        let inputs = inputs.iter().map(|act| self.a(*act));
        let weights = weights.iter().map(|weight| self.w(*weight).to_string());
        let out = out.map(|out| format!("-> {}", self.a(out)));
        format!("{name:12} {}", inputs.chain(weights).chain(out).collect::<Vec<_>>().join(" "))
    }

    fn fmt_route(&self, o: &op::Route, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "route        {}", self.a(o.logits))?;
        o.bias.iter().try_for_each(|bias| write!(f, " + {}", self.w(*bias)))?;
        write!(f, " -> {} {}", self.a(o.experts), self.a(o.weights))?;
        scaled(f, o.scale)
    }

    fn fmt_expert_gated_linear(&self, o: &op::ExpertGatedLinear, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "expert_gated_linear {} {}", self.a(o.x), self.a(o.experts))?;
        o.gate.iter().try_for_each(|gate| write!(f, " {}", self.w(*gate)))?;
        write!(f, " {}", self.w(o.up))?;
        o.gate.is_none().then(|| write!(f, " {}", o.activation)).transpose()?;
        write!(f, " -> {}", self.a(o.out))
    }
}
