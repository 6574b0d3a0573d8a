//! Short looks at files for threads that must answer though others hang: the watchdog, the status, the keeper.

use std::time::{Duration, Instant};

use crate::file::{File, Inner};
use crate::time::Time;
use forebay_base::lock::{Mutex, MutexGuard};

/// How long one glance waits for files at work, all of them together: a write to the tier holds its
/// file for less.
const PATIENCE: Duration = Duration::from_millis(200);

/// The time between two tries.
const RETRY: Duration = Duration::from_micros(200);

/// Takes locks one after the other, and gives up on those that stay held.
#[derive(Debug)]
pub struct Glance {
    time: Time,
    until: Option<Instant>,
}

impl Glance {
    /// Begins a glance, with one patience for any number of files.
    pub fn new(time: &Time) -> Glance {
        Glance { time: time.clone(), until: None }
    }

    /// Locks the file, unless another thread goes on holding it.
    pub fn at<'a>(&mut self, file: &'a File) -> Option<MutexGuard<'a, Inner>> {
        self.lock(&file.inner)
    }

    /// Locks `mutex`, unless another thread goes on holding it.
    pub fn lock<'a, T>(&mut self, mutex: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        loop {
            if let Some(guard) = mutex.try_lock() {
                return Some(guard);
            }
            let now = self.time.now();
            if now >= *self.until.get_or_insert(now + PATIENCE) {
                return None;
            }
            self.time.sleep(RETRY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::lock::Rank;

    // S-10
    #[test]
    fn all_who_are_busy_together_cost_one_patience() {
        let locks: Vec<Mutex<u32>> = (0..1000).map(|n| Mutex::new(Rank::Tree, n)).collect();
        let held = locks.iter().step_by(2).map(|lock| lock.try_lock().expect("it is free"));
        let held: Vec<_> = held.collect();
        let mut glance = Glance::new(&Time::default());
        let began = Instant::now();
        let seen = locks.iter().filter(|lock| glance.lock(lock).is_some()).count();
        assert!(began.elapsed() >= PATIENCE, "it tries for a while");
        assert_eq!(seen, locks.len() - held.len());
        drop(held);
        assert!(locks.iter().all(|lock| glance.lock(lock).is_some()));
    }
}
