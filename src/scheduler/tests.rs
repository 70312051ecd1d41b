//! Plans without a device.

use super::*;
use kvas_backend::{
    Act, Limits, Program, Replay, StoreDecl,
    store::{ConvDecl, PageLayout, PagesDecl, Policy},
};

fn limits(rows: usize, pages: usize) -> Limits {
    let (replay, kv_type, state_type) = (Replay::OFF, Default::default(), Default::default());
    Limits { context: 0, rows, outputs: 8, pages, page_size: 4, slots: 9, snapshots: 4, replay, kv_type, state_type }
}

fn memory(pages: usize) -> Memory {
    let pages_decl =
        PagesDecl { kv_heads: 1, key_dim: 1, value_dim: 1, layout: PageLayout::Separate, policy: Policy::Full };
    let stores = vec![StoreDecl::Pages(pages_decl), StoreDecl::Conv(ConvDecl { channels: 1, taps: 2 })];
    let program = Program { ops: vec![], acts: vec![], weights: vec![], stores, logits: Act(0) };
    Memory::new(&program, &limits(8, pages))
}

fn running(seal_at: u32) -> Running {
    Running {
        cache: Cache::Use,
        outputs: Outputs::Last,
        max_tokens: 3,
        context: 100,
        stop: vec![99],
        generated: 0,
        seals: vec![seal_at],
        seal_every: 0,
        segments: None,
        joins: true,
    }
}

fn open(scheduler: &mut Scheduler, memory: &mut Memory) -> SequenceId {
    let (id, _) = memory.open().unwrap();
    scheduler.add(id);
    id
}

/// Runs the plan, "sampling" the given token wherever one is wanted.
fn step(scheduler: &mut Scheduler, memory: &mut Memory, token: u32) -> Vec<(SequenceId, u32, Option<Finish>)> {
    while let Some(id) = scheduler.arrived(memory) {
        scheduler.follow(memory, (id, 0));
    }
    let plan = scheduler.plan(memory, u32::MAX);
    let mut done = Vec::new();
    for span in &plan.spans {
        scheduler.commit(memory, (span, span.rows));
        let finish = (span.outputs == Outputs::Last).then(|| scheduler.sampled(span.id, token)).flatten();
        done.push((span.id, span.rows, finish));
        if finish.is_some() {
            scheduler.end(memory, span.id);
        }
    }
    memory.check_integrity();
    done
}

#[test]
fn decodes_go_first_and_prompts_fill_the_rest() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(8, 60)), memory(60));
    let (a, b) = (open(&mut scheduler, &mut memory), open(&mut scheduler, &mut memory));
    scheduler.begin(&mut memory, (a, 0), vec![1, 2], running(0));
    assert_eq!(step(&mut scheduler, &mut memory, 5), [(a, 2, None)]);
    scheduler.begin(&mut memory, (b, 0), (0..20).collect(), running(0));
    assert_eq!(step(&mut scheduler, &mut memory, 5), [(a, 1, None), (b, 7, None)]);
    assert_eq!(step(&mut scheduler, &mut memory, 5), [(a, 1, Some(Finish::Length)), (b, 7, None)]);
    assert_eq!(step(&mut scheduler, &mut memory, 99), [(b, 6, Some(Finish::Stop))]);
    assert!(scheduler.plan(&mut memory, u32::MAX).spans.is_empty());
}

#[test]
fn the_second_turn_reads_only_what_is_new() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(64, 60)), memory(60));
    let a = open(&mut scheduler, &mut memory);
    let prompt: Vec<u32> = (0..10).collect();
    scheduler.begin(&mut memory, (a, 0), prompt.clone(), running(9));
    assert_eq!(step(&mut scheduler, &mut memory, 50), [(a, 9, None)]);
    assert_eq!(step(&mut scheduler, &mut memory, 50), [(a, 1, None)]);
    assert_eq!(step(&mut scheduler, &mut memory, 99), [(a, 1, Some(Finish::Stop))]);
    // The stop token itself is not committed: nobody needed its logits.
    let next: Vec<u32> = scheduler.get(a).tokens.iter().copied().chain([60, 61]).collect();
    assert_eq!(scheduler.begin(&mut memory, (a, 0), next, running(13)).cached, 11);
    scheduler.end(&mut memory, a);
    // Generating the first answer again costs one token; a parting within the prompt has nothing to go back to.
    assert_eq!(scheduler.begin(&mut memory, (a, 0), prompt, running(9)).cached, 9);
    scheduler.end(&mut memory, a);
    assert_eq!(scheduler.begin(&mut memory, (a, 0), vec![0, 1, 7, 7], running(0)).cached, 0);
}

