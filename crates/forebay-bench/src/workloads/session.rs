//! The common parts of every workload's run: a directory for its files, the page-cache policy, the
//! recorder.
//!
//! Invariants: L1 and L2 of [`crate::workloads`], and
//! - N1: the policy's clearing and a measurement of the remaining resident bytes come before a read
//!   phase, and the phase's result has that measurement.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::base::{Base, Keep};
use crate::cache::{Hog, Policy, Residency, advise_away, residency_of};
use crate::environment;
use crate::error::{Error, Result};
use crate::honest::{Device, Evidence, Memory, Moved, Remedies, judge_with};
use crate::io::Direction;
use crate::meter::Total;
use crate::progress::{Goal, Progress};
use crate::record::{Access, Header, Line, Outcome as Ended, Part, Phase, Record};
use crate::recorder::{Course, Recorder, latency};
use crate::shared::Plain;
use crate::team::{Outcome, Team};
use crate::units::human_rate;

/// Whether progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    Loud,
    Quiet,
}

/// The run's own directory in the target.
struct Scratch {
    path: PathBuf,
    keep: Keep,
}

impl Scratch {
    fn create(place: &Path, keep: Keep) -> Result<Self> {
        let path = place.join(format!("forebay-bench.{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| Error::usage(format!("{}: {e}", path.display())))?;
        Ok(Self { path, keep })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep == Keep::Stay {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("forebay bench: {} is left: {error}", self.path.display());
        }
    }
}

/// A run in progress.
pub struct Session {
    pub base: Base,
    pub recorder: Recorder,
    scratch: Option<Scratch>,
    voice: Voice,
    memory: Memory,
    device: Option<Device>,
    /// Held for the length of the run.
    _hog: Option<Hog>,
}

const REMEDIES: Remedies = Remedies {
    read: "--cache drop, --cache fadvise or --cache direct",
    write: "--cache direct or, where there is one, --fsync",
};

/// The meaning of cached data for a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// The figures are not those of the target.
    Doubtful,
    /// The phase is about the cache.
    Intended,
}

/// The description of a phase, besides the measurements of its tasks.
pub struct Told<'a> {
    pub name: &'a str,
    pub iteration: u32,
    pub access: Access,
    pub tasks: usize,
    /// Length of the phase.
    pub seconds: f64,
    pub transfer: u64,
    /// From [`Session::before`].
    pub before: Before,
    pub cache: Cache,
    /// The files that the phase wrote or read, to check what remained in memory.
    pub files: &'a [PathBuf],
    pub figures: BTreeMap<String, f64>,
}

/// The state of cache and device before a phase.
#[derive(Debug, Clone, Copy, Default)]
pub struct Before {
    resident: Option<Residency>,
    moved: Option<Moved>,
}

impl Session {
    pub fn begin(
        workload: &str,
        args: &[String],
        base: Base,
        settings: BTreeMap<String, String>,
        voice: Voice,
    ) -> Result<Self> {
        let targets: Vec<PathBuf> = base.place.iter().cloned().collect();
        let mut header = Header {
            cache: base.policy.name().into(),
            backend: base.api.name().into(),
            settings,
            ..environment::header(workload, args, &targets)
        };
        header.settings.insert("seed".into(), base.seed.to_string());
        header.settings.insert("depth".into(), base.depth.to_string());
        let limit = base.limit.map(|limit| ("device-limit".to_owned(), human_rate(limit)));
        header.settings.extend(limit);
        let recorder = Recorder::begin(header, &base.sinks)?;
        let hog = match base.policy {
            Policy::Hog(amount) => Some(Hog::occupy(amount)?),
            _ => None,
        };
        let scratch =
            base.place.as_ref().map(|place| Scratch::create(place, base.keep)).transpose()?;
        Ok(Self {
            memory: base.place.as_ref().map_or(Memory::No, |place| Memory::of(place)),
            device: base.place.as_ref().and_then(|place| Device::behind(place)),
            scratch,
            base,
            recorder,
            voice,
            _hog: hog,
        })
    }

