//! Delta rules and state-space recurrences.

use crate::{
    device::failed,
    machine::Machine,
    ops::fusion::Fusion,
    slots::{self, Kind, RING_TYPE, State},
};
use kvas_backend::{
    Act, Cursor, DeviceError, Entry, Limits, Program, Slot, Span, StateType, Store, StoreDecl, Weight,
    op::{self, HeadMap},
    store::{Decay, StateDecl},
};

/// `CHUNK` of `kernels/common/recurrence.cuh`.
const CHUNK: usize = kvas_backend::CHUNK;
/// Threads of a block of `recurrence_rows.cuh` and of `recurrence_prepare.cuh`.
const THREADS: usize = 128;
/// Most rows of a span of the kernels for many blocks: `SHORT` of `recurrence_rows.cuh`.
const SHORT: usize = 8;
/// Rows of the state that a lane has a part of in them.
const MANY: usize = 4;
/// The same of states in f16, which take half of the registers.
const EIGHT: usize = 8;
/// Blocks that a multiprocessor has registers for: `__launch_bounds__` of `recurrence_row.cuh`, and with [`EIGHT`] rows to a lane.
const AT_ONCE: usize = 4;
/// Elements between keys of entries in shared memory: `ENTRY_COLUMNS` of `recurrence_rows.cuh`.
const BETWEEN_KEYS: usize = 32;
/// Rows of the state that matrix instructions have in one warp.
const TILE: usize = 16;
/// Warps that share rows in `recurrence_prompt.cuh`, and most rows of a block there.
const SHARES: usize = 2;
const PROMPT_ROWS: usize = 80;

/// `Recurrence` of `kernels/common/recurrence.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct RecurrenceView {
    inputs: u64,
    columns: u32,
    queries_at: u32,
    keys_at: u32,
    values_at: u32,
    steps: u64,
    beta: u64,
    bias: u64,
    a: u64,
    skip: u64,
    out: u64,
    state: u64,
    ring_u: u64,
    ring_k: u64,
    ring_g: u64,
    ring: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    tiled: u32,
    norm_eps: f32,
    group: u32,
    query_scale: f32,
    reciprocal: u32,
}

impl RecurrenceView {
    /// Whether rows do not all begin at multiples of 16 bytes: `is_loose` of `recurrence_rows.cuh`. Kernels for long spans only take
    /// such ones.
    fn is_loose(&self) -> bool {
        let Self { columns, queries_at, keys_at, values_at, key_dim, value_dim, .. } = self;
        (columns | queries_at | keys_at | values_at | key_dim | value_dim) % 4 != 0
    }
}

/// What an op computes, see `RecurrenceView`.
struct Inputs {
    inputs: Act,
    queries_at: usize,
    keys_at: usize,
    values_at: usize,
    steps: Act,
    beta: Option<Act>,
    bias: Weight,
    a: Weight,
    skip: Option<Weight>,
    norm_eps: f32,
    out: Act,
}

/// `Fold` of `kernels/common/recurrence.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct FoldView {
    slot: u32,
    base: u32,
    held: u32,
    padding: u32,
}

/// `Prompt` of `kernels/common/recurrence_chunks.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct PromptView {
    keys: u64,
    heads: u64,
    begin: u32,
    end: u32,
    first_span: u32,
    stages: u16,
    is_first: u16,
}

/// Rows of a step whose chunks are prepared together, and bytes of `ChunkHead` in `recurrence_chunks.cuh`.
const PREPARED: usize = 2048;
const HEAD_BYTES: usize = 4 * CHUNK * CHUNK * 2 + 4 * CHUNK * 4;

/// Whether whole chunks of prompts have kernels of their own: `has_prompts` of `recurrence.cuh`.
fn has_prompts(decl: &StateDecl) -> bool {
    match decl.decay {
        Decay::PerHead => true,
        Decay::PerChannel => decl.key_dim <= 128,
        Decay::Rates(_) => false,
    }
}

