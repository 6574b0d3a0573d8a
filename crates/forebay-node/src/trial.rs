//! Nodes that do nothing by themselves and have fake hands, for tests of single steps: what several daemons
//! and users do at one moment is done here in the order that matters.

mod jobs;
mod life;
mod pools;
mod transfers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_base::{Error, Kind, Result};
use forebay_registry::Registry;

use crate::clock::now;
use crate::config::NodeConfig;
use crate::crew::Next;
use crate::desk::{Asker, Held, NewInstance, NewTransfer, OfJob, Told};
use crate::hands::{Cache, Hands, Leave, Look, Moved, Order, Staging, Stop, Unflushed};
use crate::job::{Answer, Hurry, Job, Phase, tidy};
use crate::leaving::{Before, Needs};
use crate::manifest;
use crate::node::{Node, Wanted};
use crate::records::{
    Actual, Backing, Direction, Existing, FileSystem, Instance, JobKey, Life, Missing, Mode,
    NodeRecord, Owner, Preserve, SpaceWish, State, Transfer, TransferActual, TransferOptions,
    TransferState, TransferWant, Want, What, When, keys,
};
use crate::space::Door;
use crate::transfers::nothing_moved;

const ROOT: Asker = Asker { uid: 0, gid: 0 };
const USER: Asker = Asker { uid: 4711, gid: 4711 };

/// The size of any source that is to be staged.
const HELD: u64 = 4321;

/// Hands that mount nothing.
struct Playing {
    look: Mutex<Look>,
    /// Why nothing can be staged.
    refuses: Mutex<Option<String>>,
}

impl Hands for Playing {
    fn look(&self, _: &Cache) -> Result<Look> {
        Ok(*self.look.lock().unwrap())
    }

    fn serve(&self, _: &Cache) -> Result<()> {
        Ok(())
    }

    fn leave(&self, _: &Cache, _: Leave, _: Duration) -> Result<Vec<String>> {
        *self.look.lock().unwrap() = Look::NotMounted;
        Ok(Vec::new())
    }

    fn bring_home(&self, _: &Cache) -> Result<Vec<Unflushed>> {
        Ok(Vec::new())
    }

    fn unflushed(&self, _: &Cache) -> Result<Vec<Unflushed>> {
        Ok(Vec::new())
    }

    fn carry(&self, _: &Order<'_>, _: &Stop, _: &mut dyn FnMut(&Moved)) -> Result<Moved> {
        Ok(Moved::default())
    }

    fn stage(&self, _: &Staging<'_>, _: &Stop, _: &mut dyn FnMut(&Moved)) -> Result<Moved> {
        let why = self.refuses.lock().unwrap().clone();
        Ok(why.map_or_else(Moved::default, Moved::refused))
    }

    fn size_of(&self, _: &Staging<'_>) -> u64 {
        HELD
    }

    fn clean(&self, _: &Staging<'_>) -> Result<()> {
        Err(Error::new(Kind::Unavailable, "nothing can be removed there"))
    }
}

struct Bed {
    dir: tempfile::TempDir,
    registry: Arc<dyn Registry>,
    hands: Arc<Playing>,
}

