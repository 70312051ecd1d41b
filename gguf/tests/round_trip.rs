//! Writing and reading are each other's inverse, in memory and on the disk, in both byte orders.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvas_gguf::{Endian, GgufFile, GgufWriter, Metadata, Quant, Value, quant};
use std::mem::offset_of;
use std::path::{Path, PathBuf};

/// A small seeded generator (xorshift), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 24) as u8).collect()
    }

    fn text(&mut self) -> String {
        let length = self.below(12);
        (0..length).map(|_| ['a', '.', 'ß', '€', '🦀', '\0', '\n', '"'][self.below(8) as usize]).collect()
    }

    fn value(&mut self) -> Value {
        let length = self.below(6) as usize;
        let mut many = || -> Vec<u64> { (0..length).map(|_| self.next()).collect() };
        let raw = many();
        let one = self.next();
        match self.below(24) {
            0 => Value::U8(one as u8),
            1 => Value::I8(one as i8),
            2 => Value::U16(one as u16),
            3 => Value::I16(one as i16),
            4 => Value::U32(one as u32),
            5 => Value::I32(one as i32),
            6 => Value::U64(one),
            7 => Value::I64(one as i64),
            8 => Value::F32(one as f32),
            9 => Value::F64(one as f64),
            10 => Value::Bool(one & 1 == 1),
            11 => Value::String(self.text()),
            12 => Value::U8s(raw.iter().map(|&x| x as u8).collect()),
            13 => Value::I8s(raw.iter().map(|&x| x as i8).collect()),
            14 => Value::U16s(raw.iter().map(|&x| x as u16).collect()),
            15 => Value::I16s(raw.iter().map(|&x| x as i16).collect()),
            16 => Value::U32s(raw.iter().map(|&x| x as u32).collect()),
            17 => Value::I32s(raw.iter().map(|&x| x as i32).collect()),
            18 => Value::U64s(raw),
            19 => Value::I64s(raw.iter().map(|&x| x as i64).collect()),
            20 => Value::F32s(raw.iter().map(|&x| x as f32).collect()),
            21 => Value::F64s(raw.iter().map(|&x| x as f64).collect()),
            22 => Value::Bools(raw.iter().map(|&x| x & 1 == 1).collect()),
            _ => Value::Strings(raw.iter().map(|_| self.text()).collect()),
        }
    }
}

