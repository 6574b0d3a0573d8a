//! `forebay mount`.

use std::path::{Path, PathBuf};

use forebay_backing::{Error, Result};

use super::trial::TrialArgs;
use crate::config::{ConfigFlags, Settings};
use crate::daemon::{self, Places, Plan, Ready, Side};
use crate::ui::say;

const EXAMPLES: &str = "\
Examples:
  forebay mount /slow/project /mnt/fast --tier /nvme/forebay
  forebay mount /slow/project /mnt/fast --tier /nvme/forebay --tier-size 200GiB --max-age 10s
  forebay mount /archive /mnt/archive --tier /nvme/archive --read-only
  forebay mount /slow/project /mnt/fast --tier /nvme/forebay --foreground --log-format json
  forebay mount /dev/vdb /mnt/fast --tier /nvme/vdb
  forebay mount /slow/disk.img /mnt/fast --tier /nvme/disk

The command returns when the mount serves. The tier is created if it does not exist, belongs to
one backing store from then on, and keeps its contents from mount to mount. The log is
run/forebay.log in the tier. SIGTERM drains and unmounts; a second one keeps what is dirty in the
tier and ends.

A block device or a regular file as the backing store shows as one file of that size, for
`losetup --direct-io=on --find --show /mnt/fast/vdb` or an NBD server; nobody else may write to it
meanwhile.";

/// Mount a backing store with a fast tier in front of it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The slow directory, or one file or block device.
    backing: PathBuf,

    /// An empty directory.
    mountpoint: PathBuf,

    /// The directory of the fast tier, on fast storage.
    #[arg(long, value_name = "DIR")]
    tier: PathBuf,

    /// Stay in the foreground and log to standard error.
    #[arg(long)]
    foreground: bool,

    #[command(flatten)]
    pub config: ConfigFlags,

    #[command(flatten)]
    trial: TrialArgs,
}

pub fn run(args: Args) -> Result<u8> {
    let plan = plan(&args.config, &args.backing, &args.mountpoint, &args.tier, &args.trial)?;
    if args.foreground {
        return daemon::run(plan, Ready::nobody());
    }
    let Places { backing, mountpoint, tier } = plan.places.clone();
    match daemon::fork()? {
        Side::Daemon(ready) => Ok(daemon::run(plan, ready).unwrap_or_else(|e| e.exit_code())),
        Side::Parent(child) => {
            for note in child.wait_ready()? {
                eprintln!("forebay: {note}");
            }
            let (at, of) = (mountpoint.display(), backing.display());
            say(format!("{at} serves {of} through the tier {}", tier.display()));
            Ok(0)
        }
    }
}

pub fn plan(
    config: &ConfigFlags,
    backing: &Path,
    mountpoint: &Path,
    tier: &Path,
    trial: &TrialArgs,
) -> Result<Plan> {
    let mut settings: Settings = config.load()?;
    // The daemon changes its directory.
    if let Some(file) = &mut settings.log.file {
        *file = std::path::absolute(&*file).map_err(|e| Error::io(e, "--log-file"))?;
    }
    let places = Places::check(backing, mountpoint, tier)?;
    if !settings.engine.read_only {
        places.require_writable()?;
    }
    Ok(Plan { places, settings, trial: trial.trial()? })
}
