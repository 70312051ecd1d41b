//! The kvas binary.
fn main() {}
