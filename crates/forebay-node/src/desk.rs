//! The requests to the cluster: instances are made and given up, nodes drained; for transfers see [`orders`].
//! Everything here only writes *wanted* records and the ledger; the nodes make them real.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::nearest::nearest;
use forebay_base::units::human_size;
use forebay_base::{Error, Kind, Result};
use serde_json::Value;

use crate::book::{Book, Draft};
use crate::clock::{Clock, now};
use crate::config::Limits;
use crate::job::Job;
use crate::ledger::{Ledger, UserUse, in_grains};
use crate::pools::{means_named, space_of};
use crate::records::{
    Actual, Backing, Instance, JobKey, Life, Mode, NodeDrain, NodeRecord, Owner, PoolRecord,
    SpaceWish, Want, check_name, keys,
};
use crate::space::{Fs, Means, SpaceSpec, room};

mod absent;
mod orders;

pub(crate) use absent::unknown;
pub use absent::{Absent, Held, Known, Told};
pub use orders::{NewTransfer, OfJob, Transfers};

/// The prefix of the names of jobs' instances and transfers.
pub const JOBS: &str = "job-";

/// One commit grants the room on all nodes: it compares and writes a ledger for each, and a few more keys.
pub const NODES_MAX: usize = 110;

/// The name of a user's cache below its closed directory.
const BELOW_CLOSED: &str = "files";

/// A request for an instance.
#[derive(Debug, Clone)]
pub struct NewInstance {
    /// `None`: a name is made up, or taken from the job.
    pub name: Option<String>,
    pub mode: Mode,
    pub owner: Owner,
    pub job: Option<JobKey>,
    pub expires: Option<u64>,
    pub nodes: Vec<String>,
    /// `None`: the only pool that exists.
    pub pool: Option<String>,
    pub bytes: u64,
    pub mountpoint: Option<PathBuf>,
    pub backing: Option<Backing>,
    pub space: Option<SpaceWish>,
}

/// The user who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    pub uid: u32,
    pub gid: u32,
}

impl Asker {
    fn may(self, owner: Owner) -> bool {
        self.uid == 0 || self.uid == owner.uid
    }

    fn require(self, owner: Owner, what: &str) -> Result<()> {
        match self.may(owner) {
            true => Ok(()),
            false => Err(Error::os(libc::EPERM, format!("{what} is not yours"))),
        }
    }
}

pub struct Desk {
    book: Book,
    limits: Limits,
    /// The directory below which instances are mounted by default.
    mount_root: PathBuf,
    clock: Arc<Clock>,
}

fn usage(why: impl Into<String>) -> Error {
    Error::new(Kind::Usage, why)
}

impl Desk {
    pub(crate) fn new(book: Book, limits: Limits, mount_root: PathBuf, clock: Arc<Clock>) -> Desk {
        Desk { book, limits, mount_root, clock }
    }

    /// The time that decides what has expired, in seconds since 1970.
    pub fn time(&self) -> u64 {
        self.clock.time().seconds
    }

    pub fn mount_root(&self) -> &Path {
        &self.mount_root
    }

    /// Grants the room on all nodes and writes the wanted instance, in one commit. A repeated request for the same
    /// name is answered with the existing instance, if that is the same. A job that has ended, or is unknown, gets
    /// nothing: no step would take the instance away.
    pub fn create(&self, asked: &NewInstance) -> Result<Instance> {
        self.check(asked)?;
        let id = self.id_for(asked)?;
        self.book.change(&format!("instance {id}"), |draft| {
            if let Some(job) = &asked.job {
                job_of(draft, job)?.require_open()?;
            }
            let there: Option<Instance> = draft.read(&keys::wanted_instance(&id))?;
            if let Some(there) = there {
                return answer_again(there, asked);
            }
            let instance = self.granted(draft, &id, asked)?;
            draft.put(&keys::wanted_instance(&id), &instance);
            Ok(instance)
        })
    }

