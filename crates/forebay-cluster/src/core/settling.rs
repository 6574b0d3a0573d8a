//! Files that this member has taken over, until no other member can write to them any more; and the end of a
//! process whose member was taken over.

use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Compare, Outcome};

use super::tasks::PAUSE;
use super::{Core, Doing, Effect, Rule};
use crate::keys;

/// The state of a taken file, until no other member can write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    Until(Duration),
    /// [`Effect::Settle`] is under way.
    Settling,
}

impl Core {
    /// Whether the member from which the file was taken may still write to the store.
    pub(super) fn is_held(&self, file: FileKey) -> bool {
        self.takes.held.contains_key(&file) && self.rules.obey(Rule::HeldUntilFenced)
    }

    pub(super) fn not_held(&mut self, file: FileKey) {
        self.takes.held.remove(&file);
    }

    pub(super) fn tend_held(&mut self) {
        let due = |(file, held): (&FileKey, &Held)| {
            let is_due = matches!(held, Held::Until(until) if self.now >= *until);
            let claim = self.mirror.claims.get(file).filter(|_| is_due)?;
            let holds = self.rules.obey(Rule::HeldUntilFenced);
            let stopped = |f: &keys::TakenFrom| !holds || self.fenced(&f.member) >= f.epoch;
            claim.taken_from.iter().all(stopped).then_some(*file)
        };
        let due: Vec<FileKey> = self.takes.held.iter().filter_map(due).collect();
        for file in due {
            self.takes.held.insert(file, Held::Settling);
            self.out.push(Effect::Settle { file });
        }
    }

    pub(super) fn settled(&mut self, file: FileKey, ok: bool) {
        match self.takes.held.get_mut(&file) {
            Some(_) if ok => _ = self.takes.held.remove(&file),
            Some(held) => *held = Held::Until(self.now + PAUSE * 10),
            None => {}
        }
    }

    /// This process, whose epoch was taken, has stopped its calls to the store.
    pub(super) fn stopped(&mut self) {
        if self.is_superseded {
            self.takes.fence = Some(false);
            self.tend_fence();
        }
    }

    pub(super) fn tend_fence(&mut self) {
        if self.takes.fence != Some(false) {
            return;
        }
        let found = self.mirror.fenced.get(&self.me);
        if found.is_some_and(|(fenced, _)| fenced.epoch >= self.epoch) {
            self.takes.fence = None;
            return;
        }
        let key = self.mirror.key(&format!("fenced/{}", self.me));
        let mut commit = Commit::new();
        match found {
            Some((_, revision)) => {
                commit.compares.push(Compare::Revision(key.clone(), *revision));
            }
            None => commit = commit.if_absent(&key),
        }
        let commit = commit.put(key, super::json(&keys::Fenced { epoch: self.epoch }));
        self.takes.fence = Some(true);
        // The commit compares no member key: that key is another process's by now.
        let ticket = self.ticket();
        self.commits.insert(ticket, Doing::Fence);
        self.out.push(Effect::Commit(ticket, commit));
    }

    pub(super) fn fence_said(&mut self, outcome: Result<Outcome, ()>) {
        let is_said = matches!(outcome, Ok(Outcome::Committed(_)));
        self.takes.fence = (!is_said).then_some(false);
    }
}
