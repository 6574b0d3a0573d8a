//! The client of an etcd cluster: it chooses the member, presents the user, and repeats requests.
//!
//! - C1: every request here can be made twice; a change that may happen only once carries a mark
//!   (`commit`). So every failure that may pass is tried again, at the next member, until the
//!   patience ends.
//! - C2: a registry other than the one that this process has seen, or an older one (restored from a
//!   copy), is refused for good: the differences are unknown, also once its revision has risen above
//!   the seen one.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_base::lock::{Mutex, Rank, asks_the_registry, sleep};
use rustls::ClientConfig;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::http::{Body, Connection};
use super::json::{Answer, Header, Number, Range, Refusal, Token, encode};
use super::tls;
use crate::{Endpoint, Error, Kind, Result, Revision};

/// The pause between two tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(400));

/// Idle connections beyond this many are closed.
const IDLE_MAX: usize = 32;

/// The time that one member may take if there are others.
pub const TURN_MIN: Duration = Duration::from_millis(500);

/// The meaning of an error of etcd. The numbers are gRPC's.
#[derive(Debug)]
pub enum Failed {
    /// The failure may pass.
    Passing(String),
    /// An idle connection had ended, or ended now: another connection is worth a try at once. The
    /// request may have arrived all the same.
    Again(String),
    /// The token is not valid any more.
    Token(String),
    /// The request cannot be done.
    Final(Error),
    /// The lease does not exist.
    NoLease,
    /// The lease exists already.
    LeaseExists,
    /// The revision is compacted.
    Compacted,
    /// The answer is larger than the gateway lets through.
    TooLarge,
}

pub struct Client {
    endpoint: Endpoint,
    address: String,
    pub patience: Duration,
    tls: Option<Arc<ClientConfig>>,
    /// The number of the member that answered last.
    turn: AtomicUsize,
    idle: Mutex<Vec<(usize, Connection)>>,
    token: Mutex<Option<String>>,
    seen: Mutex<Seen>,
    /// The reason why the registry is refused (C2).
    refused: OnceLock<String>,
}

/// The newest known state of the registry.
#[derive(Default)]
struct Seen {
    cluster: Option<Number>,
    revision: Revision,
}

