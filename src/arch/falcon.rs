//! Falcon-H1: attention and Mamba-2 side by side in every layer; its multipliers are folded into the weights.

use super::{
    attention::{attention, layer},
    ffn::ffn,
    header::Header,
    state_space::mamba2,
};
use crate::model::{ModelError, ModelSpec, spec::Mixer};
use kvas_backend::rope::Pairing;

pub(super) fn h1(header: &Header) -> Result<ModelSpec, ModelError> {
    header.model(|index| {
        let mixer = Mixer::Attention(attention(header, index, Pairing::Halves)?);
        let mut layer = layer(header, index, mixer, ffn(header, index)?);
        layer.mixers.push(Mixer::Mamba2(mamba2(header, index)?));
        Ok(layer)
    })
}
