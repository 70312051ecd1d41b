//! The table of architectures, and the rows that several of them share.

use super::table::*;

/// Rows of experts, which are one tensor each, or all of a kind in one with gate and up in halves.
macro_rules! experts {
    ($folder:literal, $gate:literal, $up:literal, $down:literal) => {
        &[
            row("ffn_gate_exps.weight", experts(concat!($folder, ".{e}.", $gate, ".weight"), "expert_ffn, width"))
                .at("moe")
                .otherwise(tensor(concat!($folder, ".gate_up_proj"), "experts, 2*expert_ffn, width", GATE_HALF)),
            row("ffn_up_exps.weight", experts(concat!($folder, ".{e}.", $up, ".weight"), "expert_ffn, width"))
                .at("moe")
                .otherwise(tensor(concat!($folder, ".gate_up_proj"), "experts, 2*expert_ffn, width", UP_HALF)),
            row("ffn_down_exps.weight", experts(concat!($folder, ".{e}.", $down, ".weight"), "width, expert_ffn"))
                .at("moe")
                .otherwise(tensor(concat!($folder, ".down_proj"), "experts, width, expert_ffn", &[])),
        ]
    };
}

/// Rows of what Mamba-2 layers hold beside their two projections.
macro_rules! mamba2_state {
    ($folder:literal) => {
        &[
            row(
                "ssm_conv1d.weight",
                tensor(concat!($folder, ".conv1d.weight"), "inner + 2*groups*state, 1, conv", SQUEEZE_MAMBA2),
            )
            .at("mamba"),
            renamed("ssm_conv1d.bias", concat!($folder, ".conv1d.bias"), "inner + 2*groups*state")
                .at("mamba")
                .when("conv_bias"),
            renamed("ssm_dt.bias", concat!($folder, ".dt_bias"), "ssm_heads").at("mamba"),
            row("ssm_a", tensor(concat!($folder, ".A_log"), "ssm_heads", DECAY_PER_HEAD)).at("mamba"),
            row("ssm_d", tensor(concat!($folder, ".D"), "ssm_heads", &[Transform::Reshape("ssm_heads, 1")]))
                .at("mamba"),
            row("ssm_norm.weight", tensor(concat!($folder, ".norm.weight"), "inner", NORM_PER_GROUP))
                .at("mamba")
                .when("gated_norm"),
        ]
    };
}

/// Rows of the two projections of Mamba-2 layers.
macro_rules! mamba2_projections {
    ($folder:literal) => {
        &[
            renamed(
                "ssm_in.weight",
                concat!($folder, ".in_proj.weight"),
                "2*inner + 2*groups*state + ssm_heads, width",
            )
            .at("mamba"),
            renamed("ssm_out.weight", concat!($folder, ".out_proj.weight"), "width, inner").at("mamba"),
        ]
    };
}

mod falcon_h1;
mod granite_hybrid;
mod jamba;
mod kimi_linear;
mod lfm2;
mod llama;
mod mamba;
mod mamba2;
mod nemotron_h;
mod qwen;
mod qwen_hybrid;

/// Every architecture that can be converted.
pub(super) const ALL: &[&Architecture] = &[
    &llama::LLAMA,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen::QWEN3MOE,
    &qwen_hybrid::QWEN35,
    &qwen_hybrid::QWEN35MOE,
    &qwen_hybrid::QWEN3NEXT,
    &mamba::MAMBA,
    &mamba2::MAMBA2,
    &granite_hybrid::GRANITE_HYBRID,
    &granite_hybrid::GRANITE_ATTENTION,
    &granite_hybrid::GRANITE,
    &nemotron_h::NEMOTRON_H,
    &falcon_h1::FALCON_H1,
    &lfm2::LFM2,
    &lfm2::LFM2MOE,
    &jamba::JAMBA,
    &kimi_linear::KIMI_LINEAR,
];

const TRUNKS: &[Trunk] = &[
    // A model without a head, as those of embeddings are saved.
    Trunk { trunk: "", head: "" },
    Trunk { trunk: "model.language_model.", head: "" },
    Trunk { trunk: "language_model.model.", head: "language_model." },
    Trunk { trunk: "model.", head: "" },
];

