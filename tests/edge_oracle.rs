//! Sequences that evict segments, against the float64 oracle: with gates and a memory, and with moments.

use crate::edgeinfinite::{MEMORIES, NOTHING, read_prompt};
use kvas::{
    engine::{Runner, score_segments},
    policy::{Absorbing, Schedule},
};
use kvas_backend::{
    Backend, Bytes, DeviceError, Op, Program, Reference, Rope, StoreDecl, WeightData, WeightDecl, WeightSource,
    conformance::Build,
    op::{self, GateScope, Output},
    rope::{Pairing, Scaling},
    store::{MemoryKeys, PageLayout, PagesDecl, Policy, Positions, SegmentMemory, Segments},
};
use kvas_cpu::Cpu;
use kvas_gguf::Quant;
use serde::Deserialize;
use std::{collections::HashMap, sync::Arc};

#[derive(Debug, Deserialize)]
struct Vectors {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    hidden: usize,
    sink: usize,
    window: usize,
    segment: usize,
    first: usize,
    weights: Vec<HashMap<String, Vec<f32>>>,
    inputs: Vec<f32>,
    cache: Answers,
    abs: Answers,
    plain_cache: Answers,
    plain_abs: Answers,
    ptaa_cache: Answers,
    ptaa_abs: Answers,
}

#[derive(Debug, Deserialize)]
struct Answers {
    prompts: Vec<usize>,
    prompt_out: Vec<Vec<f64>>,
    inplace: Vec<f64>,
    recompute: Vec<f64>,
}

/// Largest difference from the oracle over its largest number. Floor: 2.2e-7 on the processor.
const ORACLE: f64 = 1e-6;

/// The weights of the vectors, `[inputs, outputs]`, by name of a declaration.
struct OfVectors<'a>(&'a Vectors);

impl WeightSource for OfVectors<'_> {
    fn load(&mut self, decl: &WeightDecl) -> Result<WeightData, DeviceError> {
        let values = match decl.name.split_once('.') {
            None => self.0.inputs.clone(),
            Some((layer, name)) => {
                let (all, [rows, columns]) = (&self.0.weights[layer.parse::<usize>().unwrap()][name], decl.shape);
                let is_vector = matches!(name, "b1" | "b2" | "g");
                let at = |i: usize| if is_vector { i } else { i % columns * rows + i / columns };
                (0..all.len()).map(|i| all[at(i)]).collect()
            }
        };
        Ok(WeightData::new(Quant::F32, Bytes::new(bytemuck::cast_slice(&values).to_vec())))
    }
}

/// The model of the vectors: its logits are the residual stream.
fn toy(v: &Vectors, positions: Positions, memory: SegmentMemory) -> Program {
    let (heads, kv_heads, dim) = (v.heads, v.kv_heads, v.head_dim);
    let width = heads * dim;
    let mut b = Build::default();
    let residual = b.act("residual", width);
    let [q, k, value, out] =
        [("q", heads), ("k", kv_heads), ("v", kv_heads), ("out", heads)].map(|(name, of)| b.act(name, of * dim));
    let table = b.small("inputs", [v.inputs.len() / width, width]);
    b.op(Op::Embed(op::Embed { table, scale: 1.0, out: residual }));
    let Vectors { sink, window, segment, hidden, .. } = *v;
    let segments = Segments { sink, window, segment, positions, memory };
    let (layout, policy) = (PageLayout::Separate, Policy::Segments(segments));
    for layer in 0..v.weights.len() {
        for (name, act, of) in [("q", q, heads), ("k", k, kv_heads), ("v", value, kv_heads)] {
            let weight = b.small(&format!("{layer}.{name}"), [of * dim, width]);
            b.linear(residual, weight, act, Output::Write);
        }
        let store = b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim: dim, value_dim: dim, layout, policy }));
        let (pairing, scaling) = (Pairing::Halves, Scaling::None);
        let rope = Some(Rope { dims: dim, pairing, base: 10000.0, scaling, factors: None });
        b.op(Op::RopeStore(op::RopeStore { q, k, v: value, key_dim: dim, rope, store }));
        let scale = 1.0 / (dim as f32).sqrt();
        b.op(Op::Attention(op::Attention { q, gate: None, heads, scale, store, out }));
        if memory.matrix().is_some() {
            let mut of_layer = |name: &str, shape| b.small(&format!("{layer}.{name}"), shape);
            let fc1 = [of_layer("W1", [hidden, dim]), of_layer("b1", [1, hidden])];
            let fc2 = [of_layer("W2", [dim, hidden]), of_layer("b2", [1, dim])];
            let (share, scope) = (of_layer("g", [heads, dim]), GateScope::HeadChannel);
            b.op(Op::ReadMemory(op::ReadMemory { q, gate: None, heads, store, fc1, fc2, share, scope, out }));
        }
        let weight = b.small(&format!("{layer}.o"), [width, width]);
        b.linear(out, weight, residual, Output::Accumulate);
    }
    let logits = b.output_act("logits", width);
    b.op(Op::GatherRows(op::GatherRows { x: residual, out: logits }));
    let program = b.finish(logits);
    program.validate().unwrap();
    program
}

