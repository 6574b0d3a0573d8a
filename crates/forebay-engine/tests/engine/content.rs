//! Files written past the daemon: a flush compares them with the backing store's content, by
//! digests of their blocks.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use forebay_backing::suite::TempDir;
use forebay_backing::wrap::{Verb, Wrapped};
use forebay_backing::{Access, BackingStore, Kind, SetAttr, SetTime, Timestamp};
use forebay_engine::media::{DirMedia, Media, Open};
use forebay_engine::{Allocate, Config, KeepDirty, Past, Progress, Tunables};

use crate::hook::Hook;
use crate::losses::file_of;
use crate::media::CrashMedia;
use crate::rng::Rng;
use crate::start::{
    NEW, abandon, beside, counter, named, patient, read_all, simulated, start, time, within,
};
use crate::store::MemStore;

use bed::Written;
pub use bed::{BLOCK, BOOT, Bed, bytes, with};

mod bed;

/// A file that stays open past the daemon is copied once, and after that only blocks that differ.
// S-6
#[test]
fn a_second_flush_copies_what_was_written_since_the_first() {
    let bed = Bed::new();
    let (file, _) = bed.engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    let past = bed.engine.passed.write(&file, false).expect("room").expect("a new file");
    past.shadow().write_at(&bytes(100), 0).expect("memory");
    assert_eq!(bed.flush(&file), 100 * BLOCK as u64, "all of it");
    for at in [3 * BLOCK + 5, 3 * BLOCK + 6, 70 * BLOCK] {
        past.shadow().write_at(b"!", at as u64).expect("memory");
    }
    assert_eq!(bed.flush(&file), 2 * BLOCK as u64, "two blocks");
    assert_eq!(bed.flush(&file), 0, "nothing since");
    let want = [3 * BLOCK + 5, 3 * BLOCK + 6, 70 * BLOCK];
    let want = want.into_iter().fold(bytes(100), |bytes, at| with(bytes, at, b'!'));
    assert!(file_of(&bed.store, "f") == want);
    past.end().expect("a tier that works");
    assert_eq!(bed.flush(&file), 0, "after its close");
    assert!(!bed.is_dirty(), "that was the last look");
}

/// Digests of fetched blocks are known: of a hundred blocks only the one that was written past the
/// daemon is copied.
// S-6
#[test]
fn of_a_complete_file_what_was_written_past_us_is_copied_and_nothing_else() {
    let bed = Bed::new();
    let file = bed.cached("f", 100);
    bed.poke(&file, 41 * BLOCK + 7, b'!');
    assert!(bed.is_dirty());
    assert_eq!(bed.flush(&file), BLOCK as u64);
    assert!(file_of(&bed.store, "f") == with(bytes(100), 41 * BLOCK + 7, b'!'));
    assert!(!bed.is_dirty());
    // The file grows, and is cut.
    let past = bed.pass(&file);
    past.shadow().write_at(b"more", 100 * BLOCK as u64 + 9).expect("memory");
    past.end().expect("a tier that works");
    assert_eq!(bed.flush(&file), 13, "up to the new end");
    bed.engine.io.set_len(&file, 50 * BLOCK as u64 + 5).expect("it is there");
    bed.flush(&file);
    bed.poke(&file, 0, b'?');
    assert_eq!(bed.flush(&file), BLOCK as u64 + 5, "but for the block that was cut");
    bed.poke(&file, 0, b'.');
    assert_eq!(bed.flush(&file), BLOCK as u64, "what is left is known");
    let mut want = with(with(bytes(100), 41 * BLOCK + 7, b'!'), 0, b'.');
    want.truncate(50 * BLOCK + 5);
    assert!(file_of(&bed.store, "f") == want);
}

