//! The engine: its parts, its table of files, and the life of a file in it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_backing::{Attr, BackingStore, Error, FileKey, Result, Timestamp};
use hashbrown::HashMap;

use crate::around::Around;
use crate::attach::Attached;
use crate::config::{Config, Tunables};
use crate::evict::{Evictor, Grain, Uses};
use crate::failpoint;
use crate::file::{DirtyQueue, File, Inner};
use crate::glance::Glance;
use crate::health::Health;
use crate::index::Index;
use crate::leaving::Graveyard;
use crate::log::{Entry, FileId, Mark};
use crate::media::{Media, MediaFile, Open};
use crate::pool::Pool;
use crate::ranges::Ranges;
use crate::reaper::Reaper;
use crate::recover::RecoveryReport;
use crate::state::{Conflict, FileState, Record};
use crate::table::Table;
use crate::tier::{self, Tier};
use crate::witness::Witness;

/// Everything between a front-end and the backing store, for one mount.
pub struct Engine {
    pub(crate) tier: Tier,
    pub(crate) index: Index,
    /// Its files are closed by a reaper, whoever drops them under whatever lock.
    pub(crate) backing: Arc<dyn BackingStore>,
    pub(crate) reaper: Arc<Reaper>,
    pub health: Arc<Health>,
    pub(crate) config: Config,
    pub(crate) tunables: RwLock<Tunables>,
    pub(crate) table: RwLock<Table>,
    pub(crate) next_id: AtomicU64,
    pub(crate) space: Space,
    pub(crate) dirty: Mutex<DirtyQueue>,
    pub(crate) evictor: Mutex<Evictor>,
    pub(crate) grain: Grain,
    pub(crate) uses: Uses,
    pub(crate) around: Around,
    pub(crate) attached: Attached,
    pub(crate) rules: crate::admit::Rules,
    pub(crate) fills: Pool,
    pub(crate) flushes: Pool,
    /// What a flush asks of the backing store beside its copies.
    pub(crate) errands: Pool,
    pub(crate) drain: crate::flush::DrainState,
    pub(crate) counters: Counters,
    pub(crate) recovery: RecoveryReport,
    /// Modes do not bind the daemon.
    pub(crate) privileged: bool,
    pub(crate) witness: Witness,
    pub(crate) started: Instant,
    pub(crate) stopping: AtomicBool,
    pub(crate) wake: (Mutex<u64>, Condvar),
    /// Shadow files to be removed: not by who waits for an answer.
    pub(crate) trash: Mutex<Vec<FileId>>,
    /// Shadow files that were never written to, of files that are gone: the next ones made take
    /// their place.
    pub(crate) blanks: Mutex<Vec<(FileId, Arc<dyn MediaFile>)>>,
    /// Files that a program went on writing past us when an earlier daemon died.
    pub(crate) orphans: Mutex<Vec<Arc<File>>>,
    /// Somebody syncs the names on the store.
    pub(crate) syncing_names: AtomicBool,
    /// Files that lost their last name a moment ago.
    pub(crate) graveyard: Mutex<Graveyard>,
    pub(crate) threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

/// Sums over all files, in bytes.
#[derive(Default)]
pub(crate) struct Space {
    pub used: AtomicU64,
    pub dirty: AtomicU64,
    /// What dirty files will take of the backing store's room.
    pub growth: AtomicU64,
    pub writers: AtomicU64,
    /// Files that grow unseen, to be measured from time to time.
    pub unseen: Mutex<HashMap<FileId, Arc<File>>>,
    pub pace: crate::unseen::Pace,
    /// What the tier may hold; measured again from time to time.
    pub limit: AtomicU64,
    pub in_vain: Mutex<Option<crate::space::InVain>>,
}

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// Events since start.
        #[derive(Default)]
        pub(crate) struct Counters { $(pub $name: AtomicU64),* }

        impl Counters {
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Relaxed))),*]
            }
        }
    };
}

