//! What this machine can do: memory to be had, read bandwidth, arithmetic.

use crate::{
    arena::Arena,
    groups,
    ops::tiles,
    packed::coding::Four,
    pool::{Place, Pool, Tiles as Parts},
    simd::{
        Isa, Kernel, Proof, Simd, math,
        panels::{Panels, ROWS},
        tiles::{HotProduct, Line, SIDE, STEP, Tiles},
    },
    weights::Path,
};
use kvas_backend::conformance::Random;
use kvas_gguf::Quant;
use std::{hint::black_box, time::Instant};

/// Bytes that can be allocated before the system starts to swap or kill; `None` where it does not say. The smaller of
/// what the machine has and what the control groups of this process may still take.
pub fn available_memory() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_of_meminfo(&text));
    match (machine, groups::available()) {
        (Some(machine), Some(group)) => Some(machine.min(group)),
        (machine, group) => machine.or(group),
    }
}

/// Bytes of memory this process holds, if the system tells.
pub fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    field(&status, "VmRSS:")?.checked_mul(1024)
}

/// The first number on the line that starts with the word `name`.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    let mut words =
        text.lines().map(str::split_whitespace).find_map(|mut words| (words.next()? == name).then_some(words))?;
    words.next()?.parse().ok()
}

fn available_of_meminfo(text: &str) -> Option<u64> {
    field(text, "MemAvailable:")?.checked_mul(1024)
}

const PASSES: usize = 6;
/// Windows of the data that are timed one by one, so that another process's time slice spoils only some of them.
const WINDOWS: usize = 8;

/// Runs `work` on all threads, each on its part of a window of `data`, and returns the seconds of the fastest window.
fn fastest(threads: usize, data: &mut [f32], work: impl Fn(Proof, &[f32]) + Sync) -> Option<f64> {
    let mut pool = Pool::new(threads).ok()?;
    let proof = Proof::of(Isa::best())?;
    let threads = pool.threads();
    let len = data.len() / WINDOWS / threads;
    let mut seconds = f64::INFINITY;
    for _ in 0..PASSES {
        for window in data.chunks_exact_mut(len * threads).take(WINDOWS) {
            let start = Instant::now();
            pool.share((Place::Everywhere, threads), Parts::chunks(window, len), |_, part| work(proof, part.row(0)));
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
    }
    Some(seconds)
}

/// Adds up a slice as four streams, as products with four rows of weights read them.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [[simd.splat(0.0); 2]; 4];
        let stream = |i: usize| &self.0[i * (self.0.len() / 4)..][..self.0.len() / 4];
        let streams = [stream(0), stream(1), stream(2), stream(3)];
        for at in (0..streams[0].len()).step_by(2 * S::LANES) {
            for i in 0..4 {
                let chunk = &streams[i][at..];
                simd.prefetch(chunk.as_ptr().wrapping_add(512).cast());
                sums[i][0] = simd.add(sums[i][0], math::load(simd, chunk));
                sums[i][1] = simd.add(sums[i][1], math::load(simd, &chunk[S::LANES.min(chunk.len())..]));
            }
        }
        let mut total = simd.splat(0.0);
        for sums in sums {
            total = simd.add(total, simd.add(sums[0], sums[1]));
        }
        simd.sum(total)
    }
}

/// Bytes per second that `threads` threads read from memory together: the best of several passes over windows of
/// 512 MiB. Takes about half a second; 0 if threads cannot be started.
pub fn read_bandwidth(threads: usize) -> f64 {
    // As weights are held, and written, so that every page is memory of its own and not the one page of zeros.
    let mut data = Arena::<f32>::zeroed(128 << 20);
    data.fill(1.0);
    let bytes = (data.len() / WINDOWS * size_of::<f32>()) as f64;
    let seconds = fastest(threads, &mut data, |proof, part| {
        black_box(proof.run(Sum(part)));
    });
    seconds.map_or(0.0, |seconds| bytes / seconds)
}

/// Multiply-adds in independent chains: two begin in a cycle, and each takes four or five.
struct MultiplyAdd(f32);

const CHAINS: usize = 12;
const ROUNDS: usize = 400_000;

/// Returns the operations it did: a multiplication and an addition per lane.
impl Kernel for MultiplyAdd {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> usize {
        let (a, b) = (simd.splat(self.0), simd.splat(black_box(1e-9)));
        let mut sums = [simd.splat(1.0); CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = simd.fma(*sum, a, b);
            }
        }
        let mut total = simd.splat(0.0);
        for sum in sums {
            total = simd.add(total, sum);
        }
        black_box(simd.sum(total));
        2 * S::LANES * CHAINS * ROUNDS
    }
}

/// Products of codes of four bits with activations of eight, which stay in the first-level cache: the dot products that weights of
/// block formats go through where there is no matrix unit.
struct ByteDots<'a> {
    /// `[8 fours][16 rows]`
    codes: &'a [[u8; 4 * ROWS]; 8],
    /// `[activations][8 fours]`
    x: &'a [[i8; 4]],
}

