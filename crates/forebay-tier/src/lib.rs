//! What lies on the fast medium: the directory of a tier, shadow files, log and index, and copies for others.

pub mod digests;
pub mod dir;
pub mod gate;
pub mod index;
pub mod log;
pub mod media;
pub mod shadows;
pub mod shelf;
pub mod witness;

use forebay_core as core;
use forebay_threads::{failpoint, pool};
