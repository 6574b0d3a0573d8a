//! Holds up programs that write past the daemon while the tier has no room for more: the kernel asks
//! before each of their accesses, and a program that would make a shadow grow waits until there is room.
//!
//! While there is much room the kernel does not ask, and the sluice costs nothing; otherwise a thread of its
//! own answers. A small tier is full in a moment: while any program writes past the daemon another thread
//! looks at such a tier every few milliseconds. On a tier whose file system does not ask, writers past the
//! daemon are bounded by their admission alone ([`may_write_unseen`](crate::core::policy::may_write_unseen)).
//!
//! Invariants:
//! - W1: every waiting program is answered: the gate goes with its thread, and with the gate the
//!   kernel's questions.
//! - W2: programs that wait for room which nothing can make are let go on, one file at a time, so that
//!   the file can be closed and flushed: programs that wait for each other would wait for ever otherwise.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::fs;

use crate::core::counters::add;
use crate::core::id::FileId;
use crate::core::policy::{self, Bound};
use crate::core::turns::{Left, Turns};
use crate::files::Files;
use crate::files::file::File;
use crate::room::Room;
use crate::tier::gate::{Asked, Gate, Growth};
use crate::tier::media::{MediaFile, Open};
use forebay_base::lock::{Mutex, MutexGuard, Rank};

/// The kernel opens a shadow soon after the daemon has answered the open; after that its mark is not needed.
/// Marks are removed together, since each removal would cost the writer of a small file as much as setting it.
const READY_FOR: Duration = Duration::from_millis(500);

/// How often waiting programs are checked, and, if none waits, whether one has to.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOK_IDLE: Duration = Duration::from_millis(100);

/// The thread that looks often ends after so long without a write past the daemon.
const QUIET: Duration = Duration::from_secs(1);

/// The number of programs that wait here, each with a descriptor; more questions wait in the kernel.
const WAITING_MAX: usize = 256;

/// By then a program that was let go on has written, or will not write any more.
const GRANTED_FOR: Duration = Duration::from_secs(1);

pub(crate) struct Sluice {
    files: Arc<Files>,
    room: Arc<Room>,
    /// The bound on writers, found out at the first use.
    bound: OnceLock<Bound>,
    state: Mutex<State>,
}

struct State {
    /// `None` where the kernel does not ask.
    ready: Option<Ready>,
    watched: HashMap<FileId, Watched>,
    /// The gate that asks, while the sluice is shut.
    shut: Option<Gate>,
    /// Whether a thread looks at all watched files, often.
    looks: bool,
}

/// Keeps the kernel ready to ask about programs that are just opening a shadow.
struct Ready {
    gate: Gate,
    since: Instant,
    /// Whether a shadow was marked since then.
    marked: bool,
    /// The gate with the marks from before `since`.
    before: Option<Gate>,
}

struct Watched {
    file: Arc<File>,
    shadow: Arc<dyn MediaFile>,
}

/// A question of the kernel that waits for its answer.
struct Waiting {
    asked: Asked,
    ino: u64,
    since: Instant,
}

/// All waiting questions, the oldest first, and the known facts about room for them.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    granted: Vec<Granted>,
    turns: Turns,
    /// The bytes of all files written past the daemon, and the time of that measurement.
    unseen: u64,
    measured: Option<Instant>,
}

/// Growth that was granted and is not measured yet.
struct Granted {
    ino: u64,
    growth: Growth,
    at: Instant,
}

impl Sluice {
    pub fn new(files: Arc<Files>, room: Arc<Room>) -> Sluice {
        let since = files.time().now();
        let ready = Gate::new().ok().map(|gate| Ready { gate, since, marked: false, before: None });
        let state = State { ready, watched: HashMap::new(), shut: None, looks: false };
        Sluice { files, room, bound: OnceLock::new(), state: Mutex::new(Rank::Unseen, state) }
    }

    /// Returns the bound on programs that write to the tier past the daemon.
    pub fn bound(&self) -> Bound {
        *self.bound.get_or_init(|| match self.try_to_ask() {
            Ok(()) => Bound::Asked,
            Err(error) => {
                tracing::debug!(%error, "nobody asks before files of the tier are written past the daemon");
                Bound::LetIn
            }
        })
    }

    fn try_to_ask(&self) -> io::Result<()> {
        const NAME: &str = "digests/asked";
        let media = self.files.media();
        let file = media.open(NAME, Open::Fresh)?;
        let fd = file.as_fd().ok_or(io::ErrorKind::Unsupported);
        let asks = fd.map_err(io::Error::from).and_then(|fd| Gate::new()?.keep_ready(fd));
        media.remove(NAME)?;
        asks
    }

