//! Bytes that a flush leaves kept: clean, and durable for a recovery after a loss of power. None of
//! them may come back where it should not, and all must where they were written and synced again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use forebay_backing::wrap::Verb;
use forebay_backing::{Access, BackingStore, SetAttr, SetTime, Timestamp};
use forebay_engine::{Engine, File, Keep, OpenFile, Progress, Report};

use crate::hook::Hook;
use crate::losses::{BOOT, Bed, KIB, file_of, open};
use crate::media::{CrashMedia, Fault};
use crate::rng::Rng;
use crate::start::{NEW, abandon, named, patient, read_all, simulated, start, time};
use crate::store::MemStore;

/// Makes the `n`-th operation of the tier from now fail.
fn fail(bed: &Bed, n: u64, errno: i32) {
    bed.media.set_fault(Some(Fault { n, count: 1, errno }));
}

fn sound(report: &Report) {
    assert!(report.failures.is_empty(), "{:?}", report.failures);
}

/// Kept bytes of a file are in the shadow as long as the log says so.
// S-4
#[test]
fn a_cut_does_not_flush_holes_where_kept_bytes_were_evicted() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    let report = bed.engine.ops.evict(&[], &Progress::default());
    assert_eq!(report.bytes, 64 * KIB as u64, "all of it went");
    let images = bed.cut_the_power(|store| {
        assert!(file_of(store, "f") == [b'A'; 64 * KIB], "holes were flushed");
    });
    assert!(images > 1, "nothing was unsynced");
    drop(file);
}

// S-4
#[test]
fn a_cut_does_not_flush_holes_where_a_part_of_what_was_kept_was_evicted() {
    let bed = Bed::new();
    let unit = 8 << 20;
    let (file, _) = bed.engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    bed.engine.io.write(&file, 0, &vec![b'A'; 2 * unit]).expect("room");
    bed.engine.io.sync(&file).expect("a tier that works");
    bed.engine.drain.flush_file(&file).expect("a store that works");
    bed.engine.io.write(&file, unit as u64 + 100, b"dirty").expect("room");
    bed.engine.io.sync(&file).expect("a tier that works");
    let report = bed.engine.ops.evict(&[], &Progress::default());
    assert_eq!(report.bytes as usize, 2 * unit - 5, "all that was clean went");
    let mut expected = vec![b'A'; 2 * unit];
    expected[unit + 100..unit + 105].copy_from_slice(b"dirty");
    bed.cut_the_power(|store| assert!(file_of(store, "f") == expected, "not what was written"));
    drop(file);
}

// S-4 S-8
#[test]
fn a_cut_does_not_bring_back_what_a_held_file_kept_of_an_older_version() {
    let bed = Bed::new();
    let held = bed.flushed("f", b'A');
    bed.others_write("f", b'T');
    // A new open sees the change; the program that had the file open keeps it open.
    let file = bed.engine.io.open(Path::new("f"), None).expect("it is there");
    let mut seen = [0; 64 * KIB];
    bed.engine.io.read(&file, 0, &mut seen).expect("a store that works");
    assert_eq!(seen, [b'T'; 64 * KIB]);
    bed.cut_and_flush(|store, report| {
        assert!(file_of(store, "f") == [b'T'; 64 * KIB], "their bytes were overwritten");
        sound(report);
    });
    drop(held);
}

/// A file that is not open keeps no bytes.
// S-8
#[test]
fn after_a_cut_a_file_that_was_closed_is_in_conflict_with_nobody() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    drop(file);
    // Another file is synced, and with it the record of the close.
    let _other = bed.flushed("other", b'O');
    bed.others_write("f", b'T');
    bed.cut_and_flush(|store, report| {
        assert!(file_of(store, "f") == [b'T'; 64 * KIB], "their bytes were overwritten");
        sound(report);
    });
}

