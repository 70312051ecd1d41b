//! The closed set of device work: plain structs, shapes in comments. Adding one forces every backend to answer.

use crate::{Act, Rope, Store, Weight};

/// One unit of device work: the coarsest whose naive reference is short and which every backend wants as one launch.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each variant is documented at its struct")]
pub enum Op {
    Embed(Embed),
    GatherRows(GatherRows),
    Norm(Norm),
    Linear(Linear),
    GatedLinear(GatedLinear),
    HeadLinear(HeadLinear),
    RopeStore(RopeStore),
    Attention(Attention),
    ReadMemory(ReadMemory),
    CausalConv(CausalConv),
    ShortConv(ShortConv),
    GatedDelta(GatedDelta),
    Mamba2(Mamba2),
    Mamba1(Mamba1),
    GatedNorm(GatedNorm),
    Route(Route),
    ExpertGatedLinear(ExpertGatedLinear),
    ExpertLinear(ExpertLinear),
}

macro_rules! names {
    ($($op:ident => $name:literal)*) => {
        impl Op {
            /// What people call it: `gated linear`.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Op::$op(_) => $name,)*
                }
            }
        }
    };
}

names! {
    Embed => "embed"
    GatherRows => "gather rows"
    Norm => "norm"
    Linear => "linear"
    GatedLinear => "gated linear"
    HeadLinear => "head linear"
    RopeStore => "rope, store"
    Attention => "attention"
    ReadMemory => "read memory"
    CausalConv => "causal conv"
    ShortConv => "short conv"
    GatedDelta => "gated delta"
    Mamba2 => "mamba 2"
    Mamba1 => "mamba 1"
    GatedNorm => "gated norm"
    Route => "route"
    ExpertGatedLinear => "expert gated linear"
    ExpertLinear => "expert linear"
}

/// Whether an op replaces its output or adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// `out = y`
    Write,
    /// `out += y`
    Accumulate,
}

/// The nonlinearity of a gate or a hidden layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// `sigmoid(x)`
    Sigmoid,
    /// `max(x, 0)^2`
    ReluSquared,
}

/// `out[row] = scale * table[token[row]]`; a token outside the table is the engine's mistake.
#[derive(Debug, Clone, PartialEq)]
pub struct Embed {
    /// `[vocab, width]`
    pub table: Weight,
    /// 1 for most models.
    pub scale: f32,
    /// `[rows, width]`
    pub out: Act,
}

/// `out[i] = x[step.outputs[i]]`: the rows whose logits are wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct GatherRows {
    /// `[rows, width]`
    pub x: Act,
    /// `[outputs, width]`
    pub out: Act,
}

/// `out = x / sqrt(mean(x^2) + eps) * weight` over each group of `weight.len()` columns; may run in place.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// `[rows, groups * group]`
    pub x: Act,
    /// `[group]`
    pub weight: Weight,
    /// Added to the mean square.
    pub eps: f32,
    /// `[rows, groups * group]`
    pub out: Act,
}

/// `out[column..column + outputs] (+)= scale * sigmoid(row_gate) * activation(x weight^T + bias)`; the other columns
/// of `out` stay as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// `[rows, inputs]`
    pub x: Act,
    /// `[outputs, inputs]`
    pub weight: Weight,
    /// `[outputs]`
    pub bias: Option<Weight>,
    /// `None`: the identity.
    pub activation: Option<Activation>,
    /// `[rows, 1]`: one gate per row, before its sigmoid (shared experts).
    pub row_gate: Option<Act>,
    /// 1 for most models.
    pub scale: f32,
    /// `[rows, at least column + outputs]`
    pub out: Act,
    /// First column of `out` that is written: several products may fill one activation.
    pub column: usize,
    /// Replace or add.
    pub output: Output,
}

impl Linear {
    /// `out = x weight^T`: what the other fields are changed from.
    pub const fn new(x: Act, weight: Weight, out: Act) -> Self {
        let (bias, activation, row_gate, scale, column) = (None, None, None, 1.0, 0);
        Self { x, weight, bias, activation, row_gate, scale, out, column, output: Output::Write }
    }
}

