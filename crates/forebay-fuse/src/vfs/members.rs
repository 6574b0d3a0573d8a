//! Questions to the other members of the store, before this mount opens, makes or changes a file.
//!
//! Without other members the answer is always that this mount does it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_backing::{Attr, Error, FileKey, FileKind, RenameMode, Result};
use forebay_base::lock::{Condvar, Mutex, Rank, asks_a_member};
use forebay_cluster::core::{Access, Holder, Revision, SOMEWHERE};
use forebay_cluster::front::{Cluster, Guard, Place};
use forebay_cluster::words::{Answer, Attrs, By, NameChange, Question};
use forebay_engine::Named;
use forebay_engine::rules::Origin;
use hashbrown::{HashMap, HashSet};

use super::ahead::Fetching;
use super::blanks::Blanks;
use super::copies::Succession;
use super::doubts::{Again, Asked, Doubts, Due};
use super::fence::{Fences, Numbers};
use super::homes::{FORESEEN, Looks, moved, odd, with_home, words_of};
use super::laundry::Laundry;
use super::left::Left;
use super::look::Purpose;
use super::serve::Guest;
use super::unsynced::{Life, Unsynced};
use super::{Entry, Looked, Vfs};
use crate::control::Control;
use crate::nodes::Side;

/// A home that an open has found is believed for this long without its claim: the claim is seen by then.
const BELIEVED: Duration = Duration::from_secs(2);

/// A program that got ESTALE looks the name up again within this time.
const LOOKS_AGAIN: Duration = Duration::from_secs(2);

/// How long a change of a file's names waits for another one to end.
const NAMING: Duration = Duration::from_secs(2);

/// From this number on, unused append locks are dropped, and homes that are not believed any more.
const KEPT: usize = 64;

pub struct Members {
    pub(super) cluster: OnceLock<Arc<dyn Cluster>>,
    pub(super) fetching: Arc<Fetching>,
    pub(super) unsynced: Unsynced,
    /// Handles at homes that this mount does not use any more.
    pub(super) left: Arc<Left>,
    pub(super) laundry: Laundry,
    /// The blanks of files that other members serve.
    pub(super) blanks: Blanks,
    pub(super) fences: Fences,
    pub(super) doubts: Doubts,
    /// The numbers of changes that homes are asked for.
    pub(super) numbers: Numbers,
    /// Homes that opens have found.
    heard: Mutex<HashMap<FileKey, Heard>>,
    foreseen: Mutex<HashMap<FileKey, (Attrs, Instant)>>,
    /// Threads of programs that got ESTALE, and when.
    told: Mutex<HashMap<u32, Instant>>,
    /// The handles that programs of other members have here.
    pub(super) guests: Mutex<HashMap<u64, Arc<Guest>>>,
    pub(super) last_guest: AtomicU64,
    /// Locks that let one append to a file at a time.
    places: Mutex<HashMap<FileKey, Arc<Mutex<()>>>>,
    /// Files whose names are being changed, by programs here or of other members.
    naming: (Mutex<HashSet<FileKey>>, Condvar),
}

impl Default for Members {
    fn default() -> Members {
        Members {
            cluster: OnceLock::new(),
            fetching: Arc::default(),
            unsynced: Unsynced::default(),
            left: Arc::default(),
            laundry: Laundry::default(),
            blanks: Blanks::default(),
            fences: Fences::default(),
            doubts: Doubts::default(),
            numbers: Numbers::default(),
            heard: Mutex::new(Rank::Members, HashMap::new()),
            foreseen: Mutex::new(Rank::Members, HashMap::new()),
            told: Mutex::new(Rank::Members, HashMap::new()),
            guests: Mutex::new(Rank::Members, HashMap::new()),
            last_guest: AtomicU64::new(0),
            places: Mutex::new(Rank::Members, HashMap::new()),
            naming: (Mutex::new(Rank::Members, HashSet::new()), Condvar::new()),
        }
    }
}

/// A home that an open has found.
struct Heard {
    home: String,
    /// The home had the file by then.
    as_of: Revision,
    at: Instant,
}

/// A change that may be another member's to make.
pub(super) enum Settled {
    /// The change is made here, until the guard is dropped.
    Here(Option<Guard>),
    /// The file's home has made the change.
    Done(Option<Attrs>),
}

/// The member that makes a rename on the store: the home of the replaced file.
pub(super) struct Through {
    pub home: String,
    /// The member that has asked for the rename, if it is another one.
    pub by: Option<By>,
}

