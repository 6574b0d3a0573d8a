//! The read grant of a member. While it stands, the member opens files that nobody has claimed by what its mirror
//! says, without a barrier.
//!
//! A grant is one key, `grants/M`, on the lease of its member's process. A member that claims a file, or begins to
//! make files in a directory (or to bring names there), does so by a commit at some revision R. It goes on when each
//! member whose grant is older than R has said that its mirror has reached R, or its grant is gone. The grant stays:
//! its member knows of the claim now.
//!
//! A member that opens by a grant, put at P, has missed no claim that counts. Take a claim at R.
//!
//! - P is newer than R. The grant counts once the mirror has reached P, and then it has the claim
//!   ([`Rule::GrantReached`]).
//! - P is older, and the grant's member has said that it has reached R ([`Rule::ClaimWaitsForGrants`],
//!   [`Rule::AnswerMeansReached`]). What was said of a mirror stays true, also of the member's next process: a mirror
//!   only goes on, and each process begins with all keys as they are then. Answers are therefore remembered by
//!   member, not by grant.
//! - P is older, and the grant is gone from the claimer's mirror. The claimer's mirror had reached R by then, and
//!   knew every older grant. If the grant's member gave it up, the member had ceased to open by it before. If its
//!   lease has run out, the member had ceased before, by its own clock ([`Rule::GrantEndsWithLease`]). If a later
//!   process of the member deleted the grant, that process has the tier, and the earlier one has ended.
//!
//! New files are claimed a moment after they are made, and no program waits for that. The key of their directory
//! tells of them: the member that makes the first file has waited for that key as for a claim
//! ([`Rule::CreatesWaitForGrants`]). While others make files in a directory they are asked, and no grant counts there
//! ([`Rule::CreatorsBeforeGrant`]). The key goes after the files in the directory are claimed: a member that has
//! heard that it went has heard of the claims. How others are asked is in [`holders`](super::holders).

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Compare, Outcome, Revision};

use super::holders::LAGS;
use super::own::SOMEWHERE;
use super::{Core, Doing, Effect, OWN_LEASE, Reply, Rule, Ticket};

/// This many opens behind barriers, within this time, are worth a grant.
const LOOKS: u32 = 3;
const WINDOW: Duration = Duration::from_secs(1);

/// How often the savings of a grant are weighed against its costs.
const WEIGH: Duration = Duration::from_secs(5);

/// How long no other grant is taken after one that cost more than it saved: at first, and at most. The time doubles,
/// unless the grant lived long enough to have been worth it.
const REST: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(60);
const WORTH: u32 = 8;

/// A grant that is unused for this long goes: every claim has to ask about it.
const IDLE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its commit is under way.
    Asked,
    Stands(Revision),
    /// The grant no longer counts; the mirror may have the key only from this revision on.
    Leaving(Revision),
}

#[derive(Debug)]
struct Grant {
    state: State,
    since: Duration,
    used: Duration,
    is_lapsed: bool,
    scale: Scale,
}

impl Grant {
    fn new(state: State, now: Duration) -> Grant {
        let scale = Scale { since: now, served: 0, said: 0 };
        Grant { state, since: now, used: now, is_lapsed: false, scale }
    }
}

/// The savings and the costs of a grant in some time.
#[derive(Debug)]
struct Scale {
    since: Duration,
    /// Barriers saved.
    served: u32,
    /// Answers to members that claim.
    said: u32,
}

/// A question that waits until the mirror has reached a revision.
#[derive(Debug)]
struct Curious {
    ticket: Ticket,
    revision: Revision,
    since: Duration,
}

#[derive(Debug, Default)]
pub struct Grants {
    own: Option<Grant>,
    /// The commit that gives the grant up is under way.
    pub(super) is_leaving: bool,
    looks: u32,
    looked_since: Duration,
    rest: Duration,
    not_before: Duration,
    curious: Vec<Curious>,
}

