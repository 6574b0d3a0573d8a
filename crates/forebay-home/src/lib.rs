//! The backing store as the engine calls it: with patience, and with a record of its health.

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
    /// The store, whose files a reaper closes, whichever thread drops them under whatever lock.
    backing: Arc<dyn BackingStore>,
    reaper: Arc<Reaper>,
    health: Arc<Health>,
    /// Threads for the calls of a flush to the backing store other than its copies.
    errands: Pool,
    /// Whether the daemon may ignore file modes.
    privileged: bool,
}

impl Home {
    /// Creates the part; `backing` is behind `reaper`, and both report to `health`.
    pub fn new(
        backing: Arc<dyn BackingStore>,
        reaper: Arc<Reaper>,
        health: Arc<Health>,
        errands: Pool,
    ) -> Home {
        let privileged = rustix::process::geteuid().is_root();
        Home { backing, reaper, health, errands, privileged }
    }

    /// Returns the store itself. Calls to it go through [`Home::health`].
    pub fn backing(&self) -> &dyn BackingStore {
        &*self.backing
    }

    /// Returns the reaper that closes the store's files.
    pub fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// Returns the health of the store.
    #[inline]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Returns the threads for the calls of a flush other than its copies.
    pub fn errands(&self) -> &Pool {
        &self.errands
    }

    /// Whether the daemon may ignore file modes on the store.
    pub fn is_privileged(&self) -> bool {
        self.privileged
    }
}
