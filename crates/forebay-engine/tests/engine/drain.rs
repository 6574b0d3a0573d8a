//! The governor at work in the engine: which bytes reach the backing store, when, and how fast.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebay_base::lock::{self, Rank};
use forebay_engine::governor::law::Preset;
use forebay_engine::time::Time;
use forebay_engine::{Config, Engine, File, Named, OpenFile, Order, Progress, Tunables};

use forebay_backing::wrap::{Call, Layer, Verb, Wrapped};
use forebay_backing::{Attr, BackingStore, RenameMode, Result};

use crate::media::CrashMedia;
use crate::start::{
    NEW, PATIENCE, abandon, beside, counter, named, patient, receive, simulated, start, time,
    within,
};
use crate::store::MemStore;

const MIB: u64 = 1 << 20;

const MOMENT: Duration = Duration::from_millis(5);
const TIER: Option<u64> = Some(1 << 30);

fn engine(tunables: Tunables) -> (Arc<Engine>, OpenFile) {
    engine_of(1 << 30, tunables)
}

fn engine_of(tier_size: u64, tunables: Tunables) -> (Arc<Engine>, OpenFile) {
    engine_over(Arc::new(MemStore::new()), tier_size, tunables)
}

fn engine_over(
    store: Arc<dyn BackingStore>,
    tier_size: u64,
    tunables: Tunables,
) -> (Arc<Engine>, OpenFile) {
    let tunables = Tunables { tier_size: Some(tier_size), ..tunables };
    let config = Config::default();
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, store, "drain", config, tunables).expect("new");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
    (engine, file)
}

fn write(engine: &Arc<Engine>, file: &Arc<File>, mibs: u64, value: u8) {
    write_at(engine, file, 0..mibs, value);
}

fn write_at(engine: &Arc<Engine>, file: &Arc<File>, mibs: std::ops::Range<u64>, value: u8) {
    let data = vec![value; MIB as usize];
    mibs.for_each(|n| engine.io.write(file, n * MIB, &data).expect("room"));
}

// S-8
#[test]
fn a_file_with_names_in_both_of_two_directories_that_change_places_is_flushed() {
    let store = MemStore::new();
    let (d, e) = (Path::new("d"), Path::new("e"));
    let (at_d, at_e) = (store.mkdir(d, &NEW).unwrap(), store.mkdir(e, &NEW).unwrap());
    let (engine, _) = engine_over(Arc::new(store.clone()), 1 << 30, patient());
    for (from, to) in [("d/a", "e/b"), ("e/c", "d/d")] {
        let (file, attr) = engine.verbs.create(Path::new(from), &NEW).expect("no such file yet");
        engine.verbs.link(named(Path::new(from), &attr), Path::new(to)).expect("no such name yet");
        write(&engine, &file, 1, 1);
        drop(file);
    }
    let dir = |path, attr: &Attr| Named { path, key: attr.key, is_dir: true };
    engine.verbs.rename(dir(d, &at_d), e, Some(dir(e, &at_e)), RenameMode::Exchange).unwrap();
    let report = engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{report:?}");
    abandon(engine);
    let files = store.snapshot().files();
    for name in ["d/b", "d/c", "e/a", "e/d"] {
        assert_eq!(files[Path::new(name)].len() as u64, MIB, "{name}");
    }
}

/// Waits until nothing is dirty.
fn clean_after(engine: &Engine) -> Duration {
    let (time, began) = (time(), time().now());
    within("all is clean", || engine.ops.status().dirty_files == 0);
    time.since(began)
}

/// Copies to the store wait while it is shut.
pub struct Gate {
    time: Time,
    shut: lock::Mutex<bool>,
    opened: lock::Condvar,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            time: time(),
            shut: lock::Mutex::new(Rank::Home, false),
            opened: lock::Condvar::new(),
        }
    }
}

impl Gate {
    pub fn shut(&self, shut: bool) {
        *self.shut.lock() = shut;
        self.opened.notify_all();
    }
}

impl Layer for Gate {
    const PASSES_FD: bool = false;

