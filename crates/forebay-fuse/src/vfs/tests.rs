//! Mounts of one store in one process, without a kernel. The claims are played; questions of the mounts to each
//! other are answered in earnest, or late, or not at all.

mod far;
mod gated;
mod granted;
mod handles;
mod hanging;
mod older;
mod owed;
mod passed;
mod patience;
mod slow;
mod unfit;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use forebay_backing::{BackingStore, DirStore, Error, FileKey, Kind, New, Result};
use forebay_cluster::core::{Access, End, Ends, Holder, Process, Revision};
use forebay_cluster::front::{Cluster, Guard, Place};
use forebay_cluster::keys::TakenFrom;
use forebay_cluster::words::{Answer, Question, Refusal};
use forebay_engine::governor::law::Preset;
use forebay_engine::media::{DirMedia, Media};
use forebay_engine::rules::Origin;
use forebay_engine::{Config, Engine, KeepDirty, Progress, Tier, Tunables};

use super::{Entry, Looked, Manner, Notify, Opened, Reader, Times, Vfs};
use crate::Passthrough;
use crate::control::{ControlDir, ControlEntry};
use crate::nodes::ROOT;

/// How long a mount waits for another's answer.
const PATIENCE: Duration = Duration::from_millis(400);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The fate of a question.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    /// The question is answered, but the answer is lost: the connection breaks.
    Broken,
    /// The question never arrives.
    Lost,
}

type Makes = dyn Fn(&str) + Send + Sync;
type Answered = dyn Fn(&Question) + Send + Sync;
type Fates = dyn Fn(&str, &Question) -> Fate + Send + Sync;

#[derive(Default)]
struct Net {
    mounts: Mutex<HashMap<String, Weak<Vfs>>>,
    homes: Mutex<HashMap<FileKey, String>>,
    /// Claims held, by file.
    held: Mutex<HashMap<FileKey, usize>>,
    epochs: Mutex<HashMap<String, u64>>,
    /// Members whose tiers have lost nothing, and the epoch since which no member took their place. Others have only
    /// what their newest process has.
    kept: Mutex<HashMap<String, u64>>,
    /// The revision of a file's last claim, where that matters.
    claimed: Mutex<HashMap<FileKey, u64>>,
    /// Claims that are put once a caller waits for them, with their revisions.
    comes: Mutex<HashMap<FileKey, u64>>,
    /// The ends of claims of which the member has heard, but no mount was told.
    ends: Mutex<HashMap<FileKey, Ends>>,
    /// The revision of the registry.
    revision: AtomicU64,
    /// Called right after a member has vouched for a file.
    vouched: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    asked: Mutex<Vec<Question>>,
    /// Called between a home's answer and its arrival at the asker.
    answered: Mutex<Option<Arc<Answered>>>,
    fates: Mutex<Option<Arc<Fates>>>,
    /// Directories where files are opened without asking. In others members make files.
    granted: Mutex<HashSet<FileKey>>,
    /// Files whose homes only those members know that have asked.
    unheard: Mutex<HashSet<FileKey>>,
    /// Members that hear of another's claim only by asking for the file.
    deaf: Mutex<HashSet<String>>,
    /// Directories that files were to be made in.
    made_in: Mutex<Vec<FileKey>>,
    /// Called, and waited for, when a mount is to make files in a directory.
    makes: Mutex<Option<Arc<Makes>>>,
    /// Members whose leases have run out.
    asleep: Mutex<HashSet<String>>,
    /// Whether granted renames of directories have lost their gate when they are to be made.
    ungated: AtomicBool,
    /// Gates of directories' renames that stand.
    gates: AtomicU64,
    /// The errors of members that may not serve.
    unfit: Mutex<HashMap<String, i32>>,
}

impl Net {
    fn count(&self, is_one: impl Fn(&Question) -> bool) -> usize {
        lock(&self.asked).iter().filter(|asked| is_one(asked)).count()
    }

    fn fated(&self, fates: impl Fn(&str, &Question) -> Fate + Send + Sync + 'static) {
        *lock(&self.fates) = Some(Arc::new(fates));
    }

    fn process(&self, member: &str) -> Option<Process> {
        let epoch = lock(&self.epochs).get(member).copied()?;
        let kept = lock(&self.kept).get(member).copied();
        let boot = kept.map_or(epoch.to_string(), |_| "kept".into());
        Some(Process { epoch, boot, line: kept.unwrap_or(epoch) })
    }

