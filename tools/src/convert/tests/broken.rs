//! Every fault of a checkpoint gives one line that names it, and leaves nothing behind.

use super::*;
use std::fmt::Write as _;

fn message(change: impl FnOnce(&mut Fixture)) -> String {
    let mut fixture = llama();
    change(&mut fixture);
    fixture.error(&of(Quant::F32))
}

#[test]
fn missing_wrong_and_extra_tensors_are_named() {
    let name = "model.layers.1.mlp.up_proj.weight";
    let missing = message(|fixture| assert!(fixture.tensors.remove(name).is_some()));
    assert_eq!(missing, format!("tensor {name} is missing from the checkpoint, expected with the shape [6, 8]"));
    let wrong = message(|fixture| fixture.add(name, &[8, 6]));
    assert_eq!(wrong, format!("tensor {name} has the shape [8, 6], expected [6, 8]"));
    let extra = message(|fixture| fixture.add("model.layers.2.input_layernorm.weight", &[8]));
    assert_eq!(extra, "tensor model.layers.2.input_layernorm.weight has no place in a llama file");
    let two = message(|fixture| fixture.add_all("model.extra.", &[("a", &[1]), ("b", &[1])]));
    assert_eq!(two, "tensor model.extra.a (and 1 others) has no place in a llama file");
    let none = message(|fixture| assert!(fixture.tensors.remove("model.embed_tokens.weight").is_some()));
    assert_eq!(none, "tensor model.embed_tokens.weight is missing from the checkpoint");
    let mut untied = llama();
    untied.config["tie_word_embeddings"] = json!(false);
    let untied = untied.error(&of(Quant::F32));
    assert_eq!(untied, "tensor lm_head.weight is missing from the checkpoint, expected with the shape [12, 8]");
}