counters!(
    read_requests,
    read_hits,
    read_partial_hits,
    read_misses,
    write_requests,
    write_hits,
    write_partial_hits,
    write_misses,
    write_new,
    absorbed_writes,
    absorbed_bytes,
    read_bytes,
    read_uncached_bytes,
    write_bytes,
    write_around_bytes,
    fill_bytes,
    fills,
    readahead_fills,
    flushed_files,
    flushed_bytes,
    flush_failures,
    conflicts,
    invalidations,
    evicted_bytes,
    evicted_units,
    syncs,
    folds,
    writers_slowed,
    writers_slowed_us,
    tier_errors,
    passthrough_reads,
    passthrough_writes,
    passthrough_new_bytes,
    read_bypass_full,
    read_bypass_sequential,
    read_bypass_rule,
    read_bypass_detached,
    write_bypass_policy,
    write_bypass_sequential,
    write_bypass_rule,
    write_bypass_detached,
);

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

/// Wall-clock milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_millis() as u64)
}

pub(crate) fn now() -> Timestamp {
    let d = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: d.as_secs() as i64, nsec: d.subsec_nanos() }
}

/// Holes in a file are worth a look when it may take so many bytes less than it has.
pub(crate) const HOLES_MIN: u64 = 1 << 20;

impl Engine {
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    pub(crate) fn media(&self) -> &Arc<dyn Media> {
        &self.tier.media
    }

    pub(crate) fn tune<T>(&self, get: impl FnOnce(&Tunables) -> T) -> T {
        get(&self.tunables.read().expect("no panic inside"))
    }

    /// The file with this key, if anything is known of it.
    pub fn find(&self, key: FileKey) -> Option<Arc<File>> {
        self.table.read().expect("no panic inside").with_key(key).cloned()
    }

    pub(crate) fn by_id(&self, id: FileId) -> Option<Arc<File>> {
        self.table.read().expect("no panic inside").with_id(id).cloned()
    }

    pub(crate) fn all_files(&self) -> Vec<Arc<File>> {
        self.table.read().expect("no panic inside").all().cloned().collect()
    }

    /// Finds the file or begins to know it; takes a handle on it.
    fn enter(&self, path: &Path, attr: &Attr) -> Arc<File> {
        loop {
            let file = self.find(attr.key).unwrap_or_else(|| self.insert(path, attr));
            let mut inner = file.lock();
            let is_known = || self.find(attr.key).is_some_and(|known| Arc::ptr_eq(&known, &file));
            if !inner.gone && is_known() {
                inner.live().opens += 1;
                drop(inner);
                return file;
            }
            drop(inner);
            // It was forgotten between the two looks, or is just being so; begin again.
            std::thread::yield_now();
        }
    }

    fn insert(&self, path: &Path, attr: &Attr) -> Arc<File> {
        let mut table = self.table.write().expect("no panic inside");
        if let Some(file) = table.with_key(attr.key) {
            return file.clone();
        }
        let id = FileId(self.next_id.fetch_add(1, Relaxed));
        let record = Record { key: attr.key, state: FileState::absent(path, attr) };
        let file = File::new(id, record, false);
        table.insert(file.clone());
        file
    }

    /// Takes its key from a file that is gone: somebody else has removed it, and the store has given
    /// its number, which tells no generations, to the file with `attr` that was just created. What
    /// is dirty of the old one is still found by its id.
    fn supersede(&self, attr: &Attr) {
        self.give_up_buried(attr);
        let is_older = |file: &Arc<File>| file.lock().state.base.ctime < attr.ctime;
        let Some(old) = self.find(attr.key).filter(is_older) else { return };
        let mut table = self.table.write().expect("no panic inside");
        if table.with_key(attr.key).is_some_and(|known| Arc::ptr_eq(known, &old)) {
            table.forget_key(&old);
        }
    }

    pub(crate) fn forget(&self, file: &File) {
        self.table.write().expect("no panic inside").remove(file);
    }

