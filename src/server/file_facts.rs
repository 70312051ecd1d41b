//! What a model's file says of it, whether it is loaded or not.

use crate::{model::Model, session::ModelId};
use kvas_gguf::{GgufFile, Quant};
use kvas_tools::quantize::MIXES;
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
    /// The mix that it says it is, or the most frequent format of its matrices.
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

/// What a file is called by its formats, each with how many numbers are in it: the mix of its `general.file_type`, if any matrix has
/// become what most of them do in it, else the most frequent one. Where columns are no multiples of 256 most become something else.
fn quant_of(file_type: Option<u64>, formats: &[(Quant, u64)]) -> String {
    let mix = MIXES.iter().find(|mix| Some(u64::from(mix.file_type)) == file_type);
    match mix.filter(|mix| formats.iter().any(|(quant, _)| *quant == mix.base)) {
        Some(mix) => mix.name.to_string(),
        None => formats.iter().max_by_key(|(_, sum)| *sum).map(|(quant, _)| quant.to_string()).unwrap_or_default(),
    }
}

impl FileFacts {
    /// Those of a file that is open.
    pub fn of(file: &GgufFile) -> Self {
        let tensors = file.tensors();
        let count = |shape: &[u64]| shape.iter().product::<u64>();
        let mut formats: Vec<(Quant, u64)> = Vec::new();
        for tensor in tensors.iter().filter(|tensor| tensor.shape.len() > 1) {
            match formats.iter_mut().find(|(known, _)| *known == tensor.quant) {
                Some((_, sum)) => *sum += count(&tensor.shape),
                None => formats.push((tensor.quant, count(&tensor.shape))),
            }
        }
        let file_type = file.metadata().uint_opt("general.file_type").ok().flatten();
        Self {
            path: file.path().display().to_string(),
            bytes: file.file_bytes(),
            modified: modified(file.path()),
            parameters: tensors.iter().map(|tensor| count(&tensor.shape)).sum(),
            architecture: file.metadata().architecture().unwrap_or_default().to_string(),
            quant: quant_of(file_type, &formats),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_what_it_says_unless_it_is_not() {
        let mostly_fallen_back = [(Quant::Q5_0, 900), (Quant::Q4K, 80), (Quant::Q6K, 20)];
        assert_eq!(quant_of(Some(15), &mostly_fallen_back), "Q4_K_M");
        assert_eq!(quant_of(Some(14), &mostly_fallen_back), "Q4_K_S");
        assert_eq!(quant_of(Some(7), &mostly_fallen_back), "Q5_0", "no matrix is in Q8_0");
        assert_eq!([None, Some(1024)].map(|of| quant_of(of, &mostly_fallen_back)), ["Q5_0", "Q5_0"]);
        assert_eq!(quant_of(Some(1), &[(Quant::F16, 10)]), "F16");
        assert_eq!(quant_of(Some(1), &[]), "");
    }
}
