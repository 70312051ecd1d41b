//! Giving up segments (ALGORITHMS 4.3): their keys and values go into the memory, and what is behind them moves up.

use super::slake::take;
use crate::{
    machine::Machine,
    ops::{
        read_memory::positive,
        rope_store::{KeyShift, Ropes},
    },
    pages::Pages,
    pool::{Place, Tiles},
    simd::{
        Kernel, Simd,
        dense::F32,
        math,
        strips::{self, Matrix, Start, Sums, Weights},
    },
    slots::SlotMemory,
};
use kvas_backend::{
    Eviction, EvictionOrder, Holding, Page, Program, Store,
    store::{PagesDecl, Segments},
};
use std::ops::Range;

/// Tokens of a block.
const ROWS: usize = 64;

/// Floats of scratch a thread needs.
pub(crate) fn scratch(decl: &PagesDecl) -> usize {
    (ROWS + 1) * (decl.key_dim + decl.value_dim)
}

/// What turns keys of tokens that follow each other back to what they were before they were rotated: those of a block by
/// the position of its first token, and each by its place in the block.
struct Back {
    blocks: Vec<KeyShift>,
    rows: Vec<KeyShift>,
}

impl Back {
    /// Of some tokens of a store, the first of which has this position; `None` if keys are not rotated.
    fn of((ropes, program): (&Ropes, &Program), store: Store, (position, tokens): (usize, usize)) -> Option<Self> {
        let by = 1.0 / program.rope(store)?.magnitude();
        let back = |positions| KeyShift::back(ropes, program, store, positions);
        let blocks = (0..tokens).step_by(ROWS).map(|first| Some(back(position + first)?.longer(by)));
        Some(Self { blocks: blocks.collect::<Option<_>>()?, rows: (0..ROWS).map(back).collect::<Option<_>>()? })
    }
}

/// Some tokens of a KV head that go into its memory.
struct Absorb<'a> {
    pages: &'a Pages,
    decl: &'a PagesDecl,
    head: usize,
    table: &'a [Page],
    tokens: Range<usize>,
    /// How keys are turned before, if they are.
    back: Option<&'a Back>,
    /// `[key_dim, value_dim]`
    matrix: &'a mut [f32],
    /// `[key_dim]`
    norm: &'a mut [f32],
    room: &'a mut [f32],
}

impl Kernel for Absorb<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { pages, decl, head, table, tokens, back, matrix, norm, mut room } = self;
        let (key_dim, value_dim) = (decl.key_dim, decl.value_dim);
        let (keys, values) = (take(&mut room, ROWS * key_dim), take(&mut room, ROWS * value_dim));
        let plain = take(&mut room, key_dim);
        for (block, start) in tokens.clone().step_by(ROWS).enumerate() {
            let count = ROWS.min(tokens.end - start);
            for row in 0..count {
                let (key, value) = (&mut keys[row * key_dim..][..key_dim], &mut values[row * value_dim..][..value_dim]);
                pages.read_token(decl, (table, start + row), head, [&mut *plain, value]);
                if let Some(Back { blocks, rows }) = back {
                    blocks[block].apply_with(simd, plain);
                    rows[row].apply_with(simd, plain);
                }
                positive(simd, plain, key);
                math::add(simd, norm, key);
            }
            let weights = Weights::in_columns(&keys[..count * key_dim], key_dim, count);
            let rows: &[u8] = bytemuck::cast_slice(&values[..count * value_dim]);
            let values = Matrix { rows, next: rows, stride: value_dim, columns: value_dim };
            let mut sums = Sums { data: &mut *matrix, stride: value_dim };
            strips::add_matrix_apart::<F32, S, false>(simd, (key_dim, Start::Kept), weights, values, &mut sums);
        }
    }
}

impl Machine {
    /// Gives up the tokens of a layer that are right behind the first ones.
    pub(super) fn evict_segment(&mut self, eviction: &Eviction<'_>, holding: &Holding<'_>) {
        assert!(eviction.order == EvictionOrder::Recency, "segments are given up in order");
        let first = eviction.sinks as usize;
        let gone = first..first + (holding.held - holding.keep) as usize;
        assert!(gone.end <= holding.held as usize, "the first tokens stay");
        if eviction.absorb {
            self.absorb_segment(eviction, (holding, gone.clone()));
        }
        self.move_up(holding, gone);
        if let Some(eviction_state) = self.memory[holding.store.0 as usize].eviction_state_mut() {
            eviction_state.settled(eviction, holding.keep);
        }
    }

    fn absorb_segment(&mut self, eviction: &Eviction<'_>, (holding, gone): (&Holding<'_>, Range<usize>)) {
        let Self { proof, pool, pages, program, ropes, memory, ranks, scratch, .. } = self;
        let absorbed = match &mut memory[holding.store.0 as usize] {
            SlotMemory::CompressiveMemory(absorbed) => absorbed,
            SlotMemory::Bounded(eviction_state) => {
                let all = &mut ranks.gone[..eviction_state.decl.kv_heads];
                for of_head in all {
                    of_head.clear();
                    of_head.extend(gone.start as u32..gone.end as u32);
                }
                return self.absorb(eviction.slot, holding);
            }
            SlotMemory::Pages | SlotMemory::State(_) | SlotMemory::Conv(_) => panic!("a store of segments"),
        };
        let decl = absorbed.decl;
        let segments = decl.policy.segments().expect("a store of segments");
        let first = gone.start + segments.shift(eviction.context, holding.held) as usize;
        let turns_back = segments.memory.turns_back();
        let back = turns_back.then(|| Back::of((ropes, program), holding.store, (first, gone.len()))).flatten();
        let Some((matrices, norms)) = absorbed.add(eviction.slot, gone.len()) else { return };
        let parts = (Tiles::chunks(matrices, decl.key_dim * decl.value_dim), Tiles::chunks(norms, decl.key_dim));
        let pages = &*pages;
        pool.each((Place::Everywhere, decl.kv_heads), parts, scratch, |head, (mut matrix, mut norm), scratch| {
            proof.run(Absorb {
                pages,
                decl: &decl,
                head,
                table: holding.table,
                tokens: gone.clone(),
                back: back.as_ref(),
                matrix: matrix.row_mut(0),
                norm: norm.row_mut(0),
                room: scratch,
            });
        });
    }

    /// What is behind the tokens that are gone takes their places, and where positions are places, their positions.
    fn move_up(&mut self, holding: &Holding<'_>, gone: Range<usize>) {
        let Self { proof, pages, program, ropes, scratch, .. } = self;
        let decl = *program.pages(holding.store);
        let moves_positions = decl.policy.segments().is_some_and(Segments::moves_positions);
        let turn = KeyShift::back(ropes, program, holding.store, gone.len()).filter(|_| moves_positions);
        let (key, rest) = scratch[0].split_at_mut(decl.key_dim);
        let value = &mut rest[..decl.value_dim];
        for head in 0..decl.kv_heads {
            for from in gone.end..holding.held as usize {
                let to = from - gone.len();
                let Some(turn) = &turn else {
                    pages.move_token(&decl, (holding.table, [from, to]), head);
                    continue;
                };
                pages.read_token(&decl, (holding.table, from), head, [&mut *key, &mut *value]);
                turn.apply(*proof, key);
                pages.append(&decl, (holding.table, to), head, [&*key, &*value]);
            }
        }
    }
}
