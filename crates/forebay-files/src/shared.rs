//! What of a file concerns other mounts of the same store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{FileKey, Version};

use crate::Files;
use crate::core::state::Conflict;
use crate::file::File;
use crate::live::Live;

impl Files {
    /// Whether another mount may have newer bytes of the file from now on: nothing of it is dirty here or
    /// on its way home, nobody writes it past us, and after a loss of power nothing of it is flushed
    /// again. Who has it open for writing through the daemon is for the front-end to know.
    pub fn is_at_rest(&self, key: FileKey) -> bool {
        // What makes it rest is durable, too: a tier that comes back without that record would take what it
        // has for newer than what others have written since.
        let is_durable = || self.note_tier(self.index.sync()).is_ok();
        let Some(file) = self.find(key) else { return is_durable() };
        let mut inner = file.lock();
        let state = &inner.state;
        let dirty =
            state.is_dirty() || state.is_unseen() || state.flush_is_open() || state.is_held();
        let rests = |live: &Live| {
            let still = live.flight.is_none() && live.copied.is_none();
            still && live.unseen.is_none() && !live.around.is_under_way()
        };
        let rests = inner.live.as_deref().is_none_or(rests);
        if dirty || state.conflict().stands() || !rests || inner.clock.is_under_way() {
            return false;
        }
        self.let_go(&file, &mut inner).is_ok() && is_durable()
    }

    /// Others have written the file: what the store said of it before does not count, and the next open
    /// asks.
    pub fn doubt(&self, key: FileKey) {
        let Some(file) = self.find(key) else { return };
        let mut inner = file.lock();
        inner.forget_seen();
        if let Some(live) = &mut inner.live {
            live.mine().checked = None;
        }
    }

    /// Whether what is known of a file is based on this version of the store's.
    pub fn is_based_on(&self, key: FileKey, version: &Version) -> bool {
        self.find(key).is_some_and(|file| file.lock().state.base() == *version)
    }

    /// Files that are known at or below a path.
    pub fn known_below(&self, path: &Path) -> Vec<FileKey> {
        self.select(&[path.to_path_buf()]).iter().map(|file| file.key).collect()
    }

    /// Files of which bytes are here that the store has not, or may lose again, with a path of each that has one.
    pub fn unsettled(&self) -> Vec<(FileKey, PathBuf)> {
        let files = self.all_files();
        let unsettled = |file: &Arc<File>| {
            let inner = file.lock();
            let state = &inner.state;
            let newer = state.is_dirty()
                || state.is_unseen()
                || state.flush_is_open()
                || state.is_held()
                || state.keeps_within(0, u64::MAX);
            let newer = newer && state.conflict() != Conflict::Superseded;
            newer.then(|| Some((file.key, state.paths.first()?))).flatten()
        };
        files.iter().filter_map(unsettled).collect()
    }
}
