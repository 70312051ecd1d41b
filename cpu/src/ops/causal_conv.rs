//! Depthwise causal convolution, then SiLU, with a ring of earlier rows per slot (ALGORITHMS 2.7).

use crate::{
    machine::Machine,
    pool::{Place, Tile, Tiles},
    simd::{Kernel, Simd, math},
    slots::Memory,
};
use kvas_backend::{
    op::{self, Activation},
    store::ConvDecl,
};

/// Floats of scratch a thread needs: the rows before a span.
pub(crate) fn scratch(decl: &ConvDecl) -> usize {
    (decl.taps - 1) * decl.channels
}

/// Some channels of a span.
struct Convolve<'a> {
    /// The span's rows.
    x: Tile<'a, f32>,
    /// `[taps, all channels]`
    weights: &'a [f32],
    all_channels: usize,
    /// `[taps - 1, channels]`: rows before the span.
    earlier: &'a [f32],
}

impl Kernel for Convolve<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let [rows, channels] = self.x.size();
        let first = self.x.first()[1];
        let reach = self.weights.len() / self.all_channels - 1;
        // Backwards, so that a row is replaced after the last row that reads it.
        for row in (0..rows).rev() {
            for at in (0..channels).step_by(S::LANES) {
                let end = (at + S::LANES).min(channels);
                let mut sum = simd.splat(0.0);
                for tap in 0..=reach {
                    let weight = &self.weights[tap * self.all_channels + first..][at..end];
                    let x = match (row + tap).checked_sub(reach) {
                        Some(row) => math::load(simd, &self.x.row(row)[at..end]),
                        None => math::load(simd, &self.earlier[(row + tap) * channels..][at..end]),
                    };
                    sum = simd.fma(math::load(simd, weight), x, sum);
                }
                let y = math::activate(simd, Activation::Silu, sum);
                math::store(simd, y, &mut self.x.row_mut(row)[at..end]);
            }
        }
    }
}

impl Machine {
    pub(crate) fn causal_conv(&mut self, op: &op::CausalConv) {
        let mut x = self.take(op.x);
        let Self { proof, pool, step, memory, taps, scratch, .. } = self;
        let Memory::Conv(conv) = &mut memory[op.store.0 as usize] else { panic!("validated: a conv store") };
        let (channels, reach, mask) = (conv.decl.channels, conv.decl.taps - 1, conv.ring - 1);
        let weights = &taps[op.weight.0 as usize];
        for (first, span) in step.spans_with_rows() {
            let (rows, context) = (span.rows as usize, span.context as usize);
            let place = Place::of(rows * channels * (reach + 8));
            let width = if place == Place::Here { channels } else { channels.div_ceil(pool.threads()) };
            let width = width.next_multiple_of(16);
            let ring_size = conv.ring * channels;
            let ring = &mut conv.rows[span.slot.0 as usize * ring_size..][..ring_size];
            let parts = (
                Tiles::new(&mut x[first * channels..(first + rows) * channels], channels, [rows, width]),
                Tiles::new(ring, channels, [mask + 1, width]),
            );
            pool.each((place, channels.div_ceil(width)), parts, scratch, |_, (x, mut ring), scratch| {
                let width = x.size()[1];
                let earlier = &mut scratch[..reach * width];
                for (i, earlier) in earlier.chunks_exact_mut(width).enumerate() {
                    match (context + i).checked_sub(reach) {
                        Some(position) => earlier.copy_from_slice(ring.row(position & mask)),
                        None => earlier.fill(0.0),
                    }
                }
                // Only the last rows survive in the ring.
                for row in rows.saturating_sub(mask + 1)..rows {
                    ring.row_mut((context + row) & mask).copy_from_slice(x.row(row));
                }
                proof.run(Convolve { x, weights, all_channels: channels, earlier });
            });
        }
        self.put(op.x, x);
    }
}
