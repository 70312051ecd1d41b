//! Qwen2 and Qwen3: attention in every layer, rope in halves.

use super::*;

const QUERY: &[TensorRow] = &[renamed("attn_q.weight", "self_attn.q_proj.weight", "heads*head_dim, width")];

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
const BIASED: &[Refusal] = &[Refusal { path: "attention_bias", accepted: &["false"] }];

pub(super) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    classes: &["Qwen2ForCausalLM"],
    values: &[TRANSFORMER_VALUES],
    refusals: &[TRANSFORMER_REFUSALS, SLIDING],
    keys: &[TRANSFORMER_KEYS],
    mixers: MixerRule::Attention,
    ffn: FfnRule::Dense,
    trunks: TRUNKS,
    model: MODEL,
    layer: &[NORMS, QUERY, KEY_VALUE_OUTPUT, BIASES, DENSE_FFN],
    mtp: &[],
    ignored: &[],
};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    classes: &["Qwen3ForCausalLM"],
    values: &[TRANSFORMER_VALUES],
    refusals: &[TRANSFORMER_REFUSALS, SLIDING, BIASED],
    keys: &[TRANSFORMER_KEYS],
    mixers: MixerRule::Attention,
    ffn: FfnRule::Dense,
    trunks: TRUNKS,
    model: MODEL,
    layer: &[NORMS, QUERY, KEY_VALUE_OUTPUT, HEAD_NORMS, DENSE_FFN],
    mtp: &[],
    ignored: &[],
};