/// The right to change names of these files: no other thread here does so until it is dropped.
pub(super) struct Naming<'a> {
    members: &'a Members,
    files: Vec<FileKey>,
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        let (busy, ended) = &self.members.naming;
        let mut busy = busy.lock();
        self.files.iter().for_each(|file| _ = busy.remove(file));
        ended.notify_all();
    }
}

impl Vfs {
    /// Gives the vfs the members of its store; to be called before requests are served.
    pub fn set_cluster(&self, cluster: Box<dyn Cluster>) {
        let _ = self.members.cluster.set(cluster.into());
    }

    /// Whether other members share the store.
    pub fn has_members(&self) -> bool {
        self.cluster().is_some()
    }

    pub fn cluster(&self) -> Option<&dyn Cluster> {
        self.members.cluster.get().map(|cluster| &**cluster)
    }

    pub(super) fn is_far(&self, id: u64) -> bool {
        self.cluster().is_some() && self.nodes.is_far(id)
    }

    /// The other member that has the newest bytes of a file, as far as is known without asking.
    pub(super) fn home_of(&self, key: FileKey) -> Option<String> {
        match self.cluster()?.holder(key) {
            Holder::There(home) => Some(home),
            Holder::Here | Holder::Dead(_) => None,
            Holder::Nobody => {
                let mut heard = self.members.heard.lock();
                let told = heard.get(&key)?;
                if told.at.elapsed() < BELIEVED {
                    return Some(told.home.clone());
                }
                heard.remove(&key);
                None
            }
        }
    }

    /// Notes a file's home, until its claim is seen; `None` forgets the home. The home had the file by the revision: a
    /// home as of an older revision does not replace one as of a newer.
    pub(super) fn heard(&self, key: FileKey, home: Option<(&str, Revision)>) {
        let mut heard = self.members.heard.lock();
        let Some((home, as_of)) = home else { return drop(heard.remove(&key)) };
        if heard.len() >= KEPT {
            heard.retain(|_, told| told.at.elapsed() < BELIEVED);
        }
        let knows_more = |told: &Heard| told.as_of > as_of && told.at.elapsed() < BELIEVED;
        if !heard.get(&key).is_some_and(knows_more) {
            heard.insert(key, Heard { home: home.to_string(), as_of, at: Instant::now() });
        }
    }

    /// Forgets a file's home that had the file before `given`: all claims from before that revision have ended.
    pub(super) fn forget_home(&self, key: FileKey, given: Revision) {
        let mut heard = self.members.heard.lock();
        if heard.get(&key).is_some_and(|told| told.as_of < given) {
            heard.remove(&key);
        }
    }

    /// Notes where a program here has opened the file: a handle that was opened before must not go on elsewhere.
    pub(super) fn opened_at(&self, key: FileKey, home: Option<&Life>) {
        let is_known = self.cluster().is_some_and(|cluster| cluster.holder(key) != Holder::Nobody);
        let home = home.filter(|_| !is_known);
        self.heard(key, home.map(|life| (life.home.as_str(), life.as_of)));
    }

    /// The directory and the path of a file, for its claim. A file that has lost its name here has neither: it may
    /// have other names, and may be open elsewhere.
    pub(super) fn claimable(&self, id: u64, key: FileKey) -> (FileKey, PathBuf) {
        let placed =
            self.nodes.placed(id).filter(|(file, _)| *file == key).zip(self.nodes.path(id));
        placed.map_or((SOMEWHERE, PathBuf::new()), |((_, dir), path)| (dir, path))
    }

    /// To be called before a file is opened here. The guard holds the claim that a writer needs.
    ///
    /// # Errors
    ///
    /// ESTALE if another member serves the file: the kernel looks the name up again, and finds the file there.
    pub(super) fn claim(&self, id: u64, how: Access) -> Result<Option<Guard>> {
        if self.cluster().is_none() {
            return Ok(None);
        }
        let Some(key) = self.nodes.file_key(id) else { return Ok(None) };
        let (dir, path) = self.claimable(id, key);
        // A reader of a file that has lost its name here reads the file that it has.
        if dir == SOMEWHERE && how == Access::Read {
            return Ok(None);
        }
        match self.open_at(key, (self.as_found(dir, &path), &path), how)? {
            Place::Here(guard) => Ok(guard),
            Place::There(_) => Err(self.replaced(&path)),
        }
    }

