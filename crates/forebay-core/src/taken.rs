//! Fingerprints of files that were taken over from a dead member. When that member comes back its bytes are old
//! where they are as they were taken: others have them, and may have changed them since.
//!
//! A fingerprint has pieces: the stretches that were newer than the store, cut at blocks, with their XXH3-128. The
//! seed is drawn when the file is taken over, after all its bytes were written: no program can make other bytes of
//! the same sum.

use forebay_backing::{FileKey, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::digest::BLOCK;

/// A former home of a file: a member, and the life in which another took its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    pub member: String,
    pub epoch: u64,
}

/// A file as it was taken over, apart from its pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsTaken {
    pub key: FileKey,
    /// The homes whose bytes the file had, the first one first.
    pub from: Vec<Former>,
    pub size: u64,
    pub seed: u64,
}

/// A stretch of a file that lies in one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub start: u64,
    pub end: u64,
    sum: u128,
}

impl Piece {
    /// The bytes that a piece takes in a record or a message.
    pub const BYTES: usize = 32;

    pub fn of(start: u64, bytes: &[u8], seed: u64) -> Piece {
        Piece { start, end: start + bytes.len() as u64, sum: xxh3_128_with_seed(bytes, seed) }
    }

    pub fn to_bytes(self) -> [u8; Piece::BYTES] {
        let mut bytes = [0; Piece::BYTES];
        bytes[..8].copy_from_slice(&self.start.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.end.to_le_bytes());
        bytes[16..].copy_from_slice(&self.sum.to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: [u8; Piece::BYTES]) -> Piece {
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let sum = bytes[16..].try_into().map_or(0, u128::from_le_bytes);
        Piece { start: word(0), end: word(8), sum }
    }

    /// Reads the pieces of a message; bytes behind the last whole one do not count.
    pub fn all_of(bytes: &[u8]) -> Vec<Piece> {
        bytes.as_chunks().0.iter().map(|bytes| Piece::from_bytes(*bytes)).collect()
    }

    fn is_sound(&self) -> bool {
        self.start < self.end && self.start / BLOCK == (self.end - 1) / BLOCK
    }
}

/// Cuts a stretch at the ends of blocks.
pub fn cut((start, end): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    let blocks = start / BLOCK..end.div_ceil(BLOCK);
    blocks.map(move |block| ((block * BLOCK).max(start), ((block + 1) * BLOCK).min(end)))
}

/// The pieces of a file in order, which come in parts: the first part, and the part from an offset on.
pub struct Pieces<'a> {
    part: std::vec::IntoIter<Piece>,
    more: &'a mut dyn FnMut(u64) -> Result<Vec<Piece>>,
}

impl Pieces<'_> {
    pub fn new(part: Vec<Piece>, more: &mut dyn FnMut(u64) -> Result<Vec<Piece>>) -> Pieces<'_> {
        Pieces { part: part.into_iter(), more }
    }

    /// The piece that has the byte at `offset`, which never falls.
    fn at(&mut self, offset: u64) -> Result<Option<Piece>> {
        let is_before = |piece: &Piece| piece.end <= offset;
        let next = |part: &mut std::vec::IntoIter<Piece>| {
            let passed = part.as_slice().iter().take_while(|piece| is_before(piece)).count();
            part.nth(passed)
        };
        let mut found = next(&mut self.part);
        if found.is_none() {
            self.part = (self.more)(offset)?.into_iter();
            found = next(&mut self.part);
        }
        Ok(found.filter(|piece| piece.start <= offset && piece.is_sound()))
    }
}

