//! Qwen2 and Qwen3, dense and with experts: attention in every layer, rope in halves.

use super::*;

const BIASES: &[TensorRow] = &[
    renamed("attn_q.bias", "self_attn.q_proj.bias", "heads*head_dim"),
    renamed("attn_k.bias", "self_attn.k_proj.bias", "kv_heads*head_dim"),
    renamed("attn_v.bias", "self_attn.v_proj.bias", "kv_heads*head_dim"),
];

const HEAD_NORMS: &[TensorRow] = &[
    renamed("attn_q_norm.weight", "self_attn.q_norm.weight", "head_dim"),
    renamed("attn_k_norm.weight", "self_attn.k_norm.weight", "head_dim"),
];

const SLIDING: &[Refusal] = &[Refusal { path: "use_sliding_window", accepted: &["false"] }];

pub(super) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    classes: &["Qwen2ForCausalLM"],
    values: &[TRANSFORMER_VALUES, FFN_VALUES],
    refusals: &[SILU, SLIDING],
    keys: &[SIZE_KEYS, FFN_KEYS, TRANSFORMER_KEYS, KV_HEADS],
    trunks: TRUNKS,
    model: &[MODEL, ROPE_FACTORS],
    layer: &[NORMS, QUERY, KEY_VALUE_OUTPUT, BIASES, DENSE_FFN],
    ..PLAIN
};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    classes: &["Qwen3ForCausalLM"],
    values: &[TRANSFORMER_VALUES, FFN_VALUES],
    refusals: &[SILU, SLIDING, NO_ATTENTION_BIAS],
    keys: &[SIZE_KEYS, FFN_KEYS, TRANSFORMER_KEYS, KV_HEADS],
    trunks: TRUNKS,
    model: &[MODEL, ROPE_FACTORS],
    layer: &[NORMS, QUERY, KEY_VALUE_OUTPUT, HEAD_NORMS, DENSE_FFN],
    ..PLAIN
};

const ROUTER: &[TensorRow] = &[renamed("ffn_gate_inp.weight", "mlp.gate.weight", "experts, width").at("moe")];
const EXPERTS: &[TensorRow] = experts!("mlp.experts", "gate_proj", "up_proj", "down_proj");

pub(super) const QWEN3MOE: Architecture = Architecture {
    name: "qwen3moe",
    classes: &["Qwen3MoeForCausalLM"],
    values: &[TRANSFORMER_VALUES, FFN_VALUES, EXPERT_VALUES, SPARSE_VALUES],
    refusals: &[SILU, SLIDING, NO_ATTENTION_BIAS, NORMALISED],
    explicit: &[("norm_topk_prob", "")],
    keys: &[SIZE_KEYS, FFN_KEYS, TRANSFORMER_KEYS, KV_HEADS, EXPERT_KEYS],
    ffns: SPARSE_FFNS,
    layer: &[NORMS, QUERY, KEY_VALUE_OUTPUT, HEAD_NORMS, ROUTER, EXPERTS, DENSE_FFN],
    trunks: TRUNKS,
    model: &[MODEL, ROPE_FACTORS],
    ..PLAIN
};
