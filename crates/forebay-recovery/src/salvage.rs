//! Saving the contents of a tier to another place than its backing store.
//!
//! Reads the tier as [`crate::check`] does and changes nothing in it, so it can be repeated, and
//! the tier can still be recovered in the ordinary way. There is no engine, hence no drain. The
//! backing store, if given, is a [`Source`], which can only be read.
//!
//! A rename or unlink that was under way at a crash is not settled, but reported. Absent bytes that
//! cannot be read become holes, and are reported too. Without the index the log still names the
//! files that changed last; a shadow file without a record is saved under its number.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use forebay_backing::{BackingFile, BackingStore, Error, FileKind, New, Result, Timestamp};

use crate::core::id::FileId;
use crate::core::journal::{NameOp, Told};
use crate::core::ranges::{Ranges, State};
use crate::core::report::{Failure, Progress, Report};
use crate::core::state::{Boot, Owner, Record, Verdict};
use crate::report::RecoveryReport;
use crate::salvage::source::{Source, Theirs};
use crate::tier::dir as tier;
use crate::tier::dir::SHADOW_DIRS;
use crate::tier::index::Loaded;
use crate::tier::media::{Media, Open};
use crate::tier::shadows::Found;
use crate::tier::witness::{Since, Witness};
use crate::tier::{index, shadows};
use crate::time::Time;

mod source;

/// Bytes moved by one call.
const CHUNK: u64 = 1 << 20;

/// The directory for files whose names are not known.
const NAMELESS: &str = "unnamed";

/// The saved files, and the problems.
#[derive(Debug, Default)]
pub struct Salvaged {
    pub report: Report,
    pub found: RecoveryReport,
}

/// One file to be written.
struct Piece<'a> {
    id: FileId,
    path: &'a Path,
    owner: Owner,
    size: u64,
    mtime: Timestamp,
    present: Vec<(u64, u64)>,
}

/// The number of bytes fetched from the backing store; or, as text, what could not be fetched.
type Fetched = std::result::Result<u64, String>;

struct Salvage<'a> {
    media: &'a dyn Media,
    from: Option<Source<'a>>,
    to: &'a dyn BackingStore,
    progress: &'a Progress,
    done: Salvaged,
}

