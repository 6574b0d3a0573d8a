//! A descriptor of /dev/fuse, and the calls over it.

use std::io::{self, IoSlice};
use std::iter;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::codec::{self, out_header};
use crate::vfs::{Notify, Registrar};

/// `struct fuse_backing_map` of `linux/fuse.h`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `_IOR(229, 0, __u32)`, `_IOW(229, 1, struct fuse_backing_map)` and `_IOW(229, 2, __u32)`.
const CLONE: libc::c_ulong = 0x8004_e500;
const BACKING_OPEN: libc::c_ulong = 0x4010_e501;
const BACKING_CLOSE: libc::c_ulong = 0x4004_e502;

pub struct Device(OwnedFd);

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Device {
    pub fn new(fd: OwnedFd) -> Device {
        Device(fd)
    }

    /// Opens a descriptor that belongs to no mount yet.
    pub fn open() -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(rustix::fs::open("/dev/fuse", flags, Mode::empty())?)
    }

    /// Another descriptor of the same session. Its readers do not wait for readers of this one.
    pub fn another(&self) -> io::Result<Device> {
        let fd = Device::open()?;
        let session = self.0.as_raw_fd() as u32;
        // SAFETY: the kernel reads four bytes, which outlive the call.
        match unsafe { libc::ioctl(fd.as_raw_fd(), CLONE, &raw const session) } {
            0.. => Ok(Device(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits for a request; `None` when the session is over.
    pub fn read(&self, message: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *message) {
                Ok(len) => return Ok(Some(len)),
                // A request that the kernel took back before it was read is no error.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Answers a request that was read here.
    pub fn answer(&self, unique: u64, result: Result<&[&[u8]], i32>) -> io::Result<()> {
        let len = |parts: &[&[u8]]| parts.iter().map(|part| part.len()).sum();
        let header = out_header(unique, result.map(len));
        let parts = result.unwrap_or_default().iter().copied();
        let parts: Vec<_> = iter::once(&header[..]).chain(parts).map(IoSlice::new).collect();
        // The kernel takes an answer whole or not at all.
        rustix::io::writev(&self.0, &parts)?;
        Ok(())
    }

    /// Asks for a NOTIFY_REPLY with the number `unique`. Returns whether there will be one.
    pub fn retrieve(&self, node: u64, unique: u64) -> bool {
        self.tell(&codec::retrieve(node, unique))
    }

    /// Sends a notification. Returns whether the kernel took it: it refuses unknown nodes.
    fn tell(&self, notification: &[u8]) -> bool {
        rustix::io::write(&self.0, notification).is_ok()
    }
}

impl Notify for Device {
    fn attributes(&self, id: u64) {
        // A negative offset leaves the pages alone.
        self.tell(&codec::inval_inode(id, -1, 0));
    }

    fn pages(&self, id: u64, offset: u64, len: u64) {
        self.tell(&codec::inval_inode(id, offset as i64, len as i64));
    }

    fn end(&self, id: u64, end: u64, last: u8) {
        self.tell(&codec::store(id, end - 1, &[last]));
    }
}

impl Registrar for Device {
    fn register(&self, shadow: BorrowedFd<'_>) -> io::Result<u32> {
        let map = BackingMap { fd: shadow.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the map outlives the call and has the layout that the kernel expects.
        let id = unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_OPEN, &raw const map) };
        if id < 0 { Err(io::Error::last_os_error()) } else { Ok(id as u32) }
    }

    fn release(&self, id: u32) {
        // SAFETY: the kernel reads four bytes.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_CLOSE, &raw const id) };
        if done < 0 {
            tracing::debug!(id, error = %io::Error::last_os_error(), "a shadow file stays registered");
        }
    }
}
