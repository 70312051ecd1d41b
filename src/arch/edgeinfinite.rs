//! The keys and tensors of EdgeInfinite's gates (ALGORITHMS 4.5), which a model of any architecture may have.

use super::header::{Header, bad, in_range};
use crate::model::{
    ModelError,
    spec::{EdgeInfinite, GateScope, MemoryGates, MemoryKeys, Positions},
};
use kvas_gguf::GgufError;

/// What the names of keys begin with.
const KEYS: &str = "edgeinfinite.";

/// What the names of a layer's tensors begin with.
const TENSORS: &str = "attn_mem_";

/// Tokens nobody keeps more of; with them positions stay far within 32 bits.
const LONGEST: usize = 1 << 24;

/// Whether a file has anything of it; then it must have all of it.
fn is_there(header: &Header) -> bool {
    header.metadata.iter().any(|(key, _)| key.starts_with(KEYS)) || header.any_block_tensor(TENSORS)
}

/// The lengths and conventions the gates were trained for; absent keys have the values of the paper.
pub(super) fn settings(header: &Header) -> Result<Option<EdgeInfinite>, ModelError> {
    if !is_there(header) {
        return Ok(None);
    }
    let length = |name: &str, least: usize, usual: usize| -> Result<usize, ModelError> {
        let key = format!("{KEYS}{name}");
        header.metadata.uint_opt(&key)?.map_or(Ok(usual), |found| in_range(&key, found, least..=LONGEST))
    };
    let activation = format!("{KEYS}activation");
    if let Some(found) = header.metadata.string_opt(&activation)?.filter(|found| *found != "elu1") {
        return Err(bad(&activation, found, "elu1"));
    }
    Ok(Some(EdgeInfinite {
        sink: length("sink_length", 0, 300)?,
        window: length("window_length", 1, 200)?,
        segment: length("segment_length", 1, 2048)?,
        positions: match switch(header, "pos_mode")? {
            true => Positions::Held,
            false => Positions::Sequence,
        },
        keys: match switch(header, "rope_in_memory")? {
            true => MemoryKeys::Rotated,
            false => MemoryKeys::Unrotated,
        },
    }))
}

/// A key that is 1 unless it says 0.
fn switch(header: &Header, name: &str) -> Result<bool, ModelError> {
    let key = format!("{KEYS}{name}");
    match header.metadata.uint_opt(&key)? {
        None | Some(1) => Ok(true),
        Some(0) => Ok(false),
        Some(found) => Err(bad(&key, found, "0 or 1")),
    }
}

/// The gates of one attention layer. A file that has any has them in all attention layers but those of prediction heads.
pub(super) fn gates(
    header: &Header,
    block: usize,
    heads: usize,
    value_dim: usize,
) -> Result<Option<MemoryGates>, ModelError> {
    if header.predicts(block)? || !is_there(header) {
        return Ok(None);
    }
    let width = value_dim as u64;
    let (first, found) = shape(header, block, "fc1.weight", &format!("[{width}, hidden columns]"))?;
    let hidden = match found {
        [columns, hidden] if *columns == width => *hidden,
        _ => return Err(mismatch(first, found, &format!("[{width}, hidden columns]"))),
    };
    for (stem, expected) in [("fc1.bias", vec![hidden]), ("fc2.weight", vec![hidden, width]), ("fc2.bias", vec![width])]
    {
        let (name, found) = shape(header, block, stem, &format!("{expected:?}"))?;
        if found != expected {
            return Err(mismatch(name, found, &format!("{expected:?}")));
        }
    }
    let hidden = in_range(&first, hidden, 1..=1 << 20)?;
    Ok(Some(MemoryGates { hidden, scope: scope(header, block, heads, value_dim)? }))
}

