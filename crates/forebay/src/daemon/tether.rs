//! The tie between a daemon that has yet to mount and the command that started it: nobody waits for a mount
//! whose command has ended.

use std::io::PipeWriter;
use std::sync::Arc;

use forebay_backing::{Error, Kind};
use forebay_base::lock::{Mutex, Rank};
use forebay_engine::Made;
use rustix::event::{PollFd, PollFlags, poll};

use super::{OF_DAEMON, spawn};

/// What the end of the command ends.
pub struct Tether(Arc<Mutex<Tied>>);

struct Tied {
    /// Whether the process ends with the command.
    is_tied: bool,
    /// The new tier, which goes with the process.
    made: Option<Made>,
}

impl Default for Tether {
    fn default() -> Tether {
        let tied = Tied { is_tied: true, made: None };
        Tether(Arc::new(Mutex::new(Rank::DaemonNotes, tied)))
    }
}

impl Tether {
    /// Ends the process when nobody reads from the pipe any more, unless the tether is cut by then.
    pub fn tie(&self, pipe: PipeWriter) {
        let tied = self.0.clone();
        spawn("tether", move || {
            while poll(&mut [PollFd::new(&pipe, PollFlags::empty())], None).is_err() {}
            let mut tied = tied.lock();
            if tied.is_tied {
                let ended = Error::new(Kind::Interrupted, "the command that mounts has ended");
                let ended = Made::undo(tied.made.take(), ended, &OF_DAEMON);
                tracing::warn!("{ended}");
                std::process::exit(ended.exit_code().into());
            }
        });
    }

    pub fn hold(&self, made: Option<Made>) {
        self.0.lock().made = made;
    }

    /// The process lives on without the command: what it does next must not be left half done.
    pub fn cut(&self) {
        self.0.lock().is_tied = false;
    }

    /// Takes the new tier away again, if there is one, and returns `error`.
    #[must_use]
    pub fn undo(&self, error: Error) -> Error {
        Made::undo(self.0.lock().made.take(), error, &OF_DAEMON)
    }

    /// Returns the new tier, if there is one: it is in use.
    pub fn keep(&self) -> Option<Made> {
        self.0.lock().made.take()
    }
}
