//! The decisions of a member: pure, so that a simulation can run them with every delay, loss and death.
//!
//! Input in, effects out; nothing waits in here. The caller gives every input under one lock, in the order in which
//! things happened, and carries the effects out, each in a thread that may wait.
//!
//! - `mirror`: the registry's keys as the watch told them. `ends`: how claims ended.
//! - `own`: the files and directories that this member holds, and how they are given back.
//! - `tasks`: the questions of programs and peers, each from its beginning to its answer.
//! - `opening`, `names`, `peers`: the three kinds of task.
//! - `grants`: how unclaimed files are opened without asking. `holders`: how other members with grants are told.
//! - `copies`: partners that keep copies for this member.
//! - `taking`: copies kept here, and members that this member takes over.
//! - `settling`: taken-over files, until no other member can write to them.
//! - `rules`: the dangers, by name.

mod copies;
mod ends;
mod grants;
mod holders;
mod mirror;
mod names;
mod opening;
mod own;
mod peers;
mod readers;
mod rules;
mod settling;
#[cfg(test)]
mod sim;
mod taking;
mod tasks;
#[cfg(test)]
mod tests;
mod types;

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_backing::FileKey;
pub use forebay_registry::Revision;
use forebay_registry::{Commit, Compare, Entry};

use self::copies::Copies;
pub use self::ends::{End, Ends, Process, Processes};
use self::grants::Grants;
use self::holders::Heard;
pub use self::holders::PATIENCES;
use self::mirror::Mirror;
use self::own::{Batch, Leaving, Own, OwnDir};
pub use self::own::{SETTLE, SOMEWHERE};
use self::peers::Parked;
use self::rules::{Rule, Rules};
use self::taking::Takes;
pub use self::taking::{entering, is_in_its_place, line, taken_from};
use self::tasks::{Doing, Stage, Task, Waiting};
pub use self::types::*;
use crate::keys;

/// Tickets of the core's own have this bit; those of callers must not.
const OWN_TICKETS: Ticket = 1 << 63;

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain values")
}

/// The decisions of one member, and the tasks that wait for others.
pub struct Core {
    me: String,
    epoch: u64,
    patience: Duration,
    rules: Rules,
    now: Duration,
    next: Ticket,
    mirror: Mirror,
    own: BTreeMap<FileKey, Own>,
    own_dirs: BTreeMap<FileKey, OwnDir>,
    tasks: BTreeMap<Ticket, Waiting>,
    commits: BTreeMap<Ticket, Doing>,
    /// Each question's task, and the member that was asked.
    sends: BTreeMap<Ticket, (Ticket, String, Option<FileKey>)>,
    /// The barrier that is under way, and the tasks that began before it.
    barrier: Option<(Ticket, Vec<Ticket>)>,
    /// Tasks that began since the barrier.
    next_barrier: Vec<Ticket>,
    barrier_began: Duration,
    /// When the newest answered barrier began, and its answer.
    last_barrier: Option<(Duration, Revision)>,
    /// How long readers believe a barrier.
    trust: Duration,
    /// New files, whose claims follow.
    new_files: Batch,
    /// Files that are given back.
    giving: Batch,
    /// The gate that this member has put, or is about to put.
    gate: Option<Gate>,
    has_begun: bool,
    /// Questions that came before all dirty files were known.
    early: Vec<(Ticket, Peer)>,
    /// Questions about files that may be being made here right now.
    parked: Vec<Parked>,
    is_superseded: bool,
    /// The end of the lease, from the last input about it.
    lease_until: Option<Duration>,
    /// Others may have taken this member over: see [`Fitness::CutOff`].
    is_suspended: bool,
    grants: Grants,
    /// Other members that have grants.
    heard: BTreeMap<String, Heard>,
    copies: Copies,
    takes: Takes,
    out: Vec<Effect>,
}

struct Gate {
    task: Ticket,
    /// The gate is to be taken away.
    is_over: bool,
    /// The lease that the gate hangs on has run out. The gate stays while a rename is made that had begun before.
    is_lapsed: bool,
    /// The gate that the commit under way deletes: a late commit may have put another gate after it.
    sent: Option<Revision>,
}

impl Core {
    /// `snapshot`: all keys of the store, the member's own among them. `patience`: how long an ask may wait before it
    /// fails. `copies`: how many partners the member wants.
    pub fn new(
        me: String,
        epoch: u64,
        copies: u8,
        snapshot: (Revision, Vec<Entry>),
        patience: Duration,
    ) -> Core {
        let (revision, entries) = snapshot;
        let mine = format!("/members/{me}");
        let own = entries.iter().find_map(|entry| entry.key.strip_suffix(&mine));
        let prefix = own.map(|prefix| format!("{prefix}/")).unwrap_or_default();
        let mut core = Core {
            me,
            epoch,
            patience,
            rules: Rules::default(),
            now: Duration::ZERO,
            next: OWN_TICKETS,
            mirror: Mirror::new(prefix),
            own: BTreeMap::new(),
            own_dirs: BTreeMap::new(),
            tasks: BTreeMap::new(),
            commits: BTreeMap::new(),
            sends: BTreeMap::new(),
            barrier: None,
            next_barrier: Vec::new(),
            barrier_began: Duration::ZERO,
            last_barrier: None,
            trust: Duration::ZERO,
            new_files: Batch::default(),
            giving: Batch::default(),
            gate: None,
            has_begun: false,
            early: Vec::new(),
            parked: Vec::new(),
            is_superseded: false,
            lease_until: None,
            is_suspended: false,
            grants: Grants::default(),
            heard: BTreeMap::new(),
            copies: Copies::new(copies),
            takes: Takes::default(),
            out: Vec::new(),
        };
        let news = core.mirror.snapshot(revision, entries);
        core.heard(news);
        core.look_at_dirs();
        core.begin_copies();
        core.out.clear(); // Knowledge of the store is not older than this process.
        core
    }

