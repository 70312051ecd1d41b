//! Vocabulary the readers share: layers, softmax attention, rope.

use super::{
    edgeinfinite,
    header::{Header, bad},
};
use crate::model::{
    ModelError,
    spec::{Attention, AttentionProjection, Bias, Ffn, LayerSpec, Mixer, QkNorm, RopeFactors, RopeSpec},
};
use kvas_backend::rope::{Pairing, Scaling, yarn_magnitude};

/// A layer of one mixer and one feed-forward half.
pub(super) fn layer(header: &Header, index: usize, mixer: Mixer, ffn: Ffn) -> LayerSpec {
    let has = |stem: &str| header.has_block_tensor(index, stem);
    let names = ["ffn_norm.weight", "post_attention_norm.weight", "ffn_norm"];
    let ffn_norm = names.into_iter().find(|name| has(name)).unwrap_or(names[0]);
    LayerSpec { mixers: vec![mixer], ffn: Some(ffn), ffn_norm }
}

/// Softmax attention without positions.
pub(super) fn unrotated(header: &Header, index: usize) -> Result<Attention, ModelError> {
    Ok(Attention { rope: None, ..attention(header, index, Pairing::Halves)? })
}

/// Softmax attention of one layer; norms, biases and fusion are read off the tensor directory.
pub(super) fn attention(header: &Header, index: usize, pairing: Pairing) -> Result<Attention, ModelError> {
    let heads = header.heads(index)?;
    let key_dim = header.head_dim("attention.key_length", heads)?;
    let value_dim = header.head_dim("attention.value_length", heads)?;
    let has = |stem: &str| header.has_block_tensor(index, stem);
    let bias = |is_there: bool| if is_there { Bias::Present } else { Bias::None };
    Ok(Attention {
        heads,
        kv_heads: header.kv_heads(index, heads)?,
        key_dim,
        value_dim,
        scale: header.positive_opt("attention.scale")?.unwrap_or(1.0 / (key_dim as f32).sqrt()),
        rope: Some(rope(header, key_dim, pairing)?),
        qk_norm: if has("attn_q_norm.weight") { QkNorm::PerHead } else { QkNorm::None },
        bias: bias(has("attn_q.bias") || has("attn_qkv.bias")),
        output_bias: bias(has("attn_output.bias")),
        projection: if has("attn_qkv.weight") { AttentionProjection::Fused } else { AttentionProjection::Separate },
        memory: edgeinfinite::gates(header, index, heads, value_dim)?,
    })
}

fn rope(header: &Header, key_dim: usize, pairing: Pairing) -> Result<RopeSpec, ModelError> {
    let dims = header.count_opt("rope.dimension_count", 2..=key_dim)?.unwrap_or(key_dim);
    if !dims.is_multiple_of(2) {
        return Err(bad(&header.key("rope.dimension_count"), dims, "an even number"));
    }
    let factors = header.has_tensor("rope_freqs.weight");
    Ok(RopeSpec {
        dims,
        pairing,
        base: header.positive_opt("rope.freq_base")?.unwrap_or(10000.0),
        scaling: scaling(header)?,
        factors: if factors { RopeFactors::Tensor } else { RopeFactors::None },
    })
}

fn scaling(header: &Header) -> Result<Scaling, ModelError> {
    let key = header.key("rope.scaling.type");
    let factor = match header.positive_opt("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => header.positive_opt("rope.scale_linear")?,
    };
    match (header.metadata.string_opt(&key)?, factor) {
        (Some("none"), _) | (_, None) => Ok(Scaling::None),
        (None | Some("linear"), Some(factor)) => Ok(Scaling::Linear { factor }),
        (Some("yarn"), Some(factor)) => Ok(Scaling::Yarn {
            factor,
            original_context: original_context(header)? as f32,
            beta_fast: header.positive_opt("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: header.positive_opt("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            attention_factor: attention_factor(header, factor)?,
        }),
        (Some(other), _) => Err(bad(&key, other, "none, linear or yarn")),
    }
}

/// The context before scaling; without it that of the file, as in llama.cpp.
fn original_context(header: &Header) -> Result<usize, ModelError> {
    match header.count_opt("rope.scaling.original_context_length", 1..=1 << 31)? {
        Some(context) => Ok(context),
        None => header.count("context_length", 1..=1 << 31),
    }
}

/// What magnitudes are multiplied by beside what YaRN multiplies them by. Files of llama.cpp's converter say what both are
/// together, as checkpoints do.
fn attention_factor(header: &Header, factor: f32) -> Result<f32, ModelError> {
    if let Some(beside) = header.positive_opt("rope.scaling.attn_factor")? {
        return Ok(beside);
    }
    let together = header.positive_opt("rope.scaling.yarn_attn_factor")?;
    Ok(together.map_or(1.0, |together| together / yarn_magnitude(factor)))
}
