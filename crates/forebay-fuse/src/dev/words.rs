//! Our words for what `fuser` says, and the other way round.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_backing::{Attr, FileKind, SetTime, Timestamp};
use fuser::{FileAttr, FileType, FopenFlags, INodeNo, TimeOrNow};

use crate::vfs::Opened;

pub fn fopen_flags(opened: &Opened) -> FopenFlags {
    FopenFlags::from_bits_retain(crate::verbs::fopen_flags(opened))
}

pub fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::At(timestamp(at)),
    }
}

/// Takes a time apart as `fuser` put it together: before the epoch it subtracts the nanoseconds,
/// which the kernel means to be added to the (negative) seconds.
pub fn timestamp(at: SystemTime) -> Timestamp {
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { sec: after.as_secs() as i64, nsec: after.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            Timestamp { sec: -(before.as_secs() as i64), nsec: before.subsec_nanos() }
        }
    }
}

pub fn system_time(at: Timestamp) -> SystemTime {
    let nsec = Duration::from_nanos(at.nsec.into());
    match at.sec {
        0.. => UNIX_EPOCH + Duration::from_secs(at.sec as u64) + nsec,
        _ => UNIX_EPOCH - Duration::from_secs(at.sec.unsigned_abs()) + nsec,
    }
}

pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Dir => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::Char => FileType::CharDevice,
        FileKind::Block => FileType::BlockDevice,
    }
}

pub fn file_attr(attr: &Attr, id: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: attr.mode as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev as u32,
        blksize: attr.blksize,
        flags: 0,
    }
}
