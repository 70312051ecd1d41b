//! Real chat templates render through `/apply-template` as Python's Jinja renders them.

use super::host::Host;
use kvas::text::ChatTemplate;
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// Cases that templates refuse or garble, each in its own way, and that are put into the form all of them take: plain
/// texts, roles they know, arguments as objects. They have to read as another case does, with other texts. (Granite's
/// template, which takes parts, would break the line between two of them.)
const PREPARED: [Prepared; 3] = [
    Prepared { case: "content_parts", of: "user", text: Some((QUESTION, "Part one. Part two.")) },
    Prepared { case: "developer_role", of: "system_user", text: Some(("You are a terse assistant.", "Be brief.")) },
    Prepared { case: "tool_roundtrip_str", of: "tool_roundtrip_obj", text: None },
];

/// Templates that go through the parts of a content: these are one behind the other, and on lines of their own for others.
const GOES_THROUGH_PARTS: [&str; 3] = ["ibm-granite-granite-4.0.jinja", "moonshotai-Kimi-K2.jinja", "Qwen3.5-4B.jinja"];

struct Prepared {
    case: &'static str,
    of: &'static str,
    /// A text of the other case, and what stands there in this one.
    text: Option<(&'static str, &'static str)>,
}

const QUESTION: &str = "Hello, what's 2+2? <b>&amp;</b>";

/// Cases whose calls the template drops, so that the model would not know what it has called: they are written into the
/// content, as the model itself writes them.
const OTHERWISE: &[&str] = &[
    "LFM2-8B-A1B.jinja: parallel_tools",
    "LFM2-8B-A1B.jinja: tool_done",
    "LFM2-8B-A1B.jinja: tool_roundtrip_obj",
    "LFM2-8B-A1B.jinja: tool_roundtrip_str",
];

fn folder() -> Option<PathBuf> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared");
    let folder = PathBuf::from(std::env::var("KVAS_SHARED").unwrap_or(default.into())).join("data/templates");
    if !folder.exists() {
        eprintln!("skipped: no {}", folder.display());
        return None;
    }
    Some(folder)
}

fn json_of(path: PathBuf) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// What a case has to read as; none if it has to be refused.
fn expected(golden: &Value, case: &str) -> Option<String> {
    let prepared = PREPARED.iter().find(|prepared| prepared.case == case);
    let of = prepared.map_or(case, |prepared| prepared.of);
    let text = (golden[of]["ok"] == true).then(|| golden[of]["text"].as_str().unwrap())?;
    let Some((from, to)) = prepared.and_then(|prepared| prepared.text) else { return Some(text.into()) };
    assert_eq!(text.matches(from).count(), 1, "{case}: {text}");
    Some(text.replace(from, to))
}

/// The day the expected texts were rendered on, in the forms templates write it, is today.
fn with_todays_date(text: &str, today: &jiff::Zoned, golden: &jiff::Zoned) -> String {
    ["%d %b %Y", "%Y-%m-%d"].iter().fold(text.to_string(), |text, format| {
        text.replace(&golden.strftime(format).to_string(), &today.strftime(format).to_string())
    })
}