/// A failed trial may have left mounts.
impl Drop for Bed {
    fn drop(&mut self) {
        let mounts = forebay_base::mounts::read().unwrap_or_default();
        for left in mounts.iter().rev().filter(|mount| mount.path.starts_with(self.dir.path())) {
            let _ = rustix::mount::unmount(&left.path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl Bed {
    fn new() -> Bed {
        // Not below a directory that others may write to without the sticky bit.
        let dir = tempfile::Builder::new().prefix("fbt-trial").tempdir_in("/var/tmp").unwrap();
        let registry = format!("embedded://{}", dir.path().join("registry").display());
        std::fs::create_dir(dir.path().join("registry")).unwrap();
        let registry = forebay_registry::open(&registry).unwrap();
        let playing = Playing { look: Mutex::new(Look::NotMounted), refuses: Mutex::default() };
        Bed { dir, registry, hands: Arc::new(playing) }
    }

    fn config(&self, name: &str, more: &str) -> NodeConfig {
        let at = |what: &str| self.dir.path().join(format!("{name}-{what}")).display().to_string();
        let text = format!(
            "name = \"{name}\"\nstate = \"{}\"\nmount-root = \"{}\"\nsocket = \"{}\"\n\
             keep-after-hurry = \"1h\"\n{more}[[pool]]\nname = \"p\"\ndir = \"{}\"\n\
             capacity = \"1GiB\"\nenforce = false\n",
            at("state"),
            at("mnt"),
            at("socket"),
            at("pool")
        );
        NodeConfig::from_toml(&text).unwrap()
    }

    fn node(&self, name: &str) -> Arc<Node> {
        self.node_of(self.config(name, ""))
    }

    fn node_of(&self, config: NodeConfig) -> Arc<Node> {
        let name = config.name.clone();
        let node = Node::open(config, self.registry.clone(), self.hands.clone()).unwrap();
        node.open_pools().unwrap();
        node.book().put(&keys::node(&name), &record(now())).unwrap();
        node
    }
}

fn record(clock: u64) -> NodeRecord {
    let (version, boot) = ("0".into(), "b".into());
    NodeRecord { address: None, version, pid: 1, boot, since: 0, clock }
}

fn wish(name: &str, mode: Mode, nodes: &[&str]) -> NewInstance {
    let on = FileSystem { kind: "x".into(), source: "x".into(), at: "/".into() };
    let backing = Backing { path: "/pfs".into(), on, settings: Default::default() };
    NewInstance {
        name: Some(name.into()),
        mode,
        owner: Owner { uid: USER.uid, gid: USER.gid },
        job: None,
        expires: None,
        nodes: nodes.iter().map(ToString::to_string).collect(),
        pool: None,
        bytes: 8 << 20,
        mountpoint: None,
        backing: (mode == Mode::Cache).then_some(backing),
        space: None,
    }
}

fn out_of(instance: &Instance, name: &str) -> NewTransfer {
    let at = instance.mountpoint.as_deref().unwrap_or(Path::new("/"));
    NewTransfer {
        of_job: None,
        instance: instance.id.clone(),
        node: None,
        direction: Direction::Out,
        what: What::File,
        source: at.join(name),
        destination: Path::new("/pfs").join(name),
        when: When::AtEnd,
        options: TransferOptions::default(),
    }
}

fn ended(transfer: &Transfer, state: TransferState) -> TransferActual {
    TransferActual { state, ..nothing_moved(transfer) }
}

fn line(transfer: &Transfer) -> Missing {
    Missing {
        file: "f".into(),
        bytes: 1,
        why: "w".into(),
        owner: transfer.owner,
        transfer: Some(transfer.id.clone()),
        since: 0,
        expires: None,
    }
}

impl Node {
    fn wanted(&self, id: &str) -> Option<Instance> {
        self.book.read(&keys::wanted_instance(id)).unwrap()
    }

    fn failed(&self, transfer: &Transfer, instance: &Instance) {
        let actual = ended(transfer, TransferState::Failed);
        self.book.put(&keys::actual_transfer(&transfer.id), &actual).unwrap();
        let lines = [line(transfer)];
        manifest::write(&self.book, self.name(), &instance.id, &transfer.id, &lines).unwrap();
    }
}

#[test]
fn a_late_removal_leaves_the_records_of_a_newer_instance_of_its_name() {
    let bed = Bed::new();
    let (n1, n2) = (bed.node("n1"), bed.node("n2"));
    let old = n1.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let old = Instance { want: Want::Gone, ..old };
    n1.book.put(&keys::wanted_instance("w"), &old).unwrap();
    n1.release(&old).unwrap();
    // n1 dies before it forgets; meanwhile an instance on another node takes the name.
    std::thread::sleep(Duration::from_millis(1100));
    let new = n2.desk().create(&wish("w", Mode::Private, &["n2"])).unwrap();
    assert_ne!(new.created, old.created);
    n1.tend(&old).unwrap();
    assert_eq!(n2.wanted("w"), Some(new.clone()), "the newer one is still wanted");
    n2.require_grant(&new).unwrap();
    let told = n2.desk().actual("w").unwrap();
    assert!(told.iter().all(|(node, _)| node != "n1"), "{told:?}");
}

#[test]
fn a_cache_whose_mount_died_waits_for_none_of_its_stage_outs() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("c", Mode::Cache, &["n1"])).unwrap();
    node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    let gone = node.desk().destroy("c", USER, Want::Gone).unwrap();
    *bed.hands.look.lock().unwrap() = Look::Serving;
    assert_eq!(node.tend(&gone).unwrap(), Next::After(Duration::from_secs(1)));
    assert!(node.wanted("c").is_some(), "what serves can carry it out");
    *bed.hands.look.lock().unwrap() = Look::Dead;
    node.tend(&gone).unwrap();
    assert_eq!(node.wanted("c"), None, "all that was dirty is home, and nothing else can be");
}

/// The cap of a node is a number of bytes.
#[test]
fn what_was_not_even_begun_counts_with_its_bytes() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let lines = |transfer: &Transfer| {
        let lines = manifest::of(&node.book, "n1", "w", &transfer.id).unwrap();
        lines.iter().map(|line| (line.file.clone(), line.bytes)).collect::<Vec<_>>()
    };
    let of = |transfer: &Transfer| transfer.source.display().to_string();
    let first = node.desk().transfer(&out_of(&made, "first"), USER).unwrap();
    for moved in [Moved { cancelled: true, ..Moved::default() }, Moved::refused("it cannot be")] {
        node.tell_missing(&first, &made, &moved).unwrap();
        assert_eq!(lines(&first), [(of(&first), HELD)]);
    }
    let begun = Moved { cancelled: true, files_total: 3, bytes_total: 9, ..Moved::default() };
    node.tell_missing(&first, &made, &begun).unwrap();
    assert_eq!(lines(&first), [(format!("3 files of {}", of(&first)), 9)]);
    let second = node.desk().transfer(&out_of(&made, "second"), USER).unwrap();
    let hurried = node.desk().destroy("w", USER, Want::GoneInHurry).unwrap();
    let stopped = ended(&second, TransferState::Cancelled);
    node.book.put(&keys::actual_transfer(&second.id), &stopped).unwrap();
    node.before_leaving(&hurried).unwrap();
    assert_eq!(lines(&second), [(of(&second), HELD)]);
}

#[test]
fn an_instance_has_no_more_that_is_not_home_than_it_was_granted() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let transfer = node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    let long = |who: &str| {
        let missing = [Missing { bytes: u64::MAX, ..line(&transfer) }];
        manifest::write(&node.book, "n1", "w", who, &missing).unwrap();
    };
    long("t1");
    long("t2");
    assert_eq!(manifest::over(&node.book, "n1", made.bytes).unwrap(), None);
    let over = manifest::over(&node.book, "n1", made.bytes - 1).unwrap();
    assert!(over.is_some_and(|why| why.contains("are not home")));
}

