//! The log: every change of the index since the last compaction, in order, one checksummed record each.
//!
//! A record that is written and not synced survives the death of the process (S2); a synced record survives the
//! loss of power (S3). [`tail`] says how a file of the log may end, and what is damage.
//!
//! A file of the log ends in zeros, written ahead of the records: a sync then finds blocks and a size that the
//! file system already knows, and costs one flush of the device and no commit of a journal. (Databases do the
//! same with their logs; fdatasync(2) leaves out metadata that reading does not need.)
//!
//! Layout of a record: `len: u32`, `crc: u32` over everything after it, `seq: u64`, `synced: u64`,
//! payload of `len` bytes; little-endian. Sequence numbers rise by one and never start again.
//! `synced`: the records before this number were durable when this one was written. The highest bit of `len` is
//! set in every record and does not count.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::core::id::FileId;
use crate::core::journal::NameRecord;
use crate::core::paths::Placed;
use crate::core::state::{Change, Record};
use crate::media::{Media, MediaFile, Open};

mod tail;

pub use tail::Tail;

/// A change of the index. Replaying a part of the log over a later state gives that later state again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Entry<'a> {
    /// The whole state of a file.
    Put(FileId, Cow<'a, Box<Record>>),
    /// The numbers of entries that only format 2 had; they are never used again.
    Old1,
    Old2,
    Old3,
    Drop(FileId),
    Old5,
    Old6,
    Old7,
    Old8,
    /// A change of names on the backing store.
    Name(NameRecord),
    /// A change of the state of a file.
    Change(FileId, Cow<'a, Change<'a>>),
    /// The places of directories.
    Dirs(Vec<Placed>),
}

impl Entry<'_> {
    /// A change of a file that its maker keeps.
    pub fn of<'a>(id: FileId, change: &'a Change<'a>) -> Entry<'a> {
        Entry::Change(id, Cow::Borrowed(change))
    }

    /// Returns the change of a file's state.
    pub(crate) fn change(&self) -> Option<&Change<'_>> {
        match self {
            Entry::Change(_, change) => Some(change),
            _ => None,
        }
    }
}

const HEADER: usize = 24;

const HAS_SYNCED: u32 = 1 << 31;

/// A record larger than this is damage, not data: the largest is a file of many runs.
const RECORD_MAX: usize = if cfg!(test) { 1 << 16 } else { 1 << 30 };

/// Space is taken, and zeroed, in steps of this, so that appending does not fail on a tier that has
/// just become full.
const RESERVE_STEP: u64 = 1 << 20;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// One file of the log, open for appending.
pub struct LogFile {
    pub name: String,
    file: Arc<dyn MediaFile>,
    tail: u64,
    reserved: u64,
    buf: Vec<u8>,
    /// The number of bytes at the front of `buf` that are records waiting for the next write.
    waiting: usize,
    first_seq: u64,
    /// A sync has failed: the kernel counts the lost bytes as written, and does not report them again.
    unsure: bool,
    /// The number of times that `unsure` was set.
    doubts: u64,
    /// Up to this offset the file has its blocks, and they are filled, durably.
    laid: u64,
    /// Records before this position were handed to the device since the last doubt.
    out: u64,
    /// The number of failed syncs on the medium at the last look.
    failed: u64,
}

/// A span in the life of a file of the log, between two failures of its syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spell {
    first_seq: u64,
    doubts: u64,
}

/// Records of a file of the log that were handed to the device: any flush of it from then on makes them durable.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    spell: Spell,
    /// All the records are before this position.
    pub seq: u64,
    end: u64,
}

/// How far a file of the log will be filled once a sync that begins now has ended.
#[derive(Debug, Clone, Copy)]
pub struct Laying {
    spell: Spell,
    to: u64,
}

impl Out {
    /// The end of the bytes of the file that are to be handed out.
    pub fn end(&self) -> u64 {
        self.end
    }
}

impl LogFile {
    /// Starts an empty file whose first record will be `first_seq`; its name is durable.
    pub fn create(media: &dyn Media, first_seq: u64) -> io::Result<LogFile> {
        LogFile::create_in(media, "log", first_seq)
    }

