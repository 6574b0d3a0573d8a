//! `forebay run`: a mount for the life of one command.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_base::lock::sleep;
use forebay_base::way::{self, Demand};
use forebay_engine::KeepDirty;

use super::trial::TrialArgs;
use super::umount;
use super::watch::{tell_failures, warn};
use crate::config::ConfigFlags;
use crate::daemon::{self, Places, Side};
use crate::http::{Client, Liveness};
use crate::mounts::users_of;
use crate::signals::{self, From, Interrupt};
use crate::ui::{note, note_wrong};
use crate::units::{counted, human_secs, human_size};
use crate::wire::{Job, Leave};

const EXAMPLES: &str = "\
Examples:
  forebay run --backing /slow/project --tier /nvme/job -- make -j8
  forebay run --backing /slow/project --tier /nvme/job --mountpoint /mnt/job -- ./solver in.cfg
  forebay run --backing /data --mountpoint /data --tier /nvme/job -- /data/run.sh

The command runs in the directory that is the current one's place in the mount, or at the root of
the mount; FOREBAY_MOUNTPOINT names the mount. Afterwards everything is flushed, and forebay exits
with the command's exit code. If not everything could be flushed the exit code is 4 and the rest
stays in the tier. If the command leaves programs behind that use the mount, forebay names them and
waits until they end or close it, then flushes what they wrote. Ctrl-C, or SIGTERM, ends the wait: the
mount goes away, and they get errors from then on. Ctrl-C while it flushes leaves the rest in the tier.";

/// Mount, run a command in the mount, drain, unmount.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The slow directory, or one file or block device.
    #[arg(long, value_name = "PATH")]
    backing: PathBuf,

    /// The directory of the fast tier.
    #[arg(long, value_name = "DIR")]
    tier: PathBuf,

    /// Where to mount; a temporary directory if not given.
    #[arg(long, value_name = "DIR")]
    mountpoint: Option<PathBuf>,

    #[command(flatten)]
    trial: TrialArgs,

    #[command(flatten)]
    config: ConfigFlags,

    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The pause between two looks for the users of a mount that is in use.
const LOOK: Duration = Duration::from_secs(1);

/// After this time the unmount is tried again, even if users are seen.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// Users of the mount that are named.
const USERS_SHOWN: usize = 5;

/// The exit code of a shell for a command that could not be started.
const NOT_STARTED: u8 = 127;

pub fn run(args: Args) -> Result<u8> {
    let cwd = std::env::current_dir().map_err(|e| Error::io(e, "current directory"))?;
    let spot = Spot::new(args.mountpoint.as_deref())?;
    let plan = super::mount::plan(
        args.config.load()?,
        &args.backing,
        &spot.path,
        &args.tier,
        &args.trial,
    )?;
    let places = plan.places.clone();
    match daemon::fork()? {
        Side::Daemon(ready) => {
            // The parent process removes the directory.
            std::mem::forget(spot);
            Ok(daemon::run(plan, ready).unwrap_or_else(|e| e.exit_code()))
        }
        Side::Parent(child) => {
            for note in child.wait_ready("nothing is mounted")? {
                note_wrong(&note);
            }
            let dir =
                places.mountpoint.join(cwd.strip_prefix(&places.backing).unwrap_or(Path::new("")));
            let start = Instant::now();
            let code = run_command(&args.command, &dir, &places.mountpoint);
            let took = start.elapsed();
            finish(&Client::new(&places.tier), &places, code, took)
        }
    }
}

/// The mount point; removed at the end if this command made it.
struct Spot {
    path: PathBuf,
    ours: bool,
}

impl Spot {
    fn new(given: Option<&Path>) -> Result<Spot> {
        if let Some(path) = given {
            return Ok(Spot { path: path.into(), ours: false });
        }
        let path = temporary(&std::env::temp_dir())?;
        Ok(Spot { path, ours: true })
    }
}

