//! The end of a flight that was broken off: the bytes stay dirty, and the backing file is looked at (W3).

use std::time::Duration;

use forebay_backing::{Attr, BackingFile, Error, Kind, Result};

use crate::core::counters::add;
use crate::core::state::Change;
use crate::drain::Drain;
use crate::drain::look::{is_ours, look_after};
use crate::drain::parcel::{Parcel, Stop};
use crate::files::file::{Inner, Trouble};
use forebay_base::lock::MutexGuard;

const RETRY_MIN: Duration = Duration::from_secs(1);

const RETRY_MAX: Duration = Duration::from_secs(60);

/// Why a flight failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// The backing store had no room for the file.
    NoRoom,
    Other,
}

impl Drain {
    /// Ends a flight that was broken off.
    pub(crate) fn land_stopped(&self, parcel: &Parcel) -> Stop {
        let stop = parcel.stop.lock().take();
        match stop.unwrap_or_else(|| Error::os(libc::EIO, "the flush failed").into()) {
            Stop::Failed(error) => Stop::Failed(self.land_failed(parcel, error)),
            Stop::IsHome => {
                let theirs = Error::os(libc::EBUSY, "only others have changed the file");
                let (inner, _) = self.look_at_failed(parcel, After::Other, theirs);
                self.leave(parcel, inner);
                Stop::IsHome
            }
        }
    }

    /// Records a failure; the bytes stay dirty (W3).
    fn land_failed(&self, parcel: &Parcel, error: Error) -> Error {
        add(&self.files.counters().flush_failures, 1);
        let full = error.is(libc::ENOSPC) || error.is(libc::EDQUOT);
        if full {
            self.room.was_refused(parcel.file.owner());
        }
        let (mut inner, error) =
            self.look_at_failed(parcel, if full { After::NoRoom } else { After::Other }, error);
        if inner.live().unlinked || error.kind() == Kind::Interrupted || error.is(libc::EBUSY) {
            self.leave(parcel, inner);
            return error;
        }
        let path = inner.state.display_path();
        self.pause_after(&mut inner, &error);
        self.leave(parcel, inner);
        error.context(path.display())
    }

    /// Makes the drain try a file again after a pause that grows with each failure.
    pub(crate) fn pause_after(&self, inner: &mut Inner, error: &Error) {
        let count = inner.trouble().map_or(1, |t| t.count.saturating_add(1));
        if error.kind() != Kind::Conflict && count == 1 {
            let path = inner.state.display_path();
            tracing::warn!(path = %path.display(), error = %error, "flush failed; the bytes stay dirty and it is tried again");
        }
        let pause = (RETRY_MIN * 2u32.saturating_pow(count.min(7) - 1)).min(RETRY_MAX);
        let retry_at = self.files.time().now() + pause;
        inner.note_trouble(Some(Trouble { error: error.to_string(), count, retry_at }));
    }

    /// Takes over the state of the backing file after a failed flight, so that changes by others
    /// meanwhile, and before the next flight, are noticed (S8). If the state cannot be read, it
    /// counts as unknown, as after a crash. Also returns the flight's error, or a conflict.
    fn look_at_failed<'a>(
        &self,
        parcel: &'a Parcel,
        after: After,
        error: Error,
    ) -> (MutexGuard<'a, Inner>, Error) {
        let touched = parcel.made.is_any();
        let left = if touched { self.left_by(parcel, after) } else { None };
        let (mut inner, left) = match left {
            Some((left, inner)) => (inner, Some(left)),
            None => (parcel.file.lock(), None),
        };
        if !inner.state.flush_is_open() || inner.live().unlinked {
            return (inner, error);
        }
        let base = match left {
            Some(left) if !may_be_ours(parcel, &mut inner, &left) => {
                let error = self.written_by_others(&parcel.file, &mut inner, left.found.version());
                return (inner, error);
            }
            Some(left) if left.synced => {
                inner.note_base();
                if let Some(open) = &parcel.digests {
                    self.files.close_table_of_failed(open, &left.found.version());
                }
                left.found.version()
            }
            None if !touched && !parcel.resumed => inner.state.base(),
            _ => return (inner, error),
        };
        if let Some(open) = parcel.digests.as_ref().filter(|_| !touched) {
            self.files.close_table_unchanged(open);
        }
        let _ = self.files.commit_anyway(&parcel.file, &mut inner, Change::FlushFailed { base });
        (inner, error)
    }

    /// Returns the state in which a failed flight has left the backing file, after a flight without
    /// room has given its room back (H2).
    fn left_by<'a>(
        &self,
        parcel: &'a Parcel,
        after: After,
    ) -> Option<(Left, MutexGuard<'a, Inner>)> {
        if !self.home.health().is_available() || self.suspended.stands() {
            return None;
        }
        let target = parcel.target.lock().clone()?;
        let gives_back = after == After::NoRoom && {
            let inner = parcel.file.lock();
            inner.look().is_quiet() && inner.state.base().size == parcel.base.size
        };
        let look = |times| {
            if gives_back {
                give_room_back(parcel, &*target)?;
            }
            // The state that is taken over must outlast a loss of power there.
            let synced = target.sync().is_ok();
            let (found, kept_time) = look_after(&*target, parcel, times)?;
            Ok(Left { found, kept_time, synced })
        };
        self.look_undisturbed(parcel, look).ok().map(|(_, left, inner)| (left, inner))
    }
}

/// The state in which a failed flight has left the backing file.
struct Left {
    found: Attr,
    kept_time: bool,
    synced: bool,
}

/// Cuts a file to its size before a flight that found no room (H2), unless it is longer than
/// the flight may have made it.
fn give_room_back(parcel: &Parcel, target: &dyn BackingFile) -> Result<()> {
    let found = target.stat()?.size;
    if !parcel.resumed && found > parcel.base.size && parcel.may_have_left(found) {
        target.set_len(parcel.base.size)?;
        parcel.made.note_given_back();
    }
    Ok(())
}

/// Whether the backing file is as a failed flight may have left it. A held file is overwritten all the same.
fn may_be_ours(parcel: &Parcel, inner: &mut Inner, left: &Left) -> bool {
    match parcel.made.is_whole() {
        _ if inner.state.is_held() || parcel.is_blind() => true,
        true => is_ours(parcel, inner, &left.found, left.kept_time),
        false => parcel.may_have_left(left.found.size),
    }
}
