//! A backing store in memory that can be copied at any moment, file identities included, and that
//! can lose unsynced changes. Regular files and directories only.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_backing::{
    Access, Attr, BackingFile, BackingStore, DirEntry, Error, FileKey, FileKind, New, Pin,
    RenameMode, Result, SetAttr, SetTime, StatFs, Timestamp, XattrMode,
};

use crate::bytes::Bytes;
use crate::rng::Rng;

#[derive(Clone, Default)]
pub struct Tree {
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<PathBuf, u64>,
    /// The names as of the last sync of any file: one journal holds them all.
    durable_names: BTreeMap<PathBuf, u64>,
    /// The changes of names since, in order.
    recent: Vec<Change>,
    clock: u64,
    /// The generation of every file's key.
    generation: u64,
    keeps: Times,
    pub writes: u64,
    pub syncs: u64,
    /// Up to where the store was asked for zeros.
    pub zeroed_to: u64,
}

/// The times that a store keeps.
#[derive(Clone, Copy, Default)]
enum Times {
    #[default]
    Fine,
    /// Whole seconds: most changes in a test have the same time.
    Seconds,
}

/// A change of names, and the times that files of it had before.
#[derive(Clone, Default)]
struct Change {
    names: Vec<(PathBuf, Option<u64>)>,
    ctimes: Vec<(u64, Timestamp)>,
}

#[derive(Clone)]
struct Inode {
    kind: FileKind,
    mode: u32,
    links: u32,
    now: Contents,
    durable: Contents,
}

#[derive(Clone, Default)]
struct Contents {
    bytes: Bytes,
    mtime: Timestamp,
    ctime: Timestamp,
}

#[derive(Clone)]
pub struct MemStore(Arc<Mutex<Tree>>);

#[derive(Clone)]
struct MemFile {
    store: MemStore,
    ino: u64,
}

impl Pin for MemFile {
    fn open(&self, _access: Access) -> Result<(Arc<dyn BackingFile>, Attr)> {
        Ok((Arc::new(self.clone()), self.stat()?))
    }

    fn xattr_get(&self, name: &OsStr) -> Result<Vec<u8>> {
        Err(Error::os(libc::ENODATA, format!("{}", name.display())))
    }
}

impl MemStore {
    pub fn new() -> MemStore {
        MemStore::keeping(7, Times::Fine)
    }

    /// Returns a store on which a file may have the key of a removed one.
    pub fn without_generations() -> MemStore {
        MemStore::keeping(0, Times::Fine)
    }

    /// Returns such a store that keeps whole seconds.
    pub fn of_seconds() -> MemStore {
        MemStore::keeping(0, Times::Seconds)
    }

    fn keeping(generation: u64, keeps: Times) -> MemStore {
        let mut tree = Tree { generation, keeps, ..Tree::default() };
        tree.add(Path::new(""), FileKind::Dir, 0o755);
        tree.sync_names();
        MemStore::on(tree)
    }

    pub fn on(tree: Tree) -> MemStore {
        MemStore(Arc::new(Mutex::new(tree)))
    }

    pub fn snapshot(&self) -> Tree {
        self.lock().clone()
    }

    /// Removes the file that was made last; the next file gets its inode number.
    pub fn free(&self, path: &Path) {
        let mut tree = self.lock();
        let ino = tree.names.remove(path).expect("it is there");
        let (last, _) = tree.inodes.pop_last().expect("it is there");
        assert_eq!(ino, last, "another one was made after it");
    }

    fn lock(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().expect("no panic inside")
    }
}

impl Tree {
    /// Returns the number of changes of names that a power cut may take.
    pub fn unsynced_names(&self) -> usize {
        self.recent.len()
    }

    /// Returns the same without the last `count` changes of names.
    pub fn forgetting(&self, count: usize) -> Tree {
        let mut image = self.clone();
        image.names = image.durable_names.clone();
        let left = self.recent.len() - count;
        for (ino, ctime) in self.recent[left..].iter().rev().flat_map(|change| &change.ctimes) {
            image.inode(*ino).now.ctime = *ctime;
        }
        for (path, to) in self.recent[..left].iter().flat_map(|change| &change.names) {
            match to {
                Some(ino) => drop(image.names.insert(path.clone(), *ino)),
                None => drop(image.names.remove(path)),
            }
        }
        image.durable_names = image.names.clone();
        image.recent.clear();
        image.count_links();
        image
    }

