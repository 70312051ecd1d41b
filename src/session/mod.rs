//! Sessions: a file that holds what a conversation has read, so that it goes on later without reading it again. The
//! container is that of safetensors, with a checksum for every section and one for the header. Knows sizes and bytes;
//! which pages and slots they come from is the engine's business, what a conversation is the caller's.

mod error;
mod header;
mod model;
mod offload;
mod shortened;
#[cfg(test)]
mod tests;
mod version_guard;
mod write;

pub use error::SessionError;
pub use header::SessionLayout;
pub use model::ModelId;
pub use offload::{OffloadCache, OffloadUsage, PrefixQuery};
pub use version_guard::VersionGuard;
pub use write::{OpenWriter, Writer, Written, is_replaceable};

use header::{HEADER, MARK, POLICY, VERSIONS, WHOLE_MEMORY, checksum_key};
use kvas_backend::Program;
use kvas_gguf::{GgufError, Quant, TensorBytes};
use safetensors::{Dtype, SafeTensors, tensor::Metadata};
use shortened::Shortened;
use std::{collections::BTreeMap, ops::Range, path::Path};

/// A session file, mapped and checked; or what would be one, in memory.
#[derive(Debug, Clone)]
pub struct Session {
    path: String,
    bytes: TensorBytes,
    model: ModelId,
    tokens: Vec<u32>,
    conversation: String,
    /// Tokens whose keys and values there are.
    rows: usize,
    /// By page store.
    kv: BTreeMap<usize, Array>,
    /// By position.
    states: BTreeMap<u32, Array>,
    /// By length: prefixes of which tokens were evicted.
    shortened: BTreeMap<u32, Shortened>,
    /// How they were, or would be.
    policy: String,
    /// Whether who read the tokens would give some up, and has not yet.
    is_whole: bool,
    /// What is remembered for that.
    whole_memory: Option<Array>,
}

/// Numbers of a file.
#[derive(Debug, Clone)]
struct Array {
    quant: Quant,
    /// `[rows, columns]`
    shape: [usize; 2],
    range: Range<usize>,
}

impl Session {
    /// Maps a file and checks all of it.
    pub fn open(path: &Path) -> Result<Self, SessionError> {
        let name = path.display().to_string();
        if path.is_dir() {
            let what = "is a folder, expected a session file".into();
            return Err(GgufError::Format { path: name, what }.into());
        }
        Self::from_bytes(&name, TensorBytes::map(path)?)
    }

    /// Checks a session that is in memory; `path` stands for it in messages.
    pub fn from_bytes(path: &str, bytes: TensorBytes) -> Result<Self, SessionError> {
        let read = Sections::read(&bytes).and_then(|sections| sections.session(path, &bytes));
        read.map_err(|(section, what)| SessionError::Format { path: path.into(), section, what })
    }

    /// The file, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The conversation's tokens; all but the last few have been read.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// What the writer of the session added.
    pub fn conversation(&self) -> &str {
        &self.conversation
    }

    /// Positions among the first `length` tokens that can be gone back to, ascending: where there is a state, or the last
    /// one if there are none.
    pub fn positions(&self, length: u32) -> Vec<u32> {
        if self.states.is_empty() && self.rows > 0 {
            return vec![length.min(self.rows as u32)];
        }
        self.states.keys().copied().filter(|position| *position <= length).collect()
    }

    /// Refuses a session of another model.
    pub fn check_model(&self, model: &ModelId) -> Result<(), SessionError> {
        if self.model.fingerprint == model.fingerprint {
            return Ok(());
        }
        let (path, found, expected) = (self.path.clone(), self.model.to_string(), model.to_string());
        Err(SessionError::Model { path, found, expected })
    }

    /// Refuses a session whose sizes are not those of the model's program.
    pub fn check_program(&self, program: &Program) -> Result<(), SessionError> {
        let fail = |section: &str, what: String| {
            Err(SessionError::Format { path: self.path.clone(), section: section.into(), what })
        };
        let (found, expected): (Vec<usize>, _) =
            (self.kv.values().map(|kv| kv.shape[1]).collect(), header::columns(program));
        if found != expected {
            return fail("kv", format!("{found:?} values a token, expected {expected:?} by layer"));
        }
        let elements = program.slot_elements();
        if let Some((position, state)) = self.states.iter().find(|(_, state)| state.shape[1] != elements) {
            return fail(&format!("state.{position}"), format!("{} values, expected {elements}", state.shape[1]));
        }
        if elements > 0 && self.states.is_empty() && self.rows > 0 {
            return fail("state", "there is none, expected one where the keys and values end".into());
        }
        let vocab = program.vocab();
        if let Some(token) = self.tokens.iter().find(|token| **token as usize >= vocab) {
            return fail("tokens", format!("token {token}, expected less than the vocabulary of {vocab}"));
        }
        Ok(())
    }

