//! Crashes at any moment of a workload: the process dies, the machine loses power, the backing
//! store loses power with it.
//!
//! The workload runs once per seed; before changes of the fast tier picked at random, in the middle
//! of writes, syncs, flushes, compactions and evictions, everything is copied: the tier with its
//! durable part, the backing store, and the acknowledgements that the program had got. Each copy is
//! then recovered, read, flushed and compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_backing::{BackingStore, RenameMode, Result};
use forebay_engine::{Allocate, Config, Engine, File, OpenFile, Progress};

use crate::journal::{Crash, Journal, SECTOR, Value, stamp};
use crate::media::{CrashMedia, Disk, Lie};
use crate::rng::Rng;
use crate::start::{NEW, abandon, counter, named, patient, read_all, start};
use crate::store::{MemStore, Tree};

const BOOT: &str = "boot-1";
const STEPS: u64 = 120;

/// Files are at most this long, in sectors.
const LEN_MAX: u64 = 96;

/// Either files of any size are compared by content, or none is.
fn digests(seed: u64) -> Config {
    let digests_from = if seed.is_multiple_of(2) { 1 } else { u64::MAX };
    Config { digests_from, ..Config::default() }
}

/// The state of everything at one moment.
struct Moment {
    seed: u64,
    at: u64,
    disk: Disk,
    tree: Tree,
    journal: Journal,
}

#[derive(Default, Debug)]
struct Done {
    moments: usize,
    images: usize,
    dropped_bytes: u64,
    kept_bytes: u64,
    flushed: u64,
    syncs: u64,
    msyncs: u64,
    evicted: u64,
    lies: u64,
    seals: u64,
}

pub struct Workload {
    seed: u64,
    rng: Rng,
    pub engine: Arc<Engine>,
    pub media: CrashMedia,
    pub store: MemStore,
    pub journal: Arc<Mutex<Journal>>,
    held: Vec<OpenFile>,
    generation: u32,
    /// Whether another thread flushes too.
    company: bool,
    /// The number of syncs past the daemon that it does not see.
    msyncs: u64,
}

impl Workload {
    pub fn new(seed: u64, lie: Option<Lie>) -> Workload {
        Workload::with(seed, lie, Config::default())
    }

    pub fn with(seed: u64, lie: Option<Lie>, config: Config) -> Workload {
        let store = MemStore::new();
        let mut journal = Journal::default();
        for name in ["p", "q"] {
            preload(&store, &mut journal, Path::new(name), 64);
        }
        let media = CrashMedia::default();
        if let Some(lie) = lie {
            media.set_lie(lie);
        }
        let backing = Arc::new(store.clone());
        let config = Config { digests_from: digests(seed).digests_from, ..config };
        let engine = start(Arc::new(media.clone()), backing, BOOT, config, patient());
        Workload {
            seed,
            rng: Rng::new(seed),
            engine: engine.expect("a new tier"),
            media,
            store,
            journal: Arc::new(Mutex::new(journal)),
            held: Vec::new(),
            generation: 1,
            company: seed.is_multiple_of(3),
            msyncs: 0,
        }
    }

    fn journal<T>(&self, act: impl FnOnce(&mut Journal) -> T) -> T {
        act(&mut self.journal.lock().expect("no panic inside"))
    }

    /// Runs the workload and returns the moments at which it will have crashed.
    fn run(&mut self) -> std::result::Result<Vec<Moment>, String> {
        let moments = self.watch();
        self.work()?;
        Ok(std::mem::take(&mut *moments.lock().expect("no panic inside")))
    }

    /// Runs all steps.
    pub fn work(&mut self) -> std::result::Result<(), String> {
        let stop = Arc::new(AtomicBool::new(false));
        let company = self.company.then(|| self.flush_beside(stop.clone()));
        let mut failed = None;
        for step in 0..STEPS {
            if let Err(e) = self.step() {
                failed = Some(format!("seed {} step {step}: {e}", self.seed));
                break;
            }
        }
        stop.store(true, Relaxed);
        if let Some(thread) = company {
            thread.join().expect("the flusher does not panic");
        }
        self.media.set_hook(None);
        self.held.clear();
        failed.map_or(Ok(()), Err)
    }

