//! Copies that are kept here for other members, and dead members that this one takes over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Compare, Entry, Outcome, Revision};

use super::own::{GATHER, SOMEWHERE};
use super::settling::Held;
use super::tasks::PAUSE;
use super::{Core, Doing, Effect, GIVEN_LEASE, Rule, Standing};
use crate::keys;

/// How many copies of one member are adopted at once.
const ADOPTING: usize = 64;

/// How many commits that claim adopted files are under way at once.
const CLAIMING: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The dead member is not this member's yet, or no longer.
    Asking,
    Listing,
    Adopting,
    /// The dead member came back.
    Leaving,
    Dropping,
}

/// A member that this one takes over.
#[derive(Debug)]
struct Taking {
    /// The epoch of the member's process that died.
    epoch: u64,
    step: Step,
    /// A commit about the member itself is under way.
    is_sent: bool,
    /// How many commits that claim adopted files are under way.
    claims_sent: usize,
    not_before: Duration,
    /// The revision of the last commit: the mirror must have it before more is decided.
    reach: Revision,
    /// The files to be adopted, each with its claim's number.
    left: BTreeMap<FileKey, u64>,
    /// Files that are perhaps adopted, by the process before this one or in an attempt that failed.
    found: BTreeSet<FileKey>,
    adopting: BTreeMap<FileKey, u64>,
    /// Adopted files that are to be claimed. They are kept while another takes the member over: that taker may die
    /// too.
    adopted: BTreeSet<FileKey>,
    /// Files whose commit is under way, or whose claim the mirror does not have yet.
    claiming: BTreeSet<FileKey>,
    /// The copies kept here are all that were sent.
    is_whole: bool,
}

impl Taking {
    fn new(epoch: u64) -> Taking {
        Taking {
            epoch,
            step: Step::Asking,
            is_sent: false,
            claims_sent: 0,
            not_before: Duration::ZERO,
            reach: Revision(0),
            left: BTreeMap::new(),
            found: BTreeSet::new(),
            adopting: BTreeMap::new(),
            adopted: BTreeSet::new(),
            claiming: BTreeSet::new(),
            is_whole: false,
        }
    }

    /// Whether adopted files are to be claimed now. While a commit is under way, enough for a full commit are
    /// gathered for the next.
    fn may_claim(&self) -> bool {
        let least = if self.claims_sent == 0 { 1 } else { GATHER };
        self.claims_sent < CLAIMING && self.adopted.len() >= least
    }

    fn has_adopted(&self) -> bool {
        let has_none = self.adopting.is_empty() && self.found.is_empty();
        !(has_none && self.adopted.is_empty() && self.claiming.is_empty())
    }
}

/// The take-overs of this member, done or about to begin.
#[derive(Debug, Default)]
pub struct Takes {
    taking: BTreeMap<String, Taking>,
    pub held: BTreeMap<FileKey, Held>,
    /// The newest fill of each home, with the home's epoch.
    fills: BTreeMap<String, (u64, u64)>,
    /// Homes whose copies were dropped, with the epoch that they were of.
    dropped: BTreeMap<String, u64>,
    /// Present while the registry is to learn that this superseded process has stopped; `true` while the commit that
    /// says so is under way.
    pub fence: Option<bool>,
}

