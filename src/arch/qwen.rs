//! Qwen 2 and 3 (all attention), Qwen3-Next and Qwen 3.5 (gated delta layers with attention between them).

use super::{
    attention::{attention, layer},
    ffn::ffn,
    header::{Header, bad},
};
use crate::model::{
    ModelError, ModelSpec,
    spec::{AttentionProjection, DeltaGates, DeltaInputs, DeltaProjection, GatedDelta, Mixer},
};
use kvas_backend::{op::HeadMap, rope::Pairing};

pub(super) fn dense(header: &Header) -> Result<ModelSpec, ModelError> {
    header.model(|index| {
        let mixer = Mixer::Attention(attention(header, index, Pairing::Halves)?);
        Ok(layer(header, index, mixer, ffn(header, index)?))
    })
}

/// The converter of this family puts value head `g * r + j` at index `j * key_heads + g`.
pub(super) fn qwen35(header: &Header) -> Result<ModelSpec, ModelError> {
    hybrid(header, HeadMap::Tiled)
}

pub(super) fn qwen3next(header: &Header) -> Result<ModelSpec, ModelError> {
    hybrid(header, HeadMap::Grouped)
}

fn hybrid(header: &Header, head_map: HeadMap) -> Result<ModelSpec, ModelError> {
    header.model(|index| {
        let mixer = if is_recurrent(header, index)? {
            Mixer::GatedDelta(gated_delta(header, index, head_map)?)
        } else {
            let mut attention = attention(header, index, Pairing::Halves)?;
            attention.projection = AttentionProjection::GatedQuery;
            let (key_dim, value_dim) = (attention.key_dim, attention.value_dim);
            if key_dim != value_dim {
                // A gate lies beside each query, and multiplies what is read of values.
                let expected = format!("attention.key_length = {key_dim} where queries have gates");
                return Err(bad(&header.key("attention.value_length"), value_dim, &expected));
            }
            Mixer::Attention(attention)
        };
        Ok(layer(header, index, mixer, ffn(header, index)?))
    })
}

/// New files say it per layer; older ones only give the interval of the attention layers.
fn is_recurrent(header: &Header, index: usize) -> Result<bool, ModelError> {
    if header.predicts(index)? {
        return Ok(false);
    }
    let key = header.key("attention.recurrent_layers");
    match header.metadata.bools_opt(&key)? {
        Some(layers) => layers
            .get(index)
            .copied()
            .ok_or_else(|| bad(&key, format!("an array of {}", layers.len()), "one value per layer")),
        None => {
            let interval = header.count_opt("full_attention_interval", 1..=512)?.unwrap_or(4);
            Ok(!(index + 1).is_multiple_of(interval))
        }
    }
}

fn gated_delta(header: &Header, index: usize, head_map: HeadMap) -> Result<GatedDelta, ModelError> {
    let key_heads = header.count("ssm.group_count", 1..=1 << 12)?;
    let value_heads = header.count("ssm.time_step_rank", 1..=1 << 12)?;
    if !value_heads.is_multiple_of(key_heads) {
        let expected = format!("a multiple of ssm.group_count = {key_heads}");
        return Err(bad(&header.key("ssm.time_step_rank"), value_heads, &expected));
    }
    let inner = header.count("ssm.inner_size", 1..=1 << 22)?;
    if !inner.is_multiple_of(value_heads) {
        let expected = format!("a multiple of ssm.time_step_rank = {value_heads}");
        return Err(bad(&header.key("ssm.inner_size"), inner, &expected));
    }
    let has = |stem: &str| header.has_block_tensor(index, stem);
    let inputs = if has("ssm_in.weight") { DeltaInputs::Interleaved } else { DeltaInputs::QkvAndGate };
    let gates = if has("ssm_ba.weight") { DeltaGates::Interleaved } else { DeltaGates::Separate };
    Ok(GatedDelta {
        key_heads,
        value_heads,
        key_dim: header.count("ssm.state_size", 1..=1 << 12)?,
        value_dim: inner / value_heads,
        conv_taps: header.taps("ssm.conv_kernel")?,
        head_map,
        projection: DeltaProjection::Joint { inputs, gates },
    })
}
