//! The daemon: its assembly for a mount, its answers, its end.

mod anchor;
mod api;
mod attach;
mod background;
mod change;
mod cluster;
mod control;
mod device;
mod eta;
mod jobs;
mod leave;
pub mod log;
mod mark;
mod metrics;
mod missing;
mod others;
mod places;
mod readings;
mod registry;
mod saved;
mod stack;
mod statistics;
mod strangers;
mod taking_out;
mod tether;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use forebay_backing::wrap::Meter;
use forebay_backing::{Access, BackingStore, Error, Kind, Result, Sizes};
use forebay_base::folder::Folder;
use forebay_base::glob::Pattern;
use forebay_base::lock::{Mutex, Rank};
use forebay_cluster::member::Member;
use forebay_engine::{
    Attachment, Config, Contents, CopiesAt, Engine, KeepDirty, Made, Progress, Tier, TierOwner,
};
use forebay_fuse::{Locks, Mount, MountOptions, Passthrough};

use crate::config::Settings;
use crate::signals::{self, Blocked};
use crate::units::{counted, human_size};
use crate::{daemons, holder, http, mounts};
use anchor::Anchor;
use device::Device;
use jobs::Jobs;
use readings::History;
use saved::SavedJob;

pub use background::{Ready, Side, fork};
pub use places::Places;
use stack::Users;
use tether::Tether;

pub use mark::{Root, refuse_recovery};
pub use stack::{Pace, Stack, Trial, open as open_store};

/// A client that waits for the end of its unmount polls more often than this, even on a busy machine:
/// if the daemon is gone by then, the client cannot tell how the unmount ended.
const FAREWELL: Duration = Duration::from_secs(15);

/// Clients whose unmount was cut short for another one poll as often, if they are still there.
const FAREWELL_TO_OTHERS: Duration = Duration::from_secs(2);

const LOG: &str = "forebay.log";

/// Files that a daemon that never served leaves in its directory of a tier. The file about the registry is not among
/// them: it says which registry a node's name belongs to, and stays.
const OF_DAEMON: [&str; 3] = [LOG, Tier::SOCKET, saved::JOBS];

/// The checked plan of a mount.
#[derive(Debug, Clone)]
pub struct Plan {
    pub places: Places,
    pub settings: Settings,
    pub trial: Trial,
    /// The identity that the backing store must have, if a caller has looked at it before.
    pub identity: Option<String>,
}

/// The running daemon.
struct Daemon {
    engine: Arc<Engine>,
    /// Present if the store is shared with other nodes.
    member: Option<Arc<Member>>,
    meter: Arc<Meter>,
    anchor: Anchor,
    mount: OnceLock<Mount>,
    places: Places,
    /// The folder of the socket, the log and the state that a restart needs.
    run: Arc<Folder>,
    settings: Settings,
    started: Instant,
    jobs: Arc<Jobs>,
    history: History,
    device: Device,
    registry: registry::Found,
    events: Sender<Event>,
    /// Whether a detach is under way.
    detaching: Arc<AtomicBool>,
    /// Held by the thread that ends the daemon: one at a time.
    leaving: Mutex<()>,
    /// A thread holds `leaving`.
    is_leaving: AtomicBool,
    /// The drain of the leaving thread, so that a signal, or an unmount that keeps dirty bytes, can cut it
    /// short.
    drain: Mutex<Option<Arc<Progress>>>,
    /// The number of unmounts under way that keep dirty bytes.
    keepers: AtomicU32,
    /// A second signal came: keep dirty bytes and end.
    hurry: AtomicBool,
    /// The kernel ended the session, for whatever reason.
    session_over: AtomicBool,
    /// The engine is shut down: only the process has to end.
    engine_down: AtomicBool,
}

enum Event {
    Signal(i32),
    /// The kernel ended the session: a user unmounted.
    SessionOver,
    /// Everything is settled; the job that ended the daemon, if it was a job, and the exit code.
    Settled {
        job: Option<u64>,
        exit_code: u8,
    },
}

