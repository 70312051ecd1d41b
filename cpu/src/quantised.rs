//! The 8-bit form of the activation that was multiplied last: q, k, v and gates read the same rows.

use crate::{
    ops::product::Activations,
    packed::{BLOCK, Quantise},
    pool::{Place, Pool, Tiles},
    simd::{Proof, panels::QuantisedBlock},
    weights::{Matrix, Path},
};
use kvas_backend::Act;

/// Room for one activation, and which one it is.
#[derive(Debug)]
pub(crate) struct Quantised {
    blocks: Vec<QuantisedBlock>,
    /// The activation, which columns of it, and how many values from the first of them to the next first.
    of: Option<(Act, [usize; 2])>,
}

impl Quantised {
    /// Bytes for `elements` values.
    pub(crate) const fn bytes(elements: usize) -> usize {
        (elements / BLOCK).saturating_mul(size_of::<QuantisedBlock>())
    }

    /// Room for `elements` values, whole blocks.
    pub(crate) fn new(elements: usize) -> Self {
        Self { blocks: vec![QuantisedBlock::default(); elements / BLOCK], of: None }
    }

    /// The activation was written.
    pub(crate) fn forget(&mut self, act: Act) {
        if self.of.is_some_and(|(of, _)| of == act) {
            self.of = None;
        }
    }

    /// Another step begins.
    pub(crate) fn forget_all(&mut self) {
        self.of = None;
    }

    /// The rows `x` of an activation, with their 8-bit form if a matrix wants it for any entries: that of the last call if nothing was
    /// written since.
    pub(crate) fn forms<'a>(
        &'a mut self,
        (proof, pool): (Proof, &mut Pool),
        (act, x): (Act, Activations<'a>),
        (entries, matrix): (usize, &Matrix),
        other: Option<&Matrix>,
    ) -> Activations<'a> {
        let wants = |matrix: &Matrix| entries > 0 && Path::of(matrix.quant) == Path::Packed;
        if !wants(matrix) && !other.is_some_and(wants) {
            return x;
        }
        let len = x.x.len() / x.stride * x.columns;
        let of = Some((act, [x.columns, x.stride]));
        if self.of != of {
            // Rows without gaps are cut anywhere, so that threads share even one of them.
            let (chunk, stride) = if x.columns == x.stride { (64 * BLOCK, 64 * BLOCK) } else { (x.columns, x.stride) };
            let blocks = Tiles::chunks_and_rest(&mut self.blocks[..len / BLOCK], chunk / BLOCK);
            pool.share((Place::of(len), len.div_ceil(chunk)), blocks, |task, mut blocks| {
                let blocks = blocks.row_mut(0);
                let x = &x.x[task * stride..][..blocks.len() * BLOCK];
                proof.run(Quantise { x, blocks });
            });
            self.of = of;
        }
        Activations { blocks: &self.blocks[..len / BLOCK], ..x }
    }
}
