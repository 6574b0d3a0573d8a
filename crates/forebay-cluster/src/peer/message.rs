//! Heads of messages: read with httparse, written by hand.

use std::io::Write;
use std::time::Instant;

use httparse::{EMPTY_HEADER, Header, Status};

use super::limits::{BYTES_MAX, HEAD_BYTES, HEADERS, WORDS_MAX};
use super::line::{Line, Trouble};

/// The first byte of a TLS alert (RFC 8446, 5.1); no HTTP message begins with it.
const TLS_ALERT: u8 = 21;

/// The head of a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Front {
    /// For an answer.
    pub status: u16,
    /// For a question.
    pub method: String,
    pub path: String,
    /// The lengths of the JSON at the start of the body, and of the bytes behind it.
    pub words: usize,
    pub bytes: usize,
    pub seal: Option<String>,
    /// The connection ends after this message.
    pub closes: bool,
    /// The asker wants to be told to go on before it sends the body.
    pub waits: bool,
}

/// Reads the head of a question, and takes it out of the line.
pub fn read_question(line: &mut Line, deadline: Instant) -> Result<Front, Trouble> {
    read(line, deadline, |text| {
        let mut headers = [EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let Status::Complete(len) = request.parse(text).map_err(malformed)? else {
            return Ok(None);
        };
        let mut front = Front {
            method: request.method.unwrap_or_default().into(),
            path: request.path.unwrap_or_default().into(),
            closes: request.version == Some(0),
            ..Front::default()
        };
        front.fill(request.headers)?;
        Ok(Some((len, front)))
    })
}

/// Reads the head of an answer, and takes it out of the line.
pub fn read_answer(line: &mut Line, deadline: Instant) -> Result<Front, Trouble> {
    read(line, deadline, |text| {
        let mut headers = [EMPTY_HEADER; HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        let Status::Complete(len) = answer.parse(text).map_err(malformed)? else {
            return Ok(None);
        };
        let mut front = Front { status: answer.code.unwrap_or(0), ..Front::default() };
        front.fill(answer.headers)?;
        Ok(Some((len, front)))
    })
}

type Parsed = Result<Option<(usize, Front)>, Trouble>;

fn read(
    line: &mut Line,
    deadline: Instant,
    parse: impl Fn(&[u8]) -> Parsed,
) -> Result<Front, Trouble> {
    loop {
        let text = line.unused();
        let text = &text[..text.len().min(HEAD_BYTES)];
        if text.first() == Some(&TLS_ALERT) {
            return Err(bad(
                "it speaks TLS: give this member peer-cert, as the other members have it",
            ));
        }
        if let Some((len, front)) = parse(text)? {
            line.used(len);
            return Ok(front);
        }
        if text.len() == HEAD_BYTES {
            return Err(Trouble::Bad(431, format!("the head is longer than {HEAD_BYTES} bytes")));
        }
        line.more(deadline)?;
    }
}

impl Front {
    fn fill(&mut self, headers: &[Header<'_>]) -> Result<(), Trouble> {
        let (mut length, mut words) = (None, None);
        for header in headers {
            let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("content-length") {
                set(&mut length, header.name, value)?;
            } else if is("forebay-words") {
                set(&mut words, header.name, value)?;
            } else if is("forebay-seal") {
                self.seal = Some(value.into());
            } else if is("connection") {
                self.closes |= value.eq_ignore_ascii_case("close");
            } else if is("expect") {
                self.waits = value.eq_ignore_ascii_case("100-continue");
            } else if is("transfer-encoding") {
                let why = "a body has to come with Content-Length, not in chunks";
                return Err(Trouble::Bad(411, why.into()));
            }
        }
        let length = length.unwrap_or(0);
        self.words = words.unwrap_or(length);
        self.bytes = length.checked_sub(self.words).ok_or_else(|| {
            bad(format!("Forebay-Words is {}, the body has only {length} bytes", self.words))
        })?;
        if self.words > WORDS_MAX || self.bytes > BYTES_MAX {
            let (words, bytes) = (self.words, self.bytes);
            let why = format!(
                "{words} bytes of JSON and {bytes} bytes behind it: at most {WORDS_MAX} and {BYTES_MAX} pass"
            );
            return Err(Trouble::Bad(413, why));
        }
        Ok(())
    }
}

fn set(number: &mut Option<usize>, name: &str, value: &str) -> Result<(), Trouble> {
    // A sign is no digit here, though Rust would parse it.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let read = value.parse().ok().filter(|_| digits);
    let read = read.ok_or_else(|| bad(format!("{name} is no number of bytes: {value:?}")))?;
    match number.replace(read) {
        None => Ok(()),
        Some(_) => Err(bad(format!("{name} comes twice"))),
    }
}

fn malformed(error: httparse::Error) -> Trouble {
    match error {
        httparse::Error::TooManyHeaders => {
            Trouble::Bad(431, format!("the head has more than {HEADERS} headers"))
        }
        error => bad(format!("this is not HTTP/1.1: {error}")),
    }
}

pub fn bad(why: impl Into<String>) -> Trouble {
    Trouble::Bad(400, why.into())
}

/// Writes the head of a question.
pub fn put_question(head: &mut Vec<u8>, path: &str, host: &str, lengths: Lengths<'_>) {
    head.clear();
    let put = write!(head, "POST {path} HTTP/1.1\r\nHost: {host}\r\n");
    put.expect("memory takes all");
    lengths.put(head);
}

/// Writes the head of an answer.
pub fn put_answer(head: &mut Vec<u8>, status: u16, closes: bool, lengths: Lengths<'_>) {
    head.clear();
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    let close = if closes { "Connection: close\r\n" } else { "" };
    write!(head, "HTTP/1.1 {status} {reason}\r\n{close}").expect("memory takes all");
    lengths.put(head);
}

/// The lengths of a body's parts, and the seal.
pub struct Lengths<'m> {
    pub words: usize,
    pub bytes: usize,
    pub seal: Option<&'m str>,
}

impl Lengths<'_> {
    fn put(&self, head: &mut Vec<u8>) {
        let Lengths { words, bytes, seal } = self;
        let length = words + bytes;
        let put = write!(head, "Content-Length: {length}\r\nForebay-Words: {words}\r\n");
        put.expect("memory takes all");
        if let Some(seal) = seal {
            write!(head, "Forebay-Seal: {seal}\r\n").expect("memory takes all");
        }
        head.extend_from_slice(b"\r\n");
    }
}
