//! The backing store's recent answers about names, so that the store is asked once for an answer that is
//! wanted again within the time for which names and attributes are believed (S1).
//!
//! An answer is as old as its question, and the kernel is told to believe it for the rest of that time: no
//! answer is believed longer because it was remembered here.
//!
//! Invariants:
//! - A1: an answer to a question from before the end of a change by this mount is not used for what was
//!   changed: neither for the name, nor for its directory, nor for the file by its other names.
//! - A2: a directory's list has the names that were in it at one moment, with this mount's changes since.
//! - A3: the memory is bounded; an answer that was dropped is asked for again.

mod walk;
mod xattrs;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_backing::{Attr, DirEntry, FileKey, FileKind, Timestamp, Version};
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use forebay_engine::DatedAttr;

use walk::Walk;
pub use walk::{Ahead, Wanted};
use xattrs::{Absences, Xattrs};

/// The most names that are remembered, of about 400 bytes each.
const NAMES_MAX: usize = 1 << 16;

/// The most entries of lists, of about 100 bytes each.
const LISTED_MAX: usize = 1 << 17;

/// Counters of changes by a file's key; files share them.
const KEYS: usize = 256;

/// A directory that has changed less than this ago may change again without its times moving.
const SETTLED: Duration = Duration::from_secs(2);

/// How long a directory keeps the times that the daemon reckons after a change in it.
const RECKONED: Duration = Duration::from_secs(1);

/// How long the store's clock is reckoned from this machine's after it was read.
const CLOCK: Duration = Duration::from_secs(60);

/// A moment in the order of questions and changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(u64);

/// The remembered answer about a name.
#[derive(Debug, Clone, Copy)]
pub enum Recalled {
    There(DatedAttr),
    /// Nothing has the name, as of this moment.
    Nowhere(Instant),
    Unknown,
}

/// The effect on a name of a change by this mount.
#[derive(Debug, Clone, Copy)]
pub enum Became {
    /// A new object, with the attributes that the store told.
    Made(DatedAttr),
    /// Another name of an object.
    Named(DatedAttr),
    Gone,
    /// A directory is gone.
    DirGone,
    /// An object that had another name before, and is no directory.
    Moved(FileKind, u64),
}

pub struct Answers {
    memory: Mutex<Memory>,
    came: Condvar,
}

/// How long names and attributes are believed.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub entry: Duration,
    pub attr: Duration,
}

struct Memory {
    times: Times,
    now: Moment,
    /// Answers to questions from before this are not remembered.
    floor: Moment,
    names: HashMap<PathBuf, Name>,
    dirs: HashMap<PathBuf, Dir>,
    listed: usize,
    keys: [Moment; KEYS],
    /// Whether questions take so long that a directory's times are reckoned rather than asked for.
    reckons: bool,
    /// The store's clock, at a moment of this machine's clock.
    clock: Option<(Timestamp, Instant)>,
    absences: Absences,
    swept: Instant,
}

struct Name {
    floor: Moment,
    /// Whether a question is under way.
    is_asked: bool,
    said: Option<Said>,
    xattrs: Option<Xattrs>,
    since: Instant,
}

#[derive(Clone, Copy)]
enum Said {
    /// With the moment of the question.
    There(DatedAttr, Moment),
    Nowhere(Instant),
}

struct Dir {
    floor: Moment,
    list: Option<List>,
    /// When this mount last changed the directory, if the store's clock was not known then.
    moved: Option<Instant>,
    /// Whether its times are reckoned since this mount changed it.
    is_reckoned: bool,
    walk: Walk,
    /// The names in it that were last answered, maybe without their extended attributes.
    bare: VecDeque<OsString>,
    /// The moment of a question whose answer was that files in it have no access lists.
    without_acls: Option<(Moment, Instant)>,
    since: Instant,
}

struct List {
    at: Instant,
    names: BTreeMap<OsString, (FileKind, u64)>,
    /// The directory's own times when it was listed: while it has them no name came or went.
    witness: Option<(Timestamp, Timestamp)>,
}

