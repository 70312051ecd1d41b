//! The choice of formats against tables of what llama.cpp chose, for every mix. tools/tests/mixes/make_mixes.py made them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvas_gguf::{Metadata, Quant, Value};
use kvas_tools::quantize::{Facts, Mix, Recipe, Tensor, choose};
use std::path::Path;

/// The metadata of the first line of a table: `llama block_count=8 attention.head_count_kv=0,2,0,2`.
fn metadata(line: &str) -> Metadata {
    let (architecture, keys) = line.split_once(' ').unwrap();
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::String(architecture.into()));
    for (key, value) in keys.split(' ').map(|key| key.split_once('=').unwrap()) {
        let values: Vec<u32> = value.split(',').map(|value| value.parse().unwrap()).collect();
        let value = if let [value] = values[..] { Value::U32(value) } else { Value::U32s(values) };
        metadata.set(format!("{architecture}.{key}"), value);
    }
    metadata
}

#[test]
fn every_mix_chooses_what_the_reference_chose() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mixes");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        let facts = Facts::of(&metadata(lines.next().unwrap())).unwrap();
        let mixes: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let rows: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();
        let shapes: Vec<Vec<u64>> =
            rows.iter().map(|row| row[1].split('x').map(|size| size.parse().unwrap()).collect()).collect();
        let tensors: Vec<Tensor<'_>> =
            rows.iter().zip(&shapes).map(|(row, shape)| Tensor { name: row[0], shape, stored: Quant::F32 }).collect();
        for (column, name) in mixes.into_iter().enumerate() {
            let mix = Mix::from_name(name.trim_end_matches('+')).unwrap();
            let recipe = Recipe { weighted: name.ends_with('+'), ..Recipe::new(mix) };
            for (row, choice) in rows.iter().zip(choose(&recipe, &facts, &tensors)) {
                let quant = choice.quant;
                assert_eq!(quant.name(), row[column + 2], "{}: {} in {name}", path.display(), row[0]);
                compared += 1;
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}
