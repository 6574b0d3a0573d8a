//! A fast tier in memory that can lose power, and whose operations fail, lie or wait as a test wants.

use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_backing::Timestamp;
use forebay_engine::media::{Media, MediaFile, MediaStat, Open, Space};

pub use disk::Disk;
use disk::{FileOp, Node};

mod disk;

/// A sync that does nothing and claims to have done it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// That of the log of copies for others.
    Copies,
    Log,
    Shadow,
    Dir,
    /// The bytes that a seal is for were not written out.
    Bytes,
    /// The records that a seal presumes were not written out.
    Records,
}

/// The kind of an operation, for faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Open,
    Read,
    Write,
    Sync,
    Other,
}

/// The `n`-th operation from now (1 is the next) and `count - 1` after it fail.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub n: u64,
    pub count: u64,
    pub errno: i32,
}

pub type Hook = Box<dyn FnMut(u64, &Disk) + Send>;

/// The answer to the question whether a file is open elsewhere.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Leases {
    #[default]
    Granted,
    /// A security module forbids them.
    Forbidden,
    /// The file system has none.
    Unknown,
}

/// Where seals are not kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sealless {
    /// On the whole medium.
    All,
    /// On its files, which say so when they are to get one.
    Each,
}

#[derive(Default)]
struct Inner {
    disk: Disk,
    leases: Leases,
    /// The number of operations that change something.
    changes: u64,
    ops: u64,
    fault: Option<Fault>,
    /// The next sync of a shadow file fails.
    shadow_sync_fails: bool,
    faults_given: u64,
    failed_syncs: u64,
    hook: Option<Hook>,
    at_shadow_read: Option<Arc<dyn Fn(usize) + Send + Sync>>,
    at_shadow_write: Option<Arc<dyn Fn(u64) + Send + Sync>>,
    at_shadow_sync: Option<Arc<dyn Fn() + Send + Sync>>,
    after_shadow_sync: Option<Arc<dyn Fn() + Send + Sync>>,
    lie: Option<Lie>,
    lies_told: u64,
    /// Syncs of the log's files and of shadows.
    log_syncs: u64,
    shadow_syncs: u64,
    seals: u64,
    sealless: Option<Sealless>,
    clock: u32,
    hours_back: i64,
}

#[derive(Clone, Default)]
pub struct CrashMedia(Arc<Mutex<Inner>>);

struct CrashFile {
    media: CrashMedia,
    ino: u64,
    name: String,
}

