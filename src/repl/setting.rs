//! `/set`: a setting by its name, from a value as people write it.

use crate::{
    chat::ChatSettings,
    sampling::{SamplerParams, SamplingError},
};
use serde_json::{Map, Value, json};

/// Names that settings have elsewhere, as flags or in other programs, and here.
const ALIASES: &[(&str, &str)] = &[
    ("temp", "temperature"),
    ("typical", "typical_p"),
    ("typ_p", "typical_p"),
    ("top_nsigma", "top_n_sigma"),
    ("dynatemp_exp", "dynatemp_exponent"),
    ("repeat_last_n", "repeat_last"),
    ("dry_penalty_last_n", "dry_penalty_last"),
    ("dry_sequence_breaker", "dry_sequence_breakers"),
    ("mirostat_ent", "mirostat_tau"),
    ("mirostat_lr", "mirostat_eta"),
    ("predict", "max_tokens"),
    ("n_predict", "max_tokens"),
    ("num_predict", "max_tokens"),
    ("reverse_prompt", "stop"),
    ("chat_template_kwargs", "template"),
];

/// The settings with one of them changed, and a line that says to what. `argument` is `NAME VALUE` or `NAME=VALUE`.
pub(super) fn set(settings: &ChatSettings, argument: &str) -> Result<(ChatSettings, String), String> {
    let (typed, value) = argument
        .split_once(|c: char| c.is_whitespace() || c == '=')
        .ok_or("/set wants a name and a value; /show lists the names")?;
    let value = value.trim_start_matches(|c: char| c.is_whitespace() || c == '=').trim_end();
    let name = typed.trim_start_matches("--").replace('-', "_");
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(&name[..], |(_, name)| name);
    let mut all = settings.to_json();
    let usual = ChatSettings::default().to_json();
    let usual = usual.get(name).ok_or_else(|| format!("{typed} is no setting; /show lists them"))?;
    let new = read(name, value);
    let said = format!("{name} = {new}");
    if !is_like(name, &new, usual) {
        return Err(format!("{name}: {value}, expected {}", expected(name, usual, &all)));
    }
    all.insert(name.into(), new);
    // The name stands before what is wrong with most of them.
    let named = |error: String| if error.starts_with(name) { error } else { format!("{name}: {error}") };
    Ok((ChatSettings::of_json(all).map_err(named)?, said))
}

/// Whether a setting is a list of texts.
fn is_of_texts(name: &str) -> bool {
    matches!(name, "stop" | "dry_sequence_breakers")
}

/// Whether a setting is a number of tokens, or -1.
fn is_bound(name: &str) -> bool {
    matches!(name, "max_tokens" | "reasoning_budget")
}

/// Numbers, lists and objects are JSON; anything else is text, which is a list where lists of texts are wanted.
fn read(name: &str, value: &str) -> Value {
    let new = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
    if is_of_texts(name) && !new.is_array() {
        let text = new.as_str().map_or_else(|| value.to_string(), str::to_string);
        return json!([text]);
    }
    new
}

/// Whether a value is of the kind that a setting usually has.
fn is_like(name: &str, new: &Value, usual: &Value) -> bool {
    let is_list = |value: &Value| value.as_array().is_some_and(|texts| texts.iter().all(Value::is_string));
    match usual {
        Value::Array(_) if is_of_texts(name) => is_list(new),
        Value::Array(_) if name == "samplers" => new.is_string() || is_list(new),
        Value::Array(_) => new.as_array().is_some_and(|pairs| pairs.iter().all(is_bias)),
        Value::Object(_) => new.is_object(),
        Value::Number(number) if number.is_f64() => new.is_number(),
        Value::Number(_) if is_bound(name) => *new == json!(-1) || new.is_u64(),
        Value::Number(_) => new.as_i64().is_some_and(|number| number <= i32::MAX.into() && number >= least(name)),
        // The seed.
        Value::Null => new.is_null() || new.is_u64() || new.is_i64(),
        Value::Bool(_) | Value::String(_) => true,
    }
}

/// The least whole number that has room in a setting.
fn least(name: &str) -> i64 {
    if matches!(name, "mirostat" | "dry_allowed_length" | "min_keep") { 0 } else { i32::MIN.into() }
}

fn is_bias(pair: &Value) -> bool {
    let [token, bias] = &pair.as_array().map_or(&[][..], Vec::as_slice) else { return false };
    token.as_u64().is_some_and(|token| u32::try_from(token).is_ok()) && (bias.is_number() || bias.is_boolean())
}

