//! The choice of the clean bytes to evict first when the tier is full: S3-FIFO over units, which are
//! stretches of files as long as [`Grain`] says.
//!
//! Pure. Three queues: *small* takes new units, *main* those that were used again, *ghost* remembers
//! those that were evicted from small. A hit sets a counter and moves nothing, so the read path takes no
//! lock of the evictor; that, and the lowest mean miss ratio on most published traces (Yang et al., "FIFO
//! queues are all you need for cache eviction", SOSP 2023), are the reasons for this and not an LRU. A
//! scan over files that are read once passes through the small queue and leaves main alone.
//!
//! The alternative is plain FIFO: one queue that ignores use. It keeps the newest units, which suits data
//! that is read once, soon after it was written.
//!
//! Dirty, pinned and open units are offered like any other; the caller refuses them and they go to the
//! back of main. A unit whose file is at work for a moment keeps its place: otherwise a database's units
//! would be evicted by chance.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use hashbrown::{HashMap, HashSet};

use crate::config::Eviction;
use crate::id::FileId;

/// The largest unit. Files are evicted in units, so that one larger than the tier can pass through
/// it.
pub const UNIT_MAX: u64 = 8 << 20;

/// The smallest unit: each is a record and a hole of its own when it is evicted.
const UNIT_MIN: u64 = 256 << 10;

/// The tier's content is divided into about this many units, or into fewer of the largest size: enough to
/// tell used from unused, few enough to be kept in memory.
const UNITS: u64 = 16 << 10;

/// The number of units with files at work that keep their places: more of them make way for the units
/// behind them.
const ASIDE_MAX: usize = 64;

/// The counter's ceiling: more than three hits count as three.
const HITS_MAX: u8 = 3;

/// A stretch of a file, in one word since there may be millions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unit(u64);

impl Unit {
    /// 4 TiB in the smallest units, 128 TiB in the largest; a larger file's end is not evicted.
    const INDEX_BITS: u32 = 24;

    /// The flag of a unit of the largest length.
    const LONG: u64 = 1 << Unit::INDEX_BITS;

    const ID_SHIFT: u32 = Unit::INDEX_BITS + 1;

    fn new(id: FileId, index: u64, long: bool) -> Unit {
        debug_assert!(id.0 < 1 << (u64::BITS - Unit::ID_SHIFT));
        let long = if long { Unit::LONG } else { 0 };
        Unit(id.0 << Unit::ID_SHIFT | long | index.min(Unit::LONG - 1))
    }

    pub fn id(self) -> FileId {
        FileId(self.0 >> Unit::ID_SHIFT)
    }

    fn index(self) -> u64 {
        self.0 & (Unit::LONG - 1)
    }
}

/// The length of units: by the size of the tier when it was opened.
#[derive(Debug, Clone, Copy)]
pub struct Grain(u64);

impl Grain {
    pub fn of_tier(bytes: u64) -> Grain {
        Grain((bytes / UNITS).next_power_of_two().clamp(UNIT_MIN, UNIT_MAX))
    }

    /// The length of a unit in bytes.
    pub fn unit(self) -> u64 {
        self.0
    }

    /// The units of a stretch of a file. A stretch that is longer than the tier is mostly holes: it gets
    /// the largest units.
    pub fn units(self, id: FileId, start: u64, end: u64) -> impl Iterator<Item = Unit> {
        let last = end.saturating_sub(1).max(start);
        let long = last / self.0 >= Unit::LONG || (last - start) / self.0 > 2 * UNITS;
        let unit = if long { UNIT_MAX } else { self.0 };
        (start / unit..=last / unit).map(move |index| Unit::new(id, index, long))
    }

    /// The unit's range in its file.
    pub fn range(self, unit: Unit) -> (u64, u64) {
        let bytes = if unit.0 & Unit::LONG == 0 { self.0 } else { UNIT_MAX };
        (unit.index() * bytes, (unit.index() + 1) * bytes)
    }
}

