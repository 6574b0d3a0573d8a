//! Writers past the daemon beside flushes, which cannot see them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_backing::suite::TempDir;
use forebay_backing::wrap::Verb;
use forebay_backing::{Access, BackingStore};
use forebay_engine::media::DirMedia;
use forebay_engine::{Config, KeepDirty, Progress};

use crate::content;
use crate::hook::Hook;
use crate::losses::{BOOT, Bed, KIB, file_of};
use crate::media::{CrashMedia, Leases};
use crate::start::{NEW, abandon, counter, named, patient, read_all, start};
use crate::store::MemStore;

/// A program opens a file past the daemon while it is flushed, writes to it and syncs it. The flush
/// has copied earlier bytes.
// S-3 S-6
#[test]
fn a_flush_says_nothing_of_what_was_written_past_us_meanwhile() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let (hooked, hook) = Hook::on(store.clone());
    let engine = start(Arc::new(media.clone()), hooked, BOOT, Config::default(), patient());
    let engine = engine.expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    engine.io.write(&file, 0, &[b'A'; 64 * KIB]).expect("room");
    let (writer, written, came) = (engine.clone(), file.clone(), AtomicBool::new(false));
    hook.set_after(move |call| {
        if call.verb == Verb::WriteAt && !came.swap(true, Relaxed) {
            let past = writer.passed.write(&written, false).expect("room");
            let past = past.expect("all of it is there");
            past.shadow().write_at(&[b'B'; 64 * KIB], 0).expect("memory");
            writer.io.sync(&written).expect("a tier that works");
            // The program goes on.
            std::mem::forget(past);
        }
    });
    engine.drain.flush_file(&file).expect("a store that works");
    let bed = Bed { media, store, engine };
    let images = bed.cut_the_power(|store| {
        assert!(file_of(store, "f") == [b'B'; 64 * KIB], "synced bytes are lost");
    });
    assert!(images > 1, "nothing was unsynced");
}

/// A program that has mapped a file ends during the last flush: the mount is gone already.
// S-12
#[test]
fn what_a_mapping_leaves_at_the_end_is_flushed() {
    let (dir, store) = (TempDir::new(), MemStore::new());
    let media = Arc::new(DirMedia::open(dir.path()).expect("it is there"));
    let (hooked, hook) = Hook::on(store.clone());
    let engine = start(media, hooked, BOOT, Config::default(), patient()).expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    let past = engine.passed.write(&file, true).expect("room").expect("a new file");
    past.shadow().write_at(&[b'A'; 64 * KIB], 0).expect("room");
    let mapping = OpenOptions::new().write(true).open(shadow_of(dir.path())).expect("one shadow");
    past.end().expect("a tier that works");
    drop(file);
    let mut mapping = Some(mapping);
    hook.set_after(move |call| {
        if call.verb == Verb::WriteAt
            && let Some(mapping) = mapping.take()
        {
            mapping.write_at(&[b'B'; 64 * KIB], 0).expect("room");
        }
    });
    let report = engine.ops.shutdown(KeepDirty::No, &Progress::default(), None);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert_eq!(engine.ops.status().dirty_files, 0, "it was closed before the end");
    assert!(file_of(&store, "f") == [b'B'; 64 * KIB]);
}

/// A program closes a file and goes on with its mapping, and the daemon cannot tell whether it does.
// S-2
#[test]
fn a_mapping_that_cannot_be_told_is_reckoned_with() {
    let bed = content::Bed::new();
    let file = bed.cached("f", 4);
    assert!(bed.engine.passed.make_ready(&file).expect("memory"));
    let past = bed.engine.passed.write_ready(&file, true).expect("room").expect("ready");
    bed.media.set_leases(Leases::Forbidden);
    past.shadow().write_at(&[8], 0).expect("memory");
    past.end().expect("a tier that works");
    bed.flush(&file);
    content::shadow_in(&bed.media).write_at(&[9], 0).expect("memory");
    bed.engine.drain.flush(&[], &Progress::default());
    assert_eq!(file_of(&bed.store, "f")[0], 9, "what the mapping has stored");
    bed.media.set_leases(Leases::Granted);
}

/// Where the daemon cannot learn of mappings, no program is let past it.
// S-2
#[test]
fn without_leases_nobody_is_let_past_us() {
    let bed = content::Bed::new();
    bed.media.set_leases(Leases::Unknown);
    let file = bed.cached("f", 4);
    assert!(!bed.engine.passed.make_ready(&file).expect("memory"));
    assert!(bed.engine.passed.write(&file, true).expect("memory").is_none());
    assert!(bed.engine.passed.read(&file).expect("memory").is_none());
}

pub fn shadow_of(tier: &Path) -> PathBuf {
    let dirs = std::fs::read_dir(tier.join("shadow")).expect("a tier has them");
    let files = |dir: std::fs::DirEntry| std::fs::read_dir(dir.path()).expect("a directory");
    let mut found = dirs.flatten().flat_map(files).flatten();
    found.next().expect("one file is known").path()
}