/// A writer with random metadata and tensors, and the data of those tensors.
fn random_writer(random: &mut Random, endian: Endian) -> (GgufWriter, Vec<(String, Vec<u8>)>) {
    let mut metadata = Metadata::default();
    for index in 0..random.below(30) {
        metadata.set(format!("key.{index}.{}", random.text()), random.value());
    }
    if random.below(2) == 0 {
        metadata.set("general.alignment", Value::U32(8 << random.below(5)));
    }
    let mut writer = GgufWriter::new(metadata).endian(endian);
    let mut tensors = Vec::new();
    for index in 0..random.below(12) {
        let quant = Quant::ALL[random.below(Quant::ALL.len() as u64) as usize];
        let mut shape = vec![quant.block_len() as u64 * (1 + random.below(3))];
        shape.extend((0..random.below(4)).map(|_| 1 + random.below(3)));
        let name = format!("tensor.{index}");
        writer.declare(&name, quant, &shape).unwrap();
        let blocks = shape.iter().product::<u64>() as usize / quant.block_len();
        let data = random.bytes(blocks * quant.block_bytes());
        tensors.push((name, data));
    }
    (writer, tensors)
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The writer that would have made a file.
fn writer_of(file: &GgufFile) -> GgufWriter {
    let mut writer = GgufWriter::new(file.metadata().clone()).endian(file.endian());
    for tensor in file.tensors() {
        writer.declare(&tensor.name, tensor.quant, &tensor.shape).unwrap();
    }
    writer
}

#[test]
fn random_files_read_back_as_written() {
    for seed in 1..200u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let endian = if seed % 2 == 0 { Endian::Little } else { Endian::Big };
        let (writer, tensors) = random_writer(&mut random, endian);
        let data: Vec<&[u8]> = tensors.iter().map(|(_, data)| data.as_slice()).collect();
        let bytes = writer.to_bytes(&data).unwrap();
        let file = GgufFile::from_bytes("random", bytes.clone()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!((file.version(), file.endian(), file.file_bytes()), (3, endian, bytes.len() as u64));
        assert_eq!(file.tensors().len(), tensors.len());
        for (name, data) in &tensors {
            let info = file.tensor(name).unwrap();
            assert_eq!(info.offset() % file.alignment(), 0);
            assert_eq!(&file.data(info)[..], &data[..], "seed {seed} tensor {name} {}", info.quant);
        }
        let again = writer_of(&file).to_bytes(&data).unwrap();
        assert!(again == bytes, "seed {seed}: not the same bytes when written again");
    }
}

#[test]
fn metadata_survives_in_order() {
    let mut random = Random(7);
    for endian in [Endian::Little, Endian::Big] {
        let mut metadata = Metadata::default();
        for index in 0..200 {
            metadata.set(format!("k{index}"), random.value());
        }
        let bytes = GgufWriter::new(metadata.clone()).endian(endian).to_bytes(&[]).unwrap();
        let file = GgufFile::from_bytes("metadata", bytes).unwrap();
        assert!(file.metadata().iter().eq(metadata.iter()));
    }
}

#[test]
fn both_byte_orders_give_the_same_data() {
    let mut random = Random(3);
    for &quant in Quant::ALL {
        let data = random.bytes(3 * quant.block_bytes());
        let bytes = [Endian::Little, Endian::Big].map(|endian| {
            let mut writer = GgufWriter::new(Metadata::default()).endian(endian);
            writer.declare("t", quant, &[3 * quant.block_len() as u64]).unwrap();
            writer.to_bytes(&[&data]).unwrap()
        });
        for bytes in bytes {
            let file = GgufFile::from_bytes("endian", bytes).unwrap();
            assert_eq!(&file.data(&file.tensors()[0])[..], &data[..], "{quant} {:?}", file.endian());
        }
    }
}

/// The multi-byte numbers of a block of each format: where each lies, and its bytes.
fn numbers_of_blocks() -> Vec<(Quant, Vec<(usize, usize)>)> {
    let many = |first: usize, bytes: usize, count: usize| (0..count).map(move |i| (first + bytes * i, bytes));
    macro_rules! at {
        ($name:ident $($field:ident)*) => { (Quant::$name, vec![$((offset_of!(quant::$name, $field), 2)),*]) };
    }
    let mut numbers = vec![
        (Quant::F32, vec![(0, 4)]),
        (Quant::F16, vec![(0, 2)]),
        (Quant::Bf16, vec![(0, 2)]),
        (Quant::F64, vec![(0, 8)]),
        (Quant::I8, vec![]),
        (Quant::I16, vec![(0, 2)]),
        (Quant::I32, vec![(0, 4)]),
        (Quant::I64, vec![(0, 8)]),
        at!(Q4_0 scale),
        at!(Q4_1 scale min),
        at!(Q5_0 scale),
        at!(Q5_1 scale min),
        at!(Q8_0 scale),
        at!(Q2K scale min_scale),
        at!(Q3K scale),
        at!(Q4K scale min_scale),
        at!(Q5K scale min_scale),
        at!(Q6K scale),
        (Quant::Q8K, [(0, 4)].into_iter().chain(many(offset_of!(quant::Q8K, sums), 2, 16)).collect()),
        (Quant::Iq2Xxs, [(0, 2)].into_iter().chain(many(offset_of!(quant::Iq2Xxs, codes), 2, 32)).collect()),
        (Quant::Iq2Xs, [(0, 2)].into_iter().chain(many(offset_of!(quant::Iq2Xs, codes), 2, 32)).collect()),
        (Quant::Iq1S, [(0, 2)].into_iter().chain(many(offset_of!(quant::Iq1S, high), 2, 8)).collect()),
        at!(Iq2S scale),
        at!(Iq3Xxs scale),
        at!(Iq3S scale),
        at!(Iq4Nl scale),
        at!(Iq4Xs scale scales_high),
        (Quant::Iq1M, vec![]),
        at!(Tq1_0 scale),
        at!(Tq2_0 scale),
        (Quant::Mxfp4, vec![]),
        (Quant::Nvfp4, vec![]),
        at!(Q1_0 scale),
        at!(Q2_0 scale),
    ];
    numbers.sort_by_key(|(quant, _)| quant.id());
    numbers
}

#[test]
fn big_endian_blocks_have_their_numbers_turned_and_nothing_else() {
    let numbers = numbers_of_blocks();
    assert!(numbers.iter().map(|(quant, _)| quant).eq(Quant::ALL), "every format once");
    for (quant, numbers) in numbers {
        let data: Vec<u8> = (0..quant.block_bytes()).map(|at| at as u8).collect();
        let mut expected = data.clone();
        for (first, bytes) in numbers {
            expected[first..first + bytes].reverse();
        }
        let mut writer = GgufWriter::new(Metadata::default()).endian(Endian::Big);
        writer.declare("t", quant, &[quant.block_len() as u64]).unwrap();
        let file = writer.to_bytes(&[&data]).unwrap();
        let offset = GgufFile::from_bytes("big", file.clone()).unwrap().tensors()[0].offset();
        assert_eq!(&file[offset..offset + data.len()], expected, "{quant}");
    }
}

#[test]
fn streamed_files_equal_those_made_in_memory() {
    let folder = folder("streamed");
    for seed in 1..20u64 {
        let mut random = Random(seed * 77777);
        let endian = if seed % 2 == 0 { Endian::Little } else { Endian::Big };
        let (writer, tensors) = random_writer(&mut random, endian);
        let data: Vec<&[u8]> = tensors.iter().map(|(_, data)| data.as_slice()).collect();
        let expected = writer.to_bytes(&data).unwrap();
        let path = folder.join(format!("{seed}.gguf"));
        let mut open = writer.create(&path).unwrap();
        for (name, data) in &tensors {
            if random.below(3) == 0 {
                open.write(name, data).unwrap();
                continue;
            }
            let mut rest = data.as_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(1 + random.below(rest.len() as u64) as usize);
                open.write_part(name, now).unwrap();
                rest = later;
            }
        }
        assert!(!path.exists(), "nothing under the final name before finish");
        open.finish().unwrap();
        assert!(std::fs::read(&path).unwrap() == expected, "seed {seed}");
        let file = GgufFile::open(&path).unwrap();
        let kept: Vec<_> = file.tensors().iter().map(|tensor| file.data(tensor)).collect();
        drop(file);
        assert!(kept.iter().zip(&data).all(|(kept, data)| &kept[..] == *data), "data outlives the file");
    }
    assert!(std::fs::read_dir(&folder).unwrap().all(|entry| entry.unwrap().path().extension().unwrap() == "gguf"));
}

