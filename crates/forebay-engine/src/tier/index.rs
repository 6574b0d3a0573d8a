//! The index: what is cached, in what state, durable in the tier.
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
//! - I3: after [`Index::sync`] everything appended before is durable.
//! - I4: a directory that a record names is in the store, or in a file of the log that is read after
//!   it; and each file of the log says where the directories are that it names.
//!
//! Locks: `compact` is held while files' locks are waited for, `log` never (docs/ARCHITECTURE.md).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Weak};

use forebay_backing::Timestamp;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::core::id::FileId;
use crate::core::journal::{Journal, NameOp, NameRecord, Step, Told};
use crate::core::paths::{Dir, DirId, Grown, Placed, Places, Tree, Way};
use crate::core::state::{Age, Boot, Change, MaybeSize, Record};
use crate::failpoint;
use crate::lock::{Mutex, MutexGuard, Rank};
use crate::tier::dir::Names;
use crate::tier::log;
use crate::tier::log::{Entry, LogFile};
use crate::tier::media::{Media, MediaFile, Open};
use crate::tier::witness::{Since, Witness};

const FILES: TableDefinition<u64, &[u8]> = TableDefinition::new("files");

const DIRS: TableDefinition<u64, &[u8]> = TableDefinition::new("dirs");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

const BOOT: TableDefinition<&str, &str> = TableDefinition::new("boot");

pub const STORE_NAME: &str = "index.redb";

/// redb's page cache. The index is read once at start and written at compactions, so little is enough.
const STORE_CACHE_BYTES: usize = 2 << 20;

/// Compact once the log is this long: bounds the replay at start to well under a second.
pub const COMPACT_BYTES: u64 = 8 << 20;

pub struct Index {
    media: Arc<dyn Media>,
    db: Database,
    tree: Arc<Tree>,
    log: Mutex<Log>,
    compact: Mutex<()>,
    synced_seq: Arc<AtomicU64>,
    /// The position after the last record by which bytes of a file became clean.
    settled_seq: AtomicU64,
    /// Bytes in the log since the last compaction, readable without the lock.
    log_bytes: AtomicU64,
}

struct Log {
    file: LogFile,
    next_seq: u64,
    /// Everything before this position is durable.
    synced_seq: Arc<AtomicU64>,
    touched: Touched,
    names: Journal,
    sealed: Vec<String>,
    /// Rises with each file of the log, and when it may not have said where directories are.
    tells: u64,
}

/// What the store has to be told of at the next compaction.
#[derive(Default)]
struct Touched {
    files: HashSet<FileId>,
    /// Directories that have changed their places.
    moved: HashMap<DirId, Weak<Dir>>,
    /// Directories that are no more.
    ended: Vec<DirId>,
}

impl Touched {
    fn extend(&mut self, more: Touched) {
        self.files.extend(more.files);
        self.moved.extend(more.moved);
        self.ended.extend(more.ended);
    }
}

/// What a compaction puts into the store.
struct Compacted {
    files: Vec<(FileId, Option<Record>)>,
    dirs: BTreeMap<DirId, Arc<Dir>>,
    ended: Vec<DirId>,
    next_dir: u64,
}

impl Compacted {
    /// The rows of files are there with those of the directories that their names are in.
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

/// The index as it was found at start.
#[derive(Debug, Default)]
pub struct Loaded {
    pub files: BTreeMap<FileId, Record>,
    pub names: Journal,
    /// Changes of names that were under way in a tier of format 2.
    pub intents: HashSet<u64>,
    pub next_id: u64,
    /// Of the last use of the tier.
    pub witness: Witness,
    pub clean_shutdown: bool,
    /// What could not be read, in words.
    pub problems: Vec<String>,
    /// Where records of the log are missing that were there, in words: nobody knows what they said.
    pub damage: Vec<String>,
    /// Files whose whole state was recorded after the last damage.
    sure: HashSet<FileId>,
    /// Somebody has used the tier: there must be a log.
    used: bool,
    next_seq: u64,
    applied_seq: u64,
    logs: Vec<String>,
    touched: HashSet<FileId>,
    places: Places,
    /// Directories that have changed their places since the last compaction.
    moved: Vec<Arc<Dir>>,
    /// The directories that names of the files are in.
    pub tree: Arc<Tree>,
}

impl Loaded {
    /// What has happened since the tier was last used, if things are `now` so.
    pub fn since(&self, now: &Witness) -> Since {
        self.witness.since(now)
    }