/// A program maps an empty file that it can only read, and closes it; the file is removed. Its shadow must not become
/// another file's, whose bytes the mapping would show. A descriptor stands for the mapping.
// S-1
#[test]
fn a_shadow_that_a_reader_may_have_mapped_becomes_no_other_files() {
    for is_read in [false, true] {
        let (dir, store) = (TempDir::new(), MemStore::new());
        let media = Arc::new(DirMedia::open(dir.path()).expect("it is there"));
        let engine = start(media, Arc::new(store), BOOT, Config::default(), patient());
        let engine = engine.expect("a new tier");
        let make = |name: &str| {
            let (file, attr) = engine.verbs.create(Path::new(name), &NEW).expect("it is free");
            let past = engine.passed.write(&file, false).expect("room").expect("a new file");
            (file, attr, past)
        };
        let (file, attr, past) = make("f");
        let reads = is_read.then(|| engine.passed.read(&file).expect("room").expect("complete"));
        let mapped =
            File::from(past.shadow().as_fd().expect("a file").try_clone_to_owned().unwrap());
        drop((past, reads, file));
        engine.verbs.unlink(named(Path::new("f"), &attr)).expect("it is there");
        let (other, _, past) = make("g");
        past.shadow().write_at(b"secret", 0).expect("room");
        let mut shown = [0; 6];
        // A program that could only write has nothing mapped: that shadow is used again.
        let want = if is_read { 0 } else { 6 };
        assert_eq!(mapped.read_at(&mut shown, 0).expect("it is open"), want, "{is_read}");
        drop((past, other));
        abandon(engine);
    }
}

/// A program closes its file after the flush that brought all of it home. Others change the file then: that is a
/// conflict only if the program has written once more.
// S-1 S-8
#[test]
fn a_late_close_after_a_flush_is_in_no_conflict_with_others() {
    for writes_again in [false, true] {
        let bed = content::Bed::new();
        let file = bed.cached("f", 10);
        let past = bed.pass(&file);
        past.shadow().write_at(b"ours", 5).expect("memory");
        bed.flush(&file);
        if writes_again {
            past.shadow().write_at(b"ours", 5).expect("memory");
        }
        past.end().expect("a tier that works");
        drop(file);
        let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
        theirs.write_at(b"theirs", 4 * content::BLOCK as u64).expect("memory");
        let seen = read_all(&bed.engine, Path::new("f")).expect("it is there");
        assert!(seen[5..].starts_with(b"ours"));
        assert_eq!(seen[4 * content::BLOCK..].starts_with(b"theirs"), !writes_again);
        assert_eq!(counter(&bed.engine, "conflicts"), u64::from(writes_again));
        abandon(bed.engine);
    }
}

/// A program keeps its file open after the flush that brought all of it home. What others change then is found by
/// the next flush and by an open, and is no conflict unless the program has written once more.
// S-1 S-8
#[test]
fn a_writer_that_stays_after_a_flush_is_in_no_conflict_with_others() {
    for (opens, writes_again) in [(false, false), (true, false), (false, true)] {
        let bed = content::Bed::new();
        let file = bed.cached("f", 10);
        let past = bed.pass(&file);
        past.shadow().write_at(b"ours", 5).expect("memory");
        bed.flush(&file);
        if writes_again {
            past.shadow().write_at(b"more", 5).expect("memory");
        }
        let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
        theirs.write_at(b"theirs", 4 * content::BLOCK as u64).expect("memory");
        if opens {
            drop(bed.engine.io.open(Path::new("f"), None).expect("it is there"));
        }
        let flushed = bed.engine.drain.flush_file(&file);
        let found = (flushed.is_err(), counter(&bed.engine, "conflicts"));
        assert_eq!(found, (writes_again, u64::from(writes_again)), "opens: {opens}");
        past.end().expect("a tier that works");
        drop(file);
        let seen = read_all(&bed.engine, Path::new("f")).expect("it is there");
        assert_eq!(seen[4 * content::BLOCK..].starts_with(b"theirs"), !writes_again);
        abandon(bed.engine);
    }
}

/// The last look at a file finds nothing to send while others write, and set its time back.
// S-1
#[test]
fn what_others_write_during_a_look_that_finds_nothing_is_seen_though_they_set_the_time_back() {
    let bed = content::Bed::new();
    let file = bed.cached("f", 10);
    let past = bed.pass(&file);
    past.shadow().write_at(b"ours", 5).expect("memory");
    bed.flush(&file);
    past.end().expect("a tier that works");
    let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
    let came = AtomicBool::new(false);
    bed.hook.set(move |call| {
        if call.verb == Verb::SyncFiles && !came.swap(true, Relaxed) {
            let time = theirs.stat().expect("memory").mtime;
            theirs.write_at(b"theirs", 0).expect("memory");
            theirs.set_times(None, Some(time)).expect("memory");
        }
    });
    assert_eq!(bed.flush(&file), 0);
    assert!(!bed.is_dirty());
    drop(file);
    let seen = read_all(&bed.engine, Path::new("f")).expect("it is there");
    assert!(seen.starts_with(b"theirs"));
    abandon(bed.engine);
}
