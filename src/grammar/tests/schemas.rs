//! JSON schemas as clients write them.

use super::*;

/// Compiles a schema and checks which answers it accepts.
fn check_schema(schema: serde_json::Value, accepted: &[&str], refused: &[&str]) {
    check(&vocabulary(), &Grammar::JsonSchema(schema), accepted, refused);
}

/// As Pydantic writes unions that are told apart by a field with a default, which need not be there.
#[test]
fn choices_that_overlap_are_choices() {
    let pet = |kind: &str| {
        let kind = json!({"const": kind, "default": kind, "type": "string"});
        json!({"type": "object", "properties": {"kind": kind, "age": {"type": "integer"}}, "required": ["age"],
            "additionalProperties": false})
    };
    let mapping = json!({"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}});
    let schema = json!({
        "$defs": {"Cat": pet("cat"), "Dog": pet("dog")}, "discriminator": mapping,
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    });
    let right = ["{\"kind\":\"cat\",\"age\":3}", "{\"kind\":\"dog\",\"age\":3}", "{\"age\":3}"];
    check_schema(schema, &right, &["{\"kind\":\"hen\",\"age\":3}", "{\"kind\":\"cat\"}"]);
}

#[test]
fn references_may_be_escaped() {
    let names = ["a/b", "a~b", "Pair[int, str]", "per%cent", "plain", "quote\"d"];
    let references = ["a~1b", "a~0b", "Pair%5Bint%2C%20str%5D", "per%25cent", "plain", "quote%22d"];
    for holder in ["$defs", "definitions"] {
        // One of them refers to another, and to itself.
        let held = |number: usize| {
            let next = references[(number + 1) % references.len()];
            let of = |name: &str| json!({"$ref": format!("#/{holder}/{name}")});
            let properties = json!({"next": of(next), "same": of(references[number]), "number": {"const": number}});
            json!({"type": "object", "properties": properties, "required": ["number"], "additionalProperties": false})
        };
        let all: serde_json::Map<_, _> =
            names.iter().enumerate().map(|(number, name)| (name.to_string(), held(number))).collect();
        for (number, reference) in references.iter().enumerate() {
            let schema = json!({holder: all, "$ref": format!("#/{holder}/{reference}")});
            let next = (number + 1) % names.len();
            let right =
                format!("{{\"next\":{{\"number\":{next}}},\"same\":{{\"number\":{number}}},\"number\":{number}}}");
            let wrong = format!("{{\"number\":{next}}}");
            check_schema(schema, &[&right], &[&wrong]);
        }
    }
    // Names that were not escaped in references are found as they are.
    for name in ["Pair[int, str]", "A%5Bint%5D", "tilde~field"] {
        let schema = json!({"$defs": {name: {"const": 1}}, "$ref": format!("#/$defs/{name}")});
        check_schema(schema, &["1"], &["2"]);
    }
    // Two names do not become one.
    let schema = json!({"$defs": {"a_b": {"const": 1}, "a/b": {"const": 2}, "a~b": {"const": 3}},
        "enum": [1, 2, 3], "anyOf": [{"$ref": "#/$defs/a~1b"}]});
    check_schema(schema, &["2"], &["1", "3"]);
}

#[test]
fn numbers_may_be_written_as_others_write_them() {
    let texts = json!({"type": "string", "minLength": 1.0, "maxLength": 2.0});
    let list = json!({"type": "array", "items": texts, "minItems": 1.0, "maxItems": 2.0});
    check_schema(list, &["[\"a\"]", "[\"a\",\"bc\"]"], &["[]", "[\"\"]", "[\"abc\"]", "[\"a\",\"b\",\"c\"]"]);
    let long = json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX});
    check_schema(long, &["0", "-9000000000000000000", "9000000000000000000"], &["1.5"]);
    let double = json!({"type": "number", "minimum": f64::MIN, "exclusiveMaximum": f64::MAX});
    check_schema(double, &["0", "-1.5", "900000.25"], &["true"]);
    let positive = json!({"type": "integer", "minimum": 0, "maximum": 9_223_372_036_854_775_807_i64});
    check_schema(positive, &["0", "12"], &["-1"]);
}

/// A model that is made to go on would write digits without end.
#[test]
fn integers_have_bounds() {
    let (most, more) = ("9000000000000000000", "10000000000000000000");
    let (least, less) = ("-9000000000000000000", "-10000000000000000000");
    check_schema(json!({"type": "integer"}), &["0", "-7", most, least], &[more, less, "1.5", "01"]);
    check_schema(json!({"type": ["integer", "null"]}), &["0", "null", most], &[more, less]);
    check_schema(json!({"type": "integer", "minimum": 3}), &["3", most], &["2", "-3", more]);
    check_schema(json!({"type": "integer", "exclusiveMaximum": 3}), &["2", least], &["3", less]);
    check_schema(json!({"type": "integer", "multipleOf": 5}), &["0", "-15", "9000000000000000005"], &["3", more]);
    check_schema(json!({"type": "integer", "enum": [3, 4]}), &["3"], &["5"]);
    // Nor is what else may stand there bounded, or what a schema bounds itself.
    check_schema(json!({"type": ["integer", "number"]}), &[more, "1.5"], &["true"]);
    check_schema(json!({"type": "integer", "minimum": -5, "maximum": 5}), &["-5", "0", "5"], &["6", "-6"]);
}

