//! Granite: Mamba-2 layers with a few of attention without positions, or attention in every layer; dense or with experts.

use super::*;

/// Factors along the residual stream.
const SCALES: &[ValueRow] = &[
    or("attention_scale", &["attention_multiplier"], "1"),
    or("embedding_scale", &["embedding_multiplier"], "1"),
    or("residual_scale", &["residual_multiplier"], "1"),
    or("logit_scale", &["logits_scaling"], "1"),
];

const ROUTED: &[ValueRow] = &[
    or("expert_ffn", &["intermediate_size"], "0"),
    or("experts", &["num_local_experts"], "0"),
    or("experts_used", &["num_experts_per_tok"], "0"),
];

/// Models of the hybrids' class have the shared feed-forward alone where there are no experts.
const SHARED_FFN: &[ValueRow] = &[or("shared_ffn", &["shared_intermediate_size"], "expert_ffn")];
/// Of the other classes only one has a shared feed-forward.
const OWN_FFN: &[ValueRow] = &[or("shared_ffn", &["shared_intermediate_size"], "0")];

const VALUES: &[ValueRow] = &[
    or("conv", &["mamba_d_conv"], "4"),
    or("conv_bias", &["mamba_conv_bias"], "1"),
    or("expand", &["mamba_expand"], "2"),
    or("inner", &[], "expand*width"),
    or("state", &["mamba_d_state"], "256"),
    or("groups", &["mamba_n_groups"], "1"),
    required("ssm_heads", &["mamba_n_heads"]),
    or("gated_norm", &[], "1"),
];

const RMS_NORM: &[Refusal] = &[Refusal { path: "normalization_function", accepted: &["\"rmsnorm\""] }];
const REFUSALS: &[Refusal] = &[
    Refusal { path: "position_embedding_type", accepted: &["\"nope\""] },
    Refusal { path: "mamba_proj_bias", accepted: &["false"] },
];

const SCALE_KEYS: &[KeyRow] = &[
    number("attention.scale", "attention_scale"),
    number("embedding_scale", "embedding_scale"),
    number("residual_scale", "residual_scale"),
    number("logit_scale", "logit_scale"),
];

const KEYS: &[KeyRow] = &[
    count("block_count", "blocks"),
    // Without positions there is no limit; readers want a number.
    count("context_length", "1048576"),
    count("embedding_length", "width"),
    count("vocab_size", "vocab"),
    count("feed_forward_length", "expert_ffn").when("moe_layers"),
    count("feed_forward_length", "shared_ffn").when("dense_layers"),
    count("expert_shared_feed_forward_length", "shared_ffn"),
    count("expert_count", "experts"),
    count("expert_used_count", "experts_used"),
    count("attention.head_count", "heads"),
    number("attention.layer_norm_rms_epsilon", "epsilon"),
    count("rope.dimension_count", "head_dim"),
    number("rope.freq_base", "rope_base"),
    // There is no rope at all.
    truth("rope.scaling.finetuned", "0"),
];

/// Those of files without recurrent layers.
const ATTENTION_KEYS: &[KeyRow] = &[
    count("vocab_size", "vocab"),
    count("feed_forward_length", "expert_ffn").when("moe_layers"),
    count("feed_forward_length", "dense_ffn").when("dense_layers"),
    count("expert_shared_feed_forward_length", "shared_ffn").when("moe_layers*shared_ffn"),
    count("expert_count", "experts").when("moe_layers"),
    count("expert_used_count", "experts_used").when("moe_layers"),
    count("rope.dimension_count", "head_dim"),
    truth("rope.scaling.finetuned", "rotates"),
];

/// As published, and as newer versions of the library save it.
const MIXERS: &[TagRule] = &[TagRule::Listed {
    path: "layer_types",
    tags: &[
        ("mamba", "mamba"),
        ("attention", "attention"),
        ("linear_attention", "mamba"),
        ("full_attention", "attention"),
    ],
}];

const FFNS: &[TagRule] =
    &[TagRule::Every { period: "1", offset: "0", tag: "moe", when: "experts" }, TagRule::All("dense")];

const ATTENTION: &[TensorRow] = &[
    row("attn_q.weight", tensor("self_attn.q_proj.weight", "heads*head_dim, width", PAIR_HEADS)).at("attention"),
    row("attn_k.weight", tensor("self_attn.k_proj.weight", "kv_heads*head_dim, width", PAIR_KV_HEADS)).at("attention"),
    renamed("attn_v.weight", "self_attn.v_proj.weight", "kv_heads*head_dim, width").at("attention"),
    renamed("attn_output.weight", "self_attn.o_proj.weight", "width, heads*head_dim").at("attention"),
];

