//! The state after a death in the middle of a change of names or attributes, on the same boot.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use forebay_backing::wrap::Verb;
use forebay_backing::{
    Access, Attr, BackingStore, RenameMode, SetAttr, SetTime, Timestamp, XattrMode,
};
use forebay_engine::{Config, Engine, Keep, Named, Progress};

use crate::hook::Hook;
use crate::media::{CrashMedia, Disk};
use crate::start::{NEW, abandon, named, patient, start};
use crate::store::{MemStore, Tree};

const BOOT: &str = "died";
const LEN: usize = 64 << 10;

fn serve(media: &CrashMedia, store: Arc<dyn BackingStore>) -> Arc<Engine> {
    let media = Arc::new(media.clone());
    start(media, store, BOOT, Config::default(), patient()).expect("a sound tier")
}

/// Makes a dirty file, and closes it.
fn dirty(engine: &Arc<Engine>, name: &str, value: u8) -> Attr {
    let (file, attr) = engine.verbs.create(Path::new(name), &NEW).expect("no such file yet");
    engine.io.write(&file, 0, &[value; LEN]).expect("room");
    drop(file);
    attr
}

/// Flushes the dirty files that an engine finds on a tier whose daemon died.
fn recovered(disk: Disk, store: MemStore) -> Tree {
    let engine = serve(&CrashMedia::on(disk), Arc::new(store.clone()));
    assert!(engine.ops.status().dirty_files > 0, "nothing was dirty");
    let report = engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{report:?}");
    abandon(engine);
    store.snapshot()
}

fn file_of(tree: &Tree, name: &str) -> Vec<u8> {
    tree.files().remove(Path::new(name)).expect("it is there")
}

// S-2 S-8
#[test]
fn a_chmod_that_died_with_us_is_no_conflict() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let engine = serve(&media, Arc::new(store.clone()));
    dirty(&engine, "f", b'A');
    let disk = media.snapshot().process_crash_image();
    abandon(engine);
    // The chmod reached the store; its record never reached the tier.
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let attr = store.set_attr(Path::new("f"), None, &set).expect("it is there");
    assert_eq!(attr.size, 0, "nothing was flushed yet");
    let tree = recovered(disk, store);
    assert!(file_of(&tree, "f") == [b'A'; LEN]);
}

/// The same after a change that the store refused.
// S-2 S-8
#[test]
fn a_chmod_that_died_with_us_is_no_conflict_after_a_change_that_failed() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let engine = serve(&media, Arc::new(store.clone()));
    dirty(&engine, "f", b'A');
    // The file's name is durable on the store: recovery does not ask for it.
    assert!(engine.drain.flush(&[], &Progress::default()).failures.is_empty());
    let file = engine.io.open(Path::new("f"), None).expect("it is there");
    engine.io.write(&file, 0, &[b'B'; LEN]).expect("room");
    let disk = media.snapshot().process_crash_image();
    abandon(engine);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let attr = store.set_attr(Path::new("f"), None, &set).expect("it is there");
    let engine = serve(&CrashMedia::on(disk), Arc::new(store.clone()));
    let refused = engine.verbs.set_xattr(
        named(Path::new("f"), &attr),
        "user.mark".as_ref(),
        b"x",
        XattrMode::Any,
    );
    assert!(refused.is_err_and(|e| e.is(libc::EOPNOTSUPP)), "the store knows none");
    let report = engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{report:?}");
    abandon(engine);
    assert!(file_of(&store.snapshot(), "f") == [b'B'; LEN]);
}

/// The same if the file is opened, and its mode set once more, before it is flushed.
// S-2 S-8
#[test]
fn a_chmod_that_died_with_us_is_no_conflict_at_an_open() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let engine = serve(&media, Arc::new(store.clone()));
    dirty(&engine, "f", b'A');
    assert!(engine.drain.flush(&[], &Progress::default()).failures.is_empty());
    let file = engine.io.open(Path::new("f"), None).expect("it is there");
    engine.io.write(&file, 0, b"B").expect("room");
    let disk = media.snapshot().process_crash_image();
    abandon(engine);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let attr = store.set_attr(Path::new("f"), None, &set).expect("it is there");
    let engine = serve(&CrashMedia::on(disk), Arc::new(store.clone()));
    let file = engine.io.open(Path::new("f"), None).expect("it is there");
    engine.verbs.set_attr(named(Path::new("f"), &attr), &set).expect("a store that works");
    drop(file);
    let report = engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{report:?}");
    abandon(engine);
    assert!(file_of(&store.snapshot(), "f").starts_with(b"BA"));
}

