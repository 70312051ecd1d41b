//! What a model *is*: plain data, no tensors, no device. Read by `arch`, lowered by `lower`.

pub use kvas_backend::{
    op::GateScope,
    store::{MemoryKeys, Positions},
};

use kvas_backend::op::{ExpertGroups, HeadMap, RouterScoring};
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
    /// Tokens the model was trained for, no more than its window.
    pub context_length: usize,
    /// The sliding window of its attention, where that is shorter than what it was trained for. No layer forgets what leaves
    /// the window, so that a longer sequence would not be computed as the model was trained.
    pub window: Option<usize>,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Trunk layers in order.
    pub layers: Vec<LayerSpec>,
    /// Layers of the prediction heads (MTP), which come after the trunk in the file and draft the tokens after the
    /// next one. Their blocks also have the tensors that [`crate::model::lower::prediction_weights`] names.
    pub prediction: Vec<LayerSpec>,
    /// True if the embedding table is also the output matrix.
    pub tied_output: bool,
    /// Tensor of the norm before the output matrix.
    pub output_norm: &'static str,
    /// Factors along the residual stream.
    pub scales: Scales,
    /// How attention layers whose gates are in the file may read a long sequence.
    pub edgeinfinite: Option<EdgeInfinite>,
    /// What the layers are compared by where tokens are evicted.
    pub exponents: Exponents,
}

/// Exponents of how far weights and values of a layer would move, and of its entropy (VABS, ALGORITHMS 5.2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exponents {
    /// For budgets below [`Exponents::LARGE`] tokens.
    pub small: [f32; 2],
    /// For all others.
    pub large: [f32; 2],
}

impl Exponents {
    /// The budget from which on those for large ones are better.
    const LARGE: usize = 256;

    /// Those for a budget of so many tokens.
    pub const fn of(&self, budget: usize) -> [f32; 2] {
        if budget < Self::LARGE { self.small } else { self.large }
    }
}

/// EdgeInfinite (ALGORITHMS 4): a sequence is `sink | segments | residual | window`, and what is read of the segments is
/// kept as a matrix per key head. The gates of the layers were trained for these lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeInfinite {
    /// First tokens, always kept.
    pub sink: usize,
    /// Last tokens, always kept.
    pub window: usize,
    /// Tokens that are absorbed at once.
    pub segment: usize,
    /// Positions of what is kept.
    pub positions: Positions,
    /// Which keys are absorbed, and which queries ask.
    pub keys: MemoryKeys,
}

/// Factors along the residual stream, 1 in most models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scales {
    /// Of embeddings.
    pub embedding: f32,
    /// Of what every mixer and every feed-forward half adds.
    pub residual: f32,
    /// Of logits.
    pub logits: f32,
}

impl Scales {
    /// No factor at all.
    pub const NONE: Scales = Scales { embedding: 1.0, residual: 1.0, logits: 1.0 };
}

/// `x += sum(mixers(norm(x)))`, then `x += ffn(norm(x))`. Either half may be absent.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// None: an FFN-only block; one: the rule; two: in parallel.
    pub mixers: Vec<Mixer>,
    /// None: a mixer-only block.
    pub ffn: Option<Ffn>,
    /// Tensor of the norm before the FFN, without its block: `ffn_norm.weight` in most files.
    pub ffn_norm: &'static str,
}

/// What mixes information along the sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    /// Softmax attention.
    Attention(Attention),
    /// Softmax attention over a latent that keys and values share (MLA).
    LatentAttention(LatentAttention),
    /// Gated delta rule, with one decay per head (GDN) or per key channel (KDA).
    GatedDelta(GatedDelta),
    /// Mamba-2.
    Mamba2(Mamba2),
    /// Mamba-1.
    Mamba1(Mamba1),
    /// Gated short convolution.
    ShortConv(ShortConv),
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
    /// A bias on what is added to the residual stream.
    pub output_bias: Bias,
    /// Where q, k and v come from.
    pub projection: AttentionProjection,
    /// What mixes in what a compressive memory says, if that was trained.
    pub memory: Option<MemoryGates>,
}

/// The gating module of one layer (ALGORITHMS 4.5): `sig(g) (W2 relu(W1 a + b1) + b2) + (1 - sig(g)) dot`, with one
/// pair of matrices for all heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryGates {
    /// Columns between the matrices.
    pub hidden: usize,
    /// What has a `g` of its own.
    pub scope: GateScope,
}

/// Whether query and key heads are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// They are not.
    None,
    /// Each head on its own, before rope.
    PerHead,
}

/// Whether projections or convolutions have biases.
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

