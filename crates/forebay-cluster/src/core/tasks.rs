//! The questions to the core, each from its beginning to its answer. Each task goes through a barrier, waits until
//! the mirror has reached it, and looks; after a refusal or failure the task begins again, within the patience.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Outcome, Revision};

use super::holders::PATIENCES;
use super::own::GiveBack;
use super::{Access, Ask, Core, Effect, Leaving, Peer, Reply, Rule, Ticket, Way, Why};

/// The pause before a failed request is repeated.
pub const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub enum Task {
    Open {
        file: FileKey,
        dir: FileKey,
        path: PathBuf,
        how: Access,
    },
    Create {
        dir: FileKey,
        path: PathBuf,
    },
    Change {
        files: Vec<FileKey>,
        dirs: Vec<FileKey>,
        /// The place of the second file, if the first one takes that name from it.
        goes: Option<PathBuf>,
    },
    RenameDir {
        path: PathBuf,
    },
    /// After a change of unclaimed files: members that have claimed one of the files meanwhile are told.
    After {
        files: Vec<FileKey>,
    },
    /// A peer renames a directory, or (path "") this member leaves. `left`: the files to be given back, and whether
    /// their give-back has begun.
    GiveBelow {
        path: PathBuf,
        left: Option<BTreeMap<FileKey, bool>>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The task is in the queue for a barrier, or in one.
    Barrier,
    Reach(Revision),
    /// The task asked other members.
    Asking,
    Committing,
    /// Waits for a file or directory of this member's to be given back, or for the gate to go.
    Local,
    Pause(Duration),
    /// The file's home is dead, and another member takes it over.
    TakeOver,
    /// Waits for other members that have read grants.
    Grants,
    /// A change was answered `Here` and is under way.
    Granted,
}

#[derive(Debug)]
pub struct Waiting {
    pub ask: Task,
    pub since: Duration,
    pub stage: Stage,
    /// The member to name when patience ends.
    pub waits_for: Option<String>,
    /// Creators that said no.
    pub not_at: BTreeSet<(FileKey, String)>,
    /// Members that said that they hold the file.
    pub homes: BTreeSet<(FileKey, String)>,
    /// Members that were asked to give a file back and could not.
    pub refused: BTreeSet<String>,
    pub open_questions: usize,
    /// Files of this member's that the change keeps here.
    pub uses: Vec<FileKey>,
    /// The registry had other keys than the mirror: the task needs a barrier, whatever is granted.
    pub is_behind: bool,
}

/// The purpose of a commit.
#[derive(Debug)]
pub enum Doing {
    /// The commit of a task, which looks again whatever the outcome.
    Task(Ticket),
    Gather(Vec<FileKey>),
    /// The files to give back, with the claims that this ends.
    Give(Vec<(FileKey, Option<Revision>)>, GiveBack),
    /// Takes the read grant.
    Grant,
    Ungrant,
    /// Has a member give up its read grant.
    Call(String),
    End(FileKey),
    Ungate,
    /// Names the partners in sync.
    Name(BTreeSet<String>),
    /// Takes a member over, or says that all of it is taken.
    Take(String),
    TakeClaims(String, Vec<FileKey>),
    /// Says that this superseded process has stopped.
    Fence,
}

impl Core {
    pub(super) fn ask(&mut self, ticket: Ticket, ask: Ask) {
        let task = match ask {
            Ask::Open { file, dir, path, how } => Task::Open { file, dir, path, how },
            Ask::Create { dir, path } => Task::Create { dir, path },
            Ask::Change { below: Some(path), .. } => Task::RenameDir { path },
            Ask::Change { files, dirs, below: None } => Task::Change { files, dirs, goes: None },
            Ask::Replace { files, dirs, at } => {
                Task::Change { files: files.into(), dirs: dirs.into(), goes: Some(at) }
            }
        };
        self.enter(ticket, task);
    }

    pub(super) fn enter(&mut self, ticket: Ticket, ask: Task) {
        let waiting = Waiting {
            ask,
            since: self.now,
            stage: Stage::Local,
            waits_for: None,
            not_at: BTreeSet::new(),
            homes: BTreeSet::new(),
            refused: BTreeSet::new(),
            open_questions: 0,
            uses: Vec::new(),
            is_behind: false,
        };
        self.tasks.insert(ticket, waiting);
        if self.is_superseded {
            self.fail(ticket, Why::Superseded);
            return;
        }
        self.begin(ticket);
    }

    /// Answers at once what this member knows by itself; the rest needs a barrier.
    pub(super) fn begin(&mut self, task: Ticket) {
        self.stage(task, Stage::Local);
        if self.is_suspended {
            return;
        }
        let Some(waiting) = self.tasks.get(&task) else { return };
        match &waiting.ask {
            Task::Open { file, how, .. } if self.own.contains_key(file) => {
                let (file, how) = (*file, *how);
                self.open_own(task, file, how);
            }
            Task::Create { dir, .. } if self.own_dirs.contains_key(dir) => {
                let dir = *dir;
                self.create_own(task, dir);
            }
            Task::Change { files, .. } if files.iter().all(|file| self.own.contains_key(file)) => {
                self.look(task);
            }
            Task::RenameDir { .. } if self.awaits_gate(task) => {}
            // No other member has anything there that the mirror does not know of.
            ask if !waiting.is_behind && self.is_granted_for(ask) => {
                self.use_grant();
                self.stage(task, Stage::Reach(self.mirror.revision));
                self.look(task);
            }
            Task::Open { how: Access::Read, .. } if self.trusted().is_some() => {
                let trusted = self.trusted().unwrap_or_default();
                self.stage(task, Stage::Reach(trusted));
                if self.mirror.revision >= trusted {
                    self.look(task);
                }
            }
            Task::Open { .. } | Task::Create { .. } | Task::Change { .. }
                if !self.rules.obey(Rule::BarrierBeforeOpen) =>
            {
                self.stage(task, Stage::Reach(Revision(0)));
                self.look(task);
            }
            _ => {
                self.stage(task, Stage::Barrier);
                self.next_barrier.push(task);
            }
        }
    }

    fn is_granted_for(&self, asks: &Task) -> bool {
        match asks {
            Task::Open { file, dir, .. } => self.is_granted(*file, *dir),
            Task::Change { files, dirs, .. } => {
                let mut placed = files.iter().zip(dirs);
                files.len() == dirs.len() && placed.all(|(file, dir)| self.is_granted(*file, *dir))
            }
            _ => false,
        }
    }

    fn look(&mut self, task: Ticket) {
        let Some(waiting) = self.tasks.get(&task) else { return };
        if self.is_suspended {
            if !matches!(waiting.ask, Task::GiveBelow { .. }) {
                self.stage(task, Stage::Local);
            }
            return;
        }
        match &waiting.ask {
            &Task::Open { file, dir, how, .. } => self.look_open(task, file, dir, how),
            &Task::Create { dir, .. } => self.look_create(task, dir),
            Task::Change { files, dirs, goes } => {
                let (files, dirs, goes) = (files.clone(), dirs.clone(), goes.clone());
                self.look_change(task, files, dirs, goes);
            }
            Task::RenameDir { path } => {
                let path = path.clone();
                self.look_rename(task, path);
            }
            Task::After { files } => {
                let files = files.clone();
                self.look_after(task, files);
            }
            Task::GiveBelow { path, left } => {
                let (path, left) = (path.clone(), left.clone());
                self.look_below(task, path, left);
            }
        }
    }

    pub(super) fn stage(&mut self, task: Ticket, stage: Stage) {
        if let Some(waiting) = self.tasks.get_mut(&task) {
            waiting.stage = stage;
        }
    }

    pub(super) fn pause(&mut self, task: Ticket) {
        self.stage(task, Stage::Pause(self.now + PAUSE));
    }

    /// Looks again at all tasks whose condition may have come to pass.
    pub(super) fn advance(&mut self) {
        let tasks: Vec<(Ticket, Stage)> = self.tasks.iter().map(|(t, w)| (*t, w.stage)).collect();
        for (task, stage) in tasks {
            match stage {
                Stage::Reach(revision) if self.mirror.revision >= revision => self.look(task),
                Stage::Local if !self.is_blocked(task) => self.begin(task),
                Stage::Pause(until) if self.now >= until => self.begin(task),
                Stage::TakeOver if !self.waits_for_taker(task) => self.begin(task),
                Stage::Grants => self.begin(task),
                _ => {}
            }
        }
    }

    /// Whether a task still has to wait for something of this member.
    fn is_blocked(&self, task: Ticket) -> bool {
        let Some(waiting) = self.tasks.get(&task) else { return true };
        if self.is_suspended {
            return true;
        }
        let is_giving = |file: &FileKey| {
            self.own.get(file).is_some_and(|own| matches!(own.leaving, Leaving::Giving { .. }))
        };
        let takes_leave =
            |file: &FileKey| self.own.get(file).is_some_and(|own| own.leaving != Leaving::No);
        let is_new = |file: &FileKey| self.own.get(file).is_some_and(|own| own.claim.is_none());
        let is_seen = |file: &FileKey| self.own.get(file).is_some_and(|own| own.is_seen);
        match &waiting.ask {
            Task::Open { file, how: Access::Read, .. } => is_giving(file),
            Task::Open { file, how, .. } => {
                let awaits_claim = *how == Access::Serve || !is_seen(file);
                takes_leave(file)
                    || (awaits_claim && is_new(file))
                    || (!self.own.contains_key(file) && self.is_gated())
            }
            Task::Create { dir, .. } => {
                self.is_gated() || self.own_dirs.get(dir).is_some_and(|own| own.leaving.is_some())
            }
            Task::Change { files, .. } => {
                files.iter().any(|file| takes_leave(file) || is_new(file))
            }
            Task::RenameDir { .. } => self.mirror.gate.is_some() || self.awaits_gate(task),
            Task::After { .. } => false,
            Task::GiveBelow { .. } => true,
        }
    }

    /// Whether another task's gate, or a lapsed one, has to go first.
    fn awaits_gate(&self, task: Ticket) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.task != task || gate.is_over)
    }

    /// The file's home is dead: the task fails, unless another member takes the home over.
    pub(super) fn orphaned(&mut self, task: Ticket, home: String) {
        if !self.is_inherited(&home) {
            return self.fail(task, Why::HomeDead(home));
        }
        if let Some(waiting) = self.tasks.get_mut(&task) {
            waiting.waits_for = Some(home);
            waiting.stage = Stage::TakeOver;
        }
    }

    fn waits_for_taker(&self, task: Ticket) -> bool {
        let Some(Waiting { ask, waits_for: Some(home), .. }) = self.tasks.get(&task) else {
            return false;
        };
        let holds = |file| self.mirror.claims.get(file).is_some_and(|c| c.member == *home);
        let makes = |dir| self.mirror.creates.get(dir).is_some_and(|c| c.contains_key(home));
        let waits = match ask {
            Task::Open { file, dir, .. } => holds(file) || makes(dir),
            Task::Change { files, dirs, .. } => files.iter().any(holds) || dirs.iter().any(makes),
            _ => true,
        };
        waits && self.is_inherited(home)
    }

    /// Begins a barrier. One is under way at a time; the next serves all tasks that came meanwhile.
    pub(super) fn begin_barrier(&mut self) {
        if self.barrier.is_none() && !self.next_barrier.is_empty() && !self.is_superseded {
            let ticket = self.ticket();
            self.barrier = Some((ticket, std::mem::take(&mut self.next_barrier)));
            self.barrier_began = self.now;
            self.out.push(Effect::Barrier(ticket));
        }
    }

    /// The revision of the last barrier, if it began recently enough for readers to believe it.
    pub(super) fn trusted(&self) -> Option<Revision> {
        let (began, revision) = self.last_barrier?;
        (self.now < began + self.trust).then_some(revision)
    }

    pub(super) fn reached(&mut self, ticket: Ticket, outcome: Result<Revision, ()>) {
        let Some((_, tasks)) = self.barrier.take_if(|(t, _)| *t == ticket) else { return };
        if let Ok(revision) = outcome {
            self.last_barrier = Some((self.barrier_began, revision));
        }
        for task in tasks {
            match outcome {
                Ok(revision) => self.stage(task, Stage::Reach(revision)),
                Err(()) => self.pause(task),
            }
        }
    }

    pub(super) fn committed(&mut self, ticket: Ticket, outcome: Result<Outcome, ()>) {
        match self.commits.remove(&ticket) {
            Some(Doing::Task(task)) => match outcome {
                Ok(Outcome::Committed(revision)) => {
                    let reach = self.rules.obey(Rule::ReachOwnClaim);
                    self.stage(task, Stage::Reach(if reach { revision } else { Revision(0) }));
                    if !reach {
                        self.believe(task, revision);
                    }
                }
                Ok(Outcome::Refused(_)) => {
                    if let Some(waiting) = self.tasks.get_mut(&task) {
                        waiting.is_behind = true;
                    }
                    self.gate_refused(task);
                    self.begin(task);
                }
                Err(()) => self.pause(task),
            },
            Some(Doing::Gather(files)) => self.gathered(files, outcome),
            Some(Doing::Give(files, how)) => self.gave(files, how, outcome),
            Some(Doing::Grant) => self.granted(outcome),
            Some(Doing::Ungrant) => self.grants.is_leaving = false,
            Some(Doing::Call(holder)) => self.has_called(&holder, outcome),
            Some(Doing::End(dir)) => self.ended_dir(dir, outcome),
            Some(Doing::Ungate) => self.ungated(outcome),
            Some(Doing::Name(partners)) => self.named(partners, outcome),
            Some(Doing::Take(member)) => self.took(&member, outcome),
            Some(Doing::TakeClaims(member, files)) => self.took_claims(&member, files, outcome),
            Some(Doing::Fence) => self.fence_said(outcome),
            None => {}
        }
    }

    pub(super) fn send(&mut self, task: Ticket, to: String, question: Peer) {
        let file = match question {
            Peer::Holds { file, .. } | Peer::Recall { file } | Peer::Changed { file } => Some(file),
            Peer::RecallBelow { .. } | Peer::Reached { .. } => None,
        };
        let ticket = self.ticket();
        self.sends.insert(ticket, (task, to.clone(), file));
        if let Some(waiting) = self.tasks.get_mut(&task) {
            waiting.open_questions += 1;
            waiting.waits_for = Some(to.clone());
            waiting.stage = Stage::Asking;
        }
        self.out.push(Effect::Send { ticket, to, question });
    }

    pub(super) fn answered(&mut self, ticket: Ticket, reply: Result<Reply, ()>) {
        let Some((task, from, file)) = self.sends.remove(&ticket) else {
            return self.heard_how_far(ticket, reply);
        };
        let Some(waiting) = self.tasks.get_mut(&task) else { return };
        waiting.open_questions -= 1;
        let is_last = waiting.open_questions == 0;
        let asked = file.map(|file| (file, from.clone()));
        match (&waiting.ask, reply) {
            (Task::Open { .. } | Task::Change { .. }, Ok(Reply::Holds(true))) => {
                waiting.homes.extend(asked);
            }
            (Task::Open { .. } | Task::Change { .. }, Ok(Reply::Holds(false))) => {
                waiting.not_at.extend(asked);
            }
            (Task::RenameDir { .. }, Ok(Reply::Given(false)) | Err(())) => {
                return self.fail(task, Why::Busy(from));
            }
            (Task::Change { .. }, Ok(Reply::Given(false))) => _ = waiting.refused.insert(from),
            (Task::Change { .. }, Ok(Reply::Given(true))) => {
                waiting.homes.retain(|home| Some(home) != asked.as_ref());
            }
            _ => {}
        }
        if is_last {
            match waiting.ask {
                Task::RenameDir { .. } => self.renames(task),
                _ if reply.is_err() => self.pause(task),
                Task::After { .. } => _ = self.tasks.remove(&task),
                _ if !self.rules.obey(Rule::LookAfterCreators) => self.look(task),
                _ => self.begin(task),
            }
        }
    }

    pub(super) fn answer(&mut self, task: Ticket, way: Way) {
        if self.tasks.remove(&task).is_some() {
            self.out.push(Effect::Answer(task, way));
        }
    }

    pub(super) fn fail(&mut self, task: Ticket, why: Why) {
        let Some(waiting) = self.tasks.remove(&task) else { return };
        self.leave_gate(task);
        for file in waiting.uses {
            self.unused(file);
        }
        match waiting.ask {
            Task::After { .. } => {}
            Task::GiveBelow { .. } => self.out.push(Effect::Reply(task, Reply::Given(false))),
            _ if waiting.stage == Stage::Granted => {}
            _ => self.out.push(Effect::Answer(task, Way::Fails(why))),
        }
    }

    pub(super) fn gave_up(&mut self, task: Ticket) {
        let Some(waiting) = self.tasks.remove(&task) else { return };
        self.leave_gate(task);
        for file in waiting.uses {
            self.unused(file);
        }
    }

    /// Fails the tasks that have waited too long. A change that is under way, and the messages after it, wait as long
    /// as it takes; a claim that a member with a read grant has to know of waits for the end of that member's lease.
    pub(super) fn lose_patience(&mut self) {
        let is_late = |(_, waiting): &(&Ticket, &Waiting)| {
            let patience = match waiting.stage {
                Stage::Grants => self.patience * PATIENCES,
                _ => self.patience,
            };
            waiting.stage != Stage::Granted
                && !matches!(waiting.ask, Task::After { .. })
                && self.now >= waiting.since + patience
        };
        let late: Vec<Ticket> = self.tasks.iter().filter(is_late).map(|(t, _)| *t).collect();
        for task in late {
            let waiting = &self.tasks[&task];
            let why = match (waiting.stage, &waiting.waits_for, &self.mirror.gate) {
                (Stage::TakeOver, Some(member), _) => Why::HomeDead(member.clone()),
                (Stage::Local, _, Some((gate, _))) => Why::Busy(gate.by.clone()),
                (Stage::Asking | Stage::Grants | Stage::Pause(_), Some(member), _) => {
                    Why::Busy(member.clone())
                }
                _ => Why::NoRegistry,
            };
            self.fail(task, why);
        }
    }
}
