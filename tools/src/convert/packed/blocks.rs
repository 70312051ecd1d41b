//! Numbers of four bits that bitsandbytes stores (NF4, FP4): codes of a table of 16, and a scale for each block of them.

use crate::convert::checkpoint::{Checkpoint, Stored};
use crate::convert::floats::Float;
use anyhow::{Context, Result, bail};
use safetensors::tensor::Dtype;
use serde_json::Value;

/// What the state of a matrix is called behind the name of its weight: a text in JSON.
const STATES: [&str; 2] = ["quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4"];

/// A text longer than any state.
const STATE_BYTES_MAX: usize = 1 << 16;

/// A matrix of codes, two to a byte, the first one in the upper half.
#[derive(Debug, Clone)]
pub(in crate::convert) struct Packed {
    columns: usize,
    /// Numbers of a block.
    block: usize,
    codes: Stored,
    /// The numbers that the codes stand for.
    table: Stored,
    scales: Stored,
    nested: Option<Nested>,
}

/// Scales that are codes themselves.
#[derive(Debug, Clone)]
struct Nested {
    block: usize,
    offset: f32,
    table: Stored,
    scales: Stored,
}

/// A matrix in memory.
pub(in crate::convert) struct Unpacked {
    columns: usize,
    block: usize,
    codes: Vec<u8>,
    table: Vec<f32>,
    scales: Vec<f32>,
}

/// Joins every matrix that has a state with it.
pub(super) fn pair(checkpoint: &mut Checkpoint) -> Result<()> {
    let all: Vec<String> = checkpoint.names().map(String::from).collect();
    for state in &all {
        if let Some(stem) = STATES.iter().find_map(|ending| state.strip_suffix(ending)?.strip_suffix('.')) {
            join(checkpoint, stem, state)?;
        }
    }
    Ok(())
}

fn join(checkpoint: &mut Checkpoint, weight: &str, state_name: &str) -> Result<()> {
    let state = read_state(checkpoint, state_name)?;
    let number = |name: &str| {
        let found = state.get(name).and_then(Value::as_u64).filter(|number| *number > 0);
        found
            .map(|number| number as usize)
            .with_context(|| format!("tensor {state_name}: {name}, expected a whole number"))
    };
    let sizes = state.get("shape").and_then(Value::as_array).into_iter().flatten();
    let shape: Option<Vec<usize>> = sizes.map(|size| Some(size.as_u64()? as usize)).collect();
    let count = |shape: &[usize]| shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
    let Some((shape @ [.., columns], numbers)) = shape.as_deref().and_then(|shape| Some((shape, count(shape)?))) else {
        bail!("tensor {state_name}: shape, expected whole numbers");
    };
    let block = number("blocksize")?;
    let mut take = |name: String, dtype: Dtype, count: usize| {
        let Some(stored) = checkpoint.remove(&name) else { bail!("tensor {name} is missing from the checkpoint") };
        if stored.dtype != dtype || stored.shape.iter().product::<usize>() != count {
            bail!("tensor {name} is {:?} of the shape {:?}, expected {count} of {dtype:?}", stored.dtype, stored.shape);
        }
        Ok(stored)
    };
    let codes = take(weight.into(), Dtype::U8, numbers.div_ceil(2))?;
    let table = take(format!("{weight}.quant_map"), Dtype::F32, 16)?;
    let blocks = numbers.div_ceil(block);
    let is_nested = state.get("nested_blocksize").is_some_and(|size| !size.is_null());
    let (scales, nested) = if is_nested {
        let nested_block = number("nested_blocksize")?;
        let offset = state.get("nested_offset").and_then(Value::as_f64);
        let offset = offset.with_context(|| format!("tensor {state_name}: nested_offset, expected a number"))? as f32;
        let nested_table = take(format!("{weight}.nested_quant_map"), Dtype::F32, 256)?;
        let nested_scales = take(format!("{weight}.nested_absmax"), Dtype::F32, blocks.div_ceil(nested_block))?;
        let nested = Nested { block: nested_block, offset, table: nested_table, scales: nested_scales };
        (take(format!("{weight}.absmax"), Dtype::U8, blocks)?, Some(nested))
    } else {
        (take(format!("{weight}.absmax"), Dtype::F32, blocks)?, None)
    };
    let mut joined = codes.clone();
    (joined.shape, joined.float) = (shape.to_vec(), Some(Float::F32));
    let packed = Packed { columns: *columns, block, codes, table, scales, nested };
    joined.packed = Some(Box::new(super::Packed::Blocks(packed)));
    checkpoint.remove(state_name);
    checkpoint.insert(weight, joined);
    Ok(())
}

fn read_state(checkpoint: &Checkpoint, name: &str) -> Result<Value> {
    let stored = checkpoint.get(name).filter(|stored| stored.dtype == Dtype::U8 && stored.shape.len() == 1);
    let Some(stored) = stored.filter(|stored| stored.shape[0] <= STATE_BYTES_MAX) else {
        bail!("tensor {name}, expected the bytes of a text");
    };
    serde_json::from_slice(&bytes(checkpoint, stored)?).with_context(|| format!("tensor {name}: not valid JSON"))
}

/// The bytes of a tensor that has numbers of one byte.
fn bytes(checkpoint: &Checkpoint, stored: &Stored) -> Result<Vec<u8>> {
    let mut raw = vec![0; stored.shape.iter().product()];
    checkpoint.read(stored, 0, &mut raw)?;
    Ok(raw)
}

fn numbers(checkpoint: &Checkpoint, stored: &Stored) -> Result<Vec<f32>> {
    let mut raw = vec![0; stored.shape.iter().product::<usize>() * 4];
    checkpoint.read(stored, 0, &mut raw)?;
    Ok(raw.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect())
}

impl Packed {
    /// Reads the matrix.
    pub(super) fn load(&self, checkpoint: &Checkpoint) -> Result<Unpacked> {
        let scales = match &self.nested {
            None => numbers(checkpoint, &self.scales)?,
            Some(Nested { block, offset, table, scales }) => {
                let (table, scales) = (numbers(checkpoint, table)?, numbers(checkpoint, scales)?);
                let scale = |(at, code): (usize, &u8)| table[usize::from(*code)] * scales[at / block] + offset;
                bytes(checkpoint, &self.scales)?.iter().enumerate().map(scale).collect()
            }
        };
        let (codes, table) = (bytes(checkpoint, &self.codes)?, numbers(checkpoint, &self.table)?);
        Ok(Unpacked { columns: self.columns, block: self.block, codes, table, scales })
    }
}

impl Unpacked {
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// A number of the matrix.
    pub(super) fn number(&self, row: usize, column: usize) -> f32 {
        let at = row * self.columns + column;
        let code = self.codes[at / 2] >> (4 - at % 2 * 4) & 15;
        self.table[usize::from(code)] * self.scales[at / self.block]
    }
}
