//! Tool calls that a model is made to write, as a Lark grammar.

use super::{
    Instead,
    schema::with_whitespace,
    vocabulary::{Part, Vocabulary},
};
use crate::text::{ArgumentText, ArgumentValue, CallArgument, CallArguments, CallForm, CallFrame};
use serde_json::{Value, json};
use std::fmt::Write;

/// The number of a call, which goes on through a conversation.
const NUMBER: &str = "/0|[1-9][0-9]{0,3}/";

/// The grammar of one call of one of these forms, or of several if they may be `parallel`, in their frame; or of what may
/// come instead.
pub(super) fn to_lark(
    vocabulary: &Vocabulary,
    forms: &[CallForm],
    (frame, parallel): (&CallFrame, bool),
    or: Option<&Instead>,
) -> Result<String, String> {
    if forms.is_empty() {
        return Err("a tool call is asked for and there is no tool, expected at least one".into());
    }
    let again = frame.between.filter(|_| parallel).map(|between| format!(" ({} call)*", symbols(vocabulary, between)));
    let (open, close) = (symbols(vocabulary, &frame.begin), symbols(vocabulary, &frame.end));
    let names: Vec<String> = (0..forms.len()).map(|form| format!("form{form}")).collect();
    let mut lark = format!("calls: {open} call{} {close}\ncall: {}\n", again.unwrap_or_default(), names.join(" | "));
    lark += &match or {
        None => "start: calls\n".into(),
        Some(Instead::Json(schema)) => format!("start: calls | answer\nanswer: %json {}\n", with_whitespace(schema)),
        Some(Instead::Text) => "start: calls | ANSWER?\nANSWER: /\\s*[^{\\s](?s:.*)/\n".into(),
    };
    for (name, form) in names.iter().zip(forms) {
        if let (Some(Instead::Json(_)), Some(schema)) = (or, as_json(form)) {
            writeln!(lark, "{name}: %json {}", with_whitespace(&schema)).expect("a string takes any text");
            continue;
        }
        let (begin, end) = (symbols(vocabulary, &form.begin), symbols(vocabulary, &form.end));
        let number = form.numbered.map(|after| format!("{NUMBER} {}", symbols(vocabulary, after))).unwrap_or_default();
        let arguments = match &form.arguments {
            CallArguments::Whole(schema) => format!("%json {}", with_whitespace(schema)),
            CallArguments::Each { list, between } => {
                for (number, argument) in list.iter().enumerate() {
                    lark += &self::argument(vocabulary, &format!("{name}_argument{number}"), argument);
                }
                lark += &in_order(name, list, &symbols(vocabulary, between));
                format!("{name}_from0")
            }
        };
        writeln!(lark, "{name}: {begin} {number} {arguments} {end}").expect("a string takes any text");
    }
    Ok(lark)
}

/// The schema of a call that is nothing but JSON. Beside other JSON it has to be told from that token by token, which a text
/// of more than one of them cannot be.
fn as_json(form: &CallForm) -> Option<Value> {
    let CallArguments::Whole(schema) = &form.arguments else { return None };
    let Ok(Value::Object(example)) = serde_json::from_str(&format!("{}null{}", form.begin, form.end)) else {
        return None;
    };
    let mut arguments = schema.clone();
    let mut call =
        json!({"type": "object", "required": example.keys().collect::<Vec<_>>(), "additionalProperties": false});
    // What references lead to stands where they say.
    for name in ["$defs", "definitions"] {
        if let Some(shared) = arguments.as_object_mut().and_then(|schema| schema.remove(name)) {
            call[name] = shared;
        }
    }
    let one = |(key, value): (String, Value)| {
        let schema = if value.is_null() { arguments.clone() } else { json!({"const": value}) };
        (key, schema)
    };
    call["properties"] = Value::Object(example.into_iter().map(one).collect());
    Some(call)
}

/// The rules of arguments that stand in this order, with `between` between two of them: `_from` a place on, where none
/// came before, and `_after` one of them.
fn in_order(name: &str, list: &[CallArgument], between: &str) -> String {
    let mut lark = String::new();
    for (number, argument) in list.iter().enumerate() {
        let (this, next) = (format!("{name}_argument{number}"), number + 1);
        let (or, maybe) = match argument.needed {
            true => (String::new(), ""),
            false => (format!(" | {name}_from{next}"), "?"),
        };
        lark += &format!("{name}_from{number}: {this} {name}_after{next}{or}\n");
        lark += &format!("{name}_after{number}: ({between} {this}){maybe} {name}_after{next}\n");
    }
    let end = list.len();
    lark + &format!("{name}_from{end}: \"\"\n{name}_after{end}: \"\"\n")
}

/// The rule of one argument, and of its text.
fn argument(vocabulary: &Vocabulary, name: &str, argument: &CallArgument) -> String {
    let (begin, end) = (symbols(vocabulary, &argument.begin), symbols(vocabulary, argument.end));
    let (value, more) = match &argument.value {
        ArgumentValue::Json(schema) => (format!("%json {}", with_whitespace(schema)), String::new()),
        ArgumentValue::OneOf(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| symbols(vocabulary, text)).collect();
            (format!("({})", texts.join(" | ")), String::new())
        }
        ArgumentValue::Text(text) => {
            let terminal = name.to_uppercase();
            let more = format!("{terminal}: {}\n", self::text(text));
            (terminal, more)
        }
    };
    format!("{name}: {begin} {value} {end}\n{more}")
}

/// The expression of a text with what ends it, whose marker stands nowhere before.
fn text(text: &ArgumentText) -> String {
    let (end, marker) = (escaped(&regex_syntax::escape(text.end)), escaped(&regex_syntax::escape(text.marker)));
    let (least, most) = text.length;
    let most = most.map(|most| most.to_string()).unwrap_or_default();
    let mut all = vec![format!("/(?s:.{{{least},{most}}}){end}/")];
    if let Some(pattern) = &text.pattern {
        let inner = super::unanchored(pattern);
        let begins = pattern.starts_with('^');
        let ends = inner.len() + usize::from(begins) < pattern.len();
        let rest = |anchored: bool| if anchored { "" } else { "(?s:.*)" };
        all.push(format!("/{}(?:{}){}{end}/", rest(begins), escaped(inner), rest(ends)));
    }
    all.push(format!("~/(?s:.*){marker}(?s:.+)/"));
    all.join(" & ")
}

/// A regular expression as Lark has it between its slashes.
fn escaped(regex: &str) -> String {
    let mut escaped = String::new();
    let mut chars = regex.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('/') => escaped.push_str("\\/"),
                Some('\n') => escaped.push_str("\\n"),
                Some(next) => escaped.extend(['\\', next]),
                None => escaped.push('\\'),
            },
            '/' => escaped.push_str("\\/"),
            '\n' => escaped.push_str("\\n"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A text as symbols of a Lark rule.
fn symbols(vocabulary: &Vocabulary, text: &str) -> String {
    let symbol = |part: &Part| match part {
        Part::Token(id) => format!("<[{id}]>"),
        Part::Text(text) => Value::from(text.as_str()).to_string().replace('\u{7f}', "\\u007f"),
    };
    let symbols: Vec<String> = vocabulary.parts(text).iter().map(symbol).collect();
    if symbols.is_empty() { "\"\"".into() } else { symbols.join(" ") }
}
