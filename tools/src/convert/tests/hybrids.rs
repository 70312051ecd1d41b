//! The other families of reference checkpoints: keys, names, shapes and types as the description of the format has
//! them, and the numbers of what is cut or swapped.

use super::golden::*;
use super::*;

#[test]
fn qwen3moe_has_experts_in_every_layer() {
    let fixture = Fixture::golden("qwen3moe");
    let mut expected = Expected::of(&fixture, "qwen3moe");
    expected.counts(&[
        ("block_count", 2),
        ("feed_forward_length", 160),
        ("attention.head_count_kv", 2),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 32),
    ]);
    expected.no_key("expert_shared_feed_forward_length");
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64, output.weight 64x512 w");
    expected.tensors(&[0, 1], ATTENTION);
    expected.tensors(
        &[0, 1],
        "attn_norm.weight 64, ffn_norm.weight 64, attn_q_norm.weight 16, attn_k_norm.weight 16,
        ffn_gate_inp.weight 64x8, ffn_gate_exps.weight 64x32x8 w, ffn_up_exps.weight 64x32x8 w,
        ffn_down_exps.weight 32x64x8 w",
    );
    expected.finish();
    let mut fused = Fixture::golden("qwen3moe");
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.mlp.experts");
        fused.fuse(&prefix, &["gate_proj", "up_proj"], 8, "gate_up_proj");
        fused.fuse(&prefix, &["down_proj"], 8, "down_proj");
    }
    same(&fixture, &fused);
    fused.config["norm_topk_prob"] = json!(false);
    assert!(fused.error(&of(Quant::F32)).contains("norm_topk_prob = false, expected true"));
    // The class of this one does not make them sum to 1 unless it is told.
    fused.config["norm_topk_prob"] = Json::Null;
    assert_eq!(fused.error(&of(Quant::F32)), "config.json: norm_topk_prob is missing, expected true");
}

#[test]
fn qwen35moe_is_qwen35_with_experts() {
    let fixture = Fixture::golden("qwen35moe");
    let mut expected = Expected::of(&fixture, "qwen35moe");
    expected.counts(&[
        ("block_count", 4),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 32),
        ("expert_shared_feed_forward_length", 64),
        ("ssm.inner_size", 128),
        ("rope.dimension_count", 4),
    ]);
    expected.no_key("feed_forward_length");
    expected.key("rope.dimension_sections", &i32s(&[1, 1, 0, 0]));
    expected.key("attention.recurrent_layers", &Value::Bools(vec![true, true, true, false]));
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64, output.weight 64x512 w");
    expected.tensors(
        &[0, 1, 2],
        "attn_qkv.weight 64x256 w, attn_gate.weight 64x128 w, ssm_alpha.weight 64x4 w, ssm_beta.weight 64x4 w, ssm_a 4,
        ssm_dt.bias 4, ssm_conv1d.weight 4x256, ssm_norm.weight 32, ssm_out.weight 128x64 w",
    );
    expected.tensors(
        &[3],
        "attn_q.weight 64x128 w, attn_k.weight 64x32 w, attn_v.weight 64x32 w, attn_output.weight 64x64 w,
        attn_q_norm.weight 16, attn_k_norm.weight 16",
    );
    expected.tensors(
        &[0, 1, 2, 3],
        "attn_norm.weight 64, post_attention_norm.weight 64, ffn_gate_inp.weight 64x8, ffn_gate_exps.weight 64x32x8 w,
        ffn_up_exps.weight 64x32x8 w, ffn_down_exps.weight 32x64x8 w, ffn_gate_shexp.weight 64x64 w,
        ffn_up_shexp.weight 64x64 w, ffn_down_shexp.weight 64x64 w, ffn_gate_inp_shexp.weight 64x1",
    );
    expected.finish();
}

