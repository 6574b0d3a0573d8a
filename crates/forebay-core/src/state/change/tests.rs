use std::path::Path;

use forebay_backing::{Attr, FileKey, FileKind};

use super::*;
use crate::paths::{Paths, Tree};
use crate::ranges::Mark;

/// Sizes and offsets are below this.
const END: u64 = 40;

struct Dice(u64);

impl Dice {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn stretch(&mut self) -> (u64, u64) {
        let (a, b) = (self.below(END), self.below(END));
        (a.min(b), a.max(b) + 1)
    }
}

/// A file in use, the changes made to it, and its state before and after each.
struct Life {
    dice: Dice,
    states: Vec<FileState>,
    log: Vec<Vec<u8>>,
    flight: Option<Flight>,
}

/// The ranges that a flush under way has captured, the size then, and the ranges rewritten since.
type Flight = (Vec<(u64, u64)>, u64, Ranges);

fn at(sec: u64) -> Timestamp {
    Timestamp { sec: sec as i64, nsec: 0 }
}

fn attr(size: u64, time: u64) -> Attr {
    Attr {
        key: FileKey { ino: 2, generation: 0 },
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        blocks: 0,
        blksize: 4096,
        atime: at(time),
        mtime: at(time),
        ctime: at(time),
        btime: at(0),
    }
}

fn replay(mut state: FileState, log: &[Vec<u8>]) -> FileState {
    for record in log {
        let change: Change<'_> = postcard::from_bytes(record).unwrap();
        state.apply(&change);
    }
    state
}

impl Life {
    fn begin(seed: u64) -> Life {
        let mut dice = Dice(seed);
        let size = dice.below(END);
        let state = FileState::absent(Paths::of(&Tree::default(), Path::new("f")), &attr(size, 1));
        Life { dice, states: vec![state], log: Vec::new(), flight: None }
    }

    fn now(&self) -> &FileState {
        self.states.last().expect("there is one from the beginning")
    }

    fn commit(&mut self, change: Change<'_>) {
        let mut next = self.now().clone();
        next.apply(&change);
        self.log.push(postcard::to_stdvec(&change).unwrap());
        self.states.push(next);
    }

    fn age(&self) -> Age {
        self.now().age_at(self.states.len() as u64 * 10)
    }

    fn time(&self) -> u64 {
        self.states.len() as u64
    }

    fn mark(&mut self, marks: Vec<Mark>) {
        let age = self.age();
        if !marks.is_empty() {
            self.commit(Change::Marked { marks: marks.into(), age });
        }
    }

    fn rewrite(&mut self, start: u64, end: u64) {
        if let Some((_, _, rewritten)) = &mut self.flight {
            rewritten.set(start, end, State::Dirty);
        }
    }

    fn write(&mut self) {
        let (start, end) = self.dice.stretch();
        if self.now().is_unseen() {
            return self.rewrite(start, end);
        }
        let plan = self.now().plan_write(start, end);
        self.mark(plan.before);
        self.rewrite(start, end);
        self.mark(plan.after);
    }

    fn fill(&mut self) {
        let (start, end) = self.dice.stretch();
        let end = end.min(self.now().size);
        if !self.now().is_unseen() {
            let gaps = self.now().ranges().gaps(start, end);
            self.mark(gaps.into_iter().map(|gap| Mark::of(gap, State::Clean)).collect());
        }
    }

    fn resize(&mut self) {
        let (size, mtime, age) = (self.dice.below(END), at(self.time()), self.age());
        let from = size.min(self.now().size);
        self.commit(Change::Resized { size, mtime, age });
        self.rewrite(from, u64::MAX >> 1);
    }

    fn sync(&mut self) {
        let now = self.now();
        if !now.is_dirty() {
            return;
        }
        let size = if now.is_unseen() { self.dice.below(END) } else { now.size };
        let ranges = self.now().unsynced(size);
        let clean = self.now().clean_beside(&ranges);
        self.commit(Change::Synced { size, ranges: ranges.into() });
        let may_keep = !self.now().is_unseen() && !self.now().conflict.stands();
        if may_keep && !clean.is_empty() && self.dice.one_in(2) {
            self.commit(Change::Kept { ranges: clean.into() });
        }
    }

    fn flush(&mut self) {
        let now = self.now().clone();
        if let Some((captured, size, rewritten)) = self.flight.take() {
            let mut base = attr(size, self.time()).version();
            if self.dice.one_in(4) {
                return self.commit(Change::FlushFailed { base });
            }
            base.size = if now.size >= size { size } else { base.size };
            let mtime = if self.dice.one_in(2) { base.mtime } else { now.mtime };
            let copied = captured.iter().flat_map(|&(a, b)| rewritten.gaps(a, b)).collect();
            let copied = if now.is_unseen() { (&[]).into() } else { copied };
            let (keep, lasts) = (now.is_held() || self.dice.one_in(2), self.dice.one_in(2));
            let since = self.age().since;
            let size = now.size;
            let settled = Settled { copied, base, size, mtime, keep, lasts, since };
            self.commit(Change::Settled(settled));
            if self.now().ranges().any_dirty() && self.dice.one_in(2) {
                self.commit(Change::Aged { since: since + 1 });
            }
        } else if now.is_dirty() && !now.conflict.stands() {
            let dirty = now.ranges().iter().filter(|run| run.state.is_dirty());
            let dirty: Vec<_> = dirty.map(|run| (run.start, run.end)).collect();
            if self.dice.one_in(2) {
                self.sync();
            }
            self.commit(Change::FlushBegan { mtime: now.mtime });
            self.flight = Some((dirty, now.size, Ranges::None));
        }
    }