    /// Opens the file at `path`: compares what is cached with the backing store (S1) and takes a
    /// handle, to be given back with [`Engine::close`]. `known` is the key the caller last saw at
    /// `path`: what is in the tier under it goes on working while the store is away (S10).
    pub fn open(&self, path: &Path, known: Option<FileKey>) -> Result<Arc<File>> {
        if let Some(file) = known.and_then(|key| self.find(key))
            && self.prove_shadow(&file).is_ok()
            && self.is_fresh(&file)
        {
            let mut inner = file.lock();
            if !inner.gone && !inner.live().unlinked {
                inner.live().opens += 1;
                drop(inner);
                return self.hold_if_leaving(file, None);
            }
        }
        let seen = known.and_then(|key| self.find(key)).map(|file| (file.id, file.lock().base_seq));
        let first_new = self.next_id.load(Relaxed);
        let (forgotten, departed) = {
            let table = self.table.read().expect("no panic inside");
            (table.forgotten.mark(), table.departed.mark())
        };
        match self.health.call(|| self.backing.stat(path)) {
            Ok(mut attr) => {
                let file = self.enter(path, &attr);
                let _ = self.prove_shadow(&file);
                let mut seen = seen.filter(|(id, _)| *id == file.id).map(|(_, seq)| seq);
                let outrun = match file.id.0 >= first_new {
                    // It may have been known, flushed and forgotten since we looked.
                    true => {
                        self.table.read().expect("no panic inside").forgotten.mark() != forgotten
                    }
                    false => seen.is_none() && file.lock().state.base != attr.version(),
                };
                if outrun {
                    seen = Some(file.lock().base_seq);
                    match self.health.call(|| self.backing.stat(path)) {
                        Ok(again) if again.key == file.key => attr = again,
                        _ => {
                            self.close(&file);
                            return self.open(path, None);
                        }
                    }
                }
                self.learn_name(&file, path, departed);
                self.revalidate(&file, &attr, seen);
                self.hold_if_leaving(file, Some(departed))
            }
            Err(error) => self.open_away(known, error),
        }
    }

    fn open_away(&self, known: Option<FileKey>, error: Error) -> Result<Arc<File>> {
        if self.health.is_available() {
            return Err(error);
        }
        known.and_then(|key| self.open_cached(key)).ok_or(error)
    }

    /// Takes a handle on a file of which something is cached, without asking the backing store.
    pub fn open_cached(&self, key: FileKey) -> Option<Arc<File>> {
        let file = self.find(key)?;
        let mut inner = Glance::new().at(&file)?;
        let _ = self.prove_locked(&file, &mut inner);
        if inner.gone {
            return None; // Nothing of it is cached.
        }
        inner.live().opens += 1;
        drop(inner);
        Some(file)
    }

    /// Whether the file may be believed without asking: nobody else can have a newer byte than a
    /// wholly dirty file has, and a recent look may be good enough.
    fn is_fresh(&self, file: &File) -> bool {
        let ttl = self.tune(|t| t.revalidate);
        let inner = file.lock();
        inner.state.is_wholly_dirty()
            || (inner.state.ranges.count() > 0
                && inner
                    .live
                    .as_ref()
                    .and_then(|live| live.checked)
                    .is_some_and(|at| at.elapsed() < ttl))
    }

    /// Takes a file that the caller has just created through [`Engine::backing`].
    pub(crate) fn created(&self, path: &Path, attr: &Attr) -> Arc<File> {
        self.supersede(attr);
        self.note_made(path, attr);
        let file = self.enter(path, attr);
        let mut inner = file.lock();
        inner.live().checked = Some(Instant::now());
        drop(inner);
        file
    }

    /// Compares what is cached with what the backing store says now. Clean bytes of another
    /// version are thrown away; for dirty ones it is a conflict (S8). `seen` is the file's
    /// `base_seq` from before the question, if it was known then.
    pub(crate) fn revalidate(&self, file: &Arc<File>, attr: &Attr, seen: Option<u32>) {
        let mut inner = file.lock();
        let outdated = seen.is_some_and(|seen| seen != inner.base_seq);
        let busy = inner.live().flight.is_some()
            || inner.live().arounds > 0
            || inner.state.flags.flush_open
            || inner.changing > 0;
        inner.live().checked = Some(Instant::now());
        if busy || outdated {
            return;
        }
        if inner.state.base == attr.version() {
            inner.live().moved = false;
            return;
        }
        if inner.state.is_dirty() {
            self.declare_conflict(file, &mut inner, "the backing file has changed");
            return;
        }
        add(&self.counters.invalidations, 1);
        self.drop_stale(file, &mut inner, attr);
    }

