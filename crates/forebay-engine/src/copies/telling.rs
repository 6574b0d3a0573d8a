//! Telling partners of a file beside what the caller does himself meanwhile.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::Result;

use crate::copies::outbox::Outbox;
use crate::files::file::File;
use crate::lock::{Condvar, Mutex, Rank};

/// Who waits for its end looks this often.
const WAIT_LOOK: Duration = Duration::from_millis(50);

/// Partners are being told of a file.
#[must_use]
pub(crate) struct Telling {
    outbox: Arc<Outbox>,
    file: Arc<File>,
    shared: Arc<Shared>,
}

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
    /// What comes of [`Outbox::tell`] is had from [`Telling::end`].
    pub fn begin(outbox: &Arc<Outbox>, file: &Arc<File>) -> Telling {
        let step = Mutex::new(Rank::Partners, Step::Left);
        let shared = Arc::new(Shared { step, ended: Condvar::new() });
        let (mine, at, it) = (outbox.clone(), file.clone(), shared.clone());
        outbox.threads().leave(move || {
            if it.begins() {
                let told = mine.tell(&at);
                *it.step.lock() = Step::Ended(Some(told));
                it.ended.notify_all();
            }
        });
        Telling { outbox: outbox.clone(), file: file.clone(), shared }
    }

    /// As [`Outbox::tell`] returns.
    pub fn end(self) -> Result<()> {
        let Telling { outbox, file, shared } = self;
        if shared.begins() {
            return outbox.tell(&file);
        }
        let mut step = shared.step.lock();
        loop {
            if let Step::Ended(told) = &mut *step {
                return told.take().expect("it is asked once");
            }
            step = outbox.time().wait(&shared.ended, step, WAIT_LOOK).0;
        }
    }
}
