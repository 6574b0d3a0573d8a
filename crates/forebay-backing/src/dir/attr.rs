//! The kernel's facts about files and file systems, as the store's own values.

use std::ffi::{CStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use forebay_base::magic;
use rustix::fs::{self as sys, AtFlags, FileType, Statx, StatxFlags, StatxTimestamp};

use super::Sys;
use super::root::{Root, stat_fd};
use crate::{Attr, DirEntry, FileKey, FileKind, StatFs, Timestamp};

pub fn device(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}

pub fn attr(stat: &Statx, root_device: (u32, u32)) -> Attr {
    let btime = birth(stat);
    Attr {
        key: key(stat, root_device, btime),
        kind: kind(FileType::from_raw_mode(stat.stx_mode.into())),
        mode: u32::from(stat.stx_mode) & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: sys::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        blksize: stat.stx_blksize,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
        btime,
    }
}

fn birth(stat: &Statx) -> Timestamp {
    let known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    if known { time(&stat.stx_btime) } else { Timestamp::default() }
}

fn key(stat: &Statx, root_device: (u32, u32), btime: Timestamp) -> FileKey {
    let ino = if device(stat) == root_device {
        stat.stx_ino
    } else {
        foreign(device(stat), stat.stx_ino)
    };
    let seconds = btime.sec.cast_unsigned().wrapping_mul(1_000_000_000);
    FileKey { ino, generation: seconds.wrapping_add(btime.nsec.into()) }
}

/// An inode number for a file of another file system that is mounted below the root: the top bit, which no file
/// system in use sets, keeps it apart from the root's own. The number changes with the device number, which a
/// reboot may change.
fn foreign((major, minor): (u32, u32), ino: u64) -> u64 {
    let device = u64::from(major) << 32 | u64::from(minor);
    mix(device ^ mix(ino)) | FileKey::NESTED
}

/// The finalizer of splitmix64: every input bit reaches every output bit.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn time(t: &StatxTimestamp) -> Timestamp {
    Timestamp { sec: t.tv_sec, nsec: t.tv_nsec }
}

pub fn kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::Char,
        FileType::BlockDevice => FileKind::Block,
        FileType::RegularFile | FileType::Unknown => FileKind::File,
    }
}

/// The buffer for a listing. A client of a network file system asks its server for as much as fits, and asks for
/// the attributes with it only at the beginning of a listing (NFS, FUSE).
const LISTED_AT_ONCE: usize = 1 << 20;

pub fn entries(fd: OwnedFd) -> Sys<Vec<DirEntry>> {
    let mut list = Vec::new();
    let mut room = Vec::with_capacity(LISTED_AT_ONCE);
    let mut dir = sys::RawDir::new(&fd, room.spare_capacity_mut());
    while let Some(entry) = dir.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match look(fd.as_fd(), name)? {
                Some(kind) => kind,
                None => continue,
            },
            known => kind(known),
        };
        let name = OsString::from_vec(name.to_bytes().to_vec());
        list.push(DirEntry { name, kind, ino: entry.ino() });
    }
    Ok(list)
}

/// The kind of an entry where the file system does not list it; `None` if the entry has gone meanwhile.
fn look(dir: BorrowedFd<'_>, name: &CStr) -> Sys<Option<FileKind>> {
    match sys::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE) {
        Ok(stat) => Ok(Some(kind(FileType::from_raw_mode(stat.stx_mode.into())))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The identity that tells this directory or file from every other: its inode number and birth time, with the file
/// system's id where that comes from its UUID (ext, btrfs), and otherwise with the canonical path: XFS and f2fs
/// derive their id from the device number, which a reboot may change, and NFS has none.
pub fn identity(fd: BorrowedFd<'_>, canonical: &Path) -> Sys<String> {
    let stat = stat_fd(fd)?;
    let statfs = sys::fstatfs(fd)?;
    let magic = magic::of(&statfs);
    let birth = birth(&stat);
    let place = match magic {
        magic::EXT | magic::BTRFS => format!("{:016x}", sys::fstatvfs(fd)?.f_fsid),
        _ => canonical.display().to_string(),
    };
    let Timestamp { sec, nsec } = birth;
    Ok(format!("1:{magic:08x}:{}:{sec}.{nsec:09}:{place}", stat.stx_ino))
}

/// File systems of this machine.
const LOCAL: [u32; 5] = [magic::EXT, magic::XFS, magic::BTRFS, magic::F2FS, magic::TMPFS];

/// Whether files of this file system show their access lists among their extended attributes, if they have any
/// (NFSv4 has no such lists).
pub fn lists_acls(magic: u32) -> bool {
    LOCAL.contains(&magic) || magic == magic::NFS
}

/// Local file systems take their times from this machine's clock, of others it is not known.
pub fn clocks_differ(magic: u32) -> Duration {
    if LOCAL.contains(&magic) { Duration::ZERO } else { Duration::from_secs(2) }
}

pub fn statfs(root: &Root) -> Sys<StatFs> {
    let s = sys::fstatvfs(root.fd())?;
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(StatFs {
        blocks: s.f_blocks,
        bfree: s.f_bfree,
        bavail: s.f_bavail,
        files: s.f_files,
        ffree: s.f_ffree,
        bsize: narrow(s.f_bsize),
        namelen: narrow(s.f_namemax),
        frsize: narrow(s.f_frsize),
    })
}
