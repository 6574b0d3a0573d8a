//! The decoding of requests, as the kernel writes them. The code is pure.
//!
//! Whatever can be checked is checked. A request that is too short, or has numbers that no file can
//! have, is answered EIO; an unknown request, ENOSYS.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use forebay_backing::{SetAttr, SetTime, Timestamp};
use forebay_cluster::locks::{END, Kind, Lock, Of, Range, Space};
use forebay_engine::rules::Origin;

use super::abi;
use crate::flags::OpenFlags;
use crate::verbs::{At, MAX_WRITE, Suid};
use crate::vfs::{Manner, Reader};

/// The answer to a request that makes no sense.
const ODD: i32 = libc::EIO;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// `struct fuse_in_header`.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    len: u32,
    pub opcode: u32,
    pub unique: u64,
    pub node: u64,
    pub from: Origin,
}

impl Head {
    pub fn of(bytes: &[u8; abi::IN_HEADER_LEN]) -> Head {
        Head {
            len: word(bytes, 0),
            opcode: word(bytes, 4),
            unique: long(bytes, 8),
            node: long(bytes, 16),
            from: Origin { uid: word(bytes, 24), gid: word(bytes, 28), pid: word(bytes, 32) },
        }
    }
}

/// A request: its header, its first argument, which has a fixed size, and the bytes that follow.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub head: Head,
    arg: &'a [u8],
    rest: &'a [u8],
}

