//! What the OpenAI and llama.cpp forms of a request have in common: sampling, length, stop strings, formats, slots.

use super::{
    ApiError, Fields,
    access::salted,
    fields::{MOST_TOKENS, wrong},
    generate::{EndOfAnswer, GenerateRequest},
    served::Served,
    slots::{Arrival, SlotRequest},
    token_rules::TokenRules,
};
use crate::{
    engine::{Cache, Reported},
    grammar::{Grammar, Stage, compile},
    policy::{BoundOverrides, EvictionScore, PolicyKind},
    sampling::{SamplerParams, SamplingError, parse_samplers},
    speculation::{self, DrafterChoice},
    text::{Bos, Special},
};
use indexmap::IndexMap;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Most likeliest tokens that are reported.
pub const MOST_LIKELIEST: usize = 100;
/// What is expected where adapters are set.
pub const NO_ADAPTERS: &str = "an empty list: this server has no adapters (kvas convert --lora merges them)";
/// Most stop strings of a request.
const MOST_STOPS: usize = 64;
/// Most answers to one prompt.
pub const MOST_ANSWERS: usize = 128;

/// Numbers of the sampler that a request may set, under the names of llama.cpp and OpenAI.
const NUMBERS: &[&str] = &[
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "xtc_probability",
    "xtc_threshold",
    "mirostat_tau",
    "mirostat_eta",
];
/// Whole numbers, with the name each has here and the least it may be.
const WHOLE: &[(&str, &str, i32)] = &[
    ("top_k", "top_k", i32::MIN),
    ("repeat_last_n", "repeat_last", -1),
    ("dry_allowed_length", "dry_allowed_length", 0),
    ("dry_penalty_last_n", "dry_penalty_last", -1),
    ("mirostat", "mirostat", 0),
    ("min_keep", "min_keep", 0),
];

/// Sampling parameters under the names by which a request sets them.
pub fn settings(params: &SamplerParams) -> Result<Value, ApiError> {
    let mut params = serde_json::to_value(params).map_err(|error| ApiError::internal(error.to_string()))?;
    if let Value::Object(params) = &mut params {
        for (theirs, ours, _) in WHOLE.iter().filter(|(theirs, ours, _)| theirs != ours) {
            let value = params.remove(*ours).unwrap_or_default();
            params.insert((*theirs).into(), value);
        }
    }
    Ok(params)
}

/// Sampling parameters: those of the server, but for what the request says.
pub fn sampling(fields: &Fields<'_>, served: &Served) -> Result<SamplerParams, ApiError> {
    let mut params = serde_json::to_value(&served.defaults).map_err(|error| ApiError::internal(error.to_string()))?;
    let mut set = |name: &str, value: Value| params[name] = value;
    for name in NUMBERS {
        if let Some(number) = fields.number(&[name])? {
            set(name, json!(number));
        }
    }
    // What vLLM calls the penalty of repetitions.
    if let Some(number) = fields.number(&["repetition_penalty"])? {
        set("repeat_penalty", json!(number));
    }
    for (theirs, ours, least) in WHOLE {
        if let Some(number) = fields.whole(&[theirs])? {
            let range = *least..=i32::MAX;
            let fits = i32::try_from(number).ok().filter(|number| range.contains(number));
            let what = || format!("{number}, expected {least} to {}", i32::MAX);
            set(ours, json!(fits.ok_or_else(|| ApiError::field(&fields.name(theirs), what()))?));
        }
    }
    match fields.get("seed").and_then(Value::as_u64) {
        Some(seed) => set("seed", json!(seed)),
        None => {
            if let Some(seed) = fields.whole(&["seed"])? {
                set("seed", json!(seed));
            }
        }
    }
    if fields.get("dry_sequence_breakers").is_some() {
        set("dry_sequence_breakers", json!(fields.texts("dry_sequence_breakers")?));
    }
    let mut params: SamplerParams =
        serde_json::from_value(params).map_err(|error| ApiError::bad(format!("sampling parameters: {error}")))?;
    match fields.get("samplers") {
        None => {}
        Some(Value::String(letters)) => {
            params.samplers = parse_samplers(letters).map_err(|error| refused(fields, error))?;
        }
        // Of a list each is a name.
        Some(_) => {
            let named = fields.texts("samplers")?.iter().map(|name| name.parse()).collect::<Result<_, _>>();
            params.samplers = named.map_err(|error| refused(fields, error))?;
        }
    }
    if let Some(bias) = fields.get("logit_bias") {
        params.logit_bias = logit_bias(bias, served)?;
    }
    params.validate().map_err(|error| refused(fields, error))?;
    Ok(params)
}

