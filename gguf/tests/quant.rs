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

#[test]
fn print_rmse() {
    let x = gaussian(256 * 512, 1);
    let importance: Vec<f32> = gaussian(256 * 512, 2).iter().map(|x| x * x + 0.01).collect();
    for &quant in Quant::ALL.iter().filter(|quant| quant.can_quantize()) {
        let plain = rmse(quant, &x, None, None);
        println!(
            "{quant} {plain:.6} weighted {:.6} unweighted-in-weighted {:.6}",
            rmse(quant, &x, Some(&importance), Some(&importance)),
            rmse(quant, &x, None, Some(&importance))
        );
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
