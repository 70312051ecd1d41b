//! Weights as a backend is given them.

use crate::{Bytes, DeviceError, WeightDecl};
use kvas_gguf::{GgufError, Quant};
use std::ops::Range;

/// What the numbers of rows are multiplied by.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Factors {
    /// The factor from a row on, to the next entry. Without any, it is 1.
    from: Vec<(usize, f32)>,
}

impl Factors {
    /// Has the rows from `first` on multiplied by a number. Rows come in their order.
    pub fn push(&mut self, first: usize, factor: f32) {
        self.from.push((first, factor));
    }

    /// Multiplies `numbers [rows, columns]`, the first of which is row `first`.
    pub fn multiply(&self, first: usize, columns: usize, numbers: &mut [f32]) {
        if self.from.is_empty() {
            return;
        }
        for (row, numbers) in (first..).zip(numbers.chunks_mut(columns.max(1))) {
            let at = self.from.partition_point(|(from, _)| *from <= row);
            let factor = at.checked_sub(1).map_or(1.0, |at| self.from[at].1);
            numbers.iter_mut().for_each(|number| *number *= factor);
        }
    }
}

/// One weight as stored: `rows * quant.row_bytes(columns)` bytes, row after row.
#[derive(Debug, Clone)]
pub struct WeightData {
    /// Format of every row. [`WeightFormat::F32`](crate::WeightFormat::F32) declarations are always answered in F32.
    pub quant: Quant,
    /// The blocks, row-major.
    pub bytes: Bytes,
    /// What the numbers of the blocks are multiplied by: only where blocks are turned into numbers before anything is
    /// computed with them.
    pub factors: Factors,
}

impl WeightData {
    /// Blocks whose numbers are those of the weight.
    pub fn new(quant: Quant, bytes: Bytes) -> Self {
        Self { quant, bytes, factors: Factors::default() }
    }

    /// The numbers of some rows of `columns` each.
    ///
    /// # Errors
    /// `Quant` if the rows are no whole blocks, or if the format cannot be turned into numbers.
    pub fn dequantize(&self, rows: Range<usize>, columns: usize, out: &mut [f32]) -> Result<(), GgufError> {
        let row_bytes = self.quant.row_bytes(columns).ok_or_else(|| GgufError::Quant {
            quant: self.quant,
            what: format!("{columns} columns, expected whole blocks"),
        })?;
        self.quant.dequantize(&self.bytes[rows.start * row_bytes..rows.end * row_bytes], out)?;
        self.factors.multiply(rows.start, columns, out);
        Ok(())
    }
}

/// Where a backend gets its weights from at `prepare`.
pub trait WeightSource {
    /// The data of one declared weight.
    fn load(&mut self, decl: &WeightDecl) -> Result<WeightData, DeviceError>;

    /// Hears that a weight it has loaded is where the backend will read it: in these very bytes if they are `kept`, else
    /// elsewhere, so that these are hardly needed any more.
    fn settled(&mut self, _decl: &WeightDecl, _kept: bool) {}
}
