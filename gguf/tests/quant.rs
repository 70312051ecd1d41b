//! Block formats: dequantisation against vectors of the reference implementation, bit for bit; quantisers likewise where
//! that implementation has one, and by the error they leave where it has none.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvas_gguf::{GgufError, Quant};
use std::path::Path;

fn vectors(quant: Quant, kind: &str) -> Option<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    std::fs::read(folder.join(format!("{quant}.{kind}"))).ok()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Splits a vector file into what comes before and after the blocks end, or the elements end.
fn split(quant: Quant, file: &[u8]) -> usize {
    let blocks = file.len() / (quant.block_bytes() + 4 * quant.block_len());
    assert_eq!(file.len(), blocks * (quant.block_bytes() + 4 * quant.block_len()), "{quant}: whole blocks");
    blocks
}

#[test]
fn dequantize_gives_the_bits_of_the_reference() {
    for &quant in Quant::ALL {
        let Some(file) = vectors(quant, "dequantize") else {
            assert_eq!(quant, Quant::Q8K, "every format of files has vectors");
            continue;
        };
        let (blocks, expected) = file.split_at(split(quant, &file) * quant.block_bytes());
        let expected = floats(expected);
        let mut out = vec![f32::NAN; expected.len()];
        quant.dequantize(blocks, &mut out).unwrap();
        for (at, (out, expected)) in out.iter().zip(&expected).enumerate() {
            assert_eq!(out.to_bits(), expected.to_bits(), "{quant} element {at}: {out}, expected {expected}");
        }
    }
}

#[test]
fn quantize_gives_the_bytes_of_the_reference() {
    let mut compared = 0;
    for &quant in Quant::ALL {
        let Some(file) = vectors(quant, "quantize") else { continue };
        let blocks = split(quant, &file);
        let (x, expected) = file.split_at(blocks * quant.block_len() * 4);
        let mut out = vec![0; expected.len()];
        quant.quantize(&floats(x), &mut out).unwrap();
        for (at, (out, expected)) in
            out.chunks(quant.block_bytes()).zip(expected.chunks(quant.block_bytes())).enumerate()
        {
            assert_eq!(out, expected, "{quant} block {at}");
        }
        compared += 1;
    }
    assert_eq!(compared, 8);
}

#[test]
fn q8_k_holds_its_codes_and_their_sums() {
    let x: Vec<f32> = gaussian(256, 5);
    let mut bytes = vec![0; Quant::Q8K.block_bytes()];
    Quant::Q8K.quantize(&x, &mut bytes).unwrap();
    let scale = f32::from_le_bytes(bytes[..4].try_into().unwrap());
    let codes: Vec<i8> = bytes[4..260].iter().map(|&code| code as i8).collect();
    let mut out = vec![0.0; 256];
    Quant::Q8K.dequantize(&bytes, &mut out).unwrap();
    for i in 0..256 {
        assert_eq!(out[i], scale * f32::from(codes[i]));
        assert!((out[i] - x[i]).abs() <= scale.abs() * 0.5001, "element {i}");
    }
    for (group, sum) in bytes[260..].chunks(2).enumerate() {
        let expected: i16 = codes[16 * group..][..16].iter().map(|&code| i16::from(code)).sum();
        assert_eq!(i16::from_le_bytes(sum.try_into().unwrap()), expected);
    }
    assert_eq!(codes.iter().map(|code| code.unsigned_abs()).max(), Some(127));
}

