//! The way of one file: looked at, copied under a temporary name, verified, passed on to publishing.

use std::ffi::{OsStr, OsString};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::attributes::{Renewed, owner};
use crate::beneath::{Near, Pair, State, find, look, open_name};
use crate::bytes::{Mover, Shape, Verify};
use crate::journal::{Key, Version, pieces_name, temp_name};
use crate::large::{self, Large};
use crate::progress::get;
use crate::publish::Ready;
use crate::queue::{FileTask, Nature, Task};
use crate::report::{Reason, Tried, Trouble, destination, opened, source};
use crate::spec::Overwrite;
use crate::sync::{self, Since, Sync};
use crate::transfer::Engine;

/// The state of a file's name at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The file must be copied; another may be replaced.
    Copy,
    /// The file is there already.
    Same,
    /// Another file is there and must stay.
    Stays,
}

impl Engine<'_> {
    /// Copies a file and passes it on to publishing; a large one continues in pieces.
    pub fn file(&self, mut task: FileTask, near: &mut Near) {
        if !self.enter(&task) {
            // The directory was changed during the walk, which found the file twice.
            return self.uncount(&task);
        }
        let own = AtomicU64::new(0);
        if let Err(trouble) = self.try_file(&mut task, near, &own) {
            self.take_back(get(&own));
            self.fail(&task, trouble);
        }
    }

    fn try_file(&self, task: &mut FileTask, near: &mut Near, own: &AtomicU64) -> Tried<()> {
        let pair = near.pair(&self.base, &task.node).map_err(opened)?;
        if task.nature == Nature::Special {
            return self.special(task, &pair);
        }
        let src = open_name(&pair.src, &task.name, OFlags::RDONLY).map_err(source("opening"))?;
        let stat = fs::fstat(&src).map_err(source("looking"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Trouble::new(Reason::Changed, "it became something else meanwhile"));
        }
        self.links.begun(task, &stat);
        self.resized(task, stat.st_size as u64);
        match self.standing(task, &pair, &stat)? {
            Standing::Same => {
                self.note_lost(&task.from(), self.journal.lost(Key::of(&task.to())));
                self.complete(task, &pair, &src, &stat)?;
                self.keep(task, &pair, &stat)
            }
            Standing::Stays => {
                self.links.part(task);
                self.keep(task, &pair, &stat)
            }
            Standing::Copy => {
                // After the look: a store through a mapping in between has moved the times, and is found at the end.
                sync::watch_mappings(&src).map_err(source("sending its pages"))?;
                if self.take_early(task, &pair, &src, &stat, own)? {
                    return Ok(());
                }
                match large::is(&stat) {
                    true => self.begin_large(task.clone(), pair, src, stat),
                    false => self.small(task, &pair, &src, &stat, own),
                }
            }
        }
    }

    fn small(
        &self,
        task: &FileTask,
        pair: &Arc<Pair>,
        src: &OwnedFd,
        stat: &Stat,
        own: &AtomicU64,
    ) -> Tried<()> {
        let key = Key::of(&task.to());
        self.remove_pieces(&pair.dst, key);
        let temp = Temp::create(&self.sync, pair, temp_name(&self.spec.id, key))?;
        let size = stat.st_size as u64;
        let mover = self.mover(own);
        if !mover.reflink(src, &temp.fd, size) {
            if shape(stat) == Shape::Sparse {
                fs::ftruncate(&temp.fd, size).map_err(destination("setting its size"))?;
            }
            mover.copy(src, &temp.fd, 0..size, shape(stat))?;
        }
        self.finish(task, key, pair, src, stat, temp)
    }

    pub fn mover<'a>(&'a self, own: &'a AtomicU64) -> Mover<'a> {
        Mover {
            control: self.control,
            pace: &self.pace,
            tally: &self.tally,
            means: &self.means,
            verify: if self.spec.options.checksum { Verify::Content } else { Verify::Size },
            own,
        }
    }

    /// Finishes a file whose bytes are copied: sets attributes, checks the source again, passes it on to publishing.
    pub fn finish(
        &self,
        task: &FileTask,
        key: Key,
        pair: &Pair,
        src: &OwnedFd,
        stat: &Stat,
        temp: Temp,
    ) -> Tried<()> {
        let lost = self.attributes().apply(src, &temp.fd, stat)?;
        let made = fs::fstat(&temp.fd).map_err(destination("looking"))?;
        if made.st_size != stat.st_size {
            let text = format!("{} bytes became {}", stat.st_size, made.st_size);
            return Err(Trouble::new(Reason::Mismatch, text));
        }
        let versions = (Version::of_source(stat), Version::of_destination(&made));
        unchanged(pair, &task.name, src, versions.0)?;
        self.sync.file(&temp.fd).map_err(destination("syncing"))?;
        let since = temp.since;
        let temp = temp.close()?;
        self.note_lost(&task.from(), &lost);
        self.queue.ready(Ready { task: task.clone(), temp, key, versions, since, lost });
        Ok(())
    }

    /// The state of the file's name. The file counts as there if this or an earlier run of the transfer
    /// published it, or if size and time of last change are the source's.
    fn standing(&self, task: &FileTask, pair: &Pair, stat: &Stat) -> Tried<Standing> {
        if task.node.state == State::Fresh {
            return Ok(Standing::Copy);
        }
        let Some(there) = find(&pair.dst, task.to_name()).map_err(destination("looking"))? else {
            return Ok(Standing::Copy);
        };
        if FileType::from_raw_mode(there.st_mode) == FileType::Directory {
            return Err(Trouble::new(Reason::InTheWay, "a directory has the name there"));
        }
        if FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
            && self.is_same(task, stat, &there)
        {
            return Ok(Standing::Same);
        }
        self.replaced(stat, &there)
    }

    /// Whether this file may replace another that is there.
    pub fn replaced(&self, stat: &Stat, there: &Stat) -> Tried<Standing> {
        match self.spec.options.overwrite {
            Overwrite::Always => Ok(Standing::Copy),
            Overwrite::Older if changed(stat) > changed(there) => Ok(Standing::Copy),
            Overwrite::Older | Overwrite::Never => Ok(Standing::Stays),
            Overwrite::Fail => {
                Err(Trouble::new(Reason::InTheWay, "another file has the name there"))
            }
        }
    }

    fn is_same(&self, task: &FileTask, stat: &Stat, there: &Stat) -> bool {
        let alike = stat.st_size == there.st_size && changed(stat) == changed(there);
        match self.journal.published(Key::of(&task.to())) {
            Some((src, _)) if src != Version::of_source(stat) => false,
            Some((_, dst)) => alike || dst == Version::of_destination(there),
            // No run of the transfer has compared this file's content.
            None => alike && self.spec.options.preserve.times && !self.spec.options.checksum,
        }
    }

    /// Gives a file that another program put there, and that may be changed, its source's owner and extended
    /// attributes, where these differ. Its mode is left to [`Engine::keep`]. A file with further names is not
    /// touched: the names are not this transfer's.
    fn complete(&self, task: &FileTask, pair: &Pair, src: &OwnedFd, stat: &Stat) -> Tried<()> {
        let is_own = self.journal.published(Key::of(&task.to())).is_some();
        if is_own || self.spec.options.overwrite == Overwrite::Never {
            return Ok(());
        }
        let attributes = self.attributes();
        let there = look(&pair.dst, task.to_name()).map_err(destination("looking"))?;
        let is_owned = !attributes.gives_owner() || owner(&there) == owner(stat);
        let names = attributes.taken(src)?;
        if (is_owned && names.is_empty()) || there.st_nlink > 1 || !attributes.may_change(&there) {
            return Ok(());
        }
        // A file that this process may not read keeps its attributes.
        let Ok(fd) = open_name(&pair.dst, task.to_name(), OFlags::RDONLY) else { return Ok(()) };
        if !is_owned {
            let (uid, gid) = owner(stat);
            fs::fchown(&fd, Some(uid), Some(gid)).map_err(destination("setting the owner"))?;
            let mode = Mode::from_raw_mode(there.st_mode);
            fs::fchmod(&fd, mode).map_err(destination("setting the mode"))?;
        }
        let (mut lost, mut changed) = (Vec::new(), !is_owned);
        for name in names {
            match attributes.renew(src, &fd, &name)? {
                Renewed::Same => {}
                Renewed::Yes => changed = true,
                Renewed::Lost => lost.push(name),
            }
        }
        self.note_lost(&task.from(), &lost);
        if changed {
            self.sync.file(&fd).map_err(destination("syncing"))?;
        }
        Ok(())
    }

    fn keep(&self, task: &FileTask, pair: &Pair, stat: &Stat) -> Tried<()> {
        let there = look(&pair.dst, task.to_name()).map_err(destination("looking"))?;
        let mode = self.attributes().mode(stat);
        let differs = there.st_mode & 0o7777 != mode.bits();
        if differs && self.spec.options.preserve.mode && changed(stat) == changed(&there) {
            let fd = open_name(&pair.dst, task.to_name(), OFlags::RDONLY);
            let fd = fd.map_err(destination("opening"))?;
            let src =
                open_name(&pair.src, &task.name, OFlags::RDONLY).map_err(source("opening"))?;
            let mode = self.attributes().mode_without_list(&src, &fd, stat)?;
            fs::fchmod(fd, mode).map_err(destination("setting the mode"))?;
        }
        self.remove_left(&pair.dst, Key::of(&task.to()));
        self.tally.keep(task.size);
        self.published(task);
        Ok(())
    }

    /// Removes the remains of an earlier run for a file.
    pub fn remove_left(&self, dir: &OwnedFd, key: Key) {
        _ = fs::unlinkat(dir, temp_name(&self.spec.id, key), AtFlags::empty());
        self.remove_pieces(dir, key);
    }

    /// Removes the temporary file that an earlier run copied in pieces.
    pub fn remove_pieces(&self, dir: &OwnedFd, key: Key) {
        if let Some(begun) = self.journal.begun(key) {
            let name = pieces_name(&self.spec.id, key, begun.nonce);
            _ = fs::unlinkat(dir, name, AtFlags::empty());
        }
    }

    fn begin_large(&self, task: FileTask, pair: Arc<Pair>, src: OwnedFd, stat: Stat) -> Tried<()> {
        let Some(large) = Large::begin(self, task, pair, src, stat)? else { return Ok(()) };
        let large = Arc::new(large);
        for piece in large.missing() {
            self.queue.push(Task::Piece(large.clone(), piece));
        }
        Ok(())
    }
}

