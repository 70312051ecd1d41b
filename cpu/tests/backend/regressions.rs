//! Bugs that other runtimes had with state that is taken back, copied and reused (ALGORITHMS 6.1), one test each. Which
//! change to the code makes which of them fail: `docs/TESTING.md`.

use super::{case, fed, prepared, run};
use kvas_backend::{
    Backend, Outputs, Page, Reference, Replay, Slot, Step,
    conformance::{Case, Random, normalised_error, tolerance},
};
use kvas_cpu::Cpu;

/// Tokens no test feeds as a known one.
const WRONG: [u32; 4] = [49, 48, 47, 46];

fn hybrid(replay: Replay) -> Case {
    case(&format!("hybrid F32 replay {}", replay.history))
}

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(40) as u32).collect()
}

/// What the reference says to every token, one at a time and never taken back.
fn plain(case: &Case, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut reference = prepared(Reference::default(), case);
    tokens.iter().zip(0..).flat_map(|(token, at)| run(&mut reference, case, &[(1, at, &[*token])], 1)).collect()
}

/// A CPU; what it says is compared with what the reference says.
struct Subject {
    case: Case,
    cpu: Cpu,
    /// Texts and what the reference says to them.
    truths: Vec<(Vec<u32>, Vec<Vec<f32>>)>,
}

impl Subject {
    fn new(replay: Replay) -> Self {
        let case = hybrid(replay);
        let mut cpu = Cpu::new(1);
        cpu.prepare(case.program.clone(), &mut case.weights.clone(), case.limits).unwrap();
        Self { case, cpu, truths: Vec::new() }
    }

    /// Slot `slot` reads `text` from `from` to `to`, and then `drafts` tokens that are taken back.
    fn read(&mut self, slot: u32, text: &[u32], (from, to): (usize, usize), drafts: usize) {
        let tried = [&text[from..to], &WRONG[..drafts]].concat();
        let said = run(&mut self.cpu, &self.case, &[(slot, from as u32, &tried)], (to - from) as u32);
        if self.truths.iter().all(|(known, _)| known != text) {
            self.truths.push((text.to_vec(), plain(&self.case, text)));
        }
        let (_, expected) = self.truths.iter().find(|(known, _)| known == text).expect("it was just added");
        for (at, (said, expected)) in said.iter().zip(&expected[from..to]).enumerate() {
            let error = normalised_error(expected, said);
            assert!(error < tolerance::RECURRENT, "slot {slot}, token {}: {error:.1e}", from + at);
        }
    }
}

const REPLAYS: [Replay; 2] = [Replay::new(3, 3), Replay::new(16, 4)];

#[test]
fn conv_window_is_taken_back_with_the_state() {
    for replay in REPLAYS {
        let (mut subject, text) = (Subject::new(replay), tokens(1, 30));
        subject.read(1, &text, (0, 9), 0);
        (9..30).for_each(|at| subject.read(1, &text, (at, at + 1), replay.window - 1));
    }
}

#[test]
fn accepted_counts_the_bonus_token() {
    for replay in REPLAYS {
        let (mut subject, text) = (Subject::new(replay), tokens(2, 60));
        let (mut at, mut accepted) = (0, 1);
        while at + replay.window <= text.len() {
            // The token sampled last, and as many drafts as were right.
            subject.read(1, &text, (at, at + accepted), replay.window - accepted);
            (at, accepted) = (at + accepted, accepted % replay.window + 1);
        }
    }
}

#[test]
fn a_replay_length_is_not_applied_twice() {
    for replay in REPLAYS {
        let (mut subject, text) = (Subject::new(replay), tokens(3, 60));
        for at in 0..60 {
            subject.read(1, &text, (at, at + 1), 0);
            if at % 7 == 3 {
                subject.cpu.copy_slots(&[(Slot(1), Slot(1))]).unwrap(); // only folds
            }
        }
    }
}

#[test]
fn a_step_of_the_same_shape_asks_the_ring_anew() {
    for replay in REPLAYS {
        let (mut subject, text) = (Subject::new(replay), tokens(4, 40));
        // Two sequences whose rings are never equally long, in steps that look the same.
        for at in 0..40 {
            subject.read(1, &text, (at, at + 1), 0);
            if at >= 5 {
                subject.read(2, &text, (at - 5, at - 4), 0);
            }
        }
    }
}

