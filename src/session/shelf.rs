//! Prefixes that had to leave memory: the last tiers of snapshots (ALGORITHMS 3.3). First they are kept as sessions in
//! the memory of the host, then as files in a folder, whoever was not used for the longest time going on first. A file is
//! named by the model, and by the length and the hash of its tokens, so that the folder is its own index and serves the
//! next start as well. What only some may know is kept in memory alone.

use super::{
    Layout, ModelId, Session, SessionError, Writer,
    write::{Written, write_out},
};
use crate::memory::{Scope, prefix_hashes};
use std::{
    collections::HashMap,
    fs,
    hash::Hash,
    path::{Path, PathBuf},
    time::SystemTime,
};

const ENDING: &str = "prefix";

/// Digits of the model's fingerprint in a file name; the file has all of them.
const FINGERPRINT: usize = 16;

/// Length and hash of tokens.
type Key = (u32, u64);

/// How much there is of what is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shelved {
    /// Prefixes.
    pub count: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// The prefixes of one model.
#[derive(Debug)]
pub struct Shelf {
    model: ModelId,
    memory: Level<(Scope, Key), Session>,
    folder: Option<Folder>,
}

/// A folder, and the files of one model in it.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    files: Level<Key, ()>,
}

/// What one tier keeps.
#[derive(Debug)]
struct Level<K, T> {
    /// Most bytes of all.
    budget: u64,
    kept: HashMap<K, Kept<T>>,
    clock: u64,
}

#[derive(Debug)]
struct Kept<T> {
    what: T,
    bytes: u64,
    used: u64,
}

impl<K: Copy + Eq + Hash, T> Level<K, T> {
    fn new(budget: u64) -> Self {
        Self { budget, kept: HashMap::new(), clock: 0 }
    }

    fn usage(&self) -> Shelved {
        Shelved { count: self.kept.len(), bytes: self.kept.values().map(|kept| kept.bytes).sum() }
    }

    fn use_one(&mut self, key: &K) -> Option<&T> {
        self.clock += 1;
        let kept = self.kept.get_mut(key)?;
        kept.used = self.clock;
        Some(&kept.what)
    }

    fn insert(&mut self, key: K, what: T, bytes: u64) {
        self.clock += 1;
        self.kept.insert(key, Kept { what, bytes, used: self.clock });
    }

    /// Takes out the one not used for the longest time if there is more than the budget.
    fn give_up(&mut self) -> Option<(K, T)> {
        if self.usage().bytes <= self.budget {
            return None;
        }
        let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key)?;
        self.kept.remove(&oldest).map(|kept| (oldest, kept.what))
    }
}

impl Shelf {
    /// Keeps prefixes of `model` in at most `budget` bytes of memory.
    pub fn in_memory(model: &ModelId, budget: u64) -> Self {
        Self { model: model.clone(), memory: Level::new(budget), folder: None }
    }

    /// Keeps what leaves the memory in `folder`, which is made if it is not there: at most `budget` bytes.
    ///
    /// # Errors
    /// `Write` if the folder can be neither made nor read.
    pub fn with_folder(self, folder: &Path, budget: u64) -> Result<Self, SessionError> {
        let folder = Folder::open(folder, &self.model, budget)?;
        Ok(Self { folder: Some(folder), ..self })
    }

    /// What is kept in memory.
    pub fn in_memory_usage(&self) -> Shelved {
        self.memory.usage()
    }

    /// What is kept in the folder, if there is one.
    pub fn in_folder_usage(&self) -> Option<Shelved> {
        self.folder.as_ref().map(|folder| folder.files.usage())
    }

    /// The length of the longest prefix of `tokens` that is here.
    pub fn longest(&self, scope: Scope, tokens: &[u32]) -> Option<u32> {
        let [memory, folder] = self.keys(scope, tokens);
        memory.max(folder).map(|(length, _)| length)
    }

    /// The longest prefix of `tokens` in memory, and in the folder.
    fn keys(&self, scope: Scope, tokens: &[u32]) -> [Option<Key>; 2] {
        let memory = prefix_hashes(tokens).filter(|key| self.memory.kept.contains_key(&(scope, *key))).last();
        let folder = self.folder.as_ref().filter(|_| scope == Scope::default());
        let folder =
            folder.and_then(|folder| prefix_hashes(tokens).filter(|key| folder.files.kept.contains_key(key)).last());
        [memory, folder]
    }

