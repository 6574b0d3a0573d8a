//! Fetching absent bytes from the backing store: on a miss, ahead of a sequential reader, and on
//! request.
//!
//! Invariants:
//! - L1: a byte is fetched once: a reader that needs a range which is being fetched waits for it.
//! - L2: a fill only lands on bytes that are still absent, and only if nothing was thrown away
//!   since it began ([`What::Bytes`]): it never overwrites a newer byte, and never revives an old one.
//! - L3: a fill lands without the file's lock; a change of bytes in its range waits until it has
//!   landed ([`Io::lock_for_tier`]).
//! - L4: a reader that waits for a range gets the bytes as fetched, if they are of a version that
//!   was the file's when they came; it does not wait for the tier.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::{Error, Kind, Result};

use crate::core::clock::{Look, What};
use crate::core::counters::add;
use crate::core::ranges::{Mark, State};
use crate::core::state::Change;
use crate::failpoint;
use crate::files::fetch::{Fetch, Fetched, Said};
use crate::files::file::{File, Inner};
use crate::files::live::Stream;
use crate::io::{Io, Why};
use crate::tier::media::MediaFile;

/// The size of a sequential fill, and of a piece of a prefetch: long enough to hide a few
/// milliseconds of latency behind its transfer, short enough to serve the first reader soon.
pub(crate) const CHUNK: u64 = 1 << 20;

/// The unit in which holes are detected, and in which a file system on a disk is written.
const GRAIN: usize = 64 << 10;

/// The size of a random fill. At 16 KiB a store of 5 ms and 100 MB/s answers as many requests as at 4 KiB.
const RANDOM: u64 = 16 << 10;

/// The window of a stream that has just been recognized. It is twice the bytes read in order until
/// then: a reader that reads small pieces and stops soon causes few useless fetches.
const WINDOW_MIN: u64 = 512 << 10;

/// How far off the expected offset a read still counts as part of the stream: reads of the kernel's
/// read-ahead, and of a program with a queue, arrive out of order by a few reads.
const SLACK: u64 = 512 << 10;

const SLACK_READS: u64 = 8;

/// Bytes read in order that make a stream.
const STREAM_MIN: u64 = 128 << 10;

/// The origin of fetched bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Store,
    /// Another node, which has read the store.
    Near,
}

/// A range that is being fetched, announced to others.
struct Filling<'a> {
    io: &'a Io,
    file: &'a Arc<File>,
    range: (u64, u64),
    seen: Look,
    said: Arc<Said>,
}

impl Filling<'_> {
    /// Returns the parts of a range that the tier has no bytes of, and that the fetched bytes still are right for.
    fn gaps(&self, inner: &Inner, (start, end): (u64, u64)) -> Vec<(u64, u64)> {
        let moved = inner.changed(self.seen, What::Bytes(start, end));
        let end = end.min(inner.state.size());
        if moved || start >= end { Vec::new() } else { inner.state.gaps(start, end) }
    }

    /// Notes whether the bytes are being put into the tier.
    fn lands(&self, inner: &mut Inner, lands: bool) {
        inner.live().note_landing(&self.said, lands);
        if !lands {
            self.file.changed().notify_all();
        }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.said.say(None);
        let mut inner = self.file.lock();
        inner.live().end_fill(&self.said);
        self.file.changed().notify_all();
        self.io.files.retire(self.file, inner);
    }
}

/// The result of a fill.
pub(crate) enum Filled {
    /// The store's bytes. The tier has them too by now, or is about to, unless a reason is given.
    Bytes(Arc<Fetched>, Option<Why>),
    /// The tier does not take the bytes, and the store was not asked.
    Refused(Why),
    /// Another thread had the range under way, or the file has changed: the caller looks again.
    Again,
}

/// The next step of a fill.
enum Turn<'a> {
    Mine(Filling<'a>),
    Theirs(Arc<Fetched>),
    Again,
}

impl Io {
    /// Notes a read, and if reads are sequential requests the bytes that come next: at most
    /// `ahead`.
    pub(crate) fn note_stream(
        self: &Arc<Self>,
        file: &Arc<File>,
        inner: &mut Inner,
        (start, end): (u64, u64),
        ahead: u64,
    ) {
        let max = self.files.tune(|t| t.readahead).min(ahead);
        if max == 0 || inner.state.is_complete() {
            return;
        }
        let size = inner.state.size();
        let mut stream = inner.live().stream;
        let wanted = goes_on(&mut stream, (start, end), size, max);
        inner.live().follow_stream(stream);
        let Some((mut at, until)) = wanted else { return };
        while at < until {
            self.fill_later(file, at, (at + CHUNK).min(size));
            at += CHUNK;
        }
    }

