//! The choice of the next task: pure but for its lock.
//!
//! Names come before files so that the totals are soon known, but leave half of the threads to the files.
//! Tasks that are nearly done come before new ones, so that few files are open at once.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};

use crate::beneath::Node;
use crate::large::Large;
use crate::publish::Ready;
use crate::walk::Stream;

/// Files that are counted and not begun; about 150 MB. Beyond it, counting waits for copying.
const FILES_MAX: usize = 1 << 20;

/// A batch is made durable at the latest when it has this many files or bytes.
const BATCH_FILES: usize = 8192;
const BATCH_BYTES: u64 = 256 << 20;

/// Files that one thread gives their names in one task.
const RENAMES: usize = 64;

/// A file, or a special file; no directory.
#[derive(Debug, Clone)]
pub struct FileTask {
    pub node: Arc<Node>,
    pub name: OsString,
    /// `None`: the same name.
    pub new_name: Option<OsString>,
    /// The size that the walk saw.
    pub size: u64,
    pub nature: Nature,
    /// Device and inode, if the file has several names.
    pub shared: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nature {
    Regular,
    /// A link, a FIFO, a socket, a device.
    Special,
}

impl FileTask {
    pub fn to_name(&self) -> &OsString {
        self.new_name.as_ref().unwrap_or(&self.name)
    }

    pub fn from(&self) -> PathBuf {
        self.node.from.join(&self.name)
    }

    pub fn to(&self) -> PathBuf {
        self.node.to.join(self.to_name())
    }
}

pub enum Task {
    /// A directory to make and read, or to go on reading.
    Walk(Stream),
    /// Names to look at.
    Look(Arc<Node>, Vec<Named>),
    Copy(FileTask),
    Piece(Arc<Large>, u64),
    /// Files to make durable; then they get their names.
    Flush(Vec<Ready>),
    Name(Vec<Ready>),
    Link(FileTask),
    /// A directory that is complete.
    Close(Arc<Node>, Closing),
}

/// A name in a directory, and its new name at the destination; `None`: the same.
pub type Named = (OsString, Option<OsString>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// The directory's names become durable.
    Sync,
    /// The directory gets its source's attributes, too.
    Finish,
}

#[derive(Default)]
struct State {
    walks: Vec<Stream>,
    looks: VecDeque<(Arc<Node>, Vec<Named>)>,
    files: VecDeque<FileTask>,
    pieces: VecDeque<(Arc<Large>, u64)>,
    names: VecDeque<Vec<Ready>>,
    links: Vec<FileTask>,
    closes: Vec<(Arc<Node>, Closing)>,
    batch: Vec<Ready>,
    batch_bytes: u64,
    walking: usize,
    busy: usize,
}

pub struct Queue {
    state: Mutex<State>,
    news: Condvar,
    stopped: AtomicBool,
    walkers_max: usize,
}

/// The tasks that a stop has left.
#[derive(Default)]
pub struct Undone {
    pub files: Vec<FileTask>,
    pub links: Vec<FileTask>,
    /// Whether there are names that were not even counted.
    pub uncounted: bool,
}

impl Queue {
    pub fn new(threads: usize) -> Queue {
        Queue {
            state: Mutex::new(Rank::Tasks, State::default()),
            news: Condvar::new(),
            stopped: AtomicBool::new(false),
            walkers_max: (threads / 2).max(1),
        }
    }

    #[track_caller]
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn push(&self, task: Task) {
        let mut state = self.state();
        match task {
            Task::Walk(stream) => state.walks.push(stream),
            Task::Look(node, names) => state.looks.push_back((node, names)),
            Task::Copy(file) => state.files.push_back(file),
            Task::Piece(large, piece) => state.pieces.push_back((large, piece)),
            Task::Name(ready) => state.names.push_back(ready),
            Task::Link(second) => state.links.push(second),
            Task::Close(node, how) => state.closes.push((node, how)),
            Task::Flush(ready) => state.batch.extend(ready),
        }
        drop(state);
        self.news.notify_one();
    }

    pub fn push_all(&self, tasks: impl IntoIterator<Item = Task>) {
        tasks.into_iter().for_each(|task| self.push(task));
    }