/// A new directory that no other user can replace.
fn temporary(parent: &Path) -> Result<PathBuf> {
    let template = parent.join("forebay-run-XXXXXX");
    let unfit = |e: Error| {
        Error::new(Kind::Usage, "no place for the mount: name one with --mountpoint").with_source(e)
    };
    way::walk(&template, Demand::Fixed).map_err(unfit)?;
    let name = CString::new(template.into_os_string().into_vec())
        .map_err(|e| Error::io(e.into(), "TMPDIR"))?;
    let name = name.into_raw();
    // SAFETY: a string of our own that ends in NUL, which the call changes in place, mode 0700.
    let made = unsafe { libc::mkdtemp(name) };
    let failed = std::io::Error::last_os_error();
    // SAFETY: it comes from `into_raw`, and has the length it had.
    let name = unsafe { CString::from_raw(name) };
    match made.is_null() {
        true => Err(Error::io(failed, parent.display().to_string())),
        false => Ok(PathBuf::from(OsString::from_vec(name.into_bytes()))),
    }
}

impl Drop for Spot {
    fn drop(&mut self) {
        if self.ours {
            // If the drain failed the mount is still there, and the directory must stay.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

fn run_command(command: &[OsString], dir: &Path, mountpoint: &Path) -> u8 {
    signals::catch_interrupts();
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]).current_dir(dir).env("FOREBAY_MOUNTPOINT", mountpoint);
    match child.spawn() {
        Ok(mut child) => wait(&mut child),
        Err(e) => {
            note!("{}: {e}", command[0].display());
            NOT_STARTED
        }
    }
}

/// Waits for the command, and passes on signals that this process gets. A signal from the terminal is
/// not passed on: the command has got it, too.
fn wait(child: &mut Child) -> u8 {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                // A signal that came as the command ended is not meant for the drain.
                signals::take_interrupt();
                return code_of(status);
            }
            Ok(None) => {}
            Err(_) => return NOT_STARTED,
        }
        if let Some(Interrupt { signal, from: From::Process }) = signals::take_interrupt() {
            // SAFETY: the child is not reaped yet, so the id is its own; it may have ended in this
            // moment, which is no error.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
        sleep(Duration::from_millis(10));
    }
}

/// The exit code as a shell gives it: 128 and the signal for a command that was killed.
fn code_of(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or(0);
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(u8::MAX)
}

/// Drains, unmounts and reports. The command's exit code is passed on if everything is flushed.
fn finish(client: &Client, places: &Places, code: u8, took: Duration) -> Result<u8> {
    let (ended, at_end) = (Instant::now(), Flushed::by_now(client));
    let Some((before, job)) = leave_when_unused(client, places, code, KeepDirty::No)? else {
        return Ok(ended_by_another(places, code));
    };
    let late = job.report.clone().unwrap_or_default();
    tell_failures(&late.failures, Some(&places.mountpoint));
    warn(job.warning.as_deref());
    let all = Flushed { bytes: before.bytes + late.bytes, files: before.files + late.files };
    tell(&all, &at_end, took, ended.elapsed());
    if job.exit_code.unwrap_or(0) == 0 {
        return Ok(code);
    }
    // A person who runs a job does not come back to unmount, so unmount and keep dirty bytes in the tier.
    let keep = match (job.is_gone(), late.cancelled) {
        (true, _) => Some(job),
        (false, true) => Some(leave_now(client, KeepDirty::Yes)?),
        (false, false) => {
            leave_when_unused(client, places, code, KeepDirty::Yes)?.map(|(_, job)| job)
        }
    };
    // The report of the first unmount is outdated.
    tell_left(keep.as_ref());
    say_how_to_go_on(places, code, keep.is_none_or(|job| job.is_gone()));
    Ok(4)
}

/// Reports the bytes that stay dirty after the last try.
fn tell_left(last: Option<&Job>) {
    let Some(job) = last else { return };
    let left = job.report.clone().unwrap_or_default();
    match (&job.error, left.left_dirty_bytes, left.left_dirty_files) {
        (Some(error), ..) => note!("{error}"),
        (None, Some(bytes), Some(files)) => note!(
            "not everything was flushed: {} in {} stay dirty in the tier; unmounted",
            human_size(bytes),
            counted(files, "file")
        ),
        (None, ..) => {}
    }
}

