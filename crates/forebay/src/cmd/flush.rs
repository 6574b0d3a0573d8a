//! `forebay flush`.

use std::io::ErrorKind;
use std::path::PathBuf;

use forebay_backing::Result;
use serde_json::json;

use super::umount;
use super::watch::{self, Scope, tell_failures};
use crate::daemons::Drainer;
use crate::moment;
use crate::ui::{say, say_json};
use crate::units::counted;
use crate::wire::{JobFailure, JobKind, NewJob, WirePath};

const EXAMPLES: &str = "\
Examples:
  forebay flush --wait /mnt/fast
  forebay flush --wait /mnt/fast/results/run-17
  forebay flush --background /mnt/fast
  forebay flush --wait --json
  forebay flush --drain-by 10min /mnt/fast        # evenly, done in ten minutes
  forebay flush --drain-by 06:30 --wait
  forebay flush --wait --last MANIFEST /mnt/fast/ckpt/step-100

With --wait, exit code 0 means that every byte that was dirty in PATH when the command began is on
the backing store and synced there. Without it the flush goes on as a job of the daemon, also if the
daemon is restarted: see `forebay jobs`. A PATH that is not there is told at once, with exit code 1.
Without PATH it is everything in the mount of the current directory, or in the only mount there is.
After a umount(8) PATH, or the directory of the tier, names the daemon that still drains, and --wait
waits for its end.

--last PATTERN: files that match are flushed when all others are on the backing store and synced
there, and not at all if one of the others failed (they are listed as held-back, exit code 1). Until
the job ends the drain leaves them alone, and any other flush of more than these files takes them last.
A PATTERN without a slash is compared with the file's name, one with a slash with its path from the
root of the mount; * and ? stay within a name, ** goes across directories.

--drain-by T: a time from now (10min, 2h) or of the day (18:30, 06:30:00; the next one). The drain
paces itself, for the whole mount, to be done just before; what is left then is flushed at once.";

/// Copy dirty bytes to the backing store now.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files or directories in a mount.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Return when the bytes are on the backing store and synced there.
    #[arg(long)]
    wait: bool,

    /// Return at once and leave the job to the daemon (the default).
    #[arg(long, conflicts_with = "wait")]
    background: bool,

    /// Be done by this time, at an even rate.
    #[arg(long, value_name = "T", value_parser = moment::parse)]
    drain_by: Option<f64>,

    /// Flush files that match only after all others.
    #[arg(long, value_name = "PATTERN")]
    last: Option<String>,

    /// Print the job as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let scope = Scope::of(&args.paths)?;
    if let Some(drainer) = scope.drainer()? {
        return drained(&drainer, args);
    }
    let asked = NewJob {
        last: args.last.clone(),
        drain_by_unix_secs: args.drain_by,
        ..scope.job(JobKind::Flush)
    };
    let client = scope.client();
    if args.wait {
        return watch::run_new(&scope.place, &asked, args.json.into());
    }
    // The command does not see how the job ends: a missing name is reported now.
    let missing = missing(args, &scope);
    let exit_code = u8::from(!missing.is_empty());
    if !args.json {
        tell_failures(&missing, None);
    }
    if !missing.is_empty() && missing.len() == args.paths.len() {
        if args.json {
            say_json(&json!({ "id": null, "failures": missing }));
        }
        return Ok(exit_code);
    }
    let id = watch::start_new(&client, &asked)?;
    if args.json {
        say_json(&json!({ "id": id, "failures": missing }));
        return Ok(exit_code);
    }
    let by = args.drain_by.map_or_else(String::new, |by| format!(" by {}", moment::show(by)));
    let what = what(args, &scope);
    say(format!("job {id}: flushing {what}{by}; `forebay jobs wait {id}` waits for it"));
    Ok(exit_code)
}

/// Handles a daemon whose mount is gone: it flushes everything as it is.
fn drained(drainer: &Drainer, args: &Args) -> Result<u8> {
    match (args.wait, args.json) {
        (true, json) => return umount::wait_for(drainer, json),
        (false, true) => say_json(&json!({ "id": null, "failures": [] })),
        (false, false) => say(drainer.told()),
    }
    Ok(0)
}

/// Paths that do not exist in the mount.
fn missing(args: &Args, scope: &Scope) -> Vec<JobFailure> {
    use ErrorKind::{NotADirectory, NotFound};
    let is_there = |typed: &PathBuf| match typed.symlink_metadata() {
        Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
        Ok(_) => true,
    };
    let named = args.paths.iter().zip(&scope.paths).filter(|(typed, _)| !is_there(typed));
    let failure = |(typed, path): (&PathBuf, &WirePath)| JobFailure {
        // JSON has the path in the mount, as for all failed files of jobs.
        path: if args.json { path.clone() } else { typed.as_path().into() },
        state: "missing".into(),
        error: "there is no such file".into(),
    };
    named.map(failure).collect()
}

fn what(args: &Args, scope: &Scope) -> String {
    match &args.paths[..] {
        [] => scope.place.mountpoint.display().to_string(),
        [path] => path.display().to_string(),
        [first, rest @ ..] => {
            format!("{} and {} more", first.display(), counted(rest.len() as u64, "path"))
        }
    }
}
