//! Marks: how a commit is made once, whatever becomes of the answers.
//!
//! Each commit writes, in the same transaction, a token of its own to a key below `.marks/` that no
//! other commit uses at that time, and happens only if that key was last changed when this process
//! thinks it was.
//!
//! - M1: of all the requests of a commit, one changes something at most: it changes the mark too, and
//!   the others find that it was changed. Revisions only rise, so that holds for those that are late.
//! - M2: a commit that was asked for again is called refused only after its mark was changed: a request
//!   that is still under way somewhere finds that.
//! - M3: the mark of a commit whose end is not known is not used again.
//!
//! The keys hang on a lease of the process, so that nothing stays behind. They stay for longer than a
//! request can be under way.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use forebay_base::lock::{Mutex, MutexGuard, Rank};
use serde_json::json;

use super::client::{Client, Failed};
use super::json::Granted;
use crate::{Error, Result};

/// A request lives in etcd for 7 s at most (its own limit), and in a network as long as TCP repeats
/// what is lost: some minutes.
const REST: Duration = Duration::from_secs(15 * 60);

/// Longer than [`REST`]: what a dead process had under way finds its marks.
const LEASE: Duration = Duration::from_secs(20 * 60);

/// A key for tokens, used by one commit at a time.
#[derive(Debug)]
pub struct Mark {
    pub key: String,
    pub token: String,
    pub lease: u64,
    /// When the key was last changed; 0 if it is not there.
    pub changed: u64,
    number: u64,
}

#[derive(Debug)]
struct Lease {
    id: u64,
    renewed: Instant,
}

#[derive(Debug, Default)]
struct State {
    lease: Option<Lease>,
    /// Keys that nobody uses, and when each was last changed.
    free: Vec<(u64, u64)>,
    made: u64,
    tokens: u64,
    /// When something may last have been left under way.
    last_doubt: Option<Instant>,
}

pub struct Marks {
    /// Tells this process from all others, as long as marks live.
    name: String,
    state: Mutex<State>,
}

impl Marks {
    pub fn new() -> Result<Marks> {
        let state = Mutex::new(Rank::Marks, State::default());
        Ok(Marks { name: format!("{:016x}", random()?), state })
    }

    /// A mark for one commit.
    pub fn take(&self, client: &Client, deadline: Instant) -> Result<Mark> {
        let mut state = self.lock();
        let lease = state.lease(client, deadline)?;
        let (number, changed) = state.free.pop().unwrap_or_else(|| {
            state.made += 1;
            (state.made, 0)
        });
        state.tokens += 1;
        let token = format!("{}-{}", self.name, state.tokens);
        let key = format!("{}.marks/{}/{number}", client.root(), self.name);
        Ok(Mark { key, token, lease, changed, number })
    }

    /// The next commit may use the mark, which was last changed at `changed`.
    pub fn give_back(&self, mark: &Mark, changed: u64) {
        let mut state = self.lock();
        if state.lease.as_ref().is_some_and(|held| held.id == mark.lease) {
            state.free.push((mark.number, changed));
        }
    }

    /// A request may still be under way, or nobody knows what became of it.
    pub fn doubt(&self) {
        self.lock().last_doubt = Some(Instant::now());
    }

    /// The lease of a mark was not there, so its keys are not.
    pub fn lost(&self, lease: u64) {
        let mut state = self.lock();
        if state.lease.as_ref().is_some_and(|held| held.id == lease) {
            state.lease = None;
            state.free.clear();
        }
    }

    /// The lease, if nobody needs the marks any more.
    pub fn end(&self) -> Option<u64> {
        let mut state = self.lock();
        let resting = state.last_doubt.is_some_and(|at| at.elapsed() < REST);
        state.lease.take().filter(|_| !resting).map(|lease| lease.id)
    }

    /// Also if somebody panicked who asked etcd under it: what it has was set after the answer, and without it a member that
    /// renews its lease would commit nothing for ever.
    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock_anyway()
    }
}

impl State {
    fn lease(&mut self, client: &Client, deadline: Instant) -> Result<u64> {
        if let Some(lease) = &mut self.lease {
            if lease.renewed.elapsed() < LEASE / 4 {
                return Ok(lease.id);
            }
            let sent = Instant::now();
            if renew(client, lease.id, deadline)?.is_some() {
                lease.renewed = sent;
                return Ok(lease.id);
            }
            self.free.clear();
        }
        let (id, sent) = (random()?, Instant::now());
        grant(client, id, LEASE, deadline)?;
        self.lease = Some(Lease { id, renewed: sent });
        Ok(id)
    }
}

/// Gives the time that was granted.
pub fn grant(client: &Client, id: u64, ttl: Duration, deadline: Instant) -> Result<Duration> {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    let body = json!({ "ID": id.to_string(), "TTL": seconds.to_string() });
    let granted =
        client.try_until(deadline, |turn| client.once::<Granted>("/v3/lease/grant", &body, turn));
    match granted {
        Ok(granted) => Ok(Duration::from_secs(granted.ttl.unsigned().max(seconds))),
        // An earlier attempt of ours: the id was drawn by lot.
        Err(Failed::LeaseExists) => Ok(Duration::from_secs(seconds)),
        Err(failed) => Err(client.unexpected(failed)),
    }
}

/// Gives the time that is left; `None` if the lease is no more.
pub fn renew(client: &Client, id: u64, deadline: Instant) -> Result<Option<Duration>> {
    let body = json!({ "ID": id.to_string() });
    let renewed = client.try_until(deadline, |turn| {
        client
            .once::<super::json::Streamed<Granted>>("/v3/lease/keepalive", &body, turn)
            .and_then(|answer| super::unwrapped(client, answer))
    });
    match renewed {
        Ok(granted) if granted.ttl.0 > 0 => Ok(Some(Duration::from_secs(granted.ttl.unsigned()))),
        Ok(_) | Err(Failed::NoLease) => Ok(None),
        Err(failed) => Err(client.unexpected(failed)),
    }
}

pub fn revoke(client: &Client, id: u64, deadline: Instant) -> Result<()> {
    let body = json!({ "ID": id.to_string() });
    let revoked = client.try_until(deadline, |turn| {
        client.once::<serde_json::Value>("/v3/lease/revoke", &body, turn)
    });
    match revoked {
        Ok(_) | Err(Failed::NoLease) => Ok(()),
        Err(failed) => Err(client.unexpected(failed)),
    }
}

/// Positive as an i64 and never zero, as etcd wants ids.
pub fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Error::io(e, "/dev/urandom"))?;
    Ok((u64::from_ne_bytes(bytes) >> 1).max(1))
}
