//! `/memory`: how memory looks now, for the page.

use super::{ApiError, Caller, Query, Server, llama::ModelQuery, slots::SlotView};
use crate::{
    engine::{MemoryReport, SequenceReport},
    memory::PageOwner,
    session::OffloadUsage,
};
use axum::{Json, extract::State};
use serde_json::{Value, json};
use std::sync::Arc;

/// Pages by owner, rings and snapshots.
pub async fn memory(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Query(which): Query<ModelQuery>,
) -> Result<Json<Value>, ApiError> {
    let served = server.model(which.model.as_deref()).await?;
    let report = served.ask_engine(crate::engine::EngineHandle::memory_report).await?;
    let (views, facts, usage) = (served.slots.views(), &served.facts, report.stats.usage);
    let slots: Vec<Value> =
        views.iter().map(|view| slot((view, caller), &report, (facts.context, facts.ring))).collect();
    let offload_cache = report.stats.offload_cache.as_ref();
    let tier = |kept: OffloadUsage| json!({"held": kept.count, "bytes": kept.bytes});
    Ok(Json(json!({
        "pages": {
            "total": usage.pages.total,
            "free": usage.pages.total - usage.pages.held,
            "page_size": facts.page_size,
            "page_bytes": facts.page_bytes,
            "map": map(&report, &views),
        },
        "slots": slots,
        "snapshots": {
            "held": usage.snapshots.held,
            "total": usage.snapshots.total,
            "bytes": usage.snapshots.held as u64 * facts.snapshot_bytes,
            "host": offload_cache.map(|offload_cache| tier(offload_cache.host)),
            "disk": offload_cache.and_then(|offload_cache| offload_cache.disk).map(tier),
        },
        "queue": served.slots.waiting(),
        "tokens_read": report.stats.tokens_read,
    })))
}

fn sequence<'a>(report: &'a MemoryReport, view: &SlotView) -> Option<&'a SequenceReport> {
    report.sequences.iter().find(|sequence| sequence.conversation == Some(view.conversation))
}

fn slot((view, caller): (&SlotView, Caller), report: &MemoryReport, (context, ring): (usize, usize)) -> Value {
    let sequence = sequence(report, view);
    let is_paused = sequence.is_some_and(|sequence| sequence.paused);
    let state = if is_paused { "waiting" } else { view.doing.name() };
    json!({
        "id": view.id,
        "state": state,
        "tokens": sequence.map_or(0, |sequence| sequence.tokens),
        "context": context,
        "ring": {"held": sequence.map_or(0, |sequence| sequence.ring), "capacity": ring},
        "conversation": view.session_for(caller.scope),
    })
}

/// Runs of pages with the number of the slot they belong to: -1 is free, -2 kept, -3 several slots'.
fn map(report: &MemoryReport, views: &[SlotView]) -> Vec<(i64, usize)> {
    let slot_of = |id: u32| {
        let of = |view: &&SlotView| sequence(report, view).is_some_and(|sequence| sequence.id == id);
        views.iter().find(of).map_or(-2, |view| view.id as i64)
    };
    let number = |owner: PageOwner| match owner {
        PageOwner::Free => -1,
        PageOwner::Kept => -2,
        PageOwner::Several => -3,
        PageOwner::Sequence(id) => slot_of(id.0),
    };
    report.pages.iter().map(|(owner, count)| (number(*owner), *count)).collect()
}
