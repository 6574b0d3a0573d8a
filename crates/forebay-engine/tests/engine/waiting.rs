//! Who waits for a flush, and who waits because others do.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use forebay_backing::Result;
use forebay_backing::wrap::{Call, Done, Layer, Verb, Wrapped};
use forebay_engine::{Allocate, Config, Progress, Tunables};

use crate::media::CrashMedia;
use crate::start::{NEW, PATIENCE, abandon, patient, start};
use crate::store::MemStore;

const MIB: u64 = 1 << 20;

/// Method: each sync of the tier finds the size changed when it has ended.
// S-5 S-7
#[test]
fn a_file_that_is_cut_all_the_time_fails_its_flush_and_stays_dirty() {
    let media = CrashMedia::default();
    let backing = Arc::new(MemStore::new());
    let engine = start(Arc::new(media.clone()), backing, "cut", Config::default(), patient());
    let engine = engine.expect("new");
    let (file, _) = engine.create(Path::new("f"), &NEW).expect("an empty store");
    engine.write(&file, 0, &[1; 8192]).expect("room");
    let (cutter, open) = (engine.clone(), file.clone());
    media.at_shadow_sync(move || cutter.set_len(&open, 8192).expect("room"));

    let (done, end) = mpsc::channel();
    let (waiting, waited) = (engine.clone(), file.clone());
    std::thread::spawn(move || {
        let alone = waiting.flush_file(&waited).map_err(|error| error.errno());
        let all = waiting.flush(&[], &Progress::default());
        done.send((alone, all)).expect("the test waits");
    });
    let (alone, all) = end.recv_timeout(PATIENCE).expect("nobody waits without end");
    assert_eq!(alone, Err(libc::EBUSY));
    assert_eq!((all.files, all.failures.len()), (0, 1), "{all:?}");
    assert_eq!(engine.status().dirty_files, 1);

    media.at_shadow_sync(|| {});
    engine.flush_file(&file).expect("it rests");
    assert_eq!(engine.status().dirty_files, 0);
    engine.close(&file);
    abandon(engine);
}

/// Flushes of small files take a while each, so that at any time one is on.
struct SlowEnds;

impl Layer for SlowEnds {
    const PASSES_FD: bool = false;

    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        let small = |path: &&Path| path.to_string_lossy().starts_with("small");
        if call.verb == Verb::SetTimes && call.paths.iter().any(small) {
            std::thread::sleep(Duration::from_millis(20));
        }
        run()
    }
}

/// Several programs wait for the flush of small files all the time; another fills the tier.
// S-9
#[test]
fn a_writer_finds_room_though_others_wait_for_flushes_all_the_time() {
    let store = Wrapped::new(Arc::new(MemStore::new()), Arc::new(SlowEnds));
    let media = Arc::new(CrashMedia::default());
    let tunables = Tunables { tier_size: Some(32 * MIB), ..Tunables::default() };
    let engine = start(media, store, "demands", Config::default(), tunables).expect("new");
    let stop = Arc::new(AtomicBool::new(false));
    let small = |n: u8| {
        let (engine, stop) = (engine.clone(), stop.clone());
        std::thread::spawn(move || {
            let (file, _) = engine.create(Path::new(&format!("small{n}")), &NEW).expect("new");
            // Sizes need no room: these never wait for the drain themselves.
            for size in (1..3).cycle().take_while(|_| !stop.load(Relaxed)) {
                engine.set_len(&file, size).expect("it needs no room");
                engine.flush_file(&file).expect("a good store");
            }
            engine.close(&file);
        })
    };
    let waiting: Vec<_> = (0..8).map(small).collect();
    let (done, end) = mpsc::channel();
    let bulk = engine.clone();
    std::thread::spawn(move || {
        let (file, _) = bulk.create(Path::new("bulk"), &NEW).expect("new");
        let data = vec![1; MIB as usize];
        let written = (0..96).try_for_each(|n| bulk.write(&file, n * MIB, &data));
        bulk.close(&file);
        done.send(written.is_ok()).expect("the test waits");
    });
    let written = end.recv_timeout(PATIENCE);
    stop.store(true, Relaxed);
    assert_eq!(written, Ok(true), "{:?}", engine.status());
    waiting.into_iter().for_each(|small| small.join().expect("it flushed"));
    abandon(engine);
}

