//! The control door: HTTP with JSON bodies over a Unix socket in the tier's run directory.

mod client;
mod server;
mod socket;

pub use client::{Client, Liveness};
pub use server::{Reply, Request, serve, serve_tcp};
