//! Random-weight models in the real layer shapes of known ones, for benchmarks and tests. A preset is metadata and
//! the marks that readers look for in a tensor directory; shapes come from lowering, like those of a real file.

mod models;
#[cfg(test)]
mod tests;
mod vocabulary;
mod write;

pub use models::PRESETS;
pub use write::write;

use crate::{
    arch::{self, Header},
    model::{ModelError, ModelSpec, lower::lower},
};
use kvas_backend::Program;
use kvas_gguf::{Metadata, Value};

/// A known model's shapes.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// The name users give.
    pub name: &'static str,
    architecture: &'static str,
    /// Parameters as published, in millions: of the trunk, without prediction heads and vision towers.
    #[cfg_attr(not(test), expect(dead_code, reason = "what the shapes are checked with"))]
    millions: f64,
    vocab: usize,
    tied: bool,
    blocks: usize,
    /// What every block is, in the letters of [`ModelSpec::pattern`]; it begins anew until all blocks have one.
    pattern: &'static str,
    /// Keys under the architecture's prefix, in groups.
    keys: &'static [Keys],
    /// Tensors outside blocks that a reader looks for, besides tables.
    tensors: &'static [&'static str],
    marks: &'static [Marks],
}

type Keys = &'static [(&'static str, Key)];

/// What a reader looks for in blocks whose pattern has a letter: tensors, without their block.
type Marks = (char, &'static [&'static str]);

#[derive(Debug, Clone, Copy)]
enum Key {
    U(u32),
    F(f32),
    B(bool),
    S(&'static [i32]),
    /// A number in the blocks whose pattern has the letter, 0 in the others.
    Each(char, i32),
    /// True in the blocks whose pattern has the letter.
    Is(char),
}

/// A preset by name.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

impl Preset {
    /// The letters of every block.
    fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.pattern.split(' ').cycle().take(self.blocks)
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", Value::String(self.architecture.into()));
        metadata.set("general.type", Value::String("model".into()));
        metadata.set("general.name", Value::String(format!("{} shapes, random weights", self.name)));
        metadata.set("general.quantization_version", Value::U32(2));
        let mut set = |key: &str, value| metadata.set(format!("{}.{key}", self.architecture), value);
        set("block_count", Value::U32(self.blocks as u32));
        set("vocab_size", Value::U32(self.vocab as u32));
        for (key, value) in self.keys.iter().copied().flatten() {
            set(key, self.value(*value));
        }
        vocabulary::add(&mut metadata, self.vocab);
        metadata
    }

    fn value(&self, key: Key) -> Value {
        match key {
            Key::U(value) => Value::U32(value),
            Key::F(value) => Value::F32(value),
            Key::B(value) => Value::Bool(value),
            Key::S(values) => Value::I32s(values.to_vec()),
            Key::Each(letter, value) => {
                Value::I32s(self.kinds().map(|kind| if kind.contains(letter) { value } else { 0 }).collect())
            }
            Key::Is(letter) => Value::Bools(self.kinds().map(|kind| kind.contains(letter)).collect()),
        }
    }

    /// The program of the preset, from the same reader and lowering as a file's.
    pub fn program(&self) -> Result<Program, ModelError> {
        Ok(lower(&self.spec(&self.metadata())?))
    }

    fn spec(&self, metadata: &Metadata) -> Result<ModelSpec, ModelError> {
        let width = metadata.uint(&format!("{}.embedding_length", self.architecture))?;
        let table = [width, self.vocab as u64];
        let in_blocks = self.kinds().enumerate().flat_map(|(block, kind)| {
            let marks = self.marks.iter().filter(move |(letter, _)| kind.contains(*letter));
            marks.flat_map(move |(_, stems)| stems.iter().map(move |stem| format!("blk.{block}.{stem}")))
        });
        let outside = self.tensors.iter().copied().chain((!self.tied).then_some("output.weight"));
        let marks: Vec<String> = in_blocks.chain(outside.map(String::from)).collect();
        let tensors = marks.iter().map(|name| (name.as_str(), &table[..0]));
        let header = Header::new(metadata, tensors.chain([("token_embd.weight", &table[..])]))?;
        arch::read(&header)
    }
}
