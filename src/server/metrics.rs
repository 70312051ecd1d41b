//! What is counted, in the form Prometheus reads, under names that vLLM's and llama.cpp's users know.

use super::{Server, served::Served};
use crate::{
    engine::{EngineHandle, Stats, Timings},
    memory::PageOwner,
};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak, atomic::AtomicU64},
    time::{Duration, Instant},
};

/// Which model something is counted for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    model_name: String,
}

/// Why a request ended, or tokens were read again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WithReason {
    model_name: String,
    reason: String,
}

/// States of pages and tiers of snapshots: every `state` that a gauge may have.
const STATES: &[&str] = &["free", "kept", "live", "memory", "host", "disk"];

/// Memory in some state, tokens of some kind, or what became of drafts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    model_name: String,
    state: String,
}

#[derive(Debug, Clone)]
struct Seconds(f64, u16);

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(self.0, 2.0, self.1))
    }
}

type Histograms = Family<OfModel, Histogram, Seconds>;

/// Counters and histograms; gauges, and what engines count, are read when somebody asks.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    /// Held by who reads from the engines: what one has read, another must not count again.
    reading: tokio::sync::Mutex<()>,
    prompt_tokens: Family<OfModel, Counter>,
    cached_tokens: Family<OfModel, Counter>,
    generation_tokens: Family<OfModel, Counter>,
    requests: Family<WithReason, Counter>,
    misses: Family<WithReason, Counter>,
    first_token: Histograms,
    between_tokens: Histograms,
    queue: Histograms,
    whole: Histograms,
    gauges: Gauges,
    engines: Engines,
}

/// What the engines of a model did, in all: of those before the present one, too.
#[derive(Debug, Default)]
struct Engines {
    tokens_read: Family<OfModel, Counter>,
    steps: Family<OfModel, Counter>,
    preemptions: Family<OfModel, Counter>,
    step_tokens: Family<InState, Counter>,
    drafts: Family<InState, Counter>,
    /// Of each model the engine that was read last, and what it had counted then.
    seen: Mutex<HashMap<String, (Weak<()>, Counts)>>,
}

/// What one engine counted since it was started.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    tokens_read: u64,
    steps: u64,
    preemptions: u64,
    decoded: u64,
    prompts: u64,
    accepted: u64,
    rejected: u64,
}

impl Counts {
    fn of(stats: &Stats) -> Self {
        let steps = &stats.steps;
        Self {
            tokens_read: stats.tokens_read,
            steps: steps.count,
            preemptions: steps.preemptions,
            decoded: steps.decoded,
            prompts: steps.prompts,
            accepted: steps.accepted,
            rejected: steps.drafted - steps.accepted,
        }
    }
}

impl Engines {
    /// Counts what the engine of a model has done since it was read last.
    fn count(&self, model: &str, engine: Weak<()>, now: Counts) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match seen.insert(model.into(), (engine.clone(), now)) {
            Some((same, before)) if same.ptr_eq(&engine) => before,
            Some(_) | None => Counts::default(),
        };
        drop(seen);
        let of = Metrics::of(model);
        for (family, now, before) in [
            (&self.tokens_read, now.tokens_read, before.tokens_read),
            (&self.steps, now.steps, before.steps),
            (&self.preemptions, now.preemptions, before.preemptions),
        ] {
            family.get_or_create(&of).inc_by(now.saturating_sub(before));
        }
        for (family, state, now, before) in [
            (&self.step_tokens, "answer", now.decoded, before.decoded),
            (&self.step_tokens, "prompt", now.prompts, before.prompts),
            (&self.drafts, "accepted", now.accepted, before.accepted),
            (&self.drafts, "rejected", now.rejected, before.rejected),
        ] {
            let of = InState { model_name: model.into(), state: state.into() };
            family.get_or_create(&of).inc_by(now.saturating_sub(before));
        }
    }
}

/// What is read when somebody asks.
#[derive(Debug, Default)]
struct Gauges {
    running: Family<OfModel, Gauge>,
    waiting: Family<OfModel, Gauge>,
    kv_used: Family<OfModel, Gauge<f64, AtomicU64>>,
    pages: Family<InState, Gauge>,
    snapshots: Family<InState, Gauge>,
    rings: Family<OfModel, Gauge>,
    snapshot_bytes: Family<InState, Gauge>,
}

