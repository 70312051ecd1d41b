//! The choice of tokens: not an op of programs, and done after them.

use crate::{
    device::{Device, DeviceMemory, Ptr},
    machine::Machine,
};
use kvas_backend::{Act, DeviceError, Limits, Program, TopK, TopKFound};
use std::sync::Arc;

/// Most tokens of a row.
pub(crate) const MOST: usize = 128;
/// Parts of a row of which the likeliest token is found first (`PARTS` of `kernels/top_k.cu`): their results take half
/// of what there is for [`MOST`] tokens.
const PARTS: usize = MOST / 2;

/// Bytes of scratch: `Search` of `kernels/top_k.cu` for every output row.
pub(crate) fn scratch_bytes(limits: &Limits) -> usize {
    8 * (1024 + 2048 + 2) * limits.outputs
}

/// Bytes on the device for what is wanted and what is found.
pub(crate) fn bytes(program: &Program, limits: &Limits) -> u64 {
    let Parts { wanted, found, .. } = Parts::new(program, limits);
    4 * (wanted + found) as u64
}

/// Where in that memory what is, in words.
#[derive(Debug, Clone, Copy)]
struct Parts {
    mask_of: usize,
    masks: usize,
    wanted: usize,
    found: usize,
}

impl Parts {
    fn new(program: &Program, limits: &Limits) -> Self {
        let mask_of = 2 * TopK::APART * limits.outputs;
        let masks = mask_of + limits.outputs;
        let wanted = masks + limits.slots * TopK::mask_words(program.vocab());
        Self { mask_of, masks, wanted, found: (2 * MOST + TopK::APART + 2) * limits.outputs }
    }
}

/// Memory of the device for what is wanted and what is found.
pub(crate) struct TopKMemory {
    parts: Parts,
    wanted: DeviceMemory,
    found: DeviceMemory,
    /// What was read of it.
    words: Vec<u32>,
}

impl TopKMemory {
    pub(crate) fn new(device: &Arc<Device>, program: &Program, limits: &Limits) -> Result<Self, DeviceError> {
        let parts = Parts::new(program, limits);
        let wanted = device.take("wanted tokens", 4 * parts.wanted)?;
        Ok(Self { parts, wanted, found: device.take("found tokens", 4 * parts.found)?, words: Vec::new() })
    }
}

