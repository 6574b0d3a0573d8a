//! The course of a test: repetitions, phases, removal; and its results.

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use super::measure::Measured;
use super::output::Output;
use super::params::Params;
use super::phase::{self, Lap, Verify};
use super::probe::Probe;
use super::{check, keep, layout};
use crate::io::{Api, Direction};
use crate::{Error, Result, interrupt};

/// A test that ran, possibly not to its end.
pub struct Ran {
    pub params: Params,
    pub id: usize,
    pub phases: Vec<Measured>,
    pub errors: u64,
}

/// Runs one test and shows its progress; returns its measurements, and the error that ended it.
/// Ctrl-C ends it early and is no error here.
pub fn test(params: &Params, id: usize, output: &mut Output) -> (Ran, Result<()>) {
    let mut running = Running {
        params,
        output,
        signature: params.signature.unwrap_or(crate::clock::wall_seconds() as u32),
        written: None,
        phases: Vec::new(),
        errors: 0,
    };
    running.output.test_start(params, id, running.signature);
    let result = running.repetitions();
    let (phases, errors) = (running.phases, running.errors);
    let ran = Ran { params: params.clone(), id, phases, errors };
    output.test_end(&ran);
    (ran, result)
}

struct Running<'a> {
    params: &'a Params,
    output: &'a mut Output,
    signature: u32,
    /// Transfers of each rank that the last write phase completed.
    written: Option<Vec<u64>>,
    phases: Vec<Measured>,
    errors: u64,
}

