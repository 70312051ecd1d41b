//! Reads everything before the tensor data: the fixed header, the metadata and the raw tensor directory.

use crate::{GgufError, Metadata, Value};
use byteorder::{BigEndian, ByteOrder, LittleEndian};
use std::fmt::Display;
use std::marker::PhantomData;

/// The order of the bytes in multi-byte numbers of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endian {
    /// Least significant byte first: what almost every file is.
    Little,
    /// Most significant byte first.
    Big,
}

/// The ids of the metadata value types.
pub(crate) mod kind {
    pub(crate) const U8: u32 = 0;
    pub(crate) const I8: u32 = 1;
    pub(crate) const U16: u32 = 2;
    pub(crate) const I16: u32 = 3;
    pub(crate) const U32: u32 = 4;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const STRING: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
    pub(crate) const U64: u32 = 10;
    pub(crate) const I64: u32 = 11;
    pub(crate) const F64: u32 = 12;
}

/// The first four bytes of every file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
/// Longest key in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 65535;
/// Longest tensor name in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;
/// Most dimensions of a tensor.
pub(crate) const DIMENSIONS_MAX: usize = 4;
/// Most keys and most tensors of a file. Both take several times their file size in memory, so that the size of the
/// file alone is no bound; real files have a few thousand.
pub(crate) const ENTRIES_MAX: u64 = 1 << 20;
/// Key length, one byte of key, value type, one byte of value.
const KEY_VALUE_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Name length, one byte of name, dimension count, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 4 + 8;

/// One entry of the tensor directory as it stands in the file; nothing about it has been checked but its length.
#[derive(Debug)]
pub(crate) struct RawTensor {
    pub(crate) name: String,
    /// Elements of each dimension; an entry without dimensions (a scalar) reads as `[1]`.
    pub(crate) shape: Vec<u64>,
    pub(crate) quant_id: u32,
    /// Bytes from the start of the tensor data.
    pub(crate) offset: u64,
}

/// What stands before the tensor data.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) endian: Endian,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<RawTensor>,
    /// Bytes of the header, without the padding that follows it.
    pub(crate) bytes: usize,
}

/// Reads the header of `bytes`; `path` is only for messages.
pub(crate) fn read(path: &str, bytes: &[u8]) -> Result<Header, GgufError> {
    let fail = |what: String| GgufError::Format { path: path.into(), what };
    let Some((start, _)) = bytes.split_at_checked(8) else {
        return Err(fail(format!("{} bytes long, expected a GGUF file of at least 24 bytes", bytes.len())));
    };
    let (magic, version) = start.split_at(4);
    if magic != MAGIC {
        return Err(fail(format!("starts with \"{}\", expected \"GGUF\"", magic.escape_ascii())));
    }
    match (LittleEndian::read_u32(version), BigEndian::read_u32(version)) {
        (1, _) | (_, 1) => Err(fail("GGUF version 1 is not supported, expected version 2 or 3".into())),
        (version @ 2..=3, _) => Cursor::<LittleEndian>::new(path, bytes).header(version, Endian::Little),
        (_, version @ 2..=3) => Cursor::<BigEndian>::new(path, bytes).header(version, Endian::Big),
        (version, _) => Err(fail(format!("GGUF version {version} is not supported, expected version 2 or 3"))),
    }
}

struct Cursor<'a, E> {
    path: &'a str,
    bytes: &'a [u8],
    at: usize,
    order: PhantomData<E>,
}

impl<'a, E: ByteOrder> Cursor<'a, E> {
    fn new(path: &'a str, bytes: &'a [u8]) -> Self {
        Cursor { path, bytes, at: 8, order: PhantomData }
    }

    fn header(mut self, version: u32, endian: Endian) -> Result<Header, GgufError> {
        let tensors = self.u64(&"the tensor count")?;
        let keys = self.u64(&"the key count")?;
        self.check_count("tensors", tensors, TENSOR_BYTES_MIN)?;
        self.check_count("keys", keys, KEY_VALUE_BYTES_MIN)?;
        let mut metadata = Metadata::default();
        for index in 0..keys {
            let (key, value) = self.key_value(index)?;
            if metadata.get(&key).is_some() {
                return Err(self.fail(format!("key {key} occurs twice")));
            }
            metadata.set(key, value);
        }
        // Keys may have used up the bytes that the first check granted to tensors.
        self.check_count("tensors", tensors, TENSOR_BYTES_MIN)?;
        let tensors = (0..tensors).map(|index| self.tensor(index)).collect::<Result<_, _>>()?;
        Ok(Header { version, endian, metadata, tensors, bytes: self.at })
    }

