//! Which prefixes are kept, and what gives way to them.

use super::*;

#[test]
fn a_name_tells_what_a_file_is_and_others_are_left_alone() {
    let model = |fingerprint: &str| ModelId {
        name: "toy".into(),
        architecture: "none".into(),
        fingerprint: fingerprint.repeat(16),
    };
    let folder = Folder::new(PathBuf::new(), 1);
    let whole = Key { length: 300, hash: 0xab, policy: 0 };
    let cut = Key { policy: policy_hash("policy slake"), ..whole };
    for (key, evicted) in [(whole, 0), (cut, 17)] {
        let file = folder.file((key, evicted), &model("ab")).display().to_string();
        assert_eq!(named(&file, &model("ab")), Some((key, evicted)), "{file}");
        assert_eq!(named(&file, &model("cd")), None, "{file}");
        assert_eq!(named(&file.replace("prefix", "session"), &model("ab")), None);
        assert_eq!(named(&file.replace("-300-", "-"), &model("ab")), None);
    }
    assert!(cut.policy != policy_hash("policy edgeinfinite"));
}

/// A prefix that was written with others serves in their place, goes when it goes, and makes what they had needless.
#[test]
fn a_prefix_serves_for_shorter_ones_that_it_holds() {
    let tokens = [5, 6, 7, 8, 9];
    let hashes: Vec<(u32, u64)> = prefix_hashes(&tokens).collect();
    let key = |at: usize| Key { length: hashes[at].0, hash: hashes[at].1, policy: 0 };
    let mut level: Tier<Key, char> = Tier::new(15);
    level.insert(key(1), 'a', [10, 0]);
    level.insert(key(4), 'b', [10, 0]);
    level.holds(key(4), &[key(0), key(1)]);
    assert_eq!(level.usage(), OffloadUsage { count: 1, bytes: 10 });
    let found = |level: &Tier<Key, char>, at: usize| level.find(key(at), 0).map(|found| level.kept[&found.holder].what);
    let all = |level: &Tier<Key, char>| (0..5).map(|at| found(level, at)).collect::<Vec<_>>();
    assert_eq!(all(&level), [Some('b'), Some('b'), None, None, Some('b')]);
    assert_eq!((0..5).map(|at| level.knows(&key(at))).collect::<Vec<_>>(), [true, true, false, false, true]);
    // One of another text takes over what both hold, and keeps it.
    level.insert(key(3), 'c', [10, 0]);
    level.holds(key(3), &[key(1)]);
    assert_eq!(level.oldest(0), Some(key(4)));
    level.remove(&key(4));
    assert_eq!(all(&level), [None, Some('c'), None, Some('c'), None]);
    assert_eq!((level.oldest(0), level.knows(&key(0))), (None, false));
}

/// A file has a name for every prefix that it serves, no name is left behind, and the next start knows them all.
#[test]
#[cfg(unix)]
fn files_have_the_names_of_what_they_hold() {
    let model = ModelId { name: "toy".into(), architecture: "none".into(), fingerprint: "ab".repeat(16) };
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("names");
    let mut folder = Folder::open(&path, &model, 25).unwrap();
    let key = |length: u32| Key { length, hash: 7, policy: 0 };
    let add = |folder: &mut Folder, length: u32, parts: &[u32]| {
        fs::write(folder.file((key(length), 0), &model), [0; 10]).unwrap();
        let parts: Vec<Key> = parts.iter().map(|part| key(*part)).collect();
        folder.add((key(length), &parts), [10, 0], &model);
    };
    let names = |folder: &Folder| {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().to_string_lossy().to_string();
        let mut lengths: Vec<u32> = fs::read_dir(&folder.path)
            .unwrap()
            .filter_map(|entry| Some(named(&name(entry), &model)?.0.length))
            .collect();
        lengths.sort_unstable();
        lengths
    };
    add(&mut folder, 30, &[10, 20]);
    assert_eq!(names(&folder), [10, 20, 30]);
    add(&mut folder, 40, &[10, 30]);
    assert_eq!(names(&folder), [10, 30, 40], "20 went with the file that held it");
    add(&mut folder, 50, &[10]);
    assert_eq!((names(&folder), folder.files.usage().count), (vec![10, 30, 40, 50], 2));
    let again = Folder::open(&path, &model, 25).unwrap();
    assert_eq!(again.files.usage(), OffloadUsage { count: 2, bytes: 20 });
    assert_eq!(again.files.find(key(30), 0).map(|found| found.holder.length), Some(40));
    assert_eq!(again.files.find(key(10), 0).map(|found| found.holder.length), Some(50));
    add(&mut folder, 60, &[]);
    assert_eq!(names(&folder), [10, 50, 60], "the oldest file went with its names");
    fs::remove_dir_all(&path).unwrap();
}

