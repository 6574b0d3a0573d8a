//! Asks other members, over connections that are kept for later questions.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::lock::{Mutex, Rank};
use forebay_base::{Error, Kind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::hello::{ASK, HELLO, Hello, KEYS_DIFFER, PROVE, Prove, Refused, Welcome};
use super::key::{Key, from_hex, hex, random};
use super::limits::{BYTES_MAX, POOL_CONNECTIONS, POOL_TIME, SURE_TIME, WORDS_MAX};
use super::line::{Line, Trouble};
use super::message::{Front, Lengths, bad, put_question, read_answer};
use super::seal::{Nonces, Session, Side};
use super::stream::Stream;
use super::tls::Tls;
use crate::keys::PROTOCOL;
use crate::words::{Answer, Head, Question, Refusal};

/// The status with which a full door refuses.
const FULL: u16 = 503;

/// The asking side of a member. Many threads may ask at once.
pub struct Peers {
    key: Option<Key>,
    tls: Option<Arc<Tls>>,
    idle: Mutex<HashMap<String, Vec<Connection>>>,
}

#[derive(Serialize)]
struct Asking<'q> {
    head: &'q Head,
    question: &'q Question,
}

struct Connection {
    line: Line,
    session: Option<Session>,
    head: Vec<u8>,
    /// When the connection was last used.
    since: Instant,
    /// A part of an answer has come.
    answered: bool,
}

impl Peers {
    pub fn new(key: Option<Key>) -> Peers {
        Peers { key, tls: None, idle: Mutex::new(Rank::Connections, HashMap::new()) }
    }

    /// As [`Peers::new`], over TLS if there is one.
    pub fn over(self, tls: Option<Arc<Tls>>) -> Peers {
        Peers { tls, ..self }
    }

    /// Asks the member at `address` (IP and port), within the patience. `bytes`, at most 4 MiB, go with the question;
    /// bytes that come with the answer are put into `out`, from its beginning.
    ///
    /// A full door is reported as busy: nothing was done.
    ///
    /// A question that [is safe to repeat](is_safe) is asked once more if a kept connection breaks before anything is answered.
    ///
    /// # Errors
    ///
    /// [`Kind::Unreachable`]: nothing was asked, since no connection was made within the patience. [`Kind::Usage`]:
    /// nothing was done, since the question, the address, the key or the protocol is not right. [`Kind::TimedOut`],
    /// [`Kind::Unavailable`]: the question may have been carried out, which the text says. Each names the address.
    pub fn ask(
        &self,
        address: &str,
        head: &Head,
        question: &Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
        patience: Duration,
    ) -> Result<Answer> {
        self.ask_with(address, head, question, [bytes, b""], out, patience)
    }

    /// As [`Peers::ask`], with bytes in two places.
    ///
    /// # Errors
    ///
    /// As [`Peers::ask`].
    pub fn ask_with(
        &self,
        address: &str,
        head: &Head,
        question: &Question,
        bytes: [&[u8]; 2],
        out: &mut Vec<u8>,
        patience: Duration,
    ) -> Result<Answer> {
        let deadline = Instant::now() + patience;
        let usage = |why: String| Error::new(Kind::Usage, format!("member at {address}: {why}"));
        let len = len_of(bytes);
        if len > BYTES_MAX {
            return Err(usage(format!("{len} bytes to send: at most {BYTES_MAX}")));
        }
        let words = serde_json::to_vec(&Asking { head, question });
        let words = words.map_err(|e| usage(format!("a question that cannot be sent: {e}")))?;
        if words.len() > WORDS_MAX {
            return Err(usage(format!("a question of {} bytes: at most {WORDS_MAX}", words.len())));
        }
        let mut again = false;
        if let Some(mut kept) = self.take(address, is_safe(question)) {
            match kept.ask(address, &words, bytes, out, deadline) {
                Ok(answer) => return Ok(self.keep(address, kept, answer)),
                Err(Trouble::Broken(_)) if !kept.answered && is_safe(question) => again = true,
                Err(trouble) => return Err(failed(address, patience, trouble)),
            }
        }
        let Some(mut fresh) = self.connect(address, patience, deadline)? else {
            return Ok(Answer::Refused(Refusal::Busy));
        };
        match fresh.ask(address, &words, bytes, out, deadline) {
            Err(Trouble::Bad(FULL, _)) => Ok(Answer::Refused(Refusal::Busy)),
            // An earlier life may have done what this life refuses.
            Ok((Answer::Refused(Refusal::Epoch(_)), _))
                if again && matches!(question, Question::Append { .. }) =>
            {
                Err(failed(address, patience, Trouble::Broken("it has begun anew".into())))
            }
            Ok(answer) => Ok(self.keep(address, fresh, answer)),
            Err(trouble) => Err(failed(address, patience, trouble)),
        }
    }

