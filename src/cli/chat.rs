//! `kvas chat`: a conversation in the terminal.

use super::{
    INTERRUPTED, device,
    drafts::{DraftFlags, Prepared},
    flags::{ModelFlags, REPLAY_WINDOW, SamplingFlags, ShelfFlags},
    policy::PolicyFlags,
};
use anyhow::{Context, anyhow};
use clap::Args;
use kvas::{
    chat::{Chat as Conversation, ChatSettings},
    engine::{Engine, EngineConfig, Timings},
    memory::plan::{MemoryPlan, SnapshotBudget},
    repl::{Colour, Left, Repl, ReplSettings, Sizes},
    session::ModelId,
    text::ChatTemplate,
};
use serde_json::{Map, Value};
use std::{
    io::IsTerminal,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
    /// Most tokens of an answer; -1 goes on to its end
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_hyphen_values = true)]
    predict: i64,
    /// A text that ends an answer; may be given several times
    #[arg(short = 'r', long, value_name = "TEXT")]
    reverse_prompt: Vec<String>,
    /// A file with a chat template to use instead of the model's
    #[arg(long, value_name = "FILE")]
    chat_template_file: Option<PathBuf>,
    /// Variables for the template, as a JSON object: {"enable_thinking": false}
    #[arg(long, value_name = "JSON")]
    chat_template_kwargs: Option<String>,
    /// A file to go on from, if it is there, and to keep the conversation in after every answer
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyFlags,
    #[command(flatten)]
    shelf: ShelfFlags,
    #[command(flatten)]
    drafts: DraftFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// Tokens of a prompt between two snapshots: one costs less than reading a token (ALGORITHMS 3.3).
pub(crate) const SNAPSHOT_EVERY: u32 = 512;

/// What a conversation needs: one sequence, and snapshots to go back to.
pub(crate) const WANTED: device::Wanted = device::Wanted {
    sequences: 1,
    snapshots: SnapshotBudget::Share,
    outputs: REPLAY_WINDOW,
    context: None,
    window: REPLAY_WINDOW,
    promised: 0,
};

/// One line about a request.
pub(crate) fn statistics(timings: &Timings) -> String {
    kvas::repl::statistics(timings)
}

impl Chat {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let params = self.sampling.params()?;
        let template_variables = self.template_variables()?;
        let mut model = device::open(&self.model)?;
        let bound = self.policy.apply(&mut model, &self.model)?;
        let template = match &self.chat_template_file {
            Some(path) => {
                let source = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
                ChatTemplate::new(&source).with_context(|| path.display().to_string())?
            }
            None => model.template()?,
        };
        let rows = self.drafts.rows();
        let wanted = device::Wanted { outputs: rows, window: rows, ..WANTED };
        let Prepared { runner, plan, drafters, .. } = self.drafts.prepare(&self.model, &model, wanted)?;
        let MemoryPlan { page_bytes, slot_bytes, snapshot_bytes, context, .. } = plan;
        let sizes = Sizes { page_bytes, slot_bytes, snapshot_bytes, context };
        let id = ModelId::of(&model.file);
        let shelf = self.shelf.open(&id)?;
        let (snapshot_every, most_drafts) = (SNAPSHOT_EVERY, self.drafts.most());
        let config = EngineConfig { snapshot_every, shelf, bound, drafters, most_drafts, ..EngineConfig::new(context) };
        let engine = Engine::start(runner, config);
        let max_tokens = usize::try_from(self.predict).unwrap_or(usize::MAX);
        let stop_strings = self.reverse_prompt;
        let settings = ChatSettings { params, max_tokens, stop_strings, template_variables };
        let named = self.model.name();
        let name = named.rsplit(std::path::MAIN_SEPARATOR).next().unwrap_or_default().to_string();
        let fail = |what: String| anyhow!(what);
        let mut chat = Conversation::new(engine, model.tokenizer, template, settings.clone()).map_err(fail)?;
        if let Some(session) = self.session.as_deref().filter(|session| session.exists()) {
            chat.load(session, &id).map_err(fail)?;
            chat.settings = given(settings, std::mem::take(&mut chat.settings));
        }
        if let Some(system) = &self.system {
            chat.set_system(system);
        }
        let interrupted = listen()?;
        let terminal = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let colour = if terminal { Colour::On } else { Colour::Off };
        if terminal {
            println!(
                "{name}: {} layers, context {} tokens; /help lists commands",
                model.spec.layers.len(),
                plan.context
            );
            if let (Some(session), count @ 1..) = (&self.session, chat.messages().len()) {
                println!("{count} messages read from {}", session.display());
            }
        }
        let settings = ReplSettings { history: history(), colour, sizes, model: id, session: self.session };
        let left = Repl::new(chat, settings, interrupted).run().map_err(fail)?;
        Ok(if left == Left::Interrupted { INTERRUPTED } else { 0 })
    }

    fn template_variables(&self) -> anyhow::Result<Map<String, Value>> {
        let Some(text) = &self.chat_template_kwargs else { return Ok(Map::new()) };
        match serde_json::from_str(text) {
            Ok(Value::Object(variables)) => Ok(variables),
            _ => Err(anyhow!("--chat-template-kwargs {text}, expected a JSON object")),
        }
    }
}

/// The settings of a session, but for those that were given on the command line.
fn given(flags: ChatSettings, saved: ChatSettings) -> ChatSettings {
    fn pick<T: PartialEq>(flag: T, default: T, saved: T) -> T {
        if flag == default { saved } else { flag }
    }
    let default = ChatSettings::default();
    ChatSettings {
        params: pick(flags.params, default.params, saved.params),
        max_tokens: pick(flags.max_tokens, default.max_tokens, saved.max_tokens),
        stop_strings: pick(flags.stop_strings, default.stop_strings, saved.stop_strings),
        template_variables: pick(flags.template_variables, default.template_variables, saved.template_variables),
    }
}

/// Ctrl-C during an answer stops it; a second one, if the answer does not stop, ends the program.
fn listen() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let set = interrupted.clone();
    let handler = move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
    };
    ctrlc::set_handler(handler).context("cannot listen for Ctrl-C")?;
    Ok(interrupted)
}

/// Where the history of inputs is kept: the user's state folder.
fn history() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    Some(state.or_else(home)?.join("kvas/history"))
}
