//! The table of architectures, and the rows that several of them share.

mod llama;
mod qwen;
mod qwen_hybrid;

use super::table::*;

/// Every architecture that can be converted.
pub(super) const ALL: &[&Architecture] =
    &[&llama::LLAMA, &qwen::QWEN2, &qwen::QWEN3, &qwen_hybrid::QWEN35, &qwen_hybrid::QWEN3NEXT];

const TRUNKS: &[Trunk] = &[
    Trunk { trunk: "model.language_model.", head: "" },
    Trunk { trunk: "language_model.model.", head: "language_model." },
    Trunk { trunk: "model.", head: "" },
];

const TRANSFORMER_VALUES: &[ValueRow] = &[
    required("layers", &["num_hidden_layers"]),
    required("context", &["max_position_embeddings"]),
    required("width", &["hidden_size"]),
    required("ffn", &["intermediate_size"]),
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

const TRANSFORMER_KEYS: &[KeyRow] = &[
    count("block_count", "blocks"),
    count("context_length", "context"),
    count("embedding_length", "width"),
    count("feed_forward_length", "ffn"),
    count("attention.head_count", "heads"),
    count("attention.head_count_kv", "kv_heads"),
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
];

const TRANSFORMER_REFUSALS: &[Refusal] = &[
    Refusal { path: "quantization_config", accepted: &[] },
    Refusal { path: "hidden_act", accepted: &["\"silu\"", "\"swish\""] },
    Refusal { path: "rope_parameters.attention_factor", accepted: &[] },
    Refusal { path: "rope_scaling.attention_factor", accepted: &[] },
];

const MODEL: &[TensorRow] = &[
    renamed("token_embd.weight", "embed_tokens.weight", "vocab, width"),
    renamed("output_norm.weight", "norm.weight", "width"),
    renamed("output.weight", "/lm_head.weight", "vocab, width").when("1 - tied"),
    row("rope_freqs.weight", Origin { source: Source::RopeFactors, shape: "head_dim/2", transforms: &[] })
        .when("rope_llama3"),
];

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
