//! The safetensors files of a checkpoint: which tensors there are, and their bytes by ranges.

use super::floats::Float;
use super::lora::Delta;
use super::packed::Packed;
use super::scales::Scales;
use anyhow::{Context, Result, bail};
use safetensors::tensor::Dtype;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// What holds the checkpoints in the folder that the cache of Hugging Face has for a model.
const SNAPSHOTS: &str = "snapshots";

/// Weights of other formats and layouts, as their publishers call them.
const OTHERS: [&str; 4] =
    ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.safetensors", "consolidated.00.pth"];

/// Numbers that are compared at once.
const COMPARED: usize = 1 << 16;

/// The tensors of a checkpoint, of one file or of several.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    tensors: BTreeMap<String, Stored>,
    shards: Vec<Shard>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    file: File,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// Sizes, the contiguous one last.
    pub(crate) shape: Vec<usize>,
    /// The type as the file names it.
    pub(crate) dtype: Dtype,
    /// The type of its numbers; `None` if they cannot be converted.
    pub(crate) float: Option<Float>,
    /// What its numbers are multiples of.
    pub(super) scales: Option<Box<Scales>>,
    /// What its rows are made of, where they do not lie in the file.
    pub(super) packed: Option<Box<Packed>>,
    /// What adapters add to its numbers, one after the other.
    pub(super) deltas: Vec<Delta>,
    shard: usize,
    /// First byte in the shard.
    offset: u64,
}

impl Checkpoint {
    /// Reads the directories of all files of the checkpoint in `folder`.
    pub(super) fn open(folder: &Path) -> Result<Checkpoint> {
        if folder.join(WHOLE).is_file() {
            return Checkpoint::open_file(folder, WHOLE);
        }
        let mut checkpoint = Checkpoint { tensors: BTreeMap::new(), shards: Vec::new() };
        let Some(index) = super::json::Json::read(folder, INDEX)? else {
            super::json::refuse_dangling(&folder.join(WHOLE), WHOLE)?;
            if folder.join(SNAPSHOTS).is_dir() {
                bail!("{}: a folder of the Hugging Face cache, expected the one in its {SNAPSHOTS}", folder.display());
            }
            if let Some(part) = shard_in(folder) {
                bail!("{}: expected {INDEX} beside {part}, which says what is in which file", folder.display());
            }
            let other = OTHERS.iter().find(|name| folder.join(name).exists());
            let found = other.map_or(String::new(), |name| format!(" and not {name}: save it as safetensors"));
            bail!("{}: expected {WHOLE} or {INDEX} in it{found}", folder.display());
        };
        let Some(map) = index.get("weight_map").and_then(|map| map.as_object()) else {
            bail!("{INDEX}: weight_map is missing, expected an object of tensor and file names");
        };
        let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (tensor, file) in map {
            match file.as_str() {
                Some(file) if Path::new(file).file_name() == Some(file.as_ref()) => {
                    files.entry(file).or_default().insert(tensor);
                }
                _ => bail!("{INDEX}: {tensor} is in {file}, expected the name of a file in the same folder"),
            }
        }
        for (file, expected) in files {
            super::json::refuse_dangling(&folder.join(file), file)?;
            if !folder.join(file).is_file() {
                bail!("{file}: missing, {INDEX} says that it holds {} tensors", expected.len());
            }
            checkpoint.add(folder, file, Some(&expected))?;
        }
        Ok(checkpoint)
    }

