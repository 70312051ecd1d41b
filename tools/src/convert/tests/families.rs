//! Each family: names, shapes, values after every transform, and keys.

use super::*;

/// Rope pairs of one head of 4: rows 0 2 1 3.
const PAIRED: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];
/// Four value heads of two key heads, tiled.
const TILED: [usize; 4] = [0, 2, 1, 3];

fn tiled_rows(skip: usize, size: usize) -> Vec<usize> {
    (0..skip).chain(TILED.iter().flat_map(|head| (0..size).map(move |at| skip + head * size + at))).collect()
}

fn plus_one(numbers: &[f32]) -> Vec<f32> {
    numbers.iter().map(|x| x + 1.0).collect()
}

#[test]
fn llama_pairs_rope_rows_and_ties_the_head() {
    let fixture = llama();
    let file = fixture.f32();
    assert_eq!(file.metadata().architecture().unwrap(), "llama");
    assert_eq!(file.tensors().len(), 2 + 2 * 9);
    assert_eq!(file.metadata().string("general.size_label").unwrap(), "0.8K");
    let source = |name: &str| fixture.numbers(&format!("model.layers.1.{name}"));
    assert_eq!(numbers(&file, "blk.1.attn_q.weight"), rows(source("self_attn.q_proj.weight"), 8, &PAIRED));
    assert_eq!(numbers(&file, "blk.1.attn_k.weight"), rows(source("self_attn.k_proj.weight"), 8, &PAIRED[..4]));
    assert_eq!(numbers(&file, "blk.1.attn_v.weight"), source("self_attn.v_proj.weight"));
    assert_eq!(numbers(&file, "blk.1.ffn_norm.weight"), source("post_attention_layernorm.weight"));
    assert_eq!(shape(&file, "blk.1.ffn_down.weight"), [6, 8]);
    assert_eq!(shape(&file, "token_embd.weight"), [8, 12]);
    for (key, expected) in [
        ("llama.block_count", 2),
        ("llama.context_length", 128),
        ("llama.embedding_length", 8),
        ("llama.feed_forward_length", 6),
        ("llama.attention.head_count", 2),
        ("llama.attention.head_count_kv", 1),
        ("llama.attention.key_length", 4),
        ("llama.rope.dimension_count", 4),
        ("llama.vocab_size", 12),
        ("general.file_type", 0),
        ("tokenizer.ggml.eos_token_id", 8),
    ] {
        assert_eq!(file.metadata().get(key), Some(&Value::U32(expected)), "{key}");
    }
    assert_eq!(file.metadata().get("llama.rope.freq_base"), Some(&Value::F32(5000.0)));
    assert_eq!(file.metadata().get("llama.attention.layer_norm_rms_epsilon"), Some(&Value::F32(1e-5)));
    assert!(file.metadata().get("llama.rope.scaling.type").is_none());
    assert!(file.metadata().get("llama.attention.sliding_window").is_none());
}

#[test]
fn biases_and_the_window_of_mistral_are_kept() {
    let mut fixture = llama();
    fixture.config["architectures"] = json!(["MistralForCausalLM"]);
    fixture.config["attention_bias"] = json!(true);
    fixture.config["sliding_window"] = json!(64);
    for layer in 0..2 {
        fixture.add_all(
            &format!("model.layers.{layer}.self_attn."),
            &[("q_proj.bias", &[8]), ("k_proj.bias", &[4]), ("v_proj.bias", &[4]), ("o_proj.bias", &[8])],
        );
    }
    let file = fixture.f32();
    let bias = fixture.numbers("model.layers.0.self_attn.q_proj.bias");
    assert_eq!(numbers(&file, "blk.0.attn_q.bias"), rows(bias, 1, &PAIRED));
    assert_eq!(uint(&file, "llama.attention.sliding_window"), 64);
}

#[test]
fn names_may_do_without_a_trunk() {
    let plain = llama();
    let mut bare = llama();
    bare.tensors = bare.tensors.iter().map(|(name, made)| (name.replacen("model.", "", 1), made.clone())).collect();
    let (plain, bare_file) = (plain.f32(), bare.f32());
    assert_eq!(plain.tensors().len(), bare_file.tensors().len());
    let name = |file: &GgufFile| file.tensors().iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
    assert_eq!(name(&plain), name(&bare_file));
    bare.tensors.remove("embed_tokens.weight");
    assert_eq!(bare.error(&of(Quant::F32)), "tensor model.embed_tokens.weight is missing from the checkpoint");
}

