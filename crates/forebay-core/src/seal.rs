//! Seals: a shadow file's own note of the length up to which a sync has made it durable.
//!
//! For a file that grows past the daemon each sync would need a record, and a second flush of the device for it. A
//! seal is written beside the bytes, by the file system's own journal, so that one flush brings both. It says the
//! same as the record ([`Change::Synced`](crate::state::Change::Synced)), which follows and need not be synced.
//!
//! - Z1: a seal on the medium means that all bytes up to its length are there, as they were when the seal was made,
//!   or newer.
//! - Z2: a seal is valid until the tier is used again, if the log, as it is found, has no record of the file since:
//!   each later record stands behind that of the sync.
//! - Z3: before bytes that a seal covers are cut off, the record of the cut is durable: by Z2 the seal is void then.
//! - Z4: a seal on the medium means that the log has all records of the file from before the seal, and for a file's
//!   first seal all announcements of its names from before it was known that the file may last.

/// The seal of a file in a certain state: that of the log before record `seq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal {
    /// The use of the tier that the seal is of: the next use assigns again the numbers of records that never reached
    /// the log, and begins with everything that an fsync has promised in the store.
    pub start: u64,
    /// The number of the log's next record.
    pub seq: u64,
    /// The number of durable bytes.
    pub len: u64,
}

/// Three numbers and a checksum.
pub const SEAL_BYTES: usize = 28;

impl Seal {
    pub fn to_bytes(self) -> [u8; SEAL_BYTES] {
        let mut bytes = [0; SEAL_BYTES];
        let words = [self.start, self.seq, self.len];
        for (place, word) in bytes.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let check = crc32fast::hash(&bytes[..24]);
        bytes[24..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a seal; `None` if the bytes are not a seal.
    pub fn of_bytes(bytes: &[u8]) -> Option<Seal> {
        let bytes: &[u8; SEAL_BYTES] = bytes.try_into().ok()?;
        let word = |n: usize| u64::from_le_bytes(bytes[n * 8..][..8].try_into().expect("8 bytes"));
        let check = u32::from_le_bytes(bytes[24..].try_into().expect("4 bytes"));
        let sound = crc32fast::hash(&bytes[..24]) == check;
        sound.then(|| Seal { start: word(0), seq: word(1), len: word(2) })
    }

    /// Whether the seal is valid (Z2) after use `start` of the tier, where the store holds the records before
    /// `applied`, and `last` is the file's last record in the log, if there is one.
    pub fn counts(self, start: u64, applied: u64, last: Option<u64>) -> bool {
        self.start == start && applied <= self.seq && last.is_none_or(|last| last < self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEAL: Seal = Seal { start: 3, seq: 100, len: 5000 };

    // S-11
    #[test]
    fn a_seal_is_told_from_garbage() {
        let bytes = SEAL.to_bytes();
        assert_eq!(Seal::of_bytes(&bytes), Some(SEAL));
        assert_eq!(Seal::of_bytes(&bytes[1..]), None);
        for at in 0..SEAL_BYTES {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Seal::of_bytes(&other), None, "byte {at}");
        }
    }

    // S-3 S-4
    #[test]
    fn a_seal_counts_until_the_log_says_more_of_the_file() {
        assert!(SEAL.counts(3, 100, None) && SEAL.counts(3, 7, Some(99)));
        assert!(!SEAL.counts(3, 7, Some(100)), "the record of the sync, or a later one, is there");
        assert!(!SEAL.counts(3, 101, None), "the store may know more");
        assert!(!SEAL.counts(4, 100, None), "the tier was used since");
    }
}
