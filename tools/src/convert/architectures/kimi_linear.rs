//! Kimi-Linear: delta attention with a decay per channel, latent attention without positions, experts.

use super::*;

const VALUES: &[ValueRow] = &[
    required("layers", &["num_hidden_layers"]),
    required("context", &["model_max_length", "max_position_embeddings"]),
    required("width", &["hidden_size"]),
    required("ffn", &["intermediate_size"]),
    required("heads", &["num_attention_heads"]),
    required("vocab", &["vocab_size"]),
    or("epsilon", &["rms_norm_eps"], "0.00001"),
    or("tied", &["tie_word_embeddings"], "0"),
    required("latent", &["kv_lora_rank"]),
    required("nope", &["qk_nope_head_dim"]),
    required("rope", &["qk_rope_head_dim"]),
    required("value_dim", &["v_head_dim"]),
    required("linear_heads", &["linear_attn_config.num_heads", "linear_num_heads"]),
    required("linear_dim", &["linear_attn_config.head_dim", "linear_head_dim"]),
    or("conv", &["linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"], "4"),
    or("inner", &[], "linear_heads*linear_dim"),
    or("dense_leading", &["first_k_dense_replace"], "0"),
    or("shared_experts", &["num_shared_experts"], "1"),
    or("expert_groups", &["num_expert_group"], "1"),
    or("expert_groups_used", &["topk_group"], "1"),
    or("routed_scale", &["routed_scaling_factor"], "1"),
];

const REFUSALS: &[Refusal] = &[
    Refusal { path: "q_lora_rank", accepted: &[] },
    Refusal { path: "mla_use_nope", accepted: &["true"] },
    Refusal { path: "moe_renormalize", accepted: &["true"] },
    Refusal { path: "moe_router_activation_func", accepted: &["\"sigmoid\""] },
    Refusal { path: "moe_layer_freq", accepted: &["1"] },
    Refusal { path: "num_expert_group", accepted: &["1"] },
];

const KEYS: &[KeyRow] = &[
    count("vocab_size", "vocab"),
    count("feed_forward_length", "ffn"),
    count("attention.head_count", "heads"),
    // One head, that of the latent vectors; recurrent layers have none.
    counts("attention.head_count_kv", &[("attention", "1")]),
    count("attention.key_length", "latent + rope"),
    count("attention.value_length", "value_dim"),
    count("attention.key_length_mla", "nope + rope"),
    count("attention.value_length_mla", "value_dim"),
    count("attention.kv_lora_rank", "latent"),
    number("attention.layer_norm_rms_epsilon", "epsilon"),
    count("rope.dimension_count", "rope"),
    count("ssm.conv_kernel", "conv"),
    count("kda.head_dim", "linear_dim"),
    count("expert_shared_count", "shared_experts"),
    count("expert_group_used_count", "expert_groups_used"),
    count("leading_dense_block_count", "dense_first"),
    // Sigmoid.
    count("expert_gating_func", "2"),
    number("expert_weights_scale", "routed_scale"),
];

const MIXERS: &[TagRule] = &[
    TagRule::Numbered { path: "linear_attn_config.kda_layers", first: 1, tag: "linear" },
    TagRule::Numbered { path: "linear_attn_config.full_attn_layers", first: 1, tag: "attention" },
    TagRule::Listed { path: "layer_types", tags: &[("linear_attention", "linear"), ("full_attention", "attention")] },
];

const FFNS: &[TagRule] = &[
    TagRule::Leading { count: "dense_leading", tag: "dense" },
    TagRule::Listed { path: "mlp_layer_types", tags: &[("dense", "dense"), ("sparse", "moe")] },
    TagRule::All("moe"),
];

const CONV: &[Transform] = &[Transform::Reshape("1, inner, 1, conv")];

