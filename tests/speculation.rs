//! Answers with drafts are those without, to the last bit of their probabilities: whoever drafts, however many drafts
//! are right, whatever comes between.

use crate::{
    golden::{converted, fixture},
    plan::with_prediction_head,
};
use kvas::{
    engine::{
        Allowed, Constraint, DraftModel, Engine, EngineConfig, EngineHandle, Event, PredictionHead, Request, StopRule,
        Timings,
    },
    memory::SequenceId,
    model::Model,
    sampling::{Sampler, SamplerParams},
    speculation::{Confidence, DraftRequest, Drafter, DrafterChoice, DrafterKind, Effort, Lookup},
};
use kvas_backend::{Backend, DeviceError, KvType, Limits, Replay, StateType, conformance::Random};
use kvas_cpu::Cpu;
use kvas_gguf::Quant;

const CONTEXT: usize = 400;
const REPLAY: Replay = Replay::new(8, 4);
const MOST: usize = 3;

/// Every model with something that cannot be cut back, and one without.
pub(crate) const MODELS: [&str; 14] = [
    "falcon-h1",
    "granitehybrid",
    "granitehybrid-moe",
    "jamba",
    "kimi-linear",
    "lfm2",
    "lfm2moe",
    "llama",
    "mamba2",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
];

/// Knows what will be said, and proposes so many right tokens before wrong ones.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) texts: Vec<Vec<u32>>,
    pub(crate) right: Right,
    pub(crate) vocab: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum Right {
    Always(usize),
    Random(std::sync::Arc<std::sync::Mutex<Random>>),
}

impl Right {
    pub(crate) fn random() -> Self {
        Right::Random(std::sync::Arc::new(std::sync::Mutex::new(Random::new(11))))
    }
}

impl Script {
    /// Any number of right tokens of these texts.
    pub(crate) fn random(texts: Vec<Vec<u32>>, vocab: usize) -> Self {
        Self { texts, right: Right::random(), vocab: vocab as u32 }
    }
}

impl Drafter for Script {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Draft
    }

    fn look(&mut self, _: SequenceId, _: &[u32]) -> Option<Confidence> {
        Some(Confidence::Model)
    }

    fn draft(&mut self, asked: &mut [DraftRequest<'_>]) -> Result<(), DeviceError> {
        for asked in asked {
            let text = self.texts.iter().find(|text| text.starts_with(asked.tokens));
            let known = text.map_or(&[][..], |text| &text[asked.tokens.len()..]);
            let right = match &self.right {
                Right::Always(right) => *right,
                Right::Random(random) => random.lock().unwrap().below(asked.most + 1),
            };
            let token = |at: usize| known.get(at).copied().unwrap_or(0);
            let wrong = |at: usize| (token(at) + 1) % self.vocab;
            asked.drafts = (0..asked.most).map(|at| if at < right { token(at) } else { wrong(at) }).collect();
        }
        Ok(())
    }

    fn forget(&mut self, _: SequenceId) {}
}

fn start(model: &Model, drafters: Vec<Box<dyn Drafter>>) -> EngineHandle {
    start_with(model, drafters, Effort::Most)
}

fn start_with(model: &Model, drafters: Vec<Box<dyn Drafter>>, effort: Effort) -> EngineHandle {
    start_on(model, Box::new(Cpu::new(1)), drafters, effort)
}

pub(crate) fn start_on(
    model: &Model,
    backend: Box<dyn Backend>,
    drafters: Vec<Box<dyn Drafter>>,
    effort: Effort,
) -> EngineHandle {
    let pages = 1 + model.program.page_stores() * 8 * (2 * CONTEXT / 8 + 2);
    let (page_size, slots, snapshots, kv_type, state_type) = (8, 9, 40, KvType::F16, StateType::F32);
    let replay = REPLAY;
    let limits =
        Limits { context: 0, rows: 64, outputs: 40, pages, page_size, slots, snapshots, replay, kv_type, state_type };
    let runner = model.prepare(backend, limits, &mut |_, _| {}).unwrap();
    Engine::start(runner, EngineConfig { drafters, most_drafts: MOST, effort, ..EngineConfig::new(CONTEXT) })
}

