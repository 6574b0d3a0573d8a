//! Bytes of the store from another mount of it, which has read them already, or reads them for all mounts.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Error, Result, Version};

use crate::core::near::Near;
use crate::core::rules::Admission;
use crate::files::file::File;
use crate::io::Io;

thread_local! {
    static ASKS_NOBODY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` for a neighbour with reads of the store alone: two mounts that take each other for
/// the reader of a part would wait for each other.
fn asking_nobody<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            ASKS_NOBODY.set(self.0);
        }
    }
    let _before = Before(ASKS_NOBODY.replace(true));
    work()
}

impl Io {
    /// Whether a neighbour had the bytes; they are in `bytes` then.
    pub(crate) fn fetch_near(&self, file: &Arc<File>, start: u64, bytes: &mut [u8]) -> bool {
        let Near(Some(neighbours)) = &self.files.config().near else { return false };
        if ASKS_NOBODY.get() {
            return false;
        }
        let (version, path) = {
            let inner = file.lock();
            let state = &inner.state;
            // A flush has begun to change the store: no version describes its content.
            if state.flush_is_open() || state.conflict().stands() {
                return false;
            }
            (state.base(), state.paths.first())
        };
        path.is_some_and(|path| neighbours.read(&version, &path, start, bytes))
    }

    /// Reads for a neighbour, also into this mount's tier if it has room. Returns the bytes read,
    /// fewer than asked for at the end of the file.
    ///
    /// # Errors
    ///
    /// ESTALE if this mount knows another version of the file, or has a newer one than the store;
    /// else the store's errors.
    pub fn read_for_neighbour(
        self: &Arc<Self>,
        version: &Version,
        path: &Path,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let other = || Error::os(libc::ESTALE, "the file is another version here");
        let is_it = |file: &Arc<File>| {
            let inner = file.lock();
            inner.state.base() == *version && !inner.state.is_dirty() && !inner.gone()
        };
        let known = self.files.find(version.key).filter(is_it);
        let covers = |file: &Arc<File>| {
            let inner = file.lock();
            inner.state.covers(offset, (offset + buf.len() as u64).min(inner.state.size()))
        };
        // The caller has compared the version with the store, so cached bytes need no look at the store.
        let file = match known.filter(covers) {
            Some(file) => self.files.open(&file, file.lock()),
            None => self.open_to_read(path, Some(version.key))?,
        };
        if !is_it(&file) {
            return Err(other());
        }
        let read = asking_nobody(|| self.read_in(&Admission::default(), &file, offset, buf))?;
        match is_it(&file) {
            true => Ok(read),
            false => Err(other()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::sync::atomic::Ordering::Relaxed;

    use forebay_backing::{BackingStore, DirStore};

    use super::*;
    use crate::core::config::Config;
    use crate::core::counters::Counters;
    use crate::core::governor::law::Preset;
    use crate::core::near::Neighbours;
    use crate::tier::media::DirMedia;
    use crate::{Engine, KeepDirty, Progress, Tier, Tunables};

    /// One neighbour: an engine of its own, in this process.
    #[derive(Default)]
    struct One {
        io: Mutex<Option<Arc<Io>>>,
        refused: Mutex<Vec<(PathBuf, u64)>>,
    }

    impl Neighbours for One {
        fn read(&self, version: &Version, path: &Path, offset: u64, buf: &mut [u8]) -> bool {
            let io = self.io.lock().unwrap().clone().unwrap();
            let read = io.read_for_neighbour(version, path, offset, buf);
            let is_full = read.is_ok_and(|n| n == buf.len());
            if !is_full {
                self.refused.lock().unwrap().push((path.into(), offset));
            }
            is_full
        }
    }

    /// Two engines in front of one directory with a file `data`; the first asks the second.
    struct Pair {
        root: PathBuf,
        near: Arc<One>,
        asks: Arc<Engine>,
        gives: Arc<Engine>,
    }

    impl Pair {
        fn new(name: &str, data: &[u8]) -> Pair {
            let root = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
            let backing = root.join("backing");
            std::fs::create_dir_all(&backing).unwrap();
            std::fs::write(backing.join("data"), data).unwrap();
            let start = |name: &str, near: Near| {
                let tier = root.join(name);
                std::fs::create_dir_all(&tier).unwrap();
                let tier = Tier::on(Arc::new(DirMedia::open(&tier).unwrap())).unwrap();
                let store: Arc<dyn BackingStore> =
                    Arc::new(DirStore::open_shared(&backing).unwrap());
                let tunables = Tunables { preset: Preset::Hold, ..Tunables::default() };
                Engine::start(tier, store, Config { near, ..Config::default() }, tunables).unwrap()
            };
            let near = Arc::new(One::default());
            let asks = start("asks", Near(Some(near.clone())));
            let gives = start("gives", Near::default());
            *near.io.lock().unwrap() = Some(gives.io.clone());
            Pair { root, near, asks, gives }
        }

        fn read(&self, len: usize) -> Vec<u8> {
            let file = self.asks.io.open(Path::new("data"), None).unwrap();
            let mut read = vec![0; len];
            let mut at = 0;
            while at < len {
                let n = self.asks.io.read(&file, at as u64, &mut read[at..]).unwrap();
                assert!(n > 0, "the file ends at {at}");
                at += n;
            }
            read
        }

        fn counters(&self) -> &Counters {
            self.asks.files.counters()
        }
    }

    impl Drop for Pair {
        fn drop(&mut self) {
            *self.near.io.lock().unwrap() = None;
            for engine in [&self.asks, &self.gives] {
                engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
            }
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }

    // S-25
    #[test]
    fn a_part_that_a_neighbour_has_is_not_read_from_the_store_again() {
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
        let pair = Pair::new("near", &data);
        assert!(pair.read(data.len()) == data);
        assert_eq!(pair.counters().fill_bytes.load(Relaxed), 0, "nothing from the store");
        assert_eq!(pair.counters().near_bytes.load(Relaxed), data.len() as u64);
        assert!(pair.near.refused.lock().unwrap().is_empty());
        let gave = pair.gives.files.counters().fill_bytes.load(Relaxed);
        assert_eq!(gave, data.len() as u64, "the store gave it once");
    }

    /// The neighbour has newer bytes, which are not the version that was asked for.
    // S-25
    #[test]
    fn a_neighbour_with_another_version_refuses() {
        let data = vec![7; 100_000];
        let pair = Pair::new("near-other", &data);
        let theirs = pair.gives.io.open(Path::new("data"), None).unwrap();
        pair.gives.io.write(&theirs, 0, b"newer").unwrap();
        assert!(pair.read(data.len()) == data, "as the store has it");
        assert!(!pair.near.refused.lock().unwrap().is_empty());
        assert_eq!(pair.counters().near_bytes.load(Relaxed), 0);
        assert_eq!(pair.counters().fill_bytes.load(Relaxed), data.len() as u64);
    }
}
