//! What a stored response answered, item by item, and lists of it.

use crate::server::{ApiError, fields::wrong, openai::unique};
use serde_json::{Value, json};

/// Items of a page, where the request says nothing, and at most.
const PAGE: (usize, usize) = (20, 100);

/// `input` as items that are kept: each has an id, a status and a type, and messages have parts. It was read before.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other kinds of JSON were refused")]
pub(super) fn kept(input: &Value) -> Vec<Value> {
    match input {
        Value::Array(items) => items.iter().cloned().map(whole).collect(),
        text => vec![whole(json!({"role": "user", "content": text}))],
    }
}

fn whole(mut item: Value) -> Value {
    let kind = item["type"].as_str().unwrap_or("message").to_string();
    let prefix = match kind.as_str() {
        "message" => "msg_",
        "reasoning" => "rs_",
        _ => "fc_",
    };
    let defaults = [("type", json!(kind)), ("id", json!(unique(prefix))), ("status", json!("completed"))];
    for (name, value) in defaults {
        if item[name].is_null() {
            item[name] = value;
        }
    }
    if kind == "message" && item["content"].is_string() {
        let mut part = json!({"type": "input_text", "text": item["content"]});
        if item["role"] == "assistant" {
            part = json!({"type": "output_text", "text": item["content"], "annotations": []});
        }
        item["content"] = json!([part]);
    }
    item
}

/// A page of items: `order`, `limit` and `after` of a query, the last ones first unless it says otherwise.
pub(super) fn page(mut items: Vec<Value>, query: &[(String, String)]) -> Result<Value, ApiError> {
    let value = |name: &str| query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    match value("order") {
        Some("asc") => {}
        Some("desc") | None => items.reverse(),
        Some(other) => return Err(wrong("order", &json!(other), "asc or desc")),
    }
    let (usual, most) = PAGE;
    let limit = match value("limit") {
        None => usual,
        Some(text) => {
            let limit = text.parse().ok().filter(|limit| (1..=most).contains(limit));
            limit.ok_or_else(|| wrong("limit", &json!(text), &format!("1 to {most}")))?
        }
    };
    if let Some(after) = value("after") {
        let at = items.iter().position(|item| item["id"] == after);
        let at = at.ok_or_else(|| wrong("after", &json!(after), "the id of one of the items"))?;
        items.drain(..=at);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Ok(json!({
        "object": "list",
        "first_id": id(items.first()),
        "last_id": id(items.last()),
        "has_more": has_more,
        "data": items,
    }))
}
