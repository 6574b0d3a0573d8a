//! Transfers of private instances: a worker with its owner's rights for each, found again by the file
//! that it writes its status to.
//!
//! - G1: the worker holds a lock on its status file from before it begins until it has ended: two never
//!   work on one transfer, whenever the daemon that started the first one died.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::folder::Folder;
use forebay_base::users::User;
use forebay_base::{Error, Kind, Result};
use forebay_node::hands::{Failed, Moved, Staging, Stop};
use forebay_node::records::{Direction, Transfer, What};
use forebay_stage::worker::{self, Action, Ending, Identity, Launch, Line, Order, Program};
use forebay_stage::{Options, Outcome, Place, Report, Spec, What as SpecWhat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use super::asker;

/// Programs of the job come first.
const NICE: i32 = 10;

/// How often a worker is asked how far it is, and whether it is to stop.
const POLL: Duration = Duration::from_millis(200);

/// A worker says first of all that it has begun.
const START_PATIENCE: Duration = Duration::from_secs(10);
const START_POLL: Duration = Duration::from_millis(20);

const PROGRESS_EVERY_MS: u64 = 500;

pub fn stage(staging: &Staging<'_>, stop: &Stop, told: &mut dyn FnMut(&Moved)) -> Result<Moved> {
    let name = format!("{}.{}.jsonl", staging.transfer.id, staging.transfer.attempt);
    attend(staging, &name, Action::Run, stop, told)
}

pub fn clean(staging: &Staging<'_>) -> Result<()> {
    let name = format!("{}.clean.jsonl", staging.transfer.id);
    attend(staging, &name, Action::Clean, &Stop::default(), &mut |_| {}).map(|_| ())
}

/// A worker that runs.
struct Running {
    process: OwnedFd,
}

fn attend(
    staging: &Staging<'_>,
    name: &str,
    action: Action,
    stop: &Stop,
    told: &mut dyn FnMut(&Moved),
) -> Result<Moved> {
    let path = staging.kept.join(name);
    let running = match worker_of(staging, name, action)? {
        Found::Running(running) => running,
        Found::Ended(ending) => return ending,
    };
    let mut stopped = false;
    while !running.ended(POLL)? {
        if stop.leaves() {
            return Err(Error::new(
                Kind::Interrupted,
                "the node daemon stops; the transfer goes on",
            ));
        }
        if stop.is_wanted() && !std::mem::replace(&mut stopped, true) {
            running.stop()?;
        }
        if let Some(moved) = progress_of(&path)? {
            told(&moved);
        }
    }
    let mut status = open_status(&staging.kept, name)?;
    ending_of(&mut status, &path)?.unwrap_or_else(|| {
        let why = format!(
            "transfer {}: its worker was killed; it is taken up again",
            staging.transfer.id
        );
        Err(Error::new(Kind::Unavailable, why))
    })
}

/// What there is of a transfer's worker.
enum Found {
    Running(Running),
    Ended(Result<Moved>),
}

/// Finds the worker of a transfer, or how it ended, or starts one.
fn worker_of(staging: &Staging<'_>, name: &str, action: Action) -> Result<Found> {
    let path = staging.kept.join(name);
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        let mut status = open_status(&staging.kept, name)?;
        match lock(&status)? {
            Lock::Ours => {
                return Ok(match ending_of(&mut status, &path)? {
                    Some(ending) => Found::Ended(ending),
                    // It holds the lock by a descriptor of its own from here on (G1).
                    None => Found::Running(Running::start(staging, action, &status)?),
                });
            }
            // One that was started a moment ago may not have said so yet.
            Lock::Worker => match Running::find(&path) {
                Err(_) if Instant::now() < deadline => thread::sleep(START_POLL),
                found => return found.map(Found::Running),
            },
        }
    }
}

fn open_status(dir: &Path, name: &str) -> Result<File> {
    let failed = |e| Error::io(e, dir.join(name).display().to_string());
    let folder = Folder::own(dir).map_err(failed)?;
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
    let fd = folder.open(name, flags, forebay_base::folder::Wanted::File).map_err(failed)?;
    Ok(fd.into())
}

enum Lock {
    Ours,
    /// A worker has it.
    Worker,
}

fn lock(status: &File) -> Result<Lock> {
    match flock(status, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock::Ours),
        Err(Errno::WOULDBLOCK) => Ok(Lock::Worker),
        Err(e) => Err(Error::os(e.raw_os_error(), "locking a transfer's status")),
    }
}

