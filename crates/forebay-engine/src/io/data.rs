//! Reading, writing and truncating a file, for front-ends; syncing it is in [`sync`].

use std::sync::Arc;

use forebay_backing::{Error, Result, Sizes};

use crate::core::clock::What;
use crate::core::counters::add;
use crate::core::ranges::{Mark, State};
use crate::core::rules::Admission;
use crate::core::served::{Before, Served};
use crate::core::state::Change;
use crate::failpoint;
use crate::files::fetch::Came;
use crate::files::file::{File, Inner};
use crate::files::live::Meanwhile;
use crate::files::sums::HOLES_MIN;
use crate::io::around::Span;
use crate::io::fill::{Filled, make_hole};
use crate::io::{Allocate, Io, Resize, Why};
use crate::room::space::Patience;
use crate::tier::media::{MediaFile, torn};
use forebay_base::lock::MutexGuard;

/// Tries of a read around the tier in a range that others write around the tier all the time.
const AROUND_TRIES: u32 = 64;

/// Clean bytes behind a write that are recorded as dirty with it. A program that syncs after every write
/// and goes on at the same place, as a database does with its log, would need a record, and its sync, for
/// each write; this way it needs one for this many bytes. They are flushed once more than necessary.
const AHEAD: u64 = 256 << 10;

/// Bytes that were in the tier.
pub enum Cached {
    /// At the beginning of the reader's buffer: so many bytes.
    Here(usize),
    /// One after the other, in the buffers that they came in.
    Came(Vec<Came>),
}

/// A range that is in the tier.
enum Found<'a> {
    Came(Vec<Came>),
    Shadow(MutexGuard<'a, Inner>, (u64, u64)),
}

/// Changes the bytes of a shadow file from the first offset to the second.
type Act<'a> = dyn Fn(&dyn MediaFile, (u64, u64)) -> std::io::Result<()> + 'a;

impl Io {
    /// Reads at most `buf.len()` bytes at `offset`; short only at the end of the file. Absent bytes
    /// are fetched, and stay if the tier has room.
    pub fn read(self: &Arc<Self>, file: &Arc<File>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_in(&Admission::default(), file, offset, buf)
    }

    /// Like [`Io::read`], for a handle with rules of its own.
    pub fn read_in(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        add(&self.files.counters().read_requests, 1);
        let mut served = Served::Hit;
        let result = self.read_as(admission, file, offset, buf, &mut served);
        self.files.counters().note_read(served);
        admission.note_read(served, *result.as_ref().unwrap_or(&0) as u64);
        result
    }

    fn read_as(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        offset: u64,
        buf: &mut [u8],
        served: &mut Served,
    ) -> Result<usize> {
        let keeps = self.keeps(file, admission, offset, offset + buf.len() as u64);
        let mut past = Why::Full;
        let mut done = 0;
        // Eviction may take a range between its fill and this read of it, but not for long.
        for turn in 0..16 {
            let at = offset + done as u64;
            let mut inner = file.lock();
            let end = inner.size().min(offset + buf.len() as u64);
            if at >= end {
                return Ok(done);
            }
            let gap = inner.state.first_gap(at, end);
            if let (Ok(ahead), 0) = (keeps, turn) {
                self.note_stream(file, &mut inner, (offset, end), ahead);
            }
            let Some(gap) = gap else {
                let rest = &mut buf[done..(end - offset) as usize];
                let read = |shadow: &dyn MediaFile| shadow.read_at(rest, at);
                return self.read_shadow(file, inner, (at, end), read).map(|n| done + n);
            };
            if *served == Served::Hit {
                *served = inner.before(at, end).served();
            }
            drop(inner);
            let refused = match keeps {
                Ok(_) => match self.fill(file, gap, end)? {
                    Filled::Bytes(fetched, refused) => {
                        // Bytes behind the gap may be newer in the tier.
                        if gap.0 == at {
                            let part = fetched.part(at, gap.1);
                            buf[done..done + part.len()].copy_from_slice(part);
                            done += part.len();
                            self.note_fetched(file, at, part.len() as u64);
                        }
                        refused.filter(|_| at + (done as u64) < end)
                    }
                    Filled::Again => None,
                    Filled::Refused(why) => Some(why),
                },
                Err(why) => Some(why),
            };
            if let Some(why) = refused {
                past = why;
                break;
            }
        }
        add(self.read_bypass(past), 1);
        *served = Served::Bypassed;
        let at = offset + done as u64;
        self.read_around(file, at, &mut buf[done..]).map(|n| done + n)
    }

