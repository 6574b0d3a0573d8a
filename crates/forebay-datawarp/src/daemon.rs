//! Requests to this node's daemon. A refusal comes back as the errno that the daemon names.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use forebay_base::{Error, Result};
use forebay_client::{Answer, connect, exchange};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const SOCKET: &str = "/run/forebay/node.sock";

/// The daemon answers from memory or after a commit; a daemon that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Daemon {
    socket: PathBuf,
}

impl Daemon {
    pub fn here() -> Daemon {
        let named = std::env::var_os("FOREBAY_NODE_SOCKET");
        Daemon { socket: named.map_or_else(|| SOCKET.into(), PathBuf::from) }
    }

    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.ask("GET", path, &Value::Null)
    }

    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.ask("POST", path, &json!(body))
    }

    fn ask<T: DeserializeOwned>(&self, method: &str, path: &str, body: &Value) -> Result<T> {
        let stream = connect(&self.socket, PATIENCE).map_err(|e| match e.kind() {
            // ENOENT would mislead a caller that passed a path: it would seem to be the path that is missing.
            io::ErrorKind::NotFound => Error::os(libc::ECONNREFUSED, "no node daemon"),
            _ => unanswered(&e),
        })?;
        let answer = exchange(stream, PATIENCE, method, path, body).map_err(|e| unanswered(&e))?;
        match answer.status {
            200..300 => serde_json::from_value(answer.body)
                .map_err(|e| Error::os(libc::EPROTO, "the node daemon's answer").with_source(e)),
            _ => Err(refused(&answer)),
        }
    }
}

fn unanswered(error: &io::Error) -> Error {
    let errno = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::InvalidData => libc::EPROTO,
        io::ErrorKind::UnexpectedEof => libc::ECONNRESET,
        _ => error.raw_os_error().unwrap_or(libc::EIO),
    };
    Error::os(errno, "the node daemon")
}

fn refused(answer: &Answer) -> Error {
    let said = answer.body["errno"].as_i64().and_then(|errno| i32::try_from(errno).ok());
    let errno = match (answer.status, said) {
        // The daemon's registry does not answer, or the daemon is overloaded.
        (429 | 503, _) => libc::EAGAIN,
        (_, Some(errno)) if errno > 0 => errno,
        (400..500, _) => libc::EINVAL,
        _ => libc::EIO,
    };
    Error::os(errno, answer.body["error"].as_str().unwrap_or("the node daemon refuses"))
}

/// Whether the daemon may be away only for a moment, as while it is replaced.
pub fn is_away(error: &Error) -> bool {
    matches!(
        error.errno(),
        libc::ECONNREFUSED | libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT | libc::EAGAIN
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon that is replaced may end in the middle of an answer.
    #[test]
    fn an_answer_that_was_cut_short_is_asked_for_again() {
        for cut in ["", "HTTP/1.0 200 OK\r\nContent-"] {
            let error = forebay_client::parse(cut.as_bytes()).unwrap_err();
            assert!(is_away(&unanswered(&error)), "{cut:?}: {error}");
        }
    }

    #[test]
    fn a_refusal_has_the_errno_that_the_daemon_names() {
        let answer = |status, body| refused(&Answer { status, body }).errno();
        assert_eq!(answer(500, json!({"errno": libc::EDQUOT})), libc::EDQUOT);
        assert_eq!(answer(403, json!({"errno": libc::EPERM})), libc::EPERM);
        assert_eq!(answer(503, json!({"errno": libc::EIO})), libc::EAGAIN);
        assert_eq!(answer(400, json!({"error": "no"})), libc::EINVAL);
        assert_eq!(answer(500, Value::Null), libc::EIO);
        assert_eq!(answer(500, json!({"errno": -5})), libc::EIO);
    }
}
