//! Handles at homes that this mount does not use any more, until the homes know.

use forebay_base::lock::{Mutex, MutexGuard, Rank, asks_a_member};
use forebay_cluster::front::Cluster;
use forebay_cluster::words::Question;

use super::Vfs;
use super::copies::is_silence;
use super::there::{Remote, Seat, There};
use super::unsynced::Life;

/// The most that are remembered; beyond, the oldest stay open at their homes until this process ends.
const REMEMBERED: usize = 65_536;

pub struct Left(Mutex<Vec<(Life, u64)>>);

impl Default for Left {
    fn default() -> Left {
        Left(Mutex::new(Rank::Left, Vec::new()))
    }
}

impl Left {
    #[track_caller]
    fn all(&self) -> MutexGuard<'_, Vec<(Life, u64)>> {
        self.0.lock()
    }

    pub fn add(&self, life: Life, handle: u64) {
        let mut all = self.all();
        if all.len() >= REMEMBERED {
            all.remove(0);
        }
        all.push((life, handle));
    }

    pub fn has_some(&self) -> bool {
        !self.all().is_empty()
    }

    /// Has the homes close the handles. A silent home is told later; one that began anew has none of them.
    pub fn close(&self, cluster: &dyn Cluster) {
        let all = std::mem::take(&mut *self.all());
        let mut silent = Vec::<String>::new();
        for (life, handle) in all {
            let home = life.home.clone();
            if cluster.epoch(&home) != Some(life.process.epoch) {
                continue;
            }
            if !silent.contains(&home) {
                asks_a_member();
                let asked = cluster.ask(&home, &Question::Close { handle }, &[], &mut Vec::new());
                match asked {
                    Err(error) if is_silence(&error) => silent.push(home),
                    _ => continue,
                }
            }
            self.add(life, handle);
        }
    }
}

impl Vfs {
    pub(super) fn leave(&self, remote: &Remote, left: &There) {
        if remote.leave(left) {
            self.close_later(left);
        }
    }

    /// Has a handle closed at its home. Until then the home keeps it, and the claim if it is a writer's.
    pub(super) fn close_later(&self, there: &There) {
        let left = &self.members.left;
        left.add(there.life.clone(), there.handle);
        if let Some(cluster) = self.members.cluster.get().cloned() {
            let left = left.clone();
            self.members.fetching.pool.offer(move || left.close(&*cluster));
        }
    }

    /// Tries again to have the left handles closed.
    pub fn close_left(&self) {
        if let Some(cluster) = self.cluster() {
            self.members.left.close(cluster);
        }
    }

    pub fn has_left_handles(&self) -> bool {
        self.members.left.has_some()
    }

    /// Has a handle closed at its home, after the last descriptor of it is gone.
    pub(super) fn close_there(&self, remote: &Remote) {
        let seat = std::mem::replace(&mut *remote.seat(), Seat::Nowhere);
        if let Seat::There(there) = seat {
            let close = Question::Close { handle: there.handle };
            if let Err(error) = self.ask_done(there.home(), &close, &[]) {
                tracing::debug!(%error, home = there.home(), "a handle was not closed at its home");
                if is_silence(&error) {
                    self.members.left.add(there.life, there.handle);
                    self.look_at_locks(); // The thread that tends locks tends these, too.
                }
            }
        }
        self.members.unsynced.close(&remote.account);
    }
}
