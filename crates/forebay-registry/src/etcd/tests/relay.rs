//! A relay between a client and its etcd that loses answers, or holds requests back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use crate::etcd::frame::{END_STREAM, Frame, HEADERS};
use crate::etcd::messages::TXN;
use crate::etcd::session::PREFACE;
use crate::etcd::session::tests::greeting;

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
            server.stream.write_all(&greeting()).expect("etcd takes it");
            server.stream.write_all(request).expect("etcd takes it");
            server.call().expect("etcd answers");
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
    /// A connection to etcd that was begun.
    fn server(&self) -> Peer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.to)).expect("etcd is there");
        stream.write_all(PREFACE).expect("etcd takes it");
        Peer { stream, unread: Vec::new() }
    }

    fn serve(&self, client: TcpStream) {
        let Some(mut client) = Peer::client(client) else { return };
        let mut server = self.server();
        while let Some(request) = client.call() {
            let is_txn = request.windows(TXN.len()).any(|part| part == TXN.as_bytes());
            let fate = match is_txn {
                true => (self.fate)(self.requests.fetch_add(1, SeqCst)),
                false => Fate::Pass,
            };
            if fate != Fate::Pass {
                self.injected.fetch_add(1, SeqCst);
            }
            if fate == Fate::HoldBack {
                self.held.lock().expect("no thread fails").push(request);
                return client.end();
            }
            let sent = server.stream.write_all(&request).ok();
            let Some(answer) = sent.and_then(|()| server.call()) else { return };
            if fate == Fate::LoseAnswer || client.stream.write_all(&answer).is_err() {
                return client.end();
            }
        }
    }
}

/// One side of a connection of HTTP/2.
pub struct Peer {
    pub stream: TcpStream,
    unread: Vec<u8>,
}

impl Peer {
    /// A client that has connected; `None` if it ends at once.
    pub fn client(mut stream: TcpStream) -> Option<Peer> {
        let mut preface = vec![0; PREFACE.len()];
        stream.read_exact(&mut preface).ok()?;
        assert_eq!(preface, PREFACE);
        Some(Peer { stream, unread: Vec::new() })
    }

    /// Reads the frames up to the end of a request or an answer, unchanged; `None` if the connection
    /// has ended.
    pub fn call(&mut self) -> Option<Vec<u8>> {
        let (mut bytes, mut looked) = ([0; 64 << 10], 0);
        loop {
            while let Some(frame) = Frame::first(&self.unread[looked..]).expect("it is HTTP/2") {
                let is_last = frame.kind <= HEADERS && frame.has(END_STREAM);
                looked += frame.len();
                if is_last {
                    return Some(self.unread.drain(..looked).collect());
                }
            }
            match self.stream.read(&mut bytes).ok()? {
                0 => return None,
                count => self.unread.extend_from_slice(&bytes[..count]),
            }
        }
    }

    fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Both); // The client may have gone.
    }
}
