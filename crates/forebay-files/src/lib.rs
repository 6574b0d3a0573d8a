//! What is known of files: the table of them, what all of them take together, and what each change of
//! one means for the sums, the queues and the log.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_backing::{Attr, Error, FileKey, Result};

use crate::attached::Attached;
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
use crate::tier::media::{Media, MediaFile};
use crate::time::Time;
use crate::totals::{Landings, Totals};
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank, RwLock};

mod attached;
#[cfg(test)]
mod bed;
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

/// What is known of all files.
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
    /// Shadow files to be removed: not by who waits for an answer.
    trash: Mutex<Vec<FileId>>,
    /// Shadow files that were never written to, of files that are gone: the next ones made take
    /// their place.
    blanks: Mutex<Vec<(FileId, Arc<dyn MediaFile>)>>,
    /// Files that lost their last name a moment ago.
    graveyard: Mutex<Graveyard>,
    copying: Copying,
    digests: Digests,
    /// Drops a file's bytes wherever else they are cached.
    discarder: OnceLock<Discarder>,
    /// The engine before this one was shut down.
    clean_start: bool,
}

/// Has the kernel drop what it has cached of a file. It is called without a lock held.
pub type Discarder = Box<dyn Fn(FileKey) + Send + Sync>;

/// What was found on the tier.
pub struct Inventory {
    pub next_id: u64,
    /// Shadows that are to go.
    pub nameless: Vec<FileId>,
    pub tier_bytes: u64,
    pub digests: Digests,
    /// The engine before this one was shut down.
    pub clean_start: bool,
}

impl Files {
    /// Nothing is known yet of any file: [`Files::populate`].
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
            blanks: Mutex::new(Rank::Shadows, Vec::new()),
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

    /// An operator has thrown bytes of the file away: nobody is to read them from another cache.
    pub fn note_discarded(&self, key: FileKey) {
        if let Some(discard) = self.discarder.get() {
            discard(key);
        }
    }

    /// What does not change while the engine runs.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The log, and what it comes to.
    #[inline]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The clock of everybody here.
    #[inline]
    pub fn time(&self) -> &Time {
        &self.time
    }

    /// How long the engine runs.
    pub fn uptime(&self) -> Duration {
        self.time.since(self.started)
    }

    /// What is counted for the statistics.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sums over all files.
    #[inline]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// What the drain has brought home.
    pub fn landings(&self) -> &Landings {
        &self.landings
    }

    /// How large the units are in which bytes are evicted.
    pub fn grain(&self) -> &Grain {
        &self.grain
    }

    /// Uses of single units, for eviction.
    pub fn uses(&self) -> &Uses {
        &self.uses
    }

