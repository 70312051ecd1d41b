//! The model that comes with kvas: a file of `assets/` inside the program.

/// What the bundled model is called where a file would be named.
pub const NAME: &str = "kvas-10m";

/// Bytes at an address that suits every element type of a tensor.
#[repr(align(64))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../assets/kvas-10m.q8_0.gguf"));

/// The bytes of its file (GGUF).
pub(super) fn bytes() -> &'static [u8] {
    &FILE.0
}
