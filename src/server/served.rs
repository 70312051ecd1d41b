//! One loaded model as the server sees it: its engine, its text side, its slots.

use super::{
    ApiError, FileFacts,
    file_facts::seconds,
    options::block_in_place,
    slots::{SlotView, Slots},
};
use crate::{
    chat::{Replied, Transcript, render},
    engine::EngineHandle,
    grammar::Vocabulary,
    model::Model,
    policy::{BoundedLayers, EvictionPolicy},
    sampling::SamplerParams,
    session::ModelId,
    speculation::DrafterKind,
    text::{Bos, ChatTemplate, Control, Conversation, Dialect, Special, Tokenizer},
};
use serde_json::{Map, Value};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

/// What loading a model gives: the engine that runs it, and what is known of it.
#[derive(Debug)]
pub struct Loaded {
    /// The engine, started.
    pub engine: EngineHandle,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The template for conversations: the model's, or the one to be used instead.
    pub template: ChatTemplate,
    /// How tokens are chosen where a request does not say it.
    pub sampling: SamplerParams,
    /// Which model it is, for session files.
    pub id: ModelId,
    /// Facts about the model and its memory.
    pub facts: ModelFacts,
}

/// Facts about a model and its memory that clients ask for.
#[derive(Debug, Clone, Default)]
pub struct ModelFacts {
    /// What the file says.
    pub file: FileFacts,
    /// Layers.
    pub layers: usize,
    /// Columns of the residual stream.
    pub width: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Most tokens of a sequence as the model was trained.
    pub trained_context: usize,
    /// Most tokens of a sequence here.
    pub context: usize,
    /// Most tokens read in one step.
    pub batch: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of a live slot.
    pub slot_bytes: u64,
    /// Bytes of a snapshot.
    pub snapshot_bytes: u64,
    /// Entries of a replay ring.
    pub ring: usize,
    /// How many tokens sequences hold where a request says nothing.
    pub bound: Option<EvictionPolicy>,
    /// The layers that give up tokens head by head, if any do.
    pub layout: Option<BoundedLayers>,
    /// Who can draft answers.
    pub drafters: Vec<DrafterKind>,
}

impl ModelFacts {
    /// What a model's file and program say.
    pub fn of(model: &Model) -> Self {
        let spec = &model.spec;
        Self {
            file: FileFacts::of(&model.file),
            layers: spec.layers.len(),
            width: spec.width,
            vocab: spec.vocab,
            trained_context: spec.context_length,
            ..Self::default()
        }
    }
}

/// A model that is being served.
#[derive(Debug)]
pub struct Served {
    /// The name clients use.
    pub name: String,
    /// The engine.
    pub engine: EngineHandle,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The template for conversations.
    pub template: ChatTemplate,
    /// How the model writes reasoning and tool calls.
    pub dialect: Dialect,
    /// Control tokens the dialect wants to see.
    pub markers: Vec<u32>,
    /// Which model it is, for session files.
    pub id: ModelId,
    /// Facts about the model.
    pub facts: ModelFacts,
    /// Its slots.
    pub slots: Slots,
    /// Sampling parameters where a request says nothing.
    pub defaults: SamplerParams,
    /// When its file was changed, or, if it has none, when it was loaded, in seconds since 1970.
    pub created: u64,
    vocabulary: OnceLock<Result<Vocabulary, String>>,
    known: Mutex<VecDeque<(u64, Transcript)>>,
    used: AtomicU64,
}

/// Conversations whose tokens are remembered, so that the next turn repeats them to the token.
const KNOWN: usize = 256;
/// Bytes of text remembered for that.
const KNOWN_BYTES: usize = 64 << 20;

/// Seconds since 1970.
pub fn now() -> u64 {
    seconds(SystemTime::now())
}

