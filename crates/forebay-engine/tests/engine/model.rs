//! Any sequence of operations of one program equals the same on a map of byte vectors, whatever the
//! engine flushes, evicts, fetches and recovers meanwhile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_backing::{BackingStore, DirStore, RenameMode, Result};
use forebay_engine::media::{DirMedia, Media};
use forebay_engine::{
    Allocate, Attachment, Config, Engine, Eviction, KeepDirty, OpenFile, Progress, Tunables,
    WritePolicy,
};

use crate::media::CrashMedia;
use crate::rng::Rng;
use crate::start::{
    NEW, abandon, counter, is_simulated, named, read_all, simulated, start, time, within,
};
use crate::store::MemStore;

const NAMES: [&str; 8] = ["a", "b", "c", "d", "d/e", "d/f", "g", "h"];

type Files = BTreeMap<PathBuf, usize>;

struct Model {
    rng: Rng,
    engine: Option<Arc<Engine>>,
    media: Arc<dyn Media>,
    store: Arc<dyn BackingStore>,
    tunables: Tunables,
    policies: Policies,
    digests_from: u64,
    /// Handles that stay open over other operations.
    held: Vec<OpenFile>,
    /// Bytes by file, so that hard links share them.
    files: Vec<Vec<u8>>,
    names: Files,
    size_max: u64,
    work: BTreeMap<&'static str, u64>,
}

/// Whether policy, eviction and bypass change while the model runs.
#[derive(PartialEq)]
enum Policies {
    Fixed,
    Switching,
}

fn tunables() -> Tunables {
    Tunables { max_age: Duration::from_millis(20), readahead: 256 << 10, ..Tunables::default() }
}

impl Model {
    fn new(
        seed: u64,
        media: Arc<dyn Media>,
        store: Arc<dyn BackingStore>,
        tier_size: Option<u64>,
        size_max: u64,
    ) -> Model {
        let mut rng = Rng::new(seed);
        let (mut files, mut names) = (Vec::new(), Files::new());
        store.mkdir(Path::new("d"), &NEW).expect("an empty store");
        for name in ["a", "b", "d/e"] {
            let bytes: Vec<u8> = (0..rng.below(size_max)).map(|_| rng.next() as u8).collect();
            let (file, _) = store.create(Path::new(name), &NEW).expect("an empty store");
            file.write_at(&bytes, 0).expect("room");
            names.insert(name.into(), files.len());
            files.push(bytes);
        }
        let tunables = Tunables { tier_size, ..tunables() };
        // Either files of any size are compared by content, or none is.
        let digests_from = if seed.is_multiple_of(2) { 1 } else { u64::MAX };
        let config = Config { digests_from, ..Config::default() };
        let engine =
            start(media.clone(), store.clone(), "model", config, tunables.clone()).expect("new");
        Model {
            rng,
            engine: Some(engine),
            media,
            store,
            tunables,
            policies: Policies::Fixed,
            digests_from,
            held: Vec::new(),
            files,
            names,
            size_max,
            work: BTreeMap::new(),
        }
    }

    fn switching(mut self) -> Model {
        self.policies = Policies::Switching;
        self
    }

    /// Switches the policy, a handle that stays open, or the attachment of the tier.
    fn switch(&mut self, path: &Path) -> Result<()> {
        match self.rng.below(30) {
            0..=2 => {
                let policies =
                    [WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::WriteAround];
                self.tunables.policy = policies[self.rng.below(3) as usize];
                self.tunables.bypass_writes = [0, 0, 20_000][self.rng.below(3) as usize];
                self.tunables.bypass_reads = [0, 10_000][self.rng.below(2) as usize];
                self.tunables.eviction =
                    [Eviction::S3Fifo, Eviction::Fifo][self.rng.below(2) as usize];
                self.engine().ops.set_tunables(self.tunables.clone())
            }
            3 if self.held.len() < 3 && self.names.contains_key(path) => {
                self.held.push(self.engine().io.open(path, None)?);
                Ok(())
            }
            4 => self.let_go(),
            5 if self.rng.below(4) == 0 => self.detach_or_attach(),
            _ => Ok(()),
        }
    }

    fn detach_or_attach(&mut self) -> Result<()> {
        let keep = [KeepDirty::Yes, KeepDirty::No][self.rng.below(2) as usize];
        if self.engine().files.attachment() != Attachment::Attached {
            self.engine().ops.attach();
            return Ok(());
        }
        // Detach would wait for a file that was removed and is still open.
        self.let_go()?;
        self.report(|engine| engine.ops.detach(keep, &Progress::default()))
    }

