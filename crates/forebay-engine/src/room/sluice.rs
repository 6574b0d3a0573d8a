//! Holds up programs that write past the daemon while the tier has no room for more: the kernel asks
//! before each of their accesses, and a program that would make a shadow grow waits until there is room.
//!
//! While there is much room the kernel does not ask, and the sluice costs nothing; otherwise a thread of its
//! own answers. A small tier is full in a moment: while any program writes past the daemon another thread
//! looks at such a tier every few milliseconds.
//!
//! On a tier whose file system does not ask, that thread looks at a tier of any size, and while there is hardly any
//! room it has the writers of the files that grow held ([`WriterHolds`]). A store through a mapping is not held: it
//! makes no file longer, but it can fill a hole. Where holds do not work either, writers past the daemon are bounded
//! by their admission alone ([`may_write_unseen`](crate::core::policy::may_write_unseen)).
//!
//! Invariants:
//! - B1: every waiting program is answered: the gate goes with its thread, and with the gate the
//!   kernel's questions.
//! - B2: programs that wait for room which nothing can make are let go on, one file or one thread at a time, so
//!   that files can be closed and flushed: programs that wait for each other would wait for ever otherwise.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::fs;

use crate::core::counters::add;
use crate::core::held;
use crate::core::id::FileId;
use crate::core::policy::{self, Bound};
use crate::core::turns::{Left, Turns, Writer};
use crate::files::Files;
use crate::files::file::File;
use crate::room::Room;
use crate::room::held::{Begun, Held, Watched, WriterHolds};
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

/// A program that was let go on has written by then, or will not write any more.
const GRANTED_FOR: Duration = Duration::from_secs(1);

