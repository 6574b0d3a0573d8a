//! The verbs: the work of each request of the kernel, over either transport.
//!
//! A [`Vfs`] knows names, handles and modes; bytes and attributes are the engine's. It knows
//! nothing of how requests arrive: a transport decodes them, calls a method here, and encodes the
//! result.
//!
//! Locks: `tree` is taken before all others. Every verb that turns a node into a path holds `tree` for
//! reading until the backing store has acted on the path; a rename of a directory holds `tree` for
//! writing.

mod acl;
mod ahead;
mod answers;
mod attrs;
mod blanks;
mod copies;
mod data;
mod dirs;
mod doubts;
mod fence;
mod foresight;
mod homes;
mod laundry;
mod left;
mod listing;
mod locks;
mod look;
mod members;
mod names;
mod open;
mod privilege;
mod resolve;
mod returned;
mod rights;
mod serve;
mod served_names;
#[cfg(test)]
mod tests;
mod there;
mod tree;
mod unsynced;
mod xattrs;

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_backing::{Attr, Error, FileKey, FileKind, Result, StatFs};
use forebay_base::lock::{Mutex, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use forebay_cluster::front::Guard;
use forebay_engine::{Admission, Engine, File, OpenFile, Past};
use hashbrown::HashMap;

pub use self::answers::Times;
use self::answers::{Answers, Recalled};
pub use self::data::{Manner, Reader, Reading};
use self::foresight::Foresight;
use self::listing::Listing;
use self::locks::Locks;
pub use self::locks::{Came, Told, Wanted};
use self::members::Members;
pub use self::returned::Returned;
use self::there::Remote;
use self::tree::Tree;
use crate::control::Control;
use crate::flags::OpenFlags;
use crate::modes::Plan;
use crate::nodes::{Nodes, ROOT};
use crate::{Passthrough, control};

/// Registers shadow files with the kernel for passthrough.
pub trait Registrar: Send + Sync {
    /// Returns the kernel's id for an open shadow file.
    fn register(&self, shadow: BorrowedFd<'_>) -> std::io::Result<u32>;
    fn release(&self, id: u32);
}

/// Makes the kernel drop what it caches, and ask again.
pub trait Notify: Send + Sync {
    /// Drops the attributes of a node, with its access list.
    fn attributes(&self, id: u64);
    /// Drops the same, and the pages of `len` bytes from `offset` on; all from there on if `len` is 0. Not to be
    /// called under a lock: the kernel waits for reads of such pages that are under way.
    fn pages(&self, id: u64, offset: u64, len: u64);
    /// Has the kernel know that a file has grown to `end`, with `last` as its last byte. Not to be called under a lock
    /// either.
    fn end(&self, id: u64, end: u64, last: u8);
}

/// A file as the kernel is told of it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub id: u64,
    pub attr: Attr,
    /// The store was asked no earlier: the kernel believes the entry for the rest of its time to live.
    pub as_of: Instant,
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy)]
pub enum Looked {
    There(Entry),
    /// Nothing has the name, as of this moment.
    Nowhere(Instant),
    /// Something has the name, but another member would have to be asked for its attributes.
    Bare,
}

/// An open handle as the kernel is told of it.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    pub handle: u64,
    pub how: How,
    pub at_close: AtClose,
}

impl Opened {
    /// Whether the file can be written to through a mapping that the daemon does not see.
    fn maps_unseen(&self, flags: OpenFlags) -> bool {
        matches!(self.how, How::Passthrough(_)) && flags.maps_writes()
    }
}

/// Whether the kernel sends a FLUSH when a descriptor is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtClose {
    Nothing,
    Flush,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Through the page cache. `keep`: the pages that it has of the file are still valid.
    Cached { keep: bool },
    /// No page cache: control files, files of other members, and appends that others share.
    Direct,
    /// Past the daemon, by the kernel's id of the shadow file.
    Passthrough(u32),
}

enum Handle {
    /// `set_id`: the file had a set-user-id or set-group-id bit when it was opened.
    File {
        id: u64,
        file: OpenFile,
        plan: Plan,
        set_id: bool,
        admission: Admission,
        /// Writes go to the end of the file, wherever that is by then.
        append: bool,
        /// The claim that a writer needs.
        _held: Option<Guard>,
        /// Whether something was written since the last sync.
        has_written: AtomicBool,
    },
    /// A handle of a file that another member serves.
    There(Remote),
    Control {
        id: u64,
        text: Vec<u8>,
    },
    Dir {
        id: u64,
        list: Mutex<Option<Arc<Listing>>>,
    },
}

/// The open descriptors of one inode.
struct OpenNode {
    file: Arc<File>,
    cached: u32,
    /// One for each descriptor that the kernel passes through.
    past: Vec<Past>,
    kernel_id: Option<u32>,
}

type OpenNodes = HashMap<FileKey, OpenNode>;

/// How long the kernel may believe attributes that may change through a mapping: the kernel tells nobody of such
/// changes, and knows of writes and truncations itself. A database asks for a table's size before each page that it
/// adds.
const MAPPED: Duration = Duration::from_millis(50);

