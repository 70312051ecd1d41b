//! Prefixes that had to leave memory: the last tiers of snapshots (ALGORITHMS 3.3). First they are kept as sessions in
//! the memory of the host, then as files in a folder, whoever was not used for the longest time going on first. A file is
//! named by the model, by the length and the hash of its tokens, and by how some of these were given up, so that the folder
//! is its own index and serves the next start as well. What only some may know is kept in memory alone.

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

/// What a prefix is told by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// Tokens.
    length: u32,
    /// Of the tokens.
    hash: u64,
    /// How some of them were given up: [`policy_hash`], 0 if none were.
    policy: u64,
}

/// Which prefixes of a prompt serve.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Most tokens of one that holds all of them.
    whole: u32,
    /// How tokens may have been given up.
    policy: u64,
    /// Most tokens that may.
    given_up: u32,
}

impl Wanted {
    /// Prefixes of up to `whole` tokens that hold all of them; and those that have given up tokens in such a way
    /// ([`crate::policy::Keeping::identity`]), of every layer no more than so many.
    pub fn new(whole: u32, policy: Option<(&str, u32)>) -> Self {
        let (policy, given_up) = policy.map_or((0, 0), |(policy, given_up)| (policy_hash(policy), given_up));
        Self { whole, policy, given_up }
    }
}

/// Never 0.
fn policy_hash(policy: &str) -> u64 {
    let hash = blake3::hash(policy.as_bytes());
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash is longer")).max(1)
}

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
    /// Tokens of every layer that were given up.
    given_up: u32,
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

    fn insert(&mut self, key: K, what: T, [bytes, given_up]: [u64; 2]) {
        self.clock += 1;
        let given_up = u32::try_from(given_up).unwrap_or(u32::MAX);
        self.kept.insert(key, Kept { what, bytes, used: self.clock, given_up });
    }

    /// Whether there is one that has given up no more than so many tokens.
    fn has(&self, key: &K, most: u32) -> bool {
        self.kept.get(key).is_some_and(|kept| kept.given_up <= most)
    }

    /// Takes out the one not used for the longest time if there is more than the budget.
    fn give_up(&mut self) -> Option<(K, Kept<T>)> {
        if self.usage().bytes <= self.budget {
            return None;
        }
        let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key)?;
        self.kept.remove(&oldest).map(|kept| (oldest, kept))
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

    /// The length of the longest prefix of `tokens` that is here and wanted.
    pub fn longest(&self, scope: Scope, tokens: &[u32], wanted: Wanted) -> Option<u32> {
        self.keys(scope, tokens, wanted).into_iter().flatten().map(|key| key.length).max()
    }

    /// The longest prefix of `tokens` that is wanted in memory, and in the folder.
    fn keys(&self, scope: Scope, tokens: &[u32], wanted: Wanted) -> [Option<Key>; 2] {
        let Wanted { whole, policy, given_up } = wanted;
        let of = |has: &dyn Fn(&Key, u32) -> bool| {
            let longest = |(length, hash): (u32, u64)| {
                let is_whole = Some(Key { length, hash, policy: 0 }).filter(|key| length <= whole && has(key, 0));
                is_whole.or(Some(Key { length, hash, policy }).filter(|key| policy != 0 && has(key, given_up)))
            };
            prefix_hashes(tokens).filter_map(longest).last()
        };
        let folder = self.folder.as_ref().filter(|_| scope == Scope::default());
        let in_folder = folder.and_then(|folder| of(&|key, most| folder.files.has(key, most)));
        [of(&|key, most| self.memory.has(&(scope, *key), most)), in_folder]
    }

    /// The longest prefix of `tokens` that is here and wanted. A file that cannot be read, or is not what its name says,
    /// is removed, and `None` is returned.
    pub fn take(&mut self, scope: Scope, tokens: &[u32], wanted: Wanted) -> Option<Session> {
        let [memory, file] = self.keys(scope, tokens, wanted);
        // What has the same hash may be another one.
        let is_prefix = |session: &Session| {
            let policy = session.policy().map_or(0, policy_hash);
            tokens.starts_with(session.tokens()) && [0, wanted.policy].contains(&policy)
        };
        if let Some(key) = memory.filter(|key| file.is_none_or(|file| key.length >= file.length)) {
            return self.memory.use_one(&(scope, key)).cloned().filter(is_prefix);
        }
        let (key, folder) = (file?, self.folder.as_mut()?);
        let given_up = folder.given_up(key);
        let session = Session::open(&folder.file((key, given_up), &self.model)).ok();
        let session = session.filter(|session| session.check_model(&self.model).is_ok() && is_prefix(session));
        match &session {
            Some(_) => {
                folder.files.use_one(&key);
            }
            None => {
                folder.files.kept.remove(&key);
                folder.remove((key, given_up), &self.model);
            }
        }
        session
    }

    /// How to write a prefix that is not here yet; [`Shelf::wrote`] must follow.
    pub fn writer(&self, scope: Scope, tokens: &[u32], layout: &Layout) -> Option<Writer> {
        let (key, given_up) = key_of(tokens, layout)?;
        if layout.bytes(tokens.len()) <= self.memory.budget {
            let is_new = !self.memory.kept.contains_key(&(scope, key));
            return is_new.then(|| Writer::memory("a prefix in memory", &self.model, tokens.to_vec()));
        }
        let folder = self.folder.as_ref().filter(|_| scope == Scope::default())?;
        let (is_new, file) = (!folder.files.kept.contains_key(&key), folder.file((key, given_up), &self.model));
        is_new.then(|| Writer::cache(&file, &self.model, tokens.to_vec()))
    }

    /// A prefix was written: those not used for the longest time give way to it.
    ///
    /// # Errors
    /// `Write` if what leaves the memory cannot be written to the folder.
    pub fn wrote(
        &mut self,
        scope: Scope,
        (tokens, layout): (&[u32], &Layout),
        written: Written,
    ) -> Result<(), SessionError> {
        let Some((key, given_up)) = key_of(tokens, layout) else { return Ok(()) };
        match (written, &mut self.folder) {
            (Written::Memory(session), _) => {
                let sizes = [session.bytes(), given_up.into()];
                self.memory.insert((scope, key), *session, sizes);
            }
            (Written::File(bytes), Some(folder)) => folder.add(key, [bytes, given_up.into()], &self.model),
            (Written::File(_), None) => {}
        }
        while let Some(((scope, key), Kept { what: session, given_up, .. })) = self.memory.give_up() {
            if let Some(folder) = self.folder.as_mut().filter(|_| scope == Scope::default())
                && !folder.files.kept.contains_key(&key)
            {
                let bytes = write_out(&session, &folder.file((key, given_up), &self.model))?;
                folder.add(key, [bytes, given_up.into()], &self.model);
            }
        }
        Ok(())
    }
}

