//! Requests about the locks of files that this mount is the home of.

use std::path::Path;
use std::time::Instant;

use forebay_backing::{FileKey, Result};
use forebay_cluster::core::Access;
use forebay_cluster::front::{Guard, Place};
use forebay_cluster::locks::desk::Guest;
use forebay_cluster::locks::{LockAnswer, LockAsk, Waiter};
use forebay_cluster::words::Question;

use super::Told;
use crate::vfs::Vfs;
use crate::vfs::homes::moved;

impl Vfs {
    /// Serves another member, as [`Vfs::at_desk`]. Like all questions of members, this asks no other member.
    pub(in crate::vfs) fn lock_for(
        &self,
        (from, epoch): (&str, u64),
        file: FileKey,
        path: &Path,
        ask: &LockAsk,
    ) -> Result<(LockAnswer, u64)> {
        let guest = self.locks.desk.lock().arrive(from, epoch);
        let cluster = self.cluster().filter(|_| self.is_held(file)).ok_or_else(moved)?;
        if let Some(answer) = self.at_desk(&guest, file, ask, None) {
            return Ok(answer);
        }
        let dir = self.dir_of(path)?;
        match cluster.open(file, dir, path, Access::Write)? {
            Place::Here(held) => self.at_desk(&guest, file, ask, Some(held)).ok_or_else(moved),
            Place::There(_) => Err(moved()),
        }
    }

    /// Whether [`Vfs::at_desk`] needs no guard for its answer.
    pub(super) fn has_desk(&self, file: FileKey) -> bool {
        self.locks.desk.lock().has(file)
    }

    /// Answers a request, and says how often the guest's locks were given back. `None` if the file has to be
    /// held for the guest, and no guard was given.
    pub(super) fn at_desk(
        &self,
        guest: &Guest,
        file: FileKey,
        ask: &LockAsk,
        guard: Option<Option<Guard>>,
    ) -> Option<(LockAnswer, u64)> {
        let is_early = self.waits_for_reclaims(file);
        let done = self.locks.desk.lock().ask(Instant::now(), guest, file, ask, guard, is_early)?;
        tracing::trace!(?guest, ?ask, answer = ?done.answer, woken = ?done.woken, "of a file's locks");
        drop(done.over);
        self.tell_woken(done.woken);
        Some((done.answer, guest.ends))
    }

    fn waits_for_reclaims(&self, file: FileKey) -> bool {
        let others = || self.cluster().map(|cluster| cluster.others()).unwrap_or_default();
        self.locks.desk.lock().waits_for_reclaims(Instant::now(), file, others)
    }

    /// Whether a file's locks let its claim go: not while locks from before a restart may still be reclaimed
    /// here.
    pub fn may_give_back(&self, file: FileKey) -> bool {
        self.cluster().is_none() || !self.waits_for_reclaims(file)
    }

    fn tell_woken(&self, woken: Vec<Waiter>) {
        let me = self.cluster().map(|cluster| cluster.name()).unwrap_or_default();
        for waiter in woken {
            self.locks.tell(match waiter.owner.member == me {
                true => Told::Granted(waiter.number),
                false => Told::GrantedThere(waiter),
            });
        }
    }

    /// Called when a file's home has granted a lock that a program here waits for.
    pub(in crate::vfs) fn lock_granted(&self, number: u64) {
        self.locks.tell(Told::Granted(number));
    }

    /// Tells a member that a lock is granted that its program waits for. If the word is lost, it asks.
    pub fn tell_granted(&self, member: &str, number: u64) {
        let told = self.ask(member, &Question::Granted { number }, &[], &mut Vec::new());
        if let Err(error) = told {
            tracing::debug!(%error, member, "a member was not told of a lock");
        }
    }

    /// Notes that a member has reclaimed its programs' locks, in the life of this member that has this epoch.
    ///
    /// # Errors
    ///
    /// ESTALE if that life has ended: the locks that it was given are not known here.
    pub(in crate::vfs) fn locks_reclaimed(&self, member: &str, epoch: u64) -> Result<()> {
        let cluster = self.cluster().ok_or_else(moved)?;
        if cluster.epoch(cluster.name()) != Some(epoch) {
            return Err(moved());
        }
        self.locks.desk.lock().reclaimed(member);
        Ok(())
    }

    /// Called when a member is dead, or began anew. Gives back its programs' locks, and has the locks looked
    /// after that it had granted to programs here.
    pub fn locks_ended(&self, member: &str) {
        let Some(cluster) = self.cluster() else { return };
        if member != cluster.name() {
            let is_alive = cluster.others().iter().any(|other| other == member);
            let oldest = cluster.epoch(member).filter(|_| is_alive);
            let (woken, over) = self.locks.desk.lock().end(Instant::now(), member, oldest);
            tracing::debug!(member, ?oldest, ?woken, "a member's locks are given back");
            drop(over);
            self.tell_woken(woken);
        }
        self.locks.tell(Told::Ended(member.into()));
    }
}
