//! Adapters of PEFT, against checkpoints whose matrices were merged by the test.

use super::packed::{Integers, Way, put, wide};
use super::*;

/// A matrix times another, of so many columns in the first.
fn product(left: &[f32], right: &[f32], rank: usize) -> Vec<f64> {
    let columns = right.len() / rank;
    let one = |at: usize| {
        let terms = (0..rank).map(|k| left[at / columns * rank + k] as f64 * right[k * columns + at % columns] as f64);
        terms.sum::<f64>()
    };
    (0..left.len() / rank * columns).map(one).collect()
}

/// The folder of an adapter, its configuration and tensors.
pub(super) fn adapter(config: Json) -> Fixture {
    let mut all = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 6});
    all.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    Fixture::new(all)
}

impl Fixture {
    /// Matrices of an adapter for the module of a weight of this shape, which the checkpoint gets added times `scale`.
    pub(super) fn change(&mut self, base: &mut Fixture, name: &str, rank: usize, scale: f64) {
        let made = base.tensors.get_mut(name).unwrap_or_else(|| panic!("no {name}"));
        let module = format!("base_model.model.{}", name.strip_suffix(".weight").unwrap());
        self.add(&format!("{module}.lora_A.weight"), &[rank, made.shape[1]]);
        self.add(&format!("{module}.lora_B.weight"), &[made.shape[0], rank]);
        let delta = product(
            self.numbers(&format!("{module}.lora_B.weight")),
            self.numbers(&format!("{module}.lora_A.weight")),
            rank,
        );
        made.dtype = Dtype::F32;
        made.numbers
            .iter_mut()
            .zip(delta)
            .for_each(|(number, delta)| *number = (*number as f64 + scale * delta) as f32);
    }

    fn save_adapter(&self) {
        self.write("adapter_config.json", &self.config.to_string());
        self.write_tensors("adapter_model.safetensors", |_| true);
    }

    fn whole(&mut self, base: &mut Fixture, name: &str) {
        let shape = base.tensors[name].shape.clone();
        let key = format!("base_model.model.{name}");
        self.add(&key, &shape);
        base.tensors.insert(name.into(), self.tensors[&key].clone());
    }
}

pub(super) fn with(adapters: &[(&Fixture, f64)], quant: Quant) -> ConvertOptions {
    let lora = |(adapter, scale): &(&Fixture, f64)| {
        adapter.save_adapter();
        Lora { folder: adapter.folder.path().into(), scale: *scale }
    };
    ConvertOptions { loras: adapters.iter().map(lora).collect(), ..of(quant) }
}

/// The file of the base with adapters holds what that of the merged checkpoint does.
pub(super) fn same_as(base: &Fixture, adapters: &[(&Fixture, f64)], merged: &Fixture) {
    let file = base.convert(&with(adapters, Quant::F32)).unwrap();
    let expected = merged.f32();
    assert_eq!(file.tensors().len(), expected.tensors().len());
    for tensor in expected.tensors() {
        let pairs = numbers(&file, &tensor.name).into_iter().zip(numbers(&expected, &tensor.name));
        for (at, (found, expected)) in pairs.enumerate() {
            assert!(
                (found - expected).abs() <= 1e-6 * expected.abs().max(1.0),
                "{} {at}: {found} {expected}",
                tensor.name
            );
        }
    }
}

#[test]
fn matrices_are_added_before_rows_and_columns_change_places() {
    type Make = fn() -> Fixture;
    let cases: [(Make, &[&str]); 7] = [
        (
            llama,
            &["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.k_proj", "model.layers.1.mlp.down_proj"],
        ),
        (|| qwen35("model."), &["model.layers.0.linear_attn.in_proj_qkv", "model.layers.0.linear_attn.out_proj"]),
        (
            qwen3next,
            &[
                "model.layers.0.linear_attn.in_proj_qkvz",
                "model.layers.0.linear_attn.in_proj_ba",
                "model.layers.1.mlp.experts.1.down_proj",
                "model.layers.1.mlp.shared_expert.up_proj",
                "lm_head",
            ],
        ),
        (|| Fixture::golden("mamba2"), &["backbone.layers.0.mixer.in_proj", "backbone.layers.1.mixer.out_proj"]),
        (
            || Fixture::golden("granitehybrid"),
            &["model.layers.0.mamba.in_proj", "model.layers.1.shared_mlp.input_linear"],
        ),
        (|| Fixture::golden("falcon-h1"), &["model.layers.0.mamba.in_proj", "model.layers.0.self_attn.k_proj"]),
        (
            || Fixture::golden("kimi-linear"),
            &["model.layers.2.self_attn.kv_b_proj", "model.layers.0.block_sparse_moe.up_proj"],
        ),
    ];
    for (make, modules) in cases {
        let (base, mut merged, mut adapter) = (make(), make(), adapter(json!({})));
        for module in modules {
            adapter.change(&mut merged, &format!("{module}.weight"), 2, 3.0);
        }
        same_as(&base, &[(&adapter, 1.0)], &merged);
        let planned = plan(base.folder.path(), &with(&[(&adapter, 1.0)], Quant::F32)).unwrap();
        assert_eq!(planned.changed.len(), modules.len());
    }
}