    fn before(&self, call: &Call<'_>) -> Result<()> {
        if call.verb == Verb::WriteAt {
            let mut shut = self.shut.lock();
            // In short waits: a copy that was told that the gate is open must not be late for it.
            while *shut {
                shut = self.time.wait(&self.opened, shut, MOMENT).0;
            }
        }
        Ok(())
    }
}

/// Bytes that the drain was copying when a flush began count in what the flush tells, and so do those of an
/// earlier part of the same operation.
// S-5
#[test]
fn a_flush_tells_of_all_that_was_dirty_whoever_copied_it() {
    let _time = simulated();
    let gate = Arc::new(Gate::default());
    let store = Wrapped::new(Arc::new(MemStore::new()), gate.clone());
    let (engine, file) = engine_over(store, 1 << 30, patient());
    write(&engine, &file, 8, 1);
    gate.shut(true);
    engine.drain.drain_by(Some(time().now() + Duration::from_secs(1)));
    within("a flight", || engine.ops.status().flushing_bytes > 0);
    engine.drain.drain_by(None);
    let progress = Arc::new(Progress::default());
    let (flusher, watched) = (engine.clone(), progress.clone());
    let flush = beside(move || flusher.drain.flush(&[], &watched));
    within("it has begun", || progress.total_files.load(Relaxed) == 1);
    gate.shut(false);
    let report = flush.join();
    assert_eq!((report.files, report.bytes), (1, 8 * MIB), "{report:?}");
    let others = progress.by_others.load(Relaxed);
    assert!(others > 0 && others <= 8 * MIB, "{others}");
    write(&engine, &file, 4, 2);
    engine.drain.flush(&[], &progress);
    assert_eq!(progress.moved_bytes(), 12 * MIB);
    assert_eq!(progress.by_others.load(Relaxed), others, "it was alone");
    drop(file);
    abandon(engine);
}

/// Method: compares with what is dirty while the drain goes slowly.
// S-5
#[test]
fn a_flush_to_a_deadline_tells_no_more_than_was_drained() {
    let _time = simulated();
    let (engine, file) = engine(patient());
    write(&engine, &file, 8, 1);
    let by = Some(time().now() + Duration::from_secs(10));
    let progress = Arc::new(Progress::default());
    let (flusher, watched) = (engine.clone(), progress.clone());
    let flush = beside(move || flusher.drain.execute(&Order { by, ..Order::default() }, &watched));
    let mut halves = 0;
    within("it is done", || {
        let done = progress.done_bytes.load(Relaxed);
        let left = engine.ops.status().dirty_bytes;
        assert!(done + left <= 8 * MIB, "{done} and {left} left");
        halves += u64::from(done > 0 && left > 0);
        flush.is_finished()
    });
    assert_eq!(flush.join().bytes, 8 * MIB);
    assert!(halves > 0, "it was seen in the middle");
    drop(file);
    abandon(engine);
}

#[test]
fn a_hot_set_overwritten_ten_times_within_max_age_is_flushed_at_most_one_and_a_half_times() {
    let _time = simulated();
    let max_age = Duration::from_secs(4);
    let (engine, file) = engine(Tunables { max_age, ..Tunables::default() });
    let began = time().now();
    for turn in 0..10 {
        write(&engine, &file, 8, turn);
        time().sleep(max_age / 25);
    }
    let took = time().since(began);
    assert!(took < max_age * 6 / 10, "well before the age: {took:?}");
    clean_after(&engine);
    let flushed = counter(&engine, "flushed_bytes");
    drop(file);
    abandon(engine);
    assert!((8 * MIB..=12 * MIB).contains(&flushed), "{flushed} of {}", 8 * MIB);
}

