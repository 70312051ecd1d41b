//! Arguments as `<parameter=name>` blocks, made into JSON by what the tool's schema says of them.

use super::{
    ArgumentText, ArgumentValue,
    call_form::Writes,
    calls::Progress,
    json::escape,
    parts::Parts,
    schema::{Kinds, Parameter, Tools},
};
use crate::text::StopMatcher;
use serde_json::Value;
use std::sync::Arc;

const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
pub(super) const FUNCTION_END: &str = "</function>";
/// Names of parameters are shorter, in bytes.
const LONGEST: usize = 256;

/// Writes parameters as they are read here: what may be a string stands without quotes.
pub(super) struct Texts;

impl Writes for Texts {
    fn begin(&self, name: &str) -> Option<String> {
        let fits = name == name.trim() && name.len() < LONGEST && !name.contains(['\n', '>']);
        fits.then(|| format!("{PARAMETER}{name}>\n"))
    }

    fn value(&self, parameter: &Parameter<'_>) -> (ArgumentValue, &'static str) {
        let kinds = parameter.kinds();
        let text =
            |value: &Value| value.as_str().filter(|_| kinds.may_be_text()).map_or(value.to_string(), str::to_string);
        // What would be read as something else cannot be written.
        let reads = |written: &String, value: &Value| {
            let read = if kinds.only_text() { Value::from(written.as_str()).to_string() } else { kinds.json(written) };
            let meant = value.to_string();
            read == meant && !written.contains(PARAMETER_END)
        };
        let values = parameter.choices().unwrap_or_default();
        let written = values.iter().map(|value| (text(value), value));
        let texts: Vec<String> = written.filter(|(text, value)| reads(text, value)).map(|(text, _)| text).collect();
        if !texts.is_empty() {
            return (ArgumentValue::OneOf(texts), "\n</parameter>\n");
        }
        if !kinds.may_be_text() {
            return (ArgumentValue::Json(parameter.schema()), "\n</parameter>\n");
        }
        // Of what may be something else, too, nothing is known.
        let of_text = |name: &str| parameter.of_text(name).filter(|_| kinds.only_text());
        let count = |name: &str| of_text(name).and_then(Value::as_u64);
        let pattern = of_text("pattern").and_then(Value::as_str).map(str::to_string);
        let length = (count("minLength").unwrap_or(0), count("maxLength"));
        let text = ArgumentText { end: "\n</parameter>", marker: PARAMETER_END, length, pattern };
        (ArgumentValue::Text(text), "\n")
    }
}

/// Reads the parameters of one call, after its header.
#[derive(Debug, Clone)]
pub(super) struct Parameters {
    tool: String,
    tools: Arc<Tools>,
    /// Parameters so far.
    count: usize,
    at: At,
}

#[derive(Debug, Clone)]
enum At {
    /// The text between two parameters.
    Between(String),
    Value(ParameterValue),
}

/// The value of a parameter: one newline at its start and one at its end belong to the form.
#[derive(Debug, Clone)]
struct ParameterValue {
    kinds: Kinds,
    end: StopMatcher,
    /// No character of it was read.
    fresh: bool,
    /// A newline that may be the last.
    newline: bool,
    /// The value so far, if it has to be whole before it is clear what it is.
    whole: String,
}

impl Parameters {
    pub(super) fn new(tool: &str, tools: Arc<Tools>) -> Parameters {
        Parameters { tool: tool.into(), tools, count: 0, at: At::Between(String::new()) }
    }

    pub(super) fn push(&mut self, c: char, parts: &mut Parts) -> Progress {
        match &mut self.at {
            At::Value(value) => {
                if value.push(c, parts) {
                    self.at = At::Between(String::new());
                }
                Progress::Taken
            }
            At::Between(text) => {
                if text.is_empty() && c.is_whitespace() {
                    return Progress::Taken;
                }
                text.push(c);
                if text == FUNCTION_END {
                    self.close(parts);
                    return Progress::End;
                }
                if let Some(name) = text.strip_prefix(PARAMETER).and_then(|name| name.strip_suffix('>')) {
                    let name = name.trim().to_owned();
                    self.open(&name, parts);
                    return Progress::Taken;
                }
                let name = text.strip_prefix(PARAMETER).filter(|name| name.len() <= LONGEST && !name.contains('\n'));
                if name.is_some() || PARAMETER.starts_with(text.as_str()) || FUNCTION_END.starts_with(text.as_str()) {
                    return Progress::Taken;
                }
                let rest = std::mem::take(text);
                self.close(parts);
                Progress::Rest(rest)
            }
        }
    }

    /// The answer ended within the call.
    pub(super) fn finish(&mut self, parts: &mut Parts) {
        match &mut self.at {
            At::Value(value) => value.finish(parts),
            At::Between(text) => {
                let text = std::mem::take(text);
                if !FUNCTION_END.starts_with(&text) {
                    parts.content(&text);
                }
            }
        }
    }

    fn open(&mut self, name: &str, parts: &mut Parts) {
        let kinds = self.tools.find(&self.tool).map(|tool| tool.kinds(name)).unwrap_or_default();
        parts.arguments(if self.count == 0 { "{" } else { ", " });
        parts.arguments(&format!("{}: ", Value::from(name)));
        if kinds.only_text() {
            parts.arguments("\"");
        }
        self.count += 1;
        let end = StopMatcher::new(&[PARAMETER_END]);
        self.at = At::Value(ParameterValue { kinds, end, fresh: true, newline: false, whole: String::new() });
    }

    fn close(&self, parts: &mut Parts) {
        parts.arguments(if self.count == 0 { "{}" } else { "}" });
    }
}

impl ParameterValue {
    /// Takes a character; true if the value is complete.
    fn push(&mut self, c: char, parts: &mut Parts) -> bool {
        let matched = self.end.push(c.encode_utf8(&mut [0; 4]));
        self.add(&matched.text, parts);
        if matched.stop.is_some() {
            let json = if self.kinds.only_text() { "\"".into() } else { self.kinds.json(&self.whole) };
            parts.arguments(&json);
        }
        matched.stop.is_some()
    }

    fn add(&mut self, text: &str, parts: &mut Parts) {
        for c in text.chars() {
            let first = std::mem::replace(&mut self.fresh, false);
            if first && c == '\n' {
                continue;
            }
            if std::mem::replace(&mut self.newline, c == '\n') {
                self.put('\n', parts);
            }
            if c != '\n' {
                self.put(c, parts);
            }
        }
    }

    fn put(&mut self, c: char, parts: &mut Parts) {
        if self.kinds.only_text() {
            let mut text = String::new();
            escape(c, &mut text);
            parts.arguments(&text);
        } else {
            self.whole.push(c);
        }
    }

    /// Ends the answer within the value: what there is of it, and no end, so that it shows.
    fn finish(&mut self, parts: &mut Parts) {
        let rest = self.end.finish();
        self.add(&rest, parts);
        if self.newline {
            self.put('\n', parts);
        }
        parts.arguments(&std::mem::take(&mut self.whole));
    }
}
