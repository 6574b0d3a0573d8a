//! What several crates need and none of them is about.

pub mod glob;
pub mod histogram;
pub mod mounts;
pub mod nearest;
pub mod units;
