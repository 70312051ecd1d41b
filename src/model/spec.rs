//! What a model *is*: plain data, no tensors, no device. Read by `arch`, lowered by `lower`.

use kvas_backend::op::{HeadMap, Scoring};
use kvas_backend::rope::{Pairing, Scaling};

/// Shapes and kinds of every layer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// `general.architecture`.
    pub architecture: String,
    /// Columns of the residual stream.
    pub width: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Tokens the model was trained for.
    pub context_length: usize,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Trunk layers in order; prediction heads (MTP) come after them in the file and are not among these.
    pub layers: Vec<LayerSpec>,
    /// True if the embedding table is also the output matrix.
    pub tied_output: bool,
}

/// `x += sum(mixers(norm(x)))`, then `x += ffn(norm(x))`. Either half may be absent.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// None: an FFN-only block; one: the rule; two: in parallel.
    pub mixers: Vec<Mixer>,
    /// None: a mixer-only block.
    pub ffn: Option<Ffn>,
    /// Tensor stem of the norm before the FFN: `ffn_norm` or `post_attention_norm`.
    pub ffn_norm: &'static str,
}

/// What mixes information along the sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    /// Softmax attention.
    Attention(Attention),
    /// Gated delta rule.
    GatedDelta(GatedDelta),
}

/// Softmax attention and its variants, all of them data.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Columns of a query or key head.
    pub key_dim: usize,
    /// Columns of a value head.
    pub value_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// None: no position encoding.
    pub rope: Option<RopeSpec>,
    /// Norms over each query and key head.
    pub qk_norm: QkNorm,
    /// Biases on q, k and v.
    pub bias: Bias,
    /// Where q, k and v come from.
    pub projection: AttentionProjection,
}

/// Whether query and key heads are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// They are not.
    None,
    /// Each head on its own, before rope.
    PerHead,
}

/// Whether projections have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// They have none.
    None,
    /// They have.
    Present,
}

/// The tensors that hold q, k and v.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionProjection {
    /// `attn_q`, `attn_k`, `attn_v`.
    Separate,
    /// `attn_qkv`: rows of q, k, v.
    Fused,
    /// `attn_q` holds, per head, the query and an output gate; `attn_k`, `attn_v`.
    GatedQuery,
}

/// Rotary positions, before the tensor of factors is known by index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeSpec {
    /// Rotated columns of a head.
    pub dims: usize,
    /// Which columns pair.
    pub pairing: Pairing,
    /// Base of the frequencies.
    pub base: f32,
    /// Beyond the training length.
    pub scaling: Scaling,
    /// Whether the file has `rope_freqs.weight`.
    pub factors: RopeFactors,
}

/// Whether frequencies are divided by `rope_freqs.weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeFactors {
    /// They are not.
    None,
    /// They are.
    Tensor,
}

/// The gated delta rule behind a short causal convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedDelta {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Columns of a key head.
    pub key_dim: usize,
    /// Columns of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
    /// Which key head a value head reads.
    pub head_map: HeadMap,
    /// Where q, k, v and the output gate come from.
    pub projection: DeltaProjection,
    /// Where alpha and beta come from.
    pub gates: DeltaGates,
}

/// The tensors that hold q, k, v and the output gate of a gated delta layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaProjection {
    /// `attn_qkv` (q, k, v) and `attn_gate`.
    QkvAndGate,
    /// `ssm_in`: per key head q, k, its values, their gates (older qwen3next files).
    Interleaved,
}

/// The tensors that hold the decay and write gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaGates {
    /// `ssm_alpha` and `ssm_beta`.
    Separate,
    /// `ssm_ba`: per key head the betas, then the alphas, of its value heads.
    Interleaved,
}

/// Feed-forward half of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum Ffn {
    /// SwiGLU.
    Dense {
        /// Hidden columns.
        hidden: usize,
    },
    /// Mixture of SwiGLU experts.
    Moe(Moe),
}

/// A mixture of experts, with an optional shared one.
#[derive(Debug, Clone, PartialEq)]
pub struct Moe {
    /// Experts.
    pub experts: usize,
    /// Experts per token.
    pub active: usize,
    /// Hidden columns of an expert.
    pub hidden: usize,
    /// Hidden columns of the shared expert, 0 if there is none.
    pub shared_hidden: usize,
    /// How router logits become weights.
    pub scoring: Scoring,
    /// Where gate and up of the experts are.
    pub projection: ExpertProjection,
}

/// The tensors that hold gate and up of the experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertProjection {
    /// `ffn_gate_exps` and `ffn_up_exps`.
    Separate,
    /// `ffn_gate_up_exps`: per expert the gate rows, then the up rows.
    Fused,
}

impl ModelSpec {
    /// One letter a layer and half: `Df Df Df Af` (A attention, D gated delta; f dense, e experts).
    pub fn pattern(&self) -> String {
        let layer = |layer: &LayerSpec| -> String {
            let mixers = layer.mixers.iter().map(|mixer| match mixer {
                Mixer::Attention(_) => 'A',
                Mixer::GatedDelta(_) => 'D',
            });
            let ffn = layer.ffn.iter().map(|ffn| match ffn {
                Ffn::Dense { .. } => 'f',
                Ffn::Moe(_) => 'e',
            });
            mixers.chain(ffn).collect()
        };
        self.layers.iter().map(layer).collect::<Vec<_>>().join(" ")
    }
}