impl Gauges {
    /// A model that is not loaded has nothing to show.
    fn forget(&self, model: &str) {
        let of = Metrics::of(model);
        for family in [&self.running, &self.waiting, &self.rings] {
            family.remove(&of);
        }
        self.kv_used.remove(&of);
        for state in STATES {
            let of = InState { model_name: model.into(), state: (*state).into() };
            for family in [&self.pages, &self.snapshots, &self.snapshot_bytes] {
                family.remove(&of);
            }
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        // From a millisecond to nine minutes, and from a tenth of one to three seconds.
        let histogram = |least: f64, buckets: u16| Histograms::new_with_constructor(Seconds(least, buckets));
        let mut metrics = Self {
            registry: Mutex::new(Registry::with_prefix("kvas")),
            reading: tokio::sync::Mutex::default(),
            prompt_tokens: Family::default(),
            cached_tokens: Family::default(),
            generation_tokens: Family::default(),
            requests: Family::default(),
            misses: Family::default(),
            first_token: histogram(1e-3, 20),
            between_tokens: histogram(1e-4, 16),
            queue: histogram(1e-3, 20),
            whole: histogram(1e-3, 20),
            gauges: Gauges::default(),
            engines: Engines::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let registry = self.registry.get_mut().unwrap_or_else(PoisonError::into_inner);
        registry.register(
            "prompt_tokens",
            "Tokens of prompts, reused ones included, once for all answers to a prompt",
            self.prompt_tokens.clone(),
        );
        registry.register("prefix_cache_hits", "Those of them that were reused", self.cached_tokens.clone());
        registry.register("generation_tokens", "Tokens generated", self.generation_tokens.clone());
        registry.register("requests", "Requests that are over, by how they ended", self.requests.clone());
        registry.register("prefix_cache_misses", "Requests that read known tokens again, by why", self.misses.clone());
        let first = self.first_token.clone();
        registry.register("time_to_first_token_seconds", "From a request to its first token", first);
        let between = self.between_tokens.clone();
        registry.register("inter_token_latency_seconds", "Between two tokens of an answer", between);
        registry.register("request_queue_time_seconds", "From a request to its slot", self.queue.clone());
        registry.register("e2e_request_latency_seconds", "From a request to its end", self.whole.clone());
        let gauges = &self.gauges;
        registry.register("num_requests_running", "Requests in slots", gauges.running.clone());
        registry.register("num_requests_waiting", "Requests that wait for a slot", gauges.waiting.clone());
        registry.register("kv_cache_usage_perc", "Pages in use, 0 to 1", gauges.kv_used.clone());
        registry.register("pages", "Pages of keys and values, by state", gauges.pages.clone());
        registry.register("snapshots", "Prefixes that can be gone back to, by tier", gauges.snapshots.clone());
        registry.register("replay_ring_tokens", "Tokens in the replay rings of live slots", gauges.rings.clone());
        let bytes = gauges.snapshot_bytes.clone();
        registry.register("snapshot_bytes", "Bytes of what can be gone back to, by tier", bytes);
        // Their names end in `_total` where they are written.
        let engines = &self.engines;
        registry.register("tokens_read", "Tokens that passed through the model", engines.tokens_read.clone());
        registry.register("steps", "Steps of the engine", engines.steps.clone());
        registry.register("step_tokens", "Tokens in these steps, by what they are of", engines.step_tokens.clone());
        registry.register("num_preemptions", "Requests that made room for others", engines.preemptions.clone());
        registry.register("draft_tokens", "Tokens drafted, by whether they were accepted", engines.drafts.clone());
    }

    fn of(model: &str) -> OfModel {
        OfModel { model_name: model.into() }
    }

    fn with_reason(model: &str, reason: &str) -> WithReason {
        WithReason { model_name: model.into(), reason: reason.into() }
    }

    /// A token of an answer: how long after the one before it, or, if it is the first, after the request.
    pub fn token(&self, model: &str, (is_first, gap): (bool, Duration)) {
        let of = Self::of(model);
        self.generation_tokens.get_or_create(&of).inc();
        let gaps = if is_first { &self.first_token } else { &self.between_tokens };
        gaps.get_or_create(&of).observe(gap.as_secs_f64());
    }

    /// A prompt was read, as far as its first answer did: what that keeps serves the others, which are told nothing of it.
    pub fn prompt(&self, model: &str, timings: &Timings) {
        let of = Self::of(model);
        let prompt = timings.prompt_tokens + timings.cached_tokens;
        self.prompt_tokens.get_or_create(&of).inc_by(prompt as u64);
        self.cached_tokens.get_or_create(&of).inc_by(timings.cached_tokens as u64);
    }

    /// An answer is over.
    pub fn finished(&self, model: &str, reason: &str, timings: &Timings, (began, queued): (Instant, Duration)) {
        let of = Self::of(model);
        self.requests.get_or_create(&Self::with_reason(model, reason)).inc();
        if let Some(reason) = timings.miss.kind() {
            self.misses.get_or_create(&Self::with_reason(model, reason)).inc();
        }
        self.queue.get_or_create(&of).observe(queued.as_secs_f64());
        self.whole.get_or_create(&of).observe(began.elapsed().as_secs_f64());
    }

    /// A request failed.
    pub fn failed(&self, model: &str) {
        self.requests.get_or_create(&Self::with_reason(model, "error")).inc();
    }

    /// A request got no slot.
    pub fn refused(&self, model: &str) {
        self.requests.get_or_create(&Self::with_reason(model, "refused")).inc();
    }

    /// Everything, in the text format.
    pub async fn text(&self, server: &Arc<Server>) -> String {
        let _reading = self.reading.lock().await;
        for (name, served) in server.models.all() {
            match served {
                Some(served) => self.look_at(&served).await,
                None => self.gauges.forget(&name),
            }
        }
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a text does not fail.
        let _ = encode(&mut text, &registry);
        text
    }

    async fn look_at(&self, served: &Arc<Served>) {
        let (name, of, gauges) = (&served.name, Self::of(&served.name), &self.gauges);
        let state = |state: &str| InState { model_name: name.clone(), state: state.into() };
        gauges.running.get_or_create(&of).set(served.slots.busy() as i64);
        gauges.waiting.get_or_create(&of).set(served.slots.waiting() as i64);
        let Ok(report) = served.ask_engine(EngineHandle::memory_report).await else { return };
        let stats = &report.stats;
        let mut pages = [("free", 0), ("kept", 0), ("live", 0)];
        for (owner, count) in &report.pages {
            let at = match owner {
                PageOwner::Free => 0,
                PageOwner::Kept => 1,
                PageOwner::Sequence(_) | PageOwner::Several => 2,
            };
            pages[at].1 += count;
        }
        // What is merely kept gives way to whoever needs it.
        gauges.kv_used.get_or_create(&of).set(pages[2].1 as f64 / stats.usage.pages.total.max(1) as f64);
        for (name, count) in pages {
            gauges.pages.get_or_create(&state(name)).set(count as i64);
        }
        let held = stats.usage.snapshots.held;
        gauges.snapshots.get_or_create(&state("memory")).set(held as i64);
        let bytes = held as u64 * served.facts.snapshot_bytes;
        gauges.snapshot_bytes.get_or_create(&state("memory")).set(bytes as i64);
        if let Some(offload_cache) = &stats.offload_cache {
            for (tier, kept) in [("host", Some(offload_cache.host)), ("disk", offload_cache.disk)] {
                let Some(kept) = kept else { continue };
                gauges.snapshots.get_or_create(&state(tier)).set(kept.count as i64);
                gauges.snapshot_bytes.get_or_create(&state(tier)).set(kept.bytes as i64);
            }
        }
        let rings: u32 = report.sequences.iter().map(|sequence| sequence.ring).sum();
        gauges.rings.get_or_create(&of).set(i64::from(rings));
        self.engines.count(name, served.engine.memory(), Counts::of(stats));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is counted grows, also when a model is loaded again, and says that it is a counter.
    #[test]
    fn engines_count_on() {
        let metrics = Metrics::default();
        let counts = |steps| Counts { steps, accepted: 2 * steps, ..Counts::default() };
        let (first, second) = (Arc::new(()), Arc::new(()));
        for (engine, steps) in [(&first, 3), (&first, 5), (&second, 2), (&second, 2)] {
            metrics.engines.count("tiny", Arc::downgrade(engine), counts(steps));
        }
        let mut text = String::new();
        encode(&mut text, &metrics.registry.lock().unwrap()).unwrap();
        assert!(text.contains("\nkvas_steps_total{model_name=\"tiny\"} 7\n"), "{text}");
        assert!(text.contains("\nkvas_draft_tokens_total{model_name=\"tiny\",state=\"accepted\"} 14\n"), "{text}");
        let totals = ["tokens_read", "steps", "step_tokens", "num_preemptions", "draft_tokens"];
        assert!(totals.iter().all(|name| text.contains(&format!("# TYPE kvas_{name} counter\n"))), "{text}");
    }
}
