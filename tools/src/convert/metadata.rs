//! The metadata of the file: general keys, the architecture's keys, and what generation_config.json recommends.

use super::ConvertOptions;
use super::json::Json;
use super::plan::Job;
use super::settings::{Block, Settings};
use super::table::{KeyRow, KeyValue};
use anyhow::{Context, Result, bail};
use kvas_gguf::{Metadata, Quant, Value};
use std::path::Path;

/// Version of the block formats, which readers of quantised files ask for.
const QUANTIZATION_VERSION: u32 = 2;

/// Writes all keys except those of the tokenizer.
pub(super) fn write(
    metadata: &mut Metadata,
    folder: &Path,
    settings: &Settings,
    jobs: &[Job],
    options: &ConvertOptions,
) -> Result<()> {
    metadata.set("general.architecture", Value::String(settings.name().into()));
    metadata.set("general.type", Value::String("model".into()));
    let id = folder_name(folder);
    let name = options.name.clone().unwrap_or_else(|| title(&id));
    metadata.set("general.name", Value::String(name));
    if let Some(basename) = basename(&id) {
        metadata.set("general.basename", Value::String(basename));
    }
    metadata.set("general.size_label", Value::String(size_label(jobs)));
    recommended_sampling(metadata, folder)?;
    for row in settings.architecture.keys.iter().copied().flatten() {
        if settings.values.holds(row.when).with_context(|| format!("key {}", row.key))? {
            let key = format!("{}.{}", settings.name(), row.key);
            metadata.set(key, value(row, settings)?);
        }
    }
    metadata.set("general.quantization_version", Value::U32(QUANTIZATION_VERSION));
    metadata.set("general.file_type", Value::U32(file_type(options.quant)));
    Ok(())
}

fn value(row: &KeyRow, settings: &Settings) -> Result<Value> {
    let context = || format!("config.json: {} for the key {}", expression(row), row.key);
    Ok(match &row.value {
        KeyValue::Count(expression) => {
            let count = settings.values.count(expression).with_context(context)?;
            let fitting = u32::try_from(count).with_context(|| format!("{count}, expected at most {}", u32::MAX));
            check_count(row.key, expression, (count, settings))?;
            Value::U32(fitting.with_context(context)?)
        }
        KeyValue::Number(expression) => {
            let number = settings.values.evaluate(expression).with_context(context)? as f32;
            if POSITIVE.contains(&row.key) && !(number.is_finite() && number > 0.0) {
                bail!("config.json: {}, expected a positive number of 32 bits", settings.values.said(expression));
            }
            Value::F32(number)
        }
        KeyValue::Text(text) => Value::String((*text).into()),
        KeyValue::Truth(expression) => Value::Bool(settings.values.holds(expression).with_context(context)?),
        KeyValue::Flags(tag) => Value::Bools(settings.blocks.iter().map(|block| block.has(tag)).collect()),
        KeyValue::Counts(tags) => {
            let count = |block: &Block| match tags.iter().find(|(tag, _)| block.has(tag)) {
                Some((_, expression)) => i32::try_from(settings.values.count(expression)?).map_err(Into::into),
                None => Ok(0),
            };
            Value::I32s(settings.blocks.iter().map(count).collect::<Result<_>>().with_context(context)?)
        }
        KeyValue::Sections { paths, default } => Value::I32s(sections(&settings.config, paths, default)?),
    })
}

/// Numbers that have no other meaning: readers refuse a file with another one.
const POSITIVE: &[&str] = &[
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "embedding_scale",
    "expert_weights_scale",
    "logit_scale",
    "residual_scale",
    "rope.freq_base",
];

/// Refuses counts that a file cannot be read with.
fn check_count(key: &str, expression: &str, (count, settings): (usize, &Settings)) -> Result<()> {
    let most = match key {
        "context_length" => i32::MAX as usize,
        "expert_used_count" => settings.values.count("experts").context("config.json")?,
        "expert_group_count" => return check_groups(expression, (count, settings)),
        "rope.dimension_count" => return check_rotated(expression, (count, settings)),
        _ => return Ok(()),
    };
    // Models without experts use none.
    if (1..=most).contains(&count) || most == 0 {
        return Ok(());
    }
    bail!("config.json: {}, expected 1 to {most}", settings.values.said(expression))
}

