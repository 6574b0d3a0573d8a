//! Starting on a tier: what survived is sorted from what did not, and what a crash left half done
//! is settled.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::{Duration, Instant};

use forebay_backing::wrap::Wrapped;
use forebay_backing::{BackingStore, Error, Kind, Result};
use forebay_base::glob::Pattern;
use serde::Serialize;

use crate::attach::Attached;
use crate::config::{Config, Tunables};
use crate::copy::ERRANDS_PER_COPY;
use crate::engine::{Counters, Engine, Space, now_ms};
use crate::evict::{Evictor, Grain, Uses};
use crate::file::{DirtyQueue, File};
use crate::health::Health;
use crate::index::{Index, Loaded};
use crate::log::FileId;
use crate::media::{Media, Open};
use crate::order::Hold;
use crate::pool::Pool;
use crate::reaper::Reaper;
use crate::shadows::{self, Found};
use crate::state::{Boot, Record, Survived, Verdict};
use crate::table::Table;
use crate::tier::{self, SHADOW_DIRS, Tier};
use crate::witness::{Since, Witness};

mod names;

/// What was found in the tier at start, and what was done about it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RecoveryReport {
    /// The machine has not been restarted since the tier was last used.
    pub same_boot: bool,
    /// It has not, but the tier's file system was unmounted in between.
    pub remounted: bool,
    pub clean_shutdown: bool,
    pub files: u64,
    pub dirty_files: u64,
    pub dirty_bytes: u64,
    /// Files of which never-synced bytes were lost with the power or the tier's file system.
    pub dropped_files: u64,
    pub dropped_bytes: u64,
    /// Files of which dirty bytes that have to be in the tier are not, and how many.
    pub lost_files: u64,
    pub lost_bytes: u64,
    /// Damage, in words.
    pub problems: Vec<String>,
}

impl RecoveryReport {
    /// How what was dropped went, in words.
    pub fn why_dropped(&self) -> &'static str {
        match self.remounted {
            true => why_dropped(Since::Remounted),
            false => why_dropped(Since::Rebooted),
        }
    }
}

pub(crate) fn why_dropped(since: Since) -> &'static str {
    match since {
        Since::Remounted => "the tier's file system was unmounted after the daemon had died",
        Since::Unused | Since::Kept | Since::Rebooted => "power was lost",
    }
}

/// How long a file without a name waits for who looked it up before.
const GRACE: Duration = Duration::from_secs(1);

/// What the name of a file begins with that recovery makes anew, until it gets its own.
const ANEW: &str = ".forebay-anew-";

fn is_none(error: &Error) -> bool {
    error.is(libc::ENOENT) || error.is(libc::ENOTDIR)
}

impl Engine {
    /// Opens an engine on a tier: recovers what is in it and starts the background work.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or a rename that was under way when we last died cannot be
    /// settled because the backing store does not answer. Nothing dirty is dropped then.
    pub fn start(
        tier: Tier,
        backing: Arc<dyn BackingStore>,
        config: Config,
        tunables: Tunables,
    ) -> Result<Arc<Engine>> {
        let (engine, _) = Engine::start_holding(tier, backing, config, tunables, &[])?;
        Ok(engine)
    }

