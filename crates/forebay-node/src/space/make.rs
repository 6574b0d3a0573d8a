//! Making a space, and finding it again.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use forebay_base::folder::Folder;
use forebay_base::{Error, Kind, Result, users};
use rustix::fs;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::loopdev::{Loop, show_device};
use super::mount::{self, Seen, Setting, Sign};
use super::pool::{Pool, new_id};
use super::record::{self, SpaceRecord, is_there};
use super::{
    Fs, Id, Means, Owner, Record, Space, SpaceSpec, Stage, State, Step, Usage, What, failed, image,
    probe, quota, usage_error,
};
use crate::failpoint;

/// The reason for contents in memory that are gone.
pub const LOST: &str = "went with a restart of the machine";

impl Pool {
    /// Makes a space, or completes or confirms one that was made with the same specification.
    ///
    /// # Errors
    ///
    /// A new space that cannot be made leaves nothing behind.
    pub fn make(&self, spec: &SpaceSpec) -> Result<Space> {
        spec.check()?;
        let _turn = self.turn(&spec.id);
        let record = match Record::load(&self.inner.state, &spec.id)? {
            Some(record) => resumed(record, spec)?,
            None => self.begin(spec)?,
        };
        let was_ready = record.stage == Stage::Ready;
        self.require_limits(&record)?;
        let undo = record.clone();
        self.bring_up(record).inspect_err(|_| {
            if !was_ready && let Err(e) = self.undo(undo) {
                tracing::warn!(id = %spec.id, error = %e, "what was begun could not be removed");
            }
        })
    }

    /// Looks up the state of `id`, and mounts a space again that was ready before a restart.
    ///
    pub fn adopt(&self, id: &Id) -> Result<State> {
        let _turn = self.turn(id);
        let Some(record) = Record::load(&self.inner.state, id)? else { return Ok(State::Absent) };
        if record.is_removing() {
            return Ok(State::Removing);
        }
        let Some(space) = record.space() else {
            return Err(usage_error(format!("{id} is no private space")));
        };
        match record.stage {
            Stage::Ready if lost(&record)? => Ok(State::Lost),
            Stage::Ready => self.bring_up(record).map(State::Ready),
            Stage::Making | Stage::Removing { .. } => {
                self.step(&record, space).map(State::HalfMade)
            }
        }
    }

    /// Whether the contents of a space are gone for good, as with memory after a restart of the machine.
    pub fn is_lost(&self, id: &Id) -> Result<bool> {
        let _turn = self.turn(id);
        Record::load(&self.inner.state, id)?.as_ref().map_or(Ok(false), lost)
    }

    /// The room that a space would take of the pool: the ledger grants this before the space is made.
    pub fn room(&self, spec: &SpaceSpec) -> Result<u64> {
        spec.check()?;
        let means = probe::resolve(self, spec)?;
        Ok(room(spec, means))
    }

    pub fn usage(&self, id: &Id) -> Result<Usage> {
        let absent = || Error::os(libc::ENOENT, format!("{id}: no such private space"));
        let record = Record::load(&self.inner.state, id)?.ok_or_else(absent)?;
        let space = record.space().ok_or_else(absent)?;
        let (bytes, inodes) = (space.spec.capacity, Some(space.spec.inodes()));
        match (space.means, space.project) {
            (Means::Image | Means::Tmpfs, _) => self.usage_of_mount(&record, space),
            (Means::ProjectQuota, Some(project)) => {
                let used = quota::used(self.inner.spaces.as_fd(), project)?;
                let (used, used_inodes) = (used.map(|u| u.bytes), used.map(|u| u.inodes));
                Ok(Usage { bytes, used, inodes, used_inodes })
            }
            _ => Ok(Usage { bytes, used: None, inodes: None, used_inodes: None }),
        }
    }

    fn usage_of_mount(&self, record: &Record, space: &SpaceRecord) -> Result<Usage> {
        let at = &space.spec.mount_at;
        let Seen::Ours(_) = mount::seen(at, self.sign(record, space)?.as_ref())? else {
            let context = format!("{}: not mounted at {}", record.id, at.display());
            return Err(Error::os(libc::ENOTCONN, context));
        };
        let stat = fs::statvfs(at).map_err(failed(at.display()))?;
        Ok(Usage {
            bytes: stat.f_blocks * stat.f_frsize,
            used: Some((stat.f_blocks - stat.f_bfree) * stat.f_frsize),
            inodes: Some(stat.f_files),
            used_inodes: Some(stat.f_files - stat.f_ffree),
        })
    }

