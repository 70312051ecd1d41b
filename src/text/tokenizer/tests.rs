//! Tokenizers against the ids that the models' own tokenizers give.

use super::*;
use kvas_gguf::GgufFile;
use std::path::PathBuf;

/// A file of the shared data, or `None` where there is none.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var("KVAS_SHARED").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").into());
    let path = PathBuf::from(root).join("data").join(path);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: no {}", path.display());
    None
}

fn open(path: &std::path::Path) -> Tokenizer {
    let start = std::time::Instant::now();
    let file = GgufFile::open(path).unwrap();
    let read = start.elapsed();
    let tokenizer = Tokenizer::from_metadata(file.metadata(), None).unwrap();
    eprintln!("{}: file {read:?}, tokenizer {:?}", path.display(), start.elapsed() - read);
    tokenizer
}

fn check_cases(name: &str) {
    let Some(path) = shared(&format!("vocab/ggml-vocab-{name}.gguf")) else { return };
    let tokenizer = open(&path);
    let input = std::fs::read_to_string(path.with_extension("gguf.inp")).unwrap();
    let output = std::fs::read_to_string(path.with_extension("gguf.out")).unwrap();
    let cases: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
    let expected: Vec<&str> = output.lines().collect();
    assert!(cases.len() > 40 && cases.len() >= expected.len(), "{} cases, {} results", cases.len(), expected.len());
    for (text, expected) in cases.iter().zip(&expected) {
        let expected: Vec<u32> = expected.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let ids = tokenizer.encode(text, Special::Literal, Bos::Omit);
        assert_eq!(ids, expected, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&ids, Control::Show).unwrap(), *text, "{name}");
    }
}

macro_rules! cases {
    ($($test:ident $name:literal)*) => {
        $(#[test]
        fn $test() {
            check_cases($name);
        })*
    };
}

cases! {
    deepseek_llm "deepseek-llm"
    gpt_2 "gpt-2"
    llama_bpe "llama-bpe"
    llama_spm "llama-spm"
    qwen2 "qwen2"
    qwen35 "qwen35"
}

#[test]
#[ignore]
fn speed() {
    let text = std::fs::read_to_string(shared("text/wikitext2.test.txt").unwrap()).unwrap();
    for name in ["deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "qwen2", "qwen35"] {
        let t = open(&shared(&format!("vocab/ggml-vocab-{name}.gguf")).unwrap());
        let inputs = [("wiki", text.clone()), ("wiki", text.clone()), ("a", "a".repeat(1<<20)), ("A", "A".repeat(1<<20)), ("sp", " ".repeat(1<<20)), ("nl", "\n".repeat(1<<20)), ("1", "1".repeat(1<<20)), ("=", "=".repeat(1<<20)), ("é", "é".repeat(1<<19)), ("中", "中".repeat(1<<18)), ("a 中", "ab".repeat(1<<19)), ("🦙", "🦙".repeat(1<<18)), ("usus", "us".repeat(1<<19)), (" a ", " \t".repeat(1<<19)), ("sp x", " ".repeat(1<<20)+"x")];
        for (what, text) in inputs {
            let s = std::time::Instant::now();
            let ids = t.encode(&text, Special::Parse, Bos::Omit);
            let e = s.elapsed();
            let s = std::time::Instant::now();
            let back = t.decode(&ids, Control::Show).unwrap();
            assert!(back == text, "{name} {what}");
            eprintln!("{name} {what}: {} ids {:.1} MB/s; decode {:.1}", ids.len(), text.len() as f64 / 1e6 / e.as_secs_f64(), text.len() as f64 / 1e6/ s.elapsed().as_secs_f64());
        }
    }
}
