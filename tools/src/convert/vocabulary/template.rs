//! The chat templates of a checkpoint.

use crate::convert::json::{Json, read_file};
use anyhow::{Context, Result, bail};
use kvas_gguf::{Metadata, Value};
use serde_json::Value as JsonValue;
use std::path::Path;

const FILE: &str = "chat_template.jinja";
const FOLDER: &str = "additional_chat_templates";

/// Writes `tokenizer.chat_template`, and further templates under their names.
///
/// A file of its own goes before the one inside tokenizer_config.json, as in the library that writes both.
pub(super) fn write(metadata: &mut Metadata, folder: &Path, settings: Option<&Json>) -> Result<()> {
    if let Some(bytes) = read_file(folder, FILE)? {
        let template = String::from_utf8(bytes).with_context(|| FILE.to_string())?;
        metadata.set("tokenizer.chat_template", Value::String(template));
        let more = additional(folder)?;
        return name_all(metadata, more);
    }
    let separate = Json::read(folder, "chat_template.json")?;
    let both = [settings, separate.as_ref()];
    let found = both.into_iter().flatten().find_map(|file| Some((file, file.get("chat_template")?)));
    match found {
        None => Ok(()),
        Some((_, JsonValue::String(template))) => {
            metadata.set("tokenizer.chat_template", Value::String(template.clone()));
            Ok(())
        }
        Some((file, JsonValue::Array(list))) => {
            let mut named = Vec::new();
            for entry in list {
                match (entry["name"].as_str(), entry["template"].as_str()) {
                    (Some("default"), Some(template)) => {
                        if metadata.get("tokenizer.chat_template").is_some() {
                            bail!("{}: chat_template has two of the name \"default\", expected one", file.name());
                        }
                        metadata.set("tokenizer.chat_template", Value::String(template.into()));
                    }
                    (Some(name), Some(template)) => named.push((name.to_string(), template.to_string())),
                    _ => bail!("{}: chat_template, expected a name and a template in each entry", file.name()),
                }
            }
            // One without a name of its own is the one that is used, whatever it is called.
            if let ([_], [(_, template)]) = (list.as_slice(), named.as_slice()) {
                metadata.set("tokenizer.chat_template", Value::String(template.clone()));
                return Ok(());
            }
            if metadata.get("tokenizer.chat_template").is_none() {
                let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
                bail!("{}: chat_template has {names:?}, expected one of the name \"default\"", file.name());
            }
            name_all(metadata, named)
        }
        Some((file, _)) => bail!("{}: chat_template, expected a text or a list", file.name()),
    }
}

fn additional(folder: &Path) -> Result<Vec<(String, String)>> {
    let Ok(entries) = std::fs::read_dir(folder.join(FOLDER)) else { return Ok(Vec::new()) };
    let mut named = Vec::new();
    for entry in entries {
        let file = entry.with_context(|| FOLDER.to_string())?.file_name();
        let file = file.to_string_lossy();
        if let Some(name) = file.strip_suffix(".jinja")
            && let Some(bytes) = read_file(&folder.join(FOLDER), &file)?
        {
            let template = String::from_utf8(bytes).with_context(|| format!("{FOLDER}/{file}"))?;
            named.push((name.to_string(), template));
        }
    }
    named.sort();
    Ok(named)
}

fn name_all(metadata: &mut Metadata, named: Vec<(String, String)>) -> Result<()> {
    let mut names = Vec::new();
    for (name, template) in named {
        // Keys are made of lower-case letters, digits, dots and underscores.
        let safe = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        let name: String = name.chars().map(safe).collect();
        if names.contains(&name) {
            bail!("chat_template: two are named {name}, expected names that differ in letters and digits");
        }
        metadata.set(format!("tokenizer.chat_template.{name}"), Value::String(template));
        names.push(name);
    }
    if !names.is_empty() {
        metadata.set("tokenizer.chat_templates", Value::Strings(names));
    }
    Ok(())
}
