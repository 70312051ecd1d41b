//! Tokenizers against the ids that the models' own tokenizers give, and against malformed files.

use super::*;
use kvas_gguf::{GgufFile, Value};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A file of the shared data, or `None` where there is none.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let root =
        std::env::var("KVAS_SHARED").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").into());
    let path = PathBuf::from(root).join("data").join(path);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: no {}", path.display());
    None
}

/// A fixture of our own.
pub(crate) fn fixture(name: &str) -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn strings(json: &Json) -> Vec<String> {
    json.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

fn ids(json: &Json) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn metadata(model: &str, fixture: &Json) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::String("llama".into()));
    metadata.set(MODEL, Value::String(model.into()));
    metadata.set("tokenizer.ggml.tokens", Value::Strings(strings(&fixture["tokens"])));
    let types = ids(&fixture["types"]).iter().map(|&kind| kind as i32).collect();
    metadata.set("tokenizer.ggml.token_type", Value::I32s(types));
    metadata
}

pub(crate) fn small_spm() -> Metadata {
    let fixture = fixture("spm.json");
    let mut metadata = metadata("llama", &fixture);
    let scores = fixture["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap() as f32).collect();
    metadata.set("tokenizer.ggml.scores", Value::F32s(scores));
    metadata
}

pub(crate) fn small_bpe() -> Metadata {
    let fixture = fixture("bpe.json");
    let mut metadata = metadata("gpt2", &fixture);
    metadata.set(PRE, Value::String("qwen2".into()));
    metadata.set(NORMALIZER, Value::String("none".into()));
    metadata.set("tokenizer.ggml.merges", Value::Strings(strings(&fixture["merges"])));
    metadata.set("tokenizer.ggml.eos_token_id", Value::U32(0));
    metadata
}

pub(crate) fn build(metadata: &Metadata) -> Tokenizer {
    Tokenizer::from_metadata(metadata, None).unwrap()
}

#[test]
fn bytes_and_merges_give_the_ids_of_hugging_face() {
    let tokenizer = build(&small_bpe());
    let fixture = fixture("bpe.json");
    let check = |cases: &Json, special| {
        for case in cases.as_array().unwrap() {
            let (text, expected) = (case[0].as_str().unwrap(), ids(&case[1]));
            assert_eq!(tokenizer.encode(text, special, Bos::Omit), expected, "{text:?}");
            assert_eq!(tokenizer.decode(&expected, Control::Show).unwrap(), text);
        }
    };
    check(&fixture["cases"], Special::Literal);
    check(&fixture["parsed"], Special::Parse);
}

#[test]
fn scores_give_the_ids_of_sentencepiece() {
    let tokenizer = build(&small_spm());
    for case in fixture("spm.json")["cases"].as_array().unwrap() {
        let (text, expected) = (case[0].as_str().unwrap(), ids(&case[1]));
        assert_eq!(tokenizer.encode(text, Special::Literal, Bos::Omit), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected, Control::Show).unwrap(), text.replace('▁', " "));
    }
}

fn check_shared_cases(name: &str) {
    let Some(path) = shared(&format!("vocab/ggml-vocab-{name}.gguf")) else { return };
    let mut metadata = GgufFile::open(&path).unwrap().metadata().clone();
    // llama.cpp, whose cases these are, composes nothing.
    metadata.set(NORMALIZER, Value::String("none".into()));
    let tokenizer = build(&metadata);
    let input = std::fs::read_to_string(path.with_extension("gguf.inp")).unwrap();
    let output = std::fs::read_to_string(path.with_extension("gguf.out")).unwrap();
    let cases: Vec<&str> = input.split_terminator("\n__ggml_vocab_test__\n").collect();
    let expected: Vec<&str> = output.lines().collect();
    assert!(expected.len() > 40);
    assert_eq!(cases.len(), expected.len());
    for (text, expected) in cases.iter().zip(&expected) {
        let expected: Vec<u32> = expected.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let ids = tokenizer.encode(text, Special::Literal, Bos::Omit);
        assert_eq!(ids, expected, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&ids, Control::Show).unwrap(), *text, "{name}");
    }
}

macro_rules! shared_cases {
    ($($test:ident $name:literal)*) => {
        $(#[test]
        fn $test() {
            check_shared_cases($name);
        })*
    };
}

shared_cases! {
    deepseek_llm "deepseek-llm"
    gpt_2 "gpt-2"
    llama_bpe "llama-bpe"
    llama_spm "llama-spm"
    qwen2 "qwen2"
    qwen35 "qwen35"
}

