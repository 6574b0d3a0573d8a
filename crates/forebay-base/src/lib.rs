//! What several crates need and none of them is about.

pub mod mounts;