    /// Whether records of this file may be missing.
    pub fn is_in_doubt(&self, id: FileId) -> bool {
        !self.damage.is_empty() && !self.sure.contains(&id)
    }

    /// Of a tier of an older format: whether its names are known.
    pub fn old_names(&self, now: &Witness) -> Names {
        let lost = self.boot(now) == Boot::Lost
            && self.files.values().any(|file| file.may_be_dirty(Boot::Lost));
        match lost || !self.intents.is_empty() {
            true => Names::Unsettled,
            false => Names::Settled,
        }
    }

    /// What of it may be trusted then.
    pub fn boot(&self, now: &Witness) -> Boot {
        self.since(now).boot(self.clean_shutdown)
    }
}

impl Index {
    /// Reads the index and opens it for appending. Nothing is changed until [`Index::begin`].
    ///
    /// # Errors
    ///
    /// If the log is damaged, too: what it says must not be acted on.
    pub fn open(media: Arc<dyn Media>, now: &Witness) -> io::Result<(Index, Loaded)> {
        media.make_dir("log")?;
        let file = media.open(STORE_NAME, Open::Keep)?;
        let db = Database::builder()
            .set_cache_size(STORE_CACHE_BYTES)
            .create_with_backend(Backend(file))
            .map_err(other)?;
        media.sync_dir("")?; // A store whose name is lost with the power is lost itself.
        let mut loaded = Loaded::default();
        load_store(&db, &mut loaded)?;
        loaded.replay_logs(&*media, now)?;
        if let Some(damage) = loaded.damage.first() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, damage.clone()));
        }
        // From here on records say that those before them are durable (T2).
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
                files: loaded.touched.clone(),
                moved: loaded.moved.iter().map(by_id).collect(),
                ended: Vec::new(),
            },
            names: loaded.names.clone(),
            sealed: loaded.logs.clone(),
            tells: 1,
        };
        let index = Index {
            media,
            db,
            tree: loaded.tree.clone(),
            log: Mutex::new(Rank::Log, log),
            compact: Mutex::new(Rank::Compaction, ()),
            synced_seq,
            settled_seq: AtomicU64::new(0),
            log_bytes: AtomicU64::new(0),
        };
        Ok((index, loaded))
    }

    /// Records, durably, who can witness the use of the tier, and that it is in use. `changed` are the
    /// files that recovery changed, `state_of` tells what every file is now; the logs that led
    /// here are retired.
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

    /// Marks a clean shutdown: everything in the tier is durable and may be trusted. Unless records
    /// were made after `seq`, when the tier was synced: then it is not marked.
    pub fn end(
        &self,
        witness: &Witness,
        next_id: u64,
        seq: u64,
        state_of: &dyn Fn(FileId) -> Option<Record>,
    ) -> io::Result<()> {
        self.compact_as(state_of, Some((witness, Some(seq))), next_id)
    }

    /// Appends a change. Written, not synced: it survives us, not the machine. Returns the position
    /// after it, for [`Index::sync_to`].
    pub fn append(&self, entry: &Entry<'_>) -> io::Result<u64> {
        let mut log = self.lock();
        log.append(entry)?;
        self.log_bytes.store(log.file.len(), Relaxed);
        if let Entry::Change(_, change) = entry
            && change.cleans()
        {
            self.settled_seq.store(log.next_seq, Release);
        }
        Ok(log.next_seq)
    }

    /// Whether nothing that became clean can come back as it was, after a loss of power.
    pub fn has_settled(&self) -> bool {
        self.is_synced(self.settled_seq.load(Acquire))
    }

    /// Announces a change of names, or takes note of one; the number goes into [`Index::conclude`].
    pub fn name(&self, op: NameOp, told: Told, at: Option<Timestamp>) -> io::Result<u64> {
        let mut log = self.lock();
        let step = log.names.step(op, told, at);
        let n = step.n;
        if let Err(error) = log.note(NameRecord::Step(step)) {
            // Nobody asks the store for it.
            if told == Told::Announced {
                log.names.apply(NameRecord::Failed { n });
            }
            return Err(error);
        }
        self.log_bytes.store(log.file.len(), Relaxed);
        Ok(n)
    }

    /// The store has made an announced change; `at` is a moment of its clock since. Directories are
    /// where they have gone by `way`. Returns the log's position after the record.
    pub fn conclude(&self, n: u64, at: Option<Timestamp>, way: Option<Way<'_>>) -> io::Result<u64> {
        let mut log = self.lock();
        let plan = way.map(|way| self.tree.plan(way)).unwrap_or_default();
        let places = plan.places(log.tells);
        let noted = log.note(NameRecord::Done { n, at, places });
        match noted {
            Ok(()) => plan.told(log.tells),
            // Each record of a file tells it again from here on.
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

    /// An announced change did not happen. Durable, if the announcement may be: whoever is told that
    /// it failed must not see it made again.
    pub fn failed(&self, n: u64) -> io::Result<()> {
        self.lock().note(NameRecord::Failed { n })?;
        self.sync()
    }

    /// The journal of names is this from here on.
    pub fn set_names(&self, steps: Vec<Step>) -> io::Result<()> {
        self.lock().note(NameRecord::All(steps))
    }

    /// Asks the journal of names.
    pub fn names<T>(&self, ask: impl FnOnce(&Journal) -> T) -> T {
        ask(&self.lock().names)
    }

    /// These changes of names are durable on the store.
    pub fn retire(&self, ns: Vec<u64>) -> io::Result<()> {
        match ns.is_empty() {
            true => Ok(()),
            false => self.lock().note(NameRecord::Retired { ns }),
        }
    }

    /// Makes everything appended so far durable (I3). One sync serves all who wait for it.
    pub fn sync(&self) -> io::Result<()> {
        let (seq, file) = {
            let log = self.lock();
            (log.next_seq, log.file.file())
        };
        if self.synced_seq.load(Relaxed) >= seq {
            return Ok(());
        }
        if !failpoint::skips_sync("log") {
            file.sync_data()?;
        }
        self.synced_seq.fetch_max(seq, Relaxed);
        Ok(())
    }

    /// The position after the last record appended.
    pub fn seq(&self) -> u64 {
        self.lock().next_seq
    }

    /// Makes everything before `seq` durable.
    pub fn sync_to(&self, seq: u64) -> io::Result<()> {
        if self.is_synced(seq) { Ok(()) } else { self.sync() }
    }

    pub fn is_synced(&self, seq: u64) -> bool {
        self.synced_seq.load(Relaxed) >= seq
    }

    pub fn wants_compaction(&self) -> bool {
        self.log_bytes.load(Relaxed) >= COMPACT_BYTES
    }

    /// Moves what the log says into the store. `state_of` gives a file's current state, `None`
    /// if it is gone.
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
        let _one_at_a_time = self.compact.lock();
        let (touched, sealed, seq) = self.rotate()?;
        let compacted = Compacted::of(&touched, &self.tree, state_of);
        // A state may be newer than the rotation. Its records must be durable before it is, or a
        // power loss would replay the older ones among them on top of it.
        let written = self.sync().and_then(|()| self.commit(&compacted, session, next_id, seq));
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

    /// Starts a new log file and hands out what the old ones cover. The old file is synced, so
    /// that a sync of the new one means all (I3): before the log's lock is taken, and under it what was
    /// appended since.
    fn rotate(&self) -> io::Result<(Touched, Vec<String>, u64)> {
        self.sync()?;
        let mut log = self.lock();
        let seq = log.next_seq;
        if !self.is_synced(seq) {
            log.file.file().sync_data()?;
        }
        if log.file.len() > 0 {
            let fresh = LogFile::create(&*self.media, seq)?;
            let old = std::mem::replace(&mut log.file, fresh);
            log.sealed.push(old.name);
            log.tells += 1;
        }
        let ended = self.tree.take_ended();
        log.touched.ended.extend(ended);
        if !log.names.is_empty() {
            let all = Entry::Name(NameRecord::All(log.names.steps()));
            log.append(&all)?;
        }
        self.log_bytes.store(log.file.len(), Relaxed);
        Ok((std::mem::take(&mut log.touched), std::mem::take(&mut log.sealed), seq))
    }

    fn commit(
        &self,
        compacted: &Compacted,
        session: Option<(&Witness, Option<u64>)>,
        next_id: u64,
        seq: u64,
    ) -> io::Result<()> {
        let txn = self.db.begin_write().map_err(other)?;
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

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }
}

impl Log {
    fn append(&mut self, entry: &Entry) -> io::Result<()> {
        if let Entry::Put(_, record) = entry {
            self.tell_dirs(record)?;
        }
        self.write(entry)?;
        if let Some(id) = entry.file() {
            self.touched.files.insert(id);
        }
        Ok(())
    }

    /// Each file of the log says by itself where the names in it are.
    fn tell_dirs(&mut self, record: &Record) -> io::Result<()> {
        let dirs: Vec<Arc<Dir>> =
            record.paths.dirs().flat_map(|dir| dir.untold(self.tells)).collect();
        if dirs.is_empty() {
            return Ok(());
        }
        self.write(&Entry::Dirs(dirs.iter().filter_map(|dir| dir.placed()).collect()))?;
        dirs.iter().for_each(|dir| dir.told(self.tells));
        Ok(())
    }

    fn write(&mut self, entry: &Entry) -> io::Result<()> {
        self.file.append(self.next_seq, self.synced_seq.load(Relaxed), entry)?;
        self.next_seq += 1;
        Ok(())
    }

    /// Known even where it cannot be recorded: the next file of the log begins with it.
    fn note(&mut self, record: NameRecord) -> io::Result<()> {
        let entry = Entry::Name(record);
        let appended = self.append(&entry);
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
            Entry::Put(id, _)
            | Entry::Mark { id, .. }
            | Entry::Resize { id, .. }
            | Entry::Synced { id, .. }
            | Entry::Kept { id, .. }
            | Entry::Change(id, _)
            | Entry::Drop(id) => Some(*id),
            Entry::Intent { .. }
            | Entry::Done { .. }
            | Entry::Failed { .. }
            | Entry::Name(_)
            | Entry::Dirs(_) => None,
        }
    }
}

