//! The threads that keep a member going: the watch, and the clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use forebay_base::lock::sleep;
use forebay_base::{Error, Kind, Result};
use forebay_registry::{Commit, Entry, Event, Registry, Revision, Seen, Watch};

use super::Member;
use super::join::{GIVEN, LEASE, parse};
use crate::core::Input;
use crate::keys;

const TICK: Duration = Duration::from_millis(100);

/// How long one look at the watch may wait.
const LOOK: Duration = Duration::from_secs(1);

/// How often the registry's history is cut, and how many revisions of it are left.
const COMPACT: Duration = Duration::from_secs(300);
const HISTORY: u64 = 100_000;

/// The pause after a failure of the registry.
const PAUSE: Duration = Duration::from_millis(200);

impl Member {
    /// Follows the keys of the store for as long as the member exists.
    pub(super) fn follow(self: &Arc<Member>, watch: Box<dyn Watch>, lives: Lives) -> Result<()> {
        let (member, registry) = (Arc::downgrade(self), self.registry.clone());
        let prefix = format!("stores/{}/", self.store);
        self.spawn("fb-claims", move || follow(&member, &*registry, &prefix, watch, lives))
    }

    fn ended(&self, members: impl IntoIterator<Item = String>) {
        for ended in members {
            let front = self.front();
            self.hands.mount.leave(move || front.into_iter().for_each(|front| front.ended(&ended)));
        }
    }

    /// Tells the core the time, and keeps the leases.
    pub(super) fn tend(self: &Arc<Member>) -> Result<()> {
        let mut given_since = Instant::now();
        let mut compacted = Instant::now();
        // A thread apart from the clock's: a call may take long to find that the registry is away.
        self.at_times("fb-lease", LOOK, move |member| {
            member.keep_lease();
            if given_since.elapsed() > GIVEN / 3 {
                given_since = Instant::now();
                member.turn_given_lease();
            }
            if compacted.elapsed() > COMPACT {
                compacted = Instant::now();
                member.compact();
            }
        })?;
        self.at_times("fb-tend", TICK, |member| {
            member.hands.tend();
            let now = member.now();
            let remaining = member.lease.lock().as_ref().map(|lease| lease.remaining());
            member.feed(Input::Lease(now + remaining.unwrap_or_default()));
            member.feed(Input::Tick);
        })
    }

    fn at_times(
        self: &Arc<Member>,
        name: &str,
        pause: Duration,
        mut work: impl FnMut(&Arc<Member>) + Send + 'static,
    ) -> Result<()> {
        let weak = Arc::downgrade(self);
        self.spawn(name, move || {
            while let Some(member) = weak.upgrade() {
                if member.left.load(Relaxed) {
                    return;
                }
                work(&member);
                drop(member);
                sleep(pause);
            }
        })
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let spawned = Builder::new().name(name.into()).spawn(work);
        spawned
            .map(drop)
            .map_err(|e| Error::new(Kind::Unavailable, "no thread for a member").with_source(e))
    }

    /// A lease that ran out while the registry was away is taken anew: claims do not hang on it.
    fn keep_lease(self: &Arc<Member>) {
        let is_gone = self.lease.lock().as_ref().is_some_and(|lease| lease.is_gone());
        if !is_gone {
            return;
        }
        // Its read grants do not hang on the next lease.
        self.feed(Input::LeaseGone);
        let alive = format!("stores/{}/alive/{}", self.store, self.name);
        let key = format!("stores/{}/members/{}", self.store, self.name);
        let anew = self.registry.lease(LEASE).and_then(|lease| {
            let (me, _) = self.registry.get(&key)?;
            let is_mine = |me: &keys::Member| me.epoch == self.epoch;
            // Another process that has this member's place has a lease of its own.
            let Some(me) = me.filter(|me| parse(me).as_ref().is_some_and(is_mine)) else {
                return Err(Error::new(Kind::Lapsed, "another process is this member now"));
            };
            let commit = Commit::new().if_unchanged(&me).put_leased(&alive, "", lease.id());
            let gone = || Error::new(Kind::Lapsed, "another took this member's place meanwhile");
            self.registry.commit(&commit)?.committed().map(|_| lease).ok_or_else(gone)
        });
        match anew {
            Ok(lease) => {
                let before = self.lease.lock().replace(lease);
                // Outside the lock: dropping a lease waits for the thread that renews it.
                drop(before);
            }
            Err(error) => tracing::warn!(%error, "this member's lease has run out"),
        }
    }

