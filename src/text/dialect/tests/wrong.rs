//! Answers that are not written as they should be: nothing is lost.

use super::*;

#[test]
fn what_is_no_call_is_content() {
    check(&[
        ("hermes", "", "<tool_call>\nnot json\n</tool_call>", "say(<tool_call>\nnot json\n</tool_call>)"),
        ("hermes", "", "Use\n<tool_call>{\"a\": 1}</tool_call>.", "say(Use\n<tool_call>{\"a\": 1}</tool_call>.)"),
        ("hermes", "", "<tool_call>{\"name\": 3, \"x", "say(<tool_call>{\"name\": 3, \"x)"),
        ("hermes", "", "<tool_call>{\"name\": \"\"}", "say(<tool_call>{\"name\": \"\"})"),
        ("hermes", "", "<tool_call><tool_call>{\"name\": \"now\"}</tool_call>", "say(<tool_call>) call(now)({})"),
        ("hermes", "", "a <tool_ca\n\n<tool", "say(a <tool_ca\n\n<tool)"),
        ("xml", "", "<tool_call>\n<tool_call>\n<function=now>\n</function>", "say(<tool_call>) call(now)({})"),
        ("xml", "", "C++: <function=x> y", "say(C++: <function=x> y)"),
        ("xml", "", "<tool_call>\n<func>", "say(<tool_call>\n<func>)"),
        ("llama", "", r#"{"name": "Ann", "age": 3}"#, r#"say({"name": "Ann", "age": 3})"#),
        (
            "llama",
            "",
            r#"{"title": {"name": "now", "parameters": {}}}"#,
            r#"say({"title": {"name": "now", "parameters": {}}})"#,
        ),
        ("llama", "", r#"{"name": "now"}"#, r#"say({"name": "now"})"#),
        ("llama", "", "<|python_tag|>print(1)", "say(<|python_tag|>print(1))"),
        ("mistral", "", "[TOOL_CALLS] none", "say([TOOL_CALLS] none)"),
        ("mistral-named", "", "[TOOL_CALLS]no name[ARGS]{}", "say([TOOL_CALLS]no name[ARGS]{})"),
        ("kimi", "", "<|tool_calls_section_begin|>x", "say(<|tool_calls_section_begin|>x)"),
        (
            "deepseek3",
            "",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\nx",
            "say(<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\nx)",
        ),
        (
            "lfm",
            "",
            "<|tool_call_start|>[now(x)]<|tool_call_end|>",
            "say(<|tool_call_start|>[now(x)]<|tool_call_end|>)",
        ),
        ("lfm", "", "<|tool_call_start|>[1+(2)]", "say(<|tool_call_start|>[1+(2)])"),
    ]);
}

#[test]
fn calls_survive_small_mistakes() {
    check(&[
        // A closing brace too few, no closing marker, text after the arguments, a word that is no JSON.
        (
            "hermes",
            "",
            "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1}\n</tool_call>\nx",
            "call(now)({\"a\": 1}) say(x)",
        ),
        (
            "hermes",
            "",
            "<tool_call>{\"name\": \"now\", \"arguments\": {}}\n<tool_call>{\"name\": \"now\", \"arguments\": {}}",
            "call(now)({}) call(now)({})",
        ),
        ("hermes", "", "<tool_call>{\"name\": \"now\", \"arguments\": {}}, so.", "call(now)({}) say(, so.)"),
        (
            "hermes",
            "",
            "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": oops}}</tool_call>",
            "call(now)({\"a\": oops})",
        ),
        // Arguments that are no JSON end at the marker.
        (
            "hermes",
            "",
            "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\" = [1)}}</tool_call> So.",
            "call(now)({\"a\" = [1)}}) say( So.)",
        ),
        (
            "kimi",
            "",
            "<|tool_call_begin|>now:0<|tool_call_argument_begin|>?!<|tool_call_end|>.",
            "call(now#now:0)(?!) say(.)",
        ),
        ("kimi", "", "<|tool_call_begin|>now:0<|tool_call_argument_begin|>?!<|tool", "call(now#now:0)(?!<|tool)"),
        ("mistral", "", r#"[TOOL_CALLS][{"name": "now", "arguments": {}}, oops]"#, "call(now)({}) say(oops])"),
        (
            "xml",
            "",
            "<tool_call><function=now>\n<parameter=a>1</parameter>\noops",
            "call(now)({\"a\": \"1\"}) say(oops)",
        ),
        ("xml", "", "<function=now>\n</tool_call>\n<function=now></function>", "call(now)({}) call(now)({})"),
        ("lfm", "", "<|tool_call_start|>[now(), 1]<|tool_call_end|>.", "call(now)({}) say(1].)"),
        ("harmony", "", "<|channel|>final<|message|>a<|end|><|end|>b", "say(ab)"),
    ]);
}

#[test]
fn long_text_that_is_no_call_comes_out_whole() {
    let long = "x".repeat(5000);
    for (name, begin) in [
        ("hermes", "<tool_call>{\"a\": \""),
        ("xml", "<tool_call><function="),
        ("kimi", "<|tool_call_begin|>"),
        ("mistral-named", "[TOOL_CALLS]"),
        ("harmony", "<|channel|>"),
        ("lfm", "<|tool_call_start|>["),
    ] {
        let text = format!("{begin}{long}");
        assert_eq!(read(name, "", &text), format!("say({text})"));
    }
    let nested = "[".repeat(100_000);
    let text = format!("<tool_call>{{\"name\": \"now\", \"arguments\": {{\"a\": {nested}");
    assert!(read("hermes", "", &text).contains("[[["));
    let text = format!("<|tool_call_start|>[now(a={nested}{})]", "]".repeat(100_000));
    assert_eq!(read("lfm", "", &text), format!("say({text})"), "and no stack is used up");
}

/// Reading takes as long as the text is, whatever it holds: 200 kB take some 30 ms each, and took 27 s where white space
/// was looked through again with every character.
#[test]
fn long_answers_take_no_time() {
    let start = std::time::Instant::now();
    for (name, begin, unit) in [
        ("hermes", "", "\n"),
        ("hermes", "<tool_call>", "\n"),
        ("hermes", "", "<tool_call>{\"k\":\"<tool_call>{\",\":\""),
        ("hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {", "<"),
        ("xml", "<tool_call>", "\n"),
        ("xml", "", "<tool_call>\n<function=aaaaaaaaaaaaaaaa"),
        ("xml", "<function=now>", "\n"),
        ("xml", "<function=now>\n<parameter=a>", "\n</parameter"),
        ("kimi", "<|tool_calls_section_begin|>", " "),
        ("kimi", "", "<|tool_call_begin|>aaaa"),
        ("deepseek3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now", "\n"),
        ("mistral-named", "", "[TOOL_CALLS]aaa"),
        ("mistral", "[TOOL_CALLS]", " "),
        ("llama", "", " "),
        ("lfm", "<|tool_call_start|>", " "),
        ("lfm", "", "<|tool_call_start|>[a("),
        ("harmony", "", "<|channel|>aaaaaa"),
        ("harmony", " to=functions.now<|message|>{}", "<|end|> "),
    ] {
        let text = format!("{begin}{}", unit.repeat(200_000 / unit.len()));
        assert!(read(name, "", &text).len() < 2 * text.len(), "{name} {begin:?} {unit:?}");
    }
    let took = start.elapsed();
    assert!(took < std::time::Duration::from_secs(10), "took {took:?}");
}
