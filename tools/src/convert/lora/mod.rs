//! Adapters of PEFT that are merged while a checkpoint is converted: which of its tensors they change, and by what.

mod config;
mod delta;
mod experts;
mod names;

pub(super) use delta::{Delta, Loaded};

use super::checkpoint::{Checkpoint, Stored};
use super::floats::Float;
use super::settings::Settings;
use anyhow::{Context, Result, bail};
use config::Config;
use experts::Parameter;
use names::{Parts, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// An adapter of PEFT that goes into the weights of the model it was trained for.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// Where `adapter_config.json` and `adapter_model.safetensors` are.
    pub folder: PathBuf,
    /// What its matrices are multiplied by, beside what it says itself.
    pub scale: f64,
}

/// Lets the tensors of the checkpoint be what they are with all adapters, one after the other. The names of those that changed.
pub(super) fn apply(loras: &[Lora], settings: &mut Settings, checkpoint: &mut Checkpoint) -> Result<BTreeSet<String>> {
    let (mut changed, mut replaced) = (BTreeSet::new(), BTreeSet::new());
    for Lora { folder, scale } in loras {
        let mut merge =
            Merge { settings, checkpoint, folder, scale: *scale, changed: &mut changed, replaced: &mut replaced };
        merge.apply().with_context(|| folder.display().to_string())?;
    }
    Ok(changed)
}

/// Refuses adapters that change only what is left out.
pub(super) fn check(changed: &BTreeSet<String>, ignored: &[String]) -> Result<()> {
    match changed.first() {
        Some(first) if changed.iter().all(|name| ignored.contains(name)) => {
            bail!(
                "tensor {first} and all others that adapters change are left out, expected some of the language model"
            )
        }
        Some(_) | None => Ok(()),
    }
}

/// One adapter on its way into a checkpoint.
struct Merge<'a> {
    settings: &'a mut Settings,
    checkpoint: &'a mut Checkpoint,
    folder: &'a Path,
    scale: f64,
    /// Tensors that this adapter or one before it changed.
    changed: &'a mut BTreeSet<String>,
    /// Those of them that are an adapter's own.
    replaced: &'a mut BTreeSet<String>,
}

