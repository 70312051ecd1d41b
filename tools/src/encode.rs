//! Numbers to the bytes of a row, with the numbers refused that a file must not hold.

use anyhow::{Result, bail};
use kvas_gguf::Quant;

/// The smallest number that no longer rounds to a finite f16.
const F16_LIMIT: f32 = 65_520.0;

/// Below this no scale of a block overflows: none is larger than the largest of the numbers, within a small factor.
const SCALES_ARE_SAFE: f32 = 1024.0;

/// Encodes one row; `importance`, as long as the row, weighs the squared error of each number.
pub(crate) fn encode_row(quant: Quant, numbers: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<()> {
    let limit = if quant == Quant::F16 { F16_LIMIT } else { f32::INFINITY };
    check(numbers, limit)?;
    quant.quantize_weighted(numbers, importance, out)?;
    // F32 holds every number, and F16 those that passed.
    let largest = numbers.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
    if largest < SCALES_ARE_SAFE || matches!(quant, Quant::F32 | Quant::F16) {
        return Ok(());
    }
    let mut decoded = vec![0.0; numbers.len()];
    quant.dequantize(out, &mut decoded)?;
    match decoded.iter().position(|number| !number.is_finite()) {
        None => Ok(()),
        Some(at) => {
            let block = at / quant.block_len() * quant.block_len();
            let inside = numbers[block..].iter().zip(block..).take(quant.block_len());
            let (number, at) = inside.max_by(|a, b| a.0.abs().total_cmp(&b.0.abs())).unwrap_or((&largest, at));
            bail!(
                "number {at} is {number:e}, which a block of {quant} cannot hold; expected smaller numbers or another type"
            )
        }
    }
}

/// Refuses a row, as it is stored, that holds other than finite numbers.
pub(crate) fn check_row(quant: Quant, stored: &[u8], decoded: &mut [f32]) -> Result<()> {
    quant.dequantize(stored, decoded)?;
    check(decoded, f32::INFINITY)
}

fn check(numbers: &[f32], limit: f32) -> Result<()> {
    // False for what is no number, too.
    let sound = |number: &f32| number.abs() < limit;
    // Without a way out of the loop, so that it costs little.
    if !numbers.iter().fold(true, |all, number| all & sound(number)) {
        let refused = numbers.iter().enumerate().find(|(_, number)| !sound(number));
        let (at, number) = refused.expect("one was found above");
        if number.is_finite() {
            bail!("number {at} is {number}, which F16 cannot hold; expected another type, such as BF16");
        }
        bail!("number {at} is {number}, expected a finite one");
    }
    Ok(())
}