    /// Asks where a file that was found in a directory by a path is to be opened, and remembers the answer.
    pub(super) fn open_at(
        &self,
        key: FileKey,
        (dir, path): (FileKey, &Path),
        how: Access,
    ) -> Result<Place> {
        let cluster = self.cluster().ok_or_else(moved)?;
        // Taken before the question: the home that is named still holds the file after this revision.
        let as_of = cluster.revision();
        let place = cluster.open(key, dir, path, how)?;
        match &place {
            Place::Here(_) => self.heard(key, None),
            Place::There(home) => self.heard(key, Some((home, as_of))),
        }
        Ok(place)
    }

    /// The one member that has claimed all these files, as far as is known: it is asked before the registry. It
    /// vouches for the files, or refuses.
    pub(super) fn named_home(&self, files: &[FileKey]) -> Option<String> {
        let home = |file: &FileKey| match self.cluster()?.holder(*file) {
            Holder::There(home) => Some(home),
            Holder::Here | Holder::Dead(_) | Holder::Nobody => None,
        };
        let mut homes = files.iter().map(home);
        let first = homes.next()??;
        homes.all(|home| home.as_ref() == Some(&first)).then_some(first)
    }

    /// The directory by which a file at `path` is opened. Where the registry may not be asked, and others make files,
    /// the store is asked whether the directory is still there: others may make files in another in its place.
    pub(super) fn as_found(&self, dir: FileKey, path: &Path) -> FileKey {
        let is_needed = self.cluster().is_some_and(|cluster| cluster.needs_dir());
        match is_needed && !self.dir_now(path).is_ok_and(|now| now == dir) {
            true => SOMEWHERE,
            false => dir,
        }
    }

    /// The directory of a path, as the store has it.
    fn dir_now(&self, path: &Path) -> Result<FileKey> {
        let dir = path.parent().unwrap_or(Path::new(""));
        Ok(self.engine.names.ask(|b| b.stat(dir))?.key)
    }

    /// The answer for a name that may have another file by now than the kernel knows, or a file where the kernel
    /// knows none.
    pub(super) fn replaced(&self, path: &Path) -> Error {
        self.foresight.answers.doubt(path);
        Error::os(libc::ESTALE, "the file was replaced")
    }

    /// Notes that a thread of a program gets ESTALE: the kernel has it look the name up again, but once. To be called
    /// before the answer.
    pub fn told(&self, thread: u32) {
        let mut told = self.members.told.lock();
        told.retain(|_, at| at.elapsed() < LOOKS_AGAIN);
        told.insert(thread, Instant::now());
    }

    /// The home of a file that was looked up. A program that looks a name up again has to find the file where it
    /// will be opened: at its home, or here. A file without a claim is claimed here for that, and stays here for
    /// [`SETTLE`](forebay_cluster::core::SETTLE).
    fn home_of_found(
        &self,
        parent: u64,
        name: &OsStr,
        key: FileKey,
        who: Origin,
    ) -> Option<String> {
        let home = self.home_of(key);
        if home.is_some() || self.is_held(key) {
            return home;
        }
        self.members.told.lock().remove(&who.pid).filter(|at| at.elapsed() < LOOKS_AGAIN)?;
        let dir = self.nodes.key(parent)?;
        let path = self.path(parent).ok()?.join(name);
        let how = match self.engine.config().read_only {
            true => Access::Read,
            false => Access::Write,
        };
        match self.open_at(key, (self.as_found(dir, &path), &path), how).ok()? {
            Place::There(home) => Some(home),
            Place::Here(_) => None,
        }
    }

    /// To be called before names or attributes of files are changed; `below` is a directory that is renamed. If
    /// another member is the files' home, that member makes the `change`.
    pub(super) fn settle(
        &self,
        files: &[(FileKey, FileKey)],
        below: Option<&Path>,
        change: impl Fn() -> NameChange,
    ) -> Result<Settled> {
        let Some(cluster) = self.cluster() else { return Ok(Settled::Here(None)) };
        if files.is_empty() && below.is_none() {
            return Ok(Settled::Here(None));
        }
        let place = || Ok((cluster.change(files, below)?, None));
        let keys: Vec<FileKey> = files.iter().map(|(file, _)| *file).collect();
        let named = self.named_home(&keys).filter(|_| below.is_none());
        Ok(self.settled(named, place, change)?.0)
    }

