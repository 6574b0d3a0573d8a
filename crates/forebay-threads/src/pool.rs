//! Threads that start when there is work and end when there is none.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::time::{Part, Time};
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};

type Work = Box<dyn FnOnce() + Send>;

/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(2);

/// This much work is taken at once, and not left to be gathered.
const GATHERED: usize = 32;

/// A queue of work and up to `max` threads for it. Queued work is run even if the last handle to the pool
/// is dropped.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    time: Time,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// How long a thread that has emptied the queue lets new work gather.
    gather: Duration,
    gathered: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    /// The parts of threads that come for some of the work. Work that has to wait for a thread does not
    /// hold time up.
    parts: Vec<Part>,
    threads: usize,
    idle: usize,
    /// The number of threads that are doing a piece of work.
    busy: usize,
    /// A thread takes all the work once the time to gather is over.
    gathering: bool,
    max: usize,
    /// No more work is taken.
    closed: bool,
    /// The machine refuses more threads.
    #[cfg(test)]
    refused: bool,
}

impl Pool {
    pub fn new(name: &'static str, max: usize, time: Time) -> Pool {
        Pool::gathering(name, max, time, Duration::ZERO)
    }

    /// A pool for many small pieces of work that no caller waits for: work that comes within `gather` is
    /// done together, so a thread is woken once for all of it and not for each piece. A slow piece holds
    /// up no other.
    pub fn gathering(name: &'static str, max: usize, time: Time, gather: Duration) -> Pool {
        let queue = Mutex::new(Rank::Pool, Queue { max, ..Queue::default() });
        let gather = if time.is_simulated() { Duration::ZERO } else { gather };
        let (wake, gathered) = (Condvar::new(), Condvar::new());
        Pool { shared: Arc::new(Shared { name, time, queue, wake, gather, gathered }) }
    }

    /// Says that a caller now waits for the work being gathered.
    pub fn hurry(&self) {
        self.shared.gathered.notify_one();
    }

    pub fn set_max(&self, max: usize) {
        self.shared.queue.lock().max = max;
    }

    pub fn queued(&self) -> usize {
        self.shared.queue.lock().work.len()
    }

    /// Runs work that a caller waits for. If there is no thread and none can be made, the caller does the
    /// work, and must hold no lock. Work that this work gives to the pool is run after it, not within it.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(mut queue) = self.enqueue(Box::new(work)) {
            queue.threads += 1;
            self.shared.work(queue, Duration::ZERO);
        }
    }

    /// Runs work that no caller waits for: without a thread for it, it is dropped.
    pub fn offer(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(mut queue) = self.enqueue(Box::new(work)) {
            let undone = queue.work.pop_back();
            drop(queue);
            drop(undone); // Dropping the work may need locks of its own.
        }
    }

    /// Queues work that no caller waits for; the caller may hold locks. Without a thread for it, the work
    /// stays until a caller [tends](Pool::tend) the pool.
    pub fn leave(&self, work: impl FnOnce() + Send + 'static) {
        let _ = self.enqueue(Box::new(work));
    }

    /// Queues work. Returns the queue if no thread will take the work.
    fn enqueue(&self, work: Work) -> Option<MutexGuard<'_, Queue>> {
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            drop(queue);
            drop(work); // Dropping the work may need locks of its own.
            return None;
        }
        queue.work.push_back(work);
        if queue.gathering {
            let much = queue.work.len() == GATHERED;
            drop(queue);
            if much {
                self.hurry();
            }
            return None;
        }
        if queue.work.len() <= queue.idle || queue.threads < queue.max.max(1) {
            queue.parts.push(self.shared.time.part());
        }
        self.shared.staff(&mut queue);
        if queue.threads == 0 {
            return Some(queue);
        }
        // The woken thread needs the lock.
        drop(queue);
        self.shared.wake.notify_one();
        None
    }

    /// Ends the threads once the queued work is done. From here on work is dropped, and not run.
    pub fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_all();
    }

    /// Makes a thread for work that was left when none could be made.
    pub fn tend(&self) {
        let mut queue = self.shared.queue.lock();
        self.shared.staff(&mut queue);
    }
}

