//! Text to tokens, tokens to text, messages to text.

use super::ModelQuery;
use crate::{
    server::{
        ApiError, Body, Caller, Fields, Server,
        conversation::{prompt, prompt_tokens},
        fields::wrong,
        openai::chat::turn,
        options::{Known, block_in_place},
    },
    text::{Bos, Control, Special},
};
use axum::{
    Json,
    extract::{Query, State},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// `/tokenize`: text to tokens; or, in vLLM's form, what a prompt or a conversation is read as.
pub async fn tokenize(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    let special = if fields.flag("parse_special")?.unwrap_or(true) { Special::Parse } else { Special::Literal };
    let wanted = fields.flag("add_special")?.or(fields.flag("add_special_tokens")?);
    let bos = |unless_said: bool| if wanted.unwrap_or(unless_said) { Bos::Add } else { Bos::Omit };
    let ids = match (fields.text("content")?, fields.text("prompt")?, fields.list("messages")?) {
        (Some(text), ..) => served.tokens(text, special, bos(false)),
        (None, Some(text), _) => served.tokens(text, special, bos(true)),
        (None, None, Some(_)) => {
            prompt_tokens(&served, &turn(&fields, &server.settings)?, Known::of(&fields, caller.scope)?)?
        }
        (None, None, None) => return Err(ApiError::field("content", "missing, expected a text")),
    };
    let pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let one = |id: &u32| {
        let bytes = served.tokenizer.piece(*id, Control::Show).unwrap_or_default();
        let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
        if pieces { json!({"id": id, "piece": piece}) } else { json!(id) }
    };
    let tokens: Vec<Value> = block_in_place(|| ids.iter().map(one).collect());
    Ok(Json(json!({"tokens": tokens, "count": ids.len(), "max_model_len": served.facts.context})))
}

/// `/detokenize`: tokens to text.
pub async fn detokenize(State(server): State<Arc<Server>>, Body(body): Body) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    let list = fields.list("tokens")?.ok_or_else(|| ApiError::field("tokens", "missing, expected a list of tokens"))?;
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong("tokens", value, "a token id"))
    };
    let ids = list.iter().map(id).collect::<Result<Vec<u32>, _>>()?;
    let text = served.text(&ids)?;
    Ok(Json(json!({"content": text, "prompt": text})))
}

/// `/tokenizer_info`, as vLLM has it: what who tokenizes over HTTP has to know besides, in Hugging Face's words.
pub async fn tokenizer_info(
    State(server): State<Arc<Server>>,
    Query(which): Query<ModelQuery>,
) -> Result<Json<Value>, ApiError> {
    let served = server.model(which.model.as_deref()).await?;
    let roles = served.tokenizer.roles();
    let text_of = |id: Option<u32>| id.and_then(|id| served.tokenizer.token_text(id).ok());
    Ok(Json(json!({
        "bos_token": text_of(roles.bos),
        "eos_token": text_of(roles.eos),
        "unk_token": text_of(roles.unk),
        "pad_token": text_of(roles.pad),
        "chat_template": served.template.source(),
        "model_max_length": served.facts.context,
    })))
}

/// `/apply-template`: messages to the text the model would read.
pub async fn apply_template(State(server): State<Arc<Server>>, Body(body): Body) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    let text = prompt(&served, &turn(&fields, &server.settings)?)?;
    Ok(Json(json!({"prompt": text})))
}