/// A change by this mount, from before the store is asked until its answer is noted.
#[must_use]
pub struct Change<'a> {
    answers: &'a Answers,
    /// Each with the effect of the change; `None` if that is not known.
    names: Vec<(PathBuf, Option<Became>)>,
    keys: Vec<FileKey>,
    /// A change of names moves their directories' times; one of attributes does not.
    is_of_names: bool,
}

impl Answers {
    pub fn new(times: Times) -> Answers {
        let now = Instant::now();
        let memory = Memory {
            times,
            now: Moment(1),
            floor: Moment(0),
            names: HashMap::new(),
            dirs: HashMap::new(),
            listed: 0,
            keys: [Moment(0); KEYS],
            reckons: false,
            clock: None,
            absences: Absences::default(),
            swept: now,
        };
        Answers { memory: Mutex::new(Rank::Answers, memory), came: Condvar::new() }
    }

    #[track_caller]
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }

    /// Whether a directory's times are to be reckoned after a change in it.
    pub fn reckon(&self, reckons: bool) {
        self.memory().reckons = reckons;
    }

    /// To be called before a question whose answer is to be remembered.
    pub fn moment(&self) -> Moment {
        self.memory().tick()
    }

    /// The remembered answer about a name, if not too old. Waits for a question under way, up to `patience`.
    pub fn recall(&self, path: &Path, patience: Duration) -> Recalled {
        let mut memory = self.memory();
        let until = Instant::now() + patience;
        while memory.names.get(path).is_some_and(|name| name.is_asked) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Recalled::Unknown;
            }
            memory = self.came.wait_timeout(memory, left).0;
        }
        memory.recall(path)
    }

    /// Notes the store's answer to a question about a name, which was asked at `asked`.
    pub fn hear(&self, path: &Path, asked: Moment, said: Recalled) {
        let mut memory = self.memory();
        memory.hear(path, asked, said);
        memory.sweep();
        drop(memory);
        self.came.notify_all();
    }

    /// The entries of a directory, if it was listed not too long ago.
    pub fn list(&self, dir: &Path) -> Option<Vec<DirEntry>> {
        let memory = self.memory();
        let list = memory.list(dir)?;
        let entry = |(name, (kind, ino)): (&OsString, &(FileKind, u64))| DirEntry {
            name: name.clone(),
            kind: *kind,
            ino: *ino,
        };
        Some(list.names.iter().map(entry).collect())
    }

    /// The kind and inode number of a name, by the last answer about it.
    pub fn kind(&self, path: &Path) -> Option<(FileKind, u64)> {
        let memory = self.memory();
        match memory.names.get(path)?.said? {
            Said::There(told, _) => Some((told.attr().kind, told.attr().key.ino)),
            Said::Nowhere(_) => None,
        }
    }

    /// Notes the store's list of a directory.
    pub fn hear_list(&self, dir: &Path, asked: Moment, at: Instant, entries: &[DirEntry]) {
        let mut memory = self.memory();
        memory.hear_list(dir, asked, at, entries);
        memory.sweep();
        drop(memory);
        self.came.notify_all();
    }

    /// To be called before names of these files are changed on the store.
    pub fn changing(&self, names: &[&Path], keys: &[FileKey]) -> Change<'_> {
        self.begin(names, keys, true)
    }

    /// To be called before attributes of a file are changed on the store.
    pub fn altering(&self, path: Option<&Path>, key: Option<FileKey>) -> Change<'_> {
        self.begin(path.as_slice(), key.as_slice(), false)
    }

    fn begin(&self, names: &[&Path], keys: &[FileKey], is_of_names: bool) -> Change<'_> {
        let names = names.iter().map(|name| (name.to_path_buf(), None)).collect();
        let change = Change { answers: self, names, keys: keys.to_vec(), is_of_names };
        change.floor(&mut self.memory());
        change
    }

    /// The kernel has a wrong belief in a name: drops the answer, and the store is asked.
    pub fn doubt(&self, path: &Path) {
        let mut memory = self.memory();
        let now = memory.tick();
        memory.forget_name(path, now);
        if let Some(dir) = path.parent() {
            memory.drop_list(dir, now);
        }
    }

    /// Drops the answer about a name if the store has told another size of the file since. Returns whether it has.
    pub fn outgrown(&self, path: &Path, found: &Version) -> bool {
        let mut memory = self.memory();
        let Recalled::There(told) = memory.recall(path) else { return false };
        let differs = told.attr().key == found.key && told.attr().size != found.size;
        if differs {
            let now = memory.tick();
            memory.forget_name(path, now);
        }
        differs
    }

    /// Drops the answers about a file that another member has changed, or may have changed.
    pub fn doubt_file(&self, key: FileKey) {
        let mut memory = self.memory();
        memory.keys[key.ino as usize % KEYS] = memory.tick();
    }

    /// Drops the answers about a directory and all that is below: another directory may have its name.
    pub fn forget_below(&self, dir: &Path) {
        let mut memory = self.memory();
        let memory = &mut *memory;
        // Answers to questions by the old names are not remembered.
        memory.floor = memory.tick();
        memory.names.retain(|path, name| name.is_asked || !path.starts_with(dir));
        for name in memory.names.values_mut().filter(|name| name.is_asked) {
            (name.said, name.xattrs) = (None, None);
        }
        let listed = &mut memory.listed;
        memory.dirs.retain(|path, known| {
            let stays = !path.starts_with(dir);
            if !stays {
                *listed -= known.list.as_ref().map_or(0, |list| list.names.len());
            }
            stays
        });
    }
}