/// One file that is always being flushed and is larger than the tier: its writers must not wait
/// until the flight has landed, since its clean bytes make room.
///
/// Method: a flight that lands when the writers are done.
#[test]
fn clean_bytes_of_a_file_in_flight_make_room() {
    let _time = simulated();
    let (preset, backing_timeout) = (Preset::Hold, Duration::from_secs(3600));
    let tunables = Tunables { preset, backing_timeout, ..Tunables::default() };
    let gate = Arc::new(Gate::default());
    let store = Wrapped::new(Arc::new(MemStore::new()), gate.clone());
    let (engine, file) = engine_over(store, 64 * MIB, tunables);
    write_at(&engine, &file, 0..40, 1);
    engine.drain.flush_file(&file).expect("a store that works");
    write_at(&engine, &file, 40..56, 2);
    gate.shut(true);
    engine.drain.drain_by(Some(time().now() + Duration::from_secs(1)));
    within("a flight", || engine.ops.status().flushing_bytes > 0);
    let (done, end) = mpsc::channel();
    let (writer, written) = (engine.clone(), file.clone());
    beside(move || {
        write_at(&writer, &written, 56..76, 3);
        done.send(()).expect("the test waits");
    });
    let ended = receive(&end, PATIENCE);
    let flying = engine.ops.status().flushing_bytes;
    gate.shut(false);
    assert!(ended.is_ok(), "the writers wait for the flight: {:?}", engine.ops.status());
    assert!(flying > 0, "the flight went on meanwhile");
    assert!(counter(&engine, "evicted_bytes") > 0);
    clean_after(&engine);
    for (mib, value) in [(0, 1), (39, 1), (40, 2), (55, 2), (56, 3), (75, 3)] {
        let mut found = vec![0; MIB as usize];
        let n = engine.io.read(&file, mib * MIB, &mut found).expect("the store answers");
        assert!(n == found.len() && found.iter().all(|byte| *byte == value), "MiB {mib}");
    }
    drop(file);
    abandon(engine);
}

/// Once all due bytes are being flushed, the flush goes on as fast as their age asks for, not at
/// the eighth of the store's speed that is left to a flight at rest.
///
/// Method: copies that stand still until they are late, and then have to be quick.
#[test]
fn what_is_on_its_way_counts_for_its_age() {
    let (preset, max_age) = (Preset::Age, Duration::from_secs(1));
    let backing_timeout = Duration::from_secs(3600);
    let _time = simulated();
    let gate = Arc::new(Gate::default());
    let store = Wrapped::new(Arc::new(MemStore::new()), gate.clone());
    let tunables = Tunables { preset, max_age, backing_timeout, ..Tunables::default() };
    let (engine, file) = engine_over(store, 1 << 30, tunables);
    gate.shut(true);
    // One write has one age: otherwise a flight might begin with the older part.
    engine.io.write(&file, 0, &vec![1; (8 * MIB) as usize]).expect("room");
    within("a flight", || engine.ops.status().flushing_bytes > 0);
    assert_eq!(engine.ops.status().flushing_bytes, 8 * MIB);
    time().sleep(max_age);
    within("they are seen", || {
        engine.drain.dirty_ages().last().is_some_and(|ages| ages.bytes == 8 * MIB)
    });
    let eighth = engine.ops.status().service_bytes_per_sec as f64 / 8.0;
    gate.shut(false);
    let took = clean_after(&engine);
    let limit = Duration::from_secs_f64((8 * MIB) as f64 / eighth / 2.0);
    assert!(took < limit, "{took:?}, not {limit:?}");
    drop(file);
    abandon(engine);
}

/// A flight goes on when the drain is to rest: status does not say that nothing is due.
#[test]
fn a_flight_under_way_is_told_as_paced_once_nothing_more_is_asked_for() {
    let _time = simulated();
    let gate = Arc::new(Gate::default());
    let store = Wrapped::new(Arc::new(MemStore::new()), gate.clone());
    let backing_timeout = Duration::from_secs(3600);
    let tunables = Tunables { preset: Preset::Threshold, backing_timeout, ..Tunables::default() };
    let (engine, file) = engine_over(store, 1 << 30, tunables);
    write(&engine, &file, 8, 1);
    gate.shut(true);
    engine.drain.drain_by(Some(time().now() + Duration::from_secs(1)));
    within("a flight", || engine.ops.status().flushing_bytes > 0);
    engine.drain.drain_by(None);
    within("no term rules", || engine.ops.status().governor == "none");
    let told = engine.ops.status().gauges;
    gate.shut(false);
    assert!(told.flushing_bytes > 0 && told.limited_by == "pace", "{told:?}");
    drop(file);
    abandon(engine);
}