/// The numbers were multiplied by hand.
#[test]
fn a_product_is_the_second_matrix_times_the_first() {
    let (base, mut lora) = (llama(), adapter(json!({"r": 1, "lora_alpha": 2})));
    let name = "base_model.model.model.layers.0.self_attn.v_proj.lora_";
    lora.add(&format!("{name}A.weight"), &[1, 8]);
    lora.add(&format!("{name}B.weight"), &[4, 1]);
    let mut set =
        |part: &str, set: &[f32]| lora.tensors.get_mut(&format!("{name}{part}")).unwrap().numbers = set.into();
    set("A.weight", &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -2.0]);
    set("B.weight", &[0.0, 10.0, 0.0, 0.5]);
    let found = numbers(&base.convert(&with(&[(&lora, 0.5)], Quant::F32)).unwrap(), "blk.0.attn_v.weight");
    let mut expected = base.numbers("model.layers.0.self_attn.v_proj.weight").to_vec();
    for (at, added) in [(8, 10.0), (15, -20.0), (24, 0.5), (31, -1.0)] {
        expected[at] += added;
    }
    assert_eq!(found, expected);
}

#[test]
fn ranks_and_scales_are_those_of_the_module() {
    let (base, mut merged) = (llama(), llama());
    let mut first = adapter(json!({
        "rank_pattern": {"q_proj": 3, "layers\\.[1].mlp.(up|gate)_proj": 1}, "alpha_pattern": {"model.layers.0.self_attn.q_proj": 1.5},
    }));
    let layer = "model.layers.1.";
    first.change(&mut merged, "model.layers.0.self_attn.q_proj.weight", 3, 0.5 * 0.5);
    first.change(&mut merged, &format!("{layer}self_attn.q_proj.weight"), 3, 0.5 * 2.0);
    first.change(&mut merged, &format!("{layer}mlp.up_proj.weight"), 1, 0.5 * 6.0);
    first.change(&mut merged, &format!("{layer}mlp.down_proj.weight"), 2, 0.5 * 3.0);
    let mut second = adapter(json!({"use_rslora": true, "r": 4}));
    second.change(&mut merged, &format!("{layer}mlp.up_proj.weight"), 4, -3.0);
    // Names of the adapter, where it was saved with them.
    second.rename(".weight", ".default.weight");
    same_as(&base, &[(&first, 0.5), (&second, -1.0)], &merged);
}

#[test]
fn rows_get_the_lengths_of_dora() {
    let (base, mut merged, mut lora) = (llama(), llama(), adapter(json!({"use_dora": true})));
    let name = "model.layers.0.self_attn.q_proj";
    lora.change(&mut merged, &format!("{name}.weight"), 2, 3.0);
    let key = format!("base_model.model.{name}.lora_magnitude_vector");
    lora.add(&key, &[8]);
    let lengths = lora.numbers(&key).to_vec();
    let made = merged.tensors.get_mut(&format!("{name}.weight")).unwrap();
    for (row, length) in made.numbers.chunks_mut(8).zip(lengths) {
        let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter_mut().for_each(|x| *x *= length / norm);
    }
    same_as(&base, &[(&lora, 1.0)], &merged);
    let error = base.error(&with(&[(&lora, 0.5)], Quant::F32));
    assert!(error.ends_with("use_dora with a scale of 0.5, expected 1: its magnitudes have no other"), "{error}");
    lora.tensors.remove(&key);
    let error = base.error(&with(&[(&lora, 1.0)], Quant::F32));
    let expected = format!("lora_magnitude_vector of {name} is missing, expected with the shape [8]");
    assert!(error.ends_with(&expected), "{error}");
}

