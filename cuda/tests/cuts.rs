//! A prompt that is cut at multiples of a chunk gives the same bits however it is cut, and whatever else is in the steps; so do
//! rows of sequences, alone and in a crowd.

use kvas_backend::{
    Act, Backend, CHUNK, DeviceError, Eviction, EvictionOrder, Holding, KvType, Limits, Op, Outputs, Page, Program,
    Replay, Slot, Span, StateType, Step, Store, StoreDecl,
    conformance::{Build, Random, RandomWeights},
    op::{self, HeadMap},
    store::{ConvDecl, Decay, MomentType, PageLayout, PagesDecl, Policy, Slake, StateDecl},
};
use kvas_cuda::{Cuda, Device};
use kvas_gguf::Quant;
use std::sync::Arc;

const ROWS: usize = 64;
const PAGE_SIZE: usize = 16;
/// The last tokens of a sequence, which are not evicted.
const WINDOW: u32 = 32;
/// Rows of the prompt: whole chunks, and some.
const PROMPT: usize = 3 * CHUNK + 5;

/// A program, its inputs and its output.
type Subject = (Program, Vec<Act>, Act);

fn attention(kv_type: KvType) -> Subject {
    attention_of((6, 2, if kv_type == KvType::F32 { 40 } else { 64 }), Policy::Full)
}

fn attention_of((heads, kv_heads, dim): (usize, usize, usize), policy: Policy) -> Subject {
    let mut b = Build::default();
    let (q, out) = (b.act("q", heads * dim), b.act("out", heads * dim));
    let (k, v) = (b.act("k", kv_heads * dim), b.act("v", kv_heads * dim));
    let layout = PageLayout::Separate;
    let store = b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim: dim, value_dim: dim, layout, policy }));
    b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim: dim, rope: None, store }));
    b.op(Op::Attention(op::Attention { q, gate: None, heads, scale: 0.125, store, out }));
    (b.finish(out), vec![q, k, v], out)
}

/// Latent pages as wide as those of models.
fn latent_attention(heads: usize) -> Subject {
    let (key_dim, value_dim) = (576, 512);
    let mut b = Build::default();
    let (q, out) = (b.act("q", heads * key_dim), b.act("out", heads * value_dim));
    let (k, v) = (b.act("k", key_dim - value_dim), b.act("v", value_dim));
    let decl = PagesDecl { kv_heads: 1, key_dim, value_dim, layout: PageLayout::Latent, policy: Policy::Full };
    let store = b.store(StoreDecl::Pages(decl));
    b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim, rope: None, store }));
    b.op(Op::Attention(op::Attention { q, gate: None, heads, scale: 0.05, store, out }));
    (b.finish(out), vec![q, k, v], out)
}

fn gated_delta(key_dim: usize, value_dim: usize, decay: Decay) -> Subject {
    let mut b = Build::default();
    let decl = StateDecl { key_heads: 2, value_heads: 4, key_dim, value_dim, decay };
    let decays = 4 * decl.decays();
    let (qkv, out) = (b.act("qkv", 2 * 2 * key_dim + 4 * value_dim), b.act("out", 4 * value_dim));
    let (alpha, beta) = (b.act("alpha", decays), b.act("beta", 4));
    let (a, dt) = (b.small("ssm_a", [1, 4]), b.small("dt", [1, decays]));
    let (store, norm_eps) = (b.store(StoreDecl::State(decl)), 1e-6);
    let head_map = HeadMap::Grouped;
    b.op(Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out }));
    (b.finish(out), vec![qkv, alpha, beta], out)
}

fn mamba2(value_dim: usize) -> Subject {
    let mut b = Build::default();
    let decl = StateDecl { key_heads: 1, value_heads: 4, key_dim: 128, value_dim, decay: Decay::PerHead };
    let (xbc, dt, out) = (b.act("xbc", 4 * value_dim + 2 * 128), b.act("dt", 4), b.act("out", 4 * value_dim));
    let [dt_bias, a, d] = ["dt_bias", "ssm_a", "d"].map(|name| b.small(name, [1, 4]));
    let store = b.store(StoreDecl::State(decl));
    b.op(Op::Mamba2(op::Mamba2 { xbc, dt, dt_bias, a, d, store, out }));
    (b.finish(out), vec![xbc, dt], out)
}

fn conv(channels: usize) -> Subject {
    let mut b = Build::default();
    let x = b.act("x", channels);
    let (weight, store) = (b.small("conv", [channels, 4]), b.store(StoreDecl::Conv(ConvDecl { channels, taps: 4 })));
    b.op(Op::CausalConv(op::CausalConv { x, weight, bias: None, store }));
    (b.finish(x), vec![x], x)
}

