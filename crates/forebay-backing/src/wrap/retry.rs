//! Repeats calls whose failure may pass by itself, a bounded number of times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::clock::{Clock, Monotonic};
use super::layer::{Call, Done, Layer};
use super::store::Wrapped;
use crate::{BackingStore, Error, Kind, Result};

/// When to give up. The defaults wait 10 + 20 + 40 + 80 ms: long enough for a dropped
/// connection, short enough for a program that waits for its read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Calls in all, the first included.
    pub attempts: u32,
    /// The first pause; each further one is twice as long.
    pub pause: Duration,
    pub pause_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        let pause = Duration::from_millis(10);
        RetryPolicy { attempts: 5, pause, pause_max: Duration::from_secs(1) }
    }
}

pub struct Retry {
    policy: RetryPolicy,
    clock: Box<dyn Clock>,
    retries: AtomicU64,
    gave_up: AtomicU64,
}

impl Retry {
    pub fn wrap(store: Arc<dyn BackingStore>, policy: RetryPolicy) -> Arc<Wrapped<Retry>> {
        Retry::with_clock(store, policy, Monotonic)
    }

    pub fn with_clock(
        store: Arc<dyn BackingStore>,
        policy: RetryPolicy,
        clock: impl Clock,
    ) -> Arc<Wrapped<Retry>> {
        let (retries, gave_up) = (AtomicU64::new(0), AtomicU64::new(0));
        Wrapped::new(store, Arc::new(Retry { policy, clock: Box::new(clock), retries, gave_up }))
    }

    /// Calls made again so far.
    pub fn retries(&self) -> u64 {
        self.retries.load(Relaxed)
    }

    /// Calls that failed every time.
    pub fn gave_up(&self) -> u64 {
        self.gave_up.load(Relaxed)
    }
}

impl Layer for Retry {
    const PASSES_FD: bool = true;

    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        let mut pause = self.policy.pause;
        for _ in 1..self.policy.attempts.max(1) {
            match run() {
                Err(error) if call.verb.repeatable() && transient(&error) => {}
                done => return done,
            }
            self.retries.fetch_add(1, Relaxed);
            self.clock.sleep_until(self.clock.now() + pause);
            pause = (pause * 2).min(self.policy.pause_max);
        }
        let last = run();
        if last.as_ref().is_err_and(transient) {
            self.gave_up.fetch_add(1, Relaxed);
        }
        last
    }
}

/// Whether the failure passes by itself, and soon: waiting for a full disk is the caller's
/// business.
fn transient(error: &Error) -> bool {
    let soon = matches!(
        error.kind(),
        Kind::Unavailable | Kind::TimedOut | Kind::Os(libc::EINTR | libc::EAGAIN | libc::ETIMEDOUT)
    );
    soon && error.retry() == crate::Retry::Later
}
