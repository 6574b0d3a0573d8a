//! Whether the drain is kept from the backing store.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use forebay_backing::{Error, Kind};

/// The number of suspensions that keep the drain from the backing store.
#[derive(Default)]
pub(crate) struct Suspended(AtomicU32);

impl Suspended {
    pub fn begin(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    pub fn end(&self) {
        self.0.fetch_sub(1, SeqCst);
    }

    pub fn stands(&self) -> bool {
        self.0.load(SeqCst) > 0
    }
}

/// The error of a flush during a suspension.
pub(crate) fn kept_away() -> Error {
    Error::new(
        Kind::Interrupted,
        "this member may not be the file's home any more: it writes nothing",
    )
}
