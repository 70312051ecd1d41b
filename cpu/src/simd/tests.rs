//! Every instruction set against f64, with lengths around the number of lanes.

use super::{
    dense::{Addends, Bf16, Element, F8, F16, F32, I8, Stored, rounded_f16},
    strips::{Start, Strip, Sums, Weights},
    *,
};
use kvas_backend::{conformance::Random, store::f8};

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
    Exp2,
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
                Which::Exp2 => math::exp2(simd, loaded),
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
        for (x, y) in x.iter().filter(|x| x.abs() <= 126.0).zip(mapped(proof, &x, Which::Exp2)) {
            let exact = f64::from(*x).exp2();
            assert!((f64::from(y) / exact - 1.0).abs() < 2e-7, "{proof:?}: 2^{x} = {y}, not {exact}");
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
        let y = mapped(proof, &[f32::NEG_INFINITY, -126.5, 0.0, f32::NAN, 1e9, -1e30], Which::Exp2);
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
        let mut four = vec![vec![0.0; first.len()]; 4];
        let [a, b, c, d] = &mut four[..] else { panic!("four of them") };
        let [x, y] = self.x;
        dense::dots::<E, S, 4>(simd, self.matrix, [x, y, y, x], [a, b, c, d]);
        for (found, alone) in four.iter().zip([&*first, second, second, first]) {
            assert_eq!(found, alone, "in fours as alone");
        }
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
    check_dots::<I8>(|x| vec![(x * 40.0) as i8 as u8]);
    check_dots::<F8>(|x| vec![f8::encode(x * 40.0)]);
}

struct Widen<'a, E>(&'a [u8], &'a mut [f32], std::marker::PhantomData<E>);

impl<E: Element> Kernel for Widen<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        dense::widen::<E, S>(simd, self.0, self.1);
    }
}

#[test]
fn every_code_of_8_bits_is_the_same_float_everywhere() {
    let codes: Vec<u8> = (0..=255).collect();
    let expected: Vec<u32> = codes.iter().map(|code| f8::decode(*code).to_bits()).collect();
    everywhere(|proof| {
        // Whole vectors of all codes, and all codes but one, of which the last ones are left over.
        for skipped in [0, 1] {
            let mut out = vec![0.0; 256 - skipped];
            proof.run(Widen::<F8>(&codes[skipped..], &mut out, std::marker::PhantomData));
            let found: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
            assert_eq!(found, expected[skipped..], "{proof:?}");
        }
    });
}

struct Combine<'a, E>(f32, &'a [f32], &'a [u8], &'a mut [f32], std::marker::PhantomData<E>);

impl<E: Element> Kernel for Combine<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut pair = [self.3.to_vec(), self.3.iter().map(|x| 2.0 * x).collect(), self.3.to_vec()];
        dense::combine::<E, S, 1>(simd, [self.0], [self.1], self.2, [&mut *self.3]);
        let doubled: Vec<f32> = self.1.iter().map(|x| 2.0 * x).collect();
        let [one, two, _] = &mut pair;
        dense::combine::<E, S, 2>(simd, [self.0; 2], [self.1, &doubled], self.2, [one, two]);
        assert_eq!(pair[0], self.3, "in pairs as alone");
        let mut four = vec![pair[2].clone(); 4];
        let [a, b, c, d] = &mut four[..] else { panic!("four of them") };
        dense::combine::<E, S, 4>(simd, [self.0; 4], [self.1, &doubled, &doubled, self.1], self.2, [a, b, c, d]);
        assert_eq!(four[3], self.3, "in fours as alone");
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

/// Rows of a matrix, in fours, in twos and one by one; the factors of its columns, if each has its own; addends in two runs, and
/// weights of theirs for all rows.
struct Fold<'a, E: Stored>(&'a mut [E::Bits], Option<&'a [f32]>, [&'a [f32]; 2], &'a [f32]);

