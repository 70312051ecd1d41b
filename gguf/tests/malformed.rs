//! Files that are wrong in every way known: each is refused with one line that says why, at once, and without allocating
//! what it claims to hold.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvas_gguf::{Endian, GgufError, GgufFile, GgufWriter, Metadata, Quant, Value};
use std::path::Path;
use std::time::{Duration, Instant};

/// A little-endian file put together by hand, so that it can be wrong.
struct Raw(Vec<u8>);

impl Raw {
    fn header(version: u32, tensors: u64, keys: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensors).u64(keys)
    }

    fn u32(mut self, value: u32) -> Raw {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Raw {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend(bytes);
        self
    }

    fn string(self, text: &[u8]) -> Raw {
        self.u64(text.len() as u64).bytes(text)
    }

    fn key(self, key: &str, kind: u32) -> Raw {
        self.string(key.as_bytes()).u32(kind)
    }

    fn tensor(self, name: &str, shape: &[u64], quant: u32, offset: u64) -> Raw {
        let raw = self.string(name.as_bytes()).u32(shape.len() as u32);
        shape.iter().fold(raw, |raw, &dimension| raw.u64(dimension)).u32(quant).u64(offset)
    }

    /// Pads to the alignment and adds `bytes` of tensor data.
    fn data(mut self, bytes: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(32) + bytes, 7);
        self
    }

    fn open(self) -> Result<GgufFile, GgufError> {
        GgufFile::from_bytes("bad.gguf", self.0)
    }
}

fn one_key() -> Raw {
    Raw::header(3, 0, 1)
}

fn one_tensor(shape: &[u64], quant: u32, offset: u64) -> Raw {
    Raw::header(3, 1, 0).tensor("t", shape, quant, offset).data(128)
}

/// Each wrong header with a part of what is said about it.
fn headers() -> Vec<(Raw, &'static str)> {
    let max = u64::MAX;
    vec![
        (Raw(vec![]), "0 bytes long, expected a GGUF file"),
        (Raw(b"GGML\x03\0\0\0".to_vec()), "starts with \"GGML\", expected \"GGUF\""),
        (Raw(b"FUGG\0\0\0\x03".to_vec()), "expected \"GGUF\""),
        (Raw(b"GGUF\x03\0\0\0".to_vec()), "the tensor count takes 8 bytes at byte 8, 0 are left"),
        (Raw::header(0, 0, 0), "version 0 is not supported"),
        (Raw::header(1, 0, 0), "version 1 is not supported"),
        (Raw::header(1u32.swap_bytes(), 0, 0), "version 1 is not supported"),
        (Raw::header(4, 0, 0), "version 4 is not supported, expected version 2 or 3"),
        (Raw::header(3, max, 0), "tensors declared, expected at most"),
        (Raw::header(3, 1 << 61, 0), "tensors declared, expected at most"),
        (Raw::header(3, 0, max), "keys declared, expected at most"),
        (Raw::header(3, 0, 1 << 62).data(1 << 20), "keys declared, expected at most"),
        (Raw::header(3, (1 << 20) + 1, 0).data(30 << 20), "expected at most 1048576"),
        (Raw::header(3, 2, 0).tensor("t", &[1], 0, 0).data(64), "the name of tensor 1"),
        (one_key().u64(1 << 63).data(64), "key 0 takes 9223372036854775808 bytes"),
        (one_key().u64(max).data(64), "key 0 takes 18446744073709551615 bytes"),
        (one_key().key("", 0).data(32), "key 0 has 0 bytes"),
        (one_key().key(&"k".repeat(65536), 0).data(32), "key 0 has 65536 bytes"),
        (one_key().string(b"\xff\xfe").u32(0).data(32), "key 0 is not UTF-8"),
        (Raw::header(3, 0, 2).key("k", 0).bytes(&[1]).key("k", 0).data(32), "key k occurs twice"),
        (one_key().key("k", 13).data(64), "key k has value type 13"),
        (one_key().key("k", 7).bytes(&[7]).data(32), "key k holds the byte 7 as a bool"),
        (one_key().key("k", 8).u64((1 << 30) + 1).data(32), "the value of key k takes 1073741825 bytes"),
    ]
}

fn arrays() -> Vec<(Raw, &'static str)> {
    let array = |kind: u32, count: u64| one_key().key("k", 9).u32(kind).u64(count);
    vec![
        (array(8, (1 << 60) + 1).data(64), "key k has 1152921504606846977 strings, the file has room for"),
        (array(4, 1 << 32).data(64), "the 4294967296 elements of key k takes 17179869184 bytes"),
        (array(10, 1 << 61).data(64), "key k has 2305843009213693952 elements, more than any file holds"),
        (array(0, u64::MAX).data(64), "the 18446744073709551615 elements of key k"),
        (array(9, 1).u32(0).u64(1).data(32), "key k is an array of arrays"),
        (array(13, 1).data(32), "key k has element type 13"),
        (array(7, 2).bytes(&[1, 2]).data(32), "key k holds the byte 2 as a bool"),
        (array(8, 2).string(b"a").u64(1 << 40).data(32), "string 1 of key k takes 1099511627776 bytes"),
    ]
}

