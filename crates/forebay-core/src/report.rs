//! The reports of the engine: status, statistics, listings, progress and results. Everything here serializes to
//! JSON as it stands; field names are part of the interface.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_backing::metrics::OpCounts;
use serde::{Deserialize, Serialize};

use crate::config::Attachment;
use forebay_base::lock::{Mutex, Rank};

/// The state of an engine at one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Status {
    #[serde(flatten)]
    pub gauges: Gauges,
    pub attachment: Attachment,
    /// Files whose flush failed or conflicts, at most 100, with the reason.
    pub troubles: Vec<Failure>,
}

impl Deref for Status {
    type Target = Gauges;

    fn deref(&self) -> &Gauges {
        &self.gauges
    }
}

impl DerefMut for Status {
    fn deref_mut(&mut self) -> &mut Gauges {
        &mut self.gauges
    }
}

/// The part of the status that is read as it is shown. Bytes unless the name says otherwise.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Gauges {
    pub tier_bytes: u64,
    /// How much less that is than `tier-size`, or without that than a tenth of its file system, since other files
    /// take the room.
    pub tier_short_bytes: u64,
    pub used_bytes: u64,
    pub clean_bytes: u64,
    /// Copies that are kept for other members of the store.
    pub copies_bytes: u64,
    pub dirty_bytes: u64,
    pub flushing_bytes: u64,
    pub pinned_bytes: u64,
    pub files: u64,
    pub dirty_files: u64,
    pub failed_files: u64,
    pub conflicted_files: u64,
    pub pinned_files: u64,
    pub open_files: u64,
    /// Files that were at work for so long that they could not be counted with the others.
    pub busy_files: u64,
    pub passthrough_writers: u64,
    pub oldest_dirty_age_secs: f64,
    /// The governor's term that rules now: `none`, `idle`, `age`, `level`, `drain-by`, `hard-mark`,
    /// `flush`.
    pub governor: String,
    /// Bytes per second that became dirty lately, that the drain copied, and that the backing store
    /// takes at most.
    pub arrival_bytes_per_sec: u64,
    pub drain_bytes_per_sec: u64,
    pub service_bytes_per_sec: u64,
    /// Seconds until writers find no room; absent while the level does not rise.
    pub full_in_secs: Option<f64>,
    /// Seconds until nothing is dirty at these rates; absent while the level does not fall.
    pub clean_in_secs: Option<f64>,
    /// Copies in flight that the governor allows.
    pub copies_at_once: u32,
    /// The limit of the drain now: `nothing-dirty`, `not-yet-due`, `pace` (the ruling term, or what is on its
    /// way, asks for no more), `latency-target`, `rate-max`, `schedule`, `hold`, `backing-store`, `backing-away`,
    /// `detached`; where no byte can be taken `settle`, `in-flight`, `held-for-last`, `failed-files`,
    /// `open-writers`, `conflicts`.
    pub limited_by: String,
    pub backing_available: bool,
    /// The last error of the backing store, and how many seconds ago it was.
    pub last_error: Option<(String, f64)>,
}

/// Counters since start, and the latencies of every operation on the fast tier.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    pub counters: BTreeMap<&'static str, u64>,
    pub tier: BTreeMap<&'static str, OpCounts>,
}

/// Dirty bytes that are at most this old.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AgeBucket {
    /// `None` for the last: any age.
    pub up_to_secs: Option<u64>,
    pub bytes: u64,
}

/// A file whose bytes were moved by recent requests.
#[derive(Debug, Clone, Serialize)]
pub struct BusyFile {
    pub path: PathBuf,
    pub bytes_per_sec: u64,
}

/// One cached file in a listing.
#[derive(Debug, Clone, Serialize)]
pub struct FileInfo {
    pub path: PathBuf,
    pub size: u64,
    pub cached_bytes: u64,
    pub dirty_bytes: u64,
    pub pinned: bool,
    /// `clean`, `dirty`, `flushing`, `failed` or `conflict`.
    pub state: &'static str,
    pub dirty_age_secs: Option<f64>,
    pub error: Option<String>,
    /// The path of its shadow file in the tier's directory.
    pub shadow: String,
}

