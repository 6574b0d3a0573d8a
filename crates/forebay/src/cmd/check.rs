//! `forebay check`.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use forebay_backing::Result;
use forebay_base::lock::sleep;
use forebay_engine::{CheckReport, Progress};
use serde_json::json;

use crate::daemons::{Wish, advised};
use crate::rights;
use crate::ui::progress::{Line, Sample};
use crate::ui::{say, say_json};
use crate::units::{counted, human_size};
use crate::wire::WirePath;

const EXAMPLES: &str = "\
Examples:
  forebay check /nvme/forebay
  forebay check --json /nvme/forebay
  forebay check --read-data /nvme/forebay

--read-data reads every byte that the tier holds, at nice 10, and compares what is clean with digests of
what the backing store held. That is known of files of 1 MiB and more (`digests-from`) while the machine
has not lost power since. A clean copy that is damaged is dropped by `forebay evict PATH` once the tier is
mounted, and fetched again.

Nothing is changed. Exit code 1 if anything is wrong; the last line says what saves what is sound. A
conflict, also one that is left of lost bytes, is a problem until `forebay resolve` has settled it. The
tier must not be mounted.";

/// Dirty files listed one by one; the rest are counted.
const DIRTY_SHOWN: usize = 20;

/// Verify a tier that is not mounted, and list what is dirty in it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory of the tier.
    tier: PathBuf,

    /// Also read all data in it, and compare clean bytes with what the backing store held.
    #[arg(long)]
    read_data: bool,

    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

/// The pause between two updates of the progress line.
const LOOK: Duration = Duration::from_millis(100);

pub fn run(args: &Args) -> Result<u8> {
    rights::act_as_owner_of(&args.tier)?;
    let report = match args.read_data {
        true => read_data(&args.tier),
        false => forebay_engine::check(&args.tier),
    };
    let report = report.map_err(|error| advised(&args.tier, error, Wish::Check))?;
    let exit_code = u8::from(!report.ok || !report.problems.is_empty());
    if args.json {
        let dirty: Vec<WirePath> = report.dirty.iter().map(|path| path.as_path().into()).collect();
        say_json(&json!({
            "ok": exit_code == 0,
            "files": report.files,
            "clean_bytes": report.clean_bytes,
            "dirty_files": report.dirty_files,
            "dirty_bytes": report.dirty_bytes,
            "dirty": dirty,
            "dropped_files": report.dropped_files,
            "dropped_bytes": report.dropped_bytes,
            "lost_files": report.lost_files,
            "lost_bytes": report.lost_bytes,
            "conflicted_files": report.conflicted_files,
            "data": report.scrubbed,
            "problems": report.problems,
        }));
        return Ok(exit_code);
    }
    say(format!(
        "{}: {}, {} clean, {} dirty in {}",
        args.tier.display(),
        counted(report.files, "file"),
        human_size(report.clean_bytes),
        human_size(report.dirty_bytes),
        counted(report.dirty_files, "file")
    ));
    if let Some(why) = report.why_dropped {
        say(format!(
            "{why}: {} in {}, never synced, are gone; that is no damage",
            human_size(report.dropped_bytes),
            counted(report.dropped_files, "file")
        ));
    }
    if let Some(data) = &report.scrubbed {
        say(format!(
            "{} read: {} clean bytes are what the store held, {} are not, {} (dirty, or of unknown content) \
             are not comparable, {} cannot be read",
            human_size(data.read_bytes),
            human_size(data.verified_bytes),
            human_size(data.damaged_bytes),
            human_size(data.uncompared_bytes),
            human_size(data.unreadable_bytes)
        ));
    }
    let shown = report.dirty.iter().take(DIRTY_SHOWN);
    shown.for_each(|path| say(format!("dirty: {}", path.display())));
    if let Some(more) = report.dirty.len().checked_sub(DIRTY_SHOWN).filter(|more| *more > 0) {
        say(format!("dirty: and {more} more; --json lists all"));
    }
    report.problems.iter().for_each(|problem| say(format!("problem: {problem}")));
    say(verdict(&report, &args.tier));
    Ok(exit_code)
}

/// The result in a few words, and what to do.
fn verdict(report: &CheckReport, tier: &Path) -> String {
    let damaged = report.scrubbed.is_some_and(|data| data.damaged_bytes > 0);
    let verdict = match report.problems.len() as u64 {
        0 => "sound",
        _ if report.is_refused => {
            return format!(
                "damaged: `forebay recover {} --to DIR` saves what it holds and lists what is not sound",
                tier.display()
            );
        }
        _ if damaged => {
            "damaged: mount it and `forebay evict` these files, clean bytes are fetched again; \
             of the rest `forebay recover` saves what is sound"
        }
        problems if problems == report.conflicted_files => {
            "in conflict: mount it, and settle each with `forebay resolve`"
        }
        _ => "damaged: `forebay recover` saves what is sound and lists what is not",
    };
    verdict.into()
}

/// Reads the tier in a thread of its own, and shows the progress.
fn read_data(tier: &Path) -> Result<CheckReport> {
    // Programs on the same device go first. If `nice` fails, the priority stays as it was.
    let _ = rustix::process::nice(10);
    let progress = Progress::default();
    let mut line = Line::new("check");
    let report = thread::scope(|scope| {
        let reading = scope.spawn(|| forebay_engine::check_data(tier, &progress));
        while !reading.is_finished() {
            sleep(LOOK);
            line.update(Sample::from(&progress));
        }
        reading.join().expect("no panic inside")
    });
    line.clear();
    report
}
