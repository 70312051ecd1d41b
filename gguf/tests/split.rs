//! Models in several files: found from any of them, and refused when the files do not belong together.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvas_gguf::{Endian, GgufFile, GgufWriter, Metadata, Quant, Value};
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn path(folder: &Path, index: u16, count: u16) -> PathBuf {
    folder.join(format!("model-{:05}-of-{count:05}.gguf", index + 1))
}

/// Writes shard `index` of 3 with tensors `a{index}` and `b{index}`; `change` may spoil its metadata.
fn shard(folder: &Path, index: u16, endian: Endian, change: impl FnOnce(&mut Metadata)) {
    let mut metadata = Metadata::default();
    metadata.set("split.no", Value::U16(index));
    metadata.set("split.count", Value::U16(3));
    metadata.set("split.tensors.count", Value::I32(6));
    if index == 0 {
        metadata.set("general.architecture", Value::String("llama".into()));
    }
    change(&mut metadata);
    let mut writer = GgufWriter::new(metadata).endian(endian);
    writer.declare(&format!("a{index}"), Quant::F32, &[3]).unwrap();
    writer.declare(&format!("b{index}"), Quant::Q8_0, &[32]).unwrap();
    let mut open = writer.create(&path(folder, index, 3)).unwrap();
    open.write(&format!("a{index}"), &[index as u8; 12]).unwrap();
    open.write(&format!("b{index}"), &[index as u8 + 100; 34]).unwrap();
    open.finish().unwrap();
}

fn whole(name: &str) -> PathBuf {
    let folder = folder(name);
    (0..3).for_each(|index| shard(&folder, index, Endian::Little, |_| {}));
    folder
}

fn refusal(folder: &Path) -> String {
    GgufFile::open(&path(folder, 0, 3)).unwrap_err().to_string()
}

#[test]
fn all_shards_open_as_one_file_from_any_of_them() {
    let folder = whole("split-whole");
    for start in 0..3 {
        let file = GgufFile::open(&path(&folder, start, 3)).unwrap();
        assert_eq!(file.shard_count(), 3);
        let names: Vec<&str> = file.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a0", "b0", "a1", "b1", "a2", "b2"]);
        assert_eq!(file.metadata().architecture().unwrap(), "llama");
        for index in 0..3u8 {
            let tensor = file.tensor(&format!("b{index}")).unwrap();
            assert_eq!(tensor.shard(), usize::from(index));
            assert_eq!(&file.data(tensor)[..], &[index + 100; 34]);
        }
        let bytes: u64 = (0..3).map(|index| path(&folder, index, 3).metadata().unwrap().len()).sum();
        assert_eq!(file.file_bytes(), bytes);
    }
}

#[test]
fn a_missing_shard_is_named() {
    let folder = whole("split-missing");
    std::fs::remove_file(path(&folder, 1, 3)).unwrap();
    let error = refusal(&folder);
    assert!(error.contains("model-00002-of-00003.gguf: not found, expected shard 2 of 3"), "{error}");
}

#[test]
fn a_name_that_does_not_say_the_shard_is_refused() {
    let folder = whole("split-name");
    let renamed = folder.join("renamed.gguf");
    std::fs::rename(path(&folder, 0, 3), &renamed).unwrap();
    let error = GgufFile::open(&renamed).unwrap_err().to_string();
    assert!(error.contains("is shard 1 of 3, expected a file name that ends in -00001-of-00003.gguf"), "{error}");
    let bytes = std::fs::read(&renamed).unwrap();
    let error = GgufFile::from_bytes("bytes", bytes).unwrap_err().to_string();
    assert_eq!(error, "bytes: is shard 1 of 3, expected a file that is not split");
}

#[test]
fn foreign_shards_are_refused() {
    type Change = fn(&mut Metadata);
    let changes: [(Change, &str); 6] = [
        (|metadata| metadata.set("split.no", Value::U16(2)), "has split.no = 2 and split.count = 3, expected 1 and 3"),
        (|metadata| metadata.set("split.count", Value::U16(9)), "has split.no = 1 and split.count = 9"),
        (|metadata| metadata.set("split.no", Value::U16(3)), "key split.no = 3, expected less than split.count = 3"),
        (|metadata| metadata.set("split.tensors.count", Value::I32(7)), "has another split.tensors.count"),
        (
            |metadata| metadata.set("general.architecture", Value::String("qwen2".into())),
            "has another general.architecture",
        ),
        (|metadata| assert!(metadata.remove("split.count")), "has no key split.count, expected shard 2 of 3"),
    ];
    let folder = whole("split-foreign");
    for (change, expected) in changes {
        shard(&folder, 1, Endian::Little, change);
        let error = refusal(&folder);
        assert!(error.contains("model-00002-of-00003.gguf: ") && error.contains(expected), "{error}");
    }
    shard(&folder, 1, Endian::Big, |_| {});
    assert!(refusal(&folder).contains("has another byte order than the first shard"));
}

#[test]
fn lost_and_repeated_tensors_are_refused() {
    let folder = whole("split-total");
    for index in 0..3 {
        shard(&folder, index, Endian::Little, |metadata| metadata.set("split.tensors.count", Value::I32(8)));
    }
    assert!(refusal(&folder).contains("the 3 shards hold 6 tensors, expected split.tensors.count = 8"));
    let folder = whole("split-repeated");
    let mut metadata = Metadata::default();
    metadata.set("split.no", Value::U16(2));
    metadata.set("split.count", Value::U16(3));
    metadata.set("split.tensors.count", Value::I32(6));
    let mut writer = GgufWriter::new(metadata);
    writer.declare("a0", Quant::F32, &[1]).unwrap();
    writer.declare("c", Quant::F32, &[1]).unwrap();
    let bytes = writer.to_bytes(&[&[0; 4], &[0; 4]]).unwrap();
    std::fs::write(path(&folder, 2, 3), bytes).unwrap();
    assert!(refusal(&folder).contains("tensor a0 occurs twice"));
}

#[test]
fn memory_that_was_given_back_is_read_again() {
    let folder = whole("split-released");
    let file = GgufFile::open(&path(&folder, 0, 3)).unwrap();
    for index in 0..3u8 {
        let bytes = file.data(file.tensor(&format!("b{index}")).unwrap());
        bytes.will_need();
        bytes.read_in();
        bytes.release();
        assert_eq!(&bytes[..], &[index + 100; 34]);
        let part = bytes.slice(3..9);
        part.release();
        assert_eq!((&part[..], &part.slice(6..6)[..]), (&[index + 100; 6][..], &[][..]));
    }
}
