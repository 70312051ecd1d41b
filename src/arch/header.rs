//! What readers look at: typed, range-checked look-ups under the architecture's prefix, and which tensors exist.

use super::{edgeinfinite, exponents};
use crate::model::{
    ModelError, ModelSpec,
    kinds::block_and_stem,
    spec::{LayerSpec, Scales},
};
use kvas_gguf::{GgufError, GgufFile, Metadata};
use std::{
    collections::HashMap,
    ops::{Range, RangeInclusive},
};

/// Limits nothing real exceeds; they keep a bad file from asking for absurd amounts of memory.
const LAYERS: RangeInclusive<usize> = 1..=512;
const WIDTH: RangeInclusive<usize> = 1..=1 << 20;
const HEADS: RangeInclusive<usize> = 1..=1 << 14;
const HEAD_DIM: RangeInclusive<usize> = 1..=1 << 14;
const HIDDEN: RangeInclusive<usize> = 1..=1 << 24;
const EXPERTS: RangeInclusive<usize> = 1..=1 << 12;
const CONTEXT: RangeInclusive<usize> = 1..=1 << 31;
const TAPS: RangeInclusive<usize> = 2..=64;

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Metadata and the names and shapes of the tensors.
#[derive(Debug)]
pub struct Header<'a> {
    /// All keys.
    pub metadata: &'a Metadata,
    prefix: String,
    tensors: HashMap<&'a str, &'a [u64]>,
}

impl<'a> Header<'a> {
    /// The header of a file.
    pub fn of_file(file: &'a GgufFile) -> Result<Self, GgufError> {
        Self::new(file.metadata(), file.tensors().iter().map(|info| (info.name.as_str(), info.shape.as_slice())))
    }

    /// A header from its parts.
    pub fn new(
        metadata: &'a Metadata,
        tensors: impl IntoIterator<Item = (&'a str, &'a [u64])>,
    ) -> Result<Self, GgufError> {
        let prefix = metadata.architecture()?.to_string();
        Ok(Self { metadata, prefix, tensors: tensors.into_iter().collect() })
    }

    /// `architecture.key`.
    pub fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// True if the tensor exists.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// True if the tensor exists in a block.
    pub fn has_block_tensor(&self, block: usize, stem: &str) -> bool {
        self.has_tensor(&format!("blk.{block}.{stem}"))
    }

    /// True if a block has a tensor whose name begins so.
    pub fn any_block_tensor(&self, start: &str) -> bool {
        self.tensors.keys().filter_map(|name| block_and_stem(name)).any(|(_, stem)| stem.starts_with(start))
    }