    /// Returns the ends of a file's claims for a member that hears now of an end at revision `at`.
    fn ended(&self, at: u64) -> Ends {
        let names: Vec<String> = lock(&self.epochs).keys().cloned().collect();
        let of = |name: String| self.process(&name).map(|process| (name, process));
        let processes = Arc::new(names.into_iter().filter_map(of).collect());
        let mut ends = Ends::default();
        ends.add(End { at: Revision(at), processes });
        ends
    }

    fn is_held(&self, file: FileKey) -> bool {
        lock(&self.held).get(&file).is_some_and(|held| *held > 0)
    }
}

struct Held(Arc<Net>, FileKey);

impl Drop for Held {
    fn drop(&mut self) {
        *lock(&self.0.held).get_mut(&self.1).expect("it was held") -= 1;
    }
}

struct Gated(Arc<Net>);

impl Drop for Gated {
    fn drop(&mut self) {
        self.0.gates.fetch_sub(1, SeqCst);
    }
}

/// One member, which is played.
struct Played {
    net: Arc<Net>,
    name: String,
}

impl Played {
    fn hold(&self, file: FileKey) -> Guard {
        lock(&self.net.homes).insert(file, self.name.clone());
        *lock(&self.net.held).entry(file).or_default() += 1;
        Box::new(Held(self.net.clone(), file))
    }
}

impl Played {
    /// The holder of a file, which this member may not know.
    fn true_holder(&self, file: FileKey) -> Holder {
        match lock(&self.net.homes).get(&file) {
            Some(home) if *home == self.name => Holder::Here,
            Some(home) => Holder::There(home.clone()),
            None => Holder::Nobody,
        }
    }
}

impl Cluster for Played {
    fn holder(&self, file: FileKey) -> Holder {
        let is_deaf = lock(&self.net.deaf).contains(&self.name);
        let is_unheard = lock(&self.net.unheard).contains(&file) || is_deaf;
        match self.true_holder(file) {
            Holder::There(_) if is_unheard => Holder::Nobody,
            holder => holder,
        }
    }

    fn vouches(&self, file: FileKey) -> Option<Revision> {
        let claimed = lock(&self.net.claimed).get(&file).copied();
        let as_of = (self.holder(file) == Holder::Here).then(|| Revision(claimed.unwrap_or(1)));
        let vouched = lock(&self.net.vouched).clone();
        vouched.into_iter().for_each(|vouched| vouched());
        as_of
    }

    fn is_written(&self, file: FileKey) -> bool {
        self.holder(file) != Holder::Here || self.net.is_held(file)
    }

    fn open(&self, file: FileKey, dir: FileKey, _: &Path, how: Access) -> Result<Place> {
        if !lock(&self.net.granted).contains(&dir) {
            lock(&self.net.unheard).remove(&file);
        }
        let is_unheard = lock(&self.net.unheard).contains(&file);
        if how == Access::Serve
            && let Some(at) = lock(&self.net.comes).remove(&file)
        {
            lock(&self.net.claimed).insert(file, at);
        }
        let holder = if is_unheard { self.holder(file) } else { self.true_holder(file) };
        Ok(match holder {
            Holder::There(home) | Holder::Dead(home) => Place::There(home),
            _ => Place::Here(how.writes().then(|| self.hold(file))),
        })
    }

    fn needs_dir(&self) -> bool {
        !lock(&self.net.granted).is_empty()
    }

    fn create(&self, dir: FileKey, _: &Path) -> Result<Guard> {
        lock(&self.net.made_in).push(dir);
        let makes = lock(&self.net.makes).clone();
        makes.into_iter().for_each(|makes| makes(&self.name));
        Ok(Box::new(()))
    }

    fn created(&self, file: FileKey, _: FileKey, _: &Path) -> Guard {
        self.hold(file)
    }

    fn change(&self, files: &[(FileKey, FileKey)], below: Option<&Path>) -> Result<Place> {
        Ok(match files.first().map(|(file, _)| self.holder(*file)) {
            None if below.is_some() => {
                self.net.gates.fetch_add(1, SeqCst);
                Place::Here(Some(Box::new(Gated(self.net.clone()))))
            }
            Some(Holder::There(home)) => Place::There(home),
            _ => Place::Here(Some(Box::new(()))),
        })
    }

    fn may_rename(&self, _: &Guard) -> bool {
        !self.net.ungated.load(SeqCst)
    }