/// Seconds since 1970 as a date.
pub fn date(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

impl Served {
    /// Opens `parallel` conversations and serves the model through them.
    pub fn new(name: &str, loaded: Loaded, (parallel, queue): (usize, usize)) -> Result<Self, String> {
        let Loaded { engine, tokenizer, template, sampling, id, facts } = loaded;
        let conversations = (0..parallel).map(|_| engine.open()).collect::<Result<Vec<_>, _>>()?;
        let dialect = Dialect::of_template(template.source());
        let markers = dialect.marker_ids(&tokenizer);
        Ok(Self {
            name: name.into(),
            slots: Slots::new(conversations, queue),
            engine,
            tokenizer,
            template,
            dialect,
            markers,
            id,
            created: if facts.file.modified > 0 { facts.file.modified } else { now() },
            facts,
            defaults: sampling,
            vocabulary: OnceLock::new(),
            known: Mutex::new(VecDeque::new()),
            used: AtomicU64::new(now()),
        })
    }

    /// The vocabulary for grammars, made at the first use.
    pub fn vocabulary(&self) -> Result<&Vocabulary, ApiError> {
        let make = || self.vocabulary.get_or_init(|| Vocabulary::new(self.tokenizer.clone()));
        let made = self.vocabulary.get().unwrap_or_else(|| block_in_place(make));
        made.as_ref().map_err(|what| ApiError::internal(what.clone()))
    }

    /// The prompt of a conversation; a template that refuses it is the request's fault.
    pub fn render(
        &self,
        messages: &[Value],
        tools: &[Value],
        variables: Map<String, Value>,
        generation: Generation,
    ) -> Result<String, ApiError> {
        let messages = Value::Array(self.dialect.messages(messages).map_err(ApiError::at)?);
        let with = |tools: Vec<Value>| {
            let (offered, tools) = (!tools.is_empty(), Value::Array(tools));
            let conversation = Conversation {
                tools: offered.then_some(&tools),
                add_generation_prompt: generation == Generation::Begin,
                variables: variables.clone(),
                ..Conversation::new(&messages)
            };
            render(&self.template, &self.tokenizer, conversation)
        };
        block_in_place(|| {
            let whole = Dialect::whole_tools(tools);
            // Some templates cannot do without what a tool may leave out.
            with(tools.to_vec()).or_else(|error| if whole == tools { Err(error) } else { with(whole) })
        })
        .map_err(ApiError::bad)
    }

    /// The tokens of a text, which may be as long as a request.
    pub fn tokens(&self, text: &str, special: Special, bos: Bos) -> Vec<u32> {
        block_in_place(|| self.tokenizer.encode(text, special, bos))
    }

    /// The text of tokens, which may be as many. Fails if there are others than the model's.
    pub fn text(&self, tokens: &[u32]) -> Result<String, ApiError> {
        block_in_place(|| self.tokenizer.decode(tokens, Control::Show))
            .map_err(|error| ApiError::field("tokens", error))
    }

    /// The tokens of a rendered prompt: those read and generated before, as far as the text is the same.
    pub fn encode(&self, scope: u64, text: &str) -> Vec<u32> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = |known: &Transcript| known.shared_with(text).map_or(0, |(bytes, _)| bytes);
        let own = all.iter().filter(|(of, _)| *of == scope);
        let nearest = own.max_by_key(|(_, known)| shared(known)).map(|(_, known)| known.clone());
        drop(all);
        block_in_place(|| match nearest {
            Some(known) => known.encode(&self.tokenizer, text),
            None => self.tokens(text, Special::Parse, Bos::Add),
        })
    }

    /// Remembers what was read and generated.
    pub fn remember(&self, scope: u64, prompt: (String, Vec<u32>), reply: &Replied<'_>) {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // The conversation this one goes on with is no longer needed for itself.
        let before = all.iter().position(|(of, known)| *of == scope && prompt.0.starts_with(known.text()));
        let mut known = before.and_then(|at| all.remove(at)).map_or_else(Transcript::default, |(_, known)| known);
        known.remember(prompt, reply);
        all.push_back((scope, known));
        let bytes = |all: &VecDeque<(u64, Transcript)>| all.iter().map(|(_, known)| known.text().len()).sum::<usize>();
        while all.len() > KNOWN || (all.len() > 1 && bytes(&all) > KNOWN_BYTES) {
            all.pop_front();
        }
    }

    /// Asks the engine something, which may take it as long as a step.
    pub async fn ask_engine<T: Send + 'static>(
        self: &Arc<Self>,
        ask: impl FnOnce(&EngineHandle) -> Result<T, String> + Send + 'static,
    ) -> Result<T, ApiError> {
        let served = self.clone();
        let asked = tokio::task::spawn_blocking(move || ask(&served.engine)).await;
        asked.map_err(|error| ApiError::internal(error.to_string()))?.map_err(ApiError::internal)
    }

    /// A slot by its number.
    pub fn slot(&self, id: usize) -> Result<SlotView, ApiError> {
        let (views, count) = (self.slots.views(), self.slots.count());
        let found = views.into_iter().nth(id);
        found.ok_or_else(|| ApiError::not_found(format!("slot {id}, expected less than {count}")))
    }

    /// Notes that the model is in use.
    pub fn touch(&self) {
        self.used.store(now(), Ordering::Relaxed);
    }

    /// When the model was last in use, in seconds since 1970.
    pub fn last_used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// Whether a rendered prompt ends where the assistant's answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// It does.
    Begin,
    /// It ends with the last message.
    Omit,
}
