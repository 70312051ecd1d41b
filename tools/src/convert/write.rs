//! Streams the tensors: a few rows at a time are read, rearranged, changed and encoded, on all cores.

use super::checkpoint::{Checkpoint, Stored};
use super::floats::Float;
use super::layout::Layout;
use super::lora;
use super::packed::Unpacked;
use super::plan::{Data, Job};
use super::scales::LoadedScales;
use super::{ConvertOptions, PlannedTensor, Prepared, Progress, nvfp4, split};
use crate::encode::encode_row;
use anyhow::{Context, Result, bail};
use kvas_gguf::{GgufWriter, Quant};
use rayon::prelude::*;
use std::path::{Path, PathBuf};

/// Numbers worked on at a time, whatever the size of the tensor: 32 MiB as f32. In tests few enough for several parts.
const NUMBERS_AT_ONCE: usize = if cfg!(test) { 48 } else { 8 << 20 };

/// What was written.
pub(super) struct Written {
    pub(super) files: Vec<PathBuf>,
    /// Of tensor data.
    pub(super) bytes: u64,
}

/// Writes the file, or all files of a split one, which get their names when all are complete.
pub(super) fn write(source: &Prepared, out: &Path, options: &ConvertOptions) -> Result<Written> {
    let total = source.jobs.iter().map(|job| job.tensor.bytes).sum();
    let mut done = 0;
    let mut complete = Vec::new();
    let parts = split::parts(&source.jobs, options.split, out)?;
    for part in &parts {
        let jobs = &source.jobs[part.jobs.clone()];
        let mut writer = GgufWriter::new(part.metadata(&source.metadata));
        for Job { tensor, .. } in jobs {
            writer.declare(&tensor.name, tensor.quant, &tensor.shape)?;
        }
        let mut file = writer.create(&part.path)?;
        for job in jobs {
            let name = &job.tensor.name;
            encode(job, source, &mut |part| {
                file.write_part(name, part)?;
                done += part.len() as u64;
                if let Some(progress) = &options.progress {
                    progress(Progress { tensor: name, done, total });
                }
                Ok(())
            })?;
        }
        file.sync()?;
        complete.push(file);
    }
    let files: Vec<PathBuf> = parts.into_iter().map(|part| part.path).collect();
    for (number, file) in complete.into_iter().enumerate() {
        if let Err(error) = file.finish() {
            for file in &files[..number] {
                // The error to tell is the first one.
                let _ = std::fs::remove_file(file);
            }
            return Err(error.into());
        }
    }
    Ok(Written { files, bytes: total })
}

/// Hands over the bytes of one tensor, in parts of whole rows.
fn encode(job: &Job, source: &Prepared, emit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let (name, quant) = (&job.tensor.name, job.tensor.quant);
    let (sources, float, layout) = match &job.data {
        Data::Stored { sources, float, shape, transforms } => {
            (sources, *float, Layout::of(shape.clone(), transforms, &source.settings.values)?)
        }
        Data::Made(numbers) => {
            let mut bytes = vec![0; job.tensor.bytes as usize];
            encode_row(quant, numbers, None, &mut bytes).with_context(|| format!("tensor {name}"))?;
            return emit(&bytes);
        }
    };
    let numbers: usize = sources[0].shape.iter().product();
    let source_rows = numbers / layout.column_count();
    let checkpoint = &source.checkpoint;
    let scales = sources.iter().map(|stored| stored.scales.as_ref());
    let scales =
        scales.map(|scales| scales.map(|scales| scales.load(checkpoint)).transpose()).collect::<Result<_>>()?;
    let load = |stored: &Stored| stored.deltas.iter().map(|delta| delta.load(checkpoint)).collect();
    let deltas = sources.iter().map(load).collect::<Result<_>>()?;
    let rows = Rows { checkpoint, sources, scales, deltas, layout: &layout, float, source_rows };
    if layout.transposed { rows.encode_transposed(&job.tensor, emit) } else { rows.encode(&job.tensor, emit) }
}

/// Rows as they were read.
#[derive(Default)]
struct Raw {
    bytes: Vec<u8>,
    unpacked: Latest,
}

/// The source that rows were made of last, with its number.
#[derive(Default)]
struct Latest(Option<(usize, Unpacked)>);

impl Latest {
    /// The source of this number.
    fn of(&mut self, number: usize, load: impl FnOnce() -> Result<Unpacked>) -> Result<&Unpacked> {
        if self.0.as_ref().is_some_and(|(loaded, _)| *loaded != number) {
            // Before the next one is read: there is room for one.
            self.0 = None;
        }
        let loaded = match self.0.take() {
            Some((_, loaded)) => loaded,
            None => load()?,
        };
        Ok(&self.0.insert((number, loaded)).1)
    }
}

/// Where a number is, for messages.
fn place(tensor: &PlannedTensor, row: usize) -> String {
    format!("tensor {}, row {row}", tensor.name)
}

/// The rows of a tensor in the order of the file.
struct Rows<'a> {
    checkpoint: &'a Checkpoint,
    sources: &'a [Stored],
    /// Of each source, if it has any.
    scales: Vec<Option<LoadedScales<'a>>>,
    /// What adapters add to each source.
    deltas: Vec<Vec<lora::Loaded>>,
    layout: &'a Layout,
    float: Float,
    /// Rows of each source.
    source_rows: usize,
}

