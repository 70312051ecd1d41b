//! Giving up tokens of a sequence (ALGORITHMS 5): who is read by the last queries or by those of lately, what would be lost,
//! and the sums of what is evicted. After a prompt the host chooses what goes, by what the device has found; after that the
//! device does ([`super::evict`]).

use crate::{
    device::{Ptr, failed},
    eviction::Places,
    machine::Machine,
    ops::{
        attention::{AttentionView, PartsView, SUMS_COLUMNS},
        evict::{self, Chosen},
    },
    pages::PagesView,
};
use kvas_backend::{
    DeviceError, Eviction, EvictionOrder, Holding, Limits, Marks, Preference, Program, Slot, Store, op,
    store::{PagesDecl, Slake},
};
use std::ops::Range;

/// Files of kernels.
pub(crate) const UNITS: [&str; 4] = ["slake", "slake_absorb", "slake_evict", "slake_window"];

/// Those of segments that are summed up.
pub(crate) const OF_SEGMENTS: [&str; 2] = ["slake", "slake_absorb"];

/// `PART` and bytes of `Tile` of `kernels/slake_window.cu`, and its threads.
const PART: usize = 1024;
const TILE_BYTES: usize = 4 * (128 * 65 + 64 * 33 + 32 * 33);
const THREADS: usize = 256;
/// Tokens of a head below which a thread of its own does not choose faster.
const ALONE: usize = 4096;
/// `SCORED` of `kernels/slake.cu`, and the shared memory that its scores take besides.
const SCORED: usize = 4;
const SCORES_BESIDE: usize = 12 << 10;

/// `Window` of `kernels/slake_window.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct WindowView {
    pages: PagesView,
    table: u64,
    queries: u64,
    heads: u32,
    window: u32,
    held: u32,
    first: u32,
    count: u32,
    scale: f32,
}

/// `Losses` of the same.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct LossesView {
    log_sums: u64,
    marked: u64,
    stride: u32,
    gone: u32,
}

/// Where things are in the scratch, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScratchLayout {
    /// Tokens there is room for.
    tokens: usize,
    table: usize,
    ranks: usize,
    pooled: usize,
    marked: usize,
    gone: usize,
    sums: usize,
    log_sums: usize,
    losses: usize,
    divided: usize,
    moved: usize,
    lengths: usize,
    bytes: usize,
}

/// Bytes of the scratch for a layer that may evict tokens.
pub(crate) fn scratch_bytes(program: &Program, store: Store, limits: &Limits) -> usize {
    let asked = ScratchLayout::of(program, store, limits).map_or(0, |room| room.bytes);
    asked.max(evict::scratch_bytes(program, store, limits))
}

impl ScratchLayout {
    /// For a layer that may evict tokens, where the last queries are asked.
    fn of(program: &Program, store: Store, limits: &Limits) -> Option<Self> {
        let decl = program.pages(store);
        let slake = decl.policy.eviction()?;
        Some(Self::new(decl, &slake, limits.most_held(program.page_stores())))
    }

    fn new(decl: &PagesDecl, slake: &Slake, tokens: usize) -> Self {
        let (heads, queries, parts) = (decl.kv_heads, slake.heads * slake.window, tokens.div_ceil(PART));
        let mut at = 0;
        let mut next = |bytes: usize| {
            at += bytes.next_multiple_of(256);
            at - bytes.next_multiple_of(256)
        };
        Self {
            tokens,
            table: next(4 * tokens),
            ranks: next(4 * heads * tokens),
            pooled: next(4 * heads * tokens),
            marked: next(heads * tokens),
            gone: next(4 * heads * tokens),
            sums: next(8 * parts * queries),
            log_sums: next(4 * queries),
            losses: next(8 * parts * (2 * queries).max(3 * heads)),
            divided: next(8 * 2 * queries),
            moved: next(8 * 2 * queries),
            lengths: next(8 * parts * slake.heads),
            bytes: at,
        }
    }
}

/// How weights are added to the scores of tokens: one launch for all layers, so as the largest of them wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScoreLaunch {
    /// Most KV heads of a layer.
    heads: usize,
    /// Most tokens whose scores a layer remembers.
    capacity: usize,
    /// Query heads whose scores are in shared memory at once.
    at_once: usize,
}

