//! Sequences that hold fewer tokens than they have: against the float64 oracle, against a sequence that holds all, in
//! conversations, and beside others.

use crate::{
    commands::{fails, succeeds},
    golden::{converted, fixture},
};
use kvas::{
    engine::{Engine, EngineConfig, EngineHandle, Event, Failure, Request, Runner, SingleSequence},
    model::Model,
    policy::{Bound, BoundOverrides, EvictionScore, PolicyKind, bounded},
    sampling::{Sampler, SamplerParams},
};
use kvas_backend::{
    Backend, Eviction, EvictionOrder, Holding, KvType, Limits, Op, Outputs, Page, Reference, Replay, Slot, StateType,
    Step, Store, StoreDecl,
    conformance::{Build, Random, RandomWeights},
    op,
    store::{MomentType, PageLayout, PagesDecl, Policy, Slake},
};
use kvas_cpu::Cpu;
use kvas_gguf::Quant;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Debug, Deserialize)]
struct Vectors {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    prompt: usize,
    tokens: usize,
    keep: u32,
    page: usize,
    window: usize,
    gamma: f32,
    mass_cap: f32,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    preference: [f64; 4],
    out: Vec<f64>,
}

/// Largest difference from the oracle, of numbers of order 1. Floor: 6e-7 on the processor.
const ORACLE: f64 = 3e-6;

fn layer(v: &Vectors, moments: MomentType) -> (Arc<kvas_backend::Program>, [kvas_backend::Act; 4]) {
    let (heads, kv_heads, dim) = (v.heads, v.kv_heads, v.head_dim);
    let mut b = Build::default();
    let acts =
        [b.act("q", heads * dim), b.act("k", kv_heads * dim), b.act("v", kv_heads * dim), b.act("out", heads * dim)];
    let [q, k, value, out] = acts;
    let policy = Policy::Slake(Slake { heads, window: v.window, capacity: 48, moments });
    let layout = PageLayout::Separate;
    let store = b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim: dim, value_dim: dim, layout, policy }));
    b.op(Op::RopeStore(op::RopeStore { q, k, v: value, key_dim: dim, rope: None, store }));
    b.op(Op::Attention(op::Attention { q, gate: None, heads, scale: 1.0 / (dim as f32).sqrt(), store, out }));
    (Arc::new(b.finish(out)), acts)
}

/// Goes through the vectors on a device: the preference it finds, and the largest difference of an output.
fn through(v: &Vectors, mut backend: Box<dyn Backend>) -> ([f64; 4], f64) {
    let (program, [q, k, value, out]) = layer(v, MomentType::F32);
    let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
    let (rows, outputs, page_size, slots, snapshots, pages) = (v.prompt, 1, v.page, 2, 0, 64);
    let limits = Limits { context: 0, rows, outputs, pages, page_size, slots, snapshots, replay, kv_type, state_type };
    backend.prepare(program.clone(), &mut RandomWeights { quant: Quant::F32, seed: 1 }, limits).unwrap();
    let table: Vec<Page> = (1..40).rev().map(Page).collect();
    let (mut held, mut context, mut worst) = (0u32, 0u32, 0.0f64);
    let run = |backend: &mut dyn Backend, held: u32, context: u32, rows: usize| {
        for (act, all, heads) in [(q, &v.queries, v.heads), (k, &v.keys, v.kv_heads), (value, &v.values, v.kv_heads)] {
            let columns = heads * v.head_dim;
            backend.write(act, &all[context as usize * columns..][..rows * columns]).unwrap();
        }
        let mut step = Step::default();
        let pages = &table[..(held as usize + rows).div_ceil(v.page)];
        step.push_held(Slot(1), context, &vec![0; rows], Outputs::None, [(pages, held)]);
        backend.run(&program, &step).unwrap();
        let mut found = vec![0.0; rows * v.heads * v.head_dim];
        backend.read(out, 0, &mut found).unwrap();
        backend.commit(&[(Slot(1), rows as u32)]).unwrap();
        found
    };
    run(backend.as_mut(), held, context, v.prompt);
    (held, context) = (v.prompt as u32, v.prompt as u32);
    let mut preference = [0.0; 4];
    for token in 0..=v.tokens {
        let order = if token == 0 { EvictionOrder::Window { gamma: v.gamma } } else { EvictionOrder::Running };
        if token == 0 || held == v.keep + v.page as u32 {
            let pages = &table[..(held as usize).div_ceil(v.page)];
            let holdings = [Holding { store: Store(0), table: pages, held, keep: v.keep }];
            let (window, sinks, absorb, mass_cap) = (v.window as u32, 0, true, v.mass_cap);
            let eviction =
                Eviction { slot: Slot(1), context, window, sinks, order, absorb, mass_cap, holdings: &holdings };
            if token == 0 {
                let found = backend.weigh(&eviction, true).unwrap()[0];
                preference = [found.entropy, found.variance, found.shift, found.mean_entropy];
            }
            backend.evict(&eviction).unwrap();
            held = v.keep;
        }
        if token == v.tokens {
            break;
        }
        let found = run(backend.as_mut(), held, context, 1);
        (held, context) = (held + 1, context + 1);
        let expected = &v.out[token * found.len()..];
        worst = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(worst, f64::max);
    }
    (preference, worst)
}

