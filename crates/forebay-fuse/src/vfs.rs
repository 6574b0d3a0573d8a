//! The verbs: what each request of the kernel means, whoever carries it.
//!
//! A [`Vfs`] knows names, handles and modes; bytes and attributes are the engine's. It knows
//! nothing of how requests arrive: a transport decodes them, calls a method here, and encodes what
//! comes back.
//!
//! Locks: `tree` before everything else. Every verb that turns a node into a path holds it for
//! reading until the backing store has acted on the path; a rename of a directory holds it for
//! writing.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use forebay_backing::{
    Attr, DirEntry, Error, FileKey, FileKind, New, RenameMode, Result, SetAttr, StatFs, XattrMode,
};
use forebay_engine::{Allocate, Engine, File, Named, WritePolicy};
use hashbrown::HashMap;

use crate::Passthrough;
use crate::control::{self, Control};
use crate::modes::{Mode, Permit, Plan, Wish, plan};
use crate::nodes::{Nodes, ROOT};

/// Registers shadow files with the kernel for passthrough.
pub trait Registrar: Send + Sync {
    /// Returns the kernel's id for an open shadow file.
    fn register(&self, shadow: BorrowedFd<'_>) -> std::io::Result<u32>;
    fn release(&self, id: u32);
}

/// Who asks, and what a new file shall have.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
}

/// A file as the kernel is told of it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub id: u64,
    pub attr: Attr,
}

/// An open handle as the kernel is told of it.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    pub handle: u64,
    pub how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Through the page cache, whose pages of this file may be kept or not.
    Cached { keep: bool },
    /// No page cache: virtual files.
    Direct,
    /// Past us, by this kernel id.
    Passthrough(u32),
}

enum Handle {
    /// `set_id`: the file had a set-user-id or set-group-id bit when it was opened.
    File {
        id: u64,
        file: Arc<File>,
        plan: Plan,
        set_id: bool,
    },
    Control {
        id: u64,
        text: Vec<u8>,
    },
    Dir {
        id: u64,
        list: Mutex<Option<Arc<Vec<DirEntry>>>>,
    },
}

/// The open descriptors of one inode.
struct OpenNode {
    file: Arc<File>,
    cached: u32,
    passthrough: u32,
    kernel_id: Option<u32>,
}

pub struct Vfs {
    pub engine: Arc<Engine>,
    nodes: Nodes,
    control: Control,
    passthrough: Passthrough,
    registrar: OnceLock<Box<dyn Registrar>>,
    handles: RwLock<HashMap<u64, Arc<Handle>>>,
    next_handle: AtomicU64,
    open: Mutex<HashMap<u64, OpenNode>>,
    tree: RwLock<()>,
}

impl Vfs {
    pub fn new(
        engine: Arc<Engine>,
        control: Arc<dyn control::ControlDir>,
        passthrough: Passthrough,
    ) -> Result<Vfs> {
        let root = engine.ask(|b| b.stat(Path::new("")))?;
        let nodes = Nodes::new(root, engine.config().names_max);
        Ok(Vfs {
            engine,
            nodes,
            control: Control::new(control),
            passthrough,
            registrar: OnceLock::new(),
            handles: RwLock::default(),
            next_handle: AtomicU64::new(1),
            open: Mutex::default(),
            tree: RwLock::default(),
        })
    }

    /// Gives the vfs the means to pass files through; without it everything goes through us.
    pub fn set_registrar(&self, registrar: Box<dyn Registrar>) {
        let _ = self.registrar.set(registrar);
    }

