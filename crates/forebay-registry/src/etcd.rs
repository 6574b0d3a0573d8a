//! A registry of many machines: etcd, through gRPC.
//!
//! Calls share a pool of connections; each watch has one of its own. A commit takes effect once,
//! however often its request has to be repeated (`marks`).

mod client;
mod commit;
mod connection;
mod failed;
mod frame;
mod hpack;
mod link;
mod marks;
mod members;
mod messages;
mod name;
mod proto;
mod sealed;
mod session;
mod socket;
#[cfg(test)]
pub mod tests;
mod tls;
mod token;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::keep::{Kept, Source, check_ttl};
use crate::{
    Alarm, BootClock, Clock, Commit, Endpoint, Entry, Health, Identity, Lease, LeaseId, Outcome,
    Registry, Result, Revision, Watch, limits,
};
use client::Client;
use failed::Failed;
use marks::Marks;
use messages::{Alarms, Done, Header, Kv, Range, Status};
use proto::Message;

/// All keys begin with a character between these ([`limits::check_key`]), and marks do not.
const FIRST: &str = "0";
const LAST: &str = "{";

pub struct Etcd {
    client: Arc<Client>,
    marks: Marks,
    clock: Arc<dyn Clock>,
}

impl Etcd {
    /// Reads certificates and keys; the first call shows whether a member answers.
    pub fn new(endpoint: &Endpoint, patience: Duration) -> Result<Etcd> {
        let client = Arc::new(Client::new(endpoint, patience)?);
        Ok(Etcd { client, marks: Marks::new()?, clock: Arc::new(BootClock) })
    }

    /// A page of a range: as of revision `at`, or of now.
    fn page(
        &self,
        (first, end): (&[u8], &str),
        limit: usize,
        at: Option<Revision>,
        deadline: Instant,
    ) -> std::result::Result<Range, Failed> {
        let range = messages::limited(messages::range(first, end), limit);
        let range = messages::as_of(range, at.unwrap_or_default().0);
        self.client.try_until(deadline, |turn| self.client.once(messages::RANGE, &range, turn))
    }

    fn pages(
        &self,
        prefix: &str,
        deadline: Instant,
    ) -> std::result::Result<(Vec<Entry>, Revision), Failed> {
        let (first, end) = range_of(self.client.root(), prefix);
        let mut first = first.into_bytes(); // The next page may follow a key that is no text.
        let (mut entries, mut at, mut limit) = (Vec::new(), None, limits::PAGE);
        loop {
            let page = match self.page((&first, &end), limit, at, deadline) {
                Err(Failed::TooLarge(_)) if limit > 1 => {
                    limit /= 4;
                    limit = limit.max(1);
                    continue;
                }
                other => other?,
            };
            let revision = *at.get_or_insert(Revision(page.header.revision));
            let last = page.kvs.last().map(|kv| kv.key.clone());
            entries.extend(page.kvs.into_iter().filter_map(|kv| entry(self.client.root(), kv)));
            match last {
                Some(last) if page.more => first = [last.as_slice(), &[0]].concat(),
                _ => return Ok((entries, revision)),
            }
        }
    }

    fn quota(&self, status: &Status) -> Option<u64> {
        if status.quota > 0 {
            return Some(status.quota);
        }
        // Before 3.6 only the metrics show the quota.
        let metrics = self.client.page("/metrics")?;
        let line =
            metrics.lines().find_map(|l| l.strip_prefix("etcd_server_quota_backend_bytes "))?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole bytes")]
        line.trim().parse().ok().map(|bytes: f64| bytes as u64)
    }
}

impl Registry for Etcd {
    fn address(&self) -> &str {
        self.client.address()
    }

    fn get(&self, key: &str) -> Result<(Option<Entry>, Revision)> {
        limits::check_key(key)?;
        let root = self.client.root();
        let message = messages::one(&format!("{root}{key}"));
        let found: Range = self.client.ask(messages::RANGE, &message, self.client.deadline())?;
        let revision = Revision(found.header.revision);
        Ok((found.kvs.into_iter().next().and_then(|kv| entry(root, kv)), revision))
    }

    fn range(&self, prefix: &str) -> Result<(Vec<Entry>, Revision)> {
        limits::check_prefix(prefix)?;
        let deadline = self.client.deadline();
        loop {
            match self.pages(prefix, deadline) {
                // Another client compacted between two pages: start over at a newer revision.
                Err(Failed::Compacted) if Instant::now() < deadline => {}
                other => return other.map_err(|failed| self.client.unexpected(failed)),
            }
        }
    }

