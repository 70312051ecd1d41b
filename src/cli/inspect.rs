//! `kvas inspect`: what is in a file.

use clap::Args;
use kvas_gguf::{GgufFile, Value};
use serde_json::json;
use std::{
    collections::BTreeMap,
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
    /// Also list every tensor
    #[arg(long)]
    tensors: bool,
    /// Print one JSON object with all keys and tensors
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let file = GgufFile::open(&self.file)?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        if self.json {
            serde_json::to_writer_pretty(&mut out, &as_json(&file))?;
            writeln!(out)?;
        } else {
            self.print(&file, &mut out)?;
        }
        out.flush()?;
        Ok(0)
    }

    fn print(&self, file: &GgufFile, out: &mut impl Write) -> anyhow::Result<()> {
        let tensors = file.tensors();
        let parameters: usize = tensors.iter().map(|tensor| tensor.elements()).sum();
        writeln!(out, "{}", self.file.display())?;
        let (version, endian, files) = (file.version(), file.endian(), file.shard_count());
        writeln!(out, "GGUF v{version}, {endian:?} endian, {files} file(s), {} bytes", file.file_bytes())?;
        writeln!(out, "{} tensors, {parameters} parameters, alignment {}", tensors.len(), file.alignment())?;
        let mut formats: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for tensor in tensors {
            let format = formats.entry(tensor.quant.name()).or_default();
            *format = (format.0 + 1, format.1 + tensor.bytes);
        }
        for (name, (count, bytes)) in formats {
            writeln!(out, "  {name:8} {count:5} tensors {bytes:14} bytes")?;
        }
        writeln!(out)?;
        for (key, value) in file.metadata().iter() {
            writeln!(out, "{key:48} {:9} {}", value.type_name(), short(value))?;
        }
        if self.tensors {
            writeln!(out)?;
            for tensor in tensors {
                let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
                let (name, quant) = (&tensor.name, tensor.quant.name());
                writeln!(out, "{name:48} {quant:8} {:24} {:14} bytes", shape.join(" x "), tensor.bytes)?;
            }
        }
        Ok(())
    }
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

fn as_json(file: &GgufFile) -> serde_json::Value {
    let metadata: serde_json::Map<_, _> =
        file.metadata().iter().map(|(key, value)| (key.to_string(), to_json(value))).collect();
    let tensor = |tensor: &kvas_gguf::TensorInfo| json!({"name": tensor.name, "type": tensor.quant.name(), "shape": tensor.shape, "bytes": tensor.bytes});
    json!({
        "version": file.version(),
        "files": file.shard_count(),
        "bytes": file.file_bytes(),
        "metadata": metadata,
        "tensors": file.tensors().iter().map(tensor).collect::<Vec<_>>(),
    })
}
