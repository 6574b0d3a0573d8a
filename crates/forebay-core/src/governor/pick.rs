//! The choice of the next bytes to copy: the oldest cohort, sorted by file and offset, its
//! neighbors riding along, and bytes that were rewritten a moment ago left for the next lap.
//!
//! Sequential and random data are picked apart: a batch is of one kind, so that a stream is not
//! cut up by seeks. The kind whose oldest piece is older goes first.

use std::time::Duration;

/// A dirty stretch of a file, as of one time slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its file's place in the order of paths, or any other number that sorts files.
    pub file: u64,
    pub start: u64,
    pub end: u64,
    /// The bytes to copy: less than the length where the piece has holes.
    pub bytes: u64,
    /// The time since the piece was first dirtied.
    pub age: Duration,
    /// The time since the piece was last written.
    pub untouched: Duration,
    pub kind: Kind,
}

/// The way a stretch was written, judged by its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sequential,
    Random,
}

/// A run of dirty bytes at least this long was written as a stream.
pub const STREAM_BYTES: u64 = 1 << 20;

/// The rule for picking.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Bytes of the batch. The last piece may exceed it.
    pub budget: u64,
    /// Younger pieces are left, except neighbors.
    pub from_age: Duration,
    /// Pieces rewritten less than this ago wait, ...
    pub settle: Duration,
    /// ... but not from this age on.
    pub no_wait_age: Duration,
    pub hot: Hot,
}

/// Whether hot pieces are picked when cold ones do not fill the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hot {
    Stay,
    FillUp,
}

/// Picks a batch out of `pieces`; the batch is sorted by file and offset, with neighbors joined.
pub fn pick(pieces: &[Piece], rule: &Rule) -> Vec<Piece> {
    let waits = |piece: &Piece| piece.untouched < rule.settle && piece.age < rule.no_wait_age;
    let due: Vec<usize> = (0..pieces.len()).filter(|n| pieces[*n].age >= rule.from_age).collect();
    let mut order: Vec<usize> = due.iter().copied().filter(|n| !waits(&pieces[*n])).collect();
    if rule.hot == Hot::FillUp {
        let cold: u64 = order.iter().map(|n| pieces[*n].bytes).sum();
        if cold < rule.budget {
            order.extend(due.iter().copied().filter(|n| waits(&pieces[*n])));
        }
    }
    let Some(oldest) = order.iter().copied().max_by_key(|n| pieces[*n].age) else {
        return Vec::new();
    };
    order.retain(|n| pieces[*n].kind == pieces[oldest].kind);
    let cold_first = |n: &usize| (waits(&pieces[*n]), std::cmp::Reverse(pieces[*n].age));
    order.sort_by_key(cold_first);
    let mut taken = vec![false; pieces.len()];
    let mut left = rule.budget;
    for n in order {
        if left == 0 {
            break;
        }
        taken[n] = true;
        left = left.saturating_sub(pieces[n].bytes);
    }
    with_riders(pieces, taken, waits)
}

/// Adds the pieces right before or behind a taken piece: they cost no seek.
fn with_riders(
    pieces: &[Piece],
    mut taken: Vec<bool>,
    waits: impl Fn(&Piece) -> bool,
) -> Vec<Piece> {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|n| (pieces[*n].file, pieces[*n].start));
    let touch = |a: &Piece, b: &Piece| a.file == b.file && a.end == b.start;
    let mut ride = |pairs: &mut dyn Iterator<Item = (usize, usize)>| {
        let mut ridden = RIDE_BYTES;
        for (from, to) in pairs {
            if !taken[from] {
                ridden = RIDE_BYTES;
                continue;
            }
            let (f, t) = (&pieces[from], &pieces[to]);
            if !taken[to] && (touch(f, t) || touch(t, f)) && !waits(t) && ridden >= t.bytes {
                ridden -= t.bytes;
                taken[to] = true;
            }
        }
    };
    ride(&mut order.windows(2).map(|w| (w[0], w[1])));
    ride(&mut order.windows(2).rev().map(|w| (w[1], w[0])));
    join(order.into_iter().filter(|n| taken[*n]).map(|n| pieces[n]))
}

/// The bytes that may ride along with one piece, to each side.
const RIDE_BYTES: u64 = 4 << 20;

fn join(pieces: impl Iterator<Item = Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.file == piece.file && last.end == piece.start => {
                last.end = piece.end;
                last.bytes += piece.bytes;
                last.age = last.age.max(piece.age);
                last.untouched = last.untouched.min(piece.untouched);
            }
            _ => joined.push(piece),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn piece(file: u64, at: u64, age: u32, untouched: u32) -> Piece {
        Piece {
            file,
            start: at * 4096,
            end: (at + 1) * 4096,
            bytes: 4096,
            age: age * S,
            untouched: untouched * S,
            kind: Kind::Random,
        }
    }

    fn rule(pages: u64) -> Rule {
        Rule {
            budget: pages * 4096,
            from_age: Duration::ZERO,
            settle: 5 * S,
            no_wait_age: 30 * S,
            hot: Hot::Stay,
        }
    }

    fn places(picked: &[Piece]) -> Vec<(u64, u64, u64)> {
        picked.iter().map(|p| (p.file, p.start / 4096, p.end / 4096)).collect()
    }

    #[test]
    fn the_oldest_go_first_and_in_the_order_of_their_places() {
        let pieces =
            [piece(2, 9, 20, 20), piece(1, 50, 25, 25), piece(1, 7, 24, 24), piece(0, 0, 6, 6)];
        assert_eq!(places(&pick(&pieces, &rule(3))), [(1, 7, 8), (1, 50, 51), (2, 9, 10)]);
    }

    #[test]
    fn neighbors_ride_along_however_young_unless_they_are_hot() {
        let pieces = [piece(1, 6, 7, 7), piece(1, 7, 25, 25), piece(1, 8, 9, 9), piece(1, 9, 8, 1)];
        assert_eq!(places(&pick(&pieces, &rule(1))), [(1, 6, 9)]);
    }

    #[test]
    fn what_was_rewritten_waits_until_it_is_old_or_nothing_else_is_left() {
        let hot = [piece(1, 7, 25, 1), piece(1, 9, 31, 1)];
        assert_eq!(places(&pick(&hot, &rule(9))), [(1, 9, 10)]);
        let pressed = Rule { hot: Hot::FillUp, ..rule(9) };
        assert_eq!(places(&pick(&hot, &pressed)).len(), 2);
    }

    #[test]
    fn a_batch_is_of_one_kind() {
        let stream = |at, age| Piece { kind: Kind::Sequential, ..piece(5, at, age, age) };
        let pieces = [piece(1, 7, 20, 20), stream(1, 25), stream(2, 22), piece(1, 30, 24, 24)];
        assert_eq!(places(&pick(&pieces, &rule(9))), [(5, 1, 3)]);
        assert_eq!(
            places(&pick(&[pieces[0], pieces[3], stream(4, 23)], &rule(9))),
            [(1, 7, 8), (1, 30, 31)]
        );
    }
}
