//! Answers of the float64 oracle (`tests/data/vectors`): a device that misses them is not timed.

use super::{
    harness::{Harness, Sequence},
    linear::{Geometry, Kind, Layers},
};
use crate::cli::flags::ComputeFlags;
use anyhow::ensure;
use kvas_backend::{Bytes, DeviceError, KvType, Limits, Replay, StateType, WeightData, WeightDecl, WeightSource};
use kvas_gguf::Quant;
use serde::Deserialize;

/// Largest relative error of a recurrence (ALGORITHMS 2.9), of which neither or one of state and ring is in f16. Floor on CPU:
/// 1.4e-7, and 2.7e-4 for states in f16.
fn bound(types: [StateType; 2]) -> f64 {
    if types.contains(&StateType::F16) { 1e-3 } else { 1e-6 }
}

/// Inputs, weights and outputs of a recurrence, row by row.
#[derive(Debug, Deserialize)]
struct Recurrence {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    rows: usize,
    inputs: Vec<f32>,
    steps: Vec<f32>,
    beta: Vec<f32>,
    ssm_a: Vec<f32>,
    dt: Vec<f32>,
    d: Vec<f32>,
    out: Vec<f64>,
}

/// A query over a context, with keys and values `[tokens, kv_heads, head_dim]`.
#[derive(Debug, Deserialize)]
pub(super) struct Attention {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) tokens: usize,
    pub(super) query: Vec<f32>,
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    pub(super) out: Vec<f64>,
}

const WELL_FORMED: &str = "the vectors in the repository are well formed";

fn recurrence(kind: Kind) -> Recurrence {
    let text = match kind {
        Kind::Gdn => include_str!("../../../tests/data/vectors/gdn.json"),
        Kind::Kda => include_str!("../../../tests/data/vectors/kda.json"),
        Kind::Mamba2 => include_str!("../../../tests/data/vectors/mamba2.json"),
    };
    serde_json::from_str(text).expect(WELL_FORMED)
}

/// The vectors of attention.
pub(super) fn attention() -> Attention {
    serde_json::from_str(include_str!("../../../tests/data/vectors/attention.json")).expect(WELL_FORMED)
}

/// Weights by name.
struct Given<'a>(Vec<(&'static str, &'a [f32])>);

impl WeightSource for Given<'_> {
    fn load(&mut self, decl: &WeightDecl) -> Result<WeightData, DeviceError> {
        let (_, values) = self.0.iter().find(|(name, _)| *name == decl.name).expect("every weight has its vector");
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(WeightData::new(Quant::F32, Bytes::new(bytes)))
    }
}

/// Compares a device with the oracle: the vectors in windows of `window` rows, of which the first, the first two … all
/// are kept in turn where they can be taken back. An error beyond the bound is refused.
pub(super) fn check_recurrence(
    flags: &ComputeFlags,
    kind: Kind,
    (replay, state_type): (Replay, StateType),
    window: usize,
) -> anyhow::Result<f64> {
    let given = recurrence(kind);
    let Recurrence { key_heads, value_heads, key_dim, value_dim, rows, .. } = given;
    let layers = Layers::new(kind, Geometry { key_heads, value_heads, key_dim, value_dim }, 1);
    let mut weights = Given(vec![("ssm_a", &given.ssm_a), ("dt", &given.dt), ("d", &given.d)]);
    let limits = Limits { rows: window, slots: 2, replay, state_type, ..NO_PAGES };
    let mut harness = Harness::new(flags, &layers.program, &mut weights, limits)?;
    let mut sequences = Sequence::first(1);
    let (mut at, mut keep, mut error) = (0, 1, Error::default());
    let columns = value_heads * value_dim;
    while at < rows {
        let count = window.min(rows - at);
        for (act, values) in layers.inputs.iter().zip([&given.inputs, &given.steps, &given.beta]) {
            let width = values.len() / rows;
            harness.backend.write(*act, &values[at * width..(at + count) * width])?;
        }
        harness.fill_step(&sequences, count);
        harness.run()?;
        let mut out = vec![0.0; count * columns];
        harness.backend.read(layers.out, 0, &mut out)?;
        error.add(&out, &given.out[at * columns..]);
        let accepted = if count > replay.window { count } else { keep.min(count) };
        keep = keep % window + 1;
        harness.commit(&mut sequences, accepted as u32)?;
        at += accepted;
    }
    let ring_type = if replay.ring_rows() > 0 { harness.backend.ring_type() } else { StateType::F32 };
    error.within(kind.name(), bound([state_type, ring_type]))
}

/// Limits of a program without pages.
pub(super) const NO_PAGES: Limits = Limits {
    context: 0,
    rows: 1,
    outputs: 1,
    pages: 1,
    page_size: 1,
    slots: 1,
    snapshots: 0,
    replay: Replay::OFF,
    kv_type: KvType::F32,
    state_type: StateType::F32,
};

/// The length of a difference, and of what was expected.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Error {
    difference: f64,
    expected: f64,
}

impl Error {
    /// Takes in what was found; more may have been expected.
    pub(super) fn add(&mut self, found: &[f32], expected: &[f64]) {
        for (found, expected) in found.iter().zip(expected) {
            self.difference += (f64::from(*found) - expected).powi(2);
            self.expected += expected.powi(2);
        }
    }

    /// The relative error, or a refusal.
    pub(super) fn within(self, what: &str, bound: f64) -> anyhow::Result<f64> {
        let error = (self.difference / self.expected).sqrt();
        // Not a number is refused too.
        ensure!(
            error <= bound,
            "{what}: the device is off by {error:.1e}, expected at most {bound:.1e}; nothing is timed"
        );
        Ok(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags::Device;

    #[test]
    fn every_device_meets_the_vectors_however_it_keeps_its_state() {
        for device in [Device::Cpu, Device::Reference] {
            let flags = ComputeFlags { threads: Some(2), device, ..ComputeFlags::default() };
            for kind in [Kind::Gdn, Kind::Kda, Kind::Mamba2] {
                for (replay, window) in [
                    (Replay::OFF, 1),
                    (Replay::OFF, 12),
                    (Replay::new(4, 1), 1),
                    (Replay::new(3, 3), 3),
                    (Replay::new(8, 4), 4),
                ] {
                    for state_type in [StateType::F32, StateType::F16] {
                        let error = check_recurrence(&flags, kind, (replay, state_type), window);
                        println!("{device:?} {kind:?} {replay:?} {state_type:?} {error:?}");
                        error.unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_off_is_refused() {
        let mut error = Error::default();
        error.add(&[3.0, 4.0], &[3.0, 4.0 + 1e-3]);
        assert!((error.within("x", 1e-3).unwrap() - 2e-4).abs() < 1e-6);
        let text = error.within("x", 1e-4).unwrap_err().to_string();
        assert_eq!(text, "x: the device is off by 2.0e-4, expected at most 1.0e-4; nothing is timed");
        error.add(&[f32::NAN], &[0.0]);
        assert!(error.within("x", 1.0).is_err());
    }
}