    /// Elements along each dimension of a tensor of a block, the contiguous one first, if it exists.
    pub fn block_tensor_shape(&self, block: usize, stem: &str) -> Option<&'a [u64]> {
        self.tensors.get(format!("blk.{block}.{stem}").as_str()).copied()
    }

    /// Elements of a tensor of a block, if it exists.
    pub fn block_tensor_elements(&self, block: usize, stem: &str) -> Option<usize> {
        let shape = self.block_tensor_shape(block, stem)?;
        shape.iter().try_fold(1usize, |all, part| all.checked_mul(usize::try_from(*part).ok()?))
    }

    /// A count that must be there and lie in `range`.
    pub fn count(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
        let key = self.key(key);
        let found = self.metadata.uint(&key)?;
        in_range(&key, found, range)
    }

    /// A count that lies in `range` if it is there.
    pub fn count_opt(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, ModelError> {
        let key = self.key(key);
        self.metadata.uint_opt(&key)?.map(|found| in_range(&key, found, range)).transpose()
    }

    /// A positive finite number that must be there.
    pub fn positive(&self, key: &str) -> Result<f32, ModelError> {
        let key = self.key(key);
        let found = self.metadata.float(&key)?;
        positive(&key, found)
    }

    /// A positive finite number if it is there.
    pub fn positive_opt(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let key = self.key(key);
        self.metadata.float_opt(&key)?.map(|found| positive(&key, found)).transpose()
    }

    /// A value per layer: a scalar stands for every layer.
    pub fn per_layer(&self, key: &str, layer: usize, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
        let full = self.key(key);
        let Some(values) = self.metadata.get(&full).and_then(|value| value.as_u64s()) else {
            return self.count(key, range);
        };
        match values.get(layer) {
            Some(&found) => in_range(&format!("{full}[{layer}]"), found, range),
            None => Err(bad(&full, format!("an array of {}", values.len()), "one value per layer")),
        }
    }

    /// Blocks of the trunk, and those of the prediction heads behind it.
    pub fn blocks(&self) -> Result<(Range<usize>, Range<usize>), ModelError> {
        let blocks = self.count("block_count", LAYERS)?;
        let heads = self.count_opt("nextn_predict_layers", 0..=blocks - 1)?.unwrap_or(0);
        Ok((0..blocks - heads, blocks - heads..blocks))
    }

    /// True if a block belongs to a prediction head.
    pub fn predicts(&self, block: usize) -> Result<bool, ModelError> {
        Ok(self.blocks()?.1.contains(&block))
    }

    /// Heads of a layer.
    pub fn heads(&self, layer: usize) -> Result<usize, ModelError> {
        self.per_layer("attention.head_count", layer, HEADS)
    }

    /// True if a layer has no KV heads: its mixer is not attention. Where nothing is said of them, all layers have some.
    pub fn is_recurrent(&self, layer: usize) -> Result<bool, ModelError> {
        let said = self.metadata.get(&self.key("attention.head_count_kv")).is_some();
        Ok(said && !self.predicts(layer)? && self.per_layer("attention.head_count_kv", layer, 0..=*HEADS.end())? == 0)
    }

    /// KV heads of a layer, a divisor of `heads`; absent means as many as heads.
    pub fn kv_heads(&self, layer: usize, heads: usize) -> Result<usize, ModelError> {
        if self.metadata.get(&self.key("attention.head_count_kv")).is_none() {
            return Ok(heads);
        }
        let found = self.per_layer("attention.head_count_kv", layer, HEADS)?;
        if !heads.is_multiple_of(found) {
            let expected = format!("a divisor of attention.head_count = {heads}");
            return Err(bad(&self.key("attention.head_count_kv"), found, &expected));
        }
        Ok(found)
    }

    /// A head dimension, or the width shared out among the heads.
    pub fn head_dim(&self, key: &str, heads: usize) -> Result<usize, ModelError> {
        match self.count_opt(key, HEAD_DIM)? {
            Some(found) => Ok(found),
            None => {
                let width = self.width()?;
                if !width.is_multiple_of(heads) {
                    let expected = format!("a multiple of attention.head_count = {heads}, or {}", self.key(key));
                    return Err(bad(&self.key("embedding_length"), width, &expected));
                }
                Ok(width / heads)
            }
        }
    }

    /// `embedding_length`.
    pub fn width(&self) -> Result<usize, ModelError> {
        self.count("embedding_length", WIDTH)
    }

    /// A hidden dimension of a feed-forward block.
    pub fn hidden(&self, key: &str, layer: usize) -> Result<usize, ModelError> {
        self.per_layer(key, layer, HIDDEN)
    }

    /// Expert count and active experts; `None` for dense models.
    pub fn experts(&self) -> Result<Option<(usize, usize)>, ModelError> {
        let experts = self.count_opt("expert_count", 0..=*EXPERTS.end())?.unwrap_or(0);
        if experts == 0 {
            return Ok(None);
        }
        Ok(Some((experts, self.count("expert_used_count", 1..=experts)?)))
    }

    /// Taps of a convolution.
    pub fn taps(&self, key: &str) -> Result<usize, ModelError> {
        self.count(key, TAPS)
    }

    /// Everything that is not a layer, with the layers `layer` reads.
    pub fn model(&self, layer: impl Fn(usize) -> Result<LayerSpec, ModelError>) -> Result<ModelSpec, ModelError> {
        let (width, (trunk, heads)) = (self.width()?, self.blocks()?);
        let causal = self.key("attention.causal");
        if self.metadata.bool_opt(&causal)? == Some(false) {
            return Err(bad(&causal, false, "true: every token attends to those before it only"));
        }
        let trained = self.count("context_length", CONTEXT)?;
        let window = self.metadata.uint_opt(&self.key("attention.sliding_window"))?;
        let window = window.map_or(0, |window| usize::try_from(window).unwrap_or(usize::MAX));
        // 0 says that there is none.
        let window = (1..trained).contains(&window).then_some(window);
        Ok(ModelSpec {
            architecture: self.prefix.clone(),
            width,
            vocab: self.vocab()?,
            context_length: window.unwrap_or(trained),
            window,
            norm_eps: match self.positive_opt("attention.layer_norm_epsilon")? {
                Some(eps) => eps,
                None => self.positive("attention.layer_norm_rms_epsilon")?,
            },
            layers: trunk.map(&layer).collect::<Result<_, _>>()?,
            prediction: heads.map(&layer).collect::<Result<_, _>>()?,
            tied_output: !self.has_tensor("output.weight"),
            output_norm: "output_norm.weight",
            scales: Scales::NONE,
            edgeinfinite: edgeinfinite::settings(self)?,
            exponents: exponents::of(self),
        })
    }

    /// Size of the vocabulary: rows of the embedding table, tokens, `vocab_size`, which must agree where they are.
    /// Whether the table is there is for binding to find out.
    fn vocab(&self) -> Result<usize, ModelError> {
        let tokens = self.metadata.strings_opt(TOKENS)?.map(|tokens| tokens.len() as u64);
        let declared = self.metadata.uint_opt(&self.key("vocab_size"))?;
        let table = self.tensors.get("token_embd.weight").map(|shape| shape.get(1).copied().unwrap_or(1));
        let rows = table
            .or(tokens)
            .or(declared)
            .ok_or_else(|| GgufError::MissingKey { key: TOKENS.into(), expected: "the list of tokens".into() })?;
        for (key, found) in [(TOKENS.to_string(), tokens), (self.key("vocab_size"), declared)] {
            if let Some(found) = found.filter(|found| *found != rows) {
                return Err(bad(&key, format!("{found} entries"), &format!("the vocabulary's {rows}")));
            }
        }
        in_range("token_embd.weight", rows, 1..=1 << 24)
    }
}

/// A count, if it lies in `range`.
pub(super) fn in_range(key: &str, found: u64, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
    match usize::try_from(found) {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(bad(key, found, &format!("{} to {}", range.start(), range.end()))),
    }
}

fn positive(key: &str, found: f32) -> Result<f32, ModelError> {
    if found.is_finite() && found > 0.0 { Ok(found) } else { Err(bad(key, found, "a positive number")) }
}

/// A key with a value outside its range.
pub(super) fn bad(key: &str, found: impl ToString, expected: &str) -> ModelError {
    GgufError::BadValue { key: key.into(), found: found.to_string(), expected: expected.into() }.into()
}