/// Serves a mount until it is unmounted; returns the exit code. `ready` is told that the daemon serves,
/// or why it does not.
pub fn run(plan: Plan, ready: Ready) -> Result<u8> {
    let blocked = Blocked::new();
    let (events, inbox) = mpsc::channel();
    let daemon = match ready.tie().and_then(|()| assemble(plan, events.clone(), &ready)) {
        Ok(daemon) => daemon,
        Err(error) => {
            ready.failed(&error);
            return Err(error);
        }
    };
    spawn("signals", {
        let events = events.clone();
        move || {
            while events.send(Event::Signal(blocked.wait())).is_ok() {}
        }
    });
    spawn("session", {
        let daemon = daemon.clone();
        move || daemon.watch_session()
    });
    tracing::info!(
        mountpoint = %daemon.places.mountpoint.display(),
        backing = %daemon.places.backing.display(),
        tier = %daemon.places.tier.display(),
        "serving"
    );
    let notes = daemon.notes(ready.tether.keep().as_ref());
    if !ready.serving(notes) {
        // Nobody waits for this mount any more.
        daemon.on_signal(1);
    }
    Ok(daemon.attend(&inbox))
}

fn assemble(plan: Plan, events: Sender<Event>, ready: &Ready) -> Result<Arc<Daemon>> {
    raise_descriptor_limit();
    lift_file_size_limit();
    let Plan { places, settings, trial, identity } = plan;
    let access = if settings.engine.read_only { Access::Read } else { Access::ReadWrite };
    let users = if settings.cluster.is_some() { Users::Members } else { Users::Alone };
    let stack = stack::open_as(&places.backing, &places.tier, access, &trial, users)?;
    let owner = TierOwner { path: places.backing.clone(), identity: stack.store.identity()? };
    if identity.is_some_and(|asked| asked != owner.identity) {
        let what =
            format!("backing store {}: it was exchanged for another", places.backing.display());
        return Err(Error::new(Kind::Usage, what));
    }
    let root = mark::Root { dir: stack.dir.as_fd(), path: &places.backing };
    if settings.cluster.is_none() && !settings.engine.read_only {
        mark::refuse_alone(root)?;
    }
    let mut tier = Tier::open(&places.tier, &owner)
        .map_err(|error| daemons::advised(&places.tier, error, daemons::Wish::Mount))?;
    ready.tether.hold(tier.made());
    let daemon = begin(tier, stack, (places, settings), events, ready);
    daemon.map_err(|error| ready.tether.undo(error))
}

/// Assembles the daemon once the tier is open.
fn begin(
    tier: Tier,
    stack: Stack,
    (places, settings): (Places, Settings),
    events: Sender<Event>,
    ready: &Ready,
) -> Result<Arc<Daemon>> {
    let root = mark::Root { dir: stack.dir.as_fd(), path: &places.backing };
    let (run, uuid) = (tier.run(), tier.uuid().to_string());
    start_log(&settings, &run, ready.is_awaited())?;
    let (jobs, unfinished) = Jobs::load(run.clone());
    let attachment = saved::load_attachment(&run);
    // The contents are read before the mount joins: for a tier that cannot be read, partners with copies take over.
    let contents = Contents::read(tier)?;
    // The member's claims are known before anything of the tier is flushed, or its names are made again.
    let member = settings.cluster.as_ref().map(|cluster| {
        let key = |path: &Path| stack.store.stat(path).map(|attr| attr.key);
        cluster::join(root, cluster, (&run, uuid, contents.memory()), key)
    });
    let member = member.transpose()?;
    let started = Engine::start_suspended(
        contents,
        stack.store.clone(),
        cluster::told(&settings, member.as_ref(), Config { attachment, ..settings.engine.clone() }),
        settings.tunables.clone(),
        &held(&unfinished),
    );
    let (engine, holds, suspension) = started.inspect_err(|_| {
        member.iter().for_each(Member::leave);
    })?;
    if let Some((member, cluster)) = member.as_ref().zip(settings.cluster.as_ref()) {
        member.trust(settings.tunables.revalidate);
        if cluster.copies > 0 {
            let at = if cluster.copies_at_write { CopiesAt::Write } else { CopiesAt::Sync };
            engine.files.begin_copies(Arc::new(cluster::Carrier(member.clone())), at);
            engine.outbox.begin_anew();
        }
    }
    settings.rules.iter().try_for_each(|rule| engine.room.add_rule(rule.clone()))?;
    let device = Device::under(&places.tier);
    let daemon = Arc::new(Daemon {
        engine,
        member,
        meter: stack.meter,
        anchor: stack.anchor,
        mount: OnceLock::new(),
        places,
        run,
        settings,
        started: Instant::now(),
        jobs,
        history: History::default(),
        device,
        registry: registry::Found::default(),
        events,
        detaching: Arc::default(),
        leaving: Mutex::new(Rank::Leaving, ()),
        is_leaving: AtomicBool::new(false),
        drain: Mutex::new(Rank::DaemonNotes, None),
        keepers: AtomicU32::new(0),
        hurry: AtomicBool::new(false),
        session_over: AtomicBool::new(false),
        engine_down: AtomicBool::new(false),
    });
    if let Some(member) = &daemon.member {
        member.set_desk(Box::new(others::TheDesk::of(&daemon)));
    }
    if let Err(error) = daemon.open_doors(&*stack.store, &ready.tether) {
        daemon.engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
        return Err(error);
    }
    drop(suspension);
    daemon.keep_readings();
    daemon.watch_registry();
    daemon.resume_jobs(unfinished, holds);
    Ok(daemon)
}

