//! The state that requests around the tier need: streams, and files not synced since.

use std::collections::HashMap;

use forebay_backing::FileKey;

use crate::core::streams::Streams;
use forebay_base::lock::{Mutex, Rank};

/// The number of files with unsynced bytes written around the tier that are remembered; beyond it
/// any file may be one.
pub(crate) const UNSYNCED_MAX: usize = 65_536;

pub(crate) struct Around {
    pub reads: Mutex<Streams>,
    pub writes: Mutex<Streams>,
    pub unsynced: Mutex<Unsynced>,
}

impl Default for Around {
    fn default() -> Around {
        Around {
            reads: Mutex::new(Rank::Streams, Streams::default()),
            writes: Mutex::new(Rank::Streams, Streams::default()),
            unsynced: Mutex::new(Rank::Streams, Unsynced::default()),
        }
    }
}

#[derive(Default)]
pub(crate) struct Unsynced {
    /// The files, each with the number of its last write.
    pub keys: HashMap<FileKey, u64>,
    pub last: u64,
    /// Whether there were more files: any file may be one then.
    pub more: bool,
}
