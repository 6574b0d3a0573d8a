//! `forebay-perf flat`: whether the cache stays flat under load, on a real mount with a store that
//! behaves like a disk. Writes a time series of every load for `forebay bench report`, the pictures
//! drawn of them, and a fragment for docs/PERFORMANCE.md.

mod database;
mod fio;
mod mariadb;
mod postgres;
mod promises;
pub mod rig;
mod rising;
mod series;
mod steady;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::environment::{Choices, Environment};
use crate::guard;
use crate::report::Report;
use crate::run::{Run, Subject};
use tables::Sheet;

#[derive(Args)]
pub struct Options {
    /// Shorter courses and no databases: about four minutes.
    #[arg(long)]
    quick: bool,
    /// Run only these.
    #[arg(long, num_args = 1.., value_name = "PART")]
    only: Vec<Part>,
    /// Where time series, pictures and the fragment go.
    #[arg(long, value_name = "DIR", default_value = "flat-results")]
    out: PathBuf,
    #[command(flatten)]
    places: crate::Places,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Every preset at 70 % of what the store absorbs.
    Steady,
    /// A load that rises through the hard mark.
    Rising,
    /// The rate cap over ten seconds.
    Cap,
    /// A hot set overwritten ten times.
    Absorption,
    /// What `flush --wait` says is left.
    Eta,
    /// MariaDB under sysbench, with three presets in turns.
    Mariadb,
    /// The same with all presets and a tier that does not hold the data.
    MariadbTight,
    /// PostgreSQL under pgbench, with three presets in turns.
    Postgresql,
    /// MariaDB on complete files, which are written past the daemon.
    MariadbPassed,
    /// PostgreSQL on complete files, which are written past the daemon.
    PostgresqlPassed,
}

impl Part {
    fn is_of_a_database(self) -> bool {
        !matches!(self, Part::Steady | Part::Rising | Part::Cap | Part::Absorption | Part::Eta)
    }
}

type Work = fn(&Run, &Path, &mut Report, &mut Sheet) -> Result<()>;

/// The parts with their time bounds in seconds.
const PARTS: [(Part, &str, u64, Work); 10] = [
    (Part::Steady, "every preset at 70 % of what the store absorbs", 900, steady::run),
    (Part::Rising, "a load that rises through the hard mark", 240, rising::run),
    (Part::Cap, "the rate cap over every ten seconds", 120, promises::cap),
    (Part::Absorption, "a hot set overwritten ten times", 120, promises::absorption),
    (Part::Eta, "what flush --wait says is left", 120, promises::eta),
    (Part::Mariadb, "MariaDB under sysbench", 2400, database::mariadb),
    (Part::MariadbTight, "the same on a small tier", 3600, database::mariadb_tight),
    (Part::Postgresql, "PostgreSQL under pgbench", 2400, database::postgresql),
    (Part::MariadbPassed, "MariaDB past the daemon", 1800, database::mariadb_passed),
    (Part::PostgresqlPassed, "PostgreSQL past the daemon", 1800, database::postgresql_passed),
];

/// Returns whether every target was reached.
pub fn measure(options: &Options) -> Result<bool> {
    guard::install();
    fs::create_dir_all(&options.out).with_context(|| format!("--out {}", options.out.display()))?;
    let out = options.out.canonicalize()?;
    let [disk, tmpfs] = options.places.scratch()?;
    let binary = options.places.binary()?.context("no forebay binary (--forebay FILE)")?;
    let environment = Environment::observe(&Choices {
        disk: disk.path(),
        tmpfs: tmpfs.path(),
        forebay: Some(&binary),
        rounds: 1,
        quick: options.quick,
    });
    let conditions = environment.markdown();
    let mut report = Report::new(environment, Some(&out.join("findings.ndjson")))?;
    let run = Run::new((1, options.quick), Subject::Forebay, Some(binary.clone()), [disk, tmpfs]);
    let mut sheet = Sheet::default();
    for (part, about, bound, work) in PARTS.iter().filter(|part| options.wants(part.0)) {
        if guard::interrupted() {
            break;
        }
        let name = part.to_possible_value().expect("none is hidden").get_name().to_owned();
        report.case(&name, about);
        let bound = Duration::from_secs(*bound);
        if let Err(error) = guard::bounded(bound, || work(&run, &out, &mut report, &mut sheet)) {
            report.fail(&name, &format!("{error:#}"))?;
        }
    }
    drop(run);
    sheet.finish(&out, &binary, &conditions)?;
    Ok(report.conclude())
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        match self.only.is_empty() {
            true => !(self.quick && part.is_of_a_database()),
            false => self.only.contains(&part),
        }
    }
}