impl Loaded {
    fn replay_logs(&mut self, media: &dyn Media, now: &Witness) -> io::Result<()> {
        let read = self.replay_each_log(media, now);
        self.find_dirs();
        // Who was still served after the mark was set made records behind it.
        self.clean_shutdown &= self.next_seq == self.applied_seq;
        // A log without one whole record is started afresh under the same name.
        let fresh = log::name(self.next_seq);
        self.logs.retain(|name| *name != fresh);
        read
    }

    fn replay_each_log(&mut self, media: &dyn Media, now: &Witness) -> io::Result<()> {
        let mut names = media.list("log").unwrap_or_default();
        names.sort();
        let mut expected = self.used;
        for name in names {
            let full = format!("log/{name}");
            let first = u64::from_str_radix(&name, 16).unwrap_or(0);
            self.logs.push(full.clone());
            if first < self.applied_seq {
                continue; // Covered by the store; a crash kept it from being removed (I2).
            }
            if first != self.next_seq {
                self.gap(format!("records {:x}..{first:x} are missing", self.next_seq));
                self.next_seq = first;
            }
            expected = false;
            self.replay(media, &full, now)?;
        }
        if expected {
            self.gap(format!("the file {} is missing", log::name(self.applied_seq)));
        }
        Ok(())
    }

