//! Members with their mounts, a registry, a backing store and a network, all in one queue of events that a
//! seed decides. Times are milliseconds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Outcome, Revision};

use super::registry::Model;
use crate::core::rules::Rules;
use crate::core::{Access, Ask, Core, Effect, Input, Peer, Ticket, Way, json};
use crate::keys;

const PATIENCE: u64 = 1000;
const FAULTS_END: u64 = 5000;
const END: u64 = 17_000;
const LEASE: u64 = 300;
const MEMBERS: usize = 3;

/// splitmix64
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub refused: u64,
    pub answers_lost: u64,
    pub late_commits: u64,
    pub kills: u64,
    pub cut_while_opening: u64,
    pub remote_writes: u64,
    pub renames: u64,
    pub reads: u64,
    pub failed: u64,
    pub snapshots: u64,
    pub outages: u64,
}

#[derive(Debug, Clone)]
enum Op {
    Read { file: usize, floor: u64 },
    Write { file: usize },
    Create { dir: usize },
    Change,
    Rename { dir: usize },
}

#[derive(Clone)]
enum From {
    Program,
    /// A program of another member: (member, its life, its operation).
    Peer(usize, u64, u64),
}

struct Asked {
    op: Op,
    from: From,
    since: u64,
    tries: u32,
}

#[derive(Default)]
struct Node {
    core: Option<Core>,
    life: u64,
    seen: u64,
    /// Nothing passes from it to the registry (1), or to its peers (2), until then.
    cut_registry: u64,
    cut_peers: u64,
    paused: u64,
    asked: BTreeMap<Ticket, Asked>,
    questions: BTreeMap<Ticket, (usize, u64, Ticket)>,
    dirty: BTreeMap<usize, u64>,
    cached: BTreeMap<usize, u64>,
    writers: BTreeMap<usize, u32>,
}

enum What {
    Tick(usize),
    Watch(usize),
    Program(usize),
    Fault,
    Give(usize, u64, Input),
    ToRegistry(usize, u64, Ticket, Option<Commit>, bool),
    Released(usize, u64, usize, bool),
    Wrote(usize, u64, usize, Option<(usize, u64, u64)>),
    Read(usize, usize, u64, Option<(usize, u64, u64)>),
    Made(usize, u64, usize),
    Renamed(usize, u64, Ticket, Option<usize>),
    Closed(usize, u64, usize),
    Deliver(usize, usize, u64, Ticket, Peer),
    Serve(usize, usize, u64, u64, Op),
    Served(usize, u64, u64, Result<u64, ()>),
    TimedOut(u64),
    Expire(usize, u64),
    Start(usize),
    Began(usize, u64),
}

pub struct World {
    dice: Dice,
    rules: Rules,
    now: u64,
    count: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, What>,
    registry: Model,
    outage: u64,
    nodes: Vec<Node>,
    /// Bytes at the store, and the newest that were written and that were acknowledged.
    store: Vec<u64>,
    written: Vec<u64>,
    acked: Vec<u64>,
    renaming: Option<(usize, usize)>,
    tickets: u64,
    remote: BTreeMap<u64, (usize, Asked)>,
    pub counts: Counts,
    /// Says what happens: of a seed that is run again.
    pub trace: bool,
}

fn key(file: usize) -> FileKey {
    FileKey { ino: file as u64 + 100, generation: 1 }
}

fn dir_key(dir: usize) -> FileKey {
    FileKey { ino: dir as u64 + 1, generation: 1 }
}

fn dir_of(file: usize) -> usize {
    file % 2
}

fn path(file: usize) -> String {
    format!("d{}/f{file}", dir_of(file))
}

type Checked = Result<(), String>;

impl World {
    pub fn new(seed: u64, rules: Rules) -> World {
        World {
            dice: Dice(seed),
            rules,
            now: 0,
            count: 0,
            queue: BinaryHeap::new(),
            what: BTreeMap::new(),
            registry: Model::default(),
            outage: 0,
            nodes: (0..MEMBERS).map(|_| Node::default()).collect(),
            store: vec![0; 2],
            written: vec![0; 2],
            acked: vec![0; 2],
            renaming: None,
            tickets: 0,
            remote: BTreeMap::new(),
            counts: Counts::default(),
            trace: false,
        }
    }

    fn at(&mut self, delay: u64, what: What) {
        self.count += 1;
        self.queue.push(Reverse((self.now + delay, self.count)));
        self.what.insert(self.count, what);
    }

