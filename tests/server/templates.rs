//! Real chat templates render through `/apply-template` as Python's Jinja renders them.

use super::host::Host;
use kvas::text::ChatTemplate;
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// Cases that templates take in ways of their own, or refuse, and that are prepared for them here: every model is given
/// plain texts, roles it knows, and arguments in the form it wants.
const PREPARED: &[&str] = &["content_parts", "developer_role", "tool_roundtrip_str"];

/// Cases whose calls the template drops, so that the model would not know what it has called: they are written into the
/// content, as the model itself writes them.
const DROPPED: &[&str] =
    &["LFM2-8B-A1B.jinja: parallel_tools", "LFM2-8B-A1B.jinja: tool_done", "LFM2-8B-A1B.jinja: tool_roundtrip_obj"];

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
    let (mut compared, mut prepared, mut others) = (0, 0, Vec::new());
    for entry in fs::read_dir(folder.join("golden")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_string();
        let Some(name) = file.strip_prefix("llama.cpp__").and_then(|name| name.strip_suffix(".json")) else { continue };
        let template = ChatTemplate::new(&fs::read_to_string(folder.join(name)).unwrap()).unwrap();
        let (host, golden) = (Host::with_template(template), json_of(path));
        for case in cases.as_array().unwrap() {
            let case_name = case["name"].as_str().unwrap();
            let golden = &golden[case_name];
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
            assert!(reply.status == 200 || reply.status == 400, "{name}: {case_name}: {}", reply.text());
            if PREPARED.contains(&case_name) {
                // Nothing that a template takes as it is gets lost.
                let is_lost = golden["ok"] == true && reply.status != 200;
                assert!(!is_lost, "{name}: {case_name}: {}", reply.text());
                prepared += usize::from(reply.status == 200);
            } else if golden["ok"] == true && case["messages"] != json!([]) {
                let expected = with_todays_date(golden["text"].as_str().unwrap(), &jiff::Zoned::now(), &golden_day);
                if reply.ok()["prompt"] != expected {
                    others.push(format!("{name}: {case_name}"));
                }
                compared += 1;
            } else {
                assert_eq!(reply.status, 400, "{name}: {case_name}: {}", reply.text());
                compared += 1;
            }
        }
    }
    others.sort();
    assert_eq!(others, DROPPED);
    assert_eq!(compared, 13 * (16 - PREPARED.len()));
    assert!(prepared > 12 * PREPARED.len() - 12, "{prepared} of the others render");
}
