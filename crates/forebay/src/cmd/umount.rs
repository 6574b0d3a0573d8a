//! `forebay umount`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_base::lock::sleep;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use super::watch::{tell_failures, watch};
use crate::http::Client;
use crate::mounts::{Mounts, Place, users_of};
use crate::node::client::NodeClient;
use crate::pulse;
use crate::rights;
use crate::ui::{note, say, say_json, tell_error};
use crate::units::{counted, human_secs, human_size, parse_duration};
use crate::wire::{Job, Leave};

const EXAMPLES: &str = "\
Examples:
  forebay umount /mnt/fast
  forebay umount /mnt/fast --timeout 5min
  forebay umount /mnt/fast --keep-dirty
  forebay umount --all

Every dirty byte is flushed first. If that fails or takes longer than --timeout, the mount stays and
the exit code is 4. With --keep-dirty nothing is flushed: what is dirty waits in the tier for the
next mount. A mount whose daemon died is cleared away; the exit code is 4 if something is dirty in its
tier (0 with --keep-dirty), or the tier cannot be read. With --json it has `\"daemon\": \"dead\"`
(`\"ended\"` if the daemon has just unmounted by itself), and where
a job has them `exit_code` and, in `report`, `left_dirty_files` and `left_dirty_bytes`.

--all unmounts every mount of your user id on this machine, the newest first, whatever fails: as root also
those that others made as root. The exit code is the worst, and --json prints a document for each, with
its `mountpoint` and `tier`.";

/// Drain and unmount.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point.
    #[arg(required_unless_present = "all")]
    mountpoint: Option<PathBuf>,

    /// Every mount of your user id on this machine.
    #[arg(long, conflicts_with = "mountpoint")]
    all: bool,

    /// Do not flush: leave what is dirty in the tier for the next mount.
    #[arg(long)]
    keep_dirty: bool,

    /// Stop draining after this time and stay mounted.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Added to --timeout: a copy in flight may take this long to reach a safe point.
pub const GRACE: Duration = Duration::from_secs(45);

/// After the answer "unmounted" the daemon only closes files before its process ends.
const END_PATIENCE: Duration = Duration::from_secs(30);

const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub fn run(args: &Args) -> Result<u8> {
    let mounts = Mounts::read()?;
    let Some(mountpoint) = &args.mountpoint else { return all(&mounts, args) };
    let place = mounts.find(mountpoint).map_err(|error| match error.kind() {
        Kind::Unreachable => not_mounted(mountpoint, &mounts),
        _ => error,
    })?;
    if !place.path.as_os_str().is_empty() {
        let message = format!(
            "{} is inside a mount: name its mount point, {}",
            mountpoint.display(),
            place.mountpoint.display()
        );
        return Err(Error::new(Kind::Usage, message));
    }
    one(place, args)
}

/// The error for a path that is not in a mount: on a drained node its reason, else the existing mounts.
fn not_mounted(typed: &Path, mounts: &Mounts) -> Error {
    let typed = typed.display();
    let others: Vec<_> = mounts.ours().map(|(at, _)| at.display().to_string()).collect();
    let why = match drained_node() {
        Some(node) => format!(
            "node {node} is drained, and its members have flushed all and left. `forebay node undrain \
             {node}` ends that; what is to serve again is mounted then"
        ),
        None if others.is_empty() => "nothing of forebay's is".into(),
        None => format!("what is: {}", others.join(", ")),
    };
    let message = format!("{typed} is not mounted, and nothing is left to unmount: {why}");
    Error::new(Kind::Unreachable, message)
}

/// This machine's node, if its daemon is told to drain it.
fn drained_node() -> Option<String> {
    let node: Value = NodeClient::of_environment().get("/v1/node").ok()?;
    let name = node["name"].as_str().filter(|_| node["draining"] == true);
    name.map(str::to_string)
}

/// Unmounts all mounts one after the other; the exit code is the worst of theirs.
fn all(mounts: &Mounts, args: &Args) -> Result<u8> {
    let own = mounts.of_user(rustix::process::getuid().as_raw());
    if own.is_empty() && !args.json {
        say("nothing of yours is mounted");
    }
    let codes = own.into_iter().map(|place| {
        let at = place.mountpoint.display().to_string();
        one(place, args).unwrap_or_else(|error| tell_error(&error.context(at), args.json.into()))
    });
    Ok(codes.max().unwrap_or(0))
}

/// Drains and unmounts this mount.
pub fn of(place: Place, timeout: Option<Duration>, json: bool) -> Result<u8> {
    one(place, &Args { mountpoint: None, all: false, keep_dirty: false, timeout, json })
}