/// The time of the last change of content, in seconds and nanoseconds.
pub fn changed(stat: &Stat) -> (i64, i64) {
    (stat.st_mtime, stat.st_mtime_nsec as i64)
}

/// Fewer blocks than bytes: the file may have holes or be compressed; the search for holes tells.
pub fn shape(stat: &Stat) -> Shape {
    match (stat.st_blocks as u64) * 512 < stat.st_size as u64 {
        true => Shape::Sparse,
        false => Shape::Solid,
    }
}

/// T3: fails unless the file that was read is unchanged and still has its name.
pub fn unchanged(pair: &Pair, name: &OsStr, src: &OwnedFd, before: Version) -> Tried<()> {
    let changed = || Trouble::new(Reason::Changed, "it was changed while it was copied");
    if Version::of_source(&fs::fstat(src).map_err(source("looking again"))?) != before {
        return Err(changed());
    }
    let named = look(&pair.src, name).map_err(source("looking again"))?;
    if Version::of_source(&named) == before { Ok(()) } else { Err(changed()) }
}

/// A file under a temporary name; it is removed when this value is dropped.
pub struct Temp {
    pub fd: OwnedFd,
    since: Since,
    place: TempName,
}

struct TempName {
    pair: Arc<Pair>,
    name: OsString,
}