    fn count_links(&mut self) {
        for (ino, inode) in &mut self.inodes {
            inode.links = self.names.values().filter(|n| *n == ino).count() as u32;
        }
    }

    /// Returns the state after a power cut: each file as it is or as it was synced, and some of the
    /// first changes of names.
    pub fn crash_image(&self, rng: &mut Rng) -> Tree {
        let mut image = self.forgetting(match rng.below(3) {
            0 => 0,
            1 => self.recent.len(),
            _ => rng.below(self.recent.len() as u64 + 1) as usize,
        });
        for inode in image.inodes.values_mut().filter(|inode| inode.kind == FileKind::File) {
            if rng.below(2) == 0 {
                inode.now = inode.durable.clone();
            }
        }
        image
    }

    /// Returns the bytes of one file, however large its holes are.
    pub fn bytes(&self, path: &Path) -> Bytes {
        self.inodes[&self.names[path]].now.bytes.clone()
    }

    /// Returns every file with its bytes.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let file = |ino: &u64| Some(&self.inodes[ino]).filter(|i| i.kind == FileKind::File);
        self.names
            .iter()
            .filter_map(|(path, ino)| Some((path.clone(), file(ino)?.now.bytes.all())))
            .collect()
    }

    fn tick(&mut self) -> Timestamp {
        self.clock += 1;
        let nsec = match self.keeps {
            Times::Fine => self.clock as u32 % 1000,
            Times::Seconds => 0,
        };
        Timestamp { sec: 1_600_000_000 + (self.clock / 1000) as i64, nsec }
    }

    fn add(&mut self, path: &Path, kind: FileKind, mode: u32) -> u64 {
        let now = self.tick();
        let ino = self.inodes.len() as u64 + 1;
        let now = Contents { mtime: now, ctime: now, ..Contents::default() };
        self.inodes.insert(ino, Inode { kind, mode, links: 1, durable: now.clone(), now });
        self.change_names([(path.to_path_buf(), Some(ino))]);
        ino
    }

    fn change_names(&mut self, changes: impl IntoIterator<Item = (PathBuf, Option<u64>)>) {
        let change = Change { names: changes.into_iter().collect(), ctimes: Vec::new() };
        for (path, to) in &change.names {
            match to {
                Some(ino) => drop(self.names.insert(path.clone(), *ino)),
                None => drop(self.names.remove(path)),
            }
        }
        self.recent.push(change);
    }

    fn sync_names(&mut self) {
        self.durable_names = self.names.clone();
        self.recent.clear();
    }

    fn ino(&self, path: &Path) -> Result<u64> {
        let is_long = path.iter().any(|name| name.len() > 255);
        let errno = if is_long { libc::ENAMETOOLONG } else { libc::ENOENT };
        self.names.get(path).copied().ok_or_else(|| Error::os(errno, path.display().to_string()))
    }

    fn ino_of(&self, path: &Path, key: Option<FileKey>) -> Result<u64> {
        let ino = self.ino(path)?;
        match key.is_none_or(|key| self.attr(ino).key == key) {
            true => Ok(ino),
            false => Err(Error::os(libc::ESTALE, path.display().to_string())),
        }
    }

    fn inode(&mut self, ino: u64) -> &mut Inode {
        self.inodes.get_mut(&ino).expect("inodes are never freed")
    }

    fn attr(&self, ino: u64) -> Attr {
        let inode = &self.inodes[&ino];
        Attr {
            key: FileKey { ino, generation: self.generation },
            kind: inode.kind,
            mode: inode.mode,
            nlink: inode.links,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: inode.now.bytes.len(),
            blocks: inode.now.bytes.allocated() / 512,
            blksize: 4096,
            atime: inode.now.mtime,
            mtime: inode.now.mtime,
            ctime: inode.now.ctime,
            btime: Timestamp::default(),
        }
    }

    fn change(&mut self, ino: u64, change: impl FnOnce(&mut Bytes)) {
        let now = self.tick();
        self.writes += 1;
        let inode = self.inode(ino);
        change(&mut inode.now.bytes);
        (inode.now.mtime, inode.now.ctime) = (now, now);
    }

    fn sync(&mut self, ino: u64) {
        self.syncs += 1;
        self.sync_names();
        let inode = self.inode(ino);
        inode.durable = inode.now.clone();
    }

    fn touch(&mut self, ino: u64, links: i32) {
        let now = self.tick();
        let inode = self.inode(ino);
        let before = std::mem::replace(&mut inode.now.ctime, now);
        if let Some(change) = self.recent.last_mut() {
            change.ctimes.push((ino, before));
        }
        let inode = self.inode(ino);
        inode.links = inode.links.checked_add_signed(links).expect("links are counted");
    }

    fn set_attr(&mut self, ino: u64, set: &SetAttr) -> Attr {
        let now = self.tick();
        let inode = self.inode(ino);
        inode.mode = set.mode.unwrap_or(inode.mode);
        inode.now.ctime = now;
        match set.mtime {
            Some(SetTime::At(at)) => inode.now.mtime = at,
            Some(SetTime::Now) => inode.now.mtime = now,
            None => {}
        }
        self.attr(ino)
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        let ino = self.ino(path)?;
        self.change_names([(path.to_path_buf(), None)]);
        self.touch(ino, -1);
        Ok(())
    }
}

