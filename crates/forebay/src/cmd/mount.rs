//! `forebay mount`.

use std::path::{Path, PathBuf};

use forebay_backing::{Error, Kind, Result};

use super::trial::TrialArgs;
use crate::config::{ConfigFile, ConfigFlags, Section, Settings};
use crate::daemon::{self, Places, Plan, Ready, Side};
use crate::mounts::Mounts;
use crate::ui::{note, note_wrong, say};

const EXAMPLES: &str = "\
Examples:
  forebay mount /slow/project /mnt/fast --tier /nvme/forebay
  forebay mount /slow/project /mnt/fast --tier /nvme/forebay --tier-size 200GiB --max-age 10s
  forebay mount /archive /mnt/archive --tier /nvme/archive --read-only
  forebay mount /slow/project /mnt/fast --tier /nvme/forebay --foreground --log-format json
  forebay mount /dev/vdb /mnt/fast --tier /nvme/vdb
  forebay mount /slow/disk.img /mnt/fast --tier /nvme/disk
  forebay mount /data /data --tier /nvme/data
  forebay mount home
  forebay mount --all

The command returns when the mount serves; if it is ended before, nothing is mounted. The tier is
created if it does not exist, belongs to one backing store from then on, and keeps its contents from
mount to mount. A mount that fails takes
a tier that it has created away again; what it cannot take away it names. The log is run/forebay.log
in the tier. SIGTERM drains and unmounts; a second one keeps what is dirty in the
tier and ends.

With the slow directory as the mount point, too, the mount covers it: programs go on under the paths
they know, and after `forebay umount` find the directory itself there again. Meanwhile nobody on this
machine reaches it past the mount, but for what was open or mounted from it before.

A mount with a name is described in the configuration file, by [mount.NAME] with backing, tier and at
and any settings; its settings win over those of every mount, flags win over both. --all leaves alone
what is mounted already; its exit code is the worst of all. /etc/fstab takes forebay mounts, too: see
docs/OPERATING.md.

A block device or a regular file as the backing store shows as one file of that size, for
`losetup --direct-io=on --find --show /mnt/fast/vdb` or an NBD server; nobody else may write to it
meanwhile.";

const USAGE: &str = "\
forebay mount [OPTIONS] <BACKING> <MOUNTPOINT> --tier <DIR>
       forebay mount [OPTIONS] <NAME>
       forebay mount [OPTIONS] --all";

/// Mount a backing store with a fast tier in front of it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub struct Args {
    /// The slow directory, or one file or block device. Alone, the name of a mount that the
    /// configuration file describes.
    #[arg(required_unless_present = "all")]
    backing: Option<PathBuf>,

    /// An empty directory, or the slow directory itself, to be covered.
    #[arg(requires = "tier")]
    mountpoint: Option<PathBuf>,

    /// The directory of the fast tier, on fast storage.
    #[arg(long, value_name = "DIR", requires = "mountpoint")]
    tier: Option<PathBuf>,

    /// The mount point that fstab has for a named mount: it must be that of the configuration file.
    #[arg(long, value_name = "DIR", hide = true, conflicts_with_all = ["mountpoint", "all"])]
    at: Option<PathBuf>,

    /// Mount everything that the configuration file describes and that is not mounted.
    #[arg(long, conflicts_with_all = ["backing", "foreground"])]
    all: bool,

    /// Refuse a backing store that is not this one: between the caller's look and the mount, its name may
    /// have come to lead elsewhere.
    #[arg(long, value_name = "ID", hide = true, requires = "mountpoint")]
    backing_identity: Option<String>,

    /// Stay in the foreground and log to standard error.
    #[arg(long)]
    foreground: bool,

    #[command(flatten)]
    pub config: ConfigFlags,

    #[command(flatten)]
    trial: TrialArgs,
}

