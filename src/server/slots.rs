//! Who gets which of the `--parallel` slots, and who waits. A slot is a conversation of the engine that outlives its
//! requests, so that the next turn goes on where the last one ended.

use super::ApiError;
use crate::engine::ConversationId;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{oneshot, watch};

/// Which slot a request would like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotRequest {
    /// This one and no other.
    pub slot: Option<usize>,
    /// The one that served this session last, if it is idle.
    pub session: Option<String>,
    /// Whose data may be in the slot: only one with what this scope has left there is taken for its prefix.
    pub scope: u64,
    /// Who waits with a smaller number is served before who waits with a larger one.
    pub priority: i64,
    /// Whether it may be refused.
    pub arrival: Arrival,
    /// What the slot is taken for.
    pub purpose: Purpose,
}

/// Whether a wish for a slot begins a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Arrival {
    /// It does, and is refused if too many wait or the server stops.
    #[default]
    New,
    /// It is a further answer of a request that was let in, which has begun to be answered.
    Admitted,
}

/// What a slot is taken for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Purpose {
    /// To read and generate: it is the caller's from then on, and says nothing of what was another's.
    #[default]
    Answer,
    /// To do something with what it holds: it stays what it is, and whose.
    Upkeep,
}

/// What a slot is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing.
    #[default]
    Idle,
    /// Reading a prompt.
    Prompt,
    /// Generating.
    Generating,
}

/// What is known of a slot.
#[derive(Debug, Clone)]
pub struct SlotView {
    /// Its number.
    pub id: usize,
    /// What the engine knows it by.
    pub conversation: ConversationId,
    /// What it is doing.
    pub doing: SlotState,
    /// The session it served last.
    pub session: Option<String>,
    /// The tokens it has read and generated.
    pub tokens: Vec<u32>,
    /// Whose tokens these are.
    pub scope: u64,
    /// Number of the request it serves or served last; 0 before the first.
    pub task: u64,
    /// Tokens generated for it.
    pub generated: usize,
    /// When it was last taken: a number that grows.
    used: u64,
}

#[derive(Debug)]
struct Waiter {
    slot_request: SlotRequest,
    prompt: Arc<[u32]>,
    slot: oneshot::Sender<SlotGuard>,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<SlotView>,
    waiting: VecDeque<Waiter>,
    tasks: u64,
    /// The server stops.
    closed: bool,
}

/// The slots of one model.
#[derive(Debug, Clone)]
pub struct Slots {
    state: Arc<Mutex<State>>,
    queue: usize,
    /// Whether answers in progress are called off.
    called_off: Arc<watch::Sender<bool>>,
}

/// A slot that is taken; dropping it gives it to who waits longest.
#[derive(Debug)]
pub struct SlotGuard {
    slots: Slots,
    /// The slot's number.
    pub id: usize,
    /// What the engine knows it by.
    pub conversation: ConversationId,
}

impl Arrival {
    /// That of the prompt of this number in a request.
    pub fn of_prompt(number: usize) -> Self {
        if number == 0 { Self::New } else { Self::Admitted }
    }
}

impl SlotState {
    /// As replies have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Prompt => "prompt",
            Self::Generating => "generating",
        }
    }
}

impl SlotView {
    /// The session, for who asked for it: its name may say who somebody is.
    pub fn session_for(&self, scope: u64) -> Option<&str> {
        self.session.as_deref().filter(|_| self.scope == scope)
    }

    /// From now on it is of this scope, and tells nothing of what it was in another one.
    fn enter(&mut self, scope: u64) {
        if std::mem::replace(&mut self.scope, scope) != scope {
            (self.session, self.tokens) = (None, Vec::new());
        }
    }
}

/// Why a request is given up that waits.
pub(super) fn stops() -> ApiError {
    ApiError::busy("the server stops", 5)
}

