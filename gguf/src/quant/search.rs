//! The search for scales: what is left to choose when a format's layout is fixed. All errors here are weighted sums of
//! squares; a scale is always the least-squares one for the codes it goes with.

/// Magnitudes below this are zero to every format.
const TINY: f32 = 1e-15;

// Groups are arrays, so that compilers know their lengths and turn all this into vector instructions.

/// The first elements, as many as a group or a block has.
pub(crate) fn group<const N: usize>(x: &[f32]) -> &[f32; N] {
    x.first_chunk().expect("a block has all its elements")
}

/// What becomes of each element.
pub(crate) fn each<const N: usize>(x: &[f32; N], becomes: impl Fn(f32) -> f32) -> [f32; N] {
    std::array::from_fn(|i| becomes(x[i]))
}

/// The products of elements of the same place.
pub(crate) fn products<const N: usize>(a: &[f32; N], b: &[f32; N]) -> [f32; N] {
    std::array::from_fn(|i| a[i] * b[i])
}

/// The sum of the products of elements of the same place.
pub(crate) fn dot<const N: usize>(a: &[f32; N], b: &[f32; N]) -> f32 {
    total(&products(a, b))
}

/// The sum of a group, whose length is a multiple of four.
pub(crate) fn total<const N: usize>(numbers: &[f32; N]) -> f32 {
    let mut parts = [0.0f32; 4];
    for four in numbers.as_chunks::<4>().0 {
        parts.iter_mut().zip(four).for_each(|(part, number)| *part += number);
    }
    (parts[0] + parts[2]) + (parts[1] + parts[3])
}

/// The nearest integer, ties to even, of a value within ±2²².
pub(crate) fn round(value: f32) -> f32 {
    (value + MAGIC) - MAGIC
}

/// Adding 1.5 · 2²³ pushes the fraction out of the mantissa; there is no rounding instruction in baseline x86-64.
const MAGIC: f32 = 12_582_912.0;

/// A whole number, -128 to 127; of anything else, any number.
pub(crate) fn integer(whole: f32) -> i8 {
    (whole + MAGIC).to_bits() as i8
}

/// A value brought between two bounds; one that is no number becomes the lower. Two instructions where `f32::clamp` is a
/// handful and may panic.
pub(crate) fn clip(value: f32, low: f32, high: f32) -> f32 {
    let value = if value > low { value } else { low };
    if value < high { value } else { high }
}

/// 1 / scale, or 0 where there is none.
pub(crate) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The first element of largest magnitude, with its sign.
pub(crate) fn extreme(x: &[f32]) -> f32 {
    let most = magnitude(x);
    x.iter().copied().find(|x| x.abs() == most && most > 0.0).unwrap_or(0.0)
}

/// The largest magnitude among the elements, whose number is a multiple of four.
pub(crate) fn magnitude(x: &[f32]) -> f32 {
    let larger = |most: f32, x: f32| if x > most { x } else { most };
    let mut parts = [0.0f32; 4];
    for four in x.as_chunks::<4>().0 {
        parts.iter_mut().zip(four).for_each(|(most, x)| *most = larger(*most, x.abs()));
    }
    parts.into_iter().fold(0.0, larger)
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
pub(crate) fn symmetric<const N: usize>(x: &[f32; N], weights: &[f32; N], top: f32) -> f32 {
    scale(x, weights, candidates(x, -top, 0.9), |v| clip(round(v), -top, top - 1.0))
}

/// The scale and the minimum, of either sign, for codes 0..=top at `scale * code + min`: the whole range without
/// importance, else the best.
pub(crate) fn span(x: &[f32; 32], importance: Option<&[f32]>, top: f32) -> (f32, f32) {
    let Some(importance) = importance else {
        let (low, high) = range(x);
        return ((high - low) / top, low);
    };
    let weights = weights(x, importance, mean_square(x));
    let (scale, min) = scale_and_min(x, group(&weights), top, Reach { from: -0.9, to: 0.9, step: 0.05 });
    (scale, -min)
}

/// The best scale for codes at `scale * level(x / scale)`: tries every candidate inverse, then improves the best one by
/// turns of rounding and least squares. 0 if there is no candidate.
pub(crate) fn scale<const N: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    candidates: impl Iterator<Item = f32>,
    level: impl Fn(f32) -> f32,
) -> f32 {
    // For fixed levels l the best scale is Σwxl / Σwl², and it takes (Σwxl)² / Σwl² off the error.
    let weighted = products(x, weights);
    let fit = |inverse: f32| {
        let levels = each(x, |x| level(inverse * x));
        let (products, squares) = (dot(&weighted, &levels), dot(weights, &products(&levels, &levels)));
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
pub(crate) fn scale_and_min<const N: usize>(x: &[f32; N], weights: &[f32; N], top: f32, reach: Reach) -> (f32, f32) {
    let (low, high) = range(x);
    let low = low.min(0.0);
    let width = high - low;
    if !(TINY..f32::INFINITY).contains(&width) {
        return (0.0, -low);
    }
    // Sums over y = x - low, which does not cancel when all elements are far from zero.
    let above = each(x, |x| x - low);
    let group = Group { x, weights, top, low, above, weight: total(weights), weighted: dot(weights, &above) };
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
    clip(round(inverse * (x + min)), 0.0, top)
}

/// The elements that share a scale and a min.
struct Group<'a, const N: usize> {
    x: &'a [f32; N],
    weights: &'a [f32; N],
    top: f32,
    /// The smallest element, or 0 if that is smaller.
    low: f32,
    /// How far each element is above it.
    above: [f32; N],
    /// The sum of the weights.
    weight: f32,
    /// The sum of `above`, weighted.
    weighted: f32,
}

impl<const N: usize> Group<'_, N> {
    /// The least-squares scale and min for the codes that a given inverse scale and min lead to.
    fn fit(&self, inverse: f32, min: f32) -> Affine {
        let codes = each(self.x, |x| affine_code(x, inverse, min, self.top));
        let weighted = products(self.weights, &codes);
        let (w, wy) = (self.weight, self.weighted);
        let (wl, wll) = (total(&weighted), dot(&weighted, &codes));
        let wyl = dot(&weighted, &self.above);
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
