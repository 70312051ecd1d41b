//! What is written is no file that is read for it.

use anyhow::{Result, bail};
use kvas_gguf::is_same_file;
use std::{
    fs::{File, read_dir},
    io::Read,
    path::Path,
};

/// Refuses to have a file of a checkpoint or an adapter written over, whatever `out` calls it. A model that was written into the
/// folder before is no part of it.
pub(crate) fn check_apart(folder: &Path, out: &Path) -> Result<()> {
    // What is wrong with the folder is said by who reads it.
    let Ok(entries) = read_dir(folder) else { return Ok(()) };
    if is_model(out) {
        return Ok(());
    }
    entries.flatten().try_for_each(|entry| check_file_apart(&entry.path(), out))
}

/// Refuses to have a file written over, whatever `out` calls it.
pub(crate) fn check_file_apart(file: &Path, out: &Path) -> Result<()> {
    if is_same_file(file, out) {
        bail!("{}: is a file that is read for it, expected another one", out.display());
    }
    Ok(())
}

fn is_model(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && &magic == b"GGUF"
}