/// The commit by which a process begins to be a member, and its epoch: above the epoch in `me`, which is that of a
/// removed member of this name, or 0. `prefix` is that of the store's keys; `before` and `partners` are the member's
/// keys as found. Claims that a take-over has not taken yet are the member's again. Partners in sync stay so, unless
/// there was a take-over, or this process tells no partner of what it writes.
pub fn entering(
    prefix: &str,
    mut me: keys::Member,
    before: Option<&Entry>,
    partners: Option<&Entry>,
) -> (Commit, u64) {
    let known = before.and_then(|entry| serde_json::from_slice::<keys::Member>(&entry.value).ok());
    me.epoch = known.as_ref().map_or(me.epoch, |known| known.epoch.max(me.epoch)) + 1;
    me.taken = None;
    let before_it = known.as_ref().filter(|known| known.taken.is_none());
    me.line = before_it.map_or(me.epoch, keys::Member::line);
    let (key, epoch) = (format!("{prefix}members/{}", me.node), me.epoch);
    let mut commit = Commit::new().if_as_found(&key, before).put(&key, super::json(&me));
    let found = partners.and_then(|entry| {
        Some((entry, serde_json::from_slice::<keys::Partners>(&entry.value).ok()?))
    });
    if let (Some((entry, mut partners)), Some(known)) = (found, known)
        && known.taken.is_none()
        && partners.epoch == known.epoch
        && me.copies > 0
    {
        partners.epoch = epoch;
        commit = commit.if_unchanged(entry).put(&entry.key, super::json(&partners));
    }
    (commit, epoch)
}

/// The epoch since which no member has taken this one's place.
pub fn line(core: &Core) -> u64 {
    core.mirror.members.get(&core.me).map_or(core.epoch, |(member, _)| member.line())
}

/// Whether nobody can have taken this member's place since all files of its tier had their standing, in the line
/// `sorted`: nobody else has claimed a file that is new there.
pub fn is_in_its_place(core: &Core, sorted: Option<u64>) -> bool {
    let me = core.mirror.members.get(&core.me);
    me.is_some_and(|(me, _)| me.copies == 0 && sorted == Some(me.line()))
}

/// The former homes of a file that is this member's now, the first one first.
pub fn taken_from(core: &Core, file: FileKey) -> Vec<keys::TakenFrom> {
    let claim = core.mirror.claims.get(&file).filter(|claim| claim.member == core.me);
    claim.map_or_else(Vec::new, |claim| claim.taken_from.clone())
}

/// What is known of a member that may be dead.
impl Core {
    fn living_epoch(&self, member: &str) -> Option<u64> {
        self.mirror.members.get(member).map(|(member, _)| member.living())
    }

    /// The members that may take `member` over: its partners in sync.
    pub(super) fn heirs(&self, member: &str) -> &[String] {
        match self.mirror.partners.get(member) {
            Some((partners, _)) if Some(partners.epoch) == self.living_epoch(member) => {
                &partners.in_sync
            }
            _ => &[],
        }
    }

    /// The heirs that have not found yet that they lack some of the member's copies.
    pub(super) fn heirs_left(&self, member: &str) -> impl Iterator<Item = &String> {
        let taken = self.taken(member);
        let is_left = move |heir: &&String| taken.is_none_or(|taken| !taken.is_short(heir));
        self.heirs(member).iter().filter(is_left)
    }

    fn taken(&self, member: &str) -> Option<&keys::Taken> {
        self.mirror.members.get(member)?.0.taken.as_ref()
    }

    /// Whether this member has taken `member` over, and has not claimed all yet.
    pub(super) fn is_taking(&self, member: &str) -> bool {
        self.taken(member).is_some_and(|taken| taken.by == self.me && !taken.done)
    }

    /// Whether `member` is taken over, by this member or by one that may die before it has claimed all.
    pub(super) fn may_still_claim(&self, member: &str) -> bool {
        self.heirs(member).contains(&self.me) && self.taken(member).is_some_and(|t| !t.done)
    }

    /// Whether `member` is dead and its files will be claimed by another: a task that wants one waits for that.
    pub(super) fn is_inherited(&self, member: &str) -> bool {
        let alive = &self.mirror.alive;
        if alive.contains(member) || !self.rules.obey(Rule::WaitForTaker) {
            return false;
        }
        match self.taken(member) {
            Some(taken) if taken.done => false,
            Some(taken) if alive.contains(&taken.by) && !taken.is_short(&taken.by) => true,
            _ => self.heirs_left(member).any(|heir| alive.contains(heir)),
        }
    }