#[test]
fn a_snapshot_holds_the_pending_ring() {
    for replay in REPLAYS {
        let (mut subject, text, other) = (Subject::new(replay), tokens(5, 20), tokens(6, 20));
        (0..13).for_each(|at| subject.read(1, &text, (at, at + 1), 0));
        let pages = (subject.case.limits.pages as u32 - 1) / 4;
        let pairs: Vec<_> = (1..=pages).map(|page| (Page(pages + page), Page(2 * pages + page))).collect();
        subject.cpu.copy_slots(&[(Slot(1), Slot(2))]).unwrap();
        subject.cpu.copy_pages(&pairs).unwrap();
        let parting = [&text[..13], &other[13..]].concat();
        subject.read(1, &parting, (13, 17), 0);
        (13..20).for_each(|at| subject.read(2, &text, (at, at + 1), 0));
    }
}

#[test]
fn a_reused_slot_begins_with_an_empty_ring() {
    for replay in REPLAYS {
        let (mut subject, text, other) = (Subject::new(replay), tokens(7, 20), tokens(8, 20));
        let mut values = Vec::new();
        for way in 0..3 {
            // Entries in the ring of slot 2 that nobody wants any more.
            subject.cpu.clear_slots(&[Slot(1), Slot(2)]).unwrap();
            (0..11).for_each(|at| subject.read(2, &other, (at, at + 1), 0));
            match way {
                0 => subject.cpu.clear_slots(&[Slot(2)]).unwrap(),
                1 => subject.cpu.copy_slots(&[(Slot(1), Slot(2))]).unwrap(),
                _ => {
                    values.clear();
                    subject.cpu.save_slot(Slot(1), 0, &mut values).unwrap();
                    subject.cpu.load_slot(Slot(2), 0, &values).unwrap();
                }
            }
            (0..9).for_each(|at| subject.read(2, &text, (at, at + 1), 0));
        }
    }
}

#[test]
fn a_pause_moves_no_cursor() {
    for replay in REPLAYS {
        let (mut subject, text) = (Subject::new(replay), tokens(9, 40));
        (0..7).for_each(|at| subject.read(1, &text, (at, at + 1), 0));
        // Preempted, while another sequence goes on.
        (0..20).for_each(|at| subject.read(2, &text, (at, at + 1), 0));
        (7..40).for_each(|at| subject.read(1, &text, (at, at + 1), 0));
    }
}

#[test]
fn the_last_token_of_a_prompt_goes_on_from_its_chunks() {
    for replay in REPLAYS {
        let (mut subject, text) = (Subject::new(replay), tokens(10, 40));
        for first in [1, 16, 17, 32] {
            subject.cpu.clear_slots(&[Slot(1)]).unwrap();
            subject.read(1, &text, (0, first), 0);
            subject.read(1, &text, (first, first + 1), 0);
            subject.read(1, &text, (first + 1, first + 2), 0);
        }
    }
}

#[test]
fn a_short_step_leaves_nothing_of_a_longer_one() {
    for replay in REPLAYS {
        let (mut subject, text) = (Subject::new(replay), tokens(11, 40));
        let mut at = 0;
        for rows in [3, 2, 1, 3, 1, 2, 3, 3, 1, 1, 2] {
            // Three spans, then one of another slot, with fewer rows.
            let spans = [2, 3, 1].map(|slot| (slot, at as u32, &text[at..at + rows]));
            run(&mut subject.cpu, &subject.case, &spans, rows as u32);
            at += rows;
            subject.read(1, &text, (at, at + 1), 0);
            for slot in [2, 3] {
                subject.read(slot, &text, (at, at + 1), replay.window - 1);
            }
            at += 1;
        }
    }
}

/// Feeds one slot 200 single rows, as decoding does, and returns what was said and what the slot holds.
fn decoded(backend: impl Backend, case: &Case) -> (Vec<f32>, Vec<f32>) {
    let (mut backend, mut random) = (prepared(backend, case), Random::new(12));
    let (mut said, mut held) = (Vec::new(), Vec::new());
    (0..200).for_each(|at| said = fed(&mut backend, case, &[(1, at, 1)], &mut random));
    backend.save_slot(Slot(1), 200, &mut held).unwrap();
    (said, held)
}

