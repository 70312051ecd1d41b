//! Rows of short spans get the bits that they would get in steps of their own: what makes drafts change no answer.

use super::{Case, Make, Outcome, Random, Sequence, fill, one_step, prepared, scattered_tables};
use crate::{Act, Backend, CHUNK, Outputs, Page, Replay, Slot, Step};
use std::ops::Range;

/// Steps of short spans that are compared, and how many where nothing is remembered from one to the next.
const ROUNDS: usize = 14;
const FEW_ROUNDS: usize = 2;
/// Rows of each sequence before: whether they stay in the ring or go straight into the state depends on the ring.
const PROMPTS: [usize; 3] = [3, 21, 0];

/// New rows of a sequence.
struct Rows {
    sequence: usize,
    tokens: Vec<u32>,
}

/// Rows of all spans of a step, by output.
type Results = Vec<Vec<f32>>;

/// Runs spans of a random number of rows on one fresh backend, and the same rows one by one on another: every output is
/// the same to the bit. Some of the rows are then taken back. No span goes beyond where a ring is folded.
pub fn run_row_by_row(case: &Case, make: Make<'_>) -> Outcome {
    let mut case = case.clone();
    case.limits.replay = with_window(case.limits.replay);
    let fault = try_run(&case, make).err();
    Outcome { name: format!("{}, row by row", case.name), error: 0.0, bound: case.bound, fault }
}

/// A ring that spans of several rows stay in.
fn with_window(replay: Replay) -> Replay {
    match replay {
        Replay { window: 2.., .. } => replay,
        Replay { history: 0, fresh, .. } => Replay::new(16, 8).with_fresh(fresh),
        Replay { history, fresh, .. } => Replay::new(history + 20, CHUNK - 1).with_fresh(fresh),
    }
}

fn try_run(case: &Case, make: Make<'_>) -> Result<(), String> {
    let mut backends = prepared(case, &[make, make]).map_err(|error| error.to_string())?.split_off(1);
    let [at_once, one_by_one] = backends.as_mut_slice() else { unreachable!("two were asked for") };
    let tables = scattered_tables(case, &at_once.arenas());
    let mut sequences: Vec<Sequence<'_>> = tables
        .iter()
        .zip(1..)
        .map(|(tables, slot)| Sequence { slot: Slot(slot), context: 0, held: 0, tables })
        .collect();
    let mut random = Random::new(case.name.len() as u64);
    let rounds = if case.program.stores.is_empty() { FEW_ROUNDS } else { ROUNDS };
    for round in 0..=rounds {
        let spans = spans(case, &sequences, &mut random, |sequence, slot| match round {
            0 => PROMPTS[sequence]..PROMPTS[sequence] + 1,
            _ => 0..case.limits.replay.window.min(CHUNK - 1).min(at_once.until_fold(slot)) + 1,
        });
        if spans.is_empty() {
            continue;
        }
        let step = step(&spans, &sequences, case.limits.page_size);
        let inputs: Vec<(Act, Vec<f32>)> =
            case.inputs.iter().map(|input| fill(case, *input, &step, &mut random)).collect();
        let mut kept: Vec<(Slot, u32)> =
            spans.iter().map(|rows| (sequences[rows.sequence].slot, rows.tokens.len() as u32)).collect();
        if round == 0 {
            one_step(case, at_once.as_mut(), &step, &inputs, &kept)?;
            one_step(case, one_by_one.as_mut(), &step, &inputs, &kept)?;
        } else {
            let expected = row_by_row(case, one_by_one.as_mut(), (&spans, &sequences), &inputs)?;
            for (slot, rows) in &mut kept {
                // Half of the time nothing.
                let back = (*rows).min(random.below(2 * *rows as usize) as u32) % *rows;
                if back <= one_by_one.rewindable(*slot) {
                    one_by_one.rewind(*slot, back).map_err(|error| error.to_string())?;
                    *rows -= back;
                }
            }
            let found = one_step(case, at_once.as_mut(), &step, &inputs, &kept)?;
            same_bits(case, &expected, &found).map_err(|what| format!("round {round}: {what}"))?;
        }
        for (rows, (_, kept)) in spans.iter().zip(kept) {
            let at = &mut sequences[rows.sequence];
            (at.context, at.held) = (at.context + kept, at.held + kept);
        }
    }
    Ok(())
}

