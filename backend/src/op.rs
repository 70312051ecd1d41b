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
    RopeStore(RopeStore),
    Attention(Attention),
    CausalConv(CausalConv),
    GatedDelta(GatedDelta),
    GatedNorm(GatedNorm),
    Route(Route),
    ExpertGatedLinear(ExpertGatedLinear),
    ExpertLinear(ExpertLinear),
}

/// Whether an op replaces its output or adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// `out = y`
    Write,
    /// `out += y`
    Accumulate,
}

/// The nonlinearity of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// `sigmoid(x)`
    Sigmoid,
}

/// `out[row] = table[token[row]]`; a token outside the table is the engine's mistake.
#[derive(Debug, Clone, PartialEq)]
pub struct Embed {
    /// `[vocab, width]`
    pub table: Weight,
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

/// `out (+)= sigmoid(row_gate) * (x weight^T + bias)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// `[rows, inputs]`
    pub x: Act,
    /// `[outputs, inputs]`
    pub weight: Weight,
    /// `[outputs]`
    pub bias: Option<Weight>,
    /// `[rows, 1]`: one gate per row, before its sigmoid (shared experts).
    pub row_gate: Option<Act>,
    /// `[rows, outputs]`
    pub out: Act,
    /// Replace or add.
    pub output: Output,
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

/// Rotates q and k in place (row at position `context + i`), appends k and v to the span's pages.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeStore {
    /// `[rows, heads * key_dim]`
    pub q: Act,
    /// `[rows, kv_heads * key_dim]`
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

/// Depthwise causal convolution over each span, then SiLU, in place; tap `taps - 1` is the current row. The rows
/// before the span come from the slot's window of pre-convolution rows; rows before position 0 are zero.
#[derive(Debug, Clone, PartialEq)]
pub struct CausalConv {
    /// `[rows, channels]`
    pub x: Act,
    /// `[channels, taps]`
    pub weight: Weight,
    /// Window of pre-convolution rows.
    pub store: Store,
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

/// The gated delta rule with one decay per head (ALGORITHMS 2.1): per value head
/// `g = a * softplus(alpha + dt)`, `b = sigmoid(beta)`, `S = exp(g) S`, `u = b (v - S k)`, `S += u k^T`, `out = S q`,
/// with q and k L2-normalised (`x / sqrt(sum(x^2) + norm_eps)`) and q scaled by `1 / sqrt(key_dim)`.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedDelta {
    /// `[rows, q: key_heads * key_dim | k: key_heads * key_dim | v: value_heads * value_dim]`
    pub qkv: Act,
    /// `[rows, value_heads]`
    pub alpha: Act,
    /// `[rows, value_heads]`, before its sigmoid
    pub beta: Act,
    /// `[value_heads]`, negative: `-exp(A_log)`
    pub a: Weight,
    /// `[value_heads]`
    pub dt: Weight,
    /// Which key head each value head reads.
    pub head_map: HeadMap,
    /// Added to the squared length of q and k.
    pub norm_eps: f32,
    /// Checkpoint and replay ring.
    pub store: Store,
    /// `[rows, value_heads * value_dim]`
    pub out: Act,
}

/// `x = norm(x per head) * weight * activation(gate)`, in place.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedNorm {
    /// `[rows, heads * head_dim]`
    pub x: Act,
    /// `[rows, heads * head_dim]`
    pub gate: Act,
    /// `[head_dim]`, shared by all heads
    pub weight: Weight,
    /// Added to the mean square.
    pub eps: f32,
    /// Applied to the gate.
    pub activation: Activation,
}

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

/// Picks the `active` best experts of each row (lowest index wins ties) and their weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// `[rows, experts]`
    pub logits: Act,
    /// How logits become scores.
    pub scoring: Scoring,
    /// Whether the chosen weights are divided by their sum.
    pub normalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// `[rows, active]`: expert indices, exact integers held as f32.
    pub experts: Act,
    /// `[rows, active]`
    pub weights: Act,
}

/// [`GatedLinear`] of each chosen expert; the weights of all experts are stacked.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertGatedLinear {
    /// `[rows, inputs]`
    pub x: Act,
    /// `[rows, active]`
    pub experts: Act,
    /// `[experts * hidden, inputs]`
    pub gate: Weight,
    /// `[experts * hidden, inputs]`
    pub up: Weight,
    /// Applied to the gate half.
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
