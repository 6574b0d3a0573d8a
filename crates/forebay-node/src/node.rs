//! The node daemon: it keeps the node's lease, says what the node offers, and has everything tended
//! that is wanted of it.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use forebay_base::{Error, Kind, Result};
use forebay_registry::{Lease, Registry, Seen};

use crate::book::Book;
use crate::config::NodeConfig;
use crate::crew::{Crew, Next};
use crate::desk::{Asker, Desk, now};
use crate::hands::{Hands, Moved, Stop};
use crate::job::{Reaper, Scheduler};
use crate::local::{Known, Local};
use crate::manifest::Over;
use crate::pools::PoolHere;
use crate::records::{
    Instance, Life, NodeDrain, NodeRecord, Transfer, TransferActual, Want, keys, written,
};

/// How long the node counts as there after it was heard of last.
const LEASE: Duration = Duration::from_secs(15);

/// What is wanted is looked at as often, whatever the watch says.
const LOOK: Duration = Duration::from_secs(5);

/// Records and files of jobs are brought in line as often.
const JOBS_LOOK: Duration = Duration::from_secs(2);

/// Transfers that have ended, and whose instance is gone, are told of for so long.
const REMEMBERED: u64 = 7 * 24 * 60 * 60;

/// The registry may be away when the daemon starts: it is asked again until then.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// A running transfer, as far as this daemon knows.
#[derive(Default)]
pub struct Live {
    pub stop: Stop,
    pub moved: Mutex<Moved>,
}