impl Change<'_> {
    /// Notes the effect on one of the names, after the store has made the change.
    pub fn became(&mut self, path: &Path, became: Became) {
        if let Some(name) = self.names.iter_mut().find(|(name, _)| name == path) {
            name.1 = Some(became);
        }
    }

    /// From here on answers to earlier questions do not count.
    fn floor(&self, memory: &mut Memory) {
        let now = memory.tick();
        for key in &self.keys {
            memory.keys[key.ino as usize % KEYS] = now;
        }
        for (path, _) in &self.names {
            memory.forget_name(path, now);
            if let Some(dir) = path.parent().filter(|_| self.is_of_names) {
                memory.dir(dir).floor = now;
                memory.name(dir).floor = now;
            }
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut memory = self.answers.memory();
        self.floor(&mut memory);
        if !self.is_of_names {
            return;
        }
        for (path, became) in &self.names {
            memory.follow(path, *became);
        }
        memory.sweep();
    }
}

impl Memory {
    fn tick(&mut self) -> Moment {
        self.now = Moment(self.now.0 + 1);
        self.now
    }

    fn name(&mut self, path: &Path) -> &mut Name {
        let new = || Name {
            floor: Moment(0),
            is_asked: false,
            said: None,
            xattrs: None,
            since: Instant::now(),
        };
        if !self.names.contains_key(path) {
            self.names.insert(path.to_path_buf(), new());
        }
        self.names.get_mut(path).expect("entered above")
    }

    fn dir(&mut self, path: &Path) -> &mut Dir {
        if !self.dirs.contains_key(path) {
            let new = Dir {
                floor: Moment(0),
                list: None,
                moved: None,
                is_reckoned: false,
                walk: Walk::default(),
                bare: VecDeque::new(),
                without_acls: None,
                since: Instant::now(),
            };
            self.dirs.insert(path.to_path_buf(), new);
        }
        self.dirs.get_mut(path).expect("entered above")
    }

    fn forget_name(&mut self, path: &Path, now: Moment) {
        let name = self.name(path);
        (name.floor, name.said, name.xattrs) = (now, None, None);
    }

    fn drop_list(&mut self, dir: &Path, now: Moment) {
        let Some(known) = self.dirs.get_mut(dir) else { return };
        known.floor = now;
        let had = known.list.take();
        self.listed -= had.map_or(0, |list| list.names.len());
    }

    fn recall(&self, path: &Path) -> Recalled {
        let times = self.times;
        let said = self.names.get(path).and_then(|name| name.said);
        match said {
            Some(Said::There(told, asked)) => {
                let changed = self.keys[told.attr().key.ino as usize % KEYS];
                let is_young = told.at().elapsed() < times.entry.min(times.attr);
                if changed < asked && is_young {
                    return Recalled::There(told);
                }
            }
            Some(Said::Nowhere(at)) if at.elapsed() < times.entry => return Recalled::Nowhere(at),
            _ => {}
        }
        let listed = path.parent().and_then(|dir| self.list(dir));
        match (listed, path.file_name()) {
            // A name that no list can have is for the store to refuse.
            (Some(list), Some(name)) if name.len() <= 255 && !list.names.contains_key(name) => {
                Recalled::Nowhere(list.at)
            }
            _ => Recalled::Unknown,
        }
    }