    fn let_go(&mut self) -> Result<()> {
        self.held.clear();
        Ok(())
    }

    fn engine(&self) -> &Arc<Engine> {
        self.engine.as_ref().expect("always one")
    }

    fn run(&mut self, steps: u64) {
        for step in 0..steps {
            if is_simulated() {
                // Lets flushes end between the steps.
                time().sleep(Duration::from_micros(step * 7919 % 4000));
            }
            let name = NAMES.iter().filter(|n| **n != "d").nth(self.rng.below(7) as usize);
            let path = PathBuf::from(name.expect("seven names"));
            if self.policies == Policies::Switching {
                self.switch(&path).unwrap_or_else(|e| panic!("step {step}: {e}"));
            }
            let done = match self.names.get(&path).copied() {
                None => self.create(&path),
                Some(id) => self.step(&path, id),
            };
            done.unwrap_or_else(|e| panic!("step {step} on {}: {e}", path.display()));
            if self.engine().files.attachment() == Attachment::Detached {
                assert_eq!(self.engine().ops.status().used_bytes, 0, "step {step}: detached");
            }
        }
        self.finish();
    }

    fn step(&mut self, path: &Path, id: usize) -> Result<()> {
        match self.rng.below(40) {
            0..=11 => self.write(path, id),
            12..=22 => self.read(path, id),
            23..=24 => self.resize(path, id),
            25..=26 => self.allocate(path, id),
            27 => self.with(path, |engine, file| engine.io.sync(file)),
            28 => self.write_unseen(path, id),
            29 => self.write_into_unseen(path, id),
            30 => self.rename(path, id),
            31 => self.unlink(path),
            32 => self.link(path, id),
            33 => self.report(|engine| engine.drain.flush(&[], &Progress::default())),
            34..=35 => self.report(|engine| engine.ops.evict(&[], &Progress::default())),
            36 => self.report(|engine| engine.drain.flush(&[path.into()], &Progress::default())),
            37 => {
                // A tier that is too small for all reports that.
                self.engine().ops.prefetch(&[path.into()], &Progress::default());
                Ok(())
            }
            38 if self.rng.below(4) == 0 => self.reopen(),
            _ => self.stat(path, id),
        }
    }

    fn with<T>(
        &self,
        path: &Path,
        act: impl FnOnce(&Arc<Engine>, &Arc<forebay_engine::File>) -> Result<T>,
    ) -> Result<T> {
        let file = self.engine().io.open(path, None)?;
        let done = act(self.engine(), &file);
        drop(file);
        done
    }

    fn create(&mut self, path: &Path) -> Result<()> {
        let (file, _) = self.engine().verbs.create(path, &NEW)?;
        drop(file);
        self.names.insert(path.into(), self.files.len());
        self.files.push(Vec::new());
        Ok(())
    }

    fn bytes(&mut self) -> Vec<u8> {
        let max = [600, 9_000, self.size_max / 4][self.rng.below(3) as usize];
        let fill = self.rng.next() as u8;
        (0..1 + self.rng.below(max)).map(|n| fill.wrapping_add(n as u8)).collect()
    }

    fn write(&mut self, path: &Path, id: usize) -> Result<()> {
        let data = self.bytes();
        let at = self.rng.below(self.size_max - data.len() as u64);
        self.with(path, |engine, file| engine.io.write(file, at, &data))?;
        patch(&mut self.files[id], at, &data);
        Ok(())
    }

    fn read(&mut self, path: &Path, id: usize) -> Result<()> {
        let at = self.rng.below(self.size_max);
        let mut buf = vec![0xEE; 1 + self.rng.below(100_000) as usize];
        let n = self.with(path, |engine, file| engine.io.read(file, at, &mut buf))?;
        let want = &self.files[id];
        let at = (at as usize).min(want.len());
        let want = &want[at..(at + buf.len()).min(want.len())];
        assert_same(path, &buf[..n], want);
        Ok(())
    }

    fn resize(&mut self, path: &Path, id: usize) -> Result<()> {
        let size = self.rng.below(self.size_max) * self.rng.below(3).min(1);
        self.with(path, |engine, file| engine.io.set_len(file, size))?;
        self.files[id].resize(size as usize, 0);
        Ok(())
    }