    /// The same, with holds of orders that did not end the last time, in force before the drain
    /// looks for the first time.
    pub fn start_holding(
        mut tier: Tier,
        backing: Arc<dyn BackingStore>,
        config: Config,
        tunables: Tunables,
        held: &[(Vec<PathBuf>, Pattern)],
    ) -> Result<(Arc<Engine>, Vec<Hold>)> {
        tunables.validate().map_err(|why| Error::new(Kind::Usage, why))?;
        let witness = Witness::here(&*tier.media);
        let (index, mut loaded) = Index::open(tier.media.clone(), &witness).map_err(|e| {
            Error::new(
                Kind::WrongTier,
                "the tier's index is damaged, and nothing was changed: 'forebay check' says more; save what it holds with 'forebay recover TIER --to DIR', then move the tier away to start with a new one",
            )
            .with_source(e)
        })?;
        let health = Arc::new(Health::default());
        let reaper = Arc::new(Reaper::new(health.clone()));
        let backing: Arc<dyn BackingStore> = Wrapped::new(backing, reaper.clone());
        tier.take_over(loaded.old_names(&witness))?;
        let recovered = Recovery::run(&*tier.media, &*backing, &index, &mut loaded, &witness)?;
        let states = &loaded.files;
        index
            .begin(&witness, loaded.next_id, &recovered.changed, &|id| states.get(&id).cloned())
            .map_err(|e| Error::io(e, "writing the tier's index"))?;
        let (fill_depth, flush_depth) = (tunables.fill_depth, tunables.flush_depth);
        let mut evictor = Evictor::default();
        evictor.set_policy(tunables.eviction);
        let total = tier.media.space().map_err(|e| Error::io(e, "measuring the tier"))?.total;
        let tier_bytes = tunables.tier_size.unwrap_or(total).min(total);
        let engine = Arc::new(Engine {
            tier,
            index,
            backing,
            reaper,
            health,
            attached: Attached::new(config.attachment),
            config,
            tunables: RwLock::new(tunables),
            table: RwLock::new(Table::default()),
            next_id: AtomicU64::new(loaded.next_id),
            space: Space::default(),
            dirty: Mutex::new(DirtyQueue::default()),
            evictor: Mutex::new(evictor),
            grain: Grain::of_tier(tier_bytes),
            uses: Uses::of_tier(tier_bytes),
            around: Default::default(),
            rules: Default::default(),
            fills: Pool::new("fb-fill", fill_depth as usize),
            flushes: Pool::new("fb-flush", flush_depth as usize),
            errands: Pool::new("fb-errand", flush_depth as usize * ERRANDS_PER_COPY),
            drain: Default::default(),
            counters: Counters::default(),
            recovery: recovered.report,
            privileged: rustix::process::geteuid().is_root(),
            witness,
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            wake: (Mutex::new(0), Condvar::new()),
            orphans: Mutex::default(),
            syncing_names: AtomicBool::new(false),
            trash: Mutex::new(recovered.nameless),
            blanks: Mutex::default(),
            graveyard: Mutex::default(),
            threads: Mutex::new(Vec::new()),
        });
        engine.populate(std::mem::take(&mut loaded.files));
        recovered.orphans.iter().try_for_each(|id| engine.adopt_orphan(*id))?;
        engine.measure();
        drop(loaded);
        // SAFETY: gives what the loading has freed back to the system; no memory in use moves.
        unsafe { libc::malloc_trim(0) };
        let holds = held.iter().map(|(scope, last)| engine.hold(scope, last)).collect();
        engine.clone().start_threads()?;
        Ok((engine, holds))
    }

    fn populate(&self, files: BTreeMap<FileId, Record>) {
        {
            let mut table = self.table.write().expect("no panic inside");
            table.reserve(files.len());
        }
        for (id, record) in files {
            let file = File::new(id, record, true);
            {
                let mut table = self.table.write().expect("no panic inside");
                table.insert(file.clone());
            }
            let mut inner = file.lock();
            // One that holds nothing any more is to be forgotten.
            let none = inner.state.ranges.count() == 0;
            let present = inner.state.ranges.iter().map(|run| (run.start, run.end));
            self.admit(&file, present.chain(none.then_some((0, 0))));
            self.account(&file, &mut inner);
        }
    }