    /// Refuses a count that the rest of the file cannot hold, before anything of that size is allocated.
    fn check_count(&self, noun: &str, count: u64, bytes_each: u64) -> Result<(), GgufError> {
        let rest = (self.bytes.len() - self.at) as u64;
        let most = (rest / bytes_each).min(ENTRIES_MAX);
        if count <= most {
            return Ok(());
        }
        Err(self.fail(format!("{count} {noun} declared, expected at most {most} in the {rest} bytes that follow")))
    }

    fn key_value(&mut self, index: u64) -> Result<(String, Value), GgufError> {
        let raw = self.string(&format_args!("key {index}"))?;
        let key = match std::str::from_utf8(raw) {
            Ok(key) if !key.is_empty() && key.len() <= KEY_BYTES_MAX => key.to_string(),
            Ok(key) => {
                return Err(self.fail(format!("key {index} has {} bytes, expected 1 to {KEY_BYTES_MAX}", key.len())));
            }
            Err(_) => return Err(self.fail(format!("key {index} is not UTF-8"))),
        };
        let kind = self.u32(&format_args!("the type of key {key}"))?;
        let value = self.value(&key, kind)?;
        Ok((key, value))
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<Value, GgufError> {
        if kind == kind::STRING {
            return Ok(Value::String(self.text(&format_args!("the value of key {key}"))?));
        }
        if kind == kind::ARRAY {
            return self.array(key);
        }
        let Some(size) = scalar_bytes(kind) else {
            return Err(self.fail(format!("key {key} has value type {kind}, expected 0 to 12")));
        };
        let raw = self.take(size as u64, &format_args!("the value of key {key}"))?;
        Ok(match kind {
            kind::U8 => Value::U8(raw[0]),
            kind::I8 => Value::I8(raw[0] as i8),
            kind::U16 => Value::U16(E::read_u16(raw)),
            kind::I16 => Value::I16(E::read_i16(raw)),
            kind::U32 => Value::U32(E::read_u32(raw)),
            kind::I32 => Value::I32(E::read_i32(raw)),
            kind::U64 => Value::U64(E::read_u64(raw)),
            kind::I64 => Value::I64(E::read_i64(raw)),
            kind::F32 => Value::F32(E::read_f32(raw)),
            kind::F64 => Value::F64(E::read_f64(raw)),
            _ => Value::Bool(self.boolean(key, raw[0])?),
        })
    }

    fn array(&mut self, key: &str) -> Result<Value, GgufError> {
        let kind = self.u32(&format_args!("the element type of key {key}"))?;
        let count = self.u64(&format_args!("the length of key {key}"))?;
        if kind == kind::STRING {
            return self.strings(key, count);
        }
        if kind == kind::ARRAY {
            return Err(self.fail(format!("key {key} is an array of arrays, expected an array of scalars or strings")));
        }
        let Some(size) = scalar_bytes(kind) else {
            return Err(self.fail(format!("key {key} has element type {kind}, expected 0 to 8 or 10 to 12")));
        };
        let Some(bytes) = count.checked_mul(size as u64) else {
            return Err(self.fail(format!("key {key} has {count} elements, more than any file holds")));
        };
        let raw = self.take(bytes, &format_args!("the {count} elements of key {key}"))?;
        Ok(match kind {
            kind::U8 => Value::U8s(raw.to_vec()),
            kind::I8 => Value::I8s(raw.iter().map(|&byte| byte as i8).collect()),
            kind::U16 => Value::U16s(numbers(raw, E::read_u16_into)),
            kind::I16 => Value::I16s(numbers(raw, E::read_i16_into)),
            kind::U32 => Value::U32s(numbers(raw, E::read_u32_into)),
            kind::I32 => Value::I32s(numbers(raw, E::read_i32_into)),
            kind::U64 => Value::U64s(numbers(raw, E::read_u64_into)),
            kind::I64 => Value::I64s(numbers(raw, E::read_i64_into)),
            kind::F32 => Value::F32s(numbers(raw, E::read_f32_into)),
            kind::F64 => Value::F64s(numbers(raw, E::read_f64_into)),
            _ => Value::Bools(raw.iter().map(|&byte| self.boolean(key, byte)).collect::<Result<_, _>>()?),
        })
    }

    fn strings(&mut self, key: &str, count: u64) -> Result<Value, GgufError> {
        // Every string has at least its length in the file.
        let most = ((self.bytes.len() - self.at) / 8) as u64;
        if count > most {
            return Err(self.fail(format!("key {key} has {count} strings, the file has room for {most}")));
        }
        let texts = (0..count).map(|index| self.text(&format_args!("string {index} of key {key}")));
        Ok(Value::Strings(texts.collect::<Result<_, _>>()?))
    }

    fn boolean(&self, key: &str, byte: u8) -> Result<bool, GgufError> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.fail(format!("key {key} holds the byte {byte} as a bool, expected 0 or 1"))),
        }
    }

    fn tensor(&mut self, index: u64) -> Result<RawTensor, GgufError> {
        let raw = self.string(&format_args!("the name of tensor {index}"))?;
        let name = match std::str::from_utf8(raw) {
            Ok(name) if !name.is_empty() && name.len() <= NAME_BYTES_MAX => name.to_string(),
            Ok(name) => {
                let bytes = name.len();
                return Err(
                    self.fail(format!("the name of tensor {index} has {bytes} bytes, expected 1 to {NAME_BYTES_MAX}"))
                );
            }
            Err(_) => return Err(self.fail(format!("the name of tensor {index} is not UTF-8"))),
        };
        let dimensions = self.u32(&format_args!("the dimension count of tensor {name}"))?;
        if dimensions as usize > DIMENSIONS_MAX {
            return Err(
                self.fail(format!("tensor {name} has {dimensions} dimensions, expected at most {DIMENSIONS_MAX}"))
            );
        }
        let what = format_args!("the directory entry of tensor {name}");
        let raw = self.take(u64::from(dimensions) * 8, &what)?;
        let shape = if dimensions == 0 { vec![1] } else { numbers(raw, E::read_u64_into) };
        let quant_id = self.u32(&what)?;
        let offset = self.u64(&what)?;
        Ok(RawTensor { name, shape, quant_id, offset })
    }

    fn u32(&mut self, what: &dyn Display) -> Result<u32, GgufError> {
        self.take(4, what).map(E::read_u32)
    }

    fn u64(&mut self, what: &dyn Display) -> Result<u64, GgufError> {
        self.take(8, what).map(E::read_u64)
    }

    /// A string value. Vocabularies of real models hold tokens that are not UTF-8 on their own; the bytes at fault
    /// become U+FFFD, so that the string, and its place in an array, stays.
    fn text(&mut self, what: &dyn Display) -> Result<String, GgufError> {
        self.string(what).map(|raw| String::from_utf8_lossy(raw).into_owned())
    }

    fn string(&mut self, what: &dyn Display) -> Result<&'a [u8], GgufError> {
        let length = self.u64(what)?;
        self.take(length, what)
    }

    fn take(&mut self, count: u64, what: &dyn Display) -> Result<&'a [u8], GgufError> {
        let rest = &self.bytes[self.at..];
        let part = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let Some(part) = part else {
            return Err(self.fail(format!("{what} takes {count} bytes at byte {}, {} are left", self.at, rest.len())));
        };
        self.at += part.len();
        Ok(part)
    }

    fn fail(&self, what: String) -> GgufError {
        GgufError::Format { path: self.path.into(), what }
    }
}

