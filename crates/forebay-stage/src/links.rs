//! Hard links: the first name of a file is copied, the others become links to it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{self, AtFlags};

use crate::beneath::{Near, find, look};
use crate::journal::{Key, temp_name};
use crate::progress::add;
use crate::queue::FileTask;
use crate::report::{Reason, Tried, Trouble, destination, opened};
use crate::transfer::Engine;

/// Files with several names whose other names are waited for; the names beyond become files of their
/// own. About 300 MB of memory.
const FILES_MAX: usize = 1_000_000;

struct First {
    task: FileTask,
    published: bool,
}

#[derive(Default)]
pub struct Links(Mutex<HashMap<(u64, u64), First>>);

pub enum Place {
    /// To be copied.
    First,
    /// To be linked when this one is published.
    Second(FileTask),
}

impl Links {
    fn table(&self) -> MutexGuard<'_, HashMap<(u64, u64), First>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn place(&self, task: &FileTask) -> Place {
        let Some(inode) = task.shared else { return Place::First };
        let mut table = self.table();
        if let Some(first) = table.get(&inode) {
            return Place::Second(first.task.clone());
        }
        if table.len() < FILES_MAX {
            table.insert(inode, First { task: task.clone(), published: false });
        }
        Place::First
    }

    pub fn published(&self, inode: Option<(u64, u64)>) {
        if let Some(inode) = inode
            && let Some(first) = self.table().get_mut(&inode)
        {
            first.published = true;
        }
    }

    fn first_of(&self, task: &FileTask) -> Option<FileTask> {
        let table = self.table();
        let first = table.get(&task.shared?)?;
        first.published.then(|| first.task.clone())
    }
}

impl Engine<'_> {
    pub fn link(&self, second: &FileTask, near: &mut Near) {
        match self.try_link(second, near) {
            Ok(()) => add(&self.tally.hard_links, 1),
            Err(trouble) => self.fail(second, trouble),
        }
    }

    fn try_link(&self, task: &FileTask, near: &mut Near) -> Tried<()> {
        let Some(first) = self.links.first_of(task) else {
            let text = "the file's first name was not published";
            return Err(Trouble::new(Reason::HeldBack, text));
        };
        let from = near.pair(&self.base, &first.node).map_err(opened)?;
        let to = near.pair(&self.base, &task.node).map_err(opened)?;
        let there = find(&to.dst, task.to_name()).map_err(destination("looking"))?;
        let wanted = look(&from.dst, first.to_name()).map_err(destination("looking"))?;
        if there.is_some_and(|there| (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino))
        {
            self.tally.keep(0);
            return Ok(());
        }
        let temp = temp_name(&self.spec.id, Key::of(&task.to()));
        _ = fs::unlinkat(&to.dst, &temp, AtFlags::empty());
        fs::linkat(&from.dst, first.to_name(), &to.dst, &temp, AtFlags::empty())
            .map_err(destination("linking"))?;
        let named = fs::renameat(&to.dst, &temp, &to.dst, task.to_name());
        if let Err(errno) = named {
            _ = fs::unlinkat(&to.dst, &temp, AtFlags::empty());
            return Err(destination("giving it its name")(errno));
        }
        self.tally.published(0);
        Ok(())
    }
}