/// Embeddings of a tied model are no longer its head when an adapter changes one of them.
#[test]
fn embeddings_and_head_part_where_one_changes() {
    let untied = || {
        let mut merged = llama();
        merged.config["tie_word_embeddings"] = json!(false);
        let embeddings = merged.tensors["model.embed_tokens.weight"].clone();
        merged.tensors.insert("lm_head.weight".into(), embeddings);
        merged
    };
    let (base, mut merged, mut lora) = (llama(), untied(), adapter(json!({})));
    lora.change(&mut merged, "lm_head.weight", 2, 3.0);
    same_as(&base, &[(&lora, 1.0)], &merged);

    let (mut merged, mut lora) = (untied(), adapter(json!({})));
    let key = "base_model.model.model.embed_tokens.lora_embedding_";
    lora.add(&format!("{key}A"), &[2, 12]);
    lora.add(&format!("{key}B"), &[8, 2]);
    let delta = product(lora.numbers(&format!("{key}B")), lora.numbers(&format!("{key}A")), 2);
    let made = merged.tensors.get_mut("model.embed_tokens.weight").unwrap();
    made.numbers.iter_mut().enumerate().for_each(|(at, number)| *number += 3.0 * delta[at % 8 * 12 + at / 8] as f32);
    same_as(&base, &[(&lora, 1.0)], &merged);
    lora.config["ensure_weight_tying"] = json!(true);
    let error = base.error(&with(&[(&lora, 1.0)], Quant::F32));
    assert!(error.contains("ensure_weight_tying = true with model.embed_tokens.weight of a model whose"), "{error}");

    let (mut merged, mut lora) = (untied(), adapter(json!({"modules_to_save": ["embed_tokens", "lm_head"]})));
    lora.whole(&mut merged, "model.embed_tokens.weight");
    lora.whole(&mut merged, "lm_head.weight");
    lora.whole(&mut merged, "model.norm.weight");
    same_as(&base, &[(&lora, 1.0)], &merged);
}

#[test]
fn trained_biases_are_added_or_stand_in_the_place_of_others() {
    let biased = || {
        let mut fixture = llama();
        fixture.config["attention_bias"] = json!(true);
        for layer in 0..2 {
            let sizes: [(&str, &[usize]); 4] = [("q", &[8]), ("k", &[4]), ("v", &[4]), ("o", &[8])];
            for (name, size) in sizes {
                fixture.add(&format!("model.layers.{layer}.self_attn.{name}_proj.bias"), size);
            }
        }
        fixture
    };
    let (base, mut merged, mut lora) = (biased(), biased(), adapter(json!({"lora_bias": true, "bias": "all"})));
    let module = "model.layers.0.self_attn.q_proj";
    lora.change(&mut merged, &format!("{module}.weight"), 2, 3.0);
    let key = format!("base_model.model.{module}.lora_B.bias");
    lora.add(&key, &[8]);
    let added = lora.numbers(&key).to_vec();
    let bias = merged.tensors.get_mut(&format!("{module}.bias")).unwrap();
    bias.numbers.iter_mut().zip(added).for_each(|(number, added)| *number += 3.0 * added);
    lora.whole(&mut merged, "model.layers.1.self_attn.k_proj.bias");
    same_as(&base, &[(&lora, 1.0)], &merged);
}

/// Models are trained under another class than the one they are published as.
#[test]
fn the_language_model_of_another_class_is_found() {
    let trunk = "model.language_model.";
    let (base, mut merged, mut lora) = (qwen35(trunk), qwen35(trunk), adapter(json!({})));
    merged.rename(trunk, "model.");
    lora.change(&mut merged, "model.layers.1.self_attn.q_proj.weight", 2, 3.0);
    lora.change(&mut merged, "lm_head.weight", 2, 3.0);
    merged.rename("model.", trunk);
    same_as(&base, &[(&lora, 1.0)], &merged);
    let golden = || Fixture::golden("kimi-linear");
    let (base, mut merged, mut lora) = (golden(), golden(), adapter(json!({})));
    lora.change(&mut merged, "model.layers.0.self_attn.f_a_proj.weight", 2, 3.0);
    lora.change(&mut merged, "model.layers.1.block_sparse_moe.shared_experts.up_proj.weight", 2, 3.0);
    lora.rename(".f_a_proj.", ".forget_gate.f_a_proj.");
    lora.rename(".block_sparse_moe.", ".mlp.");
    same_as(&base, &[(&lora, 1.0)], &merged);
}

