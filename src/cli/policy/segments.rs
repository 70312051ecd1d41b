//! Flags of sequences that give up segments.

use super::given;
use anyhow::bail;
use clap::{Args, ValueEnum};
use kvas::{
    model::{
        Model,
        lower::lower_segments,
        spec::{EdgeInfinite, MemoryKeys, Mixer},
    },
    policy::{Absorbing, Schedule, can_evict_segments},
};
use kvas_backend::{
    StoreDecl,
    store::{Positions, SegmentMemory, Segments},
};
use std::sync::Arc;

/// Which tokens are held between segments, and what is kept of these.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Keys and values")]
pub(super) struct SegmentFlags {
    /// First tokens that are held with --kv-policy edgeinfinite [default: as the gates were trained, 300 without]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    edge_sink: Option<u32>,
    /// Last tokens that are held [default: as the gates were trained, 200 without]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    edge_window: Option<u32>,
    /// Tokens that are absorbed at once [default: as the gates were trained, 2048 without]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    edge_segment: Option<u32>,
    /// What becomes of the window when a segment before it is absorbed [default: inplace]
    #[arg(long, value_enum)]
    edge_absorb: Option<Absorb>,
    /// What is kept of segments, and how it is read [default: gates]
    #[arg(long, value_enum)]
    edge_memory: Option<Memory>,
    /// Hold the first and the last tokens and nothing of the others, also for a model without gates
    #[arg(long)]
    edge_ungated: bool,
}

/// What is kept of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Memory {
    /// A matrix per key head, which the gates of the model read
    Gates,
    /// Number, means and covariance of keys and values, as --kv-policy slake has them: for a model without gates, too
    Ptaa,
}

/// What becomes of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Absorb {
    /// It stays as it was read
    Inplace,
    /// It is read again, as a prompt of the same tokens would be
    Recompute,
}

/// The lengths where neither a file nor a flag says any.
const USUAL: EdgeInfinite =
    EdgeInfinite { sink: 300, window: 200, segment: 2048, positions: Positions::Held, keys: MemoryKeys::Rotated };

impl SegmentFlags {
    /// Those that were given.
    pub(super) fn given(&self) -> Vec<&'static str> {
        given(&[
            ("--edge-sink", self.edge_sink.is_some()),
            ("--edge-window", self.edge_window.is_some()),
            ("--edge-segment", self.edge_segment.is_some()),
            ("--edge-absorb", self.edge_absorb.is_some()),
            ("--edge-memory", self.edge_memory.is_some()),
            ("--edge-ungated", self.edge_ungated),
        ])
    }

    /// Has a model run a program whose layers give up segments. Fails in one line that begins with the name of the file.
    pub(super) fn apply(&self, model: &mut Model, file: &str) -> anyhow::Result<Schedule> {
        let says = format!("{file}: --kv-policy edgeinfinite");
        if !can_evict_segments(&model.program) {
            bail!("{says}, expected a model with layers of attention that keep keys and values apart, and no others");
        }
        let keeps = self.keeps()?;
        let trained = trained(model, keeps, &says)?;
        let length = |flag: Option<u32>, usual: usize| flag.map_or(usual, |tokens| tokens as usize);
        let segments = Segments {
            sink: length(self.edge_sink, trained.sink),
            window: length(self.edge_window, trained.window),
            segment: length(self.edge_segment, trained.segment),
            positions: trained.positions,
            memory: match keeps {
                None => SegmentMemory::None,
                Some(Memory::Gates) => SegmentMemory::Matrix(trained.keys),
                Some(Memory::Ptaa) => SegmentMemory::Moments,
            },
        };
        let absorbing = match self.edge_absorb {
            None | Some(Absorb::Inplace) => Absorbing::InPlace,
            Some(Absorb::Recompute) => Absorbing::Recompute,
        };
        let has_state = model.program.stores.iter().any(|store| !matches!(store, StoreDecl::Pages(_)));
        if absorbing == Absorbing::Recompute && has_state {
            bail!("{file}: --edge-absorb recompute, expected inplace for a model with recurrent layers");
        }
        model.program = Arc::new(lower_segments(&model.spec, segments));
        Ok(Schedule::of(&segments, absorbing))
    }

    /// What is kept of segments, if anything.
    fn keeps(&self) -> anyhow::Result<Option<Memory>> {
        match (self.edge_memory, self.edge_ungated) {
            (None, true) => Ok(None),
            (None, false) => Ok(Some(Memory::Gates)),
            (Some(memory), false) => Ok(Some(memory)),
            (Some(_), true) => bail!("--edge-memory and --edge-ungated, expected one of them"),
        }
    }
}

/// What the gates of a model were trained for, if they are to be used and can be; else what they would have been, or what is
/// usual.
fn trained(model: &Model, keeps: Option<Memory>, says: &str) -> anyhow::Result<EdgeInfinite> {
    match (model.spec.edgeinfinite, keeps) {
        (Some(trained), _) => return Ok(trained),
        (None, None | Some(Memory::Ptaa)) => return Ok(USUAL),
        (None, Some(Memory::Gates)) => {}
    }
    let attends = |mixer: &Mixer| matches!(mixer, Mixer::Attention(_));
    let first = model.spec.layers.iter().position(|layer| layer.mixers.iter().any(attends)).unwrap_or(0);
    let name = |stem: &str| format!("blk.{first}.attn_mem_{stem}");
    let [fc1, fc2, gate] = ["fc1.weight", "fc2.weight", "gate.weight"].map(name);
    bail!(
        "{says}: no {fc1}, {fc2} and {gate}, expected gates in every layer of attention (kvas adapter adds them), --edge-memory ptaa or --edge-ungated"
    );
}
