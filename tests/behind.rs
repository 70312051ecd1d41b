//! A device that is still at work when it has been asked for a step: meanwhile everybody is told of the step before.

use crate::{
    golden::{converted, fixture},
    simulation::request,
    speculation::Script,
    wrapped::{Countdown, Wrapped},
};
use kvas::{
    engine::{Engine, EngineConfig, EngineHandle, Event, Request},
    model::Model,
    scheduler::Finish,
    speculation::{Drafter, Lookup},
};
use kvas_backend::{KvType, Limits, Replay, StateType};
use kvas_gguf::Quant;
use std::sync::{Arc, Mutex, mpsc};

const CONTEXT: usize = 200;

type Log = Arc<Mutex<Vec<String>>>;

fn engine(model: &Model, runs_behind: bool, drafters: Vec<Box<dyn Drafter>>) -> (EngineHandle, Log) {
    let (pages, replay, kv_type) = (1 + model.program.page_stores() * 100, Replay::new(8, 4), KvType::F32);
    let (page_size, slots, snapshots, state_type) = (8, 5, 4, StateType::F32);
    let limits =
        Limits { context: 0, rows: 32, outputs: 5, pages, page_size, slots, snapshots, replay, kv_type, state_type };
    let (mut device, log) = (Wrapped::new(Countdown::default(), 0), Log::default());
    device.runs_behind = runs_behind;
    let noted = log.clone();
    device.watch = Box::new(move |what| noted.lock().unwrap().push(what.into()));
    let runner = model.prepare(Box::new(device), limits, &mut |_, _| {}).unwrap();
    log.lock().unwrap().clear();
    (Engine::start(runner, EngineConfig { drafters, ..EngineConfig::new(CONTEXT) }), log)
}

/// Every event of a request, noted as it is told, and whether it is the last.
fn noting(log: &Log, ended: mpsc::Sender<()>) -> Box<dyn FnMut(Event) -> bool + Send> {
    let log = log.clone();
    Box::new(move |event| {
        let what = match event {
            Event::Token(token) => format!("token {token}"),
            Event::Probabilities(probabilities) => format!("{:?}", probabilities.chosen),
            Event::Done(finish, timings) => format!("{finish:?} after {}", timings.generated_tokens),
            other => format!("{other:?}"),
        };
        let is_over = what.contains("after") || what.contains("Failed");
        log.lock().unwrap().push(what);
        !is_over || ended.send(()).is_ok()
    })
}

#[test]
fn tokens_are_told_while_the_next_step_runs() {
    let model = converted(&fixture("qwen35"), Quant::F32);
    // A model that drafts has the device compute before the next step: nobody waits for it.
    let script = || Box::new(Script::random(vec![], model.spec.vocab)) as Box<dyn Drafter>;
    for (runs_behind, drafters, is_late) in [
        (false, vec![], false),
        (true, vec![], true),
        (true, vec![Box::new(Lookup::default()) as Box<dyn Drafter>], true),
        (true, vec![script()], false),
    ] {
        let (engine, log) = engine(&model, runs_behind, drafters);
        let (ended, end) = mpsc::channel();
        let _cancel = engine.submit_to(request(None, &[3, 4, 5], 3, model.spec.vocab), noting(&log, ended));
        end.recv().unwrap();
        let found: Vec<_> = log.lock().unwrap().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        // The last token of a prompt is read by itself, and what comes before it has no outputs: nobody waits for that.
        let expected = if is_late {
            "asked asked awaited asked token awaited asked token awaited token Length"
        } else {
            "asked asked awaited token asked awaited token asked awaited token Length"
        };
        assert_eq!(found.join(" "), expected, "behind: {runs_behind}, late: {is_late}");
    }
}

#[test]
fn everybody_hears_the_same_of_a_device_that_is_behind() {
    let model = converted(&fixture("granitehybrid"), Quant::F32);
    let hear = |runs_behind: bool| {
        let (engine, _) = engine(&model, runs_behind, vec![]);
        let asked = (0..4u32).map(|number| {
            let prompt: Vec<_> = (0..5 + 20 * number).map(|at| 3 + (at * 7 + number) % 40).collect();
            let plain = request(None, &prompt, 6 + 5 * number as usize, model.spec.vocab);
            let (log, (ended, end)) = (Log::default(), mpsc::channel());
            let request = Request { top_tokens: (number % 2 == 1).then_some(2), ..plain };
            (engine.submit_to(request, noting(&log, ended)), log, end)
        });
        let asked: Vec<_> = asked.collect();
        let logs = asked.into_iter().map(|(_cancel, log, end)| {
            end.recv().unwrap();
            log.lock().unwrap().clone()
        });
        logs.collect::<Vec<_>>()
    };
    assert_eq!(hear(true), hear(false));
}

/// Who no longer listens is noticed when the next token is told.
#[test]
fn a_request_ends_when_nobody_listens() {
    let model = converted(&fixture("llama"), Quant::F32);
    for runs_behind in [false, true] {
        let (engine, _) = engine(&model, runs_behind, vec![]);
        let talk = engine.open().unwrap();
        let mut heard = 0;
        let listens = move |event| {
            heard += usize::from(matches!(event, Event::Token(_)));
            heard < 2
        };
        let _cancel = engine.submit_to(request(Some(talk), &[3, 4, 5], 100, model.spec.vocab), Box::new(listens));
        // Only one request at a time is taken.
        let again = || engine.submit(request(Some(talk), &[3, 4, 5], 1, model.spec.vocab));
        let finish = loop {
            match crate::simulation::hear(&again()) {
                Ok((_, finish, _)) => break finish,
                Err(_) => std::thread::yield_now(),
            }
        };
        let steps = engine.stats().unwrap().steps;
        assert!(steps.answers <= 6, "{} steps after the second token", steps.answers);
        assert_eq!(finish, Finish::Length);
    }
}
