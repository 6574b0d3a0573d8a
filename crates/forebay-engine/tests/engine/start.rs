//! Starting and stopping engines, several in one process.

use std::cell::RefCell;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_backing::{Attr, BackingStore, New};
use forebay_engine::governor::law::Preset;
use forebay_engine::media::Media;
use forebay_engine::time::{AtWork, Time};
use forebay_engine::{Config, Engine, KeepDirty, Named, Progress, Tier, Tunables};

/// Longer than anything takes that ends, on however busy a machine. A passing test does not wait
/// for it.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub const NEW: New = New { mode: 0o644, umask: 0, uid: 0, gid: 0 };

/// Tunables with which the drain flushes only when asked.
pub fn patient() -> Tunables {
    Tunables { preset: Preset::Hold, ..Tunables::default() }
}

thread_local! {
    static TIME: RefCell<Time> = RefCell::default();
}

/// Returns the clock of this thread's test.
pub fn time() -> Time {
    TIME.with_borrow(Clone::clone)
}

/// Puts this thread and the engines that it starts into simulated time, until it is dropped.
#[must_use]
pub struct Simulated {
    _driver: AtWork,
}

pub fn is_simulated() -> bool {
    time().is_simulated()
}

pub fn simulated() -> Simulated {
    let (time, _driver) = Time::simulated();
    TIME.set(time);
    Simulated { _driver }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        TIME.set(Time::default());
    }
}

/// Another thread of the test, in the time of this one.
pub struct Beside<T>(JoinHandle<T>);

pub fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Beside<T> {
    let (time, part) = (time(), time().part());
    Beside(std::thread::spawn(move || {
        TIME.set(time);
        part.for_life();
        work()
    }))
}

impl<T> Beside<T> {
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Returns the thread's result; fails the test if the thread does not end.
    #[track_caller]
    pub fn join(self) -> T {
        within("the other thread ends", || self.0.is_finished());
        self.0.join().expect("no panic there")
    }
}

/// Returns the next message, if one comes within the limit.
pub fn receive<T>(from: &Receiver<T>, limit: Duration) -> Result<T, RecvTimeoutError> {
    let (time, began) = (time(), time().now());
    loop {
        match from.try_recv() {
            Ok(sent) => return Ok(sent),
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) if time.since(began) >= limit => {
                return Err(RecvTimeoutError::Timeout);
            }
            Err(TryRecvError::Empty) => time.sleep(Duration::from_millis(1)),
        }
    }
}

/// Starts an engine that believes to run in the given boot of the machine.
pub fn start(
    media: Arc<dyn Media>,
    backing: Arc<dyn BackingStore>,
    boot: &str,
    config: Config,
    tunables: Tunables,
) -> forebay_backing::Result<Arc<Engine>> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _boot = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // SAFETY: everything in this process reads the environment through std, which has a lock.
    unsafe { std::env::set_var("FOREBAY_BOOT_ID", boot) };
    let config = Config { time: time(), ..config };
    let tier = Tier::on(media).map_err(|e| forebay_backing::Error::io(e, "the tier"))?;
    Engine::start(tier, backing, config, tunables)
}

/// Ends an engine's threads without waiting for them. Its tier is thrown away.
pub fn abandon(engine: Arc<Engine>) {
    std::thread::spawn(move || engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None));
}

pub fn read_all(engine: &Arc<Engine>, path: &Path) -> forebay_backing::Result<Vec<u8>> {
    let file = engine.io.open(path, None)?;
    let mut bytes = vec![0; engine.verbs.stat_open(&file).size as usize];
    let read = engine.io.read(&file, 0, &mut bytes);
    drop(file);
    assert_eq!(read?, bytes.len(), "{} is shorter than it says", path.display());
    Ok(bytes)
}

pub fn named<'a>(path: &'a Path, attr: &Attr) -> Named<'a> {
    Named { path, key: attr.key, is_dir: false }
}

/// Polls `done` until it holds.
#[track_caller]
pub fn within(what: &str, mut done: impl FnMut() -> bool) {
    let (time, began) = (time(), time().now());
    let mut pause = Duration::from_millis(1);
    while !done() {
        assert!(time.since(began) < PATIENCE, "not within {PATIENCE:?}: {what}");
        time.sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(8));
    }
}

pub fn counter(engine: &Engine, name: &str) -> u64 {
    engine.ops.stats().counters[name]
}
