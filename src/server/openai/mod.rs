//! The endpoints of OpenAI's API.

pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod extras;
mod messages;
pub mod responses;
mod usage;

pub use usage::{finish_reason, log_probabilities, timings, usage};

use rand_chacha::rand_core::{OsRng, TryRngCore};

/// Which program and version answered.
const FINGERPRINT: &str = concat!("kvas-", env!("CARGO_PKG_VERSION"));

/// An id that no other reply has.
pub fn unique(prefix: &str) -> String {
    let mut bytes = [0u8; 12];
    // Without a source of random bytes the time serves: ids need not be secret.
    if OsRng.try_fill_bytes(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes.copy_from_slice(&now.as_nanos().to_le_bytes()[..12]);
    }
    let hexadecimal: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}{hexadecimal}")
}
