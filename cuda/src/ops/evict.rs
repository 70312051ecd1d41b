//! What goes of layers (ALGORITHMS 5.3, 5.4), several of them at once: it is summed up, and rows that stay move into the places
//! that became free. Where tokens came one by one, the device also finds out which go: nothing is waited for.

use crate::{device::Ptr, eviction::Places, machine::Machine, pages::PagesView};
use kvas_backend::{
    DeviceError, Eviction, EvictionOrder, Holding, Limits, Program, Store,
    store::{MomentType, PagesDecl, Slake},
};
use std::ops::Range;

/// `MEAN_PART` and `TILE` of `kernels/slake_absorb.cu`, and into how many parts its tokens are divided at most.
const MEAN_PART: usize = 512;
const TILE: usize = 64;
const MOST_PARTS: usize = 16;
/// Threads of a block of `slake_absorb.cu` and `slake_evict.cu`.
const THREADS: usize = 256;

/// `Absorb` of `kernels/slake_absorb.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct AbsorbView {
    pages: PagesView,
    table: u64,
    gone: u64,
    sums: u64,
    means: u64,
    products: u64,
    squares: u64,
    vectors: u64,
    covariances: u64,
    count: u32,
    parts: u32,
    each: u32,
    before: f32,
}

/// `Leaving` of `kernels/common/slake.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct LeavingView {
    layer: u32,
    table: u32,
    held: u32,
    keep: u32,
    stayed: u32,
    since: u32,
}

/// `Moving` of the same.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct MovingView {
    layers: u64,
    leaving: u64,
    tables: u64,
    gone: u64,
    moves: u64,
    counts: u64,
    heads: u32,
    most: u32,
}

/// Where things of one or more layers are in the scratch, in bytes from where it begins for them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EvictionScratch {
    /// `[layers]` of [`LeavingView`], then of [`AbsorbView`], then the tables: what the host brings.
    leaving: usize,
    absorb: usize,
    tables: usize,
    gone: usize,
    moves: usize,
    counts: usize,
    /// By layer: sums of parts, means, products and squares.
    sums: usize,
    of_sums: [usize; 4],
    bytes: usize,
}

/// The shape of what is evicted: the largest of each layer.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    heads: usize,
    key_dim: usize,
    value_dim: usize,
    /// Tokens that go, or rows that move, of a KV head.
    most: usize,
    /// Pages of a layer.
    pages: usize,
}

impl Extent {
    fn with(self, decl: &PagesDecl, (most, pages): (usize, usize)) -> Self {
        Self {
            heads: self.heads.max(decl.kv_heads),
            key_dim: self.key_dim.max(decl.key_dim),
            value_dim: self.value_dim.max(decl.value_dim),
            most: self.most.max(most),
            pages: self.pages.max(pages),
        }
    }

    fn parts(&self) -> usize {
        parts(self.most)
    }
}

/// Into how many parts so many tokens are divided.
fn parts(count: usize) -> usize {
    count.div_ceil(MEAN_PART).min(MOST_PARTS)
}

impl EvictionScratch {
    fn new(extent: Extent, layers: usize) -> Self {
        let Extent { heads, key_dim, value_dim, most, pages } = extent;
        let mut at = 0;
        let mut next = |bytes: usize| {
            at += bytes.next_multiple_of(256);
            at - bytes.next_multiple_of(256)
        };
        let (leaving, absorb) = (next(layers * size_of::<LeavingView>()), next(layers * size_of::<AbsorbView>()));
        let (tables, gone) = (next(4 * layers * pages), next(4 * layers * heads * most));
        let (moves, counts) = (next(8 * layers * heads * most), next(4 * layers * heads));
        let (columns, parts) = (key_dim + value_dim, extent.parts());
        let of_sums = [most.div_ceil(MEAN_PART) * columns, columns, parts * key_dim * value_dim, parts * key_dim]
            .map(|each| (4 * heads * each).next_multiple_of(256));
        let sums = next(layers * of_sums.iter().sum::<usize>());
        Self { leaving, absorb, tables, gone, moves, counts, sums, of_sums, bytes: at }
    }

    /// Where the sums of a layer are.
    fn of_sums(&self, number: usize) -> [usize; 4] {
        let mut at = self.sums + number * self.of_sums.iter().sum::<usize>();
        self.of_sums.map(|bytes| {
            at += bytes;
            at - bytes
        })
    }
}