    fn let_go(&mut self, start: u64, end: u64) {
        if self.now().keeps_within(start, end) && !self.now().is_held() {
            self.commit(Change::LetGo { start, end });
        }
    }

    fn evict(&mut self) {
        let (start, end) = self.dice.stretch();
        if self.now().is_unseen() || self.now().is_held() {
            return;
        }
        self.let_go(start, end);
        let clean = self.now().ranges().within(start, end).filter(|run| !run.state.is_dirty());
        let clean = clean.map(|run| Mark::absent((run.start, run.end))).collect();
        self.mark(clean);
    }

    fn pass(&mut self) {
        let age = self.age();
        let now = self.now();
        if !now.is_unseen() {
            if now.is_complete() {
                self.commit(Change::Unseen { age });
            }
        } else if now.size == 0 && !now.is_dirty_besides() && self.dice.one_in(2) {
            self.commit(Change::Untouched);
        } else {
            let (len, mtime) = (self.dice.below(END), at(self.time()));
            self.commit(Change::Absorbed { len, mtime, age });
            self.rewrite(0, u64::MAX >> 1);
        }
    }

    fn go_around(&mut self) {
        let now = self.now();
        if now.is_dirty() || now.flush_open || now.is_held() {
            return;
        }
        self.let_go(0, u64::MAX);
        let (start, end) = self.dice.stretch();
        let size = if self.dice.one_in(2) { start } else { end.max(self.now().size) };
        let gone = if size == start { (start, u64::MAX) } else { (start, end) };
        self.mark(vec![Mark::absent(gone)]);
        self.commit(Change::WentAround { size });
    }

    fn operate(&mut self) {
        let version = attr(self.dice.below(END), self.time()).version();
        let owner = Owner { mode: self.dice.below(512) as u32, ..self.now().owner };
        let age = self.age();
        let now = self.now().clone();
        match self.dice.below(9) {
            0 if self.flight.is_none() && !now.is_unseen() && !now.is_held() => {
                self.commit(Change::Emptied { base: version, owner, pinned: now.pinned });
            }
            1 => {
                let base = Version { ctime: version.ctime, ..now.base };
                self.commit(Change::Followed { owner, base, mtime: version.mtime });
            }
            2 if now.is_dirty() && self.flight.is_none() => {
                self.commit(Change::InConflict(Conflict::Changed));
                self.let_go(0, u64::MAX);
            }
            3 if now.conflict.stands() => {
                self.commit(Change::Ours { base: version, age });
            }
            4 => self.commit(Change::Pinned(!now.pinned)),
            5 if !now.is_held() => self.commit(Change::Held(true)),
            6 if now.is_held() && self.flight.is_none() && !now.is_unseen() => {
                self.commit(Change::Again { base: version, age });
            }
            5 | 7 if now.is_held() && !now.is_dirty() => {
                self.commit(Change::Held(false));
                self.let_go(0, u64::MAX);
            }
            8 => {
                self.commit(Change::Setting(Some(version.mtime)));
                let base = Version { mtime: version.mtime, ..now.base };
                match self.dice.below(3) {
                    0 => self.commit(Change::Followed { owner, base, mtime: version.mtime }),
                    1 => self.commit(Change::Setting(None)),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        match self.dice.below(12) {
            0..=2 => self.write(),
            3 => self.fill(),
            4 => self.resize(),
            5 | 6 => self.sync(),
            7 | 8 => self.flush(),
            9 => self.evict(),
            10 => self.pass(),
            _ if self.dice.one_in(3) => self.go_around(),
            _ => self.operate(),
        }
    }
}

/// A replay of the log gives the live state, wherever the log ends; over the state that it began with,
/// and over any later one (C1).
// S-2 S-3
#[test]
fn a_replay_of_the_log_ends_in_the_state_that_was_live() {
    let mut kinds = std::collections::HashSet::new();
    for seed in 1..=500 {
        let mut life = Life::begin(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        (0..30).for_each(|_| life.step());
        kinds.extend(life.log.iter().map(|record| record[0]));
        let Life { states, log, .. } = &life;
        for end in 0..=log.len() {
            for from in [0, end, life.dice.0 as usize % (end + 1), end.saturating_sub(3)] {
                let replayed = replay(states[from].clone(), &log[..end]);
                assert_eq!(replayed, states[end], "seed {seed}: {end} changes over state {from}");
            }
        }
    }
    assert!(kinds.len() >= 20, "every change but the loss of a shadow: {kinds:?}");
}

/// The salvage of a damaged tier replays every readable record: whichever are missing, no invariant
/// breaks.
// S-4
#[test]
fn a_log_with_holes_breaks_no_invariant() {
    for seed in 1..=500_u64 {
        let mut life = Life::begin(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (0..30).for_each(|_| life.step());
        let Life { states, log, mut dice, .. } = life;
        let begin = states[dice.below(states.len() as u64) as usize].clone();
        let left: Vec<_> = log.into_iter().filter(|_| !dice.one_in(3)).collect();
        let state = replay(begin, &left);
        assert!(state.is_unseen() || state.ranges().end() <= state.size, "F1: seed {seed}");
        assert!(state.is_dirty() || state.keeps() || state.durable_size == MaybeSize::NONE, "F4");
        assert_eq!(state.is_dirty(), state.dirty_since > 0, "F5: seed {seed}");
    }
}
