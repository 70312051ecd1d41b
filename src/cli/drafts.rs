//! Who drafts answers, from flags to drafters that are ready.

use super::{
    device::{self, MemoryRequest, Place},
    flags::ModelFlags,
};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use kvas::{
    engine::{DraftModel, PredictionHead, Runner},
    memory::plan::{MemoryPlan, PlanRequest, SnapshotBudget, TooLarge, plan},
    model::Model,
    policy::PolicyKind,
    speculation::{DEFAULT_DRAFTS, Drafter, DrafterKind, Lookup, MOST_DRAFTS},
};
use kvas_backend::{Program, StoreDecl};
use std::path::PathBuf;

/// Who drafts answers, and how much.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Drafts")]
pub(crate) struct DraftFlags {
    /// Who drafts the next tokens, which the model then checks in one step; answers are the same either way. Nobody does
    /// with --kv-policy slake or edgeinfinite
    #[arg(long, value_enum, default_value_t = Spec::Auto)]
    spec: Spec,
    /// Most tokens drafted at once
    #[arg(long, value_name = "N", default_value_t = DEFAULT_DRAFTS as u16, value_parser = clap::value_parser!(u16).range(1..=MOST_DRAFTS as i64))]
    spec_max: u16,
    /// A smaller model with the same vocabulary that drafts. Also -md FILE
    #[arg(long, value_name = "FILE")]
    model_draft: Option<PathBuf>,
}

/// Who drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Spec {
    /// Whoever there is, where it has paid off so far
    Auto,
    /// Nobody
    Off,
    /// The text itself: what followed the last tokens when they came before
    Ngram,
    /// The model's own prediction head
    Mtp,
    /// The model of --model-draft
    Draft,
}

/// A model that is ready, and who drafts for it.
pub(crate) struct Prepared {
    pub(crate) runner: Runner,
    pub(crate) plan: MemoryPlan,
    pub(crate) drafters: Vec<Box<dyn Drafter>>,
    /// Bytes that drafting takes besides what is planned.
    pub(crate) beside_bytes: u64,
}

/// The memory of a model, and of who drafts for it.
pub(crate) struct Planned {
    /// What the model asks for where the others have what they need.
    pub(crate) request: PlanRequest,
    /// Bytes there are for all of them.
    pub(crate) available_bytes: u64,
    own: MemoryPlan,
    second: Option<(Second, MemoryPlan)>,
}

/// Snapshots of a draft model for every sequence: where its last prompts ended.
const SNAPSHOTS: usize = 2;

/// Shares of memory are told apart in MiB.
const SHARE_SHIFT: u32 = 20;

/// Something that drafts on a device of its own.
enum Second {
    Model(Box<Model>, ModelFlags),
    Head(Program, kvas_backend::Act),
}

impl DraftFlags {
    /// Refuses who cannot draft, before a model is opened: a model that nobody asks, and anybody where sequences give up
    /// tokens by this policy.
    pub(crate) fn check(&self, policy: PolicyKind) -> anyhow::Result<()> {
        let value = self.spec.to_possible_value();
        let name = value.as_ref().map_or("", |value| value.get_name());
        match (self.spec, &self.model_draft, policy) {
            (Spec::Off | Spec::Ngram | Spec::Mtp, Some(file), _) => {
                bail!("--model-draft {} with --spec {name}, expected --spec auto or draft", file.display())
            }
            (Spec::Off, None, _) | (Spec::Auto, None, _) | (_, _, PolicyKind::Full) => Ok(()),
            (Spec::Auto, Some(_), PolicyKind::Slake | PolicyKind::EdgeInfinite) => {
                bail!(
                    "--model-draft with --kv-policy {}, expected one of them: nothing is drafted with it",
                    policy.name()
                )
            }
            (Spec::Ngram | Spec::Mtp | Spec::Draft, _, PolicyKind::Slake | PolicyKind::EdgeInfinite) => {
                bail!(
                    "--spec {name} with --kv-policy {}, expected auto or off: nothing is drafted with it",
                    policy.name()
                )
            }
        }
    }

