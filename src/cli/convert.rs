//! `kvas convert`: a Hugging Face checkpoint to GGUF.

use super::{Stdout, note, output, progress, quantize::note_unfit, some_of};
use clap::Args;
use kvas::text::Tokenizer;
use kvas_gguf::Quant;
use kvas_tools::{
    convert::{ConvertOptions, ConvertPlan, ConvertReport, Lora, MtpBlocks, SplitLimit, convert, plan},
    quantize::{MIXES, Mix},
};
use std::{collections::BTreeSet, io::Write, path::PathBuf};

/// Convert a Hugging Face checkpoint to GGUF
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas convert path/to/model -o model.gguf\n  kvas convert path/to/model -o model.gguf --type q4_k_m\n  kvas convert path/to/model -o model.gguf --split-max-size 4G\n  kvas convert path/to/model -o model.gguf --adapter path/to/gates\n  kvas convert path/to/base -o model.gguf --lora path/to/adapter\n  kvas convert path/to/model -o model.gguf --dry-run"
)]
pub(crate) struct Convert {
    /// Folder with config.json, tokenizer.json and the safetensors files
    #[arg(value_name = "HF_DIR")]
    source: PathBuf,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Format of the matrices (f32, f16, bf16, q8_0 …), or a mix (q4_k_m …); norms, convolutions and routers stay f32. nvfp4
    /// keeps those that the checkpoint has in it, the others become bf16
    #[arg(long = "type", value_name = "TYPE", default_value = "bf16")]
    quant: String,
    /// Name of the pre-tokenizer, where it is not recognised
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// Leave out prediction heads (MTP)
    #[arg(long)]
    no_mtp: bool,
    /// Go on in another file after this many bytes: name-00001-of-0000N.gguf
    #[arg(long, value_name = "N(M|G)", value_parser = split_size)]
    split_max_size: Option<u64>,
    /// Go on in another file after this many tensors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "split_max_size")]
    split_max_tensors: Option<u64>,
    /// Name of the model [default: the folder's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Folder of an adapter with gates of EdgeInfinite for this model, which go into the file
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Folder of a LoRA adapter of PEFT, trained for this model, which is merged into the weights; again for others
    #[arg(long, value_name = "DIR")]
    lora: Vec<PathBuf>,
    /// What the matrices of the adapter are multiplied by, beside what it says itself; once for each --lora [default: 1]
    #[arg(long, value_name = "SCALE", requires = "lora", allow_negative_numbers = true)]
    lora_scale: Vec<f64>,
    /// Only list what would be written
    #[arg(long)]
    dry_run: bool,
}

impl Convert {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let (quant, mix) = self.storage()?;
        self.check_pre()?;
        let loras = self.loras()?;
        let mtp = if self.no_mtp { MtpBlocks::Omit } else { MtpBlocks::WhenPresent };
        let (bar, progress) = progress::tensors();
        let tensors = self.split_max_tensors.map(|count| SplitLimit::Tensors(count as usize));
        let split = self.split_max_size.map(SplitLimit::Bytes).or(tensors);
        let options = ConvertOptions {
            quant,
            mix,
            pre: self.pre,
            mtp,
            name: self.name,
            adapter: self.adapter,
            loras,
            split,
            progress: Some(progress),
        };
        if self.dry_run {
            list(&plan(&self.source, &options)?)?;
            return Ok(0);
        }
        output::begin(&self.output)?;
        let report = convert(&self.source, &self.output, &options);
        bar.finish_and_clear();
        summarise(&report?);
        Ok(0)
    }
}

impl Convert {
    /// A file that names a pre-tokenizer which nobody knows could not be read.
    fn check_pre(&self) -> anyhow::Result<()> {
        let unknown = self.pre.as_ref().filter(|pre| !Tokenizer::pre_tokenizers().any(|known| known == *pre));
        unknown.map_or(Ok(()), |pre| {
            let known = Tokenizer::pre_tokenizers().collect::<Vec<_>>().join(", ");
            Err(anyhow::anyhow!("--pre {pre}, expected one of {known}"))
        })
    }

