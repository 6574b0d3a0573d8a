//! `forebay umount`.

mod left;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use serde_json::{Value, json};

use super::watch::{tell_failures, warn, watch};
use crate::config::ConfigFlags;
use crate::daemons::{Drainer, at_of};
use crate::http::Client;
use crate::mounts::{Mounts, Place, users_of};
use crate::node::client::NodeClient;
use crate::pulse;
use crate::ui::{note, say, say_json};
use crate::units::{counted, human_secs, human_size, parse_duration};
use crate::wire::{Job, JobFailure, Leave};

const EXAMPLES: &str = "\
Examples:
  forebay umount /mnt/fast
  forebay umount /mnt/fast --timeout 5min
  forebay umount /mnt/fast --keep-dirty
  forebay umount home
  forebay umount --all

Every dirty byte is flushed first. If that fails or takes longer than --timeout, the mount stays and
the exit code is 4. With --keep-dirty nothing is flushed: what is dirty waits in the tier for the
next mount. A mount whose daemon died is cleared away; the exit code is 4 if something is dirty in its
tier (0 with --keep-dirty), or the tier cannot be read. With --json it has `\"daemon\": \"dead\"`
(`\"ended\"` if the daemon has just unmounted by itself), and where
a job has them `exit_code` and, in `report`, `left_dirty_files` and `left_dirty_bytes`.

If the mount is gone already, after a umount(8), and its daemon still drains, the command waits for the
end of the daemon; TIER, the directory of the tier, names it as well.

--all unmounts every mount of your user id on this machine, the newest first, and goes on if one fails. For
root these are all mounts that were made as root. The exit code is the worst, and --json prints an array of
their documents, each with its `mountpoint` and `tier`.";

const USAGE: &str = "\
forebay umount [OPTIONS] <MOUNTPOINT|NAME|TIER>
       forebay umount [OPTIONS] --all";

/// Drain and unmount.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub struct Args {
    /// The mount point; or the name of a mount that the configuration file describes.
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

    /// Look for NAME in this file [default: that of `forebay mount`].
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    config: Option<PathBuf>,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// How an unmount ended; for people it is told by then.
struct Ended {
    document: Value,
    exit_code: u8,
}

/// Added to --timeout: a copy in flight may take this long to reach a safe point.
pub const GRACE: Duration = Duration::from_secs(45);

/// After the answer "unmounted" the daemon only closes files before its process ends.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// A daemon gets this long for an answer, however short --timeout is: the machine may be busy.
const ANSWER_MIN: Duration = Duration::from_secs(5);

const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub fn run(args: &Args) -> Result<u8> {
    let mounts = Mounts::read()?;
    let Some(typed) = &args.mountpoint else { return all(&mounts, args) };
    Ok(shown(one(&place(&mounts, typed, args)?, args)?, args))
}

/// The mount or the draining daemon that was named.
fn place(mounts: &Mounts, typed: &Path, args: &Args) -> Result<Place> {
    let found = mounts.daemon_at(typed);
    if found.as_ref().is_ok_and(|place| place.path.as_os_str().is_empty()) {
        return found;
    }
    let config = ConfigFlags { file: args.config.clone(), ..ConfigFlags::default() };
    if let Some(at) = at_of(typed, config)? {
        return mounts.daemon_at(&at).map_err(|error| explained(error, &at, mounts));
    }
    let place = found.map_err(|error| explained(error, typed, mounts))?;
    let message = format!(
        "{} is inside a mount: name its mount point, {}",
        typed.display(),
        place.mountpoint.display()
    );
    Err(Error::new(Kind::Usage, message))
}

fn explained(error: Error, typed: &Path, mounts: &Mounts) -> Error {
    match error.kind() {
        Kind::Unreachable => not_mounted(typed, mounts),
        _ => error,
    }
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
    let ended =
        own.iter().map(|place| one(place, args).unwrap_or_else(|error| failed(place, &error)));
    let all: Vec<Ended> = ended.collect();
    if args.json {
        say_json(&all.iter().map(|one| &one.document).collect::<Vec<_>>());
    }
    Ok(all.iter().map(|one| one.exit_code).max().unwrap_or(0))
}

fn failed(place: &Place, error: &Error) -> Ended {
    note!("{}: {error}", place.mountpoint.display());
    let exit_code = error.exit_code();
    let document = json!({ "error": error.to_string(), "exit_code": exit_code });
    Ended { document: of_place(place, document), exit_code }
}

