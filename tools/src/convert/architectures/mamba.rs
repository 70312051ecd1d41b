//! Mamba-1 alone: every layer recurrent, no attention, no feed-forward.

use super::*;

const VALUES: &[ValueRow] = &[
    required("layers", &["num_hidden_layers", "n_layer"]),
    // It has no limit; readers want a number.
    or("context", &[], "1048576"),
    required("width", &["hidden_size", "d_model"]),
    required("vocab", &["vocab_size"]),
    or("epsilon", &["layer_norm_epsilon", "rms_norm_eps"], "0.00001"),
    or("tied", &["tie_word_embeddings"], "1"),
    or("conv", &["conv_kernel"], "4"),
    or("conv_bias", &["use_conv_bias"], "1"),
    or("expand", &["expand"], "2"),
    or("inner", &["intermediate_size"], "expand*width"),
    or("state", &["state_size"], "16"),
    or("rank", &["time_step_rank"], "ceil(width/16)"),
];

const REFUSALS: &[Refusal] = &[Refusal { path: "use_bias", accepted: &["false"] }];

const KEYS: &[KeyRow] = &[
    count("feed_forward_length", "0"),
    count("attention.head_count", "0"),
    number("attention.layer_norm_rms_epsilon", "epsilon"),
    count("ssm.conv_kernel", "conv"),
    count("ssm.inner_size", "inner"),
    count("ssm.state_size", "state"),
    count("ssm.time_step_rank", "rank"),
    truth("ssm.dt_b_c_rms", "0"),
];

const LAYER: &[TensorRow] = &[
    renamed("attn_norm.weight", "norm.weight", "width"),
    renamed("ssm_in.weight", "mixer.in_proj.weight", "2*inner, width"),
    row("ssm_conv1d.weight", tensor("mixer.conv1d.weight", "inner, 1, conv", &[Transform::Reshape("inner, conv")])),
    renamed("ssm_conv1d.bias", "mixer.conv1d.bias", "inner").when("conv_bias"),
    renamed("ssm_x.weight", "mixer.x_proj.weight", "rank + 2*state, inner"),
    renamed("ssm_dt.weight", "mixer.dt_proj.weight", "inner, rank"),
    renamed("ssm_dt.bias", "mixer.dt_proj.bias", "inner"),
    row("ssm_a", tensor("mixer.A_log", "inner, state", &[Transform::NegateExp])),
    renamed("ssm_d", "mixer.D", "inner"),
    renamed("ssm_out.weight", "mixer.out_proj.weight", "width, inner"),
];

pub(super) const MAMBA: Architecture = Architecture {
    name: "mamba",
    classes: &["MambaForCausalLM"],
    values: &[VALUES],
    refusals: &[SILU, REFUSALS],
    keys: &[SIZE_KEYS, KEYS],
    mixers: &[TagRule::All("mamba")],
    ffns: &[TagRule::All("none")],
    trunks: &[Trunk { trunk: "backbone.", head: "" }, Trunk { trunk: "model.", head: "" }],
    model: &[mamba2::MODEL],
    layer: &[LAYER],
    ..PLAIN
};