#[test]
fn templates_render_as_in_python() {
    let Some(folder) = folder() else { return };
    let cases = json_of(folder.join("golden/CASES.json"));
    let golden_day: jiff::Zoned = "2026-01-15T12:00:00+00:00[UTC]".parse().unwrap();
    let (mut compared, mut others) = (0, Vec::new());
    for entry in fs::read_dir(folder.join("golden")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_string();
        let Some(name) = file.strip_prefix("llama.cpp__").and_then(|name| name.strip_suffix(".json")) else { continue };
        let template = ChatTemplate::new(&fs::read_to_string(folder.join(name)).unwrap()).unwrap();
        let (host, golden) = (Host::with_template(template), json_of(path));
        for case in cases.as_array().unwrap() {
            let case_name = case["name"].as_str().unwrap();
            let mut variables = case["kwargs"].clone();
            (variables["bos_token"], variables["eos_token"]) = (json!("<s>"), json!("</s>"));
            let generation = variables.as_object_mut().unwrap().remove("add_generation_prompt");
            let reply = host.post(
                "/apply-template",
                &json!({
                    "messages": case["messages"],
                    "tools": case["tools"],
                    "chat_template_kwargs": variables,
                    "add_generation_prompt": generation,
                }),
            );
            // A conversation of no messages is nobody's, whatever a template makes of it.
            let expected = expected(&golden, case_name).filter(|_| case["messages"] != json!([]));
            let between = if GOES_THROUGH_PARTS.contains(&name) { "one. Part" } else { "one.\n Part" };
            let expected = expected.map(|text| text.replace("one. Part", between));
            match expected.map(|text| with_todays_date(&text, &jiff::Zoned::now(), &golden_day)) {
                Some(expected) if reply.ok()["prompt"] != expected => others.push(format!("{name}: {case_name}")),
                Some(_) => {}
                None => assert_eq!(reply.status, 400, "{name}: {case_name}: {}", reply.text()),
            }
            compared += 1;
        }
    }
    others.sort();
    assert_eq!(others, OTHERWISE);
    assert_eq!(compared, 13 * 16);
}

/// As some published templates do.
const TAKES_TOOLS_FOR_WHOLE: &str = "{% for tool in tools %}{{ tool.function.name + ': ' + tool.function.description }}\
    {% for name, value in tool.function.parameters.properties|items %}{{ ' ' + name }}{% endfor %}{% endfor %}";

/// As vLLM's clients send them, for templates that know what to do with them.
#[test]
fn documents_reach_the_template() {
    let template = "{% for document in documents or [] %}{{ document.title + ': ' + document.text + '\n' }}{% endfor %}\
        {{ messages[0].content }}";
    let host = Host::with_template(ChatTemplate::new(template).unwrap());
    let messages = json!([{"role": "user", "content": "Who ran?"}]);
    let documents = json!([{"title": "Fox", "text": "It ran."}, {"title": "Hen", "text": "It slept."}]);
    let render = |documents: &Value| {
        let body = json!({"messages": messages, "documents": documents});
        host.post("/apply-template", &body).ok()["prompt"].clone()
    };
    assert_eq!(render(&documents), "Fox: It ran.\nHen: It slept.\nWho ran?");
    assert_eq!(render(&json!(null)), "Who ran?");
    let wrong = json!({"messages": messages, "documents": "Fox"});
    assert_eq!(host.post("/v1/chat/completions", &wrong).json()["error"]["param"], "documents");
}

#[test]
fn what_a_tool_leaves_out_is_filled_in_where_a_template_needs_it() {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let render = |host: &Host, function: &Value| {
        let tools = json!([{"type": "function", "function": function}]);
        host.post("/apply-template", &json!({"messages": messages, "tools": tools})).ok()["prompt"].clone()
    };
    let host = Host::with_template(ChatTemplate::new(TAKES_TOOLS_FOR_WHOLE).unwrap());
    let parameters = json!({"type": "object", "properties": {"zone": {"type": "string"}}});
    for (function, expected) in [
        (json!({"name": "clock"}), "clock: "),
        (json!({"name": "clock", "description": null, "parameters": null}), "clock: "),
        (json!({"name": "clock", "description": "Tells.", "parameters": {}}), "clock: Tells."),
        (json!({"name": "clock", "parameters": parameters}), "clock:  zone"),
    ] {
        assert_eq!(render(&host, &function), expected, "{function}");
    }
    // Where nothing is needed, nothing is.
    let host = Host::with_template(ChatTemplate::new("{{ tools[0].function|tojson }}").unwrap());
    assert_eq!(render(&host, &json!({"name": "clock"})), "{\"name\": \"clock\"}");
}