    /// The path of a file of the run; only a name if there is no directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.as_ref().map_or_else(|| name.into(), |scratch| scratch.path.join(name))
    }

    /// The directory of the run's files.
    pub fn directory(&self) -> Option<&Path> {
        self.scratch.as_ref().map(|scratch| scratch.path.as_path())
    }

    /// The progress of work that the run does without a team.
    pub fn progress(&self, name: &str, goal: Goal) -> Option<Progress> {
        (self.voice == Voice::Loud).then(|| Progress::new(name, goal))
    }

    pub fn team(&self, tasks: usize, name: &str, goal: Goal) -> Team {
        let team = Team::new(tasks, self.base.kind);
        match self.voice {
            Voice::Loud => team.progress(Progress::new(name, goal)),
            Voice::Quiet => team,
        }
    }

    /// Prepares for a phase that reads `files`: clears the cache, then measures what is left (N1).
    pub fn before_reading(&self, files: &[PathBuf]) -> Result<Before> {
        if self.base.place.is_none() {
            return Ok(Before::default());
        }
        self.base.policy.before_reading(files)?;
        if self.base.direct() {
            // Direct reads go around the cache, but some file systems look into it first.
            files.iter().try_for_each(|file| advise_away(file))?;
        }
        Ok(self.before_resident(files))
    }

    /// Measures the resident bytes, and clears nothing.
    pub fn before_resident(&self, files: &[PathBuf]) -> Before {
        let resident = self.base.place.as_ref().and_then(|_| residency_of(files));
        Before { resident, ..self.before() }
    }

    /// Reads the device's counters before a phase.
    pub fn before(&self) -> Before {
        Before { resident: None, moved: self.device.as_ref().and_then(Device::moved) }
    }

    /// Records a phase; an error means that the run must not go on. The measurements are kept either
    /// way.
    pub fn phase<R: Plain>(&mut self, told: Told<'_>, outcome: &Outcome<R>) -> Result<Total> {
        let total = Total::of(outcome.meters());
        self.put_phase(&told, &total)?;
        outcome.check()?;
        if outcome.interrupted { Err(Error::Interrupted) } else { Ok(total) }
    }

    /// Records a phase whose figures the caller has put together.
    pub fn put_phase(&mut self, told: &Told<'_>, total: &Total) -> Result<()> {
        self.put_phase_from(told, total, 0.0)
    }

    /// Records a phase whose first seconds were recorded separately.
    pub fn put_phase_from(
        &mut self,
        told: &Told<'_>,
        total: &Total,
        from_seconds: f64,
    ) -> Result<()> {
        if total.ops == 0 {
            return Ok(());
        }
        let warnings = self.warnings(told, total.bytes);
        self.recorder.put(Line::Phase(Phase {
            name: told.name.to_owned(),
            iteration: told.iteration,
            access: told.access,
            tasks: told.tasks as u32,
            bytes: total.bytes,
            ops: total.ops,
            seconds: told.seconds,
            transfer_bytes: (told.transfer > 0).then_some(told.transfer),
            latency: Some(latency(&total.latency)),
            resident_share: told.before.resident.map(Residency::share),
            warnings,
            figures: told.figures.clone(),
            ..Phase::default()
        }))?;
        let course = Course {
            phase: told.name,
            iteration: told.iteration,
            from_seconds,
            seconds: told.seconds,
            part: Part::Measured,
        };
        self.recorder.put_series(course, &total.series)
    }

    /// The reasons to doubt the figures.
    fn warnings(&self, told: &Told<'_>, bytes: u64) -> Vec<String> {
        // For reads and writes together, the reads are judged: the cache's earlier contents are
        // evidence for them, while neither of the device's counts covers both.
        let direction = match told.access {
            Access::Read | Access::Mixed => Direction::Read,
            Access::Write => Direction::Write,
            Access::Metadata | Access::None => return Vec::new(),
        };
        let cache = match direction {
            _ if self.base.place.is_none() || told.cache == Cache::Intended => None,
            Direction::Read => told.before.resident,
            Direction::Write => residency_of(told.files),
        };
        let after = self.device.as_ref().and_then(Device::moved);
        let moved = told.before.moved.zip(after).map(|(from, to)| to.since(from, direction));
        judge_with(
            direction,
            &Evidence {
                bytes,
                seconds: told.seconds,
                cache,
                device_bytes: moved
                    .filter(|_| told.cache == Cache::Doubtful && told.access != Access::Mixed),
                limit: self.base.limit,
                memory: self.memory,
            },
            REMEDIES,
        )
    }

    /// Ends the run; files are removed when the session is dropped, at the end of this call (L2).
    pub fn end(self, outcome: Ended) -> Result<Record> {
        self.recorder.finish(outcome)
    }
}
