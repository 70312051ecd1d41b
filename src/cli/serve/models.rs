//! What the command line says of models and of other sites.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};

/// The models that an argument names: `NAME=FILE`, a file by its own name, or all of a folder.
pub(super) fn named(text: &str) -> anyhow::Result<Vec<(String, PathBuf)>> {
    if let Some((name, file)) = text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains('/')) {
        return Ok(vec![(name.to_string(), PathBuf::from(file))]);
    }
    let path = PathBuf::from(text);
    let files = if path.is_dir() { of_folder(&path)? } else { vec![path] };
    let name = |file: &Path| file.file_stem().unwrap_or_default().to_string_lossy().to_string();
    Ok(files.into_iter().map(|file| (name(&file), file)).collect())
}

/// The models of a folder in the order of their names, each by its first part.
fn of_folder(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let shown = || folder.display().to_string();
    let mut files = Vec::new();
    for entry in folder.read_dir().with_context(shown)? {
        let file = entry.with_context(shown)?.path();
        let is_model = file.extension().is_some_and(|ending| ending == "gguf") && file.is_file();
        files.extend((is_model && !is_later_part(&file)).then_some(file));
    }
    if files.is_empty() {
        bail!("{}: no file ends in .gguf, expected a model", folder.display());
    }
    files.sort();
    Ok(files)
}

/// Whether a file is a part of a model, and not its first: `model-00002-of-00005.gguf`.
fn is_later_part(file: &Path) -> bool {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let parts = name.rsplit_once("-of-").and_then(|(before, count)| Some((before.rsplit_once('-')?.1, count)));
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    parts.is_some_and(|(number, count)| is_number(number) && is_number(count) && number != "00001")
}

/// The origin of a site as browsers send it, for a flag.
pub(super) fn origin(text: &str) -> Result<String, String> {
    if text == "*" || text == "null" {
        return Ok(text.into());
    }
    let refuse = || "expected an origin as in https://example.org, or *".to_string();
    let (scheme, host) = text.split_once("://").ok_or_else(refuse)?;
    let host = host.strip_suffix('/').unwrap_or(host);
    let is_one = |text: &str| !text.is_empty() && !text.contains(|c: char| "/?#@,".contains(c) || c.is_whitespace());
    if is_one(scheme) && is_one(host) { Ok(format!("{scheme}://{host}").to_ascii_lowercase()) } else { Err(refuse()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_send_them() {
        for (given, taken) in [
            ("*", "*"),
            ("https://Example.org/", "https://example.org"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("chrome-extension://abc", "chrome-extension://abc"),
        ] {
            assert_eq!(origin(given).as_deref(), Ok(taken));
        }
        for wrong in ["example.org", "https://", "https://example.org/page", "https://a.org,https://b.org", ""] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_model_of_several_parts_is_one() {
        let later = ["m-00002-of-00005.gguf", "a/m-00005-of-00005.gguf"];
        assert!(later.iter().all(|name| is_later_part(Path::new(name))));
        let others = ["m-00001-of-00005.gguf", "best-of-00005.gguf", "m-2-of-5.gguf", "m.gguf"];
        assert!(!others.iter().any(|name| is_later_part(Path::new(name))));
    }
}
