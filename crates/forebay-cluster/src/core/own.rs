//! What this member holds: claims, new files that are not claimed yet, directories in which it makes files; and how
//! all of these are given back.
//!
//! A claim is held from the moment at which the mirror has it until the moment at which the mirror no longer has it.
//! A give-back whose commit failed is repeated: the first commit may still come to pass.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Compare, Outcome, Revision};

use super::mirror::News;
use super::{Core, Doing, Effect, GIVEN_LEASE, Reply, Rule, Stage, Ticket};
use crate::keys;

/// The time after the last use, before a claim or `creates` is given back.
pub const SETTLE: Duration = Duration::from_secs(2);

/// Claims in one commit, within the registry's limit of 128 operations.
pub const GATHER: usize = 60;

/// Bytes of paths in one commit of claims: each byte may be six in JSON, and the registry takes a mebibyte.
const PATHS_MAX: usize = 128 << 10;

/// Files that are given back in one commit, by two changes each.
const GIVEN_AT_ONCE: usize = 50;

/// The files that a commit gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveBack {
    /// The files that have gathered: one such commit is under way at a time.
    Gathered,
    /// One file, beside such commits.
    Single,
}

/// New files gather for this long before their claims are sent, unless a task waits for one.
const TOGETHER: Duration = Duration::from_millis(20);

/// For this long after a task has waited for the claim of a new file, claims are sent at once: the next ones are
/// likely to be waited for, too.
const HURRY: Duration = Duration::from_secs(1);

/// Files for the next commit of their kind. One commit is under way at a time.
#[derive(Debug, Default)]
pub struct Batch {
    waiting: BTreeSet<FileKey>,
    is_sent: bool,
    /// The mirror has to reach this revision before it is known whether a file has to be sent again.
    reach: Revision,
    /// When the last commit was sent.
    sent: Option<Duration>,
    /// When a task last waited for one of the files.
    hurried: Option<Duration>,
    /// After a refusal, or without an answer, nothing is sent again before this time.
    rests: Duration,
}

impl Batch {
    fn is_free(&self, reached: Revision, now: Duration) -> bool {
        !self.is_sent && reached >= self.reach && now >= self.rests
    }

    /// Whether the waiting files are to be sent: there are many, a while has passed, or a task waits for one.
    fn is_due(&self, now: Duration) -> bool {
        let is_hurried = self.hurried.is_some_and(|at| now < at + HURRY);
        is_hurried
            || self.waiting.len() >= GATHER
            || self.sent.is_none_or(|at| now >= at + TOGETHER)
    }

    fn send(&mut self, files: &[FileKey], now: Duration) {
        files.iter().for_each(|file| _ = self.waiting.remove(file));
        (self.is_sent, self.sent) = (true, Some(now));
    }
}

/// Stands for the directory of a file whose place is unknown.
pub const SOMEWHERE: FileKey = FileKey { ino: 0, generation: 0 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    No,
    /// [`Effect::Release`] is under way.
    Releasing,
    /// The commit is under way, or to be repeated.
    Giving {
        is_sent: bool,
    },
}

#[derive(Debug)]
pub struct Own {
    pub dir: Option<FileKey>,
    pub path: PathBuf,
    /// The revision at which the file was claimed; `None` for a new file that is not claimed yet.
    pub claim: Option<Revision>,
    pub is_claiming: bool,
    /// Writers and changes under way here.
    pub uses: u32,
    pub used: Duration,
    pub leaving: Leaving,
    /// Questions of peers that asked for the file.
    pub recalls: Vec<Ticket>,
    /// A caller wants the file, and waits for its flush, while a look is under way that flushes nothing.
    pub wants_flush: bool,
    /// Looks in a row that found the file not free.
    pub looks: u32,
    /// No other member opens the file without asking: see [`Core::is_seen`].
    pub is_seen: bool,
}

#[derive(Debug)]
pub struct OwnDir {
    pub path: PathBuf,
    pub used: Duration,
    /// The creations under way in the directory, by ticket.
    pub making: BTreeSet<Ticket>,
    /// The revision at which the directory's key was put.
    pub revision: Revision,
    /// The directory is given back, or to be.
    pub leaving: Option<Ending>,
}

