//! Bringing absent bytes in from the backing store: on a miss, ahead of a sequential reader, and
//! on request.
//!
//! Invariants:
//! - L1: a byte is fetched once: who needs a range that is on its way waits for it.
//! - L2: a fill only lands on bytes that are still absent, and only if nothing was thrown away
//!   since it began ([`What::Bytes`]): it never overwrites a newer byte, and never revives an old one.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::{Error, Kind, Result};

use crate::core::clock::{Look, What};
use crate::core::counters::add;
use crate::core::ranges::{Mark, State};
use crate::core::state::Change;
use crate::failpoint;
use crate::files::file::{File, Inner};
use crate::io::{Io, Why};
use crate::tier::media::MediaFile;

/// A sequential fill, and a piece of a prefetch: long enough to hide a few milliseconds of
/// latency behind its transfer, short enough to serve the first reader soon.
pub(crate) const CHUNK: u64 = 1 << 20;

/// A random fill. At 16 KiB a store of 5 ms and 100 MB/s answers as many requests as at 4 KiB.
const RANDOM: u64 = 16 << 10;

/// The window of a stream that has just been recognized. It is twice what was read in order then:
/// who reads small pieces and stops soon has little fetched in vain.
const WINDOW_MIN: u64 = 512 << 10;

/// How far off the expected offset a read still counts as the stream: the kernel's own read-ahead
/// arrives out of order, and so does what programs read with a queue: by a few reads.
const SLACK: u64 = 512 << 10;

const SLACK_READS: u64 = 8;

/// So much read in order is a stream.
const STREAM_MIN: u64 = 128 << 10;

/// Where fetched bytes are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Store,
    /// Another node, which has read the store.
    Near,
}

/// A range that is being fetched.
struct Filling<'a> {
    io: &'a Io,
    file: &'a Arc<File>,
    range: (u64, u64),
    seen: Look,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let mut inner = self.file.lock();
        inner.live().fills.retain(|range| *range != self.range);
        self.file.changed.notify_all();
        self.io.files.retire(self.file, inner);
    }
}

