//! Memory for the next write of a stream, allocated while the writer prepares that write.
//!
//! On a tier in memory half the cost of a write is the allocation of its pages. A thread that has
//! answered a large write to the end of a file reserves as much beyond it, so that the next write
//! finds the pages there. Unused pages go at the last close; after a crash they stay with the
//! shadow file, at most as much as the last write of each stream.

use std::sync::Arc;

use crate::files::file::File;
use crate::room::Room;

/// For smaller writes a reservation is as expensive as the allocation.
const WRITE_MIN: u64 = 256 << 10;

/// The size from which a file counts as a stream: most files end before.
const STREAM_MIN: u64 = 8 << 20;

/// Room in the tier that reservations leave free.
const ROOM_MIN: u64 = 64 << 20;

impl Room {
    /// Reserves room after a write of `len` bytes that ended at `end` was answered. Does nothing
    /// unless the tier is in memory.
    pub fn reserve_ahead(&self, file: &Arc<File>, end: u64, len: u64) {
        if len < WRITE_MIN || end < STREAM_MIN || !self.files.media().is_memory() {
            return;
        }
        if self.files.free_bytes() < ROOM_MIN {
            return;
        }
        let mut inner = file.lock();
        let is_here = inner.state.tracked().is_some_and(|ranges| ranges.covers(end - len, end));
        if inner.state.size() != end || !is_here {
            return;
        }
        if let Some(live) = inner.in_use_mut() {
            live.reserve(end, len);
        }
    }
}