/// How far a directory's give-back has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Wanted,
    /// The commit is under way.
    Sent,
    /// The commit had no answer, and may still come to pass: it is sent again, and cannot be taken back.
    Unknown,
}

/// A file that is still dirty at each look is looked at again after at most this many settling times.
const LOOKS_MAX: u32 = 4;

impl Own {
    /// The time after the last use or look, before the file is looked at for a give-back.
    fn rest(&self) -> Duration {
        SETTLE * (self.looks + 1).min(LOOKS_MAX)
    }
}

impl Core {
    pub(super) fn own_anew(&mut self, file: FileKey) -> &mut Own {
        let now = self.now;
        self.own.entry(file).or_insert_with(|| Own {
            dir: None,
            path: PathBuf::new(),
            claim: None,
            is_claiming: false,
            uses: 0,
            used: now,
            leaving: Leaving::No,
            recalls: Vec::new(),
            wants_flush: false,
            looks: 0,
            is_seen: false,
        })
    }

    pub(super) fn created(&mut self, file: FileKey, dir: FileKey, path: PathBuf) {
        let may_make = self.own_dirs.contains_key(&dir);
        let own = self.own_anew(file);
        if may_make && own.claim.is_none() {
            own.is_seen = true; // A member with a read grant asks here.
        }
        own.dir = Some(dir);
        own.path = path;
        own.uses += 1; // The use lasts until the file is closed.
        if own.claim.is_none() && !own.is_claiming {
            self.new_files.waiting.insert(file);
        }
        let used = self.now;
        if let Some(dir) = self.own_dirs.get_mut(&dir) {
            dir.used = used;
        }
        self.gather_due();
    }

    /// Sends the claims that have waited long enough: the watch may just have told of those that were sent before.
    pub(super) fn gather_due(&mut self) {
        if self.new_files.is_due(self.now) {
            self.gather();
        }
    }

    /// Whether claims of new files are under way.
    #[cfg(test)]
    pub(crate) fn is_claiming(&self) -> bool {
        self.new_files.is_sent
    }

    /// Whether the file's claim has come.
    #[cfg(test)]
    pub(crate) fn has_claim(&self, file: FileKey) -> bool {
        self.own.get(&file).is_some_and(|own| own.claim.is_some())
    }

    /// Sends the claims of new files at once: a task waits for one.
    pub(super) fn hurry(&mut self) {
        self.new_files.hurried = Some(self.now);
        self.gather();
    }

    pub(super) fn made(&mut self, dir: FileKey, by: Ticket) {
        let now = self.now;
        if let Some(own) = self.own_dirs.get_mut(&dir) {
            own.making.remove(&by);
            own.used = now;
        }
    }

    pub(super) fn unused(&mut self, file: FileKey) {
        let now = self.now;
        if let Some(own) = self.own.get_mut(&file) {
            own.uses = own.uses.saturating_sub(1);
            own.used = now;
            own.looks = 0;
        }
    }

    /// Takes in what the watch has told of claims.
    pub(super) fn heard(&mut self, news: Vec<News>) {
        for news in news {
            match news {
                News::Claimed { file, by } if by == self.me => {
                    let Some(claimed) = self.mirror.claims.get(&file) else { continue };
                    let (revision, path) = (claimed.revision, PathBuf::from(&claimed.path));
                    if !claimed.taken_from.is_empty() {
                        self.claimed_taken(file, revision);
                    }
                    let own = self.own_anew(file);
                    own.claim = Some(revision);
                    if own.path.as_os_str().is_empty() {
                        own.path = path;
                    }
                    self.new_files.waiting.remove(&file);
                }
                News::Claimed { file, .. } => {
                    let Some(own) = self.own.get(&file) else { continue };
                    // Otherwise this process is about to hear that its place was taken.
                    let stands = self.member(&self.me).is_some_and(|me| me.epoch == self.epoch);
                    if own.claim.is_none() && stands {
                        self.out.push(Effect::Lost { file });
                    }
                    self.gone(file);
                }
                News::Unclaimed { file, by, .. } | News::Given { file, by, .. }
                    if by == self.me =>
                {
                    let Some(own) = self.own.get(&file) else { continue };
                    let claimed = self.mirror.claims.get(&file).map(|claim| claim.revision);
                    let stands = own.claim.is_some() && own.claim == claimed;
                    let is_giving = matches!(own.leaving, Leaving::Giving { .. });
                    if !stands && (own.claim.is_some() || is_giving) {
                        self.gone(file);
                    }
                }
                News::Unclaimed { file, at, .. } | News::Given { file, at, .. } => {
                    if self.rules.obey(Rule::ForgetOnGiven) {
                        let end = Some(self.end(at));
                        self.out.push(Effect::Forget { file, end });
                    }
                }
            }
        }
    }

