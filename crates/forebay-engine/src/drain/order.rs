//! Flushing on request: bytes that are dirty at one moment are copied to the backing store and synced there.
//!
//! Invariants:
//! - O1: an order owes the bytes that were dirty when it was given. A writer that goes on neither
//!   lengthens it nor displaces bytes that were dirty before.
//! - O2: files that are to come last begin when all others have ended well, and not at all
//!   otherwise. The drain leaves them alone until then, and every other order that does not name
//!   them puts them last, too.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Builder;
use std::time::{Duration, Instant};

use forebay_backing::Kind;
use forebay_base::glob::Pattern;

use crate::core::id::FileId;
use crate::core::report::{Failure, Meter, Progress, Report};
use crate::drain::flush::Left;
use crate::drain::holds::{Hold, is_within};
use crate::drain::owed::Owed;
use crate::drain::parcel::{Flown, Outcome, Pick, Take};
use crate::drain::{Drain, PAUSE};
use crate::files::file::{File, Inner};
use forebay_base::lock::{Mutex, Rank};

/// How long an order waits at its end for the flushed files to be closed.
const CLOSING_MAX: Duration = Duration::from_secs(1);

/// The scope of a flush, and its manner.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// The files at or below one of these paths; all files if the list is empty.
    pub scope: Vec<PathBuf>,
    /// Files that are published once all others are on the backing store.
    pub last: Option<Pattern>,
    /// The drain is to be done by then, at an even rate; the order flushes the rest then.
    pub by: Option<Instant>,
}

/// The number of files in one batch.
const BATCH_FILES: usize = 64;

/// The bytes of one batch, about. The sync of the backing store after each batch is part of the
/// pace that a waiting caller is told, and unsynced bytes are of all batches together.
const BATCH_BYTES: u64 = (256 << 20) / BATCHES as u64;

/// The number of batches at once: one is copied while the tier is synced for the next and the
/// backing store for the last.
const BATCHES: usize = 3;

/// How often an order that leaves the work to the drain checks its progress.
const LOOK: Duration = Duration::from_millis(50);

impl Order {
    pub fn of(scope: &[PathBuf]) -> Order {
        Order { scope: scope.to_vec(), ..Order::default() }
    }

    fn puts_last(&self, inner: &Inner) -> bool {
        let fits = |pattern: &Pattern| is_within(inner, &self.scope, |path| pattern.matches(path));
        self.last.as_ref().is_some_and(fits)
    }

    /// Whether the order names this very file, and not only a directory above it.
    fn names(&self, inner: &Inner) -> bool {
        self.scope.iter().any(|path| inner.state.paths.has(path))
    }
}

impl Drain {
    /// Keeps the drain from files below `scope` that match `last`.
    pub fn hold(&self, scope: &[PathBuf], last: &Pattern) -> Hold {
        let holds = self.holds.clone();
        let mut table = holds.table();
        table.last_id += 1;
        let id = table.last_id;
        Arc::make_mut(&mut table.entries).push((id, scope.to_vec(), last.clone()));
        drop(table);
        Hold { holds, id }
    }

    /// Copies the present holds, to last beyond their orders.
    pub fn keep_holds(&self) -> Vec<Hold> {
        let entries = self.holds.table().entries.clone();
        entries.iter().map(|(_, scope, last)| self.hold(scope, last)).collect()
    }

    /// Flushes everything below `scope` that is dirty now, and syncs it on the backing store (S5).
    /// Bytes that could not be flushed stay dirty and are in the report.
    pub fn flush(self: &Arc<Self>, scope: &[PathBuf], progress: &Progress) -> Report {
        self.execute(&Order::of(scope), progress)
    }

    /// Flushes everything that is dirty now and part of the order, and syncs it on the backing store (S5).
    pub fn execute(self: &Arc<Self>, order: &Order, progress: &Progress) -> Report {
        // A file that is not written past the daemon any more can become clean.
        self.passed.end_lingering();
        let _hold = order.last.as_ref().map(|last| self.hold(&order.scope, last));
        let found = self.search(&order.scope, progress);
        let (mut others, mut last) = self.owed(order, found);
        let owed = || others.iter().chain(&last);
        progress.total_files.fetch_add(owed().count() as u64, Relaxed);
        progress.total_bytes.fetch_add(owed().map(|owed| owed.bytes).sum(), Relaxed);
        let mut report = Report::default();
        if let Some(by) = order.by {
            self.leave_to_drain(&mut others, by, progress, &mut report);
        }
        self.hurry(others, progress, &mut report);
        match report.cancelled || !report.failures.is_empty() {
            false => self.hurry(last, progress, &mut report),
            true if report.cancelled => {}
            true => {
                let failed = report.failures.len();
                last.drain(..).for_each(|owed| held_back(&owed, failed, progress, &mut report));
            }
        }
        // Without this sync a power loss could bring back the record of older durable bytes, and a
        // flush of them would overwrite these (S5).
        let _ = self.files.note_tier(self.files.index().sync());
        // A program that was flushed cannot be executed on the store while it is open for writing.
        self.home.reaper().rest(CLOSING_MAX);
        report
    }

