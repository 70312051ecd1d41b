//! `kvas chat`: a conversation in the terminal.

use super::{
    INTERRUPTED, device,
    drafts::{DraftFlags, Prepared},
    flags::{MOST_PREDICTED, ModelFlags, OffloadFlags, REPLAY_WINDOW, SamplingFlags, TemplateFlags},
    note,
    output::{self, Second},
    policy::PolicyFlags,
};
use anyhow::anyhow;
use clap::Args;
use kvas::{
    chat::{Chat as Conversation, ChatSettings, Talk},
    engine::{Engine, EngineConfig, Timings},
    memory::plan::{MemoryPlan, SNAPSHOT_EVERY, SnapshotBudget},
    model::Model,
    policy::{BoundedLayers, EvictionPolicy},
    repl::{Colour, ExitReason, KnownPolicy, Policies, Repl, ReplSettings, Sizes},
    session::{ModelId, VersionGuard},
    stdio::is_coloured,
    text::ChatTemplate,
};
use kvas_backend::Program;
use std::{
    io::IsTerminal,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// Chat with a model in the terminal; /help lists what can be typed
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas chat -m model.gguf\n  kvas chat -m model.gguf --system \"Answer in one sentence.\" --temp 0.6\n  kvas chat -m model.gguf --session talk.session"
)]
pub(crate) struct Chat {
    #[command(flatten)]
    model: ModelFlags,
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer; -1 goes on to its end [default: -1]
    #[arg(short = 'n', long, alias = "n-predict", value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i64).range(-1..=MOST_PREDICTED))]
    predict: Option<i64>,
    /// A text that ends an answer; may be given several times
    #[arg(short = 'r', long, value_name = "TEXT")]
    reverse_prompt: Vec<String>,
    /// Let the terminal end lines within words, where it has no more columns: what is copied from it has no ends of lines that
    /// were not said
    #[arg(long, alias = "nowordwrap")]
    no_word_wrap: bool,
    #[command(flatten)]
    template: TemplateFlags,
    /// A file to go on from, if it is there, with its settings but for those given here, and to keep the conversation in
    /// after every answer
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyFlags,
    #[command(flatten)]
    offload_cache: OffloadFlags,
    #[command(flatten)]
    drafts: DraftFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// What a conversation needs: one sequence, and snapshots to go back to.
pub(crate) const WANTED: device::MemoryRequest = device::MemoryRequest {
    sequences: 1,
    snapshots: SnapshotBudget::Share,
    outputs: REPLAY_WINDOW,
    context: None,
    window: REPLAY_WINDOW,
    promised: 0,
    returned: 0,
};

/// One line about a request.
pub(crate) fn statistics(timings: &Timings) -> String {
    kvas::repl::statistics(timings)
}

impl Chat {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        self.drafts.check(self.policy.kind())?;
        self.session.iter().try_for_each(|path| output::check(path))?;
        let mut model = device::open(&self.model)?;
        let table = self.table(&mut model)?;
        let mut policy = table.policy(&mut model, self.policy.clone())?;
        let (chat, settings) = table.open(&mut model, &policy)?;
        let chat = table.begin(chat)?;
        let greeting = table.greeting(&chat, settings.sizes.context);
        let mut repl = Repl::new(chat, settings, table.interrupted.clone());
        repl.greet(greeting);
        loop {
            let asked = match repl.run()? {
                ExitReason::Quit => return Ok(u8::from(!repl.is_well())),
                ExitReason::Interrupted => return Ok(INTERRUPTED),
                ExitReason::Switching(asked) => asked,
            };
            let next = table.policy(&mut model, self.policy.switched(asked));
            let next = match next {
                Ok(next) => next,
                Err(error) => {
                    repl.tell_policy(Err(format!("{error:#}")))?;
                    continue;
                }
            };
            // There may not be room for two engines.
            let talk = leave(repl);
            let ((mut chat, settings), done) = match table.open(&mut model, &next) {
                Ok(opened) => {
                    policy = next;
                    (opened, Ok(()))
                }
                Err(error) => (table.open(&mut model, &policy)?, Err(format!("{error:#}"))),
            };
            chat.resume(talk);
            repl = Repl::new(chat, settings, table.interrupted.clone());
            repl.tell_policy(done)?;
        }
    }

    /// What all engines of this chat have in common.
    fn table(&self, model: &mut Model) -> anyhow::Result<Table<'_>> {
        let params = self.sampling.over_those_of(model, &self.model.name())?;
        let settings = self.over(ChatSettings { params, ..ChatSettings::default() })?;
        let template = match self.template.template()? {
            Some(template) => template,
            None => model.template()?,
        };
        let (plain, layers) = (model.program.clone(), model.spec.layers.len());
        // Of what is typed elsewhere nobody watches what is said.
        let second = if std::io::stdin().is_terminal() { Second::Warns } else { Second::Ends };
        let (id, interrupted) = (ModelId::of(&model.file), output::interruptible(second)?);
        let known = self.policy.known(model, &self.model);
        let claim = self.session.as_deref().map(VersionGuard::new);
        Ok(Table { flags: self, plain, layers, known, template, settings, id, claim, interrupted })
    }

    /// These settings, but for those that were given on the command line.
    fn over(&self, mut settings: ChatSettings) -> anyhow::Result<ChatSettings> {
        settings.params = self.sampling.over(settings.params)?;
        if let Some(most) = self.predict {
            settings.max_tokens = usize::try_from(most).unwrap_or(usize::MAX);
        }
        if !self.reverse_prompt.is_empty() {
            settings.stop_strings = self.reverse_prompt.clone();
        }
        if let Some(variables) = self.template.variables()? {
            settings.template_variables = variables;
        }
        if let Some(most) = self.template.reasoning_budget() {
            settings.reasoning_budget = most;
        }
        Ok(settings)
    }
}

