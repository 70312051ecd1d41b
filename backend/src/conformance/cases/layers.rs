//! Recurrences with the convolution before and the gated norm behind them, as layers have them: a device may make all three at
//! once.

use super::{Build, Case, Values, case, sequence_script, tolerance};
use crate::{
    Act, Op, Replay, StateType, StoreDecl, Weight,
    op::{self, Activation, GateOrder, HeadMap},
    store::{ConvDecl, Decay, StateDecl},
};
use kvas_gguf::Quant;

pub(super) fn cases() -> Vec<Case> {
    let mut all: Vec<Case> =
        [Replay::OFF, Replay::new(16, 4), Replay::new(3, 3).with_fresh(40)].into_iter().flat_map(layers).collect();
    for mut case in layers(Replay::new(16, 4)) {
        case.name = format!("f16 {}", case.name);
        case.limits.state_type = StateType::F16;
        case.bound = tolerance::ROUNDED_STATE;
        all.push(case);
    }
    all
}

fn layers(replay: Replay) -> Vec<Case> {
    let decl = |key_heads, value_heads, key_dim, value_dim, decay| StateDecl {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        decay,
    };
    let (per_head, per_channel) = (Decay::PerHead, Decay::PerChannel);
    vec![
        delta(decl(2, 4, 128, 128, per_head), (HeadMap::Grouped, 4), replay),
        delta(decl(1, 2, 100, 128, per_head), (HeadMap::Tiled, 4), replay),
        delta(decl(2, 6, 40, 24, per_head), (HeadMap::Tiled, 4), replay),
        delta(decl(2, 2, 64, 128, per_head), (HeadMap::Grouped, 3), replay),
        delta(decl(2, 2, 128, 128, per_channel), (HeadMap::Grouped, 4), replay),
        mamba2(decl(1, 8, 128, 64, per_head), replay),
        mamba2(decl(2, 4, 200, 48, per_head), replay),
        delta_that_is_read_again(decl(1, 1, 128, 128, per_head), replay),
    ]
}

/// A layer under construction: what its recurrence reads, gives and is gated with.
struct Layer {
    b: Build,
    decl: StateDecl,
    inputs: Act,
    gate: Act,
    out: Act,
    /// Behind the gated norm.
    behind: Option<op::Norm>,
}

impl Layer {
    fn new(decl: StateDecl, inputs: &str) -> Self {
        let (mut b, values) = (Build::default(), decl.value_heads * decl.value_dim);
        let inputs = b.act(inputs, 2 * decl.key_heads * decl.key_dim + values);
        let (gate, out) = (b.act("gate", values), b.act("out", values));
        Self { b, decl, inputs, gate, out, behind: None }
    }

    fn conv(&mut self, taps: usize, bias: Option<Weight>) {
        let channels = 2 * self.decl.key_heads * self.decl.key_dim + self.decl.value_heads * self.decl.value_dim;
        let weight = self.b.small("conv", [channels, taps]);
        let store = self.b.store(StoreDecl::Conv(ConvDecl { channels, taps }));
        self.b.op(Op::CausalConv(op::CausalConv { x: self.inputs, weight, bias, store }));
    }

    /// `weight`: rows and columns of that of the norm.
    fn finish(
        mut self,
        kind: &str,
        (weight, order): ([usize; 2], GateOrder),
        inputs: Vec<(Act, Values)>,
        replay: Replay,
    ) -> Case {
        let activation = match self.decl.decay {
            Decay::PerHead | Decay::Rates(_) => Activation::Silu,
            Decay::PerChannel => Activation::Sigmoid,
        };
        let (x, gate, weight, eps) = (self.out, self.gate, Some(self.b.small("norm", weight)), 1e-5);
        self.b.op(Op::GatedNorm(op::GatedNorm { x, gate, weight, eps, order, activation }));
        let mut outputs = vec![self.out];
        if let Some(norm) = self.behind {
            outputs.push(norm.out);
            self.b.op(Op::Norm(norm));
        }
        let StateDecl { key_heads, value_heads, key_dim, value_dim, .. } = self.decl;
        let name = format!("{kind} layer {key_heads}/{value_heads} {key_dim}x{value_dim} replay {replay}");
        let mut case = case(name, self.b.finish(self.out), Quant::F32, replay);
        case.inputs = inputs;
        case.inputs.extend([(self.inputs, Values::Normal), (self.gate, Values::Normal)]);
        case.outputs = outputs;
        case.script = sequence_script(replay);
        case.bound = tolerance::RECURRENT;
        case
    }
}

fn delta(decl: StateDecl, (head_map, taps): (HeadMap, usize), replay: Replay) -> Case {
    let kind = if decl.decay == Decay::PerChannel { "delta per channel" } else { "delta" };
    let (layer, inputs) = delta_layer(decl, (head_map, taps));
    layer.finish(kind, ([1, decl.value_dim], GateOrder::AfterNorm), inputs, replay)
}

/// What was convolved is read by another op behind the norm.
fn delta_that_is_read_again(decl: StateDecl, replay: Replay) -> Case {
    let (mut layer, inputs) = delta_layer(decl, (HeadMap::Tiled, 4));
    let columns = 2 * decl.key_heads * decl.key_dim + decl.value_heads * decl.value_dim;
    let (x, out) = (layer.inputs, layer.b.act("read again", columns));
    let weight = layer.b.small("norm of inputs", [1, columns]);
    layer.behind = Some(op::Norm { x, weight, eps: 1e-5, out });
    layer.finish("delta, read again,", ([1, decl.value_dim], GateOrder::AfterNorm), inputs, replay)
}

fn delta_layer(decl: StateDecl, (head_map, taps): (HeadMap, usize)) -> (Layer, Vec<(Act, Values)>) {
    let mut layer = Layer::new(decl, "qkv");
    let (value_heads, decays) = (decl.value_heads, decl.value_heads * decl.decays());
    let (alpha, beta) = (layer.b.act("alpha", decays), layer.b.act("beta", value_heads));
    layer.conv(taps, None);
    let (a, dt) = (layer.b.small("ssm_a", [1, value_heads]), layer.b.small("dt", [1, decays]));
    let (qkv, out, store) = (layer.inputs, layer.out, layer.b.store(StoreDecl::State(decl)));
    let norm_eps = 1e-6;
    layer.b.op(Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out }));
    (layer, vec![(alpha, Values::Uniform(-8.0, 8.0)), (beta, Values::Normal)])
}

fn mamba2(decl: StateDecl, replay: Replay) -> Case {
    let mut layer = Layer::new(decl, "xbc");
    let dt = layer.b.act("dt", decl.value_heads);
    let channels = 2 * decl.key_heads * decl.key_dim + decl.value_heads * decl.value_dim;
    let bias = layer.b.small("bias", [1, channels]);
    layer.conv(4, Some(bias));
    let [dt_bias, a, d] = ["dt_bias", "ssm_a", "d"].map(|name| layer.b.small(name, [1, decl.value_heads]));
    let (xbc, out, store) = (layer.inputs, layer.out, layer.b.store(StoreDecl::State(decl)));
    layer.b.op(Op::Mamba2(op::Mamba2 { xbc, dt, dt_bias, a, d, store, out }));
    let group = decl.value_heads / decl.key_heads * decl.value_dim;
    let inputs = vec![(dt, Values::Uniform(-8.0, 8.0))];
    layer.finish("mamba2", ([decl.key_heads, group], GateOrder::BeforeNorm), inputs, replay)
}