    fn check(&self, asked: &NewInstance) -> Result<()> {
        if asked.nodes.is_empty() {
            return Err(usage("an instance needs a node: give --node"));
        }
        if asked.nodes.len() > NODES_MAX {
            let count = asked.nodes.len();
            return Err(usage(format!(
                "{count} nodes: one instance has at most {NODES_MAX}: make one for each group of nodes"
            )));
        }
        let mut nodes: Vec<&String> = asked.nodes.iter().collect();
        nodes.sort_unstable();
        if let Some([twice, _]) = nodes.array_windows().find(|[one, other]| one == other) {
            return Err(usage(format!("--node {twice}: name each node once")));
        }
        match (asked.mode, &asked.backing) {
            (Mode::Cache, None) => {
                return Err(usage("a cache needs a backing store: give --backing"));
            }
            (Mode::Private | Mode::Swap, Some(_)) => {
                let mode = asked.mode.name();
                return Err(usage(format!("--backing is for a cache, and this is {mode}")));
            }
            _ => {}
        }
        if asked.job.is_none() && asked.name.is_none() {
            return Err(usage("name the instance, or the job that it is for with --job"));
        }
        let (mode, owner) = (asked.mode, asked.owner.uid);
        if mode == Mode::Swap && owner != 0 && asked.job.is_none() {
            return Err(usage("swap is for a job, or made by root: others would share it"));
        }
        require_to_come(asked.expires)
    }