#[test]
fn what_is_held_and_what_is_summed_up_are_those_of_the_oracle() {
    let vectors: Vectors = serde_json::from_str(include_str!("data/vectors/slake.json")).unwrap();
    let devices: [Box<dyn Backend>; 3] = [Box::new(Reference::default()), Box::new(Cpu::new(1)), Box::new(Cpu::new(3))];
    for (number, device) in devices.into_iter().enumerate() {
        let (preference, worst) = through(&vectors, device);
        println!("device {number}: {worst:.1e} {preference:?}");
        assert!(worst < ORACLE, "device {number}: off by {worst:e}");
        for (found, expected) in preference.iter().zip(vectors.preference) {
            assert!((found / expected - 1.0).abs() < 1e-5, "device {number}: {found} instead of {expected}");
        }
    }
}

const PAGE: usize = 4;
const CONTEXT: usize = 700;

/// Small models: what stays in any case is 10 tokens.
pub(crate) fn small(budget: usize) -> Bound {
    Bound { window: 8, sinks: 2, ..Bound::new(budget) }
}

fn limits(snapshots: usize) -> Limits {
    let (replay, kv_type, state_type) = (Replay::new(8, 4), KvType::F32, StateType::F32);
    let (rows, outputs, pages, slots) = (64, 1, 2000, 4);
    Limits { context: 0, rows, outputs, pages, page_size: PAGE, slots, snapshots, replay, kv_type, state_type }
}

/// A model whose layers can evict tokens.
fn model(name: &str, bound: &Bound) -> Model {
    let mut model = converted(&fixture(name), Quant::F32);
    model.program = Arc::new(bounded(&model.program, bound, MomentType::F32, PAGE));
    model
}

fn prepared(model: &Model, backend: Box<dyn Backend>) -> Runner {
    model.prepare(backend, limits(8), &mut |_, _| {}).unwrap()
}

pub(crate) fn text(model: &Model, count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(model.spec.vocab) as u32).collect()
}

/// The logits after a prompt and after every token that follows, and what layers held after each.
fn read(runner: &mut Runner, (prompt, rest): (&[u32], &[u32]), bound: Option<&Bound>) -> Vec<(Vec<f32>, Vec<u32>)> {
    let mut reading = SingleSequence::new(runner).unwrap();
    reading.begin(runner, prompt, bound.map_or(0, |bound| bound.window as u32)).unwrap();
    let mut found = Vec::new();
    for tokens in [prompt].into_iter().chain(rest.chunks(1)) {
        reading.push(runner, tokens, bound).unwrap();
        found.push((runner.logits_mut(0).unwrap().to_vec(), reading.held()));
    }
    found
}