pub struct Vfs {
    pub engine: Arc<Engine>,
    pub(crate) nodes: Nodes,
    foresight: Arc<Foresight>,
    control: Control,
    passthrough: Passthrough,
    attr_ttl: Duration,
    registrar: OnceLock<Arc<dyn Registrar>>,
    notify: OnceLock<Arc<dyn Notify>>,
    handles: RwLock<HashMap<u64, Arc<Handle>>>,
    next_handle: AtomicU64,
    open: Mutex<OpenNodes>,
    tree: Tree,
    members: Members,
    suspended: copies::Suspended,
    locks: Locks,
}

impl Vfs {
    /// Whether the store tells when a file was made. Then the kernel can tell a file from an earlier one with the
    /// same inode number.
    pub fn tells_births(&self) -> bool {
        self.nodes.key(ROOT).is_some_and(|key| key.generation != 0)
    }

    pub fn new(
        engine: Arc<Engine>,
        control: Arc<dyn control::ControlDir>,
        passthrough: Passthrough,
        times: Times,
    ) -> Result<Vfs> {
        let root = engine.names.ask(|b| b.stat(Path::new("")))?;
        let nodes = Nodes::new(root, engine.config().names_max);
        let foresight = Arc::new(Foresight::new(engine.clone(), Answers::new(times)));
        Ok(Vfs {
            engine,
            nodes,
            foresight,
            control: Control::new(control),
            passthrough,
            attr_ttl: times.attr,
            registrar: OnceLock::new(),
            notify: OnceLock::new(),
            handles: RwLock::new(Rank::Handles, HashMap::new()),
            next_handle: AtomicU64::new(1),
            open: Mutex::new(Rank::Open, OpenNodes::new()),
            tree: Tree::default(),
            members: Members::default(),
            suspended: copies::Suspended::default(),
            locks: Locks::default(),
        })
    }

    /// Gives the vfs the means to pass files through; without it all bytes go through the daemon.
    pub fn set_registrar(&self, registrar: Arc<dyn Registrar>) {
        let _ = self.registrar.set(registrar);
    }

    /// Gives the vfs the means to tell the kernel of changes that no answer reports.
    pub fn set_notify(&self, notify: Arc<dyn Notify>) {
        let _ = self.notify.set(notify);
    }

    /// Has the kernel ask for attributes again. To be called before the request that changed them is answered.
    pub fn tell_attributes(&self, id: u64) {
        if let Some(notify) = self.notify.get() {
            notify.attributes(id);
        }
    }

    /// As [`Vfs::tell_attributes`], for a file that is served here, if the kernel may know it.
    pub(crate) fn tell_attributes_of(&self, key: FileKey) {
        if let Some(id) = self.nodes.id_of(key) {
            self.tell_attributes(id);
        }
    }

    /// Has the kernel drop the pages and attributes of a file. Not to be called under a lock.
    pub fn drop_pages(&self, key: FileKey) {
        if let Some(id) = self.nodes.id_of(key) {
            self.nodes.set_pages(id, 0);
            self.tell_pages(key, 0, 0);
        }
    }

    /// How long the kernel may believe these attributes.
    pub fn attr_ttl(&self, attr: &Attr) -> Duration {
        match attr.kind == FileKind::File && self.engine.passed.moves_unseen(attr.key) {
            true => self.attr_ttl.min(MAPPED),
            false => self.attr_ttl,
        }
    }

    fn tree(&self) -> RwLockReadGuard<'_, ()> {
        self.tree.shared()
    }

    fn tree_alone(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        self.tree_alone_within(self.engine.files.tunables().backing_timeout)
    }

    fn tree_alone_within(&self, limit: Duration) -> Result<RwLockWriteGuard<'_, ()>> {
        self.tree
            .alone(limit)
            .ok_or_else(|| Error::os(libc::EBUSY, "other requests hang in the backing store"))
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

    fn entry(&self, parent: u64, name: &OsStr, attr: Attr, as_of: Instant) -> Entry {
        Entry { id: self.nodes.remember(parent, name, &attr, 1), attr, as_of }
    }

    fn open_file(&self, id: u64) -> Option<Arc<File>> {
        let key = self.nodes.file_key(id)?;
        self.open.lock().get(&key).map(|node| node.file.clone())
    }

    fn keep(&self, handle: Handle) -> u64 {
        let n = self.next_handle.fetch_add(1, Relaxed);
        self.handles.write().insert(n, Arc::new(handle));
        n
    }

    fn handle(&self, handle: u64) -> Result<Arc<Handle>> {
        let found = self.handles.read().get(&handle).cloned();
        found.ok_or_else(|| Error::os(libc::EBADF, "a closed handle"))
    }

    fn file(&self, handle: u64) -> Result<Arc<File>> {
        match &*self.handle(handle)? {
            Handle::File { file, .. } => Ok(Arc::clone(file)),
            _ => Err(Error::os(libc::EINVAL, "not a regular file")),
        }
    }

    /// A regular file that never needs the backing store: its path in the mount and its node.
    pub fn some_control_file(&self) -> Option<(String, u64)> {
        self.control.some_file()
    }

    pub fn statfs(&self) -> Result<StatFs> {
        self.engine.drain.statfs()
    }
}

/// What [`Vfs::make`] makes.
#[derive(Debug, Clone)]
pub enum Make {
    Dir,
    Link(OsString),
    Node(FileKind, u64),
}
