//! The header of a session file: what sections there are, how long they are, and their checksums.

use super::ModelId;
use crate::{memory::EvictionRecord, policy::Shares};
use kvas_backend::{KvType, Program};
use kvas_gguf::Quant;
use serde_json::{Map, Value, json};

/// The versions of the format: the second one has prefixes of which tokens were evicted, the third one says that none were,
/// by somebody who evicts tokens.
pub(super) const VERSIONS: [&str; 3] = ["1", "2", "3"];

/// The last section: the checksum of the header itself.
pub(super) const HEADER: &str = "header";
/// The key that every session has, with the version of its form.
pub(super) const MARK: &str = "kvas_session";

/// What is in a file, apart from the tokens and the conversation: sizes only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionLayout {
    /// Element type of keys and values.
    pub(super) kv_type: KvType,
    /// Tokens whose keys and values there are.
    pub(super) rows: usize,
    /// By page store: values of a token.
    pub(super) columns: Vec<usize>,
    /// Positions there is a state at, ascending.
    pub(super) positions: Vec<u32>,
    /// Values of a state.
    pub(super) state_elements: usize,
    /// Prefixes of which tokens were evicted, if there are any; or whose tokens would be.
    pub(super) shortened: Option<ShortenedLayout>,
}

/// What there is of prefixes of which tokens were evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShortenedLayout {
    /// How they were evicted: who evicts others cannot go on from there.
    pub(super) policy: String,
    /// Their lengths, ascending.
    pub(super) prefixes: Vec<(u32, EvictionRecord)>,
    /// Values that are remembered of what was evicted, or of queries that decide what will be.
    pub(super) elements: usize,
    /// There are no such prefixes: all that was read is held so far.
    pub(super) is_whole: bool,
}

impl SessionLayout {
    /// The layout of what a program keeps of the first `length` tokens, with states at `positions`.
    pub fn new(program: &Program, kv_type: KvType, length: u32, positions: Vec<u32>) -> Self {
        let (state_elements, shortened) = (program.slot_elements(), None);
        Self { kv_type, rows: length as usize, columns: columns(program), positions, state_elements, shortened }
    }

    /// And of prefixes of these lengths, ascending, of which tokens were evicted by a policy.
    #[must_use]
    pub fn with_shortened(self, program: &Program, policy: String, prefixes: Vec<(u32, EvictionRecord)>) -> Self {
        let elements = program.evicted_elements();
        Self { shortened: Some(ShortenedLayout { policy, prefixes, elements, is_whole: false }), ..self }
    }

    /// And that they were read by a policy that has evicted none of them yet; so many values are remembered for that.
    #[must_use]
    pub fn with_whole(self, policy: String, elements: usize) -> Self {
        let shortened = ShortenedLayout { policy, prefixes: Vec::new(), elements, is_whole: true };
        Self { shortened: Some(shortened), ..self }
    }

    /// How tokens of its last prefix were evicted, and how many of every layer, if any were.
    pub(super) fn eviction(&self) -> Option<(&str, u32)> {
        let shortened = self.shortened.as_ref()?;
        let (length, eviction) = shortened.prefixes.last()?;
        Some((&shortened.policy, eviction.tokens(*length)))
    }

    /// About the bytes of a file of so many tokens: all but its header.
    pub fn bytes(&self, tokens: usize) -> u64 {
        sections(self, tokens, 0).iter().map(|section| section.bytes as u64).sum()
    }

    /// The bytes of a file of so many tokens of a model, without a conversation.
    pub(super) fn file_bytes(&self, model: &ModelId, tokens: usize) -> u64 {
        let header = write(model, self.shortened.as_ref(), &sections(self, tokens, 0));
        self.bytes(tokens) + header.len() as u64
    }
}

/// By page store: values of a token.
pub(super) fn columns(program: &Program) -> Vec<usize> {
    let of_store = |store: &kvas_backend::StoreDecl| match store {
        kvas_backend::StoreDecl::Pages(pages) => Some(pages.row_elements()),
        kvas_backend::StoreDecl::State(_) | kvas_backend::StoreDecl::Conv(_) => None,
    };
    program.stores.iter().filter_map(of_store).collect()
}

/// One named array of a file.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: usize,
    pub(super) checksum: blake3::Hash,
}

impl Section {
    /// Whether it holds keys and values.
    pub(super) fn has_rows(&self) -> bool {
        self.name.split('.').any(|part| part == "kv")
    }

