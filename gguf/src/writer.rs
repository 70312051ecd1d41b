//! Writes GGUF files: the exact inverse of the reader. Streams tensor data, and never leaves half a file behind.

use crate::header::{self, Endian, KEY_BYTES_MAX, MAGIC, kind};
use crate::output::{OutputFile, io_error};
use crate::tensors::{check_name, tensor_bytes};
use crate::{GgufError, Metadata, Quant, Value};
use byteorder::{BigEndian, ByteOrder, LittleEndian};
use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The version of the container format that is written.
const VERSION: u32 = 3;

/// A GGUF file to be written: first its metadata and the declaration of every tensor, then, through
/// [`GgufWriter::create`], the data of the tensors in the order they were declared.
#[derive(Debug, Clone)]
pub struct GgufWriter {
    metadata: Metadata,
    endian: Endian,
    tensors: Vec<Declared>,
    index: HashMap<String, usize>,
}

#[derive(Debug, Clone)]
struct Declared {
    name: String,
    quant: Quant,
    shape: Vec<u64>,
    bytes: usize,
}

impl GgufWriter {
    /// A little-endian file with this metadata and no tensors. `general.alignment` (u32, a power of two) sets the
    /// alignment of the tensor data, 32 bytes where it is absent.
    pub fn new(metadata: Metadata) -> GgufWriter {
        GgufWriter { metadata, endian: Endian::Little, tensors: Vec::new(), index: HashMap::new() }
    }

    /// Sets the byte order of the file. Tensor data is handed over little-endian all the same.
    #[must_use]
    pub fn endian(mut self, endian: Endian) -> GgufWriter {
        self.endian = endian;
        self
    }

    /// Adds a tensor to the directory. `shape` counts elements, 1 to 4 dimensions, the contiguous one first.
    ///
    /// # Errors
    /// `Tensor` if the name is taken, empty or longer than 64 bytes, if a dimension is 0, or if a row is not a whole
    /// number of blocks.
    pub fn declare(&mut self, name: &str, quant: Quant, shape: &[u64]) -> Result<(), GgufError> {
        let fail = |what: String| GgufError::Tensor { name: name.into(), what };
        check_name(name).map_err(fail)?;
        let bytes = tensor_bytes(quant, shape).map_err(fail)?;
        if self.index.insert(name.into(), self.tensors.len()).is_some() {
            return Err(fail("is declared twice".into()));
        }
        self.tensors.push(Declared { name: name.into(), quant, shape: shape.to_vec(), bytes });
        Ok(())
    }

    /// Writes the header to a temporary file beside `path`; the data follows through the [`OpenWriter`].
    ///
    /// # Errors
    /// `BadValue` or `WrongType` for an alignment or a key that cannot be written, `Tensor` if the sizes overflow,
    /// `Io` if `path` is neither new nor a regular file, or the temporary file cannot be created or written.
    pub fn create(self, path: &Path) -> Result<OpenWriter, GgufError> {
        let header = self.header()?;
        let mut writer = OpenWriter {
            target: path.to_path_buf(),
            file: BufWriter::with_capacity(1 << 20, OutputFile::create(path)?),
            state: State::new(self)?,
            failed: false,
        };
        writer.raw(&header)?;
        Ok(writer)
    }

    /// The whole file in memory; `tensors` are the little-endian bytes of the declared tensors, in order.
    ///
    /// # Errors
    /// As [`GgufWriter::create`], and `Tensor` if bytes are missing or too many.
    pub fn to_bytes(&self, tensors: &[&[u8]]) -> Result<Vec<u8>, GgufError> {
        let mut file = self.header()?;
        let mut state = State::new(self.clone())?;
        if let Some(extra) = tensors.get(self.tensors.len()) {
            let what = format!("{} bytes given for a tensor that was not declared", extra.len());
            return Err(GgufError::Tensor { name: String::new(), what });
        }
        for (declared, part) in self.tensors.iter().zip(tensors) {
            state.check_whole(&declared.name, part)?;
            state.part(&declared.name, part, &mut |bytes| {
                file.extend_from_slice(bytes);
                Ok(())
            })?;
        }
        state.check_complete()?;
        Ok(file)
    }

