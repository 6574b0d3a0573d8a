//! Deleting a tree by descriptors (P3).
//!
//! Each name is removed from a directory that is open, and a directory is opened without following
//! a link: a process that still works in the tree can only change what is deleted anyway.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_base::folder::Folder;
use rustix::fs;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

/// A tree deeper than this is taken apart: deeper directories are moved up first. A tree of any
/// depth thus needs this many descriptors.
const DEPTH_MAX: usize = 64;

/// A process that still works in a directory may put files there while it is emptied. After this
/// many rounds the directory is left for a later call.
const ROUNDS: usize = 20;

/// Deletes `name` of `folder`, and everything below; a missing name counts as deleted.
pub(super) fn tree(folder: &Folder, name: &str) -> io::Result<()> {
    let mut todo = VecDeque::from([name.to_string()]);
    let mut moved = 0;
    while let Some(name) = todo.pop_front() {
        let Some(dir) = unlink_or_open(folder.as_fd(), &c_string(&name)?)? else { continue };
        let device = fs::fstat(&dir)?.st_dev;
        let mut walk = Walk { folder, name: &name, device, moved: &mut moved, todo: &mut todo };
        walk.empty(&dir, 0)?;
        fs::unlinkat(folder, &name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

struct Walk<'w> {
    folder: &'w Folder,
    name: &'w str,
    device: u64,
    moved: &'w mut usize,
    todo: &'w mut VecDeque<String>,
}

impl Walk<'_> {
    fn empty(&mut self, dir: &OwnedFd, depth: usize) -> io::Result<()> {
        for _ in 0..ROUNDS {
            let names = names(dir)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                self.remove(dir, &name, depth)?;
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENOTEMPTY))
    }

    fn remove(&mut self, dir: &OwnedFd, name: &CString, depth: usize) -> io::Result<()> {
        let Some(below) = unlink_or_open(dir.as_fd(), name)? else { return Ok(()) };
        if fs::fstat(&below)?.st_dev != self.device {
            return Err(io::Error::from_raw_os_error(libc::EXDEV));
        }
        if depth >= DEPTH_MAX {
            return self.move_up(dir, name);
        }
        self.empty(&below, depth + 1)?;
        match fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            // The directory was filled again, or moved: the next round handles it.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// The new name begins like the old one: a sweep after a crash then knows its record.
    fn move_up(&mut self, dir: &OwnedFd, name: &CString) -> io::Result<()> {
        loop {
            *self.moved += 1;
            let base = self.name.split_inclusive(".data").next().unwrap_or(self.name);
            let aside = format!("{base}.{}", self.moved);
            if super::record::is_there(self.folder, &aside) {
                continue;
            }
            return match fs::renameat(dir, name, self.folder, &aside) {
                Ok(()) => {
                    self.todo.push_back(aside);
                    Ok(())
                }
                Err(Errno::NOENT) => Ok(()),
                Err(e) => Err(e.into()),
            };
        }
    }
}

/// Removes a name that is no directory; opens a directory.
fn unlink_or_open(dir: BorrowedFd<'_>, name: &CString) -> io::Result<Option<OwnedFd>> {
    match fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(e) => return Err(e.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match fs::openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn names(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn c_string(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn folder(dir: &tempfile::TempDir) -> Folder {
        Folder::own(dir.path()).unwrap()
    }

    #[test]
    fn nothing_outside_of_a_tree_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("out/sub")).unwrap();
        std::fs::write(at("out/sub/kept"), "kept").unwrap();
        std::fs::create_dir_all(at("a.1.data/x/y")).unwrap();
        std::fs::write(at("a.1.data/x/file"), "gone").unwrap();
        symlink(at("out"), at("a.1.data/x/link")).unwrap();
        symlink("/", at("a.1.data/root")).unwrap();
        tree(&folder(&dir), "a.1.data").unwrap();
        assert!(!at("a.1.data").exists());
        assert_eq!(std::fs::read(at("out/sub/kept")).unwrap(), b"kept");
        symlink(at("out"), at("b")).unwrap();
        tree(&folder(&dir), "b").unwrap();
        assert!(at("out/sub/kept").exists() && !at("b").is_symlink());
        tree(&folder(&dir), "never there").unwrap();
    }

    /// The tree is deeper than descriptors and paths reach.
    #[test]
    fn a_tree_may_be_as_deep_as_it_likes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a.1.data")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = fs::open(dir.path().join("a.1.data"), flags, Mode::empty()).unwrap();
        for _ in 0..5000 {
            fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = fs::openat(&at, "d", flags, Mode::empty()).unwrap();
        }
        drop(at);
        tree(&folder(&dir), "a.1.data").unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