impl<E: Stored> Kernel for Fold<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(rows, factors, [old, new], weights) = self;
        let columns = rows.len() / 4;
        let of = |first: usize, at: usize, rows| Addends { rows, weights: &weights[first * 4 + at..], step: 4 };
        let addends = |at: usize| [of(0, at, old), of(old.len() / columns, at, new)];
        let [mut twos, mut ones] = [rows.to_vec(), rows.to_vec()];
        dense::fold::<E, S, 4>(simd, rows, (0.5, factors), addends(0));
        for (at, rows) in twos.chunks_exact_mut(2 * columns).enumerate() {
            dense::fold::<E, S, 2>(simd, rows, (0.5, factors), addends(2 * at));
        }
        for (at, row) in ones.chunks_exact_mut(columns).enumerate() {
            dense::fold::<E, S, 1>(simd, row, (0.5, factors), addends(at));
        }
        let bytes = |rows: &[E::Bits]| bytemuck::cast_slice::<_, u8>(rows).to_vec();
        assert!(bytes(&twos) == bytes(rows) && bytes(&ones) == bytes(rows), "in fours as in twos and alone");
    }
}

#[test]
fn folds_of_rows() {
    for columns in LENGTHS {
        let (before, factors, weights) = (normal(6, 4 * columns), normal(7, columns), normal(8, 5 * 4));
        let [old, new] = [normal(9, 3 * columns), normal(10, 2 * columns)];
        for factors in [None, Some(&factors[..])] {
            everywhere(|proof| {
                let mut full = before.clone();
                let mut half: Vec<u16> = before.iter().map(|x| half::f16::from_f32(*x).to_bits()).collect();
                proof.run(Fold::<F32>(&mut full, factors, [&old, &new], &weights));
                proof.run(Fold::<F16>(&mut half, factors, [&old, &new], &weights));
                for (i, before) in before.iter().enumerate() {
                    let (w, column) = (i / columns, i % columns);
                    let addends = old.chunks_exact(columns).chain(new.chunks_exact(columns));
                    let sum: f64 =
                        addends.enumerate().map(|(j, x)| f64::from(weights[4 * j + w]) * f64::from(x[column])).sum();
                    let keep = factors.map_or(0.5, |factors| factors[column]);
                    let exact = f64::from(keep) * f64::from(*before) + sum;
                    let found = [f64::from(full[i]), half::f16::from_bits(half[i]).to_f64()];
                    for (found, tolerance) in found.into_iter().zip([4e-6, 2e-2]) {
                        assert!((found - exact).abs() < tolerance, "{proof:?} {columns}: {found}, not {exact}");
                    }
                }
            });
        }
    }
}

/// Sums of rows in tiles of `V` vectors, all of them at once and one by one.
struct AddRows<'a, const V: usize> {
    /// `[count, rows]`
    weights: &'a [f32],
    /// `[rows, columns]` of f16.
    matrix: &'a [u8],
    columns: usize,
    /// `[count, columns]`
    sums: &'a mut [f32],
}

