//! The contract between the engine and a device: a closed set of ops, programs made of them, and the trait that
//! runs programs. The engine plans; a backend computes. Knows no device, no architecture, no token text.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bands;
pub mod conformance;
mod cursors;
mod display;
mod eviction;
pub mod op;
pub mod product;
pub mod program;
pub mod reference;
mod remembered;
pub mod rope;
pub mod split;
pub mod step;
pub mod store;
mod top_k;
pub mod validate;
mod weights;

pub use bands::Band;
pub use cursors::{Cursor, Cursors, Entry, Position};
pub use eviction::{Eviction, EvictionOrder, Holding, Marks, Preference};
pub use op::Op;
pub use product::{Product, Stacking};
pub use program::{Act, ActDecl, Program, RowBlock, Rows, Store, Weight, WeightDecl, WeightFormat};
pub use reference::Reference;
pub use remembered::{Remembered, RememberedParts, SequenceLengths};
pub use rope::Rope;
pub use split::{Placement, Split, arena_pages};
pub use step::{CHUNK, MOST_GRAIN, Outputs, Page, Slot, Span, Step};
pub use store::{KvType, Limits, Replay, StateType, StoreDecl};
pub use top_k::{TopK, TopKFound};
pub use weights::{Factors, WeightData, WeightSource};

use kvas_gguf::{Quant, TensorBytes};
use std::{
    ops::{Deref, Range},
    sync::Arc,
};

