//! Super-blocks: groups whose own scales are small integers times one scale of the whole block.

use super::search::{self, Reach, clip, inverse, round};
use super::{f16_bytes, f16_value};

/// What one group of a super-block would like: `scale * code - min`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fit {
    scale: f32,
    /// Not negative.
    min: f32,
    /// How much the group matters.
    weight: f32,
}

impl Fit {
    /// A group without a minimum; `weights` are those of its elements.
    pub(crate) fn new(scale: f32, weights: &[f32]) -> Fit {
        Fit { scale, min: 0.0, weight: weights.iter().sum() }
    }
}

/// Fits each `LEN` elements to signed codes -top..top.
pub(crate) fn symmetric_groups<const GROUPS: usize, const LEN: usize>(
    x: &[f32],
    weights: &[f32],
    top: f32,
) -> [Fit; GROUPS] {
    std::array::from_fn(|group| {
        let (x, weights) = (search::group::<LEN>(&x[LEN * group..]), search::group::<LEN>(&weights[LEN * group..]));
        Fit::new(search::symmetric(x, weights, top), weights)
    })
}

/// Fits each `LEN` elements to codes 0..=top and a minimum.
pub(crate) fn affine_groups<const GROUPS: usize, const LEN: usize>(
    x: &[f32],
    weights: &[f32],
    top: f32,
    reach: Reach,
) -> [Fit; GROUPS] {
    std::array::from_fn(|group| {
        let (x, weights) = (search::group::<LEN>(&x[LEN * group..]), search::group::<LEN>(&weights[LEN * group..]));
        let (scale, min) = search::scale_and_min(x, weights, top, reach);
        Fit { min, ..Fit::new(scale, weights) }
    })
}

/// Signed integer scales under one f16 scale.
pub(crate) struct Symmetric<const GROUPS: usize> {
    /// Exactly an f16.
    pub(crate) scale: f32,
    pub(crate) scales: [i8; GROUPS],
}

/// Rounds the scales of the groups to -top..top of one scale.
pub(crate) fn nest_symmetric<const GROUPS: usize>(fits: &[Fit; GROUPS], top: f32) -> Symmetric<GROUPS> {
    let level = |v: f32| clip(round(v), -top, top - 1.0);
    let (scales, weights) = (fits.map(|fit| fit.scale), fits.map(|fit| fit.weight));
    let scale = f16_value(f16_bytes(search::scale(&scales, &weights, search::candidates(&scales, -top, 0.9), level)));
    Symmetric { scale, scales: scales.map(|own| level(own * inverse(scale)) as i8) }
}

impl<const GROUPS: usize> Symmetric<GROUPS> {
    /// The codes of the elements, `top` added so that none is negative.
    pub(crate) fn codes(&self, x: &[f32], top: f32) -> [u8; 256] {
        let inverses = self.scales.map(|small| inverse(self.scale * f32::from(small)));
        std::array::from_fn(|i| (clip(round(x[i] * inverses[i * GROUPS / 256]), -top, top - 1.0) + top) as u8)
    }
}

/// Unsigned integer scales and minimums under an f16 scale each.
pub(crate) struct Affine<const GROUPS: usize> {
    /// Exactly an f16.
    pub(crate) scale: f32,
    /// Exactly an f16.
    pub(crate) min_scale: f32,
    pub(crate) scales: [u8; GROUPS],
    pub(crate) mins: [u8; GROUPS],
}

/// Rounds the scales and the minimums of the groups to 0..=top of one scale each.
pub(crate) fn nest_affine<const GROUPS: usize>(fits: &[Fit; GROUPS], top: f32) -> Affine<GROUPS> {
    let level = |v: f32| clip(round(v), 0.0, top);
    let weights = fits.map(|fit| fit.weight);
    let nest = |values: [f32; GROUPS]| {
        let scale =
            f16_value(f16_bytes(search::scale(&values, &weights, search::candidates(&values, top, 0.9), level)));
        (scale, values.map(|own| level(own * inverse(scale)) as u8))
    };
    let (scale, scales) = nest(fits.map(|fit| fit.scale));
    let (min_scale, mins) = nest(fits.map(|fit| fit.min));
    Affine { scale, min_scale, scales, mins }
}

impl<const GROUPS: usize> Affine<GROUPS> {
    /// Tries the neighbours of each group's scale and minimum on the elements themselves: rounding both to the nearest
    /// integer is not always best once the codes can follow. Groups have `LEN` elements, scales and minimums are
    /// 0..=top, codes 0..=code_top.
    pub(crate) fn refined<const LEN: usize>(mut self, x: &[f32], weights: &[f32], top: u8, code_top: f32) -> Self {
        for group in 0..GROUPS {
            let (x, weights) = (search::group::<LEN>(&x[LEN * group..]), search::group::<LEN>(&weights[LEN * group..]));
            let error = |(scale, min): (u8, u8)| {
                let (scale, min) = (self.scale * f32::from(scale), self.min_scale * f32::from(min));
                let inverse = inverse(scale);
                squares(x, weights, |x| scale * search::affine_code(x, inverse, min, code_top) - min)
            };
            let around = |small: u8| [small, small.saturating_sub(1), (small + 1).min(top)];
            let (scales, mins) = (around(self.scales[group]), around(self.mins[group]));
            let tries: [(u8, u8); 9] = std::array::from_fn(|i| (scales[i % 3], mins[i / 3]));
            (self.scales[group], self.mins[group]) = least(tries, error);
        }
        self
    }

    /// The codes of the elements, 0..=top.
    pub(crate) fn codes(&self, x: &[f32], top: f32) -> [u8; 256] {
        let inverses = self.scales.map(|small| inverse(self.scale * f32::from(small)));
        let mins = self.mins.map(|small| self.min_scale * f32::from(small));
        std::array::from_fn(|i| {
            let group = i * GROUPS / 256;
            search::affine_code(x[i], inverses[group], mins[group], top) as u8
        })
    }
}

/// The weighted squared error of what the elements become.
fn squares<const LEN: usize>(x: &[f32; LEN], weights: &[f32; LEN], becomes: impl Fn(f32) -> f32) -> f32 {
    let errors = search::each(x, |x| becomes(x) - x);
    search::dot(weights, &search::products(&errors, &errors))
}

/// The try of least error, the first of equals.
fn least<T: Copy, const TRIES: usize>(tries: [T; TRIES], error: impl Fn(T) -> f32) -> T {
    let mut best = (tries[0], error(tries[0]));
    for &other in &tries[1..] {
        let error = error(other);
        if error < best.1 {
            best = (other, error);
        }
    }
    best.0
}
