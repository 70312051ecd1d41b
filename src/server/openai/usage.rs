//! Counts, durations, probabilities and reasons, as OpenAI and llama.cpp write them.

use crate::{
    engine::Timings,
    memory::Miss,
    scheduler::Finish,
    server::generate::{End, TokenPiece},
};
use serde_json::{Value, json};
use std::time::Duration;

/// `usage` of the answers to each prompt, in their order.
pub fn usage<'a>(all: impl IntoIterator<Item = impl IntoIterator<Item = &'a Timings>>) -> Value {
    let (mut prompt, mut cached, mut generated) = (0, 0, 0);
    for answers in all {
        for (number, of) in answers.into_iter().enumerate() {
            let Timings { prompt_tokens, cached_tokens, generated_tokens, .. } = *of;
            // Several answers have one prompt, which the first of them read for all.
            if number == 0 {
                (prompt, cached) = (prompt + prompt_tokens + cached_tokens, cached + cached_tokens);
            }
            generated += generated_tokens;
        }
    }
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}

/// llama.cpp's `timings`, with what was reused and why it was not more.
pub fn timings(t: &Timings, queued: Duration) -> Value {
    let rates = |tokens: usize, seconds: f64| {
        let per_token = if tokens == 0 { 0.0 } else { seconds * 1e3 / tokens as f64 };
        let per_second = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        (seconds * 1e3, per_token, per_second)
    };
    let (prompt_ms, prompt_per_token_ms, prompt_per_second) = rates(t.prompt_tokens, t.prompt_seconds);
    // The first token is the prompt's.
    let (predicted_ms, predicted_per_token_ms, predicted_per_second) =
        rates(t.generated_tokens.saturating_sub(1), t.generate_seconds);
    json!({
        "cache_n": t.cached_tokens,
        "cache_miss_reason": (!matches!(t.miss, Miss::None)).then(|| t.miss.to_string()),
        "prompt_n": t.prompt_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_per_token_ms,
        "prompt_per_second": prompt_per_second,
        "predicted_n": t.generated_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_per_token_ms,
        "predicted_per_second": predicted_per_second,
        "draft_n": t.drafted_tokens,
        "draft_n_accepted": t.accepted_tokens,
        "queued_ms": queued.as_secs_f64() * 1e3,
    })
}

/// `finish_reason`.
pub const fn finish_reason(end: &End, calls: usize) -> &'static str {
    match end.finish {
        Finish::Stop if calls > 0 => "tool_calls",
        Finish::Stop => "stop",
        Finish::Length | Finish::Cancelled => "length",
    }
}

/// One entry of `logprobs.content`.
pub fn log_probabilities(token: &TokenPiece, text_of: &dyn Fn(u32) -> Vec<u8>) -> Value {
    let entry = |bytes: &[u8], log_probability: f32| {
        // What cannot be is not a number of JSON.
        let log_probability = log_probability.max(-9999.0);
        json!({"token": String::from_utf8_lossy(bytes), "logprob": log_probability, "bytes": bytes})
    };
    let mut value = entry(&token.bytes, token.probabilities.chosen.log_probability);
    let top_tokens = token.probabilities.top_tokens.iter();
    let top: Vec<Value> = top_tokens.map(|other| entry(&text_of(other.token), other.log_probability)).collect();
    value["top_logprobs"] = json!(top);
    value
}
