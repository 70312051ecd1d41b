//! Elementary functions and passes over slices, vectorised.

use super::Simd;
use kvas_backend::op::Activation;

/// The first `LANES` values of `x`, zeros where it is shorter.
#[inline(always)]
pub(crate) fn load<S: Simd>(simd: S, x: &[f32]) -> S::F32 {
    if x.len() >= S::LANES {
        // SAFETY: `x` has LANES values.
        return unsafe { simd.load(x.as_ptr()) };
    }
    let padded = padded(x);
    // SAFETY: 16 values, and LANES is at most 16.
    unsafe { simd.load(padded.as_ptr()) }
}

/// `x`, then zeros. Apart from the loops that may end so, in which it takes registers.
#[cold]
#[inline(never)]
fn padded(x: &[f32]) -> [f32; 16] {
    let mut padded = [0.0; 16];
    padded[..x.len()].copy_from_slice(x);
    padded
}

/// Writes as many lanes as `out` has values, at most all.
#[inline(always)]
pub(crate) fn store<S: Simd>(simd: S, x: S::F32, out: &mut [f32]) {
    if out.len() >= S::LANES {
        // SAFETY: `out` has LANES values.
        return unsafe { simd.store(x, out.as_mut_ptr()) };
    }
    let mut padded = [0.0; 16];
    // SAFETY: 16 values, and LANES is at most 16.
    unsafe { simd.store(x, padded.as_mut_ptr()) };
    put(&padded, out);
}

/// As much of `padded` as `out` has room for, apart as [`padded`] is.
#[cold]
#[inline(never)]
fn put(padded: &[f32; 16], out: &mut [f32]) {
    out.copy_from_slice(&padded[..out.len()]);
}

/// `e^x` to about 1 unit in the last place; 0 below -87, infinite results saturate near `f32::MAX`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    const LN2_HIGH: f32 = 0.693_359_4; // 355 / 512: exact times any exponent
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // 1 / n! from n = 6 down.
    const TERMS: [f32; 6] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];
    let lowest = simd.splat(-87.0);
    // The order of operands keeps what is not a number.
    let within = simd.min(simd.splat(88.0), simd.max(lowest, x));
    let n = simd.round(simd.mul(within, simd.splat(std::f32::consts::LOG2_E)));
    let r = simd.fma(n, simd.splat(-LN2_HIGH), within);
    let r = simd.fma(n, simd.splat(-LN2_LOW), r);
    let mut sum = simd.splat(1.0 / 5040.0);
    for term in TERMS {
        sum = simd.fma(sum, r, simd.splat(term));
    }
    let sum = simd.fma(sum, r, simd.splat(1.0));
    simd.zero_below(x, lowest, simd.mul(sum, simd.pow2(n)))
}

/// `2^x` to about 1 unit in the last place; 0 below -126, infinite results saturate near `f32::MAX`.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    // The polynomial of degree 6 that meets 2^r in the seven Chebyshev points of [-1/2, 1/2]: off by 2e-9.
    const TERMS: [f32; 6] = [1.340_042_8e-3, 9.618_057e-3, 5.550_327e-2, 0.240_226_5, std::f32::consts::LN_2, 1.0];
    let lowest = simd.splat(-126.0);
    // The order of operands keeps what is not a number.
    let within = simd.min(simd.splat(127.0), simd.max(lowest, x));
    let n = simd.round(within);
    let r = simd.sub(within, n);
    let mut sum = simd.splat(1.546_144_5e-4);
    for term in TERMS {
        sum = simd.fma(sum, r, simd.splat(term));
    }
    simd.zero_below(x, lowest, simd.mul(sum, simd.pow2(n)))
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let one = simd.splat(1.0);
    simd.div(one, simd.add(one, exp(simd, simd.sub(simd.splat(0.0), x))))
}

/// `ln(1 + e^x)` to a few units in the last place; 0 below -87.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    // With z = e^-|x|: max(x, 0) + ln(1 + z), and ln(1 + z) = 2 artanh(w) of w = z / (2 + z), at most 1/3.
    const TERMS: [f32; 7] = [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
    let negative = simd.sub(simd.splat(0.0), x);
    let z = exp(simd, simd.min(negative, x));
    let w = simd.div(z, simd.add(z, simd.splat(2.0)));
    let square = simd.mul(w, w);
    let mut sum = simd.splat(1.0 / 15.0);
    for term in TERMS {
        sum = simd.fma(sum, square, simd.splat(term));
    }
    simd.fma(simd.add(w, w), sum, simd.max(simd.splat(0.0), x))
}

