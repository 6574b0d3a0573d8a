//! Looking at files for who must answer though others hang: the watchdog, the status, the keeper.

use std::sync::{MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::file::{File, Inner};

/// So long a glance waits for files that are at work, all of them together: a write to the tier
/// holds its file for less.
const PATIENCE: Duration = Duration::from_millis(200);

/// How soon it tries again.
const RETRY: Duration = Duration::from_micros(200);

/// Locks files one after the other, and takes no for an answer.
pub(crate) struct Glance {
    until: Option<Instant>,
}

impl Glance {
    pub fn new() -> Glance {
        Glance { until: None }
    }

    /// The file, unless somebody goes on holding it.
    pub fn at<'a>(&mut self, file: &'a File) -> Option<MutexGuard<'a, Inner>> {
        loop {
            match file.inner.try_lock() {
                Ok(inner) => return Some(inner),
                Err(TryLockError::Poisoned(_)) => return None,
                Err(TryLockError::WouldBlock) => {}
            }
            let now = Instant::now();
            if now >= *self.until.get_or_insert(now + PATIENCE) {
                return None;
            }
            std::thread::sleep(RETRY);
        }
    }
}
