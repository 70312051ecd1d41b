//! The families with Mamba-2 layers: keys, names, shapes and types as the description of the format has them, and
//! the numbers of what is permuted, cut or scaled.

use super::golden::*;
use super::*;

/// A Mamba-2 layer of width 64, inner size 128, 8 heads, state 32 and one group.
const MAMBA2_ONE_GROUP: &str = "attn_norm.weight 64, ssm_in.weight 64x328 w, ssm_conv1d.weight 4x192,
    ssm_conv1d.bias 192, ssm_dt.bias 8, ssm_a 1x8, ssm_d 1x8, ssm_out.weight 128x64 w";
/// The same with two groups.
const MAMBA2_TWO_GROUPS: &str = "attn_norm.weight 64, ssm_in.weight 64x392 w, ssm_conv1d.weight 4x256,
    ssm_conv1d.bias 256, ssm_dt.bias 8, ssm_a 1x8, ssm_d 1x8, ssm_norm.weight 64x2, ssm_out.weight 128x64 w";
#[test]
fn mamba2_is_recurrent_only() {
    let fixture = Fixture::golden("mamba2");
    let mut expected = Expected::of(&fixture, "mamba2");
    expected.counts(&[
        ("block_count", 3),
        ("embedding_length", 64),
        ("context_length", 1_048_576),
        ("feed_forward_length", 0),
        ("attention.head_count", 0),
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 128),
        ("ssm.state_size", 32),
        ("ssm.time_step_rank", 8),
        ("ssm.group_count", 2),
    ]);
    expected.no_key("vocab_size");
    expected.key("attention.layer_norm_rms_epsilon", &Value::F32(1e-5));
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64");
    expected.tensors(&[0, 1, 2], MAMBA2_TWO_GROUPS);
    expected.finish();
    let file = fixture.f32();
    let source = |name: &str| fixture.numbers(&format!("backbone.layers.2.{name}"));
    assert_eq!(numbers(&file, "blk.2.ssm_a"), negated_exp(source("mixer.A_log")));
    for (target, name) in [
        ("ssm_d", "mixer.D"),
        ("ssm_norm.weight", "mixer.norm.weight"),
        ("ssm_conv1d.weight", "mixer.conv1d.weight"),
        ("ssm_in.weight", "mixer.in_proj.weight"),
        ("attn_norm.weight", "norm.weight"),
    ] {
        assert_eq!(numbers(&file, &format!("blk.2.{target}")), source(name), "{target}");
    }
    let mut other = Fixture::golden("mamba2");
    other.rename("backbone.", "model.");
    same(&fixture, &other);
    // As Python writes it.
    let text = other.config.to_string().replace("{\"__float__\":\"Infinity\"}", "Infinity");
    other.write("config.json", &text);
    assert!(text.contains("Infinity") && plan(other.folder.path(), &of(Quant::F32)).is_ok());
    // With a limit, which no file can carry.
    other.config["time_step_limit"] = json!([0.0, 0.1]);
    assert!(other.error(&of(Quant::F32)).contains("time_step_limit.1 = 0.1, expected"));
}

#[test]
fn the_first_mamba_is_recurrent_only() {
    let fixture = Fixture::golden("mamba");
    let mut expected = Expected::of(&fixture, "mamba");
    expected.counts(&[
        ("block_count", 3),
        ("embedding_length", 64),
        ("context_length", 1_048_576),
        ("feed_forward_length", 0),
        ("attention.head_count", 0),
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 128),
        ("ssm.state_size", 16),
        ("ssm.time_step_rank", 4),
    ]);
    expected.no_key("vocab_size");
    expected.key("attention.layer_norm_rms_epsilon", &Value::F32(1e-5));
    expected.key("ssm.dt_b_c_rms", &Value::Bool(false));
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64");
    expected.tensors(
        &[0, 1, 2],
        "attn_norm.weight 64, ssm_in.weight 64x256 w, ssm_conv1d.weight 4x128, ssm_conv1d.bias 128, ssm_x.weight 128x36 w,
        ssm_dt.weight 4x128 w, ssm_dt.bias 128, ssm_a 16x128, ssm_d 128, ssm_out.weight 128x64 w",
    );
    expected.finish();
    let source = fixture.numbers("backbone.layers.2.mixer.A_log");
    assert_eq!(numbers(&fixture.f32(), "blk.2.ssm_a"), negated_exp(source));
    let mut other = Fixture::golden("mamba");
    other.config["use_bias"] = json!(true);
    assert!(other.error(&of(Quant::F32)).contains("use_bias = true, expected false"));
}

