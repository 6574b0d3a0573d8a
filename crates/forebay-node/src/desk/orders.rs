//! Requests for transfers: ordered, called off, taken up again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_base::glob::Pattern;
use forebay_base::units::human_size;
use forebay_base::{Error, Result};
use serde_json::Value;

use super::{Asker, Desk, job_of, usage};
use crate::book::{Draft, Listed};
use crate::clock::now;
use crate::ledger::UserUse;
use crate::records::{
    Actual, Attribute, Direction, Existing, Instance, JobKey, Mode, Preserve, THREADS_MAX,
    Transfer, TransferActual, TransferOptions, TransferState, TransferWant, Want, What, When,
    check_name, keys,
};

/// No path of the kernel's is as long (`PATH_MAX`), and all patterns of a transfer together may not be
/// longer.
const NAME_MAX: usize = 4096;

/// The length of all names in a user's transfers together: ten thousand with ordinary names fit.
const NAMES_MAX: usize = 8 << 20;

/// A request for a transfer.
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

/// The id of a job's transfer. Ordering the same id again orders nothing new.
#[derive(Debug, Clone)]
pub struct OfJob {
    pub job: JobKey,
    pub id: String,
}

/// A transfer, and its state.
type Known = (Transfer, Option<TransferActual>);

/// The existing transfers.
pub struct Transfers {
    pub read: Vec<Known>,
    /// Transfers that this version does not understand, by id: a newer node has written them.
    pub unread: Vec<(String, Value)>,
}

