//! Members with their mounts, a registry, a backing store and a network, all in one queue of events that a
//! seed decides. Times are milliseconds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Change, Commit, Outcome, Revision};

use super::clocks::Clock;
use super::counts::{Counts, Dice};
use super::keeping::{After, Copy, Fill, Keep, Sync, Waiter, Why};
use super::load::{Asked, Op};
use super::moves::Entering;
use super::power::Disk;
use super::registry::Model;
use super::{Neglect, Plan};
use crate::core::rules::Rules;
use crate::core::{Core, Effect, Fitness, Input, Peer, Reply, Ticket, entering};
use crate::keys;

pub const PATIENCE: u64 = 1000;
pub const FAULTS_END: u64 = 5000;
const END: u64 = 17_000;
pub const LEASE: u64 = 300;
/// How long a call to the store may go on after its caller has died.
pub const OUTLIVES: u64 = 2000;

#[derive(Default)]
pub struct Node {
    pub core: Option<Core>,
    pub clock: Clock,
    /// The member never comes back.
    pub is_dead: bool,
    pub life: u64,
    pub epoch: u64,
    pub seen: u64,
    /// Nothing passes from the member to the registry, or to its peers, until these times.
    pub cut_registry: u64,
    pub cut_peers: u64,
    pub paused: u64,
    /// Until this time the member's watch tells it nothing, though the rest of the registry answers.
    pub behind: u64,
    /// Until this time the member takes no copies.
    pub full: u64,
    /// When the registry ends the member's lease.
    pub lease_at: u64,
    /// Files that were found in the tier have their standing; nothing is flushed before that.
    pub has_begun: bool,
    /// In the tier: the line in which that was so last.
    pub sorted: Option<u64>,
    pub is_suspended: bool,
    pub is_superseded: bool,
    pub asked: BTreeMap<Ticket, Asked>,
    pub questions: BTreeMap<Ticket, (usize, u64, Ticket)>,
    pub writers: BTreeMap<usize, u32>,
    pub cached: BTreeMap<usize, u64>,
    /// In the tier: the newest bytes, their durable part, and the store's version when they were written.
    pub dirty: BTreeMap<usize, u64>,
    pub synced: BTreeMap<usize, u64>,
    pub base: BTreeMap<usize, u64>,
    /// Files flushed since they were taken over.
    pub flushed: BTreeSet<usize>,
    /// Also in the tier: copies by home and file, and the files adopted from them.
    pub copies: BTreeMap<(usize, usize), Copy>,
    /// Homes of which some copies were lost in the tier.
    pub damaged: BTreeSet<usize>,
    pub adopted: BTreeMap<usize, u64>,
    /// The numbers of the claims under which files were adopted.
    pub adopted_under: BTreeMap<usize, u64>,
    /// Files that another member has taken over; this member may not know it yet.
    pub stale: BTreeSet<usize>,
    pub held: BTreeSet<usize>,
    pub claimed_early: BTreeSet<usize>,
    pub flushing: BTreeSet<usize>,
    /// The durable part of these: [`power`](super::power).
    pub disk: Disk,
    /// Calls to the store that are under way, whatever becomes of the process.
    pub landing: BTreeMap<u64, (usize, u64)>,
    pub syncs: BTreeMap<u64, Sync>,
    pub strikes: BTreeMap<Ticket, (u64, usize)>,
    pub fills: BTreeMap<u64, Fill>,
}

/// One file: the bytes at the store, and the newest ones that were written, acknowledged, and acknowledged
/// as synced.
#[derive(Default, Clone)]
pub struct File {
    pub store: u64,
    /// The version of the store's bytes: it changes with each write, whatever was written.
    pub version: u64,
    pub newest: u64,
    /// The last number of a write: no number is used twice.
    pub last: u64,
    pub acked: u64,
    pub synced: u64,
    /// Unsynced bytes that were lost with their home: (all above, up to, when).
    pub void: Vec<(u64, u64, u64)>,
    /// When the claim was last taken over.
    pub moved: u64,
    /// The member that made the file.
    pub maker: Option<usize>,
    /// The directories where the file has names, once it has left the directory where it was made; and an
    /// earlier directory.
    pub dirs: BTreeSet<usize>,
    pub before: Option<usize>,
    /// Another member has asked for the file.
    pub is_opened: bool,
}