/// What a prefix is told by that is written like this, and the tokens of every layer that it has given up.
fn key_of(tokens: &[u32], layout: &Layout) -> Option<(Key, u32)> {
    let (length, hash) = prefix_hashes(tokens).last()?;
    let (policy, given_up) = layout.given_up().map_or((0, 0), |(policy, given_up)| (policy_hash(policy), given_up));
    Some((Key { length, hash, policy }, given_up))
}

impl Folder {
    fn open(path: &Path, model: &ModelId, budget: u64) -> Result<Self, SessionError> {
        let fail = |error| SessionError::Write { path: path.display().to_string(), error };
        fs::create_dir_all(path).map_err(fail)?;
        let mut found: Vec<((Key, u32), u64, SystemTime)> = Vec::new();
        for entry in fs::read_dir(path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy().to_string();
            // Another process may remove a file meanwhile.
            if let (Some(key), Ok(data)) = (named(&name, model), entry.metadata()) {
                found.push((key, data.len(), data.modified().unwrap_or(SystemTime::UNIX_EPOCH)));
            }
        }
        found.sort_by_key(|(_, _, modified)| *modified);
        let mut folder = Self { path: path.to_path_buf(), files: Level::new(budget) };
        for ((key, given_up), bytes, _) in found {
            folder.files.insert(key, (), [bytes, given_up.into()]);
        }
        folder.shrink(model);
        Ok(folder)
    }

    fn add(&mut self, key: Key, sizes: [u64; 2], model: &ModelId) {
        self.files.insert(key, (), sizes);
        self.shrink(model);
    }

    /// Tokens of every layer that a prefix has given up.
    fn given_up(&self, key: Key) -> u32 {
        self.files.kept.get(&key).map_or(0, |kept| kept.given_up)
    }

