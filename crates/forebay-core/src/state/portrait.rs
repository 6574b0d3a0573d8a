//! A file as a partner has to know it to make it its own.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use forebay_backing::{Timestamp, Version};
use serde::{Deserialize, Serialize};

use super::{Bytes, Conflict, FileState, Owner};
use crate::paths::Paths;
use crate::ranges::{Ranges, Run, State};

/// What a partner has to know of a file to make it its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portrait {
    /// Every known name, relative to the root, the most trusted first.
    pub paths: Vec<Vec<u8>>,
    pub owner: Owner,
    pub size: u64,
    pub mtime: Timestamp,
    pub base: Version,
    /// What is newer than the backing store. The rest is there.
    pub ranges: Ranges,
    /// When the oldest of it was written, in milliseconds since the epoch.
    pub since: u64,
    pub flush_open: bool,
    pub conflict: Conflict,
}

impl Portrait {
    pub fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.paths.iter().map(|path| OsString::from_vec(path.clone()).into())
    }

    /// The one to show.
    pub fn first_path(&self) -> PathBuf {
        self.paths().next().unwrap_or_else(|| "(unlinked)".into())
    }
}

impl FileState {
    /// A file of another member of which a partner has this copy: dirty here, as it was there,
    /// held, and not ours yet. `claim`: the number that it was made under.
    pub fn taken(paths: Paths, portrait: &Portrait, claim: u64) -> FileState {
        FileState {
            paths,
            owner: portrait.owner,
            size: portrait.size,
            mtime: portrait.mtime,
            base: portrait.base,
            bytes: Bytes::Tracked(portrait.ranges.clone()),
            durable_size: Some(portrait.size).into(),
            dirty_since: portrait.since.max(1),
            meta_dirty: true,
            flush_open: portrait.flush_open,
            pinned: false,
            unsynced: false,
            conflict: match portrait.conflict {
                Conflict::None => Conflict::Adopted,
                stands => stands,
            },
            held: true,
            claim,
        }
    }

    /// What a partner has to know of it now; `size` and `mtime` are what programs see.
    pub fn portrait(&self, size: u64, mtime: Timestamp) -> Portrait {
        let runs = self.owed_of(0, size).into_iter();
        let runs = runs.map(|(start, end)| Run { start, end, state: State::Durable });
        Portrait {
            paths: self.paths.iter().map(|path| path.into_os_string().into_vec()).collect(),
            owner: self.owner,
            size,
            mtime,
            base: self.base,
            ranges: Ranges::from_runs(runs),
            since: self.dirty_since,
            flush_open: self.flush_open,
            // A partner of ours takes it over from us.
            conflict: match self.conflict {
                Conflict::Adopted => Conflict::None,
                conflict => conflict,
            },
        }
    }
}
