//! `forebay-perf space`: the cost of a private space beside a directory of the tier it lies in.
//!
//! Contestants are spaces made by the crate that the node daemon uses, one for each file system that an
//! image can hold and one with a project quota, where these are available, and a plain directory beside
//! their pool. The judged value is each space's speed over the directory's, formed within a round.

mod work;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use forebay_node::space::{Choice, Fs, Id, Means, Owner, Pool, Settings, SpaceSpec};

use crate::guard::{self, Scratch};
use crate::load::MIB;
use crate::parts::{self, Options, Part};
use crate::report::{Finding, Report, Target};
use crate::run::{Rounds, Run, Subject};
use crate::stat::Samples;

/// The target for bytes and metadata.
const NATIVE: Target = Target::AtLeast(0.95);

/// The target for 4 KiB past the page cache, through a loop device.
const DIRECT: Target = Target::AtLeast(0.65);

/// The target for the making of a space, which users wait for; Gfarm/BB takes 0.31 s.
const MAKING: Target = Target::AtMost(0.5);

type Work = fn(&Bench<'_>, &mut Report) -> Result<()>;

const PARTS: [Part<Work>; 7] = [
    Part { name: "make", about: "a space is made and removed", work: make },
    Part {
        name: "stream",
        about: "1 MiB writes with fsync, and reads from the device",
        work: work::stream,
    },
    Part { name: "metadata", about: "create, stat, unlink", work: work::metadata },
    Part { name: "untar", about: "a tree of small files from an archive", work: work::untar },
    Part { name: "compile", about: "a C program of many files", work: work::compile },
    Part { name: "direct", about: "4 KiB past the page cache, random", work: work::direct },
    Part {
        name: "sync",
        about: "4 KiB with a sync each: a log, and small files",
        work: work::sync,
    },
];

const BOUND: Duration = Duration::from_secs(1200);

/// Returns whether every target was reached.
pub fn measure(options: &Options) -> Result<bool> {
    let Some(chosen) = options.chosen(&PARTS)? else { return Ok(true) };
    ensure!(rustix_is_root(), "spaces are mounted: run it as root");
    options.common.report(Subject::Native, None, |run, report| {
        let spaces = Spaces::make(&run.disk, run.pick(8192, 3072) * MIB)?;
        let bench = Bench { run, spaces: &spaces };
        parts::perform(&chosen, BOUND, report, |work, report| work(&bench, report))
    })
}

fn rustix_is_root() -> bool {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// The kind of a measured space, by what holds its capacity.
#[derive(Clone, Copy)]
enum Kind {
    Image(Fs),
    Quota,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Image(fs) => fs.name(),
            Kind::Quota => "quota",
        }
    }

    fn who(self) -> String {
        match self {
            Kind::Image(fs) => format!("image-{}", fs.name()),
            Kind::Quota => "project-quota".into(),
        }
    }
}

/// A pool with one space of each kind, and a directory beside it.
struct Spaces {
    pool: Pool,
    specs: Vec<(Kind, SpaceSpec)>,
    /// The directories of the contestants; the last one is the plain directory.
    dirs: Vec<PathBuf>,
    mounts: PathBuf,
}

impl Spaces {
    fn make(disk: &Scratch, capacity: u64) -> Result<Spaces> {
        let pool = Pool::open(&disk.path().join("pool"), Settings::default())?;
        let mounts = disk.fresh("spaces")?;
        let mut spaces = Spaces { pool, specs: Vec::new(), dirs: Vec::new(), mounts };
        for offer in spaces.pool.probe() {
            let kinds: Vec<Kind> = match (offer.means, offer.missing) {
                (Means::Image, None) => offer.systems.into_iter().map(Kind::Image).collect(),
                (Means::ProjectQuota, None) => vec![Kind::Quota],
                (means @ (Means::Image | Means::ProjectQuota), Some(why)) => {
                    eprintln!("no {means}: {why}");
                    Vec::new()
                }
                _ => Vec::new(),
            };
            for kind in kinds {
                let spec = spaces.spec(kind, kind.name(), capacity)?;
                spaces.pool.make(&spec)?;
                spaces.dirs.push(spec.mount_at.clone());
                spaces.specs.push((kind, spec));
            }
        }
        ensure!(!spaces.specs.is_empty(), "neither images nor project quotas here");
        spaces.dirs.push(disk.fresh("native")?);
        Ok(spaces)
    }