#[test]
fn a_budget_that_nobody_exceeds_changes_no_bit() {
    let large = small(4096);
    for name in ["llama", "qwen35"] {
        let (plain, bounded) = (converted(&fixture(name), Quant::F32), model(name, &large));
        let tokens = text(&plain, 230, 1);
        let parts = tokens.split_at(150);
        let expected = read(&mut prepared(&plain, Box::new(Cpu::new(2))), parts, None);
        let found = read(&mut prepared(&bounded, Box::new(Cpu::new(2))), parts, Some(&large));
        assert!(expected == found, "{name}");
    }
}

#[test]
fn devices_give_up_the_same_and_a_sequence_keeps_to_its_budget() {
    for (name, score) in [("llama", EvictionScore::Vabs), ("qwen35", EvictionScore::Cake)] {
        let bound = Bound { score, mass_cap: 0.5, ..small(72) };
        let model = model(name, &bound);
        let tokens = text(&model, 200, 2);
        let parts = tokens.split_at(140);
        let one = read(&mut prepared(&model, Box::new(Cpu::new(1))), parts, Some(&bound));
        let three = read(&mut prepared(&model, Box::new(Cpu::new(3))), parts, Some(&bound));
        assert!(one == three, "{name}: results depend on the number of threads");
        let truth = read(&mut prepared(&model, Box::new(Reference::default())), parts, Some(&bound));
        let mut worst = 0.0f32;
        for ((found, held), (expected, of_truth)) in one.iter().zip(&truth) {
            assert_eq!(held, of_truth, "{name}");
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
            worst = off.fold(worst, f32::max);
        }
        println!("{name}: {worst:.1e}");
        // Floor: that of the models without any of this.
        assert!(worst < 1e-3, "{name}: {worst:e}");
        let layout = prepared(&model, Box::new(Cpu::new(1))).bounded_layers().unwrap();
        let most = layout.layers * (bound.rows(&layout) + PAGE);
        for (_, held) in &one {
            assert!(held.iter().sum::<u32>() as usize <= most, "{name}: {held:?}");
        }
        let full = read(&mut prepared(&model, Box::new(Cpu::new(1))), parts, None);
        assert!(full.last().unwrap().0 != one.last().unwrap().0, "{name}: something was given up");
    }
}

fn engine(model: &Model, bound: Option<Bound>) -> EngineHandle {
    let runner = prepared(model, Box::new(Cpu::new(2)));
    Engine::start(runner, EngineConfig { bound: bound.map(Into::into), ..EngineConfig::new(CONTEXT) })
}

