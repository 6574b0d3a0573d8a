//! Requests that go around the tier: which ones do, and how they stay in step with requests that use the tier.
//!
//! A read goes around where bytes are absent and are not to be kept: present bytes always win. A
//! write goes around because the policy, a rule or a long stream asks for it, and only while no
//! byte of the file is dirty, being flushed, or read or written past the daemon:
//!
//! - A1: while a change around the tier is under way no byte of the file becomes dirty, and no such
//!   change begins while a byte is dirty. So the daemon never changes the backing file under a
//!   flush, and an older byte never lands on a newer one.
//! - A2: after such changes the backing file is looked at again before any byte becomes dirty: the
//!   next flush compares the file with that look.
//! - A3: cached bytes of a range are thrown away before and after the range is written around the
//!   tier; a fill that read the old bytes does not land.
//! - A4: a change that depends on the file's end, or moves it, is made alone: no change that was cut at the end
//!   lengthens a file that is truncated meanwhile. Waiting changes get their turns in the order of arrival.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::{BackingFile, Error, FileKey, Result};

use crate::copies::Lasting;
use crate::core::config::{Attachment, WritePolicy};
use crate::core::counters::add;
use crate::core::ranges::{Mark, Ranges};
use crate::core::rules::{Admission, Admit};
use crate::core::state::Change;
use crate::files::file::{File, Inner};
use crate::files::live::{Around, End};
use crate::io::unsynced::UNSYNCED_MAX;
use crate::io::{Allocate, Io, Resize, Why};
use crate::requester;
use crate::tier::media::is_alone;
use forebay_base::lock::MutexGuard;

/// How often a thread that waits for a turn checks whether its caller still wants the answer.
const TURN: Duration = Duration::from_millis(50);

/// The least patience with one change around the tier; a call of the store may take longer.
const LONGEST: Duration = Duration::from_secs(10);

/// The bytes of a file that a change covers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Span {
    At(u64, u64),
    /// This range, cut at the file's end as it is once no other change moves the end.
    Within(u64, u64),
    /// This many bytes from the file's end on, as the end is once no other change moves it.
    End(u64),
}

impl Span {
    /// Returns start and end in a file of this size; an empty span has a start that is not below its end.
    pub fn at(self, size: u64) -> (u64, u64) {
        match self {
            Span::At(start, end) => (start, end),
            Span::Within(start, end) => (start, end.min(size)),
            Span::End(len) => (size, size.saturating_add(len)),
        }
    }

    /// As [`Span::at`], for the file's present size, which is read only where the end counts.
    pub fn of(self, file: &File) -> (u64, u64) {
        match self {
            Span::At(start, end) => (start, end),
            Span::Within(..) | Span::End(_) => self.at(file.lock().size()),
        }
    }

    fn end(self) -> End {
        match self {
            Span::At(..) => End::IsNothing,
            Span::Within(..) | Span::End(_) => End::Counts,
        }
    }
}

/// A change of the backing file around the tier, under way. The next use of the tier after it looks
/// at the backing file again (A2).
struct GoingAround<'a> {
    io: &'a Io,
    file: &'a Arc<File>,
    backing: Arc<dyn BackingFile>,
}

impl GoingAround<'_> {
    /// Notes that the change has changed the size.
    fn resized(&self, size: impl FnOnce(u64) -> u64) {
        let mut inner = self.file.lock();
        let change = Change::WentAround { size: size(inner.state.size()) };
        self.io.files.commit_around(self.file, &mut inner, change);
    }
}

/// The patience of a thread that waits for a turn: as long as other threads' turns go on.
struct Patience<'a> {
    io: &'a Io,
    /// The turn that was next at the last look.
    first: Option<u64>,
    since: Instant,
}

impl Patience<'_> {
    fn bears(&mut self, first: Option<u64>) -> Result<()> {
        requester::check()?;
        let (time, limit) = (self.io.files.time(), self.io.files.tune(|t| t.backing_timeout));
        if first != self.first {
            (self.first, self.since) = (first, time.now());
        }
        match time.since(self.since) > limit.max(LONGEST) {
            true => Err(Error::os(
                libc::EBUSY,
                "the file is fetched, or changed around the fast tier, all the time",
            )),
            false => Ok(()),
        }
    }
}

impl Drop for GoingAround<'_> {
    fn drop(&mut self) {
        self.io.note_unsynced(self.file.key);
        let mut inner = self.file.lock();
        // An earlier look at the backing file says nothing about its present state.
        inner.note_base();
        inner.live().end_around();
        self.file.changed().notify_all();
        self.io.files.retire(self.file, inner);
    }
}

