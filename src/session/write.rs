//! Writing a session: beside its target, then renamed over it, so that there is always one whole file; or into memory.

use super::{
    ModelId, Session, SessionError, VersionGuard,
    header::{self, Section, SessionLayout, ShortenedLayout},
};
use kvas_gguf::{file_id, output_target};
use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{BufWriter, ErrorKind, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// A session that is about to be written: all but what the engine knows.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    model: ModelId,
    tokens: Vec<u32>,
    conversation: String,
    durability: Durability,
    claim: Option<VersionGuard>,
}

/// What a session must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// A failure of the machine.
    Safe,
    /// The end of the process. Checksums tell if a file did not survive more, and it can be missed.
    Cache,
    /// Nothing: it is no file.
    Memory,
}

/// A session that was written.
#[derive(Debug)]
pub enum Written {
    /// The bytes of its file.
    File(u64),
    /// In memory.
    Memory(Box<Session>),
}

impl Writer {
    /// Will write the session of `tokens` to `path`. `conversation` is the caller's own, read back as it is.
    pub fn new(path: &Path, model: &ModelId, tokens: Vec<u32>, conversation: String) -> Self {
        let (path, model) = (path.to_path_buf(), model.clone());
        Self { path, model, tokens, conversation, durability: Durability::Safe, claim: None }
    }

    /// Will write it to a file that is claimed, if it is still what it was.
    pub fn claimed(claim: &VersionGuard, model: &ModelId, tokens: Vec<u32>, conversation: String) -> Self {
        Self { claim: Some(claim.clone()), ..Self::new(claim.path(), model, tokens, conversation) }
    }

    /// Will write what can be had again: nobody waits for the disk.
    pub(super) fn cache(path: &Path, model: &ModelId, tokens: Vec<u32>) -> Self {
        Self { durability: Durability::Cache, ..Self::new(path, model, tokens, String::new()) }
    }

    /// Will keep it in memory; `name` stands for it in messages.
    pub(super) fn memory(name: &str, model: &ModelId, tokens: Vec<u32>) -> Self {
        Self { durability: Durability::Memory, ..Self::new(Path::new(name), model, tokens, String::new()) }
    }

    /// Whose memory is to be written.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Begins the file.
    pub fn begin(self, layout: &SessionLayout) -> Result<OpenWriter, SessionError> {
        let Self { path, model, tokens, conversation, durability, claim } = self;
        let sections = header::sections(layout, tokens.len(), conversation.len());
        let out = match durability {
            Durability::Memory => {
                // A whole session is as long as it is, and nothing is copied while it grows.
                let bytes: usize = sections.iter().map(|section| section.bytes).sum();
                Out::Memory(Vec::with_capacity(
                    header::write(&model, layout.shortened.as_ref(), &sections).len() + bytes,
                ))
            }
            Durability::Safe | Durability::Cache => {
                if durability == Durability::Safe && claim.is_none() && !is_replaceable(&path) {
                    let what =
                        "it is that of another kind of file, which stays as it is: expected a session or a new file";
                    let (path, section) = (path.display().to_string(), header::HEADER.into());
                    return Err(SessionError::Format { path, section, what: what.into() });
                }
                let partial = Partial::create(&path, durability, claim)?;
                let file = partial.file.try_clone().map_err(|error| fail(&path, error))?;
                Out::File(BufWriter::with_capacity(1 << 20, file), partial)
            }
        };
        let quant = header::quant(layout.kv_type);
        let (hasher, bytes) = (blake3::Hasher::new(), Vec::new());
        let shortened = layout.shortened.clone();
        let mut open =
            OpenWriter { path, model, out, sections, shortened, at: 0, written: 0, hasher, quant, bytes, conversation };
        let place = header::write(&open.model, open.shortened.as_ref(), &open.sections);
        open.out.append(&place, &open.path)?;
        open.raw(&tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>())?;
        Ok(open)
    }
}

fn fail(path: &Path, error: std::io::Error) -> SessionError {
    SessionError::Write { path: path.display().to_string(), error }
}

/// The same of a file of which some may have been written.
fn fail_within(path: &Path, file: &File, error: std::io::Error) -> SessionError {
    if !matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
        return fail(path, error);
    }
    let written = file.metadata().map_or(0, |data| data.len());
    SessionError::Full { path: path.display().to_string(), written, error }
}

