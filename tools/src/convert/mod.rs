//! Converts a checkpoint in Hugging Face layout to one GGUF file.
//!
//! A family of models is a table of values, keys and tensors in [`architectures`]; everything else here reads tables.

mod architectures;
pub(crate) mod checkpoint;
mod directory;
mod expression;
pub(crate) mod floats;
pub(crate) mod json;
mod layout;
mod lora;
mod metadata;
mod nvfp4;
mod packed;
mod plan;
mod scales;
mod settings;
mod split;
mod table;
mod types;
mod vocabulary;
mod write;

#[cfg(test)]
mod tests;

pub use lora::Lora;

use crate::quantize::Mix;
use anyhow::{Result, bail};
use checkpoint::Checkpoint;
use kvas_gguf::{Metadata, Quant};
use settings::Settings;
use std::path::{Path, PathBuf};

/// What becomes of the layers of multi-token prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MtpBlocks {
    /// They are written as NextN blocks if the checkpoint has them.
    #[default]
    WhenPresent,
    /// They are left out.
    Omit,
}

/// When a model goes on in another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitLimit {
    /// After this many bytes of tensors.
    Bytes(u64),
    /// After this many tensors.
    Tensors(usize),
}

/// How far a conversion is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The tensor being written, by its name in the file.
    pub tensor: &'a str,
    /// Bytes of tensor data written so far.
    pub done: u64,
    /// Bytes of tensor data in all.
    pub total: u64,
}

/// Told how far a conversion is, often.
pub type ProgressFn = Box<dyn Fn(Progress<'_>)>;

/// What the user can choose.
pub struct ConvertOptions {
    /// The type of weights; norms, vectors, convolution kernels and routers stay F32. NVFP4 is what weights of the checkpoint
    /// keep that are in it; the others are BF16.
    pub quant: Quant,
    /// A mix chooses the type of each tensor, in place of `quant`.
    pub mix: Option<&'static Mix>,
    /// Name of the pre-tokenizer, in place of recognising it.
    pub pre: Option<String>,
    /// Multi-token prediction.
    pub mtp: MtpBlocks,
    /// `general.name`, in place of the name of the folder.
    pub name: Option<String>,
    /// The folder of an adapter with gates of EdgeInfinite, which go into the file.
    pub adapter: Option<PathBuf>,
    /// Adapters of PEFT that are merged into the weights, one after the other.
    pub loras: Vec<Lora>,
    /// Several files in place of one: `name.gguf` becomes `name-00001-of-0000N.gguf` and so on.
    pub split: Option<SplitLimit>,
    /// Called after each part that was written.
    pub progress: Option<ProgressFn>,
}

impl Default for ConvertOptions {
    fn default() -> ConvertOptions {
        let mtp = MtpBlocks::default();
        ConvertOptions {
            quant: Quant::Bf16,
            mix: None,
            pre: None,
            mtp,
            name: None,
            adapter: None,
            loras: Vec::new(),
            split: None,
            progress: None,
        }
    }
}

impl std::fmt::Debug for ConvertOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConvertOptions")
            .field("quant", &self.quant)
            .field("mix", &self.mix.map(|mix| mix.name))
            .field("pre", &self.pre)
            .field("mtp", &self.mtp)
            .field("name", &self.name)
            .field("adapter", &self.adapter)
            .field("loras", &self.loras)
            .field("split", &self.split)
            .finish_non_exhaustive()
    }
}

/// A tensor that is written.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedTensor {
    /// Name in the file.
    pub name: String,
    /// Type in the file.
    pub quant: Quant,
    /// False if it should have another type, of which its rows are no whole blocks.
    pub fits: bool,
    /// Elements along each dimension, the contiguous one first.
    pub shape: Vec<u64>,
    /// Bytes of its data.
    pub bytes: u64,
    /// Names in the checkpoint; none for what is computed.
    pub sources: Vec<String>,
}