impl Running {
    fn start(staging: &Staging<'_>, action: Action, status: &File) -> Result<Running> {
        let owner = staging.transfer.owner;
        let failed = |e| Error::io(e, "a transfer's status");
        // A duplicate shares the lock.
        let out: OwnedFd = status.try_clone().map_err(failed)?.into();
        let worker = Launch {
            program: Program::this(&["stage-worker"]),
            order: Order { action, spec: spec(staging)?, every_ms: Some(PROGRESS_EVERY_MS) },
            identity: identity(owner.uid, owner.gid)?,
            status: out,
            errors: None,
            cgroup: None,
            nice: NICE,
        }
        .start()?;
        Running::open(worker.pid())?
            .ok_or_else(|| Error::new(Kind::Unavailable, "a transfer's worker ended at once"))
    }

    /// The one that an earlier daemon started: the last that said in the status that it began.
    fn find(path: &Path) -> Result<Running> {
        let failed = |e| Error::io(e, path.display().to_string());
        let lines = BufReader::new(File::open(path).map_err(failed)?).lines();
        let started =
            lines.map_while(std::result::Result::ok).filter_map(|line| match serde_json::from_str(
                &line,
            ) {
                Ok(Line::Started { pid }) => Some(pid),
                _ => None,
            });
        let gone = || {
            let why = format!("{}: somebody holds its lock and is no worker", path.display());
            Error::new(Kind::Unavailable, why)
        };
        let pid = started.last().ok_or_else(gone)?;
        let running = Running::open(pid)?.ok_or_else(gone)?;
        // The number may be another process's by now; the descriptor was opened before this look.
        let out = std::fs::read_link(format!("/proc/{pid}/fd/1")).unwrap_or_default();
        if out == path { Ok(running) } else { Err(gone()) }
    }

    fn open(pid: u32) -> Result<Option<Running>> {
        let failed = |e: Errno| Error::os(e.raw_os_error(), format!("process {pid}"));
        let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        match pidfd_open(id, PidfdFlags::empty()) {
            Ok(process) => Ok(Some(Running { process })),
            Err(Errno::SRCH) => Ok(None),
            Err(e) => Err(failed(e)),
        }
    }

    fn stop(&self) -> Result<()> {
        match pidfd_send_signal(&self.process, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(Error::os(e.raw_os_error(), "stopping a transfer")),
        }
    }

    /// Whether it has ended, after at most so long.
    fn ended(&self, patience: Duration) -> Result<bool> {
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()) };
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        let ended = match poll(&mut fds, Some(&limit)) {
            Err(Errno::INTR) => false,
            found => found.map_err(|e| Error::os(e.raw_os_error(), "waiting for a transfer"))? > 0,
        };
        if ended {
            // Only its own parent need wait for it.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            let _ = waitid(WaitId::PidFd(self.process.as_fd()), options);
        }
        Ok(ended)
    }
}

fn identity(uid: u32, gid: u32) -> Result<Identity> {
    match User::with_id(uid) {
        Ok(None) => Ok(Identity::numeric(uid, gid, vec![gid])),
        _ => Identity::of_account(uid),
    }
}

/// What the last worker said at its end.
fn ending_of(status: &mut File, path: &Path) -> Result<Option<Result<Moved>>> {
    let read = worker::read_status(status).map_err(|e| Error::io(e, path.display().to_string()))?;
    Ok(read.ending.map(|ending| match ending {
        Ending::Report(report) => Ok(moved_by(&report)),
        Ending::Cleaned => Ok(Moved::default()),
        // It could not begin: that is how the transfer ended.
        Ending::Error(_, text) => Ok(Moved {
            failures: vec![Failed { path: "/".into(), why: text, bytes: 0 }],
            failures_count: 1,
            ..Moved::default()
        }),
    }))
}

fn progress_of(path: &Path) -> Result<Option<Moved>> {
    let failed = |e| Error::io(e, path.display().to_string());
    let mut status = File::open(path).map_err(failed)?;
    let read = worker::read_status(&mut status).map_err(failed)?;
    Ok(read.progress.map(|progress| Moved {
        files: progress.files_done,
        bytes: progress.bytes_done,
        files_total: progress.files_total,
        bytes_total: progress.bytes_total,
        bytes_per_second: progress.bytes_per_second as u64,
        failures_count: progress.files_failed,
        ..Moved::default()
    }))
}

fn moved_by(report: &Report) -> Moved {
    let failed = report.failures.iter().map(|failure| Failed {
        path: failure.path.0.display().to_string(),
        why: failure.text.clone(),
        bytes: 0,
    });
    let full = report.outcome == Outcome::Full;
    let left = report.left.iter().map(|left| Failed {
        path: left.path.0.display().to_string(),
        why: if full { "the destination is full" } else { "not copied yet" }.into(),
        bytes: left.bytes,
    });
    Moved {
        files: report.files,
        bytes: report.bytes,
        files_total: report.files + report.left_files,
        bytes_total: report.bytes + report.left_bytes,
        bytes_per_second: 0,
        failures: failed.chain(left).collect(),
        failures_count: report.failed.max(report.left_files),
        cancelled: report.outcome == Outcome::Stopped,
    }
}

