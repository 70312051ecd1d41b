//! LFM2: gated short convolutions with attention between, dense and routed halves.

use super::{
    attention::{attention, layer},
    ffn::{SIGMOID, routed},
    header::Header,
};
use crate::model::{
    ModelError, ModelSpec,
    spec::{FfnKind, Mixer, ShortConv},
};
use kvas_backend::rope::Pairing;

pub(super) fn lfm2(header: &Header) -> Result<ModelSpec, ModelError> {
    let spec = header.model(|index| {
        let mixer = match header.is_recurrent(index)? {
            true => Mixer::ShortConv(ShortConv { taps: header.taps("shortconv.l_cache")? }),
            false => Mixer::Attention(attention(header, index, Pairing::Halves)?),
        };
        Ok(layer(header, index, mixer, routed(header, index, FfnKind::SwiGlu, SIGMOID)?))
    })?;
    // The last norm has the name of one after the embedding; some files use the usual name.
    let usual = header.has_tensor(spec.output_norm);
    Ok(ModelSpec { output_norm: if usual { spec.output_norm } else { "token_embd_norm.weight" }, ..spec })
}