    /// Starts an empty file in another directory, for a log with entries of its own.
    pub fn create_in(media: &dyn Media, dir: &str, first_seq: u64) -> io::Result<LogFile> {
        let (name, failed) = (name_in(dir, first_seq), media.failed_syncs());
        // The name must never disappear: without this file the log would be damaged.
        let file = media.open(&name, Open::Keep)?;
        if file.stat()?.len > 0 {
            // Old contents must not reappear behind later records.
            file.set_len(0)?;
            file.sync_data()?;
        }
        media.sync_dir(dir)?;
        let mut log = LogFile {
            name,
            file,
            tail: 0,
            reserved: 0,
            buf: Vec::new(),
            waiting: 0,
            first_seq,
            unsure: false,
            doubts: 0,
            laid: 0,
            out: 0,
            failed,
        };
        log.reserve(0)?;
        Ok(log)
    }

    /// Appends one record, in one write with the waiting ones. On an error nothing was appended: the next
    /// record overwrites the torn one.
    pub fn append(&mut self, seq: u64, synced: u64, entry: &impl Serialize) -> io::Result<()> {
        self.encode(seq, synced, entry)?;
        self.write()
    }

    /// Appends one record that is written with the next one, or by [`LogFile::flush`].
    pub fn append_later(
        &mut self,
        seq: u64,
        synced: u64,
        entry: &impl Serialize,
    ) -> io::Result<()> {
        self.encode(seq, synced, entry)?;
        self.waiting = self.buf.len();
        Ok(())
    }

