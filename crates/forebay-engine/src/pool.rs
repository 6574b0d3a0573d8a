//! Threads that start when there is work and end when there is none.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

type Work = Box<dyn FnOnce() + Send>;

/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(10);

/// A queue of work and up to `max` threads for it. What is queued is run even if the last handle
/// goes away.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    threads: usize,
    idle: usize,
    max: usize,
}

impl Pool {
    pub fn new(name: &'static str, max: usize) -> Pool {
        let queue = Mutex::new(Queue { max, ..Queue::default() });
        Pool { shared: Arc::new(Shared { name, queue, wake: Condvar::new() }) }
    }

    pub fn set_max(&self, max: usize) {
        self.shared.queue.lock().expect("work runs outside the lock").max = max;
    }

    pub fn queued(&self) -> usize {
        self.shared.queue.lock().expect("work runs outside the lock").work.len()
    }

    /// If there is no thread and none can be made, the caller does the work, since somebody waits
    /// for it: no lock may be held.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(work) = self.enqueue(Box::new(work)) {
            work();
        }
    }

    /// For work that nobody waits for: it is left undone if there is no thread for it.
    pub fn offer(&self, work: impl FnOnce() + Send + 'static) {
        drop(self.enqueue(Box::new(work)));
    }

    /// Gives back what no thread will take.
    fn enqueue(&self, work: Work) -> Option<Work> {
        let mut queue = self.shared.queue.lock().expect("work runs outside the lock");
        queue.work.push_back(work);
        self.shared.wake.notify_one();
        // Who was woken for earlier work counts as idle until it runs.
        if queue.work.len() > queue.idle && queue.threads < queue.max.max(1) {
            queue.threads += 1;
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name(self.shared.name.into());
            let work = move || {
                run_anywhere();
                shared.work();
            };
            if thread.spawn(work).is_err() {
                queue.threads -= 1;
                return if queue.threads == 0 { queue.work.pop_back() } else { None };
            }
        }
        None
    }
}

/// Lets the calling thread run wherever the process may: a new thread inherits the processors of
/// the one that made it, and who takes requests over io_uring is bound to one.
pub fn run_anywhere() {
    // The first thread is never bound.
    let first = rustix::process::getpid();
    if let Ok(all) = rustix::thread::sched_getaffinity(Some(first)) {
        let _ = rustix::thread::sched_setaffinity(None, &all);
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.queue.lock().expect("work runs outside the lock");
        loop {
            if let Some(work) = queue.work.pop_front() {
                drop(queue);
                work();
                queue = self.queue.lock().expect("work runs outside the lock");
                continue;
            }
            queue.idle += 1;
            let (again, timeout) =
                self.wake.wait_timeout(queue, IDLE).expect("work runs outside the lock");
            queue = again;
            queue.idle -= 1;
            if timeout.timed_out() && queue.work.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work that is all given at once runs at once, although a single thread is idle.
    #[test]
    fn a_burst_does_not_wait_for_the_one_idle_thread() {
        const BURST: usize = 4;
        const LONG: Duration = Duration::from_secs(120);
        let pool = Pool::new("test", BURST);
        pool.run(|| {});
        while pool.shared.queue.lock().unwrap().idle == 0 {
            std::thread::yield_now();
        }
        let met = Arc::new((Mutex::new(0), Condvar::new()));
        for _ in 0..BURST {
            let met = met.clone();
            pool.run(move || {
                let mut here = met.0.lock().unwrap();
                *here += 1;
                met.1.notify_all();
                let all = met.1.wait_timeout_while(here, LONG, |here| *here < BURST);
                drop(all.unwrap());
            });
        }
        let here = met.0.lock().unwrap();
        let all = met.1.wait_timeout_while(here, LONG / 2, |here| *here < BURST).unwrap();
        assert_eq!(*all.0, BURST, "the others wait");
    }
}
