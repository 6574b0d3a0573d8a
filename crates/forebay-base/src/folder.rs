//! A directory of this process's user, and the one place where files in it are opened: the tier and
//! its contents, and the directory of a log.
//!
//! - F1: no name is resolved through a link, and none leads out of the directory.
//! - F2: an opened object is a regular file, or for [`Folder::below`] a directory, that belongs to
//!   the effective user, and a file has no second name. Anything else (a FIFO, a device, a link,
//!   another user's file) is refused, and never waited for.
//!
//! Names are relative, with `/` between components.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::users;
use rustix::fs;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// A file that is read as a whole is no larger than this: the largest is a list of jobs.
const READ_MAX: u64 = 64 << 20;

/// `sun_path` holds 107 bytes and a NUL; a round number below it leaves nothing to chance.
const SOCKET_PATH_MAX: usize = 100;

/// The kind of object that an opened name must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    File,
    Dir,
}

/// Whether a change has to survive a loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    Yes,
    No,
}

#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Takes a directory that was opened, for reading or for looking only. Its owner is not judged.
    pub fn of(dir: BorrowedFd<'_>, path: &Path) -> io::Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::openat(dir, ".", flags, Mode::empty())?;
        Ok(Folder { fd, path: path.into() })
    }

    /// A directory of this process's user, in a place that was judged before.
    pub fn own(dir: &Path) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::open(dir, flags, Mode::empty())?;
        require(&fs::fstat(&fd)?, Wanted::Dir)?;
        Folder::of(fd.as_fd(), dir)
    }

    /// The path of the directory, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in this one.
    pub fn below(&self, name: &str) -> io::Result<Folder> {
        let fd = self.open(name, OFlags::RDONLY | OFlags::DIRECTORY, Wanted::Dir)?;
        Ok(Folder { fd, path: self.path.join(name) })
    }

    /// Opens a file with `flags`; a new file is accessible to its owner alone.
    pub fn open(
        &self,
        name: impl AsRef<OsStr>,
        flags: OFlags,
        wanted: Wanted,
    ) -> io::Result<OwnedFd> {
        let name = name.as_ref();
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
        // The other end of a FIFO is never waited for; only regular files have leases, and their
        // holders are worth a wait.
        let fd = match open_beneath(self.fd.as_fd(), name, flags | OFlags::NONBLOCK) {
            Err(Errno::AGAIN) => open_beneath(self.fd.as_fd(), name, flags),
            other => other,
        };
        let fd = fd.map_err(|e| self.explain(name, e))?;
        // A file that was just made is what it should be.
        if !flags.contains(OFlags::EXCL) {
            require(&fs::fstat(&fd)?, wanted)?;
        }
        Ok(fd)
    }

    /// Explains why a name that is no regular file could not be opened.
    fn explain(&self, name: &OsStr, errno: Errno) -> io::Error {
        let strange = matches!(errno, Errno::LOOP | Errno::NXIO | Errno::ISDIR | Errno::NOTDIR);
        let found = fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        match found.filter(|_| strange).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Some(kind) if kind != FileType::RegularFile => refusal(kind_name(kind)),
            _ => errno.into(),
        }
    }

    /// The contents of a whole file.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = File::from(self.open(name, OFlags::RDONLY, Wanted::File)?);
        let mut bytes = Vec::new();
        file.take(READ_MAX + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > READ_MAX {
            true => Err(refusal("larger than it can be")),
            false => Ok(bytes),
        }
    }

    /// Replaces or makes a whole file: a crash leaves the old file or the new one.
    pub fn replace(&self, name: &str, bytes: &[u8], durable: Durable) -> io::Result<()> {
        let aside = format!("{name}.new");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        self.remove_if_there(&aside)?;
        let mut file = File::from(self.open(&aside, flags, Wanted::File)?);
        file.write_all(bytes)?;
        if durable == Durable::Yes {
            file.sync_all()?;
        }
        self.rename(&aside, name)?;
        match durable {
            Durable::Yes => Ok(fs::fsync(&self.fd)?),
            Durable::No => Ok(()),
        }
    }

    /// A file to append to, made if missing.
    pub fn append(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        self.open(name, flags, Wanted::File).map(File::from)
    }

    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(fs::renameat(&self.fd, from.as_ref(), &self.fd, to.as_ref())?)
    }

    pub fn remove_if_there(&self, name: &str) -> io::Result<()> {
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Removes a directory that is empty.
    pub fn remove_dir(&self, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Makes a directory, unless it exists and is owned by this user; other users may not write to it
    /// then.
    pub fn make_dir(&self, name: &str) -> io::Result<()> {
        match fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Err(Errno::EXIST) => self.below(name)?.close_to_others(),
            other => Ok(other?),
        }
    }

    /// Removes the access of other users.
    pub fn close_to_others(&self) -> io::Result<()> {
        let mode = Mode::from_raw_mode(fs::fstat(&self.fd)?.st_mode);
        match mode.intersects(Mode::RWXG | Mode::RWXO) {
            true => Ok(fs::fchmod(&self.fd, Mode::RWXU)?),
            false => Ok(()),
        }
    }

    /// The names in this directory, or in a directory in it.
    pub fn list(&self, dir: &str) -> io::Result<Vec<std::ffi::OsString>> {
        let fd = match dir {
            "" => fs::openat(&self.fd, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?,
            _ => self.open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Wanted::Dir)?,
        };
        let mut names = Vec::new();
        for entry in fs::Dir::new(fd)? {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_os_string();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Listens on a socket that only its owner may connect to, in the place of any object of that
    /// name.
    pub fn listen(&self, name: &str) -> io::Result<UnixListener> {
        self.remove_if_there(name)?;
        let mut at = self.path.join(name);
        if at.as_os_str().len() > SOCKET_PATH_MAX {
            at = PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()));
        }
        let listener = UnixListener::bind(at)?;
        fs::chmodat(&self.fd, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        Ok(listener)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// F2.
pub fn require(stat: &Stat, wanted: Wanted) -> io::Result<()> {
    let us = rustix::process::geteuid().as_raw();
    let kind = FileType::from_raw_mode(stat.st_mode);
    match (wanted, kind) {
        (Wanted::File, FileType::RegularFile) | (Wanted::Dir, FileType::Directory) => {}
        _ => return Err(refusal(kind_name(kind))),
    }
    if stat.st_uid != us {
        let owner = users::show(stat.st_uid);
        return Err(refused(format!("it belongs to {owner}, not to {}", users::show(us))));
    }
    if wanted == Wanted::File && stat.st_nlink > 1 {
        return Err(refusal("a file with another name elsewhere (a hard link)"));
    }
    Ok(())
}

/// Whether an error says that the object with the name is not allowed there.
pub fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

fn refusal(what: &str) -> io::Error {
    refused(format!("it is {what}"))
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "no file",
    }
}

/// F1.
fn open_beneath(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let mode = match flags.contains(OFlags::CREATE) {
        true => Mode::RUSR | Mode::WUSR,
        false => Mode::empty(),
    };
    loop {
        match fs::openat2(dir, name, flags, mode, resolve) {
            Err(Errno::INTR) => {}
            // Kernels before 5.6 do not have the call, and some sandboxes refuse it.
            Err(Errno::NOSYS | Errno::PERM) => return walk(dir, name, flags, mode),
            done => return done,
        }
    }
}

fn walk(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at: Option<OwnedFd> = None;
    let mut rest = Path::new(name).components().peekable();
    while let Some(component) = rest.next() {
        let std::path::Component::Normal(name) = component else { return Err(Errno::XDEV) };
        let dir = at.as_ref().map_or(dir, AsFd::as_fd);
        let (flags, mode) =
            if rest.peek().is_some() { (step, Mode::empty()) } else { (flags, mode) };
        at = Some(fs::openat(dir, name, flags, mode)?);
    }
    at.ok_or(Errno::NOENT)
}

#[cfg(test)]
mod tests;