/// The files that unfinished jobs of a tier are to publish last.
pub fn held_in(tier: &Tier) -> Vec<(Vec<PathBuf>, Pattern)> {
    held(&Jobs::load(tier.run()).1)
}

/// The files that the drain must not flush because unfinished jobs hold them back.
fn held(unfinished: &[SavedJob]) -> Vec<(Vec<PathBuf>, Pattern)> {
    let orders = unfinished.iter().filter_map(|job| api::order(&job.asked).ok());
    orders.filter_map(|order| Some((order.scope, order.last?))).collect()
}

/// Starts the log. Until then the parent process gets the errors; from then on the log file does.
fn start_log(settings: &Settings, run: &Arc<Folder>, background: bool) -> Result<()> {
    let file = match &settings.log.file {
        Some(path) => Some(log::Place::named(path)?),
        None => background.then(|| log::Place { dir: run.clone(), name: LOG.into() }),
    };
    let stderr = if background { log::Stderr::Unread } else { log::Stderr::Read };
    log::start(&settings.log, file, stderr)
}

impl Daemon {
    fn open_doors(self: &Arc<Daemon>, backing: &dyn BackingStore, tether: &Tether) -> Result<()> {
        let daemon = self.clone();
        http::serve(&Tier::socket_path(&self.places.tier), move |request| daemon.answer(request))?;
        if let Some(address) = self.settings.metrics_listen {
            let daemon = self.clone();
            http::serve_tcp(address, move |request| daemon.answer_metrics(&request))?;
        }
        let mount = &self.settings.mount;
        let options = MountOptions {
            mountpoint: self.places.mountpoint.clone(),
            source: mounts::source(&self.places.tier),
            allow_other: rustix::process::geteuid().is_root(),
            read_only: self.settings.engine.read_only,
            no_exec: mount.no_exec,
            passthrough: self.passthrough(backing),
            transport: mount.transport,
            kernel_writeback: mount.kernel_writeback,
            threads: mount.threads,
            busy_poll: mount.busy_poll,
            entry_ttl: mount.entry_ttl,
            attr_ttl: mount.attr_ttl,
            control: self.clone(),
            holder: holder::program,
            member: self.member.clone(),
            locks: self.settings.cluster.as_ref().map_or(Locks::Node, |cluster| cluster.locks),
        };
        tether.cut();
        let mount = Mount::new(self.engine.clone(), options)?;
        assert!(self.mount.set(mount).is_ok(), "a daemon mounts once");
        Ok(())
    }