#[test]
fn lfm2_has_convolutions_between_its_attention() {
    let fixture = Fixture::golden("lfm2");
    let mut expected = Expected::of(&fixture, "lfm2");
    // The feed-forward of 192 is adjusted: two thirds of it.
    expected.counts(&[
        ("block_count", 5),
        ("vocab_size", 512),
        ("feed_forward_length", 128),
        ("attention.head_count", 4),
        ("shortconv.l_cache", 3),
    ]);
    expected.key("attention.head_count_kv", &i32s(&[0, 0, 2, 0, 2]));
    expected.key("attention.layer_norm_rms_epsilon", &Value::F32(1e-5));
    expected.key("rope.freq_base", &Value::F32(1e6));
    expected.tensors(&[-1], "token_embd.weight 64x512 w, token_embd_norm.weight 64");
    let conv = "shortconv.in_proj.weight 64x192 w, shortconv.conv.weight 3x64, shortconv.out_proj.weight 64x64 w";
    expected.tensors(&[0, 1, 3], conv);
    expected.tensors(&[2, 4], ATTENTION);
    expected.tensors(&[2, 4], "attn_q_norm.weight 16, attn_k_norm.weight 16");
    let ffn = "attn_norm.weight 64, ffn_norm.weight 64, ffn_gate.weight 64x128 w, ffn_up.weight 64x128 w,
        ffn_down.weight 128x64 w";
    expected.tensors(&[0, 1, 2, 3, 4], ffn);
    expected.finish();
    let file = fixture.f32();
    for (target, source) in [("ffn_gate", "w1"), ("ffn_up", "w3"), ("ffn_down", "w2")] {
        let source = fixture.numbers(&format!("model.layers.0.feed_forward.{source}.weight"));
        assert_eq!(numbers(&file, &format!("blk.0.{target}.weight")), source);
    }
    // The older way to say where attention is.
    // Files of this architecture say nothing of a scaling of positions.
    let mut scaled = Fixture::golden("lfm2");
    scaled.config["rope_parameters"] = json!({"rope_theta": 1e6, "rope_type": "yarn", "factor": 2});
    assert_eq!(scaled.error(&of(Quant::F32)), "config.json: rope_parameters.rope_type = \"yarn\", expected default");
    let mut older = Fixture::golden("lfm2");
    older.config["layer_types"] = Json::Null;
    older.config["full_attn_idxs"] = json!([2, 4]);
    older.config["intermediate_size"] = Json::Null;
    older.config["block_ff_dim"] = json!(192);
    same(&fixture, &older);
}

/// Readers share the width out among the heads unless a key says otherwise.
#[test]
fn heads_of_another_width_are_said_in_the_file() {
    for (name, layers, output) in [("lfm2", [2, 4].as_slice(), "out_proj"), ("jamba", &[2], "o_proj")] {
        let mut fixture = Fixture::golden(name);
        let key = |file: &GgufFile, key: &str| file.metadata().get(&format!("{name}.attention.{key}_length")).cloned();
        assert_eq!(key(&fixture.f32(), "key"), None);
        fixture.config["head_dim"] = json!(8);
        for layer in layers {
            let prefix = format!("model.layers.{layer}.self_attn.");
            let shapes: [(&str, &[usize]); 3] =
                [("q_proj.weight", &[32, 64]), ("k_proj.weight", &[16, 64]), ("v_proj.weight", &[16, 64])];
            fixture.add_all(&prefix, &shapes);
            fixture.add(&format!("{prefix}{output}.weight"), &[64, 32]);
            if name == "lfm2" {
                fixture.add_all(&prefix, &[("q_layernorm.weight", &[8]), ("k_layernorm.weight", &[8])]);
            }
        }
        let file = fixture.f32();
        assert_eq!([key(&file, "key"), key(&file, "value")], [const { Some(Value::U32(8)) }; 2], "{name}");
    }
}

