//! Gates of EdgeInfinite as a user adds them: the committed ones of `assets/dense-16m.edgeinfinite` to a model of the
//! shapes they were trained for. A model with gates runs as it does without them.

use crate::{
    commands::{fails, shared, succeeds, text},
    golden::fixture,
};
use kvas::model::{Model, spec::Mixer};
use kvas_gguf::{GgufFile, Quant};
use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const LAYERS: usize = 8;
const WIDTH: usize = 32;
const IDS: &str = "5,17,200,31,8,77,4,99,301,12,45,6";

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/dense-16m.edgeinfinite")
}

/// A folder that is removed at the end.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(crate::temporary::folder())
    }

    fn path(&self, name: &str) -> String {
        text(&self.0.path().join(name))
    }
}

/// A checkpoint with the layers and heads of the trained model: a narrow residual stream, random numbers.
fn checkpoint(folder: &Folder) -> String {
    let source = folder.0.path().join("source");
    std::fs::create_dir_all(&source).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture("llama").join(file), source.join(file)).unwrap();
    }
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(fixture("llama").join("config.json")).unwrap()).unwrap();
    for (key, value) in [
        ("head_dim", 64),
        ("hidden_size", WIDTH),
        ("intermediate_size", 48),
        ("num_attention_heads", 6),
        ("num_hidden_layers", LAYERS),
        ("num_key_value_heads", 2),
    ] {
        config[key] = json!(value);
    }
    std::fs::write(source.join("config.json"), config.to_string()).unwrap();
    let mut tensors: Vec<(String, Vec<usize>)> =
        vec![("model.embed_tokens.weight".into(), vec![512, WIDTH]), ("model.norm.weight".into(), vec![WIDTH])];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![WIDTH]),
            ("post_attention_layernorm", vec![WIDTH]),
            ("self_attn.q_proj", vec![6 * 64, WIDTH]),
            ("self_attn.k_proj", vec![2 * 64, WIDTH]),
            ("self_attn.v_proj", vec![2 * 64, WIDTH]),
            ("self_attn.o_proj", vec![WIDTH, 6 * 64]),
            ("mlp.gate_proj", vec![48, WIDTH]),
            ("mlp.up_proj", vec![48, WIDTH]),
            ("mlp.down_proj", vec![WIDTH, 48]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    let mut state = 1u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| (0..shape.iter().product::<usize>()).flat_map(|_| number().to_le_bytes()).collect())
        .collect();
    let views = tensors
        .into_iter()
        .zip(&bytes)
        .map(|((name, shape), bytes)| (name, TensorView::new(Dtype::F32, shape, bytes).unwrap()));
    std::fs::write(source.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    text(&source)
}

/// The bytes of all logits of a few tokens.
fn logits(folder: &Folder, model: &str) -> Vec<u8> {
    let out = folder.path("logits.safetensors");
    succeeds(&["logits", "-m", model, "--ids", IDS, "-o", &out]);
    let bytes = std::fs::read(&out).unwrap();
    SafeTensors::deserialize(&bytes).unwrap().tensor("logits").unwrap().data().to_vec()
}

/// The gates of a model: layers that have some, and the hidden columns of the first.
fn gated(model: &Path) -> (usize, usize) {
    let model = Model::open(model, None).unwrap();
    let gates: Vec<usize> = model
        .spec
        .layers
        .iter()
        .flat_map(|layer| &layer.mixers)
        .filter_map(|mixer| match mixer {
            Mixer::Attention(attention) => Some(attention.memory?.hidden),
            _ => None,
        })
        .collect();
    (gates.len(), gates.first().copied().unwrap_or(0))
}

