//! Small files made up by the tests, and what becomes of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use kvas_gguf::GgufWriter;
use std::path::PathBuf;
use tempfile::TempDir;

/// A folder of its own, removed at the end.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn metadata(keys: &[(&str, Value)]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::String("llama".into()));
    metadata.set("llama.block_count", Value::U32(2));
    keys.iter().for_each(|(key, value)| metadata.set(*key, value.clone()));
    metadata
}

fn wave(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * step).sin()).collect()
}

/// Writes a file of F32 tensors.
fn write(path: &Path, metadata: Metadata, tensors: &[(&str, &[u64], &[f32])]) {
    let mut writer = GgufWriter::new(metadata);
    for (name, shape, _) in tensors {
        writer.declare(name, Quant::F32, shape).unwrap();
    }
    let mut file = writer.create(path).unwrap();
    for (name, _, numbers) in tensors {
        file.write(name, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    }
    file.finish().unwrap();
}

/// A file of one F32 tensor.
fn one(folder: &Folder, name: &str, shape: &[u64], numbers: &[f32]) -> GgufFile {
    let path = folder.file("model.gguf");
    write(&path, metadata(&[]), &[(name, shape, numbers)]);
    GgufFile::open(&path).unwrap()
}

fn numbers(file: &GgufFile, name: &str) -> Vec<f32> {
    let info = file.tensor(name).unwrap();
    let mut numbers = vec![0.0; info.elements()];
    info.quant.dequantize(&file.data(info), &mut numbers).unwrap();
    numbers
}

fn of(mix: &str) -> QuantizeOptions {
    QuantizeOptions::new(Mix::from_name(mix).unwrap())
}

#[test]
fn tensors_of_several_parts_and_files_keep_their_places() {
    let folder = Folder::new();
    let (a, b, norm) = (wave(64 * 50, 0.01), wave(32 * 33, 0.7), wave(64, 0.1));
    let split = |number: u16| {
        metadata(&[
            ("split.no", Value::U16(number)),
            ("split.count", Value::U16(2)),
            ("split.tensors.count", Value::I32(3)),
        ])
    };
    let shards = ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"].map(|name| folder.file(name));
    write(&shards[0], split(0), &[("blk.0.ffn_up.weight", &[64, 50], &a)]);
    write(&shards[1], split(1), &[("blk.1.ffn_up.weight", &[32, 33], &b), ("output_norm.weight", &[64], &norm)]);
    let source = GgufFile::open(&shards[0]).unwrap();
    let out = folder.file("out.gguf");
    let plan = quantize(&source, &out, &of("q8_0")).unwrap();
    let file = GgufFile::open(&out).unwrap();
    assert_eq!((file.shard_count(), file.metadata().get("split.count")), (1, None));
    assert_eq!(plan.bytes(), file.tensors().iter().map(|tensor| tensor.bytes as u64).sum::<u64>());
    for (name, expected) in [("blk.0.ffn_up.weight", a), ("blk.1.ffn_up.weight", b)] {
        assert_eq!(file.tensor(name).unwrap().quant, Quant::Q8_0);
        let found = numbers(&file, name);
        // Half a code, 1 / 254, and the rounding of the scale to f16, 2^-11.
        assert!(found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() <= 0.0045), "{name}");
    }
    assert_eq!(numbers(&file, "output_norm.weight"), norm);
}

#[test]
fn numbers_that_a_format_cannot_hold_are_named() {
    let folder = Folder::new();
    let out = folder.file("out.gguf");
    for (bad, mix, expected) in [
        (f32::NAN, "q4_0", "tensor blk.0.ffn_up.weight: row 2: number 3 is NaN, expected a finite one"),
        (7e4, "f16", "row 2: number 3 is 70000, which F16 cannot hold"),
        (7e4, "bf16", ""),
        (f32::NAN, "f32", "tensor blk.0.ffn_up.weight: row 2: number 3 is NaN, expected a finite one"),
        (
            1e30,
            "q8_0",
            "tensor blk.0.ffn_up.weight: row 2: number 3 is 1e30, which a block of Q8_0 cannot hold; expected",
        ),
        (-1e30, "q4_0", "row 2: number 3 is -1e30, which a block of Q4_0 cannot hold"),
        (1e30, "q5_1", "row 2: number 3 is 1e30, which a block of Q5_1 cannot hold"),
        (1e30, "iq4_nl", "row 2: number 3 is 1e30, which a block of IQ4_NL cannot hold"),
        (f32::MAX, "bf16", "row 2: number 3 is 3.4028235e38, which a block of BF16 cannot hold"),
        (7e4, "q8_0", ""),
        (1e30, "f32", ""),
    ] {
        let mut x = wave(32 * 4, 0.3);
        x[2 * 32 + 3] = bad;
        let source = one(&folder, "blk.0.ffn_up.weight", &[32, 4], &x);
        let done = quantize(&source, &out, &of(mix)).map_err(|error| format!("{error:#}"));
        match done {
            Err(error) => assert!(!expected.is_empty() && error.contains(expected) && !out.exists(), "{error}"),
            Ok(_) => {
                assert!(expected.is_empty(), "{expected}");
                std::fs::remove_file(&out).unwrap();
            }
        }
    }
}

