//! Changes the formats of the tensors of a GGUF file.

mod importance;
mod mix;
mod write;

#[cfg(test)]
mod tests;

pub use importance::ImportanceMatrix;
pub use mix::{Choice, Facts, MIXES, Mix, Recipe, Tensor, choose, fitting, unused_pattern};
pub use regex_automata::meta::Regex;

use crate::convert::ProgressFn;
use anyhow::{Result, bail};
use kvas_gguf::{GgufFile, Metadata, Quant, TensorInfo, Value};
use std::{collections::HashSet, path::Path};

/// What becomes of tensors that lost precision already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Requantize {
    /// They are an error, unless they keep their format.
    #[default]
    Refuse,
    /// They are quantised again.
    Allow,
}

/// What the user can choose.
pub struct QuantizeOptions {
    /// Which tensor is stored in which format. Whether an importance matrix is there is taken from `importance`.
    pub recipe: Recipe,
    /// How much the columns of each matrix matter.
    pub importance: Option<ImportanceMatrix>,
    /// Sources that are quantised.
    pub requantize: Requantize,
    /// Called after each part that was written.
    pub progress: Option<ProgressFn>,
}

impl QuantizeOptions {
    /// A mix as it is.
    pub fn new(mix: &'static Mix) -> QuantizeOptions {
        QuantizeOptions {
            recipe: Recipe::new(mix),
            importance: None,
            requantize: Requantize::default(),
            progress: None,
        }
    }
}

impl std::fmt::Debug for QuantizeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuantizeOptions")
            .field("recipe", &self.recipe)
            .field("importance", &self.importance.is_some())
            .field("requantize", &self.requantize)
            .finish_non_exhaustive()
    }
}

/// A tensor that is written.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedTensor {
    /// What it is in the source.
    pub source: TensorInfo,
    /// Its format in the new file.
    pub quant: Quant,
    /// False if it should have another format, of which its rows are no whole blocks.
    pub fits: bool,
    /// Bytes of its data in the new file.
    pub bytes: u64,
    /// How much each column matters, for one matrix after the other; `None` where nothing is known.
    importance: Option<Vec<f32>>,
    /// What the numbers of each matrix are multiplied by, where the source has that in a tensor beside the weight: all that
    /// get another format, and those of formats beside which factors are not looked at.
    factors: Vec<f32>,
}

/// What [`quantize`] writes.
#[derive(Debug, Clone)]
pub struct QuantizePlan {
    /// Every key of the file.
    pub metadata: Metadata,
    /// Every tensor of the file, in order.
    pub tensors: Vec<QuantizedTensor>,
}

impl QuantizePlan {
    /// Bytes of tensor data in the new file.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }
}

/// What [`quantize`] would write.
///
/// # Errors
/// One line that names the key or the tensor that is missing or wrong, and what was expected.
pub fn plan(source: &GgufFile, options: &QuantizeOptions) -> Result<QuantizePlan> {
    let recipe = Recipe { weighted: options.importance.is_some(), ..options.recipe.clone() };
    let facts = Facts::of(source.metadata())?;
    let (infos, tensors) = (source.tensors(), tensors(source));
    let chosen = choose(&recipe, &facts, &tensors);
    // What a weight takes into its numbers is no longer beside it.
    let changed: HashSet<&str> = infos
        .iter()
        .zip(&chosen)
        .filter(|(info, choice)| !keeps_factors(info, choice.quant))
        .map(|(info, _)| &info.name[..])
        .collect();
    let is_kept = |info: &TensorInfo| {
        !source.weight_of_factor(&info.name).is_some_and(|weight| changed.contains(&weight.name[..]))
    };
    let kept = infos.iter().zip(chosen).filter(|(info, _)| is_kept(info));
    let tensors = kept.map(|(info, choice)| planned(source, info, choice, options)).collect::<Result<Vec<_>>>()?;
    let mut metadata = source.metadata().clone();
    for key in ["split.no", "split.count", "split.tensors.count"] {
        metadata.remove(key);
    }
    metadata.set("general.quantization_version", Value::U32(2));
    metadata.set("general.file_type", Value::U32(recipe.mix.file_type));
    if let Some(importance) = &options.importance {
        importance.describe(&mut metadata);
    }
    Ok(QuantizePlan { metadata, tensors })
}

/// The tensors of a file, as recipes look at them.
pub fn tensors(source: &GgufFile) -> Vec<Tensor<'_>> {
    let tensors = source.tensors().iter();
    tensors.map(|info| Tensor { name: &info.name, shape: &info.shape, stored: info.quant }).collect()
}

/// Whether what is beside a weight stays there.
fn keeps_factors(info: &TensorInfo, quant: Quant) -> bool {
    quant == info.quant && quant.has_factors()
}

fn planned(source: &GgufFile, info: &TensorInfo, choice: Choice, options: &QuantizeOptions) -> Result<QuantizedTensor> {
    let (name, stored) = (&info.name, info.quant);
    let Choice { quant, fits } = choice;
    let factors = if keeps_factors(info, quant) { Vec::new() } else { source.factors(info)? };
    if quant == stored && factors.is_empty() {
        let (bytes, source) = (info.bytes as u64, info.clone());
        return Ok(QuantizedTensor { source, quant, fits, bytes, importance: None, factors });
    }
    if !quant.can_quantize() {
        bail!("tensor {name}: {quant} cannot be made from numbers, expected a format that can");
    }
    if stored.block_len() > 1 && options.requantize == Requantize::Refuse {
        bail!("tensor {name} is {stored} already, expected F32, F16 or BF16 (--allow-requantize takes it as it is)");
    }
    let Some(row_bytes) = quant.row_bytes(info.columns()) else {
        bail!("tensor {name} has rows of {}, expected whole blocks of {quant}", info.columns());
    };
    let importance = match &options.importance {
        Some(importance) => {
            importance.of(name, info.columns() * info.shape.get(2).map_or(1, |&count| count as usize))?
        }
        None => None,
    };
    let bytes = row_bytes as u64 * info.rows() as u64;
    Ok(QuantizedTensor { source: info.clone(), quant, fits, bytes, importance, factors })
}

/// Writes the tensors of `source` to the file `out` in the formats chosen; it appears only when it is complete. Needs
/// little memory, whatever the size of the tensors.
///
/// # Errors
/// As [`plan`], if `out` is a file of `source` or the importance matrix, and whatever the system says about writing the file.
pub fn quantize(source: &GgufFile, out: &Path, options: &QuantizeOptions) -> Result<QuantizePlan> {
    source.check_apart(out)?;
    options.importance.as_ref().map_or(Ok(()), |importance| importance.check_apart(out))?;
    let plan = plan(source, options)?;
    write::write(source, &plan, out, options.progress.as_ref())?;
    Ok(plan)
}
