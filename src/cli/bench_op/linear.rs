//! Layers of linear attention without a model: their kinds, shapes and programs, and steps over all of them.

use super::{
    harness::{Harness, Sequence, Subject},
    report::Cycle,
    vectors::NO_PAGES,
};
use crate::cli::{device, flags::ComputeFlags};
use clap::{Args, ValueEnum};
use kvas::model::replay_traffic::{Elements, StateTraffic, Write};
use kvas_backend::{
    Act, Limits, Op, Program, Replay, StateType, StoreDecl,
    conformance::{Build, Random, RandomWeights},
    op::{self, HeadMap},
    store::{Decay, StateDecl},
};
use kvas_gguf::Quant;
use std::{str::FromStr, sync::Arc};

/// What a layer computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// Gated delta rule, a decay per head
    Gdn,
    /// Mamba-2
    Mamba2,
    /// Gated delta rule, a decay per channel
    Kda,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Kind::Gdn => "gdn",
            Kind::Mamba2 => "mamba2",
            Kind::Kda => "kda",
        }
    }

    /// The shape that large models have.
    const fn geometry(self) -> Geometry {
        let (key_heads, value_heads, value_dim) = match self {
            Kind::Gdn => (16, 32, 128),
            Kind::Mamba2 => (8, 128, 64),
            Kind::Kda => (32, 32, 128),
        };
        Geometry { key_heads, value_heads, key_dim: 128, value_dim }
    }

    const fn decay(self) -> Decay {
        match self {
            Kind::Gdn | Kind::Mamba2 => Decay::PerHead,
            Kind::Kda => Decay::PerChannel,
        }
    }

    const fn write(self) -> Write {
        match self {
            Kind::Gdn | Kind::Kda => Write::Delta,
            Kind::Mamba2 => Write::Additive,
        }
    }
}

/// Heads and their columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
}

impl FromStr for Geometry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || "expected key heads/value heads x key columns x value columns, as in 16/32x128x128".to_string();
        let numbers: Vec<usize> = text.split(['/', 'x']).filter_map(|part| part.parse().ok()).collect();
        let &[key_heads, value_heads, key_dim, value_dim] = &numbers[..] else { return Err(expected()) };
        let geometry = Self { key_heads, value_heads, key_dim, value_dim };
        if geometry.to_string() != text || numbers.iter().any(|number| !(1..=4096).contains(number)) {
            return Err(expected());
        }
        if !value_heads.is_multiple_of(key_heads) {
            return Err(format!("{value_heads} value heads, expected a multiple of {key_heads} key heads"));
        }
        Ok(geometry)
    }
}

impl std::fmt::Display for Geometry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}x{}x{}", self.key_heads, self.value_heads, self.key_dim, self.value_dim)
    }
}

/// Which layers.
#[derive(Debug, Args)]
pub(super) struct LayerFlags {
    /// What the layers compute
    #[arg(long, value_name = "KIND,…", value_enum, value_delimiter = ',', default_value = "gdn")]
    pub(super) kind: Vec<Kind>,
    /// Key heads/value heads x key columns x value columns [default: those of large models]
    #[arg(long, value_name = "HK/HVxKxV,…", value_delimiter = ',')]
    geom: Vec<Geometry>,
    /// Layers that are cycled through, so that no cache holds their states
    #[arg(long, value_name = "N", default_value_t = 36, value_parser = clap::value_parser!(u16).range(1..=1024))]
    layers: u16,
    /// Sequences at once
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(super) batch: Vec<u16>,
}

impl LayerFlags {
    /// Every kind in every shape, on a device.
    pub(super) fn all(&self, compute: &ComputeFlags) -> anyhow::Result<Vec<Layers>> {
        let (mut all, ring_type) = (Vec::new(), device::ring_type(compute)?);
        for &kind in &self.kind {
            let own = [kind.geometry()];
            let geometries = if self.geom.is_empty() { &own } else { &self.geom[..] };
            let layers = |geometry: &Geometry| Layers::new(kind, *geometry, self.layers.into());
            all.extend(geometries.iter().map(|geometry| Layers { ring_type, ..layers(geometry) }));
        }
        Ok(all)
    }
}

/// Layers of one kind that read the same inputs, each with a state of its own.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) kind: Kind,
    geometry: Geometry,
    pub(super) decl: StateDecl,
    /// How the device keeps u and k.
    pub(super) ring_type: StateType,
    pub(super) program: Arc<Program>,
    /// Queries, keys and values; steps; the strength of delta writes.
    pub(super) inputs: Vec<Act>,
    pub(super) out: Act,
}