    fn faulty(&self) -> bool {
        self.now < FAULTS_END
    }

    /// Mostly quick, sometimes slow: later messages overtake.
    fn delay(&mut self) -> u64 {
        match self.dice.roll(20) {
            0 if self.faulty() => 50 + self.dice.roll(400),
            _ => 1 + self.dice.roll(8),
        }
    }

    pub fn run(&mut self) -> Checked {
        for node in 0..MEMBERS {
            self.start(node);
            let first = self.dice.roll(100);
            self.at(first, What::Tick(node));
            self.at(20 + first, What::Program(node));
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

    fn start(&mut self, node: usize) {
        let (member, alive) =
            (format!("stores/s/members/m{node}"), format!("stores/s/alive/m{node}"));
        let n = &mut self.nodes[node];
        n.life += 1;
        let value = keys::Member {
            node: format!("m{node}"),
            address: String::new(),
            tier: String::new(),
            epoch: n.life,
            boot: String::new(),
            protocol: keys::PROTOCOL,
            domain: String::new(),
            copies: 0,
            shares: false,
            taken: None,
        };
        let life = n.life;
        let _ = self.registry.commit(&Commit::new().put(member, json(&value)).put(alive, ""));
        self.told();
        let snapshot = self.registry.snapshot();
        self.nodes[node].seen = snapshot.0.0;
        let patience = Duration::from_millis(PATIENCE);
        let core =
            Core::new(format!("m{node}"), life, 0, snapshot, patience).with_rules(self.rules);
        self.nodes[node].core = Some(core);
        let wait = self.dice.roll(60);
        self.at(wait, What::Began(node, life));
    }

    /// Every watch hears of it, each when it likes.
    fn told(&mut self) {
        for node in 0..MEMBERS {
            let lag = match self.dice.roll(10) {
                0 if self.faulty() => 100 + self.dice.roll(300),
                _ => 1 + self.dice.roll(10),
            };
            self.at(lag, What::Watch(node));
        }
    }

    fn give(&mut self, node: usize, input: Input) -> Checked {
        let now = Duration::from_millis(self.now);
        let Some(core) = self.nodes[node].core.as_mut() else { return Ok(()) };
        let told = self.trace.then(|| format!("{input:?}"));
        let effects = core.handle(now, input);
        if let Some(told) = told.filter(|told| told != "Tick" || !effects.is_empty()) {
            println!("{} m{node} {told} -> {effects:?}", self.now);
        }
        for effect in effects {
            self.effect(node, effect)?;
        }
        Ok(())
    }

    fn effect(&mut self, node: usize, effect: Effect) -> Checked {
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
                let to: usize = to[1..].parse().map_err(|_| "no such member")?;
                self.at(400, What::Give(node, life, Input::Answered(ticket, Err(()))));
                if !self.lost(node) {
                    let delay = self.delay();
                    self.at(delay, What::Deliver(node, to, life, ticket, question));
                }
            }
            Effect::Reply(ticket, reply) => {
                if let Some((to, life, theirs)) = self.nodes[node].questions.remove(&ticket)
                    && !self.lost(node)
                {
                    let delay = self.delay();
                    self.at(delay, What::Give(to, life, Input::Answered(theirs, Ok(reply))));
                }
            }
            Effect::Release { file, flush } => {
                let delay = 5 + self.dice.roll(60);
                // The drain may have been there.
                let is_flushed = flush || !self.faulty() || self.dice.roll(3) > 0;
                let file = file.ino as usize - 100;
                self.at(delay, What::Released(node, life, file, is_flushed));
            }
            Effect::Forget { file } => {
                _ = self.nodes[node].cached.remove(&(file.ino as usize - 100));
            }
            Effect::FindBelow { ticket, path } => {
                let below = |f: &usize| std::path::Path::new(&self::path(*f)).starts_with(&path);
                let files = (0..self.store.len()).filter(below).map(key).collect();
                let delay = self.delay();
                self.at(delay, What::Give(node, life, Input::Below(ticket, files)));
            }
            Effect::Fill { .. }
            | Effect::Unfilled { .. }
            | Effect::Struck { .. }
            | Effect::ListCopies { .. }
            | Effect::Adopt { .. }
            | Effect::Taken { .. }
            | Effect::Disown { .. }
            | Effect::DropCopies { .. }
            | Effect::Settle { .. }
            | Effect::Suspend
            | Effect::Resume => return Err(format!("m{node} has no copies")),
            Effect::Superseded => return Err(format!("m{node} is superseded by nobody")),
        }
        Ok(())
    }

