//! `checkpoint`: how long does an application wait for its checkpoints, and when is the last one in
//! its final place?
//!
//! Bursts of N ranks with compute time between. A rank waits from the moment all are ready to the
//! moment the last one has closed its file.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::rates::{check_tasks, check_transfer};
use super::session::{Cache, Session, Told};
use super::work::{self, Ending, Opening, Sweep, Work, work};
use super::{Prepared, Queue, Workload, prepare};
use crate::args::{Parsed, Spec};
use crate::beneath;
use crate::cache::Policy;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::io::{Api, Direction, How};
use crate::progress::Goal;
use crate::record::{Access, Line, Phase};
use crate::team::Task;
use crate::units::{human_bytes, human_rate};

pub const WORKLOAD: Workload =
    Workload { name: "checkpoint", spec, cache: Policy::Keep, queue: Queue::Deep, plan };

fn spec() -> Spec {
    Spec::new("checkpoint")
        .about(
            "How long does an application wait for its checkpoints? N ranks write bursts with compute \
             time between.\nTells the time the application waited, and the time until all bytes were \
             on the backing store:\nafter the last burst a command is run that waits for that; \
             without one, a mount of\nforebay is asked for a fence, and any other file system is \
             synced.",
        )
        .value(Some('n'), "ranks", "N", "default 4")
        .value(
            Some('l'),
            "layout",
            "LAYOUT",
            "nn (a file per rank, default), segmented, strided (one file)",
        )
        .value(Some('s'), "size", "SIZE", "per rank and burst; default 64m")
        .value(Some('t'), "transfer", "SIZE", "default 1m")
        .value(None, "bursts", "N", "default 3")
        .value(None, "compute", "TIME", "between bursts; default 5s")
        .flag(None, "fsync", "each rank syncs before it goes on computing")
        .value(None, "durable-cmd", "CMD", "run by sh after the last burst; returns when all is safe")
        .examples(
            "  forebay bench checkpoint /mnt/slow -n 8 -s 256m --layout strided\n  \
             forebay bench checkpoint /mnt/forebay --durable-cmd 'forebay flush --wait /mnt/forebay'",
        )
}

/// The files of the ranks, and their parts in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// A file per rank.
    Own,
    /// One file, a part for each rank.
    Segmented,
    /// One file, transfers of the ranks by turns.
    Strided,
}

impl Layout {
    fn parse(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "nn" | "n-n" => Ok(Layout::Own),
            "segmented" | "n-1-segmented" => Ok(Layout::Segmented),
            "strided" | "n-1-strided" => Ok(Layout::Strided),
            _ => Err(Error::usage(format!("--layout {text}: use nn, segmented or strided"))),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Layout::Own => "N-N",
            Layout::Segmented => "N-1 segmented",
            Layout::Strided => "N-1 strided",
        }
    }
}

fn plan(parsed: &Parsed) -> Result<Box<dyn Prepared>> {
    let checkpoint = Checkpoint {
        ranks: parsed.number("ranks", 4)?,
        layout: Layout::parse(parsed.get("layout").unwrap_or("nn"))?,
        size: parsed.size("size", 64 << 20)?,
        transfer: parsed.size("transfer", 1 << 20)?,
        bursts: parsed.number("bursts", 3)?,
        compute: parsed.seconds("compute", 5.0)?,
        ending: if parsed.flag("fsync") { Ending::Sync } else { Ending::Close },
        durable: parsed.get("durable-cmd").map(str::to_owned),
    };
    check_tasks(checkpoint.ranks)
        .map_err(|_| Error::usage(format!("--ranks {}: use 1 to 4096", checkpoint.ranks)))?;
    check_transfer("transfer", checkpoint.transfer, checkpoint.size)?;
    if checkpoint.bursts == 0 {
        return Err(Error::usage("--bursts: use 1 or more"));
    }
    Ok(Box::new(checkpoint))
}

struct Checkpoint {
    ranks: usize,
    layout: Layout,
    /// The bytes of one rank in one burst.
    size: u64,
    transfer: u64,
    bursts: u32,
    compute: f64,
    ending: Ending,
    durable: Option<String>,
}