pub(crate) fn prompt(number: usize, vocab: usize) -> Vec<u32> {
    let mut random = Random::new(number as u64 + 1);
    let length = 5 + 7 * number;
    std::iter::once(number as u32).chain((1..length).map(|_| random.below(vocab) as u32)).collect()
}

pub(crate) fn sampler(params: SamplerParams, vocab: usize) -> Sampler {
    Sampler::new(params, vocab, &[]).unwrap()
}

pub(crate) fn greedy(prompt: Vec<u32>, max_tokens: usize, vocab: usize) -> Request {
    Request { max_tokens, top_tokens: Some(2), ..Request::new(prompt, sampler(SamplerParams::greedy(), vocab)) }
}

/// All that is heard of a request, but for its timings; and its tokens.
pub(crate) fn hear(stream: &kvas::engine::Stream) -> (Vec<Event>, Vec<u32>, Timings) {
    let (mut events, mut tokens) = (Vec::new(), Vec::new());
    loop {
        match stream.next_event() {
            Event::Done(finish, timings) => {
                events.push(Event::Done(finish, Timings::default()));
                return (events, tokens, timings);
            }
            Event::Failed(what) => panic!("{what}"),
            event => {
                tokens.extend(if let Event::Token(token) = event { Some(token) } else { None });
                events.push(event);
            }
        }
    }
}

/// The answers to prompts that are asked all at once.
pub(crate) fn answers(engine: &EngineHandle, requests: Vec<Request>) -> Vec<(Vec<Event>, Vec<u32>, Timings)> {
    let streams: Vec<_> = requests.into_iter().map(|request| engine.submit(request)).collect();
    streams.iter().map(hear).collect()
}

pub(crate) fn texts(prompts: &[Vec<u32>], answers: &[(Vec<Event>, Vec<u32>, Timings)]) -> Vec<Vec<u32>> {
    prompts.iter().zip(answers).map(|(prompt, (_, tokens, _))| [&prompt[..], tokens].concat()).collect()
}

/// 300 greedy tokens of every model, with every number of right drafts.
#[test]
fn three_hundred_tokens_are_the_same_for_every_number_of_right_drafts() {
    for name in MODELS {
        let model = converted(&fixture(name), Quant::F32);
        let (vocab, prompts) = (model.spec.vocab, [prompt(3, model.spec.vocab)]);
        let ask = || vec![greedy(prompts[0].clone(), 300, vocab)];
        let plain = answers(&start(&model, vec![]), ask());
        assert_eq!(plain[0].1.len(), 300);
        for right in (0..=MOST).map(Right::Always).chain([Right::random()]) {
            let label = format!("{name}, {right:?}");
            let script = Script { texts: texts(&prompts, &plain), right: right.clone(), vocab: vocab as u32 };
            let found = answers(&start(&model, vec![Box::new(script)]), ask());
            let timings = found[0].2;
            assert!(timings.drafted_tokens >= 150, "{label}: {timings:?}");
            match right {
                Right::Always(0) => assert_eq!(timings.accepted_tokens, 0, "{label}"),
                Right::Always(MOST) => assert_eq!(timings.accepted_tokens, timings.drafted_tokens, "{label}"),
                Right::Always(_) | Right::Random(_) => assert!(timings.accepted_tokens > 50, "{label}: {timings:?}"),
            }
            assert_eq!(found[0].1, plain[0].1, "{label}");
            assert!(found[0].0 == plain[0].0, "{label}: the tokens are the same, their probabilities are not");
        }
    }
}

/// Ends an answer at a token, of which so many before it do not count.
#[derive(Debug)]
struct EndAt(u32, usize, usize);

impl StopRule for EndAt {
    fn push(&mut self, token: u32) -> Option<usize> {
        self.2 += 1;
        (token % self.0 == 1).then(|| self.2.saturating_sub(self.1))
    }
}

