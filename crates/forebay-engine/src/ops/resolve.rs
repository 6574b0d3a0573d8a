//! Settling conflicts (S8).

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{
    Attr, BackingFile, Error, FileKey, FileKind, Kind, New, RenameMode, Result, Timestamp,
};

use crate::core::ranges::Ranges;
use crate::core::state::Change;
use crate::files::file::{File, Inner};
use crate::files::live::Meanwhile;
use crate::files::names::{Named, Names};
use crate::files::work::AtWork;
use crate::io::fill::CHUNK;
use crate::ops::Ops;
use crate::ops::operate::goes_on_with;
use crate::tier::media::{MediaFile, torn};

/// Which side of a conflict wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The dirty bytes here are flushed over the store's file.
    Ours,
    /// The dirty bytes here are thrown away.
    Theirs,
    /// The version here is saved beside the file, under a name that says so.
    Both,
}

/// The most bytes of a name on Linux.
const NAME_MAX: usize = 255;

/// Nobody else writes to a file that was made until this is dropped.
pub type Held = Box<dyn Any + Send + Sync>;

/// How the version here gets a name on the store. Where others share the store, they have a say in it.
pub trait Placing {
    /// Makes a file under a free name.
    fn create(&self, path: &Path, new: &New) -> Result<(Arc<dyn BackingFile>, Attr, Held)>;
    fn rename(
        &self,
        from: Named<'_>,
        to: &Path,
        over: Option<Named<'_>>,
        mode: RenameMode,
    ) -> Result<()>;
}

impl Placing for Names {
    fn create(&self, path: &Path, new: &New) -> Result<(Arc<dyn BackingFile>, Attr, Held)> {
        let (file, attr) = self.ask(|b| b.create(path, new))?;
        Ok((file, attr, Box::new(())))
    }

    fn rename(
        &self,
        from: Named<'_>,
        to: &Path,
        _over: Option<Named<'_>>,
        mode: RenameMode,
    ) -> Result<()> {
        self.ask(|b| b.rename(from.path, to, mode))
    }
}

/// The number of saves: a file that is written while it is saved is saved again.
const SAVES_MAX: u32 = 4;

/// A file that is read as a whole: until this is dropped no byte of it leaves the tier, no flush of
/// it begins, and writes to it are noted.
struct Still<'a> {
    ops: &'a Ops,
    file: &'a Arc<File>,
    /// A flight alone would let clean bytes be evicted.
    reads: Option<AtWork<'a>>,
}

/// A file to be written elsewhere.
struct Whole {
    shadow: Arc<dyn MediaFile>,
    /// Absent ranges, and the backing file to fetch them from.
    gaps: Vec<(u64, u64)>,
    theirs: Option<Arc<dyn BackingFile>>,
    size: u64,
    mtime: Timestamp,
}

impl Still<'_> {
    /// Throws the file away if it has not changed since this began; else keeps it and returns `false`.
    fn purge_unchanged(mut self) -> Result<bool> {
        let (ops, file) = (self.ops, self.file);
        let now = ops.attr_now(file);
        let mut inner = file.lock();
        let flight = inner.live().flight.as_ref().expect("W2: ended by this alone");
        if *flight.written() != Ranges::None {
            drop(inner); // Dropping `self` needs the lock.
            return Ok(false);
        }
        // Under the same lock: a write in between would be lost in both places.
        self.let_go(&mut inner);
        self.reads.take().expect("taken here alone").end(&mut inner);
        std::mem::forget(self);
        ops.purge_locked(file, inner, now).map(|()| true)
    }

    fn let_go(&self, inner: &mut Inner) {
        inner.live().end_flight();
        self.file.changed().notify_all();
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        let mut inner = self.file.lock();
        self.let_go(&mut inner);
        self.ops.files.retire(self.file, inner);
    }
}

impl Ops {
    /// Settles a conflict (S8). Durable on return.
    pub fn resolve(self: &Arc<Self>, path: &Path, keep: Keep) -> Result<()> {
        self.resolve_by(path, keep, &*self.names)
    }

    /// As [`Ops::resolve`], where the version here gets its name by `placing`. With [`Keep::Ours`] nobody
    /// else may write to the file that has the name.
    pub fn resolve_by(
        self: &Arc<Self>,
        path: &Path,
        keep: Keep,
        placing: &dyn Placing,
    ) -> Result<()> {
        let file = self.conflicted(path)?;
        match keep {
            Keep::Theirs => self.purge_file(&file)?,
            Keep::Ours => self.resolve_ours(&file, path, placing)?,
            Keep::Both => {
                let beside = self.beside(path, "ours")?;
                self.save(&file, &beside, placing, |_| Ok(()))?;
                tracing::info!(path = %path.display(), saved = %beside.display(), "conflict resolved");
            }
        }
        self.files.note_tier(self.files.index().sync())
    }

    /// Returns the key of the file with this name that is in conflict.
    pub fn conflicted_key(&self, path: &Path) -> Result<FileKey> {
        self.conflicted(path).map(|file| file.key)
    }

