//! Every instruction set against f64, with lengths around the number of lanes.

use super::{
    dense::{Bf16, Element, F16, F32, Stored, rounded_f16},
    *,
};
use kvas_backend::conformance::Random;

fn everywhere(check: impl Fn(Proof)) {
    let available = Isa::ALL.into_iter().filter_map(Proof::of);
    available.for_each(check);
}

fn normal(seed: u64, len: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.normal()).collect()
}

const LENGTHS: [usize; 12] = [1, 2, 7, 8, 9, 15, 16, 17, 31, 64, 100, 259];

struct Map<'a>(fn(&mut [f32]), &'a mut [f32], Which);

#[derive(Clone, Copy, PartialEq)]
enum Which {
    Exp,
    Sigmoid,
    Softplus,
}

impl Kernel for Map<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for x in self.1.chunks_mut(S::LANES) {
            let loaded = math::load(simd, x);
            let y = match self.2 {
                Which::Exp => math::exp(simd, loaded),
                Which::Sigmoid => math::sigmoid(simd, loaded),
                Which::Softplus => math::softplus(simd, loaded),
            };
            math::store(simd, y, x);
        }
        (self.0)(self.1);
    }
}

fn mapped(proof: Proof, x: &[f32], which: Which) -> Vec<f32> {
    let mut y = x.to_vec();
    proof.run(Map(|_| (), &mut y, which));
    y
}

#[test]
fn exp_sigmoid_and_softplus_are_exact_to_a_few_units() {
    let x: Vec<f32> = (-8700..8800).map(|i| i as f32 / 100.0).collect();
    everywhere(|proof| {
        for (x, y) in x.iter().zip(mapped(proof, &x, Which::Exp)) {
            let exact = f64::from(*x).exp();
            assert!((f64::from(y) / exact - 1.0).abs() < 2.5e-7, "{proof:?}: exp({x}) = {y}, not {exact}");
        }
        for (x, y) in x.iter().zip(mapped(proof, &x, Which::Sigmoid)) {
            let exact = 1.0 / (1.0 + (-f64::from(*x)).exp());
            assert!((f64::from(y) / exact - 1.0).abs() < 5e-7, "{proof:?}: sigmoid({x}) = {y}, not {exact}");
        }
        for (x, y) in x.iter().zip(mapped(proof, &x, Which::Softplus)) {
            let exact = f64::from(*x).exp().ln_1p();
            assert!((f64::from(y) / exact - 1.0).abs() < 4e-7, "{proof:?}: softplus({x}) = {y}, not {exact}");
        }
    });
}

#[test]
fn exp_of_the_extremes() {
    everywhere(|proof| {
        let y = mapped(proof, &[f32::NEG_INFINITY, -87.5, 0.0, f32::NAN, 1e9, -1e30], Which::Exp);
        assert_eq!([y[0], y[1], y[2], y[5]], [0.0, 0.0, 1.0, 0.0]);
        assert!(y[3].is_nan() && y[4] > 1e38);
        let y = mapped(proof, &[f32::NEG_INFINITY, f32::INFINITY, f32::NAN], Which::Sigmoid);
        assert!(y[0] < 1e-37 && y[1] == 1.0 && y[2].is_nan());
        let y = mapped(proof, &[f32::NEG_INFINITY, -1e30, f32::INFINITY, f32::NAN, 1e30], Which::Softplus);
        assert_eq!([y[0], y[1], y[2], y[4]], [0.0, 0.0, f32::INFINITY, 1e30]);
        assert!(y[3].is_nan());
    });
}

/// `dots`, and the same rows in tiles of several shapes.
struct Dots<'a, E> {
    matrix: &'a [u8],
    x: [&'a [f32]; 2],
    out: &'a mut [f32],
    element: std::marker::PhantomData<E>,
}