#[test]
fn pre_tokenizers_split_as_their_published_expressions() {
    let fixture = fixture("splits.json");
    let texts = strings(&fixture["texts"]);
    for (name, splits) in fixture["splits"].as_object().unwrap() {
        let splitter = pre::Splitter::new(&pre_rules::find(name).expect(name));
        let mut scratch = splitter.scratch();
        for (text, expected) in texts.iter().zip(splits.as_array().unwrap()) {
            let pieces = splitter.split(text, &mut scratch).iter().map(|piece| &text[piece.clone()]);
            assert_eq!(pieces.collect::<Vec<_>>(), strings(expected), "{name}: {text:?}");
        }
    }
}

#[test]
fn every_pre_tokenizer_compiles_and_covers_the_text() {
    let text = "Ab c'est 12345 ½ 中文カナ한국 \n\n\t x  ́é🦙!?";
    for name in pre_rules::names() {
        let splitter = pre::Splitter::new(&pre_rules::find(name).expect(name));
        let mut scratch = splitter.scratch();
        let joined: String = splitter.split(text, &mut scratch).iter().map(|piece| &text[piece.clone()]).collect();
        assert_eq!(joined, text, "{name}");
        assert!(splitter.split(text, &mut scratch).iter().all(|piece| !piece.is_empty()), "{name}");
    }
    assert!(pre_rules::EXAMPLES.split(", ").all(|name| pre_rules::find(name).is_some()));
}

fn refused(metadata: &Metadata) -> String {
    Tokenizer::from_metadata(metadata, None).unwrap_err().to_string()
}

#[test]
fn errors_name_the_key() {
    let changes: &[(&str, Value, &str)] = &[
        (MODEL, Value::String("nope".into()), "tokenizer.ggml.model: \"nope\", expected \"gpt2\" or \"llama\""),
        ("tokenizer.ggml.scores", Value::F32s(vec![0.0; 3]), "tokenizer.ggml.scores: 3 entries, expected 512"),
        (
            "tokenizer.ggml.token_type",
            Value::I32s(vec![1; 511]),
            "tokenizer.ggml.token_type: 511 entries, expected 512",
        ),
        (
            "tokenizer.ggml.eos_token_id",
            Value::U32(512),
            "tokenizer.ggml.eos_token_id: 512, expected less than 512, the number of tokenizer.ggml.tokens",
        ),
        (
            "llama.vocab_size",
            Value::U32(1 << 31),
            "llama.vocab_size: 2147483648, expected 512, the number of tokenizer.ggml.tokens",
        ),
        ("tokenizer.ggml.add_bos_token", Value::U32(1), "key tokenizer.ggml.add_bos_token is u32, expected bool"),
    ];
    for (key, value, expected) in changes {
        let mut metadata = small_spm();
        metadata.set(*key, value.clone());
        assert_eq!(refused(&metadata), *expected);
    }
    let tokens = |change: &dyn Fn(&mut Vec<String>)| {
        let mut metadata = small_spm();
        let mut tokens = metadata.strings_opt("tokenizer.ggml.tokens").unwrap().unwrap().to_vec();
        change(&mut tokens);
        metadata.set("tokenizer.ggml.tokens", Value::Strings(tokens));
        metadata
    };
    let negative = tokens(&|tokens| tokens[3] = "<0x-1>".into());
    assert_eq!(refused(&negative), "tokenizer.ggml.tokens[3]: byte token \"<0x-1>\", expected <0x00> to <0xFF>");
    let twice = tokens(&|tokens| tokens[400] = tokens[300].clone());
    assert!(refused(&twice).starts_with("tokenizer.ggml.tokens[400]: "), "{}", refused(&twice));
    assert!(refused(&tokens(&Vec::clear)).starts_with("tokenizer.ggml.tokens: 0 tokens"));
}

