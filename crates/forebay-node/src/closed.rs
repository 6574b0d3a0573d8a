//! Directories that only one user can pass, and nobody but root can change: root owns them, and an
//! access list lets the user in. If they were his, he could put something else where root will mount.

use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use forebay_base::{Error, Kind, Result};
use rustix::fs::{self, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::records::Owner;

const ACCESS: &str = "system.posix_acl_access";

/// Makes it, or confirms one that is there, whatever its mode was.
pub fn make(at: &Path, owner: Owner) -> Result<()> {
    let failed = |e: Errno| Error::io(e.into(), at.display().to_string());
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(at.parent().unwrap_or(Path::new("/")))
        .map_err(|e| Error::io(e, at.display().to_string()))?;
    match fs::mkdir(at, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(failed(e)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir: OwnedFd = fs::open(at, flags, Mode::empty()).map_err(failed)?;
    let (root, group) = (rustix::process::Uid::ROOT, rustix::process::Gid::ROOT);
    fs::fchown(&dir, Some(root), Some(group)).map_err(failed)?;
    fs::fchmod(&dir, Mode::RWXU).map_err(failed)?;
    match fs::fsetxattr(&dir, ACCESS, &list_for(owner.uid), XattrFlags::empty()) {
        Err(Errno::NOTSUP) => Err(Error::new(
            Kind::Usage,
            format!(
                "{}: its file system keeps no access lists, which close a user's cache to others: put \
                 `mount-root` on one that does, such as a tmpfs, ext4 or XFS",
                at.display()
            ),
        )),
        done => done.map_err(failed),
    }
}

/// As linux/posix_acl_xattr.h has it: a version, then tag, permissions and id of each entry.
fn list_for(uid: u32) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    const PASS_AND_LIST: u16 = 5;
    let entries = [
        (1u16, 7u16, NOBODY),        // the owner, root
        (2, PASS_AND_LIST, uid),     // this user
        (4, 0, NOBODY),              // the group
        (16, PASS_AND_LIST, NOBODY), // the most that others than owner and world get
        (32, 0, NOBODY),             // the world
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, may, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(may.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}