#[test]
fn no_block_holds_other_than_numbers() {
    for &quant in Quant::ALL.iter().filter(|quant| quant.is_for_weights()) {
        for large in [1e3, 1e4, 1e5, 1e6, 1e8, 1e12, 1e20, 1e30, 3e38] {
            let mut x = wave(256, 0.3);
            x[77] = -large;
            let mut bytes = vec![0; quant.row_bytes(256).unwrap()];
            if crate::encode::encode_row(quant, &x, None, &mut bytes).is_ok() {
                quant.dequantize(&bytes, &mut x).unwrap();
                assert!(x.iter().all(|x| x.is_finite()), "{quant} {large:e}");
            }
        }
    }
}

#[test]
fn no_file_is_written_over_itself() {
    let folder = Folder::new();
    let x = wave(32 * 4, 0.3);
    let part = |number: u16| metadata(&[("split.no", Value::U16(number)), ("split.count", Value::U16(2))]);
    let shards = ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"].map(|name| folder.file(name));
    write(&shards[0], part(0), &[("blk.0.ffn_up.weight", &[32, 4], &x)]);
    write(&shards[1], part(1), &[("blk.1.ffn_up.weight", &[32, 4], &x)]);
    let before = shards.each_ref().map(|shard| std::fs::read(shard).unwrap());
    let source = GgufFile::open(&shards[0]).unwrap();
    for shard in &shards {
        let error = quantize(&source, shard, &of("q8_0")).unwrap_err().to_string();
        assert_eq!(error, format!("{}: is a file that is read for it, expected another one", shard.display()));
    }
    assert_eq!(shards.each_ref().map(|shard| std::fs::read(shard).unwrap()), before);
}

#[test]
fn patterns_that_choose_nothing_are_found() {
    let folder = Folder::new();
    let source = one(&folder, "blk.0.ffn_up.weight", &[32, 4], &wave(32 * 4, 0.3));
    let recipe = |patterns: &[&str]| Recipe {
        by_name: patterns.iter().map(|pattern| (Regex::new(pattern).unwrap(), Quant::Q8_0)).collect(),
        ..of("q4_0").recipe
    };
    let unused = |patterns: &[&str]| unused_pattern(&recipe(patterns), &tensors(&source));
    assert_eq!(unused(&["ffn_up", "blk"]), None);
    assert_eq!(unused(&["blk", "nothere"]), Some(1));
}

#[test]
fn each_expert_is_quantised_by_its_own_importance() {
    let folder = Folder::new();
    let x: Vec<f32> = [wave(32 * 2, 0.37), wave(32 * 2, 0.37)].concat();
    let source = one(&folder, "blk.0.ffn_up_exps.weight", &[32, 2, 2], &x);
    let mut importance = ImportanceMatrix::new("text".into(), 1, 8);
    // The first expert met numbers in its first columns only, the second in its last ones, a third tensor none at all.
    let rows = [0, 1].map(|expert| (0..32).map(|at| f32::from(u8::from(at / 16 == expert))).collect::<Vec<f32>>());
    rows.iter().enumerate().for_each(|(expert, row)| importance.add("blk.0.ffn_up_exps.weight", expert, 2, row));
    let path = folder.file("importance.gguf");
    importance.write(&path).unwrap();
    let read = ImportanceMatrix::open(&path).unwrap();
    assert_eq!(read.of("blk.0.ffn_up_exps.weight", 64).unwrap().unwrap(), rows.concat());
    assert_eq!(read.of("blk.1.ffn_up_exps.weight", 64).unwrap(), None);
    let error = read.of("blk.0.ffn_up_exps.weight", 96).unwrap_err().to_string();
    assert!(error.ends_with("64 columns for tensor blk.0.ffn_up_exps.weight, expected the 96 that it has"), "{error}");
    let out = folder.file("out.gguf");
    quantize(&source, &out, &QuantizeOptions { importance: Some(read), ..of("q4_0") }).unwrap();
    let file = GgufFile::open(&out).unwrap();
    let found = numbers(&file, "blk.0.ffn_up_exps.weight");
    let mut expected = Vec::new();
    for (at, row) in x.chunks(32).enumerate() {
        let mut block = [0; 18];
        Quant::Q4_0.quantize_weighted(row, Some(&rows[at / 2]), &mut block).unwrap();
        let mut row = [0.0; 32];
        Quant::Q4_0.dequantize(&block, &mut row).unwrap();
        expected.extend(row);
    }
    assert_eq!(found, expected);
    assert_ne!(found[..64], found[64..]);
}

