//! Prefixes that had to leave memory: the last tiers of snapshots (ALGORITHMS 3.3). First they are kept as sessions in
//! the memory of the host, then as files in a folder, whoever was not used for the longest time going on first. A file is
//! named by the model, by the length and the hash of its tokens, and by how some of these were evicted, so that the folder
//! is its own index and serves the next start as well. What only some may know is kept in memory alone. A prefix serves
//! whoever begins with a shorter one that it holds, too, where that can be gone on from: the file has its name as well.

use super::{
    ModelId, Session, SessionError, SessionLayout, Writer,
    write::{Written, beside, remove_abandoned, write_out},
};
use crate::memory::{Scope, prefix_hashes};
use kvas_gguf::file_id;
use std::{
    collections::HashMap,
    fs,
    hash::Hash,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

const ENDING: &str = "prefix";

/// Digits of the model's fingerprint in a file name; the file has all of them.
const FINGERPRINT: usize = 16;

/// How long a disk that was full is taken to be so: to find out costs a file that is written in vain.
const SHORT: Duration = Duration::from_secs(600);

/// What a prefix is told by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// Tokens.
    length: u32,
    /// Of the tokens.
    hash: u64,
    /// How some of them were evicted: [`policy_hash`], 0 if none were.
    policy: u64,
}

/// Which prefixes of a prompt serve.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrefixQuery {
    /// Most tokens of one that holds all of them.
    whole: u32,
    /// How tokens may have been evicted.
    policy: u64,
    /// Most tokens that may.
    evicted: u32,
}

impl PrefixQuery {
    /// Prefixes of up to `whole` tokens that hold all of them; and those that have evicted tokens in such a way
    /// ([`crate::policy::EvictionPolicy::identity`]), of every layer no more than so many.
    pub fn new(whole: u32, policy: Option<(&str, u32)>) -> Self {
        let (policy, evicted) = policy.map_or((0, 0), |(policy, evicted)| (policy_hash(policy), evicted));
        Self { whole, policy, evicted }
    }
}

/// Never 0.
fn policy_hash(policy: &str) -> u64 {
    let hash = blake3::hash(policy.as_bytes());
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash is longer")).max(1)
}

/// How much there is of what is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OffloadUsage {
    /// Prefixes.
    pub count: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// The prefixes of one model.
#[derive(Debug)]
pub struct OffloadCache {
    model: ModelId,
    memory: Tier<(Scope, Key), Session>,
    folder: Option<Folder>,
}

/// A folder, and the files of one model in it.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    files: Tier<Key, ()>,
    /// Most bytes that its files were given.
    given: u64,
    /// When the disk was full before these were used up: the budget of the files is what it has room for since.
    short_since: Option<Instant>,
    /// The log has it.
    is_told: bool,
}

/// What one tier keeps.
#[derive(Debug)]
struct Tier<K, T> {
    /// Most bytes of all.
    budget: u64,
    kept: HashMap<K, CacheEntry<T>>,
    /// Shorter prefixes that can be gone on from, each with the one that holds it.
    parts: HashMap<K, K>,
    clock: u64,
}

#[derive(Debug)]
struct CacheEntry<T> {
    what: T,
    bytes: u64,
    used: u64,
    /// Tokens of every layer that were evicted.
    evicted: u32,
}

/// A prefix that is there.
#[derive(Debug, Clone, Copy)]
struct Found<K> {
    /// What is asked for.
    key: K,
    /// What holds it: itself or a longer one.
    holder: K,
}

/// Where the longest prefix is in memory, and in the folder.
type Places = (Option<Found<(Scope, Key)>>, Option<Found<Key>>);

impl<K: Copy + Eq + Hash, T> Tier<K, T> {
    fn new(budget: u64) -> Self {
        Self { budget, kept: HashMap::new(), parts: HashMap::new(), clock: 0 }
    }

    fn usage(&self) -> OffloadUsage {
        OffloadUsage { count: self.kept.len(), bytes: self.kept.values().map(|kept| kept.bytes).sum() }
    }

    fn use_one(&mut self, key: &K) -> Option<&T> {
        self.clock += 1;
        let kept = self.kept.get_mut(key)?;
        kept.used = self.clock;
        Some(&kept.what)
    }