fn tensors() -> Vec<(Raw, &'static str)> {
    let aligned = |alignment: u32| {
        Raw::header(3, 1, 1).key("general.alignment", 4).u32(alignment).tensor("t", &[1], 0, 0).data(4)
    };
    let two = |first: u64, second: u64| {
        Raw::header(3, 2, 0).tensor("a", &[16], 0, first).tensor("b", &[16], 0, second).data(256)
    };
    let named = |name: &str| Raw::header(3, 1, 0).tensor(name, &[1], 0, 0).data(4);
    vec![
        (aligned(0), "key general.alignment = 0, expected a power of two from 8"),
        (aligned(3), "key general.alignment = 3, expected a power of two from 8"),
        (aligned(1 << 31), "key general.alignment = 2147483648, expected a power of two from 8"),
        (one_key().key("general.alignment", 5).u32(32).data(32), "general.alignment is i32, expected u32"),
        (one_key().key("general.alignment", 8).string(b"32").data(32), "general.alignment is string, expected u32"),
        (Raw::header(3, 1, 0).u64(u64::MAX).data(64), "the name of tensor 0 takes 18446744073709551615 bytes"),
        (named(""), "the name of tensor 0 has 0 bytes"),
        (named(&"n".repeat(65)), "the name of tensor 0 has 65 bytes"),
        (Raw::header(3, 2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).data(64), "tensor t occurs twice"),
        (Raw::header(3, 1, 0).string(b"t").u32(u32::MAX).data(64), "tensor t has 4294967295 dimensions"),
        (one_tensor(&[1; 5], 0, 0), "tensor t has 5 dimensions, expected at most 4"),
        (one_tensor(&[0], 0, 0), "tensor t has shape [0], expected no dimension to be 0"),
        (one_tensor(&[4, 0, 2], 0, 0), "expected no dimension to be 0"),
        (one_tensor(&[1 << 32, 1 << 32], 0, 0), "more bytes than any file holds"),
        (one_tensor(&[1, (1 << 42) + 1, 1 << 22], 0, 0), "more bytes than any file holds"),
        (one_tensor(&[u64::MAX], 0, 0), "more bytes than any file holds"),
        (one_tensor(&[(1 << 62) - 1], 24, 0), "tensor t has 4611686018427387903 bytes at offset 0"),
        (one_tensor(&[32], u32::MAX, 0), "tensor t has type 4294967295"),
        (one_tensor(&[32], 4, 0), "tensor t has type 4"),
        (one_tensor(&[33], 8, 0), "tensor t has rows of 33 elements, expected a multiple of 32 for Q8_0"),
        (one_tensor(&[1], 0, 8), "tensor t has offset 8, expected a multiple of 32"),
        (one_tensor(&[1], 0, 1 << 20), "tensor t has 4 bytes at offset 1048576"),
        (one_tensor(&[1], 0, 0u64.wrapping_sub(32)), "tensor t has 4 bytes at offset 18446744073709551584"),
        (one_tensor(&[33], 0, 0), "tensor t has 132 bytes at offset 0 of the data at byte 64, the file has 192 bytes"),
        (two(0, 0), "tensors a and b overlap"),
        (two(32, 64), "tensors a and b overlap"),
        (two(64, 32), "tensors b and a overlap"),
    ]
}

/// What the process has ever reserved, in bytes; `None` where the system does not say.
fn reserved_peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Opens and measures. The memory allowed is far above what other tests take at the same time, and far below what the
/// large claims would.
fn timed(name: &str, open: impl FnOnce() -> Result<GgufFile, GgufError>) -> Result<GgufFile, GgufError> {
    let before = reserved_peak();
    let start = Instant::now();
    let opened = open();
    assert!(start.elapsed() < Duration::from_millis(100), "{name} took {:?}", start.elapsed());
    if let (Some(before), Some(after)) = (before, reserved_peak()) {
        assert!(after - before < 768 << 20, "{name} reserved {} bytes", after - before);
    }
    opened
}

#[test]
fn wrong_files_are_refused_by_name() {
    for (raw, expected) in headers().into_iter().chain(arrays()).chain(tensors()) {
        let error = timed(expected, || raw.open()).expect_err(expected).to_string();
        assert!(error.starts_with("bad.gguf: ") && error.contains(expected), "{error}\nexpected {expected}");
        assert!(!error.contains('\n') && error.len() < 250, "{error}");
    }
}

