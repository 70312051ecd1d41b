//! `/slots`: what each slot does, and to save, restore, erase and fork them.

use super::{ModelQuery, wants_slot};
use crate::{
    memory::Scope,
    server::{
        ApiError, Body, Caller, Fields, Path, Query, Server,
        served::Served,
        slots::{Purpose, SlotGuard, SlotRequest, SlotState, SlotView},
    },
    session::{Session, Writer, is_replaceable},
};
use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use std::{path::PathBuf, sync::Arc, time::Instant};

fn describe(served: &Served, slot: &SlotView, caller: Caller) -> Value {
    json!({
        "id": slot.id,
        "id_task": slot.task,
        "n_ctx": served.facts.context,
        "is_processing": slot.doing != SlotState::Idle,
        "state": slot.doing.name(),
        "n_tokens": slot.tokens.len(),
        "session": slot.session_for(caller.scope),
        "next_token": {"n_decoded": slot.generated},
    })
}

/// All slots. With `?fail_on_no_slot=1` a status of 503 if none is idle.
pub async fn list(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Query(which): Query<ModelQuery>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, ApiError> {
    let served = server.model(which.model.as_deref()).await?;
    let slots: Vec<Value> = served.slots.views().iter().map(|slot| describe(&served, slot, caller)).collect();
    let full = served.slots.busy() == served.slots.count();
    let status = if wants_slot(&query) && full { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    Ok((status, Json(json!(slots))).into_response())
}

/// `?action=save|restore|erase|fork` on a slot.
pub async fn act(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
    body: Option<Body>,
) -> Result<Json<Value>, ApiError> {
    let id: usize = id.parse().map_err(|_| ApiError::field("id_slot", format!("{id}, expected a number")))?;
    let value = |name: &str| query.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let body = body.map_or_else(|| json!({}), |Body(body)| body);
    let fields = Fields::of(&body)?;
    let model = match value("model") {
        Some(name) => Some(name),
        None => fields.text("model")?.map(str::to_string),
    };
    let served = server.model(model.as_deref()).await?;
    let slot = own((&served, id), caller)?;
    match value("action").as_deref() {
        Some("save") => save(&served, (id, caller), file(&server, caller, &fields)?).await,
        Some("restore") => restore(&served, (id, caller), file(&server, caller, &fields)?).await,
        Some("erase") => erase(&served, (id, caller)).await,
        Some("fork") => fork(&served, &slot, caller, &fields).await,
        other => {
            let found = other.unwrap_or("missing");
            Err(ApiError::field("action", format!("{found}, expected save, restore, erase or fork")))
        }
    }
}

/// The file a request names: a plain name in the folder the server was started with, or, where API keys share nothing, in
/// the caller's own below it.
fn file(server: &Server, caller: Caller, fields: &Fields<'_>) -> Result<(String, PathBuf), ApiError> {
    let folder = server.settings.slot_save_path.as_ref();
    let folder = folder.ok_or_else(|| ApiError::not_supported("the server was started without --slot-save-path"))?;
    let name = fields.need("filename", "a name")?;
    let plain = |name: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(allowed)
    };
    match name.as_str().filter(|name| plain(name)) {
        Some(name) => match server.access.folder(caller) {
            Some(own) => Ok((name.to_string(), folder.join(own).join(name))),
            None => Ok((name.to_string(), folder.join(name))),
        },
        None => Err(ApiError::field("filename", "expected letters, digits, - _ and . only, no leading dot")),
    }
}

/// A slot that holds nothing of others.
fn own((served, id): (&Served, usize), caller: Caller) -> Result<SlotView, ApiError> {
    let slot = served.slot(id)?;
    if slot.scope != caller.scope && !slot.tokens.is_empty() {
        return Err(ApiError::not_found(format!("slot {id} holds what another API key, or a cache_salt, keeps apart")));
    }
    Ok(slot)
}

/// Takes a slot as soon as it is idle, so that nothing changes in it meanwhile.
async fn take(served: &Served, (id, caller): (usize, Caller)) -> Result<SlotGuard, ApiError> {
    let slot_request =
        SlotRequest { slot: Some(id), scope: caller.scope, purpose: Purpose::Upkeep, ..SlotRequest::default() };
    served.slots.acquire(slot_request, Arc::from([])).await
}

/// The same, and what it holds, unless that is another's.
async fn take_own(served: &Served, (id, caller): (usize, Caller)) -> Result<(SlotGuard, SlotView), ApiError> {
    let guard = take(served, (id, caller)).await?;
    // Only now: it may have been given to somebody else while this waited.
    let slot = own((served, id), caller)?;
    Ok((guard, slot))
}

/// What is wrong with a file, by the name that a client gave it: where it is concerns nobody but those who run the server.
fn named((name, path): (&str, &std::path::Path), what: &str) -> String {
    match what.strip_prefix(&path.display().to_string()) {
        Some(rest) => format!("{name}{rest}"),
        None => format!("{name}: {what}"),
    }
}

async fn save(
    served: &Arc<Served>,
    (id, caller): (usize, Caller),
    (name, path): (String, PathBuf),
) -> Result<Json<Value>, ApiError> {
    if served.slot(id)?.doing != SlotState::Idle {
        return Err(ApiError::busy(format!("slot {id} serves a request, expected it to be idle"), 1));
    }
    if !is_replaceable(&path) {
        let what = format!("{name} is a file of another kind, expected a name that is new or a saved slot's");
        return Err(ApiError::field("filename", what));
    }
    let began = Instant::now();
    let (guard, SlotView { tokens, .. }) = take_own(served, (id, caller)).await?;
    if tokens.is_empty() {
        return Err(ApiError::bad(format!("slot {id} is empty, expected one that has served a request")));
    }
    let (count, model, conversation) = (tokens.len(), served.id.clone(), guard.conversation);
    let shown = name.clone();
    let write = move |engine: &crate::engine::EngineHandle| {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| format!("--slot-save-path: {error}"))?;
        }
        let writer = Writer::new(&path, &model, tokens, String::new());
        engine.save(conversation, writer).map_err(|error| named((&shown, &path), &error))
    };
    let bytes = served.ask_engine(write).await?;
    let ms = began.elapsed().as_secs_f64() * 1e3;
    Ok(Json(json!({
        "id_slot": id, "filename": name, "n_saved": count, "n_written": bytes, "timings": {"save_ms": ms},
    })))
}

