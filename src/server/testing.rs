//! What tests of translations need: settings, and an answer that is over.

use super::{Settings, generate::End};
use crate::{engine::Timings, scheduler::Finish};
use serde_json::Map;
use std::time::Duration;

/// A server that was started without flags.
pub(crate) fn settings() -> Settings {
    Settings {
        parallel: 1,
        queue: 1,
        slot_save_path: None,
        reasoning_budget: None,
        template_variables: Map::new(),
        body_limit: 1 << 20,
        timeout: None,
    }
}

/// An answer of five tokens to a prompt of seven, four of them known.
pub(crate) fn end(finish: Finish) -> End {
    let timings = Timings { prompt_tokens: 3, cached_tokens: 4, generated_tokens: 5, ..Timings::default() };
    let (stop_string, queued, tokens) = (None, Duration::ZERO, Vec::new());
    End { finish, stop_string, stop_token: None, timings, queued, slot: 0, tokens }
}
