//! What adapters say of the experts of a layer, which their models hold in one tensor (`target_parameters` of PEFT).

use super::super::checkpoint::Stored;
use super::delta::{Delta, Experts, Matrices, Shared};
use super::names::{Part, Parts};
use super::{Merge, WEIGHTS};
use crate::convert::lora::config::Config;
use anyhow::{Context, Result, bail};

/// The parameters that classes of experts have, in their order, which is the one in which PEFT wraps them.
const PARAMETERS: [&str; 3] = ["gate_up_proj", "up_proj", "down_proj"];
/// What a checkpoint calls the gates, the way up and the way down of a single expert.
const NAMES: [[&str; 3]; 2] = [["gate_proj", "up_proj", "down_proj"], ["w1", "w3", "w2"]];
/// A wrapper around another parameter of the same module is named by this.
const INNER: &str = ".base_layer";

/// A parameter of a module, and where the tensors of an adapter are for it.
pub(super) struct Parameter {
    /// The module's name.
    module: String,
    /// The parameter's own.
    name: String,
}

impl Parameter {
    /// The one that the matrices at `place` are for, if the adapter names it: of several that are wrapped around each other
    /// the first one is the innermost.
    pub(super) fn at(config: &Config, place: &str) -> Option<Parameter> {
        let module = place.split(INNER).next().unwrap_or(place);
        let depth = place.matches(INNER).count();
        let is_named = |name: &&str| config.names_parameter(&format!("{module}.{name}"));
        let named: Vec<&str> = PARAMETERS.into_iter().chain(["weight"]).filter(is_named).collect();
        let name = named.get(named.len().checked_sub(depth + 1)?)?;
        Some(Parameter { module: module.into(), name: (*name).into() })
    }

    /// Its full name.
    pub(super) fn path(&self) -> String {
        format!("{}.{}", self.module, self.name)
    }

    /// The parts of a checkpoint that it is made of where each expert has tensors of its own: their names, without that of the
    /// expert, and whether they are the first or second of two halves.
    fn parts(&self, names: [&'static str; 3]) -> Vec<(&'static str, usize, usize)> {
        let [gate, up, down] = names;
        match self.name.as_str() {
            "gate_up_proj" => vec![(gate, 0, 2), (up, 1, 2)],
            "up_proj" => vec![(up, 0, 1)],
            _ => vec![(down, 0, 1)],
        }
    }
}

impl Merge<'_> {
    /// Adds what the adapter says of the experts of a layer.
    pub(super) fn add_experts(&mut self, config: &Config, parameter: &Parameter, mut parts: Parts) -> Result<()> {
        let path = parameter.path();
        let (rank, scale) = config.scale(&path)?;
        let scale = self.scale * scale;
        let key = parts.first().map_or_else(|| path.clone(), String::from);
        let (Some(a), Some(b)) = (parts.take(Part::A), parts.take(Part::B)) else {
            bail!("{WEIGHTS}: tensor {key} is for {path}, expected lora_A and lora_B");
        };
        if let Some(key) = parts.first() {
            bail!("{WEIGHTS}: tensor {key} is for {path}, expected lora_A and lora_B alone");
        }
        let count = a.1.shape.first().map_or(0, |rows| rows / rank);
        let shapes = (a.1.shape.clone(), b.1.shape.clone());
        let ([all, columns], [rows, others]) = (&shapes.0[..], &shapes.1[..]) else {
            bail!("{WEIGHTS}: tensor {key} has the shape {:?}, expected a matrix", shapes.0);
        };
        let (columns, rows) = (*columns, *rows);
        if *all != rank * count || *others != *all || count == 0 {
            bail!(
                "{WEIGHTS}: tensor {key} is one of the shapes {:?} and {:?}, expected {rank} rows of the first and columns of the \
                 second for each expert",
                shapes.0,
                shapes.1
            );
        }
        let shared = Shared::new(a, b);
        let file = format!("{}: {WEIGHTS}", self.folder.display());
        let delta = |expert, first, rows| -> Delta {
            let experts = Experts { count, expert, first, rows };
            Matrices::Experts { shared: shared.clone(), rank, experts }.of(file.clone(), scale)
        };
        if let Ok((name, stored)) = self.find(&path, &key) {
            return self.add_to(&name, stored, &[count, rows, columns], delta(None, 0, rows));
        }
        let of_one = |part: &str, expert: usize| format!("{}.{expert}.{part}.weight", parameter.module);
        let found = NAMES.into_iter().find(|names| self.find(&of_one(names[2], 0), &key).is_ok());
        let names = found.with_context(|| {
            format!(
                "{WEIGHTS}: tensor {key} is for {path}, expected a tensor of the checkpoint, or one for each expert"
            )
        })?;
        for (part, half, halves) in parameter.parts(names) {
            let rows = rows / halves;
            for expert in 0..count {
                let (name, stored) = self.find(&of_one(part, expert), &key)?;
                self.add_to(&name, stored, &[rows, columns], delta(Some(expert), half * rows, rows))?;
            }
            let next = of_one(part, count);
            if self.find(&next, &key).is_ok() {
                bail!("{WEIGHTS}: tensor {key} is for {count} experts, expected as many as the checkpoint has");
            }
        }
        Ok(())
    }

    fn add_to(&mut self, name: &str, mut stored: Stored, shape: &[usize], delta: Delta) -> Result<()> {
        if stored.shape != shape {
            bail!("{WEIGHTS}: tensors for {name} of the shape {:?}, expected those for {shape:?}", stored.shape);
        }
        stored.deltas.push(delta);
        self.checkpoint.insert(name, stored);
        self.changed.insert(name.into());
        Ok(())
    }
}