/// A node that is away reports nothing, and that does not make its files home.
#[test]
fn what_is_on_a_node_that_is_away_is_not_taken_for_home() {
    let bed = Bed::new();
    let (n1, n2) = (bed.node("n1"), bed.node("n2"));
    let desk = n1.desk();
    let made = desk.create(&wish("w", Mode::Private, &["n1", "n2"])).unwrap();
    let on = |node: &str| NewTransfer { node: Some(node.into()), ..out_of(&made, "r") };
    let out = desk.transfer(&on("n2"), USER).unwrap();
    let here = desk.transfer(&on("n1"), USER).unwrap();
    for (id, mode) in [("idle", Mode::Private), ("c", Mode::Cache)] {
        desk.create(&wish(id, mode, &["n2"])).unwrap();
    }
    let ready = Actual { state: State::Ready, since: 7, ..Actual::default() };
    for (id, node) in [("w", "n1"), ("w", "n2"), ("idle", "n2"), ("c", "n2")] {
        n1.book.put(&keys::actual_instance(id, node), &ready).unwrap();
    }
    let held = |lines: &[Told]| {
        let held = desk.held_by("n1", &desk.absent().unwrap(), lines).unwrap();
        let of = |held: Held| (held.node, held.instance, held.missing.transfer);
        held.into_iter().map(of).collect::<Vec<_>>()
    };
    // An ordered stage-out is not home either where the daemon is present.
    let mine = ("n1".to_string(), "w".to_string(), Some(here.id.clone()));
    let theirs = ("n2".to_string(), "w".to_string(), Some(out.id.clone()));
    let cache = ("n2".to_string(), "c".to_string(), None);
    assert_eq!(held(&[]), [cache, mine, theirs], "both are there");
    desk.call_off(&here.id, USER, TransferWant::Revoked).unwrap();
    n2.book.delete(&keys::node("n2")).unwrap();
    let line = |id: &str, transfer: Option<&Transfer>| {
        ("n2".to_string(), id.to_string(), transfer.map(|transfer| transfer.id.clone()))
    };
    assert_eq!(held(&[]), [line("c", None), line("w", Some(&out))]);
    let told = |id: &str, transfer: Option<&Transfer>| {
        let (node, instance, transfer) = line(id, transfer);
        Told { node, instance, transfer }
    };
    assert_eq!(held(&[told("w", Some(&out))]), [line("c", None)], "it is told once");
    assert_eq!(desk.absent().unwrap().heard("n2"), None);
    // Lines that the node had written itself exist anyway.
    assert_eq!(held(&[told("c", None)]), [line("w", Some(&out))]);
    desk.destroy("idle", USER, Want::Gone).unwrap();
    desk.call_off(&out.id, USER, TransferWant::Revoked).unwrap();
    assert_eq!(held(&[]), [line("c", None), line("idle", None)]);
    n2.book.delete(&keys::actual_instance("idle", "n2")).unwrap();
    assert_eq!(held(&[]), [line("c", None)], "nothing is left of it there");
}

