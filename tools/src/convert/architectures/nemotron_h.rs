//! Nemotron-H: blocks of one part each, which is Mamba-2, attention, a feed-forward or experts.

use super::*;

const VALUES: &[ValueRow] = &[
    or("layers", &["num_hidden_layers"], "listed"),
    // Without positions there is no limit; readers want a number.
    or("context", &[], "1048576"),
    required("width", &["hidden_size"]),
    or("ffn", &["intermediate_size"], "0"),
    required("heads", &["num_attention_heads"]),
    or("kv_heads", &["num_key_value_heads"], "heads"),
    or("head_dim", &["head_dim", "attention_head_dim"], "width/heads"),
    required("vocab", &["vocab_size"]),
    or("epsilon", &["layer_norm_epsilon", "rms_norm_eps"], "0.00001"),
    or("tied", &["tie_word_embeddings"], "0"),
    or("conv", &["conv_kernel"], "4"),
    or("conv_bias", &["use_conv_bias"], "1"),
    or("state", &["ssm_state_size"], "128"),
    or("groups", &["n_groups"], "8"),
    required("ssm_heads", &["mamba_num_heads"]),
    required("ssm_head_dim", &["mamba_head_dim"]),
    or("inner", &[], "ssm_heads*ssm_head_dim"),
    or("gated_norm", &[], "1"),
    or("experts", &["n_routed_experts"], "0"),
    or("experts_used", &["num_experts_per_tok"], "0"),
    or("expert_groups", &["n_group"], "1"),
    or("expert_groups_used", &["topk_group"], "1"),
    or("expert_ffn", &["moe_intermediate_size"], "0"),
    or("shared_ffn", &["moe_shared_expert_intermediate_size"], "0"),
    or("shared_experts", &["n_shared_experts"], "1"),
    or("normalised", &["norm_topk_prob"], "1"),
    or("routed_scale", &["routed_scaling_factor"], "1"),
    or("latent", &["moe_latent_size"], "0"),
    or("expert_width", &["moe_latent_size"], "width"),
];

const REFUSALS: &[Refusal] = &[
    Refusal { path: "mlp_hidden_act", accepted: &["\"relu2\""] },
    Refusal { path: "mamba_hidden_act", accepted: &["\"silu\""] },
    Refusal { path: "sliding_window", accepted: &[] },
    Refusal { path: "mamba_proj_bias", accepted: &["false"] },
    Refusal { path: "use_bias", accepted: &["false"] },
    Refusal { path: "mlp_bias", accepted: &["false"] },
];

const KEYS: &[KeyRow] = &[
    count("vocab_size", "vocab"),
    counts("feed_forward_length", &[("dense", "ffn"), ("moe", "expert_ffn")]),
    count("attention.head_count", "heads"),
    count("attention.key_length", "head_dim"),
    count("attention.value_length", "head_dim"),
    number("attention.layer_norm_epsilon", "epsilon"),
    count("rope.dimension_count", "head_dim"),
    truth("rope.scaling.finetuned", "0"),
    count("expert_count", "experts").when("moe_layers"),
    count("expert_used_count", "experts_used").when("moe_layers"),
    count("expert_group_count", "expert_groups").when("moe_layers"),
    count("expert_group_used_count", "expert_groups_used").when("moe_layers"),
    count("expert_feed_forward_length", "expert_ffn").when("moe_layers"),
    count("expert_shared_feed_forward_length", "shared_ffn").when("moe_layers"),
    count("expert_shared_count", "shared_experts").when("moe_layers"),
    truth("expert_weights_norm", "normalised").when("moe_layers"),
    number("expert_weights_scale", "routed_scale").when("moe_layers"),
    count("moe_latent_size", "latent").when("latent"),
    count("nextn_predict_layers", "mtp").when("mtp"),
];

/// The letters of the published pattern.
const PATTERN: &str = "hybrid_override_pattern";
/// The list that took its place.
const LIST: &str = "layers_block_type";

const MIXERS: &[TagRule] = &[
    TagRule::Listed { path: PATTERN, tags: &[("M", "mamba"), ("*", "attention"), ("-", "none"), ("E", "none")] },
    TagRule::Listed {
        path: LIST,
        tags: &[
            ("mamba", "mamba"),
            ("attention", "attention"),
            ("linear_attention", "mamba"),
            ("full_attention", "attention"),
            ("mlp", "none"),
            ("moe", "none"),
        ],
    },
];

