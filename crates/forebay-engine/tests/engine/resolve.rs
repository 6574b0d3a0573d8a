//! Conflicts are settled while programs have the file open and the tier is short of room (S8).

use std::path::Path;
use std::sync::Arc;

use forebay_backing::wrap::{Call, Verb};
use forebay_backing::{Access, BackingStore, RenameMode};
use forebay_engine::{Engine, Keep, OpenFile, Progress, Tunables};

use crate::hook::Hook;
use crate::losses::{self, KIB, file_of};
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, counter, patient, read_all, start};
use crate::store::MemStore;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// A file of ones: its first page is twos here, and a later part is sevens on the store.
struct Bed {
    store: MemStore,
    hook: Arc<Hook>,
    engine: Arc<Engine>,
    file: OpenFile,
}

fn path() -> &'static Path {
    Path::new("f")
}

fn bed(len: usize, foreign: impl FnOnce(&MemStore)) -> Bed {
    let store = MemStore::new();
    let (theirs, _) = store.create(path(), &NEW).expect("memory");
    theirs.write_at(&vec![1; len], 0).expect("memory");
    let (hooked, hook) = Hook::on(store.clone());
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, hooked, "resolve", Default::default(), patient()).expect("new");
    let file = engine.io.open(path(), None).expect("it exists");
    let mut part = vec![0; MIB];
    for at in (0..len).step_by(MIB) {
        engine.io.read(&file, at as u64, &mut part).expect("it is there");
    }
    engine.io.write(&file, 0, &[2; PAGE]).expect("room");
    foreign(&store);
    let report = engine.drain.flush(&[], &Progress::default());
    assert_eq!(report.failures.first().map(|failure| failure.state), Some("conflict"));
    Bed { store, hook, engine, file }
}

fn write_there(store: &MemStore) {
    let theirs = store.open(path(), Access::ReadWrite).expect("it exists");
    theirs.write_at(&[7; PAGE], 2 * PAGE as u64).expect("memory");
}

/// Whether a call writes behind the first mebibyte of a copy beside the file.
fn is_late_copy(call: &Call<'_>) -> bool {
    let beside = call.paths[0].to_string_lossy().contains("forebay-ours");
    call.verb == Verb::WriteAt && beside && call.offset >= MIB as u64
}

fn saved(store: &MemStore) -> Vec<Vec<u8>> {
    let beside =
        |(path, bytes): (std::path::PathBuf, Vec<u8>)| (path != self::path()).then_some(bytes);
    store.snapshot().files().into_iter().filter_map(beside).collect()
}

// S-8
#[test]
fn what_is_written_while_our_side_is_saved_is_in_it() {
    let Bed { store, hook, engine, file } = bed(3 * MIB, write_there);
    let (writer, open) = (engine.clone(), file.clone());
    let mut written = false;
    hook.set(move |call| {
        if is_late_copy(call) && !std::mem::replace(&mut written, true) {
            writer.io.write(&open, 0, &[3; PAGE]).expect("room");
        }
    });
    engine.ops.resolve(path(), Keep::Both).expect("it is written once only");
    let ours = saved(&store);
    assert_eq!(ours.len(), 1);
    assert!(ours[0][..PAGE].iter().all(|byte| *byte == 3), "acknowledged: {}", ours[0][0]);
    assert!(ours[0].len() == 3 * MIB && ours[0][PAGE..].iter().all(|byte| *byte == 1));
    let mut now = vec![0; PAGE];
    engine.io.read(&file, 2 * PAGE as u64, &mut now).expect("it is there");
    assert!(now.iter().all(|byte| *byte == 7), "theirs has the name");
    drop(file);
    abandon(engine);
}

// S-8
#[test]
fn a_file_that_is_written_all_the_time_stays_in_conflict_and_loses_nothing() {
    let Bed { store, hook, engine, file } = bed(3 * MIB, write_there);
    let (writer, open) = (engine.clone(), file.clone());
    let mut value = 100;
    hook.set(move |call| {
        if is_late_copy(call) {
            value += 1;
            writer.io.write(&open, 0, &[value; PAGE]).expect("room");
        }
    });
    let error = engine.ops.resolve(path(), Keep::Both).expect_err("it never rests");
    assert_eq!(error.errno(), libc::EBUSY, "{error}");
    assert!(saved(&store).is_empty(), "no copy that is not the last word");
    assert_eq!(engine.ops.status().conflicted_files, 1);
    hook.set(|_| {});
    let mut now = vec![0; PAGE];
    engine.io.read(&file, 0, &mut now).expect("it is there");
    engine.ops.resolve(path(), Keep::Both).expect("it rests");
    assert!(now[0] > 100 && saved(&store)[0][..PAGE] == now[..], "the last write: {}", now[0]);
    drop(file);
    abandon(engine);
}

/// Method: the tier becomes small in the middle, so that clean bytes are evicted.
// S-8
#[test]
fn a_tier_short_of_room_leaves_no_zeros_in_what_is_saved() {
    let Bed { store, hook, engine, file } = bed(20 * MIB, write_there);
    let evictor = engine.clone();
    let mut done = false;
    hook.set(move |call| {
        if is_late_copy(call) && !std::mem::replace(&mut done, true) {
            let small = Tunables { tier_size: Some(4 << 20), ..patient() };
            evictor.ops.set_tunables(small).expect("valid");
        }
    });
    engine.ops.resolve(path(), Keep::Both).expect("it can be saved");
    let ours = saved(&store).pop().expect("one copy");
    assert!(ours[..PAGE].iter().all(|byte| *byte == 2));
    let wrong = ours[PAGE..].iter().position(|byte| *byte != 1);
    assert_eq!(wrong, None, "of {}", ours.len());
    drop(file);
    abandon(engine);
}

