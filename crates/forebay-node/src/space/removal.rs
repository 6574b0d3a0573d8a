//! Removing: a mount is ended, its bytes go into the trash under one name, and the sweep deletes
//! them in the background.
//!
//! The order, each step of which may be the last one before a crash: the record says `removing`; the
//! mount goes; the bytes are renamed into the trash; the record follows them. [`super::sweep`]
//! continues from there.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use forebay_base::lock::sleep;
use forebay_base::{Error, Result};
use rustix::fs;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::holders::{self, Device, Holder, Target};
use super::loopdev::{self, show_device};
use super::mount::{self, Seen, Sign};
use super::pool::Pool;
use super::record::{Held, SpaceRecord, boot_id, free_number, is_there, trash_name};
use super::{Id, Leftover, Means, Record, Stage, What, failed, within};
use crate::{failpoint, swap};

/// An unmount that takes longer goes on by itself; the space is a leftover meanwhile.
const UNMOUNT_LIMIT: Duration = Duration::from_millis(200);

/// How long a removal waits for the bytes to be gone, before it reports a leftover.
const SWEEP_LIMIT: Duration = Duration::from_millis(150);

/// The tries in the background, 20 ms apart. A leftover after that waits for the next call of
/// [`Pool::sweep`].
const SWEEPS: usize = 100;

/// `_IOR('X', 125, u32)`, of ext4 and XFS, and its flag that nothing be written any more.
const SHUT_DOWN: u32 = 0x8004_587D;
const WITHOUT_LOG: u32 = 2;

/// The result of a removal. The name and the mount point are free in any case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// The users of the mount when it was taken away. Their files answer with errors from now on, or
    /// live on in memory.
    pub holders: Vec<Holder>,
    /// The leftover that still holds room.
    pub left: Option<Leftover>,
}

impl Pool {
    /// Removes everything of `id`: a space, a tier, a swap file that is off. Answers within a
    /// second, whatever it contains.
    ///
    /// # Errors
    ///
    /// EBUSY while its swap is on, or another mount covers it.
    pub fn remove(&self, id: &Id) -> Result<Removal> {
        let mut holders = Vec::new();
        {
            let _turn = self.turn(id);
            if let Some(record) = Record::load(&self.inner.state, id)? {
                holders = self.take_away(record)?;
            }
        }
        let (pool, of) = (self.clone(), id.clone());
        if let Some(Err(e)) = within(SWEEP_LIMIT, "sweep", move || pool.sweep_soon(&of))? {
            tracing::warn!(%id, error = %e, "the trash was not emptied");
        }
        Ok(Removal { holders, left: self.leftovers_of(Some(id))?.pop() })
    }

