//! Closes the files of the backing store, each of which may hang in its close as in any other call.
//!
//! The reaper is a [`Layer`] around the store. A file that the engine drops, under whatever locks,
//! goes to a few threads that close it under the patience of every call ([`Health`]).
//!
//! Invariants:
//! - R1: a thread that drops a file never waits for the store.
//! - R2: a close that hangs holds up no other, while fewer than [`AT_ONCE`] hang.
//! - R3: at most as many files as there are descriptors for ([`room_to_close`]), and those opened
//!   meanwhile, wait to be closed: beyond that an open waits too, and is refused when the store
//!   counts as away.
//! - R4: an open that finds no descriptor left waits while files wait to be closed, and tries
//!   again: a flush that holds many files open is not refused because of files that are done with.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::wrap::{Call, Done, Layer, Parting, Verb};
use forebay_backing::{Error, Kind, Result, room_to_close};

use crate::health::Health;
use crate::pool::Pool;
use crate::time::Time;
use forebay_base::lock::{Condvar, Mutex, Rank};

/// Closes under way at once: a network file system answers this many in the time of one.
const AT_ONCE: usize = 16;

/// Files that are dropped within this time of each other are closed together: a thread is woken
/// once in this time, and not for each file that a program makes.
const GATHER: Duration = Duration::from_millis(1);

/// How often a waiting open checks whether the store counts as away.
const LOOK: Duration = Duration::from_millis(20);

/// Closes files that are dropped, on threads of its own.
pub struct Reaper {
    time: Time,
    health: Arc<Health>,
    pool: Pool,
    waiting: Arc<Waiting>,
    waiting_max: usize,
}

/// The number of files that are not closed yet.
struct Waiting {
    count: Mutex<usize>,
    fewer: Condvar,
}

/// One file that is not closed yet.
struct Closing(Arc<Waiting>);

impl Closing {
    fn begin(waiting: &Arc<Waiting>) -> Closing {
        *waiting.count.lock() += 1;
        Closing(waiting.clone())
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.fewer.notify_all();
    }
}

impl Reaper {
    /// Creates a reaper whose calls report to `health`.
    pub fn new(health: Arc<Health>, time: Time) -> Reaper {
        let pool = Pool::gathering("fb-close", AT_ONCE, time.clone(), GATHER);
        let waiting = Waiting { count: Mutex::new(Rank::Home, 0), fewer: Condvar::new() };
        Reaper { time, health, pool, waiting: Arc::new(waiting), waiting_max: room_to_close() }
    }

    /// Starts threads for files that were dropped when no thread could be started.
    pub fn tend(&self) {
        self.pool.tend();
    }

    /// Waits until all dropped files are closed, at most for `limit`.
    pub fn rest(&self, limit: Duration) {
        self.pool.hurry();
        let count = self.waiting.count.lock();
        drop(self.time.wait_while(&self.waiting.fewer, count, limit, |count| *count > 0));
    }

    /// Waits for room (R3). The caller's call counts as begun, so a long wait makes the store count as away.
    fn wait_for_room(&self) -> Result<()> {
        let began = self.time.now();
        let mut count = self.waiting.count.lock();
        while *count >= self.waiting_max {
            if !self.health.is_available() {
                let what = format!("{} files of the backing store wait to be closed", *count);
                return Err(Error::new(Kind::Unavailable, what));
            }
            self.pool.hurry();
            count = self.time.wait(&self.waiting.fewer, count, LOOK).0;
        }
        drop(count);
        let waited = self.time.since(began);
        if waited > Duration::from_secs(1) {
            tracing::debug!(?waited, "the backing store is slow to close files");
        }
        Ok(())
    }

    fn are_waiting(&self) -> usize {
        *self.waiting.count.lock()
    }

    /// Waits a short time for a close (R4). Returns whether another try is worth it, for a caller
    /// that saw `before` files waiting at its last try.
    fn wait_for_a_close(&self, before: usize) -> bool {
        let count = self.waiting.count.lock();
        if *count == 0 || !self.health.is_available() {
            // The last file may have been closed since.
            return before > 0 && *count == 0;
        }
        self.pool.hurry();
        drop(self.time.wait(&self.waiting.fewer, count, LOOK));
        true
    }
}

impl Layer for Reaper {
    const PASSES_FD: bool = true;