/// Counters of recent uses of the units of large files. By hash and without a lock: two units that share
/// a counter are kept a little longer, two uses at the same moment may count as one.
#[derive(Debug)]
pub struct Uses(Box<[AtomicU8]>);

impl Uses {
    /// Sixteen counters for each unit that a tier of `bytes` holds: few units share one.
    pub fn of_tier(bytes: u64) -> Uses {
        let units = (bytes / Grain::of_tier(bytes).unit()).clamp(1 << 10, 1 << 18);
        let zeros = Box::new_zeroed_slice(16 * units.next_power_of_two() as usize);
        // SAFETY: a counter of zeros is a valid counter. The kernel gives memory to it when it is first
        // used.
        Uses(unsafe { zeros.assume_init() })
    }

    fn of(&self, unit: Unit) -> &AtomicU8 {
        // Fibonacci hashing.
        let hash = unit.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(hash >> (u64::BITS - self.0.len().trailing_zeros())) as usize]
    }

    pub fn note(&self, unit: Unit) {
        count_up(self.of(unit));
    }

    /// Reads and lowers a unit's counter.
    pub fn take(&self, unit: Unit) -> u8 {
        count_down(self.of(unit))
    }
}

/// The caller's answer about an offered unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Evicted; this many bytes are free.
    Evicted(u64),
    /// This many bytes are free, and other bytes of the unit are still in the tier.
    Partly(u64),
    /// Refused now: dirty, pinned or open.
    Refused,
    /// The unit's file is being read or written at this moment.
    Busy,
    /// The unit no longer exists.
    Unknown,
}

/// Where a unit was taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Small,
    Main,
}

/// The progress of an eviction. One walk at a time goes through the units.
#[derive(Debug)]
pub struct Walk {
    /// Main is gone through once, and again as long as that lowers counters of use.
    lap: usize,
    spared: bool,
    again: u8,
    /// Each unit can be offered once from small and HITS_MAX + 1 times from main.
    steps: usize,
    from: Queue,
    /// The busy units of each queue.
    aside: [Vec<Unit>; 2],
}

impl Walk {
    fn aside(&mut self) -> &mut Vec<Unit> {
        &mut self.aside[self.from as usize]
    }
}

#[derive(Debug, Default)]
pub struct Evictor {
    by: Eviction,
    small: VecDeque<Unit>,
    main: VecDeque<Unit>,
    ghost: VecDeque<Unit>,
    ghosts: HashSet<Unit>,
    /// The units in small or main, so that every fill may announce its unit.
    members: Members,
}

/// A set of units. Files that came one after the other have neighboring ids, and mostly one unit each:
/// one word holds the membership of 64 of them.
#[derive(Debug, Default)]
struct Members(HashMap<u64, u64>);

impl Members {
    /// The word of a unit, and its bit in the word.
    fn place(unit: Unit) -> (u64, u64) {
        let (id, place) = (unit.id().0, unit.0 & ((1 << Unit::ID_SHIFT) - 1));
        ((id >> 6) << Unit::ID_SHIFT | place, 1 << (id & 63))
    }

    /// Adds a unit; returns whether it was new.
    fn insert(&mut self, unit: Unit) -> bool {
        let (word, bit) = Members::place(unit);
        let bits = self.0.entry(word).or_default();
        let new = *bits & bit == 0;
        *bits |= bit;
        new
    }

    fn remove(&mut self, unit: Unit) {
        let (word, bit) = Members::place(unit);
        if let Some(bits) = self.0.get_mut(&word) {
            *bits &= !bit;
            if *bits == 0 {
                self.0.remove(&word);
            }
        }
    }
}