/// Gaussian numbers of variance 1, the same for a seed everywhere (sums of uniform ones, near enough).
fn gaussian(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

/// The root of the mean (weighted) squared error that a format leaves.
fn rmse(quant: Quant, x: &[f32], importance: Option<&[f32]>, measure: Option<&[f32]>) -> f64 {
    let mut bytes = vec![0; quant.row_bytes(x.len()).unwrap()];
    quant.quantize_weighted(x, importance, &mut bytes).unwrap();
    let mut out = vec![0.0; x.len()];
    quant.dequantize(&bytes, &mut out).unwrap();
    let error = |i: usize| f64::from(x[i] - out[i]).powi(2) * measure.map_or(1.0, |measure| f64::from(measure[i]));
    ((0..x.len()).map(error).sum::<f64>() / x.len() as f64).sqrt()
}

/// The errors on the numbers of the next test: ours without and with importance, as measured, and those of llama.cpp's
/// quantisers (those in the PyPI package llama-cpp-python 0.3.36) on the same numbers. Ours may grow by half a per cent, for another order of sums,
/// and never beyond 1.02 of theirs.
const ERRORS: [(Quant, [f64; 2], [f64; 2]); 13] = [
    (Quant::Q4_0, [0.084330, 0.074691], [0.084330, 0.074869]),
    (Quant::Q4_1, [0.076981, 0.061180], [0.076981, 0.061046]),
    (Quant::Q5_0, [0.041932, 0.037177], [0.041932, 0.037265]),
    (Quant::Q5_1, [0.037299, 0.029726], [0.037299, 0.029714]),
    (Quant::Q8_0, [0.005265, 0.005321], [0.005265, 0.005321]),
    (Quant::Q2K, [0.278149, 0.222032], [0.291317, 0.222966]),
    (Quant::Q3K, [0.145958, 0.128953], [0.149105, 0.129292]),
    (Quant::Q4K, [0.069542, 0.061553], [0.070256, 0.062078]),
    (Quant::Q5K, [0.034283, 0.030980], [0.035643, 0.031962]),
    (Quant::Q6K, [0.017417, 0.015511], [0.017477, 0.015638]),
    (Quant::Iq4Nl, [0.073882, 0.066564], [0.075242, 0.068387]),
    (Quant::Iq4Xs, [0.074354, 0.067130], [0.075814, 0.069221]),
    (Quant::Mxfp4, [0.114275, 0.116419], [0.114275, 0.116419]),
];

#[test]
fn quantisers_leave_no_more_error_than_they_need() {
    let x = gaussian(256 * 512, 1);
    let importance: Vec<f32> = gaussian(256 * 512, 2).iter().map(|x| x * x + 0.01).collect();
    for (quant, floors, references) in ERRORS {
        let found = [rmse(quant, &x, None, None), rmse(quant, &x, Some(&importance), Some(&importance))];
        for ((found, floor), reference) in found.into_iter().zip(floors).zip(references) {
            assert!(found <= floor * 1.005 && found <= reference * 1.02, "{quant}: {found}, expected about {floor}");
        }
    }
}

#[test]
fn scaled_and_shifted_blocks_are_no_worse() {
    // Formats with a minimum hold a shifted distribution as well as a centred one; all hold any magnitude.
    let x = gaussian(256 * 64, 3);
    for (quant, floors, _) in ERRORS {
        for magnitude in [1e-3f32, 1e2] {
            let scaled: Vec<f32> = x.iter().map(|x| x * magnitude).collect();
            let error = rmse(quant, &scaled, None, None) / f64::from(magnitude);
            // Measured at most 1.0022 (Q8_0 at 1e-3, whose f16 scales are subnormal).
            assert!(error <= floors[0] * 1.01, "{quant} at {magnitude}: {error}");
        }
        if matches!(quant, Quant::Q4_1 | Quant::Q5_1 | Quant::Q2K | Quant::Q4K | Quant::Q5K) {
            let shifted: Vec<f32> = x.iter().map(|x| x - 4.0).collect();
            let error = rmse(quant, &shifted, None, None);
            // Measured at most 1.0156 (Q5_K, whose minimums have 6 bits).
            assert!(error <= floors[0] * 1.02, "{quant} shifted: {error}");
        }
    }
}

#[test]
fn elements_of_no_importance_are_not_dropped() {
    let x = gaussian(256 * 16, 6);
    let halves: Vec<f32> = (0..x.len()).map(|i| if i / 128 % 2 == 0 { 0.0 } else { 1.0 }).collect();
    let unimportant: Vec<f32> = halves.iter().map(|half| 2.0 - 2.0 * half).collect();
    for (quant, floors, _) in ERRORS {
        let ones = vec![1.0; x.len()];
        for (importance, measure) in [(&halves, &unimportant), (&vec![0.0; x.len()], &ones)] {
            let error = rmse(quant, &x, Some(importance), Some(measure));
            // Dropped elements would leave an error of 1. Measured at most 1.015 of the floor (MXFP4).
            assert!(error <= floors[0] * 1.03, "{quant}: {error} is {} of the floor", error / floors[0]);
        }
    }
}

#[test]
fn every_made_block_reads_back_near_its_numbers() {
    let constant = [0.0f32, 1.0, -1.0, 0.01, -3e4, 1e-30];
    for &quant in Quant::ALL.iter().filter(|quant| quant.can_quantize()) {
        for value in constant {
            let x = vec![value; 256];
            let mut bytes = vec![0; quant.row_bytes(256).unwrap()];
            quant.quantize(&x, &mut bytes).unwrap();
            let mut out = vec![f32::NAN; 256];
            quant.dequantize(&bytes, &mut out).unwrap();
            // MXFP4 is the coarsest, its largest codes 4 and 6; f16 scales end at 6e-8.
            let allowed = value.abs() * 0.2 + 1e-7;
            assert!(out.iter().all(|out| (out - value).abs() <= allowed), "{quant} of {value}: {out:?}");
        }
    }
}

#[test]
fn numbers_that_are_not_finite_never_panic() {
    let mut x = gaussian(256, 9);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45] {
        x[17] = bad;
        for x in [&x[..], &[bad; 256]] {
            for &quant in Quant::ALL.iter().filter(|quant| quant.can_quantize()) {
                let mut bytes = vec![0; quant.row_bytes(256).unwrap()];
                quant.quantize(x, &mut bytes).unwrap();
                quant.quantize_weighted(x, Some(x), &mut bytes).unwrap();
                quant.quantize_weighted(x, Some(&[0.0; 256]), &mut bytes).unwrap();
            }
        }
    }
}

