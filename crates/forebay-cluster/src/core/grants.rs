//! A directory's read grant: while it stands its files are opened by what the mirror says, without a barrier.
//!
//! Who has claimed a file, or begins to make files in a directory, waits until the read grants of that directory
//! that are older than that are gone: either the mirror of who has a grant knows of the claim, or the claim does
//! not count yet. Who hears of it gives the grant up. A grant hangs on the lease of its member's process, so that
//! one that is dead, stopped or cut off is waited for no longer than that.
//!
//! A file may have come to another directory, or have names in several, than the one that it was claimed in. So
//! it is looked for there after the claim; one that is not there alone waits for all grants, of any
//! directory. And who brings a name into a directory may make files there meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Compare, Outcome, Revision};

use super::own::SOMEWHERE;
use super::{Core, Doing, Effect, OWN_LEASE, Own, Rule, Stage, Ticket};
use crate::keys;

/// So many opens behind barriers, within this time, are worth a grant.
const LOOKS: u32 = 3;
const WINDOW: Duration = Duration::from_secs(1);

/// After a grant was broken, before another is taken there: at first, and at most. Twice as long each time, unless
/// the grant lived long enough to have been worth it.
const REST: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(60);
const WORTH: u32 = 8;

/// A grant that nobody used for so long goes: whoever writes there would wait for it.
const IDLE: Duration = Duration::from_secs(60);

/// Grants of one member, and directories of which it remembers anything.
const GRANTS_MAX: usize = 1000;
const DIRS_MAX: usize = 4000;

/// Grants that are given up in one commit, within the registry's limit of 120 operations.
const AT_ONCE: usize = 50;

/// Waits for a grant may take so many patiences: longer than any lease.
pub const PATIENCES: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its commit is under way.
    Asked,
    Stands(Revision),
    /// It counts no more; the mirror may have the key only from this revision on.
    Leaving {
        put: Revision,
        is_sent: bool,
    },
}

#[derive(Debug)]
struct Grant {
    state: State,
    since: Duration,
    used: Duration,
    /// The newest thing that another has done in the directory.
    broken: Revision,
    is_lapsed: bool,
}

#[derive(Debug, Default)]
struct Dir {
    looks: u32,
    since: Duration,
    rest: Duration,
    not_before: Duration,
}

#[derive(Debug, Default)]
pub struct Grants {
    own: BTreeMap<FileKey, Grant>,
    dirs: BTreeMap<FileKey, Dir>,
}

/// Where a file is that this member has claimed, as far as others' grants are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Not asked yet.
    Unknown,
    /// [`Effect::Place`] is under way.
    Asked,
    /// In its directory, by one name.
    Alone,
    /// Not there, or elsewhere, too: its claim is to say so, or that is under way.
    Widening { is_sent: bool },
    /// Anywhere, as its claim says.
    Anywhere,
    /// No grant is older than its claim.
    Free,
}

impl Core {
    /// Whether files of the directory are opened by what the mirror says.
    pub(super) fn is_granted(&self, dir: FileKey) -> bool {
        let Some(Grant { state: State::Stands(revision), .. }) = self.grants.own.get(&dir) else {
            return false;
        };
        let stands = self.mirror.grants.get(&dir).and_then(|by| by.get(&self.me)) == Some(revision);
        let has_reached = stands || !self.rules.obey(Rule::GrantReached);
        has_reached && !(self.is_made_in(dir) && self.rules.obey(Rule::CreatorsBeforeGrant))
    }

    /// Whether there is, or may soon be, a grant of this member's.
    pub fn has_grant(&self, dir: FileKey) -> bool {
        self.grants.own.contains_key(&dir)
    }

    /// Directories of which there is, or may soon be, a grant of this member's.
    pub fn grants(&self) -> usize {
        self.grants.own.len()
    }

    /// Also by this member: a file whose name it brings there may have been claimed where it was before, since it
    /// last looked.
    fn is_made_in(&self, dir: FileKey) -> bool {
        self.mirror.creates.contains_key(&dir)
    }

    pub(super) fn use_grant(&mut self, dir: FileKey) {
        let now = self.now;
        if let Some(grant) = self.grants.own.get_mut(&dir) {
            grant.used = now;
        }
    }

