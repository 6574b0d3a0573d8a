//! The index: which files are in the tier, and their states, durably.
//!
//! A transactional store (redb) holds the state as of the last *compaction*; the log in front of it
//! holds every change since. Appending to the log costs one small write, where a transaction
//! costs two syncs; and a log record that was written and not synced survives kill -9, which an
//! uncommitted transaction does not. A compaction writes the files touched since the last one in one
//! transaction and then drops the old log.
//!
//! Invariants:
//! - I1: a record reaches the store only after it was appended to the log.
//! - I2: a log file is removed only after a durable commit that covers it.
//! - I3: after [`Index::sync`] all records appended before it are durable, and all before a synced position.
//! - I4: a directory that a record names is in the store, or in a file of the log that is read after it; and
//!   each file of the log holds the places of the directories that it names.
//!
//! Locks: `compact` is held while files' locks are waited for, `log` never (docs/ARCHITECTURE.md).

mod load;
mod store;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Weak};

use forebay_backing::Timestamp;
use redb::{Database, TableDefinition};

use crate::core::id::FileId;
use crate::core::journal::{Journal, NameOp, NameRecord, Step, Told};
use crate::core::paths::{Dir, DirId, Tree, Way};
use crate::core::seal::Seal;
use crate::core::state::{Change, Record};
use crate::failpoint;
use crate::log::{self, Entry, LogFile, Out};
use crate::media::{Media, Open};
use crate::witness::Witness;
use forebay_base::lock::{Mutex, MutexGuard, Rank};

use self::load::load_store;
pub use self::load::{Loaded, load_logs, load_read_only};
use self::store::Backend;

const FILES: TableDefinition<u64, &[u8]> = TableDefinition::new("files");

const DIRS: TableDefinition<u64, &[u8]> = TableDefinition::new("dirs");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

const BOOT: TableDefinition<&str, &str> = TableDefinition::new("boot");

pub const STORE_NAME: &str = "index.redb";

/// redb's page cache. The index is read once at start and written at compactions, so little is enough.
const STORE_CACHE_BYTES: usize = 2 << 20;

/// Compact once the log is this long: bounds the replay at start to well under a second.
const COMPACT_BYTES: u64 = 8 << 20;

pub struct Index {
    media: Arc<dyn Media>,
    tree: Arc<Tree>,
    /// See [`Loaded::losses`].
    losses: u64,
    /// The number of uses of the tier, this one included.
    start: u64,
    log: Mutex<Log>,
    /// Lets one thread at a time sync the log: the kernel reports a failed write to one caller only.
    syncing: Mutex<()>,
    /// The store, for one compaction at a time. None after a commit that found no room: redb accepts nothing
    /// more until it is opened again. After a failed sync it stays as it is, and the log stays too.
    compact: Mutex<Option<Store>>,
    synced_seq: Arc<AtomicU64>,
    /// The position after the last record by which bytes of a file became clean.
    settled_seq: AtomicU64,
    /// Bytes in the current file of the log, readable without the lock.
    log_bytes: AtomicU64,
}

/// The transactional store that the log is compacted into.
struct Store {
    db: Database,
    doubt: Arc<AtomicBool>,
}

struct Log {
    file: LogFile,
    next_seq: u64,
    /// All records before this position are durable.
    synced_seq: Arc<AtomicU64>,
    touched: Touched,
    names: Journal,
    sealed: Vec<String>,
    /// Where the file's own records begin, behind the names at the front of each file.
    begun: u64,
    /// Rises with each new file of the log, and when a record of directories may have failed.
    tells: u64,
    /// The position after the last record that is more than a note that bytes are durable.
    told: u64,
}

/// The changes that the next compaction writes to the store.
#[derive(Default)]
struct Touched {
    files: HashSet<FileId>,
    /// Directories that have moved.
    moved: HashMap<DirId, Weak<Dir>>,
    /// Directories that have ended.
    ended: Vec<DirId>,
}

impl Touched {
    fn extend(&mut self, more: Touched) {
        self.files.extend(more.files);
        self.moved.extend(more.moved);
        self.ended.extend(more.ended);
    }
}