    /// Finds the directories of all names.
    fn find_dirs(&mut self) {
        let mut grown = Grown::of(std::mem::take(&mut self.places));
        self.files.values_mut().for_each(|record| record.paths.settle(&mut grown));
        self.tree = grown.tree.clone();
        self.moved = grown.finish();
    }

    /// Replays one file. Behind damage, what can be read is applied as well: who saves a damaged
    /// tier has more of it, and nobody else acts on it.
    fn replay(&mut self, media: &dyn Media, name: &str, now: &Witness) -> io::Result<()> {
        let file = media.open(name, Open::Existing)?;
        let mut next_seq = self.next_seq;
        let tail = log::read(&*file, &mut next_seq, |entry| self.apply(entry))?;
        self.next_seq = next_seq;
        // What was recorded behind the mark of a clean shutdown nobody has synced.
        if tail.is_damage(self.since(now).boot(false)) {
            self.gap(format!("{name} is damaged at record {next_seq:x}"));
            self.next_seq = tail.next_seq();
            tail.sound.into_iter().for_each(|found| self.apply(found.entry));
        }
        Ok(())
    }

    /// Records are missing here: what was known so far may have changed.
    fn gap(&mut self, what: String) {
        self.damage.push(format!("the log: {what}"));
        self.sure.clear();
    }

