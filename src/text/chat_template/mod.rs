//! Renders conversations into prompts with the templates that models bring along.
//!
//! A template is a program from outside. It renders within limits of memory and time that grow with the conversation,
//! and can touch nothing but the values it is given.

mod arguments;
mod formats;
mod helpers;
mod json;
mod meter;
mod methods;
mod numerals;
mod printing;
mod python;
mod remainder;
mod rewrite;
mod slices;
mod spelling;
#[cfg(test)]
mod tests;
mod variadic;
mod words;
mod wrapping;

use super::TextError;
use kvas_gguf::Metadata;
use meter::{Failure, Meter};
use minijinja::machinery::{eval, make_string_output};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::Map;
use std::sync::Arc;

/// A template that turns a conversation into a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    source: String,
}

/// What a template renders.
#[derive(Debug, Clone)]
pub struct Conversation<'a> {
    /// The list of messages, each an object with at least `role`, passed on as it is.
    pub messages: &'a serde_json::Value,
    /// The list of tools in the OpenAI form.
    pub tools: Option<&'a serde_json::Value>,
    /// Whether the prompt ends where the assistant's answer starts.
    pub add_generation_prompt: bool,
    /// The text of the BOS token; empty if there is none.
    pub bos_token: &'a str,
    /// The text of the EOS token; empty if there is none.
    pub eos_token: &'a str,
    /// Further variables, such as `enable_thinking`; they win over all others.
    pub variables: Map<String, serde_json::Value>,
    /// The time for `strftime_now`; `None` is now in the local time zone.
    pub now: Option<jiff::Zoned>,
}

impl<'a> Conversation<'a> {
    /// A conversation without tools that waits for the assistant.
    pub fn new(messages: &'a serde_json::Value) -> Conversation<'a> {
        Conversation {
            messages,
            tools: None,
            add_generation_prompt: true,
            bos_token: "",
            eos_token: "",
            variables: Map::new(),
            now: None,
        }
    }
}

const KEY: &str = "tokenizer.chat_template";
const KEY_WITH_TOOLS: &str = "tokenizer.chat_template.tool_use";

impl ChatTemplate {
    /// Takes a template and checks its syntax.
    ///
    /// # Errors
    /// `TemplateSyntax` with the line that is wrong.
    pub fn new(source: &str) -> Result<ChatTemplate, TextError> {
        let template = ChatTemplate { source: normalized(source) };
        rewrite::compile(&rewrite::harden(&template.source)?)?;
        Ok(template)
    }

    /// The template of a model file: `tokenizer.chat_template`, and where tools are offered the one that a file may have for
    /// that. A broken one is only found when it renders, so that the model still loads.
    ///
    /// # Errors
    /// `Metadata` if a key is not a string.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<ChatTemplate>, TextError> {
        let [source, with_tools] = [KEY, KEY_WITH_TOOLS].map(|key| metadata.string_opt(key));
        let (source, with_tools) = (source?.map(normalized), with_tools?.map(normalized));
        Ok(source.map(|source| ChatTemplate {
            source: with_tools.map_or_else(|| source.clone(), |with_tools| either(&with_tools, &source)),
        }))
    }

    /// The ChatML format, for models without a template.
    pub fn chatml() -> ChatTemplate {
        ChatTemplate { source: CHATML.into() }
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for a conversation.
    ///
    /// # Errors
    /// `TemplateSyntax` and `TemplateRender` with the line at fault; `TemplateRaised` with the message of a template
    /// that refuses the conversation; `TemplateLimit` if it asks for more work or memory than the conversation
    /// justifies.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TextError> {
        let source = rewrite::harden(&self.source)?;
        let (instructions, blocks) = rewrite::compile(&source)?;
        let input_bytes = input_bytes(conversation);
        let meter = Arc::new(Meter::new(input_bytes));
        let mut environment = Environment::new();
        environment.set_fuel(Some(Meter::fuel(input_bytes)));
        meter::install(&mut environment, &meter);
        remainder::install(&mut environment);
        slices::install(&mut environment);
        words::install(&mut environment);
        python::install(&mut environment, &meter, conversation.now.clone().unwrap_or_else(jiff::Zoned::now));
        arguments::install(&mut environment, &meter);
        helpers::install(&mut environment, &meter);
        wrapping::install(&mut environment, &meter);
        let mut prompt = String::new();
        let mut output = make_string_output(&mut prompt);
        let context = context(conversation);
        let result = eval(&environment, &instructions, context, &blocks, &mut output, AutoEscape::None).map(drop);
        drop(output);
        match result {
            Ok(()) => Ok(prompt),
            Err(error) => Err(render_error(&error, &meter)),
        }
    }
}

