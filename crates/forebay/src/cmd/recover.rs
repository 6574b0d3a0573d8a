//! `forebay recover`: flushes the dirty bytes of a tier without serving a mount.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_backing::{Access, BackingStore, DirStore, Error, Kind, Result};
use forebay_base::lock::sleep;
use forebay_engine::{
    Engine, KeepDirty, Progress, RecoveryReport, Report, Salvaged, Tier, TierOwner,
};
use serde_json::json;

use super::trial::TrialArgs;
use super::watch::tell_failures;
use crate::config::{ConfigFlags, Settings, keys};
use crate::daemon::{self, Root, Stack};
use crate::daemons::{Wish, advised};
use crate::mounts::Mounts;
use crate::rights;
use crate::signals;
use crate::ui::progress::{Line, Sample};
use crate::ui::{note, say, say_json};
use crate::units::{counted, human_size};
use crate::wire::JobReport;

const EXAMPLES: &str = "\
Examples:
  forebay recover /nvme/forebay
  forebay recover /nvme/forebay --backing /new/place/of/project
  forebay recover /nvme/forebay --to /tmp/rescued
  forebay recover --json /nvme/forebay

For a machine that died, or whose flash was moved to another: every dirty byte goes to the backing
store, without a mount. With --to the dirty files go to another directory instead, and stay dirty
in the tier: it and the backing store are only read. That works without the backing store, too, with a
damaged index, and without the superblock: what only the backing store has is then missing, and said to
be. The tier must not be mounted. Of a store that several nodes share, a tier is recovered with --to alone:
otherwise it is mounted with --registry.";

/// Flush all dirty bytes of a tier that is not mounted.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory of the tier.
    tier: PathBuf,

    /// Write the dirty files here instead of to the backing store.
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,

    /// Where the backing store is now, if its path has changed.
    #[arg(long, value_name = "PATH")]
    backing: Option<PathBuf>,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    trial: TrialArgs,

    #[command(flatten)]
    config: ConfigFlags,
}

/// Settings that a flush without a mount depends on.
const SETTINGS: [&str; 6] =
    ["config", "tier-size", "flush-depth", "rate-max", "ops-max", "backing-timeout"];

/// Hides the settings that say how a mount serves. They are still accepted, as a configuration file
/// may have them.
pub fn without_what_mounts_alone_need(command: clap::Command) -> clap::Command {
    command.mut_args(|arg| {
        let setting = arg.get_id() == "config" || keys::find(arg.get_id().as_str()).is_ok();
        let matters = SETTINGS.iter().any(|name| arg.get_id() == name);
        if setting && !matters { arg.hide(true) } else { arg }
    })
}

struct Recovered {
    found: RecoveryReport,
    report: Report,
    left_files: u64,
    left_bytes: u64,
}

impl Recovered {
    /// The result for a tier that was only read: its dirty bytes are still dirty.
    fn salvaged(salvaged: Salvaged, tier: &Path) -> Result<Recovered> {
        let left = forebay_engine::check(tier)?;
        Ok(Recovered {
            found: salvaged.found,
            report: salvaged.report,
            left_files: left.dirty_files,
            left_bytes: left.dirty_bytes,
        })
    }
}

pub fn run(args: &Args) -> Result<u8> {
    let recovered = recover(args)?;
    let exit_code = match (recovered.report.cancelled, args.to.is_some()) {
        (true, _) => 130,
        _ if !recovered.report.failures.is_empty() => 4,
        (false, false) if recovered.left_bytes + recovered.left_files > 0 => 4,
        _ => u8::from(!recovered.found.problems.is_empty()),
    };
    match args.json {
        true => say_json(&json!({
            "recovery": recovered.found,
            "report": JobReport::from(&recovered.report),
            "left_dirty_files": recovered.left_files,
            "left_dirty_bytes": recovered.left_bytes,
        })),
        false => tell(args, &recovered),
    }
    Ok(exit_code)
}

fn recover(args: &Args) -> Result<Recovered> {
    daemon::lift_file_size_limit();
    let settings = args.config.load()?;
    rights::act_as_owner_of(&args.tier)?;
    let backing = match &args.backing {
        Some(named) => Ok(named.clone()),
        None => Tier::owner(&args.tier).map(|owner| owner.path),
    };
    match &args.to {
        Some(to) => {
            let spared = [Some(&args.tier), backing.as_ref().ok()];
            rescue(args, &open_target(to, spared.into_iter().flatten())?, backing)
        }
        None => bring_home(args, settings, &backing?),
    }
}

