//! Responses that are kept, so that a request can go on from one by its id.

use crate::server::ApiError;
use serde_json::Value;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Most responses kept for an API key.
const MOST: usize = 1000;
/// Most bytes of them, as JSON.
const MOST_BYTES: usize = 64 << 20;

/// A response, and what it answered.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) response: Value,
    /// The items before it, those of the responses that it goes on from included, instructions not.
    pub(super) input: Vec<Value>,
    bytes: usize,
}

impl Entry {
    pub(super) fn new(response: Value, input: Vec<Value>) -> Self {
        let written = |value: &Value| value.to_string().len();
        let bytes = written(&response) + input.iter().map(written).sum::<usize>();
        Self { response, input, bytes }
    }

    /// The items that a request may go on with.
    pub(super) fn items(&self) -> Vec<Value> {
        self.input.iter().chain(self.response["output"].as_array().into_iter().flatten()).cloned().collect()
    }

    fn is(&self, id: &str) -> bool {
        self.response["id"] == id
    }
}

/// Responses by API key, oldest first; beyond their bounds the oldest are forgotten.
#[derive(Debug, Default)]
pub struct Responses(Mutex<HashMap<u64, VecDeque<Arc<Entry>>>>);

impl Responses {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, VecDeque<Arc<Entry>>>> {
        // Every change is whole before it can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, scope: u64, entry: Entry) {
        let mut all = self.all();
        let own = all.entry(scope).or_default();
        own.push_back(Arc::new(entry));
        let mut bytes: usize = own.iter().map(|entry| entry.bytes).sum();
        while own.len() > MOST || bytes > MOST_BYTES {
            bytes -= own.pop_front().map_or(bytes, |entry| entry.bytes);
        }
    }

    pub(super) fn get(&self, scope: u64, id: &str) -> Result<Arc<Entry>, ApiError> {
        let all = self.all();
        let found = all.get(&scope).and_then(|own| own.iter().find(|entry| entry.is(id)));
        found.cloned().ok_or_else(|| unknown(id))
    }

    pub(super) fn remove(&self, scope: u64, id: &str) -> Result<(), ApiError> {
        let mut all = self.all();
        let own = all.entry(scope).or_default();
        let at = own.iter().position(|entry| entry.is(id)).ok_or_else(|| unknown(id))?;
        own.remove(at);
        Ok(())
    }
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no response {id:?}, expected one of the last {MOST} that were stored"))
}
