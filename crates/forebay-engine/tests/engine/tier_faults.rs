//! A fast tier that fails: the n-th operation on it gives an error, for every n of a workload.
//!
//! An error may surface; acknowledged bytes must not be lost by it, neither now nor after the death
//! of the process, and they reach the backing store once the tier works again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use forebay_backing::wrap::{Call, Done, Layer, Verb, Wrapped};
use forebay_backing::{BackingStore, Result};
use forebay_engine::{Config, Engine, Progress, Tunables};

use crate::journal::{Crash, Journal, SECTOR, Value, stamp};
use crate::media::{CrashMedia, Disk, Fault};
use crate::start::{NEW, abandon, named, patient, read_all, start, within};
use crate::store::{MemStore, Tree};

const BOOT: &str = "boot-faults";
const SOON: Duration = Duration::from_millis(100);

/// The results of one trial.
#[derive(Default)]
struct Outcome {
    ops: u64,
    faults: u64,
    errors: u64,
}

struct Trial {
    engine: Arc<Engine>,
    journal: Journal,
    generation: u32,
    errors: u64,
}

impl Trial {
    fn id(&self, name: &str) -> Option<usize> {
        self.journal.id(&PathBuf::from(name))
    }

    /// Notes the result of a change: one that fails is not acknowledged, and its bytes may be there or not.
    fn told(&mut self, id: usize, done: Result<()>) {
        match done {
            Ok(()) => self.journal.change_ends(id),
            Err(_) => {
                self.errors += 1;
                self.journal.change_fails(id);
            }
        }
    }

    fn with(
        &self,
        name: &str,
        act: impl FnOnce(&Arc<forebay_engine::File>) -> Result<()>,
    ) -> Result<()> {
        let file = self.engine.io.open(Path::new(name), None)?;
        let done = act(&file);
        drop(file);
        done
    }

    fn create(&mut self, name: &str) {
        let id = self.journal.new_file();
        self.journal.rename_begins(|names| _ = names.insert(name.into(), id));
        self.store_is_back();
        let (file, _) =
            self.engine.verbs.create(Path::new(name), &NEW).expect("the tier is not asked");
        drop(file);
        self.journal.rename_ends();
    }

    fn write(&mut self, name: &str, start: usize, count: usize) {
        let Some(id) = self.id(name) else { return };
        self.generation += 1;
        let bytes: Vec<u8> =
            (start..start + count).flat_map(|at| stamp(id, at, self.generation)).collect();
        let value = Value::Written(self.generation);
        self.journal.write_begins(id, start, start + count, value);
        let done =
            self.with(name, |file| self.engine.io.write(file, (start * SECTOR) as u64, &bytes));
        self.told(id, done);
    }

    fn resize(&mut self, name: &str, len: usize) {
        let Some(id) = self.id(name) else { return };
        self.journal.resize_begins(id, len);
        let resize = || self.with(name, |file| self.engine.io.set_len(file, (len * SECTOR) as u64));
        let mut done = resize();
        // Until the length of the file is known, nothing can be said about the next operations.
        for _ in 0..5 {
            if done.is_err() {
                self.store_is_back();
                done = resize();
            }
        }
        self.told(id, done);
    }

    /// With little patience a busy machine is taken for a store that hangs.
    fn store_is_back(&self) {
        within("the store is back", || self.engine.ops.status().backing_available);
    }

    fn sync(&mut self, name: &str) {
        let Some(id) = self.id(name) else { return };
        let covered = self.journal.sync_begins(id);
        match self.with(name, |file| self.engine.io.sync(file)) {
            Ok(()) => self.journal.sync_ends(id, &covered),
            Err(_) => self.errors += 1,
        }
    }

    fn read(&mut self, name: &str) {
        self.errors += u64::from(read_all(&self.engine, Path::new(name)).is_err());
    }

    fn flush(&mut self) {
        self.errors += self.engine.drain.flush(&[], &Progress::default()).failures.len() as u64;
    }

    /// A few operations of each kind, twice over the same bytes: failed ones are tried again.
    fn work(&mut self) {
        self.create("new");
        for _ in 0..2 {
            self.write("new", 0, 9);
            self.write("old", 4, 6);
            self.sync("new");
            self.write("new", 3, 12);
            self.read("old");
            self.flush();
            self.write("new", 0, 2);
            self.resize("old", 30);
            self.write("old", 28, 6);
            self.sync("old");
            self.engine.ops.evict(&[], &Progress::default());
            self.write("old", 30, 2);
            self.read("old");
        }
    }
}