/// After an even token comes one of another third of the vocabulary than after an odd one; over after some tokens.
#[derive(Debug)]
pub(crate) struct Thirds {
    odd: u32,
    mask: Vec<u32>,
    left: usize,
}

impl Thirds {
    /// Over after so many tokens.
    pub(crate) fn new(left: usize) -> Self {
        Self { odd: 2, mask: Vec::new(), left }
    }
}

impl Constraint for Thirds {
    fn allowed(&mut self) -> Result<Allowed<'_>, String> {
        let odd = self.odd;
        let bits = |word: u32| (0..32).filter(|bit| (32 * word + bit) % 3 != odd).map(|bit| 1 << bit).sum();
        self.mask = (0..64).map(bits).collect();
        Ok(Allowed::Mask(&self.mask, &[]))
    }

    fn accept(&mut self, token: u32) -> bool {
        assert!(token % 3 != self.odd, "what was barred was chosen");
        (self.odd, self.left) = (token % 2, self.left - 1);
        self.left == 0
    }
}

/// Turns of a conversation: asked again, cut back, in other words; with stop rules, constraints, samplers and seeds.
fn talk(engine: &EngineHandle, vocab: usize, seed: u64) -> (Vec<Vec<Event>>, Vec<Vec<u32>>, [usize; 3]) {
    let (mut random, mut heard, mut texts, mut sums) = (Random::new(seed), Vec::new(), Vec::new(), [0; 3]);
    let id = engine.open().unwrap();
    let mut known: Vec<u32> = prompt(2, vocab);
    for turn in 0..24 {
        match random.below(5) {
            0 => known.truncate(known.len() - random.below(5.min(known.len()))),
            1 => known.truncate(known.len() / 2 + 1),
            2 if !texts.is_empty() => known = Vec::clone(&texts[random.below(texts.len())]),
            _ => known.extend((0..1 + random.below(9)).map(|_| random.below(vocab) as u32)),
        }
        known.truncate(CONTEXT - 60);
        let params = match random.below(4) {
            0 => SamplerParams { temperature: 1.0, seed: Some(turn), ..SamplerParams::default() },
            1 => SamplerParams {
                repeat_penalty: 1.3,
                presence_penalty: 0.4,
                seed: Some(turn),
                ..SamplerParams::default()
            },
            2 => SamplerParams { temperature: 0.9, mirostat: 2, seed: Some(turn), ..SamplerParams::default() },
            _ => SamplerParams::greedy(),
        };
        let mut request = Request {
            conversation: Some(id),
            max_tokens: 4 + random.below(40),
            top_tokens: Some(1),
            ..Request::new(known.clone(), sampler(params, vocab))
        };
        match random.below(4) {
            0 => request.rule = Some(Box::new(EndAt(7, random.below(4), 0))),
            1 => request.constraint = Some(Box::new(Thirds::new(3 + random.below(20)))),
            2 => request.stop_tokens = vec![3, 9, 27],
            _ => {}
        }
        let (events, tokens, timings) = hear(&engine.submit(request));
        known.extend(tokens);
        texts.push(known.clone());
        heard.push(events);
        sums = [sums[0] + timings.drafted_tokens, sums[1] + timings.accepted_tokens, sums[2] + timings.cached_tokens];
    }
    (heard, texts, sums)
}

/// Tokens only: what a sequence goes back to may be another position if rows were drafted behind it, and the same
/// tokens read from there differ in the last bits.
fn tokens_of(heard: &[Vec<Event>]) -> Vec<Vec<u32>> {
    let token = |event: &Event| if let Event::Token(token) = event { Some(*token) } else { None };
    heard.iter().map(|events| events.iter().filter_map(token).collect()).collect()
}