    /// To be called before a file is renamed over another, at `at`; each is given with its directory. Returns the
    /// home of the replaced file if that home is to make the rename on the store.
    pub(super) fn settle_replace(
        &self,
        file: (FileKey, FileKey),
        over: (FileKey, FileKey),
        at: &Path,
        change: impl Fn() -> NameChange,
    ) -> Result<(Settled, Option<String>)> {
        let Some(cluster) = self.cluster() else { return Ok((Settled::Here(None), None)) };
        self.settled(None, || cluster.replace(file, over, at), change)
    }

    /// Settles a change. The home that is `named` is asked before the registry.
    fn settled(
        &self,
        mut named: Option<String>,
        place: impl Fn() -> Result<(Place, Option<String>)>,
        change: impl Fn() -> NameChange,
    ) -> Result<(Settled, Option<String>)> {
        self.engine.files.refuse_read_only()?;
        let mut looks = Looks::begin();
        loop {
            if let Some(home) = named.take() {
                match self.ask_change(&home, change()) {
                    Err(error) if error.is(libc::ESTALE) => {}
                    done => return Ok((Settled::Done(done?), None)),
                }
            }
            let home = match place()? {
                (Place::Here(guard), through) => return Ok((Settled::Here(guard), through)),
                (Place::There(home), _) => home,
            };
            match self.ask_change(&home, change()) {
                Err(error) if error.is(libc::ESTALE) && looks.again() => {}
                done => return Ok((Settled::Done(done?), None)),
            }
        }
    }

