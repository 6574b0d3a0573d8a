//! Changes of names and attributes: done on the backing store at once, followed here.
//!
//! Every change of names goes into the journal of names ([`crate::journal`]): one that concerns a
//! file with a record before the store is asked, so that after a crash in the middle recovery can
//! ask the store whether it happened; any other once it was made.

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::{
    Attr, BackingStore, FileKey, New, RenameMode, Result, SetAttr, SetTime, Timestamp, XattrMode,
};

use crate::asker;
use crate::engine::{Engine, is_alone, now};
use crate::failpoint;
use crate::file::{Changing, File, Inner, Live, Seen};
use crate::glance::Glance;
use crate::journal::{Moved, NameOp, rebased};
use crate::media::MediaFile;
use crate::state::Owner;

mod journaled;

/// A name that is about to change or go: the path, what it names, and whether that is a directory.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    pub path: &'a Path,
    pub key: FileKey,
    pub is_dir: bool,
}

/// The extended attribute after which the kernel asks at writes.
const CAPABILITY: &str = "security.capability";

/// How often attributes are asked for that change beneath.
const LOOKS: u32 = 100;

impl Engine {
    /// The backing store, for what concerns no cached byte. Each call goes through
    /// [`crate::health::Health::call`].
    pub fn ask<T>(&self, call: impl FnOnce(&dyn BackingStore) -> Result<T>) -> Result<T> {
        self.health.call(|| call(&*self.backing))
    }

    /// The same for what changes something there: not for a request that has been answered
    /// meanwhile. One that hangs in the call itself may still happen (S10).
    pub fn alter<T>(&self, call: impl FnOnce(&dyn BackingStore) -> Result<T>) -> Result<T> {
        asker::check()?;
        self.ask(call)
    }

    /// Attributes of `path`, with what we know better.
    pub fn stat(&self, path: &Path) -> Result<Attr> {
        let table = || self.table.read().expect("no panic inside");
        let (mut known, mut seen) = (table().forgotten.mark(), None);
        let mut asked = Instant::now();
        let mut attr = self.ask(|b| b.stat(path))?;
        for _ in 0..LOOKS {
            // What is dirty may have been flushed since the answer: then it is out of date.
            match self.find(attr.key) {
                Some(file) => {
                    let mut inner = file.lock();
                    let moved = inner.live.as_ref().is_some_and(|live| live.moved);
                    let current = inner.state.is_dirty()
                        || inner.state.base == attr.version()
                        || seen == Some((file.id, inner.base_seq))
                        || moved;
                    if current {
                        note_seen(&mut inner, asked, &attr);
                        self.overlay_with(&file, &inner, &mut attr);
                        return Ok(attr);
                    }
                    seen = Some((file.id, inner.base_seq));
                }
                None if !table().forgotten.any_since(known, attr.key) => return Ok(attr),
                None => known = table().forgotten.mark(),
            }
            asked = Instant::now();
            attr = self.ask(|b| b.stat(path))?;
        }
        if let Some(file) = self.find(attr.key) {
            self.overlay_with(&file, &file.lock(), &mut attr);
        }
        Ok(attr)
    }

    fn overlay_with(&self, file: &File, inner: &Inner, attr: &mut Attr) {
        let name = || crate::tier::shadow_name(file.id);
        inner.overlay(attr, || self.media().stat(&name()).ok());
    }

    /// Attributes of an open file as the backing store told them within `ttl`, with what we know
    /// better; `None` if it has to be asked. Databases ask for the size all the time: shortly
    /// before the answer expires it is asked for again, so that nobody waits for it.
    pub fn stat_recent(self: &Arc<Self>, file: &Arc<File>, ttl: Duration) -> Option<Attr> {
        let mut inner = file.lock();
        let seen = recent(&inner, ttl)?;
        let (mut attr, old) = (seen.attr, seen.at.elapsed() > ttl * 3 / 4);
        self.overlay_with(file, &inner, &mut attr);
        if old {
            self.look_again(file, &mut inner);
        }
        Some(attr)
    }