/// Greedy tokens after a prompt, and how many of its tokens were known.
fn ask(engine: &EngineHandle, request: Request) -> (Vec<u32>, usize) {
    let stream = engine.submit(Request { max_tokens: 24, ..request });
    let mut tokens = Vec::new();
    loop {
        match stream.next_event() {
            Event::Token(token) => tokens.push(token),
            Event::Done(_, timings) => return (tokens, timings.cached_tokens),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn greedy(vocab: usize, prompt: &[u32]) -> Request {
    Request::new(prompt.to_vec(), Sampler::new(SamplerParams::greedy(), vocab, &[]).unwrap())
}

#[test]
fn a_conversation_goes_on_goes_back_and_never_mixes_what_it_holds_with_what_it_does_not() {
    let bound = small(72);
    for name in ["llama", "qwen35"] {
        let plain = converted(&fixture(name), Quant::F32);
        let (all, some) = (engine(&plain, None), engine(&model(name, &bound), Some(bound)));
        let conversation = some.open().unwrap();
        let greedy = |prompt: &[u32]| greedy(plain.spec.vocab, prompt);
        let of = |prompt: &[u32]| Request { conversation: Some(conversation), ..greedy(prompt) };
        let prompt = text(&plain, 150, 3);
        let (first, cached) = ask(&some, of(&prompt));
        assert_eq!(cached, 0);
        // Again: what is known of the prompt, but for the tokens whose queries are asked.
        assert_eq!(ask(&some, of(&prompt)), (first.clone(), 150 - 8), "{name}");
        // On: from the end of the answer, of which the last token was not read.
        let next = [&prompt[..], &first, &text(&plain, 30, 4)].concat();
        let (_, cached) = ask(&some, of(&next));
        assert_eq!(cached, 150 + 23, "{name}");
        // A request that holds all is answered as if nobody had ever evicted anything.
        let whole = Request {
            bound: BoundOverrides { policy: Some(PolicyKind::Full), ..BoundOverrides::default() },
            ..of(&next)
        };
        assert_eq!(ask(&some, whole).0, ask(&all, greedy(&next)).0, "{name}");
        // So is one of another conversation that begins with what the first has evicted parts of.
        let other = Request {
            bound: BoundOverrides { policy: Some(PolicyKind::Full), ..BoundOverrides::default() },
            ..greedy(&prompt)
        };
        let (answer, cached) = ask(&some, other);
        assert!(cached >= 142, "{name}: the pages of a prompt are shared, {cached}");
        assert_eq!(answer, ask(&all, greedy(&prompt)).0, "{name}");
        assert_eq!(ask(&some, of(&prompt)).0, first, "{name}");
    }
}

#[test]
fn what_is_given_up_is_free_for_others_and_wrong_wishes_are_refused() {
    let bound = small(72);
    let model = model("llama", &bound);
    let engine = engine(&model, Some(bound));
    let stores = model.program.page_stores();
    let held = |tokens: usize| stores * tokens.div_ceil(PAGE);
    let conversation = engine.open().unwrap();
    let request = Request { conversation: Some(conversation), ..greedy(model.spec.vocab, &text(&model, 400, 5)) };
    ask(&engine, request);
    // The prompt is kept beside it until somebody wants the room.
    let used = engine.stats().unwrap().usage.pages.held;
    assert!(used <= held(400) + held(72 + PAGE), "{used}");
    engine.forget(kvas::memory::Scope::default(), text(&model, 400, 5)[..392].to_vec());
    let used = engine.stats().unwrap().usage.pages.held;
    assert!(used <= held(72 + PAGE), "{used} pages are held of {}", held(400));
    for overrides in [
        BoundOverrides { budget: Some(10), ..BoundOverrides::default() },
        BoundOverrides { budget: Some(100_000), ..BoundOverrides::default() },
        BoundOverrides { window: Some(9), ..BoundOverrides::default() },
    ] {
        let stream = engine.submit(Request { bound: overrides, ..greedy(model.spec.vocab, &[1, 2, 3]) });
        assert!(
            matches!(stream.next_event(), Event::Failed(Failure::Other(what)) if what.contains("expected") && !what.contains('\n'))
        );
    }
}

#[test]
fn flags_that_cannot_be_kept_are_refused_in_one_line_and_others_are_kept() {
    let asset = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/hybrid-14m.q4_0.gguf");
    let with = |flags: &[&str]| -> Vec<String> {
        let all = ["run", "-m", asset, "--device", "cpu", "-p", "The hen", "-n", "4"];
        all.iter().chain(flags).map(ToString::to_string).collect()
    };
    for (flags, named) in [
        (&["--kv-budget", "512"][..], "--kv-budget without --kv-policy slake"),
        (&["--kv-policy", "slake", "--kv-budget", "16"], "--kv-budget 16, expected at least"),
        (&["--kv-policy", "slake", "--mass-cap", "9"], "--mass-cap 9, expected 0 to 2"),
        (&["--kv-policy", "slake", "--slake-alpha", "0.3"], "--slake-alpha without --slake-score vabs, expected both"),
        (
            &["--kv-policy", "slake", "--slake-score", "cake", "--slake-beta", "0.3"],
            "--slake-beta without --slake-score vabs",
        ),
        (
            &["--kv-policy", "slake", "--slake-score", "window", "--slake-gamma", "9"],
            "--slake-gamma with --slake-score window",
        ),
        (&["--kv-policy", "slake", "--slake-moments", "off", "--mass-cap", "1"], "--mass-cap with --slake-moments off"),
    ] {
        let flags = with(flags);
        let error = fails(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(error.contains(named), "{error}");
    }
    let temporary = crate::temporary::folder();
    let text = temporary.path().join("slake.txt");
    std::fs::write(&text, "The hen saw the fox and ran to the barn. ".repeat(60)).unwrap();
    let path = text.display().to_string();
    let of = |flags: &[&str]| {
        let all = ["perplexity", "-m", asset, "--device", "cpu", "-f", &path, "-c", "400", "--chunks", "1", "--json"];
        let out = succeeds(&[&all[..], flags].concat());
        let found: serde_json::Value = serde_json::from_str(&out).unwrap();
        (found["tokens"].as_u64().unwrap(), found["ppl"].as_f64().unwrap())
    };
    let (few, ppl) = of(&["--kv-policy", "slake", "--kv-budget", "256", "--slake-score", "vabs"]);
    assert!(few == 200 && ppl > 1.0 && ppl.is_finite(), "{few} {ppl}");
    // Nothing is predicted of the first half.
    let slake = ["--kv-policy", "slake", "--kv-budget", "256"];
    let all = ["perplexity", "-m", asset, "--device", "cpu", "-f", &path, "-c", "400", "--chunks", "1", "--to", "10"];
    let error = fails(&[&all[..], &slake].concat());
    assert_eq!(error, "error: --from 0 --to 10, expected positions of 199 to 399, where a window is predicted");
    // What was evicted is not counted as read.
    let bench =
        ["bench", "-m", asset, "--device", "cpu", "-p", "0", "-n", "2", "-d", "900", "-r", "1", "--json", "--profile"];
    let read = |flags: &[&str]| {
        let out = succeeds(&[&bench[..], flags].concat());
        let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let attention = lines.iter().find(|line| line["op"] == "attention").unwrap()["bytes"].as_f64().unwrap();
        (lines[0]["bytes_per_token"].as_f64().unwrap(), attention)
    };
    let ((all, of_all), (some, of_some)) = (read(&[]), read(&slake));
    assert!(some < all && of_some < 0.4 * of_all, "{some} of {all}, {of_some} of {of_all}");
    // Budgets that are too small are raised, and results say so.
    let quality = ["bench-op", "slake_quality", "-m", asset, "--device", "cpu", "--text", &path, "--windows", "1"];
    let quality = [&quality[..], &["--lengths", "200,8"]].concat();
    let out = succeeds(&[&quality[..], &["--budgets", "1,200", "--json"]].concat());
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let raised = |at: usize| lines[at]["raised_to"].as_u64();
    assert_eq!((lines.len(), raised(0), raised(1), raised(6)), (11, None, Some(64), None), "{out}");
    assert!(raised(3) > Some(64), "moments take room: {out}");
    assert!(succeeds(&[&quality[..], &["--budgets", "1"]].concat()).contains("| 1 (64) | CAKE |"));
    assert!(fails(&[&quality[..], &["--budgets", "0"]].concat()).contains("--budgets 0, expected numbers"));
    let error = fails(&[&quality[..8], &["--lengths", "9000,8"]].concat());
    assert!(
        error.starts_with(&format!("error: {path}: ")) && error.ends_with("at least one window of 9008"),
        "{error}"
    );
    let error = fails(&["bench-op", "slake_peak", "--n", "4096", "--layers", "4", "--budget", "64", "--device", "cpu"]);
    assert!(error.starts_with("error: --budget 64, expected at least "), "{error}");
    let plan = succeeds(&["plan", "-m", asset, "--device", "cpu", "--memory", "--kv-policy", "slake"]);
    assert!(plan.contains("held tokens"), "{plan}");
    std::fs::remove_file(text).unwrap();
}
