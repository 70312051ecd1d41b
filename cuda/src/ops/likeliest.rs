//! The choice of tokens: not an op of programs, and done after them.

use crate::machine::Machine;
use kvas_backend::{Act, DeviceError};

impl Machine {
    /// The likeliest token of the first rows of the logits, as many as `out` has.
    pub(crate) fn likeliest(&mut self, logits: Act, out: &mut [u32]) -> Result<(), DeviceError> {
        let chosen = self.chosen.at();
        self.kernel("likeliest", "likeliest_rows")?
            .grid(out.len(), 1, 1)
            .block(1024)
            .arg(self.act(logits))
            .arg(chosen)
            .arg(self.columns(logits) as u32)
            .launch()?;
        self.read_words(chosen, out)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cuda, Device};
    use kvas_backend::{
        Backend, KvType, Limits, Op, Outputs, Replay, Slot, StateType, Step,
        conformance::{Build, Random, RandomWeights},
        op::Embed,
    };
    use kvas_gguf::Quant;
    use std::sync::Arc;

    /// The first of the largest values, in plain words.
    fn expected(row: &[f32]) -> u32 {
        let mut best = (f32::NEG_INFINITY, u32::MAX);
        for (at, value) in row.iter().enumerate() {
            if *value > best.0 {
                best = (*value, at as u32);
            }
        }
        best.1
    }

    #[test]
    fn the_first_of_the_largest_is_chosen() {
        if !crate::has_device() {
            return eprintln!("skipped: no CUDA device");
        }
        let device = Device::open(0).unwrap();
        for columns in [1, 7, 32, 1000, 4096, 5003, 151_936] {
            let (mut b, rows) = (Build::default(), 4);
            let logits = b.act("logits", columns);
            let table = b.matrix("table", [2, columns]);
            b.op(Op::Embed(Embed { table, scale: 1.0, out: logits }));
            let (program, replay) = (Arc::new(b.finish(logits)), Replay::OFF);
            let (kv_type, state_type, outputs) = (KvType::F16, StateType::F32, rows);
            let limits =
                Limits { rows, outputs, pages: 1, page_size: 4, slots: 2, snapshots: 0, replay, kv_type, state_type };
            let mut backend = Cuda::new(device.clone());
            backend.prepare(program, &mut RandomWeights { quant: Quant::F32, seed: 1 }, limits).unwrap();
            let mut random = Random::new(columns as u64);
            let mut step = Step::default();
            step.push(Slot(1), 0, &vec![0; rows], Outputs::All, []);
            backend.begin(&step).unwrap();
            for of_few in [true, false] {
                let mut value = |row: usize| match (row, random.below(5)) {
                    (3, _) | (2, 0) => f32::NEG_INFINITY,
                    (2, 1) => f32::NAN,
                    _ if of_few => random.below(3) as f32,
                    _ => random.normal(),
                };
                let values: Vec<f32> = (0..rows * columns).map(|at| value(at / columns)).collect();
                backend.write(logits, &values).unwrap();
                let mut found = vec![7; rows];
                assert!(backend.likeliest(logits, &mut found).unwrap());
                assert_eq!(found, values.chunks(columns).map(expected).collect::<Vec<_>>(), "{columns} columns");
            }
        }
    }
}
