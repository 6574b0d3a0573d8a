//! The node daemon: it keeps the node's lease, announces what the node offers, and has everything tended that is
//! wanted of it.

use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::lock::{self, Mutex, MutexGuard, Rank};
use forebay_base::units::human_secs;
use forebay_base::{Error, Kind, Result, users};
use forebay_registry::{Lease, Registry, Seen};

use crate::book::Book;
use crate::clock::now;
use crate::clock::{Clock, Doubt, boot_id};
use crate::config::{NodeConfig, PoolConfig};
use crate::crew::{Crew, Next, Offer};
use crate::desk::{Desk, JOBS, Transfers};
use crate::hands::{Hands, Moved, Stop};
use crate::job::{self, Reaper, Scheduler};
use crate::local::{Known, Local};
use crate::manifest::Over;
use crate::offered::Pools;
use crate::records::{
    Instance, Life, NodeDrain, NodeRecord, Transfer, TransferActual, Want, keys, written,
};
use crate::transfers::Step;

/// How long the node counts as present after it was last heard of.
const LEASE: Duration = Duration::from_secs(15);

/// How often *wanted* records are looked at, whatever the watch reports.
const LOOK: Duration = Duration::from_secs(5);

/// How often records and files of jobs are brought in line.
const JOBS_LOOK: Duration = Duration::from_secs(2);

/// When work that has not ended in its time is looked at again.
const SLOW: Duration = Duration::from_secs(2);

/// How long ended transfers of a gone instance are remembered.
const REMEMBERED: u64 = 7 * 24 * 60 * 60;

/// How many done transfers are remembered for each user; beyond that, only the last ones.
const DONE_MAX: usize = 1000;

/// How often a node announces the time of its clock.
const CLOCK_EVERY: Duration = Duration::from_secs(300);

/// How often the time seen is written down.
const TIME_EVERY: Duration = Duration::from_secs(60);

/// How far clocks may be apart before one of them alone no longer decides that an instance has expired.
const CLOCKS_APART: Duration = Duration::from_secs(300);

/// How long the daemon keeps asking a registry that is away when it starts.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// A running transfer, as far as this daemon knows.
pub struct Live {
    pub stop: Stop,
    pub moved: Mutex<Moved>,
}

impl Default for Live {
    fn default() -> Live {
        Live { stop: Stop::default(), moved: Mutex::new(Rank::NodeNotes, Moved::default()) }
    }
}

pub struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) book: Book,
    pub(crate) local: Local,
    pub(crate) pools: Pools,
    pub(crate) hands: Arc<dyn Hands>,
    pub(crate) crew: Arc<Crew>,
    pub(crate) clock: Arc<Clock>,
    /// When the time seen was last written down, and the doubt of the clock then.
    time_noted: Mutex<(Option<Instant>, Option<Doubt>)>,
    lease: Mutex<Option<Box<dyn Lease>>>,
    /// When this node's time was last announced to the others.
    clock_told: Mutex<Option<Instant>>,
    /// Held while a space's door is opened for a transfer that begins, or shut since none uses it.
    doors: Mutex<()>,
    live: Mutex<BTreeMap<String, Arc<Live>>>,
    /// The progress of transfers that stood still when they were looked at last.
    still: Mutex<BTreeMap<String, Moved>>,
    over: Over,
    /// Instances whose approaching end is in the log, and that end.
    warned: Mutex<BTreeMap<String, u64>>,
    scheduler: Option<Scheduler>,
    since: u64,
    stopping: AtomicBool,
}

impl Node {
    /// Opens state and pools, and begins to tend what is wanted of this node.
    pub fn start(
        config: NodeConfig,
        registry: Arc<dyn Registry>,
        hands: Arc<dyn Hands>,
    ) -> Result<Arc<Node>> {
        let node = Node::open(config, registry, hands)?;
        node.keep_lease()?;
        node.open_pools()?;
        let mut works = vec![("node", Node::attend as fn(&Arc<Node>)), ("watch", Node::listen)];
        if node.scheduler.is_some() {
            works
                .extend([("jobs", Node::tidy_jobs as fn(&Arc<Node>)), ("reaper", Node::reap_jobs)]);
        }
        for (name, work) in works {
            let node = node.clone();
            let spawned = thread::Builder::new().name(name.into()).spawn(move || work(&node));
            spawned.map_err(|e| Error::io(e, "starting a thread"))?;
        }
        Ok(node)
    }

