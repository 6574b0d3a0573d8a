//! The way from the root directory to a place that other users must not be able to replace.
//!
//! A path is walked one name at a time, each by a descriptor of the directory before it, so that the
//! judged object is the one that is used. A link on the way is followed only if its maker may be
//! trusted.
//!
//! - W1: an entry is trusted if root, or the effective user of this process, owns its directory, and
//!   no other user may write to the directory; or others may (a sticky directory, such as
//!   `/var/tmp`), but the entry itself is owned by root or the effective user.
//! - W2: the mode of a directory tells who may write to it, and a group counts as other users unless
//!   it is the private group of the directory's owner.
//! - W3: no FUSE file system of another user's program is on the way: it can claim that root owns any
//!   file.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use crate::users::{Group, User};
use crate::{Error, Kind, Result, users};
use rustix::fs;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

mod fuse;

/// The number of links that the kernel follows before it fails with ELOOP.
const LINKS_MAX: usize = 40;

const GROUP_OR_OTHERS_WRITE: u32 = 0o022;

const OTHERS_WRITE: u32 = 0o002;

const STICKY: u32 = 0o1000;

/// The demand on the directories on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// W1 holds for every entry: no other user can put another entry in its place.
    Fixed,
    /// W1 holds for every link: no other user chose where the way leads.
    OwnLinks,
}

/// The end of a way: a name in a directory.
pub struct End {
    pub dir: OwnedFd,
    pub name: OsString,
    /// The path without links, except in the name itself.
    pub path: PathBuf,
    /// The object with the name, for looking only (`O_PATH`); `None` if the name is free.
    pub found: Option<OwnedFd>,
}

struct Step {
    name: OsString,
    fd: OwnedFd,
    stat: Stat,
}

struct Walk {
    us: u32,
    demand: Demand,
    /// The directories walked so far; the first is the root, without a name.
    at: Vec<Step>,
    todo: VecDeque<OsString>,
    links: usize,
}

impl Walk {
    fn run(mut self, typed: &Path) -> Result<End> {
        while let Some(name) = self.todo.pop_front() {
            if name == ".." {
                self.at.truncate((self.at.len() - 1).max(1));
                continue;
            }
            if let Some(end) = self.step(name, typed)? {
                return Ok(end);
            }
        }
        self.end(typed)
    }

