//! Integers around zeros that GPTQ, AWQ, AutoRound and compressed-tensors pack into others of 32 bits.

use crate::convert::checkpoint::{Checkpoint, Stored};
use crate::convert::floats::Float;
use crate::convert::json::Json;
use anyhow::{Context, Result, bail};
use safetensors::tensor::Dtype;
use serde_json::Value;

/// Where AWQ has each of eight neighbours in an integer of 32 bits.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// How a matrix lies in its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    /// Codes of neighbouring columns of a row share an integer, the rows are neighbours. Zeros may be too small by one.
    Gptq { zeros_from_one: bool },
    /// Codes of neighbouring rows share an integer, in an order of their own.
    Awq,
    /// Rows one after the other; zeros of neighbouring rows share an integer.
    Rows,
}

/// A matrix of integers, of which each group of columns has a scale and a zero for each row.
#[derive(Debug, Clone)]
pub(in crate::convert) struct Packed {
    packing: Packing,
    /// Bits of an integer.
    bits: usize,
    rows: usize,
    columns: usize,
    groups: usize,
    /// Columns of a group, where they are one after the other; the last one may have fewer.
    group_columns: usize,
    codes: Stored,
    zeros: Stored,
    scales: Stored,
    float: Float,
    /// The group of each column, where they are not one after the other, and what that tensor is called.
    group_of: Option<(String, Stored)>,
}

/// A matrix in memory, its codes as they are stored.
pub(in crate::convert) struct Unpacked {
    packing: Packing,
    bits: usize,
    rows: usize,
    columns: usize,
    groups: usize,
    codes: Vec<u32>,
    /// For each group and row, in the order of `at`.
    zeros: Vec<f32>,
    scales: Vec<f32>,
    group_of: Vec<usize>,
}

/// What the tensors of one matrix are called behind its name.
struct Names {
    codes: &'static str,
    zeros: &'static str,
    scales: &'static str,
    groups: &'static str,
}

const GPTQ_NAMES: Names = Names { codes: "qweight", zeros: "qzeros", scales: "scales", groups: "g_idx" };
const COMPRESSED_NAMES: Names =
    Names { codes: "weight_packed", zeros: "weight_zero_point", scales: "weight_scale", groups: "weight_g_idx" };

/// Joins the tensors of every packed matrix under the name of its weight.
pub(super) fn pair(checkpoint: &mut Checkpoint, config: &Json) -> Result<()> {
    let text = |name: &str| config.text(&format!("quantization_config.{name}"));
    let (names, packing) = match text("quant_method")? {
        Some("gptq") => {
            let format = text("checkpoint_format")?.or(text("format")?).unwrap_or("gptq");
            if !["gptq", "gptq_v2"].contains(&format) {
                bail!(
                    "config.json: quantization_config.checkpoint_format = {format:?}, expected \"gptq\" or \"gptq_v2\""
                );
            }
            (&GPTQ_NAMES, Packing::Gptq { zeros_from_one: format == "gptq" })
        }
        Some("awq") => {
            let version = text("version")?.or(text("checkpoint_format")?).unwrap_or("gemm");
            if !version.eq_ignore_ascii_case("gemm") {
                bail!("config.json: quantization_config.version = {version:?}, expected \"gemm\"");
            }
            (&GPTQ_NAMES, Packing::Awq)
        }
        Some("auto-round" | "intel/auto-round") => {
            let format = text("packing_format")?.or(text("backend")?).unwrap_or("auto_round:auto_gptq");
            match format.split_once(':').map_or("", |(_, form)| form) {
                form if form.contains("awq") => (&GPTQ_NAMES, Packing::Awq),
                // Its own form is that of GPTQ with zeros as they are.
                "" | "gptqmodel" | "exllamav2" | "tritonv2" => (&GPTQ_NAMES, Packing::Gptq { zeros_from_one: false }),
                form if form.contains("gptq") => (&GPTQ_NAMES, Packing::Gptq { zeros_from_one: true }),
                // Their tensors say what they are.
                "llm_compressor" | "fp8" | "fp8_static" => return Ok(()),
                _ => bail!(
                    "config.json: quantization_config.packing_format = {format:?}, expected e.g. \"auto_round:auto_gptq\""
                ),
            }
        }
        Some("compressed-tensors") => (&COMPRESSED_NAMES, Packing::Rows),
        Some(_) | None => return Ok(()),
    };
    // -1 is all of them.
    let group_size = config.get("quantization_config.group_size").and_then(Value::as_u64).map(|size| size as usize);
    let all: Vec<String> = checkpoint.names().map(String::from).collect();
    for stem in all.iter().filter_map(|name| name.strip_suffix(names.codes)).filter(|stem| stem.ends_with('.')) {
        join(checkpoint, stem, (names, packing), group_size)?;
    }
    Ok(())
}

