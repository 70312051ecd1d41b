//! The terminal: reads inputs, streams answers, carries out commands. First Ctrl-C stops an answer and keeps it; at
//! the prompt, a second one leaves.

mod command;
mod draw;
mod editor;
mod policy;
mod setting;
mod voice;
mod wrap;

pub use editor::Colour;
pub use policy::{KnownPolicy, Policies, PolicyRequest};

use crate::{
    chat::{Answer, Chat, Said, Talk},
    engine::{Failure, Timings},
    memory::{PoolUsage, Usage},
    scheduler::Finish,
    session::{ModelId, VersionGuard},
    stdio::{dim_note, note, print},
};
use command::{COMMANDS, Command, Input, numbered, parse, path};
use draw::Canvas;
use editor::{Prompt, Typed};
use policy::Switched;
use rustyline::error::ReadlineError;
use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};
use voice::{Voice, told};
use wrap::wrapped;

/// Sizes that the statistics are printed in.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Bytes of a single-layer page.
    pub page_bytes: u64,
    /// Bytes of a live sequence's recurrent state.
    pub slot_bytes: u64,
    /// Bytes of that of a snapshot.
    pub snapshot_bytes: u64,
    /// Tokens of the context.
    pub context: usize,
    /// Tokens that the replay ring of a sequence keeps.
    pub ring: usize,
}

impl Sizes {
    /// Bytes of the pages, sequences and snapshots in use.
    fn of(self, usage: Usage) -> [u64; 3] {
        let bytes = |of: PoolUsage, each: u64| of.held as u64 * each;
        [
            bytes(usage.pages, self.page_bytes),
            bytes(usage.sequences, self.slot_bytes),
            bytes(usage.snapshots, self.snapshot_bytes),
        ]
    }
}

/// How the terminal is set up.
#[derive(Debug, Clone)]
pub struct ReplSettings {
    /// Where the history of inputs is kept.
    pub history: Option<PathBuf>,
    /// Whether to use colour.
    pub colour: Colour,
    /// Whether lines of a terminal end between words.
    pub wrap: bool,
    /// For statistics.
    pub sizes: Sizes,
    /// The model, to tell whose session a file is.
    pub model: ModelId,
    /// Where the conversation is written after every answer and at the end.
    pub session: Option<VersionGuard>,
    /// What can become of keys and values.
    pub policies: Policies,
}

/// How the user left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// `/quit` or Ctrl-D.
    Quit,
    /// Ctrl-C twice.
    Interrupted,
    /// `/policy` wants the model prepared for another policy, and then to go on.
    Switching(PolicyRequest),
}

/// Whether to go on after a command.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    Go,
    Leave(ExitReason),
}

/// See the module.
#[derive(Debug)]
pub struct Repl {
    chat: Chat,
    settings: ReplSettings,
    interrupted: Arc<AtomicBool>,
    last: Option<Timings>,
    /// Columns of the terminal, if it is one.
    width: Option<usize>,
    /// Said before the first question.
    greeting: Vec<String>,
    /// What came to nothing that outlives the conversation.
    failed: Failed,
}

/// What the user is told by more than a line, as nobody may have read it: by the exit code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Failed {
    /// The input ended within a message.
    typing: bool,
    /// The session was not written when it should have been last.
    keeping: bool,
}

impl Repl {
    /// A terminal over a conversation. `interrupted` is set by whoever hears of Ctrl-C during an answer, and ends the
    /// program, or warns before it does, if it is set already.
    pub fn new(chat: Chat, settings: ReplSettings, interrupted: Arc<AtomicBool>) -> Self {
        let (last, width, greeting, failed) = (None, None, Vec::new(), Failed::default());
        Self { chat, settings, interrupted, last, width, greeting, failed }
    }

    /// Says this before the first question, where somebody looks on: how wide the terminal is is known then.
    pub fn greet(&mut self, greeting: Vec<String>) {
        self.greeting = greeting;
    }

    /// Whether all that was typed was taken, and the conversation is kept if it was to be.
    pub fn is_well(&self) -> bool {
        self.failed == Failed::default()
    }

