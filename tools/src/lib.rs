//! Tools that make and change model files.

pub mod adapter;
pub mod convert;
mod encode;
pub mod quantize;
