//! The serving end: a listener, a few threads, one handler.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_backing::{Error, Result};
use serde_json::Value;
use tiny_http::{Header, Listener, Response, Server};

use super::socket;

/// Enough that one slow listing does not hold up a status.
const THREADS: usize = 4;

/// How long after a client was seen the server is looked at again.
const RETRY: Duration = Duration::from_millis(100);

/// Descriptors that must be free before the server is started again.
const SPARE: usize = 4;

/// A request longer than this is refused: the longest sensible one lists some thousand paths.
const BODY_MAX: u64 = 16 << 20;

pub struct Request {
    /// `GET`, `PUT`, ...
    pub method: String,
    /// Without the query, such as `/v1/jobs/7`.
    pub path: String,
    /// Decoded pairs in their order.
    pub query: Vec<(String, String)>,
    /// `Null` when there was no body.
    pub body: Value,
}

pub enum Body {
    Json(Value),
    /// With its content type.
    Text(&'static str, String),
}

pub struct Reply {
    pub status: u16,
    pub body: Body,
    /// Called when the answer is on its way: what must not happen before.
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

/// Answers requests until the process ends.
pub fn serve<H>(path: &Path, handler: H) -> Result<()>
where
    H: Fn(Request) -> Reply + Send + Sync + 'static,
{
    let failed = |e| Error::io(e, format!("control socket {}", path.display()));
    let listener: UnixListener = socket::bind(path).map_err(failed)?;
    start(listener.into(), THREADS, &format!("control socket {}", path.display()), handler)
}

/// The same on an address of this machine, for who only looks.
pub fn serve_tcp<H>(address: SocketAddr, handler: H) -> Result<()>
where
    H: Fn(Request) -> Reply + Send + Sync + 'static,
{
    let listener = TcpListener::bind(address)
        .map_err(|e| Error::io(e, format!("metrics-listen {address}: choose another port")))?;
    start(listener.into(), 1, &format!("metrics-listen {address}"), handler)
}

fn start<H>(listener: Listener, threads: usize, what: &str, handler: H) -> Result<()>
where
    H: Fn(Request) -> Reply + Send + Sync + 'static,
{
    let failed = |e| Error::io(e, what);
    let kept = clone(&listener).map_err(failed)?;
    let handler = Arc::new(handler);
    let server = Serving::start(listener, threads, handler.clone()).map_err(failed)?;
    thread::Builder::new()
        .name("control-watch".into())
        .spawn(move || {
            watch(&kept, server, || Serving::start(spare(&kept)?, threads, handler.clone()))
        })
        .map_err(failed)?;
    Ok(())
}

/// A server that accepts until it finds no descriptor for a client: that ends it.
struct Serving {
    server: Arc<Server>,
    threads: usize,
    /// Its listener's number and what lay there.
    listener: (RawFd, PathBuf),
}

impl Serving {
    fn start<H>(listener: Listener, threads: usize, handler: Arc<H>) -> io::Result<Serving>
    where
        H: Fn(Request) -> Reply + Send + Sync + 'static,
    {
        let number = number(&listener);
        let listener_is = (number, what_is(number)?);
        let server = Arc::new(Server::from_listener(listener, None).map_err(io::Error::other)?);
        for n in 0..threads {
            let (server, handler) = (server.clone(), handler.clone());
            thread::Builder::new()
                .name(format!("control-{n}"))
                .spawn(move || work(&server, handler.as_ref()))?;
        }
        Ok(Serving { server, threads, listener: listener_is })
    }

    fn accepts(&self) -> bool {
        what_is(self.listener.0).is_ok_and(|now| now == self.listener.1)
    }

    /// Lets its threads go. What is left of it stays: dropped, it would remove the socket's name.
    fn end(self) {
        (0..self.threads).for_each(|_| self.server.unblock());
        std::mem::forget(self.server);
    }
}

/// Starts the server again when it has ended and a client waits.
fn watch(kept: &Listener, mut server: Serving, again: impl Fn() -> io::Result<Serving>) {
    loop {
        wait_for_client(kept);
        if !server.accepts()
            && let Ok(next) = again()
        {
            std::mem::replace(&mut server, next).end();
            tracing::warn!(
                "the control socket had no descriptor left for a client; it answers again"
            );
        }
        thread::sleep(RETRY);
    }
}

fn wait_for_client(listener: &Listener) {
    let interest = rustix::event::PollFlags::IN;
    let mut waits = match listener {
        Listener::Tcp(socket) => [rustix::event::PollFd::new(socket, interest)],
        Listener::Unix(socket) => [rustix::event::PollFd::new(socket, interest)],
    };
    let _ = rustix::event::poll(&mut waits, None);
}

/// Another descriptor of it, if there are some more for clients.
fn spare(listener: &Listener) -> io::Result<Listener> {
    let _for_clients = (0..SPARE).map(|_| clone(listener)).collect::<io::Result<Vec<_>>>()?;
    clone(listener)
}

fn clone(listener: &Listener) -> io::Result<Listener> {
    Ok(match listener {
        Listener::Tcp(socket) => socket.try_clone()?.into(),
        Listener::Unix(socket) => socket.try_clone()?.into(),
    })
}

fn number(listener: &Listener) -> RawFd {
    match listener {
        Listener::Tcp(socket) => socket.as_raw_fd(),
        Listener::Unix(socket) => socket.as_raw_fd(),
    }
}

fn what_is(descriptor: RawFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{descriptor}"))
}

fn work(server: &Server, handler: &(impl Fn(Request) -> Reply + Send + Sync)) {
    for mut request in server.incoming_requests() {
        let reply = match read(&mut request) {
            Ok(request) => handler(request),
            Err(message) => Reply::new(400, serde_json::json!({ "error": message })),
        };
        let (content_type, text) = match reply.body {
            Body::Json(value) => ("application/json", value.to_string()),
            Body::Text(content_type, text) => (content_type, text),
        };
        let header = Header::from_bytes("Content-Type", content_type);
        let response = Response::from_string(text)
            .with_status_code(reply.status)
            .with_chunked_threshold(usize::MAX)
            .with_header(header.expect("two constants in ASCII"));
        // The client may have gone; nothing is left to be told.
        let _ = request.respond(response);
        if let Some(then) = reply.then {
            then();
        }
    }
}

fn read(request: &mut tiny_http::Request) -> std::result::Result<Request, String> {
    let mut body = Vec::new();
    let mut limited = request.as_reader().take(BODY_MAX + 1);
    limited.read_to_end(&mut body).map_err(|e| format!("body: {e}"))?;
    if body.len() as u64 > BODY_MAX {
        return Err(format!("body: longer than {BODY_MAX} bytes"));
    }
    let body = match body.is_empty() {
        true => Value::Null,
        false => serde_json::from_slice(&body).map_err(|e| format!("body: not JSON: {e}"))?,
    };
    let (path, query) = request.url().split_once('?').unwrap_or((request.url(), ""));
    Ok(Request {
        method: request.method().to_string(),
        path: path.to_string(),
        query: query.split('&').filter(|pair| !pair.is_empty()).map(decode_pair).collect(),
        body,
    })
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