impl Running<'_> {
    fn repetitions(&mut self) -> Result<()> {
        let began = Instant::now();
        for repetition in 0..self.params.repetitions {
            let late = self.params.max_minutes > 0.0
                && began.elapsed().as_secs_f64() > self.params.max_minutes * 60.0;
            let rested = repetition == 0 || interrupt::sleep(self.params.delay);
            if late || !rested || interrupt::seen() {
                break;
            }
            let done = self.repetition(repetition);
            let removed = self.remove(repetition);
            done?;
            removed?;
        }
        Ok(())
    }

    fn repetition(&mut self, repetition: usize) -> Result<()> {
        let params = self.params;
        self.output.repetition_start();
        if params.write {
            self.prepare(repetition)?;
            self.written = None;
            self.phase(repetition, Direction::Write, Verify::No)?;
        }
        if params.check_write && !interrupt::seen() {
            self.compare(repetition)?;
        }
        if (params.read || params.check_read) && !interrupt::seen() {
            let verify = if params.check_read { Verify::Yes } else { Verify::No };
            params.cache.before_reading(&layout::files(params, repetition))?;
            self.phase(repetition, Direction::Read, verify)?;
        }
        Ok(())
    }

    /// Makes room for the write phase: directories, no old file, and a prefill if asked for.
    fn prepare(&self, repetition: usize) -> Result<()> {
        let params = self.params;
        if params.api == Api::Null {
            return Ok(());
        }
        for path in layout::files(params, repetition) {
            if params.unique_dir
                && let Some(parent) = path.parent()
            {
                std::fs::create_dir_all(parent)
                    .map_err(|error| Error::io("create", parent, &error))?;
            }
            if !params.use_existing {
                remove_file(&path)?;
            }
        }
        if params.random_prefill > 0 { self.prefill(repetition) } else { Ok(()) }
    }

    /// Writes the whole file once, in order, so that random writes overwrite.
    fn prefill(&self, repetition: usize) -> Result<()> {
        let mut params = self.params.clone();
        params.transfer = params.random_prefill.min(params.block);
        (params.random_offset, params.deadline, params.min_seconds) = (0, 0.0, 0.0);
        if !params.block.is_multiple_of(params.transfer) {
            return Err(Error::usage("-b is not a multiple of --randomPrefill"));
        }
        let lap = Lap {
            available: vec![params.transfers_per_task(); params.tasks],
            owners: (0..params.tasks).collect(),
            name: "prefill",
            direction: Direction::Write,
            verify: Verify::No,
            repetition,
            signature: self.signature,
            params: &params,
        };
        phase::run(&lap).check()
    }

    fn lap(&self, repetition: usize, direction: Direction, verify: Verify) -> Result<Lap<'_>> {
        let params = self.params;
        let all = params.transfers_per_task();
        let (owners, available) = match direction {
            Direction::Write => ((0..params.tasks).collect(), vec![self.limit(all)?; params.tasks]),
            Direction::Read => {
                let available = match &self.written {
                    Some(written) => written.clone(),
                    None => vec![self.limit(all)?; params.tasks],
                };
                (layout::readers(params, repetition), available)
            }
        };
        let name = if direction == Direction::Write { "write" } else { "read" };
        let signature = self.signature;
        Ok(Lap { params, name, direction, verify, repetition, signature, owners, available })
    }

    /// The transfers per task, if an earlier, worn-out run left its count.
    fn limit(&self, all: u64) -> Result<u64> {
        let params = self.params;
        let stored = match &params.status_file {
            Some(path) if !params.write => {
                keep::stored_iterations("-O stoneWallingStatusFile", path)?
            }
            _ => params.wear_out_iterations,
        };
        Ok(if stored > 0 { all.min(stored) } else { all })
    }

    fn phase(&mut self, repetition: usize, direction: Direction, verify: Verify) -> Result<()> {
        let files = layout::files(self.params, repetition);
        let probe = Probe::new(self.params, &files, direction);
        self.output.commencing(direction);
        let lap = self.lap(repetition, direction, verify)?;
        let outcome = phase::run(&lap);
        outcome.check()?;
        let complaints = lap.complaints(outcome.results());
        let mut measured = Measured::of(direction, repetition, &outcome);
        probe.judge(&mut measured, &lap.owners);
        if direction == Direction::Write {
            let written = outcome.results().iter().map(|report| report.transfers.load(SeqCst));
            // A minimum duration begins again from the front, so everything is written then.
            let all = self.params.transfers_per_task();
            self.written = Some(written.map(|count| count.min(all)).collect());
            self.store_iterations(&measured)?;
        }
        self.errors += measured.errors;
        self.show(measured, &complaints)
    }

    /// The read-back after writing, which is no phase of its own in the table.
    fn compare(&mut self, repetition: usize) -> Result<()> {
        self.output.note("Verifying contents of the file(s) just written.");
        let files = layout::files(self.params, repetition);
        self.params.cache.before_reading(&files)?;
        let lap = self.lap(repetition, Direction::Read, Verify::Yes)?;
        let outcome = phase::run(&lap);
        outcome.check()?;
        let errors: u64 = outcome.results().iter().map(|report| report.errors.load(SeqCst)).sum();
        let complaints = lap.complaints(outcome.results());
        self.errors += errors;
        self.output.verification("write", errors, &complaints);
        Ok(())
    }

    fn show(&mut self, measured: Measured, complaints: &[String]) -> Result<()> {
        let params = self.params;
        self.output.phase(params, &measured);
        if !complaints.is_empty() {
            self.output.verification(measured.name(), measured.errors, complaints);
        }
        let mut warnings = Vec::new();
        if params.outlier_seconds > 0.0 {
            warnings.extend(measured.outliers(params.outlier_seconds));
        }
        if measured.short > 0 {
            warnings.push(format!("{} transfers were short", measured.short));
        }
        warnings.iter().for_each(|warning| self.output.warn(warning));
        let strict = params.warnings_as_errors;
        let first = warnings.first().or(measured.warnings.first()).cloned();
        keep::rank_details(params, &measured)?;
        self.phases.push(measured);
        match first {
            Some(warning) if strict => Err(Error::failed(format!("--warningAsErrors: {warning}"))),
            _ => Ok(()),
        }
    }

    fn store_iterations(&self, measured: &Measured) -> Result<()> {
        match &self.params.status_file {
            Some(path) if self.params.deadline > 0.0 => {
                let most = measured.ranks.iter().map(|rank| rank.transfers);
                let iterations =
                    if self.params.wear_out { most.max() } else { most.min() }.unwrap_or(0);
                keep::store_iterations(path, iterations)
            }
            _ => Ok(()),
        }
    }

    /// Removes the files of a repetition unless they are to be kept.
    fn remove(&mut self, repetition: usize) -> Result<()> {
        let params = self.params;
        let keep = params.keep || (params.keep_with_error && self.errors > 0);
        let begun = params.write || !self.phases.is_empty();
        if keep || !begun || params.api == Api::Null {
            self.output.repetition_end();
            return Ok(());
        }
        let began = Instant::now();
        for path in layout::files(params, repetition) {
            remove_file(&path)?;
            if params.unique_dir
                && let Some(parent) = path.parent()
            {
                // The directory stays if it has other users' files.
                let _ = std::fs::remove_dir(parent);
            }
        }
        self.output.removed(began.elapsed().as_secs_f64(), repetition);
        self.output.repetition_end();
        Ok(())
    }
}

/// Removes a regular file; a missing file, or a device, counts as removed.
fn remove_file(path: &Path) -> Result<()> {
    if check::is_device(path) {
        return Ok(());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", path, &error))
        }
        _ => Ok(()),
    }
}
