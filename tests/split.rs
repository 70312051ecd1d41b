//! Programs on two devices: here two processors stand for a GPU and the processor. What is split gives the bits of what
//! is not.

use crate::{
    edgeinfinite::{MEMORIES, answers},
    golden::{beside, converted, fixture, fixtures, golden, limits, logits},
    history::{Subject, go_through},
};
use kvas::model::placement::placement;
use kvas_backend::{
    Backend, KvType, Op, Placement, Program, Replay, Split, StateType,
    conformance::{self, Case, Outcome},
};
use kvas_cpu::Cpu;
use kvas_gguf::Quant;

fn split(placement: &Placement) -> Box<dyn Backend> {
    Box::new(Split::new([Box::new(Cpu::new(2)), Box::new(Cpu::new(1))], placement.clone()))
}

/// Every second op elsewhere, but for those that use a store together.
fn alternating(program: &Program) -> Placement {
    let mut of_store = vec![None; program.stores.len()];
    let device = |(number, op): (usize, &Op)| match op.touches().stores.first() {
        Some(store) => *of_store[store.0 as usize].get_or_insert(number % 2),
        None => number % 2,
    };
    Placement::new(program, program.ops.iter().enumerate().map(device).collect())
}

#[test]
fn ops_on_two_devices_agree_with_the_reference() {
    agrees(0);
}

/// They take long: two threads share them.
#[test]
fn ops_on_two_devices_agree_with_the_reference_in_the_other_cases() {
    agrees(1);
}

/// Every second case of several ops, from `first` on.
fn agrees(first: usize) {
    let several = |case: &Case| case.program.ops.len() > 1;
    let cases = conformance::cases().into_iter().filter(several);
    let mut cases: Vec<Case> = cases.skip(first).step_by(2).collect();
    for case in &mut cases {
        // Where there is a matrix unit whole chunks go through it in two parts of bf16, as in the CPU's own tests; floor here
        // 2.6e-11, with weights in BF16.
        case.bound = case.bound.max(conformance::tolerance::TWO_PARTS);
    }
    assert!(cases.len() >= 4, "{} cases of several ops", cases.len());
    for case in &cases {
        let placement = alternating(&case.program);
        let make = || split(&placement);
        let mut outcomes = vec![conformance::run(case, &[&make, &make])];
        if !case.program.stores.is_empty() {
            outcomes.push(conformance::run_exchanged(case, &[&make, &make]));
        }
        if case.program.slot_elements() + case.program.evicted_elements() > 0 {
            outcomes.push(conformance::run_through_snapshots(case, &[&make, &make]));
        }
        for outcome in outcomes {
            let Outcome { name, error, bound, fault } = &outcome;
            assert!(outcome.passed(), "{name}: {error:.1e} of {bound:.0e} {fault:?}");
        }
    }
}

#[test]
fn a_split_model_gives_the_bits_of_a_whole_one() {
    let mut split_experts = 0;
    for directory in fixtures() {
        for quant in [Quant::F32, Quant::Q8_0] {
            let (model, golden) = (converted(&directory, quant), golden(&directory));
            let limits = limits(64, Replay::new(8, 4), KvType::F16);
            let of = |backend: Box<dyn Backend>| logits(&model, backend, limits, &golden.ids);
            let whole = of(Box::new(Cpu::new(2)));
            let experts = placement(&model.program, 999, true);
            split_experts += usize::from(experts.is_some());
            let placements = [placement(&model.program, 1, false), experts, placement(&model.program, 1, true)];
            for placement in placements.into_iter().flatten().chain([alternating(&model.program)]) {
                assert!(of(split(&placement)) == whole, "{} as {quant}", directory.display());
            }
            let Some(placement) = placement(&model.program, 1, false) else { panic!("one layer is not all") };
            let beside = |other| beside(&model, split(&placement), other, &golden.ids);
            assert!(beside(&[]) == beside(&golden.ids[..31]), "{} as {quant}", directory.display());
        }
    }
    assert!(split_experts >= 4, "{split_experts} models with experts");
}

#[test]
fn segments_are_given_up_on_both_devices() {
    for memory in MEMORIES {
        let whole = answers(memory, &|_| Box::new(Cpu::new(2)));
        let of = |layers| {
            let of = move |program: &Program| split(&placement(program, layers, false).expect("not all layers"));
            answers(memory, &of)
        };
        assert!(of(1) == whole && of(2) == whole, "{memory:?}");
    }
}

#[test]
fn what_is_all_on_one_device_is_not_split() {
    let model = converted(&fixture("llama"), Quant::F32);
    assert_eq!(placement(&model.program, 999, false), None);
    assert_eq!(placement(&model.program, 999, true), None);
    let none = placement(&model.program, 0, false).expect("all is on the processor");
    assert!(none.part(&model.program, 0).ops.is_empty());
    assert_eq!(none.part(&model.program, 1).ops, model.program.ops);
}

/// As those of one device, with pages in two arenas.
#[test]
fn histories_on_two_devices() {
    for name in ["qwen35", "kimi-linear", "nemotron_h", "lfm2"] {
        let model = converted(&fixture(name), Quant::F32);
        let placement = alternating(&model.program);
        // The bound of histories on one processor.
        go_through(
            name,
            &Subject { make: &|| split(&placement), bound: 7e-5, with_ring: 7e-5, state_type: StateType::F32 },
            (12, 60),
        );
    }
}