/// Writes a record as a newer node may: with a field that this version does not know.
fn put_newer(node: &Node, key: &str) {
    let (entry, _) = node.book.registry().get(key).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&entry.unwrap().value).unwrap();
    record["field_of_tomorrow"] = 1.into();
    node.book.put(key, &record).unwrap();
}

#[test]
fn a_record_of_a_newer_version_costs_only_itself() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let begun = node.desk().create(&wish("begun", Mode::Private, &["n1"])).unwrap();
    let other = node.desk().create(&wish("other", Mode::Private, &["n1"])).unwrap();
    let transfer = node.desk().transfer(&out_of(&other, "r"), USER).unwrap();
    node.local.keep(&begun).unwrap();
    put_newer(&node, &keys::wanted_instance("begun"));
    put_newer(&node, &keys::wanted_transfer(&transfer.id));
    node.book.delete(&keys::node("n1")).unwrap();
    node.turn().unwrap();
    let listed = node.desk().instances().unwrap();
    assert!(listed.len() == 1 && listed[0] == other, "{listed:?}");
    // The instance is not taken for an unwanted one.
    while !node.crew.is_idle() {
        node.crew.wait(Duration::from_millis(10));
    }
    assert_eq!(node.local.instances().unwrap().len(), 2);
    assert_eq!(node.told(&begun).unwrap(), None, "nothing is said or done about it");
    assert_eq!(node.told(&other).unwrap().map(|told| told.state), Some(State::Ready));
    // The transfer is not understood, and not lost.
    let Before::Wait(why, _) = node.before_leaving(&other).unwrap() else { panic!("it goes") };
    assert!(why.contains("newer version"), "{why}");
    let gone = Instance { want: Want::Gone, ..other };
    node.tend(&gone).unwrap();
    assert!(gone.mountpoint.as_ref().is_some_and(|at| at.exists()), "it is still there");
    node.pool_of(&gone).unwrap().remove("other").unwrap();
}

