//! The 8-bit form of the activation that was multiplied last: q, k, v and gates read the same rows.

use crate::{
    ops::product::Activations,
    pool::{Place, Pool, Tiles},
    quant::{BLOCK, Quantise},
    simd::Proof,
};
use kvas_backend::Act;

/// Room for one activation, and which one it is.
#[derive(Debug)]
pub(crate) struct Quantised {
    values: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<f32>,
    of: Option<Act>,
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
        if self.of == Some(act) {
            self.of = None;
        }
    }

    /// Another step begins.
    pub(crate) fn forget_all(&mut self) {
        self.of = None;
    }

    /// The rows `x [rows, columns]` of an activation in 8 bits, from the last call if nothing was written since.
    pub(crate) fn get<'a>(
        &'a mut self,
        (proof, pool): (Proof, &mut Pool),
        act: Act,
        x: &'a [f32],
        columns: usize,
    ) -> Activations<'a> {
        let blocks = x.len() / BLOCK;
        if self.of != Some(act) {
            let chunk = 64 * BLOCK;
            let values = Tiles::chunks_and_rest(&mut self.values[..x.len()], chunk);
            let scales = Tiles::chunks_and_rest(&mut self.scales[..blocks], chunk / BLOCK);
            let sums = Tiles::chunks_and_rest(&mut self.sums[..blocks], chunk / BLOCK);
            let tasks = (Place::of(x.len()), x.len().div_ceil(chunk));
            pool.share(tasks, (values, scales, sums), |task, (mut values, mut scales, mut sums)| {
                let values = values.row_mut(0);
                let x = &x[task * chunk..][..values.len()];
                proof.run(Quantise { x, values, scales: scales.row_mut(0), sums: sums.row_mut(0) });
            });
            self.of = Some(act);
        }
        Activations {
            values: &self.values[..x.len()],
            scales: &self.scales[..blocks],
            sums: &self.sums[..blocks],
            columns,
            x,
        }
    }
}
