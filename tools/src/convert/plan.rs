//! Resolves the rows of an architecture against a checkpoint: every tensor of the file, its source, shape and type.

use super::checkpoint::{Checkpoint, Stored};
use super::floats::Float;
use super::layout::Layout;
use super::settings::Settings;
use super::table::{IGNORED, Origin, Source, TensorRow, Transform};
use super::{ConvertOptions, MtpBlocks, PlannedTensor};
use super::{nvfp4, types};
use crate::adapter::{Adapter, Gate};
use anyhow::{Context, Result, bail};
use kvas_gguf::{Metadata, Quant};
use std::{collections::HashSet, path::Path};

/// A tensor to be written.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) tensor: PlannedTensor,
    pub(super) data: Data,
}

/// Where the numbers of a tensor come from.
#[derive(Debug)]
pub(super) enum Data {
    /// The rows of these source tensors of equal shape, one after the other: together they have `shape`, the
    /// contiguous dimension last, before the transforms. The maps that the transforms need are as long as the tensor
    /// has rows, so they are made when it is written.
    Stored { sources: Vec<Stored>, float: Float, shape: Vec<usize>, transforms: &'static [Transform] },
    /// Computed from the configuration.
    Made(Vec<f32>),
}

/// All tensors of a file, and the source tensors that are left out.
pub(super) struct Jobs {
    pub(super) jobs: Vec<Job>,
    pub(super) ignored: Vec<String>,
}

/// The data of a tensor, its shape in the file with the contiguous dimension last, and the names it comes from.
type Resolved = (Data, Vec<usize>, Vec<String>);

struct Planner<'a> {
    settings: &'a Settings,
    checkpoint: &'a Checkpoint,
    quant: Quant,
    jobs: Vec<Job>,
    used: HashSet<String>,
}

/// Plans every tensor; one that is missing, has another shape or is left over is an error.
pub(super) fn plan(settings: &Settings, checkpoint: &Checkpoint, options: &ConvertOptions) -> Result<Jobs> {
    let architecture = settings.architecture;
    let mut planner = Planner { settings, checkpoint, quant: options.quant, jobs: Vec::new(), used: HashSet::new() };
    for row in architecture.model.iter().copied().flatten() {
        let prefix = settings.trunk.trunk;
        planner.add(row, "", prefix)?;
    }
    for (index, block) in settings.blocks.iter().enumerate() {
        let target = format!("blk.{index}.");
        for row in architecture.layer.iter().copied().flatten().filter(|row| block.has(row.tag)) {
            let source = match index.checked_sub(settings.layers) {
                None => format!("{}layers.{index}.", settings.trunk.trunk),
                Some(extra) => {
                    let per_block = architecture.mtp_layers_per_block;
                    let inner = if row.tag == block.ffn { per_block - 1 } else { 0 };
                    format!("mtp.layers.{}.", extra * per_block + inner)
                }
            };
            planner.add(row, &target, &source)?;
        }
        if index == settings.layers {
            for row in architecture.mtp {
                planner.add(row, &target, "mtp.")?;
            }
        }
    }
    let ignored = planner.leftovers(options.mtp)?;
    if options.quant == Quant::Nvfp4 && planner.jobs.iter().all(|job| job.tensor.quant != Quant::Nvfp4) {
        match planner.jobs.iter().filter(|job| !job.tensor.fits).count() {
            0 => bail!("type NVFP4: no weight of the checkpoint is in NVFP4, expected another type"),
            odd => bail!(
                "type NVFP4: {odd} weights of the checkpoint are in NVFP4, all with rows that are no whole blocks of 64, expected \
                 another type"
            ),
        }
    }
    Ok(Jobs { jobs: planner.jobs, ignored })
}

/// Adds the gates of an adapter to the keys and tensors of the model they were trained for.
pub(super) fn add_gates(jobs: &mut Vec<Job>, metadata: &mut Metadata, folder: &Path) -> Result<()> {
    let adapter = Adapter::for_model(folder, metadata, |name| jobs.iter().any(|job| job.tensor.name == name))?;
    adapter.describe(metadata);
    jobs.extend(adapter.gates.into_iter().map(|Gate { name, shape, numbers, source, .. }| {
        let bytes = numbers.len() as u64 * 4;
        let tensor = PlannedTensor { name, quant: Quant::F32, fits: true, shape, bytes, sources: vec![source] };
        Job { tensor, data: Data::Made(numbers) }
    }));
    Ok(())
}