    fn lost(&mut self, node: usize) -> bool {
        self.faulty() && (self.nodes[node].cut_peers > self.now || self.dice.roll(25) == 0)
    }

    fn ask(&mut self, node: usize, op: Op, from: From, since: u64, tries: u32) -> Checked {
        self.tickets += 1;
        let ticket = self.tickets;
        let open = |file: usize, how| Ask::Open {
            file: key(file),
            dir: dir_key(dir_of(file)),
            path: path(file).into(),
            how,
        };
        let ask = match op {
            Op::Read { file, .. } => open(file, Access::Read),
            Op::Write { file } => open(file, Access::Write),
            Op::Create { dir } => Ask::Create { dir: dir_key(dir), path: format!("d{dir}").into() },
            Op::Change => {
                let files = [0, 1].map(|_| self.dice.roll(self.store.len() as u64) as usize);
                let dirs = files.map(|file| dir_key(dir_of(file))).to_vec();
                Ask::Change { files: files.map(key).to_vec(), dirs, below: None }
            }
            Op::Rename { dir } => {
                Ask::Change { files: vec![], dirs: vec![], below: Some(format!("d{dir}").into()) }
            }
        };
        self.nodes[node].asked.insert(ticket, Asked { op, from, since, tries });
        self.give(node, Input::Ask(ticket, ask))
    }

    fn answer(&mut self, node: usize, ticket: Ticket, way: Way) -> Checked {
        let Some(asked) = self.nodes[node].asked.remove(&ticket) else {
            return Err(format!("m{node}: an answer to {ticket}, which nobody waits for: {way:?}"));
        };
        let life = self.nodes[node].life;
        let is_paused = self.nodes[node].paused + PATIENCE > self.now;
        if self.now > asked.since + PATIENCE + 250 && !is_paused && asked.tries == 0 {
            return Err(format!("m{node}: {:?} took {} ms", asked.op, self.now - asked.since));
        }
        let reply_to = match asked.from {
            From::Program => None,
            From::Peer(to, life, op) => Some((to, life, op)),
        };
        match (way, asked.op.clone()) {
            (Way::Here, Op::Read { file, floor }) => {
                // Freshness is decided by the open: it reads at once.
                self.happen(What::Read(node, file, floor, reply_to))
            }
            (Way::Here, Op::Write { file }) => {
                *self.nodes[node].writers.entry(file).or_default() += 1;
                let delay = self.dice.roll(30);
                self.at(delay, What::Wrote(node, life, file, reply_to));
                Ok(())
            }
            (Way::Here, Op::Create { dir }) => {
                // Some stores take longer than any settling.
                let most = if self.dice.roll(8) == 0 { 4000 } else { 100 };
                let delay = self.dice.roll(most);
                self.at(delay, What::Made(node, life, dir));
                Ok(())
            }
            (Way::Here, Op::Change) => {
                let delay = self.dice.roll(50);
                self.at(delay, What::Renamed(node, life, ticket, None));
                Ok(())
            }
            (Way::Here, Op::Rename { dir }) => {
                self.counts.renames += 1;
                for (other, n) in self.nodes.iter().enumerate() {
                    if other != node && n.dirty.keys().any(|file| dir_of(*file) == dir) {
                        return Err(format!(
                            "m{node} renames d{dir}, m{other} has dirty files there"
                        ));
                    }
                }
                self.renaming = Some((node, dir));
                let delay = 10 + self.dice.roll(150);
                self.at(delay, What::Renamed(node, life, ticket, Some(dir)));
                Ok(())
            }
            (Way::There { home }, op @ (Op::Read { .. } | Op::Write { .. }))
                if reply_to.is_none() =>
            {
                let to: usize = home[1..].parse().map_err(|_| "no such member")?;
                self.tickets += 1;
                let number = self.tickets;
                self.remote.insert(number, (node, asked));
                self.at(PATIENCE, What::TimedOut(number));
                if !self.lost(node) {
                    let delay = self.delay();
                    self.at(delay, What::Serve(to, node, life, number, op));
                }
                Ok(())
            }
            (way, _) => {
                if let Way::Fails(_) = way {
                    self.counts.failed += 1;
                }
                if let Some((to, life, op)) = reply_to {
                    let delay = self.delay();
                    self.at(delay, What::Served(to, life, op, Err(())));
                }
                Ok(())
            }
        }
    }