#[test]
fn long_prompts_are_remembered_on_the_way() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(64, 200)), memory(200));
    let a = open(&mut scheduler, &mut memory);
    let prompt: Vec<u32> = (0..30).collect();
    let seal_every = 8;
    scheduler.begin(&mut memory, (a, 0), prompt.clone(), Running { seal_every, ..running(29) });
    let rows: Vec<u32> = (0..5).map(|_| step(&mut scheduler, &mut memory, 50)[0].1).collect();
    assert_eq!(rows, [8, 8, 8, 5, 1]);
    // Four fit: the first gave way to the last.
    assert_eq!(memory.kept(&prompt), [8, 16, 24, 29]);
}

/// Where others part from a prompt is remembered, and decides nothing about how the prompt is read: it is cut at whole chunks all the same.
#[test]
fn what_others_have_read_does_not_decide_how_a_prompt_is_cut() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(64, 400)), memory(400));
    let prompt: Vec<u32> = (0..100).collect();
    for (parted, cuts) in [
        (10, [20, 84, 99, 100]),
        (35, [20, 84, 99, 100]),
        (37, [20, 36, 99, 100]),
        (60, [20, 52, 99, 100]),
        (98, [20, 84, 99, 100]),
    ] {
        let [other, asked] = [(); 2].map(|()| open(&mut scheduler, &mut memory));
        let others: Vec<u32> = prompt[..parted].iter().copied().chain([200, 201]).collect();
        scheduler.begin(&mut memory, (other, 0), others, running(0));
        while scheduler.get(other).running.is_some() {
            step(&mut scheduler, &mut memory, 99);
        }
        let seals = vec![20, 99];
        let reuse = scheduler.begin(&mut memory, (asked, 0), prompt.clone(), Running { seals, ..running(0) });
        assert_eq!(reuse.cached, 0, "no snapshot before where they part");
        let found = [(); 4].map(|()| {
            step(&mut scheduler, &mut memory, 99);
            memory.committed(asked)
        });
        assert_eq!(found, cuts, "others part at {parted}");
        (scheduler, memory) = (Scheduler::new(&limits(64, 400)), self::memory(400));
    }
}

/// A prompt that is kept as inputs is read whole; how one that is not begins does not depend on who else is read.
#[test]
fn what_a_step_has_left_does_not_decide_what_is_kept_as_inputs() {
    let limits = Limits { replay: Replay::new(8, 4).with_fresh(40), ..limits(64, 200) };
    let (mut scheduler, mut memory) = (Scheduler::new(&limits), memory(200));
    let ids: Vec<SequenceId> = (0..3).map(|_| open(&mut scheduler, &mut memory)).collect();
    for (id, length) in ids.iter().zip([22, 60, 38]) {
        scheduler.begin(&mut memory, (*id, 0), vec![length; length as usize], running(length - 1));
    }
    // 42 are left for 60, of which 32 would stay inputs.
    assert_eq!(step(&mut scheduler, &mut memory, 50), [(ids[0], 22, None), (ids[2], 38, None)]);
    assert_eq!(step(&mut scheduler, &mut memory, 50), [(ids[0], 1, None), (ids[2], 1, None), (ids[1], 59, None)]);
    assert!(memory.kept(&[22; 22]).is_empty(), "no snapshot of what has no state");
    // 26 are left for 39, all of which stay inputs.
    let ids = [open(&mut scheduler, &mut memory), open(&mut scheduler, &mut memory)];
    for (id, length) in ids.iter().zip([38, 39]) {
        scheduler.begin(&mut memory, (*id, 0), vec![length; length as usize], running(length - 1));
    }
    let taken: Vec<_> = (0..2).map(|_| step(&mut scheduler, &mut memory, 50)).collect();
    let of = |id: SequenceId| taken.iter().flatten().filter(|(one, ..)| *one == id).map(|(_, rows, _)| *rows).collect();
    let rows: [Vec<u32>; 2] = ids.map(of);
    assert_eq!(rows, [vec![38, 1], vec![39]]);
}