    fn allocate(&mut self, path: &Path, id: usize) -> Result<()> {
        let how = [Allocate::Extend, Allocate::KeepSize, Allocate::Zero];
        let how = how[self.rng.below(3) as usize];
        let (at, len) = (self.rng.below(self.size_max / 2), 1 + self.rng.below(self.size_max / 2));
        self.with(path, |engine, file| engine.io.allocate(file, how, at, len))?;
        let bytes = &mut self.files[id];
        let end = (at + len) as usize;
        match how {
            Allocate::Extend => bytes.resize(end.max(bytes.len()), 0),
            Allocate::KeepSize => {}
            Allocate::Zero => {
                let (at, end) = ((at as usize).min(bytes.len()), end.min(bytes.len()));
                bytes[at..end].fill(0);
            }
        }
        Ok(())
    }

    /// Writes as the kernel does to a file opened with O_TRUNC.
    fn write_unseen(&mut self, path: &Path, id: usize) -> Result<()> {
        let data = self.bytes();
        let fixed = self.policies == Policies::Fixed;
        self.with(path, |engine, file| {
            engine.io.set_len(file, 0)?;
            let Some(past) = engine.passed.write(file, false)? else {
                assert!(!fixed, "an empty file is complete");
                return engine.io.write(file, 0, &data);
            };
            past.shadow().write_at(&data, 0).expect("room");
            let mut half = vec![0; data.len() / 2];
            let n = engine.io.read(file, 0, &mut half)?;
            assert_same(path, &half[..n], &data[..data.len() / 2]);
            past.end()
        })?;
        self.files[id] = data;
        Ok(())
    }

    /// Writes as the kernel does to a file opened without O_TRUNC, whatever was flushed and evicted
    /// since the front-end looked: only a complete file may be written past the daemon.
    fn write_into_unseen(&mut self, path: &Path, id: usize) -> Result<()> {
        let data = self.bytes();
        let at = self.rng.below(self.files[id].len() as u64 + 1);
        let want = self.files[id].clone();
        let begun = self.with(path, |engine, file| {
            let ready = engine.passed.make_ready(file)?;
            let past = match ready {
                true => engine.passed.write_ready(file, at.is_multiple_of(2))?,
                false => engine.passed.write(file, false)?,
            };
            let Some(past) = past else { return Ok(false) };
            if at.is_multiple_of(5) {
                // The program writes nothing.
                return past.end().map(|()| false);
            }
            let mut got = vec![0xEE; want.len()];
            assert_eq!(past.shadow().read_at(&mut got, 0).expect("memory"), want.len());
            assert_same(path, &got, &want);
            past.shadow().write_at(&data, at).expect("room");
            past.end().map(|()| true)
        })?;
        *self.work.entry(if begun { "unseen" } else { "unseen refused" }).or_default() += 1;
        if begun {
            patch(&mut self.files[id], at, &data);
        }
        Ok(())
    }

    fn rename(&mut self, path: &Path, id: usize) -> Result<()> {
        let to = PathBuf::from(["a", "c", "d/f", "g", "h"][self.rng.below(5) as usize]);
        if self.names.get(&to) == Some(&id) {
            return Ok(()); // Both are names of one file: rename does nothing.
        }
        let (from, over) = (self.engine().verbs.stat(path)?, self.engine().verbs.stat(&to).ok());
        let over = over.as_ref().map(|attr| named(&to, attr));
        self.engine().verbs.rename(named(path, &from), &to, over, RenameMode::Replace)?;
        self.names.remove(path);
        self.names.insert(to, id);
        Ok(())
    }

    fn unlink(&mut self, path: &Path) -> Result<()> {
        let attr = self.engine().verbs.stat(path)?;
        self.engine().verbs.unlink(named(path, &attr))?;
        self.names.remove(path);
        Ok(())
    }

    fn link(&mut self, path: &Path, id: usize) -> Result<()> {
        let to = PathBuf::from(["b", "d/e", "g"][self.rng.below(3) as usize]);
        if self.names.contains_key(&to) {
            return Ok(());
        }
        let attr = self.engine().verbs.stat(path)?;
        self.engine().verbs.link(named(path, &attr), &to)?;
        self.names.insert(to, id);
        Ok(())
    }

    fn stat(&self, path: &Path, id: usize) -> Result<()> {
        let size = self.engine().verbs.stat(path)?.size;
        assert_eq!(size, self.files[id].len() as u64, "{}", path.display());
        Ok(())
    }

    fn report(&self, act: impl FnOnce(&Arc<Engine>) -> forebay_engine::Report) -> Result<()> {
        let report = act(self.engine());
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        Ok(())
    }

