//! API keys: who has none is refused in the form of the API, and nobody sees what is another's.

use super::host::Host;
use kvas::server::Keys;
use serde_json::{Value, json};

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

#[test]
fn a_key_is_needed_and_keeps_its_own() {
    let host = Host::start(2, |_, access| access.keys = Keys::new(&["one".into(), "two".into()]));
    let ask = json!({"messages": [{"role": "user", "content": "Tell me of a fox and of a hen."}], "max_tokens": 1});
    let ask = ask.to_string();
    for headers in [vec![], vec![("x-api-key", "three")], vec![("Authorization", "Bearer on")]] {
        for path in ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/models", "/nowhere"] {
            let reply = host.send("POST", path, &headers, &ask);
            assert_eq!(reply.status, 401, "{path}");
        }
        assert_eq!(host.send("GET", "/health", &headers, "").status, 200);
        assert_eq!(host.send("GET", "/", &headers, "").status, 200);
    }
    let kind = |path: &str, pointer: &str| host.send("POST", path, &[], &ask).json().pointer(pointer).cloned().unwrap();
    assert_eq!(kind("/v1/chat/completions", "/error/type"), "authentication_error");
    assert_eq!(kind("/v1/messages", "/error/type"), "authentication_error");
    assert_eq!(kind("/v1/messages", "/type"), "error");
    assert!(kind("/api/chat", "/error").is_string());
    let cached = |headers: &[(&str, &str)]| {
        let usage = host.send("POST", "/v1/messages", headers, &ask).ok()["usage"].clone();
        usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(&[("x-api-key", "one")]), 0);
    assert_eq!(cached(&[("x-api-key", "two")]), 0, "what was read for another key is not begun with");
    assert!(cached(&[("Authorization", &bearer("one"))]) > 10);
}

#[test]
fn responses_belong_to_their_key() {
    let host = Host::start(2, |_, access| access.keys = Keys::new(&["one".into(), "two".into()]));
    let body = json!({"input": "Hi.", "max_output_tokens": 1}).to_string();
    let made: Value = host.send("POST", "/v1/responses", &[("x-api-key", "one")], &body).ok();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    assert_eq!(host.send("GET", &path, &[("x-api-key", "two")], "").status, 404);
    assert_eq!(host.send("DELETE", &path, &[("x-api-key", "two")], "").status, 404);
    assert_eq!(host.send("GET", &path, &[("x-api-key", "one")], "").ok(), made);
}