pub enum What {
    Tick(usize),
    Watch(usize),
    Program(usize),
    Fault,
    Give(usize, u64, Input),
    /// Effects that a process had decided when it came to stand still.
    GoesOn(usize, u64, Vec<Effect>),
    ToRegistry(usize, u64, Ticket, Option<Commit>, bool),
    Released(usize, u64, usize, bool),
    Wrote(usize, u64, usize, bool, Option<(usize, u64, u64)>),
    Read(usize, usize, u64, u64, Option<(usize, u64, u64)>),
    Made(usize, u64, usize, Ticket),
    Noted(usize, u64, usize, Ticket),
    Renamed(usize, u64, Ticket, Option<usize>),
    Entered(usize, u64, Entering),
    Closed(usize, u64, usize),
    Deliver(usize, usize, u64, Ticket, Peer),
    Serve(usize, usize, u64, u64, Op),
    Served(usize, u64, u64, Result<u64, ()>),
    TimedOut(u64),
    Expire(usize),
    Start(usize),
    Began(usize, u64),
    Renew(usize),
    /// When the renewal was sent, by its member's clock: at the registry, and its answer.
    Renewed(usize, u64, Duration),
    Leased(usize, u64, Duration),
    Stop(usize, u64),
    /// An operator has made sure that nothing of a dead member writes any more.
    Operator(usize),
    Drain(usize),
    SyncedHere(usize, u64, usize, u64, Why),
    Keep(Box<Keep>),
    Kept(Box<Keep>, u64),
    KeepDone(usize, u64, usize, u64, Waiter, bool),
    FillBegins {
        from: usize,
        life: u64,
        epoch: u64,
        to: usize,
        fill: u64,
        answers: bool,
    },
    FillBegun(usize, u64, u64, bool),
    Lands(usize, u64, u64, After),
    Flushed(usize, u64, usize, u64, After),
    Listed(usize, u64, usize),
    Adopt(usize, u64, usize, usize),
    Settle(usize, u64, usize),
    /// The partner's disk has the copy that the partner confirmed.
    OnDisk(usize, u64, (usize, usize)),
}

pub struct World {
    pub dice: Dice,
    pub plan: Plan,
    pub neglect: Option<Neglect>,
    rules: Rules,
    pub now: u64,
    count: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, What>,
    pub registry: Model,
    pub outage: u64,
    /// Until this time the registry has no leader.
    pub election: u64,
    pub nodes: Vec<Node>,
    pub files: Vec<File>,
    pub renaming: Option<(usize, usize)>,
    pub tickets: u64,
    pub deaths: u8,
    pub remote: BTreeMap<u64, (usize, Asked)>,
    pub counts: Counts,
    /// Prints what happens: for a seed that is run again.
    pub trace: bool,
}

pub fn key(file: usize) -> FileKey {
    FileKey { ino: file as u64 + 100, generation: 1 }
}

pub fn number_of(key: FileKey) -> usize {
    key.ino as usize - 100
}

pub fn dir_key(dir: usize) -> FileKey {
    FileKey { ino: dir as u64 + 1, generation: 1 }
}

pub fn dir_of(file: usize) -> usize {
    file % 2
}

pub fn path(file: usize) -> String {
    format!("d{}/f{file}", dir_of(file))
}

pub fn name(node: usize) -> String {
    format!("m{node}")
}

pub fn node_of(name: &str) -> usize {
    name[1..].parse().expect("members are m0, m1 and so on")
}

/// How many members a commit calls to give their grants up.
fn called(commit: &Commit) -> u64 {
    let is_call =
        |change: &&Change| matches!(change, Change::Put { key, .. } if key.contains("/called/"));
    commit.changes.iter().filter(is_call).count() as u64
}

