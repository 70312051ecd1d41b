//! `kvas make-model`: random weights in real layer shapes.

use super::{flags, note, output};
use anyhow::Context;
use clap::Args;
use kvas::presets::{self, PRESETS, Preset};
use std::path::PathBuf;

/// Write a model of random weights in the real layer shapes of a known one, for benchmarks and tests
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas make-model --preset qwen3.5-0.8b --type q4_k_m -o random.gguf\n  kvas bench -m random.gguf"
)]
pub(crate) struct MakeModel {
    #[arg(long, value_name = "NAME", help = format!("Whose shapes: {}", names()))]
    preset: String,
    /// Format, or mix of formats, of the matrices
    #[arg(long = "type", value_name = "TYPE", default_value = "q8_0")]
    mix: String,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// The presets there are.
fn names() -> String {
    PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>().join(", ")
}

/// The preset that the value of a flag names.
pub(super) fn preset(flag: &str, name: &str) -> anyhow::Result<&'static Preset> {
    presets::find(name).with_context(|| format!("{flag} {name}, expected one of {}", names()))
}

impl MakeModel {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let preset = preset("--preset", &self.preset)?;
        let mix = flags::mix("--type", &self.mix)?;
        output::begin(&self.output)?;
        let bar = indicatif::ProgressBar::new(0);
        let mut progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        presets::write(preset, mix, &self.output, &mut progress)?;
        bar.finish_and_clear();
        let bytes = std::fs::metadata(&self.output).with_context(|| self.output.display().to_string())?.len();
        note(format_args!("{}: {} shapes, {}, {bytes} bytes", self.output.display(), preset.name, mix.name));
        Ok(0)
    }
}