impl CrashMedia {
    pub fn on(disk: Disk) -> CrashMedia {
        CrashMedia(Arc::new(Mutex::new(Inner { disk, ..Inner::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no panic inside")
    }

    /// A consistent copy of everything, durable or not.
    pub fn snapshot(&self) -> Disk {
        self.lock().disk.clone()
    }

    /// The same, unless another thread holds the medium.
    pub fn try_snapshot(&self) -> Option<Disk> {
        self.0.try_lock().ok().map(|inner| inner.disk.clone())
    }

    /// Calls `hook` before every change, with the number of changes so far.
    pub fn set_hook(&self, hook: Option<Hook>) {
        let old = std::mem::replace(&mut self.lock().hook, hook);
        drop(old);
    }

    /// Calls `act` with the length of every read of a shadow file, before it, without the medium's lock.
    pub fn at_shadow_read(&self, act: impl Fn(usize) + Send + Sync + 'static) {
        self.lock().at_shadow_read = Some(Arc::new(act));
    }

    /// Calls `act` with the offset of every write to a shadow file, before it, without the medium's lock.
    pub fn at_shadow_write(&self, act: impl Fn(u64) + Send + Sync + 'static) {
        self.lock().at_shadow_write = Some(Arc::new(act));
    }

    /// Calls `act` at the beginning of every sync of a shadow file, without the medium's lock.
    pub fn at_shadow_sync(&self, act: impl Fn() + Send + Sync + 'static) {
        self.lock().at_shadow_sync = Some(Arc::new(act));
    }

    /// Calls `act` at the end of every sync of a shadow file, likewise.
    pub fn after_shadow_sync(&self, act: impl Fn() + Send + Sync + 'static) {
        self.lock().after_shadow_sync = Some(Arc::new(act));
    }

    pub fn set_lie(&self, lie: Lie) {
        self.lock().lie = Some(lie);
    }

    pub fn set_leases(&self, leases: Leases) {
        self.lock().leases = leases;
    }

    pub fn lies_told(&self) -> u64 {
        self.lock().lies_told
    }

    /// Returns the number of syncs of the log so far, and of all others.
    pub fn syncs(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.log_syncs, inner.shadow_syncs)
    }

    /// Returns the number of seals set so far.
    pub fn seals(&self) -> u64 {
        self.lock().seals
    }

    /// Keeps no seal from here on.
    pub fn forbid_seals(&self, how: Sealless) {
        self.lock().sealless = Some(how);
    }

    /// Sets the clock of the medium's times back by an hour.
    pub fn set_clock_back(&self) {
        self.lock().hours_back += 1;
    }

    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut inner = self.lock();
        inner.fault = fault;
        inner.ops = 0;
    }

    /// Makes the next sync of a shadow file fail, whatever other threads do on the medium meanwhile.
    pub fn fail_shadow_sync(&self) {
        self.lock().shadow_sync_fails = true;
    }

    /// Drops cached bytes that count as written, as if the machine needed the memory.
    pub fn lose_memory(&self) {
        self.lock().disk.nodes.values_mut().for_each(Node::lose_memory);
    }

    /// Adds bytes of a write that began earlier to the only shadow that is long enough: its times have moved.
    pub fn arrive_late(&self, bytes: &[u8], offset: u64) {
        let mut inner = self.lock();
        let is_shadow = |(name, _): &(&String, &u64)| name.starts_with("shadow");
        let shadows: Vec<u64> = inner.disk.names.iter().filter(is_shadow).map(|it| *it.1).collect();
        let node = |ino: &u64| inner.disk.nodes[ino].cached.len() > offset;
        let inos: Vec<u64> = shadows.into_iter().filter(node).collect();
        let &[ino] = &inos[..] else { panic!("which of {inos:?}?") };
        let node = inner.disk.node(ino);
        let times = (node.mtime, node.ctime);
        inner.disk.change(ino, FileOp::Write(offset, bytes.into()), times.0);
        let node = inner.disk.node(ino);
        (node.mtime, node.ctime) = times;
    }

    /// Returns the number of operations since the fault was set.
    pub fn ops(&self) -> u64 {
        self.lock().ops
    }

    /// Makes a sync of another file fail; the device has lost its unflushed part of the log.
    pub fn fail_another_sync(&self) {
        let mut inner = self.lock();
        inner.failed_syncs += 1;
        let Disk { names, nodes, .. } = &mut inner.disk;
        let logs = names.iter().filter(|(name, _)| name.starts_with("log/"));
        logs.for_each(|(_, ino)| nodes.get_mut(ino).expect("it has a name").lose_out());
    }

    pub fn faults_given(&self) -> u64 {
        self.lock().faults_given
    }
}

impl Inner {
    /// Counts an operation; fails it if it is the chosen one.
    fn begin(&mut self, verb: Verb) -> io::Result<()> {
        if !matches!(verb, Verb::Open | Verb::Read) {
            let changes = self.changes;
            self.changes += 1;
            if let Some(mut hook) = self.hook.take() {
                hook(changes, &self.disk);
                self.hook = Some(hook);
            }
        }
        self.ops += 1;
        if let Some(fault) = self.fault
            && self.ops >= fault.n
            && self.ops < fault.n.saturating_add(fault.count)
        {
            self.faults_given += 1;
            self.failed_syncs += u64::from(verb == Verb::Sync);
            return Err(io::Error::from_raw_os_error(fault.errno));
        }
        Ok(())
    }

    fn lies(&mut self, lie: Lie) -> bool {
        let lies = self.lie == Some(lie);
        self.lies_told += u64::from(lies);
        lies
    }

    fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp { sec: 1_700_000_000 - 3600 * self.hours_back, nsec: self.clock }
    }
}

impl Media for CrashMedia {
    fn grants_leases(&self) -> bool {
        self.lock().leases != Leases::Unknown
    }

