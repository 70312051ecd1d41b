//! `kvas bench-op lin_verify`: drafts through layers of linear attention, of which only the first few turn out right.

use super::{
    harness::{Harness, Sequence, Subject, measure},
    linear::{LayerFlags, Layers, Steps},
    report::{Bound, Cycle, Line, Report, Timing},
    vectors::check_recurrence,
};
use anyhow::ensure;
use clap::Args;
use kvas_backend::{Op, Replay, Slot, StateType};
use std::time::Instant;

/// Drafts through layers of linear attention, of which only the first few are kept: one by one with a snapshot of the
/// state after each, one by one without, and at once with the ring folded every step or only when it is full. `layer by
/// layer` has the rows of a layer one after the other, so that its state stays in the cache: nobody could take such rows
/// back, but it tells what the arithmetic costs
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench-op lin_verify\n  kvas bench-op lin_verify --kind gdn,mamba2,kda --T 4 --accept 1,2,3,4 --gate"
)]
pub(super) struct LinVerify {
    #[command(flatten)]
    layers: LayerFlags,
    /// Rows verified at once: the token sampled last and the drafts after it
    #[arg(long = "T", value_name = "N,…", value_delimiter = ',', default_value = "2,4,8", value_parser = clap::value_parser!(u16).range(1..=64))]
    windows: Vec<u16>,
    /// Rows kept of every window; numbers beyond a window are left out, and a whole window is always measured
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..=64))]
    accept: Vec<u16>,
    /// Rows of the replay ring, at least two windows [default: a window and 16]
    #[arg(long = "L", value_name = "N", value_parser = clap::value_parser!(u16).range(2..=4096))]
    capacity: Option<u16>,
    #[command(flatten)]
    timing: Timing,
}

/// Element type of the states.
const STATE: StateType = StateType::F32;

/// A window row by row into a state that is written every row.
struct Serial {
    harness: Harness,
    sequences: Vec<Sequence>,
    window: usize,
    order: Order,
}

/// What comes first of the rows of a window and the layers.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// A row goes through all layers before the next is known, as without drafts.
    Rows,
    /// The state of a layer is still in the cache for the next row: the rows after the first cost the least they can. Of
    /// use to nobody, since none of the rows could be taken back; it tells what the arithmetic alone costs.
    Layers,
}

impl Subject for Serial {
    fn cycle(&mut self) -> anyhow::Result<Cycle> {
        let Self { harness, sequences, window, order } = self;
        let (program, started) = (harness.program.clone(), Instant::now());
        let parts: Vec<&[Op]> = match order {
            Order::Rows => vec![&program.ops],
            Order::Layers => program.ops.chunks(1).collect(),
        };
        for ops in parts {
            for _ in 0..*window {
                harness.fill_step(sequences, 1);
                harness.backend.begin(&harness.step)?;
                ops.iter().try_for_each(|op| harness.backend.execute(op))?;
                harness.commit(sequences, 1)?;
            }
        }
        // Devices that work on their own are waited for.
        harness.backend.read(program.logits, 0, &mut [])?;
        Ok(Cycle { seconds: started.elapsed().as_secs_f64(), works: 1 })
    }
}

/// As [`Serial`], with a copy of the state after every row but the last, so that any number of rows can be kept.
struct Snapshots {
    harness: Harness,
    sequences: Vec<Sequence>,
    /// By row but the last, then by sequence.
    copies: Vec<Vec<Slot>>,
    accepted: usize,
}

impl Snapshots {
    fn new(timing: &Timing, layers: &Layers, batch: usize, window: usize) -> anyhow::Result<Self> {
        let harness = layers.harness(&timing.compute, (Replay::OFF, STATE), batch, batch * window)?;
        let slot = |row: usize, sequence: usize| Slot((1 + (1 + row) * batch + sequence) as u32);
        let copies = (0..window - 1).map(|row| (0..batch).map(|sequence| slot(row, sequence)).collect()).collect();
        Ok(Self { harness, sequences: Sequence::first(batch), copies, accepted: 1 })
    }
}

impl Subject for Snapshots {
    fn cycle(&mut self) -> anyhow::Result<Cycle> {
        let Self { harness, sequences, copies, accepted } = self;
        let mut seconds = 0.0;
        for row in 0..=copies.len() {
            harness.fill_step(sequences, 1);
            seconds += harness.run()?;
            seconds += harness.commit(sequences, 1)?;
            let started = Instant::now();
            if let Some(to) = copies.get(row) {
                let pairs: Vec<(Slot, Slot)> =
                    sequences.iter().zip(to).map(|(sequence, to)| (sequence.slot, *to)).collect();
                harness.backend.copy_slots(&pairs)?;
            }
            seconds += started.elapsed().as_secs_f64();
        }
        // Going back is free: the sequence goes on in the slot of the copy.
        if let Some(kept) = copies.get_mut(*accepted - 1) {
            for (sequence, slot) in sequences.iter_mut().zip(kept) {
                std::mem::swap(&mut sequence.slot, slot);
            }
        }
        *accepted = *accepted % (copies.len() + 1) + 1;
        Ok(Cycle { seconds, works: 1 })
    }
}