/// A convolution, and a gated norm of four heads.
fn conv_and_norm(activation: op::Activation) -> Subject {
    let (heads, dim) = (4, 128);
    let mut b = Build::default();
    let (x, gate) = (b.act("x", heads * dim), b.act("gate", heads * dim));
    let conv = b.small("conv", [heads * dim, 4]);
    let store = b.store(StoreDecl::Conv(ConvDecl { channels: heads * dim, taps: 4 }));
    b.op(Op::CausalConv(op::CausalConv { x, weight: conv, bias: None, store }));
    let (weight, order) = (Some(b.small("norm", [1, dim])), op::GateOrder::AfterNorm);
    b.op(Op::GatedNorm(op::GatedNorm { x, gate, weight, eps: 1e-6, order, activation }));
    (b.finish(x), vec![x, gate], x)
}

/// The output of the prompt, cut into steps of so many rows, with so many rows of another sequence in front of each.
fn run(
    device: &Arc<Device>,
    (program, inputs, out): &Subject,
    (kv_type, state_type): (KvType, StateType),
    cuts: &[usize],
    others: usize,
) -> Result<Vec<u32>, DeviceError> {
    let (prompt, most) = (cuts.iter().sum::<usize>(), cuts.iter().max().map_or(0, |rows| rows + others));
    let of_each = prompt.div_ceil(PAGE_SIZE).max(16);
    let (pages, slots, replay) = (1 + 2 * of_each, 3, Replay::OFF);
    let limits = Limits {
        context: 0,
        rows: most.max(2 * ROWS),
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
    let tables: Vec<Vec<Page>> =
        (0..2).map(|i| (1 + of_each * i..1 + of_each * (i + 1)).map(|page| Page(page as u32)).collect()).collect();
    let values = inputs.iter().map(|act| (0..prompt * columns(act)).map(|_| random.normal()).collect());
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
        backend.read(*out, 0, &mut all)?;
        found.extend(all[others * columns(out)..].iter().map(|x| x.to_bits()));
        let accepted: Vec<(Slot, u32)> = step.spans().iter().map(|span| (span.slot, span.rows)).collect();
        backend.commit(&accepted)?;
        (first, context) = (first + rows, context + others);
    }
    Ok(found)
}

