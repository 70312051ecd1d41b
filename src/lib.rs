//! kvas: a local runtime for hybrid language models. A file becomes a spec, the spec a program, and a backend runs the
//! program for the engine; see docs/ARCHITECTURE.md.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod arch;
pub mod chat;
pub mod engine;
pub mod grammar;
pub mod memory;
pub mod model;
pub mod policy;
pub mod presets;
pub mod repl;
pub mod sampling;
pub mod scheduler;
pub mod server;
pub mod session;
pub mod speculation;
pub mod stdio;
pub mod text;
