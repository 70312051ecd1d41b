//! Templates against what Python's Jinja renders, and hostile ones against the limits.

use super::*;
use crate::text::tokenizer::tests::{fixture, shared};
use kvas_gguf::GgufFile;
use serde_json::{Value as Json, json};
use std::time::{Duration, Instant};

/// The time the goldens were rendered at.
fn golden_now() -> jiff::Zoned {
    jiff::civil::date(2026, 1, 15).at(12, 0, 0, 0).in_tz("UTC").unwrap()
}

fn check_golden(template: &ChatTemplate, case: &Json, golden: &Json, name: &str) {
    let mut variables = case["kwargs"].as_object().unwrap().clone();
    let prompt = variables.remove("add_generation_prompt").is_none_or(|yes| yes.as_bool().unwrap());
    let conversation = Conversation {
        tools: Some(&case["tools"]),
        add_generation_prompt: prompt,
        bos_token: "<s>",
        eos_token: "</s>",
        variables,
        now: Some(golden_now()),
        ..Conversation::new(&case["messages"])
    };
    let result = template.render(&conversation);
    if golden["ok"] == json!(true) {
        match result {
            Ok(text) => assert_eq!(text, golden["text"].as_str().unwrap(), "{name}"),
            Err(error) => panic!("{name}: {error}"),
        }
        return;
    }
    let error = result.expect_err(name).to_string();
    let expected = golden["error"].as_str().unwrap();
    if let Some(message) = expected.strip_prefix("TemplateError: ") {
        assert_eq!(error, format!("chat template: {message}"), "{name}");
    }
    eprintln!("{name}: {error} // {expected}");
}

#[test]
fn what_is_not_there_has_no_pairs() {
    let template = ChatTemplate::new("{% for key, value in messages[0].x|items %}{{ key }}{% endfor %}.").unwrap();
    let of = |message: Json| template.render(&Conversation::new(&json!([message])));
    assert_eq!(of(json!({})).unwrap(), ".");
    assert_eq!(of(json!({"x": {"a": 1, "b": 2}})).unwrap(), "ab.");
    assert!(of(json!({"x": null})).is_err());
}

#[test]
fn goldens() {
    let Some(folder) = shared("templates") else { return };
    let read = |path: std::path::PathBuf| std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{path:?}"));
    let cases: Json = serde_json::from_str(&read(folder.join("golden/CASES.json"))).unwrap();
    let mut compared = 0;
    for entry in std::fs::read_dir(folder.join("golden")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        let Some(template) = file.strip_prefix("llama.cpp__").and_then(|name| name.strip_suffix(".json")) else {
            continue;
        };
        let source = read(folder.join(template));
        let golden: Json = serde_json::from_str(&read(path.clone())).unwrap();
        let template = ChatTemplate::new(&source).unwrap();
        for case in cases.as_array().unwrap() {
            let name = case["name"].as_str().unwrap();
            check_golden(&template, case, &golden[name], &format!("{file}: {name}"));
            compared += 1;
        }
    }
    assert_eq!(compared, 13 * 16);
}

/// A result and the shortest of three times it took: other tests run beside this one.
fn timed<T>(mut work: impl FnMut() -> T) -> (T, Duration) {
    let mut runs: Vec<(T, Duration)> = (0..3)
        .map(|_| {
            let start = Instant::now();
            let result = work();
            (result, start.elapsed())
        })
        .collect();
    runs.sort_by_key(|run| run.1);
    runs.swap_remove(0)
}

#[test]
fn hostile_files_render_to_an_error_quickly() {
    let Some(folder) = shared("gguf-bad") else { return };
    for name in ["rec_macro", "deep_if", "nested_loops", "str_double", "unclosed", "empty"] {
        let file = GgufFile::open(&folder.join(format!("tmpl_{name}.gguf"))).unwrap();
        let template = ChatTemplate::from_metadata(file.metadata()).unwrap().expect(name);
        let messages = json!([{"role": "user", "content": "hi"}]);
        let (result, took) = timed(|| template.render(&Conversation::new(&messages)));
        eprintln!("{name}: {result:?} in {took:?}");
        assert_eq!(result.is_ok(), name == "empty", "{name}");
        assert!(took < Duration::from_millis(100), "{name} took {took:?}");
    }
}

