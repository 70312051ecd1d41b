//! Random-weight models in the real layer shapes of known ones, for benchmarks and tests. A preset is metadata and
//! the marks that readers look for in a tensor directory; shapes come from lowering, like those of a real file.

mod vocabulary;

use crate::{
    arch::{self, Header},
    model::{ModelError, lower::lower},
};
use kvas_backend::{Program, WeightDecl, WeightFormat, conformance::Random};
use kvas_gguf::{GgufError, GgufWriter, Metadata, Quant, Value};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::Path,
};

/// A known model's shapes.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// The name users give.
    pub name: &'static str,
    architecture: &'static str,
    vocab: usize,
    tied: bool,
    /// Keys under the architecture's prefix.
    keys: &'static [(&'static str, Key)],
    /// Tensor stems a reader looks for in attention layers.
    marks: &'static [&'static str],
}

#[derive(Debug, Clone, Copy)]
enum Key {
    U(u32),
    F(f32),
}

use Key::{F, U};

/// Presets there are.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "llama-3.2-1b",
        architecture: "llama",
        vocab: 128_256,
        tied: true,
        keys: &[
            ("block_count", U(16)),
            ("context_length", U(131_072)),
            ("embedding_length", U(2048)),
            ("feed_forward_length", U(8192)),
            ("attention.head_count", U(32)),
            ("attention.head_count_kv", U(8)),
            ("attention.key_length", U(64)),
            ("attention.value_length", U(64)),
            ("attention.layer_norm_rms_epsilon", F(1e-5)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(500_000.0)),
        ],
        marks: &[],
    },
    Preset {
        name: "qwen3-0.6b",
        architecture: "qwen3",
        vocab: 151_936,
        tied: true,
        keys: &[
            ("block_count", U(28)),
            ("context_length", U(40_960)),
            ("embedding_length", U(1024)),
            ("feed_forward_length", U(3072)),
            ("attention.head_count", U(16)),
            ("attention.head_count_kv", U(8)),
            ("attention.key_length", U(128)),
            ("attention.value_length", U(128)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("rope.freq_base", F(1_000_000.0)),
        ],
        marks: &["attn_q_norm.weight", "attn_k_norm.weight"],
    },
    Preset {
        name: "qwen3.5-0.8b",
        architecture: "qwen35",
        vocab: 248_320,
        tied: true,
        keys: &[
            ("block_count", U(24)),
            ("embedding_length", U(1024)),
            ("feed_forward_length", U(3584)),
            ("attention.head_count", U(8)),
            ("attention.head_count_kv", U(2)),
            ("ssm.group_count", U(16)),
            ("ssm.time_step_rank", U(16)),
            ("ssm.inner_size", U(2048)),
            ("context_length", U(262_144)),
            ("attention.key_length", U(256)),
            ("attention.value_length", U(256)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("full_attention_interval", U(4)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(10_000_000.0)),
            ("ssm.conv_kernel", U(4)),
            ("ssm.state_size", U(128)),
        ],
        marks: &["attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight"],
    },
    Preset {
        name: "qwen3.5-4b",
        architecture: "qwen35",
        vocab: 248_320,
        tied: true,
        keys: &[
            ("block_count", U(32)),
            ("embedding_length", U(2560)),
            ("feed_forward_length", U(9216)),
            ("attention.head_count", U(16)),
            ("attention.head_count_kv", U(4)),
            ("ssm.group_count", U(16)),
            ("ssm.time_step_rank", U(32)),
            ("ssm.inner_size", U(4096)),
            ("context_length", U(262_144)),
            ("attention.key_length", U(256)),
            ("attention.value_length", U(256)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("full_attention_interval", U(4)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(10_000_000.0)),
            ("ssm.conv_kernel", U(4)),
            ("ssm.state_size", U(128)),
        ],
        marks: &["attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight"],
    },
];

/// A preset by name.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

impl Preset {
    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", Value::String(self.architecture.into()));
        metadata.set("general.type", Value::String("model".into()));
        metadata.set("general.name", Value::String(format!("{} shapes, random weights", self.name)));
        metadata.set("general.quantization_version", Value::U32(2));
        for (key, value) in self.keys {
            let value = match *value {
                U(value) => Value::U32(value),
                F(value) => Value::F32(value),
            };
            metadata.set(format!("{}.{key}", self.architecture), value);
        }
        vocabulary::add(&mut metadata, self.vocab);
        metadata
    }

    /// The program of the preset, from the same reader and lowering as a file's.
    pub fn program(&self) -> Result<Program, ModelError> {
        self.program_of(&self.metadata())
    }

    fn program_of(&self, metadata: &Metadata) -> Result<Program, ModelError> {
        let width = metadata.uint(&format!("{}.embedding_length", self.architecture))?;
        let blocks = metadata.uint(&format!("{}.block_count", self.architecture))?;
        let table = [width, self.vocab as u64];
        let marks: Vec<String> = (0..blocks)
            .flat_map(|block| self.marks.iter().map(move |stem| format!("blk.{block}.{stem}")))
            .chain((!self.tied).then(|| "output.weight".to_string()))
            .collect();
        let tensors = marks.iter().map(|name| (name.as_str(), &table[..0]));
        let header = Header::new(metadata, tensors.chain([("token_embd.weight", &table[..])]))?;
        Ok(lower(&arch::read(&header)?))
    }
}

/// Writes a preset's model with every matrix in one format. `progress` hears (bytes written, bytes in all).
pub fn write(preset: &Preset, quant: Quant, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), ModelError> {
    let metadata = preset.metadata();
    let program = preset.program_of(&metadata)?;
    let tensors = tensors(&program, quant)?;
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
struct Tensor {
    name: String,
    quant: Quant,
    shape: Vec<u64>,
}

impl Tensor {
    fn elements(&self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }

    fn bytes(&self) -> usize {
        self.elements() / self.quant.block_len() * self.quant.block_bytes()
    }
}

/// The tensors behind a program's weights, each once, with the shapes a converter gives them.
fn tensors(program: &Program, quant: Quant) -> Result<Vec<Tensor>, GgufError> {
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
    order.into_iter().map(|name| tensor(name, found[name].0, found[name].1, quant)).collect()
}

fn tensor(name: &str, rows: usize, decl: &WeightDecl, quant: Quant) -> Result<Tensor, GgufError> {
    let columns = decl.shape[1];
    let is_vector = decl.format == WeightFormat::F32 && rows == 1;
    let shape = if is_vector { vec![columns as u64] } else { vec![columns as u64, rows as u64] };
    let quant = if decl.format == WeightFormat::F32 { Quant::F32 } else { quant };
    if !columns.is_multiple_of(quant.block_len()) {
        let what = format!("has rows of {columns}, expected whole blocks of {} for {quant}", quant.block_len());
        return Err(GgufError::Tensor { name: name.into(), what });
    }
    Ok(Tensor { name: name.into(), quant, shape })
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
        let name = tensor.name.as_str();
        let columns = tensor.shape[0] as f32;
        // Norms are ones; `ssm_a` is negative; matrices keep the scale of their input.
        let (mean, deviation) = match name {
            name if name.contains("norm") => (1.0, 0.1),
            name if name.ends_with("ssm_a") => (-1.0, 0.1),
            name if name.contains("ssm_dt") => (-2.0, 0.5),
            name if name.contains("conv") => (0.0, 0.5),
            _ => (0.0, columns.sqrt().recip()),
        };
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
        let hash = name.bytes().fold(7usize, |hash, byte| hash.wrapping_mul(131).wrapping_add(byte.into()));
        let blocks = pool.len() / tensor.quant.block_bytes();
        let mut at = hash % blocks * tensor.quant.block_bytes();
        let (mut left, mut parts) = (tensor.bytes(), Vec::new());
        while left > 0 {
            let part = &pool[at..pool.len().min(at + left)];
            parts.push(part);
            left -= part.len();
            at = 0;
        }
        Ok(parts)
    }
}
