//! Numbers to the bytes of a row, with the numbers refused that a file must not hold.

use anyhow::{Result, bail};
use kvas_gguf::Quant;

/// The smallest number that no longer rounds to a finite f16.
const F16_LIMIT: f32 = 65_520.0;

/// Encodes one row; `importance`, as long as the row, weighs the squared error of each number.
pub(crate) fn encode_row(quant: Quant, numbers: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<()> {
    let limit = if quant == Quant::F16 { F16_LIMIT } else { f32::INFINITY };
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
    Ok(quant.quantize_weighted(numbers, importance, out)?)
}