impl Io {
    /// Sees whether reads are sequential, and asks for what comes next if they are: at most
    /// `ahead` bytes.
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
        let stream = &mut inner.live().stream;
        let len = end - start;
        let goes_on = start.abs_diff(stream.next) <= (len * SLACK_READS).min(SLACK);
        if !goes_on || (start == 0 && stream.next > 2 * SLACK) {
            // Who begins at the beginning goes on; a database that reads a few neighbors does not.
            let window = if start == 0 { WINDOW_MIN.min(max) } else { 0 };
            *stream = crate::files::file::Stream { next: end, run: len, window, asked: end };
            return;
        }
        // Reading the same again leads nowhere, and who skips as much as he reads wants no neighbors.
        let skipped = start.saturating_sub(stream.next);
        stream.run = stream.run.saturating_sub(skipped) + end.saturating_sub(stream.next).min(len);
        stream.next = stream.next.max(end);
        if stream.run < STREAM_MIN && start > 0 && stream.window == 0 {
            return;
        }
        stream.window = (stream.run * 2).clamp(WINDOW_MIN, max.max(WINDOW_MIN)).min(max);
        let until = (stream.next + stream.window).min(size);
        // Ask in whole chunks, and only once half a window is used up: fewer, larger requests.
        let from = stream.asked.max(end).next_multiple_of(CHUNK);
        if until <= from || (until - from < CHUNK.max(stream.window / 4) && until < size) {
            return;
        }
        stream.asked = until;
        let mut at = from;
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
                inner.state.first_gap(start, end).filter(|_| !inner.gone)
            };
            if let Some(gap) = gap {
                add(&io.files.counters().readahead_fills, 1);
                let _ = io.fill_exactly(&file, gap.0, gap.1.min(end));
            }
        });
    }

    /// Fetches the absent range `gap`, or a suitable part of it that includes its beginning, for
    /// a reader that wants up to `want_end`. Returns why the tier does not take it, if so.
    pub(crate) fn fill(
        self: &Arc<Self>,
        file: &Arc<File>,
        gap: (u64, u64),
        want_end: u64,
    ) -> Result<Option<Why>> {
        let (start, end) = {
            let mut inner = file.lock();
            let size = inner.state.size();
            let unit = if inner.live().stream.window > 0 { CHUNK } else { RANDOM };
            let start = gap.0 / unit * unit;
            let end = want_end.next_multiple_of(unit).min(gap.0 / CHUNK * CHUNK + CHUNK).min(size);
            // Only the gap itself: what lies before it is there already.
            let around = inner.state.gaps(start, end.max(gap.0 + 1).min(size));
            match around.into_iter().find(|&(a, b)| a <= gap.0 && gap.0 < b) {
                Some(found) => found,
                None => return Ok(None),
            }
        };
        self.fill_exactly(file, start, end)
    }

    /// Fetches `[start, end)`, at most [`CHUNK`] and within the file, or waits for who is at it.
    /// Returns why the tier does not take it, if so.
    pub(crate) fn fill_exactly(
        self: &Arc<Self>,
        file: &Arc<File>,
        start: u64,
        end: u64,
    ) -> Result<Option<Why>> {
        if !self.files.is_attached() {
            return Ok(Some(Why::Detached));
        }
        if !self.room.has_quota_for(file, end - start) {
            return Ok(Some(Why::Quota));
        }
        if !self.room.has_room_for(end - start) {
            return Ok(Some(Why::Full));
        }
        let Some(filling) = self.begin_fill(file, start, end)? else {
            return Ok(None); // Somebody else fetched it.
        };
        let Some((bytes, source)) = self.fetch(file, start, end, filling.seen)? else {
            return Ok(None);
        };
        let mut inner = file.lock();
        match inner.changed(filling.seen, What::Bytes(start, end)) {
            false => {
                let refused = self.land_fill(file, &mut inner, start, &bytes)?;
                if refused.is_none() && source == Source::Store {
                    self.files.note_fetched(file, &mut inner, filling.seen, start, &bytes);
                }
                Ok(refused)
            }
            true => Ok(None),
        }
    }

    /// Announces a fill; waits and returns `None` if one that overlaps is in flight (L1).
    fn begin_fill<'a>(
        &'a self,
        file: &'a Arc<File>,
        start: u64,
        end: u64,
    ) -> Result<Option<Filling<'a>>> {
        let deadline = self.files.time().now() + self.files.tune(|t| t.backing_timeout);
        let mut inner = file.lock();
        if inner.gone {
            return Ok(None); // Nobody has it open: it was read ahead.
        }
        let overlaps =
            |inner: &mut Inner| inner.live().fills.iter().any(|&(a, b)| a < end && start < b);
        if !overlaps(&mut inner) {
            inner.live().fills.push((start, end));
            let seen = inner.clock.look();
            return Ok(Some(Filling { io: self, file, range: (start, end), seen }));
        }
        // One byte of progress is enough: the caller looks again for what is still missing.
        let moment = Duration::from_millis(200);
        let wait = |inner| self.files.time().wait_while(&file.changed, inner, moment, overlaps);
        let (mut inner, _) = wait(inner);
        if self.files.time().now() >= deadline
            || (!self.home.health().is_available() && overlaps(&mut inner))
        {
            return Err(Error::new(Kind::TimedOut, "waiting for the backing store"));
        }
        Ok(None)
    }

    /// `None` if the bytes were cut off through us meanwhile.
    fn fetch(
        &self,
        file: &Arc<File>,
        start: u64,
        end: u64,
        mark: Look,
    ) -> Result<Option<(Vec<u8>, Source)>> {
        let mut bytes = vec![0; (end - start) as usize];
        if self.fetch_near(file, start, &mut bytes) {
            add(&self.files.counters().near_fills, 1);
            add(&self.files.counters().near_bytes, bytes.len() as u64);
            return Ok(Some((bytes, Source::Near)));
        }
        let backing = self.files.backing_file(file)?;
        let n = self.home.health().call(|| backing.read_at(&mut bytes, start))?;
        if n < bytes.len() {
            let ours = {
                let mut inner = file.lock();
                inner.live().around.is_under_way() || inner.changed(mark, What::Bytes(0, u64::MAX))
            };
            return if ours { Ok(None) } else { Err(self.files.shrank(file)) };
        }
        add(&self.files.counters().fills, 1);
        add(&self.files.counters().fill_bytes, n as u64);
        Ok(Some((bytes, Source::Store)))
    }

    /// Puts fetched bytes where the file is still absent (L2). Data first, record after: a crash
    /// between leaves bytes that do not count.
    fn land_fill(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        start: u64,
        bytes: &[u8],
    ) -> Result<Option<Why>> {
        if !self.files.is_attached() {
            return Ok(Some(Why::Detached)); // D1
        }
        let end = (start + bytes.len() as u64).min(inner.state.size());
        let gaps = inner.state.gaps(start, end);
        if gaps.is_empty() {
            return Ok(None);
        }
        let shadow = match self.files.shadow(file, inner) {
            // The tier takes no file so large: its bytes are served without being kept.
            Err(e) if e.is(libc::EFBIG) => return Ok(Some(Why::Full)),
            shadow => shadow?,
        };
        let dirty_mtime = inner.state.is_dirty().then_some(inner.state.mtime());
        for &(a, b) in &gaps {
            let part = &bytes[(a - start) as usize..(b - start) as usize];
            match put(&*shadow, part, a) {
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => return Ok(Some(Why::Full)),
                other => self.files.note_tier(other)?,
            }
        }
        if let Some(mtime) = dirty_mtime {
            // The shadow's mtime is the file's own after a crash; a fill must not move it.
            let _ = shadow.set_mtime(mtime);
        }
        failpoint::pass("fill.written");
        let marks = gaps.into_iter().map(|gap| Mark::of(gap, State::Clean)).collect();
        let age = inner.state.age_at(0);
        self.files.commit(file, inner, Change::Marked { marks, age })?;
        self.files.admit(file, [(start, end)]);
        self.files.account(file, inner);
        Ok(None)
    }
}

/// Writes fetched bytes, and holes where they are zeros: a sparse file stays sparse. The hole is
/// punched, since a fill that died before its record may have left bytes there.
///
/// In pieces also where there are none: ext4 takes a folio of the page cache as large as the write
/// (Linux 6.16 and later), and later looks at all its blocks for every page that is written there.
fn put(shadow: &dyn MediaFile, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    const GRAIN: usize = 64 << 10;
    let mut at = offset;
    for part in bytes.chunks(GRAIN) {
        match bytes.len() >= GRAIN && is_zero(part) {
            true => make_hole(shadow, at, part.len() as u64)?,
            false => shadow.write_at(part, at)?,
        }
        at += part.len() as u64;
    }
    Ok(())
}

/// Makes zeros of a range that is about to be recorded. A hole at the end needs the length that shows
/// it, or the shadow would be shorter than its record: the file may have grown around the tier.
pub(crate) fn make_hole(shadow: &dyn MediaFile, offset: u64, len: u64) -> std::io::Result<()> {
    shadow.punch(offset, len)?;
    match shadow.stat()?.len < offset + len {
        true => shadow.set_len(offset + len),
        false => Ok(()),
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    // Most data differs in its first bytes.
    bytes.iter().take(16).all(|b| *b == 0) && bytes.iter().all(|b| *b == 0)
}
