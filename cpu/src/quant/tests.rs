//! Every product with stored blocks against dequantised blocks in f64, over all bit patterns; tiles of any shape give
//! the same bits.

use super::*;
use crate::simd::{Isa, Proof};
use kvas_backend::conformance::Random;
use std::marker::PhantomData;

struct Quantised {
    values: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<f32>,
}

impl Quantised {
    fn new(proof: Proof, x: &[f32]) -> Self {
        let blocks = x.len() / BLOCK;
        let mut all = Self { values: vec![0; x.len()], scales: vec![0.0; blocks], sums: vec![0.0; blocks] };
        proof.run(Quantise { x, values: &mut all.values, scales: &mut all.scales, sums: &mut all.sums });
        all
    }

    fn row(&self) -> QuantisedRow<'_> {
        QuantisedRow { values: self.values.as_chunks().0, scales: &self.scales, sums: &self.sums }
    }

    fn exact(&self) -> Vec<f64> {
        let value = |(i, q): (usize, &i8)| f64::from(*q) * f64::from(self.scales[i / BLOCK]);
        self.values.iter().enumerate().map(value).collect()
    }
}

/// Rows of random bits, with scales that are finite.
fn random_rows(quant: Quant, rows: usize, columns: usize, scale_at: &[usize]) -> Vec<u8> {
    let mut random = Random::new(11);
    let mut bytes: Vec<u8> = (0..rows * quant.row_bytes(columns).unwrap()).map(|_| random.bits() as u8).collect();
    for block in bytes.chunks_exact_mut(quant.block_bytes()) {
        for at in scale_at {
            block[*at..at + 2].copy_from_slice(&half::f16::from_f32(0.01 * random.normal()).to_le_bytes());
        }
    }
    bytes
}

struct Products<'a, F> {
    rows: [&'a [u8]; 4],
    x: [QuantisedRow<'a>; 2],
    format: PhantomData<F>,
}

impl<'a, F: Format<Row<'a> = QuantisedRow<'a>>> Kernel for Products<'a, F> {
    /// In one tile of 4 by 2, in two of 4 by 1, one by one.
    type Output = [[[f32; 2]; 4]; 3];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let Self { rows, x, .. } = self;
        let mut out = [[[0.0; 2]; 4]; 3];
        out[0] = F::tile::<S, 4, 2>(simd, rows, x);
        for r in 0..2 {
            let column = F::tile::<S, 4, 1>(simd, rows, [x[r]]);
            for w in 0..4 {
                out[1][w][r] = column[w][0];
                out[2][w][r] = F::tile::<S, 1, 1>(simd, [rows[w]], [x[r]])[0][0];
            }
        }
        out
    }
}

fn check<F>(quant: Quant, scale_at: &[usize])
where
    F: for<'a> Format<Row<'a> = QuantisedRow<'a>>,
{
    for proof in Isa::ALL.into_iter().filter_map(Proof::of) {
        for blocks in [1, 2, 5] {
            let columns = blocks * quant.block_len();
            let bytes = random_rows(quant, 4, columns, scale_at);
            let mut random = Random::new(blocks as u64);
            // The last block is zero.
            let mut x = || -> Vec<f32> {
                (0..columns).map(|i| if i + 32 < columns { 50.0 * random.normal() } else { 0.0 }).collect()
            };
            let x = [Quantised::new(proof, &x()), Quantised::new(proof, &x())];
            let row_bytes = bytes.len() / 4;
            let rows = [0, 1, 2, 3].map(|w| &bytes[w * row_bytes..][..row_bytes]);
            let found = proof.run(Products::<F> { rows, x: [x[0].row(), x[1].row()], format: PhantomData });
            for w in 0..4 {
                let mut weights = vec![0.0; columns];
                quant.dequantize(rows[w], &mut weights).unwrap();
                for r in 0..2 {
                    let products = weights.iter().zip(x[r].exact()).map(|(w, x)| f64::from(*w) * x);
                    let (exact, size): (f64, f64) = (products.clone().sum(), products.map(f64::abs).sum());
                    let error = (f64::from(found[0][w][r]) - exact).abs();
                    assert!(error <= 1e-6 * size, "{quant} {proof:?}: {}, not {exact}", found[0][w][r]);
                    assert_eq!(found[0][w][r].to_bits(), found[1][w][r].to_bits(), "{quant} {proof:?}");
                    assert_eq!(found[0][w][r].to_bits(), found[2][w][r].to_bits(), "{quant} {proof:?}");
                }
            }
        }
    }
}

#[test]
fn products_with_q8_0() {
    check::<Q8_0>(Quant::Q8_0, &[0]);
}

#[test]
fn products_with_q4_0() {
    check::<Q4_0>(Quant::Q4_0, &[0]);
}

#[test]
fn products_with_q4_k() {
    check::<Q4K>(Quant::Q4K, &[0, 2]);
}

#[test]
fn products_with_q6_k() {
    check::<Q6K>(Quant::Q6K, &[208]);
}

#[test]
fn activations_are_quantised_alike_and_within_half_a_step() {
    let mut random = Random::new(3);
    let mut x: Vec<f32> = (0..256).map(|i| random.normal() * 10f32.powi(i / 64 - 2)).collect();
    x[64..96].fill(0.0);
    x[96..128].fill(-127.0);
    x[100] = 63.5; // a tie
    let scalar = Quantised::new(Proof::of(Isa::Scalar).unwrap(), &x);
    for proof in Isa::ALL.into_iter().filter_map(Proof::of) {
        let found = Quantised::new(proof, &x);
        assert_eq!((&found.values, &found.scales, &found.sums), (&scalar.values, &scalar.scales, &scalar.sums));
        for (i, (exact, x)) in found.exact().into_iter().zip(&x).enumerate() {
            assert!((exact - f64::from(*x)).abs() <= 0.500_001 * f64::from(found.scales[i / BLOCK]));
        }
        for (block, sum) in found.exact().chunks(BLOCK).zip(&found.sums) {
            assert!((block.iter().sum::<f64>() - f64::from(*sum)).abs() < 1e-4 * f64::from(sum.abs()) + 1e-6);
        }
    }
}

#[test]
fn what_is_not_finite_stays_visible() {
    for proof in Isa::ALL.into_iter().filter_map(Proof::of) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 7, 31] {
                let mut x = [1.0; 64];
                x[at] = bad;
                let found = Quantised::new(proof, &x);
                assert!(found.scales[0].is_nan(), "{proof:?}: {bad} at {at} is lost");
                assert_eq!(found.scales[1], 1.0 / 127.0);
            }
        }
    }
}