pub struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) book: Book,
    pub(crate) local: Local,
    pub(crate) pools: BTreeMap<String, PoolHere>,
    pub(crate) hands: Arc<dyn Hands>,
    pub(crate) crew: Arc<Crew>,
    lease: Mutex<Option<Box<dyn Lease>>>,
    live: Mutex<BTreeMap<String, Arc<Live>>>,
    over: Over,
    scheduler: Option<Scheduler>,
    since: u64,
    stopping: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Opens state and pools, and begins to tend what is wanted of this node.
    pub fn start(
        config: NodeConfig,
        registry: Arc<dyn Registry>,
        hands: Arc<dyn Hands>,
    ) -> Result<Arc<Node>> {
        let local = Local::open(&config.state)?;
        let book = Book::new(registry);
        local.admit(&known(&book)?)?;
        let mut pools = BTreeMap::new();
        for pool in &config.pools {
            let open = PoolHere::open(pool)?;
            local.admit_pool(&pool.name, open.id(), &pool.dir)?;
            pools.insert(pool.name.clone(), open);
        }
        let scheduler = config.scheduler.as_ref().map(Scheduler::open).transpose()?;
        let node = Arc::new(Node {
            config,
            book,
            local,
            pools,
            hands,
            crew: Arc::default(),
            lease: Mutex::default(),
            live: Mutex::default(),
            over: Over::new(),
            scheduler,
            since: now(),
            stopping: AtomicBool::new(false),
        });
        node.keep_lease()?;
        node.publish_pools()?;
        let mut works = vec![("node", Node::attend as fn(&Arc<Node>)), ("watch", Node::listen)];
        if node.scheduler.is_some() {
            works.push(("jobs", Node::attend_jobs));
        }
        for (name, work) in works {
            let node = node.clone();
            let spawned = thread::Builder::new().name(name.into()).spawn(move || work(&node));
            spawned.map_err(|e| Error::io(e, "starting a thread"))?;
        }
        Ok(node)
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
        Desk::new(self.book.clone(), config.limits.clone(), config.mount_root.clone())
    }

    /// What this daemon is to a scheduler, if it is anything.
    pub fn scheduler(&self) -> Option<&Scheduler> {
        self.scheduler.as_ref()
    }

    /// Stops tending. What it has made stays, and is taken up by the next daemon.
    pub fn stop(&self, patience: Duration) {
        self.stopping.store(true, Relaxed);
        locked(&self.live).values().for_each(|live| live.stop.leave());
        self.crew.ring();
        let deadline = std::time::Instant::now() + patience;
        while !self.crew.is_idle() && std::time::Instant::now() < deadline {
            self.crew.wait(Duration::from_millis(50));
        }
        // The node is not there any more: others need not wait for the lease to run out.
        locked(&self.lease).take();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// How far a transfer is that this node carries out.
    pub fn live(&self, id: &str) -> Option<Moved> {
        let live = locked(&self.live).get(id)?.clone();
        let moved = locked(&live.moved).clone();
        Some(moved)
    }

    pub(crate) fn begin_live(&self, id: &str) -> Arc<Live> {
        locked(&self.live).entry(id.into()).or_default().clone()
    }

    pub(crate) fn end_live(&self, id: &str) {
        locked(&self.live).remove(id);
    }

    /// Tells a running transfer to stop.
    fn stop_live(&self, id: &str) {
        if let Some(live) = locked(&self.live).get(id) {
            live.stop.now();
        }
    }

    /// Rings when something is wanted that was not.
    fn listen(self: &Arc<Node>) {
        while !self.is_stopping() {
            let Ok(mut watch) = self.book.watch(keys::WANTED) else {
                thread::sleep(LOOK);
                continue;
            };
            // Whatever ends the watch, a new one begins with what is there then.
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

    /// On the scheduler's machine alone.
    fn attend_jobs(self: &Arc<Node>) {
        let Some(here) = &self.scheduler else { return };
        let (mut reaper, desk) = (Reaper::default(), self.desk());
        while !self.is_stopping() {
            if let Err(error) = reaper.turn(&self.book, &desk, here, &self.config.mount_root) {
                tracing::warn!("jobs: {error}");
            }
            thread::sleep(JOBS_LOOK);
        }
    }

    fn turn(self: &Arc<Node>) -> Result<()> {
        self.keep_lease()?;
        self.publish_pools()?;
        let wanted: Vec<(String, Instance)> = self.book.list(keys::WANTED_INSTANCES)?;
        // After the look: what an older or another registry does not want is not removed by its word.
        self.local.note_revision(&known(&self.book)?)?;
        let wanted: BTreeMap<String, Instance> = wanted.into_iter().collect();
        self.offer_instances(&wanted)?;
        let transfers = self.desk().transfers()?;
        self.offer_transfers(&wanted, &transfers);
        self.expire(&wanted)?;
        if let (Some(max), Some(command)) =
            (self.config.manifest_max, &self.config.over_manifest_command)
        {
            self.over.look(&self.book, &self.config.name, max, command)?;
        }
        self.forget_transfers(&wanted, &transfers)?;
        self.crew.retain(|key| {
            let id = key.split_once(' ').map_or(key, |(_, id)| id);
            wanted.contains_key(id) || transfers.iter().any(|(transfer, _)| transfer.id == id)
        });
        Ok(())
    }

    fn offer_instances(self: &Arc<Node>, wanted: &BTreeMap<String, Instance>) -> Result<()> {
        let here = |instance: &&Instance| instance.nodes.contains(&self.config.name);
        let mut due: Vec<Instance> = wanted.values().filter(here).cloned().collect();
        let known: BTreeSet<String> = due.iter().map(|instance| instance.id.clone()).collect();
        // What was begun here and is wanted no more, not even as something to be removed.
        let forgotten = self.local.instances()?.into_iter();
        due.extend(
            forgotten
                .filter(|instance| !known.contains(&instance.id))
                .map(|instance| Instance { want: Want::Gone, ..instance }),
        );
        for instance in due {
            let (node, version) = (self.clone(), version(&instance));
            self.crew.offer(&format!("instance {}", instance.id), version, move || {
                node.tend_and_tell(&instance)
            });
        }
        Ok(())
    }

    fn offer_transfers(
        self: &Arc<Node>,
        wanted: &BTreeMap<String, Instance>,
        transfers: &[(Transfer, Option<TransferActual>)],
    ) {
        for (transfer, actual) in transfers {
            if transfer.node != self.config.name {
                continue;
            }
            let instance = wanted.get(&transfer.instance);
            match crate::transfers::decide(transfer, actual.as_ref(), instance) {
                crate::transfers::Step::Nothing => {}
                crate::transfers::Step::Stop => {
                    self.stop_live(&transfer.id);
                    let (node, transfer) = (self.clone(), transfer.clone());
                    // If it is not running, nobody hears `stop`.
                    self.crew.offer(
                        &format!("transfer {}", transfer.id),
                        version(&transfer),
                        move || node.say_stopped(&transfer),
                    );
                }
                crate::transfers::Step::Carry => {
                    let (node, transfer) = (self.clone(), transfer.clone());
                    let instance = instance.expect("decided by it").clone();
                    self.crew.offer(
                        &format!("transfer {}", transfer.id),
                        version(&transfer),
                        move || node.carry_and_tell(&transfer, &instance),
                    );
                }
            }
        }
    }

    fn tend_and_tell(&self, instance: &Instance) -> Next {
        match self.tend(instance) {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!("instance {}: {error}", instance.id);
                if let Err(error) = self.tell_failed(instance, &error.to_string()) {
                    tracing::warn!("instance {}: telling so: {error}", instance.id);
                }
                Next::BackOff
            }
        }
    }

    /// Says of named instances whose time is over that they are to go.
    fn expire(&self, wanted: &BTreeMap<String, Instance>) -> Result<()> {
        let time = now();
        for instance in wanted.values() {
            let over = matches!(instance.life, Life::Named { expires: Some(at) } if at <= time);
            if over && instance.want == Want::Here {
                tracing::warn!("instance {} has expired and goes", instance.id);
                self.desk().destroy(&instance.id, Asker { uid: 0, gid: 0 }, Want::Gone)?;
            }
        }
        Ok(())
    }

    /// Forgets transfers that ended long ago.
    fn forget_transfers(
        &self,
        wanted: &BTreeMap<String, Instance>,
        transfers: &[(Transfer, Option<TransferActual>)],
    ) -> Result<()> {
        let old = now().saturating_sub(REMEMBERED);
        for (transfer, actual) in transfers {
            let ended = actual.as_ref().map_or(transfer.created, |actual| actual.since);
            let gone = !wanted.contains_key(&transfer.instance);
            if transfer.node == self.config.name && gone && ended < old {
                self.book.change("transfers", |draft| {
                    draft.delete(&keys::wanted_transfer(&transfer.id));
                    draft.delete(&keys::actual_transfer(&transfer.id));
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Holds the node's lease, a new one if the last has run out.
    fn keep_lease(&self) -> Result<()> {
        let mut lease = locked(&self.lease);
        if lease.as_ref().is_some_and(|lease| lease.remaining() > Duration::ZERO) {
            return Ok(());
        }
        let new = self.book.registry().lease(LEASE)?;
        self.claim_name(&*new)?;
        *lease = Some(new);
        Ok(())
    }

    /// Writes that the node is there; refused if another daemon has its name.
    fn claim_name(&self, lease: &dyn Lease) -> Result<()> {
        let key = keys::node(&self.config.name);
        let mine = NodeRecord {
            address: self.config.address.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            boot: boot_id(),
            since: self.since,
        };
        let deadline = std::time::Instant::now() + START_PATIENCE;
        // The record of the daemon before us stays until its lease runs out.
        while let Some(other) = self.book.read::<NodeRecord>(&key)? {
            if is_ours(&other, &mine) {
                break;
            }
            if std::time::Instant::now() > deadline {
                return Err(Error::new(
                    Kind::Usage,
                    format!(
                        "node {}: a daemon of this name is there already (pid {}, boot {}): give each node \
                     its own `name`",
                        self.config.name, other.pid, other.boot
                    ),
                ));
            }
            thread::sleep(Duration::from_millis(200));
        }
        self.book.put_leased(&key, &mine, lease.id())
    }

    fn publish_pools(&self) -> Result<()> {
        for (name, pool) in &self.pools {
            let record = pool.record(&self.book, &self.config.name)?;
            let key = keys::pool(&self.config.name, name);
            let told: Option<crate::records::PoolRecord> = self.book.read(&key)?;
            if told.as_ref() != Some(&record) {
                self.book.put(&key, &record)?;
            }
            pool.sweep();
        }
        Ok(())
    }

    /// Whether the node is to take nothing new.
    pub fn drain(&self) -> Result<Option<NodeDrain>> {
        self.book.read(&keys::node_drain(&self.config.name))
    }
}

/// The daemon before us on this machine, or ourselves with a lease that ran out.
fn is_ours(other: &NodeRecord, mine: &NodeRecord) -> bool {
    other.boot == mine.boot && (other.pid == mine.pid || !is_running(other.pid))
}

fn is_running(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

fn boot_id() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.unwrap_or_default().trim().to_string()
}

fn known(book: &Book) -> Result<Known> {
    let cluster = book.registry().cluster()?;
    Ok(Known { cluster: cluster.cluster, revision: cluster.revision.0 })
}

/// Changes when what is wanted changes.
fn version(record: &impl serde::Serialize) -> u64 {
    let mut hasher = DefaultHasher::new();
    written(record).hash(&mut hasher);
    hasher.finish()
}