/// Bytes of the scratch for what goes of a layer, whatever that is.
pub(super) fn scratch_bytes(program: &Program, store: Store, limits: &Limits) -> usize {
    let decl = program.pages(store);
    if decl.policy.eviction().is_none() {
        return 0;
    }
    let tokens = limits.most_held(program.page_stores());
    let extent = Extent::default().with(decl, (tokens, tokens.div_ceil(limits.page_size)));
    EvictionScratch::new(extent, 1).bytes
}

/// Most tokens of a KV head that the device chooses, one after the other.
const MOST_CHOSEN: u32 = 1024;

/// Whether the device can find out which tokens go of a layer: few enough, all of whose scores are remembered, and never one
/// that stays in any case.
fn is_short(eviction: &Eviction<'_>, holding: &Holding<'_>, slake: Slake) -> bool {
    !matches!(eviction.order, EvictionOrder::Window { .. })
        && holding.held as usize <= slake.capacity
        && holding.keep >= eviction.sinks + eviction.window
        && holding.held - holding.keep <= MOST_CHOSEN
}

/// What goes of a layer, as the host has chosen it: the rows of each KV head that go, ascending, and those that move.
pub(super) struct Chosen {
    pub(super) gone: Vec<Vec<u32>>,
    /// From, to.
    pub(super) moves: Vec<Vec<[u32; 2]>>,
}

impl Machine {
    /// Whether the device finds out which tokens go.
    pub(super) fn chooses(&self, eviction: &Eviction<'_>) -> bool {
        let slake = |holding: &Holding<'_>| self.program.pages(holding.store).policy.slake().copied();
        eviction.holdings.iter().all(|holding| slake(holding).is_some_and(|slake| is_short(eviction, holding, slake)))
    }

    /// Gives up what the device chooses, of as many layers at once as there is scratch for.
    pub(super) fn evict_again(&mut self, eviction: &Eviction<'_>) -> Result<(), DeviceError> {
        let extent = self.extent(eviction.holdings);
        let at_once = (1..=eviction.holdings.len())
            .take_while(|layers| EvictionScratch::new(extent, *layers).bytes <= self.scratch_size());
        let at_once = at_once.last().unwrap_or(1);
        for holdings in eviction.holdings.chunks(at_once) {
            let room = EvictionScratch::new(extent, holdings.len());
            let moving = self.bring(eviction, holdings, (room, extent))?;
            let by_scores = u32::from(eviction.order == EvictionOrder::Running);
            let window = eviction.context.saturating_sub(eviction.window);
            let launch =
                self.kernel("slake_evict", "slake_choose")?.grid(extent.heads, holdings.len(), 1).block(THREADS);
            let launch =
                launch.shared(8 * extent.most.next_multiple_of(4)).arg(moving).arg(eviction.slot.0).arg(eviction.sinks);
            launch.arg(window).arg(by_scores).launch()?;
            self.give(eviction, holdings, (room, extent, moving))?;
        }
        Ok(())
    }

    /// Gives up what the host has chosen of a layer.
    pub(super) fn evict_chosen(
        &mut self,
        eviction: &Eviction<'_>,
        holding: &Holding<'_>,
        Chosen { gone, moves }: &Chosen,
    ) -> Result<(), DeviceError> {
        let holdings = std::slice::from_ref(holding);
        let extent = self.extent(holdings);
        let room = EvictionScratch::new(extent, 1);
        let moving = self.bring(eviction, holdings, (room, extent))?;
        self.device.upload(Ptr(moving.gone), &gone.concat())?;
        for (head, moves) in moves.iter().enumerate() {
            self.device.upload(Ptr(moving.moves).at(8 * head * extent.most), moves.as_flattened())?;
        }
        let counts: Vec<u32> = moves.iter().map(|moves| moves.len() as u32).collect();
        self.device.upload(Ptr(moving.counts), &counts)?;
        self.give(eviction, holdings, (room, extent, moving))
    }

    /// Sums up tokens of a layer, the same of all KV heads, which go in another way.
    pub(super) fn absorb_tokens(
        &mut self,
        eviction: &Eviction<'_>,
        holding: &Holding<'_>,
        gone: Range<usize>,
    ) -> Result<(), DeviceError> {
        let holdings = std::slice::from_ref(holding);
        let extent = self.extent(holdings);
        let room = EvictionScratch::new(extent, 1);
        let moving = self.bring(eviction, holdings, (room, extent))?;
        let of_head: Vec<u32> = (gone.start as u32..gone.end as u32).collect();
        self.device.upload(Ptr(moving.gone), &of_head.repeat(extent.heads))?;
        self.absorb(self.moments(holdings), (room, extent), 1)
    }

