//! What a grammar may cost: no request may take the machine, whatever it asks for.

use super::{Grammar, Instead};
use crate::text::CallForm;
use llguidance::api::ParserLimits;
use serde_json::Value;

/// Most bytes of a grammar's text.
pub(super) const TEXT_BYTES: usize = 1 << 18;

/// Most values in the schemas of a grammar: objects, arrays, numbers, texts.
pub(super) const SCHEMA_VALUES: usize = 1 << 16;

/// Most bytes of the texts in the schemas of a grammar.
pub(super) const SCHEMA_BYTES: usize = 1 << 20;

/// Deepest nesting of brackets in a GBNF grammar and of values in a schema.
pub(super) const NESTING: usize = 100;

/// What the matcher may spend. A step's mask may take some 50 ms; a lexer's states take one or two KB each.
pub(super) fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 250_000,
        step_max_items: 500_000,
        max_lexer_states: 50_000,
        max_grammar_size: 250_000,
        precompute_large_lexemes: true,
        // Errors are for the user, who does not know our grammars.
        verbose_errors: false,
    }
}

/// Refuses what is too large or too deep to look at.
pub(super) fn check(grammar: &Grammar) -> Result<(), String> {
    match grammar {
        Grammar::JsonObject => Ok(()),
        Grammar::JsonSchema(schema) => check_schemas("JSON schema", [schema].into_iter()),
        // The parsers of regular expressions and of GBNF bound how deep a text is nested.
        Grammar::Regex(text) => check_length("regular expression", text.len()),
        Grammar::Gbnf(text) => check_length("grammar", text.len()),
        Grammar::Calls { forms, frame, or, .. } => {
            let texts = forms.iter().flat_map(CallForm::texts).chain(frame.texts());
            check_length("tool calls", texts.map(str::len).sum())?;
            let instead = match or {
                Some(Instead::Json(schema)) => Some(schema),
                Some(Instead::Text) | None => None,
            };
            check_schemas("the tools' JSON schemas", forms.iter().flat_map(CallForm::schemas).chain(instead))
        }
    }
}

fn check_length(named: &str, bytes: usize) -> Result<(), String> {
    if bytes > TEXT_BYTES {
        return Err(format!("{named}: {bytes} bytes, expected at most {TEXT_BYTES}"));
    }
    Ok(())
}

fn check_schemas<'a>(named: &str, schemas: impl Iterator<Item = &'a Value>) -> Result<(), String> {
    let mut left: Vec<(&Value, usize)> = schemas.map(|schema| (schema, 1)).collect();
    let (mut values, mut bytes) = (0, 0);
    while let Some((value, depth)) = left.pop() {
        values += 1;
        if depth > NESTING {
            return Err(format!("{named}: more than {NESTING} values deep, expected fewer"));
        }
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => left.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => {
                bytes += fields.keys().map(String::len).sum::<usize>();
                left.extend(fields.values().map(|field| (field, depth + 1)));
            }
        }
        if values > SCHEMA_VALUES || bytes > SCHEMA_BYTES {
            return Err(format!(
                "{named}: too large, expected at most {SCHEMA_VALUES} values and {SCHEMA_BYTES} bytes of text"
            ));
        }
    }
    Ok(())
}