    fn may_take(&self, member: &str) -> bool {
        let alive = &self.mirror.alive;
        let is_free = |t: &keys::Taken| {
            !t.done && t.by != self.me && (!alive.contains(&t.by) || t.is_short(&t.by))
        };
        !alive.contains(member)
            && self.heirs_left(member).any(|heir| *heir == self.me)
            && self.taken(member).is_none_or(is_free)
    }

    /// The epoch up to which no process of a member writes to the store.
    pub(super) fn fenced(&self, member: &str) -> u64 {
        let said = self.mirror.fenced.get(member).map_or(0, |(fenced, _)| fenced.epoch);
        let starts = self.mirror.members.get(member).map_or(0, |(member, _)| member.stopped());
        said.max(starts)
    }
}

/// Copies that other members send here.
impl Core {
    /// Whether a copy, sent by a process of `home` under its epoch in a fill, is taken.
    pub fn accepts_copies_of(&self, home: &str, epoch: u64, fill: u64) -> bool {
        if !self.rules.obey(Rule::TakerRefusesCopies) {
            return true;
        }
        let begun = self.takes.fills.get(home);
        self.may_keep(home, epoch)
            && begun.is_none_or(|begun| {
                // A process that follows one in whose fill this member got everything continues that fill.
                *begun == (epoch, fill) || (fill == 0 && begun.0 < epoch)
            })
    }

    /// A fill begins. `true`: the caller drops all copies of `home`, then says that they are dropped.
    pub fn fill_begins(&mut self, home: &str, epoch: u64, fill: u64) -> bool {
        let is_newer = self.takes.fills.get(home).is_none_or(|begun| *begun < (epoch, fill));
        let begins = is_newer && self.may_keep(home, epoch);
        if begins {
            self.takes.fills.insert(home.into(), (epoch, fill));
        }
        begins
    }

    fn may_keep(&self, home: &str, epoch: u64) -> bool {
        let known = self.mirror.members.get(home).map_or(0, |(member, _)| member.epoch);
        self.has_begun
            && !self.is_superseded
            && epoch >= known
            && !self.takes.taking.contains_key(home)
    }

    /// Whether copies of `home` that are found at a start may still be needed: unless `home` is taken over. A member
    /// that is not named as a partner may yet be named, by a commit that comes late.
    pub fn keeps_for(&self, home: &str) -> bool {
        self.living_epoch(home).is_some() && self.taken(home).is_none_or(|taken| !taken.done)
    }

    /// The standing of a file that is found at a start; `dir` as in [`Input::Created`](super::Input).
    /// `adopted`: the number of the claim under which it was adopted, if it was. `sorted`: the line in which the
    /// tier's files had their standing last.
    pub fn standing(
        &self,
        file: FileKey,
        dir: FileKey,
        (adopted, sorted): (Option<u64>, Option<u64>),
    ) -> Standing {
        let is_kept = adopted.is_none() && is_in_its_place(self, sorted);
        let new = if is_kept { Standing::Own } else { Standing::New };
        let counts = |claim: &super::mirror::Claimed| {
            adopted == Some(claim.number) || !self.rules.obey(Rule::CopyHasClaimsNumber)
        };
        let makes = |dir: &FileKey| {
            self.mirror.creates.get(dir).is_some_and(|creators| creators.contains_key(&self.me))
        };
        match self.mirror.claims.get(&file) {
            _ if !self.rules.obey(Rule::ReturnedLooks) => Standing::Own,
            // The file was adopted before, and is claimed anew: its newer bytes are in another file of the tier.
            Some(claim) if claim.member == self.me && adopted.is_some() && !counts(claim) => {
                Standing::Superseded
            }
            Some(claim) if claim.member == self.me => match claim.taken_from.is_empty() {
                true => Standing::Own,
                false => Standing::Taken,
            },
            Some(claim) if counts(claim) && self.may_still_claim(&claim.member) => {
                Standing::Adopted
            }
            Some(_) => Standing::Superseded,
            // A tier that has only now become a member was unknown to the others.
            None if self.epoch == 1 => Standing::Own,
            None if makes(&dir) => new,
            None if dir == SOMEWHERE && self.mirror.creates.keys().any(makes) => new,
            None => Standing::Superseded,
        }
    }
}