    fn commit(&self, commit: &Commit) -> Result<Outcome> {
        limits::check_commit(commit)?;
        commit::commit(&self.client, &self.marks, commit)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        limits::check_prefix(prefix)?;
        Ok(Box::new(watch::Stream::new(Arc::clone(&self.client), prefix, after)?))
    }

    fn lease(&self, ttl: Duration) -> Result<Box<dyn Lease>> {
        check_ttl(ttl)?;
        let sent = self.clock.now();
        let id = marks::random()?;
        let granted = marks::grant(&self.client, id, ttl, self.client.deadline())?;
        let source: Arc<dyn Source> = self.client.clone();
        Ok(Box::new(Kept::new(LeaseId(id), granted, sent, source, Arc::clone(&self.clock))?))
    }

    fn barrier(&self) -> Result<Revision> {
        self.cluster().map(|identity| identity.revision)
    }

    fn compact(&self, upto: Revision) -> Result<()> {
        let deadline = self.client.deadline();
        let newest = self.client.newest(deadline);
        let newest = newest.map_err(|failed| self.client.unexpected(failed))?.header.revision;
        // Of the revision that etcd is given, deletions may be dropped (T4 of `watch`).
        let message = messages::compact(upto.0.min(newest.saturating_sub(1)));
        let compacted = self.client.try_until(deadline, |turn| {
            self.client.once::<Done>(messages::COMPACT, &message, turn)
        });
        match compacted {
            // `Compacted`: an earlier attempt of this call succeeded, and its answer was lost.
            Ok(_) | Err(Failed::Compacted) => Ok(()),
            Err(failed) => Err(self.client.unexpected(failed)),
        }
    }

    fn cluster(&self) -> Result<Identity> {
        let found = self.client.newest(self.client.deadline());
        let found = found.map_err(|failed| self.client.unexpected(failed))?;
        Ok(identity(&found.header))
    }

    fn health(&self) -> Result<Health> {
        let deadline = self.client.deadline();
        let nothing = Message::default();
        let status: Status = self.client.ask(messages::STATUS, &nothing, deadline)?;
        let alarms: Alarms = self.client.ask(messages::ALARM, &nothing, deadline)?;
        let alarms = alarms.alarms.iter().map(|of| match of.alarm {
            1 => Alarm::NoSpace,
            2 => Alarm::Corrupt,
            _ => Alarm::Other,
        });
        Ok(Health {
            version: format!("etcd {}", status.version),
            identity: identity(&status.header),
            bytes: status.bytes,
            bytes_in_use: status.bytes_in_use,
            quota: self.quota(&status),
            alarms: alarms.collect(),
        })
    }
}

impl Drop for Etcd {
    /// Marks that cannot be removed now vanish with their lease.
    fn drop(&mut self) {
        if let Some(lease) = self.marks.end() {
            let soon = Instant::now() + self.client.patience.min(Duration::from_secs(1));
            let _ = marks::revoke(&self.client, lease, soon);
        }
    }
}

impl Source for Client {
    fn renew(&self, id: LeaseId) -> Result<Option<Duration>> {
        marks::renew(self, id.0, self.deadline())
    }

    fn revoke(&self, id: LeaseId) -> Result<()> {
        marks::revoke(self, id.0, self.deadline())
    }
}

fn identity(header: &Header) -> Identity {
    Identity { cluster: format!("{:x}", header.cluster), revision: Revision(header.revision) }
}

/// The keys below a prefix: from the first result to before the second.
fn range_of(root: &str, prefix: &str) -> (String, String) {
    if prefix.is_empty() {
        return (format!("{root}{FIRST}"), format!("{root}{LAST}"));
    }
    let first = format!("{root}{prefix}");
    // The next text of this length in the order of code points, which is the order of their bytes.
    let mut chars: Vec<char> = first.chars().collect();
    while let Some(last) = chars.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            break;
        }
    }
    (first, chars.into_iter().collect())
}

fn short_key(root: &str, kv: &Kv) -> Option<String> {
    let key = std::str::from_utf8(&kv.key).ok()?;
    key.strip_prefix(root).map(str::to_string)
}

/// The entry of a key; `None` for a key that is no text, and so not forebay's.
fn entry(root: &str, kv: Kv) -> Option<Entry> {
    let lease = (kv.lease != 0).then_some(LeaseId(kv.lease));
    let key = short_key(root, &kv)?;
    Some(Entry { key, value: kv.value, revision: Revision(kv.changed), lease })
}