    /// The adapters, each with the scale in its place.
    fn loras(&self) -> anyhow::Result<Vec<Lora>> {
        let (count, scales) = (self.lora.len(), self.lora_scale.len());
        if scales > 0 && scales != count {
            anyhow::bail!("--lora-scale {scales} times and --lora {count} times, expected one scale for each adapter");
        }
        if let Some(scale) = self.lora_scale.iter().find(|scale| !scale.is_finite()) {
            anyhow::bail!("--lora-scale {scale}, expected a finite number");
        }
        let scales = self.lora_scale.iter().copied().chain(std::iter::repeat(1.0));
        Ok(self.lora.iter().cloned().zip(scales).map(|(folder, scale)| Lora { folder, scale }).collect())
    }

    /// The type of all matrices, or the mix that chooses one for each. Names that are both are mixes, as they are to
    /// `kvas quantize`, but for those that leave nothing to choose.
    fn storage(&self) -> anyhow::Result<(Quant, Option<&'static Mix>)> {
        let plain = Quant::from_name(&self.quant).filter(can_be_written);
        let chosen = Mix::from_name(&self.quant);
        match (plain, chosen) {
            (Some(quant @ (Quant::F32 | Quant::F16 | Quant::Bf16 | Quant::Q8_0)), _) => Ok((quant, None)),
            (_, Some(mix)) => Ok((Quant::Bf16, Some(mix))),
            (Some(quant), None) => Ok((quant, None)),
            (None, None) => {
                let known = Quant::ALL.iter().filter(|quant| can_be_written(quant)).map(|quant| quant.name());
                let names: BTreeSet<String> =
                    known.chain(MIXES.iter().map(|mix| mix.name)).map(str::to_lowercase).collect();
                let names = names.into_iter().collect::<Vec<_>>().join(", ");
                Err(anyhow::anyhow!("--type {}, expected one of {names}", self.quant))
            }
        }
    }
}

/// Whether matrices of a checkpoint can have a type: NVFP4 is not made, but stays.
fn can_be_written(quant: &Quant) -> bool {
    quant.is_for_weights() || *quant == Quant::Nvfp4
}

/// A size as llama.cpp writes it: a whole number of millions or billions of bytes.
fn split_size(text: &str) -> Result<u64, String> {
    let units = [('M', 1_000_000), ('G', 1_000_000_000)];
    let size =
        units.iter().find_map(|(letter, unit)| text.strip_suffix(*letter)?.parse::<u64>().ok()?.checked_mul(*unit));
    size.filter(|&size| size > 0).ok_or_else(|| "expected a whole number and M or G, such as 500M or 4G".into())
}

fn summarise(report: &ConvertReport) {
    let ConvertReport { plan, parameters, files, .. } = report;
    if let Some(names) = some_of(&plan.ignored) {
        note(format_args!("left out, since the language model does not need it: {names}"));
    }
    if let Some(names) = some_of(&plan.changed) {
        note(format_args!("changed by adapters: {names}"));
    }
    note_unfit(plan.tensors.iter().filter(|tensor| !tensor.fits).map(|tensor| tensor.quant));
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let names = match names.as_slice() {
        [first, .., last] => format!("{first} to {last}"),
        names => names.concat(),
    };
    let (architecture, tensors) = (plan.architecture, plan.tensors.len());
    note(format_args!("{names}: {architecture}, {tensors} tensors, {parameters} parameters"));
}

fn list(plan: &ConvertPlan) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(Stdout);
    writeln!(out, "architecture {}, {} keys", plan.architecture, plan.metadata.len())?;
    for tensor in &plan.tensors {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let (name, quant, sources) = (&tensor.name, tensor.quant.name(), tensor.sources.join(" "));
        writeln!(out, "{name:40} {quant:8} {:20} {:12} bytes  {sources}", shape.join(" x "), tensor.bytes)?;
    }
    for name in &plan.ignored {
        writeln!(out, "left out: {name}")?;
    }
    for name in &plan.changed {
        writeln!(out, "changed: {name}")?;
    }
    out.flush()?;
    Ok(())
}
