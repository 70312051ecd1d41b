//! Giving up tokens of a sequence (ALGORITHMS 5): who is read by the last queries or by those of lately, what would be
//! lost, and the sums of what is evicted. One task per KV head.

mod absorb;
mod running;
mod window;

use super::{BLOCK, LINE, QUERIES, blocks::Blocks, meet::Pair};
use crate::{
    eviction::{EvictionState, OfSlot},
    machine::Machine,
    pages::Pages,
    pool::{Place, Tiles},
    simd::{
        Kernel, Simd,
        dense::{Bf16, F8, F16, F32, I8},
    },
    states::ByType,
};
use absorb::Absorb;
use kvas_backend::{
    Eviction, EvictionOrder, Holding, KvType, Page, Preference, Program, Slot, Store, op,
    store::{PagesDecl, Slake},
};
use running::Running;
use window::{Losses, Window};

/// Floats of scratch a thread needs.
pub(crate) fn scratch(decl: &PagesDecl, slake: &Slake) -> usize {
    let (group, row) = (slake.heads / decl.kv_heads, decl.key_dim + decl.value_dim);
    let queries = group * slake.window;
    // The mask of a block, the weights it is seen with, and the sums of queries.
    let of_window =
        BLOCK * (row + 1) + 4 * BLOCK + queries * (decl.key_dim + LINE + 8) + QUERIES.max(slake.window) * BLOCK;
    let of_token = BLOCK * decl.key_dim + group * (decl.key_dim + 2 * BLOCK + slake.capacity);
    let absorbed = decl.key_dim * decl.value_dim + absorb::ROWS * row;
    LINE + of_window.max(of_token).max(absorbed)
}

/// A layer of a slot, and one of its KV heads.
#[derive(Clone, Copy)]
struct Layer<'a> {
    eviction_state: &'a EvictionState,
    pages: &'a Pages,
    slot: Slot,
    table: &'a [Page],
    /// What makes powers of 2 of scores.
    scale: f32,
}

impl<'a> Layer<'a> {
    fn decl(&self) -> &'a PagesDecl {
        &self.eviction_state.decl
    }

    /// Query heads of a KV head.
    fn group(&self) -> usize {
        self.eviction_state.slake.heads / self.decl().kv_heads
    }

    fn blocks(&self, head: usize) -> Blocks<'a> {
        Blocks::new((self.pages, self.decl()), self.table, head)
    }

    /// The scores `[count, BLOCK]` of some queries for the keys of a block, which are widened in `room`.
    fn meet<S: Simd>(
        &self,
        simd: S,
        (pair, scales): (&Pair<'_>, Option<&[[f32; BLOCK]; 2]>),
        asked: (&[f32], usize),
        scores: &mut [f32],
    ) {
        let has_tiles = self.pages.has_tiles(self.decl());
        simd.apart(Meet { has_tiles, pair, asked, scores: &mut *scores });
        scale(scales, &mut scores[..asked.1 * BLOCK]);
    }
}

/// [`Layer::meet`], but for the scales.
struct Meet<'a> {
    has_tiles: bool,
    pair: &'a Pair<'a>,
    asked: (&'a [f32], usize),
    scores: &'a mut [f32],
}

impl Kernel for Meet<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.has_tiles {
            self.pair.score::<F32, S, false>(simd, self.asked, self.scores);
        } else {
            self.pair.score_rows(simd, self.asked, self.scores);
        }
    }
}

/// Multiplies the scores of a block with the scales of its keys, if they have any.
#[inline(always)]
fn scale(scales: Option<&[[f32; BLOCK]; 2]>, scores: &mut [f32]) {
    if let Some([keys, _]) = scales {
        for scores in scores.as_chunks_mut::<BLOCK>().0 {
            scores.iter_mut().zip(keys).for_each(|(score, scale)| *score *= scale);
        }
    }
}

/// What is taken off the front of a thread's scratch.
pub(super) fn take<'a>(room: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    room.split_off_mut(..len).expect("planned")
}

fn layer<'a>(
    (eviction_state, pages): (&'a EvictionState, &'a Pages),
    program: &Program,
    (slot, store, table): (Slot, Store, &'a [Page]),
) -> Layer<'a> {
    let scale = program.attention_scale(store) * std::f32::consts::LOG2_E;
    Layer { eviction_state, pages, slot, table, scale }
}

impl Machine {
    /// Remembers the queries of a step.
    pub(super) fn ask(&mut self, op: &op::Attention) {
        let columns = self.columns(op.q);
        let Self { step, acts, memory, .. } = self;
        let Some(eviction_state) = memory[op.store.0 as usize].eviction_state_mut() else { return };
        for (first, span) in step.spans_with_rows() {
            let rows = first * columns..(first + span.rows as usize) * columns;
            eviction_state.ask(span, &acts[op.q.0 as usize][rows]);
        }
    }

