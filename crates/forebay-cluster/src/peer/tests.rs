//! Tests over real sockets on loopback.

mod asks;
mod doors;
mod keys;
mod sealed;
mod strangers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use forebay_backing::FileKey;

use super::{Door, Key, Peers, Service};
use crate::keys::PROTOCOL;
use crate::words::{Answer, Head, Question};

const PATIENCE: Duration = Duration::from_secs(5);

/// Remembers its questions, and answers by the kind of question.
#[derive(Default)]
struct Echo {
    asked: Mutex<Vec<(Head, Question, Vec<u8>)>>,
    count: AtomicU64,
}

impl Service for Echo {
    fn answer(&self, head: &Head, question: Question, bytes: &[u8], out: &mut Vec<u8>) -> Answer {
        self.count.fetch_add(1, Ordering::SeqCst);
        let answer = match &question {
            Question::Read { len, offset, .. } => {
                out.extend((0..*len).map(|n| pattern(*offset + u64::from(n))));
                Answer::Bytes
            }
            Question::Write { .. } | Question::Append { .. } => Answer::At(bytes.len() as u64),
            Question::Recall { file } => {
                // Takes as many milliseconds as the file says.
                thread::sleep(Duration::from_millis(file.ino));
                Answer::Given(true)
            }
            Question::Holds { file, .. } => {
                assert!(file.ino != 666, "a service that panics");
                Answer::Holds(file.generation == 1)
            }
            _ => Answer::Done,
        };
        let mut asked = self.asked.lock().unwrap();
        if asked.len() < 100 {
            asked.push((head.clone(), question, bytes.to_vec()));
        }
        answer
    }
}

fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 7) as u8
}

fn head() -> Head {
    Head {
        store: "scratch".into(),
        from: "n1".into(),
        from_epoch: 3,
        to_epoch: 7,
        protocol: PROTOCOL,
    }
}

fn file(ino: u64) -> FileKey {
    FileKey { ino, generation: 1 }
}

fn key() -> Option<Key> {
    Some(Key::new(b"0123456789abcdef0123456789abcdef").unwrap())
}

fn door(key: Option<Key>) -> (Door, Arc<Echo>, String) {
    let echo = Arc::new(Echo::default());
    let door = Door::open("127.0.0.1:0".parse().unwrap(), (key, None), echo.clone()).unwrap();
    let address = door.address().to_string();
    (door, echo, address)
}

fn ask(peers: &Peers, address: &str, question: &Question) -> forebay_base::Result<Answer> {
    peers.ask(address, &head(), question, b"", &mut Vec::new(), PATIENCE)
}

/// Sends these bytes, and nothing more; returns what comes back until the door closes.
fn say(address: SocketAddr, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // The door may have refused the connection before all was sent.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut text = Vec::new();
    if let Err(error) = socket.read_to_end(&mut text) {
        assert!(error.kind() == std::io::ErrorKind::ConnectionReset, "the door hangs: {error}");
    }
    String::from_utf8_lossy(&text).into()
}

fn post(words: &str, bytes: &str) -> Vec<u8> {
    let (all, of) = (words.len() + bytes.len(), words.len());
    format!(
        "POST /ask HTTP/1.1\r\nContent-Length: {all}\r\nForebay-Words: {of}\r\nConnection: close\r\n\r\n{words}{bytes}"
    )
    .into()
}

fn words(question: &Question) -> String {
    serde_json::json!({ "head": head(), "question": question }).to_string()
}
