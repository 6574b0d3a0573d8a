//! `forebay bench mdtest`: mdtest's metadata workload, options and summary, without MPI.

mod options;
mod phase;
mod table;
mod tree;

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::cache::{self, Policy, Residency};
use crate::honest::{Evidence, Memory, Remedies, judge_with};
use crate::io::Direction;
use crate::record::{self, Access, Header, Line, Record};
use crate::recorder::{self, Course, Recorder};
use crate::{Error, Result, environment, interrupt};

use crate::ior::keep;
use options::Options;
use phase::{Lap, Measured, Phase};

/// Runs the phases in `args`. Returns 1 if files did not hold the written bytes, 130 after Ctrl-C.
pub fn run(args: &[String]) -> Result<u8> {
    let Some(options) = options::read(args)? else { return Ok(0) };
    options::check(&options)?;
    let (_, ended) = conduct(&options, args, &mut *options.sinks.terminal())?;
    ended.map(|errors| u8::from(errors > 0))
}

/// Checks a command line as [`record_in`] would run it, without making anything.
pub(crate) fn check_in(place: &str, args: &[String]) -> Result<()> {
    located(place, args).map(drop)
}

/// Runs the phases in `args` with their directories in `place`, for the record alone.
pub(crate) fn record_in(place: &str, args: &[String]) -> Result<Record> {
    let options = located(place, args)?;
    match conduct(&options, args, &mut std::io::sink())? {
        (record, Ok(0)) => Ok(record),
        (_, Ok(errors)) => Err(Error::failed(format!("{place}: {errors} files had wrong bytes"))),
        (_, Err(error)) => Err(error),
    }
}

fn located(place: &str, args: &[String]) -> Result<Options> {
    let Some(mut options) = options::read(args)? else {
        return Err(Error::usage("-h among other options: ask for --help alone"));
    };
    for directory in &mut options.directories {
        *directory = environment::inside(place, "-d", directory)?;
    }
    options::check(&options)?;
    Ok(options)
}

/// Runs all phases. An error means that nothing ran; otherwise returns the measurements, and how
/// the run ended: the number of files with wrong bytes, or the error that ended it early.
fn conduct(
    options: &Options,
    args: &[String],
    to: &mut dyn Write,
) -> Result<(Record, Result<u64>)> {
    // A reader that went away is no reason to stop and leave files behind.
    let mut say = |text: &str| drop(to.write_all(text.as_bytes()));
    let header = Header {
        cache: options.cache.name().to_owned(),
        backend: "posix".to_owned(),
        ..environment::header("mdtest", args, &options.directories)
    };
    let mut recorder = Recorder::begin(header, &options.sinks)?;
    say(&table::head(options, args));
    let mut running = Running::new(options);
    let result = running.iterations();
    let measured = running.measured;
    say(&table::summary(options, &measured));
    say(&table::evidence(&measured));
    for one in &measured {
        put(&mut recorder, options, one)?;
    }
    if interrupt::seen() {
        say(table::INTERRUPTED);
    }
    say(&table::tail());
    end(recorder, &measured, result)
}

fn end(
    recorder: Recorder,
    measured: &[Measured],
    result: Result<()>,
) -> Result<(Record, Result<u64>)> {
    let (outcome, ended) = match result {
        Err(error) => (record::Outcome::Failed, Err(error)),
        Ok(()) if interrupt::seen() => (record::Outcome::Interrupted, Err(Error::Interrupted)),
        Ok(()) => {
            let errors = measured.iter().map(|one| one.errors).sum();
            (record::Outcome::Complete, Ok(errors))
        }
    };
    Ok((recorder.finish(outcome)?, ended))
}

struct Running<'a> {
    options: &'a Options,
    measured: Vec<Measured>,
    /// Items each rank has created.
    created: Vec<u64>,
    /// Directories of `-d` that did not exist before.
    homes: Vec<PathBuf>,
}

impl<'a> Running<'a> {
    fn new(options: &'a Options) -> Self {
        Self { options, measured: Vec::new(), created: Vec::new(), homes: Vec::new() }
    }

    fn iterations(&mut self) -> Result<()> {
        let result = self.each_iteration();
        // Directories that the run made are removed, unless they were to stay or have other users'
        // files.
        if self.options.selected.remove || result.is_err() || interrupt::seen() {
            self.homes.iter().for_each(|home| drop(std::fs::remove_dir(home)));
        }
        result
    }

    fn each_iteration(&mut self) -> Result<()> {
        let options = self.options;
        for iteration in 0..options.iterations {
            if !interrupt::sleep(options.pre_delay) {
                break;
            }
            let tops = self.tops(iteration)?;
            let result = self.iteration(iteration, &tops);
            // Items that an early end left are removed, unless they were to stay.
            let ended_early = interrupt::seen() || result.is_err();
            if ended_early && options.selected.create {
                eprintln!("forebay bench mdtest: removes what it made; Ctrl-C again leaves it");
            }
            if options.selected.create && (options.selected.remove || ended_early) {
                tops.iter().for_each(|top| drop(std::fs::remove_dir_all(top)));
            }
            if options.selected.remove {
                tops.iter().for_each(|top| drop(std::fs::remove_dir(top)));
            }
            result?;
        }
        Ok(())
    }

