//! Digests of blocks: they tell whether the bytes in a shadow are those of the backing store.
//!
//! A digest covers content and length of a block; a hole has the digest of zeros. Digests are XXH3-128
//! under a key that each tier draws by itself (docs/decisions/content.md).

use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_128_with_secret};

/// Bytes of a block. The last block ends with the file.
pub const BLOCK: u64 = 16 << 10;

static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// The digest of one block of a backing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u128);

impl Digest {
    /// The digest of a block that is not known: it equals no block's.
    pub const UNKNOWN: Digest = Digest(0);

    pub const BYTES: usize = 16;

    pub fn is_known(self) -> bool {
        self != Digest::UNKNOWN
    }

    pub fn to_bytes(self) -> [u8; Digest::BYTES] {
        self.0.to_le_bytes()
    }

    pub fn from_bytes(bytes: [u8; Digest::BYTES]) -> Digest {
        Digest(u128::from_le_bytes(bytes))
    }
}

/// The key of a tier: secret, and random.
#[derive(Clone)]
pub struct Key([u8; Key::BYTES]);

impl Key {
    /// The number of bytes that the hash mixes in.
    pub const BYTES: usize = 192;

    pub fn of(bytes: [u8; Key::BYTES]) -> Key {
        Key(bytes)
    }

    /// The digest of a block.
    pub fn digest(&self, block: &[u8]) -> Digest {
        // No real digest is equal to the unknown one.
        Digest(xxh3_128_with_secret(block, &self.0).max(1))
    }

    /// The digest of a hole of at most [`BLOCK`] bytes.
    pub fn digest_of_zeros(&self, len: u64) -> Digest {
        self.digest(&ZEROS[..len as usize])
    }

    /// A checksum that tells whether a record of digests is whole, and made with this key.
    pub fn check(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_secret(bytes, &self.0)
    }
}

/// A block of a file, and the part of it that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub block: u64,
    pub start: u64,
    pub end: u64,
    /// The part is all of the block.
    pub whole: bool,
}

/// The blocks of `[start, end)` in a file of `size` bytes.
pub fn parts(start: u64, end: u64, size: u64) -> impl Iterator<Item = Part> {
    let blocks = if start < end { start / BLOCK..end.div_ceil(BLOCK) } else { 0..0 };
    blocks.map(move |block| {
        let (first, last) = (block * BLOCK, ((block + 1) * BLOCK).min(size));
        let (from, to) = (first.max(start), ((block + 1) * BLOCK).min(end));
        Part { block, start: from, end: to, whole: from == first && to == last }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_whole_if_all_of_it_is_meant() {
        let of = |start, end, size| {
            parts(start, end, size).map(|part| (part.block, part.whole)).collect::<Vec<_>>()
        };
        assert_eq!(of(0, 2 * BLOCK, 9 * BLOCK), [(0, true), (1, true)]);
        assert_eq!(of(1, 2 * BLOCK + 1, 9 * BLOCK), [(0, false), (1, true), (2, false)]);
        assert_eq!(of(BLOCK, BLOCK + 5, BLOCK + 5), [(1, true)], "the last one");
        assert_eq!(of(BLOCK, BLOCK + 5, BLOCK + 6), [(1, false)]);
        assert_eq!(of(7, 7, 9), []);
    }

    #[test]
    fn a_digest_covers_content_length_and_key() {
        let key = Key::of([7; Key::BYTES]);
        let digest = key.digest(&[0; 100]);
        assert!(digest.is_known());
        assert_eq!(digest, key.digest_of_zeros(100));
        assert_ne!(digest, key.digest(&[0; 101]));
        assert_ne!(digest, Key::of([8; Key::BYTES]).digest(&[0; 100]));
        assert_eq!(Digest::from_bytes(digest.to_bytes()), digest);
    }
}