#[test]
fn rope_scaling_is_read_in_both_generations() {
    let mut old = llama();
    old.config["rope_scaling"] = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
    let mut new = llama();
    new.config["rope_theta"] = Json::Null;
    new.config["rope_parameters"] = json!({
        "rope_theta": 5000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
    let keys = |fixture: &Fixture| {
        let file = fixture.f32();
        let rope = file.metadata().iter().filter(|(key, _)| key.contains(".rope."));
        rope.map(|(key, value)| (key.to_string(), value.clone())).collect::<Vec<_>>()
    };
    assert_eq!(keys(&old), keys(&new));
    assert!(keys(&old).contains(&("llama.rope.scaling.factor".into(), Value::F32(4.0))));
    assert!(keys(&old).contains(&("llama.rope.scaling.original_context_length".into(), Value::U32(32))));
    // What a checkpoint multiplies by in all, a file says beside what YaRN does by itself.
    let told = |fixture: &Fixture| keys(fixture).into_iter().find(|(key, _)| key == "llama.rope.scaling.attn_factor");
    assert_eq!(told(&old), None);
    old.config["rope_scaling"]["attention_factor"] = json!(1.5);
    new.config["rope_parameters"]["attention_factor"] = json!(1.5);
    let Some((_, Value::F32(factor))) = told(&old) else { panic!("{:?}", keys(&old)) };
    assert!((factor * 1.138_629_4 - 1.5).abs() < 1e-6, "{factor}");
    assert_eq!(keys(&old), keys(&new));
    old.config["rope_scaling"]["attention_factor"] = json!(-1);
    let error = old.error(&of(Quant::F32));
    assert_eq!(error, "config.json: rope_scaling.attention_factor = -1 with a factor of 4, expected positive numbers");
    // Two scales whose ratio it is: 0.1 * 0.5 * ln 4 + 1 over 0.1 * 2 * ln 4 + 1, over what YaRN does by itself.
    old.config["rope_scaling"] = json!({"type": "yarn", "factor": 4.0, "mscale": 0.5, "mscale_all_dim": 2});
    let Some((_, Value::F32(factor))) = told(&old) else { panic!("{:?}", keys(&old)) };
    assert!((factor - 1.069_314_7 / 1.277_258_9 / 1.138_629_4).abs() < 1e-6, "{factor}");
    old.config["rope_scaling"]["truncate"] = json!(false);
    let error = old.error(&of(Quant::F32));
    assert!(error.starts_with("config.json: rope_scaling.truncate = false, expected true"), "{error}");
    old.config["rope_scaling"] = json!({"rope_type": "linear", "factor": 2, "attention_factor": 1.5});
    let linear = keys(&old);
    assert_eq!(told(&old), None);
    assert!(linear.contains(&("llama.rope.scaling.type".into(), Value::String("linear".into()))));
    assert!(linear.iter().all(|(key, _)| !key.contains("yarn")));
}

#[test]
fn rope_in_both_spellings_says_the_same_and_has_its_factor() {
    let mut both = llama();
    both.config["rope_parameters"] = json!({"rope_theta": 5000.0, "rope_type": "default"});
    both.config["rope_scaling"] = json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 32});
    assert_eq!(
        both.error(&of(Quant::F32)),
        "config.json: rope_scaling.type = \"yarn\" beside rope_parameters.rope_type = \"default\", expected the same in both"
    );
    both.config["rope_parameters"] = json!({"rope_theta": 5000.0, "rope_type": "yarn", "factor": 2.0});
    let error = both.error(&of(Quant::F32));
    assert_eq!(
        error,
        "config.json: rope_scaling.factor = 4 beside rope_parameters.factor = 2.0, expected the same in both"
    );
    both.config["rope_parameters"]["factor"] = json!(4.0);
    assert_eq!(both.f32().metadata().get("llama.rope.scaling.factor"), Some(&Value::F32(4.0)));
    both.config["rope_scaling"] = json!({"type": "mrope", "rope_type": "default", "factor": null});
    both.config["rope_parameters"]["rope_type"] = json!("default");
    both.f32();
    both.config["rope_scaling"] = Json::Null;
    both.config["rope_parameters"]["rope_type"] = json!("yarn");
    both.config["rope_parameters"]["factor"] = Json::Null;
    let error = both.error(&of(Quant::F32));
    assert_eq!(error, "config.json: rope_parameters.factor is missing, expected the factor of yarn");
}