    /// Takes a kept connection that has not been closed meanwhile; the last one used comes first. A connection whose
    /// place the door may give to others is for questions that are safe to repeat.
    fn take(&self, address: &str, is_safe: bool) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(address)?;
        if !is_safe && kept.last().is_some_and(|last| last.since.elapsed() >= SURE_TIME) {
            return None;
        }
        while let Some(connection) = kept.pop() {
            if connection.since.elapsed() < POOL_TIME && connection.line.is_quiet() {
                return Some(connection);
            }
        }
        idle.remove(address);
        None
    }

    fn keep(
        &self,
        address: &str,
        mut connection: Connection,
        (answer, stays): (Answer, bool),
    ) -> Answer {
        if !stays {
            return answer;
        }
        connection.since = Instant::now();
        let mut idle = self.idle.lock();
        if !idle.contains_key(address) {
            // This is rare, and thus the time to drop connections to members that are no longer asked.
            idle.retain(|_, kept| {
                kept.retain(|connection| connection.since.elapsed() < POOL_TIME);
                !kept.is_empty()
            });
            idle.insert(address.into(), Vec::new());
        }
        let kept = idle.get_mut(address).expect("it is there by now");
        // The first connection is the one that was idle for longest.
        if kept.first().is_some_and(|first| first.since.elapsed() >= POOL_TIME) {
            kept.remove(0);
        }
        if kept.len() < POOL_CONNECTIONS {
            kept.push(connection);
        }
        answer
    }

    /// Connects. `None`: the member's door is full.
    fn connect(
        &self,
        address: &str,
        patience: Duration,
        deadline: Instant,
    ) -> Result<Option<Connection>> {
        let there: SocketAddr = address.parse().map_err(|_| {
            let why = format!("member at {address:?}: not an address (say 192.0.2.1:7000)");
            Error::new(Kind::Usage, why)
        })?;
        if self.key.is_none() && !there.ip().is_loopback() {
            let why =
                format!("member at {address}: it is asked only with a cluster key: name its file");
            return Err(Error::new(Kind::Usage, why));
        }
        let nobody = |why: String| {
            Error::new(Kind::Unreachable, format!("member at {address}: {why}; nothing was asked"))
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(nobody(format!("the {patience:?} for it are over")));
        }
        let socket = TcpStream::connect_timeout(&there, left).map_err(|e| nobody(e.to_string()))?;
        socket.set_nodelay(true).map_err(|e| nobody(e.to_string()))?;
        let (socket, late) =
            (Arc::new(socket), format!("it did not show who it is in {patience:?}"));
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(socket),
            Some(tls) => {
                let sealed = tls.ask(socket, there.ip());
                match sealed.and_then(|sealed| sealed.greet(deadline).map(|()| sealed)) {
                    Ok(sealed) => Box::new(sealed),
                    Err(Trouble::Late) => return Err(nobody(late)),
                    Err(Trouble::Bad(FULL, _)) => return Ok(None),
                    Err(Trouble::Broken(why) | Trouble::Bad(_, why)) => return Err(nobody(why)),
                }
            }
        };
        let line = Line::new(stream);
        let head = Vec::new();
        let since = Instant::now();
        let mut connection = Connection { line, session: None, head, since, answered: false };
        if let Some(key) = &self.key {
            match connection.greet(address, key, deadline) {
                Ok(()) => {}
                Err(Trouble::Bad(FULL, _)) => return Ok(None),
                Err(Trouble::Late) => {
                    let why = format!("it did not prove the cluster key in {patience:?}");
                    return Err(nobody(why));
                }
                Err(Trouble::Broken(why)) => return Err(nobody(why)),
                Err(trouble) => return Err(failed(address, patience, trouble)),
            }
        }
        Ok(Some(connection))
    }
}

