//! Small checkpoints made up by the tests, and a look into the files they become.

mod broken;
mod families;
mod files;
mod golden;
mod hybrids;
mod lora;
mod lora_experts;
mod mamba;
mod nvfp4;
mod packed;
mod scaled;
mod shared;
mod vocabulary;

use super::*;
use kvas_gguf::{GgufFile, Value};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A tensor of a made-up checkpoint: type, shape, numbers.
#[derive(Clone)]
struct Made {
    dtype: Dtype,
    shape: Vec<usize>,
    numbers: Vec<f32>,
}

/// A checkpoint in a folder of its own, which is removed at the end.
struct Fixture {
    folder: TempDir,
    config: Json,
    tensors: BTreeMap<String, Made>,
}

impl Fixture {
    fn new(config: Json) -> Fixture {
        let fixture = Fixture { folder: tempfile::tempdir().unwrap(), config, tensors: BTreeMap::new() };
        fixture.write("tokenizer.json", &tokenizer().to_string());
        fixture
    }

    /// Adds a tensor of numbers between -1 and 1, all different within it and another set for each name.
    fn add(&mut self, name: &str, shape: &[usize]) {
        let count: usize = shape.iter().product();
        let seed = name.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())) % 1000;
        let number = |at: usize| {
            (at as f32 + seed as f32 / 1000.0) / count as f32 * if at.is_multiple_of(2) { 1.0 } else { -1.0 }
        };
        let numbers = (0..count).map(number).collect();
        self.tensors.insert(name.into(), Made { dtype: Dtype::F32, shape: shape.to_vec(), numbers });
    }

    fn add_all(&mut self, prefix: &str, tensors: &[(&str, &[usize])]) {
        tensors.iter().for_each(|(name, shape)| self.add(&format!("{prefix}{name}"), shape));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Writes one safetensors file of the tensors that `choose` accepts.
    fn write_tensors(&self, file: &str, choose: impl Fn(&str) -> bool) {
        let encode = |made: &Made| -> Vec<u8> {
            let one = |number: &f32| {
                if made.dtype == Dtype::BF16 {
                    half::bf16::from_f32(*number).to_le_bytes().to_vec()
                } else if made.dtype == Dtype::F16 {
                    half::f16::from_f32(*number).to_le_bytes().to_vec()
                } else if made.dtype == Dtype::I8 {
                    vec![*number as i8 as u8]
                } else if made.dtype == Dtype::U8 {
                    vec![*number as u8]
                } else if made.dtype == Dtype::F8_E4M3 {
                    vec![fp8(*number)]
                } else if made.dtype == Dtype::I64 {
                    (*number as i64).to_le_bytes().to_vec()
                } else {
                    number.to_le_bytes().to_vec()
                }
            };
            made.numbers.iter().flat_map(one).collect()
        };
        let chosen = || self.tensors.iter().filter(|(name, _)| choose(name));
        let bytes: Vec<Vec<u8>> = chosen().map(|(_, made)| encode(made)).collect();
        let view = |made: &Made, bytes| TensorView::new(made.dtype, made.shape.clone(), bytes).unwrap();
        let views: Vec<(&String, TensorView<'_>)> =
            chosen().zip(&bytes).map(|((name, made), bytes)| (name, view(made, bytes))).collect();
        safetensors::serialize_to_file(views, None, &self.path(file)).unwrap();
    }

    /// Writes config.json and model.safetensors.
    fn save(&self) {
        self.write("config.json", &self.config.to_string());
        self.write_tensors("model.safetensors", |_| true);
    }

    fn out(&self) -> PathBuf {
        self.path("out.gguf")
    }

    /// Saves, converts and opens.
    fn convert(&self, options: &ConvertOptions) -> Result<GgufFile> {
        self.save();
        convert(self.folder.path(), &self.out(), options)?;
        Ok(GgufFile::open(&self.out())?)
    }

    fn f32(&self) -> GgufFile {
        self.convert(&of(Quant::F32)).unwrap()
    }

    /// The one line a user would see.
    fn error(&self, options: &ConvertOptions) -> String {
        if self.out().exists() {
            std::fs::remove_file(self.out()).unwrap();
        }
        let message = format!("{:#}", self.convert(options).expect_err("the conversion must be refused"));
        assert!(!message.contains('\n'), "{message}");
        assert!(!self.out().exists(), "a file is left behind");
        message
    }

    fn numbers(&self, name: &str) -> &[f32] {
        &self.tensors[name].numbers
    }
}

/// The byte of a number that FP8 has, halves of small whole numbers among them.
fn fp8(number: f32) -> u8 {
    let bits = number.abs().to_bits();
    let size = if bits == 0 { 0 } else { ((bits >> 23) - 120) << 3 | bits >> 20 & 7 };
    size as u8 | if number < 0.0 { 128 } else { 0 }
}

fn of(quant: Quant) -> ConvertOptions {
    ConvertOptions { quant, ..ConvertOptions::default() }
}

fn numbers(file: &GgufFile, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    let mut out = vec![0.0; tensor.elements()];
    tensor.quant.dequantize(&file.data(tensor), &mut out).unwrap();
    out
}

fn shape(file: &GgufFile, name: &str) -> Vec<u64> {
    file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}")).shape.clone()
}

