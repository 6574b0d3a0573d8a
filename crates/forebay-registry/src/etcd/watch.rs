//! A watch: a stream of etcd, begun again at its position when its connection ends.
//!
//! - T1: `after` moves only past changes that were returned, or that etcd said do not exist. etcd
//!   sends the changes of a commit together, so a repeated stream begins with a whole commit.
//! - T2: no change is returned twice: a member that was behind and takes a snapshot over sends older
//!   changes again (etcd's issue 20221).
//! - T3: a member with an older state than was seen is asked whether it only lags: silence of an
//!   older registry would mean that nothing has changed (C2).
//! - T4: a stream begins at `after` itself, which T2 leaves out. etcd before its change 18274 begins a stream at
//!   the revision of a compaction without the deletions of that revision; those were told before then.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::lock::sleep;

use super::client::{Client, parse};
use super::connection::Connection;
use super::failed::Failed;
use super::messages::{self, Watched};
use super::session::{End, Heard};
use super::{entry, range_of, short_key};
use crate::{Event, Events, Result, Revision, Seen, Watch};

const PAUSE: Duration = Duration::from_millis(50);

/// etcd sends up to 1000 commits at once, of 1 MiB each, and no more than this.
const ANSWER_MAX: usize = i32::MAX as usize;

/// gRPC's number for what may pass.
const UNAVAILABLE: i64 = 14;

pub struct Stream {
    client: Arc<Client>,
    prefix: String,
    after: Revision,
    open: Option<Open>,
    /// Since when no member could be asked, and why.
    down: Option<(Instant, String)>,
    compacted: Option<Revision>,
}

struct Open {
    member: usize,
    connection: Connection,
    heard: Instant,
}

impl Stream {
    /// Begins the stream at once, so that errors show early.
    pub fn new(client: Arc<Client>, prefix: &str, after: Revision) -> Result<Stream> {
        let prefix = prefix.to_string();
        let mut stream = Stream { client, prefix, after, open: None, down: None, compacted: None };
        let client = Arc::clone(&stream.client);
        let begun = client.try_until(client.deadline(), |turn| stream.begin(turn));
        begun.map_err(|failed| client.unexpected(failed))?;
        Ok(stream)
    }

    /// Asks for the changes after `after`, and waits until etcd has agreed.
    fn begin(&mut self, deadline: Instant) -> std::result::Result<(), Failed> {
        let client = Arc::clone(&self.client);
        client.with_token(deadline, |token| self.begin_with(token, deadline))
    }

    fn begin_with(
        &mut self,
        token: Option<&str>,
        deadline: Instant,
    ) -> std::result::Result<(), Failed> {
        let (first, end) = range_of(self.client.root(), &self.prefix);
        let message = messages::watch(messages::range(&first, &end), self.after.0.max(1)); // T4
        let (member, connection) =
            self.client.stream(messages::WATCH, token, &message, deadline)?;
        let mut open = Open { member, connection, heard: Instant::now() };
        let created = match open.answer(&self.client, deadline) {
            // This member is silent because it has not agreed; another one may.
            Err(Failed::Passing(why)) if why == QUIET => {
                return Err(self.client.broken(member, &ErrorKind::TimedOut.into()));
            }
            other => other?,
        };
        if !created.canceled || created.compacted > 0 {
            self.open = Some(open);
            return self.take(created, deadline).map(drop);
        }
        // Before 3.4.22 etcd says so of a token that it does not know, too.
        if created.reason.contains("permission denied") {
            return Err(Failed::Token(created.reason));
        }
        let end = End { code: Some(UNAVAILABLE), message: created.reason, ..End::default() };
        Err(self.client.ended(member, &end))
    }

    /// Waits for one answer, and returns its changes.
    fn hear(&mut self, deadline: Instant) -> std::result::Result<Vec<Event>, Failed> {
        self.client.check_refused()?;
        if self.open.is_none() {
            self.begin(self.turn_of(deadline))?;
        }
        let Some(open) = self.open.as_mut().filter(|_| self.compacted.is_none()) else {
            return Ok(Vec::new());
        };
        let heard = open.answer(&self.client, deadline)?;
        self.take(heard, self.turn_of(deadline))
    }

    /// A new connection gets its own time, however short the caller's is: a member's part of the patience.
    fn turn_of(&self, deadline: Instant) -> Instant {
        deadline.max(Instant::now() + self.client.part())
    }

