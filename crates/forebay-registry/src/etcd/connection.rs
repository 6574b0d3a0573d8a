//! A connection to a member that speaks gRPC: one call at a time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustls::ClientConfig;

use super::hpack;
use super::link::Link;
use super::session::{Heard, Session};
use crate::Host;

pub struct Connection {
    link: Link,
    session: Session,
}

impl Connection {
    pub fn open(
        host: &Host,
        addresses: &[SocketAddr],
        tls: Option<&Arc<ClientConfig>>,
        deadline: Instant,
    ) -> io::Result<Connection> {
        let link = Link::open(host, addresses, tls, deadline)?;
        let scheme = if tls.is_some() { hpack::SECURE } else { hpack::PLAIN };
        Ok(Connection { link, session: Session::new(scheme, host.to_string()) })
    }

    /// Whether another call can be made.
    pub fn is_free(&self) -> bool {
        self.session.is_free()
    }

    /// Begins a call with one message, the only one of this side.
    pub fn call(
        &mut self,
        path: &str,
        token: Option<&str>,
        message: &[u8],
        deadline: Instant,
    ) -> io::Result<()> {
        self.session.call(path, token, message);
        self.link.send(&mut self.session.output, deadline)
    }

    /// Waits for a message of at most `max` bytes, or for the end of the call.
    ///
    /// # Errors
    ///
    /// `TimedOut`; the next call goes on where this one stopped. `FileTooLarge`.
    pub fn next(&mut self, max: usize, deadline: Instant) -> io::Result<Heard> {
        let mut bytes = [0; 16 << 10];
        loop {
            if let Some(heard) = self.session.heard(max)? {
                return Ok(heard);
            }
            self.link.send(&mut self.session.output, deadline)?;
            let came = self.link.read(&mut bytes, deadline)?;
            self.session.take(came)?;
        }
    }
}