impl Io {
    /// Returns how many bytes behind a read of `[start, end)` may be kept, or the reason why the read bytes themselves
    /// may not.
    pub(crate) fn keeps(
        &self,
        file: &File,
        admission: &Admission,
        start: u64,
        end: u64,
    ) -> std::result::Result<u64, Why> {
        match admission.read {
            _ if !self.files.is_attached() => return Err(Why::Detached),
            Admit::Deny => return Err(Why::Rule),
            Admit::Allow => {}
        }
        let ahead = self.note_read(file, start, end)?;
        // The limit on read-ahead keeps it from evicting bytes that it fetched and nobody has read yet.
        let quota = admission.rule.as_ref().and_then(|active| active.rule.quota);
        Ok(ahead.min(quota.map_or(u64::MAX, |quota| quota / 2)))
    }

    /// Notes a read, and checks whether it belongs to a stream that is too long to be kept.
    pub(crate) fn note_read(
        &self,
        file: &File,
        start: u64,
        end: u64,
    ) -> std::result::Result<u64, Why> {
        let limit = self.files.tune(|t| t.bypass_reads);
        if limit == 0 {
            return Ok(u64::MAX);
        }
        let len = self.around.reads.lock().note(file.id, start, end);
        limit.checked_sub(len).ok_or(Why::Stream)
    }

    fn writes_around(&self, admission: &Admission) -> Option<Why> {
        match admission.write {
            _ if !self.files.is_attached() => Some(Why::Detached),
            Admit::Deny => Some(Why::Rule),
            Admit::Allow => {
                (self.files.policy() == WritePolicy::WriteAround).then_some(Why::Policy)
            }
        }
    }

    /// Writes around the tier if the write is to go there and may, and returns where it ended;
    /// `None`: the tier takes it.
    pub(crate) fn wrote_around(
        self: &Arc<Self>,
        file: &Arc<File>,
        admission: &Admission,
        span: Span,
        data: &[u8],
    ) -> Result<Option<u64>> {
        let (start, end) = span.of(file);
        let why = match self.writes_around(admission) {
            Some(why) => why,
            None if self.room.is_over_quota(file, admission, start, end) => Why::Quota,
            None if self.is_long_write(file, start, end) => Why::Stream,
            None => return Ok(None),
        };
        let Some(change) = self.begin_around(file, why, end, span.end())? else { return Ok(None) };
        let (start, end) = span.of(file);
        if start >= end {
            return Ok(Some(start)); // The file was truncated meanwhile.
        }
        let data = &data[..(end - start) as usize];
        self.replace(file, start, end, || change.backing.write_at(data, start))?;
        change.resized(|size| size.max(end));
        add(&self.files.counters().write_bytes, data.len() as u64);
        add(&self.files.counters().write_around_bytes, data.len() as u64);
        add(self.write_bypass(why), 1);
        Ok(Some(end))
    }

    fn is_long_write(&self, file: &File, start: u64, end: u64) -> bool {
        let limit = self.files.tune(|t| t.bypass_writes);
        limit > 0 && {
            let mut streams = self.around.writes.lock();
            streams.note(file.id, start, end) > limit
        }
    }

    fn write_bypass(&self, why: Why) -> &std::sync::atomic::AtomicU64 {
        match why {
            // A full tier makes writers wait, and write-around is a policy for writes.
            Why::Policy | Why::Full => &self.files.counters().write_bypass_policy,
            Why::Rule | Why::Quota => &self.files.counters().write_bypass_rule,
            Why::Stream => &self.files.counters().write_bypass_sequential,
            Why::Detached => &self.files.counters().write_bypass_detached,
        }
    }

    pub(crate) fn read_bypass(&self, why: Why) -> &std::sync::atomic::AtomicU64 {
        match why {
            Why::Stream => &self.files.counters().read_bypass_sequential,
            Why::Detached => &self.files.counters().read_bypass_detached,
            Why::Rule | Why::Quota => &self.files.counters().read_bypass_rule,
            Why::Full | Why::Policy => &self.files.counters().read_bypass_full,
        }
    }

