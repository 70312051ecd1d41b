//! What the tensors of an adapter are called, and which of a checkpoint they are for.

use super::super::checkpoint::Stored;
use super::super::settings::Settings;
use super::WEIGHTS;
use super::delta::Matrices;
use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// What the names of all tensors begin with.
const PREFIX: &str = "base_model.model.";

/// A tensor of what an adapter says of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    A,
    B,
    Bias,
    EmbeddingA,
    EmbeddingB,
    Magnitude,
}

const PARTS: [(&str, Part); 5] = [
    ("lora_A", Part::A),
    ("lora_B", Part::B),
    ("lora_embedding_A", Part::EmbeddingA),
    ("lora_embedding_B", Part::EmbeddingB),
    ("lora_magnitude_vector", Part::Magnitude),
];

/// What a tensor of an adapter is for.
#[derive(Debug, PartialEq)]
pub(super) enum Place {
    /// A part of what is said of this module.
    Part(String, Part),
    /// It stands in the place of this tensor.
    Whole(String),
    /// Its rows stand in the places of some of the weight of this module.
    Tokens(String),
    Unknown,
}

/// The place of a tensor. After the name of a part comes that of the adapter, where it was saved with it.
pub(super) fn place(key: &str) -> Place {
    let words: Vec<&str> = key.strip_prefix(PREFIX).unwrap_or(key).split('.').collect();
    for (name, part) in PARTS {
        let Some(at) = words.iter().position(|word| *word == name) else { continue };
        let module = words[..at].join(".");
        return match (part, &words[at + 1..]) {
            (Part::B, ["bias"] | [_, "bias"]) => Place::Part(module, Part::Bias),
            (_, [_, "bias"] | ["bias"]) => Place::Unknown,
            (_, [] | [_] | [_, "weight"]) => Place::Part(module, part),
            _ => Place::Unknown,
        };
    }
    if let Some(at) = words.iter().position(|word| *word == "modules_to_save") {
        let named = usize::from(words.len() > at + 2);
        return Place::Whole([&words[..at], &words[at + 1 + named..]].concat().join("."));
    }
    if let Some(at) = words.iter().position(|word| *word == "token_adapter")
        && let ["trainable_tokens_delta"] | ["trainable_tokens_delta", _] = words[at + 1..]
    {
        return Place::Tokens(words[..at].join("."));
    }
    let is_own = |word: &&str| word.starts_with("lora_") || *word == "original_module" || *word == "token_adapter";
    if words.iter().any(is_own) {
        return Place::Unknown;
    }
    let words: Vec<&str> = words.into_iter().filter(|word| *word != "base_layer").collect();
    Place::Whole(words.join("."))
}

/// The names that a tensor may have in the checkpoint, whatever class of the model the adapter was trained with: the same, and
/// those under another beginning of the language model or of its head.
pub(super) fn candidates(settings: &Settings, name: &str) -> Vec<String> {
    let mut name = name.to_string();
    for (from, to) in settings.architecture.renames {
        name = name.replace(from, to);
    }
    let own = settings.trunk;
    let pairs = settings.architecture.trunks.iter().map(|other| [(other.trunk, own.trunk), (other.head, own.head)]);
    let moved = pairs.flatten().filter_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
    std::iter::once(name.clone()).chain(moved).collect()
}

/// What an adapter says of one module.
#[derive(Debug, Default)]
pub(super) struct Parts(BTreeMap<Part, (String, Stored)>);

impl Parts {
    pub(super) fn add(&mut self, part: Part, key: String, stored: Stored) -> Result<()> {
        match self.0.insert(part, (key.clone(), stored)) {
            None => Ok(()),
            Some((other, _)) => bail!("{WEIGHTS}: tensor {key} has the place of {other}, expected one adapter"),
        }
    }

    /// The name of one of the tensors.
    pub(super) fn first(&self) -> Option<&str> {
        self.0.values().next().map(|(key, _)| key.as_str())
    }

    pub(super) fn take(&mut self, part: Part) -> Option<(String, Stored)> {
        self.0.remove(&part)
    }