#[test]
fn turns_rules_constraints_and_samplers_in_between_change_nothing() {
    for name in ["qwen35", "nemotron_h", "falcon-h1", "lfm2", "llama"] {
        let model = converted(&fixture(name), Quant::F32);
        let vocab = model.spec.vocab;
        for seed in 0..4 {
            let (plain, texts, before) = talk(&start(&model, vec![]), vocab, seed);
            let script = Script { texts, right: Right::random(), vocab: vocab as u32 };
            let (found, _, sums) = talk(&start(&model, vec![Box::new(script)]), vocab, seed);
            assert_eq!(tokens_of(&found), tokens_of(&plain), "{name}, seed {seed}");
            assert!(sums[0] > 200 && sums[1] > 60 && before[0] == 0, "{name}: {sums:?}");
            assert!(sums[2] > 100, "{name}: prefixes were found, {sums:?}");
            // Whoever drafts, and when.
            let lookup: Vec<Box<dyn Drafter>> = vec![Box::new(Lookup::default())];
            let (found, ..) = talk(&start_with(&model, lookup, Effort::Measured), vocab, seed);
            assert_eq!(tokens_of(&found), tokens_of(&plain), "{name}, seed {seed}, with a lookup");
        }
    }
}

#[test]
fn a_request_chooses_who_drafts_and_how_much() {
    let model = converted(&fixture("qwen35"), Quant::F32);
    let vocab = model.spec.vocab;
    let prompts = [prompt(2, vocab)];
    let plain = answers(&start(&model, vec![]), vec![greedy(prompts[0].clone(), 40, vocab)]);
    let script = Script { texts: texts(&prompts, &plain), right: Right::Always(3), vocab: vocab as u32 };
    let engine = start(&model, vec![Box::new(script)]);
    let ask = |which, most| {
        let mut request = greedy(prompts[0].clone(), 40, vocab);
        (request.speculation.which, request.speculation.most) = (which, most);
        hear(&engine.submit(request)).2
    };
    assert_eq!(ask(DrafterChoice::Off, None).drafted_tokens, 0);
    assert_eq!(ask(DrafterChoice::Only(DrafterKind::Ngram), None).drafted_tokens, 0);
    assert_eq!(ask(DrafterChoice::Auto, Some(0)).drafted_tokens, 0);
    // Two tokens a step, of which one is drafted; the last is not.
    let one = ask(DrafterChoice::Only(DrafterKind::Draft), Some(1));
    assert!((18..=21).contains(&one.drafted_tokens) && one.accepted_tokens == one.drafted_tokens, "{one:?}");
    let all = ask(DrafterChoice::Auto, None);
    assert!(all.drafted_tokens > 25 && all.accepted_tokens == all.drafted_tokens, "{all:?}");
    let steps = engine.stats().unwrap().steps;
    let sum = (one.drafted_tokens + all.drafted_tokens) as u64;
    assert_eq!((steps.drafted, steps.accepted), (sum, sum));
}

/// Room for eight sequences of a model that drafts.
fn drafting_limits(page_stores: usize) -> Limits {
    let (page_size, slots, snapshots, kv_type, state_type) = (8, 9, 8, KvType::F32, StateType::F32);
    let pages = 1 + page_stores * 8 * (CONTEXT / 8 + 3);
    let replay = REPLAY;
    Limits { context: 0, rows: 48, outputs: 8, pages, page_size, slots, snapshots, replay, kv_type, state_type }
}

fn draft_model(name: &str) -> Box<dyn Drafter> {
    let model = converted(&fixture(name), Quant::F32);
    let limits = drafting_limits(model.program.page_stores());
    Box::new(DraftModel::new(model.prepare(Box::new(Cpu::new(1)), limits, &mut |_, _| {}).unwrap()))
}

