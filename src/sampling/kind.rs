//! The samplers that can be put in order, their names and their letters.

use super::SamplingError;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::str::FromStr;

/// One stage of the chain that narrows or reweighs the candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SamplerKind {
    /// Repetition, frequency and presence penalties.
    Penalties,
    /// Penalty on continuing a sequence that was already said.
    Dry,
    /// Keep logits within some standard deviations of the largest.
    TopNSigma,
    /// Keep the k most likely tokens.
    TopK,
    /// Keep the tokens whose information is nearest to the entropy.
    TypicalP,
    /// Keep the smallest set of likely tokens that reaches a mass.
    TopP,
    /// Keep tokens that are at least some fraction as likely as the likeliest.
    MinP,
    /// Sometimes exclude all likely tokens except the last of them.
    Xtc,
    /// Divide the logits by the temperature, which may follow the entropy.
    Temperature,
}

/// Kind, letter, name, and other spellings in use.
const TABLE: &[(SamplerKind, char, &str, &[&str])] = &[
    (SamplerKind::Penalties, 'e', "penalties", &[]),
    (SamplerKind::Dry, 'd', "dry", &[]),
    (SamplerKind::TopNSigma, 's', "top_n_sigma", &["top-n-sigma"]),
    (SamplerKind::TopK, 'k', "top_k", &["top-k"]),
    (SamplerKind::TypicalP, 'y', "typ_p", &["typ-p", "typ", "typical", "typical_p", "typical-p"]),
    (SamplerKind::TopP, 'p', "top_p", &["top-p", "nucleus"]),
    (SamplerKind::MinP, 'm', "min_p", &["min-p"]),
    (SamplerKind::Xtc, 'x', "xtc", &[]),
    (SamplerKind::Temperature, 't', "temperature", &["temp"]),
];

impl SamplerKind {
    /// Every kind, in the default order.
    pub const DEFAULT_ORDER: [SamplerKind; 9] = [
        SamplerKind::Penalties,
        SamplerKind::Dry,
        SamplerKind::TopNSigma,
        SamplerKind::TopK,
        SamplerKind::TypicalP,
        SamplerKind::TopP,
        SamplerKind::MinP,
        SamplerKind::Xtc,
        SamplerKind::Temperature,
    ];

    /// The name users write: `top_k`.
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|row| row.0 == self).map_or("", |row| row.2)
    }

    /// The letter of the short form: `k`.
    pub fn letter(self) -> char {
        TABLE.iter().find(|row| row.0 == self).map_or(' ', |row| row.1)
    }

    fn from_letter(letter: char) -> Option<SamplerKind> {
        TABLE.iter().find(|row| row.1 == letter).map(|row| row.0)
    }
}

impl std::fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SamplerKind {
    type Err = SamplingError;

    fn from_str(name: &str) -> Result<SamplerKind, SamplingError> {
        let wanted = name.trim().to_ascii_lowercase();
        TABLE
            .iter()
            .find(|row| row.2 == wanted || row.3.contains(&wanted.as_str()))
            .map(|row| row.0)
            .ok_or_else(|| unknown(name))
    }
}

fn unknown(name: &str) -> SamplingError {
    let known: Vec<String> = TABLE.iter().map(|row| format!("{} ({})", row.2, row.1)).collect();
    SamplingError::UnknownSampler { name: name.chars().take(64).collect(), known: known.join(", ") }
}

/// Reads an order of samplers: names with `;` between them (`top_k;top_p;temperature`) or letters (`kpt`).
///
/// A text that is one full name is that sampler, never letters. The empty text is the empty order: the token is drawn
/// from the distribution as it is.
///
/// # Errors
/// [`SamplingError::UnknownSampler`] with the name or letter that is unknown and all those that exist.
pub fn parse_samplers(text: &str) -> Result<Vec<SamplerKind>, SamplingError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    if text.contains(';') {
        return text.split(';').filter(|name| !name.trim().is_empty()).map(str::parse).collect();
    }
    if let Ok(kind) = text.parse() {
        return Ok(vec![kind]);
    }
    let letters: Option<Vec<SamplerKind>> = text.chars().map(SamplerKind::from_letter).collect();
    letters.ok_or_else(|| unknown(text))
}

impl Serialize for SamplerKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for SamplerKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SamplerKind, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Reads a list of names, or one text in either form that [`parse_samplers`] knows.
pub(super) fn deserialize_order<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SamplerKind>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Order {
        Names(Vec<String>),
        Text(String),
    }
    let parsed = match Order::deserialize(deserializer)? {
        Order::Names(names) => names.iter().map(|name| name.parse()).collect(),
        Order::Text(text) => parse_samplers(&text),
    };
    parsed.map_err(serde::de::Error::custom)
}
