//! The error that quantisers leave on normal numbers and on the weights of a model, against what llama.cpp's leave on the
//! same numbers. gguf/tests/vectors/make_errors.py made the files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvas_gguf::Quant;
use std::path::Path;

const ROWS: usize = 16;
const COLUMNS: usize = 512;

/// Ours may be so much larger than theirs. Largest measured: 1.0088 (Q2_K of weights, with importance).
const ALLOWED: f64 = 1.02;

/// The root of the mean squared error, times importance where that is given.
fn error(quant: Quant, rows: &[f32], importance: Option<&[f32]>) -> f64 {
    let mut bytes = vec![0; quant.row_bytes(COLUMNS).unwrap()];
    let mut out = vec![0.0; COLUMNS];
    let mut sum = 0.0;
    for row in rows.chunks(COLUMNS) {
        quant.quantize_weighted(row, importance, &mut bytes).unwrap();
        quant.dequantize(&bytes, &mut out).unwrap();
        for (at, (x, out)) in row.iter().zip(&out).enumerate() {
            let weight = importance.map_or(1.0, |importance| f64::from(importance[at]));
            sum += weight * f64::from(x - out).powi(2);
        }
    }
    (sum / (ROWS * COLUMNS) as f64).sqrt()
}

#[test]
fn errors_are_those_of_the_reference_or_smaller() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let table = std::fs::read_to_string(folder.join("errors.txt")).unwrap();
    let mut compared = 0;
    for line in table.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, file, plain, weighted] = words[..] else { panic!("{line}") };
        let quant = Quant::from_name(name).unwrap();
        let numbers: Vec<f32> = std::fs::read(folder.join(format!("{file}.rows")))
            .unwrap()
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect();
        let (rows, importance) = numbers.split_at(ROWS * COLUMNS);
        for (importance, theirs) in [(None, plain), (Some(importance), weighted)] {
            let (ours, theirs) = (error(quant, rows, importance), theirs.parse::<f64>().unwrap());
            let kind = if importance.is_some() { "with importance" } else { "without" };
            println!("{name:7} {file:9} {kind:16} {:.4}", ours / theirs);
            assert!(ours <= theirs * ALLOWED, "{name} of {file} {kind}: {ours:e}, the reference {theirs:e}");
            compared += 1;
        }
    }
    assert_eq!(compared, 60);
}