/// Bytes of the keys and queries, and of the heads, of all chunks that are prepared together.
fn prepared_bytes(decl: &StateDecl, rows: usize) -> [usize; 2] {
    let chunks = rows.min(PREPARED).div_ceil(CHUNK);
    let columns = COLUMNS.into_iter().find(|columns| decl.key_dim <= *columns).unwrap_or(0);
    let keys = match decl.decay {
        Decay::PerChannel => decl.value_heads * chunk_keys(decl, columns),
        Decay::PerHead | Decay::Rates(_) => decl.key_heads * chunk_keys(decl, columns),
    };
    [chunks * keys, chunks * decl.value_heads * HEAD_BYTES]
}

/// Bytes of `ChunkKeys` of `recurrence_chunks.cuh`.
fn chunk_keys(decl: &StateDecl, columns: usize) -> usize {
    let (squares, whole) = if decl.decay == Decay::PerChannel { (6, 2) } else { (4, 0) };
    2 * (squares * CHUNK + whole) * columns
}

/// Scratch for prompts: what does not depend on the state.
pub(crate) fn scratch_bytes(program: &Program, store: Store, limits: &Limits) -> u64 {
    let StoreDecl::State(decl) = program.store(store) else { panic!("validated: a state store") };
    if !has_prompts(decl) {
        return 0;
    }
    // What comes next is prepared while states go through what was prepared before.
    let sets = if limits.rows > PREPARED { 2 } else { 1 };
    sets * prepared_bytes(decl, limits.rows).iter().sum::<usize>() as u64
}

/// Files of kernels for the state of a recurrence.
pub(crate) fn units(program: &Program, store: Store, is_mamba2: bool, limits: &Limits) -> Vec<&'static str> {
    let StoreDecl::State(decl) = program.store(store) else { panic!("validated: a state store") };
    let mut units = slots::units(limits);
    let kind = if is_mamba2 { Kind::Mamba2 } else { Kind::Delta };
    units.push(unit(kind, decl.decay, limits.state_type));
    units
}

/// The file of a recurrence.
fn unit(kind: Kind, decay: Decay, state_type: StateType) -> &'static str {
    match (decay, kind, state_type) {
        (Decay::Rates(_), _, _) | (_, Kind::Mamba1, _) => "mamba1",
        (_, Kind::Mamba2, StateType::F32) => "mamba2_f32",
        (_, Kind::Mamba2, StateType::F16) => "mamba2_f16",
        (Decay::PerHead, Kind::Delta, StateType::F32) => "delta_f32",
        (Decay::PerHead, Kind::Delta, StateType::F16) => "delta_f16",
        (Decay::PerChannel, Kind::Delta, StateType::F32) => "delta_per_channel_f32",
        (Decay::PerChannel, Kind::Delta, StateType::F16) => "delta_per_channel_f16",
    }
}

/// Columns of a key that kernels are made for.
const COLUMNS: [usize; 3] = [64, 128, 256];

/// Those of the kernel for a state.
fn columns(decl: &StateDecl) -> Result<usize, DeviceError> {
    COLUMNS
        .into_iter()
        .find(|columns| decl.key_dim <= *columns)
        .ok_or_else(|| failed(format!("a recurrence with keys of {} columns, at most 256 can be", decl.key_dim)))
}

/// Bytes of `Shared` of `recurrence_rows.cuh`, with `most` rows that are solved together.
fn shared_bytes(decl: &StateDecl, columns: usize, rows: usize, most: usize) -> usize {
    let is_per_channel = decl.decay == Decay::PerChannel;
    let of_g = |rows: usize| if is_per_channel { rows * columns } else { CHUNK };
    let read = if most > SHORT { rows } else { 16 };
    let of_rows = most * (2 * columns + rows + 2 * read + 2 * most + 2 * CHUNK + CHUNK) + of_g(most);
    let (own, faded) = if is_per_channel { ((most + 2) * columns, CHUNK * columns) } else { (2 * 4 + 2, 4) };
    let entries = RING_TYPE.bytes() * ((CHUNK + most) * (columns + BETWEEN_KEYS) + CHUNK * rows);
    4 * (of_rows + own + 3 + faded + of_g(CHUNK) + 4 * CHUNK) + entries
}

