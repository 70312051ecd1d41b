//! JSON files of a checkpoint: read with a limit, and looked up by dotted path with errors that name file and path.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;

/// No configuration or tokenizer is anywhere near this many bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// One JSON file.
#[derive(Debug, Clone)]
pub(crate) struct Json {
    name: String,
    root: Value,
}

impl Json {
    /// Reads `folder/name`; `None` if there is no such file.
    pub(crate) fn read(folder: &Path, name: &str) -> Result<Option<Json>> {
        let Some(bytes) = read_file(folder, name)? else { return Ok(None) };
        let read = serde_json::from_slice(&bytes).or_else(|_| serde_json::from_slice(&without_constants(&bytes)));
        let root: Value = read.with_context(|| format!("{name}: not valid JSON"))?;
        if !root.is_object() {
            bail!("{name}: {}, expected an object", kind(&root));
        }
        Ok(Some(Json { name: name.into(), root }))
    }

    /// Reads a text as the file of that name.
    #[cfg(test)]
    pub(super) fn parse(name: &str, text: &str) -> Result<Json> {
        Ok(Json { name: name.into(), root: serde_json::from_str(text)? })
    }

    /// The whole file.
    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    /// The file's name, for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The value at a dotted path of keys and places in lists; null counts as missing. An inner `text_config` or
    /// `llm_config` goes before the outermost object, since that is where checkpoints of several modalities describe
    /// their language model.
    pub(crate) fn get(&self, path: &str) -> Option<&Value> {
        let inner = ["text_config", "llm_config"].map(|name| self.root.get(name));
        inner.into_iter().chain([Some(&self.root)]).find_map(|from| lookup(from, path))
    }

    /// The first of several paths that is there, with its value.
    pub(super) fn first<'p>(&self, paths: &[&'p str]) -> Option<(&'p str, &Value)> {
        paths.iter().find_map(|path| self.get(path).map(|value| (*path, value)))
    }

    /// A number, or a boolean as 0 or 1.
    pub(super) fn number(&self, path: &str, value: &Value) -> Result<f64> {
        match value {
            Value::Bool(value) => Ok(f64::from(u8::from(*value))),
            Value::Number(value) => match value.as_f64() {
                Some(value) if value.is_finite() => Ok(value),
                _ => bail!("{}: {path} = {value}, expected a finite number", self.name),
            },
            Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                bail!("{}: {path} is {}, expected a number", self.name, kind(value))
            }
        }
    }

    /// A text, if the path is there.
    pub(crate) fn text(&self, path: &str) -> Result<Option<&str>> {
        match self.get(path) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => bail!("{}: {path} is {}, expected a text", self.name, kind(other)),
        }
    }

    /// A list, if the path is there.
    pub(super) fn list(&self, path: &str) -> Result<Option<&Vec<Value>>> {
        match self.get(path) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => bail!("{}: {path} is {}, expected a list", self.name, kind(other)),
        }
    }

    /// A boolean, if the path is there.
    pub(crate) fn flag(&self, path: &str) -> Result<Option<bool>> {
        self.get(path).map_or(Ok(None), |value| self.truth(path, value).map(Some))
    }

    /// What the outermost object says of a key that an inner one may have, too.
    pub(super) fn outer_flag(&self, key: &str) -> Result<Option<bool>> {
        let value = self.root.get(key).filter(|value| !value.is_null());
        value.map_or(Ok(None), |value| self.truth(key, value).map(Some))
    }

    fn truth(&self, path: &str, value: &Value) -> Result<bool> {
        value.as_bool().with_context(|| format!("{}: {path} is {}, expected true or false", self.name, kind(value)))
    }
}

fn lookup<'a>(from: Option<&'a Value>, path: &str) -> Option<&'a Value> {
    let inner = |value: &'a Value, key: &str| match key.parse::<usize>() {
        Ok(at) if value.is_array() => value.get(at),
        Ok(_) | Err(_) => value.get(key),
    };
    path.split('.').try_fold(from?, inner).filter(|value| !value.is_null())
}

/// JSON in which the constants `NaN`, `Infinity` and `-Infinity`, which Python writes and nobody else reads, are null.
fn without_constants(json: &[u8]) -> Vec<u8> {
    const CONSTANTS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    let mut out = Vec::with_capacity(json.len());
    let (mut rest, mut quoted) = (json, false);
    while let Some(&byte) = rest.first() {
        let constant = CONSTANTS.into_iter().find_map(|word| rest.strip_prefix(word)).filter(|_| !quoted);
        if let Some(after) = constant {
            out.extend_from_slice(b"null");
            rest = after;
            continue;
        }
        // Inside a text, a backslash takes the next byte with it.
        let count = if quoted && byte == b'\\' { rest.len().min(2) } else { 1 };
        quoted ^= byte == b'"';
        out.extend_from_slice(&rest[..count]);
        rest = &rest[count..];
    }
    out
}

/// The bytes of `folder/name`; `None` if there is no such file.
pub(super) fn read_file(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = folder.join(name);
    let length = match std::fs::metadata(&path) {
        Ok(found) if found.is_file() => found.len(),
        Ok(_) => bail!("{name}: expected a file"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            refuse_dangling(&path, name)?;
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| name.to_string()),
    };
    if length > FILE_BYTES_MAX {
        bail!("{name}: {length} bytes, expected at most {FILE_BYTES_MAX}");
    }
    let bytes = std::fs::read(&path).with_context(|| name.to_string())?;
    refuse_pointer(name, &bytes)?;
    Ok(Some(bytes))
}

/// Refuses a link that leads nowhere, where the cache of Hugging Face has not got the file: a checkpoint without it could be
/// another one.
pub(super) fn refuse_dangling(path: &Path, name: &str) -> Result<()> {
    if let Ok(link) = std::fs::read_link(path)
        && !path.exists()
    {
        bail!("{name}: a link to {}, expected a file there: download the checkpoint again", link.display());
    }
    Ok(())
}

/// Refuses what stands for a file that Git LFS has not fetched.
pub(super) fn refuse_pointer(name: &str, beginning: &[u8]) -> Result<()> {
    if beginning.starts_with(b"version https://git-lfs") {
        bail!("{name}: a pointer of Git LFS, expected the file that it stands for: `git lfs pull` fetches it");
    }
    Ok(())
}

/// What a JSON value is, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_that_only_python_writes_count_as_missing() {
        let read = |text: &str| String::from_utf8(without_constants(text.as_bytes())).unwrap();
        assert_eq!(
            read(r#"{"a": [0.0, Infinity], "b": -Infinity,"c":NaN}"#),
            r#"{"a": [0.0, null], "b": null,"c":null}"#
        );
        let texts = r#"{"NaN": "\"Infinity\\", "b": "NaN\""}"#;
        assert_eq!(read(texts), texts);
        assert_eq!(read("\"\\"), "\"\\");
    }
}