impl ScoreLaunch {
    /// Of the layers of a program that may evict tokens, where a block may have `shared` bytes of shared memory.
    ///
    /// # Errors
    ///
    /// The scores of a layer do not fit.
    pub(crate) fn of(program: &Program, shared: usize) -> Result<Self, DeviceError> {
        let layers = || program.bounded_stores().map(|store| program.pages(store));
        let heads = layers().map(|decl| decl.kv_heads).max().unwrap_or(0);
        let capacity = layers().filter_map(|decl| decl.policy.slake()).map(|slake| slake.capacity).max().unwrap_or(0);
        let most = shared.saturating_sub(SCORES_BESIDE) / 4;
        if capacity > most {
            return Err(failed(format!(
                "layers that remember the scores of {capacity} tokens, expected at most {most}: this GPU has \
                 {shared} bytes of shared memory for them; a smaller budget of tokens fits (--kv-budget)"
            )));
        }
        Ok(Self { heads, capacity, at_once: (most / capacity.max(1)).min(SCORED) })
    }
}

/// A layer whose tokens are looked at.
pub(super) struct Look<'a> {
    eviction: &'a Eviction<'a>,
    holding: &'a Holding<'a>,
    decl: PagesDecl,
    slake: Slake,
    room: ScratchLayout,
    /// Positions of the queries that are asked.
    asked: Range<u32>,
}

/// What is found out about a layer.
struct Found {
    /// `[kv_heads][held]`
    ranks: Vec<f32>,
    preference: Preference,
    /// By KV head, ascending.
    gone: Vec<Vec<u32>>,
}

/// Where the tokens of a slot were read: of those that stayed in the last eviction `[kv_heads][capacity]`.
struct Stayed {
    positions: Vec<u32>,
    capacity: usize,
    tokens: u32,
    since: u32,
}

impl Stayed {
    fn position(&self, head: usize, token: u32) -> u32 {
        if token < self.tokens {
            self.positions[head * self.capacity + token as usize]
        } else {
            self.since + token - self.tokens
        }
    }
}

impl Look<'_> {
    fn held(&self) -> usize {
        self.holding.held as usize
    }

    fn parts(&self) -> usize {
        self.held().div_ceil(PART)
    }

    /// Tokens of a KV head that are evicted.
    fn count(&self) -> usize {
        (self.holding.held - self.holding.keep) as usize
    }
}

impl Machine {
    /// Remembers the queries of a step.
    pub(crate) fn ask(&self, op: &op::Attention) -> Result<(), DeviceError> {
        let Some(view) = self.eviction_state_view(op.store).filter(|view| view.asks()) else { return Ok(()) };
        let launch = self.kernel("slake", "slake_ask")?.grid(self.step.tokens().len(), 1, 1).block(256).early();
        launch.arg(self.view()).arg(view).arg(self.act(op.q)).launch()
    }

    /// What was evicted, as one more part of the contexts of some rows.
    pub(crate) fn add_sums(
        &self,
        op: &op::Attention,
        rows: usize,
        (view, parts): (AttentionView, PartsView),
    ) -> Result<(), DeviceError> {
        let Some(layer) = self.eviction_state_view(op.store) else { return Ok(()) };
        let decl = self.program.pages(op.store);
        let columns = decl.value_dim.div_ceil(SUMS_COLUMNS);
        let launch = self.kernel("slake", "slake_part")?.grid(rows, decl.kv_heads, columns);
        launch.block(256).early().arg(self.view()).arg(layer).arg(view).arg(parts).launch()
    }

    /// After the committed rows of a short span their weights are added to the scores of what they have read.
    pub(crate) fn rescore(&mut self, slot: Slot, accepted: u32) -> Result<(), DeviceError> {
        let number = self.spans.iter().position(|span| span.slot == slot);
        let (Some(number), true) = (number, accepted > 0 && self.eviction_state.is_bounded(slot)) else {
            return Ok(());
        };
        let ((layers, count), ScoreLaunch { heads, capacity, at_once }) =
            (self.eviction_state.layers(), self.eviction_state.scoring());
        if count == 0 {
            return Ok(()); // segments have no scores
        }
        let name = format!("slake_rescore_{}", self.pages.kv_type().name());
        let launch = self.kernel("slake", &name)?.grid(heads, count, 1).block(256).shared(4 * at_once * capacity);
        launch.arg(self.view()).arg(layers).arg(number as u32).arg(accepted).arg(at_once as u32).launch()
    }

    pub(crate) fn weigh(&mut self, eviction: &Eviction<'_>, values: bool) -> Result<Vec<Preference>, DeviceError> {
        let mut preferences = Vec::new();
        for holding in eviction.holdings {
            let look = self.look(eviction, holding)?;
            let mut found = self.find(&look)?;
            if values {
                found.preference.shift = self.shift(&look, &found.gone)?;
            }
            preferences.push(found.preference);
        }
        Ok(preferences)
    }

