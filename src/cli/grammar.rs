//! Flags that say what an answer has to look like, named as llama.cpp names them.

use super::input;
use anyhow::{anyhow, bail};
use clap::Args;
use kvas::{
    engine::Constraint,
    grammar::{AnswerConstraint, Grammar, Stage, Vocabulary, compile},
    text::Tokenizer,
};
use std::{path::PathBuf, sync::Arc};

/// What the answer has to look like; one of these.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct GrammarFlags {
    /// A grammar (GBNF) that the answer has to fit
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    grammar: Option<String>,
    /// A file with such a grammar
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
    /// A JSON schema; the answer is JSON that fits it. {} is any JSON
    #[arg(short = 'j', long, value_name = "JSON")]
    json_schema: Option<String>,
    /// A file with such a schema
    #[arg(long, value_name = "FILE")]
    json_schema_file: Option<PathBuf>,
}

impl GrammarFlags {
    /// The constraint that was asked for, on answers that `stop_tokens` end; if they begin with `reasoning`, from its end on. That
    /// is one by itself if it is bounded. Errors name the flag.
    pub(crate) fn constraint(
        &self,
        tokenizer: &Arc<Tokenizer>,
        stop_tokens: &[u32],
        reasoning: Option<Stage>,
    ) -> anyhow::Result<Option<Box<dyn Constraint>>> {
        let is_bounded = matches!(reasoning, Some(Stage::Until { budget: Some(_), .. }));
        let asked = self.asked()?;
        if asked.is_none() && !is_bounded {
            return Ok(None);
        }
        let flag = asked.as_ref().map_or("--reasoning-budget", |(flag, _)| flag);
        let fail = |what: String| anyhow!("{flag}: {what}");
        let vocabulary = Vocabulary::new(tokenizer.clone()).map_err(fail)?;
        let compiled = asked.as_ref().map(|(_, grammar)| compile(&vocabulary, grammar)).transpose().map_err(fail)?;
        let stages = reasoning.into_iter().chain(compiled.map(Stage::Grammar)).collect();
        Ok(Some(Box::new(AnswerConstraint::new(&vocabulary, stages, stop_tokens))))
    }

    /// What was asked for, and with which flag.
    fn asked(&self) -> anyhow::Result<Option<(String, Grammar)>> {
        Ok(match (&self.grammar, &self.grammar_file, &self.json_schema, &self.json_schema_file) {
            (Some(text), _, _, _) => Some(("--grammar".into(), Grammar::Gbnf(text.clone()))),
            (_, Some(path), _, _) => {
                let flag = format!("--grammar-file {}", path.display());
                let text = input::text(path, &flag)?;
                Some((flag, Grammar::Gbnf(text)))
            }
            (_, _, Some(text), _) => Some(("--json-schema".into(), schema(text, "--json-schema")?)),
            (_, _, _, Some(path)) => {
                let flag = format!("--json-schema-file {}", path.display());
                let grammar = schema(&input::text(path, &flag)?, &flag)?;
                Some((flag, grammar))
            }
            (None, None, None, None) => None,
        })
    }
}

fn schema(text: &str, flag: &str) -> anyhow::Result<Grammar> {
    match serde_json::from_str(text) {
        Ok(schema) => Ok(Grammar::JsonSchema(schema)),
        Err(error) => bail!("{flag}: not JSON: {error}"),
    }
}
