//! The part of HTTP/1.1 that etcd's gateway needs: one connection, one request at a time, answers
//! of a known length or in chunks.
//!
//! The decoder takes bytes as they come, so that a read that hits its time limit loses nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::Host;

/// An answer's head is far smaller; a longer one does not come from etcd.
const HEAD_MAX: usize = 64 << 10;

const HEADERS_MAX: usize = 64;

/// A vanished peer is noticed after 5 s + 3 * 2 s.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// The shortest wait of a socket call: a wait of zero would mean for ever.
const WAIT_MIN: Duration = Duration::from_millis(1);

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => &stream.sock,
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(into),
            Stream::Tls(stream) => stream.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

/// A connection, and the bytes that were read from it and not used yet.
pub struct Connection {
    stream: Stream,
    host: String,
    unread: Vec<u8>,
}

/// Whether the body has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    Maybe,
    No,
}

/// The position in the body of an answer.
pub struct Body(Framing);

enum Framing {
    /// This many bytes are left.
    Length(usize),
    /// This many bytes of the chunk are left; `None` before the size of the next chunk.
    Chunk(Option<usize>),
    /// Behind the last chunk.
    Trailer,
    Ended,
}

impl Connection {
    pub fn open(
        host: &Host,
        tls: Option<&Arc<ClientConfig>>,
        deadline: Instant,
    ) -> io::Result<Connection> {
        let name = host.name.trim_matches(['[', ']']).to_string();
        let socket = connect(&name, host.port, deadline)?;
        socket.set_nodelay(true)?;
        keep_alive(&socket)?;
        let stream = match tls {
            None => Stream::Plain(socket),
            Some(config) => {
                let name = ServerName::try_from(name)
                    .map_err(|e| io::Error::new(ErrorKind::InvalidInput, e))?;
                let session =
                    ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
                Stream::Tls(Box::new(StreamOwned::new(session, socket)))
            }
        };
        Ok(Connection { stream, host: host.to_string(), unread: Vec::new() })
    }