/// Drains and unmounts this mount.
pub fn of(place: &Place, timeout: Option<Duration>, json: bool) -> Result<u8> {
    let args = plain(timeout, json);
    Ok(shown(one(place, &args)?, &args))
}

/// Waits for the end of a daemon whose mount is gone.
pub fn wait_for(drainer: &Drainer, json: bool) -> Result<u8> {
    let args = plain(None, json);
    Ok(shown(left::wait(drainer, &args)?, &args))
}

fn plain(timeout: Option<Duration>, json: bool) -> Args {
    Args { mountpoint: None, all: false, keep_dirty: false, timeout, config: None, json }
}

fn shown(ended: Ended, args: &Args) -> u8 {
    if args.json {
        say_json(&ended.document);
    }
    ended.exit_code
}

fn one(place: &Place, args: &Args) -> Result<Ended> {
    // A command that works in the mount would itself keep the mount in use.
    let _ = std::env::set_current_dir("/");
    if let Some(drainer) = Mounts::read()?.drainer(place) {
        return left::wait(&drainer, args);
    }
    let patience = args.timeout.map_or(Duration::MAX, |timeout| timeout.max(ANSWER_MIN));
    let client = Client::new(&place.tier).within(patience);
    let timeout_secs = args.timeout.map(|timeout| timeout.as_secs_f64());
    let ask = Leave { keep_dirty: args.keep_dirty, timeout_secs, lazy: false };
    let job = match leave(&client, &ask) {
        Err(error) if error.kind() == Kind::Unreachable && !client.is_forbidden() => {
            return unanswered(place, args, error);
        }
        job => job?,
    };
    if !args.json {
        tell(&job, place, args);
    }
    Ok(Ended { document: of_place(place, json!(job)), exit_code: job.exit_code.unwrap_or(0) })
}

/// Adds the mount to a document about its unmount.
fn of_place(place: &Place, mut document: Value) -> Value {
    document["mountpoint"] = place.mountpoint.to_string_lossy().into();
    document["tier"] = place.tier.to_string_lossy().into();
    document
}

/// Handles a daemon that does not answer: it has unmounted and ended, has died and left the mount, or hangs.
/// The kernel says which, since a socket may be full, gone or unreadable.
fn unanswered(place: &Place, args: &Args, error: Error) -> Result<Ended> {
    let at = place.mountpoint.display();
    if is_mounted(place)? && pulse::is_dead(&place.mountpoint)? {
        detach(&place.mountpoint)?;
        let text = format!("the daemon of {at} had died; the mount is cleared away");
        return Ok(left::tell_left(place, args, "dead", text));
    }
    match is_mounted(place)? {
        true => Err(error),
        false => {
            let text = format!("{at} was unmounted by its own daemon meanwhile");
            Ok(left::tell_left(place, args, "ended", text))
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
    let process = left::process(client);
    let answer = client.post("/v1/umount", &json!(ask))?;
    let id = answer["id"].as_u64().unwrap_or(0);
    let job = watch(client, id, "drain", limit.map(|limit| Instant::now() + limit))?;
    if let (Some(process), true) = (process, job.is_gone()) {
        left::ends_within(&process, END_PATIENCE);
    }
    Ok(job)
}

/// Whether everything is flushed and programs still use the mount.
pub fn is_in_use(job: &Job) -> bool {
    job.exit_code == Some(1) && job.error.as_ref().is_some_and(|error| error.contains("is in use"))
}

fn tell(job: &Job, place: &Place, args: &Args) {
    let report = job.report.clone().unwrap_or_default();
    tell_failures(&report.failures, Some(&place.mountpoint));
    warn(job.warning.as_deref());
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

/// What to do about the cause of failed flushes, in words before those about going on.
fn cure(failures: &[JobFailure]) -> &'static str {
    let says = |words: &[&str]| {
        failures.iter().any(|failure| words.iter().any(|word| failure.error.contains(word)))
    };
    if says(&["No space left", "quota exceeded"]) {
        "make room on the backing store, then "
    } else if says(&["Read-only file system", "Permission denied"]) {
        "make the backing store writable, then "
    } else if failures.iter().any(|failure| failure.state == "conflict") {
        "settle what is in conflict, then "
    } else {
        ""
    }
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
            "{}go on with `forebay umount {at}`, or `forebay umount {at} --keep-dirty` to \
             leave them in the tier for later",
            job.report.as_ref().map_or("", |report| cure(&report.failures))
        ),
    }
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
