//! The two ends of a transfer: its two top directories, and how a tree gets to its place.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::{Error, Result};
use rustix::fs::{self, AtFlags, FileType, OFlags, RenameFlags};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::beneath::{
    self, Base, Links, Node, State, find as look_for, open_dir, open_top, resolve_top,
};
use crate::clean::remove_tree;
use crate::directories::{UsedDirs, Whose};
use crate::journal::{old_name, tree_name};
use crate::list::{self, Item};
use crate::queue::{Named, Task};
use crate::report::{Reason, Tried, Trouble, destination};
use crate::spec::{Existing, Place, Spec, What, tidy, usage};
use crate::sync::{self, How};
use crate::transfer::{Engine, Name};
use crate::walk::Stream;

/// Names of a list that one thread looks at in one task.
const LOOKS: usize = 64;

/// The top of a transfer; names are in the base's directories.
pub enum Top {
    File {
        name: OsString,
        new_name: OsString,
    },
    Tree {
        name: OsString,
    },
    /// The entries of the source's top are added to the destination's root itself.
    Root,
    List(Vec<Item>),
}

/// The state of a tree at the destination.
#[derive(Debug, PartialEq, Eq)]
pub enum Placed {
    /// The tree is in its place.
    There,
    /// The tree is in its place, and the tree made beside, before another program took the place, must be removed.
    Merged,
    /// The tree is beside its place, which is empty.
    Beside(OsString),
    /// The tree is beside its place, which holds an old tree.
    Instead(OsString),
}

pub fn find(spec: &Spec) -> Result<(Top, Base)> {
    let source = beneath::root(&spec.source)?;
    let destination = beneath::root(&spec.destination)?;
    let src_failed = |e: Errno| Error::io(e.into(), spec.source.shown()).context("source");
    let dst_failed = |e: Errno| Error::io(e.into(), spec.destination.shown());
    let (src, dst) = (tidy(&spec.source.path.0), tidy(&spec.destination.path.0));
    match &spec.what {
        What::File => {
            let path = resolve_top(source.as_fd(), &src).map_err(src_failed)?;
            let (parent, name) = split(&path).ok_or_else(|| src_failed(Errno::ISDIR))?;
            let (dst, new_name) = named(&destination, &dst).map_err(dst_failed)?;
            let src = open_top(source.as_fd(), parent).map_err(src_failed)?;
            Ok((Top::File { name: name.into(), new_name }, Base { src, dst }))
        }
        What::Directory if dst.as_os_str().is_empty() => {
            let src = open_top(source.as_fd(), &src).map_err(src_failed)?;
            let dst = open_top(destination.as_fd(), &dst).map_err(dst_failed)?;
            Ok((Top::Root, Base { src, dst }))
        }
        What::Directory => {
            let src = open_top(source.as_fd(), &src).map_err(src_failed)?;
            let (dst, name) = named(&destination, &dst).map_err(dst_failed)?;
            Ok((Top::Tree { name }, Base { src, dst }))
        }
        What::List(list) => {
            let (items, src) = from_one_base(read_list(list, &dst)?, src);
            let src = open_top(source.as_fd(), &src).map_err(src_failed)?;
            let dst = open_top(destination.as_fd(), &dst).map_err(dst_failed)?;
            Ok((Top::List(items), Base { src, dst }))
        }
    }
}

/// The directory of a new name, and that name; the path may have links that stay beneath the root.
pub fn named(root: &OwnedFd, path: &Path) -> rustix::io::Result<(OwnedFd, OsString)> {
    let path = resolve_top(root.as_fd(), path)?;
    let (parent, name) = split(&path).ok_or(Errno::INVAL)?;
    Ok((open_top(root.as_fd(), parent)?, name.into()))
}

fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    Some((path.parent().unwrap_or(Path::new("")), path.file_name()?))
}

/// Gives all items one base: names that start at the root are made relative to it.
fn from_one_base(mut items: Vec<Item>, base: PathBuf) -> (Vec<Item>, PathBuf) {
    if !items.first().is_some_and(|item| item.from.is_absolute()) {
        return (items, base);
    }
    for item in &mut items {
        item.from = item.from.strip_prefix("/").map(PathBuf::from).unwrap_or_default();
    }
    (items, PathBuf::new())
}

