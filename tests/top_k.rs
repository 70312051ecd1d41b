//! A device that looks for the tokens that count, so that logits are not read, gives the answers of one that does not.

use crate::{
    golden::{converted, fixture},
    speculation::{Script, Thirds, hear, prompt, sampler},
    wrapped::{Countdown, Wrapped},
};
use kvas::{
    engine::{Engine, EngineConfig, EngineHandle, Event, PromptOutput, Reported, Request},
    model::Model,
    sampling::SamplerParams,
    speculation::{Drafter, Effort},
};
use kvas_backend::{KvType, Limits, Replay, StateType, conformance::Random};
use kvas_gguf::Quant;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

const CONTEXT: usize = 300;

/// An engine, and how many values it has read.
fn start(model: &Model, max_top_k: usize, drafters: Vec<Box<dyn Drafter>>) -> (EngineHandle, Arc<AtomicUsize>) {
    let (pages, replay) = (1 + model.program.page_stores() * 8 * (CONTEXT / 8 + 2), Replay::new(8, 4));
    let (page_size, slots, snapshots, kv_type, state_type) = (8, 9, 8, KvType::F16, StateType::F32);
    let limits =
        Limits { context: 0, rows: 64, outputs: 40, pages, page_size, slots, snapshots, replay, kv_type, state_type };
    let device = Wrapped::new(Countdown::default(), max_top_k);
    let read = device.values_read.clone();
    let runner = model.prepare(Box::new(device), limits, &mut |_, _| {}).unwrap();
    let config = EngineConfig { drafters, most_drafts: 3, effort: Effort::Most, ..EngineConfig::new(CONTEXT) };
    (Engine::start(runner, config), read)
}

/// Requests in every way that a device can serve.
fn requests(vocab: usize) -> Vec<Request> {
    let mut random = Random::new(3);
    (0..8)
        .map(|number| {
            let mut params = SamplerParams { seed: Some(number as u64), top_k: 12, ..SamplerParams::default() };
            let mut request = |params: SamplerParams| Request {
                max_tokens: 24,
                ..Request::new(prompt(1 + random.below(4), vocab), sampler(params, vocab))
            };
            match number {
                0 => request(SamplerParams::greedy()),
                1 => Request { top_tokens: Some(3), reported: Reported::Drawn, ..request(params) },
                2 => {
                    (params.repeat_penalty, params.presence_penalty) = (1.4, 1.0);
                    params.logit_bias = vec![(3, 4.0), (5, f32::NEG_INFINITY), (5, 1.0), (8, -2.0)];
                    request(params)
                }
                3 => {
                    (params.dry_multiplier, params.dry_allowed_length) = (1.5, 1);
                    request(params)
                }
                4 => Request { constraint: Some(Box::new(Thirds::new(20))), ..request(params) },
                5 => {
                    params.frequency_penalty = 0.7;
                    let constraint = Some(Box::new(Thirds::new(23)) as _);
                    Request {
                        constraint,
                        min_tokens: 9,
                        stop_tokens: (0..vocab as u32 / 2).collect(),
                        ..request(params)
                    }
                }
                6 => Request { top_tokens: Some(5), reported: Reported::Model, ..request(params) },
                _ => Request { score: Some(PromptOutput::Probabilities(2)), ..request(params) },
            }
        })
        .collect()
}

/// What is heard, probabilities apart: those of the model are sums in another precision.
fn heard(engine: &EngineHandle, requests: Vec<Request>) -> Vec<(Vec<Event>, Vec<f32>)> {
    let streams: Vec<_> = requests.into_iter().map(|request| engine.submit(request)).collect();
    streams.iter().map(|stream| apart(hear(stream).0)).collect()
}

fn apart(mut events: Vec<Event>) -> (Vec<Event>, Vec<f32>) {
    let mut values = Vec::new();
    for event in &mut events {
        if let Event::Probabilities(found) | Event::OfPrompt(found) = event {
            // Only who has all logits can count those that are likelier.
            found.likelier = None;
            for one in std::iter::once(&mut found.chosen).chain(&mut found.top_tokens) {
                values.extend([one.probability, one.log_probability]);
                (one.probability, one.log_probability) = (0.0, 0.0);
            }
        }
    }
    (events, values)
}

/// Texts that answers follow.
fn texts(requests: &[Request], heard: &[(Vec<Event>, Vec<f32>)]) -> Vec<Vec<u32>> {
    let tokens = |events: &[Event]| -> Vec<u32> {
        events.iter().filter_map(|event| if let Event::Token(token) = event { Some(*token) } else { None }).collect()
    };
    requests.iter().zip(heard).map(|(request, heard)| [request.prompt.clone(), tokens(&heard.0)].concat()).collect()
}

#[test]
fn what_a_device_looks_for_itself_gives_the_same_answers() {
    for name in ["qwen35", "llama"] {
        let model = converted(&fixture(name), Quant::F32);
        let vocab = model.spec.vocab;
        let expected = heard(&start(&model, 0, vec![]).0, requests(vocab));
        let texts = texts(&requests(vocab), &expected);
        for (max_top_k, drafts, reads) in [(128, false, false), (128, true, true), (4, false, true), (4, true, true)] {
            let script = drafts.then(|| Box::new(Script::random(texts.clone(), vocab)) as Box<dyn Drafter>);
            let (engine, read) = start(&model, max_top_k, script.into_iter().collect());
            let found = heard(&engine, requests(vocab));
            for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let label = format!("{name}, request {number}, {max_top_k} tokens, drafts {drafts}");
                assert_eq!(found.0, expected.0, "{label}");
                let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-6 * a.abs().max(1.0);
                assert!(found.1.len() == expected.1.len(), "{label}");
                assert!(found.1.iter().zip(&expected.1).all(is_close), "{label}: {:?} {:?}", found.1, expected.1);
            }
            // Logits are needed where more tokens are wanted than are looked for, and behind drafts for what may follow them.
            let values = read.load(Ordering::SeqCst);
            assert_eq!(values > 0, reads, "{name}, {max_top_k} tokens, drafts {drafts}: {values} values were read");
        }
    }
}