// S-8
#[test]
fn after_a_cut_a_time_that_was_set_here_is_nobody_elses() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    let attr = bed.engine.verbs.stat(Path::new("f")).expect("it is there");
    let mtime = Some(SetTime::At(Timestamp { sec: 1000, nsec: 0 }));
    let set = SetAttr { mtime, ..SetAttr::default() };
    bed.engine.verbs.set_attr(named(Path::new("f"), &attr), &set).expect("memory");
    bed.cut_and_flush(|store, report| {
        sound(report);
        let found = store.stat(Path::new("f")).expect("it is there");
        assert!(Some(SetTime::At(found.mtime)) == mtime, "{:?}", found.mtime);
    });
    drop(file);
}

/// The same for bytes that were synced, and not flushed yet; both times are set, as rsync does.
// S-3 S-8
#[test]
fn after_a_cut_a_time_that_was_set_on_synced_bytes_is_nobody_elses() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    bed.engine.io.write(&file, 0, &[b'B'; 64 * KIB]).expect("room");
    bed.engine.io.sync(&file).expect("a tier that works");
    let attr = bed.engine.verbs.stat(Path::new("f")).expect("it is there");
    let time = Some(SetTime::At(Timestamp { sec: 1000, nsec: 0 }));
    let set = SetAttr { mtime: time, atime: time, ..SetAttr::default() };
    bed.engine.verbs.set_attr(named(Path::new("f"), &attr), &set).expect("memory");
    bed.cut_and_flush(|store, report| {
        sound(report);
        let found = store.stat(Path::new("f")).expect("it is there");
        assert!(Some(SetTime::At(found.mtime)) == time, "{:?}", found.mtime);
        assert!(file_of(store, "f") == [b'B'; 64 * KIB]);
    });
    drop(file);
}

/// A sync of the tier fails, and the flush goes on: the bytes on the backing store are newer than
/// those on stable storage of the tier.
// S-3 S-4
#[test]
fn a_cut_does_not_bring_back_what_a_failed_sync_left_old() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    bed.engine.io.write(&file, 0, &[b'B'; 64 * KIB]).expect("room");
    fail(&bed, 1, libc::EIO);
    bed.engine.drain.flush_file(&file).expect("a store that works");
    assert_eq!(bed.media.faults_given(), 1, "the sync of the shadow comes first");
    bed.media.set_fault(None);
    bed.engine.io.sync(&file).expect("a tier that works again");
    assert!(bed.is_on_store("f") == [b'B'; 64 * KIB]);
    bed.cut_the_power(|store| {
        assert!(file_of(store, "f") == [b'B'; 64 * KIB], "old bytes went over new ones");
    });
}

/// Kept bytes count as dirty after a cut, so an unseen change of the file by another program
/// meanwhile makes a conflict: no bytes are lost.
// S-8
#[test]
fn after_a_cut_what_was_kept_does_not_go_over_what_somebody_else_wrote() {
    let bed = Bed::new();
    let held = bed.flushed("f", b'A');
    // Makes the record of the flush durable as well.
    bed.engine.io.sync(&held).expect("a tier that works");
    bed.others_write("f", b'T');
    bed.cut_the_power(|store| {
        assert!(file_of(store, "f") == [b'T'; 64 * KIB], "their bytes were overwritten");
    });
    drop(held);
}

/// A flush that has ended is durable on record a moment later, even without a sync: otherwise it
/// would be resumed after a loss of power, over bytes that others have written since.
// S-8
#[test]
fn after_a_cut_a_flush_that_was_over_is_not_resumed_over_others() {
    let _time = simulated();
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    bed.engine.io.write(&file, 0, &[b'B'; 64 * KIB]).expect("room");
    bed.engine.drain.flush_file(&file).expect("a store that works");
    drop(file);
    time().sleep(std::time::Duration::from_secs(1));
    bed.others_write("f", b'T');
    bed.cut_the_power(|store| {
        assert!(file_of(store, "f") == [b'T'; 64 * KIB], "their bytes were overwritten");
    });
}

/// The death of the daemon alone leaves kept bytes clean.
// S-6 S-8
#[test]
fn what_was_kept_is_clean_after_the_death_of_the_daemon() {
    let bed = Bed::new();
    let held = bed.flushed("f", b'A');
    let media = CrashMedia::on(bed.media.snapshot().process_crash_image());
    let engine = open(&media, &bed.store, BOOT);
    assert_eq!(engine.ops.status().dirty_files, 0);
    bed.others_write("f", b'T');
    // A loss of power after that has nothing to bring back.
    let again = Bed { media, store: bed.store.clone(), engine };
    again.cut_and_flush(|store, report| {
        sound(report);
        assert!(file_of(store, "f") == [b'T'; 64 * KIB]);
    });
    abandon(bed.engine);
    drop(held);
}

