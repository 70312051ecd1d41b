//! Which model a session belongs to.

use kvas_gguf::GgufFile;

/// Bytes of a tensor that count, at its beginning and in its middle: a model of gigabytes is told from another one at
/// once.
const SAMPLE: usize = 1024;

/// A model, told from others by its numbers and not by its file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId {
    /// For people.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Hash of the architecture's metadata, the tensor directory and samples of the tensors, in hexadecimal.
    pub fingerprint: String,
}

impl ModelId {
    /// The model of a file.
    pub fn of(file: &GgufFile) -> Self {
        let architecture = file.metadata().architecture().unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        part(architecture.as_bytes());
        let prefix = format!("{architecture}.");
        for (key, value) in file.metadata().iter().filter(|(key, _)| key.starts_with(&prefix)) {
            part(format!("{key} {value:?}").as_bytes());
        }
        for tensor in file.tensors() {
            part(format!("{} {} {:?}", tensor.name, tensor.quant, tensor.shape).as_bytes());
            let (data, middle) = (file.data(tensor), tensor.bytes / 2);
            part(&data[..tensor.bytes.min(SAMPLE)]);
            part(&data[middle..tensor.bytes.min(middle + SAMPLE)]);
        }
        let path = || file.path().file_name().unwrap_or_default().to_string_lossy().to_string();
        let name = file.metadata().string("general.name").map_or_else(|_| path(), str::to_string);
        Self { name, architecture: architecture.into(), fingerprint: hasher.finalize().to_hex().to_string() }
    }
}

impl std::fmt::Display for ModelId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {:.12})", self.name, self.architecture, self.fingerprint)
    }
}
