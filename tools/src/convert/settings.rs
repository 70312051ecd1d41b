//! What config.json says, in the terms of the tables: the architecture, its values, and the tags of every block.

use super::checkpoint::Checkpoint;
use super::expression::{Origin, Values};
use super::json::Json;
use super::table::{Architecture, REFUSED, REFUSED_BESIDE, Refusal, Source, TagRule, Trunk};
use super::{MtpBlocks, architectures, packed, scales};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::borrow::Cow;
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
    ///
    /// The checkpoint's tensors get the names that the architecture's tables use.
    pub(super) fn read(folder: &Path, checkpoint: &mut Checkpoint, mtp: MtpBlocks) -> Result<Settings> {
        let Some(config) = Json::read(folder, "config.json")? else {
            bail!("{}: expected config.json in it", folder.display());
        };
        let architecture = architecture_of(&config)?;
        refuse(&config, architecture.refusals.iter().copied().flatten().chain(REFUSED))?;
        if let Some(beside) = Json::read(folder, "hf_quant_config.json")? {
            refuse(&beside, REFUSED_BESIDE)?;
        }
        checkpoint.rename(architecture.renames);
        packed::pair(checkpoint, &config)?;
        scales::pair(checkpoint, scale_block(&config)?)?;
        let trunk = trunk_of(architecture, checkpoint)?;
        let mut values = Values::default();
        read_values(&config, architecture, &mut values)?;
        refuse_silence(&config, architecture, &values)?;
        set_rope_type(&config, architecture, &mut values)?;
        set_attention_factor(&config, &mut values)?;
        let head = checkpoint.get(&format!("{}lm_head.weight", trunk.head));
        let embeddings = checkpoint.get(&format!("{}{}", trunk.trunk, architecture.embeddings()));
        // A head that was trained apart counts, whatever the settings of the model say that it was made of.
        let is_other = head.zip(embeddings).map_or(Ok(false), |(head, embeddings)| checkpoint.differ(head, embeddings));
        let tied = is_tied(&config, head.is_some())? && !is_other.context("lm_head.weight")?;
        values.set("own_head", f64::from(u8::from(head.is_some())));
        values.set("tied", f64::from(u8::from(tied)));
        let layers = limited(&values, "layers")?;
        let extra = if mtp == MtpBlocks::Omit { 0 } else { mtp_layers(architecture, checkpoint) };
        values.set("mtp", extra as f64);
        values.set("blocks", (layers + extra) as f64);
        let mut blocks = Vec::with_capacity(layers + extra);
        let ffns = tags(&config, architecture.ffns, &values, layers)?;
        for (mixer, ffn) in tags(&config, architecture.mixers, &values, layers)?.into_iter().zip(ffns) {
            blocks.push(Block { mixer, ffn });
        }
        check_tags(architecture, &blocks, &mut values)?;
        // A model whose blocks have one part each ends with a mixer or a feed-forward.
        let last = blocks.iter().rfind(|block| block.ffn != "none").map_or("none", |block| block.ffn);
        blocks.resize(layers + extra, Block { mixer: "attention", ffn: last });
        Ok(Settings { config, architecture, trunk, values, blocks, layers })
    }

    /// `general.architecture` of the file.
    pub(super) fn name(&self) -> &'static str {
        match self.architecture.variant {
            Some((tag, name)) if self.blocks.iter().any(|block| block.has(tag)) => name,
            _ => self.architecture.name,
        }
    }
}

fn architecture_of(config: &Json) -> Result<&'static Architecture> {
    // A wrapper's own class, which names its parts too, goes before that of its language model.
    let listed = config.root().get("architectures").or_else(|| config.get("architectures"));
    let named = listed.and_then(|listed| listed.as_array()).into_iter().flatten();
    let found: Vec<&str> = named.filter_map(|class| class.as_str()).collect();
    let named = |known: &&&Architecture| known.classes.iter().any(|class| found.contains(class));
    let mut known = architectures::ALL.iter().filter(named);
    let first = known.clone().next();
    match known.find(|known| has_needed(config, known)).or(first) {
        Some(known) => Ok(known),
        None => {
            let mut all: Vec<&str> = architectures::ALL.iter().flat_map(|known| known.classes).copied().collect();
            all.dedup();
            bail!("config.json: architectures = {found:?}, expected one of {}", all.join(", "))
        }
    }
}

