//! The backing store as the engine asks it: with patience, and knowing how it does.

use std::sync::Arc;

use forebay_backing::BackingStore;

use crate::health::Health;
use crate::pool::Pool;
use crate::reaper::Reaper;

pub mod health;
pub mod pulse;
pub mod reaper;

use forebay_core as core;
use forebay_threads::{pool, time};

/// The backing store of one mount.
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
    /// `backing` is behind `reaper`, and what either learns of it goes into `health`.
    pub fn new(
        backing: Arc<dyn BackingStore>,
        reaper: Arc<Reaper>,
        health: Arc<Health>,
        errands: Pool,
    ) -> Home {
        let privileged = rustix::process::geteuid().is_root();
        Home { backing, reaper, health, errands, privileged }
    }

    /// The store itself. Calls to it go through [`Home::health`].
    pub fn backing(&self) -> &dyn BackingStore {
        &*self.backing
    }

    /// Who closes its files.
    pub fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// Whether it answers.
    #[inline]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Threads for what a flush asks of it beside its copies.
    pub fn errands(&self) -> &Pool {
        &self.errands
    }

    /// Whether modes do not bind the daemon there.
    pub fn is_privileged(&self) -> bool {
        self.privileged
    }
}