impl<const V: usize> Kernel for AddRows<'_, V> {
    type Output = usize;

    /// Returns how many columns were summed.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> usize {
        let Self { weights, matrix, columns, sums } = self;
        let (rows, count) = (matrix.len() / 2 / columns, sums.len() / columns);
        let factors: Vec<f32> = (0..count).map(|i| 0.5 * i as f32).collect();
        let summed = (V * S::LANES).min(columns);
        let mut single = sums.to_vec();
        if V * S::LANES > columns {
            let rest = (matrix, 2 * columns, columns);
            let weights = Weights::in_rows(weights, rows, rows);
            let mut sums = Sums { data: sums, stride: columns };
            strips::add_rest::<F16, S>(simd, (count, Start::Scaled(&factors)), weights, rest, &mut sums);
            return summed;
        }
        let mut strip = Strip { first: [matrix; V], next: [matrix; V], stride: 2 * columns };
        for v in 0..V {
            strip.first[v] = &matrix[v * S::LANES * 2..];
        }
        let of = |i: usize, len: usize| Weights::in_rows(&weights[i * rows..], rows, len);
        let mut tiled = Sums { data: sums, stride: columns };
        // In two halves: the second goes on with what the first left.
        let mut rest = strip;
        for v in 0..V {
            rest.first[v] = &strip.first[v][rows / 2 * strip.stride..];
        }
        let later = Weights::in_rows(&weights[rows / 2..], rows, rows - rows / 2);
        strips::add_rows::<F16, S, V, true>(simd, (count, Start::Scaled(&factors)), of(0, rows / 2), strip, &mut tiled);
        strips::add_rows::<F16, S, V, false>(simd, (count, Start::Kept), later, rest, &mut tiled);
        for (i, sum) in single.chunks_exact_mut(columns).enumerate() {
            let mut sum = Sums { data: sum, stride: columns };
            strips::add_rows::<F16, S, V, false>(simd, (1, Start::Scaled(&factors[i..])), of(i, rows), strip, &mut sum);
        }
        assert_eq!(single, tiled.data, "in tiles as alone");
        summed
    }
}

fn check_rows<const V: usize>(count: usize, columns: usize) {
    let rows = 9;
    let (weights, before) = (normal(21, count * rows), normal(22, count * columns));
    let halves: Vec<half::f16> = normal(23, rows * columns).into_iter().map(half::f16::from_f32).collect();
    let matrix: Vec<u8> = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
    everywhere(|proof| {
        let mut sums = before.clone();
        let (weights, summed) = (&weights, &mut sums);
        let summed = proof.run(AddRows::<V> { weights, matrix: &matrix, columns, sums: summed });
        for (at, found) in sums.iter().enumerate() {
            let (i, column) = (at / columns, at % columns);
            let row = |j: usize| f64::from(weights[i * rows + j]) * halves[j * columns + column].to_f64();
            let exact = 0.5 * i as f64 * f64::from(before[at]) + (0..rows).map(row).sum::<f64>();
            let exact = if column < summed { exact } else { f64::from(before[at]) };
            assert!((f64::from(*found) - exact).abs() < 2e-5, "{proof:?} {count}x{columns}: {found}, not {exact}");
        }
    });
}

#[test]
fn sums_of_rows_in_tiles() {
    for count in [1, 2, 3, 4, 7, 8, 15, 16, 23] {
        check_rows::<1>(count, 16);
        check_rows::<2>(count, 37);
        check_rows::<4>(count, 64);
        check_rows::<1>(count, 5);
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

/// Updates rows of both elements, with one factor or one for every column.
struct Update<'a>(&'a mut [f32], &'a mut [u16], Option<&'a [f32]>, &'a [f32]);

impl Kernel for Update<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        rank_one::update::<F32, S, 3>(simd, self.0, (0.5, self.2), [1.0, -2.0, 3.0], self.3);
        rank_one::update::<F16, S, 3>(simd, self.1, (0.5, self.2), [1.0, -2.0, 3.0], self.3);
    }
}

#[test]
fn rows_are_updated_where_they_are() {
    for columns in LENGTHS {
        let halves: Vec<u16> = normal(9, 3 * columns).into_iter().map(rounded_f16).collect();
        let before: Vec<f32> = halves.iter().map(|bits| half::f16::from_bits(*bits).to_f32()).collect();
        let (factors, x) = (normal(10, columns), normal(11, columns));
        for factors in [None, Some(&factors[..])] {
            everywhere(|proof| {
                let (mut full, mut half) = (before.clone(), halves.clone());
                proof.run(Update(&mut full, &mut half, factors, &x));
                for (i, before) in before.iter().enumerate() {
                    let (row, column) = (i / columns, i % columns);
                    let keep = factors.map_or(0.5, |factors| factors[column]);
                    let exact = keep * before + [1.0, -2.0, 3.0][row] * x[column];
                    assert!((full[i] - exact).abs() < 2e-6, "{proof:?} {columns}: {}, not {exact}", full[i]);
                    let (found, nearest) = (half::f16::from_bits(half[i]).to_f32(), half::f16::from_f32(full[i]));
                    assert_eq!(found, nearest.to_f32(), "{proof:?} {columns}");
                }
            });
        }
    }
}