/// A program opens a file for writing and writes nothing.
// S-6 S-8
#[test]
fn what_was_only_opened_is_not_dirty_and_asks_for_no_copy() {
    let bed = Bed::new();
    let file = bed.cached("f", 10);
    let before = bed.engine.verbs.stat(Path::new("f")).expect("it is there").version();
    bed.pass(&file).end().expect("a tier that works");
    assert!(!bed.is_dirty());
    assert_eq!(bed.flush(&file), 0);
    let after = bed.engine.verbs.stat(Path::new("f")).expect("it is there").version();
    assert_eq!(before, after, "the store was not touched");
    // A bit of the shadow goes bad: no program wrote it, and it is not flushed.
    let shadow = shadow_in(&bed.media);
    shadow.write_at(&[0xEE], 5).expect("memory");
    bed.pass(&file).end().expect("a tier that works");
    assert!(!bed.is_dirty());
    bed.engine.drain.flush(&[], &Progress::default());
    assert!(file_of(&bed.store, "f") == bytes(10));
    // Others change the file: that is no conflict.
    bed.pass(&file).end().expect("a tier that works");
    let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
    theirs.write_at(b"theirs", 0).expect("memory");
    drop(file);
    let seen = read_all(&bed.engine, Path::new("f")).expect("it is there");
    assert!(seen.starts_with(b"theirs"));
    assert_eq!(counter(&bed.engine, "conflicts"), 0);
}

/// A program that opens a file to write, and writes nothing, makes no conflict with others'
/// changes, during its use or before.
// S-1 S-8
#[test]
fn a_writer_that_writes_nothing_is_in_no_conflict_with_others() {
    for beside_reader in [true, false] {
        let bed = Bed::new();
        let file = bed.cached("f", 10);
        let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
        let reads = || bed.engine.passed.read(&file).expect("a tier that works").expect("complete");
        let reader = beside_reader.then(reads);
        let writer = match &reader {
            // The writer begins on bytes that are known to be old.
            Some(_) => {
                theirs.write_at(b"theirs", 0).expect("memory");
                drop(bed.open("f"));
                bed.engine.passed.write(&file, false).expect("room").expect("beside a reader")
            }
            None => {
                let writer = bed.pass(&file);
                theirs.write_at(b"theirs", 0).expect("memory");
                assert_eq!(bed.flush(&file), 0);
                drop(bed.open("f"));
                drop(reads());
                writer
            }
        };
        writer.end().expect("a tier that works");
        drop((reader, file));
        let seen = read_all(&bed.engine, Path::new("f")).expect("it is there");
        assert!(seen.starts_with(b"theirs"), "beside a reader: {beside_reader}");
        assert_eq!(counter(&bed.engine, "conflicts"), 0, "beside a reader: {beside_reader}");
        assert!(!bed.is_dirty());
    }
    // A program that does write makes a conflict.
    let bed = Bed::new();
    let file = bed.cached("f", 10);
    let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
    let writer = bed.pass(&file);
    theirs.write_at(b"theirs", 0).expect("memory");
    drop(bed.open("f"));
    writer.shadow().write_at(b"ours", 0).expect("memory");
    writer.end().expect("a tier that works");
    assert!(bed.engine.drain.flush_file(&file).is_err());
    assert_eq!(counter(&bed.engine, "conflicts"), 1);
    assert!(read_all(&bed.engine, Path::new("f")).expect("it is there").starts_with(b"ours"));
}

/// The same for a file that was just made, and for one written past the daemon beside a reader, ready or not.
// S-1 S-8
#[test]
fn a_writer_that_has_written_nothing_yet_is_in_no_conflict_with_others() {
    for made_here in [true, false] {
        let bed = Bed::new();
        let file = match made_here {
            true => bed.engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet").0,
            false => bed.cached("f", 10),
        };
        let reads = || bed.engine.passed.read(&file).expect("a tier that works").expect("complete");
        let reader = (!made_here).then(reads);
        let writer = bed.engine.passed.write(&file, false).expect("room").expect("complete");
        let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
        theirs.write_at(b"theirs", 0).expect("memory");
        assert_eq!(bed.flush(&file), 0, "made here: {made_here}");
        writer.end().expect("a tier that works");
        drop((reader, file));
        let seen = read_all(&bed.engine, Path::new("f")).expect("it is there");
        assert!(seen.starts_with(b"theirs"), "made here: {made_here}");
        assert_eq!(counter(&bed.engine, "conflicts"), 0, "made here: {made_here}");
        assert!(!bed.is_dirty());
    }
}

