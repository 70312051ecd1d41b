//! Any bytes: a session opens or is refused, as it is and with its checksums put right; of one that opens and fits a
//! program, everything can be read.
#![no_main]

use kvas::session::Session;
use kvas_backend::{
    Act, ActDecl, Program, Rows, StoreDecl,
    store::{ConvDecl, PageLayout, PagesDecl, Policy},
};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|data: &[u8]| {
    read(data.to_vec());
    if let Some(bytes) = resealed(data) {
        read(bytes);
    }
});

fn read(bytes: Vec<u8>) {
    let Ok(session) = Session::from_bytes("fuzz", bytes.into()) else { return };
    if session.check_program(&program()).is_err() {
        return;
    }
    let mut values = Vec::new();
    for store in 0..2 {
        for first in (0..session.tokens().len() + 4).step_by(4) {
            session.rows(store, first, 4, &mut values);
        }
    }
    for position in session.positions() {
        assert!(position as usize <= session.tokens().len());
        session.state(position, &mut values);
        assert_eq!(values.len(), 4);
    }
}

/// Two layers of keys and values and one of state, as in the seed.
fn program() -> Program {
    let pages = |key_dim| PagesDecl { kv_heads: 1, key_dim, value_dim: 1, layout: PageLayout::Separate, policy: Policy::Full };
    let stores = vec![
        StoreDecl::Pages(pages(2)),
        StoreDecl::Conv(ConvDecl { channels: 4, taps: 2 }),
        StoreDecl::Pages(pages(1)),
    ];
    let logits = ActDecl { name: "logits".into(), columns: 1 << 20, rows: Rows::Outputs };
    Program { ops: vec![], acts: vec![logits], weights: vec![], stores, logits: Act(0) }
}

/// The same header over the same sections, and all checksums right.
fn resealed(data: &[u8]) -> Option<Vec<u8>> {
    let length = u64::from_le_bytes(*data.first_chunk()?);
    let end = usize::try_from(length).ok()?.checked_add(8)?;
    let mut header: Value = serde_json::from_slice(data.get(8..end)?).ok()?;
    let sections = &data[end..data.len().checked_sub(32).filter(|rest| *rest >= end)?];
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
