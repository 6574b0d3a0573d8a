//! The files that may be flushed where the backing store is short of room.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_backing::{Error, Result, StatFs};

use crate::core::id::FileId;
use crate::drain::Drain;
use crate::drain::home_room::{BELIEVED, Room, Said};
use crate::files::file::File;

impl Drain {
    /// Returns the backing store's space, less the growth that the dirty files here will take.
    pub fn statfs(&self) -> Result<StatFs> {
        let said = self.names.ask(|b| b.statfs())?;
        let owed = self.owed_growth().div_ceil(u64::from(said.frsize).max(1));
        let less = |blocks: u64| blocks.saturating_sub(owed);
        Ok(StatFs { bfree: less(said.bfree), bavail: less(said.bavail), ..said })
    }

    /// Whether the backing store, as far as it can be asked, will have room for `bytes` more.
    pub(crate) fn has_room_at_home(&self, bytes: u64) -> bool {
        let said = self.names.ask(|b| b.statfs()).ok();
        let free = said.and_then(|said| self.free_of(&said));
        free.is_none_or(|free| free >= self.owed_growth().saturating_add(bytes))
    }

    /// Returns the part of the growth of dirty files that has not been copied.
    fn owed_growth(&self) -> u64 {
        let growth = self.files.totals().growth();
        growth.saturating_sub(self.unsettled.load(Relaxed))
    }

    /// Returns the bytes free for this user; `None` where the store does not tell.
    fn free_of(&self, said: &StatFs) -> Option<u64> {
        let blocks = if self.home.is_privileged() { said.bfree } else { said.bavail };
        (said.blocks > 0).then(|| blocks.saturating_mul(u64::from(said.frsize)))
    }

    /// Returns which of the dirty files may begin now. Asks the store only where the answer may matter.
    pub(crate) fn room_for_flights(self: &Arc<Self>) -> Room {
        let copied = self.files.landings().copied();
        let owed = self.owed_growth();
        let plenty = |said: Said| said.free / 2 > owed + copied.saturating_sub(said.copied);
        let said = *self.room.said.lock();
        if owed == 0 {
            return Room::Enough;
        }
        if said.is_some_and(|said| self.files.time().since(said.at) < BELIEVED && plenty(said)) {
            return Room::Enough;
        }
        let Some(free) = self.free_at_home() else { return Room::Enough };
        let said = Said { at: self.files.time().now(), free, copied };
        *self.room.said.lock() = Some(said);
        if free >= owed { Room::Enough } else { Room::Short(self.granted(free)) }
    }

    fn free_at_home(self: &Arc<Self>) -> Option<u64> {
        let drain = self.clone();
        let ask = move || drain.call_home(|| drain.home.backing().statfs()).ok();
        let limit = self.files.tune(|t| t.backing_timeout);
        let health = self.home.health();
        let said = self.errand(ask, || health.has_stalled_call(limit) || !health.is_available());
        said.flatten().and_then(|said| self.free_of(&said))
    }

    /// Returns the oldest files that fit whole (H1).
    fn granted(&self, mut free: u64) -> HashSet<FileId> {
        // The lock of the queue comes after a file's.
        let now = self.files.time().ms();
        let oldest_first = self.files.dirty().older(now, u64::MAX);
        let mut granted = HashSet::new();
        for file in oldest_first {
            let inner = file.lock();
            let growth = inner.growth();
            if growth <= free && !inner.state.conflict().stands() {
                free -= growth;
                granted.insert(file.id);
            }
        }
        granted
    }

    /// Notes that a file was not begun, so that the drain takes others meanwhile.
    pub(crate) fn no_room_for(&self, file: &File) -> Error {
        let mut inner = file.lock();
        let path = inner.state.display_path();
        let error = Error::os(
            libc::ENOSPC,
            format!("the backing store has no room for {} bytes more", inner.growth()),
        );
        crate::core::counters::add(&self.files.counters().flush_failures, 1);
        self.pause_after(&mut inner, &error);
        error.context(path.display())
    }
}