pub(crate) struct Sluice {
    files: Arc<Files>,
    room: Arc<Room>,
    /// Whether the kernel asks, found out at the first use.
    asks: OnceLock<bool>,
    holds: OnceLock<Arc<dyn WriterHolds>>,
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

/// A question of the kernel that waits for its answer.
struct Waiting {
    asked: Asked,
    ino: u64,
    since: Instant,
}

impl Waiting {
    fn writer(&self) -> Writer {
        let thread = self.asked.thread();
        Writer { file: self.ino, thread: (thread != 0).then_some(thread) }
    }
}

/// All waiting questions, the oldest first, and the known facts about room for them.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    granted: Vec<Granted>,
    turns: Turns,
    /// The bytes of all files written past the daemon, as measured last.
    unseen: u64,
    /// The time of that measurement.
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
        let (asks, holds) = (OnceLock::new(), OnceLock::new());
        Sluice { files, room, asks, holds, state: Mutex::new(Rank::Unseen, state) }
    }

    /// Returns the bound on programs that write to the tier past the daemon.
    pub fn bound(&self) -> Bound {
        match self.holds.get() {
            _ if self.asks() => Bound::Asked,
            Some(holds) if holds.work() => Bound::Held,
            _ => Bound::LetIn,
        }
    }

    /// Gives the sluice the means to hold writers. Returns whether they are needed: where the kernel asks they are not.
    pub fn set_holds(&self, holds: Arc<dyn WriterHolds>) -> bool {
        !self.asks() && self.holds.set(holds).is_ok()
    }

    fn asks(&self) -> bool {
        *self.asks.get_or_init(|| {
            let tried = self.try_to_ask();
            if let Err(error) = &tried {
                tracing::debug!(%error, "the kernel asks nobody before files of the tier are written past the daemon");
            }
            tried.is_ok()
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
        let (bound, shuts) = (self.bound(), self.is_to_be_shut());
        let mut state = self.state.lock();
        if bound == Bound::Asked && !state.be_ready(fd) {
            return;
        }
        if let Some(shut) = &state.shut {
            note(shut.ask(fd));
        }
        let new = || Watched::new(file.clone(), shadow.clone());
        state.watched.entry(file.id).or_insert_with(new).shadow = shadow.clone();
        self.look_if_needed(bound, &mut state);
        if shuts {
            self.shut(bound, state);
        }
    }

    fn look_if_needed(self: &Arc<Self>, bound: Bound, state: &mut State) {
        let is_needed = match bound {
            Bound::Asked => self.files.totals().limit() < policy::SMALL,
            Bound::Held => true,
            Bound::LetIn => false,
        };
        if is_needed && !state.looks && !state.watched.is_empty() {
            state.looks = self.start(|sluice| sluice.look_often());
        }
    }

    /// Ends the watch of a file that no program writes past the daemon any more.
    pub fn leave(&self, id: FileId) {
        let mut state = self.state.lock();
        let Some(gone) = state.watched.remove(&id) else { return };
        if let (Some(shut), Some(fd)) = (&state.shut, gone.shadow.as_fd()) {
            note(shut.ask_no_more(fd));
        }
        // A hold is not given back under the lock.
        drop(state);
        if let Some(lasted) = gone.lasted(self.files.time().now()) {
            self.note_wait(lasted);
        }
    }

    /// Renews marks and shuts the sluice if necessary; called from time to time.
    pub fn tend(self: &Arc<Self>) {
        let (bound, shuts, now) = (self.bound(), self.is_to_be_shut(), self.files.time().now());
        let mut state = self.state.lock();
        let over = state.ready.as_mut().and_then(|ready| ready.renew(now));
        self.look_if_needed(bound, &mut state);
        if shuts {
            self.shut(bound, state);
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
    fn shut(self: &Arc<Self>, bound: Bound, mut state: MutexGuard<'_, State>) {
        if bound != Bound::Asked || state.shut.is_some() || state.watched.is_empty() {
            return;
        }
        let Ok(gate) = Gate::new() else { return };
        let asks = gate.clone();
        let answer = move |sluice: &Sluice| {
            // B1.
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
        let _lets_go = LetsGo(self);
        let (mut busy_at, mut turns) = (self.files.time().now(), Turns::default());
        while !self.files.is_stopping() {
            self.files.time().sleep(policy::LOOK_QUICK);
            self.measure_all();
            let bound = self.bound();
            if let (Bound::Held, Some(holds)) = (bound, self.holds.get()) {
                self.hold_or_let_go(&mut turns, &**holds);
            }
            let (shuts, now) = (self.is_to_be_shut(), self.files.time().now());
            let mut state = self.state.lock();
            if !state.watched.is_empty() {
                busy_at = now;
            } else if now - busy_at > QUIET {
                state.looks = false;
                return;
            }
            if shuts {
                self.shut(bound, state);
            }
        }
    }

    /// Has the writers of files that grow held while there is little room, and makes room.
    fn hold_or_let_go(&self, turns: &mut Turns, holds: &dyn WriterHolds) {
        let charged = self.charged();
        let (now, level) = (self.files.time().now(), self.files.level());
        let free = policy::free_for_unasked(level);
        let is_little = policy::holds_writers(level) || self.files.free_bytes() < free;
        let room = if is_little { held::Room::Little } else { held::Room::Enough };
        let left = self.left(charged.values().sum());
        let seen = self.look(&charged, now);
        let steps = held::steps(turns, now, (room, left), &seen);
        self.take_steps(&seen, &steps, holds, now);
        if !seen.iter().any(|file| file.wants_room(now)) {
            return;
        }
        if is_little {
            self.files.landings().urge();
            self.files.nudge();
        }
        // Clean bytes go while there is still room, so that hardly any program waits for that.
        self.room.has_room_for(2 * free);
    }

    fn look(&self, charged: &HashMap<FileId, u64>, now: Instant) -> Vec<held::Seen> {
        let mut state = self.state.lock();
        let look =
            |(id, watched): (&FileId, &mut Watched)| watched.look(charged.get(id).copied(), now);
        state.watched.iter_mut().map(look).collect()
    }

    /// Files that are not watched any more need no step.
    fn take_steps(
        &self,
        seen: &[held::Seen],
        steps: &[held::Step],
        holds: &dyn WriterHolds,
        now: Instant,
    ) {
        let mut state = self.state.lock();
        let begin = |(file, step): (&held::Seen, &held::Step)| {
            state.watched.get_mut(&FileId(file.id))?.begin(*step, now)
        };
        let begun: Vec<Begun> = seen.iter().zip(steps).filter_map(begin).collect();
        drop(state);
        for step in begun {
            step.lasted.into_iter().for_each(|lasted| self.note_wait(lasted));
            let id = step.id;
            let Some(held) = step.finish(holds) else { continue };
            if let Some(watched) = self.state.lock().watched.get_mut(&id) {
                watched.be_held(held);
            }
        }
    }

    /// The bytes that count of each watched file whose lock is free.
    fn charged(&self) -> HashMap<FileId, u64> {
        let charged = |file: &Arc<File>| Some((file.id, file.try_lock()?.dirty_charged()));
        self.watched().iter().filter_map(|(file, _)| charged(file)).collect()
    }

    /// The things that could make room; `unseen` bytes are those of files written past the daemon.
    fn left(&self, unseen: u64) -> Left {
        Left {
            flushable: self.files.totals().dirty().saturating_sub(unseen),
            progress: self.files.landings().progress(),
            patience: self.files.tune(|t| t.backing_timeout),
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
                self.note_wait_of(at);
                granted.push(Granted { ino: at.ino, growth, at: now });
            }
            is_full
        });
        if !is_full {
            return;
        }
        self.files.landings().urge();
        self.files.nudge();
        let left = self.left(*unseen);
        // B2.
        if let Some(turn) = turns.whose(now, left, waiting.iter().map(Waiting::writer)) {
            waiting.retain(|at| {
                let has = at.writer().shares(&turn);
                has.then(|| self.note_wait_of(at));
                !has
            });
        }
    }

    fn note_wait_of(&self, at: &Waiting) {
        self.note_wait(self.files.time().since(at.since));
    }

    fn note_wait(&self, waited: Duration) {
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

impl State {
    /// Has the kernel be ready to ask about a shadow; `false` if it cannot be.
    fn be_ready(&mut self, fd: BorrowedFd<'_>) -> bool {
        let Some(ready) = &mut self.ready else { return false };
        ready.marked = true;
        let Err(error) = ready.gate.keep_ready(fd) else { return true };
        tracing::debug!(%error, "nobody asks before this file is written past the daemon");
        // Most errors will be the same for the next file.
        if !matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOSPC)) {
            self.ready = None;
        }
        false
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

/// Gives all holds back if the thread that looks at them panics.
struct LetsGo<'a>(&'a Sluice);

impl Drop for LetsGo<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state.lock();
            state.looks = false;
            let held: Vec<Held> = state.watched.values_mut().filter_map(Watched::let_go).collect();
            // A hold is not given back under the lock.
            drop(state);
            drop(held);
        }
    }
}

/// Logs a mark that cannot be set or removed; it holds nothing up.
fn note(done: io::Result<()>) {
    if let Err(error) = done {
        tracing::debug!(%error, "marking a shadow file that is written past the daemon");
    }
}
