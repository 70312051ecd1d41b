//! How the authors of a model would have its tokens chosen: what its file says of it, over the parameters of everybody.

use crate::{
    model::ModelError,
    sampling::{SamplerParams, SamplingError, parse_samplers},
};
use kvas_gguf::{GgufError, Metadata};

const PREFIX: &str = "general.sampling.";

/// A number by the end of its key, the parameter that it is, and where that is.
type Row<T> = (&'static str, &'static str, fn(&mut SamplerParams) -> &mut T);

const NUMBERS: [Row<f32>; 8] = [
    ("top_p", "top_p", |params| &mut params.top_p),
    ("min_p", "min_p", |params| &mut params.min_p),
    ("temp", "temperature", |params| &mut params.temperature),
    ("xtc_probability", "xtc_probability", |params| &mut params.xtc_probability),
    ("xtc_threshold", "xtc_threshold", |params| &mut params.xtc_threshold),
    ("penalty_repeat", "repeat_penalty", |params| &mut params.repeat_penalty),
    ("mirostat_tau", "mirostat_tau", |params| &mut params.mirostat_tau),
    ("mirostat_eta", "mirostat_eta", |params| &mut params.mirostat_eta),
];

const WHOLE: [Row<i32>; 2] = [
    ("top_k", "top_k", |params| &mut params.top_k),
    ("penalty_last_n", "repeat_last", |params| &mut params.repeat_last),
];

/// The parameters that a file recommends.
pub(super) fn recommended(metadata: &Metadata) -> Result<SamplerParams, ModelError> {
    let mut params = SamplerParams::default();
    for (end, _, place) in NUMBERS {
        if let Some(number) = metadata.float_opt(&format!("{PREFIX}{end}"))? {
            *place(&mut params) = number;
        }
    }
    for (end, _, place) in WHOLE {
        let key = format!("{PREFIX}{end}");
        if let Some(number) = metadata.float_opt(&key)? {
            *place(&mut params) = whole(&key, number)?;
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
    let mut names =
        NUMBERS.map(|(end, name, _)| (end, name)).into_iter().chain(WHOLE.map(|(end, name, _)| (end, name)));
    let end = names.find(|(_, name)| name == field).map_or(*field, |(end, _)| end);
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
