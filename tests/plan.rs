//! Every architecture: metadata fixture -> spec and program, as text.

use crate::golden;
use expect_test::expect_file;
use kvas::{
    arch::{self, ARCHITECTURES, Header},
    model::{
        Model, ModelError,
        lower::lower,
        spec::{Attention, Mixer, RopeSpec},
    },
    presets::PRESETS,
};
use kvas_backend::{Rope, rope::Scaling};
use kvas_gguf::{GgufWriter, Metadata, Quant, Value};
use std::path::Path;

/// A tiny header of a hybrid model: keys as its converter writes them, the tensors its reader looks for.
fn header_parts(architecture: &str) -> (Metadata, Vec<String>) {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::String(architecture.into()));
    let mut set = |key: &str, value: Value| metadata.set(format!("{architecture}.{key}"), value);
    for (key, value) in [
        ("block_count", 4),
        ("context_length", 128),
        ("embedding_length", 16),
        ("feed_forward_length", 24),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 4),
        ("attention.value_length", 4),
        ("rope.dimension_count", 2),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 4),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 4),
        ("ssm.inner_size", 16),
    ] {
        set(key, Value::U32(value));
    }
    set("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    let stems = ["post_attention_norm.weight", "attn_q_norm.weight"];
    (metadata, stems.iter().flat_map(|stem| (0..4).map(move |block| format!("blk.{block}.{stem}"))).collect())
}

/// The program of a header with a few more tensors, as text.
fn program(architecture: &str, more: &[&str]) -> String {
    let (metadata, mut tensors) = header_parts(architecture);
    tensors.extend(more.iter().flat_map(|stem| (0..4).map(move |block| format!("blk.{block}.{stem}"))));
    let table = [16, 32];
    let marks = tensors.iter().map(|name| (name.as_str(), &table[..0]));
    let header = Header::new(&metadata, marks.chain([("token_embd.weight", &table[..])])).unwrap();
    let program = lower(&arch::read(&header).unwrap_or_else(|error| panic!("{architecture}: {error}")));
    program.validate().unwrap_or_else(|error| panic!("{architecture}: {error}"));
    program.to_string()
}

#[test]
fn every_architecture_has_its_program() {
    let mut seen = Vec::new();
    for directory in golden::fixtures() {
        let name = directory.file_name().unwrap().to_str().unwrap();
        let model = golden::converted(&directory, Quant::F32);
        let text = format!("{}\n\n{}", model.spec.pattern(), model.program);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/plans/{name}.txt"));
        expect_file![path].assert_eq(&text);
        seen.push(model.spec.architecture);
    }
    for (architecture, _) in ARCHITECTURES {
        assert!(seen.iter().any(|seen| seen == architecture), "{architecture} has no fixture");
    }
}

/// Layouts of files that older converters wrote.
#[test]
fn fused_and_interleaved_tensors_are_taken_apart() {
    let interleaved = program("qwen3next", &["ssm_in.weight", "ssm_ba.weight"]);
    for part in ["ssm_in.weight/qkv", "ssm_in.weight/gate", "ssm_ba.weight/alpha", "ssm_ba.weight/beta"] {
        assert!(interleaved.contains(&format!("blk.0.{part} ")), "{part} in:\n{interleaved}");
    }
    let fused = program("qwen3", &["attn_qkv.weight"]);
    for part in ["q", "k", "v"] {
        assert!(fused.contains(&format!("blk.3.attn_qkv.weight/{part} ")), "{part} in:\n{fused}");
    }
}

#[test]
fn norms_without_weights_are_refused() {
    let (mut metadata, tensors) = header_parts("mamba");
    metadata.set("mamba.ssm.dt_b_c_rms", Value::Bool(true));
    let of = |more: &[&str]| {
        let table = [16, 32];
        let names = tensors.iter().map(String::as_str).chain(more.iter().copied()).chain(["token_embd.weight"]);
        let header = Header::new(&metadata, names.map(|name| (name, &table[..]))).unwrap();
        arch::read(&header).map(drop).map_err(|error| error.to_string())
    };
    let expected = "false: norms without weights, as Falcon-Mamba has them, are not computed";
    assert_eq!(of(&[]), Err(format!("key mamba.ssm.dt_b_c_rms = true, expected {expected}")));
    assert_eq!(of(&["blk.0.ssm_dt_norm.weight"]), Ok(()));
}