/// The own grant of this member.
impl Core {
    /// Whether a grant proves that no other member holds this file of the directory.
    pub(super) fn is_granted(&self, file: FileKey, dir: FileKey) -> bool {
        let claim = self.mirror.claims.get(&file);
        let is_asked = self.is_made_in(dir) && self.rules.obey(Rule::CreatorsBeforeGrant);
        self.has_grant() && !is_asked && claim.is_none_or(|claim| claim.member == self.me)
    }

    fn has_grant(&self) -> bool {
        let Some(Grant { state: State::Stands(put), .. }) = &self.grants.own else { return false };
        let has_reached = self.mirror.grants.get(&self.me) == Some(put);
        has_reached || !self.rules.obey(Rule::GrantReached)
    }

    /// Whether it matters in which directory a file is opened: others make files in some, and in the rest the
    /// registry need not be asked.
    pub fn needs_dir(&self) -> bool {
        self.grants.own.is_some() && self.is_made_in(SOMEWHERE)
    }

    /// How many read grants this member has, or may soon have.
    pub fn grants(&self) -> usize {
        usize::from(self.grants.own.is_some())
    }

    /// Whether other members make files in the directory. This member knows the files that it makes itself.
    fn is_made_in(&self, dir: FileKey) -> bool {
        let makes = |by: &BTreeMap<String, Revision>| by.keys().any(|member| *member != self.me);
        match dir == SOMEWHERE {
            true => self.mirror.creates.values().any(makes),
            false => self.mirror.creates.get(&dir).is_some_and(makes),
        }
    }

    pub(super) fn use_grant(&mut self) {
        let now = self.now;
        if let Some(grant) = &mut self.grants.own {
            grant.used = now;
            grant.scale.served += 1;
        }
    }

    /// Counts an open behind a barrier of a file in the directory that no member holds.
    pub(super) fn note_look(&mut self, dir: FileKey) {
        let now = self.now;
        let has_lease = self.lease_until.is_some_and(|until| now < until);
        let is_of_use = self.has_begun && self.trusted().is_none() && !self.is_made_in(dir);
        let grants = &mut self.grants;
        if !has_lease || !is_of_use || grants.own.is_some() {
            return;
        }
        if now >= grants.looked_since + WINDOW {
            (grants.looked_since, grants.looks) = (now, 0);
        }
        grants.looks += 1;
        if grants.looks < LOOKS || now < grants.not_before {
            return;
        }
        grants.looks = 0;
        grants.own = Some(Grant::new(State::Asked, now));
        let key = self.grant_key();
        // A late commit must not put the key of an older grant again: a member that claimed in between would take
        // that for a newer grant.
        let commit = Commit::new().if_absent(&key).put_leased(key, "", OWN_LEASE);
        self.commit(Doing::Grant, commit, false);
    }

    fn grant_key(&self) -> String {
        self.mirror.key(&format!("grants/{}", self.me))
    }

    pub(super) fn granted(&mut self, outcome: Result<Outcome, ()>) {
        let Some(grant) = self.grants.own.as_mut().filter(|g| g.state == State::Asked) else {
            return;
        };
        match outcome {
            Ok(Outcome::Committed(put)) if grant.is_lapsed => {
                grant.state = State::Leaving(put);
                self.give_up();
            }
            Ok(Outcome::Committed(put)) => grant.state = State::Stands(put),
            // If the commit comes to pass all the same, the mirror tells of a grant that is not this process's.
            Ok(Outcome::Refused(_)) | Err(()) => self.grants.own = None,
        }
    }

    /// Ends the gate and the grant of a lease that has run out: they are worth nothing, also under the next lease.
    pub(super) fn lapse(&mut self) {
        self.lapse_gate();
        if !self.rules.obey(Rule::GrantEndsWithLease) {
            return;
        }
        if let Some(grant) = &mut self.grants.own {
            grant.is_lapsed = true;
            if let State::Stands(put) = grant.state {
                grant.state = State::Leaving(put);
            }
        }
    }