    pub(crate) fn evict(&mut self, eviction: &Eviction<'_>) -> Result<(), DeviceError> {
        if self.chooses(eviction) {
            return self.evict_again(eviction);
        }
        for holding in eviction.holdings {
            if self.program.pages(holding.store).policy.segments().is_some() {
                self.evict_segment(eviction, holding)?;
                continue;
            }
            let look = self.look(eviction, holding)?;
            let found = self.find(&look)?;
            let moves = self.settle(&look, &found)?;
            self.evict_chosen(eviction, holding, &Chosen { gone: found.gone, moves })?;
        }
        Ok(())
    }

    fn look<'a>(&mut self, eviction: &'a Eviction<'a>, holding: &'a Holding<'a>) -> Result<Look<'a>, DeviceError> {
        let eviction_state = self.eviction_state.of_mut(holding.store);
        let (decl, slake) = (eviction_state.decl, eviction_state.slake);
        let asked = eviction_state.marks(eviction.slot).window(eviction.context, eviction.window);
        let room = ScratchLayout::of(&self.program, holding.store, &self.limits).expect("a store that gives up tokens");
        assert!(holding.held as usize <= room.tokens, "{} tokens held of {}", holding.held, room.tokens);
        let table: Vec<u32> = holding.table.iter().map(|page| page.0).collect();
        self.device.upload(self.scratch().at(room.table), &table)?;
        Ok(Look { eviction, holding, decl, slake, room, asked })
    }

    fn window_view(&self, look: &Look<'_>) -> WindowView {
        let eviction_state = self.eviction_state.of(look.holding.store).expect("a store that gives up tokens");
        let Places { queries, .. } = eviction_state.places(look.eviction.slot);
        WindowView {
            pages: self.pages.view(&look.decl),
            table: self.scratch().at(look.room.table).0,
            queries: queries.0,
            heads: look.slake.heads as u32,
            window: look.slake.window as u32,
            held: look.holding.held,
            first: look.asked.start,
            count: look.asked.len() as u32,
            scale: self.program.attention_scale(look.holding.store) * std::f32::consts::LOG2_E,
        }
    }

    /// The kernel of `slake_window.cu` with this name for the pages' type.
    fn of_type(&self, name: &str) -> String {
        format!("slake_{name}_{}", self.pages.kv_type().name())
    }

    /// Scores all tokens that are held, and chooses what would be evicted.
    fn find(&mut self, look: &Look<'_>) -> Result<Found, DeviceError> {
        let (heads, held) = (look.decl.kv_heads, look.held());
        let mut found =
            Found { ranks: vec![0.0; heads * held], preference: Preference::default(), gone: vec![Vec::new(); heads] };
        if !look.asked.is_empty() {
            self.rank(look, &mut found)?;
        }
        if !matches!(look.eviction.order, EvictionOrder::Window { .. }) {
            self.remembered(look, &mut found.ranks)?;
        }
        let stayed = self.stayed(look)?;
        let Found { ranks, gone, .. } = &mut found;
        // Of prompts there are many tokens, and every head has its own.
        std::thread::scope(|scope| {
            for (head, (gone, ranks)) in gone.iter_mut().zip(ranks.chunks_exact(held.max(1))).enumerate() {
                let (eviction, holding, stayed) = (look.eviction, look.holding, &stayed);
                let mark = move |token: u32| (stayed.position(head, token), ranks[token as usize]);
                if held < ALONE {
                    eviction.choose(holding, mark, gone);
                } else {
                    scope.spawn(move || eviction.choose(holding, mark, gone));
                }
            }
        });
        Ok(found)
    }

