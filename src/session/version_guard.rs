//! A session file that one program writes again and again: what another one has put there since is not lost.

use kvas_gguf::file_id;
use std::{
    fs::{File, Metadata},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

/// A file, and what it was when it was read or written here last. Copies of a claim are the same claim.
#[derive(Debug, Clone)]
pub struct VersionGuard {
    path: PathBuf,
    seen: Arc<Mutex<Option<Identity>>>,
}

/// What a file was at some time, if there was one.
#[derive(Debug, Clone, Copy)]
pub struct Seen(Option<Identity>);

/// What tells one version of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    /// Which file it is, if that can be told.
    id: Option<[u64; 2]>,
    bytes: u64,
    changed: Option<SystemTime>,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self { id: file_id(metadata), bytes: metadata.len(), changed: metadata.modified().ok() }
    }

    fn at(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|metadata| Self::of(&metadata))
    }
}

impl VersionGuard {
    /// Claims a path, as it is now.
    pub fn new(path: &Path) -> Self {
        let claim = Self { path: path.to_path_buf(), seen: Arc::default() };
        claim.look();
        claim
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether another path leads to the same file.
    pub fn is_of(&self, path: &Path) -> bool {
        let whole = |path: &Path| std::fs::canonicalize(path).ok();
        path == self.path || whole(path).is_some_and(|path| whole(&self.path) == Some(path))
    }

    /// What is there now.
    pub fn now(&self) -> Seen {
        Seen(Identity::at(&self.path))
    }

    /// Takes what is there now for what may be replaced.
    pub fn look(&self) {
        self.set(self.now());
    }

    /// Takes what was there for what may be replaced: for what has been read since, so that nothing is lost that others
    /// wrote meanwhile.
    pub fn set(&self, seen: Seen) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen.0;
    }

    /// Whether what is there is what was seen last, or nothing.
    pub(super) fn holds(&self) -> bool {
        let now = Identity::at(&self.path);
        now.is_none() || now == *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This file is there now.
    pub(super) fn wrote(&self, file: &File) -> io::Result<()> {
        self.set(Seen(Some(Identity::of(&file.metadata()?))));
        Ok(())
    }
}