/// Activations that meet them at most.
const MOST: usize = 8;
/// Products of all codes and activations that are added up in integers, and how often that is begun anew.
const ADDED: (usize, usize) = (1000, 50);

/// Returns the operations it did, and what came out.
impl Kernel for ByteDots<'_> {
    type Output = (usize, f32);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> (usize, f32) {
        let p = simd.panels();
        if S::Panels::TOGETHER >= MOST { self.multiply::<_, MOST>(p) } else { self.multiply::<_, { MOST / 2 }>(p) }
    }
}

impl ByteDots<'_> {
    #[inline(always)]
    fn multiply<P: Panels, const R: usize>(self, p: P) -> (usize, f32) {
        let [a, b, c, d, e, f, g, h] = self.codes;
        let codes =
            [[p.codes(a), p.codes(b), p.codes(c), p.codes(d)], [p.codes(e), p.codes(f), p.codes(g), p.codes(h)]];
        let mut total = p.every(0.0);
        for _ in 0..ADDED.1 {
            let mut sums = [p.integers(0); R];
            for _ in 0..ADDED.0 {
                let x = black_box(self.x);
                sums = p.dots::<Four, R, 4>(sums, &codes[0], 0, x);
                sums = p.dots::<Four, R, 4>(sums, &codes[1], 4, x);
            }
            for sum in sums {
                total = p.plus(total, p.to_floats(sum));
            }
        }
        let columns = 4 * self.codes.len();
        (2 * ROWS * columns * R * ADDED.0 * ADDED.1, p.array(total).iter().sum())
    }
}

/// Rows and steps of a product that stays in the first-level cache.
const HOT: (usize, usize) = (2 * SIDE, 8);
/// How often a run makes it: enough that making room for it takes no part of its time.
const PRODUCTS: usize = 10_000;

/// What [`HOT`] products multiply: numbers of all mantissas. Zeros cost less power, and let the unit run a fifth faster than
/// any work does.
struct HotTiles {
    /// `[2 tiles][steps][16, 32]`
    a: Arena<u16>,
    /// `[2 tiles][steps * 16]` lines
    b: Arena<u32>,
}

impl HotTiles {
    fn new() -> Self {
        let (rows, steps) = HOT;
        let mut tiles =
            Self { a: Arena::zeroed(rows * steps * STEP), b: Arena::zeroed(2 * steps * SIDE * size_of::<Line>() / 4) };
        let mut random = Random::new(1);
        let mut next = || half::bf16::from_f32(random.normal()).to_bits();
        tiles.a.iter_mut().for_each(|value| *value = next());
        tiles.b.iter_mut().for_each(|pair| *pair = u32::from(next()) | u32::from(next()) << 16);
        tiles
    }

    /// Multiplies them again and again, with sums that stay in the unit: what it can do at most. Returns the operations it did.
    fn multiply(&self, unit: Tiles) -> usize {
        let ((rows, steps), width) = (HOT, 2 * SIDE);
        let mut c = Arena::<f32>::zeroed(rows * width);
        let lines: &[Line] = bytemuck::cast_slice(&self.b);
        let (a, b) = (self.a.split_at(steps * SIDE * STEP).into(), lines.split_at(steps * SIDE).into());
        let open = unit.open();
        open.multiply_again(HotProduct { a, b, c: &mut c, times: PRODUCTS });
        black_box(&*c);
        2 * rows * width * steps * STEP * PRODUCTS
    }
}

/// What products of prompts are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// bf16 in the matrix unit.
    MatrixUnit,
    /// Dot products of 8 bits in vectors.
    Bytes,
    /// f32 in vectors.
    Floats,
}

impl Arithmetic {
    /// That with which rows of prompts meet weights of a format on a processor with this instruction set.
    pub fn of(isa: Isa, quant: Quant) -> Self {
        if isa == Isa::Amx && tiles::serves(quant, STEP) {
            Self::MatrixUnit
        } else if Path::of(quant) == Path::Packed {
            Self::Bytes
        } else {
            Self::Floats
        }
    }

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MatrixUnit => "bf16 matrix unit",
            Self::Bytes => "8-bit dot products",
            Self::Floats => "f32",
        }
    }
}

/// Multiply-adds of `threads` threads together, in GFLOP/s (two operations each), from the first-level cache: the best of several
/// runs. Takes about a tenth of a second; 0 if threads cannot be started, or there is no such unit.
pub fn compute_peak(threads: usize, arithmetic: Arithmetic) -> f64 {
    let threads = threads.max(1);
    let of = |operations: usize, work: &(dyn Fn(Proof, &[f32]) + Sync)| {
        let mut data = vec![0.999_999_f32; WINDOWS * threads];
        let seconds = fastest(threads, &mut data, work);
        seconds.map_or(0.0, |seconds| (threads * operations) as f64 / seconds / 1e9)
    };
    let Some(proof) = Proof::of(Isa::best()) else { return 0.0 };
    match arithmetic {
        Arithmetic::MatrixUnit => proof.tiles().map_or(0.0, |unit| {
            let hot = HotTiles::new();
            of(hot.multiply(unit), &|_, _| {
                black_box(hot.multiply(unit));
            })
        }),
        Arithmetic::Bytes => {
            let (codes, x) = hot_bytes();
            let dots = || ByteDots { codes: &codes, x: &x };
            of(proof.run(dots()).0, &|proof, _| {
                black_box(proof.run(dots()));
            })
        }
        Arithmetic::Floats => of(proof.run(MultiplyAdd(0.5)), &|proof, part| {
            black_box(proof.run(MultiplyAdd(part[0])));
        }),
    }
}

