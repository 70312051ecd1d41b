//! Answers that are sent in one piece.

use super::{
    ApiError,
    generate::{End, Piece, Pieces, TokenPiece},
};
use crate::text::Part;
use serde_json::{Value, json};

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// The model's own id, if it wrote one.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// JSON text of its arguments.
    pub arguments: String,
}

impl Call {
    /// The arguments as an object, for APIs that know no other form. What a model wrote that is none is its only field,
    /// so that the client sees what was wrong.
    pub fn object(arguments: &str) -> Value {
        match serde_json::from_str(arguments) {
            Ok(Value::Object(object)) => Value::Object(object),
            _ if arguments.trim().is_empty() => json!({}),
            _ => json!({"arguments": arguments}),
        }
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub struct Whole {
    /// Its number among the answers that were asked for.
    pub index: usize,
    /// What the model thought.
    pub reasoning: String,
    /// What it said.
    pub content: String,
    /// What it called.
    pub calls: Vec<Call>,
    /// Tokens with probabilities, if they were asked for.
    pub tokens: Vec<TokenPiece>,
    /// Tokens of the prompt with probabilities, from the second one on, if they were asked for.
    pub prompt: Vec<TokenPiece>,
    /// The hidden state of the prompt, if it was asked for.
    pub hidden: Vec<f32>,
    /// How it ended.
    pub end: End,
}

#[derive(Debug, Default)]
struct Growing {
    reasoning: String,
    content: String,
    calls: Vec<Call>,
    tokens: Vec<TokenPiece>,
    prompt: Vec<TokenPiece>,
    hidden: Vec<f32>,
    end: Option<End>,
}

impl Growing {
    fn part(&mut self, part: Part) {
        match part {
            Part::Reasoning(text) => self.reasoning.push_str(&text),
            Part::Content(text) => self.content.push_str(&text),
            Part::Call { id, name, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
            Part::Arguments { index, text } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&text);
                }
            }
        }
    }
}

/// Waits for `answers` answers: those that can be had, in their order.
///
/// # Errors
/// Why the first of them failed, if there is none.
pub async fn collect(mut pieces: Pieces, answers: usize) -> Result<Vec<Whole>, ApiError> {
    let mut growing: Vec<Growing> = Vec::new();
    growing.resize_with(answers, Growing::default);
    let (mut left, mut failure) = (answers, None);
    while left > 0 {
        let Some((index, piece)) = pieces.recv().await else {
            failure.get_or_insert_with(|| ApiError::internal("the answer was lost"));
            break;
        };
        left -= usize::from(matches!(piece, Piece::Done(_) | Piece::Failed(_)));
        match piece {
            Piece::Token(token) => growing[index].tokens.push(token),
            Piece::OfPrompt(token) => growing[index].prompt.push(token),
            Piece::Hidden(state) => growing[index].hidden = state,
            // What is told on the way is in the end.
            Piece::Progress(_) => {}
            // Its tokens are in the end, too.
            Piece::Part(part, _) => growing[index].part(part),
            Piece::Done(end) => growing[index].end = Some(*end),
            // Others may be whole.
            Piece::Failed(error) => drop(failure.get_or_insert(error)),
        }
    }
    let whole = |(index, answer): (usize, Growing)| {
        let Growing { reasoning, content, calls, tokens, prompt, hidden, end } = answer;
        end.map(|end| Whole { index, reasoning, content, calls, tokens, prompt, hidden, end })
    };
    let all: Vec<Whole> = growing.into_iter().enumerate().filter_map(whole).collect();
    failure.filter(|_| all.is_empty()).map_or(Ok(all), Err)
}
