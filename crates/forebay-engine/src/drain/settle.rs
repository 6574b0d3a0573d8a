//! The end of a flight that went well: what is on record as copied (S6).

use std::time::{Duration, Instant};

use forebay_backing::{Result, Timestamp, Version};

use crate::core::clock::What;
use crate::core::ranges::Ranges;
use crate::core::state::{Change, Settled, Stretches};
use crate::drain::Drain;
use crate::drain::ages::{goes_whole, parts};
use crate::drain::parcel::Parcel;
use crate::files::file::{File, Inner};
use crate::files::unseen::{Copied, Doubt};
use crate::tier::media::MediaStat;

/// A file that was not synced for so long is not expected to be synced again.
const SYNCED_LATELY: Duration = Duration::from_secs(60);

/// The time after which a file's kept bytes become clean; bytes still in use are soon kept anew.
const KEPT_MAX: Duration = Duration::from_secs(600);

/// A flight's file as the flight has left it on the backing store.
pub(crate) struct Landed<'a> {
    /// The ranges that programs wrote during the flight.
    pub rewritten: &'a Ranges,
    /// When the backing file was looked at.
    pub looked: Instant,
    pub base: Version,
    /// The time that the store has set, if it does not keep the flight's.
    pub told: Option<Timestamp>,
}

impl Drain {
    /// Records that bytes which were copied, and not rewritten meanwhile, are on the backing store (S6).
    pub(crate) fn settle(
        &self,
        parcel: &Parcel,
        inner: &mut Inner,
        landed: &Landed<'_>,
    ) -> Result<()> {
        // A file that is still open for writing past the daemon stays dirty as a whole, from now on.
        match parcel.unseen.filter(|_| inner.state.is_unseen()) {
            Some(at) => self.settle_unseen(parcel, inner, landed, at),
            None => self.settle_seen(parcel, inner, landed),
        }
    }

    fn settle_unseen(
        &self,
        parcel: &Parcel,
        inner: &mut Inner,
        landed: &Landed<'_>,
        at: MediaStat,
    ) -> Result<()> {
        let settled = Settled {
            copied: (&[]).into(),
            base: landed.base,
            size: inner.state.size(),
            mtime: mtime(parcel, inner, landed),
            keep: false,
            lasts: false,
            since: self.files.time().ms(),
        };
        self.files.commit(&parcel.file, inner, Change::Settled(settled))?;
        // Bytes that a sync failed to write out may change without another sign.
        let synced = !inner.state.is_unsynced();
        let Some(unseen) = inner.live().unseen_mut().filter(|_| synced) else { return Ok(()) };
        // A write moves the time at its beginning: a second look finds the bytes that came after the
        // first. Without digests a second look would copy the whole file; there the last flush does it.
        let now = self.files.time().now();
        let same = unseen.copied.as_ref().filter(|was| was.at == at && parcel.moved() == 0);
        let doubted = same.and_then(|was| was.doubted_from).filter(|from| now < *from);
        let looked_again = same.is_some() && doubted.is_none() || parcel.digests.is_none();
        let proven = looked_again && !self.files.stores_unseen(unseen);
        let later = now + self.files.tune(|t| t.max_age) / 2;
        let doubted_from = if proven { None } else { doubted.or(Some(later)) };
        unseen.note_copied(Copied { at, doubted_from });
        Ok(())
    }

    fn settle_seen(&self, parcel: &Parcel, inner: &mut Inner, landed: &Landed<'_>) -> Result<()> {
        let (file, rewritten, base) = (&parcel.file, landed.rewritten, landed.base);
        let uncut = !inner.changed(parcel.seen, What::Size);
        let lasts = uncut && base.size <= parcel.size;
        let settled = Settled {
            copied: less(&parcel.captured, rewritten, base.size),
            base,
            size: inner.state.size(),
            mtime: mtime(parcel, inner, landed),
            keep: self.keeps_flushed(file, inner, landed.looked)?,
            lasts,
            since: left_since(parcel, inner),
        };
        self.files.commit(file, inner, Change::Settled(settled))?;
        if lasts {
            inner.live().note_landed(parcel.seen);
        }
        // A writer past the daemon that closed the file during the copy has left bytes that no look
        // has covered. So has a flight that took a part.
        let left = parcel.upto != u64::MAX || rewritten.gaps(0, inner.state.size()).is_empty();
        inner.doubt_it(inner.doubt().filter(|_| left).map(|it| Doubt {
            dirty: it.dirty.saturating_sub(parcel.moved()),
            unmoved: it.unmoved && parcel.moved() == 0 && *rewritten == Ranges::None,
            ..it
        }));
        self.restamp(parcel, inner, rewritten);
        // A write into a dirty hole was not announced to the evictor. Large holes need not be.
        self.files.admit(file, parcel.data.iter().copied());
        Ok(())
    }

