//! The contents of test files, and their comparison with the bytes read.
//!
//! Contents are a function of (pattern, signature, rank that wrote it, offset), so any task can
//! compute what another one wrote. A buffer is filled once; each transfer then only gets a stamp
//! per page, which ties it to its place and costs next to nothing. `offset` ties every word. A
//! transfer too short to show rank and signature beside its place has a mixture of the three
//! instead.
//!
//! Invariant P1: filling is deterministic, and [`Filler::check`] accepts exactly the bytes that
//! [`Filler::stamp`] leaves in the buffer.

use crate::rng::{Rng, splitmix};
use crate::{Error, Result};

/// The kinds of contents IOR's `-l` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pattern {
    /// Rank and signature, and the position in the transfer.
    #[default]
    Timestamp,
    /// Every word carries its own offset in the file.
    Offset,
    /// Random bytes that do not compress, the same for every run with the same signature.
    Incompressible,
    /// Random bytes of a separate sequence.
    Random,
}

impl Pattern {
    /// Reads a value of `-l`: a name or IOR's letter.
    pub fn parse(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "t" | "timestamp" | "g" | "generic" => Ok(Pattern::Timestamp),
            "o" | "offset" => Ok(Pattern::Offset),
            "i" | "incompressible" => Ok(Pattern::Incompressible),
            "r" | "random" => Ok(Pattern::Random),
            _ => Err(Error::usage(format!(
                "-l {text}: no such contents; use timestamp, offset, incompressible or random"
            ))),
        }
    }

    /// Whether rank and signature can be read in the contents ([`Filler::signature_in`]).
    pub fn shows_signature(self) -> bool {
        matches!(self, Pattern::Timestamp | Pattern::Offset)
    }

    /// IOR's letter for the pattern.
    pub fn letter(self) -> &'static str {
        match self {
            Pattern::Timestamp => "t",
            Pattern::Offset => "o",
            Pattern::Incompressible => "i",
            Pattern::Random => "r",
        }
    }
}

const PAGE: usize = 4096;
const WORD: usize = 8;
/// In shorter transfers rank and signature, which `timestamp` has in the third word, do not fit.
const SHOWING: usize = 3 * WORD;

/// Fills and checks the transfers of one rank.
#[derive(Debug, Clone)]
pub struct Filler {
    pattern: Pattern,
    signature: u32,
    rank: u32,
    /// The contents of a transfer before it gets its stamps.
    base: Vec<u8>,
}

/// The first byte of a transfer that differs from the written one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// Position within the transfer.
    pub at: usize,
    pub expected: u8,
    pub found: u8,
    /// How many bytes of the transfer differ.
    pub bytes: usize,
}

impl Filler {
    /// A filler for transfers of up to `len` bytes written by `rank`.
    pub fn new(pattern: Pattern, signature: u32, rank: usize, len: usize) -> Self {
        let mut filler = Self { pattern, signature, rank: rank as u32, base: vec![0; len] };
        let mut base = std::mem::take(&mut filler.base);
        match pattern {
            Pattern::Timestamp => write_words(&mut base, |at| {
                if (at / WORD).is_multiple_of(2) { filler.key() } else { at as u64 }
            }),
            Pattern::Offset => (),
            Pattern::Incompressible => Rng::new(filler.key()).fill(&mut base),
            Pattern::Random => Rng::new(!filler.key()).fill(&mut base),
        }
        filler.base = base;
        filler
    }

    /// Rank and signature in one word, as IOR's timestamp words have them.
    fn key(&self) -> u64 {
        u64::from(self.rank) << 32 | u64::from(self.signature)
    }

    /// Fills a fresh buffer; needed once per buffer, before [`Filler::stamp`].
    pub fn fill(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.base[..buffer.len()]);
    }

    /// Turns a filled buffer into the contents of the transfer at `offset`.
    #[inline]
    pub fn stamp(&self, buffer: &mut [u8], offset: u64) {
        if self.base.len() < SHOWING && self.pattern.shows_signature() {
            write_words(buffer, |at| self.mixture(offset + at as u64));
            return;
        }
        if self.pattern == Pattern::Offset {
            self.stamp_words(buffer, offset);
            return;
        }
        for at in (0..buffer.len()).step_by(PAGE) {
            let end = (at + WORD).min(buffer.len());
            let stamp = self.stamp_of(offset + at as u64).to_le_bytes();
            buffer[at..end].copy_from_slice(&stamp[..end - at]);
        }
    }

    /// Rank and signature, then the word's own offset, over and over; in pairs, which compile to
    /// wide stores.
    fn stamp_words(&self, buffer: &mut [u8], offset: u64) {
        let key = self.key();
        let mut pairs = buffer.chunks_exact_mut(2 * WORD);
        let mut at = offset + WORD as u64;
        for pair in &mut pairs {
            pair[..WORD].copy_from_slice(&key.to_le_bytes());
            pair[WORD..].copy_from_slice(&at.to_le_bytes());
            at += 2 * WORD as u64;
        }
        write_words(pairs.into_remainder(), |word| if word == 0 { key } else { at });
    }

    /// The signature that most of a first transfer carries for `rank`, if most of it does: some of
    /// it may be damaged, which [`Filler::check`] finds. Both patterns that show a signature have
    /// it in every second word; the first word of a page may hold the stamp.
    pub fn signature_in(transfer: &[u8], rank: u32) -> Option<u32> {
        let words = transfer.chunks_exact(WORD).step_by(2).skip(1);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        let mut counts = std::collections::BTreeMap::<u64, usize>::new();
        words.for_each(|word| *counts.entry(word).or_default() += 1);
        let all: usize = counts.values().sum();
        let (word, most) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let signature = word as u32;
        (most * 2 > all && word >> 32 == u64::from(rank) && signature != 0).then_some(signature)
    }

    fn stamp_of(&self, offset: u64) -> u64 {
        match self.pattern {
            // Readable in a hex dump: the page's offset, then rank and signature words follow.
            Pattern::Timestamp => offset,
            _ => self.mixture(offset),
        }
    }

    /// A word that differs with rank, signature and place in every byte.
    fn mixture(&self, offset: u64) -> u64 {
        splitmix(&mut (self.key() ^ offset.rotate_left(17)))
    }

    /// Compares the bytes read at `offset` with those that this rank wrote there.
    pub fn check(&self, found: &[u8], offset: u64, scratch: &mut Vec<u8>) -> Option<Difference> {
        scratch.clear();
        scratch.extend_from_slice(&self.base[..found.len()]);
        self.stamp(scratch, offset);
        if scratch == found {
            return None;
        }
        let differs = |at: &usize| scratch[*at] != found[*at];
        let at = (0..found.len()).find(differs)?;
        let bytes = (at..found.len()).filter(differs).count();
        Some(Difference { at, expected: scratch[at], found: found[at], bytes })
    }
}