/// The record of a sync cannot be written; bytes that were durable before stay durable.
// S-3
#[test]
fn a_record_that_fails_takes_back_nothing_that_was_synced() {
    // The flush syncs the shadow and its directory, then records that.
    for n in 1..=4 {
        let bed = Bed::new();
        let (file, _) = bed.engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
        bed.engine.io.write(&file, 0, &[b'A'; 64 * KIB]).expect("room");
        bed.engine.io.sync(&file).expect("a tier that works");
        bed.engine.io.write(&file, 64 * KIB as u64, &[b'B'; 4 * KIB]).expect("room");
        fail(&bed, n, libc::ENOSPC);
        // The power goes in the middle of the flush.
        let moments: Arc<Mutex<Vec<_>>> = Arc::default();
        let (out, store) = (moments.clone(), bed.store.clone());
        bed.media.set_hook(Some(Box::new(move |_, disk| {
            out.lock().expect("a list").push((disk.clone(), store.snapshot()));
        })));
        let _ = bed.engine.drain.flush_file(&file);
        assert_eq!(bed.media.faults_given(), 1, "{n}");
        bed.media.set_hook(None);
        let mut images = 0;
        for (disk, tree) in std::mem::take(&mut *moments.lock().expect("a list")) {
            for image in disk.crash_images(&mut Rng::new(n), 4) {
                images += 1;
                let store = MemStore::on(tree.clone());
                let engine = open(&CrashMedia::on(image), &store, "after the cut");
                let found = read_all(&engine, Path::new("f")).expect("it is there");
                abandon(engine);
                assert!(found.len() >= 64 * KIB, "{n}: {} bytes are left", found.len());
                assert!(found[..64 * KIB] == [b'A'; 64 * KIB], "{n}: synced bytes are lost");
            }
        }
        assert!(images > 1, "nothing was unsynced");
        abandon(bed.engine);
    }
}

/// A file has grown, and its flush could not record that it is durable here.
// S-5
#[test]
fn a_cut_does_not_shorten_what_was_flushed() {
    for n in 1..=4 {
        let bed = Bed::new();
        let file = bed.flushed("f", b'A');
        bed.engine.io.write(&file, 64 * KIB as u64, &[b'B'; 64 * KIB]).expect("room");
        fail(&bed, n, libc::ENOSPC);
        while bed.engine.drain.flush_file(&file).is_err() {}
        assert_eq!(bed.media.faults_given(), 1, "{n}");
        bed.media.set_fault(None);
        bed.engine.io.sync(&file).expect("a tier that works again");
        bed.cut_the_power(|store| {
            let found = file_of(store, "f");
            assert_eq!(found.len(), 128 * KIB, "{n}");
            assert!(found[64 * KIB..].iter().all(|byte| *byte == b'B'), "{n}");
        });
    }
}

/// Letting go of kept bytes fails half-way.
// S-3
#[test]
fn what_could_not_be_let_go_of_is_found_after_a_cut() {
    for n in 1..=3 {
        let bed = Bed::new();
        let file = bed.flushed("f", b'A');
        // Two stretches of kept bytes, and dirty bytes between them.
        bed.engine.io.write(&file, 16 * KIB as u64, &[b'D'; 4 * KIB]).expect("room");
        bed.engine.io.sync(&file).expect("a tier that works");
        fail(&bed, n, libc::ENOSPC);
        bed.engine.ops.evict(&[], &Progress::default());
        bed.media.set_fault(None);
        // Another program syncs.
        let _other = bed.flushed("other", b'O');
        bed.engine.io.write(&file, 0, &[b'N'; 4 * KIB]).expect("room");
        bed.engine.io.sync(&file).expect("a tier that works");
        let mut expected = [b'A'; 64 * KIB];
        expected[..4 * KIB].fill(b'N');
        expected[16 * KIB..20 * KIB].fill(b'D');
        bed.cut_the_power(|store| assert!(file_of(store, "f") == expected, "{n}"));
    }
}

