//! Directories that only one user can pass and files that only one user can read, and that only root can change:
//! root owns them, and an access list admits the user. If the user owned them, the user could replace a directory at
//! which root will mount, and write lines that pass for root's.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use forebay_base::{Error, Kind, Result};
use rustix::fs::{self, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::records::Owner;

const ACCESS: &str = "system.posix_acl_access";

/// Makes the directory, or confirms an existing one, whatever its mode was.
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
    let (root, group) = (rustix::process::geteuid(), rustix::process::getegid());
    fs::fchown(&dir, Some(root), Some(group)).map_err(failed)?;
    fs::fchmod(&dir, Mode::RWXU).map_err(failed)?;
    match fs::fsetxattr(&dir, ACCESS, &list_for(owner.uid, PASS_AND_LIST), XattrFlags::empty()) {
        Err(Errno::NOTSUP) => Err(Error::new(
            Kind::Usage,
            format!(
                "{}: its file system keeps no access lists, which close it to others than its user: put \
                 it on one that does (`mount-root`, or `spool` of `[scheduler]`), such as a tmpfs, ext4 or XFS",
                at.display()
            ),
        )),
        done => done.map_err(failed),
    }
}

/// Opens a file for appending that its reader can read, and makes it anew if it was another reader's. Where the file
/// system keeps no access lists, only root can read it.
pub fn open_log(at: &Path, reader: Owner) -> io::Result<File> {
    // The directory is root's: there is no link to follow.
    let open = |options: &mut std::fs::OpenOptions| options.append(true).mode(0o600).open(at);
    match open(&mut File::options()) {
        Ok(file) if is_closed_for(&file, reader)? => return Ok(file),
        Ok(_) => std::fs::remove_file(at)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let file = open(File::options().create_new(true))?;
    match fs::fsetxattr(&file, ACCESS, &list_for(reader.uid, READ), XattrFlags::empty()) {
        Ok(()) | Err(Errno::NOTSUP) => Ok(file),
        Err(e) => Err(e.into()),
    }
}

fn is_closed_for(file: &File, reader: Owner) -> io::Result<bool> {
    let wanted = list_for(reader.uid, READ);
    let mut list = vec![0; wanted.len() + 1];
    let is_his = match fs::fgetxattr(file, ACCESS, &mut list) {
        Ok(len) => list[..len] == wanted,
        Err(Errno::NOTSUP) => true,
        Err(Errno::NODATA | Errno::RANGE) => false,
        Err(e) => return Err(e.into()),
    };
    Ok(is_his && file.metadata()?.uid() == rustix::process::geteuid().as_raw())
}

const READ: u16 = 4;
const PASS_AND_LIST: u16 = 5;

/// The format of linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry.
fn list_for(uid: u32, may: u16) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries = [
        (1u16, may | 2, NOBODY), // the owner, root
        (2, may, uid),           // this user
        (4, 0, NOBODY),          // the group
        (16, may, NOBODY),       // the most that others than owner and world get
        (32, 0, NOBODY),         // the world
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, may, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(may.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}
