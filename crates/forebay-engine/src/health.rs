//! Whether the backing store answers.
//!
//! Every call to the backing store goes through [`Health::call`]. It fails fast while the store
//! is away, notes when it goes away, and keeps the begin of every call in flight, so that a call
//! that hangs is noticed from outside (S10). A probe decides when it is back.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};

#[derive(Debug, Default)]
pub struct Health {
    away: AtomicBool,
    calls: Mutex<BTreeMap<u64, Instant>>,
    next: AtomicU64,
    last_error: Mutex<Option<(String, Instant)>>,
    pub errors: AtomicU64,
    pub absences: AtomicU64,
}

impl Health {
    pub fn is_available(&self) -> bool {
        !self.away.load(Relaxed)
    }

    /// Runs one call to the backing store.
    pub fn call<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.is_available() {
            return Err(Error::new(Kind::Unavailable, "the backing store is away"));
        }
        self.probe(work)
    }

    /// Runs a call even while the store is away.
    pub fn probe<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let n = self.next.fetch_add(1, Relaxed);
        self.calls().insert(n, Instant::now());
        let result = work();
        self.calls().remove(&n);
        if let Err(error) = &result {
            self.note(error);
        }
        result
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.calls.lock().expect("no panic inside")
    }

    /// Takes note of an error; one that means absence makes the store count as away.
    fn note(&self, error: &Error) {
        match error.kind() {
            Kind::Unavailable | Kind::TimedOut => self.went_away(&error.to_string()),
            Kind::Os(libc::EIO | libc::ENOSPC | libc::EDQUOT | libc::EROFS | libc::ESTALE) => {
                self.remember(&error.to_string())
            }
            _ => {}
        }
    }

    fn remember(&self, text: &str) {
        self.errors.fetch_add(1, Relaxed);
        let mut last = self.last_error.lock().expect("no panic inside");
        *last = Some((text.to_string(), Instant::now()));
    }

    fn went_away(&self, why: &str) {
        self.remember(why);
        if !self.away.swap(true, Relaxed) {
            self.absences.fetch_add(1, Relaxed);
            tracing::warn!(why, "the backing store is away; dirty bytes stay in the fast tier");
        }
    }

    pub fn came_back(&self) {
        if self.away.swap(false, Relaxed) {
            tracing::info!("the backing store is back");
        }
    }

    /// Declares the store away if a call has been in flight for longer than `limit`.
    pub fn check_stalls(&self, limit: Duration) {
        let oldest = self.calls().values().min().copied();
        if let Some(began) = oldest
            && began.elapsed() > limit
            && self.is_available()
        {
            self.went_away(&format!(
                "a call has not returned for {:.1} s",
                began.elapsed().as_secs_f64()
            ));
        }
    }

    /// Whether some call hangs right now.
    pub fn has_stalled_call(&self, limit: Duration) -> bool {
        self.calls().values().any(|began| began.elapsed() > limit)
    }

    pub fn last_error(&self) -> Option<(String, f64)> {
        let last = self.last_error.lock().expect("no panic inside");
        last.as_ref().map(|(text, at)| (text.clone(), at.elapsed().as_secs_f64()))
    }
}