/// What a thread of a pool has done last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Woken,
    Gathered,
    AtWork,
}

impl Shared {
    fn gathers(&self) -> bool {
        self.gather > Duration::ZERO
    }

    /// Makes one more thread if there is work for it and the machine allows it.
    fn staff(self: &Arc<Shared>, queue: &mut Queue) {
        let is_short = match self.gathers() {
            // One thread besides those at work takes all of it.
            true => !queue.work.is_empty() && queue.threads == queue.busy,
            // A thread that was woken for earlier work counts as idle until it runs.
            false => queue.work.len() > queue.idle,
        };
        if is_short {
            self.add_thread(queue);
        }
    }

    fn add_thread(self: &Arc<Shared>, queue: &mut Queue) {
        if queue.threads >= queue.max.max(1) {
            return;
        }
        let shared = self.clone();
        let thread = std::thread::Builder::new().name(self.name.into());
        let work = move || {
            run_anywhere();
            shared.work(shared.queue.lock(), IDLE);
        };
        #[cfg(all(any(test, feature = "explored"), debug_assertions))]
        if crate::explored::task().is_some() {
            drop(crate::explored::spawn(work));
            queue.threads += 1;
            return;
        }
        #[cfg(test)]
        let thread = if queue.refused { thread.stack_size(1 << 60) } else { thread };
        queue.threads += usize::from(thread.spawn(work).is_ok());
    }

    /// Called by a thread that takes the first piece of gathered work: another thread gathers meanwhile,
    /// and so takes the rest if a piece turns out to be slow.
    fn share(self: &Arc<Shared>, queue: &mut Queue) {
        self.staff(queue);
        self.wake.notify_one();
    }

    /// Lets new work gather for a while. Callers that give work meanwhile wake no thread.
    fn gather<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.gathering = true;
        queue = self.time.wait(&self.gathered, queue, self.gather).0;
        queue.gathering = false;
        queue
    }

    /// Runs work; ends after a time without work, or when there are too many threads. `threads` includes
    /// the caller.
    fn work<'a>(self: &'a Arc<Shared>, mut queue: MutexGuard<'a, Queue>, patience: Duration) {
        let mut at_work = None;
        let gathers = self.gathers();
        let mut turn = Turn::Woken;
        loop {
            if queue.threads > queue.max.max(1) {
                queue.threads -= 1;
                // This thread may have been woken for work that is still queued.
                self.wake.notify_one();
                return;
            }
            // The thread at work may be about to do the rest as well.
            let looks_on = gathers && turn == Turn::Woken && queue.busy > 0;
            if looks_on && !queue.gathering && !queue.work.is_empty() {
                queue = self.gather(queue);
                turn = Turn::Gathered;
                continue;
            }
            if !looks_on && let Some(work) = queue.work.pop_front() {
                let part = queue.parts.pop();
                queue.busy += 1;
                if gathers && turn != Turn::AtWork && !queue.work.is_empty() {
                    self.share(&mut queue);
                }
                drop(queue);
                turn = Turn::AtWork;
                if at_work.is_none() {
                    at_work = Some(part.unwrap_or_else(|| self.time.part()).begin());
                }
                let missed = Missed(self);
                work();
                drop(missed);
                queue = self.queue.lock();
                queue.busy -= 1;
                continue;
            }
            queue.parts.clear();
            at_work = None;
            if gathers && turn == Turn::AtWork && !queue.gathering {
                queue = self.gather(queue);
                turn = Turn::Gathered;
                continue;
            }
            if queue.closed {
                queue.threads -= 1;
                return;
            }
            turn = Turn::Woken;
            queue.idle += 1;
            let timed_out;
            (queue, timed_out) = self.time.wait(&self.wake, queue, patience);
            queue.idle -= 1;
            if timed_out && queue.work.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

/// Replaces a thread that a bug in its work has ended: it is not counted any more, and another thread
/// comes for the rest.
struct Missed<'a>(&'a Arc<Shared>);