/// `out = activation(x gate^T) * (x up^T)`.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedLinear {
    /// `[rows, inputs]`
    pub x: Act,
    /// `[outputs, inputs]`
    pub gate: Weight,
    /// `[outputs, inputs]`
    pub up: Weight,
    /// Applied to the gate half.
    pub activation: Activation,
    /// `[rows, outputs]`
    pub out: Act,
}

/// A product per head: `out[head] = x[head][..inputs] weight[head]^T`, followed by the columns of the head that are
/// left over, `x[head][inputs..]`. It moves queries of latent attention into the space of its keys, and its results
/// out of the space of its values.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadLinear {
    /// `[rows, heads * (inputs + left over)]`
    pub x: Act,
    /// `[heads * outputs, inputs]`
    pub weight: Weight,
    /// Heads.
    pub heads: usize,
    /// `[rows, heads * (outputs + left over)]`
    pub out: Act,
}

/// Rotates q and k in place (row at position `context + i`, or where pages say so the place of the row among what is
/// held, [`crate::store::Positions::Held`]), appends k and v to the span's pages. Latent pages
/// ([`crate::store::PageLayout::Latent`]) hold `v` followed by `k` as the key; nothing rotates there.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeStore {
    /// `[rows, heads * key_dim]`
    pub q: Act,
    /// `[rows, kv_heads * key_dim]`; `[rows, kv_heads * (key_dim - value_dim)]` for latent pages
    pub k: Act,
    /// `[rows, kv_heads * value_dim]`
    pub v: Act,
    /// Columns of one query or key head.
    pub key_dim: usize,
    /// `None`: no position encoding.
    pub rope: Option<Rope>,
    /// Pages of this layer.
    pub store: Store,
}

/// Causal softmax attention: row `i` of a span sees `context + i + 1` tokens. Query head `h` reads KV head
/// `h / (heads / kv_heads)`. `out = sigmoid(gate) * softmax(scale * q k^T) v`.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// `[rows, heads * key_dim]`
    pub q: Act,
    /// `[rows, heads * value_dim]`, before its sigmoid.
    pub gate: Option<Act>,
    /// Query heads.
    pub heads: usize,
    /// Multiplies the scores; `1 / sqrt(key_dim)` for most models.
    pub scale: f32,
    /// Pages of this layer.
    pub store: Store,
    /// `[rows, heads * value_dim]`
    pub out: Act,
}

/// What has a gate of its own between attention and a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateScope {
    /// Every channel of every head: `[heads, value_dim]`.
    HeadChannel,
    /// Every channel, for all heads: `[value_dim]`.
    Channel,
    /// Every head: `[heads]`.
    Head,
}

/// Mixes what the memory of the segments that a sequence has evicted says into what its attention has found (ALGORITHMS
/// 4.2), in place: `out = sigmoid(g) * sigmoid(gate) * (fc2 max(fc1 a + b1, 0) + b2) + (1 - sigmoid(g)) * out` per query
/// head, with `a = s(q) M / max(s(q) . z, 1e-10)` of its KV head, and `q` as it was before rotation if the memory is of such
/// keys ([`crate::store::MemoryKeys`]). Rows of sequences that evicted no segment stay as they are, to the bit.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadMemory {
    /// `[rows, heads * key_dim]`, rotated as the keys are.
    pub q: Act,
    /// `[rows, heads * value_dim]`: that of the attention, before its sigmoid.
    pub gate: Option<Act>,
    /// Query heads.
    pub heads: usize,
    /// Pages of this layer, with a memory.
    pub store: Store,
    /// `[hidden, value_dim]` and `[1, hidden]`
    pub fc1: [Weight; 2],
    /// `[value_dim, hidden]` and `[1, value_dim]`
    pub fc2: [Weight; 2],
    /// `g`: `[heads, value_dim]`, `[1, value_dim]` or `[1, heads]`
    pub share: Weight,
    /// What has a `g` of its own.
    pub scope: GateScope,
    /// `[rows, heads * value_dim]`
    pub out: Act,
}

