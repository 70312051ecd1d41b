//! What is counted, in the form Prometheus reads, under names that vLLM's and llama.cpp's users know.

use super::{Server, served::Served};
use crate::{
    engine::{EngineHandle, Timings},
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
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
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

/// States of pages, tiers of snapshots, what steps are made of, and what becomes of drafts: every `state` that a gauge
/// may have.
const STATES: &[&str] = &["free", "kept", "live", "memory", "host", "disk", "answer", "prompt", "accepted", "rejected"];

/// Memory in some state.
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

/// Counters and histograms; gauges are read when somebody asks.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
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
}

/// What is read when somebody asks.
#[derive(Debug, Default)]
struct Gauges {
    running: Family<OfModel, Gauge>,
    waiting: Family<OfModel, Gauge>,
    kv_used: Family<OfModel, Gauge<f64, AtomicU64>>,
    pages: Family<InState, Gauge>,
    snapshots: Family<InState, Gauge>,
    tokens_read: Family<OfModel, Gauge>,
    rings: Family<OfModel, Gauge>,
    snapshot_bytes: Family<InState, Gauge>,
    steps: Family<OfModel, Gauge>,
    step_tokens: Family<InState, Gauge>,
    preemptions: Family<OfModel, Gauge>,
    drafts: Family<InState, Gauge>,
}

impl Gauges {
    /// A model that is not loaded has nothing to show.
    fn forget(&self, model: &str) {
        let of = Metrics::of(model);
        for family in [&self.running, &self.waiting, &self.tokens_read, &self.rings, &self.steps, &self.preemptions] {
            family.remove(&of);
        }
        self.kv_used.remove(&of);
        for state in STATES {
            let of = InState { model_name: model.into(), state: (*state).into() };
            for family in [&self.pages, &self.snapshots, &self.snapshot_bytes, &self.step_tokens, &self.drafts] {
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
            "Prompt tokens of requests, reused ones included",
            self.prompt_tokens.clone(),
        );
        registry.register("prefix_cache_hits", "Prompt tokens that were reused", self.cached_tokens.clone());
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
        registry.register("tokens_read", "Tokens that passed through the model", gauges.tokens_read.clone());
        registry.register("replay_ring_tokens", "Tokens in the replay rings of live slots", gauges.rings.clone());
        let bytes = gauges.snapshot_bytes.clone();
        registry.register("snapshot_bytes", "Bytes of what can be gone back to, by tier", bytes);
        registry.register("steps", "Steps of the engine", gauges.steps.clone());
        registry.register("step_tokens", "Tokens in these steps, by what they are of", gauges.step_tokens.clone());
        registry.register("num_preemptions", "Requests that made room for others", gauges.preemptions.clone());
        registry.register("draft_tokens", "Tokens drafted, by whether they were accepted", gauges.drafts.clone());
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

    /// A request is over.
    pub fn finished(&self, model: &str, reason: &str, timings: &Timings, (began, queued): (Instant, Duration)) {
        let of = Self::of(model);
        let prompt = timings.prompt_tokens + timings.cached_tokens;
        self.prompt_tokens.get_or_create(&of).inc_by(prompt as u64);
        self.cached_tokens.get_or_create(&of).inc_by(timings.cached_tokens as u64);
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
        let Ok(picture) = served.ask_engine(EngineHandle::look).await else { return };
        let stats = &picture.stats;
        let mut pages = [("free", 0), ("kept", 0), ("live", 0)];
        for (owner, count) in &picture.pages {
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
        if let Some(shelf) = &stats.shelf {
            for (tier, kept) in [("host", Some(shelf.host)), ("disk", shelf.disk)] {
                let Some(kept) = kept else { continue };
                gauges.snapshots.get_or_create(&state(tier)).set(kept.count as i64);
                gauges.snapshot_bytes.get_or_create(&state(tier)).set(kept.bytes as i64);
            }
        }
        let rings: u32 = picture.sequences.iter().map(|sequence| sequence.ring).sum();
        gauges.rings.get_or_create(&of).set(i64::from(rings));
        gauges.tokens_read.get_or_create(&of).set(stats.tokens_read as i64);
        gauges.steps.get_or_create(&of).set(stats.steps.count as i64);
        gauges.step_tokens.get_or_create(&state("answer")).set(stats.steps.decoded as i64);
        gauges.step_tokens.get_or_create(&state("prompt")).set(stats.steps.prompts as i64);
        gauges.preemptions.get_or_create(&of).set(stats.steps.preemptions as i64);
        let rejected = stats.steps.drafted - stats.steps.accepted;
        gauges.drafts.get_or_create(&state("accepted")).set(stats.steps.accepted as i64);
        gauges.drafts.get_or_create(&state("rejected")).set(rejected as i64);
    }
}