/// Bytes of shared memory of `recurrence_prepare.cuh`, or of `recurrence_channels.cuh`.
fn prepare_bytes(decl: &StateDecl, columns: usize) -> usize {
    let taken = 4 * CHUNK * (CHUNK + 4);
    if decl.decay == Decay::PerChannel {
        return 4 * columns * (1 + CHUNK * CHUNK / 32) + HEAD_BYTES + taken;
    }
    let heads = (decl.value_heads / decl.key_heads).min(THREADS / CHUNK);
    4 * CHUNK * row_stride(columns) * 2 + 4 * 2 * CHUNK * (CHUNK + 1) + heads * (HEAD_BYTES + taken)
}

/// Bytes of shared memory of `recurrence_prompt.cuh`, with `rows` rows of a state to a block and as many chunks as `stages`.
fn prompt_bytes(decl: &StateDecl, columns: usize, rows: usize, stages: usize) -> usize {
    let is_per_channel = decl.decay == Decay::PerChannel;
    let squares = if is_per_channel { 6 } else { 4 };
    let whole = if is_per_channel { 4 * columns } else { 0 };
    let stage = squares * CHUNK * row_stride(columns) * 2 + HEAD_BYTES + whole + 4 * CHUNK * (rows + 4);
    stages * stage + rows / TILE * SHARES * 3 * 32 * 16
}

/// Rows of a state that a block has in a prompt, of so many spans: as many as leave no multiprocessor without a block, all blocks of a
/// head with as many if they can. Results do not depend on it.
fn prompt_rows(decl: &StateDecl, spans: usize, multiprocessors: usize) -> usize {
    let shared_out = |most: usize| decl.value_dim.div_ceil(decl.value_dim.div_ceil(most)).next_multiple_of(TILE);
    let blocks = |rows: usize| decl.value_dim.div_ceil(rows) * decl.value_heads * spans;
    let is_enough = |rows: &usize| 3 * blocks(*rows) >= 2 * multiprocessors;
    [PROMPT_ROWS, 2 * TILE].map(shared_out).into_iter().find(is_enough).unwrap_or(TILE)
}

/// Chunks that a block has in shared memory, of which a device lets it have so many bytes: three where they have room, so that two
/// are on the way while one is worked on.
fn stages(decl: &StateDecl, columns: usize, bytes: usize) -> usize {
    if prompt_bytes(decl, columns, PROMPT_ROWS, 3) <= bytes { 3 } else { 2 }
}

/// `row_stride` of `recurrence_tile.cuh`.
const fn row_stride(columns: usize) -> usize {
    columns + 8
}

/// 2^32 by `divisor`, rounded up: what a number below 2^16 is multiplied with instead of being divided. 0 by 1.
fn reciprocal(divisor: usize) -> u32 {
    (1u64 << 32).div_ceil(divisor as u64) as u32
}

impl State {
    fn unit(&self) -> &'static str {
        unit(self.kind, self.decl.decay, self.state_type)
    }

    fn view(&self) -> RecurrenceView {
        let [state, u, k, g] = self.places().map(|place| place.0);
        let group = self.decl.value_heads / self.decl.key_heads;
        let is_tiled = self.head_map == HeadMap::Tiled;
        RecurrenceView {
            state,
            ring_u: u,
            ring_k: k,
            ring_g: g,
            ring: self.ring as u32,
            key_heads: self.decl.key_heads as u32,
            value_heads: self.decl.value_heads as u32,
            key_dim: self.decl.key_dim as u32,
            value_dim: self.decl.value_dim as u32,
            tiled: u32::from(is_tiled),
            group: group as u32,
            reciprocal: reciprocal(if is_tiled { self.decl.key_heads } else { group }),
            query_scale: 1.0 / (self.decl.key_dim as f32).sqrt(),
            ..RecurrenceView::default()
        }
    }
}