impl ReadMemory {
    /// The `g` of a channel of a head, in the values of [`ReadMemory::share`].
    pub const fn share_at(&self, value_dim: usize, head: usize, channel: usize) -> usize {
        match self.scope {
            GateScope::HeadChannel => head * value_dim + channel,
            GateScope::Channel => channel,
            GateScope::Head => head,
        }
    }
}

/// Depthwise causal convolution over each span, plus bias, then SiLU, in place; tap `taps - 1` is the current row. The rows
/// before the span come from the slot's window of pre-convolution rows; rows before position 0 are zero.
#[derive(Debug, Clone, PartialEq)]
pub struct CausalConv {
    /// `[rows, channels]`
    pub x: Act,
    /// `[channels, taps]`
    pub weight: Weight,
    /// `[channels]`
    pub bias: Option<Weight>,
    /// Window of pre-convolution rows.
    pub store: Store,
}

/// The gated short convolution: `out = c * conv(b * x)`, depthwise and causal, without SiLU. The window holds rows of
/// `b * x`; rows before position 0 are zero.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConv {
    /// `[rows, b: channels | c: channels | x: channels]`
    pub bcx: Act,
    /// `[channels, taps]`
    pub weight: Weight,
    /// Window of rows of `b * x`.
    pub store: Store,
    /// `[rows, channels]`
    pub out: Act,
}

/// Which key head a value head reads. Files differ, so it is settled in the program, not guessed by kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadMap {
    /// Value head `h` reads key head `h / (value_heads / key_heads)`.
    Grouped,
    /// Value head `h` reads key head `h % key_heads`.
    Tiled,
}

impl HeadMap {
    /// The key head that value head `value_head` reads.
    pub const fn key_head(self, value_head: usize, key_heads: usize, value_heads: usize) -> usize {
        match self {
            HeadMap::Grouped => value_head / (value_heads / key_heads),
            HeadMap::Tiled => value_head % key_heads,
        }
    }
}

/// The gated delta rule (ALGORITHMS 2.1): per value head
/// `g = a * softplus(alpha + dt)`, `b = sigmoid(beta)`, `S = S diag(exp(g))`, `u = b (v - S k)`, `S += u k^T`,
/// `out = S q`, with q and k L2-normalised (`x / sqrt(sum(x^2) + norm_eps)`) and q scaled by `1 / sqrt(key_dim)`.
/// There is one decay per head or one per head and key channel, as the store says.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedDelta {
    /// `[rows, q: key_heads * key_dim | k: key_heads * key_dim | v: value_heads * value_dim]`
    pub qkv: Act,
    /// `[rows, decays]`: `value_heads` or `value_heads * key_dim` of them
    pub alpha: Act,
    /// `[rows, value_heads]`, before its sigmoid
    pub beta: Act,
    /// `[value_heads]`, negative: `-exp(A_log)`
    pub a: Weight,
    /// `[decays]`
    pub dt: Weight,
    /// Which key head each value head reads.
    pub head_map: HeadMap,
    /// Added to the squared length of q and k.
    pub norm_eps: f32,
    /// Checkpoint and replay ring, decay per head or per channel.
    pub store: Store,
    /// `[rows, value_heads * value_dim]`
    pub out: Act,
}

/// The Mamba-2 recurrence (ALGORITHMS 2.1): per value head `s = softplus(dt + dt_bias)`,
/// `S = exp(a s) S + (s x) b^T`, `out = S c + d x`. Value head `h` reads the b and c of key head
/// `h / (value_heads / key_heads)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Mamba2 {
    /// `[rows, x: value_heads * value_dim | b: key_heads * key_dim | c: key_heads * key_dim]`
    pub xbc: Act,
    /// `[rows, value_heads]`: step sizes before bias and softplus
    pub dt: Act,
    /// `[value_heads]`
    pub dt_bias: Weight,
    /// `[value_heads]`, negative: `-exp(A_log)`
    pub a: Weight,
    /// `[value_heads]`: what passes the state by
    pub d: Weight,
    /// Checkpoint and replay ring, decay per head.
    pub store: Store,
    /// `[rows, value_heads * value_dim]`
    pub out: Act,
}