    fn fill_later(self: &Arc<Self>, file: &Arc<File>, start: u64, end: u64) {
        let (io, file) = (self.clone(), file.clone());
        self.fills.offer(move || {
            let gap = {
                let inner = file.lock();
                inner.state.first_gap(start, end).filter(|_| !inner.gone())
            };
            if let Some(gap) = gap {
                add(&io.files.counters().readahead_fills, 1);
                let _ = io.fill_exactly(&file, (gap.0, gap.1.min(end)), None);
            }
        });
    }

    /// Fetches the absent range `gap`, or a suitable part of it that includes its beginning, for
    /// a reader that wants up to `want_end`.
    pub(crate) fn fill(
        self: &Arc<Self>,
        file: &Arc<File>,
        gap: (u64, u64),
        want_end: u64,
    ) -> Result<Filled> {
        let (start, end) = {
            let mut inner = file.lock();
            let size = inner.state.size();
            let unit = if inner.live().stream.window > 0 { CHUNK } else { RANDOM };
            let start = gap.0 / unit * unit;
            let end = want_end.next_multiple_of(unit).min(gap.0 / CHUNK * CHUNK + CHUNK).min(size);
            // Only the gap itself is fetched: the bytes before it are in the tier.
            let around = inner.state.gaps(start, end.max(gap.0 + 1).min(size));
            match around.into_iter().find(|&(a, b)| a <= gap.0 && gap.0 < b) {
                Some(found) => found,
                None => return Ok(Filled::Again),
            }
        };
        self.fill_exactly(file, (start, end), Some(gap.0))
    }

    /// Fetches a range, at most [`CHUNK`] and within the file, or waits for the thread that fetches
    /// it: for the byte at `first`, or else until the range is in the tier.
    pub(crate) fn fill_exactly(
        self: &Arc<Self>,
        file: &Arc<File>,
        (start, end): (u64, u64),
        first: Option<u64>,
    ) -> Result<Filled> {
        if !self.files.is_attached() {
            return Ok(Filled::Refused(Why::Detached));
        }
        if !self.room.has_quota_for(file, end - start) {
            return Ok(Filled::Refused(Why::Quota));
        }
        if !self.room.has_room_for(end - start) {
            return Ok(Filled::Refused(Why::Full));
        }
        let filling = match self.begin_fill(file, (start, end), first)? {
            Turn::Mine(filling) => filling,
            Turn::Theirs(bytes) => return Ok(Filled::Bytes(bytes, None)),
            Turn::Again => return Ok(Filled::Again),
        };
        let Some((fetched, source)) = self.fetch(file, start, end, filling.seen)? else {
            return Ok(Filled::Again);
        };
        let fetched = Arc::new(fetched);
        filling.said.say(Some(fetched.clone()));
        let refused = self.land_fill(file, &filling, &fetched)?;
        if refused.is_none() && source == Source::Store {
            let bytes = fetched.part(start, end);
            self.files.note_fetched(file, filling.seen, start, bytes);
        }
        Ok(Filled::Bytes(fetched, refused))
    }

