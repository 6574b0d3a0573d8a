//! Starting a worker: a fresh program with a user's rights and nothing else of the starting process.
//!
//! - L1: it has no capability, and no way to get one, unless the user is root.
//! - L2: it has no descriptor but its order, its status and an error output.
//! - L3: it does not end with the process that started it.
//! - L4: the user cannot look into it or change it, from the first moment on: every line in its status is the
//!   program's own.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use forebay_base::{Error, Result, users};
use rustix::fs::{MemfdFlags, Mode, OFlags};

use super::identity::Identity;
use super::running::Worker;
use super::{Line, Order};
use crate::spec::usage;

/// Above the highest capability of any kernel; the kernel reports where its own end.
const CAPS_MAX: i32 = 63;

/// The lowest of the ordinary class: the idle class could delay a stage-out for ever.
const IO_PRIORITY: libc::c_long = (2 << 13) | 7;

const IO_PRIORITY_PROCESS: libc::c_long = 1;

/// The groups of nobody; the first is used, unless it is the user's own.
const NOBODYS: [libc::gid_t; 2] = [65534, 65533];

/// The program that a worker runs.
#[derive(Debug, Clone)]
pub struct Program {
    pub path: PathBuf,
    pub args: Vec<OsString>,
}

impl Program {
    /// The program of this process, whatever file has its name now.
    pub fn this(args: &[&str]) -> Program {
        Program { path: "/proc/self/exe".into(), args: args.iter().map(Into::into).collect() }
    }
}

/// The parameters of a worker's start.
#[derive(Debug)]
pub struct Launch {
    pub program: Program,
    pub order: Order,
    pub identity: Identity,
    /// Opened for appending; the worker writes lines of JSON to it.
    pub status: OwnedFd,
    /// A panic is reported there; `None`: nowhere.
    pub errors: Option<OwnedFd>,
    /// The worker's directory in the cgroup file system.
    pub cgroup: Option<PathBuf>,
    /// Added to the priority of the starting process, 0 to 19.
    pub nice: i32,
}

