//! Tool calls in the text of an answer: finds where they may begin, has them read, and takes back what was none.

use super::{
    arguments::{Arguments, Taken},
    envelope::Envelope,
    form::{FUNCTION, Form, MISTRAL, TOOL_CALL},
    header::{self, Header},
    parts::Parts,
    python::Python,
    schema::Tools,
    xml::Parameters,
};
use crate::text::StopMatcher;
use std::sync::Arc;

/// Reads content and calls; without a form everything is content.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    form: Option<Form>,
    tools: Arc<Tools>,
    at: At,
    /// What was read since a call may have begun, as long as that is not certain, the newlines before it included.
    held: String,
    /// Bytes of `held` up to the end of the marker; what follows may be another call if this is none.
    marker: usize,
    /// Calls before the marker.
    before: usize,
}

#[derive(Debug, Clone)]
enum At {
    Text(Text),
    Body(Body),
}

/// Content, in which a call may begin.
#[derive(Debug, Clone)]
struct Text {
    watch: StopMatcher,
    /// The texts watched for: those that begin a call first, then those that belong to the end of one.
    begins: Vec<&'static str>,
    ends: Vec<&'static str>,
    /// White space that may stand before a call.
    space: String,
    /// Newlines here belong to what stands before them.
    skip: bool,
    /// An object here is a call: no text has come yet.
    bare: bool,
}

/// What stands after a marker.
#[derive(Debug, Clone)]
enum Body {
    /// A header; what it is told by the text so far.
    Header(String, &'static str),
    Json(Box<Envelope>),
    Arguments(Arguments),
    Parameters(Parameters),
    Python(Python),
}

/// What a character was to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// A part of it, if it is one.
    Held,
    /// A part of it for certain: all there is to tell so far was told.
    Taken,
    /// Its end.
    End,
    /// The call ended before this text.
    Rest(String),
    /// This is no call.
    Not,
}

/// Headers with the white space around them are shorter, in bytes.
const LONGEST_HEADER: usize = 512;

/// Text that was taken for a call and is none is looked through for another one up to this length, in bytes.
const LOOKED_THROUGH: usize = 256;

impl Calls {
    pub(super) fn new(form: Option<Form>, tools: Arc<Tools>) -> Calls {
        let text = Text::new(form, false, form == Some(Form::Bare));
        Calls { form, tools, at: At::Text(text), held: String::new(), marker: 0, before: 0 }
    }

    /// Newlines that come next belong to what was before them.
    pub(super) fn skip_newlines(&mut self) {
        if let At::Text(text) = &mut self.at {
            text.skip = true;
        }
    }

    pub(super) fn push(&mut self, c: char, parts: &mut Parts) {
        match &mut self.at {
            At::Text(text) => {
                if let Some((held, marker)) = text.push(c, parts) {
                    self.begin(held, marker, parts);
                    if marker.is_none() {
                        self.push(c, parts);
                    }
                }
            }
            At::Body(body) => {
                self.held.push(c);
                let progress = match (body, self.form) {
                    (Body::Header(..), Some(form)) => self.header(form, c, parts),
                    (Body::Json(envelope), _) => envelope.push(c, &self.tools, parts),
                    (Body::Arguments(arguments), _) => match arguments.push(c, parts) {
                        Taken::Inside => Progress::Taken,
                        Taken::Last | Taken::Marker => Progress::End,
                        Taken::After => Progress::Rest(c.into()),
                    },
                    (Body::Parameters(parameters), _) => parameters.push(c, parts),
                    (Body::Python(python), _) => python.push(c, &self.tools, parts),
                    (Body::Header(..), None) => Progress::Not,
                };
                self.go_on(progress, parts);
            }
        }
    }

    /// Ends the answer.
    pub(super) fn finish(&mut self, parts: &mut Parts) {
        // What is held is no call yet.
        parts.content(&std::mem::take(&mut self.held));
        match &mut self.at {
            At::Text(text) => text.finish(parts),
            At::Body(Body::Json(envelope)) => envelope.finish(parts),
            At::Body(Body::Arguments(arguments)) => arguments.finish(parts),
            At::Body(Body::Parameters(parameters)) => parameters.finish(parts),
            At::Body(Body::Header(..) | Body::Python(_)) => {}
        }
        self.at = At::Text(Text::new(self.form, false, false));
    }

    /// A marker was read, or for bare objects nothing but the place where one begins.
    fn begin(&mut self, held: String, marker: Option<&'static str>, parts: &Parts) {
        let Some(form) = self.form else { return };
        (self.marker, self.before) = (held.len(), parts.calls());
        self.held = held;
        let body = match (form, marker) {
            (Form::Json(_) | Form::Bare, _) | (_, None) => Body::Json(Box::new(Envelope::new(form))),
            (Form::Python, _) => Body::Python(Python::default()),
            (Form::Mistral { .. } | Form::Xml | Form::Section(_) | Form::Harmony, Some(marker)) => {
                Body::Header(String::new(), marker)
            }
        };
        self.at = At::Body(body);
    }