    /// Throws away clean bytes of an old version, or remembers to when nobody reads them past us.
    fn drop_stale(&self, file: &Arc<File>, inner: &mut Inner, attr: &Attr) {
        // Else a loss of power would bring back the flush that these bytes came from, to be done
        // again with the holes made below.
        if self.let_go(file, inner).is_err() || !inner.may_punch() {
            inner.live().stale = true;
            return;
        }
        let had = inner.state.ranges.count() > 0
            || inner.live.as_ref().is_some_and(|live| live.shadow.is_some());
        let before = inner.state.clone();
        inner.base_seq += 1;
        inner.state.ranges = Ranges::None;
        inner.state.size = attr.size;
        inner.state.mtime = attr.mtime;
        inner.state.base = attr.version();
        inner.state.owner = crate::state::Owner::of(attr);
        inner.live().thrown.note(0, u64::MAX);
        inner.live().stale = false;
        inner.live().moved = false;
        inner.live().stream = crate::file::Stream::default();
        // Recorded before the shadow is emptied: a crash must not leave holes that count as data.
        if inner.recorded && self.put(file, inner).is_err() {
            inner.state = before;
            inner.live().stale = true;
            return;
        }
        if had && let Ok(shadow) = self.shadow(file, inner) {
            self.note_tier(self.empty(file, inner, &*shadow, attr.size)).ok();
        }
        self.account(file, inner);
    }

    pub(crate) fn declare_conflict(&self, file: &Arc<File>, inner: &mut Inner, why: &str) {
        if inner.state.flags.conflict.stands() {
            return;
        }
        inner.state.flags.conflict = Conflict::Changed;
        add(&self.counters.conflicts, 1);
        tracing::warn!(path = %inner.state.display_path().display(), why, "conflict: flushing of this file stops until it is resolved");
        // Of a file that is in conflict only what was written here may go over theirs.
        let recorded = match inner.state.keeps() {
            true => self.let_go_of(file, inner, 0, u64::MAX),
            false => self.put(file, inner),
        };
        // At once: else, after a loss of power, a record "flush begun" would say that the change was
        // ours.
        let _ = recorded.and_then(|()| self.note_tier(self.index.sync()));
    }

    /// Gives back a handle from [`Engine::open`] or [`Engine::create`].
    pub fn close(&self, file: &Arc<File>) {
        let mut inner = file.lock();
        let live = inner.live();
        assert!(live.opens > 0, "a handle is closed once");
        live.opens -= 1;
        if live.opens == 0 {
            live.backing = None;
            if !inner.only_descriptor() {
                inner.live().target = None;
            }
            self.give_back(&mut inner);
            // Nobody syncs it any more. Lost with the power, the record is made anew.
            let _ = self.let_go_of(file, &mut inner, 0, u64::MAX);
        }
        self.retire(file, inner);
    }

    /// Lets go of what nothing needs any more: descriptors, the shadow of an unlinked file, the
    /// knowledge of a file of which nothing is cached. Ends the caller's lock.
    pub(crate) fn retire(&self, file: &Arc<File>, mut inner: std::sync::MutexGuard<'_, Inner>) {
        if !inner.is_idle() || inner.only_descriptor() {
            return;
        }
        let (unlinked, stale) =
            inner.live.as_ref().map_or((false, false), |l| (l.unlinked, l.stale));
        let nothing = !inner.state.is_dirty()
            && !inner.state.flags.pinned
            && (inner.state.ranges.count() == 0 || stale);
        // At the end nobody sweeps any more.
        let waits = || self.graveyard.lock().expect("no panic inside").holds(file);
        if unlinked && !self.stopping.load(Relaxed) && waits() {
            let live = inner.live();
            (live.shadow, live.backing, live.target) = (None, live.backing.take(), None);
            return;
        }
        if unlinked || nothing {
            self.discard(file, &mut inner);
            drop(inner);
            self.forget(file);
            return;
        }
        let trusted = self.tune(|t| t.revalidate) > Duration::ZERO;
        inner.live =
            inner.live.take().filter(|live| live.moved || (trusted && live.checked.is_some())).map(
                |live| {
                    let crate::file::Live { checked, named, moved, .. } = *live;
                    Box::new(crate::file::Live { checked, named, moved, ..Default::default() })
                },
            );
    }

