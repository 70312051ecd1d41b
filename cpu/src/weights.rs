//! Weights as the kernels use them: stored blocks in place, small ones as f32.

use kvas_backend::{Bytes, DeviceError, WeightDecl, WeightFormat, WeightSource};
use kvas_gguf::Quant;

/// A weight matrix.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) quant: Quant,
    /// Values of a row.
    pub(crate) columns: usize,
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
    data: Data,
}

#[derive(Debug)]
enum Data {
    /// As the source has them: usually a mapped file, never copied.
    Stored(Bytes),
    Floats(Vec<f32>),
}

impl Matrix {
    /// Gets a weight and checks that it can be computed with.
    pub(crate) fn load(source: &mut dyn WeightSource, decl: &WeightDecl) -> Result<Self, DeviceError> {
        let fail = |what: String| DeviceError::Weight { name: decl.name.clone(), what };
        let loaded = source.load(decl)?;
        let quant = loaded.quant;
        let [rows, columns] = decl.shape;
        let row_bytes = quant.row_bytes(columns);
        let row_bytes = row_bytes.ok_or_else(|| fail(format!("{columns} columns are not whole blocks of {quant}")))?;
        let bytes = row_bytes.checked_mul(rows);
        if bytes != Some(loaded.bytes.len()) {
            return Err(fail(format!("has {} bytes, expected {rows} rows of {row_bytes}", loaded.bytes.len())));
        }
        if decl.format == WeightFormat::F32 {
            let mut values = vec![0.0; rows * columns];
            quant.dequantize(&loaded.bytes, &mut values).map_err(|error| fail(error.to_string()))?;
            return Ok(Self { quant: Quant::F32, columns, row_bytes: 4 * columns, data: Data::Floats(values) });
        }
        if rows > 0 {
            // Once, so that kernels need not check again.
            let mut row = vec![0.0; columns];
            quant.dequantize(&loaded.bytes[..row_bytes], &mut row).map_err(|error| fail(error.to_string()))?;
        }
        Ok(Self { quant, columns, row_bytes, data: Data::Stored(loaded.bytes) })
    }

    /// `rows * row_bytes` bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Stored(bytes) => bytes,
            Data::Floats(values) => bytemuck::cast_slice(values),
        }
    }

    /// The values of a weight declared as F32.
    pub(crate) fn floats(&self) -> &[f32] {
        match &self.data {
            Data::Floats(values) => values,
            Data::Stored(_) => panic!("validated: declared as F32"),
        }
    }

    /// Rows of the matrix.
    pub(crate) fn rows(&self) -> usize {
        self.bytes().len().checked_div(self.row_bytes).unwrap_or(0)
    }

    /// Writes row `row` to `out [columns]`.
    pub(crate) fn dequantise(&self, row: usize, out: &mut [f32]) {
        let bytes = &self.bytes()[row * self.row_bytes..][..self.row_bytes];
        self.quant.dequantize(bytes, out).expect("tried when it was loaded");
    }
}