    /// The same where all sequences go by this policy: nobody drafts for those that give up tokens.
    pub(crate) fn under(&self, policy: PolicyKind) -> Self {
        match policy {
            PolicyKind::Full => self.clone(),
            PolicyKind::Slake | PolicyKind::EdgeInfinite => Self { spec: Spec::Off, model_draft: None, ..self.clone() },
        }
    }

    /// Most tokens drafted at once.
    pub(crate) fn most(&self) -> usize {
        usize::from(self.spec_max)
    }

    /// Rows of the largest step of one answer.
    pub(crate) fn rows(&self) -> usize {
        self.most() + 1
    }

    /// Plans the memory of a model and of who drafts for it.
    pub(crate) fn plan(&self, flags: &ModelFlags, model: &Model, wanted: MemoryRequest) -> anyhow::Result<Planned> {
        let second = self.second(flags, model)?;
        let request = device::memory_request(flags, model, wanted)?;
        let available_bytes = request.available_bytes;
        let Some(second) = second else {
            let own = plan(&model.program, model.spec.context_length, &request);
            return Ok(Planned { request, available_bytes, own, second: None });
        };
        let Shared { request, own, beside } = second.share((flags, model), &request, wanted)?;
        Ok(Planned { request, available_bytes, own, second: Some((second, beside)) })
    }

    /// Prepares the devices of a model and of who drafts for it.
    pub(crate) fn prepare(&self, flags: &ModelFlags, model: &Model, wanted: MemoryRequest) -> anyhow::Result<Prepared> {
        let Planned { mut own, second, available_bytes, .. } = self.plan(flags, model, wanted)?;
        self.check_replay(&model.program, &own)?;
        let beside_bytes = second.as_ref().map_or(0, |(_, planned)| planned.needed_bytes());
        // What drafts take was taken off what is available, which is not what there is.
        let with_drafts = |large: TooLarge| TooLarge {
            needed: large.needed + beside_bytes,
            drafts: beside_bytes,
            available: available_bytes,
            ..large
        };
        own.available_bytes = available_bytes.saturating_sub(beside_bytes);
        own.check().map_err(|large| device::too_large(flags, &with_drafts(large)))?;
        let (runner, plan) = device::prepare_planned(flags, model, own)?;
        let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
        if matches!(self.spec, Spec::Auto | Spec::Ngram) {
            drafters.push(Box::new(Lookup::default()));
        }
        if let Some((second, planned)) = second {
            drafters.push(second.prepare(flags, model, &planned)?);
        }
        Ok(Prepared { runner, plan, drafters, beside_bytes })
    }

    /// Who drafts on a device of its own, if anybody does.
    fn second(&self, flags: &ModelFlags, model: &Model) -> anyhow::Result<Option<Second>> {
        let head = || PredictionHead::program(model).map(|(program, joined)| Second::Head(program, joined));
        match (self.spec, &self.model_draft) {
            (Spec::Off | Spec::Ngram, _) => Ok(None),
            (Spec::Draft, None) => bail!("--spec draft, expected --model-draft FILE as well"),
            (Spec::Auto | Spec::Draft, Some(file)) => {
                let flags = ModelFlags { model: Some(file.clone()), run: flags.run.clone() };
                let draft = device::open(&flags).with_context(|| format!("--model-draft {}", file.display()))?;
                same_vocabulary(&draft, model).with_context(|| format!("--model-draft {}", file.display()))?;
                Ok(Some(Second::Model(Box::new(draft), flags)))
            }
            (Spec::Mtp, _) => {
                let missing = || format!("--spec mtp: {} has no prediction head", flags.name());
                head().with_context(missing).map(Some)
            }
            // Most sequences are not drafted for then.
            (Spec::Auto, None) if evicts(&model.program) => Ok(None),
            (Spec::Auto, None) => Ok(head()),
        }
    }

