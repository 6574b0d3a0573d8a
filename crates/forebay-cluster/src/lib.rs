//! Many mounts of one backing store as one burst buffer: which member holds newer bytes of which file.
//!
//! - `core` decides: claims, opening, give-back, recall, the gate of directory renames. Pure: input in,
//!   effects out.
//! - `keys` defines the registry's keys and values.
//! - `locks` has the locks that programs have of a file, for its home. Pure.
//! - `words` defines the questions between members; `peer` carries them.
//! - `member` acts: it takes the core's effects to the registry, the peers and the own front-end.

pub mod audit;
pub mod core;
pub mod front;
pub mod keys;
pub mod locks;
pub mod member;
pub mod peer;
pub mod words;
