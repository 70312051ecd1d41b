//! The backend as a whole: conformance, determinism, errors. Not in the crate itself: there, every kernel would be compiled once
//! more for tests, and not only those that unit tests call.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod regressions;

use kvas_backend::{
    Act, Backend, CHUNK, DeviceError, KvType, Limits, Op, Outputs, Page, Program, Reference, Replay, Slot, StateType,
    Step, WeightData, WeightDecl, WeightSource,
    conformance::{
        self, Build, Case, Make, Outcome, Random, RandomWeights, RepeatedWeights, normalised_error, tolerance,
    },
    op::{self, Activation, GatedLinear, Linear, Output},
};
use kvas_cpu::{Cpu, Isa};
use kvas_gguf::Quant;
use std::sync::Arc;

/// Cases from `first` on, `stride` apart, by those of some instruction sets that this processor has and some numbers of threads,
/// beside one run of the reference.
fn check((first, stride): (usize, usize), sets: &[Isa], threads: &[usize]) {
    let (sets, missing): (Vec<Isa>, Vec<Isa>) = sets.iter().partition(|isa| isa.available());
    missing.iter().for_each(|isa| eprintln!("skipped: this processor has no {}", isa.name()));
    if sets.is_empty() {
        return;
    }
    let make = |isa: Isa, threads: usize| move || Box::new(Cpu::with_isa(threads, isa)) as Box<dyn Backend>;
    let of_set = |isa: &Isa| threads.iter().map(|threads| make(*isa, *threads)).collect::<Vec<_>>();
    let makes: Vec<_> = sets.iter().map(of_set).collect();
    let kinds: Vec<Vec<Make>> = makes.iter().map(|of_set| of_set.iter().map(|make| make as Make).collect()).collect();
    let kinds: Vec<&[Make]> = kinds.iter().map(|kind| &kind[..]).collect();
    let cases = conformance::cases();
    pass(cases.iter().skip(first).step_by(stride).flat_map(|case| {
        let named = |(isa, outcome): (&Isa, Outcome)| {
            let two_parts = *isa == Isa::Amx && case.weights.quant == Quant::Bf16;
            let bound = outcome.bound.max(if two_parts { tolerance::TWO_PARTS } else { 0.0 });
            Outcome { name: format!("{} by {}", outcome.name, isa.name()), bound, ..outcome }
        };
        sets.iter().zip(conformance::run_kinds(case, &kinds)).map(named).collect::<Vec<_>>()
    }));
}

