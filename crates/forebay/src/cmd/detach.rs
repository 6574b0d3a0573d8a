//! `forebay detach`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_backing::Result;
use serde_json::json;

use super::umount::GRACE;
use super::watch::{tell_failures, warn, watch};
use crate::http::Client;
use crate::mounts::{Mounts, Place};
use crate::ui::{note, say, say_json};
use crate::units::{counted, human_secs, human_size, parse_duration};
use crate::wire::{Job, Leave};

const EXAMPLES: &str = "\
Examples:
  forebay detach /mnt/fast
  forebay detach /mnt/fast --timeout 10min
  forebay detach /mnt/fast --keep-dirty
  forebay attach /mnt/fast

Programs go on working; from now on reads and writes go to the backing store, until `forebay attach`.
Every dirty byte is flushed first and every clean one evicted, pinned or not: after exit code 0 there
is no data in the fast tier. It waits for files that are open past the daemon, which the kernel reads
and writes in the tier, until they are closed. If something cannot be flushed, or --timeout passes,
the tier stays attached and the exit code is 4.

With --keep-dirty nothing is flushed: what is dirty stays in the tier until `forebay attach` (or a
`forebay flush`), and is read and written there; all else goes around it.

The state outlasts a restart of the daemon. What stays in the tier's directory is its superblock, its
lock, the index and its log, and run/ with the socket and the daemon's log: as long as the mount
lives the device cannot be taken away. To replace it, `forebay detach` while programs work, then
`forebay umount`, which has nothing to wait for, and mount with another tier.";

/// Take the fast tier out of the way while the mount goes on serving.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A mount point, or any path in the mount.
    mountpoint: PathBuf,

    /// Do not flush: leave what is dirty in the tier until it is attached again.
    #[arg(long)]
    keep_dirty: bool,

    /// Give up after this time and stay attached.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let place = Mounts::read()?.daemon_of(&args.mountpoint)?;
    let client = Client::new(&place.tier);
    let timeout_secs = args.timeout.map(|timeout| timeout.as_secs_f64());
    let ask = Leave { keep_dirty: args.keep_dirty, timeout_secs, lazy: false };
    let answer = client.post("/v1/detach", &json!(ask))?;
    for waiting in answer["waits_for"].as_array().into_iter().flatten().filter(|_| !args.json) {
        say(format!("waits for {}", waiting.as_str().unwrap_or_default()));
    }
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout + GRACE);
    let job = watch(&client, answer["id"].as_u64().unwrap_or(0), "detach", deadline)?;
    match args.json {
        true => say_json(&job),
        false => tell(&job, &place),
    }
    Ok(job.exit_code.unwrap_or(0))
}

fn tell(job: &Job, place: &Place) {
    let report = job.report.clone().unwrap_or_default();
    tell_failures(&report.failures, Some(&place.mountpoint));
    warn(job.warning.as_deref());
    if let Some(error) = &job.error {
        note!("{error}");
        return;
    }
    let tier = place.tier.display();
    let left = match report.left_dirty_files.unwrap_or(0) {
        0 => "there is no data in it".into(),
        files => {
            let bytes = human_size(report.left_dirty_bytes.unwrap_or(0));
            format!("{bytes} stay dirty in {} until it is attached", counted(files, "file"))
        }
    };
    say(format!(
        "flushed {} in {}, detached {tier} in {}; {left}",
        human_size(job.moved_bytes()),
        counted(report.files, "file"),
        human_secs(job.elapsed_secs)
    ));
}
