//! When the parts of a file became dirty and were last written, in blocks: what the drain goes by
//! in a large file. Only in memory: after a restart a file is as old as its record says.

use std::collections::BTreeMap;

use crate::ranges::{Ranges, Run};

/// Small enough that a hot page does not keep much cold data back, large enough that a stream
/// costs little.
pub(crate) const BLOCK: u64 = 256 << 10;

/// A change of more than this many bytes is no write of a program, and is not worth its stamps.
const TOUCH_MAX: u64 = 256 << 20;

/// Milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub first: u64,
    pub last: u64,
}

/// The stamps of one file's dirty blocks. Blocks without one are as old as the file.
#[derive(Debug, Default, Clone)]
pub(crate) struct Stamps {
    blocks: BTreeMap<u64, Stamp>,
    last: u64,
}

/// A part of one block that is dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub start: u64,
    pub end: u64,
    /// Of the run it is a part of.
    pub run_bytes: u64,
    pub stamp: Stamp,
}

impl Stamps {
    /// Takes note of a write to `[start, end)`.
    pub fn touch(&mut self, start: u64, end: u64, now: u64) {
        self.last = now;
        if start >= end || end - start > TOUCH_MAX {
            return;
        }
        for block in start / BLOCK..=(end - 1) / BLOCK {
            self.blocks.entry(block).or_insert(Stamp { first: now, last: now }).last = now;
        }
    }

    /// When anything of the file was last written; 0 if that is not known.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Forgets what was `copied`; what was rewritten since the copy `began` is dirty from then.
    pub fn settle(&mut self, copied: &[(u64, u64)], rewritten: &Ranges, began: u64) {
        for &(start, end) in copied.iter().filter(|(start, end)| start < end) {
            let touched = start / BLOCK..=(end - 1) / BLOCK;
            let known: Vec<u64> = self.blocks.range(touched).map(|(block, _)| *block).collect();
            for block in known {
                let (from, to) = (block * BLOCK, (block + 1) * BLOCK);
                let again = rewritten.within(from, to).next().is_some();
                match self.blocks.get_mut(&block).filter(|_| again) {
                    Some(stamp) => stamp.first = stamp.first.max(began),
                    None => drop(self.blocks.remove(&block)),
                }
            }
        }
    }

    /// The dirty `runs` cut at the borders of blocks, each part with its stamp; `since` is the
    /// file's.
    pub fn parts(&self, runs: impl Iterator<Item = Run>, since: u64) -> Vec<Part> {
        let mut parts = Vec::new();
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                let end = run.end.min((at / BLOCK + 1) * BLOCK);
                let unknown = Stamp { first: since, last: since };
                let stamp = self.blocks.get(&(at / BLOCK)).copied().unwrap_or(unknown);
                parts.push(Part { start: at, end, run_bytes: run.end - run.start, stamp });
                at = end;
            }
        }
        parts
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
            let parts = stamps.parts([dirty(block * BLOCK, block * BLOCK + 1)].into_iter(), 7);
            (parts[0].stamp.first, parts[0].stamp.last)
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
        let parts = Stamps::default().parts([dirty(10, 2 * BLOCK + 5)].into_iter(), 1);
        let cuts: Vec<_> = parts.iter().map(|part| (part.start, part.end)).collect();
        assert_eq!(cuts, [(10, BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK, 2 * BLOCK + 5)]);
    }
}