    /// What is added to a matrix of so many rows and columns by two of this rank.
    pub(super) fn delta(mut self, module: &str, [rows, columns, rank]: [usize; 3], dora: bool) -> Result<Matrices> {
        let is_embedding = self.0.contains_key(&Part::EmbeddingA) || self.0.contains_key(&Part::EmbeddingB);
        let (a, b) = if is_embedding { (Part::EmbeddingA, Part::EmbeddingB) } else { (Part::A, Part::B) };
        let (a_shape, b_shape) =
            if is_embedding { ([rank, rows], [columns, rank]) } else { ([rank, columns], [rows, rank]) };
        let a = self.shaped(module, a, &a_shape)?;
        let b = self.shaped(module, b, &b_shape)?;
        // Those of embeddings are of columns, not of rows.
        if let Some((key, _)) = self.0.get(&Part::Magnitude).filter(|_| is_embedding || !dora) {
            let why = if is_embedding { "embeddings without use_dora" } else { "use_dora = true with it" };
            bail!("{WEIGHTS}: tensor {key}, expected {why}");
        }
        if is_embedding && dora {
            bail!("{WEIGHTS}: {module} has no lora_magnitude_vector, expected embeddings without use_dora");
        }
        let magnitude = if dora { Some(self.shaped(module, Part::Magnitude, &[rows])?) } else { None };
        if let Some(key) = self.first() {
            bail!("{WEIGHTS}: tensor {key} is left over, expected either lora_A and lora_B or those of embeddings");
        }
        Ok(if is_embedding { Matrices::Embedding { a, b } } else { Matrices::Product { a, b, magnitude } })
    }

    fn shaped(&mut self, module: &str, part: Part, shape: &[usize]) -> Result<(String, Stored)> {
        let name = PARTS.iter().find(|row| row.1 == part).map_or("lora_B", |row| row.0);
        match self.take(part) {
            Some((key, stored)) if stored.shape == shape => Ok((key, stored)),
            Some((key, stored)) => {
                bail!("{WEIGHTS}: tensor {key} has the shape {:?}, expected {shape:?}", stored.shape)
            }
            None => bail!("{WEIGHTS}: {name} of {module} is missing, expected with the shape {shape:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_tensors_say_what_they_are_for() {
        let part = |module: &str, part| Place::Part(module.into(), part);
        let whole = |name: &str| Place::Whole(name.into());
        let found = |key: &str| place(&format!("base_model.model.{key}"));
        assert_eq!(found("model.q_proj.lora_A.weight"), part("model.q_proj", Part::A));
        assert_eq!(found("model.q_proj.lora_B.default.weight"), part("model.q_proj", Part::B));
        assert_eq!(found("model.q_proj.lora_B.bias"), part("model.q_proj", Part::Bias));
        assert_eq!(found("embed.lora_embedding_A"), part("embed", Part::EmbeddingA));
        assert_eq!(found("embed.lora_embedding_B.other"), part("embed", Part::EmbeddingB));
        assert_eq!(found("q.lora_magnitude_vector"), part("q", Part::Magnitude));
        assert_eq!(found("lm_head.weight"), whole("lm_head.weight"));
        assert_eq!(found("lm_head.modules_to_save.default.weight"), whole("lm_head.weight"));
        assert_eq!(found("lm_head.modules_to_save.weight"), whole("lm_head.weight"));
        assert_eq!(found("mlp.modules_to_save.default.up.weight"), whole("mlp.up.weight"));
        assert_eq!(found("embed.base_layer.weight"), whole("embed.weight"));
        assert_eq!(place("q.lora_A.weight"), part("q", Part::A));
        assert_eq!(found("e.token_adapter.trainable_tokens_delta"), Place::Tokens("e".into()));
        for odd in ["q.lora_A.bias", "q.lora_A.x.y.weight", "q.lora_C.weight", "e.token_adapter.base_layer.weight"] {
            assert_eq!(found(odd), Place::Unknown, "{odd}");
        }
    }
}
