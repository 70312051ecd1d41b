//! A prompt that is cut at multiples of a chunk gives the same bits however it is cut, and whatever else is in the steps.

use kvas_backend::{
    Act, Backend, CHUNK, DeviceError, KvType, Limits, Op, Outputs, Page, Program, Replay, Slot, StateType, Step,
    StoreDecl,
    conformance::{Build, Random, RandomWeights},
    op::{self, HeadMap},
    store::{ConvDecl, Decay, PageLayout, PagesDecl, Policy, StateDecl},
};
use kvas_cuda::{Cuda, Device};
use kvas_gguf::Quant;
use std::sync::Arc;

const ROWS: usize = 64;
const PAGE_SIZE: usize = 16;
/// Rows of the prompt: whole chunks, and some.
const PROMPT: usize = 3 * CHUNK + 5;

/// A program, its inputs and its output.
type Subject = (Program, Vec<Act>, Act);

fn attention(kv_type: KvType) -> Subject {
    let (heads, kv_heads, dim) = (6, 2, if kv_type == KvType::F32 { 40 } else { 64 });
    let mut b = Build::default();
    let (q, out) = (b.act("q", heads * dim), b.act("out", heads * dim));
    let (k, v) = (b.act("k", kv_heads * dim), b.act("v", kv_heads * dim));
    let layout = PageLayout::Separate;
    let store =
        b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim: dim, value_dim: dim, layout, policy: Policy::Full }));
    b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim: dim, rope: None, store }));
    b.op(Op::Attention(op::Attention { q, gate: None, heads, scale: 0.125, store, out }));
    (b.finish(out), vec![q, k, v], out)
}

fn gated_delta() -> Subject {
    let mut b = Build::default();
    let decl = StateDecl { key_heads: 2, value_heads: 4, key_dim: 64, value_dim: 40, decay: Decay::PerHead };
    let (qkv, out) = (b.act("qkv", 2 * 2 * 64 + 4 * 40), b.act("out", 4 * 40));
    let (alpha, beta) = (b.act("alpha", 4), b.act("beta", 4));
    let (a, dt) = (b.small("ssm_a", [1, 4]), b.small("dt", [1, 4]));
    let (store, norm_eps) = (b.store(StoreDecl::State(decl)), 1e-6);
    let head_map = HeadMap::Grouped;
    b.op(Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out }));
    (b.finish(out), vec![qkv, alpha, beta], out)
}

fn mamba2() -> Subject {
    let mut b = Build::default();
    let decl = StateDecl { key_heads: 1, value_heads: 4, key_dim: 128, value_dim: 24, decay: Decay::PerHead };
    let (xbc, dt, out) = (b.act("xbc", 4 * 24 + 2 * 128), b.act("dt", 4), b.act("out", 4 * 24));
    let [dt_bias, a, d] = ["dt_bias", "ssm_a", "d"].map(|name| b.small(name, [1, 4]));
    let store = b.store(StoreDecl::State(decl));
    b.op(Op::Mamba2(op::Mamba2 { xbc, dt, dt_bias, a, d, store, out }));
    (b.finish(out), vec![xbc, dt], out)
}

fn conv() -> Subject {
    let mut b = Build::default();
    let x = b.act("x", 130);
    let (weight, store) = (b.small("conv", [130, 4]), b.store(StoreDecl::Conv(ConvDecl { channels: 130, taps: 4 })));
    b.op(Op::CausalConv(op::CausalConv { x, weight, bias: None, store }));
    (b.finish(x), vec![x], x)
}