#[test]
fn missing_and_wrong_keys_are_named() {
    let broken = |change: &dyn Fn(&mut Metadata)| {
        let (mut metadata, _) = header_parts("qwen35");
        change(&mut metadata);
        let table = [16, 32];
        let header = Header::new(&metadata, [("token_embd.weight", &table[..])]).unwrap();
        arch::read(&header).unwrap_err().to_string()
    };
    let without = |key: &'static str| broken(&move |metadata| assert!(metadata.remove(key)));
    assert_eq!(without("qwen35.ssm.state_size"), "missing key qwen35.ssm.state_size (expected integer)");
    let with = |key: &'static str, value: Value| broken(&move |metadata| metadata.set(key, value.clone()));
    assert_eq!(
        with("qwen35.attention.head_count", Value::U32(0)),
        "key qwen35.attention.head_count = 0, expected 1 to 16384"
    );
    assert_eq!(
        with("qwen35.attention.head_count_kv", Value::U32(3)),
        "key qwen35.attention.head_count_kv = 3, expected a divisor of attention.head_count = 4"
    );
    assert_eq!(
        with("qwen35.rope.dimension_count", Value::U32(3)),
        "key qwen35.rope.dimension_count = 3, expected an even number"
    );
    assert_eq!(
        with("qwen35.rope.freq_base", Value::F32(0.0)),
        "key qwen35.rope.freq_base = 0, expected a positive number"
    );
    assert_eq!(
        with("qwen35.attention.causal", Value::Bool(false)),
        "key qwen35.attention.causal = false, expected true: every token attends to those before it only"
    );
    assert_eq!(
        with("qwen35.attention.value_length", Value::U32(5)),
        "key qwen35.attention.value_length = 5, expected attention.key_length = 4 where queries have gates"
    );
    let found = with("general.architecture", Value::String("gpt-j".into()));
    assert!(found.starts_with("general.architecture is \"gpt-j\", expected one of llama, "), "{found}");
}