impl Planner<'_> {
    fn add(&mut self, row: &TensorRow, target: &str, prefix: &str) -> Result<()> {
        let name = format!("{target}{}", row.target);
        if !self.settings.values.holds(row.when).with_context(|| name.clone())? {
            return Ok(());
        }
        let origin = match &row.alternative {
            Some(alternative) if !self.exists(&row.origin, prefix) && self.exists(alternative, prefix) => alternative,
            _ => &row.origin,
        };
        let shape =
            self.settings.values.shape(origin.shape).with_context(|| format!("config.json: shape of {name}"))?;
        if shape.contains(&0) {
            let sizes = origin.shape.split(',').zip(&shape).filter(|(_, size)| **size == 0);
            let said = sizes.map(|(size, _)| self.settings.values.said(size)).collect::<Vec<_>>().join(", ");
            bail!("config.json: {said}: {name} would have the shape {shape:?}, expected no 0");
        }
        let (data, shape, names) = match origin.source {
            Source::RopeFactors => (Data::Made(rope_factors(self.settings)?), shape, Vec::new()),
            Source::Tensor(_) | Source::Experts(_) => self.stored(origin, prefix, shape)?,
        };
        let keeps = self.quant == Quant::Nvfp4;
        let factors = if keeps { nvfp4::factors(&name, &data, &shape, &self.settings.values)? } else { None };
        let quant = if factors.is_some() { Quant::Nvfp4 } else { types::stored_as(&name, &shape, self.quant) };
        // What is not in NVFP4 was not asked to stay in it.
        let fits = quant == Quant::F32 || quant == self.quant || (keeps && !nvfp4::is_whole(&data));
        let bytes = bytes_of(quant, &shape).with_context(|| format!("tensor {name}: {shape:?} is too large"))?;
        let shape = shape.iter().rev().map(|&size| size as u64).collect();
        self.jobs.push(Job { tensor: PlannedTensor { name, quant, fits, shape, bytes, sources: names }, data });
        self.jobs.extend(factors);
        Ok(())
    }

    /// The full name of what an origin reads; `None` for what is computed.
    fn source_name(&self, origin: &Origin, prefix: &str, expert: usize) -> Option<String> {
        match origin.source {
            Source::Tensor(name) => Some(match name.strip_prefix('/') {
                Some(name) => format!("{}{name}", self.settings.trunk.head),
                None => format!("{prefix}{name}"),
            }),
            Source::Experts(name) => Some(format!("{prefix}{}", name.replace("{e}", &expert.to_string()))),
            Source::RopeFactors => None,
        }
    }

    fn exists(&self, origin: &Origin, prefix: &str) -> bool {
        self.source_name(origin, prefix, 0).is_some_and(|name| self.checkpoint.get(&name).is_some())
    }

    fn stored(&mut self, origin: &Origin, prefix: &str, shape: Vec<usize>) -> Result<Resolved> {
        let values = &self.settings.values;
        let stacked = matches!(origin.source, Source::Experts(_));
        let count = if stacked { values.count("experts").context("config.json")? } else { 1 };
        let (mut sources, mut names, mut float) = (Vec::new(), Vec::new(), None);
        for expert in 0..count {
            let Some(name) = self.source_name(origin, prefix, expert) else { break };
            let Some(stored) = self.checkpoint.get(&name) else {
                bail!("tensor {name} is missing from the checkpoint, expected with the shape {shape:?}");
            };
            if stored.shape != shape {
                bail!("tensor {name} has the shape {:?}, expected {shape:?}", stored.shape);
            }
            let Some(found) = stored.float else {
                bail!(
                    "tensor {name} is {:?}, expected F32, F16, BF16, F8_E4M3, MXFP4, NVFP4 or integers with scales",
                    stored.dtype
                );
            };
            if *float.get_or_insert(found) != found {
                bail!("tensor {name} is {found:?}, expected the type of {}", names[0]);
            }
            sources.push(stored.clone());
            names.push(name);
        }
        let Some(float) = float else {
            bail!("config.json: num_experts = {count}, expected 1 or more");
        };
        let mut full = shape;
        if stacked {
            full.insert(0, count);
        }
        let layout = Layout::of(full.clone(), origin.transforms, values);
        let layout = layout.with_context(|| format!("tensor {}", names[0]))?;
        self.used.extend(names.iter().cloned());
        let data = Data::Stored { sources, float, shape: full, transforms: origin.transforms };
        Ok((data, layout.file_shape(), names))
    }

    /// The source tensors that no row used and that may be left out; any other is an error.
    fn leftovers(&self, mtp: MtpBlocks) -> Result<Vec<String>> {
        let settings = self.settings;
        let head = format!("{}lm_head.weight", settings.trunk.head);
        let may = |name: &str| {
            let mut patterns = IGNORED.iter().chain(settings.architecture.ignored);
            patterns.any(|pattern| fits(pattern, name))
                // Only a tied head is left over.
                || name == head
                || (mtp == MtpBlocks::Omit && name.starts_with("mtp."))
        };
        let left = self.checkpoint.names().filter(|name| !self.used.contains(*name));
        let (mut ignored, others): (Vec<&str>, Vec<&str>) = left.partition(|name| may(name));
        let mut unknown = Vec::new();
        for name in others {
            let list = if adds_nothing(self.checkpoint, name)? { &mut ignored } else { &mut unknown };
            list.push(name);
        }
        if let [first, rest @ ..] = unknown.as_slice() {
            let more = if rest.is_empty() { String::new() } else { format!(" (and {} others)", rest.len()) };
            bail!("tensor {first}{more} has no place in a {} file", settings.name());
        }
        Ok(ignored.into_iter().map(String::from).collect())
    }
}

