//! The folder of an adapter: `adapter_config.json`, and `adapter_model.safetensors` with five tensors for each layer.

use super::{Adapter, Shapes, TENSORS};
use crate::convert::{
    checkpoint::{Checkpoint, Stored},
    json::{Json, kind},
};
use anyhow::{Context, Result, bail};
use kvas_gguf::Value;
use std::{collections::BTreeSet, ops::RangeInclusive, path::Path};

pub(super) const CONFIG: &str = "adapter_config.json";
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";

/// The tensors of a layer: their names in the adapter and in the file.
pub(super) const PARTS: [(&str, &str); 5] = [
    ("fc1.weight", "fc1.weight"),
    ("fc1.bias", "fc1.bias"),
    ("fc2.weight", "fc2.weight"),
    ("fc2.bias", "fc2.bias"),
    ("gate", "gate.weight"),
];

/// Tokens of the longest sink, window or segment that a file may name.
const LONGEST: usize = 1 << 24;

/// One tensor of the gates.
pub(crate) struct Gate {
    /// The layer it is of.
    pub(super) layer: usize,
    /// Its name in the file.
    pub(crate) name: String,
    /// Elements along each dimension, the contiguous one first.
    pub(crate) shape: Vec<u64>,
    /// Its numbers.
    pub(crate) numbers: Vec<f32>,
    /// Its name in the adapter.
    pub(crate) source: String,
}

/// What has a gate of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    HeadChannel,
    Channel,
    Head,
}

impl Adapter {
    /// Reads the adapter in `folder`; whether it fits a model is for [`Adapter::check`] to say.
    pub(super) fn open(folder: &Path) -> Result<Adapter> {
        let context = || folder.display().to_string();
        if !folder.is_dir() {
            bail!("{}: expected the folder of an adapter", folder.display());
        }
        let Some(config) = Json::read(folder, CONFIG).with_context(context)? else {
            bail!("{}: expected {CONFIG} in it", folder.display());
        };
        let (keys, shapes, scope) = settings(&config).with_context(context)?;
        let weights = Checkpoint::open_file(folder, WEIGHTS).with_context(context)?;
        let gates = gates(&weights, shapes, scope).with_context(context)?;
        Ok(Adapter { keys, shapes, gates })
    }
}