/// What is added to is the number that a code stands for.
#[test]
fn quantised_weights_are_added_to_as_well() {
    for way in [Way::Gptq, Way::Awq, Way::Compressed] {
        let (mut base, mut merged, mut lora) = (wide(), wide(), adapter(json!({})));
        base.config["quantization_config"] = way.config();
        let name = "model.layers.1.self_attn.q_proj.weight";
        let integers = Integers::new([8, 8], 4, 2, false);
        merged.tensors.get_mut(name).unwrap().numbers = integers.weights();
        put(&mut base, name, &integers, way);
        lora.change(&mut merged, name, 2, 3.0);
        same_as(&base, &[(&lora, 1.0)], &merged);
    }
    let mut base = Fixture::golden("llama");
    let mut merged = Fixture::golden("llama");
    nvfp4::with_nvfp4(&mut base, false);
    base.config["quantization_config"] = json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
    let name = "model.layers.0.self_attn.v_proj.weight";
    let plain = numbers(&base.f32(), "blk.0.attn_v.weight");
    merged.tensors.get_mut(name).unwrap().numbers = plain;
    let mut lora = adapter(json!({}));
    lora.change(&mut merged, name, 2, 3.0);
    let file = base.convert(&with(&[(&lora, 1.0)], Quant::Nvfp4)).unwrap();
    // It no longer is in NVFP4.
    assert_eq!(file.tensor("blk.0.attn_v.weight").unwrap().quant, Quant::Bf16);
    assert_eq!(file.tensor("blk.1.attn_v.weight").unwrap().quant, Quant::Nvfp4);
    let expected = merged.numbers(name).iter().map(|number| half::bf16::from_f32(*number).to_f32());
    for (found, expected) in numbers(&file, "blk.0.attn_v.weight").into_iter().zip(expected) {
        assert!((found - expected).abs() <= 0.01 * expected.abs(), "{found} {expected}");
    }
}

const MODULE: &str = "base_model.model.model.layers.0.self_attn.q_proj";

#[test]
fn adapters_that_cannot_be_merged_are_refused() {
    let cases: &[(&str, Json, &str)] = &[
        ("peft_type", json!("LOHA"), "peft_type is \"LOHA\", expected \"LORA\""),
        ("peft_type", json!(null), "peft_type is missing, expected \"LORA\""),
        ("r", json!(null), "r is missing, expected a positive number"),
        ("r", json!(0), "r is 0, expected a positive number"),
        ("lora_alpha", json!("8"), "lora_alpha is \"8\", expected a positive number"),
        ("rank_pattern", json!([1]), "rank_pattern is [1], expected an object of numbers"),
        ("rank_pattern", json!({"(": 1}), "rank_pattern has \"(\", expected a regular expression"),
        ("alpha_pattern", json!({"x": true}), "alpha_pattern of \"x\" is true, expected a positive number"),
        (
            "rank_pattern",
            json!({"q_proj": 2.5}),
            "the rank of model.layers.0.self_attn.q_proj is 2.5, expected a whole number",
        ),
        ("target_parameters", json!([1]), "target_parameters has 1, expected texts"),
        ("use_qalora", json!(true), "use_qalora = true, expected false"),
        ("layer_replication", json!([[0, 1]]), "layer_replication = [[0,1]], expected []"),
        ("alora_invocation_tokens", json!([1]), "expected nothing: it cannot be carried into the file"),
        ("trainable_token_indices", json!({"x": 1}), "trainable_token_indices has 1, expected a list of tokens"),
        (
            "init_lora_weights",
            json!("pissa"),
            "init_lora_weights = \"pissa\", expected true or false or \"gaussian\" or \"eva\" or \"orthogonal\" or \"mica\"",
        ),
    ];
    for (key, value, expected) in cases {
        let (base, mut lora) = (llama(), adapter(json!({})));
        lora.change(&mut llama(), "model.layers.0.self_attn.q_proj.weight", 2, 3.0);
        lora.config[key] = value.clone();
        let error = base.error(&with(&[(&lora, 1.0)], Quant::F32));
        let place = format!("{}: adapter_config.json: ", lora.folder.path().display());
        assert!(error.starts_with(&place) && error.ends_with(expected), "{error}");
    }
}

