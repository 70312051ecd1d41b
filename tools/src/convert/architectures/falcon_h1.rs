//! Falcon-H1: attention and Mamba-2 side by side in every layer, with multipliers that go into the weights.

use super::*;

const VALUES: &[ValueRow] = &[
    or("epsilon", &["rms_norm_eps"], "0.00001"),
    or("conv", &["mamba_d_conv"], "4"),
    or("conv_bias", &["mamba_conv_bias"], "1"),
    or("expand", &["mamba_expand"], "2"),
    or("inner", &["mamba_d_ssm"], "expand*width"),
    or("state", &["mamba_d_state"], "256"),
    or("groups", &["mamba_n_groups"], "1"),
    required("ssm_heads", &["mamba_n_heads"]),
    or("gated_norm", &["mamba_rms_norm"], "0"),
    or("embedding_factor", &["embedding_multiplier"], "1"),
    or("head_factor", &["lm_head_multiplier"], "1"),
    or("attention_in", &["attention_in_multiplier"], "1"),
    or("attention_out", &["attention_out_multiplier"], "1"),
    or("key_factor", &["key_multiplier"], "1"),
    or("gate_factor", &["mlp_multipliers.0"], "1"),
    or("down_factor", &["mlp_multipliers.1"], "1"),
    or("ssm_in", &["ssm_in_multiplier"], "1"),
    or("ssm_out", &["ssm_out_multiplier"], "1"),
    or("factor_z", &["ssm_multipliers.0"], "1"),
    or("factor_x", &["ssm_multipliers.1"], "1"),
    or("factor_b", &["ssm_multipliers.2"], "1"),
    or("factor_c", &["ssm_multipliers.3"], "1"),
    or("factor_dt", &["ssm_multipliers.4"], "1"),
];

const REFUSALS: &[Refusal] = &[
    Refusal { path: "mamba_norm_before_gate", accepted: &["false"] },
    Refusal { path: "mamba_proj_bias", accepted: &["false"] },
    Refusal { path: "mlp_bias", accepted: &["false"] },
    Refusal { path: "projectors_bias", accepted: &["false"] },
];

/// The embeddings are the head too, but with another factor, so the file has both.
const MODEL: &[TensorRow] = &[
    row(
        "token_embd.weight",
        tensor("embed_tokens.weight", "vocab, width", &[Transform::ScaleRows(&[("vocab", "embedding_factor")])]),
    ),
    renamed("output_norm.weight", "final_layernorm.weight", "width"),
    row("output.weight", tensor("/lm_head.weight", "vocab, width", SCALE_HEAD)).otherwise(tensor(
        "embed_tokens.weight",
        "vocab, width",
        SCALE_HEAD,
    )),
];

const SCALE_HEAD: &[Transform] = &[Transform::ScaleRows(&[("vocab", "head_factor")])];

const LAYER: &[TensorRow] = &[
    renamed("attn_norm.weight", "input_layernorm.weight", "width"),
    row(
        "attn_q.weight",
        tensor(
            "self_attn.q_proj.weight",
            "heads*head_dim, width",
            &[Transform::ScaleRows(&[("heads*head_dim", "attention_in")])],
        ),
    ),
    row(
        "attn_k.weight",
        tensor(
            "self_attn.k_proj.weight",
            "kv_heads*head_dim, width",
            &[Transform::ScaleRows(&[("kv_heads*head_dim", "attention_in*key_factor")])],
        ),
    ),
    row(
        "attn_v.weight",
        tensor(
            "self_attn.v_proj.weight",
            "kv_heads*head_dim, width",
            &[Transform::ScaleRows(&[("kv_heads*head_dim", "attention_in")])],
        ),
    ),
    row(
        "attn_output.weight",
        tensor(
            "self_attn.o_proj.weight",
            "width, heads*head_dim",
            &[Transform::ScaleRows(&[("width", "attention_out")])],
        ),
    ),
    row(
        "ssm_in.weight",
        tensor(
            "mamba.in_proj.weight",
            "2*inner + 2*groups*state + ssm_heads, width",
            &[Transform::ScaleRows(&[
                ("inner", "ssm_in*factor_z"),
                ("inner", "ssm_in*factor_x"),
                ("groups*state", "ssm_in*factor_b"),
                ("groups*state", "ssm_in*factor_c"),
                ("ssm_heads", "ssm_in*factor_dt"),
            ])],
        ),
    ),
    row(
        "ssm_out.weight",
        tensor("mamba.out_proj.weight", "width, inner", &[Transform::ScaleRows(&[("width", "ssm_out")])]),
    ),
    // Readers know this one without the ending.
    renamed("ffn_norm", "pre_ff_layernorm.weight", "width"),
    row(
        "ffn_gate.weight",
        tensor("feed_forward.gate_proj.weight", "ffn, width", &[Transform::ScaleRows(&[("ffn", "gate_factor")])]),
    ),
    renamed("ffn_up.weight", "feed_forward.up_proj.weight", "ffn, width"),
    row(
        "ffn_down.weight",
        tensor("feed_forward.down_proj.weight", "width, ffn", &[Transform::ScaleRows(&[("width", "down_factor")])]),
    ),
];

pub(super) const FALCON_H1: Architecture = Architecture {
    name: "falcon-h1",
    classes: &["FalconH1ForCausalLM"],
    values: &[TRANSFORMER_VALUES, FFN_VALUES, VALUES],
    refusals: &[SILU, NO_ATTENTION_BIAS, TIME_STEP_REFUSALS, REFUSALS],
    explicit: &[("mamba_norm_before_gate", "gated_norm")],
    keys: &[SIZE_KEYS, FFN_KEYS, &[count("vocab_size", "vocab")], TRANSFORMER_KEYS, KV_HEADS, MAMBA2_KEYS],
    // The attention is everywhere and needs no tag.
    mixers: &[TagRule::All("mamba")],
    trunks: TRUNKS,
    model: &[MODEL],
    layer: &[LAYER, mamba2_state!("mamba")],
    ..PLAIN
};