/// Refuses groups of experts that differ in size or have no two experts, whose sum is what a group is worth, and to look into
/// more of them than there are or into too few for the experts that are chosen.
fn check_groups(expression: &str, (groups, settings): (usize, &Settings)) -> Result<()> {
    const USED: &str = "expert_groups_used";
    let number = |name: &str| settings.values.count(name).context("config.json");
    let (experts, chosen, used) = (number("experts")?, number("experts_used")?, number(USED)?);
    if groups <= 1 {
        return Ok(());
    }
    if !experts.is_multiple_of(groups) || experts == groups {
        let said = settings.values.said(expression);
        bail!("config.json: {said}, expected groups of two or more of the {experts} experts");
    }
    let fewest = chosen.div_ceil(experts / groups);
    if !(fewest..=groups).contains(&used) {
        bail!("config.json: {}, expected {fewest} to {groups}", settings.values.said(USED));
    }
    Ok(())
}

/// Refuses to rotate none of the columns of a head, more than it has, or one without the other of its pair. Latent attention,
/// whose heads have no such size, rotates columns of their own.
fn check_rotated(expression: &str, (count, settings): (usize, &Settings)) -> Result<()> {
    const HEAD: &str = "head_dim";
    if !expression.starts_with(HEAD) {
        return Ok(());
    }
    let most = settings.values.count(HEAD).context("config.json")?;
    if (2..=most).contains(&count) && count.is_multiple_of(2) {
        return Ok(());
    }
    let said = settings.values.said(expression);
    bail!("config.json: {said}: {count} columns of a head are rotated, expected an even number from 2 to {most}")
}

fn expression(row: &KeyRow) -> &'static str {
    match row.value {
        KeyValue::Count(expression) | KeyValue::Number(expression) | KeyValue::Truth(expression) => expression,
        KeyValue::Counts(tags) => tags.first().map_or("", |tag| tag.1),
        KeyValue::Text(_) | KeyValue::Flags(_) | KeyValue::Sections { .. } => "",
    }
}

fn sections(config: &Json, paths: &[&str], default: &[i32; 3]) -> Result<Vec<i32>> {
    let mut sections = match config.first(paths) {
        None => default.to_vec(),
        Some((path, value)) => {
            let list = value.as_array().filter(|list| list.len() <= 4);
            let read = list.and_then(|list| {
                list.iter().map(|size| size.as_i64().and_then(|size| i32::try_from(size).ok())).collect()
            });
            match read {
                Some(read) => read,
                None => bail!("config.json: {path} = {value}, expected up to four whole numbers"),
            }
        }
    };
    sections.resize(4, 0);
    Ok(sections)
}

/// `general.sampling.*` from generation_config.json, unless it asks for greedy decoding.
fn recommended_sampling(metadata: &mut Metadata, folder: &Path) -> Result<()> {
    let Some(generation) = Json::read(folder, "generation_config.json")? else { return Ok(()) };
    if generation.flag("do_sample")? == Some(false) {
        return Ok(());
    }
    const MOST: f64 = i32::MAX as f64;
    // A file with a penalty of 0 could not be loaded.
    let above_zero = f64::from(f32::MIN_POSITIVE);
    for (path, key, range, expected) in [
        ("top_k", "top_k", -1.0..=MOST, "a whole number from -1 to 2147483647"),
        ("top_p", "top_p", 0.0..=1.0, "a number from 0 to 1"),
        ("min_p", "min_p", 0.0..=1.0, "a number from 0 to 1"),
        ("temperature", "temp", 0.0..=MOST, "a number from 0 to 2147483647"),
        ("repetition_penalty", "penalty_repeat", above_zero..=MOST, "a number above 0, up to 2147483647"),
    ] {
        let Some(value) = generation.get(path) else { continue };
        let number = generation.number(path, value)?;
        let is_whole = path != "top_k" || number.fract() == 0.0;
        if value.is_boolean() || !range.contains(&number) || !is_whole {
            bail!("generation_config.json: {path} = {value}, expected {expected}");
        }
        let value = if path == "top_k" { Value::I32(number as i32) } else { Value::F32(number as f32) };
        metadata.set(format!("general.sampling.{key}"), value);
    }
    Ok(())
}

