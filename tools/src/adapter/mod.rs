//! Gates of EdgeInfinite that were trained for a model (`tools/train/edgeinfinite`): read from the folder of an adapter,
//! checked against the model, and put into its GGUF file.

mod fit;
mod read;

#[cfg(test)]
mod tests;

pub(crate) use read::Gate;

use crate::{
    convert::{Progress, ProgressFn},
    encode::encode_row,
};
use anyhow::{Context, Result, bail};
use kvas_gguf::{GgufFile, GgufWriter, Metadata, Quant, Value};
use std::path::Path;

/// What the names of keys begin with.
const KEYS: &str = "edgeinfinite.";

/// What the names of a layer's tensors begin with, after the layer's own.
const TENSORS: &str = "attn_mem_";

/// Bytes that are copied at a time.
const BYTES_AT_ONCE: usize = 16 << 20;

/// The gates of a model, and what they were trained for.
pub(crate) struct Adapter {
    /// Keys without their common beginning.
    keys: Vec<(&'static str, Value)>,
    /// The shapes of the model it was trained for.
    shapes: Shapes,
    /// The tensors, layer by layer.
    pub(crate) gates: Vec<Gate>,
}

/// What a model must have in common with the one that gates were trained for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shapes {
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Adapter {
    /// Reads the adapter in `folder`, and checks that it is one for the model with these keys and tensors.
    pub(crate) fn for_model(folder: &Path, metadata: &Metadata, has_tensor: impl Fn(&str) -> bool) -> Result<Adapter> {
        let adapter = Adapter::open(folder)?;
        adapter.check(metadata, has_tensor).with_context(|| folder.display().to_string())?;
        Ok(adapter)
    }

    /// Adds its keys to those of a model.
    pub(crate) fn describe(&self, metadata: &mut Metadata) {
        for (name, value) in &self.keys {
            metadata.set(format!("{KEYS}{name}"), value.clone());
        }
    }
}

/// What [`add_gates`] wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    /// Attention layers, each with gates of its own.
    pub layers: usize,
    /// Numbers in the gates.
    pub parameters: u64,
    /// Numbers in the model without them.
    pub model_parameters: u64,
}

/// Writes the model `source` with the gates of the adapter in `folder` to the file `out`, which appears only when it is
/// complete. The model's own tensors keep their bytes.
///
/// # Errors
/// One line that names the file, key or tensor that is missing or does not fit the model, and what was expected; and
/// whatever the system says about writing the file.
pub fn add_gates(source: &GgufFile, folder: &Path, out: &Path, progress: Option<&ProgressFn>) -> Result<Added> {
    source.check_apart(out)?;
    crate::apart::check_apart(folder, out)?;
    let has_gates = |name: &str| name.split('.').nth(2).is_some_and(|stem| stem.starts_with(TENSORS));
    if let Some(there) = source.tensors().iter().find(|tensor| has_gates(&tensor.name)) {
        bail!("{} has {} already, expected a model without gates", source.path().display(), there.name);
    }
    let adapter = Adapter::for_model(folder, source.metadata(), |name| source.tensor(name).is_some())?;
    let mut metadata = source.metadata().clone();
    for key in ["split.no", "split.count", "split.tensors.count"] {
        metadata.remove(key);
    }
    adapter.describe(&mut metadata);
    let mut writer = GgufWriter::new(metadata);
    for tensor in source.tensors() {
        writer.declare(&tensor.name, tensor.quant, &tensor.shape)?;
    }
    for gate in &adapter.gates {
        writer.declare(&gate.name, Quant::F32, &gate.shape)?;
    }
    let mut file = writer.create(out)?;
    let total = source.tensors().iter().map(|tensor| tensor.bytes).sum::<usize>() as u64;
    let mut done = 0;
    for tensor in source.tensors() {
        for part in source.data(tensor).chunks(BYTES_AT_ONCE) {
            file.write_part(&tensor.name, part)?;
            done += part.len() as u64;
            if let Some(progress) = progress {
                progress(Progress { tensor: &tensor.name, done, total });
            }
        }
    }
    for gate in &adapter.gates {
        let mut bytes = vec![0; gate.numbers.len() * 4];
        encode_row(Quant::F32, &gate.numbers, None, &mut bytes).with_context(|| format!("tensor {}", gate.source))?;
        file.write(&gate.name, &bytes)?;
    }
    file.finish()?;
    Ok(Added {
        layers: adapter.gates.len() / read::PARTS.len(),
        parameters: adapter.gates.iter().map(|gate| gate.numbers.len() as u64).sum(),
        model_parameters: source.tensors().iter().map(|tensor| tensor.elements() as u64).sum(),
    })
}