/// After a store's failure in the middle of a flush, bytes that the store has already are not copied again.
// S-6
#[test]
fn what_a_failed_flush_has_not_sent_is_not_sent_by_the_next() {
    let bed = Bed::new();
    let file = bed.cached("f", 10);
    bed.poke(&file, 0, b'1');
    bed.written.1.store(true, Relaxed);
    bed.engine.drain.flush_file(&file).expect_err("it refuses to sync");
    bed.written.1.store(false, Relaxed);
    bed.poke(&file, 5 * BLOCK, b'2');
    assert_eq!(bed.flush(&file), 2 * BLOCK as u64, "what may have been copied, and what is new");
    assert!(file_of(&bed.store, "f") == with(with(bytes(10), 0, b'1'), 5 * BLOCK, b'2'));
    bed.poke(&file, 9 * BLOCK, b'3');
    assert_eq!(bed.flush(&file), BLOCK as u64);
}

/// Returns the shadow file of the only file.
pub fn shadow_in(media: &CrashMedia) -> Arc<dyn forebay_engine::media::MediaFile> {
    let dirs = (0..256).map(|n| format!("shadow/{n:02x}"));
    let name = dirs.flat_map(|dir| {
        let names = media.list(&dir).expect("a tier has them");
        names.into_iter().map(move |name| format!("{dir}/{name}"))
    });
    media.open(&name.last().expect("one file is known"), Open::Existing).expect("it is there")
}

/// R2: y is written over x and copied; the daemon dies before the store is synced; x is written again.
// S-2 S-6
#[test]
fn old_bytes_that_are_written_again_after_a_flush_was_killed_are_copied_again() {
    for verb in [Verb::SyncFiles, Verb::SetTimes] {
        let bed = Bed::new();
        let file = bed.cached("f", 10);
        bed.poke(&file, 0, b'y');
        let moment = bed.at(verb);
        assert_eq!(bed.flush(&file), BLOCK as u64);
        let (disk, tree) = moment.lock().expect("no panic inside").take().expect("it came by");
        abandon(bed.engine);
        let store = MemStore::on(tree.clone());
        assert_eq!(file_of(&store, "f")[0], b'y', "the copy was made");
        // The same boot of the machine, and another one.
        let images = disk.crash_images(&mut Rng::new(3), 20).into_iter().map(|it| (it, "cut"));
        let all: Vec<_> = images.chain([(disk.process_crash_image(), BOOT)]).collect();
        assert!(all.len() > 2, "nothing was unsynced");
        for (image, boot) in all {
            let bed = Bed::on(CrashMedia::on(image), MemStore::on(tree.clone()), boot);
            let file = bed.open("f");
            let past = bed.engine.passed.write(&file, false).expect("room");
            let past = past.expect("all of it was durable");
            past.shadow().write_at(&[1], 0).expect("memory");
            past.end().expect("a tier that works");
            bed.engine.drain.flush_file(&file).expect("a store that works");
            assert!(file_of(&bed.store, "f") == bytes(10), "{boot}: the store keeps y");
            drop(file);
            abandon(bed.engine);
        }
    }
}

/// R1: bytes that were written past the daemon, and synced without the daemon's knowledge, are
/// there after a loss of power; other blocks are old or new, and never zeros.
// S-3 S-4
#[test]
fn a_loss_of_power_leaves_what_a_mapping_has_synced() {
    let bed = Bed::new();
    let file = bed.cached("f", 4);
    assert!(bed.engine.passed.write_ready(&file, false).expect("room").is_none(), "not durable");
    let past = bed.pass(&file);
    past.shadow().write_at(b"synced", 100).expect("memory");
    past.shadow().sync_data().expect("memory");
    past.shadow().write_at(b"unsynced", 2 * BLOCK as u64).expect("memory");
    std::mem::forget(past);
    let (disk, tree) = (bed.media.snapshot(), bed.store.snapshot());
    drop(file);
    abandon(bed.engine);
    let images = disk.crash_images(&mut Rng::new(5), 40);
    assert!(images.len() > 1, "nothing was unsynced");
    for image in images {
        let bed = Bed::on(CrashMedia::on(image), MemStore::on(tree.clone()), "after the cut");
        let report = bed.engine.drain.flush(&[], &Progress::default());
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        let found = file_of(&bed.store, "f");
        let mut want = bytes(4);
        want[100..106].copy_from_slice(b"synced");
        let tail = &found[2 * BLOCK..2 * BLOCK + 8];
        let torn = tail.iter().zip(b"unsynced").all(|(a, b)| a == b || *a == 3);
        assert!(torn, "{tail:?}");
        want[2 * BLOCK..2 * BLOCK + 8].copy_from_slice(tail);
        assert!(found == want);
        abandon(bed.engine);
    }
}