    fn id_for(&self, asked: &NewInstance) -> Result<String> {
        let id = match (&asked.name, &asked.job) {
            (Some(name), None) if name.starts_with(JOBS) => {
                return Err(usage(format!("{name}: names that begin with job- are for jobs")));
            }
            (Some(name), None) if !name.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                return Err(usage(format!(
                    "{name}: the name of an instance begins with a letter: schedulers take a number for \
                     a job's"
                )));
            }
            (Some(name), None) => name.clone(),
            (Some(name), Some(job)) => format!("{}-{name}", job.name()),
            (None, Some(job)) => format!("{}-{}", job.name(), asked.mode.name()),
            (None, None) => unreachable!("checked before"),
        };
        check_name("instance", &id)?;
        Ok(id)
    }

    fn granted(&self, draft: &mut Draft<'_>, id: &str, asked: &NewInstance) -> Result<Instance> {
        for node in &asked.nodes {
            self.require_node(draft, node)?;
        }
        let asked = &self.settled(draft, asked)?;
        let mut granted = None;
        for node in &asked.nodes {
            let name = self.pool_of(node, asked)?;
            let bytes = grant(draft, id, asked, node, &name)?;
            if *granted.get_or_insert((name.clone(), bytes)) != (name.clone(), bytes) {
                return Err(usage(format!(
                    "pool {name} is not alike on all nodes: name a pool with --pool that has one grain"
                )));
            }
        }
        let (pool, bytes) = granted.expect("there is a node");
        self.charge(draft, id, asked, bytes.saturating_mul(asked.nodes.len() as u64))?;
        let given = asked.mountpoint.clone();
        let shows = given.or_else(|| place_for(&self.mount_root, id, asked.mode, asked.owner));
        Ok(Instance {
            id: id.into(),
            mode: asked.mode,
            owner: asked.owner,
            life: asked.job.clone().map_or(Life::Named { expires: asked.expires }, Life::Job),
            nodes: asked.nodes.clone(),
            pool,
            capacity: asked.bytes,
            bytes,
            mountpoint: shows,
            backing: asked.backing.clone(),
            space: asked.space.clone(),
            created: now(),
            want: Want::Here,
        })
    }

    /// Returns the request with everything filled in that the pools choose: the means, and the file system of an
    /// image. What is granted is then what is made.
    fn settled(&self, draft: &Draft<'_>, asked: &NewInstance) -> Result<NewInstance> {
        if asked.mode != Mode::Private {
            return Ok(asked.clone());
        }
        let (mut means, mut systems) = (Vec::new(), Vec::new());
        for node in &asked.nodes {
            let name = self.pool_of(node, asked)?;
            let Some(pool) = draft.look::<PoolRecord>(&keys::pool(node, &name))? else { continue };
            means.extend(means_for(asked, &pool).cloned());
            systems.push(system_for(asked, &pool));
        }
        means.dedup();
        if let [one, other, ..] = &means[..] {
            return Err(usage(format!(
                "its nodes would hold the capacity by different means: name one with --means {one}|{other}"
            )));
        }
        let mut settled = asked.clone();
        let wish = settled.space.get_or_insert_default();
        wish.means = wish.means.take().or(means.pop());
        // One node without XFS makes all take ext4.
        let fs = systems.into_iter().min().flatten();
        wish.fs = wish.fs.take().or(fs.map(|fs| fs.name().into()));
        Ok(settled)
    }

    fn require_node(&self, draft: &Draft<'_>, node: &str) -> Result<()> {
        check_name("node", node)?;
        let there: Option<NodeRecord> = self.book.read(&keys::node(node))?;
        if there.is_none() {
            let all: Vec<(String, NodeRecord)> = self.book.list(keys::NODES)?;
            let names = || all.iter().map(|(name, _)| name.as_str());
            let hint = match nearest(node, names()) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("there are: {}", names().collect::<Vec<_>>().join(", ")),
            };
            let why = format!("node {node}: no node daemon of that name is there; {hint}");
            return Err(Error::new(Kind::Unavailable, why));
        }
        match draft.look::<NodeDrain>(&keys::node_drain(node))? {
            None => Ok(()),
            Some(_) => Err(Error::new(
                Kind::Unavailable,
                format!(
                    "node {node} is being drained and takes nothing new: `forebay node undrain`"
                ),
            )),
        }
    }

    fn pool_of(&self, node: &str, asked: &NewInstance) -> Result<String> {
        if let Some(pool) = &asked.pool {
            return Ok(pool.clone());
        }
        let pools: Vec<(String, PoolRecord)> =
            self.book.list(&format!("{}{node}/", keys::POOLS))?;
        match &pools[..] {
            [(name, _)] => Ok(name.clone()),
            [] => Err(usage(format!("node {node} offers no pool"))),
            several => {
                let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
                Err(usage(format!(
                    "node {node} offers several pools: give --pool {}",
                    names.join("|")
                )))
            }
        }
    }

    /// Counts the instance for its owner, within the limits.
    fn charge(&self, draft: &mut Draft<'_>, id: &str, asked: &NewInstance, all: u64) -> Result<()> {
        let uid = asked.owner.uid;
        let mut used: UserUse = draft.read(&keys::user(uid))?.unwrap_or_default();
        used.instances.insert(id.into(), all);
        if uid != 0 {
            self.limits.allow(&used)?;
        }
        draft.put(&keys::user(uid), &used);
        Ok(())
    }

    pub fn instance(&self, id: &str) -> Result<Instance> {
        check_name("instance", id)?;
        let found = self.book.read(&keys::wanted_instance(id))?;
        found.ok_or_else(|| usage(format!("no instance {id}")))
    }

    /// Returns the instance. The error suggests a similar name among the user's own instances.
    pub fn instance_for(&self, id: &str, asker: Asker) -> Result<Instance> {
        check_name("instance", id)?;
        let found = self.book.read(&keys::wanted_instance(id))?;
        found.ok_or_else(|| self.no_instance(id, asker))
    }

    /// Names of other users' instances are not told.
    fn no_instance(&self, id: &str, asker: Asker) -> Error {
        let mut all = self.instances().unwrap_or_default();
        all.retain(|instance| asker.may(instance.owner));
        let near = nearest(id, all.iter().map(|instance| instance.id.as_str()));
        let hint = near
            .map_or(String::from("`forebay instance list` shows those there are"), |near| {
                format!("did you mean {near}?")
            });
        usage(format!("no instance {id}; {hint}"))
    }

    pub fn instances(&self) -> Result<Vec<Instance>> {
        let found = self.book.list_some(keys::WANTED_INSTANCES)?.read;
        Ok(found.into_iter().map(|(_, instance)| instance).collect())
    }

    /// The state of an instance on each node, by node.
    pub fn actual(&self, id: &str) -> Result<Vec<(String, Actual)>> {
        self.book.list(&keys::actual_instance_all(id))
    }

    /// Orders that an instance goes. It goes when the files that were to be staged out are home.
    pub fn destroy(&self, id: &str, asker: Asker, want: Want) -> Result<Instance> {
        check_name("instance", id)?;
        self.book.change(&format!("instance {id}"), |draft| {
            let key = keys::wanted_instance(id);
            let mut instance: Instance =
                draft.read(&key)?.ok_or_else(|| self.no_instance(id, asker))?;
            asker.require(instance.owner, &format!("instance {id}"))?;
            // Hurry is not taken back: the node may have been freed already.
            if instance.want != Want::GoneInHurry && instance.want != want {
                instance.want = want;
                draft.put(&key, &instance);
            }
            Ok(instance)
        })
    }

    /// Orders that a named instance goes whose time is over at `time`, unless its record says otherwise by now: its
    /// owner may have prolonged it meanwhile, or made another one of its name. Returns whether it goes.
    pub(crate) fn expire(&self, id: &str, time: u64) -> Result<bool> {
        self.book.change(&format!("instance {id}"), |draft| {
            let key = keys::wanted_instance(id);
            let Some(mut instance) = draft.read::<Instance>(&key)? else { return Ok(false) };
            if instance.want != Want::Here || !instance.has_expired(time) {
                return Ok(false);
            }
            instance.want = Want::Gone;
            draft.put(&key, &instance);
            Ok(true)
        })
    }

    /// Sets another end for a named instance, sooner or later, or none.
    pub fn extend(&self, id: &str, asker: Asker, expires: Option<u64>) -> Result<Instance> {
        check_name("instance", id)?;
        require_to_come(expires)?;
        self.book.change(&format!("instance {id}"), |draft| {
            let key = keys::wanted_instance(id);
            let mut instance: Instance =
                draft.read(&key)?.ok_or_else(|| self.no_instance(id, asker))?;
            asker.require(instance.owner, &format!("instance {id}"))?;
            if let Life::Job(job) = &instance.life {
                return Err(usage(format!("instance {id} lives as long as job {}", job.id)));
            }
            if instance.want != Want::Here {
                return Err(usage(format!("instance {id} is leaving")));
            }
            instance.life = Life::Named { expires };
            draft.put(&key, &instance);
            Ok(instance)
        })
    }

    /// Orders that an instance goes whose job is unknown: no step of the job will do that. Returns whether it goes.
    pub fn end_orphan(&self, id: &str) -> Result<bool> {
        self.book.change(&format!("instance {id}"), |draft| {
            let key = keys::wanted_instance(id);
            let Some(mut instance) = draft.read::<Instance>(&key)? else { return Ok(false) };
            let Life::Job(job) = &instance.life else { return Ok(false) };
            if instance.want != Want::Here
                || draft.read::<serde_json::Value>(&keys::job(job))?.is_some()
            {
                return Ok(false);
            }
            instance.want = Want::Gone;
            draft.put(&key, &instance);
            Ok(true)
        })
    }

    /// Stops a node from taking new things, or lets it take them again.
    pub fn drain_node(&self, node: &str, asker: Asker, drain: Option<NodeDrain>) -> Result<()> {
        check_name("node", node)?;
        if asker.uid != 0 {
            return Err(Error::os(libc::EPERM, "only root drains nodes"));
        }
        self.require_known(node)?;
        match drain {
            Some(drain) => self.book.put(&keys::node_drain(node), &drain),
            None => self.book.delete(&keys::node_drain(node)),
        }
    }

    /// Refuses unknown nodes. A node that is away may be drained, and one that was drained before may be taken back.
    fn require_known(&self, node: &str) -> Result<()> {
        let mut all: BTreeSet<String> = BTreeSet::new();
        all.extend(
            self.book.list_some::<Value>(keys::NODES)?.read.into_iter().map(|(name, _)| name),
        );
        all.extend(
            self.book.list_some::<Value>(keys::HEARD)?.read.into_iter().map(|(name, _)| name),
        );
        let pools = self.book.list_some::<Value>(keys::POOLS)?.read.into_iter();
        all.extend(pools.filter_map(|(key, _)| Some(key.split_once('/')?.0.to_string())));
        let is_drained = self.book.read::<NodeDrain>(&keys::node_drain(node))?.is_some();
        if is_drained || all.contains(node) {
            return Ok(());
        }
        let hint = match nearest(node, all.iter().map(String::as_str)) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there are: {}", all.into_iter().collect::<Vec<_>>().join(", ")),
        };
        Err(usage(format!("no node {node}; {hint}")))
    }
}