impl Client {
    /// Makes a client without a connection.
    pub fn new(endpoint: &Endpoint, patience: Duration) -> Result<Client> {
        let tls = tls::config(&endpoint.access)?;
        if let Some((_, file)) = &endpoint.access.user {
            tls::password(file)?; // A file that cannot be used is reported at once.
        }
        Ok(Client {
            endpoint: endpoint.clone(),
            address: endpoint.to_string(),
            patience,
            tls,
            turn: AtomicUsize::new(0),
            idle: Mutex::new(Rank::Etcd, Vec::new()),
            token: Mutex::new(Rank::Etcd, None),
            seen: Mutex::new(Rank::Etcd, Seen::default()),
            refused: OnceLock::new(),
        })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn root(&self) -> &str {
        &self.endpoint.prefix
    }

    pub fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    /// Makes a request that concerns no lease and no revision, again and again until the deadline.
    pub fn ask<T: Answer>(&self, path: &str, body: &Value, deadline: Instant) -> Result<T> {
        self.try_until(deadline, |attempt| self.once(path, body, attempt))
            .map_err(|failed| self.unexpected(failed))
    }

    /// Repeats `attempt` while its failures may pass. The argument of `attempt` is the end of its
    /// turn.
    pub fn try_until<T>(
        &self,
        deadline: Instant,
        mut attempt: impl FnMut(Instant) -> std::result::Result<T, Failed>,
    ) -> std::result::Result<T, Failed> {
        let mut pause = PAUSE.0;
        let mut renewed = false;
        loop {
            let why = match attempt(self.end_of_turn(deadline)) {
                Err(Failed::Again(_)) if Instant::now() < deadline => continue,
                Err(Failed::Passing(why) | Failed::Again(why)) => why,
                Err(Failed::Token(why)) if renewed => {
                    return Err(Failed::Final(self.refused(&why)));
                }
                Err(Failed::Token(_)) => {
                    *self.token.lock() = None;
                    renewed = true;
                    continue;
                }
                other => return other,
            };
            if Instant::now() + pause >= deadline {
                return Err(Failed::Final(self.silent(&why)));
            }
            sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn end_of_turn(&self, deadline: Instant) -> Instant {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.endpoint.hosts.len() {
            1 => deadline,
            _ => Instant::now() + (left / 2).max(TURN_MIN).min(left),
        }
    }

    /// Makes a request to one member once.
    pub fn once<T: Answer>(
        &self,
        path: &str,
        body: &Value,
        deadline: Instant,
    ) -> std::result::Result<T, Failed> {
        let token = self.token(deadline)?;
        self.as_of_now(|| {
            self.exchange(("POST", path), token.as_deref(), &body.to_string(), deadline)
        })
    }

    /// C2: the answer to this request must include everything that was seen before it.
    fn as_of_now<T: Answer>(
        &self,
        exchange: impl FnOnce() -> std::result::Result<Vec<u8>, Failed>,
    ) -> std::result::Result<T, Failed> {
        self.check_refused()?;
        let least = self.seen();
        let answer: T = parse(&exchange()?)?;
        if let Some(header) = answer.as_of_now() {
            self.note(header, least)?;
        }
        Ok(answer)
    }

    /// The highest revision that was seen.
    pub fn seen(&self) -> Revision {
        self.seen.lock().revision
    }

    /// C2: notes an answer, which has to be at least as new as `least`.
    pub fn note(&self, header: &Header, least: Revision) -> std::result::Result<(), Failed> {
        let mut seen = self.seen.lock();
        let revision = Revision(header.revision.unsigned());
        let why = if *seen.cluster.get_or_insert(header.cluster_id) != header.cluster_id {
            "this is another registry than before".into()
        } else if revision < least {
            format!(
                "it is at revision {revision}, and {least} was seen: it was restored from an older copy"
            )
        } else {
            seen.revision = seen.revision.max(revision);
            return Ok(());
        };
        self.refused.get_or_init(|| why);
        self.check_refused()
    }

    pub fn check_refused(&self) -> std::result::Result<(), Failed> {
        let Some(why) = self.refused.get() else { return Ok(()) };
        let text = format!(
            "{}: {why}; what changed is not known, so this process does nothing with it any more: \
             bring the newer one back, or go on with this one, and then start again what uses it",
            self.address
        );
        Err(Failed::Final(Error::new(Kind::WrongTier, text)))
    }

    /// Fetches a page outside of the protocol, such as `/metrics`.
    pub fn page(&self, path: &str) -> Option<String> {
        let page =
            self.try_until(self.deadline(), |turn| self.exchange(("GET", path), None, "", turn));
        String::from_utf8(page.ok()?).ok()
    }

    fn exchange(
        &self,
        what: (&str, &str),
        token: Option<&str>,
        body: &str,
        deadline: Instant,
    ) -> std::result::Result<Vec<u8>, Failed> {
        asks_the_registry();
        let idle = self.idle.lock().pop();
        if let Some((member, mut connection)) = idle {
            return match converse(&mut connection, what, token, body, deadline) {
                Ok((status, bytes)) => self.judge(member, connection, status, bytes),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    Err(self.broken(member, &error))
                }
                Err(error) => Err(Failed::Again(error.to_string())),
            };
        }
        let (member, mut connection) = self.connect(deadline)?;
        match converse(&mut connection, what, token, body, deadline) {
            Ok((status, bytes)) => self.judge(member, connection, status, bytes),
            Err(error) => Err(self.broken(member, &error)),
        }
    }

    fn judge(
        &self,
        member: usize,
        connection: Connection,
        status: u16,
        bytes: Vec<u8>,
    ) -> std::result::Result<Vec<u8>, Failed> {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push((member, connection));
        }
        drop(idle);
        if status == 200 {
            return Ok(bytes);
        }
        let failed = self.failed(status, &bytes);
        if matches!(failed, Failed::Passing(_)) {
            self.turn.store(member + 1, Relaxed);
        }
        Err(failed)
    }

    /// A connection to the member whose turn it is.
    pub fn connect(&self, deadline: Instant) -> std::result::Result<(usize, Connection), Failed> {
        asks_the_registry();
        let member = self.turn.load(Relaxed) % self.endpoint.hosts.len();
        let host = &self.endpoint.hosts[member];
        let opened = Connection::open(host, self.tls.as_ref(), deadline);
        opened.map(|c| (member, c)).map_err(|error| self.broken(member, &error))
    }

    /// Begins a stream on a connection of its own.
    pub fn stream(
        &self,
        path: &str,
        body: &Value,
        deadline: Instant,
    ) -> std::result::Result<(usize, Connection, Body), Failed> {
        self.check_refused()?;
        let token = self.token(deadline)?;
        let (member, mut connection) = self.connect(deadline)?;
        let asked = connection.ask(("POST", path), token.as_deref(), &body.to_string(), deadline);
        let (status, mut answer) = asked.map_err(|error| self.broken(member, &error))?;
        if status == 200 {
            return Ok((member, connection, answer));
        }
        let bytes = connection.rest(&mut answer, deadline);
        Err(self.failed(status, &bytes.map_err(|error| self.broken(member, &error))?))
    }

    /// Notes that the connection to a member failed: the next member has its turn.
    pub fn broken(&self, member: usize, error: &io::Error) -> Failed {
        self.turn.store(member + 1, Relaxed);
        let host = &self.endpoint.hosts[member];
        let why = match error.kind() {
            io::ErrorKind::TimedOut => format!("{host} did not answer in time"),
            io::ErrorKind::UnexpectedEof if self.tls.is_none() => {
                format!("{host} ended the connection (if it wants TLS, write etcds://)")
            }
            io::ErrorKind::UnexpectedEof => format!("{host} ended the connection"),
            _ => format!("{host}: {error}"),
        };
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => Failed::Final(self.untrusted(&host.to_string(), error)),
            None if error.kind() == io::ErrorKind::InvalidData => Failed::Final(Error::new(
                Kind::Usage,
                format!(
                    "{}: {why}: does another service have the port, or does it want TLS (etcds://)?",
                    self.address
                ),
            )),
            None => Failed::Passing(why),
        }
    }

