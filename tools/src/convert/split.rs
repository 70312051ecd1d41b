//! Divides the tensors of a model over several files, named and marked as llama.cpp does.

use super::SplitLimit;
use super::plan::Job;
use anyhow::{Result, bail};
use kvas_gguf::{Metadata, Value};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One file of a model.
pub(super) struct Part {
    pub(super) path: PathBuf,
    /// Its tensors, by their place among all.
    pub(super) jobs: Range<usize>,
    /// Its number from 0, the number of files, and the tensors of all of them; `None` if there is only one file.
    split: Option<(u16, u16, i32)>,
}

impl Part {
    /// The keys of this file: all in the first one, in the others only what tells which one it is.
    pub(super) fn metadata(&self, all: &Metadata) -> Metadata {
        let Some((number, count, tensors)) = self.split else { return all.clone() };
        let mut own = if number == 0 { all.clone() } else { Metadata::default() };
        own.set("split.no", Value::U16(number));
        own.set("split.count", Value::U16(count));
        own.set("split.tensors.count", Value::I32(tensors));
        own
    }
}

/// The files that the tensors go to, in order.
pub(super) fn parts(jobs: &[Job], limit: Option<SplitLimit>, out: &Path) -> Result<Vec<Part>> {
    let ranges = ranges(jobs, limit);
    if ranges.len() == 1 {
        return Ok(vec![Part { path: out.into(), jobs: 0..jobs.len(), split: None }]);
    }
    let (Ok(count), Ok(tensors)) = (u16::try_from(ranges.len()), i32::try_from(jobs.len())) else {
        bail!("{} files, expected at most {}; the limit is too small", ranges.len(), u16::MAX);
    };
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    // Not the extension: names of models have dots, too.
    let stem = name.strip_suffix(".gguf").unwrap_or(&name);
    let part = |(number, jobs): (u16, Range<usize>)| {
        let path = out.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", number + 1));
        Part { path, jobs, split: Some((number, count, tensors)) }
    };
    Ok((0..count).zip(ranges).map(part).collect())
}

/// Tensors by the file they go to; one that is larger than the limit has a file of its own.
fn ranges(jobs: &[Job], limit: Option<SplitLimit>) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut bytes) = (0, 0u64);
    for (at, Job { tensor, .. }) in jobs.iter().enumerate() {
        let full = match limit {
            None => false,
            Some(SplitLimit::Bytes(limit)) => bytes.saturating_add(tensor.bytes) > limit,
            Some(SplitLimit::Tensors(limit)) => at - start >= limit,
        };
        if full && at > start {
            ranges.push(start..at);
            (start, bytes) = (at, 0);
        }
        bytes += tensor.bytes;
    }
    ranges.push(start..jobs.len());
    ranges
}