    /// After the committed rows of a short span their weights are added to the scores of what they have read.
    pub(crate) fn rescore(&mut self, slot: Slot, accepted: u32) {
        let Self { proof, pool, step, program, pages, memory, scratch, .. } = self;
        let span = step.spans().iter().enumerate().find(|(_, span)| span.slot == slot);
        let Some((number, span)) = span else { return };
        for store in program.bounded_stores() {
            let Some(eviction_state) = memory[store.0 as usize].eviction_state_mut() else { continue };
            let (ordinal, capacity) = (program.page_ordinal(store), eviction_state.slake.capacity);
            let held = step.held(number, ordinal) as usize;
            let fits = held + span.rows as usize <= capacity && span.rows as usize <= eviction_state.slake.window;
            if !eviction_state.marks(slot).bounded {
                continue;
            }
            let heads = eviction_state.decl.kv_heads;
            if !fits {
                // Nobody has scored these tokens; what stands there is of others.
                let fresh = held.min(capacity)..(held + accepted as usize).min(capacity);
                let of_slot =
                    &mut eviction_state.scores_mut()[slot.0 as usize * heads * capacity..][..heads * capacity];
                of_slot.chunks_exact_mut(capacity).for_each(|scores| scores[fresh.clone()].fill(0.0));
                continue;
            }
            let mut scores = std::mem::take(eviction_state.scores_mut());
            let layer = layer((&*eviction_state, &*pages), program, (slot, store, step.table(number, ordinal)));
            let of_slot = &mut scores[slot.0 as usize * heads * capacity..][..heads * capacity];
            let place = Place::of(layer.group() * heads * held * layer.decl().key_dim * accepted as usize);
            pool.each((place, heads), Tiles::chunks(of_slot, capacity), scratch, |head, mut scores, scratch| {
                let rows = span.context..span.context + accepted;
                let running = Running { layer, head, held, rows, scores: scores.row_mut(0), room: scratch };
                if !layer.pages.has_tiles(layer.decl()) {
                    return proof.run(running.widened::<F32>());
                }
                match layer.pages.kv_type() {
                    KvType::F32 => proof.run(running.stored::<F32>()),
                    KvType::F16 => proof.run(running.stored::<F16>()),
                    KvType::Bf16 => proof.run(running.stored::<Bf16>()),
                    KvType::Q8_0 => proof.run(running.stored::<I8>()),
                    KvType::F8 => proof.run(running.stored::<F8>()),
                }
            });
            *eviction_state.scores_mut() = scores;
        }
    }

    pub(crate) fn weigh(&mut self, eviction: &Eviction<'_>, values: bool) -> Vec<Preference> {
        let mut losses = Vec::new();
        for holding in eviction.holdings {
            self.rank(eviction, holding);
            self.choose(eviction, holding);
            losses.push(self.losses(eviction, holding, values));
        }
        losses
    }

    pub(crate) fn evict(&mut self, eviction: &Eviction<'_>) {
        for holding in eviction.holdings {
            if self.program.pages(holding.store).policy.segments().is_some() {
                self.evict_segment(eviction, holding);
                continue;
            }
            self.rank(eviction, holding);
            self.choose(eviction, holding);
            if eviction.absorb {
                self.absorb(eviction.slot, holding);
            }
            self.compact(eviction, holding);
        }
    }

    /// Scores all tokens that are held, into the ranks.
    fn rank(&mut self, eviction: &Eviction<'_>, holding: &Holding<'_>) {
        let EvictionOrder::Window { gamma } = eviction.order else { return };
        let Self { proof, pool, program, pages, memory, ranks, scratch, .. } = self;
        let eviction_state = memory[holding.store.0 as usize].eviction_state().expect("a store that gives up tokens");
        let layer = layer((eviction_state, &*pages), program, (eviction.slot, holding.store, holding.table));
        let asked = eviction_state.marks(eviction.slot).window(eviction.context, eviction.window);
        let heads = eviction_state.decl.kv_heads;
        let scores = Tiles::chunks(&mut ranks.scores[..heads * ranks.tokens], ranks.tokens);
        pool.each((Place::Everywhere, heads), scores, scratch, |head, mut scores, scratch| {
            let scores = &mut scores.row_mut(0)[..holding.held as usize];
            let mut losses = Losses::default();
            let window = Window { layer, head, asked: asked.clone(), room: scratch, losses: &mut losses };
            proof.run(window.rank(gamma, scores));
        });
    }

