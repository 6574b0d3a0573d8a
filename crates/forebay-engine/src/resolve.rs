//! Settling conflicts (S8), and bringing dirty files to another place than their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_backing::{BackingFile, BackingStore, Error, Kind, New, Result};

use crate::engine::Engine;
use crate::file::File;
use crate::fill::CHUNK;
use crate::operate::failure;
use crate::ranges::State;
use crate::report::{Progress, Report};

/// Which side of a conflict wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Our dirty bytes are flushed over what is there.
    Ours,
    /// Our dirty bytes are thrown away.
    Theirs,
    /// Ours are saved beside the file, under a name that says so.
    Both,
}

impl Engine {
    /// Settles a conflict (S8).
    pub fn resolve(self: &Arc<Self>, path: &Path, keep: Keep) -> Result<()> {
        let file = self.conflicted(path)?;
        match keep {
            Keep::Theirs => self.purge_file(&file),
            Keep::Ours => self.resolve_ours(&file, path),
            Keep::Both => {
                let beside = self.beside(path);
                self.export_file(&file, &*self.backing, &beside)?;
                tracing::info!(path = %path.display(), saved = %beside.display(), "conflict resolved");
                self.purge_file(&file)
            }
        }
    }

    fn conflicted(&self, path: &Path) -> Result<Arc<File>> {
        let named = |file: &Arc<File>| {
            let inner = file.lock();
            inner.state.flags.conflict && inner.state.paths.iter().any(|p| **p == *path)
        };
        self.all_files().into_iter().find(named).ok_or_else(|| {
            Error::new(
                Kind::Usage,
                format!(
                    "{} has no conflict: 'forebay status' lists those that have",
                    path.display()
                ),
            )
        })
    }

    fn beside(&self, path: &Path) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        (1..)
            .map(|n| path.with_file_name(format!("{name}.forebay-ours-{n}")))
            .find(|candidate| self.ask(|b| b.stat(candidate)).is_err())
            .expect("some name is free")
    }

    fn resolve_ours(self: &Arc<Self>, file: &Arc<File>, path: &Path) -> Result<()> {
        match self.ask(|b| b.stat(path)) {
            Ok(attr) if attr.key == file.key => {
                let mut inner = file.lock();
                inner.state.base = attr.version();
                inner.base_seq += 1;
                inner.state.flags.conflict = false;
                inner.state.flags.flush_open = false;
                // Bytes cached from the old version no longer match what is there.
                let clean: Vec<_> =
                    inner.state.ranges.iter().filter(|run| run.state == State::Clean).collect();
                for run in clean {
                    inner.state.ranges.clear(run.start, run.end);
                }
                self.put(file, &mut inner)?;
                drop(inner);
                self.flush_file(file)
            }
            Ok(_) => {
                self.replace_there(file, path)?;
                self.purge_file(file)
            }
            Err(e) if e.is(libc::ENOENT) => {
                self.export_file(file, &*self.backing, path)?;
                self.purge_file(file)
            }
            Err(e) => Err(e),
        }
    }

    /// Writes our version beside the foreign file and renames it over: either is there whole.
    fn replace_there(&self, file: &Arc<File>, path: &Path) -> Result<()> {
        let beside = self.beside(path);
        self.export_file(file, &*self.backing, &beside)?;
        self.ask(|b| b.rename(&beside, path, forebay_backing::RenameMode::Replace))
    }

    /// Writes the file as programs see it to `to`, a name that is free there.
    fn export_file(&self, file: &Arc<File>, store: &dyn BackingStore, to: &Path) -> Result<u64> {
        let (owner, size, mtime, shadow, gaps) = {
            let mut inner = file.lock();
            let shadow = self.shadow(file, &mut inner)?;
            let size = inner.size();
            let gaps = if inner.state.flags.opaque {
                Vec::new()
            } else {
                inner.state.ranges.gaps(0, size)
            };
            (inner.state.owner, size, inner.mtime(), shadow, gaps)
        };
        let theirs = match gaps.is_empty() {
            true => None,
            false => Some(self.backing_file(file).map_err(|e| {
                e.context("only parts of the file are in the tier and the rest is gone")
            })?),
        };
        let new = New { mode: owner.mode, uid: owner.uid, gid: owner.gid };
        let (target, _) = store.create(to, &new)?;
        let mut buf = vec![0; CHUNK as usize];
        let mut at = 0;
        while at < size {
            let want = (buf.len() as u64).min(size - at) as usize;
            self.note_tier(shadow.read_at(&mut buf[..want], at))?;
            if let Some(theirs) = &theirs {
                patch(&mut buf[..want], at, &gaps, &**theirs)?;
            }
            target.write_at(&buf[..want], at)?;
            at += want as u64;
        }
        target.set_len(size)?;
        target.set_times(None, Some(mtime))?;
        target.sync()?;
        Ok(size)
    }

    /// Writes every file that has dirty bytes to another store, whole where the rest of it can be
    /// had. The tier stays as it is.
    pub fn export_dirty(&self, to: &dyn BackingStore, progress: &Progress) -> Report {
        let mut files = self.select(&[]);
        files.retain(|file| file.lock().state.is_dirty());
        progress.total_files.store(files.len() as u64, Relaxed);
        let mut report = Report::default();
        for file in files {
            if progress.is_cancelled() {
                report.cancelled = true;
                break;
            }
            let Some(path) = file.path() else { continue };
            make_parents(to, &path);
            match self.export_file(&file, to, &path) {
                Ok(bytes) => {
                    report.files += 1;
                    report.bytes += bytes;
                    progress.done_files.fetch_add(1, Relaxed);
                    progress.done_bytes.fetch_add(bytes, Relaxed);
                }
                Err(e) => {
                    progress.failed_files.fetch_add(1, Relaxed);
                    report.failures.push(failure(&file.lock(), &e));
                }
            }
        }
        report
    }
}

/// Fetches what is absent of `[at, at + buf.len())` into `buf`.
fn patch(buf: &mut [u8], at: u64, gaps: &[(u64, u64)], theirs: &dyn BackingFile) -> Result<()> {
    let end = at + buf.len() as u64;
    for &(a, b) in gaps {
        let (a, b) = (a.max(at), b.min(end));
        if a < b {
            theirs.read_at(&mut buf[(a - at) as usize..(b - at) as usize], a)?;
        }
    }
    Ok(())
}

pub(crate) fn make_parents(store: &dyn BackingStore, path: &Path) {
    let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
    parents.reverse();
    for parent in parents.into_iter().filter(|p| !p.as_os_str().is_empty()) {
        let new = New {
            mode: 0o755,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        };
        let _ = store.mkdir(parent, &new);
    }
}
