//! Seals of files, as extended attributes.
//!
//! An attribute of an inode is durable when the journal has it. Where a commit of the journal has the device flush what it
//! took before (`mark::commits_in_order`), so is then all that the device had taken before the attribute was set.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use rustix::io::Errno;

use crate::core::seal::SEAL_BYTES;

/// Short, to find room in the inode.
const NAME: &str = "user.fb";

pub(super) fn seal(fd: BorrowedFd<'_>, seal: &[u8]) -> io::Result<()> {
    Ok(fsetxattr(fd, NAME, seal, XattrFlags::empty())?)
}

pub(super) fn seal_of(fd: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; 2 * SEAL_BYTES];
    match fgetxattr(fd, NAME, &mut bytes[..]) {
        Ok(len) => {
            bytes.truncate(len);
            Ok(Some(bytes))
        }
        // Another file system, or somebody else's attribute.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes what is in the page cache, and waits for the device to have it: for the extents, too, which the file system marks
/// as written before it lets the pages go.
pub(super) fn write_out(fd: BorrowedFd<'_>, end: u64) -> io::Result<()> {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: takes numbers alone.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, end as libc::off64_t, how) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