    fn replace(
        &self,
        file: (FileKey, FileKey),
        over: (FileKey, FileKey),
        _: &Path,
    ) -> Result<(Place, Option<String>)> {
        Ok(match (self.holder(file.0), self.holder(over.0)) {
            (Holder::There(home), _) => (Place::There(home), None),
            (_, Holder::There(home)) => (Place::Here(None), Some(home)),
            _ => (Place::Here(None), None),
        })
    }

    fn ask(
        &self,
        home: &str,
        question: &Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        lock(&self.net.asked).push(question.clone());
        let fates = lock(&self.net.fates).clone();
        let fate = fates.map_or(Fate::Answered, |fates| fates(home, question));
        let silent = || Error::new(Kind::TimedOut, format!("member {home} was not reached"));
        let mount = lock(&self.net.mounts).get(home).and_then(Weak::upgrade);
        let Some(mount) = mount.filter(|_| fate != Fate::Lost) else { return Err(silent()) };
        let epoch = self.epoch(&self.name).unwrap_or(0);
        let (from, asked, bytes) = (self.name.clone(), question.clone(), bytes.to_vec());
        let (tells, told) = channel();
        let question = asked.clone();
        std::thread::spawn(move || {
            let mut out = Vec::new();
            let answer = mount.answer((&from, epoch), question, &bytes, &mut out);
            let _ = tells.send((answer, out)); // Perhaps nobody waits any more.
        });
        let (answer, bytes) = told.recv_timeout(PATIENCE).map_err(|_| silent())?;
        let answered = lock(&self.net.answered).clone();
        answered.into_iter().for_each(|answered| answered(&asked));
        if fate == Fate::Broken {
            return Err(Error::new(Kind::Unavailable, "the connection broke"));
        }
        *out = bytes;
        match answer {
            Answer::Refused(Refusal::NotHere | Refusal::Epoch(_)) => {
                Err(Error::os(libc::ESTALE, "not there"))
            }
            Answer::Refused(Refusal::Handle) => Err(Error::new(Kind::Unavailable, "begun anew")),
            Answer::Refused(Refusal::Errno(errno, text)) => Err(Error::os(errno, text)),
            answer => Ok(answer),
        }
    }

    fn wait_fit(&self) -> Result<()> {
        let why = lock(&self.net.unfit).get(&self.name).copied();
        why.map_or(Ok(()), |errno| Err(Error::os(errno, "it may not serve")))
    }

    fn is_fit(&self) -> bool {
        self.wait_fit().is_ok()
    }

    fn has_heirs(&self, _: &str) -> bool {
        false
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn epoch(&self, member: &str) -> Option<u64> {
        lock(&self.net.epochs).get(member).copied()
    }

    fn process(&self, member: &str) -> Option<Process> {
        self.net.process(member)
    }

    fn revision(&self) -> Revision {
        Revision(self.net.revision.load(SeqCst))
    }

    fn ends(&self, file: FileKey) -> Option<Ends> {
        lock(&self.net.ends).get(&file).cloned()
    }

    fn taken_life(&self) -> Option<u64> {
        None
    }

    fn taken_from(&self, _: FileKey) -> Vec<TakenFrom> {
        Vec::new()
    }

    fn others(&self) -> Vec<String> {
        let all = lock(&self.net.epochs);
        let asleep = lock(&self.net.asleep);
        let lives = |name: &&String| **name != self.name && !asleep.contains(*name);
        all.keys().filter(lives).cloned().collect()
    }

    fn held(&self) -> Vec<FileKey> {
        Vec::new()
    }
}

struct NoControls;

impl ControlDir for NoControls {
    fn entries(&self) -> Vec<ControlEntry> {
        Vec::new()
    }

    fn read(&self, _: &str) -> Vec<u8> {
        Vec::new()
    }