fn folder_name(folder: &Path) -> String {
    // `.` and `..` have a name only after they are resolved.
    let resolved = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    resolved.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

/// `hybrid-14m` as people write it: `Hybrid 14m`. Words with capitals or digits in front stay as they are.
fn title(id: &str) -> String {
    let word = |word: &str| {
        let version = word.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let lower = word.chars().all(|c| !c.is_uppercase()) && word.chars().any(char::is_lowercase);
        if !lower || version || word.starts_with(|c: char| c.is_ascii_digit()) {
            return word.to_string();
        }
        let mut chars = word.chars();
        chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
    };
    id.split(['-', ' ']).filter(|part| !part.is_empty()).map(word).collect::<Vec<_>>().join(" ")
}

/// The words of a name before its size: `hybrid` of `hybrid-14m`; none without a size.
fn basename(id: &str) -> Option<String> {
    let words: Vec<&str> = id.split('-').collect();
    let size = |word: &&str| {
        let digits = word.trim_end_matches(|c: char| "kKmMbBtT".contains(c));
        digits.len() + 1 == word.len() && digits.parse::<f64>().is_ok()
    };
    let at = words.iter().position(size).filter(|&at| at > 0)?;
    Some(words[..at].join("-"))
}

/// Parameters as a label: `14M`, or of a mixture of experts how many and how large each is: `8x7B`.
fn size_label(jobs: &[Job]) -> String {
    let (mut shared, mut expert, mut experts) = (0u64, 0u64, 0u64);
    for Job { tensor, .. } in jobs {
        let size: u64 = tensor.shape.iter().product();
        match tensor.shape.get(2) {
            Some(&count @ 1..) if tensor.name.contains("_exps.") => {
                expert += size / count;
                experts = experts.max(count);
            }
            _ => shared += size,
        }
    }
    let rounded = |count: u64| {
        let scale = [(1e12, 'T'), (1e9, 'B'), (1e6, 'M')].into_iter().find(|scale| count as f64 > scale.0);
        let (unit, letter) = scale.unwrap_or((1e3, 'K'));
        let value = count as f64 / unit;
        let decimals = if value.round() >= 10.0 { 0 } else { 1 };
        format!("{value:.decimals$}{letter}")
    };
    if experts == 0 { rounded(shared) } else { format!("{experts}x{}", rounded(shared + expert)) }
}

/// The number that says which type most weights have.
fn file_type(quant: Quant) -> u32 {
    const NUMBERS: &[(Quant, u32)] = &[
        (Quant::F32, 0),
        (Quant::F16, 1),
        (Quant::Q4_0, 2),
        (Quant::Q4_1, 3),
        (Quant::Q8_0, 7),
        (Quant::Q5_0, 8),
        (Quant::Q5_1, 9),
        (Quant::Q2K, 10),
        (Quant::Q3K, 11),
        (Quant::Q4K, 14),
        (Quant::Q5K, 16),
        (Quant::Q6K, 18),
        (Quant::Iq4Nl, 25),
        (Quant::Iq4Xs, 30),
        (Quant::Bf16, 32),
        (Quant::Mxfp4, 38),
        (Quant::Nvfp4, 39),
    ];
    /// The number for "guessed from the tensors".
    const GUESSED: u32 = 1024;
    NUMBERS.iter().find(|row| row.0 == quant).map_or(GUESSED, |row| row.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_folders() {
        assert_eq!(title("hybrid-14m"), "Hybrid 14m");
        assert_eq!(title("Qwen3-Next-80B-v2-instruct"), "Qwen3 Next 80B v2 Instruct");
        assert_eq!(basename("hybrid-14m").as_deref(), Some("hybrid"));
        assert_eq!(basename("Qwen3-Next-80B-A3B").as_deref(), Some("Qwen3-Next"));
        assert_eq!(basename("llama"), None);
        assert_eq!(basename("14m"), None);
    }
}
