//! Attention over latent pages by matrix instructions.

use crate::{
    device::Device,
    machine::Machine,
    ops::{
        attention::{AttentionView, PartsView},
        cutting::{Few, MOST_PARTS},
    },
};
use kvas_backend::{
    CHUNK, DeviceError, KvType, Limits, op,
    store::{PageLayout, PagesDecl},
};

/// `KEY` and `VALUE` of `kernels/common/attention_latent.cuh`, as in models, and its `THREADS`.
const KEY: usize = 576;
const VALUE: usize = 512;
const THREADS: usize = 256;

/// Kernels for the pages of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Latent {
    /// Their file.
    pub(super) unit: &'static str,
    /// Queries of a block of a prompt, and of few rows.
    queries: [usize; 2],
    /// Shared memory of a block: their `Room`.
    shared: usize,
}

impl Latent {
    /// Those of a GPU, if it has some for such pages.
    pub(super) fn of(decl: &PagesDecl, limits: &Limits, device: &Device) -> Option<Self> {
        let is_usual =
            decl.layout == PageLayout::Latent && (decl.key_dim, decl.value_dim, decl.kv_heads) == (KEY, VALUE, 1);
        let has_warpgroups = device.capability() == (9, 0);
        let (unit, terms) = match limits.kv_type {
            _ if !is_usual => return None,
            // As in kernels of other pages: queries of prompts are rounded over pages of four tokens and more.
            KvType::Q8_0 | KvType::F8 if has_warpgroups && limits.page_size < 4 => return None,
            KvType::F16 => ("attention_latent_f16", 2),
            KvType::Bf16 => ("attention_latent_bf16", 3),
            KvType::Q8_0 => ("attention_latent_q8_0", 2),
            KvType::F8 => ("attention_latent_fp8", 2),
            KvType::F32 => return None,
        };
        Some(match has_warpgroups && limits.kv_type != KvType::Bf16 {
            true => Self { unit, queries: [64, 32], shared: 2 * KEY * (64 + 2 * 64) + 2 * 64 * 64 + 4 * 9 * 64 },
            false => {
                let (tiles, weights) = (2 * 2 * KEY * 32, 2 * terms * 16 * 40);
                Self { unit, queries: [16, 16], shared: tiles + 4 * 4 * 16 * 40 + weights + 4 * (5 * 16 + 2 * 32) }
            }
        })
    }
}

/// Contexts of no more than so many tokens, and the tokens of their parts; longer ones have [`MOST_PARTS`].
const PARTS: [(usize, usize); 3] = [(1024, 64), (4096, 128), (32_768, 256)];

/// The tokens of a part of a context of so many. `latent_part` of `kernels/common/attention.cuh`.
pub(super) fn part(context: usize) -> usize {
    let short = PARTS.iter().find(|(longest, _)| context <= *longest);
    short.map_or_else(|| context.div_ceil(MOST_PARTS).next_multiple_of(64), |(_, part)| *part)
}

/// The longest context that is cut like one of so many tokens.
pub(super) fn longest(context: usize) -> usize {
    let short = PARTS.iter().find(|(longest, _)| context <= *longest);
    short.map_or_else(|| part(context) * MOST_PARTS, |(longest, _)| *longest)
}

/// How many parts a block has one after the other, so that all of `contexts` are looked at soonest: a block alone fills a
/// multiprocessor, and to begin takes it as long as a part.
fn of_block(parts: usize, contexts: usize, multiprocessors: usize) -> usize {
    let turns = |of_block: usize| (parts.div_ceil(of_block) * contexts).div_ceil(multiprocessors) * (of_block + 1);
    (1..=parts.max(1)).min_by_key(|of_block| turns(*of_block)).unwrap_or(1)
}

impl Machine {
    /// Attention of the whole chunks of all spans.
    pub(super) fn attend_latent_prompts(&self, op: &op::Attention, latent: Latent) -> Result<(), DeviceError> {
        let spans = self.step.spans();
        let most = spans.iter().map(|span| span.rows as usize / CHUNK * CHUNK).max().unwrap_or(0);
        self.kernel(latent.unit, &format!("attention_latent_prompts_{}", self.pages.kv_type().name()))?
            .grid((most * op.heads).div_ceil(latent.queries[0]), 1, spans.len())
            .block(THREADS)
            .early()
            .shared(latent.shared)
            .arg(self.view())
            .arg(self.pages.view(self.program.pages(op.store)))
            .arg(self.attention_view(op))
            .launch()
    }

    /// Attention of some rows in parts of their contexts.
    pub(super) fn attend_latent_parts(
        &self,
        op: &op::Attention,
        few: &Few,
        (view, mut parts): (AttentionView, PartsView),
        latent: Latent,
    ) -> Result<(), DeviceError> {
        let of_queries = (few.most * op.heads).div_ceil(latent.queries[1]);
        let of_block = of_block(few.parts, of_queries * few.spans.len(), self.device.multiprocessors());
        parts.of_block = of_block as u32;
        self.kernel(latent.unit, &format!("attention_latent_parts_{}", self.pages.kv_type().name()))?
            .grid(few.parts.div_ceil(of_block), of_queries, few.spans.len())
            .block(THREADS)
            .early()
            .shared(latent.shared)
            .arg(self.view())
            .arg(self.pages.view(self.program.pages(op.store)))
            .arg(view)
            .arg(parts)
            .launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_parts_enough() {
        assert_eq!(of_block(32, 1, 132), 1);
        assert_eq!(of_block(128, 1, 132), 1);
        assert_eq!(of_block(1, 300, 132), 1);
        // Two turns of 16 blocks for each of 16 contexts, and four for each of 64.
        assert_eq!((of_block(32, 16, 132), of_block(32, 64, 132)), (4, 16));
    }

    #[test]
    fn contexts_are_cut_into_few_parts() {
        let mut longest_before = 0;
        for context in (1..2_000_000).step_by(509) {
            let (tokens, last) = (part(context), longest(context));
            assert!(tokens.is_multiple_of(64) && context.div_ceil(tokens) <= MOST_PARTS, "{context}: {tokens}");
            assert!(last >= context && last >= longest_before && part(last) == tokens, "{context}: {last}");
            assert!(longest(last + 1) > last, "{context}: {last}");
            longest_before = last;
        }
    }
}
