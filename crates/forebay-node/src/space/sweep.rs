//! The trash: deleted when nothing uses it any more, and reported until then.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::os::fd::AsFd;

use forebay_base::Result;
use forebay_base::lock::Mutex;
use forebay_base::units::human_size;

use super::holders::{self, Holder};
use super::loopdev::{self, Loop};
use super::pool::Pool;
use super::record::{SpaceRecord, is_there, open_file};
use super::removal::{Shown, holders_of};
use super::{Id, Means, Record, What, delete, failed, image, quota};
use crate::failpoint;

/// A removed space that still holds room: the ledger keeps its grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    pub id: Id,
    pub room: u64,
    pub why: Why,
    /// The processes that keep it, as far as `/proc` tells.
    pub holders: Vec<Holder>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Its removal was interrupted.
    HalfRemoved,
    /// It waits to be deleted, or is being deleted.
    Deleting,
    /// Its device or its memory is in use, or files of it without a name are open.
    Held,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, human_size(self.room))?;
        match self.why {
            Why::HalfRemoved => write!(f, ", half removed"),
            Why::Deleting => write!(f, ", being deleted"),
            Why::Held => write!(f, ", in use: {}", holders::list(&self.holders)),
        }
    }
}

/// The result of a sweep.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Gone for good.
    pub gone: Vec<Id>,
    pub left: Vec<Leftover>,
}

impl Pool {
    /// Goes on with removals that were interrupted, deletes what nothing uses any more, and restores blocks
    /// that images may have lost. To be called at the start and now and then.
    pub fn sweep(&self) -> Result<Swept> {
        for id in Record::unfinished(&self.inner.state)? {
            let _turn = self.turn(&id);
            Record::forget(&self.inner.state, &format!("{id}.json.new"))?;
        }
        for name in Record::names(&self.inner.state)? {
            let Some(record) = Record::read(&self.inner.state, &name)? else { continue };
            let _turn = self.turn(&record.id);
            // Another call may have worked on it.
            match Record::load(&self.inner.state, &record.id)? {
                Some(record) if record.is_removing() => {
                    self.take_away(record)?;
                }
                Some(record) => self.refill(&record)?,
                None => {}
            }
        }
        let gone = self.sweep_trash(None)?;
        loopdev::clear_away();
        Ok(Swept { gone, left: self.leftovers()? })
    }

    /// Everything that was removed and still holds room.
    pub fn leftovers(&self) -> Result<Vec<Leftover>> {
        self.leftovers_of(None)
    }

    pub(super) fn leftovers_of(&self, only: Option<&Id>) -> Result<Vec<Leftover>> {
        let wanted = |record: &Record| only.is_none_or(|only| *only == record.id);
        let mut left = Vec::new();
        for name in Record::names(&self.inner.state)? {
            let record = Record::read(&self.inner.state, &name)?.filter(wanted);
            if let Some(record) = record.filter(Record::is_removing) {
                let holders = holders_of(&record, Shown::Perhaps).holders;
                left.push(leftover(record, Why::HalfRemoved, holders));
            }
        }
        for name in Record::names(&self.inner.trash)? {
            let record = Record::read(&self.inner.trash, &name)?.filter(wanted);
            let Some(record) = record else { continue };
            let deleted = !is_there(&self.inner.trash, &data_name(&name));
            let (why, holders) =
                match self.is_held(&record, &name)? || (deleted && self.is_open(&record)?) {
                    true => (Why::Held, holders_of(&record, Shown::No).holders),
                    false => (Why::Deleting, Vec::new()),
                };
            left.push(leftover(record, why, holders));
        }
        Ok(left)
    }

    /// Sweeps the trash, or the part of one id.
    pub(super) fn sweep_trash(&self, only: Option<&Id>) -> Result<Vec<Id>> {
        let mut gone = Vec::new();
        for name in Record::names(&self.inner.trash)? {
            let Some(record) = Record::read(&self.inner.trash, &name)? else { continue };
            if only.is_some_and(|only| *only != record.id) || self.is_held(&record, &name)? {
                continue;
            }
            let Some(_claim) = Claim::take(&self.inner.deleting, &name) else { continue };
            match self.delete(&record, &name) {
                Ok(Deleted::Gone) => gone.push(record.id),
                Ok(Deleted::Open) => {}
                // The other records need not wait for this one.
                Err(e) => tracing::warn!(id = %record.id, error = %e, "not deleted yet"),
            }
        }
        Ok(gone)
    }

