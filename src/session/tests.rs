//! Session files: what is written is read, and nothing else is.

use super::{header::ShortenedLayout, *};
use crate::{memory::EvictionRecord, policy::Shares};
use kvas_backend::KvType;
use std::path::PathBuf;
use tempfile::TempDir;

fn model(fingerprint: &str) -> ModelId {
    ModelId { name: "toy".into(), architecture: "none".into(), fingerprint: fingerprint.into() }
}

fn layout() -> SessionLayout {
    let prefixes = vec![(4, eviction([2, 3])), (6, eviction([1, 6]))];
    let shortened = Some(ShortenedLayout { policy: "some".into(), prefixes, elements: 3, is_whole: false });
    SessionLayout {
        kv_type: KvType::F16,
        rows: 5,
        columns: vec![3, 2],
        positions: vec![2, 5],
        state_elements: 4,
        shortened,
    }
}

fn eviction(held: [u32; 2]) -> EvictionRecord {
    EvictionRecord { held: held.to_vec(), shares: Shares::new(vec![1, 0], vec![5, 6], 4) }
}

const TOKENS: [u32; 6] = [7, 1, 300, 2, 70000, 9];

/// A file in a folder of its own, which goes with it.
fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.session");
    (folder, path)
}

fn write(path: &Path) {
    let mut open = Writer::new(path, &model("1234"), TOKENS.to_vec(), "{\"a\": 1}".into()).begin(&layout()).unwrap();
    let rows: Vec<f32> = (0..15).map(|i| i as f32 / 2.0).collect();
    open.write(&rows[..6]).unwrap();
    open.write(&rows[6..]).unwrap();
    open.write(&rows[..10]).unwrap();
    open.write(&[1.5, -2.0, 0.1, 1e-20]).unwrap();
    open.write(&[2.5, 3.0, 4.0, 5.0]).unwrap();
    for (first, second) in [(2, 3), (1, 6)] {
        open.write(&[0.5; 6][..3 * first]).unwrap();
        open.write(&(7..19).map(|i| i as f32).collect::<Vec<_>>()[..2 * second]).unwrap();
        open.write(&[-1.0, -2.0, -3.0, first as f32]).unwrap();
        open.write(&[0.1, 1e-30, f32::from_bits(0x7fc1_2345)]).unwrap();
    }
    let Written::File(bytes) = open.finish().unwrap() else { panic!("a file was begun") };
    assert_eq!(bytes, std::fs::metadata(path).unwrap().len());
}

#[test]
fn what_is_written_is_read() {
    let (_folder, path) = place();
    write(&path);
    let session = Session::open(&path).unwrap();
    assert_eq!((session.tokens(), session.conversation()), (&TOKENS[..], "{\"a\": 1}"));
    assert_eq!((session.positions(7), session.positions(4)), (vec![2, 5], vec![2]));
    let mut values = Vec::new();
    session.rows(0, 4, 16, &mut values);
    assert_eq!(values, [6.0, 6.5, 7.0]);
    session.rows(1, 1, 2, &mut values);
    assert_eq!(values, [1.0, 1.5, 2.0, 2.5]);
    session.state(2, &mut values);
    assert_eq!(values, [1.5, -2.0, 0.1, 1e-20]);
    assert_eq!(session.policy(), Some("some"));
    let shortened: Vec<_> = session.shortened().map(|(length, eviction)| (length, eviction.clone())).collect();
    assert_eq!(shortened, [(4, eviction([2, 3])), (6, eviction([1, 6]))]);
    session.shortened_rows((4, 1), 1, 9, &mut values);
    assert_eq!(values, [9.0, 10.0, 11.0, 12.0]);
    let mut memory = Vec::new();
    session.shortened_slot(6, [&mut values, &mut memory]);
    assert_eq!(values, [-1.0, -2.0, -3.0, 1.0]);
    assert_eq!(memory.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0x3dcc_cccd, 0x0da2_4260, 0x7fc1_2345]);
    assert!(session.check_model(&model("1234")).is_ok());
    let error = session.check_model(&model("5678")).unwrap_err().to_string();
    assert_eq!(error, format!("{}: a session of toy (none, 1234), expected one of toy (none, 5678)", path.display()));
}

