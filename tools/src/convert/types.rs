//! Which type each tensor of the file has.

use super::plan::Job;
use crate::quantize::{Choice, Facts, Mix, Recipe, Tensor, choose, fitting};
use anyhow::{Context, Result};
use kvas_gguf::{Metadata, Quant, Value};

/// Gives every tensor the type that `kvas quantize` would give it in this mix.
pub(super) fn mix(mix: &'static Mix, metadata: &mut Metadata, jobs: &mut [Job]) -> Result<()> {
    metadata.set("general.file_type", Value::U32(mix.file_type));
    let planned =
        jobs.iter().map(|Job { tensor, .. }| Tensor { name: &tensor.name, shape: &tensor.shape, stored: tensor.quant });
    let chosen = choose(&Recipe::new(mix), &Facts::of(metadata)?, &planned.collect::<Vec<_>>());
    for (Job { tensor, .. }, Choice { quant, fits }) in jobs.iter_mut().zip(chosen) {
        let columns = tensor.shape[0] as usize;
        let rows: u64 = tensor.shape[1..].iter().product();
        let row = quant.row_bytes(columns).with_context(|| format!("tensor {}: rows of {columns}", tensor.name))?;
        (tensor.quant, tensor.fits, tensor.bytes) = (quant, fits, rows * row as u64);
    }
    Ok(())
}

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
    // It is not made, only kept.
    let quant = if quant == Quant::Nvfp4 { Quant::Bf16 } else { quant };
    if precise { Quant::F32 } else { fitting(quant, columns) }
}