/// What is wrong with a parameter, by the name that the request has for it.
fn refused(fields: &Fields<'_>, error: SamplingError) -> ApiError {
    match error {
        SamplingError::Range { field: "repeat_penalty", found, expected }
            if fields.get("repetition_penalty").is_some() =>
        {
            ApiError::field(&fields.name("repetition_penalty"), format!("{found}, expected {expected}"))
        }
        SamplingError::Range { field, found, expected } => {
            let theirs = WHOLE.iter().find(|(_, ours, _)| *ours == field).map_or(field, |(theirs, ..)| theirs);
            ApiError::field(&fields.name(theirs), format!("{found}, expected {expected}"))
        }
        SamplingError::UnknownSampler { .. }
        | SamplingError::Token { .. }
        | SamplingError::Length { .. }
        | SamplingError::NoCandidate { .. } => ApiError::at(fields.name(&error.to_string())),
    }
}

/// `{"15043": -100}` as OpenAI has it, or `[[15043, 1.5], ["text", false]]` as llama.cpp does.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other kinds of JSON are refused")]
fn logit_bias(value: &Value, served: &Served) -> Result<Vec<(u32, f32)>, ApiError> {
    let expected = "an object of token ids and numbers, or a list of pairs";
    let refuse = || wrong("logit_bias", value, expected);
    let pairs: Vec<(Value, Value)> = match value {
        Value::Object(map) => {
            // Names in JSON are texts; those of digits are ids here, where in a pair they would be text.
            let token = |name: &str| name.parse::<u64>().map_or_else(|_| json!(name), |id| json!(id));
            map.iter().map(|(name, bias)| (token(name), bias.clone())).collect()
        }
        Value::Array(list) => {
            let pair = |item: &Value| match item.as_array().map(Vec::as_slice) {
                Some([token, bias]) => Ok((token.clone(), bias.clone())),
                _ => Err(refuse()),
            };
            list.iter().map(pair).collect::<Result<_, _>>()?
        }
        _ => return Err(refuse()),
    };
    // A long text has the same tokens again and again.
    let mut all = IndexMap::new();
    for (token, bias) in pairs {
        let bias = if bias == false { f32::NEG_INFINITY } else { bias.as_f64().ok_or_else(refuse)? as f32 };
        let tokens: Vec<u32> = match token.as_str() {
            Some(text) => served.tokens(text, Special::Parse, Bos::Omit),
            None => vec![token.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(refuse)?],
        };
        if let Some(id) = tokens.iter().find(|id| **id as usize >= served.facts.vocab) {
            return Err(ApiError::field(
                "logit_bias",
                format!("token {id}, expected less than {}", served.facts.vocab),
            ));
        }
        block_in_place(|| tokens.into_iter().for_each(|id| *all.entry(id).or_insert(0.0) += bias));
    }
    Ok(all.into_iter().collect())
}

/// The texts that end an answer.
pub fn stop_strings(fields: &Fields<'_>, field: &str) -> Result<Vec<String>, ApiError> {
    let all = fields.texts(field)?;
    if all.len() > MOST_STOPS {
        return Err(ApiError::field(field, format!("{} texts, expected at most {MOST_STOPS}", all.len())));
    }
    Ok(all)
}

/// What a prompt may begin with of what was read and generated before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Whose it has to be: the caller's, or of those only who know the same salt.
    pub scope: u64,
    /// Whether it is to be used.
    pub cache: Cache,
}

impl Known {
    /// What a request says, whose caller has this scope.
    pub fn of(fields: &Fields<'_>, scope: u64) -> Result<Self, ApiError> {
        let cache = if fields.flag("cache_prompt")?.unwrap_or(true) { Cache::Use } else { Cache::Ignore };
        let empty = || ApiError::field(&fields.name("cache_salt"), "\"\", expected a text that is not empty");
        let scope = match fields.text("cache_salt")? {
            None => scope,
            Some("") => return Err(empty()),
            Some(salt) => salted(scope, salt),
        };
        Ok(Self { scope, cache })
    }
}