    /// Writes the waiting records.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.waiting > 0 { self.write() } else { Ok(()) }
    }

    /// Puts a record behind the waiting ones.
    fn encode(&mut self, seq: u64, synced: u64, entry: &impl Serialize) -> io::Result<()> {
        let start = self.waiting;
        self.buf.truncate(start);
        self.buf.resize(start + HEADER, 0);
        let encoded = postcard::to_io(entry, &mut self.buf).map(drop);
        let wrong = match encoded {
            Err(e) => Some(e.to_string()),
            // A reader takes a longer record for damage.
            Ok(()) if self.buf.len() - start - HEADER > RECORD_MAX => Some("too large".into()),
            Ok(()) => None,
        };
        if let Some(wrong) = wrong {
            self.buf.truncate(start);
            return Err(io::Error::other(format!("encoding a log record: {wrong}")));
        }
        let record = &mut self.buf[start..];
        let len = (record.len() - HEADER) as u32;
        record[0..4].copy_from_slice(&(len | HAS_SYNCED).to_le_bytes());
        record[8..16].copy_from_slice(&seq.to_le_bytes());
        record[16..24].copy_from_slice(&synced.to_le_bytes());
        let crc = crc32fast::hash(&record[8..]);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        self.reserve(self.buf.len() as u64)?;
        let end = self.tail + self.buf.len() as u64;
        if let Err(error) = self.file.write_at(&self.buf, self.tail) {
            // The rest of a torn record behind the next record would look like damage.
            if self.zero(self.tail, end).is_err() {
                self.reserved = self.reserved.min(self.tail);
            }
            return Err(error);
        }
        self.tail = end;
        self.waiting = 0;
        self.buf.clear();
        if self.buf.capacity() > 1 << 16 {
            self.buf = Vec::new();
        }
        Ok(())
    }

    /// Makes room for `more` bytes, and some reserve.
    fn reserve(&mut self, more: u64) -> io::Result<()> {
        let need = self.tail + more;
        if need <= self.reserved && self.reserved > 0 {
            return Ok(());
        }
        match self.reserve_ahead(need, more) {
            // There may still be room for the record itself, which may be the record of an eviction.
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => self.reserved = need,
            other => other?,
        }
        Ok(())
    }

    fn reserve_ahead(&mut self, need: u64, more: u64) -> io::Result<()> {
        let step = more.max(RESERVE_STEP);
        match self.file.reserve(self.tail, step) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            other => other?,
        }
        self.zero(self.reserved.max(need), self.tail + step)?;
        self.reserved = self.tail + step;
        Ok(())
    }

    fn zero(&self, mut from: u64, to: u64) -> io::Result<()> {
        while from < to {
            let len = (to - from).min(ZEROS.len() as u64);
            self.file.write_at(&ZEROS[..len as usize], from)?;
            from += len;
        }
        Ok(())
    }

    /// Notes that a sync of the file, or the flush that was to make it durable, has failed. All bytes that the
    /// device had are written again.
    pub fn doubt(&mut self) {
        self.unsure = true;
        self.doubts += 1;
        // The zeros ahead are written again, too.
        (self.laid, self.out) = (0, 0);
        self.reserved = self.reserved.min(self.tail);
    }

    fn spell(&self) -> Spell {
        Spell { first_seq: self.first_seq, doubts: self.doubts }
    }

    /// Notes how far the file is filled at the beginning of a sync.
    pub fn laying(&self) -> Laying {
        Laying { spell: self.spell(), to: self.reserved }
    }

    /// Notes that this sync succeeded. Returns whether it is valid: no sync has failed since it began.
    pub fn note_laid(&mut self, laying: Laying) -> bool {
        let counts = laying.spell == self.spell();
        if counts {
            self.laid = self.laid.max(laying.to);
        }
        counts
    }

    /// Notes the number of failed syncs of all files on the medium. If some records are not durable, the device
    /// may have lost those that it had.
    pub fn note_failures(&mut self, failed: u64, is_unsynced: bool) {
        let is_news = std::mem::replace(&mut self.failed, failed) != failed;
        if is_news && is_unsynced {
            self.doubt();
        }
    }

    /// The records so far, up to the position `seq`, to be handed to the device. `None` if a flush of them is
    /// not enough: the file has blocks that the file system must make durable as well, or a sync has failed.
    pub fn hand_out(&mut self, seq: u64) -> Option<Out> {
        if self.unsure || self.tail > self.laid {
            return None;
        }
        Some(Out { spell: self.spell(), seq, end: self.tail })
    }

    /// The records that the device already has, if all before `wanted` are among them.
    pub fn handed_out(&self, wanted: u64) -> Option<Out> {
        (wanted <= self.out).then(|| Out { spell: self.spell(), seq: self.out, end: self.tail })
    }

    /// Notes that the device has the records. Returns whether that is still true.
    pub fn note_out(&mut self, out: Out) -> bool {
        let stands = self.stands(out);
        if stands {
            self.out = self.out.max(out.seq);
        }
        stands
    }

    /// Whether the records still need only a flush: no sync has failed since.
    pub fn stands(&self, out: Out) -> bool {
        out.spell == self.spell()
    }

    /// Called before a sync: after a failed sync, all records up to `next_seq` are written once more, so that
    /// no record is missing among them.
    ///
    /// # Errors
    ///
    /// If the records cannot be read any more, or differ from those that were written.
    pub fn be_sure<E: DeserializeOwned>(&mut self, next_seq: u64) -> io::Result<()> {
        if !self.unsure {
            return Ok(());
        }
        let mut found = self.first_seq;
        read::<E>(&*self.file, &mut found, drop)?;
        if found != next_seq {
            let what = format!("{}: a sync failed, and records after {found} are lost", self.name);
            return Err(io::Error::other(what));
        }
        let mut bytes = vec![0; self.tail as usize];
        let n = self.file.read_at(&mut bytes, 0)?;
        self.file.write_at(&bytes[..n], 0)?;
        self.unsure = false;
        Ok(())
    }

    pub fn first_seq(&self) -> u64 {
        self.first_seq
    }

    pub fn len(&self) -> u64 {
        self.tail + self.waiting as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn file(&self) -> Arc<dyn MediaFile> {
        self.file.clone()
    }
}

/// One record as it is read.
#[derive(Debug)]
pub struct Found<E = Entry<'static>> {
    pub seq: u64,
    pub synced: u64,
    pub entry: E,
    /// The size of the record in bytes.
    size: usize,
}

impl<E> Found<E> {
    fn size(&self) -> usize {
        self.size
    }
}

pub fn name(first_seq: u64) -> String {
    name_in("log", first_seq)
}

fn name_in(dir: &str, first_seq: u64) -> String {
    format!("{dir}/{first_seq:016x}")
}

/// Reads the records of one file from `next_seq` on, in order, and then the tail of the file.
pub fn read<E: DeserializeOwned>(
    file: &dyn MediaFile,
    next_seq: &mut u64,
    mut each: impl FnMut(E),
) -> io::Result<Tail<E>> {
    let len = file.stat()?.len;
    let mut bytes = vec![0; len as usize];
    let n = file.read_at(&mut bytes, 0)?;
    bytes.truncate(n);
    let mut at = 0;
    while let Some(found) = decode(&bytes[at..]).filter(|found| found.seq == *next_seq) {
        each(found.entry);
        *next_seq += 1;
        at += found.size;
    }
    Ok(Tail::of(&bytes, at, *next_seq))
}

