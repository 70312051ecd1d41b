//! Opens one file, or every shard of a split one, and checks that the shards belong together.

use crate::header::{self, Endian};
use crate::mapping::Mapping;
use crate::tensors::{Placement, TensorInfo};
use crate::{GgufError, Metadata};
use std::path::Path;

/// One file with its header read and its tensor directory checked.
pub(crate) struct Shard {
    pub(crate) mapping: Mapping,
    pub(crate) version: u32,
    pub(crate) endian: Endian,
    pub(crate) alignment: usize,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

/// What `split.*` says about one shard.
pub(crate) struct Split {
    /// Index of the shard, from 0.
    pub(crate) number: u64,
    /// Shards of the model.
    pub(crate) count: u64,
    /// Tensors of all shards together, if the file says.
    tensors: Option<u64>,
}

impl Shard {
    /// Reads one file; `index` is its place among the shards.
    pub(crate) fn read(path: &str, mapping: Mapping, index: usize) -> Result<Shard, GgufError> {
        let header = header::read(path, &mapping)?;
        let alignment = header::alignment(&header.metadata).map_err(|error| in_file(path, &error))?;
        let placement = Placement {
            path,
            shard: index,
            data_start: header.bytes.next_multiple_of(alignment),
            file_bytes: mapping.len(),
            alignment,
        };
        let tensors = placement.check(header.tensors)?;
        let (version, endian, metadata) = (header.version, header.endian, header.metadata);
        Ok(Shard { mapping, version, endian, alignment, metadata, tensors })
    }

    fn renumbered(mut self, index: usize) -> Shard {
        for tensor in &mut self.tensors {
            tensor.shard = index;
        }
        self
    }

    /// What the file says about being split; `None` if it says nothing.
    pub(crate) fn split(&self, path: &str) -> Result<Option<Split>, GgufError> {
        let uint = |key| self.metadata.uint_opt(key).map_err(|error| in_file(path, &error));
        let Some(count) = uint("split.count")? else { return Ok(None) };
        let number = uint("split.no")?.unwrap_or(0);
        // A file that is no longer split may keep a count of 0 or 1.
        if count > 1 && number >= count {
            let what = format!("key split.no = {number}, expected less than split.count = {count}");
            return Err(GgufError::Format { path: path.into(), what });
        }
        Ok(Some(Split { number, count, tensors: uint("split.tensors.count")? }))
    }
}

/// Puts the file into an error that only names a key.
fn in_file(path: &str, error: &GgufError) -> GgufError {
    GgufError::Format { path: path.into(), what: error.to_string() }
}

/// Opens `path` and, if it is one shard of several, all the others. In order of the shards, never empty.
pub(crate) fn open_all(path: &Path) -> Result<Vec<Shard>, GgufError> {
    let name = path.display().to_string();
    let opened = Shard::read(&name, Mapping::open(path)?, 0)?;
    let Some(split) = opened.split(&name)?.filter(|split| split.count > 1) else { return Ok(vec![opened]) };
    let (number, count) = (split.number, split.count);
    let suffix = shard_suffix(number, count);
    let file_name = path.file_name().and_then(|file_name| file_name.to_str());
    let Some(stem) = file_name.and_then(|file_name| file_name.strip_suffix(&suffix)) else {
        let what = format!("is shard {} of {count}, expected a file name that ends in {suffix}", number + 1);
        return Err(GgufError::Format { path: name, what });
    };
    let mut opened = Some(opened);
    let mut shards: Vec<Shard> = Vec::new();
    for index in 0..count {
        let sibling = path.with_file_name(format!("{stem}{}", shard_suffix(index, count)));
        let sibling_name = sibling.display().to_string();
        let shard = match opened.take_if(|_| index == number) {
            Some(shard) => shard.renumbered(index as usize),
            None if sibling.exists() => Shard::read(&sibling_name, Mapping::open(&sibling)?, index as usize)?,
            None => {
                let what = format!("not found, expected shard {} of {count} of the split file {name}", index + 1);
                return Err(GgufError::Format { path: sibling_name, what });
            }
        };
        check_member(&sibling_name, &shard, (index, count), shards.first())?;
        shards.push(shard);
    }
    let tensors: usize = shards.iter().map(|shard| shard.tensors.len()).sum();
    match split.tensors {
        Some(expected) if expected != tensors as u64 => {
            let what = format!("the {count} shards hold {tensors} tensors, expected split.tensors.count = {expected}");
            Err(GgufError::Format { path: name, what })
        }
        _ => Ok(shards),
    }
}

/// How the name of one shard ends; `index` counts from 0.
fn shard_suffix(index: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", index + 1)
}

/// Refuses a shard that is another one than its name says, or that belongs to another model than the first.
fn check_member(path: &str, shard: &Shard, place: (u64, u64), first: Option<&Shard>) -> Result<(), GgufError> {
    let fail = |what: String| Err(GgufError::Format { path: path.into(), what });
    let (index, count) = place;
    let Some(split) = shard.split(path)? else {
        return fail(format!("has no key split.count, expected shard {} of {count}", index + 1));
    };
    if (split.number, split.count) != place {
        let (number, found) = (split.number, split.count);
        return fail(format!(
            "has split.no = {number} and split.count = {found}, expected {index} and {count} as its name says"
        ));
    }
    let Some(first) = first else { return Ok(()) };
    if split.tensors != first.split(path)?.and_then(|split| split.tensors) {
        return fail("has another split.tensors.count than the first shard, expected shards of one model".into());
    }
    let key = "general.architecture";
    if shard.metadata.get(key).is_some_and(|own| first.metadata.get(key) != Some(own)) {
        return fail(format!("has another {key} than the first shard, expected shards of one model"));
    }
    if shard.endian != first.endian {
        return fail("has another byte order than the first shard, expected shards of one model".into());
    }
    Ok(())
}
