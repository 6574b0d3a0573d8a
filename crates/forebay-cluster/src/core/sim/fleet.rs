//! How many requests members make, by the number of members, where nothing fails.
//!
//! Some members are cores. The others are played: they commit and ask what a core does for the same work, and answer
//! at once. `a_member_that_is_played_asks_for_as_much_as_a_core` proves that they match.
//!
//! `FOREBAY_FLEET=1 cargo test -p forebay-cluster --release fleet -- --nocapture` prints the table of docs/CLUSTER.md.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_backing::FileKey;
use forebay_registry::{Commit, Revision};

use super::registry::Model;
use super::world::name;
use crate::core::{Access, Ask, Core, Effect, Input, Peer, Reply, Ticket, Way, json};
use crate::keys;

/// The work of each member in a second.
const OPENS: u64 = 100;
const WRITES: u64 = 1;

/// Files that each member has claimed besides, all the time.
const HELD: u64 = 10;

/// Milliseconds that a registry request takes, and that a file is open for writing.
const REGISTRY: u64 = 1;
const WRITING: u64 = 2;

const PATIENCE: Duration = Duration::from_secs(5);

/// The requests of all members in a second, most of them reckoned from the cores.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Load {
    barriers: f64,
    changes: f64,
    told: f64,
    questions: f64,
    /// Busy time of one member's thread, in microseconds.
    busy: f64,
}

#[derive(Default)]
struct Requests {
    barriers: u64,
    /// Keys that the registry was told to change, and their commits.
    changes: u64,
    told: u64,
    questions: u64,
    opens: u64,
    writes: u64,
}

enum Due {
    Input(Input),
    Barrier(Ticket),
    Commit(Ticket, Commit),
    /// A played member gives a file back.
    Back(FileKey),
}

struct Member {
    core: Core,
    seen: u64,
    busy: Duration,
    writing: BTreeMap<Ticket, FileKey>,
    /// The waiting asker of each question: another core, or `None` for a played member.
    askers: BTreeMap<Ticket, Option<(usize, Ticket)>>,
}

struct Fleet {
    members: usize,
    cores: Vec<Member>,
    has_grants: bool,
    registry: Model,
    now: u64,
    tickets: u64,
    due: BTreeMap<(u64, u64), (usize, Due)>,
    /// Requests of the cores, and of the played members.
    cores_did: Requests,
    played_did: Requests,
}

fn file_of(member: usize, number: u64) -> FileKey {
    FileKey { ino: 1_000_000 * (member as u64 + 1) + number, generation: 1 }
}

/// Each member has a directory of its own.
fn dir_of(member: usize) -> FileKey {
    FileKey { ino: member as u64 + 1, generation: 2 }
}

fn path(member: usize, number: u64) -> String {
    format!("d{member}/f{number}")
}

fn claiming(member: usize, number: u64) -> Commit {
    let claim = json(&keys::Claim::new(&name(member), &path(member, number)));
    Commit::new().put(format!("stores/s/claims/{}", keys::file(file_of(member, number))), claim)
}

fn giving_back(member: usize, file: FileKey) -> Commit {
    let file = keys::file(file);
    let given = json(&keys::Given { by: name(member) });
    Commit::new()
        .delete(format!("stores/s/claims/{file}"))
        .put(format!("stores/s/given/{file}"), given)
}