    fn conflicted(&self, path: &Path) -> Result<Arc<File>> {
        let named = |file: &Arc<File>| {
            let inner = file.lock();
            inner.state.conflict().stands() && inner.state.paths.has(path)
        };
        self.files.select(&[path.into()]).into_iter().find(named).ok_or_else(|| {
            Error::new(
                Kind::Usage,
                format!(
                    "{} has no conflict: 'forebay status' lists those that have",
                    path.display()
                ),
            )
        })
    }

    /// Returns a free name beside `path` that says whose version it is; a long name is cut.
    pub(crate) fn beside(&self, path: &Path, whose: &str) -> Result<PathBuf> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let named = |n: u32| {
            let end = format!(".forebay-{whose}-{n}");
            let kept = name.floor_char_boundary(NAME_MAX - end.len());
            path.with_file_name(format!("{}{end}", &name[..kept]))
        };
        let free = |beside: PathBuf| match self.names.ask(|b| b.stat(&beside)) {
            Ok(_) => None,
            Err(error) if error.is(libc::ENOENT) => Some(Ok(beside)),
            Err(error) => Some(Err(error)),
        };
        (1..).map(named).find_map(free).expect("some name is free")
    }

    fn resolve_ours(
        self: &Arc<Self>,
        file: &Arc<File>,
        path: &Path,
        placing: &dyn Placing,
    ) -> Result<()> {
        match self.names.ask(|b| b.stat(path)) {
            Ok(attr) if attr.key == file.key => {
                self.make_way(file)?;
                let mut inner = file.lock();
                if ends_behind(&inner.state.gaps(0, inner.size()), attr.size) {
                    return Err(too_short());
                }
                inner.note_base();
                // Clean bytes are of the version that programs here have read, which is gone from the
                // store: with the dirty ones they make up the version here, and are flushed with them.
                let clean = inner.state.clean(0, u64::MAX);
                let now_ms = self.files.time().ms();
                let (base, age) = (attr.version(), inner.state.age_at(now_ms));
                self.files.commit(file, &mut inner, Change::Ours { base, age })?;
                // The content that can be read here counts, whatever it was: it is flushed as it is.
                inner.doubt_it(None);
                for (start, end) in clean {
                    inner.touch(start, end, now_ms);
                }
                self.files.account(file, &mut inner);
                drop(inner);
                self.files.know_key(file);
                self.drain.flush_file(file)
            }
            // Written beside the foreign file and renamed over it: at any moment one of them is there whole.
            Ok(_) => {
                let beside = self.beside(path, "ours")?;
                self.save(file, &beside, placing, |key| {
                    let made = Named { path: &beside, key, is_dir: false };
                    self.put_in_place(made, path, placing)
                })
            }
            Err(e) if e.is(libc::ENOENT) => self.save(file, path, placing, |_| Ok(())),
            Err(e) => Err(e),
        }
    }

    /// Forgets the file that programs find in the place of one that was put aside.
    ///
    /// # Errors
    ///
    /// EBUSY if it is in use.
    fn make_way(&self, file: &Arc<File>) -> Result<()> {
        let known = self.files.find(file.key).filter(|known| !Arc::ptr_eq(known, file));
        let Some(known) = known else { return Ok(()) };
        let mut inner = known.lock();
        if !inner.is_idle() || inner.state.is_dirty() {
            let why = "programs here use the file that has its name now: close it, and flush it";
            return Err(Error::os(libc::EBUSY, why));
        }
        self.files.erase(&known, &mut inner);
        drop(inner);
        self.files.forget(&known);
        Ok(())
    }

    /// Renames a file that was made to `path`, over the file that has the name.
    fn put_in_place(&self, made: Named<'_>, path: &Path, placing: &dyn Placing) -> Result<()> {
        let over = match self.names.ask(|b| b.stat(path)) {
            Ok(theirs) if theirs.kind == FileKind::Dir => {
                self.move_aside(Named { path, key: theirs.key, is_dir: true }, placing)?;
                None
            }
            Ok(theirs) => Some(Named { path, key: theirs.key, is_dir: false }),
            Err(e) if e.is(libc::ENOENT) => None,
            Err(e) => return Err(e),
        };
        placing.rename(made, path, over, RenameMode::Replace)
    }

    /// Moves a directory aside: no file can be renamed over it, and its content is not the daemon's to remove.
    fn move_aside(&self, dir: Named<'_>, placing: &dyn Placing) -> Result<()> {
        let path = dir.path;
        let aside = self.beside(path, "theirs")?;
        placing.rename(dir, &aside, None, RenameMode::NoReplace)?;
        tracing::warn!(path = %path.display(), moved = %aside.display(), "a directory that had the file's name was moved aside");
        Ok(())
    }

    /// Writes the version here to `to`, a name that is free on the backing store, calls `place` to bring
    /// it to its place, and throws it away here.
    ///
    /// # Errors
    ///
    /// EBUSY if programs write to the file all the time: no byte may be missing in both places.
    fn save(
        &self,
        file: &Arc<File>,
        to: &Path,
        placing: &dyn Placing,
        place: impl Fn(FileKey) -> Result<()>,
    ) -> Result<()> {
        let mut held = Vec::new();
        for _ in 0..SAVES_MAX {
            let still = self.hold_still(file)?;
            if !file.lock().may_be_emptied() {
                return Err(Error::os(libc::EBUSY, "it is open past the daemon: close it first"));
            }
            let now = self.attr_now(file);
            goes_on_with(file, &file.lock(), now)?;
            let (key, made) = self.export_file(&still, to, placing)?;
            held.push(made);
            let done = place(key).and_then(|()| still.purge_unchanged());
            if matches!(done, Ok(true)) {
                return Ok(());
            }
            // A version that is not the last must not stay under that name.
            if self.names.ask(|b| b.stat(to)).is_ok_and(|attr| attr.key == key) {
                self.names.ask(|b| b.unlink(to))?;
            }
            done?;
        }
        Err(Error::os(libc::EBUSY, "programs write to it all the time: close it first"))
    }

    /// Holds the file still, after the flight that is under way, if any.
    fn hold_still<'a>(&'a self, file: &'a Arc<File>) -> Result<Still<'a>> {
        for _ in 0..SAVES_MAX {
            let mut inner = file.lock();
            if inner.live().flight.is_none() {
                inner.live().begin_flight();
                let reads = Some(self.files.work_on(file, inner, Meanwhile::Refused));
                return Ok(Still { ops: self, file, reads });
            }
            drop(inner);
            self.drain.wait_for_flight(file)?;
        }
        Err(Error::os(libc::EBUSY, "it is being flushed all the time"))
    }

    /// Writes the file as programs see it to `to`, a name that is free on the store. Returns the
    /// key of the new file.
    fn export_file(
        &self,
        still: &Still<'_>,
        to: &Path,
        placing: &dyn Placing,
    ) -> Result<(FileKey, Held)> {
        let file = still.file;
        let (owner, size, mtime, shadow, gaps) = {
            let mut inner = file.lock();
            let shadow = self.files.shadow(file, &mut inner)?;
            let size = inner.size();
            let gaps = inner.state.gaps(0, size);
            (inner.state.owner(), size, inner.mtime(), shadow, gaps)
        };
        let theirs = match gaps.is_empty() {
            true => None,
            false => Some(self.files.backing_file(file).map_err(|e| {
                e.context("only parts of the file are in the tier and the rest is gone")
            })?),
        };
        let new = New { mode: owner.mode, umask: 0, uid: owner.uid, gid: owner.gid };
        let (target, made, held) = placing.create(to, &new)?;
        let whole = Whole { shadow, theirs, gaps, size, mtime };
        if let Err(error) = self.copy_whole(&whole, &*target) {
            // A part of the file must not stay under that name.
            let _ = self.home.backing().unlink(to);
            return Err(error);
        }
        Ok((made.key, held))
    }

    fn copy_whole(&self, whole: &Whole, target: &dyn BackingFile) -> Result<()> {
        let Whole { shadow, theirs, gaps, size, mtime } = whole;
        let mut buf = vec![0; CHUNK as usize];
        let mut at = 0;
        while at < *size {
            let want = (buf.len() as u64).min(size - at) as usize;
            let n = self.files.note_tier(shadow.read_at(&mut buf[..want], at))?;
            if !are_gaps(gaps, at + n as u64, at + want as u64) {
                return self.files.note_tier(Err(torn()));
            }
            if let Some(theirs) = theirs {
                patch(&mut buf[..want], at, gaps, &**theirs)?;
            }
            target.write_at(&buf[..want], at)?;
            at += want as u64;
        }
        target.set_len(*size)?;
        target.set_times(None, Some(*mtime))?;
        target.sync()
    }
}