    /// Removes the files not used for the longest time until the rest fits.
    fn shrink(&mut self, model: &ModelId) {
        while let Some((key, kept)) = self.files.give_up() {
            self.remove((key, kept.given_up), model);
        }
    }

    fn remove(&self, key: (Key, u32), model: &ModelId) {
        // If it cannot be removed, a file too many harms nobody.
        let _ = fs::remove_file(self.file(key, model));
    }

    fn file(&self, (Key { length, hash, policy }, given_up): (Key, u32), model: &ModelId) -> PathBuf {
        let fingerprint = &model.fingerprint[..FINGERPRINT.min(model.fingerprint.len())];
        let how = if policy == 0 { String::new() } else { format!("-{policy:016x}-{given_up}") };
        self.path.join(format!("{fingerprint}-{length}-{hash:016x}{how}.{ENDING}"))
    }
}

/// What the name of a prefix of a model tells it by, and the tokens of every layer that were given up.
fn named(name: &str, model: &ModelId) -> Option<(Key, u32)> {
    let parts: Vec<&str> = name.strip_suffix(&format!(".{ENDING}"))?.split('-').collect();
    let (fingerprint, length, hash, policy, given_up) = match parts[..] {
        [fingerprint, length, hash] => (fingerprint, length, hash, "0", "0"),
        [fingerprint, length, hash, policy, given_up] => (fingerprint, length, hash, policy, given_up),
        _ => return None,
    };
    if fingerprint.len() != FINGERPRINT || !model.fingerprint.starts_with(fingerprint) {
        return None;
    }
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let key = Key { length: length.parse().ok()?, hash: number(hash)?, policy: number(policy)? };
    Some((key, given_up.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_what_a_file_is_and_others_are_left_alone() {
        let model = |fingerprint: &str| ModelId {
            name: "toy".into(),
            architecture: "none".into(),
            fingerprint: fingerprint.repeat(16),
        };
        let folder = Folder { path: PathBuf::new(), files: Level::new(1) };
        let whole = Key { length: 300, hash: 0xab, policy: 0 };
        let cut = Key { policy: policy_hash("policy slake"), ..whole };
        for (key, given_up) in [(whole, 0), (cut, 17)] {
            let file = folder.file((key, given_up), &model("ab")).display().to_string();
            assert_eq!(named(&file, &model("ab")), Some((key, given_up)), "{file}");
            assert_eq!(named(&file, &model("cd")), None, "{file}");
            assert_eq!(named(&file.replace("prefix", "session"), &model("ab")), None);
            assert_eq!(named(&file.replace("-300-", "-"), &model("ab")), None);
        }
        assert!(cut.policy != policy_hash("policy edgeinfinite"));
    }

    #[test]
    fn what_has_given_up_too_much_or_in_another_way_is_not_wanted() {
        let model = ModelId { name: "toy".into(), architecture: "none".into(), fingerprint: "ab".repeat(16) };
        let (mut shelf, tokens) = (Shelf::in_memory(&model, 1 << 20), [5, 6, 7, 8, 9]);
        shelf.folder = Some(Folder { path: PathBuf::new(), files: Level::new(1 << 20) });
        let hashes: Vec<(u32, u64)> = prefix_hashes(&tokens).collect();
        let key = |(length, hash): (u32, u64), policy| Key { length, hash, policy };
        let files = &mut shelf.folder.as_mut().unwrap().files;
        files.insert(key(hashes[2], 0), (), [10, 0]);
        files.insert(key(hashes[3], policy_hash("some")), (), [10, 2]);
        let longest = |wanted| shelf.longest(Scope::default(), &tokens, wanted);
        assert_eq!(longest(Wanted::new(5, None)), Some(3));
        assert_eq!(longest(Wanted::new(2, None)), None);
        assert_eq!(longest(Wanted::new(5, Some(("some", 2)))), Some(4));
        assert_eq!(longest(Wanted::new(5, Some(("some", 1)))), Some(3));
        assert_eq!(longest(Wanted::new(5, Some(("other", 9)))), Some(3));
        assert_eq!(shelf.longest(Scope(7), &tokens, Wanted::new(5, None)), None, "files are what everybody may know");
    }
}
