//! Saving what a tier holds when its backing store or its index is gone.
//!
//! Reads the tier as [`crate::check`] does and changes nothing in it, so it can be repeated, and
//! the tier can still be recovered in the ordinary way when the backing store comes back.
//!
//! Without the backing store nobody can say whether a rename or unlink under way at the time of a
//! crash happened, and absent bytes cannot be had: both are told. Without the index the log still
//! names what changed last; a shadow file that no record speaks of is saved under its number.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use forebay_backing::{BackingFile, BackingStore, Error, New, Result, Timestamp};

use crate::engine::now_ms;
use crate::fill::CHUNK;
use crate::index::{self, Loaded};
use crate::log::{FileId, Intent};
use crate::media::{DirMedia, Media, Open};
use crate::recover::boot_id;
use crate::report::{Failure, Progress, Report};
use crate::resolve::make_parents;
use crate::state::{Boot, FileState, Owner, Verdict};
use crate::tier::{self, SHADOW_DIRS};

/// Where bytes go whose name is not known.
const NAMELESS: &str = "unnamed";

/// What was saved, and what somebody should know of it.
#[derive(Debug, Default)]
pub struct Salvaged {
    pub report: Report,
    pub problems: Vec<String>,
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

struct Salvage<'a> {
    media: DirMedia,
    to: &'a dyn BackingStore,
    progress: &'a Progress,
    done: Salvaged,
}

/// Writes every file with dirty bytes of the tier in `dir` to the store `to`, as far as the tier
/// has it. A file of which a part is only on the backing store is written with holes there, and
/// listed among the failures.
///
/// # Errors
///
/// If there is no tier, or somebody uses it.
pub fn salvage(dir: &Path, to: &dyn BackingStore, progress: &Progress) -> Result<Salvaged> {
    let _lock = tier::lock_existing(dir)?;
    let media =
        DirMedia::open(dir).map_err(|e| Error::io(e, format!("the tier {}", dir.display())))?;
    let mut salvage = Salvage { media, to, progress, done: Salvaged::default() };
    match index::load_read_only(&salvage.media) {
        Ok(loaded) => salvage.named(loaded),
        Err(e) => {
            let text = format!("the index cannot be read ({e}): names come from its log alone");
            salvage.done.problems.push(text);
            let loaded = index::load_logs(&salvage.media);
            let known = loaded.files.keys().copied().collect();
            salvage.named(loaded);
            salvage.nameless(&known)?;
        }
    }
    Ok(salvage.done)
}

impl Salvage<'_> {
    fn named(&mut self, loaded: Loaded) {
        let boot = loaded.boot(&boot_id());
        self.done.problems.extend(loaded.problems);
        self.done.problems.extend(loaded.intents.into_values().map(under_way));
        let dirty: Vec<_> =
            loaded.files.into_iter().filter(|(_, state)| state.may_be_dirty(boot)).collect();
        self.progress.total_files.fetch_add(dirty.len() as u64, Relaxed);
        for (id, mut state) in dirty {
            if self.stop() {
                return;
            }
            let shadow = self.media.stat(&tier::shadow_name(id)).ok();
            let before = state.dirty_bytes();
            let found = shadow.map(|stat| (stat.len, stat.mtime));
            match state.recover(boot, found, now_ms()) {
                Verdict::Keep if state.is_dirty() => self.file(id, &state),
                Verdict::Keep => {}
                Verdict::Drop { .. } if boot == Boot::Lost && found.is_some() => {}
                Verdict::Drop { .. } => {
                    let text = format!("{before} dirty bytes are lost: no shadow file");
                    self.failed(&state.display_path(), text);
                }
            }
        }
    }

    fn file(&mut self, id: FileId, state: &FileState) {
        let path = state.display_path();
        let present = state.ranges.iter().map(|run| (run.start, run.end)).collect();
        let (owner, size, mtime) = (state.owner, state.size, state.mtime);
        match self.copy(Piece { id, path: &path, owner, size, mtime, present }) {
            Ok(bytes) => self.saved(bytes),
            Err(e) => return self.failed(&path, e.to_string()),
        }
        let absent: u64 = state.ranges.gaps(0, state.size).iter().map(|(a, b)| b - a).sum();
        if absent > 0 {
            let text =
                format!("{absent} bytes are only on the backing store: holes stand for them");
            self.failed(&path, text);
        }
    }

    fn copy(&self, piece: Piece<'_>) -> Result<u64> {
        make_parents(self.to, piece.path);
        let Owner { mode, uid, gid, .. } = piece.owner;
        let (target, _) = self.to.create(piece.path, &New { mode, umask: 0, uid, gid })?;
        let bytes = match piece.present.is_empty() {
            true => 0,
            false => self.copy_bytes(piece.id, &piece.present, &*target)?,
        };
        target.set_len(piece.size)?;
        target.set_times(None, Some(piece.mtime))?;
        target.sync()?;
        Ok(bytes)
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

    /// Saves the shadow files that no record names, whole: nobody knows what of them is dirty.
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
        match self.copy(Piece { id, path: &path, owner, size, mtime, present }) {
            Ok(bytes) => {
                self.saved(bytes);
                let text = "its name and what of it is newer than the backing store are not known";
                self.done.problems.push(format!("{}: {text}", path.display()));
            }
            Err(e) => self.failed(&path, e.to_string()),
        }
    }

    fn stop(&mut self) -> bool {
        self.done.report.cancelled |= self.progress.is_cancelled();
        self.done.report.cancelled
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

fn under_way(intent: Intent) -> String {
    match intent {
        Intent::Rename { from, to, .. } => format!(
            "{} was being renamed to {}: it is saved under one of the two names",
            PathBuf::from(&from).display(),
            PathBuf::from(&to).display()
        ),
        Intent::Unlink { path, .. } => format!(
            "{} was being removed: it may be saved all the same",
            PathBuf::from(&path).display()
        ),
    }
}