#[test]
fn models_of_any_kind_draft_for_each_other() {
    for (name, draft) in [("qwen35", "qwen35"), ("qwen35", "lfm2"), ("llama", "mamba2"), ("nemotron_h", "falcon-h1")] {
        let model = converted(&fixture(name), Quant::F32);
        let vocab = model.spec.vocab;
        let prompts: Vec<_> = (0..5).map(|number| prompt(2 * number, vocab)).collect();
        let ask = || prompts.iter().map(|prompt| greedy(prompt.clone(), 50, vocab)).collect::<Vec<_>>();
        let engine = start(&model, vec![]);
        let plain: Vec<_> = ask().into_iter().map(|request| hear(&engine.submit(request))).collect();
        let found = answers(&start(&model, vec![draft_model(draft)]), ask());
        for (found, plain) in found.iter().zip(&plain) {
            assert!(found.0 == plain.0, "{name} with {draft}");
            let Timings { drafted_tokens, accepted_tokens, .. } = found.2;
            assert!(drafted_tokens > 25, "{name} with {draft}: {drafted_tokens}");
            // A model agrees with itself, whatever it had to take back.
            let agrees = 20 * accepted_tokens >= 19 * drafted_tokens;
            assert!(name != draft || agrees, "{accepted_tokens} of {drafted_tokens}");
        }
        // Prompts that go back to what was read, and on.
        let (plain, ..) = talk(&start(&model, vec![]), vocab, 3);
        let (found, _, sums) = talk(&start(&model, vec![draft_model(draft)]), vocab, 3);
        assert_eq!(tokens_of(&found), tokens_of(&plain), "{name} with {draft}");
        assert!(sums[0] > 100, "{name} with {draft}: {sums:?}");
    }
}

/// The head of the hybrid fixture; without the two halves of its layer it can be computed by hand.
fn head_model(has_layer: bool) -> Model {
    let change = |stem: &str, values: &mut [f32]| {
        let mut random = Random::new(stem.len() as u64);
        match stem {
            "nextn.eh_proj.weight" => values.iter_mut().for_each(|x| *x = random.below(200) as f32 / 100.0 - 1.0),
            "nextn.enorm.weight" => values.iter_mut().for_each(|x| *x = 1.0 + random.below(100) as f32 / 100.0),
            "nextn.hnorm.weight" => values.iter_mut().for_each(|x| *x = 0.5 + random.below(100) as f32 / 100.0),
            "attn_output.weight" | "ffn_down.weight" if !has_layer => values.fill(0.0),
            _ => {}
        }
    };
    with_prediction_head("", &change).unwrap()
}

fn head(model: &Model) -> PredictionHead {
    let (program, joined) = PredictionHead::program(model).unwrap();
    // Fewer rows than a chunk: whole chunks are rounded in another way.
    let limits = Limits { rows: 15, ..drafting_limits(1) };
    PredictionHead::new(model, (program, joined), Box::new(Cpu::new(1)), limits).unwrap()
}

fn tensor(model: &Model, name: &str) -> Vec<f64> {
    let info = model.file.tensor(name).unwrap();
    let data = model.file.data(info);
    data.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
}

fn normed(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, weight)| x * weight / (square + eps).sqrt()).collect()
}

