//! A request as it arrives: bytes come in, and steps for the connection come out. No socket, no clock.
//!
//! Every number that a client sends is compared with its limit before memory is allocated for it: the
//! buffer grows with the bytes that arrive.

use serde_json::Value;

use super::limits::{HEAD_BYTES, HEADERS, Limits};

/// The process at the other end of a Unix socket, as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    pub pid: i32,
}

pub struct Request {
    /// `None` if the client may be on another machine.
    pub peer: Option<Peer>,
    /// `GET`, `PUT`, ...
    pub method: String,
    /// The path without the query, such as `/v1/jobs/7`.
    pub path: String,
    /// Decoded pairs, in their order.
    pub query: Vec<(String, String)>,
    /// `Null` if there was no body.
    pub body: Value,
}

impl Request {
    /// A request that came over no connection.
    pub fn of(method: &str, path: &str, body: Value) -> Request {
        let (method, path) = (method.into(), path.into());
        Request { peer: None, method, path, query: Vec::new(), body }
    }
}

/// What to do with the connection when the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    Close,
    KeepAlive,
}

/// The status and the reason with which a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub why: String,
}

/// A complete request, as it was sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Whole {
    pub method: String,
    target: String,
    body: Vec<u8>,
    pub after: After,
}

/// The part of a request that is arriving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No byte has come.
    Idle,
    Head,
    Body,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes must come.
    More(Phase),
    /// The client waits for leave to send the body.
    Continue,
    Whole(Whole),
    Refused(Refusal),
}

/// The bytes that have come: of one request, or of several.
pub struct Incoming {
    body_max: usize,
    bytes: Vec<u8>,
    /// The end of the head was looked for up to this offset.
    searched: usize,
    head: Option<Head>,
}

struct Head {
    len: usize,
    body_len: usize,
    method: String,
    target: String,
    after: After,
    leave: Leave,
}

/// The leave to send the body (`Expect: 100-continue`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leave {
    Awaited,
    NotAwaited,
}

impl Incoming {
    pub fn new(limits: &Limits) -> Incoming {
        Incoming { body_max: limits.body_bytes, bytes: Vec::new(), searched: 0, head: None }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes in memory.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn clear(&mut self) {
        (self.bytes, self.searched, self.head) = (Vec::new(), 0, None);
    }

    /// Takes the next request, if it is complete.
    pub fn step(&mut self) -> Step {
        if self.head.is_none() {
            match self.find_head() {
                Ok(Some(head)) => self.head = Some(head),
                Ok(None) if self.bytes.is_empty() => return Step::More(Phase::Idle),
                Ok(None) => return Step::More(Phase::Head),
                Err(refusal) => return Step::Refused(refusal),
            }
        }
        let head = self.head.as_mut().expect("found above");
        if self.bytes.len() >= head.len + head.body_len {
            return Step::Whole(self.take());
        }
        // A client that has begun to send does not wait for leave.
        let silent = self.bytes.len() == head.len;
        match std::mem::replace(&mut head.leave, Leave::NotAwaited) {
            Leave::Awaited if silent => Step::Continue,
            _ => Step::More(Phase::Body),
        }
    }

    fn take(&mut self) -> Whole {
        let head = self.head.take().expect("only a request with a head is whole");
        let rest = self.bytes.split_off(head.len + head.body_len);
        let mut body = std::mem::replace(&mut self.bytes, rest);
        body.drain(..head.len);
        self.searched = 0;
        Whole { method: head.method, target: head.target, body, after: head.after }
    }

    fn find_head(&mut self) -> Result<Option<Head>, Refusal> {
        // Some clients send an empty line behind a body.
        let blank = self.bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        if self.searched == 0 {
            self.bytes.drain(..blank);
        }
        let end = end_of_head(&self.bytes, self.searched);
        self.searched = self.bytes.len();
        match end {
            Some(len) if len <= HEAD_BYTES => parse(&self.bytes[..len], self.body_max).map(Some),
            None if self.bytes.len() <= HEAD_BYTES => Ok(None),
            _ => Err(refusal(431, format!("head: longer than {HEAD_BYTES} bytes"))),
        }
    }
}

/// The offset behind the first empty line, if there is none before `searched`.
fn end_of_head(bytes: &[u8], searched: usize) -> Option<usize> {
    let from = searched.saturating_sub(3);
    let lines = (from..bytes.len()).filter(|at| bytes[*at] == b'\n');
    lines.into_iter().find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

fn parse(head: &[u8], body_max: usize) -> Result<Head, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let len = match request.parse(head) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Err(refusal(400, "head: cut short")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(refusal(431, format!("head: more than {HEADERS} headers")));
        }
        Err(httparse::Error::Version) => return Err(refusal(505, "choose HTTP/1.1")),
        Err(error) => return Err(refusal(400, format!("head: {error}"))),
    };
    let asked = Asked::read(request.headers)?;
    let modern = request.version == Some(1);
    Ok(Head {
        len,
        body_len: asked.body_len(body_max)?,
        method: request.method.unwrap_or_default().into(),
        target: request.path.unwrap_or_default().into(),
        after: asked.after.unwrap_or(if modern { After::KeepAlive } else { After::Close }),
        leave: if modern { asked.leave } else { Leave::NotAwaited },
    })
}

