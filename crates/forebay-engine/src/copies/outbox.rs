//! What our partners are told.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_backing::{Error, FileKey, Result};

use crate::files::Files;

/// Tells those who keep copies of our files what is new.
pub struct Outbox {
    files: Arc<Files>,
}

/// What partners do not have yet.
#[derive(Debug, Clone, Default)]
pub struct Behind {
    /// Dirty files of which partners have everything that was synced.
    pub copied_files: u64,
    pub copied_bytes: u64,
    /// The others.
    pub behind: Vec<BehindFile>,
}

#[derive(Debug, Clone)]
pub struct BehindFile {
    pub key: FileKey,
    pub path: PathBuf,
    /// Synced bytes that partners do not have, at most.
    pub bytes: u64,
}

impl Outbox {
    pub(crate) fn new(files: Arc<Files>) -> Outbox {
        Outbox { files }
    }

    /// Sends one partner all that is dirty and durable here, while the others are told as ever. The caller
    /// has [`Partners::keep`](crate::Partners::keep) hand words to this one, too, from before the call.
    /// At most so many bytes per second as [`Config`](crate::Config) says. `stop` is asked between files.
    ///
    /// # Errors
    ///
    /// The partner's; Interrupted if it is to stop.
    pub fn fill_partner(&self, partner: &str, stop: &dyn Fn() -> bool) -> Result<()> {
        let _ = (partner, stop, &self.files);
        Err(Error::os(libc::ENOSYS, "filling a partner"))
    }

    /// What partners do not have yet, for the status.
    pub fn behind(&self) -> Behind {
        Behind::default()
    }
}