#[test]
fn llama3_scaling_becomes_a_tensor() {
    let mut fixture = llama();
    fixture.config["head_dim"] = json!(4);
    // Wave lengths of the two pairs: 6.3 and 444.
    for (original, expected) in [(20, [1.0, 8.0]), (2, [8.0, 8.0]), (100_000, [1.0, 1.0]), (1000, [1.0, 0.0])] {
        fixture.config["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
            "original_max_position_embeddings": original});
        let found = numbers(&fixture.f32(), "rope_freqs.weight");
        if original != 1000 {
            assert_eq!(found, expected, "{original}");
            continue;
        }
        let share = (1000.0 / (std::f64::consts::TAU * 5000f64.sqrt()) - 1.0) / 2.0;
        assert!((f64::from(found[1]) - 1.0 / ((1.0 - share) / 8.0 + share)).abs() < 1e-6);
    }
}

#[test]
fn qwen2_has_biases_and_qwen3_head_norms() {
    let mut fixture = llama();
    fixture.config["architectures"] = json!(["Qwen2ForCausalLM"]);
    for layer in 0..2 {
        fixture.add_all(
            &format!("model.layers.{layer}.self_attn."),
            &[("q_proj.bias", &[8]), ("k_proj.bias", &[4]), ("v_proj.bias", &[4])],
        );
    }
    let file = fixture.f32();
    assert_eq!(file.metadata().architecture().unwrap(), "qwen2");
    for (target, source) in [("attn_q.weight", "q_proj.weight"), ("attn_k.bias", "k_proj.bias")] {
        let source = fixture.numbers(&format!("model.layers.0.self_attn.{source}"));
        assert_eq!(numbers(&file, &format!("blk.0.{target}")), source, "rows keep their order");
    }
    let mut fixture = llama();
    fixture.config["architectures"] = json!(["Qwen3ForCausalLM"]);
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.self_attn.");
        fixture.add_all(&prefix, &[("q_norm.weight", &[4]), ("k_norm.weight", &[4])]);
    }
    let file = fixture.f32();
    assert_eq!(file.metadata().architecture().unwrap(), "qwen3");
    let norm = fixture.numbers("model.layers.0.self_attn.k_norm.weight");
    assert_eq!(numbers(&file, "blk.0.attn_k_norm.weight"), norm, "stored as it is");
}

#[test]
fn qwen35_tiles_its_value_heads() {
    let fixture = qwen35("model.");
    let file = fixture.f32();
    let source = |name: &str| fixture.numbers(&format!("model.layers.0.linear_attn.{name}"));
    let target = |name: &str| numbers(&file, &format!("blk.0.{name}"));
    assert_eq!(target("attn_qkv.weight"), rows(source("in_proj_qkv.weight"), 8, &tiled_rows(8, 3)));
    assert_eq!(target("attn_gate.weight"), rows(source("in_proj_z.weight"), 8, &tiled_rows(0, 3)));
    assert_eq!(target("ssm_alpha.weight"), rows(source("in_proj_a.weight"), 8, &TILED));
    assert_eq!(target("ssm_beta.weight"), rows(source("in_proj_b.weight"), 8, &TILED));
    assert_eq!(target("ssm_dt.bias"), rows(source("dt_bias"), 1, &TILED));
    assert_eq!(target("ssm_conv1d.weight"), rows(source("conv1d.weight"), 4, &tiled_rows(8, 3)));
    assert_eq!(shape(&file, "blk.0.ssm_conv1d.weight"), [4, 20]);
    let out: Vec<f32> = source("out_proj.weight").chunks(12).flat_map(|row| rows(row, 1, &tiled_rows(0, 3))).collect();
    assert_eq!(target("ssm_out.weight"), out);
    let decay: Vec<f32> = rows(source("A_log"), 1, &TILED).iter().map(|x| -x.exp()).collect();
    assert_eq!(target("ssm_a"), decay);
    assert_eq!(target("ssm_norm.weight"), source("norm.weight"), "this norm is stored as it is");
    let norm = fixture.numbers("model.layers.0.post_attention_layernorm.weight");
    assert_eq!(target("post_attention_norm.weight"), plus_one(norm));
    assert_eq!(numbers(&file, "output_norm.weight"), plus_one(fixture.numbers("model.norm.weight")));
    let head_norm = plus_one(fixture.numbers("model.layers.1.self_attn.q_norm.weight"));
    assert_eq!(numbers(&file, "blk.1.attn_q_norm.weight"), head_norm);
    assert_eq!(numbers(&file, "output.weight"), fixture.numbers("lm_head.weight"));
    assert_eq!(file.tensors().len(), 3 + 14 + 11);
}

