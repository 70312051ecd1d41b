//! Prefixes that had to leave memory, as session files in a folder: the last tier of snapshots (ALGORITHMS 3.3). A file
//! is named by the model, and by the length and the hash of its tokens, so that the folder is its own index and serves
//! the next start as well.

use super::{ModelId, Session, SessionError, Writer};
use crate::memory::prefix_hashes;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

const ENDING: &str = "prefix";

/// Digits of the model's fingerprint in a file name; the file has all of them.
const FINGERPRINT: usize = 16;

/// The files of one model in a folder.
#[derive(Debug)]
pub struct Shelf {
    folder: PathBuf,
    model: ModelId,
    /// Most bytes of all files.
    budget: u64,
    /// By length and hash of the tokens.
    files: HashMap<(u32, u64), Shelved>,
    clock: u64,
}

#[derive(Debug)]
struct Shelved {
    bytes: u64,
    used: u64,
}

impl Shelf {
    /// The prefixes of `model` in `folder`, which is made if it is not there. At most `budget` bytes are kept.
    pub fn open(folder: &Path, model: &ModelId, budget: u64) -> Result<Self, SessionError> {
        let fail = |error| SessionError::Write { path: folder.display().to_string(), error };
        fs::create_dir_all(folder).map_err(fail)?;
        let mut found: Vec<((u32, u64), u64, SystemTime)> = Vec::new();
        for entry in fs::read_dir(folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy().to_string();
            // Another process may remove a file meanwhile.
            if let (Some(key), Ok(data)) = (key_of(&name, model), entry.metadata()) {
                found.push((key, data.len(), data.modified().unwrap_or(SystemTime::UNIX_EPOCH)));
            }
        }
        found.sort_by_key(|(_, _, modified)| *modified);
        let numbered = found.into_iter().zip(1..);
        let files = numbered.map(|((key, bytes, _), used)| (key, Shelved { bytes, used })).collect::<HashMap<_, _>>();
        let clock = files.len() as u64;
        let mut shelf = Self { folder: folder.to_path_buf(), model: model.clone(), budget, files, clock };
        shelf.shrink(0);
        Ok(shelf)
    }

    /// Files and their bytes.
    pub fn usage(&self) -> (usize, u64) {
        (self.files.len(), self.files.values().map(|file| file.bytes).sum())
    }

    /// The length of the longest prefix of `tokens` that is here.
    pub fn longest(&self, tokens: &[u32]) -> Option<u32> {
        self.key(tokens).map(|(length, _)| length)
    }

    fn key(&self, tokens: &[u32]) -> Option<(u32, u64)> {
        prefix_hashes(tokens).filter(|key| self.files.contains_key(key)).last()
    }

    /// The longest prefix of `tokens` that is here. A file that cannot be read, or is not what its name says, is
    /// removed, and `None` is returned.
    pub fn take(&mut self, tokens: &[u32]) -> Option<Session> {
        let key = self.key(tokens)?;
        let path = self.path(key);
        let session = Session::open(&path)
            .ok()
            .filter(|session| session.check_model(&self.model).is_ok() && tokens.starts_with(session.tokens()));
        self.clock += 1;
        match &session {
            Some(_) => self.files.get_mut(&key)?.used = self.clock,
            None => self.remove(key),
        }
        session
    }

    /// Where to write a prefix that is not here yet; [`Shelf::wrote`] must follow.
    pub fn writer(&self, tokens: &[u32]) -> Option<Writer> {
        let key = prefix_hashes(tokens).last().filter(|key| !self.files.contains_key(key))?;
        Some(Writer::cache(&self.path(key), &self.model, tokens.to_vec()))
    }

    /// A prefix was written: those not used for the longest time give way to it.
    pub fn wrote(&mut self, tokens: &[u32], bytes: u64) {
        let Some(key) = prefix_hashes(tokens).last() else { return };
        self.clock += 1;
        self.files.insert(key, Shelved { bytes, used: self.clock });
        self.shrink(self.clock);
    }

    /// Removes the files not used for the longest time until the rest fits; the one used at `newest` goes last.
    fn shrink(&mut self, newest: u64) {
        while self.usage().1 > self.budget {
            let oldest = self.files.iter().min_by_key(|(_, file)| (file.used == newest, file.used));
            let Some(key) = oldest.map(|(key, _)| *key) else { return };
            self.remove(key);
        }
    }

    fn remove(&mut self, key: (u32, u64)) {
        self.files.remove(&key);
        // If it cannot be removed, a file too many harms nobody.
        let _ = fs::remove_file(self.path(key));
    }

    fn path(&self, (length, hash): (u32, u64)) -> PathBuf {
        let fingerprint = &self.model.fingerprint[..FINGERPRINT.min(self.model.fingerprint.len())];
        self.folder.join(format!("{fingerprint}-{length}-{hash:016x}.{ENDING}"))
    }
}

/// Length and hash in the name of a prefix of a model.
fn key_of(name: &str, model: &ModelId) -> Option<(u32, u64)> {
    let mut parts = name.strip_suffix(&format!(".{ENDING}"))?.split('-');
    let (fingerprint, length, hash) = (parts.next()?, parts.next()?, parts.next()?);
    if fingerprint.len() != FINGERPRINT || !model.fingerprint.starts_with(fingerprint) || parts.next().is_some() {
        return None;
    }
    Some((length.parse().ok()?, u64::from_str_radix(hash, 16).ok()?))
}
