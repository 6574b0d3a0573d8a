//! The cost of an fsync: flushes of the fast tier's device.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forebay_backing::BackingStore;
use forebay_engine::{Config, Progress};

use crate::media::{CrashMedia, Disk};
use crate::rng::Rng;
use crate::start::{NEW, abandon, patient, read_all, start};
use crate::store::MemStore;

const BOOT: &str = "syncs";
const BLOCK: usize = 512;
const PAGE: usize = 4096;

/// A database's log: preallocated, overwritten block by block, synced each time.
// S-3
#[test]
fn a_log_that_is_overwritten_in_order_needs_few_syncs_of_ours() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let backing = Arc::new(store.clone());
    let engine = start(Arc::new(media.clone()), backing, BOOT, Config::default(), patient());
    let engine = engine.expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("redo"), &NEW).expect("no such file yet");
    engine.io.write(&file, 0, &[b'0'; 1 << 20]).expect("room");
    engine.drain.flush_file(&file).expect("a store that works");
    let before = media.syncs();
    let rounds = 512;
    for round in 0..rounds {
        engine.io.write(&file, round * BLOCK as u64, &[round as u8; BLOCK]).expect("room");
        engine.io.sync(&file).expect("a tier that works");
    }
    let after = media.syncs();
    let (log, shadow) = (after.0 - before.0, after.1 - before.1);
    assert!(shadow >= rounds, "{shadow} syncs of the bytes");
    assert!(log <= 8, "{log} syncs of the log for {rounds} of the file");
    // All of it survives, and the bytes behind it are still the store's.
    let expected: Vec<u8> = (0..1 << 20)
        .map(|at| if at < rounds as usize * BLOCK { (at / BLOCK) as u8 } else { b'0' })
        .collect();
    let disk = media.snapshot();
    abandon(engine);
    survives(&disk, &store, "redo", &expected);
}

/// The sync of one of two files leaves the records of the other alone.
#[test]
fn a_sync_does_not_pay_for_others() {
    let (media, store) = (CrashMedia::default(), Arc::new(MemStore::new()));
    let engine = start(Arc::new(media.clone()), store, BOOT, Config::default(), patient());
    let engine = engine.expect("a new tier");
    let (a, _) = engine.verbs.create(Path::new("a"), &NEW).expect("no such file yet");
    let (b, _) = engine.verbs.create(Path::new("b"), &NEW).expect("no such file yet");
    engine.io.write(&a, 0, &[1; BLOCK]).expect("room");
    engine.io.sync(&a).expect("a tier that works");
    let before = media.syncs();
    for round in 0..20 {
        engine.io.write(&b, round * BLOCK as u64, &[2; BLOCK]).expect("room");
        engine.io.write(&a, 0, &[3; BLOCK]).expect("room");
        engine.io.sync(&a).expect("a tier that works");
    }
    assert_eq!(media.syncs().0, before.0, "durable bytes stay so, and nobody asked for b");
    assert!(media.syncs().1 >= before.1 + 20);
    drop(a);
    drop(b);
    abandon(engine);
}

/// A database's tables: pages written again and again, here and there, synced each time, and flushed
/// in between.
// S-3
#[test]
fn a_page_that_was_synced_once_needs_no_record_after_a_flush() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let backing = Arc::new(store.clone());
    let engine = start(Arc::new(media.clone()), backing, BOOT, Config::default(), patient());
    let engine = engine.expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("table"), &NEW).expect("no such file yet");
    engine.io.write(&file, 0, &[b'0'; 256 * BLOCK]).expect("room");
    engine.io.sync(&file).expect("a tier that works");
    let mut pages = vec![b'0'; 256];
    let mut rng = Rng::new(11);
    let (rounds, each) = (10, 40);
    let mut before = media.syncs();
    let (mut log, mut shadow) = (0, 0);
    for round in 0..rounds {
        engine.drain.flush_file(&file).expect("a store that works");
        assert_eq!(engine.ops.status().dirty_bytes, 0, "all of it is flushed");
        let flushed = media.syncs();
        (log, shadow) = (log + flushed.0 - before.0, shadow + flushed.1 - before.1);
        for write in 0..each {
            let at = rng.below(256) as usize;
            pages[at] = (round * each + write) as u8;
            engine.io.write(&file, (at * BLOCK) as u64, &[pages[at]; BLOCK]).expect("room");
            engine.io.sync(&file).expect("a tier that works");
        }
        before = media.syncs();
        let writes = (before.0 - flushed.0, before.1 - flushed.1);
        assert!(writes.0 <= 1, "{} syncs of the log in round {round}", writes.0);
        assert!(writes.1 >= each, "{} syncs of the bytes in round {round}", writes.1);
    }
    assert!(log > 0 && shadow > 0, "the flushes needed some");
    let expected: Vec<u8> = pages.iter().flat_map(|page| [*page; BLOCK]).collect();
    let disk = media.snapshot();
    abandon(engine);
    survives(&disk, &store, "table", &expected);
}

