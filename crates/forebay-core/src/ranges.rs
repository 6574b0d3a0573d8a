//! The states of a file's bytes: a map of disjoint, sorted, half-open ranges.
//!
//! Pure. A byte without a run is absent. Neighbors in the same state are always merged, so the
//! number of runs is the smallest that says the same (R1), and two equal coverages are `==`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The state of a present byte. Absent bytes have no state: the backing store has their truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum State {
    /// Equal to the backing store's byte at the recorded version.
    Clean,
    /// Newer than the backing store, and not known to survive a loss of power.
    Dirty,
    /// Newer than the backing store, and on stable storage of the fast tier (S3). Overwriting
    /// such a byte leaves it `Durable`: after a power loss it holds the old or the new value.
    Durable,
    /// As `Clean`, and on stable storage of the fast tier; after a loss of power it counts as
    /// `Durable`, and is flushed again. A program that writes it and syncs needs no new record:
    /// this one holds. It must be `Clean` again, durably, before it may leave the tier or differ
    /// from the backing store.
    Kept,
}

impl State {
    pub fn is_dirty(self) -> bool {
        matches!(self, State::Dirty | State::Durable)
    }

    /// Whether the byte in the tier is the one that counts after a loss of power.
    pub fn outlasts_power(self) -> bool {
        matches!(self, State::Durable | State::Kept)
    }
}

/// One stretch `[start, end)` in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub start: u64,
    pub end: u64,
    pub state: State,
}

/// A stretch and its new state; `None` is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub start: u64,
    pub end: u64,
    pub state: Option<State>,
}

impl Mark {
    pub fn of((start, end): (u64, u64), state: State) -> Mark {
        Mark { start, end, state: Some(state) }
    }

    pub fn absent((start, end): (u64, u64)) -> Mark {
        Mark { start, end, state: None }
    }
}

impl Run {
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// A set of disjoint runs. One run, the common case by far, costs no allocation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Run>", into = "Vec<Run>")]
pub enum Ranges {
    #[default]
    None,
    One(Run),
    Many(Box<Runs>),
}

/// Several runs by their start, with the bytes in each state kept as a sum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Runs {
    map: BTreeMap<u64, Run>,
    sums: [u64; 4],
}

impl Runs {
    fn insert(&mut self, run: Run) {
        self.sums[run.state as usize] += run.bytes();
        if let Some(old) = self.map.insert(run.start, run) {
            self.sums[old.state as usize] -= old.bytes();
        }
    }

    fn remove(&mut self, start: u64) -> Option<Run> {
        let run = self.map.remove(&start)?;
        self.sums[run.state as usize] -= run.bytes();
        Some(run)
    }
}

impl Ranges {
    pub fn whole(len: u64, state: State) -> Ranges {
        match len {
            0 => Ranges::None,
            _ => Ranges::One(Run { start: 0, end: len, state }),
        }
    }

