//! Places for what tests write: nothing of it stays behind, however a test ends.

use tempfile::{Builder, TempDir, TempPath};

/// A folder that goes with all that is in it.
pub(crate) fn folder() -> TempDir {
    Builder::new().prefix("kvas-").tempdir().unwrap()
}

/// A file that goes, with a name that ends so.
pub(crate) fn file(suffix: &str) -> TempPath {
    Builder::new().prefix("kvas-").suffix(suffix).tempfile().unwrap().into_temp_path()
}