const TRANSFORMER_VALUES: &[ValueRow] = &[
    required("layers", &["num_hidden_layers"]),
    required("context", &["max_position_embeddings"]),
    required("width", &["hidden_size"]),
    required("heads", &["num_attention_heads"]),
    or("kv_heads", &["num_key_value_heads"], "heads"),
    or("head_dim", &["head_dim"], "width/heads"),
    required("vocab", &["vocab_size"]),
    or("epsilon", &["rms_norm_eps"], "0.000001"),
    or("tied", &["tie_word_embeddings"], "0"),
    or("attention_bias", &["attention_bias"], "0"),
    or("rope_base", &["rope_parameters.rope_theta", "rope_theta"], "10000"),
    or("rope_factor", &["rope_parameters.factor", "rope_scaling.factor"], "1"),
    or(
        "rope_original",
        &[
            "rope_parameters.original_max_position_embeddings",
            "rope_scaling.original_max_position_embeddings",
            "original_max_position_embeddings",
        ],
        "context",
    ),
    or("rope_low", &["rope_parameters.low_freq_factor", "rope_scaling.low_freq_factor"], "1"),
    or("rope_high", &["rope_parameters.high_freq_factor", "rope_scaling.high_freq_factor"], "4"),
    or("beta_fast", &["rope_parameters.beta_fast", "rope_scaling.beta_fast"], "32"),
    or("beta_slow", &["rope_parameters.beta_slow", "rope_scaling.beta_slow"], "1"),
];

/// The width of dense feed-forwards.
const FFN_VALUES: &[ValueRow] = &[required("ffn", &["intermediate_size"])];
const FFN_KEYS: &[KeyRow] = &[count("feed_forward_length", "ffn")];

const KV_HEADS: &[KeyRow] = &[count("attention.head_count_kv", "kv_heads")];
/// Key-value heads of each block: 0 says that it is recurrent.
const KV_HEADS_PER_BLOCK: &[KeyRow] = &[counts("attention.head_count_kv", &[("attention", "kv_heads")])];

/// What every file says.
const SIZE_KEYS: &[KeyRow] =
    &[count("block_count", "blocks"), count("context_length", "context"), count("embedding_length", "width")];

/// Columns of a head, where readers would count others: the width shared out among the heads.
const HEAD_KEYS: &[KeyRow] = &[
    count("attention.key_length", "head_dim").when("heads*head_dim - width"),
    count("attention.value_length", "head_dim").when("heads*head_dim - width"),
];

const TRANSFORMER_KEYS: &[KeyRow] = &[
    count("attention.head_count", "heads"),
    number("rope.freq_base", "rope_base"),
    number("attention.layer_norm_rms_epsilon", "epsilon"),
    count("attention.key_length", "head_dim"),
    count("attention.value_length", "head_dim"),
    text("rope.scaling.type", "linear").when("rope_linear"),
    text("rope.scaling.type", "yarn").when("rope_yarn"),
    number("rope.scaling.factor", "rope_factor").when("rope_linear + rope_yarn"),
    count("rope.scaling.original_context_length", "rope_original").when("rope_yarn"),
    number("rope.scaling.yarn_beta_fast", "beta_fast").when("rope_yarn"),
    number("rope.scaling.yarn_beta_slow", "beta_slow").when("rope_yarn"),
    number("rope.scaling.attn_factor", "attn_factor").when("attn_factor"),
];

const MODEL: &[TensorRow] = &[
    renamed("token_embd.weight", "embed_tokens.weight", "vocab, width"),
    renamed("output_norm.weight", "norm.weight", "width"),
    renamed("output.weight", "/lm_head.weight", "vocab, width").when("1 - tied"),
];

/// The head of models that keep one of their own if there is one, whatever is said of ties.
const OWN_HEAD: Origin = tensor("/lm_head.weight", "vocab, width", &[]);
const UNTIED_MODEL: &[TensorRow] = &[
    renamed("token_embd.weight", "embed_tokens.weight", "vocab, width"),
    renamed("output_norm.weight", "norm.weight", "width"),
    row("output.weight", OWN_HEAD).when("1 - tied + own_head"),
];

const ROPE_FACTORS: &[TensorRow] =
    &[row("rope_freqs.weight", Origin { source: Source::RopeFactors, shape: "head_dim/2", transforms: &[] })
        .when("rope_llama3")];

const NORMS: &[TensorRow] = &[
    renamed("attn_norm.weight", "input_layernorm.weight", "width"),
    renamed("ffn_norm.weight", "post_attention_layernorm.weight", "width"),
];

