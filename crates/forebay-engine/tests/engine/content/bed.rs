//! An engine over a store in memory that counts the bytes written to it, and files that are written
//! past the engine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_backing::wrap::{Call, Done, Layer, Verb, Wrapped};
use forebay_backing::{BackingStore, Result};
use forebay_engine::{Config, Engine, File, OpenFile, Past, Tunables};

use crate::hook::Hook;
use crate::media::{CrashMedia, Disk};
use crate::start::{NEW, patient, read_all, start};
use crate::store::{MemStore, Tree};

pub const BOOT: &str = "content";

/// The unit of comparison.
pub const BLOCK: usize = 16 << 10;

/// The number of bytes written to the store, and whether it refuses to sync them.
#[derive(Default)]
pub struct Written(pub AtomicU64, pub AtomicBool);

impl Layer for Written {
    const PASSES_FD: bool = false;

    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        if call.verb == Verb::WriteAt {
            self.0.fetch_add(call.len, Relaxed);
        }
        if call.verb == Verb::SyncFiles && self.1.load(Relaxed) {
            return Err(forebay_backing::Error::os(libc::EIO, "it refuses"));
        }
        run()
    }
}

pub struct Bed {
    pub media: CrashMedia,
    pub store: MemStore,
    pub hook: Arc<Hook>,
    pub written: Arc<Written>,
    pub engine: Arc<Engine>,
}

impl Bed {
    pub fn new() -> Bed {
        Bed::on(CrashMedia::default(), MemStore::new(), BOOT)
    }

    pub fn on(media: CrashMedia, store: MemStore, boot: &str) -> Bed {
        Bed::with(media, store, boot, patient())
    }

    pub fn with(media: CrashMedia, store: MemStore, boot: &str, tunables: Tunables) -> Bed {
        let (hooked, hook) = Hook::on(store.clone());
        let written = Arc::new(Written::default());
        let metered = Wrapped::new(hooked, written.clone());
        let config = Config { digests_from: 1, ..Config::default() };
        let engine = start(Arc::new(media.clone()), metered, boot, config, tunables);
        Bed { media, store, hook, written, engine: engine.expect("a sound tier") }
    }

    /// Makes a file of `blocks` blocks, each different, on the store and in the tier, and opens it.
    pub fn cached(&self, name: &str, blocks: usize) -> OpenFile {
        let (theirs, _) = self.store.create(Path::new(name), &NEW).expect("memory");
        theirs.write_at(&bytes(blocks), 0).and_then(|()| theirs.sync()).expect("memory");
        assert!(read_all(&self.engine, Path::new(name)).expect("it is there") == bytes(blocks));
        self.open(name)
    }

    pub fn open(&self, name: &str) -> OpenFile {
        self.engine.io.open(Path::new(name), None).expect("it is there")
    }

    /// Opens a complete file past the daemon, as the kernel does for a writer.
    pub fn pass(&self, file: &Arc<File>) -> Past {
        assert!(self.engine.passed.make_ready(file).expect("a tier that works"), "complete");
        self.engine.passed.write_ready(file, false).expect("room").expect("it was made ready")
    }

    /// Writes one byte past the daemon.
    pub fn poke(&self, file: &Arc<File>, at: usize, byte: u8) {
        let past = self.pass(file);
        past.shadow().write_at(&[byte], at as u64).expect("memory");
        past.end().expect("a tier that works");
    }

    /// Flushes, and returns how many bytes were written to the store.
    pub fn flush(&self, file: &Arc<File>) -> u64 {
        let before = self.written.0.load(Relaxed);
        self.engine.drain.flush_file(file).expect("a store that works");
        self.written.0.load(Relaxed) - before
    }

    pub fn is_dirty(&self) -> bool {
        self.engine.ops.status().dirty_files > 0
    }

    /// Returns tier and store as they are after the first call with this verb.
    pub fn at(&self, verb: Verb) -> Moment {
        let (media, store) = (self.media.clone(), self.store.clone());
        let found = Moment::default();
        let (out, seen) = (found.clone(), AtomicBool::new(false));
        self.hook.set(move |call| {
            if call.verb == verb && !seen.swap(true, Relaxed) {
                *out.lock().expect("no panic inside") = Some((media.snapshot(), store.snapshot()));
            }
        });
        found
    }
}

type Moment = Arc<std::sync::Mutex<Option<(Disk, Tree)>>>;

/// Returns `blocks` blocks, each different.
pub fn bytes(blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at / BLOCK + 1) as u8).collect()
}

pub fn with(mut bytes: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    bytes[at] = byte;
    bytes
}
