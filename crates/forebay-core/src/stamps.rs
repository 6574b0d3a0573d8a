//! The times when the parts of a file became dirty and were last written, in blocks: the drain uses them in
//! large files. Only in memory: after a restart a file is as old as its record says.

use std::collections::BTreeMap;

use crate::ranges::{Ranges, Run};

/// Small enough that a hot page does not keep much cold data back, large enough that a stream
/// costs little.
pub const BLOCK: u64 = 256 << 10;

/// A change of more than this many bytes is no program's write, and is not worth its stamps.
const TOUCH_MAX: u64 = 256 << 20;

/// A range without stamps is cut into about this many parts, however large it is.
const UNKNOWN_PARTS: u64 = 4096;

/// A stamp counts as one from the future only from this many milliseconds on: another thread may have taken it
/// a moment after this one read the clock.
const BEYOND_MS: u64 = 1000;

/// Whether a time is from before the clock was set back.
pub fn is_beyond(then: u64, now: u64) -> bool {
    then > now.saturating_add(BEYOND_MS)
}

/// The time itself; 1 for a time in the future. The age of such a time is unknown, and counts as longer than
/// any wait.
pub fn known(then: u64, now: u64) -> u64 {
    if is_beyond(then, now) { 1 } else { then }
}

/// Milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub first: u64,
    pub last: u64,
}

/// The stamps of one file's dirty blocks. Blocks without one are as old as the file.
#[derive(Debug, Default, Clone)]
pub struct Stamps {
    blocks: BTreeMap<u64, Stamp>,
    last: u64,
}

/// A dirty part of one block, or of several blocks without stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub start: u64,
    pub end: u64,
    /// The length of the run that the part is in.
    pub run_bytes: u64,
    pub stamp: Stamp,
    /// The part was written recently. Otherwise it may be a hole.
    pub known: bool,
}

impl Part {
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

impl Stamps {
    pub const NONE: Stamps = Stamps { blocks: BTreeMap::new(), last: 0 };

    /// Notes a write to `[start, end)`.
    pub fn touch(&mut self, start: u64, end: u64, now: u64) {
        self.last = now;
        if start >= end || end - start > TOUCH_MAX {
            return;
        }
        for block in start / BLOCK..=(end - 1) / BLOCK {
            self.blocks.entry(block).or_insert(Stamp { first: now, last: now }).last = now;
        }
    }

    /// The time of the last write to the file; 0 if it is not known.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Forgets the stamps of `copied`; bytes that were rewritten since the copy `began` are dirty from then.
    pub fn settle(&mut self, copied: &[(u64, u64)], rewritten: &Ranges, began: u64) {
        for &(start, end) in copied.iter().filter(|(start, end)| start < end) {
            let touched = start / BLOCK..=(end - 1) / BLOCK;
            let known: Vec<u64> = self.blocks.range(touched).map(|(block, _)| *block).collect();
            for block in known {
                let (from, to) = (block * BLOCK, (block + 1) * BLOCK);
                let again = rewritten.within(from, to).next().is_some();
                match self.blocks.get_mut(&block).filter(|_| again) {
                    // A stamp from before the clock was set back is changed to then, too.
                    Some(stamp) if is_beyond(stamp.first, began) => stamp.first = began,
                    Some(stamp) => stamp.first = stamp.first.max(began),
                    None => drop(self.blocks.remove(&block)),
                }
            }
        }
    }

    /// The dirty `runs`, of `bytes` together, cut at the borders of blocks, each part with its stamp; `since`
    /// is the file's. Without stamps a part may span many blocks: a hole of terabytes must not have millions
    /// of parts.
    pub fn parts(
        &self,
        runs: impl Iterator<Item = Run>,
        bytes: u64,
        since: u64,
    ) -> impl Iterator<Item = Part> {
        let stride = (bytes / UNKNOWN_PARTS).next_multiple_of(BLOCK).max(BLOCK);
        runs.flat_map(move |run| self.parts_of(run, stride, since))
    }

