//! What linux/fuse.h says of requests, as far as they come over io_uring, and its numbers.
//!
//! An entry has two buffers: the *headers*, and the *payload*. Of a request, the common header lies
//! at the headers' beginning, the first argument of fixed size in `op_in`, and what follows (names,
//! data) in the payload. Of an answer, the common header takes the place of the request's, and
//! everything else lies in the payload.

/// Commands of the ring.
pub const REGISTER: u32 = 1;
pub const COMMIT_AND_FETCH: u32 = 2;

/// Offsets in `struct fuse_uring_req_header`.
pub const OP_IN: usize = 128;
pub const RING_ENT: usize = 256;
pub const HEADERS_LEN: usize = 288;

/// `struct fuse_out_header`.
pub const OUT_HEADER_LEN: usize = 16;

/// Offsets in `struct fuse_uring_ent_in_out`, from [`RING_ENT`].
pub const COMMIT_ID: usize = 8;
pub const PAYLOAD_SIZE: usize = 16;

pub const LOOKUP: u32 = 1;
pub const GETATTR: u32 = 3;
pub const SETATTR: u32 = 4;
pub const READLINK: u32 = 5;
pub const SYMLINK: u32 = 6;
pub const MKNOD: u32 = 8;
pub const MKDIR: u32 = 9;
pub const UNLINK: u32 = 10;
pub const RMDIR: u32 = 11;
pub const RENAME: u32 = 12;
pub const LINK: u32 = 13;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const FSYNC: u32 = 20;
pub const SETXATTR: u32 = 21;
pub const GETXATTR: u32 = 22;
pub const LISTXATTR: u32 = 23;
pub const REMOVEXATTR: u32 = 24;
pub const FLUSH: u32 = 25;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const RELEASEDIR: u32 = 29;
pub const FSYNCDIR: u32 = 30;
pub const CREATE: u32 = 35;
pub const NOTIFY_REPLY: u32 = 41;
pub const FALLOCATE: u32 = 43;
pub const READDIRPLUS: u32 = 44;
pub const RENAME2: u32 = 45;
pub const LSEEK: u32 = 46;

pub const STATX: u32 = 52;

/// What a STATX knows: the basic attributes, and the time of birth.
pub const STATX_BASIC: u32 = 0x7ff;
pub const STATX_BIRTH: u32 = 0x800;

/// What a SETATTR sets.
pub const FATTR_MODE: u32 = 1 << 0;
pub const FATTR_UID: u32 = 1 << 1;
pub const FATTR_GID: u32 = 1 << 2;
pub const FATTR_SIZE: u32 = 1 << 3;
pub const FATTR_ATIME: u32 = 1 << 4;
pub const FATTR_MTIME: u32 = 1 << 5;
pub const FATTR_FH: u32 = 1 << 6;
pub const FATTR_ATIME_NOW: u32 = 1 << 7;
pub const FATTR_MTIME_NOW: u32 = 1 << 8;

pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub const FOPEN_PASSTHROUGH: u32 = 1 << 7;

/// A notification that asks for pages of a file, answered by a NOTIFY_REPLY request.
pub const NOTIFY_RETRIEVE: i32 = 5;
