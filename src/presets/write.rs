//! A preset's tensors, with the names, shapes and formats a converter gives them, and their random numbers.

use super::Preset;
use crate::model::{
    ModelError, ModelSpec,
    lower::lower,
    spec::{DeltaProjection, Ffn, Mixer},
};
use kvas_backend::{Program, WeightDecl, WeightFormat, conformance::Random};
use kvas_gguf::{GgufError, GgufWriter, Quant, Value};
use kvas_tools::quantize::{self, Facts, Mix};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::Path,
};

/// Writes a preset's model in a mix of formats. `progress` hears (bytes written, bytes in all).
pub fn write(
    preset: &Preset,
    mix: &'static Mix,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ModelError> {
    let mut metadata = preset.metadata();
    metadata.set("general.file_type", Value::U32(mix.file_type));
    let spec = preset.spec(&metadata)?;
    let mut tensors = tensors(&spec, &lower(&spec));
    store_as(&mut tensors, mix, &Facts::of(&metadata)?);
    let mut writer = GgufWriter::new(metadata);
    for tensor in &tensors {
        writer.declare(&tensor.name, tensor.quant, &tensor.shape)?;
    }
    let total = tensors.iter().map(|tensor| tensor.bytes() as u64).sum();
    let (mut done, mut open, mut pools) = (0u64, writer.create(path)?, Pools::default());
    for tensor in &tensors {
        for part in pools.parts(tensor)? {
            open.write_part(&tensor.name, part)?;
            done += part.len() as u64;
            progress(done, total);
        }
    }
    Ok(open.finish()?)
}

/// A tensor to write.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) quant: Quant,
    /// The contiguous dimension first.
    pub(super) shape: Vec<u64>,
}

impl Tensor {
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }

    fn bytes(&self) -> usize {
        self.elements() / self.quant.block_len() * self.quant.block_bytes()
    }
}

/// The tensors behind a program's weights, each once, in F32.
pub(super) fn tensors(spec: &ModelSpec, program: &Program) -> Vec<Tensor> {
    let mut found: BTreeMap<&str, (usize, &WeightDecl)> = BTreeMap::new();
    let mut order = Vec::new();
    for decl in &program.weights {
        for part in &decl.parts {
            let known = found.entry(&part.tensor).or_insert_with(|| {
                order.push(part.tensor.as_str());
                (0, decl)
            });
            known.0 = known.0.max(part.first + part.rows);
        }
    }
    let tensor = |name: &str| {
        let (rows, decl) = found[name];
        let shape = shape(spec, name, rows, decl);
        Tensor { name: name.into(), quant: Quant::F32, shape }
    };
    order.into_iter().map(tensor).collect()
}

/// Gives the tensors the formats of a mix.
pub(super) fn store_as(tensors: &mut [Tensor], mix: &'static Mix, facts: &Facts) {
    let seen: Vec<quantize::Tensor<'_>> = tensors
        .iter()
        .map(|tensor| quantize::Tensor { name: &tensor.name, shape: &tensor.shape, stored: tensor.quant })
        .collect();
    let chosen = quantize::choose(&quantize::Recipe::new(mix), facts, &seen);
    tensors.iter_mut().zip(chosen).for_each(|(tensor, choice)| tensor.quant = choice.quant);
}

/// The shape of a tensor of so many rows, the contiguous dimension first.
fn shape(spec: &ModelSpec, name: &str, rows: usize, decl: &WeightDecl) -> Vec<u64> {
    let columns = decl.shape[1];
    let is_vector = decl.format == WeightFormat::F32 && rows == 1;
    let usual = if is_vector { vec![columns] } else { vec![columns, rows] };
    let in_block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let unusual = in_block.and_then(|(block, stem)| {
        let layer = &spec.layers[block.parse::<usize>().ok()?];
        let of_ffn = layer.ffn.iter().filter_map(|ffn| stacked_shape(ffn, stem, [rows, columns]));
        let of_mixers = layer.mixers.iter().filter_map(|mixer| mixer_shape(mixer, stem, [rows, columns]));
        of_ffn.chain(of_mixers).next()
    });
    unusual.unwrap_or(usual).into_iter().map(|size| size as u64).collect()
}

/// The shape of the tensors that hold the matrices of all experts.
fn stacked_shape(ffn: &Ffn, stem: &str, [rows, columns]: [usize; 2]) -> Option<Vec<usize>> {
    match ffn {
        Ffn::Moe(moe) if stem.ends_with("_exps.weight") => Some(vec![columns, rows / moe.experts, moe.experts]),
        Ffn::Moe(_) | Ffn::Dense { .. } => None,
    }
}

