//! Packed products against dequantised blocks in f64, over all bit patterns; any instruction set and any number of
//! activations give the same bits.

use super::*;
use crate::{
    fetching::Fetching,
    ops::panels::{PanelTimes, may_meet_pairs},
    simd::{
        Isa, Proof,
        dense::{Bf16, F16},
        panels::QuantisedBlock,
    },
};
use kvas_backend::conformance::Random;
use kvas_gguf::Quant;
use std::marker::PhantomData;

/// Formats that are packed, and where in a stored block its f16 scales are.
const FORMATS: [(Quant, &[usize]); 12] = [
    (Quant::Q8_0, &[0]),
    (Quant::Q4_0, &[0]),
    (Quant::Q4_1, &[0, 2]),
    (Quant::Q5_0, &[0]),
    (Quant::Q5_1, &[0, 2]),
    (Quant::Iq4Nl, &[0]),
    (Quant::Mxfp4, &[]),
    (Quant::Q3K, &[108]),
    (Quant::Q4K, &[0, 2]),
    (Quant::Q5K, &[0, 2]),
    (Quant::Q6K, &[208]),
    (Quant::Iq4Xs, &[0]),
];

fn proofs() -> impl Iterator<Item = Proof> {
    Isa::ALL.into_iter().filter_map(Proof::of)
}

/// Rows of random bits, with scales that are finite.
fn random_rows(quant: Quant, rows: usize, columns: usize, scale_at: &[usize]) -> Vec<u8> {
    let mut random = Random::new(11);
    let mut bytes: Vec<u8> = (0..rows * quant.row_bytes(columns).unwrap()).map(|_| random.bits() as u8).collect();
    for block in bytes.chunks_exact_mut(quant.block_bytes()) {
        for at in scale_at {
            block[*at..at + 2].copy_from_slice(&half::f16::from_f32(0.01 * random.normal()).to_le_bytes());
        }
        if quant == Quant::Mxfp4 {
            block[0] = 120 + block[0] % 16;
        }
    }
    bytes
}

fn quantised(proof: Proof, x: &[f32]) -> Vec<QuantisedBlock> {
    group(proof, &[x])
        .chunks_exact(RECORD)
        .map(|record| bytemuck::pod_read_unaligned(bytemuck::cast_slice(record)))
        .collect()
}

fn group(proof: Proof, x: &[&[f32]]) -> Vec<Word> {
    let mut words = vec![[0; 4]; x[0].len() / BLOCK * RECORD * x.len()];
    proof.run(Quantise { x, out: &mut words });
    words
}

fn exact(blocks: &[QuantisedBlock]) -> Vec<f64> {
    let values = |block: &QuantisedBlock| block.values.as_flattened().to_vec();
    blocks.iter().flat_map(|b| values(b).into_iter().map(|q| f64::from(q) * f64::from(b.scale))).collect()
}

/// Of sizes whose inverse no float is, and of some that just have one.
#[test]
fn the_smallest_values_have_no_byte_below_minus_127() {
    for largest in [f32::from_bits(1), 1e-40, f32::MIN_POSITIVE, 3e-37, 127.0 * f32::MIN_POSITIVE, 2e-36, 1e-30] {
        let x: Vec<f32> = (0..32).map(|i| largest * [1.0, -1.0, 0.5, 0.0][i % 4]).collect();
        let scalar = quantised(Proof::of(Isa::Scalar).unwrap(), &x);
        let byte = if largest < 127.0 * f32::MIN_POSITIVE { 0 } else { 127 };
        assert_eq!(scalar[0].values[0][..2], [byte, -byte], "{largest:e}");
        for proof in proofs() {
            assert_eq!(quantised(proof, &x), scalar, "{proof:?} {largest:e}");
        }
    }
}

/// How many activations there are: a group of each size, but for one of two.
const COUNT: usize = 31;

/// All of `x` in groups.
fn groups(proof: Proof, x: &[Vec<f32>]) -> Vec<Word> {
    let mut words = Vec::new();
    let mut left = x;
    while !left.is_empty() {
        let (some, rest) = left.split_at(group_len(left.len(), proof.tiles().is_some()));
        words.extend(group(proof, &some.iter().map(|x| &x[..]).collect::<Vec<_>>()));
        left = rest;
    }
    words
}