async fn restore(
    served: &Arc<Served>,
    (id, caller): (usize, Caller),
    (name, path): (String, PathBuf),
) -> Result<Json<Value>, ApiError> {
    if !path.exists() {
        return Err(ApiError::not_found(format!("filename: there is no file {name}")));
    }
    let began = Instant::now();
    let (slot, _) = take_own(served, (id, caller)).await?;
    let (model, conversation) = (served.id.clone(), slot.conversation);
    let (shown, scope) = (name.clone(), Scope(caller.scope));
    let read = move |engine: &crate::engine::EngineHandle| {
        let named = |what: String| named((&shown, &path), &what);
        let session = Session::open(&path).map_err(|error| named(error.to_string()))?;
        session.check_model(&model).map_err(|error| named(error.to_string()))?;
        let tokens = session.tokens().to_vec();
        let note = engine.load(Arc::new(session), scope).map_err(named)?.map(named);
        if let Some(note) = &note {
            tracing::warn!("{note}");
        }
        engine.enter(conversation, scope)?;
        Ok((tokens, note))
    };
    let (tokens, note) = served.ask_engine(read).await.map_err(|error| ApiError::bad(error.message))?;
    let count = tokens.len();
    slot.holds(caller.scope, tokens);
    let ms = began.elapsed().as_secs_f64() * 1e3;
    let mut reply = json!({"id_slot": id, "filename": name, "n_restored": count, "timings": {"restore_ms": ms}});
    if let Some(note) = note {
        reply["note"] = Value::String(note);
    }
    Ok(Json(reply))
}

async fn erase(served: &Arc<Served>, (id, caller): (usize, Caller)) -> Result<Json<Value>, ApiError> {
    let (guard, SlotView { tokens, .. }) = take_own(served, (id, caller)).await?;
    let count = tokens.len();
    // Both are only told to the engine: a client that leaves cannot leave one of them out.
    served.engine.reset(guard.conversation).map_err(ApiError::internal)?;
    served.engine.forget(Scope(caller.scope), tokens);
    guard.holds(caller.scope, Vec::new());
    Ok(Json(json!({"id_slot": id, "n_erased": count})))
}

/// What the slot holds serves another one, too. Both go on from the same kept prefix, whether this one is busy or not.
async fn fork(
    served: &Arc<Served>,
    slot: &SlotView,
    caller: Caller,
    fields: &Fields<'_>,
) -> Result<Json<Value>, ApiError> {
    let count = served.slots.count();
    let to = fields.count(&["to", "id_slot"], (0, count.saturating_sub(1)))?;
    let to = to.ok_or_else(|| ApiError::field("to", "missing, expected the number of a slot"))?;
    if to == slot.id {
        return Err(ApiError::field("to", format!("{to}, expected another slot")));
    }
    let target = take(served, (to, caller)).await?;
    served.engine.enter(target.conversation, Scope(caller.scope)).map_err(ApiError::internal)?;
    target.holds(caller.scope, slot.tokens.clone());
    Ok(Json(json!({"id_slot": slot.id, "to": to, "n_forked": slot.tokens.len()})))
}