#[test]
fn qwen35_keys_describe_the_hybrid() {
    let mut fixture = qwen35("model.");
    let file = fixture.f32();
    for (key, expected) in [
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 2),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 4),
        ("ssm.inner_size", 12),
        ("full_attention_interval", 4),
        ("rope.dimension_count", 2),
    ] {
        assert_eq!(file.metadata().get(&format!("qwen35.{key}")), Some(&Value::U32(expected)), "{key}");
    }
    let layers = file.metadata().bools_opt("qwen35.attention.recurrent_layers").unwrap();
    assert_eq!(layers, Some([true, false].as_slice()));
    let sections = |file: &GgufFile| file.metadata().get("qwen35.rope.dimension_sections").cloned();
    assert_eq!(sections(&file), Some(Value::I32s(vec![11, 11, 10, 0])));
    assert!(file.metadata().get("qwen35.nextn_predict_layers").is_none());
    fixture.config["rope_parameters"]["mrope_section"] = json!([1, 1, 0]);
    fixture.config["layer_types"] = Json::Null;
    fixture.config["full_attention_interval"] = json!(2);
    let file = fixture.f32();
    assert_eq!(sections(&file), Some(Value::I32s(vec![1, 1, 0, 0])));
    assert_eq!(file.metadata().bools_opt("qwen35.attention.recurrent_layers").unwrap(), layers);
}

#[test]
fn a_wrapper_around_the_language_model_changes_nothing() {
    let plain = qwen35("model.");
    let mut wrapped = qwen35("model.language_model.");
    let inner = wrapped.config.clone();
    wrapped.config = json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": inner, "hidden_size": 1,
        "vision_config": {"hidden_size": 2}});
    wrapped.add_all("model.visual.", &[("patch_embed.weight", &[3, 5]), ("blocks.0.norm.weight", &[3])]);
    // Buffers of other types may be left out as well.
    wrapped.add("model.visual.position_ids", &[2]);
    wrapped.tensors.get_mut("model.visual.position_ids").unwrap().dtype = Dtype::I64;
    // The numbers of a made-up tensor follow from its name.
    for (name, made) in &plain.tensors {
        wrapped.tensors.insert(name.replace("model.", "model.language_model."), made.clone());
    }
    let (a, b) = (plain.f32(), wrapped.f32());
    assert_eq!(a.tensors().len(), b.tensors().len());
    for tensor in a.tensors() {
        assert_eq!(numbers(&a, &tensor.name), numbers(&b, &tensor.name), "{}", tensor.name);
    }
    for (key, value) in a.metadata().iter().filter(|(key, _)| !key.starts_with("general.")) {
        assert_eq!(b.metadata().get(key), Some(value), "{key}");
    }
    let plan = plan(wrapped.folder.path(), &of(Quant::F32)).unwrap();
    assert_eq!(plan.ignored.len(), 3, "{:?}", plan.ignored);
}

