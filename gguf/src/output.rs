//! Files being written: hidden beside their targets until they are complete, and gone if they never are.

use crate::GgufError;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Symbolic links that are followed one after the other.
const MOST_LINKS: usize = 40;

/// The hidden files there are.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file being written under another name. Dropping it before [`OutputFile::finish`] removes what was written so far.
#[derive(Debug)]
pub struct OutputFile {
    /// As the user wrote it, for messages.
    name: PathBuf,
    /// The file that it will be, behind all links.
    target: PathBuf,
    /// The file that holds the data until `finish` gives it its name; `None` once it has.
    temporary: Option<PathBuf>,
    file: File,
}

impl OutputFile {
    /// Creates a hidden file in the folder of `path`, where a rename to `path` is one step. A symbolic link is followed.
    ///
    /// # Errors
    /// `Io` as [`output_target`], and if the hidden file cannot be created.
    pub fn create(path: &Path) -> Result<OutputFile, GgufError> {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let target = output_target(path).map_err(|error| io_error(path, error))?;
        let name = target.file_name().unwrap_or_default().to_os_string();
        loop {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(&name);
            hidden.push(format!(".{}-{}.part", std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed)));
            let temporary = folder_of(&target).join(hidden);
            let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
            match OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error(path, error)),
                Ok(file) => {
                    // What is locked has someone who writes it; where nothing can be locked, nothing is taken for abandoned.
                    let _ = file.try_lock();
                    open.push(temporary.clone());
                    return Ok(OutputFile { name: path.to_path_buf(), target, temporary: Some(temporary), file });
                }
            }
        }
    }

    /// Waits until all data is on the disk.
    ///
    /// # Errors
    /// `Io` if the system refuses.
    pub fn sync(&mut self) -> Result<(), GgufError> {
        self.file.sync_all().map_err(|error| io_error(&self.name, error))
    }

    /// Waits until all data is on the disk and gives the file its final name, replacing a file of that name.
    ///
    /// # Errors
    /// As [`OutputFile::sync`].
    pub fn finish(mut self) -> Result<(), GgufError> {
        self.sync()?;
        if let Some(temporary) = &self.temporary {
            std::fs::rename(temporary, &self.target).map_err(|error| io_error(&self.name, error))?;
            forget(temporary);
        }
        self.temporary = None;
        // The new name is on the disk once its folder is; where folders cannot be synced, the rename must do.
        if let Ok(folder) = File::open(folder_of(&self.target)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // Nobody is left to tell if the removal fails.
            let _ = std::fs::remove_file(&temporary);
            forget(&temporary);
        }
    }
}

fn forget(temporary: &Path) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|open| open != temporary);
}

/// Removes every file that is not complete and runs `end`, before which none is created: for who is to end at once.
pub fn abandon_outputs(end: impl FnOnce()) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    for temporary in open.drain(..) {
        // Nobody is left to tell if the removal fails.
        let _ = std::fs::remove_file(temporary);
    }
    end();
}

/// Removes what a program that was killed has left of `path`, or of the shards of a split file of that name.
pub fn remove_abandoned(path: &Path) {
    let Ok(target) = output_target(path) else { return };
    let text = |name: Option<&OsStr>| name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (name, stem) = (text(target.file_name()), text(target.file_stem()));
    for entry in std::fs::read_dir(folder_of(&target)).into_iter().flatten().flatten() {
        let is_of_it = hidden_for(&entry.file_name().to_string_lossy()).is_some_and(|of| {
            let shard = of.strip_prefix(&stem).and_then(|rest| rest.strip_prefix('-')).unwrap_or_default();
            of == name || shard.contains("-of-") && shard.ends_with(".gguf")
        });
        // One that is empty may just have been created, and not be locked yet.
        let is_begun = entry.metadata().is_ok_and(|found| found.is_file() && found.len() > 0);
        if is_of_it
            && is_begun
            && let Ok(file) = OpenOptions::new().write(true).open(entry.path())
            && file.try_lock().is_ok()
        {
            // It only takes room.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The name of the file that a hidden one was to become: `.NAME.PROCESS-NUMBER.part`.
fn hidden_for(hidden: &str) -> Option<&str> {
    let (name, numbers) = hidden.strip_prefix('.')?.strip_suffix(".part")?.rsplit_once('.')?;
    let (process, number) = numbers.split_once('-')?;
    [process, number].iter().all(|number| number.parse::<u64>().is_ok()).then_some(name)
}

/// Whether a file could be written at `path`, said before the work that goes into it.
///
/// # Errors
/// `Io` as [`output_target`].
pub fn check_output(path: &Path) -> Result<(), GgufError> {
    output_target(path).map(|_| ()).map_err(|error| io_error(path, error))
}

/// Whether two paths lead to one file that is there.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    let id = |path| std::fs::metadata(path).ok().as_ref().and_then(file_id);
    let real = |path: &Path| path.canonicalize().ok();
    match (id(a), id(b)) {
        (Some(id_of_a), id_of_b) => id_of_b == Some(id_of_a),
        // There is none of that name, or nothing says which one it is.
        (None, _) => real(a).is_some_and(|real_a| real(b) == Some(real_a)),
    }
}

/// Which file it is, whatever its name. Elsewhere than on Unix nothing says so.
#[cfg(unix)]
pub fn file_id(found: &Metadata) -> Option<[u64; 2]> {
    use std::os::unix::fs::MetadataExt;
    Some([found.dev(), found.ino()])
}

/// Which file it is: nothing says so here.
#[cfg(not(unix))]
pub fn file_id(_: &Metadata) -> Option<[u64; 2]> {
    None
}

/// The file behind the links of a path, if one can be written there: it must be new or a regular file, in a folder that is
/// there.
///
/// # Errors
/// What it is instead, or why the system refuses.
pub fn output_target(path: &Path) -> std::io::Result<PathBuf> {
    let unfit = |what: &str| Err(std::io::Error::other(format!("{what}, expected a regular file or a new one")));
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => return unfit("is a folder"),
        Ok(found) if !found.is_file() => return unfit("is no regular file but a device, a pipe or the like"),
        Ok(_) | Err(_) => {}
    }
    let mut target = path.to_path_buf();
    let mut links = 0;
    while let Ok(link) = std::fs::read_link(&target) {
        target = folder_of(&target).join(link);
        links += 1;
        if links > MOST_LINKS {
            return unfit("is a link that never ends");
        }
    }
    if target.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return unfit("ends in no file name");
    }
    let folder = folder_of(&target);
    let no_folder = |kind, what: &str| {
        let what = format!("{} {what}, expected a folder that is there", folder.display());
        Err(std::io::Error::new(kind, what))
    };
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(target),
        Ok(_) => no_folder(ErrorKind::NotADirectory, "is a file"),
        Err(error) if error.kind() == ErrorKind::NotFound => no_folder(error.kind(), "is not there"),
        Err(error) => Err(error),
    }
}

pub(crate) fn io_error(path: &Path, error: std::io::Error) -> GgufError {
    GgufError::Io { path: path.display().to_string(), error }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
