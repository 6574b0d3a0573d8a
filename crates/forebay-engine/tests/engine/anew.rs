//! Names that the backing store has lost with the power, and recovery makes again.

use std::path::Path;
use std::sync::{Arc, Mutex};

use forebay_backing::wrap::{Fault, FaultRule, FaultRules, Verb};
use forebay_backing::{Attr, BackingStore, RenameMode, Result};
use forebay_engine::{Config, Engine, Named, Progress};

use crate::hook::Hook;
use crate::media::{CrashMedia, Disk};
use crate::rng::Rng;
use crate::start::{NEW, abandon, named, patient, read_all, start};
use crate::store::{MemStore, Tree};

const BEFORE: &str = "before";
const AFTER: &str = "after";
const LEN: usize = 64 << 10;

fn serve(media: &CrashMedia, store: Arc<dyn BackingStore>, boot: &str) -> Result<Arc<Engine>> {
    start(Arc::new(media.clone()), store, boot, Config::default(), patient())
}

fn lay(store: &MemStore, path: &str, value: u8) -> Attr {
    let (file, _) = store.create(Path::new(path), &NEW).expect("no such file yet");
    file.write_at(&[value; LEN], 0).expect("a sound store");
    store.stat(Path::new(path)).expect("just made")
}

/// Makes a file that was written, synced and closed.
fn synced(engine: &Arc<Engine>, path: &str, value: u8) -> Attr {
    let (file, attr) = engine.verbs.create(Path::new(path), &NEW).expect("no such file yet");
    engine.io.write(&file, 0, &[value; LEN]).expect("room");
    engine.io.sync(&file).expect("a sound tier");
    drop(file);
    attr
}

fn sync(engine: &Arc<Engine>, path: &str) {
    let file = engine.io.open(Path::new(path), None).expect("it is there");
    engine.io.sync(&file).expect("a sound tier");
    drop(file);
}

/// Returns the medium as the power goes: even the engine's end, which has names on the store synced
/// and then retires them, does not reach it.
fn lose_power(engine: Arc<Engine>, media: &CrashMedia) -> CrashMedia {
    let left = CrashMedia::on(media.snapshot());
    abandon(engine);
    left
}

/// Returns the possible states of the tier after a loss of power.
fn cut(media: &CrashMedia) -> Vec<Disk> {
    media.snapshot().crash_images(&mut Rng::new(7), 8)
}

/// Every file is under its name, here and after a flush on the store, and no other file is.
fn assert_home(disk: Disk, tree: Tree, boot: &str, want: &[(&str, u8)]) {
    let store = MemStore::on(tree);
    let engine = serve(&CrashMedia::on(disk), Arc::new(store.clone()), boot).expect("sound");
    for (path, value) in want {
        let found = read_all(&engine, Path::new(path)).expect("it is made again");
        assert!(found == [*value; LEN], "{path}: {} bytes of {:?}", found.len(), found.first());
    }
    let report = engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{report:?}");
    abandon(engine);
    let files = store.snapshot().files();
    for (path, value) in want {
        assert!(files[Path::new(path)] == [*value; LEN], "{path} on the store");
    }
    assert_eq!(files.len(), want.len(), "{:?}", files.keys());
}

/// Returns a tier on which `tmp` was written, synced and renamed over `f`, and the store before that.
fn replaced() -> (CrashMedia, Tree) {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let old = lay(&store, "f", b'O');
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    let attr = synced(&engine, "tmp", b'N');
    let f = Path::new("f");
    let (from, over) = (named(Path::new("tmp"), &attr), named(f, &old));
    engine.verbs.rename(from, f, Some(over), RenameMode::Replace).expect("both are there");
    sync(&engine, "f");
    let media = lose_power(engine, &media);
    (media, tree)
}

// S-3
#[test]
fn a_file_that_replaced_another_does_so_again() {
    let (media, tree) = replaced();
    for disk in cut(&media) {
        assert_home(disk, tree.clone(), AFTER, &[("f", b'N')]);
    }
}

