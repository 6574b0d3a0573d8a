//! Waiting on a word of shared memory, across processes.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Sleeps while `word` holds `value`, at most `timeout`; returns early for a wake or a signal.
pub fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let time = libc::timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: `word` is a live aligned u32; the timeout is read during the call only.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time);
    }
}

/// Wakes all waiters on `word`.
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: `word` is a live aligned u32.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// A reusable barrier that can be broken; zeros are a fresh one.
#[repr(C)]
#[derive(Default)]
pub struct Barrier {
    arrived: AtomicU32,
    generation: AtomicU32,
    broken: AtomicU32,
}

/// The error of a broken barrier: a task it waits for will never come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

impl Barrier {
    /// Returns when `parties` have called it. The last to arrive runs `last` before any other goes on.
    pub fn wait(&self, parties: u32, last: impl FnOnce()) -> Result<(), Broken> {
        let generation = self.generation.load(SeqCst);
        if self.broken.load(SeqCst) != 0 {
            return Err(Broken);
        }
        if self.arrived.fetch_add(1, SeqCst) + 1 == parties {
            last();
            // Reset before the release: a task that leaves may come back at once for the next round.
            self.arrived.store(0, SeqCst);
            self.generation.fetch_add(1, SeqCst);
            wake_all(&self.generation);
            return Ok(());
        }
        while self.generation.load(SeqCst) == generation {
            if self.broken.load(SeqCst) != 0 {
                return Err(Broken);
            }
            // A bounded sleep: a wake lost to a dying process must not hang the run.
            wait(&self.generation, generation, Duration::from_secs(1));
        }
        Ok(())
    }

    /// Makes all present and later waiters fail with [`Broken`].
    pub fn shatter(&self) {
        self.broken.store(1, SeqCst);
        wake_all(&self.generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Each of many rounds must see all arrivals of the round before.
    #[test]
    fn nobody_passes_before_all_have_come() {
        let (barrier, sum) = (Barrier::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 1..=200 {
                        sum.fetch_add(1, SeqCst);
                        barrier.wait(4, || assert_eq!(sum.load(SeqCst), 4 * round)).unwrap();
                    }
                });
            }
        });
        assert_eq!(sum.load(SeqCst), 800);
    }

    #[test]
    fn a_broken_barrier_lets_go() {
        let barrier = Barrier::default();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| barrier.wait(2, || ()));
            barrier.shatter();
            assert_eq!(waiter.join().unwrap(), Err(Broken));
        });
    }
}