    /// Whether flushed bytes are kept; bytes that were kept for too long become clean.
    fn keeps_flushed(&self, file: &File, inner: &mut Inner, now: Instant) -> Result<bool> {
        if inner.state.is_held() {
            return Ok(true);
        }
        let keeping = keeping(inner, now);
        if keeping != Keeping::On {
            self.files.let_go_of(file, inner, 0, u64::MAX)?;
            inner.live().keep_anew((keeping == Keeping::Anew).then_some(now));
        }
        Ok(keeping != Keeping::No)
    }

    /// Makes a large file as old as the oldest of its remaining dirty parts, and queues it accordingly.
    fn restamp(&self, parcel: &Parcel, inner: &mut Inner, rewritten: &Ranges) {
        inner.settle_stamps(&parcel.captured, rewritten, parcel.began_ms);
        if goes_whole(inner) {
            return;
        }
        let oldest = parts(inner).map(|part| part.stamp.first).min();
        if let Some(since) = oldest.filter(|oldest| *oldest != inner.state.dirty_since()) {
            let _ = self.files.commit_anyway(&parcel.file, inner, Change::Aged { since });
        }
    }
}

/// The file's time: the store's, if it keeps none that it is told and the file has not got another one since.
fn mtime(parcel: &Parcel, inner: &Inner, landed: &Landed<'_>) -> Timestamp {
    let now = inner.state.mtime();
    landed.told.filter(|_| now == parcel.mtime).unwrap_or(now)
}

/// Whether the flushed bytes of a file are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeping {
    No,
    On,
    /// They are, but those that were kept before become clean first.
    Anew,
}

/// The flushed bytes of a file are kept if programs have it open and sync it: they will again, and each sync of
/// a byte that was flushed meanwhile would cost a record and a sync of its own. Kept bytes are flushed once more
/// after a loss of power, so from time to time they become clean.
fn keeping(inner: &mut Inner, now: Instant) -> Keeping {
    let may_keep = inner.may_keep();
    let live = inner.live();
    let ago = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at));
    if !may_keep || ago(live.synced_at).is_none_or(|ago| ago >= SYNCED_LATELY) {
        return Keeping::No;
    }
    match ago(live.keeps_since).is_none_or(|ago| ago >= KEPT_MAX) {
        true => Keeping::Anew,
        false => Keeping::On,
    }
}

/// The parts of `copied` that were not rewritten, as far as the backing file reaches: a byte beyond its end
/// is nowhere but here.
fn less<'a>(copied: &'a [(u64, u64)], rewritten: &Ranges, end: u64) -> Stretches<'a> {
    let reaches = copied.last().is_none_or(|run| run.1 <= end);
    match rewritten {
        Ranges::None if reaches => copied.into(),
        _ => {
            let there = copied.iter().filter(|run| run.0 < end);
            there.flat_map(|&(start, upto)| rewritten.gaps(start, upto.min(end))).collect()
        }
    }
}

/// The time since when the rest after a flight is dirty: only rewritten bytes, or also bytes that wait.
fn left_since(parcel: &Parcel, inner: &Inner) -> u64 {
    let whole = parcel.captured.len() == parcel.dirty.len()
        && parcel.captured.last() == parcel.dirty.last();
    if whole { parcel.began_ms } else { inner.state.dirty_since() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::bed;
    use crate::core::ranges::State;

    /// A file that is not synced any more keeps nothing; one that is synced begins anew from time to time.
    #[test]
    fn what_is_kept_is_let_go_of_in_time() {
        let bed = bed("flight-kept");
        let start = Instant::now();
        let flush = |after: Duration, synced: bool| {
            let mut inner = bed.file.lock();
            let now = start + after;
            if synced {
                inner.live().note_syncing(now);
            }
            let keeps = bed.engine.drain.keeps_flushed(&bed.file, &mut inner, now).unwrap();
            let left = inner.state.keeps();
            bed.mark(&mut inner, if keeps { State::Kept } else { State::Clean });
            (keeps, left)
        };
        let second = Duration::from_secs(1);
        assert_eq!(flush(Duration::ZERO, false), (false, false), "it was never synced");
        assert_eq!(flush(second, true), (true, false));
        assert_eq!(flush(2 * second, false), (true, true));
        assert_eq!(flush(second + SYNCED_LATELY, false), (false, false), "not for a minute");
        let begin = second + SYNCED_LATELY;
        assert_eq!(flush(begin + second, true), (true, false));
        assert_eq!(flush(begin + KEPT_MAX, true), (true, true));
        assert_eq!(flush(begin + second + KEPT_MAX, true), (true, false), "starts anew");
        {
            let mut inner = bed.file.lock();
            bed.change(&mut inner, Change::Unsynced);
        }
        assert_eq!(flush(begin + 2 * second + KEPT_MAX, true), (false, false));
    }
}
