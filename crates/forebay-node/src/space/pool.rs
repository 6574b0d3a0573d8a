//! A pool: one directory of the flash, which only forebay uses, and its contents.

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::folder::{Durable, Folder, Wanted, require};
use forebay_base::lock::{Condvar, Mutex, Rank};
use forebay_base::way::{self, Demand};
use forebay_base::{Error, Kind, Result};
use rustix::fs;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::record::{FORMAT, is_there};
use super::{Id, Record, failed, usage_error};

const MARK: &str = "forebay-pool.json";

const LOCK: &str = "lock";

/// The first folder is made first, and identifies a pool whose mark is missing after a crash.
const FOLDERS: [&str; 5] = ["state", "tiers", "spaces", "swap", "trash"];

/// Whether spaces are allowed whose capacity nothing holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforce {
    Yes,
    No,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub enforce: Enforce,
    /// Project numbers that no other program on this file system uses.
    pub projects: Range<u32>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { enforce: Enforce::Yes, projects: 1_000_000_000..2_000_000_000 }
    }
}

/// The mark of a pool's directory.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    format: u32,
    id: String,
}

/// All clones are one pool. Another process cannot open the pool while a clone exists.
#[derive(Debug, Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub path: PathBuf,
    pub id: String,
    pub settings: Settings,
    pub root: Folder,
    pub state: Folder,
    pub tiers: Folder,
    pub spaces: Folder,
    pub swap: Folder,
    pub trash: Folder,
    _lock: File,
    turns: Turns,
    /// Records in the trash that a thread is deleting.
    pub deleting: Mutex<HashSet<String>>,
    /// Project numbers are chosen one at a time.
    pub choosing: Mutex<()>,
}

impl Inner {
    /// A number that another pool is unlikely to have.
    pub fn project_seed(&self) -> u32 {
        u64::from_str_radix(&self.id, 16).map_or(0, |id| (id % u64::from(u32::MAX)) as u32)
    }
}

/// Calls for one id wait for each other; calls for different ids do not.
#[derive(Debug)]
struct Turns {
    taken: Mutex<HashSet<Id>>,
    freed: Condvar,
}

pub(crate) struct Turn<'p> {
    turns: &'p Turns,
    id: Id,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // This also runs while unwinding.
        self.turns.taken.lock_anyway().remove(&self.id);
        self.turns.freed.notify_all();
    }
}

impl Pool {
    /// Opens a pool, or makes one of a directory that is empty or missing.
    ///
    /// # Errors
    ///
    /// [`Kind::Usage`] where other users could change its contents, or where it holds something
    /// else; [`Kind::WrongTier`] while another process has it open, or if a newer forebay made it.
    pub fn open(dir: &Path, settings: Settings) -> Result<Pool> {
        if rustix::process::geteuid().as_raw() != 0 {
            let at = dir.display();
            return Err(usage_error(format!("{at}: a pool is opened by root only (mounts, swap)")));
        }
        let root = open_root(dir)?;
        let lock = take_lock(&root)?;
        let id = read_or_make_mark(&root)?;
        let below = |name: &str| {
            let failed = |e| Error::io(e, root.path().join(name).display().to_string());
            root.make_dir(name).and_then(|()| root.below(name)).map_err(failed)
        };
        let inner = Inner {
            path: root.path().into(),
            id,
            settings,
            state: below("state")?,
            tiers: below("tiers")?,
            spaces: below("spaces")?,
            swap: below("swap")?,
            trash: below("trash")?,
            root,
            _lock: lock,
            turns: Turns { taken: Mutex::new(Rank::Spaces, HashSet::new()), freed: Condvar::new() },
            deleting: Mutex::new(Rank::Spaces, HashSet::new()),
            choosing: Mutex::new(Rank::Projects, ()),
        };
        Ok(Pool { inner: Arc::new(inner) })
    }

    /// The id, which is stable as long as the directory exists.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The free bytes of the pool's file system.
    pub fn free(&self) -> Result<u64> {
        let at = self.path().display();
        let stat = fs::fstatvfs(self.inner.root.as_fd()).map_err(failed(&at))?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// The size of the pool's file system.
    pub fn size(&self) -> Result<u64> {
        let at = self.path().display();
        let stat = fs::fstatvfs(self.inner.root.as_fd()).map_err(failed(&at))?;
        Ok(stat.f_blocks * stat.f_frsize)
    }

    /// All ids that have anything here, except leftovers.
    pub fn ids(&self) -> Result<Vec<Id>> {
        let mut ids = Vec::new();
        for name in Record::names(&self.inner.state)? {
            ids.extend(Record::read(&self.inner.state, &name)?.map(|record| record.id));
        }
        Ok(ids)
    }

    /// Waits until no other call works on `id`.
    pub(crate) fn turn(&self, id: &Id) -> Turn<'_> {
        let turns = &self.inner.turns;
        let mut taken = turns.taken.lock();
        while taken.contains(id) {
            taken = turns.freed.wait(taken);
        }
        taken.insert(id.clone());
        Turn { turns, id: id.clone() }
    }

