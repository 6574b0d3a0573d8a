//! The delegation of a wrapped store, written once for all layers.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::file::WrappedFile;
use super::layer::{Call, Done, Layer, Verb};
use crate::{
    Access, Attr, BackingFile, BackingStore, DirEntry, FileKey, FileKind, New, Pin, RenameMode,
    Result, SetAttr, Sizes, StatFs, XattrMode,
};

/// A store whose every call goes through `L`.
pub struct Wrapped<L> {
    inner: Arc<dyn BackingStore>,
    layer: Arc<L>,
}

impl<L: Layer> Wrapped<L> {
    pub fn new(inner: Arc<dyn BackingStore>, layer: Arc<L>) -> Arc<Wrapped<L>> {
        Arc::new(Wrapped { inner, layer })
    }

    /// The layer, for its counters and settings.
    pub fn layer(&self) -> &Arc<L> {
        &self.layer
    }

    fn go<T>(&self, verb: Verb, paths: &[&Path], run: impl FnMut() -> Result<T>) -> Result<T> {
        around(&*self.layer, &Call { verb, paths, offset: 0, len: 0 }, run)
    }

    fn file(&self, inner: Arc<dyn BackingFile>, path: &Path) -> Arc<dyn BackingFile> {
        Arc::new(WrappedFile::new(inner, self.layer.clone(), path))
    }
}

struct WrappedPin<L: Layer> {
    /// The pin; `None` once it is dropped.
    inner: Option<Arc<dyn Pin>>,
    layer: Arc<L>,
    path: PathBuf,
}

impl<L: Layer> WrappedPin<L> {
    fn pin(&self) -> &dyn Pin {
        &**self.inner.as_ref().expect("taken by who drops it only")
    }
}

impl<L: Layer> Pin for WrappedPin<L> {
    fn open(&self, access: Access) -> Result<(Arc<dyn BackingFile>, Attr)> {
        let call = Call { verb: Verb::Open, paths: &[&self.path], offset: 0, len: 0 };
        let (file, attr) = around(&*self.layer, &call, || self.pin().open(access))?;
        Ok((Arc::new(WrappedFile::new(file, self.layer.clone(), &self.path)), attr))
    }

    fn xattr_get(&self, name: &OsStr) -> Result<Vec<u8>> {
        let call = Call { verb: Verb::XattrGet, paths: &[&self.path], offset: 0, len: 0 };
        around(&*self.layer, &call, || self.pin().xattr_get(name))
    }
}

/// With its last descriptor the store frees a file without a name.
impl<L: Layer> Drop for WrappedPin<L> {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        self.layer.part(Box::new(move || {
            drop(inner);
            Ok(())
        }));
    }
}

/// Makes a call that moves no file data.
pub fn around<L: Layer, T>(
    layer: &L,
    call: &Call<'_>,
    mut run: impl FnMut() -> Result<T>,
) -> Result<T> {
    layer.around(call, || run().map(|value| Done { value, bytes: 0 })).map(|done| done.value)
}

impl<L: Layer> BackingStore for Wrapped<L> {
    fn identity(&self) -> Result<String> {
        self.go(Verb::Identity, &[], || self.inner.identity())
    }

    /// A property of the store, known without a call.
    fn sizes(&self) -> Sizes {
        self.inner.sizes()
    }

    fn stat(&self, path: &Path) -> Result<Attr> {
        self.go(Verb::Stat, &[path], || self.inner.stat(path))
    }

    fn stat_all(&self, path: &Path) -> Result<(Attr, Vec<OsString>)> {
        self.go(Verb::Stat, &[path], || self.inner.stat_all(path))
    }

    fn lists_acls(&self) -> bool {
        self.inner.lists_acls()
    }