    fn gone(&mut self, file: FileKey) {
        let Some(own) = self.own.remove(&file) else { return };
        self.new_files.waiting.remove(&file);
        self.giving.waiting.remove(&file);
        self.not_held(file);
        for ticket in own.recalls {
            self.out.push(Effect::Reply(ticket, Reply::Given(true)));
        }
    }

    /// Claims the new files that are not claimed yet, many in one commit.
    fn gather(&mut self) {
        if !self.new_files.is_free(self.mirror.revision, self.now) || self.is_gated() {
            return;
        }
        let stays = |file: &&FileKey| self.own.get(file).is_some_and(|o| o.leaving == Leaving::No);
        let mut room = PATHS_MAX;
        let has_room = |file: &&FileKey| {
            let path = self.own.get(file).map_or(0, |own| own.path.as_os_str().len());
            let is_first = room == PATHS_MAX;
            let fits = path <= room || is_first;
            room = room.saturating_sub(path);
            fits
        };
        let waiting = self.new_files.waiting.iter().filter(stays).take(GATHER);
        let files: Vec<FileKey> = waiting.take_while(has_room).copied().collect();
        if !files.is_empty() {
            self.new_files.send(&files, self.now);
            self.claim_new(files);
        }
    }

    fn claim_new(&mut self, files: Vec<FileKey>) {
        let mut commit = Commit::new();
        for file in &files {
            let Some(own) = self.own.get_mut(file) else { continue };
            own.is_claiming = true;
            let path = own.path.to_string_lossy().into_owned();
            commit = self.claiming(commit, *file, &path);
        }
        self.commit(Doing::Gather(files), commit, true);
    }

    pub(super) fn claiming(&self, commit: Commit, file: FileKey, path: &str) -> Commit {
        let key = self.mirror.key(&format!("claims/{}", keys::file(file)));
        commit.if_absent(&key).put(&key, super::json(&keys::Claim::new(&self.me, path)))
    }

    /// Notes the outcome of a commit of claims. The mirror tells of the claims that came to pass. Several refused files
    /// are claimed again, each alone; after any other failure all are repeated.
    pub(super) fn gathered(&mut self, files: Vec<FileKey>, outcome: Result<Outcome, ()>) {
        self.new_files.is_sent = false;
        if let Ok(Outcome::Committed(revision)) = outcome {
            self.new_files.reach = self.new_files.reach.max(revision);
        }
        let alone = matches!(outcome, Ok(Outcome::Refused(_))) && files.len() > 1;
        let has_claimed = matches!(outcome, Ok(Outcome::Committed(_)));
        if !has_claimed {
            // The watch may not have told the reason yet.
            self.new_files.rests = self.now + TOGETHER;
        }
        for file in files {
            let Some(own) = self.own.get_mut(&file) else { continue };
            own.is_claiming = false;
            let is_recalled = !own.recalls.is_empty();
            match (own.claim.is_none(), alone) {
                (true, true) => self.claim_new(vec![file]),
                (true, false) => _ = self.new_files.waiting.insert(file),
                (false, _) => {}
            }
            if is_recalled {
                self.release(file, true);
            }
        }
        if has_claimed {
            self.gather_due();
        }
    }