#[test]
fn what_is_taken_up_in_the_last_moment_is_neither_dropped_nor_lost() {
    let bed = Bed::new();
    let mut config = bed.config("n1", "");
    config.keep_after_hurry = Duration::ZERO;
    let node = bed.node_of(config);
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let first = node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    let hurried = node.desk().destroy("w", USER, Want::GoneInHurry).unwrap();
    let here = Actual { state: State::Leaving, ..Actual::default() };
    node.book.put(&keys::actual_instance("w", "n1"), &here).unwrap();
    node.failed(&first, &hurried);
    // The transfer is taken up while the node decides: the node has read an older record.
    let again = node.desk().resume(&first.id, USER).unwrap();
    assert!(again.after_hurry && again.attempt == 1, "{again:?}");
    assert!(!node.drop_with_record(&first, "1 file").unwrap(), "it is wanted again");
    let Before::Wait(_, needs) = node.may_go(&hurried).unwrap() else { panic!("it goes") };
    assert_eq!(needs, Needs::Files);
    node.failed(&again, &hurried);
    assert_eq!(node.may_go(&hurried).unwrap(), Before::Nothing, "its time is over");
    let refused = node.desk().resume(&first.id, USER).unwrap_err();
    assert!(refused.to_string().contains("are gone"), "{refused}");
    let told = node.desk().transfer_of(&first.id).unwrap();
    assert_eq!(told.0.want, TransferWant::Revoked);
    assert!(told.1.unwrap().why.unwrap().contains("dropped"));
}

/// A clock that is wrong after a restart neither begins nor ends the promised time.
#[test]
fn a_clock_far_from_the_others_drops_nothing_and_promises_nothing() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let transfer = node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    let hurried = node.desk().destroy("w", USER, Want::GoneInHurry).unwrap();
    node.failed(&transfer, &hurried);
    let others = |clock| node.book.put(&keys::node("n2"), &record(clock)).unwrap();
    let lines = || manifest::of(&node.book, "n1", "w", &transfer.id).unwrap();
    for clock in [now() - 3600, now() + 3600] {
        others(clock);
        assert!(matches!(node.before_leaving(&hurried).unwrap(), Before::Wait(..)));
        assert_eq!(lines()[0].expires, None, "it is {clock} elsewhere");
    }
    others(now());
    assert!(matches!(node.before_leaving(&hurried).unwrap(), Before::Wait(..)));
    assert!(lines()[0].expires.is_some_and(|until| until > now() + 3000));
    let over = [Missing { expires: Some(now() - 1), ..line(&transfer) }];
    manifest::write(&node.book, "n1", "w", &transfer.id, &over).unwrap();
    others(now() - 7200);
    let Before::Wait(why, _) = node.before_leaving(&hurried).unwrap() else { panic!("dropped") };
    assert!(why.contains("would be dropped, but this node's clock is"), "{why}");
    others(now());
    assert_eq!(node.before_leaving(&hurried).unwrap(), Before::Nothing);
}

/// A removal that failed has not ended: until it goes on, files can be brought home.
#[test]
fn the_gate_opens_again_if_something_is_waited_for() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let transfer = node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    let gone = node.desk().destroy("w", USER, Want::Gone).unwrap();
    let shut = Actual { state: State::Leaving, going: true, ..Actual::default() };
    node.book.put(&keys::actual_instance("w", "n1"), &shut).unwrap();
    node.failed(&transfer, &gone);
    assert!(node.desk().resume(&transfer.id, USER).is_err());
    assert!(matches!(node.may_go(&gone).unwrap(), Before::Wait(_, Needs::Owner)));
    // A user who asks for the instance to go is told that it waits for that user's decision.
    node.tend(&gone).unwrap();
    assert!(node.told(&gone).unwrap().unwrap().undecided);
    node.desk().resume(&transfer.id, USER).unwrap();
    node.tend(&gone).unwrap();
    assert!(!node.told(&gone).unwrap().unwrap().undecided, "it is carried out");
}