/// What a setting has to be, in words.
fn expected(name: &str, usual: &Value, all: &Map<String, Value>) -> String {
    match usual {
        Value::Array(_) if is_of_texts(name) => "a text, or a list of texts as in [\"one\", \"two\"]".into(),
        Value::Array(_) if name == "samplers" => "their names in order, as in top_k;top_p;temperature".into(),
        Value::Array(_) => "a list of tokens and numbers, as in [[15043, 1.5], [29991, false]]".into(),
        Value::Object(_) => "a JSON object of its variables, as in {\"enable_thinking\": false}".into(),
        Value::Null => "a whole number, or null for one from the system".into(),
        Value::Bool(_) | Value::String(_) => "a text".into(),
        Value::Number(_) if is_bound(name) => "a whole number, or -1 for no bound".into(),
        Value::Number(number) => bounds(name, all).unwrap_or_else(|| {
            let from = if least(name) == 0 { " of at least 0" } else { "" };
            if number.is_f64() { "a number".into() } else { format!("a whole number{from}") }
        }),
    }
}

/// The range of a number, as it is told to who leaves it: one of these does, if any does.
fn bounds(name: &str, all: &Map<String, Value>) -> Option<String> {
    [json!(-1e30), json!(i32::MIN), json!(1)].into_iter().find_map(|outside| {
        let mut all = all.clone();
        all.insert(name.into(), outside);
        let params: SamplerParams = serde_json::from_value(Value::Object(all)).ok()?;
        match params.validate() {
            Err(SamplingError::Range { expected, .. }) => Some(expected.into()),
            Err(_) | Ok(()) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(arguments: &[&str]) -> Result<(ChatSettings, String), String> {
        let begun = (ChatSettings::default(), String::new());
        arguments.iter().try_fold(begun, |(settings, _), argument| set(&settings, argument))
    }

    #[test]
    fn settings_go_by_the_names_of_flags_too() {
        for argument in ["temperature 0.5", "temp 0.5", "--temp 0.5", "temp=0.5", "temp = 0.5"] {
            let (settings, said) = after(&[argument]).unwrap();
            assert_eq!((settings.params.temperature, &said[..]), (0.5, "temperature = 0.5"), "{argument}");
        }
        let known = ChatSettings::default().to_json();
        assert!(ALIASES.iter().all(|(alias, name)| known.contains_key(*name) && !known.contains_key(*alias)));
        assert_eq!(after(&["n_predict 7"]).unwrap().0.max_tokens, 7);
        assert_eq!(after(&["stop END"]).unwrap().0.stop_strings, ["END"]);
        assert_eq!(after(&["stop [\"a\", \"b\"]"]).unwrap().0.stop_strings, ["a", "b"]);
        assert_eq!(after(&["seed 7", "seed null"]).unwrap().0.params.seed, None);
        let names: Vec<&str> =
            after(&["samplers top_k;temp"]).unwrap().0.params.samplers.iter().map(|s| s.name()).collect();
        assert_eq!(names, ["top_k", "temperature"]);
    }

    /// Whatever the setting, what is wrong is said in words of those who write it.
    #[test]
    fn what_no_setting_takes_is_told_in_plain_words() {
        for name in ChatSettings::default().to_json().keys() {
            for value in ["hot", "1.5.5", "[1]", "{\"a\": 1", "-7", "0.25", "true", "99999999999999999999999"] {
                let Err(said) = after(&[&format!("{name} {value}")]) else { continue };
                let is_plain =
                    !["f32", "i32", "u32", "untagged", "a sequence", "a map"].iter().any(|word| said.contains(word));
                assert!(said.starts_with(&format!("{name}: ")) && said.contains("expected "), "{said}");
                assert!(is_plain && said.matches(name.as_str()).count() == 1, "{said}");
            }
        }
        let said = |argument: &str| after(&[argument]).unwrap_err();
        assert_eq!(said("temp hot"), "temperature: hot, expected a finite number of at least 0");
        assert_eq!(said("top_p 2"), "top_p: 2, expected 0 to 1");
        assert_eq!(said("top_p x"), "top_p: x, expected 0 to 1");
        assert_eq!(said("top_k 1.5"), "top_k: 1.5, expected a whole number");
        assert_eq!(said("mirostat on"), "mirostat: on, expected 0 (off) or 2");
        assert_eq!(said("seed x"), "seed: x, expected a whole number, or null for one from the system");
        assert_eq!(said("colour red"), "colour is no setting; /show lists them");
    }
}
