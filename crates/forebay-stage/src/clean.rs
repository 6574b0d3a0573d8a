//! Removes the remains of a cancelled transfer: temporary files, a tree beside its place, the journal.
//! Published files stay.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_base::{Error, Result};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::beneath::{self, open_dir, open_name, open_top};
use crate::journal::{self, is_of, old_name, tree_name};
use crate::place::{named, read_list, restore};
use crate::spec::{Spec, What, tidy};

/// Each level of a tree that is removed or searched holds a descriptor.
const DEPTH_MAX: usize = 4000;

/// Removes the transfer's remains at its destination.
///
/// # Errors
///
/// If a part of the remains could not be removed; the call may be repeated.
pub fn clean(spec: &Spec) -> Result<()> {
    spec.check()?;
    let failed = |e: Errno| Error::io(e.into(), spec.destination.shown()).context("cleaning up");
    let root = beneath::root(&spec.destination)?;
    let path = tidy(&spec.destination.path.0);
    if let What::List(list) = &spec.what {
        let dir = open_top(root.as_fd(), &path).map_err(failed)?;
        let items = read_list(list, &path)?;
        let parents: BTreeSet<&Path> = items.iter().filter_map(|item| item.to.parent()).collect();
        for parent in parents {
            sweep_path(&dir, parent, &spec.id, Depth::One).map_err(failed)?;
        }
        for item in &items {
            sweep_path(&dir, &item.to, &spec.id, Depth::All).map_err(failed)?;
        }
        return unlink(&dir, &journal::name(&spec.id)).map_err(failed);
    }
    if path.as_os_str().is_empty() {
        let dir = open_top(root.as_fd(), &path).map_err(failed)?;
        sweep(&dir, &spec.id, Depth::All).map_err(failed)?;
        return unlink(&dir, &journal::name(&spec.id)).map_err(failed);
    }
    let (dir, name) = named(&root, &path).map_err(failed)?;
    restore(&dir, &spec.id, &name).map_err(failed)?;
    for name in [tree_name(&spec.id), old_name(&spec.id)] {
        remove_tree(&dir, &name).map_err(failed)?;
    }
    match spec.what {
        What::File => sweep(&dir, &spec.id, Depth::One).map_err(failed)?,
        _ => sweep_path(&dir, Path::new(&name), &spec.id, Depth::All).map_err(failed)?,
    }
    unlink(&dir, &journal::name(&spec.id)).map_err(failed)
}

fn sweep_path(dir: &OwnedFd, path: &Path, id: &str, depth: Depth) -> rustix::io::Result<()> {
    match open_dir(dir.as_fd(), path) {
        // A directory that this process may not read has no files of the transfer.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(()),
        fd => sweep(&fd?, id, depth),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    One,
    All,
}

/// Removes temporary files of the transfer from a directory, or also from all directories below.
fn sweep(dir: &OwnedFd, id: &str, depth: Depth) -> rustix::io::Result<()> {
    let mut levels = vec![entries(dir)?];
    while let Some((dir, names)) = levels.last_mut() {
        let Some((name, kind)) = names.pop() else {
            levels.pop();
            continue;
        };
        if kind != FileType::Directory && is_of(id, name.as_bytes()) && !is_journal(&name) {
            unlink(dir, &name)?;
        } else if kind == FileType::Directory && depth == Depth::All {
            match open_name(dir, &name, OFlags::RDONLY | OFlags::DIRECTORY) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {}
                fd => descend(&mut levels, &fd?)?,
            }
        }
    }
    Ok(())
}

/// The journal is removed last: until then a run can be taken up.
fn is_journal(name: &OsStr) -> bool {
    name.as_bytes().ends_with(b".journal")
}

type Level = (OwnedFd, Vec<(OsString, FileType)>);

fn descend(levels: &mut Vec<Level>, dir: &OwnedFd) -> rustix::io::Result<()> {
    if levels.len() >= DEPTH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    levels.push(entries(dir)?);
    Ok(())
}

/// A directory and its entries.
fn entries(dir: &OwnedFd) -> rustix::io::Result<Level> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = fs::openat(dir, ".", flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match beneath::find(&dir, name)? {
                Some(stat) => FileType::from_raw_mode(stat.st_mode),
                None => continue,
            },
            known => known,
        };
        names.push((name.to_os_string(), kind));
    }
    Ok((dir, names))
}

fn unlink(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    match fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Removes a file or a tree, by descriptors; does nothing if the name does not exist.
pub fn remove_tree(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    let top = match fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => open_ours(dir, name)?,
        Err(errno) => return Err(errno),
    };
    let mut levels = vec![entries(&top)?];
    let mut path: Vec<OsString> = vec![name.into()];
    while let Some((at, names)) = levels.last_mut() {
        match names.pop() {
            Some((name, FileType::Directory)) => {
                let below = open_ours(at, &name)?;
                path.push(name);
                descend(&mut levels, &below)?;
            }
            Some((name, _)) => unlink(at, &name)?,
            None => {
                levels.pop();
                let name = path.pop().expect("one name for each level");
                let parent = levels.last().map_or(dir, |(parent, _)| parent);
                match fs::unlinkat(parent, &name, AtFlags::REMOVEDIR) {
                    Err(Errno::NOENT) => {}
                    other => other?,
                }
            }
        }
    }
    Ok(())
}

/// Opens a directory to be emptied: its mode may keep even its owner out.
fn open_ours(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd = match open_name(dir, name, flags) {
        Err(Errno::ACCESS) => {
            beneath::set_mode(dir, name, Mode::RWXU)?;
            open_name(dir, name, flags)?
        }
        other => other?,
    };
    let mode = Mode::from_raw_mode(fs::fstat(&fd)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // If the directory is another user's, the removal fails later.
        _ = fs::fchmod(&fd, Mode::RWXU);
    }
    Ok(fd)
}
