//! `kvas logits`: teacher-forced logits of a token sequence.

use super::{
    device,
    flags::ModelFlags,
    output,
    tokenize::{named, text_of},
};
use anyhow::{anyhow, bail};
use clap::Args;
use kvas::{
    engine::score,
    model::Model,
    text::{Bos, Special},
};
use safetensors::tensor::{Dtype, TensorView};
use std::path::{Path, PathBuf};

/// Write the logits of every position of a token sequence
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvas logits -m model.gguf --ids 1,15043,3186 -o logits.safetensors")]
pub(crate) struct Logits {
    #[command(flatten)]
    model: ModelFlags,
    /// Token ids, separated by commas
    #[arg(long, value_delimiter = ',', required = true, value_name = "IDS")]
    ids: Vec<u32>,
    /// Output file: tensor `logits`, f32 [ids, vocabulary]
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Output rows of a step while scoring: they cost memory of the vocabulary each.
pub(crate) const SCORED_ROWS: usize = 64;

/// Refuses ids the model has no embedding for.
pub(crate) fn check_ids(model: &Model, ids: &[u32]) -> anyhow::Result<()> {
    match ids.iter().find(|id| **id as usize >= model.spec.vocab) {
        Some(id) => bail!("token {id}, expected less than the vocabulary of {}", model.spec.vocab),
        None => Ok(()),
    }
}

/// What `-c` is for a command that reads a text in windows.
pub(crate) fn window_help(ctx_size: clap::Arg) -> clap::Arg {
    ctx_size.help("Tokens of a window [default: 512, fewer if the model was trained for fewer]")
}

/// A text as consecutive windows of tokens, at least one, all of one length: what `-c` says, else 512 or what the model
/// was trained for. What is left over at the end is dropped.
pub(crate) fn text_windows(
    flags: &ModelFlags,
    model: &Model,
    file: &Path,
    most: Option<u32>,
) -> anyhow::Result<Vec<Vec<u32>>> {
    const USUAL: usize = 512;
    let text = text_of(file)?;
    let length = flags.run.context().unwrap_or(USUAL.min(model.spec.context_length));
    if length < 2 {
        bail!("-c {length}, expected a window of at least 2 tokens");
    }
    let ids = model.tokenizer.encode(&text, Special::Parse, Bos::Omit);
    check_ids(model, &ids)?;
    let most = most.map_or(usize::MAX, |most| most as usize);
    let mut windows: Vec<Vec<u32>> = ids.chunks_exact(length).take(most).map(<[u32]>::to_vec).collect();
    if windows.is_empty() {
        let (name, count) = (named(file), ids.len());
        bail!("{name}: {count} tokens, expected at least one window of {length}; -c N makes windows shorter");
    }
    // A model that expects a first token gets it in every window, in place of the one there.
    if let (true, Some(bos)) = (model.tokenizer.adds_bos(), model.tokenizer.roles().bos) {
        windows.iter_mut().for_each(|window| window[0] = bos);
    }
    Ok(windows)
}

impl Logits {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        output::begin(&self.output)?;
        let model = device::open(&self.model)?;
        model.file.check_apart(&self.output)?;
        check_ids(&model, &self.ids)?;
        let context = Some(self.ids.len());
        let wanted = device::MemoryRequest::once(SCORED_ROWS, context);
        let (mut runner, plan) = device::prepare(&self.model, &model, wanted)?;
        if self.ids.len() > plan.context {
            bail!("{} ids, expected at most the context of {}", self.ids.len(), plan.context);
        }
        let mut logits: Vec<f32> = Vec::with_capacity(self.ids.len() * model.spec.vocab);
        score(&mut runner, &self.ids, |_, row| logits.extend_from_slice(row)).map_err(|what| anyhow!(what))?;
        let shape = vec![self.ids.len(), model.spec.vocab];
        let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(&logits))?;
        // The library would write it in place of whatever is there, for nobody but its owner to read.
        let bytes = safetensors::serialize([("logits", view)], None)?;
        output::write(&self.output, &bytes)?;
        Ok(0)
    }
}