    /// Whether an open file is known to have had no `security.capability` within `ttl`.
    pub fn lacks_capability(&self, file: &File, ttl: Duration) -> bool {
        let inner = file.lock();
        let asked = recent(&inner, ttl).and_then(|seen| seen.no_capability);
        asked.is_some_and(|at| at.elapsed() < ttl)
    }

    /// What to remember of an open file before the backing store is asked about it.
    pub fn before_asking(&self, file: &File) -> Asked {
        asked_of(&file.lock())
    }

    /// Keeps in mind that an open file had no `security.capability` when that was asked.
    pub fn note_no_capability(&self, file: &File, asked: Asked) {
        let mut inner = file.lock();
        let holds = asked.still_holds(&inner);
        let seen = inner.live.as_mut().and_then(|live| live.seen.as_mut());
        if let Some(seen) = seen.filter(|_| holds) {
            seen.no_capability = Some(asked.at);
        }
    }

    /// Asks the backing store about an open file in the background.
    fn look_again(self: &Arc<Self>, file: &Arc<File>, inner: &mut Inner) {
        let path = inner.state.paths.first();
        let seen = inner.live.as_mut().and_then(|live| live.seen.as_mut());
        let Some((path, seen)) = path.zip(seen.filter(|seen| !seen.asked_again)) else { return };
        // What a batch waits for goes first.
        if self.errands.queued() > 0 {
            return;
        }
        seen.asked_again = true;
        let (engine, file) = (self.clone(), file.clone());
        self.errands.offer(move || {
            let asked = engine.before_asking(&file);
            let quietly = |call: &dyn Fn() -> Result<()>| engine.health.quietly(call);
            let _ = quietly(&|| {
                let attr = engine.backing.stat(&path)?;
                // The path may name another file by now.
                if attr.key != file.key {
                    return Ok(());
                }
                let mut inner = file.lock();
                if !asked.still_holds(&inner) || !note_seen(&mut inner, asked.at, &attr) {
                    return Ok(());
                }
                drop(inner);
                match engine.backing.xattr_get(&path, OsStr::new(CAPABILITY)) {
                    Err(error) if error.is(libc::ENODATA) => {
                        engine.note_no_capability(&file, asked);
                    }
                    _ => {}
                }
                Ok(())
            });
        });
    }

    /// Whether a write to an open file may have to take away set-user-id or set-group-id.
    pub fn has_set_id(&self, file: &File) -> bool {
        file.lock().state.owner.mode & 0o6000 != 0
    }

    /// Whether attributes of the file may change without anybody telling us: it is written past us,
    /// and may be mapped. Also `true` of a file that is just at work.
    pub fn moves_unseen(&self, key: FileKey) -> bool {
        let Some(file) = self.find(key) else { return false };
        let Ok(inner) = file.inner.try_lock() else { return true };
        // With the last descriptor gone, a mapping is left.
        let maps = |live: &Live| live.mappable || live.opens == 0;
        inner.state.flags.opaque && inner.live.as_deref().is_some_and(maps)
    }

    /// Attributes of a cached file from memory, while the backing store is away.
    pub fn stat_cached(&self, key: FileKey) -> Option<Attr> {
        let file = self.find(key)?;
        let inner = Glance::new().at(&file)?;
        Some(cached_attr(key, &inner))
    }

    /// Attributes of an open file, whatever became of its name.
    pub fn stat_open(&self, file: &File) -> Attr {
        let inner = file.lock();
        let mut attr = cached_attr(file.key, &inner);
        if inner.live.as_ref().is_some_and(|live| live.unlinked) {
            attr.nlink = 0;
        }
        attr
    }

