//! Deterministic numbers, and weights made of them.

use crate::{
    Bytes, DeviceError, KvType, Limits, Replay, StateType, WeightData, WeightDecl, WeightFormat, WeightSource,
};
use kvas_gguf::Quant;

/// A small deterministic generator (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `[0, 1)`.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Less than `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.uniform()).cos()
    }
}

/// Random weights in one format. The name of a declaration says what range is honest for it: names that contain
/// `norm` are near 1, `ssm_a` is negative over the range real models have, `dt` lies around -1, and matrices keep the
/// scale of their input.
#[derive(Debug, Clone)]
pub struct RandomWeights {
    /// Format of matrices; vectors and rows that are not whole blocks are F32.
    pub quant: Quant,
    /// Other seed, other weights.
    pub seed: u64,
}

impl WeightSource for RandomWeights {
    fn load(&mut self, decl: &WeightDecl) -> Result<WeightData, DeviceError> {
        let name = decl.name.bytes().fold(self.seed, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let mut random = Random::new(name);
        let scale = 1.0 / (decl.shape[1] as f32).sqrt();
        let values: Vec<f32> = (0..decl.shape[0] * decl.shape[1])
            .map(|_| match decl.name.as_str() {
                name if name.contains("norm") => 1.0 + 0.2 * random.normal(),
                name if name.contains("ssm_a") => -(-4.0 + 5.5 * random.uniform()).exp(),
                name if name.contains("dt") => -1.0 + 1.5 * random.normal(),
                name if name.contains("rope_freqs") => 1.0 + 7.0 * random.uniform(),
                name if name.contains("bias") || name.contains("conv") => 0.5 * random.normal(),
                _ => scale * random.normal(),
            })
            .collect();
        let fits = decl.shape[1].is_multiple_of(self.quant.block_len());
        let quant = if decl.format == WeightFormat::F32 || !fits { Quant::F32 } else { self.quant };
        let bytes = quant.row_bytes(values.len()).expect("whole blocks");
        let mut data = vec![0u8; bytes];
        let fail =
            |error: kvas_gguf::GgufError| DeviceError::Weight { name: decl.name.clone(), what: error.to_string() };
        quant.quantize(&values, &mut data).map_err(fail)?;
        Ok(WeightData::new(quant, Bytes::new(data)))
    }
}

/// Weights in a format that take no time to make, for who measures: some rows over and over; vectors are F32.
#[derive(Debug, Clone, Copy)]
pub struct RepeatedWeights(pub Quant);

impl WeightSource for RepeatedWeights {
    fn load(&mut self, decl: &WeightDecl) -> Result<WeightData, DeviceError> {
        let quant = if decl.format == WeightFormat::F32 { Quant::F32 } else { self.0 };
        let mut random = Random::new(decl.name.bytes().map(u64::from).sum());
        let values: Vec<f32> = (0..7 * decl.shape[1]).map(|_| 0.02 * random.normal()).collect();
        let mut rows = vec![0; quant.row_bytes(values.len()).expect("whole blocks")];
        quant.quantize(&values, &mut rows).expect("as many bytes as blocks");
        let bytes = quant.row_bytes(decl.shape[1]).expect("whole blocks") * decl.shape[0];
        let mut all = Vec::with_capacity(bytes);
        while all.len() < bytes {
            all.extend_from_slice(&rows[..rows.len().min(bytes - all.len())]);
        }
        Ok(WeightData::new(quant, Bytes::new(all)))
    }
}

/// Limits of a program that stores nothing, for so many rows.
pub const fn without_stores(rows: usize) -> Limits {
    let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
    Limits {
        context: 0,
        rows,
        outputs: rows,
        pages: 1,
        page_size: 4,
        slots: 2,
        snapshots: 0,
        replay,
        kv_type,
        state_type,
    }
}
