//! The directory at the beginning of a safetensors file: which tensors there are, and where. What is wrong with it is said
//! of the tensor at fault.

use anyhow::{Context as _, Result, bail};
use safetensors::tensor::{Dtype, Metadata};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::{Formatter, Result as Written};
use std::fs::File;
use std::io::Read;

/// The limit of the format itself.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// What is no tensor.
const REMARKS: &str = "__metadata__";

/// The checked directory of a file, and where in the file its data begins.
pub(super) fn read(file: &mut File, name: &str) -> Result<(Metadata, u64)> {
    let length = file.metadata().with_context(|| name.to_string())?.len();
    if length < 8 {
        bail!("{name}: {length} bytes, expected a safetensors file, which has at least 8");
    }
    let mut size = [0; 8];
    file.read_exact(&mut size).with_context(|| name.to_string())?;
    let size = u64::from_le_bytes(size);
    if size > HEADER_BYTES_MAX.min(length - 8) {
        let mut beginning = size.to_le_bytes().to_vec();
        file.take(64).read_to_end(&mut beginning).with_context(|| name.to_string())?;
        super::json::refuse_pointer(name, &beginning)?;
        bail!("{name}: a header of {size} bytes in a file of {length}, expected a safetensors file");
    }
    let mut header = vec![0; size as usize];
    file.read_exact(&mut header).with_context(|| name.to_string())?;
    let of_library = || format!("{name}: the header is no safetensors header");
    let Entries(entries) = serde_json::from_slice(&header).with_context(of_library)?;
    check(&entries).with_context(|| name.to_string())?;
    let metadata: Metadata = serde_json::from_slice(&header).with_context(of_library)?;
    let expected = (8 + size).checked_add(metadata.data_len() as u64);
    if expected != Some(length) {
        bail!("{name}: {length} bytes, expected {} after its header", expected.unwrap_or(u64::MAX));
    }
    Ok((metadata, 8 + size))
}

/// The entries of an object as they stand there: a map would have the last one of each name.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Entries, D::Error> {
        from.deserialize_map(Entries(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Entries {
    type Value = Entries;

    fn expecting(&self, out: &mut Formatter<'_>) -> Written {
        out.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<Entries, M::Error> {
        while let Some(entry) = map.next_entry()? {
            self.0.push(entry);
        }
        Ok(self)
    }
}

/// Every tensor has the bytes that its type and shape make, and begins where another one ends.
fn check(entries: &[(String, Value)]) -> Result<()> {
    let mut names = BTreeSet::new();
    if let Some((name, _)) = entries.iter().find(|(name, _)| !names.insert(name)) {
        bail!("tensor {name} occurs twice in the header, expected one of each name");
    }
    let tensors = entries.iter().filter(|(name, _)| *name != REMARKS);
    let mut places = tensors.map(|(name, entry)| Ok((place(name, entry)?, name))).collect::<Result<Vec<_>>>()?;
    places.sort_unstable();
    let mut next = 0;
    for ([begin, end], name) in places {
        if begin != next {
            bail!("tensor {name} begins at byte {begin} of the data, expected {next}, where the one before it ends");
        }
        next = end;
    }
    Ok(())
}

/// Where the data of a tensor begins and ends.
fn place(name: &str, entry: &Value) -> Result<[u64; 2]> {
    let of = |field: &str| serde_json::from_value::<Vec<u64>>(entry[field].clone()).ok();
    let Ok(dtype) = serde_json::from_value::<Dtype>(entry["dtype"].clone()) else {
        bail!("tensor {name}: dtype = {}, expected a type of safetensors such as BF16", entry["dtype"]);
    };
    let Some(shape) = of("shape") else {
        bail!("tensor {name}: shape = {}, expected a list of sizes", entry["shape"]);
    };
    let offsets = of("data_offsets").and_then(|offsets| <[u64; 2]>::try_from(offsets).ok());
    let Some([begin, end]) = offsets.filter(|[begin, end]| begin <= end) else {
        bail!("tensor {name}: data_offsets = {}, expected where it begins and ends", entry["data_offsets"]);
    };
    let bits = shape.iter().try_fold(dtype.bitsize() as u64, |bits, size| bits.checked_mul(*size));
    if bits != (end - begin).checked_mul(8) {
        let expected = bits.map_or_else(|| "fewer numbers".to_string(), |bits| bits.div_ceil(8).to_string());
        bail!("tensor {name} has {} bytes, expected {expected} of {dtype:?} in the shape {shape:?}", end - begin);
    }
    Ok([begin, end])
}