    fn insert(&mut self, key: K, what: T, [bytes, evicted]: [u64; 2]) {
        self.clock += 1;
        let evicted = u32::try_from(evicted).unwrap_or(u32::MAX);
        self.kept.insert(key, CacheEntry { what, bytes, used: self.clock, evicted });
    }

    /// One that has evicted no more than so many tokens, or what holds it.
    fn find(&self, key: K, most: u32) -> Option<Found<K>> {
        if self.kept.get(&key).is_some_and(|kept| kept.evicted <= most) {
            return Some(Found { key, holder: key });
        }
        self.parts.get(&key).map(|holder| Found { key, holder: *holder })
    }

    /// Whether there is one, or what holds it.
    fn knows(&self, key: &K) -> bool {
        self.kept.contains_key(key) || self.parts.contains_key(key)
    }

    /// A prefix holds others, which can be gone on from. Those that were here on their own are not needed any more.
    fn holds(&mut self, holder: K, parts: &[K]) {
        for key in parts {
            self.remove(key);
            self.parts.insert(*key, holder);
        }
    }

    /// What a prefix holds.
    fn parts_of(&self, holder: K) -> impl Iterator<Item = K> {
        self.parts.iter().filter(move |(_, of)| **of == holder).map(|(key, _)| *key)
    }

    fn remove(&mut self, key: &K) -> Option<CacheEntry<T>> {
        self.parts.retain(|_, holder| holder != key);
        self.kept.remove(key)
    }

    /// The one not used for the longest time if there is more than the budget leaves with so many bytes of another one.
    fn oldest(&self, bytes: u64) -> Option<K> {
        let is_over = self.usage().bytes > self.budget.saturating_sub(bytes);
        self.kept.iter().filter(|_| is_over).min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key)
    }
}