/// What `g` there is: what the key says, or what only one reading of the shape allows.
fn scope(header: &Header, block: usize, heads: usize, value_dim: usize) -> Result<GateScope, ModelError> {
    const NAMES: [(&str, GateScope); 3] =
        [("head_channel", GateScope::HeadChannel), ("channel", GateScope::Channel), ("head", GateScope::Head)];
    let key = format!("{KEYS}gate_scope");
    let shape_of = |scope: GateScope| match scope {
        GateScope::HeadChannel => vec![value_dim as u64, heads as u64],
        GateScope::Channel => vec![value_dim as u64],
        GateScope::Head => vec![heads as u64],
    };
    let any = NAMES.map(|(_, scope)| format!("{:?}", shape_of(scope))).join(" or ");
    let (name, found) = shape(header, block, "gate.weight", &any)?;
    if let Some(named) = header.metadata.string_opt(&key)? {
        let Some((_, scope)) = NAMES.into_iter().find(|(name, _)| *name == named) else {
            return Err(bad(&key, named, "head_channel, channel or head"));
        };
        let expected = shape_of(scope);
        let fits = found == expected;
        return if fits { Ok(scope) } else { Err(mismatch(name, found, &format!("{expected:?} for {key} {named}"))) };
    }
    let fits: Vec<GateScope> =
        NAMES.into_iter().map(|(_, scope)| scope).filter(|scope| shape_of(*scope) == found).collect();
    match fits[..] {
        [scope] => Ok(scope),
        [] => Err(mismatch(name, found, &any)),
        _ => {
            Err(GgufError::MissingKey { key, expected: format!("channel or head, since {name} may be either") }.into())
        }
    }
}

/// The name and the shape of a tensor that must be there.
fn shape<'a>(header: &Header<'a>, block: usize, stem: &str, expected: &str) -> Result<(String, &'a [u64]), ModelError> {
    let stem = format!("{TENSORS}{stem}");
    let name = format!("blk.{block}.{stem}");
    match header.block_tensor_shape(block, &stem) {
        Some(found) => Ok((name, found)),
        None => {
            let what = format!("is missing, expected {expected}, since the file has gates of EdgeInfinite");
            Err(GgufError::Tensor { name, what }.into())
        }
    }
}

