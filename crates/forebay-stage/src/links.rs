//! Hard links: the first name of a file is copied, the other names become links to the copy.
//!
//! Names may come to belong to other files while a transfer runs. So a name becomes a link only if it still
//! belongs to the file that the walk saw, and if that file still has the published content. A name that
//! belongs to another file is copied as a file of its own.

use std::collections::HashMap;

use forebay_base::lock::{Mutex, MutexGuard, Rank};
use rustix::fs::{self, AtFlags, Stat};

use crate::beneath::{Near, find, look};
use crate::file::Standing;
use crate::journal::{Key, Version, temp_name};
use crate::progress::add;
use crate::queue::FileTask;
use crate::report::{Reason, Tried, Trouble, destination, opened, source};
use crate::transfer::Engine;

/// The number of files with several names whose other names are kept for linking; beyond it, names become
/// files of their own. About 300 MB of memory.
const FILES_MAX: usize = 1_000_000;

struct First {
    task: FileTask,
    /// The content that was opened to be copied.
    content: Option<Version>,
    published: bool,
}

pub struct Links(Mutex<HashMap<(u64, u64), First>>);

impl Default for Links {
    fn default() -> Links {
        Links(Mutex::new(Rank::TransferNotes, HashMap::new()))
    }
}

pub enum Place {
    /// The name to copy.
    First,
    /// A name to link when this first name is published.
    Second(FileTask),
}

impl Links {
    #[track_caller]
    fn table(&self) -> MutexGuard<'_, HashMap<(u64, u64), First>> {
        self.0.lock()
    }

    pub fn place(&self, task: &FileTask) -> Place {
        let Some(inode) = task.shared else { return Place::First };
        let mut table = self.table();
        if let Some(first) = table.get(&inode) {
            return Place::Second(first.task.clone());
        }
        if table.len() < FILES_MAX {
            table.insert(inode, First { task: task.clone(), content: None, published: false });
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

    /// Notes that a name was opened, or looked at, to be copied. If the name now belongs to another file, it
    /// is no first name any more.
    pub fn begun(&self, task: &mut FileTask, stat: &Stat) {
        match task.shared {
            Some(inode) if inode == (stat.st_dev, stat.st_ino) => {
                if let Some(first) = self.table().get_mut(&inode) {
                    first.content = Some(Version::of_content(stat));
                }
            }
            _ => self.part(task),
        }
    }

    /// Gives up linking to this name: the destination has a file under it that must not be linked to.
    pub fn part(&self, task: &mut FileTask) {
        if let Some(inode) = task.shared.take() {
            self.table().remove(&inode);
        }
    }

    fn first_of(&self, task: &FileTask) -> Option<(FileTask, Fate)> {
        let table = self.table();
        let first = table.get(&task.shared?)?;
        let fate = match (first.published, first.content) {
            (true, Some(content)) => Fate::Published(content),
            _ => Fate::Failed,
        };
        Some((first.task.clone(), fate))
    }
}

/// The result of a first name, when all of them have had their turn.
enum Fate {
    Published(Version),
    Failed,
}

/// What to do with a second name.
enum Second {
    Linked,
    /// There is no copy to which it could be linked.
    Own,
}

impl Engine<'_> {
    pub fn link(&self, second: FileTask, near: &mut Near) {
        match self.try_link(&second, near) {
            Ok(Second::Linked) => add(&self.tally.hard_links, 1),
            Ok(Second::Own) => self.file(FileTask { shared: None, ..second }, near),
            Err(trouble) => self.fail(&second, trouble),
        }
    }

    fn try_link(&self, task: &FileTask, near: &mut Near) -> Tried<Second> {
        let Some((first, fate)) = self.links.first_of(task) else { return Ok(Second::Own) };
        let to = near.pair(&self.base, &task.node).map_err(opened)?;
        let now = look(&to.src, &task.name).map_err(source("looking again"))?;
        if task.shared != Some((now.st_dev, now.st_ino)) {
            return Ok(Second::Own);
        }
        match fate {
            Fate::Published(content) if content == Version::of_content(&now) => {}
            Fate::Published(_) => {
                let text = "it was changed after its first name was copied";
                return Err(Trouble::new(Reason::Changed, text));
            }
            Fate::Failed => {
                let text = "the file's first name was not published";
                return Err(Trouble::new(Reason::HeldBack, text));
            }
        }
        let from = near.pair(&self.base, &first.node).map_err(opened)?;
        let there = find(&to.dst, task.to_name()).map_err(destination("looking"))?;
        let wanted = look(&from.dst, first.to_name()).map_err(destination("looking"))?;
        if there.is_some_and(|there| (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino))
        {
            self.tally.keep(0);
            return Ok(Second::Linked);
        }
        if there.is_some_and(|there| !matches!(self.replaced(&now, &there), Ok(Standing::Copy))) {
            return Ok(Second::Own);
        }
        let temp = temp_name(&self.spec.id, Key::of(&task.to()));
        self.remove_left(&to.dst, Key::of(&task.to()));
        fs::linkat(&from.dst, first.to_name(), &to.dst, &temp, AtFlags::empty())
            .map_err(destination("linking"))?;
        self.rename(&to.dst, &temp, task.to_name()).inspect_err(|_| {
            _ = fs::unlinkat(&to.dst, &temp, AtFlags::empty());
        })?;
        self.tally.published(0);
        Ok(Second::Linked)
    }
}