/// True if the configuration lists a layer of the kind that the architecture cannot do without.
fn has_needed(config: &Json, architecture: &Architecture) -> bool {
    architecture.mixers.iter().any(|rule| match rule {
        TagRule::Listed { path, tags } => {
            let is_needed = |entry: &Cow<'_, str>| tags.contains(&(entry, architecture.needs));
            listed(config, path).is_some_and(|entries| entries.iter().any(is_needed))
        }
        TagRule::All(_) | TagRule::Numbered { .. } | TagRule::Every { .. } | TagRule::Leading { .. } => false,
    })
}

/// Refuses a configuration that asks for any of these.
pub(super) fn refuse<'a>(config: &Json, refusals: impl IntoIterator<Item = &'a Refusal>) -> Result<()> {
    for refusal in refusals {
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
        bail!("{}: {} = {value}, expected {expected}", config.name(), refusal.path);
    }
    Ok(())
}

/// Refuses a configuration without a setting that the class takes for what is refused.
fn refuse_silence(config: &Json, architecture: &Architecture, values: &Values) -> Result<()> {
    for (path, when) in architecture.explicit {
        if config.get(path).is_none() && values.holds(when).context("config.json")? {
            let refusal = architecture.refusals.iter().copied().flatten().find(|refusal| refusal.path == *path);
            let accepted = refusal.map_or(&[][..], |refusal| refusal.accepted).join(" or ");
            bail!("{}: {path} is missing, expected {accepted}", config.name());
        }
    }
    Ok(())
}

/// Rows and columns of FP8 weights that share a scale.
fn scale_block(config: &Json) -> Result<[usize; 2]> {
    let path = "quantization_config.weight_block_size";
    let Some(sizes) = config.list(path)? else { return Ok([128, 128]) };
    let read: Option<Vec<usize>> = sizes.iter().map(|size| size.as_u64()?.try_into().ok()).collect();
    match read.as_deref() {
        Some(&[rows, columns]) if rows > 0 && columns > 0 => Ok([rows, columns]),
        _ => bail!("config.json: {path} = {sizes:?}, expected two whole numbers"),
    }
}

fn trunk_of(architecture: &Architecture, checkpoint: &Checkpoint) -> Result<&'static Trunk> {
    let embeddings = architecture.embeddings();
    let embedded = |trunk: &&Trunk| checkpoint.get(&format!("{}{embeddings}", trunk.trunk)).is_some();
    architecture.trunks.iter().find(embedded).with_context(|| {
        let last = architecture.trunks.last().map_or("", |trunk| trunk.trunk);
        format!("tensor {last}{embeddings} is missing from the checkpoint")
    })
}

fn read_values(config: &Json, architecture: &Architecture, values: &mut Values) -> Result<()> {
    let lists = architecture.mixers.iter().filter_map(|rule| match rule {
        TagRule::Listed { path, .. } => listed(config, path),
        TagRule::All(_) | TagRule::Numbered { .. } | TagRule::Every { .. } | TagRule::Leading { .. } => None,
    });
    values.set("listed", lists.map(|entries| entries.len()).next().unwrap_or(0) as f64);
    for row in architecture.values.iter().copied().flatten() {
        let (value, origin) = match (config.first(row.paths), row.default) {
            (Some((path, value)), _) => (config.number(path, value)?, Origin::Said(path.into())),
            (None, Some(default)) => {
                let value = values.evaluate(default).with_context(|| format!("config.json: {}", row.name))?;
                (value, Origin::Missing { paths: row.paths.join(" or "), default })
            }
            (None, None) => bail!("config.json: {} is missing, expected a number", row.paths.join(" or ")),
        };
        values.set_from(row.name, value, origin);
    }
    Ok(())
}

/// Sets one of `rope_linear`, `rope_yarn` and `rope_llama3` to 1, and `rotates` unless there are no positions at all.
fn set_rope_type(config: &Json, architecture: &Architecture, values: &mut Values) -> Result<()> {
    let paths = ["rope_parameters.rope_type", "rope_parameters.type", "rope_scaling.rope_type", "rope_scaling.type"];
    let path = config.first(&paths).map_or(paths[0], |(path, _)| path);
    let found = config.text(path)?.unwrap_or("default");
    refuse_two_ropes(config)?;
    let scaled =
        architecture.model.iter().copied().flatten().any(|row| matches!(row.origin.source, Source::RopeFactors));
    for (name, value) in [("linear", "rope_linear"), ("yarn", "rope_yarn"), ("llama3", "rope_llama3")] {
        values.set(value, f64::from(u8::from(found == name)));
    }
    // Of the classes that know both, one rotates if that is said only.
    let positions = config.text("position_embedding_type")?;
    let rotates = positions.map_or(architecture.needs.is_empty(), |positions| positions == "rope");
    values.set("rotates", f64::from(u8::from(rotates)));
    let mut keys = architecture.keys.iter().copied().flatten();
    let told = keys.any(|row| row.key == "rope.scaling.type");
    let known = match found {
        "default" | "mrope" => true,
        "linear" | "yarn" => told,
        "llama3" => scaled,
        _ => false,
    };
    if !known {
        let others = if told { ", linear, yarn" } else { "" };
        let llama3 = if scaled { " or llama3" } else { "" };
        bail!("config.json: {path} = {found:?}, expected default{others}{llama3}");
    }
    if !matches!(found, "default" | "mrope")
        && config.first(&["rope_parameters.factor", "rope_scaling.factor"]).is_none()
    {
        let (object, _) = path.split_once('.').unwrap_or((path, ""));
        bail!("config.json: {object}.factor is missing, expected the factor of {found}");
    }
    let truncate = ["rope_parameters.truncate", "rope_scaling.truncate"];
    let whole = truncate.map(|path| config.flag(path).map(|said| (path, said)));
    for said in whole.into_iter().filter(|_| found == "yarn") {
        let (path, Some(false)) = said? else { continue };
        bail!("config.json: {path} = false, expected true: the range of columns that YaRN blends is whole numbers");
    }
    Ok(())
}