#[test]
fn granite_hybrids_are_dense_or_have_experts() {
    let fixture = Fixture::golden("granitehybrid");
    let mut expected = Expected::of(&fixture, "granitehybrid");
    expected.counts(&[
        ("block_count", 4),
        ("vocab_size", 512),
        ("context_length", 1_048_576),
        ("feed_forward_length", 160),
        ("expert_count", 0),
        ("expert_used_count", 0),
        ("attention.head_count", 4),
        ("rope.dimension_count", 16),
        ("ssm.time_step_rank", 8),
        ("ssm.group_count", 1),
    ]);
    expected.key("attention.head_count_kv", &i32s(&[0, 0, 2, 0]));
    for (key, value) in
        [("attention.scale", 0.25), ("embedding_scale", 12.0), ("residual_scale", 0.22), ("logit_scale", 6.0)]
    {
        expected.key(key, &Value::F32(value));
    }
    expected.key("rope.scaling.finetuned", &Value::Bool(false));
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64");
    expected.tensors(&[0, 1, 3], MAMBA2_ONE_GROUP);
    expected.tensors(&[0, 1, 3], "ssm_norm.weight 128x1");
    expected.tensors(&[2], "attn_norm.weight 64");
    expected.tensors(&[2], ATTENTION);
    let dense = "ffn_norm.weight 64, ffn_gate.weight 64x160 w, ffn_up.weight 64x160 w, ffn_down.weight 160x64 w";
    expected.tensors(&[0, 1, 2, 3], dense);
    expected.finish();
    let file = fixture.f32();
    let source = |name: &str| fixture.numbers(&format!("model.layers.2.{name}"));
    let target = |name: &str| numbers(&file, &format!("blk.2.{name}"));
    assert_eq!(target("attn_q.weight"), rows(source("self_attn.q_proj.weight"), 64, &paired(4)));
    assert_eq!(target("attn_k.weight"), rows(source("self_attn.k_proj.weight"), 64, &paired(2)));
    let (gate, up) = source("shared_mlp.input_linear.weight").split_at(160 * 64);
    assert_eq!((target("ffn_gate.weight").as_slice(), target("ffn_up.weight").as_slice()), (gate, up));
    // As a newer version of the library saves it.
    let mut saved = Fixture::golden("granitehybrid");
    saved.config["layer_types"] = json!(["linear_attention", "linear_attention", "full_attention", "linear_attention"]);
    same(&fixture, &saved);

    let fixture = Fixture::golden("granitehybrid-moe");
    let mut expected = Expected::of(&fixture, "granitehybrid");
    expected.counts(&[
        ("feed_forward_length", 32),
        ("expert_shared_feed_forward_length", 64),
        ("expert_count", 8),
        ("expert_used_count", 2),
    ]);
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64");
    expected.tensors(&[0, 2, 3], MAMBA2_ONE_GROUP);
    expected.tensors(&[0, 2, 3], "ssm_norm.weight 128x1");
    expected.tensors(&[1], "attn_norm.weight 64");
    expected.tensors(&[1], ATTENTION);
    expected.tensors(
        &[0, 1, 2, 3],
        "ffn_norm.weight 64, ffn_gate_inp.weight 64x8, ffn_gate_exps.weight 64x32x8 w, ffn_up_exps.weight 64x32x8 w,
        ffn_down_exps.weight 32x64x8 w, ffn_gate_shexp.weight 64x64 w, ffn_up_shexp.weight 64x64 w,
        ffn_down_shexp.weight 64x64 w",
    );
    expected.finish();
    let file = fixture.f32();
    let both = fixture.numbers("model.layers.1.block_sparse_moe.input_linear.weight");
    let half = |skip: usize| both.chunks(32 * 64).skip(skip).step_by(2).flatten().copied().collect::<Vec<f32>>();
    assert_eq!(numbers(&file, "blk.1.ffn_gate_exps.weight"), half(0));
    assert_eq!(numbers(&file, "blk.1.ffn_up_exps.weight"), half(1));
}