impl OffloadCache {
    /// Keeps prefixes of `model` in at most `budget` bytes of memory.
    pub fn in_memory(model: &ModelId, budget: u64) -> Self {
        Self { model: model.clone(), memory: Tier::new(budget), folder: None }
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
    pub fn in_memory_usage(&self) -> OffloadUsage {
        self.memory.usage()
    }

    /// Most bytes of a prefix that is kept anywhere.
    pub fn most_bytes(&self) -> u64 {
        self.memory.budget.max(self.folder.as_ref().map_or(0, |folder| folder.files.budget))
    }

    /// What is kept in the folder, if there is one.
    pub fn in_folder_usage(&self) -> Option<OffloadUsage> {
        self.folder.as_ref().map(|folder| folder.files.usage())
    }

    /// The length of the longest prefix of `tokens` that is here and wanted.
    pub fn longest(&self, scope: Scope, tokens: &[u32], wanted: PrefixQuery) -> Option<u32> {
        let (memory, file) = self.find(scope, tokens, wanted);
        memory.map(|found| found.key.1.length).max(file.map(|found| found.key.length))
    }

    /// The longest prefix of `tokens` that is wanted in memory, and in the folder.
    fn find(&self, scope: Scope, tokens: &[u32], wanted: PrefixQuery) -> Places {
        let PrefixQuery { whole, policy, evicted } = wanted;
        let folder = self.folder.as_ref().filter(|_| scope == Scope::default());
        let mut found = (None, None);
        for (length, hash) in prefix_hashes(tokens) {
            // Of two that are as long the one that holds all tokens.
            for (policy, most) in [(policy, evicted), (0, 0)] {
                if policy == 0 && length > whole {
                    continue;
                }
                let key = Key { length, hash, policy };
                found.0 = self.memory.find((scope, key), most).or(found.0);
                found.1 = folder.and_then(|folder| folder.files.find(key, most)).or(found.1);
            }
        }
        found
    }

    /// What holds the longest prefix of `tokens` that is here and wanted, and the length of that prefix. A file that cannot
    /// be read, or is not what its name says, is removed, which the log says, and `None` is returned.
    pub fn take(&mut self, scope: Scope, tokens: &[u32], wanted: PrefixQuery) -> Option<(Session, u32)> {
        let (memory, file) = self.find(scope, tokens, wanted);
        // What has the same hash may be another one.
        let is_prefix = |session: &Session, length: u32| {
            let policy = session.policy().map_or(0, policy_hash);
            let (begin, all) = (tokens.get(..length as usize), session.tokens().get(..length as usize));
            begin == all && begin.is_some() && [0, wanted.policy].contains(&policy)
        };
        let is_longer = |(_, key): (Scope, Key)| file.is_none_or(|file| key.length >= file.key.length);
        if let Some(Found { key, holder }) = memory.filter(|found| is_longer(found.key)) {
            let length = key.1.length;
            let session = self.memory.use_one(&holder).filter(|session| is_prefix(session, length))?;
            return Some((session.clone(), length));
        }
        let (Found { key: Key { length, .. }, holder }, folder) = (file?, self.folder.as_mut()?);
        let evicted = folder.evicted(holder);
        let path = folder.file((holder, evicted), &self.model);
        let session = Session::open(&path).and_then(|session| session.check_model(&self.model).map(|()| session));
        match session {
            Ok(session) if is_prefix(&session, length) => {
                folder.files.use_one(&holder);
                return Some((session, length));
            }
            Ok(_) => tracing::warn!("{}: it holds another prefix than its name says, and is removed", path.display()),
            // Another process may have removed it.
            Err(error) if path.exists() => tracing::warn!("a kept prefix cannot be used and is removed: {error}"),
            Err(_) => {}
        }
        folder.evict(holder, &self.model);
        None
    }

    /// How to write a prefix that is not here yet; [`OffloadCache::wrote`] must follow.
    pub fn writer(&mut self, scope: Scope, tokens: &[u32], layout: &SessionLayout) -> Option<Writer> {
        let (key, evicted) = key_of(tokens, layout)?;
        if layout.bytes(tokens.len()) <= self.memory.budget {
            let is_new = !self.memory.knows(&(scope, key));
            return is_new.then(|| Writer::memory("a prefix in memory", &self.model, tokens.to_vec()));
        }
        let (bytes, folder) = (layout.file_bytes(&self.model, tokens.len()), self.folder.as_mut()?);
        folder.look_for_room();
        let is_new = scope == Scope::default() && folder.takes(key, bytes);
        let file = folder.file((key, evicted), &self.model);
        if is_new {
            folder.clear_for(bytes, &self.model);
        }
        is_new.then(|| Writer::cache(&file, &self.model, tokens.to_vec()))
    }

    /// A prefix was written: those not used for the longest time give way to it. `ends` are the lengths of the shorter ones
    /// that were kept with it; of those with a state in `layout`, and of all where there is none, it takes the place.
    ///
    /// # Errors
    /// `Write` if what leaves the memory cannot be written to the folder.
    pub fn wrote(
        &mut self,
        scope: Scope,
        (tokens, layout, ends): (&[u32], &SessionLayout, &[u32]),
        written: Written,
    ) -> Result<(), SessionError> {
        let Some((key, evicted)) = key_of(tokens, layout) else { return Ok(()) };
        let serves = |length: &u32| layout.state_elements == 0 || layout.positions.contains(length);
        let parts = prefix_hashes(tokens).filter(|(length, _)| *length < key.length && ends.contains(length));
        let parts = parts.filter(|(length, _)| serves(length));
        let parts: Vec<Key> = parts.map(|(length, hash)| Key { length, hash, policy: 0 }).collect();
        match (written, &mut self.folder) {
            (Written::Memory(session), _) => {
                let sizes = [session.bytes(), evicted.into()];
                self.memory.insert((scope, key), *session, sizes);
                let parts: Vec<_> = parts.iter().map(|part| (scope, *part)).collect();
                self.memory.holds((scope, key), &parts);
            }
            (Written::File(bytes), Some(folder)) => folder.add((key, &parts), [bytes, evicted.into()], &self.model),
            (Written::File(_), None) => {}
        }
        self.make_room()
    }

    /// Writes a prefix, once more if others have given way to it where the disk is full. `full`: what may say so in an error of
    /// `write`, which says `None` where there is nothing to write.
    pub(crate) fn making_way<T, E>(
        &mut self,
        full: impl Fn(&E) -> Option<&SessionError>,
        mut write: impl FnMut(&mut Self) -> Option<Result<T, E>>,
    ) -> Option<Result<T, E>> {
        match write(self)? {
            Err(error) if full(&error).is_some_and(|error| self.give_way(error)) => write(self).or(Some(Err(error))),
            written => Some(written),
        }
    }

    /// A prefix could not be written. If the disk of the folder is full, this has room for no more from now on than is there and
    /// was written, for a while, and others give way: whether to try again.
    fn give_way(&mut self, error: &SessionError) -> bool {
        let (SessionError::Full { written, .. }, Some(folder)) = (error, &mut self.folder) else { return false };
        let there = folder.files.usage().bytes;
        if there == 0 {
            return false;
        }
        folder.files.budget = folder.files.budget.min(there + written);
        folder.short_since = Some(Instant::now());
        if !std::mem::replace(&mut folder.is_told, true) {
            let (path, room) = (folder.path.display(), folder.files.budget >> 20);
            tracing::warn!("{path}: the disk is full: old prefixes give way to new ones, and take {room} MiB at most");
        }
        true
    }

    /// What is over in memory goes to the folder, or is gone if it cannot be written there: the last reason is told.
    fn make_room(&mut self) -> Result<(), SessionError> {
        let mut all = Ok(());
        while let Some(oldest) = self.memory.oldest(0) {
            let ((scope, key), parts) = (oldest, self.memory.parts_of(oldest));
            let parts: Vec<Key> = parts.map(|(_, part)| part).collect();
            let gone = self.memory.remove(&oldest);
            if let Some(CacheEntry { what: session, evicted, .. }) = gone.filter(|_| scope == Scope::default()) {
                all = self.write_out((key, evicted), &parts, &session).and(all);
            }
        }
        all
    }

    /// Writes what leaves the memory to the folder, if there is one that takes it: once more if others have given way.
    fn write_out(&mut self, (key, evicted): (Key, u32), parts: &[Key], session: &Session) -> Result<(), SessionError> {
        let written = self.making_way(
            |error| Some(error),
            |cache| {
                let folder = cache.folder.as_mut()?;
                folder.look_for_room();
                if !folder.takes(key, session.bytes()) {
                    return None;
                }
                folder.clear_for(session.bytes(), &cache.model);
                let written = write_out(session, &folder.file((key, evicted), &cache.model));
                Some(written.map(|bytes| folder.add((key, parts), [bytes, evicted.into()], &cache.model)))
            },
        );
        written.unwrap_or(Ok(()))
    }
}

/// What a prefix is told by that is written like this, and the tokens of every layer that it has evicted.
fn key_of(tokens: &[u32], layout: &SessionLayout) -> Option<(Key, u32)> {
    let (length, hash) = prefix_hashes(tokens).last()?;
    let (policy, evicted) = layout.eviction().map_or((0, 0), |(policy, evicted)| (policy_hash(policy), evicted));
    Some((Key { length, hash, policy }, evicted))
}

impl Folder {
    fn new(path: PathBuf, budget: u64) -> Self {
        Self { path, files: Tier::new(budget), given: budget, short_since: None, is_told: false }
    }