/// Bytes of a scalar of a value type; `None` for strings, arrays and unknown types.
fn scalar_bytes(kind: u32) -> Option<usize> {
    match kind {
        kind::U8 | kind::I8 | kind::BOOL => Some(1),
        kind::U16 | kind::I16 => Some(2),
        kind::U32 | kind::I32 | kind::F32 => Some(4),
        kind::U64 | kind::I64 | kind::F64 => Some(8),
        _ => None,
    }
}

fn numbers<T: Default + Clone>(raw: &[u8], read: fn(&[u8], &mut [T])) -> Vec<T> {
    let mut numbers = vec![T::default(); raw.len() / size_of::<T>()];
    read(raw, &mut numbers);
    numbers
}

/// Alignment of tensor data where the metadata does not say, in bytes.
const ALIGNMENT_DEFAULT: usize = 32;
/// Largest alignment accepted, in bytes: beyond any page size, yet harmless as padding.
const ALIGNMENT_MAX: usize = 1 << 24;

/// `general.alignment` in bytes: a power of two.
pub(crate) fn alignment(metadata: &Metadata) -> Result<usize, GgufError> {
    let key = "general.alignment";
    match metadata.get(key) {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(&Value::U32(value)) => {
            let bytes = value as usize;
            if bytes.is_power_of_two() && (8..=ALIGNMENT_MAX).contains(&bytes) {
                return Ok(bytes);
            }
            let expected = format!("a power of two from 8 to {ALIGNMENT_MAX}");
            Err(GgufError::BadValue { key: key.into(), found: value.to_string(), expected })
        }
        Some(value) => {
            Err(GgufError::WrongType { key: key.into(), found: value.type_name().into(), expected: "u32".into() })
        }
    }
}
