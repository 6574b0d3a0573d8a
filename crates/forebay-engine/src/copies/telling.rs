//! Telling partners of a file beside what the caller does himself meanwhile.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::{Error, Result};

use crate::lock::{Condvar, Mutex, Rank};
use crate::pool::Pool;
use crate::time::Time;

/// Who waits for its end looks this often.
const WAIT_LOOK: Duration = Duration::from_millis(50);

/// Partners are being told of a file.
#[must_use]
pub(crate) struct Telling {
    tell: Arc<Tell>,
    shared: Arc<Shared>,
    time: Time,
}

type Tell = dyn Fn() -> Result<()> + Send + Sync;

struct Shared {
    step: Mutex<Step>,
    ended: Condvar,
}

enum Step {
    /// No thread has come for it: whoever needs its end first does it.
    Left,
    UnderWay,
    Ended(Option<Result<()>>),
}

impl Shared {
    /// `true` for one of those who ask.
    fn begins(&self) -> bool {
        let mut step = self.step.lock();
        let is_left = matches!(*step, Step::Left);
        if is_left {
            *step = Step::UnderWay;
        }
        is_left
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
        tell: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Telling {
        let tell: Arc<Tell> = Arc::new(tell);
        let step = Mutex::new(Rank::Partners, Step::Left);
        let shared = Arc::new(Shared { step, ended: Condvar::new() });
        let (work, it) = (tell.clone(), shared.clone());
        threads.leave(move || {
            if it.begins() {
                let at_work = AtWork(it);
                at_work.end(work());
            }
        });
        Telling { tell, shared, time: time.clone() }
    }

    /// Nobody is told any more when this returns: not at all if no thread has come for it.
    pub fn give_up(self) {
        if self.shared.begins() {
            return;
        }
        // What came of it is of no use.
        drop(self.wait());
    }

    /// As it returns.
    pub fn end(self) -> Result<()> {
        match self.shared.begins() {
            true => (self.tell)(),
            false => self.wait(),
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
