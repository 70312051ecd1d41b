//! `kvas bench-op slake_quality`: what answers and predictions are worth when a sequence holds fewer tokens, at equal
//! bytes: how well a text is predicted, and how many questions about a long prompt are answered.

use super::{
    plot::{Curve, Panel, svg},
    questions::{Question, questions},
};
use crate::cli::{device, flags::ModelFlags, input, output, print};
use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use kvas::{
    engine::{Runner, SingleSequence, negative_log_likelihood},
    memory::plan::SnapshotBudget,
    model::{Model, spec::Exponents},
    policy::{Bound, BoundedLayers, EvictionScore, bounded},
    text::{Bos, Special},
};
use kvas_backend::store::MomentType;
use serde_json::json;
use std::{path::PathBuf, sync::Arc};

/// How good predictions and answers are when a sequence holds fewer tokens, at equal bytes
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench-op slake_quality -m model.gguf --text wiki.txt --recall recall.jsonl --budgets 128,256,50% --svg curve.svg"
)]
pub(super) struct SlakeQuality {
    #[command(flatten)]
    model: ModelFlags,
    /// Text to predict: the first part of every window is a prompt, the rest is read token by token
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Questions: a JSON object a line with `prompt` and `answer`
    #[arg(long, value_name = "FILE")]
    recall: Option<PathBuf>,
    /// Budgets: tokens of a layer, or a percentage of the prompt. One that is too small for what stays in any case is
    /// raised to the smallest that is not, which results name
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "128,256,512,1024,50%")]
    budgets: Vec<String>,
    /// Windows of the text
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,
    /// Tokens of the prompt of a window, and tokens predicted after it
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "3072,512")]
    lengths: Vec<usize>,
    /// Questions that are asked [default: all]
    #[arg(long, value_name = "N")]
    questions: Option<usize>,
    /// Last tokens of the prompt of a question that are read after tokens were given up: what is asked last reads all of
    /// a prompt. With more tokens than a question has nobody knows what will be asked when tokens are given up
    #[arg(long, value_name = "N", default_value_t = 8)]
    held_back: usize,
    /// Where to draw the curves
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// A budget of tokens, or of a share of the prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Budget {
    Tokens(usize),
    Percent(usize),
}

impl Budget {
    fn of(text: &str) -> anyhow::Result<Self> {
        let budget = match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().filter(|percent| (1..=100).contains(percent)).map(Budget::Percent),
            None => text.parse().ok().filter(|tokens| *tokens > 0).map(Budget::Tokens),
        };
        budget.with_context(|| format!("--budgets {text}, expected numbers of tokens or percentages, as in 256,50%"))
    }

    fn tokens(self, prompt: usize) -> usize {
        match self {
            Budget::Tokens(tokens) => tokens,
            Budget::Percent(percent) => prompt * percent / 100,
        }
    }
}

impl std::fmt::Display for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Budget::Tokens(tokens) => write!(f, "{tokens}"),
            Budget::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// What is compared.
const METHODS: [(&str, EvictionScore, bool, f32); 5] = [
    ("sinks and window", EvictionScore::Window, false, 0.0),
    ("CAKE", EvictionScore::Cake, false, 0.0),
    ("CAKE, moments", EvictionScore::Cake, true, 0.0),
    ("VABS, moments", EvictionScore::Vabs, true, 0.0),
    ("VABS, moments, mass", EvictionScore::Vabs, true, 0.5),
];

/// Something to read: a prompt, and what should follow.
struct Item {
    prompt: Vec<u32>,
    rest: Vec<u32>,
    /// The last tokens of the rest, which are to be predicted.
    wanted: usize,
}

/// What was found for a method.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    loss: f64,
    predicted: usize,
    right: usize,
    asked: usize,
    /// Budgets of all items: as they were asked for, and as they were used.
    budgets: [usize; 2],
    items: usize,
}

impl Found {
    /// The mean budget that was used, if it is another one than was asked for.
    fn raised(&self) -> Option<usize> {
        let [asked, used] = self.budgets;
        (used > asked).then(|| used.div_ceil(self.items))
    }

    fn perplexity(&self) -> f64 {
        (self.loss / self.predicted as f64).exp()
    }

    fn recall(&self) -> f64 {
        100.0 * self.right as f64 / self.asked as f64
    }
}

