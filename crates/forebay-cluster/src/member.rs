//! One mount as a member: carries out the decisions of the core.
//!
//! Every input reaches the core under one lock, and its effects are put in order before the lock is released: waiting
//! callers are answered, and work that may wait is queued for [`Hands`]. A file that the core says to forget is noted
//! under the same lock: no open that is answered later believes what was known of the file before.

mod copies;
mod desk;
mod door;
mod hands;
mod join;
mod near;
mod operate;
mod others;
mod overview;
mod reach;
mod stale;
mod tend;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use forebay_backing::FileKey;
use forebay_base::lock::{Condvar, Mutex, Rank, asks_a_member, asks_the_registry, sleep};
use forebay_base::{Error, Kind, Result};
use forebay_registry::{BootClock, Change as Put, Clock, Commit, Lease, Registry, Revision};

use self::door::Places;
use self::hands::Hands;
use self::others::Others;
use self::reach::Reach;
use self::stale::Stale;
use crate::core::{
    Access, Ask, Core, Effect, GIVEN_LEASE, Input, OWN_LEASE, PATIENCES, Peer, Process, Reply,
    Ticket, Way, Why,
};
use crate::front::{Desk, Front};
use crate::keys;
use crate::peer::{Door, Peers};
use crate::words::{Answer, Head, Question, Refusal};

pub use self::join::{Joining, Sorting, keeps_its_place};
pub use self::operate::Missing;
pub use self::overview::{Overview, Seen};
pub use crate::core::Holder;

/// The core's decisions take no longer than its patience; this margin is for the machine.
const MARGIN: Duration = Duration::from_secs(2);

/// A barrier writes a key of its own for the watch to see after the watch has stood still for this long: a revision
/// of another store's key never reaches this store's watch.
const LAG: Duration = Duration::from_millis(3);

/// A watch that moves is waited for longer. Each key that a barrier writes is one more change for all members to hear
/// of, and for their barriers to wait for: where many commit at once, barriers' keys would be most of the changes.
const LAG_MAX: Duration = Duration::from_millis(30);

/// The pause before a busy member is asked again.
const BUSY: Duration = Duration::from_millis(20);

/// How long a member waits to hear of a change in another member's key.
const HEARING: Duration = Duration::from_secs(2);

/// Makes everything durable that this machine gave to the store, also by processes that have ended.
pub type SyncStore = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// The place that serves a program's open.
pub enum Opening {
    /// This mount's own engine. For a writer the claim is held until the guard is dropped.
    Here(Option<Held>),
    /// The member that is the file's home: ask it with [`Member::ask`].
    There(String),
}

/// A change of names or attributes.
pub enum Changing {
    /// This member makes the change, and drops the guard when it is made.
    Here(Change),
    There(String),
    /// As `Here`, but the named member, the home of the replaced file, makes the rename on the store.
    Through(String, Change),
}

/// One mount of a store that members share.
pub struct Member {
    name: String,
    store: String,
    epoch: u64,
    /// The life before this one, if another member took its place.
    pub(crate) taken_life: Option<u64>,
    sorting: Sorting,
    /// On `CLOCK_BOOTTIME`, as leases count: what hangs on a lease must end with it, also if the machine slept.
    began: Duration,
    patience: Duration,
    registry: Arc<dyn Registry>,
    pub(crate) core: Mutex<Core>,
    next: AtomicU64,
    asked: Waiting<Way>,
    replies: Waiting<Reply>,
    struck: Waiting<bool>,
    hands: Hands,
    front: OnceLock<Weak<dyn Front>>,
    desk: OnceLock<Box<dyn Desk>>,
    peers: Peers,
    door: OnceLock<Door>,
    lease: Mutex<Option<Box<dyn Lease>>>,
    given_lease: Mutex<Option<Box<dyn Lease>>>,
    /// The revision that the watch has reached.
    reached: (Mutex<Revision>, Condvar),
    /// Files of which the mount's knowledge is no longer valid.
    stale: Mutex<HashMap<FileKey, Stale>>,
    /// The number of other members that are to have this member's acknowledged bytes.
    copies: u8,
    /// Whether an fsync fails that reaches fewer members than `copies`.
    copies_or_fail: bool,
    /// Each part of a file is read from the store by one member, for all.
    shares_reads: bool,
    /// Files that were taken over, and that the engine does not serve yet. Each is locked while the engine begins to
    /// serve it: an open waits for that file, and for no other.
    taken: Mutex<HashMap<FileKey, Arc<Mutex<Begun>>>>,
    others: Others,
    /// Places for the questions that are answered for others at once.
    places: Places,
    reach: Reach,
    /// The registry's last failure, and when it was.
    trouble: Mutex<Option<(Duration, String)>>,
    sync_store: SyncStore,
    /// Nothing may be served or acknowledged now.
    is_suspended: AtomicBool,
    superseded: AtomicBool,
    /// No more files are flushed for the sake of a give-back.
    leaving: AtomicBool,
    left: AtomicBool,
}