/// A kernel, the rows of the state and the threads of its blocks, and their shared memory.
struct Blocks {
    name: String,
    rows: usize,
    threads: usize,
    shared: usize,
}

/// The kernel for spans of several rows that stay in the ring. Its blocks have all rows of a head if these are no more than usual:
/// what rows of a span have to do with each other and with the ring costs as much as what they ask the state.
fn several_rows(state: &State, is_long: bool) -> Result<Blocks, DeviceError> {
    let (decl, columns) = (&state.decl, columns(&state.decl)?);
    let warps = if is_long || columns > 128 || columns == 128 && decl.value_dim > 64 { 8 } else { 4 };
    let lane_rows = if columns > 128 { 2 } else { 4 };
    let rows = 4 * warps * lane_rows;
    let kind = if is_long { "long".into() } else { format!("{warps}{}", end(is_whole(decl, rows))) };
    let name = format!("{}_{columns}_several_{kind}", state.unit());
    let shared = shared_bytes(decl, columns, rows, if is_long { CHUNK } else { SHORT });
    Ok(Blocks { name, rows, threads: 32 * warps, shared })
}

/// Whether keys have all columns of their kernels, and blocks of so many rows all of theirs: `WHOLE_ROWS` of `recurrence_state.cuh`.
fn is_whole(decl: &StateDecl, rows: usize) -> bool {
    decl.key_dim == 128 && decl.value_dim.is_multiple_of(rows)
}

/// The end of the names of kernels for that.
fn end(is_whole: bool) -> &'static str {
    if is_whole { "_whole" } else { "" }
}

/// Threads of blocks with [`EIGHT`] rows to a lane, which have all rows of most heads.
fn threads_of_eight(kind: Kind) -> usize {
    if kind == Kind::Mamba2 { THREADS / 2 } else { THREADS }
}

impl Machine {
    pub(crate) fn gated_delta(&mut self, op: &op::GatedDelta) -> Result<(), DeviceError> {
        let decl = self.slots.state(op.store).decl;
        let keys = decl.key_heads * decl.key_dim;
        let inputs = Inputs {
            inputs: op.qkv,
            queries_at: 0,
            keys_at: keys,
            values_at: 2 * keys,
            steps: op.alpha,
            beta: Some(op.beta),
            bias: op.dt,
            a: op.a,
            skip: None,
            norm_eps: op.norm_eps,
            out: op.out,
        };
        self.recur(op.store, &inputs)
    }

    pub(crate) fn mamba2(&mut self, op: &op::Mamba2) -> Result<(), DeviceError> {
        let decl = self.slots.state(op.store).decl;
        let (values, keys) = (decl.value_heads * decl.value_dim, decl.key_heads * decl.key_dim);
        let inputs = Inputs {
            inputs: op.xbc,
            queries_at: values + keys,
            keys_at: values,
            values_at: 0,
            steps: op.dt,
            beta: None,
            bias: op.dt_bias,
            a: op.a,
            skip: Some(op.d),
            norm_eps: 0.0,
            out: op.out,
        };
        self.recur(op.store, &inputs)
    }