#[test]
fn hurry_stops_what_was_taken_up_before_it_and_not_what_is_afterwards() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let transfer = node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    node.failed(&transfer, &made);
    let before = node.desk().resume(&transfer.id, USER).unwrap();
    let hurried = node.desk().destroy("w", USER, Want::GoneInHurry).unwrap();
    let step = |transfer: &Transfer| crate::transfers::decide(transfer, None, Some(&hurried));
    assert_eq!(step(&before), crate::transfers::Step::Stop);
    node.failed(&before, &hurried);
    let after = node.desk().resume(&transfer.id, USER).unwrap();
    assert_eq!(step(&after), crate::transfers::Step::Carry);
}

#[test]
fn a_kept_instance_is_shut_except_while_its_data_is_brought_home() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root mounts");
        return;
    }
    use std::os::unix::fs::MetadataExt;
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    node.tend(&made).unwrap();
    let at = made.mountpoint.clone().unwrap();
    std::fs::write(at.join("r"), "results").unwrap();
    let transfer = node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    let hurried = node.desk().destroy("w", USER, Want::GoneInHurry).unwrap();
    node.failed(&transfer, &hurried);
    node.tend(&hurried).unwrap();
    let mode = || at.metadata().map(|found| (found.mode() & 0o7777, found.uid())).unwrap();
    assert_eq!(mode(), (0, 0), "nobody but root");
    let again = node.desk().resume(&transfer.id, USER).unwrap();
    node.begin_live(&again, &hurried).unwrap();
    assert_eq!(mode(), (0o700, USER.uid));
    node.mind_door(&hurried, Needs::Nobody).unwrap();
    assert_eq!(mode(), (0o700, USER.uid), "it is at work");
    node.end_live(&again);
    node.mind_door(&hurried, Needs::Nobody).unwrap();
    assert_eq!(mode(), (0, 0));
    // After a restart of the machine nothing is mounted.
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
    node.begin_live(&again, &hurried).unwrap();
    assert_eq!(std::fs::read_to_string(at.join("r")).unwrap(), "results");
    node.pool_of(&made).unwrap().set_door(&made, Door::Shut).unwrap();
    node.pool_of(&made).unwrap().remove("w").unwrap();
}

/// A transfer must not find an empty mount point, and be done with no file.
#[test]
fn a_space_is_mounted_before_a_transfer_of_it_is_carried() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root mounts");
        return;
    }
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    node.tend(&made).unwrap();
    let at = made.mountpoint.clone().unwrap();
    std::fs::write(at.join("r"), "results").unwrap();
    let order = NewTransfer { when: When::Now, ..out_of(&made, "r") };
    let transfer = node.desk().transfer(&order, USER).unwrap();
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
    node.begin_live(&transfer, &made).unwrap();
    assert_eq!(std::fs::read_to_string(at.join("r")).unwrap(), "results");
    node.end_live(&transfer);
    // A missing space is not staged; the transfer can still be called off.
    node.pool_of(&made).unwrap().remove("w").unwrap();
    assert_eq!(node.carry_and_tell(&transfer, &made), Next::BackOff);
    let told = |node: &Node| node.desk().transfer_of(&transfer.id).unwrap().1.unwrap();
    let waits = told(&node);
    assert_eq!(waits.state, TransferState::Waiting);
    assert!(waits.why.is_some_and(|why| why.contains("not there any more")));
    let running = ended(&transfer, TransferState::Running);
    node.book.put(&keys::actual_transfer(&transfer.id), &running).unwrap();
    node.desk().call_off(&transfer.id, USER, TransferWant::Cancelled).unwrap();
    node.say_stopped(&transfer);
    assert!(told(&node).state.has_ended());
}

