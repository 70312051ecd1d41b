//! Defaults, ranges, JSON forms, and the two ways to write an order of samplers.

use super::*;
use crate::sampling::parse_samplers;

#[test]
fn every_range_is_checked_by_name() {
    assert_eq!(SamplerParams::default().validate(), Ok(()));
    let bad = |json: &str| {
        let params: SamplerParams = serde_json::from_str(json).unwrap();
        params.validate().unwrap_err().to_string()
    };
    let breakers = serde_json::json!({"dry_sequence_breakers": vec!["x"; 129]}).to_string();
    assert_eq!(bad(&breakers), "dry_sequence_breakers: 129 texts, expected at most 128");
    assert_eq!(bad(r#"{"temperature": -1}"#), "temperature: -1, expected a finite number of at least 0");
    assert_eq!(bad(r#"{"top_p": 1.5}"#), "top_p: 1.5, expected 0 to 1");
    assert_eq!(bad(r#"{"repeat_penalty": 0}"#), "repeat_penalty: 0, expected a finite number above 0");
    assert_eq!(bad(r#"{"repeat_last": -2}"#), "repeat_last: -2, expected -1 (all), 0 (none) or a number of tokens");
    assert_eq!(bad(r#"{"mirostat": 1}"#), "mirostat: 1, expected 0 (off) or 2");
    assert_eq!(bad(r#"{"presence_penalty": 1e39}"#), "presence_penalty: inf, expected a finite number");
    assert_eq!(bad(r#"{"logit_bias": [[7, 1e39]]}"#), "logit_bias: inf for token 7, expected a finite number or -inf");
    for (field, value) in [
        ("dynatemp_range", "-0.5"),
        ("dynatemp_exponent", "-0.5"),
        ("min_p", "-0.1"),
        ("typical_p", "2"),
        ("top_n_sigma", "-1e39"),
        ("frequency_penalty", "-1e39"),
        ("dry_multiplier", "-1"),
        ("dry_base", "0.5"),
        ("dry_penalty_last", "-3"),
        ("xtc_probability", "1.1"),
        ("xtc_threshold", "-0.1"),
        ("mirostat_tau", "-1"),
        ("mirostat_eta", "1e39"),
    ] {
        let message = bad(&format!("{{\"{field}\": {value}}}"));
        assert!(message.starts_with(&format!("{field}: ")), "{message}");
    }
    let nan = SamplerParams { min_p: f32::NAN, ..plain() };
    assert_eq!(nan.validate().unwrap_err().to_string(), "min_p: NaN, expected 0 to 1");
    assert!(Sampler::new(nan, 4, &[]).is_err());
}

#[test]
fn json_has_defaults_aliases_and_the_server_forms() {
    let read = |json: &str| serde_json::from_str::<SamplerParams>(json);
    assert_eq!(read("{}").unwrap(), SamplerParams::default());
    let params = read(r#"{"temp": 0.5, "typ_p": 0.9, "repeat_last_n": 7, "dry_penalty_last_n": 9}"#).unwrap();
    assert_eq!((params.temperature, params.typical_p), (0.5, 0.9));
    assert_eq!((params.repeat_last, params.dry_penalty_last), (7, 9));
    assert_eq!(read(r#"{"seed": -1}"#).unwrap().seed, None);
    assert_eq!(read(r#"{"seed": 18446744073709551615}"#).unwrap().seed, Some(u64::MAX));
    assert!(read(r#"{"seed": "x"}"#).is_err());
    let params = read(r#"{"logit_bias": [[3, false], [4, 1.5]], "samplers": ["top_k", "temperature"]}"#).unwrap();
    assert_eq!(params.logit_bias, [(3, f32::NEG_INFINITY), (4, 1.5)]);
    assert_eq!(params.samplers, [SamplerKind::TopK, SamplerKind::Temperature]);
    assert_eq!(read(r#"{"samplers": "kt"}"#).unwrap().samplers, params.samplers);
    assert_eq!(read(&serde_json::to_string(&params).unwrap()).unwrap(), params);
    assert!(read(r#"{"samplers": ["no"]}"#).unwrap_err().to_string().contains("unknown sampler \"no\""));
}

#[test]
fn orders_are_names_or_letters() {
    assert_eq!(parse_samplers("edskypmxt").unwrap(), SamplerKind::DEFAULT_ORDER);
    let names = SamplerKind::DEFAULT_ORDER.map(SamplerKind::name).join(";");
    assert_eq!(names, "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature");
    assert_eq!(parse_samplers(&names).unwrap(), SamplerKind::DEFAULT_ORDER);
    let letters: String = SamplerKind::DEFAULT_ORDER.map(SamplerKind::letter).iter().collect();
    assert_eq!(letters, "edskypmxt");
    assert_eq!(parse_samplers("top-k; Nucleus ;temp;").unwrap().len(), 3);
    assert_eq!(parse_samplers("temp").unwrap(), [SamplerKind::Temperature]);
    assert_eq!(parse_samplers("").unwrap(), []);
    let error = parse_samplers("top_k;tfs").unwrap_err().to_string();
    assert!(error.starts_with("samplers: unknown sampler \"tfs\", expected some of penalties (e), dry (d)"), "{error}");
    assert!(parse_samplers("kq").is_err());
}