    /// Waits until no other thread changes names of these files, and keeps others from it. The kernel lets one
    /// program here change a directory at a time, but changes of other members come past it.
    ///
    /// # Errors
    ///
    /// ESTALE if others take long: the caller looks again.
    pub(super) fn alone_with(
        &self,
        files: impl IntoIterator<Item = FileKey>,
    ) -> Result<Naming<'_>> {
        let files: Vec<FileKey> = match self.cluster() {
            Some(_) => files.into_iter().collect(),
            None => Vec::new(),
        };
        let (busy, ended) = &self.members.naming;
        let is_busy = |busy: &mut HashSet<FileKey>| files.iter().any(|file| busy.contains(file));
        let (mut busy, is_late) = ended.wait_timeout_while(busy.lock(), NAMING, is_busy);
        if is_late {
            return Err(moved());
        }
        busy.extend(&files);
        drop(busy);
        Ok(Naming { members: &self.members, files })
    }

    /// To be called before a file's name at `from` moves to `to` (and with `exchange` the other way round). In
    /// another directory this is as if the file were made there, until the guards are dropped: a member that opens a
    /// file there asks the one that has just made it, while its claim may not have been heard of.
    ///
    /// # Errors
    ///
    /// ESTALE if one of the directories has another in its place: the caller looks again.
    pub(super) fn entering(&self, from: &Path, to: &Path, exchange: bool) -> Result<Vec<Guard>> {
        let Some(cluster) = self.cluster() else { return Ok(Vec::new()) };
        let dirs = || Ok((self.dir_now(from)?, self.dir_now(to)?));
        let (old, new) = dirs()?;
        if old == new {
            return Ok(Vec::new());
        }
        let back = exchange.then(|| cluster.create(old, from)).transpose()?;
        let entering = [cluster.create(new, to)?].into_iter().chain(back).collect();
        match dirs()? == (old, new) {
            true => Ok(entering),
            false => Err(moved()),
        }
    }

    /// Renames a file on the store, or has the home of the replaced file do so.
    pub(super) fn rename_on_store(
        &self,
        from: Named<'_>,
        to: &Path,
        over: Option<Named<'_>>,
        mode: RenameMode,
        through: Option<Through>,
        gate: Option<&Settled>,
    ) -> Result<()> {
        let rename = |mode| match self.may_rename(gate) {
            true => self.engine.names.alter(|b| b.rename(from.path, to, mode)),
            false => Err(moved()),
        };
        let is_free = over.is_none() && mode == RenameMode::Replace && self.cluster().is_some();
        let make = || match through.zip(over) {
            Some((through, over)) => self.rename_through(through, from, to, over.key),
            // Another member may take the name at this moment.
            None if is_free && !from.is_dir => match rename(RenameMode::NoReplace) {
                Err(error) if error.is(libc::EEXIST) => Err(moved()),
                // Some network file systems cannot refuse to replace.
                Err(error) if error.is(libc::EINVAL) => rename(mode),
                done => done,
            },
            None => rename(mode),
        };
        self.engine.verbs.rename_by(from, to, over, mode, make)
    }

    /// Whether a directory's rename may still be made: waits since its grant may have outlasted this member's lease.
    fn may_rename(&self, gate: Option<&Settled>) -> bool {
        match (self.cluster(), gate) {
            (Some(cluster), Some(Settled::Here(Some(gate)))) => cluster.may_rename(gate),
            _ => true,
        }
    }

    fn rename_through(
        &self,
        through: Through,
        from: Named<'_>,
        to: &Path,
        over: FileKey,
    ) -> Result<()> {
        let (file, old, new) = (from.key, from.path.to_path_buf(), to.to_path_buf());
        let change = NameChange::Replace { file, from: old, to: new, over, by: through.by };
        match self.ask_change(&through.home, change) {
            Err(error) if !error.is(libc::ESTALE) => {
                // The rename may have been made, and may yet be.
                let found = self.engine.names.ask(|b| b.stat(to));
                if found.is_ok_and(|attr| attr.key == file) {
                    return Ok(());
                }
                self.engine.verbs.learn_names(file, [to.to_path_buf()]);
                // The member that asked for this may change the replaced file as soon as it hears of the failure.
                let _ = self.settle_doubts(over, Due::OnBehalf(""));
                Err(error)
            }
            done => done.map(drop),
        }
    }

    pub(super) fn ask_change(&self, home: &str, change: NameChange) -> Result<Option<Attrs>> {
        let _stirs = match change {
            NameChange::SetAttr { file, .. } => Some(self.members.fetching.stirring(file)),
            _ => None,
        };
        let resized = match change {
            NameChange::SetAttr { file, size: Some(_), .. } => {
                Some((self.life_of(home, Revision(0))?, self.members.unsynced.open(file)))
            }
            _ => None,
        };
        let asking = resized.as_ref().map(|(by, account)| (by, account.asks()));
        let question = |number| Question::Name { number, change: change.clone() };
        let files = change.files();
        let asked = match change {
            NameChange::Replace { .. } => Asked::OnBehalf,
            NameChange::Rename { .. } if files.len() > 1 => Asked::RenameOver,
            _ => Asked::OwnFile,
        };
        let answer = self.ask_to_change(home, (&files, asked), Again::No, question, &[]);
        // Also after a failure: the change may have been made.
        change.paths().for_each(|path| self.foresight.answers.doubt(path));
        self.foresight.answers.doubt_file(change.file());
        if let (Some((by, asking)), Ok(Answer::Changed { as_of, .. })) = (&asking, &answer) {
            self.owes(asking, &Life { as_of: *as_of, ..(*by).clone() });
        }
        drop(asking);
        if let Some((_, account)) = resized {
            self.members.unsynced.close(&account);
        }
        match answer? {
            Answer::Changed { attrs, .. } => Ok(attrs),
            other => Err(odd(&other)),
        }
    }

    pub(super) fn ask(
        &self,
        home: &str,
        question: &Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        let cluster = self.cluster().ok_or_else(moved)?;
        asks_a_member();
        cluster.ask(home, question, bytes, out)
    }

    /// The result of a lookup that has found a file. In a listing a file that is served elsewhere has attributes
    /// only if they were asked for before.
    pub(super) fn found(
        &self,
        parent: u64,
        name: &OsStr,
        (attr, as_of): (Attr, Instant),
        purpose: Purpose,
    ) -> Result<Looked> {
        let home = match (attr.kind, purpose) {
            (FileKind::File, Purpose::Lookup(who)) => {
                self.home_of_found(parent, name, attr.key, who)
            }
            (FileKind::File, Purpose::Listing) => self.home_of(attr.key),
            _ => None,
        };
        let is_near = || attr.kind != FileKind::File || !self.has_older_open(attr.key);
        if home.is_none() && (self.cluster().is_none() || is_near()) {
            return Ok(Looked::There(self.entry(parent, name, attr, as_of)));
        }
        let asked = match purpose {
            _ if home.is_none() => Some(words_of(&attr)),
            Purpose::Listing => {
                let foreseen = self.members.foreseen.lock().remove(&attr.key);
                foreseen.filter(|(_, at)| at.elapsed() < FORESEEN).map(|(attrs, _)| attrs)
            }
            Purpose::Lookup(_) => Some(self.attrs_at_home(attr.key)?.unwrap_or(words_of(&attr))),
        };
        let Some(asked) = asked else { return Ok(Looked::Bare) };
        let attr = with_home(attr, &asked);
        let id = self.nodes.remember_at(Side::Far, parent, name, &attr, 1);
        Ok(Looked::There(Entry { id, attr, as_of }))
    }

    /// The attributes of a file from the other member that serves it by then. `None` if none does.
    pub(super) fn attrs_at_home(&self, key: FileKey) -> Result<Option<Attrs>> {
        let succession = Succession::default();
        while let Some(home) = self.home_of(key) {
            match self.attrs_there(&home, key) {
                Err(error) if self.awaits_heir(&succession, &home, &error) => {}
                attrs => return attrs,
            }
        }
        Ok(None)
    }

    /// The attributes of a file at a home. `None` if it does not hold the file any more: the store's are right.
    pub(super) fn attrs_there(&self, home: &str, key: FileKey) -> Result<Option<Attrs>> {
        match self.ask(home, &Question::Attrs { files: vec![key] }, &[], &mut Vec::new()) {
            Ok(Answer::Attrs(mut attrs)) if attrs.len() == 1 => {
                Ok(attrs.remove(0).filter(|attrs| attrs.file == key))
            }
            Ok(other) => Err(odd(&other)),
            Err(error) if error.is(libc::ESTALE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// To be called before a directory is listed with attributes. Asks each home once for the attributes of its
    /// files among the known names.
    pub fn foresee<'a>(&self, dir: u64, names: impl Iterator<Item = &'a OsStr>) {
        if Control::owns(dir) {
            return;
        }
        let names: Vec<&OsStr> = names.filter(|name| *name != "." && *name != "..").collect();
        if let Some(path) = self.nodes.path(dir) {
            self.foresight.all(&path, names.iter().copied());
        }
        if self.cluster().is_none() {
            return;
        }
        let names = names.into_iter();
        let mut homes: HashMap<String, Vec<FileKey>> = HashMap::new();
        for child in names.filter_map(|name| self.nodes.child(dir, name)) {
            if let Some(home) = (!child.is_dir).then(|| self.home_of(child.key)).flatten() {
                homes.entry(home).or_default().push(child.key);
            }
        }
        let now = Instant::now();
        self.members.foreseen.lock().retain(|_, (_, at)| now - *at < FORESEEN);
        for (home, files) in homes {
            let question = Question::Attrs { files };
            let answer = self.ask(&home, &question, &[], &mut Vec::new());
            let (Ok(Answer::Attrs(attrs)), now) = (answer, Instant::now()) else { continue };
            let known = attrs.into_iter().flatten().map(|attrs| (attrs.file, (attrs, now)));
            self.members.foreseen.lock().extend(known);
        }
    }

    /// The lock that lets one append to the file at a time, and no writer begin past the daemon meanwhile.
    pub(super) fn placing(&self, key: FileKey) -> Arc<Mutex<()>> {
        let mut places = self.members.places.lock();
        if places.len() >= KEPT {
            places.retain(|_, place| Arc::strong_count(place) > 1);
        }
        let place = || Arc::new(Mutex::new(Rank::Append, ()));
        places.entry(key).or_insert_with(place).clone()
    }

    /// Has the kernel know where a file ends that has grown for another member. The kernel has its own end of the file,
    /// and fills a page that it writes with zeros behind that (`iomap_writeback_handle_eof`, Linux 6.16), also over
    /// bytes that it has just read there. It would write these zeros once it has heard of the new end.
    pub(super) fn tell_end(&self, key: FileKey, end: u64, last: u8) {
        let Some(notify) = self.notify.get() else { return };
        let Some(id) = self.nodes.id_of(key) else { return };
        let passed = self.open.lock().get(&key).is_some_and(|node| !node.past.is_empty());
        if end > 0 && !passed {
            notify.end(id, end, last);
        }
    }

    /// Has the kernel drop its pages of `len` bytes from `offset` on, or all from there on if `len` is 0, and the
    /// attributes: the file has changed.
    pub(super) fn tell_pages(&self, key: FileKey, offset: u64, len: u64) {
        let Some(notify) = self.notify.get() else { return };
        let Some(id) = self.nodes.id_of(key) else { return };
        // For a file that is open past the daemon there are no pages but the shadow file's own.
        let passed = self.open.lock().get(&key).is_some_and(|node| !node.past.is_empty());
        match passed {
            true => notify.attributes(id),
            false => notify.pages(id, offset, len),
        }
    }
}
