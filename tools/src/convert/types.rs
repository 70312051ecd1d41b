//! Which type each tensor of the file has.

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

/// The wanted type, or for rows that are not whole blocks of it the one that llama.cpp takes instead: a type of smaller
/// blocks, and F16 where those do not fit either.
fn fitting(quant: Quant, columns: usize) -> Quant {
    let smaller = match quant.block_len() {
        256 if matches!(quant, Quant::Tq1_0 | Quant::Tq2_0) => Quant::Q4_0,
        256 if quant == Quant::Q4K => Quant::Q5_0,
        256 if quant == Quant::Q5K => Quant::Q5_1,
        256 if quant == Quant::Q6K => Quant::Q8_0,
        256 => Quant::Iq4Nl,
        _ => Quant::F16,
    };
    let fits = |quant: &Quant| quant.row_bytes(columns).is_some();
    [quant, smaller].into_iter().find(fits).unwrap_or(Quant::F16)
}