/// The steps of a take-over.
impl Core {
    /// Looks at all members, after one of them has moved.
    pub(super) fn tend_taking(&mut self) {
        if self.may_take_part() {
            let members = self.mirror.members.keys().filter(|member| **member != self.me);
            let members: Vec<String> = members.cloned().collect();
            members.iter().for_each(|member| self.tend_one(member));
            self.tend_held();
        }
    }

    /// Looks at the members that are being taken over, after one step.
    pub(super) fn tend_takes(&mut self) {
        self.takes.taking.retain(|_, t| t.step != Step::Leaving || !t.adopting.is_empty());
        if self.may_take_part() {
            let members: Vec<String> = self.takes.taking.keys().cloned().collect();
            members.iter().for_each(|member| self.tend_one(member));
        }
    }

    pub(super) fn may_take_part(&self) -> bool {
        self.has_begun && !self.is_suspended && !self.is_superseded
    }

    fn tend_one(&mut self, member: &str) {
        let Some(living) = self.living_epoch(member) else { return };
        let (is_mine, may_take) = (self.is_taking(member), self.may_take(member));
        let is_done = self.taken(member).is_some_and(|taken| taken.done);
        let Some(taking) = self.takes.taking.get_mut(member) else {
            if is_mine || may_take {
                self.takes.taking.insert(member.into(), Taking::new(living));
                self.tend_one(member);
            } else if is_done {
                self.drop_what_is_done(member, living);
            }
            return;
        };
        let goes_on = self.now >= taking.not_before
            && !taking.is_sent
            && self.mirror.revision >= taking.reach;
        match taking.step {
            Step::Leaving | Step::Dropping => {}
            _ if taking.epoch != living => self.leave_taking(member),
            _ if is_done => {
                self.leave_taking(member);
                self.drop_what_is_done(member, living);
            }
            Step::Asking if is_mine => {
                taking.step = Step::Listing;
                self.out.push(Effect::ListCopies { member: member.into() });
            }
            Step::Asking if may_take => {
                if goes_on && taking.claims_sent == 0 {
                    self.ask_to_take(member);
                }
            }
            Step::Adopting if is_mine => {
                self.adopt_more(member);
                if goes_on {
                    self.take_on(member);
                }
            }
            Step::Listing if is_mine => {}
            Step::Asking | Step::Listing | Step::Adopting => {
                taking.step = Step::Asking;
                if !taking.has_adopted() {
                    self.takes.taking.remove(member);
                }
            }
        }
    }

    fn ask_to_take(&mut self, member: &str) {
        let found = self.mirror.members.get(member).zip(self.mirror.partners.get(member));
        let Some(((known, revision), (_, partners))) = found else { return };
        let mut anew = known.clone();
        let epoch = known.living();
        let short = known.taken.as_ref().map_or_else(Vec::new, |taken| taken.short.clone());
        let by = self.me.clone();
        let before = anew.taken.replace(keys::Taken { by, epoch, done: false, short });
        anew.epoch += 1;
        let key = self.mirror.key(&format!("members/{member}"));
        let mut commit = Commit::new();
        commit.compares.push(Compare::Revision(key.clone(), *revision));
        if self.rules.obey(Rule::OnlyInSyncTakes) {
            let key = self.mirror.key(&format!("partners/{member}"));
            commit.compares.push(Compare::Revision(key, *partners));
        }
        if self.rules.obey(Rule::OnlyDeadIsTaken) {
            commit = commit.if_absent(self.mirror.key(&format!("alive/{member}")));
            if let Some(before) = before.filter(|before| !before.is_short(&before.by)) {
                commit = commit.if_absent(self.mirror.key(&format!("alive/{}", before.by)));
            }
        }
        if let Some(taking) = self.takes.taking.get_mut(member) {
            taking.is_sent = true;
        }
        self.commit(Doing::Take(member.into()), commit.put(key, super::json(&anew)), false);
    }

