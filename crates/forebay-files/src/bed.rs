//! The ground of unit tests: a table of files on a store and a tier, without reads, writes or flushes.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::suite::TempDir;
use forebay_backing::{Attr, BackingStore, DirStore, New};

use crate::core::config::{Config, Tunables};
use crate::core::ranges::{Mark, State};
use crate::core::state::{Boot, Change};
use crate::file::File;
use crate::home::Home;
use crate::home::health::Health;
use crate::home::reaper::Reaper;
use crate::names::Names;
use crate::tier::digests::Digests;
use crate::tier::dir::Tier;
use crate::tier::index::Index;
use crate::tier::media::DirMedia;
use crate::tier::witness::Witness;
use crate::time::Time;
use crate::{Files, Inventory};
use forebay_threads::pool::Pool;

pub(crate) struct Bed {
    pub root: TempDir,
    pub files: Arc<Files>,
    pub names: Names,
}

/// A store and a tier without a file.
pub(crate) fn bed() -> Bed {
    bed_on(|store| store)
}

/// As [`bed`], on the store that `wrapped` returns.
pub(crate) fn bed_on(wrapped: impl FnOnce(Arc<dyn BackingStore>) -> Arc<dyn BackingStore>) -> Bed {
    let (root, time) = (TempDir::new(), Time::default());
    let (tier, backing) = (root.path().join("tier"), root.path().join("backing"));
    std::fs::create_dir(&tier).unwrap();
    std::fs::create_dir(&backing).unwrap();
    let tier = Tier::on(Arc::new(DirMedia::open(&tier).unwrap())).unwrap();
    let backing = wrapped(Arc::new(DirStore::open(&backing).unwrap()));
    let witness = Witness::here(&*tier.media);
    let (index, loaded) = Index::open(tier.media.clone(), &witness).unwrap();
    index.begin(&witness, loaded.next_id, &[], &|_| None).unwrap();
    let digests = Digests::open(tier.media.clone(), Boot::Kept).unwrap();
    let health = Arc::new(Health::new(time.clone()));
    let reaper = Arc::new(Reaper::new(health.clone(), time.clone()));
    let errands = Pool::new("fb-errand", 1, time.clone());
    let home = Arc::new(Home::new(backing, reaper, health, errands));
    let (nameless, tier_bytes) = (Vec::new(), 1 << 30);
    let found = Inventory { next_id: 0, nameless, tier_bytes, digests, clean_start: true };
    let settings = (Config::default(), Tunables::default());
    let files = Arc::new(Files::new(home.clone(), (tier, index), settings, found, time));
    Bed { root, names: Names::new(home, files.clone()), files }
}

impl Bed {
    /// Makes a file on the store, and enters it into the table.
    pub fn make(&self, path: &str) -> (Arc<File>, Attr) {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let new = New { mode: 0o644, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() };
        let (_, attr) = self.names.alter(|b| b.create(Path::new(path), &new)).unwrap();
        self.names.note_made(Path::new(path), &attr);
        (self.files.insert(Path::new(path), &attr), attr)
    }

    /// Records that `[0, end)` of the file is dirty.
    pub fn dirty(&self, file: &Arc<File>, end: u64) {
        let mut inner = file.lock();
        let age = inner.state.age_at(self.files.time().ms());
        let marks = vec![Mark::of((0, end), State::Dirty)].into();
        self.files.commit(file, &mut inner, Change::Marked { marks, age }).unwrap();
    }
}