/// The nonlinearity of a gate or a hidden layer.
#[inline(always)]
pub(crate) fn activate<S: Simd>(simd: S, activation: Activation, x: S::F32) -> S::F32 {
    match activation {
        Activation::Silu => simd.mul(x, sigmoid(simd, x)),
        Activation::Sigmoid => sigmoid(simd, x),
        Activation::ReluSquared => simd.zero_below(x, simd.splat(0.0), simd.mul(x, x)),
    }
}

/// `x = activation(x)`
#[inline(always)]
pub(crate) fn activate_in_place<S: Simd>(simd: S, activation: Activation, x: &mut [f32]) {
    for x in x.chunks_mut(S::LANES) {
        let y = activate(simd, activation, load(simd, x));
        store(simd, y, x);
    }
}

/// `x = e^x`
#[inline(always)]
pub(crate) fn exp_in_place<S: Simd>(simd: S, x: &mut [f32]) {
    for x in x.chunks_mut(S::LANES) {
        let y = exp(simd, load(simd, x));
        store(simd, y, x);
    }
}

/// `x = ln(1 + e^x)`
#[inline(always)]
pub(crate) fn softplus_in_place<S: Simd>(simd: S, x: &mut [f32]) {
    for x in x.chunks_mut(S::LANES) {
        let y = softplus(simd, load(simd, x));
        store(simd, y, x);
    }
}

/// `x = 1 / (1 + e^-x)`
#[inline(always)]
pub(crate) fn sigmoid_in_place<S: Simd>(simd: S, x: &mut [f32]) {
    for x in x.chunks_mut(S::LANES) {
        let y = sigmoid(simd, load(simd, x));
        store(simd, y, x);
    }
}

/// `sum += a * b`, each rounded once.
#[inline(always)]
pub(crate) fn add_products<S: Simd>(simd: S, sum: &mut [f32], a: &[f32], b: &[f32]) {
    for ((sum, a), b) in sum.chunks_mut(S::LANES).zip(a.chunks(S::LANES)).zip(b.chunks(S::LANES)) {
        let y = simd.fma(load(simd, a), load(simd, b), load(simd, sum));
        store(simd, y, sum);
    }
}

/// Sum of squares, in an order that depends on the length alone.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let mut sums = [simd.splat(0.0); 4];
    let (whole, rest) = x.split_at(x.len() - x.len() % (4 * S::LANES));
    for x in whole.chunks_exact(4 * S::LANES) {
        for part in 0..4 {
            let x = load(simd, &x[part * S::LANES..][..S::LANES]);
            sums[part] = simd.fma(x, x, sums[part]);
        }
    }
    // Known places again: an index that is not would keep the sums in memory all along.
    for part in 0..4 {
        if let Some(x) = rest.get(part * S::LANES..).filter(|x| !x.is_empty()) {
            let x = load(simd, &x[..x.len().min(S::LANES)]);
            sums[part] = simd.fma(x, x, sums[part]);
        }
    }
    simd.sum(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])))
}

/// `x = factor * x * weight`
#[inline(always)]
pub(crate) fn scale_by<S: Simd>(simd: S, x: &mut [f32], factor: f32, weight: &[f32]) {
    let factor = simd.splat(factor);
    for (x, weight) in x.chunks_mut(S::LANES).zip(weight.chunks(S::LANES)) {
        let y = simd.mul(simd.mul(load(simd, x), factor), load(simd, weight));
        store(simd, y, x);
    }
}

/// What has faded to less than this is taken for 0. Products of what is left are no subnormal numbers, with which some processors
/// take a hundred times as long: without it, four rows of a delta rule with decays by channel take 2.6 times as long on a Xeon.
pub(crate) const FADED: f32 = 1e-18;

