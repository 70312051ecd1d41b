//! `truncation`: what becomes of a conversation that is longer than the context.

use super::turn;
use crate::server::{
    ApiError, Fields, Server,
    conversation::{Turn, prompt_tokens},
    fields::wrong,
    openai::responses::input::messages,
    options::Known,
    served::Served,
};
use serde_json::{Value, json};

/// Whether a conversation that is too long may lose its beginning.
fn is_cut(fields: &Fields<'_>) -> Result<bool, ApiError> {
    match fields.get("truncation").map(|value| (value, value.as_str())) {
        None | Some((_, Some("disabled"))) => Ok(false),
        Some((_, Some("auto"))) => Ok(true),
        Some((found, _)) => Err(wrong("truncation", found, "auto or disabled")),
    }
}

fn role<'a>(item: &'a Value, among: &[&'a str]) -> bool {
    let is_message = item["type"].is_null() || item["type"] == "message";
    is_message && item["role"].as_str().is_some_and(|role| among.contains(&role))
}

/// The turn of these items. If it is too long and may lose its beginning, whole turns are left out, the first ones first, until
/// there is room for it and its answer: instructions stay, and what a call replied stays with the call.
pub(super) fn fitting(
    (server, served): (&Server, &Served),
    fields: &Fields<'_>,
    known: Known,
    (items, whole): (&[Value], Turn),
) -> Result<Turn, ApiError> {
    let context = served.facts.context;
    if !is_cut(fields)? || prompt_tokens(served, &whole, known)?.len() < context {
        return Ok(whole);
    }
    // An answer wants room, too; how long it becomes is not known.
    let answer = fields.tokens("max_output_tokens", 1)?.unwrap_or(context / 4).min(context / 2);
    let begins: Vec<usize> = (1..items.len()).filter(|at| role(&items[*at], &["user"])).collect();
    let from = |begin: usize| {
        let instructions = items[..begin].iter().filter(|item| role(item, &["system", "developer"]));
        let kept: Vec<Value> = instructions.chain(&items[begin..]).cloned().collect();
        turn(fields, messages(&json!(kept))?, &server.settings)
    };
    // The later it begins, the shorter it is.
    let (mut low, mut high) = (0, begins.len());
    while low < high {
        let middle = (low + high) / 2;
        if prompt_tokens(served, &from(begins[middle])?, known)?.len() + answer <= context {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    // Where there is no room for the answer either way, the last turn has to do; what does not fit is refused as ever.
    match begins.get(low).or(begins.last()) {
        Some(begin) => from(*begin),
        None => Ok(whole),
    }
}
