//! The walk through the source: directories are made, names looked at, files counted and queued.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{self, Dir, FileType, Stat};

use crate::beneath::{Near, Node, look, open_dir};
use crate::journal::{self, PREFIX};
use crate::links::Place;
use crate::progress::add;
use crate::queue::{FileTask, Named, Nature, Task};
use crate::report::{Reason, Tried, Trouble, opened, source};
use crate::spec::What;
use crate::transfer::Engine;

/// Names that one thread looks at in one task.
const LOOKS: usize = 256;

/// Names that are read of a directory before others get their turn.
const NAMES: usize = 4096;

/// A directory of the source that is being read.
pub struct Stream {
    pub from: PathBuf,
    pub to: PathBuf,
    at: Option<(Arc<Node>, Dir)>,
}

impl Stream {
    pub fn new(from: PathBuf, to: PathBuf) -> Stream {
        Stream { from, to, at: None }
    }
}

impl Engine<'_> {
    pub fn walk(&self, mut stream: Stream) {
        let failed = match self.read_on(&mut stream) {
            Ok(More::Yes) => return self.queue.push(Task::Walk(stream)),
            Ok(More::No) => return,
            Err(trouble) => trouble,
        };
        self.fail_path(&stream.from, failed);
    }

    fn read_on(&self, stream: &mut Stream) -> Tried<More> {
        if stream.at.is_none() {
            stream.at = Some(self.begin(stream)?);
        }
        let (node, dir) = stream.at.as_mut().expect("it was just begun");
        let mut names: Vec<Named> = Vec::new();
        for _ in 0..NAMES {
            let Some(entry) = dir.read() else {
                self.send(node, &mut names);
                return Ok(More::No);
            };
            let entry = entry.map_err(source("reading the directory"))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            match entry.file_type() {
                _ if name == "." || name == ".." || self.is_left_over(node, name) => {}
                FileType::Directory => self.queue.push(Task::Walk(below(node, name, None))),
                _ => names.push((name.into(), None)),
            }
            if names.len() >= LOOKS {
                self.send(node, &mut names);
            }
        }
        self.send(node, &mut names);
        Ok(More::Yes)
    }

    fn send(&self, node: &Arc<Node>, names: &mut Vec<Named>) {
        if !names.is_empty() {
            self.queue.push(Task::Look(node.clone(), std::mem::take(names)));
        }
    }

    fn begin(&self, stream: &Stream) -> Tried<(Arc<Node>, Dir)> {
        use std::os::fd::AsFd;
        let src = open_dir(self.base.src.as_fd(), &stream.from).map_err(source("opening"))?;
        let stat = fs::fstat(&src).map_err(source("looking"))?;
        if self.is_inside(&stat) {
            let text = "it is where the copy is being made: stage to somewhere else";
            return Err(Trouble::new(Reason::InTheWay, text));
        }
        let node = self.make_dir(&stream.from, &stream.to)?;
        let dir = Dir::new(src).map_err(source("reading the directory"))?;
        Ok((node, dir))
    }

    /// Whether a name is that of a temporary file of this or another transfer: such files are not copied.
    fn is_left_over(&self, node: &Node, name: &OsStr) -> bool {
        if !name.as_bytes().starts_with(PREFIX.as_bytes()) {
            return false;
        }
        if !journal::is_of(&self.spec.id, name.as_bytes()) {
            let path = node.from.join(name);
            self.ledger.note(format!("{}: left over from a transfer, not copied", path.display()));
        }
        true
    }

    pub fn look_at(&self, node: &Arc<Node>, names: Vec<Named>, near: &mut Near) {
        let mut names = names.into_iter();
        while let Some((name, new_name)) = names.next() {
            if self.queue.stops() {
                // The task is never taken again; its presence shows that names were left uncounted.
                let rest = std::iter::once((name, new_name)).chain(names).collect();
                return self.queue.push(Task::Look(node.clone(), rest));
            }
            if let Err(trouble) = self.look_at_one(node, &name, new_name, near) {
                self.fail_path(&node.from.join(name), trouble);
            }
        }
    }

    fn look_at_one(
        &self,
        node: &Arc<Node>,
        name: &OsStr,
        new_name: Option<OsString>,
        near: &mut Near,
    ) -> Tried<()> {
        let pair = near.pair(&self.base, node).map_err(opened)?;
        let stat = look(&pair.src, name).map_err(source("looking"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            if self.spec.what == What::File {
                let text = "it is a directory: stage it as one";
                return Err(Trouble::new(Reason::InTheWay, text));
            }
            let stream = below(node, name, new_name);
            self.queue.push(Task::Walk(stream));
            return Ok(());
        }
        self.count(FileTask {
            node: node.clone(),
            name: name.into(),
            new_name,
            size: if kind == FileType::RegularFile { stat.st_size as u64 } else { 0 },
            nature: if kind == FileType::RegularFile { Nature::Regular } else { Nature::Special },
            shared: self.shared(&stat),
        });
        Ok(())
    }

    fn shared(&self, stat: &Stat) -> Option<(u64, u64)> {
        let shared = stat.st_nlink > 1 && self.spec.options.preserve.hard_links;
        shared.then_some((stat.st_dev, stat.st_ino))
    }

    /// Queues a file, or puts it aside: a further name of a file, or a file that is published last.
    fn count(&self, mut task: FileTask) {
        add(&self.tally.files_total, 1);
        match self.links.place(&task) {
            Place::First => {
                add(&self.tally.bytes_total, task.size);
                match self.is_last(&task) {
                    true => self.aside().last.push(task),
                    false => self.queue.push(Task::Copy(task)),
                }
            }
            Place::Second(first) => {
                task.size = 0;
                match self.is_last(&task) || self.is_last(&first) {
                    true => self.aside().last_links.push(task),
                    false => self.aside().links.push(task),
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More {
    Yes,
    No,
}

fn below(node: &Node, name: &OsStr, new_name: Option<OsString>) -> Stream {
    let to = new_name.as_deref().unwrap_or(name);
    Stream::new(node.from.join(name), node.to.join(to))
}