#[test]
fn an_abandoned_file_leaves_nothing() {
    let folder = folder("abandoned");
    let path = folder.join("a.gguf");
    std::fs::write(&path, "the old file").unwrap();
    let mut writer = GgufWriter::new(Metadata::default());
    writer.declare("a", Quant::Q8_0, &[32]).unwrap();
    writer.declare("b", Quant::F32, &[2]).unwrap();
    let mut open = writer.clone().create(&path).unwrap();
    open.write("a", &[0; 34]).unwrap();
    let error = open.finish().unwrap_err();
    assert_eq!(error.to_string(), "tensor b: has 0 of 8 bytes, expected all of them");
    drop(writer.create(&path).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), b"the old file");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut writer = GgufWriter::new(Metadata::default());
    let mut refused = |name: &str, quant, shape: &[u64]| writer.declare(name, quant, shape).unwrap_err().to_string();
    assert_eq!(
        refused("t", Quant::Q4K, &[255]),
        "tensor t: has rows of 255 elements, expected a multiple of 256 for Q4_K"
    );
    assert!(refused("t", Quant::F32, &[1, 0]).contains("expected no dimension to be 0"));
    assert!(refused("t", Quant::F32, &[]).contains("expected 1 to 4"));
    assert!(refused("t", Quant::F32, &[1; 5]).contains("expected 1 to 4"));
    assert!(refused("t", Quant::F32, &[1 << 32, 1 << 32]).contains("more bytes than any file holds"));
    assert!(refused(&"x".repeat(65), Quant::F32, &[1]).contains("expected 1 to 64"));
    writer.declare("t", Quant::F32, &[1]).unwrap();
    assert_eq!(writer.declare("t", Quant::F32, &[1]).unwrap_err().to_string(), "tensor t: is declared twice");
    assert!(writer.to_bytes(&[&[0; 5]]).unwrap_err().to_string().contains("5 bytes given, expected 4"));
    assert!(writer.to_bytes(&[&[0; 4], &[0]]).unwrap_err().to_string().contains("not declared"));
    let path = folder("order").join("x.gguf");
    writer.declare("u", Quant::F32, &[1]).unwrap();
    let mut open = writer.create(&path).unwrap();
    assert_eq!(open.write("u", &[0; 4]).unwrap_err().to_string(), "tensor u: written out of order, expected t");
    assert_eq!(open.write("w", &[0; 4]).unwrap_err().to_string(), "tensor w: was not declared");
    assert!(open.write_part("t", &[0; 5]).unwrap_err().to_string().contains("expected at most 4"));
    for (alignment, message) in [
        (Value::U32(3), "key general.alignment = 3, expected a power of two from 8 to 16777216"),
        (Value::I32(32), "key general.alignment is i32, expected u32"),
    ] {
        let mut metadata = Metadata::default();
        metadata.set("general.alignment", alignment);
        assert_eq!(GgufWriter::new(metadata).to_bytes(&[]).unwrap_err().to_string(), message);
    }
}

