//! Tools that make and change model files.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod adapter;
mod apart;
pub mod convert;
mod encode;
pub mod quantize;
