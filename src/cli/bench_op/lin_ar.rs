//! `kvas bench-op lin_ar`: one token of every sequence through layers of linear attention, the state written every
//! step or replayed.

use super::{
    bed::{Subject, measure},
    concurrency::request,
    linear::{LayerFlags, Layers, Steps},
    report::{Bound, Line, Report, Timing},
    vectors::check_recurrence,
};
use clap::Args;
use kvas::{memory::plan::plan, model::replay_traffic::Flush};
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
    #[arg(long = "m", value_name = "N,…", value_delimiter = ',', default_value = "4,8,16,32", value_parser = clap::value_parser!(u16).range(0..=4096))]
    histories: Vec<u16>,
    #[command(flatten)]
    timing: Timing,
}

/// What noise may take from a mode that is no slower.
const NOISE: f64 = 0.95;

impl LinAr {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let mut report = Report::with_bandwidth(&self.timing, "lin_ar", "the state written every step");
        for layers in self.layers.all() {
            for batch in &self.layers.batch {
                self.compare(&mut report, &layers, usize::from(*batch))?;
            }
        }
        Ok(report.code())
    }

    fn compare(&self, report: &mut Report, layers: &Layers, batch: usize) -> anyhow::Result<()> {
        let state = StateType::F32;
        let automatic = plan(&layers.program, 0, &request(0, 1, None, 1)).limits.replay.history;
        let mut histories: Vec<usize> = self.histories.iter().map(|history| usize::from(*history)).collect();
        histories.extend([0, automatic]);
        histories.sort_unstable();
        histories.dedup();
        let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
        for &history in &histories {
            let memory = (Replay::new(history, 1), state);
            check_recurrence(&self.timing.compute, layers.kind, memory, 1)?;
            subjects.push(Box::new(Steps::new(&self.timing.compute, layers, batch, memory, (1, 1))?));
        }
        let times = measure(&mut subjects, self.timing.repetitions)?;
        let (traffic, states) = (layers.traffic(state), layers.states(batch));
        for (history, of_history) in histories.iter().zip(&times) {
            let moved = match history {
                0 => traffic.recurrent(),
                history => traffic.replay(*history as f64, Flush::Fused),
            };
            let mark = if *history == automatic { " auto" } else { "" };
            let measured = of_history.times_faster_than(&times[0]);
            let test = format!("{} m={history}{mark}", layers.name(batch));
            let predicted = traffic.recurrent() / moved;
            report.line(&Line { test: &test, bytes: moved * states, times: of_history, predicted, measured });
            if *history == automatic {
                report.gate(&format!("{test} is no slower"), measured, Bound::AtLeast(NOISE));
            }
        }
        Ok(())
    }
}