/// What a wrapper says of its head goes before what its language model says, as in the library that saves both.
#[test]
fn a_wrapper_says_whether_the_head_is_tied() {
    let fixture = |outer: Json, inner: Json, head: bool, same: bool| {
        let mut wrapped = qwen35("model.language_model.");
        let mut text = wrapped.config.clone();
        text["tie_word_embeddings"] = inner;
        wrapped.config = json!({
            "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text, "tie_word_embeddings": outer});
        wrapped.tensors.remove("lm_head.weight");
        if head {
            let embeddings = wrapped.tensors["model.language_model.embed_tokens.weight"].clone();
            wrapped.add("lm_head.weight", &embeddings.shape);
            if same {
                wrapped.tensors.insert("lm_head.weight".into(), embeddings);
            }
        }
        wrapped
    };
    let own = |outer: Json, inner: Json, head: bool| {
        fixture(outer, inner, head, true).f32().tensor("output.weight").is_some()
    };
    assert!(!own(json!(true), json!(false), false) && !own(json!(true), json!(false), true));
    assert!(own(json!(false), json!(true), true) && !own(json!(false), json!(true), false));
    assert!(!own(Json::Null, json!(true), true) && own(Json::Null, json!(false), true));
    assert!(own(Json::Null, Json::Null, true) && !own(Json::Null, Json::Null, false));
    // One with other numbers counts, whoever says that there is none.
    for outer in [json!(true), Json::Null] {
        let other = fixture(outer, json!(true), true, false);
        assert_eq!(numbers(&other.f32(), "output.weight"), other.numbers("lm_head.weight"));
    }
    let error = fixture(json!(false), json!(false), false, false).error(&of(Quant::F32));
    assert!(error.contains("lm_head.weight is missing"), "{error}");
}

#[test]
fn multi_token_prediction_becomes_a_block() {
    let mut fixture = qwen35("model.");
    let without = fixture.f32();
    add_mtp(&mut fixture);
    let file = fixture.f32();
    assert_eq!(uint(&file, "qwen35.block_count"), 3);
    assert_eq!(uint(&file, "qwen35.nextn_predict_layers"), 1);
    let layers = file.metadata().bools_opt("qwen35.attention.recurrent_layers").unwrap();
    assert_eq!(layers, Some([true, false, false].as_slice()));
    assert_eq!(file.tensors().len(), without.tensors().len() + 11 + 4);
    assert_eq!(numbers(&file, "blk.2.nextn.eh_proj.weight"), fixture.numbers("mtp.fc.weight"));
    assert_eq!(shape(&file, "blk.2.nextn.eh_proj.weight"), [16, 8]);
    for (target, source) in [
        ("nextn.enorm.weight", "pre_fc_norm_embedding.weight"),
        ("nextn.hnorm.weight", "pre_fc_norm_hidden.weight"),
        ("nextn.shared_head_norm.weight", "norm.weight"),
        ("attn_norm.weight", "layers.0.input_layernorm.weight"),
    ] {
        let expected = plus_one(fixture.numbers(&format!("mtp.{source}")));
        assert_eq!(numbers(&file, &format!("blk.2.{target}")), expected, "{target}");
    }
    let options = ConvertOptions { mtp: MtpBlocks::Omit, ..of(Quant::F32) };
    let omitted = fixture.convert(&options).unwrap();
    assert_eq!(omitted.tensors().len(), without.tensors().len());
    assert_eq!(uint(&omitted, "qwen35.block_count"), 2);
    assert_eq!(plan(fixture.folder.path(), &options).unwrap().ignored.len(), 15);
}

#[test]
fn qwen3next_separates_and_stacks() {
    let fixture = qwen3next();
    let file = fixture.f32();
    let target = |name: &str| numbers(&file, &format!("blk.0.{name}"));
    let source = |name: &str| fixture.numbers(&format!("model.layers.0.{name}"));
    // Rows of each of 2 key heads: q 2, k 2, v 6, z 6.
    let take =
        |first: usize, count: usize| (0..2).flat_map(move |head| (0..count).map(move |at| head * 16 + first + at));
    let qkv: Vec<usize> = take(0, 2).chain(take(2, 2)).chain(take(4, 6)).collect();
    assert_eq!(target("attn_qkv.weight"), rows(source("linear_attn.in_proj_qkvz.weight"), 8, &qkv));
    let gate: Vec<usize> = take(10, 6).collect();
    assert_eq!(target("attn_gate.weight"), rows(source("linear_attn.in_proj_qkvz.weight"), 8, &gate));
    assert_eq!(target("ssm_ba.weight"), source("linear_attn.in_proj_ba.weight"));
    assert_eq!(target("ssm_conv1d.weight"), source("linear_attn.conv1d.weight"));
    let decay: Vec<f32> = source("linear_attn.A_log").iter().map(|x| -x.exp()).collect();
    assert_eq!(target("ssm_a"), decay, "value heads stay in groups");
    for (kind, sizes) in [("gate", [8, 5, 3]), ("up", [8, 5, 3]), ("down", [5, 8, 3])] {
        let expert = |expert: usize| source(&format!("mlp.experts.{expert}.{kind}_proj.weight")).to_vec();
        let name = format!("ffn_{kind}_exps.weight");
        assert_eq!(target(&name), (0..EXPERTS).flat_map(expert).collect::<Vec<_>>());
        assert_eq!(shape(&file, &format!("blk.0.{name}")), sizes);
    }
    assert_eq!(shape(&file, "blk.0.ffn_gate_inp_shexp.weight"), [8, 1]);
    for (key, expected) in [
        ("expert_count", 3),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 5),
        ("expert_shared_feed_forward_length", 7),
    ] {
        assert_eq!(uint(&file, &format!("qwen3next.{key}")), expected);
    }
    assert!(file.metadata().get("qwen3next.rope.dimension_sections").is_none());
    let mut plain = qwen3next();
    plain.config["norm_topk_prob"] = json!(false);
    assert_eq!(plain.error(&of(Quant::F32)), "config.json: norm_topk_prob = false, expected true");
    // Each expert has 240 numbers in the two layers, and all else 1403.
    assert_eq!(file.metadata().string("general.size_label").unwrap(), "3x1.6K");
}

#[test]
fn experts_may_come_in_one_tensor() {
    let split = qwen3next();
    let mut fused = qwen3next();
    fused.tensors.retain(|name, _| !name.contains(".experts."));
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.mlp.experts.");
        let expert =
            |expert: usize, kind: &str| split.numbers(&format!("{prefix}{expert}.{kind}_proj.weight")).to_vec();
        let join = |kinds: &[&str]| {
            (0..EXPERTS).flat_map(|id| kinds.iter().flat_map(move |kind| expert(id, kind))).collect::<Vec<f32>>()
        };
        for (name, shape, kinds) in
            [("gate_up_proj", [3, 10, 8], ["gate", "up"].as_slice()), ("down_proj", [3, 8, 5], &["down"])]
        {
            let made = Made { dtype: Dtype::F32, shape: shape.to_vec(), numbers: join(kinds) };
            fused.tensors.insert(format!("{prefix}{name}"), made);
        }
    }
    let (a, b) = (split.f32(), fused.f32());
    for tensor in a.tensors() {
        assert_eq!(shape(&b, &tensor.name), tensor.shape);
        assert_eq!(numbers(&a, &tensor.name), numbers(&b, &tensor.name), "{}", tensor.name);
    }
}

