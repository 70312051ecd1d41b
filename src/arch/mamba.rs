//! Mamba-1 and Mamba-2: one mixer a layer, nothing else. Jamba: Mamba-1 and attention, dense and routed halves.

use super::{
    attention::{layer, unrotated},
    ffn::{RouterDefaults, routed},
    header::{Header, bad},
    state_space::{mamba1, mamba2},
};
use crate::model::{
    ModelError, ModelSpec,
    spec::{FfnKind, LayerSpec, Mixer},
};
use kvas_backend::op::RouterScoring;

pub(super) fn first(header: &Header) -> Result<ModelSpec, ModelError> {
    let key = header.key("ssm.dt_b_c_rms");
    if header.metadata.bool_opt(&key)? == Some(true) && !header.any_block_tensor("ssm_dt_norm") {
        return Err(bad(&key, true, "false: norms without weights, as Falcon-Mamba has them, are not computed"));
    }
    header.model(|index| {
        let mixers = vec![Mixer::Mamba1(mamba1(header, index)?)];
        Ok(LayerSpec { mixers, ffn: None, ffn_norm: "" })
    })
}

pub(super) fn second(header: &Header) -> Result<ModelSpec, ModelError> {
    header.model(|index| {
        let mixers = vec![Mixer::Mamba2(mamba2(header, index)?)];
        Ok(LayerSpec { mixers, ffn: None, ffn_norm: "" })
    })
}

/// Routers keep the softmax over all experts as it is.
const AS_SCORED: RouterDefaults = RouterDefaults { scoring: RouterScoring::Softmax, normalise: false };

pub(super) fn jamba(header: &Header) -> Result<ModelSpec, ModelError> {
    header.model(|index| {
        let mixer = match header.is_recurrent(index)? {
            true => Mixer::Mamba1(mamba1(header, index)?),
            false => Mixer::Attention(unrotated(header, index)?),
        };
        Ok(layer(header, index, mixer, routed(header, index, FfnKind::SwiGlu, AS_SCORED)?))
    })
}