    /// Replaces the lease on which the keys of give-backs hang, which ends some minutes later. The old one
    /// is no longer renewed and runs out by itself.
    fn turn_given_lease(&self) {
        match self.registry.lease(GIVEN) {
            Ok(anew) => {
                let before = self.given_lease.lock().replace(anew);
                if let Some(before) = before {
                    before.let_run_out();
                }
            }
            Err(error) => tracing::debug!(%error, "the lease of what was given back stays"),
        }
    }

    /// One member has the registry forget its history: claims that came and went are not to fill it. A
    /// member that is further behind reads all keys anew.
    fn compact(&self) {
        if self.core.lock().first_alive().as_deref() != Some(&self.name) {
            return;
        }
        let upto = Revision(self.reached.0.lock().0.saturating_sub(HISTORY));
        if upto.0 > 0
            && let Err(error) = self.registry.compact(upto)
        {
            tracing::warn!(%error, "the registry's history was not compacted");
        }
    }

    fn reach(&self, revision: Revision) {
        let (reached, more) = &self.reached;
        let mut reached = reached.lock();
        *reached = revision.max(*reached);
        more.notify_all();
    }
}

fn follow(
    member: &Weak<Member>,
    registry: &dyn Registry,
    prefix: &str,
    mut watch: Box<dyn Watch>,
    mut lives: Lives,
) {
    loop {
        let seen = watch.next(LOOK);
        let Some(member) = member.upgrade() else { return };
        if member.left.load(Relaxed) {
            return;
        }
        match seen {
            Ok(Seen::Changes(events)) => {
                let ended: Vec<String> =
                    events.changes.iter().filter_map(|event| lives.see(prefix, event)).collect();
                member.feed(Input::Seen(events.revision, events.changes));
                member.reach(events.revision);
                member.ended(ended);
            }
            Ok(Seen::Quiet) => {}
            Ok(Seen::Compacted(_)) => match anew(registry, prefix) {
                Ok((entries, revision, next)) => {
                    watch = next;
                    let ended = lives.see_all(Lives::of(prefix, &entries));
                    member.feed(Input::Snapshot(revision, entries));
                    member.reach(revision);
                    member.ended(ended);
                }
                Err(error) => {
                    tracing::warn!(%error, "the registry's keys are not known");
                    sleep(PAUSE);
                }
            },
            // This registry does not know the commits that the members agreed on. Claims stay as they are, and no
            // commit is made, as while the registry is away.
            Err(error) if error.kind() == Kind::WrongTier => {
                tracing::error!(%error, "this member follows the registry no more");
                member.feed(Input::LeaseGone);
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "the watch of the registry");
                sleep(PAUSE);
            }
        }
    }
}

type Anew = (Vec<Entry>, Revision, Box<dyn Watch>);

fn anew(registry: &dyn Registry, prefix: &str) -> Result<Anew> {
    let (entries, revision) = registry.range(prefix)?;
    let watch = registry.watch(prefix, revision)?;
    Ok((entries, revision, watch))
}

/// Keys that stand for lives of members, and the keys' revisions.
pub(super) struct Lives {
    /// A key that exists while the member's lease does.
    alive: BTreeMap<String, Revision>,
    /// A key that is written when the member begins.
    members: BTreeMap<String, Revision>,
}

impl Lives {
    pub(super) fn of(prefix: &str, entries: &[Entry]) -> Lives {
        let mut lives = Lives { alive: BTreeMap::new(), members: BTreeMap::new() };
        entries.iter().for_each(|entry| {
            lives.see(prefix, &Event::Put(entry.clone()));
        });
        lives
    }

    /// The member whose life ends with this change: its lease ran out, or it began anew.
    fn see(&mut self, prefix: &str, event: &Event) -> Option<String> {
        let (kind, name) = event.key().strip_prefix(prefix)?.split_once('/')?;
        let keys = match kind {
            "alive" => &mut self.alive,
            "members" => &mut self.members,
            _ => return None,
        };
        let is_put = matches!(event, Event::Put(_));
        match is_put {
            true => _ = keys.insert(name.into(), event.revision()),
            false => _ = keys.remove(name),
        }
        (is_put == (kind == "members")).then(|| name.into())
    }

    /// The members whose lives have ended since the last look, where the changes in between are unknown.
    fn see_all(&mut self, now: Lives) -> BTreeSet<String> {
        let lapsed = self.alive.iter().filter(|(name, was)| now.alive.get(*name) != Some(*was));
        let begun = now.members.iter().filter(|(name, is)| self.members.get(*name) != Some(*is));
        let ended = lapsed.chain(begun).map(|(name, _)| name.clone()).collect();
        *self = now;
        ended
    }
}
