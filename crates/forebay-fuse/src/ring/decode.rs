//! Requests as they lie in an entry, and the verbs they ask for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use forebay_backing::{SetAttr, SetTime, Timestamp};
use forebay_engine::rules::Origin;

use super::abi;
use super::encode::{Extended, Words};
use super::reply::{Listing, Reply};
use crate::reply::{Bytes, Fail, Tell};
use crate::request::Shared;
use crate::verbs::{At, Suid, rename_mode};

/// A request, but for its payload. A copy: the headers are the answer's as soon as there is one.
pub struct Request([u8; abi::HEADERS_LEN]);

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Request {
    pub fn new(headers: &[u8; abi::HEADERS_LEN]) -> Request {
        Request(*headers)
    }

    pub fn opcode(&self) -> u32 {
        word(&self.0, 4)
    }

    pub fn unique(&self) -> u64 {
        long(&self.0, 8)
    }

    pub fn node(&self) -> u64 {
        long(&self.0, 16)
    }

    fn origin(&self) -> Origin {
        Origin { uid: word(&self.0, 24), gid: word(&self.0, 28), pid: word(&self.0, 32) }
    }

    pub fn commit_id(&self) -> u64 {
        long(&self.0, abi::RING_ENT + abi::COMMIT_ID)
    }

    pub fn payload_len(&self) -> usize {
        word(&self.0, abi::RING_ENT + abi::PAYLOAD_SIZE) as usize
    }

    /// A number of the first argument.
    fn u32(&self, at: usize) -> u32 {
        word(&self.0, abi::OP_IN + at)
    }

    fn u64(&self, at: usize) -> u64 {
        long(&self.0, abi::OP_IN + at)
    }

    /// `struct fuse_read_in` and `struct fuse_write_in` begin alike.
    fn at(&self) -> At {
        At { handle: self.u64(0), offset: self.u64(8) }
    }

    fn set_attr(&self) -> SetAttr {
        let valid = self.u32(0);
        let given = |flag, value: u32| (valid & flag != 0).then_some(value);
        let time = |flag, now, sec, nsec| {
            let at = Timestamp { sec: self.u64(sec) as i64, nsec: self.u32(nsec) };
            let set = if valid & now != 0 { SetTime::Now } else { SetTime::At(at) };
            (valid & flag != 0).then_some(set)
        };
        SetAttr {
            mode: given(abi::FATTR_MODE, self.u32(68) & 0o7777),
            uid: given(abi::FATTR_UID, self.u32(76)),
            gid: given(abi::FATTR_GID, self.u32(80)),
            atime: time(abi::FATTR_ATIME, abi::FATTR_ATIME_NOW, 32, 56),
            mtime: time(abi::FATTR_MTIME, abi::FATTR_MTIME_NOW, 40, 60),
        }
    }

    fn set_size(&self) -> Option<(u64, Option<u64>)> {
        let valid = self.u32(0);
        let handle = (valid & abi::FATTR_FH != 0).then_some(self.u64(8));
        (valid & abi::FATTR_SIZE != 0).then_some((self.u64(16), handle))
    }
}

/// Takes a name, which ends with a zero, off the beginning of a payload.
fn name<'a>(payload: &mut &'a [u8]) -> Option<&'a OsStr> {
    let end = payload.iter().position(|byte| *byte == 0)?;
    let (name, rest) = payload.split_at(end);
    *payload = &rest[1..];
    Some(OsStr::from_bytes(name))
}

/// Has a request answered.
pub fn dispatch(shared: &Arc<Shared>, request: &Request, payload: &[u8], reply: Reply) {
    match request.opcode() {
        abi::LOOKUP
        | abi::SYMLINK
        | abi::MKNOD
        | abi::MKDIR
        | abi::UNLINK
        | abi::RMDIR
        | abi::RENAME
        | abi::RENAME2
        | abi::LINK
        | abi::CREATE
        | abi::SETXATTR
        | abi::GETXATTR
        | abi::REMOVEXATTR => named(shared, request, payload, reply),
        _ => unnamed(shared, request, payload, reply),
    }
}