    /// What a front-end must know to decide how to serve an open file.
    pub fn facts(&self, file: &File) -> Facts {
        let inner = file.lock();
        let stale = inner.live.as_ref().is_some_and(|live| live.stale);
        let size = inner.size();
        Facts {
            size,
            complete: inner.state.is_complete() && !stale,
            wholly_dirty: inner.state.is_wholly_dirty(),
            set_id: inner.state.owner.mode & 0o6000 != 0,
            fingerprint: match inner.state.flags.opaque {
                true => None,
                false => Some(fingerprint(size, inner.mtime(), inner.state.base.ctime)),
            },
        }
    }

    /// Makes the names in a directory durable, on the backing store and in the index.
    pub fn sync_dir(&self, path: &Path) -> Result<()> {
        self.ask(|b| b.sync_dir(path))?;
        self.note_tier(self.index.sync())
    }

    /// Creates a file on the backing store and takes a handle on it.
    pub fn create(&self, path: &Path, new: &New) -> Result<(Arc<File>, Attr)> {
        self.refuse_read_only()?;
        let (_, attr) = self.alter(|b| b.create(path, new))?;
        Ok((self.created(path, &attr), attr))
    }

    /// Begins writing past our eyes: the shadow is to be written by the kernel. The file counts as
    /// wholly dirty until [`Engine::end_unseen`]. `None` if it is not complete (any more): its
    /// holes would count as data. `maps`: the writer may map the file, and so write to it after he
    /// has closed it.
    pub fn begin_unseen(&self, file: &Arc<File>, maps: bool) -> Result<Option<Arc<dyn MediaFile>>> {
        let mut inner = file.lock();
        let moved = inner.live().moved || inner.live().arounds > 0;
        if !inner.state.is_complete() || moved || !self.may_pass(&inner) {
            return Ok(None);
        }
        // Nothing was written to a shadow that is made here; until something is, its mtime does
        // not count.
        let fresh = inner.state.ranges.count() == 0 && inner.shadow_stat().is_none();
        let shadow = self.shadow_unwritten(file, &mut inner)?;
        if inner.live().writers == 0 {
            if !fresh {
                let mtime = inner.state.mtime;
                self.note_tier(shadow.set_mtime(mtime))?;
            }
            inner.live().opaque_from = shadow.stat().ok();
            inner.live().measured = None;
            self.note_growth(file, &mut inner);
            inner.state.flags.opaque = true;
            self.space.unseen.lock().expect("no panic inside").insert(file.id, file.clone());
            inner.state.touch(crate::engine::now_ms());
            if let Err(error) = self.put(file, &mut inner) {
                // Nobody may write what no record speaks of.
                inner.state.flags.opaque = false;
                self.space.unseen.lock().expect("no panic inside").remove(&file.id);
                return Err(error);
            }
        }
        inner.live().mappable |= maps;
        failpoint::pass("create.done");
        inner.live().writers += 1;
        self.space.writers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.counters.passthrough_writes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.account(file, &mut inner);
        Ok(Some(shadow))
    }

