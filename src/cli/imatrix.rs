//! `kvas imatrix`: which columns of a model's matrices matter, measured on a text.

use super::{
    device,
    flags::ModelFlags,
    note, output,
    score::{self, text_windows},
};
use anyhow::{anyhow, bail};
use clap::Args;
use kvas::engine::{InputRow, matrix_inputs};
use kvas_tools::quantize::ImportanceMatrix;
use std::path::PathBuf;

/// Measure which columns of a model's matrices matter for a text, for `kvas quantize --imatrix`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas imatrix -m model.bf16.gguf -f text.txt -o model.imatrix.gguf\n  kvas imatrix -m model.bf16.gguf -f text.txt -o model.imatrix.gguf -c 512 --chunks 100",
    mut_arg("ctx_size", score::window_help)
)]
pub(crate) struct Imatrix {
    #[command(flatten)]
    model: ModelFlags,
    /// Text to read; - for stdin
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Windows to read [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
}

impl Imatrix {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        output::begin(&self.output)?;
        let model = device::open(&self.model)?;
        model.file.check_apart(&self.output)?;
        output::check_apart(&self.output, &self.file)?;
        let windows = text_windows(&self.model, &model, &self.file, self.chunks)?;
        let wanted = device::MemoryRequest::once(1, Some(windows[0].len()));
        let (mut runner, _) = device::prepare(&self.model, &model, wanted)?;
        let dataset = self.file.display().to_string();
        let mut importance = ImportanceMatrix::new(dataset, windows.len(), windows[0].len());
        let bar = indicatif::ProgressBar::new(windows.len() as u64);
        for (number, window) in windows.iter().enumerate() {
            let mut add = |row: InputRow<'_>| importance.add(row.tensor, row.matrix, row.matrices, row.values);
            matrix_inputs(&mut runner, window, &mut add).map_err(|what| anyhow!(what))?;
            if let Some(tensor) = importance.beyond_numbers() {
                let window = number + 1;
                bail!(
                    "window {window}: what tensor {tensor} is multiplied with is not finite, expected numbers that are"
                );
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        importance.write(&self.output)?;
        let (out, tensors, tokens) = (self.output.display(), importance.len(), windows.len() * windows[0].len());
        note(format_args!("{out}: {tensors} tensors, {tokens} tokens"));
        Ok(0)
    }
}
