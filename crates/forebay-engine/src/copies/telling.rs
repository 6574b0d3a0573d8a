//! Telling partners of a file beside the caller's own work.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::{Error, Result};

use crate::pool::Pool;
use crate::time::Time;
use forebay_base::lock::{Condvar, Mutex, Rank};

/// How often a waiting caller checks whether the telling has ended.
const WAIT_LOOK: Duration = Duration::from_millis(50);

/// The telling of one file to partners.
#[must_use]
pub(crate) struct Telling {
    shared: Arc<Shared>,
    time: Time,
}

type Tell = Box<dyn FnOnce() -> Result<()> + Send>;

struct Shared {
    step: Mutex<Step>,
    ended: Condvar,
}

enum Step {
    /// No thread has begun the telling: a caller that needs its end first does it. The closure and its
    /// bytes go with it: a pool whose threads are all busy keeps no bytes of a telling that is over.
    Left(Tell),
    UnderWay,
    Ended(Option<Result<()>>),
}

impl Shared {
    /// Returns the work to the first caller.
    fn take(&self) -> Option<Tell> {
        let mut step = self.step.lock();
        match std::mem::replace(&mut *step, Step::UnderWay) {
            Step::Left(tell) => Some(tell),
            before => {
                *step = before;
                None
            }
        }
    }
}

/// A thread that does the telling. If the thread panics, the telling ends as well.
struct AtWork(Arc<Shared>);

impl AtWork {
    fn end(&self, told: Result<()>) {
        *self.0.step.lock() = Step::Ended(Some(told));
        self.0.ended.notify_all();
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end(Err(Error::os(libc::EIO, "partners were not told: a bug")));
        }
    }
}

impl Telling {
    /// Begins `tell` on another thread; [`Telling::end`] returns its result.
    pub fn begin(
        threads: &Pool,
        time: &Time,
        tell: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Telling {
        let step = Mutex::new(Rank::Partners, Step::Left(Box::new(tell)));
        let shared = Arc::new(Shared { step, ended: Condvar::new() });
        let it = shared.clone();
        threads.leave(move || {
            if let Some(tell) = it.take() {
                let at_work = AtWork(it);
                at_work.end(tell());
            }
        });
        Telling { shared, time: time.clone() }
    }

    /// Gives the telling up: on return no partner is being told any more, and if no thread had begun, none was.
    pub fn give_up(self) {
        if self.shared.take().is_some() {
            return;
        }
        // The result is not needed.
        drop(self.wait());
    }

    /// Waits for the end, and returns the result of `tell`.
    pub fn end(self) -> Result<()> {
        match self.shared.take() {
            Some(tell) => tell(),
            None => self.wait(),
        }
    }

    fn wait(self) -> Result<()> {
        let Telling { shared, time, .. } = self;
        let mut step = shared.step.lock();
        loop {
            if let Step::Ended(told) = &mut *step {
                return told.take().expect("it is asked once");
            }
            step = time.wait(&shared.ended, step, WAIT_LOOK).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this failed, the daemon would hold all synced bytes while its threads wait for a slow partner.
    #[test]
    fn what_is_over_holds_nothing_though_no_thread_came_for_it() {
        let time = Time::default();
        let threads = Pool::new("test", 1, time.clone());
        let (lets_go, waits) = std::sync::mpsc::channel::<()>();
        let (begins, begun) = std::sync::mpsc::channel::<()>();
        threads.leave(move || {
            let _ = begins.send(());
            let _ = waits.recv();
        });
        begun.recv().expect("the only thread is busy");
        let bytes = Arc::new([0; 64]);
        for n in 0..10 {
            let held = bytes.clone();
            let tell = move || {
                assert_eq!(held.len(), 64);
                Ok(())
            };
            let telling = Telling::begin(&threads, &time, tell);
            match n % 2 {
                0 => telling.end().expect("it is told by who waits"),
                _ => telling.give_up(),
            }
            assert_eq!(Arc::strong_count(&bytes), 1, "{n}");
        }
        drop(lets_go);
    }

    /// Without this a sync of the file would wait for ever.
    #[test]
    fn a_telling_that_a_bug_ends_has_failed() {
        let (time, (begins, begun)) = (Time::default(), std::sync::mpsc::channel::<()>());
        let threads = Pool::new("test", 1, time.clone());
        let telling = Telling::begin(&threads, &time, move || {
            let _ = begins.send(());
            panic!("a bug, as this test wants it")
        });
        begun.recv().expect("a thread comes for it");
        assert_eq!(telling.end().expect_err("nobody was told").errno(), libc::EIO);
    }
}
