//! Marks: they make a commit happen once, even if answers are lost.
//!
//! Each commit writes, in the same transaction, a token of its own to a key below `.marks/` that no other commit uses
//! at that time, and happens only if that key was last changed at the revision that this process knows.
//!
//! - M1: of all the requests of a commit, at most one changes anything: it changes the mark too, and the others find
//!   the mark changed. Revisions only rise, so that holds for late requests.
//! - M2: a repeated commit is called refused only after its mark was changed: a request that is still under way
//!   somewhere finds that.
//! - M3: the mark of a commit with an unknown outcome is not used again.
//!
//! The keys belong to a lease of the process, so that nothing stays behind. They stay for longer than a network
//! carries a request; one that comes even later puts its mark to a lease that does not exist, and is refused.
//!
//! Nothing revokes the requests of a commit that failed: until its mark is changed, one may still happen.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use forebay_base::lock::{Mutex, MutexGuard, Rank};

use super::client::Client;
use super::failed::Failed;
use super::messages::{self, Done, Granted};
use crate::{Error, Result};

/// A request waits in etcd for 7 s at most (its own limit), and in a network as long as TCP retransmits: some
/// minutes. An entry in the log of a leader without a quorum waits for the quorum, and happens then, if it does,
/// before all that is asked later.
const REST: Duration = Duration::from_secs(15 * 60);

/// Longer than [`REST`]: the last requests of a dead process find its marks.
const LEASE: Duration = Duration::from_secs(20 * 60);

/// A key for tokens, used by one commit at a time.
#[derive(Debug)]
pub struct Mark {
    pub key: String,
    pub token: String,
    pub lease: u64,
    /// The revision of the key's last change; 0 if the key does not exist.
    pub changed: u64,
    number: u64,
}

#[cfg(test)]
impl Mark {
    pub fn named(key: &str) -> Mark {
        Mark { key: key.into(), token: "token".into(), lease: 1, changed: 1, number: 1 }
    }
}

#[derive(Debug)]
struct Lease {
    id: u64,
    renewed: Instant,
}

#[derive(Debug, Default)]
struct State {
    lease: Option<Lease>,
    /// Unused keys, and the revision of each one's last change.
    free: Vec<(u64, u64)>,
    made: u64,
    tokens: u64,
    /// The last time that a request may have been left under way.
    last_doubt: Option<Instant>,
}

pub struct Marks {
    /// A name that no other process has as long as marks live.
    name: String,
    state: Mutex<State>,
}

impl Marks {
    pub fn new() -> Result<Marks> {
        let state = Mutex::new(Rank::Marks, State::default());
        Ok(Marks { name: format!("{:016x}", random()?), state })
    }

    /// Takes a mark for one commit.
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

    /// Returns a mark, which was last changed at `changed`, for the next commit.
    pub fn give_back(&self, mark: &Mark, changed: u64) {
        let mut state = self.lock();
        if state.lease.as_ref().is_some_and(|held| held.id == mark.lease) {
            state.free.push((mark.number, changed));
        }
    }

    /// Notes that a request may still be under way, or that its outcome is unknown.
    pub fn doubt(&self) {
        self.lock().last_doubt = Some(Instant::now());
    }

    /// Notes that the lease of a mark does not exist, so its keys do not either.
    pub fn lost(&self, lease: u64) {
        let mut state = self.lock();
        if state.lease.as_ref().is_some_and(|held| held.id == lease) {
            state.lease = None;
            state.free.clear();
        }
    }

    /// Takes the lease, if the marks are not needed any more.
    pub fn end(&self) -> Option<u64> {
        let mut state = self.lock();
        let resting = state.last_doubt.is_some_and(|at| at.elapsed() < REST);
        state.lease.take().filter(|_| !resting).map(|lease| lease.id)
    }

    /// The lock, also after a panic of a thread that asked etcd under it: the state was set after the answer, and
    /// without it a member that renews its lease would never commit again.
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

/// Grants a lease; returns the granted time.
pub fn grant(client: &Client, id: u64, ttl: Duration, deadline: Instant) -> Result<Duration> {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    let message = messages::grant(id, seconds);
    let granted =
        client.try_until(deadline, |turn| client.once::<Granted>(messages::GRANT, &message, turn));
    match granted {
        Ok(granted) => Ok(granted.left().unwrap_or_default().max(Duration::from_secs(seconds))),
        // An earlier attempt of this call made it: the id is random.
        Err(Failed::LeaseExists) => Ok(Duration::from_secs(seconds)),
        Err(failed) => Err(client.unexpected(failed)),
    }
}

/// Renews a lease; returns the time that is left, or `None` if the lease has ended.
pub fn renew(client: &Client, id: u64, deadline: Instant) -> Result<Option<Duration>> {
    let message = messages::lease(id);
    let renewed = client
        .try_until(deadline, |turn| client.once::<Granted>(messages::KEEP_ALIVE, &message, turn));
    match renewed {
        Ok(granted) => Ok(granted.left()),
        Err(Failed::NoLease) => Ok(None),
        Err(failed) => Err(client.unexpected(failed)),
    }
}

pub fn revoke(client: &Client, id: u64, deadline: Instant) -> Result<()> {
    let message = messages::lease(id);
    let revoked =
        client.try_until(deadline, |turn| client.once::<Done>(messages::REVOKE, &message, turn));
    match revoked {
        Ok(_) | Err(Failed::NoLease) => Ok(()),
        Err(failed) => Err(client.unexpected(failed)),
    }
}

/// A random id: positive as an i64 and never zero, as etcd wants ids.
pub fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Error::io(e, "/dev/urandom"))?;
    Ok((u64::from_ne_bytes(bytes) >> 1).max(1))
}
