//! Any answer in any dialect: read without a panic, and the same however it is cut. The first byte chooses the dialect,
//! the second the length of the pieces.
#![no_main]

use kvas::text::{AnswerReader, Dialect, Part, ReasoningMode};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

/// What tells the dialects from each other in a template.
const SOURCES: [&str; 11] = [
    "tools <tool_call> </tool_call> <think>",
    "tools <tool_call> <function=f> <parameter=p> <think>",
    "tools <|tool_call|> <|/tool_call|>",
    "tools <|python_tag|>",
    "tools [TOOL_CALLS]",
    "tools [TOOL_CALLS] [ARGS] [THINK]",
    "tools <|tool_call_begin|>",
    "tools <｜tool▁call▁begin｜>",
    "tools <｜tool▁call▁begin｜> ```json",
    "tools <|tool_list_start|>",
    "tools <|channel|> <|message|>",
];

/// The parts of an answer, as one text per kind of part and call.
fn read(mut reader: AnswerReader, pieces: &[&str]) -> Vec<String> {
    let mut joined: Vec<(String, String)> = Vec::new();
    let pushed: Vec<Part> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
    for part in pushed.into_iter().chain(reader.finish()) {
        let (kind, text) = match part {
            Part::Reasoning(text) => ("reasoning".into(), text),
            Part::Content(text) => ("content".into(), text),
            Part::Call { index, id, name } => (format!("call {index} {id:?}"), name),
            Part::Arguments { index, text } => (format!("arguments {index}"), text),
        };
        match joined.last_mut() {
            Some((last, whole)) if *last == kind => whole.push_str(&text),
            _ => joined.push((kind, text)),
        }
    }
    joined.into_iter().map(|(kind, text)| format!("{kind}: {text}")).collect()
}

fuzz_target!(|data: &[u8]| {
    let [choice, length, answer @ ..] = data else { return };
    let dialect = Dialect::of_template(SOURCES[usize::from(*choice) % SOURCES.len()]);
    let tools = [json!({"function": {"name": "f", "parameters": {"properties": {"p": {"type": "integer"}}}}})];
    let text = String::from_utf8_lossy(answer);
    let prompt = if *length < 128 { "" } else { "<think>\n" };
    let reader = || dialect.reader(prompt, &tools, ReasoningMode::Split);
    let mut pieces = Vec::new();
    let mut rest: &str = &text;
    while !rest.is_empty() {
        let from = 1 + usize::from(*length) % 16;
        let at = (from..rest.len()).find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
        pieces.push(&rest[..at]);
        rest = &rest[at..];
    }
    assert_eq!(read(reader(), &pieces), read(reader(), &[&*text]));
});