/// Method: unmounting stands for a restart of the machine.
#[test]
fn what_was_in_memory_is_not_brought_home_as_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root mounts");
        return;
    }
    let bed = Bed::new();
    let node = bed.node("n1");
    let space = SpaceWish { means: Some("tmpfs".into()), ..SpaceWish::default() };
    let asked = NewInstance { space: Some(space), ..wish("w", Mode::Private, &["n1"]) };
    let made = node.desk().create(&asked).unwrap();
    node.tend(&made).unwrap();
    let transfer = node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    let at = made.mountpoint.clone().unwrap();
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
    let failed = node.tend(&made).unwrap_err().to_string();
    assert!(failed.contains("went with a restart"), "{failed}");
    let going = node.desk().destroy("w", USER, Want::Gone).unwrap();
    let begun = TransferActual { bytes: 12, bytes_total: 42, ..nothing_moved(&transfer) };
    node.book.put(&keys::actual_transfer(&transfer.id), &begun).unwrap();
    node.carry_and_tell(&transfer, &going);
    let told = node.desk().transfer_of(&transfer.id).unwrap().1.unwrap();
    assert_eq!((told.state, told.failures), (TransferState::Failed, 1));
    let lines = manifest::of(&node.book, "n1", "w", &transfer.id).unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].file.contains('r') && lines[0].why.contains("restart"), "{lines:?}");
    assert_eq!(lines[0].bytes, 30, "what was not home yet");
    let before = node.before_leaving(&going).unwrap();
    assert!(matches!(before, Before::Wait(_, Needs::Owner)), "{before:?}");
    node.desk().call_off(&transfer.id, USER, TransferWant::Revoked).unwrap();
    assert_eq!(node.before_leaving(&going).unwrap(), Before::Nothing);
    node.tend(&going).unwrap();
    assert_eq!(node.wanted("w"), None, "nothing is left");
}

/// Results written into an empty mount point would be hidden when it is mounted.
#[test]
fn a_transfer_waits_for_what_is_to_be_mounted_outside() {
    let bed = Bed::new();
    let point = bed.dir.path().join("outside");
    std::fs::create_dir(&point).unwrap();
    let config = bed.config("n1", &format!("backing-mounts = [\"{}\"]\n", point.display()));
    let node = bed.node_of(config);
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    node.tend(&made).unwrap();
    let destination = point.join("r");
    let order = NewTransfer { when: When::Now, destination, ..out_of(&made, "r") };
    let transfer = node.desk().transfer(&order, USER).unwrap();
    assert_eq!(node.carry_and_tell(&transfer, &made), Next::BackOff);
    let (_, told) = node.desk().transfer_of(&transfer.id).unwrap();
    let (state, why) = told.map(|told| (told.state, told.why.unwrap_or_default())).unwrap();
    assert_eq!(state, TransferState::Waiting);
    assert!(why.contains("nothing is mounted at"), "{why}");
    node.pool_of(&made).unwrap().remove("w").unwrap();
}

#[test]
fn a_job_of_a_newer_version_stops_no_other_one_and_nothing_that_it_does_not_name() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let (one, two) = (bed_instance(&node, "one"), bed_instance(&node, "two"));
    let job = serde_json::json!({
        "key": { "cluster": "c", "id": "9", "incarnation": 1 }, "tomorrow": true, "nodes": ["n1"],
        "plan": { "stage_out_of": "two" },
    });
    node.book.put(&format!("{}c/9/000001", keys::JOBS), &job).unwrap();
    assert_eq!(node.before_leaving(&one).unwrap(), Before::Nothing);
    let Before::Wait(why, _) = node.before_leaving(&two).unwrap() else { panic!("it goes") };
    assert!(why.contains("newer forebay"), "{why}");
    let release = |id: &str| {
        let patience = crate::job::Patience::Wait;
        crate::job::release(&node.book, "n1", id, patience, |_: &Path| Vec::new()).unwrap_err()
    };
    assert_eq!(release("9").kind(), Kind::Unavailable);
    assert_eq!(release("8").kind(), Kind::Usage, "it has nothing there");
    // A record whose very key has another form by now may be this job's; one of another cluster, on other
    // nodes, is not.
    for (record, kind) in [
        (serde_json::json!({ "run": "7" }), Kind::Unavailable),
        (serde_json::json!({ "key": { "id": "7" }, "tomorrow": 1, "nodes": ["n2"] }), Kind::Usage),
    ] {
        node.book.put(&format!("{}other/7/000001", keys::JOBS), &record).unwrap();
        assert_eq!(release("7").kind(), kind, "{record}");
    }
}