/// How many of the first tokens are the same.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl State {
    /// The idle slot that serves a wish best: the one asked for, that of the session, the one that has read most of the
    /// prompt, or the one not used for the longest time.
    fn choose(&self, slot_request: &SlotRequest, prompt: &[u32]) -> Option<usize> {
        let idle = |slot: &&SlotView| slot.doing == SlotState::Idle;
        let mut idle = self.slots.iter().filter(idle);
        if let Some(id) = slot_request.slot {
            return idle.find(|slot| slot.id == id).map(|slot| slot.id);
        }
        let same = |slot: &&SlotView| {
            slot_request.session.is_some() && slot.session == slot_request.session && slot.scope == slot_request.scope
        };
        if let Some(slot) = idle.clone().find(same) {
            return Some(slot.id);
        }
        let shared = |slot: &SlotView| if slot.scope == slot_request.scope { common(&slot.tokens, prompt) } else { 0 };
        // To have read most of what was read there before: a short shared beginning is in the tree of prefixes anyway,
        // and taking the slot for it would cost somebody else the rest.
        let fits = |slot: &SlotView| shared(slot) * 2 > slot.tokens.len().max(1);
        idle.max_by_key(|slot| (fits(slot).then(|| shared(slot)), std::cmp::Reverse(slot.used))).map(|slot| slot.id)
    }

    fn take(&mut self, id: usize, slot_request: &SlotRequest) -> ConversationId {
        self.tasks += 1;
        let task = self.tasks;
        let slot = &mut self.slots[id];
        (slot.doing, slot.used, slot.task, slot.generated) = (SlotState::Prompt, task, task, 0);
        if slot_request.purpose == Purpose::Answer {
            slot.enter(slot_request.scope);
            slot.session.clone_from(&slot_request.session);
        }
        slot.conversation
    }
}