/// The same where the daemon died in between: the next one has not flushed any of the bytes yet.
// S-2 S-3
#[test]
fn a_loss_of_power_after_a_kill_leaves_what_was_synced_before_it() {
    let bed = Bed::new();
    let file = bed.cached("f", 4);
    let past = bed.pass(&file);
    past.shadow().write_at(b"synced", 100).expect("memory");
    bed.engine.io.sync(&file).expect("a tier that works");
    std::mem::forget(past);
    let (disk, tree) = (bed.media.snapshot().process_crash_image(), bed.store.snapshot());
    drop(file);
    abandon(bed.engine);
    let again = Bed::on(CrashMedia::on(disk), MemStore::on(tree.clone()), BOOT);
    assert!(again.is_dirty() && again.written.0.load(Relaxed) == 0, "it is not home");
    let disk = again.media.snapshot();
    abandon(again.engine);
    let images = disk.crash_images(&mut Rng::new(7), 20);
    for image in images.into_iter().chain([disk.process_crash_image()]) {
        let bed = Bed::on(CrashMedia::on(image), MemStore::on(tree.clone()), "after the cut");
        let report = bed.engine.drain.flush(&[], &Progress::default());
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        assert_eq!(&file_of(&bed.store, "f")[100..106], b"synced");
        abandon(bed.engine);
    }
}

/// The daemon dies with a writer: all of the file is compared, and if others have changed the file
/// meanwhile nothing is copied over their version.
// S-2 S-8
#[test]
fn after_a_kill_what_was_written_unseen_is_found_and_not_copied_over_others() {
    for others in [false, true] {
        let bed = Bed::new();
        let file = bed.cached("f", 100);
        let past = bed.pass(&file);
        past.shadow().write_at(b"ours", 50 * BLOCK as u64).expect("memory");
        std::mem::forget(past);
        let disk = bed.media.snapshot().process_crash_image();
        drop(file);
        abandon(bed.engine);
        if others {
            let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
            theirs.write_at(b"theirs", 0).expect("memory");
        }
        let tree = bed.store.snapshot();
        let bed = Bed::on(CrashMedia::on(disk), MemStore::on(tree), BOOT);
        let report = bed.engine.drain.flush(&[], &Progress::default());
        let found = file_of(&bed.store, "f");
        match others {
            false => {
                assert!(report.failures.is_empty(), "{:?}", report.failures);
                assert_eq!(bed.written.0.load(Relaxed), BLOCK as u64);
                assert_eq!(&found[50 * BLOCK..50 * BLOCK + 4], b"ours");
            }
            true => {
                assert_eq!(report.failures.first().map(|it| it.state), Some("conflict"));
                assert!(found.starts_with(b"theirs") && found[50 * BLOCK] == 51, "theirs");
                let ours = read_all(&bed.engine, Path::new("f")).expect("it is there");
                assert_eq!(&ours[50 * BLOCK..50 * BLOCK + 4], b"ours");
            }
        }
        abandon(bed.engine);
    }
}

/// A write through the daemon makes a block unknown if it does not fill it, and no digest survives
/// a change around the tier; a change of names or attributes leaves digests.
// S-6 S-14
#[test]
fn a_digest_is_of_what_the_store_holds() {
    let bed = Bed::new();
    let file = bed.cached("f", 16);
    bed.engine.io.write(&file, BLOCK as u64 + 1, b"!").expect("room");
    assert_eq!(bed.flush(&file), 1);
    bed.poke(&file, 9 * BLOCK, b'?');
    assert_eq!(bed.flush(&file), 2 * BLOCK as u64, "one is not known");
    bed.poke(&file, 9 * BLOCK, b'.');
    assert_eq!(bed.flush(&file), BLOCK as u64, "now all are");
    let attr = bed.engine.verbs.stat(Path::new("f")).expect("it is there");
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    bed.engine.verbs.set_attr(named(Path::new("f"), &attr), &set).expect("a store that works");
    bed.poke(&file, 9 * BLOCK, b',');
    assert_eq!(bed.flush(&file), BLOCK as u64, "a mode changes no byte");
    let want = with(with(bytes(16), BLOCK + 1, b'!'), 9 * BLOCK, b',');
    assert!(file_of(&bed.store, "f") == want);
}