/// The numbers of a tensor.
fn floats(file: &GgufFile, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    let mut out = vec![0.0; tensor.elements()];
    tensor.quant.dequantize(&file.data(tensor), &mut out).unwrap();
    out
}

#[test]
fn files_of_the_python_package_are_read_and_written_again() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    for (name, endian) in [("little.container", Endian::Little), ("big.container", Endian::Big)] {
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let file = GgufFile::from_bytes(name, bytes.clone()).unwrap();
        assert_eq!(file.endian(), endian);
        let expected = [
            ("general.architecture", Value::String("test".into())),
            ("t.u8", Value::U8(200)),
            ("t.i8", Value::I8(-100)),
            ("t.u16", Value::U16(60000)),
            ("t.i16", Value::I16(-30000)),
            ("t.u32", Value::U32(4_000_000_000)),
            ("t.i32", Value::I32(-2_000_000_000)),
            ("t.u64", Value::U64(1 << 63)),
            ("t.i64", Value::I64(-(1 << 62))),
            ("t.f32", Value::F32(1.5)),
            ("t.f64", Value::F64(-2.25)),
            ("t.bool", Value::Bool(true)),
            ("t.string", Value::String("straße".into())),
            ("t.strings", Value::Strings(vec!["a".into(), "".into(), "🦀".into()])),
            ("t.integers", Value::I32s(vec![1, -2, 3])),
            ("t.floats", Value::F32s(vec![0.5, -0.5])),
            ("t.flags", Value::Bools(vec![true, false])),
        ];
        assert!(file.metadata().iter().eq(expected.iter().map(|(key, value)| (*key, value))), "{:?}", file.metadata());
        assert_eq!(file.tensor("t.f32").unwrap().shape, [3, 2]);
        assert_eq!(floats(&file, "t.f32"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(floats(&file, "t.f16"), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(floats(&file, "t.i32"), [1.0, -2.0]);
        let data: Vec<_> = file.tensors().iter().map(|tensor| file.data(tensor)).collect();
        let views: Vec<&[u8]> = data.iter().map(|data| &data[..]).collect();
        assert!(writer_of(&file).to_bytes(&views).unwrap() == bytes, "{name}");
    }
}

#[test]
fn files_of_other_programs_are_written_again_byte_for_byte() {
    let shared = std::env::var("KVAS_SHARED").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared").into());
    let mut files = Vec::new();
    for folder in ["data/models", "data/models/stories260k", "data/vocab"] {
        let Ok(entries) = std::fs::read_dir(Path::new(&shared).join(folder)) else {
            eprintln!("skipped: {folder} of the shared data is absent");
            return;
        };
        files.extend(
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "gguf")),
        );
    }
    assert!(!files.is_empty());
    for path in files {
        let expected = std::fs::read(&path).unwrap();
        let file = GgufFile::open(&path).unwrap();
        let data: Vec<_> = file.tensors().iter().map(|tensor| file.data(tensor)).collect();
        let views: Vec<&[u8]> = data.iter().map(|data| &data[..]).collect();
        let mut again = writer_of(&file).to_bytes(&views).unwrap();
        if file.tensors().is_empty() {
            // Some writers leave out the padding before data that is not there.
            again.truncate(expected.len());
        }
        // The version is the one thing that is not kept.
        assert!(again[8..] == expected[8..], "{}", path.display());
    }
}

#[test]
fn tensors_are_found_by_the_names_they_are_given() {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::String("none".into()));
    let mut writer = GgufWriter::new(metadata);
    let names = ["first", "second"];
    names.iter().for_each(|name| writer.declare(name, Quant::F32, &[1]).unwrap());
    let bytes = writer.to_bytes(&[&1f32.to_le_bytes(), &2f32.to_le_bytes()]).unwrap();
    let open = || GgufFile::from_bytes("a file", bytes.clone()).unwrap();
    let other = |name: &str| (name == "second").then(|| "another".to_string());
    let file = open().renamed(other).unwrap();
    assert!(file.tensor("second").is_none() && file.tensor("first").is_some());
    assert_eq!(file.data(file.tensor("another").unwrap()).to_vec(), 2f32.to_le_bytes());
    let error = open().renamed(|_| Some("one".into())).unwrap_err().to_string();
    assert!(error.contains("a file") && error.contains("tensor one occurs twice"), "{error}");
}
