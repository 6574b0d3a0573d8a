//! One phase of mdtest: every task works through its items.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::options::Options;
use crate::meter::Total;
use crate::pattern::{Filler, Pattern};
use crate::progress::{Goal, Progress};
use crate::rng::Rng;
use crate::shared::{Plain, Shared};
use crate::team::{Outcome, Task, Team};
use crate::{Error, Result, clock};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    DirectoryCreation,
    DirectoryStat,
    DirectoryRename,
    DirectoryRemoval,
    FileCreation,
    FileStat,
    FileRead,
    FileRemoval,
    TreeCreation,
    TreeRemoval,
}

/// The phases in the order of mdtest's table.
pub const ALL: [Phase; 10] = [
    Phase::DirectoryCreation,
    Phase::DirectoryStat,
    Phase::DirectoryRename,
    Phase::DirectoryRemoval,
    Phase::FileCreation,
    Phase::FileStat,
    Phase::FileRead,
    Phase::FileRemoval,
    Phase::TreeCreation,
    Phase::TreeRemoval,
];

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::DirectoryCreation => "Directory creation",
            Phase::DirectoryStat => "Directory stat",
            Phase::DirectoryRename => "Directory rename",
            Phase::DirectoryRemoval => "Directory removal",
            Phase::FileCreation => "File creation",
            Phase::FileStat => "File stat",
            Phase::FileRead => "File read",
            Phase::FileRemoval => "File removal",
            Phase::TreeCreation => "Tree creation",
            Phase::TreeRemoval => "Tree removal",
        }
    }

    /// The distance in strides of the items that a phase uses.
    fn strides(self) -> usize {
        match self {
            Phase::DirectoryCreation | Phase::FileCreation => 0,
            Phase::TreeCreation | Phase::TreeRemoval => 0,
            Phase::DirectoryStat | Phase::FileStat => 1,
            Phase::DirectoryRename | Phase::FileRead => 2,
            Phase::DirectoryRemoval | Phase::FileRemoval => 3,
        }
    }

    fn creates(self) -> bool {
        matches!(self, Phase::DirectoryCreation | Phase::FileCreation)
    }
}

/// One run of a phase: its directories, and the number of items.
pub struct Lap<'a> {
    pub options: &'a Options,
    pub phase: Phase,
    /// The directory of this iteration for each task.
    pub tops: &'a [String],
    /// Items each rank has created.
    pub created: &'a [u64],
    /// Whether directories have their second name.
    pub renamed: bool,
}

/// What one task reports.
#[repr(C)]
#[derive(Default)]
pub struct Report {
    began: AtomicU64,
    ended: AtomicU64,
    pub items: AtomicU64,
    pub errors: AtomicU64,
}

// SAFETY: atomics only; zero means nothing happened.
unsafe impl Plain for Report {}

/// The result of a phase, over all tasks.
pub struct Measured {
    pub phase: Phase,
    pub iteration: usize,
    pub items: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub errors: u64,
    pub meters: Total,
    pub resident: Option<f64>,
    pub warnings: Vec<String>,
}

impl Measured {
    pub fn of(phase: Phase, iteration: usize, outcome: &Outcome<Report>) -> Self {
        let reports = outcome.results();
        let at = |cell: &AtomicU64| cell.load(SeqCst);
        let began = reports.iter().map(|r| at(&r.began)).filter(|&t| t > 0).min().unwrap_or(0);
        let ended = reports.iter().map(|r| at(&r.ended)).max().unwrap_or(0);
        let meters = Total::of(outcome.meters());
        Self {
            phase,
            iteration,
            items: reports.iter().map(|r| at(&r.items)).sum(),
            bytes: meters.bytes,
            seconds: clock::seconds(ended.saturating_sub(began)),
            errors: reports.iter().map(|r| at(&r.errors)).sum(),
            meters,
            resident: None,
            warnings: Vec::new(),
        }
    }

    pub fn rate(&self) -> f64 {
        if self.items == 0 { 0.0 } else { self.items as f64 / self.seconds.max(1e-9) }
    }
}

pub fn run(lap: &Lap<'_>) -> Outcome<Report> {
    let options = lap.options;
    let goal = Goal::Ops(options.items * options.tasks as u64);
    let counts = Shared::new(options.tasks);
    Team::new(options.tasks, options.kind)
        .progress(Progress::new(lap.phase.name(), goal))
        .run(|task, own: &Report| Worker::new(lap, task, own, &counts).work())
}

struct Worker<'a> {
    lap: &'a Lap<'a>,
    task: &'a Task<'a>,
    own: &'a Report,
    /// Items each task had created when the time of `-W` was over.
    counts: &'a Shared<AtomicU64>,
    owner: usize,
    directories: Vec<String>,
    per_directory: u64,
    filler: Filler,
    buffer: Vec<u8>,
    path: String,
}

