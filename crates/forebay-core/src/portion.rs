//! The portion of a file that one flight takes: so much data, and the holes in between that cost the backing store
//! next to nothing. So the number of flights follows the written bytes, and not the size of the file.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::spans::keep_first;

/// The data that one flight takes of a file: a large file becomes clean, and evictable, piece by
/// piece while it is still being written (S9).
pub const FLIGHT_BYTES: u64 = 128 << 20;

/// The data of a flight that mostly compares and probably copies little: a second or two of reading from a disk.
pub const DOUBT_BYTES: u64 = 8 * FLIGHT_BYTES;

/// The most stretches that are looked for, since that happens under the file's lock.
const STRETCHES_MAX: u32 = 8192;

/// The part of the wanted ranges of a file that a flight takes.
#[derive(Debug, PartialEq, Eq)]
pub struct Portion {
    pub captured: Vec<(u64, u64)>,
    /// The ranges of `captured` that are not known to be holes.
    pub data: Vec<(u64, u64)>,
    /// Wanted ranges beyond this are left for the next flight.
    pub upto: u64,
}

impl Portion {
    /// The portion of all runs.
    pub fn whole(runs: Vec<(u64, u64)>) -> Portion {
        Portion { data: runs.clone(), captured: runs, upto: u64::MAX }
    }

    /// The first runs of `limit` bytes, whatever is in them.
    pub fn dense(runs: Vec<(u64, u64)>, limit: u64) -> Portion {
        let mut captured = runs;
        let is_cut = keep_first(&mut captured, limit).is_some();
        let last = captured.last().filter(|_| is_cut);
        Portion { upto: last.map_or(u64::MAX, |last| last.1), ..Portion::whole(captured) }
    }

    /// The first runs of a file that is mostly holes, as `next_data` tells. Holes at or beyond `free_from` cost
    /// nothing; of other holes `holes` bytes are taken.
    pub fn sparse(
        runs: &[(u64, u64)],
        next_data: impl Fn(u64) -> io::Result<Option<(u64, u64)>>,
        free_from: u64,
        holes: u64,
    ) -> io::Result<Portion> {
        let mut stretches = Stretches::new(next_data);
        let mut portion = Portion::whole(Vec::new());
        let (mut data_left, mut holes_left) = (FLIGHT_BYTES, holes);
        for &(start, end) in runs {
            let mut at = start;
            while at < end && data_left > 0 && holes_left > 0 && stretches.looks < STRETCHES_MAX {
                let (from, to) = stretches.at(at)?;
                if at < from {
                    let hole = from.min(end) - at;
                    let costly = free_from.saturating_sub(at).min(hole);
                    at += if costly > holes_left { holes_left } else { hole };
                    holes_left = holes_left.saturating_sub(costly);
                } else {
                    let taken = (to.min(end) - at).min(data_left);
                    portion.data.push((at, at + taken));
                    (at, data_left) = (at + taken, data_left - taken);
                }
            }
            if at > start {
                portion.captured.push((start, at));
            }
            if at < end {
                portion.upto = at;
                break;
            }
        }
        Ok(portion)
    }
}

/// Stretches of data, each looked for once by a caller that goes from front to back.
struct Stretches<F> {
    next_data: F,
    found: (u64, u64),
    looks: u32,
}

impl<F: Fn(u64) -> io::Result<Option<(u64, u64)>>> Stretches<F> {
    fn new(next_data: F) -> Stretches<F> {
        Stretches { next_data, found: (0, 0), looks: 0 }
    }

    /// The stretch that `at` is in, or else the next.
    fn at(&mut self, at: u64) -> io::Result<(u64, u64)> {
        if at >= self.found.1 {
            self.looks += 1;
            let (start, end) = (self.next_data)(at)?.unwrap_or((u64::MAX, u64::MAX));
            // A stretch that disappears at this very moment may look empty.
            self.found = (start.max(at), end.max(at + 1));
        }
        Ok(self.found)
    }
}

/// The largest piece of a file, in data; pieces are copied in parallel.
const PIECE_MAX: u64 = 8 << 20;

/// The most stretches in a piece, each of which costs the backing store a call.
const PIECE_STRETCHES: u32 = 8;

/// The length of a hole over old bytes that one call can make in a moment, as the backing store has shown: most
/// stores free a terabyte as fast as a page, but those without holes write zeros.
pub struct HoleStep(AtomicU64);

const STEP_MIN: u64 = 8 << 20;

const STEP_MAX: u64 = 1 << 40;

/// No store writes the zeros of the smallest step so fast.
const QUICK: Duration = Duration::from_millis(2);

const SLOW: Duration = Duration::from_millis(200);

impl Default for HoleStep {
    fn default() -> HoleStep {
        HoleStep(AtomicU64::new(STEP_MIN))
    }
}

impl HoleStep {
    /// The length that one call makes.
    pub fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// The length that one flight takes.
    pub fn flight_bytes(&self) -> u64 {
        self.bytes() * (FLIGHT_BYTES / STEP_MIN)
    }

    /// Notes that a call for so many bytes took so long.
    pub fn note(&self, bytes: u64, took: Duration) {
        let step = self.bytes();
        if took >= SLOW {
            self.0.store((step / 4).max(STEP_MIN), Relaxed);
        } else if took < QUICK && bytes >= step {
            self.0.store((step * 4).min(STEP_MAX), Relaxed);
        }
    }
}