    fn untrusted(&self, host: &str, error: &rustls::Error) -> Error {
        let remedy = match error {
            rustls::Error::InvalidCertificate(_) => {
                "ca= has to name the certificates that sign the servers', and the address a name that \
                 theirs have"
            }
            rustls::Error::AlertReceived(_) => {
                "name a certificate that etcd takes with cert= and key="
            }
            _ => "is it etcd with TLS (else write etcd://)?",
        };
        let text = format!("{}: no TLS with {host}: {error}: {remedy}", self.address);
        Error::new(Kind::Usage, text)
    }

    fn token(&self, deadline: Instant) -> std::result::Result<Option<String>, Failed> {
        let Some((name, file)) = &self.endpoint.access.user else { return Ok(None) };
        if let Some(token) = self.token.lock().as_ref() {
            return Ok(Some(token.clone()));
        }
        let password = tls::password(file).map_err(Failed::Final)?;
        let body = json!({ "name": name, "password": password }).to_string();
        let bytes = match self.exchange(("POST", "/v3/auth/authenticate"), None, &body, deadline) {
            // A cluster without users admits a client that presents one like any other.
            Err(Failed::Passing(why)) if why.contains("authentication is not enabled") => {
                return Ok(None);
            }
            other => other?,
        };
        let Token { token } = parse(&bytes)?;
        *self.token.lock() = Some(token.clone());
        Ok(Some(token))
    }

    /// The meaning of an HTTP error.
    fn failed(&self, status: u16, bytes: &[u8]) -> Failed {
        let refusal: Refusal = serde_json::from_slice(bytes).unwrap_or_default();
        if refusal.message.is_empty() && status == 404 {
            return Failed::Final(self.no_gateway());
        }
        if refusal.message.is_empty() {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
            return Failed::Passing(format!("status {status}: {}", text.trim()));
        }
        self.meaning(refusal.code, &refusal.message)
    }

    /// The meaning of one of etcd's errors.
    pub fn meaning(&self, code: i64, message: &str) -> Failed {
        let told = message.trim_start_matches("etcdserver: ");
        match (code, told) {
            (_, t) if t.contains("requested lease not found") => Failed::NoLease,
            (_, t) if t.contains("lease already exists") => Failed::LeaseExists,
            (_, t) if t.contains("has been compacted") => Failed::Compacted,
            (_, t) if t.contains("larger than max") => Failed::TooLarge,
            (_, t) if t.contains("database space exceeded") => Failed::Final(self.full()),
            (16, t) => Failed::Token(t.into()),
            (_, t) if t.contains("revision in header is old") => Failed::Token(t.into()),
            (7, t) => Failed::Final(self.refused(t)),
            (3, t) if t.contains("authentication failed") => Failed::Final(self.refused(t)),
            (3, t) if t.contains("user name is empty") => Failed::Final(
                self.refused("it wants a user: add ?user=NAME&password-file=FILE to the address"),
            ),
            // 9 (not enabled) is handled where the token is asked for; the rest are mistakes of this
            // client.
            (3 | 11 | 12, t) => Failed::Final(Error::new(
                Kind::Os(libc::EPROTO),
                format!(
                    "{}: etcd does not take what it was asked: {t} (code {code})",
                    self.address
                ),
            )),
            (_, t) => Failed::Passing(t.into()),
        }
    }

