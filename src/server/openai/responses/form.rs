//! An answer as items of a response, whole or event by event.

use super::Keep;
use crate::{
    scheduler::Finish,
    server::{
        ApiError,
        generate::{End, Piece, TokenPiece},
        openai::{chat::text_of, log_probabilities, timings, unique},
        served::{Served, now},
        stream::{Message, StreamFormat},
    },
    text::{Bos, Part, Special},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Pieces as items.
#[derive(Debug)]
pub(super) struct ResponseForm {
    /// The response so far, without its items.
    response: Value,
    served: Arc<Served>,
    keep: Option<Keep>,
    /// The items; the last one may be open.
    output: Vec<Value>,
    open: Option<Kind>,
    /// Number of the next event.
    sequence: u64,
    /// Tokens whose text has not been sent yet.
    said: Vec<TokenPiece>,
}

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call,
}

impl Kind {
    /// The type of the only part of its content; a call has none.
    const fn part(self) -> Option<&'static str> {
        match self {
            Self::Reasoning => Some("reasoning_text"),
            Self::Message => Some("output_text"),
            Self::Call => None,
        }
    }

    /// The names of the events with more of its text, and with all of it.
    const fn events(self) -> (&'static str, &'static str) {
        match self {
            Self::Reasoning => ("response.reasoning_text.delta", "response.reasoning_text.done"),
            Self::Message => ("response.output_text.delta", "response.output_text.done"),
            Self::Call => ("response.function_call_arguments.delta", "response.function_call_arguments.done"),
        }
    }
}

impl ResponseForm {
    /// A response that is `head` so far.
    pub(super) fn new(head: Value, served: Arc<Served>, keep: Option<Keep>) -> Self {
        Self { response: head, served, keep, output: Vec::new(), open: None, sequence: 0, said: Vec::new() }
    }

    /// The whole response.
    pub(super) fn into_response(self) -> Value {
        self.whole()
    }

