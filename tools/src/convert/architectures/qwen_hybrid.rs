//! Qwen3.5 and Qwen3-Next: gated delta net layers with gated attention between them, and multi-token prediction.

use super::*;

const ADD_ONE: &[Transform] = &[Transform::AddOne];

const VALUES: &[ValueRow] = &[
    required("key_heads", &["linear_num_key_heads"]),
    required("value_heads", &["linear_num_value_heads"]),
    required("key_dim", &["linear_key_head_dim"]),
    required("value_dim", &["linear_value_head_dim"]),
    or("ratio", &[], "value_heads/key_heads"),
    or("keys", &[], "key_heads*key_dim"),
    or("inner", &[], "value_heads*value_dim"),
    or("conv", &["linear_conv_kernel_dim"], "4"),
    or("interval", &["full_attention_interval"], "4"),
    or("partial", &["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], "0.25"),
];

const KEYS: &[KeyRow] = &[
    count("ssm.conv_kernel", "conv"),
    count("ssm.state_size", "key_dim"),
    count("ssm.group_count", "key_heads"),
    count("ssm.time_step_rank", "value_heads"),
    count("ssm.inner_size", "inner"),
    flags("attention.recurrent_layers", "linear"),
    count("full_attention_interval", "interval"),
    count("rope.dimension_count", "head_dim*partial"),
    count("nextn_predict_layers", "mtp").when("mtp"),
];

const SECTIONS: &[KeyRow] = &[KeyRow {
    key: "rope.dimension_sections",
    value: KeyValue::Sections {
        paths: &["rope_parameters.mrope_section", "rope_scaling.mrope_section"],
        default: [11, 11, 10],
    },
    when: "",
}];

const BIASED: &[Refusal] = &[Refusal { path: "attention_bias", accepted: &["false"] }];

/// As the transformers' rows, with norms that are stored as the difference from 1.
const HYBRID_MODEL: &[TensorRow] = &[
    renamed("token_embd.weight", "embed_tokens.weight", "vocab, width"),
    row("output_norm.weight", tensor("norm.weight", "width", ADD_ONE)),
    renamed("output.weight", "/lm_head.weight", "vocab, width").when("1 - tied"),
];

const HYBRID_NORMS: &[TensorRow] = &[
    row("attn_norm.weight", tensor("input_layernorm.weight", "width", ADD_ONE)),
    row("post_attention_norm.weight", tensor("post_attention_layernorm.weight", "width", ADD_ONE)),
];

const GATED_ATTENTION: &[TensorRow] = &[
    renamed("attn_q.weight", "self_attn.q_proj.weight", "2*heads*head_dim, width").at("attention"),
    row("attn_q_norm.weight", tensor("self_attn.q_norm.weight", "head_dim", ADD_ONE)).at("attention"),
    row("attn_k_norm.weight", tensor("self_attn.k_norm.weight", "head_dim", ADD_ONE)).at("attention"),
];

/// What both families store alike in a linear layer.
const DELTA: &[TensorRow] = &[renamed("ssm_norm.weight", "linear_attn.norm.weight", "value_dim").at("linear")];

const TILE_HEADS: Transform = Transform::GroupedToTiled { skip: "0", groups: "key_heads", members: "ratio", size: "1" };
const TILE_VALUES: Transform =
    Transform::GroupedToTiled { skip: "0", groups: "key_heads", members: "ratio", size: "value_dim" };
const TILE_VALUES_AFTER_KEYS: Transform =
    Transform::GroupedToTiled { skip: "2*keys", groups: "key_heads", members: "ratio", size: "value_dim" };
const TILE_COLUMNS: Transform =
    Transform::GroupedToTiledColumns { groups: "key_heads", members: "ratio", size: "value_dim" };
const SQUEEZE: Transform = Transform::Reshape("2*keys + inner, conv");

/// Value heads in tiles: head h uses key head h % key_heads.
const TILED_DELTA: &[TensorRow] = &[
    row(
        "attn_qkv.weight",
        tensor("linear_attn.in_proj_qkv.weight", "2*keys + inner, width", &[TILE_VALUES_AFTER_KEYS]),
    )
    .at("linear"),
    row("attn_gate.weight", tensor("linear_attn.in_proj_z.weight", "inner, width", &[TILE_VALUES])).at("linear"),
    row("ssm_alpha.weight", tensor("linear_attn.in_proj_a.weight", "value_heads, width", &[TILE_HEADS])).at("linear"),
    row("ssm_beta.weight", tensor("linear_attn.in_proj_b.weight", "value_heads, width", &[TILE_HEADS])).at("linear"),
    row("ssm_a", tensor("linear_attn.A_log", "value_heads", &[Transform::NegateExp, TILE_HEADS])).at("linear"),
    row("ssm_dt.bias", tensor("linear_attn.dt_bias", "value_heads", &[TILE_HEADS])).at("linear"),
    row(
        "ssm_conv1d.weight",
        tensor("linear_attn.conv1d.weight", "2*keys + inner, 1, conv", &[SQUEEZE, TILE_VALUES_AFTER_KEYS]),
    )
    .at("linear"),
    row("ssm_out.weight", tensor("linear_attn.out_proj.weight", "width, inner", &[TILE_COLUMNS])).at("linear"),
];

/// Value heads in groups: head h uses key head h / ratio.
const GROUPED_DELTA: &[TensorRow] = &[
    row(
        "attn_qkv.weight",
        tensor(
            "linear_attn.in_proj_qkvz.weight",
            "2*keys + 2*inner, width",
            &[Transform::TakeRows {
                groups: "key_heads",
                slices: &[("0", "key_dim"), ("key_dim", "key_dim"), ("2*key_dim", "ratio*value_dim")],
            }],
        ),
    )
    .at("linear"),
    row(
        "attn_gate.weight",
        tensor(
            "linear_attn.in_proj_qkvz.weight",
            "2*keys + 2*inner, width",
            &[Transform::TakeRows {
                groups: "key_heads",
                slices: &[("2*key_dim + ratio*value_dim", "ratio*value_dim")],
            }],
        ),
    )
    .at("linear"),
    renamed("ssm_ba.weight", "linear_attn.in_proj_ba.weight", "2*value_heads, width").at("linear"),
    row("ssm_a", tensor("linear_attn.A_log", "value_heads", &[Transform::NegateExp])).at("linear"),
    renamed("ssm_dt.bias", "linear_attn.dt_bias", "value_heads").at("linear"),
    row("ssm_conv1d.weight", tensor("linear_attn.conv1d.weight", "2*keys + inner, 1, conv", &[SQUEEZE])).at("linear"),
    renamed("ssm_out.weight", "linear_attn.out_proj.weight", "width, inner").at("linear"),
];

const MOE_VALUES: &[ValueRow] = &[
    required("experts", &["num_experts"]),
    required("experts_used", &["num_experts_per_tok"]),
    required("expert_ffn", &["moe_intermediate_size"]),
    required("shared_ffn", &["shared_expert_intermediate_size"]),
];

const MOE_KEYS: &[KeyRow] = &[
    count("expert_count", "experts"),
    count("expert_used_count", "experts_used"),
    count("expert_feed_forward_length", "expert_ffn"),
    count("expert_shared_feed_forward_length", "shared_ffn"),
];

const SPLIT_EXPERTS: &str = "experts, expert_ffn, width";

/// The experts are one tensor each, or all of a kind in one with gate and up in halves.
const MOE: &[TensorRow] = &[
    renamed("ffn_gate_inp.weight", "mlp.gate.weight", "experts, width").at("moe"),
    row("ffn_gate_exps.weight", experts("mlp.experts.{e}.gate_proj.weight", "expert_ffn, width")).at("moe").otherwise(
        tensor(
            "mlp.experts.gate_up_proj",
            "experts, 2*expert_ffn, width",
            &[
                Transform::TakeRows { groups: "experts", slices: &[("0", "expert_ffn")] },
                Transform::Reshape(SPLIT_EXPERTS),
            ],
        ),
    ),
    row("ffn_up_exps.weight", experts("mlp.experts.{e}.up_proj.weight", "expert_ffn, width")).at("moe").otherwise(
        tensor(
            "mlp.experts.gate_up_proj",
            "experts, 2*expert_ffn, width",
            &[
                Transform::TakeRows { groups: "experts", slices: &[("expert_ffn", "expert_ffn")] },
                Transform::Reshape(SPLIT_EXPERTS),
            ],
        ),
    ),
    row("ffn_down_exps.weight", experts("mlp.experts.{e}.down_proj.weight", "width, expert_ffn"))
        .at("moe")
        .otherwise(tensor("mlp.experts.down_proj", "experts, width, expert_ffn", &[])),
    renamed("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", "shared_ffn, width").at("moe"),
    renamed("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", "shared_ffn, width").at("moe"),
    renamed("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", "width, shared_ffn").at("moe"),
    renamed("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", "1, width").at("moe"),
];

const MTP: &[TensorRow] = &[
    renamed("nextn.eh_proj.weight", "fc.weight", "width, 2*width"),
    row("nextn.enorm.weight", tensor("pre_fc_norm_embedding.weight", "width", ADD_ONE)),
    row("nextn.hnorm.weight", tensor("pre_fc_norm_hidden.weight", "width", ADD_ONE)),
    row("nextn.shared_head_norm.weight", tensor("norm.weight", "width", ADD_ONE)),
];

pub(super) const QWEN35: Architecture = Architecture {
    name: "qwen35",
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    values: &[TRANSFORMER_VALUES, VALUES],
    refusals: &[TRANSFORMER_REFUSALS, BIASED],
    keys: &[TRANSFORMER_KEYS, KEYS, SECTIONS],
    mixers: MixerRule::LayerTypes,
    ffn: FfnRule::Dense,
    trunks: TRUNKS,
    model: HYBRID_MODEL,
    layer: &[HYBRID_NORMS, TILED_DELTA, DELTA, GATED_ATTENTION, KEY_VALUE_OUTPUT, DENSE_FFN],
    mtp: MTP,
    ignored: &[],
};

pub(super) const QWEN3NEXT: Architecture = Architecture {
    name: "qwen3next",
    classes: &["Qwen3NextForCausalLM"],
    values: &[TRANSFORMER_VALUES, VALUES, MOE_VALUES],
    refusals: &[TRANSFORMER_REFUSALS, BIASED],
    keys: &[TRANSFORMER_KEYS, KEYS, MOE_KEYS],
    mixers: MixerRule::LayerTypes,
    ffn: FfnRule::Sparse,
    trunks: TRUNKS,
    model: HYBRID_MODEL,
    layer: &[HYBRID_NORMS, GROUPED_DELTA, DELTA, GATED_ATTENTION, KEY_VALUE_OUTPUT, MOE, DENSE_FFN],
    mtp: MTP,
    ignored: &[],
};
