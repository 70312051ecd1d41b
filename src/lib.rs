//! The kvas library.

pub mod sampling;
pub mod text;
