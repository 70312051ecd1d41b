//! The search for scales: what is left to choose when a format's layout is fixed. All errors here are weighted sums of
//! squares; a scale is always the least-squares one for the codes it goes with.

/// Magnitudes below this are zero to every format.
const TINY: f32 = 1e-15;

/// The nearest integer, ties to even, of a value within ±2²².
pub(crate) fn round(value: f32) -> f32 {
    // Adding 1.5 · 2²³ pushes the fraction out of the mantissa; there is no rounding instruction in baseline x86-64.
    const MAGIC: f32 = 12_582_912.0;
    (value + MAGIC) - MAGIC
}

/// 1 / scale, or 0 where there is none.
pub(crate) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The first element of largest magnitude, with its sign.
pub(crate) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |extreme, &x| if x.abs() > extreme.abs() { x } else { extreme })
}

/// The smallest and the largest element.
pub(crate) fn range(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)))
}

/// The importance of the elements of a block, none quite zero, so that elements nobody cares about still come out near
/// what they were.
pub(crate) fn floored(importance: &[f32]) -> impl Iterator<Item = f32> {
    let mean = importance.iter().sum::<f32>() / importance.len() as f32;
    let floor = if mean > 0.0 { mean * 1e-6 } else { 1.0 };
    importance.iter().map(move |importance| importance + floor)
}

/// Weights of the elements of a block: their importance, and more for the large ones. `spread` is the mean square that
/// an element counts as having besides its own.
pub(crate) fn weights(x: &[f32], importance: &[f32], spread: f32) -> Vec<f32> {
    x.iter().zip(floored(importance)).map(|(x, importance)| importance * (spread + x * x).sqrt()).collect()
}

/// Mean square of the elements of a block.
pub(crate) fn mean_square(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32
}

/// Inverse scales worth trying for codes that end at `end`: those that put the extreme element of `x` up to `reach`
/// codes beside it. None for a block of zeros.
pub(crate) fn candidates(x: &[f32], end: f32, reach: f32) -> impl Iterator<Item = f32> {
    const STEPS: i16 = 9;
    let extreme = extreme(x);
    let usable = extreme.abs() >= TINY;
    (-STEPS..=STEPS)
        .filter(move |_| usable)
        .map(move |step| (end + reach * f32::from(step) / f32::from(STEPS)) / extreme)
}

/// The best scale for signed codes -top..top, the end itself excluded, at `scale * code`.
pub(crate) fn symmetric(x: &[f32], weights: &[f32], top: f32) -> f32 {
    scale(x, weights, candidates(x, -top, 0.9), |v| round(v).clamp(-top, top - 1.0))
}

/// The scale and the minimum, of either sign, for codes 0..=top at `scale * code + min`: the whole range without
/// importance, else the best.
pub(crate) fn span(x: &[f32], importance: Option<&[f32]>, top: f32) -> (f32, f32) {
    let Some(importance) = importance else {
        let (low, high) = range(x);
        return ((high - low) / top, low);
    };
    let weights = weights(x, importance, mean_square(x));
    let (scale, min) = scale_and_min(x, &weights, top, Reach { from: -0.9, to: 0.9, step: 0.05 });
    (scale, -min)
}

/// The best scale for codes at `scale * level(x / scale)`: tries every candidate inverse, then improves the best one by
/// turns of rounding and least squares. 0 if there is no candidate.
pub(crate) fn scale(
    x: &[f32],
    weights: &[f32],
    candidates: impl Iterator<Item = f32>,
    level: impl Fn(f32) -> f32,
) -> f32 {
    // For fixed levels l the best scale is Σwxl / Σwl², and it takes (Σwxl)² / Σwl² off the error.
    let fit = |inverse: f32| {
        let (mut products, mut squares) = (0.0f32, 0.0f32);
        for (&x, &weight) in x.iter().zip(weights) {
            let level = level(inverse * x);
            products += weight * x * level;
            squares += weight * level * level;
        }
        if squares > 0.0 { (products * products / squares, products / squares) } else { (0.0, 0.0) }
    };
    let best = candidates.map(&fit).fold((0.0, 0.0), |best, found| if found.0 > best.0 { found } else { best });
    let mut best: (f32, f32) = best;
    for _ in 0..4 {
        let found = fit(inverse(best.1));
        if found.0 <= best.0 {
            break;
        }
        best = found;
    }
    best.1
}

/// Where [`scale_and_min`] looks: the codes, beyond the top one, that the largest element would get.
#[derive(Clone, Copy)]
pub(crate) struct Reach {
    pub(crate) from: f32,
    pub(crate) to: f32,
    /// Codes between two tries.
    pub(crate) step: f32,
}

/// A scale and a min, and how much error they save.
#[derive(Clone, Copy)]
struct Affine {
    saved: f32,
    scale: f32,
    min: f32,
}

/// The best (scale, min) for codes 0..=top at `scale * code - min`, neither of them negative.
pub(crate) fn scale_and_min(x: &[f32], weights: &[f32], top: f32, reach: Reach) -> (f32, f32) {
    let (low, high) = range(x);
    let low = low.min(0.0);
    let width = high - low;
    if !(TINY..f32::INFINITY).contains(&width) {
        return (0.0, -low);
    }
    let group = Group { x, weights, top, low };
    let mut best = Affine { saved: f32::NEG_INFINITY, scale: 0.0, min: -low };
    let mut offset = reach.from;
    while offset <= reach.to {
        let found = group.fit((top + offset) / width, -low);
        if found.saved > best.saved {
            best = found;
        }
        offset += reach.step;
    }
    for _ in 0..4 {
        let found = group.fit(inverse(best.scale), best.min);
        if found.saved <= best.saved {
            break;
        }
        best = found;
    }
    (best.scale, best.min)
}

/// The code, 0..=top, that is nearest to an element at `scale * code - min`.
pub(crate) fn affine_code(x: f32, inverse: f32, min: f32, top: f32) -> f32 {
    round(inverse * (x + min)).clamp(0.0, top)
}

/// The elements that share a scale and a min.
struct Group<'a> {
    x: &'a [f32],
    weights: &'a [f32],
    top: f32,
    /// The smallest element, or 0 if that is smaller.
    low: f32,
}

impl Group<'_> {
    /// The least-squares scale and min for the codes that a given inverse scale and min lead to.
    fn fit(&self, inverse: f32, min: f32) -> Affine {
        // Sums over y = x - low, which does not cancel when all elements are far from zero.
        let (mut w, mut wy, mut wl, mut wll, mut wyl) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
        for (&x, &weight) in self.x.iter().zip(self.weights) {
            let code = affine_code(x, inverse, min, self.top);
            let (y, weighted) = (x - self.low, weight * code);
            w += weight;
            wy += weight * y;
            wl += weighted;
            wll += weighted * code;
            wyl += weighted * y;
        }
        let determinant = w * wll - wl * wl;
        let mut scale = (w * wyl - wy * wl) / determinant;
        let mut offset = (wll * wy - wl * wyl) / determinant;
        if determinant <= 0.0 || offset > -self.low {
            // The min would be negative, or all codes are equal and leave it open: it is 0.
            offset = -self.low;
            scale = if wll > 0.0 { (wyl - offset * wl) / wll } else { 0.0 };
        }
        let saved = scale * (2.0 * wyl - scale * wll - 2.0 * offset * wl) + offset * (2.0 * wy - offset * w);
        Affine { saved, scale, min: -(offset + self.low) }
    }
}