/// Softmax attention whose keys and values are projections of one latent per token. What is stored is the latent and
/// a part of the key that all heads share.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentAttention {
    /// Query heads.
    pub heads: usize,
    /// Columns of the latent.
    pub latent_dim: usize,
    /// Columns of a query that meet the latent, before they are moved into its space.
    pub own_dim: usize,
    /// Columns of a query that meet the shared part of the key.
    pub shared_dim: usize,
    /// Columns of a value head.
    pub value_dim: usize,
    /// Columns of the low-rank query, `None`: the query is one product.
    pub query_rank: Option<usize>,
    /// Added to the mean square of the latent and of the low-rank query where they are normalised.
    pub norm_eps: f32,
    /// Multiplies the scores.
    pub scale: f32,
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
    /// Where everything comes from.
    pub projection: DeltaProjection,
}

/// The tensors of a gated delta layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaProjection {
    /// `attn_qkv` (q, k, v) and `attn_gate`, or `ssm_in`: one decay per head, a SiLU gate.
    Joint {
        /// Where q, k, v and the output gate are.
        inputs: DeltaInputs,
        /// Where alpha and beta are.
        gates: DeltaGates,
    },
    /// `attn_q`, `attn_k`, `attn_v` with a convolution each; a decay per key channel and a sigmoid gate, both through
    /// low-rank products (Kimi Delta Attention).
    PerChannel,
}

/// The tensors that hold q, k, v and the output gate of a gated delta layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaInputs {
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

/// A Mamba-2 mixer: convolution, recurrence, gate, norm.
#[derive(Debug, Clone, PartialEq)]
pub struct Mamba2 {
    /// Heads.
    pub heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Groups of heads that share B and C.
    pub groups: usize,
    /// Columns of B and C.
    pub state_dim: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
    /// Of the convolution.
    pub conv_bias: Bias,
    /// Whether each group of columns is normalised after the gate.
    pub norm: MambaNorm,
}

/// Whether a Mamba mixer has norms inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MambaNorm {
    /// It has none.
    None,
    /// It has.
    Present,
}

/// A Mamba-1 mixer: convolution, selective scan, gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Mamba1 {
    /// Channels.
    pub channels: usize,
    /// Columns of B and C.
    pub state_dim: usize,
    /// Columns of the low-rank step size.
    pub step_rank: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
    /// Of the convolution.
    pub conv_bias: Bias,
    /// On the low-rank step size, B and C.
    pub norm: MambaNorm,
}

/// A gated short convolution over the whole width.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConv {
    /// Taps of the convolution.
    pub taps: usize,
}

/// Feed-forward half of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum Ffn {
    /// One for all tokens.
    Dense {
        /// Hidden columns.
        hidden: usize,
        /// What happens in between.
        kind: FfnKind,
    },
    /// Mixture of experts.
    Moe(Moe),
}

/// What a feed-forward half does between its matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FfnKind {
    /// `silu(gate) * up`
    SwiGlu,
    /// `max(up, 0)^2`, without a gate
    ReluSquared,
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
    /// What every expert does.
    pub kind: FfnKind,
    /// Columns the experts work on, `None`: the model's width.
    pub latent: Option<usize>,
    /// The expert of every token.
    pub shared: Option<SharedExpert>,
    /// How a router chooses and weighs.
    pub router: Router,
    /// Where gate and up of the experts are.
    pub projection: ExpertProjection,
}

/// How a router chooses and weighs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Router {
    /// How logits become scores.
    pub scoring: RouterScoring,
    /// Whether `exp_probs_b.bias` takes part in the choice.
    pub bias: Bias,
    /// `None`: all experts compete.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of the chosen are divided by their sum.
    pub normalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
}

/// An expert every token goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Hidden columns.
    pub hidden: usize,
    /// Whether its result is gated.
    pub gate: SharedGate,
}

/// Whether a shared expert's result is gated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedGate {
    /// It is added as it is.
    None,
    /// It is multiplied by a sigmoid per token.
    Sigmoid,
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
    /// One letter a layer and half: `Df Df Df Af` (A attention, L latent attention, D gated delta, K the same per
    /// channel, M Mamba-2, S Mamba-1, C short convolution; f dense, e experts).
    pub fn pattern(&self) -> String {
        let layer = |layer: &LayerSpec| -> String {
            let mixers = layer.mixers.iter().map(|mixer| match mixer {
                Mixer::Attention(_) => 'A',
                Mixer::LatentAttention(_) => 'L',
                Mixer::GatedDelta(delta) if delta.projection == DeltaProjection::PerChannel => 'K',
                Mixer::GatedDelta(_) => 'D',
                Mixer::Mamba2(_) => 'M',
                Mixer::Mamba1(_) => 'S',
                Mixer::ShortConv(_) => 'C',
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
