//! Telling partners of a file beside what the caller does himself meanwhile.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::Result;

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
                let told = work();
                *it.step.lock() = Step::Ended(Some(told));
                it.ended.notify_all();
            }
        });
        Telling { tell, shared, time: time.clone() }
    }

    /// As it returns.
    pub fn end(self) -> Result<()> {
        let Telling { tell, shared, time } = self;
        if shared.begins() {
            return tell();
        }
        let mut step = shared.step.lock();
        loop {
            if let Step::Ended(told) = &mut *step {
                return told.take().expect("it is asked once");
            }
            step = time.wait(&shared.ended, step, WAIT_LOOK).0;
        }
    }
}