/// Requests whose payload begins with a name.
fn named(shared: &Arc<Shared>, request: &Request, mut rest: &[u8], reply: Reply) {
    let (node, from) = (request.node(), request.origin());
    let Some(first) = name(&mut rest) else { return reply.fail(libc::EINVAL) };
    match request.opcode() {
        abi::LOOKUP => shared.lookup(node, first, reply),
        abi::SYMLINK => match name(&mut rest) {
            Some(target) => shared.symlink(from, (node, first), target.to_os_string(), reply),
            None => reply.fail(libc::EINVAL),
        },
        abi::MKNOD => {
            let mode = (request.u32(0), request.u32(8));
            shared.mknod(from, (node, first), mode, request.u32(4), reply);
        }
        abi::MKDIR => {
            shared.mkdir(from, (node, first), (request.u32(0), request.u32(4)), reply);
        }
        abi::UNLINK => shared.unlink(node, first, reply),
        abi::RMDIR => shared.rmdir(node, first, reply),
        opcode @ (abi::RENAME | abi::RENAME2) => {
            let flags = if opcode == abi::RENAME2 { request.u32(8) } else { 0 };
            let Some(second) = name(&mut rest) else { return reply.fail(libc::EINVAL) };
            let to = (request.u64(0), second);
            shared.rename((node, first), to, rename_mode(flags), reply);
        }
        abi::LINK => shared.link(request.u64(0), (node, first), reply),
        abi::CREATE => {
            let (flags, mode) = (request.u32(0) as i32, (request.u32(4), request.u32(8)));
            shared.create(from, (node, first), mode, flags, reply);
        }
        abi::SETXATTR => match rest.get(..request.u32(0) as usize) {
            Some(value) => shared.setxattr(from, node, first, value, request.u32(4) as i32, reply),
            None => reply.fail(libc::EINVAL),
        },
        abi::GETXATTR => shared.getxattr(node, first, request.u32(0), reply),
        abi::REMOVEXATTR => shared.removexattr(node, first, reply),
        _ => reply.fail(libc::ENOSYS),
    }
}

fn unnamed(shared: &Arc<Shared>, request: &Request, payload: &[u8], reply: Reply) {
    let (node, from, at) = (request.node(), request.origin(), request.at());
    let size = request.u32(16);
    match request.opcode() {
        abi::GETATTR => shared.getattr(node, reply),
        abi::STATX => shared.getattr(node, Extended(reply)),
        abi::SETATTR => {
            shared.setattr(from, node, request.set_attr(), request.set_size(), reply);
        }
        abi::READLINK => shared.readlink(node, reply),
        abi::OPEN => shared.open(from, node, request.u32(0) as i32, reply),
        abi::READ if size as usize > super::buffer::PAYLOAD_LEN => reply.fail(libc::EINVAL),
        abi::READ => shared.read(from, at, size, reply),
        abi::WRITE => match payload.get(..size as usize) {
            Some(data) => {
                let suid = Suid::of(request.u32(20) & abi::WRITE_KILL_SUIDGID != 0);
                shared.write(from, node, at, data, suid, reply);
            }
            None => reply.fail(libc::EINVAL),
        },
        abi::STATFS => shared.statfs(reply),
        abi::RELEASE => shared.release(at.handle, reply),
        abi::FSYNC => shared.fsync(at.handle, reply),
        abi::LISTXATTR => shared.listxattr(node, request.u32(0), reply),
        abi::FLUSH => shared.flush(at.handle, reply),
        abi::OPENDIR => match shared.vfs.opendir(node) {
            Ok(handle) => reply.bytes(Words::new().u64(handle).u64(0).bytes()),
            Err(error) => reply.fail(error.errno()),
        },
        abi::READDIR => shared.readdir(at.handle, at.offset, Listing::new(reply, size)),
        abi::READDIRPLUS => shared.readdirplus(at.handle, at.offset, Listing::new(reply, size)),
        abi::RELEASEDIR => {
            shared.vfs.release(at.handle);
            reply.tell(shared, ());
        }
        abi::FSYNCDIR => shared.fsyncdir(at.handle, reply),
        // Asked by ourselves: see `Crew::poke`.
        abi::NOTIFY_REPLY => reply.tell(shared, ()),
        abi::FALLOCATE => {
            let what = (request.u64(16), request.u32(24) as i32);
            shared.fallocate(from, node, at, what, reply);
        }
        abi::LSEEK => shared.lseek(at, request.u32(16) as i32, reply),
        _ => reply.fail(libc::ENOSYS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_one_after_the_other() {
        let mut payload: &[u8] = b"one\0two\0value";
        assert_eq!(name(&mut payload).unwrap(), "one");
        assert_eq!(name(&mut payload).unwrap(), "two");
        assert_eq!(payload, b"value");
        assert_eq!(name(&mut payload), None);
    }

    #[test]
    fn a_setattr_says_what_its_flags_name_and_nothing_else() {
        let mut headers = [0; abi::HEADERS_LEN];
        let mut put = |at: usize, bytes: &[u8]| {
            headers[abi::OP_IN + at..][..bytes.len()].copy_from_slice(bytes);
        };
        let valid = abi::FATTR_MTIME | abi::FATTR_ATIME | abi::FATTR_ATIME_NOW | abi::FATTR_SIZE;
        put(0, &valid.to_ne_bytes());
        put(8, &5u64.to_ne_bytes());
        put(16, &7u64.to_ne_bytes());
        put(40, &(-2i64).to_ne_bytes());
        put(60, &9u32.to_ne_bytes());
        put(68, &0o644u32.to_ne_bytes());
        let request = Request::new(&headers);
        let set = request.set_attr();
        assert_eq!((set.mode, set.uid, set.gid), (None, None, None));
        assert!(matches!(set.atime, Some(SetTime::Now)));
        let then = Timestamp { sec: -2, nsec: 9 };
        assert!(matches!(set.mtime, Some(SetTime::At(at)) if at == then));
        assert_eq!(request.set_size(), Some((7, None)));
    }
}
