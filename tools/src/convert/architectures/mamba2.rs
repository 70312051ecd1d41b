//! Mamba-2 alone: every layer recurrent, no attention, no feed-forward.

use super::*;

const VALUES: &[ValueRow] = &[
    required("layers", &["num_hidden_layers", "n_layer"]),
    // It has no limit; readers want a number.
    or("context", &[], "1048576"),
    required("width", &["hidden_size", "d_model"]),
    required("vocab", &["vocab_size"]),
    or("epsilon", &["layer_norm_epsilon", "rms_norm_eps"], "0.00001"),
    or("tied", &["tie_word_embeddings"], "0"),
    or("conv", &["conv_kernel"], "4"),
    or("conv_bias", &["use_conv_bias"], "1"),
    or("expand", &["expand"], "2"),
    or("inner", &["intermediate_size"], "expand*width"),
    or("state", &["state_size"], "128"),
    or("groups", &["n_groups"], "1"),
    or("ssm_head_dim", &["head_dim"], "64"),
    or("ssm_heads", &["num_heads"], "inner/ssm_head_dim"),
    or("gated_norm", &[], "1"),
];

const KEYS: &[KeyRow] = &[
    count("feed_forward_length", "0"),
    count("attention.head_count", "0"),
    number("attention.layer_norm_rms_epsilon", "epsilon"),
];

pub(super) const MODEL: &[TensorRow] = &[
    renamed("token_embd.weight", "embeddings.weight", "vocab, width"),
    renamed("output_norm.weight", "norm_f.weight", "width"),
    renamed("output.weight", "/lm_head.weight", "vocab, width").when("1 - tied"),
];

const NORM: &[TensorRow] = &[renamed("attn_norm.weight", "norm.weight", "width")];

pub(super) const MAMBA2: Architecture = Architecture {
    name: "mamba2",
    classes: &["Mamba2ForCausalLM"],
    values: &[VALUES],
    refusals: &[SILU, TIME_STEP_REFUSALS],
    keys: &[SIZE_KEYS, KEYS, MAMBA2_KEYS],
    mixers: &[TagRule::All("mamba")],
    ffns: &[TagRule::All("none")],
    trunks: &[Trunk { trunk: "backbone.", head: "" }, Trunk { trunk: "model.", head: "" }],
    model: &[MODEL],
    layer: &[NORM, mamba2_projections!("mixer"), mamba2_state!("mixer")],
    ..PLAIN
};