/// The hybrid's golden with attention in every layer.
fn granite_of_attention() -> Fixture {
    let mut fixture = Fixture::golden("granitehybrid");
    fixture.tensors.retain(|name, _| !name.contains(".mamba."));
    for layer in [0, 1, 3] {
        let projections: [(&str, &[usize]); 4] = [
            ("q_proj.weight", &[64, 64]),
            ("k_proj.weight", &[32, 64]),
            ("v_proj.weight", &[32, 64]),
            ("o_proj.weight", &[64, 64]),
        ];
        fixture.add_all(&format!("model.layers.{layer}.self_attn."), &projections);
    }
    fixture.config["layer_types"] = json!(["attention", "attention", "attention", "attention"]);
    fixture.config["position_embedding_type"] = json!("rope");
    fixture
}

#[test]
fn a_granite_without_recurrent_layers_is_no_hybrid() {
    let mut fixture = granite_of_attention();
    let file = fixture.f32();
    assert_eq!(file.metadata().architecture().unwrap(), "granite");
    for (key, expected) in [
        ("context_length", 4096),
        ("feed_forward_length", 160),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 16),
    ] {
        assert_eq!(uint(&file, &format!("granite.{key}")), expected, "{key}");
    }
    for (key, expected) in
        [("attention.scale", 0.25), ("embedding_scale", 12.0), ("residual_scale", 0.22), ("logit_scale", 6.0)]
    {
        assert_eq!(file.metadata().float(&format!("granite.{key}")).unwrap(), expected, "{key}");
    }
    let rotates = |file: &GgufFile| file.metadata().bool_opt("granite.rope.scaling.finetuned").unwrap();
    assert_eq!(rotates(&file), Some(true));
    assert_eq!(shape(&file, "blk.3.ffn_gate.weight"), [64, 160]);
    let query = fixture.numbers("model.layers.3.self_attn.q_proj.weight");
    assert_eq!(numbers(&file, "blk.3.attn_q.weight"), rows(query, 64, &paired(4)));
    // As a newer version of the library saves it.
    let mut saved = granite_of_attention();
    saved.config["layer_types"] = json!(["full_attention", "full_attention", "full_attention", "full_attention"]);
    same(&fixture, &saved);
    // Positions are what its class has only if that is said.
    for none in [json!("nope"), json!(null)] {
        fixture.config["position_embedding_type"] = none;
        assert_eq!(rotates(&fixture.f32()), Some(false));
    }
    fixture.config["layer_types"] = json!(["attention", "attention", "conv", "attention"]);
    assert!(fixture.error(&of(Quant::F32)).contains("layer_types[2] = \"conv\", expected"));
    fixture.config["layer_types"] = json!(null);
    let error = fixture.error(&of(Quant::F32));
    assert!(error.starts_with("config.json: nothing says of which kind layer 0 is, expected layer_types"), "{error}");
    // A hybrid does not rotate.
    let mut hybrid = Fixture::golden("granitehybrid");
    hybrid.config["position_embedding_type"] = json!("rope");
    assert!(hybrid.error(&of(Quant::F32)).contains("position_embedding_type = \"rope\", expected \"nope\""));
}

