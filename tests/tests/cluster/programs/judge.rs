//! The operations and observations of the programs of a run, and the impossible ones among them.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_tests::cluster::{Appends, Clock, Registers, Span};

use super::{FILES, content, value_of};

/// A file that a program made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub name: String,
    pub value: u64,
    pub lines: u64,
    pub mode: u32,
}

pub struct Judge {
    pub clock: Clock,
    pub values: Registers,
    pub published: Registers,
    pub logs: Vec<Appends>,
    items: Mutex<Vec<Item>>,
    gone: Mutex<Vec<Item>>,
    wrong: Mutex<Vec<String>>,
    elsewhere: AtomicU64,
    refused: AtomicU64,
}

impl Judge {
    pub fn new(logs: usize) -> Judge {
        Judge {
            clock: Clock::start(),
            values: Registers::default(),
            published: Registers::default(),
            logs: (0..logs).map(|_| Appends::default()).collect(),
            items: Mutex::default(),
            gone: Mutex::default(),
            wrong: Mutex::default(),
            elsewhere: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// An operation that begins now, with an unknown end.
    pub fn begins(&self) -> Span {
        Span { began: self.clock.now(), ended: None }
    }

    pub fn wrong(&self, why: String) {
        self.wrong.lock().expect("no panic inside").push(why);
    }

    pub fn is_wrong(&self) -> bool {
        !self.wrong.lock().expect("no panic inside").is_empty()
    }

    /// Notes that a program on a node saw a value.
    pub fn saw(&self, of: &Registers, file: u64, value: u64, span: Span, who: &str, node: usize) {
        let writer = (value / 1_000_000_000).checked_sub(1).map(|id| id as usize / 2);
        if writer.is_some_and(|writer| writer != node) {
            self.elsewhere.fetch_add(1, Relaxed);
        }
        of.read(file as usize, value, span, who);
        let is_of = |it: &Registers| it.files_of(value);
        if value != 0 && !is_of(of).contains(&(file as usize)) {
            let (values, published) = (is_of(&self.values), is_of(&self.published));
            let why = format!("value files {values:?} and published files {published:?} had it");
            self.wrong(format!("{who} read {value} from file {file}: {why}"));
        }
    }

    /// Adds a file that exists from now on.
    pub fn keep(&self, item: Item) {
        self.items.lock().expect("no panic inside").push(item);
    }

    /// Takes a file away from the other programs.
    pub fn take(&self, chance: u64) -> Option<Item> {
        let mut items = self.items.lock().expect("no panic inside");
        let count = items.len() as u64;
        (count > 0).then(|| items.swap_remove((chance % count) as usize))
    }

    pub fn pick(&self, chance: u64) -> Option<Item> {
        let items = self.items.lock().expect("no panic inside");
        let count = items.len().max(1) as u64;
        items.get((chance % count) as usize).cloned()
    }

    pub fn has(&self, item: &Item) -> bool {
        self.items.lock().expect("no panic inside").iter().any(|one| one.name == item.name)
    }

    pub fn removed(&self, item: Item) {
        self.gone.lock().expect("no panic inside").push(item);
    }

    pub fn note_refused(&self, count: u64) {
        self.refused.store(count, Relaxed);
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// The numbers of reads, and of those that saw another node's write.
    pub fn reads(&self) -> (usize, u64) {
        (self.values.count().0 + self.published.count().0, self.elsewhere.load(Relaxed))
    }

    /// Compares a directory with the expected contents once everything has ended.
    pub fn compare(&self, dir: &Path, who: &str, node: usize) {
        for file in 0..FILES {
            for (name, of) in [("value", &self.values), ("published", &self.published)] {
                let at = dir.join(format!("{name}{file}"));
                let (span, found) = self.clock.time(|| fs::read(&at));
                let value = found.map_err(|why| why.to_string()).and_then(|all| value_of(&all));
                match value {
                    Ok(value) => self.saw(of, file, value, span, who, node),
                    Err(why) => self.wrong(format!("{who}: {name}{file}: {why}")),
                }
            }
        }
        for (number, log) in self.logs.iter().enumerate() {
            let began = self.clock.now();
            match fs::read(dir.join(format!("log{number}"))) {
                Ok(found) => log.read(began, &found, who),
                Err(why) => self.wrong(format!("{who}: log{number}: {why}")),
            }
        }
        self.compare_items(dir, who);
    }

    fn compare_items(&self, dir: &Path, who: &str) {
        for item in self.items.lock().expect("no panic inside").iter() {
            let at = dir.join(&item.name);
            let right = fs::read(&at).map(|found| found == content(item.value, item.lines));
            let mode = fs::metadata(&at).map(|found| found.mode() & 0o7777).ok();
            if !matches!(right, Ok(true)) || mode != Some(item.mode) {
                self.wrong(format!("{who}: {item:?}: right bytes {right:?}, mode {mode:?}"));
            }
        }
        for item in self.gone.lock().expect("no panic inside").iter() {
            let found = fs::symlink_metadata(dir.join(&item.name));
            if !found.as_ref().is_err_and(|why| why.kind() == ErrorKind::NotFound) {
                self.wrong(format!(
                    "{who}: {item:?} was removed: {:?}",
                    found.map(|_| "it is there")
                ));
            }
        }
    }

    /// All impossible observations.
    pub fn verdict(&self, slack: Duration) -> Vec<String> {
        let mut wrong = self.wrong.lock().expect("no panic inside").clone();
        wrong.extend(self.values.wrong(Duration::ZERO));
        wrong.extend(self.published.wrong(slack));
        wrong.extend(self.logs.iter().flat_map(Appends::wrong));
        wrong
    }
}
