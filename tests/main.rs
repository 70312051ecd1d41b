//! The integration tests: one crate, one file per subject.

mod chat;
mod commands;
mod golden;
mod plan;
mod tidy;
