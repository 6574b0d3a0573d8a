//! A connection of TCP, with TLS or without.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::frame::strange;
use crate::Host;

/// A vanished peer is noticed after 5 s + 3 * 2 s.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// The shortest wait of a socket call: a wait of zero would mean for ever.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The largest page: etcd's metrics are some 100 KiB.
const PAGE_MAX: usize = 16 << 20;

pub enum Link {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Link {
    pub fn open(
        host: &Host,
        tls: Option<&Arc<ClientConfig>>,
        deadline: Instant,
    ) -> io::Result<Link> {
        let name = host.name.trim_matches(['[', ']']).to_string();
        let socket = connect(&name, host.port, deadline)?;
        socket.set_nodelay(true)?;
        keep_alive(&socket)?;
        let Some(config) = tls else { return Ok(Link::Plain(socket)) };
        let name =
            ServerName::try_from(name).map_err(|e| io::Error::new(ErrorKind::InvalidInput, e))?;
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Link::Tls(Box::new(StreamOwned::new(session, socket))))
    }

    /// Writes all bytes, and takes those that were written.
    ///
    /// # Errors
    ///
    /// `TimedOut`; the next call goes on where this one stopped.
    pub fn send(&mut self, bytes: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.limit(deadline)?;
            let written = match self {
                Link::Plain(socket) => socket.write(bytes),
                Link::Tls(stream) => stream.write(bytes),
            };
            if let Some(count) = some(written, ErrorKind::WriteZero)? {
                bytes.drain(..count);
            }
        }
        match self {
            Link::Plain(_) => Ok(()),
            Link::Tls(stream) => stream.flush().map_err(timed_out),
        }
    }

    /// Reads the available bytes, and waits for some if there are none.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` at the end.
    pub fn read<'b>(&mut self, into: &'b mut [u8], deadline: Instant) -> io::Result<&'b [u8]> {
        loop {
            self.limit(deadline)?;
            let read = match self {
                Link::Plain(socket) => socket.read(into),
                Link::Tls(stream) => stream.read(into),
            };
            if let Some(count) = some(read, ErrorKind::UnexpectedEof)? {
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

    /// Limits the next call, which may both read and write with TLS.
    fn limit(&self, deadline: Instant) -> io::Result<()> {
        let socket = match self {
            Link::Plain(socket) => socket,
            Link::Tls(stream) => &stream.sock,
        };
        let left = Some(left(deadline)?);
        socket.set_read_timeout(left)?;
        socket.set_write_timeout(left)
    }
}

/// The count of a call that has moved bytes; `None` if it has to be made again. `none` is the
/// meaning of a count of 0.
fn some(moved: io::Result<usize>, none: ErrorKind) -> io::Result<Option<usize>> {
    match moved {
        Ok(0) => Err(none.into()),
        Ok(count) => Ok(Some(count)),
        Err(e) if e.kind() == ErrorKind::Interrupted => Ok(None),
        Err(e) => Err(timed_out(e)),
    }
}

fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    }
}

fn connect(name: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (name, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    let (idle, interval, count) = KEEPALIVE;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    Ok(sockopt::set_tcp_keepcnt(socket, count)?)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left.max(WAIT_MIN)) }
}