    /// The passthrough mode. On a store with fixed sizes it is off: the daemon does not see the writes of a
    /// passthrough writer, which could change sizes, and a large image would be dirty from end to end.
    fn passthrough(&self, backing: &dyn BackingStore) -> Passthrough {
        match backing.sizes() {
            Sizes::Fixed if !self.settings.engine.read_only => Passthrough::Off,
            _ => self.settings.mount.passthrough,
        }
    }

    /// The mount; an error in the moment between the opening of the control socket and the mount.
    fn mount(&self) -> Result<&Mount> {
        let early = || Error::new(Kind::Unavailable, "not serving yet; try again");
        self.mount.get().ok_or_else(early)
    }

    /// Notes about the tier, new or not, for the user who mounts.
    fn notes(&self, new: Option<&Made>) -> Vec<String> {
        let found = self.engine.recovery();
        let mut notes = Vec::new();
        // Who names /dev/shm knows; /tmp is in memory on some machines and not on others.
        let is_known = self.places.tier.starts_with("/dev/shm");
        if new.is_some() && self.engine.files.media().is_memory() && !is_known {
            let tier = self.places.tier.display();
            notes.push(format!(
                "the tier {tier} is in memory: what is not flushed yet is lost when the machine stops"
            ));
        }
        let attachment = self.engine.files.attachment();
        if attachment != Attachment::Attached {
            notes.push("the tier is detached, as it was left: `forebay attach` uses it".into());
        }
        if found.dirty_bytes > 0 {
            let then = match attachment {
                Attachment::DetachedKeepDirty => "they are kept",
                _ => "flushing goes on",
            };
            notes.push(format!(
                "the tier holds {} dirty in {} from before; {then}",
                human_size(found.dirty_bytes),
                counted(found.dirty_files, "file")
            ));
        }
        if found.conflicted_files > 0 {
            notes.push(format!(
                "{} in conflict: `forebay status` lists them, `forebay resolve` settles them",
                counted(found.conflicted_files, "file")
            ));
        }
        if found.dropped_bytes > 0 {
            notes.push(format!(
                "{}: {} in {}, written but never synced, are gone",
                found.why_dropped(),
                human_size(found.dropped_bytes),
                counted(found.dropped_files, "file")
            ));
        }
        notes.extend(self.short_of(self.settings.tunables.tier_size));
        notes.extend(found.problems.iter().cloned());
        if self.member.is_none() && !self.settings.engine.read_only {
            notes.extend(strangers::notes(&self.places));
        }
        for note in &notes {
            tracing::warn!("{note}");
        }
        notes
    }

    /// Handles events until everything is settled.
    fn attend(self: &Arc<Daemon>, inbox: &mpsc::Receiver<Event>) -> u8 {
        let mut signals = 0;
        for event in inbox {
            match event {
                Event::Signal(signal) => {
                    signals += 1;
                    tracing::info!(signal = signals::name(signal), "asked to end");
                    self.on_signal(signals);
                }
                Event::SessionOver => {
                    let daemon = self.clone();
                    spawn("leave", move || daemon.leave_after_unmount());
                }
                Event::Settled { job, exit_code } => {
                    if let Some(job) = job {
                        self.jobs.wait_seen(job, FAREWELL);
                        self.jobs.wait_all_seen(FAREWELL_TO_OTHERS);
                    }
                    tracing::info!(exit_code, "ended");
                    return exit_code;
                }
            }
        }
        unreachable!("the daemon holds a sender")
    }
}

/// Raises the soft limit: every cached file in use costs a descriptor, and the default limit of 1024 is
/// for programs that use select().
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(e) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("raising the limit of open files: {e}");
    }
}

/// Lifts the file size limit: a shell's limit is for its own writes, not for those of all programs in the
/// mount. If it cannot be lifted, a write beyond it fails with EFBIG instead of ending the process.
pub fn lift_file_size_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    signals::ignore_file_size();
    let mut limit = getrlimit(Resource::Fsize);
    for maximum in [None, limit.maximum] {
        (limit.current, limit.maximum) = (maximum, maximum);
        if setrlimit(Resource::Fsize, limit).is_ok() {
            return;
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.expect("a daemon that cannot start its first threads cannot serve");
}