/// Six rows of a matrix, of which three are updated and the others multiplied: `x` and two more vectors.
struct UpdateAndTile<'a, E: Stored>(&'a [E::Bits], Option<&'a [f32]>, [&'a [f32]; 3]);

impl<E: Stored> Kernel for UpdateAndTile<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(rows, factors, [x, inputs @ ..]) = self;
        let (mut both, mut one) = (rows[..3 * x.len()].to_vec(), rows[..3 * x.len()].to_vec());
        let next = &rows[3 * x.len()..];
        let (factors, weights) = ((0.5, factors), [1.0, -2.0, 3.0]);
        let sums = rank_one::update_and_tile::<E, S, 3, 2>(simd, (&mut both, next), factors, (weights, x), inputs);
        rank_one::update::<E, S, 3>(simd, &mut one, factors, weights, x);
        let bytes = |rows: &[E::Bits]| bytemuck::cast_slice::<_, u8>(rows).to_vec();
        assert!(bytes(&both) == bytes(&one), "updated as alone");
        let row = |w: usize| bytemuck::cast_slice(&next[w * x.len()..(w + 1) * x.len()]);
        let alone = dense::tile::<E, S, 3, 2>(simd, [row(0), row(1), row(2)], inputs);
        assert_eq!(sums, alone, "multiplied as alone");
    }
}

#[test]
fn rows_are_updated_and_the_next_ones_multiplied_as_apart() {
    for columns in LENGTHS {
        let full = normal(12, 6 * columns);
        let half: Vec<u16> = full.iter().copied().map(rounded_f16).collect();
        let vectors = [13, 14, 15, 16].map(|seed| normal(seed, columns));
        let [x, first, second, factors] = vectors.each_ref().map(|vector| &vector[..]);
        for factors in [None, Some(factors)] {
            everywhere(|proof| {
                proof.run(UpdateAndTile::<F32>(&full, factors, [x, first, second]));
                proof.run(UpdateAndTile::<F16>(&half, factors, [x, first, second]));
            });
        }
    }
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

/// Rows that fade again and again.
struct Fading<'a>(&'a mut [f32], &'a [f32]);

impl Kernel for Fading<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut factors = self.1.to_vec();
        math::fade_factors(simd, &mut factors);
        math::fade(simd, self.0, &factors);
    }
}

#[test]
fn what_fades_is_gone_before_it_is_subnormal() {
    for len in LENGTHS {
        let (x, y) = (normal(9, len), normal(10, len));
        everywhere(|proof| {
            let (mut out, mut exact) = (x.clone(), x.iter().copied().map(f64::from).collect::<Vec<_>>());
            for step in 1..40 {
                let g: Vec<f32> = y.iter().map(|y| -y.abs() * step as f32).collect();
                proof.run(Fading(&mut out, &g));
                exact.iter_mut().zip(&g).for_each(|(x, g)| *x *= f64::from(*g).exp());
                for (out, exact) in out.iter().zip(&exact) {
                    assert!(*out == 0.0 || out.abs() >= math::FADED, "{out}");
                    let error = (f64::from(*out) - exact).abs();
                    assert!(
                        error <= 1e-5 * exact.abs() || exact.abs() < 1.001 * f64::from(math::FADED),
                        "{out}, {exact}"
                    );
                }
            }
            let mut lost = [f32::NAN];
            proof.run(Fading(&mut lost, &[-1.0]));
            assert!(lost[0].is_nan());
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