    /// Takes a copied file into the batch, which becomes durable and gets its names together.
    pub fn ready(&self, ready: Ready) {
        let mut state = self.state();
        state.batch_bytes += ready.task.size;
        state.batch.push(ready);
        drop(state);
        self.news.notify_one();
    }

    /// Takes durable files, which get their names next.
    pub fn push_names(&self, mut ready: Vec<Ready>) {
        let mut state = self.state();
        while !ready.is_empty() {
            let rest = ready.split_off(ready.len().min(RENAMES));
            state.names.push_back(std::mem::replace(&mut ready, rest));
        }
        drop(state);
        self.news.notify_all();
    }

    /// From here on no new task is begun.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.news.notify_all();
    }

    pub fn stops(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// The next task; `None` when all is done. The task counts as under way until [`Busy`] is dropped.
    pub fn next(&self) -> Option<(Task, Busy<'_>)> {
        let mut state = self.state();
        loop {
            let stopped = self.stops();
            if let Some(task) = state.next(stopped, self.walkers_max) {
                state.busy += 1;
                let walks = matches!(task, Task::Walk(_) | Task::Look(..));
                let kind = if walks { Done::Walking } else { Done::Other };
                return Some((task, Busy { queue: self, kind }));
            }
            if state.busy == 0 {
                self.news.notify_all();
                return None;
            }
            state = self.news.wait(state);
        }
    }

    fn done(&self, kind: Done) {
        // This also runs while unwinding.
        let mut state = self.state.lock_anyway();
        state.busy -= 1;
        state.walking -= usize::from(kind == Done::Walking);
        let idle = state.busy == 0;
        drop(state);
        // The end of the last task may release the last batch, or all waiting threads.
        if idle || kind == Done::Walking {
            self.news.notify_all();
        }
    }

    /// Whether the walk has ended.
    pub fn counted(&self) -> bool {
        let state = self.state();
        state.walks.is_empty() && state.looks.is_empty() && state.walking == 0
    }

    /// Takes the remaining tasks after a stop.
    pub fn undone(&self) -> Undone {
        let mut state = self.state();
        Undone {
            uncounted: !(state.walks.is_empty() && state.looks.is_empty()),
            files: std::mem::take(&mut state.files).into(),
            links: std::mem::take(&mut state.links),
        }
    }
}

/// The kind of a task that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Walking,
    Other,
}

/// A task under way. A panic ends it, too, so that the other threads do not wait for ever.
pub struct Busy<'a> {
    queue: &'a Queue,
    kind: Done,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.queue.done(self.kind);
    }
}

impl State {
    fn next(&mut self, stopped: bool, walkers_max: usize) -> Option<Task> {
        if let Some(names) = self.names.pop_front() {
            return Some(Task::Name(names));
        }
        if self.batch.len() >= BATCH_FILES || self.batch_bytes >= BATCH_BYTES {
            return Some(self.flush());
        }
        if let Some((large, piece)) = self.pieces.pop_front() {
            return Some(Task::Piece(large, piece));
        }
        let begun = if stopped { None } else { self.begin(walkers_max) };
        let last = self.busy == 0 && !self.batch.is_empty();
        begun.or_else(|| last.then(|| self.flush()))
    }

    fn begin(&mut self, walkers_max: usize) -> Option<Task> {
        let may_walk = self.walking < walkers_max || self.files.is_empty();
        if may_walk && self.files.len() < FILES_MAX {
            let walk = self.walks.pop().map(Task::Walk);
            let task = walk
                .or_else(|| self.looks.pop_front().map(|(node, names)| Task::Look(node, names)));
            if task.is_some() {
                self.walking += 1;
                return task;
            }
        }
        let file = self.files.pop_front().map(Task::Copy);
        file.or_else(|| self.links.pop().map(Task::Link))
            .or_else(|| self.closes.pop().map(|(node, how)| Task::Close(node, how)))
    }

    fn flush(&mut self) -> Task {
        self.batch_bytes = 0;
        Task::Flush(std::mem::take(&mut self.batch))
    }
}