    fn keeps_seals(&self) -> bool {
        self.lock().sealless != Some(Sealless::All)
    }

    fn seal_of(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let mut inner = self.lock();
        inner.begin(Verb::Read)?;
        let ino = *inner.disk.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(inner.disk.node(ino).seal.as_ref().map(|seal| seal.to_vec()))
    }

    fn open(&self, name: &str, how: Open) -> io::Result<Arc<dyn MediaFile>> {
        let mut inner = self.lock();
        let found = inner.disk.names.get(name).copied();
        let changes = how == Open::Fresh || (how == Open::Keep && found.is_none());
        inner.begin(if changes { Verb::Other } else { Verb::Open })?;
        let mtime = inner.now();
        let ino = match (found, how) {
            (None, Open::Existing) => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
            (Some(ino), Open::Fresh) => {
                inner.disk.change(ino, FileOp::SetLen(0), mtime);
                ino
            }
            (Some(ino), _) => ino,
            (None, _) => inner.disk.make(name, mtime),
        };
        Ok(Arc::new(CrashFile { media: self.clone(), ino, name: name.to_string() }))
    }

    fn stat(&self, name: &str) -> io::Result<MediaStat> {
        let mut inner = self.lock();
        inner.begin(Verb::Read)?;
        let ino = *inner.disk.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(inner.disk.node(ino).stat())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.begin(Verb::Other)?;
        if !inner.disk.names.contains_key(name) {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        inner.disk.change_name(name, None);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.begin(Verb::Other)?;
        let ino = *inner.disk.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        inner.disk.change_name(to, Some(ino));
        inner.disk.change_name(from, None);
        Ok(())
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        self.lock().disk.dirs.insert(name.to_string());
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut inner = self.lock();
        inner.begin(Verb::Read)?;
        let disk = &inner.disk;
        // Recovery lists many directories, each with few of all names.
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let inside = |name: &&String| name.starts_with(&prefix);
        let base = |name: &String| {
            let base = &name[prefix.len()..];
            (!base.contains('/')).then(|| base.to_string())
        };
        let names = disk.names.range::<str, _>(from).map(|(name, _)| name).take_while(inside);
        let dirs = disk.dirs.range::<str, _>(from).take_while(inside);
        Ok(names.filter_map(base).chain(dirs.filter_map(base)).collect())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let mut inner = self.lock();
        let begun = inner.begin(Verb::Sync);
        if begun.is_err() {
            inner.disk.nodes.values_mut().for_each(Node::lose_out);
            return begun;
        }
        if inner.lies(Lie::Dir) {
            return Ok(());
        }
        inner.disk.sync_dir(dir);
        inner.disk.flush();
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut inner = self.lock();
        let begun = inner.begin(Verb::Sync);
        let disk = &mut inner.disk;
        if begun.is_err() {
            disk.nodes.values_mut().for_each(Node::fail_sync);
            disk.nodes.values_mut().for_each(Node::lose_out);
            return begun;
        }
        disk.name_ops.clear();
        disk.durable_names = disk.names.clone();
        disk.nodes.values_mut().for_each(Node::sync);
        Ok(())
    }

    fn failed_syncs(&self) -> u64 {
        self.lock().failed_syncs
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space { total: 1 << 40, available: 1 << 40 })
    }
}

impl CrashFile {
    fn change(&self, op: FileOp) -> io::Result<()> {
        let mut inner = self.media.lock();
        inner.begin(Verb::Write)?;
        let mtime = inner.now();
        inner.disk.change(self.ino, op, mtime);
        Ok(())
    }

    fn is_log(&self) -> bool {
        self.name.starts_with("log/")
    }

