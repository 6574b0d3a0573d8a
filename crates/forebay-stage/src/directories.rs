//! The directories of a destination: made closed to others; when complete, they get their modes and times.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self, FileType, Mode, Stat};
use rustix::io::Errno;

use crate::beneath::{Node, State, find, open_dir, set_mode};
use crate::journal::Key;
use crate::progress::add;
use crate::queue::{Closing, Task};
use crate::report::{Reason, Tried, Trouble, destination, source};
use crate::sync::How;
use crate::transfer::Engine;

/// Whose attributes a directory gets in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Made by this transfer: it gets the source's.
    Ours,
    /// It existed before: it keeps its own.
    Others,
}

/// Directories of the destination on the paths of a list's items, each with the first item that uses it.
pub type UsedDirs = BTreeMap<PathBuf, PathBuf>;

impl Engine<'_> {
    /// The directory `to` of the destination, made if it is missing.
    pub fn make_dir(&self, from: &Path, to: &Path) -> Tried<Arc<Node>> {
        let (state, whose, device) = match (to.parent(), to.file_name()) {
            (Some(parent), Some(name)) => {
                let dir = open_dir(self.base.dst.as_fd(), parent);
                self.make_in(&dir.map_err(destination("opening"))?, name, Key::of(to))?
            }
            _ => {
                let stat = fs::fstat(&self.base.dst).map_err(destination("looking"))?;
                (State::Used, Whose::Others, stat.st_dev)
            }
        };
        self.open_early(to);
        let node = Arc::new(Node { from: from.into(), to: to.into(), state });
        add(&self.tally.directories, 1);
        self.remember_dir(node.clone(), whose, self.sync.how(device));
        Ok(node)
    }

    fn make_in(&self, dir: &OwnedFd, name: &OsStr, key: Key) -> Tried<(State, Whose, u64)> {
        let Some(there) = find(dir, name).map_err(destination("looking"))? else {
            self.journal.dir(key).map_err(destination("writing the transfer's journal"))?;
            fs::mkdirat(dir, name, Mode::RWXU).map_err(destination("making"))?;
            let device = fs::fstat(dir).map_err(destination("looking"))?.st_dev;
            return Ok((State::Fresh, Whose::Ours, device));
        };
        if FileType::from_raw_mode(there.st_mode) != FileType::Directory {
            let text = "something that is no directory has the name there";
            return Err(Trouble::new(Reason::InTheWay, text));
        }
        if !self.journal.made_dir(key) {
            return Ok((State::Used, Whose::Others, there.st_dev));
        }
        reopen(dir, name, &there)?;
        Ok((State::Used, Whose::Ours, there.st_dev))
    }

    /// Makes the missing directories above an item of a list. All from the base on are added to `used`: an
    /// earlier run may have made some, and synced none.
    pub fn make_parents(&self, item: &Path, to: &Path, used: &mut UsedDirs) -> Tried<()> {
        let mut path = PathBuf::new();
        for name in to {
            let dir = open_dir(self.base.dst.as_fd(), &path).map_err(destination("opening"))?;
            used.entry(path.clone()).or_insert_with(|| item.into());
            path.push(name);
            match fs::mkdirat(&dir, name, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(destination("making its directory")(errno)),
            }
            let mode = Mode::from_raw_mode(0o777 & !self.spec.options.umask);
            let fd = open_dir(dir.as_fd(), Path::new(name)).map_err(destination("opening"))?;
            fs::fchmod(fd, mode).map_err(destination("setting the mode"))?;
        }
        used.entry(path).or_insert_with(|| item.into());
        Ok(())
    }

    /// Completes all directories, the deepest first: the mode of one may close those below it.
    pub fn close_dirs(&self, how: Closing) {
        let mut levels: BTreeMap<usize, Vec<Arc<Node>>> = BTreeMap::new();
        for (node, whose, synced) in self.dirs() {
            if synced == How::Each || (whose == Whose::Ours && how == Closing::Finish) {
                levels.entry(node.to.components().count()).or_default().push(node);
            }
        }
        for nodes in levels.into_values().rev() {
            self.queue.push_all(nodes.into_iter().map(|node| Task::Close(node, how)));
            self.pool();
        }
    }

    pub fn close_dir(&self, node: &Node, how: Closing) {
        if let Err(trouble) = self.try_close(node, how) {
            self.fail_path(&node.from, trouble);
        }
    }

    fn try_close(&self, node: &Node, how: Closing) -> Tried<()> {
        let dst = open_dir(self.base.dst.as_fd(), &node.to).map_err(destination("opening"))?;
        if how == Closing::Finish && self.is_ours(node) {
            let src = open_dir(self.base.src.as_fd(), &node.from).map_err(source("opening"))?;
            let stat = fs::fstat(&src).map_err(source("looking"))?;
            let lost = self.attributes().apply(&src, &dst, &stat)?;
            self.note_lost(&node.from, &lost);
        }
        self.sync.dir(&dst).map_err(destination("syncing the directory"))
    }

    fn is_ours(&self, node: &Node) -> bool {
        node.state == State::Fresh || self.journal.made_dir(Key::of(&node.to))
    }
}

/// Reopens a directory of the transfer's that an earlier run has closed, perhaps even to its owner.
pub fn reopen(dir: &OwnedFd, name: &OsStr, there: &Stat) -> Tried<()> {
    let own = Mode::RWXU.bits();
    match there.st_mode & own == own {
        true => Ok(()),
        false => set_mode(dir, name, Mode::RWXU).map_err(destination("setting the mode")),
    }
}