#[test]
fn what_has_given_up_too_much_or_in_another_way_is_not_wanted() {
    let model = ModelId { name: "toy".into(), architecture: "none".into(), fingerprint: "ab".repeat(16) };
    let (mut offload_cache, tokens) = (OffloadCache::in_memory(&model, 1 << 20), [5, 6, 7, 8, 9]);
    offload_cache.folder = Some(Folder::new(PathBuf::new(), 1 << 20));
    let hashes: Vec<(u32, u64)> = prefix_hashes(&tokens).collect();
    let key = |(length, hash): (u32, u64), policy| Key { length, hash, policy };
    let files = &mut offload_cache.folder.as_mut().unwrap().files;
    files.insert(key(hashes[2], 0), (), [10, 0]);
    files.insert(key(hashes[3], policy_hash("some")), (), [10, 2]);
    let longest = |wanted| offload_cache.longest(Scope::default(), &tokens, wanted);
    assert_eq!(longest(PrefixQuery::new(5, None)), Some(3));
    assert_eq!(longest(PrefixQuery::new(2, None)), None);
    assert_eq!(longest(PrefixQuery::new(5, Some(("some", 2)))), Some(4));
    assert_eq!(longest(PrefixQuery::new(5, Some(("some", 1)))), Some(3));
    assert_eq!(longest(PrefixQuery::new(5, Some(("other", 9)))), Some(3));
    assert_eq!(
        offload_cache.longest(Scope(7), &tokens, PrefixQuery::new(5, None)),
        None,
        "files are what everybody may know"
    );
}

fn toy() -> ModelId {
    ModelId { name: "toy".into(), architecture: "none".into(), fingerprint: "ab".repeat(16) }
}

/// Of tokens that nobody else has, keys and values of this many bytes.
fn layout(bytes: usize) -> SessionLayout {
    SessionLayout {
        kv_type: kvas_backend::KvType::F32,
        rows: 2,
        columns: vec![bytes / 8],
        positions: vec![2],
        state_elements: 0,
        shortened: None,
    }
}

/// Keeps a prefix, as the engine does. None: nobody wants it.
fn keep(offload_cache: &mut OffloadCache, first: u32, bytes: usize) -> Option<Result<(), SessionError>> {
    let (tokens, layout) = ([first, 7], layout(bytes));
    let mut open = offload_cache.writer(Scope::default(), &tokens, &layout)?.begin(&layout).unwrap();
    open.write(&vec![0.5; bytes / 4]).unwrap();
    let written = open.finish().unwrap();
    Some(offload_cache.wrote(Scope::default(), (&tokens, &layout, &[]), written))
}

/// Each prefix that cannot be written made room for itself only, so that small ones made none for a large one.
#[test]
fn memory_gives_way_where_the_folder_cannot_be_written() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("folder");
    let mut offload_cache = OffloadCache::in_memory(&toy(), 40_000).with_folder(&path, 1 << 20).unwrap();
    fs::remove_dir_all(&path).unwrap();
    fs::write(&path, "in the way").unwrap();
    for first in 0..4 {
        keep(&mut offload_cache, first, 8000).unwrap().unwrap();
    }
    let failed = keep(&mut offload_cache, 9, 32_000).unwrap();
    assert!(matches!(failed, Err(SessionError::Write { .. })), "{failed:?}");
    let usage = offload_cache.in_memory_usage();
    assert!(usage.bytes <= 40_000 && usage.count == 1, "{usage:?}");
}

/// All others went for it, and then it.
#[test]
fn a_prefix_that_is_larger_than_the_folder_leaves_others_where_they_are() {
    let temporary = tempfile::tempdir().unwrap();
    for in_memory in [0, 30_000] {
        let path = temporary.path().join(in_memory.to_string());
        let mut offload_cache = OffloadCache::in_memory(&toy(), 0).with_folder(&path, 20_000).unwrap();
        keep(&mut offload_cache, 1, 8000).unwrap().unwrap();
        assert!(keep(&mut offload_cache, 2, 24_000).is_none_or(|kept| kept.is_ok()));
        offload_cache.memory.budget = in_memory;
        // From memory, too.
        for first in 3..5 {
            assert!(keep(&mut offload_cache, first, 24_000).is_none_or(|kept| kept.is_ok()));
        }
        assert_eq!(offload_cache.in_folder_usage().map(|usage| usage.count), Some(1));
    }
}

