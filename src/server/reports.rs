//! What a stream tells on its way, if a request wants that: how much of the prompt is read (llama.cpp's `return_progress`), and
//! with every part the durations (its `timings_per_token`) and the counts (vLLM's `continuous_usage_stats`) so far.

use super::{
    ApiError, Fields,
    generate::HowFar,
    openai::{timings, usage},
    options,
};
use serde_json::{Value, json};

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Reports {
    prompt: bool,
    timings: bool,
    usage: bool,
    /// How far each answer is.
    latest: Vec<Option<HowFar>>,
}

impl Reports {
    /// What a request says.
    pub fn of(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let on = |flag: Option<bool>| flag.unwrap_or(false);
        let options = fields.object("stream_options")?;
        let usage = options.map(|options| options.flag("continuous_usage_stats")).transpose()?.flatten();
        Ok(Self {
            prompt: on(fields.flag("return_progress")?),
            timings: on(fields.flag("timings_per_token")?),
            // As there, only with the counts at the end.
            usage: on(usage) && options::with_usage(fields)?,
            latest: Vec::new(),
        })
    }

    /// Whether anything is to be told.
    pub fn are_wanted(&self) -> bool {
        self.prompt || self.timings || self.usage
    }

    /// Notes how far an answer is. What is said of its prompt, if that is wanted and there is something new.
    pub fn note(&mut self, index: usize, how_far: HowFar) -> Option<Value> {
        let least = (index + 1).max(self.latest.len());
        self.latest.resize(least, None);
        let (progress, timings) = (how_far.progress, how_far.progress.timings);
        self.latest[index] = Some(how_far);
        // The first token says that all of it is read.
        (self.prompt && timings.generated_tokens <= 1).then(|| {
            json!({
                "total": timings.cached_tokens + timings.prompt_tokens,
                "cache": timings.cached_tokens,
                "processed": progress.read,
                "time_ms": timings.prompt_seconds * 1e3,
            })
        })
    }

    /// Says how far an answer is in a message about it.
    pub fn add_to(&self, index: usize, message: &mut Value) {
        let Some(how_far) = self.latest.get(index).and_then(Option::as_ref) else { return };
        if self.timings {
            message["timings"] = timings(&how_far.progress.timings, how_far.queued);
        }
        if self.usage {
            message["usage"] = usage([[&how_far.progress.timings]]);
        }
    }
}
