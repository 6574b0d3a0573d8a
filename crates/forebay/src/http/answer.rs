//! An answer, and its sending.

use serde_json::{Value, json};

use super::request::{After, Refusal};

pub enum Body {
    Json(Value),
    /// The content type, and the text.
    Text(&'static str, String),
}

pub struct Reply {
    pub status: u16,
    pub body: Body,
    /// Called when the client has the answer, or will not take it, and not before.
    pub then: Option<Box<dyn FnOnce() + Send>>,
}

impl Reply {
    pub fn new(status: u16, body: Value) -> Reply {
        Reply { status, body: Body::Json(body), then: None }
    }

    pub fn text(content_type: &'static str, text: String) -> Reply {
        Reply { status: 200, body: Body::Text(content_type, text), then: None }
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Reply {
        Reply::new(refusal.status, json!({ "error": refusal.why }))
    }
}

/// An answer that is being sent.
pub struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    pub after: After,
    then: Option<Box<dyn FnOnce() + Send>>,
}

impl Outgoing {
    /// `method` is that of the request: an answer to `HEAD` has no body.
    pub fn new(reply: Reply, method: &str, after: After) -> Outgoing {
        let (content_type, text) = match reply.body {
            Body::Json(value) => ("application/json", value.to_string()),
            Body::Text(content_type, text) => (content_type, text),
        };
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             Connection: {}\r\n\r\n",
            reply.status,
            phrase(reply.status),
            text.len(),
            match after {
                After::Close => "close",
                After::KeepAlive => "keep-alive",
            }
        );
        let mut bytes = head.into_bytes();
        if method != "HEAD" {
            bytes.extend_from_slice(text.as_bytes());
        }
        Outgoing { bytes, sent: 0, after, then: reply.then }
    }

    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub fn sent(&mut self, len: usize) {
        self.sent += len;
    }
}

impl Drop for Outgoing {
    /// If the client has gone, code that waits for the answer's end must still be told.
    fn drop(&mut self) {
        if let Some(then) = self.then.take() {
            then();
        }
    }
}

/// Sent before the body of a client that asked for leave to send it.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}