pub type Checked = Result<(), String>;

impl World {
    pub fn new(seed: u64, plan: Plan, rules: Rules) -> World {
        World {
            dice: Dice(seed),
            plan,
            neglect: None,
            rules,
            now: 0,
            count: 0,
            queue: BinaryHeap::new(),
            what: BTreeMap::new(),
            registry: Model::default(),
            outage: 0,
            election: 0,
            nodes: (0..plan.members).map(|_| Node::default()).collect(),
            files: vec![File::default(); plan.files()],
            renaming: None,
            tickets: 0,
            deaths: 0,
            remote: BTreeMap::new(),
            counts: Counts::default(),
            trace: false,
        }
    }

    pub fn at(&mut self, delay: u64, what: What) {
        self.count += 1;
        self.queue.push(Reverse((self.now + delay, self.count)));
        self.what.insert(self.count, what);
    }

    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    pub fn faulty(&self) -> bool {
        self.now < FAULTS_END
    }

    /// Delays are mostly short, sometimes long: later messages overtake.
    pub fn delay(&mut self) -> u64 {
        match self.dice.roll(20) {
            0 if self.faulty() => 50 + self.dice.roll(400),
            _ => 1 + self.dice.roll(8),
        }
    }

    pub fn run(&mut self) -> Checked {
        self.set_clocks();
        for node in 0..self.plan.members {
            self.start(node);
            let first = self.dice.roll(100);
            self.at(first, What::Tick(node));
            self.at(20 + first, What::Program(node));
            if self.plan.has_leases() {
                self.at(first, What::Renew(node));
            }
            if self.plan.copies > 0 {
                self.at(first, What::Drain(node));
            }
        }
        self.at(200, What::Fault);
        while let Some(Reverse((time, number))) = self.queue.pop() {
            self.now = time;
            if time > END {
                break;
            }
            if let Some(what) = self.what.remove(&number) {
                self.happen(what).map_err(|error| format!("at {time} ms: {error}"))?;
            }
        }
        self.quiet()
    }

    pub fn start(&mut self, node: usize) {
        if self.nodes[node].is_dead || self.nodes[node].core.is_some() {
            return;
        }
        // A daemon that begins has the store finish the earlier writes.
        for (_, (file, value)) in std::mem::take(&mut self.nodes[node].landing) {
            self.land(node, file, value);
        }
        let copies = self.plan.copies;
        let boot = self.nodes[node].disk.boot.to_string();
        let me = keys::Member { epoch: 0, copies, boot, ..keys::Member::of(&name(node)) };
        let find = |kind: &str| self.registry.keys.get(&format!("stores/s/{kind}/m{node}"));
        let (before, partners) = (find("members"), find("partners"));
        let taken = before.and_then(super::parse::<keys::Member>).and_then(|m| m.taken);
        let was_taken = taken.is_some();
        if let Some(taken) = taken {
            self.counts.copied.came_back += 1;
            self.counts.copied.came_back_in_time += u64::from(!taken.done);
        }
        let (commit, epoch) = entering("stores/s/", me, before, partners);
        let _ = self.registry.commit(&commit.put(format!("stores/s/alive/m{node}"), ""));
        self.is_back(node, was_taken);
        self.told();
        let n = &mut self.nodes[node];
        n.life += 1;
        n.epoch = epoch;
        n.lease_at = if self.plan.has_leases() { self.now + LEASE } else { u64::MAX };
        let life = n.life;
        let snapshot = self.registry.snapshot();
        n.seen = snapshot.0.0;
        let now = self.clock(node);
        let until = self.believes(now);
        let patience = Duration::from_millis(PATIENCE);
        let mut core = Core::new(name(node), epoch, self.plan.copies, snapshot, patience)
            .with_rules(self.rules);
        if self.plan.has_leases() {
            core.handle(now, Input::Lease(until));
            self.at(LEASE, What::Expire(node));
        }
        self.nodes[node].core = Some(core);
        let wait = self.dice.roll(60);
        self.at(wait, What::Began(node, life));
    }