const DELTA: &[TensorRow] = &[
    renamed("attn_q.weight", "self_attn.q_proj.weight", "inner, width").at("linear"),
    renamed("attn_k.weight", "self_attn.k_proj.weight", "inner, width").at("linear"),
    renamed("attn_v.weight", "self_attn.v_proj.weight", "inner, width").at("linear"),
    row("ssm_conv1d_q.weight", tensor("self_attn.q_conv1d.weight", "inner, 1, conv", CONV)).at("linear"),
    row("ssm_conv1d_k.weight", tensor("self_attn.k_conv1d.weight", "inner, 1, conv", CONV)).at("linear"),
    row("ssm_conv1d_v.weight", tensor("self_attn.v_conv1d.weight", "inner, 1, conv", CONV)).at("linear"),
    renamed("ssm_f_a.weight", "self_attn.f_a_proj.weight", "linear_dim, width").at("linear"),
    renamed("ssm_f_b.weight", "self_attn.f_b_proj.weight", "inner, linear_dim").at("linear"),
    renamed("ssm_dt.bias", "self_attn.dt_bias", "inner").at("linear"),
    row(
        "ssm_a",
        tensor(
            "self_attn.A_log",
            "1, 1, linear_heads, 1",
            &[Transform::NegateExp, Transform::Reshape("1, 1, linear_heads, 1")],
        ),
    )
    .at("linear"),
    renamed("ssm_beta.weight", "self_attn.b_proj.weight", "linear_heads, width").at("linear"),
    renamed("ssm_g_a.weight", "self_attn.g_a_proj.weight", "linear_dim, width").at("linear"),
    renamed("ssm_g_b.weight", "self_attn.g_b_proj.weight", "inner, linear_dim").at("linear"),
    renamed("ssm_norm.weight", "self_attn.o_norm.weight", "linear_dim").at("linear"),
    renamed("attn_output.weight", "self_attn.o_proj.weight", "width, inner").at("linear"),
];

const LATENT: &[TensorRow] = &[
    renamed("attn_q.weight", "self_attn.q_proj.weight", "heads*(nope + rope), width").at("attention"),
    renamed("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", "latent + rope, width").at("attention"),
    renamed("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", "latent").at("attention"),
    row(
        "attn_k_b.weight",
        tensor(
            "self_attn.kv_b_proj.weight",
            "heads*(nope + value_dim), latent",
            &[
                Transform::TakeRows { groups: "heads", slices: &[("0", "nope")] },
                Transform::Reshape("heads, nope, latent"),
                Transform::Transpose,
            ],
        ),
    )
    .at("attention"),
    row(
        "attn_v_b.weight",
        tensor(
            "self_attn.kv_b_proj.weight",
            "heads*(nope + value_dim), latent",
            &[
                Transform::TakeRows { groups: "heads", slices: &[("nope", "value_dim")] },
                Transform::Reshape("heads, value_dim, latent"),
            ],
        ),
    )
    .at("attention"),
    renamed("attn_output.weight", "self_attn.o_proj.weight", "width, heads*value_dim").at("attention"),
];

const SHARED_FFN: &str = "expert_ffn*shared_experts, width";

const FFN: &[TensorRow] = &[
    renamed("ffn_gate.weight", "block_sparse_moe.gate_proj.weight", "ffn, width").at("dense"),
    renamed("ffn_up.weight", "block_sparse_moe.up_proj.weight", "ffn, width").at("dense"),
    renamed("ffn_down.weight", "block_sparse_moe.down_proj.weight", "width, ffn").at("dense"),
    renamed("ffn_gate_inp.weight", "block_sparse_moe.gate.weight", "experts, width").at("moe"),
    renamed("exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias", "experts").at("moe"),
    renamed("ffn_gate_shexp.weight", "block_sparse_moe.shared_experts.gate_proj.weight", SHARED_FFN).at("moe"),
    renamed("ffn_up_shexp.weight", "block_sparse_moe.shared_experts.up_proj.weight", SHARED_FFN).at("moe"),
    renamed(
        "ffn_down_shexp.weight",
        "block_sparse_moe.shared_experts.down_proj.weight",
        "width, expert_ffn*shared_experts",
    )
    .at("moe"),
];

pub(super) const KIMI_LINEAR: Architecture = Architecture {
    name: "kimi-linear",
    classes: &["KimiLinearForCausalLM"],
    values: &[VALUES, EXPERT_VALUES],
    refusals: &[SILU, REFUSALS],
    keys: &[SIZE_KEYS, KEYS, EXPERT_KEYS],
    mixers: MIXERS,
    ffns: FFNS,
    trunks: TRUNKS,
    // The second as the library names the modules that adapters are for.
    renames: &[(".mlp.", ".block_sparse_moe."), (".self_attn.forget_gate.", ".self_attn.")],
    model: &[UNTIED_MODEL],
    layer: &[NORMS, DELTA, LATENT, FFN, experts!("block_sparse_moe.experts", "w1", "w3", "w2")],
    ..PLAIN
};