impl Drop for Missed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The queue has lists and counts, none of which a panic leaves half changed.
            let mut queue = self.0.queue.lock_anyway();
            queue.threads -= 1;
            queue.busy -= 1;
            self.0.staff(&mut queue);
        }
    }
}

/// Lets the calling thread run wherever the process may: a new thread inherits the processors of the
/// thread that made it, and a thread that takes requests over io_uring is bound to one.
pub fn run_anywhere() {
    // The first thread is never bound.
    let first = rustix::process::getpid();
    if let Ok(all) = rustix::thread::sched_getaffinity(Some(first)) {
        let _ = rustix::thread::sched_setaffinity(None, &all);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;
    #[cfg(debug_assertions)]
    use crate::explored::{explore, spawn, wait_until};

    const LONG: Duration = Duration::from_secs(120);

    /// Otherwise a bug in one file's flush would leave no thread to flush the other files.
    #[test]
    fn a_thread_that_a_bug_has_ended_is_replaced() {
        let pool = Pool::new("test", 1, Time::default());
        let (goes_on, waits) = std::sync::mpsc::channel::<()>();
        let (tells, told) = std::sync::mpsc::channel();
        pool.run(move || {
            let _ = waits.recv();
            panic!("a bug, as this test wants it");
        });
        for number in 0..2 {
            let tells = tells.clone();
            pool.run(move || _ = tells.send(number));
        }
        drop(goes_on);
        let come = [told.recv_timeout(LONG), told.recv_timeout(LONG)];
        assert_eq!(come, [Ok(0), Ok(1)]);
    }

    /// Otherwise a member that has left would go on as long as its threads.
    #[test]
    fn a_closed_pool_does_what_is_queued_and_takes_no_more() {
        let pool = Pool::new("test", 1, Time::default());
        let (goes_on, waits) = std::sync::mpsc::channel::<()>();
        let (tells, told) = std::sync::mpsc::channel();
        pool.run(move || _ = waits.recv());
        let queued = tells.clone();
        pool.leave(move || _ = queued.send("queued"));
        pool.close();
        pool.leave(move || _ = tells.send("late"));
        drop(goes_on);
        assert_eq!(told.iter().collect::<Vec<_>>(), ["queued"]);
        let began = std::time::Instant::now();
        while pool.shared.queue.lock().threads > 0 {
            assert!(began.elapsed() < IDLE, "an idle thread ends at once");
            std::thread::yield_now();
        }
    }

    /// Work that is all given at once runs at once, although a single thread is idle.
    #[test]
    fn a_burst_does_not_wait_for_the_one_idle_thread() {
        const BURST: usize = 4;
        let pool = Pool::new("test", BURST, Time::default());
        pool.run(|| {});
        while pool.shared.queue.lock().idle == 0 {
            std::thread::yield_now();
        }
        let met = Arc::new((Mutex::new(Rank::Pool, 0), Condvar::new()));
        for _ in 0..BURST {
            let met = met.clone();
            pool.run(move || {
                let mut here = met.0.lock();
                *here += 1;
                met.1.notify_all();
                let all = met.1.wait_timeout_while(here, LONG, |here| *here < BURST);
                drop(all);
            });
        }
        let here = met.0.lock();
        let all = met.1.wait_timeout_while(here, LONG / 2, |here| *here < BURST);
        assert_eq!(*all.0, BURST, "the others wait");
    }

    /// The thread that ends because there are too many may be the one that was woken for work: without
    /// its `notify_one` ([`Shared::work`]) the work stays while another thread sleeps.
    #[cfg(debug_assertions)]
    #[test]
    fn work_given_when_threads_become_too_many_is_done_under_any_schedule() {
        explore(|| {
            let pool = Pool::new("test", 2, Time::default());
            let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            for _ in 0..2 {
                let begun = begun.clone();
                pool.run(move || {
                    begun.fetch_add(1, Relaxed);
                    wait_until(|| begun.load(Relaxed) == 2);
                });
            }
            wait_until(|| pool.shared.queue.lock().idle == 2);
            let fewer = pool.clone();
            let setting = spawn(move || fewer.set_max(1));
            let mine = done.clone();
            pool.leave(move || mine.store(1, Relaxed));
            wait_until(|| done.load(Relaxed) == 1);
            setting.join().unwrap();
        });
    }

    /// Otherwise work that gives the pool more work would run it within itself, and so on.
    #[test]
    fn without_threads_work_is_done_in_a_row() {
        fn again(pool: &Pool, left: usize, done: &Arc<AtomicUsize>) {
            let (next, done) = (pool.clone(), done.clone());
            pool.run(move || {
                done.fetch_add(1, Relaxed);
                if left > 1 {
                    again(&next, left - 1, &done);
                }
            });
        }
        let pool = Pool::new("test", 4, Time::default());
        pool.shared.queue.lock().refused = true;
        let done = Arc::new(AtomicUsize::new(0));
        again(&pool, 200_000, &done);
        assert_eq!(done.load(Relaxed), 200_000);
        pool.offer(|| panic!("nobody has time for it"));
        let queue = pool.shared.queue.lock();
        assert_eq!((queue.threads, queue.idle, queue.work.len()), (0, 0, 0));
    }

    /// A caller may wait for the offered work: dropping the work tells it, under a lock of its own.
    #[test]
    fn an_offer_without_a_thread_is_dropped_without_the_lock() {
        struct Tells(Arc<Mutex<u32>>);
        impl Drop for Tells {
            fn drop(&mut self) {
                *self.0.lock() += 1;
            }
        }
        let pool = Pool::new("test", 4, Time::default());
        pool.shared.queue.lock().refused = true;
        let told = Arc::new(Mutex::new(Rank::Fetched, 0));
        let tells = Tells(told.clone());
        pool.offer(move || drop(tells));
        assert_eq!(*told.lock(), 1);
    }

    #[test]
    fn what_was_left_without_a_thread_is_done_when_there_can_be_one() {
        let pool = Pool::new("test", 4, Time::default());
        pool.shared.queue.lock().refused = true;
        let (tell, told) = std::sync::mpsc::channel();
        for n in 0..3 {
            let tell = tell.clone();
            pool.leave(move || tell.send(n).unwrap());
        }
        pool.tend();
        assert_eq!(pool.queued(), 3);
        pool.shared.queue.lock().refused = false;
        pool.tend();
        assert_eq!(told.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
    }

    /// Otherwise each piece of work that was gathered wakes a thread of its own.
    #[test]
    fn gathered_work_takes_two_threads_while_no_piece_is_slow() {
        let pool = Pool::gathering("test", 16, Time::default(), Duration::from_millis(100));
        let by = Arc::new(Mutex::new(Rank::Pool, Vec::new()));
        for round in 1..=10 {
            for _ in 0..GATHERED - 1 {
                let by = by.clone();
                pool.leave(move || by.lock().push(std::thread::current().id()));
            }
            while by.lock().len() < round * (GATHERED - 1) {
                std::thread::yield_now();
            }
        }
        let threads: std::collections::HashSet<_> = by.lock().drain(..).collect();
        assert!(threads.len() <= 2, "{} threads", threads.len());
    }

    #[test]
    fn a_lower_maximum_holds_for_threads_that_are_there() {
        let pool = Pool::new("test", 4, Time::default());
        let (tell, told) = std::sync::mpsc::channel();
        let at_work = Arc::new(AtomicUsize::new(0));
        let give = |pause: u64| {
            let (tell, at_work) = (tell.clone(), at_work.clone());
            pool.run(move || {
                let together = at_work.fetch_add(1, Relaxed) + 1;
                std::thread::sleep(Duration::from_millis(pause));
                at_work.fetch_sub(1, Relaxed);
                tell.send(together).unwrap();
            });
        };
        (0..4).for_each(|_| give(300));
        let most = told.iter().take(4).max();
        assert!(most > Some(1), "several at once: {most:?}");
        pool.set_max(1);
        (0..8).for_each(|_| give(5));
        assert_eq!(told.iter().take(8).max(), Some(1));
    }
}