    /// Ends the process; the tier's contents, and calls under way to the store, stay.
    pub fn kill(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        n.core = None;
        n.has_begun = false;
        n.is_suspended = false;
        n.is_superseded = false;
        n.asked.clear();
        n.questions.clear();
        n.cached.clear();
        n.writers.clear();
        n.held.clear();
        n.flushed.clear();
        n.claimed_early.clear();
        n.flushing.clear();
        n.syncs.clear();
        n.strikes.clear();
        n.fills.clear();
        if self.renaming.is_some_and(|(by, _)| by == node) {
            self.renaming = None;
        }
        if !self.plan.has_leases() {
            self.nodes[node].lease_at = self.now + LEASE;
            self.at(LEASE, What::Expire(node));
        }
    }

    /// Tells every watch of a change, each after its own delay.
    pub fn told(&mut self) {
        for node in 0..self.plan.members {
            let lag = match self.dice.roll(10) {
                0 if self.faulty() => 100 + self.dice.roll(300),
                _ => 1 + self.dice.roll(10),
            };
            self.at(lag, What::Watch(node));
        }
    }

    pub fn give(&mut self, node: usize, input: Input) -> Checked {
        let now = self.clock(node);
        let Some(core) = self.nodes[node].core.as_mut() else { return Ok(()) };
        let told = self.trace.then(|| format!("{input:?}"));
        let effects = core.handle(now, input);
        if let Some(told) = told.filter(|told| told != "Tick" || !effects.is_empty()) {
            println!("{} m{node} {told} -> {effects:?}", self.now);
        }
        let Some(effects) = self.unless_it_stops(node, effects) else { return Ok(()) };
        self.carry_out(node, effects)
    }

    pub fn effect(&mut self, node: usize, effect: Effect) -> Checked {
        let life = self.nodes[node].life;
        match effect {
            Effect::Answer(ticket, way) => return self.answer(node, ticket, way),
            Effect::Commit(ticket, commit) => {
                let delay = self.delay();
                let is_late = self.faulty() && self.dice.roll(30) == 0;
                if is_late {
                    self.counts.late_commits += 1;
                    self.at(60, What::Give(node, life, Input::Committed(ticket, Err(()))));
                    let much_later = 100 + self.dice.roll(1500);
                    self.at(much_later, What::ToRegistry(node, life, ticket, Some(commit), true));
                } else {
                    self.at(delay, What::ToRegistry(node, life, ticket, Some(commit), false));
                }
            }
            Effect::Barrier(ticket) => {
                let delay = self.delay();
                self.at(delay, What::ToRegistry(node, life, ticket, None, false));
            }
            Effect::Send { ticket, to, question } => {
                self.at(400, What::Give(node, life, Input::Answered(ticket, Err(()))));
                if !self.lost(node) {
                    let delay = self.delay();
                    self.at(delay, What::Deliver(node, node_of(&to), life, ticket, question));
                }
            }
            Effect::Reply(ticket, reply) => {
                self.counts.granted.told += u64::from(matches!(reply, Reply::Reached(_)));
                if let Some((to, life, theirs)) = self.nodes[node].questions.remove(&ticket)
                    && !self.lost(node)
                {
                    let delay = self.delay();
                    self.at(delay, What::Give(to, life, Input::Answered(theirs, Ok(reply))));
                }
            }
            Effect::Release { file, flush } => {
                let delay = 5 + self.dice.roll(60);
                // The drain may have flushed the file already.
                let is_flushed = flush || !self.faulty() || self.dice.roll(3) > 0;
                self.at(delay, What::Released(node, life, number_of(file), is_flushed));
            }
            Effect::Lost { file } => {
                let file = number_of(file);
                return Err(format!("m{node} made f{file}, and another has claimed it"));
            }
            Effect::Forget { file, .. } => {
                _ = self.nodes[node].cached.remove(&number_of(file));
            }
            Effect::FindBelow { ticket, path } => {
                let below = |f: &usize| std::path::Path::new(&self::path(*f)).starts_with(&path);
                let files = (0..self.files.len()).filter(below).map(key).collect();
                let delay = self.delay();
                self.at(delay, What::Give(node, life, Input::Below(ticket, files)));
            }
            other if self.plan.copies > 0 => return self.effect_on_copies(node, other),
            other => return Err(format!("m{node} has no copies: {other:?}")),
        }
        Ok(())
    }