type Settings = (Vec<(&'static str, Value)>, Shapes, Scope);

fn settings(config: &Json) -> Result<Settings> {
    if config.get("peft_type").is_some() {
        bail!(
            "{CONFIG}: peft_type is there, expected gates of EdgeInfinite: kvas convert --lora merges adapters of PEFT"
        );
    }
    choice(config, "adapter_type", &[("edgeinfinite", ())])?;
    choice(config, "activation", &[("elu1", ())])?;
    let scopes = [("head_channel", Scope::HeadChannel), ("channel", Scope::Channel), ("head", Scope::Head)];
    let (scope_name, scope) = choice(config, "gate_scope", &scopes)?;
    let (_, pos_mode) = choice(config, "pos_mode", &[("abs", 0), ("cache", 1)])?;
    let Some(rotated) = config.flag("rope_in_memory")? else {
        bail!("{CONFIG}: rope_in_memory is missing, expected true or false");
    };
    let length =
        |name, range| -> Result<Value> { Ok(Value::U32(count(config, name, range)?.try_into().expect("in range"))) };
    let keys = vec![
        ("sink_length", length("sink_length", 0..=LONGEST)?),
        ("window_length", length("window_length", 1..=LONGEST)?),
        ("segment_length", length("segment_length", 1..=LONGEST)?),
        ("pos_mode", Value::U32(pos_mode)),
        ("rope_in_memory", Value::U32(rotated.into())),
        ("activation", Value::String("elu1".into())),
        ("gate_scope", Value::String(scope_name.into())),
    ];
    let shapes = Shapes {
        layers: count(config, "num_hidden_layers", 1..=512)?,
        heads: count(config, "num_attention_heads", 1..=1 << 14)?,
        kv_heads: count(config, "num_key_value_heads", 1..=1 << 14)?,
        head_dim: count(config, "head_dim", 1..=1 << 14)?,
    };
    Ok((keys, shapes, scope))
}

/// A whole number within a range.
fn count(config: &Json, name: &str, range: RangeInclusive<usize>) -> Result<usize> {
    let expected = format!("a whole number from {} to {}", range.start(), range.end());
    let Some(value) = config.get(name) else { bail!("{CONFIG}: {name} is missing, expected {expected}") };
    let found = value.as_u64().and_then(|found| usize::try_from(found).ok()).filter(|found| range.contains(found));
    found.with_context(|| match value.is_number() {
        true => format!("{CONFIG}: {name} is {value}, expected {expected}"),
        false => format!("{CONFIG}: {name} is {}, expected {expected}", kind(value)),
    })
}

/// One of several texts, with what it stands for.
fn choice<T: Copy>(config: &Json, name: &str, known: &[(&'static str, T)]) -> Result<(&'static str, T)> {
    let found = config.text(name)?;
    let chosen = known.iter().find(|(text, _)| found == Some(text));
    chosen.copied().with_context(|| {
        let known: Vec<&str> = known.iter().map(|(text, _)| *text).collect();
        let found = found.map_or("missing".into(), |found| format!("{found:?}"));
        format!("{CONFIG}: {name} is {found}, expected {}", known.join(" or "))
    })
}

/// All tensors, each with the shape that the numbers of the configuration ask for; others are an error.
fn gates(weights: &Checkpoint, shapes: Shapes, scope: Scope) -> Result<Vec<Gate>> {
    let mut layers = BTreeSet::new();
    for name in weights.names() {
        let Some((layer, _)) = parts(name) else {
            bail!(
                "{WEIGHTS}: tensor {name} has no place, expected model.layers.N.self_attn.mem_fc1.weight and the like"
            );
        };
        if layer >= shapes.layers {
            bail!(
                "{WEIGHTS}: tensor {name}, expected layers below the num_hidden_layers of {CONFIG}, {}",
                shapes.layers
            );
        }
        layers.insert(layer);
    }
    let mut gates = Vec::new();
    for layer in layers {
        let find = |part: &str, expected: &str| -> Result<(String, &Stored)> {
            let name = format!("model.layers.{layer}.self_attn.mem_{part}");
            let found = weights.get(&name);
            let found =
                found.with_context(|| format!("{WEIGHTS}: tensor {name} is missing, expected the shape {expected}"))?;
            Ok((name, found))
        };
        let (width, heads) = (shapes.head_dim, shapes.heads);
        let (name, first) = find(PARTS[0].0, &format!("[hidden columns, {width}]"))?;
        let hidden = match first.shape[..] {
            [hidden, columns] if columns == width && hidden > 0 => hidden,
            _ => bail!("{WEIGHTS}: tensor {name} has the shape {:?}, expected [hidden columns, {width}]", first.shape),
        };
        let gate = match scope {
            Scope::HeadChannel => vec![heads, width],
            Scope::Channel => vec![width],
            Scope::Head => vec![heads],
        };
        let expected = [vec![hidden, width], vec![hidden], vec![width, hidden], vec![width], gate];
        for ((own, target), expected) in PARTS.into_iter().zip(expected) {
            let (source, stored) = find(own, &format!("{expected:?}"))?;
            if stored.shape != expected {
                bail!("{WEIGHTS}: tensor {source} has the shape {:?}, expected {expected:?}", stored.shape);
            }
            let numbers = weights.numbers(&source, stored).context(WEIGHTS)?;
            let shape = expected.iter().rev().map(|&size| size as u64).collect();
            gates.push(Gate { layer, name: format!("blk.{layer}.{TENSORS}{target}"), shape, numbers, source });
        }
    }
    Ok(gates)
}

/// The layer and the part of a tensor of the adapter.
fn parts(name: &str) -> Option<(usize, &'static str)> {
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once(".self_attn.mem_")?;
    let known = PARTS.iter().find(|(own, _)| *own == part)?;
    Some((layer.parse().ok()?, known.0))
}