/// A database's tables, read from the backing store: of pages close together the first to be synced
/// pays for all.
// S-3 S-4
#[test]
fn pages_beside_one_that_was_synced_need_no_record() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let (table, _) = store.create(Path::new("table"), &NEW).expect("memory");
    table.write_at(&[b'0'; 2048 * BLOCK], 0).expect("memory");
    let backing = Arc::new(store.clone());
    let engine = start(Arc::new(media.clone()), backing, BOOT, Config::default(), patient());
    let engine = engine.expect("a new tier");
    let file = engine.io.open(Path::new("table"), None).expect("it is there");
    engine.io.read(&file, 0, &mut [0; 2048 * BLOCK]).expect("memory");
    let mut expected = vec![b'0'; 2048 * BLOCK];
    let before = media.syncs();
    for round in 0..64 {
        // Each page is in one of four blocks of 256 KiB.
        let at = (round % 4 * 512 + 8 * (round / 4) + 3) * BLOCK;
        expected[at..at + BLOCK].fill(round as u8);
        engine.io.write(&file, at as u64, &[round as u8; BLOCK]).expect("room");
        engine.io.sync(&file).expect("a tier that works");
    }
    let (log, shadow) = (media.syncs().0 - before.0, media.syncs().1 - before.1);
    assert!(shadow >= 64, "{shadow} syncs of the bytes");
    assert!(log <= 5, "{log} syncs of the log for four blocks");
    let disk = media.snapshot();
    abandon(engine);
    survives(&disk, &store, "table", &expected);
}

/// Checks that after any cut of the power the file is `expected`, here and once it is flushed.
fn survives(disk: &Disk, store: &MemStore, name: &str, expected: &[u8]) {
    for image in disk.crash_images(&mut Rng::new(3), 20) {
        let media = Arc::new(CrashMedia::on(image));
        let store = MemStore::on(store.snapshot());
        let backing = Arc::new(store.clone());
        let engine = start(media, backing, "after the cut", Config::default(), patient());
        let engine = engine.expect("a sound tier");
        assert!(read_all(&engine, Path::new(name)).expect("it is there") == expected);
        let report = engine.drain.flush(&[], &Progress::default());
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        assert!(store.snapshot().files()[Path::new(name)] == expected);
        abandon(engine);
    }
}

/// Another thread changes the size during every sync of the shadow.
// S-3
#[test]
fn a_sync_of_a_file_whose_size_changes_all_the_time_is_one() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let engine = start(Arc::new(media.clone()), Arc::new(store), "b", Config::default(), patient());
    let engine = engine.expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
    engine.io.write(&file, 0, &[7; PAGE]).expect("room");
    let sizes = Arc::new(AtomicU64::new(0));
    let (seen, stop) = (sizes.clone(), Arc::new(AtomicBool::new(false)));
    media.at_shadow_sync(move || {
        let (before, began) = (seen.load(SeqCst), Instant::now());
        while seen.load(SeqCst) < before + 2 && began.elapsed() < Duration::from_millis(200) {
            std::thread::yield_now();
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                let n = sizes.fetch_add(1, SeqCst);
                engine.io.set_len(&file, PAGE as u64 + 1 + n % 2).expect("room");
            }
        });
        engine.io.sync(&file).expect("a sound tier");
        stop.store(true, SeqCst);
    });
    let images = media.snapshot().crash_images(&mut Rng::new(3), 8);
    drop(file);
    abandon(engine);
    for disk in images {
        let media = Arc::new(CrashMedia::on(disk));
        let store = Arc::new(MemStore::new());
        let engine = start(media, store, "c", Config::default(), patient()).expect("sound");
        let read = read_all(&engine, Path::new("f")).unwrap_or_default();
        assert!(read.get(..PAGE) == Some(&[7; PAGE][..]), "{} bytes", read.len());
        abandon(engine);
    }
}