    fn list(&self, dir: &Path) -> Option<&List> {
        let list = self.dirs.get(dir)?.list.as_ref()?;
        (list.at.elapsed() < self.times.entry).then_some(list)
    }

    fn hear(&mut self, path: &Path, asked: Moment, said: Recalled) {
        let floor = self.floor;
        let name = self.name(path);
        name.is_asked = false;
        if asked < name.floor || asked < floor {
            return;
        }
        name.since = Instant::now();
        name.said = match said {
            Recalled::There(told) => Some(Said::There(told, asked)),
            Recalled::Nowhere(at) => Some(Said::Nowhere(at)),
            Recalled::Unknown => None,
        };
        if let Recalled::There(told) = said {
            self.witness(path, &told);
            self.note_bare(path);
        }
    }

    /// Learns of a directory's list, and of the store's clock, from the directory's own times.
    fn witness(&mut self, path: &Path, told: &DatedAttr) {
        let attr = told.attr();
        if attr.kind != FileKind::Dir {
            return;
        }
        let Some(dir) = self.dirs.get_mut(path) else { return };
        dir.is_reckoned = false;
        if let Some(list) = &mut dir.list
            && list.witness == Some((attr.mtime, attr.ctime))
        {
            list.at = list.at.max(told.at());
        }
        if let Some(moved) = dir.moved.take() {
            self.clock = Some((attr.mtime, moved));
        }
    }

    fn hear_list(&mut self, dir: &Path, asked: Moment, at: Instant, entries: &[DirEntry]) {
        let floor = self.floor;
        let own = match self.names.get(dir).and_then(|name| name.said) {
            Some(Said::There(told, _)) => Some(*told.attr()),
            _ => None,
        };
        let known = self.dir(dir);
        known.walk.is_asked = false;
        if asked < known.floor || asked < floor {
            return;
        }
        let witness = own.filter(|_| !known.is_reckoned).filter(is_settled);
        let names = entries.iter().map(|entry| (entry.name.clone(), (entry.kind, entry.ino)));
        let list = List {
            at,
            names: names.collect(),
            witness: witness.map(|attr| (attr.mtime, attr.ctime)),
        };
        let count = list.names.len();
        known.since = Instant::now();
        let had = known.list.replace(list);
        self.listed += count;
        self.listed -= had.map_or(0, |list| list.names.len());
    }

    /// Applies the effect of a change by this mount.
    fn follow(&mut self, path: &Path, became: Option<Became>) {
        let now = self.tick();
        let (dir, name) = match (path.parent(), path.file_name()) {
            (Some(dir), Some(name)) => (dir, name),
            _ => return,
        };
        let Some(became) = became else {
            self.drop_list(dir, now);
            self.forget_name(dir, now);
            return;
        };
        let said = match became {
            Became::Made(told) | Became::Named(told) => Some(Said::There(told, now)),
            Became::Gone | Became::DirGone => Some(Said::Nowhere(Instant::now())),
            Became::Moved(..) => None,
        };
        let known = self.name(path);
        (known.said, known.since) = (said, Instant::now());
        let entry = match became {
            Became::Made(told) | Became::Named(told) => {
                Some((told.attr().kind, told.attr().key.ino))
            }
            Became::Moved(kind, ino) => Some((kind, ino)),
            Became::Gone | Became::DirGone => None,
        };
        self.note_listed(dir, name, entry);
        // Each directory has a link to the one above.
        let links = match became {
            Became::Made(told) if told.attr().kind == FileKind::Dir => 1,
            Became::DirGone => -1,
            _ => 0,
        };
        self.moved(dir, became, links);
        if let Became::Made(told) = became
            && told.attr().kind == FileKind::Dir
        {
            // The new directory is empty.
            self.hear_list(path, now, told.at(), &[]);
        }
    }