    /// A file of the directory was opened behind a barrier, and nobody holds it.
    pub(super) fn note_look(&mut self, dir: FileKey) {
        let now = self.now;
        let has_lease = self.lease_until.is_some_and(|until| now < until);
        if dir == SOMEWHERE
            || !has_lease
            || !self.has_begun
            || self.trusted().is_some()
            || self.grants.own.contains_key(&dir)
            || self.grants.own.len() >= GRANTS_MAX
            || self.is_made_in(dir)
        {
            return;
        }
        let dirs = &mut self.grants.dirs;
        if dirs.len() >= DIRS_MAX {
            dirs.retain(|_, dir| now < dir.since + WINDOW || now < dir.not_before);
        }
        if dirs.len() >= DIRS_MAX && !dirs.contains_key(&dir) {
            return;
        }
        let found = dirs.entry(dir).or_default();
        if now >= found.since + WINDOW {
            (found.since, found.looks) = (now, 0);
        }
        found.looks += 1;
        if found.looks < LOOKS || now < found.not_before {
            return;
        }
        found.looks = 0;
        let (broken, is_lapsed) = (Revision(0), false);
        let grant = Grant { state: State::Asked, since: now, used: now, broken, is_lapsed };
        self.grants.own.insert(dir, grant);
        let key = self.grant_key(dir);
        // One that comes late must not put the key of an older grant again: who claimed in between would take that
        // for a grant that is newer.
        let commit = Commit::new().if_absent(&key).put_leased(key, "", OWN_LEASE);
        self.commit(Doing::Grant(dir), commit, false);
    }

    fn grant_key(&self, dir: FileKey) -> String {
        self.mirror.key(&format!("grants/{}/{}", keys::file(dir), self.me))
    }

    pub(super) fn granted(&mut self, dir: FileKey, outcome: Result<Outcome, ()>) {
        let Some(grant) = self.grants.own.get_mut(&dir).filter(|g| g.state == State::Asked) else {
            return;
        };
        match outcome {
            Ok(Outcome::Committed(put)) if grant.is_lapsed || put < grant.broken => {
                grant.state = State::Leaving { put, is_sent: false };
                self.give_up(vec![dir]);
            }
            Ok(Outcome::Committed(put)) => grant.state = State::Stands(put),
            // If it comes to pass all the same, the mirror tells of a grant that is not this member's.
            Ok(Outcome::Refused { .. }) | Err(()) => _ = self.grants.own.remove(&dir),
        }
    }

    /// Another member has claimed a file in the directory (`None`: in any), or makes files there, since
    /// `revision`.
    pub(super) fn give_way(&mut self, dir: Option<FileKey>, revision: Revision) {
        let mut leaves = Vec::new();
        let now = self.now;
        let Grants { own, dirs } = &mut self.grants;
        for (&at, grant) in own.iter_mut().filter(|(at, _)| dir.is_none_or(|dir| dir == **at)) {
            grant.broken = grant.broken.max(revision);
            let State::Stands(put) = grant.state else { continue };
            if put < revision {
                grant.state = State::Leaving { put, is_sent: false };
                let found = dirs.entry(at).or_default();
                let was_worth_it = now >= grant.since + found.rest.max(REST) * WORTH;
                found.rest =
                    if was_worth_it { REST } else { (found.rest * 2).clamp(REST, REST_MAX) };
                found.not_before = now + found.rest;
                leaves.push(at);
            }
        }
        if let Some(found) = dir.and_then(|dir| dirs.get_mut(&dir)) {
            found.looks = 0;
        }
        self.give_up(leaves);
    }

    /// What hangs on a lease that has run out is worth nothing, also under the next one.
    pub(super) fn lapse(&mut self) {
        if !self.rules.obey(Rule::GrantEndsWithLease) {
            return;
        }
        for grant in self.grants.own.values_mut() {
            grant.is_lapsed = true;
            if let State::Stands(put) = grant.state {
                grant.state = State::Leaving { put, is_sent: false };
            }
        }
    }

    fn give_up(&mut self, dirs: Vec<FileKey>) {
        if self.is_cut_off() {
            return; // They go by themselves.
        }
        for dirs in dirs.chunks(AT_ONCE) {
            let (mut commit, mut sent) = (Commit::new(), Vec::new());
            for &dir in dirs {
                let put = self.mirror.grants.get(&dir).and_then(|by| by.get(&self.me)).copied();
                let (key, grant) = (self.grant_key(dir), self.grants.own.get_mut(&dir));
                let (Some(put), Some(grant)) = (put, grant) else { continue };
                grant.state = State::Leaving { put, is_sent: true };
                commit.compares.push(Compare::Revision(key.clone(), put));
                commit = commit.delete(key);
                sent.push(dir);
            }
            if !sent.is_empty() {
                self.commit(Doing::Ungrant(sent), commit, false);
            }
        }
    }

    /// If it came to pass the mirror tells.
    pub(super) fn ungranted(&mut self, dirs: Vec<FileKey>, outcome: Result<Outcome, ()>) {
        if matches!(outcome, Ok(Outcome::Committed(_))) {
            return;
        }
        for dir in dirs {
            if let Some(Grant { state: State::Leaving { is_sent, .. }, .. }) =
                self.grants.own.get_mut(&dir)
            {
                *is_sent = false;
            }
        }
    }

