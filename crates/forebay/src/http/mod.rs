//! The control door: HTTP with JSON bodies over a Unix socket in the tier's run directory.

mod answer;
mod client;
mod connection;
mod limits;
mod request;
mod server;
mod socket;
#[cfg(test)]
mod tests;

pub use answer::Reply;
pub use client::{Client, Liveness};
pub use request::{Peer, Request};
pub use server::{serve, serve_everybody, serve_tcp};