    fn header(&self) -> Result<Vec<u8>, GgufError> {
        match self.endian {
            Endian::Little => self.encode::<LittleEndian>(),
            Endian::Big => self.encode::<BigEndian>(),
        }
    }

    fn encode<E: ByteOrder>(&self) -> Result<Vec<u8>, GgufError> {
        let alignment = header::alignment(&self.metadata)?;
        let mut out = MAGIC.to_vec();
        put_u32::<E>(&mut out, VERSION);
        put_u64::<E>(&mut out, self.tensors.len());
        put_u64::<E>(&mut out, self.metadata.len());
        for (key, value) in self.metadata.iter() {
            if key.is_empty() || key.len() > KEY_BYTES_MAX {
                let (found, expected) = (format!("a key of {} bytes", key.len()), format!("1 to {KEY_BYTES_MAX}"));
                return Err(GgufError::BadValue { key: key.into(), found, expected });
            }
            put_string::<E>(&mut out, key);
            put_value::<E>(&mut out, value);
        }
        let mut offset = 0usize;
        for tensor in &self.tensors {
            put_string::<E>(&mut out, &tensor.name);
            put_u32::<E>(&mut out, tensor.shape.len() as u32);
            for &dimension in &tensor.shape {
                put::<8>(&mut out, |raw| E::write_u64(raw, dimension));
            }
            put_u32::<E>(&mut out, tensor.quant.id());
            put_u64::<E>(&mut out, offset);
            let end = offset.checked_add(tensor.bytes).and_then(|end| end.checked_next_multiple_of(alignment));
            offset = end.filter(|&end| isize::try_from(end).is_ok()).ok_or_else(|| GgufError::Tensor {
                name: tensor.name.clone(),
                what: "ends beyond what any file holds".into(),
            })?;
        }
        out.resize(out.len().next_multiple_of(alignment), 0);
        Ok(out)
    }
}

/// A file being written. Dropping it before [`OpenWriter::finish`] removes what was written so far.
#[derive(Debug)]
pub struct OpenWriter {
    target: PathBuf,
    file: BufWriter<OutputFile>,
    state: State,
    /// A write failed, and nobody knows how much of it arrived.
    failed: bool,
}

impl OpenWriter {
    /// Writes a whole tensor; `bytes` are its blocks, little-endian.
    ///
    /// # Errors
    /// `Tensor` if it is not this tensor's turn or the size is wrong, `Io` if the write fails.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), GgufError> {
        self.state.check_whole(name, bytes)?;
        self.write_part(name, bytes)
    }

    /// Writes the next bytes of a tensor; the next tensor's turn comes when all its bytes are there.
    ///
    /// # Errors
    /// As [`OpenWriter::write`].
    pub fn write_part(&mut self, name: &str, part: &[u8]) -> Result<(), GgufError> {
        self.check_sound()?;
        let OpenWriter { target, file, state, failed, .. } = self;
        state.part(name, part, &mut |bytes| {
            file.write_all(bytes).map_err(|source| {
                *failed = true;
                io_error(target, source)
            })
        })
    }

    /// Waits until all data is on the disk, so that only the name is left to [`OpenWriter::finish`]. For several files
    /// that must appear together.
    ///
    /// # Errors
    /// `Tensor` if a declared tensor is not complete, `Io` if the system refuses.
    pub fn sync(&mut self) -> Result<(), GgufError> {
        self.check_sound()?;
        self.state.check_complete()?;
        self.file.flush().map_err(|source| io_error(&self.target, source))?;
        self.file.get_mut().sync()
    }

    /// Waits until all data is on the disk and gives the file its final name, replacing a file of that name.
    ///
    /// # Errors
    /// As [`OpenWriter::sync`].
    pub fn finish(mut self) -> Result<(), GgufError> {
        self.sync()?;
        // Whoever wrote no more than was synced has nothing in the buffer.
        let (file, _) = self.file.into_parts();
        file.finish()
    }

    fn check_sound(&self) -> Result<(), GgufError> {
        if self.failed {
            return Err(io_error(&self.target, std::io::Error::other("an earlier write failed, expected a new file")));
        }
        Ok(())
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        self.file.write_all(bytes).map_err(|source| io_error(&self.target, source))
    }
}

