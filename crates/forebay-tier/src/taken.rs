//! What was taken over from other members: a side file for each file, until the members that it was taken from
//! have come back and compared.
//!
//! ```text
//! taken/KEY        crc: u32, len: u32, what the file was: len bytes (postcard), then 32 bytes for each piece
//! ```
//!
//! Nothing is synced, and nothing depends on these files: where one is missing or damaged, a member that comes back
//! keeps its bytes aside. `crc` is CRC-32 of `len` and what follows up to the pieces; a damaged piece fits no bytes.
//! A file without its head, which is written last, does not count. The file goes where bytes of what it describes are
//! found lost.

use std::io;
use std::sync::Arc;

use forebay_backing::FileKey;

use crate::core::taken::{AsTaken, Former, Piece};
use crate::digests::fill_at_random;
use crate::media::{Media, MediaFile, Open};

pub const DIR: &str = "taken";

/// Pieces that are written at once.
const AT_ONCE: usize = 2048;

/// Checksum and length stand in front of the head.
const LENGTHS: usize = 8;

/// A longer head is not read: it is no head.
const HEAD_MAX: usize = 1 << 20;

fn name(key: FileKey) -> String {
    format!("{DIR}/{:x}.{:x}", key.ino, key.generation)
}

fn key_of(name: &str) -> Option<FileKey> {
    let (ino, generation) = name.split_once('.')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(FileKey { ino: hex(ino)?, generation: hex(generation)? })
}

/// A record that is being written, in the place of an earlier one of the same file.
pub struct Making {
    file: Arc<dyn MediaFile>,
    head: Vec<u8>,
    seed: u64,
    at: u64,
    pieces: Vec<u8>,
}

impl Making {
    /// Begins the record of a file, with a seed of its own.
    ///
    /// # Errors
    ///
    /// Those of the medium.
    pub fn begin(
        media: &dyn Media,
        key: FileKey,
        from: &[Former],
        size: u64,
    ) -> io::Result<Making> {
        let mut seed = [0; 8];
        fill_at_random(&mut seed)?;
        let seed = u64::from_le_bytes(seed);
        let what = AsTaken { key, from: from.to_vec(), size, seed };
        let what = postcard::to_stdvec(&what).map_err(io::Error::other)?;
        let head = [&(what.len() as u32).to_le_bytes()[..], &what].concat();
        media.make_dir(DIR)?;
        let file = media.open(&name(key), Open::Fresh)?;
        let at = (LENGTHS + what.len()) as u64;
        Ok(Making { file, head, seed, at, pieces: Vec::new() })
    }

    /// Adds the piece of these bytes, which lies behind the last one.
    ///
    /// # Errors
    ///
    /// Those of the medium.
    pub fn add(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        self.pieces.extend(Piece::of(start, bytes, self.seed).to_bytes());
        if self.pieces.len() < AT_ONCE * Piece::BYTES { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write_at(&self.pieces, self.at)?;
        self.at += self.pieces.len() as u64;
        self.pieces.clear();
        Ok(())
    }

    /// Ends the record: from here on it counts.
    ///
    /// # Errors
    ///
    /// Those of the medium.
    pub fn end(mut self) -> io::Result<()> {
        let crc = crc32fast::hash(&self.head).to_le_bytes();
        let mut first = [&crc[..], &self.head].concat();
        match self.at == first.len() as u64 {
            // Most files are small.
            true => first.append(&mut self.pieces),
            false => self.write()?,
        }
        self.file.write_at(&first, 0)
    }
}

/// The record of a file.
pub struct Taken {
    file: Arc<dyn MediaFile>,
    pub what: AsTaken,
    /// Where the pieces begin, and how many there are.
    begin: u64,
    count: u64,
}

impl Taken {
    /// The record of a file; `None` if there is none that counts.
    pub fn of(media: &dyn Media, key: FileKey) -> Option<Taken> {
        let file = media.open(&name(key), Open::Existing).ok()?;
        let mut lengths = [0; LENGTHS];
        let is_whole = file.read_at(&mut lengths, 0).ok()? == LENGTHS;
        let (crc, len) = lengths.split_first_chunk::<4>()?;
        let bytes = u32::from_le_bytes(len.try_into().ok()?) as usize;
        let mut head = len.to_vec();
        let read = file.read_onto(&mut head, bytes.min(HEAD_MAX), LENGTHS as u64).ok()?;
        if !is_whole || read < bytes || crc32fast::hash(&head).to_le_bytes() != *crc {
            return None;
        }
        let what: AsTaken = postcard::from_bytes(&head[len.len()..]).ok()?;
        let begin = (LENGTHS + bytes) as u64;
        let count = (file.size().ok()?.checked_sub(begin)?) / Piece::BYTES as u64;
        (what.key == key).then_some(Taken { file, what, begin, count })
    }