    /// Counts a program that still writes to a shadow file as a writer of its own: descriptors
    /// that were passed through outlive the mount they came from, and what they write is
    /// acknowledged (S2).
    fn adopt_orphan(&self, id: FileId) -> Result<()> {
        let Some(file) = self.by_id(id) else { return Ok(()) };
        let mut inner = file.lock();
        self.shadow(&file, &mut inner)?;
        inner.live().writers += 1;
        inner.live().mappable = true;
        self.space.writers.fetch_add(1, Relaxed);
        self.account(&file, &mut inner);
        let path = inner.state.display_path();
        tracing::warn!(path = %path.display(), "a program has kept this file open for writing since an earlier daemon died; it counts as dirty until it is closed");
        drop(inner);
        self.space.unseen.lock().expect("no panic inside").insert(id, file.clone());
        self.orphans.lock().expect("no panic inside").push(file);
        Ok(())
    }

    /// Ends the writers that nobody tells us of: those of an earlier daemon, and mappings of closed
    /// files.
    pub(crate) fn check_orphans(&self) {
        let orphans = self.orphans.lock().expect("no panic inside").clone();
        for file in orphans {
            let shadow = file.lock().live().shadow.clone();
            if shadow.is_none_or(|shadow| shadow.is_ours_alone().unwrap_or(false)) {
                let ended = {
                    let mut orphans = self.orphans.lock().expect("no panic inside");
                    let at = orphans.iter().position(|orphan| orphan.id == file.id);
                    at.map(|at| orphans.swap_remove(at))
                };
                if ended.is_none() {
                    continue; // Another thread was faster.
                }
                if let Err(e) = self.end_unseen(&file) {
                    tracing::error!(error = %e, "taking over a file from an earlier daemon");
                }
                let inner = file.lock();
                self.retire(&file, inner);
            }
        }
    }