// S-4
#[test]
fn bytes_that_a_cut_took_are_counted_beside_those_that_come_back() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    bed.engine.io.sync(&file).expect("a tier that works");
    bed.engine.io.write(&file, 64 * KIB as u64, &[b'B'; 32 * KIB]).expect("room");
    let disk = bed.media.snapshot();
    abandon(bed.engine);
    let counts = disk.crash_images(&mut Rng::new(7), 40).into_iter().map(|image| {
        let engine = open(&CrashMedia::on(image), &MemStore::on(bed.store.snapshot()), "later");
        let dropped = engine.recovery().dropped_bytes;
        abandon(engine);
        dropped
    });
    // Only in images that have a record of them.
    assert!(counts.max() == Some(32 * KIB as u64), "what was never synced was dropped");
    drop(file);
}

/// A file is closed, and its name goes: for a recovery after a cut the name is gone.
// S-8
#[test]
fn after_a_cut_a_name_that_went_is_no_conflict() {
    for how in ["unlink", "rename", "replace"] {
        let bed = Bed::new();
        let file = bed.flushed("f", b'A');
        let (new, _) = bed.engine.verbs.create(Path::new("new"), &NEW).expect("no such file yet");
        bed.engine.io.write(&new, 0, b"new").expect("room");
        let attr = |name| bed.engine.verbs.stat(Path::new(name)).expect("it is there");
        let (old, over) = (attr("f"), attr("new"));
        if how != "replace" {
            drop(file);
        }
        let replace = forebay_backing::RenameMode::Replace;
        let (f, g) = (Path::new("f"), Path::new("g"));
        match how {
            "unlink" => bed.engine.verbs.unlink(named(f, &old)),
            "rename" => bed.engine.verbs.rename(named(f, &old), g, None, replace),
            _ => {
                let from = named(Path::new("new"), &over);
                bed.engine.verbs.rename(from, f, Some(named(f, &old)), replace)
            }
        }
        .expect("memory");
        bed.cut_and_flush(|_, report| sound(report));
    }
}

/// Method: the file is cut, and grows again, when the flush has copied and not yet settled.
// S-4
#[test]
fn what_was_cut_off_during_a_flush_does_not_come_back() {
    let (path, store, media) = (Path::new("f"), MemStore::new(), CrashMedia::default());
    let (hooked, hook) = Hook::on(store.clone());
    let engine = start(Arc::new(media.clone()), hooked, BOOT, Default::default(), patient());
    let engine = engine.expect("a new tier");
    let (file, _) = engine.verbs.create(path, &NEW).expect("no such file yet");
    engine.io.write(&file, 0, &[b'O'; 64 * KIB]).expect("room");
    engine.io.sync(&file).expect("a tier that works");
    engine.drain.flush_file(&file).expect("a store that works");
    engine.io.write(&file, 0, &[b'N'; 4 * KIB]).expect("room");
    engine.io.sync(&file).expect("a tier that works");
    let (cutter, cut, is_cut) = (engine.clone(), file.clone(), Arc::new(AtomicBool::new(false)));
    let done = is_cut.clone();
    hook.set(move |call| {
        if call.verb == Verb::SyncFiles && !done.swap(true, Relaxed) {
            cutter.io.set_len(&cut, 8 * KIB as u64).expect("room");
            cutter.io.write(&cut, 16 * KIB as u64, &[b'E'; 4 * KIB]).expect("room");
        }
    });
    engine.drain.flush_file(&file).expect("a store that works");
    assert!(is_cut.load(Relaxed));
    let images = media.snapshot().crash_images(&mut Rng::new(5), 40);
    assert!(images.len() > 1, "nothing was unsynced");
    for image in images {
        let store = MemStore::on(store.snapshot());
        let again = open(&CrashMedia::on(image), &store, "after the cut");
        let found = read_all(&again, path).expect("it is there");
        abandon(again);
        assert!(found.iter().skip(8 * KIB).all(|byte| *byte != b'O'), "{}", found.len());
    }
    abandon(engine);
}

