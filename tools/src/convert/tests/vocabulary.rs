//! Tokenizers in all the forms that checkpoints have them in.

use super::*;

fn strings(file: &GgufFile, key: &str) -> Vec<String> {
    file.metadata().strings_opt(key).unwrap().unwrap().to_vec()
}

fn kinds(file: &GgufFile) -> Vec<i32> {
    match file.metadata().get("tokenizer.ggml.token_type") {
        Some(Value::I32s(kinds)) => kinds.clone(),
        other => panic!("{other:?}"),
    }
}

fn flag(file: &GgufFile, key: &str) -> Option<bool> {
    file.metadata().bool_opt(&format!("tokenizer.ggml.{key}")).unwrap()
}

fn remove(fixture: &Fixture, name: &str) {
    std::fs::remove_file(fixture.path(name)).unwrap();
}

#[test]
fn byte_level_bpe_has_kinds_merges_and_padding() {
    let fixture = llama();
    let file = fixture.f32();
    assert_eq!(file.metadata().string("tokenizer.ggml.model").unwrap(), "gpt2");
    assert_eq!(file.metadata().string("tokenizer.ggml.pre").unwrap(), "qwen2");
    let tokens = strings(&file, "tokenizer.ggml.tokens");
    assert_eq!(tokens, ["a", "b", "c", "Ġ", "ab", "Ġa", "abc", "d", "<|end|>", "<think>", "<|tool|>", "[PAD11]"]);
    assert_eq!(kinds(&file), [1, 1, 1, 1, 1, 1, 1, 1, 3, 4, 3, 5]);
    let merges = strings(&file, "tokenizer.ggml.merges");
    assert_eq!(merges, ["a b", "Ġ a", "ab c"]);
    assert!(file.metadata().get("tokenizer.ggml.scores").is_none());
    let normalizer =
        |file: &GgufFile| file.metadata().string_opt("tokenizer.kvas.normalizer").unwrap().map(str::to_string);
    // As readers take it to be.
    assert_eq!(normalizer(&file), None);
    assert_eq!(flag(&file, "add_bos_token"), None);
    let mut pairs = tokenizer();
    pairs["model"]["merges"] = json!([["a", "b"], ["Ġ", "a"], ["ab", "c"]]);
    pairs["normalizer"] = Json::Null;
    fixture.write("tokenizer.json", &pairs.to_string());
    let file = fixture.f32();
    assert_eq!(strings(&file, "tokenizer.ggml.merges"), merges);
    assert_eq!(normalizer(&file).as_deref(), Some("none"));
}

#[test]
fn what_added_tokens_take_of_the_text_around_them_is_written() {
    let fixture = llama();
    let ids = |flag: &str| fixture.f32().metadata().uints_opt(&format!("tokenizer.kvas.{flag}")).unwrap();
    assert_eq!(["lstrip", "rstrip", "single_word"].map(ids), [None, None, None]);
    let mut flagged = tokenizer();
    let added = flagged["added_tokens"].as_array_mut().unwrap();
    added.iter_mut().for_each(|token| token["rstrip"] = json!(true));
    added[1]["lstrip"] = json!(true);
    let (all, second) = (added.iter().map(|token| token["id"].as_u64().unwrap()).collect(), &added[1]["id"]);
    let second = vec![second.as_u64().unwrap()];
    fixture.write("tokenizer.json", &flagged.to_string());
    assert_eq!(["lstrip", "rstrip", "single_word"].map(ids), [Some(second), Some(all), None]);
}