fn pass(outcomes: impl Iterator<Item = Outcome>) {
    let mut failed = Vec::new();
    for outcome in outcomes {
        if !outcome.passed() {
            failed
                .push(format!("{}: {:.2e} of {:.0e} {:?}", outcome.name, outcome.error, outcome.bound, outcome.fault));
        } else if std::env::var("KVAS_VERBOSE").is_ok() {
            eprintln!("{}: {:.2e} of {:.0e}", outcome.name, outcome.error, outcome.bound);
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn what_one_backend_has_saved_another_one_goes_on_with() {
    let cpu: Make = &|| Box::new(Cpu::new(2));
    let cases = conformance::cases();
    let with_memory = cases.iter().filter(|case| !case.program.stores.is_empty());
    pass(with_memory.map(|case| conformance::run_exchanged(case, &[cpu, cpu])));
}

#[test]
fn a_snapshot_is_what_it_was_copied_from_and_goes_on_in_any_slot() {
    let cpu: Make = &|| Box::new(Cpu::new(2));
    let cases = conformance::cases();
    let with_slots = cases.iter().filter(|case| case.program.slot_elements() + case.program.evicted_elements() > 0);
    pass(with_slots.map(|case| conformance::run_through_snapshots(case, &[cpu, cpu])));
}

#[test]
fn every_instruction_set_agrees_with_the_reference() {
    check((0, 2), &Isa::ALL, &[1, 3]);
}

/// They take longest of all.
#[test]
fn every_instruction_set_agrees_with_the_reference_on_the_other_cases() {
    check((1, 2), &Isa::ALL, &[1, 3]);
}

/// For an emulator, on which all cases take many minutes, and each number of threads as long as the others.
#[test]
fn some_cases_agree_on_arm() {
    check((0, 19), &[Isa::I8mm], &[3]);
}

/// Outputs too large for a cache are written past it, smaller ones are not: rows alone and together are the same.
#[test]
fn outputs_past_the_caches_are_the_same() {
    const ROWS: usize = 64;
    const COLUMNS: usize = 17_000;
    for gated in [false, true] {
        let mut b = Build::default();
        let (x, out) = (b.act("x", 64), b.act("out", COLUMNS));
        let mut weight = |name: &str| b.matrix(name, [COLUMNS, 64]);
        let op = if gated {
            let (gate, up) = (weight("gate"), weight("up"));
            Op::GatedLinear(GatedLinear { x, gate, up, activation: Activation::Silu, out })
        } else {
            Op::Linear(Linear::new(x, weight("weight"), out))
        };
        b.op(op);
        let program = Arc::new(b.finish(out));
        let mut random = Random::new(7);
        let values: Vec<f32> = (0..ROWS * 64).map(|_| random.normal()).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let mut backend = Cpu::with_isa(2, isa);
            let mut weights = RepeatedWeights(Quant::Q8_0);
            backend.prepare(program.clone(), &mut weights, conformance::without_stores(ROWS)).unwrap();
            let mut outputs = |values: &[f32]| {
                let rows = values.len() / 64;
                backend.write(x, values).unwrap();
                let mut step = Step::default();
                step.push(Slot(1), 0, &vec![0; rows], Outputs::All, []);
                backend.run(&program, &step).unwrap();
                backend.commit(&[(Slot(1), rows as u32)]).unwrap();
                let mut found = vec![0.0; rows * COLUMNS];
                backend.read(out, 0, &mut found).unwrap();
                found
            };
            let together = outputs(&values);
            let alone: Vec<f32> = values.chunks(16 * 64).flat_map(&mut outputs).collect();
            assert!(together == alone && together.iter().all(|y| *y != 0.0), "gated {gated} on {isa:?}");
        }
    }
}

/// The first case whose name starts with `name`.
fn case(name: &str) -> Case {
    conformance::cases().into_iter().find(|case| case.name.starts_with(name)).expect("a case of this name")
}

fn prepared(mut backend: impl Backend, case: &Case) -> impl Backend {
    backend.prepare(case.program.clone(), &mut case.weights.clone(), case.limits).unwrap();
    backend
}

/// Runs spans of (slot, context, tokens), each with a page table of its slot, keeps `keep` rows of each, and returns
/// the logits.
fn run(backend: &mut impl Backend, case: &Case, spans: &[(u32, u32, &[u32])], keep: u32) -> Vec<Vec<f32>> {
    let mut step = Step::default();
    let pages_per_slot = (case.limits.pages as u32 - 1) / 4;
    for (slot, context, tokens) in spans {
        let table: Vec<Page> = (0..pages_per_slot).map(|page| Page(1 + slot * pages_per_slot + page)).collect();
        step.push(Slot(*slot), *context, tokens, Outputs::All, [&table[..]]);
    }
    backend.run(&case.program, &step).unwrap();
    let mut logits = vec![0.0; step.tokens().len() * case.program.vocab()];
    backend.read(case.program.logits, 0, &mut logits).unwrap();
    let kept: Vec<_> = spans.iter().map(|(slot, _, tokens)| (Slot(*slot), keep.min(tokens.len() as u32))).collect();
    backend.commit(&kept).unwrap();
    logits.chunks(case.program.vocab()).map(<[f32]>::to_vec).collect()
}

#[test]
fn a_sequence_does_not_see_its_neighbours() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        for name in
            ["hybrid Q8_0 replay 0", "hybrid Q8_0 replay 16", "hybrid F32 replay 3", "hybrid F32 replay 3 fresh"]
        {
            let mut case = case(name);
            if case.limits.replay.history == 16 {
                case.limits.state_type = StateType::F16;
            }
            let mut alone = prepared(Cpu::with_isa(1, isa), &case);
            let mut together = prepared(Cpu::with_isa(2, isa), &case);
            let mut random = Random::new(1);
            let mut context = 0;
            for rows in [19, 1, 1, 3, 1, 2, 33, 1] {
                let tokens: Vec<u32> = (0..rows).map(|_| random.below(50) as u32).collect();
                let expected = run(&mut alone, &case, &[(1, context, &tokens)], rows);
                let spans = [(2, context, &tokens[..1]), (1, context, &tokens[..]), (3, context, &tokens[..1])];
                let found = run(&mut together, &case, &spans, rows);
                assert_eq!(expected[..], found[1..=rows as usize], "{name} on {isa:?}, {rows} rows");
                context += rows;
            }
        }
    }
}

