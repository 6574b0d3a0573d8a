//! A file that is written past the daemon, and the hold of its writers where the kernel does not ask them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::FileKey;

use crate::core::held::{Hold, Seen, Step};
use crate::core::id::FileId;
use crate::files::file::File;
use crate::tier::media::MediaFile;

/// Holds up the programs that write a file past the daemon.
pub trait WriterHolds: Send + Sync {
    /// Whether holds are known to work.
    fn work(&self) -> bool;
    /// Asks for a hold, and does not wait for it; `None` if there can be none now.
    fn hold(&self, key: FileKey) -> Option<Box<dyn WriterHold>>;
}

/// A hold of one file; given back when it is dropped, which is not to be done under a lock of lists.
pub trait WriterHold: Send + Sync {
    /// Takes no lock.
    fn stage(&self) -> Stage;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    UnderWay,
    /// From now on no program writes to the file past the daemon, but through a mapping.
    InForce,
    Failed,
}

pub(super) struct Watched {
    pub file: Arc<File>,
    pub shadow: Arc<dyn MediaFile>,
    /// The bytes that counted at the last look.
    charged: u64,
    /// When these bytes were last seen to have grown.
    grew: Option<Instant>,
    held: Option<Held>,
}

/// A hold, with the times of a [`Hold`].
pub(super) struct Held {
    hold: Box<dyn WriterHold>,
    since: Instant,
    came: Option<Instant>,
}

/// A step that was begun.
pub(super) struct Begun {
    pub id: FileId,
    /// How long the file was held, if a hold is over.
    pub lasted: Option<Duration>,
    over: Option<Held>,
    wanted: Option<(FileKey, Instant)>,
}

impl Begun {
    /// Gives the old hold back, and asks for a new one if it is wanted: a file has one at a time.
    pub fn finish(self, by: &dyn WriterHolds) -> Option<Held> {
        drop(self.over);
        let (key, since) = self.wanted?;
        by.hold(key).map(|hold| Held { hold, since, came: None })
    }
}

impl Watched {
    pub fn new(file: Arc<File>, shadow: Arc<dyn MediaFile>) -> Watched {
        Watched { file, shadow, charged: 0, grew: None, held: None }
    }

    pub fn let_go(&mut self) -> Option<Held> {
        self.held.take()
    }

    /// Notes the bytes that count now, if they are known, and how far the hold is.
    pub fn look(&mut self, charged: Option<u64>, now: Instant) -> Seen {
        let before = self.charged;
        self.charged = charged.unwrap_or(before);
        if self.charged > before {
            self.grew = Some(now);
        }
        if let Some(held) = &mut self.held
            && held.hold.stage() == Stage::InForce
        {
            held.came.get_or_insert(now);
        }
        // A file whose hold has failed is held again when it grows.
        let held = self.held.as_ref().filter(|held| held.hold.stage() != Stage::Failed);
        let hold = held.map(|held| Hold { since: held.since, came: held.came });
        Seen { id: self.file.id.0, grew: self.grew, hold }
    }

    /// Begins the step that was decided; the rest is done without a lock.
    pub fn begin(&mut self, step: Step, now: Instant) -> Option<Begun> {
        if step == Step::Stay {
            return None;
        }
        let since = self.held.as_ref().map_or(now, |held| held.since);
        let (lasted, over) = (self.lasted(now), self.held.take());
        let wanted = (step != Step::LetGo).then_some((self.file.key, since));
        Some(Begun { id: self.file.id, lasted, over, wanted })
    }

    pub fn be_held(&mut self, held: Held) {
        self.held = Some(held);
    }

    /// How long the file has been held, if it is.
    pub fn lasted(&self, now: Instant) -> Option<Duration> {
        let held = self.held.as_ref().filter(|held| held.hold.stage() == Stage::InForce)?;
        Some(held.came.map_or(Duration::ZERO, |came| now - came))
    }
}