    fn parts_of(&self, run: Run, stride: u64, since: u64) -> impl Iterator<Item = Part> {
        let mut stamped = self.blocks.range(run.start / BLOCK..=run.end / BLOCK).peekable();
        let mut at = run.start;
        std::iter::from_fn(move || {
            let start = at;
            if start >= run.end {
                return None;
            }
            let known = stamped.next_if(|(block, _)| **block == start / BLOCK);
            at = match known {
                Some((block, _)) => (block + 1) * BLOCK,
                None => {
                    let next = stamped.peek().map_or(u64::MAX, |(block, _)| *block * BLOCK);
                    next.min((start / stride + 1) * stride)
                }
            };
            at = at.min(run.end);
            let unknown = Stamp { first: since, last: since };
            let stamp = known.map_or(unknown, |(_, stamp)| *stamp);
            let (run_bytes, known) = (run.bytes(), known.is_some());
            Some(Part { start, end: at, run_bytes, stamp, known })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::State;

    fn dirty(start: u64, end: u64) -> Run {
        Run { start, end, state: State::Dirty }
    }

    #[test]
    fn a_block_is_as_old_as_its_first_write_until_it_is_copied() {
        let mut stamps = Stamps::default();
        stamps.touch(0, 10, 100);
        stamps.touch(5, 10, 300);
        stamps.touch(BLOCK, 2 * BLOCK, 200);
        let stamp = |stamps: &Stamps, block: u64| {
            let run = dirty(block * BLOCK, block * BLOCK + 1);
            let part = stamps.parts([run].into_iter(), 1, 7).next().unwrap();
            (part.stamp.first, part.stamp.last)
        };
        assert_eq!((stamp(&stamps, 0), stamp(&stamps, 1)), ((100, 300), (200, 200)));
        assert_eq!(stamp(&stamps, 9), (7, 7), "as old as the file");
        let mut rewritten = Ranges::None;
        rewritten.set(BLOCK + 3, BLOCK + 4, State::Dirty);
        stamps.settle(&[(0, 2 * BLOCK)], &rewritten, 400);
        assert_eq!((stamp(&stamps, 0), stamp(&stamps, 1)), ((7, 7), (400, 200)));
    }

    #[test]
    fn runs_are_cut_at_blocks() {
        let (stamps, run) = (Stamps::default(), dirty(10, 2 * BLOCK + 5));
        let parts = stamps.parts([run].into_iter(), run.bytes(), 1);
        let cuts: Vec<_> = parts.map(|part| (part.start, part.end)).collect();
        assert_eq!(cuts, [(10, BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK, 2 * BLOCK + 5)]);
    }

    #[test]
    fn a_hole_of_terabytes_has_few_parts_and_what_was_written_in_it_its_stamps() {
        const TIB: u64 = 1 << 40;
        let mut stamps = Stamps::default();
        let written = [(5, 6), (3 * TIB, 3 * TIB + 2 * BLOCK), (8 * TIB - 1, 8 * TIB)];
        written.iter().for_each(|&(start, end)| stamps.touch(start, end, 9));
        let runs = [dirty(0, TIB), dirty(TIB + 7, 8 * TIB)];
        let bytes = runs.iter().map(Run::bytes).sum();
        let parts: Vec<Part> = stamps.parts(runs.into_iter(), bytes, 1).collect();
        assert!(parts.len() < 2 * UNKNOWN_PARTS as usize, "{}", parts.len());
        let known = parts.iter().filter(|part| part.known);
        let known: Vec<_> = known.map(|part| (part.start, part.end, part.stamp.first)).collect();
        let block = |start: u64| (start, start + BLOCK, 9);
        let last = 8 * TIB - BLOCK;
        assert_eq!(known, [block(0), block(3 * TIB), block(3 * TIB + BLOCK), block(last)]);
        for part in parts.iter().filter(|part| !part.known) {
            assert_eq!(part.stamp, Stamp { first: 1, last: 1 });
        }
        let torn = parts.windows(2).filter(|pair| pair[0].end != pair[1].start);
        assert_eq!(
            torn.map(|pair| (pair[0].end, pair[1].start)).collect::<Vec<_>>(),
            [(TIB, TIB + 7)]
        );
        assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, 8 * TIB));
    }
}