impl Salvage<'_> {
    fn named(&mut self, mut loaded: Loaded, now: &Witness) {
        let (since, boot) = (loaded.since(now), loaded.boot(now));
        self.done.found.same_boot = since != Since::Rebooted;
        self.done.found.remounted = since == Since::Remounted;
        self.done.found.clean_shutdown = loaded.clean_shutdown;
        self.done.found.problems.extend(loaded.damage.iter().chain(&loaded.problems).cloned());
        let announced = loaded.names.steps().into_iter().filter(|s| s.told == Told::Announced);
        self.done.found.problems.extend(announced.filter_map(|step| under_way(&step.op)));
        self.done.found.files += loaded.files.len() as u64;
        // A file in doubt may be dirty although its record says clean.
        let files = std::mem::take(&mut loaded.files).into_iter();
        let wanted = |id, state: &Record| state.may_be_dirty(boot) || loaded.is_in_doubt(id);
        let mut wanted: Vec<_> = files.filter(|(id, state)| wanted(*id, state)).collect();
        // If two files have the same name, the one that is not in doubt gets it.
        wanted.sort_by_key(|(id, _)| loaded.is_in_doubt(*id));
        self.progress.total_files.fetch_add(wanted.len() as u64, Relaxed);
        for (id, state) in wanted {
            if self.stop() {
                return;
            }
            match loaded.is_in_doubt(id) {
                true => self.doubtful_file(id, state),
                false => self.dirty_file(id, state, boot),
            }
        }
    }

    fn dirty_file(&mut self, id: FileId, mut record: Record, boot: Boot) {
        let path = record.display_path();
        let before = record.clone();
        let found = match shadows::look(self.media, id, &record, boot) {
            Ok(found) => found,
            Err(e) => return self.failed(&path, format!("its shadow file: {e}")),
        };
        let survived = record.recover(boot, found.shadow(&before), Time::default().ms());
        self.dropped(survived.dropped);
        if survived.lost > 0 {
            self.done.found.lost_files += 1;
            self.done.found.lost_bytes += survived.lost;
            self.failed(&path, found.problem(id, survived.lost).unwrap_or_default());
        }
        if survived.verdict == Verdict::Keep && record.is_dirty() {
            self.done.found.dirty_files += 1;
            self.done.found.dirty_bytes += record.dirty_bytes();
            self.file(id, &record);
        }
    }

    /// Saves the bytes in the tier of a file whose record may be older than its shadow, whatever
    /// the record says is present.
    fn doubtful_file(&mut self, id: FileId, mut record: Record) {
        let Ok(stat) = self.media.stat(&tier::shadow_name(id)) else { return };
        if stat.kind != FileKind::File || stat.len == 0 {
            return;
        }
        if self.to.stat(&record.display_path()).is_ok() {
            return self.nameless_file(id);
        }
        record.believe(stat.len, stat.mtime, self.data_of(id, stat.len));
        self.file(id, &record);
        let text = "records of it may be damaged: holes of its shadow file came from the backing store, and the rest may be older or newer than that";
        self.failed(&record.display_path(), text.into());
    }

    /// Returns the ranges of a shadow that are no holes.
    fn data_of(&self, id: FileId, len: u64) -> Ranges {
        let mut data = Ranges::None;
        let Ok(shadow) = self.media.open(&tier::shadow_name(id), Open::Existing) else {
            return data;
        };
        let mut at = 0;
        while let Ok(Some((start, end))) = shadow.next_data(at) {
            data.set(start, end.min(len), State::Dirty);
            at = end;
        }
        data
    }

    fn file(&mut self, id: FileId, record: &Record) {
        let path = record.display_path();
        let present = record.present(0, record.size());
        let (owner, size, mtime) = (record.owner(), record.size(), record.mtime());
        let copied = self.copy(Piece { id, path: &path, owner, size, mtime, present }, |target| {
            self.rest(record, target)
        });
        match copied {
            Ok((bytes, rest)) => {
                self.saved(bytes);
                if let Err(why) = rest {
                    self.failed(&path, why);
                }
            }
            Err(e) => self.failed(&path, e.to_string()),
        }
    }

    /// Fetches the bytes of a file that the tier lacks. The error says what is missing, or what
    /// takes its place.
    fn rest(&self, record: &Record, target: &dyn BackingFile) -> Fetched {
        let gaps = record.gaps(0, record.size());
        let absent: u64 = gaps.iter().map(|(a, b)| b - a).sum();
        if absent == 0 {
            return Ok(0);
        }
        let holes = |why: &str| {
            format!("{absent} bytes are only on the backing store{why}: holes stand for them")
        };
        let Some(from) = &self.from else { return Err(holes("")) };
        let fetched = from
            .open(record.paths.iter(), record.key)
            .and_then(|theirs| fetch(&theirs, &gaps, target).map(|()| theirs.version));
        match fetched {
            Err(why) => Err(holes(&format!(" ({why})"))),
            // A flush by the daemon, which a crash has cut off, has changed only ranges that are dirty here.
            Ok(version) if version == record.base() || record.flush_is_open() => Ok(absent),
            Ok(_) => Err(format!(
                "the backing file has changed: {absent} bytes that the tier has not are of its new version"
            )),
        }
    }

    /// Copies a file; returns the bytes written, and the result of `rest`.
    fn copy(
        &self,
        piece: Piece<'_>,
        rest: impl FnOnce(&dyn BackingFile) -> Fetched,
    ) -> Result<(u64, std::result::Result<(), String>)> {
        make_parents(self.to, piece.path);
        let Owner { mode, uid, gid, .. } = piece.owner;
        let (target, _) = self.to.create(piece.path, &New { mode, umask: 0, uid, gid })?;
        let bytes = match piece.present.is_empty() {
            true => 0,
            false => self.copy_bytes(piece.id, &piece.present, &*target)?,
        };
        target.set_len(piece.size)?;
        let fetched = rest(&*target);
        target.set_times(None, Some(piece.mtime))?;
        target.sync()?;
        let theirs = fetched.as_ref().copied().unwrap_or(0);
        Ok((bytes + theirs, fetched.map(drop)))
    }

    fn copy_bytes(
        &self,
        id: FileId,
        present: &[(u64, u64)],
        target: &dyn BackingFile,
    ) -> Result<u64> {
        let name = tier::shadow_name(id);
        let tier = |e| Error::io(e, format!("the shadow file {name}"));
        let shadow = self.media.open(&name, Open::Existing).map_err(tier)?;
        let mut buf = vec![0; CHUNK as usize];
        let mut bytes = 0;
        for &(start, end) in present {
            let mut at = start;
            while at < end {
                let part = &mut buf[..(end - at).min(CHUNK) as usize];
                if shadow.read_at(part, at).map_err(tier)? < part.len() {
                    let text = format!("the shadow file {name} is shorter than the record of it");
                    return Err(Error::os(libc::EIO, text));
                }
                target.write_at(part, at)?;
                at += part.len() as u64;
            }
            bytes += end - start;
        }
        Ok(bytes)
    }

    /// Saves the shadow files that no record names, whole: it is not known which of their bytes are dirty.
    fn nameless(&mut self, known: &HashSet<FileId>) -> Result<()> {
        for dir in 0..SHADOW_DIRS {
            let names = self.media.list(&tier::shadow_dir(FileId(dir)));
            let names = names.map_err(|e| Error::io(e, "listing the shadow files"))?;
            let ids = names.iter().filter_map(|name| u64::from_str_radix(name, 16).ok());
            for id in ids.map(FileId).filter(|id| !known.contains(id)) {
                if self.stop() {
                    return Ok(());
                }
                self.nameless_file(id);
            }
        }
        Ok(())
    }

    fn nameless_file(&mut self, id: FileId) {
        let path = PathBuf::from(format!("{NAMELESS}/{:x}", id.0));
        let Ok(stat) = self.media.stat(&tier::shadow_name(id)) else { return };
        if let Some(why) = Found::of(stat, 0).problem(id, 0) {
            return self.failed(&path, why);
        }
        if stat.len == 0 {
            return;
        }
        self.progress.total_files.fetch_add(1, Relaxed);
        let owner = Owner {
            mode: 0o600,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            nlink: 1,
        };
        let (size, mtime, present) = (stat.len, stat.mtime, vec![(0, stat.len)]);
        match self.copy(Piece { id, path: &path, owner, size, mtime, present }, |_| Ok(0)) {
            Ok((bytes, _)) => {
                self.saved(bytes);
                let text = "its name and what of it is newer than the backing store are not known";
                self.done.found.problems.push(format!("{}: {text}", path.display()));
            }
            Err(e) => self.failed(&path, e.to_string()),
        }
    }

    fn stop(&mut self) -> bool {
        self.done.report.cancelled |= self.progress.is_cancelled();
        self.done.report.cancelled
    }

    fn dropped(&mut self, bytes: u64) {
        self.done.found.dropped_bytes += bytes;
        self.done.found.dropped_files += u64::from(bytes > 0);
    }

    fn saved(&mut self, bytes: u64) {
        self.done.report.files += 1;
        self.done.report.bytes += bytes;
        self.progress.done_files.fetch_add(1, Relaxed);
        self.progress.done_bytes.fetch_add(bytes, Relaxed);
    }

    fn failed(&mut self, path: &Path, error: String) {
        self.progress.failed_files.fetch_add(1, Relaxed);
        self.done.report.failures.push(Failure { path: path.into(), state: "failed", error });
    }
}