fn mismatch(name: String, found: &[u64], expected: &str) -> ModelError {
    GgufError::Tensor { name, what: format!("has shape {found:?}, expected {expected}") }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelSpec, spec::Mixer};
    use kvas_gguf::{Metadata, Value};

    /// Two layers of four heads of eight columns, gates of 16 hidden columns and one per head and channel.
    struct Example {
        metadata: Metadata,
        tensors: Vec<(String, Vec<u64>)>,
    }

    impl Example {
        fn new() -> Example {
            let mut metadata = Metadata::default();
            metadata.set("general.architecture", Value::String("llama".into()));
            for (key, value) in [
                ("llama.block_count", 2),
                ("llama.context_length", 64),
                ("llama.embedding_length", 32),
                ("llama.feed_forward_length", 64),
                ("llama.attention.head_count", 4),
                ("llama.attention.head_count_kv", 2),
                ("llama.vocab_size", 10),
                ("edgeinfinite.sink_length", 3),
                ("edgeinfinite.segment_length", 6),
            ] {
                metadata.set(key, Value::U32(value));
            }
            metadata.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
            let mut example = Example { metadata, tensors: Vec::new() };
            for block in 0..2 {
                for (stem, shape) in [
                    ("fc1.weight", vec![8, 16]),
                    ("fc1.bias", vec![16]),
                    ("fc2.weight", vec![16, 8]),
                    ("fc2.bias", vec![8]),
                    ("gate.weight", vec![8, 4]),
                ] {
                    example.tensors.push((format!("blk.{block}.attn_mem_{stem}"), shape));
                }
            }
            example
        }

        fn shape(mut self, name: &str, shape: &[u64]) -> Example {
            self.tensors.retain(|(known, _)| known != name);
            if !shape.is_empty() {
                self.tensors.push((name.into(), shape.to_vec()));
            }
            self
        }

        fn key(mut self, key: &str, value: Value) -> Example {
            self.metadata.set(key, value);
            self
        }

        fn read(&self) -> Result<ModelSpec, ModelError> {
            let tensors = self.tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice()));
            crate::arch::read(&Header::new(&self.metadata, tensors)?)
        }

        fn refused(&self) -> String {
            self.read().unwrap_err().to_string()
        }
    }

    fn gates_of(spec: &ModelSpec) -> Vec<Option<MemoryGates>> {
        let mixers = spec.layers.iter().flat_map(|layer| &layer.mixers);
        mixers.map(|mixer| if let Mixer::Attention(attention) = mixer { attention.memory } else { None }).collect()
    }

    #[test]
    fn keys_have_the_values_of_the_paper_where_they_are_absent() {
        let spec = Example::new().read().unwrap();
        let expected =
            EdgeInfinite { sink: 3, window: 200, segment: 6, positions: Positions::Held, keys: MemoryKeys::Rotated };
        assert_eq!(spec.edgeinfinite, Some(expected));
        assert_eq!(gates_of(&spec), [Some(MemoryGates { hidden: 16, scope: GateScope::HeadChannel }); 2]);
        let example = Example::new().key("edgeinfinite.pos_mode", Value::U32(0));
        let spec = example.key("edgeinfinite.rope_in_memory", Value::U32(0)).read().unwrap().edgeinfinite.unwrap();
        assert_eq!((spec.positions, spec.keys), (Positions::Sequence, MemoryKeys::Unrotated));
    }

    #[test]
    fn a_model_without_any_of_it_has_none() {
        let mut example = Example::new();
        example.tensors.clear();
        example.metadata.remove("edgeinfinite.sink_length");
        example.metadata.remove("edgeinfinite.segment_length");
        let spec = example.read().unwrap();
        assert_eq!((spec.edgeinfinite, gates_of(&spec)), (None, vec![None, None]));
    }

    #[test]
    fn a_gate_may_be_per_channel_or_per_head() {
        let both = |shape: &[u64]| {
            Example::new().shape("blk.0.attn_mem_gate.weight", shape).shape("blk.1.attn_mem_gate.weight", shape)
        };
        for (shape, scope) in [(8, GateScope::Channel), (4, GateScope::Head)] {
            assert_eq!(gates_of(&both(&[shape]).read().unwrap()), [Some(MemoryGates { hidden: 16, scope }); 2]);
        }
        let named = both(&[4]).key("edgeinfinite.gate_scope", Value::String("channel".into()));
        let expected =
            "tensor blk.0.attn_mem_gate.weight: has shape [4], expected [8] for edgeinfinite.gate_scope channel";
        assert_eq!(named.refused(), expected);
        let square = both(&[4]).key("llama.attention.key_length", Value::U32(4));
        let mut square = square.key("llama.attention.value_length", Value::U32(4));
        for (_, shape) in &mut square.tensors {
            shape.iter_mut().filter(|size| **size == 8).for_each(|size| *size = 4);
        }
        assert!(square.refused().starts_with("missing key edgeinfinite.gate_scope"), "{}", square.refused());
        let square = square.key("edgeinfinite.gate_scope", Value::String("head".into()));
        assert_eq!(gates_of(&square.read().unwrap())[1], Some(MemoryGates { hidden: 16, scope: GateScope::Head }));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (name, shape, expected) in [
            ("blk.1.attn_mem_fc1.weight", &[][..], "is missing, expected [8, hidden columns]"),
            ("blk.1.attn_mem_fc1.weight", &[9, 16], "has shape [9, 16], expected [8, hidden columns]"),
            ("blk.0.attn_mem_fc1.bias", &[15], "has shape [15], expected [16]"),
            ("blk.0.attn_mem_fc2.weight", &[8, 16], "has shape [8, 16], expected [16, 8]"),
            ("blk.1.attn_mem_fc2.bias", &[16], "has shape [16], expected [8]"),
            ("blk.1.attn_mem_gate.weight", &[4, 8], "has shape [4, 8], expected [8, 4] or [8] or [4]"),
            ("blk.0.attn_mem_gate.weight", &[], "is missing, expected [8, 4] or [8] or [4]"),
        ] {
            let error = Example::new().shape(name, shape).refused();
            assert!(error.starts_with(&format!("tensor {name}: {expected}")), "{error}");
        }
        for (key, value, expected) in [
            ("edgeinfinite.window_length", Value::U32(0), "expected 1 to 16777216"),
            ("edgeinfinite.segment_length", Value::String("x".into()), "expected non-negative integer"),
            ("edgeinfinite.pos_mode", Value::U32(2), "expected 0 or 1"),
            ("edgeinfinite.activation", Value::String("relu".into()), "expected elu1"),
            ("edgeinfinite.gate_scope", Value::String("layer".into()), "expected head_channel, channel or head"),
        ] {
            let error = Example::new().key(key, value).refused();
            assert!(error.contains(key) && error.contains(expected), "{error}");
        }
    }
}
