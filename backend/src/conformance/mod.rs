//! One suite, any backend: every subject must agree with [`Reference`] within the bound of the case, and all subjects
//! of a case (1 and N threads, say) with each other to the bit. Outputs are poisoned before every step.

mod alike;
mod build;
mod cases;
mod eviction;
mod exchange;
mod random;
mod table;
pub mod tolerance;

pub use alike::run_row_by_row;
pub use build::Build;
pub use cases::cases;
pub use eviction::TokenEviction;
pub use random::{Random, RandomWeights, RepeatedWeights, without_stores};
pub use table::Table;

use crate::{
    Act, Backend, CHUNK, DeviceError, KvType, Limits, Op, Outputs, Page, Program, Reference, Rows, Slot, StateType,
    Step, arena_pages,
};
use exchange::{exchange, through_snapshots};
use std::{ops::Range, sync::Arc};

/// Makes a fresh backend.
pub type Make<'a> = &'a dyn Fn() -> Box<dyn Backend>;

/// What an input activation is filled with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    /// Normal, standard deviation 1.
    Normal,
    /// Normal, with every 17th column 30 times as large, as real activations have.
    Outliers,
    /// -1, 0 or 1: many are equal.
    Few,
    /// Uniform between two numbers.
    Uniform(f32, f32),
}

/// Rows of one sequence in one step: how many are new, how many of them are kept, how many are taken back later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Sequence number, from 0.
    pub sequence: usize,
    /// New rows.
    pub rows: usize,
    /// Rows accepted after the step.
    pub accepted: usize,
    /// Committed rows taken back after that, as many as can be.
    pub back: usize,
}

/// Where a sequence is.
#[derive(Debug, Clone, Copy)]
struct Sequence<'a> {
    slot: Slot,
    /// Committed rows.
    context: u32,
    /// Rows of these that its page stores hold.
    held: u32,
    /// Pages by page store.
    tables: &'a [Vec<Page>],
}

/// A program, a script of steps, and what to compare after each.
#[derive(Debug, Clone)]
pub struct Case {
    /// For people: op, format, shape.
    pub name: String,
    /// What runs.
    pub program: Arc<Program>,
    /// Its weights.
    pub weights: RandomWeights,
    /// Sizes.
    pub limits: Limits,
    /// Activations filled before each step.
    pub inputs: Vec<(Act, Values)>,
    /// Activations compared after each step.
    pub outputs: Vec<Act>,
    /// The steps.
    pub script: Vec<Vec<Move>>,
    /// What is evicted after some of them.
    pub evictions: Vec<TokenEviction>,
    /// Sequences that end after a step, `(step, sequence)`: their next row is the first one of another, in the same slot.
    pub ends: Vec<(usize, usize)>,
    /// Largest normalised mean squared error.
    pub bound: f64,
}

/// How a case ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Name of the case.
    pub name: String,
    /// Worst normalised mean squared error over steps, outputs and subjects.
    pub error: f64,
    /// What it must not exceed.
    pub bound: f64,
    /// What went wrong besides the error: bits that differ, poison, a failure of the device.
    pub fault: Option<String>,
}

impl Case {
    /// Whether the case wants a backend that can evict tokens.
    pub fn evicts(&self) -> bool {
        self.program.bounded_stores().chain(self.program.segment_stores()).next().is_some()
    }

    /// Whether its sequences cannot leave their slots: those of snapshots remember nothing of tokens that were evicted head
    /// by head.
    fn stays(&self) -> bool {
        !self.evictions.is_empty() && self.program.bounded_stores().next().is_some()
    }

    /// The same for backends that use matrix instructions of 16-bit numbers: these round the activations of products to 16
    /// bits, and over pages of f16 and of 8 bits the queries of prompts and the weights of their values, take the factors of prompts
    /// through recurrences as sums of two bf16, and keep replay rings in f16.
    pub fn with_half_activations(mut self) -> Self {
        let attends = self.program.ops.iter().any(|op| matches!(op, Op::Attention(_)));
        let reads_prompts = self.script.iter().flatten().any(|m| m.rows >= CHUNK);
        // Smaller pages of 8 bits are read as they are stored everywhere.
        let of_bytes = self.limits.kv_type.scale_bytes() > 0 && self.limits.page_size >= 4;
        let is_rounded = self.limits.kv_type == KvType::F16 || of_bytes;
        if attends && reads_prompts && is_rounded {
            self.bound = self.bound.max(tolerance::HALF_ATTENTION);
        }
        if self.program.ops.iter().any(|op| op.product(&self.program).is_some()) {
            self.bound = self.bound.max(tolerance::half_activations(self.weights.quant));
        }
        let recurs = |op: &Op| matches!(op, Op::GatedDelta(_) | Op::Mamba2(_));
        if reads_prompts && self.program.ops.iter().any(recurs) {
            self.bound = self.bound.max(tolerance::RECURRENT_IN_PARTS);
        }
        if self.limits.replay.ring_rows() > 0 && self.program.ops.iter().any(|op| matches!(op, Op::GatedDelta(_))) {
            self.bound = self.bound.max(tolerance::ROUNDED_ENTRIES);
        }
        self
    }
}

