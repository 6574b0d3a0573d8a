//! The frames of HTTP/2 (RFC 9113): a head of nine bytes, and a payload.

use std::io::{self, ErrorKind};

/// The largest payload that this side takes. The first bytes of a text, as most other services send
/// one, are a larger length.
pub const PAYLOAD_MAX: usize = 1 << 20;

const HEAD: usize = 9;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GO_AWAY: u8 = 7;
pub const WINDOW: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// Flags, of DATA and HEADERS, of SETTINGS and PING, of HEADERS and CONTINUATION, and so on.
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

#[derive(Debug, Clone, Copy)]
pub struct Frame<'b> {
    pub kind: u8,
    pub flags: u8,
    /// 0 means the connection.
    pub stream: u32,
    pub payload: &'b [u8],
}

impl<'b> Frame<'b> {
    /// The frame at the beginning of `bytes`; `None` if it is not whole.
    pub fn first(bytes: &'b [u8]) -> io::Result<Option<Frame<'b>>> {
        let Some(length) = bytes.first_chunk::<3>() else { return Ok(None) };
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if length > PAYLOAD_MAX {
            return Err(strange("no HTTP/2"));
        }
        let Some(bytes) = bytes.get(..HEAD + length) else { return Ok(None) };
        let stream = number(&bytes[5..])? & (u32::MAX >> 1);
        Ok(Some(Frame { kind: bytes[3], flags: bytes[4], stream, payload: &bytes[HEAD..] }))
    }

    /// The number of bytes of the whole frame.
    pub fn len(&self) -> usize {
        HEAD + self.payload.len()
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The payload of DATA or HEADERS, without padding and priority.
    pub fn content(&self) -> io::Result<&'b [u8]> {
        let (mut content, mut padding) = (self.payload, 0);
        if self.has(PADDED) {
            let (first, rest) = content.split_first().ok_or_else(cut)?;
            (content, padding) = (rest, usize::from(*first));
        }
        if self.kind == HEADERS && self.has(PRIORITY) {
            content = content.get(5..).ok_or_else(cut)?;
        }
        let end = content.len().checked_sub(padding).ok_or_else(cut)?;
        Ok(&content[..end])
    }
}

/// Appends a frame.
pub fn write(to: &mut Vec<u8>, (kind, flags): (u8, u8), stream: u32, payload: &[u8]) {
    to.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}

/// The number of four bytes at the beginning.
pub fn number(bytes: &[u8]) -> io::Result<u32> {
    bytes.first_chunk().map(|four| u32::from_be_bytes(*four)).ok_or_else(cut)
}

fn cut() -> io::Error {
    strange("a frame that is cut")
}

/// The error of a peer that is no etcd.
pub fn strange(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it does not answer as etcd does: {what}"))
}
