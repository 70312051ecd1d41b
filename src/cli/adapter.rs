//! `kvas adapter`: gates of EdgeInfinite into a GGUF file.

use super::{note, output, progress};
use clap::Args;
use kvas_gguf::GgufFile;
use kvas_tools::adapter::{Added, add_gates};
use std::path::PathBuf;

/// Write a GGUF file again with the gates of EdgeInfinite that were trained for it
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas adapter model.gguf path/to/gates -o model.edge.gguf\n  kvas inspect model.edge.gguf"
)]
pub(crate) struct AddAdapter {
    /// File to read; the first file of a split model
    #[arg(value_name = "MODEL")]
    source: PathBuf,
    /// Folder with adapter_config.json and adapter_model.safetensors
    #[arg(value_name = "DIR")]
    adapter: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl AddAdapter {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let source = GgufFile::open(&self.source)?;
        output::begin(&self.output)?;
        let (bar, progress) = progress::tensors();
        let added = add_gates(&source, &self.adapter, &self.output, Some(&progress));
        bar.finish_and_clear();
        let Added { layers, parameters, model_parameters } = added?;
        let share = 100.0 * parameters as f64 / model_parameters as f64;
        note(format_args!(
            "{}: gates of {layers} layers, {parameters} parameters, {share:.2} % of the model's",
            self.output.display()
        ));
        Ok(0)
    }
}
