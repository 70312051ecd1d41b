//! Flags that say how many tokens of a sequence attention holds.

mod segments;

use super::flags::ModelFlags;
use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum};
use kvas::{
    model::{Model, spec::Exponents},
    policy::{Bound, BoundedLayers, EvictionPolicy, EvictionScore, PolicyKind, bounded},
    repl::{KnownPolicy, PolicyRequest},
};
use kvas_backend::store::MomentType;
use segments::SegmentFlags;
use std::sync::Arc;

/// How many tokens of a sequence attention holds, and which.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Keys and values")]
pub(crate) struct PolicyFlags {
    /// What becomes of keys and values (the KV cache) that are hardly read
    #[arg(long, value_enum, default_value_t = KvPolicy::Full)]
    kv_policy: KvPolicy,
    /// Tokens whose keys and values a layer holds per sequence with --kv-policy slake, on average over the layers; the
    /// summary of the evicted ones counts as the tokens it takes the room of [default: 1024]
    #[arg(long, value_name = "N")]
    kv_budget: Option<u32>,
    /// How many of the last queries decide what is evicted; as many last tokens are never evicted [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=128))]
    slake_window: Option<u16>,
    /// First tokens (attention sinks) that are never evicted [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    slake_sinks: Option<u16>,
    /// How it is decided which tokens are evicted and how many each layer holds [default: cake]
    #[arg(long, value_enum)]
    slake_score: Option<SlakeScore>,
    /// How the summary of evicted tokens is stored; off: evicted tokens leave nothing behind [default: f32]
    #[arg(long, value_enum)]
    slake_moments: Option<Moments>,
    /// Exponent of how far weights and values would move, for --slake-score vabs [default: by the name in the file, 0.4 and
    /// from a budget of 256 on 0.6 if it is not known; Llama 2 0.5; Mistral 0.6 and 0.4]
    #[arg(long, value_name = "X")]
    slake_alpha: Option<f32>,
    /// Exponent of the entropy, for --slake-score vabs [default: likewise, 0.2 and 0.5; Llama 2 0.4; Mistral 0.5 and 0.2]
    #[arg(long, value_name = "X")]
    slake_beta: Option<f32>,
    /// Weight of the variance over the queries in the score of a token [default: 200]
    #[arg(long, value_name = "X")]
    slake_gamma: Option<f32>,
    /// How much more than its mean key says the summary of evicted tokens may count, at most, in nats [default: 0]
    #[arg(long, value_name = "X")]
    mass_cap: Option<f32>,
    #[command(flatten)]
    segments: SegmentFlags,
}

/// What becomes of keys and values that are hardly read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum KvPolicy {
    /// All of them are held
    #[default]
    Full,
    /// The least read are evicted, head by head, and a summary of them is kept
    Slake,
    /// All but the first and last tokens are absorbed, segment by segment, into a memory that the model has gates for
    Edgeinfinite,
}

/// What tokens and layers are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SlakeScore {
    /// Tokens by what the last queries read, layers by its entropy and variance
    Cake,
    /// Tokens as cake, layers by how far their weights and values would move
    Vabs,
    /// The first and the last tokens stay
    Window,
}

/// How the summary of evicted tokens is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Moments {
    /// 4 bytes
    F32,
    /// The large ones in 2 bytes
    F16,
    /// Not at all
    Off,
}

