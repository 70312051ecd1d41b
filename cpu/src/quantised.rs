//! The 8-bit form of the activation that was multiplied last: q, k, v and gates read the same rows.

use crate::{
    ops::product::Activations,
    pool::{Place, Pool, Tiles},
    quant::{BLOCK, Path, Quantise},
    simd::Proof,
    weights::Matrix,
};
use kvas_backend::Act;

/// Room for one activation, and which one it is.
#[derive(Debug)]
pub(crate) struct Quantised {
    values: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<f32>,
    /// The activation, which columns of it, and how many values from the first of them to the next first.
    of: Option<(Act, [usize; 2])>,
}

impl Quantised {
    /// Bytes for `elements` values.
    pub(crate) const fn bytes(elements: usize) -> usize {
        elements.saturating_add(elements / BLOCK * 8)
    }

    /// Room for `elements` values, whole blocks.
    pub(crate) fn new(elements: usize) -> Self {
        let blocks = elements / BLOCK;
        Self { values: vec![0; elements], scales: vec![0.0; blocks], sums: vec![0.0; blocks], of: None }
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

    /// The rows `x` of an activation, with their 8-bit form if a matrix wants it: that of the last call if nothing was
    /// written since.
    pub(crate) fn forms<'a>(
        &'a mut self,
        (proof, pool): (Proof, &mut Pool),
        (act, x): (Act, Activations<'a>),
        matrix: &Matrix,
        other: Option<&Matrix>,
    ) -> Activations<'a> {
        let wants = |matrix: &Matrix| Path::of(matrix.quant) == Path::Quantised;
        if !wants(matrix) && !other.is_some_and(wants) {
            return x;
        }
        let len = x.x.len() / x.stride * x.columns;
        let of = Some((act, [x.columns, x.stride]));
        if self.of != of {
            // Rows without gaps are cut anywhere, so that threads share even one of them.
            let (chunk, stride) = if x.columns == x.stride { (64 * BLOCK, 64 * BLOCK) } else { (x.columns, x.stride) };
            let values = Tiles::chunks_and_rest(&mut self.values[..len], chunk);
            let scales = Tiles::chunks_and_rest(&mut self.scales[..len / BLOCK], chunk / BLOCK);
            let sums = Tiles::chunks_and_rest(&mut self.sums[..len / BLOCK], chunk / BLOCK);
            let tasks = (Place::of(len), len.div_ceil(chunk));
            pool.share(tasks, (values, scales, sums), |task, (mut values, mut scales, mut sums)| {
                let values = values.row_mut(0);
                let x = &x.x[task * stride..][..values.len()];
                proof.run(Quantise { x, values, scales: scales.row_mut(0), sums: sums.row_mut(0) });
            });
            self.of = of;
        }
        let blocks = len / BLOCK;
        Activations { values: &self.values[..len], scales: &self.scales[..blocks], sums: &self.sums[..blocks], ..x }
    }
}
