//! What the command line says of models and of other sites.

use crate::cli::note;
use anyhow::{Context, bail};
use kvas::arch::ARCHITECTURES;
use kvas_gguf::GgufFile;
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

/// The models of a folder in the order of their names, each by its first part. Other files are left out and named.
fn of_folder(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let shown = || folder.display().to_string();
    let mut files = Vec::new();
    for entry in folder.read_dir().with_context(shown)? {
        let file = entry.with_context(shown)?.path();
        let is_model = file.extension().is_some_and(|ending| ending == "gguf") && file.is_file();
        files.extend((is_model && !is_later_part(&file)).then_some(file));
    }
    files.sort();
    files.retain(|file| {
        let other = other_than_model(file);
        if let Some(what) = &other {
            note(format_args!("{}: left out, {what}", file.display()));
        }
        other.is_none()
    });
    if files.is_empty() && folder.join("config.json").is_file() {
        bail!("{}: a checkpoint, expected models that end in .gguf, as kvas convert makes one of it", folder.display());
    }
    if files.is_empty() {
        bail!("{}: no model ends in .gguf, expected one", folder.display());
    }
    Ok(files)
}

/// What a file is that is no language model known here, as a vision tower or an adapter. One that cannot be read is told
/// when it is asked for.
fn other_than_model(file: &Path) -> Option<String> {
    let file = GgufFile::open(file).ok()?;
    let text = |key: &str| file.metadata().string_opt(key).ok().flatten();
    if let Some(other) = text("general.type").filter(|kind| *kind != "model") {
        return Some(format!("general.type is {other:?}"));
    }
    let architecture = text("general.architecture")?;
    let is_known = ARCHITECTURES.iter().any(|(name, _)| *name == architecture);
    (!is_known).then(|| format!("general.architecture is {architecture:?}"))
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
    fn of_a_folder_models_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let known = ARCHITECTURES[0].0;
        let files = [
            ("model", known, None),
            ("b", known, Some("model")),
            ("tower", "clip", None),
            ("adapter", known, Some("adapter")),
        ];
        for (name, architecture, kind) in files {
            let mut metadata = kvas_gguf::Metadata::default();
            metadata.set("general.architecture", kvas_gguf::Value::String(architecture.into()));
            if let Some(kind) = kind {
                metadata.set("general.type", kvas_gguf::Value::String(kind.into()));
            }
            let bytes = kvas_gguf::GgufWriter::new(metadata).to_bytes(&[]).unwrap();
            std::fs::write(file(&format!("{name}.gguf")), bytes).unwrap();
        }
        std::fs::write(file("broken.gguf"), "not one").unwrap();
        std::fs::write(file("notes.txt"), "").unwrap();
        let names: Vec<String> =
            named(folder.path().to_str().unwrap()).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["b", "broken", "model"]);
    }

    #[test]
    fn a_folder_without_models_is_told_apart_from_a_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let error = || named(folder.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(error().ends_with("no model ends in .gguf, expected one"), "{}", error());
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        assert!(error().ends_with("as kvas convert makes one of it"), "{}", error());
    }

    #[test]
    fn a_model_of_several_parts_is_one() {
        let later = ["m-00002-of-00005.gguf", "a/m-00005-of-00005.gguf"];
        assert!(later.iter().all(|name| is_later_part(Path::new(name))));
        let others = ["m-00001-of-00005.gguf", "best-of-00005.gguf", "m-2-of-5.gguf", "m.gguf"];
        assert!(!others.iter().any(|name| is_later_part(Path::new(name))));
    }
}