/// The output of the prompt, cut into steps of so many rows, with so many rows of another sequence in front of each.
fn run(
    device: &Arc<Device>,
    (program, inputs, out): &Subject,
    (kv_type, state_type): (KvType, StateType),
    cuts: &[usize],
    others: usize,
) -> Result<Vec<u32>, DeviceError> {
    let (pages, slots, replay) = (1 + 2 * 16, 3, Replay::OFF);
    let limits = Limits {
        context: 0,
        rows: 2 * ROWS,
        outputs: 1,
        pages,
        page_size: PAGE_SIZE,
        slots,
        snapshots: 0,
        replay,
        kv_type,
        state_type,
    };
    let mut backend = Cuda::new(device.clone());
    let program = Arc::new(program.clone());
    backend.prepare(program.clone(), &mut RandomWeights { quant: Quant::F32, seed: 4 }, limits)?;
    let mut random = Random::new(6);
    let columns = |act: &Act| program.act(*act).columns;
    let tables: Vec<Vec<Page>> = (0..2).map(|i| (1 + 16 * i..17 + 16 * i).map(Page).collect()).collect();
    let values = inputs.iter().map(|act| (0..PROMPT * columns(act)).map(|_| random.normal()).collect());
    let values: Vec<Vec<f32>> = values.collect();
    let (mut found, mut first, mut context) = (Vec::new(), 0, 0);
    for rows in cuts.iter().copied() {
        let mut step = Step::default();
        let mut push = |slot: u32, context: usize, rows: usize| {
            let table = &tables[slot as usize - 1][..(context + rows).div_ceil(PAGE_SIZE)];
            let tables: &[&[Page]] = if program.page_stores() > 0 { &[table] } else { &[] };
            step.push(Slot(slot), context as u32, &vec![0; rows], Outputs::None, tables.iter().copied());
        };
        if others > 0 {
            push(2, context, others);
        }
        push(1, first, rows);
        for (act, values) in inputs.iter().zip(&values) {
            let columns = columns(act);
            let mut part: Vec<f32> = (0..others * columns).map(|_| random.normal()).collect();
            part.extend(&values[first * columns..(first + rows) * columns]);
            backend.write(*act, &part)?;
        }
        backend.run(&program, &step)?;
        let mut all = vec![0.0; (others + rows) * columns(out)];
        backend.read(*out, &mut all)?;
        found.extend(all[others * columns(out)..].iter().map(|x| x.to_bits()));
        let accepted: Vec<(Slot, u32)> = step.spans().iter().map(|span| (span.slot, span.rows)).collect();
        backend.commit(&accepted)?;
        (first, context) = (first + rows, context + others);
    }
    Ok(found)
}

#[test]
fn prompts_may_be_cut_at_chunks() {
    if !kvas_cuda::has_device() {
        return println!("skipped: no CUDA device");
    }
    let device = Device::open(0).unwrap();
    let subjects = [
        ("attention f16", attention(KvType::F16), KvType::F16, StateType::F32),
        ("attention bf16", attention(KvType::Bf16), KvType::Bf16, StateType::F32),
        ("attention q8_0", attention(KvType::Q8_0), KvType::Q8_0, StateType::F32),
        ("attention fp8", attention(KvType::F8), KvType::F8, StateType::F32),
        ("attention f32", attention(KvType::F32), KvType::F32, StateType::F32),
        ("gated delta", gated_delta(), KvType::F16, StateType::F32),
        ("gated delta f16", gated_delta(), KvType::F16, StateType::F16),
        ("mamba2", mamba2(), KvType::F16, StateType::F32),
        ("conv", conv(), KvType::F16, StateType::F32),
    ];
    let mut different = Vec::new();
    for (name, subject, kv_type, state_type) in &subjects {
        let run = |cuts: &[usize], others| {
            run(&device, subject, (*kv_type, *state_type), cuts, others).expect("the device works")
        };
        let whole = run(&[PROMPT], 0);
        assert!(whole.iter().any(|bits| *bits != 0), "{name}");
        for (cuts, others) in [
            (&[CHUNK, 2 * CHUNK + 5][..], 0),
            (&[2 * CHUNK, CHUNK, 5], 0),
            (&[PROMPT], 3),
            (&[2 * CHUNK, CHUNK + 5], 1),
            (&[CHUNK, CHUNK, CHUNK, 5], 18),
        ] {
            let found = run(cuts, others);
            let count = found.iter().zip(&whole).filter(|(found, whole)| found != whole).count();
            if count > 0 {
                different
                    .push(format!("{name}: {count} of {} values, cut into {cuts:?} beside {others} rows", whole.len()));
            }
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}
