//! Seals of files, as extended attributes.
//!
//! An attribute of an inode is durable once the journal has it. Where a commit of the journal makes the device
//! flush first (`mark::commits_in_order`), all bytes that the device had taken before the attribute was set are
//! durable then, too.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use rustix::io::Errno;

use crate::core::seal::SEAL_BYTES;

/// The name is short, to fit into the inode.
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
        // Another file system, or another program's attribute.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes the page cache, and waits until the device has the bytes, and so the extents, which the file system
/// marks as written before it releases the pages.
pub(super) fn write_out(fd: BorrowedFd<'_>, end: u64) -> io::Result<()> {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes numbers alone.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, end as libc::off64_t, how) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
