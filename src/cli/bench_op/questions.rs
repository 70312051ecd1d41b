//! Questions about long prompts: what a benchmark asks a model whose sequences hold fewer tokens.

use crate::cli::input;
use anyhow::{Context, ensure};
use kvas::{
    model::Model,
    text::{Bos, Special},
};
use serde::Deserialize;
use std::path::Path;

/// A line of a file of questions.
#[derive(Debug, Deserialize)]
struct Line {
    prompt: String,
    answer: String,
    /// About how long the prompt is, if the file says so.
    #[serde(default)]
    tokens: usize,
}

/// A question, as tokens.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) prompt: Vec<u32>,
    pub(super) answer: Vec<u32>,
    /// Questions of about as many tokens belong together; 0 if nobody says.
    pub(super) group: usize,
}

/// The first `most` questions of a file, a JSON object a line. Fails in one line that names the file and the line.
pub(super) fn questions(path: &Path, model: &Model, most: Option<usize>) -> anyhow::Result<Vec<Question>> {
    let text = input::text(path, path.display())?;
    ensure!(!text.is_empty(), "{}: no questions, expected one a line", path.display());
    let encode = |text: &str| model.tokenizer.encode(text, Special::Parse, Bos::Add);
    let question = |(number, line): (usize, &str)| {
        let what = || format!("{}:{}: expected an object with prompt and answer", path.display(), number + 1);
        let Line { prompt, answer, tokens } = serde_json::from_str(line).with_context(what)?;
        let (whole, prompt) = (encode(&format!("{prompt}{answer}")), encode(&prompt));
        ensure!(!prompt.is_empty() && whole.len() > prompt.len() && whole.starts_with(&prompt), "{}", what());
        Ok(Question { answer: whole[prompt.len()..].to_vec(), prompt, group: tokens })
    };
    text.lines().take(most.unwrap_or(usize::MAX)).enumerate().map(question).collect()
}