/// A file that was never synced takes the name of one that was, and then another file is synced: the store forgets
/// the first file and the rename, the log forgets neither.
// S-3
#[test]
fn synced_bytes_are_not_lost_for_a_file_that_replaced_them_unsynced() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let old = lay(&store, "f", b'O');
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    let f = Path::new("f");
    let file = engine.io.open(f, None).expect("it is there");
    engine.io.write(&file, 0, &[b'S'; LEN]).expect("room");
    engine.io.sync(&file).expect("a sound tier");
    drop(file);
    let (new, attr) = engine.verbs.create(Path::new("tmp"), &NEW).expect("no such file yet");
    engine.io.write(&new, 0, &[b'N'; LEN]).expect("room");
    drop(new);
    let (from, over) = (named(Path::new("tmp"), &attr), named(f, &old));
    engine.verbs.rename(from, f, Some(over), RenameMode::Replace).expect("both are there");
    synced(&engine, "other", b'X');
    let media = lose_power(engine, &media);
    for disk in cut(&media) {
        assert_home(disk, tree.clone(), AFTER, &[("f", b'N'), ("other", b'X')]);
    }
}

// S-8
#[test]
fn what_somebody_wrote_after_the_power_was_back_is_not_replaced() {
    let (media, tree) = replaced();
    let store = MemStore::on(tree);
    store.unlink(Path::new("f")).expect("it is there");
    lay(&store, "f", b'T');
    for disk in cut(&media) {
        let store = MemStore::on(store.snapshot());
        let backing = Arc::new(store.clone());
        let engine = serve(&CrashMedia::on(disk), backing, AFTER).expect("sound");
        let report = engine.drain.flush(&[], &Progress::default());
        assert_eq!(report.failures.len(), 1, "{report:?}");
        assert_eq!(engine.ops.status().dirty_bytes, LEN as u64);
        abandon(engine);
        let files = store.snapshot().files();
        assert!(files.len() == 1 && files[Path::new("f")] == [b'T'; LEN], "{:?}", files.keys());
    }
}

// S-3
#[test]
fn a_death_while_names_are_made_again_loses_none() {
    let names: Vec<String> = (0..5).map(|n| format!("f{n}")).collect();
    let want: Vec<(&str, u8)> = names.iter().map(|name| (name.as_str(), b'N')).collect();
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    for name in &names {
        synced(&engine, name, b'N');
    }
    let media = lose_power(engine, &media);
    for disk in cut(&media) {
        let (media, store) = (CrashMedia::on(disk), MemStore::on(tree.clone()));
        let died: Arc<Mutex<Vec<(Disk, Tree)>>> = Arc::default();
        let (backing, hook) = Hook::on(store.clone());
        let (seen, from) = (died.clone(), media.clone());
        // The process may die at each call to the store.
        hook.set(move |_| {
            let disk = from.snapshot().process_crash_image();
            seen.lock().expect("no panic inside").push((disk, store.snapshot()));
        });
        let engine = serve(&media, backing, AFTER).expect("sound");
        let died = std::mem::take(&mut *died.lock().expect("no panic inside"));
        abandon(engine);
        assert!(died.len() >= 3 * names.len(), "{} moments", died.len());
        for (disk, tree) in died {
            assert_home(disk, tree, AFTER, &want);
        }
    }
}

// S-3
#[test]
fn a_directory_that_was_renamed_is_made_again_for_what_was_synced() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let (d, e) = (Path::new("d"), Path::new("e"));
    let dir = store.mkdir(d, &NEW).expect("no such name yet");
    lay(&store, "d/f", b'O');
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    let file = engine.io.open(Path::new("d/f"), None).expect("it is there");
    engine.io.write(&file, 0, &[b'N'; LEN]).expect("room");
    engine.io.sync(&file).expect("a sound tier");
    let from = Named { path: d, key: dir.key, is_dir: true };
    engine.verbs.rename(from, e, None, RenameMode::Replace).expect("it is there");
    engine.io.sync(&file).expect("a sound tier");
    drop(file);
    let media = lose_power(engine, &media);
    for disk in cut(&media) {
        assert_home(disk, tree.clone(), AFTER, &[("e/f", b'N')]);
    }
}