impl SlakeQuality {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let budgets = self.budgets.iter().map(|text| Budget::of(text)).collect::<anyhow::Result<Vec<_>>>()?;
        self.svg.as_deref().map_or(Ok(()), output::begin)?;
        let mut model = device::open(&self.model)?;
        if let Some(svg) = &self.svg {
            model.file.check_apart(svg)?;
            self.text.iter().chain(&self.recall).try_for_each(|read| output::check_apart(svg, read))?;
        }
        let (texts, questions) = (self.texts(&model)?, self.questions(&model)?);
        let items = || texts.iter().chain(&questions);
        let longest = items().map(|item| item.prompt.len() + item.rest.len()).max();
        let Some(longest) = longest else { bail!("expected --text or --recall") };
        let kv_type = self.model.run.kv_type(&model)?;
        let page_size = self.model.run.page_size(kv_type, false)?;
        let with = |model: &Model, most| bounded(&model.program, &Bound::new(most), MomentType::F32, page_size);
        let layout = BoundedLayers::of(&with(&model, longest), page_size, kv_type);
        let layout = layout.context("expected a model with layers of attention")?;
        let least = Bound::new(0).least_budget(&layout);
        let most = budgets.iter().map(|budget| budget.tokens(longest)).fold(least, usize::max);
        model.program = Arc::new(with(&model, most));
        // The prompt of an item stays beside what a budget leaves of it.
        let snapshots = SnapshotBudget::Exactly(2);
        let wanted = device::MemoryRequest { snapshots, ..device::MemoryRequest::once(1, Some(2 * longest)) };
        let (mut runner, _) = device::prepare(&self.model, &model, wanted)?;
        let layout = runner.bounded_layers().context("expected a model with layers of attention")?;
        // The first is what all others are compared with.
        let mut found = vec![Found::default(); 1 + budgets.len() * METHODS.len()];
        let mut reading = SingleSequence::new(&mut runner).map_err(|what| anyhow!(what))?;
        let counter = super::counter("texts and questions", texts.len() + questions.len());
        for (number, item) in items().enumerate() {
            let is_text = number < texts.len();
            self.measure(
                (&mut runner, &mut reading),
                (item, is_text),
                (&budgets, &layout, model.spec.exponents),
                &mut found,
            )
            .map_err(|what| anyhow!(what))?;
            counter.inc(1);
        }
        counter.finish_and_clear();
        self.report(&budgets, &layout, &found)
    }

    /// Windows of the text.
    fn texts(&self, model: &Model) -> anyhow::Result<Vec<Item>> {
        let Some(path) = &self.text else { return Ok(Vec::new()) };
        let &[prompt, rest] = &self.lengths[..] else { bail!("--lengths, expected two numbers, as in 3072,512") };
        ensure!(prompt >= 64 && rest > 0, "--lengths {prompt},{rest}, expected a prompt of at least 64 tokens");
        let text = input::text(path, path.display())?;
        let ids = model.tokenizer.encode(&text, Special::Parse, Bos::Omit);
        let window = prompt + rest;
        ensure!(
            ids.len() >= window,
            "{}: {} tokens, expected at least one window of {window}",
            path.display(),
            ids.len()
        );
        let windows = ids.chunks_exact(window).take(self.windows as usize);
        let item = |ids: &[u32]| Item { prompt: ids[..prompt].to_vec(), rest: ids[prompt..].to_vec(), wanted: rest };
        Ok(windows.map(item).collect())
    }

    fn questions(&self, model: &Model) -> anyhow::Result<Vec<Item>> {
        let Some(path) = &self.recall else { return Ok(Vec::new()) };
        let item = |Question { mut prompt, answer, .. }: Question| {
            let wanted = answer.len();
            let mut rest = prompt.split_off(prompt.len().saturating_sub(self.held_back).max(1));
            rest.extend(answer);
            Item { prompt, rest, wanted }
        };
        Ok(questions(path, model, self.questions)?.into_iter().map(item).collect())
    }

    /// Reads an item once, and goes back to the end of its prompt for every method and budget.
    fn measure(
        &self,
        (runner, reading): (&mut Runner, &mut SingleSequence),
        (item, is_text): (&Item, bool),
        (budgets, layout, exponents): (&[Budget], &BoundedLayers, Exponents),
        found: &mut [Found],
    ) -> Result<(), String> {
        let asked = layout.window;
        let before = item.prompt.len().saturating_sub(asked);
        let cached = reading.begin(runner, &item.prompt, asked as u32)?;
        reading.push(runner, &item.prompt[cached..before.max(cached)], None)?;
        reading.keep(runner)?;
        let bounds = budgets.iter().flat_map(|budget| {
            METHODS
                .map(|(_, score, moments, mass_cap)| Some((budget.tokens(item.prompt.len()), score, moments, mass_cap)))
        });
        for (found, method) in found.iter_mut().zip([None].into_iter().chain(bounds)) {
            let bound = method.map(|(budget, score, moments, mass_cap)| {
                let [alpha, beta] = exponents.of(budget);
                Bound { score, moments, mass_cap, alpha, beta, ..Bound::new(budget) }
            });
            // Too small for what stays in any case: what is closest to it.
            let bound = bound.map(|bound| {
                let used = bound.budget.max(bound.least_budget(layout));
                found.budgets = [found.budgets[0] + bound.budget, found.budgets[1] + used];
                Bound { budget: used, ..bound }
            });
            found.items += 1;
            let cached = reading.begin(runner, &item.prompt, asked as u32)?;
            reading.push(runner, &item.prompt[cached..], bound.as_ref())?;
            let mut is_right = true;
            for (number, token) in item.rest.iter().enumerate() {
                let logits = runner.logits_mut(0).map_err(|error| error.to_string())?;
                if number + item.wanted < item.rest.len() {
                    // Of a question, still.
                } else if is_text {
                    found.loss += negative_log_likelihood(logits, *token);
                    found.predicted += 1;
                } else {
                    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    is_right &= logits[*token as usize] == best;
                }
                reading.push(runner, &[*token], bound.as_ref())?;
            }
            if !is_text {
                found.asked += 1;
                found.right += usize::from(is_right);
            }
        }
        Ok(())
    }

    fn report(&self, budgets: &[Budget], layout: &BoundedLayers, found: &[Found]) -> anyhow::Result<u8> {
        let full = &found[0];
        let line = |budget: &str, method: &str, found: &Found| -> std::io::Result<()> {
            let (perplexity, recall) = (found.perplexity(), found.recall());
            let (more, fewer) = (100.0 * (perplexity / full.perplexity() - 1.0), full.recall() - recall);
            if self.json {
                print(format_args!(
                    "{}",
                    json!({
                        "budget": budget, "raised_to": found.raised(), "method": method, "perplexity": perplexity, "recall": recall,
                        "perplexity_percent": more, "recall_lost": fewer, "moment_tokens": layout.moment_rows,
                    })
                ))
            } else {
                let predicted = match found.predicted {
                    0 => "| ".into(),
                    _ => format!("{perplexity:.3} | {more:+.2} %"),
                };
                let answered =
                    if found.asked == 0 { "| ".into() } else { format!("{recall:.1} | {:+.1}", 0.0 - fewer) };
                let budget = found.raised().map_or(budget.into(), |used| format!("{budget} ({used})"));
                print(format_args!("| {budget} | {method} | {predicted} | {answered} |"))
            }
        };
        if !self.json {
            print(format_args!("| budget | method | perplexity | | recall | |\n|---|---|---|---|---|---|"))?;
        }
        line("all", "full", full)?;
        for (budget, found) in budgets.iter().zip(found[1..].chunks(METHODS.len())) {
            METHODS.iter().zip(found).try_for_each(|((name, ..), found)| line(&budget.to_string(), name, found))?;
        }
        if let Some(path) = &self.svg {
            output::write(path, curves(budgets, found).as_bytes())?;
        }
        Ok(0)
    }
}

/// Perplexity and recall over budgets of tokens.
fn curves(budgets: &[Budget], found: &[Found]) -> String {
    let panel = |title: &str, of: fn(&Found) -> f64| {
        let curve = |(number, (name, ..)): (usize, &(&str, EvictionScore, bool, f32))| {
            let point = |(budget, found): (&Budget, &[Found])| match budget {
                Budget::Tokens(tokens) => {
                    let used = found[number].raised().unwrap_or(*tokens);
                    Some((used as f64, of(&found[number])))
                }
                Budget::Percent(_) => None,
            };
            let points = budgets.iter().zip(found[1..].chunks(METHODS.len())).filter_map(point).collect();
            Curve { name: (*name).into(), points }
        };
        let curves = METHODS.iter().enumerate().map(curve).collect();
        Panel { title: title.into(), curves, level: of(&found[0]) }
    };
    let perplexity = (found[0].predicted > 0).then(|| panel("perplexity (dashed: all tokens)", Found::perplexity));
    let recall = (found[0].asked > 0).then(|| panel("answers, % (dashed: all tokens)", Found::recall));
    svg("tokens of a layer, moments included", &perplexity.into_iter().chain(recall).collect::<Vec<_>>())
}
