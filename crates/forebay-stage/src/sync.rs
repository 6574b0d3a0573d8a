//! How files become durable at a destination.
//!
//! One `syncfs` makes a whole batch durable for the price of one, where the file system is known to
//! honor it: FUSE does not hand it to its daemon, and what is not in the list may not either, so
//! there every file and directory is synced alone.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs;
use rustix::io::Errno;

/// Magic numbers from the kernel's `linux/magic.h` and the file systems' own headers: ext4, xfs,
/// btrfs, tmpfs, f2fs, bcachefs, nfs, overlayfs, lustre, zfs.
const HONEST: [u64; 10] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0xf2f5_2010,
    0xca45_1a4e,
    0x6969,
    0x794c_7630,
    0x0bd0_0bd0,
    0x2fc1_2fc1,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Whole,
    Each,
}

pub struct Sync {
    how: How,
    /// Opened before anything is written: a failed write is then told to us.
    dir: OwnedFd,
}

impl Sync {
    pub fn of(dir: &impl AsFd) -> rustix::io::Result<Sync> {
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 3)?;
        // Signed on some architectures.
        let kind = fs::fstatfs(&dir)?.f_type as u64 & 0xffff_ffff;
        let how = if HONEST.contains(&kind) { How::Whole } else { How::Each };
        Ok(Sync { how, dir })
    }

    pub fn how(&self) -> How {
        self.how
    }

    /// Where that is possible with one call.
    pub fn all(&self) -> rustix::io::Result<()> {
        match self.how {
            How::Whole => again(|| fs::syncfs(&self.dir)),
            How::Each => Ok(()),
        }
    }
}

pub fn file(fd: &impl AsFd) -> rustix::io::Result<()> {
    again(|| fs::fsync(fd))
}

pub fn data(fd: &impl AsFd) -> rustix::io::Result<()> {
    again(|| fs::fdatasync(fd))
}

/// Some stores cannot sync a directory, and have nothing to sync then.
pub fn dir(fd: &impl AsFd) -> rustix::io::Result<()> {
    match file(fd) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        other => other,
    }
}

fn again(call: impl Fn() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
