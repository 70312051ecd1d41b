//! `/openapi.json` says what the server does: every route is in it, its examples are answered as it says, and the types
//! and bounds of fields are those that are checked.

use super::host::Host;
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, sync::OnceLock};

const DOCUMENT: &str = include_str!("../../src/server/openapi.json");
const ROUTES: &str = include_str!("../../src/server/routes.rs");

fn document() -> &'static Value {
    static DOCUMENT_READ: OnceLock<Value> = OnceLock::new();
    DOCUMENT_READ.get_or_init(|| serde_json::from_str(DOCUMENT).unwrap())
}

/// What a reference leads to.
fn resolve(value: &'static Value) -> &'static Value {
    match value["$ref"].as_str() {
        Some(path) => resolve(document().pointer(path.strip_prefix('#').unwrap()).unwrap_or_else(|| panic!("{path}"))),
        None => value,
    }
}

/// All operations: path, method, what is said of them.
fn operations() -> Vec<(&'static str, &'static str, &'static Value)> {
    let paths = document()["paths"].as_object().unwrap();
    let of = |(path, methods): (&'static String, &'static Value)| {
        let methods = methods.as_object().unwrap().iter();
        methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation)).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of).collect()
}

/// The address of an operation, with the examples of its parameters.
fn address(path: &str, operation: &Value) -> String {
    let (mut address, mut query) = (path.to_string(), Vec::new());
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap();
        let example = match &parameter["example"] {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match parameter["in"].as_str() {
            Some("path") => address = address.replace(&format!("{{{name}}}"), &example),
            _ => query.push(format!("{name}={example}")),
        }
    }
    if query.is_empty() { address } else { format!("{address}?{}", query.join("&")) }
}

