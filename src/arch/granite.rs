//! Granite: Mamba-2 with attention between, or attention in every layer; factors along the residual stream.

use super::{
    attention::{attention, layer, unrotated},
    ffn::ffn,
    header::Header,
    state_space::mamba2,
};
use crate::model::{
    ModelError, ModelSpec,
    spec::{Mixer, Scales},
};
use kvas_backend::rope::Pairing;

/// With recurrent layers: those of attention rotate in files that say so.
pub(super) fn hybrid(header: &Header) -> Result<ModelSpec, ModelError> {
    granite(header, false)
}

/// With attention in every layer, which rotates unless a file says otherwise.
pub(super) fn dense(header: &Header) -> Result<ModelSpec, ModelError> {
    granite(header, true)
}

fn granite(header: &Header, usually: bool) -> Result<ModelSpec, ModelError> {
    let rotates = header.metadata.bool_opt(&header.key("rope.scaling.finetuned"))?.unwrap_or(usually);
    let spec = header.model(|index| {
        let mixer = match (header.is_recurrent(index)?, rotates) {
            (true, _) => Mixer::Mamba2(mamba2(header, index)?),
            (false, true) => Mixer::Attention(attention(header, index, Pairing::Adjacent)?),
            (false, false) => Mixer::Attention(unrotated(header, index)?),
        };
        Ok(layer(header, index, mixer, ffn(header, index)?))
    })?;
    let scale = |key: &str| header.positive_opt(key).map(|scale| scale.unwrap_or(1.0));
    let scales = Scales {
        embedding: scale("embedding_scale")?,
        residual: scale("residual_scale")?,
        logits: 1.0 / scale("logit_scale")?,
    };
    Ok(ModelSpec { scales, ..spec })
}
