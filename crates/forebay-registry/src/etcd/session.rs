//! Calls of gRPC on one connection of HTTP/2, one at a time: what to send, and what an answer means.
//!
//! Does no I/O: bytes that came go into [`Session::take`], bytes to send are in [`Session::output`].
//! A peer may cut its bytes anywhere.

use std::io::{self, ErrorKind};

use super::frame::{self, Frame, strange};
use super::hpack;

/// The first bytes of a client.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The bytes of answers that etcd may send ahead. Half of them are granted again at once.
const WINDOW: u32 = 16 << 20;

/// What each side may send until it hears otherwise (RFC 9113).
const WINDOW_AT_FIRST: u32 = 65_535;
const PAYLOAD_AT_FIRST: usize = 16 << 10;

/// The headers of an answer are far smaller; longer ones do not come from etcd.
const HEADERS_MAX: usize = 64 << 10;

const STREAM_MAX: u32 = u32::MAX >> 1;

/// A flag and the length precede each message of gRPC.
const PREFIX: usize = 5;

/// What a call has told.
#[derive(Debug)]
pub enum Heard {
    Message(Vec<u8>),
    Ended(End),
}

/// The end of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct End {
    /// The status of HTTP.
    pub http: u16,
    /// The status of gRPC; `None` if the peer does not speak it.
    pub code: Option<i64>,
    pub message: String,
}

/// Whether the server goes on with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Open,
    Ended,
    /// It was ended with this code of HTTP/2.
    Reset(u32),
}

/// Whether the connection takes another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    More,
    /// This is the last one.
    Last,
}

/// What may be sent: on the connection, on the stream, and on a new stream.
struct Room {
    connection: i64,
    stream: i64,
    new: i64,
    /// In one frame.
    frame: usize,
}

/// Bytes that came, and were not granted again.
#[derive(Default)]
struct Came {
    connection: u32,
    stream: u32,
}

pub struct Session {
    /// `:scheme`, as a byte of HPACK.
    scheme: u8,
    host: String,
    /// Bytes to send now.
    pub output: Vec<u8>,
    /// Bytes that came, and are no whole frame yet.
    input: Vec<u8>,
    /// The last call's; 0 before the first.
    stream: u32,
    state: Stream,
    calls: Calls,
    /// Whether the server has said that it speaks HTTP/2.
    greeted: bool,
    room: Room,
    came: Came,
    /// The rest of the request.
    unsent: Vec<u8>,
    /// Headers whose end has not come, and their first frame's stream and flags.
    headers: Option<(u32, u8, Vec<u8>)>,
    body: Vec<u8>,
    end: End,
}

impl Session {
    /// Begins with what each connection begins with. `scheme` is a byte of HPACK.
    pub fn new(scheme: u8, host: String) -> Session {
        let mut output = PREFACE.to_vec();
        let settings = [(1, 0), (2, 0), (4, WINDOW), (5, frame::PAYLOAD_MAX as u32)];
        let settings = settings.map(|(what, value): (u16, u32)| {
            [what.to_be_bytes().as_slice(), value.to_be_bytes().as_slice()].concat()
        });
        frame::write(&mut output, (frame::SETTINGS, 0), 0, &settings.concat());
        let more = WINDOW - WINDOW_AT_FIRST;
        frame::write(&mut output, (frame::WINDOW, 0), 0, &more.to_be_bytes());
        let room = i64::from(WINDOW_AT_FIRST);
        Session {
            scheme,
            host,
            output,
            input: Vec::new(),
            stream: 0,
            state: Stream::Ended,
            calls: Calls::More,
            greeted: false,
            room: Room { connection: room, stream: room, new: room, frame: PAYLOAD_AT_FIRST },
            came: Came::default(),
            unsent: Vec::new(),
            headers: None,
            body: Vec::new(),
            end: End::default(),
        }
    }

    /// Whether another call can begin.
    pub fn is_free(&self) -> bool {
        self.calls == Calls::More && self.state == Stream::Ended && self.stream < STREAM_MAX - 2
    }