    /// Takes all bytes out of a shadow. Programs that have mapped it keep them: the file gets
    /// another shadow, when it needs one.
    pub(crate) fn empty(
        &self,
        file: &File,
        inner: &mut Inner,
        shadow: &dyn MediaFile,
        size: u64,
    ) -> std::io::Result<()> {
        if is_alone(shadow) {
            return shadow.set_len(0).and_then(|()| shadow.set_len(size));
        }
        self.media().remove(&tier::shadow_name(file.id))?;
        inner.live().shadow = None;
        Ok(())
    }

    /// Removes every trace of a file from the tier: record first, shadow after. The caller lets it
    /// be forgotten next, without its lock; who would open it in between finds it gone.
    pub(crate) fn discard(&self, file: &File, inner: &mut Inner) {
        inner.gone = true;
        let had_record = inner.recorded;
        if inner.recorded {
            if self.append(inner, &Entry::Drop(file.id)).is_err() {
                return; // The record still stands, so the shadow must too.
            }
            inner.recorded = false;
        }
        failpoint::pass("discard.logged");
        // There may be none: of a file that was only looked at nothing was ever made.
        if had_record
            || inner.live.as_ref().is_some_and(|live| live.shadow.is_some() || live.unlinked)
        {
            match inner.live.take().filter(|live| live.blank).and_then(|live| live.shadow) {
                Some(blank) if is_blank(&*blank) => self.keep_blank(file.id, blank),
                _ => self.trash.lock().expect("no panic inside").push(file.id),
            }
        }
        inner.live = None;
        inner.state.ranges = Ranges::None;
        inner.state.flags = crate::state::Flags::default();
        self.settle_sums(inner, 0, 0);
    }

    fn keep_blank(&self, id: FileId, shadow: Arc<dyn MediaFile>) {
        self.blanks.lock().expect("no panic inside").push((id, shadow));
    }

    /// A file that is created, closed and not written leaves a shadow for the next one: on ext4 each
    /// one that is removed makes those made in the next minutes slower.
    fn fresh_shadow(&self, name: &str) -> std::io::Result<Arc<dyn MediaFile>> {
        let blank = self.blanks.lock().expect("no panic inside").pop();
        if let Some((id, shadow)) = blank {
            match self.media().rename(&tier::shadow_name(id), name) {
                // As old as one that is made now.
                Ok(()) => return shadow.set_mtime(now()).map(|()| shadow),
                Err(_) => self.trash.lock().expect("no panic inside").push(id),
            }
        }
        self.media().open(name, Open::Fresh)
    }

    pub(crate) fn empty_trash(&self) {
        let mut trash = std::mem::take(&mut *self.trash.lock().expect("no panic inside"));
        let blanks = std::mem::take(&mut *self.blanks.lock().expect("no panic inside"));
        trash.extend(blanks.into_iter().map(|(id, _)| id));
        for id in trash {
            let _ = self.media().remove(&tier::shadow_name(id));
        }
    }

    /// The open shadow file, made if it does not exist.
    pub(crate) fn shadow(&self, file: &File, inner: &mut Inner) -> Result<Arc<dyn MediaFile>> {
        let shadow = self.shadow_unwritten(file, inner)?;
        inner.live().blank = false;
        Ok(shadow)
    }