/// Only the rename is lost; then another program takes the new name.
// S-8
#[test]
fn a_forgotten_rename_takes_no_newer_files_place() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let engine = serve(&media, Arc::new(store.clone()), BEFORE).expect("a new tier");
    let attr = synced(&engine, "a", b'O');
    assert!(engine.drain.flush(&[], &Progress::default()).failures.is_empty());
    let tree = store.snapshot();
    let file = engine.io.open(Path::new("a"), None).expect("it is there");
    engine.io.write(&file, 0, &[b'N'; LEN]).expect("room");
    engine
        .verbs
        .rename(named(Path::new("a"), &attr), Path::new("b"), None, RenameMode::Replace)
        .unwrap();
    engine.io.sync(&file).expect("a sound tier");
    drop(file);
    let media = lose_power(engine, &media);
    for (taken, disk) in cut(&media).into_iter().enumerate().map(|(n, disk)| (n % 2 == 0, disk)) {
        let store = MemStore::on(tree.clone());
        if !taken {
            assert_home(disk, store.snapshot(), AFTER, &[("b", b'N')]);
            continue;
        }
        // The clock of this store went on meanwhile.
        (0..100).for_each(|_| lay_again(&store, "other"));
        lay(&store, "b", b'T');
        let backing = Arc::new(store.clone());
        let engine = serve(&CrashMedia::on(disk), backing, AFTER).expect("sound");
        assert_eq!(engine.drain.flush(&[], &Progress::default()).failures.len(), 1);
        abandon(engine);
        let files = store.snapshot().files();
        assert!(files[Path::new("b")] == [b'T'; LEN] && files[Path::new("a")] == [b'O'; LEN]);
    }
}

fn lay_again(store: &MemStore, path: &str) {
    let _ = store.unlink(Path::new(path));
    lay(store, path, b'-');
}

fn touch_first_page(engine: &Arc<Engine>, path: &str, value: u8) -> Attr {
    let file = engine.io.open(Path::new(path), None).expect("it is there");
    engine.io.write(&file, 0, &[value; 4096]).expect("room");
    engine.io.sync(&file).expect("a sound tier");
    drop(file);
    engine.verbs.stat(Path::new(path)).expect("it is there")
}

/// The store has lost no byte that it held before.
fn assert_none_replaced(media: &CrashMedia, tree: &Tree, marks: &[u8]) {
    for disk in cut(media) {
        let store = MemStore::on(tree.clone());
        let backing = Arc::new(store.clone());
        let engine = serve(&CrashMedia::on(disk), backing, AFTER).expect("sound");
        let report = engine.drain.flush(&[], &Progress::default());
        abandon(engine);
        let files = store.snapshot().files();
        for mark in marks {
            let held = files.values().any(|bytes| bytes.last() == Some(mark));
            assert!(held, "{} is gone: {:?} {report:?}", *mark as char, files.keys());
        }
    }
}

// S-4
#[test]
fn two_files_that_were_exchanged_replace_neither() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    lay(&store, "a", b'A');
    lay(&store, "b", b'B');
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    let a = touch_first_page(&engine, "a", b'1');
    let b = touch_first_page(&engine, "b", b'2');
    let (pa, pb) = (Path::new("a"), Path::new("b"));
    engine.verbs.rename(named(pa, &a), pb, Some(named(pb, &b)), RenameMode::Exchange).unwrap();
    sync(&engine, "a");
    sync(&engine, "b");
    let media = lose_power(engine, &media);
    assert_none_replaced(&media, &tree, b"AB");
}

// S-4
#[test]
fn a_new_file_does_not_replace_what_was_moved_out_of_its_way() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let old = lay(&store, "conf", b'O');
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    let new = synced(&engine, "conf.new", b'N');
    let (conf, bak) = (Path::new("conf"), Path::new("conf.bak"));
    engine.verbs.rename(named(conf, &old), bak, None, RenameMode::Replace).unwrap();
    engine
        .verbs
        .rename(named(Path::new("conf.new"), &new), conf, None, RenameMode::Replace)
        .unwrap();
    sync(&engine, "conf");
    let media = lose_power(engine, &media);
    assert_none_replaced(&media, &tree, b"O");
}

// S-4
#[test]
fn a_file_does_not_replace_what_was_moved_out_of_its_way() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let old = lay(&store, "conf", b'O');
    lay(&store, "conf.new", b'N');
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    let new = touch_first_page(&engine, "conf.new", b'1');
    let (conf, bak) = (Path::new("conf"), Path::new("conf.bak"));
    engine.verbs.rename(named(conf, &old), bak, None, RenameMode::Replace).unwrap();
    engine
        .verbs
        .rename(named(Path::new("conf.new"), &new), conf, None, RenameMode::Replace)
        .unwrap();
    sync(&engine, "conf");
    let media = lose_power(engine, &media);
    assert_none_replaced(&media, &tree, b"ON");
}