#[test]
fn unusual_files_are_read() {
    let version_2 = Raw::header(2, 0, 1).key("k", 0).bytes(&[5]).open().unwrap();
    assert_eq!((version_2.version(), version_2.metadata().uint("k").unwrap()), (2, 5));
    let scalar = Raw::header(3, 1, 0).tensor("t", &[], 0, 0).data(4).open().unwrap();
    assert_eq!((scalar.tensors()[0].shape.as_slice(), scalar.tensors()[0].bytes), (&[1][..], 4));
    let gap = Raw::header(3, 2, 0).tensor("b", &[1], 0, 64).tensor("a", &[1], 0, 0).data(68).open().unwrap();
    assert_eq!(gap.tensor("b").unwrap().offset() - gap.tensor("a").unwrap().offset(), 64);
    let aligned = Raw::header(3, 0, 1).key("general.alignment", 4).u32(8).open().unwrap();
    assert_eq!(aligned.alignment(), 8);
    let empty = one_key().key("k", 9).u32(8).u64(0).open().unwrap();
    assert_eq!(empty.metadata().strings_opt("k").unwrap(), Some(&[][..]));
    // Tokens that are not UTF-8 keep their places.
    let tokens = one_key().key("k", 9).u32(8).u64(3).string(b"a").string(b"\xff").string(b"b").open().unwrap();
    assert_eq!(tokens.metadata().strings_opt("k").unwrap().unwrap(), ["a", "\u{fffd}", "b"]);
}

/// A small file that has some of everything.
fn small_file(endian: Endian) -> Vec<u8> {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::String("llama".into()));
    metadata.set("a.u8", Value::U8(3));
    metadata.set("a.flag", Value::Bool(true));
    metadata.set("a.floats", Value::F32s(vec![1.0, -2.0]));
    metadata.set("a.tokens", Value::Strings(vec!["a".into(), "".into(), "ß".into()]));
    metadata.set("general.alignment", Value::U32(16));
    let mut writer = GgufWriter::new(metadata).endian(endian);
    writer.declare("a", Quant::Q4_0, &[32, 2]).unwrap();
    writer.declare("b", Quant::F32, &[3]).unwrap();
    writer.to_bytes(&[&[1; 36], &[2; 12]]).unwrap()
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    for endian in [Endian::Little, Endian::Big] {
        let whole = small_file(endian);
        let file = GgufFile::from_bytes("whole", whole.clone()).unwrap();
        let last = file.tensor("b").unwrap();
        let needed = last.offset() + last.bytes;
        for length in 0..whole.len() {
            let cut = GgufFile::from_bytes("cut", whole[..length].to_vec());
            // Only the padding after the last tensor can be missed.
            assert_eq!(cut.is_ok(), length >= needed, "cut at {length} of {}", whole.len());
        }
    }
}

#[test]
fn flipped_bits_never_panic() {
    let mut state = 0x1234_5678_9ABC_DEF1u64;
    let mut random = move |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % limit
    };
    let wholes = [small_file(Endian::Little), small_file(Endian::Big)];
    let mut opened = 0;
    for round in 0..40_000 {
        let mut bytes = wholes[round % 2].clone();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            bytes[at] ^= 1 << random(8);
        }
        if let Ok(file) = GgufFile::from_bytes("flipped", bytes) {
            opened += 1;
            for tensor in file.tensors() {
                let mut out = vec![0.0; tensor.elements()];
                tensor.quant.dequantize(&file.data(tensor), &mut out).unwrap();
                assert_eq!(tensor.rows() * tensor.columns(), tensor.elements());
            }
        }
    }
    assert!((1..40_000).contains(&opened), "some files survive, some do not: {opened}");
}

#[test]
fn the_bad_files_are_judged_as_their_manifest_says() {
    let shared = std::env::var("KVAS_SHARED").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared").into());
    let folder = Path::new(&shared).join("data/gguf-bad");
    let Ok(manifest) = std::fs::read_to_string(folder.join("MANIFEST.tsv")) else {
        eprintln!("skipped: {} is absent", folder.display());
        return;
    };
    let mut judged = 0;
    for line in manifest.lines().skip(1) {
        let [name, verdict, ..] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("manifest line {line}") };
        let opened = timed(name, || GgufFile::open(&folder.join(format!("{name}.gguf"))));
        // What only the meaning of the metadata makes wrong is for the reader of models to find.
        let verdict = if name.starts_with("sem_") { "either" } else { verdict };
        match (verdict, &opened) {
            ("reject", Err(_)) | ("either", _) | ("accept" | "load-ok,render-safe", Ok(_)) => judged += 1,
            _ => panic!("{name}: expected {verdict}, got {opened:?}"),
        }
    }
    assert!(judged > 60, "{judged} files judged");
}

#[test]
fn only_regular_files_are_opened() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder_error = |folder: &Path| GgufFile::open(folder).unwrap_err().to_string();
    assert!(folder_error(folder).ends_with("is a folder, expected a GGUF file"));
    let checkpoint = tempfile::tempdir().unwrap();
    std::fs::write(checkpoint.path().join("config.json"), b"{}").unwrap();
    assert!(folder_error(checkpoint.path()).ends_with("expected a GGUF file, as kvas convert makes one of it"));
    let missing = GgufFile::open(&folder.join("no-such.gguf")).unwrap_err();
    assert!(matches!(missing, GgufError::Io { .. }) && missing.to_string().contains("no-such.gguf"));
    let empty = folder.join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    assert!(GgufFile::open(&empty).unwrap_err().to_string().contains("0 bytes long"));
    if cfg!(unix) {
        assert!(GgufFile::open(Path::new("/dev/zero")).unwrap_err().to_string().contains("not a regular file"));
    }
}