    fn sync(&self, with_names: bool) -> io::Result<()> {
        let act = self.media.lock().at_shadow_sync.clone();
        if let Some(act) = act.filter(|_| self.name.starts_with("shadow")) {
            act();
        }
        let mut inner = self.media.lock();
        if self.name.starts_with("shadow") && std::mem::take(&mut inner.shadow_sync_fails) {
            inner.failed_syncs += 1;
            inner.disk.fail_sync(self.ino);
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let begun = inner.begin(Verb::Sync);
        if begun.is_err() {
            inner.disk.fail_sync(self.ino);
            return begun;
        }
        let lie = match self.name.split('/').next() {
            Some("log") => Lie::Log,
            Some("copies") => Lie::Copies,
            _ => Lie::Shadow,
        };
        if self.name.contains('/') && inner.lies(lie) {
            return Ok(());
        }
        match lie {
            Lie::Log => inner.log_syncs += 1,
            _ => inner.shadow_syncs += 1,
        }
        inner.disk.node(self.ino).sync();
        inner.disk.flush();
        if with_names && !inner.lies(Lie::Dir) {
            inner.disk.sync_names_of(self.ino);
        }
        let act = inner.after_shadow_sync.clone();
        drop(inner);
        if let Some(act) = act.filter(|_| self.name.starts_with("shadow")) {
            act();
        }
        Ok(())
    }
}

impl MediaFile for CrashFile {
    fn is_ours_alone(&self) -> io::Result<bool> {
        match self.media.lock().leases {
            Leases::Granted => Ok(true),
            Leases::Forbidden => Err(io::Error::from_raw_os_error(libc::EACCES)),
            Leases::Unknown => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let act = self.media.lock().at_shadow_read.clone();
        if let Some(act) = act.filter(|_| self.name.starts_with("shadow")) {
            act(buf.len());
        }
        let mut inner = self.media.lock();
        inner.begin(Verb::Read)?;
        Ok(inner.disk.node(self.ino).cached.read(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let act = self.media.lock().at_shadow_write.clone();
        if let Some(act) = act.filter(|_| self.name.starts_with("shadow")) {
            act(offset);
        }
        self.change(FileOp::Write(offset, buf.into()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(FileOp::SetLen(len))
    }

    fn stat(&self) -> io::Result<MediaStat> {
        Ok(self.media.lock().disk.node(self.ino).stat())
    }

    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()> {
        let mut inner = self.media.lock();
        let ctime = inner.now();
        let node = inner.disk.node(self.ino);
        (node.mtime, node.ctime) = (mtime, ctime);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(false)
    }

    fn sync_sealed(&self) -> io::Result<()> {
        self.sync(true)
    }

    fn is_flushed_by_others(&self) -> bool {
        self.media.lock().sealless.is_none()
    }

    fn write_out(&self, _end: u64) -> io::Result<()> {
        let mut inner = self.media.lock();
        let lies = match self.is_log() {
            true => inner.lies(Lie::Log) || inner.lies(Lie::Records),
            false => inner.lies(Lie::Bytes),
        };
        if lies {
            return Ok(());
        }
        let begun = inner.begin(Verb::Sync);
        match &begun {
            Ok(()) => {
                let (ino, mtime) = (self.ino, inner.disk.node(self.ino).mtime);
                let ctime = inner.disk.node(ino).ctime;
                inner.disk.change(ino, FileOp::WrittenOut, mtime);
                inner.disk.node(ino).ctime = ctime;
            }
            Err(_) => inner.disk.node(self.ino).fail_sync(),
        }
        begun
    }

    fn seal(&self, seal: &[u8]) -> io::Result<()> {
        let mut inner = self.media.lock();
        if inner.sealless.is_some() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        inner.begin(Verb::Write)?;
        inner.seals += 1;
        let ctime = inner.now();
        let mtime = inner.disk.node(self.ino).mtime;
        inner.disk.change(self.ino, FileOp::Seal(seal.into()), mtime);
        inner.disk.node(self.ino).ctime = ctime;
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(FileOp::Punch(offset, len))
    }

    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        Ok(self.media.lock().disk.node(self.ino).cached.next_data(offset))
    }
}