    /// Refuses to begin a space that does not fit: the tier's other users would see it full
    /// meanwhile.
    pub(crate) fn require_room(&self, id: &Id, room: u64) -> Result<()> {
        match self.free()? {
            free if free < room => Err(self.no_room(id, room)),
            _ => Ok(()),
        }
    }

    pub(crate) fn no_room(&self, id: &Id, room: u64) -> Error {
        let show = forebay_base::units::human_size;
        let free = self.free().map_or("an unknown amount".into(), show);
        let context = format!(
            "{id}: pool {} has no room for {} ({free} free): ask for less, or remove something",
            self.path().display(),
            show(room)
        );
        Error::os(libc::ENOSPC, context)
    }

    pub(super) fn folder(&self, name: &str) -> &Folder {
        match name {
            "tiers" => &self.inner.tiers,
            "swap" => &self.inner.swap,
            "spaces" => &self.inner.spaces,
            other => unreachable!("no record is in {other}"),
        }
    }
}

fn open_root(dir: &Path) -> Result<Folder> {
    let at = dir.display();
    let end = way::walk(dir, Demand::Fixed)?;
    if end.found.is_none() {
        match fs::mkdirat(&end.dir, &end.name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(failed(&at)(e)),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = fs::openat(&end.dir, &end.name, flags, Mode::empty()).map_err(failed(&at))?;
    let stat = fs::fstat(&fd).map_err(failed(&at))?;
    require(&stat, Wanted::Dir).map_err(|e| {
        usage_error(format!("{at} cannot be a pool: {e}: choose a directory that is root's"))
    })?;
    let folder = Folder::of(fd.as_fd(), &end.path).map_err(failed(&at))?;
    refuse_other_contents(&folder)?;
    folder.close_to_others().map_err(failed(&at))?;
    Ok(folder)
}

/// Refuses to make a pool of a directory with other contents.
fn refuse_other_contents(folder: &Folder) -> Result<()> {
    let at = folder.path().display();
    let names = folder.list("").map_err(failed(&at))?;
    let is_ours = |name: &std::ffi::OsString| {
        let known = [MARK, "forebay-pool.json.new", LOCK, "lost+found"];
        known.iter().chain(&FOLDERS).any(|known| name == known)
    };
    if names.iter().any(|name| name == MARK) {
        return Ok(());
    }
    match names.iter().find(|name| !is_ours(name)) {
        Some(name) => Err(usage_error(format!(
            "{at} is no pool and not empty ({} is in it): choose an empty directory",
            name.display()
        ))),
        None => Ok(()),
    }
}

fn take_lock(root: &Folder) -> Result<File> {
    let at = root.path().join(LOCK);
    let flags = OFlags::RDWR | OFlags::CREATE;
    let lock = root.open(LOCK, flags, Wanted::File).map_err(failed(at.display()))?;
    match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock.into()),
        Err(Errno::WOULDBLOCK) => Err(Error::new(
            Kind::WrongTier,
            format!(
                "pool {} is in use by another forebay node: stop that one, or choose another \
                 directory",
                root.path().display()
            ),
        )),
        Err(e) => Err(failed(at.display())(e)),
    }
}

fn read_or_make_mark(root: &Folder) -> Result<String> {
    let at = root.path().join(MARK);
    if !is_there(root, MARK) {
        let mark = Mark { format: FORMAT, id: new_id()? };
        let text = serde_json::to_vec(&mark).expect("two plain fields");
        root.replace(MARK, &text, Durable::Yes).map_err(failed(at.display()))?;
        return Ok(mark.id);
    }
    let bytes = root.read(MARK).map_err(failed(at.display()))?;
    let mark: Mark = serde_json::from_slice(&bytes).map_err(|e| {
        let context = format!("{}: it does not mark a pool", at.display());
        Error::new(Kind::Corrupt, context).with_source(e)
    })?;
    match mark.format {
        FORMAT => Ok(mark.id),
        newer => Err(Error::new(
            Kind::WrongTier,
            format!("{}: made by a newer forebay (format {newer}): use that one", at.display()),
        )),
    }
}

/// 16 digits that no other pool has.
pub(super) fn new_id() -> Result<String> {
    let mut bytes = [0u8; 8];
    let at = "/dev/urandom";
    let read = |mut file: File| std::io::Read::read_exact(&mut file, &mut bytes);
    File::open(at).and_then(read).map_err(failed(&at))?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}
