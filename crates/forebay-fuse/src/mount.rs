//! A mount: its options, its session threads, and its end.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_backing::metrics::OpCounts;
use forebay_backing::{Error, FileKey, Kind, Result};
use forebay_base::lock::{Condvar, Mutex, Rank, sleep};
use forebay_base::mounts;
use forebay_cluster::front::Front;
use forebay_engine::{Engine, Keep, WriterHold, WriterHolds};
use rustix::mount::UnmountFlags;

use crate::codec::{Granted, Wishes};
use crate::control::ControlDir;
use crate::dev::{Device, Session};
use crate::holds::{Holder, Holds};
use crate::nodes;
use crate::request::{SETTLE_MAX, Shared};
use crate::returning;
use crate::ring::{self, Crew};
use crate::usage::{Process, Used};
use crate::vfs::{Registrar, Returned, Times, Vfs};

/// How far the kernel reads ahead of a sequential reader, in requests of this length.
const READ_AHEAD_KIB: u32 = 1024;

/// The files that the kernel reads and writes in the fast tier without asking the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passthrough {
    /// Complete files for reading and writing, new and truncated ones for writing, while the tier has room.
    /// Writes to a complete file are found by comparing contents.
    Auto,
    /// Complete files for reading, for writing only new and truncated ones.
    New,
    /// Complete files for reading.
    ReadOnly,
    /// As `Auto`, but for writing whatever room the tier has.
    Always,
    /// None.
    Off,
}

/// How requests come from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Over io_uring where the kernel allows it, else over /dev/fuse.
    Auto,
    Dev,
    /// Over io_uring, or not at all.
    IoUring,
}

/// The programs between which locks of files hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locks {
    /// The programs of all members.
    Cluster,
    /// The programs of this node: the kernel has the locks.
    Node,
}

pub struct MountOptions {
    pub mountpoint: PathBuf,
    /// The text in the first column of the mount table.
    pub source: String,
    /// Everybody may use the mount; the kernel checks permissions.
    pub allow_other: bool,
    pub read_only: bool,
    /// No program is started from the mount.
    pub no_exec: bool,
    pub passthrough: Passthrough,
    pub transport: Transport,
    /// Lets the kernel keep written bytes before they reach the daemon. Faster for small buffered
    /// writes; bytes that the kernel still has are lost when the daemon dies, which weakens S2.
    /// Excludes passthrough.
    pub kernel_writeback: bool,
    /// Session threads, at least 2.
    pub threads: usize,
    /// How long a thread looks out for the next request over /dev/fuse before it sleeps.
    pub busy_poll: Duration,
    pub entry_ttl: Duration,
    pub attr_ttl: Duration,
    pub control: Arc<dyn ControlDir>,
    /// The program that runs [`holder::main`](crate::holds::holder::main), but for the arguments.
    pub holder: fn() -> Command,
    /// Present if the store is shared with other nodes.
    pub member: Option<Arc<forebay_cluster::member::Member>>,
    /// Counts for a member only: the locks of any other mount are those of its node.
    pub locks: Locks,
}

/// A mounted file system, served by threads of its own.
pub struct Mount {
    shared: Arc<Shared>,
    mountpoint: PathBuf,
    ended: Ended,
    over_ring: bool,
    stop: Arc<AtomicBool>,
}

impl Mount {
    /// Mounts and serves. The mount answers requests when this returns.
    pub fn new(engine: Arc<Engine>, options: MountOptions) -> Result<Mount> {
        if wants_ring(options.transport)?
            && let Some(mount) = Mount::over(&engine, &options, true)?
        {
            return Ok(mount);
        }
        let mount = Mount::over(&engine, &options, false)?;
        mount.ok_or_else(|| Error::os(libc::EIO, "a mount over /dev/fuse asks for no ring"))
    }