    /// Steps to `name`; returns the end if the name is free.
    fn step(&mut self, name: OsString, typed: &Path) -> Result<Option<End>> {
        let failed = |e: Errno, at: &Path| Error::io(e.into(), show(at));
        let path = self.path().join(&name);
        let dir = self.last().fd.as_fd();
        // Opened as a directory first: only this triggers an automount (autofs).
        let opened = match open(dir, &name, OFlags::DIRECTORY) {
            Err(Errno::NOTDIR) => open(dir, &name, OFlags::empty()),
            other => other,
        };
        let fd = match opened {
            Err(Errno::NOENT) if self.todo.is_empty() => return self.missing(name).map(Some),
            other => other.map_err(|e| failed(e, &path))?,
        };
        let stat = fs::fstat(&fd).map_err(|e| failed(e, &path))?;
        self.judge(&name, Some(&stat))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return self.follow(&fd, typed).map(|()| None);
        }
        fuse::refuse_of_others(fd.as_fd(), self.us, &path)?;
        self.at.push(Step { name, fd, stat });
        Ok(None)
    }

    fn follow(&mut self, link: &OwnedFd, typed: &Path) -> Result<()> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Error::os(libc::ELOOP, show(typed)));
        }
        let target =
            fs::readlinkat(link, "", Vec::new()).map_err(|e| Error::io(e.into(), show(typed)))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.at.truncate(1);
        }
        for name in names(&target).into_iter().rev() {
            self.todo.push_front(name);
        }
        Ok(())
    }

    fn missing(&mut self, name: OsString) -> Result<End> {
        self.judge(&name, None)?;
        let path = self.path().join(&name);
        let dir = self.at.pop().expect("the root is never taken off").fd;
        Ok(End { dir, name, path, found: None })
    }

    fn end(mut self, typed: &Path) -> Result<End> {
        let path = self.path();
        let Some(Step { name, fd, .. }) = self.at.pop().filter(|_| !self.at.is_empty()) else {
            return Err(usage(format!("{}: name something below the root directory", show(typed))));
        };
        let dir = self.at.pop().expect("the root is below it").fd;
        Ok(End { dir, name, path, found: Some(fd) })
    }

    fn last(&self) -> &Step {
        self.at.last().expect("the root is never taken off")
    }

    fn path(&self) -> PathBuf {
        let mut path = PathBuf::from("/");
        self.at.iter().skip(1).for_each(|step| path.push(&step.name));
        path
    }

    /// Checks W1 for an entry of the last directory; a missing entry will be made by this process.
    fn judge(&self, name: &OsStr, entry: Option<&Stat>) -> Result<()> {
        let dir = &self.last().stat;
        let is_link = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if self.demand == Demand::OwnLinks && !entry.is_some_and(is_link) {
            return Ok(());
        }
        if !self.trusts(dir.st_uid) {
            return Err(self.refusal(name, &format!("{} owns", users::show(dir.st_uid))));
        }
        if !may_be_written_by_others(self.last()) {
            return Ok(());
        }
        let sticky = dir.st_mode & STICKY != 0;
        match entry {
            _ if !sticky => Err(self.refusal(name, "others may write to")),
            Some(stat) if !self.trusts(stat.st_uid) => {
                let owner = users::show(stat.st_uid);
                let at = self.path().join(name);
                Err(usage(format!(
                    "{}: {owner} has put it there, where everybody may: choose another name or \
                     directory",
                    show(&at)
                )))
            }
            _ => Ok(()),
        }
    }

    fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == self.us || fuse::unmapped_root() == Some(uid)
    }

    fn refusal(&self, name: &OsStr, why: &str) -> Error {
        let (dir, name) = (self.path(), Path::new(name));
        usage(format!(
            "{}: {why} {}, and could put something else in its place: choose a directory that is \
             yours alone, or mend that one (chown, chmod go-w, or chmod +t for all to use it)",
            show(&dir.join(name)),
            show(&dir)
        ))
    }
}

/// Walks `path`, and the links on it. Only its last name may be missing.
///
/// # Errors
///
/// [`Kind::Usage`], with a remedy, if another user could change the way; else the system's error.
pub fn walk(path: &Path, demand: Demand) -> Result<End> {
    let absolute = std::path::absolute(path).map_err(|e| Error::io(e, show(path)))?;
    let root = open(fs::CWD, OsStr::new("/"), OFlags::DIRECTORY)
        .and_then(|fd| Ok(Step { name: OsString::new(), stat: fs::fstat(&fd)?, fd }))
        .map_err(|e| Error::io(e.into(), "/"))?;
    let us = rustix::process::geteuid().as_raw();
    let todo = names(&absolute);
    Walk { us, demand, at: vec![root], todo, links: 0 }.run(path)
}

fn open(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::empty())
}

fn names(path: &Path) -> VecDeque<OsString> {
    let named = |component| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(named).collect()
}

/// Checks W2. The grants of an access list show in the group's bits of the mode.
fn may_be_written_by_others(dir: &Step) -> bool {
    match dir.stat.st_mode & GROUP_OR_OTHERS_WRITE {
        0 => false,
        bits if bits & OTHERS_WRITE != 0 => true,
        _ => !has_private_group(dir),
    }
}

fn has_private_group(dir: &Step) -> bool {
    let user = User::with_id(dir.stat.st_uid).ok().flatten();
    let group = Group::with_id(dir.stat.st_gid).ok().flatten();
    let private = user.zip(group).is_some_and(|(user, group)| group.is_private_to(&user));
    private && !has_access_list(dir.fd.as_fd())
}

/// Whether the directory has an access list. A directory that cannot be read counts as one with a
/// list.
fn has_access_list(dir: BorrowedFd<'_>) -> bool {
    let Ok(dir) = fs::openat(dir, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return true;
    };
    let mut nothing: [u8; 0] = [];
    let found = fs::fgetxattr(&dir, "system.posix_acl_access", &mut nothing);
    !matches!(found, Err(Errno::NODATA | Errno::NOTSUP))
}

fn usage(message: String) -> Error {
    Error::new(Kind::Usage, message)
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests;