/// Drafts of many take all of a step but for what a prompt needs to go on.
#[test]
fn drafts_leave_room_for_prompts() {
    let limits = Limits { replay: Replay::new(8, 4).with_fresh(20), outputs: 64, ..limits(64, 200) };
    let (mut scheduler, mut memory) = (Scheduler::new(&limits), memory(200));
    let ids: Vec<SequenceId> = (0..3).map(|_| open(&mut scheduler, &mut memory)).collect();
    for id in &ids {
        scheduler.begin(&mut memory, (*id, 0), vec![1, 2], running(1));
    }
    step(&mut scheduler, &mut memory, 50);
    let late = open(&mut scheduler, &mut memory);
    scheduler.begin(&mut memory, (late, 0), vec![3; 17], running(16));
    ids.iter().for_each(|id| scheduler.propose(*id, vec![50; 20]));
    let plan = scheduler.plan(&mut memory, u32::MAX);
    let drafts: u32 = plan.spans.iter().map(|span| span.drafts).sum();
    let rows: u32 = plan.spans.iter().filter(|span| span.id == late).map(|span| span.rows).sum();
    assert_eq!((drafts, rows), (64 - 3 - 48, 16));
}

/// Of a prompt that is looked at whole a step has room for a part only, also where inputs are kept that would else come together:
/// it is read all the same, beside others cut at the same chunks, and their drafts leave room for it.
#[test]
fn a_prompt_that_is_looked_at_whole_is_read_though_its_inputs_are_kept() {
    let limits = Limits { replay: Replay::new(8, 4).with_fresh(40), outputs: 24, ..limits(128, 400) };
    let long = |outputs| Running { outputs, cache: Cache::Ignore, max_tokens: 60, ..running(0) };
    for (outputs, beside, expected) in [
        (Outputs::All, 0, vec![16, 16, 16, 22]),
        (Outputs::All, 3, vec![16, 16, 16, 16, 6]),
        (Outputs::Last, 3, vec![70]),
    ] {
        let (mut scheduler, mut memory) = (Scheduler::new(&limits), memory(400));
        let others: Vec<SequenceId> = (0..beside).map(|_| open(&mut scheduler, &mut memory)).collect();
        for id in &others {
            scheduler.begin(&mut memory, (*id, 0), vec![1, 2], long(Outputs::Last));
        }
        step(&mut scheduler, &mut memory, 50);
        let id = open(&mut scheduler, &mut memory);
        scheduler.begin(&mut memory, (id, 0), (0..70).collect(), long(outputs));
        let mut read = Vec::new();
        for _ in 0..expected.len() {
            others.iter().for_each(|id| scheduler.propose(*id, vec![50; 20]));
            for span in scheduler.plan(&mut memory, u32::MAX).spans {
                scheduler.commit(&mut memory, (&span, span.rows - span.drafts));
                if span.id == id {
                    read.push(span.rows);
                } else {
                    scheduler.sampled(span.id, 50);
                }
            }
        }
        assert_eq!(read, expected, "{outputs:?} beside {beside}");
    }
}