fn prepared(program: Program, mut backend: Box<dyn Backend>, source: &mut dyn WeightSource) -> Runner {
    let program = Arc::new(program);
    backend.prepare(program.clone(), source, NOTHING).unwrap();
    Runner::new(backend, program, NOTHING)
}

fn off(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs() / largest).fold(0.0, f64::max)
}

/// Any device, made anew.
pub(crate) type Make<'a> = &'a dyn Fn() -> Box<dyn Backend>;

/// How far prompts and answers on a device are from those of the oracle, positions in the cache and absolute ones.
pub(crate) fn off_the_oracle(make: Make<'_>, memory: SegmentMemory) -> f64 {
    let v: Vectors = serde_json::from_str(include_str!("data/vectors/edgeinfinite.json")).unwrap();
    let [cache, abs] = match memory {
        SegmentMemory::None => panic!("the oracle keeps something"),
        SegmentMemory::Matrix(MemoryKeys::Rotated) => [&v.cache, &v.abs],
        SegmentMemory::Matrix(MemoryKeys::Unrotated) => [&v.plain_cache, &v.plain_abs],
        SegmentMemory::Moments => [&v.ptaa_cache, &v.ptaa_abs],
    };
    let width = v.heads * v.head_dim;
    let tokens: Vec<u32> = (0..(v.inputs.len() / width) as u32).collect();
    let mut worst = 0.0f64;
    for (answers, positions) in [(cache, Positions::Held), (abs, Positions::Sequence)] {
        let program = toy(&v, positions, memory);
        let schedule = |absorbing| Schedule::of(program.segments().unwrap(), absorbing);
        let mut runner = prepared(program.clone(), make(), &mut OfVectors(&v));
        for (length, expected) in answers.prompts.iter().zip(&answers.prompt_out) {
            for batch in [32, 4, 1] {
                let found = read_prompt(&mut runner, &tokens[..*length], &schedule(Absorbing::InPlace), batch);
                worst = worst.max(off(&found, expected));
            }
        }
        let decoded = [(Absorbing::InPlace, &answers.inplace), (Absorbing::Recompute, &answers.recompute)];
        for (absorbing, expected) in decoded {
            let mut found = Vec::new();
            let mut each = |_: usize, row: &mut [f32]| found.extend_from_slice(row);
            score_segments(&mut runner, &tokens, &schedule(absorbing), &mut each).unwrap();
            worst = worst.max(off(&found[v.first * width..], expected));
        }
    }
    worst
}

#[test]
fn prompts_and_answers_are_those_of_the_oracle() {
    let devices: [Make<'_>; 3] =
        [&|| Box::new(Reference::default()), &|| Box::new(Cpu::new(1)), &|| Box::new(Cpu::new(3))];
    for (number, device) in devices.into_iter().enumerate() {
        for memory in MEMORIES {
            let (off, name) = (off_the_oracle(device, memory), memory.name());
            println!("device {number}, {name}: {off:.1e}");
            assert!(off < ORACLE, "device {number}, {name}: off by {off:e}");
        }
    }
}
