//! `adapter_config.json`: what the matrices of a module are multiplied by, and what cannot be merged.

use super::super::json::Json;
use super::super::settings::refuse;
use super::super::table::Refusal;
use super::CONFIG;
use anyhow::{Context, Result, bail};
use regex_automata::meta::Regex;
use serde_json::Value;
use std::path::Path;

/// What changes more than matrices of the model as it was published, or changes them only now and then.
const REFUSED: &[Refusal] = &[
    // The others subtract something from the weights they start with.
    Refusal {
        path: "init_lora_weights",
        accepted: &["true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\"", "\"mica\""],
    },
    Refusal { path: "layer_replication", accepted: &["[]"] },
    Refusal { path: "alora_invocation_tokens", accepted: &[] },
    Refusal { path: "use_qalora", accepted: &["false"] },
    Refusal { path: "use_bdlora", accepted: &["false"] },
    Refusal { path: "arrow_config", accepted: &[] },
    Refusal { path: "kasa_config", accepted: &[] },
    Refusal { path: "monteclora_config", accepted: &[] },
];

/// What an adapter says of itself. That columns and rows are swapped (`fan_in_fan_out`) is said of no module of the models
/// that can be converted: PEFT takes it back for theirs.
pub(super) struct Config {
    rank: f64,
    alpha: f64,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
    rslora: bool,
    /// Names of parameters, or ends of such names after a dot, that are changed beside whole modules.
    parameters: Vec<String>,
    /// The tokens whose rows are trained, by the name of a module, or of any.
    tokens: Vec<(Option<String>, Vec<usize>)>,
    /// Rows get lengths of their own.
    pub(super) dora: bool,
    /// Embeddings and head stay one.
    pub(super) tying: bool,
}

impl Config {
    pub(super) fn read(folder: &Path) -> Result<Config> {
        if !folder.is_dir() {
            bail!("expected the folder of an adapter of PEFT");
        }
        let Some(config) = Json::read(folder, CONFIG)? else {
            bail!("{CONFIG} is missing, expected that of an adapter of PEFT");
        };
        match config.text("peft_type")? {
            Some("LORA") => {}
            Some(other) => bail!("{CONFIG}: peft_type is {other:?}, expected \"LORA\""),
            None => bail!("{CONFIG}: peft_type is missing, expected \"LORA\""),
        }
        refuse(&config, REFUSED)?;
        let number = |path: &str| match config.get(path) {
            Some(value) => positive(path, value),
            None => bail!("{CONFIG}: {path} is missing, expected a positive number"),
        };
        let flag = |path: &str| config.flag(path).map(|said| said == Some(true));
        Ok(Config {
            rank: number("r")?,
            alpha: number("lora_alpha")?,
            ranks: patterns(&config, "rank_pattern")?,
            alphas: patterns(&config, "alpha_pattern")?,
            rslora: flag("use_rslora")?,
            tokens: tokens(&config, "trainable_token_indices")?,
            parameters: texts(&config, "target_parameters")?,
            dora: flag("use_dora")?,
            tying: flag("ensure_weight_tying")?,
        })
    }

    /// Whether the adapter changes this parameter by its name.
    pub(super) fn names_parameter(&self, path: &str) -> bool {
        self.parameters.iter().any(|name| ends(path, name))
    }

    /// The tokens whose rows of this module are trained.
    pub(super) fn tokens_of(&self, module: &str) -> Option<&[usize]> {
        let is_of = |name: &Option<String>| name.as_ref().is_none_or(|name| ends(module, name));
        self.tokens.iter().find(|(name, _)| is_of(name)).map(|(_, tokens)| tokens.as_slice())
    }

    /// The rank of a module's matrices, and what their product is multiplied by.
    pub(super) fn scale(&self, module: &str) -> Result<(usize, f64)> {
        let of = |patterns: &[(Regex, f64)], other: f64| {
            patterns.iter().find(|(pattern, _)| pattern.is_match(module)).map_or(other, |(_, number)| *number)
        };
        let (rank, alpha) = (of(&self.ranks, self.rank), of(&self.alphas, self.alpha));
        if rank.fract() != 0.0 {
            bail!("{CONFIG}: the rank of {module} is {rank}, expected a whole number");
        }
        Ok((rank as usize, alpha / if self.rslora { rank.sqrt() } else { rank }))
    }
}

/// Whether a path has this end after a dot, or is it.
fn ends(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Lists of tokens by modules, or one list for the embeddings.
fn tokens(config: &Json, path: &str) -> Result<Vec<(Option<String>, Vec<usize>)>> {
    let listed = |value: &Value| {
        let token = |token: &Value| token.as_u64().and_then(|token| usize::try_from(token).ok());
        let tokens: Option<Vec<usize>> = value.as_array().and_then(|tokens| tokens.iter().map(token).collect());
        tokens.with_context(|| format!("{CONFIG}: {path} has {value}, expected a list of tokens"))
    };
    match config.get(path) {
        None => Ok(Vec::new()),
        Some(Value::Object(modules)) => {
            modules.iter().map(|(name, value)| Ok((Some(name.clone()), listed(value)?))).collect()
        }
        Some(value) => Ok(vec![(None, listed(value)?)]),
    }
}

fn positive(path: &str, value: &Value) -> Result<f64> {
    let number = value.as_f64().filter(|number| *number > 0.0);
    number.with_context(|| format!("{CONFIG}: {path} is {value}, expected a positive number"))
}

/// A list of texts, which may be missing.
fn texts(config: &Json, path: &str) -> Result<Vec<String>> {
    let listed = config.list(path)?.into_iter().flatten();
    let text = |value: &Value| {
        value.as_str().map(String::from).with_context(|| format!("{CONFIG}: {path} has {value}, expected texts"))
    };
    listed.map(text).collect()
}

/// Numbers for the modules whose names, or ends of names after a dot, fit a pattern; the first one counts.
fn patterns(config: &Json, path: &str) -> Result<Vec<(Regex, f64)>> {
    let Some(value) = config.get(path) else { return Ok(Vec::new()) };
    let Some(map) = value.as_object() else { bail!("{CONFIG}: {path} is {value}, expected an object of numbers") };
    let pattern = |(key, value): (&String, &Value)| {
        let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$"))
            .ok()
            .with_context(|| format!("{CONFIG}: {path} has {key:?}, expected a regular expression"))?;
        Ok((regex, positive(&format!("{path} of {key:?}"), value)?))
    };
    map.iter().map(pattern).collect()
}