    fn whole(&self) -> Value {
        let mut response = self.response.clone();
        response["output"] = json!(self.output);
        response
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> Message {
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        Message::named(name, data)
    }

    /// An event about the open item; with the number of its part, if it has parts.
    fn about(&mut self, kind: Kind, name: &'static str, mut data: Value) -> Message {
        data["output_index"] = json!(self.output.len() - 1);
        data["item_id"] = self.output.last().map_or(Value::Null, |item| item["id"].clone());
        if kind.part().is_some() {
            data["content_index"] = json!(0);
        }
        self.event(name, data)
    }

    fn begin_item(&mut self, kind: Kind, item: Value, said: &mut Vec<Message>) {
        self.close("completed", said);
        self.open = Some(kind);
        let index = self.output.len();
        self.output.push(item.clone());
        said.push(self.event("response.output_item.added", json!({"output_index": index, "item": item})));
        if let Some(part) = kind.part() {
            let part = empty(part);
            self.output[index]["content"] = json!([part]);
            said.push(self.about(kind, "response.content_part.added", json!({"part": part})));
        }
    }

    /// Ends the item that is being written: it is whole, or the answer ended within it.
    fn close(&mut self, status: &str, said: &mut Vec<Message>) {
        let Some(kind) = self.open.take() else { return };
        let index = self.output.len() - 1;
        self.output[index]["status"] = json!(status);
        let item = self.output[index].clone();
        let (_, done) = kind.events();
        if kind.part().is_some() {
            let part = &item["content"][0];
            let mut all = json!({"text": part["text"]});
            if let Some(probabilities) = part.get("logprobs") {
                all["logprobs"] = probabilities.clone();
            }
            said.push(self.about(kind, done, all));
            said.push(self.about(kind, "response.content_part.done", json!({"part": part})));
        } else {
            let all = json!({"name": item["name"], "arguments": item["arguments"]});
            said.push(self.about(kind, done, all));
        }
        said.push(self.event("response.output_item.done", json!({"output_index": index, "item": item})));
    }

    /// More of a message or of thoughts.
    fn text(&mut self, kind: Kind, text: String) -> Vec<Message> {
        let mut said = Vec::new();
        let begins = self.open != Some(kind);
        if begins {
            let item = match kind {
                Kind::Reasoning => json!({"type": "reasoning", "id": unique("rs_"), "summary": [], "content": []}),
                Kind::Message | Kind::Call => {
                    json!({"type": "message", "id": unique("msg_"), "role": "assistant", "content": []})
                }
            };
            let mut item = item;
            item["status"] = json!("in_progress");
            self.begin_item(kind, item, &mut said);
        }
        let mut delta = json!({"delta": text});
        let part = self.output.last_mut().map(|item| &mut item["content"][0]);
        let mut tokens = std::mem::take(&mut self.said);
        let mut probabilities = Vec::new();
        if kind == Kind::Message {
            if begins {
                // Marks of reasoning and calls before it are no part of a message.
                tokens.drain(..TokenPiece::before(&tokens, &text));
            }
            let text_of = text_of(&self.served);
            probabilities.extend(tokens.iter().map(|token| log_probabilities(token, &text_of)));
            delta["logprobs"] = json!(probabilities);
        }
        if let Some(part) = part {
            if let Value::String(whole) = &mut part["text"] {
                whole.push_str(&text);
            }
            if let Some(Value::Array(all)) = part.get_mut("logprobs") {
                all.extend(probabilities);
            }
        }
        said.push(self.about(kind, kind.events().0, delta));
        said
    }

    fn part(&mut self, part: Part) -> Vec<Message> {
        match part {
            Part::Content(text) => self.text(Kind::Message, text),
            Part::Reasoning(text) => self.text(Kind::Reasoning, text),
            Part::Call { id, name, .. } => {
                let mut said = Vec::new();
                let item = json!({
                    "type": "function_call",
                    "id": unique("fc_"),
                    "call_id": id.unwrap_or_else(|| unique("call_")),
                    "name": name,
                    "arguments": "",
                    "status": "in_progress",
                });
                self.begin_item(Kind::Call, item, &mut said);
                said
            }
            Part::Arguments { text, .. } => {
                if let Some(Value::String(whole)) = self.output.last_mut().map(|item| &mut item["arguments"]) {
                    whole.push_str(&text);
                }
                vec![self.about(Kind::Call, Kind::Call.events().0, json!({"delta": text}))]
            }
        }
    }

    /// Tokens of the thoughts, as the tokenizer counts them: the engine does not tell them apart.
    fn reasoning_tokens(&self) -> usize {
        let texts = self.output.iter().filter(|item| item["type"] == "reasoning");
        let texts = texts.filter_map(|item| item["content"][0]["text"].as_str());
        texts.map(|text| self.served.tokens(text, Special::Literal, Bos::Omit).len()).sum()
    }

    fn done(&mut self, end: &End) -> Vec<Message> {
        let mut said = Vec::new();
        let (status, name) = match end.finish {
            Finish::Stop => ("completed", "response.completed"),
            Finish::Length | Finish::Cancelled => {
                self.response["incomplete_details"] = json!({"reason": "max_output_tokens"});
                ("incomplete", "response.incomplete")
            }
        };
        self.close(status, &mut said);
        let timings_of = &end.timings;
        let prompt = timings_of.prompt_tokens + timings_of.cached_tokens;
        self.response["usage"] = json!({
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": timings_of.cached_tokens},
            "output_tokens": timings_of.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens().min(timings_of.generated_tokens)},
            "total_tokens": prompt + timings_of.generated_tokens,
        });
        self.response["timings"] = timings(&end.timings, end.queued);
        self.response["status"] = json!(status);
        self.response["completed_at"] = json!((end.finish == Finish::Stop).then(now));
        let whole = self.whole();
        if let Some(keep) = self.keep.take() {
            keep.keep(&whole);
        }
        said.push(self.event(name, json!({"response": whole})));
        said
    }
}

/// A part of an item before it has text.
fn empty(part: &str) -> Value {
    let mut empty = json!({"type": part, "text": ""});
    if part == "output_text" {
        empty["annotations"] = json!([]);
        empty["logprobs"] = json!([]);
    }
    empty
}

impl StreamFormat for ResponseForm {
    fn begin(&mut self) -> Vec<Message> {
        let response = self.whole();
        ["response.created", "response.in_progress"].map(|name| self.event(name, json!({"response": response}))).into()
    }

    fn piece(&mut self, _: usize, piece: Piece) -> Vec<Message> {
        match piece {
            Piece::Token(token) => {
                self.said.push(token);
                Vec::new()
            }
            Piece::OfPrompt(_) | Piece::Hidden(_) | Piece::Progress(_) => Vec::new(),
            Piece::Part(part, _) => self.part(part),
            Piece::Done(end) => self.done(&end),
            Piece::Failed(error) => vec![self.error(&error)],
        }
    }

    fn error(&mut self, error: &ApiError) -> Message {
        self.response["status"] = json!("failed");
        self.response["error"] = json!({"code": error.kind, "message": error.message});
        let response = self.whole();
        self.event("response.failed", json!({"response": response}))
    }
}