    /// The number of tasks that wait for other members with read grants.
    #[cfg(test)]
    pub(crate) fn awaits_grants(&self) -> usize {
        self.tasks.values().filter(|waiting| waiting.stage == Stage::Grants).count()
    }

    #[cfg(test)]
    pub(crate) fn with_rules(mut self, rules: Rules) -> Core {
        self.rules = rules;
        self
    }

    /// Returns what is to be done after an input at `now`, a time that never goes back.
    pub fn handle(&mut self, now: Duration, input: Input) -> Vec<Effect> {
        self.now = now;
        if self.is_cut_off() {
            self.lapse();
        }
        if let Input::Lease(until) = input {
            self.lease_until = Some(until);
        }
        self.look_at_lease();
        match input {
            Input::Ask(ticket, ask) => self.ask(ticket, ask),
            Input::GaveUp(ticket) => self.gave_up(ticket),
            Input::Created { file, dir, path } => self.created(file, dir, path),
            Input::Made(dir, by) => self.made(dir, by),
            Input::Closed(file) => self.unused(file),
            Input::Changed(ticket) => self.changed(ticket),
            Input::Released { file, is_free } => self.released(file, is_free),
            Input::Committed(ticket, outcome) => self.committed(ticket, outcome),
            Input::Barrier(ticket, outcome) => self.reached(ticket, outcome),
            Input::Seen(revision, events) => {
                for event in events {
                    let news = self.mirror.apply(event);
                    self.heard(news.into_iter().collect());
                }
                self.mirror.revision = self.mirror.revision.max(revision);
                self.look_around();
                self.gather_due();
            }
            Input::Snapshot(revision, entries) => {
                let news = self.mirror.snapshot(revision, entries);
                self.heard(news);
                self.look_around();
                self.gather_due();
            }
            Input::Below(ticket, files) => self.found_below(ticket, files),
            Input::Asked(ticket, peer) => self.asked(ticket, peer),
            Input::Answered(ticket, reply) => self.answered(ticket, reply),
            Input::Lease(_) => {}
            Input::LeaseGone => self.lapse(),
            Input::CopyFailed { ticket, partner } => self.copy_failed(ticket, partner),
            Input::FillBegun { partner, fill } => self.fill_begun(&partner, fill),
            Input::Filled { partner, fill, ok } => self.filled(&partner, fill, ok),
            Input::Dismissed { partner, fill } => self.dismissed(&partner, fill),
            Input::Copies { member, files, is_whole } => self.listed(&member, files, is_whole),
            Input::Adopted { file, ok } => self.adopted(file, ok),
            Input::FoundAdopted { file } => self.found_adopted(file),
            Input::Dropped { member } => self.dropped(&member),
            Input::Settled { file, ok } => self.settled(file, ok),
            Input::Fenced => self.stopped(),
            Input::Began => {
                self.has_begun = true;
                self.answer_early();
            }
            Input::Trust(trust) => self.trust = trust,
            Input::Hurry => self.hurry(),
            Input::Tick => {
                if !self.is_superseded {
                    self.tend_own();
                    self.tend_grants();
                    self.tend_holders();
                    self.tend_gate();
                }
                self.mirror.has_moved = true;
                self.tend_fence();
                self.lose_patience();
            }
        }
        if std::mem::take(&mut self.mirror.has_moved) {
            self.tend_copies();
            self.tend_taking();
        }
        self.look_at_lease();
        self.answer_parked();
        self.say_how_far();
        self.advance();
        self.ask_how_far();
        self.begin_barrier();
        std::mem::take(&mut self.out)
    }

    /// A member that may have been taken over stands still without its lease.
    fn look_at_lease(&mut self) {
        let is_cut_off = self.fit(self.now) == Fitness::CutOff;
        if is_cut_off == self.is_suspended || self.is_superseded {
            return;
        }
        self.is_suspended = is_cut_off;
        self.out.push(if is_cut_off { Effect::Suspend } else { Effect::Resume });
        if !is_cut_off {
            self.answer_early();
            self.mirror.has_moved = true;
        }
    }

    /// Answers questions of others that came too early to be answered.
    fn answer_early(&mut self) {
        for (ticket, peer) in std::mem::take(&mut self.early) {
            self.asked(ticket, peer);
        }
    }