/// Returns a tier on which `n` times a new file was written, synced and renamed over `f`.
fn replaced_so_often(n: u8) -> (CrashMedia, Tree) {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let (f, mut old) = (Path::new("f"), lay(&store, "f", b'O'));
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    for value in 1..=n {
        let attr = synced(&engine, "tmp", value);
        let (from, over) = (named(Path::new("tmp"), &attr), named(f, &old));
        engine.verbs.rename(from, f, Some(over), RenameMode::Replace).expect("both are there");
        sync(&engine, "f");
        old = attr;
    }
    let media = lose_power(engine, &media);
    (media, tree)
}

// S-3
#[test]
fn a_file_that_is_replaced_again_and_again_is_the_last() {
    let (media, tree) = replaced_so_often(5);
    for disk in cut(&media) {
        assert_home(disk, tree.clone(), AFTER, &[("f", 5)]);
    }
}

// S-3
#[test]
fn a_second_loss_of_power_takes_away_no_name_made_again() {
    let (media, tree) = replaced();
    for disk in cut(&media) {
        let media = CrashMedia::on(disk);
        let backing = Arc::new(MemStore::on(tree.clone()));
        let media = lose_power(serve(&media, backing, AFTER).expect("sound"), &media);
        for disk in cut(&media) {
            assert_home(disk, tree.clone(), "later", &[("f", b'N')]);
        }
    }
}

/// Both files are renamed again, in either order of their ids.
// S-3
#[test]
fn a_chain_of_renames_is_made_again_from_its_end() {
    for names in [["x", "y"], ["y", "x"]] {
        let (media, store) = (CrashMedia::default(), MemStore::new());
        lay(&store, "x", b'X');
        lay(&store, "y", b'Y');
        let tree = store.snapshot();
        let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
        let write = |name: &str| {
            let file = engine.io.open(Path::new(name), None).expect("it is there");
            engine.io.write(&file, 0, &[name.as_bytes()[0]; LEN]).expect("room");
            engine.io.sync(&file).expect("a sound tier");
            drop(file);
            (name == "x", engine.verbs.stat(Path::new(name)).expect("it is there"))
        };
        let attrs = names.map(write);
        let of = |x: bool| attrs.iter().find(|(is_x, _)| *is_x == x).expect("both").1;
        let (x, y, z) = (Path::new("x"), Path::new("y"), Path::new("z"));
        engine.verbs.rename(named(y, &of(false)), z, None, RenameMode::Replace).unwrap();
        engine.verbs.rename(named(x, &of(true)), y, None, RenameMode::Replace).unwrap();
        sync(&engine, "y");
        sync(&engine, "z");
        let media = lose_power(engine, &media);
        for disk in cut(&media) {
            assert_home(disk, tree.clone(), AFTER, &[("y", b'x'), ("z", b'y')]);
        }
    }
}

/// A file is renamed after the flush has synced the store and before it has ended.
// S-3
#[test]
fn a_rename_after_the_sync_of_a_flush_is_made_again() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let (backing, hook) = Hook::on(store.clone());
    let engine = serve(&media, backing, BEFORE).expect("a new tier");
    let attr = synced(&engine, "a", b'A');
    let file = engine.io.open(Path::new("a"), None).expect("it is there");
    let at_sync: Arc<Mutex<Option<Tree>>> = Arc::default();
    let (seen, of, held, store) = (at_sync.clone(), engine.clone(), file.clone(), store.clone());
    hook.set_after(move |call| {
        let mut seen = seen.lock().expect("no panic inside");
        if call.verb != Verb::SyncFiles || seen.is_some() {
            return;
        }
        *seen = Some(store.snapshot());
        // Bytes that are written meanwhile stay dirty.
        of.io.write(&held, 0, &[b'B'; LEN]).expect("room");
        let from = named(Path::new("a"), &attr);
        of.verbs.rename(from, Path::new("b"), None, RenameMode::Replace).expect("it is there");
    });
    engine.drain.flush_file(&file).expect("a sound store");
    engine.io.sync(&file).expect("a sound tier");
    let tree = at_sync.lock().expect("no panic inside").take().expect("it was synced");
    drop(file);
    let media = lose_power(engine, &media);
    for disk in cut(&media) {
        assert_home(disk, tree.clone(), AFTER, &[("b", b'B')]);
    }
}

