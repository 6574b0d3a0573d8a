//! Starting and stopping engines, several in one process.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_backing::{Attr, BackingStore, New, Result};
use forebay_engine::governor::law::Preset;
use forebay_engine::media::Media;
use forebay_engine::{Config, Engine, KeepDirty, Named, Progress, Tier, Tunables};

/// Longer than anything takes that ends, on however busy a machine. Costs nothing where a test
/// passes.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub const NEW: New = New { mode: 0o644, umask: 0, uid: 0, gid: 0 };

/// Flushes only when asked.
pub fn patient() -> Tunables {
    Tunables { preset: Preset::Hold, ..Tunables::default() }
}

/// An engine that believes to run in the given boot of the machine.
pub fn start(
    media: Arc<dyn Media>,
    backing: Arc<dyn BackingStore>,
    boot: &str,
    config: Config,
    tunables: Tunables,
) -> Result<Arc<Engine>> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _boot = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // SAFETY: everything in this process reads the environment through std, which has a lock.
    unsafe { std::env::set_var("FOREBAY_BOOT_ID", boot) };
    let tier = Tier::on(media).map_err(|e| forebay_backing::Error::io(e, "the tier"))?;
    Engine::start(tier, backing, config, tunables)
}

/// Ends an engine's threads without waiting for them. Its tier is thrown away.
pub fn abandon(engine: Arc<Engine>) {
    std::thread::spawn(move || engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None));
}

pub fn read_all(engine: &Arc<Engine>, path: &Path) -> Result<Vec<u8>> {
    let file = engine.io.open(path, None)?;
    let mut bytes = vec![0; engine.verbs.stat_open(&file).size as usize];
    let read = engine.io.read(&file, 0, &mut bytes);
    engine.io.close(&file);
    assert_eq!(read?, bytes.len(), "{} is shorter than it says", path.display());
    Ok(bytes)
}

pub fn named<'a>(path: &'a Path, attr: &Attr) -> Named<'a> {
    Named { path, key: attr.key, is_dir: false }
}

/// Polls `done` until it holds.
#[track_caller]
pub fn within(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    while !done() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(8));
    }
}

pub fn counter(engine: &Engine, name: &str) -> u64 {
    engine.ops.stats().counters[name]
}
