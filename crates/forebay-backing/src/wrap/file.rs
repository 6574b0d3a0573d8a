//! The delegation of a file of a wrapped store.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layer::{Call, Done, Layer, Verb};
use super::store::around;
use crate::{Attr, BackingFile, Result, SetAttr, Timestamp};

pub struct WrappedFile<L: Layer> {
    /// The file; `None` once it is closed.
    inner: Option<Arc<dyn BackingFile>>,
    layer: Arc<L>,
    path: PathBuf,
}

impl<L: Layer> WrappedFile<L> {
    pub fn new(inner: Arc<dyn BackingFile>, layer: Arc<L>, path: &Path) -> WrappedFile<L> {
        WrappedFile { inner: Some(inner), layer, path: path.to_owned() }
    }

    pub fn inner(&self) -> &Arc<dyn BackingFile> {
        self.inner.as_ref().expect("closed by its last owner only")
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn go<T>(&self, verb: Verb, run: impl FnMut() -> Result<T>) -> Result<T> {
        around(&*self.layer, &Call { verb, paths: &[&self.path], offset: 0, len: 0 }, run)
    }

    fn at<T>(
        &self,
        verb: Verb,
        offset: u64,
        len: usize,
        run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<T> {
        let call = Call { verb, paths: &[&self.path], offset, len: len as u64 };
        self.layer.around(&call, run).map(|done| done.value)
    }
}

fn close<L: Layer>(layer: &L, inner: Arc<dyn BackingFile>, path: &Path) -> Result<()> {
    let call = Call { verb: Verb::Close, paths: &[path], offset: 0, len: 0 };
    let mut inner = Some(inner);
    around(layer, &call, || inner.take().map_or(Ok(()), |inner| inner.close()))
}

impl<L: Layer> Drop for WrappedFile<L> {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        let (layer, path) = (self.layer.clone(), std::mem::take(&mut self.path));
        self.layer.part(Box::new(move || close(&*layer, inner, &path)));
    }
}

impl<L: Layer> BackingFile for WrappedFile<L> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.at(Verb::ReadAt, offset, buf.len(), || {
            let value = self.inner().read_at(buf, offset)?;
            Ok(Done { value, bytes: value as u64 })
        })
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.at(Verb::WriteAt, offset, buf.len(), || {
            self.inner().write_at(buf, offset)?;
            Ok(Done { value: (), bytes: buf.len() as u64 })
        })
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.go(Verb::SetLen, || self.inner().set_len(len))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.go(Verb::Punch, || self.inner().punch(offset, len))
    }

    fn stat(&self) -> Result<Attr> {
        self.go(Verb::FileStat, || self.inner().stat())
    }

    fn set_times(&self, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<()> {
        self.go(Verb::SetTimes, || self.inner().set_times(atime, mtime))
    }

    fn set_attr(&self, set: &SetAttr) -> Result<Attr> {
        self.go(Verb::SetAttr, || self.inner().set_attr(set))
    }

    fn sync(&self) -> Result<()> {
        self.go(Verb::Sync, || self.inner().sync())
    }

    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        self.go(Verb::NextData, || self.inner().next_data(offset))
    }

    fn close(self: Arc<Self>) -> Result<()> {
        let Some(mut last) = Arc::into_inner(self) else { return Ok(()) };
        match last.inner.take() {
            Some(inner) => close(&*last.layer, inner, &last.path),
            None => Ok(()),
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        if L::PASSES_FD { self.inner().as_fd() } else { None }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