/// Where answers have as many rows as a step has, a prompt would wait until they are over: they take turns beside it.
#[test]
fn answers_that_fill_a_step_leave_a_prompt_its_part() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(8, 200)).with_grain(2), memory(200));
    let ids: Vec<SequenceId> = (0..7).map(|_| open(&mut scheduler, &mut memory)).collect();
    for (id, first) in ids.iter().zip(0..) {
        scheduler.begin(&mut memory, (*id, 0), vec![first, 70], Running { max_tokens: 60, ..running(0) });
    }
    (0..5).for_each(|_| drop(step(&mut scheduler, &mut memory, 50)));
    let late = open(&mut scheduler, &mut memory);
    scheduler.begin(&mut memory, (late, 0), (0..40).collect(), running(0));
    let steps: Vec<_> = (0..7).flat_map(|_| step(&mut scheduler, &mut memory, 50)).collect();
    let read = |id: &SequenceId| steps.iter().filter(|(of, ..)| of == id).map(|(_, rows, _)| rows).sum::<u32>();
    assert_eq!((read(&late), ids.iter().map(read).collect::<Vec<_>>()), (14, vec![6; 7]));
}

/// With one row a step is an answer's or a prompt's, one after the other; who has his turn and finds no room leaves it to the others.
#[test]
fn answers_and_prompts_take_turns_in_steps_of_one_row() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(1, 60)), memory(60));
    let ids: Vec<SequenceId> = (0..2).map(|_| open(&mut scheduler, &mut memory)).collect();
    for id in &ids {
        scheduler.begin(&mut memory, (*id, 0), vec![id.0], Running { max_tokens: 60, ..running(0) });
    }
    let late = open(&mut scheduler, &mut memory);
    scheduler.begin(&mut memory, (late, 0), (0..40).collect(), Running { max_tokens: 60, ..running(0) });
    let read = |steps: &[(SequenceId, u32, Option<Finish>)], of: SequenceId| {
        steps.iter().filter(|(id, ..)| *id == of).map(|(_, rows, _)| rows).sum::<u32>()
    };
    for _ in 0..5 {
        let steps: Vec<_> = (0..30).flat_map(|_| step(&mut scheduler, &mut memory, 50)).collect();
        assert_eq!([ids[0], ids[1], late].map(|id| read(&steps, id)), [10, 10, 10]);
    }
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(1, 3)), self::memory(3));
    let [old, young] = [(); 2].map(|()| open(&mut scheduler, &mut memory));
    scheduler.begin(&mut memory, (old, 0), vec![1], Running { max_tokens: 6, ..running(0) });
    scheduler.begin(&mut memory, (young, 0), (0..12).collect(), running(0));
    for _ in 0..14 {
        let plan = scheduler.plan(&mut memory, u32::MAX);
        let running = scheduler.get(old).running.is_some();
        assert!(plan.starved.is_none() || !running, "{:?}", plan.starved);
        for span in plan.spans.iter().filter(|_| running) {
            scheduler.commit(&mut memory, (span, span.rows));
            if span.outputs == Outputs::Last && scheduler.sampled(span.id, 50).is_some() {
                scheduler.end(&mut memory, span.id);
            }
        }
    }
    assert!(scheduler.get(old).running.is_none());
}

/// Who drafts is told how many drafts a step has room for: what is more was drafted in vain.
#[test]
fn no_more_is_drafted_than_a_step_has_room_for() {
    for (rows, prompt, expected) in
        [(64, false, 32 - 3), (16, false, 13), (3, false, 0), (64, true, 64 - 3 - 48), (48, true, 0)]
    {
        let limits = Limits { replay: Replay::new(8, 4).with_fresh(20), outputs: 32, ..limits(rows, 200) };
        let (mut scheduler, mut memory) = (Scheduler::new(&limits), memory(200));
        let ids: Vec<SequenceId> = (0..3).map(|_| open(&mut scheduler, &mut memory)).collect();
        for id in &ids {
            scheduler.begin(&mut memory, (*id, 0), vec![1], running(0));
        }
        step(&mut scheduler, &mut memory, 50);
        if prompt {
            let late = open(&mut scheduler, &mut memory);
            scheduler.begin(&mut memory, (late, 0), vec![3; 17], running(16));
        }
        assert_eq!(scheduler.room_for_drafts(&memory), expected, "{rows} {prompt}");
        ids.iter().for_each(|id| scheduler.propose(*id, vec![50; 20]));
        let plan = scheduler.plan(&mut memory, u32::MAX);
        assert_eq!(plan.spans.iter().map(|span| span.drafts as usize).sum::<usize>(), expected, "{rows} {prompt}");
    }
}

