//! `kvas quantize`: a GGUF file with its matrices in other formats.

use super::{Stdout, flags, note, output, progress};
use anyhow::{Context, bail};
use clap::Args;
use kvas_gguf::{GgufFile, Quant};
use kvas_tools::quantize::{
    ImportanceMatrix, QuantizeOptions, QuantizePlan, Recipe, Regex, Requantize, plan, quantize, tensors, unused_pattern,
};
use std::{io::Write, path::PathBuf};

/// Write a GGUF file again with its matrices in other formats
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas quantize model.bf16.gguf model.q4_k_m.gguf q4_k_m\n  kvas quantize model.bf16.gguf small.gguf iq4_xs --imatrix model.imatrix.gguf\n  kvas quantize model.bf16.gguf mine.gguf q4_k_m --tensor-type attn_v=q8_0 --tensor-type 'blk\\.0\\..*ffn=q6_k'\n  kvas quantize model.bf16.gguf model.q4_k_m.gguf q4_k_m --dry-run"
)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Quantize {
    /// File to read; the first file of a split model
    #[arg(value_name = "IN")]
    source: PathBuf,
    /// File to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Format, or mix of formats: q4_k_m, q8_0, iq4_xs, …
    #[arg(value_name = "TYPE")]
    mix: String,
    /// Which columns matter, as `kvas imatrix` measures it
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Format of the tensors whose names match; the first that matches decides
    #[arg(long, value_name = "REGEX=TYPE")]
    tensor_type: Vec<String>,
    /// Format of the output matrix, and of an embedding that is both
    #[arg(long, value_name = "TYPE")]
    output_tensor_type: Option<String>,
    /// Format of the token embedding
    #[arg(long, value_name = "TYPE")]
    token_embedding_type: Option<String>,
    /// Every matrix in the same format, without the exceptions of the mix
    #[arg(long)]
    pure: bool,
    /// Leave the output matrix as it is
    #[arg(long, conflicts_with = "output_tensor_type")]
    leave_output_tensor: bool,
    /// Take matrices that are quantised already
    #[arg(long)]
    allow_requantize: bool,
    /// Threads for computing [default: all that the processor runs at once]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Only list what would be written
    #[arg(long)]
    dry_run: bool,
}

impl Quantize {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let mut options = self.options()?;
        let source = GgufFile::open(&self.source)?;
        if let Some(unused) = unused_pattern(&options.recipe, &tensors(&source)) {
            let (given, file) = (&self.tensor_type[unused], self.source.display());
            bail!(
                "--tensor-type {given} fits no matrix of {file} whose format can be chosen, expected a part of a name"
            );
        }
        if self.dry_run {
            list(&plan(&source, &options)?)?;
            return Ok(0);
        }
        if let Some(threads) = self.threads {
            rayon::ThreadPoolBuilder::new().num_threads(threads.into()).build_global()?;
        }
        output::begin(&self.output)?;
        let (bar, progress) = progress::tensors();
        options.progress = Some(progress);
        let plan = quantize(&source, &self.output, &options)?;
        bar.finish_and_clear();
        let (out, mix) = (self.output.display(), options.recipe.mix.name);
        let (tensors, bytes, bits) = (plan.tensors.len(), plan.bytes(), bits(&plan));
        note_unfit(plan.tensors.iter().filter(|tensor| !tensor.fits).map(|tensor| tensor.quant));
        note(format_args!("{out}: {mix}, {tensors} tensors, {bytes} bytes, {bits:.2} bits a parameter"));
        Ok(0)
    }

    fn options(&self) -> anyhow::Result<QuantizeOptions> {
        let mix = flags::mix("type", &self.mix)?;
        let named = |flag: &str, name: &Option<String>| name.as_deref().map(|name| quant(flag, name)).transpose();
        let recipe = Recipe {
            pure: self.pure,
            leave_output: self.leave_output_tensor,
            output: named("--output-tensor-type", &self.output_tensor_type)?,
            embedding: named("--token-embedding-type", &self.token_embedding_type)?,
            by_name: self.tensor_type.iter().map(|text| pattern(text)).collect::<anyhow::Result<_>>()?,
            ..Recipe::new(mix)
        };
        let importance = self.imatrix.as_deref().map(ImportanceMatrix::open).transpose()?;
        let requantize = if self.allow_requantize { Requantize::Allow } else { Requantize::Refuse };
        Ok(QuantizeOptions { recipe, importance, requantize, ..QuantizeOptions::new(mix) })
    }
}

/// The format of a name, one that can be made.
fn quant(flag: &str, name: &str) -> anyhow::Result<Quant> {
    Quant::from_name(name).filter(|quant| quant.is_for_weights()).with_context(|| {
        let known = Quant::ALL.iter().filter(|quant| quant.is_for_weights());
        let names: Vec<_> = known.map(|quant| quant.name().to_lowercase()).collect();
        format!("{flag} {name}, expected one of {}", names.join(", "))
    })
}

/// A value of `--tensor-type`.
fn pattern(text: &str) -> anyhow::Result<(Regex, Quant)> {
    let Some((pattern, name)) = text.rsplit_once('=') else {
        bail!("--tensor-type {text}, expected REGEX=TYPE");
    };
    let Ok(regex) = Regex::new(pattern) else {
        bail!("--tensor-type {text}: {pattern} is no regular expression");
    };
    Ok((regex, quant("--tensor-type", name)?))
}

/// Says of how many matrices the rows are no whole blocks of the format they should have, and which ones they have instead.
pub(super) fn note_unfit(quants: impl Iterator<Item = Quant>) {
    let mut names: Vec<&str> = quants.map(Quant::name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    let names = names.join(", ");
    match count {
        0 => {}
        1 => note(format_args!(
            "the rows of 1 matrix are no whole blocks of the format it should have: it is in {names}"
        )),
        _ => note(format_args!(
            "the rows of {count} matrices are no whole blocks of the formats they should have: they are in {names}"
        )),
    }
}

fn bits(plan: &QuantizePlan) -> f64 {
    let parameters: usize = plan.tensors.iter().map(|tensor| tensor.source.elements()).sum();
    plan.bytes() as f64 * 8.0 / parameters as f64
}

fn list(plan: &QuantizePlan) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(Stdout);
    for tensor in &plan.tensors {
        let shape: Vec<String> = tensor.source.shape.iter().map(u64::to_string).collect();
        let (name, stored, quant) = (&tensor.source.name, tensor.source.quant.name(), tensor.quant.name());
        writeln!(out, "{name:40} {stored:8} {quant:8} {:20} {:12} bytes", shape.join(" x "), tensor.bytes)?;
    }
    writeln!(out, "{} tensors, {} bytes, {:.2} bits a parameter", plan.tensors.len(), plan.bytes(), bits(plan))?;
    out.flush()?;
    Ok(())
}
