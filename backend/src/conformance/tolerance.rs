//! Bounds on the normalised mean squared error, one table, each with its measured floor (see docs/NUMERICS.md).

use kvas_gguf::Quant;

/// Ops in f32 with f32 inputs. Floor on CPU: 1e-13 (order of summation).
pub const EXACT: f64 = 1e-11;

/// Exponentials and long recurrences in f32. Floor on CPU: 1e-13 for delta rules and Mamba-1, 2e-13 for
/// Mamba-2, 6e-13 for a whole model with a delta layer; of factors in two parts of bf16,
/// for prompts with AMX: 5.1e-11 for delta rules, 3.7e-11 for Mamba-2.
pub const RECURRENT: f64 = 1e-10;

/// Whole chunks of a prompt through recurrences, by matrix instructions of 16-bit numbers: every factor is the sum of two bf16,
/// 16 bits. Floor on an H200: 7.5e-11 for one op, 2.1e-10 for a whole model with a delta layer.
pub const RECURRENT_IN_PARTS: f64 = 5e-10;

/// Delta rules that find what was written in a ring of f16, rounded as in the reference: sums in another order round a few entries to
/// the other neighbour. Floor on an H200: 1.2e-8 with decays by channel, 6.6e-9 for one per head, 5.1e-9 for a whole layer.
pub const ROUNDED_ENTRIES: f64 = 3e-8;

/// Recurrences whose checkpoints are in f16, against states in f32. Floor on CPU: 4e-7 without a ring, where every row
/// rounds the state, 1.2e-7 with one of 16 rows.
pub const ROUNDED_STATE: f64 = 1e-6;

/// Attention over pages of every type: inputs are rounded alike on both sides. Floor on CPU: 7e-13, latent pages 2e-13.
pub const ATTENTION: f64 = 1e-10;

/// Attention of prompts over pages of f16 with queries and weights of values rounded to f16, and over pages of 8 bits, of
/// four tokens or more, with what they hold rounded as well. Floor on an H200: 1.4e-7 for 2048 rows after 8192 others, 1.7e-7 over q8_0.
pub const HALF_ATTENTION: f64 = 4e-7;

/// Products whose activations are rounded to 16 bits: to bf16 with weights in bf16, to f16 with all others but f32, where
/// nothing is. Floor on an
/// H200: 2.6e-5 for bf16, 4.8e-7 for f16, both in gated products of outlier channels, where a gate turns a small difference
/// of a large number into a large one.
pub fn half_activations(quant: Quant) -> f64 {
    let rounded = if quant == Quant::Bf16 { 6e-5 } else { 1e-6 };
    if quant == Quant::F32 { 0.0 } else { rounded }
}

/// A product with weights of this format. Backends may quantise the activations of block formats to 8 bits, which
/// outlier channels 30 times as large make coarse. Floor with a scale per 32 activations and exact products: 4e-4 over
/// 129 outputs, 2.1e-3 in the worst single row of 7 outputs; 2e-4 over heads, and through two products where nothing
/// is large.
pub fn linear(quant: Quant) -> f64 {
    if matches!(quant, Quant::F32 | Quant::F16 | Quant::Bf16) { EXACT } else { 4e-3 }
}

/// Products with weights in BF16 by a matrix unit that takes bf16 on both sides: activations in two parts. Floor on CPU:
/// 3.6e-11.
pub const TWO_PARTS: f64 = 1e-10;

/// Attention over moments whose covariances are in f16. Floor on CPU: 1.9e-8.
pub const ROUNDED_MOMENTS: f64 = 4e-8;