impl Temp {
    /// Makes a new file, which replaces the remains of an earlier run.
    pub fn create(sync: &Sync, pair: &Arc<Pair>, name: OsString) -> Tried<Temp> {
        let since = sync.since();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let fd = match open_name(&pair.dst, &name, flags) {
            Err(Errno::EXIST) => {
                let gone = fs::unlinkat(&pair.dst, &name, AtFlags::empty());
                gone.map_err(destination("removing what was left"))?;
                open_name(&pair.dst, &name, flags)
            }
            other => other,
        };
        let fd = fd.map_err(destination("making"))?;
        Ok(Temp { fd, since, place: TempName { pair: pair.clone(), name } })
    }

    /// The temporary file of an earlier run.
    pub fn of(fd: OwnedFd, sync: &Sync, pair: &Arc<Pair>, name: OsString) -> Temp {
        Temp { fd, since: sync.since(), place: TempName { pair: pair.clone(), name } }
    }

    /// Leaves the file for another run.
    pub fn leave(self) {
        self.place.keep();
    }

    /// Closes the file, and returns its temporary name, which it keeps. Over NFS only the close reports errors
    /// of the server.
    pub fn close(self) -> Tried<OsString> {
        let Temp { fd, place, .. } = self;
        // SAFETY: the descriptor is ours, and nobody uses it after this.
        if unsafe { libc::close(fd.into_raw_fd()) } != 0 {
            let error = Errno::from_io_error(&std::io::Error::last_os_error());
            return Err(destination("closing")(error.unwrap_or(Errno::IO)));
        }
        Ok(place.keep())
    }
}

impl TempName {
    fn keep(mut self) -> OsString {
        std::mem::take(&mut self.name)
    }
}

impl Drop for TempName {
    /// An empty name marks a file that was passed on.
    fn drop(&mut self) {
        if !self.name.is_empty() {
            _ = fs::unlinkat(&self.pair.dst, &self.name, AtFlags::empty());
        }
    }
}