/// Reads a list whose files go below `destination`.
pub fn read_list(place: &Place, destination: &Path) -> Result<Vec<Item>> {
    let shown = place.shown();
    let failed = |e: std::io::Error| Error::io(e, shown.clone()).context("list");
    let root = beneath::root(place)?;
    let path = tidy(&place.path.0);
    let fd = beneath::open(root.as_fd(), &path, OFlags::RDONLY, Links::Beneath);
    let mut text = Vec::new();
    let file = File::from(fd.map_err(|e| failed(e.into()))?);
    file.take(list::BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > list::BYTES_MAX {
        let max = list::BYTES_MAX >> 20;
        return Err(usage(format!("list {shown} is larger than {max} MiB: part it")));
    }
    list::parse(&text, &shown, destination)
}

/// The error if the directory in which a transfer makes its first file or directory is not writable.
pub fn not_writable(spec: &Spec, top: &Top, errno: Errno) -> Error {
    let path = spec.destination.root.0.join(tidy(&spec.destination.path.0));
    let dir = match top {
        Top::File { .. } | Top::Tree { .. } => path.parent().unwrap_or(&path),
        Top::Root | Top::List(_) => &path,
    };
    let (dir, uid) = (dir.display(), rustix::process::geteuid().as_raw());
    let (what, remedy) = match errno {
        Errno::ROFS => ("is on a file system that is mounted read-only", "stage to another place"),
        _ => (
            "is not writable",
            "stage to below a directory of that user, or let the user write there (chmod, setfacl)",
        ),
    };
    let why = format!("destination: directory {dir} {what} for user {uid}: {remedy}");
    Error::os(errno.raw_os_error(), why)
}

/// The hash of the parts of a spec that two runs of the same transfer have in common.
pub fn fingerprint(spec: &Spec) -> u64 {
    let parts = (&spec.source, &spec.destination, &spec.what, spec.options.existing);
    xxh3_64(&serde_json::to_vec(&parts).expect("paths and enums have a JSON form"))
}

impl Top {
    /// The directory that files are added to: it must not be copied into itself. (A new tree is known
    /// by its name.)
    pub fn inside(&self, base: &Base) -> Option<(u64, u64)> {
        let there = match self {
            Top::Tree { name } => look_for(&base.dst, name).ok().flatten(),
            Top::Root => fs::fstat(&base.dst).ok(),
            Top::File { .. } | Top::List(_) => None,
        };
        there.map(|stat| (stat.st_dev, stat.st_ino))
    }
}

impl Engine<'_> {
    /// Queues the first tasks.
    pub fn prepare(&self, top: &Top) -> Tried<Placed> {
        match top {
            Top::File { name, new_name } => {
                let node = top_node(PathBuf::new(), PathBuf::new());
                self.remember_used(node.clone());
                self.queue.push(Task::Look(node, vec![(name.clone(), Some(new_name.clone()))]));
                Ok(Placed::There)
            }
            Top::Tree { name } => self.prepare_tree(name),
            Top::Root => {
                self.queue.push(Task::Walk(Stream::new(PathBuf::new(), PathBuf::new())));
                Ok(Placed::There)
            }
            Top::List(items) => {
                self.prepare_list(items);
                Ok(Placed::There)
            }
        }
    }

    fn remember_used(&self, node: Arc<Node>) {
        let device = open_dir(self.base.dst.as_fd(), &node.to).and_then(fs::fstat);
        // If the directory cannot be opened, its use reports that.
        let how = device.map_or(How::Each, |stat| self.sync.how(stat.st_dev));
        self.remember_dir(node, Whose::Others, how);
    }

    fn prepare_tree(&self, name: &OsStr) -> Tried<Placed> {
        let there = look_for(&self.base.dst, name).map_err(destination("looking"))?;
        let tree = tree_name(&self.spec.id);
        let placed = match there {
            None => Placed::Beside(name.into()),
            Some(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
                let text = "something that is no directory has the name there: remove it";
                return Err(Trouble::new(Reason::InTheWay, text));
            }
            // An earlier run got as far as the exchange: the tree beside is the old one.
            Some(stat) if self.journal.exchanged() == Some(stat.st_ino) => {
                self.remove_old()?;
                Placed::There
            }
            Some(_) if self.spec.options.existing == Existing::Replace => {
                Placed::Instead(name.into())
            }
            // An earlier run, which found the place empty when it began, has left its tree.
            Some(_) if look_for(&self.base.dst, &tree).is_ok_and(|tree| tree.is_some()) => {
                self.early.get_or_init(|| tree.clone());
                Placed::Merged
            }
            Some(_) => Placed::There,
        };
        let to = match placed {
            Placed::There | Placed::Merged => name.into(),
            Placed::Beside(_) | Placed::Instead(_) => tree,
        };
        self.queue.push(Task::Walk(Stream::new(PathBuf::new(), PathBuf::from(to))));
        Ok(placed)
    }

    fn prepare_list(&self, items: &[Item]) {
        let (mut names, mut used): (Vec<Named>, _) = (Vec::new(), UsedDirs::new());
        let mut at: Option<Arc<Node>> = None;
        for item in items {
            let (from, name) = split(&item.from).expect("an item of a list has a name");
            let (to, new_name) = split(&item.to).expect("an item of a list has a name");
            let same = at.as_ref().is_some_and(|node| node.from == from && node.to == to);
            if !same || names.len() >= LOOKS {
                self.send_names(at.as_ref(), &mut names);
            }
            if !same {
                if let Err(trouble) = self.make_parents(&item.from, to, &mut used) {
                    self.fail_path(&item.from, trouble);
                    continue;
                }
                at = Some(top_node(from.into(), to.into()));
            }
            names.push((name.into(), Some(new_name.into())));
        }
        self.send_names(at.as_ref(), &mut names);
        for (to, from) in used {
            self.remember_used(top_node(from, to));
        }
    }

    fn send_names(&self, node: Option<&Arc<Node>>, names: &mut Vec<Named>) {
        if let Some(node) = node
            && !names.is_empty()
        {
            self.queue.push(Task::Look(node.clone(), std::mem::take(names)));
        }
    }

    /// Puts a new tree in its place (step 6).
    pub fn put_in_place(&self, placed: &Placed) -> Tried<Name> {
        let dir = &self.base.dst;
        let tree = tree_name(&self.spec.id);
        match placed {
            Placed::There => return Ok(Name::Given),
            Placed::Merged => {
                remove_tree(dir, &tree).map_err(destination("removing its own tree"))?;
                return Ok(Name::Given);
            }
            Placed::Beside(name) => match rename_to_new(dir, &tree, name) {
                Err(Errno::EXIST | Errno::NOTEMPTY) => return Ok(Name::Taken),
                given => given.map_err(destination("giving the tree its name"))?,
            },
            Placed::Instead(_) if self.ledger.failed() > 0 => {
                let text = "what is there stays, since not all of the new is: resume the transfer, or cancel it";
                return Err(Trouble::new(Reason::HeldBack, text));
            }
            Placed::Instead(name) => {
                let inode = beneath::look(dir, &tree).map_err(destination("looking"))?.st_ino;
                let written = self.journal.exchange(inode);
                written.map_err(destination("writing the transfer's journal"))?;
                exchange(dir, &tree, name, &old_name(&self.spec.id))
                    .map_err(destination("putting the tree in its place"))?;
            }
        }
        sync::dir(dir).map_err(destination("syncing the directory"))?;
        self.remove_old()?;
        Ok(Name::Given)
    }

    fn remove_old(&self) -> Tried<()> {
        for name in [tree_name(&self.spec.id), old_name(&self.spec.id)] {
            remove_tree(&self.base.dst, &name).map_err(destination("removing the old tree"))?;
        }
        Ok(())
    }
}

