//! What is not complete when the program is ended. Alone in its program: it ends what all of it writes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvas_gguf::{OutputFile, abandon_outputs};
use std::io::Write;

#[test]
fn open_files_are_removed_and_complete_ones_stay() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("abandoned");
    std::fs::create_dir(&folder).unwrap();
    let count = || std::fs::read_dir(&folder).unwrap().count();
    let mut complete = OutputFile::create(&folder.join("complete")).unwrap();
    complete.write_all(b"all").unwrap();
    complete.finish().unwrap();
    let mut open = OutputFile::create(&folder.join("open")).unwrap();
    open.write_all(b"a part").unwrap();
    drop(OutputFile::create(&folder.join("dropped")).unwrap());
    assert_eq!(count(), 2);
    let mut left = 0;
    abandon_outputs(|| left = count());
    assert_eq!(left, 1);
    assert!(open.finish().is_err());
    assert_eq!(std::fs::read(folder.join("complete")).unwrap(), b"all");
    std::fs::remove_dir_all(folder).unwrap();
}