/// Refuses to answer with adapters that are not there: an answer without them is not what was asked for.
fn without_adapters(fields: &Fields<'_>) -> Result<(), ApiError> {
    match fields.get("lora") {
        Some(adapters) if adapters.as_array().is_none_or(|list| !list.is_empty()) => {
            Err(wrong(&fields.name("lora"), adapters, NO_ADAPTERS))
        }
        Some(_) | None => Ok(()),
    }
}

/// Everything about an answer but its prompt.
pub fn ask(fields: &Fields<'_>, served: &Served, scope: u64) -> Result<GenerateRequest, ApiError> {
    without_adapters(fields)?;
    let stop_strings = stop_strings(fields, "stop")?;
    let ignore = fields.flag("ignore_eos")?.unwrap_or(false);
    let Known { scope, cache } = Known::of(fields, scope)?;
    let slot = match fields.whole(&["id_slot"])? {
        None | Some(-1) => None,
        Some(id) => {
            Some(usize::try_from(id).map_err(|_| ApiError::field("id_slot", format!("{id}, expected a slot")))?)
        }
    };
    let mut session = None;
    for name in ["session_id", "prompt_cache_key", "user", "safety_identifier"] {
        session = session.or(fields.text(name)?);
    }
    let priority = fields.whole(&["priority"])?.unwrap_or(0);
    let speculation = speculation(fields, served)?;
    let patience = fields.count(&["timeout_ms"], (1, 1 << 40))?.map(|ms| Duration::from_millis(ms as u64));
    Ok(GenerateRequest {
        prompt: Vec::new(),
        text: None,
        params: sampling(fields, served)?,
        max_tokens: length(fields)?,
        min_tokens: fields.tokens("min_tokens", 0)?.unwrap_or(0),
        stop_strings,
        end: if ignore { EndOfAnswer::Never } else { EndOfAnswer::ByModel },
        rules: TokenRules::of(fields, served)?,
        top_tokens: None,
        reported: Reported::Model,
        predict: None,
        progress: false,
        hides_reasoning: false,
        score: None,
        stages: Vec::new(),
        cache,
        slot_request: SlotRequest {
            slot,
            session: session.map(str::to_string),
            scope,
            priority,
            ..SlotRequest::default()
        },
        asked: Instant::now(),
        patience,
        reader: None,
        bound: bound(fields)?,
        speculation,
    })
}

/// How many tokens the sequence holds.
fn bound(fields: &Fields<'_>) -> Result<BoundOverrides, ApiError> {
    let named = |field: &str, expected: &str, name: &str| {
        ApiError::field(&fields.name(field), format!("{name}, expected {expected}"))
    };
    let policy = match fields.text("kv_policy")? {
        None => None,
        Some(name) => {
            let kind = PolicyKind::from_name(name);
            Some(kind.ok_or_else(|| named("kv_policy", PolicyKind::NAMES, name))?)
        }
    };
    let score = match fields.text("slake_score")? {
        None => None,
        Some(name) => {
            Some(EvictionScore::from_name(name).ok_or_else(|| named("slake_score", "cake, vabs or window", name))?)
        }
    };
    let mass_cap = fields.number(&["slake_mass_cap"])?.map(|cap| cap as f32);
    if let Some(cap) = mass_cap.filter(|cap| !(0.0..=2.0).contains(cap)) {
        return Err(named("slake_mass_cap", "0 to 2", &cap.to_string()));
    }
    Ok(BoundOverrides {
        policy,
        budget: fields.count(&["kv_budget"], (1, MOST_TOKENS))?,
        window: fields.count(&["slake_window"], (1, MOST_TOKENS))?,
        sinks: fields.count(&["slake_sinks"], (0, MOST_TOKENS))?,
        score,
        mass_cap,
    })
}

