//! Which of the tokens a page store holds may be given up, and what is kept of those (ALGORITHMS 5).

/// What becomes of the tokens of a page store when a sequence has more of them than it may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// All of them are held.
    #[default]
    Full,
    /// Those that attention hardly reads are given up, head by head.
    Slake(Slake),
}

impl Policy {
    /// The declaration, if tokens may be given up.
    pub const fn slake(&self) -> Option<&Slake> {
        match self {
            Policy::Full => None,
            Policy::Slake(slake) => Some(slake),
        }
    }
}

/// What a slot that steps may name remembers of a layer besides its pages, so that tokens can be given up: the last
/// queries, which say what is read; of the tokens it holds, position and score by KV head; and the sum of those that it
/// gave up. Nothing of it is used before [`crate::Backend::evict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slake {
    /// Query heads.
    pub heads: usize,
    /// Queries that are remembered.
    pub window: usize,
    /// Tokens whose positions and scores there is room for: what a slot holds at most after an eviction, and those it
    /// appends one by one before the next.
    pub capacity: usize,
    /// How the sums of what was given up are stored.
    pub moments: MomentType,
}

/// How the moments of the tokens that were given up are stored: per KV head their number, mean key and mean value, the
/// variance of every column of the key, and the covariance of keys and values `[key_dim, value_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MomentType {
    /// Not at all: what is given up is gone.
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