    fn watch(&mut self) -> Arc<Mutex<Vec<Moment>>> {
        let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
        let (out, store, journal) = (moments.clone(), self.store.clone(), self.journal.clone());
        let mut rng = self.rng.fork();
        let mut next = None;
        let seed = self.seed;
        self.media.set_hook(Some(Box::new(move |at, disk| {
            if *next.get_or_insert(at + rng.below(50)) != at {
                return;
            }
            next = Some(at + 1 + rng.below(110));
            // Other threads make names without a change of the tier: the store and the journal must
            // be copied at one moment.
            let journal = journal.lock().expect("no panic inside");
            out.lock().expect("no panic inside").push(Moment {
                seed,
                at,
                disk: disk.clone(),
                tree: store.snapshot(),
                journal: journal.clone(),
            });
        })));
        moments
    }

    fn flush_beside(&self, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
        let engine = self.engine.clone();
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                engine.drain.flush(&[], &Progress::default());
                std::thread::sleep(Duration::from_micros(500));
            }
        })
    }

    fn step(&mut self) -> std::result::Result<(), String> {
        let path = PathBuf::from(["p", "q", "r", "s", "t"][self.rng.below(5) as usize]);
        let told = |e: forebay_backing::Error| e.to_string();
        if self.journal(|j| j.id(&path)).is_none() {
            return self.create(&path).map_err(told);
        }
        match self.rng.below(20) {
            0..=6 => self.write(&path).map_err(told),
            7 => self.resize(&path).map_err(told),
            8 => self.punch(&path).map_err(told),
            9..=11 => self.sync(&path).map_err(told),
            12 => self.rename(&path).map_err(told),
            13 => self.unlink(&path).map_err(told),
            14 => self.write_unseen(&path).map_err(told),
            15 => self.evict(),
            16 => self.hold(&path).map_err(told),
            17 => read_all(&self.engine, &path).map(drop).map_err(told),
            _ => self.flush(),
        }
    }

    fn create(&mut self, path: &Path) -> Result<()> {
        self.journal(|j| {
            let id = j.new_file();
            j.rename_begins(|names| _ = names.insert(path.into(), id));
        });
        let (file, _) = self.engine.verbs.create(path, &NEW)?;
        drop(file);
        self.journal(Journal::rename_ends);
        self.write(path)
    }

    fn open<T>(&self, path: &Path, act: impl FnOnce(&Arc<File>) -> Result<T>) -> Result<T> {
        let file = self.engine.io.open(path, None)?;
        let done = act(&file);
        drop(file);
        done
    }

    fn id(&self, path: &Path) -> usize {
        self.journal(|j| j.id(&path.to_path_buf()).expect("the step looked"))
    }

    /// Returns some sectors near the file's end, and their new content.
    fn stretch(&mut self, id: usize) -> (usize, Vec<u8>) {
        let len = self.journal(|j| j.len(id)) as u64;
        let at = self.rng.below((len + 4).min(LEN_MAX)) as usize;
        let count = 1 + self.rng.below(12) as usize;
        self.generation += 1;
        let bytes = (at..at + count).flat_map(|at| stamp(id, at, self.generation)).collect();
        (at, bytes)
    }

    fn write(&mut self, path: &Path) -> Result<()> {
        let id = self.id(path);
        let (at, bytes) = self.stretch(id);
        let value = Value::Written(self.generation);
        self.journal(|j| j.write_begins(id, at, at + bytes.len() / SECTOR, value));
        self.open(path, |file| self.engine.io.write(file, (at * SECTOR) as u64, &bytes))?;
        self.journal(|j| j.change_ends(id));
        Ok(())
    }

    fn resize(&mut self, path: &Path) -> Result<()> {
        let id = self.id(path);
        let len = self.rng.below(LEN_MAX / 2) as usize;
        self.journal(|j| j.resize_begins(id, len));
        self.open(path, |file| self.engine.io.set_len(file, (len * SECTOR) as u64))?;
        self.journal(|j| j.change_ends(id));
        if self.rng.below(2) == 0 { self.write(path) } else { Ok(()) }
    }

    fn punch(&mut self, path: &Path) -> Result<()> {
        let id = self.id(path);
        let (at, bytes) = self.stretch(id);
        let len = self.journal(|j| j.len(id));
        let end = (at + bytes.len() / SECTOR).min(len);
        if at >= end {
            return Ok(());
        }
        self.journal(|j| j.write_begins(id, at, end, Value::Zeros));
        let (from, count) = ((at * SECTOR) as u64, ((end - at) * SECTOR) as u64);
        self.open(path, |file| self.engine.io.allocate(file, Allocate::Zero, from, count))?;
        self.journal(|j| j.change_ends(id));
        Ok(())
    }

    fn sync(&mut self, path: &Path) -> Result<()> {
        let id = self.id(path);
        let covered = self.journal(|j| j.sync_begins(id));
        self.open(path, |file| self.engine.io.sync(file))?;
        self.journal(|j| j.sync_ends(id, &covered));
        Ok(())
    }

    fn rename(&mut self, path: &Path) -> Result<()> {
        let to = PathBuf::from(["r", "s", "t", "u"][self.rng.below(4) as usize]);
        if to == path {
            return Ok(());
        }
        let from = self.engine.verbs.stat(path)?;
        let over = self.engine.verbs.stat(&to).ok();
        self.journal(|j| {
            j.rename_begins(|names| {
                let id = names.remove(path).expect("the step looked");
                names.insert(to.clone(), id);
            });
        });
        let over = over.as_ref().map(|attr| named(&to, attr));
        self.engine.verbs.rename(named(path, &from), &to, over, RenameMode::Replace)?;
        self.journal(Journal::rename_ends);
        Ok(())
    }

    fn unlink(&mut self, path: &Path) -> Result<()> {
        let attr = self.engine.verbs.stat(path)?;
        self.journal(|j| j.rename_begins(|names| _ = names.remove(path)));
        self.engine.verbs.unlink(named(path, &attr))?;
        self.journal(Journal::rename_ends);
        Ok(())
    }

    /// Writes as a program does that the kernel serves: truncates, unless it opens the file as it
    /// is, writes past the daemon, and may sync.
    fn write_unseen(&mut self, path: &Path) -> Result<()> {
        let id = self.id(path);
        let file = self.engine.io.open(path, None)?;
        if self.engine.files.watches_writers() {
            assert!(self.engine.passed.write(&file, false)?.is_none(), "nobody would copy it");
            return Ok(());
        }
        let ready = self.engine.passed.make_ready(&file)?;
        let mut past = match (ready, self.generation.is_multiple_of(2)) {
            (true, _) => self.engine.passed.write_ready(&file, false)?,
            (false, true) => self.engine.passed.write(&file, false)?,
            (false, false) => None,
        };
        let ready = ready && past.is_some();
        let len = self.journal(|j| j.len(id));
        if past.is_none() {
            self.journal(|j| j.resize_begins(id, 0));
            self.engine.io.set_len(&file, 0)?;
            self.journal(|j| j.change_ends(id));
            past = self.engine.passed.write(&file, false)?;
        }
        let past = past.expect("an empty file is complete");
        for at in 0..2 + self.rng.below(6) as usize {
            self.generation += 1;
            self.journal(|j| j.write_begins(id, at, at + 1, Value::Written(self.generation)));
            let bytes = stamp(id, at, self.generation);
            past.shadow().write_at(&bytes, (at * SECTOR) as u64).expect("memory");
            self.journal(|j| j.change_ends(id));
            match self.rng.below(8) {
                0 | 1 => self.sync(path)?,
                // The daemon does not see a sync by a mapping.
                2 if ready && at < len => {
                    let covered = self.journal(|j| j.sync_begins(id));
                    past.shadow().sync_data().expect("memory");
                    self.journal(|j| j.sync_ends(id, &covered));
                    self.msyncs += 1;
                }
                _ => {}
            }
        }
        past.end()?;
        drop(file);
        Ok(())
    }

    fn evict(&mut self) -> std::result::Result<(), String> {
        self.engine.ops.evict(&[], &Progress::default());
        Ok(())
    }

    /// Keeps a file open for the rest of the run.
    fn hold(&mut self, path: &Path) -> Result<()> {
        let file = self.engine.io.open(path, None)?;
        self.held.push(file);
        Ok(())
    }

    /// S-5: after a flush without failures the store has the program's bytes, and keeps them.
    fn flush(&mut self) -> std::result::Result<(), String> {
        let ids: Vec<usize> = ["p", "q", "r", "s", "t", "u"]
            .iter()
            .filter_map(|name| self.journal(|j| j.id(&PathBuf::from(name))))
            .collect();
        let covered: Vec<_> =
            ids.iter().map(|id| (*id, self.journal(|j| j.sync_begins(*id)))).collect();
        let report = self.engine.drain.flush(&[], &Progress::default());
        if let Some(failure) = report.failures.first() {
            return Err(format!("flush: {failure:?}"));
        }
        self.journal(|j| covered.iter().for_each(|(id, covered)| j.sync_ends(*id, covered)));
        self.journal(|j| j.check(Crash::Process, &self.store.snapshot().files(), &BTreeSet::new()))
            .map_err(|e| format!("after a flush: {e}"))
    }
}

