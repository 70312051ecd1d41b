//! Weights on the device.

use crate::{
    device::{Device, Memory, Ptr},
    upload::Uploader,
};
use kvas_backend::{DeviceError, WeightDecl, WeightFormat, WeightSource};
use kvas_gguf::Quant;
use std::sync::Arc;

/// A weight matrix: row after row, as it is stored.
pub(crate) struct Matrix {
    /// Format of the values on the device: kernels are chosen by it.
    pub(crate) quant: Quant,
    /// Values of a row.
    pub(crate) columns: usize,
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
    memory: Memory,
    /// The values of what is declared as F32: small, and wanted on the host as well, by what depends on them there.
    floats: Vec<f32>,
}

impl Matrix {
    /// Gets a weight, checks that it can be computed with, and uploads it.
    pub(crate) fn load(
        (device, uploader): (&Arc<Device>, &mut Uploader),
        source: &mut dyn WeightSource,
        decl: &WeightDecl,
    ) -> Result<Self, DeviceError> {
        let fail = |what: String| DeviceError::Weight { name: decl.name.clone(), what };
        let loaded = source.load(decl)?;
        let [rows, columns] = decl.shape;
        let quant = loaded.quant;
        let row_bytes = quant.row_bytes(columns);
        let row_bytes = row_bytes.ok_or_else(|| fail(format!("{columns} columns are not whole blocks of {quant}")))?;
        if row_bytes.checked_mul(rows) != Some(loaded.bytes.len()) {
            return Err(fail(format!("has {} bytes, expected {rows} rows of {row_bytes}", loaded.bytes.len())));
        }
        let as_floats = || {
            let mut values = vec![0.0; rows * columns];
            quant.dequantize(&loaded.bytes, &mut values).map_err(|error| fail(error.to_string()))?;
            Ok::<_, DeviceError>(values)
        };
        let place = format!("weight {}", decl.name);
        if decl.format == WeightFormat::F32 || !is_supported(quant) {
            let floats = as_floats()?;
            let memory = device.take(&place, 4 * floats.len())?;
            uploader.send(memory.at(), bytemuck::cast_slice(&floats))?;
            let floats = if decl.format == WeightFormat::F32 { floats } else { Vec::new() };
            return Ok(Self { quant: Quant::F32, columns, row_bytes: 4 * columns, memory, floats });
        }
        let memory = device.take(&place, loaded.bytes.len())?;
        uploader.send(memory.at(), &loaded.bytes)?;
        Ok(Self { quant, columns, row_bytes, memory, floats: Vec::new() })
    }

    /// Where its first row is.
    pub(crate) fn at(&self) -> Ptr {
        self.memory.at()
    }

    /// The values of a weight declared as F32.
    pub(crate) fn floats(&self) -> &[f32] {
        &self.floats
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

/// Whether kernels read this format as it is. Others are uploaded as F32.
fn is_supported(quant: Quant) -> bool {
    matches!(quant, Quant::F32 | Quant::F16 | Quant::Bf16 | Quant::Q8_0 | Quant::Q4_0)
}

/// Bytes that a weight takes on the device if the file has it in this format.
pub fn weight_bytes(decl: &WeightDecl, quant: Quant) -> u64 {
    let quant = if decl.format == WeightFormat::F32 || !is_supported(quant) { Quant::F32 } else { quant };
    let bytes = quant.row_bytes(decl.shape[1]).and_then(|row| row.checked_mul(decl.shape[0]));
    // The driver gives memory in pieces of 512 bytes.
    bytes.map_or(u64::MAX, |bytes| (bytes as u64).next_multiple_of(512))
}

/// How the names of kernels say a format: `q4_k`.
pub(crate) fn suffix(quant: Quant) -> String {
    quant.name().to_lowercase()
}
