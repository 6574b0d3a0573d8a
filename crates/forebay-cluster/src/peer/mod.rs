//! Carries questions between members: HTTP/1.1 over TCP, blocking threads, one question at a time on a
//! connection. The reasons are in `docs/decisions/peers.md`.
//!
//! A question is `POST /ask`. The body starts with JSON, `{"head":..,"question":..}`
//! ([`crate::words`]), of as many bytes as the header `Forebay-Words` says; without that header the whole
//! body is JSON. The bytes that go with the question follow. An answer is status 200 and looks the same, its
//! JSON is an [`Answer`](crate::words::Answer). Any other status has
//! `{"status":..,"error":".."}`.
//!
//! With a cluster key a connection begins with `POST /hello` and `POST /prove`, and each message after them
//! has the header `Forebay-Seal` (module `seal`). With certificates all of it is over TLS (module `tls`).

mod door;
mod guest;
mod hello;
mod key;
pub mod limits;
mod line;
mod message;
mod peers;
mod seal;
mod stream;
#[cfg(test)]
mod tests;
mod tls;

pub use door::{Door, Service};
pub use key::Key;
pub use peers::{Peers, is_safe};
pub use tls::Tls;
