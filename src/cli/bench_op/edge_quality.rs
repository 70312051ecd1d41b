//! `kvas bench-op edge_quality`: what predictions and answers are worth when a sequence gives up segments: with the gates
//! of the model and without, and with parts of what is held left out.

use super::questions::{Question, questions};
use crate::cli::{
    device,
    flags::ModelFlags,
    input, print,
    score::{SCORED_ROWS, check_ids},
};
use anyhow::{anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use kvas::{
    engine::{Engine, EngineConfig, Event, Request, Runner, negative_log_likelihood, score, score_segments},
    model::{Model, lower::lower_segments, spec::EdgeInfinite},
    policy::{Absorbing, EvictionPolicy, Schedule, can_evict_segments},
    sampling::{Sampler, SamplerParams},
    text::{Bos, Special},
};
use kvas_backend::{
    Program,
    store::{SegmentMemory, Segments},
};
use serde_json::json;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

/// How good predictions and answers are when a sequence gives up segments
#[derive(Debug, Args)]
#[command(
    name = "edge_quality",
    after_help = "Examples:\n  kvas bench-op edge_quality -m model.edge.gguf --text book.txt --tokens 65536 --recall recall.jsonl\n  kvas bench-op edge_quality -m model.edge.gguf --recall recall.jsonl --methods full,window,gates"
)]
pub(super) struct EdgeQuality {
    #[command(flatten)]
    model: ModelFlags,
    /// Text to predict, as one sequence
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens of the text
    #[arg(long, value_name = "N", default_value_t = 65536, value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    tokens: u32,
    /// Positions that count, in parts: each from a number to before the next one, the last to the end
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512,2048,4096,8192,16384,32768")]
    from: Vec<u32>,
    /// Questions: a JSON object a line with `prompt` and `answer`, and with `tokens` to tell lengths apart
    #[arg(long, value_name = "FILE")]
    recall: Option<PathBuf>,
    /// Questions that are asked [default: all]
    #[arg(long, value_name = "N")]
    questions: Option<usize>,
    /// What is compared [default: all]
    #[arg(long, value_enum, value_name = "METHOD,…", value_delimiter = ',')]
    methods: Vec<Method>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Method {
    /// All tokens are held
    Full,
    /// The first and the last ones, nothing is kept of the others
    Window,
    /// The same, and the others are summed up by their moments
    Ptaa,
    /// The gates of the model
    Gates,
    /// The same, and the window is read again
    Recomputed,
    /// The gates, the first tokens given up like others
    NoSinks,
    /// The gates, of the last tokens one held
    NoWindow,
    /// The gates, without both
    Neither,
}

impl Method {
    /// As a table names it.
    const fn title(self) -> &'static str {
        match self {
            Method::Full => "full attention",
            Method::Window => "window without a memory",
            Method::Ptaa => "moments (ptaa)",
            Method::Gates => "trained gates",
            Method::Recomputed => "trained gates, recomputed",
            Method::NoSinks => "trained gates, no sinks",
            Method::NoWindow => "trained gates, no window",
            Method::Neither => "trained gates, neither",
        }
    }

    /// How layers give up segments, of a model whose gates were trained like this, and when; `None`: they hold all.
    fn segments(self, trained: &EdgeInfinite) -> Option<(Segments, Absorbing)> {
        let (memory, absorbing) = match self {
            Method::Full => return None,
            Method::Window => (SegmentMemory::None, Absorbing::InPlace),
            Method::Ptaa => (SegmentMemory::Moments, Absorbing::InPlace),
            Method::Recomputed => (SegmentMemory::Matrix(trained.keys), Absorbing::Recompute),
            Method::Gates | Method::NoSinks | Method::NoWindow | Method::Neither => {
                (SegmentMemory::Matrix(trained.keys), Absorbing::InPlace)
            }
        };
        let has_no_sinks = matches!(self, Method::NoSinks | Method::Neither);
        let has_no_window = matches!(self, Method::NoWindow | Method::Neither);
        let sink = if has_no_sinks { 0 } else { trained.sink };
        let window = if has_no_window { 1 } else { trained.window };
        let EdgeInfinite { segment, positions, .. } = *trained;
        Some((Segments { sink, window, segment, positions, memory }, absorbing))
    }
}

/// What was found for a method.
#[derive(Debug, Default)]
struct Found {
    /// By part of the text: sum of the losses, and tokens.
    losses: Vec<(f64, usize)>,
    /// By length of the prompt: right answers, and questions.
    answers: BTreeMap<usize, (usize, usize)>,
}

