//! Files of which the mount is still to be told that nothing that it knows of them holds.

use std::sync::Arc;

use forebay_backing::FileKey;
use forebay_base::Result;

use super::Member;
use crate::core::{End, Ends};

/// How often that was said of a file, and how claims of it had ended by then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stale {
    times: u64,
    ends: Ends,
}

impl Member {
    /// How claims of a file have ended of which the mount is still to be told. All are among these, or it was told, that
    /// ended before what [`Member::holder`] says.
    pub fn ends(&self, file: FileKey) -> Option<Ends> {
        self.stale.lock().get(&file).map(|said| said.ends.clone())
    }

    /// Before an open is believed, and as soon as there is time: the engine serves a file that was taken over,
    /// and forgets what it knew of one of which others have brought newer bytes home.
    ///
    /// # Errors
    ///
    /// Those of the tier: then what there is of the file that was taken over is not served.
    pub(super) fn freshen(&self, file: FileKey) -> Result<()> {
        let Some(front) = self.front() else { return Ok(()) };
        let taken = self.taken.lock().get(&file).cloned();
        if let Some(taken) = taken {
            let mut begun = taken.lock();
            if !begun.0 {
                front.take(file)?;
                begun.0 = true;
                let mut all = self.taken.lock();
                if all.get(&file).is_some_and(|it| Arc::ptr_eq(it, &taken)) {
                    all.remove(&file);
                }
            }
        }
        self.forget_stale(file);
        Ok(())
    }

    pub(super) fn note_stale(&self, file: FileKey, end: Option<End>) {
        let mut stale = self.stale.lock();
        let said = stale.entry(file).or_default();
        said.times += 1;
        end.into_iter().for_each(|end| said.ends.add(end));
    }

    /// The second half of it alone.
    pub(super) fn forget_stale(&self, file: FileKey) {
        let Some(front) = self.front() else { return };
        let Some(said) = self.stale.lock().get(&file).cloned() else { return };
        front.forget(file, &said.ends);
        let mut stale = self.stale.lock();
        if stale.get(&file) == Some(&said) {
            stale.remove(&file);
        }
    }
}
