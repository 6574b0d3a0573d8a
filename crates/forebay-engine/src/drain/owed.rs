//! What was dirty of a file when an order was given.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::core::portion::FLIGHT_BYTES;
use crate::core::report::{Progress, Report};
use crate::drain::parcel::Flown;
use crate::files::file::{File, Inner, failure};

/// Bytes of one file that were dirty when the order was given.
pub(crate) struct Owed {
    pub file: Arc<File>,
    /// What is left of them.
    pub runs: Vec<(u64, u64)>,
    pub bytes: u64,
    /// Of `bytes`, what progress shows as done.
    pub credited: u64,
    pub copied: u64,
    /// Flights of it that came to nothing because it was changed under them.
    disturbed: u32,
}

/// As many runs are offered to a flight as it can take pages.
pub(crate) const PART_RUNS: usize = (FLIGHT_BYTES / 4096) as usize;

impl Owed {
    pub fn of(file: Arc<File>, inner: &Inner) -> Owed {
        let runs = inner.state.dirty(inner.size());
        Owed { file, runs, bytes: inner.dirty_charged(), credited: 0, copied: 0, disturbed: 0 }
    }

    pub fn is_unseen(&self) -> bool {
        self.file.lock().state.is_unseen()
    }

    /// What the next flight is to take; it may leave some of it.
    pub fn next_part(&self) -> Vec<(u64, u64)> {
        self.runs[..self.runs.len().min(PART_RUNS)].to_vec()
    }

    pub fn is_paid(&self) -> bool {
        self.runs.is_empty()
    }

    /// Takes the part that was copied, the first one, off what is owed, as far as it was.
    pub fn take_off(&mut self, part: &[(u64, u64)], flown: Flown) {
        self.copied += flown.bytes;
        let Some(end) = part.last().map(|run| run.1.min(flown.upto)) else { return };
        self.runs.retain(|run| run.1 > end);
        if let Some(first) = self.runs.first_mut() {
            first.0 = first.0.max(end);
        }
    }

    /// It was changed under a flight. Returns how often by now.
    pub fn disturb(&mut self) -> u32 {
        self.disturbed += 1;
        self.disturbed
    }

    pub fn credit(&mut self, copied: u64, progress: &Progress) {
        let credit = copied.min(self.bytes - self.credited);
        self.credited += credit;
        progress.done_bytes.fetch_add(credit, Relaxed);
    }

    pub fn end(&mut self, progress: &Progress, report: &mut Report) {
        self.credit(self.bytes, progress);
        report.files += 1;
        report.bytes += self.copied;
        progress.done_files.fetch_add(1, Relaxed);
    }

    pub fn fail(&self, error: &forebay_backing::Error, progress: &Progress, report: &mut Report) {
        let failure = failure(&self.file.lock(), error);
        progress.failed(&failure);
        report.failures.push(failure);
    }
}
