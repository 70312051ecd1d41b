//! Small adapters and models made up by the tests, and what becomes of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::quantize::{MIXES, QuantizeOptions, quantize};
use read::{CONFIG, WEIGHTS};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value as Json, json};
use std::{collections::BTreeMap, path::PathBuf};
use tempfile::TempDir;

/// What is done to a trial, and what the error says.
type Fault = (fn(&mut Trial), &'static str);

/// A model of three layers, the second without attention, and an adapter for it, in a folder that is removed at the end.
struct Trial {
    folder: TempDir,
    config: Json,
    gates: BTreeMap<String, (Dtype, Vec<usize>)>,
    metadata: Metadata,
    tensors: Vec<(String, Vec<u64>)>,
}

const HEADS: usize = 4;
const WIDTH: usize = 8;
const HIDDEN: usize = 32;

impl Trial {
    fn new() -> Trial {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("adapter")).unwrap();
        let config = json!({
            "adapter_type": "edgeinfinite", "sink_length": 3, "window_length": 4, "segment_length": 6,
            "pos_mode": "cache", "rope_in_memory": false, "activation": "elu1", "gate_scope": "head_channel",
            "num_hidden_layers": 3, "num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": WIDTH,
        });
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", Value::String("llama".into()));
        for (key, value) in [("block_count", 3), ("embedding_length", 32), ("attention.head_count", HEADS as u32)] {
            metadata.set(format!("llama.{key}"), Value::U32(value));
        }
        metadata.set("llama.attention.head_count_kv", Value::I32s(vec![2, 0, 2]));
        let mut trial = Trial { folder, config, gates: BTreeMap::new(), metadata, tensors: Vec::new() };
        for layer in [0, 2] {
            for (part, shape) in [
                ("fc1.weight", vec![HIDDEN, WIDTH]),
                ("fc1.bias", vec![HIDDEN]),
                ("fc2.weight", vec![WIDTH, HIDDEN]),
                ("fc2.bias", vec![WIDTH]),
                ("gate", vec![HEADS, WIDTH]),
            ] {
                trial.gates.insert(gate(layer, part), (Dtype::F32, shape));
            }
            trial.tensors.push((format!("blk.{layer}.attn_output.weight"), vec![32, 32]));
        }
        trial.tensors.push(("blk.1.ssm_out.weight".into(), vec![32, 32]));
        trial.tensors.push(("token_embd.weight".into(), vec![32, 5]));
        trial
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the adapter.
    fn write(&self) {
        std::fs::write(self.path("adapter").join(CONFIG), self.config.to_string()).unwrap();
        let bytes: Vec<Vec<u8>> =
            self.gates.iter().map(|(name, (dtype, shape))| encoded(name, *dtype, shape)).collect();
        let views = self.gates.iter().zip(&bytes).map(|((name, (dtype, shape)), bytes)| {
            (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        std::fs::write(self.path("adapter").join(WEIGHTS), file).unwrap();
    }

    fn insert(&mut self, layer: usize, part: &str, dtype: Dtype, shape: &[usize]) {
        self.gates.insert(gate(layer, part), (dtype, shape.to_vec()));
    }

    fn remove(&mut self, layer: usize, part: &str) {
        self.gates.remove(&gate(layer, part)).unwrap();
    }

    /// Writes the model and opens it.
    fn model(&self) -> GgufFile {
        let mut writer = GgufWriter::new(self.metadata.clone());
        for (name, shape) in &self.tensors {
            writer.declare(name, Quant::F32, shape).unwrap();
        }
        let mut file = writer.create(&self.path("model.gguf")).unwrap();
        for (name, shape) in &self.tensors {
            let shape: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
            file.write(name, &encoded(name, Dtype::F32, &shape)).unwrap();
        }
        file.finish().unwrap();
        GgufFile::open(&self.path("model.gguf")).unwrap()
    }

    fn add(&self) -> Result<(Added, GgufFile)> {
        let out = self.path("out.gguf");
        let added = add_gates(&self.model(), &self.path("adapter"), &out, None)?;
        Ok((added, GgufFile::open(&out).unwrap()))
    }

    /// The error, which must be one line and leave no file behind.
    fn refused(&self) -> String {
        let Err(error) = self.add() else { panic!("{} was accepted", self.config) };
        let error = format!("{error:#}");
        assert!(!error.contains('\n') && !self.path("out.gguf").exists(), "{error}");
        error
    }
}

fn gate(layer: usize, part: &str) -> String {
    format!("model.layers.{layer}.self_attn.mem_{part}")
}

/// Numbers that every format holds exactly, others for each name.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    (0..count).map(|at| ((seed as usize + 37 * at) % 255) as f32 / 64.0 - 2.0).collect()
}

fn encoded(name: &str, dtype: Dtype, shape: &[usize]) -> Vec<u8> {
    let numbers = numbers(name, shape.iter().product());
    let bytes = |number: f32| match dtype.bitsize() {
        16 => half::bf16::from_f32(number).to_le_bytes().to_vec(),
        _ => number.to_le_bytes().to_vec(),
    };
    numbers.into_iter().flat_map(bytes).collect()
}

fn stored(file: &GgufFile, name: &str) -> Vec<f32> {
    let info = file.tensor(name).unwrap();
    assert_eq!(info.quant, Quant::F32, "{name}");
    let mut out = vec![0.0; info.elements()];
    info.quant.dequantize(&file.data(info), &mut out).unwrap();
    out
}

#[test]
fn gates_are_added_and_the_rest_stays_as_it_was() {
    let mut trial = Trial::new();
    trial.insert(2, "fc2.weight", Dtype::BF16, &[WIDTH, HIDDEN]);
    trial.write();
    let (added, file) = trial.add().unwrap();
    let parameters = 2 * (2 * HIDDEN * WIDTH + HIDDEN + WIDTH + HEADS * WIDTH) as u64;
    assert_eq!(added, Added { layers: 2, parameters, model_parameters: 3 * 32 * 32 + 32 * 5 });
    let model = trial.model();
    for info in model.tensors() {
        let new = file.tensor(&info.name).unwrap();
        assert_eq!((new.quant, &new.shape), (info.quant, &info.shape), "{}", info.name);
        assert_eq!(&file.data(new)[..], &model.data(info)[..], "{}", info.name);
    }
    for (key, value) in model.metadata().iter() {
        assert_eq!(file.metadata().get(key), Some(value), "{key}");
    }
    for (key, value) in [("sink_length", 3), ("window_length", 4), ("segment_length", 6), ("pos_mode", 1)] {
        assert_eq!(file.metadata().uint(&format!("edgeinfinite.{key}")).unwrap(), value, "{key}");
    }
    assert_eq!(file.metadata().uint("edgeinfinite.rope_in_memory").unwrap(), 0);
    assert_eq!(file.metadata().string("edgeinfinite.activation").unwrap(), "elu1");
    assert_eq!(file.metadata().string("edgeinfinite.gate_scope").unwrap(), "head_channel");
    assert_eq!(file.metadata().len(), model.metadata().len() + 7);
    assert_eq!(file.tensors().len(), model.tensors().len() + 10);
    for (own, target, shape) in [
        ("fc1.weight", "fc1.weight", vec![WIDTH as u64, HIDDEN as u64]),
        ("fc1.bias", "fc1.bias", vec![HIDDEN as u64]),
        ("fc2.weight", "fc2.weight", vec![HIDDEN as u64, WIDTH as u64]),
        ("fc2.bias", "fc2.bias", vec![WIDTH as u64]),
        ("gate", "gate.weight", vec![WIDTH as u64, HEADS as u64]),
    ] {
        let name = format!("blk.2.attn_mem_{target}");
        assert_eq!(file.tensor(&name).unwrap().shape, shape, "{name}");
        assert_eq!(stored(&file, &name), numbers(&gate(2, own), shape.iter().product::<u64>() as usize), "{name}");
    }
}

#[test]
fn a_gate_may_be_per_channel_or_per_head() {
    for (scope, shape) in [("channel", WIDTH), ("head", HEADS)] {
        let mut trial = Trial::new();
        trial.config["gate_scope"] = scope.into();
        trial.write();
        assert!(trial.refused().contains(&format!("mem_gate has the shape [4, 8], expected [{shape}]")));
        for layer in [0, 2] {
            trial.insert(layer, "gate", Dtype::F32, &[shape]);
        }
        trial.write();
        assert_eq!(trial.add().unwrap().1.tensor("blk.0.attn_mem_gate.weight").unwrap().shape, [shape as u64]);
    }
}

#[test]
fn quantising_leaves_gates_as_they_are() {
    let trial = Trial::new();
    trial.write();
    let (_, file) = trial.add().unwrap();
    let mix = MIXES.iter().find(|mix| mix.name == "Q8_0").unwrap();
    let mut options = QuantizeOptions::new(mix);
    options.recipe.pure = true;
    quantize(&file, &trial.path("small.gguf"), &options).unwrap();
    let small = GgufFile::open(&trial.path("small.gguf")).unwrap();
    assert_eq!(small.tensor("blk.0.attn_output.weight").unwrap().quant, Quant::Q8_0);
    let gates: Vec<_> = small.tensors().iter().filter(|info| info.name.contains("attn_mem_")).collect();
    assert_eq!(gates.len(), 10);
    for info in gates {
        assert_eq!(stored(&small, &info.name), stored(&file, &info.name));
    }
    assert_eq!(small.metadata().uint("edgeinfinite.segment_length").unwrap(), 6);
}

#[test]
fn what_is_wrong_in_the_configuration_is_one_line() {
    for (name, value, expected) in [
        ("num_hidden_layers", json!(4), "num_hidden_layers is 4, expected the model's 3"),
        ("num_attention_heads", json!(2), "mem_gate has the shape [4, 8], expected [2, 8]"),
        ("num_key_value_heads", json!(4), "num_key_value_heads is 4, expected the model's 2"),
        ("head_dim", json!(16), "mem_fc1.weight has the shape [32, 8], expected [hidden columns, 16]"),
        ("head_dim", json!("8"), "head_dim is a text, expected a whole number from 1 to 16384"),
        ("window_length", json!(0), "window_length is 0, expected a whole number from 1 to 16777216"),
        ("sink_length", json!(1.5), "sink_length is 1.5, expected a whole number from 0"),
        ("segment_length", Json::Null, "segment_length is missing"),
        ("pos_mode", json!("relative"), "pos_mode is \"relative\", expected abs or cache"),
        ("activation", json!("relu"), "activation is \"relu\", expected elu1"),
        ("peft_type", json!("LORA"), "expected gates of EdgeInfinite: kvas convert --lora merges adapters of PEFT"),
        ("adapter_type", json!("lora"), "adapter_type is \"lora\", expected edgeinfinite"),
        ("rope_in_memory", json!(1), "rope_in_memory is a number, expected true or false"),
        ("rope_in_memory", Json::Null, "rope_in_memory is missing, expected true or false"),
    ] {
        let mut trial = Trial::new();
        trial.config[name] = value;
        trial.write();
        let error = trial.refused();
        assert!(error.contains(expected), "{error}, expected {expected}");
    }
    let trial = Trial::new();
    assert!(trial.refused().contains("expected adapter_config.json in it"));
    std::fs::write(trial.path("adapter").join(CONFIG), trial.config.to_string()).unwrap();
    assert!(trial.refused().contains("adapter_model.safetensors"));
}

#[test]
fn what_is_wrong_in_the_tensors_is_one_line() {
    let faults: &[Fault] = &[
        (|trial| trial.gates.retain(|name, _| !name.contains("layers.2")), "layer 2 has no gates"),
        (|trial| trial.remove(0, "fc2.bias"), "mem_fc2.bias is missing, expected the shape [8]"),
        (|trial| trial.insert(0, "fc3.bias", Dtype::F32, &[8]), "mem_fc3.bias has no place"),
        (
            |trial| trial.insert(7, "gate", Dtype::F32, &[8]),
            "expected layers below the num_hidden_layers of adapter_config.json, 3",
        ),
        (|trial| trial.insert(0, "gate", Dtype::I16, &[4, 8]), "mem_gate is I16, expected F32, F16 or BF16"),
        (|trial| trial.insert(2, "fc1.weight", Dtype::F32, &[0, 8]), "[0, 8], expected [hidden columns, 8]"),
        (
            |trial| {
                for part in ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "gate"] {
                    let (dtype, shape) = trial.gates[&gate(0, part)].clone();
                    trial.insert(1, part, dtype, &shape);
                }
            },
            "layer 1 has gates, expected them for the model's attention layers only",
        ),
    ];
    refuses(faults);
}

#[test]
fn a_model_that_gates_do_not_fit_is_one_line() {
    let faults: &[Fault] = &[
        (
            |trial| {
                trial.metadata.set("llama.attention.head_count", Value::U32(8));
                trial.metadata.set("llama.attention.value_length", Value::U32(8));
            },
            "num_attention_heads is 4, expected the model's 8",
        ),
        (
            |trial| trial.metadata.set("llama.attention.value_length", Value::U32(16)),
            "head_dim is 8, expected the model's 16",
        ),
        (|trial| trial.metadata.set("llama.attention.head_count", Value::U32(0)), "key llama.attention.head_count"),
        (
            |trial| trial.metadata.set("llama.attention.head_count_kv", Value::I32s(vec![2])),
            "has 1 values, expected one for layer 2",
        ),
        (|trial| assert!(trial.metadata.remove("llama.block_count")), "missing key llama.block_count"),
        (|trial| trial.tensors.push(("blk.1.attn_kv_a_mqa.weight".into(), vec![32, 8])), "layer 1 attends to a latent"),
        (
            |trial| trial.tensors.push(("blk.0.attn_mem_fc1.bias".into(), vec![32])),
            "has blk.0.attn_mem_fc1.bias already",
        ),
    ];
    refuses(faults);
}

/// Every fault is one line with its text in it.
fn refuses(faults: &[Fault]) {
    for (fault, expected) in faults {
        let mut trial = Trial::new();
        fault(&mut trial);
        trial.write();
        let error = trial.refused();
        assert!(error.contains(expected), "{error}, expected {expected}");
    }
}

#[test]
fn numbers_that_are_none_are_refused() {
    let trial = Trial::new();
    trial.write();
    let path = trial.path("adapter").join(WEIGHTS);
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    assert!(trial.refused().contains("is NaN, expected a finite one"));
}

#[test]
fn files_that_are_cut_or_changed_anywhere_are_errors_at_most() {
    let trial = Trial::new();
    trial.write();
    for name in [CONFIG, WEIGHTS] {
        let path = trial.path("adapter").join(name);
        let whole = std::fs::read(&path).unwrap();
        for end in (0..whole.len().min(1200)).step_by(7) {
            std::fs::write(&path, &whole[..end]).unwrap();
            trial.refused();
        }
        let (metadata, mut kept) = (trial.metadata.clone(), 0);
        for at in 0..whole.len().min(1200) {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            std::fs::write(&path, &changed).unwrap();
            let has = |name: &str| trial.tensors.iter().any(|(known, _)| known == name);
            kept += usize::from(Adapter::for_model(&trial.path("adapter"), &metadata, has).is_ok());
        }
        assert!(kept < 600, "{name}: {kept} changes of one bit were taken");
        std::fs::write(&path, &whole).unwrap();
    }
    trial.add().unwrap();
}
