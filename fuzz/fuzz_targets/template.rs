//! Any chat template over a small conversation: renders or is refused, quickly and in little memory.
#![no_main]

use kvas::text::{ChatTemplate, Conversation};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|data: &[u8]| {
    let source = String::from_utf8_lossy(data);
    let Ok(template) = ChatTemplate::new(&source) else { return };
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello <|im_end|>"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, null]}}}]},
        {"role": "tool", "content": "1"},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let conversation = Conversation { tools: Some(&tools), ..Conversation::new(&messages) };
    if let Ok(text) = template.render(&conversation) {
        assert!(text.len() < 64 << 20, "a prompt of {} bytes", text.len());
    }
});
