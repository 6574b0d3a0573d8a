//! Publishing: a batch of copies is made durable, written to the journal, and given its names (T1).

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::OwnedFd;

use rustix::fs::{self, RenameFlags};
use rustix::io::Errno;

use crate::beneath::Near;
use crate::journal::{Key, Version};
use crate::queue::FileTask;
use crate::report::{Reason, Tried, Trouble, destination, opened};
use crate::spec::Overwrite;
use crate::sync::Since;
use crate::transfer::Engine;

/// A finished copy that is not durable yet and has no name.
#[derive(Debug)]
pub struct Ready {
    pub task: FileTask,
    pub temp: OsString,
    pub key: Key,
    /// The versions of the source and of the destination.
    pub versions: (Version, Version),
    /// When its first byte was written.
    pub since: Since,
    /// Extended attributes that the destination does not keep.
    pub lost: Vec<CString>,
}

impl Engine<'_> {
    /// Makes a batch durable, and passes it on for its names. If a write has failed, the error does not say
    /// whose bytes are lost: then no file that was begun before the error gets its name.
    pub fn flush(&self, batch: Vec<Ready>, near: &mut Near) {
        let synced = self.sync.all();
        let mut durable = Vec::with_capacity(batch.len());
        for ready in batch {
            match synced.and_then(|synced| synced.has(ready.since)) {
                Ok(()) => durable.push(ready),
                Err(errno) => self.lose(&ready, destination("making durable")(errno), near),
            }
        }
        let lines = durable.iter().map(|r| (r.key, r.versions.0, r.versions.1, &r.lost[..]));
        match self.journal.publish(lines) {
            Ok(()) => self.queue.push_names(durable),
            Err(errno) => {
                for ready in durable {
                    let trouble = destination("writing the transfer's journal")(errno);
                    self.lose(&ready, trouble, near);
                }
            }
        }
    }

    pub fn name_all(&self, batch: Vec<Ready>, near: &mut Near) {
        for ready in batch {
            match self.name(&ready, near) {
                Ok(()) => {
                    self.tally.published(ready.task.size);
                    self.published(&ready.task);
                }
                Err(trouble) => self.lose(&ready, trouble, near),
            }
        }
    }

    fn name(&self, ready: &Ready, near: &mut Near) -> Tried<()> {
        let dir = &near.pair(&self.base, &ready.task.node).map_err(opened)?.dst;
        self.rename(dir, &ready.temp, ready.task.to_name())?;
        if self.early.get().is_some() {
            // An earlier run may have given the name already: a rename between two names of one file does nothing.
            _ = fs::unlinkat(dir, &ready.temp, fs::AtFlags::empty());
        }
        Ok(())
    }

    /// Gives a file its name. A file that must not be replaced may have taken it meanwhile.
    pub fn rename(&self, dir: &OwnedFd, temp: &OsStr, name: &OsStr) -> Tried<()> {
        let renamed = match self.spec.options.overwrite {
            Overwrite::Never | Overwrite::Fail => {
                match fs::renameat_with(dir, temp, dir, name, RenameFlags::NOREPLACE) {
                    // Not every file system supports the flag. A hard link does not replace a file either.
                    Err(Errno::INVAL | Errno::NOSYS) => second_name(dir, temp, name),
                    other => other,
                }
            }
            Overwrite::Always | Overwrite::Older => fs::renameat(dir, temp, dir, name),
        };
        match renamed {
            Err(Errno::EXIST) => {
                Err(Trouble::new(Reason::InTheWay, "a file of that name was made meanwhile"))
            }
            other => other.map_err(destination("giving it its name")),
        }
    }

    fn lose(&self, ready: &Ready, trouble: Trouble, near: &mut Near) {
        if let Ok(pair) = near.pair(&self.base, &ready.task.node) {
            _ = fs::unlinkat(&pair.dst, &ready.temp, fs::AtFlags::empty());
        }
        self.take_back(ready.task.size);
        self.fail(&ready.task, trouble);
    }
}

/// Gives a file its name where rename cannot refuse to replace a file: a hard link never replaces one. Without hard
/// links the name is only checked before the rename.
fn second_name(dir: &OwnedFd, temp: &OsStr, name: &OsStr) -> rustix::io::Result<()> {
    match fs::linkat(dir, temp, dir, name, fs::AtFlags::empty()) {
        Ok(()) => fs::unlinkat(dir, temp, fs::AtFlags::empty()),
        Err(Errno::EXIST) => Err(Errno::EXIST),
        Err(_) => match fs::statat(dir, name, fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => fs::renameat(dir, temp, dir, name),
            Err(errno) => Err(errno),
        },
    }
}
