//! Any bytes: a session opens or is refused, as it is and with its checksums put right; of one that opens and fits a
//! program, everything can be read, also of prefixes of which tokens were given up.
#![no_main]

use kvas::{
    policy::{Bound, EvictionPolicy},
    session::Session,
};
use kvas_backend::{
    Act, ActDecl, KvType, Limits, Program, Replay, Rows, StateType, StoreDecl,
    store::{ConvDecl, MomentType, PageLayout, PagesDecl, Policy, Slake},
};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|data: &[u8]| {
    read(data.to_vec());
    let Some((header, sections)) = parts(data) else { return };
    let Some(bytes) = sealed(header.clone(), sections) else { return };
    for length in read(bytes) {
        for header in shorter(&header, length) {
            let bytes = sealed(header, sections).expect("it was sealed before");
            assert!(read(bytes).is_empty(), "a layer is missing");
        }
    }
});

/// The prefixes of which tokens were given up, as a program does that.
fn read(bytes: Vec<u8>) -> Vec<u32> {
    let Ok(session) = Session::from_bytes("fuzz", bytes.into()) else { return vec![] };
    if session.check_program(&program(Policy::Full)).is_err() {
        return vec![];
    }
    let mut values = Vec::new();
    for store in 0..2 {
        for first in (0..session.tokens().len() + 4).step_by(4) {
            session.rows(store, first, 4, &mut values);
        }
    }
    for position in session.positions(u32::MAX) {
        assert!(position as usize <= session.tokens().len());
        session.state(position, &mut values);
        assert_eq!(values.len(), 4);
    }
    read_shortened(&session)
}

/// What is left where layers give up tokens one by one, and sum them up.
fn read_shortened(session: &Session) -> Vec<u32> {
    let program = program(Policy::Slake(Slake { heads: 1, window: 2, capacity: 24, moments: MomentType::F32 }));
    let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
    let limits =
        Limits { context: 0, rows: 4, outputs: 1, pages: 8, page_size: 4, slots: 2, snapshots: 0, replay, kv_type, state_type };
    let eviction_policy = EvictionPolicy::Budget(Bound { window: 2, sinks: 1, ..Bound::new(12) });
    if session.check_shortened((&program, &limits), &eviction_policy).is_err() {
        return vec![];
    }
    let [mut values, mut memory] = [Vec::new(), Vec::new()];
    for (length, eviction) in session.shortened() {
        for (store, held) in eviction.held.iter().enumerate() {
            session.shortened_rows((length, store), 0, *held as usize + 4, &mut values);
            assert_eq!(values.len(), *held as usize * [3, 2][store]);
        }
        session.shortened_slot(length, [&mut values, &mut memory]);
        assert_eq!([values.len(), memory.len()], [program.slot_elements(), program.evicted_elements()]);
    }
    session.shortened().map(|(length, _)| length).collect()
}

/// Two layers of keys and values and one of state, as in the seeds.
fn program(policy: Policy) -> Program {
    let pages = |key_dim| PagesDecl { kv_heads: 1, key_dim, value_dim: 1, layout: PageLayout::Separate, policy };
    let stores = vec![
        StoreDecl::Pages(pages(2)),
        StoreDecl::Conv(ConvDecl { channels: 4, taps: 2 }),
        StoreDecl::Pages(pages(1)),
    ];
    let logits = ActDecl { name: "logits".into(), columns: 1 << 20, rows: Rows::Outputs };
    Program { ops: vec![], acts: vec![logits], weights: vec![], stores, logits: Act(0) }
}

/// The header, however long it says that it is, and the sections.
fn parts(data: &[u8]) -> Option<(Value, &[u8])> {
    let (length, rest) = data.split_first_chunk()?;
    let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<Value>();
    let header = values.next()?.ok()?;
    let (end, said) = (values.byte_offset(), usize::try_from(u64::from_le_bytes(*length)).ok()?);
    let spaces = rest[end..].iter().take(said.saturating_sub(end)).take_while(|byte| **byte == b' ').count();
    let sections = &rest[end + spaces..];
    Some((header, &sections[..sections.len().checked_sub(32)?]))
}

/// A file of these, with all checksums right.
fn sealed(mut header: Value, sections: &[u8]) -> Option<Vec<u8>> {
    for (name, section) in header.as_object()?.clone() {
        let offset = |at: usize| section["data_offsets"][at].as_u64().map(|offset| offset as usize);
        if let Some(bytes) = offset(0).zip(offset(1)).and_then(|(start, end)| sections.get(start..end)) {
            header["__metadata__"]
                .as_object_mut()?
                .insert(format!("checksum.{name}"), json!(blake3::hash(bytes).to_hex().as_str()));
        }
    }
    let text = header.to_string();
    let header = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    Some([&header, sections, blake3::hash(&header).as_bytes()].concat())
}

/// The header with what a prefix says of layers said of one layer less, in every way.
fn shorter(header: &Value, length: u32) -> [Value; 3] {
    let key = format!("shortened.{length}");
    let text = header["__metadata__"][&key].as_str().expect("it was read").to_string();
    [0, 1, 2].map(|at| {
        let mut lists: Vec<&str> = text.split(';').collect();
        lists[at] = lists[at].trim_end_matches(',').rsplit_once(',').map_or("", |(first, _)| first);
        let mut header = header.clone();
        header["__metadata__"][&key] = json!(lists.join(";"));
        header
    })
}