/// Unmounts once no process that the command left behind uses the mount, or when the user interrupts the
/// wait. `None` if another process has unmounted meanwhile; otherwise the job, and what was flushed
/// before it.
fn leave_when_unused(
    client: &Client,
    places: &Places,
    code: u8,
    keep: KeepDirty,
) -> Result<Option<(Flushed, Job)>> {
    let mut told = false;
    loop {
        let before = Flushed::by_now(client);
        let ask = Leave { keep_dirty: keep == KeepDirty::Yes, ..Leave::default() };
        let job = match umount::leave(client, &ask) {
            Err(_) if client.liveness() == Liveness::Dead => return Ok(None),
            job => job?,
        };
        if !umount::is_in_use(&job) {
            return Ok(Some((before, job)));
        }
        if !std::mem::replace(&mut told, true) {
            tell_users(places, code, keep);
        }
        if let Waited::Interrupted = wait_for_users(&places.mountpoint) {
            let before = Flushed::by_now(client);
            return leave_now(client, keep).map(|job| Some((before, job)));
        }
    }
}

/// Unmounts even a mount that is in use: programs that use it get errors.
fn leave_now(client: &Client, keep: KeepDirty) -> Result<Job> {
    let keep_dirty = keep == KeepDirty::Yes;
    umount::leave(client, &Leave { keep_dirty, lazy: true, ..Leave::default() })
}

fn tell_users(places: &Places, code: u8, keep: KeepDirty) {
    let at = places.mountpoint.display();
    let users = match users_of(&places.mountpoint, USERS_SHOWN) {
        users if users.is_empty() => "some program".into(),
        users => users.join(", "),
    };
    let flushed = if keep == KeepDirty::No { ", and what it wrote is flushed" } else { "" };
    note!(
        "the command ended with {code}{flushed}; {at} is still in use by {users}: waiting \
         until it is not; Ctrl-C takes it away"
    );
}

enum Waited {
    Long,
    Interrupted,
}

/// Waits until no process is seen to use the mount, or for a while: not every process can be seen.
fn wait_for_users(mountpoint: &Path) -> Waited {
    let began = Instant::now();
    let mut looked = began;
    loop {
        sleep(Duration::from_millis(50));
        if signals::take_interrupt().is_some() {
            return Waited::Interrupted;
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            if began.elapsed() >= TRY_AGAIN || users_of(mountpoint, 1).is_empty() {
                return Waited::Long;
            }
        }
    }
}

/// The exit code when another process has unmounted: 4 if the command's bytes are still dirty.
fn ended_by_another(places: &Places, code: u8) -> u8 {
    let found = forebay_engine::check(&places.tier);
    if found.is_ok_and(|found| found.dirty_bytes + found.dirty_files == 0) {
        return code;
    }
    say_how_to_go_on(places, code, true);
    4
}

fn say_how_to_go_on(places: &Places, code: u8, is_gone: bool) {
    let (at, tier) = (places.mountpoint.display(), places.tier.display());
    if !is_gone {
        note!("the command ended with {code}; still mounted: `forebay umount {at}`");
        return;
    }
    note!(
        "the command ended with {code}; go on with `forebay recover {tier}`, or run or \
         mount with this tier again"
    );
}

/// The files and bytes that the mount has flushed so far.
#[derive(Default)]
struct Flushed {
    bytes: u64,
    files: u64,
}

impl Flushed {
    fn by_now(client: &Client) -> Flushed {
        let stats = client.get("/v1/stats").unwrap_or_default();
        let count = |name: &str| stats["counters"][name].as_u64().unwrap_or(0);
        Flushed { bytes: count("flushed_bytes"), files: count("flushed_files") }
    }
}

fn tell(all: &Flushed, at_end: &Flushed, took: Duration, waited: Duration) {
    note!(
        "ran {}; flushed {} in {}, of it {} in {} after the command ended; waited {}",
        human_secs(took.as_secs_f64()),
        human_size(all.bytes),
        counted(all.files, "file"),
        human_size(all.bytes.saturating_sub(at_end.bytes)),
        counted(all.files.saturating_sub(at_end.files), "file"),
        human_secs(waited.as_secs_f64())
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_mount_point_is_new_closed_and_in_a_safe_place() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let made = [temporary(dir.path()).unwrap(), temporary(dir.path()).unwrap()];
        assert_ne!(made[0], made[1]);
        assert_eq!(made[0].metadata().unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = temporary(dir.path()).unwrap_err();
        assert!(error.to_string().contains("--mountpoint"), "{error}");
    }

    #[test]
    fn the_exit_code_is_the_one_a_shell_would_tell() {
        let status = |script: &str| Command::new("sh").args(["-c", script]).status().unwrap();
        assert_eq!(code_of(status("exit 7")), 7);
        assert_eq!(code_of(status("kill -TERM $$")), 143);
    }
}