    /// Opens a node that does nothing by itself.
    pub(crate) fn open(
        config: NodeConfig,
        registry: Arc<dyn Registry>,
        hands: Arc<dyn Hands>,
    ) -> Result<Arc<Node>> {
        let local = Local::open(&config.state)?;
        let book = Book::new(registry);
        local.admit(&known(&book)?)?;
        let clock = Arc::new(Clock::after(local.time_seen()?));
        let scheduler = config.scheduler.as_ref().map(Scheduler::open).transpose()?;
        Ok(Arc::new(Node {
            config,
            book,
            local,
            pools: Pools::default(),
            hands,
            crew: Arc::default(),
            clock,
            time_noted: Mutex::new(Rank::NodeTime, (None, None)),
            lease: Mutex::new(Rank::NodeLease, None),
            clock_told: Mutex::new(Rank::NodeClock, None),
            doors: Mutex::new(Rank::NodeDoors, ()),
            live: Mutex::new(Rank::NodeNotes, BTreeMap::new()),
            still: Mutex::new(Rank::NodeNotes, BTreeMap::new()),
            over: Over::new(),
            warned: Mutex::new(Rank::NodeNotes, BTreeMap::new()),
            scheduler,
            since: now(),
            stopping: AtomicBool::new(false),
        }))
    }

    /// Opens the pools. Refused if there are pools and none of them can be used.
    pub(crate) fn open_pools(&self) -> Result<()> {
        let pools = &self.config.pools;
        let mut bad = pools.iter().filter_map(|pool| self.attend_pool(pool).err());
        match bad.next() {
            Some(error) if bad.count() + 1 == pools.len() => Err(error),
            _ => Ok(()),
        }
    }

    fn attend_pool(&self, pool: &PoolConfig) -> Result<()> {
        self.pools.attend(pool, &self.local, &self.book, &self.config.name)
    }

    pub fn name(&self) -> &str {
        &self.config.name
    }

    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    pub fn book(&self) -> &Book {
        &self.book
    }

    pub fn desk(&self) -> Desk {
        let config = &self.config;
        let (limits, root) = (config.limits.clone(), config.mount_root.clone());
        Desk::new(self.book.clone(), limits, root, self.clock.clone())
    }

    /// The state of this daemon for a scheduler, if it serves one.
    pub fn scheduler(&self) -> Option<&Scheduler> {
        self.scheduler.as_ref()
    }

    /// Stops tending. Instances and transfers stay, and the next daemon takes them up.
    pub fn stop(&self, patience: Duration) {
        self.stopping.store(true, Relaxed);
        // Also after a panic elsewhere: nothing is to keep the node from ending.
        self.live.lock_anyway().values().for_each(|live| live.stop.leave());
        self.crew.ring();
        let deadline = Instant::now() + patience;
        while !self.crew.is_idle() && Instant::now() < deadline {
            self.crew.wait(Duration::from_millis(50));
        }
        // The node is gone: others need not wait for the lease to run out.
        self.lease.lock_anyway().take();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// The progress of a transfer that this node carries out.
    pub fn live(&self, id: &str) -> Option<Moved> {
        let live = self.live.lock().get(id)?.clone();
        let moved = live.moved.lock().clone();
        Some(moved)
    }

    /// The lock guards only the turn, and a door that a panic left as it was is minded again.
    #[track_caller]
    pub(crate) fn lock_doors(&self) -> MutexGuard<'_, ()> {
        self.doors.lock_anyway()
    }

    #[track_caller]
    pub(crate) fn lock_live(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Live>>> {
        self.live.lock()
    }

    #[track_caller]
    pub(crate) fn lock_still(&self) -> MutexGuard<'_, BTreeMap<String, Moved>> {
        self.still.lock()
    }

    /// Ends a live transfer and returns its progress. It no longer counts as standing still, unless that is noted
    /// anew.
    pub(crate) fn end_live(&self, transfer: &Transfer) -> Moved {
        self.lock_still().remove(&transfer.id);
        let live = self.live.lock().remove(&transfer.id).unwrap_or_default();
        live.moved.lock().clone()
    }

