//! The backing store as the engine asks it: with patience, and knowing how it does.

use std::sync::Arc;

use forebay_backing::BackingStore;

use crate::home::health::Health;
use crate::home::reaper::Reaper;
use crate::pool::Pool;

pub mod health;
pub mod pulse;
pub mod reaper;

pub struct Home {
    /// Its files are closed by a reaper, whoever drops them under whatever lock.
    backing: Arc<dyn BackingStore>,
    reaper: Arc<Reaper>,
    health: Arc<Health>,
    /// What a flush asks of the backing store beside its copies.
    errands: Pool,
    /// Modes do not bind the daemon.
    privileged: bool,
}

impl Home {
    pub(crate) fn new(
        backing: Arc<dyn BackingStore>,
        reaper: Arc<Reaper>,
        health: Arc<Health>,
        errands: Pool,
    ) -> Home {
        let privileged = rustix::process::geteuid().is_root();
        Home { backing, reaper, health, errands, privileged }
    }

    pub(crate) fn backing(&self) -> &dyn BackingStore {
        &*self.backing
    }

    pub(crate) fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    pub(crate) fn errands(&self) -> &Pool {
        &self.errands
    }

    pub(crate) fn is_privileged(&self) -> bool {
        self.privileged
    }
}
