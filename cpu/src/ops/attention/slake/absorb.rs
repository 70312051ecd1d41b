//! What is evicted is summed up: means and covariances of blocks of tokens, merged in order (Chan).

use crate::{
    pages::Pages,
    simd::{
        Kernel, Simd,
        dense::{F32, Stored},
        math,
        strips::{self, Matrix, Start, Sums, Weights},
    },
};
use kvas_backend::{Page, store::PagesDecl};
use std::marker::PhantomData;

/// Tokens of a block, and the row that stands for what was there before.
pub(super) const ROWS: usize = 64 + 1;

/// Tokens of a KV head that go into its moments.
pub(super) struct Absorb<'a> {
    pub(super) pages: &'a Pages,
    pub(super) decl: &'a PagesDecl,
    pub(super) head: usize,
    pub(super) gone: (&'a [Page], &'a [u32]),
    /// Tokens in the moments before.
    pub(super) before: f32,
    /// `[mean key | variance of the key | mean value]`
    pub(super) vectors: &'a mut [f32],
    pub(super) room: &'a mut [f32],
}

impl<'a> Absorb<'a> {
    /// Into covariances `[key_dim, value_dim]` of this type.
    pub(super) fn into<E: Stored>(self, stored: &'a mut [E::Bits]) -> AbsorbInto<'a, E> {
        AbsorbInto { what: self, stored, element: PhantomData }
    }
}

pub(super) struct AbsorbInto<'a, E: Stored> {
    what: Absorb<'a>,
    stored: &'a mut [E::Bits],
    element: PhantomData<E>,
}

impl<E: Stored> Kernel for AbsorbInto<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Absorb { pages, decl, head, gone: (table, gone), before, vectors, room } = self.what;
        let (key_dim, value_dim) = (decl.key_dim, decl.value_dim);
        let (keys, rest) = room.split_at_mut(ROWS * key_dim);
        let (values, copy) = rest.split_at_mut(ROWS * value_dim);
        let sums = E::open(simd, self.stored, copy);
        let (mean_key, rest) = vectors.split_at_mut(key_dim);
        let (variance, mean_value) = rest.split_at_mut(key_dim);
        let mut count = before;
        if count == 0.0 {
            // Whatever a sequence before has left there.
            [&mut *sums, &mut *mean_key, &mut *variance, &mut *mean_value].into_iter().for_each(|all| all.fill(0.0));
        }
        math::scale(simd, sums, count);
        math::scale(simd, variance, count);
        for block in gone.chunks(ROWS - 1) {
            let rows = block.len();
            for (row, token) in block.iter().enumerate() {
                let to = [&mut keys[row * key_dim..][..key_dim], &mut values[row * value_dim..][..value_dim]];
                pages.read_token(decl, (table, *token as usize), head, to);
            }
            // The last row: how far the means of the block are from those before, times the root of the weight of that.
            let all = count + rows as f32;
            let (root, share) = ((count * rows as f32 / all).sqrt(), rows as f32 / all);
            centre(simd, &mut keys[..(rows + 1) * key_dim], mean_key, (root, share));
            centre(simd, &mut values[..(rows + 1) * value_dim], mean_value, (root, share));
            let weights = Weights::in_columns(&keys[..(rows + 1) * key_dim], key_dim, rows + 1);
            let bytes: &[u8] = bytemuck::cast_slice(&values[..(rows + 1) * value_dim]);
            let matrix = Matrix { rows: bytes, next: bytes, stride: value_dim, columns: value_dim };
            let mut out = Sums { data: &mut *sums, stride: value_dim };
            strips::add_matrix_apart::<F32, S, false>(simd, (key_dim, Start::Kept), weights, matrix, &mut out);
            for row in keys[..(rows + 1) * key_dim].chunks_exact(key_dim) {
                variance.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * x);
            }
            count = all;
        }
        if count > 0.0 {
            math::scale(simd, sums, 1.0 / count);
            math::scale(simd, variance, 1.0 / count);
        }
        E::close(simd, copy, self.stored);
    }
}

/// Takes the mean of all rows but the last off them; makes the last one the difference of that mean from the one before
/// times `root`, and moves that one by its `share`.
#[inline(always)]
fn centre<S: Simd>(simd: S, rows: &mut [f32], mean: &mut [f32], (root, share): (f32, f32)) {
    let columns = mean.len();
    let (rows, last) = rows.split_at_mut(rows.len() - columns);
    last.fill(0.0);
    rows.chunks_exact(columns).for_each(|row| math::add(simd, last, row));
    math::scale(simd, last, columns as f32 / rows.len() as f32);
    rows.chunks_exact_mut(columns).for_each(|row| math::add_scaled(simd, row, -1.0, last));
    math::add_scaled(simd, last, -1.0, mean);
    math::add_scaled(simd, mean, share, last);
    math::scale(simd, last, root);
}
