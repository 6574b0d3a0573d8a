//! The time, and waiting for it to pass: on the system's clock, or on a simulated one for tests.
//!
//! Code that decides by time asks a [`Time`] that it was given: ages, patience, pauses, paces, ticks.
//! The latency of the fast tier itself is measured by the machine's clock; nothing waits for it.

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

/// A piece of work to be done before simulated time moves, by the thread that [begins](Part::begin)
/// it.
#[derive(Debug)]
#[must_use]
pub struct Part(Option<Owed>);

/// A thread at work: simulated time stands until the thread waits for it, or is done.
#[derive(Debug)]
#[must_use]
pub struct AtWork {
    _entered: Option<Entered>,
}

impl Time {
    /// Time that moves only while the calling thread and all other participants wait for it, and then
    /// at once to the first wake-up. It stands for good once the guard is dropped.
    pub fn simulated() -> (Time, AtWork) {
        let simulation = Simulation::begin();
        let driver = Simulation::drive(&simulation);
        (Time(Some(simulation)), AtWork { _entered: Some(driver) })
    }

    pub fn is_simulated(&self) -> bool {
        self.0.is_some()
    }

    /// The present moment; simulated time never returns the same one twice.
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

    /// Waits for a notification, at most for `limit`. Also says whether the time has run out.
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

    /// Waits as long as `holds` holds, at most for `limit`. Also says whether the time has run out.
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

    /// A piece of work that another thread is about to do. Simulated time stands until it is done.
    pub fn part(&self) -> Part {
        Part(self.0.as_ref().map(Simulation::owe))
    }

    /// Waits for the end of a thread that takes part in simulated time.
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

    /// Keeps the calling thread at work until it ends: simulated time does not move between its last
    /// action and the moment that other threads see its end.
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