impl Checkpoint {
    fn sweep(&self, rank: usize) -> Sweep {
        let (rank, ranks) = (rank as u64, self.ranks as u64);
        let write = Direction::Write;
        match self.layout {
            Layout::Own => Sweep::over(write, 0, self.size, self.transfer),
            Layout::Segmented => {
                Sweep::over(write, rank * self.size, (rank + 1) * self.size, self.transfer)
            }
            Layout::Strided => Sweep {
                direction: write,
                at: rank * self.transfer,
                end: self.size * ranks,
                stride: self.transfer * ranks,
                len: self.transfer,
            },
        }
    }

    /// The files of a burst, made in advance if shared: their creation must not race.
    fn files(&self, session: &Session, burst: u32) -> Result<Vec<PathBuf>> {
        if self.layout == Layout::Own {
            let name = |rank| session.file(&format!("burst{burst}.rank{rank}"));
            return Ok((0..self.ranks).map(name).collect());
        }
        let shared = session.file(&format!("burst{burst}"));
        prepare::create(session, &shared)?;
        Ok(vec![shared])
    }

    /// Returns the seconds the application waited.
    fn burst(&self, session: &mut Session, burst: u32) -> Result<f64> {
        let files = self.files(session, burst)?;
        let base = session.base.clone();
        let before = session.before();
        let bytes = self.size * self.ranks as u64;
        let team = session.team(self.ranks, "burst", Goal::Bytes(bytes));
        let outcome = team.run(|task: &Task<'_>, end| {
            let path = files[task.rank % files.len()].clone();
            let how = How { write: true, create: true, direct: base.direct(), ..How::default() };
            let mut own = Work::on(path, how, self.transfer as usize);
            (own.opening, own.ending) = (Opening::Counted, self.ending);
            work(&base, task, end, &own, &mut self.sweep(task.rank)).map(drop)
        });
        let seconds = work::seconds(&outcome);
        let told = Told {
            name: "burst",
            iteration: burst,
            access: Access::Write,
            tasks: self.ranks,
            seconds,
            transfer: self.transfer,
            before,
            cache: Cache::Intended,
            files: &files,
            figures: BTreeMap::from([("waited_seconds".into(), seconds)]),
        };
        session.phase(told, &outcome)?;
        Ok(seconds)
    }

    /// Waits until all bytes are durable; returns how long that took, and which call or command
    /// confirmed it.
    fn make_durable(&self, session: &Session) -> Result<(f64, String)> {
        let began = Instant::now();
        let by = match (&self.durable, session.directory()) {
            (Some(command), directory) => {
                run_command(command, directory)?;
                format!("as `{command}` says")
            }
            (None, Some(directory)) => match beneath::settle(directory) {
                Some(settled) => settled.map(|()| "as a fence of the mount says".to_owned())?,
                None => {
                    sync_all(directory)?;
                    "as a sync of the file system says".to_owned()
                }
            },
            (None, None) => "nothing was written".to_owned(),
        };
        Ok((began.elapsed().as_secs_f64(), by))
    }

    fn conclude(&self, session: &mut Session, waited: &[f64], ended: Ended) -> Result<()> {
        let total: f64 = waited.iter().sum();
        let bytes = self.size * self.ranks as u64 * waited.len() as u64;
        let run = ended.run;
        session.recorder.put(Line::Phase(Phase {
            name: "until durable".into(),
            access: Access::None,
            tasks: self.ranks as u32,
            bytes,
            seconds: run + ended.durable,
            figures: BTreeMap::from([
                ("waited_seconds".into(), total),
                ("computed_seconds".into(), run - total),
                ("waited_of_run_share".into(), total / run.max(1e-9)),
                ("after_last_burst_seconds".into(), ended.durable),
            ]),
            ..Phase::default()
        }))?;
        let by = ended.by;
        session.recorder.finding(format!(
            "The application waited {:.2} s for {} bursts of {} ({}), {:.1} % of its run. All {} \
             were on the backing store {:.2} s after the last burst ({by}), {:.2} s after the start.",
            total,
            waited.len(),
            human_bytes(self.size * self.ranks as u64),
            human_rate(bytes as f64 / total.max(1e-9)),
            100.0 * total / run.max(1e-9),
            human_bytes(bytes),
            ended.durable,
            run + ended.durable,
        ))
    }
}