/// Single tokens of a prompt, the last one too, go with the decodes of others; only the last one is answered.
#[test]
fn a_single_token_of_a_prompt_is_no_decode() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(64, 60)), memory(60));
    let a = open(&mut scheduler, &mut memory);
    scheduler.begin(&mut memory, (a, 0), (0..10).collect(), Running { seals: vec![8, 9], ..running(0) });
    for (rows, generated) in [(8, 0), (1, 0), (1, 1), (1, 2)] {
        assert_eq!(step(&mut scheduler, &mut memory, 50), [(a, rows, None)]);
        let running = scheduler.get(a).running.as_ref().unwrap();
        assert_eq!((running.generated, scheduler.get(a).tokens.len()), (generated, 10 + generated));
    }
}

#[test]
fn a_sequence_that_nobody_can_help_is_reported() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(64, 3)), memory(3));
    let a = open(&mut scheduler, &mut memory);
    scheduler.begin(&mut memory, (a, 0), (0..20).collect(), running(0));
    let plan = scheduler.plan(&mut memory, u32::MAX);
    assert_eq!(plan.starved, Some((a, Full::Pages { needed: 5, free: 2, total: 2 })));
}

/// Two answers that do not fit beside each other: the younger one makes room and goes on when there is room again.
#[test]
fn the_younger_one_makes_room_and_goes_on() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(64, 9)), memory(9));
    let (a, b) = (open(&mut scheduler, &mut memory), open(&mut scheduler, &mut memory));
    let running = |max_tokens| Running { max_tokens, ..running(0) };
    scheduler.begin(&mut memory, (a, 0), (0..14).collect(), running(8));
    scheduler.begin(&mut memory, (b, 0), (20..34).collect(), running(8));
    let (mut done, mut steps) = (Vec::new(), 0);
    while done.len() < 2 {
        steps += 1;
        assert!(steps < 100, "no progress");
        while let Some(id) = scheduler.resumable(&memory) {
            scheduler.resume(&mut memory, id);
        }
        assert!(scheduler.plan(&mut memory, u32::MAX).starved.is_none());
        for (id, _, over) in step(&mut scheduler, &mut memory, 50) {
            if over.is_some() {
                assert_eq!(scheduler.get(id).tokens.len(), 14 + 8, "every token was generated");
                done.push(id);
            }
        }
        let paused = [a, b].map(|id| scheduler.get(id).paused);
        assert!(!paused[0], "the older one never makes room");
    }
    assert_eq!(done, [a, b]);
}

/// Who made room for an older request goes on when that is over: neither what began meanwhile nor what is idle keeps it waiting.
#[test]
fn who_made_room_does_not_wait_for_younger_requests() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(512, 201)), memory(201));
    let [a, b, c] = [(); 3].map(|()| open(&mut scheduler, &mut memory));
    let running = || Running { max_tokens: 1000, context: 1000, seals: vec![], ..running(0) };
    let prompt = |from: u32, length: u32| (from..from + length).collect::<Vec<u32>>();
    scheduler.begin(&mut memory, (a, 0), prompt(1000, 400), running());
    scheduler.begin(&mut memory, (b, 0), prompt(2000, 360), running());
    while !scheduler.get(b).paused {
        step(&mut scheduler, &mut memory, 50);
    }
    assert_eq!(scheduler.resumable(&memory), None);
    scheduler.begin(&mut memory, (c, 0), prompt(3000, 300), running());
    step(&mut scheduler, &mut memory, 50);
    assert_eq!((memory.committed(c), scheduler.resumable(&memory)), (300, None));
    scheduler.end(&mut memory, a);
    assert_eq!((memory.committed(a) > 400, scheduler.resumable(&memory)), (true, Some(b)));
    scheduler.resume(&mut memory, b);
    step(&mut scheduler, &mut memory, 50);
    step(&mut scheduler, &mut memory, 50);
    assert_eq!([a, b, c].map(|id| scheduler.get(id).paused), [false; 3]);
    assert!(memory.committed(a) == 0 && memory.committed(b) > 360 && memory.committed(c) > 300);
}