/// The rows that a compaction writes into the store.
struct Compacted {
    files: Vec<(FileId, Option<Record>)>,
    dirs: BTreeMap<DirId, Arc<Dir>>,
    ended: Vec<DirId>,
    next_dir: u64,
}

impl Compacted {
    /// Collects the rows of the files, and of the directories that their names are in.
    fn of(
        touched: &Touched,
        tree: &Tree,
        state_of: &dyn Fn(FileId) -> Option<Record>,
    ) -> Compacted {
        let files: Vec<_> = touched.files.iter().map(|id| (*id, state_of(*id))).collect();
        let moved = touched.moved.values().filter_map(Weak::upgrade);
        let moved = moved.flat_map(|dir| {
            let above = dir.above().map(|above| above.unstored()).unwrap_or_default();
            above.into_iter().chain([dir])
        });
        let states = files.iter().filter_map(|(_, record)| record.as_ref());
        let new = states.flat_map(|record| record.paths.dirs()).flat_map(Dir::unstored);
        let dirs = moved.chain(new).map(|dir| (dir.id(), dir)).collect();
        let (ended, next_dir) = (touched.ended.clone(), tree.next_id());
        Compacted { files, dirs, ended, next_dir }
    }
}

impl Index {
    /// Reads the index and opens it for appending. Nothing is changed until [`Index::begin`].
    ///
    /// # Errors
    ///
    /// If the log is damaged, too: a damaged log must not be acted on.
    pub fn open(media: Arc<dyn Media>, now: &Witness) -> io::Result<(Index, Loaded)> {
        media.make_dir("log")?;
        let db = open_store(&*media)?;
        media.sync_dir("")?; // A store whose name is not durable is lost with the power.
        let mut loaded = Loaded::default();
        load_store(&db.db, &mut loaded)?;
        loaded.replay_logs(&*media, now)?;
        if let Some((name, error)) = loaded.believe_seals(&*media, now).into_iter().next() {
            return Err(io::Error::new(error.kind(), format!("the shadow file {name}: {error}")));
        }
        if let Some(damage) = loaded.damage.first() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, damage.clone()));
        }
        // From here on new records say that the earlier ones are durable (T2).
        for name in &loaded.logs {
            media.open(name, Open::Existing)?.sync_data()?;
        }
        let file = LogFile::create(&*media, loaded.next_seq)?;
        let synced_seq = Arc::new(AtomicU64::new(loaded.next_seq));
        let log = Log {
            file,
            synced_seq: synced_seq.clone(),
            next_seq: loaded.next_seq,
            touched: Touched {
                files: loaded.touched.keys().copied().collect(),
                moved: loaded.moved.iter().map(by_id).collect(),
                ended: Vec::new(),
            },
            names: loaded.names.clone(),
            sealed: loaded.logs.clone(),
            begun: 0,
            tells: 1,
            told: loaded.next_seq,
        };
        let index = Index {
            media,
            tree: loaded.tree.clone(),
            losses: loaded.losses(now),
            start: loaded.start.unwrap_or(0) + 1,
            log: Mutex::new(Rank::Log, log),
            syncing: Mutex::new(Rank::LogSync, ()),
            compact: Mutex::new(Rank::Compaction, Some(db)),
            synced_seq,
            settled_seq: AtomicU64::new(0),
            log_bytes: AtomicU64::new(0),
        };
        Ok((index, loaded))
    }

    /// Records, durably, the witness of this use of the tier, and that it is in use. `changed` are the files
    /// that recovery changed, `state_of` gives the current state of every file; the logs that were replayed are
    /// retired.
    pub fn begin(
        &self,
        witness: &Witness,
        next_id: u64,
        changed: &[FileId],
        state_of: &dyn Fn(FileId) -> Option<Record>,
    ) -> io::Result<()> {
        let mut log = self.lock();
        log.touched.files.extend(changed);
        drop(log);
        self.compact_as(state_of, Some((witness, None)), next_id)
    }

    /// Marks a clean shutdown: everything in the tier is durable and may be trusted. If records were appended
    /// after `seq`, the position of the tier's last sync, nothing is marked.
    pub fn end(
        &self,
        witness: &Witness,
        next_id: u64,
        seq: u64,
        state_of: &dyn Fn(FileId) -> Option<Record>,
    ) -> io::Result<()> {
        self.compact_as(state_of, Some((witness, Some(seq))), next_id)
    }

    /// Appends a change: written, not synced. It survives the process, not the machine. Returns the position
    /// after it, for [`Index::sync_to`].
    pub fn append(&self, entry: &Entry<'_>) -> io::Result<u64> {
        self.append_when(When::Now, entry)
    }

    /// Appends a change that is written with the next record or sync. Until then it does not survive the
    /// process.
    pub fn append_later(&self, entry: &Entry<'_>) -> io::Result<u64> {
        self.append_when(When::Later, entry)
    }

    fn append_when(&self, when: When, entry: &Entry<'_>) -> io::Result<u64> {
        let mut log = self.lock();
        log.append(when, entry)?;
        self.log_bytes.store(log.file.len() - log.begun, Relaxed);
        if entry.change().is_some_and(Change::cleans) {
            self.settled_seq.store(log.next_seq, Release);
        }
        Ok(log.next_seq)
    }

    /// Whether all bytes that became clean stay clean after a loss of power.
    pub fn has_settled(&self) -> bool {
        self.is_synced(self.settled_seq.load(Acquire))
    }

    /// Announces or notes a change of names; the returned number goes into [`Index::conclude`].
    pub fn name(&self, op: NameOp, told: Told, at: Option<Timestamp>) -> io::Result<u64> {
        let mut log = self.lock();
        let step = log.names.step(op, told, at);
        let n = step.n;
        if let Err(error) = log.note(NameRecord::Step(step)) {
            // The caller does not ask the store for a change that was not recorded.
            if told == Told::Announced {
                log.names.apply(NameRecord::Failed { n });
            }
            return Err(error);
        }
        self.log_bytes.store(log.file.len() - log.begun, Relaxed);
        Ok(n)
    }

    /// Concludes an announced change that the store has made; `at` is a moment of the store's clock after it.
    /// `way` moves the directories. Returns the log's position after the record.
    pub fn conclude(&self, n: u64, at: Option<Timestamp>, way: Option<Way<'_>>) -> io::Result<u64> {
        let mut log = self.lock();
        let plan = way.map(|way| self.tree.plan(way)).unwrap_or_default();
        let places = plan.places(log.tells);
        let noted = log.note(NameRecord::Done { n, at, places });
        match noted {
            Ok(()) => plan.told(log.tells),
            // Every later record of a file states its directories again.
            Err(_) => log.tells += 1,
        }
        let seq = log.next_seq;
        log.touched.moved.extend(plan.dirs().map(by_id));
        self.tree.apply(&plan, seq);
        noted.map(|()| seq)
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Notes that an announced change failed. The note is durable if the announcement may be: a program that
    /// got the error must not see the change made later.
    pub fn failed(&self, n: u64) -> io::Result<()> {
        self.lock().note(NameRecord::Failed { n })?;
        self.sync()
    }

    /// Replaces the journal of names.
    pub fn set_names(&self, steps: Vec<Step>) -> io::Result<()> {
        self.lock().note(NameRecord::All(steps))
    }

    /// Runs `ask` on the journal of names.
    pub fn names<T>(&self, ask: impl FnOnce(&Journal) -> T) -> T {
        ask(&self.lock().names)
    }

    /// Drops changes of names that are durable on the store.
    pub fn retire(&self, ns: Vec<u64>) -> io::Result<()> {
        match ns.is_empty() {
            true => Ok(()),
            false => self.lock().note(NameRecord::Retired { ns }),
        }
    }

    /// Makes all records appended so far durable (I3). One sync serves all threads that wait for one.
    pub fn sync(&self) -> io::Result<()> {
        let seq = {
            let mut log = self.lock();
            log.file.flush()?;
            log.next_seq
        };
        match self.is_synced(seq) {
            true => Ok(()),
            false => self.sync_upto(seq, &self.syncing.lock()),
        }
    }

    fn sync_upto(&self, wanted: u64, _turn: &MutexGuard<'_, ()>) -> io::Result<()> {
        loop {
            let (seq, file, laying) = {
                let mut log = self.look();
                if self.is_synced(wanted) {
                    return Ok(());
                }
                log.file.flush()?;
                log.be_sure()?;
                (log.next_seq, log.file.file(), log.file.laying())
            };
            if !failpoint::skips_sync("log") {
                file.sync_data().inspect_err(|_| self.lock().file.doubt())?;
            }
            // Otherwise another sync has failed meanwhile: the device may have lost records of this one, and
            // they are written again.
            if self.look().file.note_laid(laying) {
                self.synced_seq.fetch_max(seq, Relaxed);
                return Ok(());
            }
        }
    }

    /// Locks the log and checks it: if any sync on the medium has failed, the device may have lost records of
    /// the log that the kernel counts as written.
    fn look(&self) -> MutexGuard<'_, Log> {
        let mut log = self.lock();
        let is_unsynced = !self.is_synced(log.next_seq);
        let failed = self.media.failed_syncs();
        log.file.note_failures(failed, is_unsynced);
        log
    }

    /// Hands all records so far to the device, so that the sync of a shadow makes them durable
    /// ([`Index::flushed`], Z4). `None` if the records before `wanted` are durable, or need a sync of their
    /// own.
    pub fn hand_out(&self, wanted: u64) -> Option<Out> {
        if self.is_synced(wanted) {
            return None;
        }
        // The kernel reports a failed write to one caller only, as in a sync.
        let _turn = self.syncing.lock();
        let (out, file) = {
            let mut log = self.look();
            if self.is_synced(wanted) {
                return None;
            }
            if let Some(out) = log.file.handed_out(wanted) {
                return Some(out);
            }
            log.file.flush().ok()?;
            let seq = log.next_seq;
            (log.file.hand_out(seq)?, log.file.file())
        };
        if !file.is_flushed_by_others() {
            return None;
        }
        if !failpoint::skips_sync("log") {
            file.write_out(out.end()).ok()?;
        }
        self.look().file.note_out(out).then_some(out)
    }

    /// Whether a flush of the device is still enough to make these records durable.
    pub fn stands(&self, out: Out) -> bool {
        self.look().file.stands(out)
    }

    /// Notes that the device was flushed after `out`. If a new file of the log was begun since, or a sync
    /// failed, the flush does not cover the records, and the log is synced.
    pub fn flushed(&self, out: Out) -> io::Result<()> {
        let log = self.look();
        if log.file.stands(out) {
            self.synced_seq.fetch_max(out.seq, Relaxed);
        }
        drop(log);
        self.sync_to(out.seq)
    }

    /// The position after the last record appended.
    pub fn seq(&self) -> u64 {
        self.lock().next_seq
    }

    /// A seal for the shadow of a file in its current recorded state, of which `len` bytes are durable.
    pub fn seal(&self, len: u64) -> Seal {
        Seal { start: self.start, seq: self.seq(), len }
    }

    /// Whether no compaction began since the seal was made: then the store holds nothing later than the seal.
    pub fn is_within_log(&self, seal: Seal) -> bool {
        self.lock().file.first_seq() <= seal.seq
    }

    /// Makes all records before `seq` durable.
    pub fn sync_to(&self, seq: u64) -> io::Result<()> {
        if self.is_synced(seq) { Ok(()) } else { self.sync() }
    }

    /// Makes all records durable except those that only say that bytes are durable: a seal may say the same,
    /// and the sync of the file takes care of them.
    pub fn sync_names(&self) -> io::Result<()> {
        let told = self.lock().told;
        self.sync_to(told)
    }

    pub fn is_synced(&self, seq: u64) -> bool {
        self.synced_seq.load(Relaxed) >= seq
    }

    pub fn wants_compaction(&self) -> bool {
        self.log_bytes.load(Relaxed) >= COMPACT_BYTES
    }

    /// Moves the state from the log into the store. `state_of` gives a file's current state, `None` if the file
    /// is gone.
    pub fn compact(
        &self,
        next_id: u64,
        state_of: &dyn Fn(FileId) -> Option<Record>,
    ) -> io::Result<()> {
        self.compact_as(state_of, None, next_id)
    }

    fn compact_as(
        &self,
        state_of: &dyn Fn(FileId) -> Option<Record>,
        session: Option<(&Witness, Option<u64>)>,
        next_id: u64,
    ) -> io::Result<()> {
        let mut store = self.compact.lock();
        let (touched, sealed, seq) = self.rotate()?;
        let compacted = Compacted::of(&touched, &self.tree, state_of);
        // A state may be newer than the rotation. Its records must be durable before the store is, or a loss of
        // power would replay older records on top of the newer state.
        let written = self.sync().and_then(|()| {
            let db = match store.take() {
                Some(db) => db,
                None => open_store(&*self.media)?,
            };
            let committed =
                commit(&db.db, &compacted, session, (self.losses, self.start), (next_id, seq));
            if committed.is_ok() || db.doubt.load(Relaxed) {
                *store = Some(db);
            }
            committed
        });
        if written.is_err() {
            let mut log = self.lock();
            log.touched.extend(touched);
            log.sealed.splice(0..0, sealed);
            return written;
        }
        compacted.dirs.values().for_each(|dir| dir.stored());
        failpoint::pass("compaction.committed");
        for name in sealed {
            self.media.remove(&name)?;
        }
        failpoint::pass("compaction.done");
        Ok(())
    }

    /// Starts a new log file and returns the changes that the old ones cover. The old file is synced first, so
    /// that a sync of the new file covers everything (I3): once before the log's lock is taken, and under it
    /// for the records appended since.
    fn rotate(&self) -> io::Result<(Touched, Vec<String>, u64)> {
        let turn = self.syncing.lock();
        self.sync_upto(self.seq(), &turn)?;
        let mut log = self.look();
        log.file.flush()?;
        let seq = log.next_seq;
        if !self.is_synced(seq) {
            log.be_sure()?;
            log.file.file().sync_data().inspect_err(|_| log.file.doubt())?;
        }
        if !log.file.is_empty() {
            // A new file that failed to begin must not stay: later records go into the old file.
            let fresh = LogFile::create(&*self.media, seq)
                .inspect_err(|_| drop(self.media.remove(&log::name(seq))))?;
            let old = std::mem::replace(&mut log.file, fresh);
            log.sealed.push(old.name);
            log.begun = 0;
            log.tells += 1;
        }
        let ended = self.tree.take_ended();
        log.touched.ended.extend(ended);
        if !log.names.is_empty() {
            let all = Entry::Name(NameRecord::All(log.names.steps()));
            log.append(When::Now, &all)?;
        }
        log.begun = log.file.len();
        self.log_bytes.store(0, Relaxed);
        Ok((std::mem::take(&mut log.touched), std::mem::take(&mut log.sealed), seq))
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }
}

