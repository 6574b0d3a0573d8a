//! Copies: other members' newer bytes that this mount keeps, and the files of a member that dies.

use std::time::{Duration, Instant};

use forebay_backing::{Error, FileKey, Kind, Result};
use forebay_base::lock::{Mutex, Rank};
use forebay_cluster::core::Ends;
use forebay_engine::Suspension;

use super::Vfs;

/// How long one look waits for calls to the store to end.
const IDLE_LOOK: Duration = Duration::from_secs(5);

/// How long a request waits for the partner that takes a dead home's place: until the home's lease has run out (10 s),
/// and for as long as the partner needs then.
const SUCCESSION: Duration = Duration::from_secs(25);

/// The time that the last question to a silent home takes at most.
const ASKED: Duration = Duration::from_secs(5);

/// How often a waiting request looks for the successor.
const SUCCESSION_LOOK: Duration = Duration::from_millis(200);

/// The time for which a request waits until another member takes a silent home's place.
pub struct Succession(Instant);

impl Default for Succession {
    fn default() -> Succession {
        Succession(Instant::now() + SUCCESSION)
    }
}

/// Present while no dirty bytes may be brought home.
pub struct Suspended(Mutex<Option<Suspension>>);

impl Default for Suspended {
    fn default() -> Suspended {
        Suspended(Mutex::new(Rank::Suspended, None))
    }
}

/// Whether this error says that the asked home did not answer, or could not answer for its files.
pub fn is_silence(error: &Error) -> bool {
    matches!(error.kind(), Kind::Unavailable | Kind::TimedOut) || error.is(libc::ETIMEDOUT)
}

impl Vfs {
    /// Waits while this mount may not serve: a partner may be taking its place.
    pub(super) fn wait_fit(&self) -> Result<()> {
        self.cluster().map_or(Ok(()), |cluster| cluster.wait_fit())
    }

    /// Called after a question to a home has failed. Waits a moment and returns `true` if the home is silent or cut
    /// off, and another member may take its place. That member would meet any other error of the home, too.
    pub(super) fn awaits_heir(&self, succession: &Succession, home: &str, error: &Error) -> bool {
        let awaits = is_silence(error)
            && Instant::now() < succession.0
            && self.cluster().is_some_and(|cluster| cluster.has_heirs(home));
        if awaits {
            forebay_base::lock::sleep(SUCCESSION_LOOK);
        }
        awaits
    }

    /// How long a request may wait for other members.
    pub fn waits_for_members(&self) -> Duration {
        if self.has_members() { SUCCESSION + ASKED } else { Duration::ZERO }
    }

    /// Whether this mount may serve at this moment.
    pub(super) fn is_fit(&self) -> bool {
        self.cluster().is_none_or(|cluster| cluster.is_fit())
    }

    pub fn drop_copies(&self, home: &str) {
        if let Err(error) = self.engine.copies.drop_home(home) {
            tracing::warn!(%error, home, "copies that are of no use any more were not dropped");
        }
    }

    pub fn disown(&self, file: FileKey) -> Result<()> {
        self.engine.ops.disown(file)?;
        // No claim was given back: changes that the file's present home acknowledged stand.
        self.forget_file(file, &Ends::default());
        Ok(())
    }

    pub fn suspend(&self, is_suspended: bool) {
        let mut suspended = self.suspended.0.lock();
        match is_suspended {
            true => drop(suspended.get_or_insert_with(|| self.engine.drain.suspend())),
            false => drop(suspended.take()),
        }
    }

    /// Waits up to 5 s until no call to the store is under way. Returns whether none is.
    pub fn is_idle(&self) -> bool {
        self.engine.drain.idle(IDLE_LOOK)
    }
}