fn render(source: &str) -> Result<String, TextError> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    ChatTemplate::new(source)?.render(&Conversation { now: Some(golden_now()), ..Conversation::new(&messages) })
}

#[test]
fn snippets_render_as_in_python() {
    let fixture = fixture("snippets.json");
    let mut wrong = Vec::new();
    for case in fixture["cases"].as_array().unwrap() {
        let source = case["template"].as_str().unwrap();
        let nothing = json!([]);
        let conversation =
            Conversation { variables: fixture["values"].as_object().unwrap().clone(), ..Conversation::new(&nothing) };
        let result = ChatTemplate::new(source).and_then(|template| template.render(&conversation));
        match (result, case["text"].as_str()) {
            (Ok(text), Some(expected)) if text == expected => {}
            (Err(_), None) => {}
            (result, _) => wrong.push(format!("{source}\n  {result:?}\n  {case}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_in_no_order_is_refused() {
    for (left, right) in
        [("1", "'a'"), ("'2'", "1.5"), ("nothing", "1"), ("none", "none"), ("[1]", "2"), ("true", "'a'")]
    {
        for sign in ["<", ">", "<=", ">="] {
            let error = render(&format!("{{% set x = {left} %}}{{{{ x {sign} {right} }}}}")).unwrap_err().to_string();
            assert!(error.contains("in no order, expected two numbers or two texts"), "{error}");
            if left == "nothing" {
                continue;
            }
            // Constants are no other values, alone, in brackets and in chains.
            for source in ["L S R", "(L) S R", "1 < 2 and L S R", "1 < 2 != L S R < x", "x != L S R > x"] {
                let source = source.replace('L', left).replace('S', sign).replace('R', right);
                let source = format!("{{% set x = 3 %}}{{{{ {source} }}}}");
                let error = render(&source).unwrap_err().to_string();
                assert!(error.contains("in no order, expected two numbers or two texts"), "{source}: {error}");
            }
        }
    }
    let known = "{% set x = 1 %}{{ x < 2.5 }} {{ 'a' < 'b' }} {{ true > 0 }} {{ [1] < [2] }} {{ x == 'a' }} {{ none == nothing }}";
    assert_eq!(render(known).unwrap(), "True True True True False False");
    let constant = "{{ 1 < 2.5 }} {{ 'a' < 'b' }} {{ (1) < 2 }} {{ -1 < 1 }} {{ 7 % 4 < 3 }} {{ ('a' + 'b') < 'b' }} {{ 2 * 3 < 6 }}";
    assert_eq!(render(constant).unwrap(), "True True True True False True False");
    let chains = "{% set x = 2 %}{{ 1 < x < 3 }} {{ 3 > x > 2 }} {{ 1 < 2 < 3 }} {{ 3 >= 2 >= 2 > x }} {{ 0 < true <= x == 2 }} \
        {{ x < 1 < none }} {{ x == 2 in [2] }} {{ 0 < x not in [1] }}";
    assert_eq!(render(chains).unwrap(), "True False True False True False True True");
}

#[test]
fn what_the_engine_does_wrong_is_refused() {
    let source = "{% for a in [1] recursive %}{{ loop([]) }}{% else %}none{% endfor %}";
    let error = ChatTemplate::new(&format!("\n{source}")).unwrap_err().to_string();
    assert!(error.contains("line 2: ") && error.contains("a recursive loop with an else, expected"), "{error}");
}

#[test]
fn what_is_random_is_refused() {
    let error = render("{{ messages[0].content }}{{ [1, 2]|random }}").unwrap_err().to_string();
    assert!(error.contains("random: ") && error.contains("expected first, last or an index"), "{error}");
}

/// Templates that try to take all memory or all time, or to crash.
const HOSTILE: &[&str] = &[
    "{% macro x() %}{{ x() }}{% endmacro %}{{ x() }}",
    "{% macro x() %}{% set y = x() %}{% endmacro %}{{ x() }}",
    "{% for a in [[1]] recursive %}{{ loop([a]) }}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s * 2 %}{% endfor %}",
    "{% set ns = namespace(s='x y') %}{% for i in range(60) %}{% set ns.s = ns.s|wordwrap(1, true, ns.s) %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s|replace('x', 'xx') %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s.join([ns.s, ns.s]) %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = '%s%s'|format(ns.s, ns.s) %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set b %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = b %}{% endfor %}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s|length }}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s == [] }}",
    "{% set ns = namespace(s={}) %}{% for i in range(60) %}{% set ns.s = {'a': ns.s, 'b': ns.s} %}{% endfor %}{{ ns.s|tojson }}",
    "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}",
    "{% set ns = namespace(s={}) %}{% for i in range(99999) %}{% set ns.s = dict(a=ns.s) %}{% endfor %}",
    "{% set ns = namespace(s=messages) %}{% for i in range(99999) %}{% set ns.s = ns.s[0:] %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s=messages) %}{% for i in range(99999) %}{% set ns.s = ns.s|reverse|map('upper') %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.a = [{'b': ns}] %}{{ ns }}",
    "{% set ns = namespace() %}{% set m = namespace(a=ns) %}{% set ns.b = m %}{{ ns }}",
    "{{ 'x' * 99999999 }}",
    "{{ ('x' * 9999)|replace('x', 'y' * 9999) }}",
    "{{ 'x'|indent(999999999, true) }}",
    "{{ '%999999999d'|format(1) }}",
    "{{ '%999999999d' % 1 }}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
    "{{ '%*d'|format(999999999, 1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '%.999999999f'|format(1.5) }}",
    "{{ '{:>{}}'.format(1, 999999999) }}",
    "{{ '{:.999999999f}'.format(1.5) }}",
    "{{ '{:999999999999999999999}'.format(1.5) }}",
    "{{ '{:{:{}}}'.format(1, 2, 3) }}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = '{s!r:}{s}'.format(s=ns.s) %}{% endfor %}",
    "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s.copy] %}{% endfor %}{{ ns.s }}",
    "{{ 'x'.ljust(999999999) }}",
    "{{ 'x'.center(99999999999999) }}",
    "{{ 'x'|center(999999999) }}",
    "{% set ns = namespace(s=1) %}{% for i in range(99999) %}{% set ns.s = cycler(ns.s) %}{% endfor %}",
    "{% macro m(a, b=a * 99999999) %}{{ b }}{% endmacro %}{{ m('x') }}",
    "{% macro m(a, b='x' * 99999999 ~ a) %}{{ b }}{% endmacro %}{{ m(1) }}",
    "{{ [[[1]]]|tojson(indent=999999999) }}",
    "{{ [1]|batch(999999999, 'x')|list }}",
    "{{ [1]|slice(999999999, 'x')|list }}",
    "{{ range(99999)|map('string')|join('x' * 999) }}",
    "{{ ([['x' * 9999]] * 9999)|sum(start=[]) }}",
    "{% for i in range(99999) %}{% set x = ('x' * 99999)[1:] %}{% endfor %}",
    "{% set s = 'x' * 999999 %}{% for i in range(99999) %}{% if s[1:] in s %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 999999 %}{% for i in range(99999) %}{% set t = s|upper %}{% endfor %}",
    "{{ 2 ** 99999 }}",
    "{{ 10 ** 30 ** 30 }}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% import 'x' as x %}",
    "{{ '\u{1F999}' * 3 + strftime_now('%J%') }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ raise_exception([[1]] * 3) }}",
    "{{ self.x() }}{% block x %}{{ self.x() }}{% endblock %}",
];

/// Hostile templates that repeat themselves rather than loop.
fn unrolled() -> Vec<String> {
    let repeat = |count: usize, part: &str| part.repeat(count);
    vec![
        format!(
            "{{% set a = [] %}}{{% set b = [] %}}{}{{{{ a == b }}}}",
            repeat(60, "{% set a = [a, a] %}{% set b = [b, b] %}")
        ),
        format!("{{% set a = {{}} %}}{}{{{{ a in [a] }}}}", repeat(60, "{% set a = {'x': a, 'y': a} %}")),
        format!("{{% set a = [] %}}{}", repeat(8000, "{% set a = [a] %}\n")),
        format!("{{% set a = [] %}}{}", repeat(8000, "{% set a = dict(a=a) %}\n")),
        format!("{{% set a = 'xxxx' %}}{}", repeat(40, "{% set a = a ~ a %}")),
        format!("{{% set s = 'x' * 999999 %}}{}", repeat(5000, "{% if s|length == s[1:]|length %}{% endif %}\n")),
    ]
}

fn hostile() -> Vec<String> {
    HOSTILE.iter().map(|source| (*source).to_owned()).chain(unrolled()).collect()
}

#[test]
fn formats_that_are_none_are_refused() {
    for (source, expected) in [
        ("{{ '{0[a]é}'.format({'a': 1}) }}", "\"0[a]é\", expected . or [ behind the ]"),
        ("{{ '{0[a]b}'.format({'a': 1}) }}", "\"0[a]b\", expected . or [ behind the ]"),
        ("{{ '{0[a'.format({'a': 1}) }}", "a \"{\" alone, expected a place"),
        ("{{ '{:.70000f}'.format(1.5) }}", "precision 70000, expected at most 10000"),
        ("{{ '{:.70000}'.format(0.0001) }}", "precision 70000, expected at most 10000"),
        ("{{ '%.65535g' | format(0.0001) }}", "precision 65535, expected at most 10000"),
        ("{{ '%.70000d' | format(3) }}", "precision 70000, expected at most 10000"),
    ] {
        let error = render(source).unwrap_err().to_string();
        assert!(error.contains(expected), "{source}: {error}");
    }
    assert_eq!(render("{{ '{:.70000}|%.70000s'.format('é') | format('ß') }}").unwrap(), "é|ß");
    assert_eq!(render("{{ '%.10000g' | format(0.5) }}").unwrap(), "0.5");
}

#[test]
fn hostile_templates_end_in_an_error_quickly() {
    for source in hostile() {
        let (result, took) = timed(|| render(&source));
        let source: String = source.chars().take(100).collect();
        assert!(result.is_err(), "{source} gave {} bytes", result.unwrap().len());
        // The longest took 107 ms on a slow machine that was idle, nearly all of it to compile 8000 lines.
        assert!(took < Duration::from_millis(200), "{source} took {took:?}");
        eprintln!("{took:>10.1?} {} // {source}", result.unwrap_err());
    }
}

/// The highest resident memory of this process so far, in KiB.
#[cfg(target_os = "linux")]
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn hostile_templates_take_less_than_64_mib() {
    // A process of its own: the peak of this one has other tests in it.
    let child = "text::chat_template::tests::hostile_child";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", child, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("grew by"), "{text}");
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "measures its own process; run by hostile_templates_take_less_than_64_mib"]
fn hostile_child() {
    let before = peak_kib();
    for source in hostile() {
        render(&source).unwrap_err();
        let grown = peak_kib() - before;
        assert!(grown < 64 << 10, "{}: {grown} KiB", source.chars().take(100).collect::<String>());
    }
    eprintln!("grew by {} KiB", peak_kib() - before);
}

#[test]
fn long_conversations_render() {
    for template in ["Qwen3.5-4B", "openai-gpt-oss-120b", "meta-llama-Llama-3.1-8B-Instruct"] {
        let Some(path) = shared(&format!("templates/{template}.jinja")) else { return };
        let template = ChatTemplate::new(&std::fs::read_to_string(path).unwrap()).unwrap();
        let text = "word ".repeat(100);
        let messages: Vec<Json> = (0..4000)
            .map(|at| {
                let role = if at % 2 == 0 { "user" } else { "assistant" };
                json!({"role": role, "content": if at % 3 == 0 { "ok" } else { &text }})
            })
            .collect();
        let start = Instant::now();
        let prompt = template.render(&Conversation::new(&json!(messages))).unwrap();
        assert!(prompt.len() > 4000 * 300);
        eprintln!("{} bytes in {:?}", prompt.len(), start.elapsed());
    }
}

#[test]
fn errors_tell_the_line() {
    assert_eq!(
        render("a\n{% if %}").unwrap_err().to_string(),
        "chat template, line 2: syntax error: unexpected end of block"
    );
    assert_eq!(
        render("\n\n{{ messages[0].content + 1 }}").unwrap_err().to_string().split(':').next(),
        Some("chat template, line 3")
    );
    assert_eq!(render("{{ raise_exception('no tools') }}").unwrap_err().to_string(), "chat template: no tools");
    assert!(matches!(render("{{ 'x' * 99999999 }}"), Err(TextError::TemplateLimit(_))));
}

#[test]
fn chatml_is_a_template() {
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": null}]);
    let conversation = Conversation::new(&messages);
    let expected =
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n";
    let template = ChatTemplate::chatml();
    assert_eq!(template.render(&conversation).unwrap(), format!("{expected}<|im_start|>assistant\n"));
    assert_eq!(template.render(&Conversation { add_generation_prompt: false, ..conversation }).unwrap(), expected);
    assert_eq!(ChatTemplate::new(template.source()).unwrap(), template);
}

#[test]
fn variables_time_and_training_marks() {
    let messages = json!([]);
    let render = |source: &str, variables: Json| {
        let variables = variables.as_object().unwrap().clone();
        let conversation =
            Conversation { variables, now: Some(golden_now()), bos_token: "<b>", ..Conversation::new(&messages) };
        ChatTemplate::new(source).unwrap().render(&conversation).unwrap()
    };
    assert_eq!(render("{{ bos_token }}{{ enable_thinking }}", json!({"enable_thinking": true})), "<b>True");
    assert_eq!(render("{{ bos_token }}", json!({"bos_token": "<c>"})), "<c>");
    assert_eq!(render("{{ strftime_now('%d %B %Y') }}", json!({})), "15 January 2026");
    let all = "{{ strftime_now('%c|%x|%X|%r|%Z%z|%%c|%-d|100%') }}";
    assert_eq!(render(all, json!({})), "Thu Jan 15 12:00:00 2026|01/15/26|12:00:00|12:00:00 PM||%c|15|100%");
    assert_eq!(
        render(
            "a {%- generation -%} b {% endgeneration %}\nc {% generated %}".strip_suffix(" {% generated %}").unwrap(),
            json!({})
        ),
        "ab c"
    );
    assert_eq!(
        render("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", json!({})),
        "TrueTrueTrue"
    );
}

#[test]
fn models_bring_their_templates() {
    let mut metadata = Metadata::default();
    assert_eq!(ChatTemplate::from_metadata(&metadata).unwrap(), None);
    metadata.set(KEY, kvas_gguf::Value::String("{% broken".into()));
    let broken = ChatTemplate::from_metadata(&metadata).unwrap().unwrap();
    assert!(broken.render(&Conversation::new(&json!([]))).is_err());
    // One of its own for tools is used where there are some, and takes nothing from either.
    metadata.set(KEY, kvas_gguf::Value::String("\n plain {{ tools is none }}\n  {# end #}\n".into()));
    metadata.set(KEY_WITH_TOOLS, kvas_gguf::Value::String("\n {% set n = tools|length %}tools {{ n }}  \n".into()));
    let template = ChatTemplate::from_metadata(&metadata).unwrap().unwrap();
    let messages = json!([]);
    let render = |tools: &Json| {
        let tools = Some(tools).filter(|tools| !tools.is_null());
        template.render(&Conversation { tools, ..Conversation::new(&messages) }).unwrap()
    };
    assert_eq!(render(&Json::Null), "\n plain True\n");
    assert_eq!(render(&json!([{"type": "function"}])), "\ntools 1  ");
}

#[test]
fn random_templates_never_panic() {
    let parts = [
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{#",
        "#}",
        "-",
        "if ",
        "for x in ",
        "messages",
        "endif",
        "endfor",
        "set ",
        "x",
        " = ",
        "[",
        "]",
        "(",
        ")",
        "0",
        ":",
        "|",
        "tojson",
        "join",
        ".",
        "'",
        "\"",
        "~",
        "+",
        "*",
        "not ",
        "in ",
        "is ",
        "none",
        "macro ",
        "endmacro",
        "namespace",
        "\n",
        "é",
        "loop",
        "generation",
        "endgeneration",
        "{%",
        "%}",
        "\\",
        "**",
        "//",
        "99999999999999999999",
        "1e999",
        "%",
    ];
    let mut random = crate::text::tokenizer::tests::Random(11);
    let mut rendered = 0;
    for _ in 0..20_000 {
        let source: String = (0..1 + random.below(14)).map(|_| parts[random.below(parts.len())]).collect();
        rendered += usize::from(render(&source).is_ok());
    }
    assert!(rendered > 100, "only {rendered} of the templates were valid");
}

/// Sources that would nest as deep as they are long.
fn endless_sources() -> Vec<String> {
    // With short lines too, so that the limit of a line does not hide the others.
    endless(40_000, "").into_iter().chain(endless(25_000, "\n")).collect()
}

fn endless(n: usize, end: &str) -> Vec<String> {
    let repeat = |part: &str| format!("{part}{end}").repeat(n);
    vec![
        format!("{{{{ 1{} }}}}", repeat("+1")),
        format!("{{{{ x{} }}}}", repeat("+x")),
        format!("{{{{ 'a'{} }}}}", repeat("~'a'")),
        format!("{{{{ x{} }}}}", repeat(".a")),
        format!("{{{{ x{} }}}}", repeat("[0]")),
        format!("{{{{ x{} }}}}", repeat("()")),
        format!("{{{{ x{} }}}}", repeat("|string")),
        format!("{{{{ x{} }}}}", repeat(" and x")),
        format!("{{{{ x{} }}}}", repeat(" == x")),
        format!("{{{{ {}x }}}}", repeat("not ")),
        format!("{{{{ {}x }}}}", repeat("-")),
        format!("{{{{ {}x }}}}", repeat("(")),
        format!("{{{{ {}1{} }}}}", repeat("["), repeat("]")),
        format!("{{{{ {}1{} }}}}", repeat("{'a':"), repeat("}")),
        format!("{{{{ x{} }}}}", repeat(" if x else x")),
        format!("{{{{ x{} }}}}", repeat(" is defined")),
        format!("{{{{ x{} }}}}", repeat(" ** 2")),
        format!("{{% if x %}}{}{{% endif %}}", repeat("{% elif x %}")),
        format!("{}{}", repeat("{% for x in y %}"), repeat("{% endfor %}")),
        format!("{}{}", repeat("{% macro x() %}"), repeat("{% endmacro %}")),
        format!("{}{}", repeat("{% set x %}"), repeat("{% endset %}")),
        format!("{}{}", repeat("{% filter upper %}"), repeat("{% endfilter %}")),
        format!("{}{}", repeat("{% block x %}"), repeat("{% endblock %}")),
        format!("{{% set {}x = 1 %}}", repeat("(")),
        format!("{{% for {} in y %}}{{% endfor %}}", repeat("(x,")),
        repeat("{{ x"),
        repeat("{% if "),
        repeat("{#"),
        repeat("{% raw %}"),
        "x\n".repeat(n * 2),
        format!("{{{{ 1\n{} }}}}", "\n".repeat(n * 2)),
    ]
}

#[test]
fn endless_sources_never_overflow_the_stack() {
    for source in endless_sources() {
        // Some of these are valid and do nothing; none may end the process.
        let (result, took) = timed(|| render(&source).map(|text| text.len()));
        eprintln!("{result:?} in {took:?}: {}", &source[..20]);
        assert!(took < Duration::from_millis(200), "{} took {took:?}", &source[..20]);
    }
}

#[test]
fn sources_at_the_limits_compile() {
    let blocks = |inside: &str| "{% if true %}".repeat(60) + inside + &"{% endif %}".repeat(60);
    let brackets = |inside: &str| "(".repeat(35) + inside + &")".repeat(35);
    for chain in ["+1", "~'a'", ".a", "[0]", "|string", " and x", " == x", " is defined", " if x else x", "*2"] {
        // Errors of undefined values are fine, and so is the parser's own limit; the end of the stack is not.
        let chain = chain.repeat(480 / chain.matches([' ', '+', '~', '.', '[', '|', '*']).count().max(1));
        let _ = render(&blocks(&format!("{{{{ {} }}}}", brackets(&format!("1{chain}")))));
        let _ = render(&blocks(&format!("{{{{ {}{chain} }}}}", brackets("1"))));
    }
    let branches = format!("{{% if false %}}{}{{% else %}}end{{% endif %}}", "{% elif false %}".repeat(500));
    assert_eq!(render(&blocks(&branches)).unwrap(), "end");
    let nested = "[".repeat(35) + &"]".repeat(35);
    assert_eq!(render(&blocks(&format!("{{{{ {nested} }}}}"))).unwrap(), nested);
}