fn bed_instance(node: &Node, name: &str) -> Instance {
    node.desk().create(&wish(name, Mode::Private, &["n1"])).unwrap()
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let desk = node.desk();
    let twice = desk.create(&wish("w", Mode::Private, &["n1", "n1"])).unwrap_err();
    assert!(twice.to_string().contains("--node n1: name each node once"), "{twice}");
    let made = desk.create(&wish("scratch", Mode::Cache, &["n1"])).unwrap();
    assert!(made.mountpoint.as_ref().unwrap().ends_with("scratch/files"), "{made:?}");
    let hint = |asker| desk.instance_for("scratchy", asker).unwrap_err().to_string();
    assert!(hint(USER).contains("did you mean scratch?") && hint(ROOT).contains("did you mean"));
    let stranger = hint(Asker { uid: 4712, gid: 4712 });
    assert!(!stranger.contains("did you mean"), "{stranger}");
    let options = TransferOptions::default;
    let cases = [
        (TransferOptions { checksum: true, ..options() }, "--checksum"),
        (TransferOptions { rate_max: Some(1), ..options() }, "--set rate-max"),
        (TransferOptions { threads: Some(1), ..options() }, "--set flush-depth"),
        (TransferOptions { last: vec!["a".into(), "b".into()], ..options() }, "one pattern"),
        (TransferOptions { preserve: Some(Preserve::all()), ..options() }, "--preserve"),
        (TransferOptions { existing: Existing::Keep, ..options() }, "--existing"),
    ];
    for (options, words) in cases {
        let error = desk.transfer(&NewTransfer { options, ..out_of(&made, "r") }, USER);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
    let life = |instance: &Instance| matches!(instance.life, Life::Named { .. });
    assert!(life(&made));
    bed.node("n2");
    let both = desk.create(&wish("both", Mode::Private, &["n1", "n2"])).unwrap();
    let on = |options| NewTransfer { node: Some("n1".into()), options, ..out_of(&both, "r") };
    let refused = |asked: NewTransfer, words: &str| {
        let error = desk.transfer(&asked, USER).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(words), "{words}: {error}");
    };
    refused(out_of(&both, "r"), "give --on n1|n2");
    for threads in [0, 257] {
        let many = TransferOptions { threads: Some(threads), ..options() };
        refused(on(many), "give 1 to 256");
    }
    refused(
        on(TransferOptions { last: vec![String::new()], ..options() }),
        "--last \"\": a pattern",
    );
    let replace = || TransferOptions { existing: Existing::Replace, ..options() };
    let list = NewTransfer { what: What::List, ..on(replace()) };
    refused(list, "--existing replace: the files of a list");
    let root = both.mountpoint.clone().unwrap();
    let (source, destination) = ("/pfs/set".into(), root.join("."));
    let into = NewTransfer { direction: Direction::In, source, destination, ..on(replace()) };
    refused(into, "--existing replace: the instance itself stays");
    for (words, allowed) in [("owner", false), ("mode,owner", false), ("all", true), ("mode", true)]
    {
        let preserve = Some(words.parse().unwrap());
        let asked = || on(TransferOptions { preserve: preserve.clone(), ..options() });
        match allowed {
            true => drop(desk.transfer(&asked(), USER).unwrap()),
            false => refused(asked(), "--preserve owner: only root may"),
        }
    }
}

#[test]
fn what_waits_to_be_carried_out_says_what_for() {
    let bed = Bed::new();
    let node = bed.node("n1");
    let made = node.desk().create(&wish("w", Mode::Private, &["n1"])).unwrap();
    let out = node.desk().transfer(&out_of(&made, "r"), USER).unwrap();
    let why = Some("the directory server is away".into());
    let waits = TransferActual { why, ..ended(&out, TransferState::Waiting) };
    node.book.put(&keys::actual_transfer(&out.id), &waits).unwrap();
    let gone = node.desk().destroy("w", USER, Want::Gone).unwrap();
    let Before::Wait(why, _) = node.before_leaving(&gone).unwrap() else { panic!("it goes") };
    assert!(why.ends_with("is still to be carried out: the directory server is away"), "{why}");
}
