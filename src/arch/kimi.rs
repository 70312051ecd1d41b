//! Kimi-Linear: gated delta layers with a decay per channel, latent attention between them.

use super::{
    attention::layer,
    ffn::{SIGMOID, routed},
    header::{Header, bad},
};
use crate::model::{
    ModelError, ModelSpec,
    spec::{DeltaProjection, FfnKind, GatedDelta, LatentAttention, Mixer},
};
use kvas_backend::op::HeadMap;

pub(super) fn linear(header: &Header) -> Result<ModelSpec, ModelError> {
    header.model(|index| {
        let mixer = match header.is_recurrent(index)? {
            true => Mixer::GatedDelta(gated_delta(header, index)?),
            false => Mixer::LatentAttention(latent_attention(header, index)?),
        };
        Ok(layer(header, index, mixer, routed(header, index, FfnKind::SwiGlu, SIGMOID)?))
    })
}

fn gated_delta(header: &Header, index: usize) -> Result<GatedDelta, ModelError> {
    let dim = header.count("kda.head_dim", 1..=1 << 12)?;
    // No key says how many heads these layers have; the published model has as many as in its attention layers.
    let heads = match header.block_tensor_elements(index, "ssm_a") {
        Some(heads) if (1..=1 << 14).contains(&heads) => heads,
        _ => header.heads(index)?,
    };
    Ok(GatedDelta {
        key_heads: heads,
        value_heads: heads,
        key_dim: dim,
        value_dim: dim,
        conv_taps: header.taps("ssm.conv_kernel")?,
        head_map: HeadMap::Grouped,
        projection: DeltaProjection::PerChannel,
    })
}

/// The norms inside of latent attention have this one in the reference, whatever the model says of its others (1e-5 where it
/// was published); files have no key for it.
const LATENT_NORM_EPS: f32 = 1e-6;

fn latent_attention(header: &Header, index: usize) -> Result<LatentAttention, ModelError> {
    let dim = |key: &str| header.count(key, 1..=1 << 14);
    let (key_dim, shared_dim) = (dim("attention.key_length_mla")?, dim("rope.dimension_count")?);
    let own_dim = key_dim.checked_sub(shared_dim).filter(|own| *own > 0).ok_or_else(|| {
        let expected = format!("more than rope.dimension_count = {shared_dim}");
        bad(&header.key("attention.key_length_mla"), key_dim, &expected)
    })?;
    Ok(LatentAttention {
        heads: header.heads(index)?,
        latent_dim: dim("attention.kv_lora_rank")?,
        own_dim,
        shared_dim,
        value_dim: dim("attention.value_length_mla")?,
        query_rank: header.count_opt("attention.q_lora_rank", 1..=1 << 14)?,
        norm_eps: LATENT_NORM_EPS,
        scale: 1.0 / (key_dim as f32).sqrt(),
    })
}
