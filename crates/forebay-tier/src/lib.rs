//! The contents of the fast tier: its directory, shadow files, log and index, and copies for other members.

pub mod digests;
pub mod dir;
pub mod gate;
pub mod index;
pub mod log;
pub mod media;
pub mod shadows;
pub mod shelf;
pub mod taken;
pub mod witness;

use forebay_core as core;
use forebay_threads::{failpoint, pool};