/// Digests that were never noted are learnt from clean bytes here.
// S-6
#[test]
fn what_was_flushed_in_small_parts_is_learnt_before_it_is_written_past_us() {
    let bed = Bed::new();
    let file = bed.cached("f", 16);
    for block in [1, 4, 7, 9, 15] {
        bed.engine.io.write(&file, (block * BLOCK) as u64 + 1, b"!").expect("room");
    }
    assert_eq!(bed.flush(&file), 5);
    bed.poke(&file, 4 * BLOCK, b'?');
    assert_eq!(bed.flush(&file), BLOCK as u64, "the others are what the store holds");
    let want = [1, 4, 7, 9, 15].into_iter().fold(bytes(16), |it, n| with(it, n * BLOCK + 1, b'!'));
    assert!(file_of(&bed.store, "f") == with(want, 4 * BLOCK, b'?'));
}

/// A size that comes back brings back no old byte.
// S-1 S-6
#[test]
fn a_file_that_is_cut_and_grows_back_past_us_has_zeros() {
    let bed = Bed::new();
    let file = bed.cached("f", 10);
    let past = bed.pass(&file);
    bed.engine.io.set_len(&file, 7 * BLOCK as u64 + 7).expect("it is there");
    bed.engine.io.set_len(&file, 10 * BLOCK as u64).expect("room");
    past.shadow().write_at(b"!", 8 * BLOCK as u64).expect("memory");
    past.end().expect("a tier that works");
    bed.flush(&file);
    let mut want = bytes(10);
    want[7 * BLOCK + 7..].fill(0);
    want[8 * BLOCK] = b'!';
    assert!(file_of(&bed.store, "f") == want);
    assert!(!bed.is_dirty());
    bed.poke(&file, 9 * BLOCK, b'.');
    assert_eq!(bed.flush(&file), 4096, "a page of a hole");
    assert!(file_of(&bed.store, "f") == with(want, 9 * BLOCK, b'.'));
}

/// R3: a write of a program into a block that was read, and is not copied yet, is found by the next look.
// S-6
#[test]
fn what_is_written_between_look_and_copy_is_found() {
    let bed = Bed::new();
    let file = bed.cached("f", 10);
    let past = Arc::new(bed.pass(&file));
    past.shadow().write_at(b"1", 0).expect("memory");
    let (writer, came) = (past.clone(), AtomicBool::new(false));
    bed.hook.set(move |call| {
        if call.verb == Verb::WriteAt && !came.swap(true, Relaxed) {
            writer.shadow().write_at(b"2", 0).expect("memory");
        }
    });
    assert_eq!(bed.flush(&file), BLOCK as u64);
    assert_eq!(file_of(&bed.store, "f")[0], b'1', "as it was read");
    assert_eq!(bed.flush(&file), BLOCK as u64);
    assert_eq!(file_of(&bed.store, "f")[0], b'2');
    bed.hook.set(|_| ());
    Arc::into_inner(past).expect("one is left").end().expect("a tier that works");
}

/// Others write to the backing file while the file here is compared and copied: no bytes are lost
/// on either side.
// S-8
#[test]
fn others_who_write_during_a_look_make_a_conflict() {
    let bed = Bed::new();
    let file = bed.cached("f", 10);
    let past = bed.pass(&file);
    past.shadow().write_at(b"ours", 0).expect("memory");
    let (store, came) = (bed.store.clone(), AtomicBool::new(false));
    bed.hook.set(move |call| {
        if call.verb == Verb::SyncFiles && !came.swap(true, Relaxed) {
            let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
            theirs.write_at(b"theirs", 5 * BLOCK as u64).expect("memory");
        }
    });
    let error = bed.engine.drain.flush_file(&file).expect_err("somebody else wrote");
    assert_eq!(error.kind(), forebay_backing::Kind::Conflict, "{error}");
    assert_eq!(&file_of(&bed.store, "f")[5 * BLOCK..5 * BLOCK + 6], b"theirs");
    let mut ours = [0; 4];
    bed.engine.io.read(&file, 0, &mut ours).expect("it is here");
    assert_eq!(&ours, b"ours");
    past.end().expect("a tier that works");
}