    fn apply(&mut self, entry: Entry<'_>) {
        self.touched.extend(entry.file());
        match entry {
            Entry::Put(id, record) => {
                self.next_id = self.next_id.max(id.0 + 1);
                self.sure.insert(id);
                self.files.insert(id, *record);
            }
            Entry::Drop(id) => drop(self.files.remove(&id)),
            Entry::Change(id, change) => self.change(id, &change),
            Entry::Mark { id, run, since } => {
                let age = self.age_of(id, since);
                self.change(id, &Change::Marked { marks: (&[run]).into(), age });
            }
            Entry::Resize { id, size, mtime, now_ms } => {
                let age = self.age_of(id, now_ms);
                self.change(id, &Change::Resized { size, mtime, age });
            }
            Entry::Synced { id, size, ranges } => {
                self.change(id, &Change::Synced { size, ranges: ranges.into() });
            }
            Entry::Kept { id, ranges } => self.change(id, &Change::Kept { ranges: ranges.into() }),
            Entry::Name(record) => {
                if let NameRecord::Done { places, .. } = &record {
                    places.iter().cloned().for_each(|placed| self.places.log_says(placed));
                }
                self.names.apply(record);
            }
            Entry::Dirs(places) => {
                places.into_iter().for_each(|placed| self.places.log_says(placed));
            }
            Entry::Intent { n, .. } => drop(self.intents.insert(n)),
            Entry::Done { n } | Entry::Failed { n } => drop(self.intents.remove(&n)),
        }
    }

    /// Format 2 told the time alone.
    fn age_of(&self, id: FileId, since: u64) -> Age {
        let unknown = Age { since, durable: MaybeSize::NONE };
        self.files.get(&id).map_or(unknown, |file| file.age_at(since))
    }

    fn change(&mut self, id: FileId, change: &Change<'_>) {
        match self.files.get_mut(&id) {
            Some(record) => record.apply(change),
            None => self.problems.push(format!("log record for unknown file {:x}", id.0)),
        }
    }
}

/// redb on a file of the tier.
struct Backend(Arc<dyn MediaFile>);

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backend")
    }
}

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.stat()?.len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.0.read_at(out, offset)? {
            n if n == out.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(data, offset)
    }
}

/// redb on a copy in memory, so that a check changes nothing on the medium.
#[derive(Debug)]
struct Overlay(Mutex<Vec<u8>>);