    /// Begins to give a file back, unless it is in use. An idle file is given back when the drain has flushed it, at
    /// the drain's own pace; for a waiting caller the file is flushed.
    pub(super) fn release(&mut self, file: FileKey, flush: bool) {
        let is_held = self.is_held(file);
        let Some(own) = self.own.get_mut(&file) else { return };
        own.wants_flush |= flush && own.leaving == Leaving::Releasing;
        if own.leaving != Leaving::No || own.uses > 0 || own.is_claiming || is_held {
            return;
        }
        if self.rules.obey(Rule::ReleaseBeforeGiveBack) {
            own.leaving = Leaving::Releasing;
            self.out.push(Effect::Release { file, flush });
        } else {
            own.leaving = Leaving::Giving { is_sent: false };
            self.give(file);
        }
    }

    pub(super) fn released(&mut self, file: FileKey, is_free: bool) {
        let now = self.now;
        let waits = self.rules.obey(Rule::WritersWaitDuringRelease);
        let Some(own) = self.own.get_mut(&file) else { return };
        if own.leaving != Leaving::Releasing {
            return;
        }
        if is_free && (own.uses == 0 || !waits) {
            own.leaving = Leaving::Giving { is_sent: false };
            self.give(file);
            return;
        }
        if std::mem::take(&mut own.wants_flush) && own.uses == 0 {
            self.out.push(Effect::Release { file, flush: true });
            return;
        }
        own.leaving = Leaving::No;
        own.used = now;
        own.looks += 1;
        for ticket in std::mem::take(&mut own.recalls) {
            self.out.push(Effect::Reply(ticket, Reply::Given(false)));
        }
    }

    /// Gives back the files that are ready, many in one commit. A file that a peer waits for goes at once.
    pub(super) fn give(&mut self, file: FileKey) {
        if self.own.get(&file).is_some_and(|own| !own.recalls.is_empty()) {
            return self.give_back(vec![file], GiveBack::Single);
        }
        self.giving.waiting.insert(file);
        self.give_gathered();
    }

    fn give_gathered(&mut self) {
        if !self.giving.is_free(self.mirror.revision, self.now) {
            return;
        }
        let files: Vec<_> = self.giving.waiting.iter().take(GIVEN_AT_ONCE).copied().collect();
        if !files.is_empty() {
            self.giving.send(&files, self.now);
            self.give_back(files, GiveBack::Gathered);
        }
    }

    fn give_back(&mut self, files: Vec<FileKey>, how: GiveBack) {
        let given = super::json(&keys::Given { by: self.me.clone() });
        let (mut commit, mut sent) = (Commit::new(), Vec::new());
        for file in files {
            let Some(own) = self.own.get_mut(&file) else { continue };
            if own.leaving != (Leaving::Giving { is_sent: false }) {
                continue;
            }
            own.leaving = Leaving::Giving { is_sent: true };
            self.giving.waiting.remove(&file);
            sent.push((file, own.claim));
            let name = keys::file(file);
            let key = self.mirror.key(&format!("claims/{name}"));
            commit = match own.claim {
                Some(revision) => {
                    commit.compares.push(Compare::Revision(key.clone(), revision));
                    commit.delete(key)
                }
                None => commit.if_absent(key),
            };
            let key = self.mirror.key(&format!("given/{name}"));
            commit = commit.put_leased(key, given.clone(), GIVEN_LEASE);
        }
        match sent.is_empty() {
            true if how == GiveBack::Gathered => self.giving.is_sent = false,
            true => {}
            false => self.commit(Doing::Give(sent, how), commit, false),
        }
    }

    /// Notes the outcome of a give-back. After a commit the mirror settles the files. Several refused files are given
    /// back again, each alone; after any other failure all are repeated at the next tick. A late answer, after a file
    /// has been claimed anew, says nothing.
    pub(super) fn gave(
        &mut self,
        files: Vec<(FileKey, Option<Revision>)>,
        how: GiveBack,
        outcome: Result<Outcome, ()>,
    ) {
        if how == GiveBack::Gathered {
            self.giving.is_sent = false;
        }
        if matches!(outcome, Ok(Outcome::Committed(_))) {
            return self.give_gathered();
        }
        let alone = outcome.is_ok() && files.len() > 1;
        for (file, claim) in files {
            if let Some(own) = self.own.get_mut(&file)
                && own.leaving == (Leaving::Giving { is_sent: true })
                && (own.claim == claim || claim.is_none())
            {
                own.leaving = Leaving::Giving { is_sent: false };
                if alone {
                    self.give_back(vec![file], GiveBack::Single);
                }
            }
        }
    }

