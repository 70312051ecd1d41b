//! Any body of a request, read as every API reads it as far as no model is needed: fields, tools, formats, the
//! conversation and its prompt. What is refused is the client's fault, said in one line.
#![no_main]

use kvas::{
    server::{
        ApiError, Fields, Settings, anthropic,
        conversation::Turn,
        ollama,
        openai::{chat, responses},
        options,
    },
    text::{ChatTemplate, Conversation, Dialect},
};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use std::sync::LazyLock;

const TEMPLATE: &str = include_str!("../../tests/clients/tools.jinja");

static READ: LazyLock<(ChatTemplate, Dialect)> =
    LazyLock::new(|| (ChatTemplate::new(TEMPLATE).expect("the template is right"), Dialect::of_template(TEMPLATE)));

/// What a client is told.
fn told<T>(result: Result<T, ApiError>) -> Option<T> {
    if let Err(error) = &result {
        assert!(error.status.is_client_error(), "{error:?}");
        assert!(!error.message.is_empty() && !error.message.contains('\n') && error.message.len() < 8000, "{error:?}");
    }
    result.ok()
}

fn settings() -> Settings {
    Settings {
        parallel: 1,
        queue: 1,
        slot_save_path: None,
        reasoning_budget: None,
        template_variables: Map::new(),
        body_limit: 1 << 20,
        timeout: None,
    }
}

fn render(turn: &Turn) {
    let (template, dialect) = &*READ;
    let Ok(messages) = dialect.messages(&turn.messages) else { return };
    let (messages, tools) = (Value::Array(messages), Value::Array(turn.tools.clone()));
    let conversation =
        Conversation { tools: Some(&tools), variables: turn.variables.clone(), ..Conversation::new(&messages) };
    let _ = template.render(&conversation);
}

fn responses(fields: &Fields<'_>, settings: &Settings) -> Result<Turn, ApiError> {
    responses::turn(fields, responses::messages(fields.need("input", "a text or a list of items")?)?, settings)
}

fuzz_target!(|data: &[u8]| {
    let Ok(body) = serde_json::from_slice::<Value>(data) else { return };
    let Some(fields) = told(Fields::of(&body)) else { return };
    let settings = settings();
    told(options::answers(&fields));
    told(options::stop_strings(&fields, "stop"));
    told(options::with_usage(&fields));
    told(options::grammar(&fields));
    let turns = [
        chat::turn(&fields, &settings),
        anthropic::turn(&fields, &settings),
        ollama::chat_turn(&fields, &settings),
        ollama::generate_turn(&fields, "Hi", &settings),
        responses(&fields, &settings),
    ];
    turns.into_iter().filter_map(told).for_each(|turn| render(&turn));
});
