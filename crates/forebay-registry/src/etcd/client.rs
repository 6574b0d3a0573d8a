//! The client of an etcd cluster: it chooses the member, presents the user, and repeats requests.
//!
//! - C1: every request here can be made twice; a change that may happen only once carries a mark
//!   (`commit`). So every failure that may pass is tried again, at the next member, until the
//!   patience ends.
//! - C2: a registry other than the one that this process has seen, or an older one (restored from a
//!   copy), is refused for good: the differences are unknown, also once its revision has risen above
//!   the seen one.

use std::collections::BTreeSet;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use forebay_base::lock::{Mutex, Rank, asks_the_registry, sleep};
use rustls::AlertDescription;

use super::connection::Connection;
use super::failed::Failed;
use super::link::Link;
use super::members::Members;
use super::messages::{self, Answer, Header, Range, Token};
use super::proto::{self, Message};
use super::session::{End, Heard};
use super::tls;
use super::token::Tokens;
use crate::{Endpoint, Error, Kind, Result, Revision};

/// The pause between two tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(400));

/// The most tokens that one attempt is made with. The users may change again while a new one is fetched.
const TOKENS_MAX: usize = 3;

/// etcd's errors for a token that it does not know, or that is older than the users and roles.
const TOKEN_ERRORS: [&str; 3] =
    ["invalid auth token", "revision in header is old", "revision of auth store is old"];

/// The time that one member may take if there are others.
const TURN_MIN: Duration = Duration::from_millis(500);

/// The largest answer to one request. A range comes in smaller pages.
const ANSWER_MAX: usize = 16 << 20;

pub struct Client {
    endpoint: Endpoint,
    address: String,
    pub patience: Duration,
    members: Members,
    tokens: Tokens,
    seen: Mutex<Seen>,
    /// The reason why the registry is refused (C2).
    refused: OnceLock<String>,
}