impl<E: Element> Kernel for Dots<'_, E> {
    /// Each row with both x, in a tile of 4 by 2 and in single ones.
    type Output = Vec<[[f32; 2]; 2]>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let (first, second) = self.out.split_at_mut(self.out.len() / 2);
        dense::dots::<E, S, 1>(simd, self.matrix, [self.x[0]], [&mut *first]);
        let mut again = vec![0.0; first.len()];
        dense::dots::<E, S, 2>(simd, self.matrix, self.x, [&mut again, second]);
        assert_eq!(again, first, "in pairs as alone");
        let rows: Vec<&[u8]> = self.matrix.chunks_exact(self.x[0].len() * E::BYTES).collect();
        let mut all = Vec::new();
        for rows in rows.as_chunks::<4>().0 {
            let wide = dense::tile::<E, S, 4, 2>(simd, *rows, self.x);
            for i in 0..4 {
                let one = dense::tile::<E, S, 1, 1>(simd, [rows[i]], [self.x[0]])[0][0];
                let other = dense::tile::<E, S, 1, 1>(simd, [rows[i]], [self.x[1]])[0][0];
                all.push([wide[i], [one, other]]);
            }
        }
        all
    }
}

fn f64_dot(a: &[f32], b: &[f32]) -> (f64, f64) {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    (products.clone().sum(), products.map(f64::abs).sum())
}

fn check_dots<E: Element>(stored: impl Fn(f32) -> Vec<u8>) {
    for columns in LENGTHS {
        let rows = 13; // one eight and a rest
        let matrix: Vec<u8> = normal(1, rows * columns).into_iter().flat_map(&stored).collect();
        let mut exact = vec![0.0; rows * columns];
        E::widen(&matrix, &mut exact);
        let (x, other) = (normal(2, columns), normal(3, columns));
        everywhere(|proof| {
            let mut out = vec![0.0; 2 * rows];
            let element = std::marker::PhantomData::<E>;
            let tiles = proof.run(Dots { matrix: &matrix, x: [&x, &other], out: &mut out, element });
            for (x, out) in [&x, &other].into_iter().zip(out.chunks(rows)) {
                for (row, out) in exact.chunks(columns).zip(out) {
                    let (exact, size) = f64_dot(row, x);
                    assert!((f64::from(*out) - exact).abs() <= 1e-6 * size, "{proof:?} {columns}: {out}, not {exact}");
                }
            }
            for (row, [wide, single]) in tiles.into_iter().enumerate() {
                assert_eq!(wide, single, "{proof:?} {columns}: the tile's shape shows");
                assert_eq!(single[0], out[row], "{proof:?} {columns}: eight at a time differ");
            }
        });
    }
}

#[test]
fn dots_of_every_element() {
    check_dots::<F32>(|x| x.to_le_bytes().to_vec());
    check_dots::<F16>(|x| half::f16::from_f32(x).to_le_bytes().to_vec());
    check_dots::<Bf16>(|x| half::bf16::from_f32(x).to_le_bytes().to_vec());
}

struct Combine<'a, E>(f32, &'a [f32], &'a [u8], &'a mut [f32], std::marker::PhantomData<E>);

impl<E: Element> Kernel for Combine<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut pair = [self.3.to_vec(), self.3.iter().map(|x| 2.0 * x).collect()];
        dense::combine::<E, S, 1>(simd, [self.0], [self.1], self.2, [&mut *self.3]);
        let doubled: Vec<f32> = self.1.iter().map(|x| 2.0 * x).collect();
        let [one, two] = &mut pair;
        dense::combine::<E, S, 2>(simd, [self.0; 2], [self.1, &doubled], self.2, [one, two]);
        assert_eq!(pair[0], self.3, "in pairs as alone");
        assert!(pair[1].iter().zip(&*self.3).all(|(two, one)| *two == 2.0 * one));
    }
}

