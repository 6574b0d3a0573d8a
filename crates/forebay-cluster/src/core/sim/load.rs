//! Programs that use the mounts, and the faults that befall members meanwhile.

use super::moves::Entering;
use super::world::{
    Checked, FAULTS_END, OUTLIVES, PATIENCE, What, World, dir_key, dir_of, key, node_of, path,
};
use super::{More, Neglect};
use crate::core::{Access, Ask, Holder, Input, PATIENCES, Ticket, Way, Why};

#[derive(Debug, Clone)]
pub enum Op {
    Read {
        file: usize,
        dir: usize,
        floor: u64,
    },
    Write {
        file: usize,
        dir: usize,
        syncs: bool,
    },
    Create {
        dir: usize,
    },
    Change,
    Rename {
        dir: usize,
    },
    /// A file's name is to move or be linked from one directory to another.
    Move {
        file: usize,
        from: usize,
        links: bool,
    },
    /// The name may enter, once files may be made in that directory.
    Enter(Entering),
}

#[derive(Clone)]
pub enum From {
    Program,
    /// A program of another member: (member, its life, its operation).
    Peer(usize, u64, u64),
}

pub struct Asked {
    pub op: Op,
    from: From,
    pub since: u64,
    tries: u32,
}

impl World {
    pub fn program(&mut self, node: usize) -> Checked {
        if self.now > FAULTS_END + 2000 || self.nodes[node].is_dead {
            return Ok(());
        }
        let next = 10 + self.dice.roll(if self.plan.grants { 60 } else { 300 });
        self.at(next, What::Program(node));
        if !self.serves(node) {
            return Ok(());
        }
        let first = self.plan.files();
        let made: Vec<usize> =
            (first..self.files.len()).filter(|f| self.files[*f].maker.is_some()).collect();
        let file = match (self.dice.roll(2), made.last()) {
            (0, Some(_)) => {
                made[made.len() - 1 - self.dice.roll(made.len().min(3) as u64) as usize]
            }
            _ => self.dice.roll(first as u64) as usize,
        };
        let op = match self.dice.roll(20) {
            _ if self.plan.grants => self.among_directories(file),
            0..8 => Op::Read { file, dir: dir_of(file), floor: self.files[file].acked },
            8..15 => {
                let syncs = self.plan.copies > 0 && self.dice.roll(3) > 0;
                Op::Write { file, dir: dir_of(file), syncs }
            }
            15..17 => Op::Create { dir: self.dice.roll(2) as usize },
            17..19 => Op::Change,
            _ => Op::Rename { dir: self.dice.roll(2) as usize },
        };
        // The member's kernel does not move a file that is just being made.
        let found = &self.files[file];
        if matches!(op, Op::Move { .. }) && found.maker == Some(node) && found.newest == 0 {
            return Ok(());
        }
        self.ask(node, op, From::Program, self.now, 0)
    }

    /// Where members are taken over, a member serves nothing before it knows which files were
    /// taken.
    fn serves(&self, node: usize) -> bool {
        let n = &self.nodes[node];
        n.core.is_some() && (n.has_begun || self.plan.copies == 0)
    }

    fn ask(&mut self, node: usize, op: Op, from: From, since: u64, tries: u32) -> Checked {
        if let (Op::Read { file, .. } | Op::Write { file, .. }, From::Program, 0) =
            (&op, &from, tries)
            && self.plan.direct
            && let Some(core) = &self.nodes[node].core
            && let Holder::There(home) = core.holder(key(*file))
        {
            self.ask_home(node, &home, Asked { op, from, since, tries });
            return Ok(());
        }
        let ticket = self.ticket();
        let open = |file: usize, dir, how| Ask::Open {
            file: key(file),
            dir: dir_key(dir),
            path: path(file).into(),
            how,
        };
        let ask = match op {
            Op::Read { file, dir, .. } => open(file, dir, Access::Read),
            Op::Write { file, dir, .. } => match from {
                From::Program => open(file, dir, Access::Write),
                From::Peer(..) => open(file, dir, Access::Serve),
            },
            Op::Move { file, from, .. } => {
                Ask::Change { files: vec![key(file)], dirs: vec![dir_key(from)], below: None }
            }
            Op::Enter(Entering { to, .. }) => {
                Ask::Create { dir: dir_key(to), path: format!("d{to}").into() }
            }
            Op::Create { dir } => Ask::Create { dir: dir_key(dir), path: format!("d{dir}").into() },
            Op::Change => {
                let files = [0, 1].map(|_| self.dice.roll(self.files.len() as u64) as usize);
                let dirs = files.map(|file| dir_key(dir_of(file))).to_vec();
                Ask::Change { files: files.map(key).to_vec(), dirs, below: None }
            }
            Op::Rename { dir } => {
                Ask::Change { files: vec![], dirs: vec![], below: Some(format!("d{dir}").into()) }
            }
        };
        if let Op::Read { file, .. } | Op::Write { file, .. } = op
            && self.files[file].maker.is_some_and(|maker| maker != node)
        {
            self.files[file].is_opened = true;
        }
        self.nodes[node].asked.insert(ticket, Asked { op, from, since, tries });
        self.give(node, Input::Ask(ticket, ask))
    }

