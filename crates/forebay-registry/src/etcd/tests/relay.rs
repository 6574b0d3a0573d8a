//! A relay between a client and its etcd that loses answers, or holds requests back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

/// The fate of a request for a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// The request reaches etcd; its answer is lost, and the connection with it.
    LoseAnswer,
    /// The connection ends, and the request reaches etcd only when it is released.
    HoldBack,
}

pub struct Relay {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    to: u16,
    fate: Box<dyn Fn(usize) -> Fate + Send + Sync>,
    requests: AtomicUsize,
    injected: AtomicUsize,
    held: Mutex<Vec<Vec<u8>>>,
    closed: AtomicBool,
}

impl Relay {
    /// A relay that asks `fate` about each transaction, by its number.
    pub fn new(to: u16, fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared {
            to,
            fate: Box::new(fate),
            requests: AtomicUsize::new(0),
            injected: AtomicUsize::new(0),
            held: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let accepting = spawn(move || {
            for client in listener.incoming().flatten() {
                if serving.closed.load(SeqCst) {
                    return;
                }
                let serving = Arc::clone(&serving);
                spawn(move || serving.serve(client));
            }
        });
        Relay { port, shared, accepting: Some(accepting) }
    }

    /// The number of requests that did not just pass.
    pub fn injected(&self) -> usize {
        self.shared.injected.load(SeqCst)
    }

    /// Releases the requests that were held back; returns their number.
    pub fn let_go(&self) -> usize {
        let held = std::mem::take(&mut *self.shared.held.lock().expect("no thread fails"));
        for request in &held {
            let mut server = self.shared.server();
            server.write_all(request).expect("etcd takes it");
            let mut answer = Vec::new();
            read_message(&mut server, &mut answer).expect("etcd answers");
        }
        held.len()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.closed.store(true, SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // Wakes the accepting thread.
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl Shared {
    fn server(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.to)).expect("etcd is there")
    }

    fn serve(&self, mut client: TcpStream) {
        let mut server = self.server();
        loop {
            let (mut request, mut answer) = (Vec::new(), Vec::new());
            if read_message(&mut client, &mut request).is_none() {
                return;
            }
            let fate = match request.starts_with(b"POST /v3/kv/txn ") {
                true => (self.fate)(self.requests.fetch_add(1, SeqCst)),
                false => Fate::Pass,
            };
            if fate != Fate::Pass {
                self.injected.fetch_add(1, SeqCst);
            }
            if fate == Fate::HoldBack {
                self.held.lock().expect("no thread fails").push(request);
                let _ = client.shutdown(Shutdown::Both);
                return;
            }
            let sent = server.write_all(&request).ok();
            if sent.and_then(|()| read_message(&mut server, &mut answer)).is_none() {
                return;
            }
            if fate == Fate::LoseAnswer || client.write_all(&answer).is_err() {
                let _ = client.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}

/// Reads a message of HTTP unchanged; `None` if the connection has ended.
pub fn read_message(from: &mut TcpStream, to: &mut Vec<u8>) -> Option<()> {
    let mut bytes = [0; 64 << 10];
    loop {
        if let Some(head) = to.windows(4).position(|four| four == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&to[..head]).to_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let whole = match length {
                Some(length) => to.len() >= head + 4 + length.parse::<usize>().ok()?,
                // In chunks: no line of a body from etcd is empty.
                None => {
                    to[head + 4..].windows(5).any(|end| end == b"0\r\n\r\n")
                        || has_trailer(&to[head..])
                }
            };
            if whole {
                return Some(());
            }
        }
        match from.read(&mut bytes).ok()? {
            0 => return None,
            count => to.extend_from_slice(&bytes[..count]),
        }
    }
}

fn has_trailer(body: &[u8]) -> bool {
    let last = body.windows(5).position(|chunk| chunk == b"\r\n0\r\n");
    last.is_some_and(|_| body.ends_with(b"\r\n\r\n"))
}
