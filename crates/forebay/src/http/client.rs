//! The client side: one connection per request, bounded in time.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_base::lock::sleep;
use forebay_base::{Error, Kind, Result, users};
use forebay_client::{Answer, exchange};
use forebay_engine::Tier;
use serde_json::Value;

use crate::units::human_secs;

/// The daemon answers from memory; a daemon that takes this long hangs.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The time limit for connecting, if the caller only checks who listens.
const GLANCE: Duration = Duration::from_secs(2);

const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The result of a connection attempt, as to the daemon.
#[derive(Debug, PartialEq, Eq)]
pub enum Liveness {
    /// A daemon accepts connections, or may: the caller cannot tell.
    Alive,
    /// No daemon accepts connections.
    Dead,
}

/// A client of one tier's daemon.
pub struct Client {
    socket: PathBuf,
    /// The tier whose owner must be the user of the answering process.
    tier: Option<PathBuf>,
    patience: Duration,
}

impl Client {
    pub fn new(tier: &Path) -> Client {
        Client { socket: Tier::socket_path(tier), tier: Some(tier.into()), patience: TIMEOUT }
    }

    /// A client of any process that listens there; the directory must be trusted.
    pub fn at(socket: &Path) -> Client {
        Client { socket: socket.into(), tier: None, patience: TIMEOUT }
    }

    /// The same client with another time limit for an answer, if that is shorter.
    pub fn within(self, patience: Duration) -> Client {
        Client { patience: self.patience.min(patience), ..self }
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        self.ask("GET", path, &Value::Null)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.ask("POST", path, body)
    }

    pub fn delete(&self, path: &str) -> Result<Value> {
        self.ask("DELETE", path, &Value::Null)
    }

    pub fn liveness(&self) -> Liveness {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        match self.connect(GLANCE) {
            Err(e) if matches!(e.kind(), ConnectionRefused | NotFound) => Liveness::Dead,
            _ => Liveness::Alive,
        }
    }

    /// Whether the daemon is gone, or goes within a moment: a killed process closes its connections first.
    pub fn is_gone(&self) -> bool {
        let until = Instant::now() + GLANCE;
        loop {
            match self.liveness() {
                Liveness::Dead => return true,
                Liveness::Alive if Instant::now() >= until => return false,
                Liveness::Alive => sleep(LOOK_AGAIN),
            }
        }
    }

    /// The tier of the daemon, if it has one.
    pub fn tier(&self) -> Option<&Path> {
        self.tier.as_deref()
    }

    /// Whether the socket belongs to another user, so that this user has no access to its daemon.
    pub fn is_forbidden(&self) -> bool {
        let tried = self.connect(GLANCE);
        tried.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// The daemon's process, as the kernel knows it, even if the daemon does not answer.
    pub fn daemon_pid(&self) -> Option<rustix::process::Pid> {
        let stream = self.connect(GLANCE).ok()?;
        Some(rustix::net::sockopt::socket_peercred(&stream).ok()?.pid)
    }

    /// Connects. A link in another user's tier must not make root give orders to another daemon.
    fn connect(&self, patience: Duration) -> io::Result<UnixStream> {
        let stream = forebay_client::connect(&self.socket, patience)?;
        let Some(tier) = &self.tier else { return Ok(stream) };
        let owner = std::fs::metadata(tier)?.uid();
        let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
        match peer == owner {
            true => Ok(stream),
            false => Err(io::Error::other(format!(
                "the tier belongs to {}, and {} answers",
                users::show(owner),
                users::show(peer)
            ))),
        }
    }

    /// Sends one request and reads the answer. An error answer becomes an error here.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let stream = self.connect(self.patience).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => self.silent(&e),
            _ => self.unreachable(&e),
        })?;
        let answer =
            exchange(stream, self.patience, method, path, body).map_err(|e| self.silent(&e))?;
        match answer.status {
            200..300 => Ok(answer.body),
            _ => Err(error_of(&answer)),
        }
    }

    fn unreachable(&self, error: &io::Error) -> Error {
        let why = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "the daemon is another user's; use sudo, or read .forebay/status in the mount"
            }
            _ => "no daemon serves this tier; `forebay umount` clears a mount it left behind",
        };
        let socket = self.socket.display();
        Error::new(Kind::Unreachable, format!("{socket}: {error}: {why}"))
    }

    fn silent(&self, error: &io::Error) -> Error {
        let who = match self.daemon_pid() {
            Some(pid) => format!("the daemon (pid {})", pid.as_raw_nonzero()),
            None => "the daemon".into(),
        };
        let why = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
                "within {}; if it hangs, kill -9 it and mount again: dirty bytes survive in the \
                 tier",
                human_secs(self.patience.as_secs_f64())
            ),
            _ => format!("as it should: {error}"),
        };
        Error::new(Kind::Unreachable, format!("{who} does not answer {why}"))
    }
}

