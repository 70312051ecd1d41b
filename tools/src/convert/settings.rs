//! What config.json says, in the terms of the tables: the architecture, its values, and the tags of every block.

use super::checkpoint::Checkpoint;
use super::expression::Values;
use super::json::Json;
use super::table::{Architecture, FfnRule, MixerRule, Source, Trunk};
use super::{MtpBlocks, architectures};
use anyhow::{Context, Result, bail};
use std::path::Path;

/// More blocks than any model has: what a broken configuration must not exceed.
const BLOCKS_MAX: usize = 10_000;

/// A configuration understood.
pub(super) struct Settings {
    pub(super) config: Json,
    pub(super) architecture: &'static Architecture,
    pub(super) trunk: &'static Trunk,
    pub(super) values: Values,
    /// The tags of each block of the trunk, and after them of the multi-token prediction.
    pub(super) blocks: Vec<Block>,
    /// How many of the blocks belong to the trunk.
    pub(super) layers: usize,
}

/// The kinds of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) mixer: &'static str,
    pub(super) ffn: &'static str,
}

impl Block {
    /// True if rows with this tag are for the block.
    pub(super) fn has(&self, tag: &str) -> bool {
        tag.is_empty() || tag == self.mixer || tag == self.ffn
    }
}

impl Settings {
    /// Reads config.json of `folder` against what the checkpoint holds.
    pub(super) fn read(folder: &Path, checkpoint: &Checkpoint, mtp: MtpBlocks) -> Result<Settings> {
        let Some(config) = Json::read(folder, "config.json")? else {
            bail!("{}: expected config.json in it", folder.display());
        };
        let architecture = architecture_of(&config)?;
        refuse(&config, architecture)?;
        let trunk = trunk_of(architecture, checkpoint)?;
        let mut values = Values::default();
        read_values(&config, architecture, &mut values)?;
        set_rope_type(&config, architecture, &mut values)?;
        let head = format!("{}lm_head.weight", trunk.head);
        if config.get("tie_word_embeddings").is_none() {
            values.set("tied", f64::from(u8::from(checkpoint.get(&head).is_none())));
        }
        let layers = limited(&values, "layers")?;
        let extra = if mtp == MtpBlocks::Omit { 0 } else { mtp_layers(architecture, checkpoint) };
        values.set("mtp", extra as f64);
        values.set("blocks", (layers + extra) as f64);
        let mut blocks = Vec::with_capacity(layers + extra);
        for (layer, mixer) in mixers(&config, architecture, &values, layers)?.into_iter().enumerate() {
            blocks.push(Block { mixer, ffn: ffn(&config, architecture, layer)? });
        }
        let ffn = if matches!(architecture.ffn, FfnRule::Dense) { "dense" } else { "moe" };
        blocks.resize(layers + extra, Block { mixer: "attention", ffn });
        Ok(Settings { config, architecture, trunk, values, blocks, layers })
    }
}

fn architecture_of(config: &Json) -> Result<&'static Architecture> {
    // A wrapper's own class, which names its parts too, goes before that of its language model.
    let listed = config.root().get("architectures").or_else(|| config.get("architectures"));
    let named = listed.and_then(|listed| listed.as_array()).into_iter().flatten();
    let found: Vec<&str> = named.filter_map(|class| class.as_str()).collect();
    let known = architectures::ALL.iter().find(|known| known.classes.iter().any(|class| found.contains(class)));
    match known {
        Some(known) => Ok(known),
        None => {
            let all: Vec<&str> = architectures::ALL.iter().flat_map(|known| known.classes).copied().collect();
            bail!("config.json: architectures = {found:?}, expected one of {}", all.join(", "))
        }
    }
}

fn refuse(config: &Json, architecture: &Architecture) -> Result<()> {
    for refusal in architecture.refusals.iter().copied().flatten() {
        let Some(value) = config.get(refusal.path) else { continue };
        let mut value = value.to_string();
        if refusal.accepted.contains(&value.as_str()) {
            continue;
        }
        value.truncate(value.floor_char_boundary(80));
        let expected = match refusal.accepted {
            [] => "nothing: it cannot be carried into the file".into(),
            accepted => accepted.join(" or "),
        };
        bail!("config.json: {} = {value}, expected {expected}", refusal.path);
    }
    Ok(())
}

