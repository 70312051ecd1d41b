//! Loading the models that are served.

use crate::cli::{
    chat::SNAPSHOT_EVERY,
    device,
    flags::{ModelFlags, RunFlags, ShelfFlags},
};
use anyhow::{Context, bail};
use kvas::{
    engine::{Engine, EngineConfig},
    memory::plan::SnapshotBudget,
    server::{Facts, Loaded, Loader, Room},
    session::ModelId,
    text::ChatTemplate,
};
use std::{path::PathBuf, time::Duration};

/// Tokens of a prompt scored in one step: their probabilities, or their hidden states.
const SCORED: usize = 64;

/// Loads the models of the command line.
#[derive(Debug)]
pub(super) struct FromFlags {
    /// Names and files.
    pub(super) files: Vec<(String, PathBuf)>,
    pub(super) run: RunFlags,
    pub(super) parallel: usize,
    pub(super) template: Option<ChatTemplate>,
    pub(super) shelf: ShelfFlags,
    pub(super) max_decode_gap: Option<Duration>,
}

impl Loader for FromFlags {
    fn load(&self, name: &str, room: Room) -> Result<Loaded, String> {
        self.open(name, room).map_err(|error| format!("{error:#}"))
    }
}

impl FromFlags {
    fn open(&self, name: &str, room: Room) -> anyhow::Result<Loaded> {
        let file = self.files.iter().find(|(known, _)| known == name).map(|(_, file)| file.clone());
        let flags = ModelFlags { model: file.context("a model without a file")?, run: self.run.clone() };
        let model = device::open(&flags)?;
        let template = match &self.template {
            Some(template) => template.clone(),
            None => model.template()?,
        };
        let wanted = device::Wanted {
            sequences: self.parallel,
            snapshots: SnapshotBudget::Share,
            outputs: self.parallel + SCORED,
            context: None,
        };
        if room == Room::AsAskedFor
            && let Some(clamp) = device::clamp(&flags, &model, wanted)?
        {
            bail!("{}: {clamp}", flags.model.display());
        }
        let (runner, plan) = device::prepare(&flags, &model, wanted)?;
        let id = ModelId::of(&model.file);
        let shelf = self.shelf.open(&id)?;
        let facts = Facts {
            context: plan.context,
            batch: plan.limits.rows,
            page_size: plan.limits.page_size,
            page_bytes: plan.page_bytes,
            slot_bytes: plan.slot_bytes,
            snapshot_bytes: plan.snapshot_bytes,
            ring: plan.limits.replay.history,
            ..Facts::of(&model)
        };
        tracing::info!(model = name, context = plan.context, slots = self.parallel, "loaded");
        let (snapshot_every, max_decode_gap) = (SNAPSHOT_EVERY, self.max_decode_gap);
        let config = EngineConfig { snapshot_every, shelf, max_decode_gap, ..EngineConfig::new(plan.context) };
        let engine = Engine::start(runner, config);
        Ok(Loaded { engine, tokenizer: model.tokenizer, template, id, facts })
    }
}