    /// Ends one unseen writer; after the last one, what is in the shadow is the file. If a mapping
    /// is left the writer goes on, until [`Engine::check_orphans`] finds that it is gone.
    pub fn end_unseen(&self, file: &Arc<File>) -> Result<()> {
        let mut inner = file.lock();
        assert!(inner.live().writers > 0, "a writer ends once");
        if inner.live().writers == 1
            && inner.live().mappable
            && !self.is_closed(file, &mut inner)?
        {
            drop(inner);
            self.orphans.lock().expect("no panic inside").push(file.clone());
            return Ok(());
        }
        let live = inner.live();
        live.writers -= 1;
        self.space.writers.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        if live.writers > 0 {
            return Ok(());
        }
        self.space.unseen.lock().expect("no panic inside").remove(&file.id);
        let stat = self.shadow_unwritten(file, &mut inner)?.stat();
        let stat = self.note_tier(stat)?;
        self.note_growth(file, &mut inner);
        let from = inner.live().opaque_from.take();
        (inner.live().copied_at, inner.live().doubted_from) = (None, None);
        inner.live().mappable = false;
        inner.state.flags.opaque = false;
        // Only emptiness proves that nothing was written: a mapping of a tmpfs file moves no time.
        let untouched = stat.len == 0
            && from.is_some_and(|from| from.len == 0 && from.mtime == stat.mtime)
            && !inner.state.is_dirty();
        inner.live().blank &= untouched;
        if untouched {
            // No record of that: recovery finds an empty file that may be dirty, which is harmless.
            inner.state.dirty_since = 0;
        } else {
            inner.state.absorb(stat.len, stat.mtime, crate::engine::now_ms());
            inner.state.flags.meta_dirty = true;
            inner.note_rewritten(0, u64::MAX);
            self.put(file, &mut inner)?;
            self.admit(file, [(0, stat.len)]);
        }
        self.account(file, &mut inner);
        Ok(())
    }

    /// Whether no program has the shadow open or mapped any more. The kernel tells us of a close a
    /// moment before it has closed the shadow.
    fn is_closed(&self, file: &Arc<File>, inner: &mut Inner) -> Result<bool> {
        let shadow = self.shadow_unwritten(file, inner)?;
        let alone = || {
            std::thread::yield_now();
            is_alone(&*shadow)
        };
        Ok(is_alone(&*shadow) || alone() || alone())
    }

