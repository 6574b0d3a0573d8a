//! The engine with one file that unit tests stand on.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::{BackingStore, DirStore, New};

use crate::core::governor::law::Preset;
use crate::core::ranges::{Mark, State};
use crate::core::state::Change;
use crate::files::file::Inner;
use crate::tier::media::DirMedia;
use crate::{Config, Engine, File, KeepDirty, OpenFile, Progress, Tier, Tunables};

pub(crate) struct Bed {
    pub root: std::path::PathBuf,
    pub engine: Arc<Engine>,
    pub file: Arc<File>,
    open: Option<OpenFile>,
}

/// An engine that flushes only when asked, with a file of which `[0, 100)` is dirty.
pub(crate) fn bed(name: &str) -> Bed {
    bed_on(name, |store| store)
}

/// As [`bed`], on the store that `wrapped` returns.
pub(crate) fn bed_on(
    name: &str,
    wrapped: impl FnOnce(Arc<dyn BackingStore>) -> Arc<dyn BackingStore>,
) -> Bed {
    let root = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
    let (tier, backing) = (root.join("tier"), root.join("backing"));
    std::fs::create_dir_all(&tier).unwrap();
    std::fs::create_dir_all(&backing).unwrap();
    let tier = Tier::on(Arc::new(DirMedia::open(&tier).unwrap())).unwrap();
    let backing = wrapped(Arc::new(DirStore::open(&backing).unwrap()));
    let tunables = Tunables { preset: Preset::Hold, ..Tunables::default() };
    let engine = Engine::start(tier, backing, Config::default(), tunables).unwrap();
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let new = New { mode: 0o644, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() };
    let (file, _) = engine.verbs.create(Path::new("f"), &new).unwrap();
    engine.io.write(&file, 0, &[1; 100]).unwrap();
    Bed { root, engine, file: file.clone(), open: Some(file) }
}

impl Bed {
    /// Records a change of the file.
    pub(crate) fn change(&self, inner: &mut Inner, change: Change<'_>) {
        self.engine.files.commit(&self.file, inner, change).unwrap();
    }

    /// Records that half of the file's bytes have this state.
    pub(crate) fn mark(&self, inner: &mut Inner, state: State) {
        let (marks, age) = (vec![Mark::of((0, 50), state)].into(), inner.state.age_at(1));
        self.change(inner, Change::Marked { marks, age });
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return std::mem::forget(self.open.take()); // This thread may hold the file's lock.
        }
        self.open = None;
        self.engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
        let _ = std::fs::remove_dir_all(&self.root);
    }
}