/// The moment at which a record is written.
#[derive(Clone, Copy)]
enum When {
    Now,
    /// With the next record.
    Later,
}

fn open_store(media: &dyn Media) -> io::Result<Store> {
    let (file, doubt) = (media.open(STORE_NAME, Open::Keep)?, Arc::<AtomicBool>::default());
    let backend = Backend { file, doubt: doubt.clone() };
    let builder = &mut Database::builder();
    let db = builder.set_cache_size(STORE_CACHE_BYTES).create_with_backend(backend);
    Ok(Store { db: db.map_err(other)?, doubt })
}

fn commit(
    db: &Database,
    compacted: &Compacted,
    session: Option<(&Witness, Option<u64>)>,
    (losses, start): (u64, u64),
    (next_id, seq): (u64, u64),
) -> io::Result<()> {
    let txn = db.begin_write().map_err(other)?;
    {
        let mut files = txn.open_table(FILES).map_err(other)?;
        for (id, state) in &compacted.files {
            match state {
                Some(state) => {
                    let bytes = postcard::to_stdvec(state).map_err(other)?;
                    files.insert(id.0, bytes.as_slice()).map_err(other)?;
                }
                None => drop(files.remove(id.0).map_err(other)?),
            }
        }
        let mut dirs = txn.open_table(DIRS).map_err(other)?;
        for placed in compacted.dirs.values().filter_map(|dir| dir.placed()) {
            let bytes = postcard::to_stdvec(&placed).map_err(other)?;
            dirs.insert(placed.id.0, bytes.as_slice()).map_err(other)?;
        }
        for id in &compacted.ended {
            dirs.remove(id.0).map_err(other)?;
        }
        let mut meta = txn.open_table(META).map_err(other)?;
        meta.insert("next_dir", compacted.next_dir).map_err(other)?;
        meta.insert("applied_seq", seq).map_err(other)?;
        meta.insert("next_id", next_id).map_err(other)?;
        if let Some((witness, synced_to)) = session {
            let clean = synced_to == Some(seq);
            meta.insert("clean_shutdown", u64::from(clean)).map_err(other)?;
            meta.insert("losses", losses).map_err(other)?;
            meta.insert("starts", start).map_err(other)?;
            let mut boot = txn.open_table(BOOT).map_err(other)?;
            boot.insert("id", &*witness.boot).map_err(other)?;
            match &witness.mount {
                Some(mark) => drop(boot.insert("mount", &**mark).map_err(other)?),
                None => drop(boot.remove("mount").map_err(other)?),
            }
        }
    }
    txn.commit().map_err(other)
}