/// The store fails while recovery looks up which file has the name.
// S-4
#[test]
fn a_name_that_cannot_be_looked_at_is_not_replaced() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    lay(&store, "a", b'A');
    let other = lay(&store, "b", b'B');
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    let attr = touch_first_page(&engine, "a", b'1');
    let (a, b, c) = (Path::new("a"), Path::new("b"), Path::new("c"));
    engine.verbs.rename(named(b, &other), c, None, RenameMode::Replace).unwrap();
    engine.verbs.rename(named(a, &attr), b, None, RenameMode::Replace).unwrap();
    sync(&engine, "b");
    let media = lose_power(engine, &media);
    for disk in cut(&media) {
        let store = MemStore::on(tree.clone());
        let rule = FaultRule {
            op: "stat".into(),
            path: "b".into(),
            fail: Some("EIO".to_string().try_into().expect("an error")),
            count: Some(1),
            ..FaultRule::default()
        };
        let rules = FaultRules { seed: 1, rules: vec![rule] };
        let (backing, _faults) =
            Fault::with_rules(Arc::new(store.clone()), rules).expect("sound rules");
        if let Ok(engine) = serve(&CrashMedia::on(disk), backing, AFTER) {
            let _ = engine.drain.flush(&[], &Progress::default());
            abandon(engine);
        }
        let files = store.snapshot().files();
        let held = files.values().any(|bytes| bytes.last() == Some(&b'B'));
        assert!(held, "b is gone: {:?}", files.keys());
    }
}

/// The power goes while half of a rename is on record, and nothing of it is on the store.
// S-3
#[test]
fn a_rename_that_was_cut_off_loses_nothing_synced_of_what_it_was_to_replace() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    lay(&store, "f", b'O');
    lay(&store, "new", b'O');
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    let attrs = [("f", b'F'), ("new", b'N')].map(|(name, value)| {
        let file = engine.io.open(Path::new(name), None).expect("it is there");
        engine.io.write(&file, 0, &[value; LEN]).expect("room");
        engine.io.sync(&file).expect("a sound tier");
        drop(file);
        engine.verbs.stat(Path::new(name)).expect("it is there")
    });
    let (f, new) = (Path::new("f"), Path::new("new"));
    let over = Some(named(f, &attrs[0]));
    engine
        .verbs
        .rename(named(new, &attrs[1]), f, over, RenameMode::Replace)
        .expect("both are there");
    let media = lose_power(engine, &media);
    let mut seen = Vec::new();
    for disk in media.snapshot().crash_images(&mut Rng::new(7), 200) {
        let store = MemStore::on(tree.clone());
        let backing = Arc::new(store.clone());
        let engine = serve(&CrashMedia::on(disk), backing, AFTER).expect("sound");
        let report = engine.drain.flush(&[], &Progress::default());
        assert!(report.failures.is_empty(), "{report:?}");
        abandon(engine);
        let files = store.snapshot().files();
        let of = |path| files.get(path).map(|bytes| bytes[0]);
        seen.push((of(f), of(new)));
    }
    let renamed = |seen: &(Option<u8>, Option<u8>)| *seen == (Some(b'N'), None);
    let not = |seen: &(Option<u8>, Option<u8>)| *seen == (Some(b'F'), Some(b'N'));
    assert!(seen.iter().all(|seen| renamed(seen) || not(seen)), "{seen:?}");
    assert!(seen.iter().any(renamed) && seen.iter().any(not), "{seen:?}");
}