    /// Takes an answer (T1, T2, T3).
    fn take(
        &mut self,
        heard: Watched,
        deadline: Instant,
    ) -> std::result::Result<Vec<Event>, Failed> {
        if heard.compacted > 0 {
            self.compacted = Some(Revision(heard.compacted));
            return Ok(Vec::new());
        }
        if heard.canceled {
            return Err(Failed::Passing(format!("the watch was ended: {}", heard.reason)));
        }
        self.client.note(&heard.header, Revision(0))?;
        let progress = heard.events.is_empty() && !heard.created;
        if heard.events.is_empty() && heard.header.revision < self.client.seen().0 {
            self.ask_member(deadline)?;
        }
        let root = self.client.root();
        let revision = |event: &messages::Event| Revision(event.kv.changed);
        let told = |event: messages::Event| {
            let revision = revision(&event);
            match event.deleted {
                true => short_key(root, &event.kv).map(|key| Event::Deleted { key, revision }),
                false => entry(root, event.kv).map(Event::Put),
            }
        };
        let last = heard.events.last().map(revision);
        let anew = heard.events.into_iter().filter(|event| revision(event) > self.after);
        let events: Vec<Event> = anew.filter_map(told).collect();
        let reached = last.or(progress.then_some(Revision(heard.header.revision)));
        self.after = self.after.max(reached.unwrap_or_default());
        Ok(events)
    }

    /// Checks a silent member, which may be cut off, or stopped.
    fn probe(&mut self, deadline: Instant) -> std::result::Result<(), Failed> {
        match &self.open {
            Some(open) if open.heard.elapsed() >= self.client.patience => self.ask_member(deadline),
            _ => Ok(()),
        }
    }

    /// Asks the member for the newest revision, and waits until it has it.
    fn ask_member(&mut self, deadline: Instant) -> std::result::Result<(), Failed> {
        let Some(open) = &mut self.open else { return Ok(()) };
        self.client.alive(open.member, deadline)?;
        open.heard = Instant::now();
        Ok(())
    }

    fn failed(&mut self, failed: Failed) -> Result<()> {
        self.open = None;
        let why = match failed {
            Failed::Passing(why) | Failed::Again(why) | Failed::Token(why) => why,
            Failed::Unfit(_, error) => error.to_string(),
            other => return Err(self.client.unexpected(other)),
        };
        self.down.get_or_insert((Instant::now(), String::new())).1 = why;
        sleep(PAUSE);
        Ok(())
    }
}

impl Watch for Stream {
    fn next(&mut self, timeout: Duration) -> Result<Seen> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(compacted) = self.compacted {
                return Ok(Seen::Compacted(compacted));
            }
            // A caller that does not wait still reads the available answers, and asks again.
            let now = Instant::now();
            let turn = until.max(now + PAUSE).min(now + self.client.patience);
            match self.hear(turn) {
                Ok(changes) => {
                    self.down = None;
                    if !changes.is_empty() {
                        return Ok(Seen::Changes(Events { revision: self.after, changes }));
                    }
                }
                Err(Failed::Passing(why)) if why == QUIET => {
                    self.down = None;
                    if let Err(failed) = self.probe(Instant::now() + self.client.patience) {
                        self.failed(failed)?;
                    }
                }
                Err(failed) => self.failed(failed)?,
            }
            match &self.down {
                Some((since, why)) if since.elapsed() >= self.client.patience => {
                    return Err(self.client.silent(why));
                }
                _ if Instant::now() >= until && self.compacted.is_none() => return Ok(Seen::Quiet),
                _ => {}
            }
        }
    }
}

/// No answer came, and there is no error.
const QUIET: &str = "quiet";

impl Open {
    fn answer(
        &mut self,
        client: &Client,
        deadline: Instant,
    ) -> std::result::Result<Watched, Failed> {
        match self.connection.next(ANSWER_MAX, deadline) {
            Ok(Heard::Message(bytes)) => {
                self.heard = Instant::now();
                parse(&bytes)
            }
            Ok(Heard::Ended(end)) if end.code == Some(0) => {
                Err(Failed::Passing("the watch was ended".into()))
            }
            Ok(Heard::Ended(end)) => Err(client.ended(self.member, &end)),
            Err(e) if e.kind() == ErrorKind::TimedOut => Err(Failed::Passing(QUIET.into())),
            Err(e) => Err(client.broken(self.member, &e)),
        }
    }
}
