//! The kvas library.

pub mod sampling;
