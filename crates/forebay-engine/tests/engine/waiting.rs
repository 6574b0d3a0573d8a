//! Callers that wait for a flush, and callers that wait because others do.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use forebay_backing::Result;
use forebay_backing::wrap::{Call, Done, Layer, Verb, Wrapped};
use forebay_engine::{Allocate, Config, Engine, Progress, Requester, Tunables, on_behalf_of};

use crate::hook::Hook;
use crate::media::{CrashMedia, Fault};
use crate::start::{
    Beside, NEW, PATIENCE, abandon, beside, patient, receive, simulated, start, time, within,
};
use crate::store::MemStore;

const MIB: u64 = 1 << 20;

/// Method: each sync of the tier finds at its end that the size has changed.
// S-5 S-7
#[test]
fn a_file_that_is_cut_all_the_time_fails_its_flush_and_stays_dirty() {
    let _time = simulated();
    let media = CrashMedia::default();
    let backing = Arc::new(MemStore::new());
    let engine = start(Arc::new(media.clone()), backing, "cut", Config::default(), patient());
    let engine = engine.expect("new");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
    engine.io.write(&file, 0, &[1; 8192]).expect("room");
    let (cutter, open) = (engine.clone(), file.clone());
    media.at_shadow_sync(move || cutter.io.set_len(&open, 8192).expect("room"));

    let (done, end) = mpsc::channel();
    let (waiting, waited) = (engine.clone(), file.clone());
    beside(move || {
        let alone = waiting.drain.flush_file(&waited).map_err(|error| error.errno());
        let all = waiting.drain.flush(&[], &Progress::default());
        done.send((alone, all)).expect("the test waits");
    });
    let (alone, all) = receive(&end, PATIENCE).expect("nobody waits without end");
    assert_eq!(alone, Err(libc::EBUSY));
    assert_eq!((all.files, all.failures.len()), (0, 1), "{all:?}");
    assert_eq!(engine.ops.status().dirty_files, 1);

    media.at_shadow_sync(|| {});
    engine.drain.flush_file(&file).expect("it rests");
    assert_eq!(engine.ops.status().dirty_files, 0);
    drop(file);
    abandon(engine);
}

/// Makes flushes of small files slow, so that one is under way at any time.
struct SlowEnds;

impl Layer for SlowEnds {
    const PASSES_FD: bool = false;

    fn before(&self, call: &Call<'_>) -> Result<()> {
        let small = |path: &&Path| path.to_string_lossy().starts_with("small");
        if call.verb == Verb::SetTimes && call.paths.iter().any(small) {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
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
            let (file, _) =
                engine.verbs.create(Path::new(&format!("small{n}")), &NEW).expect("new");
            // Changes of size need no room: these programs never wait for the drain themselves.
            for size in (1..3).cycle().take_while(|_| !stop.load(Relaxed)) {
                engine.io.set_len(&file, size).expect("it needs no room");
                engine.drain.flush_file(&file).expect("a good store");
            }
            drop(file);
        })
    };
    let waiting: Vec<_> = (0..8).map(small).collect();
    let (done, end) = mpsc::channel();
    let bulk = engine.clone();
    std::thread::spawn(move || {
        let (file, _) = bulk.verbs.create(Path::new("bulk"), &NEW).expect("new");
        let data = vec![1; MIB as usize];
        let written = (0..96).try_for_each(|n| bulk.io.write(&file, n * MIB, &data));
        drop(file);
        done.send(written.is_ok()).expect("the test waits");
    });
    let written = end.recv_timeout(PATIENCE);
    stop.store(true, Relaxed);
    assert_eq!(written, Ok(true), "{:?}", engine.ops.status());
    waiting.into_iter().for_each(|small| small.join().expect("it flushed"));
    abandon(engine);
}

/// The first sync of the store ends when a copy is made meanwhile, or after a long time.
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
        let (file, _) = engine.verbs.create(Path::new(&format!("f{n}")), &NEW).expect("new");
        engine.io.write(&file, 0, &[1; 100]).expect("room");
        drop(file);
    }
    let progress = Progress::default();
    let report = engine.drain.flush(&[], &progress);
    assert_eq!((report.files, report.bytes), (FILES as u64, 100 * FILES as u64));
    assert_eq!(report.failures.len(), 0, "{report:?}");
    assert_eq!(progress.moved_bytes(), report.bytes);
    assert_eq!(progress.copying.load(Relaxed), 0);
    assert_eq!(engine.ops.status().dirty_files, 0);
    let course = layer.course.lock().expect("no panic inside");
    assert!(course.overlapped && course.syncs > 1, "{} syncs", course.syncs);
    drop(course);
    abandon(engine);
}

/// The kernel writes pages of its own accord while a program waits in fallocate, which asks for the
/// store's room and waits for none in the tier.
// S-1 S-9
#[test]
fn what_is_written_while_an_allocation_asks_for_room_is_not_cut_off() {
    let media = Arc::new(CrashMedia::default());
    let tunables = Tunables { tier_size: Some(32 * MIB), ..patient() };
    let (backing, hook) = Hook::on(MemStore::new());
    let engine = start(media, backing, "grow", Config::default(), tunables).expect("new");
    let (full, _) = engine.verbs.create(Path::new("full"), &NEW).expect("an empty store");
    (0..24).for_each(|n| engine.io.write(&full, n * MIB, &[1; MIB as usize]).expect("room"));
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    let (kernel, pages) = (engine.clone(), file.clone());
    hook.set(move |call| {
        if call.verb == Verb::Statfs {
            kernel.io.write(&pages, 25 * MIB, &[7; 4096]).expect("room for a page");
        }
    });
    engine.io.allocate(&file, Allocate::Extend, 0, 20 * MIB).expect("nobody's place is taken");
    assert_eq!(engine.verbs.stat_open(&file).size, 25 * MIB + 4096);
    let mut seen = [0; 4096];
    engine.io.read(&file, 25 * MIB, &mut seen).expect("just written");
    assert!(seen == [7; 4096]);
    drop(file);
    drop(full);
    abandon(engine);
}