    /// Sends a request, and reads the head of the answer; returns its status.
    pub fn ask(
        &mut self,
        (method, path): (&str, &str),
        token: Option<&str>,
        body: &str,
        deadline: Instant,
    ) -> io::Result<(u16, Body)> {
        let authorization = token.map_or(String::new(), |t| format!("Authorization: {t}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{authorization}\
             Content-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.stream.socket().set_write_timeout(Some(left(deadline)?))?;
        self.stream.write_all(head.as_bytes())?;
        loop {
            if let Some((length, status, body)) = parse_head(&self.unread)? {
                self.unread.drain(..length);
                return Ok((status, body));
            }
            self.fill(deadline)?;
        }
    }

    /// Reads the whole body.
    pub fn rest(&mut self, body: &mut Body, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while self.some(body, &mut bytes, deadline)? == More::Maybe {}
        Ok(bytes)
    }

    /// Appends the available bytes of the body, and waits for some if there are none.
    ///
    /// # Errors
    ///
    /// `TimedOut`; the next call goes on where this one stopped.
    pub fn some(
        &mut self,
        body: &mut Body,
        to: &mut Vec<u8>,
        deadline: Instant,
    ) -> io::Result<More> {
        let before = to.len();
        loop {
            body.decode(&mut self.unread, to)?;
            if matches!(body.0, Framing::Ended) {
                return Ok(More::No);
            }
            if to.len() > before {
                return Ok(More::Maybe);
            }
            self.fill(deadline)?;
        }
    }

    fn fill(&mut self, deadline: Instant) -> io::Result<()> {
        self.stream.socket().set_read_timeout(Some(left(deadline)?))?;
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.unread.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(e),
        }
    }
}

impl Body {
    /// Moves bytes of the body from `from` to `to`.
    fn decode(&mut self, from: &mut Vec<u8>, to: &mut Vec<u8>) -> io::Result<()> {
        loop {
            self.0 = match self.0 {
                Framing::Ended | Framing::Length(0) => {
                    self.0 = Framing::Ended;
                    return Ok(());
                }
                Framing::Length(left) => match take(left, from, to) {
                    0 => return Ok(()),
                    count => Framing::Length(left - count),
                },
                Framing::Chunk(Some(0)) => match line(from)? {
                    None => return Ok(()),
                    Some(_) => Framing::Chunk(None),
                },
                Framing::Chunk(Some(left)) => match take(left, from, to) {
                    0 => return Ok(()),
                    count => Framing::Chunk(Some(left - count)),
                },
                Framing::Chunk(None) => match line(from)? {
                    None => return Ok(()),
                    Some(size) => match chunk_size(&size)? {
                        0 => Framing::Trailer,
                        size => Framing::Chunk(Some(size)),
                    },
                },
                Framing::Trailer => match line(from)? {
                    None => return Ok(()),
                    Some(text) if text.is_empty() => Framing::Ended,
                    Some(_) => Framing::Trailer,
                },
            };
        }
    }
}

fn take(count: usize, from: &mut Vec<u8>, to: &mut Vec<u8>) -> usize {
    let count = count.min(from.len());
    to.extend(from.drain(..count));
    count
}

/// Takes a line, without its end; `None` if it is not complete.
fn line(from: &mut Vec<u8>) -> io::Result<Option<String>> {
    let Some(end) = from.windows(2).position(|pair| pair == b"\r\n") else {
        return if from.len() > HEAD_MAX {
            Err(strange("a line without an end"))
        } else {
            Ok(None)
        };
    };
    let text = String::from_utf8_lossy(&from[..end]).into_owned();
    from.drain(..end + 2);
    Ok(Some(text))
}

fn chunk_size(text: &str) -> io::Result<usize> {
    let digits = text.split(';').next().unwrap_or_default().trim();
    usize::from_str_radix(digits, 16).map_err(|_| strange("the size of a chunk"))
}

fn parse_head(bytes: &[u8]) -> io::Result<Option<(usize, u16, Body)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => {
            let body = framing(head.headers)?;
            Ok(Some((length, head.code.unwrap_or_default(), Body(body))))
        }
        Ok(httparse::Status::Partial) if bytes.len() <= HEAD_MAX => Ok(None),
        _ => Err(strange("no HTTP answer")),
    }
}

fn framing(headers: &[httparse::Header<'_>]) -> io::Result<Framing> {
    let find = |name: &str| {
        let header = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    if find("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        return Ok(Framing::Chunk(None));
    }
    // Rust would parse a sign, too.
    let digits = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
    match find("content-length").filter(digits).and_then(|length| length.parse().ok()) {
        Some(length) => Ok(Framing::Length(length)),
        None => Err(strange("an answer of no known length")),
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

fn strange(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it does not answer as etcd does: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: a read ends at every place in turn.
    #[test]
    fn an_answer_may_come_in_any_pieces() {
        let text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\n to\r\n0\r\nA: b\r\n\r\nHTTP";
        for at in 0..=text.len() {
            let (mut unread, mut body, mut got) = (text[..at].to_vec(), None, Vec::new());
            for piece in [&[][..], &text[at..]] {
                unread.extend_from_slice(piece);
                if body.is_none() {
                    let Some((length, status, found)) = parse_head(&unread).expect("it is right")
                    else {
                        continue;
                    };
                    assert_eq!(status, 200);
                    unread.drain(..length);
                    body = Some(found);
                }
                let body = body.as_mut().expect("it was just found");
                body.decode(&mut unread, &mut got).expect("it is right");
            }
            assert!(matches!(body.expect("the head is whole").0, Framing::Ended));
            assert_eq!(
                (got.as_slice(), unread.as_slice()),
                (&b"hello to"[..], &b"HTTP"[..]),
                "{at}"
            );
        }
    }

    #[test]
    fn what_is_no_http_is_told() {
        for text in [&b"SSH-2.0-OpenSSH_9\r\n"[..], b"HTTP/1.1 200 OK\r\n\r\n"] {
            assert!(parse_head(text).is_err());
        }
    }
}