#[test]
fn every_route_is_described_and_every_description_has_a_route() {
    let quoted = ROUTES.split(".route(").skip(1).map(|rest| rest.split('"').nth(1).unwrap().replace("{*", "{"));
    let routes: BTreeSet<String> = quoted.collect();
    let described: BTreeSet<String> = document()["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(routes, described);
    // The methods, as the server knows them.
    let host = Host::shared();
    for path in described {
        for method in ["get", "post", "put", "patch", "delete"] {
            let operation = &document()["paths"][&path][method];
            let reply = host.send(&method.to_uppercase(), &path.replace(['{', '}'], ""), &[], "");
            assert_eq!(reply.status == 405, operation.is_null(), "{method} {path}: {}", reply.text());
        }
    }
}

/// Whether a value is as a schema says, as far as the schemas of this document go.
fn fits(value: &Value, schema: &'static Value) -> Result<(), String> {
    let schema = resolve(schema);
    let object = schema.as_object().unwrap();
    for (key, expected) in object {
        match key.as_str() {
            "allOf" => expected.as_array().unwrap().iter().try_for_each(|part| fits(value, part))?,
            "anyOf" => {
                let parts = expected.as_array().unwrap();
                if !parts.iter().any(|part| fits(value, part).is_ok()) {
                    return Err(format!("{value} is none of {expected}"));
                }
            }
            "type" if !is_of_type(value, schema) => {
                return Err(format!("{value}, expected {expected}"));
            }
            "const" if value != expected => return Err(format!("{value}, expected {expected}")),
            "enum" if !expected.as_array().unwrap().contains(value) => {
                return Err(format!("{value}, expected one of {expected}"));
            }
            "required" if value.is_object() => {
                let names = expected.as_array().unwrap();
                if let Some(name) = names.iter().find(|name| value.get(name.as_str().unwrap()).is_none()) {
                    return Err(format!("{value} has no {name}"));
                }
            }
            "properties" => {
                for (name, schema) in expected.as_object().unwrap() {
                    if let Some(part) = value.get(name) {
                        fits(part, schema).map_err(|what| format!("{name}: {what}"))?;
                    }
                }
            }
            "items" => value.as_array().into_iter().flatten().try_for_each(|item| fits(item, expected))?,
            _ => {}
        }
    }
    Ok(())
}

fn is_of_type(value: &Value, schema: &'static Value) -> bool {
    let types = types(schema);
    types.contains(kind(value)) || (kind(value) == "integer" && types.contains("number"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn types(schema: &'static Value) -> BTreeSet<&'static str> {
    match &schema["type"] {
        Value::String(one) => [one.as_str()].into(),
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => BTreeSet::new(),
    }
}

/// Every example is accepted, and its answer is what the document says.
#[test]
fn examples_are_answered() {
    let host = Host::shared();
    host.post("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 1})).ok();
    let mut answered = 0;
    for (path, method, operation) in operations() {
        let example = &operation["requestBody"]["content"]["application/json"]["example"];
        if path.starts_with("/v1/responses/{") {
            // What is kept has a name that nobody can know.
            continue;
        }
        let never = ["/infill", "/api/create", "/api/blobs/{digest}", "/api/copy", "/api/delete", "/api/push"];
        assert!(method != "post" || !example.is_null() || path.contains("/blobs/"), "{path} has no example");
        let body = if example.is_null() { String::new() } else { example.to_string() };
        let reply = host.send(&method.to_uppercase(), &address(path, operation), &[], &body);
        if never.contains(&path) || path.contains("/rerank") {
            // The model here has not learned it, or nobody may.
            assert_eq!(reply.status, 400, "{}", reply.text());
            continue;
        }
        assert_eq!(reply.status, 200, "{method} {path} {body}: {}", reply.text());
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        if !schema.is_null() {
            fits(&reply.json(), schema).unwrap_or_else(|what| panic!("{method} {path}: {what}"));
            answered += 1;
        }
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if !schema.is_null() {
            fits(example, schema).unwrap_or_else(|what| panic!("the example of {path}: {what}"));
        }
        let wrong = host.send(&method.to_uppercase(), &address(path, operation), &[], "3");
        let schema = &resolve(&operation["responses"]["400"])["content"]["application/json"]["schema"];
        if wrong.status == 400 {
            fits(&wrong.json(), schema).unwrap_or_else(|what| panic!("an error of {method} {path}: {what}"));
        }
    }
    assert!(answered > 25, "{answered}");
}

/// The fields of a request, those of its parts included.
fn fields(schema: &'static Value) -> Map<String, Value> {
    let mut all = Map::new();
    let schema = resolve(schema);
    for part in schema["allOf"].as_array().into_iter().flatten() {
        all.extend(fields(part));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        all.insert(name.clone(), field.clone());
    }
    all
}

/// Types that a field may have, wherever its schema says so.
fn possible(schema: &'static Value) -> BTreeSet<&'static str> {
    let schema = resolve(schema);
    let mut all = types(schema);
    for part in schema["anyOf"].as_array().into_iter().flatten() {
        all.extend(possible(part));
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        all.extend(possible(part));
    }
    all
}

/// Values that a field must not have: of every type it is not, and beyond its bounds.
fn wrong_values(schema: &'static Value) -> Vec<Value> {
    let possible = possible(schema);
    let mut wrong: Vec<Value> =
        [("boolean", json!(true)), ("string", json!("?")), ("array", json!([])), ("object", json!({}))]
            .into_iter()
            .filter(|(kind, _)| !possible.contains(kind))
            .map(|(_, value)| value)
            .collect();
    if !possible.contains("number") {
        wrong.push(if possible.contains("integer") { json!(1.5) } else { json!(1) });
    }
    match schema["minimum"].as_f64() {
        Some(least) if possible.contains("integer") && least > -9e15 => wrong.push(json!(least as i64 - 1)),
        Some(least) if possible.contains("number") && least == 0.0 => wrong.push(json!(-0.5)),
        _ => {}
    }
    match schema["maximum"].as_f64() {
        Some(most) if possible.contains("integer") && most < 9e15 => wrong.push(json!(most as i64 + 1)),
        Some(most) if possible.contains("number") => wrong.push(json!(most * 1.5)),
        _ => {}
    }
    if possible.contains("string") && schema.get("enum").is_some() {
        wrong.push(json!("nothing like it"));
    }
    wrong
}

/// Bounds themselves, which a field may have.
fn right_values(schema: &Value) -> Vec<Value> {
    ["minimum", "maximum"].into_iter().filter_map(|bound| schema.get(bound).cloned()).collect()
}

#[test]
fn types_and_bounds_are_those_that_are_checked() {
    let host = Host::shared();
    let (mut faults, mut asked) = (Vec::new(), 0);
    for (path, method, operation) in operations() {
        let content = &operation["requestBody"]["content"]["application/json"];
        if content.is_null() {
            continue;
        }
        // What one path does, the other paths of the same handler do.
        let alias = matches!(path, "/chat/completions" | "/embeddings" | "/completions");
        for (name, schema) in fields(&content["schema"]).into_iter().filter(|(name, _)| !alias && name != "filename") {
            let schema: &'static Value = Box::leak(Box::new(schema));
            let send = |value: &Value| {
                let mut body = content["example"].clone();
                // Where an answer may be of any length, it ends soon.
                (body["stop"], body["stop_sequences"]) = (json!(["e", "a", " "]), json!(["e", "a", " "]));
                if name == "top_logprobs" {
                    body["logprobs"] = json!(true);
                }
                body[&name] = value.clone();
                asked_of(host, (method, &address(path, operation)), &body)
            };
            for value in wrong_values(schema) {
                asked += 1;
                let (status, text) = send(&value);
                if status != 400 || !text.contains(name.as_str()) {
                    faults.push(format!("{path}: {name} = {value} is not refused: {status} {text}"));
                }
            }
            for value in right_values(schema) {
                asked += 1;
                let (status, text) = send(&value);
                // That it may be so large does not say that there is room for it.
                let is_elsewhere = matches!(name.as_str(), "dimensions" | "id_slot" | "to" | "best_of" | "timeout_ms")
                    // Only of a server whose sequences may hold fewer tokens.
                    || name.starts_with("kv_")
                    || name.starts_with("slake_");
                // What follows of it is refused: see the examples.
                let is_right = status == 200 || (status == 400 && text.contains("no tokens for filling in"));
                if !is_right && !is_elsewhere {
                    faults.push(format!("{path}: {name} = {value} is refused: {status} {text}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(asked > 500, "{asked}");
}

fn asked_of(host: &Host, (method, address): (&str, &str), body: &Value) -> (u16, String) {
    let reply = host.send(&method.to_uppercase(), address, &[], &body.to_string());
    (reply.status, reply.text().chars().take(300).collect())
}

#[test]
fn the_document_is_served_whole() {
    let reply = Host::shared().get("/openapi.json").ok();
    assert_eq!(&reply, document());
    assert_eq!(reply["info"]["version"], env!("CARGO_PKG_VERSION"));
    // Every reference leads somewhere, and what nobody refers to is not there.
    let references: BTreeSet<&str> =
        DOCUMENT.split("\"$ref\": \"#").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    for reference in &references {
        assert!(document().pointer(reference).is_some(), "{reference}");
    }
    for (kind, parts) in
        document()["components"].as_object().unwrap().iter().filter(|(kind, _)| *kind != "securitySchemes")
    {
        for name in parts.as_object().unwrap().keys() {
            assert!(references.contains(format!("/components/{kind}/{name}").as_str()), "{name} is not used");
        }
    }
}