    /// Returns `None` if io_uring was asked for and is not to be had, and /dev/fuse is allowed. The mount
    /// is then gone again, since the kernel cannot be told to use /dev/fuse after all.
    fn over(engine: &Arc<Engine>, options: &MountOptions, ring: bool) -> Result<Option<Mount>> {
        let root = rustix::process::geteuid().is_root();
        let (control, passthrough) = (options.control.clone(), options.passthrough);
        let times = Times { entry: options.entry_ttl, attr: options.attr_ttl };
        let vfs = Vfs::new(engine.clone(), control, passthrough, times)?;
        let shared = Arc::new(Shared::new(vfs, options.threads, options.entry_ttl));
        let wishes = wishes(options, &shared, ring, root);
        let (session, granted) =
            open_session(wishes, options, root).map_err(|e| explain(e, options))?;
        let device = session.device().clone();
        let passes = granted.passthrough && attach_registrar(&device, &shared);
        if options.passthrough == Passthrough::Always && !passes {
            detach(options);
            return Err(Error::new(
                Kind::Usage,
                "passthrough = always: this kernel or this user cannot pass files through (Linux 6.9 and root are needed): use auto",
            ));
        }
        if let Some(member) = &options.member {
            shared.vfs.set_cluster(Box::new(member.clone()));
            shared.vfs.set_locks(options.locks);
            shared.tend_locks()?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        start_watchdog(shared.clone(), stop.clone())?;
        let crew = match start_ring(&device, &shared, options, granted.io_uring) {
            Ok(Some(crew)) => Some(crew),
            Ok(None) if !granted.io_uring => None,
            unable => {
                stop.store(true, Relaxed);
                detach(options);
                return unable.map(|_| None);
            }
        };
        if crew.is_none()
            && !options.busy_poll.is_zero()
            && let Ok(device) = device.as_fd().try_clone_to_owned()
        {
            shared.busy_poll.begin(device, options.busy_poll);
        }
        shared.vfs.set_notify(device);
        be_told(engine, options, &shared, &stop)?;
        let ended = begin_session(session, &shared, crew.clone())?;
        if let Some(crew) = &crew {
            crew.make_known();
        }
        if passes && !options.read_only {
            hold_writers(engine, options, &shared);
        }
        if let Err(error) = widen_read_ahead(&options.mountpoint) {
            tracing::debug!(%error, "the kernel reads ahead as it does by itself");
        }
        Ok(Some(Mount {
            shared,
            mountpoint: options.mountpoint.clone(),
            ended,
            over_ring: crew.is_some(),
            stop,
        }))
    }

    /// The transport, as the setting would name it.
    pub fn transport(&self) -> &'static str {
        if self.over_ring { "io-uring" } else { "dev" }
    }

    /// Settles a conflict (S8).
    ///
    /// # Errors
    ///
    /// As [`Vfs::resolve`].
    pub fn resolve(&self, path: &Path, keep: Keep) -> Result<()> {
        self.shared.vfs.resolve(path, keep)
    }