fn product(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    matrix.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

/// What the head makes of a state after the last norm and of the token after it: its own state and its guess.
fn by_hand(model: &Model, state: &[f64], token: u32) -> (Vec<f64>, u32) {
    let (eps, width) = (f64::from(model.spec.norm_eps), model.spec.width);
    let of = |name: &str| tensor(model, name);
    let embedding = of("token_embd.weight")[token as usize * width..][..width].to_vec();
    let joined =
        [normed(&embedding, &of("blk.4.nextn.enorm.weight"), eps), normed(state, &of("blk.4.nextn.hnorm.weight"), eps)];
    let residual = product(&of("blk.4.nextn.eh_proj.weight"), &joined.concat());
    let own = normed(&residual, &of("output_norm.weight"), eps);
    let output = if model.spec.tied_output { "token_embd.weight" } else { "output.weight" };
    let logits = product(&of(output), &own);
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
    (own, best as u32)
}

#[test]
fn a_head_guesses_what_it_guesses_by_hand() {
    let model = head_model(false);
    let (mut head, width) = (head(&model), model.spec.width);
    let mut random = Random::new(3);
    let rows: Vec<f32> = (0..6 * width).map(|_| random.below(2000) as f32 / 500.0 - 2.0).collect();
    let tokens = [7, 30, 2, 77, 140, 9, 33];
    let id = SequenceId(0);
    assert_eq!(head.look(id, &tokens), None, "nothing was seen");
    head.saw(id, &tokens, 0, &rows).unwrap();
    assert_eq!(head.look(id, &tokens[..6]), None, "another token comes before the one it would guess");
    assert_eq!(head.look(id, &tokens), Some(Confidence::Model));
    let mut asked = [DraftRequest { id, tokens: &tokens, most: 4, drafts: vec![] }];
    head.draft(&mut asked).unwrap();
    let last: Vec<f64> = rows[5 * width..].iter().map(|x| f64::from(*x)).collect();
    let norm = tensor(&model, "output_norm.weight");
    let mut state = normed(&last, &norm, f64::from(model.spec.norm_eps));
    let (mut token, mut expected) = (tokens[6], Vec::new());
    for _ in 0..4 {
        (state, token) = by_hand(&model, &state, token);
        expected.push(token);
    }
    assert_eq!(asked[0].drafts, expected);
}

/// A text that is seen at once, token by token, and twice because the model went back.
#[test]
fn a_head_guesses_the_same_however_it_came_there() {
    let model = head_model(true);
    let (width, mut random) = (model.spec.width, Random::new(4));
    let tokens: Vec<u32> = (0..71).map(|_| random.below(500) as u32).collect();
    let rows: Vec<f32> = (0..70 * width).map(|_| random.below(2000) as f32 / 500.0 - 2.0).collect();
    let id = SequenceId(5);
    let draft = |head: &mut PredictionHead, tokens: &[u32]| {
        let mut asked = [DraftRequest { id, tokens, most: 5, drafts: vec![] }];
        head.draft(&mut asked).unwrap();
        std::mem::take(&mut asked[0].drafts)
    };
    let mut whole = head(&model);
    whole.saw(id, &tokens, 0, &rows).unwrap();
    let expected = draft(&mut whole, &tokens);
    assert_eq!(expected.len(), 5);
    let mut slowly = head(&model);
    for at in 0..70 {
        slowly.saw(id, &tokens[..at + 2], at, &rows[at * width..(at + 1) * width]).unwrap();
        if at % 3 == 0 && at < 69 {
            assert_eq!(draft(&mut slowly, &tokens[..at + 2]).len(), 5);
        }
    }
    assert_eq!(draft(&mut slowly, &tokens), expected);
    let mut back = head(&model);
    let other: Vec<u32> = tokens.iter().map(|token| token + 1).collect();
    back.saw(id, &other, 0, &rows[..50 * width]).unwrap();
    draft(&mut back, &other[..51]);
    back.saw(id, &tokens, 0, &rows[..66 * width]).unwrap();
    back.saw(id, &tokens, 66, &rows[66 * width..]).unwrap();
    assert_eq!(draft(&mut back, &tokens), expected);
    // Rows that it did not see: it goes on without them.
    back.saw(id, &tokens, 75, &rows[..width]).unwrap();
    assert_eq!(back.look(id, &[0; 77]), Some(Confidence::Model));
    back.forget(id);
    assert_eq!(back.look(id, &[0; 77]), None);
}

#[test]
fn answers_with_a_head_are_those_without() {
    let model = head_model(true);
    let vocab = model.spec.vocab;
    let prompts: Vec<_> = (0..6).map(|number| prompt(2 * number, vocab)).collect();
    let ask = || prompts.iter().map(|prompt| greedy(prompt.clone(), 80, vocab)).collect::<Vec<_>>();
    let engine = start(&model, vec![]);
    let plain: Vec<_> = ask().into_iter().map(|request| hear(&engine.submit(request))).collect();
    let found = answers(&start(&model, vec![Box::new(head(&model))]), ask());
    for (found, plain) in found.iter().zip(&plain) {
        assert!(found.0 == plain.0 && found.2.drafted_tokens > 60, "{:?}", found.2);
    }
    let (plain, ..) = talk(&start(&model, vec![]), vocab, 5);
    let (found, _, sums) = talk(&start(&model, vec![Box::new(head(&model))]), vocab, 5);
    assert_eq!(tokens_of(&found), tokens_of(&plain));
    assert!(sums[0] > 100, "{sums:?}");
}

/// The likeliest tokens of the model after a prompt, and their probabilities if only these are left.
fn distribution(engine: &EngineHandle, request: Request) -> Vec<(u32, f64)> {
    let events = hear(&engine.submit(request)).0;
    let of =
        |event: &Event| if let Event::Probabilities(found) = event { Some(found.top_tokens.clone()) } else { None };
    let top_tokens = events.iter().find_map(of).unwrap();
    let total: f64 = top_tokens.iter().map(|known| f64::from(known.probability)).sum();
    top_tokens.iter().map(|known| (known.token, f64::from(known.probability) / total)).collect()
}

/// How far counts are from what probabilities would give.
fn chi_square(counts: &[usize], expected: &[(u32, f64)]) -> f64 {
    let total: usize = counts.iter().sum();
    let squares = counts.iter().zip(expected).map(|(count, (_, probability))| {
        let expected = probability * total as f64;
        (*count as f64 - expected).powi(2) / expected
    });
    squares.sum()
}

/// Temperature 1: tokens are drawn from the distribution of the model, whatever was drafted.
#[test]
fn drafts_do_not_change_the_distribution() {
    const ANSWERS: usize = 3000;
    const KEPT: usize = 6;
    /// Of five degrees of freedom, one in a thousand is above.
    const MOST_SQUARES: f64 = 20.5;
    let model = converted(&fixture("qwen35"), Quant::F32);
    let (vocab, first) = (model.spec.vocab, prompt(2, model.spec.vocab));
    let ask = |prompt: &[u32], count: usize, seed: usize| {
        let params = SamplerParams {
            temperature: 1.0,
            top_k: KEPT as i32,
            top_p: 1.0,
            min_p: 0.0,
            seed: Some(seed as u64),
            ..SamplerParams::default()
        };
        let top_tokens = Some(KEPT);
        Request { max_tokens: count, top_tokens, ..Request::new(prompt.to_vec(), sampler(params, vocab)) }
    };
    // The drafter always proposes the likeliest token, and then the likeliest after that.
    let plain = start(&model, vec![]);
    let one = distribution(&plain, ask(&first, 1, 0));
    let two = distribution(&plain, ask(&[&first[..], &[one[0].0]].concat(), 1, 0));
    let three = distribution(&plain, ask(&[&first[..], &[one[0].0, two[0].0]].concat(), 1, 0));
    let texts = vec![[&first[..], &[one[0].0, two[0].0, three[0].0]].concat()];
    let script = Script { texts, right: Right::Always(MOST), vocab: vocab as u32 };
    let drafted = start(&model, vec![Box::new(script)]);
    let (mut counts, mut same, mut accepted) = ([[0usize; KEPT]; 3], 0, 0);
    for seed in 0..ANSWERS {
        let (_, tokens, timings) = hear(&drafted.submit(ask(&first, 3, seed)));
        accepted += timings.accepted_tokens;
        for ((counts, known), token) in counts.iter_mut().zip([&one, &two, &three]).zip(&tokens) {
            counts[known.iter().position(|known| known.0 == *token).unwrap()] += 1;
            if *token != known[0].0 {
                break;
            }
        }
        if seed % 10 == 0 {
            same += usize::from(hear(&plain.submit(ask(&first, 3, seed))).1 == tokens);
        }
    }
    assert_eq!(same, ANSWERS / 10, "equal seeds give equal answers");
    let squares: Vec<f64> = counts.iter().zip([&one, &two, &three]).map(|(c, of)| chi_square(c, of)).collect();
    println!("{accepted} drafts accepted, chi-square {squares:.1?} of {counts:?}");
    assert!(accepted > 200 && counts[1].iter().sum::<usize>() > 300, "{accepted} accepted, {counts:?}");
    assert!(squares[0] < MOST_SQUARES && squares[1] < MOST_SQUARES, "{squares:?} over {counts:?}");
}