    /// The longest prefix of `tokens` that is here. A file that cannot be read, or is not what its name says, is
    /// removed, and `None` is returned.
    pub fn take(&mut self, scope: Scope, tokens: &[u32]) -> Option<Session> {
        let [memory, file] = self.keys(scope, tokens);
        // What has the same hash may be another one.
        let is_prefix = |session: &Session| tokens.starts_with(session.tokens());
        if let Some(key) = memory.filter(|key| file.is_none_or(|file| key.0 >= file.0)) {
            return self.memory.use_one(&(scope, key)).cloned().filter(is_prefix);
        }
        let (key, folder) = (file?, self.folder.as_mut()?);
        let session = Session::open(&folder.file(key, &self.model)).ok();
        let session = session.filter(|session| session.check_model(&self.model).is_ok() && is_prefix(session));
        match &session {
            Some(_) => {
                folder.files.use_one(&key);
            }
            None => {
                folder.files.kept.remove(&key);
                folder.remove(key, &self.model);
            }
        }
        session
    }

    /// How to write a prefix that is not here yet; [`Shelf::wrote`] must follow.
    pub fn writer(&self, scope: Scope, tokens: &[u32], layout: &Layout) -> Option<Writer> {
        let key = prefix_hashes(tokens).last()?;
        if layout.bytes(tokens.len()) <= self.memory.budget {
            let is_new = !self.memory.kept.contains_key(&(scope, key));
            return is_new.then(|| Writer::memory("a prefix in memory", &self.model, tokens.to_vec()));
        }
        let folder = self.folder.as_ref().filter(|_| scope == Scope::default())?;
        let is_new = !folder.files.kept.contains_key(&key);
        is_new.then(|| Writer::cache(&folder.file(key, &self.model), &self.model, tokens.to_vec()))
    }

    /// A prefix was written: those not used for the longest time give way to it.
    ///
    /// # Errors
    /// `Write` if what leaves the memory cannot be written to the folder.
    pub fn wrote(&mut self, scope: Scope, tokens: &[u32], written: Written) -> Result<(), SessionError> {
        let Some(key) = prefix_hashes(tokens).last() else { return Ok(()) };
        match (written, &mut self.folder) {
            (Written::Memory(session), _) => {
                let bytes = session.bytes();
                self.memory.insert((scope, key), *session, bytes);
            }
            (Written::File(bytes), Some(folder)) => folder.add(key, bytes, &self.model),
            (Written::File(_), None) => {}
        }
        while let Some(((scope, key), session)) = self.memory.give_up() {
            if let Some(folder) = self.folder.as_mut().filter(|_| scope == Scope::default())
                && !folder.files.kept.contains_key(&key)
            {
                let bytes = write_out(&session, &folder.file(key, &self.model))?;
                folder.add(key, bytes, &self.model);
            }
        }
        Ok(())
    }
}

impl Folder {
    fn open(path: &Path, model: &ModelId, budget: u64) -> Result<Self, SessionError> {
        let fail = |error| SessionError::Write { path: path.display().to_string(), error };
        fs::create_dir_all(path).map_err(fail)?;
        let mut found: Vec<(Key, u64, SystemTime)> = Vec::new();
        for entry in fs::read_dir(path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy().to_string();
            // Another process may remove a file meanwhile.
            if let (Some(key), Ok(data)) = (key_of(&name, model), entry.metadata()) {
                found.push((key, data.len(), data.modified().unwrap_or(SystemTime::UNIX_EPOCH)));
            }
        }
        found.sort_by_key(|(_, _, modified)| *modified);
        let mut folder = Self { path: path.to_path_buf(), files: Level::new(budget) };
        found.into_iter().for_each(|(key, bytes, _)| folder.files.insert(key, (), bytes));
        folder.shrink(model);
        Ok(folder)
    }

    fn add(&mut self, key: Key, bytes: u64, model: &ModelId) {
        self.files.insert(key, (), bytes);
        self.shrink(model);
    }

    /// Removes the files not used for the longest time until the rest fits.
    fn shrink(&mut self, model: &ModelId) {
        while let Some((key, ())) = self.files.give_up() {
            self.remove(key, model);
        }
    }

    fn remove(&self, key: Key, model: &ModelId) {
        // If it cannot be removed, a file too many harms nobody.
        let _ = fs::remove_file(self.file(key, model));
    }

    fn file(&self, (length, hash): Key, model: &ModelId) -> PathBuf {
        let fingerprint = &model.fingerprint[..FINGERPRINT.min(model.fingerprint.len())];
        self.path.join(format!("{fingerprint}-{length}-{hash:016x}.{ENDING}"))
    }
}

/// Length and hash in the name of a prefix of a model.
fn key_of(name: &str, model: &ModelId) -> Option<Key> {
    let mut parts = name.strip_suffix(&format!(".{ENDING}"))?.split('-');
    let (fingerprint, length, hash) = (parts.next()?, parts.next()?, parts.next()?);
    if fingerprint.len() != FINGERPRINT || !model.fingerprint.starts_with(fingerprint) || parts.next().is_some() {
        return None;
    }
    Some((length.parse().ok()?, u64::from_str_radix(hash, 16).ok()?))
}
