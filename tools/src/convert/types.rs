//! Which type each tensor of the file has.

use crate::quantize::fitting;
use kvas_gguf::Quant;

/// The type in which a tensor of this name and shape (the contiguous dimension last) is stored if weights are wanted as
/// `quant`: norms, vectors, convolution kernels, routers and what is no weight stay F32.
pub(super) fn stored_as(name: &str, shape: &[usize], quant: Quant) -> Quant {
    const F32_ENDINGS: &[&str] =
        &["_norm.weight", "shortconv.conv.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"];
    let precise = shape.len() == 1
        || !name.ends_with(".weight")
        || name.contains(".ssm_conv1d")
        || F32_ENDINGS.iter().any(|ending| name.ends_with(ending));
    let columns = shape.last().copied().unwrap_or(1);
    if precise { Quant::F32 } else { fitting(quant, columns) }
}