/// Who drafts the answer and how much at once: `spec` and `spec_max`, or llama.cpp's `speculative.n_max`.
fn speculation(fields: &Fields<'_>, served: &Served) -> Result<speculation::DraftOptions, ApiError> {
    let most = fields.count(&["spec_max", "speculative.n_max"], (0, MOST_TOKENS))?;
    let Some(name) = fields.text("spec")? else {
        return Ok(speculation::DraftOptions { which: DrafterChoice::Auto, most });
    };
    let refuse = |expected: &str| ApiError::field(&fields.name("spec"), format!("{name:?}, expected {expected}"));
    let which = DrafterChoice::from_name(name).ok_or_else(|| refuse(DrafterChoice::NAMES))?;
    match which {
        DrafterChoice::Only(kind) if !served.facts.drafters.contains(&kind) => {
            let known = served.facts.drafters.iter().map(|kind| kind.name());
            Err(refuse(&["auto", "off"].into_iter().chain(known).collect::<Vec<_>>().join(", ")))
        }
        DrafterChoice::Auto | DrafterChoice::Off | DrafterChoice::Only(_) => {
            Ok(speculation::DraftOptions { which, most })
        }
    }
}

/// What the most tokens of an answer are called; the first one given counts.
const LENGTHS: [&str; 3] = ["max_completion_tokens", "max_tokens", "n_predict"];

/// Whether a request says how long its answer may be, if only that it ends by itself.
pub fn says_length(fields: &Fields<'_>) -> bool {
    LENGTHS.iter().any(|name| fields.get(name).is_some())
}

/// Most tokens of the answer.
fn length(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let mut lengths = Vec::new();
    for name in LENGTHS {
        match fields.get(name).map(Value::as_i64) {
            None => {}
            // llama.cpp's ways to say: to the end of the answer, and of the context.
            Some(Some(-2 | -1)) => lengths.push(None),
            Some(_) => lengths.push(fields.tokens(name, 0)?),
        }
    }
    Ok(lengths.into_iter().next().flatten())
}

/// Whether a stream is to end with what it cost.
pub fn with_usage(fields: &Fields<'_>) -> Result<bool, ApiError> {
    let wanted = fields.object("stream_options")?.map(|options| options.flag("include_usage")).transpose()?;
    Ok(wanted.flatten().unwrap_or(false))
}

/// How many answers are wanted.
pub fn answers(fields: &Fields<'_>) -> Result<usize, ApiError> {
    Ok(fields.count(&["n", "n_cmpl"], (1, MOST_ANSWERS))?.unwrap_or(1))
}

/// Asks for several answers: equal ones but for their seeds.
pub fn several(ask: GenerateRequest, count: usize) -> Vec<GenerateRequest> {
    let with_seed = |index: u64| {
        let mut ask = ask.clone();
        ask.params.seed = ask.params.seed.map(|seed| seed.wrapping_add(index));
        ask.slot_request.slot = ask.slot_request.slot.filter(|_| index == 0);
        if index > 0 {
            ask.slot_request.arrival = Arrival::Admitted;
        }
        ask
    };
    (0..count as u64).map(with_seed).collect()
}

/// The format an answer has to have: `grammar`, `json_schema`, `regex`, `response_format` and vLLM's `structured_outputs`, whose
/// fields were `guided_…` before.
pub fn grammar(fields: &Fields<'_>) -> Result<Option<Grammar>, ApiError> {
    grammar_beside(fields, None)
}

/// The same, beside the one that an API's own field asks for.
pub fn grammar_beside(fields: &Fields<'_>, own: Option<Grammar>) -> Result<Option<Grammar>, ApiError> {
    let mut wanted = Vec::from_iter(own);
    for name in ["grammar", "guided_grammar"] {
        wanted.extend(gbnf(fields, name)?);
    }
    for name in ["regex", "guided_regex"] {
        wanted.extend(fields.text(name)?.map(|text| Grammar::Regex(text.into())));
    }
    for name in ["json_schema", "guided_json"] {
        wanted.extend(schema(fields, name)?);
    }
    wanted.extend(choice(fields, "guided_choice")?);
    if let Some(structured) = fields.object("structured_outputs")? {
        wanted.extend(gbnf(&structured, "grammar")?);
        wanted.extend(structured.text("regex")?.map(|text| Grammar::Regex(text.into())));
        wanted.extend(schema(&structured, "json")?);
        wanted.extend(choice(&structured, "choice")?);
        wanted.extend(structured.flag("json_object")?.filter(|on| *on).map(|_| Grammar::JsonObject));
        if structured.get("structural_tag").is_some() {
            let name = structured.name("structural_tag");
            return Err(ApiError::field(
                &name,
                "there are none here, expected json, regex, choice, grammar or json_object",
            ));
        }
    }
    if let Some(format) = fields.object("response_format")? {
        wanted.extend(response_format(&format, "json_schema")?);
    }
    match wanted.len() {
        0 | 1 => Ok(wanted.pop()),
        _ => Err(ApiError::bad("grammar, json_schema, regex and response_format, expected one of them")),
    }
}