    /// Sweeps until the id's leftovers are gone. A device is free a moment after its last mount; a
    /// space that is in use is not waited for.
    fn sweep_soon(&self, id: &Id) -> Result<()> {
        for _ in 0..SWEEPS {
            self.sweep_trash(Some(id))?;
            let left = self.leftovers_of(Some(id))?.pop();
            if left.is_none_or(|left| !left.holders.is_empty()) {
                loopdev::clear_away();
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Undoes what was begun, at once.
    pub(crate) fn undo(&self, record: Record) -> Result<()> {
        let id = record.id.clone();
        self.take_away(record)?;
        self.sweep_trash(Some(&id)).map(drop)
    }

    /// Moves everything of a record into the trash. The caller has the id's turn.
    pub(super) fn take_away(&self, mut record: Record) -> Result<Vec<Holder>> {
        if let What::Swap { .. } = record.what {
            swap::require_off(self, &record)?;
        }
        let number = self.mark(&mut record)?;
        failpoint::pass("remove-marked");
        let holders = match &record.what {
            What::Space(space) => self.take_down(&record, space)?,
            What::Tier { .. } | What::Swap { .. } => Vec::new(),
        };
        failpoint::pass("remove-unmounted");
        self.move_bytes(&record, number)?;
        failpoint::pass("remove-renamed");
        let from = format!("{}.json", record.id);
        Record::forget(&self.inner.state, &format!("{from}.new"))?;
        let to = trash_name(&record.id, number, "json");
        let at = self.inner.state.path().join(&from);
        match fs::renameat(&self.inner.state, &from, &self.inner.trash, &to) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(failed(at.display())(e)),
        }
        fs::fsync(&self.inner.trash).map_err(failed(at.display()))?;
        failpoint::pass("remove-forgotten");
        Ok(holders)
    }

    /// From here on the record only ever goes.
    fn mark(&self, record: &mut Record) -> Result<u32> {
        if let Stage::Removing { number, .. } = record.stage {
            return Ok(number);
        }
        let number = free_number(&self.inner.trash, &record.id)?;
        let held = match &record.what {
            What::Space(space) => self.held(record, space)?,
            What::Tier { .. } | What::Swap { .. } => None,
        };
        record.stage = Stage::Removing { number, held };
        match record.save(&self.inner.state) {
            // The space to be removed may be what fills the tier. Without the mark a crash would
            // bring the space back as it was, for the next call to remove.
            Err(e) if e.is(libc::ENOSPC) => {
                tracing::warn!(id = %record.id, error = %e, "removed without a mark");
            }
            other => other?,
        }
        Ok(number)
    }

    fn held(&self, record: &Record, space: &SpaceRecord) -> Result<Option<Held>> {
        let sign = self.sign(record, space)?;
        let at = &space.spec.mount_at;
        match mount::seen(at, sign.as_ref())? {
            Seen::Ours(mount) => {
                Ok(Some(Held { boot: boot_id()?, device: mount.device, mount: mount.id }))
            }
            Seen::Covered(by) => Err(covered(record, at, &by)),
            Seen::Nothing | Seen::Other(_) => Ok(None),
        }
    }

    fn take_down(&self, record: &Record, space: &SpaceRecord) -> Result<Vec<Holder>> {
        let at = &space.spec.mount_at;
        let sign = self.sign(record, space)?;
        let holders = match mount::seen(at, sign.as_ref())? {
            Seen::Ours(_) => end_mount(record, space, sign.as_ref())?,
            Seen::Nothing | Seen::Other(_) => Vec::new(),
            Seen::Covered(by) => return Err(covered(record, at, &by)),
        };
        if space.point_made {
            mount::remove_point(at);
        }
        Ok(holders)
    }

    fn move_bytes(&self, record: &Record, number: u32) -> Result<()> {
        let Some((folder, name)) = record.place() else { return Ok(()) };
        let folder = self.folder(folder);
        let at = folder.path().join(&name);
        let to = trash_name(&record.id, number, "data");
        // An image that was not completed still has its first name.
        let names = [name.clone(), format!("{name}.new")];
        for from in names.iter().filter(|name| is_there(folder, name)) {
            if is_there(&self.inner.trash, &to) {
                return Err(Error::os(libc::EEXIST, at.display().to_string()));
            }
            fs::renameat(folder, from, &self.inner.trash, &to).map_err(failed(at.display()))?;
        }
        fs::fsync(&self.inner.trash).map_err(failed(at.display()))?;
        fs::fsync(folder).map_err(failed(at.display()))
    }
}

/// A mount that was put over forebay's is not forebay's to end.
fn covered(record: &Record, at: &Path, by: &str) -> Error {
    let context = format!("{}: {by} is mounted over {}: unmount it first", record.id, at.display());
    Error::os(libc::EBUSY, context)
}

/// Unmounts. A mount in use is detached: it disappears from the name space, and ends with the last
/// process that uses it.
fn end_mount(record: &Record, space: &SpaceRecord, sign: Option<&Sign>) -> Result<Vec<Holder>> {
    let at = &space.spec.mount_at;
    if let Some(Sign::Device(device)) = sign {
        shut_down(at, device);
    }
    match bounded_unmount(at, UnmountFlags::NOFOLLOW)? {
        Some(Err(Errno::BUSY)) => {}
        // The mount has ended, is ending by itself, or did not exist any more.
        Some(Ok(()) | Err(Errno::INVAL)) | None => return Ok(Vec::new()),
        Some(Err(e)) => return Err(failed(at.display())(e)),
    }
    let holders = holders_of(record, Shown::Perhaps).holders;
    let (id, who) = (&record.id, holders::list(&holders));
    tracing::warn!(%id, at = %at.display(), holders = %who, "in use: detached");
    match bounded_unmount(at, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)? {
        Some(Ok(()) | Err(Errno::INVAL)) | None => Ok(holders),
        Some(Err(e)) => Err(failed(at.display())(e)),
    }
}

fn bounded_unmount(at: &Path, flags: UnmountFlags) -> Result<Option<rustix::io::Result<()>>> {
    let at = at.to_path_buf();
    within(UNMOUNT_LIMIT, "unmount", move || unmount(&at, flags))
}

/// Whether a record's mount may still be in the table of mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Perhaps,
    /// The mount was taken out of the table: a mount with its number is another one.
    No,
}

/// The users of the mount of a record that is being removed.
pub(super) fn holders_of(record: &Record, shown: Shown) -> holders::Found {
    let nobody = holders::Found { holders: Vec::new(), complete: true };
    let Stage::Removing { held: Some(held), .. } = &record.stage else { return nobody };
    let Some(space) = record.space() else { return nobody };
    if boot_id().is_ok_and(|boot| boot != held.boot) {
        return nobody;
    }
    let device = match space.means {
        Means::Image | Means::Tmpfs => Device::Own,
        Means::Directory | Means::ProjectQuota => Device::Shared,
    };
    let source = (space.means == Means::Tmpfs).then_some(space.source.as_str());
    let target = Target { held, device, source };
    if target.is_another_by_now(shown) { nobody } else { holders::find(&target) }
}

/// Tells the file system of an image that nothing of it need be written any more: otherwise an
/// unmount would wait until everything cached is on the flash. Open files answer with EIO then.
///
/// Only a device that holds nothing but the image gets this request. An older kernel that does not
/// know the request unmounts more slowly.
fn shut_down(at: &Path, device: &str) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(top) = fs::open(at, flags, Mode::empty()) else { return };
    let is_ours = |top: &OwnedFd| fs::fstat(top).is_ok_and(|s| show_device(s.st_dev) == device);
    if is_ours(&top) {
        let how = WITHOUT_LOG;
        // SAFETY: the kernel reads one integer.
        unsafe { libc::ioctl(top.as_raw_fd(), SHUT_DOWN.into(), &raw const how) };
    }
}