    pub fn lost(&mut self, node: usize) -> bool {
        self.faulty() && (self.nodes[node].cut_peers > self.now || self.dice.roll(25) == 0)
    }

    pub fn lives(&self, node: usize, life: u64) -> bool {
        self.nodes[node].life == life && self.nodes[node].core.is_some()
    }

    /// Whether the member is fit by its own clock.
    pub fn is_fit(&self, node: usize) -> bool {
        let now = self.clock(node);
        self.nodes[node].core.as_ref().is_some_and(|core| core.fit(now) == Fitness::Fit)
    }

    /// The member whose stop delays the event: a stopped process does nothing until it goes on.
    fn whose(what: &What) -> Option<usize> {
        match what {
            What::Tick(n) | What::Watch(n) | What::Program(n) | What::Renew(n) | What::Drain(n) => {
                Some(*n)
            }
            What::Give(n, ..) | What::Released(n, ..) | What::Wrote(n, ..) | What::Made(n, ..) => {
                Some(*n)
            }
            What::Noted(n, ..)
            | What::Renamed(n, ..)
            | What::Closed(n, ..)
            | What::Served(n, ..) => Some(*n),
            What::Entered(n, ..) | What::Leased(n, ..) => Some(*n),
            What::Deliver(_, n, ..) | What::Serve(n, ..) => Some(*n),
            What::SyncedHere(n, ..) | What::KeepDone(n, ..) | What::FillBegun(n, ..) => Some(*n),
            What::Flushed(n, ..) | What::Listed(n, ..) => Some(*n),
            What::Adopt(n, ..) | What::Settle(n, ..) => Some(*n),
            What::Keep(keep) | What::Kept(keep, _) => Some(keep.to),
            What::FillBegins { to, .. } => Some(*to),
            _ => None,
        }
    }

    pub fn happen(&mut self, what: What) -> Checked {
        if let Some(node) = World::whose(&what)
            && self.nodes[node].paused > self.now
        {
            let wait = self.nodes[node].paused - self.now;
            self.at(wait, what);
            return Ok(());
        }
        match what {
            What::Tick(node) => {
                self.at(100, What::Tick(node));
                let awaits = self.nodes[node].core.as_ref().map_or(0, Core::awaits_grants);
                self.counts.granted.waited += awaits as u64;
                self.give(node, Input::Tick)
            }
            What::Watch(node) => self.watch(node),
            What::Program(node) => self.program(node),
            What::Fault => self.fault(),
            What::Give(node, life, input) => match self.lives(node, life) {
                true => self.give(node, input),
                false => Ok(()),
            },
            What::GoesOn(node, life, effects) => self.has_gone_on(node, life, effects),
            What::OnDisk(node, life, copy) => {
                self.reaches_disk(node, life, copy);
                Ok(())
            }
            What::ToRegistry(node, life, ticket, commit, is_late) => {
                self.reach_registry(node, life, ticket, commit, is_late)
            }
            What::Expire(node) => {
                self.expire(node);
                Ok(())
            }
            What::Start(node) => {
                self.start(node);
                Ok(())
            }
            What::Began(node, life) => self.began(node, life),
            What::Renew(node) => {
                self.renew(node);
                Ok(())
            }
            What::Renewed(node, life, sent) => self.renewed(node, life, sent),
            What::Leased(node, life, sent) => self.leased(node, life, sent),
            What::Stop(node, life) => {
                if self.lives(node, life) {
                    self.kill(node);
                    let back = self.dice.roll(300);
                    self.at(back, What::Start(node));
                }
                Ok(())
            }
            What::Operator(node) => {
                self.say_fenced(node);
                Ok(())
            }
            What::Deliver(from, to, life, ticket, question) => {
                if self.nodes[to].core.is_none() {
                    return Ok(());
                }
                let mine = self.ticket();
                self.nodes[to].questions.insert(mine, (from, life, ticket));
                self.give(to, Input::Asked(mine, question))
            }
            What::Serve(..) | What::Served(..) | What::TimedOut(_) => self.served(what),
            What::Entered(node, life, entering) => self.entered(node, life, entering),
            What::Released(..)
            | What::Wrote(..)
            | What::Read(..)
            | What::Made(..)
            | What::Noted(..)
            | What::Renamed(..)
            | What::Closed(..)
            | What::Drain(_)
            | What::Lands(..)
            | What::Flushed(..) => self.in_mount(what),
            _ => self.in_copies(what),
        }
    }

