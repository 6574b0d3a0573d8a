//! A connection of TCP, with TLS or without.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustls::ClientConfig;

use super::frame::strange;
use super::sealed::Sealed;
use super::socket::{self, limit, moved};
use crate::Host;

/// The largest page: etcd's metrics are some 100 KiB.
const PAGE_MAX: usize = 16 << 20;

pub enum Link {
    Plain(TcpStream),
    Tls(Box<Sealed>),
}

impl Link {
    /// Connects to one of the addresses of `host`.
    pub fn open(
        host: &Host,
        addresses: &[SocketAddr],
        tls: Option<&Arc<ClientConfig>>,
        deadline: Instant,
    ) -> io::Result<Link> {
        let socket = socket::connect(addresses, deadline)?;
        let Some(config) = tls else { return Ok(Link::Plain(socket)) };
        let sealed = Sealed::new(socket, host.bare_name().to_string(), config)?;
        Ok(Link::Tls(Box::new(sealed)))
    }

    /// Writes all bytes, and takes those that were written.
    ///
    /// # Errors
    ///
    /// `TimedOut`; the next call goes on where this one stopped.
    pub fn send(&mut self, bytes: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        let socket = match self {
            Link::Plain(socket) => socket,
            Link::Tls(sealed) => return sealed.send(bytes, deadline),
        };
        while !bytes.is_empty() {
            limit(socket, deadline)?;
            if let Some(count) = moved(socket.write(bytes), ErrorKind::WriteZero)? {
                bytes.drain(..count);
            }
        }
        Ok(())
    }

    /// Reads the available bytes, and waits for some if there are none.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` at the end.
    pub fn read<'b>(&mut self, into: &'b mut [u8], deadline: Instant) -> io::Result<&'b [u8]> {
        let socket = match self {
            Link::Plain(socket) => socket,
            Link::Tls(sealed) => {
                let count = sealed.read(into, deadline)?;
                return Ok(&into[..count]);
            }
        };
        loop {
            limit(socket, deadline)?;
            if let Some(count) = moved(socket.read(into), ErrorKind::UnexpectedEof)? {
                return Ok(&into[..count]);
            }
        }
    }

    /// Gets a page by HTTP/1.0, which ends with the connection.
    pub fn page(mut self, host: &Host, path: &str, deadline: Instant) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
        self.send(&mut request.into_bytes(), deadline)?;
        let (mut bytes, mut page) = ([0; 16 << 10], Vec::new());
        loop {
            match self.read(&mut bytes, deadline) {
                Ok(more) if page.len() < PAGE_MAX => page.extend_from_slice(more),
                Ok(_) => return Err(strange("a page without an end")),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
        }
        let text = String::from_utf8_lossy(&page);
        match text.split_once("\r\n\r\n") {
            Some((head, page)) if head.split(' ').nth(1) == Some("200") => Ok(page.to_string()),
            _ => Err(strange("no such page")),
        }
    }
}
