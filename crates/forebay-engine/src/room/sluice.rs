//! Holds up programs that write past us while the tier has no room for more: the kernel asks before
//! each of their accesses, and whoever would make a shadow grow waits until there is room.
//!
//! While there is much room nobody asks and it costs nothing; a thread of its own answers otherwise. A small
//! tier is full in a moment: another one looks there every few milliseconds while anybody writes past us.
//! On a tier whose file system does not ask, writers past us are bounded by how they are let in alone
//! ([`may_write_unseen`](crate::core::policy::may_write_unseen)).
//!
//! Invariants:
//! - W1: who waits is answered: the questions go with the thread, and with them what the kernel waits
//!   for.
//! - W2: who waits for room that nothing can make is let go on, one file at a time, so that it can be
//!   closed and flushed: programs that wait for each other would wait for ever otherwise.

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

/// The kernel opens a shadow soon after we have answered the open; then its mark has done its work.
/// Marks are taken away together, since each would cost the writer of a small file as much as to set it.
const READY_FOR: Duration = Duration::from_millis(500);

/// Who waits is looked at so often, and with nobody waiting whether anybody has to.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOK_IDLE: Duration = Duration::from_millis(100);

/// With nobody writing past us for so long, the thread that looks often ends.
const QUIET: Duration = Duration::from_secs(1);

/// So many wait here, each with a descriptor; what else is asked waits in the kernel.
const WAITING_MAX: usize = 256;

/// Who was let go on has written by then, or will write nothing any more.
const GRANTED_FOR: Duration = Duration::from_secs(1);

pub(crate) struct Sluice {
    files: Arc<Files>,
    room: Arc<Room>,
    /// Found out when somebody wants to know.
    bound: OnceLock<Bound>,
    state: Mutex<State>,
}

struct State {
    /// `None` where the kernel does not ask.
    ready: Option<Ready>,
    watched: HashMap<FileId, Watched>,
    /// Asks, while the sluice is shut.
    shut: Option<Gate>,
    /// A thread looks at all that are watched, often.
    looks: bool,
}

/// Keeps the kernel ready to ask about those who open a shadow now.
struct Ready {
    gate: Gate,
    since: Instant,
    /// Whether anything was marked since then.
    marked: bool,
    /// What was marked before that.
    before: Option<Gate>,
}

struct Watched {
    file: Arc<File>,
    shadow: Arc<dyn MediaFile>,
}

/// What waits for an answer.
struct Waiting {
    asked: Asked,
    ino: u64,
    since: Instant,
}

/// All that wait, the longest first, and what is known of room for them.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    granted: Vec<Granted>,
    turns: Turns,
    /// What all that is written past us took, and when that was measured.
    unseen: u64,
    measured: Option<Instant>,
}

/// What was let go on and is not measured yet.
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

    /// What bounds those who write to the tier past us.
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

    /// One more program is about to have the shadow open for writing. Its file's lock is held.
    pub fn watch(self: &Arc<Self>, file: &Arc<File>, shadow: &Arc<dyn MediaFile>) {
        let Some(fd) = shadow.as_fd() else { return };
        let shuts = self.is_to_be_shut();
        let mut state = self.state.lock();
        let Some(ready) = &mut state.ready else { return };
        ready.marked = true;
        if let Err(error) = ready.gate.keep_ready(fd) {
            tracing::debug!(%error, "nobody asks before this file is written past the daemon");
            // Of most errors the next file has the same.
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

    /// Nobody writes to the file past us any more.
    pub fn leave(&self, id: FileId) {
        let mut state = self.state.lock();
        let Some(gone) = state.watched.remove(&id) else { return };
        if let (Some(shut), Some(fd)) = (&state.shut, gone.shadow.as_fd()) {
            note(shut.ask_no_more(fd));
        }
    }

    /// From time to time.
    pub fn tend(self: &Arc<Self>) {
        let (shuts, now) = (self.is_to_be_shut(), self.files.time().now());
        let mut state = self.state.lock();
        let over = state.ready.as_mut().and_then(|ready| ready.renew(now));
        if shuts {
            self.shut(state);
        } else {
            drop(state);
        }
        // Not under the lock: the kernel looks at each of its marks.
        drop(over);
    }

    fn is_to_be_shut(&self) -> bool {
        self.files.totals().writers() > 0 && policy::holds_writers(self.files.level())
    }

    /// Has the kernel ask about everybody who writes past us, and answers.
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

    /// On a thread of its own, if there may be one more.
    fn start(self: &Arc<Self>, work: impl FnOnce(&Arc<Sluice>) + Send + 'static) -> bool {
        let (sluice, part) = (self.clone(), self.files.time().part());
        let work = move || {
            part.for_life();
            work(&sluice);
        };
        std::thread::Builder::new().name("fb-sluice".into()).spawn(work).is_ok()
    }

    /// Until nobody has written past us for a while.
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

    /// Brings the sums of all that is written past us up to date, and how fast it grows.
    pub fn measure_all(&self) {
        for file in self.files.totals().unseen() {
            // Who measures stands behind nobody: the next look is soon.
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

    /// Lets everybody go on for whom there is room, one after the other, and whose turn it is.
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
            // Nothing is evicted for what will never fit.
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

    /// Brings the sums up to date, and forgets what was granted and is in them. Returns what all that
    /// is written past us takes.
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
    /// Returns the marks that have done their work.
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

/// A mark that cannot be set or taken away holds nobody up.
fn note(done: io::Result<()>) {
    if let Err(error) = done {
        tracing::debug!(%error, "marking a shadow file that is written past the daemon");
    }
}