impl Evictor {
    /// Admits a unit that bytes have just come into; a known unit keeps its place.
    pub fn admit(&mut self, unit: Unit) {
        if !self.members.insert(unit) {
            return;
        }
        if self.by == Eviction::Fifo || self.ghosts.remove(&unit) {
            self.main.push_back(unit);
        } else {
            self.small.push_back(unit);
        }
    }

    /// Changes the policy; known units keep their places.
    pub fn set_policy(&mut self, by: Eviction) {
        if by == Eviction::Fifo && self.by != by {
            // Units that were used again came before the new ones.
            self.main.append(&mut self.small);
            self.ghost.clear();
            self.ghosts.clear();
        }
        self.by = by;
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// Begins to go through the units. They are offered one by one, so that the caller holds no lock of
    /// the evictor while it evicts. Small is asked first as long as it is more than a tenth, and after
    /// that when all of main refuses: a file that is written all the time may have its only clean bytes
    /// in small.
    pub fn walk(&self) -> Walk {
        Walk {
            lap: self.main.len(),
            spared: false,
            again: HITS_MAX,
            steps: self.len() * (usize::from(HITS_MAX) + 2),
            from: Queue::Main,
            aside: Default::default(),
        }
    }

    /// The next unit to be evicted; `None` if all were offered. `hits` reads and lowers a unit's counter.
    /// The unit is in no queue until [`Evictor::settle`], but counts as known meanwhile.
    pub fn offer(&mut self, walk: &mut Walk, mut hits: impl FnMut(Unit) -> u8) -> Option<Unit> {
        while walk.steps > 0 && self.len() > 0 {
            walk.steps -= 1;
            if walk.lap == 0 && walk.spared && walk.again > 0 {
                (walk.lap, walk.spared, walk.again) = (self.main.len(), false, walk.again - 1);
            }
            let is_small = walk.lap == 0 || self.small.len() * 10 > self.len();
            let unit = if is_small { self.small.pop_front() } else { self.main.pop_front() }?;
            walk.lap -= usize::from(!is_small);
            walk.from = if is_small { Queue::Small } else { Queue::Main };
            let used = if self.by == Eviction::Fifo { 0 } else { hits(unit) };
            if used == 0 || (is_small && used == 1) {
                return Some(unit);
            }
            self.main.push_back(unit);
            walk.spared = true;
            walk.again = if is_small { HITS_MAX } else { walk.again };
        }
        None
    }

    /// Takes the answer about the unit that was offered last, under the lock of its file if it has one:
    /// bytes that come into it later are announced anew. Returns the bytes freed. Busy units are left
    /// where they are, up to [`ASIDE_MAX`] of each queue.
    pub fn settle(&mut self, walk: &mut Walk, unit: Unit, answer: Answer) -> u64 {
        match answer {
            Answer::Evicted(bytes) => {
                self.members.remove(unit);
                if walk.from == Queue::Small {
                    self.remember(unit);
                }
                return bytes;
            }
            Answer::Partly(bytes) => {
                self.main.push_back(unit);
                return bytes;
            }
            Answer::Busy if walk.aside().len() < ASIDE_MAX => walk.aside().push(unit),
            Answer::Refused | Answer::Busy => self.main.push_back(unit),
            Answer::Unknown => self.members.remove(unit),
        }
        0
    }

    /// Ends a walk.
    pub fn end(&mut self, walk: Walk) {
        let [small, main] = walk.aside;
        small.into_iter().rev().for_each(|unit| self.small.push_front(unit));
        main.into_iter().rev().for_each(|unit| self.main.push_front(unit));
    }

    /// The wanted units in the order of their queues, whatever their use. They keep their places until
    /// [`Evictor::settle_in_place`].
    pub fn those(&self, mut is_wanted: impl FnMut(Unit) -> bool) -> Vec<Unit> {
        let all = self.small.iter().chain(&self.main).copied();
        all.filter(|unit| is_wanted(*unit)).collect()
    }

    /// As [`Evictor::settle`], for a unit that has kept its place.
    pub fn settle_in_place(&mut self, unit: Unit, answer: Answer) -> u64 {
        if matches!(answer, Answer::Evicted(_) | Answer::Unknown) {
            self.members.remove(unit);
            let queues = [&mut self.small, &mut self.main];
            for queue in queues {
                // The units that are evicted are mostly at the front.
                if let Some(at) = queue.iter().position(|known| *known == unit) {
                    queue.remove(at);
                    break;
                }
            }
        }
        match answer {
            Answer::Evicted(bytes) | Answer::Partly(bytes) => bytes,
            Answer::Refused | Answer::Busy | Answer::Unknown => 0,
        }
    }

    fn remember(&mut self, unit: Unit) {
        self.ghosts.insert(unit);
        self.ghost.push_back(unit);
        while self.ghost.len() > self.main.len().max(64) {
            let oldest = self.ghost.pop_front().expect("longer than nothing");
            self.ghosts.remove(&oldest);
        }
    }
}

pub fn count_up(uses: &AtomicU8) {
    let before = uses.load(Relaxed);
    if before < HITS_MAX {
        uses.store(before + 1, Relaxed);
    }
}

/// Lowers a counter; returns its earlier value.
pub fn count_down(uses: &AtomicU8) -> u8 {
    let before = uses.load(Relaxed);
    if before > 0 {
        uses.store(before - 1, Relaxed);
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn unit(n: u64) -> Unit {
        Unit::new(FileId(n), 0, false)
    }

    impl Evictor {
        fn run(
            &mut self,
            enough: u64,
            mut hits: impl FnMut(Unit) -> u8,
            mut evict: impl FnMut(Unit) -> Answer,
        ) -> u64 {
            let (mut walk, mut freed) = (self.walk(), 0);
            while freed < enough
                && let Some(unit) = self.offer(&mut walk, &mut hits)
            {
                let answer = evict(unit);
                freed += self.settle(&mut walk, unit, answer);
            }
            self.end(walk);
            freed
        }

        fn run_only(&mut self, enough: u64, mut evict: impl FnMut(Unit) -> Option<Answer>) -> u64 {
            let mut freed = 0;
            for unit in self.those(|_| true) {
                if let Some(answer) = (freed < enough).then(|| evict(unit)).flatten() {
                    freed += self.settle_in_place(unit, answer);
                }
            }
            freed
        }
    }

    #[test]
    fn what_was_used_twice_outlives_a_scan() {
        let mut evictor = Evictor::default();
        let mut hits: HashMap<Unit, u8> = HashMap::new();
        for n in 0..10 {
            evictor.admit(unit(n));
            hits.insert(unit(n), 2);
        }
        for n in 100..200 {
            evictor.admit(unit(n));
        }
        let mut gone = Vec::new();
        let take = |u| hits.insert(u, 0).unwrap_or(0);
        evictor.run(80, take, |u| {
            gone.push(u);
            Answer::Evicted(1)
        });
        assert_eq!(gone.len(), 80);
        assert!(gone.iter().all(|u| u.id().0 >= 100), "{gone:?}");
    }

    #[test]
    fn refusals_end_the_run_and_lose_nothing() {
        let mut evictor = Evictor::default();
        for n in 0..50 {
            evictor.admit(unit(n));
        }
        assert_eq!(evictor.run(1, |_| 0, |_| Answer::Refused), 0);
        assert_eq!(evictor.len(), 50);
        assert_eq!(evictor.run(50, |_| 0, |_| Answer::Evicted(1)), 50);
    }

    #[test]
    fn a_busy_unit_keeps_its_place() {
        let mut evictor = Evictor::default();
        (0..50).for_each(|n| evictor.admit(unit(n)));
        evictor.run(1, |_| 0, |_| Answer::Refused);
        (50..55).for_each(|n| evictor.admit(unit(n)));
        let order = |evictor: &Evictor| [&evictor.small, &evictor.main].map(|q| q.clone());
        let before = order(&evictor);
        assert_eq!(evictor.run(1, |_| 0, |_| Answer::Busy), 0);
        assert_eq!(order(&evictor), before);
        let freed = evictor.run(
            1,
            |_| 0,
            |u| match u.id().0 {
                n if n < 3 => Answer::Busy,
                _ => Answer::Evicted(1),
            },
        );
        assert_eq!((freed, evictor.main.front()), (1, Some(&unit(0))), "{evictor:?}");
        assert_eq!(evictor.len(), 54);
    }

    #[test]
    fn units_are_as_long_as_the_tier_asks_for_and_cover_everything() {
        for (tier, unit) in [(0, 256), (4096, 256), (16 << 10, 1024), (1 << 30, 8192)] {
            assert_eq!(Grain::of_tier(tier << 20).unit(), unit << 10);
        }
        let grain = Grain::of_tier(1 << 30);
        let (tib, kib) = (1 << 40, 1 << 10);
        for (start, end) in [
            (0, 1),
            (0, 0),
            (300 * kib, 900 * kib),
            (7, tib),
            (5 * tib, 5 * tib + 1),
            (0, 64 * tib),
        ] {
            let mut at = start;
            for unit in grain.units(FileId(7), start, end) {
                let (from, to) = grain.range(unit);
                assert!(unit.id() == FileId(7) && from <= at && at < to, "{from} {at} {to}");
                at = to;
            }
            assert!(at >= end, "{at} of {end}");
        }
        assert!(grain.units(FileId(7), 0, 1 << 40).count() <= 1 << 17, "mostly holes");
    }

    #[test]
    fn uses_are_counted_by_unit() {
        let (grain, uses) = (Grain::of_tier(1 << 30), Uses::of_tier(1 << 30));
        let units: Vec<Unit> = grain.units(FileId(7), 0, 1 << 30).collect();
        let (hot, cold) = units.split_at(units.len() / 4);
        for _ in 0..5 {
            hot.iter().for_each(|unit| uses.note(*unit));
        }
        assert!(hot.iter().all(|unit| uses.take(*unit) > 0));
        let mistaken = cold.iter().filter(|unit| uses.take(**unit) > 0).count();
        assert!(mistaken * 20 < cold.len(), "{mistaken} of {}", cold.len());
    }

    #[test]
    fn the_few_new_ones_are_offered_when_all_others_refuse() {
        let mut evictor = Evictor::default();
        (0..200).for_each(|n| evictor.admit(unit(n)));
        assert_eq!(evictor.run(1, |_| 0, |_| Answer::Refused), 0);
        (200..205).for_each(|n| evictor.admit(unit(n)));
        let (mut offered, mut gone) = (0, Vec::new());
        let freed = evictor.run(
            5,
            |_| 0,
            |u| {
                offered += 1;
                if u.id().0 < 200 {
                    return Answer::Refused;
                }
                gone.push(u.id().0);
                Answer::Evicted(1)
            },
        );
        assert_eq!((freed, gone), (5, (200..205).collect()));
        assert_eq!(offered, 205, "nobody was asked twice");
        assert_eq!(evictor.len(), 200);
    }

    #[test]
    fn one_that_was_used_is_evicted_when_nothing_else_can_be() {
        // The used unit may stand anywhere among those that refuse, in small or in main.
        for (count, used) in [(2, 1), (100, 0), (100, 57), (100, 99), (1, 0)] {
            for old in [false, true] {
                let mut evictor = Evictor::default();
                (0..count).for_each(|n| evictor.admit(unit(n)));
                if old {
                    evictor.run(1, |_| 0, |_| Answer::Refused);
                }
                let mut hits = HITS_MAX;
                let take = |u: Unit| {
                    let own = if u == unit(used) { hits } else { 0 };
                    hits -= own.min(1);
                    own
                };
                let freed = evictor.run(1, take, |u| match u == unit(used) {
                    true => Answer::Evicted(1),
                    false => Answer::Refused,
                });
                assert_eq!(freed, 1, "{used} of {count}, old: {old}");
            }
        }
    }

    #[test]
    fn one_in_use_all_the_time_does_not_hide_the_new_ones() {
        let mut evictor = Evictor::default();
        (0..200).for_each(|n| evictor.admit(unit(n)));
        evictor.run(1, |_| 0, |_| Answer::Refused);
        evictor.admit(unit(200));
        let hot = |u: Unit| if u == unit(7) { HITS_MAX } else { 0 };
        let freed = evictor.run(1, hot, |u| match u.id().0 {
            200 => Answer::Evicted(1),
            _ => Answer::Refused,
        });
        assert_eq!(freed, 1);
    }

    #[test]
    fn fifo_goes_by_arrival_alone_also_after_a_switch() {
        let mut evictor = Evictor::default();
        (0..5).for_each(|n| evictor.admit(unit(n)));
        evictor.set_policy(Eviction::Fifo);
        (5..10).for_each(|n| evictor.admit(unit(n)));
        let mut gone = Vec::new();
        evictor.run(
            10,
            |_| HITS_MAX,
            |u| {
                gone.push(u.id().0);
                Answer::Evicted(1)
            },
        );
        assert_eq!(gone, (0..10).collect::<Vec<_>>());
        evictor.set_policy(Eviction::S3Fifo);
        evictor.admit(unit(1));
        assert_eq!((evictor.small.len(), evictor.main.len()), (1, 0));
    }

    #[test]
    fn a_unit_that_comes_back_soon_goes_to_main() {
        let mut evictor = Evictor::default();
        evictor.admit(unit(1));
        evictor.run(1, |_| 0, |_| Answer::Evicted(1));
        evictor.admit(unit(1));
        assert_eq!((evictor.small.len(), evictor.main.len()), (0, 1));
    }

    #[test]
    fn an_eviction_of_some_units_leaves_the_others_in_their_places() {
        let mut evictor = Evictor::default();
        (0..6).for_each(|n| evictor.admit(unit(n)));
        let mut gone = Vec::new();
        let freed = evictor.run_only(2, |u| match u.id().0 {
            1 => Some(Answer::Refused),
            n if n % 2 == 1 => {
                gone.push(n);
                Some(Answer::Evicted(1))
            }
            _ => None,
        });
        assert_eq!((freed, gone), (2, vec![3, 5]));
        assert_eq!(evictor.small, [0, 1, 2, 4].map(unit));
        evictor.admit(unit(3));
        assert_eq!(evictor.len(), 5, "it may come back");
    }

    #[test]
    fn units_are_told_apart() {
        let mut members = Members::default();
        let units: Vec<Unit> = [(0, 0), (63, 0), (64, 0), (1, 1), (1, 64), (2, 1)]
            .map(|(n, i)| Unit::new(FileId(n), i, false))
            .into();
        for unit in &units {
            assert!(members.insert(*unit) && !members.insert(*unit), "{unit:?}");
        }
        for (n, unit) in units.iter().enumerate() {
            members.remove(*unit);
            members.remove(*unit);
            for (other, unit) in units.iter().enumerate() {
                assert_eq!(members.insert(*unit), other <= n, "{other} after {n}");
                if other <= n {
                    members.remove(*unit);
                }
            }
        }
        assert!(members.0.is_empty());
    }

    #[test]
    fn what_is_left_of_a_unit_is_offered_again() {
        let mut evictor = Evictor::default();
        evictor.admit(unit(1));
        assert_eq!(evictor.run(1, |_| 0, |_| Answer::Partly(1)), 1);
        assert_eq!(evictor.run(1, |_| 0, |_| Answer::Evicted(1)), 1);
        assert_eq!(evictor.len(), 0);
    }
}
