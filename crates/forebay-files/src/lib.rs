//! The knowledge of files: the table of them, their sums, and the effect of each change of a file
//! on the sums, the queues and the log.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_backing::{Attr, Error, FileKey, Result};

use crate::attached::Attached;
use crate::blanks::Blanks;
use crate::core::clock::Look;
use crate::core::config::{Attachment, Config, Tunables, WritePolicy};
use crate::core::counters::{Counters, add};
use crate::core::evict::{Evictor, Grain, Uses};
use crate::core::id::FileId;
use crate::core::paths::{Paths, Tree};
use crate::core::state::{FileState, Record};
use crate::file::{File, Inner};
use crate::graveyard::Graveyard;
use crate::home::Home;
use crate::live::Live;
use crate::partners::{CopiesAt, Copying, Partners};
use crate::queue::DirtyQueue;
use crate::table::Table;
use crate::tier::digests::Digests;
use crate::tier::dir::{Tier, shadow_name};
use crate::tier::index::Index;
use crate::tier::media::Media;
use crate::time::Time;
use crate::totals::{Landings, Totals};
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank, RwLock};

mod attached;
#[cfg(test)]
mod bed;
mod blanks;
pub mod changing;
pub mod digests;
pub mod fetch;
pub mod file;
pub mod glance;
mod graveyard;
mod held;
pub mod journaled;
mod known;
mod leaving;
pub mod live;
pub mod names;
pub mod open;
pub mod pace;
pub mod partners;
pub mod queue;
mod record;
mod reused;
mod sealing;
mod shadow;
mod shared;
pub mod stay;
pub mod sums;
pub mod syncing;
mod table;
pub mod totals;
pub mod unseen;
pub mod work;

use forebay_core as core;
use forebay_home as home;
use forebay_threads::{failpoint, requester, time};
use forebay_tier as tier;

/// All files that are known.
pub struct Files {
    home: Arc<Home>,
    tier: Tier,
    index: Index,
    config: Config,
    tunables: RwLock<Tunables>,
    table: RwLock<Table>,
    next_id: AtomicU64,
    totals: Totals,
    landings: Landings,
    dirty: Mutex<DirtyQueue>,
    evictor: Mutex<Evictor>,
    grain: Grain,
    uses: Uses,
    attached: Attached,
    counters: Counters,
    time: Time,
    started: Instant,
    stopping: AtomicBool,
    wake: (Mutex<u64>, Condvar),
    /// Ids of shadow files to be removed, by a thread that no caller waits for.
    trash: Mutex<Vec<FileId>>,
    /// Shadow files for the next new files.
    blanks: Mutex<Blanks>,
    /// Files that lost their last name a moment ago.
    graveyard: Mutex<Graveyard>,
    copying: Copying,
    digests: Digests,
    /// Drops the bytes of a file from other caches.
    discarder: OnceLock<Discarder>,
    /// Whether the engine before this one was shut down cleanly.
    clean_start: bool,
}

/// Makes the kernel drop its cached bytes of a file. Called without a lock held.
pub type Discarder = Box<dyn Fn(FileKey) + Send + Sync>;

/// The inventory of a tier at a start.
pub struct Inventory {
    pub next_id: u64,
    /// Ids of shadow files to be removed.
    pub nameless: Vec<FileId>,
    pub tier_bytes: u64,
    pub digests: Digests,
    /// Whether the engine before this one was shut down cleanly.
    pub clean_start: bool,
}

impl Files {
    /// Creates the part without files; [`Files::populate`] adds them.
    pub fn new(
        home: Arc<Home>,
        (tier, index): (Tier, Index),
        (config, tunables): (Config, Tunables),
        found: Inventory,
        time: Time,
    ) -> Files {
        let mut evictor = Evictor::default();
        evictor.set_policy(tunables.eviction);
        Files {
            home,
            tier,
            index,
            attached: Attached::new(config.attachment),
            config,
            tunables: RwLock::new(Rank::Tunables, tunables),
            table: RwLock::new(Rank::Table, Table::default()),
            next_id: AtomicU64::new(found.next_id),
            totals: Totals::default(),
            landings: Landings::default(),
            dirty: Mutex::new(Rank::Dirty, DirtyQueue::default()),
            evictor: Mutex::new(Rank::Evictor, evictor),
            grain: Grain::of_tier(found.tier_bytes),
            uses: Uses::of_tier(found.tier_bytes),
            counters: Counters::default(),
            started: time.now(),
            time,
            stopping: AtomicBool::new(false),
            wake: (Mutex::new(Rank::Wake, 0), Condvar::new()),
            trash: Mutex::new(Rank::Shadows, found.nameless),
            blanks: Mutex::new(Rank::Shadows, Blanks::default()),
            graveyard: Mutex::new(Rank::Graveyard, Graveyard::default()),
            copying: Copying::default(),
            digests: found.digests,
            discarder: OnceLock::new(),
            clean_start: found.clean_start,
        }
    }