/// A file that was found as known after the crash is not in that doubt any more: a change by others that leaves
/// size and mtime is one.
// S-8
#[test]
fn a_change_by_others_is_a_conflict_once_the_file_was_found_as_known() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let engine = serve(&media, Arc::new(store.clone()));
    dirty(&engine, "f", b'A');
    assert!(engine.drain.flush(&[], &Progress::default()).failures.is_empty());
    let disk = media.snapshot().process_crash_image();
    abandon(engine);
    let engine = serve(&CrashMedia::on(disk), Arc::new(store.clone()));
    let file = engine.io.open(Path::new("f"), None).expect("it is there");
    engine.io.write(&file, 0, b"B").expect("room");
    let before = store.stat(Path::new("f")).expect("it is there");
    let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
    theirs.write_at(b"X", 1000).expect("room");
    theirs.set_times(None, Some(before.mtime)).expect("it is theirs");
    let report = engine.drain.flush(&[], &Progress::default());
    assert_eq!(report.failures.len(), 1, "{report:?}");
    drop(file);
    abandon(engine);
    assert_eq!(file_of(&store.snapshot(), "f")[..1001].last(), Some(&b'X'));
}

/// The file is written while the time is set, which gives its shadow another time.
// S-2 S-8
#[test]
fn a_time_that_was_being_set_when_we_died_is_no_conflict() {
    for is_dirty in [true, false] {
        let (media, store) = (CrashMedia::default(), MemStore::new());
        let (backing, hook) = Hook::on(store.clone());
        let engine = serve(&media, backing);
        let attr = dirty(&engine, "f", b'A');
        assert!(engine.drain.flush(&[], &Progress::default()).failures.is_empty());
        let file = engine.io.open(Path::new("f"), None).expect("it is there");
        if is_dirty {
            engine.io.write(&file, 0, b"B").expect("room");
        }
        let died = Arc::new(Mutex::new(None));
        let (writer, open, slot) = (engine.clone(), file.clone(), died.clone());
        hook.set_after(move |call| {
            if call.verb == Verb::SetAttr {
                writer.io.write(&open, 1, b"C").expect("room");
                let disk = media.snapshot().process_crash_image();
                *slot.lock().expect("no panic inside") = Some(disk);
            }
        });
        let mtime = Some(SetTime::At(Timestamp { sec: 1_000_000, nsec: 7 }));
        let set = SetAttr { mtime, ..SetAttr::default() };
        engine.verbs.set_attr(named(Path::new("f"), &attr), &set).expect("a store that works");
        hook.set_after(|_| {});
        drop(file);
        abandon(engine);
        let disk = died.lock().expect("no panic inside").take().expect("the time was set");
        let tree = recovered(disk, store);
        let want: &[u8] = if is_dirty { b"BCA" } else { b"ACA" };
        assert!(file_of(&tree, "f").starts_with(want), "dirty before: {is_dirty}");
    }
}

// S-2 S-8
#[test]
fn names_that_were_exchanged_when_we_died_are_not_exchanged_back() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let (backing, hook) = Hook::on(store.clone());
    let engine = serve(&media, backing);
    let (a, b) = (dirty(&engine, "a", b'A'), dirty(&engine, "b", b'B'));
    let died: Arc<Mutex<Vec<(Disk, Tree)>>> = Arc::default();
    let (seen, mut exchanged) = (died.clone(), false);
    // The process may die at each call to the store after the exchange.
    hook.set(move |call| {
        if exchanged {
            let disk = media.snapshot().process_crash_image();
            seen.lock().expect("no panic inside").push((disk, store.snapshot()));
        }
        exchanged |= call.verb == Verb::Rename;
    });
    let (from, over) = (named(Path::new("a"), &a), named(Path::new("b"), &b));
    engine
        .verbs
        .rename(from, Path::new("b"), Some(over), RenameMode::Exchange)
        .expect("both are there");
    abandon(engine);
    let died = std::mem::take(&mut *died.lock().expect("no panic inside"));
    assert!(!died.is_empty(), "no moment to die");
    for (disk, tree) in died {
        let tree = recovered(disk, MemStore::on(tree));
        assert!(file_of(&tree, "a") == [b'B'; LEN] && file_of(&tree, "b") == [b'A'; LEN]);
    }
}

// S-1 S-8
#[test]
fn a_new_file_with_the_number_of_a_removed_one_is_empty() {
    makes_a_new_file(MemStore::without_generations());
    makes_a_new_file(MemStore::of_seconds());
}