    /// Whether the space is in use: an image with a device, or a tmpfs with a user.
    fn is_held(&self, record: &Record, name: &str) -> Result<bool> {
        match &record.what {
            What::Space(SpaceRecord { means: Means::Image, .. }) => {
                let image = open_file(&self.inner.trash, &data_name(name))?;
                Ok(image.is_some_and(|image| may_be_attached(&image)))
            }
            What::Space(SpaceRecord { means: Means::Tmpfs, .. }) => Ok(is_used(record)),
            What::Space(_) | What::Tier { .. } | What::Swap { .. } => Ok(false),
        }
    }

    /// Whether files without a name take room: the files of a directory are deleted while they may be open,
    /// and exist until they are closed.
    fn is_open(&self, record: &Record) -> Result<bool> {
        match record.space() {
            Some(SpaceRecord { means: Means::ProjectQuota, project: Some(project), .. }) => {
                // Where quotas are off there is no limit to be kept; one record must not block the others.
                let used = quota::used(self.inner.spaces.as_fd(), *project).unwrap_or_else(|error| {
                    tracing::warn!(id = %record.id, %error, "what its project takes cannot be asked");
                    None
                });
                Ok(used.is_some_and(|used| !used.is_nothing()))
            }
            Some(SpaceRecord { means: Means::Directory, .. }) => Ok(is_used(record)),
            _ => Ok(false),
        }
    }

    /// Deletes the bytes; when nothing takes room any more, removes the limit of their project, then the
    /// record (P2).
    fn delete(&self, record: &Record, name: &str) -> Result<Deleted> {
        let trash = &self.inner.trash;
        let data = data_name(name);
        let at = trash.path().join(&data);
        for name in trash.list("").map_err(failed(trash.path().display()))? {
            // A deep tree is taken apart under names with this prefix.
            let Some(part) = name.to_str().filter(|name| is_part(name, &data)) else { continue };
            delete::tree(trash, part).map_err(failed(at.display()))?;
        }
        failpoint::pass("sweep-deleted");
        if self.is_open(record)? {
            return Ok(Deleted::Open);
        }
        self.unlimit(record);
        failpoint::pass("sweep-unlimited");
        Record::forget(trash, name)?;
        failpoint::pass("sweep-forgotten");
        Ok(Deleted::Gone)
    }

    /// Removes the project's limit. A limit that cannot be removed, since quotas are off, does not keep the
    /// record: it stays with its project, whose number is not given again.
    fn unlimit(&self, record: &Record) {
        let Some(project) = record.space().and_then(|space| space.project) else { return };
        if let Err(error) = quota::limit(self.inner.spaces.as_fd(), project, 0, 0) {
            tracing::warn!(id = %record.id, %error, "its project keeps its limit");
        }
    }

    /// Fills holes of an image again, see `image::fill`: they can only come from a device that was made to
    /// discard.
    fn refill(&self, record: &Record) -> Result<()> {
        let is_image = record.space().is_some_and(|space| space.means == Means::Image);
        let Some((folder, name)) = record.place().filter(|_| is_image) else { return Ok(()) };
        let at = self.folder(folder).path().join(&name);
        let Some(image) = open_file(self.folder(folder), &name)? else { return Ok(()) };
        if image::is_whole(&image, record.room).map_err(failed(at.display()))? {
            return Ok(());
        }
        tracing::warn!(id = %record.id, "an image has holes: its blocks are allocated again");
        image::fill(&image, record.room, &at)
    }
}

/// The result of a deletion.
enum Deleted {
    Gone,
    /// It has no names any more, and still takes room.
    Open,
}

/// One thread at a time deletes the bytes of a record.
struct Claim<'c> {
    claimed: &'c Mutex<HashSet<String>>,
    name: &'c str,
}

impl<'c> Claim<'c> {
    fn take(claimed: &'c Mutex<HashSet<String>>, name: &'c str) -> Option<Claim<'c>> {
        let is_first = claimed.lock().insert(name.into());
        // Only the first caller gets a claim: dropping a claim ends it.
        is_first.then(|| Claim { claimed, name })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // This also runs while unwinding.
        self.claimed.lock_anyway().remove(self.name);
    }
}

fn leftover(record: Record, why: Why, holders: Vec<Holder>) -> Leftover {
    Leftover { id: record.id, room: record.room, why, holders }
}

/// Whether a process uses the mount of a record in the trash. Counts as used if not all processes were looked
/// at.
fn is_used(record: &Record) -> bool {
    let found = holders_of(record, Shown::No);
    !found.complete || !found.holders.is_empty()
}

/// An image whose device cannot be determined counts as in use.
fn may_be_attached(image: &File) -> bool {
    !matches!(Loop::find(image), Ok(None))
}

fn data_name(record: &str) -> String {
    format!("{}.data", record.strip_suffix(".json").unwrap_or(record))
}

fn is_part(name: &str, data: &str) -> bool {
    name.strip_prefix(data).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        && !name.ends_with(".json")
}
