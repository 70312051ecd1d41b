//! The kvas library.

pub mod text;