fn bring_home(args: &Args, settings: Settings, backing: &Path) -> Result<Recovered> {
    let Stack { store, dir, .. } = open_backing(backing, args, Access::ReadWrite)?;
    daemon::refuse_recovery(Root { dir: dir.as_fd(), path: backing })?;
    let tier = Tier::open(&args.tier, &identified(&*store, backing)?)
        .map_err(|error| advised(&args.tier, error, Wish::Recover))?;
    let held = daemon::held_in(&tier);
    let (engine, _holds) =
        Engine::start_holding(tier, store, settings.engine, settings.tunables, &held)?;
    let progress = Arc::new(Progress::default());
    let mut report = watched(&progress, || engine.drain.flush(&[], &progress));
    // The shutdown does not try failed files again: the report would list them twice.
    let ended = engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
    report.failures.extend(ended.failures);
    let left = engine.ops.status();
    Ok(Recovered {
        found: engine.recovery().clone(),
        report,
        left_files: left.dirty_files,
        left_bytes: left.dirty_bytes,
    })
}

/// Saves the tier's dirty files to `target`; their remaining bytes are read from the backing store, if it
/// can be opened. Tier and store stay unchanged: no engine runs.
fn rescue(args: &Args, target: &DirStore, backing: Result<PathBuf>) -> Result<Recovered> {
    let ours = |backing: PathBuf| {
        let store = open_backing(&backing, args, Access::Read)?.store;
        Tier::belongs(&args.tier, &identified(&*store, &backing)?)?;
        Ok(store)
    };
    let store = backing
        .and_then(ours)
        .inspect_err(|error| note!("{error}; saving what the tier alone has"))
        .ok();
    let progress = Arc::new(Progress::default());
    let salvaged = watched(&progress, || {
        forebay_engine::salvage(&args.tier, store.as_deref(), target, &progress)
    });
    let salvaged = salvaged.map_err(|error| advised(&args.tier, error, Wish::Recover))?;
    Recovered::salvaged(salvaged, &args.tier)
}

fn identified(store: &dyn BackingStore, backing: &Path) -> Result<TierOwner> {
    let path = backing.canonicalize().unwrap_or_else(|_| backing.into());
    Ok(TierOwner { path, identity: store.identity()? })
}

fn open_backing(path: &Path, args: &Args, access: Access) -> Result<Stack> {
    // A path inside a forebay mount, live or dead, is not the backing store itself.
    if let Ok(place) = Mounts::read()?.find(path) {
        let message = format!(
            "the backing store {} is covered by the forebay mount {}: `forebay umount` that first",
            path.display(),
            place.mountpoint.display()
        );
        return Err(Error::new(Kind::Usage, message));
    }
    daemon::open_store(path, &args.tier, access, &args.trial.trial()?).map_err(|error| {
        let hint = "the tier's backing store; if it moved, name it with --backing, or save \
                    the dirty files elsewhere with --to";
        Error::new(Kind::Usage, hint).with_source(error)
    })
}

/// Opens the target directory, which is made if it does not exist, and must be apart from `spared`.
fn open_target<'a>(dir: &Path, mut spared: impl Iterator<Item = &'a PathBuf>) -> Result<DirStore> {
    let usage = |why: &str| Error::new(Kind::Usage, format!("--to {}: {why}", dir.display()));
    let typed = std::path::absolute(dir).map_err(|e| usage(&e.to_string()))?;
    // The part of the path that exists, without links, tells where the directory will be made.
    let above = typed.ancestors().find_map(|above| above.canonicalize().ok());
    let within = |inner: &Path, outer: &Path| inner.starts_with(outer);
    let overlaps = |spared: &PathBuf| {
        let spared = spared.canonicalize().ok();
        let pair = above.as_deref().zip(spared.as_deref());
        pair.is_some_and(|(to, spared)| {
            within(to, spared) || (typed.exists() && within(spared, to))
        })
    };
    if spared.any(overlaps) {
        return Err(usage("choose a directory apart from the tier and the backing store"));
    }
    std::fs::create_dir_all(dir).map_err(|e| usage(&e.to_string()))?;
    DirStore::open(dir)
}

/// Runs `work` while showing its progress; an interrupt cancels it.
fn watched<T: Send>(progress: &Arc<Progress>, work: impl FnOnce() -> T + Send) -> T {
    signals::catch_interrupts();
    let mut line = Line::new("recover");
    thread::scope(|scope| {
        let working = scope.spawn(work);
        while !working.is_finished() {
            line.update(Sample::from(progress.as_ref()));
            if signals::take_interrupt().is_some() {
                progress.cancel();
            }
            sleep(Duration::from_millis(20));
        }
        line.clear();
        working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn tell(args: &Args, recovered: &Recovered) {
    let Recovered { found, report, .. } = recovered;
    if found.dropped_files > 0 {
        note!(
            "{}: {} in {}, never synced, are gone",
            found.why_dropped(),
            human_size(found.dropped_bytes),
            counted(found.dropped_files, "file")
        );
    }
    found.problems.iter().for_each(|problem| note!("damaged: {problem}"));
    tell_failures(&JobReport::from(report).failures, None);
    let verb = if args.to.is_some() { "saved" } else { "flushed" };
    say(format!(
        "{verb} {} in {}; {} in {} dirty in the tier",
        human_size(report.bytes),
        counted(report.files, "file"),
        human_size(recovered.left_bytes),
        counted(recovered.left_files, "file")
    ));
    if report.cancelled {
        note!("interrupted; run it again to go on, nothing is lost");
    }
}