    fn recur(&self, store: Store, inputs: &Inputs) -> Result<(), DeviceError> {
        let state = self.slots.state(store);
        let view = RecurrenceView {
            inputs: self.act(inputs.inputs).0,
            columns: self.columns(inputs.inputs) as u32,
            queries_at: inputs.queries_at as u32,
            keys_at: inputs.keys_at as u32,
            values_at: inputs.values_at as u32,
            steps: self.act(inputs.steps).0,
            beta: inputs.beta.map_or(0, |beta| self.act(beta).0),
            bias: self.matrix(inputs.bias).at().0,
            a: self.matrix(inputs.a).at().0,
            skip: self.optional(inputs.skip).0,
            norm_eps: inputs.norm_eps,
            out: self.act(inputs.out).0,
            ..state.view()
        };
        if let Some(fusion) = self.running.and_then(|at| self.made_by(at)) {
            return self.recur_rows(state, view, fusion);
        }
        let has_chunks = has_prompts(&state.decl);
        if has_chunks {
            self.recur_prompts(state, view)?;
        }
        let left = |(span, entry): (&Span, &Entry)| {
            let rows = span.rows as usize;
            (if has_chunks && entry.is_final { rows % CHUNK } else { rows }, entry.is_final)
        };
        // Several rows that stay in the ring have kernels of their own.
        let is_several = |(rows, is_final): (usize, bool)| !is_final && (2..CHUNK).contains(&rows);
        let spans = self.step.spans();
        // Long spans take much longer, and are few.
        let single = [(1, 1, false), (2, usize::MAX, false)];
        let several = [(2, SHORT, true), (SHORT + 1, CHUNK - 1, true)];
        for (least, most, several) in single.into_iter().chain(several) {
            let is_wanted = |of: &(usize, bool)| (least..=most).contains(&of.0) && is_several(*of) == several;
            let wanted = spans.iter().zip(&self.entries).map(left).filter(is_wanted).count();
            if wanted == 0 {
                continue;
            }
            let is_long = most > SHORT || view.is_loose();
            let kernel = match several {
                true => several_rows(state, is_long)?,
                false => self.recurrence(state, (wanted, most > 1 || is_long))?,
            };
            self.kernel(state.unit(), &kernel.name)?
                .grid(state.decl.value_dim.div_ceil(kernel.rows), state.decl.value_heads, spans.len())
                .block(kernel.threads)
                .early()
                .shared(kernel.shared)
                .arg(self.view())
                .arg(view)
                .arg(FoldView::default())
                .arg(least as u32)
                .arg(most.min(u32::MAX as usize) as u32)
                .launch()?;
        }
        Ok(())
    }

    /// Spans of one row each, with what is around.
    fn recur_rows(&self, state: &State, view: RecurrenceView, fusion: &Fusion) -> Result<(), DeviceError> {
        let (decl, columns, spans) = (&state.decl, columns(&state.decl)?, self.step.spans().len());
        let normed = if fusion.has_norm() { "normed_" } else { "" };
        self.kernel(state.unit(), &format!("{}_{columns}_{normed}row", state.unit()))?
            .grid(decl.value_dim.div_ceil(16), decl.value_heads, spans)
            .block(THREADS)
            .early()
            .shared(shared_bytes(decl, columns, 16, SHORT))
            .arg(self.view())
            .arg(view)
            .arg(self.fusion_view(fusion))
            .launch()
    }

    /// The whole chunks of spans that go straight into the state: for all of some rows at once what does not depend on
    /// it, then one after the other.
    fn recur_prompts(&self, state: &State, view: RecurrenceView) -> Result<(), DeviceError> {
        let (decl, columns) = (&state.decl, columns(&state.decl)?);
        let [keys, heads] = prepared_bytes(decl, self.limits.rows);
        let stages = stages(decl, columns, self.device.shared_bytes());
        let long = |(number, ((first, span), entry)): (usize, ((usize, Span), &Entry))| {
            let rows = span.rows as usize / CHUNK * CHUNK;
            (entry.is_final && rows > 0).then_some((number, first, first + rows))
        };
        let rows = self.step.tokens().len();
        let mut launched = 0;
        for begin in (0..rows).step_by(PREPARED) {
            let end = rows.min(begin + PREPARED);
            let long = self.step.spans_with_rows().zip(&self.entries).enumerate().filter_map(long);
            let mut inside = long.filter(|(_, first, last)| *first < end && begin < *last).map(|(number, ..)| number);
            let Some(first_span) = inside.next() else { continue };
            let spans = inside.last().unwrap_or(first_span) + 1 - first_span;
            let set = self.scratch().at(launched % 2 * (keys + heads));
            let prompt = PromptView {
                keys: set.0,
                heads: set.at(keys).0,
                begin: begin as u32,
                end: end as u32,
                first_span: first_span as u32,
                stages: stages as u16,
                is_first: u16::from(launched == 0),
            };
            launched += 1;
            let name = format!("{}_{columns}_prepare", state.unit());
            let (heads, threads) = match decl.decay {
                Decay::PerChannel => (decl.value_heads, columns),
                Decay::PerHead | Decay::Rates(_) => (decl.key_heads, THREADS),
            };
            let launch = self.kernel(state.unit(), &name)?.grid((end - begin).div_ceil(CHUNK), heads, spans);
            let launch = launch.block(threads).early().shared(prepare_bytes(decl, columns));
            launch.arg(self.view()).arg(view).arg(prompt).launch()?;
            let name = format!("{}_{columns}_prompt", state.unit());
            let rows = prompt_rows(decl, spans, self.device.multiprocessors());
            let blocks = decl.value_dim.div_ceil(rows);
            let launch = self.kernel(state.unit(), &name)?.grid(blocks, decl.value_heads, spans);
            let launch =
                launch.block(32 * (SHARES * rows / TILE + 1)).early().shared(prompt_bytes(decl, columns, rows, stages));
            launch.arg(self.view()).arg(view).arg(prompt).launch()?;
        }
        Ok(())
    }

