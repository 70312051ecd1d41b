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

/// What a file recommends.
#[derive(Debug, Default)]
pub struct Recommended {
    params: SamplerParams,
    /// Parameters that it says, which cannot be what it says, and why.
    unfit: Vec<(&'static str, ModelError)>,
}

impl Recommended {
    /// The parameters, and what is wrong with those that `given` says are given in their place.
    ///
    /// # Errors
    /// What is wrong with another one.
    pub fn unless(self, given: impl Fn(&str) -> bool) -> Result<(SamplerParams, Vec<ModelError>), ModelError> {
        let (passed_over, mut wrong): (Vec<_>, Vec<_>) = self.unfit.into_iter().partition(|(field, _)| given(field));
        if !wrong.is_empty() {
            return Err(wrong.swap_remove(0).1);
        }
        Ok((self.params, passed_over.into_iter().map(|(_, error)| error).collect()))
    }

    /// Has `put` bring in what the file says of a parameter, if that is something.
    fn take<T>(
        &mut self,
        (end, field): (&str, &'static str),
        said: Result<Option<T>, GgufError>,
        put: impl FnOnce(&mut SamplerParams, T) -> Result<(), (String, String)>,
    ) {
        let mut params = self.params.clone();
        let refuse = |(found, expected): (String, String)| bad(&format!("{PREFIX}{end}"), &found, &expected);
        let taken = said.map_err(ModelError::from).and_then(|said| {
            let Some(said) = said else { return Ok(()) };
            put(&mut params, said).and_then(|()| params.validate().map_err(in_two)).map_err(refuse)
        });
        match taken {
            Ok(()) => self.params = params,
            Err(error) => self.unfit.push((field, error)),
        }
    }
}

/// The parameters that a file recommends.
pub(super) fn recommended(metadata: &Metadata) -> Recommended {
    let mut found = Recommended::default();
    let key = |end: &str| format!("{PREFIX}{end}");
    for (end, field, place) in NUMBERS {
        found.take((end, field), metadata.float_opt(&key(end)), |params, number| {
            *place(params) = number;
            Ok(())
        });
    }
    for (end, field, place) in WHOLE {
        found.take((end, field), metadata.float_opt(&key(end)), |params, number| {
            *place(params) = whole(number).ok_or_else(|| (number.to_string(), "a whole number".into()))?;
            Ok(())
        });
    }
    found.take(("mirostat", "mirostat"), metadata.uint_opt(&key("mirostat")), |params, version| {
        params.mirostat = u32::try_from(version).unwrap_or(u32::MAX);
        Ok(())
    });
    found.take(("sequence", "samplers"), metadata.string_opt(&key("sequence")), |params, list| {
        params.samplers = parse_samplers(list).map_err(in_two)?;
        Ok(())
    });
    found
}

fn whole(number: f32) -> Option<i32> {
    let is_whole = number.fract() == 0.0 && (i32::MIN as f32..i32::MAX as f32).contains(&number);
    is_whole.then_some(number as i32)
}

/// What was found, and what was expected.
fn in_two(error: SamplingError) -> (String, String) {
    match error {
        SamplingError::Range { found, expected, .. } => (found, expected.into()),
        SamplingError::UnknownSampler { name, known } => (name, format!("some of {known}")),
        SamplingError::Token { .. } | SamplingError::Length { .. } | SamplingError::NoCandidate { .. } => {
            ("what it is".into(), error.to_string())
        }
    }
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
        let none_given = |metadata: &Metadata| recommended(metadata).unless(|_| false);
        assert_eq!(none_given(&metadata).unwrap().0, SamplerParams::default());
        let mut set = |end: &str, value| metadata.set(format!("{PREFIX}{end}"), value);
        set("temp", Value::F32(0.6));
        set("top_k", Value::I32(-1));
        set("penalty_last_n", Value::I32(128));
        set("mirostat", Value::I32(2));
        set("sequence", Value::String("top_k;temperature".into()));
        let (found, _) = none_given(&metadata).unwrap();
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
            ("sequence", Value::String("fox".into()), "key general.sampling.sequence = fox, expected some of "),
        ] {
            let mut wrong = metadata.clone();
            wrong.set(format!("{PREFIX}{end}"), value);
            let error = none_given(&wrong).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
            let (params, passed_over) = recommended(&wrong).unless(|_| true).unwrap();
            assert_eq!(passed_over.len(), 1);
            assert_eq!(passed_over[0].to_string(), error);
            assert!(params.validate().is_ok(), "{end}");
        }
    }
}
