//! Settling conflicts (S8) of a store that members share.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Attr, BackingFile, Error, FileKey, FileKind, Kind, New, RenameMode, Result};
use forebay_cluster::core::{Access, Ends};
use forebay_cluster::front::{Guard, Place};
use forebay_engine::{Held, Keep, Named, Placing};

use super::Vfs;
use super::homes::moved;
use super::members::Settled;

/// The version here gets its name as a program's file does. The file that it replaces is claimed.
struct Claimed<'a>(&'a Vfs);

impl Placing for Claimed<'_> {
    fn create(&self, path: &Path, new: &New) -> Result<(Arc<dyn BackingFile>, Attr, Held)> {
        let Claimed(vfs) = self;
        let cluster = vfs.cluster().ok_or_else(moved)?;
        let dir = vfs.dir_of(path)?;
        let _making = cluster.create(dir, path)?;
        let made = vfs.engine.names.ask(|b| b.create(path, new));
        vfs.foresight.answers.doubt(path);
        let (file, attr) = made?;
        Ok((file, attr, cluster.created(attr.key, dir, path)))
    }

    fn rename(
        &self,
        from: Named<'_>,
        to: &Path,
        over: Option<Named<'_>>,
        mode: RenameMode,
    ) -> Result<()> {
        let Claimed(vfs) = self;
        let gate = from.is_dir.then(|| vfs.leave_to_move(from.path)).transpose()?;
        let renamed = vfs.rename_on_store(from, to, over, mode, None, gate.as_ref());
        [from.path, to].into_iter().for_each(|path| vfs.foresight.answers.doubt(path));
        renamed
    }
}

impl Vfs {
    /// Settles a conflict. The file on the store that changes by that is claimed before, and until it is done.
    ///
    /// # Errors
    ///
    /// [`Kind::Usage`] if another member is the home of that file; otherwise as [`forebay_engine::Ops::resolve`].
    pub fn resolve(&self, path: &Path, keep: Keep) -> Result<()> {
        if self.cluster().is_none() || keep == Keep::Theirs {
            return self.engine.ops.resolve(path, keep);
        }
        let conflicted = self.engine.ops.conflicted_key(path)?;
        let theirs = match keep {
            Keep::Ours => self.theirs(path)?,
            Keep::Theirs | Keep::Both => None,
        };
        let goes = theirs.map(|attr| attr.key);
        let _alone = self.alone_with(goes)?;
        let file = theirs.filter(|attr| attr.kind != FileKind::Dir);
        let _claim =
            file.map(|attr| self.leave_to_change(attr.key, path, conflicted)).transpose()?;
        if goes.is_some() && self.theirs(path)?.map(|attr| attr.key) != goes {
            return Err(Error::os(libc::ESTALE, "another file has got the name: try again"));
        }
        let settled = self.engine.ops.resolve_by(path, keep, &Claimed(self));
        // Programs here may have read theirs.
        if let Some(key) = goes {
            self.forget_file(key, &Ends::default());
        }
        settled
    }

    fn theirs(&self, path: &Path) -> Result<Option<Attr>> {
        match self.engine.names.ask(|b| b.stat(path)) {
            Err(error) if error.is(libc::ENOENT) => Ok(None),
            found => found.map(Some),
        }
    }

    /// No other member may hold files in a directory that is moved.
    fn leave_to_move(&self, dir: &Path) -> Result<Settled> {
        match self.cluster().ok_or_else(moved)?.change(&[], Some(dir))? {
            Place::Here(gate) => Ok(Settled::Here(gate)),
            Place::There(_) => Err(moved()),
        }
    }

    /// Claims the file that has the name of one in conflict: to be written if it is that file, else to be replaced.
    fn leave_to_change(
        &self,
        theirs: FileKey,
        path: &Path,
        conflicted: FileKey,
    ) -> Result<Option<Guard>> {
        let cluster = self.cluster().ok_or_else(moved)?;
        let dir = self.as_found(self.dir_of(path)?, path);
        let place = match theirs == conflicted {
            true => self.open_at(theirs, (dir, path), Access::Write)?,
            false => cluster.change(&[(theirs, dir)], None)?,
        };
        match place {
            Place::Here(guard) => Ok(guard),
            Place::There(home) => {
                let what = format!(
                    "{}: member {home} may have newer bytes of it, which `ours` would overwrite: `forebay flush --wait` it there, have it closed there, and try again; or keep theirs, or both",
                    path.display()
                );
                Err(Error::new(Kind::Usage, what))
            }
        }
    }
}