    /// Puts up to `most` pieces that end behind `offset` into `out`, in order.
    ///
    /// # Errors
    ///
    /// Those of the medium.
    pub fn pieces(&self, offset: u64, most: usize, out: &mut Vec<u8>) -> io::Result<()> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut one = [0; Piece::BYTES];
            self.file.read_at(&mut one, self.place_of(middle))?;
            match Piece::from_bytes(one).end <= offset {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let len = (self.count - low).min(most as u64) as usize * Piece::BYTES;
        self.file.read_onto(out, len, self.place_of(low)).map(drop)
    }

    fn place_of(&self, number: u64) -> u64 {
        self.begin + number * Piece::BYTES as u64
    }
}

/// Removes the record of a file, if there is one.
pub fn remove(media: &dyn Media, key: FileKey) {
    let _ = media.remove(&name(key)); // A record that stays says what is true.
}

/// The files that have records.
pub fn all(media: &dyn Media) -> Vec<FileKey> {
    media.list(DIR).unwrap_or_default().iter().filter_map(|name| key_of(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::digest::BLOCK;
    use crate::media::DirMedia;

    const KEY: FileKey = FileKey { ino: 0xab, generation: 0xcd };

    fn made(media: &dyn Media, size: u64) -> Vec<Piece> {
        let from = [Former { member: "n1".into(), epoch: 3 }];
        let mut making = Making::begin(media, KEY, &from, size).unwrap();
        let seed = making.seed;
        let starts = (0..size).step_by(BLOCK as usize);
        let add = |start| {
            making.add(start, &[1; 100]).unwrap();
            Piece::of(start, &[1; 100], seed)
        };
        let pieces = starts.map(add).collect();
        assert!(Taken::of(media, KEY).is_none(), "it has not ended");
        making.end().unwrap();
        pieces
    }

    #[test]
    fn a_record_is_read_from_any_offset_on() {
        let dir = tempfile::tempdir().unwrap();
        let media = DirMedia::open(dir.path()).unwrap();
        assert!(Taken::of(&media, KEY).is_none() && all(&media).is_empty());
        made(&media, 10);
        let size = BLOCK * 5000;
        let pieces = made(&media, size);
        assert_eq!((pieces.len(), all(&media)), (5000, vec![KEY]));
        let taken = Taken::of(&media, KEY).unwrap();
        assert_eq!((taken.what.size, taken.what.from[0].epoch), (size, 3));
        let read = |offset, most| {
            let mut out = Vec::new();
            taken.pieces(offset, most, &mut out).unwrap();
            Piece::all_of(&out)
        };
        assert_eq!(read(0, 10_000), pieces);
        assert_eq!(read(99, 2), pieces[..2]);
        assert_eq!(read(100, 2), pieces[1..3]);
        assert_eq!(read(BLOCK * 4999 + 1, 2), pieces[4999..]);
        assert_eq!(read(size, 2), []);
        remove(&media, KEY);
        assert!(Taken::of(&media, KEY).is_none());
    }

    #[test]
    fn a_damaged_record_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let media = DirMedia::open(dir.path()).unwrap();
        made(&media, 10);
        let path = dir.path().join(name(KEY));
        let whole = std::fs::read(&path).unwrap();
        let head = whole.len() - Piece::BYTES;
        for at in 0..head {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            std::fs::write(&path, &bytes).unwrap();
            assert!(Taken::of(&media, KEY).is_none(), "byte {at}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(Taken::of(&media, KEY).is_none(), "cut at {at}");
        }
        std::fs::write(&path, &whole).unwrap();
        assert!(Taken::of(&media, KEY).is_some());
    }
}
