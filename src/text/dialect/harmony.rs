//! Messages in channels: `<|channel|>analysis<|message|>…<|end|>` is reasoning, the channel `final` the answer, and a
//! message to `functions.name` a call. gpt-oss.

use super::{
    ReasoningMode,
    arguments::{Arguments, Taken},
    header::is_name,
    parts::Parts,
    schema::Tools,
};
use crate::text::StopMatcher;
use std::sync::Arc;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
const END: &str = "<|end|>";
const RETURN: &str = "<|return|>";
pub(super) const CALL_END: &str = "<|call|>";
pub(super) const MARKERS: [&str; 7] = [START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL_END];
/// The prompt, and the end of reasoning, leave off where the header of the next message begins.
pub(super) const REASONING_END: &str = "<|end|><|start|>assistant";
pub(super) const CALL_START: &str = "<|channel|>commentary to=functions.";
/// Texts after which a message is over.
const ENDS: [&str; 5] = [END, RETURN, CALL_END, START, CHANNEL];
/// What stands before a tool's name.
const FUNCTIONS: &str = "functions.";
/// Headers are shorter, in bytes.
const LONGEST: usize = 512;

/// Reads an answer of such messages.
#[derive(Debug, Clone)]
pub(super) struct Harmony {
    tools: Arc<Tools>,
    mode: ReasoningMode,
    at: At,
}

#[derive(Debug, Clone)]
enum At {
    /// The text since the last message.
    Header(String),
    Body(Body, StopMatcher),
    Call(Arguments),
    /// After the arguments of a call, up to the marker that ends it.
    CallEnd(StopMatcher),
}

/// What the text of a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Reasoning,
    Content,
    /// Content with its markers.
    Raw,
}

/// What a header says.
enum Header {
    Text(Body),
    Call(String),
}

impl Harmony {
    pub(super) fn new(prompt: &str, tools: Arc<Tools>, mode: ReasoningMode) -> Harmony {
        let mut harmony = Harmony { tools, mode, at: At::Header(String::new()) };
        // The prompt may go as far as into a message.
        let header = prompt.rsplit_once(START).map(|(_, header)| header);
        if let Some((header, _)) = header.and_then(|header| header.split_once(MESSAGE))
            && let Header::Text(body) = read_header(header, &harmony.tools, mode)
        {
            harmony.at = body_of(body);
        }
        harmony
    }

    pub(super) fn push(&mut self, c: char, parts: &mut Parts) {
        match &mut self.at {
            At::Header(held) => {
                held.push(c);
                self.header_so_far(parts);
            }
            At::Body(body, watch) => {
                let body = *body;
                let matched = watch.push(c.encode_utf8(&mut [0; 4]));
                body.put(&matched.text, parts);
                if let Some(end) = matched.stop {
                    self.end(ENDS[end], body, parts);
                }
            }
            At::Call(arguments) => match arguments.push(c, parts) {
                Taken::Inside => {}
                Taken::Last => self.at = At::CallEnd(StopMatcher::new(&ENDS)),
                Taken::Marker => self.at = At::Header(String::new()),
                Taken::After => {
                    self.at = At::CallEnd(StopMatcher::new(&ENDS));
                    self.push(c, parts);
                }
            },
            At::CallEnd(watch) => {
                let matched = watch.push(c.encode_utf8(&mut [0; 4]));
                if !matched.text.trim().is_empty() {
                    parts.content(&matched.text);
                }
                if let Some(end) = matched.stop {
                    self.end(ENDS[end], Body::Content, parts);
                }
            }
        }
    }

    /// Ends the answer. A header that names nobody says nothing.
    pub(super) fn finish(&mut self, parts: &mut Parts) {
        match std::mem::replace(&mut self.at, At::Header(String::new())) {
            At::Header(held) if held.contains("to=") => parts.content(&held),
            At::Header(_) => {}
            At::Body(body, mut watch) => body.put(&watch.finish(), parts),
            At::Call(mut arguments) => arguments.finish(parts),
            At::CallEnd(mut watch) => {
                let rest = watch.finish();
                if !ENDS.iter().any(|end| end.starts_with(&rest)) {
                    parts.content(&rest);
                }
            }
        }
    }

    /// Decides on the header if that can be done.
    fn header_so_far(&mut self, parts: &mut Parts) {
        let At::Header(held) = &mut self.at else { return };
        if [END, RETURN, CALL_END].contains(&held.as_str()) {
            held.clear();
            return;
        }
        let begins = |start: &str| start.starts_with(held.as_str()) || held.starts_with(start);
        if !(ENDS.into_iter().chain([" to="]).any(begins) && held.len() <= LONGEST) {
            let text = std::mem::take(held);
            self.at = body_of(Body::Content);
            // The last character may begin a marker.
            let (last, c) = text.char_indices().next_back().expect("a character was just taken");
            parts.content(&text[..last]);
            self.push(c, parts);
            return;
        }
        let Some(header) = held.strip_suffix(MESSAGE) else { return };
        match read_header(header, &self.tools, self.mode) {
            Header::Call(name) => {
                parts.call(name, None);
                self.at = At::Call(Arguments::new(vec![CALL_END, END, RETURN]));
            }
            Header::Text(body) => {
                if body == Body::Raw {
                    parts.content(held);
                }
                self.at = body_of(body);
            }
        }
    }

    /// A message ended.
    fn end(&mut self, marker: &str, body: Body, parts: &mut Parts) {
        let begins_next = marker == START || marker == CHANNEL;
        if body == Body::Raw && !begins_next {
            parts.content(marker);
        }
        self.at = At::Header(if begins_next { marker.into() } else { String::new() });
    }
}

impl Body {
    fn put(self, text: &str, parts: &mut Parts) {
        match self {
            Body::Reasoning => parts.reasoning(text),
            Body::Content | Body::Raw => parts.content(text),
        }
    }
}

fn body_of(body: Body) -> At {
    At::Body(body, StopMatcher::new(&ENDS))
}

/// What `header`, the text before `<|message|>`, says.
fn read_header(header: &str, tools: &Tools, mode: ReasoningMode) -> Header {
    let word = |text: &str| -> String { text.chars().take_while(|&c| !c.is_whitespace() && c != '<').collect() };
    let channel = header.split_once(CHANNEL).map(|(_, rest)| word(rest.trim_start())).unwrap_or_default();
    let recipient = header.split_once("to=").map(|(_, rest)| word(rest)).unwrap_or_default();
    let offered = tools.find(&recipient).map(|tool| tool.name.clone());
    match offered.or_else(|| recipient.strip_prefix(FUNCTIONS).map(str::to_owned)) {
        Some(name) if !tools.is_empty() && is_name(&name) => Header::Call(name),
        Some(_) => Header::Text(Body::Raw),
        None if channel == "analysis" && mode == ReasoningMode::Split => Header::Text(Body::Reasoning),
        None if channel == "analysis" => Header::Text(Body::Raw),
        None => Header::Text(Body::Content),
    }
}