/// Who made room reads its prompt first, then its answer, as much at once as it may and others leave.
#[test]
fn an_answer_is_read_again_apart_from_its_prompt_and_beside_others() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(4, 120)), memory(120));
    let [a, b, c] = [(); 3].map(|()| open(&mut scheduler, &mut memory));
    for id in [a, b, c] {
        let running = Running { max_tokens: 100, context: 1000, seals: vec![], ..running(0) };
        scheduler.begin(&mut memory, (id, 0), vec![id.0, 2, 3], running);
    }
    while scheduler.get(c).tokens.len() < 10 {
        step(&mut scheduler, &mut memory, 50);
    }
    assert!(scheduler.make_room(&mut memory, a).is_some() && scheduler.get(c).paused);
    scheduler.resume(&mut memory, c);
    assert!(scheduler.rereading(&memory).is_empty(), "it begins with the prompt");
    let mut read = Vec::new();
    while scheduler.get(c).tokens.len() == 10 {
        scheduler.rereading(&memory).into_iter().for_each(|id| scheduler.allow(id, 15));
        let spans = step(&mut scheduler, &mut memory, 50);
        assert!([a, b].iter().all(|id| spans.iter().any(|span| (span.0, span.1) == (*id, 1))), "{spans:?}");
        read.extend(spans.iter().filter(|span| span.0 == c).map(|span| span.1));
    }
    assert_eq!(read, [2, 1, 2, 2, 2, 1]);
}

/// What an idle sequence holds is nobody's claim.
#[test]
fn idle_sequences_make_room_first() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(64, 9)), memory(9));
    let (a, b) = (open(&mut scheduler, &mut memory), open(&mut scheduler, &mut memory));
    scheduler.begin(&mut memory, (a, 0), (0..24).collect(), running(0));
    step(&mut scheduler, &mut memory, 99);
    scheduler.begin(&mut memory, (b, 0), (30..54).collect(), running(0));
    assert_eq!(step(&mut scheduler, &mut memory, 99), [(b, 24, Some(Finish::Stop))]);
    assert_eq!((memory.committed(a), scheduler.get(a).tokens.len()), (0, 0));
}

/// Whoever waits for the next token of an answer waits for a bounded part of a prompt only.
#[test]
fn prompts_are_read_in_small_parts_beside_answers() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(512, 200)), memory(200));
    let (a, b) = (open(&mut scheduler, &mut memory), open(&mut scheduler, &mut memory));
    scheduler.begin(&mut memory, (b, 0), (0..300).collect(), Running { context: 500, ..running(0) });
    assert_eq!(scheduler.plan(&mut memory, 48).spans[0].rows, 300, "nobody waits");
    scheduler.begin(&mut memory, (a, 0), vec![1], running(0));
    let rows: Vec<u32> = scheduler.plan(&mut memory, 48).spans.iter().map(|span| span.rows).collect();
    assert_eq!(rows, [1, 48]);
}

/// A short prompt is read before a long one, but it takes nothing from an older request.
#[test]
fn nobody_makes_room_for_a_younger_one() {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(48, 13)), memory(13));
    let [a, b, c] = [(); 3].map(|()| open(&mut scheduler, &mut memory));
    let begin = |scheduler: &mut Scheduler, memory: &mut Memory, id, length: u32| {
        let prompt = (0..length).map(|token| token + 100 * (length + 1)).collect();
        scheduler.begin(memory, (id, 0), prompt, Running { context: 500, seals: vec![], ..running(0) });
    };
    begin(&mut scheduler, &mut memory, b, 44);
    step(&mut scheduler, &mut memory, 50);
    // One page is left; the younger prompt wants two.
    begin(&mut scheduler, &mut memory, c, 8);
    assert_eq!(step(&mut scheduler, &mut memory, 50), [(b, 1, None)]);
    assert_eq!((memory.committed(b), scheduler.get(b).paused), (45, false));
    // The oldest one is served, whoever else there is.
    scheduler.remove(a);
    assert_eq!(step(&mut scheduler, &mut memory, 99), [(b, 1, Some(Finish::Stop))]);
}