/// Puts one matrix in the place of its tensors.
fn join(
    checkpoint: &mut Checkpoint,
    stem: &str,
    (names, packing): (&Names, Packing),
    group_size: Option<usize>,
) -> Result<()> {
    let name = |ending: &str| format!("{stem}{ending}");
    let is_compressed = packing == Packing::Rows;
    if is_compressed && [names.zeros, names.groups].iter().all(|ending| checkpoint.get(&name(ending)).is_none()) {
        // Around 0 and in order: rows are read as they lie there.
        return Ok(());
    }
    let [codes, zeros, scales] = [names.codes, names.zeros, names.scales].map(|ending| {
        let stored = checkpoint.get(&name(ending)).cloned();
        stored.with_context(|| format!("tensor {stem}{ending} is missing from the checkpoint"))
    });
    let (codes, zeros, scales) = (codes?, zeros?, scales?);
    let group_of = checkpoint.get(&name(names.groups)).cloned();
    for (stored, ending) in [(&codes, names.codes), (&zeros, names.zeros)]
        .into_iter()
        .chain(group_of.as_ref().map(|stored| (stored, names.groups)))
    {
        if stored.dtype != Dtype::I32 {
            bail!("tensor {stem}{ending} is {:?}, expected I32", stored.dtype);
        }
    }
    let Some(float) = scales.float else {
        bail!("tensor {stem}{} is {:?}, expected F32, F16 or BF16", names.scales, scales.dtype);
    };
    let Some(sizes) = Sizes::of(packing, [&codes, &zeros, &scales].map(|stored| stored.shape.as_slice())) else {
        bail!(
            "tensor {stem}{} has the shape {:?} beside zeros of {:?} and scales of {:?}, expected integers of 2, 3, 4 or 8 bits",
            names.codes,
            codes.shape,
            zeros.shape,
            scales.shape
        );
    };
    let Sizes { bits, rows, columns, groups } = sizes;
    let group_columns = group_size
        .filter(|size| *size > 0 && columns.div_ceil(*size) == groups)
        .or_else(|| columns.is_multiple_of(groups).then_some(columns / groups));
    match &group_of {
        Some(found) if found.shape != [columns] => {
            bail!("tensor {stem}{} has the shape {:?}, expected [{columns}]", names.groups, found.shape)
        }
        None if group_columns.is_none() => {
            bail!("tensor {stem}{} is missing, expected with {groups} groups of {columns} columns", names.groups)
        }
        Some(_) | None => {}
    }
    for ending in [names.codes, names.zeros, names.scales, names.groups, "weight_shape"] {
        checkpoint.remove(&name(ending));
    }
    let group_of = group_of.map(|stored| (name(names.groups), stored));
    let mut joined = codes.clone();
    (joined.shape, joined.float) = (vec![rows, columns], Some(Float::F32));
    let group_columns = group_columns.unwrap_or(columns).max(1);
    let packed = Packed { packing, bits, rows, columns, groups, group_columns, codes, zeros, scales, float, group_of };
    joined.packed = Some(Box::new(super::Packed::Words(packed)));
    checkpoint.insert(&name("weight"), joined);
    Ok(())
}

/// What the shapes of the tensors say.
struct Sizes {
    bits: usize,
    rows: usize,
    columns: usize,
    groups: usize,
}

impl Sizes {
    /// Of codes, zeros and scales; `None` if they do not belong together.
    fn of(packing: Packing, shapes: [&[usize]; 3]) -> Option<Sizes> {
        let [&[height, width], &[down, across], &[scales_down, scales_across]] = shapes else { return None };
        let bits = |rows: usize, words: usize| {
            let bits = words.checked_mul(32)?.checked_div(rows)?;
            let is_whole = Some(words * 32) == bits.checked_mul(rows);
            (is_whole && [2, 3, 4, 8].contains(&bits)).then_some(bits)
        };
        // As many numbers as there are bits for.
        let numbers = |words: usize, bits: usize| {
            words.is_multiple_of(if bits == 3 { 3 } else { 1 }).then(|| words.checked_mul(32).map(|all| all / bits))?
        };
        let (bits, rows, columns, groups) = match packing {
            Packing::Gptq { .. } => {
                let bits = bits(scales_across, across)?;
                (bits, width, numbers(height, bits)?, scales_down)
            }
            Packing::Awq => (bits(scales_across, across)?, width.checked_mul(8)?, height, scales_down),
            Packing::Rows => {
                let bits = bits(scales_down, down)?;
                (bits, height, numbers(width, bits)?, scales_across)
            }
        };
        let zeros_fit = match packing {
            Packing::Gptq { .. } | Packing::Awq => scales_across == rows && down == groups,
            Packing::Rows => scales_down == rows && across == groups,
        };
        let is_known = match packing {
            Packing::Gptq { .. } => true,
            Packing::Awq => bits == 4,
            Packing::Rows => bits != 3,
        };
        let is_whole = zeros_fit && is_known && groups > 0;
        is_whole.then_some(Sizes { bits, rows, columns, groups })
    }
}

