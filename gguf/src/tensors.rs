//! The tensor directory: name to format, shape and byte range; bounds and overlap are checked once, here.

use crate::header::{DIMENSIONS_MAX, NAME_BYTES_MAX, RawTensor};
use crate::{GgufError, Quant};
use std::collections::HashSet;

/// One tensor of a file. Its bytes lie inside the file, and no other tensor's do in the same place.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// The name, verbatim.
    pub name: String,
    /// How the elements are stored.
    pub quant: Quant,
    /// Elements of each dimension, 1 to 4 of them, none 0; the first is contiguous in memory.
    pub shape: Vec<u64>,
    /// Bytes of the tensor, without padding.
    pub bytes: usize,
    /// Index of the shard that holds the bytes.
    pub(crate) shard: usize,
    /// Bytes from the start of the shard.
    pub(crate) offset: usize,
}

impl TensorInfo {
    /// Elements of one row: the contiguous dimension.
    pub fn columns(&self) -> usize {
        self.shape[0] as usize
    }

    /// Rows: the product of all dimensions but the first.
    pub fn rows(&self) -> usize {
        self.shape[1..].iter().product::<u64>() as usize
    }

    /// Elements: rows × columns.
    pub fn elements(&self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }

    /// Index of the shard that holds the bytes; 0 unless the file is split.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Where the bytes begin, in bytes from the start of the shard.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

/// Bytes of a tensor of a format and shape, or what is wrong with them.
pub(crate) fn tensor_bytes(quant: Quant, shape: &[u64]) -> Result<usize, String> {
    if shape.is_empty() || shape.len() > DIMENSIONS_MAX {
        return Err(format!("has {} dimensions, expected 1 to {DIMENSIONS_MAX}", shape.len()));
    }
    if shape.contains(&0) {
        return Err(format!("has shape {shape:?}, expected no dimension to be 0"));
    }
    if !shape[0].is_multiple_of(quant.block_len() as u64) {
        return Err(format!(
            "has rows of {} elements, expected a multiple of {} for {quant}",
            shape[0],
            quant.block_len()
        ));
    }
    let elements = shape.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension));
    let bytes =
        elements.and_then(|elements| (elements / quant.block_len() as u64).checked_mul(quant.block_bytes() as u64));
    // Padding and sums of sizes must not wrap either; half the range is beyond any file.
    match bytes.map(isize::try_from) {
        Some(Ok(bytes)) if elements.is_some_and(|elements| isize::try_from(elements).is_ok()) => Ok(bytes as usize),
        _ => Err(format!("has shape {shape:?} of {quant}, more bytes than any file holds")),
    }
}

/// What is wrong with a tensor name, if anything.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("has a name of {} bytes, expected 1 to {NAME_BYTES_MAX}", name.len()));
    }
    Ok(())
}

/// Where the tensors of one shard may lie.
pub(crate) struct Placement<'a> {
    /// For messages.
    pub(crate) path: &'a str,
    pub(crate) shard: usize,
    /// First byte of the tensor data; may lie past the end of a file without tensors.
    pub(crate) data_start: usize,
    /// Bytes of the whole shard.
    pub(crate) file_bytes: usize,
    pub(crate) alignment: usize,
}

impl Placement<'_> {
    /// Checks the directory of one shard: formats, shapes, offsets, bounds, overlap.
    pub(crate) fn check(&self, raw: Vec<RawTensor>) -> Result<Vec<TensorInfo>, GgufError> {
        let tensors = raw.into_iter().map(|tensor| self.check_one(tensor)).collect::<Result<Vec<_>, _>>()?;
        let mut order: Vec<&TensorInfo> = tensors.iter().collect();
        order.sort_unstable_by_key(|tensor| tensor.offset);
        for pair in order.windows(2) {
            if pair[0].offset + pair[0].bytes > pair[1].offset {
                return Err(self.fail(format!("tensors {} and {} overlap", pair[0].name, pair[1].name)));
            }
        }
        Ok(tensors)
    }

    fn check_one(&self, raw: RawTensor) -> Result<TensorInfo, GgufError> {
        let RawTensor { name, shape, quant_id, offset } = raw;
        let Some(quant) = Quant::from_id(quant_id) else {
            return Err(self.fail(format!("tensor {name} has type {quant_id}, which is unknown or was removed")));
        };
        let bytes = tensor_bytes(quant, &shape).map_err(|what| self.fail(format!("tensor {name} {what}")))?;
        if !offset.is_multiple_of(self.alignment as u64) {
            let alignment = self.alignment;
            return Err(self.fail(format!("tensor {name} has offset {offset}, expected a multiple of {alignment}")));
        }
        let start = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(self.data_start));
        let end = start.and_then(|start| start.checked_add(bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.file_bytes => {
                Ok(TensorInfo { name, quant, shape, bytes, shard: self.shard, offset: start })
            }
            _ => Err(self.fail(format!(
                "tensor {name} has {bytes} bytes at offset {offset} of the data at byte {}, the file has {} bytes",
                self.data_start, self.file_bytes
            ))),
        }
    }

    fn fail(&self, what: String) -> GgufError {
        GgufError::Format { path: self.path.into(), what }
    }
}

/// Refuses a name that occurs twice among the tensors of all shards.
pub(crate) fn check_unique(path: &str, tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        None => Ok(()),
        Some(tensor) => {
            Err(GgufError::Format { path: path.into(), what: format!("tensor {} occurs twice", tensor.name) })
        }
    }
}
