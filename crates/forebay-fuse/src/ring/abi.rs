//! The layout of ring entries, as linux/fuse.h has it.
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

/// Offsets in `struct fuse_uring_ent_in_out`, from [`RING_ENT`].
pub const COMMIT_ID: usize = 8;
pub const PAYLOAD_SIZE: usize = 16;
