//! Reads the bytes of a tier, and compares clean ones with the digests of the store's content,
//! noted when the bytes were fetched or flushed.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

use crate::core::digest::{BLOCK, Digest, parts};
use crate::core::id::FileId;
use crate::core::report::Progress;
use crate::core::state::{Portrait, Record};
use crate::tier::digests::{Digests, Table};
use crate::tier::dir::shadow_name;
use crate::tier::media::{Media, MediaFile, Open};

/// Bytes read at once: whole blocks.
const PIECE: u64 = 1 << 20;

/// The number of damaged stretches of a file that are named; the others are counted.
const NAMED_MAX: usize = 8;

/// The result of a scrub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Scrubbed {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Clean bytes that equal the store's content.
    pub verified_bytes: u64,
    /// Clean bytes that differ from it.
    pub damaged_bytes: u64,
    /// Bytes without a known digest: dirty ones, and those whose content on the store is unknown.
    pub uncompared_bytes: u64,
    /// Bytes that the medium does not return.
    pub unreadable_bytes: u64,
}

/// The scrub of one shadow file.
struct Scrub<'a> {
    shadow: &'a dyn MediaFile,
    /// The record and the digests of a file of this member; `None` for others.
    known: Option<(&'a Record, Table)>,
    found: Scrubbed,
    problems: Vec<String>,
}

/// Scrubs one file and adds to the sums; returns its problems, as text.
pub(super) fn scrub(
    media: &dyn Media,
    digests: Option<&Digests>,
    (id, record): (FileId, &Record),
    sums: &mut Scrubbed,
    progress: &Progress,
) -> io::Result<Vec<String>> {
    let present = record.present(0, record.size());
    let table = digests.filter(|_| is_known(record)).and_then(|digests| digests.existing(id));
    let table = table.filter(|table| table.stamp() == Some(record.base()));
    read(media, id, present, table.map(|table| (record, table)), sums, progress)
}

/// The same for a copy that is kept for another member, for which there are no digests.
pub(super) fn scrub_copy(
    media: &dyn Media,
    (id, portrait): (FileId, &Portrait),
    sums: &mut Scrubbed,
    progress: &Progress,
) -> io::Result<Vec<String>> {
    let present = portrait.ranges.within(0, portrait.size).map(|run| (run.start, run.end));
    read(media, id, present.collect(), None, sums, progress)
}

fn read(
    media: &dyn Media,
    id: FileId,
    present: Vec<(u64, u64)>,
    known: Option<(&Record, Table)>,
    sums: &mut Scrubbed,
    progress: &Progress,
) -> io::Result<Vec<String>> {
    if present.is_empty() {
        return Ok(Vec::new());
    }
    let shadow = media.open(&shadow_name(id), Open::Existing)?;
    let (found, problems) = (Scrubbed::default(), Vec::new());
    let mut scrub = Scrub { shadow: &*shadow, known, found, problems };
    for (start, end) in present {
        let mut at = start;
        while at < end && !progress.is_cancelled() {
            let upto = end.min((at / PIECE + 1) * PIECE);
            scrub.piece(at, upto);
            progress.done_bytes.fetch_add(upto - at, Relaxed);
            at = upto;
        }
    }
    let compared = scrub.found.verified_bytes + scrub.found.damaged_bytes;
    sums.read_bytes += scrub.found.read_bytes;
    sums.verified_bytes += scrub.found.verified_bytes;
    sums.damaged_bytes += scrub.found.damaged_bytes;
    sums.uncompared_bytes += scrub.found.read_bytes.saturating_sub(compared);
    sums.unreadable_bytes += scrub.found.unreadable_bytes;
    let more = scrub.problems.len().saturating_sub(NAMED_MAX);
    scrub.problems.truncate(NAMED_MAX);
    if more > 0 {
        scrub.problems.push(format!("and so are {more} stretches more"));
    }
    Ok(scrub.problems)
}

/// Whether a clean block has to match its digest: not in a file that may have been written past the daemon
/// since the last look, nor in one whose flush was broken off, or whose size is not on the store yet.
fn is_known(record: &Record) -> bool {
    !record.is_unseen() && !record.flush_is_open() && record.size() == record.base().size
}

impl Scrub<'_> {
    fn piece(&mut self, start: u64, end: u64) {
        let mut buf = vec![0; (end - start) as usize];
        let read = self.shadow.read_at(&mut buf, start);
        let n = *read.as_ref().unwrap_or(&0) as u64;
        self.found.read_bytes += n;
        if n < end - start {
            let why = read.map_or_else(|e| e.to_string(), |_| "the shadow file ends".into());
            self.found.unreadable_bytes += end - start - n;
            self.problems.push(format!("bytes {} to {end} cannot be read: {why}", start + n));
        }
        let Some((record, table)) = &self.known else { return };
        let parts: Vec<_> = parts(start, start + n, record.size()).collect();
        let held = table.read(start / BLOCK, parts.len() as u64);
        let mut damaged: Vec<(u64, u64)> = Vec::new();
        for (part, held) in parts.iter().zip(held) {
            let clean = record.clean(part.start, part.end);
            let is_clean = clean.iter().map(|(a, b)| b - a).sum::<u64>() == part.end - part.start;
            if !part.whole || !is_clean || held == Digest::UNKNOWN {
                continue;
            }
            let bytes = &buf[(part.start - start) as usize..(part.end - start) as usize];
            if table.key().digest(bytes) == held {
                self.found.verified_bytes += part.end - part.start;
                continue;
            }
            self.found.damaged_bytes += part.end - part.start;
            match damaged.last_mut() {
                Some(last) if last.1 == part.start => last.1 = part.end,
                _ => damaged.push((part.start, part.end)),
            }
        }
        let in_words = |(a, b)| format!("bytes {a} to {b} are not what the store held: damaged");
        self.problems.extend(damaged.into_iter().map(in_words));
    }
}
