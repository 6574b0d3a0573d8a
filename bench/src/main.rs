//! Measures the `forebay` binary, driven through its command line alone.
//!
//! Contestants take turns in one run, at least five rounds; the compared values are ratios formed
//! within a round. The load generator is forebay's own (`load`), and the two empty FUSE daemons that a
//! mount is compared with are this binary itself (`emptyfs`).

mod cases;
mod daily;
mod emptyfs;
mod environment;
mod flat;
mod ground;
mod guard;
mod load;
mod mounts;
mod nodes;
mod parts;
mod report;
mod run;
mod space;
mod stage;
mod stat;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use cases::{CASES, Case, Needs};
use guard::Scratch;
use report::Report;
use run::{Run, Subject};

/// Measure forebay against native directories, empty FUSE daemons and its peers.
#[derive(Parser)]
#[command(name = "forebay-perf", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Apart>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Apart {
    /// Measure whether the cache stays flat under load: fio, MariaDB, PostgreSQL, all presets.
    Flat(flat::Options),
    /// Measure what people do all day: databases, logs, archives, checkouts; beside a slow store, too.
    Daily(parts::Options),
    /// Measure private spaces beside a directory of the tier that they lie in.
    Space(parts::Options),
    /// Measure transfers beside cp, rsync and dd.
    Stage(parts::Options),
    /// Measure several nodes with one store, each a network namespace of this host.
    Nodes(parts::Options),
    /// Serve a directory and do nothing else.
    #[command(hide = true)]
    Emptyfs {
        #[arg(long)]
        mode: emptyfs::Mode,
        /// What each request waits for, in microseconds.
        #[arg(long, default_value_t = 0)]
        delay: u64,
        source: PathBuf,
        mountpoint: PathBuf,
    },
}

#[derive(Args)]
struct Options {
    /// Run only the cases whose names begin so.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Time bound of every case in seconds [default: its own].
    #[arg(long, value_name = "SECONDS")]
    bound: Option<u64>,
    /// Also run the peers: rclone, JuiceFS.
    #[arg(long)]
    peers: bool,
    /// Print the cases and stop.
    #[arg(long)]
    list: bool,
    /// Measure something else in its place, to check the harness.
    #[arg(long, default_value = "forebay")]
    subject: Subject,
    #[command(flatten)]
    common: parts::Common,
}

/// Where to measure, and what.
#[derive(Args)]
struct Places {
    /// A directory on the disk to measure; a scratch directory is made in it.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// A directory on a tmpfs, for another one.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    tmpfs: PathBuf,
    /// The binary to measure [default: the one beside this one].
    #[arg(long, value_name = "FILE")]
    forebay: Option<PathBuf>,
}

impl Places {
    /// Makes scratch directories on the disk and on the tmpfs.
    fn scratch(&self) -> Result<[Scratch; 2]> {
        Ok([Scratch::new(&self.dir)?, Scratch::new(&self.tmpfs)?])
    }

    /// The named binary, else the one built beside this one, else none.
    fn binary(&self) -> Result<Option<PathBuf>> {
        if let Some(path) = &self.forebay {
            let path = path.canonicalize();
            return path.context("--forebay: there is no such file").map(Some);
        }
        let beside = std::env::current_exe()?.with_file_name("forebay");
        Ok(beside.exists().then_some(beside))
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Apart::Flat(options)) => flat::measure(&options),
        Some(Apart::Daily(options)) => daily::measure(&options),
        Some(Apart::Space(options)) => space::measure(&options),
        Some(Apart::Stage(options)) => stage::measure(&options),
        Some(Apart::Nodes(options)) => nodes::measure(&options),
        Some(Apart::Emptyfs { mode, delay, source, mountpoint }) => {
            let delay = Duration::from_micros(delay);
            emptyfs::serve(mode, delay, &source, &mountpoint).map(|()| true)
        }
        None if cli.options.list => {
            CASES.iter().for_each(|case| println!("{:<26} {}", case.name, case.about));
            Ok(true)
        }
        None => measure(&cli.options),
    };
    match result {
        _ if guard::interrupted() => ExitCode::from(130),
        Ok(true) => ExitCode::SUCCESS,
        // Some target was missed or some case failed.
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("forebay-perf: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn measure(options: &Options) -> Result<bool> {
    let chosen = chosen(options)?;
    let binary = options.common.places.binary()?;
    options.common.report(options.subject, binary, |run, report| {
        for case in chosen {
            if guard::interrupted() {
                break;
            }
            let bound = options.bound.map_or(case.bound, Duration::from_secs);
            perform(run, case, bound, report)?;
        }
        Ok(())
    })
}

fn perform(run: &Run, case: &Case, bound: Duration, report: &mut Report) -> Result<()> {
    report.case(case.name, case.about);
    let wants_forebay = case.needs == Needs::Forebay || run.subject == Subject::Forebay;
    if wants_forebay && !run.has_forebay() && case.needs != Needs::Asking {
        return report.skip(case.name, "no forebay binary (--forebay FILE)");
    }
    match guard::bounded(bound, || (case.work)(run, report)) {
        Ok(()) => Ok(()),
        Err(error) => report.fail(case.name, &format!("{error:#}")),
    }
}

fn chosen(options: &Options) -> Result<Vec<&'static Case>> {
    let named = |case: &Case| options.only.iter().any(|name| case.name.starts_with(name.as_str()));
    for name in &options.only {
        let known = CASES.iter().any(|case| case.name.starts_with(name.as_str()));
        anyhow::ensure!(known, "--only {name}: no case begins so; see --list");
    }
    let wanted = |case: &&Case| match case.needs {
        _ if !options.only.is_empty() => named(case) || (options.peers && case.name == "peers"),
        Needs::Asking => options.peers,
        Needs::AnySubject | Needs::Forebay => true,
    };
    Ok(CASES.iter().filter(wanted).collect())
}