impl Merge<'_> {
    fn apply(&mut self) -> Result<()> {
        let config = Config::read(self.folder)?;
        if config.dora && self.scale != 1.0 {
            bail!("{CONFIG}: use_dora with a scale of {}, expected 1: its magnitudes have no other", self.scale);
        }
        let tensors = self.read()?;
        let (mut modules, mut whole) = (BTreeMap::<String, Parts>::new(), BTreeMap::new());
        let mut rows = Vec::new();
        for (key, stored) in tensors {
            match names::place(&key) {
                Place::Part(module, part) => modules.entry(module).or_default().add(part, key, stored)?,
                Place::Whole(name) => {
                    whole.insert(name, (key, stored));
                }
                Place::Tokens(module) => rows.push((module, key, stored)),
                Place::Unknown => bail!(
                    "{WEIGHTS}: tensor {key} has no place, expected lora_A, lora_B, a trained bias or a whole tensor"
                ),
            }
        }
        let weights = modules.keys().map(|module| format!("{module}.weight"));
        let touched: Vec<String> = weights.chain(whole.keys().cloned()).collect();
        let is_untied = self.untie(&config, &touched)?;
        if let Some((_, key, _)) = rows.first().filter(|_| is_untied) {
            bail!("{WEIGHTS}: tensor {key} beside others for embeddings that are the head, expected either");
        }
        for (name, (key, stored)) in whole {
            self.replace(&name, &key, stored)?;
        }
        for (module, key, stored) in rows {
            self.set_tokens(&config, &module, key, stored)?;
        }
        for (module, parts) in modules {
            let weight = self.find(&format!("{module}.weight"), &module);
            let is_matrix = weight.is_ok_and(|(_, stored)| stored.shape.len() == 2);
            match Parameter::at(&config, &module).filter(|_| !is_matrix) {
                Some(parameter) => self.add_experts(&config, &parameter, parts)?,
                None => self.add(&config, &module, parts)?,
            }
        }
        Ok(())
    }

    /// The adapter's tensors, to be read as the checkpoint's are.
    fn read(&mut self) -> Result<BTreeMap<String, Stored>> {
        if !self.folder.join(WEIGHTS).is_file() {
            bail!("{WEIGHTS} is missing, expected the weights of an adapter of PEFT");
        }
        let tensors = self.checkpoint.absorb(Checkpoint::open_file(self.folder, WEIGHTS)?);
        if tensors.is_empty() {
            bail!("{WEIGHTS}: no tensors, expected those of an adapter");
        }
        let odd =
            tensors.iter().find(|(_, stored)| !matches!(stored.float, Some(Float::F32 | Float::F16 | Float::Bf16)));
        if let Some((key, stored)) = odd {
            bail!("{WEIGHTS}: tensor {key} is {:?}, expected F32, F16 or BF16", stored.dtype);
        }
        Ok(tensors)
    }

    /// Gives a model whose embeddings are its head too one of its own, if the adapter changes either of them: it was trained
    /// with the other as it is. Whether it did.
    fn untie(&mut self, config: &Config, touched: &[String]) -> Result<bool> {
        let settings = &*self.settings;
        let embeddings = format!("{}{}", settings.trunk.trunk, settings.architecture.embeddings());
        let head = format!("{}lm_head.weight", settings.trunk.head);
        let touches = |name: &String| {
            let places = names::candidates(settings, name);
            places.contains(&head) || places.contains(&embeddings)
        };
        let Some(name) = touched.iter().find(|name| touches(name)) else { return Ok(false) };
        let mut rows = settings.architecture.model.iter().copied().flatten();
        let Some(row) = rows.find(|row| row.target == "output.weight") else { return Ok(false) };
        if settings.values.holds(row.when).context("config.json")? {
            return Ok(false);
        }
        if config.tying {
            bail!(
                "{CONFIG}: ensure_weight_tying = true with {name} of a model whose embeddings are its head, expected false"
            );
        }
        let Some(stored) = self.checkpoint.get(&embeddings).cloned() else { return Ok(false) };
        self.checkpoint.insert(&head, stored);
        self.settings.values.set("tied", 0.0);
        self.settings.values.set("own_head", 1.0);
        Ok(true)
    }

    /// The checkpoint's tensor that the adapter calls `name`, with the name it has there.
    fn find(&self, name: &str, key: &str) -> Result<(String, Stored)> {
        let places = names::candidates(self.settings, name);
        let found = places.into_iter().find_map(|name| {
            let stored = self.checkpoint.get(&name)?.clone();
            Some((name, stored))
        });
        found.with_context(|| format!("{WEIGHTS}: tensor {key} is for {name}, expected a tensor of the checkpoint"))
    }

    /// Puts a tensor of the adapter in the place of one of the checkpoint.
    fn replace(&mut self, name: &str, key: &str, stored: Stored) -> Result<()> {
        let (name, old) = self.find(name, key)?;
        if stored.shape != old.shape {
            bail!(
                "{WEIGHTS}: tensor {key} has the shape {:?}, expected {:?} as in the checkpoint",
                stored.shape,
                old.shape
            );
        }
        if !old.deltas.is_empty() || !self.replaced.insert(name.clone()) {
            bail!("{WEIGHTS}: tensor {key} replaces {name}, expected none that an adapter before it changed");
        }
        self.checkpoint.insert(&name, stored);
        self.changed.insert(name);
        Ok(())
    }

    /// Puts the rows that the adapter has for some tokens in the places of theirs. Embeddings that are the head stay one.
    fn set_tokens(&mut self, config: &Config, module: &str, key: String, rows: Stored) -> Result<()> {
        let (name, mut weight) = self.find(&format!("{module}.weight"), &key)?;
        let Some(places) = config.tokens_of(module) else {
            bail!("{WEIGHTS}: tensor {key} has no tokens, expected trainable_token_indices of {CONFIG} to name them");
        };
        let [size, columns] = weight.shape[..] else {
            bail!("{WEIGHTS}: tensor {key} is for {name} of the shape {:?}, expected a matrix", weight.shape);
        };
        if rows.shape != [places.len(), columns] {
            bail!("{WEIGHTS}: tensor {key} has the shape {:?}, expected {:?}", rows.shape, [places.len(), columns]);
        }
        if let Some(token) = places.iter().find(|token| **token >= size) {
            bail!("{CONFIG}: trainable_token_indices has {token}, expected tokens below {size}, as {name} has");
        }
        let matrices = delta::Matrices::Rows { rows: (key, rows), places: places.to_vec() };
        weight.deltas.push(matrices.of(format!("{}: {WEIGHTS}", self.folder.display()), self.scale));
        self.checkpoint.insert(&name, weight);
        self.changed.insert(name);
        Ok(())
    }

    /// Adds what the adapter says of one module to its weight, and to its bias.
    fn add(&mut self, config: &Config, module: &str, mut parts: Parts) -> Result<()> {
        let path = format!("{module}.weight");
        let (rank, scale) = config.scale(if config.names_parameter(&path) { &path } else { module })?;
        let scale = self.scale * scale;
        let bias = parts.take(names::Part::Bias);
        let key = parts.first().map(String::from);
        let Some(key) = key else { bail!("{WEIGHTS}: {module} has a lora_B.bias alone, expected lora_A and lora_B") };
        let (name, mut weight) = self.find(&path, &key)?;
        let [rows, columns] = weight.shape[..] else {
            bail!("{WEIGHTS}: tensor {key} is for {name} of the shape {:?}, expected a matrix", weight.shape);
        };
        let file = format!("{}: {WEIGHTS}", self.folder.display());
        weight.deltas.push(parts.delta(module, [rows, columns, rank], config.dora)?.of(file.clone(), scale));
        self.checkpoint.insert(&name, weight);
        self.changed.insert(name);
        if let Some((key, added)) = bias {
            let (name, mut bias) = self.find(&format!("{module}.bias"), &key)?;
            if bias.shape != added.shape || bias.shape.len() != 1 {
                bail!("{WEIGHTS}: tensor {key} has the shape {:?}, expected {:?}", added.shape, bias.shape);
            }
            bias.deltas.push(delta::Matrices::Sum((key, added)).of(file, scale));
            self.checkpoint.insert(&name, bias);
            self.changed.insert(name);
        }
        Ok(())
    }
}