    pub(super) fn end_dir(&mut self, dir: FileKey) {
        let revision = self.mirror.creates.get(&dir).and_then(|c| c.get(&self.me)).copied();
        let (Some(own), Some(revision)) = (self.own_dirs.get_mut(&dir), revision) else { return };
        own.leaving = Some(Ending::Sent);
        let key = self.mirror.key(&format!("creates/{}/{}", keys::file(dir), self.me));
        let mut commit = Commit::new();
        commit.compares.push(Compare::Revision(key.clone(), revision));
        self.commit(Doing::End(dir), commit.delete(key), false);
    }

    pub(super) fn ended_dir(&mut self, dir: FileKey, outcome: Result<Outcome, ()>) {
        let Some(own) = self.own_dirs.get_mut(&dir).filter(|own| own.leaving.is_some()) else {
            return;
        };
        match outcome {
            Ok(Outcome::Committed(_)) => {} // The mirror tells.
            Ok(Outcome::Refused(_)) => own.leaving = Some(Ending::Wanted),
            Err(()) => own.leaving = Some(Ending::Unknown),
        }
    }

    /// Takes this member's directories from the mirror.
    pub(super) fn look_at_dirs(&mut self) {
        let mirror = &self.mirror;
        let stands =
            |dir: &FileKey| mirror.creates.get(dir).is_some_and(|c| c.contains_key(&self.me));
        self.own_dirs.retain(|dir, _| stands(dir));
        for (&dir, creators) in &mirror.creates {
            let Some(&revision) = creators.get(&self.me) else { continue };
            let own = self.own_dirs.entry(dir).or_insert_with(|| OwnDir {
                path: PathBuf::new(),
                used: self.now,
                making: BTreeSet::new(),
                revision,
                leaving: None,
            });
            // A late commit has put the key again after it was given back.
            if own.revision != revision {
                (own.revision, own.leaving) = (revision, None);
            }
        }
    }

    /// Gives back what is idle, and repeats what failed.
    pub(super) fn tend_own(&mut self) {
        self.gather();
        let now = self.now;
        let is_cut_off = self.is_cut_off();
        let files: Vec<FileKey> = self.own.keys().copied().collect();
        for file in files {
            let own = &self.own[&file];
            match own.leaving {
                Leaving::Giving { is_sent: false } => self.give(file),
                // A cut-off member keeps its files: it could not complete the give-back, which would lock out its own
                // programs.
                Leaving::No
                    if own.claim.is_some() && !is_cut_off && now >= own.used + own.rest() =>
                {
                    self.release(file, false);
                }
                _ => {}
            }
        }
        if !self.has_begun {
            return; // Files of a directory may yet be told.
        }
        let busy = |dir: FileKey| {
            let may_be_in = |own: &Own| own.dir == Some(dir) || own.dir == Some(SOMEWHERE);
            self.own.values().any(|own| may_be_in(own) && own.claim.is_none())
                || self.tasks.values().any(|task| {
                    matches!(&task.ask, super::Task::Create { dir: d, .. } if *d == dir)
                        && matches!(task.stage, Stage::Reach(_))
                })
        };
        let idle: Vec<FileKey> = self
            .own_dirs
            .iter()
            .filter(|(dir, own)| {
                let is_making = !own.making.is_empty() && self.rules.obey(Rule::MakingKeepsCreates);
                let is_due = match own.leaving {
                    Some(ending) => ending != Ending::Sent,
                    None => now >= own.used + SETTLE,
                };
                is_due && !is_making && !busy(**dir)
            })
            .map(|(dir, _)| *dir)
            .collect();
        for dir in idle {
            self.end_dir(dir);
        }
    }
}
