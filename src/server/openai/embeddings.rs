//! `/v1/embeddings`: the hidden states of texts.

use crate::{
    engine::{Pooling, PromptOutput},
    server::{
        ApiError, Body, Caller, Fields, Server,
        fields::wrong,
        generate::{self, GenerateRequest},
        llama::embedding::own_form,
        openai::{completions::prompts, extras::Room},
        options,
        served::Served,
        slots::Arrival,
        whole::collect,
    },
    text::Bos,
};
use axum::{Json, extract::State};
use serde_json::{Value, json};
use std::sync::Arc;

/// Most texts of a request.
const MOST_TEXTS: usize = 2048;

/// Embeds texts, several at once.
pub async fn embeddings(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&body)?;
    // What is given under llama.cpp's name is answered in its form, as there.
    if fields.get("input").is_none() && fields.get("content").is_some() {
        return own_form(&server, &fields, caller).await;
    }
    let served = server.model(fields.text("model")?).await?;
    let format = match fields.text("encoding_format")? {
        None | Some("float") => Format::Numbers,
        Some("base64") => Format::Base64,
        Some(_) => return Err(wrong("encoding_format", &body["encoding_format"], "float or base64")),
    };
    let width = served.facts.width;
    let dimensions = fields.count(&["dimensions"], (1, width))?.unwrap_or(width);
    let given = fields.need("input", "a text or a list of texts")?;
    let (vectors, tokens) = embed(&server, &served, (&fields, caller), (given, Room::of(&fields)?)).await?;
    let object = |(index, vector): (usize, Vec<f32>)| {
        let shown = match format {
            Format::Numbers => json!(vector),
            Format::Base64 => json!(base64(&vector)),
        };
        json!({"object": "embedding", "index": index, "embedding": shown})
    };
    let shortened = vectors.into_iter().map(|vector| unit(&vector[..dimensions.min(vector.len())]));
    let data: Vec<Value> = shortened.enumerate().map(object).collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    Ok(Json(json!({"object": "list", "model": served.name, "data": data, "usage": usage})))
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Numbers,
    Base64,
}

/// The pooled hidden states of texts, and how many tokens these are. Where there is not `room` for all of a text its end is
/// cut off.
pub async fn embed(
    server: &Arc<Server>,
    served: &Arc<Served>,
    (fields, caller): (&Fields<'_>, Caller),
    (input, room): (&Value, Option<Room>),
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let pooling = match fields.text("pooling")? {
        None | Some("last") => Pooling::Last,
        Some("mean") => Pooling::Mean,
        Some(other) => return Err(ApiError::field("pooling", format!("{other}, expected last or mean"))),
    };
    let mut all = prompts((input, MOST_TEXTS), served, Bos::Add).map_err(of_input)?;
    let most = room.map(|room| match room {
        Room::Tokens(count) => count,
        Room::Fitting => served.facts.context.saturating_sub(1),
    });
    if let Some(most) = most {
        all.iter_mut().for_each(|prompt| cut(prompt, most, served));
    }
    if all.is_empty() || all.len() > MOST_TEXTS || all.iter().any(Vec::is_empty) {
        return Err(ApiError::field("input", format!("expected 1 to {MOST_TEXTS} texts, none of them empty")));
    }
    let tokens = all.iter().map(Vec::len).sum();
    let ask = GenerateRequest {
        max_tokens: Some(0),
        score: Some(PromptOutput::Hidden(pooling)),
        ..options::ask(fields, served, caller.scope)?
    };
    let one = |(number, prompt)| {
        let mut ask = GenerateRequest { prompt, ..ask.clone() };
        ask.slot_request.arrival = Arrival::of_prompt(number);
        ask
    };
    let asks: Vec<GenerateRequest> = all.into_iter().enumerate().map(one).collect();
    // Before any is read.
    generate::check(served, &asks).map_err(of_input)?;
    let asked = asks.into_iter().map(|ask| hidden(server, served, ask)).collect();
    Ok((generate::at_once(served, asked).await.map_err(of_input)?, tokens))
}

/// Cuts a prompt to so many tokens: its first ones, and the token that ends a text if it had one.
fn cut(prompt: &mut Vec<u32>, most: usize, served: &Served) {
    if prompt.len() <= most {
        return;
    }
    let end = prompt.last().copied().filter(|last| served.tokenizer.roles().eos == Some(*last));
    prompt.truncate(most - usize::from(end.is_some()).min(most));
    prompt.extend(end);
}

/// An error about a prompt, which is the input here.
fn of_input(error: ApiError) -> ApiError {
    match error.message.strip_prefix("prompt: ") {
        Some(what) => ApiError { status: error.status, ..ApiError::field("input", what) },
        None => error,
    }
}

/// The pooled hidden state of one prompt.
async fn hidden(server: &Arc<Server>, served: &Arc<Served>, ask: GenerateRequest) -> Result<Vec<f32>, ApiError> {
    let answers = collect(generate::begin(server, served, vec![ask]).await?, 1).await?;
    let state = answers.into_iter().map(|answer| answer.hidden).find(|state| !state.is_empty());
    let state = state.ok_or_else(|| ApiError::late("the text was not read in the time the request was given"))?;
    all_finite(state)
}

/// Numbers that are none have no direction, and no way to be said in JSON: weights are damaged that give such.
fn all_finite(state: Vec<f32>) -> Result<Vec<f32>, ApiError> {
    match state.iter().filter(|x| !x.is_finite()).count() {
        0 => Ok(state),
        bad => {
            let what = format!("embedding: {bad} of {} numbers are NaN or infinite, expected finite ones", state.len());
            Err(ApiError::internal(what))
        }
    }
}

/// The vector of this direction and of length one.
pub fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    vector.iter().map(|x| (f64::from(*x) * scale) as f32).collect()
}

/// Little-endian numbers in base 64, as OpenAI's client asks for them.
fn base64(vector: &[f32]) -> String {
    use base64::Engine;
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_are_no_embedding() {
        assert_eq!(all_finite(vec![1.0, -2.0]).map_err(|error| error.message), Ok(vec![1.0, -2.0]));
        let error = all_finite(vec![1.0, f32::NAN, f32::INFINITY]).unwrap_err();
        assert_eq!(error.status, 500);
        assert_eq!(error.message, "embedding: 2 of 3 numbers are NaN or infinite, expected finite ones");
    }
}