impl Rows<'_> {
    /// Encodes as many rows at a time as memory is set aside for.
    fn encode(&self, tensor: &PlannedTensor, emit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let columns = self.layout.column_count();
        let row_bytes = tensor.quant.row_bytes(columns).context("rows were planned as whole blocks")?;
        let at_once = (NUMBERS_AT_ONCE / columns).max(1);
        let (mut raw, mut encoded) = (Raw::default(), Vec::new());
        for first in (0..self.layout.row_count()).step_by(at_once) {
            let count = at_once.min(self.layout.row_count() - first);
            self.read(first, count, &mut raw)?;
            encoded.resize(count * row_bytes, 0);
            let source_rows = raw.bytes.par_chunks(self.float.bytes_of(columns));
            encoded.par_chunks_mut(row_bytes).zip(source_rows).enumerate().try_for_each_init(
                || (vec![0.0; columns], vec![0.0; columns]),
                |(decoded, ordered), (row, (out, raw))| {
                    if tensor.quant == Quant::Nvfp4 {
                        return self.keep_nvfp4(first + row, raw, out).with_context(|| place(tensor, first + row));
                    }
                    let numbers = self.numbers(first + row, raw, decoded, ordered);
                    encode_row(tensor.quant, numbers, None, out).with_context(|| place(tensor, first + row))
                },
            )?;
            emit(&encoded)?;
        }
        Ok(())
    }

    /// Encodes the columns of one matrix at a time as rows.
    fn encode_transposed(&self, tensor: &PlannedTensor, emit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let [.., height, columns] = self.layout.shape[..] else { bail!("a matrix was planned") };
        let row_bytes = tensor.quant.row_bytes(height).context("rows were planned as whole blocks")?;
        let (mut raw, mut encoded) = (Raw::default(), vec![0; columns * row_bytes]);
        let (mut decoded, mut ordered) = (vec![0.0; columns], vec![0.0; columns]);
        for first in (0..self.layout.row_count()).step_by(height) {
            self.read(first, height, &mut raw)?;
            let mut matrix = Vec::with_capacity(height * columns);
            for (row, raw) in raw.bytes.chunks(self.float.bytes_of(columns)).enumerate() {
                matrix.extend_from_slice(self.numbers(first + row, raw, &mut decoded, &mut ordered));
            }
            encoded.par_chunks_mut(row_bytes).enumerate().try_for_each(|(column, out)| {
                let numbers: Vec<f32> = matrix[column..].iter().step_by(columns).copied().collect();
                encode_row(tensor.quant, &numbers, None, out)
                    .with_context(|| place(tensor, first / height * columns + column))
            })?;
            emit(&encoded)?;
        }
        Ok(())
    }

    /// Reads `count` rows from row `first` of the file on. Neighbours in the source are read together.
    fn read(&self, first: usize, count: usize, raw: &mut Raw) -> Result<()> {
        let row_bytes = self.float.bytes_of(self.layout.column_count());
        raw.bytes.resize(count * row_bytes, 0);
        let mut done = 0;
        while done < count {
            let start = self.source(first + done);
            let (tensor, row) = (start / self.source_rows, start % self.source_rows);
            let longest = (count - done).min(self.source_rows - row);
            let run = (1..longest).find(|&next| self.source(first + done + next) != start + next).unwrap_or(longest);
            let out = &mut raw.bytes[done * row_bytes..][..run * row_bytes];
            let stored = &self.sources[tensor];
            match &stored.packed {
                None => self.checkpoint.read(stored, (row * row_bytes) as u64, out)?,
                Some(packed) => raw.unpacked.of(tensor, || packed.load(self.checkpoint))?.fill(row, out),
            }
            done += run;
        }
        Ok(())
    }

    /// Brings a row that is in NVFP4 into the order of the file.
    fn keep_nvfp4(&self, row: usize, raw: &[u8], out: &mut [u8]) -> Result<()> {
        let (tensor, row) = (self.source(row) / self.source_rows, self.source(row) % self.source_rows);
        let scales = self.scales[tensor].as_ref().context("it was planned with scales")?;
        nvfp4::encode_row(self.layout, raw, scales.line(row), out)
    }

    /// The row of all sources together that becomes a row of the file.
    fn source(&self, row: usize) -> usize {
        self.layout.rows.as_ref().map_or(row, |rows| rows[row])
    }

    /// The numbers of one row, in the order of the file's columns and changed.
    fn numbers<'b>(&self, row: usize, raw: &[u8], decoded: &'b mut [f32], ordered: &'b mut [f32]) -> &'b [f32] {
        self.float.decode(raw, decoded);
        let source = self.source(row);
        if let Some(scales) = &self.scales[source / self.source_rows] {
            scales.apply(source % self.source_rows, decoded);
        }
        for delta in &self.deltas[source / self.source_rows] {
            delta.apply(source % self.source_rows, decoded);
        }
        let numbers = match &self.layout.columns {
            None => decoded,
            Some(columns) => {
                ordered.iter_mut().zip(columns).for_each(|(out, &column)| *out = decoded[column]);
                ordered
            }
        };
        for change in &self.layout.changes {
            numbers.iter_mut().for_each(|number| *number = change.apply(*number));
        }
        if let Some(factors) = &self.layout.factors {
            numbers.iter_mut().for_each(|number| *number *= factors[row]);
        }
        numbers
    }
}