    pub fn answer(&mut self, node: usize, ticket: Ticket, way: Way) -> Checked {
        let Some(asked) = self.nodes[node].asked.remove(&ticket) else {
            return Err(format!("m{node}: an answer to {ticket}, which nobody waits for: {way:?}"));
        };
        let life = self.nodes[node].life;
        let is_paused = self.nodes[node].paused + PATIENCE > self.now;
        let patience = match asked.op {
            // Writes, creations and entries wait for others' grants, and thus for their leases.
            Op::Write { .. } | Op::Create { .. } | Op::Enter(_) if self.plan.has_leases() => {
                PATIENCE * u64::from(PATIENCES)
            }
            _ => PATIENCE,
        };
        let patience = self.at_most(patience);
        if self.now > asked.since + patience + 250 && !is_paused && asked.tries == 0 {
            return Err(format!("m{node}: {:?} took {} ms", asked.op, self.now - asked.since));
        }
        let reply_to = match asked.from {
            From::Program => None,
            From::Peer(to, life, op) => Some((to, life, op)),
        };
        if let Op::Read { file, .. } | Op::Write { file, .. } = asked.op {
            self.check_taker(node, file, asked.since, &way)?;
        }
        match (way, asked.op.clone()) {
            (Way::Here, Op::Read { file, dir, floor }) => {
                // A read by a name that has gone finds nothing.
                if !self.is_in(file, dir) {
                    self.counts.granted.stale += 1;
                    self.served_for(node, reply_to, Err(()));
                    return Ok(());
                }
                let is_known = asked.since == self.now && self.claimant(file) != Some(node);
                self.counts.granted.opened += u64::from(is_known);
                // The open decides freshness: the read follows at once.
                self.happen(What::Read(node, file, floor, asked.since, reply_to))
            }
            (Way::Here, Op::Move { file, from, links }) => {
                let to = 1 - from;
                let entering = Entering { file, from, to, links, change: ticket, maker: None };
                if self.neglect != Some(Neglect::EnterAsMaker) {
                    return self.ask(node, Op::Enter(entering), asked.from, self.now, 0);
                }
                let delay = 1 + self.dice.roll(50);
                self.at(delay, What::Entered(node, life, entering));
                Ok(())
            }
            (Way::Here, Op::Enter(entering)) => {
                let entering = Entering { maker: Some(ticket), ..entering };
                let delay = 1 + self.dice.roll(50);
                self.at(delay, What::Entered(node, life, entering));
                Ok(())
            }
            (Way::Fails(_), Op::Enter(entering)) => {
                self.counts.failed += 1;
                self.give(node, Input::Changed(entering.change))
            }
            (Way::Here, Op::Write { file, syncs, .. }) => {
                self.check_served(node, file, reply_to)?;
                *self.nodes[node].writers.entry(file).or_default() += 1;
                let delay = self.dice.roll(30);
                self.at(delay, What::Wrote(node, life, file, syncs, reply_to));
                Ok(())
            }
            (Way::Here, Op::Create { dir }) => {
                // Some stores take longer than any settling time.
                let most = if self.dice.roll(8) == 0 { 4000 } else { 100 };
                let delay = self.dice.roll(most);
                self.at(delay, What::Made(node, life, dir, ticket));
                Ok(())
            }
            (Way::Here, Op::Change) => {
                let delay = self.dice.roll(50);
                self.at(delay, What::Renamed(node, life, ticket, None));
                Ok(())
            }
            (Way::Here, Op::Rename { .. }) if !self.may_rename(node, ticket) => {
                self.counts.failed += 1;
                self.counts.more.gates_gone += 1;
                self.give(node, Input::Changed(ticket))
            }
            (Way::Here, Op::Rename { dir }) => {
                self.counts.renames += 1;
                self.check_rename(node, dir)?;
                self.renaming = Some((node, dir));
                let delay = 10 + self.dice.roll(150);
                self.at(delay, What::Renamed(node, life, ticket, Some(dir)));
                Ok(())
            }
            (Way::There { home }, op @ (Op::Read { .. } | Op::Write { .. } | Op::Move { .. }))
                if reply_to.is_none() =>
            {
                self.ask_home(node, &home, Asked { op, ..asked });
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

    /// Looks at the gate once more before the rename begins.
    fn may_rename(&self, node: usize, ticket: Ticket) -> bool {
        let (now, core) = (self.clock(node), self.nodes[node].core.as_ref());
        self.neglect == Some(Neglect::LookAtGate)
            || core.is_some_and(|core| core.may_rename(now, ticket))
    }

    fn ask_home(&mut self, node: usize, home: &str, asked: Asked) {
        let (number, life, op) = (self.ticket(), self.nodes[node].life, asked.op.clone());
        self.remote.insert(number, (node, asked));
        self.at(PATIENCE, What::TimedOut(number));
        if !self.lost(node) {
            let delay = self.delay();
            self.at(delay, What::Serve(node_of(home), node, life, number, op));
        }
    }

    /// An open of a dead member's file either waited until another member had it, or fails rightly.
    fn check_taker(&mut self, node: usize, file: usize, since: u64, way: &Way) -> Checked {
        match way {
            Way::Fails(Why::HomeDead(home))
                if self.now < since + self.at_least(PATIENCE)
                    && self.nodes[node].seen == self.registry.revision
                    && self.claimant(file) == Some(node_of(home))
                    && self.is_inherited(node_of(home)) =>
            {
                Err(format!("m{node}: f{file} of {home} fails, others have copies"))
            }
            Way::Fails(_) => Ok(()),
            _ => {
                self.counts.copied.waited_for_taker += u64::from(since < self.files[file].moved);
                Ok(())
            }
        }
    }

    pub fn served(&mut self, what: What) -> Checked {
        match what {
            What::Serve(node, from, life, number, Op::Read { file, floor, .. })
                if self.plan.direct =>
            {
                let (now, reply_to) = (self.clock(node), (from, life, number));
                let Some(core) = self.nodes[node].core.as_ref().filter(|_| self.serves(node))
                else {
                    return Ok(());
                };
                if core.vouches(now, key(file)).is_some() {
                    self.counts.vouched += 1;
                    return self.happen(What::Read(node, file, floor, self.now, Some(reply_to)));
                }
                self.counts.not_vouched += 1;
                self.served_for(node, Some(reply_to), Err(()));
                Ok(())
            }
            What::Serve(node, from, life, number, op) => match self.serves(node) {
                true => self.ask(node, op, From::Peer(from, life, number), self.now, 0),
                false => Ok(()),
            },
            What::Served(node, life, number, result) => {
                let Some((_, asked)) = self.remote.remove(&number) else { return Ok(()) };
                if !self.lives(node, life) {
                    return Ok(());
                }
                match (result, asked.op) {
                    (Ok(value), Op::Read { file, floor, .. }) => {
                        self.check_read(node, file, floor, value, asked.since)
                    }
                    (Ok(value), Op::Write { file, syncs, .. }) => {
                        self.acknowledged(file, value, syncs)
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
            _ => Ok(()),
        }
    }

    /// Kills the member's process. Its next process finds that the tier has lost a copy.
    fn damage(&mut self, node: usize) {
        let copies: Vec<(usize, usize)> = self.nodes[node].copies.keys().copied().collect();
        if copies.is_empty() {
            return;
        }
        let lost = copies[self.dice.roll(copies.len() as u64) as usize];
        self.lose_copy(node, lost);
        self.nodes[node].damaged.insert(lost.0);
        self.counts.copied.damaged += 1;
        self.kill(node);
        let back = 20 + self.dice.roll(300);
        self.at(back, What::Start(node));
    }

    pub fn fault(&mut self) -> Checked {
        let next = 50 + self.dice.roll(500);
        if self.now + next < FAULTS_END {
            self.at(next, What::Fault);
        }
        let node = self.dice.roll(self.plan.members as u64) as usize;
        let until = self.now + 50 + self.dice.roll(900);
        let until = until.min(FAULTS_END);
        let lives = self.nodes[node].core.is_some();
        if self.plan.more != More::None && self.dice.roll(2) == 0 {
            return self.one_more_fault(node, until);
        }
        match self.dice.roll(if self.plan.copies > 0 { 10 } else { 6 }) {
            0 => self.nodes[node].cut_registry = until,
            1 => self.nodes[node].cut_peers = until,
            2 => self.nodes[node].paused = until,
            3 => {
                self.outage = until;
                self.counts.outages += 1;
            }
            4 if lives => {
                self.counts.kills += 1;
                self.kill(node);
                let back = 20 + self.dice.roll(1200);
                self.at(back, What::Start(node));
            }
            6 if self.deaths < self.plan.deaths && !self.nodes[node].is_dead => {
                self.counts.copied.deaths += 1;
                self.deaths += 1;
                self.kill(node);
                self.nodes[node].is_dead = true;
                self.at(OUTLIVES + 500, What::Operator(node));
            }
            7 => self.nodes[node].full = until,
            9 if lives => self.damage(node),
            8 => {
                self.nodes[node].cut_registry = until;
                self.nodes[node].cut_peers = self.now + self.dice.roll(900);
            }
            _ => {}
        }
        Ok(())
    }
}