/// Compares a recovered engine with the journal of a workload.
pub fn compare(
    journal: &Journal,
    crash: Crash,
    engine: &Arc<Engine>,
    store: &MemStore,
) -> std::result::Result<(), String> {
    let mut seen = BTreeMap::new();
    for path in store.snapshot().files().into_keys() {
        let bytes =
            read_all(engine, &path).map_err(|e| format!("reading {}: {e}", path.display()))?;
        seen.insert(path, bytes);
    }
    let report = engine.drain.flush(&[], &Progress::default());
    // A removal that the tier forgot, or a create over an older name that the backing store forgot,
    // leaves a conflict for the operator, and the dirty bytes in the tier.
    let conflicts = report.failures.iter().filter(|f| f.state == "conflict");
    let excused: BTreeSet<PathBuf> = match crash {
        Crash::Process => BTreeSet::new(),
        Crash::Power => {
            let removed = conflicts.filter(|f| journal.lost_a_file(&f.path));
            removed.map(|f| f.path.clone()).collect()
        }
        Crash::Both => conflicts.map(|f| f.path.clone()).collect(),
    };
    journal.check(crash, &seen, &excused)?;
    if let Some(failure) = report.failures.iter().find(|f| !excused.contains(&f.path)) {
        return Err(format!("flush after recovery: {failure:?}"));
    }
    // No zeros, no torn or foreign block reaches the backing store (S4).
    match excused.is_empty() && store.snapshot().files() != seen {
        false => Ok(()),
        true => Err("the backing store holds something else than was read".into()),
    }
}