pub fn run(args: Args) -> Result<u8> {
    if args.all {
        return all(&args);
    }
    match (&args.backing, &args.mountpoint, &args.tier) {
        (Some(backing), Some(mountpoint), Some(tier)) => {
            let mut plan = plan(args.config.load()?, backing, mountpoint, tier, &args.trial)?;
            plan.identity.clone_from(&args.backing_identity);
            serve(plan, &args)
        }
        (Some(name), ..) => {
            let file = args.config.read_file()?;
            let section = file.section(&name.display().to_string()).map_err(|error| {
                let hint = "; for a backing store give a mount point and --tier, too";
                Error::new(Kind::Usage, format!("{error}{hint}"))
            })?;
            match &args.at {
                Some(at) if *at != section.at => Err(Error::new(
                    Kind::Usage,
                    format!(
                        "{} is to be mounted at {}, as the configuration file says, not at {}",
                        section.name,
                        section.at.display(),
                        at.display()
                    ),
                )),
                _ => serve(planned(&args, &file, section)?, &args),
            }
        }
        (None, ..) => unreachable!("clap requires it without --all"),
    }
}

/// Mounts all sections one after the other; the exit code is the worst of theirs.
fn all(args: &Args) -> Result<u8> {
    let file = args.config.read_file()?;
    if file.sections.is_empty() {
        let message = "the configuration file describes no mount: write [mount.NAME] with backing, \
                       tier and at";
        return Err(Error::new(Kind::Usage, message));
    }
    let mut worst = 0;
    for section in &file.sections {
        if is_mounted(section)? {
            say(format!("{}: {} is mounted", section.name, section.at.display()));
            continue;
        }
        let code = match planned(args, &file, section).and_then(|plan| serve(plan, args)) {
            Err(error) if error.kind() == Kind::Interrupted => {
                return Err(error.context(&section.name));
            }
            Err(error) => {
                note!("{}: {error}", section.name);
                error.exit_code()
            }
            Ok(code) => code,
        };
        worst = worst.max(code);
    }
    Ok(worst)
}

/// Whether the tier of a section is mounted at the section's mount point.
fn is_mounted(section: &Section) -> Result<bool> {
    let tier = std::fs::canonicalize(&section.tier).unwrap_or_else(|_| section.tier.clone());
    let place = Mounts::read()?.find(&section.at);
    Ok(place.is_ok_and(|place| place.path.as_os_str().is_empty() && place.tier == tier))
}

fn planned(args: &Args, file: &ConfigFile, section: &Section) -> Result<Plan> {
    let settings = args.config.load_section(file, section)?;
    plan(settings, &section.backing, &section.at, &section.tier, &args.trial)
}

fn serve(plan: Plan, args: &Args) -> Result<u8> {
    if args.foreground {
        return daemon::run(plan, Ready::nobody());
    }
    let Places { backing, mountpoint, tier } = plan.places.clone();
    match daemon::fork()? {
        // The child process must not return to the loop that makes the next mount.
        Side::Daemon(ready) => {
            std::process::exit(daemon::run(plan, ready).unwrap_or_else(|e| e.exit_code()).into())
        }
        Side::Parent(child) => {
            for note in child.wait_ready("nothing is mounted")? {
                note_wrong(&note);
            }
            let (at, of) = (mountpoint.display(), backing.display());
            say(format!("{at} serves {of} through the tier {}", tier.display()));
            Ok(0)
        }
    }
}

pub fn plan(
    mut settings: Settings,
    backing: &Path,
    mountpoint: &Path,
    tier: &Path,
    trial: &TrialArgs,
) -> Result<Plan> {
    // The daemon changes its working directory, so the path becomes absolute.
    if let Some(file) = &mut settings.log.file {
        *file = std::path::absolute(&*file).map_err(|e| Error::io(e, "--log-file"))?;
    }
    let places = Places::check(backing, mountpoint, tier)?;
    Places::require_fuse()?;
    if !settings.engine.read_only {
        places.require_writable()?;
    }
    Ok(Plan { places, settings, trial: trial.trial()?, identity: None })
}
