//! Llama and everything its converter writes as `llama` (Mistral among them).

use super::{
    attention::{attention, layer},
    ffn::ffn,
    header::Header,
};
use crate::model::{ModelError, ModelSpec, spec::Mixer};
use kvas_backend::rope::Pairing;

pub(super) fn llama(header: &Header) -> Result<ModelSpec, ModelError> {
    header.model(|index| {
        let mixer = Mixer::Attention(attention(header, index, Pairing::Adjacent)?);
        Ok(layer(header, index, mixer, ffn(header, index)?))
    })
}
