//! One sync of a whole file system for many callers.

use std::io;

use forebay_base::lock::{Mutex, Rank};

/// Remembers whether syncs of the whole file system may be believed.
///
/// The kernel reports a failed write once for each descriptor, whichever file the write was in (`errseq_t`,
/// syncfs(2)). All callers sync the whole through one descriptor, and only one of them gets the error. So
/// after a failure no sync of the whole succeeds any more: each file has to be synced.
#[derive(Debug)]
pub struct Whole {
    /// Held during the sync: a sync that begins before another has failed must not end as good.
    failed: Mutex<bool>,
}

impl Default for Whole {
    fn default() -> Whole {
        Whole { failed: Mutex::new(Rank::TierSync, false) }
    }
}

impl Whole {
    /// # Errors
    ///
    /// The error of the sync, and one for each sync that comes after it.
    pub fn sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut failed = self.failed.lock();
        if *failed {
            return Err(io::Error::other("an earlier sync of the whole tier has failed"));
        }
        let synced = sync();
        *failed = synced.is_err();
        synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_one_that_failed_each_file_has_to_be_asked() {
        let whole = Whole::default();
        let good = || whole.sync(|| Ok(())).is_ok();
        assert!(good() && good());
        // A second sync, which begins while the kernel reports the failure to the first.
        let (told, beside) = std::thread::scope(|threads| {
            let (begun, begins) = std::sync::mpsc::channel();
            let beside = threads.spawn(move || {
                begins.recv().expect("the first one is at it");
                good()
            });
            let told = whole.sync(|| {
                begun.send(()).expect("it waits for that");
                std::thread::sleep(std::time::Duration::from_millis(20));
                Err(io::ErrorKind::Other.into())
            });
            (told, beside.join().expect("no panic"))
        });
        assert!(told.is_err() && !beside && !good());
    }
}