/// The headers that matter here.
struct Asked {
    content_length: Option<u64>,
    after: Option<After>,
    leave: Leave,
}

impl Asked {
    fn read(headers: &[httparse::Header<'_>]) -> Result<Asked, Refusal> {
        let mut asked = Asked { content_length: None, after: None, leave: Leave::NotAwaited };
        for header in headers {
            let value = String::from_utf8_lossy(header.value).trim().to_ascii_lowercase();
            match header.name.to_ascii_lowercase().as_str() {
                "content-length" => asked.see_length(&value)?,
                "transfer-encoding" => {
                    let why = "give a Content-Length: a body in chunks is not taken";
                    return Err(refusal(411, why));
                }
                "expect" if value == "100-continue" => asked.leave = Leave::Awaited,
                "expect" => return Err(refusal(417, format!("Expect: {value}: not known"))),
                "connection" => asked.after = after(&value).or(asked.after),
                _ => {}
            }
        }
        Ok(asked)
    }

    fn see_length(&mut self, value: &str) -> Result<(), Refusal> {
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        // A number that does not fit is above every limit.
        let len = digits.then(|| value.parse().unwrap_or(u64::MAX));
        match (len, self.content_length) {
            (Some(len), Some(before)) if len != before => {
                Err(refusal(400, "Content-Length: two different ones"))
            }
            (Some(len), _) => {
                self.content_length = Some(len);
                Ok(())
            }
            (None, _) => Err(refusal(400, format!("Content-Length: {value:?} is no number"))),
        }
    }

    fn body_len(&self, max: usize) -> Result<usize, Refusal> {
        let len = self.content_length.unwrap_or(0);
        match usize::try_from(len) {
            Ok(len) if len <= max => Ok(len),
            _ => Err(refusal(413, format!("body: {len} bytes, and at most {max} are taken"))),
        }
    }
}

fn after(connection: &str) -> Option<After> {
    connection.split(',').find_map(|word| match word.trim() {
        "close" => Some(After::Close),
        "keep-alive" => Some(After::KeepAlive),
        _ => None,
    })
}

fn refusal(status: u16, why: impl Into<String>) -> Refusal {
    Refusal { status, why: why.into() }
}

impl Whole {
    /// Bytes in memory.
    pub fn len(&self) -> usize {
        self.target.len() + self.body.len()
    }

    /// The request, with its body parsed and its query decoded.
    pub fn read(&self, peer: Option<Peer>) -> Result<Request, Refusal> {
        let body = match self.body.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&self.body)
                .map_err(|e| refusal(400, format!("body: not JSON: {e}")))?,
        };
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        Ok(Request {
            peer,
            method: self.method.clone(),
            path: path.to_string(),
            query: query.split('&').filter(|pair| !pair.is_empty()).map(decode_pair).collect(),
            body,
        })
    }
}