fn preload(store: &MemStore, journal: &mut Journal, path: &Path, sectors: usize) {
    let id = journal.new_file();
    journal.rename_begins(|names| _ = names.insert(path.into(), id));
    journal.rename_ends();
    journal.write_begins(id, 0, sectors, Value::Written(1));
    journal.change_ends(id);
    let covered = journal.sync_begins(id);
    journal.sync_ends(id, &covered);
    let (file, _) = store.create(path, &NEW).expect("memory");
    let bytes: Vec<u8> = (0..sectors).flat_map(|at| stamp(id, at, 1)).collect();
    file.write_at(&bytes, 0).and_then(|()| file.sync()).expect("memory");
}

impl Moment {
    /// Recovers every image of this moment and compares.
    fn check(&self, rng: &mut Rng, done: &mut Done) -> std::result::Result<(), String> {
        let at = self.at;
        self.recover(Crash::Process, self.disk.process_crash_image(), self.tree.clone(), done)
            .map_err(|e| format!("change {at}, the process died: {e}"))?;
        for image in self.disk.crash_images(rng, 1) {
            self.recover(Crash::Power, image, self.tree.clone(), done)
                .map_err(|e| format!("change {at}, power was lost: {e}"))?;
        }
        for image in self.disk.crash_images(rng, 0).into_iter().take(2) {
            self.recover(Crash::Both, image, self.tree.crash_image(rng), done)
                .map_err(|e| format!("change {at}, both lost power: {e}"))?;
        }
        Ok(())
    }

