//! Nemotron-H: every block is one half only, Mamba-2, attention or a feed-forward without gates.

use super::{
    attention::{layer, unrotated},
    ffn::{SIGMOID, routed},
    header::Header,
    state_space::mamba2,
};
use crate::model::{
    ModelError, ModelSpec,
    spec::{FfnKind, LayerSpec, Mixer},
};

/// Every block has this norm, whatever follows it.
const NORM: &str = "attn_norm.weight";

pub(super) fn nemotron(header: &Header) -> Result<ModelSpec, ModelError> {
    header.model(|index| {
        if header.predicts(index)? {
            let mixer = Mixer::Attention(unrotated(header, index)?);
            return Ok(layer(header, index, mixer, routed(header, index, FfnKind::ReluSquared, SIGMOID)?));
        }
        let hidden = header.per_layer("feed_forward_length", index, 0..=1 << 24)?;
        let mixer = |mixer| LayerSpec { mixers: vec![mixer], ffn: None, ffn_norm: NORM };
        if hidden > 0 {
            let ffn = Some(routed(header, index, FfnKind::ReluSquared, SIGMOID)?);
            return Ok(LayerSpec { mixers: vec![], ffn, ffn_norm: NORM });
        }
        Ok(mixer(match header.is_recurrent(index)? {
            true => Mixer::Mamba2(mamba2(header, index)?),
            false => Mixer::Attention(unrotated(header, index)?),
        }))
    })
}