    fn full(&self) -> Error {
        let text = format!(
            "{}: etcd's quota is used up, and it takes nothing more: compact and defragment it \
             (etcdctl compact, etcdctl defrag), raise --quota-backend-bytes if that is not enough, \
             then etcdctl alarm disarm",
            self.address
        );
        Error::os(libc::ENOSPC, text)
    }

    fn refused(&self, why: &str) -> Error {
        let who = self.endpoint.access.user.as_ref().map_or("nobody", |(name, _)| name);
        let text = format!(
            "{}: refused, as the user {who}: {why}; what it needs is readwrite on the prefix {} \
             (etcdctl role grant-permission ROLE --prefix=true readwrite {})",
            self.address,
            self.root(),
            self.root()
        );
        Error::os(libc::EACCES, text)
    }

    fn no_gateway(&self) -> Error {
        let text = format!(
            "{}: no JSON gateway there: it needs etcd 3.4 or newer, without \
             --enable-grpc-gateway=false",
            self.address
        );
        Error::new(Kind::Usage, text)
    }

    /// Asks for the revision of now: a member that is cut off from the others cannot answer that.
    pub fn newest(&self, deadline: Instant) -> std::result::Result<Range, Failed> {
        let body = self.newest_body();
        self.try_until(deadline, |turn| self.once("/v3/kv/range", &body, turn))
    }

    fn newest_body(&self) -> Value {
        json!({ "key": encode(format!("{}.marks/", self.root())), "count_only": true })
    }

    /// Asks one member for the revision of now, once.
    pub fn alive(&self, member: usize, deadline: Instant) -> std::result::Result<(), Failed> {
        let token = self.token(deadline)?;
        let host = &self.endpoint.hosts[member];
        let (what, body) = (("POST", "/v3/kv/range"), self.newest_body().to_string());
        let answer = self.as_of_now::<Range>(|| {
            let opened = Connection::open(host, self.tls.as_ref(), deadline);
            let mut connection = opened.map_err(|error| self.broken(member, &error))?;
            let answer = converse(&mut connection, what, token.as_deref(), &body, deadline);
            let (status, bytes) = answer.map_err(|error| self.broken(member, &error))?;
            self.judge(member, connection, status, bytes)
        });
        answer.map(drop)
    }

    pub fn forget_token(&self) {
        *self.token.lock() = None;
    }

    pub fn silent(&self, why: &str) -> Error {
        let text = format!("{}: no answer within {:?}: {why}", self.address, self.patience);
        Error::new(Kind::TimedOut, text)
    }

    /// The error for a failure that the caller does not handle.
    pub fn unexpected(&self, failed: Failed) -> Error {
        let text = match failed {
            Failed::Final(error) => return error,
            Failed::Passing(why) | Failed::Again(why) | Failed::Token(why) => {
                return self.silent(&why);
            }
            Failed::NoLease => "it knows no such lease",
            Failed::LeaseExists => "the lease is there already",
            Failed::Compacted => "the revision is compacted",
            Failed::TooLarge => "the answer is too large for its gateway",
        };
        Error::new(Kind::Unavailable, format!("{}: {text}", self.address))
    }
}

fn converse(
    connection: &mut Connection,
    what: (&str, &str),
    token: Option<&str>,
    body: &str,
    deadline: Instant,
) -> io::Result<(u16, Vec<u8>)> {
    let (status, mut answer) = connection.ask(what, token, body, deadline)?;
    Ok((status, connection.rest(&mut answer, deadline)?))
}

pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<T, Failed> {
    let broken = |e: serde_json::Error| Failed::Passing(format!("an answer that is cut: {e}"));
    serde_json::from_slice(bytes).map_err(broken)
}
