//! What several crates need and none of them is about.

pub mod command;
mod error;
pub mod folder;
pub mod glob;
pub mod histogram;
pub mod lock;
pub mod magic;
pub mod mounts;
pub mod nearest;
pub mod units;
pub mod users;
pub mod way;

pub use error::{Error, Kind, Result, Retry};