/// Beside somebody's next token, a prompt is read up to a multiple of what the backend computes together.
#[test]
fn prompts_are_cut_at_the_grain_of_the_backend() {
    for (grain, parting, expected) in [(16, 52, [112, 88]), (32, 36, [96, 104])] {
        let limits = limits(128, 400);
        let (mut scheduler, mut memory) = (Scheduler::new(&limits).with_grain(grain), memory(400));
        let [answering, asked] = [(); 2].map(|()| open(&mut scheduler, &mut memory));
        scheduler.begin(&mut memory, (answering, 0), vec![1, 2], running(0));
        step(&mut scheduler, &mut memory, 50);
        scheduler.begin(&mut memory, (asked, 0), vec![3; 200], running(0));
        let rows =
            [(); 2].map(|()| step(&mut scheduler, &mut memory, 50).iter().find(|span| span.0 == asked).unwrap().1);
        assert_eq!(rows, expected, "grain {grain}");
        assert_eq!(super::parting(55, (4, grain as u32), &[]), Some(parting));
    }
}

/// A scheduler whose steps have 64 rows, and so many sequences with these prompts, each of which is remembered before its end.
fn with_prompts(prompts: &[Vec<u32>], change: impl Fn(usize, &mut Running)) -> (Scheduler, Memory, Vec<SequenceId>) {
    let (mut scheduler, mut memory) = (Scheduler::new(&limits(64, 2000)), memory(2000));
    let ids: Vec<_> = prompts.iter().map(|_| open(&mut scheduler, &mut memory)).collect();
    for (at, (id, prompt)) in ids.iter().zip(prompts).enumerate() {
        let mut running = Running { context: 5000, ..running(prompt.len() as u32 - 1) };
        change(at, &mut running);
        scheduler.begin(&mut memory, (*id, 0), prompt.clone(), running);
    }
    (scheduler, memory, ids)
}

/// Rows that were read of each sequence until all of them have answered.
fn rows_read(scheduler: &mut Scheduler, memory: &mut Memory, ids: &[SequenceId]) -> Vec<u32> {
    let mut rows = vec![0; ids.len()];
    for _ in 0..100 {
        for (id, read, _) in step(scheduler, memory, 99) {
            rows[ids.iter().position(|known| *known == id).unwrap()] += read;
        }
        if scheduler.running().next().is_none() {
            return rows;
        }
    }
    panic!("no progress: {rows:?}");
}

/// A prompt of tokens that count up, with another end after some of them.
fn parted(length: u32, at: u32, end: u32) -> Vec<u32> {
    (1000..1000 + length).map(|token| if token < 1000 + at { token } else { token + end }).collect()
}

#[test]
fn prompts_that_begin_alike_are_read_once() {
    let prompts = [parted(300, 300, 0), parted(300, 300, 0), parted(260, 150, 1000), parted(280, 250, 2000)];
    let (mut scheduler, mut memory, ids) = with_prompts(&prompts, |_, _| {});
    // They part behind 150 and 250 tokens, and begin anew after whole chunks.
    assert_eq!(rows_read(&mut scheduler, &mut memory, &ids), [300, 1, 260 - 144, 280 - 240]);
    // Who shares as much with two waits for one of them only.
    let prompts = [parted(300, 300, 0), parted(300, 300, 0), parted(260, 150, 1000)];
    let (mut scheduler, mut memory, ids) = with_prompts(&prompts, |_, _| {});
    (0..4).for_each(|_| drop(step(&mut scheduler, &mut memory, 50)));
    assert_eq!(ids.iter().map(|id| memory.committed(*id)).collect::<Vec<_>>(), [144 + 16, 0, 144 + 48]);
    // Two that share more with each other than with the first.
    let prompts = [parted(300, 300, 0), parted(300, 100, 1000), [parted(200, 100, 1000), vec![5; 100]].concat()];
    let (mut scheduler, mut memory, ids) = with_prompts(&prompts, |_, _| {});
    assert_eq!(rows_read(&mut scheduler, &mut memory, &ids), [300, 300 - 96, 300 - 192]);
}