/// What a configuration does not say is what the reference takes then.
#[test]
fn missing_settings_are_those_of_the_reference() {
    let of = |name: &str, change: &dyn Fn(&mut serde_json::Map<String, Json>), key: &str| {
        let mut fixture = Fixture::golden(name);
        change(fixture.config.as_object_mut().unwrap());
        fixture.f32().metadata().get(key).cloned().unwrap()
    };
    for name in ["lfm2", "lfm2moe"] {
        let key = format!("{name}.rope.freq_base");
        let without = |config: &mut serde_json::Map<String, Json>| drop(config.remove("rope_parameters"));
        assert_eq!(of(name, &without, &key), Value::F32(1e6));
        let older = |config: &mut serde_json::Map<String, Json>| {
            without(config);
            config.insert("theta".into(), json!(5000.0));
        };
        assert_eq!(of(name, &older, &key), Value::F32(5000.0));
    }
    let without = |config: &mut serde_json::Map<String, Json>| drop(config.remove("rms_norm_eps"));
    assert_eq!(of("falcon-h1", &without, "falcon-h1.attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
    let without = |config: &mut serde_json::Map<String, Json>| drop(config.remove("num_experts_per_tok"));
    assert_eq!(of("jamba", &without, "jamba.expert_used_count"), Value::U32(2));
}

#[test]
fn lfm2moe_is_dense_at_first() {
    let fixture = Fixture::golden("lfm2moe");
    let mut expected = Expected::of(&fixture, "lfm2moe");
    expected.counts(&[
        ("feed_forward_length", 128),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 32),
        ("leading_dense_block_count", 1),
        ("expert_gating_func", 2),
    ]);
    expected.key("attention.head_count_kv", &i32s(&[0, 2, 0, 2]));
    expected.tensors(&[-1], "token_embd.weight 64x512 w, token_embd_norm.weight 64");
    let conv = "shortconv.in_proj.weight 64x192 w, shortconv.conv.weight 3x64, shortconv.out_proj.weight 64x64 w";
    expected.tensors(&[0, 2], conv);
    expected.tensors(&[1, 3], ATTENTION);
    expected.tensors(&[1, 3], "attn_q_norm.weight 16, attn_k_norm.weight 16");
    expected.tensors(&[0, 1, 2, 3], "attn_norm.weight 64, ffn_norm.weight 64");
    expected.tensors(&[0], "ffn_gate.weight 64x128 w, ffn_up.weight 64x128 w, ffn_down.weight 128x64 w");
    expected.tensors(
        &[1, 2, 3],
        "ffn_gate_inp.weight 64x8, exp_probs_b.bias 8, ffn_gate_exps.weight 64x32x8 w, ffn_up_exps.weight 64x32x8 w,
        ffn_down_exps.weight 32x64x8 w",
    );
    expected.finish();
    let mut fused = Fixture::golden("lfm2moe");
    for layer in 1..4 {
        let prefix = format!("model.layers.{layer}.feed_forward.experts");
        fused.fuse(&prefix, &["w1", "w3"], 8, "gate_up_proj");
        fused.fuse(&prefix, &["w2"], 8, "down_proj");
    }
    same(&fixture, &fused);
}

#[test]
fn kimi_splits_its_latent_projection() {
    let fixture = Fixture::golden("kimi-linear");
    let mut expected = Expected::of(&fixture, "kimi-linear");
    expected.counts(&[
        ("block_count", 4),
        ("context_length", 4096),
        ("vocab_size", 512),
        ("feed_forward_length", 160),
        ("attention.head_count", 4),
        ("attention.key_length", 48),
        ("attention.value_length", 16),
        ("attention.kv_lora_rank", 32),
        ("attention.key_length_mla", 32),
        ("attention.value_length_mla", 16),
        ("rope.dimension_count", 16),
        ("ssm.conv_kernel", 4),
        ("kda.head_dim", 32),
        ("expert_feed_forward_length", 32),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("expert_shared_count", 1),
        ("expert_group_used_count", 1),
        ("leading_dense_block_count", 1),
        ("expert_gating_func", 2),
    ]);
    expected.key("attention.head_count_kv", &i32s(&[0, 0, 1, 0]));
    expected.key("expert_weights_scale", &Value::F32(2.446));
    expected.tensors(&[-1], "token_embd.weight 64x512 w, output_norm.weight 64, output.weight 64x512 w");
    expected.tensors(
        &[0, 1, 3],
        "attn_q.weight 64x64 w, attn_k.weight 64x64 w, attn_v.weight 64x64 w, ssm_conv1d_q.weight 4x1x64x1,
        ssm_conv1d_k.weight 4x1x64x1, ssm_conv1d_v.weight 4x1x64x1, ssm_f_a.weight 64x32 w, ssm_f_b.weight 32x64 w,
        ssm_dt.bias 64, ssm_a 1x2x1x1, ssm_beta.weight 64x2 w, ssm_g_a.weight 64x32 w, ssm_g_b.weight 32x64 w,
        ssm_norm.weight 32, attn_output.weight 64x64 w",
    );
    expected.tensors(
        &[2],
        "attn_q.weight 64x128 w, attn_kv_a_mqa.weight 64x48 w, attn_kv_a_norm.weight 32, attn_k_b.weight 16x32x4 w,
        attn_v_b.weight 32x16x4 w, attn_output.weight 64x64 w",
    );
    expected.tensors(&[0, 1, 2, 3], "attn_norm.weight 64, ffn_norm.weight 64");
    expected.tensors(&[0], "ffn_gate.weight 64x160 w, ffn_up.weight 64x160 w, ffn_down.weight 160x64 w");
    expected.tensors(
        &[1, 2, 3],
        "ffn_gate_inp.weight 64x8, exp_probs_b.bias 8, ffn_gate_exps.weight 64x32x8 w, ffn_up_exps.weight 64x32x8 w,
        ffn_down_exps.weight 32x64x8 w, ffn_gate_shexp.weight 64x32 w, ffn_up_shexp.weight 64x32 w,
        ffn_down_shexp.weight 32x64 w",
    );
    expected.finish();
    let file = fixture.f32();
    // Rows of each head: 16 for keys, 16 for values; 32 columns.
    let both = fixture.numbers("model.layers.2.self_attn.kv_b_proj.weight");
    let (keys, values) = (numbers(&file, "blk.2.attn_k_b.weight"), numbers(&file, "blk.2.attn_v_b.weight"));
    for (at, &number) in both.iter().enumerate() {
        let (head, row, column) = (at / 1024, at / 32 % 32, at % 32);
        let found =
            if row < 16 { keys[(head * 32 + column) * 16 + row] } else { values[(head * 16 + row - 16) * 32 + column] };
        assert_eq!(found, number, "head {head}, row {row}, column {column}");
    }
    // As a newer version of the library saves it.
    let mut saved = Fixture::golden("kimi-linear");
    saved.config["linear_attn_config"] = Json::Null;
    saved.config["first_k_dense_replace"] = Json::Null;
    for layer in 1..4 {
        let prefix = format!("model.layers.{layer}.block_sparse_moe.experts");
        saved.fuse(&prefix, &["w1", "w3"], 8, "gate_up_proj");
        saved.fuse(&prefix, &["w2"], 8, "down_proj");
    }
    saved.rename(".block_sparse_moe.", ".mlp.");
    let (published, saved) = (fixture.f32(), saved.f32());
    assert_eq!(numbers(&published, "blk.1.ffn_up_exps.weight"), numbers(&saved, "blk.1.ffn_up_exps.weight"));
    assert_eq!(uint(&saved, "kimi-linear.leading_dense_block_count"), 1);
}

/// A dense layer behind one of experts does not lead.
#[test]
fn kimi_may_be_dense_behind_its_experts() {
    let mut mixed = Fixture::golden("kimi-linear");
    mixed.config["first_k_dense_replace"] = Json::Null;
    mixed.config["mlp_layer_types"] = json!(["dense", "sparse", "dense", "sparse"]);
    mixed.tensors.retain(|name, _| !name.starts_with("model.layers.2.block_sparse_moe."));
    let dense: [(&str, &[usize]); 3] =
        [("gate_proj.weight", &[160, 64]), ("up_proj.weight", &[160, 64]), ("down_proj.weight", &[64, 160])];
    mixed.add_all("model.layers.2.mlp.", &dense);
    assert_eq!(uint(&mixed.f32(), "kimi-linear.leading_dense_block_count"), 1);
}
