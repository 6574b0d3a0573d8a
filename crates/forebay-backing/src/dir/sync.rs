//! Making many files durable at once.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use rustix::fs as sys;

use super::attr::{magic, magic_of};
use super::devices::Device;
use super::file::DirFile;
use crate::{BackingFile, Result};

/// One syncfs also writes what others left dirty, so a few files are cheaper one by one.
const FEW: usize = 2;

/// Syncs all files, or gives the first error, which names its file.
pub fn files(files: &[Arc<dyn BackingFile>]) -> Result<()> {
    let mut groups: BTreeMap<Device, Vec<&DirFile>> = BTreeMap::new();
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

/// Whether one syncfs wrote the whole group out. If not, fsync of each file tells which one
/// failed, or that the error was a stranger's.
///
/// The kernel reports through a descriptor the write errors since that descriptor was opened, so
/// the group's oldest is the one that cannot miss an error of the others. It is fsynced too, which
/// makes the disk empty its own cache even if the file system had nothing left to log.
fn all_written(oldest: &DirFile) -> bool {
    let honoured = sys::fstatfs(oldest.fd()).is_ok_and(|s| honours_syncfs(magic_of(&s)));
    honoured && reports_errors() && sys::syncfs(oldest.fd()).is_ok()
}

fn honours_syncfs(magic: u32) -> bool {
    matches!(magic, magic::EXT | magic::XFS | magic::BTRFS | magic::F2FS | magic::TMPFS)
}

/// Before Linux 5.8 syncfs succeeded whatever had happened to the data.
fn reports_errors() -> bool {
    static NEW_ENOUGH: LazyLock<bool> = LazyLock::new(|| {
        let uname = rustix::system::uname();
        kernel_version(&uname.release().to_string_lossy()) >= (5, 8)
    });
    *NEW_ENOUGH
}

fn kernel_version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