/// Seconds of the whole run of the application, and from its end until all was durable.
struct Ended {
    run: f64,
    durable: f64,
    /// The call or command that confirmed durability.
    by: String,
}

fn run_command(command: &str, directory: Option<&Path>) -> Result<()> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).stdout(std::io::stderr());
    if let Some(directory) = directory {
        shell.env("FOREBAY_BENCH_DIR", directory);
    }
    match shell.status() {
        Ok(status) if status.success() => Ok(()),
        // Ctrl-C goes to the command as well.
        Ok(_) if interrupt::seen() => Err(Error::Interrupted),
        Ok(status) => Err(Error::failed(format!("--durable-cmd {command:?} failed ({status})"))),
        Err(error) => Err(Error::failed(format!("--durable-cmd: sh cannot be run: {error}"))),
    }
}

fn sync_all(directory: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("sync", directory, &error);
    let handle = File::open(directory).map_err(failed)?;
    rustix::fs::syncfs(&handle).map_err(|error| failed(error.into()))?;
    // A file system without a meaningful syncfs still has fsync.
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        File::open(path).and_then(|file| file.sync_all()).map_err(failed)?;
    }
    Ok(())
}

impl Prepared for Checkpoint {
    fn settings(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("ranks".into(), self.ranks.to_string()),
            ("layout".into(), self.layout.name().into()),
            ("size".into(), format!("{} per rank and burst", human_bytes(self.size))),
            ("transfer".into(), human_bytes(self.transfer)),
            ("bursts".into(), self.bursts.to_string()),
            ("compute".into(), format!("{} s", self.compute)),
            ("fsync".into(), format!("{:?}", self.ending).to_lowercase()),
            ("durable-cmd".into(), self.durable.clone().unwrap_or_else(|| "fence or sync".into())),
        ])
    }

    fn needs(&self) -> u64 {
        let all = self.ranks as u64 * u64::from(self.bursts);
        self.size.saturating_mul(all)
    }

    fn transfers(&self) -> Vec<(&'static str, u64)> {
        vec![("--transfer", self.transfer)]
    }

    fn run(&self, session: &mut Session) -> Result<()> {
        let began = Instant::now();
        let mut waited = Vec::new();
        for burst in 0..self.bursts {
            if burst > 0 && !interrupt::sleep(self.compute) {
                return Err(Error::Interrupted);
            }
            waited.push(self.burst(session, burst)?);
        }
        let run = began.elapsed().as_secs_f64();
        let (durable, by) = match session.base.api {
            Api::Null => (0.0, "nothing was written".into()),
            _ => self.make_durable(session)?,
        };
        self.conclude(session, &waited, Ended { run, durable, by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Plan;

    /// Every layout covers its files once and without a gap.
    #[test]
    fn the_ranks_of_each_layout_share_the_file_without_gap_or_overlap() {
        for layout in [Layout::Own, Layout::Segmented, Layout::Strided] {
            let checkpoint = Checkpoint {
                ranks: 3,
                layout,
                size: 4 * 100,
                transfer: 100,
                bursts: 1,
                compute: 0.0,
                ending: Ending::Close,
                durable: None,
            };
            let mut offsets: Vec<(usize, u64)> = Vec::new();
            for rank in 0..3 {
                let mut sweep = checkpoint.sweep(rank);
                let file = if layout == Layout::Own { rank } else { 0 };
                while let Some(op) = sweep.next() {
                    assert_eq!(op.len, 100);
                    offsets.push((file, op.offset));
                }
            }
            offsets.sort_unstable();
            let files = if layout == Layout::Own { 3 } else { 1 };
            let each = 12 / files as u64;
            let expected: Vec<(usize, u64)> =
                (0..files).flat_map(|file| (0..each).map(move |i| (file, i * 100))).collect();
            assert_eq!(offsets, expected, "{layout:?}");
        }
    }

    #[test]
    fn a_command_that_fails_is_told() {
        let error = run_command("exit 3", None).unwrap_err();
        assert!(error.to_string().contains("exit 3"), "{error}");
        assert_eq!(run_command("test -n \"$FOREBAY_BENCH_DIR\"", Some(Path::new("/x"))), Ok(()));
    }
}
