//! What the tensors of a model are for: kinds, and how many parameters and bytes are of each.

use super::{
    ModelSpec,
    spec::{EdgeInfinite, Ffn, MemoryKeys, Mixer, Positions},
};
use kvas_gguf::TensorInfo;
use std::collections::BTreeMap;

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TensorKind {
    /// The table of embeddings.
    Embedding,
    /// Softmax attention.
    Attention,
    /// Softmax attention over a latent.
    LatentAttention,
    /// What mixes in what a compressive memory says.
    MemoryGates,
    /// The gated delta rule, its convolution and gates.
    GatedDelta,
    /// Mamba-2.
    Mamba2,
    /// Mamba-1.
    Mamba1,
    /// A gated short convolution.
    ShortConv,
    /// One of the four above: the architecture is not known.
    Recurrent,
    /// A dense feed-forward half.
    Ffn,
    /// What chooses experts.
    Router,
    /// Experts of which a token meets some.
    Experts,
    /// Experts that every token meets.
    SharedExpert,
    /// Every norm, inside mixers too.
    Norm,
    /// The output matrix, where it is not the table of embeddings.
    Output,
    /// All of the blocks that draft tokens.
    Prediction,
    /// Anything else.
    Other,
}

impl TensorKind {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            TensorKind::Embedding => "embedding",
            TensorKind::Attention => "attention",
            TensorKind::LatentAttention => "latent attention",
            TensorKind::MemoryGates => "memory gates",
            TensorKind::GatedDelta => "gated delta",
            TensorKind::Mamba2 => "mamba-2",
            TensorKind::Mamba1 => "mamba-1",
            TensorKind::ShortConv => "short convolution",
            TensorKind::Recurrent => "recurrent",
            TensorKind::Ffn => "feed-forward",
            TensorKind::Router => "router",
            TensorKind::Experts => "experts",
            TensorKind::SharedExpert => "shared expert",
            TensorKind::Norm => "norm",
            TensorKind::Output => "output",
            TensorKind::Prediction => "prediction",
            TensorKind::Other => "other",
        }
    }

    /// The kind of a tensor, by its name and the layer it is in.
    pub fn of(name: &str, spec: Option<&ModelSpec>) -> TensorKind {
        let Some((block, stem)) = block_and_stem(name) else {
            return match name {
                "token_embd.weight" => TensorKind::Embedding,
                "output.weight" => TensorKind::Output,
                _ if name.contains("norm") => TensorKind::Norm,
                _ => TensorKind::Other,
            };
        };
        let layer = spec.map(|spec| spec.layers.get(block));
        match (layer, stem) {
            (Some(None), _) => TensorKind::Prediction,
            _ if stem.starts_with("attn_mem_") => TensorKind::MemoryGates,
            _ if stem.contains("norm") => TensorKind::Norm,
            _ if stem.contains("_shexp") => TensorKind::SharedExpert,
            _ if stem.starts_with("ffn_gate_inp") || stem.starts_with("exp_probs_b") => TensorKind::Router,
            _ if stem.contains("_exps") || stem.starts_with("ffn_latent") => TensorKind::Experts,
            _ if stem.starts_with("ffn_") => TensorKind::Ffn,
            (Some(Some(layer)), _) => TensorKind::among(&layer.mixers, stem),
            (None, _) if stem.starts_with("attn_") => TensorKind::Attention,
            (None, _) if stem.starts_with("ssm_") || stem.starts_with("shortconv") => TensorKind::Recurrent,
            (None, _) => TensorKind::Other,
        }
    }

    /// The mixer a tensor belongs to. Some recurrent ones have tensors with the names of attention.
    fn among(mixers: &[Mixer], stem: &str) -> TensorKind {
        let kinds = || mixers.iter().map(TensorKind::of_mixer);
        let attends = |kind: &TensorKind| matches!(kind, TensorKind::Attention | TensorKind::LatentAttention);
        kinds().find(|kind| attends(kind) == stem.starts_with("attn_")).or(kinds().next()).unwrap_or(TensorKind::Other)
    }

    const fn of_mixer(mixer: &Mixer) -> TensorKind {
        match mixer {
            Mixer::Attention(_) => TensorKind::Attention,
            Mixer::LatentAttention(_) => TensorKind::LatentAttention,
            Mixer::GatedDelta(_) => TensorKind::GatedDelta,
            Mixer::Mamba2(_) => TensorKind::Mamba2,
            Mixer::Mamba1(_) => TensorKind::Mamba1,
            Mixer::ShortConv(_) => TensorKind::ShortConv,
        }
    }
}

