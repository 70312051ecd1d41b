//! The server over HTTP, in this process, with the bundled model.

mod access;
mod client;
mod endpoints;
mod errors;
mod forms;
mod host;
mod options;
mod probes;
mod slots;
mod streams;
mod templates;
