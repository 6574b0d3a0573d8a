//! Changes of names and attributes that are under way: answers of the store from meanwhile do not count.

use std::sync::Arc;

use crate::core::clock::{Look, What};
use crate::file::{File, Inner};

/// A change of names or attributes of some files, from before the call of the backing store until
/// the known values follow.
pub struct Changing(Vec<Arc<File>>);

impl Changing {
    /// Begins the change: answers of the store about the files from now on do not count after it.
    pub fn begin(files: impl IntoIterator<Item = Arc<File>>) -> Changing {
        let files: Vec<_> = files.into_iter().collect();
        files.iter().for_each(|file| file.lock().clock.begin_change());
        Changing(files)
    }

    /// Ends the change once the known values have followed, at `look`: `told` notes the store's
    /// answer, unless the file has changed once more since.
    pub fn end_told(mut self, look: Look, mut told: impl FnMut(&mut Inner)) {
        for file in std::mem::take(&mut self.0) {
            let mut inner = file.lock();
            let is_last = !inner.changed(look, What::Base);
            inner.clock.end_change();
            inner.forget_seen();
            if is_last {
                told(&mut inner);
            }
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        for file in &self.0 {
            let mut inner = file.lock();
            inner.clock.end_change();
            inner.forget_seen();
        }
    }
}
