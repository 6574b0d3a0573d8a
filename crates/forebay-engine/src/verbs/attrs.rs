//! Attributes for programs: the store's, with newer values from here.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::{Attr, DirEntry, FileKey, Result, SetAttr, SetTime, Timestamp, XattrMode};

use crate::core::clock::{Look, What};
use crate::files::changing::Changing;
use crate::files::file::{File, Inner, note_seen};
use crate::files::glance::Glance;
use crate::files::live::{Around, Asked, Seen};
use crate::files::names::Named;
use crate::requester;
use crate::verbs::Verbs;
use forebay_base::lock::MutexGuard;

/// The extended attribute that the kernel reads at writes.
pub(crate) const CAPABILITY: &str = "security.capability";

/// How often attributes that keep changing are read again.
pub(crate) const LOOKS: u32 = 100;

/// The facts by which a front-end decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub size: u64,
    pub complete: bool,
    pub wholly_dirty: bool,
    /// Whether the mode has a set-user-id or set-group-id bit, which a write must take away.
    pub set_id: bool,
    /// Differs whenever the bytes may differ. `None` while a program may write past the daemon: a
    /// store into a mapping moves no time on some file systems, and the daemon does not see it.
    pub fingerprint: Option<NonZeroU64>,
}

/// The backing store's attributes of a name, and when the store was asked.
#[derive(Debug, Clone, Copy)]
pub struct DatedAttr {
    attr: Attr,
    asked: Asked,
}

impl DatedAttr {
    /// The store's answer to a change that was begun at `asked`.
    pub fn by(asked: Asked, attr: Attr) -> DatedAttr {
        DatedAttr { attr, asked }
    }

    /// Returns a moment before the store was asked: the answer is no older.
    pub fn at(&self) -> Instant {
        self.asked.at
    }

    /// Returns the store's attributes, without newer values from here.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// Returns the same answer with other attributes, known to the caller that changes them.
    #[must_use]
    pub fn with(self, attr: Attr) -> DatedAttr {
        DatedAttr { attr, ..self }
    }

    /// Returns the same answer with an older time.
    #[must_use]
    pub fn since(self, at: Instant) -> DatedAttr {
        DatedAttr { asked: Asked { at, ..self.asked }, ..self }
    }
}

/// Whether an answer of the store has just come, or is an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Now,
    Before,
}

impl Verbs {
    /// Returns the attributes of `path`, with newer values from here.
    pub fn stat(&self, path: &Path) -> Result<Attr> {
        self.look(path).map(|(attr, _)| attr)
    }

    /// As [`Verbs::stat`], with the store's answer on which the attributes are based.
    pub fn look(&self, path: &Path) -> Result<(Attr, DatedAttr)> {
        let mut told = self.ask(path)?;
        for _ in 0..LOOKS {
            // Dirty bytes may have been flushed since the answer: then it is out of date.
            if let Some(attr) = self.newest(&told, Heard::Now) {
                return Ok((attr, told));
            }
            told = self.ask(path)?;
        }
        let mut attr = told.attr;
        if let Some(file) = self.files.find(attr.key) {
            self.names.overlay_with(&file, &file.lock(), &mut attr);
        }
        Ok((attr, told))
    }

    fn ask(&self, path: &Path) -> Result<DatedAttr> {
        let asked = self.asking();
        let attr = self.names.ask(|b| b.stat(path))?;
        self.files.tell_apart(path, &attr, asked.look)?;
        Ok(DatedAttr { attr, asked })
    }

    /// Returns a moment before the backing store is asked.
    pub fn asking(&self) -> Asked {
        Asked::at(self.files.time().now())
    }

    /// Asks the store about `path` in advance, for a program that may need the answer soon.
    pub fn foresee(&self, path: &Path) -> Result<DatedAttr> {
        let asked = self.asking();
        let attr = self.home.health().quietly(|| self.home.backing().stat(path))?;
        Ok(DatedAttr { attr, asked })
    }

    /// As [`Verbs::foresee`], with the names of the extended attributes.
    pub fn foresee_all(&self, path: &Path) -> Result<(DatedAttr, Vec<OsString>)> {
        let asked = self.asking();
        let all = self.home.health().quietly(|| self.home.backing().stat_all(path));
        all.map(|(attr, names)| (DatedAttr { attr, asked }, names))
    }

