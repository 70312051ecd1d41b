//! Answers as models write them, and what is read from them.

mod cuts;
mod forms;
mod messages;
mod templates;
mod wrong;

use super::*;
use serde_json::json;

/// Sources with what tells a template's dialect, and no more.
pub(super) fn source(name: &str) -> &'static str {
    match name {
        "hermes" => r#"tools <tool_call>\n{\"name\": <function-name>, \"arguments\": <args>}\n</tool_call> </think>"#,
        "hermes-first" => r#"tools <tool_call> {"arguments": <args-dict>, "name": <function-name>} </tool_call>"#,
        "xml" => "tools <tool_call>\n<function=example>\n<parameter=one>\n</tool_call> <think>",
        "granite3" => "tools <|tool_call|>",
        "phi" => "tools <|tool_call|> <|/tool_call|>",
        "nemotron2" => "tools <TOOLCALL>[]</TOOLCALL> <think>",
        "llama" => r#"tools {"name": function name, "parameters": dictionary} <|python_tag|>"#,
        "mistral" => r#"tools [TOOL_CALLS][ tool_call.id|length != 9 function|tojson"#,
        "mistral-named" => "tools [TOOL_CALLS] [ARGS] [THINK] tool_call.function.arguments + ''",
        "kimi" => "tools <|tool_calls_section_begin|><|tool_call_begin|> ['arguments'] | tojson",
        "deepseek" => "tools <｜tool▁calls▁begin｜><｜tool▁call▁begin｜> </think> ['arguments'] + ''",
        "deepseek-none" => "tool_calls <｜tool▁call▁begin｜> ```json message['content'] is none",
        "deepseek3" => "tools <｜tool▁calls▁begin｜><｜tool▁call▁begin｜> '\\n```json\\n' + ['arguments'] + ''",
        "lfm" => "tools <|tool_list_start|>",
        "harmony" => "tools <|channel|>analysis<|message|>",
        "plain" => "{{ messages }}",
        _ => panic!("no source {name}"),
    }
}

pub(super) const NAMES: [&str; 15] = [
    "hermes",
    "hermes-first",
    "xml",
    "granite3",
    "phi",
    "nemotron2",
    "llama",
    "mistral",
    "mistral-named",
    "kimi",
    "deepseek",
    "deepseek3",
    "lfm",
    "harmony",
    "plain",
];

pub(super) fn dialect(name: &str) -> Dialect {
    Dialect::of_template(source(name))
}

pub(super) fn tools() -> Vec<Value> {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "description": "Of use.", "parameters": parameters}});
    let weather = json!({"type": "object", "properties": {"city": {"type": "string", "description": "A city."}, "days": {"type": "integer", "description": "Days ahead."}}});
    let endless = vec![json!({"$ref": "#/$defs/Endless"}); 20];
    let kinds = json!({
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "flag": {"type": "boolean"},
            "list": {"type": "array"},
            "map": {"type": "object"},
            "maybe": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "point": {"$ref": "#/$defs/Point"},
            "pick": {"enum": ["a", 1]},
            "endless": {"$ref": "#/$defs/Endless"},
        },
        "$defs": {"Point": {"type": "object"}, "Endless": {"anyOf": endless}},
    });
    vec![tool("get_weather", weather), tool("kinds", kinds), json!({"name": "now"})]
}

/// An answer, pushed in these pieces.
pub(super) fn read_pieces(reader: &mut AnswerReader, pieces: &[&str]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for piece in pieces {
        reader.push(piece).into_iter().for_each(|part| join(&mut parts, part));
    }
    reader.finish().into_iter().for_each(|part| join(&mut parts, part));
    parts
}

fn join(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (Some(Part::Reasoning(text)), Part::Reasoning(piece)) => text.push_str(&piece),
        (Some(Part::Content(text)), Part::Content(piece)) => text.push_str(&piece),
        (Some(Part::Arguments { index, text }), Part::Arguments { index: same, text: piece }) if *index == same => {
            text.push_str(&piece);
        }
        (_, part) => parts.push(part),
    }
}

/// Parts in one line: `think(…) say(…) call(name#id)(arguments)`.
pub(super) fn line(parts: &[Part]) -> String {
    let mut calls = 0;
    let one = |part: &Part| match part {
        Part::Reasoning(text) => format!(" think({text})"),
        Part::Content(text) => format!(" say({text})"),
        Part::Call { index, id, name } => {
            assert_eq!(*index, calls, "calls are counted");
            calls += 1;
            let id = id.as_ref().map(|id| format!("#{id}")).unwrap_or_default();
            format!(" call({name}{id})")
        }
        Part::Arguments { index, text } => {
            assert_eq!(*index + 1, calls, "arguments follow their call");
            format!("({text})")
        }
    };
    parts.iter().map(one).collect::<String>().trim_start_matches(' ').into()
}

/// What is read from an answer of the dialect `name`, in one line.
pub(super) fn read(name: &str, prompt: &str, text: &str) -> String {
    let mut reader = dialect(name).reader(prompt, &tools(), ReasoningMode::Split);
    line(&read_pieces(&mut reader, &[text]))
}

/// An answer, the dialect and the prompt it belongs to, and what is to be read from it.
pub(super) type Case = (&'static str, &'static str, &'static str, &'static str);

#[track_caller]
pub(super) fn check(cases: &[Case]) {
    let mut wrong = String::new();
    for (name, prompt, text, expected) in cases {
        let found = read(name, prompt, text);
        if found != *expected {
            wrong += &format!("{name}: {text:?}\n  read {found:?}\n  not  {expected:?}\n");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