    /// Reads the directory of one file.
    pub(crate) fn open_file(folder: &Path, name: &str) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint { tensors: BTreeMap::new(), shards: Vec::new() };
        checkpoint.add(folder, name, None)?;
        Ok(checkpoint)
    }

    /// Adds the tensors of one file, among which those are that the index names.
    fn add(&mut self, folder: &Path, name: &str, expected: Option<&BTreeSet<&str>>) -> Result<()> {
        let mut file = File::open(folder.join(name)).with_context(|| name.to_string())?;
        let (metadata, start) = super::directory::read(&mut file, name)?;
        let tensors = metadata.tensors();
        if let Some(missing) = expected.and_then(|names| names.iter().find(|tensor| !tensors.contains_key(**tensor))) {
            bail!("{name}: tensor {missing} is missing, {INDEX} says that it is there");
        }
        let shard = self.shards.len();
        for (tensor, info) in tensors {
            if let Some(before) = self.tensors.get(&tensor) {
                bail!(
                    "{name}: tensor {tensor} is in {} as well, expected it in one of them",
                    self.shards[before.shard].name
                );
            }
            let offset = start + info.data_offsets.0 as u64;
            let (shape, dtype) = (info.shape.clone(), info.dtype);
            let float = Float::of(dtype);
            let stored = Stored { shape, dtype, float, scales: None, packed: None, deltas: Vec::new(), shard, offset };
            self.tensors.insert(tensor, stored);
        }
        self.shards.push(Shard { name: name.into(), file });
        Ok(())
    }

    /// Renames every tensor that has one of the parts `(from, to)` in its name.
    pub(super) fn rename(&mut self, parts: &[(&str, &str)]) {
        for (from, to) in parts {
            let tensors = std::mem::take(&mut self.tensors);
            self.tensors = tensors.into_iter().map(|(name, stored)| (name.replace(from, to), stored)).collect();
        }
    }

    /// Takes in the files of another one, so that its tensors can be read here; they are not among this one's.
    pub(super) fn absorb(&mut self, other: Checkpoint) -> BTreeMap<String, Stored> {
        let before = self.shards.len();
        self.shards.extend(other.shards);
        let moved = other.tensors.into_iter().map(|(name, mut stored)| {
            stored.shard += before;
            (name, stored)
        });
        moved.collect()
    }

    /// Takes a tensor away.
    pub(super) fn remove(&mut self, name: &str) -> Option<Stored> {
        self.tensors.remove(name)
    }

    /// Puts a tensor in under a name.
    pub(super) fn insert(&mut self, name: &str, stored: Stored) {
        self.tensors.insert(name.into(), stored);
    }

    /// A tensor by name.
    pub(crate) fn get(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// Every name, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Fills `out` with the bytes of a tensor from byte `start` of it on.
    pub(crate) fn read(&self, tensor: &Stored, start: u64, out: &mut [u8]) -> Result<()> {
        let shard = &self.shards[tensor.shard];
        let mut file = &shard.file;
        file.seek(SeekFrom::Start(tensor.offset + start))
            .and_then(|_| file.read_exact(out))
            .with_context(|| shard.name.clone())
    }

    /// True if two tensors of one shape hold numbers as they are, and not the same ones.
    pub(super) fn differ(&self, one: &Stored, other: &Stored) -> Result<bool> {
        let is_plain = |stored: &Stored| stored.scales.is_none() && stored.packed.is_none();
        let (Some(first), Some(second)) = (one.float, other.float) else { return Ok(false) };
        if one.shape != other.shape || !is_plain(one) || !is_plain(other) {
            return Ok(false);
        }
        let count: usize = one.shape.iter().product();
        for start in (0..count).step_by(COMPARED) {
            let read = |stored: &Stored, float: Float| {
                let mut numbers = vec![0.0; COMPARED.min(count - start)];
                let mut bytes = vec![0; float.bytes_of(numbers.len())];
                self.read(stored, float.bytes_of(start) as u64, &mut bytes)?;
                float.decode(&bytes, &mut numbers);
                Ok::<Vec<f32>, anyhow::Error>(numbers)
            };
            if read(one, first)? != read(other, second)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// All numbers of a tensor of an adapter.
    pub(crate) fn numbers(&self, name: &str, stored: &Stored) -> Result<Vec<f32>> {
        let float = match stored.float {
            Some(float @ (Float::F32 | Float::F16 | Float::Bf16)) => float,
            Some(Float::Fp8 | Float::Fp4 | Float::Exponent | Float::Int8 | Float::Shifted8 | Float::Shifted4)
            | None => {
                bail!("tensor {name} is {:?}, expected F32, F16 or BF16", stored.dtype)
            }
        };
        let mut numbers = vec![0.0; stored.shape.iter().product()];
        let mut bytes = vec![0; float.bytes_of(numbers.len())];
        self.read(stored, 0, &mut bytes)?;
        float.decode(&bytes, &mut numbers);
        if let Some(at) = numbers.iter().position(|number| !number.is_finite()) {
            bail!("tensor {name}: number {at} is {}, expected a finite one", numbers[at]);
        }
        Ok(numbers)
    }
}

/// One of several files that weights are in, if there is one; the first by name.
fn shard_in(folder: &Path) -> Option<String> {
    let names = std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("model-") && name.ends_with(".safetensors")).min()
}