    /// Lists a directory in advance, for a program that may need the list soon.
    pub fn foresee_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.home.health().quietly(|| self.home.backing().read_dir(path))
    }

    /// Returns attributes by an earlier answer of the store about `path`, with newer values from here.
    /// `None` if the daemon has made that answer invalid since, or if only the store can tell whether
    /// the answer is about the known file.
    pub fn recall(&self, path: &Path, told: &DatedAttr) -> Option<Attr> {
        let doubted = self.files.may_be_another(path, &told.attr, told.asked.look);
        if doubted.is_some() { None } else { self.newest(told, Heard::Before) }
    }

    fn newest(&self, told: &DatedAttr, heard: Heard) -> Option<Attr> {
        let &DatedAttr { mut attr, asked } = told;
        let Some(file) = self.files.find(attr.key) else {
            return (!self.files.was_forgotten(attr.key, asked.look)).then_some(attr);
        };
        let mut inner = file.lock();
        let moved = inner.in_use().is_some_and(|live| live.around != Around::None);
        let current = inner.state.is_dirty()
            || inner.state.base() == attr.version()
            || !inner.changed(asked.look, What::Base)
            || (moved && heard == Heard::Now);
        let current = current && (heard == Heard::Now || !moved);
        if !current {
            return None;
        }
        let look = inner.look();
        // The daemon has changed nothing since the file became known, and the answer was valid then.
        let holds = look.is_untouched() && inner.state.base() == attr.version();
        let asked = if holds { Asked { look, ..asked } } else { asked };
        note_seen(&mut inner, asked, &attr);
        self.names.overlay_with(&file, &inner, &mut attr);
        Some(attr)
    }

    /// Returns the attributes of an open file as the backing store gave them within `ttl`, with newer
    /// values from here; `None` if the store has to be asked. Databases read the size all the time:
    /// shortly before the answer expires the store is asked again, so that no program waits for it.
    pub fn stat_recent(self: &Arc<Self>, file: &Arc<File>, ttl: Duration) -> Option<Attr> {
        let mut inner = file.lock();
        let now = self.files.time().now();
        let seen = recent(&inner, now, ttl)?;
        let old = now.saturating_duration_since(seen.asked.at) > ttl * 3 / 4;
        let mut attr = seen.attr;
        self.names.overlay_with(file, &inner, &mut attr);
        if old {
            self.look_again(file, &mut inner);
        }
        Some(attr)
    }

    /// Whether an open file is known to have had no `security.capability` within `ttl`.
    pub fn lacks_capability(&self, file: &File, ttl: Duration) -> bool {
        let inner = file.lock();
        let now = self.files.time().now();
        let asked = recent(&inner, now, ttl).and_then(|seen| seen.no_capability);
        asked.is_some_and(|at| now.saturating_duration_since(at) < ttl)
    }

    /// Returns the state of an open file before the backing store is asked about it.
    pub fn before_asking(&self, file: &File) -> Asked {
        Asked { look: file.lock().look(), at: self.files.time().now() }
    }

    /// Remembers that an open file had no `security.capability` at `asked`.
    pub fn note_no_capability(&self, file: &File, asked: Asked) {
        let mut inner = file.lock();
        let holds = !inner.changed(asked.look, What::Home);
        let seen = inner.in_use_mut().and_then(|live| live.seen_mut());
        if let Some(seen) = seen.filter(|_| holds) {
            seen.no_capability = Some(asked.at);
        }
    }

    /// Asks the backing store about an open file in the background.
    fn look_again(self: &Arc<Self>, file: &Arc<File>, inner: &mut Inner) {
        let path = inner.state.paths.first();
        let seen = inner.in_use_mut().and_then(|live| live.seen_mut());
        let Some((path, seen)) = path.zip(seen.filter(|seen| !seen.asked_again)) else { return };
        // Calls that a batch waits for go first.
        if self.home.errands().queued() > 0 {
            return;
        }
        seen.asked_again = true;
        let (verbs, file) = (self.clone(), file.clone());
        self.home.errands().offer(move || {
            let asked = verbs.before_asking(&file);
            let quietly = |call: &dyn Fn() -> Result<()>| verbs.home.health().quietly(call);
            let _ = quietly(&|| {
                let attr = verbs.home.backing().stat(&path)?;
                // The path may name another file by now.
                if attr.key != file.key {
                    return Ok(());
                }
                let mut inner = file.lock();
                if !note_seen(&mut inner, asked, &attr) {
                    return Ok(());
                }
                drop(inner);
                match verbs.home.backing().xattr_get(&path, OsStr::new(CAPABILITY)) {
                    Err(error) if error.is(libc::ENODATA) => {
                        verbs.note_no_capability(&file, asked);
                    }
                    _ => {}
                }
                Ok(())
            });
        });
    }

    /// Whether a write to an open file may have to take away set-user-id or set-group-id.
    pub fn has_set_id(&self, file: &File) -> bool {
        file.lock().state.owner().mode & 0o6000 != 0
    }

    /// Whether a file that is open past the daemon was written since its mode got one of these bits.
    pub fn is_written_over_set_id(&self, file: &File) -> bool {
        file.lock().is_written_over_set_id()
    }

    /// Returns attributes of a cached file from memory, while the backing store is away.
    pub fn stat_cached(&self, key: FileKey) -> Option<Attr> {
        let file = self.files.find(key)?;
        let inner = Glance::new(self.files.time()).at(&file)?;
        Some(cached_attr(key, &inner))
    }

    /// Returns attributes of an open file, even if its name is gone.
    pub fn stat_open(&self, file: &File) -> Attr {
        let inner = file.lock();
        let mut attr = cached_attr(file.key, &inner);
        if inner.in_use().is_some_and(|live| live.unlinked) {
            attr.nlink = 0;
        }
        attr
    }

    /// Returns the facts by which a front-end decides how to serve an open file.
    pub fn facts(&self, file: &File) -> Facts {
        let inner = file.lock();
        let stale = inner.in_use().is_some_and(|live| live.stale);
        let size = inner.size();
        Facts {
            size,
            complete: inner.state.is_complete() && !stale,
            wholly_dirty: inner.state.is_wholly_dirty(),
            set_id: inner.state.owner().mode & 0o6000 != 0,
            fingerprint: match inner.state.is_unseen() {
                true => None,
                false => Some(fingerprint(size, inner.mtime(), inner.state.base().ctime)),
            },
        }
    }

    /// Makes the names in a directory durable, on the backing store and in the index.
    pub fn sync_dir(&self, path: &Path) -> Result<()> {
        self.names.ask(|b| b.sync_dir(path))?;
        self.files.note_tier(self.files.index().sync_names())
    }

    /// Changes attributes on the backing store, and the known values here.
    pub fn set_attr(&self, at: Named<'_>, set: &SetAttr) -> Result<Attr> {
        self.files.refuse_read_only()?;
        let (file, asked) = (self.files.find(at.key), self.asking());
        if set.mode.is_some_and(|mode| mode & 0o6000 != 0) && !self.home.is_privileged() {
            self.flush_before_rights(file.as_ref())?;
        }
        let mut set = *set;
        // The store decides whether a user other than the owner may set the time to now.
        let is_dirty = || file.as_ref().is_some_and(|file| file.lock().state.is_dirty());
        if matches!(set.mtime, Some(SetTime::Now)) && self.home.is_privileged() && is_dirty() {
            set.mtime = Some(SetTime::At(self.files.time().stamp()));
        }
        let set = &set;
        let mut before = (None, false);
        if let Some(file) = &file {
            let inner = file.lock();
            let seen = inner.in_use().and_then(|live| live.seen.as_ref());
            before = seen.map_or(before, |seen| (seen.no_capability, seen.made));
            if let Some(mtime) = goes_home_later(&inner, set) {
                return self.set_mtime(file, inner, mtime);
            }
            drop(inner);
            self.compare(file, at);
            let mut inner = file.lock();
            inner.note_asked();
            if set.mode.is_some_and(|mode| mode & 0o6000 != 0) {
                inner.note_set_id();
            }
            if set.mtime.is_some() {
                // Without this, after a loss of power, the new time could be taken for another program's.
                self.files.let_go(file, &mut inner)?;
                self.set_ahead(file, &mut inner, set)?;
            }
        }
        let changing = Changing::begin(file.clone());
        let since = Look::now();
        let done = self.names.alter(|b| b.set_attr(at.path, Some(at.key), set));
        if let (Err(_), Some(_), Some(file)) = (&done, set.mtime, &file) {
            let _ = self.names.set_ahead(file, &mut file.lock(), None);
        }
        let mut attr = done?;
        // A file that was opened meanwhile, or closed and opened anew, has another entry in the table.
        let (held, found) = (file.as_ref().map(|file| file.id), self.files.find(at.key).or(file));
        if let Some(file) = found {
            let ask = || self.names.ask(|b| b.stat(at.path));
            let (newest, mut inner) = self.names.newest(&file, attr, since, ask);
            attr = newest;
            // A flush of such a file may have landed already: the attributes that it found are newer.
            if held != Some(file.id) && inner.state.base().ctime > attr.ctime {
                self.names.overlay_with(&file, &inner, &mut attr);
                return Ok(attr);
            }
            self.names.follow_set(&file, &mut inner, &attr, self.time_of(set))?;
            let (told, look) = (attr, inner.look());
            self.names.overlay_with(&file, &inner, &mut attr);
            self.files.retire(&file, inner);
            // The answer to a change counts like any other answer.
            changing.end_told(look, |inner| note_set(inner, asked.at, &told, before));
            self.outbox.tell_if_copied(&file)?;
        }
        Ok(attr)
    }

    /// Returns the mtime that is set.
    fn time_of(&self, set: &SetAttr) -> Option<Timestamp> {
        set.mtime.map(|mtime| match mtime {
            SetTime::At(at) => at,
            SetTime::Now => self.files.time().stamp(),
        })
    }

    /// Records the time that the store is about to be given, durably if dirty bytes are durable.
    fn set_ahead(&self, file: &File, inner: &mut Inner, set: &SetAttr) -> Result<()> {
        let Some(SetTime::At(mtime)) = set.mtime else { return Ok(()) };
        self.names.set_ahead(file, inner, Some(mtime))?;
        if inner.may_last() {
            self.files.note_tier(self.files.index().sync())?;
        }
        Ok(())
    }

    /// Flushes dirty bytes before rights are set. The store takes set-user-id, set-group-id and
    /// capabilities away when a file is written (`file_remove_privs` in Linux, fs/inode.c), except
    /// set-id bits if root writes.
    fn flush_before_rights(&self, file: Option<&Arc<File>>) -> Result<()> {
        match file.filter(|file| file.lock().state.is_dirty()) {
            Some(file) => self.drain.flush_file(file),
            None => Ok(()),
        }
    }

    /// Compares a cached file with the store as an open does, before a change of names or
    /// attributes: that moves the ctime, or the mtime, and these alone may show a change by others
    /// (S1, S8). A size shows it afterwards, too, so an empty file is not compared.
    pub(super) fn compare(&self, file: &Arc<File>, at: Named<'_>) {
        let seen = {
            let inner = file.lock();
            let is_here = inner.state.has_bytes() || inner.state.is_dirty();
            (is_here && inner.state.base().size > 0).then(|| inner.look())
        };
        let Some(seen) = seen else { return };
        let found = self.names.ask(|b| b.stat(at.path));
        let Some(found) = found.ok().filter(|found| found.key == file.key) else { return };
        if self.files.revalidate(file, &found, seen) {
            let _ = self.drain.flush_file(file);
            self.files.revalidate(file, &found, seen);
        }
    }

    /// Sets the time of bytes that are not flushed yet: the flush sets it on the store.
    fn set_mtime(
        &self,
        file: &Arc<File>,
        mut inner: MutexGuard<'_, Inner>,
        mtime: Timestamp,
    ) -> Result<Attr> {
        self.names.set_time(file, &mut inner, mtime)?;
        let mut attr = match inner.in_use().and_then(|live| live.seen.as_ref()) {
            Some(seen) => seen.attr,
            None => cached_attr(file.key, &inner),
        };
        self.names.overlay_with(file, &inner, &mut attr);
        self.files.retire(file, inner);
        self.outbox.tell_if_copied(file)?;
        Ok(attr)
    }

    /// Returns the attributes of an open file that this mount has just made, as known within `ttl`,
    /// if they already have the values of `set`: then the store need not be asked.
    pub fn is_set(&self, file: &Arc<File>, set: &SetAttr, ttl: Duration) -> Option<Attr> {
        let inner = file.lock();
        let seen = recent(&inner, self.files.time().now(), ttl)?;
        let mut attr = seen.attr;
        let is_same = seen.made
            && attr.mode & 0o6000 == 0
            && set.mode.is_none_or(|mode| mode & 0o7777 == attr.mode)
            && set.uid.is_none_or(|uid| uid == attr.uid)
            && set.gid.is_none_or(|gid| gid == attr.gid)
            && set.atime.is_none()
            && set.mtime.is_none();
        self.names.overlay_with(file, &inner, &mut attr);
        is_same.then_some(attr)
    }

    /// Changes attributes of an open file that has lost its name.
    pub fn set_attr_open(&self, file: &Arc<File>, set: &SetAttr) -> Result<Attr> {
        self.files.refuse_read_only()?;
        let backing = self.files.backing_file(file)?;
        let _changing = Changing::begin([file.clone()]);
        requester::check()?;
        let since = Look::now();
        let attr = self.home.health().call(|| backing.set_attr(set))?;
        let ask = || self.home.health().call(|| backing.stat());
        let (attr, mut inner) = self.names.newest(file, attr, since, ask);
        if let Some(SetTime::At(mtime)) = set.mtime {
            inner.note_mtime(mtime);
            self.files.set_shadow_mtime(file, &mut inner, mtime);
        }
        self.names.follow(file, &mut inner, &attr)?;
        drop(inner);
        Ok(self.stat_open(file))
    }

    pub fn set_xattr(
        &self,
        at: Named<'_>,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.files.refuse_read_only()?;
        let file = self.files.find(at.key);
        if name == "security.capability" {
            self.flush_before_rights(file.as_ref())?;
        }
        file.iter().for_each(|file| self.compare(file, at));
        let _changing = Changing::begin(file);
        self.names.alter(|b| b.xattr_set(at.path, Some(at.key), name, value, mode))?;
        self.names.refresh(at);
        self.tell_of(at)
    }

    pub fn remove_xattr(&self, at: Named<'_>, name: &OsStr) -> Result<()> {
        self.files.refuse_read_only()?;
        let file = self.files.find(at.key);
        file.iter().for_each(|file| self.compare(file, at));
        let _changing = Changing::begin(file);
        self.names.alter(|b| b.xattr_remove(at.path, Some(at.key), name))?;
        self.names.refresh(at);
        self.tell_of(at)
    }

    fn tell_of(&self, at: Named<'_>) -> Result<()> {
        self.files.find(at.key).map_or(Ok(()), |file| self.outbox.tell_if_copied(&file))
    }
}