/// Where a conversation is held, whatever policy the model is prepared for.
struct Table<'a> {
    flags: &'a Chat,
    /// The program of the model that holds all tokens.
    plain: Arc<Program>,
    layers: usize,
    known: Vec<KnownPolicy>,
    template: ChatTemplate,
    settings: ChatSettings,
    id: ModelId,
    /// Where the conversation is kept.
    claim: Option<VersionGuard>,
    interrupted: Arc<AtomicBool>,
}

/// What becomes of keys and values, and the program of the model for it.
struct Policy {
    flags: PolicyFlags,
    bound: Option<EvictionPolicy>,
    program: Arc<Program>,
}

impl Table<'_> {
    /// What flags ask for. Fails in one line.
    fn policy(&self, model: &mut Model, flags: PolicyFlags) -> anyhow::Result<Policy> {
        model.program = self.plain.clone();
        let bound = flags.apply(model, &self.flags.model)?;
        Ok(Policy { flags, bound, program: model.program.clone() })
    }

    /// Prepares the model for a policy, and opens a conversation.
    fn open(&self, model: &mut Model, policy: &Policy) -> anyhow::Result<(Conversation, ReplSettings)> {
        let (flags, bound) = (self.flags, policy.bound);
        model.program = policy.program.clone();
        let drafts = flags.drafts.under(policy.flags.kind());
        let rows = drafts.rows();
        let host_bytes = flags.offload_cache.host_bytes(&flags.model.run.compute)?;
        let wanted = device::MemoryRequest { outputs: rows, window: rows, promised: host_bytes, ..WANTED };
        let Prepared { runner, plan, drafters, .. } = drafts.prepare(&flags.model, model, wanted)?;
        let MemoryPlan { page_bytes, slot_bytes, snapshot_bytes, context, limits, .. } = plan;
        let ring = limits.replay.history;
        let sizes = Sizes { page_bytes, slot_bytes, snapshot_bytes, context, ring };
        let offload_cache = flags.offload_cache.open(&self.id, host_bytes)?;
        let (snapshot_every, most_drafts) = (SNAPSHOT_EVERY, drafts.most());
        let config =
            EngineConfig { snapshot_every, offload_cache, bound, drafters, most_drafts, ..EngineConfig::new(context) };
        let engine = Engine::start(runner, config);
        let (tokenizer, template) = (model.tokenizer.clone(), self.template.clone());
        let chat = Conversation::new(engine, tokenizer, template, self.settings.clone()).map_err(fail)?;
        // Answers and what is said of them alternate.
        let is_coloured = is_coloured(&std::io::stdout()) && is_coloured(&std::io::stderr());
        let colour = if is_coloured { Colour::On } else { Colour::Off };
        let layout = BoundedLayers::prepared(&model.program, &limits);
        let policies = Policies { known: self.known.clone(), prepared: policy.flags.kind(), bound, layout };
        let (history, model, session) = (history(), self.id.clone(), self.claim.clone());
        let wrap = !flags.no_word_wrap;
        Ok((chat, ReplSettings { history, colour, wrap, sizes, model, session, policies }))
    }

    /// Goes on with the session there may be.
    fn begin(&self, mut chat: Conversation) -> anyhow::Result<Conversation> {
        let flags = self.flags;
        // From here on: loading the model takes a while.
        self.claim.iter().for_each(VersionGuard::look);
        if let Some(session) = flags.session.as_deref().filter(|session| session.exists()) {
            let noted = chat.load(session, &self.id).map_err(fail)?;
            noted.into_iter().for_each(|said| note(format_args!("{said}")));
            chat.settings = flags.over(std::mem::take(&mut chat.settings))?;
        }
        if let Some(system) = &flags.system {
            chat.set_system(system);
        }
        Ok(chat)
    }

    /// What somebody who looks on is told first.
    fn greeting(&self, chat: &Conversation, context: usize) -> Vec<String> {
        if !std::io::stdout().is_terminal() {
            return Vec::new();
        }
        let (flags, layers) = (self.flags, self.layers);
        let named = flags.model.name();
        let name = named.rsplit(std::path::MAIN_SEPARATOR).next().unwrap_or_default();
        let model = format!("{name}: {layers} layers, context {context} tokens; /help lists commands");
        let read = match (&flags.session, chat.messages().len()) {
            (Some(session), count @ 1..) => Some(format!("{count} messages read from {}", session.display())),
            (Some(_) | None, _) => None,
        };
        [model].into_iter().chain(read).collect()
    }
}

fn fail(what: String) -> anyhow::Error {
    anyhow!(what)
}

/// Ends an engine and waits until its memory is given back; the conversation that was held over it.
fn leave(repl: Repl) -> Talk {
    let (talk, memory) = repl.into_talk();
    let patience = Instant::now() + Duration::from_secs(30);
    while memory.strong_count() > 0 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(2));
    }
    talk
}

/// Where the history of inputs is kept: the user's state folder.
fn history() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    Some(state.or_else(home)?.join("kvas/history"))
}
