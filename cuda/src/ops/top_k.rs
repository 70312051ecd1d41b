//! The choice of tokens: not an op of programs, and done after them.

use crate::machine::Machine;
use kvas_backend::{Act, DeviceError};

/// Most tokens of a row.
pub(crate) const MOST: usize = 128;
/// Parts of a row of which the likeliest token is found first (`PARTS` of `kernels/top_k.cu`): their results take half
/// of what there is for [`MOST`] tokens.
const PARTS: usize = MOST / 2;
/// Given for the first token of a row whose tokens did not fit: very many are equal.
const TOO_MANY: u32 = u32::MAX - 1;

impl Machine {
    /// The likeliest tokens of the first rows of the logits, `count` of each. False if the logits are to be read.
    pub(crate) fn top_k(
        &mut self,
        logits: Act,
        count: usize,
        (tokens, values): (&mut [u32], &mut [f32]),
    ) -> Result<bool, DeviceError> {
        if count == 0 || count > MOST {
            return Ok(false);
        }
        let (rows, chosen, columns) = (tokens.len() / count, self.chosen.at(), self.columns(logits) as u32);
        let (logits, chosen_values) = (self.act(logits), chosen.at(4 * tokens.len()));
        if count == 1 {
            let parts = chosen.at(8 * PARTS * self.limits.outputs);
            let launch = self.kernel("top_k", "top_1_of_parts")?.grid(PARTS, rows, 1).block(256).early();
            launch.arg(logits).arg(parts).arg(columns).launch()?;
            let launch = self.kernel("top_k", "top_1")?.grid(rows, 1, 1).block(32).early();
            launch.arg(parts).arg(chosen).arg(chosen_values).launch()?;
        } else {
            let launch = self.kernel("top_k", "top_k_rows")?.grid(rows, 1, 1).block(1024);
            launch.arg(logits).arg(chosen).arg(chosen_values).arg(columns).arg(count as u32).launch()?;
        }
        let mut found = vec![0u32; 2 * tokens.len()];
        self.read_words(chosen, &mut found)?;
        let (of_tokens, of_values) = found.split_at(tokens.len());
        tokens.copy_from_slice(of_tokens);
        values.iter_mut().zip(of_values).for_each(|(value, bits)| *value = f32::from_bits(*bits));
        Ok(tokens.chunks(count).all(|row| row[0] != TOO_MANY))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cuda, Device};
    use kvas_backend::{
        Act, Backend, Op, Outputs, Slot, Step,
        conformance::{Build, Random, RandomWeights, without_stores},
        op::Embed,
    };
    use kvas_gguf::Quant;
    use std::sync::Arc;

    /// The largest values, the first of equal ones first, in plain words.
    fn expected(row: &[f32], count: usize) -> (Vec<u32>, Vec<f32>) {
        let possible = row.iter().zip(0..).filter(|(value, _)| **value > f32::NEG_INFINITY);
        let mut all: Vec<(f32, u32)> = possible.map(|(value, at)| (value.min(f32::MAX), at)).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        all.truncate(count);
        all.iter().map(|(value, at)| (*at, *value)).unzip()
    }

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

    /// The columns of a few threads are larger than all others: more of them than there is room for are larger than the
    /// largest of another thread.
    #[test]
    #[ignore = "needs a CUDA device"]
    fn too_many_are_said_to_be_too_many() {
        let columns = 64 * 4096;
        let mut backend = prepared(&Device::open(0).unwrap(), columns);
        let value = |column: usize| if column / 4 % 1024 < 20 { 1.0 + column as f32 } else { 0.0 };
        let values: Vec<f32> = (0..4 * columns).map(|at| value(at % columns)).collect();
        backend.write(Act(0), &values).unwrap();
        for (count, expected) in [(1, true), (8, true), (40, false)] {
            let (mut tokens, mut logits) = (vec![0; 4 * count], vec![0.0; 4 * count]);
            assert_eq!(backend.top_k(Act(0), count, (&mut tokens, &mut logits)).unwrap(), expected, "{count}");
        }
    }

    #[test]
    #[ignore = "needs a CUDA device"]
    fn the_largest_are_found() {
        let device = Device::open(0).unwrap();
        for columns in [1, 7, 32, 1000, 4096, 5003, 151_936] {
            let (mut backend, logits, rows) = (prepared(&device, columns), Act(0), 4);
            let mut random = Random::new(columns as u64);
            for of_few in [true, false] {
                let mut value = |row: usize| match (row, random.below(5)) {
                    (3, _) | (2, 0) => f32::NEG_INFINITY,
                    (2, 1) => f32::NAN,
                    _ if of_few => random.below(3) as f32,
                    _ => random.normal(),
                };
                let values: Vec<f32> = (0..rows * columns).map(|at| value(at / columns)).collect();
                backend.write(logits, &values).unwrap();
                for count in [1, 2, 40, 128] {
                    let (mut tokens, mut logits_of) = (vec![7; rows * count], vec![0.0; rows * count]);
                    let found = backend.top_k(logits, count, (&mut tokens, &mut logits_of)).unwrap();
                    assert!(found, "{count} of {columns} columns");
                    for row in 0..rows {
                        let (expected, expected_logits) = expected(&values[row * columns..][..columns], count);
                        let (token, rest) = tokens[row * count..][..count].split_at(expected.len());
                        assert_eq!(token, expected, "{count} of {columns} columns");
                        assert!(logits_of[row * count..].starts_with(&expected_logits));
                        assert!(rest.iter().all(|token| *token == u32::MAX));
                    }
                }
            }
        }
    }
}