    /// Tells a running transfer to stop.
    fn stop_live(&self, id: &str) {
        if let Some(live) = self.live.lock().get(id) {
            live.stop.now();
        }
    }

    /// Rings when a *wanted* record changes.
    fn listen(self: &Arc<Node>) {
        while !self.is_stopping() {
            let Ok(mut watch) = self.book.watch(keys::WANTED) else {
                lock::sleep(LOOK);
                continue;
            };
            // Whatever ends the watch, a new one begins from the state at that time.
            while let Ok(seen) = watch.next(LOOK) {
                match seen {
                    _ if self.is_stopping() => return,
                    Seen::Changes(_) => self.crew.ring(),
                    Seen::Quiet => {}
                    Seen::Compacted(_) => break,
                }
            }
            self.crew.ring();
        }
    }

    fn attend(self: &Arc<Node>) {
        let mut failing = false;
        while !self.is_stopping() {
            match self.turn() {
                Ok(()) if failing => {
                    failing = false;
                    tracing::warn!("the registry answers again");
                }
                Ok(()) => {}
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!("what is wanted of this node is not known: {error}");
                    }
                }
            }
            self.crew.wait(LOOK);
        }
    }

    /// Tidies jobs, on the scheduler's machine alone.
    fn tidy_jobs(self: &Arc<Node>) {
        let Some(here) = &self.scheduler else { return };
        let desk = self.desk();
        while !self.is_stopping() {
            if let Err(error) = job::tidy(&self.book, &desk, here) {
                tracing::warn!("jobs: {error}");
            }
            lock::sleep(JOBS_LOOK);
        }
    }

    fn reap_jobs(self: &Arc<Node>) {
        let Some(here) = &self.scheduler else { return };
        let (mut reaper, desk) = (Reaper::default(), self.desk());
        while !self.is_stopping() {
            if let Err(error) = reaper.turn(&self.book, &desk, here) {
                tracing::warn!("jobs: {error}");
            }
            lock::sleep(Reaper::pause(here));
        }
    }

    pub(crate) fn turn(self: &Arc<Node>) -> Result<()> {
        self.keep_lease()?;
        self.keep_time()?;
        self.tell_clock()?;
        self.offer_pools();
        let wanted = Wanted::of(&self.book)?;
        // After the look: an older or another registry must not have instances removed because it does not want them.
        self.local.note_revision(&known(&self.book)?)?;
        self.offer_instances(&wanted)?;
        let transfers = self.desk().transfers_known()?;
        self.offer_transfers(&wanted, &transfers);
        self.warn_of_ends(&wanted);
        self.expire(&wanted)?;
        self.offer_over();
        self.forget_transfers(&wanted, &transfers.read)?;
        self.crew.retain(|key| match key.split_once(' ') {
            Some(("instance", id)) => wanted.knows(id),
            Some(("transfer", id)) => transfers.read.iter().any(|(known, _)| known.id == id),
            _ => true,
        });
        Ok(())
    }

    /// Has each pool attended in a thread of its own: a slow disk holds up only its own pool.
    fn offer_pools(self: &Arc<Node>) {
        for pool in &self.config.pools {
            let (node, config) = (self.clone(), pool.clone());
            self.crew.offer(&format!("pool {}", pool.name), 0, move || {
                // The fault is reported where it is found.
                let _ = node.attend_pool(&config);
                Next::After(LOOK)
            });
        }
    }

    fn offer_over(self: &Arc<Node>) {
        let (Some(max), Some(command)) =
            (self.config.manifest_max, self.config.over_manifest_command.clone())
        else {
            return;
        };
        let node = self.clone();
        self.crew.offer("over-manifest", 0, move || {
            if let Err(error) = node.over.look(&node.book, &node.config.name, max, &command) {
                tracing::warn!("{error}");
            }
            Next::After(LOOK)
        });
    }

    fn offer_instances(self: &Arc<Node>, wanted: &Wanted) -> Result<()> {
        let here = |instance: &&Instance| instance.nodes.contains(&self.config.name);
        let mut due: Vec<Instance> = wanted.instances.values().filter(here).cloned().collect();
        let known: BTreeSet<String> = due.iter().map(|instance| instance.id.clone()).collect();
        // Instances that were begun here and are wanted no more, not even for removal. An instance whose record is
        // not understood may be wanted.
        let forgotten = self.local.instances()?.into_iter();
        due.extend(
            forgotten
                .filter(|instance| !known.contains(&instance.id))
                .filter(|instance| !wanted.unread.contains(&instance.id))
                .map(|instance| Instance { want: Want::Gone, ..instance }),
        );
        let offer = |instance: Instance| {
            let (node, version) = (self.clone(), version(&instance));
            let (key, owner) = (format!("instance {}", instance.id), instance.owner.uid);
            Offer { key, owner, version, work: Box::new(move || node.tend_and_tell(&instance)) }
        };
        self.crew.offer_fairly(due.into_iter().map(offer).collect());
        Ok(())
    }

    fn offer_transfers(self: &Arc<Node>, wanted: &Wanted, transfers: &Transfers) {
        let mut offers = Vec::new();
        for (transfer, actual) in &transfers.read {
            if transfer.node != self.config.name || wanted.unread.contains(&transfer.instance) {
                continue;
            }
            let instance = wanted.instances.get(&transfer.instance);
            let step = crate::transfers::decide(transfer, actual.as_ref(), instance);
            let (node, transfer) = (self.clone(), transfer.clone());
            let key = format!("transfer {}", transfer.id);
            let (owner, want) = (transfer.owner.uid, instance.map(|instance| instance.want));
            let version = version(&(&transfer, want));
            let work: Box<dyn FnOnce() -> Next + Send> = match (step, instance) {
                (Step::Nothing, _) => continue,
                (Step::Carry, Some(instance)) => {
                    let instance = instance.clone();
                    Box::new(move || node.carry_and_tell(&transfer, &instance))
                }
                _ => {
                    self.stop_live(&transfer.id);
                    // If the transfer is not running, the signal has no receiver.
                    Box::new(move || node.say_stopped(&transfer))
                }
            };
            offers.push(Offer { key, owner, version, work });
        }
        self.crew.offer_fairly(offers);
    }

    fn tend_and_tell(&self, instance: &Instance) -> Next {
        match self.tend(instance) {
            Ok(next) => next,
            // The work is under way, and no thread waits for it.
            Err(error) if error.kind() == Kind::TimedOut => {
                if let Err(error) = self.tell_slow(instance, &error.to_string()) {
                    tracing::warn!("instance {}: telling so: {error}", instance.id);
                }
                Next::After(SLOW)
            }
            Err(error) => {
                tracing::warn!("instance {}: {error}", instance.id);
                if let Err(error) = self.tell_failed(instance, &error.to_string()) {
                    tracing::warn!("instance {}: telling so: {error}", instance.id);
                }
                Next::BackOff
            }
        }
    }

    /// Orders that expired named instances of this node go. A clock that is doubted, or ahead of all others, decides
    /// nothing.
    pub(crate) fn expire(&self, wanted: &Wanted) -> Result<()> {
        let time = self.clock.time().seconds;
        for instance in wanted.instances.values() {
            let here = instance.nodes.contains(&self.config.name) && instance.want == Want::Here;
            if !instance.has_expired(time) || !here {
                continue;
            }
            if let Some(ahead) = self.clock_is_ahead(now())? {
                tracing::warn!("instance {} would have expired, but {ahead}", instance.id);
                continue;
            }
            if self.desk().expire(&instance.id, time)? {
                tracing::warn!("instance {} has expired and goes", instance.id);
            }
        }
        Ok(())
    }

    /// Logs once for each instance of this node, and for each end that it is given, that the end comes soon.
    pub(crate) fn warn_of_ends(&self, wanted: &Wanted) {
        let time = self.clock.time().seconds;
        let here = |instance: &&Instance| instance.nodes.contains(&self.config.name);
        let mut warned = self.warned.lock();
        warned.retain(|id, _| wanted.knows(id));
        for instance in wanted.instances.values().filter(here) {
            let Some(left) = instance.ends_soon(time) else { continue };
            let Life::Named { expires: Some(at) } = instance.life else { continue };
            if warned.insert(instance.id.clone(), at) != Some(at) {
                let (id, left) = (&instance.id, human_secs(left as f64));
                let owner = users::show(instance.owner.uid);
                tracing::warn!("instance {id} of {owner} expires in {left} and goes then");
            }
        }
    }

    /// Whether this node's clock is ahead of those that other nodes have announced.
    pub(crate) fn clock_is_ahead(&self, time: u64) -> Result<Option<String>> {
        let newest = self.other_clocks()?.into_iter().max();
        Ok(newest.and_then(|newest| apart(time, newest)).map(|ahead| {
            format!("this node's clock is {ahead} s ahead of all others: set it right")
        }))
    }

    /// Whether this clock is far from all others, on either side: another node's wrong clock is not this node's
    /// fault.
    pub(crate) fn clock_is_off(&self, time: u64) -> Result<bool> {
        let others = self.other_clocks()?;
        Ok(!others.is_empty() && !agrees_with_one(time, &others))
    }

    fn other_clocks(&self) -> Result<Vec<u64>> {
        let nodes = self.book.list_some::<NodeRecord>(keys::NODES)?.read;
        let others = nodes.iter().filter(|(name, _)| *name != self.config.name);
        Ok(others.map(|(_, node)| node.clock).filter(|clock| *clock > 0).collect())
    }

    /// Writes down the time seen, and logs when the clock is no longer believed, or believed again.
    pub(crate) fn keep_time(&self) -> Result<()> {
        // The value is set last, like the next two.
        let mut noted = self.time_noted.lock_anyway();
        if self.clock.time().doubt.is_some()
            && agrees_with_one(self.clock.wall(), &self.other_clocks()?)
        {
            self.clock.believe();
        }
        let time = self.clock.time();
        let (when, doubt) = &mut *noted;
        let news = doubt.map(|doubt| doubt.ahead) != time.doubt.map(|doubt| doubt.ahead);
        if !news && when.is_some_and(|when| when.elapsed() < TIME_EVERY) {
            return Ok(());
        }
        match time.doubt {
            Some(doubt) if news => {
                tracing::warn!("{doubt}; nothing is dropped by it and nothing expires")
            }
            None if news => tracing::warn!("this node's clock is believed again"),
            _ => {}
        }
        self.local.note_time(&self.clock.seen())?;
        (*when, *doubt) = (Some(Instant::now()), time.doubt);
        Ok(())
    }

    /// Announces this node's time, from time to time.
    fn tell_clock(&self) -> Result<()> {
        let mut told = self.clock_told.lock_anyway();
        if told.is_some_and(|told| told.elapsed() < CLOCK_EVERY) {
            return Ok(());
        }
        if let Some(lease) = &*self.lease.lock_anyway() {
            self.book.put_leased(&keys::node(&self.config.name), &self.record(), lease.id())?;
            self.book.put(&keys::heard(&self.config.name), &now())?;
        }
        *told = Some(Instant::now());
        Ok(())
    }

    /// Forgets transfers that ended long ago, and of those that are done all but the last ones.
    pub(crate) fn forget_transfers(
        &self,
        wanted: &Wanted,
        transfers: &[(Transfer, Option<TransferActual>)],
    ) -> Result<()> {
        let old = self.clock.time().seconds.saturating_sub(REMEMBERED);
        let mut done: BTreeMap<u32, usize> = BTreeMap::new();
        let mut here: Vec<_> =
            transfers.iter().filter(|(transfer, _)| transfer.node == self.config.name).collect();
        here.sort_by_key(|(transfer, _)| Reverse(transfer.created));
        for (transfer, actual) in here {
            let ended = actual.as_ref().map_or(transfer.created, |actual| actual.since);
            let gone = !wanted.may_have(transfer);
            let spent = actual.as_ref().is_some_and(|actual| transfer.is_spent(actual));
            if !gone && (transfer.id.starts_with(JOBS) || !wanted.is_named(&transfer.instance)) {
                // Its job may ask for it; not for as long as a named instance may live.
                if spent && ended < old {
                    self.forget_transfer(&transfer.id)?;
                }
                continue;
            }
            let count = done.entry(transfer.owner.uid).or_default();
            *count += usize::from(spent);
            if ((gone || spent) && ended < old) || (spent && *count > DONE_MAX) {
                self.forget_transfer(&transfer.id)?;
            }
        }
        Ok(())
    }

    fn forget_transfer(&self, id: &str) -> Result<()> {
        self.local.forget_transfer(id)?;
        self.book.change("transfers", |draft| {
            draft.delete(&keys::wanted_transfer(id));
            draft.delete(&keys::actual_transfer(id));
            Ok(())
        })
    }

    /// Holds the node's lease, a new one if the last has run out.
    fn keep_lease(&self) -> Result<()> {
        let mut lease = self.lease.lock_anyway();
        if lease.as_ref().is_some_and(|lease| lease.remaining() > Duration::ZERO) {
            return Ok(());
        }
        let new = self.book.registry().lease(LEASE)?;
        self.claim_name(&*new)?;
        *lease = Some(new);
        Ok(())
    }

    pub(crate) fn record(&self) -> NodeRecord {
        NodeRecord {
            address: self.config.address.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            boot: boot_id(),
            since: self.since,
            // A doubted clock vouches for no other (C4).
            clock: if self.clock.time().doubt.is_some() { 0 } else { self.clock.wall() },
        }
    }

    /// Writes the node's record; refused if another daemon has its name.
    fn claim_name(&self, lease: &dyn Lease) -> Result<()> {
        let (key, mine) = (keys::node(&self.config.name), self.record());
        let deadline = Instant::now() + START_PATIENCE;
        // The record of the previous daemon stays until its lease runs out.
        while let Some(other) = self.book.read::<NodeRecord>(&key)? {
            if is_ours(&other, &mine) {
                break;
            }
            if Instant::now() > deadline {
                return Err(Error::new(
                    Kind::Usage,
                    format!(
                        "node {}: a daemon of this name is there already (pid {}, boot {}): give each node \
                     its own `name`",
                        self.config.name, other.pid, other.boot
                    ),
                ));
            }
            lock::sleep(Duration::from_millis(200));
        }
        self.book.put_leased(&key, &mine, lease.id())
    }

    /// Whether the node is to take nothing new.
    pub fn drain(&self) -> Result<Option<NodeDrain>> {
        self.book.read(&keys::node_drain(&self.config.name))
    }
}

