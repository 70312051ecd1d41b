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
    Refusal { path: "target_parameters", accepted: &["[]"] },
    Refusal { path: "trainable_token_indices", accepted: &["[]", "{}"] },
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
        let flag = |path: &str| config.flag(path) == Some(true);
        Ok(Config {
            rank: number("r")?,
            alpha: number("lora_alpha")?,
            ranks: patterns(&config, "rank_pattern")?,
            alphas: patterns(&config, "alpha_pattern")?,
            rslora: flag("use_rslora"),
            dora: flag("use_dora"),
            tying: flag("ensure_weight_tying"),
        })
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

fn positive(path: &str, value: &Value) -> Result<f64> {
    let number = value.as_f64().filter(|number| *number > 0.0);
    number.with_context(|| format!("{CONFIG}: {path} is {value}, expected a positive number"))
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
