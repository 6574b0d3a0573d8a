//! What is kept of requests that go around the tier: streams, and files not synced since.

use std::collections::HashMap;

use forebay_backing::FileKey;

use crate::core::streams::Streams;
use forebay_base::lock::{Mutex, Rank};

/// Files with bytes written around the tier and not synced there, up to so many; beyond, any file
/// may be one.
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
    /// With the number of the last write.
    pub keys: HashMap<FileKey, u64>,
    pub last: u64,
    /// There were more: any file may be one.
    pub more: bool,
}
