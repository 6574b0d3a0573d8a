//! The debts of the drain: for each order with a deadline, the bytes that were dirty when the order
//! was given, less those that have reached the backing store since.
//!
//! Debts are ranges, not times: dirty bytes have the wall clock's times, and that clock may be set back.

use std::collections::BTreeMap;

use crate::core::id::FileId;
use crate::core::ranges::{Ranges, Run, State};
use crate::files::file::Inner;
use forebay_base::lock::{Mutex, MutexGuard, Rank};

pub(crate) struct Debts(Mutex<DebtTable>);

impl Default for Debts {
    fn default() -> Debts {
        Debts(Mutex::new(Rank::Orders, DebtTable::default()))
    }
}

#[derive(Default)]
struct DebtTable {
    last_order: u64,
    /// Debts by file and order.
    entries: BTreeMap<(FileId, u64), Debt>,
}

struct Debt {
    left: Ranges,
    /// Whether a flight was under way that may have begun before the order.
    outrun: bool,
    /// Whether a flight that began later has landed: it also settles changes that are not in ranges.
    landed: bool,
}

impl Debts {
    fn table(&self) -> MutexGuard<'_, DebtTable> {
        self.0.lock()
    }

    /// Returns the number of a new order.
    pub fn begin(&self) -> u64 {
        let mut table = self.table();
        table.last_order += 1;
        table.last_order
    }

    /// Records the bytes of a file that one order owes, under the file's lock.
    pub fn incur(&self, order: u64, file: FileId, inner: &Inner, runs: &[(u64, u64)]) {
        let mut left = Ranges::None;
        runs.iter().for_each(|&(start, end)| left.set(start, end, State::Dirty));
        let outrun = inner.in_use().is_some_and(|live| live.flight.is_some());
        let debt = Debt { left, outrun, landed: false };
        self.table().entries.insert((file, order), debt);
    }

    /// Pays with a flight of the file that has landed: `copied` is on the backing store as of the
    /// beginning of the flight, `rewritten` was written since.
    pub fn pay(&self, file: FileId, copied: &[(u64, u64)], rewritten: &Ranges) {
        let mut table = self.table();
        for (_, debt) in table.entries.range_mut((file, 0)..=(file, u64::MAX)) {
            for &(start, end) in copied {
                match debt.outrun {
                    // A rewritten byte may be owed: the write may have come before the order.
                    true => rewritten
                        .gaps(start, end)
                        .into_iter()
                        .for_each(|(start, end)| debt.left.clear(start, end)),
                    false => debt.left.clear(start, end),
                }
            }
            debt.landed |= !debt.outrun;
            debt.outrun = false;
        }
    }

    /// Whether no byte that was owed is dirty any more.
    pub fn are_paid(&self, order: u64, file: FileId, inner: &Inner) -> bool {
        let table = self.table();
        let Some(debt) = table.entries.get(&(file, order)) else { return true };
        let dirty = |run: Run| inner.state.is_dirty_within(run.start, run.end);
        !inner.state.is_dirty() || (debt.landed && !debt.left.iter().any(dirty))
    }

    pub fn end(&self, order: u64) {
        self.table().entries.retain(|(_, of), _| *of != order);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::bed::bed;
    use crate::core::state::Change;
    use crate::files::file::Trouble;
    use crate::{Order, Progress};

    // S-5
    #[test]
    fn an_order_with_a_deadline_is_kept_though_the_clock_was_set_back() {
        let bed = bed("debts-clock");
        let hour = Duration::from_secs(3600);
        {
            // As if the clock had gone back an hour after the write; and the drain leaves the file alone.
            let mut inner = bed.file.lock();
            let since = bed.engine.files.time().ms() + hour.as_millis() as u64;
            bed.engine.files.commit(&bed.file, &mut inner, Change::Aged { since }).unwrap();
            let (error, retry_at) = ("a flush failed".into(), Instant::now() + hour);
            inner.note_trouble(Some(Trouble { error, count: 1, retry_at }));
        }
        let by = Some(Instant::now() + Duration::from_millis(400));
        let report =
            bed.engine.drain.execute(&Order { by, ..Order::default() }, &Progress::default());
        assert!(report.failures.is_empty() && report.files == 1, "{report:?}");
        assert!(!bed.file.lock().state.is_dirty(), "it said done");
    }

    #[test]
    fn a_debt_is_paid_by_what_was_copied_since_and_not_by_what_was_under_way() {
        let bed = bed("debts-ranges");
        let (debts, id) = (Debts::default(), bed.file.id);
        let mut inner = bed.file.lock();
        let paid = |inner: &Inner, order| debts.are_paid(order, id, inner);
        let rewritten = |start, end| {
            let mut ranges = Ranges::None;
            ranges.set(start, end, State::Dirty);
            ranges
        };
        let first = debts.begin();
        debts.incur(first, id, &inner, &[(0, 100)]);
        debts.pay(id, &[(0, 50)], &Ranges::None);
        assert!(!paid(&inner, first), "half of it");
        inner.live().begin_flight();
        let second = debts.begin();
        debts.incur(second, id, &inner, &[(0, 100)]);
        inner.live().end_flight();
        debts.pay(id, &[(0, 100)], &rewritten(10, 20));
        assert!(paid(&inner, first), "written since, it is no part of the order");
        assert!(!paid(&inner, second), "written before");
        debts.pay(id, &[(0, 100)], &rewritten(10, 20));
        assert!(paid(&inner, second));
        debts.end(first);
        debts.end(second);
        assert!(debts.table().entries.is_empty());
    }
}