    /// Changes the size around the tier if it may; `false`: the tier has to do it.
    pub(crate) fn resized_around(
        self: &Arc<Self>,
        file: &Arc<File>,
        admission: &Admission,
        how: Resize,
        size: u64,
    ) -> Result<bool> {
        let Some(why) = self.writes_around(admission) else { return Ok(false) };
        let Some(change) = self.begin_around(file, why, size, End::Counts)? else {
            return Ok(false);
        };
        let old = file.lock().state.size();
        if how.is_needed(old, size) {
            self.replace(file, old.min(size), u64::MAX, || change.backing.set_len(size))?;
            change.resized(|_| size);
        }
        Ok(true)
    }

    /// Does an `fallocate` around the tier if it may; `false`: the tier has to do it.
    pub(crate) fn allocated_around(
        self: &Arc<Self>,
        file: &Arc<File>,
        admission: &Admission,
        how: Allocate,
        range: (u64, u64),
    ) -> Result<bool> {
        let Some(why) = self.writes_around(admission) else { return Ok(false) };
        let (start, end) = range;
        match how {
            Allocate::Zero => self.zeroed_around(file, why, Span::Within(start, end)),
            Allocate::Extend if end > file.lock().size() => {
                self.resized_around(file, admission, Resize::Grow, end)
            }
            // A reservation is optional, and the backing store is not asked for one.
            _ => Ok(true),
        }
    }

    fn zeroed_around(self: &Arc<Self>, file: &Arc<File>, why: Why, span: Span) -> Result<bool> {
        let (start, end) = span.of(file);
        if start >= end {
            return Ok(true);
        }
        let Some(change) = self.begin_around(file, why, end, span.end())? else {
            return Ok(false);
        };
        let (start, end) = span.of(file);
        if start < end {
            self.replace(file, start, end, || change.backing.punch(start, end - start))?;
        }
        Ok(true)
    }

