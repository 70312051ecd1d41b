//! `kvas run`: one completion to stdout, statistics to stderr.

use super::{
    INTERRUPTED, device,
    drafts::{DraftFlags, Prepared},
    flags::{MOST_PREDICTED, ModelFlags, SamplingFlags, TemplateFlags},
    grammar::GrammarFlags,
    note,
    output::{self, Second},
    policy::PolicyFlags,
    print,
    score::check_ids,
    tokenize::text_of,
};
use anyhow::{anyhow, bail};
use clap::{Args, CommandFactory as _, error::ErrorKind};
use kvas::{
    chat::{Answer, Ends, Said, Saying, answer, generated, render, sampler},
    engine::{Engine, EngineConfig, Failure, Request},
    grammar::Stage,
    memory::Scope,
    memory::plan::SnapshotBudget,
    model::Model,
    scheduler::Finish,
    session::{ModelId, Session, VersionGuard, Writer},
    stdio::{aside, show},
    text::{AnswerReader, Bos, Conversation, Dialect, ReasoningMode, Special},
};
use serde_json::{Value, json};
use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Complete a prompt: the text goes to stdout, statistics to stderr
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas run -m model.gguf -p \"Once upon a time\" -n 100\n  kvas run -m model.gguf -f prompt.txt --temp 0 --json\n  git diff | kvas run -m model.gguf --chat -p \"Say what this changes:\" -f -\n  kvas run -m model.gguf --chat -p \"What is a page table?\"\n  kvas run -m model.gguf --ids 1,15043 -n 8 --temp 0\n  kvas run -m model.gguf -p \"A colour: \" --grammar 'root ::= \"red\" | \"green\"'\n  kvas run -m model.gguf --chat -p \"Who wrote Faust?\" -j '{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}}, \"required\": [\"name\"]}'\n  kvas run -m model.gguf --session story.session -p \"Once upon a time\" -n 100"
)]
pub(crate) struct Run {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    policy: PolicyFlags,
    #[command(flatten)]
    prompt: Prompt,
    /// Most tokens to generate; -1 goes on to the end of the answer or the context
    #[arg(short = 'n', long, alias = "n-predict", value_name = "N", default_value_t = -1, allow_hyphen_values = true, value_parser = clap::value_parser!(i64).range(-1..=MOST_PREDICTED))]
    predict: i64,
    /// Do not stop at the end of the answer
    #[arg(long)]
    ignore_eos: bool,
    /// The prompt is a message: render it with the model's chat template. Reasoning goes to stderr
    #[arg(long)]
    chat: bool,
    /// System message before it, with --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    #[command(flatten)]
    template: TemplateFlags,
    /// A text that ends the answer; may be given several times
    #[arg(short = 'r', long, value_name = "TEXT")]
    reverse_prompt: Vec<String>,
    /// A file to go on from, if it is there: the prompt follows what it holds; then all is kept in it
    #[arg(long, value_name = "FILE", conflicts_with = "chat")]
    session: Option<PathBuf>,
    /// Print one JSON object: prompt_ids, ids, text, reasoning_content if there is any, finish_reason, timings
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    grammar: GrammarFlags,
    #[command(flatten)]
    drafts: DraftFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// The end of what was generated, and of the prompt.
const SESSION_SNAPSHOTS: usize = 2;

/// Where the prompt comes from; without any of it, from stdin, unless that is a terminal.
#[derive(Debug, Args)]
struct Prompt {
    /// The prompt; a file follows it in a new line. Without -p, -f and --ids, what is piped to stdin
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// A file with the prompt, less the last line's end; `-` reads it from stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The prompt as token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["prompt", "file"])]
    ids: Option<Vec<u32>>,
}

impl Prompt {
    /// The text; none if nobody says it.
    fn text(&self) -> anyhow::Result<Option<String>> {
        let file = |path: &Path| {
            let text = text_of(path)?;
            let end = text.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
            anyhow::Ok(end.unwrap_or(&text).to_string())
        };
        Ok(match (&self.prompt, &self.file) {
            (Some(text), None) => Some(text.clone()),
            (Some(text), Some(path)) => Some(format!("{text}\n{}", file(path)?)),
            (None, Some(path)) => Some(file(path)?),
            (None, None) if std::io::stdin().is_terminal() => None,
            (None, None) => Some(file(Path::new("-"))?).filter(|text| !text.is_empty()),
        })
    }
}

/// Said where there is no prompt.
fn no_prompt() -> clap::Error {
    let mut cli = super::Cli::command();
    cli.build();
    let what = "no prompt, expected -p, -f or --ids, or a text that is piped to stdin";
    let of = cli.find_subcommand_mut("run").map(|run| run.error(ErrorKind::MissingRequiredArgument, what));
    of.unwrap_or_else(|| clap::Error::raw(ErrorKind::MissingRequiredArgument, what))
}

/// A message as a prompt.
struct Rendered {
    dialect: Dialect,
    text: String,
}

impl Rendered {
    /// Takes an answer apart.
    fn reader(&self) -> AnswerReader {
        self.dialect.reader(&self.text, &[], ReasoningMode::Split)
    }
}

impl Run {
    pub(crate) fn run(mut self) -> anyhow::Result<u8> {
        self.sampling.check()?;
        self.session.iter().try_for_each(|path| output::check(path))?;
        self.drafts.check(self.policy.kind())?;
        let mut model = device::open(&self.model)?;
        let params = self.sampling.over_those_of(&model, &self.model.name())?;
        let bound = self.policy.apply(&mut model, &self.model)?;
        let stop_tokens = if self.ignore_eos { vec![] } else { model.tokenizer.eog().to_vec() };
        let id = ModelId::of(&model.file);
        // As it is when it is read: what others write meanwhile is not replaced.
        let claim = self.session.as_deref().map(VersionGuard::new);
        let known = self.known(&id)?;
        if self.prompt.ids.is_none() {
            let Some(text) = self.prompt.text()? else { return super::tell(&no_prompt()) };
            self.prompt = Prompt { prompt: Some(text), file: None, ids: None };
        }
        let tokens = known.as_ref().map_or(&[][..], |session| session.tokens());
        let (ids, rendered) = self.prompt_ids(&model, tokens)?;
        let prompt = [tokens, &ids].concat();
        check_ids(&model, &prompt)?;
        let budget = self.template.reasoning_budget().filter(|budget| *budget < usize::MAX);
        let of = |Rendered { dialect, text }: &Rendered| Stage::reasoning(dialect, text, budget);
        let reasoning = rendered.as_ref().and_then(of);
        let constraint = self.grammar.constraint(&model.tokenizer, &stop_tokens, reasoning)?;
        let asked = usize::try_from(self.predict).ok();
        let trained = model.spec.context_length;
        let needed = asked.map(|tokens| prompt.len().saturating_add(tokens + 1).max(4096).min(trained));
        let snapshots = if self.session.is_some() { SESSION_SNAPSHOTS } else { 0 };
        let kept = SnapshotBudget::Exactly(snapshots);
        let outputs = self.drafts.rows();
        let wanted =
            device::MemoryRequest { snapshots: kept, window: outputs, ..device::MemoryRequest::once(outputs, needed) };
        let Prepared { runner, plan, drafters, .. } = self.drafts.prepare(&self.model, &model, wanted)?;
        let most_drafts = self.drafts.most();
        let engine =
            Engine::start(runner, EngineConfig { bound, drafters, most_drafts, ..EngineConfig::new(plan.context) });
        let fail = |what: String| anyhow!(what);
        let conversation = engine.open().map_err(fail)?;
        let noted = known.map(|session| engine.load(Arc::new(session), Scope::default())).transpose().map_err(fail)?;
        noted.flatten().into_iter().for_each(|said| note(format_args!("{said}")));
        let request = Request {
            conversation: Some(conversation),
            max_tokens: asked.unwrap_or(usize::MAX),
            stop_tokens,
            constraint,
            ..Request::new(prompt.clone(), sampler(&params, &model.tokenizer).map_err(fail)?)
        };
        let interrupted = output::interruptible(Second::Ends)?;
        interrupted.store(false, Ordering::Relaxed);
        let ends = Ends {
            stop_strings: self.reverse_prompt.clone(),
            shown: rendered.as_ref().map_or(Vec::new(), |rendered| rendered.dialect.marker_ids(&model.tokenizer)),
            ..Ends::default()
        };
        let ask = |sink: &mut dyn FnMut(&str)| answer(&engine, &model.tokenizer, request, ends, &interrupted, sink);
        let (done, message) = self.listen(rendered.as_ref(), &interrupted, ask)?;
        let saved = claim.as_ref().map(|claim| {
            let generated = generated(&done.ids, &model.tokenizer);
            let writer = Writer::claimed(claim, &id, [&prompt, generated].concat(), String::new());
            engine.save(conversation, writer).map_err(fail)
        });
        // The answer is there, whether it could be kept or not.
        self.report(&prompt, &done, message.as_ref())?;
        saved.transpose()?;
        Ok(if done.finish == Finish::Cancelled { INTERRUPTED } else { 0 })
    }