/// Opens "f", 64 KiB of A on the backing store. No byte of it is in the tier.
fn stored(bed: &Bed) -> OpenFile {
    let (theirs, _) = bed.store.create(Path::new("f"), &NEW).expect("memory");
    theirs.write_at(&[b'A'; 64 * KIB], 0).expect("memory");
    bed.engine.io.open(Path::new("f"), None).expect("it is there")
}

/// The same, with all bytes fetched.
fn fetched(bed: &Bed) -> OpenFile {
    let file = stored(bed);
    bed.engine.io.read(&file, 0, &mut [0; 64 * KIB]).expect("memory");
    file
}

fn write(engine: &Arc<Engine>, file: &Arc<File>, at_kib: usize, kib: usize, value: u8) {
    engine.io.write(file, (at_kib * KIB) as u64, &vec![value; kib * KIB]).expect("room");
}

/// Returns 64 KiB of A with these parts replaced: begin and end in KiB, and the value.
fn a_with(parts: &[(usize, usize, u8)]) -> Vec<u8> {
    let mut bytes = vec![b'A'; 64 * KIB];
    for &(start, end, value) in parts {
        bytes.resize(bytes.len().max(end * KIB), 0);
        bytes[start * KIB..end * KIB].fill(value);
    }
    bytes
}

/// Syncs the file and runs `act` in the middle: that sync does not cover what `act` does.
fn sync_with(
    bed: &Bed,
    file: &Arc<File>,
    act: impl Fn(&Arc<Engine>, &Arc<File>) + Send + Sync + 'static,
) {
    try_sync_with(bed, file, act).expect("a tier that works");
}

fn try_sync_with(
    bed: &Bed,
    file: &Arc<File>,
    act: impl Fn(&Arc<Engine>, &Arc<File>) + Send + Sync + 'static,
) -> forebay_backing::Result<()> {
    let (engine, again, once) = (bed.engine.clone(), file.clone(), AtomicBool::new(false));
    bed.media.after_shadow_sync(move || {
        if !once.swap(true, Relaxed) {
            act(&engine, &again);
        }
    });
    bed.engine.io.sync(file)
}

/// Bytes that are fetched during a sync are not made durable by it.
// S-4
#[test]
fn a_cut_does_not_flush_holes_that_were_filled_beside_a_sync() {
    let bed = Bed::new();
    let file = stored(&bed);
    write(&bed.engine, &file, 0, 4, b'B');
    sync_with(&bed, &file, |engine, file| {
        engine.io.read(file, 0, &mut [0; 64 * KIB]).expect("memory");
    });
    assert_eq!(bed.engine.ops.status().used_bytes, 64 * KIB as u64, "all of it is there");
    let expected = a_with(&[(0, 4, b'B')]);
    let images = bed.cut_the_power(|store| {
        assert!(file_of(store, "f") == expected, "holes were flushed");
    });
    assert!(images > 1, "nothing was unsynced");
    drop(file);
}

/// Bytes that were written and flushed during a sync are as durable as those that the sync found.
// S-3 S-4
#[test]
fn a_cut_does_not_bring_back_what_was_there_when_a_sync_began() {
    let bed = Bed::new();
    let file = fetched(&bed);
    write(&bed.engine, &file, 0, 4, b'B');
    sync_with(&bed, &file, |engine, file| {
        write(engine, file, 32, 4, b'C');
        engine.drain.flush_file(file).expect("a store that works");
        // No byte is dirty: this makes no sync of its own.
        engine.io.sync(file).expect("a tier that works");
        write(engine, file, 4, 4, b'B');
    });
    bed.engine.io.sync(&file).expect("a tier that works");
    let expected = a_with(&[(0, 8, b'B'), (32, 36, b'C')]);
    bed.cut_the_power(|store| assert!(file_of(store, "f") == expected, "older bytes came back"));
    drop(file);
}

