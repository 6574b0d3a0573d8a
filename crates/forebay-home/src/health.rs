//! Whether the backing store answers.
//!
//! Every call to the backing store goes through [`Health::call`]. It fails fast while the store is
//! away, notes when the store goes away, and keeps the beginning of every call in flight, so that
//! other threads notice a call that hangs (S10). A probe decides when the store is back.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};

use crate::pulse::Pulse;
use crate::time::Time;
use forebay_base::lock::{self, Mutex, Rank};

/// The number of calls at once that are watched: far more than there are threads.
const WATCHED_MAX: usize = 1024;

/// Whether the backing store answers, with the calls in flight.
#[derive(Debug)]
pub struct Health {
    time: Time,
    away: AtomicBool,
    /// When each call in flight began, in nanoseconds after `epoch`; 0 is a free place.
    calls: Box<[AtomicU64]>,
    epoch: Instant,
    /// The pulse of calls that a program waits for.
    pulse: Pulse,
    last_error: Mutex<Option<(String, Instant)>>,
    errors: AtomicU64,
    absences: AtomicU64,
}

impl Health {
    /// Creates the health of a store that was not called yet: it counts as available.
    pub fn new(time: Time) -> Health {
        Health {
            away: AtomicBool::default(),
            calls: (0..WATCHED_MAX).map(|_| AtomicU64::new(0)).collect(),
            epoch: time.now(),
            pulse: Pulse::new(time.clone()),
            time,
            last_error: Mutex::new(Rank::Home, Default::default()),
            errors: AtomicU64::default(),
            absences: AtomicU64::default(),
        }
    }

    /// Whether the store counts as available.
    #[inline]
    pub fn is_available(&self) -> bool {
        !self.away.load(Relaxed)
    }

    /// Returns the pulse of calls that a program waits for.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Returns the number of calls since start that failed in a way that says something about the store.
    pub fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    /// Returns how often the store went away since start.
    pub fn absences(&self) -> u64 {
        self.absences.load(Relaxed)
    }

    /// Runs one call to the backing store.
    ///
    /// # Errors
    ///
    /// Those of the call; `Unavailable`, without making it, while the store is away.
    pub fn call<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _beat = self.pulse.begin();
        self.quietly(work)
    }

    /// Runs one call that no program waits for.
    ///
    /// # Errors
    ///
    /// As [`Health::call`].
    pub fn quietly<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.is_available() {
            return Err(Error::new(Kind::Unavailable, "the backing store is away"));
        }
        self.probe(work)
    }

    /// As [`Health::quietly`], unless `refused` returns an error once the call counts as begun: a thread
    /// that makes `refused` do so, and then sees no call in flight ([`Health::is_called`]), knows that no
    /// such call begins any more.
    ///
    /// # Errors
    ///
    /// As [`Health::call`], and the error of `refused`.
    pub fn quietly_unless<T>(
        &self,
        refused: impl Fn() -> Option<Error>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.quietly(|| {
            fence(SeqCst);
            refused().map_or_else(work, Err)
        })
    }

    /// Runs a call even while the store is away.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub fn probe<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        lock::calls_the_store();
        let in_flight = self.begin();
        let result = work();
        drop(in_flight);
        if let Err(error) = &result {
            self.note(error);
        }
        result
    }

    /// Notes the beginning of a call, mostly in the place that this thread used last.
    fn begin(&self) -> Option<InFlight<'_>> {
        thread_local! {
            static LAST: Cell<usize> = Cell::new(FIRST.fetch_add(1, Relaxed) as usize);
        }
        static FIRST: AtomicU64 = AtomicU64::new(0);
        let now = self.now();
        let from = LAST.get();
        let free = (from..from + WATCHED_MAX)
            .map(|at| at % WATCHED_MAX)
            .find(|at| self.calls[*at].compare_exchange(0, now, Relaxed, Relaxed).is_ok())?;
        LAST.set(free);
        Some(InFlight(&self.calls[free]))
    }

    fn now(&self) -> u64 {
        (self.time.since(self.epoch).as_nanos() as u64).max(1)
    }

    /// Returns how long the oldest call in flight has taken so far.
    fn oldest(&self) -> Option<Duration> {
        let began = self.calls.iter().map(|at| at.load(Relaxed)).filter(|at| *at > 0).min()?;
        Some(Duration::from_nanos(self.now().saturating_sub(began)))
    }

    /// Notes an error; one that means absence makes the store count as away.
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
        let mut last = self.last_error.lock();
        *last = Some((text.to_string(), self.time.now()));
    }

    fn went_away(&self, why: &str) {
        self.remember(why);
        if !self.away.swap(true, Relaxed) {
            self.absences.fetch_add(1, Relaxed);
            tracing::warn!(why, "the backing store is away; dirty bytes stay in the fast tier");
        }
    }

    /// Makes the store count as available again, after a probe was answered.
    pub fn came_back(&self) {
        if self.away.swap(false, Relaxed) {
            tracing::info!("the backing store is back");
        }
    }

    /// Declares the store away if a call has been in flight for longer than `limit`. Waits for no
    /// lock that a hanging call may hold.
    pub fn check_stalls(&self, limit: Duration) {
        if let Some(oldest) = self.oldest()
            && oldest > limit
            && self.is_available()
        {
            self.went_away(&format!("a call has not returned for {:.1} s", oldest.as_secs_f64()));
        }
    }

    /// Whether a call is in flight.
    pub fn is_called(&self) -> bool {
        fence(SeqCst);
        self.oldest().is_some()
    }

    /// Whether a call hangs right now.
    pub fn has_stalled_call(&self, limit: Duration) -> bool {
        self.oldest().is_some_and(|oldest| oldest > limit)
    }

    /// Returns the last of those errors as text, and how many seconds ago it was.
    pub fn last_error(&self) -> Option<(String, f64)> {
        let last = self.last_error.lock();
        last.as_ref().map(|(text, at)| (text.clone(), self.time.since(*at).as_secs_f64()))
    }
}
/// The place of a call in flight, which is free again when this is dropped, also by a panic in the call.
struct InFlight<'a>(&'a AtomicU64);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
}