    fn lives(&self, node: usize, life: u64) -> bool {
        self.nodes[node].life == life && self.nodes[node].core.is_some()
    }

    fn sees(&mut self, node: usize, file: usize) -> u64 {
        let n = &mut self.nodes[node];
        if let Some(dirty) = n.dirty.get(&file) {
            return *dirty;
        }
        *n.cached.entry(file).or_insert(self.store[file])
    }

    fn happen(&mut self, what: What) -> Checked {
        // A stopped process does nothing until it goes on.
        let whose = match &what {
            What::Tick(n) | What::Watch(n) | What::Program(n) => Some(*n),
            What::Give(n, ..) | What::Released(n, ..) | What::Wrote(n, ..) | What::Made(n, ..) => {
                Some(*n)
            }
            What::Renamed(n, ..) | What::Closed(n, ..) | What::Served(n, ..) => Some(*n),
            What::Deliver(_, n, ..) | What::Serve(n, ..) => Some(*n),
            _ => None,
        };
        if let Some(node) = whose
            && self.nodes[node].paused > self.now
        {
            let wait = self.nodes[node].paused - self.now;
            self.at(wait, what);
            return Ok(());
        }
        match what {
            What::Tick(node) => {
                self.at(100, What::Tick(node));
                self.give(node, Input::Tick)
            }
            What::Watch(node) => self.watch(node),
            What::Program(node) => self.program(node),
            What::Fault => self.fault(),
            What::Give(node, life, input) => match self.lives(node, life) {
                true => self.give(node, input),
                false => Ok(()),
            },
            What::ToRegistry(node, life, ticket, commit, is_late) => {
                self.reach_registry(node, life, ticket, commit, is_late);
                Ok(())
            }
            What::Released(node, life, file, is_flushed) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                if is_flushed && let Some(value) = self.nodes[node].dirty.remove(&file) {
                    self.store[file] = value;
                    self.nodes[node].cached.insert(file, value);
                }
                let is_free = !self.nodes[node].dirty.contains_key(&file)
                    && self.nodes[node].writers.get(&file).is_none_or(|n| *n == 0);
                self.give(node, Input::Released { file: key(file), is_free })
            }
            What::Wrote(node, life, file, reply_to) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                self.write(node, file, reply_to.is_none())?;
                if let Some((to, life, op)) = reply_to {
                    self.counts.remote_writes += 1;
                    if !self.lost(node) {
                        let (delay, value) = (self.delay(), self.written[file]);
                        self.at(delay, What::Served(to, life, op, Ok(value)));
                    }
                }
                let delay = self.dice.roll(40);
                self.at(delay, What::Closed(node, life, file));
                Ok(())
            }
            What::Read(node, file, floor, reply_to) => {
                let value = self.sees(node, file);
                match reply_to {
                    None => self.check_read(node, file, floor, value),
                    Some((to, life, op)) => {
                        if !self.lost(node) {
                            let delay = self.delay();
                            self.at(delay, What::Served(to, life, op, Ok(value)));
                        }
                        Ok(())
                    }
                }
            }
            What::Made(node, life, dir) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                let file = self.store.len() + (self.store.len() + dir) % 2;
                self.store.resize(file + 1, 0);
                self.written.resize(file + 1, 0);
                self.acked.resize(file + 1, 0);
                let created =
                    Input::Created { file: key(file), dir: dir_key(dir), path: path(file).into() };
                *self.nodes[node].writers.entry(file).or_default() += 1;
                self.write(node, file, true)?;
                self.give(node, created)?;
                self.give(node, Input::Made(dir_key(dir_of(file))))?;
                let delay = self.dice.roll(200);
                self.at(delay, What::Closed(node, life, file));
                Ok(())
            }
            What::Renamed(node, life, ticket, dir) => {
                if dir.is_some_and(|dir| self.renaming == Some((node, dir))) {
                    self.renaming = None;
                }
                match self.lives(node, life) {
                    true => self.give(node, Input::Changed(ticket)),
                    false => Ok(()),
                }
            }
            What::Closed(node, life, file) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                if let Some(writers) = self.nodes[node].writers.get_mut(&file) {
                    *writers -= 1;
                }
                self.give(node, Input::Closed(key(file)))
            }
            What::Deliver(from, to, life, ticket, question) => {
                if self.nodes[to].core.is_none() {
                    return Ok(());
                }
                self.tickets += 1;
                let mine = self.tickets;
                self.nodes[to].questions.insert(mine, (from, life, ticket));
                self.give(to, Input::Asked(mine, question))
            }
            What::Serve(node, from, life, number, op) => match self.nodes[node].core {
                Some(_) => self.ask(node, op, From::Peer(from, life, number), self.now, 0),
                None => Ok(()),
            },
            What::Served(node, life, number, result) => {
                let Some((_, asked)) = self.remote.remove(&number) else { return Ok(()) };
                if !self.lives(node, life) {
                    return Ok(());
                }
                match (result, asked.op) {
                    (Ok(value), Op::Read { file, floor }) => {
                        self.check_read(node, file, floor, value)
                    }
                    (Ok(value), Op::Write { file }) => {
                        self.acked[file] = self.acked[file].max(value);
                        Ok(())
                    }
                    (Err(()), op) if asked.tries < 3 => {
                        self.ask(node, op, From::Program, asked.since, asked.tries + 1)
                    }
                    _ => Ok(()),
                }
            }
            What::TimedOut(number) => {
                self.remote.remove(&number);
                Ok(())
            }
            What::Expire(node, life) => {
                if self.nodes[node].life == life && self.nodes[node].core.is_none() {
                    let mut gone = Commit::new().delete(format!("stores/s/alive/m{node}"));
                    let gate = self.registry.keys.get("stores/s/gate");
                    let by = gate.and_then(|e| serde_json::from_slice::<keys::Gate>(&e.value).ok());
                    if by.is_some_and(|gate| gate.by == format!("m{node}")) {
                        gone = gone.delete("stores/s/gate");
                    }
                    let _ = self.registry.commit(&gone);
                    self.told();
                }
                Ok(())
            }
            What::Start(node) => {
                self.start(node);
                Ok(())
            }
            What::Began(node, life) => {
                if !self.lives(node, life) {
                    return Ok(());
                }
                let dirty: Vec<usize> = self.nodes[node].dirty.keys().copied().collect();
                for file in dirty {
                    let (dir, path) = (dir_key(dir_of(file)), path(file).into());
                    self.give(node, Input::Created { file: key(file), dir, path })?;
                    self.give(node, Input::Closed(key(file)))?;
                }
                self.give(node, Input::Began)
            }
        }
    }

    fn check_read(&mut self, node: usize, file: usize, floor: u64, value: u64) -> Checked {
        self.counts.reads += 1;
        match value < floor {
            true => {
                Err(format!("m{node} reads {value} of f{file}, {floor} was acknowledged before"))
            }
            false => Ok(()),
        }
    }

    /// What is written comes on top of what was there: a writer who does not see it would undo it.
    fn write(&mut self, node: usize, file: usize, is_acked: bool) -> Checked {
        let (sees, newest) = (self.sees(node, file), self.written[file]);
        if self.trace {
            println!("{} m{node} writes f{file} on top of {sees}", self.now);
        }
        if sees != newest {
            return Err(format!("m{node} writes f{file} on top of {sees}, the newest is {newest}"));
        }
        if let Some((by, dir)) = self.renaming
            && by != node
            && dir == dir_of(file)
        {
            return Err(format!("m{node} writes f{file} while m{by} renames d{dir}"));
        }
        if let Some(other) =
            (0..MEMBERS).find(|o| *o != node && self.nodes[*o].dirty.contains_key(&file))
        {
            return Err(format!("f{file} is dirty at m{node} and at m{other}"));
        }
        self.written[file] += 1;
        let value = self.written[file];
        self.nodes[node].dirty.insert(file, value);
        if is_acked {
            self.acked[file] = value;
        }
        Ok(())
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
        let (seen, newest) = (n.seen, self.registry.revision);
        self.nodes[node].seen = newest;
        if self.faulty() && self.dice.roll(40) == 0 {
            self.counts.snapshots += 1;
            let (revision, entries) = self.registry.snapshot();
            return self.give(node, Input::Snapshot(revision, entries));
        }
        let events = self.registry.after(seen);
        self.give(node, Input::Seen(Revision(newest), events))
    }

    fn reach_registry(
        &mut self,
        node: usize,
        life: u64,
        ticket: Ticket,
        commit: Option<Commit>,
        is_late: bool,
    ) {
        let is_cut = self.nodes[node].cut_registry > self.now || self.outage > self.now;
        let answer = match &commit {
            None => Input::Barrier(ticket, Ok(Revision(self.registry.revision))),
            Some(_) if is_cut => Input::Committed(ticket, Err(())),
            Some(commit) => {
                let outcome = self.registry.commit(commit);
                match outcome {
                    Outcome::Committed(_) => self.told(),
                    Outcome::Refused { .. } => self.counts.refused += 1,
                }
                Input::Committed(ticket, Ok(outcome))
            }
        };
        if is_late {
            return; // It was said to have failed.
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
    }

    fn program(&mut self, node: usize) -> Checked {
        if self.now > FAULTS_END + 2000 {
            return Ok(());
        }
        let next = 10 + self.dice.roll(300);
        self.at(next, What::Program(node));
        if self.nodes[node].core.is_none() {
            return Ok(());
        }
        let existing = [0, 1];
        let made: Vec<usize> = (2..self.store.len()).filter(|f| self.written[*f] > 0).collect();
        let file = match (self.dice.roll(2), made.last()) {
            (0, Some(_)) => {
                made[made.len() - 1 - self.dice.roll(made.len().min(3) as u64) as usize]
            }
            _ => existing[self.dice.roll(2) as usize],
        };
        let op = match self.dice.roll(20) {
            0..8 => Op::Read { file, floor: self.acked[file] },
            8..15 => Op::Write { file },
            15..17 => Op::Create { dir: self.dice.roll(2) as usize },
            17..19 => Op::Change,
            _ => Op::Rename { dir: self.dice.roll(2) as usize },
        };
        self.ask(node, op, From::Program, self.now, 0)
    }

    fn fault(&mut self) -> Checked {
        let next = 50 + self.dice.roll(500);
        if self.now + next < FAULTS_END {
            self.at(next, What::Fault);
        }
        let node = self.dice.roll(MEMBERS as u64) as usize;
        let until = self.now + 50 + self.dice.roll(900);
        let until = until.min(FAULTS_END);
        match self.dice.roll(6) {
            0 => self.nodes[node].cut_registry = until,
            1 => self.nodes[node].cut_peers = until,
            2 => self.nodes[node].paused = until,
            3 => {
                self.outage = until;
                self.counts.outages += 1;
            }
            4 if self.nodes[node].core.is_some() => {
                self.counts.kills += 1;
                let n = &mut self.nodes[node];
                n.core = None;
                n.asked.clear();
                n.questions.clear();
                n.cached.clear();
                n.writers.clear();
                let life = n.life;
                if self.renaming.is_some_and(|(by, _)| by == node) {
                    self.renaming = None;
                }
                self.at(LEASE, What::Expire(node, life));
                let back = 20 + self.dice.roll(1200);
                self.at(back, What::Start(node));
            }
            _ => {}
        }
        Ok(())
    }

    /// All is idle, all members live: everything is home, and nobody holds anything.
    fn quiet(&self) -> Checked {
        for (file, &value) in self.store.iter().enumerate() {
            if value != self.written[file] {
                return Err(format!("f{file}: the store has {value} of {}", self.written[file]));
            }
        }
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(asked) = node.asked.values().next() {
                return Err(format!("m{number}: {:?} of {} ms hangs", asked.op, asked.since));
            }
        }
        let holds = ["stores/s/claims/", "stores/s/creates/", "stores/s/gate"];
        match self.registry.keys.keys().find(|key| holds.iter().any(|h| key.starts_with(h))) {
            Some(key) => Err(format!("{key} was not given back")),
            None => Ok(()),
        }
    }
}

impl Counts {
    fn list(&mut self) -> [(&'static str, &mut u64); 11] {
        [
            ("commits refused", &mut self.refused),
            ("answers lost", &mut self.answers_lost),
            ("late commits", &mut self.late_commits),
            ("kills", &mut self.kills),
            ("cut while somebody waited", &mut self.cut_while_opening),
            ("writes for others", &mut self.remote_writes),
            ("renames", &mut self.renames),
            ("reads", &mut self.reads),
            ("failed", &mut self.failed),
            ("snapshots", &mut self.snapshots),
            ("outages", &mut self.outages),
        ]
    }

    pub fn add(&mut self, other: &Counts) {
        let mut other = other.clone();
        for ((_, mine), (_, theirs)) in self.list().into_iter().zip(other.list()) {
            *mine += *theirs;
        }
    }

    /// What is injected must have happened.
    pub fn all_happened(&mut self) {
        for (name, count) in self.list() {
            assert!(*count > 0, "{name}: never");
        }
    }
}