    /// The outcome of the commit that begins or ends a take-over. The mirror tells what has come to pass.
    pub(super) fn took(&mut self, member: &str, outcome: Result<Outcome, ()>) {
        if let Some(taking) = self.takes.taking.get_mut(member) {
            taking.is_sent = false;
            match outcome {
                Ok(Outcome::Committed(revision)) => taking.reach = revision,
                Ok(Outcome::Refused(_)) | Err(()) => taking.not_before = self.now + PAUSE,
            }
        }
        self.tend_takes();
    }

    pub(super) fn listed(&mut self, member: &str, files: Vec<(FileKey, u64)>, is_whole: bool) {
        let is_whole = is_whole || !self.rules.obey(Rule::OnlyWholeGivesUp);
        let any_number = !self.rules.obey(Rule::CopyHasClaimsNumber);
        let claims = &self.mirror.claims;
        let Some(taking) = self.takes.taking.get_mut(member) else { return };
        if taking.step != Step::Listing {
            return;
        }
        (taking.step, taking.is_whole) = (Step::Adopting, is_whole);
        let counts = |(file, number): &(FileKey, u64)| {
            claims.get(file).is_some_and(|claim| {
                claim.member == member && (any_number || claim.number == *number)
            })
        };
        let known =
            |file: &FileKey| taking.adopted.contains(file) || taking.adopting.contains_key(file);
        let files = files.into_iter().filter(|copy| counts(copy) && !known(&copy.0));
        taking.left = files.collect();
        for &file in &taking.found {
            let claim = claims.get(&file).filter(|claim| claim.member == member);
            taking.left.extend(claim.map(|claim| (file, claim.number)));
        }
        self.tend_takes();
    }

    pub(super) fn adopted(&mut self, file: FileKey, ok: bool) {
        let now = self.now;
        let adopts = |taking: &&mut Taking| taking.adopting.contains_key(&file);
        let Some(taking) = self.takes.taking.values_mut().find(adopts) else { return };
        let number = taking.adopting.remove(&file).unwrap_or_default();
        match (taking.step, ok) {
            (Step::Leaving, _) => self.out.push(Effect::Disown { file }),
            (_, true) => {
                taking.found.remove(&file);
                taking.adopted.insert(file);
            }
            // The file may be durable here, and not with the partners.
            (_, false) => {
                taking.found.insert(file);
                taking.left.insert(file, number);
                taking.not_before = now + PAUSE;
            }
        }
        self.tend_takes();
    }

    pub(super) fn found_adopted(&mut self, file: FileKey) {
        let Some(home) = self.mirror.claims.get(&file).map(|claim| claim.member.clone()) else {
            return self.out.push(Effect::Disown { file });
        };
        match self.living_epoch(&home) {
            Some(epoch) if self.may_still_claim(&home) => {
                let taking = self.takes.taking.entry(home).or_insert(Taking::new(epoch));
                taking.found.insert(file);
            }
            _ if home == self.me => {}
            _ => self.out.push(Effect::Disown { file }),
        }
    }

    /// Goes on adopting, whatever is under way to the registry: files adopted meanwhile are claimed together.
    fn adopt_more(&mut self, member: &str) {
        let now = self.now;
        let claims_first = !self.rules.obey(Rule::AdoptBeforeClaim);
        let Some(taking) = self.takes.taking.get_mut(member) else { return };
        while now >= taking.not_before
            && taking.adopting.len() < ADOPTING
            && let Some((file, number)) = taking.left.pop_first()
        {
            self.out.push(Effect::Adopt { member: member.into(), file });
            match claims_first {
                true => _ = taking.adopted.insert(file),
                false => _ = taking.adopting.insert(file, number),
            }
        }
    }

