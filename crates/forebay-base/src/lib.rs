//! Small parts that several crates need and that belong to none of them.

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
