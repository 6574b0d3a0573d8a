//! What time it is, and waiting for it to pass: the clock's, or a simulated one for tests.
//!
//! Whatever decides by time asks a [`Time`] that it was given: ages, patience, pauses, paces, ticks.
//! How long the fast tier itself takes is measured by the machine's clock; nothing waits for it.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_backing::Timestamp;

use crate::time::simulated::{Entered, Owed, Simulation};
use forebay_base::lock::{self, Condvar, Mutex, MutexGuard, Rank};

mod simulated;

/// A clock. Copies of it show the same time.
#[derive(Debug, Clone, Default)]
pub struct Time(Option<Arc<Simulation>>);

/// What is to be done before simulated time moves: by the thread that [begins](Part::begin) it.
#[derive(Debug)]
#[must_use]
pub struct Part(Option<Owed>);

/// A thread at work: simulated time stands until it waits for it, or is done.
#[derive(Debug)]
#[must_use]
pub struct AtWork {
    _entered: Option<Entered>,
}

impl Time {
    /// Time that moves only while the calling thread waits for it, with everybody else who takes part,
    /// and then at once to where the first of them wakes. It stands for good when the guard is gone.
    pub fn simulated() -> (Time, AtWork) {
        let simulation = Simulation::begin();
        let driver = Simulation::drive(&simulation);
        (Time(Some(simulation)), AtWork { _entered: Some(driver) })
    }

    pub fn is_simulated(&self) -> bool {
        self.0.is_some()
    }

    /// Never the same twice where it is simulated.
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(simulation) => simulation.now(),
        }
    }

    pub fn since(&self, then: Instant) -> Duration {
        self.now().saturating_duration_since(then)
    }

    fn of_day(&self) -> Duration {
        let now = match &self.0 {
            None => SystemTime::now(),
            Some(simulation) => simulation.of_day(),
        };
        now.duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    /// The time of day.
    pub fn stamp(&self) -> Timestamp {
        let now = self.of_day();
        Timestamp { sec: now.as_secs() as i64, nsec: now.subsec_nanos() }
    }

    /// The time of day, in milliseconds since the epoch; never 0.
    pub fn ms(&self) -> u64 {
        (self.of_day().as_millis() as u64).max(1)
    }

    pub fn sleep(&self, pause: Duration) {
        match &self.0 {
            None => lock::sleep(pause),
            Some(simulation) => {
                lock::sleeps();
                let (nobody, never) = (Mutex::new(Rank::Wake, ()), Condvar::new());
                let nobody = nobody.lock();
                drop(simulation.wait_while(&never, nobody, pause, |()| true));
            }
        }
    }

    /// Waits until somebody notifies, at most for `limit`. Also says whether the time has run out.
    pub fn wait<'a, T>(
        &self,
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        match &self.0 {
            None => condition.wait_timeout(guard, limit),
            Some(simulation) => simulation.wait(condition, guard, limit),
        }
    }

    /// Waits as long as `holds`, at most for `limit`. Also says whether the time has run out.
    pub fn wait_while<'a, T>(
        &self,
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        holds: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        match &self.0 {
            None => condition.wait_timeout_while(guard, limit, holds),
            Some(simulation) => simulation.wait_while(condition, guard, limit, holds),
        }
    }

    /// Something that another thread is about to do. Time stands until it is done.
    pub fn part(&self) -> Part {
        Part(self.0.as_ref().map(Simulation::owe))
    }

    /// Waits for a thread that takes part.
    pub fn join<T>(&self, thread: ScopedJoinHandle<'_, T>) -> std::thread::Result<T> {
        while self.is_simulated() && !thread.is_finished() {
            self.sleep(Duration::from_millis(1));
        }
        thread.join()
    }
}

impl Part {
    pub fn begin(self) -> AtWork {
        AtWork { _entered: self.0.map(Owed::enter) }
    }

    /// The calling thread is at work until it ends: simulated time does not move between its last
    /// deed and the moment that others see it ended.
    pub fn for_life(self) {
        thread_local! {
            static LIFE: RefCell<Option<AtWork>> = const { RefCell::new(None) };
        }
        if self.0.is_some() {
            LIFE.set(Some(self.begin()));
        }
    }
}

#[cfg(test)]
mod tests;