#[test]
fn layers_without_experts_are_dense() {
    let mut fixture = qwen3next();
    fixture.config["mlp_only_layers"] = json!([0]);
    fixture.tensors.retain(|name, _| !name.starts_with("model.layers.0.mlp."));
    fixture.add_all("model.layers.0.", DENSE);
    let file = fixture.f32();
    assert!(file.tensor("blk.0.ffn_gate.weight").is_some() && file.tensor("blk.0.ffn_gate_exps.weight").is_none());
    assert!(file.tensor("blk.1.ffn_gate.weight").is_none() && file.tensor("blk.1.ffn_gate_exps.weight").is_some());
}

/// Every row of every table is well-formed: what it names exists, so that no expression fails at a user's.
#[test]
fn tables_only_use_values_they_define() {
    for architecture in architectures::ALL {
        let mut values = expression::Values::default();
        for name in ["blocks", "listed", "mtp", "own_head", "rope_linear", "rope_yarn", "rope_llama3", "attn_factor"] {
            values.set(name, 2.0);
        }
        for tag in table::TAGS {
            values.set(&format!("{tag}_layers"), 2.0);
            values.set(&format!("{tag}_first"), 2.0);
        }
        for row in architecture.values.iter().copied().flatten() {
            if let Some(default) = row.default {
                values.evaluate(default).unwrap();
            }
            values.set(row.name, 2.0);
        }
        let layer = architecture.layer.iter().copied().flatten();
        let model = architecture.model.iter().copied().flatten();
        for row in model.chain(layer).chain(architecture.mtp) {
            values.holds(row.when).unwrap();
            for origin in std::iter::once(&row.origin).chain(&row.alternative) {
                values.shape(origin.shape).unwrap();
            }
            assert!(row.tag.is_empty() || table::TAGS.contains(&row.tag), "{}", row.target);
        }
        assert!(architecture.keys.iter().copied().flatten().all(|row| values.holds(row.when).is_ok()));
    }
}
