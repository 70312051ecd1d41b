//! Streams the tensors: while one part is written, the next is decoded and encoded on all cores.

use super::{QuantizePlan, QuantizedTensor};
use crate::convert::{Progress, ProgressFn};
use crate::encode::{check_row, encode_row};
use anyhow::{Context, Result};
use kvas_gguf::{GgufFile, GgufWriter, OpenWriter, TensorBytes};
use rayon::prelude::*;
use std::{ops::Range, path::Path};

/// Numbers worked on at a time, whatever the size of the tensor. In tests few enough for several parts.
const NUMBERS_AT_ONCE: usize = if cfg!(test) { 600 } else { 4 << 20 };

/// Writes the file.
pub(super) fn write(source: &GgufFile, plan: &QuantizePlan, out: &Path, progress: Option<&ProgressFn>) -> Result<()> {
    let mut writer = GgufWriter::new(plan.metadata.clone());
    for tensor in &plan.tensors {
        writer.declare(&tensor.source.name, tensor.quant, &tensor.source.shape)?;
    }
    let mut file = writer.create(out)?;
    let total = plan.bytes();
    let mut done = 0;
    let (mut ready, mut next) = (Encoded::default(), Encoded::default());
    for tensor in &plan.tensors {
        let data = source.data(&tensor.source);
        let at_once = (NUMBERS_AT_ONCE / tensor.source.columns()).max(1);
        for first in (0..tensor.source.rows()).step_by(at_once) {
            let rows = first..(first + at_once).min(tensor.source.rows());
            let (written, encoded) = rayon::join(|| ready.write(&mut file), || next.fill(tensor, &data, rows));
            written?;
            encoded.with_context(|| format!("tensor {}", tensor.source.name))?;
            done += ready.bytes.len() as u64;
            if let Some(progress) = progress {
                progress(Progress { tensor: &tensor.source.name, done, total });
            }
            std::mem::swap(&mut ready, &mut next);
        }
    }
    ready.write(&mut file)?;
    Ok(file.finish()?)
}

/// Some rows of a tensor, as they go to the file.
#[derive(Default)]
struct Encoded<'a> {
    name: &'a str,
    bytes: Vec<u8>,
}

impl<'a> Encoded<'a> {
    fn write(&self, file: &mut OpenWriter) -> Result<()> {
        // Nothing is ready before the first part.
        if self.bytes.is_empty() {
            return Ok(());
        }
        Ok(file.write_part(self.name, &self.bytes)?)
    }

    fn fill(&mut self, tensor: &'a QuantizedTensor, data: &TensorBytes, rows: Range<usize>) -> Result<()> {
        let QuantizedTensor { source, quant, importance, factors, .. } = tensor;
        let columns = source.columns();
        let row_bytes = |quant: kvas_gguf::Quant| quant.row_bytes(columns).expect("rows were planned as whole blocks");
        let (from, to) = (row_bytes(source.quant), row_bytes(*quant));
        self.name = &source.name;
        self.bytes.resize(rows.len() * to, 0);
        let stored = &data[rows.start * from..rows.end * from];
        if source.quant == *quant && factors.is_empty() {
            self.bytes.copy_from_slice(stored);
            return stored.par_chunks(from).enumerate().try_for_each_init(
                || vec![0.0; columns],
                |numbers, (index, stored)| {
                    check_row(*quant, stored, numbers).with_context(|| format!("row {}", rows.start + index))
                },
            );
        }
        let matrix_rows = source.shape.get(1).map_or(1, |&rows| rows as usize);
        self.bytes.par_chunks_mut(to).zip(stored.par_chunks(from)).enumerate().try_for_each_init(
            || vec![0.0; columns],
            |numbers, (index, (out, stored))| {
                let row = rows.start + index;
                source.quant.dequantize(stored, numbers)?;
                if let Some(factor) = factors.get(row / matrix_rows) {
                    numbers.iter_mut().for_each(|number| *number *= factor);
                }
                let importance =
                    importance.as_ref().map(|importance| &importance[row / matrix_rows * columns..][..columns]);
                encode_row(*quant, numbers, importance, out).with_context(|| format!("row {row}"))
            },
        )
    }
}
