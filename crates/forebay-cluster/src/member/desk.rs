//! The questions between the daemons of members.

use std::time::Duration;

use forebay_base::{Error, Kind, Result};
use serde_json::Value;

use super::Member;
use crate::front::Desk;
use crate::words::{Answer, Question};

/// An operator waits for the answer; a daemon that stands still is reported.
const PATIENCE: Duration = Duration::from_secs(2);

impl Member {
    /// Sets the desk that answers other members' questions to this member's daemon.
    pub fn set_desk(&self, desk: Box<dyn Desk>) {
        let _ = self.desk.set(desk);
    }

    /// Asks the daemon of another member, as its control socket would be asked.
    ///
    /// # Errors
    ///
    /// If the daemon is out of reach, or refuses; the text is its own.
    pub fn ask_daemon(&self, member: &str, method: &str, path: &str, body: Value) -> Result<Value> {
        let question = Question::Daemon { method: method.into(), path: path.into(), body };
        match self.ask_within(member, &question, [b"", b""], &mut Vec::new(), PATIENCE)? {
            Answer::Said { status: 200, body } => Ok(body),
            Answer::Said { body, .. } => {
                let why = body["error"].as_str().unwrap_or("it refuses").to_string();
                Err(Error::new(Kind::Unavailable, format!("member {member}: {why}")))
            }
            other => Err(Error::os(libc::EPROTO, format!("member {member} answered {other:?}"))),
        }
    }
}