    /// Pins the shadow of a complete file for reading past our eyes; `None` if it is not complete.
    pub fn pin_shadow(&self, file: &Arc<File>) -> Result<Option<Arc<dyn MediaFile>>> {
        let mut inner = file.lock();
        // Old bytes are served on only beside a reader who has them already.
        let stale = inner.live().stale && inner.live().pins == 0;
        let moved = inner.live().moved || inner.live().arounds > 0;
        if !inner.state.is_complete() || stale || moved || !self.may_pass(&inner) {
            return Ok(None);
        }
        let shadow = self.shadow(file, &mut inner)?;
        inner.live().pins += 1;
        file.hit();
        self.counters.passthrough_reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Some(shadow))
    }

    pub fn unpin_shadow(&self, file: &Arc<File>) {
        let mut inner = file.lock();
        assert!(inner.live().pins > 0, "a pin is taken out once");
        inner.live().pins -= 1;
    }

    /// Makes another name for a file.
    pub fn link(&self, from: Named<'_>, to: &Path) -> Result<Attr> {
        self.refuse_read_only()?;
        let _changing = Changing::begin(self.find(from.key));
        let mut attr = self.alter(|b| b.link(from.path, to))?;
        let op = NameOp::Link { from: from.path.into(), to: to.into(), key: from.key };
        self.note_name(op, Some(attr.ctime));
        if let Some(file) = self.find(from.key) {
            let mut inner = file.lock();
            inner.state.paths.learn_also(to);
            self.follow(&file, &mut inner, &attr)?;
            self.overlay_with(&file, &inner, &mut attr);
        }
        Ok(attr)
    }

    /// Changes attributes on the backing store, and what we keep of them.
    pub fn set_attr(&self, at: Named<'_>, set: &SetAttr) -> Result<Attr> {
        self.refuse_read_only()?;
        let file = self.find(at.key);
        if let Some(file) = &file {
            let mut inner = file.lock();
            inner.live().meta_seq += 1;
            if set.mtime.is_some() {
                // Else, after a loss of power, the new time could be taken for somebody else's.
                self.let_go(file, &mut inner)?;
            }
        }
        let _changing = Changing::begin(file.clone());
        let mut attr = self.alter(|b| b.set_attr(at.path, set))?;
        // Opened meanwhile, or closed and opened anew, it is another to us.
        let (held, found) = (file.as_ref().map(|file| file.id), self.find(at.key).or(file));
        if let Some(file) = found {
            let mut inner = file.lock();
            // Of such a one a flush may have landed already: what it found is newer.
            if held != Some(file.id) && inner.state.base.ctime > attr.ctime {
                self.overlay_with(&file, &inner, &mut attr);
                return Ok(attr);
            }
            inner.live().meta_seq += 1;
            if set.mtime.is_some() && inner.state.is_dirty() {
                let mtime = match set.mtime {
                    Some(SetTime::At(at)) => at,
                    _ => now(),
                };
                inner.state.base.mtime = attr.mtime;
                self.set_mtime(&file, &mut inner, mtime);
            } else if set.mtime.is_some() {
                inner.state.base.mtime = attr.mtime;
                inner.state.mtime = attr.mtime;
            }
            self.follow(&file, &mut inner, &attr)?;
            self.overlay_with(&file, &inner, &mut attr);
            self.retire(&file, inner);
        }
        Ok(attr)
    }

    /// Changes attributes of an open file that has lost its name.
    pub fn set_attr_open(&self, file: &Arc<File>, set: &SetAttr) -> Result<Attr> {
        self.refuse_read_only()?;
        let backing = self.backing_file(file)?;
        let _changing = Changing::begin([file.clone()]);
        asker::check()?;
        let attr = self.health.call(|| backing.set_attr(set))?;
        let mut inner = file.lock();
        inner.live().meta_seq += 1;
        if let Some(SetTime::At(mtime)) = set.mtime {
            self.set_mtime(file, &mut inner, mtime);
        }
        self.follow(file, &mut inner, &attr)?;
        drop(inner);
        Ok(self.stat_open(file))
    }

    /// Takes in other names of a file, which a front-end has seen.
    pub fn learn_names(&self, key: FileKey, names: impl IntoIterator<Item = PathBuf>) {
        let Some(file) = self.find(key) else { return };
        let mut inner = file.lock();
        names.into_iter().for_each(|name| inner.state.paths.learn_also(&name));
    }

    pub fn set_xattr(
        &self,
        at: Named<'_>,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.refuse_read_only()?;
        let _changing = Changing::begin(self.find(at.key));
        self.alter(|b| b.xattr_set(at.path, name, value, mode))?;
        self.refresh(at);
        Ok(())
    }

    pub fn remove_xattr(&self, at: Named<'_>, name: &OsStr) -> Result<()> {
        self.refuse_read_only()?;
        let _changing = Changing::begin(self.find(at.key));
        self.alter(|b| b.xattr_remove(at.path, name))?;
        self.refresh(at);
        Ok(())
    }

    /// After a change of ours that moved the ctime: the cached bytes are still good.
    pub(crate) fn refresh(&self, at: Named<'_>) -> Option<Attr> {
        let file = self.find(at.key)?;
        let attr = self.ask(|b| b.stat(at.path)).ok()?;
        let mut inner = file.lock();
        inner.live().meta_seq += 1;
        let _ = self.follow(&file, &mut inner, &attr);
        self.retire(&file, inner);
        Some(attr)
    }

    /// Takes over attributes that changed through us, if size and mtime say that the bytes did
    /// not change with them.
    pub(crate) fn follow(&self, file: &Arc<File>, inner: &mut Inner, attr: &Attr) -> Result<()> {
        inner.base_seq += 1;
        inner.state.owner = Owner::of(attr);
        let base = &mut inner.state.base;
        if attr.size == base.size && attr.mtime == base.mtime && attr.key == base.key {
            base.ctime = attr.ctime;
        }
        inner.live().checked = Some(Instant::now());
        inner.forget_seen();
        if inner.recorded { self.put(file, inner) } else { Ok(()) }
    }

    /// Removes a name. Dirty bytes go with the last name; if other names are left that we do not
    /// know, the bytes go to the backing store first.
    pub fn unlink(self: &Arc<Self>, at: Named<'_>) -> Result<()> {
        self.refuse_read_only()?;
        let _leaving = self.take_name(at.key);
        let Some(file) = self.find(at.key) else {
            self.alter(|b| b.unlink(at.path))?;
            self.note_name(unlinked(at), None);
            // Somebody may have opened it meanwhile.
            return self.find(at.key).map_or(Ok(()), |file| self.lost_name(&file, at.path));
        };
        self.rescue_links(&file, at)?;
        match self.keep_readable(&file) {
            Err(error) if error.is(libc::EMFILE) => return Err(error),
            // Behind our back the name may have gone already.
            _ => {}
        }
        let _changing = Changing::begin([file.clone()]);
        let (recorded, known, other) = {
            let inner = file.lock();
            let other = inner.state.paths.iter().find(|path| *path != at.path);
            (inner.recorded, inner.state.base.ctime, other)
        };
        let announced = match recorded {
            true => Some(self.announce(unlinked(at), [&file])?),
            false => None,
        };
        failpoint::pass("unlink.intent");
        let done = self.alter(|b| b.unlink(at.path));
        failpoint::pass("unlink.done");
        if done.is_err() {
            return self.not_made(announced).and(done);
        }
        let left = other.and_then(|other| self.ask(|b| b.stat(&other)).ok());
        let left = left.filter(|left| left.key == at.key).map_or(known, |left| left.ctime);
        match announced {
            // Before the record goes.
            Some(n) => self.conclude(n, Some(left), std::iter::once(&file))?,
            None => self.note_name(unlinked(at), Some(left)),
        }
        // Closed and opened anew meanwhile, it is another to us.
        self.lost_name(&self.find(at.key).unwrap_or(file), at.path)
    }

    /// Whether, after a loss of power, the log may say that bytes of the file are to be flushed.
    fn may_come_back(&self, file: &File) -> bool {
        let inner = file.lock();
        inner.state.durable_size.get().is_some() || !self.index.is_synced(inner.settled_seq)
    }

    /// Flushes a dirty file that has more names than we know before one of ours goes.
    fn rescue_links(self: &Arc<Self>, file: &Arc<File>, at: Named<'_>) -> Result<()> {
        let (dirty, known) = {
            let inner = file.lock();
            (inner.state.is_dirty(), inner.state.paths.len())
        };
        if !dirty {
            return Ok(());
        }
        let links = self.ask(|b| b.stat(at.path))?.nlink;
        file.lock().state.owner.nlink = links;
        if links > 1 && known <= 1 { self.flush_file(file) } else { Ok(()) }
    }

    /// Renames `from` to `to`, replacing `over` if something was there.
    pub fn rename(
        self: &Arc<Self>,
        from: Named<'_>,
        to: &Path,
        over: Option<Named<'_>>,
        mode: RenameMode,
    ) -> Result<()> {
        self.refuse_read_only()?;
        let exchange = mode == RenameMode::Exchange;
        let moved = self.cached_below(from);
        let back = match over {
            Some(over) if exchange => self.cached_below(over),
            _ => Vec::new(),
        };
        // Two names of one file: POSIX says that nothing happens.
        if over.is_some_and(|over| over.key == from.key) {
            return self.alter(|b| b.rename(from.path, to, mode));
        }
        let _leaving = (self.take_name(from.key), over.map(|over| self.take_name(over.key)));
        let lost = over.filter(|_| !exchange);
        let replaced = lost.and_then(|over| self.find(over.key));
        if let (Some(file), Some(over)) = (&replaced, lost) {
            self.rescue_links(file, over)?;
            // Behind our back the name may have gone already.
            let _ = self.keep_readable(file);
        }
        let op = match (exchange, over) {
            (true, Some(over)) => exchanged(from, over),
            _ => renamed(from, to, over),
        };
        let _changing = Changing::begin(moved.iter().chain(&back).chain(&replaced).cloned());
        let is_known = !(moved.is_empty() && back.is_empty() && replaced.is_none());
        let mut announced = None;
        if is_known {
            let files = moved.iter().chain(&back).chain(&replaced);
            announced = Some(self.announce(op.clone(), files)?);
            failpoint::pass("rename.intent");
        }
        let done = self.alter(|b| b.rename(from.path, to, mode));
        if done.is_err() {
            return self.not_made(announced).and(done);
        }
        if is_known {
            failpoint::pass("rename.done");
        }
        let way = Way { from: from.path, to, mode };
        self.moved(&moved, &back, &way)?;
        // Files are looked up once more: closed and opened anew meanwhile one is another to us, or
        // it was not known at all.
        let anew = |key: FileKey, known: &[Arc<File>]| {
            let is_known = |anew: &Arc<File>| known.iter().any(|file| file.id == anew.id);
            self.find(key).filter(|anew| !is_known(anew))
        };
        // These may have their new names already.
        let straight = |from, to| Way { from, to, mode: RenameMode::Replace };
        self.follow_way(anew(from.key, &moved).iter(), &straight(from.path, to))?;
        if let (true, Some(over)) = (exchange, over) {
            self.follow_way(anew(over.key, &back).iter(), &straight(to, from.path))?;
            self.refresh(Named { path: from.path, ..over });
        }
        let known = self.refresh(Named { path: to, ..from });
        let asked = || announced.and_then(|_| self.ask(|b| b.stat(to)).ok());
        let at = known.or_else(asked).filter(|attr| attr.key == from.key).map(|attr| attr.ctime);
        match announced {
            Some(n) => self.conclude(n, at, moved.iter().chain(&back))?,
            None => self.note_name(op, at),
        }
        // Not before: of what had the name its bytes count until another is on record for it.
        match lost.and_then(|over| self.find(over.key)).or(replaced) {
            Some(file) => self.lost_name(&file, to),
            None => Ok(()),
        }
    }

    /// Cached files at or below a name.
    fn cached_below(&self, at: Named<'_>) -> Vec<Arc<File>> {
        if !at.is_dir {
            return self.find(at.key).into_iter().collect();
        }
        let below = |file: &Arc<File>| {
            let inner = file.lock();
            inner.state.paths.any_within(at.path)
        };
        self.all_files().into_iter().filter(below).collect()
    }

    /// Gives the files of both sides their new paths.
    fn moved(&self, moved: &[Arc<File>], back: &[Arc<File>], way: &Way<'_>) -> Result<()> {
        // One may have names on both sides.
        let is_new = |file: &&Arc<File>| moved.iter().all(|known| known.id != file.id);
        self.follow_way(moved.iter().chain(back.iter().filter(is_new)), way)
    }

    fn follow_way<'a>(
        &self,
        files: impl Iterator<Item = &'a Arc<File>>,
        way: &Way<'_>,
    ) -> Result<()> {
        for file in files {
            let mut inner = file.lock();
            let Way { from, to, mode } = way;
            inner.state.paths.change(|path| match mode {
                RenameMode::Exchange => rebased(path, from, to).or_else(|| rebased(path, to, from)),
                _ => rebased(path, from, to),
            });
            if inner.recorded {
                self.put(file, &mut inner)?;
            }
        }
        Ok(())
    }
}