/// The default mount point of an instance. A user's cache is below a directory that other users cannot pass: its
/// mount would admit users that only directories above its backing store kept out.
pub fn place_for(mount_root: &Path, id: &str, mode: Mode, owner: Owner) -> Option<PathBuf> {
    let place = mount_root.join(id);
    match (mode, owner.uid) {
        (Mode::Swap, _) => None,
        (Mode::Cache, 1..) => Some(place.join(BELOW_CLOSED)),
        (Mode::Cache | Mode::Private, _) => Some(place),
    }
}

fn require_to_come(expires: Option<u64>) -> Result<()> {
    match expires {
        Some(at) if at <= now() => {
            Err(usage("it would have expired already: give --expires a time to come, such as 14d"))
        }
        _ => Ok(()),
    }
}

/// The record of a job for which something is ordered.
fn job_of(draft: &mut Draft<'_>, key: &JobKey) -> Result<Job> {
    let unknown = || usage(format!("job {} was not set up, or is torn down", key.id));
    draft.read(&keys::job(key))?.ok_or_else(unknown)
}

fn answer_again(there: Instance, asked: &NewInstance) -> Result<Instance> {
    let (id, differs) = (&there.id, differences(&there, asked));
    match (&differs[..], there.want) {
        ([], Want::Here) => Ok(there),
        ([], _) => Err(Error::new(
            Kind::Unavailable,
            format!("instance {id} is leaving; try again when it is gone"),
        )),
        ([EXPIRES], _) => Err(usage(format!(
            "instance {id} is there already and expires at another time: `forebay instance extend {id} \
             --expires TIME` changes that"
        ))),
        (several, _) => Err(usage(format!(
            "instance {id} is there already and is another, by its {}: choose another name, or \
             `forebay instance destroy {id}`",
            several.join(", ")
        ))),
    }
}