impl Packed {
    /// Reads the matrix.
    pub(super) fn load(&self, checkpoint: &Checkpoint) -> Result<Unpacked> {
        let Packed { packing, bits, rows, columns, groups, group_columns, .. } = *self;
        let group_of = match &self.group_of {
            None => (0..columns).map(|column| column / group_columns).collect(),
            Some((name, stored)) => {
                let group_of = words(checkpoint, stored)?;
                if let Some(group) = group_of.iter().find(|group| **group as usize >= groups) {
                    bail!("tensor {name} has {} in it, expected 0 to {}", *group as i32, groups - 1);
                }
                group_of.into_iter().map(|group| group as usize).collect()
            }
        };
        let mut raw = vec![0; self.float.bytes_of(rows * groups)];
        checkpoint.read(&self.scales, 0, &mut raw)?;
        let mut scales = vec![0.0; rows * groups];
        self.float.decode(&raw, &mut scales);
        let codes = words(checkpoint, &self.codes)?;
        let mut unpacked =
            Unpacked { packing, bits, rows, columns, groups, codes, zeros: vec![0.0; rows * groups], scales, group_of };
        let mut zeros = words(checkpoint, &self.zeros)?;
        let from_one = packing == Packing::Gptq { zeros_from_one: true };
        // Three bits are in two words at places.
        let (carries, adds) = (from_one && bits != 3, if from_one && bits == 3 { 1.0 } else { 0.0 });
        if carries {
            // As words, so that a zero of 0, which borrowed from its neighbour, gives back what it took.
            let ones = u32::MAX / ((1 << bits) - 1);
            zeros.iter_mut().for_each(|word| *word = word.wrapping_add(ones));
        }
        for group in 0..groups {
            for row in 0..rows {
                let at = unpacked.at(group, row);
                unpacked.zeros[at] = unpacked.zero(&zeros, group, row) + adds;
            }
        }
        Ok(unpacked)
    }
}

/// The integers of a tensor.
fn words(checkpoint: &Checkpoint, stored: &Stored) -> Result<Vec<u32>> {
    let mut raw = vec![0; stored.shape.iter().product::<usize>() * 4];
    checkpoint.read(stored, 0, &mut raw)?;
    Ok(raw.as_chunks().0.iter().map(|raw| u32::from_le_bytes(*raw)).collect())
}

impl Unpacked {
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// A number of the matrix.
    pub(super) fn number(&self, row: usize, column: usize) -> f32 {
        let at = self.at(self.group_of[column], row);
        (self.code(row, column) as f32 - self.zeros[at]) * self.scales[at]
    }

    /// Where the scale of a group and row is.
    fn at(&self, group: usize, row: usize) -> usize {
        match self.packing {
            Packing::Gptq { .. } | Packing::Awq => group * self.rows + row,
            Packing::Rows => row * self.groups + group,
        }
    }

    fn code(&self, row: usize, column: usize) -> u32 {
        let words = self.columns * self.bits / 32;
        match self.packing {
            Packing::Gptq { .. } => self.part(column, |word| self.codes[word * self.rows + row]),
            Packing::Awq => self.part(AWQ_PLACES[row % 8], |_| self.codes[column * (self.rows / 8) + row / 8]),
            Packing::Rows => self.part(column, |word| self.codes[row * words + word]),
        }
    }

    fn zero(&self, zeros: &[u32], group: usize, row: usize) -> f32 {
        let words = self.rows * self.bits / 32;
        let zero = match self.packing {
            Packing::Gptq { .. } => self.part(row, |word| zeros[group * words + word]),
            Packing::Awq => self.part(AWQ_PLACES[row % 8], |_| zeros[group * words + row / 8]),
            Packing::Rows => self.part(row, |word| zeros[word * self.groups + group]),
        };
        zero as f32
    }

    /// One of the integers that lie bit by bit in words.
    fn part(&self, place: usize, word: impl Fn(usize) -> u32) -> u32 {
        let (first, shift) = (place * self.bits / 32, place * self.bits % 32);
        let low = word(first) >> shift;
        let all = if shift + self.bits > 32 { low | word(first + 1) << (32 - shift) } else { low };
        all & ((1 << self.bits) - 1)
    }
}
