//! What a model's file says of it, whether it is loaded or not.

use crate::{model::Model, session::ModelId};
use kvas_gguf::GgufFile;
use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileFacts {
    /// The file.
    pub path: String,
    /// Its bytes, those of all its parts together.
    pub bytes: u64,
    /// When it was changed, in seconds since 1970; 0 if it is inside the program.
    pub modified: u64,
    /// Numbers in its tensors.
    pub parameters: u64,
    /// The architecture, as the file names it.
    pub architecture: String,
    /// The most frequent format of its matrices.
    pub quant: String,
    /// Tells it from other files: see [`ModelId::fingerprint`].
    pub fingerprint: String,
}

/// Seconds since 1970.
pub fn seconds(of: SystemTime) -> u64 {
    of.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn modified(path: &Path) -> u64 {
    path.metadata().and_then(|file| file.modified()).map_or(0, seconds)
}

impl FileFacts {
    /// Those of a file that is open.
    pub fn of(file: &GgufFile) -> Self {
        let tensors = file.tensors();
        let count = |shape: &[u64]| shape.iter().product::<u64>();
        let mut formats: Vec<(String, u64)> = Vec::new();
        for tensor in tensors.iter().filter(|tensor| tensor.shape.len() > 1) {
            let (name, values) = (tensor.quant.to_string(), count(&tensor.shape));
            match formats.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += values,
                None => formats.push((name, values)),
            }
        }
        Self {
            path: file.path().display().to_string(),
            bytes: file.file_bytes(),
            modified: modified(file.path()),
            parameters: tensors.iter().map(|tensor| count(&tensor.shape)).sum(),
            architecture: file.metadata().architecture().unwrap_or_default().to_string(),
            quant: formats.into_iter().max_by_key(|(_, sum)| *sum).map(|(name, _)| name).unwrap_or_default(),
            fingerprint: ModelId::of(file).fingerprint,
        }
    }

    /// Those of the file at a path. Of one that is no model, what it is told when it is asked for, it is the size.
    pub fn at(path: &Path) -> Self {
        match Model::file(path) {
            Ok(file) => Self::of(&file),
            Err(_) => Self {
                path: path.display().to_string(),
                bytes: path.metadata().map_or(0, |file| file.len()),
                modified: modified(path),
                ..Self::default()
            },
        }
    }

    /// Whether the file has not been changed since.
    pub fn are_current(&self) -> bool {
        modified(Path::new(&self.path)) == self.modified
    }
}