fn spec(staging: &Staging<'_>) -> Result<Spec> {
    let Transfer { id, direction, source, destination, what, options, .. } = staging.transfer;
    let outside = |path: &Path| Place {
        root: "/".into(),
        path: path.strip_prefix("/").unwrap_or(path).into(),
    };
    let inside = |path: &Path| Place {
        root: staging.root.as_path().into(),
        path: path.strip_prefix(&staging.root).unwrap_or(Path::new("")).into(),
    };
    let what = match what {
        What::Any => found_to_be(staging.transfer)?,
        what => *what,
    };
    let (mut from, mut to) = match direction {
        Direction::In => (outside(source), inside(destination)),
        Direction::Out => (inside(source), outside(destination)),
    };
    let what = match what {
        What::File | What::Any => SpecWhat::File,
        What::Directory => {
            to = named(to);
            SpecWhat::Directory
        }
        What::List => {
            let list = std::mem::replace(&mut from, Place { root: "/".into(), path: "".into() });
            // Names are below the directory that the list is in.
            from.root = list.root.clone();
            from.path = list.path.0.parent().unwrap_or(Path::new("")).into();
            SpecWhat::List(list)
        }
    };
    let options = Options {
        checksum: options.checksum,
        rate: options.rate_max.unwrap_or(0),
        threads: options.threads.map_or(Options::default().threads, |n| n as usize),
        last: options.last.clone(),
        ..Options::default()
    };
    Ok(Spec { id: id.clone(), source: from, destination: to, what, options })
}

/// What a source is, as its owner sees it.
fn found_to_be(transfer: &Transfer) -> Result<What> {
    let (owner, source) = (transfer.owner, transfer.source.clone());
    let found = asker::as_user(owner.uid, owner.gid, move || std::fs::metadata(source));
    let found = found.map_err(|e| Error::io(e, transfer.source.display().to_string()))?;
    Ok(if found.is_dir() { What::Directory } else { What::File })
}

/// The root of an instance has its name in the directory above it.
fn named(place: Place) -> Place {
    if !place.path.0.as_os_str().is_empty() {
        return place;
    }
    let root: PathBuf = place.root.0;
    match (root.parent(), root.file_name()) {
        (Some(above), Some(name)) => Place { root: above.into(), path: Path::new(name).into() },
        _ => Place { root: root.into(), path: "".into() },
    }
}

#[cfg(test)]
mod tests {
    use forebay_node::records::{Owner, TransferOptions, TransferWant, When};

    use super::*;

    fn transfer(direction: Direction, what: What, source: &str, destination: &str) -> Transfer {
        Transfer {
            id: "t1".into(),
            instance: "i".into(),
            node: "n".into(),
            direction,
            what,
            source: source.into(),
            destination: destination.into(),
            when: When::Now,
            owner: Owner { uid: 1, gid: 1 },
            options: TransferOptions::default(),
            want: TransferWant::Done,
            created: 0,
            attempt: 0,
        }
    }

    /// T2 of the worker: nothing outside the instance is reached by way of it.
    #[test]
    fn the_instance_is_the_root_of_what_is_in_it() {
        let of = |transfer: &Transfer| {
            let (root, kept) = ("/mnt/i".into(), "/k".into());
            spec(&Staging { transfer, root, kept }).unwrap()
        };
        let spec = of(&transfer(Direction::In, What::File, "/pfs/a", "/mnt/i/d/a"));
        assert_eq!((spec.source.root, spec.source.path), ("/".into(), "pfs/a".into()));
        assert_eq!((spec.destination.root, spec.destination.path), ("/mnt/i".into(), "d/a".into()));
        let spec = of(&transfer(Direction::Out, What::Directory, "/mnt/i", "/pfs/out/"));
        assert_eq!((spec.source.root, spec.source.path), ("/mnt/i".into(), "".into()));
        assert_eq!(spec.destination.path, "pfs/out/".into());
        let spec = of(&transfer(Direction::In, What::Any, "/proc/self", "/mnt/i/d"));
        assert_eq!(spec.what, SpecWhat::Directory);
        let spec = of(&transfer(Direction::In, What::Directory, "/pfs/set", "/mnt/i"));
        assert_eq!((spec.destination.root, spec.destination.path), ("/mnt".into(), "i".into()));
        let spec = of(&transfer(Direction::Out, What::List, "/mnt/i/w/list", "/pfs/out"));
        assert_eq!((spec.source.root, spec.source.path), ("/mnt/i".into(), "w".into()));
    }
}