    /// Begins a call with one message.
    pub fn call(&mut self, path: &str, token: Option<&str>, message: &[u8]) {
        self.stream = if self.stream == 0 { 1 } else { self.stream + 2 };
        (self.state, self.end) = (Stream::Open, End::default());
        self.body.clear();
        self.room.stream = self.room.new;
        self.came.stream = 0;
        let mut headers = vec![hpack::NO_TABLE, hpack::POST, self.scheme];
        let fixed = [("content-type", "application/grpc"), ("te", "trailers")];
        let fields = [(":path", path), (":authority", &self.host)].into_iter().chain(fixed);
        for (name, value) in fields.chain(token.map(|token| ("token", token))) {
            hpack::literal(&mut headers, name, value);
        }
        let kind = (frame::HEADERS, frame::END_HEADERS);
        frame::write(&mut self.output, kind, self.stream, &headers);
        self.unsent = [&[0], (message.len() as u32).to_be_bytes().as_slice(), message].concat();
        self.send();
    }

    /// Moves as much of the request to the output as the server takes.
    fn send(&mut self) {
        let mut sent = 0;
        while sent < self.unsent.len() {
            let room = self.room.connection.min(self.room.stream);
            let room = usize::try_from(room).unwrap_or(0).min(self.room.frame);
            let rest = &self.unsent[sent..];
            let payload = &rest[..room.min(rest.len())];
            if payload.is_empty() {
                break;
            }
            let last = payload.len() == rest.len();
            let kind = (frame::DATA, if last { frame::END_STREAM } else { 0 });
            frame::write(&mut self.output, kind, self.stream, payload);
            sent += payload.len();
            self.room.connection -= payload.len() as i64;
            self.room.stream -= payload.len() as i64;
        }
        self.unsent.drain(..sent);
    }