#[test]
fn errors_of_merges_and_pre_tokenizers_name_them() {
    let merges = |merges: &[&str]| {
        let mut metadata = small_bpe();
        let merges = merges.iter().map(|&merge| merge.to_owned()).collect();
        metadata.set("tokenizer.ggml.merges", Value::Strings(merges));
        refused(&metadata)
    };
    assert_eq!(merges(&["ab"]), "tokenizer.ggml.merges[0]: \"ab\", expected two tokens with a space between");
    assert!(merges(&[""]).starts_with("tokenizer.ggml.merges[0]: \"\""));
    assert_eq!(
        merges(&["h e", "q qzzq"]),
        "tokenizer.ggml.merges[1]: \"q qzzq\" needs token \"qzzq\", which tokenizer.ggml.tokens lacks"
    );
    // Both halves are tokens, the longest there are, but the result is none.
    let longest = build(&small_bpe()).vocab.iter().map(|(_, text)| text.to_owned()).max_by_key(String::len).unwrap();
    assert!(merges(&[&format!("{longest} {longest}")]).contains("needs token"));

    let mut metadata = small_bpe();
    metadata.remove("tokenizer.ggml.merges");
    assert_eq!(refused(&metadata), "tokenizer.ggml.merges: missing, expected the list of merges");
    metadata = small_bpe();
    metadata.set(PRE, Value::String("nope".into()));
    assert!(
        refused(&metadata)
            .starts_with("tokenizer.ggml.pre = \"nope\" is not known; choose a known one with --override-pre")
    );
    assert!(Tokenizer::from_metadata(&metadata, Some("qwen2")).is_ok());
    metadata.remove(PRE);
    assert!(Tokenizer::from_metadata(&metadata, None).is_ok());
}

#[test]
fn malformed_files_are_refused_in_time() {
    let Some(folder) = shared("gguf-bad") else { return };
    let reject =
        ["scores_short", "tokens_missing", "byte_token_neg", "tokenizer_unknown", "merge_bad", "vocab_size_2147483648"];
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Some(name) = name.strip_prefix("sem_") else { continue };
        let start = Instant::now();
        let Ok(file) = GgufFile::open(&path) else { continue };
        let result = Tokenizer::from_metadata(file.metadata(), None);
        assert!(start.elapsed() < Duration::from_millis(100), "{name} took {:?}", start.elapsed());
        assert!(!reject.contains(&name) || result.is_err(), "{name} was accepted");
        if name == "eos_minus1" {
            assert_eq!(result.unwrap().roles().eos, None);
        }
    }
}

#[test]
fn control_tokens_are_text_unless_asked_for() {
    for metadata in [small_spm(), small_bpe()] {
        let tokenizer = build(&metadata);
        let (id, text) =
            tokenizer.vocab.iter().find(|&(id, _)| tokenizer.kind(id).unwrap() == TokenType::Control).unwrap();
        let around = format!("a{text}b");
        let literal = tokenizer.encode(&around, Special::Literal, Bos::Omit);
        assert!(!literal.contains(&id));
        assert_eq!(tokenizer.decode(&literal, Control::Hide).unwrap(), around);
        let parsed = tokenizer.encode(&around, Special::Parse, Bos::Omit);
        assert!(parsed.contains(&id));
        assert_eq!(tokenizer.decode(&parsed, Control::Show).unwrap(), around);
        assert_eq!(tokenizer.decode(&parsed, Control::Hide).unwrap(), "ab");
    }
}

#[test]
fn a_whole_token_that_reads_like_a_control_token_stays_text() {
    // "lol" is one piece, and this pre-tokenizer looks pieces up before it merges.
    let mut metadata = small_bpe();
    let mut tokens = metadata.strings_opt("tokenizer.ggml.tokens").unwrap().unwrap().to_vec();
    tokens[1] = "lol".into();
    metadata.set("tokenizer.ggml.tokens", Value::Strings(tokens));
    let tokenizer = Tokenizer::from_metadata(&metadata, Some("llama-bpe")).unwrap();
    let ids = tokenizer.encode("lol", Special::Literal, Bos::Omit);
    assert!(ids.len() > 1 && !ids.contains(&1), "{ids:?}");
    assert_eq!(tokenizer.encode("lol", Special::Parse, Bos::Omit), [1]);
}

#[test]
fn longest_special_token_counts_and_user_defined_ones_always() {
    let mut metadata = small_bpe();
    let mut tokens = metadata.strings_opt("tokenizer.ggml.tokens").unwrap().unwrap().to_vec();
    let base = tokens.len() as u32;
    tokens.extend(["<t>".into(), "<t><t>".into(), "<u>".into()]);
    let mut types = vec![1; base as usize];
    types.extend([3, 3, 4]);
    metadata.set("tokenizer.ggml.tokens", Value::Strings(tokens));
    metadata.set("tokenizer.ggml.token_type", Value::I32s(types));
    let tokenizer = build(&metadata);
    assert_eq!(tokenizer.encode("<t><t><t>", Special::Parse, Bos::Omit), [base + 1, base]);
    assert_eq!(tokenizer.encode("<u><u>", Special::Literal, Bos::Omit), [base + 2, base + 2]);
    assert!(!tokenizer.encode("<t>", Special::Literal, Bos::Omit).contains(&base));
}