/// The progress of a long operation. Shared between the worker and its watchers; `cancel` asks the worker to
/// stop at the next safe point.
#[derive(Debug)]
pub struct Progress {
    pub total_bytes: AtomicU64,
    pub done_bytes: AtomicU64,
    /// The part of `done_bytes` that others have copied.
    pub by_others: AtomicU64,
    pub total_files: AtomicU64,
    pub done_files: AtomicU64,
    pub failed_files: AtomicU64,
    /// Bytes of batches under way that are copied and not yet in `done_bytes`.
    pub copying: Arc<AtomicU64>,
    failures: Mutex<Vec<Failure>>,
    cancelled: AtomicBool,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            total_bytes: AtomicU64::default(),
            done_bytes: AtomicU64::default(),
            by_others: AtomicU64::default(),
            total_files: AtomicU64::default(),
            done_files: AtomicU64::default(),
            failed_files: AtomicU64::default(),
            copying: Arc::default(),
            failures: Mutex::new(Rank::Progress, Vec::new()),
            cancelled: AtomicBool::default(),
        }
    }
}

/// Counts the bytes that one batch has copied, until it is closed.
pub struct Meter {
    sum: Arc<AtomicU64>,
    own: Mutex<Option<u64>>,
}

impl Meter {
    pub fn of(sum: &Arc<AtomicU64>) -> Meter {
        Meter { sum: sum.clone(), own: Mutex::new(Rank::Progress, Some(0)) }
    }

    pub fn add(&self, bytes: u64) {
        if let Some(own) = &mut *self.own.lock() {
            *own += bytes;
            self.sum.fetch_add(bytes, Relaxed);
        }
    }

    /// Ends the count: bytes that an abandoned copy still adds do not count.
    pub fn close(&self) {
        let own = self.own.lock().take();
        self.sum.fetch_sub(own.unwrap_or(0), Relaxed);
    }
}

/// The failures that can be watched while the work goes on; the report has all of them.
const FAILURES_WATCHED: usize = 1000;

impl Progress {
    /// Done bytes, plus those under way.
    pub fn moved_bytes(&self) -> u64 {
        let moved = self.done_bytes.load(Relaxed) + self.copying.load(Relaxed);
        moved.min(self.total_bytes.load(Relaxed))
    }

    pub fn failed(&self, failure: &Failure) {
        self.failed_files.fetch_add(1, Relaxed);
        let mut failures = self.failures.lock();
        if failures.len() < FAILURES_WATCHED {
            failures.push(failure.clone());
        }
    }

    pub fn failures(&self) -> Vec<Failure> {
        self.failures.lock().clone()
    }

    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    pub path: PathBuf,
    /// `failed`, `conflict`, `missing` (no file has the name), `held-back`: to be flushed last, while other
    /// files failed; or [`PERISHABLE`].
    pub state: &'static str,
    pub error: String,
}

/// The state of a file whose dirty bytes stay in a tier that could not make them durable: they do not survive a
/// restart of the machine.
pub const PERISHABLE: &str = "perishable";

/// The result of a long operation.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    pub files: u64,
    /// Of a flush: what was dirty when it began and is home, whoever has copied it.
    pub bytes: u64,
    pub cancelled: bool,
    pub failures: Vec<Failure>,
}

impl Report {
    /// Adds the result of a later part.
    pub fn add(&mut self, later: Report) {
        self.files += later.files;
        self.bytes += later.bytes;
        self.cancelled |= later.cancelled;
        self.failures.extend(later.failures);
    }
}

#[cfg(test)]
#[cfg(debug_assertions)]
mod tests {
    use super::*;
    use forebay_threads::explored::{explore, spawn};

    /// A copy's addition and the batch's subtraction each happen under the lock: if [`Meter::add`] raised the
    /// sum after releasing it, the sum could fall below zero.
    #[test]
    fn nothing_is_left_of_a_meter_that_is_closed_under_any_schedule() {
        explore(|| {
            let sum = Arc::new(AtomicU64::new(0));
            let meter = Arc::new(Meter::of(&sum));
            let copies = [3, 4].map(|bytes| {
                let (meter, sum) = (meter.clone(), sum.clone());
                spawn(move || {
                    meter.add(bytes);
                    assert!(sum.load(Relaxed) <= 7, "it was taken off before it was added");
                })
            });
            meter.close();
            for copy in copies {
                copy.join().unwrap();
            }
            assert_eq!(sum.load(Relaxed), 0);
        });
    }
}