/// A random number of rows for each sequence that there is room for, out of those that `wanted` names.
fn spans(
    case: &Case,
    sequences: &[Sequence<'_>],
    random: &mut Random,
    wanted: impl Fn(usize, Slot) -> Range<usize>,
) -> Vec<Rows> {
    let vocab = case.program.weights.first().map_or(1, |decl| decl.shape[0]);
    let mut spans = Vec::new();
    for (sequence, at) in sequences.iter().enumerate() {
        let wanted = wanted(sequence, at.slot);
        let rows = wanted.start + random.below(wanted.len());
        let pages = at.tables.iter().map(Vec::len).min().unwrap_or(usize::MAX / case.limits.page_size);
        let rows = rows.min((pages * case.limits.page_size).saturating_sub(at.held as usize));
        if rows > 0 {
            spans.push(Rows { sequence, tokens: (0..rows).map(|_| random.below(vocab) as u32).collect() });
        }
    }
    spans
}

fn step(spans: &[Rows], sequences: &[Sequence<'_>], page_size: usize) -> Step {
    let mut step = Step::default();
    for rows in spans {
        push(&mut step, &sequences[rows.sequence], 0, &rows.tokens, page_size);
    }
    step
}

/// Rows of a sequence, `behind` rows after what it holds.
fn push(step: &mut Step, at: &Sequence<'_>, behind: usize, tokens: &[u32], page_size: usize) {
    let held = at.held as usize + behind;
    let pages = (held + tokens.len()).div_ceil(page_size);
    let tables = at.tables.iter().map(|table: &Vec<Page>| (&table[..pages], held as u32));
    step.push_held(at.slot, at.context + behind as u32, tokens, Outputs::All, tables);
}

/// Runs the rows of all spans in steps of one row of each; the results are in the order of one step.
fn row_by_row(
    case: &Case,
    backend: &mut dyn Backend,
    (spans, sequences): (&[Rows], &[Sequence<'_>]),
    inputs: &[(Act, Vec<f32>)],
) -> Result<Results, String> {
    let firsts: Vec<usize> =
        spans.iter().scan(0, |first, rows| Some(std::mem::replace(first, *first + rows.tokens.len()))).collect();
    let total: usize = spans.iter().map(|rows| rows.tokens.len()).sum();
    let columns = |act: Act| case.program.act(act).columns;
    let mut results: Results = case.outputs.iter().map(|act| vec![0.0; total * columns(*act)]).collect();
    let longest = spans.iter().map(|rows| rows.tokens.len()).max().unwrap_or(0);
    for row in 0..longest {
        let there = spans.iter().zip(&firsts).filter(|(rows, _)| row < rows.tokens.len());
        let (mut step, mut places, mut kept) = (Step::default(), Vec::new(), Vec::new());
        for (rows, first) in there {
            let at = &sequences[rows.sequence];
            push(&mut step, at, row, &rows.tokens[row..=row], case.limits.page_size);
            places.push(first + row);
            kept.push((at.slot, 1));
        }
        let of_rows = |(act, values): &(Act, Vec<f32>)| {
            let columns = columns(*act);
            (*act, places.iter().flat_map(|place| values[place * columns..][..columns].iter().copied()).collect())
        };
        let inputs: Vec<(Act, Vec<f32>)> = inputs.iter().map(of_rows).collect();
        let found = one_step(case, backend, &step, &inputs, &kept)?;
        for ((result, found), act) in results.iter_mut().zip(&found).zip(&case.outputs) {
            let columns = columns(*act);
            for (place, values) in places.iter().zip(found.chunks(columns)) {
                result[place * columns..][..columns].copy_from_slice(values);
            }
        }
    }
    Ok(results)
}

fn same_bits(case: &Case, expected: &Results, found: &Results) -> Result<(), String> {
    for ((expected, found), act) in expected.iter().zip(found).zip(&case.outputs) {
        let decl = case.program.act(*act);
        let differs = |row: &usize| {
            let of = |values: &[f32]| {
                values[row * decl.columns..][..decl.columns].iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            of(expected) != of(found)
        };
        let rows = expected.len() / decl.columns;
        if let Some(row) = (0..rows).find(differs) {
            return Err(format!("row {row} of {rows} of {} differs from that of a step of its own", decl.name));
        }
    }
    Ok(())
}