/// `x = e^x`, what something fades by: 0 instead of less than [`FADED`].
#[inline(always)]
pub(crate) fn fade_factors<S: Simd>(simd: S, x: &mut [f32]) {
    for x in x.chunks_mut(S::LANES) {
        let factor = exp(simd, load(simd, x));
        store(simd, simd.zero_below(factor, simd.splat(FADED), factor), x);
    }
}

/// `x = x * factors`, which are those of [`fade_factors`]: 0 instead of numbers whose magnitude is less than [`FADED`].
#[inline(always)]
pub(crate) fn fade<S: Simd>(simd: S, x: &mut [f32], factors: &[f32]) {
    for (x, factor) in x.chunks_mut(S::LANES).zip(factors.chunks(S::LANES)) {
        let y = simd.mul(load(simd, x), load(simd, factor));
        let magnitude = simd.max(y, simd.sub(simd.splat(0.0), y));
        store(simd, simd.zero_below(magnitude, simd.splat(FADED), y), x);
    }
}

/// `x = factor * x`
#[inline(always)]
pub(crate) fn scale<S: Simd>(simd: S, x: &mut [f32], factor: f32) {
    let factor = simd.splat(factor);
    for x in x.chunks_mut(S::LANES) {
        let y = simd.mul(load(simd, x), factor);
        store(simd, y, x);
    }
}

/// `out = factor * x`
#[inline(always)]
pub(crate) fn scaled<S: Simd>(simd: S, x: &[f32], factor: f32, out: &mut [f32]) {
    let factor = simd.splat(factor);
    for (out, x) in out.chunks_mut(S::LANES).zip(x.chunks(S::LANES)) {
        let y = simd.mul(load(simd, x), factor);
        store(simd, y, out);
    }
}

/// Writes numbers that are read much later, past the caches where that can be. Callers let them settle ([`Simd::settle`]) before
/// anything else reads or writes `out`.
#[inline(always)]
pub(crate) fn store_far<S: Simd>(simd: S, x: &[f32], out: &mut [f32]) {
    if !out.as_ptr().addr().is_multiple_of(S::LANES * size_of::<f32>()) {
        return out.copy_from_slice(x);
    }
    for (x, out) in x.chunks(S::LANES).zip(out.chunks_mut(S::LANES)) {
        if out.len() < S::LANES {
            store(simd, load(simd, x), out);
            continue;
        }
        // SAFETY: there are as many floats in a chunk, and the first of them lies so; the caller settles.
        unsafe { simd.store_far(load(simd, x), out.as_mut_ptr()) };
    }
}

/// `out = activation(gate) * x`
#[inline(always)]
pub(crate) fn gated<S: Simd>(simd: S, activation: Activation, gate: &[f32], x: &[f32], out: &mut [f32]) {
    for ((out, gate), x) in out.chunks_mut(S::LANES).zip(gate.chunks(S::LANES)).zip(x.chunks(S::LANES)) {
        let y = simd.mul(activate(simd, activation, load(simd, gate)), load(simd, x));
        store(simd, y, out);
    }
}

/// `x = x * activation(gate)`
#[inline(always)]
pub(crate) fn gate_in_place<S: Simd>(simd: S, activation: Activation, gate: &[f32], x: &mut [f32]) {
    for (x, gate) in x.chunks_mut(S::LANES).zip(gate.chunks(S::LANES)) {
        let y = simd.mul(activate(simd, activation, load(simd, gate)), load(simd, x));
        store(simd, y, x);
    }
}

/// `out = out + factor * x`
#[inline(always)]
pub(crate) fn add_scaled<S: Simd>(simd: S, out: &mut [f32], factor: f32, x: &[f32]) {
    let factor = simd.splat(factor);
    for (out, x) in out.chunks_mut(S::LANES).zip(x.chunks(S::LANES)) {
        let y = simd.fma(factor, load(simd, x), load(simd, out));
        store(simd, y, out);
    }
}

/// `x = x + y`
#[inline(always)]
pub(crate) fn add<S: Simd>(simd: S, x: &mut [f32], y: &[f32]) {
    for (x, y) in x.chunks_mut(S::LANES).zip(y.chunks(S::LANES)) {
        let sum = simd.add(load(simd, x), load(simd, y));
        store(simd, sum, x);
    }
}