/// True for a bias of nothing but zeros: GPTQ writes them for matrices that have none.
fn adds_nothing(checkpoint: &Checkpoint, name: &str) -> Result<bool> {
    let is_bias = |stored: &&Stored| name.ends_with(".bias") && stored.shape.len() == 1 && stored.deltas.is_empty();
    let stored = checkpoint.get(name).filter(is_bias);
    let Some((stored, float)) = stored.and_then(|stored| Some((stored, stored.float?))) else { return Ok(false) };
    let mut raw = vec![0; float.bytes_of(stored.shape[0])];
    checkpoint.read(stored, 0, &mut raw)?;
    Ok(raw.iter().all(|byte| *byte == 0))
}

/// True if a pattern with at most one `*` fits.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end),
    }
}

fn bytes_of(quant: Quant, shape: &[usize]) -> Option<u64> {
    let (columns, outer) = shape.split_last()?;
    let row = quant.row_bytes(*columns)?;
    outer.iter().try_fold(row, |bytes, &size| bytes.checked_mul(size))?.try_into().ok()
}

/// What llama3 rope scaling divides each frequency by: 1 for short waves, the factor for long ones, between them a mix.
fn rope_factors(settings: &Settings) -> Result<Vec<f32>> {
    let number = |name: &str| settings.values.evaluate(name).with_context(|| format!("config.json: {name}"));
    let (base, factor, original) = (number("rope_base")?, number("rope_factor")?, number("rope_original")?);
    let (low, high) = (number("rope_low")?, number("rope_high")?);
    let head_dim = settings.values.count("head_dim").context("config.json")?;
    if !(base > 0.0 && factor > 0.0 && original > 0.0 && low > 0.0 && high > low) {
        bail!(
            "config.json: rope_parameters of llama3, expected positive numbers and low_freq_factor < high_freq_factor"
        );
    }
    let of = |pair: usize| {
        let wave = std::f64::consts::TAU * base.powf(2.0 * pair as f64 / head_dim as f64);
        if wave < original / high {
            1.0
        } else if wave > original / low {
            factor as f32
        } else {
            let share = (original / wave - low) / (high - low);
            (1.0 / ((1.0 - share) / factor + share)) as f32
        }
    };
    Ok((0..head_dim / 2).map(of).collect())
}
