//! The FUSE front-end: names, handles and POSIX verbs over the engine, and the decision which
//! files the kernel may read and write past the daemon.
//!
//! [`vfs`] holds the verbs and knows no transport; `verbs` says how each request is answered; `codec`
//! alone knows the kernel's messages, which `dev` carries over /dev/fuse and `ring` over io_uring.

mod busy_poll;
mod codec;
mod control;
mod dev;
mod flags;
pub mod holds;
mod modes;
mod mount;
mod nodes;
mod reply;
mod request;
mod returning;
mod ring;
mod spare;
mod usage;
mod verbs;
pub mod vfs;
mod waits;

pub use control::{ControlAccess, ControlDir, ControlEntry};
pub use mount::{Locks, Mount, MountOptions, Passthrough, Transport};
pub use usage::{Process, Sums, Used};
