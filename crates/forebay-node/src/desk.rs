//! What is asked of the cluster: instances made and given up, transfers ordered and called off.
//! Everything here only writes *wanted* and the ledger; the nodes make it so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_base::nearest::nearest;
use forebay_base::units::human_size;
use forebay_base::{Error, Kind, Result};
use serde_json::Value;

use crate::book::{Book, Draft, Listed};
use crate::config::Limits;
use crate::job::Job;
use crate::ledger::{Ledger, UserUse, in_grains};
use crate::pools::{means_named, space_of};
use crate::records::{
    Actual, Backing, Direction, Instance, JobKey, Life, Mode, NodeDrain, NodeRecord, Owner,
    PoolRecord, SpaceWish, Transfer, TransferActual, TransferOptions, TransferState, TransferWant,
    Want, What, When, check_name, keys,
};
use crate::space::room;

/// What names of instances and transfers of jobs begin with.
pub const JOBS: &str = "job-";

/// Where a user's cache shows in the directory that is closed to others.
const BELOW_CLOSED: &str = "files";

/// An instance as it is asked for.
#[derive(Debug, Clone)]
pub struct NewInstance {
    /// `None`: a name is made up, or taken from the job.
    pub name: Option<String>,
    pub mode: Mode,
    pub owner: Owner,
    pub job: Option<JobKey>,
    pub expires: Option<u64>,
    pub nodes: Vec<String>,
    /// `None`: the only pool there is.
    pub pool: Option<String>,
    pub bytes: u64,
    pub mountpoint: Option<PathBuf>,
    pub backing: Option<Backing>,
    pub space: Option<SpaceWish>,
}

/// A transfer as it is asked for.
#[derive(Debug, Clone)]
pub struct NewTransfer {
    /// `None`: an id is made up.
    pub of_job: Option<OfJob>,
    pub instance: String,
    pub node: Option<String>,
    pub direction: Direction,
    pub what: What,
    pub source: PathBuf,
    pub destination: PathBuf,
    pub when: When,
    pub options: TransferOptions,
}

/// What a transfer of a job is called. Ordering the same id again orders nothing new.
#[derive(Debug, Clone)]
pub struct OfJob {
    pub job: JobKey,
    pub id: String,
}

/// A transfer, and what has become of it.
type Known = (Transfer, Option<TransferActual>);

/// The transfers that there are.
pub struct Transfers {
    pub read: Vec<Known>,
    /// By id, what this version does not understand: a newer node has written it.
    pub unread: Vec<(String, Value)>,
}

/// Who asks.
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
    /// Below which instances show, if nothing else is said.
    mount_root: PathBuf,
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn usage(why: impl Into<String>) -> Error {
    Error::new(Kind::Usage, why)
}

impl Desk {
    pub fn new(book: Book, limits: Limits, mount_root: PathBuf) -> Desk {
        Desk { book, limits, mount_root }
    }

    pub fn mount_root(&self) -> &Path {
        &self.mount_root
    }