/// The newest known state of the registry.
#[derive(Default)]
struct Seen {
    cluster: Option<u64>,
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
            members: Members::new(&endpoint.hosts, tls),
            tokens: Tokens::new(),
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
    pub fn ask<T: Answer>(&self, path: &str, message: &Message, deadline: Instant) -> Result<T> {
        self.try_until(deadline, |attempt| self.once(path, message, attempt))
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
        let mut unfit = BTreeSet::new();
        loop {
            let why = match attempt(self.end_of_turn(deadline)) {
                Err(Failed::Again(_)) if Instant::now() < deadline => continue,
                Err(Failed::Passing(why) | Failed::Again(why) | Failed::Token(why)) => why,
                Err(Failed::Unfit(member, error)) => {
                    unfit.insert(member);
                    if unfit.len() == self.members.count() {
                        return Err(Failed::Final(error));
                    }
                    error.to_string()
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

    /// One member's part of the patience.
    pub fn part(&self) -> Duration {
        let part = self.patience / self.members.count() as u32;
        part.max(TURN_MIN).min(self.patience)
    }

    fn end_of_turn(&self, deadline: Instant) -> Instant {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.members.count() {
            1 => deadline,
            _ => Instant::now() + (left / 2).max(TURN_MIN).min(left),
        }
    }

    /// Makes a request to one member once.
    pub fn once<T: Answer>(
        &self,
        path: &str,
        message: &Message,
        deadline: Instant,
    ) -> std::result::Result<T, Failed> {
        self.with_token(deadline, |token| {
            let member = self.members.turn();
            self.as_of_now(|| self.exchange(member, path, token, message, deadline))
        })
    }

    /// Makes an attempt with a token, and with a new one as long as etcd does not take it.
    pub fn with_token<T>(
        &self,
        deadline: Instant,
        mut attempt: impl FnMut(Option<&str>) -> std::result::Result<T, Failed>,
    ) -> std::result::Result<T, Failed> {
        let mut told = String::new();
        for _ in 0..TOKENS_MAX {
            let token = self.tokens.get(deadline, || self.token(deadline))?;
            match attempt(token.as_deref()) {
                Err(Failed::Token(why)) => told = why,
                other => return other,
            }
            self.tokens.forget(token.as_deref());
        }
        Err(Failed::Final(self.refused(&told)))
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
        let revision = Revision(header.revision);
        let why = if *seen.cluster.get_or_insert(header.cluster) != header.cluster {
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

    /// Fetches a page outside of the protocol, such as `/metrics`, by HTTP/1.
    pub fn page(&self, path: &str) -> Option<String> {
        let tls = self.members.tls().map(tls::without_http2);
        let page = self.try_until(self.deadline(), |turn| {
            asks_the_registry();
            let member = self.members.turn();
            let host = self.members.host(member);
            let addresses = self.members.addresses(member, turn);
            let link = addresses.and_then(|a| Link::open(host, &a, tls.as_ref(), turn));
            let page = link.and_then(|link| link.page(host, path, turn));
            page.map_err(|error| self.broken(member, &error))
        });
        page.ok()
    }

    fn exchange(
        &self,
        member: usize,
        path: &str,
        token: Option<&str>,
        message: &Message,
        deadline: Instant,
    ) -> std::result::Result<Vec<u8>, Failed> {
        asks_the_registry();
        let idle = self.members.idle(member);
        let was_idle = idle.is_some();
        let mut connection = match idle {
            Some(idle) => idle,
            None => self.connect(member, deadline)?,
        };
        match converse(&mut connection, path, token, message, deadline) {
            Ok(answer) => self.judge(member, connection, answer),
            Err(error) if was_idle && has_ended(&error) => Err(Failed::Again(error.to_string())),
            Err(error) => Err(self.broken(member, &error)),
        }
    }

    fn judge(
        &self,
        member: usize,
        connection: Connection,
        (answer, end): (Option<Vec<u8>>, End),
    ) -> std::result::Result<Vec<u8>, Failed> {
        self.members.keep(member, connection);
        let failed = match answer {
            Some(bytes) if end.code == Some(0) => return Ok(bytes),
            _ => self.ended(member, &end),
        };
        Err(failed)
    }

    fn connect(&self, member: usize, deadline: Instant) -> std::result::Result<Connection, Failed> {
        asks_the_registry();
        self.members.open(member, deadline).map_err(|error| self.broken(member, &error))
    }

    /// Begins a call on a connection of its own.
    pub fn stream(
        &self,
        path: &str,
        token: Option<&str>,
        message: &Message,
        deadline: Instant,
    ) -> std::result::Result<(usize, Connection), Failed> {
        self.check_refused()?;
        let member = self.members.turn();
        let mut connection = self.connect(member, deadline)?;
        let called = connection.call(path, token, message.as_ref(), deadline);
        called.map(|()| (member, connection)).map_err(|error| self.broken(member, &error))
    }

    /// Notes that the connection to a member failed: the next member has its turn.
    pub fn broken(&self, member: usize, error: &io::Error) -> Failed {
        self.members.leave(member);
        let host = self.members.host(member);
        let why = match error.kind() {
            io::ErrorKind::TimedOut => format!("{host} did not answer in time"),
            io::ErrorKind::FileTooLarge => return Failed::TooLarge(format!("{host}: {error}")),
            kind if is_end(kind) => {
                let hint = " (if it wants TLS, write etcds://)";
                let hint = if self.members.tls().is_none() { hint } else { "" };
                format!("{host} ended the connection{hint}")
            }
            _ => format!("{host}: {error}"),
        };
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => Failed::Unfit(member, self.untrusted(&host.to_string(), error)),
            None if error.kind() == io::ErrorKind::InvalidData => {
                Failed::Unfit(member, self.foreign(&why))
            }
            None => Failed::Passing(why),
        }
    }

    fn foreign(&self, why: &str) -> Error {
        let text = format!(
            "{}: {why}: does another service have the port, or does it want TLS (etcds://)?",
            self.address
        );
        Error::new(Kind::Usage, text)
    }

    fn untrusted(&self, host: &str, error: &rustls::Error) -> Error {
        let remedy = match error {
            rustls::Error::InvalidCertificate(_) => {
                "ca= has to name the certificates that sign the servers', and the address a name that \
                 theirs have"
            }
            rustls::Error::AlertReceived(alert)
                if *alert != AlertDescription::NoApplicationProtocol =>
            {
                "name a certificate that etcd takes with cert= and key="
            }
            _ => "is it etcd with TLS (else write etcd://)?",
        };
        let text = format!("{}: no TLS with {host}: {error}: {remedy}", self.address);
        Error::new(Kind::Usage, text)
    }

    /// Asks for a token; none is needed without a user.
    fn token(&self, deadline: Instant) -> std::result::Result<Option<String>, Failed> {
        let Some((name, file)) = &self.endpoint.access.user else { return Ok(None) };
        let password = tls::password(file).map_err(Failed::Final)?;
        let message = messages::authenticate(name, &password);
        let member = self.members.turn();
        let path = messages::AUTHENTICATE;
        let bytes = match self.exchange(member, path, None, &message, deadline) {
            // A cluster without users admits a client that presents one like any other.
            Err(Failed::NoUsers) => return Ok(None),
            other => other?,
        };
        let Token { token } = parse(&bytes)?;
        Ok(Some(token))
    }

    /// Notes that a member has ended a call without an answer: if another one may do better, the next
    /// one has its turn.
    pub fn ended(&self, member: usize, end: &End) -> Failed {
        let host = self.members.host(member);
        let failed = match end {
            End { code: Some(0), .. } => Failed::Passing("an answer without a message".into()),
            End { code: Some(code), message, .. } => self.meaning(*code, message),
            End { http: 0 | 200 | 404, .. } => {
                let why = format!("{host}: no gRPC there (status {})", end.http);
                Failed::Unfit(member, self.foreign(&why))
            }
            End { http, .. } => Failed::Passing(format!("status {http}")),
        };
        if matches!(failed, Failed::Passing(_) | Failed::Unfit(..)) {
            self.members.leave(member);
        }
        failed
    }

    /// The meaning of one of etcd's errors.
    pub fn meaning(&self, code: i64, message: &str) -> Failed {
        let told = message.trim_start_matches("etcdserver: ");
        match (code, told) {
            (_, t) if t.contains("requested lease not found") => Failed::NoLease,
            (_, t) if t.contains("lease already exists") => Failed::LeaseExists,
            (_, t) if t.contains("has been compacted") => Failed::Compacted,
            (_, t) if t.contains("authentication is not enabled") => Failed::NoUsers,
            (_, t) if t.contains("database space exceeded") => Failed::Final(self.full()),
            (16, t) => Failed::Token(t.into()),
            (_, t) if TOKEN_ERRORS.iter().any(|e| t.contains(e)) => Failed::Token(t.into()),
            (7, t) => Failed::Final(self.refused(t)),
            (3, t) if t.contains("authentication failed") => Failed::Final(self.refused(t)),
            (3, t) if t.contains("user name is empty") => Failed::Final(
                self.refused("it wants a user: add ?user=NAME&password-file=FILE to the address"),
            ),
            // The rest are mistakes of this client.
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

    /// Asks for the revision of now: a member that is cut off from the others cannot answer that.
    pub fn newest(&self, deadline: Instant) -> std::result::Result<Range, Failed> {
        let message = self.cheapest();
        self.try_until(deadline, |turn| self.once(messages::RANGE, &message, turn))
    }

    /// The request for as little as can be asked for.
    fn cheapest(&self) -> Message {
        messages::counted(messages::one(&format!("{}.marks/", self.root())))
    }

    /// Asks one member for the revision of now, once.
    pub fn alive(&self, member: usize, deadline: Instant) -> std::result::Result<(), Failed> {
        let (path, message) = (messages::RANGE, self.cheapest());
        let ask = |token: Option<&str>| {
            loop {
                match self.exchange(member, path, token, &message, deadline) {
                    Err(Failed::Again(_)) => {} // There is one idle connection less.
                    other => return other,
                }
            }
        };
        let answer = self.with_token(deadline, |token| self.as_of_now::<Range>(|| ask(token)));
        answer.map(drop)
    }

    pub fn silent(&self, why: &str) -> Error {
        let text = format!("{}: no answer within {:?}: {why}", self.address, self.patience);
        Error::new(Kind::TimedOut, text)
    }

    /// The error for a failure that the caller does not handle.
    pub fn unexpected(&self, failed: Failed) -> Error {
        let text = match failed {
            Failed::Final(error) | Failed::Unfit(_, error) => return error,
            Failed::Passing(why) | Failed::Again(why) | Failed::Token(why) => {
                return self.silent(&why);
            }
            Failed::NoLease => "it knows no such lease",
            Failed::LeaseExists => "the lease is there already",
            Failed::Compacted => "the revision is compacted",
            Failed::NoUsers => "it has no users",
            Failed::TooLarge(why) => &format!("the answer is too large: {why}"),
        };
        Error::new(Kind::Unavailable, format!("{}: {text}", self.address))
    }
}

/// Makes a call of one answer. The answer is missing if the call has failed.
fn converse(
    connection: &mut Connection,
    path: &str,
    token: Option<&str>,
    message: &Message,
    deadline: Instant,
) -> io::Result<(Option<Vec<u8>>, End)> {
    connection.call(path, token, message.as_ref(), deadline)?;
    let mut answer = None;
    loop {
        match connection.next(ANSWER_MAX, deadline)? {
            Heard::Message(bytes) => answer = Some(bytes),
            Heard::Ended(end) => return Ok((answer, end)),
        }
    }
}

/// Whether the peer has ended the connection.
fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Whether the failure of a connection may be due to its having ended before.
fn has_ended(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::FileTooLarge)
}

pub fn parse<T: proto::Read>(bytes: &[u8]) -> std::result::Result<T, Failed> {
    proto::read(bytes).ok_or_else(|| Failed::Passing("an answer that cannot be read".into()))
}