#[test]
#[ignore = "needs a CUDA device"]
fn prompts_may_be_cut_at_chunks() {
    let device = Device::open(0).unwrap();
    let subjects = [
        ("attention f16", attention(KvType::F16), KvType::F16, StateType::F32),
        ("attention bf16", attention(KvType::Bf16), KvType::Bf16, StateType::F32),
        ("attention q8_0", attention(KvType::Q8_0), KvType::Q8_0, StateType::F32),
        ("attention fp8", attention(KvType::F8), KvType::F8, StateType::F32),
        ("attention f32", attention(KvType::F32), KvType::F32, StateType::F32),
        ("latent attention f16", latent_attention(5), KvType::F16, StateType::F32),
        ("latent attention q8_0", latent_attention(5), KvType::Q8_0, StateType::F32),
        ("latent attention bf16", latent_attention(5), KvType::Bf16, StateType::F32),
        ("gated delta", gated_delta(64, 40, Decay::PerHead), KvType::F16, StateType::F32),
        ("gated delta f16", gated_delta(64, 40, Decay::PerHead), KvType::F16, StateType::F16),
        ("mamba2", mamba2(24), KvType::F16, StateType::F32),
        ("conv", conv(130), KvType::F16, StateType::F32),
        ("conv by 4", conv(132), KvType::F16, StateType::F32),
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

/// Prompts of which more is prepared than has room at once, while states go through what was prepared before.
#[test]
#[ignore = "needs a CUDA device"]
fn long_prompts_may_be_cut() {
    let device = Device::open(0).unwrap();
    for (name, subject, state_type) in [
        ("gated delta", gated_delta(128, 128, Decay::PerHead), StateType::F32),
        ("gated delta f16", gated_delta(128, 128, Decay::PerHead), StateType::F16),
        ("gated delta per channel", gated_delta(128, 128, Decay::PerChannel), StateType::F32),
        ("mamba2", mamba2(64), StateType::F32),
    ] {
        let run = |cuts: &[usize], others| {
            run(&device, &subject, (KvType::F16, state_type), cuts, others).expect("the device works")
        };
        let parts = run(&[1024; 9], 0);
        assert!(parts.iter().any(|bits| *bits != 0), "{name}");
        for (cuts, others) in [(&[9216][..], 0), (&[9216], 40), (&[4096, 5120], 3), (&[9216], 0)] {
            let found = run(cuts, others);
            let count = found.iter().zip(&parts).filter(|(found, part)| found != part).count();
            assert_eq!(count, 0, "{name}: of {} values, cut into {cuts:?} beside {others} rows", parts.len());
        }
    }
}

/// Sequences of a crowd, for which kernels are others than for a few.
const CROWD: usize = 280;

/// Outputs of all sequences in a few steps of so many rows each, some of which are kept; of so many sequences in a step.
fn crowd(
    device: &Arc<Device>,
    (program, inputs, out): &Subject,
    state_type: StateType,
    (rows, ring): (usize, usize),
    together: usize,
) -> Result<Vec<u32>, DeviceError> {
    const STEPS: usize = 14;
    let limits = Limits {
        context: 0,
        rows: rows * CROWD,
        outputs: 1,
        pages: 1,
        page_size: PAGE_SIZE,
        slots: CROWD + 1,
        snapshots: 0,
        replay: Replay::new(ring, rows),
        kv_type: KvType::F16,
        state_type,
    };
    let mut backend = Cuda::new(device.clone());
    let program = Arc::new(program.clone());
    backend.prepare(program.clone(), &mut RandomWeights { quant: Quant::F32, seed: 4 }, limits)?;
    let columns = |act: &Act| program.act(*act).columns;
    let (mut found, mut context) = (Vec::new(), vec![0; CROWD]);
    let mut random = Random::new(7);
    for number in 0..STEPS {
        let values = inputs.iter().map(|act| (0..CROWD * rows * columns(act)).map(|_| random.normal()).collect());
        let values: Vec<Vec<f32>> = values.collect();
        for first in (0..CROWD).step_by(together) {
            let sequences = first..CROWD.min(first + together);
            let mut step = Step::default();
            for sequence in sequences.clone() {
                let slot = Slot(sequence as u32 + 1);
                step.push(slot, context[sequence] as u32, &vec![0; rows], Outputs::None, []);
            }
            for (act, values) in inputs.iter().zip(&values) {
                let of_sequence = rows * columns(act);
                backend.write(*act, &values[sequences.start * of_sequence..sequences.end * of_sequence])?;
            }
            backend.run(&program, &step)?;
            let mut all = vec![0.0; sequences.len() * rows * columns(out)];
            backend.read(*out, 0, &mut all)?;
            found.extend(all.iter().map(|x| x.to_bits()));
            let kept = |sequence: usize| 1 + (number + sequence) % rows;
            let accepted: Vec<(Slot, u32)> =
                sequences.clone().map(|sequence| (Slot(sequence as u32 + 1), kept(sequence) as u32)).collect();
            backend.commit(&accepted)?;
            sequences.for_each(|sequence| context[sequence] += kept(sequence));
        }
    }
    Ok(found)
}

/// Sequences of a crowd get the bits that they get in steps of four.
fn same_in_a_crowd(subjects: &[(&str, Subject, StateType)]) {
    let device = Device::open(0).expect("the driver works");
    let mut different = Vec::new();
    for (name, subject, state_type) in subjects {
        for (rows, ring) in [(1, 0), (1, 8), (1, 40), (2, 16), (4, 24), (5, 8), (8, 32)] {
            let run =
                |together| crowd(&device, subject, *state_type, (rows, ring), together).expect("the device works");
            let (alone, together) = (run(4), run(CROWD));
            assert!(alone.iter().any(|bits| *bits != 0), "{name}");
            let count = alone.iter().zip(&together).filter(|(alone, together)| alone != together).count();
            if count > 0 {
                different.push(format!("{name}, {rows} rows, a ring of {ring}: {count} of {} values", alone.len()));
            }
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

#[test]
#[ignore = "needs a CUDA device"]
fn sequences_get_the_same_bits_in_a_crowd_with_a_delta_rule() {
    same_in_a_crowd(&[
        ("f32", gated_delta(128, 128, Decay::PerHead), StateType::F32),
        ("f16", gated_delta(128, 128, Decay::PerHead), StateType::F16),
        ("other rows", gated_delta(128, 72, Decay::PerHead), StateType::F32),
    ]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn sequences_get_the_same_bits_in_a_crowd_with_decays_per_channel() {
    let subject = || gated_delta(128, 128, Decay::PerChannel);
    same_in_a_crowd(&[("f32", subject(), StateType::F32), ("f16", subject(), StateType::F16)]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn sequences_get_the_same_bits_in_a_crowd_with_mamba2() {
    same_in_a_crowd(&[
        ("f32", mamba2(64), StateType::F32),
        ("f16", mamba2(64), StateType::F16),
        ("other rows, f16", mamba2(80), StateType::F16),
    ]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn sequences_get_the_same_bits_in_a_crowd_with_convolutions_and_norms_of_heads() {
    same_in_a_crowd(&[
        ("silu", conv_and_norm(op::Activation::Silu), StateType::F32),
        ("sigmoid", conv_and_norm(op::Activation::Sigmoid), StateType::F32),
    ]);
}

/// Gives up all but `keep` of the tokens of a sequence, which are summed up.
fn evict(backend: &mut Cuda, slot: Slot, (tokens, keep): (usize, usize), table: &[Page]) -> Result<(), DeviceError> {
    let holdings = [Holding { store: Store(0), table, held: tokens as u32, keep: keep as u32 }];
    backend.evict(&Eviction {
        slot,
        context: tokens as u32,
        window: WINDOW,
        sinks: 4,
        order: EvictionOrder::Recency,
        absorb: true,
        mass_cap: 0.0,
        holdings: &holdings,
    })
}

/// Outputs of so many new rows of sequences that hold `contexts` tokens, of so many sequences in a step. Each has evicted so many
/// others.
fn contexts_together(
    device: &Arc<Device>,
    (program, inputs, out): &Subject,
    (kv_type, rows, evicted): (KvType, usize, usize),
    contexts: &[usize],
    together: usize,
) -> Result<Vec<u32>, DeviceError> {
    const MOST: usize = 512;
    let pages = |held: usize| (held + evicted + rows).div_ceil(PAGE_SIZE);
    let limits = Limits {
        context: 0,
        rows: MOST.max(rows * contexts.len()),
        outputs: 1,
        pages: 1 + contexts.iter().map(|tokens| pages(*tokens)).sum::<usize>(),
        page_size: PAGE_SIZE,
        slots: contexts.len() + 1,
        snapshots: 0,
        replay: Replay::OFF,
        kv_type,
        state_type: StateType::F32,
    };
    let mut backend = Cuda::new(device.clone());
    let program = Arc::new(program.clone());
    backend.prepare(program.clone(), &mut RandomWeights { quant: Quant::F32, seed: 4 }, limits)?;
    let mut next = 1;
    let run = |backend: &mut Cuda, step: &Step| -> Result<(), DeviceError> {
        for act in inputs {
            // What a sequence is given does not depend on who else is in the step.
            let of_span = |span: &Span| {
                let seed = (u64::from(span.slot.0) << 32 | u64::from(span.context)) * 8 + u64::from(act.0);
                let (mut random, count) = (Random::new(seed), span.rows as usize * program.act(*act).columns);
                (0..count).map(|_| random.normal()).collect::<Vec<f32>>()
            };
            backend.write(*act, &step.spans().iter().flat_map(of_span).collect::<Vec<f32>>())?;
        }
        backend.run(&program, step)?;
        let accepted: Vec<(Slot, u32)> = step.spans().iter().map(|span| (span.slot, span.rows)).collect();
        backend.commit(&accepted)
    };
    let mut tables: Vec<Vec<Page>> = Vec::new();
    for (sequence, held) in contexts.iter().copied().enumerate() {
        tables.push((next..next + pages(held) as u32).map(Page).collect());
        next += pages(held) as u32;
        let (slot, tokens) = (Slot(sequence as u32 + 1), held + evicted);
        for first in (0..tokens).step_by(MOST) {
            let (mut step, rows) = (Step::default(), MOST.min(tokens - first));
            let table = &tables[sequence][..(first + rows).div_ceil(PAGE_SIZE)];
            step.push(slot, first as u32, &vec![0; rows], Outputs::None, [table]);
            run(&mut backend, &step)?;
        }
        if evicted > 0 {
            evict(&mut backend, slot, (tokens, held), &tables[sequence])?;
        }
    }
    let mut found = Vec::new();
    for (first, some) in contexts.chunks(together).enumerate() {
        let mut step = Step::default();
        for (at, held) in some.iter().enumerate() {
            let sequence = first * together + at;
            let table = &tables[sequence][..(held + rows).div_ceil(PAGE_SIZE)];
            let (slot, context) = (Slot(sequence as u32 + 1), (held + evicted) as u32);
            step.push_held(slot, context, &vec![0; rows], Outputs::None, [(table, *held as u32)]);
        }
        run(&mut backend, &step)?;
        let mut all = vec![0.0; some.len() * rows * program.act(*out).columns];
        backend.read(*out, 0, &mut all)?;
        found.extend(all.iter().map(|x| x.to_bits()));
    }
    Ok(found)
}

/// The bits of new rows alone are those of three sequences in a step and of all.
fn same_contexts_in_a_crowd(subject: &Subject, of: (&str, KvType, usize), contexts: &[usize]) {
    let ((name, kv_type, evicted), device) = (of, Device::open(0).expect("the driver works"));
    let mut different = Vec::new();
    for rows in [1, 4] {
        let run = |count| {
            contexts_together(&device, subject, (kv_type, rows, evicted), contexts, count).expect("the device works")
        };
        let alone = run(1);
        assert!(alone.iter().any(|bits| *bits != 0), "{name}");
        for count in [3, contexts.len()] {
            let differ = alone.iter().zip(&run(count)).filter(|(alone, together)| alone != together).count();
            if differ > 0 {
                different.push(format!(
                    "{name} {}, {rows} rows of {count}: {differ} of {}",
                    kv_type.name(),
                    alone.len()
                ));
            }
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

/// Contexts are looked at by a cluster with a KV tile for each warp, or by blocks that have a part each: the bits are the same.
#[test]
#[ignore = "needs a CUDA device"]
fn sequences_get_the_same_bits_in_a_crowd_with_attention() {
    // Around the lengths from which they are cut in other ways. The first and the last have more KV tiles than a cluster has warps:
    // who is in a step with one is looked at by blocks, all others by clusters, alone and three at a time. Four rows behind
    // 2046 tokens are cut in two ways, and those before them and behind them looked at in launches of their own.
    let contexts = [8300, 1, 124, 128, 256, 300, 512, 777, 1023, 1500, 2044, 2048, 3000, 4092, 2046, 8300];
    for (shape, kv_type) in [
        ((8, 2, 128), KvType::F16),
        ((8, 8, 64), KvType::F16),
        ((6, 2, 256), KvType::F16),
        ((14, 2, 64), KvType::Bf16),
        ((8, 2, 128), KvType::Q8_0),
        ((6, 2, 64), KvType::F8),
    ] {
        let name = format!("{shape:?}");
        same_contexts_in_a_crowd(&attention_of(shape, Policy::Full), (&name, kv_type, 0), &contexts);
    }
    for (heads, kv_type) in [(9, KvType::F16), (5, KvType::F8), (3, KvType::Bf16)] {
        same_contexts_in_a_crowd(&latent_attention(heads), ("latent", kv_type, 0), &contexts);
    }
}

/// Long contexts have parts that grow, so that no more of them are at work than there is room for. Four rows behind the first and the last but
/// one are cut in two ways.
#[test]
#[ignore = "needs a CUDA device"]
fn sequences_get_the_same_bits_in_a_crowd_with_long_contexts() {
    for (shape, kv_type, most) in [
        ((8, 8, 64), KvType::F16, 48 * 512),
        ((8, 2, 128), KvType::Q8_0, 128 * 256),
        ((8, 4, 256), KvType::Bf16, 64 * 256),
    ] {
        let contexts = [most - 2, 1, 9000, most, 2048, 3 * most / 2, most + most / 8 - 2, 12_345];
        same_contexts_in_a_crowd(&attention_of(shape, Policy::Full), (&format!("{shape:?}"), kv_type, 0), &contexts);
    }
    for (heads, kv_type) in [(3, KvType::F16), (2, KvType::Q8_0)] {
        let contexts = [1022, 1, 4094, 32_766, 12_000, 40_000];
        same_contexts_in_a_crowd(&latent_attention(heads), ("latent", kv_type, 0), &contexts);
    }
}

/// The same where tokens were evicted: fewer KV tiles, beside blocks for their sums.
#[test]
#[ignore = "needs a CUDA device"]
fn sequences_get_the_same_bits_in_a_crowd_with_sums_of_what_was_given_up() {
    let contexts = [7000, 100, 256, 500, 880, 1532, 1536, 1700, 1904, 2048, 3072, 3100, 4000, 1534, 7000];
    for (shape, kv_type, moments) in [
        ((8, 2, 128), KvType::F16, MomentType::F32),
        ((32, 8, 128), KvType::F16, MomentType::F16),
        ((6, 2, 256), KvType::F16, MomentType::F32),
        ((14, 2, 64), KvType::Bf16, MomentType::F32),
    ] {
        let (name, window) = (format!("{shape:?} {moments:?}"), WINDOW as usize);
        let slake = Slake { heads: shape.0, window, capacity: 7000 + 200, moments };
        let subject = attention_of(shape, Policy::Slake(slake));
        same_contexts_in_a_crowd(&subject, (&name, kv_type, 160), &contexts);
    }
}
