//! An answer as Anthropic's blocks, whole or event by event.

use super::error_body;
use crate::{
    scheduler::Finish,
    server::{
        ApiError,
        generate::{End, Piece},
        openai::unique,
        stream::{Message, StreamFormat},
        whole::Call,
    },
    text::Part,
};
use serde_json::{Value, json};

/// Pieces as blocks of one message.
#[derive(Debug)]
pub(super) struct MessageForm {
    /// The message so far, without its blocks.
    message: Value,
    /// The blocks; the last one may be open.
    blocks: Vec<Value>,
    open: bool,
    /// What the model wrote as arguments of the call that is open.
    arguments: String,
}

impl MessageForm {
    /// A message of a model that reads a prompt of so many tokens.
    pub(super) fn new(model: &str, prompt: usize) -> Self {
        let usage = json!({
            "input_tokens": prompt,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        });
        let message = json!({
            "id": unique("msg_"),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage,
        });
        Self { message, blocks: Vec::new(), open: false, arguments: String::new() }
    }

    /// The whole message.
    pub(super) fn into_message(self) -> Value {
        let Self { mut message, blocks, .. } = self;
        message["content"] = Value::Array(blocks);
        message
    }

    /// The number of the last block.
    fn index(&self) -> usize {
        self.blocks.len().saturating_sub(1)
    }

    fn close(&mut self, said: &mut Vec<Message>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let index = self.index();
        if let Some(block) = self.blocks.last_mut().filter(|block| block["type"] == "tool_use") {
            block["input"] = Call::object(&std::mem::take(&mut self.arguments));
        }
        said.push(Message::named("content_block_stop", json!({"index": index})));
    }

    fn begin(&mut self, block: Value, said: &mut Vec<Message>) {
        self.close(said);
        self.open = true;
        self.blocks.push(block.clone());
        said.push(Message::named("content_block_start", json!({"index": self.index(), "content_block": block})));
    }

    /// More of a block of text or thoughts; `kind` is its type and the name of its field.
    fn text(&mut self, kind: &'static str, empty: Value, text: String) -> Vec<Message> {
        let mut said = Vec::new();
        if !self.open || self.blocks.last().is_none_or(|block| block["type"] != kind) {
            self.begin(empty, &mut said);
        }
        let mut delta = json!({"type": format!("{kind}_delta")});
        delta[kind] = json!(text);
        said.push(Message::named("content_block_delta", json!({"index": self.index(), "delta": delta})));
        if let Some(Value::String(whole)) = self.blocks.last_mut().map(|block| &mut block[kind]) {
            whole.push_str(&text);
        }
        said
    }

    fn part(&mut self, part: Part) -> Vec<Message> {
        match part {
            Part::Content(text) => self.text("text", json!({"type": "text", "text": ""}), text),
            Part::Reasoning(text) => {
                // Nobody signs thoughts here; clients expect the field.
                self.text("thinking", json!({"type": "thinking", "thinking": "", "signature": ""}), text)
            }
            Part::Call { id, name, .. } => {
                let mut said = Vec::new();
                let id = id.unwrap_or_else(|| unique("toolu_"));
                self.begin(json!({"type": "tool_use", "id": id, "name": name, "input": {}}), &mut said);
                said
            }
            Part::Arguments { text, .. } => {
                self.arguments.push_str(&text);
                let delta = json!({"type": "input_json_delta", "partial_json": text});
                vec![Message::named("content_block_delta", json!({"index": self.index(), "delta": delta}))]
            }
        }
    }

    fn done(&mut self, end: &End) -> Vec<Message> {
        let mut said = Vec::new();
        self.close(&mut said);
        let called = self.blocks.iter().any(|block| block["type"] == "tool_use");
        let reason = match (end.finish, &end.stop_string) {
            (_, Some(_)) => "stop_sequence",
            (Finish::Stop, None) if called => "tool_use",
            (Finish::Stop, None) => "end_turn",
            (Finish::Length | Finish::Cancelled, None) => "max_tokens",
        };
        let usage = json!({
            "input_tokens": end.timings.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": end.timings.cached_tokens,
            "output_tokens": end.timings.generated_tokens,
        });
        self.message["stop_reason"] = json!(reason);
        self.message["stop_sequence"] = json!(end.stop_string);
        self.message["usage"] = usage.clone();
        let delta = json!({"stop_reason": reason, "stop_sequence": end.stop_string});
        said.push(Message::named("message_delta", json!({"delta": delta, "usage": usage})));
        said
    }
}

impl StreamFormat for MessageForm {
    fn begin(&mut self) -> Vec<Message> {
        let start = Message::named("message_start", json!({"message": self.message}));
        vec![start, Message::named("ping", json!({}))]
    }

    fn piece(&mut self, _: usize, piece: Piece) -> Vec<Message> {
        match piece {
            // This API has no probabilities.
            Piece::Token(_) | Piece::OfPrompt(_) | Piece::Hidden(_) | Piece::Progress(_) => Vec::new(),
            Piece::Part(part, _) => self.part(part),
            Piece::Done(end) => self.done(&end),
            Piece::Failed(error) => vec![self.error(&error)],
        }
    }

    fn end(&mut self) -> Vec<Message> {
        vec![Message::named("message_stop", json!({}))]
    }

    fn error(&mut self, error: &ApiError) -> Message {
        Message { event: Some("error"), data: error_body(error) }
    }
}
