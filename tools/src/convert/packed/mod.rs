//! Weights whose rows do not lie in the checkpoint as rows. They are made as F32 while a tensor is written.

mod blocks;
mod words;

use super::checkpoint::Checkpoint;
use super::floats::Float;
use super::json::Json;
use anyhow::Result;
use rayon::prelude::*;

/// Rows made together: where codes of neighbouring rows are neighbours, a line of the cache has them all.
const ROWS_AT_ONCE: usize = 16;

/// A matrix of a checkpoint.
#[derive(Debug, Clone)]
pub(super) enum Packed {
    /// Of GPTQ, AWQ and compressed-tensors.
    Words(words::Packed),
    /// Of bitsandbytes.
    Blocks(blocks::Packed),
}

/// A matrix in memory, its codes as they are stored.
pub(super) enum Unpacked {
    Words(words::Unpacked),
    Blocks(blocks::Unpacked),
}

/// Joins the tensors of every packed matrix under the name of its weight.
pub(super) fn pair(checkpoint: &mut Checkpoint, config: &Json) -> Result<()> {
    words::pair(checkpoint, config)?;
    blocks::pair(checkpoint)
}

impl Packed {
    /// Reads the matrix.
    pub(super) fn load(&self, checkpoint: &Checkpoint) -> Result<Unpacked> {
        Ok(match self {
            Packed::Words(packed) => Unpacked::Words(packed.load(checkpoint)?),
            Packed::Blocks(packed) => Unpacked::Blocks(packed.load(checkpoint)?),
        })
    }
}

impl Unpacked {
    /// Fills `out` with the rows from row `first` on, as F32.
    pub(super) fn fill(&self, first: usize, out: &mut [u8]) {
        match self {
            Unpacked::Words(words) => fill(first, words.columns(), out, |row, column| words.number(row, column)),
            Unpacked::Blocks(blocks) => fill(first, blocks.columns(), out, |row, column| blocks.number(row, column)),
        }
    }
}

fn fill(first: usize, columns: usize, out: &mut [u8], number: impl Fn(usize, usize) -> f32 + Sync) {
    let row_bytes = Float::F32.bytes_of(columns);
    out.par_chunks_mut(ROWS_AT_ONCE * row_bytes).enumerate().for_each(|(block, out)| {
        let first = first + block * ROWS_AT_ONCE;
        let mut rows: Vec<&mut [[u8; 4]]> = out.chunks_mut(row_bytes).map(|row| row.as_chunks_mut::<4>().0).collect();
        for column in 0..columns {
            for (row, out) in rows.iter_mut().enumerate() {
                out[column] = number(first + row, column).to_le_bytes();
            }
        }
    });
}
