//! What every block format offers, and the step from a format known at run time to its block type.

use super::Quant;
use crate::GgufError;
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;

/// Makes one block from its elements and, where known, how important each of them is.
pub type Quantizer<B> = fn(&[f32], Option<&[f32]>) -> B;

/// One block of a format: its layout in a file, byte for byte. Multi-byte fields are little-endian byte arrays, so that
/// a block may lie at any address.
pub trait Block: Pod {
    /// The format.
    const QUANT: Quant;

    /// Elements of a block.
    const LEN: usize = Self::QUANT.block_len();

    /// Makes a block of this format; `None` where kvas only reads the format.
    const QUANTIZE: Option<Quantizer<Self>> = None;

    /// The elements of the block. `out` has [`Block::LEN`] elements; panics if it has fewer.
    fn dequantize(&self, out: &mut [f32]);
}

/// A block format that can be made from numbers.
pub trait QuantizeBlock: Block {
    /// The best block for `x`, [`Block::LEN`] finite elements; `importance`, of the same length, weighs the squared
    /// error of each element. Formats that have nothing to choose ignore it. Elements that are not finite make a block
    /// of no meaning, never a panic.
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self;

    /// The best block for `x`, [`Block::LEN`] elements, when nothing is known about their importance.
    fn quantize(x: &[f32]) -> Self {
        Self::quantize_weighted(x, None)
    }
}

/// The blocks that lie in `bytes`.
///
/// # Errors
/// `Quant` if `bytes` is not a whole number of blocks.
pub fn blocks<B: Block>(bytes: &[u8]) -> Result<&[B], GgufError> {
    bytemuck::try_cast_slice(bytes).map_err(|_| GgufError::Quant {
        quant: B::QUANT,
        what: format!("{} bytes given, expected a multiple of {}", bytes.len(), size_of::<B>()),
    })
}

/// The value of a little-endian f16.
pub fn f16_value(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}

/// The nearest f16, little-endian.
pub fn f16_bytes(value: f32) -> [u8; 2] {
    half::f16::from_f32(value).to_le_bytes()
}

/// Numbers converted at once, so that the processor's own conversion of many is used.
const HALVES: usize = 256;

/// [`f16_bytes`] of many numbers.
fn f16_rows(x: &[f32], out: &mut [u8]) {
    let mut halves = [half::f16::ZERO; HALVES];
    for (x, out) in x.chunks(HALVES).zip(out.chunks_mut(2 * HALVES)) {
        let halves = &mut halves[..x.len()];
        halves.convert_from_f32_slice(x);
        let bytes = out.as_chunks_mut().0;
        bytes.iter_mut().zip(halves).for_each(|(bytes, half)| *bytes = half.to_le_bytes());
    }
}

/// [`f16_value`] of many numbers.
fn f16_values(bytes: &[u8], out: &mut [f32]) {
    let mut halves = [half::f16::ZERO; HALVES];
    for (bytes, out) in bytes.chunks(2 * HALVES).zip(out.chunks_mut(HALVES)) {
        let halves = &mut halves[..out.len()];
        let bytes = bytes.as_chunks().0;
        halves.iter_mut().zip(bytes).for_each(|(half, bytes)| *half = half::f16::from_le_bytes(*bytes));
        halves.convert_to_f32_slice(out);
    }
}

impl Quant {
    /// Whether [`Quant::quantize`] can make this format.
    pub fn can_quantize(self) -> bool {
        for_each_block!(self, B => B::QUANTIZE.is_some())
    }

    /// Whether weights are stored in this format where somebody chooses it: one that can be made, but not Q8_K, which holds
    /// what weights are multiplied with and which no reader takes for a weight.
    pub fn is_for_weights(self) -> bool {
        self != Quant::Q8K && self.can_quantize()
    }

    /// Turns whole blocks into numbers; bit for bit what the reference implementation of the format gives.
    ///
    /// # Errors
    /// `Quant` if `bytes` is not a whole number of blocks, or `out` has another number of elements than they hold.
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) -> Result<(), GgufError> {
        self.check_sizes(bytes.len(), out.len())?;
        if self == Quant::F16 {
            f16_values(bytes, out);
            return Ok(());
        }
        for_each_block!(self, B => {
            for (block, out) in blocks::<B>(bytes)?.iter().zip(out.chunks_exact_mut(B::LEN)) {
                block.dequantize(out);
            }
        });
        Ok(())
    }

    /// Turns numbers into whole blocks.
    ///
    /// # Errors
    /// `Quant` if the format cannot be made, or `out` is not exactly the bytes of as many blocks as `x` fills.
    pub fn quantize(self, x: &[f32], out: &mut [u8]) -> Result<(), GgufError> {
        self.quantize_weighted(x, None, out)
    }

    /// Turns numbers into whole blocks; `importance`, as long as `x`, weighs the squared error of each element.
    ///
    /// # Errors
    /// As [`Quant::quantize`], and `Quant` if `importance` has another length than `x`.
    pub fn quantize_weighted(self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), GgufError> {
        self.check_sizes(out.len(), x.len())?;
        if let Some(importance) = importance.filter(|importance| importance.len() != x.len()) {
            let what = format!("{} importances given, expected {}", importance.len(), x.len());
            return Err(GgufError::Quant { quant: self, what });
        }
        if self == Quant::F16 {
            f16_rows(x, out);
            return Ok(());
        }
        for_each_block!(self, B => {
            let Some(quantize) = B::QUANTIZE else {
                let what = "cannot be made from numbers, expected a format that can".into();
                return Err(GgufError::Quant { quant: self, what });
            };
            for (index, out) in out.chunks_exact_mut(size_of::<B>()).enumerate() {
                let range = index * B::LEN..(index + 1) * B::LEN;
                let block = quantize(&x[range.clone()], importance.map(|importance| &importance[range]));
                out.copy_from_slice(bytemuck::bytes_of(&block));
            }
        });
        Ok(())
    }

    fn check_sizes(self, bytes: usize, elements: usize) -> Result<(), GgufError> {
        match self.row_bytes(elements) {
            Some(expected) if expected == bytes => Ok(()),
            Some(expected) => Err(GgufError::Quant {
                quant: self,
                what: format!("{bytes} bytes given, expected {expected} for {elements} elements"),
            }),
            None => Err(GgufError::Quant {
                quant: self,
                what: format!("{elements} elements given, expected a multiple of {}", self.block_len()),
            }),
        }
    }
}
