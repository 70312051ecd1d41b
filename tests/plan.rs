//! Every architecture: metadata fixture -> spec and program, as text.

use expect_test::expect_file;
use kvas::{
    arch::{self, ARCHITECTURES, Header},
    model::{lower::lower, spec::ModelSpec},
    presets::PRESETS,
};
use kvas_gguf::{Metadata, Value};
use std::path::Path;

/// A tiny header for an architecture: keys as its converter writes them, the tensors its reader looks for.
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
    ] {
        set(key, Value::U32(value));
    }
    set("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    let mut tensors = vec![];
    let hybrid = matches!(architecture, "qwen35" | "qwen3next");
    if hybrid {
        for (key, value) in
            [("conv_kernel", 4), ("state_size", 4), ("group_count", 2), ("time_step_rank", 4), ("inner_size", 16)]
        {
            set(&format!("ssm.{key}"), Value::U32(value));
        }
        tensors.extend((0..4).map(|block| format!("blk.{block}.post_attention_norm.weight")));
    }
    if architecture == "qwen3next" {
        for (key, value) in [
            ("expert_count", 4),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", 8),
            ("expert_shared_feed_forward_length", 8),
        ] {
            set(key, Value::U32(value));
        }
        tensors.extend((0..4).map(|block| format!("blk.{block}.ssm_ba.weight")));
    }
    let per_block = match architecture {
        "qwen2" => &["attn_q.bias"][..],
        "qwen3" | "qwen35" | "qwen3next" => &["attn_q_norm.weight"][..],
        _ => &[],
    };
    tensors.extend((0..4).flat_map(|block| per_block.iter().map(move |stem| format!("blk.{block}.{stem}"))));
    (metadata, tensors)
}

fn spec(architecture: &str) -> ModelSpec {
    let (metadata, tensors) = header_parts(architecture);
    let table = [16, 32];
    let marks = tensors.iter().map(|name| (name.as_str(), &table[..0]));
    let header = Header::new(&metadata, marks.chain([("token_embd.weight", &table[..])])).unwrap();
    arch::read(&header).unwrap_or_else(|error| panic!("{architecture}: {error}"))
}

#[test]
fn every_architecture_has_its_program() {
    for (architecture, _) in ARCHITECTURES {
        let spec = spec(architecture);
        let program = lower(&spec);
        program.validate().unwrap_or_else(|error| panic!("{architecture}: {error}"));
        let text = format!("{}\n\n{program}", spec.pattern());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/plans/{architecture}.txt"));
        expect_file![path].assert_eq(&text);
    }
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
    let found = with("general.architecture", Value::String("gpt-j".into()));
    assert!(found.starts_with("general.architecture is \"gpt-j\", expected one of llama, "), "{found}");
}

#[test]
fn presets_are_valid_models() {
    for preset in PRESETS {
        let program = preset.program().unwrap_or_else(|error| panic!("{}: {error}", preset.name));
        program.validate().unwrap_or_else(|error| panic!("{}: {error}", preset.name));
    }
}