    /// The same for a caller who writes nothing to it.
    pub(crate) fn shadow_unwritten(
        &self,
        file: &File,
        inner: &mut Inner,
    ) -> Result<Arc<dyn MediaFile>> {
        if let Some(shadow) = inner.live.as_ref().and_then(|live| live.shadow.clone()) {
            return Ok(shadow);
        }
        let name = tier::shadow_name(file.id);
        // Bytes that count must be there: an empty file in their place would read as zeros.
        // Without any, what lies there is from before a crash.
        let holds = inner.state.ranges.count() > 0 || inner.state.flags.opaque;
        let opened = match holds {
            true => self.media().open(&name, Open::Existing),
            // A file that is gone may have given its own away.
            false if inner.gone => self.media().open(&name, Open::Fresh),
            false => self.fresh_shadow(&name),
        };
        let shadow = self.note_tier(opened)?;
        // Longer than the file is one whose last append died before it was recorded: programs that
        // are passed through to the shadow would read on.
        let size = inner.state.size;
        let fits = match holds {
            true => inner.state.flags.opaque || self.note_tier(shadow.stat())?.len <= size,
            false => size == 0,
        };
        if !fits && let Err(error) = self.note_tier(shadow.set_len(size)) {
            if !holds {
                let _ = self.media().remove(&name); // Nothing would speak of it.
            }
            return Err(error);
        }
        let live = inner.live();
        live.shadow = Some(shadow.clone());
        live.named &= holds; // It may have taken another's place.
        live.blank = !holds && size == 0;
        Ok(shadow)
    }

    /// Turns an error of the tier into one of ours, and counts it.
    pub(crate) fn note_tier<T>(&self, result: std::io::Result<T>) -> Result<T> {
        result.map_err(|e| {
            // Not its fault: it is full or takes no file so large, or programs have all the files
            // open that we can.
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            if ![libc::ENOSPC, libc::EFBIG, libc::EMFILE, libc::ENFILE].contains(&errno) {
                add(&self.counters.tier_errors, 1);
                tracing::error!(error = %e, "the fast tier failed");
            }
            Error::io(e, "the fast tier")
        })
    }

    pub(crate) fn append(&self, inner: &mut Inner, entry: &Entry) -> Result<()> {
        let seq = self.note_tier(self.index.append(entry))?;
        if let Some(live) = &mut inner.live {
            live.logged_seq = Some(seq);
        }
        Ok(())
    }

    /// Records the whole state of a file. One without a name has no record: it ends with us.
    pub(crate) fn put(&self, file: &File, inner: &mut Inner) -> Result<()> {
        if inner.live.as_ref().is_some_and(|live| live.unlinked) {
            return Ok(());
        }
        let record = Record { key: file.key, state: inner.state.clone() };
        let entry = Entry::Put(file.id, Box::new(record));
        self.append(inner, &entry)?;
        inner.recorded = true;
        Ok(())
    }

    /// Records that ranges changed their state, in whatever way is shortest. `inner.state` is
    /// already as it will be.
    pub(crate) fn record(&self, file: &File, inner: &mut Inner, marks: &[Mark]) -> Result<()> {
        // Of a file of thousands of runs the whole state costs milliseconds.
        if !inner.recorded || marks.len() > 8.max(inner.state.ranges.count() / 8) {
            return self.put(file, inner);
        }
        let since = inner.state.dirty_since;
        for run in marks {
            self.append(inner, &Entry::Mark { id: file.id, run: *run, since })?;
        }
        Ok(())
    }

    /// Brings the sums up to date after a change of `inner`, from its ranges.
    pub(crate) fn account(&self, file: &Arc<File>, inner: &mut Inner) {
        let (used, dirty) = if inner.state.flags.opaque {
            let allocated = inner.shadow_stat().map_or(inner.charged, |stat| stat.allocated);
            (allocated, allocated)
        } else {
            let present = round_up(inner.state.ranges.bytes(|_| true));
            let used = present.min(self.allocated_if_large(file, inner, present));
            (used, inner.state.dirty_bytes().min(used))
        };
        self.settle_sums(inner, used, dirty);
        self.queue_if_dirty(file, inner);
    }