impl Slots {
    /// One slot per conversation, and a queue of at most `queue` requests.
    pub fn new(conversations: Vec<ConversationId>, queue: usize) -> Self {
        let view = |(id, conversation)| SlotView {
            id,
            conversation,
            doing: SlotState::Idle,
            session: None,
            tokens: Vec::new(),
            scope: 0,
            task: 0,
            generated: 0,
            used: 0,
        };
        let slots = conversations.into_iter().enumerate().map(view).collect();
        let state = Arc::new(Mutex::new(State { slots, ..State::default() }));
        Self { state, queue, called_off: Arc::new(watch::Sender::new(false)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is whole before it can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot, or waits for one, in the order of priority, then of arrival. A new request is refused if too many wait already.
    pub async fn acquire(&self, slot_request: SlotRequest, prompt: Arc<[u32]>) -> Result<SlotGuard, ApiError> {
        let waiting = {
            let mut state = self.state();
            let count = state.slots.len();
            if let Some(id) = slot_request.slot.filter(|id| *id >= count) {
                return Err(ApiError::field("id_slot", format!("{id}, expected less than {count} slots")));
            }
            // A request that waits waits for a slot that is busy: an idle one can be had at once.
            if let Some(id) = state.choose(&slot_request, &prompt) {
                let conversation = state.take(id, &slot_request);
                return Ok(SlotGuard { slots: self.clone(), id, conversation });
            }
            if state.closed && slot_request.arrival == Arrival::New {
                return Err(stops());
            }
            state.waiting.retain(|waiter| !waiter.slot.is_closed());
            let is_new = |waiter: &&Waiter| waiter.slot_request.arrival == Arrival::New;
            if slot_request.arrival == Arrival::New && state.waiting.iter().filter(is_new).count() >= self.queue {
                let message = format!("all {count} slots are busy and {} requests wait already", self.queue);
                return Err(ApiError::busy(message, 1));
            }
            let (slot, waiting) = oneshot::channel();
            let priority = slot_request.priority;
            let at = state.waiting.partition_point(|waiter| waiter.slot_request.priority <= priority);
            state.waiting.insert(at, Waiter { slot_request, prompt, slot });
            waiting
        };
        waiting.await.map_err(|_| stops())
    }

    /// All slots as they are now.
    pub fn views(&self) -> Vec<SlotView> {
        self.state().slots.clone()
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.state().waiting.iter().filter(|waiter| !waiter.slot.is_closed()).count()
    }

    /// Slots that serve a request.
    pub fn busy(&self) -> usize {
        self.state().slots.iter().filter(|slot| slot.doing != SlotState::Idle).count()
    }

    /// How many slots there are.
    pub fn count(&self) -> usize {
        self.state().slots.len()
    }

    /// Gives up requests that wait, and those that would: the server stops. Further answers of those that do not wait go
    /// on waiting.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.retain(|waiter| waiter.slot_request.arrival == Arrival::Admitted);
    }

    /// Ends the answers in progress, and further ones as soon as they begin: the server cannot wait for them.
    pub fn call_off(&self) {
        self.called_off.send_replace(true);
    }

    fn release(&self, id: usize) {
        let mut state = self.state();
        state.slots[id].doing = SlotState::Idle;
        let mut at = 0;
        while let Some(waiter) = state.waiting.get(at) {
            if waiter.slot.is_closed() {
                state.waiting.remove(at);
            } else if let Some(id) = state.choose(&waiter.slot_request, &waiter.prompt) {
                let Some(waiter) = state.waiting.remove(at) else { break };
                let conversation = state.take(id, &waiter.slot_request);
                let guard = SlotGuard { slots: self.clone(), id, conversation };
                drop(state);
                // Who has left meanwhile drops the guard, and the next one gets the slot.
                let _ = waiter.slot.send(guard);
                return;
            } else {
                at += 1;
            }
        }
    }
}

impl SlotGuard {
    /// Says what the slot is doing.
    pub fn set(&self, doing: SlotState, generated: usize) {
        let mut state = self.slots.state();
        (state.slots[self.id].doing, state.slots[self.id].generated) = (doing, generated);
    }

    /// Says which tokens the slot holds, and whose they are.
    pub fn holds(&self, scope: u64, tokens: Vec<u32>) {
        let slot = &mut self.slots.state().slots[self.id];
        slot.enter(scope);
        slot.tokens = tokens;
    }

    /// Tells whether the answer is to end: see [`Slots::call_off`].
    pub fn called_off(&self) -> watch::Receiver<bool> {
        self.slots.called_off.subscribe()
    }

    /// Number of the request.
    pub fn task(&self) -> u64 {
        self.slots.state().slots[self.id].task
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.slots.release(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who waits is served in the order of priority, then of arrival.
    #[tokio::test]
    async fn priority_goes_before_arrival() {
        let slots = Slots::new(vec![ConversationId::for_tests(0)], 8);
        let taken = slots.acquire(SlotRequest::default(), Arc::from([])).await.unwrap();
        let (order, mut waiting) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
        for (number, priority) in [0, 5, -1, 0, i64::MIN, 5].into_iter().enumerate() {
            let (waits, order) = (slots.clone(), order.clone());
            waiting.push(tokio::spawn(async move {
                let slot_request = SlotRequest { priority, ..SlotRequest::default() };
                let _slot = waits.acquire(slot_request, Arc::from([])).await.unwrap();
                order.lock().unwrap().push(number);
            }));
            while slots.waiting() <= number {
                tokio::task::yield_now().await;
            }
        }
        drop(taken);
        for waits in waiting {
            waits.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [4, 2, 0, 3, 1, 5]);
    }

    /// What is done with what a slot holds leaves it as it is, also to whom it belongs; only who answers in it takes it over.
    #[tokio::test]
    async fn upkeep_changes_nothing_of_a_slot() {
        let slots = Slots::new(vec![ConversationId::for_tests(0)], 4);
        let slot_request = |scope, purpose| SlotRequest { slot: Some(0), scope, purpose, ..SlotRequest::default() };
        let first = SlotRequest { session: Some("mine".into()), ..slot_request(1, Purpose::Answer) };
        let guard = slots.acquire(first, Arc::from([])).await.unwrap();
        guard.holds(1, vec![1, 2, 3]);
        drop(guard);
        let guard = slots.acquire(slot_request(2, Purpose::Upkeep), Arc::from([])).await.unwrap();
        let held = slots.views().remove(0);
        assert_eq!((held.scope, held.tokens, held.session), (1, vec![1, 2, 3], Some("mine".into())));
        assert_eq!(slots.busy(), 1);
        // What another one is to hold is not called by the name it had.
        guard.holds(2, vec![7]);
        let held = slots.views().remove(0);
        assert_eq!((held.scope, held.tokens, held.session), (2, vec![7], None));
        drop(guard);
        let _guard = slots.acquire(slot_request(3, Purpose::Answer), Arc::from([])).await.unwrap();
        let held = slots.views().remove(0);
        assert_eq!((held.scope, held.tokens, held.session), (3, vec![], None));
    }
}