/// What [`ByteDots`] multiply: numbers of all sizes, as [`HotTiles`] has them.
fn hot_bytes() -> ([[u8; 4 * ROWS]; 8], [[i8; 4]; 8 * MOST]) {
    let mut random = Random::new(1);
    let mut codes = [[0; 4 * ROWS]; 8];
    codes.as_flattened_mut().iter_mut().for_each(|code| *code = random.below(16) as u8);
    let mut x = [[0; 4]; 8 * MOST];
    x.as_flattened_mut().iter_mut().for_each(|x| *x = random.below(255) as i8);
    x.as_flattened_mut().iter_mut().for_each(|x| *x = (*x).max(-127));
    (codes, x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::tiles::Multiply;

    #[test]
    fn memory_available_is_read_in_bytes() {
        let text = "MemTotal:       24684500 kB\nMemFree:  1 kB\nMemAvailable:   23695000 kB\n";
        assert_eq!(available_of_meminfo(text), Some(23_695_000 * 1024));
        assert_eq!(available_of_meminfo("MemTotal: 5 kB\n"), None);
        assert_eq!(field("anon 1\nfile 4096\n", "file"), Some(4096));
    }

    #[test]
    fn the_sum_reads_everything() {
        let data: Vec<f32> = (0..1024).map(|i| i as f32).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            assert_eq!(Proof::of(isa).unwrap().run(Sum(&data)), 523_776.0);
        }
    }

    #[test]
    fn the_unit_is_measured_by_products_that_it_makes() {
        let Some(unit) = Proof::of(Isa::best()).and_then(Proof::tiles) else {
            println!("skipped: no matrix unit");
            return;
        };
        let (hot, (rows, steps)) = (HotTiles::new(), HOT);
        let lines: &[Line] = bytemuck::cast_slice(&hot.b);
        let (a, b) = (hot.a.split_at(steps * SIDE * STEP).into(), lines.split_at(steps * SIDE).into());
        let mut sums = [(); 2].map(|()| Arena::<f32>::zeroed(rows * 2 * SIDE));
        let open = unit.open();
        open.multiply_again(HotProduct { a, b, c: &mut sums[0], times: 3 });
        for accumulate in [false, true, true] {
            open.multiply(Multiply { a, rest: None, ahead: &[], b, c: &mut sums[1], accumulate });
        }
        let distance = |(a, b): (&f32, &f32)| (a - b).abs();
        let farthest = sums[0].iter().zip(&*sums[1]).map(distance).fold(0.0, f32::max);
        // Sums of 768 products of normal numbers, added in another order.
        assert!(farthest < 1e-3 && sums[1].iter().all(|sum| *sum != 0.0), "{farthest}");
    }

    /// Sums of integers are the same with all instructions: those that are timed do what is counted.
    #[test]
    fn bytes_are_measured_by_products_that_are_made() {
        let (codes, x) = hot_bytes();
        let sum = |activation: &[[i8; 4]]| -> i64 {
            let of = |(x, codes): (&[i8; 4], &[u8; 4 * ROWS])| -> i64 {
                codes
                    .chunks_exact(4)
                    .flat_map(|row| row.iter().zip(x))
                    .map(|(c, x)| i64::from(*c) * i64::from(*x))
                    .sum()
            };
            activation.iter().zip(&codes).map(of).sum()
        };
        let sums: Vec<i64> = x.chunks_exact(8).map(sum).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let (operations, total) = Proof::of(isa).unwrap().run(ByteDots { codes: &codes, x: &x });
            let together = operations / (2 * ROWS * 32 * ADDED.0 * ADDED.1);
            let expected = (sums[..together].iter().sum::<i64>() * (ADDED.0 * ADDED.1) as i64) as f64;
            assert!((f64::from(total) / expected - 1.0).abs() < 1e-4, "{}: {total} {expected}", isa.name());
        }
    }

    #[test]
    fn prompts_are_compared_with_what_they_are_computed_by() {
        let of = |isa, quant| Arithmetic::of(isa, quant);
        assert_eq!(of(Isa::Amx, Quant::Q8_0), Arithmetic::MatrixUnit);
        assert_eq!(
            [of(Isa::Avx512, Quant::Q4K), of(Isa::Avx512, Quant::Bf16)],
            [Arithmetic::Bytes, Arithmetic::Floats]
        );
        assert_eq!([of(Isa::Amx, Quant::Bf16), of(Isa::Amx, Quant::F16)], [Arithmetic::MatrixUnit, Arithmetic::Floats]);
        assert!([Arithmetic::Bytes, Arithmetic::Floats].iter().all(|arithmetic| compute_peak(1, *arithmetic) > 0.0));
    }
}