/// Runs one workload in which the `n`-th operation fails, and checks the result.
fn trial(n: u64, count: u64, errno: i32) -> std::result::Result<Outcome, String> {
    let store = MemStore::new();
    let mut journal = Journal::default();
    let old = journal.new_file();
    journal.rename_begins(|names| _ = names.insert("old".into(), old));
    journal.rename_ends();
    journal.write_begins(old, 0, 40, Value::Written(0));
    journal.change_ends(old);
    let (file, _) = store.create(Path::new("old"), &NEW).expect("memory");
    let bytes: Vec<u8> = (0..40).flat_map(|at| stamp(old, at, 0)).collect();
    file.write_at(&bytes, 0).expect("memory");

    let media = CrashMedia::default();
    let backing = Arc::new(store.clone());
    // A full tier is waited for as long as the backing store may take; nothing else has to fail
    // fast.
    let tunables = match errno {
        libc::ENOSPC if count > 0 => Tunables { backing_timeout: SOON, ..patient() },
        _ => patient(),
    };
    let engine =
        start(Arc::new(media.clone()), backing, BOOT, Config::default(), tunables).expect("new");
    let mut trial = Trial { engine, journal, generation: 0, errors: 0 };
    media.set_fault(Some(Fault { n, count, errno }));
    trial.work();
    let outcome = Outcome { ops: media.ops(), faults: media.faults_given(), errors: trial.errors };
    media.set_fault(None);
    // From here on a busy machine must not count as a store that hangs; it may have until now.
    trial.engine.ops.set_tunables(patient()).expect("valid");
    trial.store_is_back();

    let (disk, tree) = moment(&media, &store);
    let live = compare(&trial.journal, &trial.engine, &store);
    abandon(trial.engine);
    live.map_err(|e| format!("afterwards: {e}"))?;

    let store = MemStore::on(tree);
    let media = CrashMedia::on(disk.process_crash_image());
    let backing = Arc::new(store.clone());
    let engine = start(Arc::new(media), backing, BOOT, Config::default(), patient());
    let engine = engine.map_err(|e| format!("after kill -9: {e}"))?;
    let found = compare(&trial.journal, &engine, &store);
    abandon(engine);
    found.map_err(|e| format!("after kill -9: {e}"))?;
    Ok(outcome)
}

/// Returns tier and store at one moment: on a busy machine a flush that was given up may still go
/// on, and no flush changes the store before the tier says so.
fn moment(media: &CrashMedia, store: &MemStore) -> (Disk, Tree) {
    loop {
        let ops = media.ops();
        let moment = (media.snapshot(), store.snapshot());
        if media.ops() == ops {
            return moment;
        }
    }
}

/// Checks that acknowledged bytes are there, and reach the backing store.
fn compare(
    journal: &Journal,
    engine: &Arc<Engine>,
    store: &MemStore,
) -> std::result::Result<(), String> {
    let mut seen = BTreeMap::new();
    for path in store.snapshot().files().into_keys() {
        let bytes = read_all(engine, &path).map_err(|e| format!("reading: {e}"))?;
        seen.insert(path, bytes);
    }
    journal.check(Crash::Process, &seen, &BTreeSet::new())?;
    let report = engine.drain.flush(&[], &Progress::default());
    if let Some(failure) = report.failures.first() {
        return Err(format!("flush: {failure:?}"));
    }
    match store.snapshot().files() == seen {
        true => Ok(()),
        false => Err("the backing store holds something else than was read".into()),
    }
}

fn every_operation(count: u64, errno: i32) {
    let clean = trial(u64::MAX, 0, errno).unwrap_or_else(|e| panic!("without a fault: {e}"));
    assert_eq!((clean.faults, clean.errors), (0, 0), "nothing fails by itself");
    let (mut faults, mut errors) = (0, 0);
    for n in 1..=clean.ops {
        let outcome = trial(n, count, errno).unwrap_or_else(|e| {
            panic!("operation {n} of {}, {count} times {errno}: {e}", clean.ops)
        });
        faults += outcome.faults;
        errors += outcome.errors;
    }
    println!("{} operations, {faults} faults, {errors} errors", clean.ops);
    assert!(faults >= clean.ops / 2 && errors > 0, "{faults} faults, {errors} errors");
}

// S-2 S-7
#[test]
fn an_io_error_of_the_tier_loses_nothing_acknowledged() {
    every_operation(1, libc::EIO);
}

// S-2 S-7
#[test]
fn a_tier_that_fails_for_a_while_loses_nothing_acknowledged() {
    every_operation(3, libc::EIO);
}

// S-2 S-7 S-9
#[test]
fn a_tier_without_space_for_a_moment_loses_nothing_acknowledged() {
    every_operation(1, libc::ENOSPC);
}

