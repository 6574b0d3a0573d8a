//! Tasks before and after names and attributes are changed; the gate of directory renames.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Compare, Outcome};

use super::opening::Creators;
use super::{
    Core, Doing, Effect, Gate, Leaving, OWN_LEASE, Peer, Rule, Stage, Task, Ticket, Way, Why,
};
use crate::keys;

impl Core {
    /// Exactly one home makes a change. Of two homes, one gives its file back first, unless its file only loses a
    /// name.
    pub(super) fn look_change(
        &mut self,
        task: Ticket,
        files: Vec<FileKey>,
        dirs: Vec<FileKey>,
        goes: Option<PathBuf>,
    ) {
        let mut mine = Vec::new();
        let mut homes: Vec<(String, FileKey)> = Vec::new();
        for (i, &file) in files.iter().enumerate() {
            if let Some(own) = self.own.get(&file) {
                // A new file is looked for by its directory until it is claimed: it does not leave the directory
                // before.
                if own.leaving != Leaving::No || own.claim.is_none() {
                    self.hurry();
                    return self.stage(task, Stage::Local);
                }
                mine.push(file);
            } else if let Some(claim) = self.mirror.claims.get(&file) {
                homes.push((claim.member.clone(), file));
            } else if let Some(&dir) = dirs.get(i) {
                match self.ask_creators(task, file, dir) {
                    Creators::Asked => return,
                    Creators::Home(home) => homes.push((home, file)),
                    Creators::Dead(home) => return self.orphaned(task, home),
                    Creators::Nobody => {}
                }
            }
        }
        let dead = homes.iter().find(|(home, _)| !self.mirror.alive.contains(home));
        if let Some((home, _)) = dead {
            let home = home.clone();
            return self.orphaned(task, home);
        }
        if let (Some(at), &[file, over]) = (goes, &files[..]) {
            return self.look_replace(task, [file, over], at, mine, homes);
        }
        let names: BTreeSet<&String> = homes.iter().map(|(home, _)| home).collect();
        if names.len() > 1 || (names.len() == 1 && !mine.is_empty()) {
            let refused = self.tasks.get(&task).map(|waiting| &waiting.refused);
            let refused = |home: &String| refused.is_some_and(|refused| refused.contains(home));
            let Some((home, file)) = homes.iter().find(|(home, _)| !refused(home)).cloned() else {
                let (home, _) = homes.swap_remove(0);
                return self.fail(task, Why::Busy(home));
            };
            return self.send(task, home, Peer::Recall { file });
        }
        if let Some((home, _)) = homes.pop() {
            return self.there(task, home);
        }
        if mine.is_empty() {
            dirs.iter().for_each(|dir| self.note_look(*dir));
        }
        self.use_for(task, mine);
        self.grant(task);
    }

    /// The home of the renamed file renames it, and the home of the replaced file makes sure that this file is what
    /// is replaced. A replaced file without a home gets one: otherwise two renames could replace it at the same
    /// moment, and the second would take the first one's file for it.
    fn look_replace(
        &mut self,
        task: Ticket,
        [file, over]: [FileKey; 2],
        at: PathBuf,
        mine: Vec<FileKey>,
        homes: Vec<(String, FileKey)>,
    ) {
        let home_of =
            |of: FileKey| homes.iter().find(|(_, file)| *file == of).map(|(home, _)| home);
        match (home_of(file), home_of(over)) {
            (Some(home), _) => self.there(task, home.clone()),
            (None, Some(home)) if mine.is_empty() => self.there(task, home.clone()),
            (None, Some(home)) => {
                let way = Way::Through { home: home.clone() };
                self.use_for(task, mine);
                self.stage(task, Stage::Granted);
                self.out.push(Effect::Answer(task, way));
            }
            (None, None) if mine.contains(&over) || !self.rules.obey(Rule::ClaimBeforeReplace) => {
                self.use_for(task, mine);
                self.grant(task);
            }
            (None, None) if self.is_gated() && self.rules.obey(Rule::GateStopsClaims) => {
                self.stage(task, Stage::Local);
            }
            (None, None) => {
                let commit = self.claiming(Commit::new(), over, &at.to_string_lossy());
                self.stage(task, Stage::Committing);
                self.commit(Doing::Task(task), commit, true);
            }
        }
    }

    /// Keeps these files here until the change is done.
    fn use_for(&mut self, task: Ticket, mine: Vec<FileKey>) {
        for file in &mine {
            if let Some(own) = self.own.get_mut(file) {
                own.uses += 1;
            }
        }
        if let Some(waiting) = self.tasks.get_mut(&task) {
            waiting.uses = mine;
        }
    }

    fn grant(&mut self, task: Ticket) {
        self.stage(task, Stage::Granted);
        self.out.push(Effect::Answer(task, Way::Here));
    }

    /// The change is done: the gate goes; members that have meanwhile claimed an unclaimed file of it are told.
    pub(super) fn changed(&mut self, task: Ticket) {
        let Some(waiting) = self.tasks.remove(&task) else { return };
        for &file in &waiting.uses {
            self.unused(file);
        }
        self.leave_gate(task);
        let Task::Change { files, .. } = waiting.ask else { return };
        let files: Vec<FileKey> =
            files.into_iter().filter(|file| !waiting.uses.contains(file)).collect();
        if !files.is_empty() && self.rules.obey(Rule::LookAfterChange) && !self.is_superseded {
            let ticket = self.ticket();
            self.enter(ticket, Task::After { files });
        }
    }