    /// What goes next. Its lock comes after a file's.
    pub fn evictor(&self) -> MutexGuard<'_, Evictor> {
        self.evictor.lock()
    }

    /// The dirty files, in the order in which they became so.
    pub fn dirty(&self) -> MutexGuard<'_, DirtyQueue> {
        self.dirty.lock()
    }

    /// The number of the file that is known next.
    pub fn next_id(&self) -> u64 {
        self.next_id.load(Relaxed)
    }

    /// A number that no file has.
    pub fn new_id(&self) -> FileId {
        FileId(self.next_id.fetch_add(1, Relaxed))
    }

    /// Bytes that the shadow file with this number takes.
    pub fn shadow_bytes(&self, id: FileId) -> u64 {
        self.media().stat(&shadow_name(id)).map_or(0, |stat| stat.allocated)
    }

    /// Whether the file with this key may have been forgotten since then.
    pub fn was_forgotten(&self, key: FileKey, since: Look) -> bool {
        self.table.read().forgotten_since(key, since)
    }

    /// Leaves a file to be found by its id alone.
    pub fn forget_key(&self, file: &Arc<File>) {
        let mut table = self.table.write();
        if table.with_key(file.key).is_some_and(|known| Arc::ptr_eq(known, file)) {
            table.forget_key(file);
        }
    }

    /// Makes a file to be found by its key again.
    pub fn know_key(&self, file: &Arc<File>) {
        self.table.write().enter_key(file.clone());
    }

    /// The engine comes to its end: threads are to come to theirs.
    pub fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Whether the engine comes to its end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// From here on the tier takes part like this.
    pub fn set_attachment(&self, attachment: Attachment) {
        self.attached.set(attachment);
    }

    /// From here on these count.
    pub fn set_tunables(&self, tunables: Tunables) {
        *self.tunables.write() = tunables;
    }

    /// Waits until somebody is in need of the drain, but not for longer than that.
    pub fn wait_for_nudge(&self, patience: Duration) {
        let seen = self.wake.0.lock();
        if !self.landings.is_urgent() {
            drop(self.time.wait(&self.wake.1, seen, patience));
        }
    }

    /// The write policy of this moment: one look for each request. Write-around while the tier is
    /// detached.
    pub fn policy(&self) -> WritePolicy {
        match self.is_attached() {
            true => self.tune(|t| t.policy),
            false => WritePolicy::WriteAround,
        }
    }

    /// Whether every writer has to be seen: who writes past us is in no stream we could follow, and
    /// nobody copies what he writes.
    pub fn watches_writers(&self) -> bool {
        self.tune(|t| t.bypass_writes) > 0 || self.copies_writes()
    }

    /// Whether partners are to have what is written here. A writer goes through us then, so that readers do,
    /// too: the kernel knows one way at a time, and refuses the second one with EIO.
    pub fn copies_writes(&self) -> bool {
        self.copying.is_wanted()
    }

    /// From here on these are told what is dirty here, whenever they want it.
    pub fn begin_copies(&self, partners: Arc<dyn Partners>, at: CopiesAt) {
        self.copying.begin(partners, at);
    }

    /// What partners are told.
    #[inline]
    pub fn copying(&self) -> &Copying {
        &self.copying
    }

    /// Whether, and how, the tier takes part.
    pub fn attachment(&self) -> Attachment {
        self.attached.get()
    }

    /// Whether the tier takes part in full.
    #[inline]
    pub fn is_attached(&self) -> bool {
        self.attachment() == Attachment::Attached
    }

    /// Whether a program may read or write the file past us (D1). Beside others who do it must: the
    /// kernel knows one way at a time. Nobody does while bytes that were fetched before the file was emptied are
    /// put into its shadow: who goes past us cannot wait for that (L3).
    pub fn may_pass(&self, inner: &Inner) -> bool {
        let lands = |live: &Live| live.fills.iter().any(|fill| fill.lands);
        let may_begin = self.is_attached() && self.media().grants_leases();
        inner.is_passed() || (may_begin && !inner.live.as_deref().is_some_and(lands))
    }

    /// How many files programs have open past us.
    pub fn files_past_us(&self) -> u64 {
        self.all_files().iter().filter(|file| file.lock().is_passed()).count() as u64
    }

    /// The fast medium.
    #[inline]
    pub fn media(&self) -> &Arc<dyn Media> {
        &self.tier.media
    }

    /// One look at the tunables of this moment.
    #[inline]
    pub fn tune<T>(&self, get: impl FnOnce(&Tunables) -> T) -> T {
        get(&self.tunables.read())
    }

    /// The file with this key, if anything is known of it.
    pub fn find(&self, key: FileKey) -> Option<Arc<File>> {
        self.table.read().with_key(key).cloned()
    }

    /// The file that is found by this key, and those that have it and are not.
    pub fn all_with_key(&self, key: FileKey) -> Vec<Arc<File>> {
        let table = self.table.read();
        table.aside(key).iter().chain(table.with_key(key)).cloned().collect()
    }

    /// The file with this number, if it is known.
    pub fn by_id(&self, id: FileId) -> Option<Arc<File>> {
        self.table.read().with_id(id).cloned()
    }

    /// All of them, in no order.
    pub fn all_files(&self) -> Vec<Arc<File>> {
        self.table.read().all().cloned().collect()
    }

    /// Begins to know the file that the store has under this path, or finds the one that has its key.
    pub fn insert(&self, path: &Path, attr: &Attr) -> Arc<File> {
        let paths = Paths::of(self.tree(), path);
        let mut table = self.table.write();
        if let Some(file) = table.with_key(attr.key) {
            return file.clone();
        }
        let id = self.new_id();
        let record = Record { key: attr.key, state: FileState::absent(paths, attr) };
        let file = File::new(id, record, false);
        table.insert(file.clone());
        file
    }

    /// Begins to know a file by its record, which is not in the log yet. Whoever had its key is found by
    /// his number alone from then on.
    pub fn insert_as(&self, id: FileId, record: Record) -> Arc<File> {
        let file = File::new(id, record, false);
        self.table.write().insert(file.clone());
        file
    }

    /// The directories that names of files are in.
    pub fn tree(&self) -> &Tree {
        self.index.tree()
    }

    /// A file leaves the table: nobody finds it there any more.
    pub fn forget(&self, file: &File) {
        self.table.write().remove(file);
    }

    /// Turns an error of the tier into one of ours, and counts it.
    pub fn note_tier<T>(&self, result: std::io::Result<T>) -> Result<T> {
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

    /// Wakes the drain to look at the level again.
    pub fn nudge(&self) {
        *self.wake.0.lock() += 1;
        self.wake.1.notify_all();
    }

    /// EROFS if nothing may be changed on the store.
    pub fn refuse_read_only(&self) -> Result<()> {
        match self.config.read_only {
            true => Err(Error::os(libc::EROFS, "the mount is read-only")),
            false => Ok(()),
        }
    }

    /// Files at or below one of the paths; all if there is none. In the order of their paths.
    pub fn select(&self, scope: &[PathBuf]) -> Vec<Arc<File>> {
        within(self.candidates(scope), scope)
    }

    /// Those of them that are dirty and have a name. Whatever is clean is not looked at, if it is more.
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

    /// The dirty files that are known by no name at or below one of the paths. Looks at none.
    pub fn dirty_beside(&self, scope: &[PathBuf]) -> Vec<Arc<File>> {
        let Some(below) = self.ids_below(scope) else { return Vec::new() };
        let mut files = self.dirty().older(self.time.ms(), u64::MAX);
        files.retain(|file| !below.contains(&file.id));
        files.into()
    }

    /// Whether any file at or below the path is known.
    pub fn knows_any(&self, path: &Path) -> bool {
        let ids = self.tree().at_or_below(path);
        let mut files = ids.into_iter().filter_map(|id| self.by_id(id));
        files.any(|file| file.lock().state.paths.any_within(path))
    }

    /// What [`Files::select`] does, and perhaps some besides. Looks at none.
    pub fn candidates(&self, scope: &[PathBuf]) -> Vec<Arc<File>> {
        match self.ids_below(scope) {
            None => self.all_files(),
            Some(ids) => ids.into_iter().filter_map(|id| self.by_id(id)).collect(),
        }
    }

    /// `None`: all.
    fn ids_below(&self, scope: &[PathBuf]) -> Option<BTreeSet<FileId>> {
        let all = scope.is_empty() || scope.iter().any(|path| path.as_os_str().is_empty());
        let below = || scope.iter().flat_map(|path| self.tree().at_or_below(path)).collect();
        (!all).then(below)
    }

    /// The tunables of this moment.
    pub fn tunables(&self) -> Tunables {
        self.tune(Clone::clone)
    }

    /// What the record of a file says now, if it has one.
    pub fn state_of(&self, id: FileId) -> Option<Record> {
        let file = self.by_id(id)?;
        let inner = file.lock();
        inner.recorded().then(|| Record { key: file.key, state: inner.state.clone() })
    }
}

/// Those at or below one of these paths, or all if there is none, in the order of their paths.
fn within(mut files: Vec<Arc<File>>, scope: &[PathBuf]) -> Vec<Arc<File>> {
    files.retain(|file| {
        let inner = file.lock();
        scope.is_empty() || scope.iter().any(|path| inner.state.paths.any_within(path))
    });
    files.sort_by_cached_key(|file| file.path());
    files
}