/// Their bounds cost more than a grammar may.
#[test]
fn hundreds_of_integers_have_none() {
    let names: Vec<String> = (0..700).map(|number| format!("n{number}")).collect();
    let properties: serde_json::Map<_, _> =
        names.iter().map(|name| (name.clone(), json!({"type": "integer"}))).collect();
    let all: Vec<String> = names.iter().map(|name| format!("\"{name}\":10000000000000000000")).collect();
    let schema = json!({"type": "object", "properties": properties, "required": names});
    check_schema(schema, &[&format!("{{{}}}", all.join(","))], &["{}"]);
}

/// Objects that list their properties have no others, as those mean who write schemas for models: Pydantic, and most tools.
#[test]
fn objects_have_the_properties_they_list() {
    let a = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let (right, more) = ("{\"a\":1}", "{\"a\":1,\"b\":2}");
    check_schema(a.clone(), &[right], &[more, "{}"]);
    let with = |name: &str, value: serde_json::Value| {
        let mut schema = a.clone();
        schema[name] = value;
        schema
    };
    check_schema(with("additionalProperties", json!(true)), &[right, more], &["{}"]);
    check_schema(with("additionalProperties", json!({"const": 2})), &[right, more], &["{\"a\":1,\"b\":3}"]);
    check_schema(with("patternProperties", json!({"^b$": {"const": 2}})), &[right, more], &["{\"a\":1,\"b\":3}"]);
    check_schema(with("required", json!(["b"])), &[more, "{\"b\":2}"], &[right]);
    check_schema(with("minProperties", json!(2)), &[more], &[right]);
    check_schema(json!({"type": "object"}), &[right, more, "{}"], &["[]"]);
    check_schema(json!({"type": "object", "properties": {}}), &[right, more, "{}"], &["[]"]);
    // Wherever they stand, and by reference.
    let (of_right, of_more) = (format!("{{\"x\":[{right}]}}"), format!("{{\"x\":[{more}]}}"));
    let lists = |item: serde_json::Value| {
        let x = json!({"anyOf": [{"type": "array", "items": item}, {"type": "null"}], "description": "A list."});
        json!({"$defs": {"A": a}, "type": "object", "properties": {"x": x}})
    };
    check_schema(lists(a.clone()), &[&of_right, "{\"x\":null}", "{}"], &[&of_more, right]);
    check_schema(lists(json!({"$ref": "#/$defs/A"})), &[&of_right, "{\"x\":null}"], &[&of_more]);
    let one = json!({"allOf": [{"$ref": "#/$defs/A"}], "title": "X", "default": {"a": 3}});
    check_schema(lists(one), &[&of_right], &[&of_more]);
}

/// Where several schemas speak of one object, what one of them lists is not all of it.
#[test]
fn objects_of_several_schemas_have_the_properties_of_all() {
    let of = |name: &str| json!({"type": "object", "properties": {name: {"const": 1}}, "required": [name]});
    let (both, one) = ("{\"a\":1,\"b\":1}", "{\"a\":1}");
    let refers = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    let defs = json!({"A": of("a"), "B": of("b"), "C": {"$ref": "#/$defs/A"}});
    for (first, last) in [(of("a"), of("b")), (refers("A"), refers("B")), (refers("C"), of("b"))] {
        check_schema(json!({"$defs": defs, "allOf": [first, last]}), &[both], &[one]);
        let beside = json!({"$defs": defs, "properties": {"a": {"const": 1}}, "required": ["a"], "anyOf": [last]});
        check_schema(beside, &[both], &[one]);
    }
    let nested = json!({"allOf": [{"properties": {"x": of("a")}, "required": ["x"]}, {"properties": {"x": of("b")}}]});
    check_schema(nested, &["{\"x\":{\"a\":1,\"b\":1}}"], &["{\"x\":{\"a\":1}}"]);
    // A part of the schema itself, which is no definition.
    let part =
        json!({"properties": {"x": of("a"), "y": {"allOf": [{"$ref": "#/properties/x"}, of("b")]}}, "required": ["y"]});
    check_schema(part, &["{\"y\":{\"a\":1,\"b\":1}}"], &["{\"y\":{\"a\":1}}"]);
}