/// Products of a panel with all of `x`.
fn products(proof: Proof, quant: Quant, panel: Panel<'_>, x: &[Vec<f32>]) -> Vec<[f32; ROWS]> {
    let words = groups(proof, x);
    let mut y = vec![f32::NAN; x.len() * ROWS];
    let times = PanelTimes {
        panel,
        beside: None,
        count: x.len(),
        x: &words,
        y: &mut y,
        width: ROWS,
        fetching: Fetching::of(x.len()),
    };
    with_layout!(quant, |L| times.run::<L>(proof), panic!("{quant}"));
    y.as_chunks().0.to_vec()
}

/// Products of a panel of floats, and of the one beside it, with all of `x`.
fn float_products(
    proof: Proof,
    quant: Quant,
    (panel, beside): (&[u8], Option<Beside<&[u8]>>),
    x: &[&[f32]],
    (y, width): (&mut [f32], usize),
) {
    let fetching = Fetching::of(x.len());
    if quant == Quant::Bf16 {
        proof.run(FloatTimes { panel, beside, x, y, width, fetching, element: PhantomData::<Bf16> });
    } else {
        proof.run(FloatTimes { panel, beside, x, y, width, fetching, element: PhantomData::<F16> });
    }
}

#[test]
fn a_panel_beside_another_gives_the_bits_it_gives_alone() {
    let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
    // What `y` holds of each activation: the sums with one panel, then a gap, then those with the other.
    let (behind, width) = (2 * ROWS, 3 * ROWS);
    // Few of each number, and many: groups of eight meet pairs of panels, and few are left.
    let counts = || (1..=BESIDE).chain([11, 15, 16]);
    for ((quant, scale_at), count) in FORMATS.iter().flat_map(|format| counts().map(move |count| (*format, count))) {
        let columns = 9 * quant.block_len();
        let rows = random_rows(quant, 2 * ROWS, columns, scale_at);
        let panels = [0, 1].map(|half| {
            let mut packed = vec![0xff; panel_bytes(quant, columns).unwrap()];
            pack(quant, columns, &rows[half * rows.len() / 2..(half + 1) * rows.len() / 2], &mut packed);
            packed
        });
        let [panel, other] = [0, 1].map(|at| Panel { bytes: &panels[at], columns });
        let mut random = Random::new(count as u64);
        let x: Vec<Vec<f32>> = (0..count).map(|_| (0..columns).map(|_| random.normal()).collect()).collect();
        for proof in proofs().filter(|proof| count <= BESIDE || may_meet_pairs(*proof, quant)) {
            let words = groups(proof, &x);
            let mut y = vec![f32::NAN; count * width];
            let beside = Some(Beside { panel: other, behind });
            let times = PanelTimes { panel, beside, count, x: &words, y: &mut y, width, fetching: Fetching::of(count) };
            with_layout!(quant, |L| times.run::<L>(proof), panic!("{quant}"));
            for (r, y) in y.chunks(width).enumerate() {
                for (panel, at) in [(panel, 0), (other, behind)] {
                    let alone = products(proof, quant, panel, &x[r..=r]);
                    assert_eq!(bits(&y[at..at + ROWS]), bits(&alone[0]), "{quant} {proof:?}, {r} of {count}");
                }
                assert!(y[ROWS..behind].iter().all(|y| y.is_nan()), "the gap");
            }
        }
    }
    for (quant, count) in
        [Quant::Bf16, Quant::F16].into_iter().flat_map(|quant| [1, 2, 3, 4, 6, 8, 13, 17].map(|count| (quant, count)))
    {
        let (columns, mut random) = (1088, Random::new(count as u64));
        let panels = [1, 2].map(|_| {
            let mut packed = vec![0; float_panel_bytes(quant, columns).unwrap()];
            let mut stored = vec![0; 2 * ROWS * columns];
            let weights: Vec<f32> = (0..ROWS * columns).map(|_| random.normal()).collect();
            quant.quantize(&weights, &mut stored).unwrap();
            pack_floats(quant, columns, &stored, &mut packed);
            packed
        });
        let x: Vec<Vec<f32>> = (0..count).map(|_| (0..columns).map(|_| random.normal()).collect()).collect();
        let x: Vec<&[f32]> = x.iter().map(|x| &x[..]).collect();
        for proof in proofs() {
            let mut y = vec![f32::NAN; count * width];
            float_products(proof, quant, (&panels[0], Some(Beside { panel: &panels[1], behind })), &x, (&mut y, width));
            for (r, y) in y.chunks(width).enumerate() {
                for (panel, at) in panels.iter().zip([0, behind]) {
                    let mut alone = [f32::NAN; ROWS];
                    float_products(proof, quant, (panel, None), &x[r..=r], (&mut alone, ROWS));
                    assert_eq!(bits(&y[at..at + ROWS]), bits(&alone), "{quant} {proof:?}, {r} of {count}");
                }
                assert!(y[ROWS..behind].iter().all(|y| y.is_nan()), "the gap");
            }
        }
    }
}

