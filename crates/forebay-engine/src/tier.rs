//! What lies on the fast medium: the directory of a tier, shadow files, log and index.

pub mod digests;
pub mod dir;
pub(crate) mod gate;
pub mod index;
pub mod log;
pub mod media;
pub mod shadows;
pub mod witness;
