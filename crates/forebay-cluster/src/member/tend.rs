//! The threads that keep a member going: the watch, and the clock.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use forebay_base::{Error, Kind, Result};
use forebay_registry::{Commit, Event, Registry, Revision, Seen, Watch};

use super::join::{GIVEN, LEASE, parse};
use super::{Member, lock};
use crate::core::Input;
use crate::keys;

const TICK: Duration = Duration::from_millis(100);

/// How long one look at the watch may wait.
const LOOK: Duration = Duration::from_secs(1);

/// How often the registry's history is cut, and how many revisions of it are left.
const COMPACT: Duration = Duration::from_secs(300);
const HISTORY: u64 = 100_000;

/// After a failure of the registry.
const PAUSE: Duration = Duration::from_millis(200);

impl Member {
    /// Follows the keys of the store for as long as the member is there.
    pub(super) fn follow(self: &Arc<Member>, watch: Box<dyn Watch>) -> Result<()> {
        let (member, registry) = (Arc::downgrade(self), self.registry.clone());
        let prefix = format!("stores/{}/", self.store);
        self.spawn("fb-claims", move || follow(&member, &*registry, &prefix, watch))
    }

    /// Tells the core the time, and keeps the leases.
    pub(super) fn tend(self: &Arc<Member>) -> Result<()> {
        let mut given_since = Instant::now();
        let mut compacted = Instant::now();
        // Apart from the clock: the registry may take long to say that it is away.
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
            let now = member.now();
            let remaining = lock(&member.lease).as_ref().map(|lease| lease.remaining());
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
        let is_gone = lock(&self.lease).as_ref().is_some_and(|lease| lease.is_gone());
        if !is_gone {
            return;
        }
        // The next one is not what its read grants hang on.
        self.feed(Input::LeaseGone);
        let alive = format!("stores/{}/alive/{}", self.store, self.name);
        let key = format!("stores/{}/members/{}", self.store, self.name);
        let anew = self.registry.lease(LEASE).and_then(|lease| {
            let (me, _) = self.registry.get(&key)?;
            let is_mine = |me: &keys::Member| me.epoch == self.epoch;
            // Another process that has this one's place has a lease of its own.
            let Some(me) = me.filter(|me| parse(me).as_ref().is_some_and(is_mine)) else {
                return Err(Error::new(Kind::Lapsed, "another process is this member now"));
            };
            let commit = Commit::new().if_unchanged(&me).put_leased(&alive, "", lease.id());
            let gone = || Error::new(Kind::Lapsed, "another took this member's place meanwhile");
            self.registry.commit(&commit)?.committed().map(|_| lease).ok_or_else(gone)
        });
        match anew {
            Ok(lease) => *lock(&self.lease) = Some(lease),
            Err(error) => tracing::warn!(%error, "this member's lease has run out"),
        }
    }

    /// What is given back hangs on a lease that ends some minutes later. One that is not renewed any more
    /// runs out by itself.
    fn turn_given_lease(&self) {
        match self.registry.lease(GIVEN) {
            Ok(anew) => {
                let before = lock(&self.given_lease).replace(anew);
                if let Some(before) = before {
                    before.let_run_out();
                }
            }
            Err(error) => tracing::debug!(%error, "the lease of what was given back stays"),
        }
    }

    /// One member has the registry forget its history, so that claims that came and went do not fill it. Who
    /// is further behind reads all keys anew.
    fn compact(&self) {
        if lock(&self.core).first_alive().as_deref() != Some(&self.name) {
            return;
        }
        let upto = Revision(lock(&self.reached.0).0.saturating_sub(HISTORY));
        if upto.0 > 0
            && let Err(error) = self.registry.compact(upto)
        {
            tracing::warn!(%error, "the registry's history was not compacted");
        }
    }

    fn reach(&self, revision: Revision) {
        let (reached, more) = &self.reached;
        let mut reached = lock(reached);
        *reached = revision.max(*reached);
        more.notify_all();
    }
}

fn follow(member: &Weak<Member>, registry: &dyn Registry, prefix: &str, mut watch: Box<dyn Watch>) {
    loop {
        let seen = watch.next(LOOK);
        let Some(member) = member.upgrade() else { return };
        if member.left.load(Relaxed) {
            return;
        }
        match seen {
            Ok(Seen::Changes(events)) => {
                let dead: Vec<String> = events.changes.iter().filter_map(died(prefix)).collect();
                member.feed(Input::Seen(events.revision, events.changes));
                member.reach(events.revision);
                for dead in dead {
                    let front = member.front();
                    member.hands[super::MOUNT]
                        .run(move || front.into_iter().for_each(|front| front.ended(&dead)));
                }
            }
            Ok(Seen::Quiet) => {}
            Ok(Seen::Compacted(_)) => match anew(registry, prefix) {
                Ok((entries, revision, next)) => {
                    watch = next;
                    member.feed(Input::Snapshot(revision, entries));
                    member.reach(revision);
                }
                Err(error) => {
                    tracing::warn!(%error, "the registry's keys are not known");
                    sleep(PAUSE);
                }
            },
            Err(error) => {
                tracing::warn!(%error, "the watch of the registry");
                sleep(PAUSE);
            }
        }
    }
}

type Anew = (Vec<forebay_registry::Entry>, Revision, Box<dyn Watch>);

fn anew(registry: &dyn Registry, prefix: &str) -> Result<Anew> {
    let (entries, revision) = registry.range(prefix)?;
    let watch = registry.watch(prefix, revision)?;
    Ok((entries, revision, watch))
}

/// The member whose life a change ends: its lease ran out, or it began anew.
fn died(prefix: &str) -> impl Fn(&Event) -> Option<String> {
    let (alive, member) = (format!("{prefix}alive/"), format!("{prefix}members/"));
    move |event| match event {
        Event::Deleted { key, .. } => key.strip_prefix(&alive).map(str::to_string),
        // Its key is written when it begins.
        Event::Put(entry) => entry.key.strip_prefix(&member).map(str::to_string),
    }
}
