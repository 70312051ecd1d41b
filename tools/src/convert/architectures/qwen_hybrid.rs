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

const SHARED_VALUES: &[ValueRow] = &[required("shared_ffn", &["shared_expert_intermediate_size"])];
const SHARED_KEYS: &[KeyRow] = &[count("expert_shared_feed_forward_length", "shared_ffn")];

const EXPERTS: &[TensorRow] = experts!("mlp.experts", "gate_proj", "up_proj", "down_proj");

const ROUTED: &[TensorRow] = &[
    renamed("ffn_gate_inp.weight", "mlp.gate.weight", "experts, width").at("moe"),
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

const MIXERS: &[TagRule] = &[
    TagRule::Listed { path: "layer_types", tags: &[("linear_attention", "linear"), ("full_attention", "attention")] },
    TagRule::Every { period: "interval", offset: "interval - 1", tag: "attention", when: "" },
    TagRule::All("linear"),
];

pub(super) const QWEN35: Architecture = Architecture {
    name: "qwen35",
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    values: &[TRANSFORMER_VALUES, FFN_VALUES, VALUES],
    refusals: &[SILU, NO_ATTENTION_BIAS],
    keys: &[SIZE_KEYS, FFN_KEYS, TRANSFORMER_KEYS, KV_HEADS, KEYS, SECTIONS],
    mixers: MIXERS,
    trunks: TRUNKS,
    model: &[HYBRID_MODEL],
    layer: &[HYBRID_NORMS, TILED_DELTA, DELTA, GATED_ATTENTION, KEY_VALUE_OUTPUT, DENSE_FFN],
    mtp: MTP,
    ..PLAIN
};

pub(super) const QWEN35MOE: Architecture = Architecture {
    name: "qwen35moe",
    classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    values: &[TRANSFORMER_VALUES, EXPERT_VALUES, SHARED_VALUES, VALUES],
    refusals: &[SILU, NO_ATTENTION_BIAS],
    keys: &[SIZE_KEYS, TRANSFORMER_KEYS, KV_HEADS, KEYS, SECTIONS, EXPERT_KEYS, SHARED_KEYS],
    mixers: MIXERS,
    ffns: &[TagRule::All("moe")],
    trunks: TRUNKS,
    model: &[HYBRID_MODEL],
    layer: &[HYBRID_NORMS, TILED_DELTA, DELTA, GATED_ATTENTION, KEY_VALUE_OUTPUT, EXPERTS, ROUTED],
    mtp: MTP,
    ..PLAIN
};

pub(super) const QWEN3NEXT: Architecture = Architecture {
    name: "qwen3next",
    classes: &["Qwen3NextForCausalLM"],
    values: &[TRANSFORMER_VALUES, FFN_VALUES, EXPERT_VALUES, SHARED_VALUES, SPARSE_VALUES, VALUES],
    refusals: &[SILU, NO_ATTENTION_BIAS, NORMALISED],
    keys: &[SIZE_KEYS, FFN_KEYS, TRANSFORMER_KEYS, KV_HEADS, KEYS, EXPERT_KEYS, SHARED_KEYS],
    mixers: MIXERS,
    ffns: SPARSE_FFNS,
    trunks: TRUNKS,
    model: &[HYBRID_MODEL],
    layer: &[HYBRID_NORMS, GROUPED_DELTA, DELTA, GATED_ATTENTION, KEY_VALUE_OUTPUT, EXPERTS, ROUTED, DENSE_FFN],
    mtp: MTP,
    ..PLAIN
};
