//! Which of the tokens a page store holds may be evicted, and what is kept of those (ALGORITHMS 4, 5).

/// What becomes of the tokens of a page store when a sequence has more of them than it may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// All of them are held.
    #[default]
    Full,
    /// Those that attention hardly reads are evicted, head by head.
    Slake(Slake),
    /// Between the first and the last ones whole segments are evicted, the oldest first.
    Segments(Segments),
}

impl Policy {
    /// The declaration, if tokens may be evicted head by head.
    pub const fn slake(&self) -> Option<&Slake> {
        match self {
            Policy::Full | Policy::Segments(_) => None,
            Policy::Slake(slake) => Some(slake),
        }
    }

    /// What slots remember if tokens may be evicted head by head, or if segments that are evicted are summed up: these
    /// ask nobody and keep what they hold in order, so that the moments are all there is.
    pub const fn eviction(&self) -> Option<Slake> {
        match self {
            Policy::Full => None,
            Policy::Slake(slake) => Some(*slake),
            Policy::Segments(segments) => match segments.memory {
                SegmentMemory::None | SegmentMemory::Matrix(_) => None,
                SegmentMemory::Moments => Some(Slake { heads: 0, window: 0, capacity: 0, moments: MomentType::F32 }),
            },
        }
    }

    /// The declaration, if segments may be evicted.
    pub const fn segments(&self) -> Option<&Segments> {
        match self {
            Policy::Full | Policy::Slake(_) => None,
            Policy::Segments(segments) => Some(segments),
        }
    }
}

/// A sequence is `sink | segments | residual | window` (ALGORITHMS 4): its pages hold the sinks, the window and less than
/// a segment between them, whatever its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segments {
    /// First tokens, always held.
    pub sink: usize,
    /// Last tokens, always held.
    pub window: usize,
    /// Tokens that are evicted at once.
    pub segment: usize,
    /// Positions of the tokens that are held.
    pub positions: Positions,
    /// What is kept of the others.
    pub memory: SegmentMemory,
}

/// Positions of tokens when segments before them were evicted (ALGORITHMS 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// Those in the sequence.
    Sequence,
    /// Those among what is held: a key is turned back by a segment whenever one is evicted before it.
    Held,
}

/// Whether a memory is of keys with positions or without (ALGORITHMS 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKeys {
    /// With them: keys as they are stored, and queries as they meet these.
    Rotated,
    /// Without: keys and queries are turned back before.
    Unrotated,
}

/// What is kept of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentMemory {
    /// Nothing.
    None,
    /// Per KV head the matrix `sum s(k) v^T [key_dim, value_dim]` and the vector `sum s(k) [key_dim]`, with
    /// `s(x) = elu(x) + 1`, in f32 (ALGORITHMS 4.1).
    Matrix(MemoryKeys),
    /// Per KV head the moments that [`MomentType::F32`] has, which are one more part of every context: no gates read them
    /// (ALGORITHMS 4.5, 5.3).
    Moments,
}

impl SegmentMemory {
    /// The name of it: `matrix`.
    pub const fn name(self) -> &'static str {
        match self {
            SegmentMemory::None => "none",
            SegmentMemory::Matrix(MemoryKeys::Rotated) => "matrix",
            SegmentMemory::Matrix(MemoryKeys::Unrotated) => "matrix-before-rotation",
            SegmentMemory::Moments => "moments",
        }
    }

    /// Which keys a matrix is of, if it is one.
    pub const fn matrix(self) -> Option<MemoryKeys> {
        match self {
            SegmentMemory::None | SegmentMemory::Moments => None,
            SegmentMemory::Matrix(keys) => Some(keys),
        }
    }

    /// Whether it is of keys before rotation.
    pub const fn turns_back(self) -> bool {
        matches!(self.matrix(), Some(MemoryKeys::Unrotated))
    }

    /// Whether anything is kept.
    pub const fn keeps(self) -> bool {
        match self {
            SegmentMemory::None => false,
            SegmentMemory::Matrix(_) | SegmentMemory::Moments => true,
        }
    }
}

impl Segments {
    /// Most tokens that a sequence holds between two steps.
    pub const fn most(&self) -> usize {
        self.sink + self.window + self.segment - 1
    }

    /// Whether positions are those of what is held.
    pub const fn moves_positions(&self) -> bool {
        match self.positions {
            Positions::Held => true,
            Positions::Sequence => false,
        }
    }

    /// What is added to the place of a token behind the first ones for the position that its key was rotated to, in a
    /// sequence of `context` tokens of which `held` are held.
    pub const fn shift(&self, context: u32, held: u32) -> u32 {
        match self.positions {
            Positions::Sequence => context - held,
            Positions::Held => 0,
        }
    }

    /// Bytes of the memory of a slot in a layer of these pages.
    pub const fn bytes(&self, kv_heads: usize, key_dim: usize, value_dim: usize) -> usize {
        match self.memory {
            SegmentMemory::None => 0,
            SegmentMemory::Matrix(_) => kv_heads.saturating_mul(key_dim).saturating_mul(4 * (value_dim + 1)),
            SegmentMemory::Moments => MomentType::F32.bytes(key_dim, value_dim).saturating_mul(kv_heads),
        }
    }
}

/// What a slot, one of a snapshot too, remembers of a layer besides its pages, so that tokens can be evicted: the last
/// queries, which say what is read; of the tokens it holds, position and score by KV head; and the sum of those that it
/// evicted. Nothing of it is used before [`crate::Backend::evict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slake {
    /// Query heads.
    pub heads: usize,
    /// Queries that are remembered.
    pub window: usize,
    /// Tokens whose positions and scores there is room for: what a slot holds at most after an eviction, and those it
    /// appends one by one before the next.
    pub capacity: usize,
    /// How the sums of what was evicted are stored.
    pub moments: MomentType,
}

/// How the moments of the tokens that were evicted are stored: per KV head their number, mean key and mean value, the
/// variance of every column of the key, and the covariance of keys and values `[key_dim, value_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MomentType {
    /// Not at all: what is evicted is gone.
    Off,
    /// All in 4 bytes.
    #[default]
    F32,
    /// The covariance in 2 bytes, the rest in 4.
    F16,
}

impl MomentType {
    /// All of them.
    pub const ALL: [MomentType; 3] = [MomentType::Off, MomentType::F32, MomentType::F16];

    /// The name users write: `f16`.
    pub const fn name(self) -> &'static str {
        match self {
            MomentType::Off => "off",
            MomentType::F32 => "f32",
            MomentType::F16 => "f16",
        }
    }

    /// Bytes of the moments of a KV head.
    pub const fn bytes(self, key_dim: usize, value_dim: usize) -> usize {
        let (vectors, covariance) = (4 * (2 * key_dim + value_dim), key_dim.saturating_mul(value_dim));
        match self {
            MomentType::Off => 0,
            MomentType::F32 => covariance.saturating_mul(4).saturating_add(vectors),
            MomentType::F16 => covariance.saturating_mul(2).saturating_add(vectors),
        }
    }
}

impl Slake {
    /// Bytes of a slot in a layer of these pages: queries in 16 bits, positions and scores in 32, and the moments.
    pub const fn bytes(&self, kv_heads: usize, key_dim: usize, value_dim: usize) -> usize {
        let queries = self.window.saturating_mul(self.heads * key_dim * 2);
        let marks = self.capacity.saturating_mul(kv_heads * 8);
        let moments = self.moments.bytes(key_dim, value_dim).saturating_mul(kv_heads);
        queries.saturating_add(marks).saturating_add(moments)
    }
}