impl Outcome {
    /// True if the case holds.
    pub fn passed(&self) -> bool {
        self.fault.is_none() && self.error <= self.bound
    }
}

/// Normalised mean squared error: scale-free, so one bound serves every shape of an op.
pub fn normalised_error(expected: &[f32], found: &[f32]) -> f64 {
    let error: f64 = expected.iter().zip(found).map(|(e, f)| (f64::from(*e) - f64::from(*f)).powi(2)).sum();
    error / expected.iter().map(|e| f64::from(*e).powi(2)).sum::<f64>().max(1e-20)
}

/// Runs one case on every subject.
pub fn run(case: &Case, subjects: &[Make]) -> Outcome {
    outcome(case, subjects, Break::None)
}

/// As [`run`] for each kind of subjects, beside one reference: the bits of a kind are the same, those of two need not be. A fault in
/// one ends the case for all.
pub fn run_kinds(case: &Case, kinds: &[&[Make]]) -> Vec<Outcome> {
    outcomes(case, kinds, Break::None)
}

/// As [`run`], but halfway through the script every sequence goes on in fresh backends: in the reference with what the
/// first subject has saved, in the subjects with what the reference has.
pub fn run_exchanged(case: &Case, subjects: &[Make]) -> Outcome {
    outcome(case, subjects, if case.stays() { Break::None } else { Break::Exchange })
}

/// As [`run`], but halfway through the script every slot is copied to one of a snapshot and cleared, the snapshot is
/// saved and loaded again, and the sequence goes on in the slot of another one, copied from the snapshot. Slots that give
/// up tokens head by head stay where they are.
pub fn run_through_snapshots(case: &Case, subjects: &[Make]) -> Outcome {
    outcome(case, subjects, if case.stays() { Break::None } else { Break::Snapshots })
}

/// What happens halfway through a script.
#[derive(Debug, Clone, Copy)]
enum Break {
    None,
    Exchange,
    Snapshots,
}

fn outcome(case: &Case, subjects: &[Make], halfway: Break) -> Outcome {
    outcomes(case, &[subjects], halfway).remove(0)
}

fn outcomes(case: &Case, kinds: &[&[Make]], halfway: Break) -> Vec<Outcome> {
    let mut errors = vec![0.0; kinds.len()];
    let fault = try_run(case, kinds, halfway, &mut errors).err();
    let name = match halfway {
        Break::None => case.name.clone(),
        Break::Exchange => format!("{}, exchanged", case.name),
        Break::Snapshots => format!("{}, through snapshots", case.name),
    };
    let outcome = |error| Outcome { name: name.clone(), error, bound: case.bound, fault: fault.clone() };
    errors.into_iter().map(outcome).collect()
}

/// `worst`: the largest error of each kind so far.
fn try_run(case: &Case, kinds: &[&[Make]], halfway: Break, worst: &mut [f64]) -> Result<(), String> {
    let subjects = &kinds.concat();
    let mut backends = prepared(case, subjects).map_err(|error| error.to_string())?;
    let tables = scattered_tables(case, &backends[1].arenas());
    let mut sequences: Vec<Sequence> = tables
        .iter()
        .zip(1..)
        .map(|(tables, slot)| Sequence { slot: Slot(slot), context: 0, held: 0, tables })
        .collect();
    let mut random = Random::new(99);
    for (number, moves) in case.script.iter().enumerate() {
        if number == case.script.len() / 2 {
            match halfway {
                Break::None => {}
                Break::Exchange => {
                    let mut fresh = prepared(case, subjects).map_err(|error| error.to_string())?;
                    let exchanged = exchange(case, &mut backends, &mut fresh, &sequences);
                    exchanged.map_err(|error| error.to_string())?;
                    backends = fresh;
                }
                Break::Snapshots => through_snapshots(case, &mut backends, &mut sequences)?,
            }
        }
        let step = step(case, moves, &sequences, &mut random);
        let inputs: Vec<(Act, Vec<f32>)> =
            case.inputs.iter().map(|input| fill(case, *input, &step, &mut random)).collect();
        let accepted: Vec<(Slot, u32)> =
            moves.iter().map(|m| (sequences[m.sequence].slot, m.accepted as u32)).collect();
        let mut results = Vec::new();
        for backend in &mut backends {
            let result = one_step(case, backend.as_mut(), &step, &inputs, &accepted);
            results.push(result.map_err(|what| format!("step {number}: {what}"))?);
        }
        compare(case, &results, kinds, worst).map_err(|what| format!("step {number}: {what}"))?;
        for m in moves {
            let Sequence { slot, context, held, .. } = &mut sequences[m.sequence];
            let back =
                take_back(&mut backends, *slot, m.back as u32).map_err(|what| format!("step {number}: {what}"))?;
            *context = *context + m.accepted as u32 - back;
            *held = *held + m.accepted as u32 - back;
        }
        for evictions in case.evictions.iter().filter(|evictions| evictions.step == number) {
            evictions
                .run(case, (&mut backends, kinds), &mut sequences)
                .map_err(|what| format!("after step {number}: {what}"))?;
        }
        for (_, sequence) in case.ends.iter().filter(|(step, _)| *step == number) {
            let Sequence { slot, context, held, .. } = &mut sequences[*sequence];
            let mut backends = backends.iter_mut();
            backends.try_for_each(|backend| backend.clear_slots(&[*slot])).map_err(|error| error.to_string())?;
            (*context, *held) = (0, 0);
        }
    }
    Ok(())
}