    pub(super) fn look_after(&mut self, task: Ticket, files: Vec<FileKey>) {
        let claimed = files.iter().filter_map(|file| {
            let home = &self.mirror.claims.get(file)?.member;
            (*home != self.me && self.mirror.alive.contains(home)).then(|| (home.clone(), *file))
        });
        let claimed: Vec<(String, FileKey)> = claimed.collect();
        if claimed.is_empty() {
            self.tasks.remove(&task);
        }
        for (home, file) in claimed {
            self.send(task, home, Peer::Changed { file });
        }
    }

    /// Goes on with a rename when the mirror is as new as the barrier, or as the commit that put the gate.
    pub(super) fn look_rename(&mut self, task: Ticket, path: PathBuf) {
        if self.gate.as_ref().is_some_and(|gate| gate.is_lapsed) {
            self.leave_gate(task);
        }
        let is_mine = self.gate.as_ref().is_some_and(|gate| gate.task == task && !gate.is_over);
        let by = self.mirror.gate.as_ref().map(|(gate, _)| gate.by.clone());
        match by {
            Some(by) if by == self.me && is_mine => self.clear_below(task, &path),
            None if is_mine || self.gate.is_none() => {
                self.gate = Some(Gate { task, is_over: false, is_lapsed: false, sent: None });
                let gate =
                    keys::Gate { by: self.me.clone(), from: path.to_string_lossy().into_owned() };
                let key = self.mirror.key("gate");
                let commit =
                    Commit::new().if_absent(&key).put_leased(&key, super::json(&gate), OWN_LEASE);
                self.stage(task, Stage::Committing);
                self.commit(Doing::Task(task), commit, false);
            }
            _ => self.stage(task, Stage::Local),
        }
    }

    fn clear_below(&mut self, task: Ticket, path: &Path) {
        if !self.rules.obey(Rule::RecallBelowGate) {
            return self.grant(task);
        }
        let (living, dead): (Vec<String>, Vec<String>) = self
            .mirror
            .holders(&self.me)
            .into_iter()
            .partition(|member| self.mirror.alive.contains(member));
        for home in dead {
            let makes = self.mirror.creates.values().any(|creators| creators.contains_key(&home));
            let mut claims = self.mirror.claims.values();
            if makes || claims.any(|c| c.member == home && Path::new(&c.path).starts_with(path)) {
                return self.orphaned(task, home);
            }
        }
        if living.is_empty() {
            return self.renames(task);
        }
        for to in living {
            self.send(task, to, Peer::RecallBelow { path: path.into() });
        }
    }

    /// No other member holds anything below the directory, unless the gate has gone meanwhile, with a lease that ran
    /// out.
    pub(super) fn renames(&mut self, task: Ticket) {
        match self.may_rename(self.now, task) {
            true => self.grant(task),
            false => self.pause(task),
        }
    }

    /// Whether the gate of this task stands at `now`. To be asked once more right before the rename is made, since
    /// the lease may have run out since it was granted.
    pub fn may_rename(&self, now: Duration, task: Ticket) -> bool {
        if !self.rules.obey(Rule::GateStands) {
            return true;
        }
        let is_put = self.mirror.gate.as_ref().is_some_and(|(gate, _)| gate.by == self.me);
        let stands = |gate: &Gate| gate.task == task && !gate.is_over && !gate.is_lapsed;
        let is_mine = self.gate.as_ref().is_some_and(stands);
        is_put && is_mine && self.lease_until.is_none_or(|until| now < until)
    }

    /// The lease that the gate hangs on has run out. Under the next lease the gate counts for nothing, whatever the
    /// mirror has.
    pub(super) fn lapse_gate(&mut self) {
        if self.rules.obey(Rule::GateStands)
            && let Some(gate) = &mut self.gate
        {
            gate.is_lapsed = true;
        }
    }

    pub(super) fn gate_refused(&mut self, task: Ticket) {
        let by = self.mirror.gate.as_ref().map(|(gate, _)| &gate.by);
        if by != Some(&self.me) {
            self.gate.take_if(|gate| gate.task == task && !gate.is_over);
        }
    }

    pub(super) fn leave_gate(&mut self, task: Ticket) {
        if let Some(gate) = self.gate.as_mut().filter(|gate| gate.task == task) {
            gate.is_over = true;
            self.tend_gate();
        }
    }

    /// Takes away a gate of this member's that no task needs, and repeats that until the gate is gone.
    pub(super) fn tend_gate(&mut self) {
        let key = self.mirror.key("gate");
        let mine = self.mirror.gate.as_ref().filter(|(gate, _)| gate.by == self.me);
        let mine = mine.map(|(_, revision)| *revision);
        match (mine, &mut self.gate) {
            (None, Some(gate)) if gate.is_over => self.gate = None,
            (Some(revision), Some(gate)) if !gate.is_over || gate.sent == Some(revision) => {}
            (Some(revision), _) => {
                self.gate =
                    Some(Gate { task: 0, is_over: true, is_lapsed: true, sent: Some(revision) });
                let mut commit = Commit::new();
                commit.compares.push(Compare::Revision(key.clone(), revision));
                self.commit(Doing::Ungate, commit.delete(key), false);
            }
            _ => {}
        }
    }

    pub(super) fn ungated(&mut self, outcome: Result<Outcome, ()>) {
        if !matches!(outcome, Ok(Outcome::Committed(_)))
            && let Some(gate) = &mut self.gate
        {
            gate.sent = None;
        }
    }
}