#[test]
fn products_are_those_of_dequantised_blocks_to_the_bit_everywhere() {
    for (quant, scale_at) in FORMATS {
        for (rows, blocks) in [(16, 1), (16, 3), (5, 2), (16, 21)] {
            let columns = blocks * quant.block_len();
            let bytes = random_rows(quant, rows, columns, scale_at);
            let mut packed = vec![0xff; panel_bytes(quant, columns).unwrap()];
            pack(quant, columns, &bytes, &mut packed);
            let panel = Panel { bytes: &packed, columns };
            let mut random = Random::new(blocks as u64);
            // The last block is zero.
            let x = [0; COUNT].map(|_| -> Vec<f32> {
                (0..columns).map(|i| if i + 32 < columns { 50.0 * random.normal() } else { 0.0 }).collect()
            });
            let scalar = Proof::of(Isa::Scalar).unwrap();
            let truth = products(scalar, quant, panel, &x);
            for proof in proofs() {
                let (together, two) = (products(proof, quant, panel, &x), products(proof, quant, panel, &x[..2]));
                for r in 0..2 {
                    assert_eq!(two[r].map(f32::to_bits), truth[r].map(f32::to_bits), "{quant} {proof:?}, {r} of two");
                }
                for r in 0..COUNT {
                    let alone = products(proof, quant, panel, &x[r..=r])[0];
                    assert_eq!(alone.map(f32::to_bits), truth[r].map(f32::to_bits), "{quant} {proof:?}, {r}");
                    assert_eq!(together[r].map(f32::to_bits), truth[r].map(f32::to_bits), "{quant} {proof:?}, {r}");
                }
            }
            let x: Vec<_> = x[..3].iter().map(|x| quantised(scalar, x)).collect();
            for (row, stored) in bytes.chunks_exact(bytes.len() / rows).enumerate() {
                let mut weights = vec![0.0; columns];
                quant.dequantize(stored, &mut weights).unwrap();
                for r in 0..3 {
                    let products = weights.iter().zip(exact(&x[r])).map(|(w, x)| f64::from(*w) * x);
                    let (exact, size): (f64, f64) = (products.clone().sum(), products.map(f64::abs).sum());
                    // Codes and minimums of a block may cancel: both are rounded.
                    let bound =
                        if matches!(quant, Quant::Q4_1 | Quant::Q5_1 | Quant::Q4K | Quant::Q5K) { 2e-5 } else { 1e-6 };
                    let error = (f64::from(truth[r][row]) - exact).abs();
                    assert!(error <= bound * size + 1e-30, "{quant}: {}, not {exact} of {size}", truth[r][row]);
                }
            }
            assert!(truth.iter().all(|sums| sums[rows..].iter().all(|sum| *sum == 0.0)), "rows that are missing");
        }
    }
}

/// Sums of products in 16 bits have room for so many, and no more.
#[test]
fn the_largest_products_have_room() {
    let mut random = Random::new(7);
    for (quant, scale_at) in FORMATS {
        let columns = quant.block_len().max(64);
        for pattern in [0xff, 0, 0x80, 0x7f, 0x88, 0x77] {
            let mut bytes = random_rows(quant, ROWS, columns, scale_at);
            // All that is not a scale.
            for block in bytes.chunks_exact_mut(quant.block_bytes()) {
                let is_scale = |i: usize| scale_at.iter().any(|at| (*at..at + 2).contains(&i));
                let is_scale = |i: usize| is_scale(i) || quant == Quant::Mxfp4 && i == 0;
                block.iter_mut().enumerate().filter(|(i, _)| !is_scale(*i)).for_each(|(_, byte)| *byte = pattern);
            }
            let mut packed = vec![0xff; panel_bytes(quant, columns).unwrap()];
            pack(quant, columns, &bytes, &mut packed);
            let panel = Panel { bytes: &packed, columns };
            // Of one size, of one sign or of both.
            let x = [0; 8].map(|_| {
                let one_sign = random.below(2) == 0;
                let sign = move |random: &mut Random| if one_sign || random.below(4) > 0 { 1.0 } else { -1.0 };
                let all = if random.below(2) == 0 { 3.0 } else { -3.0 };
                (0..columns).map(|_| all * sign(&mut random)).collect::<Vec<f32>>()
            });
            let truth = products(Proof::of(Isa::Scalar).unwrap(), quant, panel, &x);
            for (proof, count) in proofs().flat_map(|proof| [1, 2, 3, 8].map(|count| (proof, count))) {
                let bits = |sums: &[[f32; ROWS]]| sums.as_flattened().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let found = products(proof, quant, panel, &x[..count]);
                assert_eq!(bits(&found), bits(&truth[..count]), "{quant} {pattern:#x} {proof:?}, {count}");
            }
        }
    }
}