    fn begin(&self, spec: &SpaceSpec) -> Result<Record> {
        let means = probe::resolve(self, spec)?;
        let room = room(spec, means);
        match means {
            Means::Tmpfs => probe::require_memory(&spec.id, room)?,
            _ => self.require_room(&spec.id, room)?,
        }
        if let Seen::Other(source) = mount::seen(&spec.mount_at, None)? {
            return Err(mount::occupied(&spec.mount_at, &source));
        }
        let point_made = !mount::point_is_there(&spec.mount_at)?;
        let source = format!("forebay-{}-{}", spec.id, new_id()?);
        // The lock guards only the turn: the choice is in the records.
        let _choosing = self.inner.choosing.lock_anyway();
        let project = match means {
            Means::ProjectQuota => Some(self.free_project()?),
            _ => None,
        };
        let space = SpaceRecord { spec: spec.clone(), means, point_made, project, source };
        let record = Record::new(&spec.id, room, What::Space(space));
        record.save(&self.inner.state).map_err(|e| self.explain(&record, e))?;
        failpoint::pass("space-recorded");
        Ok(record)
    }

    /// A project number that no record has, that owns no files, and that has no limit. Pools of one file
    /// system do not know each other: each begins at another number.
    fn free_project(&self) -> Result<u32> {
        let mut taken = Vec::new();
        for folder in [&self.inner.state, &self.inner.trash] {
            for name in Record::names(folder)? {
                let record = Record::read(folder, &name)?;
                taken.extend(record.as_ref().and_then(Record::space).and_then(|s| s.project));
            }
        }
        let range = &self.inner.settings.projects;
        let begin = range.start + self.inner.project_seed() % (range.end - range.start).max(1);
        for project in (begin..range.end).chain(range.start..begin) {
            let used = || quota::used(self.inner.spaces.as_fd(), project);
            if !taken.contains(&project) && used()?.is_none_or(|used| !used.is_taken()) {
                return Ok(project);
            }
        }
        Err(usage_error(format!("all projects of {range:?} are in use: give the pool more")))
    }

    fn bring_up(&self, mut record: Record) -> Result<Space> {
        let space = record.space().expect("only spaces are brought up").clone();
        self.require_bytes(&record)?;
        match space.means {
            Means::Image => self.bring_up_image(&record, &space)?,
            Means::Tmpfs => bring_up_tmpfs(&space)?,
            Means::Directory | Means::ProjectQuota => self.bring_up_directory(&record, &space)?,
        }
        failpoint::pass("space-mounted");
        if record.stage == Stage::Making {
            record.stage = Stage::Ready;
            record.save(&self.inner.state).map_err(|e| self.explain(&record, e))?;
        }
        failpoint::pass("space-ready");
        let SpaceSpec { id, capacity, mount_at: at, .. } = space.spec;
        Ok(Space { id, at, means: space.means, capacity, room: record.room })
    }

    /// Refuses to show a space whose capacity is no longer held.
    fn require_limits(&self, record: &Record) -> Result<()> {
        let is_quota = record.space().is_some_and(|space| space.means == Means::ProjectQuota);
        match is_quota.then(|| self.missing(Means::ProjectQuota)).flatten() {
            None => Ok(()),
            Some(why) => {
                let (id, at) = (&record.id, self.path().display());
                let context = format!("{id}: pool {at} has no project-quota any more: {why}");
                Err(Error::new(Kind::Unavailable, context))
            }
        }
    }

    /// A space that was ready once and whose bytes are gone is not replaced by an empty one.
    fn require_bytes(&self, record: &Record) -> Result<()> {
        if lost(record)? {
            let id = &record.id;
            let context =
                format!("{id}: what it held was in memory, and {LOST}: remove the instance");
            return Err(Error::os(libc::ENOENT, context));
        }
        let Some((folder, name)) = record.place().filter(|_| record.stage == Stage::Ready) else {
            return Ok(());
        };
        let folder = self.folder(folder);
        if is_there(folder, &name) {
            return Ok(());
        }
        let (id, at) = (&record.id, folder.path().join(&name));
        let context = format!("{}: what {id} held is gone: remove the instance", at.display());
        Err(Error::os(libc::ENOENT, context))
    }