/// The flags of a list that were given.
fn given(all: &[(&'static str, bool)]) -> Vec<&'static str> {
    all.iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| *flag).collect()
}

impl KvPolicy {
    const fn kind(self) -> PolicyKind {
        match self {
            KvPolicy::Full => PolicyKind::Full,
            KvPolicy::Slake => PolicyKind::Slake,
            KvPolicy::Edgeinfinite => PolicyKind::EdgeInfinite,
        }
    }

    const fn of(kind: PolicyKind) -> Self {
        match kind {
            PolicyKind::Full => KvPolicy::Full,
            PolicyKind::Slake => KvPolicy::Slake,
            PolicyKind::EdgeInfinite => KvPolicy::Edgeinfinite,
        }
    }
}

impl PolicyFlags {
    /// All policies, and whether this model can go by them here, with these flags where they are of one. The model is one that
    /// holds all tokens.
    pub(crate) fn known(&self, model: &mut Model, flags: &ModelFlags) -> Vec<KnownPolicy> {
        let mut all = Vec::new();
        for policy in KvPolicy::value_variants() {
            let plain = model.program.clone();
            let asked = PolicyRequest { kind: policy.kind(), budget: None };
            let is_possible = self.switched(asked).apply(model, flags).is_ok();
            model.program = plain;
            all.extend(policy.to_possible_value().map(|value| {
                let what = value.get_help().map(ToString::to_string).unwrap_or_default();
                KnownPolicy { kind: policy.kind(), what, is_possible }
            }));
        }
        all
    }

    /// What they ask for.
    pub(crate) fn kind(&self) -> PolicyKind {
        self.kv_policy.kind()
    }

    /// The flags for another policy or budget; what else these say holds for the policy that they were given with.
    pub(crate) fn switched(&self, asked: PolicyRequest) -> Self {
        let given = if asked.kind == self.kind() { self.clone() } else { Self::default() };
        Self { kv_policy: KvPolicy::of(asked.kind), kv_budget: asked.budget.or(given.kv_budget), ..given }
    }

    /// What the flags ask for, `None` if all tokens are held. The model then runs a program whose layers can give up
    /// tokens. Fails in one line.
    pub(crate) fn apply(&self, model: &mut Model, flags: &ModelFlags) -> anyhow::Result<Option<EvictionPolicy>> {
        let kind = self.kind();
        for (given, of) in [(self.given(), PolicyKind::Slake), (self.segments.given(), PolicyKind::EdgeInfinite)] {
            if let Some(flag) = given.first().filter(|_| of != kind) {
                bail!("{flag} without --kv-policy {}, expected both", of.name());
            }
        }
        match kind {
            PolicyKind::Full => Ok(None),
            PolicyKind::Slake => Ok(Some(self.apply_bound(model, flags)?.into())),
            PolicyKind::EdgeInfinite => Ok(Some(EvictionPolicy::Segments(self.segments.apply(model, &flags.name())?))),
        }
    }

    fn apply_bound(&self, model: &mut Model, flags: &ModelFlags) -> anyhow::Result<Bound> {
        self.check()?;
        let (bound, moments) = self.bound(model.spec.exponents)?;
        let kv_type = flags.run.kv_type(model)?;
        let page_size = flags.run.page_size(kv_type, false)?;
        let program = bounded(&model.program, &bound, moments, page_size);
        let Some(layout) = BoundedLayers::of(&program, page_size, kv_type) else {
            let file = flags.name();
            bail!(
                "{file}: --kv-policy slake, expected a model with layers of attention that keep keys and values apart"
            );
        };
        bound.check(&layout, ["--kv-budget", "--slake-window"]).map_err(|what| anyhow!(what))?;
        model.program = Arc::new(program);
        Ok(bound)
    }

    /// Flags that mean something with a budget only.
    fn given(&self) -> Vec<&'static str> {
        given(&[
            ("--kv-budget", self.kv_budget.is_some()),
            ("--slake-window", self.slake_window.is_some()),
            ("--slake-sinks", self.slake_sinks.is_some()),
            ("--slake-score", self.slake_score.is_some()),
            ("--slake-moments", self.slake_moments.is_some()),
            ("--slake-alpha", self.slake_alpha.is_some()),
            ("--slake-beta", self.slake_beta.is_some()),
            ("--slake-gamma", self.slake_gamma.is_some()),
            ("--mass-cap", self.mass_cap.is_some()),
        ])
    }

    /// Refuses flags that others leave nothing to say.
    fn check(&self) -> anyhow::Result<()> {
        let exponents = [("--slake-alpha", self.slake_alpha), ("--slake-beta", self.slake_beta)];
        if let Some((flag, _)) = exponents.iter().find(|(_, value)| value.is_some())
            && self.slake_score != Some(SlakeScore::Vabs)
        {
            bail!("{flag} without --slake-score vabs, expected both");
        }
        if self.slake_gamma.is_some() && self.slake_score == Some(SlakeScore::Window) {
            bail!("--slake-gamma with --slake-score window, expected cake or vabs: nobody is asked");
        }
        if self.mass_cap.is_some() && self.slake_moments == Some(Moments::Off) {
            bail!(
                "--mass-cap with --slake-moments off, expected f32 or f16: there is nothing that could count for more"
            );
        }
        Ok(())
    }

    fn bound(&self, exponents: Exponents) -> anyhow::Result<(Bound, MomentType)> {
        let within = |flag: &str, value: Option<f32>, most: f32, usual: f32| match value {
            None => Ok(usual),
            Some(value) if (0.0..=most).contains(&value) => Ok(value),
            Some(value) => Err(anyhow!("{flag} {value}, expected 0 to {most}")),
        };
        let usual = Bound::new(self.kv_budget.map_or(1024, |budget| budget as usize));
        let [alpha, beta] = exponents.of(usual.budget);
        let moments = match self.slake_moments {
            None | Some(Moments::F32) => MomentType::F32,
            Some(Moments::F16) => MomentType::F16,
            Some(Moments::Off) => MomentType::Off,
        };
        let score = match self.slake_score {
            None | Some(SlakeScore::Cake) => EvictionScore::Cake,
            Some(SlakeScore::Vabs) => EvictionScore::Vabs,
            Some(SlakeScore::Window) => EvictionScore::Window,
        };
        let bound = Bound {
            window: self.slake_window.map_or(usual.window, usize::from),
            sinks: self.slake_sinks.map_or(usual.sinks, usize::from),
            score,
            alpha: within("--slake-alpha", self.slake_alpha, 10.0, alpha)?,
            beta: within("--slake-beta", self.slake_beta, 10.0, beta)?,
            gamma: within("--slake-gamma", self.slake_gamma, 1e6, usual.gamma)?,
            mass_cap: within("--mass-cap", self.mass_cap, 2.0, usual.mass_cap)?,
            moments: moments != MomentType::Off,
            ..usual
        };
        Ok((bound, moments))
    }
}