#[test]
fn a_model_with_gates_is_the_model_without_them() {
    let folder = Folder::new();
    let (source, gates) = (checkpoint(&folder), text(&assets()));
    let (plain, added, converted) = (folder.path("plain.gguf"), folder.path("added.gguf"), folder.path("made.gguf"));
    succeeds(&["convert", &source, "-o", &plain, "--type", "f32"]);
    succeeds(&["adapter", &plain, &gates, "-o", &added]);
    succeeds(&["convert", &source, "-o", &converted, "--type", "f32", "--adapter", &gates]);
    assert_eq!(gated(Path::new(&plain)), (0, 0));
    assert_eq!(gated(Path::new(&added)), (LAYERS, 256));
    let expected = logits(&folder, &plain);
    for model in [&added, &converted] {
        assert!(logits(&folder, model) == expected, "{model}");
    }
    let (added, converted) =
        (GgufFile::open(Path::new(&added)).unwrap(), GgufFile::open(Path::new(&converted)).unwrap());
    assert_eq!(added.tensors().len(), converted.tensors().len());
    for info in added.tensors() {
        let other = converted.tensor(&info.name).unwrap_or_else(|| panic!("{}", info.name));
        assert_eq!((info.quant, &info.shape), (other.quant, &other.shape), "{}", info.name);
        assert!(added.data(info)[..] == converted.data(other)[..], "{}", info.name);
    }
}

#[test]
fn gates_are_shown_and_stay_precise() {
    let folder = Folder::new();
    let (source, gates, model) = (checkpoint(&folder), text(&assets()), folder.path("model.gguf"));
    succeeds(&["convert", &source, "-o", &model, "--type", "q8_0", "--adapter", &gates]);
    let file = GgufFile::open(Path::new(&model)).unwrap();
    let of_gates = |name: &str| name.contains(".attn_mem_");
    let parameters: usize = file.tensors().iter().filter(|info| of_gates(&info.name)).map(|info| info.elements()).sum();
    assert!(file.tensors().iter().all(|info| !of_gates(&info.name) || info.quant == Quant::F32));
    assert_eq!(parameters, LAYERS * (2 * 64 * 256 + 256 + 64 + 6 * 64));
    let settings: Value =
        serde_json::from_slice(&std::fs::read(assets().join("adapter_config.json")).unwrap()).unwrap();
    let line = format!(
        "EdgeInfinite, sink {}, window {}, segment {}, positions in the cache, keys rotated",
        settings["sink_length"], settings["window_length"], settings["segment_length"]
    );
    assert!(succeeds(&["inspect", &model]).contains(&format!("memory gates: {line}")));
    let plan: Value = serde_json::from_str(&succeeds(&["plan", "-m", &model, "--json"])).unwrap();
    assert_eq!(plan["memory_gates"], json!(line));
    let kinds = plan["parameters"]["kinds"].as_array().unwrap();
    let kind = kinds.iter().find(|kind| kind["kind"] == "memory gates").unwrap();
    assert_eq!((&kind["all"], &kind["per_token"]), (&json!(parameters), &json!(0)));
    let listed = succeeds(&["inspect", "--tensors", &model]);
    assert!(listed.contains("attn_mem_fc2.weight") && listed.contains("memory gates"), "{listed}");
}

#[test]
fn gates_of_another_model_are_refused() {
    let folder = Folder::new();
    let (model, out, gates) = (folder.path("model.gguf"), folder.path("out.gguf"), text(&assets()));
    succeeds(&["convert", &text(&fixture("llama")), "-o", &model, "--type", "f32"]);
    let expected = "adapter_config.json: num_hidden_layers is 8, expected the model's 3";
    for arguments in [
        vec!["adapter", &model, &gates, "-o", &out],
        vec!["convert", &text(&fixture("llama")), "-o", &out, "--adapter", &gates],
    ] {
        let error = fails(&arguments);
        assert!(error.contains(expected) && !Path::new(&out).exists(), "{error}");
    }
    let source = checkpoint(&folder);
    succeeds(&["convert", &source, "-o", &model, "--type", "f32", "--adapter", &gates]);
    let error = fails(&["adapter", &model, &gates, "-o", &out]);
    assert!(error.contains("has blk.0.attn_mem_fc1.weight already"), "{error}");
}

/// The gates fit the model they were trained for, where that is there.
#[test]
fn the_trained_model_takes_its_gates() {
    let Some(shared) = shared() else { return };
    let folder = Folder::new();
    let model = folder.path("model.gguf");
    let quantised = text(&shared.join("models/dense-16m.Q4_K_M.gguf"));
    succeeds(&["adapter", &quantised, &text(&assets()), "-o", &model]);
    assert_eq!(gated(Path::new(&model)), (LAYERS, 256));
    assert!(logits(&folder, &model) == logits(&folder, &quantised));
}