#[test]
fn bos_and_eos_are_added_once() {
    let mut metadata = small_spm();
    metadata.set("tokenizer.ggml.add_eos_token", Value::Bool(true));
    let tokenizer = build(&metadata);
    let ids = tokenizer.encode("a", Special::Literal, Bos::Add);
    assert_eq!((ids.first(), ids.last(), ids.len()), (Some(&1), Some(&2), 3));
    assert_eq!(tokenizer.encode("<s>a</s>", Special::Parse, Bos::Add), ids);
    assert_eq!(tokenizer.encode("", Special::Parse, Bos::Add), [1, 2]);
    assert_eq!(tokenizer.decode(&ids, Control::Hide).unwrap(), "a");
    metadata.set("tokenizer.ggml.add_bos_token", Value::Bool(false));
    metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let plain = build(&metadata).encode("a", Special::Literal, Bos::Add);
    assert_eq!(build(&metadata).token_text(plain[0]).unwrap(), "a");
}

/// As SentencePiece adds them, and as the two ways of its likeness in tokenizer.json do.
#[test]
fn spaces_are_added_where_the_file_says() {
    let with = |kind: Option<&str>| {
        let mut metadata = small_spm();
        if let Some(kind) = kind {
            metadata.set(SPACE_KIND, Value::String(kind.into()));
        }
        build(&metadata)
    };
    let texts = |tokenizer: &Tokenizer, ids: &[u32]| -> String {
        ids.iter().map(|id| tokenizer.token_text(*id).unwrap()).collect()
    };
    for (kind, bare, spaced) in [
        (None, "▁a</s>▁b", "▁▁a</s>▁▁b"),
        (Some("missing"), "▁a</s>▁b", "▁a</s>▁b"),
        (Some("first"), "▁a</s>b", "▁a</s>▁b"),
    ] {
        let tokenizer = with(kind);
        let encoded = |text: &str| texts(&tokenizer, &tokenizer.encode(text, Special::Parse, Bos::Omit));
        assert_eq!((&*encoded("a</s>b"), &*encoded(" a</s> b")), (bare, spaced), "{kind:?}");
        // What goes on behind a word has the spaces of the text only; behind a special token it is a start.
        let word = tokenizer.encode("a", Special::Parse, Bos::Omit).pop();
        assert_eq!(texts(&tokenizer, &tokenizer.encode_on(word, " b", Special::Parse)), "▁b");
        let after = texts(&tokenizer, &tokenizer.encode_on(Some(2), "b", Special::Parse));
        assert_eq!(after, if kind == Some("first") { "b" } else { "▁b" });
    }
    let mut metadata = small_spm();
    metadata.set(SPACE_KIND, Value::String("often".into()));
    let error = Tokenizer::from_metadata(&metadata, None).unwrap_err().to_string();
    assert!(
        error.contains("tokenizer.kvas.space_prefix") && error.contains("\"often\", expected \"missing\""),
        "{error}"
    );
}

#[test]
fn unused_tokens_are_steps_but_never_results() {
    let mut metadata = Metadata::default();
    metadata.set(MODEL, Value::String("llama".into()));
    let tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "abab"].map(str::to_owned).to_vec();
    metadata.set("tokenizer.ggml.tokens", Value::Strings(tokens));
    metadata.set("tokenizer.ggml.scores", Value::F32s(vec![0.0, 0.0, 0.0, -4.0, -4.0, -1.0, -2.0]));
    metadata.set("tokenizer.ggml.token_type", Value::I32s(vec![2, 3, 3, 1, 1, 5, 1]));
    metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let tokenizer = build(&metadata);
    assert_eq!(tokenizer.encode("ab", Special::Literal, Bos::Omit), [3, 4]);
    assert_eq!(tokenizer.encode("abab", Special::Literal, Bos::Omit), [6]);
    assert_eq!(
        tokenizer.encode("ababab", Special::Literal, Bos::Omit),
        [6, 3, 4],
        "of equal scores the left comes first"
    );
    // Without byte tokens, unknown text is the unknown token.
    assert_eq!(tokenizer.encode("a?", Special::Literal, Bos::Omit), [3, 0]);
}