#[test]
fn any_bytes_are_some_blocks() {
    let bytes: Vec<u8> = gaussian(300 * 8, 4).iter().map(|x| (x * 1e4) as i32 as u8).collect();
    for &quant in Quant::ALL {
        let blocks = bytes.len() / quant.block_bytes();
        let mut out = vec![0.0; blocks * quant.block_len()];
        quant.dequantize(&bytes[..blocks * quant.block_bytes()], &mut out).unwrap();
    }
}

#[test]
fn wrong_sizes_are_refused() {
    let message = |result: Result<(), GgufError>| result.unwrap_err().to_string();
    let mut out = [0.0; 32];
    assert_eq!(
        message(Quant::Q8_0.dequantize(&[0; 33], &mut out)),
        "Q8_0: 33 bytes given, expected 34 for 32 elements"
    );
    assert_eq!(
        message(Quant::Q4K.dequantize(&[0; 144], &mut out)),
        "Q4_K: 32 elements given, expected a multiple of 256"
    );
    assert_eq!(
        message(Quant::Iq2Xs.quantize(&[0.0; 256], &mut [0; 74])),
        "IQ2_XS: cannot be made from numbers, expected a format that can"
    );
    assert_eq!(
        message(Quant::Q8_0.quantize_weighted(&[0.0; 32], Some(&[1.0]), &mut [0; 34])),
        "Q8_0: 1 importances given, expected 32"
    );
    assert!(kvas_gguf::quant::blocks::<kvas_gguf::quant::Q8_0>(&[0; 35]).is_err());
}
