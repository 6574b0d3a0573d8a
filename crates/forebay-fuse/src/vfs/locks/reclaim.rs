//! A home that has begun anew gets the locks again that programs here have, or those locks are
//! lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::{FileKey, Result};
use forebay_cluster::core::Holder;
use forebay_cluster::locks::desk::RECLAIM;
use forebay_cluster::locks::{LockAnswer, LockAsk, Of};
use forebay_cluster::words::Question;

use super::asking::odd_of_locks;
use super::mine::{Mine, Seat};
use crate::vfs::Vfs;
use crate::vfs::homes::moved;

/// How long a home that begins may say that it does not hold a file, and then find out that it does.
const BEGINS: Duration = Duration::from_secs(3);

/// A dead home's files are taken over within this time, or stay with it.
const SUCCESSION: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(100);

impl Vfs {
    /// Gives a file's home the locks of programs here again: it has begun anew, has taken this member for dead, or
    /// says that it does not hold the file. Locks that it does not grant, or confirm, are lost.
    ///
    /// # Errors
    ///
    /// ESTALE if the home does not hold the file yet; the error of the question, if it was not answered.
    pub(super) fn reclaim_file(&self, key: FileKey, mine: &Mine) -> Result<()> {
        let _alone = mine.turn.write();
        let cluster = self.cluster().ok_or_else(moved)?;
        let (seat, held) = {
            let state = mine.state();
            (state.seat.clone(), state.held())
        };
        let Some(Seat::There { home, .. }) = seat else { return Ok(()) };
        let now = cluster.epoch(&home).ok_or_else(moved)?;
        let since = Instant::now();
        let (lost, ends) = loop {
            let ask = LockAsk::Reclaim { held: held.clone() };
            let there = Seat::There { home: home.clone(), epoch: now, ends: 0 };
            match self.ask_at(&there, key, mine.id, &ask, None) {
                Ok((LockAnswer::Lost(lost), ends)) => break (lost, ends),
                Ok((LockAnswer::Cancelled, _)) => {}
                Ok((other, _)) => return Err(odd_of_locks(&other)),
                // The home has begun anew once more: the locks that it was given are gone with that life.
                Err(error) if error.is(libc::ESTALE) && cluster.epoch(&home) != Some(now) => {
                    return Err(error);
                }
                Err(error) if error.is(libc::ESTALE) && since.elapsed() < BEGINS => {}
                Err(error) if error.is(libc::ESTALE) => {
                    break (held.iter().map(|(of, _)| *of).collect::<Vec<_>>(), 0);
                }
                Err(error) => return Err(error),
            }
            forebay_base::lock::sleep(PAUSE);
        };
        let mut state = mine.state();
        state.sit_down(Seat::There { home: home.clone(), epoch: now, ends });
        state.owed.retain(|owed| owed.home != home || owed.epoch == now);
        drop(state);
        tracing::info!(home, locks = held.len() - lost.len(), "locks were reclaimed");
        self.lost(mine, &home, &lost);
        Ok(())
    }

    fn lost(&self, mine: &Mine, home: &str, lost: &[Of]) {
        let path = self.nodes.path(mine.id).unwrap_or_default();
        for of in lost {
            let Some(owned) = mine.state().owners.remove(of) else { continue };
            self.locks.lose(owned.handle);
            let pid = owned.locks.first().map_or(0, |lock| lock.pid);
            tracing::error!(
                file = %path.display(),
                pid,
                home,
                "a lock is lost: its home has begun anew, or is another, or has taken this node for dead; the program gets EIO"
            );
        }
        drop(mine.ask()); // This tidies.
    }

    /// Called when another member has this one's place, and grants its files' locks: programs here have lost theirs.
    pub fn lose_own_locks(&self) {
        let me = self.cluster().map(|cluster| cluster.name().to_string()).unwrap_or_default();
        for (_, mine) in self.all_mine() {
            let (seat, held) = {
                let state = mine.state();
                (state.seat.clone(), state.held())
            };
            if seat == Some(Seat::Here) {
                let lost: Vec<Of> = held.into_iter().map(|(of, _)| of).collect();
                self.lost(&mine, &me, &lost);
            }
        }
    }

    /// Reclaims locks after a member died, or began anew, or after this one was taken for dead.
    pub fn reclaim_locks(&self, ended: &str) {
        let Some(cluster) = self.cluster() else { return };
        let is_me = ended == cluster.name();
        let epoch = cluster.epoch(ended);
        let is_there =
            || cluster.epoch(ended) == epoch && cluster.others().iter().any(|m| m == ended);
        let until = Instant::now() + RECLAIM;
        let all = self.all_mine();
        let mut left = all.clone();
        left.retain(|(_, mine)| match &mine.state().seat {
            Some(Seat::There { home, .. }) => is_me || home == ended,
            _ => false,
        });
        // A home that lives on has the locks that it had.
        if !is_me {
            left.retain(|(_, mine)| match &mine.state().seat {
                Some(Seat::There { epoch: then, .. }) => Some(*then) != epoch,
                _ => false,
            });
        }
        while !left.is_empty() && (is_me || is_there()) && Instant::now() < until {
            left.retain(|(key, mine)| match self.reclaim_file(*key, mine) {
                Ok(()) => false,
                Err(error) => {
                    tracing::debug!(%error, "locks are not reclaimed yet");
                    true
                }
            });
            if !left.is_empty() {
                forebay_base::lock::sleep(PAUSE);
            }
        }
        if !is_me && !is_there() {
            self.lose_to_takers(ended, left.clone());
        }
        for (key, mine) in all {
            self.drop_if_idle(key, mine);
        }
        while !is_me && left.is_empty() && is_there() && Instant::now() < until {
            let Some(epoch) = epoch else { return };
            match self.ask(ended, &Question::Reclaimed { epoch }, &[], &mut Vec::new()) {
                Ok(_) => return,
                Err(error) => tracing::debug!(%error, ended, "a member is not told yet"),
            }
            forebay_base::lock::sleep(PAUSE);
        }
    }

    /// Called when the home of these files is dead. The member that takes one over knows nothing of its locks, and
    /// may grant them to others: the locks that programs here have are lost.
    fn lose_to_takers(&self, dead: &str, mut left: Vec<(FileKey, Arc<Mine>)>) {
        let Some(cluster) = self.cluster() else { return };
        let until = Instant::now() + SUCCESSION;
        let is_back = || cluster.others().iter().any(|member| member == dead);
        while !left.is_empty() && !is_back() && Instant::now() < until {
            left.retain(|(key, mine)| match cluster.holder(*key) {
                Holder::Dead(_) => true,
                Holder::There(home) if home == dead => true,
                _ => {
                    let held: Vec<Of> = mine.state().held().into_iter().map(|(of, _)| of).collect();
                    self.lost(mine, dead, &held);
                    false
                }
            });
            forebay_base::lock::sleep(PAUSE);
        }
    }
}