    /// Announces a fill. If an overlapping one is in flight (L1), waits for it: for its bytes, if
    /// it began when the file had its present content.
    fn begin_fill<'a>(
        &'a self,
        file: &'a Arc<File>,
        (start, end): (u64, u64),
        first: Option<u64>,
    ) -> Result<Turn<'a>> {
        let deadline = self.files.time().now() + self.files.tune(|t| t.backing_timeout);
        let mut inner = file.lock();
        if inner.gone() {
            return Ok(Turn::Again); // No handle has the file open: this was read-ahead.
        }
        let overlaps =
            |inner: &mut Inner| inner.live().fills.iter().any(|fetch| fetch.overlaps(start, end));
        if !overlaps(&mut inner) {
            if inner.state.first_gap(start, end) != Some((start, end)) {
                return Ok(Turn::Again); // The range has landed since the caller looked.
            }
            let (seen, said) = (inner.look(), Arc::<Said>::default());
            let range = (start, end);
            inner.live().begin_fill(Fetch { range, seen, lands: false, said: said.clone() });
            return Ok(Turn::Mine(Filling { io: self, file, range, seen, said }));
        }
        // One byte of progress is enough: the caller looks again for the rest.
        let moment = Duration::from_millis(200);
        let fills = &inner.live().fills;
        let has = |first: u64| fills.iter().find(|fetch| fetch.overlaps(first, first + 1));
        let found = first.and_then(has);
        let found = found.map(|fetch| (fetch.range, fetch.seen, fetch.said.clone()));
        let mut inner = match found {
            Some((range, seen, said)) if !inner.changed(seen, What::Bytes(range.0, range.1)) => {
                drop(inner);
                if let Some(bytes) = said.wait(self.files.time(), moment) {
                    return Ok(Turn::Theirs(bytes));
                }
                file.lock()
            }
            _ => self.files.time().wait_while(file.changed(), inner, moment, overlaps).0,
        };
        if self.files.time().now() >= deadline
            || (!self.home.health().is_available() && overlaps(&mut inner))
        {
            return Err(Error::new(Kind::TimedOut, "waiting for the backing store"));
        }
        Ok(Turn::Again)
    }

    /// Fetches bytes; `None` if they were cut off through the daemon meanwhile.
    fn fetch(
        &self,
        file: &Arc<File>,
        start: u64,
        end: u64,
        mark: Look,
    ) -> Result<Option<(Fetched, Source)>> {
        let mut fetched = self.spares.take(start, end);
        let bytes = fetched.bytes();
        if self.fetch_near(file, start, bytes) {
            add(&self.files.counters().near_fills, 1);
            add(&self.files.counters().near_bytes, end - start);
            return Ok(Some((fetched, Source::Near)));
        }
        let backing = self.files.backing_file(file)?;
        let n = self.home.health().call(|| backing.read_at(bytes, start))?;
        if n < bytes.len() {
            let ours = {
                let mut inner = file.lock();
                inner.live().around.is_under_way() || inner.changed(mark, What::Bytes(0, u64::MAX))
            };
            return if ours { Ok(None) } else { Err(self.files.shrank(file)) };
        }
        add(&self.files.counters().fills, 1);
        add(&self.files.counters().fill_bytes, n as u64);
        Ok(Some((fetched, Source::Store)))
    }

    /// Puts fetched bytes where the file is still absent (L2), without the file's lock: only a
    /// change of those bytes waits for that. Data first, record after: a crash between leaves bytes
    /// that do not count. Returns the reason if the tier does not take them.
    fn land_fill(
        &self,
        file: &Arc<File>,
        filling: &Filling<'_>,
        fetched: &Arc<Fetched>,
    ) -> Result<Option<Why>> {
        let (start, end) = filling.range;
        if !self.files.is_attached() {
            return Ok(Some(Why::Detached)); // D1
        }
        let mut inner = file.lock();
        let gaps = filling.gaps(&inner, (start, end));
        if gaps.is_empty() {
            return Ok(None);
        }
        let shadow = match self.files.shadow(file, &mut inner) {
            // If the tier takes no file so large, or no more bytes, these are served without being kept.
            Err(e) if e.is(libc::EFBIG) || e.is(libc::ENOSPC) => return Ok(Some(Why::Full)),
            shadow => shadow?,
        };
        filling.lands(&mut inner, true);
        drop(inner);
        let grain = if self.files.media().is_memory() { CHUNK as usize } else { GRAIN };
        let put = gaps.iter().try_for_each(|&(a, b)| put(&*shadow, fetched.part(a, b), a, grain));
        failpoint::pass("fill.written");
        let mut inner = file.lock();
        filling.lands(&mut inner, false);
        let size = inner.state.size();
        if size < end && !inner.state.is_unseen() {
            // The file was found to be shorter meanwhile: bytes behind its end must not show when it grows.
            self.files.note_tier(shadow.set_len(size))?;
        }
        if inner.state.is_dirty() {
            // After a crash the shadow's mtime is the file's own; a fill must not move it.
            let _ = shadow.set_mtime(inner.state.mtime());
        }
        match put {
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => return Ok(Some(Why::Full)),
            put => self.files.note_tier(put)?,
        }
        if !self.files.is_attached() {
            return Ok(Some(Why::Detached));
        }
        // The record covers the bytes that were put there, and nothing beside them.
        let gaps: Vec<_> = gaps.into_iter().flat_map(|gap| filling.gaps(&inner, gap)).collect();
        if gaps.is_empty() {
            return Ok(None);
        }
        let is_whole = gaps == [(start, end)];
        let marks = gaps.into_iter().map(|gap| Mark::of(gap, State::Clean)).collect();
        let age = inner.state.age_at(0);
        match self.files.commit(file, &mut inner, Change::Marked { marks, age }) {
            Err(e) if e.is(libc::ENOSPC) => return Ok(Some(Why::Full)),
            recorded => recorded?,
        }
        self.files.admit(file, [(start, end)]);
        self.files.account(file, &mut inner);
        if is_whole {
            self.landed.keep(file.id, inner.look(), fetched.clone());
        }
        Ok(None)
    }
}

