//! `/policy`: what becomes of the keys and values of this conversation. What the model is prepared for is a matter of
//! the next answer; anything else is asked of whoever prepared it.

use crate::{
    chat::Chat,
    policy::{BoundOverrides, BoundedLayers, EvictionPolicy, PolicyKind},
};

/// What can become of keys and values here.
#[derive(Debug, Clone)]
pub struct Policies {
    /// All policies there are.
    pub known: Vec<KnownPolicy>,
    /// The one that the model is prepared for.
    pub prepared: PolicyKind,
    /// What a conversation then holds if it says nothing else.
    pub bound: Option<EvictionPolicy>,
    /// The layers that evict tokens head by head, if any do.
    pub layout: Option<BoundedLayers>,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPolicy {
    /// Which.
    pub kind: PolicyKind,
    /// What it does with what is hardly read.
    pub what: String,
    /// Whether this model can go by it here; if not, preparing it says why.
    pub is_possible: bool,
}

/// A policy that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRequest {
    /// Which.
    pub kind: PolicyKind,
    /// Tokens that a layer holds.
    pub budget: Option<u32>,
}

/// What comes of asking.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Switched {
    /// Done, or shown; this is to be said.
    Said(String),
    /// The model has to be prepared for it.
    Prepare(PolicyRequest),
}

/// Whether a number of tokens may follow the name of a policy.
fn has_budget(kind: PolicyKind) -> bool {
    kind == PolicyKind::Slake
}

impl Policies {
    /// Carries out `/policy ARGUMENT`. Fails in one line.
    pub(super) fn switch(&self, chat: &mut Chat, argument: &str) -> Result<Switched, String> {
        let Some(asked) = self.asked(argument)? else { return Ok(Switched::Said(self.show(chat))) };
        if asked.kind != PolicyKind::Full && asked.kind != self.prepared {
            return Ok(Switched::Prepare(asked));
        }
        let budget = asked.budget.map(|budget| budget as usize);
        let overrides = BoundOverrides { policy: Some(asked.kind), budget, ..BoundOverrides::default() };
        if self.within(&overrides).is_err() {
            return Ok(Switched::Prepare(asked));
        }
        chat.bound = overrides;
        Ok(Switched::Said(format!("{}{}", self.describe(chat), self.price(chat))))
    }

    /// What is asked for; none if nothing is.
    fn asked(&self, argument: &str) -> Result<Option<PolicyRequest>, String> {
        let mut words = argument.split_whitespace();
        let Some(name) = words.next() else { return Ok(None) };
        let known = |kind: &PolicyKind| self.known.iter().any(|known| known.kind == *kind);
        let Some(kind) = PolicyKind::from_name(name).filter(known) else {
            return Err(format!("/policy {name}, expected one of {}", self.names()));
        };
        let number = words.next();
        let budget =
            number.map(|text| text.parse().map_err(|_| format!("/policy {name} {text}, expected a number of tokens")));
        let budget = budget.transpose()?;
        if words.next().is_some() || (budget.is_some() && !has_budget(kind)) {
            let slake = PolicyKind::Slake.name();
            return Err(format!("/policy {argument}, expected a name, and a number of tokens after {slake}"));
        }
        Ok(Some(PolicyRequest { kind, budget }))
    }

    fn possible(&self) -> impl Iterator<Item = &KnownPolicy> {
        self.known.iter().filter(|known| known.is_possible)
    }

    fn names(&self) -> String {
        self.possible().map(|known| known.kind.name()).collect::<Vec<_>>().join(", ")
    }

    fn within(&self, overrides: &BoundOverrides) -> Result<Option<EvictionPolicy>, String> {
        overrides.within(self.bound, self.layout)
    }

    /// The policy of a conversation, in one line.
    pub(super) fn describe(&self, chat: &Chat) -> String {
        let eviction_policy = self.within(&chat.bound).ok().flatten();
        let name = eviction_policy.as_ref().map_or(PolicyKind::Full, EvictionPolicy::kind).name();
        match eviction_policy {
            None => format!("{name}: this conversation holds the keys and values of all its tokens"),
            Some(EvictionPolicy::Segments(schedule)) => {
                let most = schedule.most();
                format!("{name}: a layer holds at most {most} tokens of this conversation, whatever its length")
            }
            Some(EvictionPolicy::Budget(bound)) => {
                let budget = bound.budget;
                format!("{name}: a layer holds {budget} tokens of this conversation on average, once it is longer")
            }
        }
    }

    /// What a change costs that was just made.
    fn price(&self, chat: &Chat) -> String {
        let is_full = matches!(self.within(&chat.bound), Ok(None));
        let sequences = chat.engine().memory_report().map(|report| report.sequences).unwrap_or_default();
        let evicted = sequences
            .iter()
            .find(|sequence| sequence.conversation == Some(chat.conversation()))
            .is_some_and(|sequence| sequence.held.iter().any(|held| *held < sequence.tokens));
        match (is_full, evicted) {
            (true, true) => "; the evicted tokens are read again with the next question".into(),
            (true, false) | (false, _) => String::new(),
        }
    }

    fn show(&self, chat: &Chat) -> String {
        let mut lines = vec![self.describe(chat), String::new(), "Keys and values that are hardly read:".into()];
        for KnownPolicy { kind, what, .. } in self.possible() {
            let argument = format!("{}{}", kind.name(), if has_budget(*kind) { " [N]" } else { "" });
            lines.push(format!("/policy {argument:18} {what}"));
        }
        lines.push(format!(
            "The model is prepared for {}. For another one it is prepared anew, and the conversation read again.",
            self.prepared.name()
        ));
        lines.join("\n")
    }
}