#[test]
fn roles_are_found_by_text() {
    let tokenizer = build(&small_bpe());
    assert_eq!(tokenizer.roles().eos, Some(0));
    assert_eq!(tokenizer.roles().eot, tokenizer.id_of("<|im_end|>"));
    assert_eq!(tokenizer.eog(), [0, 2]);
    assert!(tokenizer.is_eog(2) && !tokenizer.is_eog(1));
    // With channels, <|end|> only ends a message.
    let mut metadata = small_bpe();
    let mut tokens = metadata.strings_opt("tokenizer.ggml.tokens").unwrap().unwrap().to_vec();
    let base = tokens.len() as u32;
    tokens.extend(["<|end|>".into(), "<|return|>".into(), "<|call|>".into(), "</s>".into()]);
    metadata.set("tokenizer.ggml.tokens", Value::Strings(tokens));
    metadata.remove("tokenizer.ggml.token_type");
    let tokenizer = build(&metadata);
    assert_eq!(tokenizer.eog(), [0, 2, base + 1, base + 2]);
    assert_eq!(tokenizer.kind(base).unwrap(), TokenType::UserDefined);
    assert_eq!(tokenizer.kind(base + 3).unwrap(), TokenType::Normal, "text of markup ends no generation");
}

/// Small random numbers that are the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % end
    }

    pub(crate) fn text(&mut self) -> String {
        let parts = [
            "<|im_start|>",
            "</s>",
            "<0x0A>",
            "▁",
            " ",
            "\n",
            "é",
            "🦙",
            "中",
            "a",
            "'s",
            "1",
            "\0",
            "\u{301}",
            "<|im_",
            "|>",
        ];
        let bytes: Vec<u8> = (0..self.below(40)).map(|_| self.below(256) as u8).collect();
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        for _ in 0..self.below(30) {
            text.push_str(parts[self.below(parts.len())]);
        }
        text
    }
}

/// As the file says, or as vocabularies with its pre-tokenizer were trained where it does not; special tokens stay what they are.
#[test]
fn characters_are_composed_where_the_model_was_trained_so() {
    let with = |pre: &str, normalizer: Option<&str>| {
        let mut metadata = Metadata::default();
        let all = small_bpe();
        all.iter().filter(|(key, _)| *key != NORMALIZER).for_each(|(key, value)| metadata.set(key, value.clone()));
        metadata.set(PRE, Value::String(pre.into()));
        normalizer.iter().for_each(|name| metadata.set(NORMALIZER, Value::String((*name).into())));
        Tokenizer::from_metadata(&metadata, None)
    };
    let (apart, composed) = ("e\u{301}a \u{1112}\u{1161}\u{11ab}", "\u{e9}a \u{d55c}");
    for (pre, normalizer, composes) in [
        ("qwen2", None, true),
        ("qwen35", None, true),
        ("gpt-2", None, false),
        ("gpt-2", Some("nfc"), true),
        ("qwen2", Some("none"), false),
    ] {
        let tokenizer = with(pre, normalizer).unwrap();
        let ids = |text: &str| tokenizer.encode(text, Special::Parse, Bos::Omit);
        assert_eq!(ids(apart) == ids(composed), composes, "{pre} {normalizer:?}");
        let read = tokenizer.decode(&ids(apart), Control::Show).unwrap();
        assert_eq!(read, if composes { composed } else { apart }, "{pre} {normalizer:?}");
    }
    let error = with("qwen2", Some("nfkc")).unwrap_err().to_string();
    assert!(error.contains("tokenizer.kvas.normalizer") && error.contains("\"nfkc\", expected \"nfc\""), "{error}");
}