/// The parts of `blk.BLOCK.STEM`.
pub fn block_and_stem(name: &str) -> Option<(usize, &str)> {
    let (block, stem) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((block.parse().ok()?, stem))
}

/// Parameters and bytes of some tensors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Parameters.
    pub parameters: usize,
    /// Parameters a token meets: those of the experts it is sent to, one row of an embedding that is nothing else.
    pub active: usize,
    /// Bytes as stored.
    pub bytes: usize,
}

impl Tally {
    /// Both together.
    pub const fn plus(self, more: Tally) -> Tally {
        Tally {
            parameters: self.parameters + more.parameters,
            active: self.active + more.active,
            bytes: self.bytes + more.bytes,
        }
    }

    fn of(tensor: &TensorInfo, kind: TensorKind, spec: &ModelSpec) -> Tally {
        let (parameters, bytes) = (tensor.elements(), tensor.bytes);
        let ffn = block_and_stem(&tensor.name).and_then(|(block, _)| spec.layers.get(block)?.ffn.as_ref());
        let active = match (kind, ffn) {
            // Both are for what a plain run does not do.
            (TensorKind::Prediction | TensorKind::MemoryGates, _) => 0,
            (TensorKind::Embedding, _) if !spec.tied_output => tensor.columns(),
            (TensorKind::Experts, Some(Ffn::Moe(moe))) if tensor.name.contains("_exps") => {
                parameters / moe.experts * moe.active
            }
            _ => parameters,
        };
        Tally { parameters, active, bytes }
    }
}

/// How much there is of every kind.
pub fn tally(tensors: &[TensorInfo], spec: &ModelSpec) -> BTreeMap<TensorKind, Tally> {
    let mut kinds: BTreeMap<TensorKind, Tally> = BTreeMap::new();
    for tensor in tensors {
        let kind = TensorKind::of(&tensor.name, Some(spec));
        let known = kinds.entry(kind).or_default();
        *known = known.plus(Tally::of(tensor, kind, spec));
    }
    kinds
}

/// The letters of layer patterns.
const LETTERS: &[(char, &str)] = &[
    ('A', "attention"),
    ('L', "latent attention"),
    ('D', "gated delta"),
    ('K', "gated delta per channel"),
    ('M', "Mamba-2"),
    ('S', "Mamba-1"),
    ('C', "short convolution"),
    ('f', "feed-forward"),
    ('e', "experts"),
];

/// The layers of a model in one line, what repeats said once: `24: 6 x (Df Df Df Af)`.
pub fn layers(spec: &ModelSpec) -> String {
    let pattern = spec.pattern();
    let words: Vec<&str> = pattern.split(' ').collect();
    let repeats =
        |period: &usize| words.len().is_multiple_of(*period) && words[*period..] == words[..words.len() - period];
    let period = (1..words.len()).find(repeats).unwrap_or(words.len());
    match words.len() / period {
        1 => format!("{}: {pattern}", words.len()),
        times => format!("{}: {times} x ({})", words.len(), words[..period].join(" ")),
    }
}

/// What a model's memory gates were trained for, if it has any.
pub fn memory(spec: &ModelSpec) -> Option<String> {
    let EdgeInfinite { sink, window, segment, positions, keys } = spec.edgeinfinite?;
    let positions = match positions {
        Positions::Held => "in the cache",
        Positions::Sequence => "in the sequence",
    };
    let keys = match keys {
        MemoryKeys::Rotated => "rotated",
        MemoryKeys::Unrotated => "unrotated",
    };
    Some(format!("EdgeInfinite, sink {sink}, window {window}, segment {segment}, positions {positions}, keys {keys}"))
}

/// What the letters of a model's layers mean.
pub fn legend(spec: &ModelSpec) -> String {
    let pattern = spec.pattern();
    let used = LETTERS.iter().filter(|(letter, _)| pattern.contains(*letter));
    used.map(|(letter, meaning)| format!("{letter} {meaning}")).collect::<Vec<_>>().join(", ")
}