#[test]
fn tensors_of_an_adapter_without_a_place_are_named() {
    let cases: &[(&str, &str, &[usize], &str)] = &[
        ("lora_A.weight", "lora_A.weight", &[3, 8], "lora_A.weight has the shape [3, 8], expected [2, 8]"),
        ("lora_B.weight", "lora_B.weight", &[2, 8], "lora_B.weight has the shape [2, 8], expected [8, 2]"),
        (
            "lora_B.weight",
            "",
            &[],
            "lora_B of model.layers.0.self_attn.q_proj is missing, expected with the shape [8, 2]",
        ),
        ("", "lora_magnitude_vector", &[8], "lora_magnitude_vector, expected use_dora = true with it"),
        ("", "lora_C.weight", &[8], "has no place, expected lora_A, lora_B, a trained bias or a whole tensor"),
        ("", "lora_A.other.weight", &[2, 8], "has the place of"),
        ("", "bias", &[8], "is for model.layers.0.self_attn.q_proj.bias, expected a tensor of the checkpoint"),
        ("", "lora_B.bias", &[8], "is for model.layers.0.self_attn.q_proj.bias, expected a tensor of the checkpoint"),
        ("", "weight", &[8, 4], "has the shape [8, 4], expected [8, 8] as in the checkpoint"),
        (
            "",
            "k.lora_A.weight",
            &[2, 8],
            "is for model.layers.0.self_attn.q_proj.k.weight, expected a tensor of the checkpoint",
        ),
    ];
    for (gone, there, shape, expected) in cases {
        let (base, mut lora) = (llama(), adapter(json!({})));
        lora.change(&mut llama(), "model.layers.0.self_attn.q_proj.weight", 2, 3.0);
        lora.tensors.remove(&format!("{MODULE}.{gone}"));
        if !there.is_empty() {
            lora.add(&format!("{MODULE}.{there}"), shape);
        }
        let error = base.error(&with(&[(&lora, 1.0)], Quant::F32));
        let place = format!("{}: adapter_model.safetensors: ", lora.folder.path().display());
        assert!(error.starts_with(&place) && error.contains(expected), "{there}: {error}");
    }
}

#[test]
fn adapters_that_are_not_whole_are_named() {
    let base = llama();
    let mut lora = adapter(json!({}));
    let error = |lora: &Fixture| base.error(&with(&[(lora, 1.0)], Quant::F32));
    assert!(error(&lora).ends_with("adapter_model.safetensors: no tensors, expected those of an adapter"));
    lora.change(&mut llama(), "model.layers.0.self_attn.q_proj.weight", 2, 3.0);
    lora.tensors.get_mut(&format!("{MODULE}.lora_A.weight")).unwrap().numbers[3] = f32::NAN;
    assert!(error(&lora).ends_with("q_proj.lora_A.weight: number 3 is NaN, expected a finite one"), "{}", error(&lora));
    lora.tensors.get_mut(&format!("{MODULE}.lora_A.weight")).unwrap().dtype = Dtype::U8;
    assert!(error(&lora).ends_with("q_proj.lora_A.weight is U8, expected F32, F16 or BF16"), "{}", error(&lora));
    let options = with(&[(&lora, 1.0)], Quant::F32);
    std::fs::remove_file(lora.path("adapter_model.safetensors")).unwrap();
    let missing = "adapter_model.safetensors is missing, expected the weights of an adapter of PEFT";
    assert!(base.error(&options).ends_with(missing));
    std::fs::remove_file(lora.path("adapter_config.json")).unwrap();
    assert!(base.error(&options).ends_with("adapter_config.json is missing, expected that of an adapter of PEFT"));
    let nowhere = Lora { folder: lora.path("nowhere"), scale: 1.0 };
    let error = base.error(&ConvertOptions { loras: vec![nowhere], ..of(Quant::F32) });
    assert!(error.ends_with("nowhere: expected the folder of an adapter of PEFT"), "{error}");

    let mut whole = adapter(json!({}));
    whole.whole(&mut llama(), "model.norm.weight");
    let error = base.error(&with(&[(&whole, 1.0), (&whole, 1.0)], Quant::F32));
    let twice = "model.norm.weight replaces model.norm.weight, expected none that an adapter before it changed";
    assert!(error.ends_with(twice), "{error}");
    let (mut seeing, mut vision) = (llama(), adapter(json!({})));
    seeing.add("model.visual.proj.weight", &[4, 4]);
    vision.add("base_model.model.model.visual.proj.weight", &[4, 4]);
    let error = seeing.error(&with(&[(&vision, 1.0)], Quant::F32));
    assert!(error.ends_with("are left out, expected some of the language model"), "{error}");
}