    /// Runs until the user leaves, or wants the model prepared anew. Fails if the terminal does, or nobody reads.
    pub fn run(&mut self) -> io::Result<ExitReason> {
        let left = self.listen();
        self.keep();
        left
    }

    /// The conversation, to go on with over another engine, and what lives as long as the memory of this one.
    pub fn into_talk(self) -> (Talk, Weak<()>) {
        (self.chat.talk(), self.chat.engine().memory())
    }

    /// Says that `/policy` came to something: what, or in one line why it did not.
    pub fn tell_policy(&self, done: Result<(), String>) -> io::Result<()> {
        match done {
            Ok(()) => print(format_args!(
                "{}\nthe model was prepared for it; the next question reads the conversation again",
                self.settings.policies.describe(&self.chat)
            )),
            Err(error) => {
                self.note(&error);
                Ok(())
            }
        }
    }

    fn listen(&mut self) -> io::Result<ExitReason> {
        let fail = |error: ReadlineError| io::Error::new(kind(&error), format!("terminal: {error}"));
        let mut prompt = Prompt::new(self.settings.history.clone(), self.settings.colour).map_err(fail)?;
        self.width = width(&mut prompt);
        for line in std::mem::take(&mut self.greeting) {
            print(format_args!("{}", wrapped(&line, self.columns())))?;
        }
        let mut interrupts = 0;
        loop {
            // A terminal is left by the prompt itself, which has changed it; a pipe is by whoever hears of Ctrl-C.
            self.interrupted.store(!io::stdin().is_terminal(), Ordering::Relaxed);
            let typed = prompt.read().map_err(fail)?;
            // As it is now: people change it while they type.
            self.width = width(&mut prompt);
            match typed {
                Typed::End => return Ok(ExitReason::Quit),
                Typed::Dropped => {}
                Typed::Interrupt if interrupts > 0 => return Ok(ExitReason::Interrupted),
                Typed::Interrupt => {
                    interrupts += 1;
                    self.note("Ctrl-C again leaves, as do Ctrl-D and /quit");
                    continue;
                }
                Typed::Unfinished => {
                    self.failed.typing = true;
                    self.note("the input ends within a message, which was left out, expected its last line or \"\"\"");
                    return Ok(ExitReason::Quit);
                }
                Typed::Garbled => self.note("this input is not UTF-8 and was left out, expected UTF-8 text"),
                Typed::Input(input) => {
                    if let Next::Leave(left) = self.input(&input, &mut prompt)? {
                        return Ok(left);
                    }
                }
            }
            interrupts = 0;
        }
    }

    fn input(&mut self, input: &str, prompt: &mut Prompt) -> io::Result<Next> {
        let input = parse(input);
        if let Input::Command(command, argument) = &input
            && let Err(error) = command.check(argument)
        {
            self.note(&error);
            return Ok(Next::Go);
        }
        match input {
            Input::Empty => {}
            Input::Unknown(name) => self.note(&format!("{name} is no command, /help lists them")),
            Input::Message(text) => {
                self.answer(prompt, |chat, interrupted, sink| chat.ask(&text, interrupted, sink))?;
            }
            Input::Command(Command::Quit, _) => return Ok(Next::Leave(ExitReason::Quit)),
            Input::Command(Command::Policy, argument) => {
                match self.settings.policies.switch(&mut self.chat, &argument) {
                    Ok(Switched::Said(said)) => print(format_args!("{}", wrapped(&said, self.columns())))?,
                    Ok(Switched::Prepare(asked)) => return Ok(Next::Leave(ExitReason::Switching(asked))),
                    Err(error) => self.note(&error),
                }
            }
            Input::Command(Command::Regen, _) => self.answer(prompt, Chat::regenerate)?,
            Input::Command(Command::Edit, argument) => match numbered(&argument) {
                Some((number, text)) => {
                    self.answer(prompt, |chat, interrupted, sink| chat.edit(number, &text, interrupted, sink))?;
                }
                None => self.note("/edit wants the number of a question and its new text; /show messages has both"),
            },
            Input::Command(command, argument) => match self.command(command, &argument) {
                Ok(said) if said.is_empty() => {}
                // What is drawn has its lines.
                Ok(said) if command == Command::Memory => print(format_args!("{said}"))?,
                Ok(said) => print(format_args!("{}", wrapped(&said, self.columns())))?,
                Err(error) => self.note(&error),
            },
        }
        Ok(Next::Go)
    }