/// The steps of the child before it becomes the worker: system calls only, prepared beforehand, since
/// other threads of the parent may have held locks when it forked.
struct Steps {
    identity: Identity,
    become_it: Become,
    cgroup: Option<File>,
    nice: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Become {
    /// Started by root: the worker becomes the user, or stays root with all its rights.
    User,
    Root,
    /// Started by a user: the worker stays that user.
    Same,
}

impl Launch {
    /// # Errors
    ///
    /// If the worker could not be started; then no worker runs. Errors that the worker finds itself are in its
    /// status.
    pub fn start(self) -> Result<Worker> {
        self.order.spec.check()?;
        let become_it = self.becomes()?;
        let Launch { program, order, identity, status, errors, cgroup, nice } = self;
        let whose = users::show(identity.uid);
        let failed = |what: &str| {
            let context = format!("{what} for {whose}");
            move |e: io::Error| Error::io(e, context.clone())
        };
        let opened = open_program(&program.path)
            .map_err(|e| Error::io(e, program.path.display().to_string()))?;
        // Without the cgroup the worker only has a low priority.
        let cgroup = cgroup.and_then(|dir| open_cgroup(&dir).ok());
        let input = written(&order).map_err(failed("the order of a transfer"))?;
        let steps = Steps { identity, become_it, cgroup, nice };
        let mut command = Command::new(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        command
            .arg0("forebay")
            .args(&program.args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .current_dir("/")
            .stdin(input)
            .stdout(Stdio::from(status))
            .stderr(errors.map_or_else(Stdio::null, Stdio::from));
        // SAFETY: the steps make system calls only.
        unsafe { command.pre_exec(move || steps.take()) };
        let child = command.spawn().map_err(failed("starting a transfer's worker"))?;
        Worker::of_child(child.id())
    }

    fn becomes(&self) -> Result<Become> {
        let own = rustix::process::geteuid().as_raw();
        match (own, self.identity.uid) {
            (0, 0) => Ok(Become::Root),
            (0, _) => Ok(Become::User),
            (own, uid) if own == uid => Ok(Become::Same),
            (own, uid) => Err(usage(format!(
                "{} cannot stage for {}: run the node daemon as root",
                users::show(own),
                users::show(uid)
            ))),
        }
    }
}

/// Opens the program as a descriptor: the user need not be able to reach it by its path.
fn open_program(path: &std::path::Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

fn open_cgroup(dir: &std::path::Path) -> io::Result<File> {
    File::options().write(true).open(dir.join("cgroup.procs"))
}

/// The whole order in memory: the starting process may die at any time.
fn written(order: &Order) -> io::Result<File> {
    let fd = rustix::fs::memfd_create("order", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(&serde_json::to_vec(order)?)?;
    file.rewind()?;
    Ok(file)
}

impl Steps {
    fn take(&self) -> io::Result<()> {
        // SAFETY: integers, and pointers to what `self` holds.
        unsafe {
            libc::setsid();
            libc::umask(0o077);
            if let Some(cgroup) = &self.cgroup {
                // A worker that cannot join its group still runs.
                let _ = write_zero(cgroup.as_raw_fd());
            }
            unblock_signals()?;
            check(libc::prctl(libc::PR_SET_PDEATHSIG, 0))?;
            // A worker whose priority cannot be changed still runs.
            libc::setpriority(libc::PRIO_PROCESS, 0, self.nice);
            libc::syscall(
                libc::SYS_ioprio_set,
                IO_PRIORITY_PROCESS,
                0 as libc::c_long,
                IO_PRIORITY,
            );
            match self.become_it {
                Become::User => {
                    drop_bounding()?;
                    self.switch()?;
                    drop_capabilities()?;
                }
                Become::Root => self.switch()?,
                Become::Same => {}
            }
            let cloexec = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
            check_long(libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, cloexec))
        }
    }

    /// Changes the user by the kernel's own calls: those of the C library would signal threads that the child lacks.
    ///
    /// L4: the kernel closes a program to its user if its real and effective groups differ when it begins. The
    /// worker then closes itself, gives up the real group, and only then gives up gaining rights (`shield`): a
    /// program that may gain none would begin with its real group as the effective one. Where the node daemon itself
    /// may gain none the worker is closed to its user only once it has closed itself.
    unsafe fn switch(&self) -> io::Result<()> {
        let Identity { uid, gid, groups } = &self.identity;
        // SAFETY: asks for a flag of this thread.
        let gains_none = unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) } == 1;
        let real = match *gid {
            own if gains_none => own,
            own if own == NOBODYS[0] => NOBODYS[1],
            _ => NOBODYS[0],
        };
        // SAFETY: reads at most the groups.
        unsafe {
            check_long(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
            check_long(libc::syscall(libc::SYS_setresgid, real, *gid, *gid))?;
            check_long(libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid))
        }
    }
}

/// Joins the cgroup: 0 stands for the writing process.
fn write_zero(fd: RawFd) -> io::Result<()> {
    // SAFETY: one byte of a constant.
    match unsafe { libc::write(fd, b"0".as_ptr().cast(), 1) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn unblock_signals() -> io::Result<()> {
    // SAFETY: the set is filled in before it is used.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        check(libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()))
    }
}

/// L1: takes the capabilities away from all programs that the worker may run later, too.
fn drop_bounding() -> io::Result<()> {
    for capability in 0..=CAPS_MAX {
        // SAFETY: integers only.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            let error = io::Error::last_os_error();
            // The kernel has no capabilities beyond this number.
            return if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) };
        }
    }
    Ok(())
}

/// Drops the inheritable capabilities; the change of user has dropped all others.
fn drop_capabilities() -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    // _LINUX_CAPABILITY_VERSION_3: two times 32 bits of three sets each.
    let header = Header { version: 0x2008_0522, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: both are as the version says, and live through the calls.
    unsafe {
        let ambient = libc::PR_CAP_AMBIENT_CLEAR_ALL;
        check(libc::prctl(libc::PR_CAP_AMBIENT, ambient, 0, 0, 0))?;
        check_long(libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()))
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    check_long(libc::c_long::from(result))
}

fn check_long(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The status line for a worker that could not be started.
pub fn refusal(error: &Error) -> Line {
    Line::Error { exit_code: error.exit_code(), text: error.to_string() }
}