/// How names changed.
struct Way<'a> {
    from: &'a Path,
    to: &'a Path,
    mode: RenameMode,
}

fn unlinked(at: Named<'_>) -> NameOp {
    NameOp::Unlink { path: at.path.into(), key: at.key }
}

fn renamed(from: Named<'_>, to: &Path, over: Option<Named<'_>>) -> NameOp {
    NameOp::Rename {
        from: from.path.into(),
        to: to.into(),
        key: from.key,
        over: over.map(|over| over.key),
        moved: moved_by(from.is_dir),
    }
}

fn exchanged(from: Named<'_>, over: Named<'_>) -> NameOp {
    NameOp::Exchange {
        from: from.path.into(),
        to: over.path.into(),
        key: from.key,
        with: over.key,
        moved: moved_by(from.is_dir || over.is_dir),
    }
}

fn moved_by(is_dir: bool) -> Moved {
    if is_dir { Moved::Dir } else { Moved::File }
}

/// A moment before the backing store was asked about a file.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    at: Instant,
    base_seq: u32,
    /// Somebody was changing it through us.
    changing: bool,
}

impl Asked {
    /// Whether nothing has changed it through us since.
    fn still_holds(&self, inner: &Inner) -> bool {
        let changed = inner.live.as_ref().and_then(|live| live.changed);
        !self.changing
            && inner.changing == 0
            && inner.base_seq == self.base_seq
            && changed.is_none_or(|changed| changed < self.at)
    }
}

