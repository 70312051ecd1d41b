//! Awkward shapes and honest input ranges for every op, and one small hybrid model as a whole; the scripts they run.

mod attention;
mod hybrid;
mod layers;
mod products;
mod recurrent;
mod segments;
mod slake;

use super::{Build, Case, Move, RandomWeights, Values, tolerance};
use crate::{KvType, Limits, Program, Replay, StateType};
use kvas_gguf::Quant;
use std::sync::Arc;

const ROWS: usize = 80;

/// Every case.
pub fn cases() -> Vec<Case> {
    let recurrent = [recurrent::cases(), layers::cases(), hybrid::cases()].concat();
    [products::cases(), attention::cases(), recurrent, slake::cases(), segments::cases()].concat()
}

const REPLAYS: [Replay; 6] = [
    Replay::OFF,
    Replay::new(1, 1),
    Replay::new(3, 3),
    Replay::new(16, 4),
    Replay::OFF.with_fresh(6),
    Replay::new(3, 3).with_fresh(40),
];

fn limits(replay: Replay) -> Limits {
    let (page_size, kv_type, state_type) = (4, KvType::F16, StateType::F32);
    Limits {
        context: 0,
        rows: ROWS,
        outputs: ROWS,
        pages: 260,
        page_size,
        slots: 4,
        snapshots: 3,
        replay,
        kv_type,
        state_type,
    }
}

fn case(name: String, program: Program, quant: Quant, replay: Replay) -> Case {
    Case {
        name,
        program: Arc::new(program),
        weights: RandomWeights { quant, seed: 7 },
        limits: limits(replay),
        inputs: vec![],
        outputs: vec![],
        script: rows_script(),
        evictions: vec![],
        ends: vec![],
        bound: tolerance::EXACT,
    }
}

fn keep(sequence: usize, rows: usize) -> Move {
    Move { sequence, rows, accepted: rows, back: 0 }
}

/// Row counts around the sizes kernels block by.
fn rows_script() -> Vec<Vec<Move>> {
    [1, 2, 3, 7, 63, 64, 65].map(|rows| vec![keep(0, rows)]).to_vec()
}

/// Ragged prefill, decode, speculation with rejections, going back, a sequence that pauses, a long span after short
/// ones.
fn sequence_script(replay: Replay) -> Vec<Vec<Move>> {
    let window = replay.window;
    let tried = |sequence: usize, rows: usize, accepted: usize| {
        let rows = rows.min(window.max(1));
        Move { sequence, rows, accepted: if window == 0 { rows } else { accepted.min(rows) }, back: 0 }
    };
    let back = |m: Move, back: usize| Move { back, ..m };
    let mut script = vec![vec![keep(0, 5), keep(1, 2)], vec![keep(0, 1), keep(1, 3), back(keep(2, 17), 2)]];
    for round in 0..12 {
        script.push(vec![back(tried(0, 4, round % 5), round % 4 / 3 * 7), back(tried(2, 1 + round % 4, 1), round % 2)]);
    }
    script.extend([vec![keep(1, 40), tried(0, 3, 0)], vec![tried(1, 1, 1), tried(0, 2, 1)], vec![keep(0, 33)]]);
    script.extend((0..9).map(|round| vec![tried(0, 1, 1), tried(1, 1, 1), back(tried(2, 1, 1), round / 8 * 3)]));
    script.push(vec![keep(2, 70), tried(1, 4, 2)]);
    script.extend((0..3).map(|_| vec![tried(2, 1, 1)]));
    script
}