const EXPIRES: &str = "expiry";

/// A request takes time, and the clock is read twice.
const LIFE_SLACK: u64 = 30;

/// The settings in which an existing instance differs from the request. A setting that the request leaves out does
/// not differ.
fn differences(there: &Instance, asked: &NewInstance) -> Vec<&'static str> {
    fn other<T: PartialEq>(asked: Option<&T>, there: Option<&T>) -> bool {
        asked.is_some() && asked != there
    }
    let (job, expires) = match &there.life {
        Life::Job(job) => (Some(job), None),
        Life::Named { expires } => (None, *expires),
    };
    let none = SpaceWish::default();
    let wish = asked.space.as_ref().unwrap_or(&none);
    let has = there.space.as_ref().unwrap_or(&none);
    let all = [
        ("mode", there.mode != asked.mode),
        ("owner", there.owner != asked.owner),
        ("nodes", there.nodes != asked.nodes),
        ("job", job != asked.job.as_ref()),
        ("backing store or its settings", there.backing != asked.backing),
        ("capacity", there.capacity != asked.bytes),
        ("pool", other(asked.pool.as_ref(), Some(&there.pool))),
        ("mount point", other(asked.mountpoint.as_ref(), there.mountpoint.as_ref())),
        ("means", other(wish.means.as_ref(), has.means.as_ref())),
        ("file system", other(wish.fs.as_ref(), has.fs.as_ref())),
        ("inodes", other(wish.inodes.as_ref(), has.inodes.as_ref())),
        ("permissions", other(wish.mode.as_ref(), has.mode.as_ref())),
        (EXPIRES, asked.expires.is_some_and(|at| !is_that_long(there, expires, at))),
    ];
    all.into_iter().filter_map(|(what, differs)| differs.then_some(what)).collect()
}