    /// Streams an answer, then says what it cost.
    fn answer(
        &mut self,
        prompt: &mut Prompt,
        ask: impl FnOnce(&mut Chat, &AtomicBool, &mut dyn FnMut(Said<'_>)) -> Result<Answer, Failure>,
    ) -> io::Result<()> {
        self.interrupted.store(false, Ordering::Relaxed);
        let mut written = Ok(());
        let mut voice = Voice::new(self.settings.colour);
        let wraps = self.settings.wrap;
        let mut sink = |said: Said<'_>| {
            if written.is_ok() {
                written = voice.say(said, width(prompt).filter(|_| wraps));
                // Nobody reads any more: there is no point in going on.
                self.interrupted.store(written.is_err() || self.interrupted.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        };
        let answer = ask(&mut self.chat, &self.interrupted, &mut sink);
        written?;
        self.width = width(prompt);
        voice.finish(self.columns())?;
        match answer {
            Ok(answer) => {
                print(format_args!(""))?;
                let line = self.statistics(&answer.timings);
                let cut_off = cut_off(answer.finish, answer.timings.generated_tokens, self.chat.settings.max_tokens);
                self.note(&format!("[{cut_off}{line}]"));
                self.last = Some(answer.timings);
                self.keep();
            }
            Err(failure) => self.note(&self.with_advice(&failure)),
        }
        self.interrupted.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn statistics(&self, timings: &Timings) -> String {
        let memory = self.memory_bytes().map_or(String::new(), |bytes| format!(", memory {}", mebibytes(bytes)));
        format!("{}{memory}", statistics(timings))
    }

    fn memory_bytes(&self) -> Option<u64> {
        let stats = self.chat.engine().stats().ok()?;
        let [pages, sequences, snapshots] = self.settings.sizes.of(stats.usage);
        Some(pages + sequences + snapshots)
    }

    /// Columns of lines that end between words, if they do.
    fn columns(&self) -> Option<usize> {
        self.width.filter(|_| self.settings.wrap)
    }

    /// Something that is neither question nor answer.
    fn note(&self, text: &str) {
        let text = wrapped(text, self.columns().filter(|_| io::stderr().is_terminal()));
        match self.settings.colour {
            Colour::On => dim_note(&text),
            Colour::Off => note(format_args!("{text}")),
        }
    }

    fn command(&mut self, command: Command, argument: &str) -> Result<String, String> {
        match command {
            Command::Help => Ok(help()),
            Command::System => Ok(self.system(argument)),
            Command::Set => self.set(argument),
            Command::Show => self.show(argument),
            Command::Clear => {
                self.chat.clear();
                Ok("the conversation is forgotten".into())
            }
            Command::Undo => match self.chat.undo() {
                Some(question) => Ok(format!("taken back: {question}")),
                None => Err("there is nothing to take back".into()),
            },
            Command::Save => self.save(argument),
            Command::Load => self.load(argument),
            Command::Stats => self.stats(),
            Command::Memory => {
                let canvas = Canvas { width: self.width, colour: self.settings.colour };
                let report = self.chat.engine().memory_report()?;
                Ok(draw::memory(&report, self.chat.conversation(), self.settings.sizes, canvas))
            }
            Command::Quit | Command::Regen | Command::Edit | Command::Policy => Ok(String::new()),
        }
    }

    fn system(&mut self, text: &str) -> String {
        match text {
            "" => self.chat.system().unwrap_or("there is no system message").to_string(),
            "none" => {
                self.chat.set_system("");
                "the system message is removed".into()
            }
            text => {
                self.chat.set_system(text);
                "the system message is set".into()
            }
        }
    }

    fn set(&mut self, argument: &str) -> Result<String, String> {
        let (settings, said) = setting::set(&self.chat.settings, argument)?;
        self.chat.settings = settings;
        Ok(said)
    }

    fn show(&self, what: &str) -> Result<String, String> {
        match what {
            "" => {
                let lines = self.chat.settings.to_json().into_iter().map(|(name, value)| format!("{name:22} {value}"));
                Ok(lines.collect::<Vec<_>>().join("\n"))
            }
            "messages" => Ok(told(self.chat.messages())),
            other => Err(format!("/show {other}, expected nothing or messages")),
        }
    }

    fn save(&self, argument: &str) -> Result<String, String> {
        // Who means stdout would look for a file of that name in vain.
        if matches!(argument, "" | "-") {
            return Err("/save wants a file name".into());
        }
        let (file, model) = (path(argument), &self.settings.model);
        let bytes = match self.own(&file) {
            // Whoever names it means it.
            Some(claim) => {
                claim.look();
                self.chat.keep(claim, model)?
            }
            None => self.chat.save(&file, model)?,
        };
        let (count, file) = (self.chat.messages().len(), file.display());
        Ok(format!("{count} messages written to {file}, {}", mebibytes(bytes)))
    }

    fn load(&mut self, argument: &str) -> Result<String, String> {
        if argument.is_empty() {
            return Err("/load wants a file name".into());
        }
        let file = path(argument);
        let own = self.own(&file).cloned();
        let before = own.as_ref().map(VersionGuard::now);
        let note = self.chat.load(&file, &self.settings.model)?;
        own.zip(before).into_iter().for_each(|(claim, before)| claim.set(before));
        note.into_iter().for_each(|note| self.note(&note));
        Ok(format!("{} messages read from {}", self.chat.messages().len(), file.display()))
    }

    /// The session that the terminal was started with, if a path is its own.
    fn own(&self, path: &Path) -> Option<&VersionGuard> {
        self.settings.session.as_ref().filter(|claim| claim.is_of(path))
    }

    /// Writes the session that the terminal was started with.
    fn keep(&mut self) {
        let Some(claim) = &self.settings.session else { return };
        let kept = self.chat.keep(claim, &self.settings.model);
        self.failed.keeping = kept.is_err();
        if let Err(error) = kept {
            self.note(&format!("{error}; /save FILE keeps this conversation in another file"));
        }
    }

    /// With what can be done here about a conversation that is too long.
    fn with_advice(&self, failure: &Failure) -> String {
        let is_first = !self.chat.messages().iter().any(|message| message["role"] == "user");
        let advice = if is_first {
            "A larger -c has room for more"
        } else {
            "/undo takes back the one before it, /clear forgets all, a larger -c has room for more"
        };
        match failure {
            Failure::TooLong { .. } => {
                format!("{failure}; the question was left out. {advice}")
            }
            Failure::NoToken(what) | Failure::Other(what) => what.clone(),
        }
    }

    fn stats(&self) -> Result<String, String> {
        let stats = self.chat.engine().stats()?;
        let (sizes, usage) = (self.settings.sizes, stats.usage);
        let mut lines =
            vec![format!("context   {} tokens, {} tokens read since the start", sizes.context, stats.tokens_read)];
        let kinds = [("pages    ", usage.pages), ("sequences", usage.sequences), ("snapshots", usage.snapshots)];
        lines.extend(kinds.into_iter().zip(sizes.of(usage)).map(|((name, PoolUsage { held, total }), bytes)| {
            format!("{name} {held} of {total}, {}", mebibytes(bytes))
        }));
        if let Some(offload_cache) = stats.offload_cache {
            let host = Some(offload_cache.host).filter(|host| host.count > 0);
            for (name, tier) in [("on host  ", host), ("on disk  ", offload_cache.disk)] {
                lines.extend(tier.map(|tier| format!("{name} {} prefixes, {}", tier.count, mebibytes(tier.bytes))));
            }
            lines.extend(offload_cache.failure.map(|what| format!("failed    {what}")));
        }
        let (drafted, accepted) = (stats.steps.drafted, stats.steps.accepted);
        if drafted > 0 {
            let share = 100.0 * accepted as f64 / drafted as f64;
            lines.push(format!("drafts    {accepted} of {drafted} tokens accepted ({share:.0} %)"));
        }
        lines.extend(self.last.map(|timings| format!("last      {}", statistics(&timings))));
        lines.extend(self.last.map(|timings| format!("reuse     {}", timings.miss)));
        Ok(lines.join("\n"))
    }
}

/// Columns of the terminal that is written to, if it is one.
fn width(prompt: &mut Prompt) -> Option<usize> {
    prompt.width().filter(|_| io::stdout().is_terminal())
}

/// The kind of a failure of the terminal, by which it is told whether there is nobody at it any more.
fn kind(error: &ReadlineError) -> io::ErrorKind {
    if let ReadlineError::Io(error) = error { error.kind() } else { io::ErrorKind::Other }
}

/// Why an answer of so many tokens is not whole, unless it is, or as long as was asked for.
const fn cut_off(finish: Finish, tokens: usize, most: usize) -> &'static str {
    match finish {
        Finish::Cancelled if tokens == 0 => {
            "stopped before the answer, /regen goes on with it, /undo takes the question back; "
        }
        Finish::Cancelled => "stopped; ",
        Finish::Length if tokens < most => "cut off at the end of the context; ",
        Finish::Length | Finish::Stop => "",
    }
}

/// One line about a request: tokens and speed of both halves, and what was reused.
pub fn statistics(timings: &Timings) -> String {
    // The first token comes with the prompt; speed is that of the others.
    let later = timings.generated_tokens.saturating_sub(1);
    format!(
        "prompt {}{}, {} reused; answer {}{}",
        counted(timings.prompt_tokens),
        rate(timings.prompt_tokens, timings.prompt_seconds),
        timings.cached_tokens,
        counted(timings.generated_tokens),
        rate(later, timings.generate_seconds)
    )
}

fn counted(tokens: usize) -> String {
    format!("{tokens} token{}", if tokens == 1 { "" } else { "s" })
}

/// The speed, where there is one.
fn rate(tokens: usize, seconds: f64) -> String {
    let is_known = tokens > 0 && seconds > 0.0;
    if is_known { format!(" ({:.1} tok/s)", tokens as f64 / seconds) } else { String::new() }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn help() -> String {
    let line =
        |(_, name, argument, what): &(Command, &str, &str, &str)| format!("{:20} {what}", format!("{name} {argument}"));
    let mut lines: Vec<String> = COMMANDS.iter().map(line).collect();
    lines.push(String::new());
    lines.push("\"\"\" begins and ends a text of several lines; a line that ends in \\ goes on.".into());
    lines.push("Ctrl-C stops an answer and keeps it; at the prompt it drops what is typed, and leaves, twice.".into());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_has_no_speed_and_no_plural() {
        let timings = Timings { prompt_tokens: 1, prompt_seconds: 0.5, generated_tokens: 1, ..Timings::default() };
        assert_eq!(statistics(&timings), "prompt 1 token (2.0 tok/s), 0 reused; answer 1 token");
        let timings = Timings { cached_tokens: 9, generated_tokens: 3, generate_seconds: 0.5, ..Timings::default() };
        assert_eq!(statistics(&timings), "prompt 0 tokens, 9 reused; answer 3 tokens (4.0 tok/s)");
    }

    #[test]
    fn who_stops_before_the_answer_hears_how_to_go_on() {
        assert!(cut_off(Finish::Cancelled, 0, 60).contains("/regen goes on"));
        assert_eq!(cut_off(Finish::Cancelled, 1, 60), "stopped; ");
        assert_eq!(cut_off(Finish::Length, 59, 60), "cut off at the end of the context; ");
        assert_eq!([cut_off(Finish::Length, 60, 60), cut_off(Finish::Stop, 3, 60)], ["", ""]);
    }
}