const FIRST_HALF: &[Transform] = &[Transform::TakeRows { groups: "1", slices: &[("0", "shared_ffn")] }];
const SECOND_HALF: &[Transform] = &[Transform::TakeRows { groups: "1", slices: &[("shared_ffn", "shared_ffn")] }];

/// What the library calls experts since it holds those of all models alike.
const RENAMES: &[(&str, &str)] = &[
    (".block_sparse_moe.experts.gate_up_proj", ".block_sparse_moe.input_linear.weight"),
    (".block_sparse_moe.experts.down_proj", ".block_sparse_moe.output_linear.weight"),
    (".block_sparse_moe.router.weight", ".block_sparse_moe.router.layer.weight"),
];

const EXPERTS: &[TensorRow] = &[
    renamed("ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight", "experts, width").at("moe"),
    row(
        "ffn_gate_exps.weight",
        tensor("block_sparse_moe.input_linear.weight", "experts, 2*expert_ffn, width", GATE_HALF),
    )
    .at("moe"),
    row("ffn_up_exps.weight", tensor("block_sparse_moe.input_linear.weight", "experts, 2*expert_ffn, width", UP_HALF))
        .at("moe"),
    renamed("ffn_down_exps.weight", "block_sparse_moe.output_linear.weight", "experts, width, expert_ffn").at("moe"),
];

const SHARED_EXPERT: &[TensorRow] = &[
    row("ffn_gate_shexp.weight", tensor("shared_mlp.input_linear.weight", "2*shared_ffn, width", FIRST_HALF))
        .at("moe")
        .when("shared_ffn"),
    row("ffn_up_shexp.weight", tensor("shared_mlp.input_linear.weight", "2*shared_ffn, width", SECOND_HALF))
        .at("moe")
        .when("shared_ffn"),
    renamed("ffn_down_shexp.weight", "shared_mlp.output_linear.weight", "width, shared_ffn")
        .at("moe")
        .when("shared_ffn"),
];

const DENSE: &[TensorRow] = &[
    row("ffn_gate.weight", tensor("shared_mlp.input_linear.weight", "2*shared_ffn, width", FIRST_HALF)).at("dense"),
    row("ffn_up.weight", tensor("shared_mlp.input_linear.weight", "2*shared_ffn, width", SECOND_HALF)).at("dense"),
    renamed("ffn_down.weight", "shared_mlp.output_linear.weight", "width, shared_ffn").at("dense"),
];

pub(super) const GRANITE_HYBRID: Architecture = Architecture {
    name: "granitehybrid",
    classes: &["GraniteMoeHybridForCausalLM"],
    renames: RENAMES,
    values: &[TRANSFORMER_VALUES, SCALES, ROUTED, SHARED_FFN, VALUES],
    refusals: &[SILU, NO_ATTENTION_BIAS, TIME_STEP_REFUSALS, RMS_NORM, REFUSALS],
    keys: &[KEYS, SCALE_KEYS, HEAD_KEYS, KV_HEADS_PER_BLOCK, MAMBA2_KEYS],
    mixers: MIXERS,
    ffns: FFNS,
    needs: "mamba",
    trunks: TRUNKS,
    model: &[MODEL],
    layer: &[NORMS, mamba2_projections!("mamba"), mamba2_state!("mamba"), ATTENTION, EXPERTS, SHARED_EXPERT, DENSE],
    ..PLAIN
};

/// Models of the hybrids' class all of whose layers are attention.
pub(super) const GRANITE_ATTENTION: Architecture = Architecture {
    classes: GRANITE_HYBRID.classes,
    values: &[TRANSFORMER_VALUES, SCALES, ROUTED, SHARED_FFN, &[or("dense_ffn", &[], "shared_ffn")]],
    refusals: &[SILU, RMS_NORM],
    mixers: MIXERS,
    needs: "attention",
    layer: &[NORMS, llama::ATTENTION, EXPERTS, SHARED_EXPERT, DENSE],
    ..GRANITE
};

/// Granite 3.
pub(super) const GRANITE: Architecture = Architecture {
    name: "granite",
    variant: Some(("moe", "granitemoe")),
    classes: &["GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    renames: RENAMES,
    values: &[TRANSFORMER_VALUES, SCALES, ROUTED, OWN_FFN, FFN_VALUES, &[or("dense_ffn", &[], "ffn")]],
    refusals: &[SILU, NO_FFN_BIAS],
    keys: &[SIZE_KEYS, TRANSFORMER_KEYS, KV_HEADS, SCALE_KEYS, ATTENTION_KEYS],
    ffns: FFNS,
    trunks: TRUNKS,
    model: &[MODEL, ROPE_FACTORS],
    layer: &[NORMS, llama::ATTENTION, EXPERTS, SHARED_EXPERT, DENSE_FFN],
    ..PLAIN
};