/// Writes `word(position)` at every eighth byte, the last one cut to fit.
fn write_words(buffer: &mut [u8], word: impl Fn(usize) -> u64) {
    for (index, chunk) in buffer.chunks_mut(WORD).enumerate() {
        chunk.copy_from_slice(&word(index * WORD).to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Pattern; 4] =
        [Pattern::Timestamp, Pattern::Offset, Pattern::Incompressible, Pattern::Random];

    fn written(filler: &Filler, len: usize, offset: u64) -> Vec<u8> {
        let mut buffer = vec![0; len];
        filler.fill(&mut buffer);
        filler.stamp(&mut buffer, offset);
        buffer
    }

    /// P1, also for a buffer used for another transfer before and for odd lengths.
    #[test]
    fn what_is_stamped_is_accepted() {
        for (pattern, len) in ALL.into_iter().flat_map(|p| [(p, 8192), (p, 5000), (p, 3)]) {
            let filler = Filler::new(pattern, 7, 3, len);
            let mut buffer = written(&filler, len, 0);
            filler.stamp(&mut buffer, 1 << 20);
            assert_eq!(filler.check(&buffer, 1 << 20, &mut Vec::new()), None, "{pattern:?} {len}");
        }
    }

    #[test]
    fn a_flipped_byte_is_found_with_both_values() {
        for pattern in ALL {
            let filler = Filler::new(pattern, 7, 3, 8192);
            let mut buffer = written(&filler, 8192, 0);
            buffer[4711] ^= 0x10;
            let expected = buffer[4711] ^ 0x10;
            let found = Difference { at: 4711, expected, found: buffer[4711], bytes: 1 };
            assert_eq!(filler.check(&buffer, 0, &mut Vec::new()), Some(found));
        }
    }

    #[test]
    fn a_signature_is_read_from_contents_that_show_it() {
        for pattern in ALL {
            let mut buffer = written(&Filler::new(pattern, 7, 3, 4096), 4096, 0);
            buffer[500..900].fill(0);
            let found = Filler::signature_in(&buffer, 3);
            assert_eq!(found, pattern.shows_signature().then_some(7), "{pattern:?}");
            assert_eq!(Filler::signature_in(&buffer, 2), None);
        }
        assert_eq!(Filler::signature_in(&[0; 4096], 0), None, "a hole has none");
        assert_eq!(Filler::signature_in(&[1; 16], 0), None);
    }

    /// Also for transfers too short for rank, signature and place to be written out.
    #[test]
    fn another_place_rank_or_run_is_not_accepted() {
        for (pattern, len) in ALL.into_iter().flat_map(|p| [8192, 24, 16, 8, 4].map(|n| (p, n))) {
            let mine = Filler::new(pattern, 7, 3, len);
            let buffer = written(&mine, len, 8192);
            let wrong =
                |filler: &Filler, offset| filler.check(&buffer, offset, &mut Vec::new()).is_some();
            assert!(!wrong(&mine, 8192), "{pattern:?} {len}");
            assert!(wrong(&mine, 0), "{pattern:?} {len}");
            assert!(wrong(&Filler::new(pattern, 7, 4, len), 8192), "{pattern:?} {len}");
            assert!(wrong(&Filler::new(pattern, 8, 3, len), 8192), "{pattern:?} {len}");
        }
    }

    #[test]
    fn random_contents_have_all_byte_values() {
        let buffer = written(&Filler::new(Pattern::Incompressible, 1, 0, 1 << 16), 1 << 16, 0);
        let mut counts = [0u32; 256];
        buffer.iter().for_each(|&byte| counts[byte as usize] += 1);
        assert!(counts.iter().all(|&n| (150..370).contains(&n)));
    }
}
