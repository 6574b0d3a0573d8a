//! The asking end of a daemon's door: one request with a JSON body over a Unix socket, one answer.
//!
//! It keeps no state, starts no thread and takes no signal, so that it can be part of somebody else's
//! program: a connection that breaks is an error and no SIGPIPE, and a call that a signal interrupts
//! goes on.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    self, AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with,
};
use serde_json::Value;

/// `sun_path` holds 107 bytes and a NUL; a round number below it leaves nothing to chance.
const PATH_MAX: usize = 100;

/// A listing of a million files has half of it.
const ANSWER_MAX: u64 = 256 << 20;

/// What a daemon answers: the status of HTTP, and the body.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

/// Connects within `patience`: the queue of a daemon that hangs may be full.
pub fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    with_short_path(path, |short| {
        let address = SocketAddrUnix::new(short)?;
        Ok(retry_on_intr(|| net::connect(&socket, &address))?)
    })?;
    Ok(socket.into())
}

/// Calls with a name of the socket that fits, by way of a descriptor of its directory.
fn with_short_path<T>(path: &Path, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= PATH_MAX {
        return call(path);
    }
    let (dir, name) = split(path)?;
    let dir = File::open(dir)?;
    call(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

/// The directory that a socket is in, and its name there.
pub fn split(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent().zip(name).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Sends one request and reads the answer. A daemon that says nothing for `patience` does not answer, nor does one
/// that has not come to its end in three times that.
pub fn exchange(
    stream: UnixStream,
    patience: Duration,
    method: &str,
    path: &str,
    body: &Value,
) -> io::Result<Answer> {
    let mut timed = Timed { stream, patience, until: Instant::now() + 3 * patience };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    // HTTP/1.0: the server closes when it is done and does not chunk.
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: forebay\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    timed.send(head.as_bytes())?;
    timed.send(body.as_bytes())?;
    parse(&read_answer(&mut timed, ANSWER_MAX)?)
}

/// Who answers may be another user's program, and have no end.
fn read_answer(from: &mut impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    from.take(max + 1).read_to_end(&mut answer)?;
    match answer.len() as u64 > max {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "the answer has no end")),
        false => Ok(answer),
    }
}

/// A connection that is given up at a time.
struct Timed {
    stream: UnixStream,
    patience: Duration,
    until: Instant,
}

impl Timed {
    fn patience(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left.min(self.patience))),
        }
    }

    /// A daemon that has gone must not end the program that asks.
    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(self.patience()?)?;
            let sent = retry_on_intr(|| net::send(&self.stream, bytes, SendFlags::NOSIGNAL))?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }
}

impl Read for Timed {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.patience()?)?;
        self.stream.read(room)
    }
}

/// Reads an answer that has come to its end.
pub fn parse(answer: &[u8]) -> io::Result<Answer> {
    let broken = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(answer) {
        Ok(httparse::Status::Complete(len)) => len,
        // Who answers has ended meanwhile.
        Ok(httparse::Status::Partial) => {
            let why = "the answer was cut short";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        Err(e) => return Err(broken(format!("not HTTP: {e}"))),
    };
    let body = &answer[head..];
    let value = match body.is_empty() {
        true => Value::Null,
        false => serde_json::from_slice(body).map_err(|e| broken(format!("not JSON: {e}")))?,
    };
    Ok(Answer { status: response.code.unwrap_or(0), body: value })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use super::*;

    fn ask(patience: Duration, serve: impl FnOnce(UnixStream) + Send + 'static) -> io::Error {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || serve(theirs));
        let error = exchange(ours, patience, "GET", "/", &Value::Null).unwrap_err();
        server.join().unwrap();
        error
    }

    #[test]
    fn an_answer_that_trickles_is_not_waited_for_to_its_end() {
        let began = Instant::now();
        let error = ask(Duration::from_millis(200), move |mut theirs| {
            while theirs.write_all(b"x").is_ok() && began.elapsed() < Duration::from_secs(30) {
                thread::sleep(Duration::from_millis(20));
            }
        });
        assert!(
            matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock),
            "{error}"
        );
        assert!(began.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn an_answer_without_an_end_is_not_kept() {
        let mut endless = io::repeat(b'x');
        let error = read_answer(&mut endless, 1 << 20).unwrap_err().to_string();
        assert_eq!(error, "the answer has no end");
        assert_eq!(read_answer(&mut io::repeat(b'x').take(9), 9).unwrap(), b"xxxxxxxxx");
    }
}
