//! A handle on a file that is given back whatever becomes of who took it.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::Result;

use crate::files::file::File;
use crate::io::Io;

/// A handle from [`Engine::open`], closed when it is dropped: not under the file's lock.
pub(crate) struct Handle {
    io: Arc<Io>,
    file: Arc<File>,
}

impl Handle {
    pub fn open(io: &Arc<Io>, path: &Path) -> Result<Handle> {
        let file = io.open(path, None)?;
        Ok(Handle { io: io.clone(), file })
    }
}

impl Deref for Handle {
    type Target = Arc<File>;

    fn deref(&self) -> &Arc<File> {
        &self.file
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.io.close(&self.file);
    }
}