/// Whether the engine serves a file that was taken over.
struct Begun(bool);

/// What became of a caller's question.
enum Asked {
    Answered(Way),
    Waits(Receiver<Way>),
}

/// Callers that wait for an answer of the core.
struct Waiting<T>(Mutex<HashMap<Ticket, SyncSender<T>>>);

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting(Mutex::new(Rank::MemberNotes, HashMap::new()))
    }
}

impl<T> Waiting<T> {
    fn enter(&self, ticket: Ticket) -> Receiver<T> {
        let (to, from) = sync_channel(1);
        self.0.lock().insert(ticket, to);
        from
    }

    fn answer(&self, ticket: Ticket, answer: T) {
        if let Some(to) = self.0.lock().remove(&ticket) {
            let _ = to.send(answer); // A caller that gave up does not listen.
        }
    }

    fn leave(&self, ticket: Ticket) {
        self.0.lock().remove(&ticket);
    }
}

/// A claim that a writer needs: it is not given back before this guard is dropped.
pub struct Held {
    member: Arc<Member>,
    file: FileKey,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.member.feed(Input::Closed(self.file));
    }
}

/// A file that is being made: its directory stays claimed for new files.
#[must_use]
pub struct Making {
    member: Arc<Member>,
    dir: FileKey,
    ticket: Ticket,
}

impl Drop for Making {
    fn drop(&mut self) {
        self.member.feed(Input::Made(self.dir, self.ticket));
    }
}

/// A change that is under way here.
pub struct Change {
    member: Arc<Member>,
    ticket: Ticket,
}

impl Change {
    /// Whether a directory's rename may still be made: the lease of the gate that was granted may have run out since.
    pub fn may_rename(&self) -> bool {
        self.member.core.lock().may_rename(self.member.now(), self.ticket)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.member.feed(Input::Changed(self.ticket));
    }
}