/// No byte of a file is evicted between its first writer past the daemon and the last look at it.
// S-9
#[test]
fn what_is_in_doubt_is_not_evicted_and_not_counted_as_dirty() {
    let bed = Bed::new();
    let file = bed.cached("f", 100);
    let evicted = || bed.engine.ops.evict(&[], &Progress::default()).bytes;
    let past = bed.pass(&file);
    past.shadow().write_at(b"!", 0).expect("memory");
    assert_eq!(evicted(), 0, "it is open");
    past.end().expect("a tier that works");
    drop(file);
    assert_eq!(evicted(), 0, "nobody has looked");
    let status = bed.engine.ops.status();
    assert_eq!(status.used_bytes, 100 * BLOCK as u64);
    assert!(status.dirty_bytes <= BLOCK as u64, "{}", status.dirty_bytes);
    bed.engine.drain.flush(&[], &Progress::default());
    assert_eq!(evicted(), 100 * BLOCK as u64);
    let found = read_all(&bed.engine, Path::new("f")).expect("it is there");
    assert!(found == with(bytes(100), 0, b'!'));
}

/// Holes stay holes, and data that replaces one is copied.
// S-6
#[test]
fn holes_are_compared_too() {
    let bed = Bed::new();
    let file = bed.cached("f", 64);
    let blocks = BLOCK as u64;
    bed.engine.io.allocate(&file, Allocate::Zero, 8 * blocks, 8 * blocks).expect("room");
    assert_eq!(bed.flush(&file), 0, "holes are no data");
    let past = bed.pass(&file);
    past.shadow().punch(32 * blocks, 4 * blocks).expect("memory");
    past.shadow().write_at(b"in a hole", 9 * blocks).expect("memory");
    past.end().expect("a tier that works");
    assert_eq!(bed.flush(&file), 4096, "a page of it");
    let mut want = bytes(64);
    want[8 * BLOCK..16 * BLOCK].fill(0);
    want[32 * BLOCK..36 * BLOCK].fill(0);
    want[9 * BLOCK..9 * BLOCK + 9].copy_from_slice(b"in a hole");
    assert!(file_of(&bed.store, "f") == want);
    bed.poke(&file, 0, b'!');
    assert_eq!(bed.flush(&file), blocks, "all holes are known");
}

/// R4, on a real file system with its times: a file that is opened and not written is clean, a
/// written one is not, even if its time was set back.
// S-6
#[test]
fn times_tell_of_each_write() {
    let (dir, store) = (TempDir::new(), MemStore::new());
    let (theirs, _) = store.create(Path::new("f"), &NEW).expect("memory");
    theirs.write_at(&bytes(10), 0).expect("memory");
    let media = Arc::new(DirMedia::open(dir.path()).expect("it is there"));
    let tells = media.tells_each_change();
    let config = Config { digests_from: 1, ..Config::default() };
    let engine = start(media, Arc::new(store.clone()), BOOT, config, patient()).expect("new");
    read_all(&engine, Path::new("f")).expect("it is there");
    let file = engine.io.open(Path::new("f"), None).expect("it is there");
    let dirty = |write: &dyn Fn(&Past)| {
        assert!(engine.passed.make_ready(&file).expect("a tier that works"));
        let past = engine.passed.write_ready(&file, false).expect("room").expect("ready");
        write(&past);
        past.end().expect("a tier that works");
        let dirty = engine.ops.status().dirty_files == 1;
        engine.drain.flush_file(&file).expect("a store that works");
        dirty
    };
    assert_eq!(dirty(&|_| ()), !tells, "nothing was written");
    assert!(dirty(&|past| {
        let before = past.shadow().stat().expect("open").mtime;
        past.shadow().write_at(b"!", 3).expect("room");
        past.shadow().set_mtime(before).expect("open");
    }));
    assert!(file_of(&store, "f") == with(bytes(10), 3, b'!'));
    drop(file);
    engine.ops.shutdown(KeepDirty::No, &Progress::default(), None);
}

