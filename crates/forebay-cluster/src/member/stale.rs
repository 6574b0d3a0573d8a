//! Files of which the mount is still to be told that its knowledge is no longer valid.

use std::sync::Arc;

use forebay_backing::FileKey;
use forebay_base::Result;

use super::Member;
use crate::core::{End, Ends};

/// How often a file was marked stale, and how its claims had ended by then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stale {
    times: u64,
    ends: Ends,
}

impl Member {
    /// The ends of a file's claims that the mount is still to be told of. Every claim that ended before the answer of
    /// [`Member::holder`] is among them, unless the mount was told already.
    pub fn ends(&self, file: FileKey) -> Option<Ends> {
        self.stale.lock().get(&file).map(|said| said.ends.clone())
    }

    /// Has the engine serve a file that was taken over, and forget what it knew of a file of which others have
    /// flushed newer bytes. To be called before an open is believed, and otherwise soon.
    ///
    /// # Errors
    ///
    /// Errors of the tier: then the taken-over bytes of the file are not served.
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

    /// The second half of `freshen`: forgets a stale file.
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
