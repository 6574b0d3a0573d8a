//! The look at the backing file at the end of a flight: whether it is as the flight has left it (S8).

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::{Attr, BackingFile, Error, Kind, Result, Version};

use crate::core::clock::What;
use crate::core::ranges::Ranges;
use crate::core::state::Change;
use crate::drain::Drain;
use crate::drain::parcel::Parcel;
use crate::files::file::{File, Inner};
use forebay_base::lock::MutexGuard;

/// How long the end of a flight waits for changes of names and attributes through the daemon.
const CHANGES_MAX: Duration = Duration::from_secs(5);

/// Whether the times that a flight sets on the store still count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Times {
    Count,
    /// Another time was set through the daemon since the capture.
    AreOld,
}

impl Drain {
    /// Declares a conflict after a flight: the backing file is as neither the flight nor another
    /// change of the daemon has made it (S8).
    pub(super) fn written_by_others(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        base: Version,
    ) -> Error {
        let why = "somebody else wrote to the backing file during the flush";
        // Bytes that were fetched before are of a version that is gone.
        inner.note_base();
        let _ = self.files.commit_anyway(file, inner, Change::FlushFailed { base });
        self.files.declare_conflict(file, inner, why);
        Error::new(Kind::Conflict, why)
    }

    /// Looks at the backing file while no change of names or attributes through the daemon is under
    /// way: the next flush would take the result of such a change for another program's, and a time
    /// that it sets would be lost. If a change takes too long, the file is flushed again later.
    pub(super) fn look_undisturbed<'a, T>(
        &self,
        parcel: &'a Parcel,
        look: impl Fn(Times) -> Result<T>,
    ) -> Result<(Instant, T, MutexGuard<'a, Inner>)> {
        let began = self.files.time().now();
        while self.files.time().since(began) < CHANGES_MAX {
            let (before, times) = {
                let inner = parcel.file.lock();
                (inner.look(), times_of(parcel, &inner))
            };
            let looked = self.files.time().now();
            let found = self.call_home(|| look(times))?;
            let inner = parcel.file.lock();
            if !inner.changed(before, What::Home) {
                return Ok((looked, found, inner));
            }
            drop(inner);
            self.files.time().sleep(Duration::from_millis(1));
        }
        Err(Error::os(libc::EBUSY, "the file is being renamed or changed"))
    }

    pub(crate) fn leave(&self, parcel: &Parcel, mut inner: MutexGuard<'_, Inner>) {
        inner.live().end_flight();
        parcel.file.changed().notify_all();
        self.files.retire(&parcel.file, inner);
    }
}

fn times_of(parcel: &Parcel, inner: &Inner) -> Times {
    if inner.changed(parcel.seen, What::Time) { Times::AreOld } else { Times::Count }
}

/// Whether the backing file is as the flight has left it. Bytes that were cut off here during the
/// copy may be missing there, and a time that was set here differs.
pub(super) fn is_ours(parcel: &Parcel, inner: &mut Inner, found: &Attr, kept_time: bool) -> bool {
    let made = parcel.target_size();
    let flight = inner.live().flight.as_ref().expect("W2: a flight ends once");
    let sized = match flight.written() {
        Ranges::None => found.size == made,
        _ => found.size <= made,
    };
    let is_old = times_of(parcel, inner) == Times::AreOld;
    sized && (found.mtime == parcel.mtime || !kept_time || is_old)
}

/// Whether the backing file is as known, after a flight that had nothing to send.
pub(super) fn is_still(parcel: &Parcel, inner: &Inner, found: &Attr) -> bool {
    let (base, times) = (inner.state.base(), times_of(parcel, inner));
    let same = (found.size, found.ctime) == (base.size, base.ctime);
    same && (found.mtime == base.mtime || times == Times::AreOld)
}

/// Returns the backing file's attributes after its flush, and whether the store keeps the mtime that it is
/// told. Some stores do not (object stores, some FUSE file systems): there only the size shows a foreign write.
///
/// A time that was set through the daemon since the capture must not be set back: once the file is clean, that
/// would be taken for another program's change.
pub(super) fn look_after(
    target: &dyn BackingFile,
    parcel: &Parcel,
    times: Times,
) -> Result<(Attr, bool)> {
    let found = target.stat()?;
    // A time that differs may be that of another program's write.
    if found.mtime == parcel.mtime || times == Times::AreOld || !parcel.made.is_whole() {
        return Ok((found, true));
    }
    target.set_times(None, Some(parcel.mtime))?;
    let again = target.stat()?;
    // If the store keeps the time now, another program had changed it since it was set first.
    Ok(if again.mtime == parcel.mtime { (found, true) } else { (again, false) })
}
