//! Llama and what keeps its layout: Mistral, SmolLM, and others of the same class.

use super::*;

pub(super) const ATTENTION: &[TensorRow] = &[
    row("attn_q.weight", tensor("self_attn.q_proj.weight", "heads*head_dim, width", PAIR_HEADS)),
    row("attn_k.weight", tensor("self_attn.k_proj.weight", "kv_heads*head_dim, width", PAIR_KV_HEADS)),
    renamed("attn_v.weight", "self_attn.v_proj.weight", "kv_heads*head_dim, width"),
    renamed("attn_output.weight", "self_attn.o_proj.weight", "width, heads*head_dim"),
    row("attn_q.bias", tensor("self_attn.q_proj.bias", "heads*head_dim", PAIR_HEADS)).when("attention_bias"),
    row("attn_k.bias", tensor("self_attn.k_proj.bias", "kv_heads*head_dim", PAIR_KV_HEADS)).when("attention_bias"),
    renamed("attn_v.bias", "self_attn.v_proj.bias", "kv_heads*head_dim").when("attention_bias"),
    renamed("attn_output.bias", "self_attn.o_proj.bias", "width").when("attention_bias"),
];

pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    classes: &["LlamaForCausalLM", "MistralForCausalLM"],
    values: &[TRANSFORMER_VALUES, FFN_VALUES, &[or("sliding_window", &["sliding_window"], "0")]],
    refusals: &[SILU, NO_FFN_BIAS],
    keys: &[
        SIZE_KEYS,
        FFN_KEYS,
        TRANSFORMER_KEYS,
        KV_HEADS,
        &[
            count("vocab_size", "vocab"),
            count("rope.dimension_count", "head_dim"),
            count("attention.sliding_window", "sliding_window").when("sliding_window"),
        ],
    ],
    trunks: TRUNKS,
    model: &[MODEL, ROPE_FACTORS],
    layer: &[NORMS, ATTENTION, DENSE_FFN],
    ..PLAIN
};