    fn go_on(&mut self, progress: Progress, parts: &mut Parts) {
        match progress {
            Progress::Held => {}
            Progress::Taken => {
                self.held.clear();
                self.marker = 0;
            }
            Progress::End => {
                self.held.clear();
                self.at = At::Text(Text::new(self.form, true, self.form == Some(Form::Bare)));
            }
            Progress::Rest(rest) => {
                self.held.clear();
                self.at = At::Text(Text::new(self.form, true, self.form == Some(Form::Bare)));
                rest.chars().for_each(|c| self.push(c, parts));
            }
            Progress::Not => self.take_back(parts),
        }
    }

    /// What was held is content after all, but another call may begin in it.
    fn take_back(&mut self, parts: &mut Parts) {
        let held = std::mem::take(&mut self.held);
        let last = held.char_indices().next_back().map_or(0, |(at, _)| at);
        let certain = if held.len() - self.marker > LOOKED_THROUGH { last } else { self.marker };
        self.at = At::Text(Text::new(self.form, parts.calls() > self.before, false));
        parts.content(&held[..certain]);
        held[certain..].chars().for_each(|c| self.push(c, parts));
    }

    /// A character of a header.
    fn header(&mut self, form: Form, c: char, parts: &mut Parts) -> Progress {
        let At::Body(Body::Header(text, marker)) = &mut self.at else { return Progress::Not };
        text.push(c);
        if text.len() > LONGEST_HEADER {
            return Progress::Not;
        }
        let object = text.trim_start().starts_with(['{', '[']) && matches!(*marker, MISTRAL | TOOL_CALL);
        let header = match form {
            _ if object => {
                let mut envelope = Envelope::new(form);
                let progress = envelope.push(c, &self.tools, parts);
                self.at = At::Body(Body::Json(Box::new(envelope)));
                return progress;
            }
            Form::Section(section) => header::section(section, text, *marker == section.begin),
            Form::Mistral { .. } => header::mistral(text),
            Form::Xml => header::function(text, *marker == FUNCTION),
            Form::Json(_) | Form::Bare | Form::Python | Form::Harmony => Header::Not,
        };
        match header {
            Header::More => Progress::Held,
            Header::Not => Progress::Not,
            Header::Call { name, .. } if *marker == FUNCTION && self.tools.find(&name).is_none() => Progress::Not,
            Header::Call { name, id } => {
                self.at = At::Body(if form == Form::Xml {
                    Body::Parameters(Parameters::new(&name, self.tools.clone()))
                } else {
                    Body::Arguments(Arguments::new(form.broken_ends()))
                });
                parts.call(name, id);
                Progress::Taken
            }
        }
    }
}

impl Text {
    /// Text that follows a call, or not.
    fn new(form: Option<Form>, after_call: bool, bare: bool) -> Text {
        let begins = form.map(Form::begins).unwrap_or_default();
        let ends = form.filter(|_| after_call).map(Form::ends).unwrap_or_default();
        let watch = StopMatcher::new(&[&begins[..], &ends].concat());
        Text { watch, begins, ends, space: String::new(), skip: after_call, bare }
    }

    /// Takes a character. If a call may begin here: the text that would belong to it, and its marker; an object without
    /// one begins with this character.
    fn push(&mut self, c: char, parts: &mut Parts) -> Option<(String, Option<&'static str>)> {
        let matched = self.watch.push(c.encode_utf8(&mut [0; 4]));
        for c in matched.text.chars() {
            if c == '{' && self.bare {
                return Some((std::mem::take(&mut self.space), None));
            }
            self.let_through(c, parts);
        }
        let found = matched.stop?;
        let Some(marker) = self.begins.get(found) else {
            // The end of a call. Further ones may follow: that of the section.
            self.space.clear();
            self.skip = true;
            self.watch.restart();
            return None;
        };
        Some((std::mem::take(&mut self.space) + marker, Some(marker)))
    }

    fn let_through(&mut self, c: char, parts: &mut Parts) {
        let newline = matches!(c, '\n' | '\r');
        if newline && self.skip {
            return;
        }
        if (newline && !self.begins.is_empty()) || (self.bare && c.is_whitespace()) {
            self.space.push(c);
            return;
        }
        (self.skip, self.bare) = (false, false);
        parts.content(&std::mem::take(&mut self.space));
        parts.content(c.encode_utf8(&mut [0; 4]));
    }

    fn finish(&mut self, parts: &mut Parts) {
        let rest = self.watch.finish();
        parts.content(&std::mem::take(&mut self.space));
        // Directly after a call this is the start of its closing marker.
        if !(self.skip && self.ends.iter().any(|end| end.starts_with(&rest))) {
            parts.content(&rest);
        }
    }
}
