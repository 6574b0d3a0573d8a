//! The virtual directory `.forebay/` at the root of a mount. It is found by name and not listed,
//! so that a copy of the tree does not contain it.

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_backing::{Attr, Error, FileKey, FileKind, Result, SetAttr, SetTime, Timestamp};

/// The contents of `.forebay/`, which the binary provides.
pub trait ControlDir: Send + Sync + 'static {
    fn entries(&self) -> Vec<ControlEntry>;
    fn read(&self, path: &str) -> Vec<u8>;
    fn write(&self, path: &str, data: &[u8]) -> Result<()>;
}

/// A file in `.forebay/`: its path below that directory, and its access rights.
#[derive(Debug, Clone)]
pub struct ControlEntry {
    pub path: String,
    pub access: ControlAccess,
}

/// The access rights of a control file: the kernel enforces them. The owner is the user who mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlAccess {
    /// Everybody may read the file: it contains no names of files.
    Everybody,
    /// Everybody may read the file, its owner may write to it.
    Setting,
    /// Its owner alone may read the file.
    Owner,
}

impl ControlAccess {
    fn mode(self) -> u32 {
        match self {
            ControlAccess::Everybody => 0o444,
            ControlAccess::Setting => 0o644,
            ControlAccess::Owner => 0o400,
        }
    }
}

pub const NAME: &str = ".forebay";

/// Node ids from here on are control nodes: the last page of numbers, which no file system uses.
const BASE: u64 = u64::MAX - 4095;

fn refusal() -> Error {
    Error::os(libc::EPERM, NAME)
}

/// Refuses a control node (EPERM), for verbs that only files of the backing store have.
pub fn refuse(id: u64) -> Result<()> {
    if Control::owns(id) { Err(refusal()) } else { Ok(()) }
}

pub struct Control {
    dir: Arc<dyn ControlDir>,
    nodes: Vec<Item>,
}

struct Item {
    path: String,
    parent: u64,
    kind: FileKind,
    access: ControlAccess,
}

impl Control {
    pub fn new(dir: Arc<dyn ControlDir>) -> Control {
        let mut control = Control { dir, nodes: Vec::new() };
        control.enter("", BASE, FileKind::Dir, ControlAccess::Everybody);
        for entry in control.dir.entries() {
            let mut parent = BASE;
            if let Some((above, _)) = entry.path.rsplit_once('/') {
                let made = ControlAccess::Everybody;
                parent = control
                    .find(above)
                    .unwrap_or_else(|| control.enter(above, BASE, FileKind::Dir, made));
            }
            control.enter(&entry.path, parent, FileKind::File, entry.access);
        }
        control
    }

    fn enter(&mut self, path: &str, parent: u64, kind: FileKind, access: ControlAccess) -> u64 {
        self.nodes.push(Item { path: path.into(), parent, kind, access });
        BASE + self.nodes.len() as u64 - 1
    }

    fn find(&self, path: &str) -> Option<u64> {
        self.nodes.iter().position(|item| item.path == path).map(|at| BASE + at as u64)
    }

    pub fn owns(id: u64) -> bool {
        id >= BASE
    }

    /// Some file of the directory: its path in the mount and its node.
    pub fn some_file(&self) -> Option<(String, u64)> {
        let at = self.nodes.iter().position(|item| item.kind == FileKind::File)?;
        Some((format!("{NAME}/{}", self.nodes[at].path), BASE + at as u64))
    }

    pub fn root(&self) -> u64 {
        BASE
    }

    fn item(&self, id: u64) -> Result<&Item> {
        let gone = || Error::os(libc::ESTALE, ".forebay");
        self.nodes.get((id - BASE) as usize).ok_or_else(gone)
    }

    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<u64> {
        let item = self.item(parent)?;
        let name = name.to_string_lossy();
        match &*name {
            "." => return Ok(parent),
            ".." => return Ok(if parent == BASE { crate::nodes::ROOT } else { item.parent }),
            _ => {}
        }
        let path = if item.path.is_empty() { name.into() } else { format!("{}/{name}", item.path) };
        self.find(&path).ok_or_else(|| Error::os(libc::ENOENT, path))
    }

    pub fn attr(&self, id: u64) -> Result<Attr> {
        let item = self.item(id)?;
        let is_dir = item.kind == FileKind::Dir;
        let mode = if is_dir { 0o555 } else { item.access.mode() };
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp { sec: now.as_secs() as i64, nsec: 0 };
        Ok(Attr {
            key: FileKey { ino: id, generation: 0 },
            kind: item.kind,
            mode,
            nlink: if is_dir { 2 } else { 1 },
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        })
    }

    pub fn list(&self, id: u64) -> Vec<(String, u64, FileKind)> {
        let inside = |(at, item): (usize, &Item)| {
            let node = BASE + at as u64;
            let name = item.path.rsplit('/').next().unwrap_or_default().to_string();
            (item.parent == id && node != id).then_some((name, node, item.kind))
        };
        self.nodes.iter().enumerate().filter_map(inside).collect()
    }

    pub fn read(&self, id: u64) -> Result<Vec<u8>> {
        Ok(self.dir.read(&self.item(id)?.path))
    }

    /// Writes a value, which has to be written whole: a write behind the beginning is refused.
    pub fn write(&self, id: u64, offset: u64, data: &[u8]) -> Result<()> {
        let item = self.item(id)?;
        match item.access {
            ControlAccess::Setting if offset > 0 => Err(Error::os(libc::EINVAL, item.path.clone())),
            ControlAccess::Setting => self.dir.write(&item.path, data),
            _ => Err(Error::os(libc::EACCES, item.path.clone())),
        }
    }

    /// Grants a truncation, which comes before a value is written, and the present as a time, since a
    /// control file always shows the present.
    pub fn set_attr(&self, id: u64, set: &SetAttr, sized: bool) -> Result<Attr> {
        let owned = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let timed = [set.atime, set.mtime].iter().any(|time| matches!(time, Some(SetTime::At(_))));
        if owned || (timed && !sized) {
            return Err(refusal());
        }
        self.attr(id)
    }
}
