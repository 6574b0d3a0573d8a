//! The bytes of a file that were dirty when an order was given.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::core::portion::FLIGHT_BYTES;
use crate::core::report::{Progress, Report};
use crate::drain::parcel::Flown;
use crate::files::file::{File, Inner, failure};

/// Bytes of one file that were dirty when the order was given.
pub(crate) struct Owed {
    pub file: Arc<File>,
    /// The ranges that are not copied yet.
    pub runs: Vec<(u64, u64)>,
    pub bytes: u64,
    /// The part of `bytes` that progress shows as done.
    credited: u64,
    copied: u64,
    /// Flights of the file that came to nothing because it was changed under them.
    disturbed: u32,
}

/// The number of runs that a flight is offered: a flight has this many pages at most.
pub(crate) const PART_RUNS: usize = (FLIGHT_BYTES / 4096) as usize;

impl Owed {
    pub fn of(file: Arc<File>, inner: &Inner) -> Owed {
        let runs = inner.state.dirty(inner.size());
        Owed { file, runs, bytes: inner.dirty_charged(), credited: 0, copied: 0, disturbed: 0 }
    }

    pub fn is_unseen(&self) -> bool {
        self.file.lock().state.is_unseen()
    }

    /// Returns the runs that the next flight is to take; it may leave some of them.
    pub fn next_part(&self) -> Vec<(u64, u64)> {
        self.runs[..self.runs.len().min(PART_RUNS)].to_vec()
    }

    pub fn is_paid(&self) -> bool {
        self.runs.is_empty()
    }

    /// Takes the copied bytes of `part`, the first part, off the ranges that are owed.
    pub fn take_off(&mut self, part: &[(u64, u64)], flown: Flown) {
        self.copied += flown.bytes;
        let Some(end) = part.last().map(|run| run.1.min(flown.upto)) else { return };
        self.runs.retain(|run| run.1 > end);
        if let Some(first) = self.runs.first_mut() {
            first.0 = first.0.max(end);
        }
    }

    /// Counts that the file was changed under a flight; returns the new count.
    pub fn disturb(&mut self) -> u32 {
        self.disturbed += 1;
        self.disturbed
    }

    /// Shows `bytes` more as done.
    pub fn credit(&mut self, bytes: u64, progress: &Progress) {
        let credit = bytes.min(self.bytes - self.credited);
        self.credited += credit;
        progress.done_bytes.fetch_add(credit, Relaxed);
    }

    /// Takes the drain's copies for the order's own: all but `left` of what is owed is done.
    pub fn credit_drained(&mut self, left: u64, progress: &Progress) {
        self.copied = self.bytes.saturating_sub(left);
        self.credit(self.copied.saturating_sub(self.credited), progress);
    }

    pub fn end(&mut self, progress: &Progress, report: &mut Report) {
        self.credit(self.bytes, progress);
        progress.by_others.fetch_add(self.bytes.saturating_sub(self.copied), Relaxed);
        progress.done_files.fetch_add(1, Relaxed);
        report.files += 1;
        report.bytes += self.bytes.max(self.copied);
    }

    pub fn fail(&self, error: &forebay_backing::Error, progress: &Progress, report: &mut Report) {
        let failure = failure(&self.file.lock(), error);
        progress.failed(&failure);
        report.failures.push(failure);
    }
}