impl Member {
    /// The name by which others know the member.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn store(&self) -> &str {
        &self.store
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether another process has taken this member's place.
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Relaxed)
    }

    /// The address where others reach this member.
    pub fn address(&self) -> String {
        self.door.get().map(|door| door.address().to_string()).unwrap_or_default()
    }

    /// The holder of newer bytes of a file, as far as this member has heard: never waits.
    pub fn holder(&self, file: FileKey) -> Holder {
        self.core.lock().holder(file)
    }

    /// Checks that this member is a file's home for certain: a member that asks it then needs no barrier. From then on
    /// the engine serves bytes that were taken over, or flushed by others, and not its earlier ones. Returns a registry
    /// revision at which this member had the file. It is read while the file is held: a revision that is read
    /// afterwards could be newer than the give-back.
    pub fn vouches(&self, file: FileKey) -> Option<Revision> {
        let vouches = || self.core.lock().vouches(self.now(), file);
        vouches()?;
        self.freshen(file).ok()?;
        vouches() // The file may have been given back while the engine was told.
    }

    /// Sets how old a barrier may be that an open for reading still believes.
    pub fn trust(self: &Arc<Member>, trust: Duration) {
        self.feed(Input::Trust(trust));
    }

    /// Whether a program may be writing to the file: this member does not hold it, or a program, here or of another
    /// member, has it open for writing or changes it. Never waits.
    pub fn is_written(&self, file: FileKey) -> bool {
        self.core.lock().is_written(file)
    }

    /// How often a member has begun, as far as this one has heard. For this member: the epoch with which it began; a
    /// newer epoch of its key belongs to another process.
    pub fn epoch_of(&self, member: &str) -> Option<u64> {
        if member == self.name {
            return Some(self.epoch);
        }
        self.core.lock().member(member).map(|member| member.epoch)
    }

    /// The newest process of another member.
    pub fn process_of(&self, member: &str) -> Option<Process> {
        self.core.lock().process(member)
    }

    /// The newest registry revision that this member has heard of.
    pub fn revision(&self) -> Revision {
        self.core.lock().revision()
    }

    /// The other members that are alive.
    pub fn others(&self) -> Vec<String> {
        self.core.lock().others()
    }

    /// Files that this member holds.
    pub fn held(&self) -> Vec<FileKey> {
        self.core.lock().held()
    }

    /// To be called before a file is opened, truncated or locked. `dir` is the directory in which the file was found.
    ///
    /// # Errors
    ///
    /// EIO if the file's home is dead and no other member has its bytes; ETIMEDOUT if the registry does not answer.
    pub fn open(
        self: &Arc<Member>,
        file: FileKey,
        dir: FileKey,
        path: &Path,
        how: Access,
    ) -> Result<Opening> {
        let ask = Ask::Open { file, dir, path: path.into(), how };
        let (_, way) = self.settle(ask, path)?;
        match way {
            Way::Here => {
                let member = self.clone();
                let held = how.writes().then(|| Held { member, file });
                self.freshen(file)?;
                Ok(Opening::Here(held))
            }
            Way::There { home } | Way::Through { home } => {
                // The former home has flushed all that it accepted; nothing is owed for that any more.
                self.forget_stale(file);
                Ok(Opening::There(home))
            }
            Way::Fails(why) => Err(self.failed(why, path)),
        }
    }

    /// Whether it matters in which directory a file is opened: files may be opened without asking the registry, and
    /// others make files in some directory.
    pub fn needs_dir(&self) -> bool {
        self.core.lock().needs_dir()
    }

    /// To be called before a file is made in a directory; the guard is dropped when the file is made, or cannot be.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT if the registry does not answer; EBUSY while a directory above is being renamed.
    pub fn create(self: &Arc<Member>, dir: FileKey, path: &Path) -> Result<Making> {
        let (ticket, way) = self.settle(Ask::Create { dir, path: path.into() }, path)?;
        match way {
            Way::Fails(why) => Err(self.failed(why, path)),
            Way::Here | Way::There { .. } | Way::Through { .. } => {
                Ok(Making { member: self.clone(), dir, ticket })
            }
        }
    }

    /// To be called right after a file was made, before any program hears of it.
    pub fn created(self: &Arc<Member>, file: FileKey, dir: FileKey, path: &Path) -> Held {
        self.feed(Input::Created { file, dir, path: path.into() });
        Held { member: self.clone(), file }
    }

    /// To be called before names or attributes of files are changed, each given with its directory. Of two homes one
    /// is asked to give its file back. `below`: a directory is renamed, and no other member may hold files in it.
    ///
    /// # Errors
    ///
    /// EBUSY if files below are in use elsewhere; otherwise as [`Member::open`].
    pub fn change(
        self: &Arc<Member>,
        files: &[(FileKey, FileKey)],
        below: Option<&Path>,
    ) -> Result<Changing> {
        let (files, dirs) = files.iter().copied().unzip();
        let ask = Ask::Change { files, dirs, below: below.map(Path::to_path_buf) };
        self.granted(ask, below.unwrap_or(Path::new("")))
    }

    /// To be called before `file` is renamed to `at`, a name that is taken from `over`; each is given with its
    /// directory.
    ///
    /// # Errors
    ///
    /// As [`Member::open`].
    pub fn replace(
        self: &Arc<Member>,
        file: (FileKey, FileKey),
        over: (FileKey, FileKey),
        at: &Path,
    ) -> Result<Changing> {
        let (files, dirs) = ([file.0, over.0], [file.1, over.1]);
        self.granted(Ask::Replace { files, dirs, at: at.into() }, at)
    }

    fn granted(self: &Arc<Member>, ask: Ask, path: &Path) -> Result<Changing> {
        let (ticket, way) = self.settle(ask, path)?;
        let change = || Change { member: self.clone(), ticket };
        match way {
            Way::Here => Ok(Changing::Here(change())),
            Way::There { home } => Ok(Changing::There(home)),
            Way::Through { home } => Ok(Changing::Through(home, change())),
            Way::Fails(why) => Err(self.failed(why, path)),
        }
    }

    /// Asks another member, within the patience. `bytes` go with the question; bytes that come with the answer are
    /// put into `out`, from its beginning.
    ///
    /// # Errors
    ///
    /// The refusal in the answer: ESTALE for [`Refusal::NotHere`] and [`Refusal::Epoch`] (look again), the errno with
    /// which the call failed. [`Kind::Unavailable`] for [`Refusal::Handle`], and that or [`Kind::TimedOut`] if the
    /// member is out of reach: the request may have been carried out.
    pub fn ask(
        &self,
        home: &str,
        question: &Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        self.ask_within(home, question, [bytes, b""], out, self.patience)
    }

    fn ask_within(
        &self,
        home: &str,
        question: &Question,
        bytes: [&[u8]; 2],
        out: &mut Vec<u8>,
        patience: Duration,
    ) -> Result<Answer> {
        asks_a_member();
        let began = Instant::now();
        let asked = loop {
            let Some(known) = self.core.lock().member(home) else {
                return Err(Error::new(Kind::Unavailable, format!("member {home} is not known")));
            };
            let head = Head {
                store: self.store.clone(),
                from: self.name.clone(),
                from_epoch: self.epoch,
                to_epoch: known.epoch,
                protocol: keys::PROTOCOL,
            };
            let left = patience.saturating_sub(began.elapsed());
            let asked = self.peers.ask_with(&known.address, &head, question, bytes, out, left);
            if matches!(asked, Ok(Answer::Refused(Refusal::Busy)))
                && began.elapsed() + BUSY < patience
            {
                sleep(BUSY);
                continue;
            }
            // The member has begun anew, and this one has not heard of it yet. Nothing was done.
            let newer =
                matches!(&asked, Ok(Answer::Refused(Refusal::Epoch(now))) if *now > known.epoch);
            if !newer || question.is_of_a_life() || began.elapsed() >= HEARING {
                break asked;
            }
            sleep(Duration::from_millis(10));
        };
        self.reach.note(home, question, asked.as_ref().err());
        let answer = asked.map_err(|error| {
            // To a program this is an error of the file, whatever the network called it.
            let timed_out = error.kind() == Kind::TimedOut;
            let kind = if timed_out { Kind::TimedOut } else { Kind::Unavailable };
            Error::new(kind, format!("member {home} was not reached")).with_source(error)
        })?;
        match answer {
            Answer::Refused(Refusal::Epoch(_)) | Answer::Refused(Refusal::NotHere) => {
                Err(Error::os(libc::ESTALE, format!("member {home} does not hold it")))
            }
            Answer::Refused(Refusal::Busy) => {
                let what = format!("member {home} is asked for too much at once");
                Err(Error::new(Kind::TimedOut, what))
            }
            Answer::Refused(Refusal::Handle) => {
                let what = format!("member {home} has begun anew meanwhile");
                Err(Error::new(Kind::Unavailable, what))
            }
            Answer::Refused(Refusal::Errno(errno, text)) => {
                Err(Error::os(errno, format!("member {home}: {text}")))
            }
            answer => Ok(answer),
        }
    }

    fn now(&self) -> Duration {
        BootClock.now().saturating_sub(self.began)
    }

    fn ticket(&self) -> Ticket {
        self.next.fetch_add(1, Relaxed)
    }

    /// Asks the core, and waits for the answer.
    fn settle(self: &Arc<Member>, ask: Ask, path: &Path) -> Result<(Ticket, Way)> {
        asks_the_registry();
        let ticket = self.ticket();
        let is_change = matches!(ask, Ask::Change { .. } | Ask::Replace { .. });
        let answer = match self.put(ticket, ask) {
            Asked::Answered(way) => return Ok((ticket, way)),
            Asked::Waits(answer) => answer,
        };
        match answer.recv_timeout(self.patience * PATIENCES + MARGIN) {
            Ok(way) => Ok((ticket, way)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                self.feed(Input::GaveUp(ticket));
                self.asked.leave(ticket);
                // The answer may have come just before; a change that was granted is undone by now.
                match answer.try_recv() {
                    Ok(way) if !is_change => Ok((ticket, way)),
                    _ => Err(self.failed(Why::NoRegistry, path)),
                }
            }
        }
    }

    fn note_trouble(&self, error: &Error) {
        *self.trouble.lock() = Some((self.now(), error.to_string()));
    }

    /// The reason for an error of kind [`Why::NoRegistry`]: the registry's last failure while the caller waited, or that
    /// the registry does not answer.
    fn trouble(&self) -> String {
        let waited = self.patience * PATIENCES + MARGIN;
        match &*self.trouble.lock() {
            Some((at, said)) if self.now().saturating_sub(*at) <= waited => {
                format!("the registry agrees to nothing: {said}")
            }
            _ => format!("the registry {} does not answer", self.registry.address()),
        }
    }

    fn failed(&self, why: Why, path: &Path) -> Error {
        let path = path.display();
        let error = match why {
            Why::HomeDead(home) => Error::new(
                Kind::Unavailable,
                format!(
                    "{path}: its newest bytes are with member {home}, which is dead: mount its tier again, there or elsewhere"
                ),
            ),
            Why::Busy(home) => Error::os(libc::EBUSY, format!("{path}: in use at member {home}")),
            Why::NoRegistry => Error::new(Kind::TimedOut, format!("{path}: {}", self.trouble())),
            Why::Superseded => Error::os(
                libc::EIO,
                format!("{path}: member {} was taken over by another", self.name),
            ),
        };
        tracing::warn!(%error, "refused");
        error
    }

    /// Gives the core an input, and puts its effects in order.
    fn feed(self: &Arc<Member>, input: Input) {
        let mut core = self.core.lock();
        let effects = core.handle(self.now(), input);
        // Under the lock: the effects of one input are in order before those of the next.
        for effect in effects {
            self.carry_out(effect);
        }
    }

    /// As `feed`, for a caller's question, most of which are answered at once. The caller itself asks for a barrier
    /// that begins with its question, which saves waking two threads.
    fn put(self: &Arc<Member>, ticket: Ticket, ask: Ask) -> Asked {
        let (mut begun, mut answered) = (None, None);
        let mut core = self.core.lock();
        for effect in core.handle(self.now(), Input::Ask(ticket, ask)) {
            match effect {
                Effect::Barrier(ticket) => begun = Some(ticket),
                Effect::Answer(to, way) if to == ticket => answered = Some(way),
                effect => self.carry_out(effect),
            }
        }
        // Under the lock: no answer comes before the caller waits for it.
        let put = answered.map_or_else(|| Asked::Waits(self.asked.enter(ticket)), Asked::Answered);
        drop(core);
        if let Some(ticket) = begun {
            self.ask_barrier(ticket);
        }
        put
    }

    fn carry_out(self: &Arc<Member>, effect: Effect) {
        let member = self.clone();
        match effect {
            Effect::Answer(ticket, way) => self.asked.answer(ticket, way),
            Effect::Reply(ticket, reply) => self.replies.answer(ticket, reply),
            Effect::Commit(ticket, commit) => self.hands.registry.leave(move || {
                let outcome = member.leased(commit).and_then(|it| member.registry.commit(&it));
                let outcome = outcome.inspect_err(|error| {
                    tracing::warn!(%error, "a commit of this member failed");
                    member.note_trouble(error);
                });
                member.feed(Input::Committed(ticket, outcome.map_err(drop)));
            }),
            Effect::Barrier(ticket) => {
                self.hands.registry.leave(move || member.ask_barrier(ticket));
            }
            Effect::Send { ticket, to, question } => self.hands.peers.leave(move || {
                let reply = member.send(&to, question).inspect_err(|error| {
                    tracing::debug!(%error, to, "a member was not asked");
                });
                member.feed(Input::Answered(ticket, reply.map_err(drop)));
            }),
            Effect::Release { file, flush } => self.hands.mount.leave(move || {
                let flush = flush && !member.leaving.load(Relaxed);
                let front = member.front();
                let is_free = front.is_some_and(|front| match flush {
                    true => front.release(file),
                    false => front.is_free(file),
                });
                member.feed(Input::Released { file, is_free });
            }),
            Effect::Forget { file, end } => {
                self.note_stale(file, end);
                // An open does this, too.
                self.hands.mount.leave(move || _ = member.freshen(file));
            }
            Effect::Lost { file } => self.hands.mount.leave(move || {
                member.front().into_iter().for_each(|front| front.lost(file));
            }),
            Effect::FindBelow { ticket, path } => self.hands.mount.leave(move || {
                let files = member.front().map(|front| front.below(&path)).unwrap_or_default();
                member.feed(Input::Below(ticket, files));
            }),
            Effect::Superseded => {
                self.superseded.store(true, Relaxed);
                self.is_suspended.store(true, Relaxed);
                tracing::error!(
                    member = self.name,
                    "another has taken this member's place: nothing more is acknowledged here; unmount, and mount again"
                );
                self.stop();
            }
            Effect::Suspend => {
                self.is_suspended.store(true, Relaxed);
                tracing::warn!("the lease has run out: nothing is served before it is renewed");
                self.suspend_or_resume();
            }
            Effect::Resume => {
                self.is_suspended.store(false, Relaxed);
                self.suspend_or_resume();
            }
            Effect::Fill { partner, fill } => self.fill_up(partner, fill),
            Effect::Unfilled { partner, fill } => self.leave_partner(partner, fill),
            Effect::Struck { ticket, ok } => self.struck.answer(ticket, ok),
            Effect::ListCopies { member: home } => self.list_copies(home),
            Effect::Adopt { member: home, file } => self.adopt(home, file),
            Effect::Taken { file, end } => {
                let taken = Arc::new(Mutex::new(Rank::Taking, Begun(false)));
                self.taken.lock().insert(file, taken);
                self.note_stale(file, Some(end));
                self.begin_taken(file);
            }
            Effect::Disown { file } => self.disown(file),
            Effect::DropCopies { member: home } => self.with_copies(move |member, front| {
                front.drop_copies(&home);
                member.feed(Input::Dropped { member: home });
            }),
            Effect::Settle { file } => self.settle_taken(file),
        }
    }

    /// Replaces the core's stand-ins by the numbers of the leases.
    ///
    /// # Errors
    ///
    /// If this member has given its leases up: without a lease a key would stay for ever.
    fn leased(&self, mut commit: Commit) -> Result<Commit> {
        let number = |of: &Mutex<Option<Box<dyn Lease>>>| {
            let number = of.lock().as_ref().map(|lease| lease.id());
            number.ok_or_else(|| Error::new(Kind::Lapsed, "this member has left"))
        };
        for change in &mut commit.changes {
            let Put::Put { lease, .. } = change else { continue };
            match *lease {
                Some(OWN_LEASE) => *lease = Some(number(&self.lease)?),
                Some(GIVEN_LEASE) => *lease = Some(number(&self.given_lease)?),
                _ => {}
            }
        }
        Ok(commit)
    }

    fn front(&self) -> Option<Arc<dyn Front>> {
        self.front.get().and_then(Weak::upgrade)
    }

    fn send(&self, to: &str, question: Peer) -> Result<Reply> {
        let question = match question {
            Peer::Holds { file, dir } => Question::Holds { file, dir },
            Peer::Recall { file } => Question::Recall { file },
            Peer::RecallBelow { path } => Question::RecallBelow { path },
            Peer::Changed { file } => Question::Changed { file },
            Peer::Reached { revision } => Question::Reached { revision: revision.0 },
        };
        match self.ask(to, &question, &[], &mut Vec::new())? {
            Answer::Done => Ok(Reply::Done),
            Answer::Holds(holds) => Ok(Reply::Holds(holds)),
            Answer::Given(given) => Ok(Reply::Given(given)),
            Answer::Reached(revision) => Ok(Reply::Reached(Revision(revision))),
            other => Err(Error::os(libc::EPROTO, format!("member {to} answered {other:?}"))),
        }
    }

    /// Asks for a revision as new as every commit that has returned, and that the watch has reached or will reach.
    fn ask_barrier(self: &Arc<Member>, ticket: Ticket) {
        let newest = match self.registry.barrier() {
            Ok(newest) => newest,
            Err(error) => return self.barrier_ends(ticket, Err(error)),
        };
        if self.catches_up(newest) {
            return self.barrier_ends(ticket, Ok(newest));
        }
        // The caller has time for one request only.
        let member = self.clone();
        self.hands.registry.leave(move || {
            let written = member.tick();
            member.barrier_ends(ticket, written);
        });
    }

    /// Whether the watch reaches a revision while it moves.
    fn catches_up(&self, newest: Revision) -> bool {
        let (began, (reached, more)) = (Instant::now(), &self.reached);
        let mut reached = reached.lock();
        while *reached < newest && began.elapsed() < LAG_MAX {
            let before = *reached;
            let stands = |reached: &mut Revision| *reached == before;
            reached = more.wait_timeout_while(reached, LAG, stands).0;
            if *reached == before {
                return false;
            }
        }
        *reached >= newest
    }

    fn barrier_ends(self: &Arc<Member>, ticket: Ticket, reached: Result<Revision>) {
        let reached = reached.inspect_err(|error| {
            tracing::warn!(%error, "the registry was not asked");
            self.note_trouble(error);
        });
        self.feed(Input::Barrier(ticket, reached.map_err(drop)));
    }

    /// Writes a key of this member's own, for the watch to see.
    fn tick(&self) -> Result<Revision> {
        let key = format!("stores/{}/ticks/{}", self.store, self.name);
        let tick = self.leased(Commit::new().put_leased(key, "", OWN_LEASE))?;
        self.registry.commit(&tick)?.committed().ok_or_else(|| {
            Error::new(Kind::Unavailable, "the registry refused a commit that compares nothing")
        })
    }
}
