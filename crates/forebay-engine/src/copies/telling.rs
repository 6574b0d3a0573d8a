//! Telling partners of a file beside what the caller does himself meanwhile.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::{Error, Result};

use crate::pool::Pool;
use crate::time::Time;
use forebay_base::lock::{Condvar, Mutex, Rank};

/// Who waits for its end looks this often.
const WAIT_LOOK: Duration = Duration::from_millis(50);

/// Partners are being told of a file.
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
    /// No thread has come for it: whoever needs its end first takes it and does it. What it holds goes with it: a
    /// pool whose threads are all busy keeps no bytes of what is over.
    Left(Tell),
    UnderWay,
    Ended(Option<Result<()>>),
}

impl Shared {
    /// The work, for the first of those who ask.
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

/// A thread at work on it. Whatever becomes of that, the telling ends.
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
    /// What comes of `tell` is had from [`Telling::end`].
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

    /// Nobody is told any more when this returns: not at all if no thread has come for it.
    pub fn give_up(self) {
        if self.shared.take().is_some() {
            return;
        }
        // What came of it is of no use.
        drop(self.wait());
    }

    /// As it returns.
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

    /// The daemon would hold all that was ever synced while its threads wait for a slow partner.
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

    /// Who syncs a file would wait for ever.
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