    /// Returns the files that are dirty now, those in `found` included: those that come first, and
    /// those that come last.
    fn owed(&self, order: &Order, found: Vec<Arc<File>>) -> (Vec<Owed>, Vec<Owed>) {
        let (mut others, mut last) = (Vec::new(), Vec::new());
        let mut files = self.files.select_dirty(&order.scope);
        let selected: BTreeSet<FileId> = files.iter().map(|file| file.id).collect();
        files.extend(found.into_iter().filter(|file| !selected.contains(&file.id)));
        for file in files {
            let inner = file.lock();
            if !inner.state.is_dirty() {
                continue;
            }
            let is_last =
                order.puts_last(&inner) || (self.holds.covers(&inner) && !order.names(&inner));
            let owed = Owed::of(file.clone(), &inner);
            drop(inner);
            if is_last { last.push(owed) } else { others.push(owed) }
        }
        (others, last)
    }

    /// Waits for the drain to do the work until `by`, and takes off the files that it finished.
    fn leave_to_drain(
        &self,
        owed: &mut Vec<Owed>,
        by: Instant,
        progress: &Progress,
        report: &mut Report,
    ) {
        let debts = &self.debts;
        let order = debts.begin();
        for owed in owed.iter() {
            debts.incur(order, owed.file.id, &owed.file.lock(), &owed.runs);
        }
        while !owed.is_empty() && self.files.time().now() < by && !progress.is_cancelled() {
            self.drain_by_at_latest(by);
            owed.retain_mut(|owed| {
                let inner = owed.file.lock();
                let paid = debts.are_paid(order, owed.file.id, &inner);
                let left = if paid { 0 } else { inner.dirty_charged() };
                drop(inner);
                owed.credit_drained(left, progress);
                if paid {
                    owed.end(progress, report);
                }
                !paid
            });
            self.files
                .time()
                .sleep(LOOK.min(by.saturating_duration_since(self.files.time().now())));
        }
        debts.end(order);
        self.end_drain_by(by);
        report.cancelled |= progress.is_cancelled();
    }

    /// Flushes now, at full speed.
    fn hurry(self: &Arc<Self>, owed: Vec<Owed>, progress: &Progress, report: &mut Report) {
        let _demand = self.valve.demand();
        let batches = Mutex::new(Rank::Orders, batches(owed));
        let next = || batches.lock().next();
        let work = &|| {
            let mut report = Report::default();
            while let Some(mut batch) = next().filter(|_| !report.cancelled) {
                while !batch.is_empty() && !report.cancelled {
                    batch = self.round(batch, progress, &mut report);
                }
            }
            report
        };
        let others = BATCHES.min(batches.lock().len()).saturating_sub(1);
        std::thread::scope(|scope| {
            // If threads cannot be started the work takes longer.
            let time = &self.files.time();
            let spawn = |_| {
                let part = time.part();
                let work = move || {
                    part.for_life();
                    work()
                };
                Builder::new().name("fb-order".into()).spawn_scoped(scope, work).ok()
            };
            let others: Vec<_> = (0..others).filter_map(spawn).collect();
            report.add(work());
            for other in others {
                report.add(time.join(other).expect("no panic inside"));
            }
            report.failures.sort_by(|a, b| a.path.cmp(&b.path));
        });
    }

    /// Runs one flight of each file; returns the files of which more is owed.
    fn round(
        self: &Arc<Self>,
        batch: Vec<Owed>,
        progress: &Progress,
        report: &mut Report,
    ) -> Vec<Owed> {
        if progress.is_cancelled() {
            report.cancelled = true;
            return Vec::new();
        }
        let parts: Vec<Vec<(u64, u64)>> = batch.iter().map(Owed::next_part).collect();
        let pick = |(owed, part): (&Owed, &Vec<(u64, u64)>)| -> Pick {
            (owed.file.clone(), Take::Runs(part.clone()))
        };
        let picks: Vec<Pick> = batch.iter().zip(&parts).map(pick).collect();
        let meter = Arc::new(Meter::of(&progress.copying));
        let cancelled = || progress.is_cancelled();
        let outcomes = self.fly(&picks, &cancelled, Some(&meter));
        let (mut rest, mut disturbed) = (Vec::new(), false);
        for ((mut owed, part), outcome) in batch.into_iter().zip(parts).zip(outcomes) {
            if let Outcome::Flushed(Flown { bytes, .. }) = &outcome {
                owed.credit(*bytes, progress);
            }
            match self.go_on(&mut owed, &part, outcome, &cancelled) {
                Ok(Left::Nothing) => owed.end(progress, report),
                Ok(left) => {
                    disturbed |= left == Left::Disturbed;
                    rest.push(owed);
                }
                Err(e) if e.kind() == Kind::Interrupted => report.cancelled = true,
                Err(error) => owed.fail(&error, progress, report),
            }
        }
        meter.close();
        if disturbed {
            self.files.time().sleep(PAUSE);
        }
        rest
    }
}

/// Returns the files in batches, in their order.
fn batches(owed: Vec<Owed>) -> std::vec::IntoIter<Vec<Owed>> {
    let mut batches: Vec<Vec<Owed>> = Vec::new();
    let mut bytes = 0;
    for owed in owed {
        let fits = |batch: &&mut Vec<Owed>| batch.len() < BATCH_FILES && bytes < BATCH_BYTES;
        let own = owed.bytes;
        match batches.last_mut().filter(fits) {
            Some(batch) => batch.push(owed),
            None => {
                bytes = 0;
                batches.push(vec![owed]);
            }
        }
        bytes += own;
    }
    batches.into_iter()
}

fn held_back(owed: &Owed, failed: usize, progress: &Progress, report: &mut Report) {
    let path = owed.file.lock().state.display_path();
    let error = format!("to be published last, and {failed} before it failed");
    let failure = Failure { path, state: "held-back", error };
    progress.failed(&failure);
    report.failures.push(failure);
}
