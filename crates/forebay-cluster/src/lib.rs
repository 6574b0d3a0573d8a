//! Many mounts of one backing store as one burst buffer: who holds newer bytes of which file.
//!
//! - `core` decides: claims, opening, give-back, recall, the gate of directory renames. Pure: input in,
//!   effects out.
//! - `keys` says how the registry's keys and values look.
//! - `locks` has the locks of a file's programs, for its home. Pure.
//! - `words` is what members ask each other; `peer` carries it.
//! - `member` acts: it takes the core's effects to the registry, the peers and the own front-end.

pub mod audit;
pub mod core;
pub mod front;
pub mod keys;
pub mod locks;
pub mod member;
pub mod peer;
pub mod words;