    pub fn from_runs(runs: impl IntoIterator<Item = Run>) -> Ranges {
        let mut ranges = Ranges::None;
        for run in runs {
            ranges.set(run.start, run.end, run.state);
        }
        ranges
    }

    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        let (one, many) = match self {
            Ranges::None => (None, None),
            Ranges::One(run) => (Some(*run), None),
            Ranges::Many(runs) => (None, Some(runs.map.values().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Runs that meet `[start, end)`, cut to it.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Run> + '_ {
        let (one, many) = match self {
            Ranges::None => (None, None),
            Ranges::One(run) => (Some(*run), None),
            Ranges::Many(runs) => {
                let map = &runs.map;
                let first = map
                    .range(..=start)
                    .next_back()
                    .filter(|(_, run)| run.end > start)
                    .map_or(start, |(key, _)| *key);
                (None, Some(map.range(first..end.max(first)).map(|(_, run)| *run)))
            }
        };
        one.into_iter().chain(many.into_iter().flatten()).filter_map(move |run| {
            let cut = Run { start: run.start.max(start), end: run.end.min(end), ..run };
            (cut.start < cut.end).then_some(cut)
        })
    }

    /// Stretches of `[start, end)` that are absent.
    pub fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = start;
        for run in self.within(start, end) {
            if run.start > at {
                gaps.push((at, run.start));
            }
            at = run.end;
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    pub fn covers(&self, start: u64, end: u64) -> bool {
        if start >= end {
            return true;
        }
        // Files of thousands of runs are often asked whether all their bytes are here: the sum of
        // present bytes says no, or, if no byte lies outside, yes.
        let present = self.bytes(|_| true);
        if present < end - start {
            return false;
        }
        let outside = |run: Run| run.start < start || run.end > end;
        match self.edges() {
            Some((first, last)) if outside(first) || outside(last) => {
                self.first_gap(start, end).is_none()
            }
            _ => present == end - start,
        }
    }

    /// The end of the last run.
    pub fn end(&self) -> u64 {
        self.edges().map_or(0, |(_, last)| last.end)
    }

    /// The first and the last run.
    fn edges(&self) -> Option<(Run, Run)> {
        match self {
            Ranges::None => None,
            Ranges::One(run) => Some((*run, *run)),
            Ranges::Many(runs) => {
                let (first, last) = (runs.map.first_key_value()?, runs.map.last_key_value()?);
                Some((*first.1, *last.1))
            }
        }
    }

    /// The first absent stretch of `[start, end)`.
    pub fn first_gap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let mut at = start;
        for run in self.within(start, end) {
            if run.start > at {
                return Some((at, run.start));
            }
            at = run.end;
        }
        (at < end).then_some((at, end))
    }

    /// Whether every byte of `[start, end)` is dirty already.
    pub fn all_dirty(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        for run in self.within(start, end) {
            if run.start > at || !run.state.is_dirty() {
                return false;
            }
            at = run.end;
        }
        at >= end
    }

    pub fn any_dirty(&self) -> bool {
        self.bytes(State::is_dirty) > 0
    }

    pub fn bytes(&self, pick: impl Fn(State) -> bool) -> u64 {
        match self {
            Ranges::None => 0,
            Ranges::One(run) => u64::from(pick(run.state)) * run.bytes(),
            Ranges::Many(runs) => {
                let all = [State::Clean, State::Dirty, State::Durable, State::Kept];
                all.iter().filter(|s| pick(**s)).map(|s| runs.sums[*s as usize]).sum()
            }
        }
    }

    pub fn count(&self) -> usize {
        match self {
            Ranges::None => 0,
            Ranges::One(_) => 1,
            Ranges::Many(runs) => runs.map.len(),
        }
    }

    /// Puts `[start, end)` into `state`, whatever its state was.
    pub fn set(&mut self, start: u64, end: u64, state: State) {
        if start >= end {
            return;
        }
        if let Some(merged) = self.merge_one(start, end, state) {
            *self = Ranges::One(merged);
            return;
        }
        let mut run = Run { start, end, state };
        let runs = self.many();
        carve(runs, start, end);
        if let Some((&key, left)) = runs.map.range(..start).next_back()
            && left.end == start
            && left.state == state
        {
            run.start = left.start;
            runs.remove(key);
        }
        if let Some(right) = runs.map.get(&end).copied()
            && right.state == state
        {
            run.end = right.end;
            runs.remove(end);
        }
        runs.insert(run);
        self.shrink();
    }

    /// Makes `[start, end)` absent.
    pub fn clear(&mut self, start: u64, end: u64) {
        if start >= end || matches!(self, Ranges::None) {
            return;
        }
        carve(self.many(), start, end);
        self.shrink();
    }

    /// The cases that stay a single run, without touching the heap.
    fn merge_one(&self, start: u64, end: u64, state: State) -> Option<Run> {
        match self {
            Ranges::None => Some(Run { start, end, state }),
            Ranges::One(run) if run.start >= start && run.end <= end => {
                Some(Run { start, end, state })
            }
            Ranges::One(run) if run.state == state && run.start <= end && start <= run.end => {
                Some(Run { start: run.start.min(start), end: run.end.max(end), state })
            }
            _ => None,
        }
    }

    fn many(&mut self) -> &mut Runs {
        if !matches!(self, Ranges::Many(_)) {
            let mut runs = Runs::default();
            self.iter().for_each(|run| runs.insert(run));
            *self = Ranges::Many(Box::new(runs));
        }
        match self {
            Ranges::Many(runs) => runs,
            _ => unreachable!("made so above"),
        }
    }

    fn shrink(&mut self) {
        if let Ranges::Many(runs) = self
            && runs.map.len() <= 1
        {
            *self = runs.map.first_key_value().map_or(Ranges::None, |(_, run)| Ranges::One(*run));
        }
    }
}

impl From<Vec<Run>> for Ranges {
    fn from(runs: Vec<Run>) -> Ranges {
        Ranges::from_runs(runs)
    }
}

impl From<Ranges> for Vec<Run> {
    fn from(ranges: Ranges) -> Vec<Run> {
        ranges.iter().collect()
    }
}

/// Removes `[start, end)` from every run; a run that reaches over an edge is split.
fn carve(runs: &mut Runs, start: u64, end: u64) {
    if let Some((_, &run)) = runs.map.range(..start).next_back()
        && run.end > start
    {
        runs.insert(Run { end: start, ..run });
        if run.end > end {
            runs.insert(Run { start: end, ..run });
        }
    }
    let inside: Vec<u64> = runs.map.range(start..end).map(|(key, _)| *key).collect();
    for key in inside {
        let run = runs.remove(key).expect("listed above");
        if run.end > end {
            runs.insert(Run { start: end, ..run });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every sequence of random operations gives the same result as on an array of bytes.
    #[test]
    fn ranges_equal_a_byte_array_under_random_operations() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for _ in 0..2000 {
            let mut ranges = Ranges::None;
            let mut bytes = [None; 40];
            for _ in 0..12 {
                let (a, b) = (next(41), next(41));
                let (start, end) = (a.min(b), a.max(b));
                let all = [State::Clean, State::Dirty, State::Durable, State::Kept];
                let state = all.get(next(5) as usize).copied();
                match state {
                    Some(state) => ranges.set(start, end, state),
                    None => ranges.clear(start, end),
                }
                bytes[start as usize..end as usize].fill(state);
                check(&ranges, &bytes);
                let (a, b) = (next(41), next(41));
                check_queries(&ranges, &bytes, a.min(b), a.max(b));
            }
        }
    }

    fn check(ranges: &Ranges, bytes: &[Option<State>]) {
        let mut seen = vec![None; bytes.len()];
        let mut last: Option<Run> = None;
        for run in ranges.iter() {
            if let Some(last) = last {
                let apart = last.end < run.start || last.state != run.state;
                assert!(last.end <= run.start && apart, "R1: {ranges:?}");
            }
            seen[run.start as usize..run.end as usize].fill(Some(run.state));
            last = Some(run);
        }
        assert_eq!(seen, bytes, "{ranges:?}");
        let dirty = bytes.iter().filter(|b| b.is_some_and(State::is_dirty)).count();
        assert_eq!(ranges.bytes(State::is_dirty), dirty as u64, "{ranges:?}");
        assert_eq!(ranges.count() <= 1, !matches!(ranges, Ranges::Many(_)), "small stays small");
    }

    fn check_queries(ranges: &Ranges, bytes: &[Option<State>], start: u64, end: u64) {
        let slice = &bytes[start as usize..end as usize];
        assert_eq!(ranges.covers(start, end), slice.iter().all(Option::is_some));
        let dirty = slice.iter().all(|b| b.is_some_and(State::is_dirty));
        assert_eq!(ranges.all_dirty(start, end), dirty);
        let gaps: u64 = ranges.gaps(start, end).iter().map(|(a, b)| b - a).sum();
        assert_eq!(gaps as usize, slice.iter().filter(|b| b.is_none()).count());
    }
}