fn unsupported<T>(what: &str) -> Result<T> {
    Err(Error::os(libc::EOPNOTSUPP, what.to_string()))
}

impl BackingStore for MemStore {
    fn identity(&self) -> Result<String> {
        Ok("memory".into())
    }

    fn stat(&self, path: &Path) -> Result<Attr> {
        let tree = self.lock();
        Ok(tree.attr(tree.ino(path)?))
    }

    fn open(&self, path: &Path, _access: Access) -> Result<Arc<dyn BackingFile>> {
        let ino = self.lock().ino(path)?;
        Ok(Arc::new(MemFile { store: self.clone(), ino }))
    }

    fn create(&self, path: &Path, new: &New) -> Result<(Arc<dyn BackingFile>, Attr)> {
        let mut tree = self.lock();
        match tree.ino(path) {
            Ok(_) => return Err(Error::os(libc::EEXIST, path.display().to_string())),
            Err(error) if !error.is(libc::ENOENT) => return Err(error),
            Err(_) => {}
        }
        tree.ino(path.parent().expect("not the root"))?;
        let ino = tree.add(path, FileKind::File, new.mode & !new.umask);
        let attr = tree.attr(ino);
        Ok((Arc::new(MemFile { store: self.clone(), ino }), attr))
    }

    fn mkdir(&self, path: &Path, new: &New) -> Result<Attr> {
        let mut tree = self.lock();
        let ino = tree.add(path, FileKind::Dir, new.mode & !new.umask);
        Ok(tree.attr(ino))
    }

    fn mknod(&self, _path: &Path, _new: &New, _kind: FileKind, _rdev: u64) -> Result<Attr> {
        unsupported("mknod")
    }

    fn symlink(&self, _path: &Path, _target: &OsStr, _new: &New) -> Result<Attr> {
        unsupported("symlink")
    }

    fn link(&self, from: &Path, key: Option<FileKey>, to: &Path) -> Result<Attr> {
        let mut tree = self.lock();
        let ino = tree.ino_of(from, key)?;
        tree.change_names([(to.to_path_buf(), Some(ino))]);
        tree.touch(ino, 1);
        Ok(tree.attr(ino))
    }

    fn read_link(&self, _path: &Path) -> Result<PathBuf> {
        unsupported("readlink")
    }