    /// Drafts that are wrong have to be taken back from a ring.
    fn check_replay(&self, program: &Program, plan: &MemoryPlan) -> anyhow::Result<()> {
        let has_slots = program.stores.iter().any(|store| !matches!(store, StoreDecl::Pages(_)));
        match self.spec {
            Spec::Ngram | Spec::Mtp | Spec::Draft if has_slots && plan.limits.replay.window < 2 => bail!(
                "--spec with a replay ring of {} tokens, expected --replay N of at least 2: drafts are taken back from it",
                plan.limits.replay.history
            ),
            Spec::Auto | Spec::Off | Spec::Ngram | Spec::Mtp | Spec::Draft => Ok(()),
        }
    }
}

impl Planned {
    /// Bytes that a model and who drafts for it take, if the model asks for this.
    pub(crate) fn needed_bytes(
        &self,
        (flags, model): (&ModelFlags, &Model),
        request: &PlanRequest,
        wanted: MemoryRequest,
    ) -> anyhow::Result<u64> {
        Ok(match &self.second {
            Some((second, _)) => second.share((flags, model), request, wanted)?.needed_bytes(),
            None => plan(&model.program, model.spec.context_length, request).needed_bytes(),
        })
    }

    /// Bytes that drafting takes beside a model that is planned like this.
    pub(crate) fn beside_bytes(
        &self,
        (flags, model): (&ModelFlags, &Model),
        own: &MemoryPlan,
        wanted: MemoryRequest,
    ) -> anyhow::Result<u64> {
        let second = self.second.as_ref().map(|(second, _)| second.plan(flags, model, own, wanted)).transpose()?;
        Ok(second.map_or(0, |planned| planned.needed_bytes()))
    }
}

/// Whether a program is one whose sequences may give up tokens.
fn evicts(program: &Program) -> bool {
    program.segments().is_some() || program.bounded_stores().next().is_some()
}

/// Fails if a token is another text in the other model.
pub(super) fn same_vocabulary(draft: &Model, model: &Model) -> anyhow::Result<()> {
    if draft.spec.vocab != model.spec.vocab {
        bail!("a vocabulary of {} tokens, expected the {} of the model", draft.spec.vocab, model.spec.vocab);
    }
    for token in 0..model.spec.vocab as u32 {
        let (own, expected) = (draft.tokenizer.token_text(token).ok(), model.tokenizer.token_text(token).ok());
        if own != expected {
            bail!("token {token} is {own:?}, expected {expected:?} as in the model");
        }
    }
    Ok(())
}

/// How a model and who drafts for it share the memory there is.
struct Shared {
    request: PlanRequest,
    own: MemoryPlan,
    beside: MemoryPlan,
}

impl Shared {
    fn needed_bytes(&self) -> u64 {
        self.own.needed_bytes().saturating_add(self.beside.needed_bytes())
    }
}