// S-8
#[test]
fn what_a_shortened_file_lacks_is_not_made_up() {
    let Bed { store, engine, file, .. } = bed(3 * MIB, |store| {
        let theirs = store.open(path(), Access::ReadWrite).expect("it exists");
        theirs.set_len(MIB as u64).expect("memory");
    });
    engine.ops.set_tunables(Tunables { tier_size: Some(1 << 20), ..patient() }).expect("valid");
    assert!(counter(&engine, "evicted_bytes") > 0, "the rest must be asked for");
    for keep in [Keep::Both, Keep::Ours] {
        let error = engine.ops.resolve(path(), keep).expect_err("the rest is gone");
        assert_eq!(error.errno(), libc::EIO, "{error}");
    }
    assert!(saved(&store).is_empty(), "half a file is none");
    assert!(store.snapshot().files()[path()] == vec![1; MIB], "theirs is as it was");
    assert_eq!(engine.ops.status().conflicted_files, 1, "ours is as it was");
    drop(file);
    abandon(engine);
}

/// Programs read the version here as a whole; all of it but a page is clean, and the store's
/// version has none of it.
// S-8
#[test]
fn keeping_ours_keeps_what_was_clean_of_it() {
    let Bed { store, engine, file, .. } = bed(3 * MIB, |store| {
        let theirs = store.open(path(), Access::ReadWrite).expect("it exists");
        theirs.set_len(0).expect("memory");
    });
    let mut ours = vec![1; 3 * MIB];
    ours[..PAGE].fill(2);
    let mut seen = vec![0; ours.len()];
    engine.io.read(&file, 0, &mut seen).expect("all of it is cached");
    assert!(seen == ours, "what programs read before");
    engine.ops.resolve(path(), Keep::Ours).expect("nobody else writes");
    engine.io.read(&file, 0, &mut seen).expect("it is there");
    assert!(seen == ours, "what programs read after");
    assert!(store.snapshot().files()[path()] == ours, "what is on the store");
    assert_eq!(engine.ops.status().dirty_bytes, 0);
    drop(file);
    abandon(engine);
}

/// Makes `name` a file of `O` here, synced and in conflict with one of `T`.
fn in_conflict(name: &str) -> losses::Bed {
    let bed = losses::Bed::new();
    let file = bed.flushed(name, b'A');
    bed.engine.io.write(&file, 0, &[b'O'; 64 * KIB]).expect("room");
    bed.engine.io.sync(&file).expect("a tier that works");
    drop(file);
    bed.others_write(name, b'T');
    assert_eq!(bed.engine.drain.flush(&[], &Progress::default()).failures.len(), 1);
    bed
}

/// Method: the tier loses its power as soon as the command has ended.
// S-4 S-8
#[test]
fn a_loss_of_power_brings_no_settled_conflict_back() {
    for keep in [Keep::Theirs, Keep::Both] {
        let bed = in_conflict("f");
        bed.engine.ops.resolve(path(), keep).expect("nobody else writes");
        bed.cut_and_flush(|store, report| {
            assert!(report.failures.is_empty(), "{keep:?}: {:?}", report.failures);
            assert!(file_of(store, "f") == [b'T'; 64 * KIB], "{keep:?}");
        });
    }
}

// S-8
#[test]
fn our_side_is_saved_beside_a_long_name() {
    for (name, cut) in [("n".repeat(255), 240), (format!("n{}", "\u{e4}".repeat(127)), 239)] {
        let bed = in_conflict(&name);
        let taken = format!("{}.forebay-ours-1", &name[..cut]);
        bed.store.create(Path::new(&taken), &NEW).expect("memory");
        bed.engine.ops.resolve(Path::new(&name), Keep::Both).expect("a shorter name is free");
        let saved = format!("{}.forebay-ours-2", &name[..cut]);
        assert!(file_of(&bed.store, &saved) == [b'O'; 64 * KIB], "{saved}");
        assert!(file_of(&bed.store, &taken).is_empty(), "it is another's");
        assert!(file_of(&bed.store, &name) == [b'T'; 64 * KIB]);
        abandon(bed.engine);
    }
}

/// A program would go on with a descriptor that leads to no file on the store.
// S-8
#[test]
fn a_file_that_others_replaced_is_settled_once_programs_have_closed_it() {
    for keep in [Keep::Theirs, Keep::Ours, Keep::Both] {
        let Bed { store, engine, file, .. } = bed(PAGE, |store| {
            let (theirs, _) = store.create(Path::new("aside"), &NEW).expect("memory");
            theirs.write_at(b"theirs", 0).expect("memory");
            store.rename(Path::new("aside"), path(), RenameMode::Replace).expect("memory");
        });
        let error = engine.ops.resolve(path(), keep).expect_err("it is open");
        assert_eq!(error.errno(), libc::EBUSY, "{keep:?}: {error}");
        assert!(file_of(&store, "f") == b"theirs" && saved(&store).is_empty(), "{keep:?}");
        let (mut now, size) = (vec![0; PAGE], engine.verbs.stat_open(&file).size);
        engine.io.read(&file, 0, &mut now).expect("it is open");
        assert!((now, size) == (vec![2; PAGE], PAGE as u64), "{keep:?}: ours");
        drop(file);
        engine.ops.resolve(path(), keep).expect("it is closed");
        let left = if keep == Keep::Ours { vec![2; PAGE] } else { b"theirs".to_vec() };
        assert!(read_all(&engine, path()).expect("it is there") == left, "{keep:?}");
        assert_eq!(saved(&store).len(), usize::from(keep == Keep::Both));
        assert_eq!(engine.ops.status().conflicted_files, 0);
        abandon(engine);
    }
}