/// What a conversion would write.
#[derive(Debug, Clone)]
pub struct ConvertPlan {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Every key of the file.
    pub metadata: Metadata,
    /// Every tensor of the file, in order.
    pub tensors: Vec<PlannedTensor>,
    /// Source tensors that are left out: parts of other modalities, buffers that are computed, a tied head.
    pub ignored: Vec<String>,
    /// Source tensors that adapters changed.
    pub changed: Vec<String>,
}

/// What a conversion wrote.
#[derive(Debug, Clone)]
pub struct ConvertReport {
    /// What was planned, and is now in the file.
    pub plan: ConvertPlan,
    /// Number of parameters in the file.
    pub parameters: u64,
    /// Bytes of tensor data in the file.
    pub bytes: u64,
    /// The files, one unless the model was split.
    pub files: Vec<PathBuf>,
}

/// What [`convert`] would write, without writing anything: keys, tensors, and what is left out.
///
/// # Errors
/// One line that names the file, setting or tensor that is missing or wrong, and what was expected.
pub fn plan(source_dir: &Path, options: &ConvertOptions) -> Result<ConvertPlan> {
    prepare(source_dir, options).map(|prepared| prepared.plan())
}

/// Converts the checkpoint in `source_dir` to the GGUF file `out`, which appears only when it is complete; so do all
/// files of a split one. Needs little memory, whatever the size of the tensors.
///
/// # Errors
/// As [`plan`], and whatever the system says about writing the file.
pub fn convert(source_dir: &Path, out: &Path, options: &ConvertOptions) -> Result<ConvertReport> {
    let adapters = options.loras.iter().map(|lora| &*lora.folder).chain(options.adapter.as_deref());
    [source_dir].into_iter().chain(adapters).try_for_each(|folder| crate::apart::check_apart(folder, out))?;
    let prepared = prepare(source_dir, options)?;
    let plan = prepared.plan();
    let write::Written { files, bytes } = write::write(&prepared, out, options)?;
    let parameters = plan.tensors.iter().map(|tensor| tensor.shape.iter().product::<u64>()).sum();
    Ok(ConvertReport { plan, parameters, bytes, files })
}

/// A checkpoint that was read and planned.
struct Prepared {
    settings: Settings,
    metadata: Metadata,
    checkpoint: Checkpoint,
    jobs: Vec<plan::Job>,
    ignored: Vec<String>,
    changed: Vec<String>,
}

impl Prepared {
    fn plan(&self) -> ConvertPlan {
        ConvertPlan {
            architecture: self.settings.name(),
            metadata: self.metadata.clone(),
            tensors: self.jobs.iter().map(|job| job.tensor.clone()).collect(),
            ignored: self.ignored.clone(),
            changed: self.changed.clone(),
        }
    }
}

fn prepare(folder: &Path, options: &ConvertOptions) -> Result<Prepared> {
    if !folder.is_dir() {
        bail!("{}: expected the folder of a checkpoint", folder.display());
    }
    if !options.quant.is_for_weights() && options.quant != Quant::Nvfp4 {
        bail!("type {}: tensors cannot be converted to it", options.quant);
    }
    let mut checkpoint = Checkpoint::open(folder)?;
    let mut settings = Settings::read(folder, &mut checkpoint, options.mtp)?;
    let changed = lora::apply(&options.loras, &mut settings, &mut checkpoint)?;
    let plan::Jobs { mut jobs, ignored } = plan::plan(&settings, &checkpoint, options)?;
    lora::check(&changed, &ignored)?;
    let changed = changed.into_iter().collect();
    let mut metadata = Metadata::default();
    metadata::write(&mut metadata, folder, &settings, &jobs, options)?;
    let vocab = settings.values.count("vocab")?;
    vocabulary::write(&mut metadata, folder, vocab, options.pre.as_deref())?;
    if let Some(adapter) = &options.adapter {
        plan::add_gates(&mut jobs, &mut metadata, adapter)?;
    }
    if let Some(mix) = options.mix {
        types::mix(mix, &mut metadata, &mut jobs)?;
    }
    Ok(Prepared { settings, metadata, checkpoint, jobs, ignored, changed })
}