/// What a disk has room for is what is there and what was written when it was full.
#[test]
fn files_give_way_where_the_disk_is_full() {
    let temporary = tempfile::tempdir().unwrap();
    let mut offload_cache = OffloadCache::in_memory(&toy(), 0).with_folder(temporary.path(), 1 << 20).unwrap();
    let full =
        |written| SessionError::Full { path: String::new(), written, error: std::io::ErrorKind::StorageFull.into() };
    assert!(!offload_cache.give_way(&full(5000)), "there is nobody to give way");
    for first in 0..3 {
        keep(&mut offload_cache, first, 8000).unwrap().unwrap();
    }
    let one = offload_cache.in_folder_usage().unwrap().bytes / 3;
    assert_eq!(layout(8000).file_bytes(&toy(), 2), one);
    let other = SessionError::Write { path: String::new(), error: std::io::ErrorKind::PermissionDenied.into() };
    assert!(!offload_cache.give_way(&other) && offload_cache.give_way(&full(one / 2)));
    assert_eq!(offload_cache.in_folder_usage().unwrap().count, 3, "nothing goes for what may be too large");
    assert!(keep(&mut offload_cache, 9, 40_000).is_none(), "it does not fit");
    // Before it is written: there is no room besides.
    let layout = layout(8000);
    assert!(offload_cache.writer(Scope::default(), &[4, 7], &layout).is_some());
    assert_eq!(offload_cache.in_folder_usage().unwrap().count, 2);
    for first in 4..9 {
        keep(&mut offload_cache, first, 8000).unwrap().unwrap();
        assert_eq!(offload_cache.in_folder_usage().unwrap().count, 3);
    }
}

/// What was full may have room again: after a while that is tried.
#[test]
fn a_disk_that_was_full_is_filled_again_when_it_has_room() {
    let temporary = tempfile::tempdir().unwrap();
    let mut offload_cache = OffloadCache::in_memory(&toy(), 0).with_folder(temporary.path(), 1 << 20).unwrap();
    keep(&mut offload_cache, 1, 8000).unwrap().unwrap();
    let full = || SessionError::Full { path: String::new(), written: 9, error: std::io::ErrorKind::StorageFull.into() };
    let count = |cache: &OffloadCache| cache.in_folder_usage().unwrap().count;
    for since in [SHORT / 2, SHORT] {
        assert!(offload_cache.give_way(&full()));
        keep(&mut offload_cache, 2 + since.as_secs() as u32, 8000).unwrap().unwrap();
        assert_eq!(count(&offload_cache), 1);
        // Where the clock began less than that ago nothing can have been so for so long.
        let Some(then) = Instant::now().checked_sub(since) else { return };
        offload_cache.folder.as_mut().unwrap().short_since = Some(then);
        keep(&mut offload_cache, 3 + since.as_secs() as u32, 8000).unwrap().unwrap();
        assert_eq!(count(&offload_cache), if since == SHORT { 2 } else { 1 });
    }
}

/// It is tried once more, and what is told is why it failed at last.
#[test]
fn a_prefix_is_written_again_when_others_have_given_way() {
    let temporary = tempfile::tempdir().unwrap();
    let mut offload_cache = OffloadCache::in_memory(&toy(), 0).with_folder(temporary.path(), 1 << 20).unwrap();
    let full = || SessionError::Full { path: String::new(), written: 9, error: std::io::ErrorKind::StorageFull.into() };
    let tried = |cache: &mut OffloadCache, mut results: Vec<Option<Result<u32, SessionError>>>| {
        let written = cache.making_way(|error| Some(error), |_| results.remove(0));
        (written.map(|written| written.map_err(drop)), results.len())
    };
    assert_eq!(
        tried(&mut offload_cache, vec![Some(Err(full())), Some(Ok(1))]),
        (Some(Err(())), 1),
        "there is nobody to give way"
    );
    assert_eq!(tried(&mut offload_cache, vec![None, Some(Ok(1))]), (None, 1));
    keep(&mut offload_cache, 1, 8000).unwrap().unwrap();
    assert_eq!(tried(&mut offload_cache, vec![Some(Ok(1)), Some(Ok(2))]), (Some(Ok(1)), 1));
    assert_eq!(tried(&mut offload_cache, vec![Some(Err(full())), Some(Ok(2))]), (Some(Ok(2)), 0));
    assert_eq!(tried(&mut offload_cache, vec![Some(Err(full())), Some(Err(full())), Some(Ok(3))]), (Some(Err(())), 1));
    assert_eq!(tried(&mut offload_cache, vec![Some(Err(full())), None]), (Some(Err(())), 0), "it has become too large");
}

/// What a server left that was killed while it wrote counted for nothing, and stayed for ever.
#[test]
fn what_was_not_written_to_its_end_is_removed() {
    let temporary = tempfile::tempdir().unwrap();
    let open = || OffloadCache::in_memory(&toy(), 0).with_folder(temporary.path(), 1 << 20).unwrap();
    keep(&mut open(), 1, 8000).unwrap().unwrap();
    let whole = fs::read_dir(temporary.path()).unwrap().next().unwrap().unwrap().path();
    let [begun, other] = [".partial", ".other"].map(|ending| {
        let path = PathBuf::from(format!("{}{ending}", whole.display()));
        fs::write(&path, "begun").unwrap();
        path
    });
    let writer = fs::File::open(&begun).unwrap();
    writer.lock().unwrap();
    open();
    assert!(begun.exists(), "somebody writes it");
    // Not by dropping it: a child of another test may have it open for a while.
    writer.unlock().unwrap();
    assert_eq!(open().in_folder_usage().map(|usage| usage.count), Some(1));
    assert!(!begun.exists() && whole.exists() && other.exists());
}