#[test]
fn combinations_of_rows() {
    for columns in LENGTHS {
        let weights = normal(4, 5);
        let before = normal(5, columns);
        let matrix = normal(6, 5 * columns);
        let half: Vec<u8> = matrix.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
        everywhere(|proof| {
            let (mut full, mut narrow) = (before.clone(), before.clone());
            let marker = std::marker::PhantomData::<F32>;
            proof.run(Combine(0.5, &weights, bytemuck::cast_slice(&matrix), &mut full, marker));
            proof.run(Combine::<F16>(0.5, &weights, &half, &mut narrow, std::marker::PhantomData));
            for i in 0..columns {
                let sum = |tolerance: f64, found: f32| {
                    let rows = weights.iter().enumerate();
                    let sum: f64 = rows.map(|(j, w)| f64::from(*w) * f64::from(matrix[j * columns + i])).sum();
                    let exact = 0.5 * f64::from(before[i]) + sum;
                    assert!((f64::from(found) - exact).abs() < tolerance, "{proof:?} {columns}: {found}, not {exact}");
                };
                sum(2e-6, full[i]);
                sum(5e-3, narrow[i]);
            }
        });
    }
}

/// Takes f16 out for changing, doubles them in f32, and rounds them back.
struct Double<'a>(&'a mut [u16]);

impl Kernel for Double<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut copy = vec![0.0; self.0.len()];
        let open = F16::open(simd, self.0, &mut copy);
        math::scale(simd, open, 2.0);
        F16::close(simd, &copy, self.0);
    }
}

#[test]
fn halves_are_rounded_to_the_nearest_and_saturate() {
    let ties = [1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 65519.0, 65520.0, 1e30, -1e30, 3e-8, 2e-8, -0.0, 1e-5];
    let bits = ties.map(rounded_f16);
    assert_eq!(bits, [0x3c00, 0x3c02, 0x7bff, 0x7bff, 0x7bff, 0xfbff, 1, 0, 0x8000, 0xa8]);
    assert!(half::f16::from_bits(rounded_f16(f32::NAN)).is_nan());
    let stored: Vec<u16> = (0..0x7c00).step_by(7).flat_map(|bits: u16| [bits, bits | 0x8000]).chain([0x7e00]).collect();
    everywhere(|proof| {
        for len in LENGTHS.into_iter().chain([stored.len()]) {
            let from = &stored[stored.len() - len..];
            let mut doubled = from.to_vec();
            proof.run(Double(&mut doubled));
            for (bits, found) in from.iter().zip(doubled) {
                let x = half::f16::from_bits(*bits).to_f32();
                let expected = rounded_f16(2.0 * x);
                assert!(found == expected || x.is_nan() && half::f16::from_bits(found).is_nan(), "{proof:?}: 2 * {x}");
            }
        }
    });
}

struct Passes<'a>(&'a mut [f32], &'a [f32]);

impl Kernel for Passes<'_> {
    type Output = (f32, f32, f32);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> (f32, f32, f32) {
        let squares = math::sum_of_squares(simd, self.0);
        math::scale_by(simd, self.0, 3.0, self.1);
        math::add_scaled(simd, self.0, -2.0, self.1);
        let vector = math::load(simd, self.1);
        (squares, simd.largest(vector), simd.sum(vector))
    }
}

#[test]
fn passes_over_slices() {
    for len in LENGTHS {
        let (x, y) = (normal(7, len), normal(8, len));
        everywhere(|proof| {
            let mut out = x.clone();
            let (squares, largest, sum) = proof.run(Passes(&mut out, &y));
            assert!((f64::from(squares) / f64_dot(&x, &x).0 - 1.0).abs() < 1e-6);
            for ((out, x), y) in out.iter().zip(&x).zip(&y) {
                assert!((out - (3.0 * x * y - 2.0 * y)).abs() < 1e-5);
            }
            if len >= 16 {
                let lanes = if matches!(proof, Proof::Scalar(_)) { 8 } else { [8, 16][usize::from(is_wide(proof))] };
                let most = y[..lanes].iter().copied().fold(f32::MIN, f32::max);
                assert_eq!(largest, most);
                assert!((sum - y[..lanes].iter().sum::<f32>()).abs() < 1e-5);
            }
        });
    }
}

fn is_wide(proof: Proof) -> bool {
    struct Wide;
    impl Kernel for Wide {
        type Output = bool;
        fn run<S: Simd>(self, _: S) -> bool {
            S::LANES == 16
        }
    }
    proof.run(Wide)
}