/// A grammar in GBNF. An empty one is none.
fn gbnf(fields: &Fields<'_>, field: &str) -> Result<Option<Grammar>, ApiError> {
    Ok(fields.text(field)?.filter(|text| !text.is_empty()).map(|text| Grammar::Gbnf(text.into())))
}

/// Texts of which the answer is one.
fn choice(fields: &Fields<'_>, field: &str) -> Result<Option<Grammar>, ApiError> {
    let texts = fields.texts(field)?;
    match fields.get(field) {
        None => Ok(None),
        Some(found) if texts.is_empty() => Err(wrong(&fields.name(field), found, "at least one text")),
        Some(_) => Ok(Some(Grammar::choice(&texts))),
    }
}

/// A JSON schema.
fn schema(fields: &Fields<'_>, field: &str) -> Result<Option<Grammar>, ApiError> {
    match fields.get(field) {
        None => Ok(None),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
        Some(other) => Err(wrong(&fields.name(field), other, "a JSON schema")),
    }
}

/// OpenAI's `response_format`, and the `text.format` of its Responses. `holder` is the field that the API has for a schema.
pub fn response_format(format: &Fields<'_>, holder: &str) -> Result<Option<Grammar>, ApiError> {
    match format.need("type", "text, json_object or json_schema")?.as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(schema(format, "schema")?.unwrap_or(Grammar::JsonObject))),
        Some("json_schema") => {
            let inner = format.object("json_schema")?;
            let found = schema(inner.as_ref().unwrap_or(format), "schema")?;
            let missing = || match (&inner, holder) {
                (Some(inner), _) => ApiError::field(&inner.name("schema"), "missing, expected a JSON schema"),
                (None, "schema") => ApiError::field(&format.name(holder), "missing, expected a JSON schema"),
                (None, _) => ApiError::field(&format.name(holder), "missing, expected an object with a schema"),
            };
            found.ok_or_else(missing).map(Some)
        }
        _ => Err(wrong(&format.name("type"), &format.map()["type"], "text, json_object or json_schema")),
    }
}

/// Work that may take a while: other requests go on meanwhile.
pub fn block_in_place<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// How many tokens of reasoning there may be, where a request says it: within, `None` is without a bound.
pub fn reasoning_budget(fields: &Fields<'_>) -> Result<Option<Option<usize>>, ApiError> {
    let said = fields.whole(&["reasoning_budget", "thinking_budget", "thinking_token_budget"])?;
    Ok(said.map(|budget| usize::try_from(budget).ok()))
}

/// The stage of a grammar, compiled for this model.
pub fn stage(served: &Served, grammar: &Grammar) -> Result<Stage, ApiError> {
    let compile = || compile(served.vocabulary()?, grammar).map_err(ApiError::bad);
    Ok(Stage::Grammar(block_in_place(compile)?))
}

/// Variables for the template: `chat_template_kwargs`, with what says whether to reason.
pub fn variables(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut variables = fields.object("chat_template_kwargs")?.map(|object| object.map().clone()).unwrap_or_default();
    if let Some(on) = fields.flag("enable_thinking")? {
        variables.insert("enable_thinking".into(), json!(on));
    }
    let effort = match fields.text("reasoning_effort")? {
        Some(effort) => Some(effort),
        None => fields.object("reasoning")?.map(|reasoning| reasoning.text("effort")).transpose()?.flatten(),
    };
    if let Some(effort) = effort {
        variables.insert("reasoning_effort".into(), json!(effort));
        if matches!(effort, "none" | "minimal") {
            variables.entry("enable_thinking").or_insert(json!(false));
        }
    }
    Ok(variables)
}