    /// Latency of every verb so far.
    pub fn op_counts(&self) -> BTreeMap<&'static str, OpCounts> {
        self.shared.verbs.all().into_iter().map(|(name, op)| (name, op.counts())).collect()
    }

    /// The usage of each user so far.
    pub fn users(&self) -> BTreeMap<u32, Used> {
        self.shared.usage.users()
    }

    /// The busiest processes, at most `count`.
    pub fn processes(&self, count: usize) -> Vec<Process> {
        self.shared.usage.processes(count)
    }

    /// Unmounts. No request is at work and no file is open when this returns, unless a request hangs.
    ///
    /// # Errors
    ///
    /// EBUSY if the mount is in use.
    pub fn unmount(&self) -> Result<()> {
        self.take_away(UnmountFlags::empty())?;
        let ended = self.ended.0.lock();
        // The kernel does not wait for the end of the daemon's session.
        drop(self.ended.1.wait_timeout_while(ended, 2 * SETTLE_MAX, |ended| !*ended));
        Ok(())
    }

    /// Takes the mount out of the name space. It ends with its last user.
    pub fn detach(&self) -> Result<()> {
        self.take_away(UnmountFlags::DETACH)
    }

    fn take_away(&self, flags: UnmountFlags) -> Result<()> {
        let _rest = self.shared.holds.rest();
        match rustix::mount::unmount(&self.mountpoint, flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::PERM) => self.unmount_by_helper(flags),
            Err(e) => Err(Error::os(
                e.raw_os_error(),
                format!("unmounting {}", self.mountpoint.display()),
            )),
        }
    }

    fn unmount_by_helper(&self, flags: UnmountFlags) -> Result<()> {
        let lazy = flags.contains(UnmountFlags::DETACH);
        let mut command = Command::new("fusermount3");
        command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(&self.mountpoint);
        let output = command.output().map_err(|e| Error::io(e, "running fusermount3"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        let busy = said.contains("busy");
        let context = format!("unmounting {}: {said}", self.mountpoint.display());
        Err(Error::os(if busy { libc::EBUSY } else { libc::EIO }, context))
    }

    /// Waits until the kernel has ended the session, whichever way the mount was unmounted.
    pub fn wait(&self) {
        let ended = self.ended.0.lock();
        drop(self.ended.1.wait_timeout_while(ended, Duration::MAX, |ended| !*ended));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Has the kernel read ahead as much as a fill is long, instead of its own 128 KiB: each request costs a
/// change of threads. Needs root (`Documentation/ABI/testing/sysfs-class-bdi`).
fn widen_read_ahead(mountpoint: &Path) -> io::Result<()> {
    let knob = format!("/sys/class/bdi/{}/read_ahead_kb", device_at(mountpoint)?);
    std::fs::write(knob, READ_AHEAD_KIB.to_string())
}

/// The numbers of the device of the mount there.
fn device_at(mountpoint: &Path) -> io::Result<String> {
    let mounts = mounts::read()?;
    let mount = mounts::at(&mounts, mountpoint).ok_or(io::ErrorKind::NotFound)?;
    Ok(mount.device.clone())
}

/// Gives the engine the means to hold writers past the daemon, and finds out whether they work, if it needs them.
fn hold_writers(engine: &Arc<Engine>, options: &MountOptions, shared: &Arc<Shared>) {
    let (holds, of) = (shared.holds.clone(), Arc::downgrade(shared));
    if !engine.passed.set_holds(Arc::new(Writers { holds, of })) {
        return;
    }
    let (program, mountpoint) = (options.holder, options.mountpoint.clone());
    let holder = device_at(&mountpoint).map(|device| Holder { program, mountpoint, device });
    match holder.and_then(|holder| shared.holds.begin(holder)) {
        Ok(()) => shared.holds.probe(),
        Err(error) => {
            tracing::debug!(%error, "programs that write past the daemon cannot be held");
        }
    }
}

/// Holds the writers of the engine's files.
struct Writers {
    holds: Holds,
    of: Weak<Shared>,
}

impl WriterHolds for Writers {
    fn work(&self) -> bool {
        self.holds.work()
    }

    fn hold(&self, key: FileKey) -> Option<Box<dyn WriterHold>> {
        let node = self.of.upgrade()?.vfs.nodes.id_of(key)?;
        let hold = self.holds.ask(node, nodes::generation(key))?;
        Some(Box::new(hold))
    }
}

fn wishes(options: &MountOptions, shared: &Shared, ring: bool, root: bool) -> Wishes {
    let passes = options.passthrough != Passthrough::Off;
    Wishes {
        passthrough: passes && !options.kernel_writeback && root,
        kernel_writeback: options.kernel_writeback,
        io_uring: ring,
        locks: options.member.is_some() && options.locks == Locks::Cluster,
        links: shared.vfs.tells_births(),
        maps: options.member.is_some(),
    }
}

/// From here on the engine has the kernel's pages dropped, and other members may ask this mount.
fn be_told(
    engine: &Arc<Engine>,
    options: &MountOptions,
    shared: &Arc<Shared>,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let caches = Arc::downgrade(shared);
    shared.vfs.engine.files.set_discarder(Box::new(move |key| {
        if let Some(shared) = caches.upgrade() {
            shared.vfs.drop_pages(key);
        }
    }));
    let Some(member) = &options.member else { return Ok(()) };
    let front: Weak<dyn Front> = Arc::downgrade(&(shared.clone() as Arc<dyn Front>));
    let earlier: Vec<_> = engine.ops.superseded().into_iter().map(|it| it.file).collect();
    member.serve(front, returning::sort(engine, member)?);
    compare_superseded(shared, stop, &earlier)
}

/// Whether a session has ended, and the condition that tells of it.
type Ended = Arc<(Mutex<bool>, Condvar)>;

/// Starts the thread that serves the kernel until the mount is taken away.
fn begin_session(session: Session, shared: &Arc<Shared>, crew: Option<Arc<Crew>>) -> Result<Ended> {
    let ended = Arc::new((Mutex::new(Rank::Ended, false), Condvar::new()));
    let (signal, requests) = (ended.clone(), shared.clone());
    let serve = move || {
        if let Err(e) = session.run(&requests) {
            tracing::error!(error = %e, "the FUSE session ended");
        }
        if crew.is_none_or(|crew| crew.settles()) {
            requests.settle();
        }
        *signal.0.lock() = true;
        signal.1.notify_all();
    };
    let thread = std::thread::Builder::new().name("fb-session".into());
    thread.spawn(serve).map_err(|e| Error::io(e, "starting the session thread"))?;
    Ok(ended)
}

/// Mounts by a system call as root, else through fusermount3. Either way the mount has a file system
/// type of its own, by which the command line finds it.
fn open_session(
    wishes: Wishes,
    options: &MountOptions,
    root: bool,
) -> io::Result<(Session, Granted)> {
    let fd = if root { mount_directly(options)? } else { mount_by_helper(options)? };
    let session = Session::begin(fd, wishes, options.threads);
    if session.is_err() {
        detach(options);
    }
    session
}

/// Takes away a mount that never served.
fn detach(options: &MountOptions) {
    let at = &options.mountpoint;
    if rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH).is_err() {
        // This is the mount of an ordinary user.
        let _ = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(at).output();
    }
}

/// Whether to ask the kernel for requests over io_uring.
fn wants_ring(transport: Transport) -> Result<bool> {
    if transport == Transport::Dev {
        return Ok(false);
    }
    match (transport, ring::possible()) {
        (_, Ok(())) => Ok(true),
        (Transport::IoUring, Err(why)) => Err(no_ring(&why)),
        (_, Err(why)) => {
            tracing::debug!(why, "requests come over /dev/fuse");
            Ok(false)
        }
    }
}

/// Takes requests over io_uring if the handshake `granted` that.
fn start_ring(
    device: &Arc<Device>,
    shared: &Arc<Shared>,
    options: &MountOptions,
    granted: bool,
) -> Result<Option<Arc<Crew>>> {
    if !granted {
        return match options.transport {
            Transport::IoUring => Err(no_ring("it was not granted")),
            Transport::Auto | Transport::Dev => Ok(None),
        };
    }
    // This has to come before the first request.
    shared.seat_all();
    match Crew::start(shared.clone(), device.clone(), &options.mountpoint) {
        Ok(crew) => Ok(Some(crew)),
        Err(e) if options.transport == Transport::IoUring => Err(no_ring(&e.to_string())),
        Err(e) => {
            tracing::warn!(error = %e, "no requests over io_uring: they come over /dev/fuse");
            Ok(None)
        }
    }
}

fn no_ring(why: &str) -> Error {
    let message = format!("transport = io-uring: {why}: {}: or use auto", ring::REMEDY);
    Error::new(Kind::Usage, message)
}

fn mount_directly(options: &MountOptions) -> io::Result<OwnedFd> {
    use rustix::mount::MountFlags;
    let fd = Device::open()?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        fd.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    if options.no_exec {
        flags |= MountFlags::NOEXEC;
    }
    let data = std::ffi::CString::new(data).expect("no NUL in numbers and words");
    let (source, at) = (&*options.source, &options.mountpoint);
    rustix::mount::mount(source, at, "fuse.forebay", flags, &*data)?;
    Ok(fd)
}

/// Asks fusermount3, which is set-user-id root, to mount and to hand over the descriptor; see its
/// `_FUSE_COMMFD` protocol.
fn mount_by_helper(options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    // A comma in an option would begin the next option.
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = format!("fsname={source},subtype=forebay,default_permissions");
    if options.allow_other {
        words.push_str(",allow_other");
    }
    if options.read_only {
        words.push_str(",ro");
    }
    if options.no_exec {
        words.push_str(",noexec");
    }
    let helper = Command::new("fusermount3")
        .arg("-o")
        .arg(words)
        .arg("--")
        .arg(&options.mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    drop(theirs);
    let received = receive_fd(&ours);
    let output = helper.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    received?.ok_or_else(|| io::Error::other(said))
}

fn receive_fd(socket: &std::os::unix::net::UnixStream) -> io::Result<Option<OwnedFd>> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut byte = [0];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(fds.flatten().next())
}

fn explain(e: io::Error, options: &MountOptions) -> Error {
    let what = format!("mounting on {}", options.mountpoint.display());
    match e.kind() {
        io::ErrorKind::NotFound => Error::new(
            Kind::Usage,
            format!("{what}: {e}: is /dev/fuse there, and fusermount3 (package fuse3) installed?"),
        ),
        _ => Error::io(e, what),
    }
}

/// Starts the thread that answers requests which hang in the backing store (S10).
fn start_watchdog(shared: Arc<Shared>, stop: Arc<AtomicBool>) -> Result<()> {
    let watch = move || {
        while !stop.load(Relaxed) {
            sleep(Duration::from_millis(100));
            let late = shared.expire();
            if late > 0 {
                tracing::warn!(
                    requests = late,
                    "the backing store hangs: requests were answered without it"
                );
            }
        }
    };
    std::thread::Builder::new()
        .name("fb-watchdog".into())
        .spawn(watch)
        .map(|_| ())
        .map_err(|e| Error::io(e, "starting the watchdog"))
}

/// Compares the files that other members took over while this mount was away with what they are now, in a
/// thread, as soon as the members that serve them answer. `earlier`: files that an earlier mount has found.
fn compare_superseded(
    shared: &Arc<Shared>,
    stop: &Arc<AtomicBool>,
    earlier: &[FileKey],
) -> Result<()> {
    let mut files = Returned::found(&shared.vfs, earlier);
    // The others are told even if there is nothing to compare: a life that ended too early may have told nobody.
    if files.is_empty() && shared.vfs.cluster().is_none() {
        return Ok(());
    }
    let (shared, stop) = (shared.clone(), stop.clone());
    let compare = move || {
        while !stop.load(Relaxed) {
            files.compare(&shared.vfs);
            if files.is_empty() {
                return;
            }
            sleep(Duration::from_secs(2));
        }
    };
    let spawned = std::thread::Builder::new().name("fb-compare".into()).spawn(compare);
    spawned.map(drop).map_err(|e| Error::io(e, "starting a thread to compare files"))
}

/// Tries whether the kernel accepts a file for passthrough. If so, the vfs gets its registrar.
fn attach_registrar(device: &Arc<Device>, shared: &Shared) -> bool {
    let trial = std::fs::File::open("/proc/self/exe").and_then(|exe| device.register(exe.as_fd()));
    match trial {
        Ok(id) => device.release(id),
        Err(e) => {
            tracing::info!(error = %e, "no kernel passthrough: files go through the daemon");
            return false;
        }
    }
    shared.vfs.set_registrar(device.clone());
    true
}
