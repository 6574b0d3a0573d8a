//! Threads for work that may wait: commits, peers, flushes. As many as there is work at once, up to a
//! bound; a thread that is idle for ten seconds ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};

type Work = Box<dyn FnOnce() + Send>;

const IDLE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    threads: usize,
    idle: usize,
    closed: bool,
}

#[derive(Clone)]
pub struct Hands {
    max: usize,
    shared: Arc<(Mutex<Queue>, Condvar)>,
}

impl Hands {
    /// At most `max` threads at once. Each waits for a registry, a peer or a flush: they cost memory and no
    /// processor.
    pub fn new(max: usize) -> Hands {
        let queue = Mutex::new(Rank::Hands, Queue::default());
        Hands { max, shared: Arc::new((queue, Condvar::new())) }
    }

    #[track_caller]
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.shared.0.lock()
    }

    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        let mut queue = self.queue();
        if queue.closed {
            return;
        }
        queue.work.push_back(Box::new(work));
        self.staff(queue);
    }

    /// Makes sure that a thread takes the queued work.
    fn staff(&self, mut queue: MutexGuard<'_, Queue>) {
        if queue.idle >= queue.work.len() || queue.threads >= self.max {
            drop(queue);
            self.shared.1.notify_one();
            return;
        }
        queue.threads += 1;
        drop(queue);
        let hands = self.clone();
        if Builder::new().name("fb-member".into()).spawn(move || hands.work()).is_err() {
            // The work is left to the existing threads; without any it waits for the next call.
            self.queue().threads -= 1;
        }
    }

    fn work(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(work) = queue.work.pop_front() {
                drop(queue);
                let missed = Missed(self);
                work();
                drop(missed);
                queue = self.queue();
                continue;
            }
            if queue.closed {
                break;
            }
            queue.idle += 1;
            let timed_out;
            (queue, timed_out) = self.shared.1.wait_timeout(queue, IDLE);
            queue.idle -= 1;
            if timed_out && queue.work.is_empty() {
                break;
            }
        }
        queue.threads -= 1;
    }

    /// Queued work is still done; no more is taken.
    pub fn close(&self) {
        self.queue().closed = true;
        self.shared.1.notify_all();
    }
}

/// Replaces a thread that a panic in its work has ended: it no longer counts, and another thread takes the
/// remaining work.
struct Missed<'a>(&'a Hands);

impl Drop for Missed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A list and two counts, none of which a panic leaves half changed.
            let mut queue = self.0.shared.0.lock_anyway();
            queue.threads -= 1;
            self.0.staff(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(120);

    /// Without this a panic in one commit would leave no thread for the others.
    #[test]
    fn a_thread_that_a_bug_has_ended_is_replaced() {
        let hands = Hands::new(1);
        let (goes_on, waits) = std::sync::mpsc::channel::<()>();
        let (tells, told) = std::sync::mpsc::channel();
        hands.run(move || {
            let _ = waits.recv();
            panic!("a bug, as this test wants it");
        });
        for number in 0..2 {
            let tells = tells.clone();
            hands.run(move || _ = tells.send(number));
        }
        drop(goes_on);
        let come = [told.recv_timeout(LONG), told.recv_timeout(LONG)];
        assert_eq!(come, [Ok(0), Ok(1)]);
    }
}
