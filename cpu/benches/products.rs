//! How long products of a prompt take, against what the processor computes at most: `cargo bench -p kvas-cpu --bench products`.
//! Arguments are parts of names (`"Q8_0 2048"`), `--rows N` and `--threads N`. What else a machine does may slow it down to a
//! quarter for seconds: the fastest of many turns is told, and the highest of the peaks that are measured between them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use kvas_backend::{
    Act, Backend, Op, Outputs, Program, Slot, Step,
    conformance::{Build, Random, RepeatedWeights, without_stores},
    op::{Activation, GatedLinear, Linear},
};
use kvas_cpu::{Arithmetic, Cpu, Isa};
use kvas_gguf::Quant;
use std::{sync::Arc, time::Instant};

/// Products of a program, each with weights of its own.
const COPIES: usize = 4;
const SECONDS: f64 = 2.0;

fn main() -> Result<(), String> {
    let (mut rows, mut threads, mut names) = (512, std::thread::available_parallelism().unwrap().get(), Vec::new());
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rows" => rows = number(&argument, arguments.next())?,
            "--threads" => threads = number(&argument, arguments.next())?,
            flag if flag.starts_with('-') => {
                return Err(format!("{flag}, expected --rows, --threads or parts of names"));
            }
            _ => names.push(argument),
        }
    }
    println!("{rows} rows, {threads} threads, {}", Isa::best().name());
    for quant in [Quant::Q8_0, Quant::Q4K, Quant::Bf16] {
        for (outputs, inputs, is_gated) in
            [(1024, 1024, false), (2048, 2048, false), (8192, 2048, true), (2048, 8192, false)]
        {
            let name = format!("{quant} {outputs}x{inputs}{}", if is_gated { " gated" } else { "" });
            if names.is_empty() || names.iter().any(|part| name.contains(part.as_str())) {
                let shape = Shape { rows, outputs, inputs, is_gated };
                let (seconds, peak) = shape.measure(quant, threads);
                let rate = shape.operations() / seconds / 1e9;
                println!(
                    "{name:<24} {:>8.1} us {rate:>7.0} GFLOP/s {:>5.1} % of {peak:.0}",
                    seconds * 1e6,
                    100.0 * rate / peak
                );
            }
        }
    }
    Ok(())
}

fn number(flag: &str, text: Option<String>) -> Result<usize, String> {
    let text = text.unwrap_or_default();
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{flag} {text}, expected a number from 1 on"))
}

struct Shape {
    rows: usize,
    outputs: usize,
    inputs: usize,
    is_gated: bool,
}

impl Shape {
    fn operations(&self) -> f64 {
        (2 * self.rows * self.outputs * self.inputs * if self.is_gated { 2 } else { 1 }) as f64
    }

    /// The program, and its inputs.
    fn program(&self) -> (Program, [Act; 2]) {
        let mut b = Build::default();
        // Two inputs in turn, as hardly any product has that of the one before it.
        let xs = ["x", "y"].map(|name| b.act(name, self.inputs));
        let out = b.act("out", self.outputs);
        for copy in 0..COPIES {
            let x = xs[copy % 2];
            let mut weight = |name: &str| b.matrix(&format!("{name}{copy}"), [self.outputs, self.inputs]);
            let op = if self.is_gated {
                let (gate, up) = (weight("gate"), weight("up"));
                Op::GatedLinear(GatedLinear { x, gate, up, activation: Activation::Silu, out })
            } else {
                Op::Linear(Linear::new(x, weight("weight"), out))
            };
            b.op(op);
        }
        (b.finish(out), xs)
    }

    /// Seconds of a product, and the GFLOP/s that the processor reached meanwhile.
    fn measure(&self, quant: Quant, threads: usize) -> (f64, f64) {
        let (program, xs) = self.program();
        let program = Arc::new(program);
        let mut backend = Cpu::new(threads);
        backend.prepare(program.clone(), &mut RepeatedWeights(quant), without_stores(self.rows)).unwrap();
        let mut random = Random::new(3);
        for x in xs {
            let values: Vec<f32> = (0..self.rows * self.inputs).map(|_| random.normal()).collect();
            backend.write(x, &values).unwrap();
        }
        let mut step = Step::default();
        step.push(Slot(1), 0, &vec![0; self.rows], Outputs::All, []);
        let (mut seconds, mut peak, start) = (f64::INFINITY, 0.0f64, Instant::now());
        while start.elapsed().as_secs_f64() < SECONDS {
            peak = peak.max(kvas_cpu::compute_peak(threads, Arithmetic::of(Isa::best(), quant)));
            for _ in 0..4 {
                let start = Instant::now();
                backend.run(&program, &step).unwrap();
                seconds = seconds.min(start.elapsed().as_secs_f64() / COPIES as f64);
                backend.commit(&[(Slot(1), self.rows as u32)]).unwrap();
            }
        }
        (seconds, peak)
    }
}
