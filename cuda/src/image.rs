//! Machine code of all kernels in one file: what `kvas kernels build` writes and a build embeds.
//!
//! `KVASKERN2`, then per entry: architecture, unit and source hash, each after its length in one byte, the length of what
//! follows in four, the code, deflated: a fourth of its size.

use crate::compile::{Unit, runs_on};
use miniz_oxide::{deflate::compress_to_vec, inflate::decompress_to_vec_with_limit};

const MAGIC: &[u8] = b"KVASKERN2";
/// How hard code is deflated, of ten.
const EFFORT: u8 = 9;
/// Most bytes of the code of a unit: larger is damaged.
const MOST_BYTES: usize = 256 << 20;

static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.bin"));

/// What this binary was built with, if it was built with kernels.
pub(crate) fn embedded() -> Option<Image<'static>> {
    Image::new(EMBEDDED)
}

/// The architectures whose kernels are in this binary.
pub fn embedded_architectures() -> Vec<String> {
    let mut all: Vec<String> =
        embedded().into_iter().flat_map(Image::entries).map(|entry| entry.arch.to_string()).collect();
    all.dedup();
    all
}

/// An image in memory.
#[derive(Clone, Copy)]
pub(crate) struct Image<'a>(&'a [u8]);

struct Entry<'a> {
    arch: &'a str,
    unit: &'a str,
    hash: &'a str,
    deflated: &'a [u8],
}

impl<'a> Image<'a> {
    /// `None` if it is something else.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.strip_prefix(MAGIC).map(Self)
    }

    fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let mut text = || {
                let len = usize::from(*rest.split_off_first()?);
                std::str::from_utf8(rest.split_off(..len)?).ok()
            };
            let (arch, unit, hash) = (text()?, text()?, text()?);
            let len = rest.split_off(..4)?.try_into().map(u32::from_le_bytes).ok()?;
            Some(Entry { arch, unit, hash, deflated: rest.split_off(..len as usize)? })
        })
    }

    /// The code of a unit that runs on an architecture and was made from the source this binary has: that of the latest
    /// architecture that will do.
    pub(crate) fn find(self, unit: &Unit, arch: &str) -> Option<Vec<u8>> {
        let hash = unit.source_hash();
        let fits = self
            .entries()
            .filter(|entry| entry.unit == unit.name && entry.hash == hash && runs_on(entry.arch, arch))
            .max_by_key(|entry| entry.arch);
        decompress_to_vec_with_limit(fits?.deflated, MOST_BYTES).ok()
    }
}

/// An image in the making.
#[derive(Default)]
pub(crate) struct Builder(Vec<u8>);

impl Builder {
    /// Appends the code of a unit.
    pub(crate) fn add(&mut self, unit: &Unit, arch: &str, code: &[u8]) {
        for text in [arch, unit.name, &unit.source_hash()] {
            self.0.push(text.len() as u8);
            self.0.extend(text.as_bytes());
        }
        let deflated = compress_to_vec(code, EFFORT);
        self.0.extend((deflated.len() as u32).to_le_bytes());
        self.0.extend(deflated);
    }

    /// The whole file.
    pub(crate) fn finish(self) -> Vec<u8> {
        [MAGIC, &self.0].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::UNITS;

    #[test]
    fn what_is_added_is_found() {
        let mut builder = Builder::default();
        builder.add(&UNITS[0], "80", b"eighty");
        builder.add(&UNITS[0], "86", b"eighty-six");
        builder.add(&UNITS[1], "90a", b"ninety");
        let bytes = builder.finish();
        let image = Image::new(&bytes).unwrap();
        assert_eq!(image.find(&UNITS[0], "89").unwrap(), b"eighty-six");
        assert_eq!(image.find(&UNITS[0], "80").unwrap(), b"eighty");
        assert_eq!(image.find(&UNITS[1], "90a").unwrap(), b"ninety");
        assert_eq!(image.find(&UNITS[1], "80"), None);
        assert!(Image::new(b"something else").is_none());
        // An earlier form, in which code was not deflated.
        assert!(Image::new(b"KVASKERN\x0280").is_none());
        // Cut short: what is whole is still there.
        assert_eq!(Image::new(&bytes[..bytes.len() - 1]).unwrap().find(&UNITS[1], "90a"), None);
    }
}