    /// Deletes the grant's key; the mirror tells when that comes to pass. The deletion also answers a member that has
    /// called.
    fn give_up(&mut self) {
        if self.is_cut_off() || self.grants.is_leaving {
            return; // Without a lease the grant goes by itself.
        }
        let mut commit = Commit::new();
        if let Some(&put) = self.mirror.grants.get(&self.me) {
            let key = self.grant_key();
            commit.compares.push(Compare::Revision(key.clone(), put));
            commit = commit.delete(key);
        }
        if self.is_called() {
            commit = commit.delete(self.mirror.key(&format!("called/{}", self.me)));
        }
        if !commit.changes.is_empty() {
            self.grants.is_leaving = true;
            self.commit(Doing::Ungrant, commit, false);
        }
    }

    fn is_called(&self) -> bool {
        self.mirror.called.contains(&self.me)
    }

    /// Gives up a grant that is idle, costs more than it saves, is called for by a member that gets no answer, is still
    /// there though it was given up, or belongs to an earlier process.
    pub(super) fn tend_grants(&mut self) {
        let put = self.mirror.grants.get(&self.me).copied();
        let (now, seen, is_called) = (self.now, self.mirror.revision, self.is_called());
        let is_gone = |grant: &mut Grant| match grant.state {
            State::Asked => false,
            State::Stands(since) => seen >= since && put != Some(since),
            State::Leaving(since) => seen >= since && put.is_none(),
        };
        self.grants.own.take_if(is_gone);
        if let (None, Some(put)) = (&self.grants.own, put) {
            self.grants.own = Some(Grant::new(State::Leaving(put), now));
        }
        self.weigh();
        let Grants { own, rest, not_before, .. } = &mut self.grants;
        if let Some(grant) = own
            && let State::Stands(put) = grant.state
            && (is_called || now >= grant.used + IDLE)
        {
            grant.state = State::Leaving(put);
            if is_called {
                (*rest, *not_before) = (REST_MAX, now + REST_MAX);
            }
        }
        let leaves = self.grants.own.as_ref().is_some_and(|g| matches!(g.state, State::Leaving(_)));
        if leaves || (is_called && self.grants.own.is_none()) {
            self.give_up();
        }
    }

    /// Weighs the grant: a member that claims waits for this member's answer; each open under a grant saves a
    /// barrier.
    fn weigh(&mut self) {
        let now = self.now;
        let Grants { own: Some(grant), rest, not_before, .. } = &mut self.grants else { return };
        let State::Stands(put) = grant.state else { return };
        if now < grant.scale.since + WEIGH {
            return;
        }
        let Scale { served, said, .. } = grant.scale;
        grant.scale = Scale { since: now, served: 0, said: 0 };
        // Another grant would save some barriers, too.
        if said > served && said >= LOOKS {
            grant.state = State::Leaving(put);
            let was_worth_it = now >= grant.since + (*rest).max(REST) * WORTH;
            *rest = if was_worth_it { REST } else { (*rest * 2).clamp(REST, REST_MAX) };
            *not_before = now + *rest;
        }
    }

    /// Another member asks to be told when the mirror has reached a revision.
    pub(super) fn asked_how_far(&mut self, ticket: Ticket, revision: Revision) {
        self.grants.curious.push(Curious { ticket, revision, since: self.now });
    }

    /// Answers the questions that are due. An answer counts from here on: the claim that waits for it comes after all
    /// opens that began before.
    pub(super) fn say_how_far(&mut self) {
        let is_honest = self.rules.obey(Rule::AnswerMeansReached);
        let Core { grants: Grants { own, curious, .. }, out, mirror, now, patience, .. } = self;
        curious.retain(|&Curious { ticket, revision, since }| {
            let has_reached = revision <= mirror.revision || !is_honest;
            let is_told = has_reached || *now >= since + *patience / LAGS;
            if is_told {
                let upto =
                    if has_reached { revision.max(mirror.revision) } else { mirror.revision };
                out.push(Effect::Reply(ticket, Reply::Reached(upto)));
                own.iter_mut().for_each(|grant| grant.scale.said += 1);
            }
            !is_told
        });
    }
}