/// The daemon's error, with the same exit code.
fn error_of(Answer { status, body }: &Answer) -> Error {
    let message = body["error"].as_str().unwrap_or("the daemon refused").to_string();
    let kind = match (body["exit_code"].as_u64(), status) {
        (Some(4), _) => Kind::DirtyAtRisk,
        (Some(2), _) | (None, 400..500) => Kind::Usage,
        (_, 503) => Kind::Unavailable,
        _ => return failed(message),
    };
    Error::new(kind, message)
}

/// An error with exit code 1, with a message of its own.
pub fn failed(message: String) -> Error {
    Error::os(libc::EIO, "daemon").with_source(message)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use serde_json::json;

    use super::super::{Reply, Request, serve};
    use super::*;

    fn echo(request: Request) -> Reply {
        match request.path.as_str() {
            "/fail" => Reply::new(400, json!({ "error": "no such key", "exit_code": 2 })),
            _ => {
                let Request { method, query, body, .. } = request;
                Reply::new(200, json!({ "method": method, "query": query, "body": body }))
            }
        }
    }

    #[test]
    fn requests_and_answers_cross_the_socket_unharmed() {
        let dir = tempfile::tempdir().unwrap();
        // Longer than sun_path, so that the way around that limit is tested.
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        for path in [dir.path().join("s.sock"), deep.join("s.sock")] {
            serve(&path, echo).unwrap();
            let client = Client::at(&path);
            let long = "x".repeat(100_000);
            let answer = client.post("/echo?prefix=a%20b%2fc&e", &json!({ "k": long })).unwrap();
            assert_eq!(answer["method"], "POST");
            assert_eq!(answer["query"], json!([["prefix", "a b/c"], ["e", ""]]));
            assert_eq!(answer["body"]["k"].as_str().unwrap().len(), 100_000);
            assert_eq!(client.daemon_pid().unwrap(), rustix::process::getpid());
            let mode = std::os::unix::fs::PermissionsExt::mode(
                &std::fs::metadata(&path).unwrap().permissions(),
            );
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn an_error_keeps_its_message_and_exit_code() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        serve(&path, echo).unwrap();
        let error = Client::at(&path).get("/fail").unwrap_err();
        assert_eq!((error.to_string().as_str(), error.exit_code()), ("no such key", 2));
    }

    #[test]
    fn nobody_there_is_exit_code_3() {
        let dir = tempfile::tempdir().unwrap();
        let client = Client::at(&dir.path().join("none"));
        assert_eq!(client.get("/v1/status").unwrap_err().exit_code(), 3);
        assert_eq!(client.liveness(), Liveness::Dead);
    }

    #[test]
    fn a_body_that_is_not_json_is_refused_politely() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        serve(&path, echo).unwrap();
        let mut stream = forebay_client::connect(&path, TIMEOUT).unwrap();
        stream.write_all(b"PUT /x HTTP/1.0\r\nContent-Length: 3\r\n\r\n{{{").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(forebay_client::parse(&answer).unwrap().status, 400);
    }
}