    /// The kernel for some spans, that may be long, but are not several rows that stay in the ring. Results do not depend on how
    /// many rows a block has.
    fn recurrence(&self, state: &State, (spans, long): (usize, bool)) -> Result<Blocks, DeviceError> {
        let columns = columns(&state.decl)?;
        let (lane_rows, threads, most) = match long || columns > 128 || self.has_few_blocks(&state.decl, spans) {
            true => (1, THREADS, CHUNK),
            false if self.has_eight(state, spans) => (EIGHT, threads_of_eight(state.kind), SHORT),
            false => (MANY, THREADS, SHORT),
        };
        let rows = threads / 8 * lane_rows;
        let end = end(lane_rows > 1 && is_whole(&state.decl, rows));
        let name = format!("{}_{columns}_x{lane_rows}{end}", state.unit());
        Ok(Blocks { name, rows, threads, shared: shared_bytes(&state.decl, columns, rows, most) })
    }

    /// Whether blocks have [`EIGHT`] rows to a lane: of states in f16, which have registers for them, if the blocks are as many as run
    /// at once.
    fn has_eight(&self, state: &State, spans: usize) -> bool {
        let (decl, threads) = (&state.decl, threads_of_eight(state.kind));
        let rows = threads / 8 * EIGHT;
        let is_made = state.kind != Kind::Mamba1 && state.state_type == StateType::F16 && is_whole(decl, rows);
        let at_once = AT_ONCE * THREADS / threads * self.device.multiprocessors();
        is_made && spans * decl.value_heads * decl.value_dim / rows >= at_once
    }

    /// Whether blocks of [`MANY`] rows of the state to a lane are too few to keep the GPU busy, of so many spans.
    fn has_few_blocks(&self, decl: &StateDecl, spans: usize) -> bool {
        let blocks = spans * decl.value_heads * decl.value_dim.div_ceil(16 * MANY);
        blocks < 2 * self.device.multiprocessors()
    }

    /// Whether all blocks of one row to a lane run at once. Where they do not, what they do for a convolution and a norm costs more
    /// than the launches of these (qwen3.5-4b on an H200: one sequence takes 0.96 times as long with it, four take 1.04 times).
    pub(super) fn runs_at_once(&self, decl: &StateDecl, spans: usize) -> bool {
        spans * decl.value_heads * decl.value_dim.div_ceil(16) <= AT_ONCE * self.device.multiprocessors()
    }