/// The shape of those tensors of a mixer that are neither vectors nor matrices, or look like what they are not.
fn mixer_shape(mixer: &Mixer, stem: &str, [rows, columns]: [usize; 2]) -> Option<Vec<usize>> {
    match (mixer, stem) {
        (Mixer::Mamba2(_), "ssm_a" | "ssm_d") => Some(vec![1, columns]),
        (Mixer::Mamba2(_), "ssm_norm.weight") => Some(vec![columns, rows]),
        (Mixer::GatedDelta(delta), stem) if delta.projection == DeltaProjection::PerChannel => match stem {
            "ssm_a" => Some(vec![1, columns, 1, 1]),
            _ => stem.starts_with("ssm_conv1d_").then(|| vec![columns, 1, rows, 1]),
        },
        (Mixer::LatentAttention(latent), "attn_k_b.weight" | "attn_v_b.weight") => {
            Some(vec![columns, rows / latent.heads, latent.heads])
        }
        _ => None,
    }
}

/// Mean and standard deviation of a tensor's numbers: a model of these neither explodes nor dies out.
pub(super) fn distribution(tensor: &Tensor) -> (f32, f32) {
    match tensor.name.as_str() {
        name if name.contains("norm") || name.ends_with("rope_freqs.weight") || name.ends_with("ssm_d") => (1.0, 0.1),
        // Rates of decay are negative, steps small.
        name if name.ends_with("ssm_a") => (-1.0, 0.1),
        name if name.ends_with("ssm_dt.bias") => (-2.0, 0.5),
        name if name.contains("ssm_conv1d") || name.ends_with("shortconv.conv.weight") => (0.0, 0.5),
        name if name.ends_with(".bias") => (0.0, 0.01),
        // Matrices keep the scale of their input.
        _ => (0.0, (tensor.shape[0] as f32).sqrt().recip()),
    }
}

/// Blocks of normal numbers, quantised once per format and scale and then repeated: fast, and as hard to multiply
/// with as any other.
#[derive(Debug, Default)]
struct Pools {
    blocks: BTreeMap<(u32, u32), Vec<u8>>,
}

impl Pools {
    /// The bytes of a tensor, in pieces.
    fn parts(&mut self, tensor: &Tensor) -> Result<Vec<&[u8]>, GgufError> {
        const POOL: usize = 1 << 20;
        let (mean, deviation) = distribution(tensor);
        let key = (tensor.quant.id(), f32::to_bits(mean * 64.0 + deviation));
        let pool = match self.blocks.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let mut random = Random::new(u64::from(key.1));
                let values: Vec<f32> = (0..POOL).map(|_| mean + deviation * random.normal()).collect();
                let mut bytes = vec![0; POOL / tensor.quant.block_len() * tensor.quant.block_bytes()];
                tensor.quant.quantize(&values, &mut bytes)?;
                new.insert(bytes)
            }
        };
        // Start elsewhere in the pool for every tensor, so that layers differ.
        let hash = tensor.name.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(131).wrapping_add(byte.into()));
        Ok(if matches!(tensor.name.as_str(), "token_embd.weight" | "output.weight") {
            of_tokens(pool, tensor, hash)
        } else {
            let blocks = pool.len() / tensor.quant.block_bytes();
            repeated(pool, hash as usize % blocks * tensor.quant.block_bytes(), tensor.bytes())
        })
    }
}

fn repeated(pool: &[u8], mut at: usize, mut left: usize) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while left > 0 {
        let part = &pool[at..pool.len().min(at + left)];
        parts.push(part);
        left -= part.len();
        at = 0;
    }
    parts
}

/// Rows whose halves begin anywhere: tokens with the same row would have the same logits, which no model gives.
fn of_tokens<'a>(pool: &'a [u8], tensor: &Tensor, hash: u64) -> Vec<&'a [u8]> {
    let (block, rows) = (tensor.quant.block_bytes(), tensor.shape[1] as usize);
    let blocks = tensor.bytes() / rows / block;
    let mut random = Random::new(hash);
    let halves = (0..2 * rows).map(|number| (blocks + number % 2) / 2).filter(|blocks| *blocks > 0);
    let starts = halves.map(|half| (random.below(pool.len() / block - half + 1), half));
    starts.map(|(start, half)| &pool[start * block..(start + half) * block]).collect()
}