#[test]
fn what_was_quantised_is_left_alone_or_refused() {
    let folder = Folder::new();
    let x = wave(32 * 4, 0.3);
    let source = one(&folder, "blk.0.ffn_up.weight", &[32, 4], &x);
    let q8 = folder.file("q8.gguf");
    quantize(&source, &q8, &of("q8_0")).unwrap();
    let q8 = GgufFile::open(&q8).unwrap();
    let error = plan(&q8, &of("q4_0")).unwrap_err().to_string();
    assert!(error.starts_with("tensor blk.0.ffn_up.weight is Q8_0 already, expected F32"), "{error}");
    let again = folder.file("again.gguf");
    quantize(&q8, &again, &of("q8_0")).unwrap();
    assert_eq!(numbers(&GgufFile::open(&again).unwrap(), "blk.0.ffn_up.weight"), numbers(&q8, "blk.0.ffn_up.weight"));
    let allowed = plan(&q8, &QuantizeOptions { requantize: Requantize::Allow, ..of("q4_0") }).unwrap();
    assert_eq!(allowed.tensors[0].quant, Quant::Q4_0);
}

#[test]
fn factors_beside_weights_go_into_their_numbers() {
    let folder = Folder::new();
    let path = folder.file("model.gguf");
    // Codes 1 to 6 of both halves, with scales of 1/2, 1, 2 and the smallest there is.
    let block: Vec<u8> = [0x30, 0x38, 0x40, 1].into_iter().chain((0..32).map(|at| (at % 6 + 1) * 0x11)).collect();
    let mut writer = GgufWriter::new(metadata(&[]));
    let tensors: [(&str, Quant, &[u64], Vec<u8>); 5] = [
        ("blk.0.ffn_down.weight", Quant::Nvfp4, &[64, 2], block.repeat(2)),
        ("blk.0.ffn_down.scale", Quant::F32, &[1], 0.375f32.to_le_bytes().to_vec()),
        ("blk.0.ffn_down.input_scale", Quant::F32, &[1], 3.0f32.to_le_bytes().to_vec()),
        ("blk.1.ffn_up_exps.weight", Quant::Nvfp4, &[64, 2, 2], block.repeat(4)),
        ("blk.1.ffn_up_exps.scale", Quant::F32, &[2], [2.0f32, 0.5].map(f32::to_le_bytes).concat()),
    ];
    tensors.iter().for_each(|(name, quant, shape, _)| writer.declare(name, *quant, shape).unwrap());
    let mut file = writer.create(&path).unwrap();
    tensors.iter().for_each(|(name, _, _, data)| file.write(name, data).unwrap());
    file.finish().unwrap();
    let source = GgufFile::open(&path).unwrap();
    let options = QuantizeOptions { requantize: Requantize::Allow, ..of("F32") };
    quantize(&source, &folder.file("out.gguf"), &options).unwrap();
    let out = GgufFile::open(&folder.file("out.gguf")).unwrap();
    assert!(
        out.tensors().iter().map(|tensor| &tensor.name[..]).eq(["blk.0.ffn_down.weight", "blk.1.ffn_up_exps.weight"])
    );
    let times = |name: &str, factors: &[f32]| {
        let numbers = numbers(&source, name);
        let each = numbers.len() / factors.len();
        numbers
            .chunks(each)
            .zip(factors)
            .flat_map(|(numbers, factor)| numbers.iter().map(move |x| x * factor))
            .collect()
    };
    let expected: Vec<f32> = times("blk.0.ffn_down.weight", &[0.375]);
    assert_eq!(expected[..3], [0.09375, 0.1875, 0.28125]);
    assert_eq!(numbers(&out, "blk.0.ffn_down.weight"), expected);
    let expected: Vec<f32> = times("blk.1.ffn_up_exps.weight", &[2.0, 0.5]);
    assert_eq!(numbers(&out, "blk.1.ffn_up_exps.weight"), expected);
}

#[test]
fn factors_that_fit_no_weight_are_named() {
    let folder = Folder::new();
    let path = folder.file("model.gguf");
    let (weight, factors) = (wave(128, 0.1), [1.0, 2.0, 3.0]);
    let tensors: [(&str, &[u64], &[f32]); 2] =
        [("blk.0.ffn_down.weight", &[32, 4], &weight), ("blk.0.ffn_down.scale", &[3], &factors)];
    write(&path, metadata(&[]), &tensors);
    let error = plan(&GgufFile::open(&path).unwrap(), &of("Q8_0")).unwrap_err().to_string();
    assert_eq!(error, "tensor blk.0.ffn_down.scale: has 3 numbers, expected 1");
}