    fn bring_up_image(&self, record: &Record, space: &SpaceRecord) -> Result<()> {
        let (folder, name) = record.place().expect("an image has one");
        let folder = self.folder(folder);
        let path = folder.path().join(&name);
        let made = image::make(folder, &name, &space.spec, record.room);
        let image = made.map_err(|e| self.explain(record, e))?;
        let device = match Loop::find(&image)? {
            Some(device) => device,
            None => Loop::attach(&image, &path)?,
        };
        device.require_direct()?;
        failpoint::pass("space-attached");
        let at = &space.spec.mount_at;
        match mount::seen(at, Some(&Sign::Device(device.numbers()?)))? {
            Seen::Ours(_) => return Ok(()),
            Seen::Covered(source) | Seen::Other(source) => {
                return Err(mount::occupied(at, &source));
            }
            Seen::Nothing => {}
        }
        let mount = mount::system(space.spec.fs.name(), &device.name(), &settings(space.spec.fs))?;
        if record.stage == Stage::Making {
            let top = mount::top(&mount)?;
            mount::remove_lost_and_found(&top)?;
            mount::hand_over(&top, space.spec.owner, space.spec.mode)?;
        }
        failpoint::pass("space-handed-over");
        mount::show(&mount, at)
    }

    /// Reports a full tier as such.
    fn explain(&self, record: &Record, error: Error) -> Error {
        match error.is(libc::ENOSPC) {
            true => self.no_room(&record.id, record.room),
            false => error,
        }
    }

    fn bring_up_directory(&self, record: &Record, space: &SpaceRecord) -> Result<()> {
        let (folder, name) = record.place().expect("a directory has one");
        let folder = self.folder(folder);
        let spec = &space.spec;
        // Root may have given a ready directory to another owner.
        let dir = match record.stage {
            Stage::Making => made_dir(folder, &name, spec.owner)?,
            _ => opened(folder, &name)?,
        };
        failpoint::pass("space-directory");
        if record.stage == Stage::Making {
            if let Some(project) = space.project {
                quota::put_into(dir.as_fd(), project)?;
                failpoint::pass("space-project");
                // The root directory is one of its inodes.
                quota::limit(dir.as_fd(), project, record.room, spec.inodes() + 1)?;
                failpoint::pass("space-limited");
            }
            mount::hand_over(&dir, spec.owner, spec.mode)?;
        }
        let sign = sign_of(&dir, folder, &name)?;
        match mount::seen(&spec.mount_at, Some(&sign))? {
            Seen::Ours(_) => Ok(()),
            Seen::Covered(source) | Seen::Other(source) => {
                Err(mount::occupied(&spec.mount_at, &source))
            }
            Seen::Nothing => {
                let view = mount::view_of(dir.as_fd(), &folder.path().join(&name))?;
                mount::show(&view, &spec.mount_at)
            }
        }
    }

    fn step(&self, record: &Record, space: &SpaceRecord) -> Result<Step> {
        let sign = self.sign(record, space)?;
        if let Seen::Ours(_) = mount::seen(&space.spec.mount_at, sign.as_ref())? {
            return Ok(Step::Mounted);
        }
        let made = record.place().is_some_and(|(dir, name)| is_there(self.folder(dir), &name));
        Ok(if made { Step::Made } else { Step::Recorded })
    }

    /// The sign by which the space's mount is known; `None` if there is nothing that could be mounted.
    pub(super) fn sign(&self, record: &Record, space: &SpaceRecord) -> Result<Option<Sign>> {
        let Some((folder, name)) = record.place() else {
            return Ok(Some(Sign::Source(space.source.clone())));
        };
        let folder = self.folder(folder);
        match space.means {
            Means::Image => match record::open_file(folder, &name)? {
                Some(image) => device_sign(&image),
                None => Ok(None),
            },
            _ => match find_dir(folder, &name)? {
                Some(dir) => sign_of(&dir, folder, &name).map(Some),
                None => Ok(None),
            },
        }
    }
}

fn device_sign(image: &File) -> Result<Option<Sign>> {
    match Loop::find(image)? {
        Some(device) => Ok(Some(Sign::Device(device.numbers()?))),
        None => Ok(None),
    }
}

fn sign_of(dir: &OwnedFd, folder: &Folder, name: &str) -> Result<Sign> {
    let stat = fs::fstat(dir).map_err(failed(folder.path().join(name).display()))?;
    let above = folder.path().file_name().unwrap_or_default().display();
    Ok(Sign::Directory { device: show_device(stat.st_dev), tail: format!("{above}/{name}") })
}

