//! The FUSE front-end: names, handles and POSIX verbs over the engine, and the decision which
//! files the kernel may read and write past us.
//!
//! [`vfs`] holds the verbs and knows no transport; `serve` carries them over /dev/fuse.

mod answer;
mod control;
mod encode;
mod modes;
mod mount;
mod nodes;
mod reply;
mod request;
mod serve;
mod usage;
pub mod vfs;

pub use control::{ControlDir, ControlEntry};
pub use mount::{Mount, MountOptions, Passthrough};
pub use usage::{Process, Sums, Used};