    /// Puts an entry into a directory's list, or takes it out.
    fn note_listed(&mut self, dir: &Path, name: &OsStr, entry: Option<(FileKind, u64)>) {
        let Some(list) = self.dir(dir).list.as_mut() else { return };
        list.witness = None;
        let was = match entry {
            Some(entry) => list.names.insert(name.to_os_string(), entry),
            None => list.names.remove(name),
        };
        self.listed += usize::from(entry.is_some());
        self.listed -= usize::from(was.is_some());
    }

    /// Changes a directory's own times after a name in it was changed, to the ctime of the object or else to
    /// the store's clock. If neither is known, the directory's next times tell the store's clock.
    fn moved(&mut self, dir: &Path, became: Became, links: i64) {
        let at = match became {
            Became::Made(told) | Became::Named(told) => {
                let at = told.attr().ctime;
                self.clock = Some((at, Instant::now()));
                Some(at)
            }
            Became::Gone | Became::DirGone | Became::Moved(..) => self.store_now(),
        };
        let known = self.dir(dir);
        known.is_reckoned = true;
        known.moved = at.is_none().then(Instant::now);
        let now = self.tick();
        let Some(name) = self.names.get_mut(dir) else { return };
        let at = at.filter(|_| self.reckons);
        let (Some(Said::There(told, _)), Some(at)) = (name.said, at) else {
            name.said = None;
            return;
        };
        let attr = *told.attr();
        let nlink = match attr.nlink {
            // Some file systems do not count directories.
            links_of_none @ 0..=1 => links_of_none,
            count => u32::try_from((i64::from(count) + links).max(2)).unwrap_or(count),
        };
        let (mtime, ctime) = (attr.mtime.max(at), attr.ctime.max(at));
        let told = told.with(Attr { mtime, ctime, nlink, ..attr });
        // Reckoned times are told for a moment only, then the store's own.
        let early = self.times.attr.saturating_sub(RECKONED);
        let at = Instant::now().checked_sub(early).map_or(told.at(), |at| at.min(told.at()));
        name.said = Some(Said::There(told.since(at), now));
    }

    fn store_now(&self) -> Option<Timestamp> {
        let (at, since) = self.clock?;
        let passed = since.elapsed();
        (passed < CLOCK).then(|| later(at, passed))
    }

    /// Drops answers that are too old, and all answers if there are too many (A3).
    fn sweep(&mut self) {
        let times = self.times;
        let is_full = self.names.len() > NAMES_MAX || self.listed > LISTED_MAX;
        let believed = times.entry.max(times.attr);
        let is_due = self.swept.elapsed() > believed.max(Duration::from_secs(1)) * 2;
        if !is_full && !is_due {
            return;
        }
        self.swept = Instant::now();
        // A question under way may be about a name whose floor is dropped here.
        self.floor = self.tick();
        let limit = match is_full {
            true => believed / 4,
            false => believed,
        };
        let is_young = |since: Instant| since.elapsed() < limit;
        self.names.retain(|_, name| name.is_asked || is_young(name.since));
        self.dirs.retain(|_, dir| dir.walk.is_asked || is_young(dir.since));
        self.count_listed();
        if self.names.len() > NAMES_MAX / 2 || self.listed > LISTED_MAX / 2 {
            self.names.retain(|_, name| name.is_asked);
            self.dirs.retain(|_, dir| dir.walk.is_asked);
            self.count_listed();
        }
    }

    fn count_listed(&mut self) {
        let lists = self.dirs.values().filter_map(|dir| dir.list.as_ref());
        self.listed = lists.map(|list| list.names.len()).sum();
    }
}

/// Whether a directory's next change will move its times, as far as our clock can tell.
fn is_settled(attr: &Attr) -> bool {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let sec = attr.mtime.max(attr.ctime).sec;
    let Ok(sec) = u64::try_from(sec) else { return true };
    now.is_ok_and(|now| now > Duration::from_secs(sec) + SETTLED)
}

fn later(at: Timestamp, passed: Duration) -> Timestamp {
    let nanos = u64::from(at.nsec) + u64::from(passed.subsec_nanos());
    let sec = at.sec + passed.as_secs() as i64 + (nanos / 1_000_000_000) as i64;
    Timestamp { sec, nsec: (nanos % 1_000_000_000) as u32 }
}

#[cfg(test)]
mod tests;