/// Rows of `columns` numbers in another order.
fn rows(numbers: &[f32], columns: usize, order: &[usize]) -> Vec<f32> {
    order.iter().flat_map(|&row| numbers[row * columns..][..columns].to_vec()).collect()
}

fn uint(file: &GgufFile, key: &str) -> u64 {
    file.metadata().uint(key).unwrap()
}

/// A byte-level BPE of eleven tokens, of which the last three are added.
fn tokenizer() -> Json {
    let regex = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({
        "added_tokens": [
            {"id": 8, "content": "<|end|>", "special": true},
            {"id": 9, "content": "<think>", "special": false},
            {"id": 10, "content": "<|tool|>", "special": false},
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]},
        "model": {
            "type": "BPE",
            "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġa": 5, "abc": 6, "d": 7},
            "merges": ["a b", "Ġ a", "ab c"],
        },
    })
}

/// Two layers: width 8, 2 heads of 4, 1 kv head, ffn 6, 12 tokens.
fn llama() -> Fixture {
    let mut fixture = Fixture::new(json!({
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 6, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "vocab_size": 12,
        "rope_theta": 5000.0, "tie_word_embeddings": true, "eos_token_id": 8, "hidden_act": "silu",
    }));
    fixture.add_all("model.", &[("embed_tokens.weight", &[12, 8]), ("norm.weight", &[8])]);
    for layer in 0..2 {
        fixture.add_all(&format!("model.layers.{layer}."), LLAMA_LAYER);
    }
    fixture
}

const LLAMA_LAYER: &[(&str, &[usize])] = &[
    ("input_layernorm.weight", &[8]),
    ("post_attention_layernorm.weight", &[8]),
    ("self_attn.q_proj.weight", &[8, 8]),
    ("self_attn.k_proj.weight", &[4, 8]),
    ("self_attn.v_proj.weight", &[4, 8]),
    ("self_attn.o_proj.weight", &[8, 8]),
    ("mlp.gate_proj.weight", &[6, 8]),
    ("mlp.up_proj.weight", &[6, 8]),
    ("mlp.down_proj.weight", &[8, 6]),
];

/// What Qwen3.5 and Qwen3-Next have in common: 2 key heads of 2, 4 value heads of 3, gated attention.
fn hybrid_config(class: &str) -> Json {
    json!({
        "architectures": [class],
        "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "intermediate_size": 6, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "vocab_size": 12,
        "layer_types": ["linear_attention", "full_attention"], "tie_word_embeddings": false,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 2, "linear_value_head_dim": 3,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_theta": 1e7, "rope_type": "default", "partial_rotary_factor": 0.5},
    })
}

const DENSE: &[(&str, &[usize])] =
    &[("mlp.gate_proj.weight", &[6, 8]), ("mlp.up_proj.weight", &[6, 8]), ("mlp.down_proj.weight", &[8, 6])];

