//! `/embedding`: the hidden states of texts in llama.cpp's own form; and `/rerank`, which needs a model of another kind.

use crate::server::{ApiError, Body, Caller, Fields, Server, openai::embeddings::embed};
use axum::{Json, extract::State};
use serde_json::{Value, json};
use std::sync::Arc;

/// The largest number of a vector whose numbers are written as those of 16 bits.
const LARGEST: f64 = 32760.0;

/// Embeds texts: a list of vectors, each in a list of its own, since there may be one for every token elsewhere.
pub async fn embedding(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    own_form(&server, &Fields::of(&body)?, caller).await
}

/// The same, for requests of a form that has both.
pub async fn own_form(server: &Arc<Server>, fields: &Fields<'_>, caller: Caller) -> Result<Json<Value>, ApiError> {
    let served = server.model(fields.text("model")?).await?;
    let norm = fields.whole(&["embd_normalize"])?.unwrap_or(2);
    let (name, given) = match fields.get("input") {
        Some(input) => ("input", input),
        None => ("content", fields.need("content", "a text or a list of texts")?),
    };
    let of_content = |error: ApiError| match error.message.strip_prefix("input: ") {
        Some(what) => ApiError { status: error.status, ..ApiError::field(name, what) },
        None => error,
    };
    let embedded = embed(server, &served, (fields, caller), (given, None)).await;
    let (vectors, _) = embedded.map_err(of_content)?;
    let one = |(index, vector): (usize, Vec<f32>)| json!({"index": index, "embedding": [normalised(&vector, norm)]});
    Ok(Json(vectors.into_iter().enumerate().map(one).collect()))
}

/// A vector divided by its norm: less than 0 is none, 0 the largest number, 2 the length, others that of their power.
fn normalised(vector: &[f32], norm: i64) -> Vec<f32> {
    let sizes = || vector.iter().map(|x| f64::from(x.abs()));
    let size = match norm {
        ..0 => 1.0,
        0 => sizes().fold(0.0, f64::max) / LARGEST,
        power => sizes().map(|x| x.powf(power as f64)).sum::<f64>().powf(1.0 / power as f64),
    };
    let scale = if size > 0.0 && size.is_finite() { 1.0 / size } else { 0.0 };
    vector.iter().map(|x| (f64::from(*x) * scale) as f32).collect()
}

/// Ranks no documents: there is no model here that is read for that, and likeness of hidden states is something else.
pub async fn rerank() -> ApiError {
    ApiError::bad("this server ranks no documents, expected a request to /v1/embeddings, whose vectors can be compared")
}

#[cfg(test)]
mod tests {
    use super::normalised;

    #[test]
    fn vectors_are_normalised_as_they_are_asked_for() {
        let vector = [3.0, -4.0];
        assert_eq!(normalised(&vector, -1), vector);
        assert_eq!(normalised(&vector, 0), [24570.0, -32760.0]);
        assert_eq!(normalised(&vector, 1), [3.0 / 7.0, -4.0 / 7.0]);
        assert_eq!(normalised(&vector, 2), [0.6, -0.8]);
        assert_eq!(normalised(&[0.0, 0.0], 2), [0.0, 0.0]);
    }
}