    /// Chooses what is evicted of every KV head, by the ranks or by what is remembered.
    fn choose(&mut self, eviction: &Eviction<'_>, holding: &Holding<'_>) {
        let Self { pool, memory, ranks, .. } = self;
        let eviction_state = memory[holding.store.0 as usize].eviction_state().expect("a store that gives up tokens");
        let (heads, tokens, scores) = (eviction_state.decl.kv_heads, ranks.tokens, &ranks.scores);
        let place = Place::of(heads * holding.held as usize);
        pool.share((place, heads), Tiles::chunks(&mut ranks.gone[..heads], 1), |head, mut gone| {
            let mark = |token: u32| {
                let (position, score) = eviction_state.mark(eviction.slot, head, token as usize);
                match eviction.order {
                    EvictionOrder::Window { .. } => (position, scores[head * tokens + token as usize]),
                    EvictionOrder::Running | EvictionOrder::Recency => (position, score),
                }
            };
            eviction.choose(holding, mark, &mut gone.row_mut(0)[0]);
        });
    }

    /// What a layer would lose by what is chosen.
    fn losses(&mut self, eviction: &Eviction<'_>, holding: &Holding<'_>, values: bool) -> Preference {
        let Self { proof, pool, program, pages, memory, ranks, scratch, .. } = self;
        let eviction_state = memory[holding.store.0 as usize].eviction_state().expect("a store that gives up tokens");
        let layer = layer((eviction_state, &*pages), program, (eviction.slot, holding.store, holding.table));
        let asked = eviction_state.marks(eviction.slot).window(eviction.context, eviction.window);
        let heads = eviction_state.decl.kv_heads;
        let mut losses = vec![Losses::default(); heads];
        let gone = &ranks.gone;
        pool.each((Place::Everywhere, heads), Tiles::chunks(&mut losses, 1), scratch, |head, mut losses, scratch| {
            let losses = &mut losses.row_mut(0)[0];
            let window = Window { layer, head, asked: asked.clone(), room: scratch, losses };
            proof.run(window.weigh(holding.held as usize, values.then_some(&gone[head][..])));
        });
        let sum = |of: fn(&Losses) -> f64| losses.iter().map(of).sum::<f64>();
        let rows = (eviction_state.slake.heads * asked.len()).max(1) as f64;
        Preference {
            entropy: sum(|losses| losses.entropy),
            variance: sum(|losses| losses.variance),
            shift: sum(|losses| losses.shift) / rows,
            mean_entropy: sum(|losses| losses.whole_entropy) / rows,
        }
    }

    /// Adds what is chosen to the moments.
    pub(in crate::ops::attention) fn absorb(&mut self, slot: Slot, holding: &Holding<'_>) {
        let Self { proof, pool, pages, memory, ranks, scratch, .. } = self;
        let eviction_state =
            memory[holding.store.0 as usize].eviction_state_mut().expect("a store that gives up tokens");
        let (decl, heads) = (eviction_state.decl, eviction_state.decl.kv_heads);
        let OfSlot { marks, vectors, covariances, .. } = eviction_state.slot(slot);
        let added = (holding.held - holding.keep) as f32;
        if added == 0.0 || vectors.is_empty() {
            return;
        }
        let before = marks.count;
        marks.count += added;
        let elements = decl.key_dim * decl.value_dim;
        let parts = (Tiles::chunks(vectors, 2 * decl.key_dim + decl.value_dim), covariances.chunks(elements));
        let (gone, pages) = (&ranks.gone, &*pages);
        pool.each((Place::Everywhere, heads), parts, scratch, |head, (mut vectors, mut covariance), scratch| {
            let (vectors, room) = (vectors.row_mut(0), &mut scratch[..]);
            let gone = (holding.table, &gone[head][..]);
            let absorb = Absorb { pages, decl: &decl, head, gone, before, vectors, room };
            match covariance.elements() {
                ByType::F32(stored) => proof.run(absorb.into::<F32>(stored)),
                ByType::F16(stored) => proof.run(absorb.into::<F16>(stored)),
            }
        });
    }

    /// Moves what stays into the first rows, and remembers what is where.
    fn compact(&mut self, eviction: &Eviction<'_>, holding: &Holding<'_>) {
        let Self { pages, memory, ranks, .. } = self;
        let eviction_state =
            memory[holding.store.0 as usize].eviction_state_mut().expect("a store that gives up tokens");
        let (decl, capacity, keep) = (eviction_state.decl, eviction_state.slake.capacity, holding.keep as usize);
        assert!(keep <= capacity, "{keep} tokens stay, there is room to remember {capacity}");
        for head in 0..decl.kv_heads {
            let gone = &ranks.gone[head];
            // Positions of all that stay, where they are now; then those of what moves.
            for token in 0..keep {
                eviction_state.settle(eviction, (head, token, token), ranks);
            }
            for (from, to) in holding.moves(gone) {
                eviction_state.settle(eviction, (head, from as usize, to as usize), ranks);
                pages.move_token(&decl, (holding.table, [from as usize, to as usize]), head);
            }
        }
        eviction_state.settled(eviction, holding.keep);
    }
}