    fn clocks_differ(&self) -> Duration {
        self.inner.clocks_differ()
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn BackingFile>> {
        let file = self.go(Verb::Open, &[path], || self.inner.open(path, access))?;
        Ok(self.file(file, path))
    }

    fn open_seen(&self, path: &Path, access: Access) -> Result<(Arc<dyn BackingFile>, Attr)> {
        let (file, attr) = self.go(Verb::Open, &[path], || self.inner.open_seen(path, access))?;
        Ok((self.file(file, path), attr))
    }

    fn create(&self, path: &Path, new: &New) -> Result<(Arc<dyn BackingFile>, Attr)> {
        let (file, attr) = self.go(Verb::Create, &[path], || self.inner.create(path, new))?;
        Ok((self.file(file, path), attr))
    }

    fn mkdir(&self, path: &Path, new: &New) -> Result<Attr> {
        self.go(Verb::Mkdir, &[path], || self.inner.mkdir(path, new))
    }

    fn mknod(&self, path: &Path, new: &New, kind: FileKind, rdev: u64) -> Result<Attr> {
        self.go(Verb::Mknod, &[path], || self.inner.mknod(path, new, kind, rdev))
    }

    fn symlink(&self, path: &Path, target: &OsStr, new: &New) -> Result<Attr> {
        self.go(Verb::Symlink, &[path], || self.inner.symlink(path, target, new))
    }

    fn link(&self, from: &Path, key: Option<FileKey>, to: &Path) -> Result<Attr> {
        self.go(Verb::Link, &[from, to], || self.inner.link(from, key, to))
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        self.go(Verb::ReadLink, &[path], || self.inner.read_link(path))
    }

    /// Local bookkeeping, not an operation of the store: no layer sees it until the pin is opened.
    fn pin(&self, path: &Path) -> Result<Option<Arc<dyn Pin>>> {
        let Some(inner) = self.inner.pin(path)? else { return Ok(None) };
        let (layer, path) = (self.layer.clone(), path.to_owned());
        Ok(Some(Arc::new(WrappedPin { inner: Some(inner), layer, path })))
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.go(Verb::Unlink, &[path], || self.inner.unlink(path))
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        self.go(Verb::Rmdir, &[path], || self.inner.rmdir(path))
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()> {
        self.go(Verb::Rename, &[from, to], || self.inner.rename(from, to, mode))
    }

    fn set_attr(&self, path: &Path, key: Option<FileKey>, set: &SetAttr) -> Result<Attr> {
        self.go(Verb::SetAttr, &[path], || self.inner.set_attr(path, key, set))
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.go(Verb::ReadDir, &[path], || self.inner.read_dir(path))
    }

    fn xattr_get(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>> {
        self.go(Verb::XattrGet, &[path], || self.inner.xattr_get(path, name))
    }

    fn xattr_set(
        &self,
        path: &Path,
        key: Option<FileKey>,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.go(Verb::XattrSet, &[path], || self.inner.xattr_set(path, key, name, value, mode))
    }

    fn xattr_list(&self, path: &Path) -> Result<Vec<OsString>> {
        self.go(Verb::XattrList, &[path], || self.inner.xattr_list(path))
    }

    fn xattr_remove(&self, path: &Path, key: Option<FileKey>, name: &OsStr) -> Result<()> {
        self.go(Verb::XattrRemove, &[path], || self.inner.xattr_remove(path, key, name))
    }

    fn statfs(&self) -> Result<StatFs> {
        self.go(Verb::Statfs, &[], || self.inner.statfs())
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.go(Verb::SyncDir, &[path], || self.inner.sync_dir(path))
    }

    fn sync_files(&self, files: &[Arc<dyn BackingFile>]) -> Result<()> {
        let ours: Vec<Option<&WrappedFile<L>>> =
            files.iter().map(|f| f.as_any().and_then(|any| any.downcast_ref())).collect();
        let paths: Vec<&Path> = ours.iter().flatten().map(|file| file.path()).collect();
        let inner: Vec<Arc<dyn BackingFile>> = ours
            .iter()
            .zip(files)
            .map(|(ours, file)| ours.map_or(file, |ours| ours.inner()).clone())
            .collect();
        self.go(Verb::SyncFiles, &paths, || self.inner.sync_files(&inner))
    }
}
