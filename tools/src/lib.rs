//! Tools that make and change model files.

pub mod convert;
