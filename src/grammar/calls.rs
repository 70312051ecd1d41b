//! Tool calls that a model is made to write, as a Lark grammar.

use super::{
    schema::with_whitespace,
    vocabulary::{Part, Vocabulary},
};
use crate::text::CallForm;
use std::fmt::Write;

/// The grammar of one call of one of these forms, or of several with `between` between them if `parallel`.
pub(super) fn to_lark(
    vocabulary: &Vocabulary,
    forms: &[CallForm],
    between: Option<&str>,
    parallel: bool,
) -> Result<String, String> {
    if forms.is_empty() {
        return Err("a tool call is asked for and there is no tool, expected at least one".into());
    }
    let again = match between {
        Some(between) if parallel => format!(" ({} call)*", symbols(vocabulary, between)),
        None if parallel => " call*".into(),
        Some(_) | None => String::new(),
    };
    let names: Vec<String> = (0..forms.len()).map(|form| format!("form{form}")).collect();
    let mut lark = format!("start: call{again}\ncall: {}\n", names.join(" | "));
    for (name, form) in names.iter().zip(forms) {
        let (begin, end) = (symbols(vocabulary, &form.begin), symbols(vocabulary, &form.end));
        let schema = with_whitespace(&form.schema);
        writeln!(lark, "{name}: {begin} %json {schema} {end}").expect("a string takes any text");
    }
    Ok(lark)
}

/// A text as symbols of a Lark rule.
fn symbols(vocabulary: &Vocabulary, text: &str) -> String {
    let symbol = |part: &Part| match part {
        Part::Token(id) => format!("<[{id}]>"),
        Part::Text(text) => serde_json::Value::from(text.as_str()).to_string().replace('\u{7f}', "\\u007f"),
    };
    let symbols: Vec<String> = vocabulary.parts(text).iter().map(symbol).collect();
    if symbols.is_empty() { "\"\"".into() } else { symbols.join(" ") }
}
