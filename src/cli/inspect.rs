//! `kvas inspect`: what is in a file.

use super::Stdout;
use clap::Args;
use indicatif::HumanBytes;
use kvas::{
    arch::{self, Header},
    model::{
        ModelError, ModelSpec,
        kinds::{self, TensorKind, block_and_stem},
    },
    stdio::show,
};
use kvas_gguf::{GgufFile, Quant, TensorInfo, Value};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    io::{BufWriter, Write},
    path::PathBuf,
};

/// Show what is in a GGUF file: metadata, formats, sizes
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas inspect model.gguf\n  kvas inspect model.gguf --tensors\n  kvas inspect model.gguf --json | jq .metadata"
)]
pub(crate) struct Inspect {
    /// Model file (GGUF); the first file of a split model
    file: PathBuf,
    /// Also list the tensors, equal blocks together
    #[arg(long)]
    tensors: bool,
    /// Print one JSON object with all keys and tensors
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let file = GgufFile::open(&self.file)?;
        // A file need not be one that runs to be looked at.
        let spec = Header::of_file(&file).map_err(ModelError::from).and_then(|header| arch::read(&header));
        if self.json {
            let mut out = BufWriter::new(Stdout);
            serde_json::to_writer_pretty(&mut out, &as_json(&file, spec.as_ref().ok()))?;
            writeln!(out)?;
            out.flush()?;
        } else {
            let mut out = Vec::new();
            self.print(&file, &spec, &mut out)?;
            // Names are whatever somebody has put into the file.
            show(&String::from_utf8_lossy(&out))?;
        }
        Ok(0)
    }

    fn print(&self, file: &GgufFile, spec: &Result<ModelSpec, ModelError>, out: &mut impl Write) -> anyhow::Result<()> {
        let tensors = file.tensors();
        let parameters: usize = tensors.iter().map(|tensor| tensor.elements()).sum();
        writeln!(out, "{}", self.file.display())?;
        let (version, endian, files) = (file.version(), file.endian(), file.shard_count());
        writeln!(out, "GGUF v{version}, {endian:?} endian, {files} file(s), {} bytes", file.file_bytes())?;
        writeln!(out, "{} tensors, {parameters} parameters, alignment {}", tensors.len(), file.alignment())?;
        match spec {
            Ok(spec) => writeln!(out, "layers {}\n       {}", kinds::layers(spec), kinds::legend(spec))?,
            Err(error) => writeln!(out, "layers not known: {error}")?,
        }
        if let Some(memory) = spec.as_ref().ok().and_then(kinds::memory) {
            writeln!(out, "memory gates: {memory}")?;
        }
        for (name, (count, bytes)) in formats(file) {
            writeln!(out, "  {name:8} {count:5} tensors {bytes:14} bytes")?;
        }
        writeln!(out)?;
        for (key, value) in file.metadata().iter() {
            writeln!(out, "{key:48} {:9} {}", value.type_name(), short(value))?;
        }
        if self.tensors {
            print_tensors(file, spec.as_ref().ok(), out)?;
        }
        Ok(())
    }
}

/// Tensors and bytes of every format.
fn formats(file: &GgufFile) -> BTreeMap<&'static str, (usize, usize)> {
    let mut formats: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for tensor in file.tensors() {
        let format = formats.entry(tensor.quant.name()).or_default();
        *format = (format.0 + 1, format.1 + tensor.bytes);
    }
    formats
}

fn print_tensors(file: &GgufFile, spec: Option<&ModelSpec>, out: &mut impl Write) -> anyhow::Result<()> {
    let line = |out: &mut dyn Write, name: &str, tensor: &TensorInfo| {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let (kind, quant, shape) = (TensorKind::of(&tensor.name, spec).name(), tensor.quant.name(), shape.join(" x "));
        writeln!(out, "  {name:26} {kind:17} {quant:8} {shape:22} {:>11}", HumanBytes(tensor.bytes as u64).to_string())
    };
    writeln!(out)?;
    for tensor in file.tensors().iter().filter(|tensor| block_and_stem(&tensor.name).is_none()) {
        line(out, &tensor.name, tensor)?;
    }
    for (blocks, tensors) in equal_blocks(file.tensors()) {
        let bytes: usize = tensors.iter().map(|(_, tensor)| tensor.bytes).sum();
        let each = if blocks.len() > 1 { format!("{} blocks, each ", blocks.len()) } else { String::new() };
        writeln!(out, "\nblk.{}: {each}{}", ranges(&blocks), HumanBytes(bytes as u64))?;
        for (stem, tensor) in tensors {
            line(out, stem, tensor)?;
        }
    }
    Ok(())
}