/// The Mamba-1 selective scan: per channel `s = softplus(dt)`, `S = exp(a s) * S + (s x) b`, `out = S . c + d x`, with
/// `a` a row of rates per channel and one b and c for all channels. A channel is a value head of one column; the rates
/// are the store's.
#[derive(Debug, Clone, PartialEq)]
pub struct Mamba1 {
    /// `[rows, channels]`
    pub x: Act,
    /// `[rows, channels]`: step sizes before softplus
    pub dt: Act,
    /// `[rows, key_dim]`
    pub b: Act,
    /// `[rows, key_dim]`
    pub c: Act,
    /// `[channels]`: what passes the state by
    pub d: Weight,
    /// Checkpoint and replay ring, one key head, rates per channel.
    pub store: Store,
    /// `[rows, channels]`
    pub out: Act,
}

/// Whether a gate comes after the norm or before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateOrder {
    /// `norm(x) * weight * activation(gate)`
    AfterNorm,
    /// `norm(x * activation(gate)) * weight`
    BeforeNorm,
}

/// Root-mean-square norm of each group of columns and an activated gate, in place.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedNorm {
    /// `[rows, groups * group]`
    pub x: Act,
    /// `[rows, groups * group]`
    pub gate: Act,
    /// `[1, group]`, shared by all groups, or `[groups, group]`; `None`: only the gate
    pub weight: Option<Weight>,
    /// Added to the mean square.
    pub eps: f32,
    /// Which comes first.
    pub order: GateOrder,
    /// Applied to the gate.
    pub activation: Activation,
}

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterScoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

/// Experts in groups of equal size, of which only the best are looked into. A group is as good as the sum of its two
/// best experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups.
    pub groups: usize,
    /// Groups looked into.
    pub active: usize,
}

/// Picks the `active` best experts of each row (lowest index wins ties) by `score + bias`, and their weights, which
/// are `scale * score`, before that divided by their sum if `normalise`.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// `[rows, experts]`
    pub logits: Act,
    /// `[experts]`: added for the choice, not to the weights
    pub bias: Option<Weight>,
    /// How logits become scores.
    pub scoring: RouterScoring,
    /// `None`: all experts compete.
    pub groups: Option<ExpertGroups>,
    /// Whether the chosen weights are divided by their sum.
    pub normalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// `[rows, active]`: expert indices, exact integers held as f32.
    pub experts: Act,
    /// `[rows, active]`
    pub weights: Act,
}

/// [`GatedLinear`] of each chosen expert, or without a gate `activation(x up^T)`; the weights of all experts are
/// stacked.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertGatedLinear {
    /// `[rows, inputs]`
    pub x: Act,
    /// `[rows, active]`
    pub experts: Act,
    /// `[experts * hidden, inputs]`
    pub gate: Option<Weight>,
    /// `[experts * hidden, inputs]`
    pub up: Weight,
    /// Applied to the gate half, or to the only one.
    pub activation: Activation,
    /// `[rows, active * hidden]`
    pub out: Act,
}

/// `out (+)= sum_i weights[i] * (x[i] weight[experts[i]]^T)`.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertLinear {
    /// `[rows, active * hidden]`
    pub x: Act,
    /// `[rows, active]`
    pub experts: Act,
    /// `[rows, active]`
    pub weights: Act,
    /// `[experts * outputs, hidden]`
    pub weight: Weight,
    /// `[rows, outputs]`
    pub out: Act,
    /// Replace or add.
    pub output: Output,
}
