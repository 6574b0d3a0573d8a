//! `forebay run`: a mount for the life of one command.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Result};
use serde_json::Value;

use super::job::tell_failures;
use super::trial::TrialArgs;
use super::umount;
use crate::config::ConfigFlags;
use crate::daemon::{self, Side};
use crate::http::Client;
use crate::signals::{self, From, Interrupt};
use crate::units::{counted, human_secs, human_size};
use crate::wire::Job;

const EXAMPLES: &str = "\
Examples:
  forebay run --backing /slow/project --tier /nvme/job -- make -j8
  forebay run --backing /slow/project --tier /nvme/job --mountpoint /mnt/job -- ./solver in.cfg

The command runs in the directory that is the current one's place in the mount, or at the root of
the mount; FOREBAY_MOUNTPOINT names the mount. Afterwards everything is flushed, and forebay exits
with the command's exit code. If not everything could be flushed the exit code is 4 and the rest
stays in the tier.";

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

/// The exit code of a shell for a command that could not be started.
const NOT_STARTED: u8 = 127;

pub fn run(args: Args) -> Result<u8> {
    let cwd = std::env::current_dir().map_err(|e| Error::io(e, "current directory"))?;
    let spot = Spot::new(args.mountpoint.as_deref())?;
    let plan =
        super::mount::plan(&args.config, &args.backing, &spot.path, &args.tier, &args.trial)?;
    let places = plan.places.clone();
    match daemon::fork()? {
        Side::Daemon(ready) => {
            // The directory is the parent's to remove.
            std::mem::forget(spot);
            Ok(daemon::run(plan, ready).unwrap_or_else(|e| e.exit_code()))
        }
        Side::Parent(child) => {
            for note in child.wait_ready()? {
                eprintln!("forebay: {note}");
            }
            let dir =
                places.mountpoint.join(cwd.strip_prefix(&places.backing).unwrap_or(Path::new("")));
            let start = Instant::now();
            let code = run_command(&args.command, &dir, &places.mountpoint);
            let took = start.elapsed();
            finish(&Client::new(&places.tier), &places.tier, code, took)
        }
    }
}

/// The mount point, removed again if it is ours.
struct Spot {
    path: PathBuf,
    ours: bool,
}

impl Spot {
    fn new(given: Option<&Path>) -> Result<Spot> {
        if let Some(path) = given {
            return Ok(Spot { path: path.into(), ours: false });
        }
        let path = std::env::temp_dir().join(format!("forebay-run-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| Error::io(e, path.display().to_string()))?;
        Ok(Spot { path, ours: true })
    }
}

impl Drop for Spot {
    fn drop(&mut self) {
        if self.ours {
            // Still mounted if the drain failed; then it must stay.
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
            eprintln!("forebay: {}: {e}", command[0].display());
            NOT_STARTED
        }
    }
}

/// Waits for the command. A signal to us goes to it as well, except what came from the terminal:
/// that it has already.
fn wait(child: &mut Child) -> u8 {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return code_of(status),
            Ok(None) => {}
            Err(_) => return NOT_STARTED,
        }
        if let Some(Interrupt { signal, from: From::Process }) = signals::take_interrupt() {
            // SAFETY: the child is not reaped yet, so the id is its own; it may have ended in this
            // moment, which is no error.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// As a shell tells it: 128 and the signal for a command that was killed.
fn code_of(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or(0);
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(u8::MAX)
}

/// Drains, unmounts and reports. The command's exit code is passed on if everything is flushed.
fn finish(client: &Client, tier: &Path, code: u8, took: Duration) -> Result<u8> {
    let before = client.get("/v1/stats").unwrap_or_default();
    let job = umount::leave(client, false, None)?;
    report(&before["counters"], &job, took);
    let exit_code = job.exit_code.unwrap_or(0);
    if exit_code == 0 {
        return Ok(code);
    }
    if let Some(error) = &job.error {
        eprintln!("forebay: {error}");
    }
    if !umount::is_gone(&job) {
        // Whoever runs a job does not come back to unmount; the tier keeps what is dirty.
        umount::leave(client, true, None)?;
    }
    let tier = tier.display();
    eprintln!(
        "forebay: the command ended with {code}; go on with `forebay recover {tier}`, or run or \
         mount with this tier again"
    );
    Ok(4)
}

fn report(before: &Value, job: &Job, took: Duration) {
    let count = |name: &str| before[name].as_u64().unwrap_or(0);
    let late = job.report.clone().unwrap_or_default();
    tell_failures(&late.failures);
    eprintln!(
        "forebay: ran {}; flushed {} in {}, of it {} in {} after the command ended; waited {}",
        human_secs(took.as_secs_f64()),
        human_size(count("flushed_bytes") + late.bytes),
        counted(count("flushed_files") + late.files, "file"),
        human_size(late.bytes),
        counted(late.files, "file"),
        human_secs(job.elapsed_secs)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_one_a_shell_would_tell() {
        let status = |script: &str| Command::new("sh").args(["-c", script]).status().unwrap();
        assert_eq!(code_of(status("exit 7")), 7);
        assert_eq!(code_of(status("kill -TERM $$")), 143);
    }
}