/// How far the tensor data has come. Knows the byte order, not where the bytes go.
#[derive(Debug)]
struct State {
    tensors: Vec<Declared>,
    index: HashMap<String, usize>,
    endian: Endian,
    alignment: usize,
    /// Index of the tensor whose turn it is.
    current: usize,
    /// Bytes of it that have been handed over.
    done: usize,
    /// The start of a block whose end has not come yet; only used when blocks are turned to big-endian.
    block: Vec<u8>,
}

type Emit<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), GgufError>;

impl State {
    fn new(writer: GgufWriter) -> Result<State, GgufError> {
        let alignment = header::alignment(&writer.metadata)?;
        let GgufWriter { tensors, index, endian, .. } = writer;
        Ok(State { tensors, index, endian, alignment, current: 0, done: 0, block: Vec::new() })
    }

    /// The tensor of a name, if it is its turn.
    fn turn(&self, name: &str) -> Result<&Declared, GgufError> {
        let fail = |what: String| Err(GgufError::Tensor { name: name.into(), what });
        match self.tensors.get(self.current) {
            Some(tensor) if tensor.name == name => Ok(tensor),
            _ if !self.index.contains_key(name) => fail("was not declared".into()),
            Some(tensor) => fail(format!("written out of order, expected {}", tensor.name)),
            None => fail("written after the last declared tensor was complete".into()),
        }
    }

    fn check_whole(&self, name: &str, bytes: &[u8]) -> Result<(), GgufError> {
        let expected = self.turn(name)?.bytes - self.done;
        if bytes.len() == expected {
            return Ok(());
        }
        let what = format!("{} bytes given, expected {expected}", bytes.len());
        Err(GgufError::Tensor { name: name.into(), what })
    }

    fn part(&mut self, name: &str, part: &[u8], emit: Emit<'_>) -> Result<(), GgufError> {
        let tensor = self.turn(name)?;
        let (quant, bytes) = (tensor.quant, tensor.bytes);
        if part.len() > bytes - self.done {
            let what = format!("{} bytes given, expected at most {}", part.len(), bytes - self.done);
            return Err(GgufError::Tensor { name: name.into(), what });
        }
        match self.endian {
            Endian::Little => emit(part)?,
            Endian::Big => self.emit_swapped(quant, part, emit)?,
        }
        self.done += part.len();
        if self.done == bytes {
            self.current += 1;
            self.done = 0;
            emit(&vec![0; bytes.next_multiple_of(self.alignment) - bytes])?;
        }
        Ok(())
    }

    /// Turns whole blocks and keeps the rest for the next part. Works in pieces, so that no tensor is copied whole.
    fn emit_swapped(&mut self, quant: Quant, mut part: &[u8], emit: Emit<'_>) -> Result<(), GgufError> {
        let piece_bytes = quant.block_bytes() * 4096;
        while !part.is_empty() {
            let (now, rest) = part.split_at(part.len().min(piece_bytes - self.block.len()));
            self.block.extend_from_slice(now);
            part = rest;
            let whole = self.block.len() - self.block.len() % quant.block_bytes();
            quant.swap_bytes(&mut self.block[..whole]);
            emit(&self.block[..whole])?;
            self.block.drain(..whole);
        }
        Ok(())
    }

    fn check_complete(&self) -> Result<(), GgufError> {
        match self.tensors.get(self.current) {
            None => Ok(()),
            Some(tensor) => {
                let what = format!("has {} of {} bytes, expected all of them", self.done, tensor.bytes);
                Err(GgufError::Tensor { name: tensor.name.clone(), what })
            }
        }
    }
}

fn put<const BYTES: usize>(out: &mut Vec<u8>, write: impl FnOnce(&mut [u8])) {
    let mut raw = [0; BYTES];
    write(&mut raw);
    out.extend_from_slice(&raw);
}

fn put_u32<E: ByteOrder>(out: &mut Vec<u8>, value: u32) {
    put::<4>(out, |raw| E::write_u32(raw, value));
}

