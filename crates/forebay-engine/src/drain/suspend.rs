//! Keeping the drain from the backing store, on a member that may not own its files any more.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::Result;

use crate::drain::Drain;
use crate::drain::away::kept_away;

/// The drain begins no call to the backing store until this is dropped.
#[must_use]
pub struct Suspension(Arc<Drain>);

impl Drain {
    /// Calls the backing store, unless the drain is kept from it.
    pub(crate) fn call_home<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let refused = || self.suspended.stands().then(kept_away);
        self.home.health().quietly_unless(refused, work)
    }

    /// Waits during a suspension; `false` if the wait is given up.
    pub(crate) fn is_let_home(&self, cancelled: &dyn Fn() -> bool) -> bool {
        let began = self.files.time().now();
        let patience = self.files.tune(|t| t.backing_timeout);
        while self.suspended.stands() {
            if cancelled() || self.files.is_stopping() || self.files.time().since(began) >= patience
            {
                return false;
            }
            self.files.time().sleep(Duration::from_millis(5));
        }
        true
    }

    /// Keeps the drain from the backing store until the guard is dropped: flushes under way are
    /// broken off before their next call, and no other begins.
    pub fn suspend(self: &Arc<Self>) -> Suspension {
        self.suspended.begin();
        Suspension(self.clone())
    }

    /// Waits until no call to the backing store is outstanding, the drain's or another; `false` if
    /// that takes longer than `patience`.
    pub fn idle(&self, patience: Duration) -> bool {
        let began = self.files.time().now();
        while self.home.health().is_called() {
            if self.files.time().since(began) >= patience {
                return false;
            }
            self.files.time().sleep(Duration::from_millis(5));
        }
        true
    }
}

impl Drop for Suspension {
    fn drop(&mut self) {
        self.0.suspended.end();
        self.0.nudge_drain();
    }
}
