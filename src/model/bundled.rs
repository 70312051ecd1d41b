//! The model that comes with kvas: a file of `assets/` inside the program.

use kvas_gguf::{GgufError, GgufFile};

/// What the bundled model is called where a file would be named.
pub const NAME: &str = "kvas-10m";

/// Bytes at an address that suits every element type of a tensor.
#[repr(align(64))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../assets/kvas-10m.q8_0.gguf"));

/// Its file.
///
/// # Errors
/// As [`GgufFile::from_bytes`], of a program that was built with a damaged file.
pub fn file() -> Result<GgufFile, GgufError> {
    GgufFile::from_bytes(NAME, &FILE.0)
}