    /// Shows an answer while it comes; it, and its message if what was asked was one.
    fn listen(
        &self,
        rendered: Option<&Rendered>,
        interrupted: &AtomicBool,
        ask: impl FnOnce(&mut dyn FnMut(&str)) -> Result<Answer, Failure>,
    ) -> anyhow::Result<(Answer, Option<Value>)> {
        let (mut written, mut is_thinking) = (Ok(()), false);
        let mut sink = |said: Said<'_>| match said {
            Said::Reasoning(_) | Said::Answer(_) if self.json || written.is_err() => {}
            Said::Reasoning(text) => {
                is_thinking = true;
                aside(text);
            }
            Said::Answer(text) => {
                if std::mem::take(&mut is_thinking) {
                    aside("\n\n");
                }
                written = show(text);
                // Nobody reads any more: there is no point in going on.
                interrupted.store(written.is_err() || interrupted.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        };
        let (done, message) = match rendered {
            Some(rendered) => {
                let mut saying = Saying::new(rendered.reader(), &mut sink);
                let done = ask(&mut |text| saying.push(text));
                (done, Some(saying.finish()))
            }
            None => (ask(&mut |text| sink(Said::Answer(text))), None),
        };
        written?;
        if is_thinking {
            aside("\n");
        }
        Ok((done?, message))
    }

    /// The session to go on from.
    fn known(&self, model: &ModelId) -> anyhow::Result<Option<Session>> {
        let Some(path) = self.session.as_ref().filter(|path| path.exists()) else { return Ok(None) };
        let session = Session::open(path)?;
        session.check_model(model)?;
        if !session.conversation().is_empty() {
            bail!("{}: the session of a chat, expected one of kvas run", path.display());
        }
        Ok(Some(session))
    }

    /// The tokens of the prompt, which follow `known`, and its text if it is a message.
    fn prompt_ids(&self, model: &Model, known: &[u32]) -> anyhow::Result<(Vec<u32>, Option<Rendered>)> {
        let (template, variables) = (self.template.template()?, self.template.variables()?);
        let is_told = template.is_some() || variables.is_some() || self.template.reasoning_budget().is_some();
        if !self.chat && is_told {
            bail!("--chat-template-file, --chat-template-kwargs and --reasoning-budget, expected --chat as well");
        }
        let text = match (&self.prompt.ids, &self.prompt.prompt) {
            (Some(ids), _) if self.chat => {
                bail!("--chat renders text, expected -p or -f and not --ids ({})", ids.len())
            }
            (Some(ids), _) => return Ok((ids.clone(), None)),
            (None, text) => text.clone().unwrap_or_default(),
        };
        if !self.chat {
            let ids = match known.last() {
                Some(last) => model.tokenizer.encode_on(Some(*last), &text, Special::Parse),
                None => model.tokenizer.encode(&text, Special::Parse, Bos::Add),
            };
            if ids.is_empty() && known.is_empty() {
                bail!("the prompt is empty and this model adds no first token, expected some text");
            }
            return Ok((ids, None));
        }
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Value = system.chain([json!({"role": "user", "content": text})]).collect();
        let template = template.map_or_else(|| model.template(), Ok)?;
        let variables = variables.unwrap_or_default();
        let conversation = Conversation { variables, ..Conversation::new(&messages) };
        let text = render(&template, &model.tokenizer, conversation).map_err(|what| anyhow!(what))?;
        let ids = model.tokenizer.encode(&text, Special::Parse, Bos::Add);
        Ok((ids, Some(Rendered { dialect: Dialect::of_template(template.source()), text })))
    }

    fn report(&self, prompt: &[u32], done: &Answer, message: Option<&Value>) -> std::io::Result<()> {
        let timings = &done.timings;
        if self.json {
            let text = message.and_then(|message| message["content"].as_str());
            let mut object = json!({
                "prompt_ids": prompt,
                "ids": done.ids,
                "text": text.unwrap_or(&done.text),
                "finish_reason": done.finish.name(),
                "timings": {
                    "prompt_n": timings.prompt_tokens,
                    "prompt_ms": timings.prompt_seconds * 1e3,
                    "predicted_n": timings.generated_tokens,
                    "predicted_ms": timings.generate_seconds * 1e3,
                    "cache_n": timings.cached_tokens,
                    "draft_n": timings.drafted_tokens,
                    "draft_n_accepted": timings.accepted_tokens,
                },
            });
            if let Some(reasoning) = message.and_then(|message| message.get("reasoning_content")) {
                object["reasoning_content"] = reasoning.clone();
            }
            return print(format_args!("{object}"));
        }
        print(format_args!(""))?;
        let is_cut = done.finish == Finish::Length && usize::try_from(self.predict) != Ok(timings.generated_tokens);
        let cut = if is_cut { "cut off at the end of the context; " } else { "" };
        note(format_args!("{cut}{}", super::chat::statistics(timings)));
        Ok(())
    }
}
