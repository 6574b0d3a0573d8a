//! Whether the path of the backing store still leads to what the daemon has opened. The daemon reads and writes by
//! its descriptor, and a user looks for the bytes at the path.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_backing::{Error, Result};
use forebay_base::mounts::{self, Mount};
use rustix::fs::{Mode, OFlags};

use crate::mounts::tier_of;

/// The end of what the kernel tells as the path of something without one.
const DELETED: &[u8] = b" (deleted)";

/// The directory, file or device of a backing store, as it was opened.
pub struct Anchor {
    opened: OwnedFd,
    /// Where it was then, without links.
    path: PathBuf,
}

impl Anchor {
    pub fn drop_at(backing: &Path) -> Result<Anchor> {
        let failed = |e| Error::io(e, backing.display().to_string());
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened =
            rustix::fs::open(backing, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
        let path = fs::read_link(link(&opened)).map_err(failed)?;
        Ok(Anchor { opened, path })
    }

    /// Where the bytes are, if not at the path any more, and what to do. Asks the kernel alone: the store's file
    /// system may hang. The mount of `tier` may cover the path: it leads to the store.
    pub fn astray(&self, tier: &Path) -> Option<String> {
        let now = fs::read_link(link(&self.opened)).ok()?;
        let mut mounts = mounts::read().ok()?;
        mounts.retain(|mount| tier_of(mount) != Some(tier));
        let what = self.found(&now, self.mount()?, &mounts)?;
        let path = self.path.display();
        Some(format!(
            "{path} leads elsewhere now, or nowhere: the bytes are in what was mounted, {what}"
        ))
    }

    fn found(&self, now: &Path, id: u64, mounts: &[Mount]) -> Option<String> {
        let here = mounts::holding(mounts, &self.path).is_some_and(|mount| mount.id == id);
        let at = now.display();
        match (now == self.path, here) {
            (true, true) => None,
            _ if mounts.iter().all(|mount| mount.id != id) => Some(
                "whose file system is no longer mounted: unmount, mount that there again, and then this".into(),
            ),
            (false, _) if now.as_os_str().as_encoded_bytes().ends_with(DELETED) => Some(
                "which is deleted: `forebay umount --keep-dirty` and then `forebay recover TIER --to DIR` save what \
                 is dirty"
                    .into(),
            ),
            (false, _) => {
                Some(format!("which is {at} now: move it back, or unmount, and then mount {at}"))
            }
            (true, false) => Some("which another mount covers: take that away".into()),
        }
    }

    /// The number of the mount through which it was opened.
    fn mount(&self) -> Option<u64> {
        let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.opened.as_raw_fd()));
        let facts = facts.ok()?;
        facts.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
    }
}

fn link(opened: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", opened.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: &str = "/no/tier";

    #[test]
    fn a_store_that_stays_is_at_its_path_and_one_that_goes_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap().join("slow");
        fs::create_dir(&at).unwrap();
        let anchor = Anchor::drop_at(&at).unwrap();
        assert_eq!(anchor.astray(Path::new(NOBODY)), None);
        fs::rename(&at, dir.path().join("gone")).unwrap();
        fs::create_dir(&at).unwrap();
        let told = anchor.astray(Path::new(NOBODY)).unwrap();
        assert!(told.starts_with(at.to_str().unwrap()) && told.contains("/gone now"), "{told}");
        fs::remove_dir(dir.path().join("gone")).unwrap();
        let told = anchor.astray(Path::new(NOBODY)).unwrap();
        assert!(told.contains("which is deleted") && told.contains("recover"), "{told}");
    }

    #[test]
    fn a_mount_over_the_path_and_the_end_of_its_own_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let anchor = Anchor::drop_at(&at).unwrap();
        let own = anchor.mount().unwrap();
        let line = |id: u64, path: &Path| {
            format!("{id} 1 8:1 / {} rw - ext4 /dev/sda rw\n", path.display())
        };
        let found = |table: String| anchor.found(&at, own, &mounts::parse(table.as_bytes()));
        let below = line(own, Path::new("/"));
        assert_eq!(found(below.clone()), None);
        assert!(found(below + &line(own + 1, &at)).unwrap().contains("covers"));
        assert!(found(line(own + 1, Path::new("/"))).unwrap().contains("no longer mounted"));
    }
}