/// Whether an instance ends at `asked`, or was made to last as long as one that ends at `asked` would from now on: a
/// user who repeats a command with the same lifetime means the same end.
fn is_that_long(there: &Instance, expires: Option<u64>, asked: u64) -> bool {
    let Some(expires) = expires else { return false };
    let (lasts, would) = (expires.saturating_sub(there.created), asked.saturating_sub(now()));
    asked == expires || lasts.abs_diff(would) <= LIFE_SLACK.min(lasts / 10)
}

fn grant(
    draft: &mut Draft<'_>,
    id: &str,
    asked: &NewInstance,
    node: &str,
    name: &str,
) -> Result<u64> {
    check_name("pool", name)?;
    let pool: PoolRecord = draft
        .look(&keys::pool(node, name))?
        .ok_or_else(|| usage(format!("node {node} offers no pool {name}: see `forebay pools`")))?;
    if let Some(fault) = &pool.fault {
        let why = format!("pool {name} of node {node} cannot be used now: {fault}");
        return Err(Error::new(Kind::Unavailable, why));
    }
    let bytes = would_grant(id, asked, node, name, &pool)?;
    let mut ledger: Ledger = draft.read(&keys::ledger(node, name))?.unwrap_or_default();
    ledger.grant(id, bytes, pool.capacity).map_err(|short| {
        let asked = match bytes > asked.bytes {
            true => {
                format!(" ({} and what its means and grains need besides)", human_size(asked.bytes))
            }
            false => String::new(),
        };
        let (wanted, free) = (human_size(short.wanted), human_size(short.free));
        let why =
            format!("pool {name} of node {node}: {wanted}{asked} are wanted and {free} are free");
        Error::os(libc::ENOSPC, why).with_source("ask for less, or see `forebay pools`")
    })?;
    draft.put(&keys::ledger(node, name), &ledger);
    Ok(bytes)
}

/// The bytes that a pool would grant for an instance, in whole grains, if it has that much.
pub fn would_grant(
    id: &str,
    asked: &NewInstance,
    node: &str,
    name: &str,
    pool: &PoolRecord,
) -> Result<u64> {
    require_means(pool, name, node, asked)?;
    require_system(pool, name, node, asked)?;
    let room = room_for(id, asked, pool)?;
    in_grains(room, pool.grain).ok_or_else(|| usage(format!("{room} bytes are more than there is")))
}

/// The means by which the capacity will hold there; `None` where the pool has none.
fn means_for<'a>(asked: &'a NewInstance, pool: &'a PoolRecord) -> Option<&'a String> {
    let wish = asked.space.as_ref();
    wish.and_then(|wish| wish.means.as_ref()).or(pool.means.first())
}

fn is_image(asked: &NewInstance, pool: &PoolRecord) -> bool {
    let image = Means::Image.to_string();
    asked.mode == Mode::Private && means_for(asked, pool) == Some(&image)
}

/// The file system of the instance's image there, if it is to be an image and the request names none.
fn system_for(asked: &NewInstance, pool: &PoolRecord) -> Option<Fs> {
    let wish = asked.space.as_ref();
    if !is_image(asked, pool) || wish.is_some_and(|wish| wish.fs.is_some()) {
        return None;
    }
    // ext4 alone holds an exact number of inodes.
    let is_exact = wish.is_some_and(|wish| wish.inodes.is_some());
    let of_size = |fs: &Fs| *fs == Fs::Ext4 || !is_exact && SpaceSpec::suits_xfs(asked.bytes);
    let mut known = pool.systems.iter().filter_map(|name| Fs::named(name));
    known.find(of_size).or(Some(Fs::Ext4))
}