    /// By what the last queries read, and what a layer would lose.
    fn rank(&mut self, look: &Look<'_>, found: &mut Found) -> Result<(), DeviceError> {
        let (window, room, parts) = (self.window_view(look), look.room, look.parts());
        let (heads, held) = (look.decl.kv_heads, look.held());
        let at = |offset: usize| self.scratch().at(offset);
        let name = self.of_type("sum");
        let launch = self.kernel("slake_window", &name)?.grid(parts, look.slake.heads, 1).block(THREADS);
        launch.shared(TILE_BYTES).arg(window).arg(at(room.sums)).launch()?;
        let width = look.slake.window;
        let launch = self.kernel("slake_window", "slake_log_sums")?.grid(look.slake.heads, 1, 1);
        let launch = launch.block(width.next_multiple_of(32)).arg(at(room.sums));
        launch.arg(parts as u32).arg(width as u32).arg(at(room.log_sums)).launch()?;
        let gamma = match look.eviction.order {
            EvictionOrder::Window { gamma } => gamma,
            EvictionOrder::Running | EvictionOrder::Recency => 0.0,
        };
        let name = self.of_type("spread");
        let launch = self.kernel("slake_window", &name)?.grid(parts, heads, 1).block(THREADS).shared(TILE_BYTES);
        let launch = launch.arg(window).arg(at(room.log_sums)).arg(gamma).arg(at(room.ranks));
        launch.arg(held as u32).arg(at(room.losses)).launch()?;
        let stayed = self.eviction_state.of_mut(look.holding.store).marks(look.eviction.slot).stayed;
        let launch = self.kernel("slake_window", "slake_pool")?.grid(held.div_ceil(THREADS), heads, 1).block(THREADS);
        let at = |offset: usize| self.scratch().at(offset);
        let launch = launch.arg(at(room.ranks)).arg(held as u32).arg(stayed as u32);
        launch.arg((held - look.asked.len()) as u32).arg(held as u32).arg(at(room.pooled)).launch()?;
        let mut losses = vec![0.0f64; parts * heads * 3];
        let (from, pooled) = (at(room.losses), at(room.pooled));
        self.device.download(from, &mut losses)?;
        if matches!(look.eviction.order, EvictionOrder::Window { .. }) {
            self.device.download(pooled, &mut found.ranks)?;
        }
        let sum = |which: usize| losses.iter().skip(which).step_by(3).sum::<f64>();
        let rows = (look.slake.heads * look.asked.len()) as f64;
        let (entropy, variance, mean_entropy) = (sum(0), sum(1), sum(2) / rows);
        found.preference = Preference { entropy, variance, shift: 0.0, mean_entropy };
        Ok(())
    }

    /// The scores of lately.
    fn remembered(&mut self, look: &Look<'_>, ranks: &mut [f32]) -> Result<(), DeviceError> {
        let (heads, held, capacity) = (look.decl.kv_heads, look.held(), look.slake.capacity);
        let Places { scores, .. } = self.eviction_state.of_mut(look.holding.store).places(look.eviction.slot);
        let mut all = vec![0.0f32; heads * capacity];
        self.device.download(scores, &mut all)?;
        for (ranks, scores) in ranks.chunks_exact_mut(held).zip(all.chunks_exact(capacity)) {
            ranks.fill(0.0);
            ranks.iter_mut().zip(scores).for_each(|(rank, score)| *rank = *score);
        }
        Ok(())
    }

    /// How far weights and values would move.
    fn shift(&mut self, look: &Look<'_>, gone: &[Vec<u32>]) -> Result<f64, DeviceError> {
        if look.count() == 0 || look.asked.is_empty() {
            return Ok(0.0);
        }
        let (window, room, parts) = (self.window_view(look), look.room, look.parts());
        let (heads, width, held) = (look.slake.heads, look.slake.window, look.held());
        let at = |offset: usize| self.scratch().at(offset);
        self.device.upload(at(room.gone), &gone.concat())?;
        self.device.fill(at(room.marked), 0, look.decl.kv_heads * held)?;
        let launch =
            self.kernel("slake_window", "slake_mark")?.grid(look.count().div_ceil(THREADS), look.decl.kv_heads, 1);
        let launch = launch.block(THREADS).arg(at(room.gone)).arg(look.count() as u32);
        launch.arg(held as u32).arg(at(room.marked)).launch()?;
        let losses = LossesView {
            log_sums: at(room.log_sums).0,
            marked: at(room.marked).0,
            stride: held as u32,
            gone: look.count() as u32,
        };
        let name = self.of_type("divide");
        let launch = self.kernel("slake_window", &name)?.grid(parts, heads, 1).block(THREADS).shared(TILE_BYTES);
        launch.arg(window).arg(losses).arg(at(room.losses)).launch()?;
        self.add_found((at(room.losses), parts), 2 * heads * width, at(room.divided))?;
        let name = self.of_type("move");
        let launch = self.kernel("slake_window", &name)?.grid(parts, heads, 1).block(THREADS).shared(TILE_BYTES);
        let launch = launch.arg(window).arg(losses).arg(at(room.divided)).arg(at(room.losses));
        launch.arg(at(room.lengths)).launch()?;
        self.add_found((at(room.losses), parts), 2 * heads * width, at(room.moved))?;
        let (mut moved, mut lengths) = (vec![0.0f64; 2 * heads * width], vec![0.0f64; parts * heads]);
        self.device.download(at(room.moved), &mut moved)?;
        self.device.download(at(room.lengths), &mut lengths)?;
        let mut sum = 0.0;
        for (head, of_head) in moved.chunks_exact(2 * width).enumerate() {
            let total: f64 = lengths.iter().skip(head).step_by(heads).sum();
            let of_query = |of: &[f64]| of[0] * (of[1] / total).powf(0.1);
            sum += of_head.chunks_exact(2).take(look.asked.len()).map(of_query).sum::<f64>();
        }
        Ok(sum / (heads * look.asked.len()) as f64)
    }