// S-3
#[test]
fn two_files_that_changed_places_do_so_again() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    lay(&store, "a", b'O');
    lay(&store, "b", b'O');
    let tree = store.snapshot();
    let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
    let attrs = ["a", "b"].map(|name| {
        let file = engine.io.open(Path::new(name), None).expect("it is there");
        engine.io.write(&file, 0, &[name.as_bytes()[0]; LEN]).expect("room");
        engine.io.sync(&file).expect("a sound tier");
        drop(file);
        engine.verbs.stat(Path::new(name)).expect("it is there")
    });
    let (a, b, aside) = (Path::new("a"), Path::new("b"), Path::new("aside"));
    for (from, attr, to) in [(a, &attrs[0], aside), (b, &attrs[1], a), (aside, &attrs[0], b)] {
        engine.verbs.rename(named(from, attr), to, None, RenameMode::Replace).expect("it is free");
    }
    sync(&engine, "a");
    sync(&engine, "b");
    let media = lose_power(engine, &media);
    for disk in cut(&media) {
        assert_home(disk, tree.clone(), AFTER, &[("a", b'b'), ("b", b'a')]);
    }
}

/// Writes all of a file of the store anew, syncs and closes it.
fn synced_over(engine: &Arc<Engine>, path: &str, value: u8) -> Attr {
    let file = engine.io.open(Path::new(path), None).expect("it is there");
    engine.io.write(&file, 0, &[value; LEN]).expect("room");
    engine.io.sync(&file).expect("a sound tier");
    drop(file);
    engine.verbs.stat(Path::new(path)).expect("it is there")
}

/// One of two exchanged files then gets another name, in either order of their ids.
// S-3
#[test]
fn a_file_that_went_on_after_an_exchange_does_so_again() {
    for names in [["a", "b"], ["b", "a"]] {
        let (media, store) = (CrashMedia::default(), MemStore::new());
        lay(&store, "a", b'O');
        lay(&store, "b", b'O');
        let tree = store.snapshot();
        let engine = serve(&media, Arc::new(store), BEFORE).expect("a new tier");
        let attrs = names.map(|name| (name, synced_over(&engine, name, name.as_bytes()[0])));
        let of = |name| attrs.iter().find(|(known, _)| *known == name).expect("both").1;
        let (a, b, c) = (Path::new("a"), Path::new("b"), Path::new("c"));
        let over = Some(named(b, &of("b")));
        engine
            .verbs
            .rename(named(a, &of("a")), b, over, RenameMode::Exchange)
            .expect("both are there");
        engine.verbs.rename(named(a, &of("b")), c, None, RenameMode::Replace).expect("it is free");
        sync(&engine, "b");
        sync(&engine, "c");
        let media = lose_power(engine, &media);
        for disk in cut(&media) {
            assert_home(disk, tree.clone(), AFTER, &[("b", b'a'), ("c", b'b')]);
        }
    }
}

/// The daemon dies between a rename and its record, and later the power goes.
// S-3
#[test]
fn a_rename_that_recovery_found_done_is_made_again() {
    for replaces in [false, true] {
        let (media, store) = (CrashMedia::default(), MemStore::new());
        lay(&store, "a", b'O');
        let (a, b) = (Path::new("a"), Path::new("b"));
        if replaces {
            lay(&store, "b", b'T');
        }
        let tree = store.snapshot();
        let (backing, hook) = Hook::on(store.clone());
        let engine = serve(&media, backing, BEFORE).expect("a new tier");
        let attr = synced_over(&engine, "a", b'N');
        let over = replaces.then(|| touch_first_page(&engine, "b", b'2'));
        let died: Arc<Mutex<Option<(Disk, Tree)>>> = Arc::default();
        let (seen, from) = (died.clone(), media.clone());
        hook.set_after(move |call| {
            if call.verb == Verb::Rename {
                let disk = from.snapshot().process_crash_image();
                *seen.lock().expect("no panic inside") = Some((disk, store.snapshot()));
            }
        });
        let over = over.as_ref().map(|over| named(b, over));
        engine.verbs.rename(named(a, &attr), b, over, RenameMode::Replace).expect("it is there");
        abandon(engine);
        let (disk, renamed) = died.lock().expect("no panic inside").take().expect("renamed");
        let media = CrashMedia::on(disk);
        let backing = Arc::new(MemStore::on(renamed));
        let engine = serve(&media, backing, BEFORE).expect("sound");
        sync(&engine, "b");
        let media = lose_power(engine, &media);
        for disk in cut(&media) {
            assert_home(disk, tree.clone(), AFTER, &[("b", b'N')]);
        }
    }
}