/// Another program cuts the file while a zeroing waits for room: zeros do not lengthen a file. Method: the
/// tier is full when the zeroing begins, and during that wait its caller is asked whether it still waits.
// S-1
#[test]
fn a_file_that_is_cut_while_it_is_zeroed_gets_no_longer() {
    struct Cuts {
        engine: Arc<Engine>,
        media: CrashMedia,
        has_cut: AtomicBool,
    }
    impl Requester for Cuts {
        fn is_gone(&self) -> bool {
            let is_waiting = self.media.faults_given() > 0;
            if is_waiting && !self.has_cut.swap(true, Relaxed) {
                let file = self.engine.io.open(Path::new("f"), None).expect("it is there");
                self.engine.io.set_len(&file, 4096).expect("it needs no room");
            }
            false
        }
    }
    let (media, backing) = (CrashMedia::default(), Arc::new(MemStore::new()));
    let engine = start(Arc::new(media.clone()), backing, "zero", Config::default(), patient());
    let engine = engine.expect("new");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
    engine.io.write(&file, 0, &[1; 8192]).expect("room");
    let has_cut = AtomicBool::new(false);
    let cuts = Arc::new(Cuts { engine: engine.clone(), media: media.clone(), has_cut });
    media.set_fault(Some(Fault { n: 1, count: 1, errno: libc::ENOSPC }));
    let zeroed =
        on_behalf_of(cuts.clone(), || engine.io.allocate(&file, Allocate::Zero, 2048, 1 << 20));
    zeroed.expect("there is room again");
    assert!(cuts.has_cut.load(Relaxed), "it waited");
    assert_eq!(engine.verbs.stat_open(&file).size, 4096);
    let mut seen = [2; 8192];
    assert_eq!(engine.io.read(&file, 0, &mut seen).expect("it is in the tier"), 4096);
    assert!(seen[..2048] == [1; 2048] && seen[2048..4096] == [0; 2048]);
    drop((file, cuts));
    abandon(engine);
}

/// Starts an engine that copies as slowly as `rate_max`, with the dirty bytes of `f` being flushed.
fn trickle(rate_max: u64, backing_timeout: Duration) -> (Arc<Engine>, Beside<Result<()>>) {
    let tunables = Tunables { rate_max, flush_depth: 1, backing_timeout, ..patient() };
    let (media, store) = (Arc::new(CrashMedia::default()), Arc::new(MemStore::new()));
    let engine = start(media, store, "trickle", Config::default(), tunables).expect("new");
    for name in ["f", "g"] {
        let (file, _) = engine.verbs.create(Path::new(name), &NEW).expect("new");
        engine.io.write(&file, 0, &vec![1; MIB as usize]).expect("room");
        drop(file);
    }
    let flies = engine.clone();
    let flight = beside(move || {
        let file = flies.io.open(Path::new("f"), None)?;
        let flushed = flies.drain.flush_file(&file);
        drop(file);
        flushed
    });
    within("it is on its way", || engine.ops.status().flushing_bytes > 0);
    (engine, flight)
}

/// Method: the cap holds up the only thread that copies for days, with a flight of `f`.
// S-12
#[test]
fn an_order_that_waits_for_a_flight_or_a_thread_can_be_cancelled() {
    let _time = simulated();
    let (engine, flight) = trickle(1, PATIENCE);
    for waits_for in ["f", "g"] {
        let progress = Arc::new(Progress::default());
        let (done, end) = mpsc::channel();
        let (ordered, watched) = (engine.clone(), progress.clone());
        beside(move || {
            let report = ordered.drain.flush(&[Path::new(waits_for).into()], &watched);
            done.send(report).expect("the test waits");
        });
        let early = receive(&end, Duration::from_millis(200));
        assert!(early.is_err(), "{waits_for}: {early:?}");
        progress.cancel();
        let report = receive(&end, PATIENCE / 2).expect("it stops, cap or not");
        assert!(report.cancelled && report.failures.is_empty(), "{waits_for}: {report:?}");
    }
    assert_eq!(engine.ops.status().dirty_files, 2);
    engine.ops.set_tunables(Tunables { rate_max: 0, ..engine.files.tunables() }).expect("valid");
    flight.join().expect("a store that works");
    let report = engine.drain.flush(&[], &Progress::default());
    assert_eq!((report.files, report.failures.len(), engine.ops.status().dirty_files), (1, 0, 0));
    abandon(engine);
}

/// Method: the flight takes far longer than a call may, since the user wants it slow.
// S-5 S-10
#[test]
fn a_flight_that_the_users_cap_makes_slow_is_no_store_that_does_not_answer() {
    let _time = simulated();
    let timeout = Duration::from_secs(1);
    let began = time().now();
    let (engine, flight) = trickle(MIB / 8, timeout);
    let report = engine.drain.flush(&["f".into()], &Progress::default());
    assert!(report.failures.is_empty(), "{report:?}");
    flight.join().expect("a store that works");
    let took = time().since(began);
    assert!(took > 5 * timeout, "it was fast: {took:?}");
    abandon(engine);
}