/// Compares the outputs of all subjects with those of the reference, which are the first ones, and with those of the first subject of
/// their kind.
fn compare(case: &Case, results: &[Vec<Vec<f32>>], kinds: &[&[Make]], worst: &mut [f64]) -> Result<(), String> {
    let expected = &results[0];
    for ((kind, subjects), worst) in by_kind(results, kinds).zip(worst) {
        for (subject, of_subject) in subjects.iter().enumerate() {
            let outputs = of_subject.iter().zip(&subjects[0]).zip(expected);
            for (act, ((found, of_first), expected)) in case.outputs.iter().zip(outputs) {
                let name = &case.program.act(*act).name;
                let error = normalised_error(expected, found);
                *worst = worst.max(error);
                if error.is_nan() || found.iter().any(|value| !value.is_finite()) {
                    return Err(format!(
                        "{name} of subject {subject} of kind {kind}, or of the reference, is not finite"
                    ));
                }
                if found.iter().map(|x| x.to_bits()).ne(of_first.iter().map(|x| x.to_bits())) {
                    return Err(format!("{name} of subject {subject} of kind {kind} differs from that of subject 0"));
                }
            }
        }
    }
    Ok(())
}

/// The subjects of each kind, and its number, of what was found for the reference and all of them.
fn by_kind<'a, T>(found: &'a [T], kinds: &'a [&[Make<'a>]]) -> impl Iterator<Item = (usize, &'a [T])> {
    let mut rest = &found[1..];
    kinds.iter().map(move |kind| rest.split_off(..kind.len()).expect("one for each subject")).enumerate()
}

/// Takes back up to `rows` rows of a slot, and returns how many: as many in every backend.
fn take_back(backends: &mut [Box<dyn Backend>], slot: Slot, rows: u32) -> Result<u32, String> {
    let most = backends[0].rewindable(slot);
    if backends.iter().any(|backend| backend.rewindable(slot) != most) {
        return Err("backends differ in how many rows can be taken back".into());
    }
    let rows = rows.min(most);
    backends.iter_mut().try_for_each(|backend| backend.rewind(slot, rows)).map_err(|error| error.to_string())?;
    Ok(rows)
}

/// The reference and the subjects, ready for the first step. The reference keeps its states in f32: it is the truth,
/// whatever the subjects round. Only what replay rings hold it rounds as they do: that is rounded once, so that there is one
/// right result.
fn prepared(case: &Case, subjects: &[Make]) -> Result<Vec<Box<dyn Backend>>, DeviceError> {
    let subjects: Vec<Box<dyn Backend>> = subjects.iter().map(|make| make()).collect();
    let ring_type = subjects.first().map_or(StateType::F32, |subject| subject.ring_type());
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Reference::with_rings_of(ring_type))];
    backends.extend(subjects);
    for (number, backend) in backends.iter_mut().enumerate() {
        let state_type = if number == 0 { StateType::F32 } else { case.limits.state_type };
        backend.prepare(case.program.clone(), &mut case.weights.clone(), Limits { state_type, ..case.limits })?;
        let slots: Vec<Slot> = (0..case.limits.all_slots() as u32).map(Slot).collect();
        backend.clear_slots(&slots)?;
    }
    Ok(backends)
}

