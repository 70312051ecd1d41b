//! Pieces of an answer as server-sent events, or as lines of JSON.

use super::{
    ApiError,
    generate::{Piece, Pieces},
};
use axum::{
    body::Body,
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::{Stream, StreamExt, stream};
use serde_json::Value;
use std::{collections::VecDeque, convert::Infallible, time::Duration};

/// One message of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The name of the event, where the API has names.
    pub event: Option<&'static str>,
    /// What it says.
    pub data: Value,
}

impl Message {
    /// A message without a name.
    pub const fn plain(data: Value) -> Self {
        Self { event: None, data }
    }

    /// A message with a name, which its data repeats as `type`.
    pub fn named(event: &'static str, mut data: Value) -> Self {
        data["type"] = event.into();
        Self { event: Some(event), data }
    }
}

/// Writes pieces in the form of one API.
pub trait StreamFormat: Send + 'static {
    /// What is said before anything else.
    fn begin(&mut self) -> Vec<Message> {
        Vec::new()
    }

    /// What is said about a piece of answer `index`.
    fn piece(&mut self, index: usize, piece: Piece) -> Vec<Message>;

    /// What is said when every answer is over.
    fn end(&mut self) -> Vec<Message> {
        Vec::new()
    }

    /// How an error is said.
    fn error(&mut self, error: &ApiError) -> Message;
}

/// How messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Server-sent events that end with `[DONE]`.
    EventsUntilDone,
    /// Server-sent events.
    Events,
    /// A line of JSON each.
    Lines,
}

/// How often a comment is sent while nothing else is, so that nobody between takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

struct State<F> {
    pieces: Pieces,
    form: F,
    ready: VecDeque<Message>,
    /// Answers that go on.
    left: usize,
    /// Why the first of those failed that did.
    failure: Option<ApiError>,
    /// Whether one did not.
    is_any_whole: bool,
    begun: bool,
    over: bool,
}

impl<F: StreamFormat> State<F> {
    /// An answer is over. That one failed is said when the others are over, for clients take it for the end.
    fn one_less(&mut self) {
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        if self.is_any_whole {
            self.ready.extend(self.form.end());
        }
        if let Some(error) = self.failure.take() {
            self.ready.push_back(self.form.error(&error));
        }
        self.over = true;
    }

    fn take(&mut self, index: usize, piece: Piece) {
        match piece {
            Piece::Failed(error) => {
                self.failure.get_or_insert(error);
                self.one_less();
            }
            Piece::Done(end) => {
                self.ready.extend(self.form.piece(index, Piece::Done(end)));
                self.is_any_whole = true;
                self.one_less();
            }
            Piece::Token(_) | Piece::OfPrompt(_) | Piece::Hidden(_) | Piece::Progress(_) | Piece::Part(..) => {
                self.ready.extend(self.form.piece(index, piece))
            }
        }
    }
}

fn messages(pieces: Pieces, answers: usize, form: impl StreamFormat) -> impl Stream<Item = Message> {
    let (ready, left) = (VecDeque::new(), answers);
    let state = State { pieces, form, ready, left, failure: None, is_any_whole: false, begun: false, over: false };
    stream::unfold(state, |mut state| async move {
        if !state.begun {
            state.begun = true;
            state.ready.extend(state.form.begin());
        }
        loop {
            if let Some(message) = state.ready.pop_front() {
                return Some((message, state));
            }
            if state.over {
                return None;
            }
            match state.pieces.recv().await {
                Some((index, piece)) => state.take(index, piece),
                None => {
                    state.left = 1;
                    state.take(0, Piece::Failed(ApiError::internal("the answer was lost")));
                }
            }
        }
    })
}

/// Writes one answer in a form without sending it: for replies in one piece that keep the order of their parts.
pub async fn drain<F: StreamFormat>(mut pieces: Pieces, mut form: F) -> Result<F, ApiError> {
    loop {
        match pieces.recv().await {
            Some((index, Piece::Done(end))) => {
                form.piece(index, Piece::Done(end));
                return Ok(form);
            }
            Some((_, Piece::Failed(error))) => return Err(error),
            Some((index, piece)) => drop(form.piece(index, piece)),
            None => return Err(ApiError::internal("the answer was lost")),
        }
    }
}

/// Streams `answers` answers in the form of an API.
pub fn respond(pieces: Pieces, answers: usize, form: impl StreamFormat, wire: Wire) -> Response {
    let messages = messages(pieces, answers, form);
    match wire {
        Wire::Lines => {
            let lines = messages.map(|message| Ok::<_, Infallible>(format!("{}\n", message.data)));
            ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
        }
        Wire::Events | Wire::EventsUntilDone => {
            let event = |message: Message| {
                // The name comes first, as from the APIs themselves: some clients go line by line.
                let named = message.event.map_or_else(Event::default, |name| Event::default().event(name));
                Ok::<_, Infallible>(named.data(message.data.to_string()))
            };
            let done = stream::iter((wire == Wire::EventsUntilDone).then(|| Ok(Event::default().data("[DONE]"))));
            let events = messages.map(event).chain(done);
            let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
            ([(CACHE_CONTROL, "no-cache")], Sse::new(events).keep_alive(keep_alive)).into_response()
        }
    }
}
