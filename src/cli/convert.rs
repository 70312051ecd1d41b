//! `kvas convert`: a Hugging Face checkpoint to GGUF.

use super::progress;
use anyhow::Context;
use clap::Args;
use kvas_gguf::Quant;
use kvas_tools::convert::{ConvertOptions, ConvertPlan, MtpBlocks, convert, plan};
use std::{io::Write, path::PathBuf};

/// Convert a Hugging Face checkpoint to GGUF
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas convert path/to/model -o model.gguf\n  kvas convert path/to/model -o model.gguf --type q8_0\n  kvas convert path/to/model -o model.gguf --dry-run"
)]
pub(crate) struct Convert {
    /// Folder with config.json, tokenizer.json and the safetensors files
    #[arg(value_name = "HF_DIR")]
    source: PathBuf,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Format of the matrices; norms, gates, convolutions and routers stay f32
    #[arg(long = "type", value_name = "TYPE", default_value = "bf16")]
    quant: String,
    /// Name of the pre-tokenizer, where it is not recognised
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// Leave out prediction heads (MTP)
    #[arg(long)]
    no_mtp: bool,
    /// Name of the model [default: the folder's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only list what would be written
    #[arg(long)]
    dry_run: bool,
}

impl Convert {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let quant = Quant::from_name(&self.quant).filter(|quant| quant.can_quantize()).with_context(|| {
            let known = Quant::ALL.iter().filter(|quant| quant.can_quantize());
            let names: Vec<_> = known.map(|quant| quant.name().to_lowercase()).collect();
            format!("--type {}, expected one of {}", self.quant, names.join(", "))
        })?;
        let mtp = if self.no_mtp { MtpBlocks::Omit } else { MtpBlocks::WhenPresent };
        let (bar, progress) = progress::tensors();
        let options = ConvertOptions { quant, pre: self.pre, mtp, name: self.name, progress: Some(progress) };
        if self.dry_run {
            list(&plan(&self.source, &options)?)?;
            return Ok(0);
        }
        let report = convert(&self.source, &self.output, &options)?;
        bar.finish_and_clear();
        for name in &report.plan.ignored {
            eprintln!("left out: {name}");
        }
        let (tensors, parameters, out) = (report.plan.tensors.len(), report.parameters, self.output.display());
        eprintln!("{out}: {}, {tensors} tensors, {parameters} parameters", report.plan.architecture);
        Ok(0)
    }
}

fn list(plan: &ConvertPlan) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    writeln!(out, "architecture {}, {} keys", plan.architecture, plan.metadata.len())?;
    for tensor in &plan.tensors {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let (name, quant, sources) = (&tensor.name, tensor.quant.name(), tensor.sources.join(" "));
        writeln!(out, "{name:40} {quant:8} {:20} {:12} bytes  {sources}", shape.join(" x "), tensor.bytes)?;
    }
    for name in &plan.ignored {
        writeln!(out, "left out: {name}")?;
    }
    out.flush()?;
    Ok(())
}