/// Who evicts tokens, and has not yet, says so in a version of its own.
#[test]
fn a_policy_that_has_given_up_nothing_is_kept() {
    for elements in [0, 3] {
        let (_folder, path) = place();
        let layout = SessionLayout { shortened: None, positions: vec![5], ..layout() };
        let layout = layout.with_whole("some".into(), elements);
        let mut open = Writer::new(&path, &model("1234"), TOKENS.to_vec(), String::new()).begin(&layout).unwrap();
        for values in [15, 10, 4, elements] {
            open.write(&vec![0.5; values]).unwrap();
        }
        open.finish().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let session = Session::open(&path).unwrap();
        assert_eq!((session.policy(), session.whole()), (None, Some(("some", 5))));
        let mut values = Vec::new();
        assert_eq!((session.whole_memory(&mut values), values), (elements > 0, vec![0.5; elements]));
        let version =
            |other: &str| resealed(&whole, ("\"kvas_session\":\"3\"", &format!("\"kvas_session\":\"{other}\"")));
        let refused = version("4").unwrap_err().to_string();
        assert!(refused.contains("kvas_session is 4, expected 1 to 3"), "{refused}");
        assert_eq!(version("1").map_err(|error| error.to_string()).is_err(), elements > 0, "a section too many");
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_with_its_section() {
    let (_folder, path) = place();
    write(&path);
    let whole = std::fs::read(&path).unwrap();
    let mut named = std::collections::BTreeSet::new();
    for (at, bit) in (0..whole.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        let error = Session::from_bytes("a.session", bytes.into()).unwrap_err().to_string();
        assert!(
            error.starts_with("a.session: section ") && error.lines().count() == 1,
            "bit {bit} of byte {at}: {error}"
        );
        named.insert(error["a.session: section ".len()..].split(':').next().unwrap().to_string());
    }
    let shortened = ["shortened.4.", "shortened.6."]
        .map(|name| ["kv.0", "kv.1", "memory", "state"].map(|part| format!("{name}{part}")));
    let others = ["conversation", "header", "kv.0", "kv.1", "state.2", "state.5", "tokens"].map(str::to_string);
    assert_eq!(named, others.into_iter().chain(shortened.into_iter().flatten()).collect());
    for length in 0..whole.len() {
        assert!(Session::from_bytes("a.session", whole[..length].to_vec().into()).is_err(), "{length} bytes");
    }
}

/// A file whose checksums are all right and whose header is what `change` makes of it.
fn resealed(whole: &[u8], change: (&str, &str)) -> Result<Session, SessionError> {
    let length = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let text = String::from_utf8(whole[8..length].to_vec()).unwrap();
    assert!(text.contains(change.0), "{text}");
    let text = text.replace(change.0, change.1);
    let header = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let data = &whole[length..whole.len() - blake3::OUT_LEN];
    let bytes = [&header, data, blake3::hash(&header).as_bytes()].concat();
    Session::from_bytes("a.session", bytes.into())
}

#[test]
fn sections_that_do_not_belong_together_are_refused() {
    let (_folder, path) = place();
    write(&path);
    let whole = std::fs::read(&path).unwrap();
    assert!(resealed(&whole, ("toy", "TOY")).is_ok());
    for (change, expected) in [
        (("\"kvas_session\":\"2\"", "\"kvas_session\":\"4\""), "section header: kvas_session is 4, expected 1 to 3"),
        (
            ("\"kvas_session\":\"2\"", "\"kvas_session\":\"3\""),
            "section shortened.4.kv.0: expected no such section here",
        ),
        (
            ("\"kvas_session\":\"2\"", "\"kvas_session\":\"1\""),
            "section shortened.4.kv.0: expected no such section here",
        ),
        (("\"2,3;", "\"2,5;"), "section shortened.4: [2, 5] held, expected fewer than 4, of 6 tokens"),
        (("\"2,3;", "\"4,4;"), "section shortened.4: [4, 4] held, expected fewer than 4, of 6 tokens"),
        (("\"2,3;", "\"2;"), "section shortened.4: [2] held, expected "),
        (("\"2,3;", "\"1,3;"), "section shortened.4.kv.0: 2 rows, expected 1"),
        (("\"2,3;", "\"2,x;"), "section header: shortened.4 is 2,x;1,0;5,6;4, expected HELD"),
        (("\"2,3;1,0;", "\"2,3;"), "section header: shortened.4 is 2,3;5,6;4, expected HELD"),
        (("shortened.6", "shortened.7"), "section shortened.7: [1, 6] held, expected "),
        (("shortened.6.kv.1", "shortened.6.kv.2"), "section shortened.6.kv: layers [0, 2], expected [0, 1]"),
        (("shortened.4.state", "shortened.4.other"), "section shortened.4.other: expected no such section here"),
        (("\"policy\"", "\"polity\""), "section header: policy is missing"),
        (("\"shape\":[5,3]", "\"shape\":[3,5]"), "section kv.1: 5 rows, expected 3"),
        (("state.5", "state.4"), "section state.4: expected the last state after 5 rows, of 6 tokens"),
        (("state.2", "state.x"), "section state.x: expected no such section here"),
        (("kv.1", "kv.2"), "section kv: layers [0, 2], expected all from 0 on"),
        (("state.2", "state.0"), "section state: expected one row of values, after the first token or later"),
        (("\"dtype\":\"F16\",\"shape\":[5,3]", "\"dtype\":\"I16\",\"shape\":[5,3]"), "section kv.0: its type is I16"),
        (("checksum.tokens", "checksum.t"), "section header: checksum.tokens is missing"),
        (("\"data_offsets\":[0,24]", "\"data_offsets\":[0,23]"), "section header: "),
    ] {
        let error = resealed(&whole, change).unwrap_err().to_string();
        assert!(error.starts_with(&format!("a.session: {expected}")), "{error}");
    }
}

#[test]
fn an_unfinished_file_harms_nobody() {
    let (_folder, path) = place();
    write(&path);
    // A writer that is alive keeps others out; one that fails or dies leaves the file as it was.
    let open = Writer::new(&path, &model("1234"), vec![1], String::new()).begin(&layout()).unwrap();
    let error = Writer::new(&path, &model("1234"), vec![1], String::new()).begin(&layout()).unwrap_err().to_string();
    assert_eq!(error, format!("{}: another program is writing it", path.display()));
    let partial = path.with_file_name("a.session.partial");
    assert!(partial.exists());
    let folder = path.parent().unwrap();
    let error = Writer::new(folder, &model("1234"), vec![1], String::new()).begin(&layout()).unwrap_err().to_string();
    assert_eq!(error, format!("{}: is a folder, expected a regular file or a new one", folder.display()));
    drop(open);
    assert!(!partial.exists() && Session::open(&path).is_ok());
    std::fs::write(&partial, vec![1; 100_000]).unwrap();
    write(&path);
    assert_eq!(Session::open(&path).unwrap().tokens(), TOKENS);
    assert!(!partial.exists());
}

/// A name that was mistyped is that of somebody's file.
#[test]
fn a_file_of_another_kind_is_not_written_over() {
    let (_folder, path) = place();
    let begin = || Writer::new(&path, &model("1234"), vec![1], String::new()).begin(&bare());
    std::fs::write(&path, "Milk, bread, eggs.").unwrap();
    let error = begin().unwrap_err().to_string();
    assert!(
        error.contains("of another kind of file, which stays as it is: expected a session or a new file"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"Milk, bread, eggs.");
    // What is empty is nobody's, and what is damaged was a session.
    std::fs::write(&path, "").unwrap();
    begin().unwrap().finish().unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    begin().unwrap().finish().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    let folder = path.parent().unwrap();
    let error = Session::open(folder).unwrap_err().to_string();
    assert_eq!(error, format!("{}: is a folder, expected a session file", folder.display()));
}

/// The layout of a session that remembers nothing.
fn bare() -> SessionLayout {
    SessionLayout { rows: 0, positions: vec![], shortened: None, ..layout() }
}

#[test]
fn a_session_without_memory_is_a_session() {
    let (_folder, path) = place();
    let open = Writer::new(&path, &model("1234"), vec![], String::new()).begin(&bare()).unwrap();
    open.finish().unwrap();
    let session = Session::open(&path).unwrap();
    assert!(session.positions(9).is_empty() && session.tokens().is_empty() && session.conversation().is_empty());
}

/// Two programs with one file: who comes second does not replace what it has never seen.
#[test]
fn what_another_program_wrote_is_not_replaced() {
    let (_folder, path) = place();
    let begin = |claim: &VersionGuard| Writer::claimed(claim, &model("1234"), vec![], String::new()).begin(&bare());
    let [one, two] = [VersionGuard::new(&path), VersionGuard::new(&path)];
    // As often as it likes, as long as nobody else does.
    for _ in 0..3 {
        begin(&one).unwrap().finish().unwrap();
    }
    let whole = std::fs::read(&path).unwrap();
    let error = begin(&two).unwrap_err().to_string();
    let expected = "another program has changed it, expected what was read or written here last";
    assert_eq!(error, format!("{}: {expected}", path.display()));
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    assert!(!path.with_file_name("a.session.partial").exists());
    // Who has read it since may go on, and then the first one may not.
    two.look();
    begin(&two).unwrap().finish().unwrap();
    assert!(begin(&one).is_err());
    // A file that is gone is nobody's.
    std::fs::remove_file(&path).unwrap();
    begin(&one).unwrap().finish().unwrap();
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link() {
    let (_folder, path) = place();
    let (link, folder) = (path.with_file_name("link"), path.parent().unwrap().join("elsewhere"));
    std::fs::create_dir_all(&folder).unwrap();
    let claim = VersionGuard::new(&link);
    // Of a relative target that is not there yet, then of one that is.
    std::os::unix::fs::symlink("elsewhere/real", &link).unwrap();
    for _ in 0..2 {
        Writer::claimed(&claim, &model("1234"), vec![], String::new()).begin(&bare()).unwrap().finish().unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(std::fs::symlink_metadata(folder.join("real")).unwrap().is_file());
        assert!(claim.is_of(&folder.join("real")));
    }
    let around = path.with_file_name("around");
    std::os::unix::fs::symlink("around", &around).unwrap();
    let error = Writer::new(&around, &model("1234"), vec![], String::new()).begin(&bare()).unwrap_err().to_string();
    assert!(error.ends_with("is a link that never ends, expected a regular file or a new one"), "{error}");
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}