fn trunk_of(architecture: &Architecture, checkpoint: &Checkpoint) -> Result<&'static Trunk> {
    let embedded = |trunk: &&Trunk| checkpoint.get(&format!("{}embed_tokens.weight", trunk.trunk)).is_some();
    architecture.trunks.iter().find(embedded).with_context(|| {
        let last = architecture.trunks.last().map_or("", |trunk| trunk.trunk);
        format!("tensor {last}embed_tokens.weight is missing from the checkpoint")
    })
}

fn read_values(config: &Json, architecture: &Architecture, values: &mut Values) -> Result<()> {
    for row in architecture.values.iter().copied().flatten() {
        let value = match (config.first(row.paths), row.default) {
            (Some((path, value)), _) => config.number(path, value)?,
            (None, Some(default)) => values.evaluate(default).with_context(|| format!("config.json: {}", row.name))?,
            (None, None) => bail!("config.json: {} is missing, expected a number", row.paths.join(" or ")),
        };
        values.set(row.name, value);
    }
    Ok(())
}

/// Sets one of `rope_linear`, `rope_yarn` and `rope_llama3` to 1.
fn set_rope_type(config: &Json, architecture: &Architecture, values: &mut Values) -> Result<()> {
    let paths = ["rope_parameters.rope_type", "rope_parameters.type", "rope_scaling.rope_type", "rope_scaling.type"];
    let path = config.first(&paths).map_or(paths[0], |(path, _)| path);
    let found = config.text(path)?.unwrap_or("default");
    let scaled = architecture.model.iter().any(|row| matches!(row.origin.source, Source::RopeFactors));
    for (name, value) in [("linear", "rope_linear"), ("yarn", "rope_yarn"), ("llama3", "rope_llama3")] {
        values.set(value, f64::from(u8::from(found == name)));
    }
    let known = matches!(found, "default" | "mrope" | "linear" | "yarn") || (found == "llama3" && scaled);
    if !known {
        let llama3 = if scaled { " or llama3" } else { "" };
        bail!("config.json: {path} = {found:?}, expected default, linear, yarn{llama3}");
    }
    Ok(())
}

fn limited(values: &Values, name: &str) -> Result<usize> {
    match values.count(name).context("config.json")? {
        count @ 1..=BLOCKS_MAX => Ok(count),
        count => bail!("config.json: {name} = {count}, expected 1 to {BLOCKS_MAX}"),
    }
}

/// Layers of multi-token prediction that the checkpoint holds, numbered without a gap.
fn mtp_layers(architecture: &Architecture, checkpoint: &Checkpoint) -> usize {
    if architecture.mtp.is_empty() {
        return 0;
    }
    let holds = |layer: &usize| {
        let prefix = format!("mtp.layers.{layer}.");
        checkpoint.names().any(|name| name.starts_with(&prefix))
    };
    (0..BLOCKS_MAX).take_while(holds).count()
}

fn mixers(config: &Json, architecture: &Architecture, values: &Values, layers: usize) -> Result<Vec<&'static str>> {
    let MixerRule::LayerTypes = architecture.mixers else { return Ok(vec!["attention"; layers]) };
    let Some(types) = config.list("layer_types")? else {
        let interval = limited(values, "interval")?;
        let mixer = |layer: usize| if (layer + 1).is_multiple_of(interval) { "attention" } else { "linear" };
        return Ok((0..layers).map(mixer).collect());
    };
    if types.len() != layers {
        bail!("config.json: layer_types has {} entries, expected one for each of the {layers} layers", types.len());
    }
    let mixer = |(layer, kind): (usize, &serde_json::Value)| match kind.as_str() {
        Some("full_attention") => Ok("attention"),
        Some("linear_attention") => Ok("linear"),
        _ => bail!("config.json: layer_types[{layer}] = {kind}, expected linear_attention or full_attention"),
    };
    types.iter().enumerate().map(mixer).collect()
}

fn ffn(config: &Json, architecture: &Architecture, layer: usize) -> Result<&'static str> {
    let FfnRule::Sparse = architecture.ffn else { return Ok("dense") };
    let step = match config.get("decoder_sparse_step") {
        None => 1,
        Some(step) => match step.as_u64() {
            Some(step @ 1..) => step,
            _ => bail!("config.json: decoder_sparse_step = {step}, expected 1 or more"),
        },
    };
    let listed = config.list("mlp_only_layers")?.is_some_and(|list| list.iter().any(|id| *id == layer));
    let sparse = !listed && (layer as u64 + 1).is_multiple_of(step);
    Ok(if sparse { "moe" } else { "dense" })
}