#[test]
fn nemotron_blocks_have_one_part_each() {
    let fixture = Fixture::golden("nemotron_h");
    let mut expected = Expected::of(&fixture, "nemotron_h");
    expected.counts(&[
        ("block_count", 6),
        ("vocab_size", 512),
        ("context_length", 1_048_576),
        ("attention.head_count", 4),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("rope.dimension_count", 16),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 32),
        ("ssm.group_count", 2),
        ("ssm.inner_size", 128),
        ("ssm.time_step_rank", 8),
    ]);
    expected.key("feed_forward_length", &i32s(&[0, 160, 0, 0, 0, 160]));
    expected.key("attention.head_count_kv", &i32s(&[0, 0, 0, 2, 0, 0]));
    expected.key("attention.layer_norm_epsilon", &Value::F32(1e-5));
    expected.key("rope.scaling.finetuned", &Value::Bool(false));
    expected.no_key("attention.layer_norm_rms_epsilon");
    expected.no_key("expert_count");
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64, output.weight 64x512 w");
    expected.tensors(&[0, 2, 4], MAMBA2_TWO_GROUPS);
    expected.tensors(&[1, 3, 5], "attn_norm.weight 64");
    expected.tensors(&[1, 5], "ffn_up.weight 64x160 w, ffn_down.weight 160x64 w");
    expected.tensors(&[3], ATTENTION);
    expected.finish();
    let query = fixture.numbers("backbone.layers.3.mixer.q_proj.weight");
    assert_eq!(numbers(&fixture.f32(), "blk.3.attn_q.weight"), rows(query, 64, &paired(4)));
    // As a newer version of the library saves it: a list of words, and another name for the trunk.
    let mut saved = Fixture::golden("nemotron_h");
    saved.config["hybrid_override_pattern"] = Json::Null;
    saved.config["num_hidden_layers"] = Json::Null;
    saved.config["layers_block_type"] = json!(["mamba", "mlp", "mamba", "full_attention", "mamba", "mlp"]);
    saved.rename("backbone.", "model.");
    same(&fixture, &saved);
    saved.config["layers_block_type"] =
        json!(["linear_attention", "mlp", "linear_attention", "full_attention", "linear_attention", "mlp"]);
    same(&fixture, &saved);
    saved.config["layers_block_type"] = json!(["mamba", "mlp", "mamba", "other", "mamba", "mlp"]);
    let error = saved.error(&of(Quant::F32));
    assert!(error.starts_with("config.json: layers_block_type[3] = \"other\", expected mamba or attention"), "{error}");
}

#[test]
fn nemotron_with_experts_has_a_name_of_its_own() {
    let fixture = Fixture::golden("nemotron_h_moe");
    let mut expected = Expected::of(&fixture, "nemotron_h_moe");
    expected.counts(&[
        ("block_count", 5),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("expert_group_count", 1),
        ("expert_group_used_count", 1),
        ("expert_feed_forward_length", 64),
        ("expert_shared_feed_forward_length", 64),
        ("expert_shared_count", 1),
    ]);
    expected.key("expert_weights_norm", &Value::Bool(true));
    expected.key("expert_weights_scale", &Value::F32(2.5));
    expected.key("feed_forward_length", &i32s(&[0, 64, 0, 0, 64]));
    expected.key("attention.head_count_kv", &i32s(&[0, 0, 0, 2, 0]));
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64, output.weight 64x512 w");
    expected.tensors(&[0, 2], MAMBA2_TWO_GROUPS);
    expected.tensors(&[1, 3, 4], "attn_norm.weight 64");
    expected.tensors(&[3], ATTENTION);
    expected.tensors(
        &[1, 4],
        "ffn_gate_inp.weight 64x8, exp_probs_b.bias 8, ffn_up_exps.weight 64x64x8 w, ffn_down_exps.weight 64x64x8 w,
        ffn_up_shexp.weight 64x64 w, ffn_down_shexp.weight 64x64 w",
    );
    expected.finish();
    let mut fused = Fixture::golden("nemotron_h_moe");
    for layer in [1, 4] {
        let prefix = format!("backbone.layers.{layer}.mixer.experts");
        fused.fuse(&prefix, &["up_proj"], 8, "up_proj");
        fused.fuse(&prefix, &["down_proj"], 8, "down_proj");
    }
    same(&fixture, &fused);
    for (groups, used, expected) in [
        (4, 2, ""),
        (3, 1, "n_group = 3, expected groups of two or more of the 8 experts"),
        (8, 2, "n_group = 8, expected groups of two or more of the 8 experts"),
        (4, 5, "topk_group = 5, expected 1 to 4"),
        (2, 0, "topk_group = 0, expected 1 to 2"),
    ] {
        fused.config["n_group"] = json!(groups);
        fused.config["topk_group"] = json!(used);
        match expected {
            "" => assert_eq!(uint(&fused.f32(), "nemotron_h_moe.expert_group_used_count"), used),
            expected => assert_eq!(fused.error(&of(Quant::F32)), format!("config.json: {expected}")),
        }
    }
}