/// The instances that are wanted.
pub(crate) struct Wanted {
    pub instances: BTreeMap<String, Instance>,
    /// Instances that a newer node has written and this one does not understand.
    pub unread: BTreeSet<String>,
}

impl Wanted {
    pub fn of(book: &Book) -> Result<Wanted> {
        let listed = book.list_some(keys::WANTED_INSTANCES)?;
        let unread = listed.unread.into_iter().map(|(id, _)| id).collect();
        Ok(Wanted { instances: listed.read.into_iter().collect(), unread })
    }

    fn knows(&self, id: &str) -> bool {
        self.instances.contains_key(id) || self.unread.contains(id)
    }

    /// Whether a transfer's instance exists, as far as this version understands it.
    fn may_have(&self, transfer: &Transfer) -> bool {
        let instance = self.instances.get(&transfer.instance);
        instance.is_some_and(|instance| transfer.belongs_to(instance))
            || self.unread.contains(&transfer.instance)
    }

    fn is_named(&self, id: &str) -> bool {
        let instance = self.instances.get(id);
        instance.is_some_and(|instance| matches!(instance.life, Life::Named { .. }))
    }
}

/// Whether one of `others` announced the same time, within the tolerance for clocks.
fn agrees_with_one(time: u64, others: &[u64]) -> bool {
    others.iter().any(|told| apart(time, *told).or(apart(*told, time)).is_none())
}

/// By how much one time is later than another that was announced some time ago, if that is beyond the tolerance.
fn apart(later: u64, told: u64) -> Option<u64> {
    let may_be = (CLOCK_EVERY + CLOCKS_APART).as_secs();
    Some(later.saturating_sub(told)).filter(|apart| *apart > may_be)
}

/// Whether the record is from the previous daemon on this machine, or from this one with a lease that ran out.
fn is_ours(other: &NodeRecord, mine: &NodeRecord) -> bool {
    other.boot == mine.boot && (other.pid == mine.pid || !is_running(other.pid))
}

fn is_running(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

fn known(book: &Book) -> Result<Known> {
    let cluster = book.registry().cluster()?;
    Ok(Known { cluster: cluster.cluster, revision: cluster.revision.0 })
}

/// A number that changes when the record changes.
fn version(record: &impl serde::Serialize) -> u64 {
    let mut hasher = DefaultHasher::new();
    written(record).hash(&mut hasher);
    hasher.finish()
}