/// Cuts runs into pieces to copy in parallel. For few bytes a look at the holes is not worth it.
pub fn pieces(
    runs: &[(u64, u64)],
    next_data: impl Fn(u64) -> io::Result<Option<(u64, u64)>>,
) -> io::Result<Vec<(u64, u64)>> {
    let bytes: u64 = runs.iter().map(|(start, end)| end - start).sum();
    let step = |&(start, end): &(u64, u64)| {
        (start..end).step_by(PIECE_MAX as usize).map(move |at| (at, (at + PIECE_MAX).min(end)))
    };
    if bytes <= FLIGHT_BYTES {
        return Ok(runs.iter().flat_map(step).collect());
    }
    let mut stretches = Stretches::new(next_data);
    let mut pieces = Vec::new();
    for &(start, end) in runs {
        let (mut first, mut at) = (start, start);
        let (mut bytes, mut count) = (0, 0);
        while at < end {
            let (from, to) = stretches.at(at)?;
            if at < from {
                at = from.min(end);
                continue;
            }
            let taken = (to.min(end) - at).min(PIECE_MAX - bytes);
            (at, bytes, count) = (at + taken, bytes + taken, count + 1);
            if bytes == PIECE_MAX || count == PIECE_STRETCHES {
                pieces.push((first, at));
                (first, bytes, count) = (at, 0, 0);
            }
        }
        if first < end {
            pieces.push((first, end));
        }
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIB: u64 = 1 << 40;
    const MIB: u64 = 1 << 20;

    /// A file of these stretches of data.
    fn holding(data: &[(u64, u64)]) -> impl Fn(u64) -> io::Result<Option<(u64, u64)>> {
        move |at| {
            let next = data.iter().find(|stretch| stretch.1 > at);
            Ok(next.map(|&(start, end)| (start.max(at), end)))
        }
    }

    #[test]
    fn a_flight_takes_all_holes_beyond_the_backing_files_end() {
        let data = [(TIB, TIB + MIB), (3 * TIB, 3 * TIB + 200 * MIB)];
        let runs = [(0, 2 * TIB), (2 * TIB + 5, 8 * TIB)];
        let first = Portion::sparse(&runs, holding(&data), 0, MIB).unwrap();
        let cut = 3 * TIB + 127 * MIB;
        assert_eq!(first.captured, [(0, 2 * TIB), (2 * TIB + 5, cut)]);
        assert_eq!((&first.data, first.upto), (&vec![data[0], (data[1].0, cut)], cut));
        let rest = Portion::sparse(&[(cut, 8 * TIB)], holding(&data), 0, MIB).unwrap();
        assert_eq!(rest.captured, [(cut, 8 * TIB)]);
        assert_eq!((rest.data, rest.upto), (vec![(cut, data[1].1)], u64::MAX));
    }

    #[test]
    fn a_flight_takes_so_much_of_holes_over_old_bytes() {
        let taken = |free_from, holes| {
            let data = [(TIB, TIB + MIB)];
            Portion::sparse(&[(0, 8 * TIB)], holding(&data), free_from, holes).unwrap().upto
        };
        assert_eq!(taken(8 * TIB, MIB), MIB);
        assert_eq!(taken(8 * TIB, 2 * TIB), 2 * TIB + MIB);
        assert_eq!(taken(TIB, 2 * TIB), u64::MAX);
    }

    #[test]
    fn a_flight_looks_for_so_many_stretches() {
        let page =
            |at: u64| Ok(Some((at.next_multiple_of(8192), at.next_multiple_of(8192) + 4096)));
        let portion = Portion::sparse(&[(0, TIB)], page, 0, MIB).unwrap();
        assert!((1..=STRETCHES_MAX as usize).contains(&portion.data.len()));
        assert_eq!(portion.captured, [(0, portion.upto)]);
    }

    #[test]
    fn pieces_are_cut_by_the_data_in_them() {
        let data = [(TIB, TIB + 20 * MIB), (3 * TIB, 3 * TIB + MIB)];
        let cuts = pieces(&[(5, 8 * TIB)], holding(&data)).unwrap();
        let (first, second) = (TIB + 8 * MIB, TIB + 16 * MIB);
        assert_eq!(cuts[..2], [(5, first), (first, second)]);
        assert_eq!(cuts[2..], [(second, 8 * TIB)]);
        let few = pieces(&[(0, 9 * MIB)], |_| unreachable!("not worth a look")).unwrap();
        assert_eq!(few, [(0, 8 * MIB), (8 * MIB, 9 * MIB)]);
    }

    #[test]
    fn a_store_that_is_quick_is_given_larger_holes() {
        let step = HoleStep::default();
        step.note(STEP_MIN / 2, Duration::ZERO);
        assert_eq!(step.flight_bytes(), FLIGHT_BYTES, "that says nothing");
        step.note(STEP_MIN, Duration::ZERO);
        assert_eq!(step.flight_bytes(), 4 * FLIGHT_BYTES);
        step.note(4 * STEP_MIN, QUICK);
        assert_eq!(step.bytes(), 4 * STEP_MIN);
        (0..3).for_each(|_| step.note(4 * STEP_MIN, SLOW));
        assert_eq!(step.bytes(), STEP_MIN);
    }
}