fn put_u64<E: ByteOrder>(out: &mut Vec<u8>, value: usize) {
    put::<8>(out, |raw| E::write_u64(raw, value as u64));
}

fn put_string<E: ByteOrder>(out: &mut Vec<u8>, text: &str) {
    put_u64::<E>(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// A type id and one number.
fn put_scalar<E: ByteOrder, const BYTES: usize>(out: &mut Vec<u8>, kind: u32, write: impl FnOnce(&mut [u8])) {
    put_u32::<E>(out, kind);
    put::<BYTES>(out, write);
}

/// An array header and its numbers.
fn put_array<E: ByteOrder, T>(out: &mut Vec<u8>, kind: u32, values: &[T], write: fn(&[T], &mut [u8])) {
    put_u32::<E>(out, kind::ARRAY);
    put_u32::<E>(out, kind);
    put_u64::<E>(out, values.len());
    let start = out.len();
    out.resize(start + size_of_val(values), 0);
    write(values, &mut out[start..]);
}

fn put_value<E: ByteOrder>(out: &mut Vec<u8>, value: &Value) {
    let bytes = |values: &[u8], raw: &mut [u8]| raw.copy_from_slice(values);
    match value {
        Value::U8(v) => put_scalar::<E, 1>(out, kind::U8, |raw| raw[0] = *v),
        Value::I8(v) => put_scalar::<E, 1>(out, kind::I8, |raw| raw[0] = *v as u8),
        Value::U16(v) => put_scalar::<E, 2>(out, kind::U16, |raw| E::write_u16(raw, *v)),
        Value::I16(v) => put_scalar::<E, 2>(out, kind::I16, |raw| E::write_i16(raw, *v)),
        Value::U32(v) => put_scalar::<E, 4>(out, kind::U32, |raw| E::write_u32(raw, *v)),
        Value::I32(v) => put_scalar::<E, 4>(out, kind::I32, |raw| E::write_i32(raw, *v)),
        Value::U64(v) => put_scalar::<E, 8>(out, kind::U64, |raw| E::write_u64(raw, *v)),
        Value::I64(v) => put_scalar::<E, 8>(out, kind::I64, |raw| E::write_i64(raw, *v)),
        Value::F32(v) => put_scalar::<E, 4>(out, kind::F32, |raw| E::write_f32(raw, *v)),
        Value::F64(v) => put_scalar::<E, 8>(out, kind::F64, |raw| E::write_f64(raw, *v)),
        Value::Bool(v) => put_scalar::<E, 1>(out, kind::BOOL, |raw| raw[0] = u8::from(*v)),
        Value::String(v) => {
            put_u32::<E>(out, kind::STRING);
            put_string::<E>(out, v);
        }
        Value::U8s(v) => put_array::<E, _>(out, kind::U8, v, bytes),
        Value::I8s(v) => put_array::<E, _>(out, kind::I8, bytemuck::cast_slice(v), bytes),
        Value::U16s(v) => put_array::<E, _>(out, kind::U16, v, E::write_u16_into),
        Value::I16s(v) => put_array::<E, _>(out, kind::I16, v, E::write_i16_into),
        Value::U32s(v) => put_array::<E, _>(out, kind::U32, v, E::write_u32_into),
        Value::I32s(v) => put_array::<E, _>(out, kind::I32, v, E::write_i32_into),
        Value::U64s(v) => put_array::<E, _>(out, kind::U64, v, E::write_u64_into),
        Value::I64s(v) => put_array::<E, _>(out, kind::I64, v, E::write_i64_into),
        Value::F32s(v) => put_array::<E, _>(out, kind::F32, v, E::write_f32_into),
        Value::F64s(v) => put_array::<E, _>(out, kind::F64, v, E::write_f64_into),
        Value::Bools(v) => put_array::<E, _>(out, kind::BOOL, bytemuck::cast_slice(v), bytes),
        Value::Strings(v) => {
            put_u32::<E>(out, kind::ARRAY);
            put_u32::<E>(out, kind::STRING);
            put_u64::<E>(out, v.len());
            v.iter().for_each(|text| put_string::<E>(out, text));
        }
    }
}
