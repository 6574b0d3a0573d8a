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
    pub(crate) backing: Arc<dyn BackingStore>,
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) health: Arc<Health>,
    /// What a flush asks of the backing store beside its copies.
    pub(crate) errands: Pool,
    /// Modes do not bind the daemon.
    pub(crate) privileged: bool,
}
