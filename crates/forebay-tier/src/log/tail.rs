//! How a file of the log ends: well, torn, or in damage.
//!
//! Records are written one behind the other, ahead of zeros. So a dying daemon leaves whole records,
//! at most a part of one more, and zeros: anything else was changed afterwards (T1). A loss of power
//! may also take any record that was never synced, even one in front of others that arrived; but no
//! record before the number that a later record calls synced (T2).

use serde::de::DeserializeOwned;

use crate::core::state::Boot;
use crate::log::{Entry, Found, decode, extent};

/// The bytes behind the last record that can be read in order.
#[derive(Debug)]
pub struct Tail<E = Entry<'static>> {
    /// The number of the record that should come next.
    missing: u64,
    /// The bytes there cannot be read, and are not a part of a record whose write broke off.
    whole: bool,
    /// Records behind it that can be read, with higher numbers.
    pub sound: Vec<Found<E>>,
}

/// A write that breaks off, because its process died or the space ran out, ends at a block.
const BLOCK: usize = 512;

impl<E: DeserializeOwned> Tail<E> {
    pub(super) fn of(bytes: &[u8], at: usize, missing: u64) -> Tail<E> {
        let rest = &bytes[at..];
        let Some(last) = rest.iter().rposition(|byte| *byte != 0) else {
            return Tail { missing, whole: false, sound: Vec::new() };
        };
        // The blocks are those of the file.
        let written = (at + last + 1).next_multiple_of(BLOCK) - at;
        let whole = !is_torn(rest, written, missing);
        Tail { missing, whole, sound: behind(&rest[..=last], missing) }
    }

    /// Whether the tail cannot be the result of a crash.
    pub fn is_damage(&self, boot: Boot) -> bool {
        match boot {
            Boot::Kept => self.whole || !self.sound.is_empty(),
            Boot::Lost => self.sound.iter().any(|found| found.synced > self.missing),
        }
    }

    /// The number after the last record that can be read at all.
    pub fn next_seq(&self) -> u64 {
        self.sound.last().map_or(self.missing, |found| found.seq + 1)
    }
}

/// Whether the first `written` bytes of `rest` may be a part of record `seq`.
fn is_torn(rest: &[u8], written: usize, seq: u64) -> bool {
    let Some(number) = rest.get(8..16).filter(|_| written >= 16) else { return true };
    number == seq.to_le_bytes() && extent(rest).is_some_and(|end| end > written)
}

/// Every record that can be read in `bytes`, which begin with an unreadable one, with rising numbers
/// above `missing`. The beginnings of the records are not known.
fn behind<E: DeserializeOwned>(bytes: &[u8], missing: u64) -> Vec<Found<E>> {
    let mut sound: Vec<Found<E>> = Vec::new();
    // The last records of a file may end in zeros, which were cut off.
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len() + BLOCK, 0);
    let mut at = 1;
    while at + 16 < padded.len() {
        let above = sound.last().map_or(missing, |found| found.seq);
        let seq = u64::from_le_bytes(padded[at + 8..at + 16].try_into().expect("8 bytes"));
        // One number per byte at most: a number that is farther off is not a record's.
        let plausible = seq > above && seq - missing <= bytes.len() as u64;
        match plausible.then(|| decode(&padded[at..])).flatten() {
            Some(found) => {
                at += found.size();
                sound.push(found);
            }
            None => at += 1,
        }
    }
    sound
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::state::{Change, Stretches};
    use crate::log::{FileId, HAS_SYNCED};

    fn record(seq: u64, synced: u64) -> Vec<u8> {
        record_of(seq, synced, &Entry::Drop(FileId(seq)))
    }

    fn record_of(seq: u64, synced: u64, entry: &Entry) -> Vec<u8> {
        let payload = postcard::to_stdvec(entry).unwrap();
        let mut bytes = vec![0; 8];
        bytes.extend(seq.to_le_bytes());
        bytes.extend(synced.to_le_bytes());
        bytes.extend(&payload);
        bytes[..4].copy_from_slice(&(payload.len() as u32 | HAS_SYNCED).to_le_bytes());
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Records 5 to 9, of which the first say that 5 is synced, and the last that 8 is; then zeros.
    fn log() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for (seq, synced) in [(5, 5), (6, 5), (7, 5), (8, 8), (9, 8)] {
            bytes.extend(record(seq, synced));
            ends.push(bytes.len());
        }
        bytes.resize(4096, 0);
        (bytes, ends)
    }

    fn tail(bytes: &[u8]) -> Tail {
        let (mut at, mut seq) = (0, 5);
        while let Some(found) =
            decode::<Entry<'static>>(&bytes[at..]).filter(|found| found.seq == seq)
        {
            (at, seq) = (at + found.size(), seq + 1);
        }
        Tail::of(bytes, at, seq)
    }

    /// Every bit of every record flipped, one at a time, is found on the same boot, and the records
    /// behind it are read.
    // S-4 S-11
    #[test]
    fn a_flipped_bit_is_no_torn_end() {
        let (sound, ends) = log();
        assert!(!tail(&sound).is_damage(Boot::Kept));
        for bit in 0..ends[4] * 8 {
            let mut bytes = sound.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let hit = ends.iter().position(|end| bit / 8 < *end).unwrap();
            let tail = tail(&bytes);
            let seqs: Vec<u64> = tail.sound.iter().map(|found| found.seq).collect();
            assert_eq!(seqs, (5 + hit as u64 + 1..10).collect::<Vec<_>>(), "bit {bit}");
            // A length of the last record that reaches beyond the written bytes looks torn.
            let torn = hit == 4 && bit / 8 - ends[3] < 4;
            assert!(tail.is_damage(Boot::Kept) || torn, "bit {bit}");
            // Records 8 and 9 say that those before 8 were durable.
            assert_eq!(tail.is_damage(Boot::Lost), hit < 3, "bit {bit}");
        }
    }

    /// A record that a dying daemon leaves cut at a block's end, and unsynced records after a loss
    /// of power.
    // S-2 S-4
    #[test]
    fn what_a_crash_leaves_is_no_damage() {
        let (mut bytes, ends) = log();
        bytes.truncate(ends[4]);
        assert!(!tail(&bytes).is_damage(Boot::Kept));
        let ranges: Stretches<'_> = (1..500).map(|n| (n, n + 1)).collect();
        bytes.extend(record_of(10, 8, &Entry::of(FileId(1), &Change::Kept { ranges })));
        let whole = bytes.len();
        bytes.resize(4096, 0);
        bytes[BLOCK] ^= 1;
        assert!(tail(&bytes).is_damage(Boot::Kept), "it was written to its end");
        bytes[BLOCK..whole].fill(0);
        assert!(!tail(&bytes).is_damage(Boot::Kept), "it may have been torn there");
        let (mut lost, ends) = log();
        lost[ends[0]..ends[1]].fill(0);
        lost[ends[2]..].fill(0);
        let tail = tail(&lost);
        assert_eq!(tail.sound.len(), 1, "record 7 arrived");
        assert!(!tail.is_damage(Boot::Lost));
        assert!(tail.is_damage(Boot::Kept), "without a loss of power nothing goes");
    }
}