fn top_node(from: PathBuf, to: PathBuf) -> Arc<Node> {
    Arc::new(Node { from, to, state: State::Used })
}

/// Renames without replacing: whatever has taken the name meanwhile stays, unless it is an empty directory.
fn rename_to_new(dir: &OwnedFd, from: &OsStr, to: &OsStr) -> rustix::io::Result<()> {
    match fs::renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
        // A rename without the flag can replace only an empty directory, which may be lost.
        Err(Errno::INVAL | Errno::NOSYS | Errno::EXIST) => fs::renameat(dir, from, dir, to),
        other => other,
    }
}

/// Exchanges two trees at once; where that is not possible, the place is empty for a moment.
fn exchange(dir: &OwnedFd, new: &OsStr, place: &OsStr, old: &OsStr) -> rustix::io::Result<()> {
    match fs::renameat_with(dir, new, dir, place, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::renameat(dir, place, dir, old)?;
            fs::renameat(dir, new, dir, place)
        }
        other => other,
    }
}

/// Puts back an old tree that lost its place between two renames.
pub fn restore(dir: &OwnedFd, id: &str, place: &OsStr) -> rustix::io::Result<()> {
    let gone = matches!(fs::statat(dir, place, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT));
    match gone {
        true => match fs::renameat(dir, old_name(id), dir, place) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        },
        false => Ok(()),
    }
}