    fn extent(&self, holdings: &[Holding<'_>]) -> Extent {
        holdings.iter().fold(Extent::default(), |extent, holding| {
            let goes = (holding.held - holding.keep) as usize;
            extent.with(self.program.pages(holding.store), (goes, holding.table.len()))
        })
    }

    /// How sums are stored: in the same way of all layers.
    fn moments(&self, holdings: &[Holding<'_>]) -> MomentType {
        let slake = holdings.first().and_then(|holding| self.program.pages(holding.store).policy.eviction());
        slake.map_or(MomentType::Off, |slake| slake.moments)
    }

    /// Brings what kernels have to know of layers.
    fn bring(
        &mut self,
        eviction: &Eviction<'_>,
        holdings: &[Holding<'_>],
        (room, extent): (EvictionScratch, Extent),
    ) -> Result<MovingView, DeviceError> {
        let scratch = self.scratch();
        assert!(room.bytes <= self.scratch_size(), "{room:?}: there are {} bytes", self.scratch_size());
        let (mut leaving, mut absorb, mut tables) = (Vec::new(), Vec::new(), Vec::<u32>::new());
        for (number, holding) in holdings.iter().enumerate() {
            let layer = self.program.bounded_stores().take_while(|store| *store != holding.store).count();
            let marks = self.eviction_state.of_mut(holding.store).marks(eviction.slot);
            leaving.push(LeavingView {
                layer: layer as u32,
                table: tables.len() as u32,
                held: holding.held,
                keep: holding.keep,
                stayed: marks.stayed as u32,
                since: marks.since,
            });
            let gone = scratch.at(room.gone + 4 * number * extent.heads * extent.most);
            let from = [scratch.at(room.tables + 4 * tables.len()), gone];
            absorb.push(self.absorb_view(eviction, holding, (from, room.of_sums(number))));
            tables.extend(holding.table.iter().map(|page| page.0));
        }
        let mut bytes: Vec<u8> = bytemuck::cast_slice(&leaving).to_vec();
        bytes.resize(room.absorb, 0);
        bytes.extend_from_slice(bytemuck::cast_slice(&absorb));
        bytes.resize(room.tables, 0);
        bytes.extend_from_slice(bytemuck::cast_slice(&tables));
        self.device.upload(scratch, &bytes)?;
        let (layers, _) = self.eviction_state.layers();
        Ok(MovingView {
            layers: layers.0,
            leaving: scratch.at(room.leaving).0,
            tables: scratch.at(room.tables).0,
            gone: scratch.at(room.gone).0,
            moves: scratch.at(room.moves).0,
            counts: scratch.at(room.counts).0,
            heads: extent.heads as u32,
            most: extent.most as u32,
        })
    }

    /// What goes of a layer, for its sums, which have as many tokens more from here on; `from`: its table, and the tokens.
    fn absorb_view(
        &mut self,
        eviction: &Eviction<'_>,
        holding: &Holding<'_>,
        ([table, gone], sums): ([Ptr; 2], [usize; 4]),
    ) -> AbsorbView {
        let scratch = self.scratch();
        let eviction_state = self.eviction_state.of_mut(holding.store);
        let keeps = eviction.absorb && eviction_state.moments() != MomentType::Off;
        let count = if keeps { (holding.held - holding.keep) as usize } else { 0 };
        let Places { vectors, covariances, .. } = eviction_state.places(eviction.slot);
        let marks = eviction_state.marks_mut(eviction.slot);
        let before = marks.count;
        marks.count += count as f32;
        let [sums, means, products, squares] = sums.map(|at| scratch.at(at).0);
        let parts = parts(count);
        AbsorbView {
            pages: self.pages.view(self.program.pages(holding.store)),
            table: table.0,
            gone: gone.0,
            sums,
            means,
            products,
            squares,
            vectors: vectors.0,
            covariances: covariances.0,
            count: count as u32,
            parts: parts as u32,
            each: count.div_ceil(parts.max(1)) as u32,
            before,
        }
    }

    /// Sums up what goes, and moves what stays.
    fn give(
        &mut self,
        eviction: &Eviction<'_>,
        holdings: &[Holding<'_>],
        (room, extent, moving): (EvictionScratch, Extent, MovingView),
    ) -> Result<(), DeviceError> {
        if eviction.absorb {
            self.absorb(self.moments(holdings), (room, extent), holdings.len())?;
        }
        for holding in holdings {
            self.eviction_state.of_mut(holding.store).settled(eviction, holding.keep);
        }
        if extent.most == 0 {
            return Ok(());
        }
        let name = format!("slake_compact_{}", self.pages.kv_type().name());
        let blocks = extent.most.div_ceil(THREADS / 32);
        let launch = self.kernel("slake_absorb", &name)?.grid(blocks, extent.heads, holdings.len()).block(THREADS);
        launch.arg(moving).launch()
    }

    /// Adds what goes to the moments.
    fn absorb(
        &self,
        moments: MomentType,
        (room, extent): (EvictionScratch, Extent),
        layers: usize,
    ) -> Result<(), DeviceError> {
        let Extent { heads, key_dim, value_dim, most, .. } = extent;
        if most == 0 {
            return Ok(());
        }
        let merge = match moments {
            MomentType::Off => return Ok(()),
            MomentType::F16 => "slake_merge_f16",
            MomentType::F32 => "slake_merge_f32",
        };
        let tiles = key_dim.div_ceil(TILE) * value_dim.div_ceil(TILE);
        let of_type = |name: &str| format!("slake_{name}_{}", self.pages.kv_type().name());
        let launches = [
            (of_type("sum_rows"), most.div_ceil(MEAN_PART)),
            ("slake_mean".into(), 1),
            (of_type("multiply"), tiles * extent.parts()),
            (merge.into(), (key_dim * value_dim).div_ceil(THREADS)),
            ("slake_vectors".into(), 1),
        ];
        launches.iter().try_for_each(|(name, blocks)| {
            let launch = self.kernel("slake_absorb", name)?.grid(*blocks, heads, layers).block(THREADS);
            launch.arg(self.scratch().at(room.absorb)).launch()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::store::{PageLayout, Policy};

    #[test]
    fn kernels_are_given_what_they_expect() {
        let sizes = (size_of::<AbsorbView>(), size_of::<LeavingView>(), size_of::<MovingView>());
        assert_eq!(sizes, (120, 24, 56));
    }

    /// The kernel has shared memory for so many, and takes its time for each.
    #[test]
    fn the_host_chooses_where_many_go_or_scores_are_not_remembered() {
        let chooses = |order, held, keep| {
            let (slot, context, window, sinks) = (kvas_backend::Slot(0), 90_000, 32, 4);
            let (absorb, mass_cap, holdings) = (true, 0.0, &[][..]);
            let eviction = Eviction { slot, context, window, sinks, order, absorb, mass_cap, holdings };
            let slake = Slake { heads: 8, window: 32, capacity: 4144, moments: MomentType::F32 };
            is_short(&eviction, &Holding { store: Store(0), table: &[], held, keep }, slake)
        };
        assert!(
            chooses(EvictionOrder::Running, 976, 960)
                && chooses(EvictionOrder::Recency, 4144, 3120)
                && chooses(EvictionOrder::Running, 36, 36)
        );
        assert!(!chooses(EvictionOrder::Window { gamma: 200.0 }, 976, 960));
        assert!(!chooses(EvictionOrder::Recency, 4145, 4144) && !chooses(EvictionOrder::Recency, 4144, 3119));
        assert!(!chooses(EvictionOrder::Running, 51, 35));
    }

    #[test]
    fn layers_have_rooms_of_their_own() {
        let slake = Slake { heads: 32, window: 32, capacity: 1088, moments: MomentType::F32 };
        let (layout, policy) = (PageLayout::Separate, Policy::Slake(slake));
        let decl = PagesDecl { kv_heads: 8, key_dim: 128, value_dim: 64, layout, policy };
        for (most, layers) in [(16, 32), (0, 2), (513, 3), (1 << 17, 1)] {
            let extent = Extent::default().with(&decl, (most, 70));
            let room = EvictionScratch::new(extent, layers);
            let ends: Vec<usize> = (0..layers).flat_map(|number| room.of_sums(number)).chain([room.bytes]).collect();
            let products = 4 * 8 * 128 * 64 * extent.parts();
            for sums in ends.chunks(4).filter(|sums| sums.len() == 4) {
                assert!(sums[3] - sums[2] >= products && sums[1] - sums[0] >= 4 * 8 * 192 * most.div_ceil(MEAN_PART));
            }
            assert!(ends.is_sorted() && ends[0] == room.sums, "{room:?}");
            assert!(room.moves - room.gone >= 4 * layers * 8 * most && room.gone - room.tables >= 4 * layers * 70);
            assert!(room.counts - room.moves >= 8 * layers * 8 * most && room.tables - room.absorb >= 120 * layers);
        }
        let few = EvictionScratch::new(Extent::default().with(&decl, (16, 70)), 32);
        assert!(few.bytes < 32 << 20, "{few:?}");
    }
}