/// Names are the backing store's: errors of the tier do not make answers about them wrong.
#[test]
fn an_unlink_under_errors_is_done_or_not_done() {
    for n in 1..6 {
        let store = MemStore::new();
        store.create(Path::new("f"), &NEW).expect("memory");
        let media = CrashMedia::default();
        let backing = Arc::new(store.clone());
        let engine = start(Arc::new(media.clone()), backing, BOOT, Config::default(), patient());
        let engine = engine.expect("new");
        let file = engine.io.open(Path::new("f"), None).expect("it exists");
        engine.io.write(&file, 0, &[7; 512]).expect("works");
        drop(file);
        let attr = engine.verbs.stat(Path::new("f")).expect("it exists");
        media.set_fault(Some(Fault { n, count: 1, errno: libc::EIO }));
        let done = engine.verbs.unlink(named(Path::new("f"), &attr));
        media.set_fault(None);
        let exists = store.stat(Path::new("f")).is_ok();
        assert!(!(done.is_ok() && exists), "operation {n}: it said done and was not");
        assert_eq!(engine.io.open(Path::new("f"), None).is_ok(), exists, "operation {n}");
        abandon(engine);
    }
}

/// Breaks the tier's log when a flush has looked at the file it has copied, and then holds up its
/// second look, which it takes since the first could not be recorded.
struct SecondLook {
    media: CrashMedia,
    armed: AtomicBool,
    writes: AtomicUsize,
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    No,
    WillBe,
    Is,
}

impl SecondLook {
    fn now(&self) -> Held {
        *self.held.lock().unwrap()
    }

    fn set(&self, held: Held) {
        *self.held.lock().unwrap() = held;
        self.changed.notify_all();
    }
}

impl Layer for SecondLook {
    const PASSES_FD: bool = false;

    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        self.writes.fetch_add(usize::from(call.verb == Verb::WriteAt), Relaxed);
        if call.verb == Verb::Sync && self.now() == Held::WillBe {
            self.set(Held::Is);
            let held = self.held.lock().unwrap();
            drop(self.changed.wait_while(held, |held| *held == Held::Is).unwrap());
        }
        let done = run();
        if call.verb == Verb::FileStat && self.armed.swap(false, Relaxed) {
            self.set(Held::WillBe);
            self.media.set_fault(Some(Fault { n: 1, count: 1, errno: libc::EIO }));
        }
        done
    }
}

/// A flush whose end could not be recorded is not over before it has looked at the file again (W2):
/// the result of another flush beside it would be taken for its own.
// S-6 S-7
#[test]
fn no_flush_begins_while_one_that_could_not_be_recorded_looks_again() {
    let media = CrashMedia::default();
    let look = Arc::new(SecondLook {
        media: media.clone(),
        armed: AtomicBool::new(false),
        writes: AtomicUsize::new(0),
        held: Mutex::new(Held::No),
        changed: Condvar::new(),
    });
    let store = MemStore::new();
    let backing = Wrapped::new(Arc::new(store.clone()), look.clone());
    let engine = start(Arc::new(media.clone()), backing, BOOT, Config::default(), patient());
    let engine = engine.expect("new");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("room");
    let flush = || {
        let engine = engine.clone();
        std::thread::spawn(move || engine.drain.flush(&[], &Progress::default()).failures.len())
    };
    // Another thread may use the tier in between, and get the error.
    let first = (0..50).find_map(|turn| {
        engine.io.write(&file, 0, &[turn; 512]).expect("room");
        look.armed.store(true, Relaxed);
        let first = flush();
        within("the first one ends or is held", || first.is_finished() || look.now() == Held::Is);
        let is_held = look.now() == Held::Is;
        if !is_held {
            look.set(Held::No);
            media.set_fault(None);
        }
        is_held.then_some(first)
    });
    let first = first.expect("it was held");
    let copies = look.writes.load(Relaxed);
    let second = flush();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(look.writes.load(Relaxed), copies, "a second flight");
    look.set(Held::No);
    assert_eq!((first.join().unwrap(), second.join().unwrap()), (1, 0));
    assert_eq!(look.writes.load(Relaxed), copies + 1);
    engine.io.write(&file, 0, &[99; 512]).expect("room");
    assert_eq!(flush().join().unwrap(), 0);
    assert_eq!(store.snapshot().files()[Path::new("f")], [99; 512]);
    abandon(engine);
}

/// A file system has a largest file size, and a log may be full.
#[test]
fn a_file_that_cannot_grow_keeps_its_size() {
    const LONG: u64 = 1 << 20;
    for n in 1..=4 {
        let media = CrashMedia::default();
        let (config, store) = (Config::default(), Arc::new(MemStore::new()));
        let engine = start(Arc::new(media.clone()), store, BOOT, config, patient()).expect("new");
        let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
        engine.io.write(&file, 0, &[1; SECTOR]).expect("room");
        media.set_fault(Some(Fault { n, count: 1, errno: libc::EFBIG }));
        let grown = engine.io.set_len(&file, LONG);
        media.set_fault(None);
        let size = if grown.is_ok() { LONG } else { SECTOR as u64 };
        assert_eq!(engine.verbs.stat_open(&file).size, size, "operation {n}: {grown:?}");
        assert!(read_all(&engine, Path::new("f")).expect("sound").len() as u64 == size);
        drop(file);
        abandon(engine);
    }
}