    fn before(&self, call: &Call<'_>) -> Result<()> {
        match call.verb {
            Verb::Open | Verb::Create => self.wait_for_room(),
            _ => Ok(()),
        }
    }

    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        self.before(call)?;
        loop {
            let before = self.are_waiting();
            let done = run();
            let is_refused = done.as_ref().is_err_and(|e| e.is(libc::EMFILE));
            if !is_refused || call.verb != Verb::Open || !self.wait_for_a_close(before) {
                return done;
            }
        }
    }

    fn part(&self, close: Parting) {
        let (closing, health) = (Closing::begin(&self.waiting), self.health.clone());
        self.pool.leave(move || {
            // Closed while the store is away, too: this call may be what the store's return is waited for with.
            if let Err(error) = health.probe(close) {
                tracing::debug!(%error, "closing a file of the backing store");
            }
            drop(closing);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    #[cfg(debug_assertions)]
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::{Mutex, mpsc};

    use super::*;
    #[cfg(debug_assertions)]
    use forebay_threads::explored::{explore, spawn};

    const LONG: Duration = Duration::from_secs(120);

    fn reaper() -> Reaper {
        Reaper::new(Arc::new(Health::new(Time::default())), Time::default())
    }

    /// Gives the reaper `count` files whose close lasts until the sender is dropped.
    fn hang(reaper: &Reaper, count: usize) -> mpsc::Sender<()> {
        let (go, wait) = mpsc::channel();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..count {
            let wait = wait.clone();
            reaper.part(Box::new(move || {
                let _ = wait.lock().unwrap().recv();
                Ok(())
            }));
        }
        go
    }

    fn open(reaper: &Reaper) -> Result<()> {
        let call = Call { verb: Verb::Open, paths: &[Path::new("f")], offset: 0, len: 0 };
        reaper.before(&call)
    }
    /// R3: without the notification at the end of a close ([`Closing`]'s drop) an open would wait
    /// for the next look.
    #[cfg(debug_assertions)]
    #[test]
    fn an_open_waits_for_a_close_and_no_longer_under_any_schedule() {
        explore(|| {
            let time = Time::default();
            let mut reaper = Reaper::new(Arc::new(Health::new(time.clone())), time);
            reaper.waiting_max = 1;
            let reaper = Arc::new(reaper);
            let closed = Arc::new(AtomicBool::new(false));
            let mine = closed.clone();
            reaper.part(Box::new(move || {
                mine.store(true, Relaxed);
                Ok(())
            }));
            let other = reaper.clone();
            let opening = spawn(move || open(&other).map(|()| closed.load(Relaxed)));
            assert!(opening.join().unwrap().expect("the store is there"), "it went past the bound");
        });
    }

    // S-10
    #[test]
    fn a_close_that_hangs_holds_up_no_other() {
        let reaper = reaper();
        let go = hang(&reaper, AT_ONCE - 1);
        let (done, closed) = mpsc::channel();
        for n in 0..100 {
            let done = done.clone();
            reaper.part(Box::new(move || {
                done.send(n).unwrap();
                Err(Error::os(libc::EIO, "what the store says at a close"))
            }));
        }
        for _ in 0..100 {
            closed.recv_timeout(LONG).expect("it is closed meanwhile");
        }
        reaper.rest(Duration::from_millis(1));
        assert_eq!(*reaper.waiting.count.lock(), AT_ONCE - 1);
        assert_eq!(reaper.health.errors(), 100);
        drop(go);
        reaper.rest(LONG);
        assert_eq!(*reaper.waiting.count.lock(), 0);
    }

    // S-10
    #[test]
    fn at_the_bound_an_open_waits_until_the_store_counts_as_away() {
        let reaper = reaper();
        let go = hang(&reaper, reaper.waiting_max - 1);
        open(&reaper).expect("there is room for one");
        reaper.part(Box::new(|| Ok(())));
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| open(&reaper));
            std::thread::sleep(3 * LOOK);
            assert!(!opening.is_finished(), "it waits");
            reaper.health.check_stalls(Duration::ZERO);
            let refused = opening.join().unwrap().unwrap_err();
            assert_eq!(refused.kind(), Kind::Unavailable);
        });
        drop(go);
        reaper.rest(LONG);
        open(&reaper).expect("there is room");
    }

    // S-10
    #[test]
    fn an_open_without_a_free_descriptor_waits_for_a_close() {
        let reaper = reaper();
        let tries = std::cell::Cell::new(0);
        let call = Call { verb: Verb::Open, paths: &[Path::new("f")], offset: 0, len: 0 };
        let refused = || Err(Error::os(libc::EMFILE, "open f"));
        let none: Result<Done<()>> = reaper.around(&call, || {
            tries.set(tries.get() + 1);
            refused()
        });
        assert!(none.is_err_and(|e| e.is(libc::EMFILE)) && tries.get() == 1, "nobody closes one");
        let go = Mutex::new(Some(hang(&reaper, 1)));
        let opened = reaper.around(&call, || {
            tries.set(tries.get() + 1);
            match reaper.are_waiting() {
                0 => Ok(Done { value: (), bytes: 0 }),
                _ if tries.get() < 5 => refused(),
                _ => {
                    drop(go.lock().unwrap().take());
                    refused()
                }
            }
        });
        assert!(opened.is_ok() && tries.get() > 5, "{} tries", tries.get());
        // A store that is away closes no file.
        let _go = hang(&reaper, 1);
        while reaper.health.is_available() {
            std::thread::yield_now();
            reaper.health.check_stalls(Duration::ZERO);
        }
        let away: Result<Done<()>> = reaper.around(&call, refused);
        assert!(away.is_err());
    }
}