    /// A disk that was full may have room again. If it has none, others give way once more.
    fn look_for_room(&mut self) {
        if self.short_since.is_some_and(|since| since.elapsed() >= SHORT) {
            (self.files.budget, self.short_since) = (self.given, None);
        }
    }

    fn open(path: &Path, model: &ModelId, budget: u64) -> Result<Self, SessionError> {
        let fail = |error| SessionError::Write { path: path.display().to_string(), error };
        fs::create_dir_all(path).map_err(fail)?;
        let mut found: Vec<((Key, u32), fs::Metadata)> = Vec::new();
        for entry in fs::read_dir(path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy().to_string();
            // Another process may remove a file meanwhile.
            if let (Some(key), Ok(data)) = (named(&name, model), entry.metadata()) {
                found.push((key, data));
            }
            if beside(&name).is_some_and(|name| named(name, model).is_some()) {
                remove_abandoned(&entry.path());
            }
        }
        let modified = |data: &fs::Metadata| data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        // Of several names of a file the longest prefix comes first.
        found.sort_by_key(|((key, _), data)| (modified(data), std::cmp::Reverse(key.length)));
        let mut folder = Self::new(path.to_path_buf(), budget);
        let mut holders: HashMap<[u64; 2], Key> = HashMap::new();
        for ((key, evicted), data) in found {
            match file_id(&data).and_then(|file| holders.get(&file)) {
                Some(holder) => folder.files.holds(*holder, &[key]),
                None => {
                    holders.extend(file_id(&data).map(|file| (file, key)));
                    folder.files.insert(key, (), [data.len(), evicted.into()]);
                }
            }
        }
        folder.shrink(model);
        Ok(folder)
    }