/// Whether a session may be written to a path: to one that is new or has a session, whole or not. A name that was mistyped is
/// that of somebody's file. What cannot be read is told by who writes.
pub fn is_replaceable(path: &Path) -> bool {
    if !path.is_file() {
        return true;
    }
    let mut beginning = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BEGINNING).read_to_end(&mut beginning));
    let mark = header::MARK.as_bytes();
    read.is_err() || beginning.is_empty() || beginning.windows(mark.len()).any(|bytes| bytes == mark)
}

/// Every session says what it is within so many bytes.
const BEGINNING: u64 = 256;

/// The end of the name of a file that is being written.
const PARTIAL: &str = ".partial";

/// Where the bytes go.
#[derive(Debug)]
enum Out {
    File(BufWriter<File>, Partial),
    Memory(Vec<u8>),
}

impl Out {
    fn append(&mut self, bytes: &[u8], path: &Path) -> Result<(), SessionError> {
        match self {
            Out::File(out, partial) => out.write_all(bytes).map_err(|error| fail_within(path, &partial.file, error)),
            Out::Memory(out) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// A session that is being written.
#[derive(Debug)]
pub struct OpenWriter {
    path: PathBuf,
    model: ModelId,
    out: Out,
    sections: Vec<Section>,
    shortened: Option<ShortenedLayout>,
    /// The section that comes next or is being written, and how much of it is.
    at: usize,
    written: usize,
    hasher: blake3::Hasher,
    /// How keys and values are stored.
    quant: kvas_gguf::Quant,
    /// Scratch.
    bytes: Vec<u8>,
    conversation: String,
}

impl OpenWriter {
    /// Writes the next values of the layout, part of one section: first the keys and values of every page store, then
    /// the states; then, of every prefix of which tokens were evicted, keys and values, state, and memory, or the memory of
    /// who has evicted none of what was read.
    pub fn write(&mut self, values: &[f32]) -> Result<(), SessionError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let quant = if self.sections[self.at].has_rows() { self.quant } else { kvas_gguf::Quant::F32 };
        bytes.resize(values.len() * quant.block_bytes(), 0);
        quant.quantize(values, &mut bytes).expect("as many bytes as the values take");
        let written = self.raw(&bytes);
        self.bytes = bytes;
        written
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.out.append(bytes, &self.path)?;
        self.hasher.update(bytes);
        self.written += bytes.len();
        assert!(self.written <= self.sections[self.at].bytes, "a section is as long as the layout says");
        // Sections without bytes are over before they begin.
        while self.sections.get(self.at).is_some_and(|section| section.bytes == self.written) {
            self.sections[self.at].checksum = std::mem::take(&mut self.hasher).finalize();
            (self.at, self.written) = (self.at + 1, 0);
        }
        Ok(())
    }

    /// Writes the rest and replaces the target.
    pub fn finish(mut self) -> Result<Written, SessionError> {
        let conversation = std::mem::take(&mut self.conversation);
        if !conversation.is_empty() {
            assert_eq!(self.sections[self.at].name, "conversation", "everything else is written");
            self.raw(conversation.as_bytes())?;
        }
        let whole = header::write(&self.model, self.shortened.as_ref(), &self.sections);
        assert_eq!(self.sections[self.at].name, header::HEADER, "everything else is written");
        self.raw(blake3::hash(&whole).as_bytes())?;
        let Self { path, out, .. } = self;
        match out {
            Out::Memory(mut bytes) => {
                bytes[..whole.len()].copy_from_slice(&whole);
                Session::from_bytes(&path.display().to_string(), bytes.into())
                    .map(|session| Written::Memory(Box::new(session)))
            }
            Out::File(mut out, partial) => {
                let written = out
                    .flush()
                    .and_then(|()| out.seek(SeekFrom::Start(0)))
                    .and_then(|_| out.write_all(&whole))
                    .and_then(|()| out.flush());
                written.map_err(|error| fail_within(&path, &partial.file, error))?;
                partial.replace().map(Written::File).map_err(|error| fail(&path, error))
            }
        }
    }
}

/// Writes a session that was in memory to `path`, as [`Writer::cache`] would have; the bytes of the file.
pub(super) fn write_out(session: &Session, path: &Path) -> Result<u64, SessionError> {
    let partial = Partial::create(path, Durability::Cache, None)?;
    (&partial.file).write_all(&session.bytes).map_err(|error| fail_within(path, &partial.file, error))?;
    partial.replace().map_err(|error| fail(path, error))
}

/// A file beside the target, removed unless it replaces the target.
#[derive(Debug)]
struct Partial {
    path: PathBuf,
    target: PathBuf,
    file: File,
    durability: Durability,
    claim: Option<VersionGuard>,
}

impl Partial {
    /// Takes the place beside `target`, also that of a writer that died; one that lives is left alone.
    fn create(target: &Path, durability: Durability, claim: Option<VersionGuard>) -> Result<Self, SessionError> {
        let named = target;
        // What can be had again has a folder of its own, which somebody may take away while it is in use.
        if let (Durability::Cache, Some(folder)) = (durability, named.parent()) {
            std::fs::create_dir_all(folder).map_err(|error| fail(named, error))?;
        }
        let target = &output_target(target).map_err(|error| fail(target, error))?;
        let mut path = target.as_os_str().to_owned();
        path.push(PARTIAL);
        let path = PathBuf::from(path);
        let file = locked(&path, &mut || {}).map_err(|error| fail(target, error))?;
        let partial = Self { path, target: target.clone(), file, durability, claim };
        // Nobody else writes the target now who does it as we do.
        if partial.claim.as_ref().is_some_and(|claim| !claim.holds()) {
            return Err(SessionError::Changed { path: named.display().to_string() });
        }
        partial.file.set_len(0).map_err(|error| fail(target, error))?;
        Ok(partial)
    }

    /// Makes the file safe, then known by the name of the target; its bytes.
    fn replace(mut self) -> std::io::Result<u64> {
        let target = &self.target;
        let is_safe = self.durability == Durability::Safe;
        if is_safe {
            self.file.sync_all()?;
        }
        let bytes = self.file.metadata()?.len();
        std::fs::rename(&self.path, target)?;
        self.path.clear();
        if let Some(claim) = &self.claim {
            claim.wrote(&self.file)?;
        }
        // Only there can a folder be opened, and only there need its names be made safe.
        if is_safe && cfg!(unix) {
            let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder)?.sync_all()?;
        }
        Ok(bytes)
    }
}

/// Opens a file at a path that nobody else has locked. `opened` is called before it is locked: until then whoever had it
/// may have renamed it, and it is the target of others.
fn locked(path: &Path, opened: &mut dyn FnMut()) -> std::io::Result<File> {
    loop {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        opened();
        match file.try_lock() {
            Ok(()) if is_at(&file, path)? => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(std::io::Error::other("another program is writing it")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// The name of the file that one of this name is written beside.
pub(super) fn beside(name: &str) -> Option<&str> {
    name.strip_suffix(PARTIAL)
}

/// Removes what a program that was killed has left beside a file: nobody has it locked.
pub(super) fn remove_abandoned(path: &Path) {
    if let Ok(file) = OpenOptions::new().write(true).open(path)
        && file.try_lock().is_ok()
    {
        // It only takes room.
        let _ = std::fs::remove_file(path);
    }
}

/// Whether an open file is still the one at a path.
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    let own = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok(file_id(&own) == file_id(&there)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Who opens the file of another writer and locks it only after that has renamed it has the target of that one.
    #[test]
    fn a_target_is_not_taken_for_the_file_beside_it() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("locked");
        std::fs::create_dir_all(&folder).unwrap();
        let [target, partial] = ["talk", "talk.partial"].map(|name| folder.join(name));
        std::fs::write(&partial, "whole").unwrap();
        let mut times = 0;
        let mut rename = || {
            times += 1;
            if times == 1 {
                std::fs::rename(&partial, &target).unwrap();
            }
        };
        let file = locked(&partial, &mut rename).unwrap();
        assert!(is_at(&file, &partial).unwrap() && !is_at(&file, &target).unwrap());
        file.set_len(0).unwrap();
        assert_eq!((times, std::fs::read_to_string(&target).unwrap().as_str()), (2, "whole"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