/// Writes fetched bytes, and holes where they are zeros: a sparse file stays sparse. The hole is
/// punched, since a fill that died before its record may have left bytes there.
///
/// Data is written in pieces of `grain` even without holes: ext4 takes a folio of the page cache as large as
/// the write (Linux 6.16 and later), and later looks at all its blocks for every page that is written there.
fn put(shadow: &dyn MediaFile, bytes: &[u8], offset: u64, grain: usize) -> std::io::Result<()> {
    let is_hole = |part: &&[u8]| bytes.len() >= GRAIN && is_zero(part);
    let parts: Vec<&[u8]> = bytes.chunks(GRAIN).collect();
    let mut at = 0;
    for alike in parts.chunk_by(|a, b| is_hole(a) == is_hole(b)) {
        let len = alike.iter().map(|part| part.len()).sum::<usize>();
        let (from, run) = (offset + at as u64, &bytes[at..at + len]);
        match is_hole(&alike[0]) {
            true => make_hole(shadow, from, len as u64)?,
            false => write_in(shadow, run, from, grain)?,
        }
        at += len;
    }
    Ok(())
}

fn write_in(shadow: &dyn MediaFile, bytes: &[u8], at: u64, grain: usize) -> std::io::Result<()> {
    let mut pieces = (at..).step_by(grain).zip(bytes.chunks(grain));
    pieces.try_for_each(|(at, piece)| shadow.write_at(piece, at))
}

/// Zeroes a range that is about to be recorded. A hole at the end needs the length that shows it,
/// or the shadow would be shorter than its record: the file may have grown around the tier.
pub(crate) fn make_hole(shadow: &dyn MediaFile, offset: u64, len: u64) -> std::io::Result<()> {
    shadow.punch(offset, len)?;
    match shadow.size()? < offset + len {
        true => shadow.set_len(offset + len),
        false => Ok(()),
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    // Most data differs in its first bytes. Bytes that equal themselves shifted by one have one value.
    bytes.iter().take(16).all(|b| *b == 0) && bytes.get(1..) == bytes.get(..bytes.len() - 1)
}

/// Updates a stream by one more read, and returns the range to request ahead of the next.
fn goes_on(
    stream: &mut Stream,
    (start, end): (u64, u64),
    size: u64,
    max: u64,
) -> Option<(u64, u64)> {
    let len = end - start;
    let goes_on = start.abs_diff(stream.next) <= (len * SLACK_READS).min(SLACK);
    if !goes_on || (start == 0 && stream.next > 2 * SLACK) {
        // A reader that begins at offset 0 is likely to go on; a database that reads a few adjacent
        // blocks is not.
        let window = if start == 0 { WINDOW_MIN.min(max) } else { 0 };
        *stream = Stream { next: end, run: len, window, asked: end };
        return None;
    }
    // Repeated reads do not advance a stream, and a reader that skips as much as it reads wants no read-ahead.
    let skipped = start.saturating_sub(stream.next);
    stream.run = stream.run.saturating_sub(skipped) + end.saturating_sub(stream.next).min(len);
    stream.next = stream.next.max(end);
    if stream.run < STREAM_MIN && start > 0 && stream.window == 0 {
        return None;
    }
    stream.window = (stream.run * 2).clamp(WINDOW_MIN, max.max(WINDOW_MIN)).min(max);
    let until = (stream.next + stream.window).min(size);
    // Request whole chunks, and only once half a window is used up: fewer, larger requests.
    let from = stream.asked.max(end).next_multiple_of(CHUNK);
    if until <= from || (until - from < CHUNK.max(stream.window / 4) && until < size) {
        return None;
    }
    stream.asked = until;
    Some((from, until))
}