/// The end of a record, according to its header.
fn extent(bytes: &[u8]) -> Option<usize> {
    let len = u32::from_le_bytes(bytes.get(..4)?.try_into().expect("4 bytes"));
    let is_record = len & HAS_SYNCED != 0;
    let len = (len & !HAS_SYNCED) as usize;
    Some(HEADER + len).filter(|_| is_record && len <= RECORD_MAX)
}

fn decode<E: DeserializeOwned>(bytes: &[u8]) -> Option<Found<E>> {
    let size = extent(bytes)?;
    let body = bytes.get(8..size)?;
    let crc = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
    if crc32fast::hash(body) != crc {
        return None;
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let entry = postcard::from_bytes(&bytes[HEADER..size]).ok()?;
    Some(Found { seq: word(8), synced: word(16), entry, size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ranges::{Mark, State};
    use crate::core::state::{Age, Boot, Loss};
    use crate::media::DirMedia;

    /// A program that was killed leaves its log to the next, which may be newer: new entries come last, and the
    /// form of an existing entry never changes.
    // S-11
    #[test]
    fn entries_are_written_as_ever() {
        let id = FileId(7);
        let run = Mark { start: 1, end: 300, state: Some(State::Durable) };
        let (marks, ranges) = (vec![run].into(), (&[(1, 2)]).into());
        let age = Age { since: 5, durable: Some(9).into() };
        let (synced, marked) =
            (Change::Synced { size: 300, ranges }, Change::Marked { marks, age });
        let entries: [(Entry<'_>, &[u8]); 9] = [
            (Entry::Drop(id), &[4, 7]),
            (Entry::Name(NameRecord::Failed { n: 6 }), &[9, 2, 6]),
            (Entry::of(id, &synced), &[10, 7, 2, 0xac, 2, 1, 1, 2]),
            (Entry::Dirs(Vec::new()), &[11, 0]),
            (Entry::of(id, &marked), &[10, 7, 0, 1, 1, 0xac, 2, 1, 2, 5, 1, 9]),
            (Entry::of(id, &Change::LetGo { start: 0, end: 9 }), &[10, 7, 4, 0, 9]),
            (Entry::of(id, &Change::Untouched), &[10, 7, 10]),
            (Entry::of(id, &Change::Setting(None)), &[10, 7, 22, 0]),
            (Entry::of(id, &Change::Lost { len: 9, loss: Loss::All }), &[10, 7, 18, 9, 2]),
        ];
        for (entry, bytes) in entries {
            assert_eq!(postcard::to_stdvec(&entry).unwrap(), bytes, "{entry:?}");
        }
    }

    /// Waiting records are in the file, in order, once the next record or a flush is written, and not before.
    // S-2
    #[test]
    fn records_that_wait_are_written_with_the_next() {
        let dir = forebay_backing::suite::TempDir::new();
        let media = DirMedia::open(dir.path()).unwrap();
        media.make_dir("log").unwrap();
        let mut log = LogFile::create(&media, 5).unwrap();
        let found = |log: &LogFile| {
            let (mut next, mut ids) = (5, Vec::new());
            let each =
                |entry| ids.extend(if let Entry::Drop(id) = entry { Some(id.0) } else { None });
            let tail = read(&*log.file(), &mut next, each).unwrap();
            assert!(!tail.is_damage(Boot::Kept), "{tail:?}");
            ids
        };
        let later = |log: &mut LogFile, seq: u64| {
            log.append_later(seq, 5, &Entry::Drop(FileId(seq))).unwrap();
        };
        later(&mut log, 5);
        later(&mut log, 6);
        assert_eq!(found(&log), [0; 0]);
        log.append(7, 5, &Entry::Drop(FileId(7))).unwrap();
        assert_eq!(found(&log), [5, 6, 7]);
        later(&mut log, 8);
        let refused = log.append_later(9, 5, &vec![1u8; RECORD_MAX]);
        assert!(refused.unwrap_err().to_string().contains("too large"));
        log.flush().unwrap();
        log.flush().unwrap();
        assert_eq!(found(&log), [5, 6, 7, 8]);
        assert_eq!(log.len(), 4 * (HEADER as u64 + 2));
    }
}