    fn recover(
        &self,
        crash: Crash,
        disk: Disk,
        tree: Tree,
        done: &mut Done,
    ) -> std::result::Result<(), String> {
        let boot = if crash == Crash::Process { BOOT } else { "boot-2" };
        let (media, store) = (CrashMedia::on(disk), MemStore::on(tree));
        let backing = Arc::new(store.clone());
        let engine = start(Arc::new(media), backing, boot, digests(self.seed), patient())
            .map_err(|e| format!("recovery: {e}"))?;
        let result = compare(&self.journal, crash, &engine, &store);
        let report = engine.recovery();
        done.images += 1;
        done.dropped_bytes += report.dropped_bytes;
        done.kept_bytes += report.dirty_bytes;
        let problems = report.problems.clone();
        let list = engine.ops.list(Path::new(""));
        abandon(engine);
        let result = result.map_err(|e| format!("{e}; the tier holds {list:?}"));
        result.map_err(|e| if problems.is_empty() { e } else { format!("{e} ({problems:?})") })
    }
}

fn run(seed: u64, lie: Option<Lie>, done: &mut Done) -> std::result::Result<(), String> {
    let mut work = Workload::new(seed, lie);
    let moments = work.run();
    let stats = |name| counter(&work.engine, name);
    done.flushed += stats("flushed_files");
    done.syncs += stats("syncs");
    done.msyncs += work.msyncs;
    done.evicted += stats("evicted_bytes");
    done.lies += work.media.lies_told();
    done.seals += work.media.seals();
    let engine = work.engine.clone();
    abandon(engine);
    let moments = moments?;
    done.moments += moments.len();
    let mut rng = Rng::new(seed ^ 0xabcd);
    moments.iter().try_for_each(|moment| moment.check(&mut rng, done))
}

/// Goal: whatever crashes, whenever, programs find what they were promised. Method: above.
// S-2 S-3 S-4 S-5 S-6 S-7
#[test]
fn no_crash_breaks_a_promise() {
    let seeds = match std::env::var("FOREBAY_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        // 104: an overwritten durable byte, flushed, came back old after the cut.
        Err(_) => (0..12).chain([104]).collect(),
    };
    let (mut done, count) = (Done::default(), seeds.len());
    for seed in seeds {
        if let Err(e) = run(seed, None, &mut done) {
            panic!("{e}\nrepeat: FOREBAY_SEED={seed} cargo test -p forebay-engine no_crash_breaks");
        }
    }
    println!("{done:?}");
    if count == 1 {
        // The bounds below hold for all seeds together, not for each.
        assert!(done.moments > 0 && done.images > 0, "it crashed: {done:?}");
        return;
    }
    assert!(done.moments > 10 && done.images > 50, "it crashed: {done:?}");
    assert!(done.kept_bytes > 0 && done.dropped_bytes > 0, "it mattered: {done:?}");
    assert!(done.seals > 0, "a file grew past us, and was synced: {done:?}");
    assert!(done.msyncs > 0, "something was written unseen that was clean: {done:?}");
    assert!(done.flushed > 0 && done.syncs > 0 && done.evicted > 0, "it worked: {done:?}");
}

fn catches(lie: Lie) {
    let mut done = Done::default();
    let caught = (0..20).find_map(|seed| run(seed, Some(lie), &mut done).err());
    assert!(done.lies > 0, "nothing was left out");
    let caught = caught.unwrap_or_else(|| panic!("{lie:?} was left out unnoticed: {done:?}"));
    println!("{lie:?}: {caught}");
}

#[test]
fn the_power_cut_test_catches_a_missing_log_sync() {
    catches(Lie::Log);
}

#[test]
fn the_power_cut_test_catches_a_missing_shadow_sync() {
    catches(Lie::Shadow);
}

#[test]
fn the_power_cut_test_catches_a_missing_directory_sync() {
    catches(Lie::Dir);
}