    /// Large files may be mostly holes, which are present and take no space; small ones are not
    /// worth the look.
    fn allocated_if_large(&self, file: &File, inner: &Inner, present: u64) -> u64 {
        if present < 16 << 20 || present.abs_diff(inner.charged) < HOLES_MIN {
            return present;
        }
        // Mostly it is closed: at start, and when it is evicted from.
        let by_name = || self.media().stat(&tier::shadow_name(file.id)).ok();
        inner.shadow_stat().or_else(by_name).map_or(present, |stat| stat.allocated)
    }

    /// Makes the units of stretches of a file known to the evictor.
    pub(crate) fn admit(&self, file: &File, stretches: impl IntoIterator<Item = (u64, u64)>) {
        let mut evictor = self.evictor.lock().expect("no panic inside");
        let mut last = None;
        for (start, end) in stretches {
            for unit in self.grain.units(file.id, start, end) {
                if last.replace(unit) != Some(unit) {
                    evictor.admit(unit);
                }
            }
        }
    }

    fn settle_sums(&self, inner: &mut Inner, used: u64, dirty: u64) {
        shift(&self.space.used, inner.charged, used);
        if let Some(rule) = &inner.rule {
            shift(&rule.used, inner.charged, used);
            shift(&rule.dirty, inner.dirty_charged(), dirty);
        }
        shift(&self.space.dirty, inner.dirty_charged(), dirty);
        let growth = dirty.min(inner.size().saturating_sub(inner.state.base.size));
        let growth = if inner.state.is_dirty() { growth } else { 0 };
        shift(&self.space.growth, inner.growth(), growth);
        inner.charged = used;
        if inner.state.is_dirty() {
            inner.dirt().charged = dirty;
            inner.dirt().growth = growth;
        } else {
            self.unqueue(inner);
            inner.dirt = None;
        }
    }

    /// Takes a file out of the queue of dirty ones.
    pub(crate) fn unqueue(&self, inner: &mut Inner) {
        if let Some(place) = inner.dirt.as_mut().and_then(|dirt| dirt.queued.take()) {
            self.dirty.lock().expect("no panic inside").remove(place);
        }
    }

    fn queue_if_dirty(&self, file: &Arc<File>, inner: &mut Inner) {
        let unlinked = inner.live.as_ref().is_some_and(|live| live.unlinked);
        if inner.state.is_dirty() && inner.dirt().queued.is_none() && !unlinked {
            let since = inner.state.dirty_since.max(1);
            let mut queue = self.dirty.lock().expect("no panic inside");
            inner.dirt().queued = Some(queue.push(since, file.clone()));
        }
    }

    /// Wakes the drain to look at the level again.
    pub(crate) fn nudge(&self) {
        *self.wake.0.lock().expect("no panic inside") += 1;
        self.wake.1.notify_all();
    }
}

/// Whether a shadow that nothing was written to through us is empty in every respect, and ours.
fn is_blank(shadow: &dyn MediaFile) -> bool {
    let empty = shadow.stat().is_ok_and(|stat| stat.len == 0 && stat.allocated == 0);
    // Where it cannot be told, a mapping that somebody kept would show him the next file.
    empty && shadow.is_ours_alone().unwrap_or(false)
}

/// Whether no program has the shadow open or mapped past us. One that was passed through to it may
/// close it and keep its mapping, of which the kernel tells us nothing: the mapping holds the shadow
/// and not our file. What is taken out of a shadow would be zeros to it, and what it stores there
/// would be seen by nobody. (`backing_file_mmap` in Linux, fs/backing-file.c.)
pub(crate) fn is_alone(shadow: &dyn MediaFile) -> bool {
    // A file system without leases cannot tell; then there is none.
    shadow.is_ours_alone().unwrap_or(true)
}

fn shift(sum: &AtomicU64, from: u64, to: u64) {
    if to >= from {
        sum.fetch_add(to - from, Relaxed);
    } else {
        sum.fetch_sub(from - to, Relaxed);
    }
}

/// Space is taken in blocks.
fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(4096) * 4096
}