/// Records the files that are written to, in order; all are open before the first write.
#[derive(Default)]
struct Course(Mutex<Vec<PathBuf>>);

impl Layer for Course {
    const PASSES_FD: bool = false;

    fn before(&self, call: &Call<'_>) -> Result<()> {
        match call.verb {
            Verb::Open => std::thread::sleep(Duration::from_millis(50)),
            Verb::WriteAt => {
                self.0.lock().expect("no panic inside").push(call.paths[0].to_path_buf());
                std::thread::sleep(Duration::from_millis(2));
            }
            _ => {}
        }
        Ok(())
    }
}

/// A disk's head is not sent to and fro between the files of a batch.
///
/// Method: counts how often the next write is to another file, of pieces that are all copied at
/// once. Files are opened at about the same time, so some of the first may be out of order.
#[test]
fn the_pieces_of_a_batch_go_out_file_by_file() {
    const PIECES: u64 = 60;
    let course = Arc::new(Course::default());
    let store = Wrapped::new(Arc::new(MemStore::new()), course.clone());
    let hold = Tunables { preset: Preset::Hold, ..Tunables::default() };
    let (engine, first) = engine_over(store, 1 << 30, hold);
    let (second, _) = engine.verbs.create(Path::new("g"), &NEW).expect("an empty store");
    let hops = (0..5).map(|turn| {
        for n in 0..PIECES {
            engine.io.write(&first, n * MIB / 2, &[turn; 4096]).expect("room");
            engine.io.write(&second, n * MIB / 2, &[turn; 4096]).expect("room");
        }
        let report = engine.drain.flush(&[], &Progress::default());
        assert!(report.failures.is_empty() && report.files == 2, "{report:?}");
        let course = std::mem::take(&mut *course.0.lock().expect("no panic inside"));
        assert_eq!(course.len() as u64, 2 * PIECES);
        course.windows(2).filter(|pair| pair[0] != pair[1]).count()
    });
    // A copy that finds both files open makes one hop, or three.
    let hops: Vec<usize> = hops.collect();
    assert!(hops.iter().any(|hops| *hops <= 8), "{hops:?}");
    drop(first);
    drop(second);
    abandon(engine);
}

/// A large file of which only the size is to be flushed ages like any other.
#[test]
fn a_file_that_was_cut_off_is_drained_though_no_byte_of_it_is_dirty() {
    let _time = simulated();
    let store = MemStore::new();
    let max_age = Duration::from_secs(2);
    let tunables = Tunables { preset: Preset::Age, max_age, ..Tunables::default() };
    let (engine, file) = engine_over(Arc::new(store.clone()), 1 << 30, tunables);
    write(&engine, &file, 2, 1);
    engine.drain.flush_file(&file).expect("a good store");
    engine.io.set_len(&file, MIB).expect("a smaller size");
    assert!(engine.ops.status().dirty_files == 1 && engine.ops.status().dirty_bytes == 0);
    clean_after(&engine);
    assert_eq!(store.stat(Path::new("f")).expect("it is there").size, MIB);
    drop(file);
    abandon(engine);
}

/// The drain's reasons to wait while nothing has failed.
///
/// Method: a young file, seen at every look until it is clean; the same held for an order.
#[test]
fn a_young_file_and_a_held_one_are_not_called_failed() {
    let _time = simulated();
    let max_age = Duration::from_secs(3);
    let (engine, file) = engine(Tunables { max_age, ..Tunables::default() });
    write(&engine, &file, 2, 1);
    let mut seen = std::collections::BTreeSet::new();
    let began = time().now();
    while engine.ops.status().dirty_files > 0 {
        seen.insert(engine.ops.status().gauges.limited_by);
        assert!(time().since(began) < PATIENCE, "{seen:?}");
        time().sleep(Duration::from_millis(5));
    }
    assert!(seen.contains("settle") && !seen.contains("failed-files"), "{seen:?}");

    let hold = engine.drain.hold(&[], &"f".parse().expect("a pattern"));
    write(&engine, &file, 2, 2);
    within("it is held", || engine.ops.status().limited_by == "held-for-last");
    drop(hold);
    clean_after(&engine);
    drop(file);
    abandon(engine);
}