const CHATML: &str = "\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

/// The source as the engine takes it. Jinja ends each line with a line feed, whatever the source has, and keeps the one
/// behind `{% raw %}`; and `{% generation %}`, which marks what a model is trained on, means nothing here, but the engine
/// does not know it.
fn normalized(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    if !source.contains("generation") && !source.contains("raw") {
        return source;
    }
    let mut rest = source.as_str();
    let mut plain = String::with_capacity(source.len());
    while let Some((before, tag)) = rest.split_once("{%") {
        plain.push_str(before);
        plain.push_str("{%");
        let Some((inside, after)) = tag.split_once("%}") else {
            rest = tag;
            break;
        };
        match inside.trim_matches(['-', '+']).trim() {
            "generation" => plain.push_str(&inside.replace("generation", "if true")),
            "raw" if after.starts_with('\n') && !inside.ends_with(['-', '+']) => plain.push_str(&format!("{inside}+")),
            "endgeneration" => plain.push_str(&inside.replace("endgeneration", "endif")),
            _ => plain.push_str(inside),
        }
        plain.push_str("%}");
        rest = after;
    }
    plain + rest
}

/// One template of two: the first where tools are offered. Each begins and ends as it would alone.
fn either(with_tools: &str, without: &str) -> String {
    let [with_tools, without] = [with_tools, without].map(|source| source.strip_suffix('\n').unwrap_or(source));
    format!("{{% if tools +%}}{with_tools}{{%+ else +%}}{without}{{%+ endif %}}")
}

fn context(conversation: &Conversation<'_>) -> Value {
    let mut values: Vec<(String, Value)> = vec![
        ("messages".into(), value_of(conversation.messages)),
        ("tools".into(), conversation.tools.map_or_else(|| Value::from(()), value_of)),
        ("documents".into(), Value::from(())),
        ("add_generation_prompt".into(), Value::from(conversation.add_generation_prompt)),
        ("bos_token".into(), Value::from(conversation.bos_token)),
        ("eos_token".into(), Value::from(conversation.eos_token)),
    ];
    values.extend(conversation.variables.iter().map(|(name, value)| (name.clone(), value_of(value))));
    Value::from_pairs(values)
}

/// The same value for a template, with the order of its keys.
fn value_of(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(yes) => Value::from(*yes),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(value_of).collect(),
        serde_json::Value::Object(items) => {
            Value::from_pairs(items.iter().map(|(key, item)| (key.as_str(), value_of(item))))
        }
    }
}

/// Roughly the bytes of the values that a conversation brings.
fn input_bytes(conversation: &Conversation<'_>) -> usize {
    fn bytes(value: &serde_json::Value) -> usize {
        match value {
            serde_json::Value::String(text) => text.len() + 8,
            serde_json::Value::Array(items) => items.iter().map(bytes).sum::<usize>() + 8,
            serde_json::Value::Object(items) => {
                items.iter().map(|(key, item)| key.len() + bytes(item)).sum::<usize>() + 8
            }
            serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) => 8,
        }
    }
    let variables = conversation.variables.values().map(bytes).sum::<usize>();
    bytes(conversation.messages) + conversation.tools.map_or(0, bytes) + variables
}

fn syntax_error(error: Error) -> TextError {
    TextError::TemplateSyntax { line: error.line().unwrap_or(0), what: describe(&error) }
}

fn render_error(error: &Error, meter: &Meter) -> TextError {
    match meter.take_failure() {
        Some(Failure::Raised(message)) => TextError::TemplateRaised(message),
        Some(Failure::Limit(what)) => TextError::TemplateLimit(what.into()),
        None if error.kind() == ErrorKind::OutOfFuel => {
            TextError::TemplateLimit("runs more steps than its messages justify".into())
        }
        None => TextError::TemplateRender { line: error.line().unwrap_or(0), what: describe(error) },
    }
}

fn describe(error: &Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()))
}