impl Layers {
    pub(super) fn new(kind: Kind, geometry: Geometry, count: usize) -> Self {
        let Geometry { key_heads, value_heads, key_dim, value_dim } = geometry;
        let decl = StateDecl { key_heads, value_heads, key_dim, value_dim, decay: kind.decay() };
        let (decays, norm_eps, head_map) = (value_heads * decl.decays(), 1e-6, HeadMap::Grouped);
        let mut b = Build::default();
        let mixed = b.act("mixed", 2 * key_heads * key_dim + value_heads * value_dim);
        let steps = b.act("steps", decays);
        let (a, dt) = (b.small("ssm_a", [1, value_heads]), b.small("dt", [1, decays]));
        let out = b.act("out", value_heads * value_dim);
        let mut inputs = vec![mixed, steps];
        let mut make: Box<dyn FnMut(&mut Build) -> Op> = match kind {
            Kind::Gdn | Kind::Kda => {
                let beta = b.act("beta", value_heads);
                inputs.push(beta);
                Box::new(move |b| {
                    let store = b.store(StoreDecl::State(decl));
                    let (qkv, alpha) = (mixed, steps);
                    Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out })
                })
            }
            Kind::Mamba2 => {
                let d = b.small("d", [1, value_heads]);
                Box::new(move |b| {
                    let store = b.store(StoreDecl::State(decl));
                    Op::Mamba2(op::Mamba2 { xbc: mixed, dt: steps, dt_bias: dt, a, d, store, out })
                })
            }
        };
        for _ in 0..count {
            let op = make(&mut b);
            b.op(op);
        }
        Self { kind, geometry, decl, ring_type: StateType::F32, program: Arc::new(b.finish(out)), inputs, out }
    }

    /// For people.
    pub(super) fn name(&self, batch: usize) -> String {
        format!("{} {} L{} B{batch}", self.kind.name(), self.geometry, self.program.ops.len())
    }

    /// What a layer moves per sequence.
    pub(super) fn traffic(&self, state_type: StateType) -> StateTraffic {
        StateTraffic::new(&self.decl, self.elements(state_type), self.kind.write())
    }

    /// Element types, of which activations are f32 on every device.
    pub(super) const fn elements(&self, state_type: StateType) -> Elements {
        Elements { state: state_type.bytes(), ring: self.ring_type.bytes(), ..Elements::F32 }
    }

    /// Layers times sequences: what traffic is multiplied with.
    pub(super) fn states(&self, batch: usize) -> f64 {
        (self.program.ops.len() * batch) as f64
    }

    /// A device with `slots` slots besides the one of padding, and random inputs for `rows` rows.
    pub(super) fn harness(
        &self,
        flags: &ComputeFlags,
        (replay, state_type): (Replay, StateType),
        rows: usize,
        slots: usize,
    ) -> anyhow::Result<Harness> {
        let mut weights = RandomWeights { quant: Quant::F32, seed: 1 };
        let limits = Limits { rows, slots: slots + 1, replay, state_type, ..NO_PAGES };
        let mut harness = Harness::new(flags, &self.program, &mut weights, limits)?;
        let mut random = Random::new(2);
        for act in &self.inputs {
            let values: Vec<f32> = (0..rows * self.program.act(*act).columns).map(|_| random.normal()).collect();
            harness.backend.write(*act, &values)?;
        }
        Ok(harness)
    }
}

/// Steps of `rows` rows of every sequence, of which `accepted` are kept.
pub(super) struct Steps {
    harness: Harness,
    sequences: Vec<Sequence>,
    rows: usize,
    accepted: u32,
    /// Steps from one flush of the ring to the next.
    cycle: usize,
}

impl Steps {
    pub(super) fn new(
        flags: &ComputeFlags,
        layers: &Layers,
        batch: usize,
        memory: (Replay, StateType),
        (rows, accepted): (usize, usize),
    ) -> anyhow::Result<Self> {
        let harness = layers.harness(flags, memory, batch * rows, batch)?;
        let cycle = flush_cycle(memory.0, accepted);
        Ok(Self { harness, sequences: Sequence::first(batch), rows, accepted: accepted as u32, cycle })
    }
}

/// Steps from one flush to the next, `accepted` rows of each kept (the rule of [`kvas_backend::Cursors`]).
fn flush_cycle(replay: Replay, accepted: usize) -> usize {
    replay.history.div_ceil(accepted).max(1)
}

impl Subject for Steps {
    fn cycle(&mut self) -> anyhow::Result<Cycle> {
        let mut seconds = 0.0;
        for _ in 0..self.cycle {
            self.harness.fill_step(&self.sequences, self.rows);
            seconds += self.harness.run()?;
            seconds += self.harness.commit(&mut self.sequences, self.accepted)?;
        }
        Ok(Cycle { seconds, works: self.cycle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::{Cursors, Slot};

    #[test]
    fn a_geometry_is_written_as_it_is_read() {
        assert_eq!("16/32x128x64".parse::<Geometry>().unwrap().to_string(), "16/32x128x64");
        for wrong in ["", "16/32x128", "16x32x128x64", "16/32x128x64x1", "3/32x8x8", "0/0x1x1", "a/32x128x128"] {
            assert!(wrong.parse::<Geometry>().unwrap_err().contains("expected"), "{wrong}");
        }
    }

    #[test]
    fn a_cycle_ends_where_the_ring_is_flushed() {
        for (history, window, accepted) in [(16, 1, 1), (4, 4, 1), (16, 4, 1), (16, 4, 3), (16, 4, 4), (9, 2, 2)] {
            let replay = Replay::new(history, window);
            let program = Program { ops: vec![], acts: vec![], weights: vec![], stores: vec![], logits: Act(0) };
            let mut cursors = Cursors::new(&program, &Limits { slots: 2, replay, ..NO_PAGES });
            let mut flushes = Vec::new();
            for step in 0..100 {
                if cursors.begin(Slot(1), window as u32).flush {
                    flushes.push(step);
                }
                cursors.commit(Slot(1), accepted as u32);
            }
            let cycle = flush_cycle(replay, accepted);
            assert!(flushes.windows(2).all(|pair| pair[1] - pair[0] == cycle), "{replay:?}: {flushes:?}, {cycle}");
        }
        assert_eq!(flush_cycle(Replay::OFF, 1), 1);
    }
}