#[test]
fn a_copied_slot_goes_on_like_the_original() {
    for replay in [Replay::OFF, Replay::new(16, 4)] {
        let case = case(&format!("hybrid F32 replay {}", replay.history));
        let mut cpu = prepared(Cpu::new(2), &case);
        let mut reference = prepared(Reference::default(), &case);
        // A prompt, then single tokens that stay in the ring; then the same slot is used by another sequence.
        let prompt: Vec<u32> = (0..21).map(|i| i * 7 % 50).collect();
        let (found, expected) = (continued(&mut cpu, &case, &prompt), continued(&mut reference, &case, &prompt));
        for (found, expected) in found.iter().zip(&expected) {
            assert!(conformance::normalised_error(expected, found) < 1e-10);
        }
    }
}

fn continued(backend: &mut impl Backend, case: &Case, prompt: &[u32]) -> Vec<Vec<f32>> {
    run(backend, case, &[(1, 0, prompt)], 99);
    for i in 0..5 {
        run(backend, case, &[(1, 21 + i, &[i])], 1);
    }
    let pages_per_slot = (case.limits.pages as u32 - 1) / 4;
    let of = |slot: u32, page: u32| Page(1 + slot * pages_per_slot + page);
    backend.copy_slots(&[(Slot(1), Slot(2))]).unwrap();
    backend.copy_pages(&(0..8).map(|page| (of(1, page), of(2, page))).collect::<Vec<_>>()).unwrap();
    // One of two rows is taken back, where that can be.
    let tried: &[u32] = if case.limits.replay.window > 0 { &[7, 8] } else { &[7] };
    let mut logits = run(backend, case, &[(2, 26, tried)], 1);
    backend.clear_slots(&[Slot(1)]).unwrap();
    logits.extend(run(backend, case, &[(1, 0, prompt), (2, 27, &[9])], 99));
    backend.copy_slots(&[(Slot(2), Slot(2))]).unwrap(); // only folds
    logits.extend(run(backend, case, &[(2, 28, &[10])], 1));
    logits
}

#[test]
fn every_recurrence_goes_on_in_a_copied_slot_and_begins_anew_in_a_cleared_one() {
    for name in ["delta 2/6 40x24", "delta per channel 2/6 40x24", "mamba2 8/8 40x24", "mamba1 67x33", "short conv 9x3"]
    {
        for history in [0, 3, 16] {
            let case = case(&format!("{name} replay {history}"));
            let (expected, found) = (copied(Reference::default(), &case), copied(Cpu::new(2), &case));
            let error = conformance::normalised_error(&expected, &found);
            assert!(error < case.bound, "{}: {error:.2e}", case.name);
        }
    }
}