/// A decoded request.
#[derive(Debug)]
pub enum Call<'a> {
    Lookup(&'a OsStr),
    Getattr,
    Statx,
    /// A new size comes with the handle through which the file is truncated, if there is one.
    Setattr(SetAttr, Option<(u64, Option<u64>)>),
    Readlink,
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    Mknod {
        name: &'a OsStr,
        mode: Mode,
        device: u32,
    },
    Mkdir {
        name: &'a OsStr,
        mode: Mode,
    },
    Unlink(&'a OsStr),
    Rmdir(&'a OsStr),
    Rename {
        name: &'a OsStr,
        to: (u64, &'a OsStr),
        flags: u32,
    },
    /// Gives the node a name in the directory that the header names.
    Link {
        node: u64,
        name: &'a OsStr,
    },
    Open {
        flags: OpenFlags,
    },
    Create {
        name: &'a OsStr,
        mode: Mode,
        flags: OpenFlags,
    },
    Read(At, u32, Reader),
    Write {
        at: At,
        data: &'a [u8],
        suid: Suid,
        manner: Manner,
    },
    Statfs,
    Release(u64),
    Fsync(u64),
    /// A handle, and the owner of record locks.
    Flush(u64, u64),
    Lock {
        handle: u64,
        of: Of,
        what: Locking,
    },
    Setxattr {
        name: &'a OsStr,
        value: &'a [u8],
        flags: i32,
    },
    Getxattr {
        name: &'a OsStr,
        room: u32,
    },
    Listxattr {
        room: u32,
    },
    Removexattr(&'a OsStr),
    Opendir,
    Readdir(At, u32),
    Readdirplus(At, u32),
    Releasedir(u64),
    Fsyncdir(u64),
    Fallocate {
        at: At,
        len: u64,
        mode: i32,
    },
    Lseek(At, i32),
    /// A request that needs nothing but an answer.
    Nothing,
}

/// The operation of a request about locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locking {
    Test(Lock),
    /// The lock, and whether the caller waits until it is granted.
    Set(Lock, bool),
    Unset(Range),
}

/// The mode of a new file, and the umask of the program that makes it.
pub type Mode = (u32, u32);

/// The length of the first argument of a known request.
fn arg_len(opcode: u32) -> Option<usize> {
    Some(match opcode {
        abi::LOOKUP | abi::READLINK | abi::SYMLINK | abi::UNLINK | abi::RMDIR => 0,
        abi::STATFS | abi::REMOVEXATTR | abi::DESTROY => 0,
        abi::FORGET | abi::MKDIR | abi::RENAME | abi::LINK | abi::OPEN | abi::OPENDIR => 8,
        abi::SETXATTR | abi::GETXATTR | abi::LISTXATTR | abi::BATCH_FORGET => 8,
        abi::GETATTR | abi::MKNOD | abi::RENAME2 | abi::CREATE => 16,
        abi::FSYNC | abi::FSYNCDIR | abi::INIT => 16,
        abi::RELEASE | abi::RELEASEDIR | abi::FLUSH | abi::LSEEK | abi::STATX => 24,
        abi::INTERRUPT => 8,
        abi::FALLOCATE => 32,
        abi::READ | abi::WRITE | abi::READDIR | abi::READDIRPLUS | abi::NOTIFY_REPLY => 40,
        abi::GETLK | abi::SETLK | abi::SETLKW => 48,
        abi::SETATTR => 88,
        _ => return None,
    })
}

impl<'a> Request<'a> {
    /// A request whose parts lie one after the other; `None` if there is not even a header.
    pub fn of_message(message: &'a [u8]) -> Option<Request<'a>> {
        let (head, body) = message.split_first_chunk()?;
        let head = Head::of(head);
        // A message that was cut short gets no argument, and every call that needs one refuses it.
        let len = (head.len as usize).checked_sub(abi::IN_HEADER_LEN);
        let body = len.and_then(|len| body.get(..len)).unwrap_or_default();
        let arg = arg_len(head.opcode).unwrap_or(0).min(body.len());
        let (arg, rest) = body.split_at(arg);
        Some(Request { head, arg, rest })
    }

    /// A request whose parts lie in separate places; the place of the argument may be longer than it.
    pub fn of_parts(head: Head, arg: &'a [u8], rest: &'a [u8]) -> Request<'a> {
        Request { head, arg, rest }
    }

    pub fn call(&self) -> Result<Call<'a>, i32> {
        let len = arg_len(self.head.opcode).ok_or(libc::ENOSYS)?;
        if self.arg.len() < len {
            return Err(ODD);
        }
        match self.head.opcode {
            abi::LOOKUP
            | abi::SYMLINK
            | abi::MKNOD
            | abi::MKDIR
            | abi::UNLINK
            | abi::RMDIR
            | abi::RENAME
            | abi::RENAME2
            | abi::LINK
            | abi::CREATE => self.call_by_name(),
            abi::SETXATTR | abi::GETXATTR | abi::LISTXATTR | abi::REMOVEXATTR => self.call_xattr(),
            _ => self.call_by_number(),
        }
    }

    /// Decodes a call about a name in a directory.
    fn call_by_name(&self) -> Result<Call<'a>, i32> {
        let mut rest = self.rest;
        let name = name(&mut rest)?;
        Ok(match self.head.opcode {
            abi::LOOKUP => Call::Lookup(name),
            abi::SYMLINK => Call::Symlink { name, target: text(&mut rest)? },
            abi::MKNOD => {
                Call::Mknod { name, mode: (self.u32(0), self.u32(8)), device: self.u32(4) }
            }
            abi::MKDIR => Call::Mkdir { name, mode: (self.u32(0), self.u32(4)) },
            abi::UNLINK => Call::Unlink(name),
            abi::RMDIR => Call::Rmdir(name),
            opcode @ (abi::RENAME | abi::RENAME2) => {
                let flags = if opcode == abi::RENAME2 { self.u32(8) } else { 0 };
                Call::Rename { name, to: (self.u64(0), self::name(&mut rest)?), flags }
            }
            abi::LINK => Call::Link { node: self.u64(0), name },
            abi::CREATE => {
                let mode = (self.u32(4), self.u32(8));
                Call::Create { name, mode, flags: OpenFlags::from(self.u32(0) as i32) }
            }
            _ => return Err(libc::ENOSYS),
        })
    }

    fn call_xattr(&self) -> Result<Call<'a>, i32> {
        let mut rest = self.rest;
        if self.head.opcode == abi::LISTXATTR {
            return Ok(Call::Listxattr { room: self.u32(0) });
        }
        let name = text(&mut rest)?;
        Ok(match self.head.opcode {
            abi::SETXATTR => {
                let value = rest.get(..self.u32(0) as usize).ok_or(ODD)?;
                Call::Setxattr { name, value, flags: self.u32(4) as i32 }
            }
            abi::GETXATTR => Call::Getxattr { name, room: self.u32(0) },
            abi::REMOVEXATTR => Call::Removexattr(name),
            _ => return Err(libc::ENOSYS),
        })
    }

    /// Decodes a call about a node, or about a handle of it.
    fn call_by_number(&self) -> Result<Call<'a>, i32> {
        Ok(match self.head.opcode {
            abi::GETATTR => Call::Getattr,
            abi::STATX => Call::Statx,
            abi::SETATTR => Call::Setattr(self.set_attr()?, self.set_size()?),
            abi::READLINK => Call::Readlink,
            abi::OPEN => Call::Open { flags: OpenFlags::from(self.u32(0) as i32) },
            abi::STATFS => Call::Statfs,
            abi::RELEASE => Call::Release(self.u64(0)),
            abi::FSYNC => Call::Fsync(self.u64(0)),
            abi::FLUSH => Call::Flush(self.u64(0), self.u64(16)),
            abi::GETLK | abi::SETLK | abi::SETLKW => return self.call_lock(),
            abi::OPENDIR => Call::Opendir,
            abi::RELEASEDIR => Call::Releasedir(self.u64(0)),
            abi::FSYNCDIR => Call::Fsyncdir(self.u64(0)),
            // NOTIFY_REPLY is the kernel's answer to a request of the daemon.
            abi::DESTROY | abi::NOTIFY_REPLY => Call::Nothing,
            abi::READ | abi::WRITE | abi::READDIR | abi::READDIRPLUS => return self.call_sized(),
            abi::FALLOCATE => {
                let (at, len) = (self.at(), self.u64(16));
                within_a_file(at.offset, len)?;
                Call::Fallocate { at, len, mode: self.u32(24) as i32 }
            }
            abi::LSEEK => Call::Lseek(self.at(), self.u32(16) as i32),
            // These are known to a session's own loop alone.
            _ => return Err(libc::ENOSYS),
        })
    }

    /// Decodes a call with a size: a read, a write or a listing.
    fn call_sized(&self) -> Result<Call<'a>, i32> {
        let (at, size) = (self.at(), self.u32(16));
        if size > MAX_WRITE {
            return Err(ODD);
        }
        match self.head.opcode {
            abi::READDIR => return Ok(Call::Readdir(at, size)),
            abi::READDIRPLUS => return Ok(Call::Readdirplus(at, size)),
            _ => within_a_file(at.offset, size.into())?,
        }
        if self.head.opcode == abi::READ {
            let is_programs = self.u32(20) & abi::READ_LOCKOWNER != 0;
            let reader = if is_programs { Reader::Program } else { Reader::Cache };
            return Ok(Call::Read(at, size, reader));
        }
        let data = self.rest.get(..size as usize).ok_or(ODD)?;
        let how = self.u32(20);
        let suid = Suid::of(how & abi::WRITE_KILL_SUIDGID != 0);
        // The flags of the descriptor, and those of the call.
        let syncs = self.u32(32) as i32 & libc::O_DSYNC != 0;
        let is_cached = how & abi::WRITE_CACHE != 0;
        Ok(Call::Write { at, data, suid, manner: Manner { syncs, is_cached } })
    }

    /// `struct fuse_lk_in`.
    fn call_lock(&self) -> Result<Call<'a>, i32> {
        let range = Range { first: self.u64(16), last: self.u64(24) };
        if range.first > range.last || range.last > END {
            return Err(ODD);
        }
        let is_flock = self.u32(40) & abi::LK_FLOCK != 0;
        let space = if is_flock { Space::Flock } else { Space::Record };
        let lock = |kind| Lock { kind, range, pid: self.u32(36) };
        let kind = match self.u32(32) as i32 {
            libc::F_RDLCK => Some(Kind::Shared),
            libc::F_WRLCK => Some(Kind::Exclusive),
            libc::F_UNLCK => None,
            _ => return Err(ODD),
        };
        let what = match (kind, self.head.opcode) {
            (Some(kind), abi::GETLK) => Locking::Test(lock(kind)),
            (None, abi::GETLK) => return Err(ODD),
            (Some(kind), opcode) => Locking::Set(lock(kind), opcode == abi::SETLKW),
            (None, _) => Locking::Unset(range),
        };
        let of = Of { space, owner: self.u64(8) };
        Ok(Call::Lock { handle: self.u64(0), of, what })
    }

    /// The request that an INTERRUPT names: nobody waits for its answer any more.
    pub fn interrupted(&self) -> Option<u64> {
        (self.head.opcode == abi::INTERRUPT && self.arg.len() >= 8).then(|| self.u64(0))
    }

    /// The handle and the offset at the beginning of an argument.
    fn at(&self) -> At {
        At { handle: self.u64(0), offset: self.u64(8) }
    }

    /// The nodes that the kernel has forgotten, and how many references to each it has dropped.
    pub fn forgotten(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let opcode = self.head.opcode;
        let known = arg_len(opcode).is_some_and(|len| self.arg.len() >= len);
        let one = (known && opcode == abi::FORGET).then(|| (self.head.node, self.u64(0)));
        let count = if known && opcode == abi::BATCH_FORGET { self.u32(0) as usize } else { 0 };
        let pairs = self.rest.chunks_exact(16).map(|pair| (long(pair, 0), long(pair, 8)));
        one.into_iter().chain(pairs.take(count))
    }

    /// A number of the first argument.
    fn u32(&self, at: usize) -> u32 {
        word(self.arg, at)
    }

    fn u64(&self, at: usize) -> u64 {
        long(self.arg, at)
    }

    fn set_attr(&self) -> Result<SetAttr, i32> {
        let valid = self.u32(0);
        let given = |flag, value: u32| (valid & flag != 0).then_some(value);
        let time = |flag, now, sec, nsec| match (valid & flag != 0, valid & now != 0) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some(SetTime::Now)),
            // From a second on a number means something else than a time (UTIME_OMIT).
            (true, false) if self.u32(nsec) >= 1_000_000_000 => Err(ODD),
            (true, false) => {
                let at = Timestamp { sec: self.u64(sec) as i64, nsec: self.u32(nsec) };
                Ok(Some(SetTime::At(at)))
            }
        };
        Ok(SetAttr {
            mode: given(abi::FATTR_MODE, self.u32(68) & 0o7777),
            uid: given(abi::FATTR_UID, self.u32(76)),
            gid: given(abi::FATTR_GID, self.u32(80)),
            atime: time(abi::FATTR_ATIME, abi::FATTR_ATIME_NOW, 32, 56)?,
            mtime: time(abi::FATTR_MTIME, abi::FATTR_MTIME_NOW, 40, 60)?,
        })
    }

    fn set_size(&self) -> Result<Option<(u64, Option<u64>)>, i32> {
        let valid = self.u32(0);
        if valid & abi::FATTR_SIZE == 0 {
            return Ok(None);
        }
        let (size, handle) = (self.u64(16), self.u64(8));
        within_a_file(size, 0)?;
        Ok(Some((size, (valid & abi::FATTR_FH != 0).then_some(handle))))
    }

    /// The offer of an INIT: major and minor version, the largest readahead, and the flags.
    pub fn offer(&self) -> Option<(u32, u32, u32, u64)> {
        if self.head.opcode != abi::INIT || self.arg.len() < 16 {
            return None;
        }
        let low = u64::from(self.u32(12));
        let high = match (low & abi::init::EXT != 0, self.rest.first_chunk()) {
            (true, Some(more)) => u32::from_ne_bytes(*more),
            _ => 0,
        };
        Some((self.u32(0), self.u32(4), self.u32(8), low | u64::from(high) << 32))
    }
}

/// Refuses a range that no file has: offsets are signed 64-bit numbers, and the last page ends at 2^63.
fn within_a_file(offset: u64, len: u64) -> Result<(), i32> {
    let end = offset.checked_add(len);
    match offset <= i64::MAX as u64 && end.is_some_and(|end| end <= 1 << 63) {
        true => Ok(()),
        false => Err(ODD),
    }
}

/// Takes a text that ends with a zero off the beginning of `rest`.
fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a OsStr, i32> {
    let end = rest.iter().position(|byte| *byte == 0).ok_or(ODD)?;
    let (text, after) = rest.split_at(end);
    *rest = &after[1..];
    Ok(OsStr::from_bytes(text))
}

/// Takes a name in a directory, as [`text`] does.
fn name<'a>(rest: &mut &'a [u8]) -> Result<&'a OsStr, i32> {
    let name = text(rest)?;
    match name.is_empty() || name.as_bytes().contains(&b'/') {
        true => Err(ODD),
        false => Ok(name),
    }
}

#[cfg(test)]
mod tests;