    /// Claims adopted files; the last commit says that all are claimed.
    fn take_on(&mut self, member: &str) {
        for _ in 0..CLAIMING {
            if self.takes.taking.get(member).is_some_and(Taking::may_claim) {
                self.claim_adopted(member);
            }
        }
        let Some(taking) = self.takes.taking.get(member) else { return };
        let adopts = !taking.adopting.is_empty() || !taking.left.is_empty();
        let claims = !taking.adopted.is_empty() || !taking.claiming.is_empty();
        if !adopts && !claims && taking.claims_sent == 0 {
            match taking.is_whole {
                true => self.clear_rest(member),
                false => self.leave_rest(member),
            }
        }
    }

    /// Leaves the files without a copy here to another partner, or to the dead member's own tier, should that come back:
    /// this member has lost some of the copies that it was sent.
    fn leave_rest(&mut self, member: &str) {
        let Some((mut anew, revision)) = self.mirror.members.get(member).cloned() else { return };
        let me = self.me.clone();
        let Some(taken) = anew.taken.as_mut().filter(|taken| !taken.is_short(&me)) else { return };
        taken.short.push(me);
        let key = self.mirror.key(&format!("members/{member}"));
        let mut commit = Commit::new();
        commit.compares.push(Compare::Revision(key.clone(), revision));
        if let Some(taking) = self.takes.taking.get_mut(member) {
            taking.is_sent = true;
        }
        self.commit(Doing::Take(member.into()), commit.put(key, super::json(&anew)), false);
    }

    /// Gives back the dead member's claims on files without a copy here: an heir has copies of all synced bytes that the
    /// store lacks, so these files' synced bytes are on the store. The directories go first: a member that comes back in
    /// the middle takes no file for new that was claimed before. A claim that was taken from a member that may still
    /// write to the store stays: the file's bytes there may be overwritten.
    fn clear_rest(&mut self, member: &str) {
        let Some((mut anew, revision)) = self.mirror.members.get(member).cloned() else { return };
        let Some(taken) = &mut anew.taken else { return };
        taken.done = true;
        let mirror = &self.mirror;
        let makes = |(dir, creators): (&FileKey, &BTreeMap<String, Revision>)| {
            Some((*dir, *creators.get(member)?))
        };
        let dirs: Vec<_> = mirror.creates.iter().filter_map(makes).take(GATHER).collect();
        let lasts = |file: &&FileKey| {
            let claim = mirror.claims.get(file);
            let mut from = claim.into_iter().flat_map(|claim| &claim.taken_from);
            from.all(|from| self.fenced(&from.member) >= from.epoch)
        };
        let files = mirror.claims_of.get(member).into_iter().flatten();
        let is_held = files.clone().any(|file| !lasts(&file));
        let files: Vec<FileKey> = files.filter(lasts).take(GATHER).copied().collect();
        let members = mirror.key(&format!("members/{member}"));
        let mut commit = Commit::new();
        commit.compares.push(Compare::Revision(members.clone(), revision));
        let (has_dirs, has_files) = (!dirs.is_empty(), !files.is_empty());
        for (dir, revision) in dirs {
            let key = mirror.key(&format!("creates/{}/{member}", keys::file(dir)));
            commit.compares.push(Compare::Revision(key.clone(), revision));
            commit = commit.delete(key);
        }
        for file in files.into_iter().filter(|_| !has_dirs) {
            let Some(claim) = mirror.claims.get(&file) else { continue };
            let key = mirror.key(&format!("claims/{}", keys::file(file)));
            commit.compares.push(Compare::Revision(key.clone(), claim.revision));
            let given = super::json(&keys::Given { by: member.into() });
            let given_key = mirror.key(&format!("given/{}", keys::file(file)));
            commit = commit.delete(key).put_leased(given_key, given, GIVEN_LEASE);
        }
        if !has_dirs && !has_files {
            if is_held {
                return;
            }
            commit = commit.put(members, super::json(&anew));
        }
        if let Some(taking) = self.takes.taking.get_mut(member) {
            taking.is_sent = true;
        }
        self.commit(Doing::Take(member.into()), commit, false);
    }