    fn new(name: String, (dtype, element_bytes): (&'static str, usize), shape: Vec<usize>) -> Self {
        let bytes = shape.iter().product::<usize>() * element_bytes;
        Self { name, dtype, shape, bytes, checksum: blake3::Hash::from_bytes([0; 32]) }
    }
}

/// The sections of a file, in its order; the checksum of the header comes last.
pub(super) fn sections(layout: &SessionLayout, tokens: usize, conversation: usize) -> Vec<Section> {
    let mut all = vec![Section::new("tokens".into(), ("U32", 4), vec![tokens])];
    let kv = match layout.kv_type {
        KvType::F32 | KvType::Q8_0 | KvType::F8 => ("F32", 4),
        KvType::F16 => ("F16", 2),
        KvType::Bf16 => ("BF16", 2),
    };
    for (store, columns) in layout.columns.iter().enumerate() {
        all.push(Section::new(format!("kv.{store}"), kv, vec![layout.rows, *columns]));
    }
    for position in &layout.positions {
        all.push(Section::new(format!("state.{position}"), ("F32", 4), vec![layout.state_elements]));
    }
    if let Some(ShortenedLayout { is_whole: true, elements: elements @ 1.., .. }) = layout.shortened {
        all.push(Section::new(WHOLE_MEMORY.into(), ("F32", 4), vec![elements]));
    }
    let shortened = layout.shortened.iter().flat_map(|shortened| {
        shortened.prefixes.iter().map(|(length, eviction)| (*length, eviction, shortened.elements))
    });
    for (length, eviction, elements) in shortened {
        let stores = layout.columns.iter().zip(&eviction.held).enumerate();
        all.extend(stores.map(|(store, (columns, held))| {
            Section::new(format!("shortened.{length}.kv.{store}"), kv, vec![*held as usize, *columns])
        }));
        let parts = [("state", layout.state_elements), ("memory", elements)];
        all.extend(
            parts
                .into_iter()
                .filter(|(_, elements)| *elements > 0)
                .map(|(part, elements)| Section::new(format!("shortened.{length}.{part}"), ("F32", 4), vec![elements])),
        );
    }
    all.push(Section::new("conversation".into(), ("U8", 1), vec![conversation]));
    all.push(Section::new(HEADER.into(), ("U8", 1), vec![blake3::OUT_LEN]));
    all
}

/// The header as it stands at the beginning of a file, its own length first. Its length does not depend on the
/// checksums.
pub(super) fn write(model: &ModelId, shortened: Option<&ShortenedLayout>, sections: &[Section]) -> Vec<u8> {
    let mut metadata = Map::new();
    let version = shortened.map_or(0, |shortened| 1 + usize::from(shortened.is_whole));
    metadata.insert(MARK.into(), json!(VERSIONS[version]));
    if let Some(ShortenedLayout { policy, prefixes, .. }) = shortened {
        metadata.insert(POLICY.into(), json!(policy));
        for (length, eviction) in prefixes {
            metadata.insert(shortened_key(*length), json!(eviction_text(eviction)));
        }
    }
    metadata.insert("model".into(), json!(model.name));
    metadata.insert("architecture".into(), json!(model.architecture));
    metadata.insert("fingerprint".into(), json!(model.fingerprint));
    for section in sections.iter().filter(|section| section.name != HEADER) {
        metadata.insert(checksum_key(&section.name), json!(section.checksum.to_hex().as_str()));
    }
    let mut header = Map::new();
    header.insert("__metadata__".into(), Value::Object(metadata));
    let mut at = 0;
    for section in sections {
        let end = at + section.bytes;
        let entry = json!({"dtype": section.dtype, "shape": section.shape, "data_offsets": [at, end]});
        header.insert(section.name.clone(), entry);
        at = end;
    }
    let mut text = Value::Object(header).to_string();
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The metadata key of how tokens were evicted.
pub(super) const POLICY: &str = "policy";

/// The section of the last queries of who holds all that was read.
pub(super) const WHOLE_MEMORY: &str = "whole.memory";

/// The metadata key of how many tokens of a prefix are held.
pub(super) fn shortened_key(length: u32) -> String {
    format!("shortened.{length}")
}

/// What it says: by layer the tokens that are held, those that stayed when tokens were evicted last, and what may be held;
/// and what that was made for.
pub(super) const GIVEN_UP: &str = "HELD,…;STAYED,…;BUDGETS,…;ROWS";

fn eviction_text(EvictionRecord { held, shares }: &EvictionRecord) -> String {
    let list = |all: &[u32]| all.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    format!("{};{};{};{}", list(held), list(&shares.stayed), list(&shares.budgets), shares.rows())
}

/// The opposite.
pub(super) fn eviction_of(text: &str) -> Option<EvictionRecord> {
    let list = |text: &str| -> Option<Vec<u32>> {
        text.split(',').filter(|_| !text.is_empty()).map(|number| number.parse().ok()).collect()
    };
    let parts: Vec<&str> = text.split(';').collect();
    let [held, stayed, budgets, rows] = parts[..] else { return None };
    let shares = Shares::new(list(stayed)?, list(budgets)?, rows.parse().ok()?);
    Some(EvictionRecord { held: list(held)?, shares })
}

/// The metadata key of a section's checksum.
pub(super) fn checksum_key(section: &str) -> String {
    format!("checksum.{section}")
}

/// The format that converts keys and values: one that keeps what pages of this type give back.
pub(super) fn quant(kv_type: KvType) -> Quant {
    match kv_type {
        KvType::F32 | KvType::Q8_0 | KvType::F8 => Quant::F32,
        KvType::F16 => Quant::F16,
        KvType::Bf16 => Quant::Bf16,
    }
}