/// Refuses settings of rope in both spellings that contradict each other: readers do not agree on which of them counts, and
/// who adds `rope_scaling` to a newer configuration wants another context than it has.
fn refuse_two_ropes(config: &Json) -> Result<()> {
    let Some(Value::Object(old)) = config.get("rope_scaling") else { return Ok(()) };
    for (key, value) in old {
        let name = if key == "type" { "rope_type" } else { key };
        let path = format!("rope_parameters.{name}");
        let Some(new) = config.get(&path).filter(|_| !value.is_null()) else { continue };
        // Positions of several dimensions are those of one in a text.
        let plain = |value: &Value| value == "default" || value == "mrope";
        let same = new == value || new.as_f64().is_some_and(|new| value.as_f64() == Some(new));
        if !(same || plain(new) && plain(value)) {
            bail!("config.json: rope_scaling.{key} = {value} beside {path} = {new}, expected the same in both");
        }
    }
    Ok(())
}

/// Sets `attn_factor`, where YaRN is told how much to multiply rotated columns by: as a multiple of what it does by itself,
/// which is how readers of the file take it; 0 elsewhere. Told it is by `attention_factor`, or as the ratio of `mscale` and
/// `mscale_all_dim` if both are there.
fn set_attention_factor(config: &Json, values: &mut Values) -> Result<()> {
    values.set("attn_factor", 0.0);
    // Other kinds of scaling know no such factor.
    if !values.holds("rope_yarn").unwrap_or(false) {
        return Ok(());
    }
    let number = |name: &str| {
        let paths = [format!("rope_parameters.{name}"), format!("rope_scaling.{name}")];
        let Some((path, value)) = config.first(&paths.each_ref().map(String::as_str)) else { return Ok(None) };
        config.number(path, value).map(|number| Some((path.to_string(), number)))
    };
    let factor = values.evaluate("rope_factor").context("config.json")?;
    let by_itself = |scale: f64| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
    let (path, said, told) = match (number("attention_factor")?, number("mscale")?, number("mscale_all_dim")?) {
        (Some((path, told)), ..) => (path, told, told),
        (None, Some((path, scale)), Some((_, all))) if scale != 0.0 && all != 0.0 => {
            (path, scale, by_itself(scale) / by_itself(all))
        }
        (None, ..) => return Ok(()),
    };
    let attn_factor = told / (0.1 * factor.ln() + 1.0);
    if !(attn_factor.is_finite() && attn_factor > 0.0) {
        bail!("config.json: {path} = {said} with a factor of {factor}, expected positive numbers");
    }
    values.set("attn_factor", attn_factor);
    Ok(())
}

/// Whether the embeddings are the head: as the outermost object says, which is a wrapper's where there is one, or else as
/// its language model does. Where nobody says, or the head that one of them speaks of is not there, the tensors do: as they do
/// where there is a head with other numbers.
fn is_tied(config: &Json, own_head: bool) -> Result<bool> {
    let inner = config.flag("tie_word_embeddings")?;
    Ok(match config.outer_flag("tie_word_embeddings")?.or(inner) {
        None => !own_head,
        Some(tied) => tied || (!own_head && inner == Some(true)),
    })
}

