//! The GGUF container: metadata, tensor directory, block formats, reader and writer.
//!
//! Knows no model and no device. Every number that comes from a file is checked before it is used, and every
//! error names the file, key or tensor at fault and what was expected.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod error;
mod factors;
mod header;
mod mapping;
pub mod metadata;
mod output;
pub mod quant;
mod shards;
mod tensors;
pub mod writer;

pub use error::GgufError;
pub use header::Endian;
pub use mapping::TensorBytes;
pub use metadata::{Metadata, Value};
pub use output::{OutputFile, abandon_outputs, check_output, file_id, is_same_file, output_target, remove_abandoned};
pub use quant::Quant;
pub use tensors::TensorInfo;
pub use writer::{GgufWriter, OpenWriter};

use mapping::Mapping;
use shards::Shard;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open GGUF file: its metadata, its tensor directory and its bytes. A split file is one `GgufFile`.
pub struct GgufFile {
    path: PathBuf,
    shards: Vec<Arc<Mapping>>,
    version: u32,
    endian: Endian,
    alignment: usize,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

/// Where the tensor of each name is.
fn index(tensors: &[TensorInfo]) -> HashMap<String, usize> {
    tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect()
}

impl GgufFile {
    /// Maps a file and checks its whole header. If the file is one shard of a split model, all shards are opened, and
    /// the metadata is the first shard's.
    ///
    /// The file must not be shortened or rewritten in place while it is open. Strings that are not UTF-8, as tokens of
    /// real vocabularies are, keep their places with U+FFFD for the bytes at fault.
    ///
    /// # Errors
    /// `Io` if a file cannot be opened or mapped; `Format`, `WrongType` or `BadValue` if it is not well-formed, or if
    /// shards are missing or do not belong together.
    pub fn open(path: &Path) -> Result<GgufFile, GgufError> {
        GgufFile::from_shards(path, shards::open_all(path)?)
    }

    /// Reads a file that is in memory, or a part of the program; `name` stands for the path in messages. The file must
    /// not be split. Tensors are as well aligned as the bytes are.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn from_bytes(name: &str, bytes: impl Into<Cow<'static, [u8]>>) -> Result<GgufFile, GgufError> {
        let shard = Shard::read(name, Mapping::InMemory(bytes.into()), 0)?;
        if let Some(split) = shard.split(name)?.filter(|split| split.count > 1) {
            let what = format!("is shard {} of {}, expected a file that is not split", split.number + 1, split.count);
            return Err(GgufError::Format { path: name.into(), what });
        }
        GgufFile::from_shards(Path::new(name), vec![shard])
    }

    fn from_shards(path: &Path, shards: Vec<Shard>) -> Result<GgufFile, GgufError> {
        let mut shards = shards.into_iter();
        let first = shards.next().expect("opening gives at least one shard");
        let mut mappings = vec![Arc::new(first.mapping)];
        let mut tensors = first.tensors;
        for shard in shards {
            mappings.push(Arc::new(shard.mapping));
            tensors.extend(shard.tensors);
        }
        tensors::check_unique(&path.display().to_string(), &tensors)?;
        let index = index(&tensors);
        Ok(GgufFile {
            path: path.to_path_buf(),
            shards: mappings,
            version: first.version,
            endian: first.endian,
            alignment: first.alignment,
            metadata: first.metadata,
            tensors,
            index,
        })
    }

    /// The same file with other names for some tensors: those that `name` gives in the place of their own.
    ///
    /// # Errors
    /// `Format` if two tensors have one name then.
    pub fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> Result<GgufFile, GgufError> {
        for tensor in &mut self.tensors {
            if let Some(name) = name(&tensor.name) {
                tensor.name = name;
            }
        }
        tensors::check_unique(&self.path.display().to_string(), &self.tensors)?;
        self.index = index(&self.tensors);
        Ok(self)
    }

    /// The metadata, in file order.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors of all shards, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The bytes of a tensor of this file, little-endian whatever the file is: a view of the mapping for a
    /// little-endian file, a byte-swapped copy for a big-endian one.
    ///
    /// # Panics
    /// If `tensor` is from another file and lies outside of this one.
    pub fn data(&self, tensor: &TensorInfo) -> TensorBytes {
        let view = TensorBytes::new(self.shards[tensor.shard].clone(), tensor.offset..tensor.offset + tensor.bytes);
        match self.endian {
            Endian::Little => view,
            Endian::Big => {
                let mut bytes = view.to_vec();
                tensor.quant.swap_bytes(&mut bytes);
                bytes.into()
            }
        }
    }

    /// The path or name the file was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses to have a file written over one of those that this one is read from.
    ///
    /// # Errors
    /// `Format` if `out` is one of them.
    pub fn check_apart(&self, out: &Path) -> Result<(), GgufError> {
        if self.shards.iter().filter_map(|shard| shard.path()).any(|path| is_same_file(path, out)) {
            let what = "is a file that is read for it, expected another one".into();
            return Err(GgufError::Format { path: out.display().to_string(), what });
        }
        Ok(())
    }

    /// The version of the container format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The byte order of the file.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Bytes of all shards together.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.len() as u64).sum()
    }

    /// How many files the model is split into; 1 if it is not.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Alignment of the tensor data in bytes.
    pub fn alignment(&self) -> usize {
        self.alignment
    }
}

impl std::fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GgufFile")
            .field("path", &self.path)
            .field("version", &self.version)
            .field("endian", &self.endian)
            .field("keys", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}
