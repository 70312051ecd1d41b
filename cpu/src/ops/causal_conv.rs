//! Depthwise causal convolutions with a ring of earlier rows per slot (ALGORITHMS 2.7): the one of recurrences, which
//! ends in SiLU, and the gated one.

use crate::{
    machine::Machine,
    pool::{Place, Tile, Tiles},
    simd::{Kernel, Simd, math},
    slots::SlotMemory,
};
use kvas_backend::{
    Act, Store, Weight,
    op::{self, Activation},
    store::ConvDecl,
};

/// Floats of scratch a thread needs: the rows before a span, and the sums of a row.
pub(crate) fn scratch(decl: &ConvDecl) -> usize {
    decl.taps * decl.channels
}

/// What is done with the sums of a convolution.
#[derive(Clone, Copy)]
enum Sums<B, G> {
    /// `silu(sum + bias)`
    Silu(Option<B>),
    /// `c * sum`, convolving `b * x` of rows `b | c | x`.
    Gate(G),
}

/// Some channels of a span.
struct Convolve<'a> {
    /// The span's rows.
    x: Tile<'a, f32>,
    /// The ring of the slot.
    ring: Tile<'a, f32>,
    /// Position of the first row.
    context: usize,
    /// `[taps, all channels]`
    weights: &'a [f32],
    all_channels: usize,
    /// `[all channels]` or `[rows, 3 * all channels]`
    sums: Sums<&'a [f32], &'a [f32]>,
    /// `[taps - 1, channels]`: room for the rows before the span.
    earlier: &'a mut [f32],
    /// `[channels]`: room for the sums of a row.
    sum: &'a mut [f32],
}

impl Kernel for Convolve<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let [rows, channels] = self.x.size();
        if let Sums::Gate(bcx) = self.sums {
            for row in 0..rows {
                let [b, _, x] = self.gates(bcx, row);
                let out = self.x.row_mut(row);
                out.copy_from_slice(b);
                math::scale_by(simd, out, 1.0, x);
            }
        }
        self.slide();
        let first = self.x.first()[1];
        let reach = self.weights.len() / self.all_channels - 1;
        // Backwards, so that a row is replaced after the last row that reads it.
        for row in (0..rows).rev() {
            match self.sums {
                Sums::Silu(Some(bias)) => self.sum.copy_from_slice(&bias[first..][..channels]),
                Sums::Silu(None) | Sums::Gate(_) => self.sum.fill(0.0),
            }
            let weights = |tap: usize| &self.weights[tap * self.all_channels + first..][..channels];
            for tap in 0..reach {
                let x = match (row + tap).checked_sub(reach) {
                    Some(row) => self.x.row(row),
                    None => &self.earlier[(row + tap) * channels..][..channels],
                };
                math::add_products(simd, self.sum, weights(tap), x);
            }
            let gates = match self.sums {
                Sums::Silu(_) => None,
                Sums::Gate(bcx) => Some(self.gates(bcx, row)[1]),
            };
            let (weights, x) = (weights(reach), self.x.row_mut(row));
            for at in (0..channels).step_by(S::LANES) {
                let end = (at + S::LANES).min(channels);
                let (weight, now) = (math::load(simd, &weights[at..end]), math::load(simd, &x[at..end]));
                let sum = simd.fma(weight, now, math::load(simd, &self.sum[at..end]));
                let y = match gates {
                    None => math::activate(simd, Activation::Silu, sum),
                    Some(gates) => simd.mul(math::load(simd, &gates[at..end]), sum),
                };
                math::store(simd, y, &mut x[at..end]);
            }
        }
    }
}

impl<'a> Convolve<'a> {
    /// The columns of b, c and x in a row.
    fn gates(&self, bcx: &'a [f32], row: usize) -> [&'a [f32]; 3] {
        let (first, channels) = (self.x.first()[1], self.x.size()[1]);
        [0, 1, 2].map(|part| &bcx[(3 * row + part) * self.all_channels + first..][..channels])
    }

    /// Takes the rows before the span from the ring, and leaves the span's last ones there.
    fn slide(&mut self) {
        let [rows, channels] = self.x.size();
        let mask = self.ring.size()[0] - 1;
        let reach = self.earlier.len() / channels;
        for (i, earlier) in self.earlier.chunks_exact_mut(channels).enumerate() {
            match (self.context + i).checked_sub(reach) {
                Some(position) => earlier.copy_from_slice(self.ring.row(position & mask)),
                None => earlier.fill(0.0),
            }
        }
        for row in rows.saturating_sub(mask + 1)..rows {
            self.ring.row_mut((self.context + row) & mask).copy_from_slice(self.x.row(row));
        }
    }
}

impl Machine {
    pub(crate) fn causal_conv(&mut self, op: &op::CausalConv) {
        self.convolve(op.x, op.weight, Sums::Silu(op.bias), op.store);
    }

    pub(crate) fn short_conv(&mut self, op: &op::ShortConv) {
        self.convolve(op.out, op.weight, Sums::Gate(op.bcx), op.store);
    }

    /// Convolves the rows of `x [rows, channels]` in place.
    fn convolve(&mut self, x: Act, weight: Weight, sums: Sums<Weight, Act>, store: Store) {
        let mut values = self.take(x);
        let Self { proof, pool, step, memory, transposed, scratch, acts, matrices, .. } = self;
        let SlotMemory::Conv(conv) = &mut memory[store.0 as usize] else { panic!("validated: a conv store") };
        let (channels, reach, ring_rows) = (conv.decl.channels, conv.decl.taps - 1, conv.ring);
        let weights = &transposed[weight.0 as usize];
        for (first, span) in step.spans_with_rows() {
            let (rows, context) = (span.rows as usize, span.context as usize);
            let place = Place::of(rows * channels * (reach + 8));
            let width = if place == Place::Here { channels } else { channels.div_ceil(pool.threads()) };
            let width = width.next_multiple_of(16);
            let ring_size = ring_rows * channels;
            let ring = &mut conv.rows[span.slot.0 as usize * ring_size..][..ring_size];
            let sums = match sums {
                Sums::Silu(bias) => Sums::Silu(bias.map(|bias| matrices[bias.0 as usize].floats())),
                Sums::Gate(bcx) => Sums::Gate(&acts[bcx.0 as usize][3 * first * channels..]),
            };
            let parts = (
                Tiles::new(&mut values[first * channels..(first + rows) * channels], channels, [rows, width]),
                Tiles::new(ring, channels, [ring_rows, width]),
            );
            pool.each((place, channels.div_ceil(width)), parts, scratch, |_, (x, ring), scratch| {
                let width = x.size()[1];
                let (earlier, sum) = scratch[..(reach + 1) * width].split_at_mut(reach * width);
                proof.run(Convolve { x, ring, context, weights, all_channels: channels, sums, earlier, sum });
            });
        }
        self.put(x, values);
    }
}