    fn spec(&self, kind: Kind, name: &str, capacity: u64) -> Result<SpaceSpec> {
        let id: Id = name.parse()?;
        let mut spec = SpaceSpec::new(id, capacity, Owner::ROOT, self.mounts.join(name));
        spec.means = Choice::Exactly(match kind {
            Kind::Image(_) => Means::Image,
            Kind::Quota => Means::ProjectQuota,
        });
        if let Kind::Image(fs) = kind {
            spec.fs = fs;
        }
        Ok(spec)
    }

    fn remove(&self, id: &Id) -> Result<Duration> {
        let begun = Instant::now();
        let mut left = self.pool.remove(id)?.left.is_some();
        let answered = begun.elapsed();
        while left {
            guard::go_on()?;
            left = !self.pool.sweep()?.left.is_empty();
        }
        Ok(answered)
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for (_, spec) in &self.specs {
            if let Err(error) = self.pool.remove(&spec.id) {
                eprintln!("{}: not removed: {error}", spec.id);
            }
        }
        // The scratch directory is removed next, and the pool with it.
        for _ in 0..500 {
            match self.pool.sweep() {
                Ok(swept) if !swept.left.is_empty() => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

struct Bench<'b> {
    run: &'b Run,
    spaces: &'b Spaces,
}

impl Bench<'_> {
    /// Lets all contestants take turns in their directories; values are rates: more is better.
    fn alternate<const N: usize>(
        &self,
        rounds: Rounds,
        mut work: impl FnMut(&Path, u64) -> Result<[f64; N]>,
    ) -> Result<[Samples; N]> {
        let dirs = &self.spaces.dirs;
        self.run.alternate(dirs.len(), rounds, |who, round| {
            let dir = dirs[who].join(format!("round-{round}"));
            std::fs::create_dir(&dir)?;
            let values = work(&dir, round)?;
            std::fs::remove_dir_all(&dir)?;
            sync_all_of(&dirs[who])?;
            Ok(values)
        })
    }

    /// One finding for each space: its speed over the directory's.
    fn report(
        &self,
        report: &mut Report,
        (case, state, unit): (&str, &str, &'static str),
        target: Option<Target>,
        samples: &Samples,
    ) -> Result<()> {
        let native = self.spaces.dirs.len() - 1;
        for (index, (kind, _)) in self.spaces.specs.iter().enumerate() {
            let names = [kind.who(), "native".to_owned()];
            let case = format!("space-{}/{case}", kind.name());
            // A quota has no layer in between.
            let target = if let Kind::Quota = kind { target.map(|_| NATIVE) } else { target };
            let finding = Finding::new(&case, state, unit, &names, &samples.only(&[index, native]));
            report.add(match target {
                Some(target) => finding.ratio_target("native", target),
                None => finding,
            })?;
        }
        Ok(())
    }
}

/// Syncs the whole file system of a directory.
fn sync_all_of(dir: &Path) -> Result<()> {
    let dir = std::fs::File::open(dir)?;
    // SAFETY: an open descriptor.
    let done = unsafe { libc::syncfs(std::os::fd::AsRawFd::as_raw_fd(&dir)) };
    ensure!(done == 0, "syncfs: {}", std::io::Error::last_os_error());
    Ok(())
}

fn make(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let spaces = bench.spaces;
    for (kind, _) in &spaces.specs {
        for gib in [1, bench.run.pick(16, 4)] {
            let spec = spaces.spec(*kind, &format!("{}-made", kind.name()), gib << 30)?;
            let (mut made, mut removed) = (Vec::new(), Vec::new());
            for _ in 0..bench.run.rounds {
                guard::go_on()?;
                let begun = Instant::now();
                spaces.pool.make(&spec)?;
                made.push(begun.elapsed().as_secs_f64());
                removed.push(spaces.remove(&spec.id)?.as_secs_f64());
            }
            let case = format!("space-{}", kind.name());
            let state = format!("{gib} GiB");
            let who = kind.who();
            let finding = Finding::alone(&format!("{case}/make"), &state, "s", &who, &made);
            report.add(finding.target(MAKING))?;
            let finding = Finding::alone(&format!("{case}/remove"), &state, "s", &who, &removed);
            report.add(finding.target(Target::AtMost(1.0)))?;
        }
    }
    Ok(())
}