    /// The directory of this iteration for each task, made if items are created.
    fn tops(&mut self, iteration: usize) -> Result<Vec<String>> {
        let options = self.options;
        let mut tops = Vec::new();
        for rank in 0..options.tasks {
            let home = &options.directories[rank % options.directories.len()];
            let top = options::top(home, iteration);
            if options.selected.create && rank < options.directories.len() {
                if make(home)? {
                    self.homes.push(home.clone());
                }
                std::fs::create_dir(&top).map_err(|error| Error::io("create", &top, &error))?;
            }
            tops.push(top.to_string_lossy().into_owned());
        }
        let items = match &options.status_file {
            Some(path) if !options.selected.create => keep::stored_iterations("-x", path)?,
            _ => options.items,
        };
        self.created = vec![items.min(options.items); options.tasks];
        Ok(tops)
    }

    fn iteration(&mut self, iteration: usize, tops: &[String]) -> Result<()> {
        let options = self.options;
        let mut renamed = false;
        for phase in course(options) {
            if interrupt::seen() {
                break;
            }
            let lap = Lap { options, phase, tops, created: &self.created, renamed };
            let before = self.before(&lap)?;
            let outcome = phase::run(&lap);
            outcome.check()?;
            let mut measured = Measured::of(phase, iteration, &outcome);
            if phase == Phase::FileRead {
                doubt(&mut measured, before, tops);
            }
            if matches!(phase, Phase::DirectoryCreation | Phase::FileCreation) {
                let items = outcome.results().iter();
                let counts = items.map(|r| r.items.load(std::sync::atomic::Ordering::SeqCst));
                self.created = counts.collect();
                if let Some(path) = &options.status_file {
                    keep::store_iterations(path, self.created.iter().copied().max().unwrap_or(0))?;
                }
            }
            renamed |= phase == Phase::DirectoryRename;
            self.measured.push(measured);
        }
        Ok(())
    }

    /// Applies the cache policy, and checks the page cache's contents before reading.
    fn before(&self, lap: &Lap<'_>) -> Result<Option<Residency>> {
        let looks = matches!(lap.phase, Phase::FileStat | Phase::FileRead | Phase::DirectoryStat);
        if looks && self.options.cache == Policy::Drop {
            self.options.cache.before_reading(&[] as &[&Path])?;
        }
        if lap.phase != Phase::FileRead {
            return Ok(None);
        }
        if self.options.cache == Policy::Fadvise {
            self.options.cache.before_reading(&phase::sample(lap, usize::MAX))?;
        }
        Ok(cache::residency_of(&phase::sample(lap, SAMPLE)))
    }
}

/// Files looked at for the share in the page cache; more would take longer than reading them.
const SAMPLE: usize = 1000;

fn doubt(measured: &mut Measured, before: Option<Residency>, tops: &[String]) {
    let evidence = Evidence {
        bytes: measured.bytes,
        seconds: measured.seconds,
        cache: before,
        memory: Memory::of(Path::new(&tops[0])),
        ..Evidence::default()
    };
    let remedies = Remedies { read: "--cache drop or --cache fadvise", write: "-y" };
    measured.warnings = judge_with(Direction::Read, &evidence, remedies);
    measured.resident = before.map(Residency::share);
}

/// Makes a directory of `-d` unless it exists; true if it did not.
fn make(home: &Path) -> Result<bool> {
    if home.is_dir() {
        return Ok(false);
    }
    std::fs::create_dir(home).map_err(|error| Error::io("create", home, &error))?;
    Ok(true)
}

/// The phases in the order they run: the tree, directories, files, the tree's removal.
fn course(options: &Options) -> Vec<Phase> {
    let selected = options.selected;
    let mut phases = Vec::new();
    let mut add = |wanted: bool, phase| phases.extend(wanted.then_some(phase));
    add(selected.create, Phase::TreeCreation);
    if options.dirs {
        add(selected.create, Phase::DirectoryCreation);
        add(selected.stat, Phase::DirectoryStat);
        add(selected.all(), Phase::DirectoryRename);
        add(selected.remove, Phase::DirectoryRemoval);
    }
    if options.files {
        add(selected.create, Phase::FileCreation);
        add(selected.stat, Phase::FileStat);
        add(selected.read, Phase::FileRead);
        add(selected.remove, Phase::FileRemoval);
    }
    add(selected.remove, Phase::TreeRemoval);
    phases
}

fn put(recorder: &mut Recorder, options: &Options, measured: &Measured) -> Result<()> {
    let name = measured.phase.name();
    let iteration = measured.iteration as u32;
    recorder.put(Line::Phase(record::Phase {
        name: name.to_owned(),
        iteration,
        access: if measured.phase == Phase::FileRead { Access::Read } else { Access::Metadata },
        tasks: options.tasks as u32,
        bytes: measured.bytes,
        ops: measured.items,
        seconds: measured.seconds,
        latency: Some(recorder::latency(&measured.meters.latency)),
        resident_share: measured.resident,
        warnings: measured.warnings.clone(),
        ..record::Phase::default()
    }))?;
    let (seconds, part) = (measured.seconds, record::Part::Measured);
    let course = Course { phase: name, iteration, from_seconds: 0.0, seconds, part };
    recorder.put_series(course, &measured.meters.series)
}