/// Whether a question can be asked again when it is unknown whether it was answered: carrying it out twice has the
/// same result.
pub fn is_safe(question: &Question) -> bool {
    match question {
        Question::Holds { .. }
        | Question::Recall { .. }
        | Question::RecallBelow { .. }
        | Question::Changed { .. }
        | Question::Reached { .. }
        | Question::Open { .. }
        | Question::Close { .. }
        | Question::Read { .. }
        // The home carries out only one append of a handle with the same number.
        | Question::Append { .. }
        | Question::Sync { .. }
        | Question::Flush { .. }
        | Question::Seek { .. }
        | Question::Attrs { .. }
        | Question::Fence { .. }
        | Question::Fetch { .. }
        | Question::Taken { .. }
        | Question::Compared
        // Copies carry their own number, and that of their fill.
        | Question::Copy { .. }
        | Question::Mark { .. }
        | Question::BeginFill { .. }
        // The home recognizes a repeated request by its number.
        | Question::Lock { .. }
        | Question::Granted { .. }
        | Question::Reclaimed { .. } => true,
        Question::Daemon { method, .. } => method == "GET",
        // The first one may be carried out after the second, and over later changes.
        Question::Write { .. }
        | Question::Overwrite { .. }
        | Question::Resize { .. }
        | Question::Allocate { .. }
        | Question::Name { .. } => false,
    }
}

fn len_of(bytes: [&[u8]; 2]) -> usize {
    bytes[0].len() + bytes[1].len()
}

fn failed(address: &str, patience: Duration, trouble: Trouble) -> Error {
    let error = |kind, why: String| Error::new(kind, format!("member at {address}: {why}"));
    let unknown = "it is not known whether it happened";
    match trouble {
        Trouble::Late => error(Kind::TimedOut, format!("no answer in {patience:?}; {unknown}")),
        Trouble::Broken(why) => error(Kind::Unavailable, format!("{why}; {unknown}")),
        // Sent before anything is done.
        Trouble::Bad(400 | 401 | 403 | 404 | 405 | 411 | 413 | 431, why) => error(Kind::Usage, why),
        Trouble::Bad(_, why) => error(Kind::Unavailable, format!("{why}; {unknown}")),
    }
}

impl Connection {
    /// Returns the answer, and whether the connection can be used again.
    fn ask(
        &mut self,
        address: &str,
        words: &[u8],
        bytes: [&[u8]; 2],
        out: &mut Vec<u8>,
        deadline: Instant,
    ) -> std::result::Result<(Answer, bool), Trouble> {
        self.answered = false;
        let seal = self.session.as_mut().map(|session| session.seal(words, len_of(bytes)));
        let front = self.exchange((ASK, address), words, bytes, seal.as_deref(), deadline)?;
        self.line.gather(front.words, deadline)?;
        let words = &self.line.unused()[..front.words];
        // Neither of these is a refusal: the question was answered, and its outcome is unknown.
        let strange = |why: String| Trouble::Broken(format!("its answer cannot be used: {why}"));
        if let Some(session) = &mut self.session {
            let seal = front.seal.as_deref().unwrap_or_default();
            if !session.check(seal, words, front.bytes) {
                return Err(strange("its seal is not this message's".into()));
            }
        }
        let answer = serde_json::from_slice(words).map_err(|e| strange(e.to_string()))?;
        self.line.used(front.words);
        self.line.take(front.bytes, out, deadline)?;
        Ok((answer, !front.closes && self.line.unused().is_empty()))
    }