impl Overlay {
    fn over(file: Arc<dyn MediaFile>) -> io::Result<Overlay> {
        let mut bytes = vec![0; file.stat()?.len as usize];
        let n = file.read_at(&mut bytes, 0)?;
        bytes.truncate(n);
        Ok(Overlay(Mutex::new(Rank::Log, bytes)))
    }
}

impl redb::StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock();
        let at = offset as usize;
        let from = bytes.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock();
        let at = offset as usize;
        bytes[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
}

/// Reads the index without changing anything, for `check`.
pub fn load_read_only(media: &dyn Media, now: &Witness) -> io::Result<Loaded> {
    let mut loaded = Loaded::default();
    let file = media.open(STORE_NAME, Open::Existing)?;
    let db = Database::builder()
        .set_cache_size(STORE_CACHE_BYTES)
        .create_with_backend(Overlay::over(file)?)
        .map_err(other)?;
    load_store(&db, &mut loaded)?;
    loaded.replay_logs(media, now)?;
    Ok(loaded)
}

/// What the logs alone say, for when the store cannot be read: the files that changed since the
/// last compaction.
pub fn load_logs(media: &dyn Media, now: &Witness) -> Loaded {
    let mut loaded = Loaded::default();
    // Who used it last nobody knows: what was never synced is not believed.
    loaded.witness.boot = "unknown".into();
    let first = media.list("log").unwrap_or_default().into_iter().min();
    loaded.next_seq = first.and_then(|name| u64::from_str_radix(&name, 16).ok()).unwrap_or(0);
    let read = loaded.replay_logs(media, now);
    // Every change of a file from before the first log is told as a problem; the caller knows.
    loaded.problems.clear();
    loaded.problems.extend(read.err().map(|e| format!("the log cannot be read to its end: {e}")));
    loaded
}

fn load_store(db: &Database, loaded: &mut Loaded) -> io::Result<()> {
    let txn = db.begin_read().map_err(other)?;
    let Ok(meta) = txn.open_table(META) else {
        return Ok(()); // A new tier.
    };
    let number = |key: &str| -> io::Result<u64> {
        Ok(meta.get(key).map_err(other)?.map_or(0, |v| v.value()))
    };
    loaded.used = true;
    loaded.applied_seq = number("applied_seq")?;
    loaded.next_seq = loaded.applied_seq;
    loaded.next_id = number("next_id")?;
    loaded.clean_shutdown = number("clean_shutdown")? == 1;
    let boot = txn.open_table(BOOT).map_err(other)?;
    let text = |key: &str| -> io::Result<Option<String>> {
        Ok(boot.get(key).map_err(other)?.map(|v| v.value().into()))
    };
    loaded.witness = Witness { boot: text("id")?.unwrap_or_default(), mount: text("mount")? };
    let files = txn.open_table(FILES).map_err(other)?;
    loaded.places.next = number("next_dir")?;
    load_dirs(&txn, loaded)?;
    for row in files.iter().map_err(other)? {
        let (id, bytes) = row.map_err(other)?;
        // The number above was read before the files were: one of them may be newer.
        loaded.next_id = loaded.next_id.max(id.value() + 1);
        match postcard::from_bytes(bytes.value()) {
            Ok(state) => drop(loaded.files.insert(FileId(id.value()), state)),
            Err(e) => loaded.problems.push(format!("index record {:x}: {e}", id.value())),
        }
    }
    Ok(())
}

/// A tier of an older format has none.
fn load_dirs(txn: &redb::ReadTransaction, loaded: &mut Loaded) -> io::Result<()> {
    let Ok(dirs) = txn.open_table(DIRS) else { return Ok(()) };
    for row in dirs.iter().map_err(other)? {
        let (id, bytes) = row.map_err(other)?;
        match postcard::from_bytes::<Placed>(bytes.value()) {
            Ok(placed) => loaded.places.store_says(placed),
            Err(e) => loaded.problems.push(format!("record of directory {:x}: {e}", id.value())),
        }
    }
    Ok(())
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
mod tests;
