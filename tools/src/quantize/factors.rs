//! Factors that a file has beside its weights: what `NAME.weight` gives is multiplied by the number of `NAME.scale`, or of
//! stacked experts by the number of each, and `NAME.input_scale` says where activations in 4 bits would end. NVFP4 needs
//! the first, for its own scales are small floats. Weights that get another format take the factor into their numbers.

use anyhow::{Result, bail};
use kvas_gguf::{GgufFile, Quant, TensorInfo};

const ENDINGS: [&str; 2] = [".scale", ".input_scale"];

/// The weight that a tensor is a factor of, if it is one.
pub(super) fn weight_of<'a>(source: &'a GgufFile, name: &str) -> Option<&'a TensorInfo> {
    let stem = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending))?;
    source.tensor(&format!("{stem}.weight"))
}

/// The factor of each matrix of a weight; `None` if it has none.
pub(super) fn of(source: &GgufFile, weight: &TensorInfo) -> Result<Option<Vec<f32>>> {
    let factors = weight.name.strip_suffix(".weight").and_then(|stem| source.tensor(&format!("{stem}.scale")));
    let Some(factors) = factors else { return Ok(None) };
    let (name, matrices) = (&factors.name, weight.shape.get(2).map_or(1, |&count| count as usize));
    if factors.quant != Quant::F32 {
        bail!("tensor {name} is {}, expected F32", factors.quant);
    }
    let mut numbers = vec![0.0; factors.elements()];
    factors.quant.dequantize(&source.data(factors), &mut numbers)?;
    if numbers.len() == 1 {
        numbers.resize(matrices, numbers[0]);
    }
    if numbers.len() != matrices {
        bail!("tensor {name} has {} numbers, expected {matrices}", numbers.len());
    }
    Ok(Some(numbers))
}