impl Desk {
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
        check_lengths(asked)?;
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
        // A leaving named instance waits for jobs that stage out of it.
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
            // Not before the instance was made, whichever node's clock counted that.
            created: now().max(instance.created),
            attempt: 0,
            after_hurry: false,
        };
        self.book.change(&format!("a transfer of {}", transfer.instance), |draft| {
            // An instance that has gone meanwhile would never carry the transfer out.
            let key = keys::wanted_instance(&transfer.instance);
            let there: Option<Instance> = draft.read(&key)?;
            if !there.is_some_and(|there| takes(&there)) {
                return Err(usage(format!("instance {} is leaving", transfer.instance)));
            }
            if let Some(of) = &asked.of_job {
                let job = job_of(draft, &of.job)?;
                // After the end of the job only stage-outs without a time of their own are ordered.
                if (asked.direction, asked.when) != (Direction::Out, When::Now) {
                    job.require_open()?;
                }
            }
            let theirs = self.transfers_of(draft, transfer.owner.uid)?;
            self.allow_transfer(&theirs, &transfer)?;
            let mut transfer = transfer.clone();
            if asked.of_job.is_none() {
                transfer.id = transfer_id(theirs.iter().map(|(transfer, _)| &*transfer.id));
            }
            draft.put(&keys::wanted_transfer(&transfer.id), &transfer);
            Ok(transfer)
        })
    }

    /// All transfers of a user. The user's record is written again unchanged: of two orders at one time,
    /// one is decided anew, and sees the other.
    fn transfers_of(&self, draft: &mut Draft<'_>, uid: u32) -> Result<Vec<Known>> {
        let used: UserUse = draft.read(&keys::user(uid))?.unwrap_or_default();
        draft.put(&keys::user(uid), &used);
        let mut all = self.transfers()?;
        all.retain(|(transfer, _)| transfer.owner.uid == uid);
        Ok(all)
    }

    /// Whether a user may order one more. A transfer that has ended counts until it can no longer be
    /// taken up again.
    fn allow_transfer(&self, theirs: &[Known], next: &Transfer) -> Result<()> {
        if next.owner.uid == 0 {
            return Ok(());
        }
        let counts = |(transfer, actual): &&Known| {
            !actual.as_ref().is_some_and(|actual| transfer.is_spent(actual))
        };
        let (mut count, mut bytes) = (0, next.names_bytes());
        for (transfer, _) in theirs.iter().filter(counts) {
            (count, bytes) = (count + 1, bytes + transfer.names_bytes());
        }
        let max = self.limits.transfers_per_user;
        let why = match (count < max, bytes <= NAMES_MAX) {
            (true, true) => return Ok(()),
            (false, _) => format!("you would have more than {max} transfers"),
            (true, false) => {
                let max = human_size(NAMES_MAX as u64);
                format!("the names in your transfers would take more than {max}")
            }
        };
        Err(Error::os(libc::EDQUOT, format!("{why} that are not done")).with_source(
            "wait for some of them, give up what some left with `forebay stage revoke`, or stage a \
             directory or a list instead of each file",
        ))
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
            // Any of the nodes serves the same files.
            (None, nodes) if instance.mode == Mode::Cache => Ok(nodes[0].clone()),
            (None, nodes) => Err(usage(format!(
                "instance {} is on several nodes, each with files of its own: give --on {}",
                instance.id,
                nodes.join("|")
            ))),
        }
    }

    /// For a cache the other side is the same file in its backing store.
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

    /// All transfers, also those that this version does not understand.
    pub fn transfers_known(&self) -> Result<Transfers> {
        let wanted: Listed<Transfer> = self.book.list_some(keys::WANTED_TRANSFERS)?;
        let actual: Listed<TransferActual> = self.book.list_some(keys::ACTUAL_TRANSFERS)?;
        let known: BTreeMap<_, _> = actual.read.into_iter().collect();
        let strange: BTreeSet<_> = actual.unread.into_iter().map(|(id, _)| id).collect();
        let (mut read, mut unread) = (Vec::new(), wanted.unread);
        for (id, transfer) in wanted.read {
            match strange.contains(&id) {
                // The state of the transfer is unknown.
                true => unread.push((id, serde_json::to_value(transfer).unwrap_or_default())),
                false => read.push((transfer, known.get(&id).cloned())),
            }
        }
        Ok(Transfers { read, unread })
    }

    pub fn transfer_of(&self, id: &str) -> Result<Known> {
        check_name("transfer", id)?;
        let wanted: Option<Transfer> = self.book.read(&keys::wanted_transfer(id))?;
        let wanted = wanted.ok_or_else(|| no_transfer(id))?;
        Ok((wanted, self.book.read(&keys::actual_transfer(id))?))
    }

    /// Calls a transfer off: cancelled wherever it is, or revoked before its time comes.
    pub fn call_off(&self, id: &str, asker: Asker, want: TransferWant) -> Result<Transfer> {
        self.alter(id, asker, |_, transfer, actual| {
            let state = actual.map_or(TransferState::Waiting, |actual| actual.state);
            // The files that a transfer left behind may be given up.
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

    /// Changes a transfer as it was read: one that is forgotten meanwhile stays forgotten.
    pub(crate) fn alter(
        &self,
        id: &str,
        asker: Asker,
        alter: impl Fn(&mut Draft<'_>, &mut Transfer, Option<TransferActual>) -> Result<()>,
    ) -> Result<Transfer> {
        check_name("transfer", id)?;
        self.book.change(&format!("transfer {id}"), |draft| {
            let key = keys::wanted_transfer(id);
            let mut transfer: Transfer = draft.read(&key)?.ok_or_else(|| no_transfer(id))?;
            asker.require(transfer.owner, &format!("transfer {id}"))?;
            let actual = draft.read(&keys::actual_transfer(id))?;
            alter(draft, &mut transfer, actual)?;
            draft.put(&key, &transfer);
            Ok(transfer)
        })
    }
}

fn no_transfer(id: &str) -> Error {
    usage(format!("no transfer {id}; `forebay stage list` shows those there are"))
}

/// The instance of a transfer that is to be taken up again, if its files still exist and stay.
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

/// Refuses options that no transfer can satisfy already at the order: when the transfer is carried out,
/// no user is there to be told.
fn check_options(instance: &Instance, asked: &NewTransfer) -> Result<()> {
    let options = &asked.options;
    if let Some(threads) = options.threads.filter(|threads| !(1..=THREADS_MAX).contains(threads)) {
        return Err(usage(format!("--threads {threads}: give 1 to {THREADS_MAX}")));
    }
    for text in &options.last {
        text.parse::<Pattern>().map_err(|why| usage(format!("--last {text:?}: {why}")))?;
    }
    let gives = |preserve: &Preserve| {
        preserve.has(Attribute::Owner) && *preserve != Preserve::all() && instance.owner.uid != 0
    };
    if options.preserve.as_ref().is_some_and(gives) {
        let why =
            "only root may give files to others: leave owner away, or say all for what you may";
        return Err(usage(format!("--preserve owner: {why}")));
    }
    if options.existing == Existing::Replace {
        check_replaced(instance, asked)?;
    }
    check_for_cache(instance, asked)
}

/// `replace` needs a directory with a name.
fn check_replaced(instance: &Instance, asked: &NewTransfer) -> Result<()> {
    let to = &asked.destination;
    let root =
        instance.mountpoint.as_ref().is_some_and(|root| to.components().eq(root.components()));
    let why = match asked.what {
        What::List => {
            "the files of a list are added one by one: stage a directory, or use overwrite"
        }
        _ if root => "the instance itself stays: name a directory in it, or use overwrite",
        _ => return Ok(()),
    };
    Err(usage(format!("--existing replace: {why}")))
}

/// Refuses options that a cache's engine, which fetches and flushes, cannot follow.
fn check_for_cache(instance: &Instance, asked: &NewTransfer) -> Result<()> {
    if instance.mode != Mode::Cache {
        return Ok(());
    }
    let TransferOptions { checksum, rate_max, threads, last, preserve, existing } = &asked.options;
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
        (preserve.is_some(), "--preserve", "files are the backing store's own, with all they have"),
        (!existing.is_default(), "--existing", "files are the backing store's own: leave it away"),
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

/// Refuses names that are longer than is of use: they are stored, and read by every node.
fn check_lengths(asked: &NewTransfer) -> Result<()> {
    for (path, what) in [(&asked.source, "source"), (&asked.destination, "destination")] {
        if path.as_os_str().len() >= NAME_MAX {
            return Err(usage(format!(
                "the {what} is too long: a path has less than {NAME_MAX} bytes"
            )));
        }
    }
    match asked.options.names_bytes() < NAME_MAX {
        true => Ok(()),
        false => {
            Err(usage(format!("--last: all patterns together have less than {NAME_MAX} bytes")))
        }
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

/// A new id, higher than all that were made up for the same user, whatever the clocks of nodes say, and
/// different between processes and calls.
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

/// The time in a generated name.
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
