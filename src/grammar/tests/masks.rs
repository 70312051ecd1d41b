//! Masks against automata that another library makes of the same regular expressions, token by token.

use super::*;
use kvas_backend::conformance::Random;
use regex_automata::{
    Anchored, Input,
    dfa::{Automaton, dense},
};

const TOKENS: &[&str] = &["<|eos|>", "<|other|>", "a", "b", "c", "ab", "bc", "ca", "abc", "aa", "cab", "bbbb", "d"];

fn part(random: &mut Random, depth: usize) -> String {
    match random.below(if depth == 0 { 2 } else { 7 }) {
        0 => ["a", "b", "c", "abc", "ca"][random.below(5)].into(),
        1 => ["[ab]", "[^a]", "c", "."][random.below(4)].into(),
        2 => format!("(?:{}|{})", part(random, depth - 1), part(random, depth - 1)),
        3 => format!("(?:{}){}", part(random, depth - 1), ["*", "+", "?", "{2}", "{1,3}"][random.below(5)]),
        _ => part(random, depth - 1) + &part(random, depth - 1),
    }
}

/// Whether a text can become one that the automaton matches, and whether it is one.
fn truth(dfa: &dense::DFA<Vec<u32>>, text: &[u8]) -> (bool, bool) {
    let mut state = dfa.start_state_forward(&Input::new("").anchored(Anchored::Yes)).unwrap();
    for byte in text {
        state = dfa.next_state(state, *byte);
        if dfa.is_dead_state(state) {
            return (false, false);
        }
    }
    (true, dfa.is_match_state(dfa.next_eoi_state(state)))
}

#[test]
fn masks_allow_what_can_be_completed_and_nothing_else() {
    let vocabulary = Vocabulary::with_workers(tokenizer(TOKENS), 1).unwrap();
    let (mut random, mut compared, mut allowed) = (Random::new(3), 0, 0);
    for _ in 0..150 {
        let regex = part(&mut random, 3);
        let dfa = dense::DFA::new(&format!("(?:{regex})\\z")).unwrap();
        let compiled = compile(&vocabulary, &Grammar::Regex(regex.clone())).unwrap();
        let mut matcher = compiled.start();
        let mut text = Vec::new();
        for _ in 0..8 {
            let mask = matcher.compute_mask_or_eos().unwrap();
            let mut next = Vec::new();
            for id in 0..TOKENS.len() as u32 {
                let expected = match id {
                    0 => truth(&dfa, &text).1,
                    1 => false,
                    id => truth(&dfa, &[&text[..], vocabulary.piece(id)].concat()).0,
                };
                let so_far = String::from_utf8_lossy(&text);
                assert_eq!(mask.is_allowed(id), expected, "{} after {so_far:?} for {regex}", TOKENS[id as usize]);
                next.extend((expected && id > 1).then_some(id));
                compared += 1;
                allowed += usize::from(expected);
            }
            if next.is_empty() {
                break;
            }
            let token = next[random.below(next.len())];
            matcher.consume_token(token).unwrap();
            text.extend(vocabulary.piece(token));
        }
    }
    assert!(compared > 5000 && allowed > 1000, "{compared} {allowed}");
}

#[test]
fn regular_expressions_match_whole_texts() {
    let vocabulary = vocabulary();
    let regex = |text: &str| Grammar::Regex(text.into());
    check(&vocabulary, &regex(r"\d{3}-[A-F]/x"), &["123-A/x"], &["123-G/x", "0123-A/x", "123-A/xx"]);
    check(&vocabulary, &regex(r"^(yes|no)$"), &["yes", "no"], &["yes$", "^no", ""]);
    check(&vocabulary, &regex(r"^cost: \$"), &["cost: $"], &["cost: "]);
    let error = compile(&vocabulary, &regex("a(b")).unwrap_err();
    assert!(error.starts_with("regular expression: ") && error.lines().count() == 1, "{error}");
}