/// Feeds one slot 60 rows, of which each comes with so many others that are taken back, and returns what was said.
fn tried(case: &Case, drafts: impl Fn(usize) -> usize) -> Vec<f32> {
    let (mut cpu, mut random, mut said) = (prepared(Cpu::new(1), case), Random::new(9), Vec::new());
    for at in 0..60 {
        let rows = 1 + drafts(at);
        for (act, _) in &case.inputs {
            let columns = case.program.act(*act).columns;
            let wrong = (rows - 1) * columns;
            let values = (0..columns).map(|_| random.normal()).collect::<Vec<_>>().into_iter();
            cpu.write(*act, &values.chain((0..wrong).map(|i| (i % 7) as f32 - 3.0)).collect::<Vec<_>>()).unwrap();
        }
        let mut step = Step::default();
        step.push(Slot(1), at as u32, &vec![0; rows], Outputs::None, []);
        cpu.run(&case.program, &step).unwrap();
        let mut out = vec![0.0; rows * case.program.act(case.outputs[0]).columns];
        cpu.read(case.outputs[0], 0, &mut out).unwrap();
        cpu.commit(&[(Slot(1), 1)]).unwrap();
        said.extend_from_slice(&out[..out.len() / rows]);
    }
    said
}

/// The state that is ahead of a checkpoint is the one that entries and the checkpoint tell, which is rounded to f16.
#[test]
fn rows_that_are_taken_back_change_no_bit_of_a_scan() {
    for name in ["mamba1 67x33 replay 16", "f16 mamba1 67x33 replay 16", "f16 mamba1 128x5 replay 3"] {
        let case = case(name);
        let never = tried(&case, |_| 0);
        assert!(tried(&case, |at| at % 3 % 2) == never, "{name}, every third");
        assert!(tried(&case, |at| (at + 1) % case.limits.replay.window) == never, "{name}, nearly all");
    }
}

const RECURRENCES: [&str; 4] = ["delta 2/6 40x24", "delta per channel 2/6 40x24", "mamba2 8/8 40x24", "mamba1 67x33"];

/// bf16 would leave 1e-5, f16 1e-7; f32 leaves 1e-13.
#[test]
fn the_checkpoint_is_not_rounded_to_the_type_of_activations() {
    for name in RECURRENCES {
        for history in [0, 3, 16] {
            let case = case(&format!("{name} replay {history}"));
            let ((_, expected), (_, found)) = (decoded(Reference::default(), &case), decoded(Cpu::new(1), &case));
            let error = normalised_error(&expected, &found);
            assert!(error < tolerance::RECURRENT, "{}: {error:.1e}", case.name);
        }
    }
}

/// The same of what is read from the state, for the kinds with a strength of writes.
#[test]
fn the_strength_of_a_write_is_not_rounded() {
    for name in &RECURRENCES[..2] {
        for history in [0, 3, 16] {
            let case = case(&format!("{name} replay {history}"));
            let ((expected, _), (found, _)) = (decoded(Reference::default(), &case), decoded(Cpu::new(1), &case));
            let error = normalised_error(&expected, &found);
            assert!(error < tolerance::RECURRENT, "{}: {error:.1e}", case.name);
        }
    }
}

/// Kernels work on whole chunks of rows in scratch that earlier steps have used.
#[test]
fn rows_that_fill_up_a_chunk_weigh_nothing() {
    for name in RECURRENCES {
        for history in [0, 16] {
            let case = case(&format!("{name} replay {history}"));
            let few = |used: bool| {
                let mut cpu = prepared(Cpu::new(1), &case);
                if used {
                    fed(&mut cpu, &case, &[(2, 0, 48)], &mut Random::new(1));
                }
                let mut random = Random::new(13);
                [3, 19, 1, 2].map(|rows| fed(&mut cpu, &case, &[(1, 0, rows)], &mut random))
            };
            assert_eq!(few(false), few(true), "{}", case.name);
        }
    }
}