    /// Watches a shadow that one more program is about to have open for writing. Its file's lock is held.
    pub fn watch(self: &Arc<Self>, file: &Arc<File>, shadow: &Arc<dyn MediaFile>) {
        let Some(fd) = shadow.as_fd() else { return };
        let shuts = self.is_to_be_shut();
        let mut state = self.state.lock();
        let Some(ready) = &mut state.ready else { return };
        ready.marked = true;
        if let Err(error) = ready.gate.keep_ready(fd) {
            tracing::debug!(%error, "nobody asks before this file is written past the daemon");
            // Most errors will be the same for the next file.
            if !matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOSPC)) {
                state.ready = None;
            }
            return;
        }
        if let Some(shut) = &state.shut {
            note(shut.ask(fd));
        }
        state.watched.insert(file.id, Watched { file: file.clone(), shadow: shadow.clone() });
        if !state.looks && self.files.totals().limit() < policy::SMALL {
            state.looks = self.start(|sluice| sluice.look_often());
        }
        if shuts {
            self.shut(state);
        }
    }

    /// Ends the watch of a file that no program writes past the daemon any more.
    pub fn leave(&self, id: FileId) {
        let mut state = self.state.lock();
        let Some(gone) = state.watched.remove(&id) else { return };
        if let (Some(shut), Some(fd)) = (&state.shut, gone.shadow.as_fd()) {
            note(shut.ask_no_more(fd));
        }
    }

    /// Renews marks and shuts the sluice if necessary; called from time to time.
    pub fn tend(self: &Arc<Self>) {
        let (shuts, now) = (self.is_to_be_shut(), self.files.time().now());
        let mut state = self.state.lock();
        let over = state.ready.as_mut().and_then(|ready| ready.renew(now));
        if shuts {
            self.shut(state);
        } else {
            drop(state);
        }
        // Not dropped under the lock: the kernel goes through each of its marks.
        drop(over);
    }

    fn is_to_be_shut(&self) -> bool {
        self.files.totals().writers() > 0 && policy::holds_writers(self.files.level())
    }

    /// Makes the kernel ask about every program that writes past the daemon, and answers.
    fn shut(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.shut.is_some() || state.watched.is_empty() {
            return;
        }
        let Ok(gate) = Gate::new() else { return };
        let asks = gate.clone();
        let answer = move |sluice: &Sluice| {
            // W1.
            let _opens = Opens(sluice);
            sluice.answer(&asks);
        };
        if !self.start(move |sluice| answer(sluice)) {
            return;
        }
        for watched in state.watched.values() {
            watched.shadow.as_fd().into_iter().for_each(|fd| note(gate.ask(fd)));
        }
        state.shut = Some(gate);
    }

    /// Starts `work` on a thread of its own; `false` if the thread cannot be started.
    fn start(self: &Arc<Self>, work: impl FnOnce(&Arc<Sluice>) + Send + 'static) -> bool {
        let (sluice, part) = (self.clone(), self.files.time().part());
        let work = move || {
            part.for_life();
            work(&sluice);
        };
        std::thread::Builder::new().name("fb-sluice".into()).spawn(work).is_ok()
    }

    /// Looks until no program has written past the daemon for a while.
    fn look_often(self: &Arc<Self>) {
        let mut busy_at = self.files.time().now();
        while !self.files.is_stopping() {
            self.files.time().sleep(policy::LOOK_QUICK);
            self.measure_all();
            let (shuts, now) = (self.is_to_be_shut(), self.files.time().now());
            let mut state = self.state.lock();
            if !state.watched.is_empty() {
                busy_at = now;
            } else if now - busy_at > QUIET {
                state.looks = false;
                return;
            }
            if shuts {
                self.shut(state);
            }
        }
    }

    /// Updates the sums of all files written past the daemon, and the pace at which they grow.
    pub fn measure_all(&self) {
        for file in self.files.totals().unseen() {
            // A measurement does not wait for a lock: the next look is soon.
            if let Some(mut inner) = file.try_lock()
                && inner.state.is_unseen()
            {
                self.files.note_growth(&file, &mut inner);
                self.files.account(&file, &mut inner);
            }
        }
        let grown = self.files.counters().passthrough_new_bytes.load(Relaxed);
        self.files.totals().pace().note(self.files.time().now(), grown);
    }

    fn answer(&self, gate: &Gate) {
        let mut queue = Queue::default();
        while !self.files.is_stopping() {
            let patience = if queue.waiting.is_empty() { LOOK_IDLE } else { LOOK_AGAIN };
            if queue.waiting.len() >= WAITING_MAX {
                self.files.time().sleep(LOOK_AGAIN);
            } else if let Err(error) = self.listen(gate, patience, &mut queue) {
                tracing::warn!(%error, "asking what is written past the daemon");
                self.files.time().sleep(LOOK_IDLE);
            }
            if !queue.waiting.is_empty() {
                self.let_go(&mut queue);
            } else if !self.is_to_be_shut() {
                break;
            }
        }
    }

    fn listen(&self, gate: &Gate, patience: Duration, queue: &mut Queue) -> io::Result<()> {
        for asked in gate.asked(patience)? {
            let since = self.files.time().now();
            queue.waiting.push_back(Waiting { ino: asked.ino()?, asked, since });
        }
        Ok(())
    }

    /// Lets the waiting programs go on for which there is room, in order, and the one whose turn it is.
    fn let_go(&self, queue: &mut Queue) {
        let now = self.files.time().now();
        if queue.measured.is_none_or(|at| now - at >= LOOK_AGAIN) {
            queue.measured = Some(now);
            queue.unseen = self.measure(&mut queue.granted);
        }
        let Queue { waiting, granted, turns, unseen, .. } = queue;
        let mut on_its_way: u64 = granted.iter().map(|granted| granted.growth.bytes).sum();
        let (limit, mut is_full) = (self.files.totals().limit(), false);
        waiting.retain(|at| {
            let Ok(Some(growth)) = at.asked.growth() else { return false };
            let needs = on_its_way + growth.bytes;
            // Nothing is evicted for growth that will never fit.
            is_full |= needs > limit || !self.room.has_room_for(needs);
            if !is_full {
                on_its_way = needs;
                self.note_wait(at);
                granted.push(Granted { ino: at.ino, growth, at: now });
            }
            is_full
        });
        if !is_full {
            return;
        }
        self.files.landings().urge();
        self.files.nudge();
        let left = Left {
            flushable: self.files.totals().dirty().saturating_sub(*unseen),
            progress: self.files.landings().progress(),
            patience: self.files.tune(|t| t.backing_timeout),
        };
        // W2.
        if let Some(ino) = turns.whose(now, left, waiting.iter().map(|at| at.ino)) {
            waiting.iter().filter(|at| at.ino == ino).for_each(|at| self.note_wait(at));
            waiting.retain(|at| at.ino != ino);
        }
    }

    fn note_wait(&self, at: &Waiting) {
        let waited = self.files.time().since(at.since);
        if waited > LOOK_AGAIN {
            add(&self.files.counters().writers_slowed, 1);
            add(&self.files.counters().writers_slowed_us, waited.as_micros() as u64);
        }
    }

    /// Updates the sums, and forgets granted growth that they include. Returns the bytes of all
    /// files written past the daemon.
    fn measure(&self, granted: &mut Vec<Granted>) -> u64 {
        let (now, mut all, mut ends) = (self.files.time().now(), 0, HashMap::new());
        for (file, shadow) in self.watched() {
            if let Some(mut inner) = file.try_lock()
                && inner.state.is_unseen()
            {
                self.files.note_growth(&file, &mut inner);
                self.files.account(&file, &mut inner);
                all += inner.dirty_charged();
            }
            if let Some(stat) = shadow.as_fd().and_then(|fd| fs::fstat(fd).ok()) {
                ends.insert(stat.st_ino, stat.st_size as u64);
            }
        }
        granted.retain(|granted| {
            let end = ends.get(&granted.ino).copied();
            let is_there = end.is_none() || end >= granted.growth.end;
            !is_there && now - granted.at < GRANTED_FOR
        });
        all
    }

    fn watched(&self) -> Vec<(Arc<File>, Arc<dyn MediaFile>)> {
        let state = self.state.lock();
        let both = |watched: &Watched| (watched.file.clone(), watched.shadow.clone());
        state.watched.values().map(both).collect()
    }
}

impl Ready {
    /// Returns the gate whose marks are not needed any more.
    fn renew(&mut self, now: Instant) -> Option<Gate> {
        if now - self.since < READY_FOR {
            return None;
        }
        self.since = now;
        if !std::mem::take(&mut self.marked) {
            return self.before.take();
        }
        let gate = Gate::new().ok()?;
        self.before.replace(std::mem::replace(&mut self.gate, gate))
    }
}

/// Opens the sluice when it is dropped.
struct Opens<'a>(&'a Sluice);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.state.lock().shut = None;
    }
}

/// Logs a mark that cannot be set or removed; it holds nothing up.
fn note(done: io::Result<()>) {
    if let Err(error) = done {
        tracing::debug!(%error, "marking a shadow file that is written past the daemon");
    }
}