#[test]
fn what_is_tied_or_computed_may_be_left_out() {
    let mut fixture = llama();
    let embeddings = fixture.tensors["model.embed_tokens.weight"].clone();
    fixture.tensors.insert("lm_head.weight".into(), embeddings);
    fixture.add("model.layers.0.self_attn.rotary_emb.inv_freq", &[2]);
    fixture.save();
    let plan = plan(fixture.folder.path(), &of(Quant::F32)).unwrap();
    assert_eq!(plan.ignored, ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"]);
    assert!(plan.tensors.iter().all(|tensor| tensor.name != "output.weight"));
    // Without the setting, the tensor decides.
    fixture.config["tie_word_embeddings"] = Json::Null;
    assert!(fixture.f32().tensor("output.weight").is_some());
    fixture.tensors.remove("lm_head.weight");
    assert!(fixture.f32().tensor("output.weight").is_none());
}

/// The classes of these models do not tie, whatever their settings say.
#[test]
fn nemotron_and_kimi_keep_a_head_of_their_own() {
    for name in ["nemotron_h", "kimi-linear"] {
        let mut fixture = Fixture::golden(name);
        fixture.config["tie_word_embeddings"] = json!(true);
        assert_eq!(super::numbers(&fixture.f32(), "output.weight"), fixture.numbers("lm_head.weight"), "{name}");
        fixture.tensors.remove("lm_head.weight");
        assert!(fixture.f32().tensor("output.weight").is_none(), "{name}");
        fixture.config["tie_word_embeddings"] = json!(false);
        assert!(fixture.error(&of(Quant::F32)).contains("lm_head.weight is missing"), "{name}");
    }
}

#[test]
fn numbers_that_do_not_fit_are_found() {
    let name = "model.layers.0.mlp.gate_proj.weight";
    for (number, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let error = message(|fixture| fixture.tensors.get_mut(name).unwrap().numbers[9] = number);
        assert_eq!(error, format!("tensor blk.0.ffn_gate.weight, row 1: number 1 is {text}, expected a finite one"));
    }
    let mut fixture = llama();
    fixture.tensors.get_mut(name).unwrap().numbers[0] = -70_000.0;
    let error = fixture.error(&of(Quant::F16));
    assert!(error.starts_with("tensor blk.0.ffn_gate.weight, row 0: number 0 is -70000, which F16 cannot"), "{error}");
    assert!(fixture.convert(&of(Quant::Bf16)).is_ok());
    let files = std::fs::read_dir(fixture.folder.path()).unwrap().count();
    assert_eq!(files, 4, "config, tensors, tokenizer and the one good file");
    let mut fixture = llama();
    fixture.tensors.get_mut(name).unwrap().dtype = Dtype::I32;
    assert_eq!(
        fixture.error(&of(Quant::F32)),
        format!("tensor {name} is I32, expected F32, F16, BF16, F8_E4M3, MXFP4, NVFP4 or integers with scales")
    );
    let error = fixture.error(&of(Quant::Iq1S));
    assert_eq!(error, "type IQ1_S: tensors cannot be converted to it");
}

#[test]
fn settings_that_cannot_be_carried_are_refused() {
    let set = |key: &'static str, value: Json| message(move |fixture| fixture.config[key] = value);
    for (key, value, expected) in [
        ("architectures", json!(["GPT2LMHeadModel"]), "architectures = [\"GPT2LMHeadModel\"], expected one of Llama"),
        ("architectures", Json::Null, "architectures = [], expected one of"),
        ("hidden_act", json!("gelu"), "hidden_act = \"gelu\", expected \"silu\" or \"swish\""),
        ("quantization_config", json!({"quant_method": "hqq"}), "quant_method = \"hqq\", expected \"fp8\" or"),
        ("hidden_size", Json::Null, "hidden_size is missing, expected a number"),
        ("hidden_size", json!("8"), "hidden_size is a text, expected a number"),
        ("hidden_size", json!(8.5), "hidden_size = 8.5, expected a whole number"),
        ("hidden_size", json!(0), "hidden_size = 0: token_embd.weight would have the shape [12, 0], expected no 0"),
        ("intermediate_size", json!(0), "intermediate_size = 0: blk.0.ffn_gate.weight would have the shape [0, 8]"),
        ("num_hidden_layers", json!(0), "num_hidden_layers = 0: layers = 0, expected 1 to 10000"),
        ("num_hidden_layers", json!(1e9), "num_hidden_layers = 1000000000: layers = 1000000000, expected 1 to 10000"),
        ("num_hidden_layers", json!(-1), "num_hidden_layers = -1, expected a whole number"),
        ("num_attention_heads", json!(0), "num_attention_heads = 0: width/heads is not a finite number"),
        (
            "rope_scaling",
            json!({"type": "longrope"}),
            "rope_scaling.type = \"longrope\", expected default, linear, yarn or llama3",
        ),
        (
            "rope_scaling",
            json!({"type": "llama3", "factor": 0}),
            "rope_parameters of llama3, expected positive numbers",
        ),
        ("max_position_embeddings", json!(1e10), "max_position_embeddings = 10000000000, expected 1 to 2147483647"),
        ("max_position_embeddings", json!(0), "max_position_embeddings = 0, expected 1 to 2147483647"),
        ("rms_norm_eps", json!(-1), "rms_norm_eps = -1, expected a positive number of 32 bits"),
        ("rms_norm_eps", json!(1e99), "rms_norm_eps = 1"),
        ("rope_theta", json!(0), "rope_theta = 0, expected a positive number of 32 bits"),
        ("mlp_bias", json!(true), "mlp_bias = true, expected false"),
        ("is_causal", json!(false), "is_causal = false, expected true"),
    ] {
        let error = set(key, value);
        assert!(error.starts_with("config.json: ") && error.contains(expected), "{error}");
    }
    let mut experts = qwen3next();
    for used in [0, EXPERTS + 1] {
        experts.config["num_experts_per_tok"] = json!(used);
        let error = experts.error(&of(Quant::F32));
        assert_eq!(error, format!("config.json: num_experts_per_tok = {used}, expected 1 to {EXPERTS}"));
    }
    let mut hybrid = qwen35("model.");
    for (key, value, expected) in [
        ("layer_types", json!(["full_attention"]), "layer_types has 1 entries, expected one for each of the 2 layers"),
        ("layer_types", json!(["full_attention", "mamba"]), "layer_types[1] = \"mamba\", expected linear_attention or"),
        ("rope_parameters", json!({"rope_type": "llama3"}), "expected default, linear, yarn"),
        (
            "rope_parameters",
            json!({"partial_rotary_factor": 0.5, "mrope_section": [1, "x"]}),
            "mrope_section = [1,\"x\"], expected up to four",
        ),
    ] {
        let before = std::mem::replace(&mut hybrid.config[key], value);
        let error = hybrid.error(&of(Quant::F32));
        assert!(error.starts_with("config.json: ") && error.contains(expected), "{error}");
        hybrid.config[key] = before;
    }
}

/// Readers of files rotate pairs of columns, at least one and no more than a head has.
#[test]
fn columns_to_rotate_that_a_head_has_not_are_refused() {
    let mut hybrid = qwen35("model.");
    let path = "rope_parameters.partial_rotary_factor";
    for (factor, expected) in [
        (0.0, format!("{path} = 0: 0 columns")),
        (3.0, format!("head_dim = 4, {path} = 3: 12 columns")),
        (0.25, format!("head_dim = 4, {path} = 0.25: 1 columns")),
    ] {
        hybrid.config["rope_parameters"]["partial_rotary_factor"] = json!(factor);
        let error = hybrid.error(&of(Quant::F32));
        let limits = "of a head are rotated, expected an even number from 2 to 4";
        assert_eq!(error, format!("config.json: {expected} {limits}"));
    }
    hybrid.config["rope_parameters"]["partial_rotary_factor"] = json!(1);
    assert_eq!(uint(&hybrid.f32(), "qwen35.rope.dimension_count"), 4);
}

#[test]
fn missing_files_are_named() {
    let fixture = llama();
    let options = of(Quant::F32);
    let message = || format!("{:#}", plan(fixture.folder.path(), &options).unwrap_err());
    assert!(message().ends_with("expected model.safetensors or model.safetensors.index.json in it"), "{}", message());
    let (part, index) = ("model-00002-of-00003.safetensors", "model.safetensors.index.json");
    fixture.write(part, "");
    assert!(message().contains(&format!("expected {index} beside {part}")), "{}", message());
    fixture.write_tensors("model.safetensors", |_| true);
    assert!(message().ends_with("expected config.json in it"), "{}", message());
    fixture.write("config.json", "{");
    assert!(message().starts_with("config.json: not valid JSON"), "{}", message());
    fixture.save();
    std::fs::remove_file(fixture.path("tokenizer.json")).unwrap();
    assert!(message().ends_with("expected tokenizer.json or tokenizer.model in it"), "{}", message());
    let nowhere = plan(&fixture.path("nowhere"), &options).unwrap_err().to_string();
    assert!(nowhere.ends_with("expected the folder of a checkpoint"), "{nowhere}");
    let mut text = String::new();
    write!(text, "{:?}", ConvertOptions::default()).unwrap();
    assert!(text.contains("Bf16"));
}

/// A small generator of numbers, so that the tests need no crate for it.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn hostile_settings_never_panic() {
    let extremes = [
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(0.5),
        json!(1e15),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(true),
        json!("x"),
        json!([]),
        json!([1, 2]),
        json!({}),
        Json::Null,
    ];
    let mut random = Random(1);
    let goldens = ["falcon-h1", "granitehybrid-moe", "jamba", "kimi-linear", "lfm2moe", "nemotron_h_moe"];
    let made = [llama(), qwen35("model."), qwen3next()];
    for mut fixture in made.into_iter().chain(goldens.map(Fixture::golden)) {
        fixture.save();
        let good = fixture.config.clone();
        let keys: Vec<String> = good.as_object().unwrap().keys().cloned().collect();
        let mut accepted = 0;
        for _ in 0..800 {
            fixture.config = good.clone();
            for _ in 0..1 + random.below(2) {
                let value = extremes[random.below(extremes.len())].clone();
                fixture.config[&keys[random.below(keys.len())]] = value;
            }
            fixture.write("config.json", &fixture.config.to_string());
            accepted += usize::from(plan(fixture.folder.path(), &of(Quant::F32)).is_ok());
        }
        assert!(accepted > 10, "the changes are too wild to get far: {accepted}");
    }
}

#[test]
fn damaged_files_never_panic() {
    let mut random = Random(2);
    let fixture = llama();
    fixture.save();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let good = std::fs::read(fixture.path(name)).unwrap();
        for _ in 0..300 {
            let mut bytes = good.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len().min(4000));
                bytes[at] = random.below(256) as u8;
            }
            if random.below(4) == 0 {
                bytes.truncate(random.below(bytes.len()));
            }
            std::fs::write(fixture.path(name), &bytes).unwrap();
            if let Err(error) = convert(fixture.folder.path(), &fixture.out(), &of(Quant::F32)) {
                assert!(!format!("{error:#}").is_empty());
            }
        }
        std::fs::write(fixture.path(name), &good).unwrap();
    }
}