/// A tensor of a block without the block's name.
type InBlock<'a> = (&'a str, &'a TensorInfo);

/// What equal blocks have in common: stems, formats, shapes.
type Layout<'a> = Vec<(&'a str, Quant, &'a [u64])>;

/// Blocks with the same tensors, shapes and formats, in the order of the first of them.
fn equal_blocks(tensors: &[TensorInfo]) -> Vec<(Vec<usize>, Vec<InBlock<'_>>)> {
    let mut blocks: BTreeMap<usize, Vec<InBlock<'_>>> = BTreeMap::new();
    for tensor in tensors {
        if let Some((block, stem)) = block_and_stem(&tensor.name) {
            blocks.entry(block).or_default().push((stem, tensor));
        }
    }
    let mut places: HashMap<Layout<'_>, usize> = HashMap::new();
    let mut groups: Vec<(Vec<usize>, Vec<InBlock<'_>>)> = Vec::new();
    for (block, tensors) in blocks {
        let key = tensors.iter().map(|(stem, tensor)| (*stem, tensor.quant, tensor.shape.as_slice())).collect();
        let place = *places.entry(key).or_insert(groups.len());
        match groups.get_mut(place) {
            Some((blocks, _)) => blocks.push(block),
            None => groups.push((vec![block], tensors)),
        }
    }
    groups
}

/// Ascending numbers, runs of them as `0-2`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// One line: long texts and arrays are cut.
fn short(value: &Value) -> String {
    const SHOWN: usize = 6;
    let value = to_json(value);
    if let Some(items) = value.as_array() {
        let first: Vec<String> = items.iter().take(SHOWN).map(serde_json::Value::to_string).collect();
        let rest = if items.len() > SHOWN { format!(", … {} in all", items.len()) } else { String::new() };
        return format!("[{}{rest}]", first.join(", "));
    }
    let text = value.to_string();
    match text.char_indices().nth(100) {
        Some((at, _)) => format!("{}… {} bytes", &text[..at], text.len()),
        None => text,
    }
}

fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::U8s(v) => json!(v),
        Value::I8s(v) => json!(v),
        Value::U16s(v) => json!(v),
        Value::I16s(v) => json!(v),
        Value::U32s(v) => json!(v),
        Value::I32s(v) => json!(v),
        Value::U64s(v) => json!(v),
        Value::I64s(v) => json!(v),
        Value::F32s(v) => json!(v),
        Value::F64s(v) => json!(v),
        Value::Bools(v) => json!(v),
        Value::Strings(v) => json!(v),
    }
}

fn as_json(file: &GgufFile, spec: Option<&ModelSpec>) -> serde_json::Value {
    let metadata: serde_json::Map<_, _> =
        file.metadata().iter().map(|(key, value)| (key.to_string(), to_json(value))).collect();
    let formats: serde_json::Map<_, _> = formats(file)
        .into_iter()
        .map(|(name, (tensors, bytes))| (name.to_string(), json!({"tensors": tensors, "bytes": bytes})))
        .collect();
    let tensor = |tensor: &TensorInfo| {
        json!({
            "name": tensor.name,
            "block": block_and_stem(&tensor.name).map(|(block, _)| block),
            "kind": TensorKind::of(&tensor.name, spec).name(),
            "type": tensor.quant.name(),
            "shape": tensor.shape,
            "bytes": tensor.bytes,
        })
    };
    json!({
        "version": file.version(),
        "files": file.shard_count(),
        "bytes": file.file_bytes(),
        "alignment": file.alignment(),
        "parameters": file.tensors().iter().map(TensorInfo::elements).sum::<usize>(),
        "layers": spec.map(|spec| spec.pattern().split(' ').map(String::from).collect::<Vec<_>>()),
        "memory_gates": spec.and_then(kinds::memory),
        "types": formats,
        "metadata": metadata,
        "tensors": file.tensors().iter().map(tensor).collect::<Vec<_>>(),
    })
}
