//! Facts about a file that other mounts of the same store need.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{FileKey, Version};

use crate::Files;
use crate::core::state::Conflict;
use crate::file::File;
use crate::live::Live;

impl Files {
    /// Whether another mount may have newer bytes of the file from now on: no byte is dirty here or
    /// being flushed, no program writes the file past the daemon, and after a loss of power no byte is
    /// flushed again. The front-end knows whether a program has it open for writing through the daemon.
    pub fn is_at_rest(&self, key: FileKey) -> bool {
        // The records that make the file rest are durable, too: a tier that comes back without them
        // would take its own bytes for newer than those that others have written since.
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

    /// Called when others have written the file: earlier answers of the store do not count, and the
    /// next open asks.
    pub fn doubt(&self, key: FileKey) {
        let Some(file) = self.find(key) else { return };
        let mut inner = file.lock();
        inner.forget_seen();
        if let Some(live) = &mut inner.live {
            live.mine().checked = None;
        }
    }

    /// Whether the known state of a file is based on this version of the store's.
    pub fn is_based_on(&self, key: FileKey, version: &Version) -> bool {
        self.find(key).is_some_and(|file| file.lock().state.base() == *version)
    }

    /// Returns the known files at or below a path.
    pub fn known_below(&self, path: &Path) -> Vec<FileKey> {
        self.select(&[path.to_path_buf()]).iter().map(|file| file.key).collect()
    }

    /// Returns the files with bytes that the store lacks, or may lose again, with a path of each
    /// file that has one.
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