/// Its attention and its experts are layers of their own in the checkpoint, and one block in the file.
#[test]
fn nemotron_prediction_becomes_one_block() {
    let mut fixture = Fixture::golden("nemotron_h_moe");
    let without = fixture.f32().tensors().len();
    let parts = |prefix: &str| -> Vec<(String, Made)> {
        let inside = |(name, made): (&String, &Made)| Some((name.strip_prefix(prefix)?.to_string(), made.clone()));
        fixture.tensors.iter().filter_map(inside).collect()
    };
    let (attention, experts) = (parts("backbone.layers.3."), parts("backbone.layers.4."));
    for (layer, parts) in [attention, experts].into_iter().enumerate() {
        fixture.tensors.extend(parts.into_iter().map(|(name, made)| (format!("mtp.layers.{layer}.{name}"), made)));
    }
    fixture.add_all(
        "mtp.layers.",
        &[
            ("0.enorm.weight", &[64]),
            ("0.hnorm.weight", &[64]),
            ("0.eh_proj.weight", &[64, 128]),
            ("1.final_layernorm.weight", &[64]),
        ],
    );
    let file = fixture.f32();
    assert_eq!(uint(&file, "nemotron_h_moe.block_count"), 6);
    assert_eq!(uint(&file, "nemotron_h_moe.nextn_predict_layers"), 1);
    let key = |key: &str| file.metadata().get(&format!("nemotron_h_moe.{key}"));
    assert_eq!(key("attention.head_count_kv"), Some(&i32s(&[0, 0, 0, 2, 0, 2])));
    assert_eq!(key("feed_forward_length"), Some(&i32s(&[0, 64, 0, 0, 64, 64])));
    assert_eq!(file.tensors().len(), without + 5 + 5 + 6);
    for (target, source) in [
        ("nextn.eh_proj.weight", "0.eh_proj.weight"),
        ("nextn.enorm.weight", "0.enorm.weight"),
        ("nextn.hnorm.weight", "0.hnorm.weight"),
        ("nextn.shared_head_norm.weight", "1.final_layernorm.weight"),
        ("attn_norm.weight", "0.norm.weight"),
        ("post_attention_norm.weight", "1.norm.weight"),
        ("attn_v.weight", "0.mixer.v_proj.weight"),
        ("exp_probs_b.bias", "1.mixer.gate.e_score_correction_bias"),
    ] {
        let source = fixture.numbers(&format!("mtp.layers.{source}"));
        assert_eq!(numbers(&file, &format!("blk.5.{target}")), source, "{target}");
    }
    let query = fixture.numbers("mtp.layers.0.mixer.q_proj.weight");
    assert_eq!(numbers(&file, "blk.5.attn_q.weight"), rows(query, 64, &paired(4)));
    let omitted = fixture.convert(&ConvertOptions { mtp: MtpBlocks::Omit, ..of(Quant::F32) }).unwrap();
    assert_eq!(omitted.tensors().len(), without);
}

