//! The bytes of one file: a read-only memory mapping, or bytes that are already in memory.

use crate::GgufError;
use std::borrow::Cow;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The bytes behind one shard; shared, so that a tensor can outlive the file object that found it.
pub(crate) enum Mapping {
    #[cfg_attr(not(unix), allow(dead_code))]
    Mapped {
        map: memmap2::Mmap,
        file: File,
        path: PathBuf,
    },
    InMemory(Cow<'static, [u8]>),
}

impl Mapping {
    /// Maps a regular file for reading. Pipes, directories and devices are refused before they are opened.
    pub(crate) fn open(path: &Path) -> Result<Mapping, GgufError> {
        let fail = |error| GgufError::Io { path: path.display().to_string(), error };
        let found = std::fs::metadata(path).map_err(fail)?;
        if !found.is_file() {
            let what = match found.is_dir() {
                true if path.join("config.json").is_file() => {
                    "is the folder of a checkpoint, expected a GGUF file, as kvas convert makes one of it"
                }
                true => "is a folder, expected a GGUF file",
                false => "not a regular file, expected one",
            };
            return Err(GgufError::Format { path: path.display().to_string(), what: what.into() });
        }
        let file = File::open(path).map_err(fail)?;
        // An empty file cannot be mapped everywhere.
        if file.metadata().map_err(fail)?.len() == 0 {
            return Ok(Mapping::InMemory(Cow::default()));
        }
        // SAFETY: the mapping is private to this process, read-only, and only ever read as bytes, any value of which
        // is valid; that no other process shortens or rewrites the file while it is mapped is required of the user.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fail)?;
        Ok(Mapping::Mapped { map, file, path: path.into() })
    }

    /// Where the file is, of what is mapped.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Mapping::Mapped { path, .. } => Some(path),
            Mapping::InMemory(_) => None,
        }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Mapping::Mapped { map, .. } => map,
            Mapping::InMemory(bytes) => bytes,
        }
    }
}

/// The bytes of one tensor, always little-endian. Keeps the mapping it points into alive; cloning copies no data.
#[derive(Clone)]
pub struct TensorBytes {
    source: Arc<Mapping>,
    range: Range<usize>,
}

impl TensorBytes {
    /// All bytes of a file, mapped for reading. The file must not be shortened or rewritten in place meanwhile.
    ///
    /// # Errors
    /// `Io` if it cannot be opened or mapped, `Format` if it is no regular file.
    pub fn map(path: &Path) -> Result<TensorBytes, GgufError> {
        let mapping = Mapping::open(path)?;
        let range = 0..mapping.len();
        Ok(TensorBytes { source: Arc::new(mapping), range })
    }

    /// A part of these bytes; panics if the range is not inside them.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> TensorBytes {
        assert!(range.start <= range.end && range.end <= self.len(), "a part lies inside the whole");
        let range = self.range.start + range.start..self.range.start + range.end;
        TensorBytes { source: self.source.clone(), range }
    }

    /// A part of a mapping; panics if the range is not inside it.
    pub(crate) fn new(source: Arc<Mapping>, range: Range<usize>) -> TensorBytes {
        assert!(range.start <= range.end && range.end <= source.len(), "a tensor lies inside its own file");
        TensorBytes { source, range }
    }
}

impl TensorBytes {
    /// Copies a part of these bytes. A mapped file is read instead of looked at through its mapping: that is faster where it is
    /// done once, and a file that was shortened meanwhile is an error. Panics if `to` is not as long as the part.
    ///
    /// # Errors
    /// Those of reading the file; `InvalidInput` if the part is not inside these bytes.
    pub fn copy_to(&self, part: Range<usize>, to: &mut [u8]) -> std::io::Result<()> {
        let bytes = self.get(part.clone()).ok_or(std::io::ErrorKind::InvalidInput)?;
        assert_eq!(bytes.len(), to.len(), "a part has room for itself");
        match &*self.source {
            #[cfg(unix)]
            Mapping::Mapped { file, path, .. } => {
                let read = std::os::unix::fs::FileExt::read_exact_at(file, to, (self.range.start + part.start) as u64);
                read.map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
            }
            _ => {
                to.copy_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// Hints to the system, which change no byte. One that is not taken costs nothing but time, and is not reported.
impl TensorBytes {
    /// These bytes will be read soon: the system may begin to fetch them.
    pub fn will_need(&self) {
        if let Mapping::Mapped { map, .. } = &*self.source {
            let _ = map.advise_range(memmap2::Advice::WillNeed, self.range.start, self.range.len());
        }
    }

    /// Waits until these bytes are in memory.
    pub fn read_in(&self) {
        const PAGE: usize = 4096;
        #[cfg(target_os = "linux")]
        if let Mapping::Mapped { map, .. } = &*self.source
            && map.advise_range(memmap2::Advice::PopulateRead, self.range.start, self.range.len()).is_ok()
        {
            return;
        }
        std::hint::black_box(self.iter().step_by(PAGE).fold(0u8, |sum, byte| sum ^ byte));
    }

    /// These bytes will hardly be read again: the memory they are in may serve others. If they are, they come from the
    /// file once more.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Mapping::Mapped { map, .. } = &*self.source {
            let (start, len) = (self.range.start, self.range.len());
            // SAFETY: of a mapping of a file that nobody writes through, what is dropped is read again from the file.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
    }
}

impl From<Vec<u8>> for TensorBytes {
    fn from(bytes: Vec<u8>) -> TensorBytes {
        let range = 0..bytes.len();
        TensorBytes { source: Arc::new(Mapping::InMemory(bytes.into())), range }
    }
}

impl Deref for TensorBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.source[self.range.clone()]
    }
}

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for TensorBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TensorBytes({} bytes)", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_file_are_copied_until_it_is_shortened() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("mapping.bin");
        let all: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &all).unwrap();
        let mapped = TensorBytes::map(&path).unwrap();
        for bytes in [mapped.clone(), TensorBytes::from(all.clone())] {
            let part = bytes.slice(1000..9000);
            let mut to = vec![0; 500];
            part.copy_to(7..507, &mut to).unwrap();
            assert!(to == all[1007..1507]);
            part.copy_to(8000..8000, &mut []).unwrap();
            assert_eq!(part.copy_to(7800..8300, &mut to).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
        }
        if cfg!(unix) {
            File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
            let error = mapped.copy_to(4800..5300, &mut vec![0; 500]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
            assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
