//! Special files: links and FIFOs are made again, sockets and devices are noted.

use std::ffi::OsStr;

use rustix::fs::{self, AtFlags, FileType, Mode, Stat};
use rustix::io::Errno;

use crate::attributes::{owner, times};
use crate::beneath::{Pair, State, find, look, set_mode};
use crate::file::Standing;
use crate::journal::{Key, Version, temp_name};
use crate::publish::Ready;
use crate::queue::FileTask;
use crate::report::{Reason, Tried, Trouble, destination, source};
use crate::transfer::Engine;

impl Engine<'_> {
    pub fn special(&self, task: &mut FileTask, pair: &Pair) -> Tried<()> {
        let stat = &look(&pair.src, &task.name).map_err(source("looking"))?;
        self.links.begun(task, stat);
        let key = Key::of(&task.to());
        let temp = temp_name(&self.spec.id, key);
        let target = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => Some(
                fs::readlinkat(&pair.src, &task.name, Vec::new())
                    .map_err(source("reading the link"))?,
            ),
            FileType::Fifo => None,
            FileType::RegularFile | FileType::Directory => {
                return Err(Trouble::new(Reason::Changed, "it became something else meanwhile"));
            }
            kind => return self.pass_over(task, kind),
        };
        let standing = self.stands(task, pair, stat, target.as_ref().map(|t| t.to_bytes()))?;
        if standing != Standing::Copy {
            if standing == Standing::Stays {
                self.links.part(task);
            }
            self.tally.keep(0);
            self.published(task);
            return Ok(());
        }
        self.remove_pieces(&pair.dst, key);
        let since = self.sync.since();
        anew(pair, &temp, || match &target {
            Some(target) => fs::symlinkat(target.as_c_str(), &pair.dst, &temp),
            None => fs::mkfifoat(&pair.dst, &temp, Mode::RUSR | Mode::WUSR),
        })?;
        self.dress(pair, &temp, stat)?;
        let made = look(&pair.dst, &temp).map_err(destination("looking"))?;
        let versions = (Version::of_source(stat), Version::of_destination(&made));
        self.queue.ready(Ready {
            task: task.clone(),
            temp,
            key,
            versions,
            since,
            lost: Vec::new(),
        });
        Ok(())
    }

    fn pass_over(&self, task: &FileTask, kind: FileType) -> Tried<()> {
        let kind = if kind == FileType::Socket { "a socket" } else { "a device" };
        self.ledger.note(format!("{}: {kind} is not copied", task.from().display()));
        self.uncount(task);
        self.leave(task);
        Ok(())
    }

    /// The state of the file's name at the destination.
    fn stands(
        &self,
        task: &FileTask,
        pair: &Pair,
        stat: &Stat,
        target: Option<&[u8]>,
    ) -> Tried<Standing> {
        if task.node.state == State::Fresh {
            return Ok(Standing::Copy);
        }
        let there = find(&pair.dst, task.to_name()).map_err(destination("looking"))?;
        let Some(there) = there else { return Ok(Standing::Copy) };
        let (kind, wanted) =
            (FileType::from_raw_mode(there.st_mode), FileType::from_raw_mode(stat.st_mode));
        if kind == FileType::Directory {
            return Err(Trouble::new(Reason::InTheWay, "a directory has the name there"));
        }
        let same = kind == wanted
            && match target {
                None => there.st_mode == stat.st_mode,
                Some(target) => fs::readlinkat(&pair.dst, task.to_name(), Vec::new())
                    .is_ok_and(|found| found.to_bytes() == target),
            };
        if same { Ok(Standing::Same) } else { self.replaced(stat, &there) }
    }

    fn dress(&self, pair: &Pair, temp: &OsStr, stat: &Stat) -> Tried<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let attributes = self.attributes();
        if attributes.gives_owner() {
            let (uid, gid) = owner(stat);
            let given = fs::chownat(&pair.dst, temp, Some(uid), Some(gid), flags);
            given.map_err(destination("setting the owner"))?;
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Fifo {
            let set = set_mode(&pair.dst, temp, attributes.mode(stat));
            set.map_err(destination("setting the mode"))?;
        }
        if self.spec.options.preserve.times {
            let set = fs::utimensat(&pair.dst, temp, &times(stat), flags);
            set.map_err(destination("setting the times"))?;
        }
        Ok(())
    }
}

fn anew(pair: &Pair, temp: &OsStr, make: impl Fn() -> rustix::io::Result<()>) -> Tried<()> {
    let made = match make() {
        Err(Errno::EXIST) => {
            let gone = fs::unlinkat(&pair.dst, temp, AtFlags::empty());
            gone.and_then(|()| make())
        }
        other => other,
    };
    made.map_err(destination("making"))
}