impl Log {
    /// See [`LogFile::be_sure`].
    fn be_sure(&mut self) -> io::Result<()> {
        self.file.be_sure::<Entry<'static>>(self.next_seq)
    }

    fn append(&mut self, when: When, entry: &Entry) -> io::Result<()> {
        if let Entry::Put(_, record) = entry {
            self.tell_dirs(record)?;
        }
        self.write(when, entry)?;
        if !matches!(entry.change(), Some(Change::Synced { .. })) {
            self.told = self.next_seq;
        }
        if let Some(id) = entry.file() {
            self.touched.files.insert(id);
        }
        Ok(())
    }

    /// Each file of the log states the directories of the names in it.
    fn tell_dirs(&mut self, record: &Record) -> io::Result<()> {
        let dirs: Vec<Arc<Dir>> =
            record.paths.dirs().flat_map(|dir| dir.untold(self.tells)).collect();
        if dirs.is_empty() {
            return Ok(());
        }
        let places = Entry::Dirs(dirs.iter().filter_map(|dir| dir.placed()).collect());
        self.write(When::Later, &places)?;
        dirs.iter().for_each(|dir| dir.told(self.tells));
        Ok(())
    }

    fn write(&mut self, when: When, entry: &Entry) -> io::Result<()> {
        let (seq, synced) = (self.next_seq, self.synced_seq.load(Relaxed));
        match when {
            When::Now => self.file.append(seq, synced, entry)?,
            When::Later => self.file.append_later(seq, synced, entry)?,
        }
        self.next_seq += 1;
        Ok(())
    }

    /// The change counts even if it cannot be written: the next file of the log begins with it.
    fn note(&mut self, record: NameRecord) -> io::Result<()> {
        let entry = Entry::Name(record);
        let appended = self.append(When::Now, &entry);
        if let Entry::Name(record) = entry {
            self.names.apply(record);
        }
        appended
    }
}

fn by_id(dir: &Arc<Dir>) -> (DirId, Weak<Dir>) {
    (dir.id(), Arc::downgrade(dir))
}

impl Entry<'_> {
    fn file(&self) -> Option<FileId> {
        match self {
            Entry::Put(id, _) | Entry::Change(id, _) | Entry::Drop(id) => Some(*id),
            _ => None,
        }
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
mod tests;