    /// Claims the file for a change around the tier (A1); `None` if the tier has to take the
    /// change. Dirty bytes from the beginning of a stream, of a file beyond its quota, or in a
    /// detached tier are flushed first.
    ///
    /// Before that, the flushes of earlier bytes of the file (or of a forgotten one with its key)
    /// are made durable on record: a loss of power must not bring back the record of a flush under
    /// way, which would be repeated over the bytes that went around (S3).
    fn begin_around<'a>(
        self: &'a Arc<Self>,
        file: &'a Arc<File>,
        why: Why,
        to: u64,
        end: End,
    ) -> Result<Option<GoingAround<'a>>> {
        if self.flushes_before(why) && !self.is_clean_now(file) {
            if why == Why::Stream {
                self.decline(file, to);
            }
            return Ok(None);
        }
        // A member that took the file over would write flushed bytes over the change.
        self.outbox.forget(file, Lasting::Yes)?;
        if may_go_around(&mut file.lock()) {
            let backing = self.files.writable_backing(file)?;
            let first = {
                let mut inner = file.lock();
                self.files.let_go_of(file, &mut inner, 0, u64::MAX)?;
                inner.live().around == Around::None
            };
            if first {
                self.files.note_tier(self.files.index().sync())?;
            }
            let mut inner = self.lock_beside(file, end)?;
            let settled = !inner.state.keeps() && self.files.index().is_synced(inner.settled_seq());
            if may_go_around(&mut inner) && settled {
                requester::check()?;
                self.files.forget_digests(file, &mut inner);
                inner.live().begin_around(end);
                return Ok(Some(GoingAround { io: self, file, backing }));
            }
        }
        if why == Why::Stream {
            self.decline(file, to);
        }
        Ok(None)
    }

    /// Locks a file once no change around the tier is under way that excludes another one (A4), and
    /// no earlier change waits.
    fn lock_beside<'a>(&self, file: &'a Arc<File>, end: End) -> Result<MutexGuard<'a, Inner>> {
        let number = file.lock().live().wait_around(end);
        let waited = self.wait_for_turn(file, number, end);
        self.end_wait(file, Some(number), waited)
    }

    /// Ends a wait under `number`, whether or not the wait got the file's lock.
    fn end_wait<'a>(
        &self,
        file: &'a Arc<File>,
        number: Option<u64>,
        waited: Result<MutexGuard<'a, Inner>>,
    ) -> Result<MutexGuard<'a, Inner>> {
        let Some(number) = number else { return waited };
        let (mut inner, is_turn) = waited.map_or_else(|e| (file.lock(), Err(e)), |it| (it, Ok(())));
        inner.live().end_wait_around(number);
        if inner.live().is_waited_for() {
            file.changed().notify_all();
        }
        match is_turn {
            Ok(()) => Ok(inner),
            Err(error) => {
                self.files.retire(file, inner);
                Err(error)
            }
        }
    }

    fn wait_for_turn<'a>(
        &self,
        file: &'a Arc<File>,
        number: u64,
        end: End,
    ) -> Result<MutexGuard<'a, Inner>> {
        let waits = |inner: &mut Inner| !inner.live().may_begin_around(number, end);
        let mut patience = self.patience();
        loop {
            let inner = file.lock();
            let (mut inner, _) = self.files.time().wait_while(file.changed(), inner, TURN, waits);
            if !waits(&mut inner) {
                return Ok(inner);
            }
            let first = inner.live().first_waiting();
            drop(inner);
            patience.bears(first)?;
        }
    }

    fn patience(&self) -> Patience<'_> {
        Patience { io: self, first: None, since: self.files.time().now() }
    }

    fn flushes_before(&self, why: Why) -> bool {
        match why {
            Why::Quota | Why::Stream => true,
            Why::Detached => self.files.attachment() != Attachment::DetachedKeepDirty,
            Why::Policy | Why::Rule | Why::Full => false,
        }
    }

    /// Flushes the dirty bytes of a file that a write is to go around; `false` if some stay dirty.
    fn is_clean_now(self: &Arc<Self>, file: &Arc<File>) -> bool {
        let (dirty, hopeless) = {
            let inner = file.lock();
            (inner.state.is_dirty(), inner.is_stuck(self.files.time().now()))
        };
        !dirty || (!hopeless && self.drain.flush_file(file).is_ok())
    }

    /// Keeps a stream in the tier; it is considered again after as many bytes as it took to notice it.
    fn decline(&self, file: &File, end: u64) {
        self.around.writes.lock().restart(file.id, end);
    }

    /// Changes a range of the backing file, and throws away its cached bytes (A3).
    pub(crate) fn replace(
        &self,
        file: &Arc<File>,
        start: u64,
        end: u64,
        act: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.uncache(file, start, end)?;
        let done = self.home.health().call(act);
        self.uncache(file, start, end)?;
        done
    }

    fn uncache(&self, file: &Arc<File>, start: u64, end: u64) -> Result<()> {
        let mut inner = file.lock();
        inner.note_gone(start, end);
        let here =
            |ranges: &Ranges| ranges.within(start, end).map(|run| (run.start, run.end)).collect();
        let present: Vec<(u64, u64)> = inner.state.tracked().map_or(Vec::new(), here);
        if present.is_empty() {
            return Ok(());
        }
        let (absent, age) = ([Mark::absent((start, end))], inner.state.age_at(0));
        self.files.commit(file, &mut inner, Change::Marked { marks: (&absent).into(), age })?;
        if inner.may_punch() {
            let shadow = self.files.shadow(file, &mut inner)?;
            for (start, end) in present.into_iter().filter(|_| is_alone(&*shadow)) {
                self.files.note_tier(shadow.punch(start, end - start))?;
            }
        }
        self.files.account(file, &mut inner);
        Ok(())
    }

    /// Locks a file in which bytes of a range are about to become dirty (A1, A2), once no fill lands there.
    pub(crate) fn lock_for_tier<'a>(
        &self,
        file: &'a Arc<File>,
        (start, end): (u64, u64),
    ) -> Result<MutexGuard<'a, Inner>> {
        let lands = |inner: &mut Inner| {
            // A write behind the end makes zeros of the range between.
            let start = start.min(inner.size());
            let fills = inner.in_use().map_or(&[][..], |live| &live.fills);
            fills.iter().any(|fetch| fetch.lands && fetch.overlaps(start, end))
        };
        let (mut number, mut patience) = (None, self.patience());
        let mut wait = || loop {
            let inner = file.lock();
            let (mut inner, _) = self.files.time().wait_while(file.changed(), inner, TURN, lands);
            let first = inner.in_use().and_then(|live| live.first_waiting());
            if !lands(&mut inner) {
                if inner.in_use().is_none_or(|live| live.around == Around::None) {
                    requester::check()?;
                    return Ok(inner);
                }
                // Later changes around the tier wait for this one.
                number.get_or_insert_with(|| inner.live().wait_around(End::Counts));
                self.come_back(file, inner)?;
            } else {
                drop(inner);
            }
            patience.bears(first)?;
        };
        let waited = wait();
        self.end_wait(file, number, waited)
    }

    /// Waits for changes around the tier to end, then takes over the backing file's attributes.
    fn come_back(&self, file: &Arc<File>, mut inner: MutexGuard<'_, Inner>) -> Result<()> {
        let seen = inner.look();
        let is_quiet = seen.is_quiet() && !inner.state.paths.is_moving();
        let live = inner.live();
        if live.around.is_under_way() || live.is_at_work() || !is_quiet {
            drop(self.files.time().wait(file.changed(), inner, TURN));
            return Ok(());
        }
        if live.unlinked {
            live.forget_around(); // No byte of an unlinked file is ever flushed.
            return Ok(());
        }
        let held = live.target.clone().or_else(|| live.backing.clone());
        let path = inner.state.paths.first();
        drop(inner);
        let path = path.ok_or_else(|| Error::os(libc::ESTALE, "the file was unlinked"))?;
        let attr = match held {
            Some(backing) => self.home.health().call(|| backing.stat())?,
            None => self.home.health().call(|| self.home.backing().stat(&path))?,
        };
        self.files.revalidate(file, &attr, seen);
        Ok(())
    }

    fn note_unsynced(&self, key: FileKey) {
        let mut unsynced = self.around.unsynced.lock();
        unsynced.last += 1;
        let last = unsynced.last;
        match unsynced.keys.len() < UNSYNCED_MAX {
            true => drop(unsynced.keys.insert(key, last)),
            false => unsynced.more = true,
        }
    }

    /// Syncs bytes that were written around the tier, by any program.
    pub(crate) fn sync_around(&self, file: &Arc<File>) -> Result<()> {
        let (known, more) = {
            let unsynced = self.around.unsynced.lock();
            (unsynced.keys.get(&file.key).copied(), unsynced.more)
        };
        if known.is_none() && !more {
            return Ok(());
        }
        self.sync_target(file)?;
        // Only now: a concurrent sync must not count the file as synced before.
        let mut unsynced = self.around.unsynced.lock();
        if known.is_some() && unsynced.keys.get(&file.key).copied() == known {
            unsynced.keys.remove(&file.key);
        }
        Ok(())
    }

    pub(crate) fn sync_target(&self, file: &Arc<File>) -> Result<()> {
        let gone = {
            let mut inner = file.lock();
            let live = inner.live();
            live.unlinked && live.target.is_none()
        };
        if gone {
            return Ok(()); // Nobody can find the file again.
        }
        let backing = self.files.writable_backing(file)?;
        let mut is_asked = false;
        let synced = self.home.health().call(|| {
            is_asked = true;
            backing.sync()
        });
        if synced.is_err() && is_asked {
            // The store reports a failure once, and all openers share this descriptor of the file.
            self.files.note_failed_sync(file);
        }
        synced
    }

    /// Returns the policy by which an fsync of a handle works.
    pub(crate) fn sync_way(&self, admission: &Admission) -> WritePolicy {
        match self.writes_around(admission) {
            // Dirty bytes that are kept in a detached tier are made durable there.
            Some(Why::Detached) if self.files.attachment() == Attachment::DetachedKeepDirty => {
                WritePolicy::WriteBack
            }
            Some(_) => WritePolicy::WriteAround,
            None => self.files.policy(),
        }
    }

    /// Whether the close of a handle has to wait until the file's dirty bytes are on the backing
    /// store.
    pub fn flushes_at_close(&self, admission: &Admission) -> bool {
        self.sync_way(admission) != WritePolicy::WriteBack
    }

    /// Called when a descriptor is closed.
    pub fn closing(self: &Arc<Self>, file: &Arc<File>, admission: &Admission) -> Result<()> {
        let inner = file.lock();
        let dirty = inner.state.is_dirty() && inner.in_use().is_none_or(|live| !live.unlinked);
        // The backing file of a file without a known name can be reached by its descriptor alone.
        let nameless = inner.state.paths.is_empty();
        drop(inner);
        match dirty && (nameless || self.flushes_at_close(admission)) {
            true => self.drain.flush_file(file),
            false => Ok(()),
        }
    }
}

/// Whether a change of the file may go around the tier now (A1).
fn may_go_around(inner: &mut Inner) -> bool {
    let state = &inner.state;
    let untouched = !state.is_dirty()
        && !state.flush_is_open()
        && !state.conflict().stands()
        && !state.is_held();
    let has_name = !inner.state.paths.is_empty();
    let live = inner.live();
    untouched
        && live.flight.is_none()
        && live.copied.is_none()
        && live.pins == 0
        && live.unseen.is_none()
        && !live.stale
        && (live.target.is_some() || (has_name && !live.unlinked))
}