#[test]
fn a_prompt_cut_at_chunks_gives_the_same_bits() {
    let names = ["delta 2/6 40x24", "delta 2/4 128x128", "delta per channel 2/6 40x24", "mamba2 1/8 128x64"];
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        for name in names.into_iter().chain(["mamba1 67x33"]) {
            for (kind, history) in [("", 0), ("", 3), ("f16 ", 0), ("f16 ", 3)] {
                let mut case = case(&format!("{kind}{name} replay {history}"));
                case.limits.rows = 200;
                let by_unit = isa == Isa::Amx && (name.ends_with("128x128") || name.ends_with("128x64"));
                let grain = prepared(Cpu::with_isa(2, isa), &case).grain();
                assert_eq!(grain, if by_unit { 2 * CHUNK } else { CHUNK }, "{} on {isa:?}", case.name);
                let whole = read_in_parts(&case, (isa, 2), &[5 * grain + CHUNK + 3]);
                for parts in [&[grain, 4 * grain + CHUNK + 3][..], &[3 * grain, grain, grain + CHUNK + 3]] {
                    let found = read_in_parts(&case, (isa, 2), parts);
                    assert!(found == whole, "{} on {isa:?}: {parts:?}", case.name);
                }
                let many = read_in_parts(&case, (isa, 13), &[5 * grain + CHUNK + 3]);
                assert!(many == whole, "{} on {isa:?} with many threads", case.name);
            }
        }
    }
}

/// All outputs of a prompt that is read in parts of so many rows, and those of a row after it.
fn read_in_parts(case: &Case, (isa, threads): (Isa, usize), parts: &[usize]) -> Vec<f32> {
    let mut cpu = prepared(Cpu::with_isa(threads, isa), case);
    let rows = parts.iter().sum::<usize>() + 1;
    let mut random = Random::new(8);
    let inputs: Vec<(Act, Vec<f32>)> = case
        .inputs
        .iter()
        .map(|(act, _)| (*act, (0..rows * case.program.act(*act).columns).map(|_| random.normal()).collect()))
        .collect();
    let (mut all, mut context) = (Vec::new(), 0);
    for rows in parts.iter().copied().chain([1]) {
        for (act, values) in &inputs {
            let columns = case.program.act(*act).columns;
            cpu.write(*act, &values[context * columns..(context + rows) * columns]).unwrap();
        }
        let mut step = Step::default();
        step.push(Slot(1), context as u32, &vec![0; rows], Outputs::None, []);
        cpu.run(&case.program, &step).unwrap();
        let mut out = vec![0.0; rows * case.program.act(case.outputs[0]).columns];
        cpu.read(case.outputs[0], 0, &mut out).unwrap();
        cpu.commit(&[(Slot(1), rows as u32)]).unwrap();
        all.extend(out);
        context += rows;
    }
    all
}

#[test]
fn attention_gives_the_same_bits_however_a_prompt_is_cut() {
    let names = ["attention 4/4 64", "attention 16/2 80", "attention 8/1 256", "attention 6/2 40", "attention 8/2 128"];
    let latent = ["attention 20/1 72", "attention 4/2 33"];
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        for name in names.into_iter().chain(latent) {
            let mut case = case(name);
            case.limits.rows = 1100;
            let whole = attended_in_parts(&case, (isa, 2), &[1100]);
            for parts in [&[64, CHUNK, 3 * CHUNK, 448, CHUNK, 508][..], &[1088, 12], &[512, 528, 60]] {
                let found = attended_in_parts(&case, (isa, 2), parts);
                assert!(found == whole, "{} on {isa:?}: {parts:?}", case.name);
            }
            // The matrix unit attends with whole chunks of what is read at once, the others go through vectors.
            let by_unit = isa == Isa::Amx && !name.starts_with("attention 6/2") && !latent.contains(&name);
            for parts in [&[64, 1, 1, 5, 441, 1, 12, 575][..], &[1037, 1, 4, 58], &[511, 1, 1, 587]] {
                let found = attended_in_parts(&case, (isa, 2), parts);
                let is_near = || normalised_error(&whole, &found) <= tolerance::ATTENTION;
                assert!(if by_unit { is_near() } else { found == whole }, "{} on {isa:?}: {parts:?}", case.name);
            }
        }
    }
}

