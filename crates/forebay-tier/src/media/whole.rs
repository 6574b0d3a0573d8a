//! One sync for all of a file system.

use std::io;

use forebay_base::lock::{Mutex, Rank};

/// Whether syncs of the whole may be believed.
///
/// The kernel tells of a write that failed once for each descriptor, whose file ever it was in (`errseq_t`,
/// syncfs(2)). All who sync the whole do so through one descriptor, and one of them is told. So after that
/// nobody is told any more that all is well: each file has to be asked.
#[derive(Debug)]
pub struct Whole {
    /// Held during the sync: who begins one before another has failed must not end it as good.
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
    /// That of the sync, and one for each that comes after it.
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
        // Another's, who begins while the kernel tells the first one of the failure.
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