#[test]
fn json_fits_its_schema() {
    let vocabulary = vocabulary();
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}
        },
        "required": ["name", "age"],
        "additionalProperties": false
    });
    check(
        &vocabulary,
        &Grammar::JsonSchema(schema),
        &[r#"{"name":"x","age":3}"#, "{\n  \"name\": \"é\\n\",\n  \"age\": 150,\n  \"tags\": [\"a\", \"b\"]\n}"],
        &[r#"{"name":"x"}"#, r#"{"name":"x","age":151}"#, r#"{"name":"sixsix","age":1}"#, "{}", "[]", "{  }"],
    );
    let object = Grammar::JsonObject;
    check(&vocabulary, &object, &["{}", r#"{"a": [1, null, {"b": -1.5e3}]}"#], &["[]", "1", "{", r#"{"a":  1}"#]);
    check(&vocabulary, &Grammar::JsonSchema(json!(true)), &["[]", "1", "{\"a\":true}"], &["", "a"]);
    let error = |schema| compile(&vocabulary, &Grammar::JsonSchema(schema)).unwrap_err();
    let nothing = "JSON schema: nothing that this model can write fits it, expected a first token";
    assert_eq!(error(json!({"$ref": "#"})), nothing);
    let never = error(json!({"type": "string", "minLength": 3, "maxLength": 2}));
    assert_eq!(never, "JSON schema: minLength: 3, expected at most maxLength, which is 2");
}

#[test]
fn a_schema_that_is_refused_says_which_keyword_and_where() {
    let vocabulary = vocabulary();
    let types = "expected one of array, boolean, integer, null, number, object, string, or a list of them";
    for (schema, expected) in [
        (json!(3), "3, expected a schema: an object, true or false".into()),
        (json!({"type": "objekt"}), format!(r#"type: "objekt", {types}"#)),
        (json!({"properties": {"a": {"type": ["string", 3]}}}), format!(r#"properties.a.type: ["string",3], {types}"#)),
        (json!({"properties": {"a b": {"items": 5}}}), "properties[\"a b\"].items: 5, expected a schema: ".into()),
        (json!({"properties": []}), "properties: [], expected an object of schemas".into()),
        (json!({"anyOf": [{}, {"required": "a"}]}), r#"anyOf[1].required: "a", expected a list of names"#.into()),
        (json!({"oneOf": []}), "oneOf: [], expected a list of at least one schema".into()),
        (json!({"enum": []}), "enum: [], expected a list of at least one value".into()),
        (json!({"type": "array", "minItems": -1}), "minItems: -1, expected a whole number of at least 0".into()),
        (json!({"type": "number", "minimum": "x"}), r#"minimum: "x", expected a number"#.into()),
        (json!({"type": "number", "multipleOf": 0}), "multipleOf: 0, expected a number above 0".into()),
        (json!({"type": "string", "format": 3}), "format: 3, expected a text".into()),
        (
            json!({"properties": {"a": {"$ref": "#/$defs/x"}}}),
            r##"properties.a.$ref: "#/$defs/x", expected a reference"##.into(),
        ),
        (json!({"$ref": "http://x/y"}), r#"$ref: "http://x/y", expected a reference into this schema"#.into()),
        (
            json!({"items": {"type": "string", "pattern": "("}, "type": "array"}),
            "items.pattern: \"(\": unclosed group".into(),
        ),
        (json!({"patternProperties": {"(": {}}}), "patternProperties[\"(\"]: \"(\": unclosed group".into()),
        (
            json!({"properties": {"a": {"not": {}}}}),
            "properties.a.not: it cannot be followed, expected a schema without".into(),
        ),
    ] {
        let error = compile(&vocabulary, &Grammar::JsonSchema(schema)).unwrap_err();
        assert!(error.starts_with(&format!("JSON schema: {expected}")), "{error}\n{expected}");
    }
    let long = compile(&vocabulary, &Grammar::JsonSchema(json!({"properties": {"x".repeat(9000): 3}}))).unwrap_err();
    assert!(long.len() < 200 && long.ends_with("…]: 3, expected a schema: an object, true or false"), "{long}");
    // What nothing refers to, or nobody has to follow, is refused now as little as before.
    let spare =
        json!({"$defs": {"x": {"not": {}}}, "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}});
    compile(&vocabulary, &Grammar::JsonSchema(spare)).unwrap();
}
