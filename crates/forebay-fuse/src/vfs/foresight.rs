//! Asking the backing store for several names at once: those of a listing, and those that a program which
//! goes through directories will ask for next. At most `fill-depth` questions are under way at a time.
//!
//! Where the store answers at once nothing is asked ahead: to hand a question to another thread would cost
//! more than the question.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_backing::{DirEntry, Result};
use forebay_engine::time::Time;
use forebay_engine::{Engine, Pool};

use super::answers::{Ahead, Answers, Recalled, Wanted};

/// A store that takes longer than this for a name on the average is asked for several at once.
const SLOW: Duration = Duration::from_micros(200);

/// A store that takes longer than this is not asked for a directory's times after each change in it.
const VERY_SLOW: Duration = Duration::from_millis(1);

/// A single answer counts as no slower than this: one that was late by chance makes no store slow.
const LATE: Duration = Duration::from_millis(4);

/// How long a thread waits for another thread's question before it asks itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks the store, and remembers the answers.
pub struct Foresight {
    engine: Arc<Engine>,
    pub answers: Answers,
    pool: Pool,
    /// The average time of a question lately, in nanoseconds.
    pace: AtomicU64,
}

impl Foresight {
    pub fn new(engine: Arc<Engine>, answers: Answers) -> Foresight {
        let depth = engine.files.tunables().fill_depth as usize;
        let pool = Pool::new("fb-look", depth, Time::default());
        Foresight { engine, answers, pool, pace: AtomicU64::new(0) }
    }

    /// Notes that the store has answered a question about one name in this time.
    pub fn took(&self, time: Duration) {
        let before = self.pace.load(Relaxed);
        // A thread that comes between loses one of many readings, and nothing else.
        let pace = before - before / 8 + time.min(LATE).as_nanos() as u64 / 8;
        self.pace.store(pace, Relaxed);
        let reckons = |pace| Duration::from_nanos(pace) > VERY_SLOW;
        if reckons(before) != reckons(pace) {
            self.answers.reckon(reckons(pace));
        }
    }

    fn is_slow(&self) -> bool {
        Duration::from_nanos(self.pace.load(Relaxed)) > SLOW
    }

    /// The remembered answer about a name. Waits for a question under way.
    pub fn recall(&self, path: &Path) -> Recalled {
        self.answers.recall(path, PATIENCE)
    }

    /// To be called before a name of a directory is looked up.
    pub fn step(self: &Arc<Self>, dir: &Path, name: &OsStr) {
        if !self.is_slow() {
            return;
        }
        let mut wanted = self.answers.step(dir, name, PATIENCE);
        if wanted == Wanted::List && self.list(dir).is_ok() {
            wanted = self.answers.step(dir, name, Duration::ZERO);
        }
        if let Wanted::Ahead(ahead) = wanted {
            self.go(ahead);
        }
    }

    /// Asks for the attributes of these names of a directory, all at once, before they are wanted.
    pub fn all<'a>(self: &Arc<Self>, dir: &Path, names: impl Iterator<Item = &'a OsStr>) {
        if self.is_slow() {
            self.go(Ahead { names: self.answers.unknown(dir, names), dirs: Vec::new() });
        }
    }

    /// The names of a file's extended attributes: as answered lately, or asked for now, with those of other
    /// files in its directory. `None` if the store cannot tell.
    pub fn xattrs(self: &Arc<Self>, path: &Path) -> Option<Vec<OsString>> {
        // Another thread may be asking already.
        let _ = self.recall(path);
        if let Some(known) = self.answers.xattrs(path) {
            return Some(known);
        }
        let goes_on = self.is_slow() && self.answers.foresees_absence();
        if let (true, Some(dir)) = (goes_on, path.parent()) {
            self.go(Ahead { names: self.answers.without_xattrs(dir), dirs: Vec::new() });
            let _ = self.recall(path);
            if let Some(known) = self.answers.xattrs(path) {
                return Some(known);
            }
        }
        let asked = self.answers.moment();
        let (told, names) = self.engine.verbs.foresee_all(path).ok()?;
        self.answers.hear(path, asked, Recalled::There(told));
        self.answers.hear_xattrs(path, asked, told.attr().key, names.clone());
        Some(names)
    }

    /// The entries of a directory: as listed lately, or as the store lists them now.
    pub fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        if let Some(known) = self.answers.list(dir) {
            return Ok(known);
        }
        self.list_now(dir, |path| self.engine.names.ask(|b| b.read_dir(path)))
    }

    fn list_now(
        &self,
        dir: &Path,
        ask: impl FnOnce(&Path) -> Result<Vec<DirEntry>>,
    ) -> Result<Vec<DirEntry>> {
        let (asked, at) = (self.answers.moment(), Instant::now());
        let entries = ask(dir)?;
        self.answers.hear_list(dir, asked, at, &entries);
        Ok(entries)
    }

    fn go(self: &Arc<Self>, ahead: Ahead) {
        self.pool.set_max(self.engine.files.tunables().fill_depth as usize);
        for dir in ahead.dirs {
            let asking = Asking { of: self.clone(), what: What::Dir(dir) };
            self.pool.offer(move || asking.ask());
        }
        for name in ahead.names {
            let asking = Asking { of: self.clone(), what: What::Name(name) };
            self.pool.offer(move || asking.ask());
        }
    }
}

enum What {
    Name(PathBuf),
    Dir(PathBuf),
}

/// A question that other threads wait for. If it is dropped unasked, they stop waiting.
struct Asking {
    of: Arc<Foresight>,
    what: What,
}

impl Asking {
    fn ask(&self) {
        let of = &self.of;
        match &self.what {
            What::Name(path) => {
                let asked = of.answers.moment();
                let told = match of.answers.foresees_absence() {
                    true => of.engine.verbs.foresee_all(path).map(|(told, names)| {
                        of.answers.hear_xattrs(path, asked, told.attr().key, names);
                        told
                    }),
                    false => of.engine.verbs.foresee(path),
                };
                // An error is not kept: a thread that needs the answer asks itself.
                of.answers.hear(path, asked, told.map_or(Recalled::Unknown, Recalled::There));
            }
            What::Dir(dir) => {
                if of.list_now(dir, |dir| of.engine.verbs.foresee_dir(dir)).is_ok() {
                    of.go(of.answers.first(dir));
                }
            }
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        match &self.what {
            What::Name(path) => self.of.answers.ends(path),
            What::Dir(dir) => self.of.answers.ends_list(dir),
        }
    }
}