/// A shuffled page table for every sequence and page store, as `[sequence][store][page]`, the store's arena in `arenas`.
fn scattered_tables(case: &Case, arenas: &[usize]) -> Vec<Vec<Vec<Page>>> {
    let stores = case.program.page_stores();
    let sequences = case.limits.slots - 1;
    let mut random = Random::new(5);
    let mut shuffled = |pages: Range<u32>| {
        let mut pages: Vec<Page> = pages.map(Page).collect();
        for i in (1..pages.len()).rev() {
            pages.swap(i, random.below(i + 1));
        }
        pages
    };
    let mut free: Vec<Vec<Page>> = arena_pages(case.limits.pages, arenas).into_iter().map(&mut shuffled).collect();
    let each = (case.limits.pages - 1).checked_div(stores * sequences).unwrap_or(0);
    let mut table = |store: usize| {
        let free = &mut free[arenas.get(store).copied().unwrap_or(0)];
        free.split_off(free.len() - each)
    };
    (0..sequences).map(|_| (0..stores).map(&mut table).collect()).collect()
}

fn step(case: &Case, moves: &[Move], sequences: &[Sequence<'_>], random: &mut Random) -> Step {
    let mut step = Step::default();
    let vocab = case.program.weights.first().map_or(1, |decl| decl.shape[0]);
    for m in moves {
        let tokens: Vec<u32> = (0..m.rows).map(|_| random.below(vocab) as u32).collect();
        let Sequence { slot, context, held, tables } = sequences[m.sequence];
        let pages = (held as usize + m.rows).div_ceil(case.limits.page_size);
        let tables = tables.iter().map(|table| (&table[..pages], held));
        step.push_held(slot, context, &tokens, Outputs::All, tables);
    }
    step
}

fn rows_of(case: &Case, act: Act, step: &Step) -> usize {
    match case.program.act(act).rows {
        Rows::Step => step.tokens().len(),
        Rows::Outputs => step.outputs().len(),
    }
}

fn fill(case: &Case, (act, values): (Act, Values), step: &Step, random: &mut Random) -> (Act, Vec<f32>) {
    let columns = case.program.act(act).columns;
    let value = |at: usize| match values {
        Values::Normal => random.normal(),
        Values::Outliers => random.normal() * if at % columns % 17 == 3 { 30.0 } else { 1.0 },
        Values::Few => random.below(3) as f32 - 1.0,
        Values::Uniform(low, high) => low + (high - low) * random.uniform(),
    };
    (act, (0..rows_of(case, act, step) * columns).map(value).collect())
}

/// Runs a step on one backend and returns its outputs; rows beyond the step must keep their poison.
fn one_step(
    case: &Case,
    backend: &mut dyn Backend,
    step: &Step,
    inputs: &[(Act, Vec<f32>)],
    accepted: &[(Slot, u32)],
) -> Result<Vec<Vec<f32>>, String> {
    let fail = |error: crate::DeviceError| error.to_string();
    let whole = |act: &Act| {
        let decl = case.program.act(*act);
        decl.columns * if decl.rows == Rows::Step { case.limits.rows } else { case.limits.outputs }
    };
    for act in &case.outputs {
        backend.write(*act, &vec![f32::NAN; whole(act)]).map_err(fail)?;
    }
    for (act, values) in inputs {
        backend.write(*act, values).map_err(fail)?;
    }
    backend.run(&case.program, step).map_err(fail)?;
    let mut results = Vec::new();
    for act in &case.outputs {
        let mut values = vec![0.0; whole(act)];
        backend.read(*act, 0, &mut values).map_err(fail)?;
        let beyond = values.split_off(rows_of(case, *act, step) * case.program.act(*act).columns);
        if beyond.iter().any(|value| !value.is_nan()) {
            return Err(format!("{} was written beyond the rows of the step", case.program.act(*act).name));
        }
        results.push(values);
    }
    backend.commit(accepted).map_err(fail)?;
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits are those of the first subject of the kind, numbers those of the reference.
    #[test]
    fn subjects_agree_with_their_kind_and_with_the_reference() {
        let case = &cases()[0];
        let make: Make = &|| Box::new(Reference::default());
        let kinds: [&[Make]; 2] = [&[make], &[make, make]];
        let compared = |values: [f32; 4]| {
            let results = values.map(|value| vec![vec![value]; case.outputs.len()]);
            let mut worst = [0.0; 2];
            (compare(case, &results, &kinds, &mut worst), worst)
        };
        assert_eq!(compared([1.0, 1.0, 3.0, 3.0]), (Ok(()), [0.0, 4.0]));
        for (values, kind, what) in [
            ([1.0, 1.0, 1.0, 1.5], "subject 1 of kind 1", "differs"),
            ([1.0, f32::NAN, 1.0, 1.0], "subject 0 of kind 0", "finite"),
            ([f32::NAN, 1.0, 1.0, 1.0], "subject 0 of kind 0", "finite"),
        ] {
            let said = compared(values).0.unwrap_err();
            assert!(said.contains(kind) && said.contains(what), "{said}");
        }
    }
}