    fn add(&mut self, (key, parts): (Key, &[Key]), sizes: [u64; 2], model: &ModelId) {
        self.files.insert(key, (), sizes);
        for part in parts {
            if self.files.kept.contains_key(part) {
                self.evict(*part, model);
            }
        }
        self.files.holds(key, parts);
        for part in parts {
            // It may be the name of another file that holds it. Without a name it serves until the end of the process.
            self.remove((*part, 0), model);
            let _ = fs::hard_link(self.file((key, 0), model), self.file((*part, 0), model));
        }
        self.shrink(model);
    }

    /// Tokens of every layer that a prefix has evicted.
    fn evicted(&self, key: Key) -> u32 {
        self.files.kept.get(&key).map_or(0, |kept| kept.evicted)
    }

    /// Removes the files not used for the longest time until the rest fits.
    fn shrink(&mut self, model: &ModelId) {
        self.make_room(0, model);
    }

    fn make_room(&mut self, bytes: u64, model: &ModelId) {
        while let Some(oldest) = self.files.oldest(bytes) {
            self.evict(oldest, model);
        }
    }

    /// Whether a prefix of so many bytes is kept. For one that is larger than the budget all others would go, and then it.
    fn takes(&self, key: Key, bytes: u64) -> bool {
        bytes <= self.files.budget && !self.files.knows(&key)
    }

    /// Makes room for a file on a disk that has no more than what is used. Else the files that it replaces go when it is there.
    fn clear_for(&mut self, bytes: u64, model: &ModelId) {
        if self.short_since.is_some() {
            self.make_room(bytes, model);
        }
    }

    /// Removes a file with all its names.
    fn evict(&mut self, holder: Key, model: &ModelId) {
        self.files.parts_of(holder).for_each(|part| self.remove((part, 0), model));
        self.remove((holder, self.evicted(holder)), model);
        self.files.remove(&holder);
    }

    fn remove(&self, key: (Key, u32), model: &ModelId) {
        // If it cannot be removed, a file too many harms nobody.
        let _ = fs::remove_file(self.file(key, model));
    }

    fn file(&self, (Key { length, hash, policy }, evicted): (Key, u32), model: &ModelId) -> PathBuf {
        let fingerprint = &model.fingerprint[..FINGERPRINT.min(model.fingerprint.len())];
        let how = if policy == 0 { String::new() } else { format!("-{policy:016x}-{evicted}") };
        self.path.join(format!("{fingerprint}-{length}-{hash:016x}{how}.{ENDING}"))
    }
}

/// What the name of a prefix of a model tells it by, and the tokens of every layer that were evicted.
fn named(name: &str, model: &ModelId) -> Option<(Key, u32)> {
    let parts: Vec<&str> = name.strip_suffix(&format!(".{ENDING}"))?.split('-').collect();
    let (fingerprint, length, hash, policy, evicted) = match parts[..] {
        [fingerprint, length, hash] => (fingerprint, length, hash, "0", "0"),
        [fingerprint, length, hash, policy, evicted] => (fingerprint, length, hash, policy, evicted),
        _ => return None,
    };
    if fingerprint.len() != FINGERPRINT || !model.fingerprint.starts_with(fingerprint) {
        return None;
    }
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let key = Key { length: length.parse().ok()?, hash: number(hash)?, policy: number(policy)? };
    Some((key, evicted.parse().ok()?))
}

#[cfg(test)]
mod tests;
