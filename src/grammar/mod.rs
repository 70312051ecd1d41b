//! Stand-in.
#![allow(missing_docs, unused)]
use crate::{
    engine::Constraint,
    text::{CallForm, Tokenizer},
};
use std::sync::Arc;
#[derive(Debug, Clone)]
pub struct Vocabulary;
impl Vocabulary {
    pub fn new(_: Arc<Tokenizer>) -> Result<Self, String> {
        Ok(Self)
    }
}
#[derive(Debug, Clone)]
pub enum Grammar {
    JsonObject,
    JsonSchema(serde_json::Value),
    Regex(String),
    Gbnf(String),
    Lark(String),
    Calls { forms: Vec<CallForm>, between: Option<String>, parallel: bool },
}
#[derive(Debug, Clone)]
pub struct Compiled;
pub fn compile(_: &Vocabulary, _: &Grammar) -> Result<Compiled, String> {
    Ok(Compiled)
}
#[derive(Debug, Clone)]
pub enum Stage {
    Until { end: String, budget: Option<usize> },
    FreeUnlessBegun { trigger: String },
    Grammar(Compiled),
}
#[derive(Debug)]
pub struct AnswerConstraint;
impl AnswerConstraint {
    pub fn new(_: &Vocabulary, _: Vec<Stage>, _: &[u32]) -> Self {
        Self
    }
}
impl Constraint for AnswerConstraint {
    fn mask(&mut self, _: &mut [f32]) -> Result<(), String> {
        Ok(())
    }
    fn accept(&mut self, _: u32) -> bool {
        false
    }
}