fn makes_a_new_file(store: MemStore) {
    let engine = serve(&CrashMedia::default(), Arc::new(store.clone()));
    for keeps_dirty in [false, true] {
        dirty(&engine, "old", b'A');
        if !keeps_dirty {
            let report = engine.drain.flush(&[], &Progress::default());
            assert!(report.failures.is_empty(), "{report:?}");
        }
        store.free(Path::new("old"));
        let (file, attr) = engine.verbs.create(Path::new("new"), &NEW).expect("no such file yet");
        assert_eq!((attr.size, engine.verbs.stat_open(&file).size), (0, 0), "{keeps_dirty}");
        let mut buf = [0; LEN];
        assert_eq!(engine.io.read(&file, 0, &mut buf).expect("an empty file"), 0);
        engine.io.write(&file, 0, b"new").expect("room");
        engine.drain.flush_file(&file).expect("it is nobody else's");
        assert_eq!(file_of(&store.snapshot(), "new"), b"new");
        drop(file);
        // Dirty bytes of the removed file are not forgotten.
        assert_eq!(engine.ops.status().dirty_files, u64::from(keeps_dirty));
        store.free(Path::new("new"));
    }
    abandon(engine);
}

// S-2 S-8
#[test]
fn directories_that_were_exchanged_when_we_died_are_not_exchanged_back() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let (d, e) = (Path::new("d"), Path::new("e"));
    let dirs = [d, e].map(|dir| store.mkdir(dir, &NEW).expect("no such name yet"));
    let (backing, hook) = Hook::on(store.clone());
    let engine = serve(&media, backing);
    dirty(&engine, "d/f", b'D');
    dirty(&engine, "e/f", b'E');
    let died: Arc<Mutex<Vec<(Disk, Tree)>>> = Arc::default();
    let exchanged = Arc::new(AtomicBool::new(false));
    let (set, is_set, seen) = (exchanged.clone(), exchanged, died.clone());
    hook.set_after(move |call| {
        set.fetch_or(call.verb == Verb::Rename, Relaxed);
    });
    // The process may die at each change of the tier after the exchange.
    media.set_hook(Some(Box::new(move |_, disk| {
        if is_set.load(Relaxed) {
            seen.lock()
                .expect("no panic inside")
                .push((disk.process_crash_image(), store.snapshot()));
        }
    })));
    let dir = |path, attr: &Attr| Named { path, key: attr.key, is_dir: true };
    engine.verbs.rename(dir(d, &dirs[0]), e, Some(dir(e, &dirs[1])), RenameMode::Exchange).unwrap();
    abandon(engine);
    let died = std::mem::take(&mut *died.lock().expect("no panic inside"));
    assert!(!died.is_empty(), "no moment to die");
    for (disk, tree) in died {
        let tree = recovered(disk, MemStore::on(tree));
        assert!(file_of(&tree, "d/f") == [b'E'; LEN] && file_of(&tree, "e/f") == [b'D'; LEN]);
    }
}

/// The store's side of a conflict is kept while a program has the file open; the program goes on
/// with the file's other name.
// S-2 S-8
#[test]
fn a_file_that_was_given_up_for_theirs_keeps_its_other_names() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let engine = serve(&media, Arc::new(store.clone()));
    let (f, g) = (Path::new("f"), Path::new("g"));
    let (file, attr) = engine.verbs.create(f, &NEW).expect("no such file yet");
    engine.io.write(&file, 0, &[b'A'; LEN]).expect("room");
    engine.drain.flush_file(&file).expect("a sound store");
    engine.verbs.link(named(f, &attr), g).expect("no such file yet");
    engine.io.write(&file, 0, &[b'B'; LEN]).expect("room");
    let theirs = store.open(f, Access::ReadWrite).expect("it is there");
    theirs.write_at(&[b'T'; LEN], 0).expect("memory");
    assert!(!engine.drain.flush(&[], &Progress::default()).failures.is_empty(), "a conflict");
    engine.ops.resolve(f, Keep::Theirs).expect("it is one");
    engine.verbs.unlink(named(f, &attr)).expect("it is there");
    engine.io.write(&file, 0, &[b'C'; LEN]).expect("room");
    let (disk, tree) = (media.snapshot().process_crash_image(), store.snapshot());
    abandon(engine);
    let tree = recovered(disk, MemStore::on(tree));
    assert!(file_of(&tree, "g") == [b'C'; LEN]);
}