    /// Reads if the whole range is in the tier; `None` if the backing store would have to be asked. Bytes
    /// that were just fetched are left where they are.
    pub fn read_cached(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<Cached>> {
        let found = self.find_cached(admission, file, (offset, buf.len()))?;
        let read = |shadow: &dyn MediaFile, len| shadow.read_at(&mut buf[..len], offset);
        Some(match found {
            Found::Came(parts) => Ok(Cached::Came(parts)),
            Found::Shadow(inner, range) => {
                self.read_found(file, inner, range, read).map(Cached::Here)
            }
        })
    }

    /// Like [`Io::read_cached`], but appends the bytes to `out`.
    pub fn read_cached_onto(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        (offset, len): (u64, usize),
        out: &mut Vec<u8>,
    ) -> Option<Result<usize>> {
        let read = |shadow: &dyn MediaFile, len| shadow.read_onto(out, len, offset);
        Some(match self.find_cached(admission, file, (offset, len))? {
            Found::Came(parts) => {
                parts.iter().for_each(|part| out.extend_from_slice(part.bytes()));
                Ok(parts.iter().map(|part| part.bytes().len()).sum())
            }
            Found::Shadow(inner, range) => self.read_found(file, inner, range, read),
        })
    }

    /// Finds a range that is in the tier; its end may be that of the file.
    fn find_cached<'a>(
        self: &Arc<Self>,
        admission: &Admission,
        file: &'a Arc<File>,
        (offset, len): (u64, usize),
    ) -> Option<Found<'a>> {
        let mut inner = file.lock();
        let size = inner.size();
        if offset >= size || len == 0 {
            self.note_hit(admission, 0);
            return Some(Found::Came(Vec::new()));
        }
        let end = size.min(offset + len as u64);
        if !inner.state.covers(offset, end) {
            return None;
        }
        if !inner.state.is_unseen()
            && let Ok(ahead) = self.keeps(file, admission, offset, end)
        {
            self.note_stream(file, &mut inner, (offset, end), ahead);
        }
        self.note_hit(admission, end - offset);
        if let Some(parts) = self.landed_of(file, &inner, (offset, end)) {
            self.note_use(file, &mut inner, offset, end - offset);
            drop(inner);
            file.heat().add(end - offset, self.files.uptime().as_secs());
            add(&self.files.counters().read_bytes, end - offset);
            return Some(Found::Came(parts));
        }
        Some(Found::Shadow(inner, (offset, end)))
    }

    /// Returns bytes that have just landed, to a reader who follows a stream.
    fn landed_of(&self, file: &File, inner: &Inner, range: (u64, u64)) -> Option<Vec<Came>> {
        let is_stream = inner.in_use().is_some_and(|live| live.stream.window > 0);
        if !is_stream || inner.state.is_unseen() {
            return None;
        }
        self.landed.take(file.id, range, |seen, (start, end)| {
            let changed = |what| inner.changed(seen, what);
            !changed(What::Content) && !changed(What::Bytes(start, end))
        })
    }

    fn read_found(
        &self,
        file: &Arc<File>,
        inner: MutexGuard<'_, Inner>,
        (offset, end): (u64, u64),
        read: impl FnOnce(&dyn MediaFile, usize) -> std::io::Result<usize>,
    ) -> Result<usize> {
        let read = |shadow: &dyn MediaFile| read(shadow, (end - offset) as usize);
        self.read_shadow(file, inner, (offset, end), read)
    }

    fn note_hit(&self, admission: &Admission, bytes: u64) {
        add(&self.files.counters().read_requests, 1);
        self.files.counters().note_read(Served::Hit);
        admission.note_read(Served::Hit, bytes);
    }

    fn read_shadow(
        &self,
        file: &Arc<File>,
        mut inner: MutexGuard<'_, Inner>,
        (offset, end): (u64, u64),
        read: impl FnOnce(&dyn MediaFile) -> std::io::Result<usize>,
    ) -> Result<usize> {
        let _beat = self.drain.beat();
        let shadow = self.files.shadow(file, &mut inner)?;
        self.note_use(file, &mut inner, offset, end - offset);
        let work = self.files.work_on(file, inner, Meanwhile::Refused);
        let n = self.files.note_tier(read(&*shadow))?;
        drop(work);
        file.heat().add(n as u64, self.files.uptime().as_secs());
        add(&self.files.counters().read_bytes, n as u64);
        match offset + n as u64 == end || end > file.lock().size() {
            // A read beside a truncate gets the old bytes or the new ones.
            true => Ok(n),
            false => self.files.note_tier(Err(torn())),
        }
    }

    /// Notes that bytes were read as they came from the store.
    fn note_fetched(&self, file: &Arc<File>, offset: u64, len: u64) {
        self.note_use(file, &mut file.lock(), offset, len);
        file.heat().add(len, self.files.uptime().as_secs());
        add(&self.files.counters().read_bytes, len);
    }

    /// Notes a use for eviction. Sequential reads within a unit count as one use.
    fn note_use(&self, file: &File, inner: &mut Inner, offset: u64, len: u64) {
        let unit = self.files.grain().unit();
        let goes_on = inner.live().read_on(offset, len);
        if inner.state.size() <= unit {
            return file.hit();
        }
        let known = usize::from(goes_on && !offset.is_multiple_of(unit));
        let units = self.files.grain().units(file.id, offset, offset + len).skip(known);
        units.for_each(|unit| file.hit_unit(self.files.uses(), unit));
    }

    /// Reads without caching: the tier has no room. Present bytes win over fetched ones.
    fn read_around(&self, file: &Arc<File>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        for _ in 0..3 {
            if let Some(n) = self.try_read_around(file, offset, buf)? {
                return Ok(n);
            }
        }
        // Eviction goes on and on, but leaves this file alone while I/O on it is under way.
        let _work = self.files.work_on(file, file.lock(), Meanwhile::Refused);
        for _ in 0..AROUND_TRIES {
            if let Some(n) = self.try_read_around(file, offset, buf)? {
                return Ok(n);
            }
        }
        Err(Error::os(libc::EIO, "the file was replaced while it was read"))
    }

    /// Returns `None` if cached bytes of the range were thrown away meanwhile: dirty ones may have
    /// been flushed after the backing store was read, and evicted before the tier was.
    fn try_read_around(
        &self,
        file: &Arc<File>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Option<usize>> {
        let (size, mark) = {
            let inner = file.lock();
            (inner.size(), inner.look())
        };
        let end = size.min(offset + buf.len() as u64);
        if offset >= end {
            return Ok(Some(0));
        }
        let buf = &mut buf[..(end - offset) as usize];
        let backing = self.files.backing_file(file)?;
        buf.fill(0);
        let n = self.home.health().call(|| backing.read_at(buf, offset))?;
        let mut inner = file.lock();
        if inner.changed(mark, What::Bytes(offset, end)) {
            return Ok(None);
        }
        // Bytes that were truncated here meanwhile are gone because of the daemon.
        let last = end.min(inner.size());
        match inner.state.first_gap((offset + n as u64).min(last), last) {
            // A change of the daemon's around the tier is ending.
            Some((start, _)) if inner.live().around.is_under_way() => {
                return Ok(Some((start - offset) as usize));
            }
            Some(_) => {
                drop(inner);
                return Err(self.files.shrank(file));
            }
            None => {}
        }
        let present = inner.state.present(offset, last);
        if !present.is_empty() {
            let shadow = self.files.shadow(file, &mut inner)?;
            for (start, end) in present {
                let part = &mut buf[(start - offset) as usize..(end - offset) as usize];
                if self.files.note_tier(shadow.read_at(part, start))? < part.len() {
                    return self.files.note_tier(Err(torn()));
                }
            }
        }
        add(&self.files.counters().read_uncached_bytes, buf.len() as u64);
        Ok(Some(buf.len()))
    }

    /// Writes all of `data`. When it returns, the bytes survive the death of this process (S2).
    pub fn write(self: &Arc<Self>, file: &Arc<File>, offset: u64, data: &[u8]) -> Result<()> {
        self.write_in(&Admission::default(), file, offset, data)
    }

    /// Like [`Io::write`], for a handle with rules of its own.
    pub fn write_in(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        self.write_span(admission, file, Span::At(offset, end), data).map(drop)
    }

    /// Like [`Io::write_in`], but cut at the file's end: the file does not grow.
    pub fn overwrite_in(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        offset: u64,
        data: &[u8],
    ) -> Result<u64> {
        let len = file.lock().size().saturating_sub(offset).min(data.len() as u64);
        let span = Span::Within(offset, offset + len);
        self.write_span(admission, file, span, &data[..len as usize])
    }

    /// Writes all of `data` at the end of the file, as it is by then, and returns where the data ends.
    pub fn append_in(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        data: &[u8],
    ) -> Result<u64> {
        self.write_span(admission, file, Span::End(data.len() as u64), data)
    }

    /// Writes `data` to `span`, and returns where it ends.
    fn write_span(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        span: Span,
        data: &[u8],
    ) -> Result<u64> {
        self.files.refuse_read_only()?;
        let len = data.len() as u64;
        let (start, _) = span.of(file);
        if data.is_empty() {
            return Ok(start);
        }
        self.refuse_beyond(file, start.saturating_add(len))?;
        add(&self.files.counters().write_requests, 1);
        let result = self.write_as(admission, file, span, data);
        // A write that failed counts as a miss.
        let served = result.as_ref().map_or(Served::Miss, |(served, _)| *served);
        self.files.counters().note_write(served);
        admission.note_write(served, if result.is_ok() { len } else { 0 });
        let (_, end) = result?;
        self.outbox.tell_written(file, len)?;
        Ok(end)
    }

    fn write_as(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        span: Span,
        data: &[u8],
    ) -> Result<(Served, u64)> {
        let len = data.len() as u64;
        if let Some(end) = self.wrote_around(file, admission, span, data)? {
            return Ok((Served::Bypassed, end));
        }
        self.drain.slow_down(len);
        let act = |shadow: &dyn MediaFile, (start, end): (u64, u64)| {
            shadow.write_at(&data[..(end - start) as usize], start)
        };
        let (before, end) = self.change(file, span, len, act)?;
        self.note_written(file, before, len);
        Ok((before.served(), end))
    }

    fn note_written(&self, file: &File, before: Before, len: u64) {
        self.files.counters().note_absorbed(before);
        file.heat().add(len, self.files.uptime().as_secs());
        add(&self.files.counters().write_bytes, len);
    }

    /// Changes the bytes of `span` in the shadow with `act`, which gets their final range, and
    /// records the change; makes room while the tier is full. Returns where the change ended.
    fn change(
        self: &Arc<Self>,
        file: &Arc<File>,
        span: Span,
        need: u64,
        act: impl Fn(&dyn MediaFile, (u64, u64)) -> std::io::Result<()>,
    ) -> Result<(Before, u64)> {
        let mut patience = Patience::new(&self.room);
        loop {
            self.room.make_room(need)?;
            match self.try_change(file, span, &act) {
                Err(e) if e.is(libc::ENOSPC) => {
                    self.room.tier_is_full(need);
                    patience.wait()?;
                }
                other => return other,
            }
        }
    }

    fn try_change(&self, file: &Arc<File>, span: Span, act: &Act<'_>) -> Result<(Before, u64)> {
        let _beat = self.drain.beat();
        let landing = match span {
            Span::At(start, end) | Span::Within(start, end) => (start, end),
            Span::End(_) => (u64::MAX, u64::MAX), // No fill lands behind the end.
        };
        let mut inner = self.lock_for_tier(file, landing)?;
        let (start, end) = span.at(inner.size());
        if start >= end {
            return Ok((inner.before(start, start), start)); // The file was truncated meanwhile.
        }
        let shadow = self.files.shadow(file, &mut inner)?;
        let now_ms = self.files.time().ms();
        let before = inner.before(start, end);
        if inner.state.is_unseen() {
            // A write that fails may have written a part.
            inner.note_rewritten(start, end);
            self.files.note_tier(act(&*shadow, (start, end)))?;
            return Ok((before, end));
        }
        inner.touch(start, end, now_ms);
        let mut plan = inner.state.plan_write(start, end);
        plan.before.extend(ahead(&mut inner, start, end));
        if !plan.before.is_empty() {
            self.mark_before(file, &mut inner, &plan.before, now_ms)?;
        }
        failpoint::pass("write.marked");
        inner.note_rewritten(start, end);
        if let Err(error) = act(&*shadow, (start, end)) {
            // Bytes of a failed write beyond the end must not show when the file grows.
            if end > inner.state.size() {
                let _ = shadow.set_len(inner.state.size());
            }
            return self.files.note_tier(Err(error));
        }
        failpoint::pass("write.data");
        let fresh = !plan.after.is_empty();
        inner.note_mtime(self.files.time().stamp());
        if fresh {
            let (marks, age) = (plan.after.into(), inner.state.age_at(now_ms));
            let marked = self.files.commit(file, &mut inner, Change::Marked { marks, age });
            if let Err(error) = marked {
                if end > inner.state.size() {
                    let _ = shadow.set_len(inner.state.size());
                }
                return Err(error);
            }
        }
        if fresh || !plan.before.is_empty() {
            self.files.admit(file, [(start, end)]);
            self.files.account(file, &mut inner);
        } else if inner.charged() + HOLES_MIN <= inner.state.present_bytes() {
            // The write may have filled a dirty hole.
            self.files.account(file, &mut inner);
        }
        Ok((before, end))
    }

    /// Records ranges that are about to be overwritten.
    fn mark_before(
        &self,
        file: &File,
        inner: &mut Inner,
        marks: &[Mark],
        now_ms: u64,
    ) -> Result<()> {
        let logged = inner.live().logged_seq;
        let age = inner.state.age_at(now_ms);
        self.files.commit(file, inner, Change::Marked { marks: marks.into(), age })?;
        if marks.iter().all(|mark| mark.state == Some(State::Durable)) {
            // For kept bytes the older record is as good for recovery after a loss of power.
            inner.live().needs_logged(logged);
        }
        Ok(())
    }

    /// Changes the size of a file.
    pub fn set_len(self: &Arc<Self>, file: &Arc<File>, size: u64) -> Result<()> {
        self.set_len_in(&Admission::default(), file, size)
    }

    /// Like [`Io::set_len`], for a handle with rules of its own.
    pub fn set_len_in(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        size: u64,
    ) -> Result<()> {
        self.resize(admission, file, Resize::To, size)
    }

    pub(crate) fn resize(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        how: Resize,
        size: u64,
    ) -> Result<()> {
        self.files.refuse_read_only()?;
        if self.home.backing().sizes() == Sizes::Fixed {
            return match size == file.lock().size() {
                true => Ok(()),
                false => Err(Error::os(libc::EPERM, "the size is that of the device or image")),
            };
        }
        if self.resized_around(file, admission, how, size)? {
            return Ok(());
        }
        let mut inner = self.lock_for_tier(file, (0, u64::MAX))?;
        let old = inner.size();
        if !how.is_needed(old, size) {
            return Ok(());
        }
        let shadow = self.files.shadow(file, &mut inner)?;
        if size > old {
            // If the tier does not take a file so large, the file stays as it is.
            self.files.note_tier(shadow.set_len(size))?;
        }
        // Bytes that a sync under way has sealed are durable soon (Z3).
        let durable = inner.state.durable_size().max(self.files.sealed_to(&inner));
        let cuts_durable = durable.is_some_and(|durable| size < durable);
        let unseen = inner.state.is_unseen();
        inner.note_size();
        let (mtime, age) = (self.files.time().stamp(), inner.state.age_at(self.files.time().ms()));
        let resized = self.files.commit(file, &mut inner, Change::Resized { size, mtime, age });
        if let Err(error) = resized {
            // A shadow that is longer than its record is cut at its next opening. If the file is
            // written past the daemon, a program may have written beyond.
            if size > old && !unseen {
                let _ = shadow.set_len(old);
            }
            return Err(error);
        }
        // The cut is on record, whether or not it succeeds below.
        inner.note_rewritten(old.min(size), u64::MAX);
        let cut = || {
            if cuts_durable {
                // Without this sync a power loss could bring back the record of durable bytes
                // without the bytes.
                self.files.note_tier(self.files.index().sync())?;
            } else if size < old {
                // Nor may a power loss take away the record of a flush that made the bytes clean.
                self.files.note_tier(self.files.index().sync_to(inner.settled_seq()))?;
            }
            failpoint::pass("truncate.logged");
            if size > old { Ok(()) } else { self.files.note_tier(shadow.set_len(size)) }
        };
        let cut = cut();
        if cut.is_err() {
            // The cut is on record: the next opening of the shadow makes it.
            inner.live().close_shadow();
        }
        failpoint::pass("truncate.done");
        self.files.account(file, &mut inner);
        drop(inner);
        cut.and_then(|()| self.outbox.tell_resized(file))
    }

    /// `fallocate`: reserves space or makes a range read as zeros.
    pub fn allocate(
        self: &Arc<Self>,
        file: &Arc<File>,
        how: Allocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.allocate_in(&Admission::default(), file, how, offset, len)
    }

    /// Like [`Io::allocate`], for a handle with rules of its own.
    pub fn allocate_in(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        how: Allocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.allocate_as(admission, file, how, offset, len)?;
        self.outbox.tell_written(file, 0)
    }

    fn allocate_as(
        self: &Arc<Self>,
        admission: &Admission,
        file: &Arc<File>,
        how: Allocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.files.refuse_read_only()?;
        let end = offset + len;
        if how == Allocate::Extend {
            self.refuse_beyond(file, end)?;
        }
        if self.allocated_around(file, admission, how, (offset, end))? {
            return Ok(());
        }
        match how {
            Allocate::Zero => self.zero(file, Span::Within(offset, end)),
            Allocate::Extend => {
                self.extend(admission, file, end)?;
                self.reserve(file, offset, len)
            }
            Allocate::KeepSize => self.reserve(file, offset, len),
        }
    }

    /// Zeroes `span`, no further than to the file's end at that time.
    fn zero(self: &Arc<Self>, file: &Arc<File>, span: Span) -> Result<()> {
        let act = |shadow: &dyn MediaFile, (start, end)| make_hole(shadow, start, end - start);
        self.change(file, span, 0, act).map(drop)
    }

    fn extend(self: &Arc<Self>, admission: &Admission, file: &Arc<File>, end: u64) -> Result<()> {
        let more = end.saturating_sub(file.lock().size());
        if more == 0 {
            return Ok(());
        }
        // The store is asked with the file unlocked: if another thread extends the file meanwhile,
        // nothing is lost.
        match self.drain.has_room_at_home(more) {
            true => self.resize(admission, file, Resize::Grow, end),
            false => Err(Error::os(libc::ENOSPC, "the backing store has no room for it")),
        }
    }

    /// Reserves space in the tier for bytes that will be written there. A reservation is optional:
    /// it evicts nothing, and a write to unreserved space waits for room like every write (S9).
    pub(crate) fn reserve(&self, file: &Arc<File>, offset: u64, len: u64) -> Result<()> {
        let mut inner = file.lock();
        let end = (offset + len).min(inner.size());
        let is_here = inner.state.covers(offset, end);
        if offset >= end || !is_here || end - offset > self.room.spare_bytes() {
            return Ok(());
        }
        let shadow = self.files.shadow(file, &mut inner)?;
        let reserved = shadow.reserve(offset, end - offset);
        self.files.account(file, &mut inner);
        match reserved {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EOPNOTSUPP)) => Ok(()),
            reserved => self.files.note_tier(reserved),
        }
    }

    /// Returns the next stretch of data at or after `offset`, for SEEK_DATA and SEEK_HOLE. A file
    /// that is not complete counts as data from end to end.
    pub fn next_data(&self, file: &Arc<File>, offset: u64) -> Result<Option<(u64, u64)>> {
        let mut inner = file.lock();
        let size = inner.size();
        if offset >= size {
            return Ok(None);
        }
        if !inner.state.is_complete() {
            return Ok(Some((offset, size)));
        }
        let shadow = self.files.shadow(file, &mut inner)?;
        self.files.note_tier(shadow.next_data(offset))
    }

    /// Refuses writes beyond the end of a device, which is full there: such bytes could never be flushed.
    fn refuse_beyond(&self, file: &File, end: u64) -> Result<()> {
        match self.home.backing().sizes() == Sizes::Fixed && end > file.lock().size() {
            true => Err(Error::os(libc::ENOSPC, "writing beyond the end of the device or image")),
            false => Ok(()),
        }
    }
}

fn ahead(inner: &mut Inner, start: u64, end: u64) -> Option<Mark> {
    let live = inner.live();
    live.note_written_to(end);
    let goes_on = live.synced_to > 0 && (start..=end).contains(&live.synced_to);
    // Where another program's bytes may lie behind, the daemon must not write them back.
    let alone = live.flight.is_none() && !live.stale;
    let goes_on =
        goes_on && alone && !inner.state.flush_is_open() && !inner.state.conflict().stands();
    // A write that needs no record itself gets none for bytes ahead.
    if !goes_on || inner.state.in_state(State::Clean, start, end).is_empty() {
        return None;
    }
    let next = inner.state.tracked()?.within(end, end + AHEAD).next()?;
    let ahead = Mark::of((next.start, next.end), State::Dirty);
    (next.start == end && next.state == State::Clean).then_some(ahead)
}
