//! Several prompts of one request: what becomes of the others when one cannot be read.

use super::host::Host;
use serde_json::json;

/// What is wrong with one of several prompts is said before any is read.
#[test]
fn a_prompt_that_is_too_long_is_refused_before_others_are_answered() {
    let host = Host::start(1, |_, _| {});
    let long = "fox ".repeat(3000);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": ["The fox", long], "max_tokens": 8})),
        ("/completion", json!({"prompt": ["The fox", long], "n_predict": 8})),
        ("/v1/embeddings", json!({"input": ["The fox", long]})),
    ] {
        let reply = host.post(path, &body);
        assert_eq!(reply.status, 400, "{path}: {}", reply.text());
        let metrics = host.get("/metrics").text();
        let read = metrics.lines().find(|line| line.starts_with("kvas_tokens_read_total")).unwrap();
        assert!(read.ends_with(" 0"), "{path}: {read}");
    }
}