    fn note_work(&mut self) {
        for name in ["evicted_bytes", "flushed_bytes", "fill_bytes", "syncs", "passthrough_writes"]
        {
            *self.work.entry(name).or_default() += counter(self.engine(), name);
        }
        if self.policies == Policies::Switching {
            for name in [
                "write_bypass_policy",
                "write_bypass_sequential",
                "read_bypass_sequential",
                "write_bypass_detached",
                "read_bypass_detached",
            ] {
                *self.work.entry(name).or_default() += counter(self.engine(), name);
            }
        }
        assert_eq!(counter(self.engine(), "conflicts"), 0, "nobody else writes");
    }

    fn reopen(&mut self) -> Result<()> {
        self.note_work();
        self.let_go()?;
        let attachment = self.engine().files.attachment();
        self.engine().ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
        let gone = Arc::downgrade(&self.engine.take().expect("always one"));
        // The index writes to its store when it is dropped; read-ahead may still hold it.
        within("the engine ends", || gone.strong_count() == 0);
        let (media, store) = (self.media.clone(), self.store.clone());
        let digests_from = self.digests_from;
        let config = Config { attachment, digests_from, ..Config::default() };
        self.engine = Some(start(media, store, "model", config, self.tunables.clone())?);
        assert!(self.engine().recovery().clean_shutdown, "{:?}", self.engine().recovery());
        Ok(())
    }

    /// Checks all files through the engine and, once flushed, on the backing store.
    fn finish(&mut self) {
        self.let_go().expect("closing never fails");
        for (path, id) in &self.names {
            let bytes = read_all(self.engine(), path).expect("it exists");
            assert_same(path, &bytes, &self.files[*id]);
        }
        self.report(|engine| engine.drain.flush(&[], &Progress::default()))
            .expect("checked inside");
        for (path, id) in &self.names {
            let file = self.store.open(path, forebay_backing::Access::Read).expect("it exists");
            let mut bytes = vec![0; file.stat().expect("open").size as usize];
            file.read_at(&mut bytes, 0).expect("open");
            assert_same(path, &bytes, &self.files[*id]);
        }
        self.note_work();
        abandon(self.engine.take().expect("always one"));
        let idle: Vec<_> = self.work.iter().filter(|(_, count)| **count == 0).collect();
        assert!(idle.is_empty(), "nothing happened: {idle:?}");
    }
}

fn patch(bytes: &mut Vec<u8>, at: u64, data: &[u8]) {
    let (at, end) = (at as usize, at as usize + data.len());
    bytes.resize(bytes.len().max(end), 0);
    bytes[at..end].copy_from_slice(data);
}

fn assert_same(path: &Path, found: &[u8], want: &[u8]) {
    assert_eq!(found.len(), want.len(), "{}: length", path.display());
    let differs = found.iter().zip(want).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{}: first difference", path.display());
}

/// A directory that is removed with its owner, in memory if possible.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let shm = PathBuf::from("/dev/shm");
        let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
        let path = base.join(format!("forebay-model-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

// S-1
#[test]
fn any_sequence_equals_a_map_of_bytes() {
    for seed in 0..4 {
        let store = Arc::new(MemStore::new());
        Model::new(seed, Arc::new(CrashMedia::default()), store, None, 300_000).run(1500);
    }
}

// S-1 S-9
#[test]
fn any_sequence_equals_a_map_of_bytes_in_a_small_tier() {
    let _time = simulated();
    for seed in 10..13 {
        let store = Arc::new(MemStore::new());
        let tier = Some(900_000);
        Model::new(seed, Arc::new(CrashMedia::default()), store, tier, 300_000).run(1000);
    }
}

// S-1 S-8
#[test]
fn any_sequence_does_while_the_policies_change() {
    for (seed, tier) in [(30, None), (31, None), (32, Some(900_000)), (33, Some(900_000))] {
        // In a small tier most of the time goes into waits for room.
        let _time = tier.map(|_| simulated());
        let store = Arc::new(MemStore::new());
        let model = Model::new(seed, Arc::new(CrashMedia::default()), store, tier, 300_000);
        model.switching().run(1500);
    }
}

// S-1
#[test]
fn any_sequence_equals_a_map_of_bytes_in_directories() {
    for (seed, tier) in [(20, None), (21, Some(1_000_000))] {
        let place = Place::new(&seed.to_string());
        let (there, here) = (place.0.join("backing"), place.0.join("tier"));
        std::fs::create_dir_all(&there).expect("a temporary directory");
        std::fs::create_dir_all(&here).expect("a temporary directory");
        let store = Arc::new(DirStore::open(&there).expect("a directory"));
        let media = Arc::new(DirMedia::open(&here).expect("a directory"));
        Model::new(seed, media, store, tier, 300_000).run(1000);
    }
}
