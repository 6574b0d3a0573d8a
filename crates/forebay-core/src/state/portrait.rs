//! The portrait of a file: the knowledge that a partner needs to take the file over.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use forebay_backing::{Timestamp, Version};
use serde::{Deserialize, Serialize};

use super::{Bytes, Conflict, FileState, Owner};
use crate::paths::Paths;
use crate::ranges::{Ranges, Run, State};

/// The knowledge that a partner needs to take a file over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portrait {
    /// Every known name, relative to the root, the most trusted first.
    pub paths: Vec<Vec<u8>>,
    pub owner: Owner,
    pub size: u64,
    pub mtime: Timestamp,
    pub base: Version,
    /// The ranges that are newer than the backing store. The store has the rest.
    pub ranges: Ranges,
    /// When the oldest of these bytes was written, in milliseconds since the epoch.
    pub since: u64,
    pub flush_open: bool,
    pub conflict: Conflict,
}

impl Portrait {
    pub fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.paths.iter().map(|path| OsString::from_vec(path.clone()).into())
    }

    /// The name to show.
    pub fn first_path(&self) -> PathBuf {
        self.paths().next().unwrap_or_else(|| "(unlinked)".into())
    }
}

impl FileState {
    /// The state of another member's file of which this partner has a copy: dirty here, as it was
    /// there, held, and not its own yet. `claim`: the number that the copy was made under.
    pub fn taken(paths: Paths, portrait: &Portrait, claim: u64) -> FileState {
        FileState {
            paths,
            owner: portrait.owner,
            size: portrait.size,
            mtime: portrait.mtime,
            base: portrait.base,
            setting: None,
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
            held: Some(claim),
        }
    }

    /// The portrait of the file now; `size` and `mtime` are those that programs see.
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
            // A partner of this member takes the file over from it.
            conflict: match self.conflict {
                Conflict::Adopted => Conflict::None,
                conflict => conflict,
            },
        }
    }
}