    fn pin(&self, path: &Path) -> Result<Option<Arc<dyn Pin>>> {
        let ino = self.lock().ino(path)?;
        Ok(Some(Arc::new(MemFile { store: self.clone(), ino })))
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.lock().remove(path)
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        self.lock().remove(path)
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()> {
        let mut tree = self.lock();
        let ino = tree.ino(from)?;
        tree.ino(to.parent().expect("not the root"))?;
        if mode == RenameMode::NoReplace && tree.ino(to).is_ok() {
            return Err(Error::os(libc::EEXIST, to.display().to_string()));
        }
        if mode == RenameMode::Exchange {
            let other = tree.ino(to)?;
            let under = |name: &Path, a: &Path, b: &Path| {
                let rest = name.strip_prefix(a).ok()?;
                Some(if rest.as_os_str().is_empty() { b.to_path_buf() } else { b.join(rest) })
            };
            let moved: Vec<(PathBuf, PathBuf, u64)> = tree
                .names
                .iter()
                .filter_map(|(name, ino)| {
                    let moved = under(name, from, to).or_else(|| under(name, to, from))?;
                    Some((name.clone(), moved, *ino))
                })
                .collect();
            let gone: Vec<_> = moved.iter().map(|(name, _, _)| (name.clone(), None)).collect();
            let come = moved.into_iter().map(|(_, name, ino)| (name, Some(ino)));
            tree.change_names(gone.into_iter().chain(come));
            tree.touch(ino, 0);
            tree.touch(other, 0);
            return Ok(());
        }
        let mut changes = Vec::new();
        if let Ok(over) = tree.ino(to) {
            changes.push((to.to_path_buf(), None));
            tree.inode(over).links -= 1;
        }
        for (name, ino) in tree.names.iter().filter(|(name, _)| name.starts_with(from)) {
            let rest = name.strip_prefix(from).expect("filtered by it");
            let moved = if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) };
            changes.extend([(name.clone(), None), (moved, Some(*ino))]);
        }
        tree.change_names(changes);
        tree.touch(ino, 0);
        Ok(())
    }

    fn set_attr(&self, path: &Path, key: Option<FileKey>, set: &SetAttr) -> Result<Attr> {
        let mut tree = self.lock();
        let ino = tree.ino_of(path, key)?;
        Ok(tree.set_attr(ino, set))
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        let tree = self.lock();
        let inside = tree.names.iter().filter(|(name, _)| name.parent() == Some(path));
        let entry = |(name, ino): (&PathBuf, &u64)| DirEntry {
            name: OsString::from(name.file_name().expect("not the root")),
            kind: tree.inodes[ino].kind,
            ino: *ino,
        };
        Ok(inside.map(entry).collect())
    }

    fn xattr_get(&self, _path: &Path, _name: &OsStr) -> Result<Vec<u8>> {
        unsupported("xattr")
    }

    fn xattr_set(
        &self,
        _: &Path,
        _: Option<FileKey>,
        _: &OsStr,
        _: &[u8],
        _: XattrMode,
    ) -> Result<()> {
        unsupported("xattr")
    }

    fn xattr_list(&self, _path: &Path) -> Result<Vec<OsString>> {
        unsupported("xattr")
    }

    fn xattr_remove(&self, _: &Path, _: Option<FileKey>, _: &OsStr) -> Result<()> {
        unsupported("xattr")
    }

    fn statfs(&self) -> Result<StatFs> {
        unsupported("statfs")
    }

    fn sync_dir(&self, _path: &Path) -> Result<()> {
        self.lock().sync_names();
        Ok(())
    }

    fn sync_files(&self, files: &[Arc<dyn BackingFile>]) -> Result<()> {
        files.iter().try_for_each(|file| file.sync())
    }
}

impl BackingFile for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.store.lock().inode(self.ino).now.bytes.read(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.store.lock().change(self.ino, |bytes| bytes.write(buf, offset));
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.store.lock().change(self.ino, |bytes| bytes.set_len(len));
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let mut tree = self.store.lock();
        tree.zeroed_to = tree.zeroed_to.max(offset + len);
        tree.change(self.ino, |bytes| bytes.punch(offset, len));
        Ok(())
    }

    fn stat(&self) -> Result<Attr> {
        Ok(self.store.lock().attr(self.ino))
    }

    fn set_times(&self, _atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<()> {
        let set = SetAttr { mtime: mtime.map(SetTime::At), ..SetAttr::default() };
        self.store.lock().set_attr(self.ino, &set);
        Ok(())
    }

    fn set_attr(&self, set: &SetAttr) -> Result<Attr> {
        Ok(self.store.lock().set_attr(self.ino, set))
    }

    fn sync(&self) -> Result<()> {
        self.store.lock().sync(self.ino);
        Ok(())
    }
}