#[test]
fn an_unknown_pre_tokenizer_needs_a_name() {
    let fixture = llama();
    let mut odd = tokenizer();
    odd["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(r"\w+");
    fixture.write("tokenizer.json", &odd.to_string());
    let error = fixture.error(&of(Quant::F32));
    assert!(error.contains(r"unknown pre-tokenizer \w+ then bytes") && error.contains("--pre NAME"), "{error}");
    let options = ConvertOptions { pre: Some("gpt-2".into()), ..of(Quant::F32) };
    let file = fixture.convert(&options).unwrap();
    assert_eq!(file.metadata().string("tokenizer.ggml.pre").unwrap(), "gpt-2");
}

#[test]
fn faults_of_tokenizer_json_are_named() {
    let fixture = llama();
    let error = |change: fn(&mut Json)| {
        let mut changed = tokenizer();
        change(&mut changed);
        fixture.write("tokenizer.json", &changed.to_string());
        fixture.error(&of(Quant::F32))
    };
    let range = error(|json| json["model"]["vocab"]["z"] = json!(12));
    assert_eq!(range, "tokenizer.json: token \"z\" has the id 12, expected one below vocab_size 12");
    let twice = error(|json| json["model"]["vocab"]["z"] = json!(3));
    assert!(twice.contains("\"z\"") && twice.ends_with("have the id 3, expected one of them"), "{twice}");
    let added = error(|json| json["added_tokens"][1]["id"] = json!(1_000_000_000_000u64));
    assert!(added.contains("token \"<think>\" has the id 1000000000000"), "{added}");
    let merge = error(|json| json["model"]["merges"][1] = json!("a x"));
    assert_eq!(merge, "tokenizer.json: model.merges[1] = \"a x\", but \"x\" is not in model.vocab");
    let form = error(|json| json["model"]["merges"][1] = json!(["a"]));
    assert!(form.contains("model.merges[1] = [\"a\"], expected \"a b\" or [\"a\", \"b\"]"), "{form}");
    let id = error(|json| json["model"]["vocab"]["a"] = json!(-1));
    assert!(id.contains("token \"a\" has the id -1, expected a whole number"), "{id}");
    let missing = error(|json| json["model"]["vocab"] = Json::Null);
    assert!(missing.contains("model.vocab is missing"), "{missing}");
    let unigram = error(|json| json["model"]["type"] = json!("Unigram"));
    assert!(unigram.contains("the model is Unigram, expected a byte-level BPE"), "{unigram}");
}

/// A reader would take neither two tokens of one text nor merges of a token that is gone.
#[test]
fn added_tokens_with_the_id_or_the_text_of_another_are_refused() {
    let fixture = llama();
    let error = |key: &str, value: Json| {
        let mut changed = tokenizer();
        changed["added_tokens"][1][key] = value;
        fixture.write("tokenizer.json", &changed.to_string());
        fixture.error(&of(Quant::F32))
    };
    let at = "tokenizer.json: added_tokens: token";
    let expected = "has the id 4, expected one of its own: \"ab\" has it";
    assert_eq!(error("id", json!(4)), format!("{at} \"<think>\" {expected}"));
    let expected = "has the id 8, expected one of its own: \"<|end|>\" has it";
    assert_eq!(error("id", json!(8)), format!("{at} \"<think>\" {expected}"));
    for (text, id) in [("ab", 4), ("<|end|>", 8)] {
        let expected = format!("{at} {text:?} has the id 9, expected {id}, which it has already");
        assert_eq!(error("content", json!(text)), expected);
    }
    // What the vocabulary has itself may be listed once more.
    let mut changed = tokenizer();
    changed["added_tokens"].as_array_mut().unwrap().push(json!({"id": 4, "content": "ab", "special": false}));
    fixture.write("tokenizer.json", &changed.to_string());
    assert_eq!(kinds(&fixture.f32())[4], 4);
    remove(&fixture, "tokenizer.json");
    std::fs::write(fixture.path("tokenizer.model"), sentencepiece(2, 1)).unwrap();
    let settings = |id: u32, text: &str| {
        let added = json!({"added_tokens_decoder": {id.to_string(): {"content": text}}});
        fixture.write("tokenizer_config.json", &added.to_string());
    };
    settings(7, "a");
    let expected =
        "tokenizer_config.json: added_tokens_decoder: token \"a\" has the id 7, expected 5, which it has already";
    assert_eq!(fixture.error(&of(Quant::F32)), expected);
    // Pieces that a model was not trained with are given names this way.
    settings(5, "<tool>");
    assert_eq!(strings(&fixture.f32(), "tokenizer.ggml.tokens")[5], "<tool>");
}

#[test]
fn special_tokens_come_from_the_first_file_that_names_them() {
    let fixture = llama();
    fixture.write("generation_config.json", r#"{"pad_token_id": 7, "eos_token_id": 1, "bos_token_id": -1}"#);
    let file = fixture.f32();
    assert_eq!((uint(&file, "tokenizer.ggml.eos_token_id"), uint(&file, "tokenizer.ggml.padding_token_id")), (8, 7));
    assert!(file.metadata().get("tokenizer.ggml.bos_token_id").is_none());
    fixture.write(
        "tokenizer_config.json",
        r#"{"eos_token": {"content": "<think>"}, "bos_token": "a", "add_bos_token": true, "unk_token": null}"#,
    );
    let file = fixture.f32();
    assert_eq!((uint(&file, "tokenizer.ggml.eos_token_id"), uint(&file, "tokenizer.ggml.bos_token_id")), (9, 0));
    assert_eq!(flag(&file, "add_bos_token"), Some(true));
    assert!(file.metadata().get("tokenizer.ggml.unknown_token_id").is_none());
    let mut fixture = llama();
    fixture.config["eos_token_id"] = json!([5, 8]);
    assert_eq!(uint(&fixture.f32(), "tokenizer.ggml.eos_token_id"), 5);
    fixture.config["eos_token_id"] = json!(12);
    let error = fixture.error(&of(Quant::F32));
    assert_eq!(error, "config.json: eos_token_id = 12, expected an id below vocab_size 12");
}

/// Also where another file names the token, so that nobody would ask.
#[test]
fn special_tokens_of_other_kinds_are_refused() {
    let mut fixture = llama();
    fixture.config["eos_token_id"] = Json::Null;
    let refused = |fixture: &Fixture, file: &str, text: &str| {
        fixture.write(file, text);
        let error = fixture.error(&of(Quant::F32));
        remove(fixture, file);
        error
    };
    let settings = "tokenizer_config.json";
    for (text, expected) in [
        (r#"{"eos_token": "<none>"}"#, r#"eos_token = "<none>", expected a token of the vocabulary"#),
        (r#"{"eos_token": 8}"#, "eos_token is a number, expected a text or an object with its content"),
        (r#"{"bos_token": {"text": "a"}}"#, "bos_token is an object, expected a text or an object with its content"),
        (r#"{"bos_token": "a", "add_bos_token": "no"}"#, "add_bos_token is a text, expected true or false"),
        ("[1]", "a list, expected an object"),
    ] {
        assert_eq!(refused(&fixture, settings, text), format!("{settings}: {expected}"));
    }
    fixture.config["eos_token_id"] = json!(8);
    let generation = "generation_config.json";
    for text in [r#""<|end|>""#, r#"[8,"9"]"#, "[[8]]", "8.5", "true", "{}"] {
        let error = refused(&fixture, generation, &format!(r#"{{"eos_token_id": {text}}}"#));
        assert_eq!(error, format!("{generation}: eos_token_id = {text}, expected the id of a token or a list of ids"));
    }
    // What is no token is of no use, and does no harm where the id is said.
    fixture.write(settings, r#"{"eos_token": "<none>", "pad_token": "[PAD]"}"#);
    assert_eq!(uint(&fixture.f32(), "tokenizer.ggml.eos_token_id"), 8);
    fixture.config["tie_word_embeddings"] = json!(2);
    let error = fixture.error(&of(Quant::F32));
    assert_eq!(error, "config.json: tie_word_embeddings is a number, expected true or false");
}

#[test]
fn further_tokens_that_end_an_answer_are_named() {
    let fixture = llama();
    fixture.write("tokenizer_config.json", r#"{"eos_token": "<think>"}"#);
    let ends = |ids: &str| {
        fixture.write("generation_config.json", &format!(r#"{{"eos_token_id": {ids}}}"#));
        let file = fixture.f32();
        let key = |key: &str| file.metadata().uint_opt(&format!("tokenizer.ggml.{key}_token_id")).unwrap();
        assert_eq!(key("eos"), Some(9));
        (key("eot"), key("eom"))
    };
    assert_eq!(ends("[9, 4, 2]"), (Some(4), Some(2)));
    assert_eq!(ends("3"), (Some(3), None));
    // Readers know the text of the token 8, and there is no token 12.
    assert_eq!(ends("[8, 12, -1]"), (None, None));
}

#[test]
fn a_template_of_tokens_says_whether_bos_is_added() {
    let fixture = llama();
    fixture.write("tokenizer_config.json", r#"{"bos_token": "<|end|>"}"#);
    let mut templated = tokenizer();
    templated["post_processor"] = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel"},
        {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}]});
    fixture.write("tokenizer.json", &templated.to_string());
    let file = fixture.f32();
    assert_eq!((flag(&file, "add_bos_token"), flag(&file, "add_eos_token")), (Some(true), None));
    // Readers add BOS for this pre-tokenizer unless they are told not to.
    let options = ConvertOptions { pre: Some("llama-bpe".into()), ..of(Quant::F32) };
    fixture.write("tokenizer.json", &tokenizer().to_string());
    assert_eq!(flag(&fixture.convert(&options).unwrap(), "add_bos_token"), Some(false));
}

#[test]
fn chat_templates_come_from_a_file_or_the_settings() {
    let fixture = llama();
    fixture.write("tokenizer_config.json", r#"{"chat_template": "inside"}"#);
    let template = |file: &GgufFile| file.metadata().string("tokenizer.chat_template").unwrap().to_string();
    assert_eq!(template(&fixture.f32()), "inside");
    fixture.write("chat_template.jinja", "{{ file }}\n");
    std::fs::create_dir(fixture.path("additional_chat_templates")).unwrap();
    fixture.write("additional_chat_templates/tool-use.jinja", "tools");
    let file = fixture.f32();
    assert_eq!(template(&file), "{{ file }}\n");
    assert_eq!(file.metadata().string("tokenizer.chat_template.tool_use").unwrap(), "tools");
    assert_eq!(strings(&file, "tokenizer.chat_templates"), ["tool_use"]);
    remove(&fixture, "chat_template.jinja");
    let list = json!({"chat_template": [
        {"name": "default", "template": "one"}, {"name": "rag", "template": "two"}]});
    fixture.write("tokenizer_config.json", &list.to_string());
    let file = fixture.f32();
    assert_eq!(template(&file), "one");
    assert_eq!(file.metadata().string("tokenizer.chat_template.rag").unwrap(), "two");
    for (list, expected) in [
        (json!([]), "chat_template has [], expected one of the name \"default\""),
        (
            json!([{"name": "a", "template": "1"}, {"name": "b", "template": "2"}]),
            "chat_template has [\"a\", \"b\"], expected",
        ),
        (json!([{"name": "default", "template": "1"}, {"name": "default", "template": "2"}]), "has two of the name"),
        (json!([{"name": "x", "template": 1}]), "expected a name and a template in each entry"),
        (
            json!([{"name": "default", "template": "1"}, {"name": "a b", "template": "2"}, {"name": "A-B", "template": "3"}]),
            "chat_template: two are named a_b, expected names that differ",
        ),
    ] {
        fixture.write("tokenizer_config.json", &json!({"chat_template": list}).to_string());
        let error = fixture.error(&of(Quant::F32));
        assert!(error.contains(expected), "{error}");
    }
    fixture.write("tokenizer_config.json", r#"{"chat_template": [{"name": "chat", "template": "only"}]}"#);
    assert_eq!(template(&fixture.f32()), "only");
    fixture.write("tokenizer_config.json", r#"{"chat_template": 7}"#);
    assert!(fixture.error(&of(Quant::F32)).contains("chat_template, expected a text or a list"));
}

/// A protobuf field with a length.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2, bytes.len() as u8];
    out.extend_from_slice(bytes);
    out
}

fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let mut inner = field(1, text.as_bytes());
    inner.push(2 << 3 | 5);
    inner.extend_from_slice(&score.to_le_bytes());
    inner.extend_from_slice(&[3 << 3, kind]);
    field(1, &inner)
}

/// A SentencePiece model of the given type, with a dummy prefix or without.
fn sentencepiece(model_type: u8, prefix: u8) -> Vec<u8> {
    let pieces = [
        piece("<unk>", 0.0, 2),
        piece("<s>", 0.0, 3),
        piece("</s>", 0.0, 3),
        piece("<0x0A>", 0.0, 6),
        piece("\u{2581}a", -1.5, 1),
        piece("a", -2.5, 1),
    ];
    let mut bytes = pieces.concat();
    bytes.extend(field(2, &[3 << 3, model_type]));
    bytes.extend(field(3, &[3 << 3, prefix, 4 << 3, 0]));
    bytes
}

#[test]
fn a_sentencepiece_model_keeps_scores_and_kinds() {
    let fixture = llama();
    remove(&fixture, "tokenizer.json");
    std::fs::write(fixture.path("tokenizer.model"), sentencepiece(2, 1)).unwrap();
    fixture.write(
        "tokenizer_config.json",
        r#"{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "added_tokens_decoder": {
            "0": {"content": "<unk>", "special": true}, "6": {"content": "<tool>", "special": true},
            "7": {"content": "x▁y", "special": false}}}"#,
    );
    fixture.write("added_tokens.json", r#"{"<extra>": 8}"#);
    let file = fixture.f32();
    assert_eq!(file.metadata().string("tokenizer.ggml.model").unwrap(), "llama");
    let tokens = strings(&file, "tokenizer.ggml.tokens");
    assert_eq!(tokens[..10], ["<unk>", "<s>", "</s>", "<0x0A>", "▁a", "a", "<tool>", "x y", "<extra>", "[PAD9]"]);
    assert_eq!(kinds(&file), [2, 3, 3, 6, 1, 1, 3, 4, 4, 5, 5, 5]);
    let scores = file.metadata().floats_opt("tokenizer.ggml.scores").unwrap().unwrap();
    assert_eq!(scores[..10], [0.0, 0.0, 0.0, 0.0, -1.5, -2.5, -1000.0, -1000.0, -1000.0, -10_000.0]);
    assert_eq!((uint(&file, "tokenizer.ggml.bos_token_id"), uint(&file, "tokenizer.ggml.unknown_token_id")), (1, 0));
    assert_eq!((flag(&file, "add_bos_token"), flag(&file, "add_space_prefix")), (Some(true), Some(true)));
    std::fs::write(fixture.path("tokenizer.model"), sentencepiece(2, 0)).unwrap();
    assert_eq!(flag(&fixture.f32(), "add_space_prefix"), Some(false));
    for says in [true, false] {
        fixture.write("tokenizer_config.json", &json!({"add_prefix_space": says}).to_string());
        for prefix in [0, 1] {
            std::fs::write(fixture.path("tokenizer.model"), sentencepiece(2, prefix)).unwrap();
            assert_eq!(flag(&fixture.f32(), "add_space_prefix"), Some(says));
        }
    }
    std::fs::write(fixture.path("tokenizer.model"), sentencepiece(1, 1)).unwrap();
    let error = fixture.error(&of(Quant::F32));
    assert_eq!(error, "tokenizer.model: trainer_spec.model_type = 1, expected 2 (BPE)");
    // Spaces behind words instead of in front.
    let behind = [sentencepiece(2, 1), field(2, &[0xc0, 1, 1])].concat();
    std::fs::write(fixture.path("tokenizer.model"), behind).unwrap();
    let error = fixture.error(&of(Quant::F32));
    assert_eq!(error, "tokenizer.model: trainer_spec.treat_whitespace_as_suffix = 1, expected 0");
}

/// What is done to texts before they are split has no place in a file: other tokens would come of them.
#[test]
fn a_sentencepiece_model_that_changes_texts_is_refused() {
    let fixture = llama();
    let spm = std::fs::read_to_string(fixture.path("tokenizer.json")).unwrap();
    remove(&fixture, "tokenizer.json");
    let model = |normalizer: &[u8]| {
        std::fs::write(fixture.path("tokenizer.model"), [sentencepiece(2, 1), field(3, normalizer)].concat()).unwrap();
        fixture.error(&of(Quant::F32))
    };
    let error = model(&[2 << 3 | 2, 3, b'a', 0, b'b', 4 << 3, 0]);
    assert_eq!(
        error,
        "tokenizer.model: normalizer_spec.precompiled_charsmap has 3 bytes, expected a model that leaves texts as they are"
    );
    // That is so unless the model says otherwise.
    for normalizer in [&[4 << 3, 1][..], &[3 << 3, 1]] {
        let error = model(normalizer);
        assert_eq!(
            error,
            "tokenizer.model: normalizer_spec.remove_extra_whitespaces = true, expected a model that leaves texts as they are"
        );
    }
    let mut spm: Json = serde_json::from_str(&spm).unwrap();
    spm["model"]["byte_fallback"] = json!(true);
    spm["pre_tokenizer"] = Json::Null;
    let known = [
        json!({"type": "Prepend", "prepend": "▁"}),
        json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
    ];
    for (last, refused) in [
        (None, None),
        (Some(json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})), Some("\"Precompiled\"")),
        (Some(json!({"type": "NFKC"})), Some("\"NFKC\"")),
        (Some(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"})), Some("\"Replace\"")),
        (Some(json!({"type": "Prepend", "prepend": " "})), Some("\"Prepend\"")),
    ] {
        spm["normalizer"] =
            json!({"type": "Sequence", "normalizers": known.iter().cloned().chain(last).collect::<Json>()});
        fixture.write("tokenizer.json", &spm.to_string());
        for beside in [true, false] {
            if !beside {
                remove(&fixture, "tokenizer.model");
            }
            match refused {
                None => drop(fixture.f32()),
                Some(kind) => {
                    let expected = "expected Prepend of \"▁\" and Replace of a space by it";
                    let error = fixture.error(&of(Quant::F32));
                    assert_eq!(error, format!("tokenizer.json: normalizer {kind}, {expected}"));
                }
            }
            if !beside {
                std::fs::write(fixture.path("tokenizer.model"), sentencepiece(2, 1)).unwrap();
            }
        }
    }
}

#[test]
fn a_broken_sentencepiece_model_is_refused() {
    let fixture = llama();
    remove(&fixture, "tokenizer.json");
    fixture.save();
    let good = sentencepiece(2, 1);
    // The last field, of six bytes, may be missing.
    for end in 0..good.len() - 6 {
        std::fs::write(fixture.path("tokenizer.model"), &good[..end]).unwrap();
        let Err(error) = plan(fixture.folder.path(), &of(Quant::F32)) else { panic!("cut at {end} of {}", good.len()) };
        assert!(format!("{error:#}").starts_with("tokenizer.model: "), "{error:#}");
    }
}

#[test]
fn a_bpe_with_byte_fallback_gets_scores_from_its_merges() {
    let fixture = llama();
    let spm = json!({
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
        "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "▁": 3, "a": 4, "b": 5, "▁a": 6, "ab": 7},
            "merges": ["▁ a", "a b"]},
    });
    fixture.write("tokenizer.json", &spm.to_string());
    let file = fixture.f32();
    assert_eq!(file.metadata().string("tokenizer.ggml.model").unwrap(), "llama");
    assert_eq!(kinds(&file)[..8], [2, 3, 6, 1, 1, 1, 1, 1]);
    let scores = file.metadata().floats_opt("tokenizer.ggml.scores").unwrap().unwrap();
    assert!(scores[6] > scores[7] && scores[7] > scores[4], "{scores:?}");
    assert_eq!(flag(&file, "add_space_prefix"), Some(true));
    assert!(file.metadata().get("tokenizer.kvas.space_prefix").is_none());
    // The pre-tokenizer puts no space in front of one, or only one where the text begins.
    for (step, adds, kind) in [
        (json!({"type": "Metaspace", "prepend_scheme": "first", "split": false}), true, Some("first")),
        (json!({"type": "Metaspace", "prepend_scheme": "always"}), true, Some("missing")),
        (json!({"type": "Metaspace", "add_prefix_space": true}), true, Some("missing")),
        (json!({"type": "Metaspace", "prepend_scheme": "never"}), false, None),
    ] {
        let mut split = spm.clone();
        split["normalizer"] = Json::Null;
        split["pre_tokenizer"] = step;
        fixture.write("tokenizer.json", &split.to_string());
        let file = fixture.f32();
        assert_eq!(flag(&file, "add_space_prefix"), Some(adds));
        assert_eq!(file.metadata().string_opt("tokenizer.kvas.space_prefix").unwrap(), kind);
    }
    // Whether spaces side by side are merged depends on it.
    for (split, is_read) in [(json!(false), true), (json!(true), false), (Json::Null, false)] {
        let mut spaces = spm.clone();
        spaces["normalizer"] = Json::Null;
        spaces["pre_tokenizer"] = json!({"type": "Metaspace", "prepend_scheme": "first", "split": split});
        spaces["model"]["vocab"]["▁▁"] = json!(8);
        spaces["model"]["merges"] = json!(["▁ ▁", "▁ a", "a b"]);
        fixture.write("tokenizer.json", &spaces.to_string());
        if is_read {
            fixture.f32();
        } else {
            let error = fixture.error(&of(Quant::F32));
            let expected =
                "tokenizer.json: pre_tokenizer.split = true, but token \"▁▁\" goes on behind a space, expected false";
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