impl<'a> Worker<'a> {
    fn new(
        lap: &'a Lap<'a>,
        task: &'a Task<'a>,
        own: &'a Report,
        counts: &'a Shared<AtomicU64>,
    ) -> Self {
        let options = lap.options;
        let owner = (task.rank + lap.phase.strides() * options.stride) % options.tasks;
        let bytes = options.write_bytes.max(options.read_bytes);
        // Every byte depends on the rank, so that files of a few bytes can be told apart too, and
        // not on the length: a later run may read less than was written.
        let filler = Filler::new(Pattern::Incompressible, options.signature, owner, bytes);
        let mut buffer = vec![0; bytes];
        filler.fill(&mut buffer);
        Self {
            directories: options.tree.paths(&lap.tops[owner], options.whose(owner)),
            per_directory: options.per_directory(),
            lap,
            task,
            own,
            counts,
            owner,
            filler,
            buffer,
            path: String::new(),
        }
    }

    fn work(mut self) -> Result<()> {
        let order = self.order();
        let start = self.task.start()?;
        match self.lap.phase {
            // One directory is made faster than a task wakes; a task without a directory has no part
            // in it.
            Phase::TreeCreation | Phase::TreeRemoval if self.has_no_tree() => return Ok(()),
            Phase::TreeCreation | Phase::TreeRemoval => {
                let start = clock::now();
                self.own.began.store(start, SeqCst);
                self.tree(start)?;
            }
            _ => {
                self.own.began.store(start, SeqCst);
                self.items(&order, start)?;
            }
        }
        if self.lap.options.sync_phase {
            self.sync_file_system()?;
        }
        self.own.ended.store(clock::now(), SeqCst);
        Ok(())
    }

    /// The items to visit; shuffled where that was asked for.
    fn order(&self) -> Vec<u64> {
        let (options, phase) = (self.lap.options, self.lap.phase);
        let count = if phase.creates() { options.items } else { self.lap.created[self.owner] };
        let mut order: Vec<u64> = (0..count).collect();
        if let Some(seed) = options.random
            && !phase.creates()
        {
            Rng::new(seed ^ (self.task.rank as u64) << 32).shuffle(&mut order);
        }
        order
    }

    fn items(&mut self, order: &[u64], start: u64) -> Result<()> {
        let options = self.lap.options;
        let limit = (options.deadline > 0.0 && self.lap.phase.creates())
            .then(|| start + (options.deadline * 1e9) as u64);
        self.until(order, start, limit)?;
        if limit.is_none() {
            return Ok(());
        }
        // As in mdtest, all tasks then create as many items as the fastest task did.
        let done = self.own.items.load(SeqCst);
        self.counts[self.task.rank].store(done, SeqCst);
        self.task.barrier()?;
        let most = self.counts.iter().map(|count| count.load(SeqCst)).max().unwrap_or(done);
        self.until(&order[done as usize..most as usize], clock::now(), None)
    }

    /// Works through items until the end or a moment.
    fn until(&mut self, order: &[u64], start: u64, limit: Option<u64>) -> Result<()> {
        let mut before = start;
        for &item in order {
            if self.task.stopping() || limit.is_some_and(|limit| before >= limit) {
                break;
            }
            let bytes = self.item(item)?;
            let now = clock::now();
            self.task.meter().record(before, now, bytes);
            before = now;
            self.own.items.fetch_add(1, SeqCst);
        }
        Ok(())
    }

    /// Does the phase's operation on one item and returns the bytes moved.
    fn item(&mut self, item: u64) -> Result<u64> {
        use std::fmt::Write as _;
        // Items are numbered through all directories, including those without items.
        let number = self.lap.options.tree.first_home() * self.per_directory + item;
        let directory = &self.directories[(number / self.per_directory) as usize];
        let kind = match self.lap.phase {
            Phase::FileCreation | Phase::FileStat | Phase::FileRead | Phase::FileRemoval => "file",
            _ => "dir",
        };
        self.path.clear();
        let _ = write!(self.path, "{directory}/{kind}.mdtest.{}.{number}", self.owner);
        if self.lap.renamed && kind == "dir" {
            self.path += RENAMED;
        }
        self.operate(item)
            .map_err(|error| Error::io(&self.lap.phase.name().to_lowercase(), &self.path, &error))
    }