    fn watch(&mut self, node: usize) -> Checked {
        let n = &self.nodes[node];
        if n.core.is_none() || n.seen >= self.registry.revision {
            return Ok(());
        }
        if n.cut_registry > self.now || self.outage > self.now {
            self.at(30, What::Watch(node));
            return Ok(());
        }
        if n.behind > self.now {
            self.at(n.behind - self.now, What::Watch(node));
            return Ok(());
        }
        let (seen, newest) = (n.seen, self.registry.revision);
        self.nodes[node].seen = newest;
        if self.faulty() && self.dice.roll(40) == 0 {
            self.counts.snapshots += 1;
            let (revision, entries) = self.all_keys(node, seen);
            return self.give(node, Input::Snapshot(revision, entries));
        }
        let events = self.registry.after(seen);
        self.give(node, Input::Seen(Revision(newest), events))
    }

    pub fn is_cut(&self, node: usize) -> bool {
        self.nodes[node].cut_registry > self.now || self.outage > self.now
    }

    fn reach_registry(
        &mut self,
        node: usize,
        life: u64,
        ticket: Ticket,
        commit: Option<Commit>,
        is_late: bool,
    ) -> Checked {
        if !is_late && self.is_in_doubt(node, life, ticket, &commit) {
            return Ok(());
        }
        let is_cut = self.is_cut(node) || self.is_without_lease(node, commit.as_ref());
        let answer = match &commit {
            None => Input::Barrier(ticket, Ok(Revision(self.newest_for(node)))),
            Some(_) if is_cut => Input::Committed(ticket, Err(())),
            Some(commit) => {
                let moves = self.moves_of(node, commit);
                let outcome = self.registry.commit(commit);
                match outcome {
                    Outcome::Committed(_) => {
                        self.counts.granted.called += called(commit);
                        self.told();
                        self.moved(node, moves)?;
                    }
                    Outcome::Refused(_) => self.counts.refused += 1,
                }
                Input::Committed(ticket, Ok(outcome))
            }
        };
        if is_late {
            return Ok(()); // The request was reported as failed.
        }
        let is_lost = self.faulty() && self.dice.roll(25) == 0;
        if is_cut || is_lost {
            if is_cut && !self.nodes[node].asked.is_empty() {
                self.counts.cut_while_opening += 1;
            }
            self.counts.answers_lost += u64::from(is_lost && commit.is_some());
            let answer = match commit {
                None => Input::Barrier(ticket, Err(())),
                Some(_) => Input::Committed(ticket, Err(())),
            };
            self.at(150, What::Give(node, life, answer));
        } else {
            let delay = self.delay();
            self.at(delay, What::Give(node, life, answer));
        }
        Ok(())
    }

    fn say_fenced(&mut self, node: usize) {
        let member = self.registry.keys.get(&format!("stores/s/members/m{node}"));
        if let Some(member) = member.and_then(super::parse::<keys::Member>) {
            let fenced = crate::core::json(&keys::Fenced { epoch: member.living() });
            let key = format!("stores/s/fenced/m{node}");
            let _ = self.registry.commit(&Commit::new().put(key, fenced));
            self.told();
        }
    }
}
