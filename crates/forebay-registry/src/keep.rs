//! Keeping a lease: the thread that renews it, and the deadline that its holder counts by itself.
//!
//! - K1: the holder's deadline is counted from before a renewal was sent, and the registry's own from when the
//!   renewal arrived.
//! - K2: the holder counts less than the whole time ([`believed`]): its clock may be slower than the registry's. So
//!   its deadline is never after the registry's own.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank, asks_the_registry};

use crate::{Clock, Error, Kind, Lease, LeaseId, Result};

/// Shorter leases would be lost to a busy machine's scheduling; etcd's own minimum is 2 s.
pub const LEASE_MIN: Duration = Duration::from_secs(1);

/// A lease outlives its holder's death by its time, and more than a day is too long a wait.
const LEASE_MAX: Duration = Duration::from_secs(24 * 3600);

/// A failed renewal is tried again this many times within a lease's time.
const RETRIES: u32 = 10;

/// Two clocks differ in speed by at most one part in this many: a tenth. A machine's own clock is off by some
/// thousandths of that, but while it is being set right it runs faster or slower than it should, by a twelfth as
/// chrony does it, and by a tenth at most as the kernel allows it.
const APART: u32 = 10;

/// How long the holder believes in a lease of this time, by its own clock.
pub fn believed(ttl: Duration) -> Duration {
    ttl - ttl / APART
}

/// The registry behind a lease, which renews and ends it. Called from the keeper's thread.
pub trait Source: Send + Sync {
    /// Renews; returns the lease's time from now, or `None` if the lease has ended.
    fn renew(&self, id: LeaseId) -> Result<Option<Duration>>;
    fn revoke(&self, id: LeaseId) -> Result<()>;
}

/// # Errors
///
/// [`Kind::Usage`] for a time that is too short or too long.
pub fn check_ttl(ttl: Duration) -> Result<()> {
    match (LEASE_MIN..=LEASE_MAX).contains(&ttl) {
        true => Ok(()),
        false => Err(Error::new(
            Kind::Usage,
            format!("a lease of the registry lasts between 1 s and 24 h, not {ttl:?}"),
        )),
    }
}

/// A lease that was granted, with its keeper.
pub struct Kept {
    inner: Arc<Inner>,
    keeper: Option<JoinHandle<()>>,
}

struct Inner {
    id: LeaseId,
    source: Arc<dyn Source>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    deadline: Duration,
    ttl: Duration,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The lease is being kept.
    Not,
    /// The holder does not need the lease any more.
    Wanted,
    /// The registry does not know the lease any more.
    Gone,
}

impl Kept {
    /// Keeps a lease that was requested at `sent` and granted for `ttl`.
    pub fn new(
        id: LeaseId,
        ttl: Duration,
        sent: Duration,
        source: Arc<dyn Source>,
        clock: Arc<dyn Clock>,
    ) -> Result<Kept> {
        let state = State { deadline: sent + believed(ttl), ttl, end: End::Not };
        let state = Mutex::new(Rank::Lease, state);
        let inner = Arc::new(Inner { id, source, clock, state, changed: Condvar::new() });
        let keeping = Arc::clone(&inner);
        let keeper = Builder::new().name("lease".into()).spawn(move || keeping.keep());
        let keeper = keeper.map_err(|e| Error::io(e, "starting the thread that keeps a lease"))?;
        Ok(Kept { inner, keeper: Some(keeper) })
    }

    fn stop(&mut self) -> Result<()> {
        match self.end() {
            None | Some(End::Gone) => Ok(()),
            Some(_) => self.inner.source.revoke(self.inner.id),
        }
    }

    /// Stops the renewals; returns the state of the lease, if it was kept.
    fn end(&mut self) -> Option<End> {
        let keeper = self.keeper.take()?;
        asks_the_registry(); // A renewal may be under way.
        // Also while unwinding.
        let was = std::mem::replace(&mut self.inner.state.lock_anyway().end, End::Wanted);
        self.inner.changed.notify_all();
        let _ = keeper.join(); // The thread has reported its error when it panicked.
        Some(was)
    }
}

impl Lease for Kept {
    fn id(&self) -> LeaseId {
        self.inner.id
    }

    fn remaining(&self) -> Duration {
        let now = self.inner.clock.now();
        let state = self.inner.lock();
        if state.end == End::Gone { Duration::ZERO } else { state.deadline.saturating_sub(now) }
    }

    fn is_gone(&self) -> bool {
        self.inner.lock().end == End::Gone
    }

    fn give_up(mut self: Box<Self>) -> Result<()> {
        self.stop()
    }

    fn let_run_out(mut self: Box<Self>) {
        self.end();
    }
}

impl Drop for Kept {
    /// A lease that cannot be revoked now runs out by itself.
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

impl Inner {
    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn keep(&self) {
        let mut pause = self.lock().ttl / 3;
        while self.wait(pause) == End::Not {
            let sent = self.clock.now();
            let renewed = self.source.renew(self.id);
            let mut state = self.lock();
            match renewed {
                Ok(Some(ttl)) => {
                    (state.ttl, state.deadline) = (ttl, sent + believed(ttl)); // K1, K2
                    pause = ttl / 3;
                }
                Ok(None) if state.end == End::Not => state.end = End::Gone,
                Ok(None) => {}
                // Whether the lease still exists is unknown: the deadline stands, and the renewal is tried again.
                Err(_) => pause = state.ttl / RETRIES,
            }
        }
    }

    /// Waits until it is time to renew, or to end.
    fn wait(&self, pause: Duration) -> End {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, pause, |state| state.end == End::Not);
        waited.0.end
    }
}
