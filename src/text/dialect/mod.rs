//! How models write what is not plain answer: reasoning and tool calls. Each form is read from the text as it streams.
//!
//! Everything here is text to text. A reader takes one character after the other, so that what it says cannot depend on
//! how the text was cut into tokens. What begins like a call and is none comes out as content, as it was written.
//!
//! - A call that stands in a model's markers is a call, whatever tool it names: who asked can tell the model that there
//!   is no such tool. Where nothing but its shape marks a call (bare JSON, `<function=` without `<tool_call>`), only a
//!   tool that was offered makes one.
//! - Once a call's name is out, its arguments go through as the model writes them. If they are no JSON, they end at the
//!   form's closing marker; the one who asked finds them broken, as he would elsewhere.
//! - An answer that ends inside of a marker or of a call without a name shows that text as content. Only the beginning
//!   of a closing marker right after a call, and a header without a recipient, say nothing and are dropped.

mod arguments;
mod call_form;
mod calls;
mod detect;
mod envelope;
mod form;
mod harmony;
mod header;
mod json;
mod messages;
mod parts;
mod python;
mod schema;
#[cfg(test)]
mod tests;
mod think;
mod xml;

use super::Tokenizer;
pub use call_form::{ArgumentText, ArgumentValue, CallArgument, CallArguments, CallForm, CallFrame};
use calls::Calls;
use form::Form;
use harmony::Harmony;
pub use parts::Part;
use parts::Parts;
use schema::Tools;
use serde_json::Value;
use std::sync::Arc;
use think::{Tags, Think};

/// What becomes of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningMode {
    /// It is told apart from the content.
    Split,
    /// It stays in the content as the model wrote it, tags included.
    Raw,
}

/// How one model writes reasoning and tool calls, and how its template wants messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    form: Option<Form>,
    tags: Option<Tags>,
    markers: Vec<&'static str>,
    wants: messages::Wants,
}

impl Dialect {
    /// The dialect of a model, told from the source of its chat template. A template without tools gives a dialect
    /// without calls, one without reasoning tags a dialect without reasoning.
    pub fn of_template(source: &str) -> Dialect {
        let (form, tags) = (detect::form(source), detect::tags(source));
        let mut markers: Vec<&'static str> = tags.iter().flat_map(|tags| [tags.open, tags.close]).collect();
        markers.extend(form.iter().flat_map(Form::markers));
        Dialect { form, tags, markers, wants: messages::Wants::of(source, form) }
    }

    /// Texts of control tokens that must be shown to the reader; all others are to be hidden.
    pub fn markers(&self) -> &[&'static str] {
        &self.markers
    }

    /// Those of these tokens that a vocabulary has.
    pub fn marker_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        self.markers.iter().filter_map(|text| tokenizer.id_of(text)).collect()
    }

    /// Reads one answer to `prompt`, the rendered text, which may end inside of reasoning. `tools` is the OpenAI list;
    /// if it is empty, what looks like a call is content.
    pub fn reader(&self, prompt: &str, tools: &[Value], mode: ReasoningMode) -> AnswerReader {
        let tools = Arc::new(Tools::new(tools));
        let inner = if self.form == Some(Form::Harmony) {
            Inner::Channels(Box::new(Harmony::new(prompt, tools, mode)))
        } else {
            let form = self.form.filter(|_| !tools.is_empty());
            let mut calls = Box::new(Calls::new(form, tools));
            Inner::Tags(self.tags.map(|tags| Think::new(tags, prompt, mode, &mut calls)), calls)
        };
        AnswerReader { inner, parts: Parts::default(), calls_only: false }
    }

    /// The messages as this model's template wants them: `content` a string, from nothing, a string or parts of type
    /// `text`; `developer` is `system`; system messages at the start are one; reasoning and the arguments of calls
    /// stand where, and as what, the template looks for them. Everything else is passed on.
    ///
    /// # Errors
    /// One line that names `messages[i]` and the field, and what was expected.
    pub fn messages(&self, messages: &[Value]) -> Result<Vec<Value>, String> {
        messages::prepare(messages, &self.wants)
    }

    /// Tools with all that a template may take for granted and a request may leave out: a description, and parameters with
    /// properties.
    pub fn whole_tools(tools: &[Value]) -> Vec<Value> {
        messages::whole_tools(tools)
    }

    /// How calls are written within their [`Dialect::call_frame`], one form per tool with a name. `None` if the model makes
    /// no calls, or the arguments of a tool cannot be written as its calls have them.
    pub fn call_forms(&self, tools: &[Value]) -> Option<Vec<CallForm>> {
        let form = self.form?;
        Tools::new(tools).iter().map(|tool| form.call(tool)).collect()
    }

    /// The text any call begins with; `None` if nothing but its place marks a call, or there are no calls.
    pub fn call_start(&self) -> Option<&str> {
        self.form?.start()
    }

    /// What stands around the calls of `call_forms`, the first of which begins with `call_start`, this included.
    pub fn call_frame(&self) -> CallFrame {
        self.form.map(Form::frame).unwrap_or_default()
    }

    /// The text that ends reasoning, after which the answer or a call begins; `None` if the model does not reason.
    pub fn reasoning_end(&self) -> Option<&str> {
        match self.form {
            Some(Form::Harmony) => Some(harmony::REASONING_END),
            Some(_) | None => self.tags.map(|tags| tags.close),
        }
    }

    /// Whether the model writes reasoning apart from its answer.
    pub fn reasons(&self) -> bool {
        self.reasoning_end().is_some()
    }

    /// Whether a rendered prompt ends inside of reasoning.
    pub fn is_reasoning(&self, prompt: &str) -> bool {
        self.form == Some(Form::Harmony) || self.tags.is_some_and(|tags| prompt.trim_end().ends_with(tags.open))
    }

    /// Whether the model can call tools.
    pub fn calls_tools(&self) -> bool {
        self.form.is_some_and(|form| form != Form::Harmony || self.wants.tools)
    }
}

/// Reads one answer as it streams.
#[derive(Debug, Clone)]
pub struct AnswerReader {
    inner: Inner,
    parts: Parts,
    calls_only: bool,
}

#[derive(Debug, Clone)]
enum Inner {
    /// Reasoning in tags, calls in the content after it.
    Tags(Option<Think>, Box<Calls>),
    /// Messages in channels.
    Channels(Box<Harmony>),
}

impl AnswerReader {
    /// Takes the next piece of the answer; what is certain by now. Neighbouring parts are never of the same kind.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        for c in text.chars() {
            match &mut self.inner {
                Inner::Tags(Some(think), calls) => think.push(c, calls, &mut self.parts),
                Inner::Tags(None, calls) => calls.push(c, &mut self.parts),
                Inner::Channels(harmony) => harmony.push(c, &mut self.parts),
            }
        }
        self.parts.take()
    }

    /// The same of an answer that has to be calls: where it ends within the beginning of one, that is no text.
    pub fn of_calls(self) -> Self {
        Self { calls_only: true, ..self }
    }

    /// Ends the answer; what was held back.
    pub fn finish(&mut self) -> Vec<Part> {
        match &mut self.inner {
            Inner::Tags(think, calls) => {
                if let Some(think) = think {
                    think.finish(calls, &mut self.parts);
                }
                calls.finish(&mut self.parts);
            }
            Inner::Channels(harmony) => harmony.finish(&mut self.parts),
        }
        let mut parts = self.parts.take();
        parts.retain(|part| !self.calls_only || !matches!(part, Part::Content(_)));
        parts
    }
}