impl Fleet {
    fn new(members: usize, cores: usize, has_grants: bool) -> Fleet {
        let mut registry = Model::default();
        for member in 0..members {
            let mut commit = Commit::new().put(format!("stores/s/alive/{}", name(member)), "");
            commit = commit.put(
                format!("stores/s/members/{}", name(member)),
                json(&keys::Member::of(&name(member))),
            );
            // A core takes its own grant when it opens files.
            if has_grants && member >= cores {
                commit = commit.put(format!("stores/s/grants/{}", name(member)), "");
            }
            registry.commit(&commit);
            for held in 0..HELD {
                registry.commit(&claiming(member, 900_000 + held));
            }
        }
        let mut fleet = Fleet {
            members,
            cores: Vec::new(),
            has_grants,
            registry,
            now: 0,
            tickets: 0,
            due: BTreeMap::new(),
            cores_did: Requests::default(),
            played_did: Requests::default(),
        };
        for member in 0..cores {
            let (name, seen) = (name(member), fleet.registry.revision);
            let core = Core::new(name, 1, 0, fleet.registry.snapshot(), PATIENCE);
            let (busy, writing, askers) = (Duration::ZERO, BTreeMap::new(), BTreeMap::new());
            fleet.cores.push(Member { core, seen, busy, writing, askers });
            // Without a lease there is no grant.
            if has_grants {
                fleet.give(member, Input::Lease(Duration::from_secs(3600)));
            }
            for held in 0..HELD {
                let (file, path) = (file_of(member, 900_000 + held), path(member, 900_000 + held));
                let dir = dir_of(member);
                fleet.give(member, Input::Created { file, dir, path: path.into() });
            }
            fleet.give(member, Input::Began);
        }
        fleet
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    fn later(&mut self, wait: u64, member: usize, due: Due) {
        let number = self.ticket();
        self.due.insert((self.now + wait, number), (member, due));
    }

    fn give(&mut self, member: usize, input: Input) {
        let now = Duration::from_millis(self.now);
        let begin = Instant::now();
        let effects = self.cores[member].core.handle(now, input);
        self.cores[member].busy += begin.elapsed();
        for effect in effects {
            self.carry_out(member, effect);
        }
    }

    fn carry_out(&mut self, member: usize, effect: Effect) {
        match effect {
            Effect::Answer(ticket, way) => {
                assert_eq!(way, Way::Here, "nobody else has what {} opens", name(member));
                if let Some(file) = self.cores[member].writing.remove(&ticket) {
                    self.later(WRITING, member, Due::Input(Input::Closed(file)));
                }
            }
            Effect::Barrier(ticket) => {
                self.cores_did.barriers += 1;
                self.later(REGISTRY, member, Due::Barrier(ticket));
            }
            Effect::Commit(ticket, commit) => {
                self.cores_did.changes += commit.changes.len() as u64;
                self.later(REGISTRY, member, Due::Commit(ticket, commit));
            }
            Effect::Send { ticket, to, question } => {
                self.cores_did.questions += 1;
                self.ask(member, ticket, super::world::node_of(&to), question);
            }
            Effect::Reply(ticket, reply) => {
                let asker = self.cores[member].askers.remove(&ticket).expect("it was asked");
                if let Some((to, theirs)) = asker {
                    self.later(0, to, Due::Input(Input::Answered(theirs, Ok(reply))));
                }
            }
            Effect::Release { file, .. } => {
                self.later(0, member, Due::Input(Input::Released { file, is_free: true }));
            }
            Effect::Forget { .. } => {}
            other => panic!("nothing fails: {other:?}"),
        }
    }

    fn ask(&mut self, from: usize, ticket: Ticket, to: usize, question: Peer) {
        if to < self.cores.len() {
            let mine = self.ticket();
            self.cores[to].askers.insert(mine, Some((from, ticket)));
            return self.later(0, to, Due::Input(Input::Asked(mine, question)));
        }
        let reply = match question {
            Peer::Reached { .. } => Reply::Reached(Revision(self.registry.revision)),
            Peer::Holds { .. } => Reply::Holds(false),
            other => panic!("nobody wants what another has: {other:?}"),
        };
        self.later(0, from, Due::Input(Input::Answered(ticket, Ok(reply))));
    }

    fn commit(&mut self, commit: &Commit) -> forebay_registry::Outcome {
        let outcome = self.registry.commit(commit);
        if matches!(outcome, forebay_registry::Outcome::Committed(_)) {
            self.told(commit.changes.len());
        }
        outcome
    }

    /// Counts changes: every member hears of every change.
    fn told(&mut self, changes: usize) {
        self.cores_did.told += (changes * self.cores.len()) as u64;
        self.played_did.told += (changes * (self.members - self.cores.len())) as u64;
    }

    fn run(&mut self, seconds: u64) {
        for at in self.now..self.now + 1000 * seconds {
            self.now = at;
            self.begin();
            while let Some(first) = self.due.first_entry().filter(|first| first.key().0 <= at) {
                let (member, due) = first.remove();
                self.happen(member, due);
            }
            for member in 0..self.cores.len() {
                let newest = self.registry.revision;
                let events = self.registry.after(self.cores[member].seen);
                if !events.is_empty() {
                    self.cores[member].seen = newest;
                    self.give(member, Input::Seen(Revision(newest), events));
                }
                if at % 100 == member as u64 % 100 {
                    self.give(member, Input::Tick);
                }
            }
        }
        self.now += 1;
    }

    /// Begins what programs do in this millisecond.
    fn begin(&mut self) {
        let second = self.now / 1000;
        for member in 0..self.members {
            let offset = self.now + 7 * member as u64;
            let is_core = member < self.cores.len();
            if offset.is_multiple_of(1000 / WRITES) && is_core {
                let (ticket, file) = (self.ticket(), file_of(member, second));
                self.cores_did.writes += 1;
                self.cores[member].writing.insert(ticket, file);
                self.open(member, ticket, (file, second), Access::Write);
            } else if offset.is_multiple_of(1000 / WRITES) {
                self.play_a_write(member, second);
            }
            if is_core && offset.is_multiple_of(1000 / OPENS) {
                let number = 100_000 + self.now;
                self.cores_did.opens += 1;
                let (ticket, file) = (self.ticket(), file_of(member, number));
                self.open(member, ticket, (file, number), Access::Read);
            }
        }
    }

    fn open(&mut self, member: usize, ticket: Ticket, (file, number): (FileKey, u64), how: Access) {
        let (dir, path) = (dir_of(member), path(member, number).into());
        self.give(member, Input::Ask(ticket, Ask::Open { file, dir, path, how }));
    }

    fn play_a_write(&mut self, member: usize, number: u64) {
        let commit = claiming(member, number);
        self.commit(&commit);
        self.played_did.writes += 1;
        self.played_did.changes += 1;
        if self.has_grants {
            self.played_did.questions += self.members as u64 - 1;
            for core in 0..self.cores.len() {
                let ticket = self.ticket();
                self.cores[core].askers.insert(ticket, None);
                let revision = Revision(self.registry.revision);
                self.later(0, core, Due::Input(Input::Asked(ticket, Peer::Reached { revision })));
            }
        }
        self.later(1500, member, Due::Back(file_of(member, number)));
    }

    fn happen(&mut self, member: usize, due: Due) {
        match due {
            Due::Input(input) => self.give(member, input),
            Due::Barrier(ticket) => {
                let revision = Revision(self.registry.revision);
                self.give(member, Input::Barrier(ticket, Ok(revision)));
            }
            Due::Commit(ticket, commit) => {
                let outcome = self.commit(&commit);
                self.give(member, Input::Committed(ticket, Ok(outcome)));
            }
            Due::Back(file) => {
                let commit = giving_back(member, file);
                self.played_did.changes += commit.changes.len() as u64;
                self.commit(&commit);
            }
        }
    }

    /// The requests of all members in a second, after the first requests are over.
    fn load(&mut self, seconds: u64) -> Load {
        self.run(4);
        (self.cores_did, self.played_did) = Default::default();
        self.cores.iter_mut().for_each(|member| member.busy = Duration::ZERO);
        self.run(seconds);
        let (cores, seconds) = (self.cores.len() as f64, seconds as f64);
        let (mine, played) = (&self.cores_did, &self.played_did);
        assert_eq!(mine.opens, OPENS * seconds as u64 * cores as u64);
        let busy: Duration = self.cores.iter().map(|member| member.busy).sum();
        Load {
            barriers: mine.barriers as f64 / cores * self.members as f64 / seconds,
            changes: (mine.changes + played.changes) as f64 / seconds,
            told: (mine.told + played.told) as f64 / seconds,
            questions: (mine.questions + played.questions) as f64 / seconds,
            busy: busy.as_secs_f64() * 1e6 / cores / seconds,
        }
    }
}

#[track_caller]
fn is_about(found: f64, expected: f64, what: &str) {
    let range = expected * 0.9..=expected * 1.1 + 1.0;
    assert!(range.contains(&found), "{what}: {found}, and not about {expected}");
}

#[test]
fn a_member_that_is_played_asks_for_as_much_as_a_core() {
    for has_grants in [false, true] {
        let all = Fleet::new(12, 12, has_grants).load(4);
        let some = Fleet::new(12, 3, has_grants).load(4);
        is_about(some.changes, all.changes, "changes");
        is_about(some.told, all.told, "told");
        is_about(some.questions, all.questions, "questions");
        is_about(some.barriers, all.barriers, "barriers");
    }
}

/// The rows of docs/CLUSTER.md, "What grows with the nodes".
#[test]
fn requests_grow_with_the_members_as_the_document_says() {
    let all = std::env::var_os("FOREBAY_FLEET").is_some();
    let sizes: &[usize] = if all { &[10, 100, 1000, 10_000] } else { &[10, 100, 1000] };
    for &members in sizes {
        let (n, cores) = (members as f64, if members > 1000 { 2 } else { 5 });
        let load = Fleet::new(members, cores, false).load(2);
        println!("{members} members without grants: {load:.0?}");
        // A file that is opened for writing needs a barrier, too.
        is_about(load.barriers, n * (OPENS + WRITES) as f64, "barriers");
        is_about(load.changes, 3.0 * n * WRITES as f64, "changes");
        is_about(load.told, load.changes * n, "changes told");
        is_about(load.questions, 0.0, "questions");
        // A member that is asked more often than it opens files gives its grant up.
        if WRITES * (members as u64 - 1) < OPENS {
            let load = Fleet::new(members, cores, true).load(2);
            println!("{members} members with grants: {load:.0?}");
            is_about(load.barriers, 0.0, "barriers under grants");
            is_about(load.changes, 3.0 * n * WRITES as f64, "changes under grants");
            is_about(load.questions, n * (n - 1.0) * WRITES as f64, "questions under grants");
        }
    }
}