/// One way to verify, for a line.
struct Method {
    name: String,
    bytes: f64,
    gate: bool,
}

impl LinVerify {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        for window in &self.windows {
            let capacity = self.capacity(usize::from(*window));
            ensure!(capacity >= 2 * usize::from(*window), "--L {capacity}, expected at least two windows of {window}");
        }
        let mut report = Report::with_bandwidth(&self.timing, "lin_verify", "a snapshot after every row")?;
        for layers in self.layers.all(&self.timing.compute)? {
            for batch in &self.layers.batch {
                for window in &self.windows {
                    self.compare(&mut report, &layers, usize::from(*batch), usize::from(*window))?;
                }
            }
        }
        Ok(report.code())
    }

    fn capacity(&self, window: usize) -> usize {
        self.capacity.map_or(16.max(window) + window, usize::from)
    }

    fn compare(&self, report: &mut Report, layers: &Layers, batch: usize, window: usize) -> anyhow::Result<()> {
        let (methods, mut subjects): (Vec<Method>, Vec<_>) = self.methods(layers, batch, window)?.into_iter().unzip();
        let times = measure(&mut subjects, self.timing.repetitions)?;
        let predicted = methods[0].bytes;
        let (mut least, mut least_serial) = (f64::INFINITY, f64::INFINITY);
        for (method, of_method) in methods.iter().zip(&times) {
            let bytes = method.bytes * layers.states(batch);
            let faster = |than: usize| of_method.times_faster_than(&times[than]);
            let (test, measured) = (format!("{} {}", layers.name(batch), method.name), faster(0));
            report.line(&Line {
                test: &test,
                bytes,
                times: of_method,
                predicted: predicted / method.bytes,
                measured,
            })?;
            if method.gate {
                least = least.min(measured);
                least_serial = least_serial.min(faster(1));
            }
        }
        if window == 4 {
            let test = format!("{} T=4 replay", layers.name(batch));
            report.gate(&format!("{test} against snapshots"), least, Bound::AtLeast(5.0))?;
            report.gate(&format!("{test} against row by row"), least_serial, Bound::AtLeast(1.6))?;
        }
        Ok(())
    }

    /// All ways to verify a window, the baseline first, then row by row.
    fn methods(&self, layers: &Layers, batch: usize, window: usize) -> anyhow::Result<Vec<(Method, Box<dyn Subject>)>> {
        let (traffic, rows, compute) = (layers.traffic(STATE), window as f64, &self.timing.compute);
        check_recurrence(compute, layers.kind, (Replay::OFF, STATE), 1)?;
        let harness = layers.harness(compute, (Replay::OFF, STATE), batch, batch)?;
        let snapshots = Snapshots::new(&self.timing, layers, batch, window)?;
        let serial = Serial { harness, sequences: Sequence::first(batch), window, order: Order::Rows };
        let harness = layers.harness(compute, (Replay::OFF, STATE), batch, batch)?;
        let by_layer = Serial { harness, sequences: Sequence::first(batch), window, order: Order::Layers };
        let method = |name: &str, bytes, gate| Method { name: format!("T={window} {name}"), bytes, gate };
        let mut methods: Vec<(Method, Box<dyn Subject>)> = vec![
            (method("snapshots", traffic.verify_with_snapshots(rows), false), Box::new(snapshots)),
            (method("row by row", traffic.verify_serially(rows), false), Box::new(serial)),
            (method("layer by layer", traffic.verify_serially(1.0), false), Box::new(by_layer)),
        ];
        let mut accepts: Vec<usize> = self.accept.iter().map(|accept| usize::from(*accept)).collect();
        accepts.retain(|accepted| *accepted < window);
        accepts.push(window);
        let history = self.capacity(window) - window;
        for accepted in accepts {
            let bytes = traffic.verify_and_flush(rows);
            let every_step = (Replay::new(window, window), "flush each step", bytes);
            let replay = (
                Replay::new(history, window),
                "replay",
                traffic.verify_by_replay(rows, accepted as f64, history as f64),
            );
            for (replay, name, bytes) in [every_step, replay] {
                check_recurrence(compute, layers.kind, (replay, STATE), window)?;
                let steps = Steps::new(compute, layers, batch, (replay, STATE), (window, accepted))?;
                methods.push((method(&format!("{name} a={accepted}"), bytes, name == "replay"), Box::new(steps)));
            }
        }
        Ok(methods)
    }
}