fn asked_of(inner: &Inner) -> Asked {
    Asked { at: Instant::now(), base_seq: inner.base_seq, changing: inner.changing > 0 }
}

/// What a front-end decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub size: u64,
    pub complete: bool,
    pub wholly_dirty: bool,
    /// The mode has a set-user-id or set-group-id bit, which a write must take away.
    pub set_id: bool,
    /// Differs whenever the bytes may differ. `None` while somebody may write past us: a store into
    /// a mapping moves no time on some file systems, and nobody sees it.
    pub fingerprint: Option<NonZeroU64>,
}

fn fingerprint(size: u64, mtime: Timestamp, ctime: Timestamp) -> NonZeroU64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (size, mtime, ctime).hash(&mut hasher);
    NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN)
}

/// What the store said within `ttl`, unless something has changed there because of us.
fn recent(inner: &Inner, ttl: Duration) -> Option<&Seen> {
    let live = inner.live.as_ref().filter(|live| !live.moved && live.arounds == 0)?;
    let seen = live.seen.as_deref().filter(|seen| seen.at.elapsed() < ttl)?;
    let usable = inner.changing == 0 && !live.unlinked;
    (usable && inner.is_known(&seen.attr, seen.at)).then_some(seen)
}

/// Keeps what the store said of an open file at about `asked`. Returns whether somebody should ask
/// for its capability again: it had none once, and its ctime has moved since.
pub(crate) fn note_seen(inner: &mut Inner, asked: Instant, attr: &Attr) -> bool {
    let known = inner.is_known(attr, asked);
    let Some(live) = inner.live.as_mut().filter(|live| live.opens > 0 && known) else {
        return false;
    };
    if live.seen.as_ref().is_some_and(|seen| seen.at > asked) {
        return false; // Somebody asked later, and was answered sooner.
    }
    let before = live.seen.take();
    let (unmoved, known) = before
        .as_ref()
        .map_or((false, None), |seen| (seen.attr.version() == attr.version(), seen.no_capability));
    let no_capability = if unmoved && known.is_some() { Some(asked) } else { known };
    let seen = Seen { at: asked, attr: *attr, no_capability, asked_again: false };
    live.seen = Some(match before {
        Some(mut place) => {
            *place = seen;
            place
        }
        None => Box::new(seen),
    });
    known.is_some() && !unmoved
}

fn cached_attr(key: FileKey, inner: &Inner) -> Attr {
    let owner = inner.state.owner;
    let mut attr = Attr {
        key,
        kind: forebay_backing::FileKind::File,
        mode: owner.mode,
        nlink: owner.nlink,
        uid: owner.uid,
        gid: owner.gid,
        rdev: 0,
        size: inner.size(),
        blocks: inner.charged / 512,
        blksize: 4096,
        atime: inner.mtime(),
        mtime: inner.mtime(),
        ctime: inner.state.base.ctime,
        btime: Timestamp::default(),
    };
    inner.overlay(&mut attr, || None);
    attr
}