/// Returns the time to set if it belongs to bytes that are still to be flushed: no flush has begun
/// that would set another time, and nothing else is to be set.
fn goes_home_later(inner: &Inner, set: &SetAttr) -> Option<Timestamp> {
    let live = inner.in_use()?;
    let is_alone = set.mode.is_none() && set.uid.is_none() && set.gid.is_none();
    let is_ours = inner.state.is_dirty()
        // An empty file is not flushed.
        && inner.size() > 0
        && !inner.state.is_held()
        && !inner.state.conflict().stands()
        && !inner.state.flush_is_open()
        && live.flight.is_none()
        && live.around == Around::None
        && live.seen.as_ref().is_some_and(|seen| seen.made);
    match set.mtime {
        Some(SetTime::At(mtime)) if is_alone && is_ours && set.atime.is_none() => Some(mtime),
        _ => None,
    }
}

/// Keeps the store's answer about an open file when attributes were set. That gives the file no
/// capability, and a file that was made here still counts as such: `before`.
fn note_set(inner: &mut Inner, at: Instant, told: &Attr, before: (Option<Instant>, bool)) {
    let asked = Asked { at, look: inner.look() };
    note_seen(inner, asked, told);
    let seen = inner.in_use_mut().and_then(|live| live.seen_mut());
    if let Some(seen) = seen.filter(|seen| seen.asked.at == at) {
        (seen.no_capability, seen.made) = before;
    }
}