/// Refuses a file system that the pool does not have, also one that was not named: a small image takes ext4.
fn require_system(pool: &PoolRecord, name: &str, node: &str, asked: &NewInstance) -> Result<()> {
    let named = asked.space.as_ref().and_then(|wish| Fs::named(wish.fs.as_deref()?));
    match named.or(system_for(asked, pool)) {
        // An older node daemon does not say which file systems it has.
        Some(fs) if is_image(asked, pool) && !pool.systems.is_empty() => {
            let has = pool.systems.iter().any(|has| has == fs.name());
            let (fs, all) = (fs.name(), pool.systems.join(", "));
            let why = || {
                usage(format!("pool {name} of node {node}: no images of {fs} there, but of {all}"))
            };
            if has { Ok(()) } else { Err(why()) }
        }
        _ => Ok(()),
    }
}

/// The room that a pool needs for an instance: a file system of its own takes some room for itself.
fn room_for(id: &str, asked: &NewInstance, pool: &PoolRecord) -> Result<u64> {
    if asked.mode != Mode::Private {
        return Ok(asked.bytes);
    }
    let mut wish = asked.space.clone().unwrap_or_default();
    wish.fs = wish.fs.or(system_for(asked, pool).map(|fs| fs.name().into()));
    let means = means_for(asked, pool).expect("required before");
    let probe = Instance {
        id: id.into(),
        mode: asked.mode,
        owner: asked.owner,
        life: Life::Named { expires: None },
        nodes: Vec::new(),
        pool: String::new(),
        capacity: asked.bytes,
        bytes: 0,
        mountpoint: Some("/".into()),
        backing: None,
        space: Some(wish.clone()),
        created: 0,
        want: Want::Here,
    };
    let spec = space_of(&probe)?;
    spec.check()?;
    Ok(room(&spec, means_named(means)?))
}

fn require_means(pool: &PoolRecord, name: &str, node: &str, asked: &NewInstance) -> Result<()> {
    let lacks = || match pool.lacks.is_empty() {
        true => String::new(),
        false => format!(" ({})", pool.lacks.join("; ")),
    };
    if asked.mode == Mode::Swap && !pool.swap {
        return Err(usage(format!("pool {name} of node {node} offers no swap{}", lacks())));
    }
    if asked.mode != Mode::Private {
        return Ok(());
    }
    let wish = asked.space.as_ref().and_then(|space| space.means.as_deref());
    match wish {
        None if pool.means.is_empty() => Err(usage(format!(
            "pool {name} of node {node} has no means to hold a capacity{}",
            lacks()
        ))),
        Some(means) if !pool.means.iter().any(|has| has == means) => Err(usage(format!(
            "pool {name} of node {node} has no means {means}; it has {}{}",
            pool.means.join(", "),
            lacks()
        ))),
        _ => Ok(()),
    }
}

impl Limits {
    /// Refuses a user's use beyond the limits.
    fn allow(&self, used: &UserUse) -> Result<()> {
        let (count, bytes) = (used.instances.len() as u64, used.bytes());
        let over = |what: String| {
            Error::os(libc::EDQUOT, what).with_source("destroy what is not needed any more")
        };
        match (self.instances_per_user, self.bytes_per_user) {
            (Some(max), _) if count > max => {
                Err(over(format!("you would have more than {max} instances, which are allowed")))
            }
            (_, Some(max)) if bytes > max => {
                let (bytes, max) = (human_size(bytes), human_size(max));
                Err(over(format!("you would have {bytes} of all pools, and {max} are allowed")))
            }
            _ => Ok(()),
        }
    }
}