#[test]
fn falcon_multipliers_go_into_the_weights() {
    let fixture = Fixture::golden("falcon-h1");
    let mut expected = Expected::of(&fixture, "falcon-h1");
    expected.counts(&[
        ("block_count", 3),
        ("vocab_size", 512),
        ("feed_forward_length", 160),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 128),
        ("ssm.state_size", 32),
        ("ssm.time_step_rank", 8),
        ("ssm.group_count", 1),
    ]);
    expected.key("rope.freq_base", &Value::F32(99_999_997_952.0));
    expected.no_key("rope.dimension_count");
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64, output.weight 64x512 w");
    expected.tensors(&[0, 1, 2], MAMBA2_ONE_GROUP);
    expected.tensors(&[0, 1, 2], ATTENTION);
    expected
        .tensors(&[0, 1, 2], "ffn_norm 64, ffn_gate.weight 64x160 w, ffn_up.weight 64x160 w, ffn_down.weight 160x64 w");
    expected.finish();
    let file = fixture.f32();
    let scaled = |numbers: &[f32], factor: f32| numbers.iter().map(|x| x * factor).collect::<Vec<f32>>();
    for (target, source, factor) in [
        ("token_embd.weight", "model.embed_tokens.weight", 3.1),
        ("output.weight", "lm_head.weight", 0.3),
        ("blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight", 1.1),
        ("blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight", 1.1 * 0.5),
        ("blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight", 1.1),
        ("blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight", 0.8),
        ("blk.1.ffn_gate.weight", "model.layers.1.feed_forward.gate_proj.weight", 0.9),
        ("blk.1.ffn_up.weight", "model.layers.1.feed_forward.up_proj.weight", 1.0),
        ("blk.1.ffn_down.weight", "model.layers.1.feed_forward.down_proj.weight", 0.6),
        ("blk.1.ssm_out.weight", "model.layers.1.mamba.out_proj.weight", 0.7),
    ] {
        assert_eq!(numbers(&file, target), scaled(fixture.numbers(source), factor), "{target}");
    }
    // Rows z, x, B, C, dt.
    let mut source = fixture.numbers("model.layers.1.mamba.in_proj.weight");
    let mut found = numbers(&file, "blk.1.ssm_in.weight");
    for (count, factor) in [(128, 0.7), (128, 0.8), (32, 0.9), (32, 1.1), (8, 1.2)] {
        let (part, rest) = source.split_at(count * 64);
        for (found, number) in found.drain(..count * 64).zip(part) {
            assert!((f64::from(found) - f64::from(*number) * 1.3 * factor).abs() <= 1e-6 * f64::from(number.abs()));
        }
        source = rest;
    }
    assert!(source.is_empty() && found.is_empty());
    // A tied head has another multiplier than the embeddings, so both are written.
    let mut tied = Fixture::golden("falcon-h1");
    tied.tensors.remove("lm_head.weight");
    tied.config["tie_word_embeddings"] = json!(true);
    let head = scaled(fixture.numbers("model.embed_tokens.weight"), 0.3);
    assert_eq!(numbers(&tied.f32(), "output.weight"), head);
    // Where there is a norm, the class has it before the gate unless it is told.
    tied.config["mamba_norm_before_gate"] = Json::Null;
    tied.f32();
    tied.config["mamba_rms_norm"] = json!(true);
    assert_eq!(tied.error(&of(Quant::F32)), "config.json: mamba_norm_before_gate is missing, expected false");
}

#[test]
fn jamba_has_the_first_mamba_and_attention_now_and_then() {
    let fixture = Fixture::golden("jamba");
    let mut expected = Expected::of(&fixture, "jamba");
    expected.counts(&[
        ("block_count", 4),
        ("feed_forward_length", 160),
        ("attention.head_count", 4),
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 128),
        ("ssm.state_size", 16),
        ("ssm.time_step_rank", 8),
        ("expert_count", 4),
        ("expert_used_count", 2),
    ]);
    expected.key("attention.head_count_kv", &i32s(&[0, 0, 2, 0]));
    expected.no_key("rope.freq_base");
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64, output.weight 64x512 w");
    expected.tensors(
        &[0, 1, 3],
        "ssm_in.weight 64x256 w, ssm_conv1d.weight 4x128, ssm_conv1d.bias 128, ssm_x.weight 128x40 w,
        ssm_dt_norm.weight 8, ssm_b_norm.weight 16, ssm_c_norm.weight 16, ssm_dt.weight 8x128 w, ssm_dt.bias 128,
        ssm_a 16x128, ssm_d 128, ssm_out.weight 128x64 w",
    );
    expected.tensors(&[2], ATTENTION);
    expected.tensors(&[0, 1, 2, 3], "attn_norm.weight 64, ffn_norm.weight 64");
    expected.tensors(&[0, 2], "ffn_gate.weight 64x160 w, ffn_up.weight 64x160 w, ffn_down.weight 160x64 w");
    expected.tensors(
        &[1, 3],
        "ffn_gate_inp.weight 64x4, ffn_gate_exps.weight 64x160x4 w, ffn_up_exps.weight 64x160x4 w,
        ffn_down_exps.weight 160x64x4 w",
    );
    expected.finish();
    let query = fixture.numbers("model.layers.2.self_attn.q_proj.weight");
    assert_eq!(numbers(&fixture.f32(), "blk.2.attn_q.weight"), query, "rows keep their order");
    let decay = negated_exp(fixture.numbers("model.layers.0.mamba.A_log"));
    assert_eq!(numbers(&fixture.f32(), "blk.0.ssm_a"), decay);
}
