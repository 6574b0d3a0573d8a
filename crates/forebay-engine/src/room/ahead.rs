//! Memory for what a stream of writes brings next, found while the writer makes it.
//!
//! On a tier in memory half of what a write costs is to find pages for it. Who has answered a large
//! write to the end of a file reserves as much beyond it, so that the next finds them there. What
//! is left over goes at the last close; a crash leaves it with the shadow file, at most as much as
//! the last write of each stream.

use std::sync::Arc;

use crate::files::file::File;
use crate::room::Room;

/// Of smaller writes the pages are found as fast as they are reserved.
const WRITE_MIN: u64 = 256 << 10;

/// A file is a stream from here on: most end before.
const STREAM_MIN: u64 = 8 << 20;

/// Nothing is reserved of the last so many bytes of the tier.
const ROOM_MIN: u64 = 64 << 20;

impl Room {
    /// To be called after a write of `len` bytes that ended at `end` was answered. Does nothing but
    /// on a tier in memory.
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
