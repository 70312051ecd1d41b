//! Adapters of PEFT that change experts which their models hold in one tensor, and rows of single tokens.

use super::lora::{adapter, same_as, with};
use super::*;

const FOLDER: &str = "model.layers.1.mlp.experts";

impl Fixture {
    /// Matrices for a parameter of all experts; the checkpoint gets the products times `scale`. Rows are in equal parts those of
    /// the tensors `names`.
    fn change_experts(&mut self, merged: &mut Fixture, place: &str, names: &[&str], rank: usize, scale: f32) {
        let shape = merged.tensors[&format!("{FOLDER}.0.{}.weight", names[0])].shape.clone();
        let (part, columns) = (shape[0], shape[1]);
        let key = format!("base_model.model.{place}");
        self.add(&format!("{key}.lora_A.weight"), &[rank * EXPERTS, columns]);
        self.add(&format!("{key}.lora_B.weight"), &[part * names.len(), rank * EXPERTS]);
        let a = self.numbers(&format!("{key}.lora_A.weight")).to_vec();
        let b = self.numbers(&format!("{key}.lora_B.weight")).to_vec();
        for expert in 0..EXPERTS {
            for (half, name) in names.iter().enumerate() {
                let made = merged.tensors.get_mut(&format!("{FOLDER}.{expert}.{name}.weight")).unwrap();
                made.dtype = Dtype::F32;
                for (at, number) in made.numbers.iter_mut().enumerate() {
                    let (row, column) = (half * part + at / columns, at % columns);
                    // On the left the experts take turns, on the right one comes after the other.
                    let left = |k: usize| b[row * rank * EXPERTS + k * EXPERTS + expert];
                    let right = |k: usize| a[(expert * rank + k) * columns + column];
                    *number += scale * (0..rank).map(|k| left(k) * right(k)).sum::<f32>();
                }
            }
        }
    }
}

fn both() -> Json {
    json!({"target_parameters": ["mlp.experts.gate_up_proj", "down_proj"], "rank_pattern": {r".*\.gate_up_proj": 4}})
}

/// Of two parameters of a module the first one is inside of the second.
#[test]
fn experts_of_one_tensor_are_changed_each() {
    let (base, mut merged, mut lora) = (qwen3next(), qwen3next(), adapter(both()));
    lora.change_experts(&mut merged, &format!("{FOLDER}.base_layer"), &["gate_proj", "up_proj"], 4, 1.5);
    lora.change_experts(&mut merged, FOLDER, &["down_proj"], 2, 3.0);
    same_as(&base, &[(&lora, 1.0)], &merged);

    let mut fused = qwen3next();
    fused.fuse(FOLDER, &["gate_proj", "up_proj"], EXPERTS, "gate_up_proj");
    fused.fuse(FOLDER, &["down_proj"], EXPERTS, "down_proj");
    fused.tensors.iter_mut().filter(|(name, _)| name.starts_with(FOLDER)).for_each(|(_, made)| made.dtype = Dtype::F32);
    same_as(&fused, &[(&lora, 1.0)], &merged);

    let (mut merged, mut lora) = (qwen3next(), adapter(json!({"target_parameters": ["experts.down_proj"]})));
    lora.change_experts(&mut merged, FOLDER, &["down_proj"], 2, 0.5 * 3.0);
    same_as(&base, &[(&lora, 0.5)], &merged);
}

#[test]
fn experts_that_do_not_fit_are_named() {
    let key = format!("base_model.model.{FOLDER}");
    let error = |change: &dyn Fn(&mut Fixture)| {
        let mut lora = adapter(both());
        lora.change_experts(&mut qwen3next(), FOLDER, &["down_proj"], 2, 3.0);
        change(&mut lora);
        qwen3next().error(&with(&[(&lora, 1.0)], Quant::F32))
    };
    let alone = error(&|lora| drop(lora.tensors.remove(&format!("{key}.lora_B.weight"))));
    assert!(
        alone
            .ends_with("experts.lora_A.weight is for model.layers.1.mlp.experts.down_proj, expected lora_A and lora_B")
    );
    let odd = error(&|lora| lora.add(&format!("{key}.lora_A.weight"), &[7, 5]));
    let shapes = "is one of the shapes [7, 5] and [8, 6], expected 2 rows of the first and columns of the second for each expert";
    assert!(odd.ends_with(shapes), "{odd}");
    let few = error(&|lora| {
        lora.add(&format!("{key}.lora_A.weight"), &[4, 5]);
        lora.add(&format!("{key}.lora_B.weight"), &[8, 4]);
    });
    assert!(few.ends_with("is for 2 experts, expected as many as the checkpoint has"), "{few}");
    let biased = error(&|lora| lora.add(&format!("{key}.lora_B.bias"), &[8]));
    assert!(biased.ends_with("down_proj, expected lora_A and lora_B alone"), "{biased}");
    let unnamed = error(&|lora| lora.config["target_parameters"] = json!([]));
    assert!(
        unnamed.ends_with("is for model.layers.1.mlp.experts.weight, expected a tensor of the checkpoint"),
        "{unnamed}"
    );
}