/// Programs that open one complete file at the same moment all have it past the daemon: one that
/// the daemon served would keep all later ones there, as long as it has the file open.
#[test]
fn all_who_open_a_file_at_once_have_it_past_us() {
    const PROGRAMS: usize = 4;
    let (dir, store) = (TempDir::new(), MemStore::new());
    let media = Arc::new(DirMedia::open(dir.path()).expect("it is there"));
    let config = Config { digests_from: 1, ..Config::default() };
    let engine = start(media, Arc::new(store.clone()), BOOT, config, patient()).expect("new");
    for number in 0..20 {
        let name = format!("f{number}");
        let (theirs, _) = store.create(Path::new(&name), &NEW).expect("memory");
        theirs.write_at(&bytes(10), 0).expect("memory");
        read_all(&engine, Path::new(&name)).expect("it is there");
        let file = engine.io.open(Path::new(&name), None).expect("it is there");
        let begun = Barrier::new(PROGRAMS);
        let open = || {
            begun.wait();
            let ready = engine.passed.make_ready(&file).expect("a tier that works");
            let past = engine.passed.write_ready(&file, false).expect("room");
            (ready, past)
        };
        let opened: Vec<_> = std::thread::scope(|scope| {
            let programs: Vec<_> = (0..PROGRAMS).map(|_| scope.spawn(open)).collect();
            programs.into_iter().map(|one| one.join().expect("no panic inside")).collect()
        });
        assert!(opened.iter().any(|(ready, _)| *ready), "{name}: somebody had to make it ready");
        assert!(
            opened.iter().all(|(_, past)| past.is_some()),
            "{name}: one is served by the daemon"
        );
        opened
            .into_iter()
            .filter_map(|(_, past)| past)
            .for_each(|past| past.end().expect("a tier"));
    }
    engine.ops.shutdown(KeepDirty::No, &Progress::default(), None);
}

/// An open of a file that another thread takes long to make ready is served by the daemon, and the
/// other open has it past the daemon in the end.
// S-10
#[test]
fn an_open_does_not_wait_for_ever_for_a_file_to_be_made_ready() {
    let _time = simulated();
    let bed = Bed::new();
    let file = bed.cached("f", 10);
    let (clock, syncs) = (time(), Arc::new(AtomicBool::new(false)));
    let begun = syncs.clone();
    bed.media.at_shadow_sync(move || {
        begun.store(true, Relaxed);
        clock.sleep(Duration::from_secs(60));
    });
    let (engine, other) = (bed.engine.clone(), file.clone());
    let first = beside(move || engine.passed.make_ready(&other).expect("a tier that works"));
    within("it is synced", || syncs.load(Relaxed));
    let began = time().now();
    for _ in 0..2 {
        assert!(!bed.engine.passed.make_ready(&file).expect("a tier that works"));
    }
    assert!(time().since(began) < Duration::from_secs(20) && !first.is_finished());
    assert!(first.join(), "nobody has taken its turn away");
    assert!(bed.engine.passed.write_ready(&file, false).expect("room").is_some());
}

/// Setting a time through the daemon does not turn others' bytes into bytes of this mount.
// S-1 S-8
#[test]
fn a_time_that_is_set_hides_no_change_of_others() {
    for dirty in [false, true] {
        let bed = Bed::new();
        let file = bed.cached("f", 4);
        if dirty {
            bed.poke(&file, 0, 9);
        }
        let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
        theirs.write_at(b"theirs", 2 * BLOCK as u64).expect("memory");
        let attr = bed.engine.verbs.stat(Path::new("f")).expect("it is there");
        let time = SetTime::At(Timestamp { sec: 1_000_000, nsec: 0 });
        let set = SetAttr { mtime: Some(time), ..SetAttr::default() };
        bed.engine.verbs.set_attr(named(Path::new("f"), &attr), &set).expect("memory");
        let flushed = bed.engine.drain.flush_file(&file);
        drop(file);
        let found = file_of(&bed.store, "f");
        assert_eq!(&found[2 * BLOCK..2 * BLOCK + 6], b"theirs");
        match dirty {
            true => {
                assert!(flushed.is_err_and(|error| error.kind() == Kind::Conflict));
                assert!(found[0] == 1, "nothing of ours went there");
            }
            false => assert!(read_all(&bed.engine, Path::new("f")).expect("memory") == found),
        }
    }
}