    /// Registers the front-end's cache of bytes. The first registration counts.
    pub fn set_discarder(&self, discarder: Discarder) {
        let _ = self.discarder.set(discarder);
    }

    /// Notes that an operator has thrown bytes of the file away: no program may read them from another cache.
    pub fn note_discarded(&self, key: FileKey) {
        if let Some(discard) = self.discarder.get() {
            discard(key);
        }
    }

    /// Returns the configuration, which does not change while the engine runs.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the index, with its log.
    #[inline]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Returns the clock of all parts.
    #[inline]
    pub fn time(&self) -> &Time {
        &self.time
    }

    /// Returns how long the engine has been running.
    pub fn uptime(&self) -> Duration {
        self.time.since(self.started)
    }

    /// Returns the counters of the statistics.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the sums over all files.
    #[inline]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the drain's progress.
    pub fn landings(&self) -> &Landings {
        &self.landings
    }

    /// Returns the size of the units in which bytes are evicted.
    pub fn grain(&self) -> &Grain {
        &self.grain
    }

    /// Returns the counts of uses of single units, for eviction.
    pub fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Locks the evictor, which picks the next unit. Its lock comes after a file's.
    pub fn evictor(&self) -> MutexGuard<'_, Evictor> {
        self.evictor.lock()
    }

    /// Locks the queue of dirty files, which has them in the order in which they became dirty.
    pub fn dirty(&self) -> MutexGuard<'_, DirtyQueue> {
        self.dirty.lock()
    }

    /// Returns the id of the next new file.
    pub fn next_id(&self) -> u64 {
        self.next_id.load(Relaxed)
    }

    /// Returns a new id.
    pub fn new_id(&self) -> FileId {
        FileId(self.next_id.fetch_add(1, Relaxed))
    }

    /// Returns the bytes that the shadow file with this id takes.
    pub fn shadow_bytes(&self, id: FileId) -> u64 {
        self.media().stat(&shadow_name(id)).map_or(0, |stat| stat.allocated)
    }

    /// Whether the file with this key may have been forgotten since `since`.
    pub fn was_forgotten(&self, key: FileKey, since: Look) -> bool {
        self.table.read().forgotten_since(key, since)
    }

    /// Whether the file's key finds this file.
    pub fn has_its_key(&self, file: &Arc<File>) -> bool {
        self.table.read().with_key(file.key).is_some_and(|known| Arc::ptr_eq(known, file))
    }

    /// Makes a file that can be found by its id alone.
    pub fn forget_key(&self, file: &Arc<File>) {
        let mut table = self.table.write();
        if table.with_key(file.key).is_some_and(|known| Arc::ptr_eq(known, file)) {
            table.forget_key(file);
        }
    }

    /// Makes a file that can be found by its key again.
    pub fn know_key(&self, file: &Arc<File>) {
        self.table.write().enter_key(file.clone());
    }

    /// Tells all threads that the engine ends.
    pub fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Whether the engine is ending.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Sets the attachment of the tier.
    pub fn set_attachment(&self, attachment: Attachment) {
        self.attached.set(attachment);
    }

    /// Sets the tunables.
    pub fn set_tunables(&self, tunables: Tunables) {
        *self.tunables.write() = tunables;
    }

    /// Waits until the drain is needed, at most for `patience`.
    pub fn wait_for_nudge(&self, patience: Duration) {
        let seen = self.wake.0.lock();
        if !self.landings.is_urgent() {
            drop(self.time.wait(&self.wake.1, seen, patience));
        }
    }

    /// Returns the present write policy: one look for each request. It is write-around while the
    /// tier is detached.
    pub fn policy(&self) -> WritePolicy {
        match self.is_attached() {
            true => self.tune(|t| t.policy),
            false => WritePolicy::WriteAround,
        }
    }

    /// Whether every write has to go through the daemon: a write past it is in no stream that can
    /// be followed, and is not copied to partners.
    pub fn watches_writers(&self) -> bool {
        self.tune(|t| t.bypass_writes) > 0 || self.copies_writes()
    }

    /// Whether partners are to have writes. Then writers go through the daemon, and so do readers:
    /// the kernel knows one way at a time, and refuses the other with EIO.
    pub fn copies_writes(&self) -> bool {
        self.copying.is_wanted()
    }

    /// Sets the partners that are told of dirty bytes, whenever they want them.
    pub fn begin_copies(&self, partners: Arc<dyn Partners>, at: CopiesAt) {
        self.copying.begin(partners, at);
    }

    /// Returns the state of copies at partners.
    #[inline]
    pub fn copying(&self) -> &Copying {
        &self.copying
    }

    /// Returns the attachment of the tier.
    pub fn attachment(&self) -> Attachment {
        self.attached.get()
    }

    /// Whether the tier is attached.
    #[inline]
    pub fn is_attached(&self) -> bool {
        self.attachment() == Attachment::Attached
    }

    /// Whether a program may read or write the file past the daemon (D1). If other programs do, it must:
    /// the kernel knows one way at a time. No program may begin while bytes that were fetched before the
    /// file was emptied are put into its shadow: a program past the daemon cannot wait for that (L3).
    pub fn may_pass(&self, inner: &Inner) -> bool {
        let lands = |live: &Live| live.fills.iter().any(|fill| fill.lands);
        let may_begin = self.is_attached() && self.media().grants_leases();
        inner.is_passed() || (may_begin && !inner.live.as_deref().is_some_and(lands))
    }

    /// Returns the number of files that programs have open past the daemon.
    pub fn files_past_us(&self) -> u64 {
        self.all_files().iter().filter(|file| file.lock().is_passed()).count() as u64
    }

    /// Returns the fast medium.
    #[inline]
    pub fn media(&self) -> &Arc<dyn Media> {
        &self.tier.media
    }

    /// Reads the present tunables.
    #[inline]
    pub fn tune<T>(&self, get: impl FnOnce(&Tunables) -> T) -> T {
        get(&self.tunables.read())
    }

    /// Returns the file with this key, if it is known.
    pub fn find(&self, key: FileKey) -> Option<Arc<File>> {
        self.table.read().with_key(key).cloned()
    }

    /// Returns all files with this key: the one that the key finds, and those found by their ids alone.
    pub fn all_with_key(&self, key: FileKey) -> Vec<Arc<File>> {
        let table = self.table.read();
        table.aside(key).iter().chain(table.with_key(key)).cloned().collect()
    }

    /// Returns the file with this id, if it is known.
    pub fn by_id(&self, id: FileId) -> Option<Arc<File>> {
        self.table.read().with_id(id).cloned()
    }

    /// Returns all files, in no order.
    pub fn all_files(&self) -> Vec<Arc<File>> {
        self.table.read().all().cloned().collect()
    }

    /// Enters the file that the store has under this path, or returns the one that has its key.
    pub fn insert(&self, path: &Path, attr: &Attr) -> Arc<File> {
        self.insert_with(path, attr, || self.new_id())
    }

    fn insert_with(&self, path: &Path, attr: &Attr, id: impl FnOnce() -> FileId) -> Arc<File> {
        let paths = Paths::of(self.tree(), path);
        let mut table = self.table.write();
        if let Some(file) = table.with_key(attr.key) {
            return file.clone();
        }
        let id = id();
        let record = Record { key: attr.key, state: FileState::absent(paths, attr) };
        let file = File::new(id, record, false);
        table.insert(file.clone());
        file
    }

    /// Enters a file by its record, which is not in the log yet. The file that had its key can be
    /// found by its id alone from then on.
    pub fn insert_as(&self, id: FileId, record: Record) -> Arc<File> {
        let file = File::new(id, record, false);
        self.table.write().insert(file.clone());
        file
    }

    /// Returns the tree of the directories that files have names in.
    pub fn tree(&self) -> &Tree {
        self.index.tree()
    }

    /// Removes a file from the table.
    pub fn forget(&self, file: &File) {
        self.table.write().remove(file);
    }

    /// Converts an error of the tier into the engine's type, and counts it.
    pub fn note_tier<T>(&self, result: std::io::Result<T>) -> Result<T> {
        result.map_err(|e| {
            // Not the tier's fault: it is full or takes no file so large, or programs have used up
            // the descriptors.
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            if ![libc::ENOSPC, libc::EFBIG, libc::EMFILE, libc::ENFILE].contains(&errno) {
                add(&self.counters.tier_errors, 1);
                tracing::error!(error = %e, "the fast tier failed");
            }
            Error::io(e, "the fast tier")
        })
    }

    /// Wakes the governor to look at the level again.
    pub fn nudge(&self) {
        *self.wake.0.lock() += 1;
        self.wake.1.notify_all();
    }

    /// Returns EROFS if the store must not be changed.
    pub fn refuse_read_only(&self) -> Result<()> {
        match self.config.read_only {
            true => Err(Error::os(libc::EROFS, "the mount is read-only")),
            false => Ok(()),
        }
    }

    /// Returns the files at or below one of the paths, or all if `scope` is empty, in the order of their paths.
    pub fn select(&self, scope: &[PathBuf]) -> Vec<Arc<File>> {
        within(self.candidates(scope), scope)
    }

    /// Returns those of them that are dirty and have a name. Clean files are not looked at if they are more.
    pub fn select_dirty(&self, scope: &[PathBuf]) -> Vec<Arc<File>> {
        let now = self.time.ms();
        let count = self.dirty().by_age.len();
        let below = self.ids_below(scope).filter(|ids| ids.len() <= count);
        let files = match below {
            Some(ids) => ids.into_iter().filter_map(|id| self.by_id(id)).collect(),
            None => self.dirty().older(now, u64::MAX).into(),
        };
        let mut files = within(files, scope);
        files.retain(|file| file.lock().state.is_dirty());
        files
    }

    /// Returns the dirty files without a known name at or below one of the paths. Looks at none.
    pub fn dirty_beside(&self, scope: &[PathBuf]) -> Vec<Arc<File>> {
        let Some(below) = self.ids_below(scope) else { return Vec::new() };
        let mut files = self.dirty().older(self.time.ms(), u64::MAX);
        files.retain(|file| !below.contains(&file.id));
        files.into()
    }

    /// Whether a file at or below the path is known.
    pub fn knows_any(&self, path: &Path) -> bool {
        let ids = self.tree().at_or_below(path);
        let mut files = ids.into_iter().filter_map(|id| self.by_id(id));
        files.any(|file| file.lock().state.paths.any_within(path))
    }

    /// Returns the files of [`Files::select`], and perhaps others. Looks at none.
    pub fn candidates(&self, scope: &[PathBuf]) -> Vec<Arc<File>> {
        match self.ids_below(scope) {
            None => self.all_files(),
            Some(ids) => ids.into_iter().filter_map(|id| self.by_id(id)).collect(),
        }
    }

    /// Returns the ids of files at or below the paths; `None` means all files.
    fn ids_below(&self, scope: &[PathBuf]) -> Option<BTreeSet<FileId>> {
        let all = scope.is_empty() || scope.iter().any(|path| path.as_os_str().is_empty());
        let below = || scope.iter().flat_map(|path| self.tree().at_or_below(path)).collect();
        (!all).then(below)
    }

    /// Returns the present tunables.
    pub fn tunables(&self) -> Tunables {
        self.tune(Clone::clone)
    }

    /// Returns the present record of a file, if it has one.
    pub fn state_of(&self, id: FileId) -> Option<Record> {
        let file = self.by_id(id)?;
        let inner = file.lock();
        inner.recorded().then(|| Record { key: file.key, state: inner.state.clone() })
    }
}

/// Keeps the files at or below one of these paths, or all if `scope` is empty, in the order of their paths.
fn within(mut files: Vec<Arc<File>>, scope: &[PathBuf]) -> Vec<Arc<File>> {
    files.retain(|file| {
        let inner = file.lock();
        scope.is_empty() || scope.iter().any(|path| inner.state.paths.any_within(path))
    });
    files.sort_by_cached_key(|file| file.path());
    files
}
