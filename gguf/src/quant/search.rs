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

/// Weights of the elements of a block: their importance, and more for the large ones. `spread` is the mean square that
/// an element counts as having besides its own.
pub(crate) fn weights(x: &[f32], importance: &[f32], spread: f32) -> Vec<f32> {
    x.iter().zip(importance).map(|(x, importance)| importance * (spread + x * x).sqrt()).collect()
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

/// A scale and a min with the error they leave.
#[derive(Clone, Copy)]
struct Affine {
    error: f32,
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
    let mut best = Affine { error: f32::INFINITY, scale: 0.0, min: -low };
    let mut offset = reach.from;
    while offset <= reach.to {
        let found = fit_affine(x, weights, top, (width / (top + offset), -low));
        if found.error < best.error {
            best = found;
        }
        offset += reach.step;
    }
    for _ in 0..4 {
        let found = fit_affine(x, weights, top, (best.scale, best.min));
        if found.error >= best.error {
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

/// The least-squares scale and min for the codes that a given scale and min lead to.
fn fit_affine(x: &[f32], weights: &[f32], top: f32, start: (f32, f32)) -> Affine {
    let inverse = inverse(start.0);
    let (mut w, mut wx, mut wl, mut wll, mut wxl) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
    for (&x, &weight) in x.iter().zip(weights) {
        let code = affine_code(x, inverse, start.1, top);
        let weighted = weight * code;
        w += weight;
        wx += weight * x;
        wl += weighted;
        wll += weighted * code;
        wxl += weighted * x;
    }
    let determinant = w * wll - wl * wl;
    let mut scale = (w * wxl - wx * wl) / determinant;
    let mut min = (wl * wxl - wll * wx) / determinant;
    if determinant <= 0.0 || min < 0.0 {
        (scale, min) = (if wll > 0.0 { wxl / wll } else { 0.0 }, 0.0);
    }
    let error = x.iter().zip(weights).map(|(&x, &weight)| {
        let difference = scale * affine_code(x, inverse, start.1, top) - min - x;
        weight * difference * difference
    });
    Affine { error: error.sum(), scale, min }
}