/// So many that they share the contexts of whole chunks of a prompt.
#[test]
fn attention_gives_the_same_bits_with_many_threads() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        for name in ["attention 4/4 64", "attention 16/2 80", "attention 8/1 256", "attention 8/2 128"] {
            let mut case = case(name);
            case.limits.rows = 1100;
            let [few, many] = [2, 13].map(|threads| attended_in_parts(&case, (isa, threads), &[1040, 16, 20, 1, 23]));
            assert!(few == many, "{} on {isa:?}", case.name);
        }
    }
}

/// What attention gives for a prompt that is read in parts of so many rows.
fn attended_in_parts(case: &Case, (isa, threads): (Isa, usize), parts: &[usize]) -> Vec<f32> {
    let mut cpu = prepared(Cpu::with_isa(threads, isa), case);
    let rows = parts.iter().sum::<usize>();
    let mut random = Random::new(8);
    let columns = |act: Act| case.program.act(act).columns;
    let inputs: Vec<(Act, Vec<f32>)> = case
        .inputs
        .iter()
        .map(|(act, _)| (*act, (0..rows * columns(*act)).map(|_| random.normal()).collect()))
        .collect();
    let out = *case.outputs.last().expect("what attention gives");
    let table: Vec<Page> = (1..=rows.div_ceil(case.limits.page_size) as u32).map(Page).collect();
    let (mut all, mut context) = (Vec::new(), 0);
    for rows in parts.iter().copied() {
        for (act, values) in &inputs {
            cpu.write(*act, &values[context * columns(*act)..(context + rows) * columns(*act)]).unwrap();
        }
        let mut step = Step::default();
        step.push(Slot(1), context as u32, &vec![0; rows], Outputs::None, [&table[..]]);
        cpu.run(&case.program, &step).unwrap();
        let mut part = vec![0.0; rows * columns(out)];
        cpu.read(out, 0, &mut part).unwrap();
        cpu.commit(&[(Slot(1), rows as u32)]).unwrap();
        all.extend(part);
        context += rows;
    }
    all
}

fn copied(backend: impl Backend, case: &Case) -> Vec<f32> {
    let mut backend = prepared(backend, case);
    let mut random = Random::new(3);
    fed(&mut backend, case, &[(1, 0, 21)], &mut random);
    for context in 21..26 {
        fed(&mut backend, case, &[(1, context, 1)], &mut random);
    }
    backend.copy_slots(&[(Slot(1), Slot(2))]).unwrap();
    let mut out = fed(&mut backend, case, &[(1, 26, 1), (2, 26, 1)], &mut random);
    backend.clear_slots(&[Slot(1)]).unwrap();
    out.extend(fed(&mut backend, case, &[(1, 0, 2), (2, 27, 1)], &mut random));
    out
}

/// Runs spans of (slot, context, rows) on random inputs, keeps all rows, and returns the first output.
fn fed(backend: &mut impl Backend, case: &Case, spans: &[(u32, u32, usize)], random: &mut Random) -> Vec<f32> {
    let mut step = Step::default();
    spans.iter().for_each(|(slot, context, rows)| step.push(Slot(*slot), *context, &vec![0; *rows], Outputs::None, []));
    let len = |act: Act| step.tokens().len() * case.program.act(act).columns;
    for (act, _) in &case.inputs {
        let values: Vec<f32> = (0..len(*act)).map(|_| random.normal()).collect();
        backend.write(*act, &values).unwrap();
    }
    backend.run(&case.program, &step).unwrap();
    let mut out = vec![0.0; len(case.outputs[0])];
    backend.read(case.outputs[0], 0, &mut out).unwrap();
    let kept: Vec<_> = spans.iter().map(|(slot, _, rows)| (Slot(*slot), *rows as u32)).collect();
    backend.commit(&kept).unwrap();
    out
}

