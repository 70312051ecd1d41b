//! Jamba: Mamba-1 layers with attention without positions now and then, dense or with experts.

use super::*;

const VALUES: &[ValueRow] = &[
    required("ffn", &["intermediate_size"]),
    or("expert_ffn", &[], "ffn"),
    or("experts", &["num_experts"], "1"),
    or("experts_used", &["num_experts_per_tok"], "2"),
    or("attention_period", &["attn_layer_period"], "8"),
    or("attention_offset", &["attn_layer_offset"], "4"),
    or("expert_period", &["expert_layer_period"], "2"),
    or("expert_offset", &["expert_layer_offset"], "1"),
    or("conv", &["mamba_d_conv"], "4"),
    or("conv_bias", &["mamba_conv_bias"], "1"),
    or("state", &["mamba_d_state"], "16"),
    or("expand", &["mamba_expand"], "2"),
    or("inner", &[], "expand*width"),
    or("rank", &["mamba_dt_rank"], "ceil(width/16)"),
];

const REFUSALS: &[Refusal] = &[Refusal { path: "mamba_proj_bias", accepted: &["false"] }];

const KEYS: &[KeyRow] = &[
    count("attention.head_count", "heads"),
    number("attention.layer_norm_rms_epsilon", "epsilon"),
    count("ssm.conv_kernel", "conv"),
    count("ssm.inner_size", "inner"),
    count("ssm.state_size", "state"),
    count("ssm.time_step_rank", "rank"),
    count("expert_count", "experts"),
    count("expert_used_count", "experts_used"),
];

const MODEL: &[TensorRow] = &[
    renamed("token_embd.weight", "embed_tokens.weight", "vocab, width"),
    renamed("output_norm.weight", "final_layernorm.weight", "width"),
    renamed("output.weight", "/lm_head.weight", "vocab, width").when("1 - tied"),
];

const LAYER: &[TensorRow] = &[
    renamed("attn_norm.weight", "input_layernorm.weight", "width"),
    renamed("ffn_norm.weight", "pre_ff_layernorm.weight", "width"),
    renamed("ffn_gate.weight", "feed_forward.gate_proj.weight", "ffn, width").at("dense"),
    renamed("ffn_up.weight", "feed_forward.up_proj.weight", "ffn, width").at("dense"),
    renamed("ffn_down.weight", "feed_forward.down_proj.weight", "width, ffn").at("dense"),
    renamed("ffn_gate_inp.weight", "feed_forward.router.weight", "experts, width").at("moe"),
];

const MAMBA1: &[TensorRow] = &[
    renamed("ssm_in.weight", "mamba.in_proj.weight", "2*inner, width").at("mamba"),
    row("ssm_conv1d.weight", tensor("mamba.conv1d.weight", "inner, 1, conv", &[Transform::Reshape("inner, conv")]))
        .at("mamba"),
    renamed("ssm_conv1d.bias", "mamba.conv1d.bias", "inner").at("mamba").when("conv_bias"),
    renamed("ssm_x.weight", "mamba.x_proj.weight", "rank + 2*state, inner").at("mamba"),
    renamed("ssm_dt_norm.weight", "mamba.dt_layernorm.weight", "rank").at("mamba"),
    renamed("ssm_b_norm.weight", "mamba.b_layernorm.weight", "state").at("mamba"),
    renamed("ssm_c_norm.weight", "mamba.c_layernorm.weight", "state").at("mamba"),
    renamed("ssm_dt.weight", "mamba.dt_proj.weight", "inner, rank").at("mamba"),
    renamed("ssm_dt.bias", "mamba.dt_proj.bias", "inner").at("mamba"),
    row("ssm_a", tensor("mamba.A_log", "inner, state", &[Transform::NegateExp])).at("mamba"),
    renamed("ssm_d", "mamba.D", "inner").at("mamba"),
    renamed("ssm_out.weight", "mamba.out_proj.weight", "width, inner").at("mamba"),
];

pub(super) const JAMBA: Architecture = Architecture {
    name: "jamba",
    classes: &["JambaForCausalLM"],
    values: &[TRANSFORMER_VALUES, VALUES],
    refusals: &[SILU, REFUSALS],
    keys: &[SIZE_KEYS, FFN_KEYS, KEYS, HEAD_KEYS, KV_HEADS_PER_BLOCK],
    mixers: &[
        TagRule::Every { period: "attention_period", offset: "attention_offset", tag: "attention", when: "" },
        TagRule::All("mamba"),
    ],
    ffns: &[
        TagRule::Every { period: "expert_period", offset: "expert_offset", tag: "moe", when: "experts - 1" },
        TagRule::All("dense"),
    ],
    trunks: TRUNKS,
    model: &[MODEL],
    layer: &[
        LAYER,
        MAMBA1,
        QUERY,
        KEY_VALUE_OUTPUT,
        experts!("feed_forward.experts", "gate_proj", "up_proj", "down_proj"),
    ],
    ..PLAIN
};