pub(crate) fn fingerprint(size: u64, mtime: Timestamp, ctime: Timestamp) -> NonZeroU64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (size, mtime, ctime).hash(&mut hasher);
    NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN)
}

/// Returns the store's answer within `ttl`, unless the daemon has changed the file there since.
pub(crate) fn recent(inner: &Inner, now: Instant, ttl: Duration) -> Option<&Seen> {
    let live = inner.in_use().filter(|live| live.around == Around::None)?;
    let recent = |seen: &&Seen| now.saturating_duration_since(seen.asked.at) < ttl;
    let seen = live.seen.as_deref().filter(recent)?;
    let usable = !inner.is_changing() && !live.unlinked;
    (usable && inner.is_known(&seen.attr, seen.asked)).then_some(seen)
}

pub(crate) fn cached_attr(key: FileKey, inner: &Inner) -> Attr {
    let owner = inner.state.owner();
    let mut attr = Attr {
        key,
        kind: forebay_backing::FileKind::File,
        mode: owner.mode,
        nlink: owner.nlink,
        uid: owner.uid,
        gid: owner.gid,
        rdev: 0,
        size: inner.size(),
        blocks: inner.charged() / 512,
        blksize: 4096,
        atime: inner.mtime(),
        mtime: inner.mtime(),
        ctime: inner.state.base().ctime,
        btime: Timestamp::default(),
    };
    inner.overlay(&mut attr, || None);
    attr
}