#[test]
fn a_running_program_does_not_allocate() {
    for name in ["hybrid Q8_0 replay 16", "hybrid F32 replay 0", "hybrid F32 replay 3 fresh", "experts Q4_K"] {
        let mut case = case(name);
        if case.limits.replay.history == 16 {
            case.limits.state_type = StateType::F16;
        }
        let mut cpu = prepared(Cpu::new(1), &case);
        let mut step = Step::default();
        let table: Vec<Page> = (1..40).map(Page).collect();
        let mut go = |context: u32, tokens: &[u32]| {
            step.clear();
            step.push(Slot(1), context, tokens, Outputs::Last, [&table[..]]);
            cpu.run(&case.program, &step).unwrap();
            cpu.commit(&[(Slot(1), tokens.len() as u32)]).unwrap();
        };
        go(0, &[1; 40]);
        let counted = allocation_counter::measure(|| {
            go(40, &[1]);
            go(41, &[2]);
            go(42, &[3; 30]);
        });
        assert_eq!(counted.count_total, 0, "{name}");
    }
}

/// Hears what becomes of the weights it hands over.
struct Heard(RandomWeights, Vec<(String, bool)>);

impl WeightSource for Heard {
    fn load(&mut self, decl: &WeightDecl) -> Result<WeightData, DeviceError> {
        self.0.load(decl)
    }

    fn settled(&mut self, decl: &WeightDecl, kept: bool) {
        self.1.push((decl.name.clone(), kept));
    }
}

/// Packed once or each time they are used, blocks give the same bits, and the source learns which of its bytes are. Floats
/// of 16 bits are summed in another order row by row; pages in f16 make that 6.2e-10 of normalised squared error (BF16).
#[test]
fn weights_that_are_left_as_they_are_give_the_same_results() {
    for quant in [Quant::Q8_0, Quant::Bf16, Quant::F16] {
        let mut case = case("hybrid Q8_0 replay 0");
        case.weights.quant = quant;
        packed_and_stored(&case);
    }
}

fn packed_and_stored(any: &Case) {
    let tokens: Vec<u32> = (0..37).collect();
    let of = |cpu: Cpu, kept: bool| {
        let mut cpu = cpu;
        let mut source = Heard(any.weights.clone(), Vec::new());
        cpu.prepare(any.program.clone(), &mut source, any.limits).unwrap();
        let mut settled: Vec<_> = source.1.iter().map(|(name, _)| name).collect();
        settled.sort();
        let mut declared: Vec<_> = any.program.weights.iter().map(|decl| &decl.name).collect();
        declared.sort();
        assert_eq!(settled, declared);
        let left: Vec<_> = source.1.iter().filter(|(_, kept)| *kept).map(|(name, _)| name).collect();
        assert_eq!(left == ["table"], !kept, "{left:?} are used as they are");
        let scratch = cpu.scratch_bytes(&any.program, &vec![any.weights.quant; declared.len()], &any.limits);
        (run(&mut cpu, any, &[(1, 0, &tokens), (0, 0, &tokens[5..6])], 99), scratch)
    };
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        let (packed, more) = of(Cpu::with_isa(2, isa), false);
        let (stored, less) = of(Cpu::with_isa(2, isa).without_repacking(), true);
        let error = normalised_error(&packed.concat(), &stored.concat());
        eprintln!("{} {}: {error:.1e}", isa.name(), any.weights.quant);
        let is_same = if any.weights.quant == Quant::Q8_0 { packed == stored } else { error < 5e-9 };
        assert!(is_same, "{} {}: {error:.1e}", isa.name(), any.weights.quant);
        assert!(less < more, "{less} bytes of scratch against {more}");
    }
}

fn small_linear() -> (Arc<Program>, Limits) {
    let mut b = Build::default();
    let (x, y) = (b.act("x", 64), b.act("y", 8));
    let weight = b.matrix("some.weight", [8, 64]);
    b.linear(x, weight, y, Output::Write);
    let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
    #[rustfmt::skip]
    let limits = Limits {
        context: 0,
        rows: 4, outputs: 4, pages: 1, page_size: 16, slots: 1, snapshots: 0, replay, kv_type, state_type,
    };
    (Arc::new(b.finish(y)), limits)
}