    /// The keys and values of up to `rows` tokens from `first` on, in a page store.
    pub fn rows(&self, store: usize, first: usize, rows: usize, out: &mut Vec<f32>) {
        self.some_rows(&self.kv[&store], (first, rows), out);
    }

    fn some_rows(&self, kv: &Array, (first, rows): (usize, usize), out: &mut Vec<f32>) {
        let [all, columns] = kv.shape;
        let (first, end) = (first.min(all), first.saturating_add(rows).min(all));
        self.convert(kv, first * columns, (end - first) * columns, out);
    }

    /// The state at a position there is one at.
    pub fn state(&self, position: u32, out: &mut Vec<f32>) {
        let state = &self.states[&position];
        self.convert(state, 0, state.shape[1], out);
    }

    fn convert(&self, array: &Array, first: usize, count: usize, out: &mut Vec<f32>) {
        let size = array.quant.block_bytes();
        let bytes = &self.bytes[array.range.clone()][first * size..][..count * size];
        out.resize(count, 0.0);
        array.quant.dequantize(bytes, out).expect("as many bytes as the values take");
    }
}

/// What is wrong, and in which section.
type Fault = (String, String);

fn fault<T>(section: &str, what: impl Into<String>) -> Result<T, Fault> {
    Err((section.into(), what.into()))
}

/// The sections of a file whose checksums are right.
struct Sections {
    metadata: Metadata,
    /// Where the sections begin.
    data: usize,
}