    fn add_found(&self, (from, parts): (Ptr, usize), count: usize, to: Ptr) -> Result<(), DeviceError> {
        let launch = self.kernel("slake_window", "slake_add")?.grid(count.div_ceil(THREADS), 1, 1).block(THREADS);
        launch.arg(from).arg(parts as u32).arg(count as u32).arg(to).launch()
    }

    /// The positions of the tokens that stayed in the last eviction.
    fn stayed(&mut self, look: &Look<'_>) -> Result<Stayed, DeviceError> {
        let eviction_state = self.eviction_state.of_mut(look.holding.store);
        let Marks { stayed: tokens, since, .. } = *eviction_state.marks(look.eviction.slot);
        let Places { positions: at, .. } = eviction_state.places(look.eviction.slot);
        let mut stayed = Stayed { positions: Vec::new(), capacity: look.slake.capacity, tokens: tokens as u32, since };
        if tokens > 0 {
            stayed.positions = vec![0; look.decl.kv_heads * look.slake.capacity];
            self.device.download(at, &mut stayed.positions)?;
        }
        Ok(stayed)
    }

    /// Which rows move where, by KV head; what will be where is remembered.
    fn settle(&mut self, look: &Look<'_>, found: &Found) -> Result<Vec<Vec<[u32; 2]>>, DeviceError> {
        let (keep, held, capacity) = (look.holding.keep as usize, look.held(), look.slake.capacity);
        assert!(keep <= capacity, "{keep} tokens stay, there is room to remember {capacity}");
        let stayed = self.stayed(look)?;
        let mut all = Vec::new();
        let (mut scores, mut positions) = (vec![0.0f32; look.decl.kv_heads * capacity], Vec::new());
        positions.resize(scores.len(), 0u32);
        for (head, gone) in found.gone.iter().enumerate() {
            let (ranks, first) = (&found.ranks[head * held..][..held], head * capacity);
            let moves: Vec<[u32; 2]> = look.holding.moves(gone).map(|(from, to)| [from, to]).collect();
            let stay = (0..keep as u32).map(|token| [token, token]);
            for [from, to] in stay.chain(moves.iter().copied()) {
                positions[first + to as usize] = stayed.position(head, from);
                scores[first + to as usize] = ranks[from as usize];
            }
            all.push(moves);
        }
        let places = self.eviction_state.of_mut(look.holding.store).places(look.eviction.slot);
        self.device.upload(places.scores, &scores)?;
        self.device.upload(places.positions, &positions)?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::store::MomentType;

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!((size_of::<WindowView>(), size_of::<LossesView>()), (80, 24));
    }

    fn layer(capacity: usize) -> (PagesDecl, Slake) {
        let slake = Slake { heads: 32, window: 32, capacity, moments: MomentType::F32 };
        let (layout, policy) = (kvas_backend::store::PageLayout::Separate, kvas_backend::store::Policy::Slake(slake));
        (PagesDecl { kv_heads: 8, key_dim: 128, value_dim: 128, layout, policy }, slake)
    }

    #[test]
    fn scores_that_do_not_fit_are_refused_when_a_program_is_prepared() {
        let scoring = |capacity| {
            let stores = vec![kvas_backend::StoreDecl::Pages(layer(capacity).0)];
            let program = Program { ops: vec![], acts: vec![], weights: vec![], stores, logits: kvas_backend::Act(0) };
            ScoreLaunch::of(&program, 228 << 10)
        };
        assert_eq!(scoring(1088).unwrap().at_once, SCORED);
        assert_eq!(scoring(50_000).unwrap().at_once, 1);
        assert_eq!(scoring(55_296).unwrap(), ScoreLaunch { heads: 8, capacity: 55_296, at_once: 1 });
        let refused = scoring(55_297).unwrap_err().to_string();
        assert!(refused.contains("scores of 55297 tokens, expected at most 55296"), "{refused}");
    }

    #[test]
    fn there_is_room_for_everything() {
        let (decl, slake) = layer(1088);
        let room = ScratchLayout::new(&decl, &slake, 1 << 17);
        assert!(room.lengths < room.bytes && room.bytes < 32 << 20, "{room:?}");
    }
}