impl Machine {
    /// Looks for tokens of the first rows of the logits.
    pub(crate) fn top_k(&mut self, logits: Act, wanted: &TopK, found: &mut TopKFound) -> Result<(), DeviceError> {
        assert!((1..=MOST).contains(&wanted.count), "{} tokens of at most {MOST}", wanted.count);
        let TopKMemory { parts, wanted: asked, found: results, .. } = &self.top_k;
        let (apart, mask_of, masks) = (asked.at(), asked.at().at(4 * parts.mask_of), asked.at().at(4 * parts.masks));
        let results = results.at();
        let (tokens, columns) = (wanted.rows * wanted.count, self.columns(logits) as u32);
        let logits = self.act(logits);
        let [values, of_apart, normalisers] =
            [tokens, 2 * tokens, 2 * tokens + wanted.apart.len()].map(|words| results.at(4 * words));
        if wanted.normalise {
            let launch = self.kernel("top_k", "normalise_rows")?.grid(wanted.rows, 1, 1).block(1024);
            launch.arg(logits).arg(normalisers).arg(columns).launch()?;
        }
        let pairs = wanted.apart.len();
        let of_pairs = |kernel: &'static str| {
            let launch = self.kernel("top_k", kernel)?.grid(pairs.div_ceil(256), 1, 1).block(256);
            launch.arg(logits).arg(apart).arg(of_apart).arg(pairs as u32).arg(columns).launch()
        };
        if pairs > 0 {
            self.device.upload(apart, &wanted.apart)?;
            of_pairs("set_apart")?;
        }
        self.device.upload(mask_of, &wanted.mask_of)?;
        self.device.upload(masks, &wanted.masks)?;
        let mask_of = if wanted.mask_of.is_empty() { Ptr::NULL } else { mask_of };
        if wanted.count == 1 {
            // Behind all else that is found in this case.
            let parts = results.at(4 * (2 * PARTS + TopK::APART + 2) * self.limits.outputs);
            let launch = self.kernel("top_k", "top_1_of_parts")?.grid(PARTS, wanted.rows, 1).block(256).early();
            launch.arg(logits).arg(parts).arg(columns).arg(mask_of).arg(masks).launch()?;
            let launch = self.kernel("top_k", "top_1")?.grid(wanted.rows, 1, 1).block(32).early();
            launch.arg(parts).arg(results).arg(values).launch()?;
        } else {
            let searches = self.scratch();
            let of_parts = |kernel: &'static str| {
                let launch = self.kernel("top_k", kernel)?.grid(PARTS, wanted.rows, 1).block(256).early();
                launch.arg(logits).arg(searches).arg(columns).arg(mask_of).arg(masks).launch()
            };
            of_parts("top_of_groups")?;
            let launch = self.kernel("top_k", "least_of_row")?.grid(wanted.rows, 1, 1).block(1024).early();
            launch.arg(searches).arg(wanted.count as u32).launch()?;
            of_parts("collect_of_parts")?;
            let launch = self.kernel("top_k", "top_k_rows")?.grid(wanted.rows, 1, 1).block(1024).early();
            launch.arg(searches).arg(results).arg(values).arg(wanted.count as u32).launch()?;
        }
        if pairs > 0 {
            of_pairs("put_back")?;
        }
        let of_normalisers = if wanted.normalise { 2 * wanted.rows } else { 0 };
        let mut words = std::mem::take(&mut self.top_k.words);
        words.resize(2 * tokens + pairs + of_normalisers, 0);
        self.read_words(results, &mut words)?;
        found.take(wanted, &words);
        self.top_k.words = words;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cuda, Device};
    use kvas_backend::{
        Act, Backend, Op, Outputs, Slot, Step, TopK, TopKFound,
        conformance::{Build, Random, RandomWeights, without_stores},
        op::Embed,
    };
    use kvas_gguf::Quant;
    use std::sync::Arc;

    /// A backend at the end of a step of four rows of logits, activation 0.
    fn prepared(device: &Arc<Device>, columns: usize) -> Cuda {
        let (mut b, rows) = (Build::default(), 4);
        let logits = b.act("logits", columns);
        let table = b.matrix("table", [2, columns]);
        b.op(Op::Embed(Embed { table, scale: 1.0, out: logits }));
        let program = Arc::new(b.finish(logits));
        let mut backend = Cuda::new(device.clone());
        backend.prepare(program, &mut RandomWeights { quant: Quant::F32, seed: 1 }, without_stores(rows)).unwrap();
        let mut step = Step::default();
        step.push(Slot(1), 0, &vec![0; rows], Outputs::All, []);
        backend.begin(&step).unwrap();
        backend
    }

    /// The columns of a few groups are larger than all others: more of them than there is room for are larger than the
    /// largest of another group.
    #[test]
    #[ignore = "needs a CUDA device"]
    fn too_many_are_said_to_be_too_many() {
        let columns = 64 * 4096;
        let mut backend = prepared(&Device::open(0).unwrap(), columns);
        let value = |column: usize| if column / 64 % 1024 < 20 { 1.0 + column as f32 } else { 0.0 };
        let values: Vec<f32> = (0..4 * columns).map(|at| value(at % columns)).collect();
        backend.write(Act(0), &values).unwrap();
        for (count, expected) in [(1, true), (8, true), (40, false)] {
            let (wanted, mut found) = (TopK { rows: 4, count, ..TopK::default() }, TopKFound::default());
            backend.top_k(Act(0), &wanted, &mut found).unwrap();
            assert!(found.tokens.chunks(count).all(|row| (row[0] != TopK::UNKNOWN) == expected), "{count}");
        }
    }

    #[test]
    #[ignore = "needs a CUDA device"]
    fn what_is_wanted_is_found_and_logits_stay_as_they_are() {
        let device = Device::open(0).unwrap();
        for columns in [1, 7, 32, 1000, 4096, 5003, 151_936] {
            let (mut backend, rows) = (prepared(&device, columns), 4);
            let mut random = Random::new(columns as u64);
            for case in 0..8 {
                let of_few = case % 2 == 0;
                let mut value = |row: usize| match (row, random.below(5)) {
                    (3, _) | (2, 0) => f32::NEG_INFINITY,
                    (2, 1) => f32::NAN,
                    (1, 0) if case > 3 => f32::INFINITY,
                    _ if of_few => random.below(3) as f32,
                    _ => random.normal(),
                };
                let values: Vec<f32> = (0..rows * columns).map(|at| value(at / columns)).collect();
                backend.write(Act(0), &values).unwrap();
                for count in [1, 2, 40, 128] {
                    let wanted = wanted(&mut random, (rows, columns), count);
                    let (mut found, mut after) = (TopKFound::default(), vec![0.0; values.len()]);
                    backend.top_k(Act(0), &wanted, &mut found).unwrap();
                    same(&found, &TopKFound::search(&wanted, &values), &format!("{count} of {columns}, case {case}"));
                    backend.read(Act(0), 0, &mut after).unwrap();
                    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&after), bits(&values), "{count} of {columns}, case {case}: logits changed");
                }
            }
        }
    }

    /// Some tokens apart, and masks of some rows.
    fn wanted(random: &mut Random, (rows, columns): (usize, usize), count: usize) -> TopK {
        let mut wanted = TopK { rows, count, normalise: random.below(2) == 0, ..TopK::default() };
        for row in 0..rows as u32 {
            let most = random.below(40);
            let apart: std::collections::BTreeSet<u32> = (0..most).map(|_| random.below(columns) as u32).collect();
            wanted.apart.extend(apart.into_iter().map(|token| [row, token]));
        }
        if random.below(2) == 0 {
            wanted.mask_of = (0..rows).map(|row| if row % 3 == 1 { TopK::ANY } else { row as u32 / 3 }).collect();
            let word = |_| random.below(1 << 32) as u32 & random.below(1 << 32) as u32;
            wanted.masks = (0..2 * TopK::mask_words(columns)).map(word).collect();
        }
        wanted
    }

    fn same(found: &TopKFound, expected: &TopKFound, label: &str) {
        let is_same = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan());
        let each = found.tokens.len() / 4;
        for row in 0..4 {
            let of_row = row * each..(row + 1) * each;
            if found.tokens[of_row.start] == TopK::UNKNOWN {
                // A third of so many columns are equal: more of them come first than there is room for.
                assert!(
                    label.starts_with("128 of 151936") && expected.logits[of_row].iter().all(|logit| *logit == 2.0)
                );
                continue;
            }
            assert_eq!(found.tokens[of_row.clone()], expected.tokens[of_row.clone()], "{label}, row {row}");
            for at in of_row.filter(|at| found.tokens[*at] != TopK::NONE) {
                assert!(is_same(found.logits[at], expected.logits[at]), "{label}: token {}", found.tokens[at]);
            }
        }
        assert!(found.apart.iter().zip(&expected.apart).all(|(a, b)| is_same(*a, *b)), "{label}");
        assert_eq!(found.apart.len(), expected.apart.len(), "{label}");
        assert_eq!(found.normalisers.len(), expected.normalisers.len(), "{label}");
        for ([largest, sum], [known, expected]) in found.normalisers.iter().zip(&expected.normalisers) {
            assert!(is_same(*largest, *known), "{label}: {largest} {known}");
            // Sums in f32 of up to 150 terms a thread, then of 1024 threads: the floor is 2e-6.
            assert!((sum - expected).abs() <= 1e-5 * expected, "{label}: {sum} {expected}");
        }
    }
}
