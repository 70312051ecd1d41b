//! LFM2, dense and with experts: short convolutions with attention between them.

use super::*;

const VALUES: &[ValueRow] = &[
    or("epsilon", &["norm_eps", "block_norm_eps", "rms_norm_eps"], "0.00001"),
    or("cache", &["conv_L_cache"], "3"),
    or("rope_base", &["rope_parameters.rope_theta", "rope_theta", "theta"], "1000000"),
];

/// The published size of the feed-forward is that of a plain one, of which a gated one has two thirds.
const ADJUSTED: &[ValueRow] = &[
    required("plain_ffn", &["block_ff_dim", "intermediate_size"]),
    or("adjust", &["block_auto_adjust_ff_dim"], "1"),
    or("multiplier", &["block_ffn_dim_multiplier"], "1"),
    or("multiple", &["block_multiple_of"], "256"),
    or("adjusted", &[], "ceil(floor(multiplier*floor(2*plain_ffn/3))/multiple)*multiple"),
    or("ffn", &[], "adjust*adjusted + (1 - adjust)*plain_ffn"),
];

const REFUSALS: &[Refusal] = &[
    Refusal { path: "conv_bias", accepted: &["false"] },
    Refusal { path: "routed_scaling_factor", accepted: &["1", "1.0"] },
    Refusal { path: "norm_topk_prob", accepted: &["true"] },
];

const KEYS: &[KeyRow] = &[
    count("vocab_size", "vocab"),
    count("attention.head_count", "heads"),
    number("rope.freq_base", "rope_base"),
    number("attention.layer_norm_rms_epsilon", "epsilon"),
    count("shortconv.l_cache", "cache"),
];

const MIXERS: &[TagRule] = &[
    TagRule::Listed { path: "layer_types", tags: &[("conv", "conv"), ("full_attention", "attention")] },
    TagRule::Numbered { path: "full_attn_idxs", first: 0, tag: "attention" },
    TagRule::All("conv"),
];

const MODEL: &[TensorRow] = &[
    renamed("token_embd.weight", "embed_tokens.weight", "vocab, width"),
    // The last norm, whatever its name.
    renamed("token_embd_norm.weight", "embedding_norm.weight", "width"),
    renamed("output.weight", "/lm_head.weight", "vocab, width").when("1 - tied"),
];

const LAYER: &[TensorRow] = &[
    renamed("attn_norm.weight", "operator_norm.weight", "width"),
    renamed("ffn_norm.weight", "ffn_norm.weight", "width"),
    renamed("shortconv.in_proj.weight", "conv.in_proj.weight", "3*width, width").at("conv"),
    row("shortconv.conv.weight", tensor("conv.conv.weight", "width, 1, cache", &[Transform::Reshape("width, cache")]))
        .at("conv"),
    renamed("shortconv.out_proj.weight", "conv.out_proj.weight", "width, width").at("conv"),
    renamed("attn_k.weight", "self_attn.k_proj.weight", "kv_heads*head_dim, width").at("attention"),
    renamed("attn_v.weight", "self_attn.v_proj.weight", "kv_heads*head_dim, width").at("attention"),
    renamed("attn_output.weight", "self_attn.out_proj.weight", "width, heads*head_dim").at("attention"),
    renamed("attn_q_norm.weight", "self_attn.q_layernorm.weight", "head_dim").at("attention"),
    renamed("attn_k_norm.weight", "self_attn.k_layernorm.weight", "head_dim").at("attention"),
    renamed("ffn_gate.weight", "feed_forward.w1.weight", "ffn, width").at("dense"),
    renamed("ffn_up.weight", "feed_forward.w3.weight", "ffn, width").at("dense"),
    renamed("ffn_down.weight", "feed_forward.w2.weight", "width, ffn").at("dense"),
];

pub(super) const LFM2: Architecture = Architecture {
    name: "lfm2",
    classes: &["Lfm2ForCausalLM", "Lfm2VlForConditionalGeneration"],
    values: &[TRANSFORMER_VALUES, ADJUSTED, VALUES],
    refusals: &[SILU, REFUSALS],
    keys: &[SIZE_KEYS, FFN_KEYS, KEYS, HEAD_KEYS, KV_HEADS_PER_BLOCK],
    mixers: MIXERS,
    trunks: TRUNKS,
    model: &[MODEL],
    layer: &[LAYER, QUERY],
    ..PLAIN
};

const DENSE_LAYERS: &[ValueRow] = &[or("dense_leading", &["num_dense_layers"], "0")];

const ROUTED_KEYS: &[KeyRow] = &[
    count("leading_dense_block_count", "dense_first"),
    // Sigmoid.
    count("expert_gating_func", "2"),
];

const ROUTER: &[TensorRow] = &[
    renamed("ffn_gate_inp.weight", "feed_forward.gate.weight", "experts, width").at("moe"),
    renamed("exp_probs_b.bias", "feed_forward.expert_bias", "experts").at("moe"),
];
const EXPERTS: &[TensorRow] = experts!("feed_forward.experts", "w1", "w3", "w2");

pub(super) const LFM2MOE: Architecture = Architecture {
    name: "lfm2moe",
    classes: &["Lfm2MoeForCausalLM"],
    values: &[TRANSFORMER_VALUES, FFN_VALUES, EXPERT_VALUES, DENSE_LAYERS, VALUES],
    refusals: &[SILU, REFUSALS, &[Refusal { path: "use_expert_bias", accepted: &["true"] }]],
    keys: &[SIZE_KEYS, FFN_KEYS, KEYS, HEAD_KEYS, KV_HEADS_PER_BLOCK, EXPERT_KEYS, ROUTED_KEYS],
    mixers: MIXERS,
    ffns: &[TagRule::Leading { count: "dense_leading", tag: "dense" }, TagRule::All("moe")],
    trunks: TRUNKS,
    model: &[MODEL],
    layer: &[LAYER, QUERY, ROUTER, EXPERTS],
    ..PLAIN
};
