//! What vLLM's clients ask for besides OpenAI's fields: the ids of tokens, the probabilities of the prompt, its last tokens only.

use super::chat::text_of;
use crate::{
    engine::PromptOutput,
    sampling::TokenProbability,
    server::{
        ApiError, Fields,
        fields::wrong,
        generate::{End, TokenPiece},
        options,
        served::Served,
    },
};
use serde_json::{Map, Value, json};

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// How many of the likeliest tokens to tell at every place of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Whether `logprobs` call tokens by their ids.
    pub named_by_id: bool,
    /// Whether the ids of the prompt and the answer are told.
    pub token_ids: bool,
    /// How much of the prompt is read: its last tokens.
    room: Option<Room>,
}

/// How much of a prompt is read.
#[derive(Debug, Clone, Copy)]
pub enum Room {
    /// So many tokens.
    Tokens(usize),
    /// As many as there is room for.
    Fitting,
}

/// What another server would do, and no answer here could be said to be of.
const NOT_HERE: &[(&str, &str)] = &[
    ("use_beam_search", "true, expected false: answers are sampled"),
    ("add_special_tokens", "true, expected false: the template writes them"),
    ("echo", "true, expected false: /v1/completions can"),
];

impl Room {
    /// `truncate_prompt_tokens`; none: all of it.
    pub fn of(fields: &Fields<'_>) -> Result<Option<Self>, ApiError> {
        match fields.whole(&["truncate_prompt_tokens"])? {
            None => Ok(None),
            Some(-1) => Ok(Some(Self::Fitting)),
            Some(_) => Ok(fields.tokens("truncate_prompt_tokens", 1)?.map(Self::Tokens)),
        }
    }
}

impl Extras {
    /// What a request says.
    pub fn of(fields: &Fields<'_>) -> Result<Self, ApiError> {
        refuse(fields, &NOT_HERE[..1])?;
        let prompt_logprobs = fields.count(&["prompt_logprobs"], (0, options::MOST_LIKELIEST))?;
        if prompt_logprobs.is_some() && fields.flag("stream")?.unwrap_or(false) {
            let what = "asked for with stream, expected a reply that is not streamed";
            return Err(ApiError::field("prompt_logprobs", what));
        }
        Ok(Self {
            prompt_logprobs,
            named_by_id: fields.flag("return_tokens_as_token_ids")?.unwrap_or(false),
            token_ids: fields.flag("return_token_ids")?.unwrap_or(false),
            room: Room::of(fields)?,
        })
    }

    /// What a conversation says: its template writes what begins it, and answers are text.
    pub fn of_chat(fields: &Fields<'_>) -> Result<Self, ApiError> {
        refuse(fields, NOT_HERE)?;
        let modalities = fields.list("modalities")?.into_iter().flatten();
        if let Some(other) = modalities.into_iter().find(|modality| *modality != "text") {
            return Err(wrong("modalities", other, "text: nothing is spoken here"));
        }
        if let Some(audio) = fields.get("audio") {
            return Err(wrong("audio", audio, "none: nothing is spoken here"));
        }
        Self::of(fields)
    }

    /// Leaves the last tokens of a prompt, if no more are wanted; true if it had more.
    pub fn cut(&self, served: &Served, answer: Option<usize>, prompt: &mut Vec<u32>) -> bool {
        let most = match self.room {
            None => return false,
            Some(Room::Tokens(count)) => count,
            Some(Room::Fitting) => served.facts.context.saturating_sub(answer.unwrap_or(1).max(1)).max(1),
        };
        let rest = prompt.len().saturating_sub(most);
        prompt.drain(..rest);
        rest > 0
    }

    /// What is wanted of the prompt itself, where an echo wants so many of the likeliest tokens.
    pub fn of_prompt(&self, echoed: Option<usize>) -> Option<PromptOutput> {
        self.prompt_logprobs.max(echoed).map(PromptOutput::Probabilities)
    }

    /// `prompt_logprobs`: nothing of the first token, and of each other one its probability and those of the likeliest, by id.
    pub fn prompt_log_probabilities(&self, served: &Served, prompt: &[TokenPiece]) -> Value {
        let Some(count) = self.prompt_logprobs else { return Value::Null };
        let entry = |of: &TokenProbability, rank: Option<usize>, bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            json!({"logprob": of.log_probability.max(-9999.0), "rank": rank, "decoded_token": text})
        };
        let place = |token: &TokenPiece| {
            let (chosen, top) = (&token.probabilities.chosen, &token.probabilities.top_tokens);
            let listed = top.iter().position(|other| other.token == chosen.token);
            let rank = listed.or(token.probabilities.likelier).map(|likelier| likelier + 1);
            let mut all = Map::new();
            all.insert(token.id.to_string(), entry(chosen, rank, &token.bytes));
            for (at, other) in top.iter().enumerate().take(count).filter(|(_, other)| other.token != chosen.token) {
                all.insert(other.token.to_string(), entry(other, Some(at + 1), &text_of(served)(other.token)));
            }
            Value::Object(all)
        };
        json!([Value::Null].into_iter().chain(prompt.iter().map(place)).collect::<Vec<_>>())
    }
}

fn refuse(fields: &Fields<'_>, unknown: &[(&str, &str)]) -> Result<(), ApiError> {
    for (name, what) in unknown {
        if fields.flag(name)?.unwrap_or(false) {
            return Err(ApiError::field(name, what));
        }
    }
    Ok(())
}

/// A token by its id.
pub fn by_id(id: u32) -> String {
    format!("token_id:{id}")
}

/// `stop_reason`: the stop string, or the token, that ended an answer.
pub fn stop_reason(end: &End) -> Value {
    end.stop_token.map_or(json!(end.stop_string), |token| json!(token))
}
