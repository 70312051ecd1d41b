//! Importance matrices: for each matrix of a model, how large the numbers are that its columns meet. Kept in GGUF files
//! as llama.cpp keeps them: for a tensor T, `T.in_sum2` holds sums of squares and `T.counts` how many rows went in.

use anyhow::{Context, Result, bail};
use kvas_gguf::{GgufFile, GgufWriter, Metadata, Quant, Value};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

/// Sums over the inputs that a model's matrices met while it read a text.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ImportanceMatrix {
    entries: BTreeMap<String, Entry>,
    /// The texts that were read.
    datasets: Vec<String>,
    /// Windows that were read.
    chunks: u32,
    /// Tokens of a window.
    chunk_size: u32,
    /// Where it was read from.
    path: PathBuf,
}

/// What is known about one tensor.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    /// Sums of squares of each column: one run of columns for each matrix of the tensor.
    sums: Vec<f32>,
    /// Rows that each matrix met.
    counts: Vec<f32>,
}

impl ImportanceMatrix {
    /// Knows nothing yet; `dataset` is the text that will be read, in windows of so many tokens.
    pub fn new(dataset: String, chunks: usize, chunk_size: usize) -> ImportanceMatrix {
        let (chunks, chunk_size) = (chunks as u32, chunk_size as u32);
        ImportanceMatrix { datasets: vec![dataset], chunks, chunk_size, ..ImportanceMatrix::default() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// One line that names the file and the key or tensor at fault.
    pub fn open(path: &Path) -> Result<ImportanceMatrix> {
        ImportanceMatrix::read(&GgufFile::open(path)?).with_context(|| path.display().to_string())
    }

    /// Refuses to have the file written over that it was read from: the model that needed it would be all that is left of it.
    pub(super) fn check_apart(&self, out: &Path) -> Result<()> {
        crate::apart::check_file_apart(&self.path, out)
    }

    fn read(file: &GgufFile) -> Result<ImportanceMatrix> {
        let metadata = file.metadata();
        if metadata.string_opt("general.type")? != Some("imatrix") {
            bail!("is no importance matrix, expected general.type = imatrix");
        }
        let mut matrix = ImportanceMatrix {
            datasets: metadata.strings_opt(DATASETS)?.unwrap_or_default().to_vec(),
            chunks: metadata.uint_opt(CHUNK_COUNT)?.unwrap_or(0) as u32,
            chunk_size: metadata.uint_opt(CHUNK_SIZE)?.unwrap_or(0) as u32,
            path: file.path().to_path_buf(),
            ..ImportanceMatrix::default()
        };
        for info in file.tensors() {
            let Some(name) = info.name.strip_suffix(".in_sum2") else { continue };
            let sums = numbers(file, &info.name)?;
            let counts = numbers(file, &format!("{name}.counts"))?;
            if !sums.len().is_multiple_of(counts.len()) {
                bail!("tensor {}: {} sums, expected a multiple of its {} counts", info.name, sums.len(), counts.len());
            }
            matrix.entries.insert(name.to_string(), Entry { sums, counts });
        }
        if matrix.entries.is_empty() {
            bail!("has no tensors, expected T.in_sum2 and T.counts for the tensors T of a model");
        }
        Ok(matrix)
    }

    /// Adds the squares of an input row to matrix `index` of the `count` matrices of a tensor.
    ///
    /// # Panics
    /// If the tensor was added before with other numbers of columns or matrices.
    pub fn add(&mut self, tensor: &str, index: usize, count: usize, row: &[f32]) {
        if !self.entries.contains_key(tensor) {
            let empty = Entry { sums: vec![0.0; count * row.len()], counts: vec![0.0; count] };
            self.entries.insert(tensor.to_string(), empty);
        }
        let entry = self.entries.get_mut(tensor).expect("it was just inserted");
        assert_eq!((entry.sums.len(), entry.counts.len()), (count * row.len(), count), "one shape for each tensor");
        for (sum, x) in entry.sums[index * row.len()..][..row.len()].iter_mut().zip(row) {
            *sum += x * x;
        }
        entry.counts[index] += 1.0;
    }

    /// A tensor whose sums are no finite numbers, if there is one.
    pub fn beyond_numbers(&self) -> Option<&str> {
        let sound = |entry: &Entry| entry.sums.iter().fold(true, |all, sum| all & sum.is_finite());
        self.entries.iter().find(|(_, entry)| !sound(entry)).map(|(name, _)| name.as_str())
    }

    /// Tensors it knows.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Whatever the system says about it.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut metadata = Metadata::default();
        metadata.set("general.type", Value::String("imatrix".into()));
        metadata.set(DATASETS, Value::Strings(self.datasets.clone()));
        metadata.set(CHUNK_COUNT, Value::U32(self.chunks));
        metadata.set(CHUNK_SIZE, Value::U32(self.chunk_size));
        let mut writer = GgufWriter::new(metadata);
        for (name, Entry { sums, counts }) in &self.entries {
            let count = counts.len() as u64;
            writer.declare(&format!("{name}.in_sum2"), Quant::F32, &[sums.len() as u64 / count, count])?;
            writer.declare(&format!("{name}.counts"), Quant::F32, &[1, count])?;
        }
        let bytes = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let mut file = writer.create(path)?;
        for (name, Entry { sums, counts }) in &self.entries {
            file.write(&format!("{name}.in_sum2"), &bytes(sums))?;
            file.write(&format!("{name}.counts"), &bytes(counts))?;
        }
        Ok(file.finish()?)
    }

    /// Mean squares of the columns of a tensor, one matrix after the other; `None` if nothing is known about it. A
    /// matrix that met no row has ones.
    ///
    /// # Errors
    /// If there are other than `expected` of them: the matrix is another model's.
    pub(super) fn of(&self, tensor: &str, expected: usize) -> Result<Option<Vec<f32>>> {
        let Some(Entry { sums, counts }) = self.entries.get(tensor) else { return Ok(None) };
        if sums.len() != expected {
            let path = self.path.display();
            bail!("{path}: {} columns for tensor {tensor}, expected the {expected} that it has", sums.len());
        }
        let columns = sums.len() / counts.len();
        let mean = |(at, sum): (usize, &f32)| {
            let count = counts[at / columns];
            if count > 0.0 { sum / count } else { 1.0 }
        };
        Ok(Some(sums.iter().enumerate().map(mean).collect()))
    }

    /// Says in a model's metadata what it was quantised with.
    pub(super) fn describe(&self, metadata: &mut Metadata) {
        metadata.set("quantize.imatrix.file", Value::String(self.path.display().to_string()));
        if let Some(dataset) = self.datasets.first() {
            metadata.set("quantize.imatrix.dataset", Value::String(dataset.clone()));
        }
        metadata.set("quantize.imatrix.entries_count", Value::U32(self.entries.len() as u32));
        if self.chunks > 0 {
            metadata.set("quantize.imatrix.chunks_count", Value::U32(self.chunks));
        }
    }
}

/// The numbers of a tensor, none of them negative.
fn numbers(file: &GgufFile, name: &str) -> Result<Vec<f32>> {
    let info = file.tensor(name).with_context(|| format!("tensor {name} is missing"))?;
    let mut numbers = vec![0.0; info.elements()];
    info.quant.dequantize(&file.data(info), &mut numbers)?;
    if let Some(number) = numbers.iter().find(|number| !number.is_finite() || **number < 0.0) {
        bail!("tensor {name} holds {number}, expected sums of squares and counts");
    }
    Ok(numbers)
}
