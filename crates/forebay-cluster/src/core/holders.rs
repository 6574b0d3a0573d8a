//! Other members that have read grants: a claim of this member waits until they know of it
//! ([`grants`](super::grants)).
//!
//! A lost question is asked again. One is under way to each member at a time; the next asks for all that was put
//! meanwhile. Where two members do not reach each other, but both the registry, one calls upon the other by a key,
//! `called/M`, to give its grant up. A member that stands still, or is cut off from the registry, does not hear that:
//! the claimer waits until that member's lease has run out.

use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Outcome, Revision};

use super::tasks::PAUSE;
use super::{Core, Doing, Effect, OWN_LEASE, Peer, Reply, Rule, Stage, Ticket};

/// Waiting for a grant may take this many patiences: longer than any lease.
pub const PATIENCES: u32 = 3;

/// A member whose mirror lags says how far the mirror is after this part of the patience. A member that is silent for
/// twice as long is called.
pub const LAGS: u32 = 4;

/// How far another member has said that its mirror is, and the questions to that member.
#[derive(Debug, Default)]
pub struct Heard {
    upto: Revision,
    wants: Revision,
    /// The question that is under way, and since when.
    asked: Option<(Ticket, Duration)>,
    not_before: Duration,
    /// Questions in a row that the member did not answer.
    failed: u32,
    /// The grant that the member was called to give up.
    called: Option<Revision>,
}

impl Heard {
    /// One answer may be lost.
    fn is_silent(&self) -> bool {
        self.failed > 1
    }

    fn asked_for(&self, now: Duration) -> Option<Duration> {
        self.asked.map(|(_, since)| now.saturating_sub(since))
    }
}

/// Grants of others for which this member's puts wait.
impl Core {
    /// Whether no other member opens this file without asking.
    pub(super) fn is_seen(&mut self, task: Ticket, file: FileKey) -> bool {
        if !self.rules.obey(Rule::ClaimWaitsForGrants) {
            return true;
        }
        let Some(own) = self.own.get_mut(&file) else { return true };
        if own.is_seen {
            return true;
        }
        own.used = self.now; // A used file is not given back meanwhile.
        let Some(since) = own.claim else {
            self.stage(task, Stage::Local);
            self.hurry();
            return false;
        };
        let is_seen = self.is_known(task, since);
        if let Some(own) = self.own.get_mut(&file) {
            own.is_seen = is_seen;
        }
        is_seen
    }

    /// Whether all members with grants know what this member has put at a revision, which its own mirror has reached.
    /// Otherwise the task waits for that.
    pub(super) fn is_known(&mut self, task: Ticket, since: Revision) -> bool {
        let Core { heard, mirror, me, .. } = self;
        let mut first = None;
        for (holder, _) in mirror.grants.iter().filter(|(by, put)| *by != me && **put < since) {
            if heard.get(holder).is_none_or(|heard| heard.upto < since) {
                let heard = heard.entry(holder.clone()).or_default();
                heard.wants = heard.wants.max(since);
                first = first.or(Some(holder));
            }
        }
        let Some(holder) = first.cloned() else { return true };
        if let Some(waiting) = self.tasks.get_mut(&task) {
            waiting.waits_for = Some(holder);
            waiting.stage = Stage::Grants;
        }
        false
    }

    /// Asks the members whose answers are waited for; one question covers all of them. Silent members are called.
    pub(super) fn ask_how_far(&mut self) {
        if self.is_superseded {
            return;
        }
        let (now, patience, holders) = (self.now, self.patience, &self.mirror.grants);
        let mut silent = Vec::new();
        for (holder, heard) in &mut self.heard {
            if heard.wants <= heard.upto || now < heard.not_before {
                continue;
            }
            let put = holders.get(holder).filter(|put| **put < heard.wants);
            let Some(&put) = put else { continue };
            let asked_for = heard.asked_for(now);
            if asked_for.is_none_or(|it| it >= patience) {
                self.next += 1;
                heard.asked = Some((self.next, now));
                let (ticket, to) = (self.next, holder.clone());
                let question = Peer::Reached { revision: heard.wants };
                self.out.push(Effect::Send { ticket, to, question });
            }
            let is_late = asked_for.is_some_and(|it| it >= patience / LAGS * 2);
            if (heard.is_silent() || is_late) && heard.called != Some(put) {
                heard.called = Some(put);
                silent.push(holder.clone());
            }
        }
        silent.into_iter().for_each(|holder| self.call(holder));
    }

    fn call(&mut self, holder: String) {
        let key = self.mirror.key(&format!("called/{holder}"));
        let commit = Commit::new().if_absent(&key).put_leased(key, "", OWN_LEASE);
        self.commit(Doing::Call(holder), commit, false);
    }

    pub(super) fn has_called(&mut self, holder: &str, outcome: Result<Outcome, ()>) {
        let again = self.now + PAUSE;
        let Some(heard) = self.heard.get_mut(holder) else { return };
        // Refused: another member has called, and its call may go with it.
        if !matches!(outcome, Ok(Outcome::Committed(_))) {
            (heard.called, heard.not_before) = (None, again);
        }
    }

    /// A member has said how far its mirror is, or was not reached.
    pub(super) fn heard_how_far(&mut self, ticket: Ticket, reply: Result<Reply, ()>) {
        let again = self.now + PAUSE;
        let is_it = |heard: &&mut Heard| heard.asked.is_some_and(|(asked, _)| asked == ticket);
        let Some(heard) = self.heard.values_mut().find(is_it) else { return };
        heard.asked = None;
        match reply {
            Ok(Reply::Reached(upto)) => {
                (heard.upto, heard.failed) = (heard.upto.max(upto), 0);
            }
            Ok(_) | Err(()) => {
                (heard.not_before, heard.failed) = (again, heard.failed.saturating_add(1));
            }
        }
    }

    /// Forgets members without grants, which are asked nothing. A silent member is remembered for the time when it has
    /// a grant again.
    pub(super) fn tend_holders(&mut self) {
        let holders = &self.mirror.grants;
        self.heard.retain(|holder, it| it.is_silent() || holders.contains_key(holder));
    }
}
