//! Every form as its model writes it.

use super::*;

const NO: &str = "";
/// A prompt that ends within reasoning.
const OPEN: &str = "<|im_start|>assistant\n<think>\n";

/// All samples that are written rightly; the tests that cut them use them too.
pub(super) fn all() -> Vec<Case> {
    [JSON, XML, LISTS, SECTIONS, PYTHON, HARMONY, REASONING].concat()
}

const JSON: &[Case] = &[
    ("hermes", NO, "Hello.\n\nBye.\n", "say(Hello.\n\nBye.\n)"),
    (
        "hermes",
        NO,
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}\n</tool_call>",
        r#"call(get_weather)({"city": "Zürich", "days": 2})"#,
    ),
    (
        "hermes",
        NO,
        "Let me look.\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n\
         {\"name\": \"now\", \"arguments\": {\"a\": [1, {\"b\": null}]}}\n</tool_call>\nDone.",
        r#"say(Let me look.) call(get_weather)({}) call(now)({"a": [1, {"b": null}]}) say(Done.)"#,
    ),
    (
        "hermes",
        NO,
        r#"<tool_call>{"name":"now","arguments":{"x":"}]</tool_call> \"{<tool_call>\\","🦙":"\u00e9\n"}}</tool_call>"#,
        r#"call(now)({"x":"}]</tool_call> \"{<tool_call>\\","🦙":"\u00e9\n"})"#,
    ),
    // No arguments, arguments as text, before the name, and another word for them.
    ("hermes", NO, r#"<tool_call>{"name": "now"}</tool_call>"#, "call(now)({})"),
    ("hermes", NO, r#"<tool_call>{"name": "now", "arguments": null}</tool_call>"#, "call(now)({})"),
    ("hermes", NO, r#"<tool_call>{"name": "now", "arguments": "{\"a\": 1}"}</tool_call>"#, r#"call(now)({"a": 1})"#),
    (
        "hermes-first",
        NO,
        r#"<tool_call>{"arguments": {"a": 1}, "name": "now", "more": [2]}</tool_call>"#,
        r#"call(now)({"a": 1})"#,
    ),
    (
        "hermes",
        NO,
        r#"<tool_call>{"name": "now", "parameters": {"a": 1}, "more": 2}</tool_call>"#,
        r#"call(now)({"a": 1})"#,
    ),
    // A tool that was not offered is called all the same, and names are not looked into.
    ("hermes", NO, r#"<tool_call>{"name": "höhe-2.x", "arguments": {}}</tool_call>"#, "call(höhe-2.x)({})"),
    // Llama: the whole answer, marked or not.
    (
        "llama",
        NO,
        r#"{"name": "get_weather", "parameters": {"city": "Rome }"}}"#,
        r#"call(get_weather)({"city": "Rome }"})"#,
    ),
    ("llama", NO, "\n {\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}\n", "call(now)({})"),
    ("llama", NO, r#"<|python_tag|>{"name": "now", "parameters": {}}"#, "call(now)({})"),
    (
        "llama",
        NO,
        "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"get_weather\", \"parameters\": {\"days\": 1}}",
        r#"call(now)({}) call(get_weather)({"days": 1})"#,
    ),
    ("llama", NO, "Let me see: {\"name\": \"now\"}", "say(Let me see: {\"name\": \"now\"})"),
];

const XML: &[Case] = &[
    (
        "xml",
        NO,
        "Checking.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n\
         </parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n",
        r#"say(Checking.) call(get_weather)({"city": "Rome", "days": 2}) call(now)({})"#,
    ),
    (
        "xml",
        NO,
        "<tool_call>\n<function=kinds>\n<parameter=text>\n\n 7 \"x\"\\ </tool_call> {é\t\n\n</parameter>\n<parameter=unknown>\ntrue\n\
         </parameter>\n</function>\n</tool_call>",
        r#"call(kinds)({"text": "\n 7 \"x\"\\ </tool_call> {é\t\n", "unknown": "true"})"#,
    ),
    (
        "xml",
        NO,
        "<tool_call><function=kinds><parameter=count>7</parameter><parameter=ratio>\n1.5e3\n</parameter><parameter=flag>True\
         </parameter><parameter=list>\n[1, {\"a\": \"</b>\"}]\n</parameter><parameter=map>{\"a\":null}</parameter></function></tool_call>",
        r#"call(kinds)({"count": 7, "ratio": 1.5e3, "flag": true, "list": [1, {"a": "</b>"}], "map": {"a":null}})"#,
    ),
    (
        "xml",
        NO,
        "<tool_call><function=kinds><parameter=maybe>null</parameter><parameter=either>12</parameter><parameter=point>{}\
         </parameter><parameter=pick>1</parameter><parameter=endless>1</parameter></function></tool_call>",
        r#"call(kinds)({"maybe": null, "either": 12, "point": {}, "pick": 1, "endless": "1"})"#,
    ),
    // What the schema does not allow is a string.
    (
        "xml",
        NO,
        "<tool_call><function=kinds><parameter=count>two</parameter><parameter=flag>1</parameter><parameter=list>[1\
         </parameter><parameter=either>1 or 2</parameter><parameter=pick>b</parameter></function></tool_call>",
        r#"call(kinds)({"count": "two", "flag": "1", "list": "[1", "either": "1 or 2", "pick": "b"})"#,
    ),
    // Models leave the outer marker out, or fall back to JSON.
    (
        "xml",
        NO,
        "Well.\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        r#"say(Well.) call(get_weather)({"city": "Rome"})"#,
    ),
    ("xml", NO, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", "call(now)({})"),
];

const LISTS: &[Case] = &[
    (
        "granite3",
        NO,
        "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"]\"}}]",
        r#"call(now)({}) call(get_weather)({"city": "]"})"#,
    ),
    ("phi", NO, "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]<|/tool_call|>", "call(now)({})"),
    (
        "nemotron2",
        OPEN,
        "Hm.\n</think>\n\n<TOOLCALL>[{\"name\": \"now\", \"arguments\": {\"a\": 1}}]</TOOLCALL>",
        r#"think(Hm.) call(now)({"a": 1})"#,
    ),
    // The id comes last and is told first.
    (
        "mistral",
        NO,
        r#"[TOOL_CALLS][{"name": "now", "arguments": {"a": "[TOOL_CALLS]"}, "id": "abcDEF123"}, {"name": "now", "arguments": {}}]"#,
        r#"call(now#abcDEF123)({"a": "[TOOL_CALLS]"}) call(now)({})"#,
    ),
    (
        "mistral",
        NO,
        r#"Ok.[TOOL_CALLS] [{"id": "1", "name": "now", "arguments": {"a": 1}}]"#,
        r#"say(Ok.) call(now#1)({"a": 1})"#,
    ),
    ("mistral-named", NO, r#"[TOOL_CALLS]now[ARGS]{"a": {"b": "}"}}"#, r#"call(now)({"a": {"b": "}"}})"#),
    (
        "mistral-named",
        NO,
        r#"[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"days": 1}"#,
        r#"call(now#123456789)({}) call(get_weather)({"days": 1})"#,
    ),
    ("mistral-named", NO, r#"[THINK]Hm.[/THINK]Yes."#, "think(Hm.) say(Yes.)"),
];

const SECTIONS: &[Case] = &[
    (
        "kimi",
        NO,
        "Looking.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \
         \"<|tool_call_end|>\"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>\
         <|tool_calls_section_end|>",
        r#"say(Looking.) call(get_weather#functions.get_weather:0)({"city": "<|tool_call_end|>"}) call(now#functions.now:1)({})"#,
    ),
    (
        "kimi",
        NO,
        "<|tool_calls_section_begin|>\n<|tool_call_begin|> now <|tool_call_argument_begin|> <|tool_call_end|>\n<|tool_calls_section_end|>",
        "call(now#now)({})",
    ),
    (
        "deepseek",
        NO,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Zürich\"}<｜tool▁call▁end｜>\
         <｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        r#"call(get_weather)({"city": "Zürich"}) call(now)({})"#,
    ),
    (
        "deepseek3",
        NO,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{\"a\": \"```\"}\n```<｜tool▁call▁end｜>\n\
         <｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        r#"call(now)({"a": "```"}) call(get_weather)({})"#,
    ),
];

const PYTHON: &[Case] = &[
    (
        "lfm",
        NO,
        "<|tool_call_start|>[get_weather(city=\"Zürich\", days=3)]<|tool_call_end|>Looking.",
        r#"call(get_weather)({"city":"Zürich","days":3}) say(Looking.)"#,
    ),
    (
        "lfm",
        NO,
        "<|tool_call_start|>[now(), kinds(flag=True, maybe=None, list=[1, -2.5, (3,), ('x')], map={'a': {1: []}, \"b\": false,}, ),]\
         <|tool_call_end|>",
        r#"call(now)({}) call(kinds)({"flag":true,"maybe":null,"list":[1,-2.5,[3],"x"],"map":{"a":{"1":[]},"b":false}})"#,
    ),
    (
        "lfm",
        NO,
        r#"<|tool_call_start|>[now(a=')]"<|tool_call_end|>', b="\"\n\x41\u00e9\ud83e\udd99\q", c=1_000)]<|tool_call_end|>"#,
        r#"call(now)({"a":")]\"<|tool_call_end|>","b":"\"\nAé🦙\\q","c":1000})"#,
    ),
    // Positions are named by the schema.
    (
        "lfm",
        NO,
        r#"<|tool_call_start|>[get_weather("Rome", 2)]<|tool_call_end|>"#,
        r#"call(get_weather)({"city":"Rome","days":2})"#,
    ),
];

const HARMONY: &[Case] = &[
    (
        "harmony",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Easy:\n2+2.\n<|end|><|start|>assistant<|channel|>final<|message|>It is\n4.<|return|>",
        "think(Easy:\n2+2.\n) say(It is\n4.)",
    ),
    (
        "harmony",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather \
         <|constrain|>json<|message|>{\"city\": \"<|call|>\"}<|call|>",
        r#"think(Hm.) call(get_weather)({"city": "<|call|>"})"#,
    ),
    (
        "harmony",
        "<|start|>assistant",
        " to=functions.now<|channel|>commentary json<|message|>{}<|call|><|start|>assistant<|channel|>commentary<|message|>And:<|end|>\
         <|start|>assistant to=functions.now<|channel|>commentary<|message|>{\"a\":1}",
        r#"call(now)({}) say(And:) call(now)({"a":1})"#,
    ),
    ("harmony", "<|start|>assistant<|channel|>final<|message|>", "Yes.", "say(Yes.)"),
    ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", "Hm.<|end|>", "think(Hm.)"),
    ("harmony", "<|start|>assistant", "Yes <b> <|no|>.", "say(Yes <b> <|no|>.)"),
    ("harmony", "<|start|>assistant", "<|channel|>analysis to=python code<|message|>1+1<|call|>", "think(1+1)"),
];

const REASONING: &[Case] = &[
    ("hermes", NO, "<think>\nHm.\n\nYes.\n</think>\n\nHello.", "think(Hm.\n\nYes.) say(Hello.)"),
    ("hermes", NO, "\n<think>Hm.</think>  x", "think(Hm.) say(  x)"),
    ("hermes", NO, "<think>\n\n</think>\n\nHello.", "say(Hello.)"),
    ("hermes", OPEN, "Hm </th>\n</think>\n\nHello\n", "think(Hm </th>) say(Hello\n)"),
    ("hermes", "<think>\n\n</think>\n\n", "\nHello", "say(Hello)"),
    ("hermes", OPEN, "Never\n closed\n", "think(Never\n closed\n)"),
    ("hermes", NO, "\n\nNo <think> here</think>", "say(\n\nNo <think> here</think>)"),
    ("hermes", "What is <think>?<|im_end|>\n<|im_start|>assistant\n", "A tag.", "say(A tag.)"),
    (
        "hermes",
        OPEN,
        "Maybe <tool_call>?\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        "think(Maybe <tool_call>?) call(now)({})",
    ),
    ("granite3", NO, "<think>a</think>", "say(<think>a</think>)"),
    ("plain", NO, "<think>\n\n<tool_call>{", "say(<think>\n\n<tool_call>{)"),
];

#[test]
fn json_objects() {
    check(JSON);
}

#[test]
fn xml_parameters() {
    check(XML);
}

#[test]
fn lists() {
    check(LISTS);
}

#[test]
fn sections() {
    check(SECTIONS);
}

#[test]
fn python_calls() {
    check(PYTHON);
}

#[test]
fn channels() {
    check(HARMONY);
}

#[test]
fn reasoning() {
    check(REASONING);
}

/// What an answer gives if reasoning stays in the content, and if no tools were offered.
#[test]
fn raw_reasoning_and_no_tools() {
    let raw = |name: &str, prompt: &str, text: &str| {
        line(&read_pieces(&mut dialect(name).reader(prompt, &tools(), ReasoningMode::Raw), &[text]))
    };
    let text = "\n<think>\nHm.\n</think>\n\nHello.\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>";
    assert_eq!(raw("hermes", NO, text), "say(\n<think>\nHm.\n</think>\n\nHello.) call(now)({})");
    assert_eq!(raw("hermes", OPEN, "Hm.\n</think>\n\nYes"), "say(Hm.\n</think>\n\nYes)");
    assert_eq!(raw("hermes", OPEN, "<tool_call>"), "say(<tool_call>)", "in reasoning it is no call");
    let text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
    assert_eq!(raw("harmony", "<|start|>assistant", text), "say(<|channel|>analysis<|message|>Hm.<|end|>Yes.)");

    let plain = |name: &str, text: &str| {
        line(&read_pieces(&mut dialect(name).reader("<|start|>assistant", &[], ReasoningMode::Split), &[text]))
    };
    for (name, _, text, _) in [JSON, XML, LISTS, SECTIONS, PYTHON].concat() {
        if !text.starts_with("[THINK]") && !text.contains("</think>") {
            assert_eq!(plain(name, text), format!("say({text})"));
        }
    }
    let text = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>";
    assert_eq!(plain("harmony", text), format!("say({text})"));
}

/// What is certain is told at once.
#[test]
fn only_what_may_be_a_marker_is_held() {
    let mut reader = dialect("hermes").reader(OPEN, &tools(), ReasoningMode::Split);
    let mut push = |text: &str| line(&reader.push(text));
    assert_eq!(push("Hm"), "think(Hm)");
    assert_eq!(push("\n</thi"), "");
    assert_eq!(push("x"), "think(\n</thix)");
    assert_eq!(push("</think>\n\nSo"), "say(So)");
    assert_eq!(push(" <tool"), "say( )");
    assert_eq!(push("s>\n"), "say(<tools>)");
    assert_eq!(push("<tool_call>\n{\"name\": \"now"), "");
    assert_eq!(push("\", \"arguments\": {\"a"), "call(now)({\"a)");
    let mut go_on = |text: &str| reader.push(text);
    assert_eq!(go_on("\": 1"), [Part::Arguments { index: 0, text: "\": 1".into() }]);
    assert_eq!(go_on("}"), [Part::Arguments { index: 0, text: "}".into() }]);
    assert_eq!(go_on("}\n</tool_"), []);
    assert_eq!(reader.finish(), []);
    assert_eq!(reader.finish(), []);
}

/// An answer in JSON that is no call is held back no longer than to its first key, or its name.
#[test]
fn other_objects_come_out_as_soon_as_they_can() {
    for (held, last) in [("{\"title", "\""), ("{\"type\": \"x\", \"name\": \"Ann", "\""), ("{", "1")] {
        let mut reader = dialect("llama").reader(NO, &tools(), ReasoningMode::Split);
        assert_eq!(reader.push(held), []);
        assert_eq!(reader.push(last), [Part::Content(format!("{held}{last}"))]);
    }
}