    fn operate(&mut self, item: u64) -> std::io::Result<u64> {
        let path = self.path.as_str();
        match self.lap.phase {
            Phase::DirectoryCreation => fs::create_dir(path).map(|()| 0),
            Phase::DirectoryStat | Phase::FileStat => fs::symlink_metadata(path).map(|_| 0),
            Phase::DirectoryRename => fs::rename(path, format!("{path}{RENAMED}")).map(|()| 0),
            Phase::DirectoryRemoval => fs::remove_dir(path).map(|()| 0),
            Phase::FileRemoval => fs::remove_file(path).map(|()| 0),
            Phase::FileCreation => self.create(item),
            Phase::FileRead => self.read(item),
            Phase::TreeCreation | Phase::TreeRemoval => unreachable!("trees have no items"),
        }
    }

    fn create(&mut self, item: u64) -> std::io::Result<u64> {
        let options = self.lap.options;
        self.filler.stamp(&mut self.buffer, place(item));
        if options.make_node {
            make_node(&self.path)?;
            if options.write_bytes == 0 {
                return Ok(0);
            }
        }
        let mut file = File::options().write(true).create(true).truncate(true).open(&self.path)?;
        if options.write_bytes > 0 {
            file.write_all(&self.buffer[..options.write_bytes])?;
        }
        if options.sync_each {
            file.sync_all()?;
        }
        Ok(options.write_bytes as u64)
    }

    fn read(&mut self, item: u64) -> std::io::Result<u64> {
        let wanted = self.lap.options.read_bytes;
        let mut file = File::open(&self.path)?;
        if wanted == 0 {
            return Ok(0);
        }
        let mut found = std::mem::take(&mut self.buffer);
        let result = file.read_exact(&mut found[..wanted]);
        if result.is_ok() && self.lap.options.verify {
            self.compare(item, &found[..wanted]);
        }
        self.buffer = found;
        result.map(|()| wanted as u64)
    }

    fn compare(&self, item: u64, found: &[u8]) {
        if let Some(wrong) = self.filler.check(found, place(item), &mut Vec::new()) {
            self.own.errors.fetch_add(1, SeqCst);
            eprintln!(
                "forebay bench mdtest: task {}: {}: offset {}: expected {:#04x}, found {:#04x}",
                self.task.rank, self.path, wrong.at, wrong.expected, wrong.found
            );
        }
    }

    /// Whether another task has this task's tree: a shared tree belongs to the first task with that
    /// directory of `-d`.
    fn has_no_tree(&self) -> bool {
        let options = self.lap.options;
        !options.unique && self.task.rank >= options.directories.len()
    }

    /// Makes or removes the directories.
    fn tree(&mut self, start: u64) -> Result<()> {
        let create = self.lap.phase == Phase::TreeCreation;
        if !create {
            self.directories.reverse();
        }
        let mut before = start;
        for (done, path) in self.directories.iter().enumerate() {
            let result = if create { fs::create_dir(path) } else { fs::remove_dir(path) };
            let verb = if create { "create" } else { "remove" };
            result.map_err(|error| Error::io(verb, path, &error))?;
            let now = clock::now();
            self.task.meter().record(before, now, 0);
            before = now;
            self.own.items.store(done as u64 + 1, SeqCst);
        }
        Ok(())
    }

    fn sync_file_system(&self) -> Result<()> {
        let top = &self.lap.tops[self.owner];
        let directory = File::open(top).map_err(|error| Error::io("open", top, &error))?;
        // SAFETY: a plain system call on a descriptor of this task.
        match unsafe { libc::syncfs(directory.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(Error::io("sync", top, &std::io::Error::last_os_error())),
        }
    }
}

const RENAMED: &str = "-renamed";

/// The offset of a file's contents as if all of a task's files were one, far apart: no two files
/// have the same contents.
fn place(item: u64) -> u64 {
    item << 32
}

fn make_node(path: &str) -> std::io::Result<()> {
    let name = std::ffi::CString::new(path)?;
    // SAFETY: `name` is a NUL-terminated string that lives through the call.
    match unsafe { libc::mknod(name.as_ptr(), libc::S_IFREG | 0o644, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Files of the items, for a look at the page cache; at most `most` of them, spread over all.
pub fn sample(lap: &Lap<'_>, most: usize) -> Vec<String> {
    let options = lap.options;
    let each = (most / options.tasks).max(1) as u64;
    let mut paths = Vec::new();
    for rank in 0..options.tasks {
        let directories = options.tree.paths(&lap.tops[rank], options.whose(rank));
        let step = (lap.created[rank] / each).max(1);
        for item in (0..lap.created[rank]).step_by(step as usize) {
            let number = options.tree.first_home() * options.per_directory() + item;
            let directory = &directories[(number / options.per_directory()) as usize];
            paths.push(format!("{directory}/file.mdtest.{rank}.{number}"));
        }
    }
    paths
}
