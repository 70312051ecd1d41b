//! Factors that a file has beside its weights: what `NAME.weight` gives is multiplied by the number of `NAME.scale`, or of
//! stacked experts by the number of each, and `NAME.input_scale` says where activations in 4 bits would end. NVFP4 needs
//! the first, for its own scales are small floats.

use crate::{GgufError, GgufFile, Quant, TensorInfo};

const ENDINGS: [&str; 2] = [".scale", ".input_scale"];

impl Quant {
    /// Whether weights in this format are run with the factors beside them. Those of others have to be in the numbers.
    pub const fn has_factors(self) -> bool {
        matches!(self, Quant::Nvfp4)
    }
}

impl GgufFile {
    /// The weight that a tensor is a factor of, if it is one.
    pub fn weight_of_factor(&self, name: &str) -> Option<&TensorInfo> {
        let stem = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending))?;
        self.tensor(&format!("{stem}.weight"))
    }

    /// The factor of each matrix of a weight; none if it has none beside it.
    ///
    /// # Errors
    /// `Tensor` if there are not as many as matrices, or they are no numbers.
    pub fn factors(&self, weight: &TensorInfo) -> Result<Vec<f32>, GgufError> {
        let factors = weight.name.strip_suffix(".weight").and_then(|stem| self.tensor(&format!("{stem}.scale")));
        let Some(factors) = factors else { return Ok(Vec::new()) };
        let fail = |what: String| Err(GgufError::Tensor { name: factors.name.clone(), what });
        let matrices = weight.shape.iter().skip(2).product::<u64>() as usize;
        if factors.quant != Quant::F32 {
            return fail(format!("is {}, expected F32", factors.quant));
        }
        let mut numbers = vec![0.0; factors.elements()];
        factors.quant.dequantize(&self.data(factors), &mut numbers)?;
        if numbers.len() == 1 {
            numbers.resize(matrices, numbers[0]);
        }
        if numbers.len() != matrices {
            return fail(format!("has {} numbers, expected {matrices}", numbers.len()));
        }
        match numbers.iter().find(|number| !number.is_finite()) {
            Some(number) => fail(format!("has {number}, expected numbers that are finite")),
            None => Ok(numbers),
        }
    }
}