/// The room that a space takes of its pool by this means.
pub fn room(spec: &SpaceSpec, means: Means) -> u64 {
    match means {
        Means::Image => image::size(spec),
        Means::ProjectQuota => quota::size(spec.capacity),
        Means::Tmpfs | Means::Directory => spec.capacity,
    }
}

/// A record of the same specification, which may be continued.
fn resumed(record: Record, spec: &SpaceSpec) -> Result<Record> {
    let id = &spec.id;
    if record.is_removing() {
        let context = format!("{id} is being removed: wait until it is gone, or use another name");
        return Err(Error::os(libc::EBUSY, context));
    }
    match record.space() {
        Some(space) if space.spec == *spec => Ok(record),
        Some(_) => Err(usage_error(format!(
            "{id} is there, but was made with other words (capacity, owner, place): remove it first"
        ))),
        None => Err(usage_error(format!("{id} is there, but is no private space"))),
    }
}

/// Whether the contents are lost: memory is gone with its mount.
fn lost(record: &Record) -> Result<bool> {
    let Some(space) = record.space() else { return Ok(false) };
    if record.stage != Stage::Ready || space.means != Means::Tmpfs {
        return Ok(false);
    }
    let seen = mount::seen(&space.spec.mount_at, Some(&Sign::Source(space.source.clone())))?;
    Ok(matches!(seen, Seen::Nothing | Seen::Other(_)))
}

fn bring_up_tmpfs(space: &SpaceRecord) -> Result<()> {
    let spec = &space.spec;
    match mount::seen(&spec.mount_at, Some(&Sign::Source(space.source.clone())))? {
        Seen::Ours(_) => return Ok(()),
        Seen::Covered(source) | Seen::Other(source) => {
            return Err(mount::occupied(&spec.mount_at, &source));
        }
        Seen::Nothing => {}
    }
    let settings = [
        Setting::Value("size", spec.capacity.to_string()),
        // The root directory is one of them.
        Setting::Value("nr_inodes", (spec.inodes() + 1).to_string()),
        Setting::Value("mode", format!("{:o}", spec.mode)),
        Setting::Value("uid", spec.owner.uid.to_string()),
        Setting::Value("gid", spec.owner.gid.to_string()),
    ];
    let mount = mount::system("tmpfs", &space.source, &settings)?;
    mount::show(&mount, &spec.mount_at)
}

/// The mount settings of an image's file system.
fn settings(fs: Fs) -> Vec<Setting> {
    match fs {
        // The tables of inodes are zeros already; clearing them would punch holes into the image.
        Fs::Ext4 => vec![
            Setting::Flag("noinit_itable"),
            Setting::Flag("nodiscard"),
            Setting::Value("errors", "remount-ro".into()),
        ],
        Fs::Xfs => vec![Setting::Flag("nodiscard")],
    }
}

/// A directory for an owner, made if it is missing.
pub(super) fn made_dir(folder: &Folder, name: &str, owner: Owner) -> Result<OwnedFd> {
    match fs::mkdirat(folder, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(failed(folder.path().join(name).display())(e)),
    }
    open_dir(folder, name, owner)?.ok_or_else(|| missing(folder, name))
}

fn missing(folder: &Folder, name: &str) -> Error {
    Error::os(libc::ENOENT, folder.path().join(name).display().to_string())
}

fn opened(folder: &Folder, name: &str) -> Result<OwnedFd> {
    find_dir(folder, name)?.ok_or_else(|| missing(folder, name))
}

/// A directory of any owner; `None` if nothing has the name.
fn find_dir(folder: &Folder, name: &str) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match fs::openat(folder, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        other => other.map(Some).map_err(failed(folder.path().join(name).display())),
    }
}

/// A directory that belongs to its owner, or still to root; `None` if nothing has the name.
pub(super) fn open_dir(folder: &Folder, name: &str, owner: Owner) -> Result<Option<OwnedFd>> {
    let at = folder.path().join(name);
    let Some(dir) = find_dir(folder, name)? else { return Ok(None) };
    let uid = fs::fstat(&dir).map_err(failed(at.display()))?.st_uid;
    match uid == owner.uid || uid == 0 {
        true => Ok(Some(dir)),
        false => Err(usage_error(format!(
            "{}: it belongs to {}, not to {}: remove the instance",
            at.display(),
            users::show(uid),
            users::show(owner.uid)
        ))),
    }
}