impl Second {
    /// Leaves as little to who drafts as it needs beside a model that has the rest: the more the model holds, the more does
    /// it. Where no share is enough, the largest.
    fn share(
        &self,
        (flags, model): (&ModelFlags, &Model),
        request: &PlanRequest,
        wanted: MemoryRequest,
    ) -> anyhow::Result<Shared> {
        let leaving = |bytes: u64| -> anyhow::Result<Shared> {
            let available_bytes = request.available_bytes.saturating_sub(bytes);
            let request = PlanRequest { available_bytes, ..*request };
            let own = plan(&model.program, model.spec.context_length, &request);
            let beside = self.plan(flags, model, &own, wanted)?;
            Ok(Shared { request, own, beside })
        };
        let fits = |shared: &Shared| shared.needed_bytes() <= request.available_bytes;
        let all = leaving(0)?;
        if fits(&all) {
            return Ok(all);
        }
        let (mut low, mut high) = (0, (all.beside.needed_bytes() >> SHARE_SHIFT) + 1);
        let mut best = leaving(high << SHARE_SHIFT)?;
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            let tried = leaving(middle << SHARE_SHIFT)?;
            if fits(&tried) {
                (high, best) = (middle, tried);
            } else {
                low = middle;
            }
        }
        Ok(best)
    }

    /// What it takes beside a model that is planned like this.
    fn plan(
        &self,
        flags: &ModelFlags,
        model: &Model,
        own: &MemoryPlan,
        wanted: MemoryRequest,
    ) -> anyhow::Result<MemoryPlan> {
        let place = Place::of(&flags.run.compute)?;
        // Longer ones hold fewer tokens than they have, and are not drafted for.
        let context = Some(own.context.min(own.pool_tokens));
        let beside = |request: PlanRequest| PlanRequest { context, history: None, kv_only: Some(0), ..request };
        Ok(match self {
            Second::Model(draft, flags) => {
                let snapshots = SnapshotBudget::Exactly(SNAPSHOTS * wanted.sequences);
                let wanted = MemoryRequest { snapshots, outputs: wanted.sequences, ..wanted };
                let request = beside(place.request(flags, (draft, &draft.program), wanted)?);
                plan(&draft.program, draft.spec.context_length, &request)
            }
            Second::Head(program, _) => {
                let (snapshots, outputs) = (SnapshotBudget::Exactly(0), wanted.sequences);
                let wanted = MemoryRequest { snapshots, outputs, ..wanted };
                let request = beside(place.request(flags, (model, program), wanted)?);
                // What both read in the file is there once.
                let both = place.weights_bytes(model, &[&model.program, program]);
                let weights_bytes = both - place.weights_bytes(model, &[&model.program]);
                let request = PlanRequest { weights_bytes, ..request };
                plan(program, model.spec.context_length, &request)
            }
        })
    }

    /// Prepares its device.
    fn prepare(self, flags: &ModelFlags, model: &Model, planned: &MemoryPlan) -> anyhow::Result<Box<dyn Drafter>> {
        let backend = Place::of(&flags.run.compute)?.backend();
        Ok(match self {
            Second::Model(draft, _) => {
                Box::new(DraftModel::new(draft.prepare(backend, planned.limits, &mut |_, _| {})?))
            }
            Second::Head(program, joined) => {
                Box::new(PredictionHead::new(model, (program, joined), backend, planned.limits)?)
            }
        })
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds: Vec<DrafterKind> = self.drafters.iter().map(|drafter| drafter.kind()).collect();
        f.debug_struct("Prepared").field("drafters", &kinds).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        model: ModelFlags,
        #[command(flatten)]
        drafts: DraftFlags,
    }

    /// A context that fits beside who drafts for it is found, whatever both would take of it if there were more memory.
    #[test]
    fn who_drafts_takes_no_more_than_the_context_needs() {
        let Flags { model: flags, drafts } = Flags::parse_from(["kvas", "--device", "cpu"]);
        let model = device::open(&flags).unwrap();
        let second = drafts.second(&flags, &model).unwrap().expect("the bundled model has a head that drafts");
        let wanted = super::super::serve::wanted(8, &drafts);
        let asked = device::memory_request(&flags, &model, wanted).unwrap();
        let share = |context, available_bytes| {
            let request = PlanRequest { context, available_bytes, ..asked };
            second.share((&flags, &model), &request, wanted).unwrap()
        };
        let all = share(None, u64::MAX);
        assert_eq!(all.own.context, model.spec.context_length);
        let mut contexts = Vec::new();
        // From what 256 tokens need to what all do; the plan counts drafts and pages, and takes nearly all there is.
        let least = share(Some(256), 0).needed_bytes();
        for bytes in (least..=all.needed_bytes()).step_by(((all.needed_bytes() - least) / 16) as usize) {
            let shared = share(None, bytes);
            assert!(shared.needed_bytes() <= bytes, "{} of {bytes} with {}", shared.needed_bytes(), shared.own.context);
            let own = shared.own.context;
            assert!(
                share(Some(own + own / 4), bytes).needed_bytes() > bytes || own == model.spec.context_length,
                "{own}"
            );
            contexts.push(own);
        }
        assert!(contexts.is_sorted() && contexts.iter().any(|own| (300..8000).contains(own)), "{contexts:?}");
    }
}