impl EdgeQuality {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let mut model = device::open(&self.model)?;
        let file = self.model.name();
        ensure!(can_evict_segments(&model.program), "{file}: expected a model with layers of attention, and no others");
        let Some(trained) = model.spec.edgeinfinite else {
            bail!("{file}: it has no gates, expected a model that kvas adapter has added some to");
        };
        ensure!(self.from.is_sorted() && !self.from.is_empty(), "--from, expected numbers that grow, as in 512,2048");
        let text = self.text(&model)?;
        let asked = match &self.recall {
            Some(path) => questions(path, &model, self.questions)?,
            None => Vec::new(),
        };
        ensure!(!text.is_empty() || !asked.is_empty(), "expected --text or --recall");
        let all = if self.methods.is_empty() { Method::value_variants() } else { &self.methods };
        let plain = model.program.clone();
        for (number, method) in all.iter().enumerate() {
            let found = self.measure((&mut model, &plain), (*method, &trained), (&text, &asked))?;
            self.say(number == 0, *method, &found)?;
        }
        Ok(0)
    }

    fn text(&self, model: &Model) -> anyhow::Result<Vec<u32>> {
        let Some(path) = &self.text else { return Ok(Vec::new()) };
        let text = input::text(path, path.display())?;
        let mut ids = model.tokenizer.encode(&text, Special::Parse, Bos::Omit);
        check_ids(model, &ids)?;
        ids.truncate(self.tokens as usize);
        let (tokens, from) = (ids.len(), self.from[0]);
        ensure!(tokens > from as usize + 1, "{}: {tokens} tokens, expected more than --from {from}", path.display());
        Ok(ids)
    }

    fn measure(
        &self,
        (model, plain): (&mut Model, &Arc<Program>),
        (method, trained): (Method, &EdgeInfinite),
        (text, asked): (&[u32], &[Question]),
    ) -> anyhow::Result<Found> {
        let segments = method.segments(trained);
        let schedule = segments.as_ref().map(|(segments, absorbing)| Schedule::of(segments, *absorbing));
        model.program = match segments {
            Some((segments, _)) => Arc::new(lower_segments(&model.spec, segments)),
            None => plain.clone(),
        };
        let longest = asked.iter().map(|asked| asked.prompt.len() + asked.answer.len()).chain([text.len()]).max();
        let longest = longest.unwrap_or(0) + 1;
        let wanted = device::MemoryRequest::once(SCORED_ROWS, Some(longest));
        let (mut runner, _) = device::prepare(&self.model, model, wanted)?;
        let losses = self.losses(&mut runner, schedule.as_ref(), text).map_err(|what| anyhow!(what))?;
        let bound = schedule.map(EvictionPolicy::Segments);
        let engine = Engine::start(runner, EngineConfig { bound, ..EngineConfig::new(longest) });
        let (mut answers, counter) = (BTreeMap::new(), super::counter(method.title(), asked.len()));
        for Question { prompt, answer, group } in asked {
            let sampler = Sampler::new(SamplerParams::greedy(), model.spec.vocab, &[])?;
            let request = Request { max_tokens: answer.len(), ..Request::new(prompt.clone(), sampler) };
            let (stream, mut found) = (engine.submit(request), Vec::new());
            loop {
                match stream.next_event() {
                    Event::Token(token) => found.push(token),
                    Event::Done(..) => break,
                    Event::Failed(what) => bail!("{what}"),
                    Event::Probabilities(_) | Event::OfPrompt(_) | Event::Hidden(_) | Event::Progress(_) => {}
                }
            }
            let (right, count) = answers.entry(*group).or_insert((0, 0));
            (*right, *count) = (*right + usize::from(found == *answer), *count + 1);
            counter.inc(1);
        }
        counter.finish_and_clear();
        Ok(Found { losses, answers })
    }

    /// The losses of the parts of a text.
    fn losses(
        &self,
        runner: &mut Runner,
        schedule: Option<&Schedule>,
        text: &[u32],
    ) -> Result<Vec<(f64, usize)>, String> {
        let mut losses = vec![(0.0, 0); self.from.len()];
        let mut each = |at: usize, logits: &mut [f32]| {
            let part = self.from.partition_point(|from| *from as usize <= at).checked_sub(1);
            if let Some((next, part)) = text.get(at + 1).zip(part) {
                let (sum, count) = &mut losses[part];
                (*sum, *count) = (*sum + negative_log_likelihood(logits, *next), *count + 1);
            }
        };
        match schedule {
            _ if text.is_empty() => return Ok(Vec::new()),
            None => score(runner, text, &mut each)?,
            Some(schedule) => score_segments(runner, text, schedule, &mut each)?,
        }
        Ok(losses)
    }

    fn say(&self, is_first: bool, method: Method, found: &Found) -> std::io::Result<()> {
        // A part that the text does not reach has no tokens.
        let parts = self.from.iter().zip(&found.losses).filter(|(_, (_, count))| *count > 0);
        let parts: Vec<(u32, f64)> = parts.map(|(from, (sum, count))| (*from, (sum / *count as f64).exp())).collect();
        let whole = found.losses.iter().fold((0.0, 0), |all, part| (all.0 + part.0, all.1 + part.1));
        let whole = (whole.1 > 0).then(|| (whole.0 / whole.1 as f64).exp());
        let share = |(right, count): &(usize, usize)| *right as f64 / *count as f64;
        if self.json {
            let perplexity: BTreeMap<String, f64> = parts.iter().map(|(from, ppl)| (from.to_string(), *ppl)).collect();
            let answers: BTreeMap<String, f64> =
                found.answers.iter().map(|(group, of)| (group.to_string(), share(of))).collect();
            let line = json!({
                "method": method.title(), "perplexity": perplexity, "perplexity_of_all": whole, "answers": answers,
            });
            return print(format_args!("{line}"));
        }
        let heads = parts.iter().map(|(from, _)| format!("from {from}")).chain(whole.map(|_| "all".into()));
        let heads: Vec<String> = heads.chain(found.answers.keys().map(|group| format!("answers {group}"))).collect();
        if is_first {
            print(format_args!("| method | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len())))?;
        }
        let numbers = parts.iter().map(|(_, ppl)| *ppl).chain(whole).chain(found.answers.values().map(share));
        let numbers: Vec<String> = numbers.map(|number| format!("{number:.2}")).collect();
        print(format_args!("| {} | {} |", method.title(), numbers.join(" | ")))
    }
}