const GATED: &[(&str, &[usize])] = &[
    ("self_attn.q_proj.weight", &[16, 8]),
    ("self_attn.k_proj.weight", &[4, 8]),
    ("self_attn.v_proj.weight", &[4, 8]),
    ("self_attn.o_proj.weight", &[8, 8]),
    ("self_attn.q_norm.weight", &[4]),
    ("self_attn.k_norm.weight", &[4]),
];

const NORMS: &[(&str, &[usize])] = &[("input_layernorm.weight", &[8]), ("post_attention_layernorm.weight", &[8])];

const DELTA: &[(&str, &[usize])] = &[
    ("linear_attn.A_log", &[4]),
    ("linear_attn.dt_bias", &[4]),
    ("linear_attn.conv1d.weight", &[20, 1, 4]),
    ("linear_attn.norm.weight", &[3]),
    ("linear_attn.out_proj.weight", &[8, 12]),
];

/// The model under `trunk`.
fn qwen35(trunk: &str) -> Fixture {
    let mut fixture = Fixture::new(hybrid_config("Qwen3_5ForCausalLM"));
    fixture.add_all(trunk, &[("embed_tokens.weight", &[12, 8]), ("norm.weight", &[8])]);
    fixture.add("lm_head.weight", &[12, 8]);
    let (linear, full) = (format!("{trunk}layers.0."), format!("{trunk}layers.1."));
    fixture.add_all(&linear, DELTA);
    fixture.add_all(
        &linear,
        &[
            ("linear_attn.in_proj_qkv.weight", &[20, 8]),
            ("linear_attn.in_proj_z.weight", &[12, 8]),
            ("linear_attn.in_proj_a.weight", &[4, 8]),
            ("linear_attn.in_proj_b.weight", &[4, 8]),
        ],
    );
    fixture.add_all(&full, GATED);
    for layer in [&linear, &full] {
        fixture.add_all(layer, NORMS);
        fixture.add_all(layer, DENSE);
    }
    fixture
}

fn add_mtp(fixture: &mut Fixture) {
    fixture.add_all(
        "mtp.",
        &[
            ("fc.weight", &[8, 16]),
            ("pre_fc_norm_embedding.weight", &[8]),
            ("pre_fc_norm_hidden.weight", &[8]),
            ("norm.weight", &[8]),
        ],
    );
    for tensors in [NORMS, GATED, DENSE] {
        fixture.add_all("mtp.layers.0.", tensors);
    }
}

const EXPERTS: usize = 3;

fn qwen3next() -> Fixture {
    let mut config = hybrid_config("Qwen3NextForCausalLM");
    config["num_experts"] = json!(EXPERTS);
    config["num_experts_per_tok"] = json!(2);
    config["moe_intermediate_size"] = json!(5);
    config["shared_expert_intermediate_size"] = json!(7);
    let mut fixture = Fixture::new(config);
    fixture.add_all("model.", &[("embed_tokens.weight", &[12, 8]), ("norm.weight", &[8])]);
    fixture.add("lm_head.weight", &[12, 8]);
    fixture.add_all("model.layers.0.", DELTA);
    fixture.add_all(
        "model.layers.0.",
        &[("linear_attn.in_proj_qkvz.weight", &[32, 8]), ("linear_attn.in_proj_ba.weight", &[8, 8])],
    );
    fixture.add_all("model.layers.1.", GATED);
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.");
        fixture.add_all(&prefix, NORMS);
        fixture.add_all(
            &prefix,
            &[
                ("mlp.gate.weight", &[EXPERTS, 8]),
                ("mlp.shared_expert.gate_proj.weight", &[7, 8]),
                ("mlp.shared_expert.up_proj.weight", &[7, 8]),
                ("mlp.shared_expert.down_proj.weight", &[8, 7]),
                ("mlp.shared_expert_gate.weight", &[1, 8]),
            ],
        );
        for expert in 0..EXPERTS {
            fixture.add_all(
                &format!("{prefix}mlp.experts.{expert}."),
                &[("gate_proj.weight", &[5, 8]), ("up_proj.weight", &[5, 8]), ("down_proj.weight", &[8, 5])],
            );
        }
    }
    fixture
}
