//! The node: the room that it grants on its flash, and the instances made in it.
//!
//! State goes one way. A request writes *wanted* records into the registry ([`desk`]); the [`Node`] makes
//! them real with its pools ([`space`], [`swap`]) and with other processes ([`hands`]), and writes
//! *actual* records. The [`ledger`] prevents that room is granted twice.

mod asked;
pub mod audit;
mod backing;
mod book;
mod clock;
mod closed;
pub mod config;
mod crew;
pub mod desk;
pub mod failpoint;
pub mod hands;
pub mod health;
pub mod job;
mod leaving;
pub mod ledger;
mod local;
mod manifest;
mod node;
mod offered;
mod pools;
pub mod records;
pub mod space;
pub mod swap;
mod tend;
mod transfers;
#[cfg(test)]
mod trial;

pub use backing::{file_system_of, require_mounted};
pub use book::Book;
pub use clock::now;
pub use config::NodeConfig;
pub use local::own_dir;
pub use node::Node;
pub use pools::TIERS;