/// Weights that are not what they should be.
struct Wrong(Quant, usize);

impl WeightSource for Wrong {
    fn load(&mut self, _: &WeightDecl) -> Result<WeightData, DeviceError> {
        Ok(WeightData::new(self.0, kvas_backend::Bytes::new(vec![0; self.1])))
    }
}

#[test]
fn what_cannot_be_prepared_is_said() {
    let (program, limits) = small_linear();
    let prepare = |mut cpu: Cpu, weights: &mut dyn WeightSource, limits| {
        cpu.prepare(program.clone(), weights, limits).map_err(|error| error.to_string())
    };
    let mut good = RandomWeights { quant: Quant::Q8_0, seed: 1 };
    assert_eq!(prepare(Cpu::new(1), &mut good, limits), Ok(()));
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.available()) {
        let error = prepare(Cpu::with_isa(1, isa), &mut good, limits).unwrap_err();
        assert_eq!(error, format!("cpu: this processor has no {}", isa.name()));
    }
    let error = prepare(Cpu::new(1), &mut Wrong(Quant::Q8_0, 8 * 68 - 1), limits).unwrap_err();
    assert_eq!(error, "tensor some.weight: has 543 bytes, expected 8 rows of 68");
    let error = prepare(Cpu::new(1), &mut Wrong(Quant::Q4K, 8 * 144), limits).unwrap_err();
    assert_eq!(error, "tensor some.weight: 64 columns are not whole blocks of Q4_K");
    for huge in [usize::MAX / 8, usize::MAX] {
        let error = prepare(Cpu::new(1), &mut good, Limits { rows: huge, outputs: huge, ..limits }).unwrap_err();
        assert!(error.starts_with("cpu: memory for activations, pages and slots needs "), "{error}");
    }
}

#[test]
fn a_token_of_no_vocabulary_is_caught() {
    let case = case("embed F32");
    let mut cpu = prepared(Cpu::new(1), &case);
    let mut step = Step::default();
    step.push(Slot(1), 0, &[50], Outputs::All, []);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cpu.run(&case.program, &step)));
    let message = *result.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(message, "token 50 of a vocabulary of 50");
}

#[test]
fn the_8_bit_form_of_an_activation_follows_its_writes() {
    let mut b = Build::default();
    let (x, before, after) = (b.act("x", 64), b.act("before", 8), b.act("after", 8));
    let (weight, norm) = (b.matrix("some.weight", [8, 64]), b.small("norm", [1, 64]));
    b.linear(x, weight, before, Output::Write);
    b.op(kvas_backend::Op::Norm(op::Norm { x, weight: norm, eps: 1e-6, out: x }));
    b.linear(x, weight, after, Output::Write);
    let mut case = case("linear Q8_0");
    (case.program, case.outputs) = (Arc::new(b.finish(after)), vec![before, after]);
    case.inputs.truncate(1);
    let outcome = conformance::run(&case, &[&|| Box::new(Cpu::new(1))]);
    assert!(outcome.passed(), "{outcome:?}");
    // And where the caller writes, within a step.
    let mut cpu = prepared(Cpu::new(1), &case);
    let mut step = Step::default();
    step.push(Slot(1), 0, &[0], Outputs::None, []);
    cpu.begin(&step).unwrap();
    let mut product = |x_values: [f32; 64]| {
        cpu.write(x, &x_values).unwrap();
        cpu.execute(&case.program.ops[0]).unwrap();
        let mut y = [0.0; 8];
        cpu.read(before, 0, &mut y).unwrap();
        y
    };
    let once = product([1.0; 64]);
    assert_eq!(product([-2.0; 64]), once.map(|y| -2.0 * y));
}