fn decode_pair(pair: &str) -> (String, String) {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    (decode(name), decode(value))
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = bytes.get(i + 1..i + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[i], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                plain.push(byte);
                i += 2;
            }
            (b'+', _) => plain.push(b' '),
            (byte, _) => plain.push(byte),
        }
        i += 1;
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::limits::{CONTROL, METRICS};
    use super::*;

    fn fed(limits: &Limits, bytes: &[u8]) -> Step {
        let mut incoming = Incoming::new(limits);
        incoming.push(bytes);
        incoming.step()
    }

    fn status(bytes: &str) -> u16 {
        match fed(&CONTROL, bytes.as_bytes()) {
            Step::Refused(refusal) => refusal.status,
            other => panic!("{bytes:?} gives {other:?}"),
        }
    }

    /// Any cut of the bytes gives the same requests. Method: every cut in two.
    #[test]
    fn a_request_may_come_in_any_pieces() {
        let bytes =
            b"PUT /v1/a?x=%20 HTTP/1.1\r\nContent-Length: 4\r\n\r\nnull\r\nGET /b HTTP/1.1\n\n";
        for cut in 0..=bytes.len() {
            let mut incoming = Incoming::new(&CONTROL);
            let mut found = Vec::new();
            for piece in [&bytes[..cut], &bytes[cut..]] {
                incoming.push(piece);
                while let Step::Whole(whole) = incoming.step() {
                    found.push((whole.method.clone(), whole.read(None).unwrap().path));
                }
            }
            let wanted = [("PUT", "/v1/a"), ("GET", "/b")].map(|(m, p)| (m.into(), p.into()));
            assert_eq!((found.as_slice(), incoming.len()), (&wanted[..], 0), "cut at {cut}");
        }
    }

    #[test]
    fn what_a_client_announces_is_compared_before_it_is_allocated() {
        let huge = "GET /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n";
        for limits in [&CONTROL, &METRICS] {
            let mut incoming = Incoming::new(limits);
            incoming.push(huge.as_bytes());
            assert!(matches!(incoming.step(), Step::Refused(Refusal { status: 413, .. })));
            assert!(incoming.bytes.capacity() < 1000);
        }
        assert_eq!(status(&huge.replace("99999999999", &"9".repeat(40))), 413);
        let mut incoming = Incoming::new(&CONTROL);
        incoming.push(b"PUT / HTTP/1.1\r\nContent-Length: 16000000\r\n\r\n{");
        assert_eq!(incoming.step(), Step::More(Phase::Body));
        assert!(incoming.bytes.capacity() < 1000, "it grows with what arrives");
    }

    #[test]
    fn heads_are_bounded_in_bytes_and_in_number() {
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEAD_BYTES));
        assert_eq!(status(&long), 431);
        assert_eq!(status(&long[..HEAD_BYTES + 1]), 431, "without an end, too");
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS + 1));
        assert_eq!(status(&many), 431);
    }

    #[test]
    fn what_is_not_understood_is_refused_and_not_guessed_at() {
        let with = |header: &str| status(&format!("PUT / HTTP/1.1\r\n{header}\r\n\r\n"));
        assert_eq!(with("Transfer-Encoding: chunked"), 411);
        assert_eq!(with("Content-Length: 3\r\nTransfer-Encoding: chunked"), 411);
        assert_eq!(with("Content-Length: 3\r\nContent-Length: 4"), 400);
        for text in ["", "-1", "+3", "0x3", "3, 4"] {
            assert_eq!(with(&format!("Content-Length: {text}")), 400, "{text:?}");
        }
        assert_eq!(with("Expect: a-miracle"), 417);
        assert_eq!(status("GET / HTTP/2.0\r\n\r\n"), 505);
        assert_eq!(status("\x16\x03\x01\n\n"), 400);
    }

    #[test]
    fn leave_to_send_is_given_once_and_only_to_a_waiting_client() {
        let head = b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
        let mut incoming = Incoming::new(&CONTROL);
        incoming.push(head);
        assert_eq!(incoming.step(), Step::Continue);
        assert_eq!(incoming.step(), Step::More(Phase::Body));
        incoming.push(b"null");
        assert!(matches!(incoming.step(), Step::Whole(_)));
        let sent = [&head[..], b"nu"].concat();
        assert_eq!(fed(&CONTROL, &sent), Step::More(Phase::Body));
    }

    #[test]
    fn the_version_and_the_client_decide_whether_the_connection_stays() {
        let after = |head: &str| match fed(&CONTROL, head.as_bytes()) {
            Step::Whole(whole) => whole.after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after("GET / HTTP/1.1\r\n\r\n"), After::KeepAlive);
        assert_eq!(after("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n"), After::Close);
        assert_eq!(after("GET / HTTP/1.0\r\n\r\n"), After::Close);
        assert_eq!(after("GET / HTTP/1.0\r\nconnection: x, keep-alive\r\n\r\n"), After::KeepAlive);
    }
}