    fn look_around(&mut self) {
        self.look_at_dirs();
        self.tend_takes();
        let me = self.mirror.members.get(&self.me);
        if me.is_some_and(|(me, _)| me.epoch != self.epoch)
            && !self.is_superseded
            && self.rules.obey(Rule::EpochStands)
        {
            self.is_superseded = true;
            self.out.push(Effect::Superseded);
            let tasks: Vec<Ticket> = self.tasks.keys().copied().collect();
            for task in tasks {
                self.fail(task, Why::Superseded);
            }
            self.end_copies();
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        self.next
    }

    /// Sends a commit. `takes`: the commit takes something new, which the gate forbids.
    fn commit(&mut self, doing: Doing, mut commit: Commit, takes: bool) {
        // The member's key, which is compared below, has another process's epoch by now.
        if self.is_superseded {
            return;
        }
        if takes && self.rules.obey(Rule::GateStopsClaims) {
            let key = self.mirror.key("gate");
            match &self.mirror.gate {
                // The mount makes its own programs and its own rename take turns.
                Some((gate, revision)) if gate.by == self.me => {
                    commit.compares.push(Compare::Revision(key, *revision));
                }
                _ => commit = commit.if_absent(key),
            }
        }
        if self.rules.obey(Rule::EpochStands)
            && let Some((me, revision)) = self.mirror.members.get(&self.me)
        {
            // A commit that compares another process's key would come to pass in that process's name.
            if me.epoch != self.epoch {
                return;
            }
            let key = self.mirror.key(&format!("members/{}", self.me));
            commit.compares.push(Compare::Revision(key, *revision));
        }
        let ticket = self.ticket();
        self.commits.insert(ticket, doing);
        self.out.push(Effect::Commit(ticket, commit));
    }

    /// Whether another member renames a directory.
    fn is_gated(&self) -> bool {
        self.mirror.gate.as_ref().is_some_and(|(gate, _)| gate.by != self.me)
    }

    /// The holder of newer bytes of a file, as far as the watch has told.
    pub fn holder(&self, file: FileKey) -> Holder {
        if self.own.contains_key(&file) {
            return Holder::Here;
        }
        match self.mirror.claims.get(&file) {
            Some(claim) if claim.member == self.me => Holder::Here,
            Some(claim) if self.mirror.alive.contains(&claim.member) => {
                Holder::There(claim.member.clone())
            }
            Some(claim) => Holder::Dead(claim.member.clone()),
            None => Holder::Nobody,
        }
    }

    /// Whether this member is a file's home for certain at `now`, so that a member that asks it needs no barrier
    /// before: it has the claim, no other member can have it yet, and a member that takes over has to wait for the
    /// lease. Returns the revision up to which the ends of claims are older than that knowledge.
    pub fn vouches(&self, now: Duration, file: FileKey) -> Option<Revision> {
        let as_of = || self.own.get(&file)?.claim;
        self.is_home(now, file).then(|| as_of().unwrap_or(self.mirror.revision))
    }

    fn is_home(&self, now: Duration, file: FileKey) -> bool {
        if !self.rules.obey(Rule::HomeVouches) {
            return self.holder(file) == Holder::Here;
        }
        let has_lease = self.lease_until.is_some_and(|until| now < until);
        let stays = |own: &Own| !matches!(own.leaving, Leaving::Giving { .. });
        has_lease && self.fit(now) == Fitness::Fit && self.own.get(&file).is_some_and(stays)
    }

    /// The revision of the mirror: everything up to it has been heard of.
    pub fn revision(&self) -> Revision {
        self.mirror.revision
    }

    /// Whether another member may take this member over, or does: a caller that needs its files waits.
    pub fn has_heirs_of(&self, member: &str) -> bool {
        self.heirs_left(member).any(|name| self.mirror.alive.contains(name))
    }

    /// Whether a file has writers, or is not held by this member, in which case the writers are unknown.
    pub fn is_written(&self, file: FileKey) -> bool {
        self.own.get(&file).is_none_or(|own| own.uses > 0)
    }

    /// Files that this member holds.
    pub fn held(&self) -> Vec<FileKey> {
        self.own.keys().copied().collect()
    }

    /// A member's newest process.
    pub fn process(&self, name: &str) -> Option<Process> {
        self.mirror.processes.get(name).cloned()
    }

    /// The end of all claims that stood before this revision: to be called at the moment at which the end is heard.
    fn end(&self, at: Revision) -> End {
        End { at, processes: self.mirror.processes.clone() }
    }

    /// The other members that are alive.
    pub fn others(&self) -> Vec<String> {
        self.mirror.alive.iter().filter(|member| **member != self.me).cloned().collect()
    }

    /// The first by name of the members that are alive.
    pub fn first_alive(&self) -> Option<String> {
        self.mirror.alive.iter().min().cloned()
    }

    /// The newest record of a member.
    pub fn member(&self, name: &str) -> Option<keys::Member> {
        self.mirror.members.get(name).map(|(member, _)| member.clone())
    }
}