    fn write(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Called when pages are dropped: from an offset on, so many bytes.
type Drops = Box<dyn FnMut(u64, u64) + Send>;

/// A kernel that is told of changes, and does then what a test wants.
#[derive(Default)]
struct Kernel {
    drops_pages: Mutex<Option<Drops>>,
}

impl Notify for Kernel {
    fn attributes(&self, _: u64) {}

    fn end(&self, _: u64, _: u64, _: u8) {}

    fn pages(&self, _: u64, offset: u64, len: u64) {
        if let Some(drops) = &mut *lock(&self.drops_pages) {
            drops(offset, len);
        }
    }
}

/// One mount.
struct Mount {
    vfs: Arc<Vfs>,
    kernel: Arc<Kernel>,
}

impl Mount {
    fn lookup(&self, name: &str) -> Result<Entry> {
        self.lookup_in(ROOT, name)
    }

    fn lookup_in(&self, dir: u64, name: &str) -> Result<Entry> {
        match self.vfs.lookup(dir, OsStr::new(name), Origin::default())? {
            Looked::There(entry) => Ok(entry),
            Looked::Nowhere(_) => Err(Error::os(libc::ENOENT, "a name")),
            Looked::Bare => Err(Error::os(libc::EIO, "a name without attributes")),
        }
    }

    fn open(&self, name: &str, flags: i32) -> Result<Opened> {
        self.vfs.open(self.lookup(name)?.id, flags.into(), Origin::default())
    }

    fn opened(&self, name: &str) -> u64 {
        self.open(name, libc::O_RDWR).expect("it can be opened").handle
    }

    fn create(&self, name: &str) -> u64 {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let new = New { mode: 0o644, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() };
        let created =
            self.vfs.create(ROOT, OsStr::new(name), new, libc::O_RDWR.into(), Origin::default());
        created.expect("no such file yet").1.handle
    }

    fn write(&self, handle: u64, offset: u64, text: &str) -> Result<()> {
        self.vfs.write(handle, offset, text.as_bytes(), Manner::default())
    }

    fn read(&self, handle: u64) -> String {
        let mut buf = vec![0; 4096];
        let read = self.vfs.read(handle, 0, &mut buf).expect("it can be read");
        String::from_utf8_lossy(read.bytes(&buf)).into_owned()
    }

    fn key(&self, name: &str) -> FileKey {
        self.vfs.engine.names.ask(|b| b.stat(Path::new(name))).expect("it is there").key
    }
}

struct Bed {
    root: PathBuf,
    net: Arc<Net>,
    mounts: Vec<Mount>,
}

impl Bed {
    /// Mounts `a`, `b` and so on.
    fn new(count: usize) -> Bed {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, SeqCst));
        let root = std::env::temp_dir().join(format!("forebay-far-{pid}-{number}"));
        std::fs::create_dir_all(root.join("backing")).expect("the directory is writable");
        let net = Arc::new(Net::default());
        let mounts = ["a", "b", "c"].into_iter().take(count);
        let mounts = mounts.map(|name| Bed::mount(&root, &net, name)).collect();
        Bed { root, net, mounts }
    }

    fn mount(root: &Path, net: &Arc<Net>, name: &str) -> Mount {
        let vfs = Arc::new(Bed::vfs(root, name, Passthrough::Off));
        let kernel = Arc::new(Kernel::default());
        vfs.set_notify(kernel.clone());
        vfs.set_cluster(Box::new(Played { net: net.clone(), name: name.into() }));
        lock(&net.epochs).insert(name.into(), 1);
        lock(&net.mounts).insert(name.into(), Arc::downgrade(&vfs));
        Mount { vfs, kernel }
    }

    /// A vfs without members yet.
    fn vfs(root: &Path, name: &str, passthrough: Passthrough) -> Vfs {
        let tier = root.join(name);
        std::fs::create_dir_all(&tier).expect("the directory is writable");
        Bed::vfs_on(root, Arc::new(DirMedia::open(&tier).expect("it is there")), passthrough)
    }

    fn vfs_on(root: &Path, media: Arc<dyn Media>, passthrough: Passthrough) -> Vfs {
        Bed::vfs_between(media, Bed::store(root), passthrough)
    }

    fn store(root: &Path) -> Arc<dyn BackingStore> {
        Arc::new(DirStore::open(&root.join("backing")).expect("it is there"))
    }

    fn vfs_between(
        media: Arc<dyn Media>,
        backing: Arc<dyn BackingStore>,
        passthrough: Passthrough,
    ) -> Vfs {
        let tunables = Tunables { preset: Preset::Hold, ..Tunables::default() };
        let tier = Tier::on(media).expect("empty");
        let engine = Engine::start(tier, backing, Config::default(), tunables);
        let control = Arc::new(NoControls);
        let times = Times { entry: Duration::ZERO, attr: Duration::ZERO };
        let vfs = Vfs::new(engine.expect("new"), control, passthrough, times);
        vfs.expect("the store is there")
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for mount in &self.mounts {
            mount.vfs.close_all();
            mount.vfs.engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
        }
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