fn one(place: Place, args: &Args) -> Result<u8> {
    let client = Client::new(&place.tier);
    let timeout_secs = args.timeout.map(|timeout| timeout.as_secs_f64());
    let ask = Leave { keep_dirty: args.keep_dirty, timeout_secs, lazy: false };
    let job = match leave(&client, &ask) {
        Err(error) if error.kind() == Kind::Unreachable && !client.is_forbidden() => {
            return unanswered(&place, args, error);
        }
        job => job?,
    };
    match args.json {
        true => say_json(&of_place(&place, json!(job))),
        false => tell(&job, &place, args),
    }
    Ok(job.exit_code.unwrap_or(0))
}

/// Adds the mount to a document about its unmount.
fn of_place(place: &Place, mut document: Value) -> Value {
    document["mountpoint"] = place.mountpoint.to_string_lossy().into();
    document["tier"] = place.tier.to_string_lossy().into();
    document
}

/// Handles a daemon that does not answer: it has unmounted and ended, has died and left the mount, or hangs.
/// The kernel says which, since a socket may be full, gone or unreadable.
fn unanswered(place: &Place, args: &Args, error: Error) -> Result<u8> {
    if is_mounted(place)? && pulse::is_dead(&place.mountpoint)? {
        detach(&place.mountpoint)?;
        let at = place.mountpoint.display();
        return Ok(tell_left(
            place,
            args,
            "dead",
            format!("the daemon of {at} had died; the mount is cleared away"),
        ));
    }
    match is_mounted(place)? {
        true => Err(error),
        false => {
            let text =
                format!("{} was unmounted by its own daemon meanwhile", place.mountpoint.display());
            Ok(tell_left(place, args, "ended", text))
        }
    }
}

fn is_mounted(place: &Place) -> Result<bool> {
    let now = Mounts::read()?.find(&place.mountpoint);
    Ok(now.is_ok_and(|now| now.tier == place.tier))
}

/// Has the daemon drain, unmount and end, and waits for all three.
pub fn leave(client: &Client, ask: &Leave) -> Result<Job> {
    let limit = ask.timeout_secs.map(|secs| Duration::from_secs_f64(secs) + GRACE);
    left(client, ask, limit)
}

/// Like [`leave`], with this time limit.
pub fn leave_within(client: &Client, ask: &Leave, limit: Duration) -> Result<Job> {
    left(client, ask, Some(limit))
}

fn left(client: &Client, ask: &Leave, limit: Option<Duration>) -> Result<Job> {
    let process = client.daemon_pid().and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let answer = client.post("/v1/umount", &json!(ask))?;
    let id = answer["id"].as_u64().unwrap_or(0);
    let job = watch(client, id, "drain", limit.map(|limit| Instant::now() + limit))?;
    if let (Some(process), true) = (process, job.is_gone()) {
        wait_end(&process);
    }
    Ok(job)
}

/// Whether everything is flushed and programs still use the mount.
pub fn is_in_use(job: &Job) -> bool {
    job.exit_code == Some(1) && job.error.as_ref().is_some_and(|error| error.contains("is in use"))
}

/// Waits until the daemon's process has ended: until then it holds the tier's lock.
fn wait_end(process: &OwnedFd) {
    let limit = Timespec { tv_sec: END_PATIENCE.as_secs() as i64, tv_nsec: 0 };
    // An error of poll does not matter: the mount is gone, and a later mount reports a held tier.
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit));
}

fn tell(job: &Job, place: &Place, args: &Args) {
    let report = job.report.clone().unwrap_or_default();
    tell_failures(&report.failures, Some(&place.mountpoint));
    let at = place.mountpoint.display();
    let left = match (report.left_dirty_bytes, report.left_dirty_files) {
        (Some(bytes), Some(files)) if bytes + files > 0 => {
            format!("{} in {}", human_size(bytes), counted(files, "file"))
        }
        _ => String::new(),
    };
    match (&job.error, args.keep_dirty) {
        (Some(error), _) => {
            note!("{error}");
            say_how_to_go_on(job, place);
        }
        (None, true) if !left.is_empty() => {
            let tier = place.tier.display();
            say(format!("unmounted {at}; {left} stay dirty in {tier} for the next mount"));
        }
        (None, _) if report.files == 0 => say(format!("nothing was dirty; unmounted {at}")),
        (None, _) => say(format!(
            "drained {} in {}, unmounted {at} in {}",
            human_size(job.moved_bytes()),
            counted(report.files, "file"),
            human_secs(job.elapsed_secs)
        )),
    }
}

/// Whether the daemon has named the users. If not, the caller may see more: processes of other users, if the
/// daemon is not root's.
fn names_users(job: &Job) -> bool {
    job.error.as_ref().is_some_and(|error| error.contains("in use by"))
}