fn limited(values: &Values, name: &str) -> Result<usize> {
    match values.count(name).context("config.json")? {
        count @ 1..=BLOCKS_MAX => Ok(count),
        count => bail!("config.json: {}: {name} = {count}, expected 1 to {BLOCKS_MAX}", values.said(name)),
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
    (0..BLOCKS_MAX).take_while(holds).count() / architecture.mtp_layers_per_block
}

/// The setting of a [`TagRule::Listed`] as one text per layer, if it is there.
fn listed<'a>(config: &'a Json, path: &str) -> Option<Vec<Cow<'a, str>>> {
    Some(match config.get(path)? {
        Value::Array(list) => list.iter().map(entry).collect(),
        Value::String(letters) => letters.chars().map(|letter| letter.to_string().into()).collect(),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => vec![entry(other)],
    })
}

fn entry(value: &Value) -> Cow<'_, str> {
    value.as_str().map_or_else(|| value.to_string().into(), Into::into)
}

/// The tag of each layer.
fn tags(config: &Json, rules: &[TagRule], values: &Values, layers: usize) -> Result<Vec<&'static str>> {
    let mut tags = vec![None; layers];
    for rule in rules {
        apply(rule, config, values, &mut tags)?;
    }
    let say = rules.iter().filter_map(|rule| match rule {
        TagRule::Listed { path, .. } | TagRule::Numbered { path, .. } => Some(*path),
        TagRule::All(_) | TagRule::Every { .. } | TagRule::Leading { .. } => None,
    });
    let tagged = |(layer, tag): (usize, Option<_>)| {
        let paths = || say.clone().collect::<Vec<_>>().join(" or ");
        tag.with_context(|| format!("config.json: nothing says of which kind layer {layer} is, expected {}", paths()))
    };
    tags.into_iter().enumerate().map(tagged).collect()
}

/// Gives a tag to those layers that the rule speaks of and that have none yet.
fn apply(rule: &TagRule, config: &Json, values: &Values, layers: &mut [Option<&'static str>]) -> Result<()> {
    let count = layers.len();
    let mut give = |layer: usize, tag| {
        if let Some(layer) = layers.get_mut(layer) {
            layer.get_or_insert(tag);
        }
    };
    match rule {
        TagRule::All(tag) => (0..count).for_each(|layer| give(layer, *tag)),
        TagRule::Listed { path, tags } => {
            for (layer, tag) in listed_tags(config, path, tags, count)?.into_iter().enumerate() {
                give(layer, tag);
            }
        }
        TagRule::Numbered { path, first, tag } => {
            let numbers = config.list(path)?.into_iter().flatten().filter_map(Value::as_u64);
            numbers.filter_map(|number| (number as usize).checked_sub(*first)).for_each(|layer| give(layer, *tag));
        }
        TagRule::Every { period, offset, tag, when } => {
            if values.holds(when).context("config.json")? {
                let (period, offset) = (limited(values, period)?, values.count(offset).context("config.json")?);
                (0..count).filter(|layer| layer % period == offset).for_each(|layer| give(layer, *tag));
            }
        }
        TagRule::Leading { count: leading, tag } => {
            let leading = values.count(leading).context("config.json")?;
            (0..leading.min(count)).for_each(|layer| give(layer, *tag));
        }
    }
    Ok(())
}

/// The tags of a list with an entry for each layer; none if the setting is not there.
fn listed_tags(
    config: &Json,
    path: &str,
    tags: &[(&'static str, &'static str)],
    layers: usize,
) -> Result<Vec<&'static str>> {
    let Some(entries) = listed(config, path) else { return Ok(Vec::new()) };
    if entries.len() != layers {
        bail!("config.json: {path} has {} entries, expected one for each of the {layers} layers", entries.len());
    }
    let tag = |(layer, entry): (usize, &Cow<'_, str>)| match tags.iter().find(|(name, _)| name == entry) {
        Some((_, tag)) => Ok(*tag),
        None => {
            let known: Vec<&str> = tags.iter().map(|(name, _)| *name).collect();
            bail!("config.json: {path}[{layer}] = {entry:?}, expected {}", known.join(" or "))
        }
    };
    entries.iter().enumerate().map(tag).collect()
}

/// Sets the values `{tag}_layers` and `{tag}_first` for every tag: how many layers have it in all, and before the first
/// that does not. One that the architecture cannot do without must be there.
fn check_tags(architecture: &Architecture, blocks: &[Block], values: &mut Values) -> Result<()> {
    for tag in super::table::TAGS {
        let count = blocks.iter().filter(|block| block.has(tag)).count();
        let first = blocks.iter().take_while(|block| block.has(tag)).count();
        values.set(&format!("{tag}_layers"), count as f64);
        values.set(&format!("{tag}_first"), first as f64);
        if *tag == architecture.needs && count == 0 {
            bail!("config.json: no layer is of the kind {tag}, expected one or more for a {} file", architecture.name);
        }
    }
    Ok(())
}