#[test]
fn nobody_waits_for_what_saves_little_or_does_not_fit() {
    let alike = || [parted(300, 300, 0), parted(300, 300, 0)];
    let short = [parted(300, 300, 0), parted(300, 79, 1000)];
    let (mut scheduler, mut memory, ids) = with_prompts(&short, |_, _| {});
    assert_eq!(rows_read(&mut scheduler, &mut memory, &ids), [300, 300 - 64]);
    let short = [parted(300, 300, 0), parted(300, 63, 1000)];
    type Change<'a> = &'a dyn Fn(usize, &mut Running);
    let unchanged: Change<'_> = &|_, _| {};
    let cases: [(&[Vec<u32>], Change<'_>); 5] = [
        (&short, unchanged),
        (&alike(), &|at, running| running.joins = at != 0),
        (&alike(), &|at, running| running.joins = at != 1),
        (&alike(), &|at, running| running.cache = [Cache::Use, Cache::Ignore][at]),
        (&alike(), &|_, running| running.seals.clear()),
    ];
    for (number, (prompts, change)) in cases.into_iter().enumerate() {
        let (mut scheduler, mut memory, ids) = with_prompts(prompts, change);
        assert_eq!(rows_read(&mut scheduler, &mut memory, &ids), [300, 300], "{number}");
    }
    let scored: Change<'_> = &|at, running| running.outputs = [Outputs::Last, Outputs::All][at];
    let (scheduler, _, ids) = with_prompts(&alike(), scored);
    assert!(scheduler.get(ids[1]).alike.is_empty(), "all of it is looked at");
    let [first, second] = alike();
    let (mut scheduler, mut memory, mut ids) = with_prompts(&[first], |_, _| {});
    ids.push(open(&mut scheduler, &mut memory));
    memory.enter(ids[1], crate::memory::Scope(7));
    scheduler.begin(&mut memory, (ids[1], 0), second, Running { context: 5000, ..running(299) });
    assert_eq!(rows_read(&mut scheduler, &mut memory, &ids), [300, 300], "in another scope");
}

/// Who is waited for may leave, or make room for others: who waits goes on with what there is.
#[test]
fn who_waits_goes_on_without_the_one_that_is_waited_for() {
    let prompts = [vec![7; 40], parted(300, 300, 0), parted(300, 300, 0)];
    let (mut scheduler, mut memory, ids) = with_prompts(&prompts, |_, running| running.max_tokens = 100);
    step(&mut scheduler, &mut memory, 50);
    step(&mut scheduler, &mut memory, 50);
    let read = memory.committed(ids[1]);
    assert!(read > 64 && memory.committed(ids[2]) == 0);
    scheduler.end(&mut memory, ids[1]);
    step(&mut scheduler, &mut memory, 50);
    assert!(memory.committed(ids[2]) > read, "from where the other one was");
    let (mut scheduler, mut memory, ids) = with_prompts(&prompts, |_, running| running.max_tokens = 100);
    step(&mut scheduler, &mut memory, 50);
    step(&mut scheduler, &mut memory, 50);
    scheduler.make_room(&mut memory, ids[0]);
    assert!(scheduler.get(ids[1]).paused);
    step(&mut scheduler, &mut memory, 50);
    assert_eq!(memory.committed(ids[2]), 48, "from the start");
}

/// The beginning of a long prompt for which a short one waits goes before prompts that are longer than it.
#[test]
fn what_is_waited_for_is_read_first() {
    let prompts = [vec![7; 900], vec![8; 400], parted(3000, 3000, 0), parted(120, 100, 1000)];
    let (mut scheduler, mut memory, ids) = with_prompts(&prompts, |_, _| {});
    step(&mut scheduler, &mut memory, 50);
    step(&mut scheduler, &mut memory, 50);
    assert_eq!(ids.iter().map(|id| memory.committed(*id)).collect::<Vec<_>>(), [32, 0, 96, 0]);
    step(&mut scheduler, &mut memory, 99);
    assert_eq!(memory.committed(ids[3]), 119);
}