fn say_how_to_go_on(job: &Job, place: &Place) {
    let at = place.mountpoint.display();
    match job.exit_code {
        Some(1) if names_users(job) => {}
        Some(1) => {
            let users = users_of(&place.mountpoint, 5);
            if !users.is_empty() {
                note!("in use by {}", users.join(", "));
            }
        }
        _ if job.is_gone() => {}
        _ => note!(
            "go on with `forebay umount {at}`, or `forebay umount {at} --keep-dirty` to \
             leave them in the tier for later"
        ),
    }
}

/// Prints what became of a mount whose daemon is gone, and what its tier still holds. Returns the exit code.
fn tell_left(place: &Place, args: &Args, daemon: &str, told: String) -> u8 {
    let left = Left::look(&place.tier);
    let text = left.text();
    let exit_code = left.exit_code(args.keep_dirty);
    match args.json {
        // Fields that a job has as well have the same names and places here.
        true => say_json(&of_place(
            place,
            json!({
                "kind": "umount",
                "daemon": daemon,
                "dirty": left.dirty(),
                "report": { "left_dirty_files": left.files(), "left_dirty_bytes": left.bytes() },
                "message": text,
                "exit_code": exit_code,
            }),
        )),
        false => {
            say(told);
            say(match left {
                Left::Nothing => text,
                _ => {
                    let tier = place.tier.display();
                    format!("{text}; mount it again to go on, or `forebay recover {tier}`")
                }
            });
        }
    }
    exit_code
}

/// The dirty bytes that a dead daemon left in its tier.
enum Left {
    Nothing,
    Dirty {
        files: u64,
        bytes: u64,
    },
    /// The tier cannot be read.
    Unknown(Error),
}

impl Left {
    fn look(tier: &Path) -> Left {
        let deadline = Instant::now() + END_PATIENCE;
        loop {
            match rights::dirty_in(tier) {
                Ok(found) if found.bytes + found.files == 0 => return Left::Nothing,
                Ok(found) => return Left::Dirty { files: found.files, bytes: found.bytes },
                // A dying daemon releases the tier's lock last.
                Err(error) if is_held(&error) && Instant::now() < deadline => {
                    sleep(LOOK_AGAIN);
                }
                Err(error) => return Left::Unknown(error),
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Left::Nothing => "nothing is dirty in the tier".into(),
            Left::Dirty { files, bytes } => {
                let (what, files) = (human_size(*bytes), counted(*files, "file"));
                format!("{what} in {files} are dirty and safe in the tier")
            }
            Left::Unknown(error) => {
                format!("what is dirty in the tier is not known, for it cannot be checked: {error}")
            }
        }
    }

    fn dirty(&self) -> Option<bool> {
        match self {
            Left::Nothing => Some(false),
            Left::Dirty { .. } => Some(true),
            Left::Unknown(_) => None,
        }
    }

    fn files(&self) -> Option<u64> {
        match self {
            Left::Nothing => Some(0),
            Left::Dirty { files, .. } => Some(*files),
            Left::Unknown(_) => None,
        }
    }

    fn bytes(&self) -> Option<u64> {
        match self {
            Left::Nothing => Some(0),
            Left::Dirty { bytes, .. } => Some(*bytes),
            Left::Unknown(_) => None,
        }
    }

    /// 0 if the user asked to keep dirty bytes; 4 for a tier that cannot be read in any case.
    fn exit_code(&self, keep_dirty: bool) -> u8 {
        match self {
            Left::Nothing => 0,
            Left::Dirty { .. } if keep_dirty => 0,
            Left::Dirty { .. } | Left::Unknown(_) => 4,
        }
    }
}

fn is_held(error: &Error) -> bool {
    error.kind() == Kind::WrongTier && error.to_string().contains("is in use")
}

fn detach(mountpoint: &Path) -> Result<()> {
    let flags = rustix::mount::UnmountFlags::DETACH | rustix::mount::UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mountpoint, flags) {
        Err(rustix::io::Errno::PERM) => detach_by_helper(mountpoint),
        other => {
            other.map_err(|e| Error::os(e.raw_os_error(), format!("{}", mountpoint.display())))
        }
    }
}

/// Only fusermount3 can unmount an ordinary user's mounts.
fn detach_by_helper(mountpoint: &Path) -> Result<()> {
    let mut helper = Command::new("fusermount3");
    let status = helper.arg("-uz").arg(mountpoint).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::os(libc::EPERM, format!("fusermount3 -uz: {status}"))),
        Err(e) => Err(Error::io(e, "fusermount3 -uz")),
    }
}
