//! The backing store: it holds the truth about every byte that is not dirty.
//!
//! [`BackingStore`] is the only way the engine reaches slow storage. [`DirStore`] serves a
//! directory, [`SingleStore`] one file or block device; the wrappers in [`wrap`] add throttling, faults, metering and retries to any store.
//!
//! A path is relative to the store's root, has no `.` or `..` component, and the empty path is
//! the root itself. No call follows a symbolic link, in the last component or before it.

mod dir;
mod fd;
pub mod lock;
pub mod metrics;
mod single;
mod store;
#[cfg(any(test, feature = "suite"))]
pub mod suite;
pub mod wrap;

pub use dir::DirStore;
pub use fd::{leave_room, room_to_close};
pub use forebay_base::{Error, Kind, Result, Retry};
pub use single::SingleStore;
pub use store::{
    Access, Attr, BackingFile, BackingStore, DirEntry, FileKey, FileKind, New, Pin, RenameMode,
    SetAttr, SetTime, Sizes, StatFs, Timestamp, Version, XattrMode,
};