/// A record that cannot be written leaves the bytes beside the synced ones as they were.
// S-4
#[test]
fn what_is_beside_a_sync_that_could_not_be_recorded_is_clean() {
    // The sync of the shadow, that of its name, then the record, then that of the bytes beside.
    for (n, fails) in [(3, true), (4, false)] {
        let bed = Bed::new();
        let file = fetched(&bed);
        write(&bed.engine, &file, 0, 4, b'B');
        fail(&bed, n, libc::ENOSPC);
        assert_eq!(bed.engine.io.sync(&file).is_err(), fails, "operation {n}");
        assert_eq!(bed.media.faults_given(), 1);
        bed.media.set_fault(None);
        bed.engine.io.sync(&file).expect("a tier that works again");
        // If the failed record had kept these bytes, no record would have them.
        write(&bed.engine, &file, 32, 4, b'C');
        bed.engine.io.sync(&file).expect("a tier that works again");
        let expected = a_with(&[(0, 4, b'B'), (32, 36, b'C')]);
        bed.cut_the_power(|store| assert!(file_of(store, "f") == expected, "a byte is lost"));
    }
}

/// Over a conflicting file of the store only bytes that were written here may be flushed.
// S-8
#[test]
fn after_a_cut_ours_is_only_what_was_written_here() {
    let bed = Bed::new();
    let file = fetched(&bed);
    write(&bed.engine, &file, 8, 4, b'K');
    bed.engine.io.sync(&file).expect("a tier that works");
    bed.engine.drain.flush_file(&file).expect("a store that works");
    let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
    theirs.write_at(&[b'T'; 32 * KIB], 8 * KIB as u64).expect("memory");
    write(&bed.engine, &file, 0, 4, b'B');
    let again = bed.engine.io.open(Path::new("f"), None).expect("it is there");
    assert_eq!(bed.engine.ops.status().conflicted_files, 1);
    bed.engine.io.sync(&file).expect("a tier that works");
    let expected = a_with(&[(0, 4, b'B'), (8, 40, b'T')]);
    let (disk, tree) = (bed.media.snapshot(), bed.store.snapshot());
    drop(again);
    drop(file);
    abandon(bed.engine);
    for image in disk.crash_images(&mut Rng::new(7), 40) {
        let store = MemStore::on(tree.clone());
        let engine = open(&CrashMedia::on(image), &store, "after the cut");
        engine.ops.resolve(Path::new("f"), Keep::Ours).expect("it is in conflict");
        abandon(engine);
        assert!(file_of(&store, "f") == expected, "bytes that nobody wrote went over theirs");
    }
}

/// A sync that began while the file was shorter does not set the end of the file. The sync of the
/// flush fails meanwhile, and the kernel reports that to only one of the two.
// S-4
#[test]
fn a_cut_does_not_shorten_a_file_that_grew_beside_a_sync() {
    let bed = Bed::new();
    let file = fetched(&bed);
    write(&bed.engine, &file, 0, 4, b'B');
    let media = bed.media.clone();
    let synced = try_sync_with(&bed, &file, move |engine, file| {
        write(engine, file, 64, 64, b'C');
        media.fail_shadow_sync();
        engine.drain.flush_file(file).expect("a store that works");
        write(engine, file, 0, 4, b'B');
    });
    assert!(synced.expect_err("nobody knows what it has written").is(libc::EIO));
    let expected = a_with(&[(0, 4, b'B'), (64, 128, b'C')]);
    bed.cut_the_power(|store| assert!(file_of(store, "f") == expected, "it was cut off"));
    drop(file);
}

/// Before a flush has ended, bytes that the backing store has beyond the sync's end were cut off here.
// S-4
#[test]
fn a_cut_does_not_bring_back_what_was_truncated() {
    let bed = Bed::new();
    let file = fetched(&bed);
    bed.engine.io.set_len(&file, 0).expect("room");
    write(&bed.engine, &file, 0, 4, b'B');
    sync_with(&bed, &file, |engine, file| write(engine, file, 4, 28, b'C'));
    bed.cut_the_power(|store| {
        let found = file_of(store, "f");
        assert!(!found[4 * KIB..].contains(&b'A'), "bytes from before the truncation are back");
        assert!(found[..4 * KIB] == [b'B'; 4 * KIB]);
    });
    drop(file);
}