/// Whether all bytes of `dirty`, in order, are in pieces for which `is_same` says that the bytes here are the same.
///
/// # Errors
///
/// Those of reading the pieces, and of `is_same`.
pub fn covers(
    dirty: &[(u64, u64)],
    pieces: &mut Pieces<'_>,
    is_same: &mut dyn FnMut(&Piece) -> Result<bool>,
) -> Result<bool> {
    let mut same_until = 0;
    for &(start, end) in dirty {
        same_until = same_until.max(start);
        while same_until < end {
            match pieces.at(same_until)? {
                Some(piece) if is_same(&piece)? => same_until = piece.end,
                _ => return Ok(false),
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;

    /// A file of three blocks and a bit.
    fn taken() -> Vec<u8> {
        (0..3 * BLOCK + 100).map(|at| (at / 100) as u8).collect()
    }

    fn pieces_of(bytes: &[u8], runs: &[(u64, u64)]) -> Vec<Piece> {
        let cut = runs.iter().copied().flat_map(cut);
        cut.map(|(a, b)| Piece::of(a, &bytes[a as usize..b as usize], SEED)).collect()
    }

    /// Compares bytes here, dirty in `dirty`, with what was taken in `runs`; the pieces come `at_once`.
    fn compare(here: &[u8], dirty: &[(u64, u64)], runs: &[(u64, u64)], at_once: usize) -> bool {
        let all = pieces_of(&taken(), runs);
        let mut more = |offset: u64| {
            let left = all.iter().filter(|piece| piece.end > offset);
            Ok(left.take(at_once).copied().collect())
        };
        let is_same = &mut |piece: &Piece| {
            let bytes = here.get(piece.start as usize..piece.end as usize);
            Ok(bytes.is_some_and(|bytes| Piece::of(piece.start, bytes, SEED) == *piece))
        };
        covers(dirty, &mut Pieces::new(Vec::new(), &mut more), is_same).unwrap()
    }

    #[test]
    fn bytes_count_as_taken_only_where_pieces_say_so() {
        let (whole, all) = ([(0, 3 * BLOCK + 100)], taken());
        for at_once in [1, 2, 100] {
            let is_taken =
                |dirty: &[(u64, u64)], runs: &[(u64, u64)]| compare(&all, dirty, runs, at_once);
            assert!(is_taken(&whole, &whole));
            assert!(is_taken(&[], &whole) && is_taken(&[], &[]));
            assert!(is_taken(&[(5, 10), (20, 30), (BLOCK - 1, 2 * BLOCK + 1)], &whole));
            assert!(!is_taken(&whole, &[]));
            assert!(!is_taken(&whole, &[(0, 3 * BLOCK + 99)]), "a byte behind what was taken");
            assert!(!is_taken(&whole, &[(1, 3 * BLOCK + 100)]), "or in front of it");
            assert!(!is_taken(&whole, &[(0, BLOCK), (BLOCK + 1, 3 * BLOCK + 100)]), "or within");
            assert!(is_taken(&[(10, 20), (BLOCK + 1, 2 * BLOCK)], &[(10, 20), (BLOCK, 2 * BLOCK)]));
        }
    }

    #[test]
    fn one_byte_that_differs_is_found_wherever_it_is() {
        let whole = [(0, 3 * BLOCK + 100)];
        for at in [0, 99, BLOCK - 1, BLOCK, 2 * BLOCK + 5, 3 * BLOCK + 99] {
            let mut here = taken();
            here[at as usize] ^= 1;
            assert!(!compare(&here, &whole, &whole, 2), "{at}");
            assert!(!compare(&here, &[(at, at + 1)], &whole, 2), "{at}");
            let elsewhere = (at + BLOCK) % (2 * BLOCK);
            assert!(compare(&here, &[(elsewhere, elsewhere + 1)], &whole, 2), "{at}");
        }
    }

    /// Damaged pieces prove nothing, and end.
    #[test]
    fn what_is_no_piece_covers_nothing() {
        let bytes = vec![0; 4 * BLOCK as usize];
        let odd = [
            Piece { start: 0, end: 0, sum: 0 },
            Piece { start: 5, end: 4, sum: 0 },
            Piece { start: 0, end: u64::MAX, sum: 0 },
            Piece::of(0, &bytes[..BLOCK as usize + 1], SEED),
        ];
        for piece in odd {
            let mut more = |_| Ok(vec![piece]);
            let mut always = |_: &Piece| Ok(true);
            let mut pieces = Pieces::new(vec![piece], &mut more);
            assert!(!covers(&[(0, 10)], &mut pieces, &mut always).unwrap(), "{piece:?}");
        }
    }

    #[test]
    fn pieces_go_over_the_wire_as_they_are() {
        let pieces = pieces_of(&taken(), &[(0, 10), (BLOCK, 3 * BLOCK)]);
        let mut bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_bytes()).collect();
        bytes.push(1);
        assert_eq!(pieces.len(), 3);
        assert_eq!(Piece::all_of(&bytes), pieces);
    }
}
