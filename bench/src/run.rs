//! The shared parts of the cases: choices of the run, scratch directories, contestants, rounds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::emptyfs::Mode;
use crate::guard::{Scratch, go_on};
use crate::mounts::{Daemon, Forebay, Place};
use crate::stat::Samples;

/// Whose speed is measured. Anything but forebay checks the harness itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    Forebay,
    /// Native against native must give 1.0.
    Native,
    EmptyPass,
    EmptyPlain,
}

/// The file system that holds tier, backing store and the native directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Disk,
    Tmpfs,
}

impl On {
    pub fn label(self) -> &'static str {
        match self {
            On::Disk => "disk",
            On::Tmpfs => "tmpfs",
        }
    }
}

/// How often contestants take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// One round that is not counted, then as many as the run was told.
    Many,
    /// For measurements that take seconds, or depend mainly on a device: no warm-up, at most five.
    Few,
}

pub struct Run {
    pub rounds: usize,
    pub quick: bool,
    pub subject: Subject,
    pub binary: Option<PathBuf>,
    pub disk: Scratch,
    pub tmpfs: Scratch,
    serial: AtomicUsize,
}

impl Run {
    pub fn new(
        (rounds, quick): (usize, bool),
        subject: Subject,
        binary: Option<PathBuf>,
        [disk, tmpfs]: [Scratch; 2],
    ) -> Run {
        Run { rounds, quick, subject, binary, disk, tmpfs, serial: AtomicUsize::new(0) }
    }

    /// `full`, or `quick` in a quick run.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// How long a time-bound measurement lasts.
    pub fn slice(&self) -> Duration {
        Duration::from_millis(self.pick(300, 150))
    }

    /// The number of rounds for measurements that take seconds and hardly vary.
    pub fn few_rounds(&self) -> usize {
        self.rounds.min(self.pick(5, 3))
    }

    fn scratch(&self, on: On) -> &Scratch {
        match on {
            On::Disk => &self.disk,
            On::Tmpfs => &self.tmpfs,
        }
    }

    pub fn fresh(&self, on: On, name: &str) -> Result<PathBuf> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        self.scratch(on).fresh(&format!("{serial}-{name}"))
    }

    pub fn native(&self, on: On) -> Result<Place> {
        Ok(Place::native(self.fresh(on, "native")?))
    }

    /// An empty daemon over a fresh directory.
    pub fn empty(&self, on: On, mode: Mode) -> Result<Place> {
        let name = match mode {
            Mode::Pass => "empty-pass",
            Mode::Plain => "empty-plain",
        };
        let source = self.fresh(on, &format!("{name}-source"))?;
        let mountpoint = self.fresh(On::Disk, &format!("{name}-mount"))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["emptyfs", "--mode", &name["empty-".len()..]]).arg(&source).arg(&mountpoint);
        let log = self.disk.path().join(format!("{name}.log"));
        let daemon = Daemon::start(&mut command, &mountpoint, &log).context(name)?;
        Ok(Place::daemon(name, daemon, vec![source, mountpoint]))
    }

    /// A fresh directory served by an empty daemon that lets each request wait for `delay`.
    pub fn slow_store(&self, on: On, delay: Duration) -> Result<SlowStore> {
        let source = self.fresh(on, "far-source")?;
        let mountpoint = self.fresh(On::Disk, "far-store")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["emptyfs", "--mode", "plain", "--delay", &delay.as_micros().to_string()]);
        command.arg(&source).arg(&mountpoint);
        let log = self.disk.path().join("far-store.log");
        let daemon = Daemon::start(&mut command, &mountpoint, &log).context("slow store")?;
        let owned = vec![source.clone(), mountpoint];
        Ok(SlowStore { source, mount: Place::daemon("store", daemon, owned) })
    }

    pub fn has_forebay(&self) -> bool {
        self.subject == Subject::Forebay && self.binary.is_some()
    }

    /// A forebay mount over fresh directories, not mounted yet.
    pub fn forebay_parts(&self, tier: On, backing: On, options: &[&str]) -> Result<Forebay> {
        let binary = self.binary.as_deref().context("no forebay binary")?;
        let dirs = [
            self.fresh(backing, "backing")?,
            self.fresh(tier, "tier")?,
            self.fresh(On::Disk, "mount")?,
        ];
        Ok(Forebay::new(binary, self.disk.path(), dirs, options))
    }

    /// A mount over a store that other members mount, too; not mounted yet.
    pub fn forebay_at(&self, tier: On, store: PathBuf, options: &[&str]) -> Result<Forebay> {
        let binary = self.binary.as_deref().context("no forebay binary (--forebay FILE)")?;
        let dirs = [store, self.fresh(tier, "tier")?, self.fresh(On::Disk, "mount")?];
        let forebay = Forebay::new(binary, self.disk.path(), dirs, options);
        Ok(forebay.with_shared_store())
    }

    /// forebay with its tier and its backing store on the same file system.
    pub fn forebay(&self, on: On, options: &[&str]) -> Result<Place> {
        let mut forebay = self.forebay_parts(on, on, options)?;
        forebay.mount()?;
        Ok(Place::forebay(forebay))
    }

    pub fn subject(&self, on: On, options: &[&str]) -> Result<Place> {
        let mut place = match self.subject {
            Subject::Forebay => return self.forebay(on, options),
            Subject::Native => self.native(on)?,
            Subject::EmptyPass => self.empty(on, Mode::Pass)?,
            Subject::EmptyPlain => self.empty(on, Mode::Plain)?,
        };
        place.name = format!("{} (subject)", place.name);
        Ok(place)
    }

    /// Lets the contestants take turns, the first one changing every round.
    ///
    /// `work` gets the contestant's index and the round; it returns `N` measurements.
    pub fn alternate<const N: usize>(
        &self,
        contestants: usize,
        rounds: Rounds,
        mut work: impl FnMut(usize, u64) -> Result<[f64; N]>,
    ) -> Result<[Samples; N]> {
        let mut samples = std::array::from_fn(|_| Samples::new(contestants));
        let (first, last) = match rounds {
            Rounds::Many => (0, self.rounds),
            Rounds::Few => (1, self.few_rounds()),
        };
        for round in first..=last {
            for turn in 0..contestants {
                go_on()?;
                let who = (turn + round) % contestants;
                let values = work(who, round as u64)?;
                // Round 0 is the warm-up.
                for (metric, value) in values.into_iter().enumerate().filter(|_| round > 0) {
                    Samples::add(&mut samples[metric], who, value);
                }
            }
        }
        Ok(samples)
    }
}

/// A store whose requests wait.
pub struct SlowStore {
    source: PathBuf,
    mount: Place,
}

impl SlowStore {
    /// The mount point of the store.
    pub fn dir(&self) -> &Path {
        &self.mount.dir
    }

    /// The directory that the store serves, without the delay.
    pub fn source(&self) -> &Path {
        &self.source
    }
}

pub fn names(places: &[Place]) -> Vec<String> {
    places.iter().map(|place| place.name.clone()).collect()
}

/// The file name under which data cases keep their file.
pub fn data(place: &Place) -> PathBuf {
    place.path("data")
}

/// Removes a file; an error names it.
pub fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}