#[test]
fn the_cap_holds_and_a_drain_to_a_deadline_is_in_time() {
    let _time = simulated();
    let hold = Tunables { preset: Preset::Hold, ..Tunables::default() };
    let (engine, file) = engine(hold.clone());
    let limited_by = |what: &str| within(what, || engine.ops.status().limited_by == what);
    write(&engine, &file, 24, 1);
    limited_by("hold");
    time().sleep(Duration::from_millis(300));
    assert_eq!(counter(&engine, "flushed_bytes"), 0, "hold");
    let by = Duration::from_secs(3);
    write(&engine, &file, 24, 1);
    limited_by("hold");
    engine.drain.drain_by(Some(time().now() + by));
    let took = clean_after(&engine);
    engine.drain.drain_by(None);
    assert!(took >= by / 3, "the time is used: {took:?}");
    assert!(took < by, "24 MiB to a deadline: {took:?}");

    write(&engine, &file, 24, 2);
    limited_by("hold");
    // Another preset as well, to show when the governor has taken the cap into account.
    let (preset, max_age) = (Preset::Age, Duration::from_secs(3600));
    let capped = Tunables { tier_size: TIER, rate_max: 12 * MIB, preset, max_age, ..hold };
    engine.ops.set_tunables(capped).expect("valid");
    write(&engine, &file, 24, 2);
    limited_by("not-yet-due");
    let began = time().now();
    engine.drain.flush_file(&file).expect("a good store");
    let took = time().since(began);
    assert!(took >= Duration::from_millis(1700), "the cap holds: {took:?}");
    assert!(took < by, "24 MiB at 12 MiB/s: {took:?}");
    drop(file);
    abandon(engine);
}

/// Counts files opened for copying, and makes copies wait.
#[derive(Default)]
struct Ahead {
    opened: AtomicUsize,
    gate: Gate,
}

impl Layer for Ahead {
    const PASSES_FD: bool = false;

    fn before(&self, call: &Call<'_>) -> Result<()> {
        self.opened.fetch_add(usize::from(call.verb == Verb::Open), Relaxed);
        self.gate.before(call)
    }
}

/// While bytes are copied the next files are opened, or a store with latency would rest most of the
/// time; but only a few, since a change of a file between its open and its copy is not seen (S8).
// S-8
#[test]
fn few_files_are_opened_ahead_of_their_copies() {
    let _time = simulated();
    const DEPTH: usize = 4;
    let ahead = Arc::new(Ahead::default());
    let store = Wrapped::new(Arc::new(MemStore::new()), ahead.clone());
    let tunables =
        Tunables { preset: Preset::Hold, flush_depth: DEPTH as u32, ..Tunables::default() };
    let (engine, _) = engine_over(store, 1 << 30, tunables);
    for n in 0..50 {
        let (file, _) = engine.verbs.create(Path::new(&format!("{n}")), &NEW).expect("room");
        engine.io.write(&file, 0, &[1; 4096]).expect("room");
        drop(file);
    }
    ahead.gate.shut(true);
    ahead.opened.store(0, Relaxed);
    let (flusher, opened) = (engine.clone(), || ahead.opened.load(Relaxed));
    let flush = beside(move || flusher.drain.flush(&[], &Progress::default()));
    within("the next are opened", || opened() == 3 * DEPTH);
    time().sleep(Duration::from_millis(50));
    assert_eq!(opened(), 3 * DEPTH, "no more");
    ahead.gate.shut(false);
    let report = flush.join();
    assert_eq!((report.files, report.failures.len(), opened()), (50, 0, 50));
}