const DENSE_FFN: &[TensorRow] = &[
    renamed("ffn_gate.weight", "mlp.gate_proj.weight", "ffn, width").at("dense"),
    renamed("ffn_up.weight", "mlp.up_proj.weight", "ffn, width").at("dense"),
    renamed("ffn_down.weight", "mlp.down_proj.weight", "width, ffn").at("dense"),
];

const KEY_VALUE_OUTPUT: &[TensorRow] = &[
    renamed("attn_k.weight", "self_attn.k_proj.weight", "kv_heads*head_dim, width").at("attention"),
    renamed("attn_v.weight", "self_attn.v_proj.weight", "kv_heads*head_dim, width").at("attention"),
    renamed("attn_output.weight", "self_attn.o_proj.weight", "width, heads*head_dim").at("attention"),
];

const QUERY: &[TensorRow] =
    &[renamed("attn_q.weight", "self_attn.q_proj.weight", "heads*head_dim, width").at("attention")];

const PAIR_HEADS: &[Transform] = &[Transform::PairRope { heads: "heads" }];
const PAIR_KV_HEADS: &[Transform] = &[Transform::PairRope { heads: "kv_heads" }];

const EXPERT_VALUES: &[ValueRow] = &[
    required("experts", &["num_experts", "num_local_experts", "n_routed_experts"]),
    required("experts_used", &["num_experts_per_tok", "num_experts_per_token"]),
    required("expert_ffn", &["moe_intermediate_size"]),
];

const EXPERT_KEYS: &[KeyRow] = &[
    count("expert_count", "experts"),
    count("expert_used_count", "experts_used"),
    count("expert_feed_forward_length", "expert_ffn"),
];

/// The halves of a tensor in which each expert has first its gate's rows, then those of its other input.
const GATE_HALF: &[Transform] = &[
    Transform::TakeRows { groups: "experts", slices: &[("0", "expert_ffn")] },
    Transform::Reshape("experts, expert_ffn, width"),
];
const UP_HALF: &[Transform] = &[
    Transform::TakeRows { groups: "experts", slices: &[("expert_ffn", "expert_ffn")] },
    Transform::Reshape("experts, expert_ffn, width"),
];

/// Experts everywhere but in `mlp_only_layers` and between the steps of `decoder_sparse_step`.
const SPARSE_FFNS: &[TagRule] = &[
    TagRule::Numbered { path: "mlp_only_layers", first: 0, tag: "dense" },
    TagRule::Every { period: "sparse_step", offset: "sparse_step - 1", tag: "moe", when: "" },
    TagRule::All("dense"),
];
const SPARSE_VALUES: &[ValueRow] = &[or("sparse_step", &["decoder_sparse_step"], "1")];

const MAMBA2_KEYS: &[KeyRow] = &[
    count("ssm.conv_kernel", "conv"),
    count("ssm.state_size", "state"),
    count("ssm.group_count", "groups"),
    count("ssm.inner_size", "inner"),
    count("ssm.time_step_rank", "ssm_heads"),
];

const SQUEEZE_MAMBA2: &[Transform] = &[Transform::Reshape("inner + 2*groups*state, conv")];
const DECAY_PER_HEAD: &[Transform] = &[Transform::NegateExp, Transform::Reshape("ssm_heads, 1")];
const NORM_PER_GROUP: &[Transform] = &[Transform::Reshape("groups, inner/groups")];

/// No file can say that time steps are limited.
const TIME_STEP_REFUSALS: &[Refusal] = &[
    Refusal { path: "time_step_limit.0", accepted: &["0", "0.0"] },
    Refusal { path: "time_step_limit.1", accepted: &["{\"__float__\":\"Infinity\"}"] },
];

const SILU: &[Refusal] = &[Refusal { path: "hidden_act", accepted: &["\"silu\"", "\"swish\""] }];
const NO_FFN_BIAS: &[Refusal] = &[Refusal { path: "mlp_bias", accepted: &["false"] }];
/// Readers make the weights of the chosen experts sum to 1.
const NORMALISED: &[Refusal] = &[Refusal { path: "norm_topk_prob", accepted: &["true"] }];
const NO_ATTENTION_BIAS: &[Refusal] = &[Refusal { path: "attention_bias", accepted: &["false"] }];
