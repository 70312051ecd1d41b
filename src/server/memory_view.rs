//! `/memory`: how memory looks now, for the page.

use super::{ApiError, Caller, Query, Server, llama::Which, slots::SlotView};
use crate::{
    engine::{Picture, SequencePicture},
    memory::PageOwner,
    session::Shelved,
};
use axum::{Json, extract::State};
use serde_json::{Value, json};
use std::sync::Arc;

/// Pages by owner, rings and snapshots.
pub async fn memory(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Query(which): Query<Which>,
) -> Result<Json<Value>, ApiError> {
    let served = server.model(which.model.as_deref()).await?;
    let picture = served.ask_engine(crate::engine::EngineHandle::look).await?;
    let (views, facts, usage) = (served.slots.views(), &served.facts, picture.stats.usage);
    let slots: Vec<Value> =
        views.iter().map(|view| slot((view, caller), &picture, (facts.context, facts.ring))).collect();
    let shelf = picture.stats.shelf.as_ref();
    let tier = |kept: Shelved| json!({"held": kept.count, "bytes": kept.bytes});
    Ok(Json(json!({
        "pages": {
            "total": usage.pages.total,
            "free": usage.pages.total - usage.pages.held,
            "page_size": facts.page_size,
            "page_bytes": facts.page_bytes,
            "map": map(&picture, &views),
        },
        "slots": slots,
        "snapshots": {
            "held": usage.snapshots.held,
            "total": usage.snapshots.total,
            "bytes": usage.snapshots.held as u64 * facts.snapshot_bytes,
            "host": shelf.map(|shelf| tier(shelf.host)),
            "disk": shelf.and_then(|shelf| shelf.disk).map(tier),
        },
        "queue": served.slots.waiting(),
        "tokens_read": picture.stats.tokens_read,
    })))
}

fn sequence<'a>(picture: &'a Picture, view: &SlotView) -> Option<&'a SequencePicture> {
    picture.sequences.iter().find(|sequence| sequence.conversation == Some(view.conversation))
}

fn slot((view, caller): (&SlotView, Caller), picture: &Picture, (context, ring): (usize, usize)) -> Value {
    let sequence = sequence(picture, view);
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
fn map(picture: &Picture, views: &[SlotView]) -> Vec<(i64, usize)> {
    let slot_of = |id: u32| {
        let of = |view: &&SlotView| sequence(picture, view).is_some_and(|sequence| sequence.id == id);
        views.iter().find(of).map_or(-2, |view| view.id as i64)
    };
    let number = |owner: PageOwner| match owner {
        PageOwner::Free => -1,
        PageOwner::Kept => -2,
        PageOwner::Several => -3,
        PageOwner::Sequence(id) => slot_of(id.0),
    };
    picture.pages.iter().map(|(owner, count)| (number(*owner), *count)).collect()
}
