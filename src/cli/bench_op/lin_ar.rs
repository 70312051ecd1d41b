//! `kvas bench-op lin_ar`: one token of every sequence through layers of linear attention, the state written every
//! step or replayed.

use super::{
    concurrency::request,
    harness::{Subject, measure},
    linear::{LayerFlags, Layers, Steps},
    report::{Bound, Line, Report, Timing},
    vectors::check_recurrence,
};
use crate::cli::flags::StoredState;
use clap::Args;
use kvas::{
    memory::plan::{PlanRequest, plan},
    model::replay_traffic::Flush,
};
use kvas_backend::{Replay, StateType};

/// A token of every sequence through layers of linear attention: the state written every step against replay rings of
/// several lengths, averaged from flush to flush
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench-op lin_ar\n  kvas bench-op lin_ar --kind gdn,mamba2,kda --batch 1,8 --m 8,16 --json"
)]
pub(super) struct LinAr {
    #[command(flatten)]
    layers: LayerFlags,
    /// Tokens kept as inputs before they are folded into the state; 0 writes the state every step and is always
    /// measured
    #[arg(long = "m", value_name = "N,…", value_delimiter = ',', default_value = "4,16", value_parser = clap::value_parser!(u16).range(0..=4096))]
    histories: Vec<u16>,
    /// Element types of the state; f32 written every step is what ratios are to
    #[arg(long = "state", value_name = "TYPE,…", value_enum, value_delimiter = ',', default_value = "f32,f16")]
    states: Vec<StoredState>,
    #[command(flatten)]
    timing: Timing,
}

/// What noise may take from a mode that is no slower.
const NOISE: f64 = 0.95;

impl LinAr {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let mut report = Report::with_bandwidth(&self.timing, "lin_ar", "an f32 state written every step")?;
        for layers in self.layers.all(&self.timing.compute)? {
            for batch in &self.layers.batch {
                self.compare(&mut report, &layers, usize::from(*batch))?;
            }
        }
        Ok(report.code())
    }

    fn compare(&self, report: &mut Report, layers: &Layers, batch: usize) -> anyhow::Result<()> {
        let automatic = |state: StateType| {
            let ring_type = layers.ring_type;
            let request = PlanRequest { state_type: state, ring_type, ..request(0, 1, None, 1) };
            plan(&layers.program, 0, &request).limits.replay.history
        };
        let mut variants = vec![(StateType::F32, 0)];
        for state in self.states.iter().map(|state| state.state_type()) {
            let histories = self.histories.iter().map(|history| usize::from(*history));
            variants.extend(histories.chain([0, automatic(state)]).map(|history| (state, history)));
        }
        variants.sort_by_key(|(state, history)| (4 - state.bytes(), *history));
        variants.dedup();
        let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
        for &(state, history) in &variants {
            let memory = (Replay::new(history, 1), state);
            check_recurrence(&self.timing.compute, layers.kind, memory, 1)?;
            subjects.push(Box::new(Steps::new(&self.timing.compute, layers, batch, memory, (1, 1))?));
        }
        let times = measure(&mut subjects, self.timing.repetitions)?;
        let (written, states) = (layers.traffic(StateType::F32).recurrent(), layers.states(batch));
        let at = |variant: (StateType, usize)| variants.iter().position(|other| *other == variant);
        for (&(state, history), of_variant) in variants.iter().zip(&times) {
            let traffic = layers.traffic(state);
            let moved = match history {
                0 => traffic.recurrent(),
                history => traffic.replay(history as f64, Flush::Fused),
            };
            let is_automatic = history == automatic(state);
            let mark = if is_automatic && history > 0 { " auto" } else { "" };
            let test = format!("{} {} m={history}{mark}", layers.name(batch), state.name());
            let (predicted, measured) = (written / moved, of_variant.times_faster_than(&times[0]));
            report.line(&Line { test: &test, bytes: moved * states, times: of_variant, predicted, measured })?;
            if let (true, Some(recurrent)) = (is_automatic, at((state, 0))) {
                let measured = of_variant.times_faster_than(&times[recurrent]);
                report.gate(&format!("{test} is no slower than m=0"), measured, Bound::AtLeast(NOISE))?;
            }
            if let (true, StateType::F16, Some(f32)) =
                (is_automatic, state, at((StateType::F32, automatic(StateType::F32))))
            {
                report.gate(
                    &format!("{test} against f32"),
                    of_variant.times_faster_than(&times[f32]),
                    Bound::AtLeast(1.5),
                )?;
            }
        }
        Ok(())
    }
}