    fn claim_adopted(&mut self, member: &str) {
        let Some((known, revision)) = self.mirror.members.get(member) else { return };
        let from = keys::TakenFrom { member: member.into(), epoch: known.living() };
        let mut commit = Commit::new();
        let key = self.mirror.key(&format!("members/{member}"));
        commit.compares.push(Compare::Revision(key, *revision));
        let Some(taking) = self.takes.taking.get_mut(member) else { return };
        let mut files = Vec::new();
        while files.len() < GATHER
            && let Some(file) = taking.adopted.pop_first()
        {
            let claim = self.mirror.claims.get(&file);
            let Some(claim) = claim.filter(|claim| claim.member == member) else {
                self.out.push(Effect::Disown { file });
                continue;
            };
            let mut anew = keys::Claim::new(&self.me, &claim.path);
            anew.number = claim.number;
            anew.taken_from = claim.taken_from.clone();
            anew.taken_from.push(from.clone());
            let key = self.mirror.key(&format!("claims/{}", keys::file(file)));
            commit.compares.push(Compare::Revision(key.clone(), claim.revision));
            commit = commit.put(key, super::json(&anew));
            files.push(file);
        }
        if files.is_empty() {
            return;
        }
        taking.claims_sent += 1;
        taking.claiming.extend(&files);
        self.commit(Doing::TakeClaims(member.into(), files), commit, false);
    }

    pub(super) fn took_claims(
        &mut self,
        member: &str,
        files: Vec<FileKey>,
        outcome: Result<Outcome, ()>,
    ) {
        let now = self.now;
        let Some(taking) = self.takes.taking.get_mut(member) else { return };
        taking.claims_sent = taking.claims_sent.saturating_sub(1);
        if !matches!(outcome, Ok(Outcome::Committed(_))) {
            // Files whose claims the mirror has by now are no longer among `claiming`.
            let again = files.into_iter().filter(|file| taking.claiming.remove(file));
            taking.adopted.extend(again.collect::<Vec<_>>());
            taking.not_before = now + PAUSE;
        }
        self.tend_takes();
    }

    /// The mirror has the claim of this file as this member's, taken from others.
    pub(super) fn claimed_taken(&mut self, file: FileKey, at: Revision) {
        let held = Held::Until(Duration::ZERO);
        if self.takes.held.insert(file, held).is_some() {
            return;
        }
        for taking in self.takes.taking.values_mut() {
            taking.found.remove(&file);
            taking.adopted.remove(&file);
            taking.claiming.remove(&file);
        }
        let end = self.end(at);
        self.out.push(Effect::Taken { file, end });
    }

    /// Ends a take-over. A file that is not claimed is the member's again, or another taker's. The mirror has told of
    /// each claim that came to pass before.
    fn leave_taking(&mut self, member: &str) {
        let Some(taking) = self.takes.taking.get_mut(member) else { return };
        taking.step = Step::Leaving;
        taking.left.clear();
        let mut files = std::mem::take(&mut taking.adopted);
        files.append(&mut taking.claiming);
        files.append(&mut taking.found);
        for file in files {
            self.out.push(Effect::Disown { file });
        }
        if taking.adopting.is_empty() {
            self.takes.taking.remove(member);
        }
    }

    /// Drops all copies of a taken-over member that may be here, once.
    fn drop_what_is_done(&mut self, member: &str, living: u64) {
        let is_free = !self.takes.taking.contains_key(member);
        if is_free && self.takes.dropped.get(member) != Some(&living) {
            self.takes.dropped.insert(member.into(), living);
            let dropping = Taking { step: Step::Dropping, ..Taking::new(living) };
            self.takes.taking.insert(member.into(), dropping);
            self.out.push(Effect::DropCopies { member: member.into() });
        }
    }

    pub(super) fn dropped(&mut self, member: &str) {
        self.takes.taking.retain(|name, t| name != member || t.step != Step::Dropping);
    }
}