    /// Takes bytes that came.
    pub fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let mut read = 0;
        while let Some(frame) = Frame::first(&input[read..])? {
            read += frame.len();
            self.frame(&frame)?;
        }
        input.drain(..read);
        self.input = input;
        self.send();
        Ok(())
    }

    fn frame(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        if !self.greeted && frame.kind != frame::SETTINGS {
            return Err(strange("no HTTP/2"));
        }
        self.greeted = true;
        if self.headers.is_some() != (frame.kind == frame::CONTINUATION) {
            return Err(strange("headers without an end"));
        }
        match frame.kind {
            frame::DATA => self.data(frame),
            frame::HEADERS => {
                self.headers = Some((frame.stream, frame.flags, frame.content()?.to_vec()));
                self.headers_end(frame)
            }
            frame::CONTINUATION => {
                if let Some((_, _, block)) = &mut self.headers {
                    block.extend_from_slice(frame.payload);
                }
                self.headers_end(frame)
            }
            frame::RESET if frame.stream == self.stream && self.state == Stream::Open => {
                self.state = Stream::Reset(frame::number(frame.payload)?);
                Ok(())
            }
            frame::SETTINGS if !frame.has(frame::ACK) => self.settings(frame.payload),
            frame::PROMISE => Err(strange("a promise")),
            frame::PING if !frame.has(frame::ACK) => {
                frame::write(&mut self.output, (frame::PING, frame::ACK), 0, frame.payload);
                Ok(())
            }
            frame::GO_AWAY => self.go_away(frame.payload),
            frame::WINDOW => self.window(frame),
            _ => Ok(()),
        }
    }

    fn data(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let count = frame.payload.len() as u32;
        grant(&mut self.output, &mut self.came.connection, 0, count);
        if frame.stream != self.stream || self.state != Stream::Open {
            return Ok(());
        }
        grant(&mut self.output, &mut self.came.stream, self.stream, count);
        self.body.extend_from_slice(frame.content()?);
        self.end_of(frame.flags);
        Ok(())
    }

    /// Takes the headers in, if `frame` was their last one.
    fn headers_end(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let Some((stream, flags, block)) = &self.headers else { return Ok(()) };
        if frame.stream != *stream || block.len() > HEADERS_MAX {
            return Err(strange("headers without an end"));
        }
        if !frame.has(frame::END_HEADERS) {
            return Ok(());
        }
        let (fields, flags) = (hpack::decode(block)?, *flags);
        self.headers = None;
        if frame.stream != self.stream || self.state != Stream::Open {
            return Ok(());
        }
        for field in fields {
            self.end.note(&field.name, &field.value);
        }
        self.end_of(flags);
        Ok(())
    }

    /// Notes that the answer has ended, if the flags say so.
    fn end_of(&mut self, flags: u8) {
        if flags & frame::END_STREAM == 0 {
            return;
        }
        self.state = Stream::Ended;
        if !self.unsent.is_empty() {
            // The stream stays half open.
            self.unsent.clear();
            self.calls = Calls::Last;
        }
    }

    fn settings(&mut self, payload: &[u8]) -> io::Result<()> {
        for setting in payload.chunks_exact(6) {
            let value = frame::number(&setting[2..])?;
            match u16::from_be_bytes([setting[0], setting[1]]) {
                4 => {
                    self.room.stream += i64::from(value) - self.room.new;
                    self.room.new = i64::from(value);
                }
                5 => self.room.frame = (value as usize).clamp(PAYLOAD_AT_FIRST, frame::PAYLOAD_MAX),
                _ => {}
            }
        }
        frame::write(&mut self.output, (frame::SETTINGS, frame::ACK), 0, &[]);
        Ok(())
    }

    /// The server ends the connection, after the streams up to the one that it names.
    fn go_away(&mut self, payload: &[u8]) -> io::Result<()> {
        self.calls = Calls::Last;
        if frame::number(payload)? < self.stream && self.state == Stream::Open {
            let text = "it ended the connection before it saw the call";
            return Err(io::Error::new(ErrorKind::ConnectionAborted, text));
        }
        Ok(())
    }

    fn window(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let more = i64::from(frame::number(frame.payload)?);
        match frame.stream {
            0 => self.room.connection += more,
            stream if stream == self.stream => self.room.stream += more,
            _ => {}
        }
        Ok(())
    }

    /// The next message, or the end of the call; `None` if more has to come first.
    ///
    /// # Errors
    ///
    /// `FileTooLarge` if the message is longer than `max`.
    pub fn heard(&mut self, max: usize) -> io::Result<Option<Heard>> {
        if let Some((prefix, rest)) = self.body.split_first_chunk::<PREFIX>() {
            let length = frame::number(&prefix[1..])? as usize;
            if prefix[0] != 0 {
                return Err(strange("a compressed message"));
            }
            if length > max {
                let text = format!("an answer of {length} bytes, and {max} are taken");
                return Err(io::Error::new(ErrorKind::FileTooLarge, text));
            }
            if let Some(message) = rest.get(..length) {
                let message = message.to_vec();
                self.body.drain(..PREFIX + length);
                return Ok(Some(Heard::Message(message)));
            }
        }
        match self.state {
            Stream::Open => Ok(None),
            Stream::Ended if self.body.is_empty() => Ok(Some(Heard::Ended(self.end.clone()))),
            Stream::Ended => Err(strange("a message that is cut")),
            Stream::Reset(code) => {
                let text = format!("it ended the call (HTTP/2's code {code})");
                Err(io::Error::new(ErrorKind::ConnectionAborted, text))
            }
        }
    }
}

/// Notes `more` bytes that came on a stream, and grants as many again once half of them are used up.
fn grant(to: &mut Vec<u8>, came: &mut u32, stream: u32, more: u32) {
    *came += more;
    if *came >= WINDOW / 2 {
        frame::write(to, (frame::WINDOW, 0), stream, &came.to_be_bytes());
        *came = 0;
    }
}

impl End {
    /// Notes a header.
    fn note(&mut self, name: &[u8], value: &[u8]) {
        let text = || String::from_utf8_lossy(value);
        match name {
            b":status" => self.http = text().parse().unwrap_or(0),
            b"grpc-status" => self.code = text().parse().ok(),
            b"grpc-message" => self.message = unquoted(value),
            _ => {}
        }
    }
}

/// Replaces `%41` and the like by their bytes.
fn unquoted(text: &[u8]) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        let quoted = byte.filter(|_| *first == b'%');
        bytes.push(quoted.unwrap_or(*first));
        rest = if quoted.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
pub mod tests;
