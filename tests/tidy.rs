//! House rules as tests: sizes, where unsafe and architecture names may be, that documents name what exists.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Folders that are built, fetched or data.
const SKIPPED: &[&str] = &["target", ".git", "corpus", "artifacts", "data", "vectors", ".venv", "node_modules"];

/// Every file of the repository with one of these endings, as (path from the root, text).
fn sources(endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().to_string();
            if path.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let relative = path.strip_prefix(root()).unwrap().to_string_lossy().to_string();
                found.push((relative, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Tables of data, exempt from the size limit.
const TABLES: &[&str] = &["gguf/src/quant/iq_grids.rs"];

#[test]
fn files_are_short() {
    for (path, text) in sources(&[".rs"]) {
        let lines = text.lines().count();
        assert!(lines <= 600 || TABLES.contains(&path.as_str()), "{path} has {lines} lines, at most 600 are allowed");
    }
}

#[test]
fn files_say_what_belongs_in_them() {
    for (path, text) in sources(&[".rs"]) {
        assert!(text.starts_with("//!"), "{path} has no //! line at its top");
    }
}

/// Where unsafe code may be: mapping, SIMD, the thread pool that lends slices to its threads, and calls of the CUDA
/// driver and compiler.
fn may_be_unsafe(path: &str) -> bool {
    let cuda = ["cuda/src/device.rs", "cuda/src/launch.rs", "cuda/src/nvrtc.rs"];
    let others = ["gguf/src/mapping.rs", "cpu/src/pool.rs"];
    cuda.contains(&path) || others.contains(&path) || path.starts_with("cpu/src/simd/")
}

#[test]
fn unsafe_is_where_it_is_allowed() {
    let word = concat!("uns", "afe ");
    for (path, text) in sources(&[".rs"]).into_iter().filter(|(path, _)| path != "tests/tidy.rs") {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let found = code.filter(|line| line.contains(word) || line.contains(concat!("uns", "afe{"))).count();
        assert!(found == 0 || may_be_unsafe(&path), "{path} has unsafe code");
    }
}

/// How names of architectures begin, where text does.
const NAMES: &[&str] = &[
    "\"qwen",
    "\"llama",
    "\"mistral",
    "\"falcon",
    "\"granite",
    "\"nemotron",
    "\"kimi",
    "\"lfm",
    "\"jamba",
    // With a number it is an operation, too.
    "\"mamba\"",
];

#[test]
fn architecture_names_are_in_arch_only() {
    let allowed = |path: &str| {
        [
            "fuzz/",
            "gguf/tests/",
            "src/arch/",
            "src/text/",
            "src/presets/",
            "tests/",
            "tools/src/adapter/tests.rs",
            "tools/src/convert/",
            "tools/src/quantize/",
            "tools/tests/",
        ]
        .iter()
        .any(|folder| path.starts_with(folder))
    };
    for (path, text) in sources(&[".rs"]).into_iter().filter(|(path, _)| !allowed(path)) {
        for name in NAMES {
            let found = text.lines().find(|line| line.contains(name) && !line.contains("Examples"));
            assert_eq!(found, None, "{path} names an architecture");
        }
    }
}

/// A text of a request may take long to be cut into tokens: `Served` does so beside other requests.
#[test]
fn the_server_tokenizes_in_one_place() {
    for (path, text) in sources(&[".rs"]).into_iter().filter(|(path, _)| path.starts_with("src/server/")) {
        let is_allowed = path == "src/server/served.rs" || path.ends_with("tests.rs");
        assert!(is_allowed || !text.contains("tokenizer.encode("), "{path} tokenizes, expected Served::tokens");
    }
}

#[test]
fn nothing_is_left_for_later() {
    for (path, text) in sources(&[".rs", ".md", ".py", ".toml"]).into_iter().filter(|(path, _)| path != "tests/tidy.rs")
    {
        for word in ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!("] {
            assert!(!text.contains(word), "{path} contains {word}");
        }
    }
}

#[test]
fn every_op_has_a_conformance_case() {
    let op = fs::read_to_string(root().join("backend/src/op.rs")).unwrap();
    let variants = op.split("pub enum Op {").nth(1).unwrap().split('}').next().unwrap();
    let cases: String = sources(&[".rs"])
        .into_iter()
        .filter_map(|(path, text)| path.starts_with("backend/src/conformance/cases/").then_some(text))
        .collect();
    for variant in variants.lines().filter_map(|line| line.trim().split('(').next()).filter(|name| !name.is_empty()) {
        assert!(cases.contains(&format!("Op::{variant}(")), "op {variant} has no conformance case");
    }
}

#[test]
fn documents_name_what_exists() {
    for (path, text) in sources(&[".md"]) {
        for quoted in text.split('`').skip(1).step_by(2) {
            let is_path = quoted.contains('/')
                && !quoted.starts_with(['/', '-', '.', '$'])
                && quoted.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-".contains(c));
            let first = quoted.split('/').next().unwrap_or("");
            // What a build makes need not be there.
            if is_path && first != "target" && root().join(first).is_dir() {
                assert!(root().join(quoted).exists(), "{path} names {quoted}, which does not exist");
            }
        }
    }
}

#[test]
fn the_architecture_document_is_short() {
    let text = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    assert!(text.lines().count() <= 200, "docs/ARCHITECTURE.md has {} lines", text.lines().count());
}