/// Writes every file with dirty bytes of the tier in `dir` to the store `to`. Bytes that the tier
/// lacks are read from the backing store `from`; if they cannot be read, a hole takes their place,
/// and the file is listed among the failures. Nothing is changed in the tier or in `from`.
///
/// # Errors
///
/// If `dir` is no tier, or the tier is in use.
pub fn salvage(
    dir: &Path,
    from: Option<&dyn BackingStore>,
    to: &dyn BackingStore,
    progress: &Progress,
) -> Result<Salvaged> {
    let tier = tier::open_existing(dir)?;
    let mut salvaged = salvage_on(&tier.media, from, to, progress)?;
    salvaged.found.problems.extend(tier.damage.as_ref().map(ToString::to_string));
    Ok(salvaged)
}

/// The same for an unused tier on any medium.
///
/// # Errors
///
/// If the tier cannot be listed.
pub fn salvage_on(
    media: &dyn Media,
    from: Option<&dyn BackingStore>,
    to: &dyn BackingStore,
    progress: &Progress,
) -> Result<Salvaged> {
    let from = from.map(Source::of);
    let mut salvage = Salvage { media, from, to, progress, done: Salvaged::default() };
    let now = Witness::here(media);
    match index::load_read_only(media, &now) {
        Ok(loaded) if loaded.damage.is_empty() => salvage.named(loaded, &now),
        Ok(loaded) => {
            let known = loaded.files.keys().copied().collect();
            salvage.named(loaded, &now);
            salvage.nameless(&known)?;
        }
        Err(e) => {
            let text = format!("the index cannot be read ({e}): names come from its log alone");
            salvage.done.found.problems.push(text);
            let loaded = index::load_logs(media, &now);
            let known = loaded.files.keys().copied().collect();
            salvage.named(loaded, &now);
            salvage.nameless(&known)?;
        }
    }
    Ok(salvage.done)
}

/// Copies `gaps` from the backing store.
fn fetch(theirs: &Theirs, gaps: &[(u64, u64)], target: &dyn BackingFile) -> Result<()> {
    let mut buf = vec![0; CHUNK as usize];
    for &(start, end) in gaps {
        let mut at = start;
        while at < end {
            let part = &mut buf[..(end - at).min(CHUNK) as usize];
            theirs.read(part, at)?;
            target.write_at(part, at)?;
            at += part.len() as u64;
        }
    }
    Ok(())
}

fn make_parents(store: &dyn BackingStore, path: &Path) {
    let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
    parents.reverse();
    for parent in parents.into_iter().filter(|p| !p.as_os_str().is_empty()) {
        let new = New {
            mode: 0o755,
            umask: 0,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        };
        let _ = store.mkdir(parent, &new);
    }
}

fn under_way(op: &NameOp) -> Option<String> {
    match op {
        NameOp::Rename { from, to, .. } | NameOp::Exchange { from, to, .. } => Some(format!(
            "{} was being renamed to {}: it is saved under one of the two names",
            from.display(),
            to.display()
        )),
        NameOp::Unlink { path, .. } => {
            Some(format!("{} was being removed: it may be saved all the same", path.display()))
        }
        NameOp::Create { .. } | NameOp::Link { .. } => None,
    }
}