    /// Sends a message and reads the head of the answer, or the reason of a refusal.
    fn exchange(
        &mut self,
        (path, address): (&str, &str),
        words: &[u8],
        bytes: [&[u8]; 2],
        seal: Option<&str>,
        deadline: Instant,
    ) -> std::result::Result<Front, Trouble> {
        let lengths = Lengths { words: words.len(), bytes: len_of(bytes), seal };
        put_question(&mut self.head, path, address, lengths);
        let written = self.line.write([&self.head, words, bytes[0], bytes[1]], deadline);
        // A door that refuses a question says that before it has read all of it.
        if let Err(Trouble::Late) = written {
            return Err(Trouble::Late);
        }
        let front = read_answer(&mut self.line, deadline);
        self.answered |= front.is_ok() || !self.line.unused().is_empty();
        let front = match (front, written) {
            (Ok(front), _) => front,
            (Err(Trouble::Broken(_)), Err(first)) => return Err(first),
            (Err(Trouble::Bad(_, why)), _) => {
                return Err(Trouble::Broken(format!("its answer cannot be used: {why}")));
            }
            (Err(trouble), _) => return Err(trouble),
        };
        if front.status == 200 {
            return Ok(front);
        }
        self.line.gather(front.words, deadline)?;
        let words = &self.line.unused()[..front.words];
        let seal = front.seal.as_deref().unwrap_or_default();
        if self.session.as_mut().is_some_and(|session| !session.check(seal, words, front.bytes)) {
            return Err(Trouble::Broken("its refusal has not its seal".into()));
        }
        let refused = serde_json::from_slice(words);
        let Refused { status, error } = refused.map_err(|_| {
            Trouble::Broken(format!("it answered with status {} and no reason", front.status))
        })?;
        Err(Trouble::Bad(status, format!("{error} (status {status})")))
    }

    /// Proves the key, and has the door prove it.
    fn greet(
        &mut self,
        address: &str,
        key: &Key,
        deadline: Instant,
    ) -> std::result::Result<(), Trouble> {
        let asker = random().map_err(|e| Trouble::Broken(e.to_string()))?;
        let hello = Hello { protocol: PROTOCOL, nonce: hex(&asker) };
        let welcome: Welcome = self.say((HELLO, address), &hello, deadline)?;
        let door = from_hex(&welcome.nonce).ok_or_else(|| bad("its nonce is not 32 bytes"))?;
        let nonces = Nonces { asker, door };
        if !nonces.check(key, Side::Door, &welcome.proof) {
            return Err(Trouble::Bad(403, KEYS_DIFFER.into()));
        }
        let prove = Prove { proof: nonces.prove(key, Side::Asker) };
        let _: serde::de::IgnoredAny = self.say((PROVE, address), &prove, deadline)?;
        self.session = Some(nonces.session(key, Side::Asker));
        Ok(())
    }

    fn say<T: DeserializeOwned>(
        &mut self,
        to: (&str, &str),
        what: &impl Serialize,
        deadline: Instant,
    ) -> std::result::Result<T, Trouble> {
        let words = serde_json::to_vec(what).expect("texts become JSON");
        let front = self.exchange(to, &words, [b"", b""], None, deadline)?;
        self.line.gather(front.words, deadline)?;
        let said = serde_json::from_slice(&self.line.unused()[..front.words]);
        self.line.used(front.words);
        said.map_err(|e| bad(format!("it does not greet as a member does: {e}")))
    }
}