    /// Grants that are idle, that were to go and did not, and that are not this process's.
    pub(super) fn tend_grants(&mut self) {
        let (now, me, mirror) = (self.now, &self.me, &self.mirror);
        let put = |dir: &FileKey| mirror.grants.get(dir).and_then(|by| by.get(me)).copied();
        let own = &mut self.grants.own;
        own.retain(|dir, grant| match grant.state {
            State::Asked => true,
            State::Stands(since) => mirror.revision < since || put(dir) == Some(since),
            State::Leaving { put: since, .. } => mirror.revision < since || put(dir).is_some(),
        });
        let strays = mirror.grants.keys().filter_map(|dir| Some((*dir, put(dir)?)));
        for (dir, put) in strays {
            let leaving = State::Leaving { put, is_sent: false };
            own.entry(dir).or_insert(Grant {
                state: leaving,
                since: now,
                used: now,
                broken: Revision(0),
                is_lapsed: false,
            });
        }
        let mut leaves = Vec::new();
        for (dir, grant) in own {
            match grant.state {
                State::Stands(put) if now >= grant.used + IDLE => {
                    grant.state = State::Leaving { put, is_sent: false };
                    leaves.push(*dir);
                }
                State::Leaving { is_sent: false, .. } => leaves.push(*dir),
                _ => {}
            }
        }
        self.give_up(leaves);
    }
}

/// Grants of others that this member's claims wait for.
impl Core {
    /// Whether nobody else opens a file of this member's, or makes one in its directory, without looking.
    pub(super) fn is_seen(&mut self, task: Ticket, file: FileKey) -> bool {
        if !self.rules.obey(Rule::ClaimWaitsForGrants) {
            return true;
        }
        let Some(own) = self.own.get_mut(&file) else { return true };
        if own.place == Place::Free {
            return true;
        }
        own.used = self.now; // It is not given back meanwhile.
        let Some(since) = own.claim else {
            self.stage(task, Stage::Local);
            self.gather();
            return false;
        };
        let older = |dir| self.mirror.granted_before(&self.me, dir, since).cloned();
        let (holder, looks) = (older(None), self.rules.obey(Rule::LookAfterClaim));
        if holder.is_none() {
            own.place = Place::Free;
            return true;
        }
        if own.place == Place::Unknown && !looks {
            own.place = Place::Alone;
        }
        let holder = match own.place {
            Place::Unknown => {
                own.place = Place::Asked;
                let (dir, path) = (own.dir.unwrap_or(SOMEWHERE), own.path.clone());
                self.out.push(Effect::Place { file, claim: since, dir, path });
                self.stage(task, Stage::Local);
                return false;
            }
            Place::Asked | Place::Widening { .. } => {
                self.stage(task, Stage::Local);
                return false;
            }
            Place::Alone => older(own.dir),
            Place::Anywhere | Place::Free => holder,
        };
        self.awaits(task, holder)
    }

    pub(super) fn awaits(&mut self, task: Ticket, holder: Option<String>) -> bool {
        if let (Some(holder), Some(waiting)) = (&holder, self.tasks.get_mut(&task)) {
            waiting.waits_for = Some(holder.clone());
            waiting.stage = Stage::Grants;
        }
        holder.is_none()
    }

    /// What was seen before it was given back, and claimed anew, says nothing.
    pub(super) fn placed(&mut self, file: FileKey, claim: Revision, is_alone: bool) {
        let is_asked = |own: &&mut Own| own.place == Place::Asked && own.claim == Some(claim);
        let Some(own) = self.own.get_mut(&file).filter(is_asked) else { return };
        own.place = if is_alone { Place::Alone } else { Place::Widening { is_sent: false } };
        self.widen(file);
    }

    /// Has the claim say that the file may be in any directory.
    pub(super) fn widen(&mut self, file: FileKey) {
        let Some(own) = self.own.get_mut(&file) else { return };
        let Place::Widening { is_sent } = &mut own.place else { return };
        let Some(claimed) = self.mirror.claims.get(&file) else { return };
        if *is_sent || own.claim != Some(claimed.revision) {
            return;
        }
        *is_sent = true;
        let mut claim = keys::Claim::new(&self.me, &claimed.path);
        (claim.number, claim.taken_from) = (claimed.number, claimed.taken_from.clone());
        let key = self.mirror.key(&format!("claims/{}", keys::file(file)));
        let mut commit = Commit::new();
        commit.compares.push(Compare::Revision(key.clone(), claimed.revision));
        self.commit(Doing::Widen(file), commit.put(key, super::json(&claim)), false);
    }

    pub(super) fn widened(&mut self, file: FileKey, outcome: Result<Outcome, ()>) {
        let Some(own) = self.own.get_mut(&file) else { return };
        if let (Place::Widening { is_sent }, false) =
            (&mut own.place, matches!(outcome, Ok(Outcome::Committed(_))))
        {
            *is_sent = false;
        }
    }
}
