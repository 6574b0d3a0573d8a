//! The FUSE front-end: names, handles and POSIX verbs over the engine, and the decision which
//! files the kernel may read and write past us.
//!
//! [`vfs`] holds the verbs and knows no transport; `serve` carries them over /dev/fuse.

mod control;
mod dev;

mod modes;
mod mount;
mod nodes;
mod reply;
mod request;
mod usage;
mod verbs;
pub mod vfs;

pub use control::{ControlDir, ControlEntry};
pub use mount::{Mount, MountOptions, Passthrough};
pub use usage::{Process, Sums, Used};