/// What can go wrong on a device. Our own mistakes are assertions, not errors.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The plan does not fit.
    #[error("{device}: {what} needs {needed} bytes, {available} are available")]
    Memory {
        /// Which device.
        device: String,
        /// What was being placed.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },
    /// A weight could not be had or has a format the device cannot use.
    #[error("tensor {name}: {what}")]
    Weight {
        /// Name of the weight or tensor.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// The device failed while running.
    #[error("{device}: {what}")]
    Failed {
        /// Which device.
        device: String,
        /// What it said.
        what: String,
    },
}

/// An owner of bytes: a mapping, a vector.
pub trait Stored: Deref<Target = [u8]> + Send + Sync {
    /// How many there are.
    fn count(&self) -> usize {
        self.len()
    }

    /// Copies a part of them to `to`, which is as long, if there is a faster way than to look at them.
    ///
    /// # Errors
    /// Those of a file that is read.
    fn copy_to(&self, part: Range<usize>, to: &mut [u8]) -> std::io::Result<()> {
        to.copy_from_slice(&self[part]);
        Ok(())
    }
}

impl Stored for Vec<u8> {}

impl Stored for TensorBytes {
    fn copy_to(&self, part: Range<usize>, to: &mut [u8]) -> std::io::Result<()> {
        TensorBytes::copy_to(self, part, to)
    }
}

/// Bytes that stay valid and unchanged as long as the value lives; cloning shares them.
#[derive(Clone)]
pub struct Bytes(Arc<dyn Stored>);

impl Bytes {
    /// Shares bytes that live in any owner.
    pub fn new(owner: impl Stored + 'static) -> Self {
        Self(Arc::new(owner))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// Copies a part of them to `to`, which is as long, whether they lie together or not.
    ///
    /// # Errors
    /// Those of a file that is read.
    pub fn copy_to(&self, part: Range<usize>, to: &mut [u8]) -> std::io::Result<()> {
        self.0.copy_to(part, to)
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({})", self.count())
    }
}

/// Runs one [`Program`] over many sequences. Object-safe on purpose.
///
/// The order of calls is `prepare` once, then for each step `run` and, for every span of it, one `commit`.
pub trait Backend: Send {
    /// Allocates and uploads everything `program` declares, and reads all weights, so that no step waits for a disk.
    /// Nothing allocates on the device after it.
    fn prepare(
        &mut self,
        program: Arc<Program>,
        weights: &mut dyn WeightSource,
        limits: Limits,
    ) -> Result<(), DeviceError>;

    /// In which of its arenas a prepared backend keeps the pages of each page store, in their order. The pages of an arena
    /// follow each other as [`arena_pages`] says. None: there is one arena.
    fn arenas(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Bytes that `prepare` would take besides weights, activations, pages and slots, for weights stored in these
    /// formats.
    fn scratch_bytes(&self, program: &Program, quants: &[Quant], limits: &Limits) -> u64;

    /// How u and k of a row are kept in replay rings: later rows find them rounded to this type, the row itself as they are
    /// (ALGORITHMS 2.9). Of several devices each has its own.
    fn ring_type(&self) -> StateType {
        StateType::F32
    }

    /// Rows at whose multiples, counted from where a span begins, the prepared program can be cut into spans and gives the same
    /// bits: a multiple of [`CHUNK`], at most [`MOST_GRAIN`], of which steps have at least two or none at all.
    fn grain(&self) -> usize {
        CHUNK
    }

    /// Whether [`Backend::run`] returns before the step is computed, so that others can be told of the one before meanwhile.
    fn runs_behind(&self) -> bool {
        false
    }

    /// Takes over what changes from step to step, and decides which replay rings are folded in it.
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError>;

    /// One step: begin, then every op in order.
    fn run(&mut self, program: &Program, step: &Step) -> Result<(), DeviceError> {
        self.begin(step)?;
        program.ops.iter().try_for_each(|op| self.execute(op))
    }

    /// One op of the current step.
    fn execute(&mut self, op: &Op) -> Result<(), DeviceError> {
        match op {
            Op::Embed(op) => self.embed(op),
            Op::GatherRows(op) => self.gather_rows(op),
            Op::Norm(op) => self.norm(op),
            Op::Linear(op) => self.linear(op),
            Op::GatedLinear(op) => self.gated_linear(op),
            Op::HeadLinear(op) => self.head_linear(op),
            Op::RopeStore(op) => self.rope_store(op),
            Op::Attention(op) => self.attention(op),
            Op::ReadMemory(op) => self.read_memory(op),
            Op::CausalConv(op) => self.causal_conv(op),
            Op::ShortConv(op) => self.short_conv(op),
            Op::GatedDelta(op) => self.gated_delta(op),
            Op::Mamba2(op) => self.mamba2(op),
            Op::Mamba1(op) => self.mamba1(op),
            Op::GatedNorm(op) => self.gated_norm(op),
            Op::Route(op) => self.route(op),
            Op::ExpertGatedLinear(op) => self.expert_gated_linear(op),
            Op::ExpertLinear(op) => self.expert_linear(op),
        }
    }

    /// Keeps the first `accepted` rows each slot saw in the last step and forgets the rest. Of a span longer than the
    /// replay window all rows must be accepted.
    fn commit(&mut self, accepted: &[(Slot, u32)]) -> Result<(), DeviceError>;

    /// How many of the last committed rows of a slot [`Backend::rewind`] can take back: what is still in its replay ring
    /// and in the windows of its convolutions. [`Cursors::rewindable`] of every backend.
    fn rewindable(&self, slot: Slot) -> u32;

    /// How many rows a span of a slot may have so that no replay ring would be folded between them, were they steps of
    /// their own: the results of each are then those it would have alone. [`Cursors::until_fold`] of every backend.
    fn until_fold(&self, slot: Slot) -> usize;

    /// Takes back the last `rows` committed rows of a slot, no more than [`Backend::rewindable`]. Pages are the caller's
    /// matter: the next step names a smaller context and overwrites them.
    fn rewind(&mut self, slot: Slot, rows: u32) -> Result<(), DeviceError>;

    /// Where a slot stands between two steps, for a device that can run a prompt layer by layer: of several steps in a row
    /// only some ops ([`Program::bands`]), then of the same steps the next ones. None: it cannot. [`Cursors::position`].
    fn position(&self, _slot: Slot) -> Option<Position> {
        None
    }

    /// Ends a step of which only the ops of a band ran, and of which all rows are kept: as [`Backend::commit`], but scores of
    /// what was read are as they were.
    fn commit_band(&mut self, _slots: &[(Slot, u32)]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "this device".into(), what: "it runs whole programs".into() })
    }

    /// The ops of the next band meet the slot as those before them did, at a [`Backend::position`].
    fn restore_position(&mut self, _slot: Slot, _position: Position) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "this device".into(), what: "it runs whole programs".into() })
    }

    /// Takes room in the memory of the host for so many values that go from band to band, in place of what there was; 0
    /// gives it back.
    fn carry(&mut self, _values: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "this device".into(), what: "it runs whole programs".into() })
    }

    /// Copies the beginning of an activation to these carried values. Nobody waits.
    fn put(&mut self, _act: Act, _to: Range<usize>) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "this device".into(), what: "it runs whole programs".into() })
    }

    /// Overwrites the beginning of an activation by these carried values.
    fn fetch(&mut self, _act: Act, _from: Range<usize>) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "this device".into(), what: "it runs whole programs".into() })
    }

    /// Copies slots, folding the source's replay history first: both are canonical (checkpoint only, ALGORITHMS 3.1)
    /// and go on to the same bits. From a slot to itself it only folds.
    fn copy_slots(&mut self, pairs: &[(Slot, Slot)]) -> Result<(), DeviceError>;

    /// Makes slots those of an empty sequence.
    fn clear_slots(&mut self, slots: &[Slot]) -> Result<(), DeviceError>;

    /// How much the page stores of an eviction would lose by it, in their order: the [`Preference`]s that budgets are
    /// shared out by. Nothing changes. With `values` also what takes longer to find out, how the values would move.
    fn weigh(&mut self, _eviction: &Eviction<'_>, _values: bool) -> Result<Vec<Preference>, DeviceError> {
        Err(DeviceError::Failed { device: "this device".into(), what: "it holds all tokens".into() })
    }

    /// Gives up tokens of a sequence: of every KV head all but the `keep` that the order prefers. Those that stay are in
    /// the first `keep` rows of the table afterwards, those that were there before where they were, and the next step
    /// appends behind them. What is remembered of it is copied with a slot, to one of a snapshot too, and saved by
    /// [`Backend::save_evicted`]. [`Backend::clear_slots`] and the other verbs that overwrite a slot make it hold all of
    /// its tokens again.
    ///
    /// Only the page stores that it names evict tokens: while a prompt is read layer by layer these are the layers that
    /// have read it.
    ///
    /// Pages of segments ([`crate::store::Segments`]) evict the tokens right behind the first `sinks` and nothing else:
    /// the order has to be [`EvictionOrder::Recency`]. With `absorb` they go into the memory, if there is one. Those behind them
    /// move up in order, and where positions are those of what is held, their keys are turned back by as many tokens.
    fn evict(&mut self, _eviction: &Eviction<'_>) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "this device".into(), what: "it holds all tokens".into() })
    }

    /// Copies single-layer pages (copy-on-write tails).
    fn copy_pages(&mut self, pairs: &[(Page, Page)]) -> Result<(), DeviceError>;

    /// Appends what a slot holds after `position` tokens, [`Program::slot_elements`] values: store after store the
    /// state `[value_heads, value_dim, key_dim]`, or the last `taps - 1` rows before the convolution, oldest first and
    /// 0 before the first token. Folds the slot's replay history, so that the values depend on no ring.
    fn save_slot(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) -> Result<(), DeviceError>;

    /// Makes a slot one that holds such values after `position` tokens.
    fn load_slot(&mut self, slot: Slot, position: u32, values: &[f32]) -> Result<(), DeviceError>;

    /// Appends what a slot remembers after `position` tokens of those that its sequence has evicted,
    /// [`Program::evicted_elements`] values: of a store of segments the matrices `[kv_heads, key_dim, value_dim]`, then
    /// the vectors `[kv_heads, key_dim]`; of one whose tokens are evicted head by head, or whose
    /// segments are summed up, those of [`Remembered`], whose last queries are there also where nothing was evicted.
    fn save_evicted(&mut self, _slot: Slot, _position: u32, _out: &mut Vec<f32>) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "this device".into(), what: "it holds all tokens".into() })
    }

    /// Makes a slot, which [`Backend::load_slot`] has made one that holds all of its tokens, one whose sequence has given
    /// up `tokens` of them and remembers such values of these. Where layers evict different ones, the values
    /// say how many. 0 of one that remembers its last queries only, which a copy for a step remembers, too.
    fn load_evicted(&mut self, _slot: Slot, _tokens: u32, _values: &[f32]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "this device".into(), what: "it holds all tokens".into() })
    }

    /// Appends the first `rows` rows of a page of `store`: in each, for every KV head, the key, then the value where
    /// it is stored beside the key.
    fn save_page(&mut self, store: Store, page: Page, rows: usize, out: &mut Vec<f32>) -> Result<(), DeviceError>;

    /// Overwrites the first rows of a page of `store` by such values, as many as there are.
    fn load_page(&mut self, store: Store, page: Page, values: &[f32]) -> Result<(), DeviceError>;

    /// `out.len() / columns` rows of an activation from row `first` on. Waits for all that was asked for before, also
    /// for no rows.
    fn read(&mut self, act: Act, first: usize, out: &mut [f32]) -> Result<(), DeviceError>;

    /// The most tokens of a row that [`Backend::top_k`] finds; 0 if that is left to who reads the logits.
    fn max_top_k(&self) -> usize {
        0
    }

    /// Looks for tokens among the `logits` of the last step, which stay as they are. Of a row whose first token is then
    /// [`TopK::UNKNOWN`] the logits are to be read instead. Never asked of a device whose [`Backend::max_top_k`] is 0.
    fn top_k(&mut self, logits: Act, _wanted: &TopK, _found: &mut TopKFound) -> Result<(), DeviceError> {
        unreachable!("activation {} is looked through by who reads it", logits.0)
    }

    /// Overwrites the first `values.len() / columns` rows of an activation (conformance and `diff`).
    fn write(&mut self, act: Act, values: &[f32]) -> Result<(), DeviceError>;

    /// `out[row] = table[token[row]]`.
    fn embed(&mut self, op: &op::Embed) -> Result<(), DeviceError>;
    /// Picks the step's output rows.
    fn gather_rows(&mut self, op: &op::GatherRows) -> Result<(), DeviceError>;
    /// Root-mean-square norm over groups of columns.
    fn norm(&mut self, op: &op::Norm) -> Result<(), DeviceError>;
    /// Matrix product with a stored weight.
    fn linear(&mut self, op: &op::Linear) -> Result<(), DeviceError>;
    /// `activation(x gate^T) * (x up^T)`.
    fn gated_linear(&mut self, op: &op::GatedLinear) -> Result<(), DeviceError>;
    /// Matrix product of every head with a weight of its own.
    fn head_linear(&mut self, op: &op::HeadLinear) -> Result<(), DeviceError>;
    /// Rotates q and k, appends k and v to the sequences' pages.
    fn rope_store(&mut self, op: &op::RopeStore) -> Result<(), DeviceError>;
    /// Softmax attention over the sequences' pages.
    fn attention(&mut self, op: &op::Attention) -> Result<(), DeviceError>;
    /// Mixes in what a memory of segments says.
    fn read_memory(&mut self, _op: &op::ReadMemory) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "this device".into(), what: "it keeps no memory of segments".into() })
    }
    /// Depthwise causal convolution, then SiLU.
    fn causal_conv(&mut self, op: &op::CausalConv) -> Result<(), DeviceError>;
    /// Gated short convolution.
    fn short_conv(&mut self, op: &op::ShortConv) -> Result<(), DeviceError>;
    /// The gated delta rule.
    fn gated_delta(&mut self, op: &op::GatedDelta) -> Result<(), DeviceError>;
    /// The Mamba-2 recurrence.
    fn mamba2(&mut self, op: &op::Mamba2) -> Result<(), DeviceError>;
    /// The Mamba-1 selective scan.
    fn mamba1(&mut self, op: &op::Mamba1) -> Result<(), DeviceError>;
    /// Norm of groups of columns and an activated gate.
    fn gated_norm(&mut self, op: &op::GatedNorm) -> Result<(), DeviceError>;
    /// Chooses experts.
    fn route(&mut self, op: &op::Route) -> Result<(), DeviceError>;
    /// Gated linear of each chosen expert.
    fn expert_gated_linear(&mut self, op: &op::ExpertGatedLinear) -> Result<(), DeviceError>;
    /// Weighted sum of the chosen experts' down projections.
    fn expert_linear(&mut self, op: &op::ExpertLinear) -> Result<(), DeviceError>;
}
