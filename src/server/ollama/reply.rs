//! An answer as Ollama's lines, or as one of them.

use super::keep::Keep;
use crate::{
    scheduler::Finish,
    server::{
        ApiError,
        generate::{End, Piece, TokenPiece},
        openai::{chat::text_of, log_probabilities, unique},
        served::Served,
        stream::{Message, StreamFormat},
        whole::{Call, Whole},
    },
    text::Part,
};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Where the text of an answer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// In `message`, as `/api/chat` has it.
    Message,
    /// In `response`, as `/api/generate` has it.
    Response,
}

/// Pieces as lines.
#[derive(Debug)]
pub(super) struct LineForm {
    model: String,
    field: Field,
    began: Instant,
    /// What it took to have the model.
    load: Duration,
    /// A call whose arguments are not whole yet: they are sent as an object.
    call: Option<Call>,
    calls: usize,
    /// The prompt, if a later request may go on from it and its answer.
    prompt: Option<Vec<u32>>,
    /// Has the texts of tokens, if their probabilities are told.
    probabilities: Option<Arc<Served>>,
    /// Tokens whose text has not been sent yet.
    said: Vec<TokenPiece>,
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl LineForm {
    /// Lines of a model about a request that came at `began`.
    pub(super) fn new(model: &str, field: Field, (began, load): (Instant, Duration)) -> Self {
        let (call, calls, prompt, probabilities, said) = (None, 0, None, None, Vec::new());
        Self { model: model.into(), field, began, load, call, calls, prompt, probabilities, said }
    }

    /// Lines have the probabilities of their tokens.
    pub(super) fn tells_probabilities(&mut self, served: Arc<Served>) {
        self.probabilities = Some(served);
    }

    /// The last line has the tokens of this prompt and its answer, so that a later request may go on from them.
    pub(super) fn goes_on_from(&mut self, prompt: &[u32]) {
        self.prompt = Some(prompt.to_vec());
    }

    fn line(&self, content: &str, thinking: &str, calls: Vec<Value>) -> Value {
        let mut line = json!({"model": self.model, "created_at": jiff::Timestamp::now().to_string()});
        let mut said = match self.field {
            Field::Message => json!({"role": "assistant", "content": content}),
            Field::Response => json!({"response": content}),
        };
        if !thinking.is_empty() {
            said["thinking"] = json!(thinking);
        }
        if !calls.is_empty() {
            said["tool_calls"] = json!(calls);
        }
        match self.field {
            Field::Message => line["message"] = said,
            Field::Response => {
                if let (Value::Object(line), Value::Object(said)) = (&mut line, said) {
                    line.extend(said);
                }
            }
        }
        line["done"] = json!(false);
        line
    }

    /// A line with the probabilities of the tokens that came since the one before it.
    fn say(&mut self, content: &str, thinking: &str, calls: Vec<Value>) -> Value {
        let (mut line, tokens) = (self.line(content, thinking, calls), std::mem::take(&mut self.said));
        if let Some(served) = self.probabilities.as_ref().filter(|_| !tokens.is_empty()) {
            let text_of = text_of(served);
            line["logprobs"] = tokens.iter().map(|token| log_probabilities(token, &text_of)).collect();
        }
        line
    }

    fn call(&mut self, call: Call) -> Value {
        let id = call.id.unwrap_or_else(|| unique("call_"));
        let index = self.calls;
        self.calls += 1;
        json!({"id": id, "function": {"index": index, "name": call.name, "arguments": Call::object(&call.arguments)}})
    }

    fn end_call(&mut self) -> Vec<Message> {
        let Some(call) = self.call.take() else { return Vec::new() };
        let call = self.call(call);
        vec![Message::plain(self.say("", "", vec![call]))]
    }

    /// Says of a line that it is the last, and how the answer ended.
    fn done(&self, mut line: Value, end: &End) -> Value {
        line["done"] = json!(true);
        line["done_reason"] = json!(match end.finish {
            Finish::Stop => "stop",
            Finish::Length | Finish::Cancelled => "length",
        });
        let timings = &end.timings;
        line["total_duration"] = json!(nanoseconds(self.began.elapsed().as_secs_f64()));
        line["load_duration"] = json!(nanoseconds(self.load.as_secs_f64()));
        line["prompt_eval_count"] = json!(timings.prompt_tokens + timings.cached_tokens);
        line["prompt_eval_duration"] = json!(nanoseconds(timings.prompt_seconds));
        line["eval_count"] = json!(timings.generated_tokens);
        if let Some(prompt) = &self.prompt {
            line["context"] = json!([prompt.as_slice(), &end.tokens].concat());
        }
        line["eval_duration"] = json!(nanoseconds(timings.generate_seconds));
        line
    }

    /// What is said where nothing was asked: the model is there, or it is unloaded.
    pub(super) fn of_model(&self, keep: Keep) -> Value {
        let mut line = self.line("", "", Vec::new());
        line["done"] = json!(true);
        line["done_reason"] = json!(match keep {
            Keep::Loaded => "load",
            Keep::Nothing => "unload",
        });
        line
    }

    /// A whole answer.
    pub(super) fn whole(mut self, answer: &Whole) -> Value {
        let calls = answer.calls.iter().map(|call| self.call(call.clone())).collect();
        self.said.clone_from(&answer.tokens);
        let line = self.say(&answer.content, &answer.reasoning, calls);
        self.done(line, &answer.end)
    }
}

impl StreamFormat for LineForm {
    fn piece(&mut self, _: usize, piece: Piece) -> Vec<Message> {
        match piece {
            Piece::Token(token) => {
                self.said.push(token);
                Vec::new()
            }
            Piece::OfPrompt(_) | Piece::Hidden(_) | Piece::Progress(_) => Vec::new(),
            Piece::Part(Part::Arguments { text, .. }, _) => {
                if let Some(call) = &mut self.call {
                    call.arguments.push_str(&text);
                }
                Vec::new()
            }
            Piece::Part(Part::Call { id, name, .. }, _) => {
                let said = self.end_call();
                self.call = Some(Call { id, name, arguments: String::new() });
                said
            }
            Piece::Part(Part::Content(text), _) => {
                let mut said = self.end_call();
                said.push(Message::plain(self.say(&text, "", Vec::new())));
                said
            }
            Piece::Part(Part::Reasoning(text), _) => {
                let mut said = self.end_call();
                said.push(Message::plain(self.say("", &text, Vec::new())));
                said
            }
            Piece::Done(end) => {
                let mut said = self.end_call();
                let line = self.say("", "", Vec::new());
                said.push(Message::plain(self.done(line, &end)));
                said
            }
            Piece::Failed(error) => vec![self.error(&error)],
        }
    }

    fn error(&mut self, error: &ApiError) -> Message {
        Message::plain(error_body(error))
    }
}

/// What a reply or a line says about what went wrong.
pub fn error_body(error: &ApiError) -> Value {
    json!({"error": error.message})
}
