//! Files that the tier has failed to sync.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_backing::wrap::Verb;
use forebay_engine::Keep;

use crate::content::{BLOCK, BOOT, Bed, bytes, with};
use crate::losses::file_of;
use crate::media::{CrashMedia, Fault};
use crate::start::{abandon, read_all};

/// Makes the next sync of a shadow fail, once.
fn fail_a_sync(media: &CrashMedia) {
    let (failing, done) = (media.clone(), AtomicBool::new(false));
    media.at_shadow_sync(move || {
        if !done.swap(true, Relaxed) {
            failing.set_fault(Some(Fault { n: 1, count: 1, errno: libc::EIO }));
        }
    });
}

/// The kernel reports a page that it could not write once, to any caller: here to the drain, whose
/// flush the store refuses as well.
// S-3
#[test]
fn a_sync_after_one_that_failed_claims_nothing_until_the_file_is_flushed() {
    let bed = Bed::new();
    let file = bed.cached("f", 4);
    let sync = || bed.engine.io.sync(&file);
    let ours = with(bytes(4), BLOCK, 9);
    bed.engine.io.write(&file, BLOCK as u64, &[9]).expect("room");
    fail_a_sync(&bed.media);
    assert!(sync().expect_err("the tier fails").is(libc::EIO));
    assert!(bed.is_dirty() && bed.media.faults_given() == 1);
    bed.written.1.store(true, Relaxed);
    assert!(sync().is_err(), "the tier is not to be believed any more, and the store fails, too");
    bed.written.1.store(false, Relaxed);
    assert!(sync().is_ok() && file_of(&bed.store, "f") == ours, "it is on the store");
    bed.media.lose_memory();
    assert!(read_all(&bed.engine, Path::new("f")).expect("it is there") == ours, "fetched again");
    bed.engine.io.write(&file, 0, &[8]).expect("room");
    assert!(sync().is_ok(), "the tier works again");
}

/// The same after the daemon has died or ended with dirty bytes: the kernel, which has reported the
/// error once, tells the next daemon nothing.
// S-3 S-6
#[test]
fn a_sync_that_failed_is_not_forgotten_by_a_restart() {
    for flushed in [false, true] {
        let bed = Bed::new();
        let file = bed.cached("f", 4);
        bed.engine.io.write(&file, BLOCK as u64, &[9]).expect("room");
        fail_a_sync(&bed.media);
        assert!(bed.engine.io.sync(&file).expect_err("the tier fails").is(libc::EIO));
        if flushed {
            // A program reads the file past the daemon, so that the shadow cannot be emptied.
            let reader =
                bed.engine.passed.read(&file).expect("a tier that works").expect("complete");
            bed.flush(&file);
            std::mem::forget(reader);
        }
        let (disk, ours) = (bed.media.snapshot().process_crash_image(), with(bytes(4), BLOCK, 9));
        drop(file);
        let store = bed.store.clone();
        abandon(bed.engine);
        let bed = Bed::on(CrashMedia::on(disk), store, BOOT);
        let file = bed.open("f");
        bed.engine.io.sync(&file).expect("a store that works");
        assert!(file_of(&bed.store, "f") == ours, "durable is what is on the store");
        drop(file);
        bed.media.lose_memory();
        assert!(read_all(&bed.engine, Path::new("f")).expect("it is there") == ours, "{flushed}");
        assert!(file_of(&bed.store, "f") == ours);
    }
}

/// A flush goes on without the tier's sync, and the tier's bytes are not trusted afterwards.
// S-6
#[test]
fn what_was_flushed_behind_a_sync_that_failed_is_fetched_again() {
    let bed = Bed::new();
    let file = bed.cached("f", 4);
    bed.engine.io.write(&file, BLOCK as u64, &[9]).expect("room");
    fail_a_sync(&bed.media);
    bed.flush(&file);
    bed.media.lose_memory();
    assert_eq!(bed.media.faults_given(), 1);
    let ours = with(bytes(4), BLOCK, 9);
    assert!(read_all(&bed.engine, Path::new("f")).expect("it is there") == ours);
    assert!(file_of(&bed.store, "f") == ours && bed.engine.io.sync(&file).is_ok());
}

/// Only the shadow has the content of writes past the daemon: it is not compared once it may be older.
// S-6 S-7
#[test]
fn what_was_written_past_us_is_held_when_the_tier_could_not_sync_it() {
    for (keep, want) in [(Keep::Ours, 2), (Keep::Theirs, 9)] {
        let bed = Bed::new();
        let file = bed.cached("f", 4);
        bed.poke(&file, BLOCK, 9);
        bed.flush(&file);
        let past = bed.pass(&file);
        past.shadow().write_at(&[7], BLOCK as u64).expect("memory");
        fail_a_sync(&bed.media);
        assert!(bed.engine.drain.flush_file(&file).is_err(), "the tier fails");
        // The block is as of its last sync: older than the store's, if it was never synced.
        bed.media.lose_memory();
        past.shadow().write_at(&[2], BLOCK as u64).expect("memory");
        let error = bed.engine.drain.flush_file(&file).expect_err("it is held");
        assert!(error.to_string().contains("failed to sync"), "{error}");
        assert!(bed.engine.io.sync(&file).is_err(), "and not durable");
        assert!(file_of(&bed.store, "f") == with(bytes(4), BLOCK, 9), "nothing went home");
        past.end().expect("a tier that works");
        assert!(bed.engine.drain.flush_file(&file).is_err(), "nor when it is closed");
        bed.engine.ops.resolve(Path::new("f"), keep).expect("a store that works");
        assert!(file_of(&bed.store, "f") == with(bytes(4), BLOCK, want), "{keep:?}");
    }
}

/// A writer that closes the file during the copy has left content that only the shadow has, too.
// S-6 S-7
#[test]
fn what_was_written_past_us_during_a_flush_is_held_when_the_tier_could_not_sync_it() {
    let bed = Bed::new();
    let file = bed.cached("f", 4);
    let past = bed.pass(&file);
    past.shadow().write_at(&[9], 0).expect("memory");
    let mut past = Some(past);
    bed.hook.set(move |call| {
        if let Some(past) = past.take_if(|_| call.verb == Verb::SyncFiles) {
            past.shadow().write_at(&[7], BLOCK as u64).expect("memory");
            past.end().expect("a tier that works");
        }
    });
    bed.flush(&file);
    assert!(bed.is_dirty(), "what came behind the copy");
    fail_a_sync(&bed.media);
    let error = bed.engine.drain.flush_file(&file).expect_err("the tier fails");
    assert!(error.to_string().contains("failed to sync"), "{error}");
    assert!(file_of(&bed.store, "f") == with(bytes(4), 0, 9), "no more went home");
}
