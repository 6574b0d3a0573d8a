//! What a node does: the room that it grants on its flash, and what is made of it.
//!
//! State goes one way. Whoever asks writes what is wanted into the registry ([`desk`]); the [`Node`]
//! makes it so with its pools ([`space`], [`swap`]) and with other processes ([`hands`]), and writes what
//! has become of it. The [`ledger`] sees that no room is granted twice.

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
pub use config::NodeConfig;
pub use local::own_dir;
pub use node::Node;
pub use pools::TIERS;