    /// Grants the room on all nodes and writes what is wanted, in one commit. Asking again for the same
    /// name is answered with what is there, if it is the same. A job that has ended, or that nobody knows any
    /// more, gets nothing: nobody would take it away.
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
        match asked.expires {
            Some(at) if at <= now() => Err(usage("it would have expired already")),
            _ => Ok(()),
        }
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
        let mut granted = None;
        for node in &asked.nodes {
            self.require_node(draft, node)?;
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

    fn require_node(&self, draft: &mut Draft<'_>, node: &str) -> Result<()> {
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
        match draft.read::<NodeDrain>(&keys::node_drain(node))? {
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

    /// Counts the instance among those of its owner, within the limits.
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

    /// For somebody who may have mistyped the name of one of his.
    pub fn instance_for(&self, id: &str, asker: Asker) -> Result<Instance> {
        check_name("instance", id)?;
        let found = self.book.read(&keys::wanted_instance(id))?;
        found.ok_or_else(|| self.no_instance(id, asker))
    }

    /// Names of others are not told.
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

    /// What the nodes have made of an instance, by node.
    pub fn actual(&self, id: &str) -> Result<Vec<(String, Actual)>> {
        self.book.list(&keys::actual_instance_all(id))
    }

    /// Says that an instance is to go. It goes when what was asked for is home.
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

    /// Has an instance go whose job nobody knows any more: no step of it will. Says whether that is so.
    pub fn end_orphan(&self, id: &str) -> Result<bool> {
        self.book.change(&format!("instance {id}"), |draft| {
            let key = keys::wanted_instance(id);
            let Some(mut instance) = draft.read::<Instance>(&key)? else { return Ok(false) };
            let Life::Job(job) = &instance.life else { return Ok(false) };
            if instance.want != Want::Here || draft.read::<Job>(&keys::job(job))?.is_some() {
                return Ok(false);
            }
            instance.want = Want::Gone;
            draft.put(&key, &instance);
            Ok(true)
        })
    }

    /// Orders a transfer into or out of an instance.
    pub fn transfer(&self, asked: &NewTransfer, asker: Asker) -> Result<Transfer> {
        if let Some(OfJob { id, .. }) = &asked.of_job {
            check_name("transfer", id)?;
            let there: Option<Transfer> = self.book.read(&keys::wanted_transfer(id))?;
            match there {
                Some(there) if there.is_of(&asked.instance, asked.node.as_deref()) => {
                    asker.require(there.owner, &format!("transfer {id}"))?;
                    return Ok(there);
                }
                Some(_) => return Err(usage(format!("transfer {id} is there and is another"))),
                None => {}
            }
        }
        let instance = self.instance_for(&asked.instance, asker)?;
        asker.require(instance.owner, &format!("instance {}", instance.id))?;
        let node = self.node_for(&instance, asked)?;
        let root = instance.mountpoint.as_deref().ok_or_else(|| {
            usage(format!("instance {} is swap: there is nothing to stage", instance.id))
        })?;
        let (inside, outside) = match asked.direction {
            Direction::In => (&asked.destination, &asked.source),
            Direction::Out => (&asked.source, &asked.destination),
        };
        if !inside.starts_with(root) || inside.components().any(|c| c.as_os_str() == "..") {
            let (inside, root) = (inside.display(), root.display());
            return Err(usage(format!("{inside} is not in the instance, which is at {root}")));
        }
        check_outside(outside, root)?;
        self.check_cache(&instance, inside, outside)?;
        check_options(&instance, asked)?;
        // A named instance that leaves waits for jobs that stage out of it.
        let waited_for = asked.of_job.is_some() && asked.direction == Direction::Out;
        let takes = |instance: &Instance| match instance.want {
            Want::Here => true,
            Want::Gone => waited_for,
            Want::GoneInHurry => false,
        };
        if !takes(&instance) {
            return Err(usage(format!("instance {} is leaving", instance.id)));
        }
        if (asked.when, asked.direction) == (When::AtEnd, Direction::In) {
            return Err(usage("a stage-in at the end comes too late: leave --at-end away"));
        }
        let transfer = Transfer {
            id: asked.of_job.as_ref().map_or_else(String::new, |of| of.id.clone()),
            instance: instance.id.clone(),
            node,
            direction: asked.direction,
            what: asked.what,
            source: asked.source.clone(),
            destination: asked.destination.clone(),
            when: asked.when,
            owner: instance.owner,
            options: asked.options.clone(),
            want: TransferWant::Done,
            // By whichever clock its instance was made: it comes after that.
            created: now().max(instance.created),
            attempt: 0,
            after_hurry: false,
        };
        self.book.change(&format!("a transfer of {}", transfer.instance), |draft| {
            // An instance that has gone meanwhile would never carry it out.
            let key = keys::wanted_instance(&transfer.instance);
            let there: Option<Instance> = draft.read(&key)?;
            if !there.is_some_and(|there| takes(&there)) {
                return Err(usage(format!("instance {} is leaving", transfer.instance)));
            }
            if let Some(of) = &asked.of_job {
                let job = job_of(draft, &of.job)?;
                // Only what has no time of its own to wait for is ordered when the job has ended.
                if (asked.direction, asked.when) != (Direction::Out, When::Now) {
                    job.require_open()?;
                }
            }
            let theirs = self.transfers_of(draft, transfer.owner.uid)?;
            self.allow_transfer(&theirs, transfer.owner.uid)?;
            let mut transfer = transfer.clone();
            if asked.of_job.is_none() {
                transfer.id = transfer_id(theirs.iter().map(|(transfer, _)| &*transfer.id));
            }
            draft.put(&keys::wanted_transfer(&transfer.id), &transfer);
            Ok(transfer)
        })
    }

    /// All that a user has ordered. What he has is written again as it is: of two orders at one time,
    /// one is decided anew, and sees the other.
    fn transfers_of(&self, draft: &mut Draft<'_>, uid: u32) -> Result<Vec<Known>> {
        let used: UserUse = draft.read(&keys::user(uid))?.unwrap_or_default();
        draft.put(&keys::user(uid), &used);
        let mut all = self.transfers()?;
        all.retain(|(transfer, _)| transfer.owner.uid == uid);
        Ok(all)
    }

    /// Whether a user may order one more.
    fn allow_transfer(&self, theirs: &[Known], uid: u32) -> Result<()> {
        let max = self.limits.transfers_per_user;
        let open = |(transfer, actual): &&Known| {
            !actual.as_ref().is_some_and(|actual| {
                actual.attempt == transfer.attempt && actual.state.has_ended()
            })
        };
        match theirs.iter().filter(open).count() as u64 {
            _ if uid == 0 => Ok(()),
            count if count < max => Ok(()),
            _ => {
                let why = format!("you would have more than {max} transfers that have not ended");
                Err(Error::os(libc::EDQUOT, why).with_source(
                    "wait for some of them, or stage a directory or a list instead of each file",
                ))
            }
        }
    }

    fn node_for(&self, instance: &Instance, asked: &NewTransfer) -> Result<String> {
        match (&asked.node, &instance.nodes[..]) {
            (Some(node), nodes) if nodes.contains(node) => Ok(node.clone()),
            (Some(node), nodes) => Err(usage(format!(
                "instance {} is not on node {node}; it is on {}",
                instance.id,
                nodes.join(", ")
            ))),
            (None, [only]) => Ok(only.clone()),
            // Any of them serves the same files.
            (None, nodes) if instance.mode == Mode::Cache => Ok(nodes[0].clone()),
            (None, nodes) => Err(usage(format!(
                "instance {} is on several nodes, each with files of its own: give --node {}",
                instance.id,
                nodes.join("|")
            ))),
        }
    }

    /// Of a cache the other side is the same file in its backing store.
    fn check_cache(&self, instance: &Instance, inside: &Path, outside: &Path) -> Result<()> {
        let (Some(backing), Some(root)) = (&instance.backing, &instance.mountpoint) else {
            return Ok(());
        };
        let below = inside.strip_prefix(root).unwrap_or(Path::new(""));
        let twin = backing.path.join(below);
        if outside.components().eq(twin.components()) {
            return Ok(());
        }
        Err(usage(format!(
            "{} shows what is in {}: its bytes come from {} and go there; use a private instance to \
             bring them elsewhere",
            root.display(),
            backing.path.display(),
            twin.display()
        )))
    }

    pub fn transfers(&self) -> Result<Vec<Known>> {
        Ok(self.transfers_known()?.read)
    }

    /// All of them, also those that this version does not understand.
    pub fn transfers_known(&self) -> Result<Transfers> {
        let wanted: Listed<Transfer> = self.book.list_some(keys::WANTED_TRANSFERS)?;
        let actual: Listed<TransferActual> = self.book.list_some(keys::ACTUAL_TRANSFERS)?;
        let known: BTreeMap<_, _> = actual.read.into_iter().collect();
        let strange: BTreeSet<_> = actual.unread.into_iter().map(|(id, _)| id).collect();
        let (mut read, mut unread) = (Vec::new(), wanted.unread);
        for (id, transfer) in wanted.read {
            match strange.contains(&id) {
                // What has become of it is not known.
                true => unread.push((id, serde_json::to_value(transfer).unwrap_or_default())),
                false => read.push((transfer, known.get(&id).cloned())),
            }
        }
        Ok(Transfers { read, unread })
    }

    pub fn transfer_of(&self, id: &str) -> Result<Known> {
        check_name("transfer", id)?;
        let wanted: Option<Transfer> = self.book.read(&keys::wanted_transfer(id))?;
        let wanted = wanted.ok_or_else(|| {
            usage(format!("no transfer {id}; `forebay stage list` shows those there are"))
        })?;
        Ok((wanted, self.book.read(&keys::actual_transfer(id))?))
    }

    /// Calls a transfer off: cancelled wherever it is, or revoked before its time comes.
    pub fn call_off(&self, id: &str, asker: Asker, want: TransferWant) -> Result<Transfer> {
        self.alter(id, asker, |_, transfer, actual| {
            let state = actual.map_or(TransferState::Waiting, |actual| actual.state);
            // What a transfer left behind may be given up.
            let given_up = want == TransferWant::Revoked && state != TransferState::Done;
            if state.has_ended() && !given_up {
                return Err(usage(format!("transfer {id} has ended: it is {}", state.name())));
            }
            if want == TransferWant::Revoked && state == TransferState::Running {
                return Err(usage(format!("transfer {id} runs: `forebay stage cancel {id}`")));
            }
            transfer.want = want;
            Ok(())
        })
    }

    /// Has a transfer that left files behind take them up again.
    pub fn resume(&self, id: &str, asker: Asker) -> Result<Transfer> {
        self.alter(id, asker, |draft, transfer, actual| {
            match actual.map(|actual| actual.state) {
                Some(TransferState::Failed | TransferState::Cancelled) => {}
                state => {
                    let state = state.unwrap_or(TransferState::Waiting).name();
                    return Err(usage(format!("transfer {id} is {state}: nothing to take up")));
                }
            }
            let instance = there_for(draft, transfer)?;
            transfer.attempt += 1;
            transfer.want = TransferWant::Done;
            transfer.after_hurry = instance.want == Want::GoneInHurry;
            Ok(())
        })
    }

    /// Has a stage-out that was put off to the end carried out now.
    pub fn activate(&self, id: &str, asker: Asker) -> Result<Transfer> {
        self.alter(id, asker, |_, transfer, actual| {
            let state = actual.map_or(TransferState::Waiting, |actual| actual.state);
            if state.has_ended() {
                return Err(usage(format!("transfer {id} has ended: it is {}", state.name())));
            }
            if transfer.want != TransferWant::Done {
                return Err(usage(format!("transfer {id} was called off")));
            }
            if transfer.when != When::AtEnd {
                return Err(usage(format!("transfer {id} is not put off: it is {}", state.name())));
            }
            transfer.when = When::Now;
            Ok(())
        })
    }

    fn alter(
        &self,
        id: &str,
        asker: Asker,
        alter: impl Fn(&mut Draft<'_>, &mut Transfer, Option<TransferActual>) -> Result<()>,
    ) -> Result<Transfer> {
        let (found, _) = self.transfer_of(id)?;
        asker.require(found.owner, &format!("transfer {id}"))?;
        self.book.change(&format!("transfer {id}"), |draft| {
            let key = keys::wanted_transfer(id);
            let mut transfer: Transfer = draft.read(&key)?.unwrap_or_else(|| found.clone());
            let actual = draft.read(&keys::actual_transfer(id))?;
            alter(draft, &mut transfer, actual)?;
            draft.put(&key, &transfer);
            Ok(transfer)
        })
    }

    /// Has a node take nothing new, or take new things again.
    pub fn drain_node(&self, node: &str, asker: Asker, drain: Option<NodeDrain>) -> Result<()> {
        check_name("node", node)?;
        if asker.uid != 0 {
            return Err(Error::os(libc::EPERM, "only root drains nodes"));
        }
        match drain {
            Some(drain) => self.book.put(&keys::node_drain(node), &drain),
            None => self.book.delete(&keys::node_drain(node)),
        }
    }
}

/// Where an instance shows if nobody has said where. A user's cache is below a directory that others cannot
/// pass: its mount would let in whom only directories above its backing store kept out.
pub fn place_for(mount_root: &Path, id: &str, mode: Mode, owner: Owner) -> Option<PathBuf> {
    let place = mount_root.join(id);
    match (mode, owner.uid) {
        (Mode::Swap, _) => None,
        (Mode::Cache, 1..) => Some(place.join(BELOW_CLOSED)),
        (Mode::Cache | Mode::Private, _) => Some(place),
    }
}

/// The instance of a transfer that is to be taken up, if its files are still there and stay so.
fn there_for(draft: &mut Draft<'_>, transfer: &Transfer) -> Result<Instance> {
    let (id, of) = (&transfer.id, &transfer.instance);
    let instance: Option<Instance> = draft.read(&keys::wanted_instance(of))?;
    let instance = instance.filter(|instance| transfer.belongs_to(instance));
    let there: Option<Actual> = draft.read(&keys::actual_instance(of, &transfer.node))?;
    let going = there.is_some_and(|there| there.going);
    match instance {
        Some(instance) if !going => Ok(instance),
        _ => Err(usage(format!("transfer {id}: instance {of} and what it held are gone"))),
    }
}

/// What a transfer of a cache is told is refused if its engine, which fetches and flushes, takes no such
/// order.
fn check_options(instance: &Instance, asked: &NewTransfer) -> Result<()> {
    if instance.mode != Mode::Cache {
        return Ok(());
    }
    let TransferOptions { checksum, rate_max, threads, last } = &asked.options;
    let flush = asked.direction == Direction::Out;
    let refused = [
        (*checksum, "--checksum", "each file is checked by size when it is flushed"),
        (rate_max.is_some(), "--rate-max", "`--set rate-max=RATE` of the instance caps its drain"),
        (
            threads.is_some(),
            "--threads",
            "`--set flush-depth=N` or `fill-depth=N` of the instance says so",
        ),
        (!flush && !last.is_empty(), "--last", "a prefetch has no order"),
        (last.len() > 1, "--last", "a flush takes one pattern"),
        (asked.what == What::List, "--type list", "name the directory, or stage each file"),
    ];
    match refused.iter().find(|(given, ..)| *given) {
        None => Ok(()),
        Some((_, option, remedy)) => {
            let does = if flush { "flushes" } else { "prefetches" };
            let id = &instance.id;
            Err(usage(format!(
                "{option}: instance {id} is a cache, which {does} by itself: {remedy}"
            )))
        }
    }
}

/// What is known of a job, for something that is ordered for it.
fn job_of(draft: &mut Draft<'_>, key: &JobKey) -> Result<Job> {
    let unknown = || usage(format!("job {} was not set up, or is torn down", key.id));
    draft.read(&keys::job(key))?.ok_or_else(unknown)
}

fn answer_again(there: Instance, asked: &NewInstance) -> Result<Instance> {
    let job = match &there.life {
        Life::Job(job) => Some(job),
        Life::Named { .. } => None,
    };
    let same = there.mode == asked.mode
        && there.owner == asked.owner
        && there.nodes == asked.nodes
        && job == asked.job.as_ref()
        && there.backing == asked.backing
        && there.capacity == asked.bytes;
    match (same, there.want) {
        (true, Want::Here) => Ok(there),
        (true, _) => Err(Error::new(
            Kind::Unavailable,
            format!("instance {} is leaving; try again when it is gone", there.id),
        )),
        (false, _) => Err(usage(format!(
            "instance {} is there already and is another: choose another name, or \
             `forebay instance destroy {}`",
            there.id, there.id
        ))),
    }
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
        .read(&keys::pool(node, name))?
        .ok_or_else(|| usage(format!("node {node} offers no pool {name}: see `forebay pools`")))?;
    if let Some(fault) = &pool.fault {
        let why = format!("pool {name} of node {node} cannot be used now: {fault}");
        return Err(Error::new(Kind::Unavailable, why));
    }
    let bytes = would_grant(id, asked, node, name, &pool)?;
    let mut ledger: Ledger = draft.read(&keys::ledger(node, name))?.unwrap_or_default();
    ledger.grant(id, bytes, pool.capacity).map_err(|short| {
        let why = format!("pool {name} of node {node}: {short}");
        Error::os(libc::ENOSPC, why).with_source("ask for less, or see `forebay pools`")
    })?;
    draft.put(&keys::ledger(node, name), &ledger);
    Ok(bytes)
}

/// What a pool grants for an instance, in whole grains, if it has so much.
pub fn would_grant(
    id: &str,
    asked: &NewInstance,
    node: &str,
    name: &str,
    pool: &PoolRecord,
) -> Result<u64> {
    require_means(pool, name, node, asked)?;
    let room = room_for(id, asked, pool)?;
    in_grains(room, pool.grain).ok_or_else(|| usage(format!("{room} bytes are more than there is")))
}

/// What a pool has to have for an instance: a file system of its own needs some room for itself.
fn room_for(id: &str, asked: &NewInstance, pool: &PoolRecord) -> Result<u64> {
    if asked.mode != Mode::Private {
        return Ok(asked.bytes);
    }
    let wish = asked.space.clone().unwrap_or_default();
    let means = wish.means.as_ref().or(pool.means.first()).expect("required before");
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

fn check_outside(outside: &Path, root: &Path) -> Result<()> {
    let shown = outside.display();
    if !outside.is_absolute() || outside.components().any(|c| c.as_os_str() == "..") {
        return Err(usage(format!("{shown}: give an absolute path without ..")));
    }
    match outside.starts_with(root) {
        true => Err(usage(format!("{shown} is in the instance itself"))),
        false => Ok(()),
    }
}

impl Limits {
    /// Whether a user may have all this.
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

/// Above all that were made up for the same user, whatever the clocks of nodes say, and different for
/// different processes and calls.
fn transfer_id<'t>(theirs: impl Iterator<Item = &'t str>) -> String {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let time =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
    let after = theirs.filter_map(time_in).max().map_or(0, |newest| newest + 1);
    let time = (time & TIME_MAX).max(after).min(TIME_MAX);
    let apart = (u64::from(std::process::id()) << 8 | u64::from(NEXT.fetch_add(1, Relaxed) & 0xff))
        & 0xf_ffff_ffff;
    format!("t{}{}", base32(time, TIME_DIGITS), base32(apart, 6))
}

const TIME_DIGITS: usize = 8;
const TIME_MAX: u64 = (1 << (5 * TIME_DIGITS)) - 1;
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The time in a name that was made up.
fn time_in(id: &str) -> Option<u64> {
    let digits = id.strip_prefix('t').filter(|rest| rest.len() == TIME_DIGITS + 6)?.bytes();
    digits.take(TIME_DIGITS).try_fold(0, |time, digit| {
        let value = DIGITS.iter().position(|other| *other == digit)?;
        Some(time << 5 | value as u64)
    })
}

/// `digits` digits of five bits each, without letters that look like digits.
fn base32(value: u64, digits: usize) -> String {
    let digit = |at| char::from(DIGITS[(value >> (5 * at) & 31) as usize]);
    (0..digits).rev().map(digit).collect()
}