/// As the library `tokenizers` 0.22 cuts these texts when the tokens have such flags.
#[test]
fn tokens_take_the_white_space_that_is_theirs_and_are_none_inside_words() {
    let (end, start, stop) = ("<|endoftext|>", "<|im_start|>", "<|im_end|>");
    let mut metadata = small_bpe();
    for (at, flag) in ["lstrip", "rstrip", "single_word"].into_iter().enumerate() {
        metadata.set(format!("tokenizer.kvas.{flag}"), Value::U32s(vec![at as u32]));
    }
    let tokenizer = Tokenizer::from_metadata(&metadata, None).unwrap();
    let cases: [(String, &[&str]); 8] = [
        (format!("x  {end}  y"), &["x", "0", "  y"]),
        (format!("x \n{start} \t\u{3000}y"), &["x \n", "1", "y"]),
        (format!("{start}  {end}"), &["1", "0"]),
        (format!(" {start} {start} {end} {end} "), &[" ", "1", "1", "0", "0", " "]),
        (
            format!("x{stop} {stop}y {stop} _{stop} -{stop}. é{stop}"),
            &["x<|im_end|> <|im_end|>y ", "2", " _<|im_end|> -", "2", ". é<|im_end|>"],
        ),
        (format!("{end}{start}{stop}"), &["0", "1", "2"]),
        (format!("1{stop}"), &["1<|im_end|>"]),
        (format!("{stop}{stop}"), &["2", "2"]),
    ];
    for (text, expected) in cases {
        let found: Vec<String> = tokenizer
            .split(&text, Special::Parse)
            .into_iter()
            .map(|fragment| match fragment {
                Fragment::Token(id) => id.to_string(),
                Fragment::Text(text) => text.into(),
            })
            .collect();
        assert_eq!(found, expected, "{text:?}");
    }
    metadata.set("tokenizer.kvas.lstrip", Value::U32s(vec![700]));
    let error = Tokenizer::from_metadata(&metadata, None).unwrap_err().to_string();
    assert!(
        error.contains("tokenizer.kvas.lstrip") && error.contains("700 is in it, expected ids below 700"),
        "{error}"
    );
}

#[test]
fn random_text_comes_back_and_random_ids_never_panic() {
    let mut random = Random(1);
    for tokenizer in [build(&small_spm()), build(&small_bpe())] {
        for _ in 0..2000 {
            let text = random.text();
            let special = [Special::Parse, Special::Literal][random.below(2)];
            let ids = tokenizer.encode(&text, special, Bos::Omit);
            let expected = if tokenizer.space == AddedSpace::Always { text.replace('▁', " ") } else { text };
            assert_eq!(tokenizer.decode(&ids, Control::Show).unwrap(), expected);
            let ids: Vec<u32> = (0..20).map(|_| random.below(tokenizer.vocab() + 2) as u32).collect();
            let in_range = ids.iter().all(|&id| (id as usize) < tokenizer.vocab());
            assert_eq!(tokenizer.decode(&ids, Control::Hide).is_ok(), in_range);
        }
        assert!(tokenizer.piece(u32::MAX, Control::Show).is_err() && tokenizer.token_text(u32::MAX).is_err());
    }
}

#[test]
fn long_runs_take_linear_time() {
    for metadata in [small_spm(), small_bpe()] {
        let tokenizer = build(&metadata);
        for run in ["a", "A", " ", "\n", "1", "=", "é", "ab", " \t"] {
            let time = |bytes: usize| {
                let text = run.repeat(bytes / run.len());
                let start = Instant::now();
                let ids = tokenizer.encode(&text, Special::Parse, Bos::Omit);
                let took = start.elapsed();
                assert_eq!(tokenizer.decode(&ids, Control::Show).unwrap(), text);
                took
            };
            let (short, long) = (time(1 << 16).min(time(1 << 16)), time(1 << 20).min(time(1 << 20)));
            // Sixteen times the text: 16 times the work, and some for memory; quadratic would be 256 times.
            let limit = short * 80 + Duration::from_millis(50);
            assert!(long < limit, "{run:?}: 64 KiB in {short:?}, 1 MiB in {long:?}");
        }
    }
}

#[test]
#[ignore = "prints speeds; run with --ignored --nocapture"]
fn speed() {
    let Some(text) = shared("text/wikitext2.test.txt").map(|path| std::fs::read_to_string(path).unwrap()) else {
        return;
    };
    for name in ["deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "qwen2", "qwen35"] {
        let file = GgufFile::open(&shared(&format!("vocab/ggml-vocab-{name}.gguf")).unwrap()).unwrap();
        let start = Instant::now();
        let tokenizer = build(file.metadata());
        let loaded = start.elapsed();
        let rate = |text: &str| {
            let start = Instant::now();
            let ids = tokenizer.encode(text, Special::Literal, Bos::Omit);
            assert_eq!(tokenizer.decode(&ids, Control::Show).unwrap(), text);
            text.len() as f64 / 1e6 / start.elapsed().as_secs_f64()
        };
        let (first, again) = (rate(&text), rate(&text));
        eprintln!("{name}: loads in {loaded:?}; encodes and decodes {first:.1} MB/s, again {again:.1} MB/s");
        for run in ["a", " ", "=", "中", "us"] {
            eprintln!("  1 MiB of {run:?}: {:.1} MB/s", rate(&run.repeat((1 << 20) / run.len())));
        }
    }
}
