//! A handle on a file that is given back whatever becomes of who took it.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::Result;

use crate::engine::Engine;
use crate::file::File;

/// A handle from [`Engine::open`], closed when it is dropped: not under the file's lock.
pub(crate) struct Handle {
    engine: Arc<Engine>,
    file: Arc<File>,
}

impl Handle {
    pub fn open(engine: &Arc<Engine>, path: &Path) -> Result<Handle> {
        let file = engine.open(path, None)?;
        Ok(Handle { engine: engine.clone(), file })
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
        self.engine.close(&self.file);
    }
}