impl Sections {
    fn read(bytes: &[u8]) -> Result<Self, Fault> {
        let damaged = || (HEADER.to_string(), "its checksum is wrong, expected a whole session file".to_string());
        // All begin with the length of an object.
        if bytes.get(8) != Some(&b'{') {
            return fault(
                HEADER,
                "it is that of another kind of file, expected a session as /save or --session writes it",
            );
        }
        let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length)).ok_or_else(damaged)?;
        let data = usize::try_from(length).ok().and_then(|length| length.checked_add(8)).ok_or_else(damaged)?;
        let (header, checksum) = bytes.get(..data).zip(bytes.last_chunk()).ok_or_else(damaged)?;
        if blake3::hash(header) != blake3::Hash::from_bytes(*checksum) {
            return Err(damaged());
        }
        let metadata = SafeTensors::read_metadata(bytes).map_err(|error| (HEADER.to_string(), error.to_string()))?.1;
        let sections = Self { metadata, data };
        let version = sections.text(MARK)?;
        if !VERSIONS.contains(&version) {
            let [oldest, .., newest] = VERSIONS;
            let what = format!("{MARK} is {version}, expected {oldest} to {newest}, which this version of kvas reads");
            return fault(HEADER, what);
        }
        for (name, range) in sections.ranges() {
            if name == HEADER {
                continue;
            }
            let expected = sections.text(&checksum_key(&name))?;
            if blake3::hash(&bytes[range]).to_hex().as_str() != expected {
                return fault(&name, "its checksum is wrong, the file is damaged");
            }
        }
        Ok(sections)
    }

    /// Names and places, in the order of the file.
    fn ranges(&self) -> Vec<(String, Range<usize>)> {
        let place = |name: String| {
            let (start, end) = self.metadata.info(&name).expect("a name of the metadata").data_offsets;
            (name, self.data + start..self.data + end)
        };
        self.metadata.offset_keys().into_iter().map(place).collect()
    }

    /// A text of the metadata.
    fn text(&self, key: &str) -> Result<&str, Fault> {
        let value = self.metadata.metadata().as_ref().and_then(|metadata| metadata.get(key));
        value.map(String::as_str).ok_or_else(|| (HEADER.into(), format!("{key} is missing")))
    }

    /// A section as rows of numbers.
    fn array(&self, name: &str, range: Range<usize>) -> Result<Array, Fault> {
        let info = self.metadata.info(name).expect("a name of the metadata");
        let known = [(Dtype::F32, Quant::F32), (Dtype::F16, Quant::F16), (Dtype::BF16, Quant::Bf16)];
        let Some((_, quant)) = known.into_iter().find(|(dtype, _)| *dtype == info.dtype) else {
            return fault(name, format!("its type is {:?}, expected F32, F16 or BF16", info.dtype));
        };
        let shape = match info.shape[..] {
            [columns] => [1, columns],
            [rows, columns] => [rows, columns],
            _ => return fault(name, format!("its shape is {:?}, expected one or two sizes", info.shape)),
        };
        Ok(Array { quant, shape, range })
    }

    fn session(&self, path: &str, bytes: &TensorBytes) -> Result<Session, Fault> {
        let [name, architecture, fingerprint] =
            ["model", "architecture", "fingerprint"].map(|key| self.text(key).map(str::to_string));
        let model = ModelId { name: name?, architecture: architecture?, fingerprint: fingerprint? };
        let (path, bytes) = (path.to_string(), bytes.clone());
        let (tokens, conversation, kv, states) = (Vec::new(), String::new(), BTreeMap::new(), BTreeMap::new());
        let version = self.text(MARK)?;
        let is_whole = version == VERSIONS[2];
        let policy = if is_whole { self.text(POLICY)?.to_string() } else { String::new() };
        let (rows, shortened, whole_memory) = (0, BTreeMap::new(), None);
        let mut session = Session {
            path,
            bytes,
            model,
            tokens,
            conversation,
            rows,
            kv,
            states,
            shortened,
            policy,
            is_whole,
            whole_memory,
        };
        for (name, range) in self.ranges() {
            let part = &session.bytes[range.clone()];
            match name.split_once('.') {
                None if name == "tokens" => {
                    let words = part.chunks_exact(4).map(|word| word.try_into().expect("4 bytes"));
                    session.tokens = words.map(u32::from_le_bytes).collect();
                }
                None if name == "conversation" => {
                    let text = String::from_utf8(part.to_vec());
                    session.conversation = text.map_err(|_| (name, "expected UTF-8 text".to_string()))?;
                }
                None if name == HEADER => {}
                Some(("kv", store)) if store.parse::<usize>().is_ok() => {
                    let store = store.parse().expect("it was read before");
                    session.kv.insert(store, self.array(&name, range)?);
                }
                Some(("state", position)) if position.parse::<u32>().is_ok() => {
                    let position = position.parse().expect("it was read before");
                    session.states.insert(position, self.array(&name, range)?);
                }
                Some(_) if name == WHOLE_MEMORY && is_whole => {
                    session.whole_memory = Some(self.array(&name, range)?);
                }
                Some(("shortened", part)) if version == VERSIONS[1] => {
                    self.shortened(&mut session, (&name, part), range)?;
                }
                _ => return fault(&name, "expected no such section here"),
            }
        }
        session.rows = session.kv.first_key_value().map_or(0, |(_, kv)| kv.shape[0]);
        check(&session)?;
        Ok(session)
    }
}

/// That the sections of a session belong together.
fn check(session: &Session) -> Result<(), Fault> {
    let (rows, tokens) = (session.rows, session.tokens.len());
    if !session.kv.keys().copied().eq(0..session.kv.len()) {
        return fault("kv", format!("layers {:?}, expected all from 0 on", session.kv.keys()));
    }
    if let Some((store, kv)) = session.kv.iter().find(|(_, kv)| kv.shape[0] != rows) {
        return fault(&format!("kv.{store}"), format!("{} rows, expected {rows}", kv.shape[0]));
    }
    if rows > tokens {
        return fault("kv.0", format!("{rows} rows, expected at most one for each of {tokens} tokens"));
    }
    shortened::check(session)?;
    if session.whole_memory.as_ref().is_some_and(|memory| memory.shape[0] != 1) {
        return fault(WHOLE_MEMORY, "expected one row of values");
    }
    let Some((&last, _)) = session.states.last_key_value() else { return Ok(()) };
    let name = format!("state.{last}");
    if last as usize > tokens || (!session.kv.is_empty() && last as usize != rows) {
        return fault(&name, format!("expected the last state after {rows} rows, of {tokens} tokens"));
    }
    if session.states.iter().any(|(position, state)| *position == 0 || state.shape[0] != 1) {
        return fault("state", "expected one row of values, after the first token or later");
    }
    Ok(())
}