    fn tree(&self) -> RwLockReadGuard<'_, ()> {
        self.tree.read().expect("no panic inside")
    }

    /// Waits for the tree without making readers wait behind us: one of them may hang in the
    /// backing store.
    fn tree_alone(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let deadline = Instant::now() + self.engine.tunables().backing_timeout;
        loop {
            if let Ok(guard) = self.tree.try_write() {
                return Ok(guard);
            }
            if Instant::now() >= deadline {
                return Err(Error::os(libc::EBUSY, "other requests hang in the backing store"));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn path(&self, id: u64) -> Result<PathBuf> {
        self.nodes.path(id).ok_or_else(|| Error::os(libc::ESTALE, "a name that is gone"))
    }

    fn below(&self, parent: u64, name: &OsStr) -> Result<PathBuf> {
        if Control::owns(parent) || (parent == ROOT && name == control::NAME) {
            return Err(Error::os(libc::EPERM, ".forebay"));
        }
        Ok(self.path(parent)?.join(name))
    }

    fn entry(&self, parent: u64, name: &OsStr, attr: Attr) -> Entry {
        Entry { id: self.nodes.remember(parent, name, &attr, 1), attr }
    }

    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<Entry> {
        if Control::owns(parent) {
            return self.control_entry(self.control.lookup(parent, name)?);
        }
        match name.as_encoded_bytes() {
            b"." => return self.again(parent),
            b".." => {
                let above = self.nodes.parent(parent);
                return self.again(above.ok_or_else(|| Error::os(libc::ESTALE, ".."))?);
            }
            _ if parent == ROOT && name == control::NAME => {
                return self.control_entry(self.control.root());
            }
            _ => {}
        }
        let _tree = self.tree();
        let path = self.path(parent)?.join(name);
        match self.engine.stat(&path) {
            Ok(attr) => Ok(self.entry(parent, name, attr)),
            Err(error) => self.lookup_away(parent, name, error),
        }
    }

    fn control_entry(&self, id: u64) -> Result<Entry> {
        if id == ROOT {
            return self.again(ROOT);
        }
        Ok(Entry { id, attr: self.control.attr(id)? })
    }

    /// A node that the kernel has by number only: an exported handle.
    fn again(&self, id: u64) -> Result<Entry> {
        let _tree = self.tree();
        let path = self.path(id)?;
        let attr = self.engine.stat(&path)?;
        if self.nodes.id_of(attr.key) != id {
            return Err(Error::os(libc::ESTALE, "the file was replaced"));
        }
        if id != ROOT
            && let (Some(parent), Some(name)) = (self.nodes.parent(id), path.file_name())
        {
            self.nodes.remember(parent, name, &attr, 1);
        }
        Ok(Entry { id, attr })
    }

    fn lookup_away(&self, parent: u64, name: &OsStr, error: Error) -> Result<Entry> {
        match self.engine.health.is_available() {
            true => Err(error),
            false => self.lookup_cached(parent, name),
        }
    }

    /// While the backing store is away, what is in the tier goes on working (S10): this and the
    /// other `_cached` verbs never ask it.
    pub fn lookup_cached(&self, parent: u64, name: &OsStr) -> Result<Entry> {
        let away = || Error::os(libc::EIO, "the backing store is away");
        let child = self.nodes.child(parent, name).ok_or_else(away)?;
        let attr = self.attr_away(child.id, child.key)?;
        Ok(self.entry(parent, name, attr))
    }

    fn attr_away(&self, id: u64, key: FileKey) -> Result<Attr> {
        let known = self.nodes.dir_attr(id).or_else(|| self.engine.stat_cached(key));
        known.ok_or_else(|| Error::os(libc::EIO, "the backing store is away"))
    }

    pub fn getattr_cached(&self, id: u64) -> Result<Attr> {
        let key = self.nodes.key(id).ok_or_else(|| Error::os(libc::ESTALE, "a node"))?;
        self.attr_away(id, key)
    }

    pub fn open_cached(&self, id: u64, flags: i32) -> Result<Opened> {
        let away = || Error::os(libc::EIO, "the backing store is away");
        if flags & (libc::O_TRUNC | libc::O_ACCMODE) != 0 {
            return Err(away());
        }
        let key = self.nodes.key(id).ok_or_else(away)?;
        let file = self.engine.open_cached(key).ok_or_else(away)?;
        self.open_as(id, file, false, false)
    }

    pub fn list_cached(&self, handle: u64) -> Result<(u64, Arc<Vec<DirEntry>>)> {
        match &*self.handle(handle)? {
            Handle::Dir { id, .. } => Ok((*id, Arc::new(self.list_away(*id)))),
            _ => Err(Error::os(libc::ENOTDIR, "readdir")),
        }
    }

    pub fn forget(&self, id: u64, times: u64) {
        if !Control::owns(id) {
            self.nodes.forget(id, times);
        }
    }

    pub fn getattr(&self, id: u64) -> Result<Attr> {
        if Control::owns(id) {
            return self.control.attr(id);
        }
        let _tree = self.tree();
        let open = self.open_file(id);
        let Some(path) = self.nodes.path(id) else {
            return match open {
                Some(file) => Ok(self.engine.stat_open(&file)),
                None => self.removed_dir(id),
            };
        };
        match self.engine.stat(&path) {
            Ok(attr) if self.nodes.id_of(attr.key) == id => Ok(attr),
            // Replaced behind our back: who has it open keeps what he has.
            Ok(_) => open.map_or_else(
                || Err(Error::os(libc::ESTALE, "the file was replaced")),
                |file| Ok(self.engine.stat_open(&file)),
            ),
            Err(error) if !self.engine.health.is_available() => {
                let key = self.nodes.key(id).ok_or(error)?;
                self.attr_away(id, key)
            }
            Err(error) => open.map_or(Err(error), |file| Ok(self.engine.stat_open(&file))),
        }
    }

    /// A directory that was removed while somebody is in it.
    fn removed_dir(&self, id: u64) -> Result<Attr> {
        let known = self.nodes.dir_attr(id);
        let attr = known.ok_or_else(|| Error::os(libc::ESTALE, "a name that is gone"))?;
        Ok(Attr { nlink: 0, ..attr })
    }

    fn open_file(&self, id: u64) -> Option<Arc<File>> {
        self.open.lock().expect("no panic inside").get(&id).map(|node| node.file.clone())
    }

    /// Changes attributes, and the size if one is given.
    pub fn setattr(
        &self,
        id: u64,
        caller: Caller,
        set: &SetAttr,
        size: Option<u64>,
    ) -> Result<Attr> {
        if Control::owns(id) {
            return self.control.attr(id);
        }
        let tree = self.tree();
        let path = self.nodes.path(id);
        if let Some(size) = size {
            self.set_size(id, path.as_deref(), size)?;
            if caller.uid != 0 {
                self.strip_suid(id, path.as_deref());
            }
        }
        let changes = set.mode.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.atime.is_some()
            || set.mtime.is_some();
        if let (None, true, Some(file)) = (&path, changes, self.open_file(id)) {
            return self.engine.set_attr_open(&file, set);
        }
        if let (Some(path), true) = (path, changes) {
            let key = self.nodes.key(id).ok_or_else(|| Error::os(libc::ESTALE, "setattr"))?;
            let is_dir = self.nodes.is_dir(id);
            return self.engine.set_attr(Named { path: &path, key, is_dir }, set);
        }
        drop(tree);
        self.getattr(id)
    }

    fn set_size(&self, id: u64, path: Option<&Path>, size: u64) -> Result<()> {
        if let Some(file) = self.open_file(id) {
            return self.engine.set_len(&file, size);
        }
        let path = path.ok_or_else(|| Error::os(libc::ESTALE, "a name that is gone"))?;
        let file = self.engine.open(path, self.nodes.key(id))?;
        let done = self.engine.set_len(&file, size);
        self.engine.close(&file);
        self.nodes.set_pages(id, 0);
        done
    }

    /// A write by somebody without the right to keep it takes set-user-id and set-group-id away.
    pub fn strip_suid(&self, id: u64, path: Option<&Path>) {
        let Some(path) = path.map(Path::to_path_buf).or_else(|| self.nodes.path(id)) else {
            return;
        };
        let Ok(attr) = self.engine.ask(|b| b.stat(&path)) else { return };
        // Set-group-id without group execution is a mandatory lock's mark, not a privilege.
        let sgid = if attr.mode & 0o010 != 0 { 0o2000 } else { 0 };
        let kept = attr.mode & !(0o4000 | sgid);
        if kept != attr.mode && attr.kind == FileKind::File {
            let set = SetAttr { mode: Some(kept), ..SetAttr::default() };
            let _ = self.engine.set_attr(Named { path: &path, key: attr.key, is_dir: false }, &set);
        }
    }

    pub fn readlink(&self, id: u64) -> Result<PathBuf> {
        let _tree = self.tree();
        let path = self.path(id)?;
        self.engine.ask(|b| b.read_link(&path))
    }

    /// Creates a directory, symbolic link, FIFO, socket, device or plain file without opening it.
    pub fn make(&self, parent: u64, name: &OsStr, new: New, what: &Make) -> Result<Entry> {
        self.refuse_read_only()?;
        let _tree = self.tree();
        let path = self.below(parent, name)?;
        let attr = self.engine.ask(|b| match what {
            Make::Dir => b.mkdir(&path, &new),
            Make::Link(target) => b.symlink(&path, target, &new),
            Make::Node(kind, rdev) => b.mknod(&path, &new, *kind, *rdev),
        })?;
        Ok(self.entry(parent, name, attr))
    }

    fn refuse_read_only(&self) -> Result<()> {
        match self.engine.config().read_only {
            true => Err(Error::os(libc::EROFS, "the mount is read-only")),
            false => Ok(()),
        }
    }

    /// What `name` in `parent` names now: from memory, else by asking.
    fn named(&self, parent: u64, name: &OsStr, path: &Path) -> Result<(FileKey, bool)> {
        if let Some(child) = self.nodes.child(parent, name) {
            return Ok((child.key, child.is_dir));
        }
        let attr = self.engine.ask(|b| b.stat(path))?;
        Ok((attr.key, attr.kind == FileKind::Dir))
    }

    pub fn unlink(&self, parent: u64, name: &OsStr) -> Result<()> {
        let _tree = self.tree();
        let path = self.below(parent, name)?;
        let (key, is_dir) = self.named(parent, name, &path)?;
        self.teach_names(key);
        self.hold(key, &path);
        self.engine.unlink(Named { path: &path, key, is_dir })?;
        self.nodes.unlink(parent, name);
        Ok(())
    }

    /// Before a name goes: the kernel may speak of the file by its number for a while.
    fn hold(&self, key: FileKey, path: &Path) {
        if self.nodes.may_hold()
            && let Ok(Some(pin)) = self.engine.ask(|b| b.pin(path))
        {
            self.nodes.hold(self.nodes.id_of(key), pin);
        }
    }

    /// Before a name goes, the engine must know the others.
    fn teach_names(&self, key: FileKey) {
        let paths = self.nodes.paths(self.nodes.id_of(key));
        if paths.len() > 1 {
            self.engine.learn_names(key, paths);
        }
    }

    pub fn rmdir(&self, parent: u64, name: &OsStr) -> Result<()> {
        self.refuse_read_only()?;
        let _tree = self.tree();
        let path = self.below(parent, name)?;
        self.engine.ask(|b| b.rmdir(&path))?;
        self.nodes.unlink(parent, name);
        Ok(())
    }

    pub fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), mode: RenameMode) -> Result<()> {
        let exchange = mode == RenameMode::Exchange;
        let is_dir = |at: (u64, &OsStr)| self.nodes.child(at.0, at.1).is_some_and(|c| c.is_dir);
        let (_shared, _alone) = match is_dir(from) || (exchange && is_dir(to)) {
            true => (None, Some(self.tree_alone()?)),
            false => (Some(self.tree()), None),
        };
        let old = self.below(from.0, from.1)?;
        let new = self.below(to.0, to.1)?;
        let (key, is_dir) = self.named(from.0, from.1, &old)?;
        let over = match self.named(to.0, to.1, &new) {
            Ok(found) => Some(found),
            Err(e) if e.is(libc::ENOENT) => None,
            Err(e) => return Err(e),
        };
        if let Some((key, false)) = over {
            self.teach_names(key);
            self.hold(key, &new);
        }
        let over = over.map(|(key, is_dir)| Named { path: &new, key, is_dir });
        self.engine.rename(Named { path: &old, key, is_dir }, &new, over, mode)?;
        // Two names of one file: POSIX says that nothing happens.
        if over.is_none_or(|over| over.key != key) {
            self.nodes.rename(from, to, exchange);
        }
        Ok(())
    }

    pub fn link(&self, id: u64, parent: u64, name: &OsStr) -> Result<Entry> {
        let _tree = self.tree();
        let from = self.path(id)?;
        let to = self.below(parent, name)?;
        let key = self.nodes.key(id).ok_or_else(|| Error::os(libc::ESTALE, "link"))?;
        let attr = self.engine.link(Named { path: &from, key, is_dir: false }, &to)?;
        Ok(self.entry(parent, name, attr))
    }

    pub fn create(
        &self,
        parent: u64,
        name: &OsStr,
        new: New,
        flags: i32,
    ) -> Result<(Entry, Opened)> {
        let tree = self.tree();
        let path = self.below(parent, name)?;
        match self.engine.create(&path, &new) {
            Ok((file, attr)) => {
                let entry = self.entry(parent, name, attr);
                let opened = self.open_as(entry.id, file, true, true)?;
                Ok((entry, opened))
            }
            Err(e) if e.is(libc::EEXIST) && flags & libc::O_EXCL == 0 => {
                // Somebody made it behind our back between the kernel's lookup and now.
                drop(tree);
                let entry = self.lookup(parent, name)?;
                let opened = self.open(entry.id, flags)?;
                Ok((entry, opened))
            }
            Err(e) => Err(e),
        }
    }

    pub fn open(&self, id: u64, flags: i32) -> Result<Opened> {
        if Control::owns(id) {
            let text = self.control.read(id)?;
            let handle = self.keep(Handle::Control { id, text });
            return Ok(Opened { handle, how: How::Direct });
        }
        let write = flags & libc::O_ACCMODE != libc::O_RDONLY;
        // Linux truncates for a reader, too, if he may write.
        let truncate = flags & libc::O_TRUNC != 0;
        if write || truncate {
            self.refuse_read_only()?;
        }
        let _tree = self.tree();
        let file = self.open_node(id)?;
        if truncate && let Err(e) = self.engine.set_len(&file, 0) {
            self.engine.close(&file);
            return Err(e);
        }
        self.open_as(id, file, write, truncate)
    }

    /// The engine's handle on a node. One that has just lost its name is opened without: the kernel
    /// looked it up before.
    fn open_node(&self, id: u64) -> Result<Arc<File>> {
        let key = self.nodes.key(id);
        let opened = self.path(id).and_then(|path| {
            let file = self.engine.open(&path, key)?;
            if self.nodes.id_of(file.key) == id {
                return Ok(file);
            }
            self.engine.close(&file);
            Err(Error::os(libc::ESTALE, "the file was replaced"))
        });
        match opened {
            Err(e) if e.is(libc::ESTALE) || e.is(libc::ENOENT) => {
                key.and_then(|key| self.engine.open_unlinked(key)).ok_or(e)
            }
            other => other,
        }
    }

    /// Makes the handle, in the mode that the inode's other descriptors allow. Takes over the
    /// engine's handle on `file`.
    fn open_as(&self, id: u64, file: Arc<File>, write: bool, fresh: bool) -> Result<Opened> {
        let mut open = self.open.lock().expect("no panic inside");
        let node = open.entry(id).or_insert_with(|| OpenNode {
            file: file.clone(),
            cached: 0,
            passthrough: 0,
            kernel_id: None,
        });
        let mode = match (node.cached, node.passthrough) {
            (0, 0) => Mode::Idle,
            (0, _) => Mode::Passthrough,
            _ => Mode::Cached,
        };
        let facts = self.engine.facts(&file);
        let wish =
            Wish { write, fresh, complete: facts.complete, wholly_dirty: facts.wholly_dirty };
        let mut planned = plan(mode, wish, self.permit(write, facts.set_id));
        let mut kernel_id = 0;
        if planned != Plan::Cached {
            match self.pass_through(node, &file, planned) {
                Ok(Some(found)) => kernel_id = found,
                Ok(None) => planned = Plan::Cached,
                Err(e) => {
                    self.drop_if_unused(&mut open, id);
                    self.engine.close(&file);
                    return Err(e);
                }
            }
        }
        let node = open.get_mut(&id).expect("entered above");
        let how = match planned {
            Plan::Cached => {
                node.cached += 1;
                How::Cached { keep: self.nodes.pages(id) == facts.fingerprint }
            }
            Plan::PassRead | Plan::PassWrite => {
                node.passthrough += 1;
                How::Passthrough(kernel_id)
            }
        };
        if planned == Plan::PassWrite {
            self.nodes.set_pages(id, 0);
        }
        drop(open);
        Ok(Opened {
            handle: self.keep(Handle::File { id, file, plan: planned, set_id: facts.set_id }),
            how,
        })
    }

    fn permit(&self, write: bool, set_id: bool) -> Permit {
        let possible = self.registrar.get().is_some() && self.passthrough != Passthrough::Off;
        // Writes around the tier leave a shadow behind: nobody may hold on to one.
        let around = self.engine.config().policy == WritePolicy::WriteAround;
        let write = write
            && possible
            && !set_id
            && self.engine.config().policy == WritePolicy::WriteBack
            && match self.passthrough {
                Passthrough::Always => true,
                Passthrough::Auto => self.engine.may_write_unseen(),
                Passthrough::ReadOnly | Passthrough::Off => false,
            };
        Permit { read: possible && !around, write }
    }

    /// Pins the shadow or begins unseen writing, and registers the shadow with the kernel.
    /// `Ok(None)`: not possible after all.
    fn pass_through(
        &self,
        node: &mut OpenNode,
        file: &Arc<File>,
        plan: Plan,
    ) -> Result<Option<u32>> {
        let Some(registrar) = self.registrar.get() else { return Ok(None) };
        let shadow = match plan {
            Plan::PassWrite => self.engine.begin_unseen(file)?,
            _ => self.engine.pin_shadow(file)?,
        };
        let Some(shadow) = shadow else { return Ok(None) };
        if let Some(id) = node.kernel_id {
            return Ok(Some(id));
        }
        let registered = match shadow.as_fd() {
            Some(fd) => registrar.register(fd),
            None => Err(std::io::ErrorKind::Unsupported.into()),
        };
        match registered {
            Ok(id) => {
                node.kernel_id = Some(id);
                Ok(Some(id))
            }
            Err(e) => {
                tracing::debug!(error = %e, "the kernel refused a shadow file; going through the daemon");
                self.end_pass(file, plan)?;
                Ok(None)
            }
        }
    }

    fn end_pass(&self, file: &Arc<File>, plan: Plan) -> Result<()> {
        match plan {
            Plan::PassWrite => self.engine.end_unseen(file),
            Plan::PassRead => {
                self.engine.unpin_shadow(file);
                Ok(())
            }
            Plan::Cached => Ok(()),
        }
    }

    fn drop_if_unused(&self, open: &mut HashMap<u64, OpenNode>, id: u64) {
        let unused = open.get(&id).is_some_and(|node| node.cached + node.passthrough == 0);
        if unused
            && let Some(kernel_id) = open.remove(&id).and_then(|node| node.kernel_id)
            && let Some(registrar) = self.registrar.get()
        {
            registrar.release(kernel_id);
        }
    }

    fn keep(&self, handle: Handle) -> u64 {
        let n = self.next_handle.fetch_add(1, Relaxed);
        self.handles.write().expect("no panic inside").insert(n, Arc::new(handle));
        n
    }

    fn handle(&self, handle: u64) -> Result<Arc<Handle>> {
        let found = self.handles.read().expect("no panic inside").get(&handle).cloned();
        found.ok_or_else(|| Error::os(libc::EBADF, "a closed handle"))
    }

    fn file(&self, handle: u64) -> Result<Arc<File>> {
        match &*self.handle(handle)? {
            Handle::File { file, .. } => Ok(file.clone()),
            _ => Err(Error::os(libc::EINVAL, "not a regular file")),
        }
    }

    /// The last descriptor and mapping of a handle are gone.
    pub fn release(&self, handle: u64) {
        let found = self.handles.write().expect("no panic inside").remove(&handle);
        let Some(found) = found else { return };
        let Handle::File { id, file, plan, set_id } = &*found else { return };
        let mut open = self.open.lock().expect("no panic inside");
        // Together with the mode: who opens the file between the two would take it for pinned.
        if let Err(e) = self.end_pass(file, *plan) {
            tracing::error!(error = %e, "closing a file that was written past the daemon");
        }
        // Before the mode can change: the kernel's pages are of what the file is now, and a writer
        // that comes next must find no trace of them.
        if *plan == Plan::Cached {
            self.nodes.set_pages(*id, self.engine.facts(file).fingerprint);
        }
        if let Some(node) = open.get_mut(id) {
            match plan {
                Plan::Cached => node.cached -= 1,
                Plan::PassRead | Plan::PassWrite => node.passthrough -= 1,
            }
        }
        self.drop_if_unused(&mut open, *id);
        drop(open);
        let facts = self.engine.facts(file);
        if *plan == Plan::PassWrite && *set_id && facts.set_id && facts.wholly_dirty {
            // Who wrote past us is not known; a privilege is not left on what he wrote.
            self.strip_suid(*id, None);
        }
        self.engine.close(file);
    }

    pub fn read(&self, handle: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match &*self.handle(handle)? {
            Handle::File { file, .. } => self.engine.read(file, offset, buf),
            Handle::Control { text, .. } => {
                let from = text.len().min(offset as usize);
                let n = buf.len().min(text.len() - from);
                buf[..n].copy_from_slice(&text[from..from + n]);
                Ok(n)
            }
            Handle::Dir { .. } => Err(Error::os(libc::EISDIR, "read")),
        }
    }

    /// Reads what can be read without the backing store; see [`Engine::read_cached`].
    pub fn read_cached(&self, handle: u64, offset: u64, buf: &mut [u8]) -> Option<Result<usize>> {
        match &*self.handle(handle).ok()? {
            Handle::File { file, .. } => self.engine.read_cached(file, offset, buf),
            _ => None,
        }
    }

    pub fn write(&self, handle: u64, offset: u64, data: &[u8]) -> Result<()> {
        match &*self.handle(handle)? {
            Handle::File { file, .. } => self.engine.write(file, offset, data),
            Handle::Control { id, .. } => self.control.write(*id, data),
            Handle::Dir { .. } => Err(Error::os(libc::EISDIR, "write")),
        }
    }

    pub fn fsync(&self, handle: u64) -> Result<()> {
        match &*self.handle(handle)? {
            Handle::File { file, .. } => self.engine.sync(file),
            _ => Ok(()),
        }
    }

    /// A descriptor was closed. Only write-through has something to do then.
    pub fn flush(&self, handle: u64) -> Result<()> {
        if self.engine.config().policy != WritePolicy::WriteThrough {
            return Err(Error::os(libc::ENOSYS, "flush"));
        }
        match &*self.handle(handle)? {
            Handle::File { file, .. } => self.engine.flush_file(file),
            _ => Ok(()),
        }
    }

    pub fn fallocate(&self, handle: u64, offset: u64, len: u64, mode: i32) -> Result<()> {
        let file = self.file(handle)?;
        let how = match mode {
            0 => Allocate::Extend,
            libc::FALLOC_FL_KEEP_SIZE => Allocate::KeepSize,
            m if m == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE => Allocate::Zero,
            m if m == libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE => Allocate::Zero,
            libc::FALLOC_FL_ZERO_RANGE => {
                self.engine.allocate(&file, Allocate::Extend, offset, len)?;
                Allocate::Zero
            }
            _ => return Err(Error::os(libc::EOPNOTSUPP, "this kind of fallocate")),
        };
        self.engine.allocate(&file, how, offset, len)
    }

    pub fn lseek(&self, handle: u64, offset: u64, whence: i32) -> Result<u64> {
        let file = self.file(handle)?;
        let size = self.engine.facts(&file).size;
        if offset >= size {
            return Err(Error::os(libc::ENXIO, "seeking beyond the end"));
        }
        match whence {
            libc::SEEK_DATA => match self.engine.next_data(&file, offset)? {
                Some((start, _)) => Ok(start),
                None => Err(Error::os(libc::ENXIO, "no data beyond here")),
            },
            libc::SEEK_HOLE => match self.engine.next_data(&file, offset)? {
                Some((start, end)) if start <= offset => Ok(end.min(size)),
                _ => Ok(offset),
            },
            _ => Err(Error::os(libc::EINVAL, "seek")),
        }
    }

    pub fn opendir(&self, id: u64) -> Result<u64> {
        Ok(self.keep(Handle::Dir { id, list: Mutex::new(None) }))
    }

    /// The entries of an open directory; read anew when asked from the beginning.
    pub fn list(&self, handle: u64, rewind: bool) -> Result<(u64, Arc<Vec<DirEntry>>)> {
        let found = self.handle(handle)?;
        let Handle::Dir { id, list } = &*found else {
            return Err(Error::os(libc::ENOTDIR, "readdir"));
        };
        let known = list.lock().expect("no panic inside").clone();
        if let Some(known) = known.filter(|_| !rewind) {
            return Ok((*id, known));
        }
        let entries = Arc::new(self.read_dir(*id)?);
        *list.lock().expect("no panic inside") = Some(entries.clone());
        Ok((*id, entries))
    }

    fn read_dir(&self, id: u64) -> Result<Vec<DirEntry>> {
        let dots = |name: &str| DirEntry { name: name.into(), kind: FileKind::Dir, ino: id };
        let mut entries = vec![dots("."), dots("..")];
        if Control::owns(id) {
            let list = self.control.list(id).into_iter();
            entries.extend(list.map(|(name, ino, kind)| DirEntry { name: name.into(), kind, ino }));
            return Ok(entries);
        }
        let _tree = self.tree();
        let path = self.path(id)?;
        match self.engine.ask(|b| b.read_dir(&path)) {
            Ok(found) => entries.extend(found),
            Err(e) if self.engine.health.is_available() => return Err(e),
            Err(_) => entries.extend(self.list_away(id)),
        }
        entries.retain(|entry| id != ROOT || entry.name != control::NAME);
        Ok(entries)
    }

    fn list_away(&self, id: u64) -> Vec<DirEntry> {
        let known = self.nodes.children(id).into_iter();
        known
            .filter(|(_, child)| self.attr_away(child.id, child.key).is_ok())
            .map(|(name, child)| DirEntry {
                name: OsString::from(&*name),
                kind: if child.is_dir { FileKind::Dir } else { FileKind::File },
                ino: child.key.ino,
            })
            .collect()
    }

    /// The inode number to show for a directory entry.
    pub fn shown_ino(&self, ino: u64) -> u64 {
        self.nodes.id_of(FileKey { ino, generation: u64::MAX })
    }

    pub fn statfs(&self) -> Result<StatFs> {
        self.engine.ask(|b| b.statfs())
    }

    pub fn fsyncdir(&self, handle: u64) -> Result<()> {
        let found = self.handle(handle)?;
        let Handle::Dir { id, .. } = &*found else { return Ok(()) };
        if Control::owns(*id) {
            return Ok(());
        }
        let _tree = self.tree();
        let path = self.path(*id)?;
        self.engine.sync_dir(&path)
    }

    pub fn getxattr(&self, id: u64, name: &OsStr) -> Result<Vec<u8>> {
        if Control::owns(id) {
            return Err(Error::os(libc::ENODATA, "xattr"));
        }
        let _tree = self.tree();
        let path = self.path(id)?;
        self.engine.ask(|b| b.xattr_get(&path, name))
    }

    pub fn listxattr(&self, id: u64) -> Result<Vec<u8>> {
        if Control::owns(id) {
            return Ok(Vec::new());
        }
        let _tree = self.tree();
        let path = self.path(id)?;
        let names = self.engine.ask(|b| b.xattr_list(&path))?;
        let mut bytes = Vec::new();
        for name in names {
            bytes.extend_from_slice(name.as_encoded_bytes());
            bytes.push(0);
        }
        Ok(bytes)
    }

    pub fn setxattr(&self, id: u64, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        let _tree = self.tree();
        let path = self.path(id)?;
        let mode = match flags {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        self.engine.set_xattr(self.at(id, &path)?, name, value, mode)
    }

    pub fn removexattr(&self, id: u64, name: &OsStr) -> Result<()> {
        let _tree = self.tree();
        let path = self.path(id)?;
        self.engine.remove_xattr(self.at(id, &path)?, name)
    }

    fn at<'a>(&self, id: u64, path: &'a Path) -> Result<Named<'a>> {
        let key =
            self.nodes.key(id).ok_or_else(|| Error::os(libc::ESTALE, "a name that is gone"))?;
        Ok(Named { path, key, is_dir: self.nodes.is_dir(id) })
    }

    /// All nodes whose data or attributes the kernel may have cached.
    pub fn held(&self) -> Vec<u64> {
        self.nodes.held()
    }
}

/// What [`Vfs::make`] makes.
#[derive(Debug, Clone)]
pub enum Make {
    Dir,
    Link(OsString),
    Node(FileKind, u64),
}
