//! The client side of a daemon's door: one request with a JSON body over a Unix socket, one answer.
//!
//! The code keeps no state, starts no thread and handles no signal, so that it can be part of any
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

/// `sun_path` holds 107 bytes and a NUL; this is a round number below.
const PATH_MAX: usize = 100;

/// The longest answer: a listing of a million files is half as long.
const ANSWER_MAX: u64 = 256 << 20;

/// A daemon's answer: the status of HTTP, and the body.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

/// Connects within `patience`: the queue of a hanging daemon may be full.
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

/// Calls with a short path of the socket, which goes through a descriptor of its directory if need be.
fn with_short_path<T>(path: &Path, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= PATH_MAX {
        return call(path);
    }
    let (dir, name) = split(path)?;
    let dir = File::open(dir)?;
    call(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

/// The directory of a socket, and its name there.
pub fn split(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent().zip(name).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Sends one request and reads the answer. A daemon that sends nothing for `patience`, or has not finished its answer
/// after three times that, counts as silent.
pub fn exchange(
    stream: UnixStream,
    patience: Duration,
    method: &str,
    path: &str,
    body: &Value,
) -> io::Result<Answer> {
    let mut timed = Timed { stream, patience, until: Instant::now() + 3 * patience };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    // HTTP/1.0: the server closes the connection when it is done, and sends no chunks.
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: forebay\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    timed.send(head.as_bytes())?;
    timed.send(body.as_bytes())?;
    parse(&read_answer(&mut timed, ANSWER_MAX)?)
}

/// Reads the whole answer. The answering program may be another user's and send without end.
fn read_answer(from: &mut impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    from.take(max + 1).read_to_end(&mut answer)?;
    match answer.len() as u64 > max {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "the answer has no end")),
        false => Ok(answer),
    }
}

/// A connection with a time limit.
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

    /// Sends without SIGPIPE: a daemon that has gone must not end the calling program.
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

/// Parses a complete answer.
pub fn parse(answer: &[u8]) -> io::Result<Answer> {
    let broken = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(answer) {
        Ok(httparse::Status::Complete(len)) => len,
        // The answering daemon has ended meanwhile.
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
