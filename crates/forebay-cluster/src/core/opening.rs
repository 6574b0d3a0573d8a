//! Tasks before a file is opened, or made.

use std::collections::BTreeSet;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Revision};

use super::own::SOMEWHERE;
use super::{Access, Core, Doing, Leaving, Peer, Rule, Stage, Task, Ticket, Waiting, Way};
use crate::keys;

/// What the creators of a directory say about the home of a file.
pub enum Creators {
    Asked,
    Home(String),
    Dead(String),
    Nobody,
}

impl Core {
    /// Opens a file that this member holds: the open goes on unless the file is just being given
    /// back.
    pub(super) fn open_own(&mut self, task: Ticket, file: FileKey, how: Access) {
        let writers_wait = self.rules.obey(Rule::WritersWaitDuringRelease);
        let readers_wait = self.rules.obey(Rule::ReadersWaitDuringGiveBack);
        let now = self.now;
        let Some(own) = self.own.get_mut(&file) else { return };
        let waits = match how {
            Access::Write | Access::Serve => writers_wait && own.leaving != Leaving::No,
            Access::Read => readers_wait && matches!(own.leaving, Leaving::Giving { .. }),
        };
        if waits {
            self.stage(task, Stage::Local);
            return;
        }
        if how.writes() && !self.is_seen(task, file) {
            return;
        }
        let Some(own) = self.own.get_mut(&file) else { return };
        let needs_claim = how == Access::Serve && self.rules.obey(Rule::ClaimBeforeServe);
        if needs_claim && own.claim.is_none() {
            self.stage(task, Stage::Local);
            return self.hurry();
        }
        own.used = now;
        if how.writes() {
            own.uses += 1;
        }
        self.answer(task, Way::Here);
    }

    /// Decides an open when the mirror is as new as the barrier that began after it.
    pub(super) fn look_open(&mut self, task: Ticket, file: FileKey, dir: FileKey, how: Access) {
        if self.own.contains_key(&file) {
            return self.open_own(task, file, how);
        }
        if let Some(claim) = self.mirror.claims.get(&file) {
            let home = claim.member.clone();
            return self.there(task, home);
        }
        match self.ask_creators(task, file, dir) {
            Creators::Asked => return,
            Creators::Home(home) => return self.there(task, home),
            Creators::Dead(home) => return self.orphaned(task, home),
            Creators::Nobody => {}
        }
        if how == Access::Read || !self.rules.obey(Rule::ClaimBeforeWrite) {
            self.note_look(dir);
            return self.answer(task, Way::Here);
        }
        if self.is_gated() && self.rules.obey(Rule::GateStopsClaims) {
            return self.stage(task, Stage::Local);
        }
        let Some(Waiting { ask: Task::Open { path, .. }, .. }) = self.tasks.get(&task) else {
            return;
        };
        let commit = self.claiming(Commit::new(), file, &path.to_string_lossy());
        self.stage(task, Stage::Committing);
        self.commit(Doing::Task(task), commit, true);
    }

    pub(super) fn there(&mut self, task: Ticket, home: String) {
        match self.mirror.alive.contains(&home) {
            true => self.answer(task, Way::There { home }),
            false => self.orphaned(task, home),
        }
    }

    /// Asks the members that make files in a directory whether an unclaimed file is theirs.
    pub(super) fn ask_creators(&mut self, task: Ticket, file: FileKey, dir: FileKey) -> Creators {
        let Some(waiting) = self.tasks.get(&task) else { return Creators::Asked };
        if !self.rules.obey(Rule::AskCreators) {
            return Creators::Nobody;
        }
        // If the file has no name here, the directory in which the program found it is unknown.
        let is_there = |of: &FileKey| *of == dir || dir == SOMEWHERE;
        let dirs = self.mirror.creates.iter().filter(|(of, _)| is_there(of));
        let creators: BTreeSet<&String> = dirs.flat_map(|(_, creators)| creators.keys()).collect();
        let others = creators.into_iter().filter(|member| **member != self.me);
        let asked = |member: &&String| !waiting.not_at.contains(&(file, (*member).clone()));
        let others: Vec<String> = others.filter(asked).cloned().collect();
        let holds = |member: &&String| waiting.homes.contains(&(file, (*member).clone()));
        if let Some(home) = others.iter().find(holds) {
            return Creators::Home(home.clone());
        }
        let (living, dead): (Vec<String>, Vec<String>) =
            others.into_iter().partition(|member| self.mirror.alive.contains(member));
        if living.is_empty() {
            return dead.into_iter().next().map_or(Creators::Nobody, Creators::Dead);
        }
        for to in living {
            self.send(task, to, Peer::Holds { file, dir });
        }
        Creators::Asked
    }

    /// As if the mirror had the claim already: only for a simulation without [`Rule::ReachOwnClaim`].
    pub(super) fn believe(&mut self, task: Ticket, revision: Revision) {
        if let Some(Task::Open { file, .. }) = self.tasks.get(&task).map(|w| w.ask.clone()) {
            self.own_anew(file).claim = Some(revision);
        }
    }

    pub(super) fn create_own(&mut self, task: Ticket, dir: FileKey) {
        let now = self.now;
        let Some(waiting) = self.tasks.get(&task) else { return };
        let Task::Create { path, .. } = &waiting.ask else { return };
        let path = path.clone();
        let Some(own) = self.own_dirs.get_mut(&dir) else { return };
        if own.leaving.is_some() {
            return self.stage(task, Stage::Local);
        }
        own.path = path;
        own.used = now;
        let since = own.revision;
        if self.rules.obey(Rule::CreatesWaitForGrants) && !self.is_known(task, since) {
            return;
        }
        let Some(own) = self.own_dirs.get_mut(&dir) else { return };
        own.making.insert(task);
        self.answer(task, Way::Here);
    }

    pub(super) fn look_create(&mut self, task: Ticket, dir: FileKey) {
        if self.own_dirs.contains_key(&dir) {
            return self.create_own(task, dir);
        }
        if self.is_gated() && self.rules.obey(Rule::GateStopsClaims) {
            return self.stage(task, Stage::Local);
        }
        let key = self.mirror.key(&format!("creates/{}/{}", keys::file(dir), self.me));
        let commit = Commit::new().if_absent(&key).put(&key, "");
        self.stage(task, Stage::Committing);
        self.commit(Doing::Task(task), commit, true);
    }
}
