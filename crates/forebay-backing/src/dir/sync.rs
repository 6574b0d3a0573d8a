//! Syncs of many files at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::magic::honours_syncfs;
use rustix::fs as sys;

use super::file::DirFile;
use crate::{BackingFile, Result};

/// One syncfs also writes the dirty bytes of other programs, so a few files are cheaper one by one.
const FEW: usize = 2;

/// Syncs all files, or returns the first error, which names its file.
pub fn files(files: &[Arc<dyn BackingFile>]) -> Result<()> {
    let mut groups: BTreeMap<(u32, u32), Vec<&DirFile>> = BTreeMap::new();
    for file in files {
        match file.as_any().and_then(|any| any.downcast_ref::<DirFile>()) {
            Some(ours) => groups.entry(ours.device()).or_default().push(ours),
            None => file.sync()?,
        }
    }
    groups.values().try_for_each(|group| sync_group(group))
}

fn sync_group(group: &[&DirFile]) -> Result<()> {
    match group.iter().min_by_key(|file| file.opened()) {
        Some(oldest) if group.len() > FEW && all_written(oldest) => oldest.sync(),
        _ => group.iter().try_for_each(|file| file.sync()),
    }
}

/// Whether one syncfs wrote the whole group out. If not, fsync of each file tells which one failed,
/// or that the error was in another program's file.
///
/// The kernel reports through a descriptor the write errors since that descriptor was opened, so
/// the group's oldest descriptor cannot miss an error of the others. It is fsynced too, which makes
/// the disk flush its cache even if the file system had nothing left to log.
fn all_written(oldest: &DirFile) -> bool {
    honours_syncfs(&oldest.fd()) && sys::syncfs(oldest.fd()).is_ok()
}