/// The first sync of the store ends when something is copied meanwhile, or after a long time.
#[derive(Default)]
struct SyncAwaitsCopy {
    course: Mutex<Course>,
    copied: Condvar,
}

#[derive(Default)]
struct Course {
    syncs: usize,
    waiting: bool,
    overlapped: bool,
}

impl Layer for SyncAwaitsCopy {
    const PASSES_FD: bool = false;

    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        let mut course = self.course.lock().expect("no panic inside");
        match call.verb {
            Verb::SyncFiles => {
                course.syncs += 1;
                if course.syncs == 1 {
                    course.waiting = true;
                    let alone = |course: &mut Course| !course.overlapped;
                    let waited = self.copied.wait_timeout_while(course, PATIENCE / 3, alone);
                    waited.expect("no panic inside").0.waiting = false;
                }
            }
            Verb::WriteAt if course.waiting => {
                course.overlapped = true;
                self.copied.notify_all();
            }
            _ => {}
        }
        run()
    }
}

/// Small files in several batches: the copies of one go on while the store syncs another.
// S-5
#[test]
fn a_flush_copies_one_batch_while_it_syncs_another() {
    const FILES: usize = 300;
    let layer = Arc::new(SyncAwaitsCopy::default());
    let store = Wrapped::new(Arc::new(MemStore::new()), layer.clone());
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, store, "batches", Config::default(), patient()).expect("new");
    for n in 0..FILES {
        let (file, _) = engine.create(Path::new(&format!("f{n}")), &NEW).expect("new");
        engine.write(&file, 0, &[1; 100]).expect("room");
        engine.close(&file);
    }
    let progress = Progress::default();
    let report = engine.flush(&[], &progress);
    assert_eq!((report.files, report.bytes), (FILES as u64, 100 * FILES as u64));
    assert_eq!(report.failures.len(), 0, "{report:?}");
    assert_eq!(progress.moved_bytes(), report.bytes);
    assert_eq!(progress.copying.load(Relaxed), 0);
    assert_eq!(engine.status().dirty_files, 0);
    let course = layer.course.lock().expect("no panic inside");
    assert!(course.overlapped && course.syncs > 1, "{} syncs", course.syncs);
    drop(course);
    abandon(engine);
}

/// Copies wait until the store is opened.
#[derive(Default)]
struct Shut(AtomicBool);

impl Layer for Shut {
    const PASSES_FD: bool = false;

    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        while call.verb == Verb::WriteAt && !self.0.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        run()
    }
}

/// The kernel writes pages of its own accord while a program waits in fallocate.
// S-1 S-9
#[test]
fn what_is_written_while_an_allocation_waits_for_room_is_not_cut_off() {
    let media = Arc::new(CrashMedia::default());
    let tunables = Tunables { tier_size: Some(32 * MIB), ..patient() };
    let shut = Arc::new(Shut::default());
    let backing = Wrapped::new(Arc::new(MemStore::new()), shut.clone());
    let engine = start(media, backing, "grow", Config::default(), tunables).expect("new");
    let (full, _) = engine.create(Path::new("full"), &NEW).expect("an empty store");
    (0..24).for_each(|n| engine.write(&full, n * MIB, &[1; MIB as usize]).expect("room"));
    let (file, _) = engine.create(Path::new("f"), &NEW).expect("no such file yet");
    let (waiting, waits) = (engine.clone(), file.clone());
    let allocation =
        std::thread::spawn(move || waiting.allocate(&waits, Allocate::Extend, 0, 20 * MIB));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!allocation.is_finished(), "it found room: {:?}", engine.status());
    engine.write(&file, 25 * MIB, &[7; 4096]).expect("room for a page");
    shut.0.store(true, Relaxed);
    engine.flush_file(&full).expect("a good store");
    allocation.join().expect("it does not panic").expect("there is room now");
    assert_eq!(engine.stat_open(&file).size, 25 * MIB + 4096);
    let mut seen = [0; 4096];
    engine.read(&file, 25 * MIB, &mut seen).expect("just written");
    assert!(seen == [7; 4096]);
    engine.close(&file);
    engine.close(&full);
    abandon(engine);
}
