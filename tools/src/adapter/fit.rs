//! Whether an adapter was trained for a model: the same layers, heads and columns.

use super::{
    Adapter,
    read::{CONFIG, WEIGHTS},
};
use anyhow::{Result, bail};
use kvas_gguf::Metadata;

/// The numbers of a model, by the keys of its architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    /// A key that may be one number for all layers or a list of one for each.
    fn of_layer(&self, key: &str, layer: usize) -> Result<Option<usize>> {
        let key = format!("{}.{key}", self.architecture);
        let list = self.metadata.get(&key).and_then(|value| value.as_u64s());
        let found = match list {
            Some(list) => match list.get(layer) {
                Some(&found) => Some(found),
                None => bail!("key {key} has {} values, expected one for layer {layer}", list.len()),
            },
            None => self.metadata.uint_opt(&key)?,
        };
        Ok(found.map(|found| found as usize))
    }

    fn count(&self, key: &str) -> Result<usize> {
        Ok(self.metadata.uint(&format!("{}.{key}", self.architecture))? as usize)
    }

    /// Heads, key heads and columns of a value head of an attention layer.
    fn attention(&self, layer: usize) -> Result<[usize; 3]> {
        let Some(heads) = self.of_layer("attention.head_count", layer)?.filter(|&heads| heads > 0) else {
            bail!(
                "key {}.attention.head_count is missing or 0, expected the heads of layer {layer}",
                self.architecture
            );
        };
        let kv_heads = self.of_layer("attention.head_count_kv", layer)?.unwrap_or(heads);
        let head_dim = match self.of_layer("attention.value_length", layer)? {
            Some(found) => found,
            None => self.count("embedding_length")? / heads,
        };
        Ok([heads, kv_heads, head_dim])
    }
}

impl Adapter {
    /// Checks that a model has the layers, heads and columns that the gates were trained with.
    pub(super) fn check(&self, metadata: &Metadata, has_tensor: impl Fn(&str) -> bool) -> Result<()> {
        let keys = Keys { metadata, architecture: metadata.architecture()? };
        let blocks = keys.count("block_count")?;
        let layers = blocks.saturating_sub(keys.of_layer("nextn_predict_layers", 0)?.unwrap_or(0));
        let same = |name: &str, own: usize, model: usize| -> Result<()> {
            if own != model {
                bail!("{CONFIG}: {name} is {own}, expected the model's {model}");
            }
            Ok(())
        };
        same("num_hidden_layers", self.shapes.layers, layers)?;
        for layer in 0..layers {
            let has = |stem: &str| has_tensor(&format!("blk.{layer}.{stem}"));
            let (attends, latent) = (has("attn_output.weight"), has("attn_kv_a_mqa.weight"));
            let gated = self.gates.iter().any(|gate| gate.layer == layer);
            match (attends && !latent, gated) {
                (false, false) if !latent => {}
                (true, true) => {
                    let [heads, kv_heads, head_dim] = keys.attention(layer)?;
                    same("num_attention_heads", self.shapes.heads, heads)?;
                    same("num_key_value_heads", self.shapes.kv_heads, kv_heads)?;
                    same("head_dim", self.shapes.head_dim, head_dim)?;
                }
                (true, false) => bail!("{WEIGHTS}: layer {layer} has no gates, expected them for all attention layers"),
                (false, _) if latent => bail!("layer {layer} attends to a latent, expected plain softmax attention"),
                (false, _) => {
                    bail!("{WEIGHTS}: layer {layer} has gates, expected them for the model's attention layers only")
                }
            }
        }
        Ok(())
    }
}