/// Embeddings that are the head as well stay so.
#[test]
fn rows_of_tokens_take_the_places_of_others() {
    for (tokens, tied) in [(json!([3, 7]), true), (json!({"embed_tokens": [3, 7]}), false)] {
        let made = || {
            let mut fixture = llama();
            if !tied {
                fixture.config["tie_word_embeddings"] = json!(false);
                fixture.add("lm_head.weight", &[12, 8]);
            }
            fixture
        };
        let (base, mut merged, mut lora) = (made(), made(), adapter(json!({"trainable_token_indices": tokens})));
        let key = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta";
        lora.add(key, &[2, 8]);
        let embeddings = merged.tensors.get_mut("model.embed_tokens.weight").unwrap();
        embeddings.dtype = Dtype::F32;
        embeddings.numbers[24..32].copy_from_slice(&lora.numbers(key)[..8]);
        embeddings.numbers[56..64].copy_from_slice(&lora.numbers(key)[8..]);
        same_as(&base, &[(&lora, 1.0)], &merged);
        let mut error = |change: &dyn Fn(&mut Fixture)| {
            change(&mut lora);
            base.error(&with(&[(&lora, 1.0)], Quant::F32))
        };
        let far = error(&|lora| lora.config["trainable_token_indices"] = json!([3, 12]));
        assert!(far.ends_with("has 12, expected tokens below 12, as model.embed_tokens.weight has"), "{far}");
        let other = error(&|lora| lora.config["trainable_token_indices"] = json!({"lm_head": [3, 7]}));
        assert!(other.contains("trainable_tokens_delta has no tokens, expected trainable_token_indices of"), "{other}");
        let odd = error(&|lora| lora.config["trainable_token_indices"] = json!([3]));
        assert!(odd.ends_with("has the shape [2, 8], expected [1, 8]"), "{odd}");
        let text = error(&|lora| lora.config["trainable_token_indices"] = json!(["x"]));
        assert!(text.ends_with("trainable_token_indices has [\"x\"], expected a list of tokens"), "{text}");
    }
}

/// What is nothing but zeros has no direction that could get another length.
#[test]
fn rows_of_zeros_stay_with_dora() {
    let (mut base, mut lora) = (llama(), adapter(json!({"use_dora": true})));
    let name = "model.layers.0.self_attn.q_proj";
    lora.change(&mut llama(), &format!("{name}.weight"), 2, 3.0);
    lora.add(&format!("base_model.model.{name}.lora_magnitude_vector"), &[8]);
    lora.tensors.get_mut(&format!("base_model.model.{name}.lora_B.weight")).unwrap().numbers.fill(0.0);
    base.tensors.get_mut(&format!("{name}.weight")).unwrap().numbers[..8].fill(0.0);
    let file = base.convert(&with(&[(&lora, 1.0)], Quant::F32)).unwrap();
    let found = numbers(&file, "blk.0.attn_q.weight");
    assert!(found.iter().all(|number| number.is_finite()) && found.contains(&0.0), "{found:?}");
}

/// The library has names for them that the published checkpoints have not.
#[test]
fn experts_of_granite_are_found() {
    let golden = || Fixture::golden("granitehybrid-moe");
    let (base, mut merged, mut lora) = (golden(), golden(), adapter(json!({"target_parameters": ["router.weight"]})));
    lora.change(&mut merged, "model.layers.0.block_sparse_moe.router.layer.weight", 2, 3.0);
    lora.rename(".router.layer.", ".router.");
    same_as(&base, &[(&lora, 1.0)], &merged);
    let folder = "base_model.model.model.layers.0.block_sparse_moe.experts";
    let stored = "model.layers.0.block_sparse_moe.output_linear.weight";
    let (mut merged, mut lora) = (golden(), adapter(json!({"target_parameters": ["experts.down_proj"]})));
    let shape = base.tensors[stored].shape.clone();
    lora.add(&format!("{folder}.lora_A.weight"), &[2 * shape[0], shape[2]]);
    lora.add(&format!("{folder}.lora_B.weight"), &[shape[1], 2 * shape[0]]);
    let a = lora.numbers(&format!("{folder}.lora_A.weight")).to_vec();
    let b = lora.numbers(&format!("{folder}.lora_B.weight")).to_vec();
    let made = merged.tensors.get_mut(stored).unwrap();
    made.dtype = Dtype::F32;
    for (at, number) in made.numbers.iter_mut().enumerate() {
        let (expert, row, column) = (at / shape[2] / shape[1], at / shape[2] % shape[1], at % shape[2]);
        let left = |k: usize| b[(row * 2 + k) * shape[0] + expert];
        *number += 3.0 * (0..2).map(|k| left(k) * a[(expert * 2 + k) * shape[2] + column]).sum::<f32>();
    }
    same_as(&base, &[(&lora, 1.0)], &merged);
}