    fn start_threads(self: Arc<Self>) -> Result<()> {
        self.govern();
        let (drain, keep, govern) = (self.clone(), self.clone(), self.clone());
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(work)
                .map_err(|e| Error::io(e, "starting a thread"))
        };
        let mut threads = self.threads.lock().expect("no panic inside");
        threads.push(spawn("fb-drain", Box::new(move || drain.drain_loop()))?);
        threads.push(spawn("fb-governor", Box::new(move || govern.govern_loop()))?);
        threads.push(spawn("fb-keep", Box::new(move || keep.keep_house()))?);
        Ok(())
    }

    /// The thread for everything that has to be looked at from time to time.
    fn keep_house(self: Arc<Self>) {
        let probing = Arc::new(AtomicBool::new(false));
        let mut last_fold = Instant::now();
        let mut last_measure = Instant::now();
        while !self.stopping.load(Relaxed) {
            self.measure_unseen();
            if last_measure.elapsed() >= Duration::from_secs(1) {
                last_measure = Instant::now();
                self.measure();
                self.keep_rules();
                self.keep_empty();
            }
            self.evict_to_mark();
            self.sweep_graveyard(GRACE);
            self.check_orphans();
            self.empty_trash();
            self.reaper.tend();
            self.health.check_stalls(self.tune(|t| t.backing_timeout));
            if !self.health.is_available() && !probing.swap(true, Relaxed) {
                self.clone().probe(probing.clone());
            }
            if self.index.wants_fold() || last_fold.elapsed() >= Duration::from_secs(60) {
                last_fold = Instant::now();
                self.fold();
                self.sync_names_soon();
            } else if self.owes_names() {
                self.sync_names_soon();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Asks the backing store whether it is back, on a thread of its own: the question may hang.
    fn probe(self: Arc<Self>, probing: Arc<AtomicBool>) {
        let ask = move || {
            while !self.stopping.load(Relaxed) && !self.health.is_available() {
                std::thread::sleep(Duration::from_millis(500));
                let limit = self.tune(|t| t.backing_timeout);
                if self.health.probe(|| self.backing.stat(Path::new(""))).is_ok()
                    && !self.health.has_stalled_call(limit)
                {
                    self.health.came_back();
                    self.retry_now();
                }
            }
            probing.store(false, Relaxed);
        };
        let _ = std::thread::Builder::new().name("fb-probe".into()).spawn(ask);
    }

    /// Forgets the pauses after failed flushes.
    fn retry_now(&self) {
        let dirty = self.dirty.lock().expect("no panic inside").older(u64::MAX);
        for file in dirty {
            if let Some(dirt) = &mut file.lock().dirt
                && let Some(trouble) = &mut dirt.trouble
            {
                trouble.retry_at = Instant::now();
            }
        }
        self.nudge();
    }

    pub(crate) fn fold(&self) {
        let folded = self.index.fold(self.next_id.load(Relaxed), &|id| self.state_of(id));
        match folded {
            Ok(()) => crate::engine::add(&self.counters.folds, 1),
            Err(e) => {
                tracing::error!(error = %e, "the index could not be folded; it is tried again")
            }
        }
    }

    pub(crate) fn state_of(&self, id: FileId) -> Option<Record> {
        let file = self.by_id(id)?;
        let inner = file.lock();
        inner.recorded.then(|| Record { key: file.key, state: inner.state.clone() })
    }
}

/// One pass over what was found.
struct Recovery<'a> {
    media: &'a dyn Media,
    backing: &'a dyn BackingStore,
    index: &'a Index,
    boot: Boot,
    report: RecoveryReport,
    changed: Vec<FileId>,
    orphans: Vec<FileId>,
    /// Files that have lost their last name.
    nameless: Vec<FileId>,
}

/// What the pass hands on.
struct Recovered {
    report: RecoveryReport,
    changed: Vec<FileId>,
    /// Files that somebody still writes to past us.
    orphans: Vec<FileId>,
    /// Files whose shadows are to go.
    nameless: Vec<FileId>,
}

impl Recovery<'_> {
    fn run(
        media: &dyn Media,
        backing: &dyn BackingStore,
        index: &Index,
        loaded: &mut Loaded,
        witness: &Witness,
    ) -> Result<Recovered> {
        let since = loaded.since(witness);
        let boot = loaded.boot(witness);
        let report = RecoveryReport {
            same_boot: since != Since::Rebooted,
            remounted: since == Since::Remounted,
            clean_shutdown: loaded.clean_shutdown || since == Since::Unused,
            problems: std::mem::take(&mut loaded.problems),
            ..RecoveryReport::default()
        };
        let mut pass = Recovery {
            media,
            backing,
            index,
            boot,
            report,
            changed: Vec::new(),
            orphans: Vec::new(),
            nameless: Vec::new(),
        };
        if boot == Boot::Kept {
            let kept = loaded.files.iter_mut().filter(|(_, state)| state.keeps());
            pass.changed.extend(kept.map(|(id, state)| {
                state.let_go(0, u64::MAX);
                *id
            }));
        }
        let orphaned = loaded.files.values().any(|state| state.flags.opaque);
        if !pass.report.clean_shutdown || orphaned {
            pass.sort(loaded)?;
        } else {
            pass.prove_dirty(loaded)?;
        }
        match loaded.names.is_empty() {
            true => pass.note_ctimes(loaded, |_| false),
            false => pass.settle_names(loaded)?,
        }
        for state in loaded.files.values() {
            pass.report.files += 1;
            if state.is_dirty() {
                pass.report.dirty_files += 1;
                pass.report.dirty_bytes += state.dirty_bytes();
            }
        }
        pass.report.problems.iter().for_each(|p| tracing::warn!("recovery: {p}"));
        let Recovery { report, changed, orphans, nameless, .. } = pass;
        Ok(Recovered { report, changed, orphans, nameless })
    }

    /// Keeps, repairs or drops every file.
    fn sort(&mut self, loaded: &mut Loaded) -> Result<()> {
        let every_record_was_read = self.report.problems.is_empty();
        let mut shadows = self.shadows()?;
        let ids: Vec<FileId> = loaded.files.keys().copied().collect();
        for id in ids {
            let exists = shadows.remove(&id);
            if self.keep_or_drop(loaded, id, exists)? == Verdict::Drop && exists {
                shadows.insert(id);
            }
        }
        // What no record speaks of holds no byte that counts, if every record could be read.
        if every_record_was_read {
            for id in shadows {
                let _ = self.media.remove(&tier::shadow_name(id));
            }
        }
        Ok(())
    }

    /// After a clean shutdown only what is to be flushed is looked at; the rest when it is used.
    fn prove_dirty(&mut self, loaded: &mut Loaded) -> Result<()> {
        let dirty = loaded.files.iter().filter(|(_, state)| state.is_dirty());
        let ids: Vec<FileId> = dirty.map(|(id, _)| *id).collect();
        for id in ids {
            if !self.look(id, &loaded.files[&id])?.is_sound() {
                self.keep_or_drop(loaded, id, true)?;
            }
        }
        Ok(())
    }

    fn look(&self, id: FileId, state: &Record) -> Result<Found> {
        let name = || format!("looking at the shadow file {}", tier::shadow_name(id));
        shadows::look(self.media, id, state, self.boot).map_err(|e| Error::io(e, name()))
    }

    fn keep_or_drop(&mut self, loaded: &mut Loaded, id: FileId, exists: bool) -> Result<Verdict> {
        let state = loaded.files.get_mut(&id).expect("who calls lists them");
        let verdict = self.recover_file(id, state, exists)?;
        if verdict == Verdict::Drop {
            loaded.files.remove(&id);
            self.changed.push(id);
        }
        Ok(verdict)
    }

    fn shadows(&self) -> Result<HashSet<FileId>> {
        let mut found = HashSet::new();
        for dir in 0..SHADOW_DIRS {
            let names = self.media.list(&tier::shadow_dir(FileId(dir)));
            let names = names.map_err(|e| Error::io(e, "listing the shadow files"))?;
            found.extend(names.iter().filter_map(|n| u64::from_str_radix(n, 16).ok()).map(FileId));
        }
        Ok(found)
    }

    fn recover_file(&mut self, id: FileId, state: &mut Record, exists: bool) -> Result<Verdict> {
        // A clean file of the same boot needs no second look.
        if self.boot == Boot::Kept && !state.is_dirty() && (exists || state.ranges.count() == 0) {
            return Ok(Verdict::Keep);
        }
        if self.boot == Boot::Kept && state.flags.opaque && exists {
            let shadow = self.media.open(&tier::shadow_name(id), Open::Existing);
            let alone = shadow.and_then(|shadow| shadow.is_ours_alone());
            // A file system without leases cannot tell; then nobody is assumed to write.
            if !alone.unwrap_or(true) {
                self.orphans.push(id);
                return Ok(Verdict::Keep);
            }
        }
        let before = state.clone();
        let name = tier::shadow_name(id);
        let found = self.look(id, state)?;
        let survived = state.recover(self.boot, found.shadow(&before), now_ms());
        self.note(&found, id, &before, &survived);
        if let Found::Foreign(_) = found {
            shadows::set_aside(self.media, id)
                .map_err(|e| Error::io(e, format!("setting {name} aside")))?;
        }
        if survived.verdict == Verdict::Keep {
            // Programs that are passed through to it would read on, or not far enough.
            if let Found::Sound(stat) | Found::Short(stat) = found
                && stat.len != state.size
            {
                let file = self.media.open(&name, Open::Existing);
                file.and_then(|file| file.set_len(state.size))
                    .map_err(|e| Error::io(e, format!("repairing the shadow file {name}")))?;
            }
        }
        if *state != before {
            self.changed.push(id);
        }
        Ok(survived.verdict)
    }

    fn note(&mut self, found: &Found, id: FileId, before: &Record, survived: &Survived) {
        let Survived { dropped, lost, .. } = *survived;
        self.report.dropped_files += u64::from(dropped > 0);
        self.report.dropped_bytes += dropped;
        self.report.lost_files += u64::from(lost > 0);
        self.report.lost_bytes += lost;
        let problem = found.problem(id, lost);
        let path = before.display_path();
        let named = problem.map(|what| format!("{}: {what}", path.display()));
        self.report.problems.extend(named);
    }
}