    /// Folds the committed entries of a slot's ring into its checkpoint.
    pub(crate) fn fold(&self, store: Store, slot: Slot, held: Cursor) -> Result<(), DeviceError> {
        let state = self.slots.state(store);
        if state.kind == Kind::Mamba1 {
            return self.fold_scan(state, slot, held);
        }
        let view = state.view();
        let kernel = self.recurrence(state, (1, view.is_loose()))?;
        let fold = FoldView { slot: slot.0, base: held.base as u32, held: held.held as u32, padding: 0 };
        self.kernel(state.unit(), &kernel.name)?
            .grid(state.decl.value_dim.div_ceil(kernel.rows), state.decl.value_heads, 1)
            .block(kernel.threads)
            .early()
            .shared(kernel.shared)
            .arg(self.view())
            .arg(view)
            .arg(fold)
            .arg(0u32)
            .arg(0u32)
            .launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_given_what_they_expect() {
        let sizes = [size_of::<RecurrenceView>(), size_of::<FoldView>(), size_of::<PromptView>()];
        assert_eq!((sizes, HEAD_BYTES), ([144, 16, 32], 2304));
    }

    #[test]
    fn a_reciprocal_divides_every_head() {
        for divisor in 1..300 {
            let by = reciprocal(divisor);
            let quotient = |head: u32| if by == 0 { head } else { ((u64::from(head) * u64::from(by)) >> 32) as u32 };
            assert!((0..1 << 16).all(|head| quotient(head) == head / divisor as u32), "{divisor}");
        }
    }

    #[test]
    fn keys_of_up_to_256_columns_have_a_kernel() {
        let decl = |key_dim| StateDecl { key_heads: 1, value_heads: 2, key_dim, value_dim: 8, decay: Decay::PerHead };
        let found = [1, 64, 65, 128, 200, 256].map(|key_dim| columns(&decl(key_dim)).ok());
        assert_eq!(found, [64, 64, 128, 128, 256, 256].map(Some));
        let error = columns(&decl(257)).expect_err("too many").to_string();
        assert_eq!(error, "cuda: a recurrence with keys of 257 columns, at most 256 can be");
    }

    #[test]
    fn what_is_prepared_of_a_prompt_does_not_grow_with_it() {
        let decl = StateDecl { key_heads: 2, value_heads: 6, key_dim: 100, value_dim: 8, decay: Decay::PerHead };
        assert_eq!(prepared_bytes(&decl, 16), [2 * 4 * 16 * 128 * 2, 6 * HEAD_BYTES]);
        assert_eq!(prepared_bytes(&decl, 17), prepared_bytes(&decl, 32));
        assert_eq!(prepared_bytes(&decl, PREPARED), prepared_bytes(&decl, 100 * PREPARED));
    }

    #[test]
    fn blocks_of_a_prompt_have_equal_parts_of_a_head_or_all_of_it() {
        let rows = |value_heads, value_dim, spans| {
            let decl = StateDecl { key_heads: 8, value_heads, key_dim: 128, value_dim, decay: Decay::PerHead };
            prompt_rows(&decl, spans, 132)
        };
        assert_eq!(rows(96, 80, 1), 80, "Nemotron 3 Nano 4B: 96 blocks at once, not 192 of 64 and 16 rows");
        assert_eq!(rows(32, 128, 1), 32, "Qwen3.5 4B: 64 blocks would leave half of the GPU alone");
        assert_eq!([rows(32, 128, 4), rows(64, 96, 4)], [64, 48]);
        assert_eq!([rows(96, 64, 1), rows(96, 50, 1), rows(4, 100, 1)], [64, 64, 16]);
    }

    /// Bytes of shared memory of a block: an H200, an RTX 4090.
    const H200: usize = 227 << 10;
    const RTX_4090: usize = 99 << 10;

    #[test]
    fn three_chunks_are_in_shared_memory_where_they_have_room_and_two_everywhere() {
        let decl = |decay, key_dim| StateDecl { key_heads: 16, value_heads: 32, key_dim, value_dim: 128, decay };
        for (decl, columns, of_4090) in [
            (decl(Decay::PerHead, 64), 64, 3),
            (decl(Decay::PerHead, 128), 128, 3),
            (decl(Decay::PerHead, 256), 256, 2),
            (decl(Decay::PerChannel, 128), 128, 2),
        ] {
            assert_eq!(stages(&decl, columns, H200), 3, "{decl:?}");
            assert_eq!(stages(&decl, columns, RTX_4090), of_4090, "{decl:?}");
            assert!(prompt_bytes(&decl, columns, PROMPT_ROWS, of_4090) <= RTX_4090, "{decl:?}");
        }
    }
}
