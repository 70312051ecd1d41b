//! How the authors of a model would have its tokens chosen: what its file says of it, over the parameters of everybody.

use crate::{
    model::ModelError,
    sampling::{SamplerParams, SamplingError, parse_samplers},
};
use kvas_gguf::{GgufError, Metadata};

const PREFIX: &str = "general.sampling.";

/// Numbers by the end of their key, and the parameter that each is.
const NUMBERS: [(&str, &str); 10] = [
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("temp", "temperature"),
    ("xtc_probability", "xtc_probability"),
    ("xtc_threshold", "xtc_threshold"),
    ("penalty_last_n", "repeat_last"),
    ("penalty_repeat", "repeat_penalty"),
    ("mirostat_tau", "mirostat_tau"),
    ("mirostat_eta", "mirostat_eta"),
];

/// The parameters that a file recommends.
pub(super) fn recommended(metadata: &Metadata) -> Result<SamplerParams, ModelError> {
    let mut params = SamplerParams::default();
    for (end, name) in NUMBERS {
        let key = format!("{PREFIX}{end}");
        let Some(number) = metadata.float_opt(&key)? else { continue };
        match name {
            "top_k" => params.top_k = whole(&key, number)?,
            "repeat_last" => params.repeat_last = whole(&key, number)?,
            "top_p" => params.top_p = number,
            "min_p" => params.min_p = number,
            "temperature" => params.temperature = number,
            "xtc_probability" => params.xtc_probability = number,
            "xtc_threshold" => params.xtc_threshold = number,
            "repeat_penalty" => params.repeat_penalty = number,
            "mirostat_tau" => params.mirostat_tau = number,
            _ => params.mirostat_eta = number,
        }
    }
    if let Some(version) = metadata.uint_opt(&format!("{PREFIX}mirostat"))? {
        params.mirostat = u32::try_from(version).unwrap_or(u32::MAX);
    }
    let key = format!("{PREFIX}sequence");
    if let Some(list) = metadata.string_opt(&key)? {
        params.samplers = parse_samplers(list).map_err(|error| bad(&key, list, &error.to_string()))?;
    }
    params.validate().map_err(by_key)?;
    Ok(params)
}

fn whole(key: &str, number: f32) -> Result<i32, ModelError> {
    let is_whole = number.fract() == 0.0 && (i32::MIN as f32..i32::MAX as f32).contains(&number);
    if is_whole { Ok(number as i32) } else { Err(bad(key, &number.to_string(), "a whole number")) }
}

/// What is wrong with a parameter, by its key.
fn by_key(error: SamplingError) -> ModelError {
    let SamplingError::Range { field, found, expected } = &error else {
        return bad(PREFIX, "what it is", &error.to_string());
    };
    let end = NUMBERS.iter().find(|(_, name)| name == field).map_or(*field, |(end, _)| end);
    bad(&format!("{PREFIX}{end}"), found, expected)
}

fn bad(key: &str, found: &str, expected: &str) -> ModelError {
    GgufError::BadValue { key: key.into(), found: found.into(), expected: expected.into() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_gguf::Value;

    #[test]
    fn a_file_recommends_what_it_says_and_no_more() {
        let mut metadata = Metadata::default();
        assert_eq!(recommended(&metadata).unwrap(), SamplerParams::default());
        let mut set = |end: &str, value| metadata.set(format!("{PREFIX}{end}"), value);
        set("temp", Value::F32(0.6));
        set("top_k", Value::I32(-1));
        set("penalty_last_n", Value::I32(128));
        set("mirostat", Value::I32(2));
        set("sequence", Value::String("top_k;temperature".into()));
        let found = recommended(&metadata).unwrap();
        assert_eq!((found.temperature, found.top_k, found.repeat_last, found.mirostat), (0.6, -1, 128, 2));
        assert_eq!((found.samplers.len(), found.top_p), (2, SamplerParams::default().top_p));
        for (end, value, expected) in [
            ("temp", Value::F32(f32::NAN), "key general.sampling.temp = NaN, expected a finite number of at least 0"),
            ("temp", Value::String("x".into()), "key general.sampling.temp is string, expected number"),
            ("top_k", Value::F32(1.5), "key general.sampling.top_k = 1.5, expected a whole number"),
            (
                "penalty_repeat",
                Value::F32(0.0),
                "key general.sampling.penalty_repeat = 0, expected a finite number above 0",
            ),
            ("mirostat", Value::I32(1), "key general.sampling.mirostat = 1, expected 0 (off) or 2"),
            (
                "sequence",
                Value::String("fox".into()),
                "key general.sampling.sequence = fox, expected samplers: unknown",
            ),
        ] {
            let mut wrong = metadata.clone();
            wrong.set(format!("{PREFIX}{end}"), value);
            let error = recommended(&wrong).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