/// Whether all of `[start, end)` lies in `gaps`, which are sorted.
fn are_gaps(gaps: &[(u64, u64)], start: u64, end: u64) -> bool {
    let reached = gaps.iter().fold(start, |at, &(a, b)| if a <= at { at.max(b) } else { at });
    start >= end || reached >= end
}

/// Fetches the absent parts of `[at, at + buf.len())` into `buf`.
fn patch(buf: &mut [u8], at: u64, gaps: &[(u64, u64)], theirs: &dyn BackingFile) -> Result<()> {
    let end = at + buf.len() as u64;
    for &(a, b) in gaps {
        let (a, b) = (a.max(at), b.min(end));
        if a >= b {
            continue;
        }
        let n = theirs.read_at(&mut buf[(a - at) as usize..(b - at) as usize], a)?;
        if (n as u64) < b - a {
            return Err(too_short());
        }
    }
    Ok(())
}

/// Whether a file of `size` lacks some of the bytes that are absent here.
fn ends_behind(gaps: &[(u64, u64)], size: u64) -> bool {
    gaps.last().is_some_and(|gap| gap.1 > size)
}

fn too_short() -> Error {
    let gone = "only parts of the file are in the tier, and the backing file, which was to have the rest, is shorter";
    Error::os(libc::EIO, gone)
}