/// After the daemon's death a change of names or attributes by it may have moved the store's ctime, or
/// others may have written to the file, and set its time back: digests are not those of their bytes.
// S-2 S-8
#[test]
fn after_a_kill_digests_are_not_of_a_version_that_is_let_pass() {
    let bed = Bed::new();
    let file = bed.cached("f", 4);
    let past = bed.pass(&file);
    past.shadow().write_at(&[9], 0).expect("memory");
    std::mem::forget(past);
    let disk = bed.media.snapshot().process_crash_image();
    drop(file);
    let store = bed.store.clone();
    abandon(bed.engine);
    let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
    let mtime = theirs.stat().expect("memory").mtime;
    theirs.write_at(b"theirs", 2 * BLOCK as u64).expect("memory");
    theirs.set_times(None, Some(mtime)).expect("memory");
    let bed = Bed::on(CrashMedia::on(disk), store, BOOT);
    let report = bed.engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(file_of(&bed.store, "f") == with(bytes(4), 0, 9), "all of ours, or nothing");
}

/// A write under way moves the shadow's time at its beginning; its bytes may come after the look.
// S-5
#[test]
fn bytes_that_come_behind_a_look_are_found_by_the_next() {
    let _time = simulated();
    let tunables = Tunables { max_age: Duration::from_secs(5), ..Tunables::default() };
    let bed = Bed::with(CrashMedia::default(), MemStore::new(), BOOT, tunables);
    let file = bed.cached("f", 4);
    let past = bed.pass(&file);
    past.shadow().write_at(&[9], 0).expect("memory");
    let home = |want: &[u8]| file_of(&bed.store, "f") == want;
    within("what came before the look is home", || home(&with(bytes(4), 0, 9)));
    bed.media.arrive_late(&[8], 2 * BLOCK as u64);
    let want = with(with(bytes(4), 0, 9), 2 * BLOCK, 8);
    within("what came behind it, too", || home(&want));
    past.end().expect("a tier that works");
}

/// R5: the store has nothing to do, and some file can always be looked at.
// S-5
#[test]
fn what_is_written_past_us_all_the_time_is_looked_at_by_its_age() {
    let _time = simulated();
    let bed = Bed::with(CrashMedia::default(), MemStore::new(), BOOT, Tunables::default());
    let file = bed.cached("f", 4);
    let past = bed.pass(&file);
    let poke = |byte: u8| past.shadow().write_at(&[byte], 0).expect("memory");
    for second in 0..120 {
        poke(second + 10);
        time().sleep(Duration::from_secs(1));
    }
    let looks = bed.written.0.load(Relaxed) / BLOCK as u64;
    assert!((4..=9).contains(&looks), "{looks} in four times max-age");
    poke(9);
    assert_eq!(bed.flush(&file), BLOCK as u64, "who orders one does not wait");
    poke(8);
    past.end().expect("a tier that works");
    let home = || file_of(&bed.store, "f")[0] == 8;
    let closed = time().now();
    within("it is closed", home);
    assert!(time().since(closed) < Duration::from_secs(10), "nothing to wait for");
}

/// In a file without digests a second look would be a second copy: once copied, the file rests
/// until it is written.
// S-5
#[test]
fn what_is_open_and_not_written_any_more_is_not_copied_again() {
    let _time = simulated();
    let (hooked, _hook) = Hook::on(MemStore::new());
    let written = Arc::new(Written::default());
    let store = Wrapped::new(hooked, written.clone());
    let config = Config { digests_from: u64::MAX, ..Config::default() };
    let tunables = Tunables { max_age: Duration::from_secs(5), ..Tunables::default() };
    let engine = start(Arc::new(CrashMedia::default()), store, BOOT, config, tunables);
    let engine = engine.expect("a sound tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
    let past = engine.passed.write(&file, false).expect("room").expect("a new file");
    past.shadow().write_at(&bytes(4), 0).expect("memory");
    let copied = || written.0.load(Relaxed);
    within("it is home", || copied() >= 4 * BLOCK as u64);
    time().sleep(Duration::from_secs(60));
    assert_eq!(copied(), 4 * BLOCK as u64);
    past.end().expect("a tier that works");
    drop(file);
    abandon(engine);
}