const FFNS: &[TagRule] = &[
    TagRule::Listed { path: PATTERN, tags: &[("M", "none"), ("*", "none"), ("-", "dense"), ("E", "moe")] },
    TagRule::Listed {
        path: LIST,
        tags: &[
            ("mamba", "none"),
            ("attention", "none"),
            ("linear_attention", "none"),
            ("full_attention", "none"),
            ("mlp", "dense"),
            ("moe", "moe"),
        ],
    },
];

const MODEL: &[TensorRow] = &[
    renamed("token_embd.weight", "embeddings.weight", "vocab, width"),
    renamed("output_norm.weight", "norm_f.weight", "width"),
    row("output.weight", OWN_HEAD).when("1 - tied + own_head"),
];

/// There is no rope, but files have the rows in the order of those that have.
const ATTENTION: &[TensorRow] = &[
    row("attn_q.weight", tensor("mixer.q_proj.weight", "heads*head_dim, width", PAIR_HEADS)).at("attention"),
    row("attn_k.weight", tensor("mixer.k_proj.weight", "kv_heads*head_dim, width", PAIR_KV_HEADS)).at("attention"),
    renamed("attn_v.weight", "mixer.v_proj.weight", "kv_heads*head_dim, width").at("attention"),
    renamed("attn_output.weight", "mixer.o_proj.weight", "width, heads*head_dim").at("attention"),
];

const FFN: &[TensorRow] = &[
    renamed("attn_norm.weight", "norm.weight", "width"),
    renamed("ffn_up.weight", "mixer.up_proj.weight", "ffn, width").at("dense"),
    renamed("ffn_down.weight", "mixer.down_proj.weight", "width, ffn").at("dense"),
    renamed("ffn_gate_inp.weight", "mixer.gate.weight", "experts, width").at("moe"),
    renamed("exp_probs_b.bias", "mixer.gate.e_score_correction_bias", "experts").at("moe"),
    renamed("ffn_latent_down.weight", "mixer.fc1_latent_proj.weight", "latent, width").at("moe").when("latent"),
    renamed("ffn_latent_up.weight", "mixer.fc2_latent_proj.weight", "width, latent").at("moe").when("latent"),
    row("ffn_up_exps.weight", experts("mixer.experts.{e}.up_proj.weight", "expert_ffn, expert_width"))
        .at("moe")
        .otherwise(tensor("mixer.experts.up_proj", "experts, expert_ffn, expert_width", &[])),
    row("ffn_down_exps.weight", experts("mixer.experts.{e}.down_proj.weight", "expert_width, expert_ffn"))
        .at("moe")
        .otherwise(tensor("mixer.experts.down_proj", "experts, expert_width, expert_ffn", &[])),
    renamed("ffn_up_shexp.weight", "mixer.shared_experts.up_proj.weight", "shared_ffn, width").at("moe"),
    renamed("ffn_down_shexp.weight", "mixer.shared_experts.down_proj.weight", "width, shared_ffn").at("moe"),
];

const MTP: &[TensorRow] = &[
    renamed("nextn.eh_proj.weight", "layers.0.eh_proj.weight", "width, 2*width"),
    renamed("nextn.enorm.weight", "layers.0.enorm.weight", "width"),
    renamed("nextn.hnorm.weight", "layers.0.hnorm.weight", "width"),
    renamed("post_attention_norm.weight", "layers.1.norm.weight", "width"),
    renamed("nextn.shared_head_norm.weight", "layers.1.final_layernorm.weight", "width"),
];

pub(super) const NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    variant: Some(("moe", "nemotron_h_moe")),
    classes: &["NemotronHForCausalLM", "NemotronH_Nano_VL_V2"],
    values: &[VALUES],
    refusals: &[NO_ATTENTION_BIAS, TIME_STEP_REFUSALS, REFUSALS],
    keys: &[SIZE_KEYS, KEYS, KV_HEADS_PER_BLOCK, MAMBA2_KEYS],
    mixers: MIXERS,
    ffns: FFNS,
    trunks: &[
        Trunk { trunk: "backbone.", head: "" },
        Trunk { trunk: "model.", head: "" },
        Trunk { trunk: "language_model.backbone.", head: "language_model." },
    ],
    model: &[MODEL],
    mtp: MTP,
    mtp_layers_per_block: 2,
    layer: &[FFN, mamba2_projections!("mixer"), mamba2_state!("mixer"), ATTENTION],
    ..PLAIN
};