/// Groups have two experts at least, whose sum is what a group is worth, and those that are looked into have enough of them.
#[test]
fn groups_of_experts_that_cannot_be_chosen_from_are_named() {
    let read = |groups: u32, looked_into: u32| {
        let (mut metadata, _) = header_parts("qwen3moe");
        for (key, value) in [("expert_count", 8), ("expert_used_count", 5)] {
            metadata.set(format!("qwen3moe.{key}"), Value::U32(value));
        }
        metadata.set("qwen3moe.expert_group_count", Value::U32(groups));
        metadata.set("qwen3moe.expert_group_used_count", Value::U32(looked_into));
        let table = [16, 32];
        let names = ["token_embd.weight", "blk.0.ffn_gate_inp.weight"];
        let header = Header::new(&metadata, names.map(|name| (name, &table[..]))).unwrap();
        arch::read(&header).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!([read(1, 1), read(4, 3), read(2, 2)], [Ok(()), Ok(()), Ok(())]);
    let size = "groups of two or more of qwen3moe.expert_count = 8";
    for groups in [3, 8] {
        assert_eq!(read(groups, 1), Err(format!("key qwen3moe.expert_group_count = {groups}, expected {size}")));
    }
    for few in [0, 2, 5] {
        assert_eq!(read(4, few), Err(format!("key qwen3moe.expert_group_used_count = {few}, expected 3 to 4")));
    }
}

/// Where no key says how many heads keys have, they have as many as queries: in all layers, of an architecture that may
/// have others as well.
#[test]
fn heads_of_keys_are_as_many_as_of_queries_unless_told() {
    let (mut metadata, _) = header_parts("granite");
    assert!(metadata.remove("granite.attention.head_count_kv"));
    let table = [16, 32];
    let spec = arch::read(&Header::new(&metadata, [("token_embd.weight", &table[..])]).unwrap()).unwrap();
    for layer in &spec.layers {
        assert!(matches!(&layer.mixers[..], [Mixer::Attention(attention)] if attention.kv_heads == 4));
    }
}

/// What YaRN multiplies by may be said beside what it does by itself or, as by llama.cpp's converter, together with that.
#[test]
fn the_magnitude_of_yarn_is_read_in_both_forms() {
    let magnitude = |keys: &[(&str, f32)]| {
        let (mut metadata, _) = header_parts("qwen3");
        metadata.set("qwen3.rope.scaling.type", Value::String("yarn".into()));
        metadata.set("qwen3.rope.scaling.original_context_length", Value::U32(32));
        for (key, value) in keys.iter().chain(&[("factor", 4.0)]) {
            metadata.set(format!("qwen3.rope.scaling.{key}"), Value::F32(*value));
        }
        let table = [16, 32];
        let header = Header::new(&metadata, [("token_embd.weight", &table[..])]).unwrap();
        let spec = arch::read(&header).unwrap();
        let Mixer::Attention(Attention { rope: Some(rope), .. }) = &spec.layers[0].mixers[0] else { panic!("no rope") };
        let RopeSpec { dims, pairing, base, scaling, .. } = *rope;
        Rope { dims, pairing, base, scaling, factors: None }.magnitude()
    };
    let near = |found: f32, expected: f32| assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
    near(magnitude(&[]), 1.138_629_4);
    near(magnitude(&[("attn_factor", 2.0)]), 2.277_258_9);
    near(magnitude(&[("yarn_attn_factor", 1.5)]), 1.5);
    near(magnitude(&[("yarn_attn_factor", 1.5), ("attn_factor", 2.0)]), 2.277_258_9);
}

/// The context before a scaling is that of the file if no key says otherwise, as for llama.cpp.
#[test]
fn yarn_without_an_original_context_starts_from_the_file_s() {
    let original = |said: Option<u32>| {
        let (mut metadata, _) = header_parts("qwen3");
        metadata.set("qwen3.rope.scaling.type", Value::String("yarn".into()));
        metadata.set("qwen3.rope.scaling.factor", Value::F32(4.0));
        if let Some(said) = said {
            metadata.set("qwen3.rope.scaling.original_context_length", Value::U32(said));
        }
        let table = [16, 32];
        let spec = arch::read(&Header::new(&metadata, [("token_embd.weight", &table[..])]).unwrap()).unwrap();
        let Mixer::Attention(Attention { rope: Some(rope), .. }) = &spec.layers[0].mixers[0] else { panic!("no rope") };
        let Scaling::Yarn { original_context, .. } = rope.scaling else { panic!("no YaRN") };
        (original_context, spec.context_length)
    };
    assert_eq!(original(Some(32)).0, 32.0);
    let (found, context) = original(None);
    assert_eq!(found, context as f32);
}

#[test]
fn presets_are_valid_models() {
    for preset in PRESETS {
        let program = preset.program().unwrap_or_else(|error| panic!("{}: {error}", preset.name));
        program.validate().unwrap_or_else(|error| panic!("{}: {error}", preset.name));
    }
}

/// The hybrid fixture with a prediction head behind its trunk, whose layer is a copy of the last one; `leave_out` names
/// a tensor it lacks, and `change` what else is in the others of its block.
pub(crate) fn with_prediction_head(leave_out: &str, change: &dyn Fn(&str, &mut [f32])) -> Result<Model, ModelError> {
    let source = golden::converted(&golden::fixture("qwen35"), Quant::F32).file;
    let mut metadata = source.metadata().clone();
    metadata.set("qwen35.block_count", Value::U32(5));
    metadata.set("qwen35.nextn_predict_layers", Value::U32(1));
    // Older files name the interval of the attention layers only.
    metadata.remove("qwen35.attention.recurrent_layers");
    let mut tensors: Vec<(String, Vec<u64>, Vec<u8>)> = Vec::new();
    for info in source.tensors() {
        let data = source.data(info).to_vec();
        let copy =
            info.name.strip_prefix("blk.3.").map(|stem| (format!("blk.4.{stem}"), info.shape.clone(), data.clone()));
        tensors.extend(copy);
        tensors.push((info.name.clone(), info.shape.clone(), data));
    }
    let width = source.metadata().uint("qwen35.embedding_length").unwrap();
    for (stem, shape) in [("eh_proj", vec![2 * width, width]), ("enorm", vec![width]), ("hnorm", vec![width])] {
        let bytes = vec![0; 4 * shape.iter().product::<u64>() as usize];
        tensors.push((format!("blk.4.nextn.{stem}.weight"), shape, bytes));
    }
    for (name, _, bytes) in &mut tensors {
        if let Some(stem) = name.strip_prefix("blk.4.") {
            let word = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap());
            let mut values: Vec<f32> = bytes.chunks_exact(4).map(word).collect();
            change(stem, &mut values);
            *bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        }
    }
    tensors.retain(|(name, ..)| name != leave_out);
    let mut writer = GgufWriter::new(metadata);
    tensors.iter().for_each(|(name, shape, _)| writer.declare(name, Quant::F32, shape).unwrap());
    let temporary = crate::temporary::folder();
    let path = temporary.path().join("head.gguf");
    let mut open = writer.create(&path).unwrap();
    tensors.iter().for_each(|(name, _, bytes)| open.write_part(name, bytes).unwrap());
    open.finish().unwrap();
    let model = Model::open(&path, None);
    std::fs::remove_file(path).unwrap();
    model
}

#[test]
fn prediction_heads_are_bound_and_do_not_change_the_trunk() {
    let plain = golden::converted(&golden::fixture("qwen35"), Quant::F32);
    let model = with_prediction_head("", &|_, _| {}).unwrap();
    assert_eq!((model.spec.layers.len(), model.spec.prediction.len()), (4, 1));
    assert_eq!(model.program.to_string(), plain.program.to_string());
    for missing in ["blk.4.nextn.hnorm.weight", "blk.4.attn_k.weight"] {
        let error = with_prediction_head(missing, &|_, _| {}).unwrap_err().to_string();
        assert!(error.starts_with(&format!("tensor {missing}: is missing")), "{error}");
    }
}
