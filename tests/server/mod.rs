//! The server over HTTP, in this process, with the bundled model.

mod access;
pub(crate) mod client;
mod deploy;
mod endpoints;
mod errors;
mod extras;
mod forms;
pub(crate) mod host;
mod hostile;
mod native;
mod openapi;
mod options;
mod probes;
pub(crate) mod process;
mod reports;
mod several;
mod slots;
mod streams;
mod templates;
mod tls;