#[test]
fn activations_are_quantised_alike_and_within_half_a_step() {
    let mut random = Random::new(3);
    let mut x: Vec<f32> = (0..256).map(|i| random.normal() * 10f32.powi(i / 64 - 2)).collect();
    x[64..96].fill(0.0);
    x[96..128].fill(-127.0);
    x[100] = 63.5; // a tie
    let scalar = quantised(Proof::of(Isa::Scalar).unwrap(), &x);
    for proof in proofs() {
        let found = quantised(proof, &x);
        assert_eq!(found, scalar, "{proof:?}");
        for (i, (exact, x)) in exact(&found).into_iter().zip(&x).enumerate() {
            assert!((exact - f64::from(*x)).abs() <= 0.500_001 * f64::from(found[i / BLOCK].scale));
        }
        for (block, found) in exact(&found).chunks(BLOCK).zip(&found) {
            let sum = f64::from(found.sum);
            assert!((block.iter().sum::<f64>() - sum).abs() < 1e-4 * sum.abs() + 1e-6);
            let halves = found.values.as_chunks::<4>().0.iter();
            let halves: Vec<i32> = halves.map(|half| half.as_flattened().iter().map(|x| i32::from(*x)).sum()).collect();
            assert_eq!([found.first_half, found.start], [halves[0], -128 * (halves[0] + halves[1])]);
        }
    }
}

#[test]
fn what_is_not_finite_stays_visible() {
    for proof in proofs() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 7, 31] {
                let mut x = [1.0; 64];
                x[at] = bad;
                let found = quantised(proof, &x);
                assert!(found[0].scale.is_nan(), "{proof:?}: {bad} at {at} is lost");
                assert_eq!(found[1].scale, 1.0 / 127.0);
            }
        }
    }
}

#[test]
fn floats_give_the_same_bits_everywhere_and_are_near_the_truth() {
    let run = |proof: Proof, quant, panel: &[u8], x: &[&[f32]]| {
        let mut y = vec![f32::NAN; x.len() * ROWS];
        float_products(proof, quant, (panel, None), x, (&mut y, ROWS));
        y
    };
    let mut random = Random::new(5);
    for (quant, rows, columns) in
        [(Quant::Bf16, 16, 1088), (Quant::F16, 16, 1088), (Quant::Bf16, 3, 32), (Quant::F16, 7, 96)]
    {
        let weights: Vec<f32> = (0..rows * columns).map(|_| random.normal()).collect();
        let mut stored = vec![0; 2 * weights.len()];
        quant.quantize(&weights, &mut stored).unwrap();
        let mut rounded = vec![0.0; weights.len()];
        quant.dequantize(&stored, &mut rounded).unwrap();
        let mut panel = vec![0xff; float_panel_bytes(quant, columns).unwrap()];
        pack_floats(quant, columns, &stored, &mut panel);
        let x: Vec<Vec<f32>> = (0..15).map(|_| (0..columns).map(|_| random.normal()).collect()).collect();
        let x: Vec<&[f32]> = x.iter().map(|x| &x[..]).collect();
        let truth = run(Proof::of(Isa::Scalar).unwrap(), quant, &panel, &x);
        for proof in proofs() {
            let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(run(proof, quant, &panel, &x)), bits(truth.clone()), "{quant} {proof:?}");
            let alone = x.iter().flat_map(|x| run(proof, quant, &panel, &[x])).collect();
            assert_eq!(bits(alone), bits(truth.clone()), "{quant} {proof:?}, one by one");
        }
        for (x, y) in x.iter().zip(truth.chunks_exact(ROWS)) {
            for (row, y) in rounded.chunks_exact(columns).zip(y) {
                let exact: f64 = row.iter().zip(*x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                assert!((exact - f64::from(*y)).abs() < 2e-6 * (columns as f64).sqrt(), "{quant}: {y}, not {exact}");
            }
            assert!(y[rows..].iter().all(|y| *y == 0.0), "rows that are missing");
        }
    }
}
